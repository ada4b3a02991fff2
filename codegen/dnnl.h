/* dnnl.h - matrix products by oneDNN: a thin shim, the only user of oneDNN's header.
 * Works with oneDNN 2.6 and 3.x; both numbers must agree between header and library. */
#ifndef STATOR_DNNL_H
#define STATOR_DNNL_H
#include "base/base.h"
#include "base/dtype.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DNNL_MAX_RANK = 12 };

/* One operand: `stride` counts elements. Any strides > 0 will do, transposed ones too. */
typedef struct DnnlDesc {
    int rank;
    int64_t dim[DNNL_MAX_RANK], stride[DNNL_MAX_RANK];
    DType dtype;
} DnnlDesc;

/* c[..., m, n] (+)= a[..., m, k] b[..., k, n] + bias[n], on `threads` threads. */
typedef struct ProductShape {
    DnnlDesc a, b, c, bias; /* bias.rank 0: there is none */
    int adds, threads;      /* adds: to what c holds */
    /* Yes: the CPU has tile registers, dots (target.h); for generated code, as oneDNN sees to that
     * itself. */
    int tiles, dots;
} ProductShape;

typedef struct DnnlMatmul DnnlMatmul;

/* Which of oneDNN's kernels, and how they are given b. */
typedef enum DnnlForm {
    DNNL_RULE,          /* a fixed rule, by the shape */
    DNNL_GEMM,          /* the classic gemm, which packs both factors */
    DNNL_BRGEMM,        /* brgemm, b where it is */
    DNNL_BRGEMM_PACKED, /* brgemm, b copied into its layout in each run */
    DNNL_FORMS
} DnnlForm;

/* All operands have c's rank (2 or more); a leading dimension of a and b is c's or 1
 * (broadcast). bias is [n] after leading ones, contiguous. a and b are both f32
 * (then c and bias too) or both bf16 (c and bias f32 or bf16). Every matrix needs one unit
 * stride, in rows or in columns; with a bias, c along n. Costs up to milliseconds: oneDNN
 * generates code.
 * NULL, and a sentence in `why`, when the operands are not of this form, when the library
 * does not fit the header, or when there is no fast path for them on this CPU (bf16 without
 * AVX-512) or in this DnnlForm: never a slow reference implementation. */
DnnlMatmul *dnnl_matmul_new(const ProductShape *s, DnnlForm form, char *why,
                            size_t why_size);
/* "2.6.3": the library that is loaded. */
const char *dnnl_version_text(Arena *mem);

/* Bytes of scratch memory that each run needs, 64-byte aligned; 0 means none. */
size_t dnnl_matmul_scratch_bytes(const DnnlMatmul *m);

/* Name of the implementation, for the plan: "brg:avx512_core", "gemm:jit", ... */
const char *dnnl_matmul_impl(const DnnlMatmul *m);

/* Runs the product. Operands as described at creation, bias NULL if there was none.
 * One run of an `m` at a time; different ones may run at once with their own scratch.
 * Dies when oneDNN refuses (it has accepted the shape at creation). */
void dnnl_matmul_run(DnnlMatmul *m, const void *a, const void *b, const void *bias,
                     void *c, void *scratch);
void dnnl_matmul_free(DnnlMatmul *m);

#endif
