/* tokenizer.c - opens, describes, decodes and writes tokenizers; see tokenizer.h. */
#include "base/json.h"
#include "runtime/text/bpe.h"
#include "runtime/text/bpe_load.h"

static Tokenizer *open_bytes(Arena *mem) {
    Tokenizer *t = NEW(mem, Tokenizer);
    t->serial = tokenizer_next_serial();
    t->bytes = true;
    t->vocab = 256;
    t->eod = -1;
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

static Tokenizer *open_bpe(Arena *mem, const TokenizerSpec *spec) {
    size_t n, merges_n;
    if (spec->tokenizer_file) {
        if (spec->vocab_file || spec->merge_file)
            fail(EXIT_CONFIG, "a tokenizer is given as tokenizer_file, or as vocab_file "
                              "and merge_file, not as both");
        char *json =
            file_read(mem, spec->tokenizer_file, TOKENIZER_MAX_FILE_BYTES, &n, EXIT_DATA);
        return tokenizer_of_json(mem, spec->tokenizer_file, json, n);
    }
    if (!spec->vocab_file || !spec->merge_file)
        fail(EXIT_CONFIG,
             "GPT2BPETokenizer needs %s: give vocab_file (vocab.json) and merge_file "
             "(merges.txt), or tokenizer_file (tokenizer.json)",
             spec->vocab_file   ? "a merge_file"
             : spec->merge_file ? "a vocab_file"
                                : "its files");
    char *vocab =
        file_read(mem, spec->vocab_file, TOKENIZER_MAX_FILE_BYTES, &n, EXIT_DATA);
    char *merges =
        file_read(mem, spec->merge_file, TOKENIZER_MAX_FILE_BYTES, &merges_n, EXIT_DATA);
    return tokenizer_of_vocab(mem, spec->vocab_file, vocab, n, spec->merge_file, merges,
                              merges_n);
}

Tokenizer *tokenizer_open(Arena *mem, const TokenizerSpec *spec) {
    static const char *const types[] = {"GPT2BPETokenizer", "ByteTokenizer"};
    const char *type = spec->type ? spec->type : types[0];
    if (!strcmp(type, types[0])) return open_bpe(mem, spec);
    if (!strcmp(type, types[1])) {
        if (spec->vocab_file || spec->merge_file || spec->tokenizer_file)
            fail(EXIT_CONFIG, "ByteTokenizer has no files: leave out %s",
                 spec->vocab_file   ? spec->vocab_file
                 : spec->merge_file ? spec->merge_file
                                    : spec->tokenizer_file);
        return open_bytes(mem);
    }
    const char *near = nearest_name(type, types, ARRAY_LEN(types));
    fail(EXIT_CONFIG,
         "unknown tokenizer type '%.100s'%s%s%s; there are GPT2BPETokenizer and "
         "ByteTokenizer",
         type, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

int64_t tokenizer_vocab(const Tokenizer *t) {
    return t->vocab;
}

int64_t tokenizer_eod(const Tokenizer *t) {
    return t->eod;
}

const char *tokenizer_describe(const Tokenizer *t) {
    return t->describe;
}

const char *tokenizer_token(const Tokenizer *t, int32_t id, size_t *n) {
    check(id >= 0 && id < t->vocab);
    *n = t->token[id].n;
    return t->token[id].s;
}

size_t tokenizer_decode(const Tokenizer *t, const int32_t *ids, size_t n, char *out,
                        size_t cap) {
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= t->vocab)
            fail(EXIT_DATA, "id %d at position %zu is outside of the vocabulary, 0..%lld",
                 ids[i], i, (long long)t->vocab - 1);
        const Token *k = &t->token[ids[i]];
        if (bytes < cap) memcpy(out + bytes, k->s, MIN(k->n, cap - bytes));
        bytes += k->n;
    }
    return bytes;
}

/* ---- writing ---- */

static void write_file(Arena *mem, const char *dir, const char *name, const Text *t) {
    const char *path = path_join(mem, dir, name);
    int error = file_write_atomic(path, t->s, t->n);
    if (error) fail(EXIT_DATA, "cannot write %s: %s", path, strerror(error));
}

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

void tokenizer_write(const Tokenizer *t, const char *dir) {
    check(!t->bytes);
    Arena *mem = arena_new();
    int error = dir_make(dir);
    if (error) {
        arena_free(mem);
        fail(EXIT_DATA, "cannot make %s: %s", dir, strerror(error));
    }
    Text vocab = text_new(mem), merges = text_new(mem), json = text_new(mem);
    add_vocab(mem, &vocab, t);
    text_add(&vocab, "\n");
    text_add(&merges, "#version: 0.2\n");
    for (int32_t i = 0; i < t->merges; i++)
        text_add(&merges, "%s\n", merge_text(mem, t, i));
    add_tokenizer_json(mem, &json, t);
    write_file(mem, dir, "vocab.json", &vocab);
    write_file(mem, dir, "merges.txt", &merges);
    write_file(mem, dir, "tokenizer.json", &json);
    arena_free(mem);
}
