/* run_tokenizer.c - see run_tokenizer.h. */
#include "frontend/config/run_tokenizer.h"
#include "frontend/config/commands.h"
#include "frontend/config/config_state.h"
#include "runtime/data/data.h"
#include "runtime/store/ckpt_files.h"

#define TOKENIZER_JSON "tokenizer.json"
#define LOADER         "train_dataset.data_loader."

const char *const tokenizer_keys[TOKENIZER_KEYS] = {
    LOADER "tokenizer_file", LOADER "vocab_file", LOADER "merge_file"};

const char *tokenizer_key_file(const Config *cfg, int key) {
    const char *file = config_written(cfg, tokenizer_keys[key]);
    return file && file[0] ? file : NULL;
}

const char *tokenizer_key_said(const Config *cfg, const char *message) {
    for (int i = 0; i < TOKENIZER_KEYS; i++) {
        const char *file = tokenizer_key_file(cfg, i);
        if (file && strstr(message, file)) return tokenizer_keys[i];
    }
    return NULL;
}

const char *tokenizer_key_gone(const Config *cfg) {
    for (int i = 0; i < TOKENIZER_KEYS; i++) {
        const char *file = tokenizer_key_file(cfg, i);
        if (file && !file_exists(file)) return tokenizer_keys[i];
    }
    return NULL;
}

bool run_tokenizer_found(const TokenizerSpec *s) {
    return s->vocab_file || s->merge_file || s->tokenizer_file;
}

bool tokenizer_is_bytes(const TokenizerSpec *s) {
    return s->type && !strcmp(s->type, "ByteTokenizer");
}

static const char *json_in(Arena *mem, const char *dir) {
    const char *path = path_join(mem, dir, TOKENIZER_JSON);
    return file_exists(path) ? path : NULL;
}

TokenizerSpec tokenizer_of_folder(Arena *mem, const char *dir) {
    /* Of a folder above only where it is known to be of the same run. */
    const char *found = json_in(mem, dir), *at = dir;
    bool checkpoint = folder_has(mem, at, CKPT_MANIFEST);
    for (int up = 0; up < 2 && !found; up++) {
        if (folder_has(mem, at, RUN_CONFIG)) break; /* a run's own folder */
        at = path_join(mem, at, "..");
        if ((up == 0 && checkpoint) || folder_has(mem, at, RUN_CONFIG))
            found = json_in(mem, at);
    }
    if (found) return (TokenizerSpec){.tokenizer_file = found};
    const char *vocab = path_join(mem, dir, "vocab.json");
    const char *merges = path_join(mem, dir, "merges.txt");
    if (!file_exists(vocab) || !file_exists(merges)) return (TokenizerSpec){0};
    return (TokenizerSpec){
        .type = "GPT2Folder", .vocab_file = vocab, .merge_file = merges};
}

const char *data_tokenizer_dir(Arena *mem, const char *prefix) {
    size_t n = strlen(prefix);
    if (ends_with(prefix, ".bin") || ends_with(prefix, ".idx")) n -= 4;
    return arena_printf(mem, "%.*s.tokenizer", (int)n, prefix);
}

static bool same_file(const char *a, const char *b) {
    Arena *mem = arena_new();
    size_t n, m;
    const char *x = file_read(mem, a, TOKENIZER_MAX_FILE_BYTES, &n, EXIT_DATA);
    const char *y = file_read(mem, b, TOKENIZER_MAX_FILE_BYTES, &m, EXIT_DATA);
    bool same = n == m && !memcmp(x, y, n);
    arena_free(mem);
    return same;
}

const char *data_tokenizer(Arena *mem, const Config *cfg) {
    TextList paths = cfg->train_dataset_data_loader_data_path;
    const char *dir = cfg->train_dataset_data_loader_dataset_dir;
    LoaderType type = cfg->train_dataset_data_loader_type;
    if (type != LOADER_GPT_DATASET && type != LOADER_MEGATRON_INDEXED) return NULL;
    const char *found = dir[0] ? json_in(mem, data_tokenizer_dir(mem, dir)) : NULL;
    const char *const *words = data_path_words(mem, paths.items, &paths.n);
    for (int i = 0; i < paths.n; i++) {
        const char *json = json_in(mem, data_tokenizer_dir(mem, words[i]));
        if (json && found && !same_file(json, found))
            config_refuse(cfg, "train_dataset.data_loader.data_path", NULL,
                          "pairs that one tokenizer made, or --tokenizer_file F if "
                          "both are the same for the model",
                          "%s and %s differ: the same number is another text", found,
                          json);
        if (!found) found = json;
    }
    return found;
}

TokenizerSpec tokenizer_of_keys(const Config *cfg) {
    TokenizerSpec s = {.type = cfg->train_dataset_data_loader_tokenizer_type,
                       .vocab_file = cfg->train_dataset_data_loader_vocab_file,
                       .merge_file = cfg->train_dataset_data_loader_merge_file,
                       .tokenizer_file = cfg->train_dataset_data_loader_tokenizer_file};
    const char **text[] = {&s.type, &s.vocab_file, &s.merge_file, &s.tokenizer_file};
    for (int i = 0; i < ARRAY_LEN(text); i++)
        if (!(*text[i])[0]) *text[i] = NULL;
    return s;
}

TokenizerSpec run_tokenizer(Arena *mem, const Config *cfg) {
    TokenizerSpec s = tokenizer_of_keys(cfg);
    if (tokenizer_is_bytes(&s) || run_tokenizer_found(&s)) return s;
    s.tokenizer_file = data_tokenizer(mem, cfg);
    const char *const from[] = {cfg->resume_or_finetune_checkpoint, cfg->init_from,
                                cfg->pretrained_model_dir};
    bool gone = false;
    for (int i = 0; i < ARRAY_LEN(from) && !run_tokenizer_found(&s); i++) {
        if (from[i][0]) s = tokenizer_of_folder(mem, from[i]);
        gone |= from[i][0] && !file_exists(from[i]);
    }
    /* The run that began with it has kept it. */
    if (gone && !run_tokenizer_found(&s)) s = tokenizer_of_folder(mem, cfg->output_dir);
    return s;
}
