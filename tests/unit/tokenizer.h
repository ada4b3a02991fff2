/* tokenizer.h - for tests: small tokenizers, GPT-2's, and encoding into an arena. */
#ifndef STATOR_TESTS_TOKENIZER_H
#define STATOR_TESTS_TOKENIZER_H
#include "../test.h"
#include "base/json.h"
#include "runtime/text/bpe.h"

typedef struct Ids {
    int32_t *id;
    size_t n;
    uint64_t bad;
} Ids;

static TokenizerCache *shared_cache(void) {
    static TokenizerCache *c;
    if (!c) c = tokenizer_cache_new();
    return c;
}

static inline Ids encode(Arena *mem, const Tokenizer *t, const char *s, size_t n,
                         bool special) {
    Ids r = {0};
    size_t cap = tokenizer_max_tokens(t, n);
    r.id = NEW_ARRAY(mem, int32_t, cap + 1);
    r.n = tokenizer_encode(t, shared_cache(), s, n, special, r.id, cap, &r.bad);
    EXPECT(r.n <= cap);
    return r;
}

static inline char *decode(Arena *mem, const Tokenizer *t, Ids ids, size_t *n) {
    *n = tokenizer_decode(t, ids.id, ids.n, NULL, 0);
    char *s = arena_alloc(mem, *n + 1);
    EXPECT_INT(tokenizer_decode(t, ids.id, ids.n, s, *n), *n);
    return s;
}

static inline char *shared_file(Arena *mem, const char *name) {
    const char *dir = shared_dir();
    char *path = dir ? path_join(mem, dir, name) : NULL;
    if (!path || !file_exists(path)) test_skip("no shared file %s", name);
    return path;
}

static inline Tokenizer *open_gpt2(Arena *mem) {
    TokenizerSpec spec = {
        .vocab_file = shared_file(mem, "data/gpt2-tokenizer/vocab.json"),
        .merge_file = shared_file(mem, "data/gpt2-tokenizer/merges.txt"),
    };
    return tokenizer_open(mem, &spec);
}

static const char story[] =
    "The cat sat on the mat; the other cat didn't. \"That's the cat's mat,\" they'd say, "
    "and they'll say it again: the mat that the cat sat on, the hat that the bat ate.\n"
    "    for (int i = 0; i < count; i++) {\n        total += table[i];\n    }\n"
    "In 1999 and 2024 the caf\xC3\xA9 na\xC3\xAFvely served th\xC3\xA9 \xE2\x82\xAC "
    "12.\n";

static Tokenizer *train_on(Arena *mem, const char *text, int64_t vocab) {
    TokenizerTrainer *tr = tokenizer_trainer_new(mem);
    tokenizer_trainer_add(tr, text, strlen(text), NULL);
    return tokenizer_train(tr, vocab);
}

static inline Tokenizer *small_tokenizer(Arena *mem) {
    return train_on(mem, story, 280);
}

static inline uint64_t next_random(uint64_t *state) {
    *state += 0x9E3779B97F4A7C15u;
    uint64_t z = (*state ^ *state >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

#endif
