/* generate.c - see generate.h. */
#include "frontend/tools/generate.h"
#include "frontend/train/program_tensors.h"
#include "frontend/train/rank_memory.h"
#include "runtime/comm/comm.h"

enum { FINE_ROWS = 64 };

int64_t generator_rows(int64_t n, int64_t most) {
    check(n > 0 && n <= most);
    int64_t rows = 1;
    while (rows < n && rows < FINE_ROWS) rows *= 2;
    if (rows < n) rows = round_up(n, FINE_ROWS);
    return MIN(rows, most);
}

/* Rows of the caches: powers of two, so that texts of any length share few programs. */
static int64_t cache_rows(int64_t total, int64_t most) {
    int64_t rows = FINE_ROWS;
    while (rows < total) rows *= 2;
    return MIN(rows, most);
}

/* Ranks that have parts of the vocabulary hand them to each other. */
static void make_logits_whole(Module *m) {
    Func *f = model_entry(m);
    Value *logits = f->ret[0];
    Builder b = build_at_end(f);
    b.name = logits->name;
    f->ret[0] = build_placed(&b, OP_reshard, NULL, logits->ty, logits);
}

Module *generator_module(Arena *mem, const ModelSpec *s, const Strategy *strategy,
                         int64_t rows, int64_t cache_len, PassOptions *o) {
    ModelShape shape = {.batch = 1,
                        .seq = rows,
                        .cache_len = cache_len,
                        .vocab_rows = strategy_vocab(strategy, s)};
    Module *m = model_build(mem, s, shape, MODEL_PREDICT);
    strategy_apply(strategy, s, m, o);
    if (m->mesh.naxes) make_logits_whole(m);
    if (o->schedule) o->schedule = schedule_forward(mem, o->schedule);
    return m;
}

static Program *make(Arena *mem, const Generator *g, int64_t rows, const Config *cfg,
                     const char *dump_name) {
    CompileOptions co = {.cpu = cfg->context_cpu, .threads = (int)cfg->context_threads};
    PassOptions po = pass_options_default();
    if (cfg->dump_ir[0] && comm_rank() == 0)
        po.dump_dir = path_join(mem, cfg->dump_ir, dump_name);
    Module *m = generator_module(mem, g->spec, g->strategy, rows, g->cache_len, &po);
    int size[MAX_AXES], stages = (int)MAX(g->strategy->stages, 1);
    for (int a = 0; a < m->mesh.naxes; a++) size[a] = m->mesh.axis[a].size;
    if (comm_size() > 1) comm_mesh(stages, m->mesh.naxes, size);
    return program_make(mem, m, forward_passes, &po, &co);
}

/* Bytes of the arguments that two programs have in common. */
static int64_t shared_bytes(const Program *p) {
    int64_t bytes = 0;
    for (int i = 0; i < p->entry->narg; i++) {
        ArgRole role = arg_role(p->entry, i);
        if (role == ARG_param || role == ARG_cache)
            bytes += align_up(type_bytes(&p->entry->arg[i]->ty));
    }
    return bytes;
}

/* The ranks of a host share its memory: all are asked before any takes it. */
static void fit_host(const Program *p, uint64_t beside_bytes) {
    if (comm_size() == 1) return;
    comm_barrier();
    FreeMemory left = rank_memory_left();
    program_fit(p, beside_bytes, left.bytes, left.of);
    comm_barrier();
}

/* Both programs together must fit, before either has memory. */
static void allocate(Generator *g, uint64_t limit) {
    if (!g->prompt) {
        fit_host(g->token, 0);
        program_allocate(g->token, NULL, limit);
        return;
    }
    uint64_t more = (uint64_t)(g->token->plan.total_bytes - shared_bytes(g->token));
    fit_host(g->prompt, more);
    if (limit && more >= limit)
        fail(EXIT_MEMORY,
             "one token takes %llu bytes besides weights and caches, which is "
             "above context.max_device_memory %llu",
             (unsigned long long)more, (unsigned long long)limit);
    program_allocate(g->prompt, NULL, limit ? limit - more : 0);
    program_allocate(g->token, g->prompt, 0);
}

Generator *generator_new(Arena *mem, const ModelSpec *s, const Strategy *strategy,
                         int64_t prompt_n, int64_t total, const Config *cfg) {
    check(prompt_n > 0 && prompt_n <= total && total <= s->max_positions);
    Generator *g = NEW(mem, Generator);
    g->spec = s;
    g->strategy = strategy;
    g->vocab = s->vocab;
    g->cache_len = cache_rows(total, s->max_positions);
    g->prompt_len = generator_rows(prompt_n, g->cache_len);
    if (prompt_n > 1) g->prompt = make(mem, g, g->prompt_len, cfg, "prompt");
    g->token = make(mem, g, 1, cfg, "token");
    g->owner = g->prompt ? g->prompt : g->token;
    allocate(g, (uint64_t)cfg->context_max_device_memory);
    return g;
}

void generator_free(Generator *g) {
    program_free(g->token);
    if (g->prompt) program_free(g->prompt);
}

static float *weight(void *context, int arg) {
    return ((const Program *)context)->arg[arg];
}

const char *generator_load(Arena *mem, Generator *g, const Source *s) {
    int n;
    if (!program_in_parts(g->owner))
        return source_load(mem, s, g->owner->entry, weight, g->owner);
    ModelShape one = {.batch = 1, .seq = 1, .cache_len = 1};
    Func *whole = model_entry(model_build(mem, g->spec, one, MODEL_PREDICT));
    CkptTensor *t = program_tensors(mem, g->owner, &n);
    return source_load_parts(mem, s, whole, t, n);
}

/* A stage that does not read it has none. */
static void set(const Program *p, ArgRole role, const int32_t *value, int64_t n) {
    int i = program_arg_role(p, role);
    if (i < 0 && p->stages == 1)
        die("the program has no argument of role %s", arg_role_name[role]);
    if (i >= 0) memcpy(p->arg[i], value, (size_t)n * sizeof *value);
}

static const float *run(Generator *g, Program *p, const int32_t *tokens, int64_t n,
                        int64_t rows) {
    Arena *mem = arena_new();
    int32_t *row = NEW_ARRAY(mem, int32_t, (size_t)rows);
    int32_t offset = n ? (int32_t)g->n : 0, last = n ? (int32_t)(n - 1) : 0;
    if (n) memcpy(row, tokens, (size_t)n * sizeof *row);
    set(p, ARG_tokens, row, rows);
    set(p, ARG_offset, &offset, 1);
    set(p, ARG_last, &last, 1);
    arena_free(mem);
    program_run(p);
    g->n += n;
    return p->ret[0];
}

const float *generator_prompt(Generator *g, const int32_t *tokens, int64_t n,
                              bool whole) {
    g->n = 0;
    if (!whole) return generator_token(g, tokens, n);
    check(g->prompt && n <= g->prompt_len);
    return run(g, g->prompt, tokens, n, g->prompt_len);
}

const float *generator_token(Generator *g, const int32_t *token, int64_t n) {
    check(n <= 1 && g->n + n <= g->cache_len);
    return run(g, g->token, token, n, 1);
}
