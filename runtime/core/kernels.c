/* kernels.c - see rt.def. Work is split by rt_parallel, so results do not depend on
 * the number of threads. */
#include "ir/ir.h"
#include "runtime/core/f16c.h"
#include "runtime/core/fault.h"
#include "runtime/core/rt.h"
#include <math.h>

enum { COPY_DIMS = 12, COPY_CHUNK_BYTES = 1 << 16, SMALL_BYTES = 1 << 15 };

/* On the calling thread alone when starting the others costs more than they gain. */
static void run_parts(int64_t n, int64_t bytes, RtBody body, void *ctx) {
    if (bytes < SMALL_BYTES)
        body(ctx, 0, n, 0);
    else
        rt_parallel(n, body, ctx);
}

typedef struct Copy {
    char *to;
    const char *from;
    int64_t bytes;
} Copy;

static void copy_chunks(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    Copy *c = ctx;
    (void)thread;
    int64_t from = begin * COPY_CHUNK_BYTES, to = MIN(end * COPY_CHUNK_BYTES, c->bytes);
    memcpy(c->to + from, c->from + from, (size_t)(to - from));
}

void rt_copy(char *to, const char *from, int64_t bytes) {
    Copy c = {to, from, bytes};
    if (to != from)
        rt_parallel((bytes + COPY_CHUNK_BYTES - 1) / COPY_CHUNK_BYTES, copy_chunks, &c);
}

typedef struct Runs {
    char *to;
    const char *from;
    int64_t run_bytes, to_stride, from_stride;
} Runs;

static void copy_runs(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    Runs *r = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        memcpy(r->to + i * r->to_stride, r->from + i * r->from_stride,
               (size_t)r->run_bytes);
    }
}

void rt_copy_runs(char *to, const char *from, int64_t rows, int64_t run_bytes,
                  int64_t to_stride_bytes, int64_t from_stride_bytes) {
    Runs r = {to, from, run_bytes, to_stride_bytes, from_stride_bytes};
    run_parts(rows, rows * run_bytes, copy_runs, &r);
}

static int64_t offset_at(int64_t index, int64_t n, const int64_t *size,
                         const int64_t *stride) {
    int64_t offset = 0;
    for (int64_t d = n - 1; d >= 0; d--) {
        offset += index % size[d] * stride[d];
        index /= size[d];
    }
    return offset;
}

typedef struct Spread {
    char *to;
    const char *from;
    int64_t rank, size[COPY_DIMS], stride[COPY_DIMS], bytes;
} Spread;

/* Rows of the last dimension, one by one. */
static void spread_rows(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    Spread *s = ctx;
    (void)thread;
    int64_t n = s->size[s->rank - 1], step = s->stride[s->rank - 1] * s->bytes;
    for (int64_t row = begin; row < end; row++) {
        int64_t offset = offset_at(row, s->rank - 1, s->size, s->stride);
        char *to = s->to + row * n * s->bytes;
        const char *from = s->from + offset * s->bytes;
        if (step == s->bytes) {
            memcpy(to, from, (size_t)(n * s->bytes));
            continue;
        }
        for (int64_t i = 0; i < n; i++) {
            memcpy(to + i * s->bytes, from + i * step, (size_t)s->bytes);
        }
    }
}

void rt_spread(char *to, const char *from, int64_t rank, const int64_t *size,
               const int64_t *stride, int64_t element_bytes) {
    Spread s = {.to = to, .from = from, .rank = MAX(rank, 1), .bytes = element_bytes};
    check(rank <= COPY_DIMS);
    s.size[0] = 1;
    int64_t rows = 1;
    for (int64_t d = 0; d < rank; d++) {
        s.size[d] = size[d];
        s.stride[d] = stride[d];
        if (d + 1 < rank) rows *= size[d];
    }
    run_parts(rows, rows * s.size[s.rank - 1] * s.bytes, spread_rows, &s);
}

typedef struct Reduce {
    float *to;
    const float *from;
    int64_t nkept, ngone, size[COPY_DIMS], stride[COPY_DIMS], gone;
    bool take_max;
} Reduce;

/* Rows of the last kept dimension: the sum, or maximum, over all dimensions that are
 * reduced. */
static void reduce_rows(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    Reduce *r = ctx;
    (void)thread;
    int64_t last = r->nkept - 1, n = r->size[last], step = r->stride[last];
    for (int64_t row = begin; row < end; row++) {
        float *to = r->to + row * n;
        int64_t base = offset_at(row, last, r->size, r->stride);
        for (int64_t i = 0; i < n; i++) to[i] = r->take_max ? -INFINITY : 0;
        for (int64_t g = 0; g < r->gone; g++) {
            const float *from =
                r->from + base +
                offset_at(g, r->ngone, r->size + r->nkept, r->stride + r->nkept);
            for (int64_t i = 0; i < n; i++) {
                float v = from[i * step];
                to[i] = r->take_max ? (v > to[i] || v != v ? v : to[i]) : to[i] + v;
            }
        }
    }
}

void rt_reduce(float *to, const float *from, int64_t nkept, int64_t ngone,
               const int64_t *size, const int64_t *stride, int64_t take_max) {
    Reduce r = {.to = to,
                .from = from,
                .nkept = MAX(nkept, 1),
                .ngone = ngone,
                .gone = 1,
                .take_max = take_max != 0};
    check(nkept + ngone < COPY_DIMS);
    r.size[0] = 1; /* a scalar result is a row of one */
    int64_t shift = nkept ? 0 : 1, rows = 1;
    for (int64_t d = 0; d < nkept + ngone; d++) {
        r.size[d + shift] = size[d];
        r.stride[d + shift] = stride[d];
        if (d >= nkept)
            r.gone *= size[d];
        else if (d + 1 < nkept)
            rows *= size[d];
    }
    run_parts(rows, rows * r.size[r.nkept - 1] * r.gone * 4, reduce_rows, &r);
}

typedef struct Embed {
    char *to;
    const char *table;
    const int32_t *ids;
    int64_t n, v, row_bytes;
    bool partial;
    int64_t bad; /* how many ids are outside, not of a partial table */
} Embed;

static void embed_rows(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    Embed *e = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int64_t id = e->ids[i];
        if (id < 0 || id >= e->v) {
            /* all bits of it: not a number of any type, so that stages that do not know of
             * the failure find a bad step */
            if (!e->partial) __atomic_add_fetch(&e->bad, 1, __ATOMIC_RELAXED);
            memset(e->to + i * e->row_bytes, e->partial ? 0 : 0xff, (size_t)e->row_bytes);
            continue;
        }
        memcpy(e->to + i * e->row_bytes, e->table + id * e->row_bytes,
               (size_t)e->row_bytes);
    }
}

/* By the caller's thread, and the same whatever the number of threads. */
static void raise_outside(const int32_t *ids, int64_t n, int64_t v, int64_t bad) {
    int64_t i = 0;
    while (ids[i] >= 0 && ids[i] < v) i++;
    fault_raise(EXIT_DATA,
                "index %lld of a table of %lld rows: indices are 0 to %lld (number %lld "
                "of the %lld indices; %lld are outside)",
                (long long)ids[i], (long long)v, (long long)v - 1, (long long)i,
                (long long)n, (long long)bad);
}

void rt_embed(char *to, const char *table, const int32_t *ids, int64_t n, int64_t v,
              int64_t row_bytes, int64_t partial) {
    Embed e = {to, table, ids, n, v, row_bytes, partial != 0};
    run_parts(n, n * row_bytes, embed_rows, &e);
    if (e.bad) raise_outside(ids, n, v, e.bad);
}

/* Each thread owns a range of rows of the sum and goes through all ids. */
typedef struct EmbedAdd {
    float *to;
    const float *sum; /* what rows are added to: as `to`, elsewhere, or NULL: zeros */
    const float *dy;
    const int32_t *ids;
    int64_t n, v, c;
    int64_t bad; /* how many ids are outside; counted by the thread of row 0 */
} EmbedAdd;

static void embed_add_rows(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    EmbedAdd *e = ctx;
    (void)thread;
    float *own = e->to + begin * e->c;
    size_t bytes = (size_t)((end - begin) * e->c) * sizeof *own;
    if (!e->sum)
        memset(own, 0, bytes);
    else if (e->sum != e->to)
        memcpy(own, e->sum + begin * e->c, bytes);
    for (int64_t i = 0; i < e->n; i++) {
        if (e->ids[i] < begin || e->ids[i] >= end) {
            if (begin == 0 && (e->ids[i] < 0 || e->ids[i] >= e->v)) e->bad++;
            continue;
        }
        float *to = e->to + e->ids[i] * e->c;
        const float *dy = e->dy + i * e->c;
        for (int64_t j = 0; j < e->c; j++) to[j] += dy[j];
    }
}

void rt_embed_add(float *to, const float *sum, const int32_t *ids, const float *dy,
                  int64_t n, int64_t v, int64_t c, int64_t partial) {
    EmbedAdd e = {to, sum, dy, ids, n, v, c, 0};
    int64_t rows = sum == to ? n : v + n;
    run_parts(v, rows * c * (int64_t)sizeof *to, embed_add_rows, &e);
    if (e.bad && !partial) raise_outside(ids, n, v, e.bad);
}

void rt_positions(int32_t *to, const int32_t *offset, int64_t n, int64_t zigzag) {
    for (int64_t i = 0; i < n; i++)
        to[i] = *offset + (int32_t)zigzag_position(i, n, zigzag);
}

typedef struct Fit {
    char *to;
    const char *from;
    int64_t to_bytes, from_bytes;
} Fit;

static void fit_rows(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    Fit *f = ctx;
    (void)thread;
    int64_t both = MIN(f->to_bytes, f->from_bytes);
    for (int64_t i = begin; i < end; i++) {
        char *to = f->to + i * f->to_bytes;
        memcpy(to, f->from + i * f->from_bytes, (size_t)both);
        memset(to + both, 0, (size_t)(f->to_bytes - both));
    }
}

void rt_fit_rows(char *to, const char *from, int64_t rows, int64_t to_bytes,
                 int64_t from_bytes) {
    Fit f = {to, from, to_bytes, from_bytes};
    run_parts(rows, rows * MAX(to_bytes, from_bytes), fit_rows, &f);
}

void rt_index_from(int32_t *to, const int32_t *from, const int32_t *base, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = from[i] - *base;
}

void rt_on_first(char *to, const char *from, int64_t bytes, int64_t coord) {
    if (coord)
        memset(to, 0, (size_t)bytes);
    else
        rt_copy(to, from, bytes);
}

void rt_rng_layer(int32_t *to, const int32_t *rng, const int32_t *layer) {
    memmove(to, rng, RNG_WORDS * sizeof *to);
    to[RNG_LAYER] = *layer;
}

void rt_rope_table(float *to, const int32_t *offset, int64_t t, int64_t half,
                   const double *freqs, double scale, int64_t each) {
    for (int64_t k = 0; k < half; k++) {
        for (int64_t i = 0; i < t; i++) {
            double angle = (double)(each ? offset[i] : *offset + i) * freqs[k];
            to[2 * (i * half + k)] = (float)(scale * cos(angle));
            to[2 * (i * half + k) + 1] = (float)(scale * sin(angle));
        }
    }
}

typedef struct Conversion {
    float *wide;
    uint16_t *narrow;
} Conversion;

static void widen_bf16(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    const Conversion *c = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) c->wide[i] = bf16_to_f32(c->narrow[i]);
}

static void round_bf16(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    const Conversion *c = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) c->narrow[i] = f32_to_bf16(c->wide[i]);
}

/* Those of F16C give the same bits. */
static void widen_f16(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    const Conversion *c = ctx;
    (void)thread;
    if (f16c_works()) begin = f16c_widen(c->wide, c->narrow, begin, end);
    for (int64_t i = begin; i < end; i++) c->wide[i] = f16_to_f32(c->narrow[i]);
}

static void round_f16(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    const Conversion *c = ctx;
    (void)thread;
    if (f16c_works()) begin = f16c_round(c->narrow, c->wide, begin, end);
    for (int64_t i = begin; i < end; i++) c->narrow[i] = f32_to_f16(c->wide[i]);
}

void rt_widen(float *to, const uint16_t *from, int64_t n, int64_t type) {
    Conversion c = {to, (uint16_t *)(uintptr_t)from};
    run_parts(n, n * 4, type == DT_F16 ? widen_f16 : widen_bf16, &c);
}

void rt_round(uint16_t *to, const float *from, int64_t n, int64_t type) {
    Conversion c = {(float *)(uintptr_t)from, to};
    run_parts(n, n * 4, type == DT_F16 ? round_f16 : round_bf16, &c);
}

void rt_cache_write(char *cache, const char *x, const int32_t *offset, int64_t batch,
                    int64_t rows, int64_t n, int64_t row_bytes) {
    int32_t at = *offset;
    if (at < 0 || n > rows - at) {
        fail(EXIT_DATA, "rows %d to %lld of a cache of %lld rows", at,
             (long long)at + n - 1, (long long)rows);
    }
    for (int64_t b = 0; b < batch; b++)
        memcpy(cache + (b * rows + at) * row_bytes, x + b * n * row_bytes,
               (size_t)(n * row_bytes));
}

/* The last `rows` of a sequence's rows, in runs up to the end of the cache. */
void rt_cache_write_each(char *cache, const char *x, const int32_t *offset,
                         const int32_t *taken, int64_t batch, int64_t rows, int64_t n,
                         int64_t row_bytes) {
    for (int64_t b = 0; b < batch; b++, cache += rows * row_bytes, x += n * row_bytes) {
        if (offset[b] < 0 || taken[b] < 0 || taken[b] > n)
            fail(EXIT_DATA, "%d of %lld rows for a cache, from row %d on", taken[b],
                 (long long)n, offset[b]);
        for (int64_t i = MAX(0, taken[b] - rows), run; i < taken[b]; i += run) {
            int64_t at = (offset[b] + i) % rows;
            run = MIN(taken[b] - i, rows - at);
            memcpy(cache + at * row_bytes, x + i * row_bytes, (size_t)(run * row_bytes));
        }
    }
}
