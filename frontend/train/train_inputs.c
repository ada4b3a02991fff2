/* train_inputs.c - arguments of the step that are made of its number and its labels. */
#include "base/rng.h"
#include "frontend/config/key.h"
#include "frontend/train/train.h"

/* The key is a function of seed and step alone: what is dropped does not depend on how
 * the step is cut into micro-batches. */
void fill_rng(uint64_t seed, int64_t step, int64_t micro, int32_t *rng) {
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, word[4];
    uint32_t counter[4] = {(uint32_t)step, (uint32_t)((uint64_t)step >> 32), 0,
                           0x64726f70};
    rng_philox(counter, key, word);
    for (int64_t m = 0; m < micro; m++, rng += RNG_WORDS) {
        memcpy(rng + RNG_KEY, word, 2 * sizeof word[0]);
        rng[RNG_LAYER] = 0;
        rng[RNG_MICRO] = (int32_t)m;
    }
}

int64_t counted_labels(const Job *j, const DataBatch *b, int64_t first_row,
                       int64_t rows) {
    int64_t each = j->ncolumns ? j->column[j->labels].count : j->seq, n = 0;
    const int32_t *label = j->ncolumns ? b->column[j->labels] : b->labels;
    for (int64_t i = first_row * each; i < (first_row + rows) * each; i++)
        n += label[i] >= 0;
    return n;
}

/* Does a key change what is computed, and not where and how long? */
bool train_key_counts(const Key *key) {
    static const char *const parts[] = {
        "model.",         "optimizer.",
        "lr_schedule.",   "runner_",
        "train_dataset.", "eval_dataset.",
        "seed",           "parallel_config.micro_batch_num"};
    static const char *const but[] = {
        "runner_config.log_interval",      "model.file",
        "runner_config.max_skipped_steps", "runner_config.hang_seconds",
        "runner_config.on_hang",           "train_dataset.data_loader.data_cache_path",
        "runner_config.eval_interval",     "runner_config.eval_iters"};
    bool named = false;
    for (int i = 0; i < ARRAY_LEN(parts); i++) named |= begins_with(key->path, parts[i]);
    return named && key->kind != KIND_Tree && key->cat != CAT_NO_EFFECT &&
           !is_one_of(key->path, but, ARRAY_LEN(but));
}
