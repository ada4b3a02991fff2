/* strategy_notes.c - keys of a strategy that turn out to do nothing in the program that is made.
 * See strategy.h. */
#include "frontend/config/config_state.h"
#include "frontend/model/strategy.h"

#define PC "parallel_config."

/* The first of these that is given; the last one: none is. */
static const char *first_given(const Config *cfg, const char *const *key, int n) {
    int k = 0;
    while (k + 1 < n && !config_given(cfg, key[k])) k++;
    return key[k];
}

void strategy_note_zero(Config *cfg, const Module *m, const PassOptions *o) {
    static const char *const keys[] = {
        PC "optimizer_shard", "parallel.enable_parallel_optimizer",
        "parallel.parallel_optimizer_config.optimizer_level"};
    if (!o->zero_level || zero_splits_any(m, o)) return;
    const char *key = first_given(cfg, keys, ARRAY_LEN(keys));
    config_note(cfg, key,
                "%s splits nothing: no parameter has, in one layer, the %lld KB of "
                "parallel_optimizer_threshold, and 0 there splits all of them",
                strrchr(key, '.') + 1, (long long)o->zero_threshold_bytes / 1024);
}

/* Collectives of several tensors, and those that compute runs beside. */
typedef struct Seen {
    bool joined, concurrent;
} Seen;

static Seen seen_in(const Module *m) {
    Seen seen = {0};
    for (const Func *f = m->first; f; f = f->next)
        for (const Op *op = f->first; op; op = op->next) {
            bool arrives = op->kind == OP_arrive;
            seen.concurrent |= arrives;
            seen.joined |= !arrives && op_has(op, F_COMM) && op->nout > 1;
        }
    return seen;
}

static void note_joins(Config *cfg, int64_t bucket_bytes) {
    static const char *const keys[] = {
        "parallel.bucket_size", "parallel.comm_fusion.allreduce.config",
        "parallel.comm_fusion.allgather.config",
        "parallel.comm_fusion.reducescatter.config", PC "gradient_aggregation_group"};
    const char *key = first_given(cfg, keys, ARRAY_LEN(keys));
    if (!config_given(cfg, key) || config_idle(cfg, key) || !bucket_bytes) return;
    config_note(
        cfg, key,
        "%s joins nothing: no two messages of this program stand side by side and "
        "have %s or less together",
        key, human((double)bucket_bytes, "B").s);
}

void strategy_note_messages(Config *cfg, const Strategy *s, const Module *m,
                            const PassOptions *o) {
    if (s->stages > 1 || s->data * s->context * s->tensor == 1) return;
    Seen seen = seen_in(m);
    if (!seen.joined) note_joins(cfg, o->bucket_bytes);
    if (!seen.concurrent && cfg->parallel_overlap == OVERLAP_THREAD)
        config_note(
            cfg, "parallel.overlap",
            "parallel.overlap thread hides nothing: no message of this program has "
            "computation to run beside");
}
