/* strategy_check.c - does a strategy fit the model? See strategy.h. */
#include "frontend/config/config_state.h"
#include "frontend/model/strategy.h"

#define PC "parallel_config."

static void divides(const Config *cfg, const char *key, const char *hint,
                    const char *what, int64_t n, int64_t parts) {
    if (n % parts == 0) return;
    config_refuse(cfg, key, NULL, hint, "%s: %lld is not a multiple of %lld", what,
                  (long long)n, (long long)parts);
}

/* What these keys split is known of a model.model_config only. */
static void check_user_module(const Config *cfg, const Strategy *s) {
    static const char hint[] = "parallel.shard, which places the module's values by name";
    if (s->ring > 1)
        config_refuse(cfg, PC "context_parallel_algo", NULL, "ulysses_cp_algo",
                      "keys that go round a ring need sequences in zigzag order, which "
                      "a model.file does not say");
    if (s->sequence_parallel)
        config_refuse(cfg, PC "sequence_parallel", NULL, hint,
                      "sequence_parallel places values of a model.model_config, and this "
                      "is a model.file");
    if (s->vocab_parallel)
        config_refuse(
            cfg, PC "vocab_emb_dp", NULL, hint,
            "vocab_emb_dp False places tables of a model.model_config, and this "
            "is a model.file");
}

void strategy_check(const Config *cfg, const Strategy *s, const ModelSpec *spec,
                    ModelShape shape) {
    int64_t exchanged = s->context / s->ring;
    const char *algo = config_given(cfg, PC "context_parallel_algo")
                           ? PC "context_parallel_algo"
                           : PC "context_parallel";
    if (!spec) check_user_module(cfg, s);
    divides(cfg, PC "data_parallel", "a divisor of the batch",
            "data_parallel cuts the sequences of a micro-batch", shape.batch, s->data);
    divides(cfg, PC "context_parallel",
            s->ring > 1 ? "a length that is a multiple of twice context_parallel"
                        : "a divisor of the length",
            "context_parallel cuts the tokens of a sequence", shape.seq,
            s->context * (s->ring > 1 ? 2 : 1));
    if (s->sequence_parallel)
        divides(cfg, PC "sequence_parallel", "sequence_parallel False, or another length",
                "sequence_parallel cuts a rank's tokens once more", shape.seq,
                s->context * s->tensor);
    if (!spec && !cfg->runner_wrapper_calculate_per_token_loss)
        config_refuse(cfg, "runner_wrapper.calculate_per_token_loss", "model.file",
                      "calculate_per_token_loss True",
                      "the module of model.file says itself what its loss is");
    if (!spec) return;
    divides(cfg, PC "model_parallel", "a divisor of num_heads",
            "model_parallel cuts the attention heads", spec->heads, s->tensor);
    if (spec->kv_heads > 1)
        divides(cfg, PC "model_parallel", "a divisor of n_kv_heads",
                "model_parallel cuts the heads of keys and values", spec->kv_heads,
                s->tensor);
    divides(cfg, PC "model_parallel", "a divisor of the width",
            "model_parallel cuts the width of the MLP", spec->ffn, s->tensor);
    static const char a_ring[] =
        "context_parallel_algo megatron_cp_algo (not for predict), or a smaller degree";
    if (exchanged > 1)
        divides(cfg, algo, a_ring,
                "all-to-all exchanges parts of the sequence against heads", spec->heads,
                exchanged * s->tensor);
    if (exchanged > 1 && spec->kv_heads > 1)
        divides(
            cfg, algo, a_ring,
            "all-to-all exchanges parts of the sequence against heads of keys and values",
            spec->kv_heads, exchanged * s->tensor);
}
