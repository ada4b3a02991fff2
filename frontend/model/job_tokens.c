/* job_tokens.c - the tokenizer of a job, and which tokens end its texts and documents. */
#include "frontend/config/config_state.h"
#include "frontend/model/job.h"
#include "runtime/comm/comm.h"

#define LOADER "train_dataset.data_loader."

typedef int64_t Vocabulary(const Job *j);

/* Bytes of a text mean nothing to a model whose tokens are not bytes. With a smaller
 * vocabulary each byte is looked at when it is read. A plan needs no text. */
static void check_bytes(const Job *j, Vocabulary *vocabulary) {
    Config *cfg = j->cfg;
    const char *path = data_path_given(cfg, SPLIT_TRAIN);
    if (cfg->train_dataset_data_loader_type != LOADER_TEXT_FILE || !path[0]) return;
    int64_t vocab = vocabulary(j);
    if (vocab <= 256) return;
    bool embedded = !strcmp(path, "embedded");
    if (!embedded && data_is_pair(j->mem, path))
        config_refuse(cfg, LOADER "type", LOADER "dataset_dir",
                      "--" LOADER "type MegatronIndexed, or GPTDataset",
                      "TextFile reads texts, and %s.idx is of a .bin/.idx pair", path);
    const char *file = embedded ? "TEXT" : path;
    if (j->plans) {
        config_note(
            cfg, LOADER "type",
            "training needs --tokenizer_file tokenizer.json: TextFile gives bytes "
            "as tokens, 0 .. 255, and this model has a vocabulary of %lld",
            (long long)vocab);
        return;
    }
    config_refuse(
        cfg, LOADER "type", LOADER "dataset_dir",
        arena_printf(j->mem,
                     "--tokenizer_file tokenizer.json; to make one: stator "
                     "tokenizer train --input %.100s --vocab-size %lld --output "
                     "tok; or vocab_size 256",
                     file, (long long)vocab),
        "TextFile gives bytes as tokens, 0 .. 255, but this model has a "
        "vocabulary of %lld",
        (long long)vocab);
}

/* Flags with which there is no tokenizer. */
static const char *without_tokenizer(const Job *j) {
    Text t = text_new(j->mem);
    for (int i = 0; i < TOKENIZER_KEYS; i++)
        if (tokenizer_key_file(j->cfg, i))
            text_add(&t, "%s--%s null", t.n ? " " : "", tokenizer_keys[i]);
    return t.s;
}

/* Where it is needed: a failure inside of a file has a place of its own. */
static _Noreturn void refuse_tokenizer(const Job *j, const Catch *c, bool text) {
    const char *said = arena_strdup(j->mem, catch_text(c));
    const char *key = c->at.file ? NULL : tokenizer_key_said(j->cfg, said);
    if (!key) fail_again(c->code, arena_strdup(j->mem, c->message));
    const char *hint = arena_printf(j->mem, "%s: data that are token numbers need none",
                                    without_tokenizer(j));
    fail_at(c->code, config_where(j->cfg, key), text ? NULL : hint, "%s", said);
}

static void note_no_tokenizer(const Job *j, const Catch *c, bool named) {
    const char *key = named ? tokenizer_key_said(j->cfg, c->message) : NULL, *place = "";
    SourcePos at = key ? config_where(j->cfg, key) : (SourcePos){0};
    if (comm_rank() != 0) return;
    if (at.line) place = arena_printf(j->mem, "%s:%d: ", at.file, at.line);
    if (named)
        say_aside("note: %s%s: training needs it, or %s", place, catch_text(c),
                  without_tokenizer(j));
    else
        say_aside("note: the run keeps no tokenizer: %s", catch_text(c));
}

static bool names_tokenizer(const Job *j) {
    for (int i = 0; i < TOKENIZER_KEYS; i++)
        if (tokenizer_key_file(j->cfg, i)) return true;
    return false;
}

/* One that was only found is not needed for data that are tokens: then a file that is not
 * understood costs a line, not the run. A plan needs none that is named. */
static const Tokenizer *open_tokenizer(const Job *j, const TokenizerSpec *spec) {
    const Config *cfg = j->cfg;
    LoaderType type = cfg->train_dataset_data_loader_type;
    const bool text = type == LOADER_TEXT_FILE || type == LOADER_WEBTEXT;
    const bool named = names_tokenizer(j);
    Catch c;
    if (!CATCH(c)) {
        if (text || (named && !j->plans)) refuse_tokenizer(j, &c, text);
        note_no_tokenizer(j, &c, named);
        return NULL;
    }
    const Tokenizer *t = tokenizer_open(j->mem, spec);
    catch_end(&c);
    return t;
}

/* Who has texts in JSON may not want its braces learned. */
static void note_json_as_text(const Job *j) {
    const char *path = data_path_given(j->cfg, SPLIT_TRAIN);
    if (j->cfg->train_dataset_data_loader_type != LOADER_TEXT_FILE) return;
    if (ends_with(path, ".jsonl") || ends_with(path, ".ndjson"))
        config_note(j->cfg, LOADER "dataset_dir",
                    "%s is read as it is, keys and braces too: "
                    "--train_dataset.data_loader.type WebtextDataset takes the texts",
                    path);
}

/* A plan reads no text. */
static void check_texts(const Job *j, const TokenizerSpec *spec) {
    const Config *cfg = j->cfg;
    bool texts = cfg->train_dataset_data_loader_type == LOADER_WEBTEXT;
    if (!texts || tokenizer_is_bytes(spec) || j->plans) return;
    config_refuse(cfg, LOADER "tokenizer_type", LOADER "type",
                  "--tokenizer_file tokenizer.json, or --" LOADER
                  "tokenizer_type ByteTokenizer",
                  "data of type WebtextDataset are texts, and there is no tokenizer");
}

/* Opens the tokenizer of the run, if it has one; every id must have a row in the model. */
static void choose_tokenizer(Job *j, Vocabulary *vocabulary) {
    const Config *cfg = j->cfg;
    note_json_as_text(j);
    TokenizerSpec spec = run_tokenizer(j->mem, cfg);
    if (!run_tokenizer_found(&spec)) {
        check_bytes(j, vocabulary);
        check_texts(j, &spec);
        return;
    }
    j->tokenizer = open_tokenizer(j, &spec);
    if (!j->tokenizer) return;
    int64_t ids = tokenizer_vocab(j->tokenizer), vocab = vocabulary(j);
    if (j->ncolumns || vocab >= ids) return;
    config_refuse(cfg, "model.model_config.vocab_size", LOADER "tokenizer_file",
                  arena_printf(j->mem, "vocab_size %lld, or a multiple of 64 above",
                               (long long)ids),
                  "the tokenizer %s has %lld ids, the model a vocabulary of %lld",
                  spec.tokenizer_file ? spec.tokenizer_file : spec.vocab_file,
                  (long long)ids, (long long)vocab);
}

/* Of a new model, whose keys do not say with which token a text ends: it is GPT-2's. */
static bool end_is_default(const Job *j) {
    bool described = j->has_source || j->cfg->pretrained_model_dir[0];
    return j->has_spec && !described && j->cfg->model_eos_token >= 0 &&
           !config_given(j->cfg, "model.model_config.eos_token");
}

/* Where documents end, their tokenizer knows better than the model. The key says so to a
 * resumed run, which compares it. */
static void choose_eod(Job *j) {
    Config *cfg = j->cfg;
    bool asks = data_asks_for_ends(cfg) && cfg->train_dataset_data_loader_eod < 0;
    int64_t eod = asks ? data_eod_of_tokenizer(cfg) : -1, models = cfg->model_eos_token;
    if (asks && eod < 0 && end_is_default(j))
        config_note(cfg, LOADER "eod",
                    "documents end with token %lld, the default of "
                    "model.model_config.eos_token: there is no tokenizer that says so; "
                    "another one is --" LOADER "eod N",
                    (long long)models);
    if (eod < 0 || eod == models) return;
    cfg->train_dataset_data_loader_eod = eod;
    if (models < 0) return;
    config_note(cfg, LOADER "eod",
                "documents end with token %lld, as their tokenizer says; the "
                "model's eos_token is %lld, which --" LOADER "eod %lld takes instead",
                (long long)eod, (long long)models, (long long)models);
}

/* A text of a new model ends as its tokenizer says. */
static void choose_end(Job *j) {
    int64_t end = j->tokenizer ? tokenizer_eod(j->tokenizer) : -1;
    if (end < 0 || !end_is_default(j)) return;
    j->cfg->model_eos_token = end;
    j->spec.eos[0] = end;
    j->spec.n_eos = 1;
}

void job_choose_tokens(Job *j, int64_t (*vocabulary)(const Job *j)) {
    choose_tokenizer(j, vocabulary);
    choose_end(j);
    choose_eod(j);
}
