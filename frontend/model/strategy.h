/* strategy.h - from the keys of parallel and parallel_config to a mesh, placements of a
 * model's parameters and values, and options of the passes. */
#ifndef STATOR_STRATEGY_H
#define STATOR_STRATEGY_H
#include "codegen/codegen.h"
#include "frontend/model/model.h"
#include "frontend/model/stage_layers.h"
#include "passes/passes.h"

/* Axes of the mesh, outermost first: rp groups of replicas, where there are several and each splits
 * states for itself, dp replicas (of a group), cp parts of the sequence, up the inner parts of a
 * sequence when both algorithms of context parallelism are combined, tp parts of matrices and
 * heads. How ranks are numbered by these and the stage is rank_order. */
#define SCHEDULE_MAX_BYTES (64u << 20)

/* What ranks are counted by: parallel_config.rank_order has each once, neighbours first. */
typedef enum RankWord { RANK_TP, RANK_CP, RANK_DP, RANK_PP, RANK_WORDS } RankWord;
typedef struct RankOrder {
    uint8_t word[RANK_WORDS]; /* RankWord; all 0: as tp-cp-dp-pp */
} RankOrder;
/* Of the configuration. What is no order is refused. */
RankOrder rank_order_of_config(const Config *cfg);
const char *rank_order_text(Arena *mem, const RankOrder *order); /* "tp-cp-dp-pp" */

typedef struct Strategy {
    RankOrder order;
    int64_t data, context, tensor;
    int64_t groups; /* of replicas, axis rp; 0 and 1: they are one group */
    int64_t ring; /* parts of a sequence whose keys go round; context / ring are exchanged
                        against heads (all-to-all) */
    int64_t stages; /* of the pipeline; each has `chunks` parts of the model */
    int64_t chunks;
    const char *schedule;   /* see passes/pipe/schedule.h */
    SourcePos schedule_pos; /* of what asks for it, for messages */
    StageLayers layers;     /* of each chunk */
    const char *remake; /* what backward makes again of which layers (remake_spans.h) */
    SourcePos remake_pos, selected_pos; /* of it, of names in it, for messages */
    bool remake_auto;                   /* it is to be chosen, so that the plan fits */
    const char *remake_kept; /* what is kept of layers that are made again: ",-attn" */
    bool names_gathered;     /* what readers gather is a value of its own in layers */
    bool slice_kept;         /* what it makes them from is kept in parts over tp */
    bool
        own_data; /* each replica has data of its own in a module of one: nothing is split
                      over dp, but for weights (prediction) */
    bool sequence_parallel; /* norms and residuals split over tp too */
    bool vocab_parallel;    /* embedding and head split over tp */
    int zero_level;         /* 0..3, see passes/shard/zero.c */
    int64_t zero_threshold_bytes;
    int64_t bucket_bytes; /* operands of one collective, unless gradient_groups says it */
    int64_t
        gradient_groups;   /* gradients are reduced in so many; 0: bucket_bytes counts */
    const char *zero_axes; /* "dp.cp" */
    Overlap overlap;
    bool gathers_at_end; /* with overlap too */
    TextList user;       /* parallel.shard: "PATTERN=PLACEMENT" */
    SourcePos user_pos;  /* of it, for messages */
} Strategy;

/* Fails with EXIT_CONFIG, naming key and remedy, when the numbers do not go together. Adds
 * a note for every value that was changed or has no effect. */
Strategy strategy_of_config(Config *cfg);
/* The level of ZeRO that keys ask for, 0: none; where nobody has the same parameters there is none
 * in the strategy. */
int strategy_zero_level(const Config *cfg);
/* Ranks that the configuration does not name are replicas: sets data_parallel, with a note
 * that ends in `why`, when it is not given and the other degrees divide `ranks`. */
void strategy_replicate(Config *cfg, int64_t ranks, const char *why);
/* Of the keys of the degrees the first that is given, or data_parallel: for messages. */
const char *strategy_degree_given(const Config *cfg);
int64_t strategy_ranks(const Strategy *s);
/* Rows that tables of the vocabulary have under the strategy: padded so that tp divides. */
int64_t strategy_vocab(const Strategy *s, const ModelSpec *spec);
/* Parts of a micro-batch whose losses are means of their own (ModelShape.loss_groups):
 * the replicas, when runner_wrapper.calculate_per_token_loss is False; 0: none. */
int64_t strategy_loss_groups(const Config *cfg, const Strategy *s);
/* bucket_bytes, or what gradient_groups makes of a rank's gradients (spec not NULL). */
int64_t strategy_bucket_bytes(const Strategy *s, const ModelSpec *spec);
/* What all programs of a configuration are compiled by; choices, logs and limits are the
 * caller's. */
CompileOptions strategy_compile_options(const Config *cfg);
/* Optimizer, clipping, micro-batches and dumps of the configuration. */
PassOptions strategy_pass_options(const Config *cfg);
/* What a moment of that beta is divided by in update number `update`, from 1 on; 1 where the
 * optimizer corrects none. */
double strategy_bias_correction(const Config *cfg, double beta, int64_t update);
/* strategy_notes.c. Of a module behind strategy_apply: a note where states are to be split, and all parameters are too
 * small for that. */
void strategy_note_zero(Config *cfg, const Module *m, const PassOptions *o);
/* Of a module behind the passes, of a strategy without stages: notes where messages are to be joined
 * and none is, and where they are to be concurrent with compute and none is. */
void strategy_note_messages(Config *cfg, const Strategy *s, const Module *m,
                            const PassOptions *o);
/* strategy_check.c: do the numbers fit the model (heads, sequence, batch)? Fails with
 * EXIT_CONFIG. */
void strategy_check(const Config *cfg, const Strategy *s, const ModelSpec *spec,
                    ModelShape shape);
/* strategy_seeds.c: gives the module its mesh and the passes their seeds. spec NULL: a user's
 * module, whose data are split by role and whose parameters only the user's annotations place. */
void strategy_apply(const Strategy *s, const ModelSpec *spec, Module *m, PassOptions *o);
/* rank_order.c: sets how the ranks of a mesh are numbered; stages: of all. Orders that number
 * them alike are one. */
void mesh_set_order(Mesh *m, int64_t stages, const RankOrder *order);
/* Lays it over the processes, where there are several. */
void strategy_lay_mesh(const Mesh *m, int64_t stages);

#endif
