/* simulated.h - trains a golden case under a strategy with all ranks simulated by the
 * interpreter: one module at level local, the arguments of every rank
 * cut by its layouts. */
#ifndef STATOR_TEST_SIMULATED_H
#define STATOR_TEST_SIMULATED_H
#include "base/json.h"
#include "frontend/model/strategy.h"
#include "frontend/model/weights.h"
#include "ir/layout.h"
#include "runtime/core/free_memory.h"
#include "runtime/store/safetensors.h"
#include "test.h"

/* What a golden case is changed by: dropout in place of its own, labels that do not
 * count, several documents in a sequence with positions of their own. */
typedef struct SimChange {
    double embd_dropout, attn_dropout, resid_dropout;
    bool masked, documents;
    bool normed;        /* residuals behind norms */
    int interleave;     /* parts of a micro-batch; 0: 1 */
    int64_t tile_bytes; /* of pass tile, whatever the rows; 0: none */
    DType narrow;       /* factors of products; f32: as they are */
    int64_t window;     /* keys that a query sees; 0: all before it */
} SimChange;

/* What all lists of ways have of a strategy. */
#define SIM_STRATEGY(way)                                                                \
    .data = (way)->dp, .context = (way)->cp, .tensor = (way)->tp, .ring = (way)->ring,   \
    .sequence_parallel = (way)->sp, .vocab_parallel = (way)->vocab,                      \
    .zero_level = (way)->zero,                                                           \
    .zero_axes = (way)->ring > 1 && (way)->ring < (way)->cp ? "dp.cp.up" : "dp.cp",      \
    .bucket_bytes = 1 << 20, .overlap = (way)->beside ? OVERLAP_AUTO : OVERLAP_OFF

typedef struct Simulated {
    Arena *mem;
    const char *folder;
    ModelSpec spec;
    Strategy strategy;
    SimChange change;
    int64_t micro, steps;
    Module *m;
    Func *entry; /* of `stage`, and so are arg and ret */
    int ranks;   /* of a stage */
    Tensor ***arg, ***ret;
    int stage, stages;
    Tensor ****args, ****rets; /* by stage */
    const int64_t *tokens;     /* [steps, batch, seq + 1] */
    int64_t batch, seq;
    const Json *trajectory;
} Simulated;

static inline const char *sim_folder(Arena *mem, const char *name) {
    return arena_printf(mem, "%s/golden/%s", TESTS_DIR, name);
}

static inline int64_t sim_parts(const Simulated *s) {
    return MAX(s->change.interleave, 1);
}

static inline PassOptions sim_options(const Simulated *s) {
    PassOptions o = pass_options_default();
    o.micro_batches = s->micro;
    o.interleave = sim_parts(s);
    o.narrow = s->change.narrow;
    o.scale_loss = o.narrow == DT_F16;
    o.decay_weights = true;
    o.clip_norm = 1.0;
    o.tile_bytes = s->change.tile_bytes;
    o.tile_rows = 1;
    o.dump_dir = getenv("SIM_DUMP");
    return o;
}

static inline ModelShape sim_shape(const Simulated *s) {
    int64_t ring = s->strategy.ring;
    return (ModelShape){.batch = s->batch / s->micro / sim_parts(s),
                        .seq = s->seq,
                        .vocab_rows = strategy_vocab(&s->strategy, &s->spec),
                        .zigzag = ring > 1 ? ring : 0,
                        .masked = s->change.masked,
                        .own_positions = s->change.documents,
                        .documents = s->change.documents};
}

typedef struct SimWeights {
    Arena *mem;
    float **at;
    const Func *f;
} SimWeights;

static inline float *sim_weight_at(void *context, int arg) {
    SimWeights *w = context;
    if (!w->at[arg])
        w->at[arg] = arena_alloc(w->mem, (size_t)type_bytes(&w->f->arg[arg]->ty));
    return w->at[arg];
}

/* Cuts a whole tensor into the arguments of all ranks of the stage. */
static inline void sim_scatter(Simulated *s, int i, const void *whole) {
    Layout l = layout_of(s->mem, s->entry, i);
    for (int r = 0; r < s->ranks; r++)
        layout_scatter(&l, s->stage * s->ranks + r, whole, s->arg[r][i]->data);
}

static inline void sim_turn_to(Simulated *s, int stage) {
    s->stage = stage;
    s->entry = module_stage(s->m, stage);
    s->arg = s->args[stage];
    s->ret = s->rets[stage];
}

static inline int sim_find(const Func *f, const char *name) {
    for (int i = 0; i < f->narg; i++)
        if (!strcmp(f->arg[i]->name, name)) return i;
    test_fail(__FILE__, __LINE__, "@%s has no argument %s", f->name, name);
}

/* -1: a stage needs none. */
static inline int sim_role(const Simulated *s, const char *role) {
    const Func *f = s->entry;
    for (int i = 0; i < f->narg; i++)
        if (!strcmp(arg_str(f, i, "role", ""), role)) return i;
    if (s->stages > 1) return -1;
    test_fail(__FILE__, __LINE__, "@%s has no argument of role %s", f->name, role);
}

static inline void sim_read_case(Simulated *s) {
    s->trajectory = json_read(s->mem, path_join(s->mem, s->folder, "trajectory.json"),
                              1 << 20, EXIT_DATA);
    Safetensors *file = safetensors_open(
        s->mem, path_join(s->mem, s->folder, "expected.safetensors"), EXIT_DATA);
    const SafeTensor *t = safetensors_need(file, "tokens");
    s->tokens = t->data;
    s->steps = t->dim[0];
    s->batch = t->dim[1];
    s->seq = t->dim[2] - 1;
}

/* Loads the weights into the ranks' parts; m is a second module with whole parameters. */
static inline void sim_load_weights(Simulated *s, Module *whole) {
    Func *f = model_entry(whole);
    SimWeights w = {s->mem, NEW_ARRAY(s->mem, float *, (size_t)f->narg), f};
    weights_load_hf(s->folder, f, sim_weight_at, &w);
    for (int i = 0; i < s->entry->narg; i++) {
        if (arg_role(s->entry, i) != ARG_param) continue;
        const char *name = arg_str(s->entry, i, "tensor", s->entry->arg[i]->name);
        sim_scatter(s, i, w.at[sim_find(f, name)]);
    }
}

static inline void sim_open_stage(Simulated *s, int stage) {
    s->args[stage] = NEW_ARRAY(s->mem, Tensor **, (size_t)s->ranks);
    s->rets[stage] = NEW_ARRAY(s->mem, Tensor **, (size_t)s->ranks);
    sim_turn_to(s, stage);
    EXPECT(s->entry && s->entry->role == ROLE_STEP);
    for (int r = 0; r < s->ranks; r++) {
        s->arg[r] = NEW_ARRAY(s->mem, Tensor *, (size_t)s->entry->narg + 1);
        s->ret[r] = NEW_ARRAY(s->mem, Tensor *, (size_t)s->entry->nret + 1);
        for (int i = 0; i < s->entry->narg; i++)
            s->arg[r][i] = tensor_new(s->mem, &s->entry->arg[i]->ty);
    }
    sim_load_weights(s, model_build(s->mem, &s->spec, sim_shape(s), MODEL_TRAIN));
}

static inline Simulated sim_open(Arena *mem, const char *name, Strategy strategy,
                                 int64_t micro, SimChange change, const char *passes) {
    Simulated s = {.mem = mem,
                   .folder = sim_folder(mem, name),
                   .strategy = strategy,
                   .change = change,
                   .micro = micro};
    sim_read_case(&s);
    s.spec = model_spec_of_hf(mem, s.folder);
    s.spec.embd_dropout = change.embd_dropout;
    s.spec.attn_dropout = change.attn_dropout;
    s.spec.resid_dropout = change.resid_dropout;
    s.spec.window = change.window;
    s.spec.normed_residual = change.normed;
    PassOptions o = sim_options(&s);
    s.m = model_build(mem, &s.spec, sim_shape(&s), MODEL_TRAIN);
    strategy_apply(&s.strategy, &s.spec, s.m, &o);
    if (o.overlap) o.overlap = 2; /* the models are small: wherever there is any work */
    passes_run(s.m, passes, &o);
    s.stages = MAX(s.m->stages, 1);
    s.ranks = mesh_ranks(&s.m->mesh);
    s.args = NEW_ARRAY(mem, Tensor ***, (size_t)s.stages);
    s.rets = NEW_ARRAY(mem, Tensor ***, (size_t)s.stages);
    for (int k = 0; k < s.stages; k++) sim_open_stage(&s, k);
    return s;
}

/* The key of dropout: any two numbers, other ones each step. */
static inline void sim_feed_rng(Simulated *s, int64_t step) {
    for (int i = 0; i < s->entry->narg; i++) {
        if (arg_role(s->entry, i) != ARG_rng) continue;
        for (int r = 0; r < s->ranks; r++) {
            for (int64_t k = 0; k < s->micro * sim_parts(s); k++) {
                tensor_set(s->arg[r][i], RNG_WORDS * k, (double)(step + 1));
                tensor_set(s->arg[r][i], RNG_WORDS * k + 1, 1000);
                tensor_set(s->arg[r][i], RNG_WORDS * k + RNG_MICRO, (double)k);
            }
        }
    }
}

static inline void sim_set(Simulated *s, const char *role, double v) {
    int i = sim_role(s, role);
    for (int r = 0; r < s->ranks && i >= 0; r++) tensor_set(s->arg[r][i], 0, v);
}

enum { SIM_TOKENS, SIM_LABELS, SIM_POSITIONS, SIM_ATTENDS_FROM, SIM_INPUTS };

/* Two of three labels count in the first half of the sequences, none in the second: so a
 * micro-batch or a replica may have none at all. */
static inline bool sim_counts(const Simulated *s, int64_t b, int64_t j) {
    return !s->change.masked || (b < s->batch / 2 && (b + j) % 3);
}

/* First token of the document that token j of sequence b is in. */
static inline int64_t sim_document(int64_t b, int64_t j) {
    int64_t length = 3 + b % 4, shift = b % 3;
    return MAX(0, (j + shift) / length * length - shift);
}

static inline void sim_feed(Simulated *s, int64_t step) {
    static const char *const role[SIM_INPUTS] = {"tokens", "labels", "positions",
                                                 "attends_from"};
    Arena *mem = arena_new();
    int64_t n = s->batch * s->seq, counted = 0, zigzag = sim_shape(s).zigzag;
    int32_t *in[SIM_INPUTS];
    for (int i = 0; i < SIM_INPUTS; i++) in[i] = NEW_ARRAY(mem, int32_t, (size_t)n);
    const int64_t *from = s->tokens + step * s->batch * (s->seq + 1);
    for (int64_t k = 0; k < n; k++) {
        int64_t b = k / s->seq, j = zigzag_position(k % s->seq, s->seq, zigzag);
        int64_t at = b * (s->seq + 1) + j, first = sim_document(b, j);
        bool counts = sim_counts(s, b, j);
        counted += counts;
        in[SIM_TOKENS][k] = (int32_t)from[at];
        in[SIM_LABELS][k] = counts ? (int32_t)from[at + 1] : -1;
        in[SIM_POSITIONS][k] = (int32_t)(j - first);
        in[SIM_ATTENDS_FROM][k] = (int32_t)first;
    }
    for (int i = 0; i < (s->change.documents ? SIM_INPUTS : SIM_POSITIONS); i++)
        if (sim_role(s, role[i]) >= 0) sim_scatter(s, sim_role(s, role[i]), in[i]);
    if (s->change.masked)
        sim_set(s, "counted", (double)counted / (double)(s->micro * sim_parts(s)));
    sim_feed_rng(s, step);
    arena_free(mem);
}

static inline void sim_feed_step(Simulated *s, int64_t step, double lr) {
    sim_feed(s, step);
    sim_set(s, "lr", lr);
    sim_set(s, "weight_decay", 0.1);
    if (s->change.narrow == DT_F16) sim_set(s, "loss_scale", 0x1p16);
    sim_set(s, "bias_correction1", 1 - pow(0.9, (double)step + 1));
    sim_set(s, "bias_correction2", 1 - pow(0.95, (double)step + 1));
}

/* Results that overwrite arguments become them. */
static inline void sim_take_results(Simulated *s, double loss, double norm) {
    for (int r = 0; r < s->ranks; r++) {
        EXPECT(tensor_get(s->ret[r][0], 0) == loss &&
               tensor_get(s->ret[r][1], 0) == norm);
        for (int i = 0; i < s->entry->nret; i++) {
            int a = s->entry->alias[i];
            if (a < 0 || s->ret[r][i] == s->arg[r][a]) continue;
            memcpy(s->arg[r][a]->data, s->ret[r][i]->data,
                   (size_t)type_bytes(&s->entry->ret[i]->ty));
        }
    }
}

/* One step; loss and norm must be the same on all ranks. */
static inline void sim_step(Simulated *s, int64_t step, double lr, double *loss,
                            double *norm) {
    Arena *mem = arena_new();
    for (int k = 0; k < s->stages; k++) {
        sim_turn_to(s, k);
        sim_feed_step(s, step, lr);
    }
    const char *stuck = interp_run_stages(mem, s->m, s->args, s->rets);
    if (stuck) test_fail(__FILE__, __LINE__, "%s", stuck);
    *loss = tensor_get(s->rets[0][0][0], 0);
    *norm = tensor_get(s->rets[0][0][1], 0);
    for (int k = 0; k < s->stages; k++) {
        sim_turn_to(s, k);
        sim_take_results(s, *loss, *norm);
    }
    arena_free(mem);
}

/* Losses and norms, step by step. */
enum { SIM_MOST_STEPS = 20 };
typedef struct SimCurve {
    int steps;
    double loss[SIM_MOST_STEPS], norm[SIM_MOST_STEPS];
} SimCurve;

/* That of the next steps, with the learning rates of the golden case. */
static inline SimCurve sim_train(Simulated *s, int steps) {
    SimCurve curve = {steps};
    const Json *at = json_need(s->trajectory, "steps")->first;
    for (int i = 0; i < steps; i++, at = at->next)
        sim_step(s, i, json_f64(json_need(at, "lr")), &curve.loss[i], &curve.norm[i]);
    return curve;
}

/* PyTorch's. */
static inline SimCurve sim_golden_curve(const char *name, int steps) {
    Arena *mem = arena_new();
    SimCurve c = {steps};
    const char *path = path_join(mem, sim_folder(mem, name), "trajectory.json");
    const Json *at = json_need(json_read(mem, path, 1 << 20, EXIT_DATA), "steps")->first;
    for (int i = 0; i < steps; i++, at = at->next) {
        c.loss[i] = json_f64(json_need(at, "loss"));
        c.norm[i] = json_f64(json_need(at, "grad_norm"));
    }
    arena_free(mem);
    return c;
}

#endif
