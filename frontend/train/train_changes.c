/* train_changes.c - what a resumed run says of its checkpoint: another configuration, other
 * data. */
#include "base/json.h"
#include "frontend/config/key.h"
#include "frontend/train/train.h"
#include <stdlib.h>

/* ---- the configuration ---- */

/* Keys that a longer run of the same experiment changes. */
static bool is_length(const char *path) {
    static const char *const keys[] = {"runner_config.max_steps", "runner_config.epochs",
                                       "lr_schedule.total_steps"};
    return is_one_of(path, keys, ARRAY_LEN(keys));
}

/* The next key from number *k on that has another value than in a checkpoint, which had
 * *was: also one that was not known then, if it is given something else than what was done
 * without it. NULL: no further one. */
static const char *next_change(const Train *t, const Json *s, int *k, const char **was) {
    const Json *then = json_get(s, "config");
    while (then && *k < N_KEYS) {
        const Key *key = &key_table[(*k)++];
        const char *is = config_value(t->job.cfg, t->mem, key->path);
        *was = json_get_string(then, key->path, NULL);
        bool same =
            *was ? key_same_value(*was, is)
                 : !config_given(t->job.cfg, key->path) || key_same_value(is, key->def);
        if (!*was) *was = "not known";
        if (!same && train_key_counts(key)) return key->path;
    }
    return NULL;
}

bool train_key_changed(const Train *t, const Json *s, const char *path) {
    const char *changed, *was;
    for (int k = 0; (changed = next_change(t, s, &k, &was));)
        if (!strcmp(changed, path)) return true;
    return false;
}

static void add_change(const Train *t, Text *text, const char *path, const char *was) {
    text_add(text, "; %s was %.100s and is %.100s", path, was,
             config_value(t->job.cfg, t->mem, path));
}

/* "optimizer.beta1 was 0.9 and is 0.8" for each key that has another value now; *other:
 * more than the length of the run differs. */
static const char *changes(const Train *t, const Json *s, bool *other) {
    Text text = text_new(t->mem);
    const char *path, *was;
    *other = false;
    long long steps = json_get_i64(s, "steps", 0, INT64_MAX, 0);
    for (int k = 0; (path = next_change(t, s, &k, &was));) {
        *other |= !is_length(path);
        add_change(t, &text, path, was);
    }
    if (!text.n && steps && steps != t->steps)
        text_add(&text, "; the steps of the run were %lld and are %lld", steps,
                 (long long)t->steps);
    return text.s;
}

/* Keys that the version which saved it did not have are no difference where they are not
 * given, but the text of a module is known by its hash alone. */
bool train_same_config(const Train *t, const Json *s) {
    const char *hash = json_get_string(s, "config_hash", "");
    bool other;
    if (!strcmp(hash, t->config_hash)) return true;
    return json_get(s, "config") && !t->job.module.path && !changes(t, s, &other)[0];
}

/* The keys of the model, or of another optimizer. */
const char *train_explain_misfit(void *context, const char *state_json) {
    const Train *t = context;
    const Json *s = ckpt_state_parse(t->mem, "state of the checkpoint", state_json);
    const char *path, *was;
    Text text = text_new(t->mem);
    for (int k = 0; (path = next_change(t, s, &k, &was));)
        if (begins_with(path, "model.") || !strcmp(path, "optimizer.type"))
            add_change(t, &text, path, was);
    return text.s;
}

/* A folder that was not chosen may hold another experiment. */
static void say_config(const Train *t, const Json *s) {
    bool other;
    const char *what = changes(t, s, &other);
    report_say(
        t,
        "note: the configuration is not the one the checkpoint was saved with; the "
        "new one is used from here on%s",
        what);
    if (other && !t->named && !config_given(t->job.cfg, "output_dir"))
        report_say(t,
                   "note: output_dir is not given, and %s holds that earlier run: "
                   "--output_dir DIR for a run of its own, --resume never to start anew",
                   t->run_dir);
}

/* ---- the data ---- */

/* Of a key that was changed: does it name other data, or other tokens of them? */
static bool names_data(const char *path) {
    static const char *const but[] = {
        "train_dataset.batch_size",      "train_dataset.data_loader.seed",
        "train_dataset.data_loader.eod", "train_dataset.data_loader.shuffle",
        "train_dataset.prefetch_size",   "train_dataset.data_loader.num_samples",
        "train_dataset.drop_remainder",  "train_dataset.data_loader.eod_mask_loss"};
    return begins_with(path, "train_dataset.") && !is_one_of(path, but, ARRAY_LEN(but));
}

/* Or does it make other batches of them? */
static bool makes_batches(const char *path) {
    static const char *const keys[] = {"seed",
                                       "model.model_config.eos_token",
                                       "model.model_config.pad_token",
                                       "train_dataset.data_loader.eod",
                                       "train_dataset.data_loader.seed",
                                       "train_dataset.data_loader.shuffle",
                                       "train_dataset.data_loader.num_samples"};
    return names_data(path) || is_one_of(path, keys, ARRAY_LEN(keys));
}

/* What two runs have in common, by their keys and the shape of their samples. */
typedef struct Common {
    bool data, batches; /* batches: but for their size */
    bool length;        /* of the run */
    int64_t batch;      /* of the run of the checkpoint */
} Common;

static Common common_with(const Train *t, const Json *s) {
    const Json *data = json_get(s, "data");
    const char *path, *was;
    bool known = json_get(s, "config") || train_same_config(t, s);
    int64_t seq = json_get_i64(data, "seq", 0, INT64_MAX, 0);
    Common c = {.data = seq == t->data->seq,
                .length = true,
                .batch = json_get_i64(data, "batch", 0, INT32_MAX, 0)};
    c.data &= !strcmp(json_get_string(data, "path", ""), t->data->path);
    c.batches = c.data && known && c.batch > 0;
    for (int k = 0; (path = next_change(t, s, &k, &was));) {
        c.data &= !names_data(path);
        c.batches &= !makes_batches(path);
        c.length &= !is_length(path);
    }
    return c;
}

static int64_t length_then(const Json *s, const char *key) {
    const char *was = json_get_string(json_get(s, "config"), key, "");
    return was[0] ? strtoll(was, NULL, 10) : -1;
}

/* The fingerprint of the data in the batches that the run of the checkpoint had, of its size; what is
 * in those of GPTDataset depends on how many it was asked for. "": they cannot be had. */
static void print_as_then(const Train *t, const Json *s, int64_t batch,
                          char print[HASH_HEX_BYTES]) {
    Arena *mem = arena_new();
    Config then = *t->job.cfg;
    then.runner_config_max_steps = length_then(s, "runner_config.max_steps");
    then.runner_config_epochs = MAX(length_then(s, "runner_config.epochs"), 1);
    DataShape shape = job_data_shape(&t->job, batch, then.runner_config_max_steps);
    shape.step_rows = batch;
    Catch c;
    print[0] = 0;
    if (CATCH(c)) {
        Data *d = data_open_split(mem, &then, SPLIT_TRAIN, &shape);
        data_fingerprint(d, print);
        data_close(d);
        catch_end(&c);
    }
    arena_free(mem);
}

/* Other data under keys that name the same. */
static void compare_data(const Train *t, const Json *s) {
    const Json *data = json_get(s, "data");
    int64_t tokens = json_get_i64(data, "tokens", 0, INT64_MAX, 0);
    const char *print = json_get_string(data, "fingerprint", "");
    Common same = common_with(t, s);
    char now[HASH_HEX_BYTES];
    if (!same.data) return;
    if (tokens && tokens != t->data->tokens) {
        report_say(t,
                   "WARNING: %s had %lld tokens when the checkpoint was saved and has "
                   "%lld now; the run goes on with what is there now",
                   t->data->path, (long long)tokens, (long long)t->data->tokens);
        return;
    }
    if (!same.batches || !print[0] || !t->data_print[0]) return;
    bool asked = t->job.cfg->train_dataset_data_loader_type == LOADER_GPT_DATASET;
    snprintf(now, sizeof now, "%s", t->data_print);
    if ((asked && !same.length) || same.batch != t->data->batch)
        print_as_then(t, s, same.batch, now);
    if (now[0] && strcmp(print, now))
        report_say(t,
                   "WARNING: %s has the size it had when the checkpoint was saved, but "
                   "other content; the run goes on with what is there now",
                   t->data->path);
}

bool train_other_validation(const Train *t, const Json *s) {
    const char *was = json_get_string(s, "validation", "");
    return was[0] && t->valid_print[0] && strcmp(was, t->valid_print) != 0;
}

void train_say_changes(const Train *t, const Json *s) {
    int64_t threads = json_get_i64(s, "threads", 0, INT32_MAX, 0);
    const char *hash = json_get_string(s, "config_hash", "");
    if (threads && threads != t->threads)
        report_say(t,
                   "note: saved with %lld threads, resumed with %d: the order of sums, "
                   "and so the last bits, will differ",
                   (long long)threads, t->threads);
    if (hash[0] && !train_same_config(t, s)) say_config(t, s);
    compare_data(t, s);
    if (t->valid_changed)
        report_say(t,
                   "note: validation takes other samples than before, so that its "
                   "losses are not to be compared with those up to here%s",
                   t->job.cfg->train_dataset_data_loader_type == LOADER_GPT_DATASET
                       ? "; GPTDataset has the same ones in runs of any length with "
                         "num_samples"
                       : "");
}
