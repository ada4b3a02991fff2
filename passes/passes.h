/* passes.h - from a model to a planned program. START at passes.def: the list of passes in
 * their order. A pass knows op rows, rules and placements, never a model or an op by name;
 * what it needs of an op it reads from columns of the row. */
#ifndef STATOR_PASSES_H
#define STATOR_PASSES_H
#include "ir/ir.h"

/* A placement that somebody asks for; see seed.c. */
typedef struct Annotation {
    const char *pattern, *placement;
    const char *source; /* for messages: "parallel.shard, entry 2" */
    bool optional;      /* it may match nothing */
    bool derived; /* from a strategy: what the user says of the same value replaces it */
} Annotation;

enum { MAX_BUCKET = 512 }; /* operands of one collective */

typedef struct PassOptions {
    /* seed */
    const Annotation *annotation;
    int nannotations;
    /* zero: what is sharded over the copies of a parameter: 0 nothing, 1 optimizer state,
     * 2 gradients too, 3 weights too; parameters below the threshold (of one layer) are
     * left alone */
    int zero_level;
    const char *zero_axes; /* "dp.cp" */
    int64_t zero_threshold_bytes;
    int64_t bucket_bytes; /* bucket: operands of one collective; 0 = one each */
    /* bucket, overlap: collectives beside other work: 0 never, 1 where it pays, 2 wherever
     * there is any work (for tests) */
    int overlap;
    /* with overlap: levels 1 and 2 gather parameters behind the update all the same, which
     * takes less memory than beside the next forward */
    bool gathers_at_end;
    /* cut, train, pipeline: a schedule (passes/pipe/schedule.h), or its name with the number
     * of stages and of chunks on each; neither: there is one stage */
    const struct PipeSchedule *schedule;
    const char *schedule_name;
    int stages, stage_chunks;
    const int64_t *chunk_layers; /* by chunk of the schedule; NULL: evenly */
    int stage; /* pass stage: the one whose step is wanted; -1: all */
    Func **steps; /* where not NULL pass stage leaves all of them here, those that are not
                     wanted for their arguments alone */
    /* train */
    int64_t micro_batches; /* runs of the model a step; 0 = 1 */
    const char *optimizer; /* "adamw", "adam", "momentum" or "sgd" */
    double beta1, beta2, eps, momentum;
    bool decay_weights; /* the step takes the weight decay as an argument */
    double clip_norm;   /* 0 = no clipping */
    /* memplan: bytes of workspace an op needs; NULL = none does */
    int64_t (*workspace_bytes)(const Op *op, void *ctx);
    void *workspace_ctx;
    /* runner */
    const char *dump_dir; /* NN-pass.ir after every pass; NULL = none */
    bool verbose;         /* time of every pass to stderr */
} PassOptions;
PassOptions pass_options_default(void);
/* options.c: sets one by its name, "micro_batches=2"; the text stays. Fails with
 * EXIT_CONFIG. */
void pass_option_set(PassOptions *o, const char *text);
void pass_options_print(FILE *to); /* all of them, on a line */

typedef struct Pass {
    const char *name;
    void (*run)(Module *, const PassOptions *);
    unsigned from; /* set of levels it takes, bit (1 << level) */
    int to;        /* level it leaves; -1 = the same */
    const char *doc;
} Pass;
extern const Pass passtab[];
extern const int npasses;
const Pass *pass_find(const char *name);

/* run.c: checks the level, runs, verifies, dumps, times. Names separated by commas; an
 * unknown name or a wrong level fails with EXIT_CONFIG. */
void passes_run(Module *m, const char *names, const PassOptions *o);
/* What `stator train` and `stator predict` run. */
extern const char train_passes[], predict_passes[];
extern const char forward_passes[]; /* of a model under a strategy, without gradients */

/* seed.c: is the annotation about that value of function `func`, or (NULL) about that
 * argument of the model? */
bool annotation_is_about(const Annotation *a, const char *func, const char *name);
/* How many values annotation `by` of the user places that annotation `old` of the strategy
 * would have placed in another way. Takes a module that pass seed would take. */
int seed_replaces(const Module *m, const Annotation *by, const Annotation *old);
/* propagate_params.c: places the arguments of the model that are open, as their uses are placed. */
void follow_uses(Module *m, Func *model, const bool *open);
/* zero.c: the type of a state (or gradient) of a flattened parameter. */
Type zero_type(const Module *m, const PassOptions *o, const Type *flat);
/* Do the parameters of levels 1 and 2 lie in parts between steps, as at level 3, so that
 * the first forward gathers them beside its work? A program without gradients that is to
 * read them takes them as level 3. */
bool zero_gathers_ahead(const PassOptions *o);

/* cut.c: layers of the model, which are the runs of its loops. */
int64_t module_layers(const Module *m);

/* simplify.c: for other passes too */
bool attrs_equal(const Attr *a, const Attr *b);

/* memplan.c: the memory of a planned program: arguments and results of its entry, and the
 * frame. Offsets in bytes from the start of one arena. */
typedef enum MemoryClass {
    MEM_WEIGHTS,
    MEM_OPTIMIZER,
    MEM_GRADIENTS,
    MEM_ACTIVATIONS,
    MEM_WORKSPACE,
    MEM_DATA,
    MEM_CLASSES
} MemoryClass;
extern const char *const memory_class_name[MEM_CLASSES];
typedef struct MemoryPlan {
    int64_t *arg_offset,
        *ret_offset; /* a result that overwrites an argument has its place */
    int64_t frame_offset, total_bytes;
    int64_t class_bytes[MEM_CLASSES]; /* sums to total_bytes */
} MemoryPlan;
MemoryPlan memory_plan(Arena *mem, const Func *entry);
/* Bytes that a step adds up for the gradient of parameter `param` of the entry. */
int64_t memory_gradient_bytes(const Func *entry, int param);
/* Proves anew, from the locations alone, that no two live values overlap and that every
 * value which shares memory may. NULL: sound; else a sentence. */
const char *memplan_check(Arena *mem, const Module *m);

/* flops.c: floating-point operations of the matrix products of an op: 2 for each element of
 * their space, half of it for causal attention. What backward makes again does not count. */
double op_flops(const Op *op);
/* Those of one run of the model, forward and backward, on all ranks: the products of the
 * forward pass, and for each as many again as operands whose gradient a parameter needs.
 * Takes a module at level global, which is made `diffed` (a module that cannot be trained
 * fails as in pass autodiff), or one as pass autodiff leaves it. */
double model_flops(Module *m);

#define PASS(name, from, to, doc) void pass_##name(Module *, const PassOptions *);
#include "passes/passes.def"
#undef PASS

#endif
