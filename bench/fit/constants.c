/* constants.c - see constants.h. */
#include "bench/fit/constants.h"
#include <math.h>
#include <stddef.h>

/* Where a number is: of the machine, of its first entry of ranks, or its rate of memory. */
typedef enum Place { OF_MACHINE, OF_MEMORY } Place;

typedef struct Constant {
    const char *name;
    Place place;
    size_t at;
    double unit;   /* one of the file's */
    double spread; /* how sure the data sheet is: standard deviation of the logarithm */
    double low, high; /* in the file's unit */
    bool usual;
} Constant;

#define NUMBER(name, field, unit, spread, low, high, usual)                              \
    { name, OF_MACHINE, offsetof(Machine, field), unit, spread, low, high, usual }

static const Constant constants[] = {
    NUMBER("reached", reached, 1, 0.2, 0.05, 1, true),
    NUMBER("half", half, 1, 0.5, 1, 2000, true),
    NUMBER("inner_reached", inner_reached, 1, 0.5, 0.01, 1, false),
    NUMBER("unaligned", unaligned, 1, 0.5, 0.01, 1, false),
    {"memory", OF_MEMORY, 0, 1e9, 0.2, 1, 1e6, true},
    NUMBER("host", link[LINK_HOST].bytes_per_second, 1e9, 0.15, 1, 1e6, true),
    NUMBER("network", link[LINK_NETWORK].bytes_per_second, 1e9, 0.3, 1, 1e6, true),
    NUMBER("op_start_us", op_start_seconds, 1e-6, 0.5, 0.1, 1000, true),
    NUMBER("issue_us", issue_seconds, 1e-6, 0.5, 0.1, 1000, false),
    NUMBER("inner_bytes", inner_bytes, 1, 0.3, 0.1, 100, true),
    NUMBER("host_start_us", link[LINK_HOST].start_seconds, 1e-6, 0.5, 0.1, 1000, false),
    NUMBER("network_start_us", link[LINK_NETWORK].start_seconds, 1e-6, 0.5, 0.1, 1000,
           false),
    NUMBER("network_rank", link[LINK_NETWORK].rank_bytes_per_second, 1e9, 0.3, 1, 1e6,
           false),
};

static const Constant *find(const char *name, size_t n) {
    for (int i = 0; i < ARRAY_LEN(constants); i++)
        if (strlen(constants[i].name) == n && !memcmp(constants[i].name, name, n))
            return &constants[i];
    fail(EXIT_CONFIG, "there is no constant %.*s; docs/published.md lists them", (int)n,
         name);
}

static double *value_of(Machine *m, const Constant *c) {
    if (c->place == OF_MEMORY) return &m->rank[0].memory.y[0];
    return (double *)(void *)((char *)m + c->at);
}

static Machine *copy_machine(Arena *mem, const Machine *from) {
    Machine *m = NEW(mem, Machine);
    *m = *from;
    m->rank = NEW_ARRAY(mem, MachineRank, (size_t)m->nranks);
    memcpy(m->rank, from->rank, (size_t)m->nranks * sizeof *m->rank);
    Curve *c = &m->rank[0].memory;
    c->y = NEW_ARRAY(mem, double, (size_t)c->n + 1);
    if (c->n) memcpy(c->y, from->rank[0].memory.y, (size_t)c->n * sizeof *c->y);
    return m;
}

Constants constants_choose(Arena *mem, const char *list, const Machine *m) {
    Constants c = {.n = 0};
    for (int i = 0; !list && i < ARRAY_LEN(constants); i++)
        if (constants[i].usual) c.which[c.n++] = &constants[i];
    for (const char *p = list; p && *p;) {
        size_t n = strcspn(p, ",");
        if (c.n == MAX_CONSTANTS)
            fail(EXIT_CONFIG, "at most %d constants", MAX_CONSTANTS);
        c.which[c.n++] = find(p, n);
        p += n + (p[n] == ',');
    }
    Machine *own = copy_machine(mem, m);
    for (int i = 0; i < c.n; i++) {
        double x = *value_of(own, c.which[i]);
        if (!(x > 0))
            fail(EXIT_CONFIG, "the machine's file says nothing of %s, where to begin",
                 c.which[i]->name);
        c.prior[i] = log(x);
    }
    return c;
}

static double bounded(const Constant *c, double x) {
    return MIN(MAX(exp(x), c->low * c->unit), c->high * c->unit);
}

Machine *constants_machine(Arena *mem, const Machine *m, const Constants *c,
                           const double *x) {
    Machine *own = copy_machine(mem, m);
    for (int i = 0; i < c->n; i++)
        *value_of(own, c->which[i]) = bounded(c->which[i], x[i]);
    return own;
}

double constants_distance(const Constants *c, const double *x) {
    double all = 0;
    for (int i = 0; i < c->n; i++) {
        double off = (x[i] - c->prior[i]) / c->which[i]->spread;
        all += off * off / c->n;
    }
    return all;
}

void constants_print(const Constants *c, const double *x, Text *out) {
    for (int i = 0; i < c->n; i++)
        text_add(out, "  %-18s %10.4g   was %10.4g\n", c->which[i]->name,
                 bounded(c->which[i], x[i]) / c->which[i]->unit,
                 exp(c->prior[i]) / c->which[i]->unit);
}
