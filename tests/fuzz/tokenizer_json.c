/* tokenizer_json.c - tokenizer files from memory. The first byte: bit 0 chooses
 * tokenizer.json or vocab.json + merges.txt, bits 1 and 2 put the input inside of files
 * that are good otherwise. A zero byte ends vocab.json's part. What loads must encode
 * every byte and give it back. */
#include "runtime/text/bpe.h"
#include "runtime/text/bpe_load.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n);

/* `"!":0, ...` of the 256 bytes. */
static void add_bytes(Arena *mem, Text *t) {
    for (int i = 0; i < 256; i++) {
        char byte = (char)gpt2_byte(i);
        size_t n;
        const char *s = bytes_to_chars(mem, &byte, 1, &n);
        text_add(t, "%s\"%s%s\":%d", i ? "," : "",
                 byte == '"' || byte == '\\' ? "\\" : "", s, i);
    }
}

static void use(Arena *mem, const Tokenizer *t) {
    static TokenizerCache *cache;
    if (!cache) cache = tokenizer_cache_new();
    static const char text[] = "ab abab <|e|> the '\xC3\xA9\n\t \x01";
    size_t cap = tokenizer_max_tokens(t, sizeof text);
    int32_t *id = NEW_ARRAY(mem, int32_t, cap);
    char back[sizeof text];
    for (int special = 0; special < 2; special++) {
        size_t n = tokenizer_encode(t, cache, text, sizeof text, special, id, cap, NULL);
        check(n <= sizeof text);
        check(tokenizer_decode(t, id, n, back, sizeof back) == sizeof back);
        check(!memcmp(back, text, sizeof back));
    }
    check(tokenizer_describe(t)[0] && tokenizer_eod(t) < tokenizer_vocab(t));
}

static Tokenizer *load_json(Arena *mem, int how, const char *s, size_t n) {
    if (how == 0) return tokenizer_of_json(mem, "fuzz", s, n);
    Text t = text_new(mem);
    text_add(&t,
             "{\"added_tokens\":[%.*s],\"pre_tokenizer\":{\"type\":\"ByteLevel\","
             "\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"},"
             "\"model\":{\"type\":\"BPE\",\"vocab\":{",
             how & 1 ? (int)n : 0, s);
    add_bytes(mem, &t);
    text_add(&t, ",\"ab\":256");
    if (how == 2) text_add_bytes(&t, s, n);
    text_add(&t, "},\"merges\":[\"a b\"]}}");
    return tokenizer_of_json(mem, "fuzz", t.s, t.n);
}

static Tokenizer *load_files(Arena *mem, int how, const char *s, size_t n) {
    const char *zero = memchr(s, 0, n);
    size_t vocab_n = zero ? (size_t)(zero - s) : n, at = zero ? vocab_n + 1 : n;
    Text t = text_new(mem);
    if (how) {
        text_add(&t, "{");
        add_bytes(mem, &t);
        text_add(&t, ",\"ab\":256,\"abab\":257");
        text_add_bytes(&t, s, vocab_n);
        text_add(&t, "}");
    } else {
        text_add_bytes(&t, s, vocab_n);
    }
    return tokenizer_of_vocab(mem, "fuzz", t.s, t.n, "merges", s + at, n - at);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n) {
    if (n == 0) return 0;
    Arena *mem = arena_new();
    Catch c;
    const char *s = (const char *)input + 1;
    int how = input[0] >> 1 & 3;
    if (CATCH(c)) {
        use(mem, input[0] & 1 ? load_json(mem, how, s, n - 1)
                              : load_files(mem, how, s, n - 1));
        catch_end(&c);
    } else {
        check(c.code == EXIT_DATA && c.message[0]);
    }
    arena_free(mem);
    return 0;
}
