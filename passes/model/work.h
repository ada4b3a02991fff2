/* work.h - what a step takes of the machine: floating-point operations, and bytes between its
 * ops and memory; what it does, what the mathematics needs of it, and the time below which
 * that cannot be. docs/plan.md defines both. */
#ifndef STATOR_WORK_H
#define STATOR_WORK_H
#include "passes/passes.h"

typedef enum WorkKind {
    WORK_PRODUCTS,  /* matmuls */
    WORK_ATTENTION, /* other ops that are matmuls inside */
    WORK_KERNELS,   /* elementwise ops, reductions, lookups of the model */
    WORK_UPDATE,    /* the same outside of the model: norm of the gradient, optimizer */
    WORK_COPIES,    /* what puts elements elsewhere, or rounds them */
    WORK_MESSAGES,  /* operands and results of collectives and messages, on this rank */
    WORK_KINDS
} WorkKind;
extern const char *const work_kind_name[WORK_KINDS];

/* Those of products of bf16 numbers are counted apart: another unit makes them. */
typedef struct WorkSum {
    double f32_flops, bf16_flops, bytes;
} WorkSum;

/* A rank's, a second; 0: not known. */
typedef struct WorkRates {
    double f32_flops, bf16_flops, bytes;
} WorkRates;

/* An op, in one run of it. */
typedef struct WorkRow {
    WorkKind kind;
    WorkSum one;
    double runs; /* in a step */
} WorkRow;

typedef struct Work {
    WorkRow *row;
    int n, cap;
} Work;

/* Bytes of an op: each operand and each result once; of an operand of which it takes a part
 * (slices, lookups) no more than it gives. None of what only renames memory, or waits. */
double op_bytes(const Op *op);
/* The same where bytes(type, ctx) are those of a value. */
double op_bytes_by(const Op *op, double (*bytes)(const Type *, const void *),
                   const void *ctx);
/* Flops of an op: op_flops, and one for each element of each op of a kernel. */
double op_run_flops(const Op *op);
/* in_model: it is run by the model, not by the step around it. */
WorkKind op_work_kind(const Op *op, bool in_model);
/* Adds what so many runs of an op take to the sums, by kind. */
void work_add_op(WorkSum sum[WORK_KINDS], const Op *op, bool in_model, double runs);

/* How often each function runs in one run of `entry`; `order`: module_order. */
double *func_runs(Arena *mem, Func **order, const Func *entry);

WorkSum work_sum(const Work *w, WorkKind kind);    /* all runs of its ops of a kind */
WorkSum work_total(const WorkSum sum[WORK_KINDS]); /* of all kinds */
/* Of its ops of a kind, in a step: for each op what its flops take at their rate or its bytes
 * at theirs, whichever is more. Needs the rates of what there is (work_asks_bf16). */
double work_bound_seconds(const Work *w, WorkKind kind, const WorkRates *r);
double work_bound_total(const Work *w, const WorkRates *r);
bool work_asks_bf16(const Work *w);

/* Adds the products that the mathematics of a step needs, on a rank of each stage:
 * work[stage]. Takes a module at level global, under its strategy (o), which is changed: what
 * the text or `o` asks to be made again is not. */
void work_add_needed(Arena *mem, Module *m, const PassOptions *o, Work *work);
/* Adds the update as a row: each parameter and state that the step overwrites is read and
 * written once, and the gradient read; of a parameter the part that this rank updates. */
void work_add_update(Arena *mem, const Func *step, Work *work);

#endif
