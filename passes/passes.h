/* passes.h - from a model to a planned program. START at passes.def: the list of passes in
 * their order. A pass knows op rows, rules and placements, never a model or an op by name
 * (but for reshard and messages, which passes make); what it needs of an op it reads from columns
 * of the row. */
#ifndef STATOR_PASSES_H
#define STATOR_PASSES_H
#include "ir/ir.h"

/* A seed and its author: a placement that the user or a strategy asks for; see seed.c. */
typedef struct Annotation {
    const char *pattern, *placement;
    const char *source; /* for messages: "parallel.shard, entry 2" */
    bool optional;      /* it may match nothing */
    bool derived;  /* from a strategy: what the user says of the same value replaces it */
    bool gathered; /* not of the value, but of one that its readers see in its place */
    SourcePos at;  /* where the user says it; line 0: nowhere */
} Annotation;

struct LayerSeen; /* passes/model/made_again.h */

enum {
    MAX_BUCKET = 512, /* operands of one collective */
    MAX_BESIDE = 64,  /* parts of a micro-batch */
};

typedef struct PassOptions {
    /* seed */
    const Annotation *annotation;
    int nannotations;
    /* zero: what is sharded over the replicas of a parameter: 0 nothing, 1 optimizer state,
     * 2 gradients too, 3 weights too. Parameters with fewer bytes a layer than the threshold
     * are not sharded */
    int zero_level;
    const char *zero_axes; /* "dp.cp" */
    int64_t zero_threshold_bytes;
    int64_t bucket_bytes; /* bucket: operands of one collective; 0 = one each */
    /* bucket, overlap: collectives run concurrently with compute: 0 never, 1 where it pays,
     * 2 wherever there is anything to compute (for tests) */
    int overlap;
    /* with overlap: levels 1 and 2 gather parameters right after the update nevertheless,
     * which takes less memory than gathering them during the next forward */
    bool gathers_at_end;
    /* cut, train, pipeline: a schedule (passes/pipe/schedule.h), or its name with the number
     * of stages and of chunks on each; neither: there is one stage */
    const struct PipeSchedule *schedule;
    const char *schedule_name;
    int stages, stage_chunks;
    const int64_t *chunk_layers; /* by chunk of the schedule; NULL: evenly */
    int stage;                   /* pass stage: the one whose step is wanted; -1: all */
    Func **steps; /* where not NULL pass stage leaves all of them here, those that are not
                     wanted for their arguments alone */
    /* narrow: products are of numbers of that type, bf16 or f16 (f32: of what they are of);
     * the residual stream stays as it is */
    DType narrow;
    bool residual_exact;
    /* round: gradients of parameters are of the type narrow, also between ranks */
    bool round_gradients;
    /* reshard: what is rounded to the type narrow anyway is summed over ranks in it */
    bool round_sums;
    /* hoist: rounds slices that a step takes once before the loop too, as those that several
     * micro-batches take; for what stands for any number of them */
    bool hoist_slices;
    /* hold: parameters that products read rounded are arguments of the type narrow; for
     * programs that share them with none which has them in f32 */
    bool hold;
    /* turn: matrices of f32 lie as products of few rows read them best; for programs that share
     * parameters only with others that are made so */
    bool turn;
    /* remake: what backward makes again of which layers (passes/model/remake_spans.h); NULL
     * or "": nothing */
    const char *remake;
    SourcePos remake_pos;    /* of names in it, for messages; zeros: none is known */
    bool remake_elementwise; /* autodiff: what is made again besides (made_again.h) */
    /* autodiff: sees every layer with its gradient before they are taken apart; NULL */
    void (*layer_seen)(const struct LayerSeen *layer, void *ctx);
    void *layer_ctx;
    /* autodiff: axes over which what such a layer is given is split besides, while it is kept
     * for backward; NULL: none */
    const char *remake_axes;
    /* train */
    int64_t micro_batches; /* of a step; 0 = 1 */
    int64_t interleave; /* runs of the model that are a micro-batch, beside each other */
    const char *optimizer; /* "adamw", "adam", "momentum", "sgd" or "none" */
    double beta1, beta2, eps, momentum;
    bool decay_weights; /* the step takes the weight decay as an argument */
    double clip_norm;   /* 0 = no clipping */
    bool scale_loss; /* the step takes a factor of the loss: gradients of activations are
                           that much larger, those of parameters are divided by it */
    /* collect, beside, sink, bucket, overlap: what the ranks of a machine do in a second
     * (passes/cost/machine.h), NULL: machine_plain, and bytes for collect; and threads of a rank,
     * 0: any */
    const struct Machine *machine;
    int threads;
    struct KnownPaths *paths; /* collect: of other modules too; NULL */
    /* tile: values of more bytes are made and used up a part of their rows at a time, where
     * that can be; 0: never. tile_rows: of a part at least, so that matmuls stay matmuls. A part
     * may also have a quarter of the bytes of the sums that it adds to */
    int64_t tile_bytes, tile_rows;
    /* memplan: before all else code generation writes on ops which code they will have, which
     * their workspace depends on; NULL */
    void (*choose)(Module *m, void *ctx);
    /* memplan: bytes of workspace an op needs; NULL = none does */
    int64_t (*workspace_bytes)(const Op *op, void *ctx);
    void *workspace_ctx; /* of both */
    /* runner */
    const char *dump_dir; /* NN-pass.ir after every pass; NULL = none */
    bool verbose;         /* time of every pass to stderr */
    bool
        unverified; /* it does not verify the module behind every pass, nor the memory in the
                        end: no code is made of it */
} PassOptions;
/* run.c */
PassOptions pass_options_default(void);
/* pipe/schedule.c */
int pass_stages(const PassOptions *o); /* of the schedule, or 1 */
/* collect.c: what pass collect finds between placements, for all modules that are made of one
 * machine and number of stages. */
typedef struct KnownPaths KnownPaths;
KnownPaths *known_paths(Arena *mem);
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
/* What `stator train` runs, and `stator predict` on a user's module, on one rank. */
extern const char train_passes[], predict_passes[];
extern const char forward_passes[]; /* of a model under a strategy, without gradients */
/* What a list has from the first pass `from` up to before the next pass `to` (NULL: from its
 * beginning, to its end), without those that the list `without` names (""). It must have them all.
 * So programs of a part of the passes get those that are added to the whole. */
char *passes_part(Arena *mem, const char *list, const char *from, const char *to,
                  const char *without);

/* seed.c: is the annotation about that value of function `func`, or (NULL) about that
 * argument of the model? */
bool annotation_is_about(const Annotation *a, const char *func, const char *name);
/* For how many values annotation `by` of the user replaces another placement that annotation
 * `old` of the strategy asks for. Takes a module that pass seed would take. */
int seed_replaces(const Module *m, const Annotation *by, const Annotation *old);
/* propagate_params.c: gives arguments of the model that are open the placement of their
 * uses. */
void propagate_params(Module *m, Func *model, const bool *open);
/* zero.c: has a parameter of the model, or a layer of it, the bytes of zero_threshold_bytes? */
bool zero_splits_any(const Module *m, const PassOptions *o);
/* The axes that states are split over; fails with EXIT_CONFIG when the mesh lacks one. */
Axes zero_axes_of(const Module *m, const PassOptions *o);
/* The type of a state (or gradient) of a flattened parameter. */
Type zero_type(const Module *m, const PassOptions *o, const Type *flat);
/* Are the parameters of levels 1 and 2 stored in parts between steps, as at level 3, so that
 * the first forward gathers them while it computes? A program without gradients that reads
 * the same parameters must take them as level 3. */
bool zero_gathers_ahead(const PassOptions *o);

/* cut.c: layers of the model, which are the runs of its loops. */
int64_t module_layers(const Module *m);

/* same.c: attributes in their order; functions that do the same, whatever they and their values
 * are called. A hash is equal where they are. Both number the functions. */
bool attrs_equal(const Attr *a, const Attr *b);
bool attr_equal_but_int(const Attr *a, const Attr *b); /* their whole number aside */
uint64_t func_hash(Func *f);
bool funcs_same(Func *a, Func *b);
/* Functions each of which does something else. */
typedef struct FuncSet {
    Arena *mem;
    Func **f;
    uint64_t *hash; /* func_hash */
    int n, f_cap, hash_cap;
} FuncSet;
/* The one that does the same as f; else it is f, which is one of them from now on. */
Func *func_set_take(FuncSet *s, Func *f);

/* memcheck.c: the memory of a planned program: arguments and results of its entry, and the
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
        *ret_offset; /* a result that overwrites an argument has its offset */
    int64_t frame_offset, total_bytes;
    int64_t class_bytes[MEM_CLASSES]; /* sums to total_bytes */
} MemoryPlan;
MemoryPlan memory_plan(Arena *mem, const Func *entry);
/* Bytes that a step adds up for the gradient of parameter `param` of the entry. */
int64_t memory_gradient_bytes(const Func *entry, int param);
/* Proves, from the locations alone, that no two live values overlap and that values share
 * memory only where they may. NULL: sound; else a sentence on what is wrong. */
const char *memplan_check(Arena *mem, const Module *m);
/* flight.c: proves the same way that a planned function writes nothing over what it is
 * sending. NULL or a sentence. */
const char *flight_check(Arena *mem, const Func *f);

/* flops.c: floating-point operations of the matmuls of an op: 2 for each element of their
 * iteration space, less for ops that leave some out (hook share). What backward computes again
 * does not count. */
double op_flops(const Op *op);
double op_flops_of(const Op *op, const Dims *d); /* of op_dims, with matmuls inside */
/* Those of a run of a function and what it calls; by_nth: of those that it calls, by Func.nth. */
double func_flops(const Func *f, const double *by_nth);
/* Those of one run of the model, forward and backward, on all ranks: each matmul of the
 * forward pass counts once, and once more for each of its operands whose gradient some
 * parameter needs. Takes a module at level global, which is then made `diffed` (one that
 * cannot be trained fails as in pass autodiff), or one that pass autodiff has made, in
 * which what backward makes again counts too. */
double model_flops(Module *m);
/* Takes back what the text says is to be made again in backward: it is no work of the model. */
void remake_nothing(Module *m);

#define PASS(name, from, to, doc) void pass_##name(Module *, const PassOptions *);
#include "passes/passes.def"
#undef PASS

#endif
