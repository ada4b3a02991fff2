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

static const char count_ranks[] = "count rank_id over all servers: 0, 1, 2, ...";

static void read_server(RankTable *t, const Json *v) {
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
    for (const Json *d = devices->first; d; d = d->next) {
        json_want(d, JSON_OBJECT);
        const Json *rank_id = json_need(d, "rank_id");
        int rank = number_of(rank_id, 0, MAX_RANKS - 1);
        if (t->host[rank])
            json_fail(rank_id, count_ranks,
                      "rank_id %d is there twice (servers %s and %s)", rank,
                      t->host[rank], name);
        t->host[rank] = name;
        t->ranks++;
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
    RankTable *t = NEW(mem, RankTable);
    t->host = NEW_ARRAY(mem, const char *, MAX_RANKS);
    for (const Json *s = list->first; s; s = s->next) read_server(t, s);
    for (int rank = 0; rank < t->ranks; rank++)
        if (!t->host[rank])
            json_fail(list, count_ranks, "no rank_id is %d in a table of %d devices",
                      rank, t->ranks);
    return t;
}

RankTable *rank_table_parse(Arena *mem, const char *name, const char *bytes, size_t n) {
    return table_of(mem,
                    json_parse(mem, name, bytes, n, RANK_TABLE_MAX_BYTES, EXIT_CONFIG));
}

RankTable *rank_table_read(Arena *mem, const char *path) {
    return table_of(mem, json_read(mem, path, RANK_TABLE_MAX_BYTES, EXIT_CONFIG));
}
