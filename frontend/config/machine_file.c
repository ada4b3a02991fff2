/* machine_file.c - see machine_file.h. Numbers are rows of tables: name, place, and what one
 * of the file's units is in ours. */
#include "frontend/config/machine_file.h"
#include "frontend/config/config_state.h"
#include "frontend/config/yaml.h"
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

enum { MAX_POINTS = 4096 };

typedef struct NumberRow {
    const char *name;
    size_t at;
    double unit, low, high;
    bool whole, needed; /* an int; it must be given */
} NumberRow;

#define NUMBER(type, name, field, unit, low, high)                                       \
    { name, offsetof(type, field), unit, low, high, false, false }
#define WHOLE(type, name, field, low, high)                                              \
    { name, offsetof(type, field), 1, low, high, true, false }
#define NEEDED(type, name, field, unit, low, high)                                       \
    { name, offsetof(type, field), unit, low, high, false, true }

static const NumberRow machine_numbers[] = {
    WHOLE(Machine, "cores", cores, 0, 1 << 20),
    WHOLE(Machine, "host_ranks", host_ranks, 0, 1 << 20),
    NUMBER(Machine, "memory_gbytes", memory_bytes, 1e9, 0, 1e9),
    NUMBER(Machine, "reached", reached, 1, 0.001, 1),
    NUMBER(Machine, "half", half, 1, 0, 1e6),
    NUMBER(Machine, "inner_reached", inner_reached, 1, 0.001, 1),
    WHOLE(Machine, "aligned", aligned, 0, 1 << 20),
    NUMBER(Machine, "unaligned", unaligned, 1, 0.001, 1),
    NUMBER(Machine, "op_start_us", op_start_seconds, 1e-6, 0, 1e6),
    NUMBER(Machine, "issue_us", issue_seconds, 1e-6, 0, 1e6),
    NUMBER(Machine, "notice_us", notice_seconds, 1e-6, 0, 1e9),
    NUMBER(Machine, "inner_bytes", inner_bytes, 1, 0, 1e6),
    NUMBER(Machine, "sum_bytes", sum_bytes, 1, 0, 8),
    NUMBER(Machine, "element_billions", element_rate, 1e9, 0, 1e9),
    NUMBER(Machine, "hidden", hidden, 1, 0, 1),
};
static const NumberRow rank_numbers[] = {
    WHOLE(MachineRank, "ranks", ranks, 1, 1 << 20),
    WHOLE(MachineRank, "threads", threads, 0, 1 << 20),
    NEEDED(MachineRank, "f32_gflops", flops[0], 1e9, 1e-3, 1e9),
    NEEDED(MachineRank, "bf16_gflops", flops[1], 1e9, 1e-3, 1e9),
    NUMBER(MachineRank, "f16_gflops", flops[2], 1e9, 0, 1e9),
    NUMBER(MachineRank, "keeps_ms", keeps_seconds, 1e-3, 0, 1e9),
    NUMBER(MachineRank, "residual_f32", residual[0], 1, -1, 1e9),
    NUMBER(MachineRank, "residual_bf16", residual[1], 1, -1, 1e9),
};
static const NumberRow link_numbers[] = {
    NEEDED(Link, "start_us", start_seconds, 1e-6, 0, 1e9),
    NEEDED(Link, "gbytes", bytes_per_second, 1e9, 1e-6, 1e9),
    NUMBER(Link, "rank_gbytes", rank_bytes_per_second, 1e9, 0, 1e9),
};
static const NumberRow collective_numbers[] = {
    WHOLE(CollectiveCurve, "group", group, 2, 1 << 20),
    WHOLE(CollectiveCurve, "ranks", ranks, 1, 1 << 20),
};

/* ---- reading ---- */

static const YamlNode *need(const YamlNode *map, const char *key) {
    const YamlNode *v = yaml_get(map, key);
    if (!v)
        fail_at(EXIT_CONFIG, map->at, "docs/machines.md lists the keys", "%s is missing",
                key);
    return v;
}

static void need_kind(const YamlNode *v, NodeKind kind, const char *what) {
    static const char *const name[] = {"a value", "a list", "a section of keys"};
    if (v->kind != kind)
        fail_at(EXIT_CONFIG, v->at, NULL, "%s is %s, not %s", what, name[kind],
                name[v->kind]);
}

static double number_of(const YamlNode *v, const char *what, double low, double high) {
    char *end = NULL;
    need_kind(v, NODE_TEXT, what);
    double x = strtod(v->text, &end);
    if (!*v->text || *end || !(x >= low && x <= high))
        fail_at(EXIT_CONFIG, v->at, NULL, "%s is a number from %g to %g", what, low,
                high);
    return x;
}

static void read_number(const YamlNode *map, const NumberRow *row, char *to) {
    const YamlNode *v = row->needed ? need(map, row->name) : yaml_get(map, row->name);
    if (!v) return;
    double x = number_of(v, row->name, row->low, row->high);
    if (row->whole && x != floor(x))
        fail_at(EXIT_CONFIG, v->at, NULL, "%s is a whole number", row->name);
    if (row->whole)
        *(int *)(void *)(to + row->at) = (int)x;
    else
        *(double *)(void *)(to + row->at) = x * row->unit;
}

static void read_numbers(const YamlNode *map, const NumberRow *row, int n, void *to) {
    for (int i = 0; i < n; i++) read_number(map, &row[i], to);
}

/* Keys of the map are those of the rows, and those of `more`, which ends with NULL. */
static void check_keys(const YamlNode *map, const NumberRow *row, int n,
                       const char *const *more) {
    for (int k = 0; k < map->n; k++) {
        const char *key = map->keys[k]->text;
        bool known = false;
        for (int i = 0; i < n; i++) known |= !strcmp(row[i].name, key);
        for (int i = 0; more[i]; i++) known |= !strcmp(more[i], key);
        if (!known)
            fail_at(EXIT_CONFIG, map->keys[k]->at, "docs/machines.md lists the keys",
                    "unknown key %.100s of a machine", key);
    }
}

static double *read_list(Arena *mem, const YamlNode *map, const char *key, double unit,
                         int *n) {
    const YamlNode *v = need(map, key);
    need_kind(v, NODE_LIST, key);
    if (*n && v->n != *n)
        fail_at(EXIT_CONFIG, v->at, NULL, "%s has %d numbers, not %d", key, v->n, *n);
    if (v->n < 1 || v->n > MAX_POINTS)
        fail_at(EXIT_CONFIG, v->at, NULL, "%s has %d numbers, not 1 to %d", key, v->n,
                MAX_POINTS);
    double *x = NEW_ARRAY(mem, double, (size_t)v->n);
    for (int i = 0; i < v->n; i++) x[i] = unit * number_of(v->items[i], key, 1e-12, 1e18);
    *n = v->n;
    return x;
}

static void check_rising(const YamlNode *map, const char *key, const double *x, int n) {
    for (int i = 1; i < n; i++)
        if (!(x[i] > x[i - 1]))
            fail_at(EXIT_CONFIG, need(map, key)->items[i]->at, NULL,
                    "numbers of %s rise from one to the next", key);
}

static Curve read_curve(Arena *mem, const YamlNode *map, const char *x, const char *y,
                        double unit) {
    Curve c = {0};
    need_kind(map, NODE_MAP, "a curve");
    c.x = read_list(mem, map, x, 1, &c.n);
    check_rising(map, x, c.x, c.n);
    c.y = read_list(mem, map, y, unit, &c.n);
    return c;
}

static const char *text_of(Arena *mem, const YamlNode *map, const char *key) {
    const YamlNode *v = need(map, key);
    need_kind(v, NODE_TEXT, key);
    return yaml_is_null(v) ? "" : arena_strdup(mem, v->text);
}

static int op_at(const YamlNode *v, const char *name) {
    int op = op_kind(name);
    if (op < 0)
        fail_at(EXIT_CONFIG, v->at, "docs/ops.md lists them", "there is no op %.60s",
                name);
    return op;
}

/* That of key `op`: a collective, or one with products inside. */
static int op_of(const YamlNode *map, bool collective) {
    const YamlNode *v = need(map, "op");
    need_kind(v, NODE_TEXT, "op");
    int op = op_at(v, v->text);
    bool inner = flag_products(optab[op].flags) && !(optab[op].flags & F_ADDENDS);
    if (collective ? !(optab[op].flags & F_COMM) : !inner)
        fail_at(EXIT_CONFIG, v->at, "docs/ops.md lists them", "%.60s is no %s", v->text,
                collective ? "collective" : "op with products inside, such as attention");
    return op;
}

static int choice_of(const YamlNode *map, const char *key, const char *const *name,
                     int n) {
    const YamlNode *v = need(map, key);
    need_kind(v, NODE_TEXT, key);
    int i = name_index(v->text, name, n);
    if (i >= 0) return i;
    fail_at(EXIT_CONFIG, v->at, NULL, "%s is one of %s to %s, not %.40s", key, name[0],
            name[n - 1], v->text);
}

static DType type_of(const YamlNode *map) {
    static const char *const name[] = {"f32", "bf16", "f16"};
    static const DType type[] = {DT_F32, DT_BF16, DT_F16};
    return type[choice_of(map, "type", name, 3)];
}

/* The items of a list of maps; 0 where the key is missing. */
static int list_of(const YamlNode *map, const char *key, YamlNode ***items) {
    const YamlNode *v = yaml_get(map, key);
    if (!v) return 0;
    need_kind(v, NODE_LIST, key);
    for (int i = 0; i < v->n; i++) need_kind(v->items[i], NODE_MAP, key);
    *items = v->items;
    return v->n;
}

static ProductTable read_product(Arena *mem, const YamlNode *map) {
    static const char *const more[] = {"type", "form", "sizes", "gflops", NULL};
    ProductTable t = {.type = type_of(map)};
    check_keys(map, NULL, 0, more);
    t.form = (ProductForm)choice_of(map, "form", product_form_name, PRODUCT_FORMS);
    t.size = read_list(mem, map, "sizes", 1, &t.n);
    check_rising(map, "sizes", t.size, t.n);
    if (t.n > 16) fail_at(EXIT_CONFIG, need(map, "sizes")->at, NULL, "at most 16 sizes");
    int all = t.n * t.n * t.n;
    t.rate = read_list(mem, map, "gflops", 1e9, &all);
    return t;
}

static InnerTable read_inner(Arena *mem, const YamlNode *map) {
    static const char *const more[] = {"op",        "type",   "width",
                                       "intensity", "gflops", NULL};
    check_keys(map, NULL, 0, more);
    InnerTable t = {.op = op_of(map, false), .type = type_of(map)};
    t.width = (int64_t)number_of(need(map, "width"), "width", 1, 1e6);
    t.rate = read_curve(mem, map, "intensity", "gflops", 1e9);
    return t;
}

static void read_elements(Arena *mem, const YamlNode *map, MachineRank *r) {
    const YamlNode *v = yaml_get(map, "element_billions");
    if (!v) return;
    need_kind(v, NODE_MAP, "element_billions");
    r->element = NEW_ARRAY(mem, ElementRate, (size_t)v->n + 1);
    for (int i = 0; i < v->n; i++) {
        const char *op = v->keys[i]->text;
        r->element[r->nelements++] = (ElementRate){
            op_at(v->keys[i], op), 1e9 * number_of(v->items[i], op, 1e-9, 1e9)};
    }
}

static void read_memory(Arena *mem, const YamlNode *map, const char *name, Curve *to) {
    const YamlNode *v = yaml_get(map, name);
    if (v) *to = read_curve(mem, v, "bytes", "gbytes", 1e9);
}

static MachineRank read_rank(Arena *mem, const YamlNode *map) {
    static const char *const more[] = {"memory", "in_place",         "reads", "products",
                                       "inner",  "element_billions", NULL};
    MachineRank r = {.ranks = 1};
    YamlNode **item;
    check_keys(map, rank_numbers, ARRAY_LEN(rank_numbers), more);
    read_numbers(map, rank_numbers, ARRAY_LEN(rank_numbers), &r);
    read_memory(mem, map, "memory", &r.memory);
    read_memory(mem, map, "in_place", &r.in_place);
    read_memory(mem, map, "reads", &r.reads);
    int n = list_of(map, "products", &item);
    r.product = NEW_ARRAY(mem, ProductTable, (size_t)n + 1);
    for (int i = 0; i < n; i++) r.product[r.nproducts++] = read_product(mem, item[i]);
    n = list_of(map, "inner", &item);
    r.inner = NEW_ARRAY(mem, InnerTable, (size_t)n + 1);
    for (int i = 0; i < n; i++) r.inner[r.ninner++] = read_inner(mem, item[i]);
    read_elements(mem, map, &r);
    return r;
}

static CollectiveCurve read_collective(Arena *mem, const YamlNode *map) {
    static const char *const more[] = {"op", "level", "bytes", "us", NULL};
    CollectiveCurve c = {.op = op_of(map, true), .group = 2, .ranks = 2};
    check_keys(map, collective_numbers, ARRAY_LEN(collective_numbers), more);
    read_numbers(map, collective_numbers, ARRAY_LEN(collective_numbers), &c);
    c.level = (LinkLevel)choice_of(map, "level", link_level_name, LINK_LEVELS);
    c.seconds = read_curve(mem, map, "bytes", "us", 1e-6);
    c.seconds.grows = true;
    return c;
}

static void read_links(const YamlNode *map, Machine *m) {
    static const char *const none[] = {NULL};
    need_kind(map, NODE_MAP, "links");
    check_keys(map, NULL, 0, (const char *const[]){"host", "network", NULL});
    if (!yaml_get(map, link_level_name[LINK_HOST]))
        fail_at(EXIT_CONFIG, map->at,
                "host: {start_us: ..., gbytes: ...}, between ranks of one host",
                "links.host is missing");
    for (int l = 0; l < LINK_LEVELS; l++) {
        const YamlNode *v = yaml_get(map, link_level_name[l]);
        m->link[l] = m->link[LINK_HOST];
        if (!v) continue;
        need_kind(v, NODE_MAP, link_level_name[l]);
        check_keys(v, link_numbers, ARRAY_LEN(link_numbers), none);
        read_numbers(v, link_numbers, ARRAY_LEN(link_numbers), &m->link[l]);
        if (l == LINK_HOST && m->link[l].rank_bytes_per_second > 0)
            fail_at(EXIT_CONFIG, yaml_get(v, "rank_gbytes")->at,
                    "what one rank gets is gbytes here; rank_gbytes is for network",
                    "links.host has no rank_gbytes");
    }
}

Machine *machine_parse(Arena *mem, const char *path, const char *text, size_t n) {
    static const char *const more[] = {"name",  "made_on",     "host", "links",
                                       "ranks", "collectives", NULL};
    const YamlNode *map = yaml_parse(mem, path, text, n);
    Machine *m = NEW(mem, Machine);
    YamlNode **item;
    *m = machine_plain;
    m->rank = NULL;
    m->nranks = m->cores = 0;
    need_kind(map, NODE_MAP, "a machine");
    check_keys(map, machine_numbers, ARRAY_LEN(machine_numbers), more);
    read_numbers(map, machine_numbers, ARRAY_LEN(machine_numbers), m);
    m->name = text_of(mem, map, "name");
    m->made_on = yaml_get(map, "made_on") ? text_of(mem, map, "made_on") : "";
    m->host = yaml_get(map, "host") ? text_of(mem, map, "host") : "";
    read_links(need(map, "links"), m);
    int ranks = list_of(map, "ranks", &item);
    if (!ranks) need(map, "ranks");
    m->rank = NEW_ARRAY(mem, MachineRank, (size_t)ranks + 1);
    for (int i = 0; i < ranks; i++) m->rank[m->nranks++] = read_rank(mem, item[i]);
    if (!m->nranks)
        fail_at(EXIT_CONFIG, need(map, "ranks")->at, NULL, "ranks has no entry");
    int collectives = list_of(map, "collectives", &item);
    m->collective = NEW_ARRAY(mem, CollectiveCurve, (size_t)collectives + 1);
    for (int i = 0; i < collectives; i++)
        m->collective[m->ncollectives++] = read_collective(mem, item[i]);
    return m;
}

Machine *machine_read(Arena *mem, const char *path) {
    size_t n;
    char *text = file_read(mem, path, YAML_MAX_BYTES, &n, EXIT_CONFIG);
    return machine_parse(mem, path, text, n);
}

/* ---- writing ---- */

static void print_numbers(Text *out, const char *indent, const NumberRow *row, int n,
                          const void *from) {
    for (int i = 0; i < n; i++) {
        const char *at = (const char *)from + row[i].at;
        double x = row[i].whole ? *(const int *)(const void *)at
                                : *(const double *)(const void *)at / row[i].unit;
        text_add(out, "%s%s: %.9g\n", indent, row[i].name, x);
    }
}

static void print_list(Text *out, const char *indent, const char *name, const double *x,
                       int n, double unit) {
    enum { PER_LINE = 10 };
    text_add(out, "%s%s: [", indent, name);
    for (int i = 0; i < n; i++)
        text_add(out, "%s%.6g",
                 !i             ? ""
                 : i % PER_LINE ? ", "
                                : ",\n        ",
                 x[i] / unit);
    text_add(out, "]\n");
}

static void print_text(Text *out, const char *name, const char *value) {
    text_add(out, "%s: ", name);
    yaml_quote(out, value);
    text_add(out, "\n");
}

static void print_memory(Text *out, const char *name, const Curve *c) {
    if (!c->n) return;
    text_add(out, "  %s:\n", name);
    print_list(out, "    ", "bytes", c->x, c->n, 1);
    print_list(out, "    ", "gbytes", c->y, c->n, 1e9);
}

static void print_rank(Text *out, const MachineRank *r) {
    text_add(out, "-\n");
    print_numbers(out, "  ", rank_numbers, ARRAY_LEN(rank_numbers), r);
    print_memory(out, "memory", &r->memory);
    print_memory(out, "in_place", &r->in_place);
    print_memory(out, "reads", &r->reads);
    if (r->nproducts) text_add(out, "  products:\n");
    for (int i = 0; i < r->nproducts; i++) {
        const ProductTable *t = &r->product[i];
        text_add(out, "  - type: %s\n    form: %s\n", dtype_name[t->type],
                 product_form_name[t->form]);
        print_list(out, "    ", "sizes", t->size, t->n, 1);
        print_list(out, "    ", "gflops", t->rate, t->n * t->n * t->n, 1e9);
    }
    if (r->ninner) text_add(out, "  inner:\n");
    for (int i = 0; i < r->ninner; i++) {
        const InnerTable *t = &r->inner[i];
        text_add(out, "  - op: %s\n    type: %s\n    width: %lld\n", optab[t->op].name,
                 dtype_name[t->type], (long long)t->width);
        print_list(out, "    ", "intensity", t->rate.x, t->rate.n, 1);
        print_list(out, "    ", "gflops", t->rate.y, t->rate.n, 1e9);
    }
    if (r->nelements) text_add(out, "  element_billions:\n");
    for (int i = 0; i < r->nelements; i++)
        text_add(out, "    %s: %.4g\n", optab[r->element[i].op].name,
                 r->element[i].rate / 1e9);
}

static void print_collective(Text *out, const CollectiveCurve *c) {
    text_add(out, "- op: %s\n", optab[c->op].name);
    print_numbers(out, "  ", collective_numbers, ARRAY_LEN(collective_numbers), c);
    text_add(out, "  level: %s\n", link_level_name[c->level]);
    print_list(out, "  ", "bytes", c->seconds.x, c->seconds.n, 1);
    print_list(out, "  ", "us", c->seconds.y, c->seconds.n, 1e-6);
}

void machine_print(const Machine *m, const char *head, Text *out) {
    for (const char *p = head; p && *p; p += *p == '\n') {
        int n = (int)strcspn(p, "\n");
        text_add(out, "# %.*s\n", n, p);
        p += n;
    }
    print_text(out, "name", m->name);
    print_text(out, "made_on", m->made_on ? m->made_on : "");
    print_text(out, "host", m->host ? m->host : "");
    print_numbers(out, "", machine_numbers, ARRAY_LEN(machine_numbers), m);
    text_add(out, "links:\n");
    for (int l = 0; l < LINK_LEVELS; l++) {
        text_add(out, "  %s:\n", link_level_name[l]);
        print_numbers(out, "    ", link_numbers, ARRAY_LEN(link_numbers), &m->link[l]);
    }
    text_add(out, "ranks:\n");
    for (int i = 0; i < m->nranks; i++) print_rank(out, &m->rank[i]);
    if (m->ncollectives) text_add(out, "collectives:\n");
    for (int i = 0; i < m->ncollectives; i++) print_collective(out, &m->collective[i]);
}

static const char *machine_path(const Config *cfg) {
    const char *key = "context.machine";
    const char *path =
        config_file_beside(cfg, cfg->state->mem, key, cfg->context_machine);
    if (!file_exists(path))
        config_refuse(cfg, key, NULL, "machines/ has some, stator calibrate makes one",
                      "%s: there is no file %s", key, path);
    return path;
}

const Machine *config_machine(const Config *cfg) {
    ConfigFiles *f = cfg->state->files;
    if (!cfg->context_machine || !cfg->context_machine[0]) return NULL;
    SourcePos at = config_where(cfg, "context.machine");
    const char *from =
        arena_printf(f->mem, "%s of %s", cfg->context_machine, at.file ? at.file : "");
    if (!f->machine || strcmp(from, f->machine_from)) {
        f->machine = machine_read(f->mem, machine_path(cfg));
        f->machine_from = from;
    }
    return f->machine;
}

const Machine *config_machine_or_plain(const Config *cfg) {
    const Machine *m = config_machine(cfg);
    if (m) return m;
    fprintf(stderr, "note: no machine is given (--machine FILE.yaml, made by stator "
                    "calibrate or of machines/): seconds are those of a plain one\n");
    return &machine_plain;
}
