/* bpe.c - text to ids and back with a small vocabulary: what comes back is the text, with
 * U+FFFD for what is not UTF-8. The first byte: bit 0 allows special tokens, the rest
 * repeats the text, so that long words come up too. */
#include "runtime/text/bpe.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n);

enum { VOCAB = 300 };
static Arena *mem;
static Tokenizer *t;
static TokenizerCache *cache;

static void make_tokenizer(void) {
    static const char text[] =
        "the cat sat on the mat, the other cat didn't; they'll see that we've 12 12 345\n"
        "    if (a == b) {\n        aaaa aaaaaa abab\n    }\n caf\xC3\xA9 caf\xC3\xA9 "
        "\xEF\xBF\xBD\xEF\xBF\xBD \xE2\x82\xAC\xE2\x82\xAC \xE2\x82\xAC the cat sat";
    mem = arena_new();
    cache = tokenizer_cache_new();
    TokenizerTrainer *tr = tokenizer_trainer_new(mem);
    tokenizer_trainer_add(tr, text, sizeof text - 1, NULL);
    t = tokenizer_train(tr, VOCAB);
}

static void check_round(Arena *a, const char *s, size_t n, bool special) {
    uint64_t bad = 0, counted = 0;
    size_t cap = tokenizer_max_tokens(t, n),
           back = bpe_utf8_replace(s, n, NULL, &counted);
    int32_t *id = NEW_ARRAY(a, int32_t, cap);
    size_t ids = tokenizer_encode(t, cache, s, n, special, id, cap, &bad);
    char *want = arena_alloc(a, back), *got = arena_alloc(a, back);
    check(ids <= cap && bad == counted && (bad || ids <= n));
    bpe_utf8_replace(s, n, want, &counted);
    check(bpe_utf8_valid(want, back) && (bad > 0) != bpe_utf8_valid(s, n));
    check(tokenizer_decode(t, id, ids, got, back) == back && !memcmp(got, want, back));
    for (size_t i = 0; i < ids; i++) check(special || id[i] != tokenizer_eod(t));
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n) {
    if (!t) make_tokenizer();
    if (n == 0) return 0;
    Arena *a = arena_new();
    size_t repeats = (size_t)(input[0] >> 1) % 16 + 1;
    Text text = text_new(a);
    for (size_t i = 0; i < repeats; i++) text_add_bytes(&text, input + 1, n - 1);
    check_round(a, text.s, text.n, input[0] & 1);
    arena_free(a);
    return 0;
}
