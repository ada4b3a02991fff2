/* dnnl.c - the shim over oneDNN's matmul primitive; see dnnl.h.
 *
 * oneDNN silently falls back to a reference loop for forms that its kernels do not know:
 * a column-major result, a batch with unusual broadcasts, odd strides of dimensions of
 * size 1. So a product is first brought to its plainest form (`Problem`: batch dimensions
 * merged, broadcast ones folded into m or n), then offered as it is, as c' = b' a', and
 * as a loop over the batch, and the first form with a real kernel is kept. */
#include "codegen/dnnl.h"
#include "base/base.h"
#include <dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>

enum { MAX_BATCH = DNNL_MAX_RANK - 2 };
_Static_assert(DNNL_MAX_RANK <= DNNL_MAX_NDIMS, "more dimensions than oneDNN takes");

typedef struct Matrix {
    int64_t row, col, batch[MAX_BATCH]; /* strides; 0 where the batch is broadcast */
    DType dtype;
} Matrix;

typedef struct Problem {
    int64_t m, n, k, batch[MAX_BATCH];
    int nbatch;
    Matrix a, b, c;
    bool bias;
    DType bias_dtype;
    bool accumulate;
} Problem;

struct DnnlMatmul {
    dnnl_primitive_t primitive;
    dnnl_stream_t stream;
    dnnl_memory_t a, b, bias, c, scratch;
    size_t scratch_bytes;
    int threads;
    bool swapped; /* runs c' = b' a' */
    Problem loop; /* its batch is what run() walks; nbatch 0 for a single call */
    char impl[64];
};

static dnnl_engine_t engine;
static char engine_error[160];
static pthread_once_t engine_once = PTHREAD_ONCE_INIT;

static void engine_open(void) {
    const dnnl_version_t *v = dnnl_version();
    if (v->major != DNNL_VERSION_MAJOR) {
        snprintf(engine_error, sizeof engine_error,
                 "built for oneDNN %d, but the library at run time is %d.%d.%d",
                 DNNL_VERSION_MAJOR, v->major, v->minor, v->patch);
    } else if (v->cpu_runtime != DNNL_RUNTIME_OMP) {
        snprintf(engine_error, sizeof engine_error,
                 "this oneDNN %d.%d.%d does not thread by OpenMP; use one that does",
                 v->major, v->minor, v->patch);
    } else if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success) {
        snprintf(engine_error, sizeof engine_error, "oneDNN finds no CPU engine");
    }
}

/* From the caller's descriptors to a Problem. */

static bool reject(char *why, size_t size, const char *what) {
    snprintf(why, size, "%s", what);
    return false;
}

/* Last element's byte offset must fit comfortably: all later sums stay below it. */
static bool desc_is_sane(const DnnlDesc *d) {
    int64_t last = 0;
    if (d->rank < 1 || d->rank > DNNL_MAX_RANK) return false;
    for (int i = 0; i < d->rank; i++) {
        int64_t span;
        if (d->dim[i] < 1 || d->stride[i] < 1 || d->stride[i] > INT64_MAX / 64)
            return false;
        if (__builtin_mul_overflow(d->dim[i], d->stride[i], &span)) return false;
        if (__builtin_add_overflow(last, span, &last)) return false;
    }
    return last <= INT64_MAX / 64;
}

/* A stride along a dimension of size 1 means nothing, but oneDNN looks at it: give the
 * matrix the stride that makes it plainly row- or column-major. */
static void matrix_set(Matrix *x, int64_t rows, int64_t cols, int64_t row, int64_t col) {
    if (cols == 1) col = 1;
    if (rows == 1) row = col == 1 ? cols : 1;
    x->row = row;
    x->col = col;
}

static bool bias_is_sane(const DnnlDesc *bias, const DnnlDesc *c) {
    if (!desc_is_sane(bias)) return false;
    for (int i = 0; i < bias->rank - 1; i++)
        if (bias->dim[i] != 1) return false;
    int64_t n = bias->dim[bias->rank - 1];
    return n == c->dim[c->rank - 1] && (n == 1 || bias->stride[bias->rank - 1] == 1);
}

static bool types_are_known(const Problem *p) {
    DType in = p->a.dtype, out = p->c.dtype;
    if (in != p->b.dtype || (in != DT_F32 && in != DT_BF16)) return false;
    if (out != DT_F32 && !(out == DT_BF16 && in == DT_BF16)) return false;
    if (!p->bias || p->bias_dtype == DT_F32) return true;
    return p->bias_dtype == DT_BF16 && in == DT_BF16;
}

/* NULL, or what is wrong with the shapes. */
static const char *shape_problem(const DnnlDesc *a, const DnnlDesc *b,
                                 const DnnlDesc *bias, const DnnlDesc *c) {
    if (!desc_is_sane(a) || !desc_is_sane(b) || !desc_is_sane(c))
        return "dimensions and strides must be positive and fit memory";
    int rank = c->rank, i = rank - 2, j = rank - 1;
    if (rank < 2 || a->rank != rank || b->rank != rank)
        return "a, b and c must have the same rank, 2 or more";
    if (a->dim[i] != c->dim[i] || b->dim[j] != c->dim[j] || a->dim[j] != b->dim[i])
        return "the shapes are not [m,k] [k,n] -> [m,n]";
    if (bias && !bias_is_sane(bias, c))
        return "a bias must be [n], contiguous, after leading ones";
    return NULL;
}

/* Takes leading dimension d; false: that of a or b is neither c's nor 1. */
static bool add_batch(Problem *p, const DnnlDesc *a, const DnnlDesc *b, const DnnlDesc *c,
                      int d) {
    int64_t n = c->dim[d];
    if ((a->dim[d] != n && a->dim[d] != 1) || (b->dim[d] != n && b->dim[d] != 1))
        return false;
    if (n == 1) return true;
    int t = p->nbatch++;
    p->batch[t] = n;
    p->a.batch[t] = a->dim[d] == 1 ? 0 : a->stride[d];
    p->b.batch[t] = b->dim[d] == 1 ? 0 : b->stride[d];
    p->c.batch[t] = c->stride[d];
    return true;
}

static bool problem_make(Problem *p, const DnnlDesc *a, const DnnlDesc *b,
                         const DnnlDesc *bias, const DnnlDesc *c, char *why,
                         size_t size) {
    const char *wrong = shape_problem(a, b, bias, c);
    if (wrong) return reject(why, size, wrong);
    int i = c->rank - 2, j = c->rank - 1;
    p->m = c->dim[i], p->n = c->dim[j], p->k = a->dim[j];
    p->a.dtype = a->dtype, p->b.dtype = b->dtype, p->c.dtype = c->dtype;
    p->bias = bias != NULL;
    if (bias) p->bias_dtype = bias->dtype;
    if (!types_are_known(p))
        return reject(why, size,
                      "a matmul takes f32 (into f32) or bf16 (into f32, bf16)");
    matrix_set(&p->a, p->m, p->k, a->stride[i], a->stride[j]);
    matrix_set(&p->b, p->k, p->n, b->stride[i], b->stride[j]);
    matrix_set(&p->c, p->m, p->n, c->stride[i], c->stride[j]);
    for (int d = 0; d < i; d++)
        if (!add_batch(p, a, b, c, d))
            return reject(why, size, "a leading dimension of a and b must be c's or 1");
    return true;
}

/* Plainer forms of the same product. */

static bool joins(const Matrix *x, int t, int64_t inner) {
    return x->batch[t] == x->batch[t + 1] * inner;
}

/* Joins neighbouring batch dimensions whose strides make them one in every tensor. */
static void batch_merge(Problem *p) {
    for (int t = p->nbatch - 2; t >= 0; t--) {
        int64_t inner = p->batch[t + 1];
        if (!joins(&p->a, t, inner) || !joins(&p->b, t, inner) || !joins(&p->c, t, inner))
            continue;
        p->batch[t] *= inner;
        Matrix *x[3] = {&p->a, &p->b, &p->c};
        for (int i = 0; i < 3; i++) x[i]->batch[t] = x[i]->batch[t + 1];
        for (int d = t + 1; d < p->nbatch - 1; d++) {
            p->batch[d] = p->batch[d + 1];
            for (int i = 0; i < 3; i++) x[i]->batch[d] = x[i]->batch[d + 1];
        }
        p->nbatch--;
    }
}

/* Batch t of x is as many more rows (columns) of one matrix. */
static bool rows_follow(const Matrix *x, int t, int64_t rows) {
    return rows > 1 && x->batch[t] == rows * x->row;
}

static bool columns_follow(const Matrix *x, int t, int64_t columns) {
    return columns > 1 && x->batch[t] == columns * x->col;
}

/* Batch t of x is a row each of one matrix. */
static bool is_single_row(const Matrix *x, int t, int64_t columns) {
    return x->col == 1 && x->batch[t] >= columns;
}

/* [batch, m, k] times one [k, n] is [batch m, k] times it, if the rows follow each other;
 * the same for one a and columns of b. */
static void batch_fold(Problem *p) {
    for (; p->nbatch > 0; p->nbatch--) {
        int t = p->nbatch - 1;
        Matrix *a = &p->a, *b = &p->b, *c = &p->c;
        bool one_a = !p->bias && a->batch[t] == 0, one_b = b->batch[t] == 0;
        bool single = p->m == 1 && is_single_row(a, t, p->k) && is_single_row(c, t, p->n);
        if (one_b && rows_follow(a, t, p->m) && rows_follow(c, t, p->m)) {
            p->m *= p->batch[t];
        } else if (one_b && single) {
            p->m = p->batch[t];
            a->row = a->batch[t];
            c->row = c->batch[t];
        } else if (one_a && columns_follow(b, t, p->n) && columns_follow(c, t, p->n)) {
            p->n *= p->batch[t];
        } else {
            return;
        }
    }
}

static Problem problem_swap(const Problem *p) {
    Problem q = *p;
    q.m = p->n, q.n = p->m;
    q.a = p->b, q.b = p->a;
    Matrix *x[3] = {&q.a, &q.b, &q.c};
    for (int i = 0; i < 3; i++) {
        int64_t row = x[i]->row;
        x[i]->row = x[i]->col;
        x[i]->col = row;
    }
    return q;
}

/* oneDNN's objects; the two generations differ in how descriptors are held. */

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t Md;
typedef const_dnnl_memory_desc_t MdArg;
typedef char Walk; /* nothing to keep: the descriptor itself moves on */
#define MD_ARG(md) (md)
static bool md_make(Md *md, int rank, const dnnl_dims_t dim, const dnnl_dims_t stride,
                    dnnl_data_type_t type) {
    return dnnl_memory_desc_create_with_strides(md, rank, dim, type, stride) ==
           dnnl_success;
}
static void md_drop(Md *md) {
    if (*md) dnnl_memory_desc_destroy(*md);
}
static bool append_sum(dnnl_post_ops_t ops) {
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef) == dnnl_success;
}
static bool matmul_desc(dnnl_primitive_desc_t *pd, const Md *a, const Md *b,
                        const Md *bias, const Md *c, dnnl_primitive_attr_t attr,
                        Walk *walk) {
    (void)walk;
    return dnnl_matmul_primitive_desc_create(pd, engine, *a, *b, bias ? *bias : NULL, *c,
                                             attr) == dnnl_success;
}
static bool next_kernel(dnnl_primitive_desc_t *pd, Walk *walk) {
    (void)walk;
    return dnnl_primitive_desc_next_impl(*pd) == dnnl_success;
}
static void walk_end(Walk *walk) {
    (void)walk;
}
#else
typedef dnnl_memory_desc_t Md;
typedef const dnnl_memory_desc_t *MdArg;
typedef struct Walk {
    dnnl_primitive_desc_iterator_t at;
    dnnl_matmul_desc_t matmul; /* the iterator keeps a pointer to it */
} Walk;
#define MD_ARG(md) (&(md))
static bool md_make(Md *md, int rank, const dnnl_dims_t dim, const dnnl_dims_t stride,
                    dnnl_data_type_t type) {
    return dnnl_memory_desc_init_by_strides(md, rank, dim, type, stride) == dnnl_success;
}
static void md_drop(Md *md) {
    (void)md; /* a plain struct in this generation */
}
static bool append_sum(dnnl_post_ops_t ops) {
    return dnnl_post_ops_append_sum(ops, 1.0f) == dnnl_success;
}
static bool matmul_desc(dnnl_primitive_desc_t *pd, const Md *a, const Md *b,
                        const Md *bias, const Md *c, dnnl_primitive_attr_t attr,
                        Walk *walk) {
    if (dnnl_matmul_desc_init(&walk->matmul, a, b, bias, c) != dnnl_success ||
        dnnl_primitive_desc_iterator_create(&walk->at, &walk->matmul, attr, engine,
                                            NULL) != dnnl_success)
        return false;
    *pd = dnnl_primitive_desc_iterator_fetch(walk->at);
    return *pd != NULL;
}
static bool next_kernel(dnnl_primitive_desc_t *pd, Walk *walk) {
    if (dnnl_primitive_desc_iterator_next(walk->at) != dnnl_success) return false;
    dnnl_primitive_desc_destroy(*pd);
    *pd = dnnl_primitive_desc_iterator_fetch(walk->at);
    return *pd != NULL;
}
static void walk_end(Walk *walk) {
    if (walk->at) dnnl_primitive_desc_iterator_destroy(walk->at);
}
#endif

static dnnl_data_type_t type_of(DType t) {
    return t == DT_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* Descriptor of one operand with the problem's batch in front. A broadcast dimension has
 * size 1 and the stride of everything inside it. */
static bool matrix_md(Md *md, const Problem *p, const Matrix *x, int64_t rows,
                      int64_t cols) {
    dnnl_dims_t dim = {0}, stride = {0};
    int r = p->nbatch;
    dim[r] = rows, dim[r + 1] = cols;
    stride[r] = x->row, stride[r + 1] = x->col;
    int64_t inner = MAX(rows * x->row, cols * x->col);
    for (int t = r - 1; t >= 0; t--) {
        dim[t] = x->batch[t] ? p->batch[t] : 1;
        stride[t] = x->batch[t] ? x->batch[t] : inner;
        inner = MAX(inner, dim[t] * stride[t]);
    }
    return md_make(md, r + 2, dim, stride, type_of(x->dtype));
}

static bool bias_md(Md *md, const Problem *p) {
    dnnl_dims_t dim = {0}, stride = {0};
    for (int t = 0; t <= p->nbatch; t++) dim[t] = 1, stride[t] = p->n;
    dim[p->nbatch + 1] = p->n, stride[p->nbatch + 1] = 1;
    return md_make(md, p->nbatch + 2, dim, stride, type_of(p->bias_dtype));
}

static dnnl_primitive_attr_t attr_make(bool accumulate) {
    dnnl_primitive_attr_t attr;
    if (dnnl_primitive_attr_create(&attr) != dnnl_success) return NULL;
    bool ok = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) ==
              dnnl_success;
    dnnl_post_ops_t ops = NULL;
    if (ok && accumulate) {
        ok = dnnl_post_ops_create(&ops) == dnnl_success && append_sum(ops) &&
             dnnl_primitive_attr_set_post_ops(attr, ops) == dnnl_success;
        if (ops) dnnl_post_ops_destroy(ops);
    }
    if (ok) return attr;
    dnnl_primitive_attr_destroy(attr);
    return NULL;
}

static bool memory_make(dnnl_memory_t *memory, MdArg md) {
    return dnnl_memory_create(memory, md, engine, DNNL_MEMORY_NONE) == dnnl_success;
}

/* All that a run needs, so that it only has to set addresses. */
static bool objects_make(DnnlMatmul *m, dnnl_primitive_desc_t pd, const Md *a,
                         const Md *b, const Md *bias, const Md *c) {
    MdArg scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    m->scratch_bytes = scratch ? dnnl_memory_desc_get_size(scratch) : 0;
    if (m->scratch_bytes && !memory_make(&m->scratch, scratch)) return false;
    return memory_make(&m->a, MD_ARG(*a)) && memory_make(&m->b, MD_ARG(*b)) &&
           memory_make(&m->c, MD_ARG(*c)) &&
           (!bias || memory_make(&m->bias, MD_ARG(*bias))) &&
           dnnl_stream_create(&m->stream, engine, dnnl_stream_default_flags) ==
               dnnl_success &&
           dnnl_primitive_create(&m->primitive, pd) == dnnl_success;
}

static void objects_drop(DnnlMatmul *m) {
    dnnl_memory_t memory[] = {m->a, m->b, m->bias, m->c, m->scratch};
    for (int i = 0; i < ARRAY_LEN(memory); i++)
        if (memory[i]) dnnl_memory_destroy(memory[i]);
    if (m->stream) dnnl_stream_destroy(m->stream);
    if (m->primitive) dnnl_primitive_destroy(m->primitive);
    m->a = m->b = m->bias = m->c = m->scratch = NULL;
    m->stream = NULL;
    m->primitive = NULL;
}

/* Large f32 products run faster in oneDNN 2.6's classic gemm than in its first choice
 * (brgemm), which reads b in place. Best of several runs by dnnl_sgemm, 2 cores, AVX-512,
 * peak 316 GFLOP/s: 4096 x 3072 x 768 at 252 instead of 131, its weight gradient at 237
 * instead of 127; others of GPT-2's gain 5 to 40 %; matmuls of about 2^25 are within 15 %
 * either way, which was also the noise. Of oneDNN 3 nothing is known: it chooses. A fixed
 * rule, not a trial: the same program gives the same bits. */
static bool prefers_gemm(const Problem *p) {
    return DNNL_VERSION_MAJOR < 3 && p->a.dtype == DT_F32 && p->nbatch == 0 &&
           p->m >= 32 && p->n >= 32 && p->k >= 32 &&
           (double)p->m * (double)p->n * (double)p->k >= 1 << 24;
}

static const char *kernel_name(dnnl_primitive_desc_t pd) {
    const char *name = NULL;
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
    return name ? name : "none";
}

/* bias: NULL without one. */
static bool problem_md(const Problem *p, Md *a, Md *b, Md *bias, Md *c) {
    return matrix_md(a, p, &p->a, p->m, p->k) && matrix_md(b, p, &p->b, p->k, p->n) &&
           matrix_md(c, p, &p->c, p->m, p->n) && (!bias || bias_md(bias, p));
}

/* Tries one form, with a kernel whose name starts with `kind` ("" for the first that
 * oneDNN offers). On false, m->impl has a name: a reference kernel's, or "none". */
static bool form_try(DnnlMatmul *m, const Problem *p, const char *kind) {
    Md a = {0}, b = {0}, c = {0}, bias = {0}, *with = p->bias ? &bias : NULL;
    dnnl_primitive_desc_t pd = NULL;
    Walk walk = {0};
    dnnl_primitive_attr_t attr = attr_make(p->accumulate);
    bool ok = attr && problem_md(p, &a, &b, with, &c) &&
              matmul_desc(&pd, &a, &b, with, &c, attr, &walk);
    while (ok && strncmp(kernel_name(pd), kind, strlen(kind)) != 0)
        ok = next_kernel(&pd, &walk);
    snprintf(m->impl, sizeof m->impl, "%s", ok ? kernel_name(pd) : "none");
    ok = ok && strncmp(m->impl, "ref", 3) != 0 && objects_make(m, pd, &a, &b, with, &c);
    if (!ok) objects_drop(m);
    if (pd) dnnl_primitive_desc_destroy(pd);
    walk_end(&walk);
    if (attr) dnnl_primitive_attr_destroy(attr);
    md_drop(&a), md_drop(&b), md_drop(&c), md_drop(&bias);
    return ok;
}

/* The product as it is or swapped, in one call or looped over the batch. */
static bool forms_try(DnnlMatmul *m, const Problem *p, const char *kind) {
    Problem swapped = problem_swap(p);
    bool can_swap = !p->bias;
    bool swap_first = can_swap && p->c.col != 1 && p->c.row == 1;
    for (int looped = 0; looped < 2; looped++) {
        if (looped && p->nbatch == 0) break;
        for (int i = 0; i < 2; i++) {
            m->swapped = swap_first ? i == 0 : i == 1;
            if (m->swapped && !can_swap) continue;
            m->loop = m->swapped ? swapped : *p;
            Problem one = m->loop;
            if (looped)
                one.nbatch = 0;
            else
                m->loop.nbatch = 0;
            if (form_try(m, &one, kind)) return true;
        }
    }
    return false;
}

static void no_kernel(const Problem *p, const DnnlMatmul *m, char *why, size_t size) {
    const char *hint = "";
    if (p->a.row != 1 && p->a.col != 1)
        hint = "; a has no unit stride: copy it first";
    else if (p->b.row != 1 && p->b.col != 1)
        hint = "; b has no unit stride: copy it first";
    else if (p->c.row != 1 && p->c.col != 1)
        hint = "; c has no unit stride";
    else if (p->bias && p->c.col != 1)
        hint = "; with a bias c must be row-major";
    else if (p->a.dtype == DT_BF16)
        hint = "; bf16 needs a CPU with AVX-512";
    snprintf(why, size, "oneDNN has no fast matmul for %s %lld x %lld x %lld (only %s)%s",
             dtype_name[p->a.dtype], (long long)p->m, (long long)p->n, (long long)p->k,
             m->impl, hint);
}

DnnlMatmul *dnnl_matmul_new(const DnnlDesc *a, const DnnlDesc *b, const DnnlDesc *bias,
                            const DnnlDesc *c, bool accumulate, int threads, char *why,
                            size_t why_size) {
    Problem p = {.accumulate = accumulate};
    pthread_once(&engine_once, engine_open);
    if (engine_error[0]) return reject(why, why_size, engine_error), NULL;
    if (threads < 1) return reject(why, why_size, "at least one thread is needed"), NULL;
    if (!problem_make(&p, a, b, bias, c, why, why_size)) return NULL;
    batch_merge(&p);
    batch_fold(&p);
    DnnlMatmul *m = calloc(1, sizeof *m);
    if (!m) return reject(why, why_size, "out of memory"), NULL;
    m->threads = threads;
    int before = omp_get_max_threads();
    omp_set_num_threads(threads); /* kernels are planned for the team of this moment */
    bool ok = (prefers_gemm(&p) && forms_try(m, &p, "gemm")) || forms_try(m, &p, "");
    omp_set_num_threads(before);
    if (ok) return m;
    no_kernel(&p, m, why, why_size);
    free(m);
    return NULL;
}

size_t dnnl_matmul_scratch_bytes(const DnnlMatmul *m) {
    return m->scratch_bytes;
}

const char *dnnl_matmul_impl(const DnnlMatmul *m) {
    return m->impl;
}

static void set(dnnl_memory_t memory, const void *p) {
    dnnl_status_t s = dnnl_memory_set_data_handle(memory, (void *)(uintptr_t)p);
    if (s != dnnl_success) die("oneDNN does not take an address: status %d", (int)s);
}

static void run_one(DnnlMatmul *m, const char *a, const char *b, char *c) {
    dnnl_exec_arg_t args[5];
    int n = 0;
    set(m->a, a);
    set(m->b, b);
    set(m->c, c);
    args[n++] = (dnnl_exec_arg_t){DNNL_ARG_SRC, m->a};
    args[n++] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, m->b};
    args[n++] = (dnnl_exec_arg_t){DNNL_ARG_DST, m->c};
    if (m->bias) args[n++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, m->bias};
    if (m->scratch) args[n++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, m->scratch};
    dnnl_status_t s = dnnl_primitive_execute(m->primitive, m->stream, n, args);
    if (s == dnnl_success) s = dnnl_stream_wait(m->stream);
    if (s != dnnl_success) die("oneDNN's %s failed with status %d", m->impl, (int)s);
}

/* Walks the batch like an odometer; with no batch dimension that is one call. */
static void run_loop(DnnlMatmul *m, const char *a, const char *b, char *c) {
    const Problem *p = &m->loop;
    int64_t at[MAX_BATCH] = {0};
    int size_a = dtype_bytes[p->a.dtype], size_c = dtype_bytes[p->c.dtype];
    for (;;) {
        int64_t ia = 0, ib = 0, ic = 0;
        for (int t = 0; t < p->nbatch; t++) {
            ia += at[t] * p->a.batch[t];
            ib += at[t] * p->b.batch[t];
            ic += at[t] * p->c.batch[t];
        }
        run_one(m, a + ia * size_a, b + ib * size_a, c + ic * size_c);
        int t = p->nbatch - 1;
        while (t >= 0 && ++at[t] == p->batch[t]) at[t--] = 0;
        if (t < 0) return;
    }
}

void dnnl_matmul_run(DnnlMatmul *m, const void *a, const void *b, const void *bias,
                     void *c, void *scratch) {
    check((bias != NULL) == (m->bias != NULL));
    check(scratch || !m->scratch_bytes);
    check(m->threads == 1 || !omp_in_parallel());
    if (m->bias) set(m->bias, bias);
    if (m->scratch) set(m->scratch, scratch);
    int before = omp_get_max_threads();
    if (before != m->threads) omp_set_num_threads(m->threads);
    run_loop(m, m->swapped ? b : a, m->swapped ? a : b, c);
    if (before != m->threads) omp_set_num_threads(before);
}

void dnnl_matmul_free(DnnlMatmul *m) {
    if (!m) return;
    objects_drop(m);
    free(m);
}
