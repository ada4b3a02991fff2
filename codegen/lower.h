/* lower.h - inside codegen: from planned functions to LLVM IR.
 *
 * Every function becomes one of LLVM's:
 *     kernel  void k(in..., out..., workspace)
 *     others  void f(products, frame, in..., out...)
 * where all operands and results are pointers, and `products` is the table of matrix
 * products that the program owns (codegen/dnnl.h). The entry is called through
 *     void stator_entry(products, frame, ptr in[], ptr out[]). */
#ifndef STATOR_LOWER_H
#define STATOR_LOWER_H
#include "codegen/cache.h"
#include "codegen/emit.h"
#include "codegen/jit.h"
#include "codegen/product.h"
#include "codegen/rank_part.h"
#include "codegen/rt_call.h"
#include "codegen/target.h"
#include "ir/iteration_space.h"
#include "passes/passes.h"
#include "passes/pipe/op_tasks.h"

typedef struct Product { /* one matrix product of the program */
    const Op *op;
    ProductCode code;
    bool widens; /* its operands are of a type that there are no products of on this CPU:
                    the matmul takes copies of them in f32 */
} Product;

typedef struct OwnFunction { /* generated code for products of one shape */
    OwnProduct product;
    const char *name;
} OwnFunction;

typedef struct Piece { /* see piece.h */
    const char *name;
    char key[CACHE_KEY_CHARS];
    JitObject object; /* as it was kept */
    Emit *code;       /* to be compiled; NULL: there is the object */
} Piece;

typedef struct Lower {
    Arena *mem;
    Module *m;
    Emit *e; /* NULL: only sizes and products are wanted */
    int threads, vl;
    Target *target;
    const char *compiler;    /* what any object depends on: versions, target */
    bool kept_no_more;       /* pieces in the cache are replaced, not taken */
    ProductChoices *choices; /* NULL: products have the form of the rule */
    Product *product;
    int nproducts, product_cap, nrope;
    OwnFunction *own;
    int nown, own_cap;
    Piece *piece;
    int npieces, piece_cap;
    bool log_ops; /* ops tell when they begin and end, by their number in program_ops */
    int64_t nlogged;
    /* the function being lowered */
    LLVMValueRef products, frame, *arg, *ret; /* pointers of the function */
    bool in_entry;
    const Task *task; /* op_tasks of the step of a stage; NULL of others */
    Task told;        /* the last of them that the code has told of */
} Lower;

/* lower_base.c */
LLVMValueRef lower_pointer(Lower *l, const Value *v); /* where a value lives */
/* The workspace of op, behind so many bytes of it. It must have one: its kind a row in the table of
 * workspaces, which says how many bytes are planned. */
LLVMValueRef lower_workspace(Lower *l, const Op *op, int64_t skip_bytes);
/* The same of one that may have none: then nothing may be read or written there. */
LLVMValueRef lower_workspace_if_any(Lower *l, const Op *op);

/* lower.c */
void lower_module(Lower *l, const Func *entry);
/* Bytes of workspace that codegen needs for op besides the frame of a callee, by that table. */
int64_t lower_workspace_bytes(const Op *op, void *lower);

/* lower_dot.c */
/* Of a dot; false: this CPU has no product of such types, only of copies in f32. */
bool lower_product_shape(const Lower *l, const Op *op, ProductShape *shape);
int64_t lower_product_workspace(Lower *l, const Op *op);

/* lower_choose.c: writes the form of every product of the module that has none. */
void lower_choose(Module *m, void *lower);

/* lower_widen.c: v, which is bf16 or f16, as f32 at `to`, which is returned, and from f32 at
 * `from`, rounded; how many bytes such a copy takes. */
int64_t lower_widened_bytes(const Value *v);
LLVMValueRef lower_widened(Lower *l, const Value *v, LLVMValueRef to);
void lower_rounded(Lower *l, const Value *v, LLVMValueRef from);

/* lower_misc.c: of a sum or maximum outside of kernels. */
int64_t lower_reduce_workspace(Lower *l, const Op *op);
/* A constant array of n i64 in the module. */
LLVMValueRef lower_numbers(Lower *l, int n, LLVMValueRef *item);
/* to = from, contiguous, `from` with strides by dimension of `to`. */
void lower_spread(Lower *l, LLVMValueRef to, LLVMValueRef from, int rank,
                  const int64_t *size, const int64_t *stride, DType dt);

/* lower_attn.c */
int64_t lower_attention_workspace(Lower *l, const Op *op);

/* lower_comm.c: 0 in groups of one. */
int64_t lower_comm_workspace(Lower *l, const Op *op);
/* Code says which task of a pipeline the step is at from this op on, if it is another one. */
void lower_tell_task(Lower *l, const Op *op);

/* lower_kernel.c */
void lower_kernel(Lower *l, const Func *kernel);
int64_t kernel_workspace_bytes(Arena *mem, const Func *kernel, int threads);

/* lower_map.c: the scalar function of a MAP op on whole vectors or on scalars. */
typedef struct MapContext {
    Emit *e;
    const Op *op;
    LLVMValueRef *in;     /* values; pointers for operands that are tables */
    LLVMValueRef column;  /* i32 vector: index in the last dimension */
    LLVMValueRef element; /* i64 scalar: index of the first lane in the tensor; NULL where
                             the op has one number a row */
    LLVMValueRef row;     /* i64 scalar: index of the first element of the row */
    int64_t inner;        /* elements of a row */
    /* of dropout: where its elements are in the step's tensor */
    const Part *part;       /* NULL: this is the whole tensor, in order */
    LLVMValueRef base;      /* of its first element; with a part, part_base included */
    LLVMValueRef first_row; /* part_first_row; NULL without a part */
} MapContext;
typedef LLVMValueRef (*MapEmitter)(MapContext *);
extern const MapEmitter map_emitter[]; /* by op kind; NULL: not a MAP op */

/* one per OP row of ops.def, in lower_*.c, but for those that are lowered as another one is */
#define lower_all_reduce            lower_collective
#define lower_all_gather            lower_collective
#define lower_reduce_scatter        lower_collective
#define lower_all_to_all            lower_collective
#define lower_ring_shift            lower_collective
#define lower_attention_within      lower_attention
#define lower_attention_each        lower_attention
#define lower_attention_within_grad lower_attention_grad
#define lower_rope_table_each       lower_rope_table
#define OP(name, ...)               void lower_##name(Lower *l, const Op *op);
#define MAP(...)
#define COMPOSITE(...)
#include "ir/ops.def"
#undef OP
#undef MAP
#undef COMPOSITE

/* Of a function of the module, in the generated code. Names of the IR have no colon, so no other
 * generated function has the name, nor one that begins with it and a colon. */
const char *lower_symbol(Lower *l, const Func *f);
/* An op or element type that code generation cannot do: the user's failure. */
_Noreturn void lower_refuse(const Op *op, const char *why);

#endif
