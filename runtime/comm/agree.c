/* agree.c - see agree.h. */
#include "runtime/comm/agree.h"
#include "runtime/comm/comm.h"

enum { SHOWN_BYTES = 300, HEAD_BYTES = 80, AROUND_BYTES = 100, HOST_BYTES = 256 };

/* Of a line what a message has room for: its beginning, and what is around byte `at`. */
static char *part_shown(Arena *mem, const char *line, size_t n, size_t at) {
    size_t begin = at + AROUND_BYTES < SHOWN_BYTES ? 0 : at - AROUND_BYTES;
    size_t end = MIN(n, begin + (begin ? 2 * AROUND_BYTES : SHOWN_BYTES));
    const char *rest = end < n ? "..." : "";
    int most = (int)(end - begin), head = begin ? HEAD_BYTES : 0;
    return arena_printf(mem, "%.*s%s%.*s%s", head, line, begin ? "..." : "", most,
                        line + begin, rest);
}

/* The first line that differs between two texts, from both; false: none does. */
static bool first_difference(Arena *mem, const char *a, const char *b, char **la,
                             char **lb) {
    while (*a || *b) {
        size_t n = strcspn(a, "\n"), m = strcspn(b, "\n");
        if (n != m || memcmp(a, b, n)) {
            size_t at = 0;
            while (at < MIN(n, m) && a[at] == b[at]) at++;
            *la = part_shown(mem, a, n, at);
            *lb = part_shown(mem, b, m, at);
            return true;
        }
        a += n + (a[n] == '\n');
        b += m + (b[m] == '\n');
    }
    return false;
}

/* What to do on this rank's host about a file that is as it should be on another. */
static const char *copy_remedy(Arena *mem, const char *path, const char *good_host) {
    if (!strcmp(good_host, comm_host()))
        return "start all ranks in the same folder and with the same files";
    return arena_printf(mem, "copy %s from host %s to the same path on host %s", path,
                        good_host, comm_host());
}

/* Of all ranks, or of those of each stage. path NULL: `remedy` says what to do. */
static void agree(Arena *mem, const char *what, const char *text, const char *remedy,
                  const char *path, bool in_stage) {
    char *(*of_first)(Arena *, const char *) =
        in_stage ? comm_stage_text : comm_broadcast_text;
    char mine[HASH_HEX_BYTES], *here, *there;
    if (comm_size() == 1) return;
    hash_hex(text, strlen(text), mine);
    bool differs = strcmp(mine, of_first(mem, mine)) != 0;
    if (!comm_max_i64(differs)) return;
    const char *first = of_first(mem, text);
    const char *host = comm_broadcast_text(mem, comm_host());
    const char *stage = in_stage ? arena_printf(mem, "of stage %d ", comm_stage()) : "";
    if (first_difference(mem, text, first, &here, &there))
        fail(EXIT_CONFIG,
             "ranks %sdisagree on the %s: rank %d on %s has '%s', rank %d has '%s'; %s",
             stage, what, comm_rank(), comm_host(), here,
             in_stage ? comm_stage_first() : 0, there,
             path ? copy_remedy(mem, path, host) : remedy);
    comm_barrier(); /* the rank that differs ends the others */
    fail(EXIT_CONFIG, "ranks disagree on the %s", what);
}

void agree_on(Arena *mem, const char *what, const char *text, const char *remedy) {
    agree(mem, what, text, remedy, NULL, false);
}

void agree_in_stage(Arena *mem, const char *what, const char *text, const char *remedy) {
    agree(mem, what, text, remedy, NULL, true);
}

void agree_on_file(Arena *mem, const char *what, const char *text, const char *path) {
    agree(mem, what, text, NULL, path, false);
}

/* Some rank has failed. `good` is the first that has not; INT64_MAX: there is none. */
static _Noreturn void end_look(Arena *mem, const Catch *c, int64_t good) {
    char host[HOST_BYTES] = "";
    if (good == INT64_MAX) fail_again(c->code, c->message);
    snprintf(host, sizeof host, "%s", comm_host());
    comm_broadcast(host, sizeof host, (int)good);
    if (c->code)
        fail_again(
            c->code,
            arena_printf(
                mem,
                "%s\n  this is rank %d on %s; rank %lld on %s has no such failure: %s",
                c->message, comm_rank(), comm_host(), (long long)good, host,
                copy_remedy(mem, "what is named here", host)));
    comm_barrier(); /* the rank that fails ends the others */
    fail(EXIT_CONFIG, "another rank has failed");
}

void agree_look(void (*look)(void *), void *context) {
    Catch c;
    if (comm_size() == 1) {
        look(context);
        return;
    }
    if (CATCH(c)) {
        look(context);
        catch_end(&c);
    }
    int64_t good = comm_min_i64(c.code ? INT64_MAX : comm_rank());
    if (comm_max_i64(c.code)) end_look(arena_new(), &c, good);
}

typedef struct Failure {
    int code;
    const char *message;
} Failure;

static void fail_alike(void *context) {
    const Failure *f = context;
    if (f->code) fail_again(f->code, f->message);
}

void agree_with_rank_0(Arena *mem, void (*look)(void *), void *context) {
    Failure f = {0, ""};
    Catch c;
    if (comm_rank() == 0) {
        if (CATCH(c)) {
            look(context);
            catch_end(&c);
        }
        if (c.code) f = (Failure){c.code, c.message};
    }
    f.code = (int)comm_max_i64(f.code);
    f.message = comm_broadcast_text(mem, f.message);
    agree_look(fail_alike, &f);
}
