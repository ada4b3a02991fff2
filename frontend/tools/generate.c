/* generate.c - see generate.h. */
#include "frontend/tools/generate.h"

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

static Program *make(Arena *mem, const ModelSpec *s, int64_t rows, int64_t cache_len,
                     const Config *cfg, const char *dump_name) {
    CompileOptions co = {.cpu = cfg->context_cpu, .threads = (int)cfg->context_threads};
    PassOptions po = pass_options_default();
    if (cfg->dump_ir[0]) po.dump_dir = path_join(mem, cfg->dump_ir, dump_name);
    ModelShape shape = {.batch = 1, .seq = rows, .cache_len = cache_len};
    Module *m = model_build(mem, s, shape, MODEL_PREDICT);
    return program_make(mem, m, predict_passes, &po, &co);
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

/* Both programs together must fit, before either has memory. */
static void allocate(Generator *g, uint64_t limit) {
    if (!g->prompt) {
        program_allocate(g->token, NULL, limit);
        return;
    }
    uint64_t more = (uint64_t)(g->token->plan.total_bytes - shared_bytes(g->token));
    if (limit && more >= limit)
        fail(EXIT_MEMORY,
             "one token takes %llu bytes besides weights and caches, which is "
             "above context.max_device_memory %llu",
             (unsigned long long)more, (unsigned long long)limit);
    program_allocate(g->prompt, NULL, limit ? limit - more : 0);
    program_allocate(g->token, g->prompt, 0);
}

Generator *generator_new(Arena *mem, const ModelSpec *s, int64_t prompt_n, int64_t total,
                         const Config *cfg) {
    check(prompt_n > 0 && prompt_n <= total && total <= s->max_positions);
    Generator *g = NEW(mem, Generator);
    g->vocab = s->vocab;
    g->cache_len = cache_rows(total, s->max_positions);
    g->prompt_len = generator_rows(prompt_n, g->cache_len);
    if (prompt_n > 1)
        g->prompt = make(mem, s, g->prompt_len, g->cache_len, cfg, "prompt");
    g->token = make(mem, s, 1, g->cache_len, cfg, "token");
    g->owner = g->prompt ? g->prompt : g->token;
    allocate(g, (uint64_t)cfg->context_max_device_memory);
    return g;
}

void generator_free(Generator *g) {
    program_free(g->token);
    if (g->prompt) program_free(g->prompt);
}

void generator_restart(Generator *g) {
    g->n = 0;
}

float *generator_weight(void *generator, int arg) {
    const Generator *g = generator;
    return g->owner->arg[arg];
}

static int32_t *words(const Program *p, ArgRole role) {
    int i = program_arg_role(p, role);
    if (i < 0) die("the program has no argument of role %s", arg_role_name[role]);
    return p->arg[i];
}

static const float *run(Generator *g, Program *p, const int32_t *tokens, int64_t n,
                        int64_t rows) {
    int32_t *to = words(p, ARG_tokens);
    for (int64_t i = 0; i < rows; i++) to[i] = i < n ? tokens[i] : 0;
    *words(p, ARG_offset) = (int32_t)g->n;
    *words(p, ARG_last) = (int32_t)(n - 1);
    program_run(p);
    g->n += n;
    return p->ret[0];
}

const float *generator_prompt(Generator *g, const int32_t *tokens, int64_t n) {
    check(g->n == 0 && n > 0);
    if (n == 1) return generator_token(g, tokens[0]);
    check(g->prompt && n <= g->prompt_len);
    return run(g, g->prompt, tokens, n, g->prompt_len);
}

const float *generator_token(Generator *g, int32_t token) {
    check(g->n < g->cache_len);
    return run(g, g->token, &token, 1, 1);
}
