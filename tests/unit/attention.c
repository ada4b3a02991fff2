/* attention.c - emitted attention, forward and backward, against the plain formulas in
 * double: odd sizes, grouped heads, key caches, dropout; guard values round all buffers.
 */
#include "codegen/attention.h"
#include "base/rng.h"
#include "jitted.h"
#include <float.h>

typedef void (*Forward)(const float *q, const float *k, const float *v,
                        const int32_t *q_at, const int32_t *k_at, const int32_t *rng,
                        float *o, float *lse, void *work, const int32_t *first);
typedef void (*Backward)(const float *q, const float *k, const float *v, const float *o,
                         const float *lse, const float *d_o, const int32_t *q_at,
                         const int32_t *k_at, const int32_t *rng, float *dq, float *dk,
                         float *dv, void *work, const int32_t *first);

enum { GUARD = 40 };
static const float mark = 12345.5f;

/* n floats with guards of NaN (inputs: `salt` > 0 fills them) or of marks (outputs). */
static float *buffer(int64_t n, uint64_t salt) {
    float *p = aligned_alloc(64, (size_t)(n + 2 * GUARD + 16) / 16 * 64);
    for (int64_t i = 0; i < n + 2 * GUARD; i++) {
        bool inside = i >= GUARD && i < GUARD + n;
        float guard = salt ? NAN : mark;
        p[i] =
            inside && salt ? (float)(2 * rng_uniform(salt, 3, (uint64_t)i) - 1) : guard;
    }
    return p + GUARD;
}

static void guards_check(const float *p, int64_t n, const char *what) {
    for (int i = 1; i <= GUARD; i++) {
        if (p[-i] == mark && p[n + i - 1] == mark) continue;
        test_fail(__FILE__, __LINE__, "write outside %s", what);
    }
}

typedef struct Data {
    AttnShape s;
    int64_t nq, nk, nl; /* values in q, in k, in lse */
    int32_t q_at, k_at, rng[RNG_WORDS], *first;
    float *q, *k, *v, *d_o, *o, *lse, *dq, *dk, *dv;
} Data;

/* Keys begin at position 3, queries `offset` later; the first keys of queries at their own position or
 * up to 40 before. */
static Data data_of(const AttnShape *s, int offset) {
    Data d = {.s = *s, .q_at = 3 + offset, .k_at = 3, .rng = {77, -5, 3, 2}};
    d.nl = s->batch * s->tq * s->heads;
    d.nq = d.nl * s->dim;
    d.nk = s->batch * s->tk * s->kv_heads * s->dim;
    d.q = buffer(d.nq, 1);
    d.k = buffer(d.nk, 2);
    d.v = buffer(d.nk, 4);
    d.d_o = buffer(d.nq, 5);
    d.o = buffer(d.nq, 0);
    d.lse = buffer(d.nl, 0);
    d.dq = buffer(d.nq, 0);
    d.dk = buffer(d.nk, 0);
    d.dv = buffer(d.nk, 0);
    for (int64_t i = 0; i < d.nq; i++) d.q[i] *= 3;
    d.first = malloc((size_t)(s->batch * s->tq) * sizeof(int32_t));
    for (int64_t i = 0; i < s->batch * s->tq; i++)
        d.first[i] = d.q_at + (int32_t)(i % s->tq) - (int32_t)(i * 7 % 41);
    return d;
}

/* What dropout multiplies the probability by. */
static double kept(const Data *d, int64_t b, int64_t h, int64_t i, int64_t j) {
    const AttnShape *s = &d->s;
    if (s->dropout == 0) return 1;
    uint64_t x =
        (uint64_t)(((b * s->heads + h) * s->tq + d->q_at + i) * s->tk + d->k_at + j);
    x += (uint64_t)(d->rng[RNG_MICRO] * s->batch * s->heads * s->tq * s->tk);
    uint32_t c[4] = {(uint32_t)x, (uint32_t)(x >> 32), s->site,
                     (uint32_t)d->rng[RNG_LAYER]};
    uint32_t key[2] = {(uint32_t)d->rng[0], (uint32_t)d->rng[1]}, out[4];
    rng_philox(c, key, out);
    return out[0] >= s->dropout * 0x1p32 ? 1 / (1 - s->dropout) : 0;
}

static double dot(const float *a, const float *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

typedef struct Want {
    double *o, *lse, *dq, *dk, *dv;
} Want;

static void want_row(const Data *d, Want *w, int64_t b, int64_t h, int64_t i, double *p) {
    const AttnShape *s = &d->s;
    int64_t group = h / (s->heads / s->kv_heads), row = (b * s->tq + i) * s->heads + h;
    int64_t end = d->q_at - d->k_at + i + 1, n = s->causal ? MIN(s->tk, end) : s->tk;
    int64_t from = s->window ? MAX(0, end - s->window) : 0;
    if (s->within) from = MAX(from, d->first[b * s->tq + i] - d->k_at);
    double top = -INFINITY, sum = 0, delta = 0;
    for (int64_t j = from; j < n; j++) {
        int64_t at = ((b * s->tk + j) * s->kv_heads + group) * s->dim;
        p[j] = s->scale * dot(d->q + row * s->dim, d->k + at, s->dim);
        top = fmax(top, p[j]);
    }
    for (int64_t j = from; j < n; j++) sum += p[j] = exp(p[j] - top);
    w->lse[row] = sum > 0 ? top + log(sum) : NO_KEYS;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t j = from; j < n; j++) {
            int64_t at = ((b * s->tk + j) * s->kv_heads + group) * s->dim;
            double prob = p[j] / sum, used = prob * kept(d, b, h, i, j);
            double dp = dot(d->d_o + row * s->dim, d->v + at, s->dim);
            if (!pass) delta += used * dp;
            double ds = used * dp - prob * delta;
            for (int64_t x = 0; x < s->dim; x++) {
                int64_t y = row * s->dim + x;
                if (!pass) {
                    w->o[y] += used * d->v[at + x];
                    w->dv[at + x] += used * d->d_o[y];
                } else {
                    w->dq[y] += s->scale * ds * d->k[at + x];
                    w->dk[at + x] += s->scale * ds * d->q[y];
                }
            }
        }
    }
}

static Want want_of(Arena *mem, const Data *d) {
    const AttnShape *s = &d->s;
    Want w = {
        NEW_ARRAY(mem, double, (size_t)d->nq), NEW_ARRAY(mem, double, (size_t)d->nl),
        NEW_ARRAY(mem, double, (size_t)d->nq), NEW_ARRAY(mem, double, (size_t)d->nk),
        NEW_ARRAY(mem, double, (size_t)d->nk)};
    double *p = NEW_ARRAY(mem, double, (size_t)s->tk);
    for (int64_t b = 0; b < s->batch; b++) {
        for (int64_t h = 0; h < s->heads; h++) {
            for (int64_t i = 0; i < s->tq; i++) want_row(d, &w, b, h, i, p);
        }
    }
    return w;
}

/* Largest difference must be within 4e-6 of the largest value. With a window of one key dq
 * and dk are differences of equal numbers of about 1. */
static void near(const Data *d, const char *what, const float *got, const double *want,
                 int64_t n) {
    double most = 0, error = 0;
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs(want[i]));
        error = isnan(got[i]) ? INFINITY : fmax(error, fabs(got[i] - want[i]));
        if (error > 1e30) break;
    }
    guards_check(got, n, what);
    const AttnShape *s = &d->s;
    if (error > 4e-6 * fmax(most, s->window == 1 ? 1 : 0.1)) {
        test_fail(__FILE__, __LINE__,
                  "%s: error %g of %g (tq %d tk %d heads %d/%d dim %d window %d for %d "
                  "threads)",
                  what, error, most, (int)s->tq, (int)s->tk, (int)s->heads,
                  (int)s->kv_heads, (int)s->dim, (int)s->window, s->threads);
    }
}

static void run(const Data *d, Forward f, Backward g, int way) {
    const int vl = MIN(way, 16);
    size_t bytes = MAX(attention_workspace_bytes(&d->s, false, split_threads, vl),
                       attention_workspace_bytes(&d->s, true, split_threads, vl));
    float *work = buffer((int64_t)(bytes / sizeof(float)), 0);
    bool placed = d->s.causal || d->s.within || d->s.dropout > 0;
    const int32_t *q_at = placed ? &d->q_at : NULL, *k_at = placed ? &d->k_at : NULL;
    const int32_t *rng = d->s.dropout > 0 ? d->rng : NULL;
    f(d->q, d->k, d->v, q_at, k_at, rng, d->o, d->lse, work, d->first);
    if (g) {
        g(d->q, d->k, d->v, d->o, d->lse, d->d_o, q_at, k_at, rng, d->dq, d->dk, d->dv,
          work, d->first);
    }
    guards_check(work, (int64_t)(bytes / sizeof(float)), "the workspace");
}

typedef struct Compiled {
    Forward f;
    Backward g;
} Compiled;

/* By vectors of so many lanes; by tiles, and by those of the CPU. */
enum { TILED = 100, TILED_BY_CPU };

static Compiled compiled_parts(const AttnShape *s, int way, bool grad) {
    static const char *const names[] = {"forward", "backward"};
    JitSymbol parallel = {"rt_parallel_balanced", (void *)split};
    Target *t = way == TILED_BY_CPU ? target_tiled() : target_of_lanes(MIN(way, 16));
    Emit *e = emit_for(arena_new(), t);
    if (way != TILED_BY_CPU) e->tiles = way == TILED ? TILES_EMULATED : TILES_NONE;
    attention_emit(e, names[0], s);
    if (grad) attention_grad_emit(e, names[1], s);
    Jit *j = emit_finish(e, t, &parallel, 1);
    return (Compiled){(Forward)jit_lookup(j, names[0]),
                      grad ? (Backward)jit_lookup(j, names[1]) : NULL};
}

static Compiled compiled(const AttnShape *s, int vl) {
    return compiled_parts(s, vl, true);
}

static void check_all(const Data *d) {
    Arena *mem = arena_new();
    Want w = want_of(mem, d);
    near(d, "o", d->o, w.o, d->nq);
    near(d, "lse", d->lse, w.lse, d->nl);
    near(d, "dq", d->dq, w.dq, d->nq);
    near(d, "dk", d->dk, w.dk, d->nk);
    near(d, "dv", d->dv, w.dv, d->nk);
    arena_free(mem);
}

static void compare(const AttnShape *s, int offset, int vl) {
    Compiled c = compiled(s, vl);
    Data d = data_of(s, offset);
    run(&d, c.f, c.g, vl);
    check_all(&d);
}

static AttnShape shape(int64_t batch, int64_t tq, int64_t tk, int64_t heads,
                       int64_t kv_heads, int64_t dim) {
    return (AttnShape){.batch = batch,
                       .tq = tq,
                       .tk = tk,
                       .heads = heads,
                       .kv_heads = kv_heads,
                       .dim = dim,
                       .scale = 1 / sqrt((double)dim),
                       .causal = true,
                       .site = 9};
}

static void odd_sizes(int vl) {
    static const int sizes[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 48, 63, 64, 65, 70};
    static const int dims[] = {8, 64, 24, 80, 1, 40};
    for (int i = 0; i < ARRAY_LEN(sizes); i++) {
        AttnShape s = shape(1 + i % 2, sizes[i], sizes[i], 2, 2, dims[i % 6]);
        s.causal = i % 5 != 4;
        compare(&s, 0, vl);
    }
}

TEST_LABEL_OF(odd_sizes_16, SLOW);
TEST_LIMIT(odd_sizes_16, 300) {
    odd_sizes(16);
}

TEST_LABEL_OF(odd_sizes_8, SLOW);
TEST_LIMIT(odd_sizes_8, 300) {
    odd_sizes(8);
}

static void several_blocks(int vl) {
    AttnShape many = shape(2, 200, 200, 3, 3, 64), full = shape(1, 130, 150, 2, 1, 24);
    full.causal = false;
    split_threads = 3;
    compare(&many, 0, vl);
    compare(&full, 0, vl);
}

TEST_LIMIT(several_blocks_16, 300) {
    several_blocks(16);
}

TEST_LIMIT(several_blocks_8, 300) {
    several_blocks(8);
}

/* As many queries as make products have copies of f32: forward from 1024 on, backward from 256. */
static void copies(int vl) {
    AttnShape whole = shape(1, 1060, 1060, 2, 2, 24), some = shape(1, 300, 330, 4, 2, 20);
    split_threads = 1;
    compare(&whole, 0, vl);
    some.window = 100;
    some.dropout = 0.1;
    compare(&some, 30, vl);
    split_threads = 3; /* backward in parts of the keys */
    compare(&whole, 0, vl);
}

TEST_LABEL_OF(copies_16, RELEASED);
TEST_LIMIT(copies_16, 300) {
    copies(16);
}

TEST_LIMIT(copies_8, 300) {
    copies(8);
}

static void grouped_heads(int vl) {
    AttnShape grouped = shape(2, 70, 70, 6, 2, 24), one = shape(2, 37, 37, 4, 1, 80);
    split_threads = 2;
    compare(&grouped, 0, vl);
    compare(&one, 0, vl);
}

TEST_LIMIT(grouped_heads_16, 300) {
    grouped_heads(16);
}

TEST_LIMIT(grouped_heads_8, 300) {
    grouped_heads(8);
}

static void dropout(int vl) {
    AttnShape s = shape(2, 70, 70, 2, 2, 24), grouped = shape(1, 33, 33, 4, 2, 64);
    s.dropout = 0.1;
    grouped.dropout = 0.5;
    compare(&s, 0, vl);
    compare(&grouped, 0, vl);
}

TEST_LIMIT(dropout_16, 300) {
    dropout(16);
}

TEST_LIMIT(dropout_8, 300) {
    dropout(8);
}

/* A cache whose keys behind the offset are not written yet: NaN there must not matter. */
static void key_cache(int vl, int64_t tq, int tk) {
    AttnShape s = shape(1, tq, tk, 4, 2, 64);
    Compiled c = compiled(&s, vl);
    const int offsets[] = {0, 1, 20, 62, 63, 64, 101, 127, 140, tk - 1};
    for (int i = 0; i < ARRAY_LEN(offsets); i++) {
        Data d = data_of(&s, offsets[i]), clean = d;
        Arena *mem = arena_new();
        Want w = want_of(mem, &clean);
        int64_t known = (offsets[i] + tq) * s.kv_heads * s.dim;
        for (int64_t x = known; x < d.nk; x++) d.k[x] = d.v[x] = NAN;
        run(&d, c.f, NULL, vl);
        near(&d, "o", d.o, w.o, d.nq);
        near(&d, "lse", d.lse, w.lse, d.nl);
        arena_free(mem);
    }
    Data d = data_of(&s, 30);
    run(&d, c.f, c.g, vl);
    check_all(&d);
}

TEST_LABEL_OF(key_cache_16, SLOW);
TEST_LABEL_OF(key_cache_16, RELEASED);
TEST_LIMIT(key_cache_16, 300) {
    key_cache(16, 1, 150);
    key_cache(16, 5, 150);
    key_cache(16, 80, 150);
}

TEST_LABEL_OF(key_cache_8, RELEASED);
TEST_LIMIT(key_cache_8, 300) {
    key_cache(8, 1, 150);
    key_cache(8, 5, 150);
    key_cache(8, 80, 150);
}

TEST_LABEL_OF(key_cache_tiled, QUICK);
TEST_LABEL_OF(key_cache_tiled, RELEASED);
TEST_LIMIT(key_cache_tiled, 300) {
    key_cache(TILED, 80, 290);
}

TEST(same_bits_for_any_threads) {
    AttnShape s = shape(1, 150, 150, 4, 2, 24);
    s.dropout = 0.2;
    Compiled c = compiled(&s, 8);
    Data one = data_of(&s, 0), more = data_of(&s, 0);
    run(&one, c.f, c.g, 8);
    split_threads = 5;
    run(&more, c.f, c.g, 8);
    EXPECT(memcmp(one.o, more.o, (size_t)one.nq * sizeof(float)) == 0);
    EXPECT(memcmp(one.dq, more.dq, (size_t)one.nq * sizeof(float)) == 0);
    EXPECT(memcmp(one.dk, more.dk, (size_t)one.nk * sizeof(float)) == 0);
    EXPECT(memcmp(one.dv, more.dv, (size_t)one.nk * sizeof(float)) == 0);
}

/* By tile registers, strip by strip: heads of one step of k, of several and of no whole one, whole blocks
 * of keys and rests, queries that begin anywhere, some before all keys, documents, shared keys. */
static void strips(int way, int step) {
    static const int heads[] = {32, 64, 128, 80, 50, 33, 1}, queries[] = {64, 130, 200};
    static const int keys[] = {256, 300, 289}, offsets[] = {0, 64, 7, 140, -30};
    for (int n = 0; n < 3 * 3 * 3 * 5; n += step) {
        int x = n / 3;
        AttnShape s = shape(1 + n / 7 % 2, queries[x % 3], keys[x / 3 % 3], 4, 1 + n % 2,
                            heads[n % 7]);
        s.causal = n % 4 != 3;
        s.within = n % 5 == 1;
        if (s.causal && n % 6 > 3) s.window = n % 6 == 4 ? 40 : 100;
        s.dropout = n % 4 == 1 ? 0.3 : 0;
        s.threads = split_threads = 1 + n % 3;
        test_at("case %d", n);
        compare(&s, offsets[x / 9], way);
    }
}

TEST_LABEL_OF(strips_tiled, QUICK);
TEST_LABEL_OF(strips_tiled, RELEASED);
TEST_LIMIT(strips_tiled, 300) {
    strips(TILED, 7);
}

TEST_LABEL_OF(strips_tiled_by_cpu, RELEASED);
TEST_LIMIT(strips_tiled_by_cpu, 300) {
    strips(TILED_BY_CPU, test_long() ? 7 : 17); /* slow where it is in software */
}

/* Keys whose scores grow from block to block, so that what was summed before is scaled. */
TEST_LABEL_OF(maxima_that_grow_tiled, QUICK);
TEST(maxima_that_grow_tiled) {
    for (int n = 0; n < 4; n++) {
        AttnShape s = shape(1, 70, 400, 2, 1, n & 2 ? 50 : 64);
        s.causal = n % 2;
        Data d = data_of(&s, 330);
        for (int64_t i = 0; i < d.nk; i++) {
            int64_t block = i / s.dim / 32;
            d.k[i] *= (float)(1 + block * block) / 16;
        }
        Compiled c = compiled(&s, TILED);
        run(&d, c.f, c.g, TILED);
        check_all(&d);
    }
}

TEST(same_bits_of_tiles) {
    AttnShape s = shape(1, 150, 300, 4, 2, 50);
    Compiled cpu = compiled(&s, TILED_BY_CPU), emulated = compiled(&s, TILED);
    Data a = data_of(&s, 150), b = data_of(&s, 150);
    run(&a, cpu.f, cpu.g, TILED_BY_CPU);
    run(&b, emulated.f, emulated.g, TILED);
    EXPECT(memcmp(a.o, b.o, (size_t)a.nq * sizeof(float)) == 0);
    EXPECT(memcmp(a.dq, b.dq, (size_t)a.nq * sizeof(float)) == 0);
    EXPECT(memcmp(a.dk, b.dk, (size_t)a.nk * sizeof(float)) == 0);
    EXPECT(memcmp(a.dv, b.dv, (size_t)a.nk * sizeof(float)) == 0);
}

/* The largest number of f32, and infinities, come out as by multiply-adds. */
TEST_LABEL_OF(largest_numbers_tiled, QUICK);
TEST(largest_numbers_tiled) {
    AttnShape s = shape(1, 64, 256, 1, 1, 32);
    Compiled c = compiled(&s, TILED);
    Data d = data_of(&s, 0);
    for (int64_t i = 0; i < s.dim; i++) d.v[i] = i % 2 ? -FLT_MAX : FLT_MAX;
    d.v[3] = INFINITY;
    d.v[4] = -INFINITY;
    Arena *mem = arena_new();
    Want w = want_of(mem, &d);
    run(&d, c.f, NULL, TILED);
    for (int64_t i = 0; i < d.nq; i++) {
        if (isinf(w.o[i]))
            EXPECT(d.o[i] == w.o[i]);
        else
            EXPECT_NEAR(d.o[i] / FLT_MAX, w.o[i] / FLT_MAX, 4e-6);
    }
    arena_free(mem);
}

/* ---- windows, and keys split over the threads ---- */

static const int heads_of[][2] = {{1, 1}, {2, 1}, {4, 2}, {3, 3}};

/* Case n of a list that goes through windows, sizes of a head, groups and threads with
 * steps of their own, so that all meet in time. */
static AttnShape mixed_shape(int n, int64_t tq, int64_t tk) {
    static const int windows[] = {1, 2, 17, 64, 65, 0, 199, 200, 1000};
    static const int dims[] = {16, 50, 64, 110, 128};
    const int *heads = heads_of[n / 3 % ARRAY_LEN(heads_of)];
    AttnShape s = shape(1 + n % 7 / 6, tq, tk, heads[0], heads[1], dims[n % 5]);
    s.window = windows[n % ARRAY_LEN(windows)];
    s.dropout = n % 4 == 3 ? 0.3 : 0;
    s.threads = split_threads = 1 + n / 2 % 4;
    test_at("case %d", n);
    return s;
}

static void windows(int step, int vl) {
    static const int sizes[][2] = {{200, 200}, {130, 200}, {64, 129}, {5, 300}};
    for (int n = 0; n < 180; n += step) {
        const int *size = sizes[n / 5 % ARRAY_LEN(sizes)];
        AttnShape s = mixed_shape(n, size[0], size[1]);
        compare(&s, size[1] - size[0], vl);
        if (n % 3 == 0) compare(&s, 0, vl);
    }
}

TEST_LIMIT(windows_16, 300) {
    windows(test_long() ? 1 : 19, 16);
}

TEST_LABEL_OF(windows_8, RELEASED);
TEST_LIMIT(windows_8, 300) {
    windows(test_long() ? 1 : 23, 8);
}

/* One query against a cache that is full up to a place, NaN behind it. */
static void one_query(int step, int vl) {
    static const int known[] = {1, 2, 15, 16, 17, 63, 64, 65, 130, 777, 1021};
    for (int n = 0; n < 220; n += step) {
        AttnShape s = mixed_shape(n, 1, 1021);
        int rows = known[n % ARRAY_LEN(known)];
        s.batch = 1 + n % 2;
        s.dropout = 0;
        Compiled c = compiled_parts(&s, vl, false);
        Data d = data_of(&s, rows - 1);
        Arena *mem = arena_new();
        Want w = want_of(mem, &d);
        int64_t row = s.kv_heads * s.dim;
        for (int64_t x = 0; x < d.nk; x++) {
            int64_t j = x / row % s.tk, first = s.window ? rows - s.window : 0;
            if (j >= rows || j < first) d.k[x] = d.v[x] = NAN;
        }
        run(&d, c.f, NULL, vl);
        near(&d, "o", d.o, w.o, d.nq);
        near(&d, "lse", d.lse, w.lse, d.nl);
        arena_free(mem);
    }
}

TEST_LIMIT(one_query_16, 300) {
    one_query(test_long() ? 1 : 13, 16);
}

TEST_LIMIT(one_query_8, 300) {
    one_query(test_long() ? 1 : 17, 8);
}

/* Where keys are split the bits are those of the number of threads that it is compiled
 * for, in whatever order and by how many the parts are run. */
TEST(same_bits_of_split_keys) {
    static const int queries[] = {150, 1};
    for (int i = 0; i < 2; i++) {
        AttnShape s = shape(1, queries[i], 900, 2, 1, 64);
        s.threads = 4;
        Compiled c = compiled(&s, 8);
        Data one = data_of(&s, 700), more = data_of(&s, 700);
        split_threads = 1;
        run(&one, c.f, c.g, 8);
        split_threads = 4;
        run(&more, c.f, c.g, 8);
        EXPECT(memcmp(one.o, more.o, (size_t)one.nq * sizeof(float)) == 0);
        EXPECT(memcmp(one.dq, more.dq, (size_t)one.nq * sizeof(float)) == 0);
        EXPECT(memcmp(one.dk, more.dk, (size_t)one.nk * sizeof(float)) == 0);
        EXPECT(memcmp(one.dv, more.dv, (size_t)one.nk * sizeof(float)) == 0);
    }
}

/* A key of the future changes nothing, bit for bit; a NaN in use shows. */
TEST(causal_to_the_bit) {
    AttnShape s = shape(1, 100, 100, 1, 1, 16);
    Compiled c = compiled(&s, 8);
    Data a = data_of(&s, 0), b = data_of(&s, 0);
    for (int64_t x = 90 * s.dim; x < b.nk; x++) b.v[x] = -(b.k[x] *= 9);
    run(&a, c.f, NULL, 8);
    run(&b, c.f, NULL, 8);
    EXPECT(memcmp(a.o, b.o, (size_t)(90 * s.dim) * sizeof(float)) == 0);
    EXPECT(memcmp(a.o + 90 * s.dim, b.o + 90 * s.dim, 10 * 16 * sizeof(float)) != 0);
    b.q[50 * s.dim] = NAN;
    run(&b, c.f, NULL, 8);
    EXPECT(isnan(b.o[50 * s.dim]) && isnan(b.lse[50]) && !isnan(b.o[49 * s.dim]));
}

/* Scores of hundreds neither overflow nor lose the largest. */
TEST(large_scores) {
    AttnShape s = shape(1, 40, 40, 1, 1, 8);
    s.scale = 60;
    Compiled c = compiled(&s, 8);
    Data d = data_of(&s, 0);
    Arena *mem = arena_new();
    run(&d, c.f, NULL, 8);
    Want w = want_of(mem, &d);
    for (int64_t i = 0; i < d.nl; i++) EXPECT_NEAR(d.lse[i], w.lse[i], 1e-4);
    for (int64_t i = 0; i < d.nq; i++) EXPECT_NEAR(d.o[i], w.o[i], 1e-3);
}
