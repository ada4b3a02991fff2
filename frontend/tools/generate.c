/* generate.c - see generate.h. */
#include "frontend/tools/generate.h"
#include "base/dtype.h"
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

Module *generator_module(Arena *mem, const ModelSpec *s, const Strategy *strategy,
                         int64_t batch, int64_t rows, int64_t tokens, PassOptions *o) {
    int64_t kept = model_cache_rows(s, tokens);
    ModelShape shape = {.batch = batch,
                        .seq = rows,
                        .cache_len = kept,
                        .ring = kept < tokens,
                        .caches = o->narrow,
                        .vocab_rows = strategy_vocab(strategy, s)};
    Module *m = model_build(mem, s, shape, MODEL_PREDICT);
    strategy_apply(strategy, s, m, o);
    model_logits_whole(m);
    if (o->schedule) o->schedule = schedule_forward(mem, o->schedule);
    return m;
}

static Program *make(Arena *mem, const Generator *g, int64_t rows, const Config *cfg,
                     const char *dump_name) {
    CompileOptions co = strategy_compile_options(cfg);
    co.memory_limit = config_memory_limit(cfg);
    co.memory_hint = "fewer new tokens (--max_new_tokens) or shorter prompts, weights of "
                     "16 bits (--model.model_config.compute_dtype bfloat16), more ranks "
                     "that share it (stator launch -n N predict, --tp N or --pp N)";
    PassOptions po = pass_options_default();
    po.narrow = strategy_pass_options(cfg).narrow;
    po.residual_exact = cfg->model_fp32_residual_connection;
    po.hold = po.narrow != DT_F32;
    po.turn = g->batch <= ROWS_MATMUL_MOST;
    if (cfg->dump_ir[0] && comm_rank() == 0)
        po.dump_dir = path_join(mem, cfg->dump_ir, dump_name);
    Module *m = generator_module(mem, &g->source->spec, g->strategy, g->batch, rows,
                                 g->most, &po);
    if (po.hold) source_mark_exact(g->source, model_entry(m), po.narrow);
    strategy_lay_mesh(&m->mesh, g->strategy->stages);
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
    program_fit(p, beside_bytes, left.bytes, left.of, NULL);
    comm_barrier();
}

/* Weights that two programs share lie in one order. */
static void check_orders(const Program *a, const Program *b) {
    for (int i = 0; i < a->entry->narg; i++) {
        int k = program_arg_named(b, a->entry->arg[i]->name);
        const char *order = arg_str(a->entry, i, "turned", "");
        if (k >= 0) check(!strcmp(order, arg_str(b->entry, k, "turned", "")));
    }
}

/* Both programs together must fit, before either has memory. */
static void allocate(Generator *g, uint64_t limit) {
    if (!g->prompt) {
        fit_host(g->token, 0);
        program_allocate(g->token, NULL, limit);
        return;
    }
    check_orders(g->prompt, g->token);
    uint64_t more = (uint64_t)(g->token->plan.total_bytes - shared_bytes(g->token));
    fit_host(g->prompt, more);
    if (limit)
        program_fit(g->prompt, more + memory_resident_bytes(), limit, NULL,
                    g->prompt->memory_limit);
    program_allocate(g->prompt, NULL, 0);
    program_allocate(g->token, g->prompt, 0);
}

int64_t generator_cache_bytes(const ModelSpec *s, int64_t total) {
    return 2 * (int64_t)sizeof(float) * s->layers * s->kv_heads * s->head_dim *
           model_cache_rows(s, cache_rows(total, s->max_positions));
}

static void make_inputs(Arena *mem, Generator *g) {
    size_t n = (size_t)(g->batch * g->prompt_len), batch = (size_t)g->batch;
    g->tokens = NEW_ARRAY(mem, int32_t, n);
    g->positions = NEW_ARRAY(mem, int32_t, n);
    g->offset = NEW_ARRAY(mem, int32_t, batch);
    g->last = NEW_ARRAY(mem, int32_t, batch);
    g->taken = NEW_ARRAY(mem, int32_t, batch);
    g->n = NEW_ARRAY(mem, int64_t, batch);
}

Generator *generator_new(Arena *mem, const Source *source, const Strategy *strategy,
                         GeneratorSize n, const Config *cfg) {
    const ModelSpec *s = &source->spec;
    check(n.prompt > 0 && n.prompt <= n.total && n.total <= s->max_positions);
    check(n.batch > 0);
    Generator *g = NEW(mem, Generator);
    g->source = source;
    g->strategy = strategy;
    g->batch = n.batch;
    g->vocab = s->vocab;
    g->scores_row = strategy_vocab(strategy, s);
    g->most = cache_rows(n.total, s->max_positions);
    g->prompt_len = generator_rows(n.prompt, g->most);
    if (n.prompt > 1) g->prompt = make(mem, g, g->prompt_len, cfg, "prompt");
    g->token = make(mem, g, 1, cfg, "token");
    g->owner = g->prompt ? g->prompt : g->token;
    make_inputs(mem, g);
    allocate(g, (uint64_t)cfg->context_max_device_memory);
    return g;
}

void generator_free(Generator *g) {
    program_free(g->token);
    if (g->prompt) program_free(g->prompt);
}

/* A program, and its model as files have it. */
typedef struct Loaded {
    const Program *p;
    const Func *whole;
} Loaded;

static float *weight(void *context, int arg) {
    const Loaded *to = context;
    int i = program_arg_named(to->p, to->whole->arg[arg]->name);
    check(i >= 0);
    return to->p->arg[i];
}

static bool holds_narrow(const Program *p) {
    for (int i = 0; i < p->entry->narg; i++)
        if (arg_role(p->entry, i) == ARG_param && p->entry->arg[i]->ty.dt != DT_F32)
            return true;
    return false;
}

/* rows x columns words become columns x rows. */
static void turn_matrix(uint32_t *x, int64_t rows, int64_t columns, uint32_t *room) {
    enum { TILE = 16 };
    memcpy(room, x, (size_t)(rows * columns) * sizeof *x);
    for (int64_t i0 = 0; i0 < rows; i0 += TILE)
        for (int64_t j = 0; j < columns; j++)
            for (int64_t i = i0; i < MIN(i0 + TILE, rows); i++)
                x[j * rows + i] = room[i * columns + j];
}

/* Parameters as pass turn wants them, once they are there as files have them. */
static void turn_weights(const Program *p) {
    for (int i = 0; i < p->entry->narg; i++) {
        Type ty;
        int lead, group;
        if (!layout_turned(p->entry, i, &ty, &lead, &group)) continue;
        check(ty.dt == DT_F32);
        Arena *own = arena_new();
        int64_t rows = sizes_product(ty.dim + lead, group);
        int64_t columns = sizes_product(ty.dim + lead + group, ty.rank - lead - group);
        uint32_t *room = arena_alloc(own, (size_t)(rows * columns) * sizeof *room);
        for (int64_t k = 0; k < sizes_product(ty.dim, lead); k++)
            turn_matrix((uint32_t *)p->arg[i] + k * rows * columns, rows, columns, room);
        arena_free(own);
    }
}

/* Parameters that pass hold has a second time, rounded. */
static void round_weights(const Program *p) {
    for (int i = 0; i < p->entry->narg; i++) {
        const char *of = arg_str(p->entry, i, "rounds", NULL);
        if (!of) continue;
        int k = program_arg_named(p, of);
        const Type *ty = &p->entry->arg[i]->ty;
        check(k >= 0 && type_count(ty) == type_count(&p->entry->arg[k]->ty));
        const float *wide = p->arg[k];
        uint16_t *to = p->arg[i];
        for (int64_t n = 0; n < type_count(ty); n++)
            to[n] = f32_to_narrow(ty->dt, wide[n]);
    }
}

static const char *load(Arena *mem, Generator *g, const Source *s) {
    int n;
    ModelShape one = {.batch = 1, .seq = 1, .cache_len = 1};
    Func *whole = model_entry(model_build(mem, &s->spec, one, MODEL_PREDICT));
    Loaded to = {g->owner, whole};
    if (!program_in_parts(g->owner) && !holds_narrow(g->owner))
        return source_load(mem, s, whole, weight, &to);
    CkptTensor *t = program_tensors(mem, g->owner, &n);
    return source_load_parts(mem, s, whole, t, n);
}

const char *generator_load(Arena *mem, Generator *g, const Source *s) {
    const char *from = load(mem, g, s);
    round_weights(g->owner);
    turn_weights(g->owner);
    return from;
}

/* Rows behind a text's tokens are padding, with the position of the last token, which the model
 * has. They are not written into the caches. */
static const float *run(Generator *g, Program *p, const int32_t *tokens, const int32_t *n,
                        int64_t rows) {
    for (int64_t b = 0; b < g->batch; b++) {
        int32_t *row = g->tokens + b * rows, *at = g->positions + b * rows;
        g->offset[b] = n[b] ? (int32_t)g->n[b] : 0;
        g->taken[b] = n[b];
        g->last[b] = (int32_t)(b * rows) + MAX(n[b], 1) - 1;
        memset(row, 0, (size_t)rows * sizeof *row);
        if (n[b]) memcpy(row, tokens, (size_t)n[b] * sizeof *row);
        for (int64_t i = 0; i < rows; i++)
            at[i] = g->offset[b] + (int32_t)MIN(i, MAX(n[b], 1) - 1);
        tokens += n[b];
        g->n[b] += n[b];
    }
    program_set(p, ARG_tokens, g->tokens);
    program_set(p, ARG_offset, g->offset);
    program_set(p, ARG_last, g->last);
    program_set(p, ARG_taken, g->taken);
    program_set(p, ARG_positions, g->positions);
    program_run(p);
    return p->ret[0];
}

const float *generator_prompts(Generator *g, const int32_t *tokens, const int32_t *n,
                               bool whole) {
    for (int64_t b = 0; b < g->batch; b++)
        if (n[b]) g->n[b] = 0;
    if (!whole) return generator_tokens(g, tokens, n);
    for (int64_t b = 0; b < g->batch; b++) check(g->prompt && n[b] <= g->prompt_len);
    return run(g, g->prompt, tokens, n, g->prompt_len);
}

const float *generator_tokens(Generator *g, const int32_t *tokens, const int32_t *n) {
    for (int64_t b = 0; b < g->batch; b++) check(n[b] <= 1 && g->n[b] + n[b] <= g->most);
    return run(g, g->token, tokens, n, 1);
}
