/* plan.h - what a training program does on a rank, read off its planned module:
 * placements, collectives, memory, work. `stator plan` makes the module for it; `stator
 * train` has one. All ranks run one program, so one plan is that of every rank.
 * docs/plan.md describes what is written. */
#ifndef STATOR_PLAN_H
#define STATOR_PLAN_H
#include "frontend/model/job.h"
#include "passes/estimate/step_seconds.h"
#include "passes/model/work.h"
#include "passes/pipe/schedule.h"
#include "runtime/run/timeline.h"

/* Where in the program something happens. */
typedef enum PlanPart {
    PLAN_FORWARD,  /* layers, forward */
    PLAN_BACKWARD, /* layers, backward */
    PLAN_MODEL,    /* of the model outside of its layers: embedding, head, loss */
    PLAN_STEP,     /* outside of the model, once a step: gradients, norm, optimizer */
    PLAN_PARTS
} PlanPart;
extern const char *const plan_part_name[PLAN_PARTS];

/* Collectives of one kind over the same axes in one function, in one run of it. Bytes are
 * those of one rank, and so are operations: an operation is one collective, whose
 * operands (several in a bucket) go together. */
typedef struct PlanComm {
    const char *kind, *axes, *function; /* "all_reduce", "dp.cp", "layer.fwd" */
    int model; /* 0, or of which of the models that pass inline put into the function */
    PlanPart part;
    int group;          /* ranks that take part */
    int64_t runs;       /* of the function in a step */
    int64_t micro_runs; /* in every micro-batch; 0: not in each of them */
    int64_t operations, operands;
    int64_t bytes;      /* of the operands */
    int64_t sent_bytes; /* see message_sent_bytes */
} PlanComm;

/* All collectives over the same axes. */
typedef struct PlanTraffic {
    const char *axes;
    int group;
    int64_t operations, sent_bytes;             /* of a rank in a step */
    int64_t micro_operations, micro_sent_bytes; /* of the micro-batch that has least */
} PlanTraffic;

typedef struct PlanParam {
    const char *name;
    const char *placement;   /* "f32[12,768,3072:tp]": the global tensor and its splits */
    const char *weight_axes; /* further axes that cut the flattened weight, "" for none */
    const char *state_axes;  /* the same of the optimizer's states */
    bool flattened;          /* stored as one padded row for each part */
    int64_t count;      /* elements of the global tensor, of the layers that it has */
    int64_t rank_count; /* elements on a rank, with padding */
    int64_t weight_bytes, gradient_bytes, state_bytes; /* on a rank */
} PlanParam;

/* Matrix products of one shape and form. */
typedef struct PlanProduct {
    int64_t batch, m, n, k;    /* batch: how many of them are one op */
    const char *type, *result; /* of the factors; of the result */
    const char *form; /* of codegen/product.h; "rule": nothing was chosen for it */
    int64_t runs;     /* in a step */
} PlanProduct;

/* Messages that a stage sends another one. */
typedef struct PlanMessages {
    int to;
    int64_t messages, bytes; /* of a rank in a step */
} PlanMessages;

/* What all stages of a pipeline are to each other. */
typedef struct PlanPipe {
    const PipeSchedule *schedule;
    const int64_t *layers;       /* by chunk */
    struct Plan *stage;          /* [schedule->stages] */
    double (*flops)[TASK_KINDS]; /* of a rank, by chunk: of a task */
    char hash[HASH_HEX_BYTES];   /* of the hashes of all */
} PlanPipe;

typedef struct Plan {
    const PlanPipe *pipe; /* NULL: there is one stage */
    int stage;            /* that this is the plan of */
    PlanMessages *messages;
    int nmessages;
    const Job *job; /* what the module alone does not say */
    const Module *m;
    const Func *entry;
    int ranks;
    PlanParam *param;
    int nparam;
    PlanComm *comm; /* by part, then by function in the order of the module */
    int ncomm, comm_cap;
    PlanTraffic *traffic; /* as the axes are found in comm */
    int ntraffic, traffic_cap;
    PlanProduct *product; /* as they are found */
    int nproduct, product_cap;
    MemoryPlan memory;
    int64_t ahead_bytes; /* of batches that are read ahead, beside the plan */
    int64_t parameters, rank_parameters; /* of the model; on a rank, with padding */
    double matmul_flops;                 /* of a rank in a step, counted in its program */
    double attention_flops;              /* the same */
    WorkSum done[WORK_KINDS];            /* the same, of everything that it does */
    const Work *needed;        /* of that what the mathematics needs; NULL: not counted */
    WorkRates rates;           /* of a rank; bytes 0: not known, and so no bound */
    char hash[HASH_HEX_BYTES]; /* of the planned module: ranks of one run have the same */
    const Machine *machine;    /* NULL: none is known, and so no time */
    const StepTime *time;      /* of all stages */
    int threads;               /* of a rank in that */
} Plan;

/* Hash of the plans of all stages from theirs, each HASH_HEX_BYTES. */
void plan_join_hashes(const char *hash, int n, char all[HASH_HEX_BYTES]);
/* Share of the time in which stages wait for each other, by the flops of their tasks. */
double plan_bubble(const PlanPipe *p);
/* The tasks of all stages over time, in letters. */
void plan_draw(const PlanPipe *p, Text *out);

/* By chunk, of those whose tasks the planned module has: flops of a rank in a task. */
void plan_read_task_flops(Arena *mem, const Module *m, double (*flops)[TASK_KINDS]);
/* And of tasks that no module has because another one does their work, when those of all
 * chunks are there. */
void plan_fill_task_flops(const PipeSchedule *s, double (*flops)[TASK_KINDS]);

/* The schedule as a picture (timeline_svg), with these flops as times. */
Timeline plan_schedule_timeline(Arena *mem, const PipeSchedule *s,
                                const double (*flops)[TASK_KINDS]);
/* A picture with a row for each stage and no task yet; one more task of a stage, which has
 * at most twice those of the schedule (halves). */
Timeline plan_timeline(Arena *mem, const PipeSchedule *s);
void plan_timeline_add(Timeline *l, const PipeSchedule *s, int stage, Task task,
                       double begin, double end);
/* "1f1b, 4 stages, 8 micro-batches" */
const char *plan_schedule_title(Arena *mem, const PipeSchedule *s);

/* Of a module at level planned whose entry is a training step. */
Plan plan_read(Arena *mem, const Func *entry, const Job *job);
/* The same without the hash, for which all of the module is printed. */
Plan plan_count(Arena *mem, const Func *entry, const Job *job);
/* Parameters of a module of the user's, of which each stage counts those that no other one has. */
int64_t plan_stage_parameters(const PlanPipe *p);
/* What a rank sends in a step, other ranks of its stage and other stages. */
int64_t plan_sent_bytes(const Plan *p);

/* The plan of a configuration on so many ranks (0: as many as the strategy has; else
 * data_parallel follows when it is not given, as under `stator launch -n`): builds the
 * model under its strategy, without data, and without memory for it. Adds notes to cfg.
 * Fails as `train` does for what does not fit (EXIT_CONFIG), but for the limit of memory.
 */
Plan plan_of_config(Arena *mem, Config *cfg, int64_t ranks);

/* The plan of a run's Job, of all its stages. No file is read and no rank is asked, so that one
 * rank may call it alone. Adds no notes. */
Plan plan_of_job(Arena *mem, const Job *job);

/* What a search wants of a plan, and nothing else of it. */
typedef struct PlanCost {
    double seconds;      /* of a step; 0: it does not fit */
    int64_t bytes;       /* of the rank that has most; of one that does not fit */
    int64_t ahead_bytes; /* beside them */
    int64_t sent_bytes;  /* in a step, of the rank that sends most */
} PlanCost;
/* Of ranks of so many threads on m, which have room for so many bytes. As soon as a stage takes
 * more, those behind it are left out. Passes are not verified. Fails as plan_of_config. */
PlanCost plan_cost(Arena *mem, Config *cfg, int64_t ranks, const Machine *m, int threads,
                   double room_bytes);

/* How code would be made of a job that is planned. */
CompileOptions plan_compile_options(const Job *j);
/* The plan of a module at level global to which strategy_apply has given its strategy, with the
 * options for the passes. */
Plan plan_of_module(Arena *mem, const Job *j, Module *m, const PassOptions *o);

/* plan_products.c: adds `runs` runs of a product to the plan; nothing of another op. */
void plan_add_product(Arena *mem, Plan *p, const Op *op, int64_t runs);
void plan_print_products(const Plan *p, Text *out);
void plan_json_products(const Plan *p, Text *out);
/* The choices that the configuration asks for, none made yet: of the products of the step on
 * a rank. */
struct ProductChoices *plan_choices(Arena *mem, const Config *cfg);

/* plan_work.c: sets `needed` of the plan and of all its stages. */
void plan_count_needed(Arena *mem, Plan *p);
/* Sets the rates of the plan and of all its stages. Fails with EXIT_CONFIG when one that the
 * work asks for is 0. */
void plan_set_rates(Plan *p, WorkRates rates);
/* Seconds below which a step of this rank cannot be; 0: the rates are not known. */
double plan_bound_seconds(const Plan *p);

/* plan_time.c: sets machine and time of the plan and of its stages, for ranks of so many threads;
 * 0: plan_threads. */
void plan_set_machine(Arena *mem, Plan *p, const Machine *m, int threads);
/* Threads of each of so many ranks: context.threads, or where that leaves them open the cores of
 * a host shared out. */
int plan_threads(const Config *cfg, const Machine *m, int ranks);
/* The tasks of a pipeline at their seconds. */
Timeline plan_time_timeline(Arena *mem, const Plan *p);
void plan_print_time(const Plan *p, Text *out);
void plan_json_time(const Plan *p, Text *out);
/* plan_costs.c: the largest costs of its time, and keys that would lower them. */
void plan_print_costs(const Plan *p, Text *out);
void plan_json_costs(const Plan *p, Text *out);

/* Memory of a process beside its plan and the batches: what libraries, MPI, the compiler
 * and the data source keep, and oneDNN within a product of one thread. Measured 10 to 50 MB; more
 * is stated, so that `plan` and `train` compare the same sum with context.max_device_memory. */
enum { PLAN_PROCESS_BYTES = 52000000 };
/* What the key profile keeps of ops, unless one step has more. */
enum { PLAN_PROFILE_BYTES = 26000000 };
/* The former, and the latter where the configuration has the key. */
int64_t plan_process_bytes(const Config *cfg);
/* What oneDNN's gemm of float32 packs factors into while it runs, for each thread: 18 to 22 MB were
 * measured. */
enum { PLAN_THREAD_BYTES = 24000000 };
/* That of so many threads beside a plan: factors are in it, so it is no more than that. And the
 * largest plan that has room in so many bytes with it. */
int64_t plan_packed_bytes(const Config *cfg, int threads, int64_t plan_bytes);
int64_t plan_room_bytes(const Config *cfg, int threads, int64_t left_bytes);
/* 1 without a pipeline. */
int plan_stage_count(const Plan *p);
const Plan *plan_stage(const Plan *p, int k); /* p itself without a pipeline */
/* On the machine of the plan, which is set: ranks of one host, and the rates of one of them. */
int plan_host_ranks(const Plan *p);
const MachineRank *plan_machine_rank(const Plan *p);
const Func **plan_entries(Arena *mem, const Plan *p); /* by stage */
/* Fails with EXIT_MEMORY when the plan with that and the batches is above
 * context.max_device_memory. */
void plan_check_memory(const Plan *all);
/* What a refusal of too little memory says: which ranks have a stage, and what takes less. */
const char *plan_memory_where(Arena *mem, const Job *j, int stage);
const char *plan_memory_hint(Arena *mem, const Job *j);

/* For people. `seconds` (0: not said) is what planning took. */
void plan_print(Arena *mem, const Plan *p, double seconds, Text *out);
/* For programs: adds the members of a JSON object, without braces around them and without
 * a comma at the end, each on a line that begins with two spaces. */
void plan_json(const Plan *p, Text *out);
/* An object of its classes, and their total. */
void plan_json_memory(const MemoryPlan *m, Text *out);

#endif
