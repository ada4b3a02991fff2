/* simulate.h - what the files of the command `simulate` share: all ranks of a strategy in one
 * process, run by the interpreter, against one rank of the same model on the same batches.
 * The order of a simulation: the plan of the configuration -> simulate_shrink ->
 * simulate_data_open -> simulate_ranks_new -> once a step simulate_data_next and simulate_step
 * -> simulate_compare -> simulate_print. docs/simulate.md describes what is shown. */
#ifndef STATOR_SIMULATE_H
#define STATOR_SIMULATE_H
#include "frontend/plan/plan.h"

enum {
    SIMULATE_MOST_RANKS = 4096, /* in one process */
};

/* ---- simulate_shrink.c: a smaller model under the same strategy ---- */

/* A number that is another one in the simulation. */
typedef struct SimulateChange {
    const char *what, *was, *is;
} SimulateChange;

typedef struct SimulateJob {
    Job job;
    bool shrunk;
    int64_t data_vocab; /* tokens of the configuration's data are below */
    SimulateChange *change;
    int nchanges, cap_changes;
    /* What the configuration says nothing of: options of the passes. */
    int64_t tile_bytes, tile_rows;
    double eps, loss_scale;
} SimulateJob;

/* The job of a plan, made as small as its strategy lets it be; `full`: as it is. A model.file
 * has its sizes in its text and stays as it is, too. The rules are in docs/simulate.md. */
SimulateJob simulate_shrink(Arena *mem, const Plan *plan, bool full);
/* Sets what differs from a run in the options of the passes. */
void simulate_tune(const SimulateJob *s, PassOptions *o);

/* ---- simulate_data.c ---- */

/* The batches of both: those of the configuration's data, else random ones. */
typedef struct SimulateData {
    const Job *job;
    Data *source;  /* NULL: random tokens */
    int64_t vocab; /* tokens are below; 0: as they are */
    DataBatch batch;
    int64_t counted;  /* labels of the batch that count */
    const char *what; /* for people */
} SimulateData;

/* `random`: whatever data the configuration names. Fails as train does for data that are
 * there and cannot be read. */
SimulateData simulate_data_open(Arena *mem, const SimulateJob *s, int64_t steps,
                                bool random);
/* Fills `batch` and `counted`: all rows of step `step`, from 0 on. */
void simulate_data_next(SimulateData *d, int64_t step);

/* ---- simulate_ranks.c ---- */

/* Ranks of a program in the interpreter, with what they hold: of a strategy, or the one. */
typedef struct SimulateRanks {
    Arena *mem;
    const Job *job;
    double loss_scale;
    int ranks, stages; /* of a stage; stages */
    InterpStep *step;  /* by stage */
    int64_t zigzag;    /* order of tokens; 0: as they come */
    int64_t runs;      /* of the model in a step */
    const InterpWatch *watch;
} SimulateRanks;

/* Weights of the seed, optimizer states of zeros. */
SimulateRanks simulate_ranks_new(Arena *mem, const SimulateJob *s, const Func **entry,
                                 int stages, int64_t zigzag, int64_t runs);

/* What a step came to on rank 0. */
typedef struct SimulateStep {
    double loss, norm;
    bool good;      /* on every rank: an update was made */
    int other_rank; /* the first that has another loss or norm than rank 0; 0: none */
    double other_loss, other_norm; /* those */
} SimulateStep;
/* Step `step`, from 0 on, on that batch. Fails with EXIT_CONFIG when ranks wait for each
 * other for ever. */
SimulateStep simulate_step(SimulateRanks *r, const SimulateData *d, int64_t step);

/* ---- simulate_compare.c ---- */

typedef enum SimulateNumber {
    SIMULATE_LOSS,
    SIMULATE_NORM,
    SIMULATE_WEIGHTS,
    SIMULATE_STATES,
    SIMULATE_NUMBERS
} SimulateNumber;
extern const char *const simulate_number_name[SIMULATE_NUMBERS];
/* Relative differences that rounding explains, by the type of the factors of products. */
const double *simulate_tolerance(DType narrow);

typedef struct SimulateCompare {
    double difference[SIMULATE_NUMBERS];  /* the largest */
    const char *tensor[SIMULATE_NUMBERS]; /* of which; NULL: of none */
} SimulateCompare;
/* Of weights and states after the steps; `before`: the weights of the one rank by argument
 * before them. Every copy on every rank counts. */
void simulate_compare(SimulateCompare *c, const SimulateRanks *ranks,
                      const SimulateRanks *one, float *const *before);
/* A copy of the weights, by argument. */
float **simulate_keep_weights(const SimulateRanks *one);

/* ---- simulate_traffic.c: what ranks send ---- */

typedef struct SimulateTraffic {
    int stage;
    const char *kind, *axes;        /* "all_reduce", "dp.cp"; "send", "next stage" */
    int64_t operations, sent_bytes; /* of a rank in the steps that were run */
    int64_t planned_operations, planned_bytes; /* of a rank in a step, by the plan */
} SimulateTraffic;
typedef struct SimulateTraffics {
    Arena *mem;
    SimulateTraffic *row;
    int n, cap;
} SimulateTraffics;
InterpWatch simulate_traffic_watch(SimulateTraffics *t);
/* Adds what the plan says. */
void simulate_traffic_plan(SimulateTraffics *t, const Plan *p);

/* ---- the whole ---- */

typedef struct Simulation {
    Arena *mem;
    const Plan *plan;       /* of the configuration */
    const SimulateJob *job; /* what is simulated */
    const Plan *shrunk;     /* its plan; of --ir that of the job nevertheless */
    const char *ir;         /* the text that ranks run; NULL: what the passes make */
    SimulateData data;
    int64_t steps;
    SimulateStep *ranks, *one; /* by step */
    SimulateCompare compare;
    SimulateTraffics traffic;
    double plan_seconds, run_seconds;
} Simulation;

/* Everything but the printing. `ir`: a text of the steps of all ranks, or NULL. */
void simulate_run(Simulation *s);
/* Is everything within the tolerance, and sent what was planned? */
bool simulate_passes(const Simulation *s);
void simulate_print(const Simulation *s, Text *out);
/* The line of ranks, stages and steps that it begins with. */
void simulate_print_ranks(Arena *mem, const Plan *p, int64_t steps, Text *out);

#endif
