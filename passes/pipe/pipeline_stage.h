/* pipeline_stage.h - inside of pass pipeline: the steps of the stages while they are made. What a
 * stage has of the values of the flat step, what it sends and receives, and the ops that it gets,
 * in the order that pipeline.c decides. */
#ifndef STATOR_PIPELINE_STAGE_H
#define STATOR_PIPELINE_STAGE_H
#include "passes/pipe/flat.h"

typedef struct Sent { /* a message that is not yet waited for */
    Value *token, *value;
    int to;
    int64_t message;
    int64_t received; /* the how manieth that its stage received; 0: not yet */
    struct Sent *next;
} Sent;

typedef struct Stage {
    Func *f;
    Builder b;
    Value **any;   /* of values that every stage makes for itself, by Pipe.nth_any */
    bool *emitted; /* by op id */
    int next;      /* task of its list */
    Op **ops;      /* of the flat step, that are of this stage alone; then NULL */
    Op **rest;     /* of these: behind the tasks the next one to look at */
    double now;    /* unit time, for the order */
    Op *at; /* what it does next, once op_at has said so; NULL: it is to be asked */
    const Value
        *why; /* of `at`: what was not there yet; NULL: all is there, at `ready` */
    double ready;
    Sent *sent;       /* oldest first */
    int64_t received; /* messages so far */
    int64_t *
        known; /* by stage: as many as it had received when it sent what came here last */
} Stage;

typedef struct Edge { /* a value that a stage gets from the one that makes it */
    int to;
    int64_t message;
    Sent *sent;       /* NULL: not made yet */
    Value *here;      /* what the stage received; NULL: nothing yet */
    int64_t received; /* messages that its maker had received when it sent this */
    double at;
    struct Edge *next;
} Edge;

/* What must be done for an op: other ops of the stage in their order and it itself, and
 * values to receive. `why` (or NULL): a value that is not there yet. */
typedef struct Need {
    Op **list;
    const Value **foreign;
    int n, nforeign;
    const Value *why;
    double at;  /* when all of it is there */
    Op **stack; /* scratch */
    int *operand, *seen, nth;
} Need;

typedef struct Pipe {
    Module *m;
    const PipeSchedule *s;
    Arena *mem;
    Flat flat;
    int *op_stage, *value_stage; /* by id; ANYWHERE */
    Edge **edge;                 /* by value id */
    Value **own;                 /* by value id: what its stage has */
    int *nth_any, nany;          /* by value id, of those that are ANYWHERE */
    Value **map;                 /* by value id: scratch of emit */
    Op ***reader;                /* by value id: ops that read it, ended by NULL */
    Stage *stage;
    int64_t *messages; /* by pair of stages: how many so far */
    Need *need;        /* of pipe_collect */
} Pipe;

enum { ANYWHERE = -1 }; /* as func_arg_stage says it */

/* Once op_stage, value_stage, edge and reader are there: steps with their arguments, and what is
 * sent of those; later their results. */
void pipe_stages_begin(Pipe *p, const Func *step);
void pipe_stages_end(Pipe *p);

/* NULL: the stage gets v from no other. */
Edge *pipe_edge_to(const Pipe *p, const Value *v, int stage);
/* Lists in p->need what the op needs; false: something is not there yet. */
bool pipe_collect(Pipe *p, int stage, Op *first);
/* Receives and emits what is listed, and ops that can follow at once; it takes so long. */
void pipe_emit(Pipe *p, int stage, double seconds);

#endif
