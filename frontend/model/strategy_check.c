/* strategy_check.c - does a strategy fit the model? See strategy.h. */
#include "frontend/config/config_state.h"
#include "frontend/model/recompute.h"
#include "frontend/model/strategy.h"
#include "frontend/model/strategy_schedule.h"

#define PC "parallel_config."

typedef struct Misfit {
    const Config *cfg;
    const char *key, *hint, *what;
    int64_t n, parts;
} Misfit;

static void refuse(void *context) {
    const Misfit *m = context;
    config_refuse(m->cfg, m->key, NULL, m->hint, "%s: %lld is not a multiple of %lld",
                  m->what, (long long)m->n, (long long)m->parts);
}

/* False: a problem of the configuration, which all are told at once. */
static bool divides(const Config *cfg, const char *key, const char *hint,
                    const char *what, int64_t n, int64_t parts) {
    Misfit m = {cfg, key, hint, what, n, parts};
    return n % parts == 0 || config_try(cfg->state, refuse, &m);
}

typedef struct Fit {
    const Config *cfg;
    const Strategy *s;
    const ModelSpec *spec;
} Fit;

/* What these keys split is known of a model.model_config only. */
static void refuse_ring(void *context) {
    const Fit *f = context;
    if (f->s->ring > 1)
        config_refuse(f->cfg, PC "context_parallel_algo", NULL, "ulysses_cp_algo",
                      "keys that go round a ring need sequences in zigzag order, which "
                      "a model.file does not say");
}

static const char by_name[] = "parallel.shard, which places the module's values by name";

static void refuse_sequence(void *context) {
    const Fit *f = context;
    if (f->s->sequence_parallel)
        config_refuse(f->cfg, PC "sequence_parallel", NULL, by_name,
                      "sequence_parallel places values of a model.model_config, and this "
                      "is a model.file");
}

static void refuse_vocab(void *context) {
    const Fit *f = context;
    if (f->s->vocab_parallel)
        config_refuse(
            f->cfg, PC "vocab_emb_dp", NULL, by_name,
            "vocab_emb_dp False places tables of a model.model_config, and this "
            "is a model.file");
}

static void refuse_means(void *context) {
    const Fit *f = context;
    if (!f->cfg->runner_wrapper_calculate_per_token_loss)
        config_refuse(f->cfg, "runner_wrapper.calculate_per_token_loss", "model.file",
                      "calculate_per_token_loss True",
                      "the module of model.file says itself what its loss is");
}

/* As strategy_apply shares the layers out, which tells it alone. */
static void check_layers(void *context) {
    const Fit *f = context;
    const Strategy *s = f->s;
    Arena *mem = arena_scratch();
    int chunks = (int)(MAX(s->stages, 1) * MAX(s->chunks, 1));
    const int64_t *layers = &f->spec->layers;
    if (s->stages > 1) {
        int micro = (int)f->cfg->parallel_config_micro_batch_num;
        const PipeSchedule *p = schedule_of_strategy(s, mem, chunks, micro);
        layers = stage_layers(&s->layers, mem, p, f->spec->layers);
    }
    if (s->remake && s->remake_pos.line)
        recompute_check_counts(s, layers, s->stages > 1 ? chunks : 1);
    arena_free(mem);
}

/* One problem of a degree is enough. */
static bool check_tensor(const Config *cfg, const Strategy *s, const ModelSpec *spec) {
    const char *key = PC "model_parallel";
    bool fits =
        divides(cfg, key, "a divisor of num_heads",
                "model_parallel cuts the attention heads", spec->heads, s->tensor);
    if (fits && spec->kv_heads > 1)
        fits = divides(cfg, key, "a divisor of n_kv_heads",
                       "model_parallel cuts the heads of keys and values", spec->kv_heads,
                       s->tensor);
    return fits &&
           divides(cfg, key, "a divisor of the width",
                   "model_parallel cuts the width of the MLP", spec->ffn, s->tensor);
}

static void check_exchange(const Config *cfg, const Strategy *s, const ModelSpec *spec) {
    static const char a_ring[] =
        "context_parallel_algo megatron_cp_algo (not for predict), or a smaller degree";
    int64_t exchanged = s->context / s->ring, parts = exchanged * s->tensor;
    const char *algo = config_given(cfg, PC "context_parallel_algo")
                           ? PC "context_parallel_algo"
                           : PC "context_parallel";
    if (exchanged == 1) return;
    bool fits = divides(cfg, algo, a_ring,
                        "all-to-all exchanges parts of the sequence against heads",
                        spec->heads, parts);
    if (fits && spec->kv_heads > 1)
        divides(
            cfg, algo, a_ring,
            "all-to-all exchanges parts of the sequence against heads of keys and values",
            spec->kv_heads, parts);
}

void strategy_check(const Config *cfg, const Strategy *s, const ModelSpec *spec,
                    ModelShape shape) {
    static void (*const of_module[])(void *) = {refuse_ring, refuse_sequence,
                                                refuse_vocab, refuse_means};
    Fit f = {cfg, s, spec};
    for (int i = 0; i < ARRAY_LEN(of_module) && !spec; i++)
        config_try(cfg->state, of_module[i], &f);
    divides(cfg, PC "data_parallel", "a divisor of the batch",
            "data_parallel cuts the sequences of a micro-batch", shape.batch, s->data);
    bool fits =
        divides(cfg, PC "context_parallel",
                s->ring > 1 ? "a length that is a multiple of twice context_parallel"
                            : "a divisor of the length",
                "context_parallel cuts the tokens of a sequence", shape.seq,
                s->context * (s->ring > 1 ? 2 : 1));
    if (fits && s->sequence_parallel)
        divides(cfg, PC "sequence_parallel", "sequence_parallel False, or another length",
                "sequence_parallel cuts a rank's tokens once more", shape.seq,
                s->context * s->tensor);
    if (spec && check_tensor(cfg, s, spec) && fits) check_exchange(cfg, s, spec);
    if (spec && cfg->state->n_problems) config_try(cfg->state, check_layers, &f);
    config_fail_all(cfg->state);
}
