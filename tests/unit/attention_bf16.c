/* attention_bf16.c - emitted attention of bf16, and of f16, forward and backward, against the plain
 * formulas in double, with a bound for each element: a factor that is rounded to bf16 is
 * off by at most 2^-8 of it (of f16 no factor is rounded, and results by 2^-11), so a sum by 2^-8 of the sum of its terms' sizes, and so is
 * the result that is rounded; sums in f32 add little. Guards stand round all buffers. */
#include "base/dtype.h"
#include "base/rng.h"
#include "codegen/attention.h"
#include "jitted.h"

typedef void (*Forward)(const uint16_t *q, const uint16_t *k, const uint16_t *v,
                        const int32_t *q_at, const int32_t *k_at, const int32_t *rng,
                        uint16_t *o, float *lse, void *work, const int32_t *first);
typedef void (*Backward)(const uint16_t *q, const uint16_t *k, const uint16_t *v,
                         const uint16_t *o, const float *lse, const uint16_t *d_o,
                         const int32_t *q_at, const int32_t *k_at, const int32_t *rng,
                         uint16_t *dq, uint16_t *dk, uint16_t *dv, void *work,
                         const int32_t *first);

/* The type of a case's numbers, and how far from one of them what is rounded to it may be. */
static DType type = DT_BF16;
static double half_ulp = 0x1p-8;

static void type_set(DType t) {
    type = t;
    half_ulp = t == DT_F16 ? 0x1p-11 : 0x1p-8;
}

static double of_bits(uint16_t h) {
    return (double)narrow_to_f32(type, h);
}

/* Cut off, which is as good as rounded for numbers drawn at random. */
static uint16_t to_bits(double x) {
    float f = (float)x;
    return type == DT_F16 ? f32_to_f16(f) : (uint16_t)(f32_bits(f) >> 16);
}

enum { GUARD = 64, MARK = 0x4a5b, NOT_A_NUMBER = 0x7fc0 };

/* n numbers in (-size, size), or room for results (size 0). */
static uint16_t *buffer(int64_t n, double size, uint64_t stream) {
    uint16_t *p = aligned_alloc(64, (size_t)(2 * n + 4 * GUARD + 63) / 64 * 64);
    for (int64_t i = 0; i < n + 2 * GUARD; i++) {
        bool inside = i >= GUARD && i < GUARD + n;
        double x = size * (2 * rng_uniform(stream, 3, (uint64_t)i) - 1);
        p[i] = size == 0 ? MARK : inside ? to_bits(x) : NOT_A_NUMBER;
    }
    return p + GUARD;
}

static void guards_check(const void *of, int64_t bytes, const char *what) {
    const uint16_t *p = of;
    for (int i = 1; i <= GUARD; i++) {
        if (p[-i] == MARK && p[bytes / 2 + i - 1] == MARK) continue;
        test_fail(__FILE__, __LINE__, "write outside %s", what);
    }
}

enum { BATCHES = 2 };

typedef struct Data {
    AttnShape s;
    int64_t nq, nk, nl; /* values in q, in k, in lse */
    int32_t q_at[BATCHES], k_at, rng[RNG_WORDS], *first;
    uint16_t *q, *k, *v, *d_o, *o, *dq, *dk, *dv;
    float *lse;
} Data;

/* Keys begin at position 3, queries `offset` later, of a second sequence another 21 if each has its
 * own. */
static Data data_of(const AttnShape *s, int offset) {
    Data d = {
        .s = *s, .q_at = {3 + offset, 3 + offset}, .k_at = 3, .rng = {77, -5, 3, 2}};
    check(s->batch <= BATCHES);
    if (s->each) d.q_at[1] += 21;
    d.nl = s->batch * s->tq * s->heads;
    d.nq = d.nl * s->dim;
    d.nk = s->batch * s->tk * s->kv_heads * s->dim;
    d.q = buffer(d.nq, 3, 1);
    d.k = buffer(d.nk, 1, 2);
    d.v = buffer(d.nk, 1, 4);
    d.d_o = buffer(d.nq, 1, 5);
    d.o = buffer(d.nq, 0, 0);
    d.dq = buffer(d.nq, 0, 0);
    d.dk = buffer(d.nk, 0, 0);
    d.dv = buffer(d.nk, 0, 0);
    d.lse = (float *)(void *)buffer(2 * d.nl, 0, 0);
    d.first = malloc((size_t)(s->batch * s->tq) * sizeof(int32_t));
    for (int64_t i = 0; i < s->batch * s->tq; i++) {
        double at = rng_uniform(9, 1, (uint64_t)i) * (double)(i % s->tq + 1);
        d.first[i] = d.q_at[i / s->tq] + (int32_t)(i % s->tq) - (int32_t)at;
    }
    return d;
}

static void data_free(const Data *d) {
    uint16_t *const all[] = {d->q, d->k, d->v, d->d_o, d->o, d->dq, d->dk, d->dv};
    for (int i = 0; i < ARRAY_LEN(all); i++) free(all[i] - GUARD);
    free((uint16_t *)(void *)d->lse - GUARD);
    free(d->first);
}

/* What dropout multiplies the probability by. */
static double kept(const Data *d, int64_t b, int64_t h, int64_t i, int64_t j) {
    const AttnShape *s = &d->s;
    if (s->dropout == 0) return 1;
    uint64_t x =
        (uint64_t)(((b * s->heads + h) * s->tq + d->q_at[b] + i) * s->tk + d->k_at + j);
    x += (uint64_t)(d->rng[RNG_MICRO] * s->batch * s->heads * s->tq * s->tk);
    uint32_t c[4] = {(uint32_t)x, (uint32_t)(x >> 32), s->site,
                     (uint32_t)d->rng[RNG_LAYER]};
    uint32_t key[2] = {(uint32_t)d->rng[0], (uint32_t)d->rng[1]}, out[4];
    rng_philox(c, key, out);
    return out[0] >= s->dropout * 0x1p32 ? 1 / (1 - s->dropout) : 0;
}

static double dot(const uint16_t *a, const uint16_t *b, int64_t n, double *size) {
    double sum = 0;
    *size = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += of_bits(a[i]) * of_bits(b[i]);
        *size += fabs(of_bits(a[i]) * of_bits(b[i]));
    }
    return sum;
}

/* Values and the sums of what their terms may be off. */
typedef struct Want {
    double *o, *lse, *dq, *dk, *dv, *o_off, *dq_off, *dk_off, *dv_off;
} Want;

static const double single = 8e-6;

static bool sees(const Data *d, int64_t b, int64_t i, int64_t j) {
    if (d->s.within && d->k_at + j < d->first[b * d->s.tq + i]) return false;
    if (d->s.window && d->k_at + j <= d->q_at[b] + i - d->s.window) return false;
    return !d->s.causal || d->k_at + j <= d->q_at[b] + i;
}

static int64_t key_at(const Data *d, int64_t b, int64_t h, int64_t j) {
    const AttnShape *s = &d->s;
    int64_t group = h / (s->heads / s->kv_heads);
    return ((b * s->tk + j) * s->kv_heads + group) * s->dim;
}

static void forward_row(const Data *d, Want *w, int64_t b, int64_t h, int64_t i,
                        double *p) {
    const AttnShape *s = &d->s;
    int64_t row = (b * s->tq + i) * s->heads + h;
    double top = -INFINITY, sum = 0, size;
    for (int64_t j = 0; j < s->tk; j++) {
        p[j] = -INFINITY;
        if (!sees(d, b, i, j)) continue;
        const uint16_t *k = d->k + key_at(d, b, h, j);
        p[j] = s->scale * dot(d->q + row * s->dim, k, s->dim, &size);
        top = fmax(top, p[j]);
    }
    for (int64_t j = 0; j < s->tk; j++) sum += p[j] = exp(p[j] - top);
    w->lse[row] = top == -INFINITY ? (double)NO_KEYS : top + log(sum);
    for (int64_t j = 0; j < s->tk && top > -INFINITY; j++) {
        double used = p[j] / sum * kept(d, b, h, i, j);
        const uint16_t *v = d->v + key_at(d, b, h, j);
        for (int64_t x = 0; used > 0 && x < s->dim; x++) {
            double term = used * of_bits(v[x]);
            w->o[row * s->dim + x] += term;
            w->o_off[row * s->dim + x] += (half_ulp + single) * fabs(term);
        }
    }
}

/* Of the o and lse that the emitted forward part has given. */
static void backward_row(const Data *d, Want *w, int64_t b, int64_t h, int64_t i) {
    const AttnShape *s = &d->s;
    int64_t row = (b * s->tq + i) * s->heads + h, at = row * s->dim;
    double delta_size, delta = dot(d->d_o + at, d->o + at, s->dim, &delta_size);
    for (int64_t j = 0; j < s->tk; j++) {
        if (!sees(d, b, i, j)) continue;
        int64_t to = key_at(d, b, h, j);
        double size, dp_size, score = dot(d->q + at, d->k + to, s->dim, &size);
        double p = exp(s->scale * score - (double)d->lse[row]),
               keep = kept(d, b, h, i, j);
        double dp = keep * dot(d->d_o + at, d->v + to, s->dim, &dp_size);
        double ds = s->scale * p * (dp - delta);
        double off = half_ulp * fabs(ds) +
                     single * fabs(s->scale) * p * (keep * dp_size + delta_size);
        for (int64_t x = 0; x < s->dim; x++) {
            double d_o = of_bits(d->d_o[at + x]);
            double q = of_bits(d->q[at + x]), k = of_bits(d->k[to + x]);
            w->dv[to + x] += p * keep * d_o;
            w->dv_off[to + x] += (half_ulp + single) * p * keep * fabs(d_o);
            w->dq[at + x] += ds * k;
            w->dq_off[at + x] += (off + single * fabs(ds)) * fabs(k);
            w->dk[to + x] += ds * q;
            w->dk_off[to + x] += (off + single * fabs(ds)) * fabs(q);
        }
    }
}

static void near(const Data *d, const char *what, const uint16_t *got, const double *want,
                 const double *off, int64_t n) {
    const AttnShape *s = &d->s;
    guards_check(got, 2 * n, what);
    for (int64_t i = 0; i < n; i++) {
        double x = of_bits(got[i]), bound = 1.01 * off[i] + half_ulp * fabs(want[i]);
        if (type == DT_F16) bound += 0x1p-25; /* of subnormal numbers */
        if (fabs(x - want[i]) <= bound + 1e-12) continue;
        test_fail(__FILE__, __LINE__,
                  "%s[%lld] is %g, wanted %g +- %g (tq %d tk %d heads %d/%d dim %d)",
                  what, (long long)i, x, want[i], bound, (int)s->tq, (int)s->tk,
                  (int)s->heads, (int)s->kv_heads, (int)s->dim);
    }
}

typedef struct Compiled {
    Forward f;
    Backward g;
    Jit *jit;
    int vl;
} Compiled;

/* By dots, where the CPU has instructions for them, fast or not; by f32, as on x86-64-v4; by tiles,
 * and by those of the CPU. */
typedef enum Way { DOTS, WIDENED, TILED, TILED_BY_CPU } Way;

static Compiled compiled(const AttnShape *s, int vl, Way way) {
    bool widened = vl == 16 && way == WIDENED;
    Target *t = widened ? target_widening() : target_of_lanes(vl);
    if (way == TILED_BY_CPU) t = target_tiled();
    JitSymbol parallel = {"rt_parallel_balanced", (void *)split};
    Arena *mem = arena_new();
    Emit *e = emit_for(mem, t);
    if (way == DOTS) e->cpu = "znver4";
    if (way != TILED_BY_CPU) e->tiles = way == TILED ? TILES_EMULATED : TILES_NONE;
    attention_emit(e, "forward", s);
    attention_grad_emit(e, "backward", s);
    Compiled c = {.vl = t->lanes, .jit = emit_finish(e, t, &parallel, 1)};
    c.f = (Forward)jit_lookup(c.jit, "forward");
    c.g = (Backward)jit_lookup(c.jit, "backward");
    arena_free(mem);
    return c;
}

static void run(const Data *d, const Compiled *c) {
    size_t bytes = MAX(attention_workspace_bytes(&d->s, false, split_threads, c->vl),
                       attention_workspace_bytes(&d->s, true, split_threads, c->vl));
    uint16_t *work = buffer((int64_t)bytes / 2, 0, 0);
    memset(work, 0xff, bytes); /* NaN */
    c->f(d->q, d->k, d->v, d->q_at, &d->k_at, d->rng, d->o, d->lse, work, d->first);
    c->g(d->q, d->k, d->v, d->o, d->lse, d->d_o, d->q_at, &d->k_at, d->rng, d->dq, d->dk,
         d->dv, work, d->first);
    guards_check(work, (int64_t)bytes, "the workspace");
    free(work - GUARD);
}

static void check_all(const Data *d) {
    const AttnShape *s = &d->s;
    Arena *mem = arena_new();
    size_t nq = (size_t)d->nq, nk = (size_t)d->nk;
    Want w = {.lse = NEW_ARRAY(mem, double, (size_t)d->nl)};
    double **of_q[] = {&w.o, &w.dq, &w.o_off, &w.dq_off};
    double **of_k[] = {&w.dk, &w.dv, &w.dk_off, &w.dv_off};
    for (int i = 0; i < 4; i++) *of_q[i] = NEW_ARRAY(mem, double, nq);
    for (int i = 0; i < 4; i++) *of_k[i] = NEW_ARRAY(mem, double, nk);
    double *p = NEW_ARRAY(mem, double, (size_t)s->tk);
    for (int64_t x = 0; x < s->batch * s->heads * s->tq; x++) {
        int64_t b = x / s->tq / s->heads, h = x / s->tq % s->heads, i = x % s->tq;
        forward_row(d, &w, b, h, i, p);
        backward_row(d, &w, b, h, i);
    }
    near(d, "o", d->o, w.o, w.o_off, d->nq);
    near(d, "dq", d->dq, w.dq, w.dq_off, d->nq);
    near(d, "dk", d->dk, w.dk, w.dk_off, d->nk);
    near(d, "dv", d->dv, w.dv, w.dv_off, d->nk);
    guards_check(d->lse, 4 * d->nl, "lse");
    for (int64_t i = 0; i < d->nl; i++) EXPECT_NEAR(d->lse[i], w.lse[i], 1e-5);
    arena_free(mem);
}

static AttnShape shape(int64_t tq, int64_t tk, int64_t heads, int64_t kv_heads,
                       int64_t dim) {
    return (AttnShape){.batch = 1,
                       .tq = tq,
                       .tk = tk,
                       .heads = heads,
                       .kv_heads = kv_heads,
                       .dim = dim,
                       .scale = 1 / sqrt((double)dim),
                       .causal = true,
                       .site = 9,
                       .dt = type};
}

static const int dims[] = {16, 50, 64, 80, 96, 128, 256, 33, 1};
static const int sizes[] = {1, 7, 64, 65, 200};
static const int windows[] = {1, 2, 17, 64, 100, 200};
enum { CASES = ARRAY_LEN(dims) * ARRAY_LEN(sizes) * ARRAY_LEN(sizes) };

/* Case n has the sizes of its number, and features that change from case to case. */
static void run_case(int n, int vl, Way way) {
    int dim = dims[n % ARRAY_LEN(dims)], q = n / ARRAY_LEN(dims);
    type_set(n % 10 == 2 || n % 10 == 5 ? DT_F16 : DT_BF16);
    AttnShape s = shape(sizes[q % ARRAY_LEN(sizes)], sizes[q / ARRAY_LEN(sizes)],
                        n % 3 ? 2 : 1, n % 3 == 1 ? 2 : 1, dim);
    s.batch = 1 + n % 2;
    s.causal = n % 5 != 4;
    s.within = n % 4 == 1;
    s.dropout = n % 7 == 3 ? 0.3 : 0;
    if (n % 11 == 10) s.scale *= n % 22 == 21 ? 0 : -1;
    test_at("case %d", n);
    s.threads = split_threads = 1 + n / 2 % 4;
    if (s.causal && n % 3 == 2) s.window = windows[n / 3 % ARRAY_LEN(windows)];
    Compiled c = compiled(&s, vl, way);
    static const int offsets[] = {0, 5, 70, -4};
    for (int i = 0; i < 2; i++) {
        Data d = data_of(&s, offsets[(n + i) % ARRAY_LEN(offsets)]);
        run(&d, &c);
        check_all(&d);
        data_free(&d);
    }
    jit_free(c.jit);
}

static void every(int step, int vl, Way way) {
    for (int n = 0; n < CASES; n += step) run_case(n, vl, way);
}

TEST_LIMIT(some_16, 300) {
    every(23, 16, DOTS);
}
TEST_LABEL_OF(some_16_widened, RELEASED);
TEST_LIMIT(some_16_widened, 300) {
    every(29, 16, WIDENED);
}
TEST_LABEL_OF(some_16_tiled, QUICK);
TEST_LIMIT(some_16_tiled, 300) {
    every(31, 16, TILED);
}
TEST_LIMIT(some_16_tiled_by_cpu, 300) {
    every(31, 16, TILED_BY_CPU);
}
TEST_LABEL_OF(some_8, RELEASED);
TEST_LIMIT(some_8, 300) {
    every(19, 8, WIDENED);
}

/* In the short form a part: by steps back that share no factor with what cases vary by, so
 * that few have more kinds of masks, sizes, batches and threads together than an even step
 * from the first on has with twice as many. */
static void most(int vl, Way way) {
    int n = test_long() ? CASES : 28 / target_case_step(vl);
    for (int i = 0; i < n; i++) run_case((CASES - i * 11 % CASES) % CASES, vl, way);
}

TEST_LABEL_OF(all_16, SLOW);
TEST_LABEL_OF(all_16, RELEASED);
TEST_LIMIT(all_16, 600) {
    most(16, DOTS);
}
TEST_LABEL_OF(all_16_widened, QUICK);
TEST_LABEL_OF(all_16_widened, SLOW);
TEST_LABEL_OF(all_16_widened, RELEASED);
TEST_LIMIT(all_16_widened, 600) {
    most(16, WIDENED);
}
TEST_LABEL_OF(all_16_tiled, QUICK);
TEST_LABEL_OF(all_16_tiled, SLOW);
TEST_LABEL_OF(all_16_tiled, RELEASED);
TEST_LIMIT(all_16_tiled, 900) {
    most(16, TILED);
}
TEST_LABEL_OF(all_8, QUICK);
TEST_LABEL_OF(all_8, SLOW);
TEST_LABEL_OF(all_8, RELEASED);
TEST_LIMIT(all_8, 600) {
    most(8, WIDENED);
}

static void same_bits(const Data *a, const Data *b) {
    EXPECT(memcmp(a->o, b->o, (size_t)a->nq * 2) == 0);
    EXPECT(memcmp(a->lse, b->lse, (size_t)a->nl * 4) == 0);
    EXPECT(memcmp(a->dq, b->dq, (size_t)a->nq * 2) == 0);
    EXPECT(memcmp(a->dk, b->dk, (size_t)a->nk * 2) == 0);
    EXPECT(memcmp(a->dv, b->dv, (size_t)a->nk * 2) == 0);
}

/* Run after run, for any number of threads. */
TEST(same_bits) {
    AttnShape s = shape(150, 150, 4, 2, 50);
    s.dropout = 0.2;
    for (int way = DOTS; way <= WIDENED; way++) {
        Compiled c = compiled(&s, 16, (Way)way);
        Data once = data_of(&s, 0), more = data_of(&s, 0);
        split_threads = 2;
        run(&once, &c);
        run(&more, &c);
        same_bits(&once, &more);
        split_threads = 5;
        run(&more, &c);
        same_bits(&once, &more);
    }
}

TEST(same_bits_of_tiles) {
    AttnShape s = shape(150, 150, 4, 2, 50);
    Compiled cpu = compiled(&s, 16, TILED_BY_CPU), emulated = compiled(&s, 16, TILED);
    Data a = data_of(&s, 0), b = data_of(&s, 0);
    run(&a, &cpu);
    run(&b, &emulated);
    same_bits(&a, &b);
}

/* Keys of the future change nothing, though they be no numbers and share a pair. */
TEST(causal_to_the_bit) {
    AttnShape s = shape(40, 100, 2, 1, 16);
    Compiled c = compiled(&s, 8, WIDENED);
    for (int offset = 0; offset < 4; offset++) {
        Data a = data_of(&s, offset), b = data_of(&s, offset);
        for (int64_t x = (offset + 40) * s.dim; x < b.nk; x++)
            b.v[x] = b.k[x] = NOT_A_NUMBER;
        run(&a, &c);
        run(&b, &c);
        same_bits(&a, &b);
    }
}

/* Blocks that tile registers walk over strip by strip: heads of one step of k, of several and of no
 * whole one, whole blocks of keys and rests, queries that begin anywhere, in each sequence
 * elsewhere, documents, shared keys. */
static void strips(Way way, int step) {
    static const int heads[] = {32, 64, 128, 80, 50, 33}, queries[] = {64, 130, 200};
    static const int keys[] = {64, 192, 200}, offsets[] = {0, 64, 7, 140, -30};
    for (int n = 0; n < 3 * 3 * 3 * 5; n += step) {
        int x = n / 3;
        AttnShape s =
            shape(queries[x % 3], keys[x / 3 % 3], 4, n % 2 ? 2 : 1, heads[n % 6]);
        s.causal = n % 4 != 3;
        s.within = n % 5 == 1;
        s.batch = 1 + n / 7 % 2;
        s.each = n / 14 % 2;
        if (s.causal && n % 6 > 3) s.window = n % 6 == 4 ? 40 : 100;
        s.dropout = n % 4 == 1 ? 0.3 : 0;
        s.threads = split_threads = 1 + n % 3;
        test_at("case %d", n);
        Compiled c = compiled(&s, 16, way);
        Data d = data_of(&s, offsets[x / 9]);
        run(&d, &c);
        check_all(&d);
        data_free(&d);
        jit_free(c.jit);
    }
}

TEST_LABEL_OF(strips_tiled, QUICK);
TEST_LABEL_OF(strips_tiled, RELEASED);
TEST_LIMIT(strips_tiled, 300) {
    strips(TILED, 7);
}
TEST_LABEL_OF(strips_tiled_by_cpu, RELEASED);
TEST_LIMIT(strips_tiled_by_cpu, 300) {
    if (target_tiled()) strips(TILED_BY_CPU, test_long() ? 7 : 17);
}

/* What lies behind the keys that queries see is not read, also in the last block. */
TEST_LABEL_OF(causal_to_the_bit_tiled, QUICK);
TEST(causal_to_the_bit_tiled) {
    AttnShape s = shape(70, 200, 2, 1, 64);
    Compiled c = compiled(&s, 16, TILED);
    for (int offset = 0; offset < 100; offset += 33) {
        Data a = data_of(&s, offset), b = data_of(&s, offset);
        for (int64_t x = (offset + 70) * s.dim; x < b.nk; x++)
            b.v[x] = b.k[x] = NOT_A_NUMBER;
        run(&a, &c);
        run(&b, &c);
        same_bits(&a, &b);
    }
    jit_free(c.jit);
}

/* Keys whose scores grow from block to block, by little and by much, so that what was summed before
 * is scaled now and then. */
static void maxima_that_grow(int vl, Way way) {
    for (int n = 0; n < 8; n++) {
        AttnShape s = shape(70, 400, 2, 1, n & 2 ? 50 : 64);
        s.causal = n % 2;
        s.threads = split_threads = 1 + n % 2;
        s.scale *= n < 4 ? 2 : 8;
        s.dropout = n % 4 == 3 ? 0.3 : 0;
        Compiled c = compiled(&s, vl, way);
        Data d = data_of(
            &s, 330); /* queries among the last keys; some alone see the last block */
        for (int64_t i = 0; i < d.nk; i++) {
            int64_t block = i / s.dim / 64;
            d.k[i] = to_bits(of_bits(d.k[i]) * (double)(1 + block * block) / 4);
        }
        run(&d, &c);
        check_all(&d);
        data_free(&d);
        jit_free(c.jit);
    }
}

TEST_LABEL_OF(maxima_that_grow_16, RELEASED);
TEST(maxima_that_grow_16) {
    maxima_that_grow(16, DOTS);
}
TEST_LABEL_OF(maxima_that_grow_tiled, QUICK);
TEST_LABEL_OF(maxima_that_grow_tiled, RELEASED);
TEST(maxima_that_grow_tiled) {
    maxima_that_grow(16, TILED);
}

/* The partner that an odd last query or key gets takes no part: not where its scores would
 * overflow, as those of a key before the first one seen, nor where the last one is not
 * finite. */
static void partners(int vl, Way way) {
    AttnShape s = shape(65, 65, 1, 1, 16);
    s.within = true;
    s.scale = 60;
    Compiled c = compiled(&s, vl, way);
    Data d = data_of(&s, 0);
    for (int64_t i = 0; i < s.tq; i++) d.first[i] = d.k_at + (int32_t)i;
    run(&d, &c);
    for (int64_t i = 0; i < d.nk; i++) EXPECT(isfinite(of_bits(d.dv[i])));
    for (int64_t i = 0; i < d.nk; i++) EXPECT(isfinite(of_bits(d.dk[i])));
    d.v[d.nk - 1] = 0x7f80; /* infinity */
    run(&d, &c);
    EXPECT(isinf(of_bits(d.o[d.nq - 1])));
    EXPECT(isfinite(of_bits(d.o[d.nq - 2])));
}

TEST(partners_16) {
    partners(16, DOTS);
}
TEST_LABEL_OF(partners_tiled, QUICK);
TEST(partners_tiled) {
    partners(16, TILED);
}
TEST_LABEL_OF(partners_8, QUICK);
TEST(partners_8) {
    partners(8, WIDENED);
}
