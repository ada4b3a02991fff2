/* decode.c - text out of a model, a token at a time: what `stator predict` does for each token,
 * as a share of reading the weights and the caches once at the bandwidth that memory has.
 *     bench_decode [generation] [CONFIG.yaml [--a.b.c VALUE ...]]   (configs/gpt2_124m.yaml)
 * A row for 1 and 8 texts, with caches that are full and with short ones; weights are random.
 * The bandwidth of reading, by all threads, is measured after each token, so that both see the
 * same machine, whose memory others may use; medians count. The first row is the one with a mark,
 * and 8 texts at least 5 times the tokens a second of one, as far as reading 8 caches lets them:
 * the bound says how far.
 * generation: whole texts instead, from the first token until the context is full, of 1 text and
 * of 8 at a time in turns; the mean tokens a second of each, and their ratio. */
#include "base/rng.h"
#include "frontend/model/weights.h"
#include "frontend/tools/generate.h"
#include "runtime/core/rt.h"
#include "runtime/text/sampler.h"
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { RUNS = 24, BATCH = 8, SHORT = 64, READ_BYTES = 512 << 20, DISTANCES = 3 };
static const double mark = 0.85, mark_batch = 5;

/* ---- the bandwidth of reading ---- */

typedef float Vector __attribute__((vector_size(64)));
enum { SUMS = 8, VECTORS = SUMS * 8 }; /* of a piece */

typedef struct Reading {
    const Vector *from;
    float sum[RT_THREADS_MOST];
    int ahead; /* pieces that are fetched ahead */
} Reading;

static void read_pieces(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    Reading *r = ctx;
    Vector sum[SUMS] = {0};
    for (int64_t p = begin; p < end; p++)
        for (int i = 0; i < VECTORS; i++) {
            const Vector *at = &r->from[p * VECTORS + i];
            __builtin_prefetch((const char *)at + (int64_t)r->ahead * VECTORS * 64);
            sum[i % SUMS] += *at;
        }
    for (int i = 1; i < SUMS; i++) sum[0] += sum[i];
    r->sum[thread] += sum[0][0] + sum[0][9];
}

/* Seconds of a pass over READ_BYTES, which fetches so many pieces ahead. */
static double read_seconds(int ahead) {
    static Reading r;
    if (!r.from) {
        void *p = aligned_alloc(2 << 20, READ_BYTES);
        if (!p) fail(EXIT_MEMORY, "out of memory");
        madvise(p, READ_BYTES, MADV_HUGEPAGE);
        memset(p, 1, READ_BYTES);
        r.from = p;
    }
    r.ahead = ahead;
    double start = clock_seconds();
    rt_parallel(READ_BYTES / 64 / VECTORS, read_pieces, &r);
    return clock_seconds() - start;
}

/* Bytes a second at the distance that has the least median of `n` passes each. */
static double read_rate(double (*seconds)[RUNS], int n) {
    double best = INFINITY;
    for (int i = 0; i < DISTANCES; i++) {
        sort_doubles(seconds[i], n);
        best = fmin(best, seconds[i][n / 2]);
    }
    return READ_BYTES / best;
}

static double read_bandwidth(void) {
    double seconds[DISTANCES][RUNS];
    enum { PASSES = 3 };
    for (int i = 0; i < PASSES * DISTANCES; i++)
        seconds[i % DISTANCES][i / DISTANCES] = read_seconds(i % DISTANCES);
    return read_rate(seconds, PASSES);
}

/* ---- a row ---- */

typedef struct Row {
    double seconds, bound; /* of a token of each text, and of reading all that it needs */
    double sampling;       /* of the seconds */
} Row;

/* Is the parameter there a second time, rounded, for products? */
static bool is_rounded(const Program *p, int arg) {
    for (int i = 0; i < p->entry->narg; i++)
        if (!strcmp(arg_str(p->entry, i, "rounds", ""), p->entry->arg[arg]->name))
            return true;
    return false;
}

/* Bytes of weights that a token reads: all but the rows of tables that are looked up. */
static double weight_bytes(const Program *p, const ModelSpec *s) {
    double bytes = 0;
    for (int i = 0; i < p->entry->narg; i++) {
        const Type *ty = &p->entry->arg[i]->ty;
        bool table = ty->rank == 2 && ty->dim[1] == s->hidden &&
                     (ty->dim[0] == s->max_positions ||
                      (ty->dim[0] == s->vocab && ty->dt == DT_F32 && !s->tied));
        if (arg_role(p->entry, i) == ARG_param && !table && !is_rounded(p, i))
            bytes += (double)type_bytes(ty);
    }
    return bytes;
}

static double cache_bytes(const Program *p, int64_t tokens) {
    double bytes = 0;
    for (int i = 0; i < p->entry->narg; i++) {
        const Type *ty = &p->entry->arg[i]->ty;
        if (arg_role(p->entry, i) == ARG_cache)
            bytes += (double)type_bytes(ty) * (double)tokens / (double)ty->dim[2];
    }
    return bytes;
}

static void fill(Generator *g) {
    Program *p = g->owner;
    for (int i = 0; i < p->entry->narg; i++)
        if (arg_role(p->entry, i) == ARG_param && p->entry->arg[i]->ty.dt == DT_F32)
            weights_init(p->entry, i, NULL, 0, p->arg[i], 1);
}

/* A token of each text, from `tokens` on that are there. */
static double run_token(Generator *g, Sampler **sampler, int64_t tokens,
                        double *sampling) {
    int32_t token[BATCH], n[BATCH];
    for (int64_t b = 0; b < g->batch; b++) token[b] = (int32_t)b + 1, n[b] = 1;
    double start = clock_seconds();
    for (int64_t b = 0; b < g->batch; b++) g->n[b] = tokens;
    const float *scores = generator_tokens(g, token, n);
    double between = clock_seconds();
    for (int64_t b = 0; b < g->batch; b++)
        token[b] = sampler_next(sampler[b], scores + b * g->scores_row, tokens);
    *sampling += clock_seconds() - between;
    return clock_seconds() - start;
}

static Row measure(const Source *source, const Strategy *strategy, const Config *cfg,
                   int64_t batch, int64_t context) {
    Arena *mem = arena_new();
    const ModelSpec *s = &source->spec;
    Sampling set = {
        .greedy = true, .temperature = 1, .top_p = 1, .repetition_penalty = 1};
    Generator *g =
        generator_new(mem, source, strategy, (GeneratorSize){batch, 1, context}, cfg);
    Sampler *sampler[BATCH];
    double seconds[RUNS], reading[DISTANCES][RUNS], sampling = 0;
    for (int64_t b = 0; b < batch; b++)
        sampler[b] = sampler_new(mem, &set, (int)s->vocab);
    fill(g);
    run_token(g, sampler, context - 1, &sampling);
    sampling = 0;
    for (int i = 0; i < RUNS; i++) {
        seconds[i] = run_token(g, sampler, context - RUNS + i, &sampling);
        reading[i % DISTANCES][i / DISTANCES] = read_seconds(i % DISTANCES);
    }
    double rate = read_rate(reading, RUNS / DISTANCES);
    sort_doubles(seconds, RUNS);
    double weights = weight_bytes(g->token, s);
    double caches = cache_bytes(g->token, context - RUNS / 2);
    Row r = {seconds[RUNS / 2], (weights + caches) / rate, sampling / RUNS};
    printf("  %lld text%s of %4lld tokens: %7.2f ms, %6.1f tokens/s, weights %.1f MB, "
           "caches "
           "%.1f MB, at %.1f GB/s %.2f ms: %.3f (sampling %.2f ms)\n",
           (long long)batch, batch > 1 ? "s" : " ", (long long)context, r.seconds * 1e3,
           (double)batch / r.seconds, weights / 1e6, caches / 1e6, rate / 1e9,
           r.bound * 1e3, r.bound / r.seconds, r.sampling * 1e3);
    fflush(stdout);
    generator_free(g);
    arena_free(mem);
    return r;
}

/* ---- whole texts ---- */

typedef struct Making {
    Generator *g;
    Sampler *sampler[BATCH];
} Making;

static Making making_of(Arena *mem, const Source *source, const Strategy *strategy,
                        const Config *cfg, int64_t batch) {
    static const Sampling set = {
        .greedy = true, .temperature = 1, .top_p = 1, .repetition_penalty = 1};
    const ModelSpec *s = &source->spec;
    Making m = {.g = generator_new(mem, source, strategy,
                                   (GeneratorSize){batch, 1, s->max_positions}, cfg)};
    for (int64_t b = 0; b < batch; b++)
        m.sampler[b] = sampler_new(mem, &set, (int)s->vocab);
    fill(m.g);
    return m;
}

/* Tokens a second of all texts together, until the context is full. */
static double make_texts(const Making *m, int64_t context) {
    double start = clock_seconds(), sampling = 0;
    for (int64_t n = 0; n + 1 < context; n++)
        run_token(m->g, (Sampler **)(uintptr_t)m->sampler, n, &sampling);
    return (double)(m->g->batch * (context - 1)) / (clock_seconds() - start);
}

static int bench_generation(const Source *source, const Strategy *strategy,
                            const Config *cfg) {
    enum { ROUNDS = 3 };
    Arena *mem = arena_new();
    int64_t context = source->spec.max_positions;
    Making one = making_of(mem, source, strategy, cfg, 1);
    Making many = making_of(mem, source, strategy, cfg, BATCH);
    double ratio[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        double before = read_bandwidth(), a = make_texts(&one, context);
        double between = read_bandwidth(), b = make_texts(&many, context);
        ratio[i] = b / a;
        printf("  round %d: 1 text %.1f tokens/s (reading %.1f GB/s), %d texts %.1f "
               "tokens/s "
               "(%.1f GB/s): %.2f times\n",
               i + 1, a, before / 1e9, BATCH, b, between / 1e9, ratio[i]);
        fflush(stdout);
    }
    sort_doubles(ratio, ROUNDS);
    printf("generation: %d texts of %lld tokens are %.2f times the tokens/s of one; the "
           "mark "
           "is %.0f\n",
           BATCH, (long long)context, ratio[ROUNDS / 2], mark_batch);
    generator_free(many.g);
    generator_free(one.g);
    arena_free(mem);
    return 0;
}

int main(int argc, char **argv) {
    Arena *mem = arena_new();
    bool whole = argc > 1 && !strcmp(argv[1], "generation");
    argc -= whole, argv += whole;
    bool named = argc > 1 && argv[1][0] != '-';
    Config *cfg = config_load(mem, named ? argv[1] : CONFIGS_DIR "/gpt2_124m.yaml",
                              argc - 1 - named, argv + 1 + named);
    Source source = {.spec = model_spec_of_config(cfg)};
    const ModelSpec s = source.spec;
    Strategy strategy = strategy_of_config(cfg);
    strategy.own_data = true;
    rt_set_threads((int)cfg->context_threads);
    printf("decode: %lld layers of %lld, vocabulary %lld, %d threads\n",
           (long long)s.layers, (long long)s.hidden, (long long)s.vocab, rt_threads());
    if (whole) return bench_generation(&source, &strategy, cfg);
    const int64_t context[] = {s.max_positions, MIN(SHORT, s.max_positions)};
    for (int i = 0; i < ARRAY_LEN(context); i++) {
        Row one = measure(&source, &strategy, cfg, 1, context[i]);
        Row many = measure(&source, &strategy, cfg, BATCH, context[i]);
        printf("  %d texts: %.2f times the tokens/s of one (mark %.0f); reading alone "
               "would be "
               "%.2f times\n",
               BATCH, BATCH * one.seconds / many.seconds, mark_batch,
               BATCH * one.bound / many.bound);
        if (!i)
            printf("decode: %.3f of the bandwidth of reading; the mark is %.2f\n",
                   one.bound / one.seconds, mark);
    }
    arena_free(mem);
    return 0;
}
