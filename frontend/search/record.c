/* record.c - see record.h. The first line has a mark, the hash of what is searched and that of
 * the rest, which is JSON. */
#include "frontend/search/record.h"
#include "base/json.h"
#include <math.h>

#define MARK "stator search record 1"

enum {
    MOST_BYTES = 256 << 20,
    MOST_SIZE = 1 << 20, /* of a mesh, a micro-batch */
    HASH = HASH_HEX_BYTES - 1,
    HEAD = sizeof MARK + 2 * (HASH + 1),
    PIECE_NUMBERS = sizeof(ProbeSeconds) / sizeof(double),
    BYTE_NUMBERS = sizeof(ProbeBytes) / sizeof(double),
    KEY_NUMBERS = 6
};
_Static_assert(sizeof(ProbeSeconds) == PIECE_NUMBERS * sizeof(double), "only doubles");
_Static_assert(sizeof(ProbeBytes) == BYTE_NUMBERS * sizeof(double), "only doubles");

typedef struct RecordedPieces {
    int batch;
    uint64_t where;
    ProbeSeconds t;
    struct RecordedPieces *next;
} RecordedPieces;

typedef struct RecordedProbe {
    Probe p;
    RecordedPieces *pieces;
} RecordedProbe;

struct Record {
    Arena *mem;
    const char *path;
    char hash[HASH + 1];
    RecordedProbe *probe;
    int nprobes, probe_cap;
    RecordedPlan *plan;
    int nplans, plan_cap;
    double written; /* clock_seconds */
};

/* ---- reading ---- */

static double read_number(const Json *v) {
    double x = json_f64(v);
    if (!(x >= 0)) json_fail(v, NULL, "a number below 0");
    return x;
}

static void read_numbers(const Json *v, int want, double *out) {
    json_want(v, JSON_ARRAY);
    if (v->n != want) json_fail(v, NULL, "%d numbers instead of %d", v->n, want);
    for (const Json *e = v->first; e; e = e->next) *out++ = read_number(e);
}

static ProbeKey read_key(const Json *v) {
    int x[KEY_NUMBERS], n = 0;
    json_want(v, JSON_ARRAY);
    if (v->n != KEY_NUMBERS) json_fail(v, NULL, "%d numbers", v->n);
    for (const Json *e = v->first; e; e = e->next)
        x[n++] = (int)json_i64(e, 0, MOST_SIZE);
    return (ProbeKey){x[0], x[1], x[2], x[3], x[4] != 0, x[5] != 0};
}

static Mesh read_mesh(const Json *v, ProbeKey key) {
    static const char *const names[] = {"dp", "cp", "up", "tp"};
    Mesh m = {0};
    int64_t ranks = 1;
    json_want(v, JSON_OBJECT);
    for (const Json *e = v->first; e; e = e->next) {
        int k = 0;
        while (k < ARRAY_LEN(names) && strcmp(e->key, names[k]) != 0) k++;
        if (k == ARRAY_LEN(names)) json_fail(e, NULL, "an axis '%s'", e->key);
        m.axis[m.naxes].name = names[k];
        m.axis[m.naxes].size = (int)json_i64(e, 1, MOST_SIZE);
        ranks = MIN(ranks * m.axis[m.naxes].size, INT32_MAX);
        m.naxes++;
    }
    if (m.naxes && ranks != (int64_t)key.tp * key.cp)
        json_fail(v, NULL, "a mesh of other ranks than its key");
    return m;
}

static void read_probe(Record *r, const Json *v) {
    Probe p = {.key = read_key(json_need(v, "key"))};
    p.refused = json_get_string(v, "refused", NULL);
    if (!p.refused) {
        read_numbers(json_need(v, "bytes"), BYTE_NUMBERS, (double *)&p.bytes);
        p.mesh = read_mesh(json_need(v, "mesh"), p.key);
    }
    record_add_probe(r, &p);
    const Json *pieces = json_get(v, "pieces");
    for (const Json *e = pieces ? pieces->first : NULL; e; e = e->next) {
        double x[2 + PIECE_NUMBERS];
        ProbeSeconds t;
        read_numbers(e, 2 + PIECE_NUMBERS, x);
        if (!(x[0] <= MOST_SIZE)) json_fail(e, NULL, "a micro-batch of %g", x[0]);
        if (!(x[1] < 0x1p52)) json_fail(e, NULL, "groups of %g", x[1]);
        memcpy(&t, x + 2, sizeof t);
        record_add_pieces(r, p.key, (int)x[0], (uint64_t)x[1], &t);
    }
}

static void read_plan(Record *r, const Json *v) {
    RecordedPlan p = {.why = json_get_string(v, "refused", NULL)};
    const char *keys = json_string(json_need(v, "keys"));
    if (strlen(keys) != HASH) json_fail(v, NULL, "a hash of %zu letters", strlen(keys));
    memcpy(p.keys, keys, HASH);
    p.cost.seconds = read_number(json_need(v, "seconds"));
    p.cost.bytes = json_i64(json_need(v, "bytes"), 0, INT64_MAX / 2);
    p.cost.ahead_bytes = json_i64(json_need(v, "ahead_bytes"), 0, INT64_MAX / 2);
    p.cost.sent_bytes = json_i64(json_need(v, "sent_bytes"), 0, INT64_MAX);
    record_add_plan(r, &p);
}

static void read_rest(Record *r, const char *text, size_t n) {
    const Json *v = json_parse(r->mem, r->path, text, n, MOST_BYTES, EXIT_DATA);
    const Json *probes = json_need(v, "probes"), *plans = json_need(v, "plans");
    for (const Json *e = probes->first; e; e = e->next) read_probe(r, e);
    for (const Json *e = plans->first; e; e = e->next) read_plan(r, e);
}

/* False: it is damaged. */
static bool read_file(Record *r) {
    size_t n;
    Catch caught;
    char sum[HASH + 1];
    const char *text = file_read(r->mem, r->path, MOST_BYTES, &n, EXIT_CONFIG);
    if (!begins_with(text, MARK))
        fail(EXIT_CONFIG,
             "%s is no record of a search, and stays as it is\n    hint: the "
             "name of a file that does not exist yet",
             r->path);
    if (n <= HEAD || text[HEAD - 1] != '\n') return false;
    hash_hex(text + HEAD, n - HEAD, sum);
    if (memcmp(text + HEAD - 1 - HASH, sum, HASH) != 0) return false;
    if (memcmp(text + sizeof MARK, r->hash, HASH) != 0)
        fail(EXIT_CONFIG,
             "%s is of another search: the model, the machine, the ranks, a flag "
             "or stator itself differs\n    hint: another file, or remove this "
             "one",
             r->path);
    if (!CATCH(caught)) return false;
    read_rest(r, text + HEAD, n - HEAD);
    catch_end(&caught);
    return true;
}

/* ---- looking up ---- */

static RecordedProbe *find_probe(const Record *r, ProbeKey key) {
    for (int i = 0; r && i < r->nprobes; i++)
        if (probe_same_key(&r->probe[i].p.key, &key)) return &r->probe[i];
    return NULL;
}

const Probe *record_probe(const Record *r, ProbeKey key) {
    const RecordedProbe *p = find_probe(r, key);
    return p ? &p->p : NULL;
}

const ProbeSeconds *record_pieces(const Record *r, ProbeKey key, int batch,
                                  uint64_t where) {
    const RecordedProbe *p = find_probe(r, key);
    for (const RecordedPieces *x = p ? p->pieces : NULL; x; x = x->next)
        if (x->batch == batch && x->where == where) return &x->t;
    return NULL;
}

const RecordedPlan *record_plan(const Record *r, const char *keys) {
    for (int i = 0; r && i < r->nplans; i++)
        if (!strcmp(r->plan[i].keys, keys)) return &r->plan[i];
    return NULL;
}

/* ---- writing ---- */

static void add_numbers(Text *t, const void *numbers, int n) {
    const double *x = numbers;
    for (int i = 0; i < n; i++) {
        text_add(t, i ? ", " : "");
        json_write_double(t, x[i]);
    }
}

static void add_probe(Text *t, const RecordedProbe *r) {
    const Probe *p = &r->p;
    const ProbeKey *k = &p->key;
    text_add(t, "{\"key\": [%d, %d, %d, %d, %d, %d], ", k->tp, k->cp, k->ring, k->parts,
             k->sequence_parallel, k->splits_vocab);
    if (p->refused) {
        json_add_text(t, "", "refused", p->refused);
        text_add(t, "}");
        return;
    }
    text_add(t, "\"mesh\": {");
    for (int i = 0; i < p->mesh.naxes; i++)
        text_add(t, "%s\"%s\": %d", i ? ", " : "", p->mesh.axis[i].name,
                 p->mesh.axis[i].size);
    text_add(t, "}, \"bytes\": [");
    add_numbers(t, &p->bytes, BYTE_NUMBERS);
    text_add(t, "], \"pieces\": [");
    for (const RecordedPieces *x = r->pieces; x; x = x->next) {
        text_add(t, "[%d, %llu, ", x->batch, (unsigned long long)x->where);
        add_numbers(t, &x->t, PIECE_NUMBERS);
        text_add(t, x->next ? "], " : "]");
    }
    text_add(t, "]}");
}

static void add_plan(Text *t, const RecordedPlan *p) {
    text_add(t, "{\"keys\": \"%s\"", p->keys);
    json_add_double(t, ", ", "seconds", p->cost.seconds);
    text_add(t, ", \"bytes\": %lld, \"ahead_bytes\": %lld, \"sent_bytes\": %lld",
             (long long)p->cost.bytes, (long long)p->cost.ahead_bytes,
             (long long)p->cost.sent_bytes);
    if (p->why) json_add_text(t, ", ", "refused", p->why);
    text_add(t, "}");
}

static int write_file(Record *r) {
    Arena *own = arena_new();
    Text rest = text_new(own), all = text_new(own);
    char sum[HASH + 1];
    text_add(&rest, "{\"probes\": [");
    for (int i = 0; i < r->nprobes; i++) {
        text_add(&rest, i ? ",\n" : "\n");
        add_probe(&rest, &r->probe[i]);
    }
    text_add(&rest, "],\n\"plans\": [");
    for (int i = 0; i < r->nplans; i++) {
        text_add(&rest, i ? ",\n" : "\n");
        add_plan(&rest, &r->plan[i]);
    }
    text_add(&rest, "]}\n");
    hash_hex(rest.s, rest.n, sum);
    text_add(&all, MARK " %s %s\n", r->hash, sum);
    text_add_bytes(&all, rest.s, rest.n);
    int error = file_write_atomic(r->path, all.s, all.n);
    arena_free(own);
    r->written = clock_seconds();
    return error;
}

static void write_or_fail(Record *r) {
    int error = write_file(r);
    if (error)
        fail(EXIT_DATA,
             "cannot write %s: %s\n    hint: --record in a folder that is there and has "
             "room",
             r->path, strerror(error));
}

Record *record_open(Arena *mem, const char *path, const char *hash) {
    if (!path) return NULL;
    Record *r = NEW(mem, Record);
    *r = (Record){.mem = mem, .path = path, .written = INFINITY};
    memcpy(r->hash, hash, HASH);
    if (file_exists(path) && !read_file(r)) {
        say_aside("note: %s is damaged; the search begins anew", path);
        r->nprobes = r->nplans = 0;
    }
    if (!file_exists(path)) write_or_fail(r);
    r->written = clock_seconds();
    return r;
}

void record_finish(Record *r) {
    int error = r ? write_file(r) : 0;
    if (error)
        say_aside("note: cannot write %s: %s; what it has is from before", r->path,
                  strerror(error));
}

static void write_at_times(Record *r) {
    if (clock_seconds() - r->written > 1) write_or_fail(r);
}

void record_add_probe(Record *r, const Probe *p) {
    if (!r) return;
    RecordedProbe x = {
        .p = {.key = p->key, .mesh = p->mesh, .bytes = p->bytes, .refused = p->refused}};
    PUSH(r->mem, r->probe, r->nprobes, r->probe_cap, x);
    write_at_times(r);
}

void record_add_pieces(Record *r, ProbeKey key, int batch, uint64_t where,
                       const ProbeSeconds *t) {
    RecordedProbe *p = find_probe(r, key);
    if (!p) return;
    RecordedPieces *x = NEW(r->mem, RecordedPieces);
    *x = (RecordedPieces){batch, where, *t, p->pieces};
    p->pieces = x;
    write_at_times(r);
}

void record_add_plan(Record *r, const RecordedPlan *p) {
    if (!r) return;
    PUSH(r->mem, r->plan, r->nplans, r->plan_cap, *p);
    write_at_times(r);
}
