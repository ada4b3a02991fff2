/* launch_place.c - which rank stands on which host. */
#include "frontend/launch/launch_parts.h"
#include "frontend/launch/rank_table.h"
#include <limits.h>
#include <stdlib.h>

enum { HOSTFILE_MAX_BYTES = 16 << 20, MAX_NODES = 1 << 20 };

/* ---- hostfile ---- */

typedef struct Host {
    const char *name;
    int slots;
} Host;

static int parse_slots(const char *value, SourcePos at) {
    size_t digits = strspn(value, "0123456789");
    long n = digits >= 1 && digits <= 6 && !value[digits] ? strtol(value, NULL, 10) : 0;
    if (n < 1 || n > MAX_RANKS)
        fail_at(EXIT_CONFIG, at, NULL, "slots=%.50s: write a number from 1 to %d", value,
                MAX_RANKS);
    return (int)n;
}

/* One line, without its comment; a host without a name when it is blank. */
static Host parse_line(char *line, SourcePos at, int slots) {
    char *save = NULL, *name = strtok_r(line, " \t\r", &save);
    if (name && !host_name_good(name))
        fail_at(EXIT_CONFIG, at, "write NAME slots=N, where N is the ranks it may get",
                "'%.100s' cannot be the name of a host", name);
    for (char *w; name && (w = strtok_r(NULL, " \t\r", &save));) {
        if (!begins_with(w, "slots="))
            fail_at(EXIT_CONFIG, at, "write NAME slots=N",
                    "'%.100s' is not understood after a host's name", w);
        slots = parse_slots(w + 6, at);
    }
    return (Host){name, slots};
}

/* A rank for each slot, in the order of the lines; then they go round again. */
static void seat_ranks(Arena *mem, Placement *p, const char *file, const char *text,
                       int cores) {
    int line_number = 1;
    for (const char *s = text; *s; line_number++) {
        size_t length = strcspn(s, "\n");
        char *line = arena_strndup(mem, s, length);
        line[strcspn(line, "#")] = 0;
        SourcePos at = {.file = file, .text = text, .line = line_number, .col = 1};
        Host h = parse_line(line, at, cores);
        for (int i = 0; h.name && i < h.slots && p->slots < p->ranks; i++)
            p->host[p->slots++] = h.name;
        s += length + (s[length] == '\n');
    }
    if (!p->slots) fail(EXIT_CONFIG, "%s names no host; write lines NAME slots=N", file);
    for (int r = p->slots; r < p->ranks; r++) p->host[r] = p->host[r - p->slots];
}

/* ---- which hosts are there ---- */

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Ranks of the name that has the most. */
static int most_of(Arena *mem, const Placement *p) {
    const char **name = NEW_ARRAY(mem, const char *, (size_t)p->ranks);
    memcpy(name, p->host, (size_t)p->ranks * sizeof *name);
    qsort(name, (size_t)p->ranks, sizeof *name, by_name);
    int most = 0;
    for (int i = 0, first = 0; i < p->ranks; i++) {
        if (strcmp(name[i], name[first])) first = i;
        most = MAX(most, i - first + 1);
    }
    return most;
}

/* The nodes of an allocation. */
typedef struct Nodes {
    int n, least;  /* tasks of the node that has the fewest */
    int most;      /* ranks of the one that gets the most */
    int64_t tasks; /* of all */
} Nodes;

/* mpirun fills the first node before the next, as far as their tasks go; what is left goes round
 * again. */
static Nodes nodes_of(const ThisHost *m, int ranks) {
    Nodes a = {.least = INT_MAX};
    for (const char *s = m->tasks; s && *s;) {
        int tasks = 0, times = 1, n = 0;
        if (sscanf(s, "%d%n", &tasks, &n) != 1 || tasks < 1) break;
        s += n;
        if (sscanf(s, "(x%d)%n", &times, &n) == 1) s += n;
        for (; times > 0 && a.n < MAX_NODES; times--, a.n++) {
            a.most = MAX(a.most, MIN(tasks, (int)MAX(ranks - a.tasks, 0)));
            a.tasks += tasks;
            a.least = MIN(a.least, tasks);
        }
        if (*s == ',') s++;
    }
    a.n = MAX(m->nodes, a.n);
    if (ranks > a.tasks) a.most = MAX(a.most, (ranks + a.n - 1) / a.n);
    return a;
}

Placement *placement_make(Arena *mem, const LaunchOptions *o, const ThisHost *m) {
    Placement *p = NEW(mem, Placement);
    *p = (Placement){.ranks = o->ranks};
    if (o->rank_table) {
        const RankTable *t = rank_table_read(mem, o->rank_table);
        if (o->ranks && o->ranks != t->ranks)
            fail(EXIT_CONFIG, "-n is %d, but %s has %d ranks; leave -n out", o->ranks,
                 o->rank_table, t->ranks);
        *p = (Placement){.ranks = t->ranks, .host = t->host, .slots = t->ranks};
    } else if (!o->ranks) {
        fail(EXIT_CONFIG, "how many ranks? write stator launch -n N %s...",
             o->hostfile ? "--hostfile FILE " : "");
    } else if (o->hostfile) {
        size_t n;
        const char *text =
            file_read(mem, o->hostfile, HOSTFILE_MAX_BYTES, &n, EXIT_CONFIG);
        if (strlen(text) != n) fail(EXIT_CONFIG, "%s is no text", o->hostfile);
        p->host = NEW_ARRAY(mem, const char *, (size_t)p->ranks);
        seat_ranks(mem, p, o->hostfile, text, m->cores);
    }
    Nodes all = nodes_of(m, p->ranks);
    p->most = p->host ? most_of(mem, p) : all.most;
    bool room = p->host ? p->most <= all.least : p->ranks <= all.tasks;
    if (m->tasks && !room) p->tasks = arena_printf(mem, "%d(x%d)", p->most, all.n);
    return p;
}
