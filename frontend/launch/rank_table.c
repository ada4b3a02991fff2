/* rank_table.c - reads RANK_TABLE.json; see rank_table.h. */
#include "frontend/launch/rank_table.h"
#include "base/json.h"
#include <stdlib.h>

bool host_name_good(const char *s) {
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                               "0123456789.-_";
    size_t n = strlen(s);
    return n >= 1 && n <= MAX_HOST_BYTES && s[0] != '-' && strspn(s, good) == n;
}

/* A number that may be written as a string: 3 or "3". */
static int number_of(const Json *v, int low, int high) {
    if (v->kind != JSON_STRING) return (int)json_i64(v, low, high);
    const char *s = json_string(v);
    size_t digits = strspn(s, "0123456789");
    long n = digits >= 1 && digits <= 9 && !s[digits] ? strtol(s, NULL, 10) : -1;
    if (n < low || n > high)
        json_fail(v, NULL, "'%.100s' stands for no number from %d to %d", v->key, low,
                  high);
    return (int)n;
}

static void text_is(const Json *root, const char *key, const char *want,
                    const char *hint) {
    const Json *v = json_need(root, key);
    if (strcmp(json_string(v), want))
        json_fail(v, hint, "'%s' is '%.100s', wanted '%s'", key, json_string(v), want);
}

/* Where a rank, a server's name or a device stands in the file, for messages. */
typedef struct Seat {
    const Json *at;
    int rank, server, device;
} Seat;

typedef struct Reader {
    Arena *mem;
    RankTable *t;
    const Json **server_at;
    Seat *seat;
    int n, cap;
} Reader;

static void read_device(Reader *r, int server, const Json *device) {
    json_want(device, JSON_OBJECT);
    const Json *rank = json_need(device, "rank_id");
    if (r->n == MAX_RANKS)
        json_fail(device, NULL, "more than %d ranks in one table", MAX_RANKS);
    Seat s = {.at = rank,
              .rank = number_of(rank, 0, MAX_RANKS - 1),
              .server = server,
              .device = number_of(json_need(device, "device_id"), 0, MAX_RANKS - 1)};
    PUSH(r->mem, r->seat, r->n, r->cap, s);
}

static void read_server(Reader *r, int server, const Json *v) {
    json_want(v, JSON_OBJECT);
    const Json *id = json_need(v, "server_id"), *devices = json_need(v, "device");
    const char *name = json_string(id);
    if (!host_name_good(name))
        json_fail(id, "write a host name or an IPv4 address",
                  "'%.100s' cannot be the name of a host", name);
    json_want(devices, JSON_ARRAY);
    if (!devices->n)
        json_fail(devices, "leave the server out, or list a device for every rank on it",
                  "server %s has no device", name);
    r->t->server[server] = name;
    r->server_at[server] = id;
    for (const Json *d = devices->first; d; d = d->next) read_device(r, server, d);
}

static int by_name(const void *a, const void *b) {
    const Json *x = *(const Json *const *)a, *y = *(const Json *const *)b;
    int order = strcmp(x->s, y->s);
    return order ? order : (x->begin > y->begin) - (x->begin < y->begin);
}

static int by_device(const void *a, const void *b) {
    const Seat *x = a, *y = b;
    if (x->server != y->server) return x->server < y->server ? -1 : 1;
    if (x->device != y->device) return x->device < y->device ? -1 : 1;
    return (x->at->begin > y->at->begin) - (x->at->begin < y->at->begin);
}

static void check_names(Reader *r) {
    qsort(r->server_at, (size_t)r->t->servers, sizeof *r->server_at, by_name);
    for (int i = 1; i < r->t->servers; i++)
        if (!strcmp(r->server_at[i - 1]->s, r->server_at[i]->s))
            json_fail(r->server_at[i], "list all devices of a server in one entry",
                      "server %s is there twice", r->server_at[i]->s);
}

static void check_devices(Reader *r) {
    qsort(r->seat, (size_t)r->n, sizeof *r->seat, by_device);
    for (int i = 1; i < r->n; i++) {
        const Seat *a = &r->seat[i - 1], *b = &r->seat[i];
        if (a->server == b->server && a->device == b->device)
            json_fail(b->at, "number the devices of a server 0, 1, 2, ...",
                      "device_id %d of server %s is there twice (ranks %d and %d)",
                      b->device, r->t->server[b->server], a->rank, b->rank);
    }
}

/* Ranks by number: n different ones below n are all of 0..n-1. */
static void seat_ranks(Reader *r) {
    static const char hint[] = "count rank_id over all servers: 0, 1, 2, ...";
    RankTable *t = r->t;
    const Seat **of = NEW_ARRAY(r->mem, const Seat *, (size_t)r->n);
    t->ranks = r->n;
    t->server_of = NEW_ARRAY(r->mem, int, (size_t)r->n);
    t->device_of = NEW_ARRAY(r->mem, int, (size_t)r->n);
    for (int i = 0; i < r->n; i++) {
        const Seat *s = &r->seat[i];
        if (s->rank >= r->n)
            json_fail(s->at, hint, "rank_id %d in a table of %d devices", s->rank, r->n);
        if (of[s->rank])
            json_fail(s->at, hint, "rank_id %d is there twice (servers %s and %s)",
                      s->rank, t->server[of[s->rank]->server], t->server[s->server]);
        of[s->rank] = s;
        t->server_of[s->rank] = s->server;
        t->device_of[s->rank] = s->device;
    }
}

static RankTable *table_of(Arena *mem, const Json *root) {
    json_want(root, JSON_OBJECT);
    text_is(root, "version", "1.0", NULL);
    text_is(root, "status", "completed",
            "the tool that wrote the table did not finish; run it again");
    const Json *list = json_need(root, "server_list");
    json_want(list, JSON_ARRAY);
    const Json *count = json_need(root, "server_count");
    int servers = number_of(count, 1, MAX_RANKS);
    if (servers != list->n)
        json_fail(count, "set it to the number of servers in server_list",
                  "server_count is %d, but server_list has %d servers", servers, list->n);
    Reader r = {.mem = mem, .t = NEW(mem, RankTable)};
    r.t->servers = servers;
    r.t->server = NEW_ARRAY(mem, const char *, (size_t)servers);
    r.server_at = NEW_ARRAY(mem, const Json *, (size_t)servers);
    int i = 0;
    for (const Json *s = list->first; s; s = s->next) read_server(&r, i++, s);
    check_names(&r);
    seat_ranks(&r);
    check_devices(&r);
    return r.t;
}

RankTable *rank_table_parse(Arena *mem, const char *name, const char *bytes, size_t n) {
    return table_of(mem,
                    json_parse(mem, name, bytes, n, RANK_TABLE_MAX_BYTES, EXIT_CONFIG));
}

RankTable *rank_table_read(Arena *mem, const char *path) {
    return table_of(mem, json_read(mem, path, RANK_TABLE_MAX_BYTES, EXIT_CONFIG));
}
