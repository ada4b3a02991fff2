/* data_open.c - from the configuration's keys to an open source; see data_open.h. */
#include "frontend/config/data_open.h"
#include "frontend/config/config_state.h"
#include "frontend/config/run_tokenizer.h"
#include "runtime/data/gpt_index.h"
#include <errno.h>
#include <stdlib.h>

#define LOADER "train_dataset.data_loader."
#define OWN    "eval_dataset.data_loader."

bool data_is_own(const Config *cfg, DataSplit which) {
    bool named = cfg->eval_dataset_data_loader_data_path.n > 0 ||
                 cfg->eval_dataset_data_loader_dataset_dir[0];
    return which == SPLIT_VALID && named && cfg->do_eval;
}

DataPlace data_place(const Config *cfg, DataSplit which) {
    DataPlace own = {OWN "data_path", OWN "dataset_dir",
                     cfg->eval_dataset_data_loader_data_path,
                     cfg->eval_dataset_data_loader_dataset_dir};
    DataPlace of_train = {LOADER "data_path", LOADER "dataset_dir",
                          cfg->train_dataset_data_loader_data_path,
                          cfg->train_dataset_data_loader_dataset_dir};
    return data_is_own(cfg, which) ? own : of_train;
}

static bool is_there(Arena *mem, const char *path) {
    return !path[0] || !strcmp(path, "embedded") || file_exists(path) ||
           file_exists(arena_printf(mem, "%s.idx", path));
}

/* Of one in a blend. */
static bool is_weight(const char *word) {
    char *end;
    strtod(word, &end);
    return end != word && !*end;
}

/* One path that is missing. */
typedef struct Missing {
    const Config *cfg;
    const char *key, *path;
} Missing;

/* The first one behind `after` of them; path NULL: there is none. */
static Missing missing(Arena *mem, const Config *cfg, DataSplit which, int after) {
    DataPlace p = data_place(cfg, which);
    const char *const *words = data_path_words(mem, p.paths.items, &p.paths.n);
    if (!is_there(mem, p.dir) && !after--) return (Missing){cfg, p.dir_key, p.dir};
    for (int i = 0; i < p.paths.n; i++)
        if (!is_weight(words[i]) && !is_there(mem, words[i]) && !after--)
            return (Missing){cfg, p.path_key, words[i]};
    return (Missing){0};
}

const char *data_missing(Arena *mem, const Config *cfg, DataSplit which) {
    return missing(mem, cfg, which, 0).path;
}

/* As the source says it that cannot open it. */
static void refuse_missing(void *context) {
    const Missing *m = context;
    LoaderType type = m->cfg->train_dataset_data_loader_type;
    bool pair = type == LOADER_GPT_DATASET || type == LOADER_MEGATRON_INDEXED;
    bool whole = ends_with(m->path, ".bin") || ends_with(m->path, ".idx");
    fail_at(EXIT_DATA, config_where(m->cfg, m->key), NULL, "cannot open %.500s%s: %s",
            m->path, pair && !whole ? ".idx" : "", strerror(ENOENT));
}

void data_try_paths(Config *cfg) {
    static const DataSplit parts[] = {SPLIT_TRAIN, SPLIT_VALID};
    Arena *mem = cfg->state->mem;
    for (int i = 0; i < ARRAY_LEN(parts); i++) {
        Missing m;
        bool taken = !i || (data_is_own(cfg, parts[i]) && data_has_split(cfg, parts[i]));
        for (int k = 0; taken && (m = missing(mem, cfg, parts[i], k)).path; k++)
            config_try(cfg->state, refuse_missing, &m);
    }
}

/* Batches that are ready come in one order, and once. */
static bool has_splits(const Config *cfg) {
    return cfg->train_dataset_data_loader_type != LOADER_TENSOR_BATCHES;
}

const char *data_loader_name(const Config *cfg) {
    return config_value(cfg, cfg->state->mem, LOADER "type");
}

/* Told at the one that is above, from where the other one can be taken away. */
static _Noreturn void refuse_two_paths(const Config *cfg, const DataPlace *p) {
    static const char *const name[] = {"data_path", "dataset_dir"};
    const char *const path[] = {p->path_key, p->dir_key};
    const SourcePos at[] = {config_where(cfg, path[0]), config_where(cfg, path[1])};
    int here = config_height(cfg, path[1]) > config_height(cfg, path[0]), other = !here;
    const char *file = cfg->state->file, *hint = "keep one of the two";
    if (config_of_flag(at[here]) && !config_of_flag(at[other]))
        hint = arena_printf(cfg->state->mem, "--%s=null takes the other one away",
                            path[other]);
    else if (file && strcmp(at[here].file, at[other].file))
        hint = arena_printf(cfg->state->mem, "%s: null in %s takes the other one away",
                            name[other], file);
    config_refuse(cfg, path[here], NULL, hint,
                  "both data_path and dataset_dir are given (%s: %s:%d)", name[other],
                  at[other].file, at[other].line);
}

const char *data_path_given(const Config *cfg, DataSplit which) {
    DataPlace p = data_place(cfg, which);
    if (p.paths.n && p.dir[0]) refuse_two_paths(cfg, &p);
    if (p.paths.n > 1 && cfg->train_dataset_data_loader_type != LOADER_GPT_DATASET)
        config_refuse(cfg, p.path_key, NULL, "type GPTDataset blends",
                      "data of type %s has one path", data_loader_name(cfg));
    return p.paths.n == 1  ? p.paths.items[0]
           : p.paths.n > 1 ? config_value(cfg, cfg->state->mem, p.path_key)
                           : p.dir;
}

const char *data_split_text(Arena *mem, const Config *cfg) {
    TextList parts = cfg->train_dataset_data_loader_split;
    Text t = text_new(mem);
    int64_t bound[4];
    Catch c;
    for (int i = 0; i < parts.n; i++) text_add(&t, "%s%s", i ? "," : "", parts.items[i]);
    if (!t.n) return "";
    if (!CATCH(c)) catch_fail_at(&c, config_where(cfg, LOADER "split"));
    gpt_split(t.s, 1, bound);
    catch_end(&c);
    return t.s;
}

/* The share of each split as one text, which the reader takes apart; of Megatron-LM data of parts of
 * their own are each that part alone. */
static const char *split_text(Arena *mem, const Config *cfg, DataSplit which) {
    if (data_is_own(cfg, which)) return "0,1,0";
    if (!cfg->train_dataset_data_loader_split.n && data_is_own(cfg, SPLIT_VALID))
        return "1";
    return data_split_text(mem, cfg);
}

static int64_t samples_given(const Config *cfg, DataSplit which) {
    IntList l = cfg->train_dataset_data_loader_num_samples;
    if (l.n > 3)
        config_refuse(cfg, LOADER "num_samples", NULL, "[train, valid, test]",
                      "num_samples has %d numbers", l.n);
    if ((int)which >= l.n) return -2; /* not given */
    if (l.items[which] < -1 || (which == SPLIT_TRAIN && l.items[which] == 0))
        config_refuse(cfg, LOADER "num_samples", NULL, "-1 is one epoch",
                      "num_samples %lld", (long long)l.items[which]);
    return l.items[which];
}

static int64_t split_samples_given(const Config *cfg, DataSplit which) {
    bool gpt = cfg->train_dataset_data_loader_type == LOADER_GPT_DATASET;
    return gpt ? samples_given(cfg, which) : -2;
}

bool data_has_part(const Config *cfg, DataSplit which) {
    if (!has_splits(cfg)) return which == SPLIT_TRAIN || data_is_own(cfg, which);
    Arena *mem = arena_new();
    char split[256];
    snprintf(split, sizeof split, "%s", split_text(mem, cfg, which));
    arena_free(mem);
    bool gpt = cfg->train_dataset_data_loader_type == LOADER_GPT_DATASET;
    int64_t bound[4];
    gpt_split(split[0] ? split : gpt ? DATA_GPT_SPLIT : "1", (int64_t)1 << 40, bound);
    return bound[which] < bound[which + 1] && split_samples_given(cfg, which) != 0;
}

bool data_has_split(const Config *cfg, DataSplit which) {
    if (which == SPLIT_TRAIN) return true;
    return cfg->do_eval && cfg->runner_config_eval_iters > 0 && data_has_part(cfg, which);
}

static int64_t product(const Config *cfg, int64_t a, int64_t b) {
    int64_t v;
    if (__builtin_mul_overflow(a, b, &v))
        config_refuse(cfg, "runner_config.max_steps", "runner_config.eval_iters", NULL,
                      "more samples than can be counted");
    return v;
}

int64_t data_samples(const Config *cfg, const Data *train) {
    int64_t given = split_samples_given(cfg, SPLIT_TRAIN);
    return given > 0 ? MIN(given, train->samples) : train->samples;
}

int64_t data_steps(const Config *cfg, const Data *train) {
    int64_t most = train->steps_available;
    if (cfg->train_dataset_data_loader_type != LOADER_GPT_DATASET) return most;
    return MIN(MAX(data_samples(cfg, train) / train->batch, 1), most);
}

/* Steps of training when they are not given: those of the train split. */
static int64_t steps_of_train(const Config *cfg, const DataShape *shape) {
    Arena *mem = arena_new();
    DataShape s = *shape;
    s.rows = s.step_rows;
    Data *train = data_open_split(mem, cfg, SPLIT_TRAIN, &s);
    int64_t steps = data_steps(cfg, train);
    data_close(train);
    arena_free(mem);
    return steps;
}

/* Samples to ask for; -1: what the epochs have. For validation as many as Megatron-LM asks for, so
 * that their order is the one that they have there. */
static int64_t samples_wanted(const Config *cfg, DataSplit which,
                              const DataShape *shape) {
    int64_t given = split_samples_given(cfg, which), steps = shape->steps;
    if (shape->once) return -1;
    if (given != -2) return given;
    if (cfg->train_dataset_data_loader_type != LOADER_GPT_DATASET) return -1;
    if (which == SPLIT_TRAIN)
        return steps < 0 ? -1 : product(cfg, steps, shape->step_rows);
    int64_t rounds = 1, every = cfg->runner_config_eval_interval;
    if (which == SPLIT_VALID && every) {
        if (steps < 0) steps = steps_of_train(cfg, shape);
        rounds = steps / every + 1;
    }
    return product(cfg, product(cfg, rounds, cfg->runner_config_eval_iters),
                   shape->step_rows);
}

bool data_asks_for_ends(const Config *cfg) {
    return cfg->train_dataset_data_loader_type == LOADER_GPT_DATASET &&
           (cfg->train_dataset_data_loader_reset_position_ids ||
            cfg->train_dataset_data_loader_reset_attention_mask ||
            cfg->train_dataset_data_loader_eod_mask_loss);
}

int64_t data_eod_of_tokenizer(const Config *cfg) {
    Arena *mem = arena_new();
    int64_t end = -1;
    Catch c;
    if (CATCH(c)) {
        TokenizerSpec spec = {.tokenizer_file = data_tokenizer(mem, cfg)};
        if (!spec.tokenizer_file) spec = run_tokenizer(mem, cfg);
        if (run_tokenizer_found(&spec)) end = tokenizer_eod(tokenizer_open(mem, &spec));
        catch_end(&c);
    }
    arena_free(mem);
    return end;
}

/* The token that ends a document: that of the key; else, where something depends on it, that of the
 * tokenizer; else the model's, -1: none. */
static int64_t data_eod(const Config *cfg) {
    int64_t given = cfg->train_dataset_data_loader_eod;
    if (given >= 0) return given;
    int64_t end = data_asks_for_ends(cfg) ? data_eod_of_tokenizer(cfg) : -1;
    return end >= 0 ? end : cfg->model_eos_token;
}

static void fill_gpt(Arena *mem, const Config *cfg, DataSplit which,
                     const DataShape *shape, DataGptSpec *g) {
    TextList paths = data_place(cfg, which).paths;
    int64_t pad = cfg->train_dataset_data_loader_pad_token;
    bool train = which == SPLIT_TRAIN;
    bool pair = cfg->train_dataset_data_loader_type == LOADER_GPT_DATASET;
    TokenizerSpec tokenizer = run_tokenizer(mem, cfg);
    *g = (DataGptSpec){
        .paths = paths.items,
        .n_paths = paths.n,
        .which = which,
        .split = shape->all ? "1" : split_text(mem, cfg, which),
        .samples = samples_wanted(cfg, which, shape),
        .epochs =
            train && shape->steps < 0 && !shape->once ? cfg->runner_config_epochs : 1,
        .once = shape->once,
        .cache_path = cfg->train_dataset_data_loader_data_cache_path,
        .eod = data_eod(cfg),
        .reset_position_ids = cfg->train_dataset_data_loader_reset_position_ids,
        .reset_attention_mask = cfg->train_dataset_data_loader_reset_attention_mask,
        .eod_mask_loss = cfg->train_dataset_data_loader_eod_mask_loss,
        .text_key = cfg->train_dataset_data_loader_text_key,
        .pad = pad >= 0 || pair ? pad : cfg->model_pad_token,
        .pad_in_loss = cfg->train_dataset_data_loader_pad_in_loss,
        .tokenizer_type = tokenizer.type,
        .vocab_file = tokenizer.vocab_file,
        .merge_file = tokenizer.merge_file,
        .tokenizer_file = tokenizer.tokenizer_file};
}

/* Is the path in the text, or one behind it, and not as a part of another name? */
static bool names_path(const char *text, const char *path) {
    const char *at = path[0] ? strstr(text, path) : NULL;
    if (!at) return false;
    char after = at[strlen(path)];
    return (at == text || at[-1] == ' ') && (!after || strchr(" /:,", after));
}

/* The key that a failure is about or whose file it names; else that of the data. */
static const char *key_of_failure(const Config *cfg, DataSplit which, const Catch *c) {
    static const char *const files[] = {LOADER "data_cache_path", LOADER "tokenizer_file",
                                        LOADER "vocab_file", LOADER "merge_file"};
    if (c->about) return !strcmp(c->about, "seed") ? "seed" : LOADER "num_samples";
    for (int i = 0; i < ARRAY_LEN(files); i++) {
        const char *file = config_value(cfg, cfg->state->mem, files[i]);
        if (names_path(catch_text(c), file)) return files[i];
    }
    DataPlace place = data_place(cfg, which);
    return place.paths.n > 0 ? place.path_key : place.dir_key;
}

static Data *open_at_key(Arena *mem, const Config *cfg, DataSplit which,
                         const DataSpec *spec) {
    Catch c;
    if (!CATCH(c)) catch_fail_at(&c, config_where(cfg, key_of_failure(cfg, which, &c)));
    Data *d = data_open(mem, spec);
    catch_end(&c);
    return d;
}

Data *data_open_split(Arena *mem, const Config *cfg, DataSplit which,
                      const DataShape *shape) {
    bool there = shape->once ? data_has_part(cfg, which) : data_has_split(cfg, which);
    if (!there)
        config_refuse(cfg, LOADER "split", LOADER "type",
                      has_splits(cfg) ? "a split such as 949,50,1, and eval_iters above 0"
                                      : "data of another type, or data for validation at "
                                        "eval_dataset.data_loader.dataset_dir",
                      "the data has no samples for %s", data_split_name[which]);
    int64_t seed = cfg->train_dataset_data_loader_seed;
    DataSpec spec = {.type = data_loader_name(cfg),
                     .path = data_path_given(cfg, which),
                     .batch = shape->rows,
                     .seq = shape->seq,
                     .seed = (uint64_t)(seed >= 0 ? seed : cfg->seed),
                     .shuffle = cfg->train_dataset_data_loader_shuffle && !shape->once,
                     .rest = shape->once,
                     .vocab = shape->vocab,
                     .column = shape->column,
                     .ncolumns = shape->ncolumns};
    if (has_splits(cfg)) {
        DataGptSpec *gpt = NEW(mem, DataGptSpec);
        fill_gpt(mem, cfg, which, shape, gpt);
        spec.gpt = gpt;
    }
    Data *d = open_at_key(mem, cfg, which, &spec);
    if (d->note[0]) say_aside("note: %s", d->note);
    return d;
}
