/* launch_place.c - which rank stands on which host. */
#include "frontend/launch/launch_parts.h"
#include "frontend/launch/rank_table.h"
#include <stdlib.h>

enum { HOSTFILE_MAX_BYTES = 16 << 20, MAX_SLOTS = MAX_RANKS };

/* ---- hosts by name ---- */

typedef struct Host {
    const char *name;
    int slots, order, ranks;
} Host;

static int by_name(const void *a, const void *b) {
    const Host *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : x->order - y->order;
}

static int by_order(const void *a, const void *b) {
    return ((const Host *)a)->order - ((const Host *)b)->order;
}

/* Joins lines of the same name; number[i] becomes the place of line i among the hosts
 * that are left. Returns how many are left. */
static int join_hosts(Host *host, int n, int *number) {
    qsort(host, (size_t)n, sizeof *host, by_name);
    for (int i = 0, first = 0; i < n; i++) {
        if (strcmp(host[i].name, host[first].name)) first = i;
        number[host[i].order] = host[first].order;
        if (first != i) {
            host[first].slots = MIN(host[first].slots + host[i].slots, MAX_SLOTS);
            host[i].slots = -1; /* joined */
        }
    }
    qsort(host, (size_t)n, sizeof *host, by_order);
    int left = 0;
    for (int i = 0; i < n; i++) { /* a line's first of its name stands before it */
        number[i] = number[i] == i ? left : number[number[i]];
        if (host[i].slots >= 0) host[left++] = host[i];
    }
    return left;
}

static Placement *placement_new(Arena *mem, int ranks, const Host *host, int hosts,
                                const Machine *m) {
    Placement *p = NEW(mem, Placement);
    p->ranks = ranks;
    p->hosts = hosts;
    p->host = NEW_ARRAY(mem, const char *, (size_t)hosts);
    p->host_of = NEW_ARRAY(mem, int, (size_t)ranks);
    p->slot_of = NEW_ARRAY(mem, int, (size_t)ranks);
    for (int i = 0; i < hosts; i++) {
        p->host[i] = host[i].name;
        p->local = p->local || !strcmp(host[i].name, m->host);
    }
    return p;
}

static void seat(Placement *p, Host *host, int rank, int at) {
    p->host_of[rank] = at;
    p->slot_of[rank] = host[at].ranks++;
    p->most = MAX(p->most, host[at].ranks);
}

/* ---- hostfile ---- */

static int parse_slots(const char *value, SourcePos at) {
    size_t digits = strspn(value, "0123456789");
    long n = digits >= 1 && digits <= 6 && !value[digits] ? strtol(value, NULL, 10) : 0;
    if (n < 1 || n > MAX_SLOTS)
        fail_at(EXIT_CONFIG, at, NULL, "slots=%.50s: write a number from 1 to %d", value,
                MAX_SLOTS);
    return (int)n;
}

/* One line, without its comment; false when it is blank. */
static bool parse_line(Arena *mem, char *line, SourcePos at, int default_slots,
                       const Machine *m, Host *out) {
    char *save = NULL, *name = strtok_r(line, " \t\r", &save);
    if (!name) return false;
    if (!host_name_good(name))
        fail_at(EXIT_CONFIG, at, "write NAME slots=N, where N is the ranks it may get",
                "'%.100s' cannot be the name of a host", name);
    *out = (Host){.slots = default_slots};
    out->name = machine_is(m, name) ? m->host : arena_strdup(mem, name);
    for (char *w; (w = strtok_r(NULL, " \t\r", &save));) {
        if (strncmp(w, "slots=", 6))
            fail_at(EXIT_CONFIG, at, "write NAME slots=N",
                    "'%.100s' is not understood after a host's name", w);
        out->slots = parse_slots(w + 6, at);
    }
    return true;
}

Placement *placement_of_hostfile(Arena *mem, const char *name, const char *text,
                                 int ranks, const Machine *m) {
    Host *host = NULL;
    int n = 0, cap = 0, number = 1;
    for (const char *s = text; *s; number++) {
        size_t length = strcspn(s, "\n");
        char *line = arena_strndup(mem, s, length);
        line[strcspn(line, "#")] = 0;
        SourcePos at = {.file = name, .text = text, .line = number, .col = 1};
        Host h;
        if (parse_line(mem, line, at, MIN(m->cores, MAX_SLOTS), m, &h)) {
            if (n == MAX_RANKS)
                fail_at(EXIT_CONFIG, at, NULL, "more than %d hosts", MAX_RANKS);
            h.order = n;
            PUSH(mem, host, n, cap, h);
        }
        s += length + (s[length] == '\n');
    }
    if (!n) fail(EXIT_CONFIG, "%s names no host; write lines NAME slots=N", name);
    int hosts = join_hosts(host, n, NEW_ARRAY(mem, int, (size_t)n));
    Placement *p = placement_new(mem, ranks, host, hosts, m);
    int64_t slots = 0;
    for (int i = 0; i < hosts; i++) slots += host[i].slots;
    p->slots = (int)MIN(slots, MAX_SLOTS);
    p->crowded = ranks > slots;
    for (int rank = 0, at = 0, left = host[0].slots; rank < ranks; rank++, left--) {
        while (!left) {
            at = (at + 1) % hosts;
            left = host[at].slots;
        }
        seat(p, host, rank, at);
    }
    return p;
}

/* ---- rank table ---- */

typedef struct Device {
    int server, device, rank;
} Device;

static int by_device(const void *a, const void *b) {
    const Device *x = a, *y = b;
    if (x->server != y->server) return x->server < y->server ? -1 : 1;
    return (x->device > y->device) - (x->device < y->device);
}

static Placement *placement_of_table(Arena *mem, const RankTable *t, const Machine *m) {
    Host *host = NEW_ARRAY(mem, Host, (size_t)t->servers);
    Device *device = NEW_ARRAY(mem, Device, (size_t)t->ranks);
    int *number = NEW_ARRAY(mem, int, (size_t)t->servers);
    for (int i = 0; i < t->servers; i++) {
        host[i].name = machine_is(m, t->server[i]) ? m->host : t->server[i];
        host[i].order = i;
    }
    int hosts = join_hosts(host, t->servers, number);
    Placement *p = placement_new(mem, t->ranks, host, hosts, m);
    for (int r = 0; r < t->ranks; r++)
        device[r] = (Device){t->server_of[r], t->device_of[r], r};
    qsort(device, (size_t)t->ranks, sizeof *device, by_device);
    for (int i = 0; i < t->ranks; i++)
        seat(p, host, device[i].rank, number[device[i].server]);
    return p;
}

/* ---- */

static Placement *placement_plain(Arena *mem, int ranks, const Machine *m) {
    Placement *p = NEW(mem, Placement);
    p->ranks = ranks;
    p->most = (ranks + m->nodes - 1) / m->nodes;
    p->local = true;
    return p;
}

Placement *placement_make(Arena *mem, const LaunchOptions *o, const Machine *m) {
    if (o->rank_table) {
        RankTable *t = rank_table_read(mem, o->rank_table);
        if (o->ranks && o->ranks != t->ranks)
            fail(EXIT_CONFIG, "-n is %d, but %s has %d ranks; leave -n out", o->ranks,
                 o->rank_table, t->ranks);
        return placement_of_table(mem, t, m);
    }
    if (!o->ranks)
        fail(EXIT_CONFIG, "how many ranks? write stator launch -n N %s...",
             o->hostfile ? "--hostfile FILE " : "");
    if (!o->hostfile) return placement_plain(mem, o->ranks, m);
    size_t n;
    const char *text = file_read(mem, o->hostfile, HOSTFILE_MAX_BYTES, &n, EXIT_CONFIG);
    if (strlen(text) != n) fail(EXIT_CONFIG, "%s is no text", o->hostfile);
    return placement_of_hostfile(mem, o->hostfile, text, o->ranks, m);
}
