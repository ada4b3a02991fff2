/* dnnl.c - the shim over oneDNN's matmul primitive; see dnnl.h.
 *
 * oneDNN silently falls back to a reference loop for forms that its kernels do not know:
 * a column-major result, a batch with unusual broadcasts, odd strides of dimensions of
 * size 1. So a product is first brought to its plainest form (dnnl_problem.h), then offered
 * as it is, as c' = b' a', and as a loop over the batch, and the first form with a real
 * kernel is kept. */
#include "codegen/dnnl.h"
#include "base/base.h"
#include "codegen/dnnl_problem.h"
#include <dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>

_Static_assert(DNNL_MAX_RANK <= DNNL_MAX_NDIMS, "more dimensions than oneDNN takes");

struct DnnlMatmul {
    dnnl_primitive_t primitive;
    dnnl_stream_t stream;
    dnnl_memory_t a, b, bias, c, scratch;
    size_t scratch_bytes;  /* without the packed b */
    dnnl_primitive_t pack; /* NULL: b is read where it is */
    dnnl_memory_t packed;
    size_t packed_bytes;
    int threads;
    bool swapped;     /* runs c' = b' a' */
    DnnlProblem loop; /* its batch is what run() walks; nbatch 0 for a single call */
    char impl[64];
};

const char *dnnl_version_text(Arena *mem) {
    const dnnl_version_t *v = dnnl_version();
    return arena_printf(mem, "%d.%d.%d", v->major, v->minor, v->patch);
}

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
static bool md_make_any(Md *md, int rank, const dnnl_dims_t dim, dnnl_data_type_t type) {
    return dnnl_memory_desc_create_with_tag(md, rank, dim, type, dnnl_format_tag_any) ==
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
static bool md_make_any(Md *md, int rank, const dnnl_dims_t dim, dnnl_data_type_t type) {
    return dnnl_memory_desc_init_by_tag(md, rank, dim, type, dnnl_format_tag_any) ==
           dnnl_success;
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
static bool matrix_md(Md *md, const DnnlProblem *p, const DnnlMatrix *x, int64_t rows,
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

static bool bias_md(Md *md, const DnnlProblem *p) {
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

/* b of any layout that the kernel likes. */
static bool packed_md(Md *md, const DnnlProblem *p) {
    dnnl_dims_t dim = {p->k, p->n};
    return md_make_any(md, 2, dim, type_of(p->b.dtype));
}

/* What copies b into the kernel's layout; false where that is the layout it has. */
static bool packing_make(DnnlMatmul *m, dnnl_primitive_desc_t pd, const Md *plain) {
    MdArg to = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    dnnl_primitive_desc_t copy = NULL;
    if (!to || dnnl_memory_desc_equal(MD_ARG(*plain), to)) return false;
    m->packed_bytes = dnnl_memory_desc_get_size(to);
    bool ok = memory_make(&m->packed, to) &&
              dnnl_reorder_primitive_desc_create(&copy, MD_ARG(*plain), engine, to,
                                                 engine, NULL) == dnnl_success &&
              dnnl_primitive_create(&m->pack, copy) == dnnl_success;
    if (copy) dnnl_primitive_desc_destroy(copy);
    return ok;
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
    dnnl_memory_t memory[] = {m->a, m->b, m->bias, m->c, m->scratch, m->packed};
    for (int i = 0; i < ARRAY_LEN(memory); i++)
        if (memory[i]) dnnl_memory_destroy(memory[i]);
    if (m->stream) dnnl_stream_destroy(m->stream);
    if (m->primitive) dnnl_primitive_destroy(m->primitive);
    if (m->pack) dnnl_primitive_destroy(m->pack);
    m->a = m->b = m->bias = m->c = m->scratch = m->packed = NULL;
    m->stream = NULL;
    m->primitive = m->pack = NULL;
    m->scratch_bytes = m->packed_bytes = 0;
}

/* Large f32 products run faster in oneDNN 2.6's classic gemm than in its first choice
 * (brgemm), which reads b in place. Best of several runs by dnnl_sgemm, 2 cores, AVX-512,
 * peak 316 GFLOP/s: 4096 x 3072 x 768 at 252 instead of 131, its weight gradient at 237
 * instead of 127; others of GPT-2's gain 5 to 40 %; matmuls of about 2^25 are within 15 %
 * either way, which was also the noise. Of oneDNN 3 nothing is known: it chooses. A fixed
 * rule: the same program gives the same bits on every machine of a kind. */
static bool prefers_gemm(const DnnlProblem *p) {
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
static bool problem_md(const DnnlProblem *p, Md *a, Md *b, Md *bias, Md *c) {
    return matrix_md(a, p, &p->a, p->m, p->k) && matrix_md(b, p, &p->b, p->k, p->n) &&
           matrix_md(c, p, &p->c, p->m, p->n) && (!bias || bias_md(bias, p));
}

typedef struct Wanted {
    const char *kind; /* how the kernel's name starts; "": the first that oneDNN offers */
    bool packs;       /* b is copied into the kernel's layout in each run */
} Wanted;

/* Tries one form. On false, m->impl has a name: a reference kernel's, or "none". */
static bool form_try(DnnlMatmul *m, const DnnlProblem *p, const Wanted *want) {
    Md a = {0}, b = {0}, c = {0}, any = {0}, bias = {0}, *with = p->bias ? &bias : NULL;
    dnnl_primitive_desc_t pd = NULL;
    Walk walk = {0};
    dnnl_primitive_attr_t attr = attr_make(p->accumulate);
    bool ok = attr && problem_md(p, &a, &b, with, &c) &&
              (!want->packs || packed_md(&any, p)) &&
              matmul_desc(&pd, &a, want->packs ? &any : &b, with, &c, attr, &walk);
    while (ok && !begins_with(kernel_name(pd), want->kind)) ok = next_kernel(&pd, &walk);
    snprintf(m->impl, sizeof m->impl, "%s", ok ? kernel_name(pd) : "none");
    ok = ok && !begins_with(m->impl, "ref") && objects_make(m, pd, &a, &b, with, &c) &&
         (!want->packs || packing_make(m, pd, &b));
    if (!ok) objects_drop(m);
    if (pd) dnnl_primitive_desc_destroy(pd);
    walk_end(&walk);
    if (attr) dnnl_primitive_attr_destroy(attr);
    md_drop(&a), md_drop(&b), md_drop(&c), md_drop(&any), md_drop(&bias);
    return ok;
}

/* The product as it is or swapped, in one call or looped over the batch. */
static bool forms_try(DnnlMatmul *m, const DnnlProblem *p, const Wanted *want) {
    DnnlProblem swapped = dnnl_problem_swap(p);
    bool can_swap = !p->bias;
    bool swap_first = can_swap && p->c.col != 1 && p->c.row == 1;
    if (want->packs && p->nbatch) return false;
    for (int looped = 0; looped < 2; looped++) {
        if (looped && p->nbatch == 0) break;
        for (int i = 0; i < 2; i++) {
            m->swapped = swap_first ? i == 0 : i == 1;
            if (m->swapped && !can_swap) continue;
            m->loop = m->swapped ? swapped : *p;
            DnnlProblem one = m->loop;
            if (looped)
                one.nbatch = 0;
            else
                m->loop.nbatch = 0;
            if (form_try(m, &one, want)) return true;
        }
    }
    return false;
}

static bool by_rule(DnnlMatmul *m, const DnnlProblem *p) {
    const Wanted gemm = {.kind = "gemm"}, any = {.kind = ""};
    return (prefers_gemm(p) && forms_try(m, p, &gemm)) || forms_try(m, p, &any);
}

/* Kernels are planned for the team of the moment at which they are made. */
static bool make(DnnlMatmul *m, const DnnlProblem *p, DnnlForm form) {
    static const Wanted wanted[DNNL_FORMS] = {[DNNL_GEMM] = {"gemm", false},
                                              [DNNL_BRGEMM] = {"brg", false},
                                              [DNNL_BRGEMM_PACKED] = {"brg", true}};
    int before = omp_get_max_threads();
    omp_set_num_threads(m->threads);
    bool ok = form == DNNL_RULE ? by_rule(m, p) : forms_try(m, p, &wanted[form]);
    omp_set_num_threads(before);
    return ok;
}

static void no_kernel(const DnnlProblem *p, const DnnlMatmul *m, char *why, size_t size) {
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
             m->impl[0] ? m->impl : "none", hint);
}

DnnlMatmul *dnnl_matmul_new(const ProductShape *s, DnnlForm form, char *why,
                            size_t why_size) {
    DnnlProblem p;
    pthread_once(&engine_once, engine_open);
    const char *wrong = engine_error[0]  ? engine_error
                        : s->threads < 1 ? "at least one thread is needed"
                                         : NULL;
    if (wrong) snprintf(why, why_size, "%s", wrong);
    if (wrong || !dnnl_problem_make(&p, s, why, why_size)) return NULL;
    DnnlMatmul *m = calloc(1, sizeof *m);
    if (!m) fail(EXIT_MEMORY, "out of memory");
    m->threads = s->threads;
    if (make(m, &p, form)) return m;
    no_kernel(&p, m, why, why_size);
    free(m);
    return NULL;
}

/* Where the packed b begins in the scratch memory. */
static size_t packed_at(const DnnlMatmul *m) {
    return m->pack ? (size_t)round_up((int64_t)m->scratch_bytes, 64) : m->scratch_bytes;
}

size_t dnnl_matmul_scratch_bytes(const DnnlMatmul *m) {
    return packed_at(m) + m->packed_bytes;
}

const char *dnnl_matmul_impl(const DnnlMatmul *m) {
    return m->impl;
}

static void set(dnnl_memory_t memory, const void *p) {
    dnnl_status_t s = dnnl_memory_set_data_handle(memory, (void *)(uintptr_t)p);
    if (s != dnnl_success) die("oneDNN does not take an address: status %d", (int)s);
}

static void execute(DnnlMatmul *m, dnnl_primitive_t primitive, int n,
                    const dnnl_exec_arg_t *args) {
    dnnl_status_t s = dnnl_primitive_execute(primitive, m->stream, n, args);
    if (s == dnnl_success) s = dnnl_stream_wait(m->stream);
    if (s != dnnl_success) die("oneDNN's %s failed with status %d", m->impl, (int)s);
}

static void run_one(DnnlMatmul *m, const char *a, const char *b, char *c) {
    dnnl_exec_arg_t args[5];
    int n = 0;
    set(m->a, a);
    set(m->b, b);
    set(m->c, c);
    if (m->pack) {
        const dnnl_exec_arg_t copy[] = {{DNNL_ARG_FROM, m->b}, {DNNL_ARG_TO, m->packed}};
        execute(m, m->pack, ARRAY_LEN(copy), copy);
    }
    args[n++] = (dnnl_exec_arg_t){DNNL_ARG_SRC, m->a};
    args[n++] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, m->pack ? m->packed : m->b};
    args[n++] = (dnnl_exec_arg_t){DNNL_ARG_DST, m->c};
    if (m->bias) args[n++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, m->bias};
    if (m->scratch) args[n++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, m->scratch};
    execute(m, m->primitive, n, args);
}

/* Walks the batch like an odometer; with no batch dimension that is one call. */
static void run_loop(DnnlMatmul *m, const char *a, const char *b, char *c) {
    const DnnlProblem *p = &m->loop;
    int64_t at[DNNL_MAX_BATCH] = {0};
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
    check(scratch || !dnnl_matmul_scratch_bytes(m));
    check(m->threads == 1 || !omp_in_parallel());
    if (m->bias) set(m->bias, bias);
    if (m->scratch) set(m->scratch, scratch);
    if (m->packed) set(m->packed, (char *)scratch + packed_at(m));
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
