/* agree.c - see agree.h. */
#include "agree.h"
#include "comm.h"

enum { SHOWN_BYTES = 300 };

/* The first line that differs between two texts, from both; false: none does. */
static bool first_difference(Arena *mem, const char *a, const char *b, char **la,
                             char **lb) {
    while (*a || *b) {
        size_t n = strcspn(a, "\n"), m = strcspn(b, "\n");
        if (n != m || memcmp(a, b, n)) {
            *la = arena_strndup(mem, a, MIN(n, (size_t)SHOWN_BYTES));
            *lb = arena_strndup(mem, b, MIN(m, (size_t)SHOWN_BYTES));
            return true;
        }
        a += n + (a[n] == '\n');
        b += m + (b[m] == '\n');
    }
    return false;
}

void agree_on(Arena *mem, const char *what, const char *text, const char *remedy) {
    char mine[33], *here, *there;
    if (comm_size() == 1) return;
    hash_hex(text, strlen(text), mine);
    bool differs = strcmp(mine, comm_broadcast_text(mem, mine)) != 0;
    if (!comm_max_i64(differs)) return;
    const char *first = comm_broadcast_text(mem, text);
    if (first_difference(mem, text, first, &here, &there))
        fail(EXIT_CONFIG,
             "ranks disagree on the %s: rank %d on %s has '%s', rank 0 has '%s'; %s", what,
             comm_rank(), comm_host(), here, there, remedy);
    comm_barrier(); /* the rank that differs ends the others */
    fail(EXIT_CONFIG, "ranks disagree on the %s", what);
}
