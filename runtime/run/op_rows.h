/* op_rows.h - what is known of the ops of a program before it runs, by the number that
 * op_log.h has of each; and of the marks there. */
#ifndef STATOR_OP_ROWS_H
#define STATOR_OP_ROWS_H
#include "runtime/core/op_log.h"
#include <stdbool.h>

typedef struct OpRow {
    const char *name;  /* for people: "dot qkv", "gelu_grad+sum d.h", "@layer.fwd x 12" */
    const char *kind;  /* "dot", "kernel", "call" */
    const char *where; /* "@layer.fwd calls @k9, model.ir:12", as far as it is known */
    int64_t runs;      /* in a step */
    /* Of one run, of matmuls, attention and kernels: two flops for a multiplication of a matmul,
     * one for an element of anything else. */
    double flops;
    double bytes; /* of one run: what it reads and writes at least, each operand once */
    bool nests;   /* ops that have rows too run inside it */
    bool waits;   /* for other ranks */
    bool stages;  /* is a message between stages */
    int work;     /* WorkKind of passes/model/work.h; of one that nests nothing */
    int task;     /* its number among the tasks of a stage; -1: it is none */
} OpRow;

/* Those of the marks, and of the ops of a program by `number`. */
const OpRow *op_row(const OpRow *op, int64_t number);

#endif
