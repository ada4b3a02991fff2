/* rows.c - see rows.h. */
#include "bench/fit/rows.h"
#include <ctype.h>
#include <stddef.h>
#include <stdlib.h>

enum { MAX_COLUMNS = 64, MAX_ROWS = 100000, MAX_FILE_BYTES = 64 << 20 };

/* ---- columns ---- */

typedef enum ColumnKind {
    COLUMN_TEXT,
    COLUMN_WHOLE,
    COLUMN_SECONDS,
    COLUMN_RECOMPUTE
} ColumnKind;

typedef struct Column {
    const char *name;
    ColumnKind kind;
    size_t at;
    bool needed;
    int64_t otherwise; /* where the file does not have it; 0: follows from others */
} Column;

#define TEXT(name, field)                                                                \
    { name, COLUMN_TEXT, offsetof(Row, field), false, 0 }
#define SIZE(name, field)                                                                \
    { name, COLUMN_WHOLE, offsetof(Row, field), true, 0 }
#define OPTION(name, field, or)                                                          \
    { name, COLUMN_WHOLE, offsetof(Row, field), false, or }

static const Column columns[] = {
    TEXT("source", source),
    TEXT("machine", machine),
    SIZE("layers", layers),
    SIZE("hidden", hidden),
    SIZE("heads", heads),
    SIZE("seq", seq),
    SIZE("global_batch", global_batch),
    SIZE("micro_batch", micro_batch),
    OPTION("ffn", ffn, 0),
    OPTION("vocab", vocab, 0),
    OPTION("tp", tensor, 1),
    OPTION("pp", stages, 1),
    OPTION("dp", replicas, 0),
    OPTION("cp", context, 1),
    OPTION("vpp", chunks, 1),
    OPTION("gpus", ranks, 0),
    OPTION("sequence_parallel", sequence_parallel, 0),
    OPTION("optimizer_shard", optimizer_shard, 0),
    OPTION("overlap", overlap, 0),
    {"recompute", COLUMN_RECOMPUTE, offsetof(Row, recompute), false, ROW_NOT_SAID},
    {"seconds", COLUMN_SECONDS, offsetof(Row, seconds), false, 0},
};

/* ---- lines ---- */

/* Cuts the line at its commas; cells lose blanks and quotes around them. */
static int cut_line(char *line, char *cell[MAX_COLUMNS]) {
    int n = 0;
    for (char *next = line; next && n < MAX_COLUMNS;) {
        char *at = next;
        next = strchr(at, ',');
        if (next) *next++ = 0;
        while (*at && (isspace((unsigned char)*at) || *at == '"')) at++;
        char *end = at + strlen(at);
        while (end > at && (isspace((unsigned char)end[-1]) || end[-1] == '"'))
            *--end = 0;
        cell[n++] = at;
    }
    return n;
}

static const char *read_recompute(Arena *mem, const char *text, int64_t *to) {
    static const char *const name[] = {"none", "selective", "full"};
    for (int i = 0; i < ARRAY_LEN(name); i++) {
        *to = i;
        if (!strcmp(text, name[i])) return NULL;
    }
    return arena_printf(mem, "recompute is none, selective or full, not '%.40s'", text);
}

static const char *read_cell(Arena *mem, const Column *c, const char *text, Row *row) {
    enum { MOST = 1 << 30 };
    char *to = (char *)row + c->at, *end = NULL;
    if (c->kind == COLUMN_TEXT) {
        *(const char **)(void *)to = make_printable(arena_strdup(mem, text), LINES_NONE);
        return NULL;
    }
    if (!*text && !c->needed) return NULL;
    if (c->kind == COLUMN_RECOMPUTE)
        return read_recompute(mem, text, (int64_t *)(void *)to);
    double x = strtod(text, &end);
    bool number = *text && !*end && x >= 0 && x <= MOST;
    if (c->kind == COLUMN_SECONDS) {
        *(double *)(void *)to = number ? x : 0;
    } else {
        *(int64_t *)(void *)to = number ? (int64_t)x : 0;
        number = number && x == (double)(int64_t)x;
    }
    if (number && (x > 0 || !c->needed)) return NULL;
    return arena_printf(mem, "%s is a number above 0, not '%.40s'", c->name, text);
}

/* What follows from the other columns. */
static const char *complete(Arena *mem, Row *r) {
    int64_t each = r->tensor * r->stages * r->context;
    if (each < 1 || r->chunks < 1 || each > 1 << 30)
        return "tp, pp, cp and vpp are at least 1";
    if (!r->ranks) r->ranks = each * MAX(r->replicas, 1);
    if (!r->replicas) r->replicas = r->ranks / each;
    if (r->replicas * each != r->ranks)
        return arena_printf(mem, "tp x pp x cp x dp is %lld, and there are %lld ranks",
                            (long long)(r->replicas * each), (long long)r->ranks);
    if (r->global_batch % (r->replicas * r->micro_batch))
        return arena_printf(mem,
                            "a global batch of %lld is no multiple of dp %lld x %lld",
                            (long long)r->global_batch, (long long)r->replicas,
                            (long long)r->micro_batch);
    if (!r->ffn) r->ffn = 4 * r->hidden;
    return NULL;
}

/* vTrain's rows: those of one host are made of a model with GPT-2's vocabulary, a tp-th of
 * which, rounded down, each rank has; those of several hosts are runs of Megatron-LM, which
 * pads it. */
void row_complete(Row *r, int host_ranks) {
    enum { GPT2_VOCAB = 50257, PADDED_VOCAB = 51200 };
    bool one_host = !host_ranks || r->ranks <= host_ranks;
    bool modelled = !*r->source && one_host;
    if (!r->vocab)
        r->vocab = modelled ? GPT2_VOCAB / r->tensor * r->tensor : PADDED_VOCAB;
    if (r->recompute == ROW_NOT_SAID) r->recompute = modelled ? ROW_NONE : ROW_FULL;
}

static Row row_default(int line) {
    Row r = {.line = line, .source = "", .machine = ""};
    for (int i = 0; i < ARRAY_LEN(columns); i++)
        if (columns[i].otherwise)
            *(int64_t *)(void *)((char *)&r + columns[i].at) = columns[i].otherwise;
    return r;
}

/* place[i]: which column cell i is, -1: one that is not known. */
static Row read_row(Arena *mem, char *line, int number, const int *place, int n) {
    char *cell[MAX_COLUMNS];
    Row r = row_default(number);
    int have = cut_line(line, cell);
    if (have != n)
        r.problem = arena_printf(mem, "%d cells, the first line has %d", have, n);
    for (int i = 0; i < n && !r.problem; i++)
        if (place[i] >= 0) r.problem = read_cell(mem, &columns[place[i]], cell[i], &r);
    if (!r.problem) r.problem = complete(mem, &r);
    return r;
}

static int find_column(const char *name) {
    for (int i = 0; i < ARRAY_LEN(columns); i++)
        if (!strcmp(columns[i].name, name)) return i;
    return -1;
}

static int read_header(char *line, const char *path, int place[MAX_COLUMNS]) {
    char *cell[MAX_COLUMNS];
    bool have[ARRAY_LEN(columns)] = {false};
    int n = cut_line(line, cell);
    for (int i = 0; i < n; i++) {
        place[i] = find_column(cell[i]);
        if (place[i] >= 0) have[place[i]] = true;
    }
    for (int i = 0; i < ARRAY_LEN(columns); i++)
        if (columns[i].needed && !have[i])
            fail(EXIT_DATA,
                 "%s: the first line has no column %s; docs/published.md lists "
                 "columns",
                 path, columns[i].name);
    return n;
}

Rows rows_read(Arena *mem, const char *path) {
    size_t bytes;
    int place[MAX_COLUMNS], n = 0;
    Rows rows = {.path = path};
    char *next = file_read(mem, path, MAX_FILE_BYTES, &bytes, EXIT_DATA);
    for (int number = 1; next; number++) {
        char *line = next;
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        bool empty = !line[strspn(line, " \t\r")] || *line == '#';
        if (empty) continue;
        if (!n)
            n = read_header(line, path, place);
        else if (rows.n < MAX_ROWS)
            PUSH(mem, rows.row, rows.n, rows.cap, read_row(mem, line, number, place, n));
    }
    if (!n) fail(EXIT_DATA, "%s: is empty", path);
    return rows;
}

/* ---- plans ---- */

typedef struct Flags {
    Arena *mem;
    char *flag[96];
    int n;
} Flags;

static void add_flag(Flags *f, const char *key, const char *value) {
    check(f->n + 2 <= ARRAY_LEN(f->flag));
    f->flag[f->n++] = arena_printf(f->mem, "--%s", key);
    f->flag[f->n++] = arena_strdup(f->mem, value);
}

static void add_number(Flags *f, const char *key, int64_t n) {
    add_flag(f, key, arena_printf(f->mem, "%lld", (long long)n));
}

static void add_switch(Flags *f, const char *key, bool on) {
    add_flag(f, key, on ? "True" : "False");
}

static void add_model(Flags *f, const Row *r) {
    static const char *const none[] = {"eos_token", "bos_token", "pad_token"};
#define MODEL "model.model_config."
    add_flag(f, MODEL "type", "GPT2Config");
    add_number(f, MODEL "num_layers", r->layers);
    add_number(f, MODEL "hidden_size", r->hidden);
    add_number(f, MODEL "ffn_hidden_size", r->ffn);
    add_number(f, MODEL "num_heads", r->heads);
    add_number(f, MODEL "seq_length", r->seq);
    add_number(f, MODEL "vocab_size", r->vocab);
    add_flag(f, MODEL "compute_dtype", "bfloat16");
    for (int i = 0; i < ARRAY_LEN(none); i++)
        add_number(f, arena_printf(f->mem, MODEL "%s", none[i]), -1);
}

/* Full recomputation runs all of a layer's forward again, as Megatron-LM does. */
static void add_recompute(Flags *f, const Row *r) {
#define RECOMPUTE "recompute_config."
    add_switch(f, RECOMPUTE "recompute_elementwise", false);
    if (r->recompute == ROW_FULL) {
        add_number(f, RECOMPUTE "recompute", MAX(1, r->layers / (r->stages * r->chunks)));
        add_flag(f, RECOMPUTE "recompute_method", "uniform");
    }
    if (r->recompute == ROW_SELECTIVE) add_switch(f, RECOMPUTE "select_recompute", true);
}

static Flags flags_of(Arena *mem, const Row *r) {
    Flags f = {.mem = mem};
#define PARALLEL "parallel_config."
    add_model(&f, r);
    add_recompute(&f, r);
    add_number(&f, PARALLEL "model_parallel", r->tensor);
    add_number(&f, PARALLEL "pipeline_stage", r->stages);
    add_number(&f, PARALLEL "data_parallel", r->replicas);
    add_number(&f, PARALLEL "context_parallel", r->context);
    add_number(&f, PARALLEL "pp_interleave_num", r->chunks);
    add_number(&f, PARALLEL "micro_batch_num",
               r->global_batch / (r->replicas * r->micro_batch));
    add_number(&f, "runner_config.batch_size", r->micro_batch);
    add_switch(&f, PARALLEL "sequence_parallel", r->sequence_parallel && r->tensor > 1);
    add_switch(&f, PARALLEL "vocab_emb_dp", r->tensor == 1);
    add_switch(&f, PARALLEL "optimizer_shard", r->optimizer_shard && r->replicas > 1);
    if (r->optimizer_shard)
        add_flag(&f, "parallel.parallel_optimizer_config.optimizer_level", "level1");
    add_flag(&f, "parallel.overlap", r->overlap ? "auto" : "off");
    add_flag(&f, "context.tile_size", "0B"); /* all logits at once */
    add_number(&f, "context.threads", 1);
    return f;
}

static void plan_row(Arena *mem, const Row *row, PlannedRow *to) {
    Flags f = flags_of(mem, row);
    Config *cfg = config_load(mem, NULL, f.n, f.flag);
    Plan *p = NEW(mem, Plan);
    *p = plan_of_config(mem, cfg, 0);
    to->stages = p->pipe ? p->pipe->schedule->stages : 1;
    to->entry = NEW_ARRAY(mem, const Func *, (size_t)to->stages);
    to->entry[0] = p->entry;
    for (int k = 0; p->pipe && k < to->stages; k++)
        to->entry[k] = p->pipe->stage[k].entry;
}

PlannedRow row_plan(Arena *mem, const Row *row) {
    PlannedRow *to = NEW(mem, PlannedRow);
    Catch c;
    double begin = clock_seconds();
    to->problem = row->problem;
    if (to->problem) return *to;
    if (CATCH(c)) {
        plan_row(mem, row, to);
        catch_end(&c);
    } else {
        char *first_line = arena_strndup(mem, c.message, strcspn(c.message, "\n"));
        to->problem = make_printable(first_line, LINES_NONE);
    }
    to->plan_seconds = clock_seconds() - begin;
    return *to;
}
