/* tokenizer.c - opens, describes, decodes and writes tokenizers; see tokenizer.h. */
#include "base/json.h"
#include "runtime/text/bpe.h"
#include "runtime/text/bpe_load.h"
#include <errno.h>
#include <strings.h>
#include <unistd.h>

#define JSON_NAME   "tokenizer.json"
#define CONFIG_NAME "tokenizer_config.json"

static Tokenizer *open_bytes(Arena *mem) {
    Tokenizer *t = NEW(mem, Tokenizer);
    t->serial = tokenizer_next_serial();
    t->bytes = true;
    t->vocab = 256;
    t->eod = t->bos = -1;
    t->max_char_tokens = 1;
    t->describe = "bytes, 256 ids";
    t->token = NEW_ARRAY(mem, Token, 256);
    char *text = arena_alloc(mem, 256);
    for (int i = 0; i < 256; i++) {
        text[i] = (char)i;
        t->token[i] = (Token){.s = text + i, .n = 1, .kind = TOKEN_BYTES};
    }
    return t;
}

/* bos_token and eos_token are texts, or objects with the text as "content", or null: there is
 * none, and no token has the name "". NULL: the file leaves it out. */
static const char *token_named(const Json *config, const char *key) {
    const Json *v = json_get(config, key);
    if (v && v->kind == JSON_OBJECT) v = json_get(v, "content");
    if (v && v->kind == JSON_NULL) return "";
    return v && v->kind == JSON_STRING ? json_string(v) : NULL;
}

void tokenizer_take_config(Arena *mem, Tokenizer *t, const char *name, const char *json,
                           size_t n) {
    const Json *v = json_parse(mem, name, json, n, TOKENIZER_MAX_FILE_BYTES, EXIT_DATA);
    json_want(v, JSON_OBJECT);
    bpe_set_ends(mem, t, token_named(v, "bos_token"), token_named(v, "eos_token"));
    t->config = json;
    t->config_n = n;
}

/* A file in that folder; NULL: it is not there. */
static const char *beside(Arena *mem, const char *path, const char *name) {
    const char *other = path_join(mem, path_folder(mem, path), name);
    return file_exists(other) ? other : NULL;
}

static bool of_folder(const TokenizerSpec *spec) {
    return spec->type && !strcmp(spec->type, "GPT2Folder");
}

/* The file of the spec beside which others belong to it; NULL: none do. */
static const char *main_file(const TokenizerSpec *spec) {
    const char *file = spec->tokenizer_file;
    if (!file && of_folder(spec)) file = spec->vocab_file;
    return file && file[0] ? file : NULL;
}

static const char *config_of(Arena *mem, const TokenizerSpec *spec) {
    const char *file = main_file(spec);
    return file ? beside(mem, file, CONFIG_NAME) : NULL;
}

void tokenizer_spec_files(Arena *mem, const TokenizerSpec *spec,
                          const char *path[TOKENIZER_FILES]) {
    const char *const all[TOKENIZER_FILES] = {spec->vocab_file, spec->merge_file,
                                              spec->tokenizer_file, config_of(mem, spec)};
    for (int i = 0; i < TOKENIZER_FILES; i++)
        path[i] = all[i] && all[i][0] ? all[i] : NULL;
}

/* The others are read now: they may be replaced before they are written. */
static void take_files_of(Arena *mem, Tokenizer *t, const TokenizerSpec *spec) {
    size_t n;
    const char *path = config_of(mem, spec), *file = main_file(spec);
    if (path) {
        char *json = file_read(mem, path, TOKENIZER_MAX_FILE_BYTES, &n, EXIT_DATA);
        tokenizer_take_config(mem, t, path, json, n);
    }
    if (file) t->along = along_read(mem, path_folder(mem, file), &t->nalong);
}

static const char *named_in(Arena *mem, const char *path, const char *key) {
    if (!path) return "";
    const Json *v =
        json_get(json_read(mem, path, TOKENIZER_MAX_FILE_BYTES, EXIT_DATA), key);
    return v && v->kind == JSON_STRING ? json_string(v) : "";
}

/* Files of Qwen2, say, look the same, and text is split in another way. */
static void want_gpt2(Arena *mem, const TokenizerSpec *spec) {
    static const char *const keys[] = {"tokenizer_class", "model_type"};
    const char *path[] = {config_of(mem, spec),
                          beside(mem, spec->vocab_file, "config.json")};
    for (int i = 0; i < 2; i++) {
        const char *name = named_in(mem, path[i], keys[i]);
        if (!name[0]) continue;
        if (!strncasecmp(name, "gpt2", 4)) return;
        fail(
            EXIT_DATA,
            "%s: %s is %.100s, and vocab.json with merges.txt says how GPT-2 splits text "
            "only; save a tokenizer.json beside them: AutoTokenizer.from_pretrained(DIR)"
            ".save_pretrained(DIR) of transformers does",
            path[i], keys[i], name);
    }
}

static Tokenizer *open_bpe(Arena *mem, const TokenizerSpec *spec) {
    size_t n, merges_n;
    Tokenizer *t;
    if (spec->tokenizer_file) {
        if (spec->vocab_file || spec->merge_file)
            fail(EXIT_CONFIG, "a tokenizer is given as tokenizer_file, or as vocab_file "
                              "and merge_file, not as both");
        char *json =
            file_read(mem, spec->tokenizer_file, TOKENIZER_MAX_FILE_BYTES, &n, EXIT_DATA);
        t = tokenizer_of_json(mem, spec->tokenizer_file, json, n);
        take_files_of(mem, t, spec);
        return t;
    }
    if (spec->vocab_file && ends_with(spec->vocab_file, ".model"))
        fail(EXIT_CONFIG,
             "%s is of SentencePiece, which is not there: give tokenizer_file (the "
             "tokenizer.json that transformers makes of it)",
             spec->vocab_file);
    if (!spec->vocab_file || !spec->merge_file)
        fail(EXIT_CONFIG,
             "GPT2BPETokenizer needs %s: give vocab_file (vocab.json) and merge_file "
             "(merges.txt), or tokenizer_file (tokenizer.json)",
             spec->vocab_file   ? "a merge_file"
             : spec->merge_file ? "a vocab_file"
                                : "its files");
    if (of_folder(spec)) want_gpt2(mem, spec);
    char *vocab =
        file_read(mem, spec->vocab_file, TOKENIZER_MAX_FILE_BYTES, &n, EXIT_DATA);
    char *merges =
        file_read(mem, spec->merge_file, TOKENIZER_MAX_FILE_BYTES, &merges_n, EXIT_DATA);
    t = tokenizer_of_vocab(mem, spec->vocab_file, vocab, n, spec->merge_file, merges,
                           merges_n);
    take_files_of(mem, t, spec);
    return t;
}

static const char *const types[] = {"GPT2BPETokenizer", "ByteTokenizer"};

void tokenizer_check_type(const char *type) {
    if (is_one_of(type, types, ARRAY_LEN(types))) return;
    const char *near = nearest_name(type, types, ARRAY_LEN(types));
    fail(EXIT_CONFIG,
         "unknown tokenizer type '%.100s'%s%s%s; there are GPT2BPETokenizer and "
         "ByteTokenizer",
         type, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

Tokenizer *tokenizer_open(Arena *mem, const TokenizerSpec *spec) {
    const char *type = spec->type ? spec->type : types[0];
    if (!strcmp(type, types[0]) || of_folder(spec)) return open_bpe(mem, spec);
    tokenizer_check_type(type);
    if (spec->vocab_file || spec->merge_file || spec->tokenizer_file)
        fail(EXIT_CONFIG, "ByteTokenizer has no files: leave out %s",
             spec->vocab_file   ? spec->vocab_file
             : spec->merge_file ? spec->merge_file
                                : spec->tokenizer_file);
    return open_bytes(mem);
}

int64_t tokenizer_vocab(const Tokenizer *t) {
    return t->vocab;
}

int64_t tokenizer_eod(const Tokenizer *t) {
    return t->eod;
}

bool tokenizer_is_qwen2(const Tokenizer *t) {
    return t->rule.split == SPLIT_QWEN2 && t->rule.nfc;
}

int64_t tokenizer_bos(const Tokenizer *t) {
    return t->bos;
}

bool tokenizer_falls_back(const Tokenizer *t) {
    return t->byte_fallback;
}

bool tokenizer_special(const Tokenizer *t, int32_t id) {
    check(id >= 0 && id < t->vocab);
    return t->token[id].kind == TOKEN_SPECIAL;
}

const int32_t *tokenizer_prefix(const Tokenizer *t, int *n) {
    *n = t->nprefix;
    return t->prefix;
}

const int32_t *tokenizer_suffix(const Tokenizer *t, int *n) {
    *n = t->nsuffix;
    return t->suffix;
}

const char *tokenizer_describe(const Tokenizer *t) {
    return t->describe;
}

const char *tokenizer_piece(const Tokenizer *t, int32_t id, bool first, size_t *n) {
    const Token *k = &t->token[id];
    *n = k->n;
    bool added = k->kind != TOKEN_BYTES && t->first == FIRST_SPACES_OFF;
    if (!first || added || !k->n || k->s[0] != ' ') return k->s;
    size_t off = t->first == FIRST_WHOLE ? 0 : 1;
    while (t->first == FIRST_SPACES_OFF && off < k->n && k->s[off] == ' ') off++;
    *n -= off;
    return k->s + off;
}

size_t tokenizer_decode(const Tokenizer *t, const int32_t *ids, size_t n, char *out,
                        size_t cap) {
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= t->vocab)
            fail(EXIT_DATA, "id %d at position %zu is outside of the vocabulary, 0..%lld",
                 ids[i], i, (long long)t->vocab - 1);
        size_t size;
        const char *s = tokenizer_piece(t, ids[i], i == 0, &size);
        if (bytes < cap) memcpy(out + bytes, s, MIN(size, cap - bytes));
        bytes += size;
    }
    return bytes;
}

size_t tokenizer_valid_utf8(const char *s, size_t n, char *out) {
    uint64_t bad = 0;
    return bpe_utf8_replace(s, n, out, &bad);
}

/* ---- writing ---- */

static const char *token_text(Arena *mem, const Tokenizer *t, int32_t id, size_t *n) {
    const Token *k = &t->token[id];
    *n = k->n;
    return k->kind == TOKEN_BYTES ? bytes_to_chars(mem, k->s, k->n, n) : k->s;
}

static void add_vocab(Arena *mem, Text *out, const Tokenizer *t) {
    text_add(out, "{");
    for (int32_t i = 0; i < t->vocab; i++) {
        size_t n;
        const char *s = token_text(mem, t, i, &n);
        if (i) text_add(out, ",");
        json_write_bytes(out, s, n);
        text_add(out, ":%d", i);
    }
    text_add(out, "}");
}

/* Merge i as `left right`. */
static const char *merge_text(Arena *mem, const Tokenizer *t, int32_t i) {
    size_t n, m;
    const char *left = token_text(mem, t, t->merge[i].left, &n);
    const char *right = token_text(mem, t, t->merge[i].right, &m);
    return arena_printf(mem, "%s %s", left, right);
}

static void add_tokenizer_json(Arena *mem, Text *out, const Tokenizer *t) {
    text_add(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
                  "\"added_tokens\":[");
    for (int32_t i = 0, n = 0; i < t->vocab; i++) {
        if (t->token[i].kind != TOKEN_SPECIAL) continue;
        text_add(out, "%s{\"id\":%d,\"content\":", n++ ? "," : "", i);
        json_write_bytes(out, t->token[i].s, t->token[i].n);
        text_add(out, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                      "\"normalized\":false,\"special\":true}");
    }
    text_add(out, "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                  "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
                  "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\","
                  "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
                  "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
                  "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                  "\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":");
    add_vocab(mem, out, t);
    text_add(out, ",\"merges\":[");
    for (int32_t i = 0; i < t->merges; i++) {
        if (i) text_add(out, ",");
        json_write_string(out, merge_text(mem, t, i));
    }
    text_add(out, "]}}\n");
}

/* What transformers needs beside a tokenizer.json that says nothing of its ends. */
static void add_config(Text *out, const Tokenizer *t) {
    text_add(out, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"");
    const struct {
        const char *key;
        int64_t id;
    } ends[] = {{"bos_token", t->bos}, {"eos_token", t->eod}};
    for (int i = 0; i < ARRAY_LEN(ends); i++) {
        if (ends[i].id < 0) continue;
        text_add(out, ",\n  \"%s\": ", ends[i].key);
        json_write_bytes(out, t->token[ends[i].id].s, t->token[ends[i].id].n);
    }
    text_add(out, "\n}\n");
}

static FileBytes file_of(Arena *mem, const char *dir, const char *name, const Text *t) {
    return (FileBytes){path_join(mem, dir, name), t->s, t->n};
}

/* vocab.json and merges.txt; returns how many. */
static int add_pair(Arena *mem, const Tokenizer *t, const char *dir, FileBytes *file) {
    Text vocab = text_new(mem), merges = text_new(mem);
    if (t->json) return 0;
    add_vocab(mem, &vocab, t);
    text_add(&vocab, "\n");
    text_add(&merges, "#version: 0.2\n");
    for (int32_t i = 0; i < t->merges; i++)
        text_add(&merges, "%s\n", merge_text(mem, t, i));
    file[0] = file_of(mem, dir, "vocab.json", &vocab);
    file[1] = file_of(mem, dir, "merges.txt", &merges);
    return 2;
}

/* Does the folder hold a tokenizer.json, and another one? */
static bool holds_another(Arena *mem, const char *dir, const Text *json) {
    const char *path = path_join(mem, dir, JSON_NAME);
    size_t n;
    Catch c;
    if (!file_exists(path)) return false;
    if (!CATCH(c)) return true;
    const char *was = file_read(mem, path, TOKENIZER_MAX_FILE_BYTES, &n, EXIT_DATA);
    catch_end(&c);
    return n != json->n || memcmp(was, json->s, n);
}

static const char *const own_files[] = {JSON_NAME, CONFIG_NAME, "vocab.json",
                                        "merges.txt", "tokenizer.model"};

const char *const *tokenizer_files_in(Arena *mem, const char *dir, int *n) {
    int nalong, cap = 0;
    const char *const *along = along_names(mem, dir, &nalong), **name = NULL;
    *n = 0;
    for (int i = 0; i < ARRAY_LEN(own_files); i++)
        if (folder_has(mem, dir, own_files[i])) PUSH(mem, name, *n, cap, own_files[i]);
    for (int i = 0; i < nalong; i++) PUSH(mem, name, *n, cap, along[i]);
    return name;
}

void tokenizer_remove(const char *dir) {
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(own_files); i++)
        unlink(path_join(mem, dir, own_files[i]));
    along_remove_others(NULL, 0, dir);
    arena_free(mem);
}

static void move_file(Arena *mem, const char *from, const char *to) {
    int error = dir_make(path_folder(mem, to));
    if (!error && rename(from, to) != 0) error = errno;
    if (!error) error = dir_sync_of(to);
    if (error) fail(EXIT_DATA, "cannot rename %s to %s: %s", from, to, strerror(error));
}

void tokenizer_move(const char *from, const char *to) {
    Arena *mem = arena_new();
    int n;
    const char *const *name = tokenizer_files_in(mem, from, &n);
    tokenizer_remove(to);
    for (int i = 0; i < n; i++)
        move_file(mem, path_join(mem, from, name[i]), path_join(mem, to, name[i]));
    arena_free(mem);
}

const char *tokenizer_files(Arena *mem, const Tokenizer *t) {
    Text names = text_new(mem);
    text_add(&names, "%s%s, %s", t->json ? "" : "vocab.json, merges.txt, ", JSON_NAME,
             CONFIG_NAME);
    for (int i = 0; i < t->nalong; i++) text_add(&names, ", %s", t->along[i].name);
    return names.s;
}

void tokenizer_write(const Tokenizer *t, const char *dir) {
    check(!t->bytes);
    Arena *mem = arena_new();
    int error = dir_make(dir);
    if (error) {
        arena_free(mem);
        fail(EXIT_DATA, "cannot make %s: %s", dir, strerror(error));
    }
    Text json = text_new(mem), config = text_new(mem);
    if (t->json)
        text_add_bytes(&json, t->json, t->json_n);
    else
        add_tokenizer_json(mem, &json, t);
    bool another = holds_another(mem, dir, &json);
    if (t->config)
        text_add_bytes(&config, t->config, t->config_n);
    else
        add_config(&config, t);
    FileBytes file[4]; /* of one tokenizer, whatever happens */
    int n = add_pair(mem, t, dir, file);
    file[n++] = file_of(mem, dir, JSON_NAME, &json);
    file[n++] = file_of(mem, dir, CONFIG_NAME, &config);
    files_write(file, n, EXIT_DATA);
    /* The chat template of one tokenizer must not stay beside another. */
    if (another) along_remove_others(t->along, t->nalong, dir);
    along_write(t->along, t->nalong, dir);
    arena_free(mem);
}
