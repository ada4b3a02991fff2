/* autodiff_pair.h - what autodiff makes of a function that is called: @f.fwd, which also returns
 * what backward reads, and @f.bwd, with what that is given and gives back. */
#ifndef STATOR_AUTODIFF_PAIR_H
#define STATOR_AUTODIFF_PAIR_H
#include "passes/passes.h"

/* What @f.bwd is given; those up to SLICED_INPUT are cut into slices by a loop's runs. */
typedef enum InputKind {
    CARRIED_INPUT, /* the gradient of result i, which a loop carries back */
    SUM_INPUT,     /* what is added up for argument i, which all runs see */
    RESULT_INPUT,  /* the gradient of result i */
    SAVED_INPUT,   /* value i of those that forward saved */
    SLICED_INPUT,  /* argument i of forward, of which each run sees a slice */
    SHARED_INPUT   /* argument i of forward */
} InputKind;
typedef struct Input {
    InputKind kind;
    int i;
} Input;

typedef struct Pair {   /* @f.fwd and @f.bwd for one pattern of use */
    Call call;          /* of f: the first that uses it so */
    const bool *wants;  /* per argument */
    const bool *cot;    /* per result: does a gradient come in? */
    const char *remake; /* what backward makes again; NULL: views of arguments alone */
    Func *fwd, *bwd;
    /* what backward reads: arguments of f, or extra results of fwd (from f->nret on) */
    int *saved_arg, nsaved_arg;
    int nsaved;
    Input *input; /* operands of the backward call, in their order */
    int ninput;
    int *output; /* its results: gradients of these arguments of f */
    int noutput;
    struct Pair *next;
} Pair;

/* In p->fwd the ops up to `last` are followed by those of backward, which give `grads` by argument
 * and read the last `ncot` arguments, cot by result. Moves those into p->bwd. */
void pair_split(Pair *p, Op *last, Value **cot, int ncot, Value **grads,
                const PassOptions *o);

/* "d.x" for the gradient of x, and the like. */
void grad_name(Arena *mem, Value *grad, const char *prefix, const Value *of);
/* A gradient is split like what it is the gradient of; its sums may be finished later. */
void grad_lie_like(Value *grad, const Type *ty);
/* That of argument i of f (NULL: of none) has the placement of its parameter, or is sharded over
 * its replicas at once. */
void grad_place(const PassOptions *o, const Func *f, int i, Value *grad);
Value *grad_zeros(Builder *b, const Type *ty);

#endif
