/* eval_config.c - see eval.h. */
#include "frontend/config/config_state.h"
#include "frontend/config/key.h"
#include "frontend/config/options.h"
#include "frontend/config/run_tokenizer.h"
#include "frontend/train/eval.h"
#include "runtime/store/ckpt_files.h"

#define LOADER "train_dataset.data_loader."
#define OWN    "eval_dataset.data_loader."

/* Does it say how other data, of this type, become samples? */
static bool reads_data(const char *key, const char *type) {
    static const char *const any[] = {LOADER "seq_length", LOADER "tokenizer_type",
                                      LOADER "tokenizer_file", LOADER "vocab_file",
                                      LOADER "merge_file"};
    static const char *const documents[] = {
        LOADER "eod", LOADER "eod_mask_loss", LOADER "reset_position_ids",
        LOADER "reset_attention_mask", LOADER "pad_token"};
    static const char *const lines[] = {LOADER "text_key", LOADER "pad_token",
                                        LOADER "pad_in_loss", LOADER "eod"};
    if (is_one_of(key, any, ARRAY_LEN(any))) return true;
    if (!strcmp(type, "WebtextDataset")) return is_one_of(key, lines, ARRAY_LEN(lines));
    return !strcmp(type, "GPTDataset") && is_one_of(key, documents, ARRAY_LEN(documents));
}

static bool is_data_path(const char *key) {
    return !strcmp(key, LOADER "data_path") || !strcmp(key, LOADER "dataset_dir");
}

/* Of a run folder's configuration, which may come from elsewhere: what the model and the
 * data are, and nothing that writes to this machine or needs other ranks. */
static bool is_taken(const char *key, bool data, const char *type) {
    if (!strcmp(key, LOADER "data_cache_path")) return false;
    if (begins_with(key, LOADER)) return data || reads_data(key, type);
    if (begins_with(key, OWN)) return data;
    if (!strcmp(key, "parallel_config.noop_layers")) return true; /* in num_layers */
    return begins_with(key, "train_dataset.") ||
           begins_with(key, "model.model_config.") ||
           !strcmp(key, "runner_config.batch_size") || !strcmp(key, "seed");
}

/* The name by which a key was given as a flag; NULL: it was not. */
static const char *flag_name(const Options *o, const char *path, const char **value) {
    for (int i = 0; i < o->nflags; i++) {
        const char *name = o->flag[i] + 2;
        size_t n = strcspn(name, "=");
        *value = name + n + (name[n] == '=');
        name = arena_strndup(o->mem, name, n);
        int k = key_find(name);
        if (k >= 0 && !strcmp(key_table[k].path, path)) return name;
    }
    return NULL;
}

/* The value of a key that was given as a flag; NULL: it was not. */
static const char *by_flag(const Options *o, const char *path) {
    const char *value;
    return flag_name(o, path, &value) ? value : NULL;
}

typedef struct Flags {
    char **s;
    int n, cap;
} Flags;

static void add_flag(Arena *mem, Flags *f, const char *key, const char *value) {
    PUSH(mem, f->s, f->n, f->cap, arena_printf(mem, "--%s=%s", key, value));
}

/* As it was written in the configuration of a run. */
static void add_taken(Arena *mem, Flags *f, const Config *run, const char *key) {
    char *from = config_flag_from(mem, config_where(run, key));
    PUSH(mem, f->s, f->n, f->cap, from);
    add_flag(mem, f, key, config_value(run, mem, key));
}

/* Where flags say that the data are. */
static bool path_by_flag(const Options *o) {
    return by_flag(o, LOADER "dataset_dir") || by_flag(o, LOADER "data_path");
}

/* What the configuration of a run says, and flags do not; without `data` of its data, which
 * other data of the type `type` take the place of, only how they are read. */
static void take_keys(const Options *o, Flags *f, const char *path, bool data,
                      const char *type) {
    const Config *run = config_load(o->mem, path, 0, NULL);
    for (int k = 0; k < N_KEYS; k++) {
        const char *key = key_table[k].path;
        if (key_table[k].kind == KIND_Tree || key_table[k].cat == CAT_NO_EFFECT) continue;
        const char *value = config_value(run, o->mem, key);
        bool taken = is_taken(key, data, type) && config_given(run, key);
        /* A text that is given as empty is one that is not given; no flag may be empty. */
        if (is_data_path(key) && path_by_flag(o)) continue;
        if (taken && value[0] && !by_flag(o, key)) add_taken(o->mem, f, run, key);
    }
}

/* A folder is the weights itself. */
static void refuse_other_weights(const Options *o) {
    static const char *const keys[] = {"init_from", "resume_or_finetune_checkpoint",
                                       "resume", "resume_training"};
    const char *value, *name;
    for (int i = 0; i < ARRAY_LEN(keys); i++)
        if ((name = flag_name(o, keys[i], &value)))
            fail(EXIT_CONFIG, "the weights are those of %s; leave --%s out", o->word[0],
                 name);
}

/* Of a folder: its weights and what its configuration says of them, changed by the flags. */
static Config *config_of_folder(const Eval *e, const Options *o, const Source *s,
                                const char *weights, bool data) {
    Flags f = {0};
    refuse_other_weights(o);
    add_flag(o->mem, &f, "init_from", weights);
    if (e->data_path && !by_flag(o, LOADER "type"))
        add_flag(o->mem, &f, LOADER "type", e->data_type);
    if (s->config) take_keys(o, &f, s->config, data, e->data_type);
    for (int i = 0; i < o->nflags; i++) PUSH(o->mem, f.s, f.n, f.cap, o->flag[i]);
    return config_load(o->mem, NULL, f.n, f.s);
}

static bool is_pair(Arena *mem, const char *path) {
    return ends_with(path, ".bin") || ends_with(path, ".idx") ||
           file_exists(arena_printf(mem, "%s.idx", path));
}

/* What the name of a path says of its type, for a model of data of the type `model`. */
static const char *type_of(Arena *mem, const char *model, const char *path) {
    static const char *const lines[] = {".jsonl", ".ndjson", ".json"};
    bool gpt = !strcmp(model, "GPTDataset");
    if (is_pair(mem, path)) return gpt ? "GPTDataset" : "MegatronIndexed";
    if (!strcmp(model, "Tensors")) return "Tensors";
    if (ends_with(path, ".safetensors")) return "TensorBatches";
    for (int i = 0; i < ARRAY_LEN(lines); i++)
        if (ends_with(path, lines[i])) return "WebtextDataset";
    return "TextFile";
}

/* Of --data; "" without. */
static void choose_type(Eval *e, const Options *o, const char *model) {
    const char *given = by_flag(o, LOADER "type");
    e->data_type = !e->data_path ? ""
                   : given       ? given
                                 : type_of(e->t.mem, model, e->data_path);
}

static void set_data(const Eval *e, const Options *o, Config *cfg) {
    bool listed = cfg->train_dataset_data_loader_data_path.n > 0;
    if (!by_flag(o, LOADER "type")) config_set_flag(cfg, LOADER "type", e->data_type);
    if (path_by_flag(o))
        fail(EXIT_CONFIG, "--data and a key of the data's path: keep one of the two");
    config_set_from(cfg, listed ? LOADER "data_path" : LOADER "dataset_dir", e->data_path,
                    (SourcePos){.file = "--data"});
}

/* Lines of JSON for a model of bytes. What fills a line up is behind its text and does not
 * count, so any byte will do. */
static void read_bytes(const Source *s, Config *cfg) {
    TokenizerSpec named = run_tokenizer(cfg->state->mem, cfg);
    bool webtext = cfg->train_dataset_data_loader_type == LOADER_WEBTEXT;
    if (!webtext || !s->bytes || run_tokenizer_found(&named)) return;
    if (!named.type) config_set_flag(cfg, LOADER "tokenizer_type", "ByteTokenizer");
    if (cfg->train_dataset_data_loader_pad_token < 0 && cfg->model_pad_token < 0 &&
        cfg->train_dataset_data_loader_eod < 0 &&
        !cfg->train_dataset_data_loader_pad_in_loss)
        config_set_flag(cfg, LOADER "pad_token", "0");
}

static const char *weights_path(Eval *e, const Options *o, const Source *s) {
    char name[CKPT_NAME_BYTES];
    if (!option_given(o, "--checkpoint")) return s->path;
    int64_t step = option_int(o, "--checkpoint", 0);
    if (s->kind != SOURCE_CHECKPOINTS)
        fail(EXIT_CONFIG,
             "--checkpoint is for a run with its checkpoints; %s is one alone", s->path);
    ckpt_name(step, name);
    const char *path = path_join(e->t.mem, s->path, name);
    if (!file_exists(path))
        fail(EXIT_CHECKPOINT,
             "%s has no checkpoint of step %lld; stator inspect %s lists "
             "them",
             s->path, (long long)step, s->path);
    return path;
}

/* Its keys of weights come down to init_from. */
static Config *config_of_file(const Options *o, const Source *s, const char *weights) {
    Config *cfg = config_load(o->mem, s->config, o->nflags, o->flag);
    if (config_given(cfg, "resume_or_finetune_checkpoint"))
        config_set_flag(cfg, "resume_or_finetune_checkpoint", weights);
    config_set_flag(cfg, "init_from", weights);
    return cfg;
}

/* A run goes by its copy of the tokenizer, as in predict (source_take_keys). */
static void take_tokenizer(const Source *s, Config *cfg) {
    const char *copy = s->tokenizer.tokenizer_file;
    TokenizerSpec named = tokenizer_of_keys(cfg);
    if (s->words || !run_tokenizer_found(&s->tokenizer) || !run_tokenizer_found(&named) ||
        source_tokenizer_by_flag(cfg))
        return;
    if (s->gone) say_aside("%s", s->gone);
    if (named.type) config_set_flag(cfg, LOADER "tokenizer_type", "null");
    for (int i = 0; i < TOKENIZER_KEYS; i++)
        if (tokenizer_key_file(cfg, i)) config_set_flag(cfg, tokenizer_keys[i], "null");
    if (copy) config_set_flag(cfg, LOADER "tokenizer_file", copy);
}

static void read_options(Eval *e, const Options *o) {
    static const DataSplit splits[] = {SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST, SPLIT_TRAIN};
    int split = option_choice(o, "--split", -1);
    e->word = o->word[0];
    e->json = option_given(o, "--json");
    e->data_path = option_text(o, "--data");
    e->endings_path = option_text(o, "--endings");
    e->most = option_int(o, "--samples", 0);
    if (e->most && e->endings_path)
        fail(EXIT_CONFIG, "--endings has all its lines asked; leave --samples out");
    if (e->data_path && e->endings_path)
        fail(EXIT_CONFIG, "--data and --endings: one at a time");
    if (split >= 0 && (e->data_path || e->endings_path))
        fail(EXIT_CONFIG,
             "--split is a part of the data of a configuration; all of --%s is "
             "taken",
             e->data_path ? "data" : "endings");
    e->all = e->data_path || split == 3;
    if (split >= 0) e->split = splits[split];
}

/* Without --split the part that is kept for it. */
static void choose_split(Eval *e, const Options *o, const Config *cfg) {
    if (e->all || option_given(o, "--split")) return;
    bool valid = data_has_part(cfg, SPLIT_VALID);
    e->split = valid ? SPLIT_VALID : SPLIT_TRAIN;
    e->all = !valid;
}

/* Of a GPTDataset it says how many samples there are. */
static void refuse_iters(const Options *o, const Config *cfg) {
    if (by_flag(o, "runner_config.eval_iters") &&
        cfg->train_dataset_data_loader_type != LOADER_GPT_DATASET)
        fail(EXIT_CONFIG, "runner_config.eval_iters is of the validation in training; "
                          "write --samples N for the first N samples only");
}

/* What only a run of training writes. */
static void refuse_outputs(const Options *o) {
    static const char *const keys[] = {"dump", "dump_ir", "context.save_graphs",
                                       "profile"};
    for (int i = 0; i < ARRAY_LEN(keys); i++)
        if (by_flag(o, keys[i]))
            fail(EXIT_CONFIG,
                 "--%s changes nothing here: it is for stator train; leave it out",
                 keys[i]);
}

/* How training weighs its labels changes nothing here. */
static void choose_loss(const Options *o, Config *cfg) {
    static const char weighs[] = "runner_wrapper.calculate_per_token_loss";
    if (cfg->runner_wrapper_calculate_per_token_loss) return;
    if (by_flag(o, weighs))
        config_refuse(cfg, weighs, NULL, "leave it out",
                      "the loss of an evaluation is the mean over all labels");
    config_set_flag(cfg, weighs, "True");
}

/* A run folder names its data as they were seen from where it was trained. */
static void need_own_data(const Eval *e, const Source *s, const Config *cfg) {
    const char *path = s->config ? data_missing(e->t.mem, cfg, e->split) : NULL;
    if (!path) return;
    fail(EXIT_DATA,
         "there is no %s, which are the data that %s names%s: write where they are now, "
         "--data PATH",
         path, s->config,
         path[0] == '/' ? "" : ", seen from the folder in which it was trained");
}

Config *eval_config(Eval *e, int argc, char **argv) {
    Arena *mem = e->t.mem;
    const Options *o = options_read(mem, COMMAND_eval, argc, argv);
    if (!o || !o->nwords)
        fail(EXIT_CONFIG, "stator eval needs a run folder, a checkpoint, a Hugging Face "
                          "folder or a configuration file; stator help eval");
    read_options(e, o);
    Source s = source_open(mem, e->word, o->nflags, o->flag);
    bool named = s.config && !strcmp(s.config, e->word);
    const char *weights = weights_path(e, o, &s);
    bool own_data = !e->data_path && !path_by_flag(o);
    bool alike = own_data || (!e->data_path && !by_flag(o, LOADER "type"));
    Config *cfg = named ? config_of_file(o, &s, weights) : NULL;
    choose_type(e, o, named ? data_loader_name(cfg) : s.data_type);
    if (!named) cfg = config_of_folder(e, o, &s, weights, alike);
    take_tokenizer(&s, cfg);
    if (e->data_path) {
        set_data(e, o, cfg);
        read_bytes(&s, cfg);
    }
    choose_split(e, o, cfg);
    if (own_data && !named && !e->endings_path) need_own_data(e, &s, cfg);
    refuse_iters(o, cfg);
    refuse_outputs(o);
    choose_loss(o, cfg);
    return cfg;
}
