/* layer.h - how one layer is split over the ranks of one axis: where every value of it lies,
 * what every op of it is split over, forward and backward, what that takes on a machine, and
 * the choice that takes the least. START HERE.
 *
 * What is chosen are seeds: for each name of a layer's values, and for each parameter, one
 * dimension or none. All else follows as pass shard decides it, op by op, so a choice can be
 * had by entries of parallel.shard. docs/search.md says which ops' decisions are taken as
 * sure, and leaves those out in which bytes would decide between operands. */
#ifndef STATOR_LAYER_H
#define STATOR_LAYER_H
#include "ir/placement.h"
#include "passes/estimate/func_seconds.h"
#include "passes/layer/eliminate.h"

/* A placement over the axis: whole, dimension d split (1 + d), or a partial sum, which is
 * behind the dimensions: 1 + rank. */
enum { PLACE_WHOLE = 0 };

/* Values that have one name, and so one seed. */
typedef struct LayerGroup {
    const char *func; /* of the value; NULL: an argument of the model, a parameter */
    const char *name;
    Type ty;      /* of the first; of a parameter that of one layer */
    unsigned may; /* bit d: dimension d can be split */
    bool param;
} LayerGroup;

/* An op is computed whole, hands a partial sum on, or is split over a letter (its id). */
enum { OVER_WHOLE = -1, OVER_PASS = -2 };

/* One way to compute an op, and what decides for it. */
typedef struct LayerOption {
    int letter;   /* OVER_WHOLE, OVER_PASS, or a dimension id */
    int priority; /* of the terms whose split decides */
    int voter;    /* one of them that is split so; -1: some is, or none need be */
    unsigned pending, finished; /* operands that must be, must not be partial sums */
} LayerOption;

typedef struct LayerOp {
    const Op *op;
    Over over;           /* its dimensions, split nowhere */
    int *in, *out;       /* values */
    LayerOption *option; /* none: its results are free */
    int noptions, cap;
    bool exact;      /* its options say which term decides */
    double *seconds; /* by letter + 1, whole first */
} LayerOp;

typedef enum LayerSource {
    FROM_OP,
    FROM_GROUP, /* an argument that lies as its seed says */
    FROM_SAVED, /* what forward handed to backward */
    FROM_WHOLE  /* an argument that every rank has */
} LayerSource;

typedef struct LayerValue {
    const Value *v;
    LayerSource source;
    int op;    /* that makes it */
    int saved; /* the value of forward that it is */
    int group; /* whose seed places it; -1: none does */
    bool open; /* a gradient: its seed counts less, and its sum may stay open */
    bool returned;
    bool free;    /* every rank makes any part of it */
    DType sum;    /* in which ranks add up their parts of it */
    int priority; /* as an operand: how much its split counts, as in pass shard */
    int reads;    /* by ops, and by ends of runs that bring it to a placement */
} LayerValue;

typedef enum LayerEnd { END_CARRIED, END_GRADIENT, END_SAVED } LayerEnd;
typedef struct LayerReturn {
    LayerEnd end;
    int value;
    int to; /* the argument that the next run gets it as */
} LayerReturn;

typedef enum LayerPart {
    PART_OF_FORWARD,
    PART_OF_BACKWARD,
    PART_OF_STEP,
    LAYER_PARTS
} LayerPart;
extern const char *const layer_part_name[LAYER_PARTS];

/* What solving one graph has shown, for others of the same model. */
typedef struct LayerKnown {
    Arena *mem;
    FactorOrders *orders;
    bool *exact; /* by op: it had to say which term decides */
    int nops;    /* of the last graph */
} LayerKnown;
LayerKnown *layer_known(Arena *mem);

typedef struct LayerGraph {
    Arena *mem;
    Module *m;
    const Func *func[2]; /* forward, backward */
    int first_value[2];  /* of a function; its values are in the order of their ids */
    int first_op[2];
    LayerGroup *group;
    int ngroups, group_cap;
    LayerOp *op;
    int nops, op_cap;
    LayerValue *value;
    int nvalues, value_cap;
    LayerReturn *ret;
    int nrets, ret_cap;
    int ranks;
    double micro;     /* micro-batches of a step */
    double states;    /* bytes of the optimizer over those of a parameter */
    double copies;    /* bytes of a parameter with gradient and states, over its own */
    double in_flight; /* micro-batches whose kept values a rank has at once */
    LayerKnown *known;
    /* the machine */
    const Machine *machine;
    const MachineRank *rank;
    GroupShape shape;
    double stretch;
} LayerGraph;

typedef struct LayerMachine {
    const Machine *machine;
    int threads; /* of a rank */
} LayerMachine;

/* From a module at level global, simplified, without seeds, and with options of its strategy;
 * the module is made `diffed` and belongs to the graph then. n: ranks of the axis. Fails with
 * EXIT_CONFIG for a model without one loop over layers. */
LayerGraph *layer_graph(Arena *mem, Module *m, const PassOptions *o, int n,
                        LayerMachine machine);

/* A choice, made or read off a program. */
typedef struct LayerChoice {
    int *seed;   /* by group: PLACE_WHOLE (none), or 1 + dimension */
    int *letter; /* by op */
    int *place;  /* by value */
} LayerChoice;
LayerChoice *layer_choice_new(Arena *mem, const LayerGraph *g); /* zeros */

/* What it takes. */
typedef struct LayerMessages {
    double count[LAYER_PARTS][OP_COUNT],
        bytes[LAYER_PARTS][OP_COUNT]; /* of a run; sent */
} LayerMessages;
typedef struct LayerCost {
    double
        seconds; /* of a layer, forward and backward, of a micro-batch; with its share of
                       what is done once a step */
    double compute, messages, step;  /* parts of that */
    double weight_bytes, kept_bytes; /* of a layer: parameters with gradients and states;
                                        what is kept for backward */
    LayerMessages sent;
} LayerCost;
LayerCost layer_cost(const LayerGraph *g, const LayerChoice *c);

/* The choice with the fewest seconds, where a byte of a layer costs so many besides. Its
 * objective to *least; NULL: there is none. Makes ops of the graph exact where it must, or did
 * in another graph. */
typedef struct LayerPrice {
    double seconds_per_byte;
} LayerPrice;
LayerChoice *layer_solve(Arena *mem, LayerGraph *g, LayerPrice p, double *least);
/* The problem itself, for other solvers. */
typedef struct LayerProblem {
    Factors f;
    int *group_var, *op_var, *value_var, *need_var; /* -1: none */
} LayerProblem;
LayerProblem layer_problem(Arena *mem, const LayerGraph *g, LayerPrice p);
/* The fewest seconds with at most so many bytes of a layer on a rank (0: any), by the price
 * of a byte at which they fit; *bound: no choice that fits is faster. NULL: none fits. */
LayerChoice *layer_solve_within(Arena *mem, LayerGraph *g, double limit_bytes,
                                double *bound);

/* Off the same module as pass shard has placed it. NULL, and why: the ops are others. */
LayerChoice *layer_read(Arena *mem, const LayerGraph *g, const Module *sharded,
                        const char **why);
/* The messages of the two functions of a program at level local. */
LayerMessages layer_messages(const Module *local);

/* ---- within the room ---- */

/* cost.c: what a way to bring a value from one placement to another sends. */
typedef struct Move {
    int op; /* OpKind of the collective; -1: none */
    double bytes, seconds;
    bool can;
} Move;
Move layer_move(const LayerGraph *g, const LayerValue *x, int from, int to);
/* options.c. Where the axis, one of the mesh's, has a value of this type. */
int layer_place(const Type *t, Axes axis);
/* Placement that operand i must have when the op is split over the letter, and that result
 * i then has. With OVER_PASS `was` is the operand's own. */
int layer_need(const LayerOp *op, int letter, int i, int was);
int layer_gives(const LayerOp *op, int letter, int i);
static inline int place_pending(const Type *t) {
    return 1 + t->rank;
}
/* What it takes over each letter; and the ways to compute it. */
void layer_time_op(LayerGraph *g, LayerOp *op);
void layer_options(LayerGraph *g, LayerOp *op);
/* Is there a term that decides for the option? */
bool layer_decided(const LayerGraph *g, const LayerOp *op, const LayerOption *o,
                   const LayerChoice *c);
/* May term t (operands, then results) of the op have this placement under the option?
 * place: of an operand that of its value, of a result its seed. */
bool layer_allows(const LayerGraph *g, const LayerOp *op, const LayerOption *o, int t,
                  int place);
/* graph.c: the loops over layers, forward and backward; NULL, or what is wrong with the model. */
const char *layer_loops(const Module *m, const Op *loop[2]);
/* cost.c: seconds once a step, as a share of a micro-batch, of a parameter with that seed. */
double layer_update_seconds(const LayerGraph *g, const LayerGroup *k, int seed);
double layer_weight_bytes(const LayerGraph *g, const LayerGroup *k, int seed);
/* Bytes that a rank keeps of a value for backward where it lies so. */
double layer_kept_bytes(const LayerGraph *g, int value, int place);

#endif
