/* tokenizer_json.c - tokenizer files from memory. The first byte: bit 0 chooses
 * tokenizer.json or vocab.json + merges.txt, bits 1 to 3 put the input inside of files
 * that are good otherwise. A zero byte ends vocab.json's part. What loads must encode
 * every byte, within its bound, and give it back where it does not normalize. */
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
    static const char text[] = "ab abab <|e|> the '\xC3\xA9\n\t \x01"
                               "a\xCC\x81\xE2\x96\x81 b";
    size_t cap = tokenizer_max_tokens(t, sizeof text);
    int32_t *id = NEW_ARRAY(mem, int32_t, cap);
    char back[6 * sizeof text];
    bool same = !t->byte_fallback && !t->rule.nfc;
    for (int special = 0; special < 2; special++) {
        size_t n = tokenizer_encode(t, cache, text, sizeof text, special, id, cap, NULL);
        check(n <= cap);
        size_t bytes = tokenizer_decode(t, id, n, back, sizeof back);
        if (!same) continue;
        /* Added tokens may take spaces along. */
        bool takes = false;
        const AddedSet *sets[] = {&t->added, &t->added_after};
        for (int s = 0; s < 2; s++)
            for (int i = 0; i < sets[s]->from[256]; i++)
                takes |= sets[s]->token[i].lstrip || sets[s]->token[i].rstrip;
        check(takes || (bytes == sizeof text && !memcmp(back, text, bytes)));
    }
    check(tokenizer_describe(t)[0] && tokenizer_eod(t) < tokenizer_vocab(t));
}

/* `"<0x00>":0, ...` of the 256 bytes. */
static void add_fallback_bytes(Text *t) {
    for (int i = 0; i < 256; i++) text_add(t, "%s\"<0x%02X>\":%d", i ? "," : "", i, i);
}

/* Where the input is: members of the file, an added token, more of the vocabulary. */
typedef enum Inside { WHOLE, ADDED, VOCAB, MEMBERS } Inside;

static Tokenizer *load_json(Arena *mem, int how, const char *s, size_t n) {
    static const char byte_level[] = ",\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                                     "\"add_prefix_space\":false},\"decoder\":{\"type\":"
                                     "\"ByteLevel\"}";
    static const char fallback[] =
        ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\","
        "\"prepend_scheme\":\"first\",\"split\":false},\"decoder\":{\"type\":"
        "\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
        "\"\xE2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":"
        "\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}";
    Inside inside = (Inside)(how & 3);
    bool bytes = how & 4;
    if (inside == WHOLE && !bytes) return tokenizer_of_json(mem, "fuzz", s, n);
    Text t = text_new(mem);
    text_add(&t, "{\"added_tokens\":[");
    if (inside == ADDED) text_add_bytes(&t, s, n);
    text_add(&t, "]");
    if (inside == MEMBERS) {
        text_add(&t, ",");
        text_add_bytes(&t, s, n);
    } else {
        text_add(&t, "%s", bytes ? fallback : byte_level);
    }
    text_add(&t, ",\"model\":{\"byte_fallback\":%s,\"ignore_merges\":%s,\"vocab\":{",
             bytes ? "true" : "false", how == 4 ? "true" : "false");
    if (bytes) {
        add_fallback_bytes(&t);
        text_add(&t, ",\"ab\":256,\"a\":257,\"b\":258,\"\xE2\x96\x81\":259");
    } else {
        add_bytes(mem, &t);
        text_add(&t, ",\"ab\":256");
    }
    if (inside == VOCAB || (inside == WHOLE && bytes)) text_add_bytes(&t, s, n);
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
    int how = input[0] >> 1 & 7;
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
