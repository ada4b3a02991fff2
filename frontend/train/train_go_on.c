/* train_go_on.c - the data of a run that goes on. A checkpoint says how many samples were used,
 * so that other replicas, batches or micro-batches leave none out and take none twice. */
#include "base/json.h"
#include "frontend/config/config_state.h"
#include "frontend/train/train.h"

static bool is_gpt(const Train *t) {
    return t->job.cfg->train_dataset_data_loader_type == LOADER_GPT_DATASET;
}

void train_check_steps(const Train *t) {
    int64_t most = t->data->steps_available;
    if (most >= 0 && t->steps > MAX(most, t->step))
        config_refuse(t->job.cfg, "runner_config.max_steps", NULL, NULL,
                      "max_steps is %lld, but %s has batches for %lld steps",
                      (long long)t->steps, t->data->path, (long long)most);
}

/* Samples before the next one; older checkpoints only have the size of their batches. */
static int64_t used_samples(const Train *t, const Json *data) {
    int64_t batch = json_get_i64(data, "batch", 1, INT64_MAX, t->data->batch), used;
    if (__builtin_mul_overflow(batch, t->step, &used)) used = 0;
    return json_get_i64(data, "samples", 0, INT64_MAX / 2, used);
}

/* Of how many samples the run was to be; -1: of as many as its steps take. Those of GPTDataset are
 * of all epochs. */
static int64_t samples_in_all(const Train *t) {
    const Config *cfg = t->job.cfg;
    int64_t epochs = is_gpt(t) ? 1 : cfg->runner_config_epochs, all;
    if (cfg->runner_config_max_steps >= 0) return -1;
    bool over = __builtin_mul_overflow(data_samples(cfg, t->data), epochs, &all);
    return over ? -1 : all;
}

/* GPTDataset has the samples that were asked for, by steps of the present size. */
static void ask_for_more(Train *t, int64_t used) {
    const Config *cfg = t->job.cfg;
    if (!is_gpt(t) || cfg->train_dataset_data_loader_num_samples.n ||
        cfg->runner_config_max_steps < 0)
        return;
    int64_t left = MAX(t->steps - t->step, 0) * t->data->batch; /* of those asked for */
    if (used + left <= t->data->samples) return;
    int64_t steps = divided_up(used + left, t->data->batch);
    DataShape shape = job_data_shape(&t->job, t->data->batch, steps);
    data_close(t->data);
    t->data = data_open_split(t->mem, cfg, SPLIT_TRAIN, &shape);
}

/* Megatron-LM shuffles as many passes over the documents as the samples asked for need. */
static void compare_order(const Train *t, const Json *data) {
    const char *was = json_get_string(data, "order", "");
    char now[17];
    snprintf(now, sizeof now, "%016llx", (unsigned long long)t->data->order);
    if (t->data->order && was[0] && strcmp(was, now))
        report_say(
            t, "WARNING: GPTDataset's samples come in another order than before, so "
               "some come again and others not at all: the run asks for another number "
               "of them, or they are others. train_dataset.data_loader.num_samples, "
               "given from the start, keeps the order");
}

void train_go_on_with_data(Train *t, const Json *s) {
    const Json *data = json_get(s, "data");
    bool own = t->job.cfg->train_dataset_data_loader_type == LOADER_TENSOR_BATCHES;
    if (!data || data->kind != JSON_OBJECT || own) return;
    int64_t used = used_samples(t, data), all = samples_in_all(t), here;
    if (__builtin_mul_overflow(t->step, t->data->batch, &here)) return;
    bool moved = used != here;
    if (moved) ask_for_more(t, used);
    compare_order(t, data);
    if (!moved) return;
    data_go_on(t->data, t->step, used);
    if (all >= 0) {
        t->steps = t->step + MAX(all - used, 0) / t->data->batch;
        train_choose_schedules(t);
    }
    if (json_get_i64(data, "batch", 1, INT64_MAX, 0) != t->data->batch)
        report_say(t,
                   "note: steps have another size now, %lld samples: the run goes on "
                   "behind the %lld that were used, up to step %lld",
                   (long long)t->data->batch, (long long)used, (long long)t->steps);
}
