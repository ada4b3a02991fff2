/* op_size.h - what an op takes of a machine, as numbers without the IR: the shape of a
 * product, elements, bytes, what a collective sends. From these its seconds follow on any
 * machine; and those of a micro-batch of another size, since each number grows with it in a
 * straight line or not at all. */
#ifndef STATOR_OP_SIZE_H
#define STATOR_OP_SIZE_H
#include "passes/cost/message.h"
#include "passes/model/work.h"

typedef enum SizeKind {
    SIZE_PRODUCT,    /* a matmul */
    SIZE_INNER,      /* an op with matmuls inside */
    SIZE_ELEMENTS,   /* a kernel, or an op that moves bytes */
    SIZE_COLLECTIVE, /* at once, or begun */
    SIZE_ARRIVE,     /* the wait for one that was begun */
    SIZE_CALL        /* of a function with ops of its own */
} SizeKind;

typedef struct ElementCount {
    int op; /* OpKind */
    double count;
} ElementCount;

/* What ops did. */
typedef struct Done {
    double bytes, flops;
} Done;

/* Numbers that grow with the micro-batch: doubles alone, since a search reckons them one by one. */
typedef struct OpNumbers {
    ProductSize product;
    double flops, first; /* elements of the first operand */
    double bytes;        /* moved; of a collective what a rank sends */
    double written;      /* of these: results */
    double overwritten;  /* of these: where an operand was */
    double near;         /* of those read: touched by an op just before in its function */
    Done since_near;     /* what the function does from then on, at most */
    Done since_read;     /* and what is done since the others were touched */
    Done since_written;  /* and since the places of results were */
} OpNumbers;

typedef struct OpSize {
    SizeKind kind;
    WorkKind work;
    int op; /* OpKind */
    DType type;
    DType products; /* of most flops of its function */
    ProductForm form;
    int64_t width; /* last dimension of the first operand */
    OpNumbers n;
    ElementCount *element;
    int nelements;
    Axes axes; /* of a collective */
    bool late;
    int begun;  /* of arrive: the row that it waits for */
    int callee; /* of a call: Func.nth */
    double times;
} OpSize;

/* The ops of a function in their order, without those that take no time. */
typedef struct OpSizes {
    OpSize *size;
    int n, cap;
} OpSizes;

/* Sizes with another micro-batch than the program has: dimensions that `factor` divides, a
 * prime that divides no other, are taken as `times` for each `factor`. NULL: as they are. */
typedef struct SizeScale {
    int64_t factor, times;
} SizeScale;
int64_t scaled_bytes(const SizeScale *scale, const Type *t);

/* Of an op that computes, or a collective; in_model as for op_work_kind. */
OpSize op_size(Arena *mem, const Op *op, bool in_model, const SizeScale *scale);
/* Adds an op, if it takes time; in_model as for op_work_kind. The function of `sizes` has
 * been numbered; row[op id] is set to its place, or -1. */
void op_sizes_add(Arena *mem, OpSizes *sizes, const Op *op, bool in_model,
                  const SizeScale *scale, int *row);

/* Seconds of a product, an inner op or elements in one run, and the start of an op. Products take what
 * they do at the rate of their shape, or their bytes at that of memory if this is longer. Elements take
 * what their bytes take and what they are computed in besides: their rates are those of numbers in
 * caches, and are what an op adds to moving them.
 * Operands have the rates of the bytes that are moved from one use to the next, and of the time that
 * this takes (`since_near`, ..., set by func_sizes; unset: as many as the op moves). */
double op_size_seconds(const Machine *m, const MachineRank *r, const OpSize *s);

/* Bytes that a rank sends in a collective: those of the size, or where sums over ranks have
 * another width on the machine, as many of that width. */
double op_size_sent_bytes(const Machine *m, const OpSize *s);

#endif
