/* tokenizer_train.c - merges that are learnt from texts: by hand, against the plain way, and as
 * files. */
#include "tokenizer.h"

/* By hand. Words: "ab" 3, " ab" 2, " abc" 1, "x" 1. Pairs: (a,b) 6; then (G,ab) 3, with G
 * for the space; then (Gab,c) once: not merged. */
TEST(training_by_hand) {
    Arena *mem = arena_new();
    TokenizerTrainer *tr = tokenizer_trainer_new(mem);
    tokenizer_trainer_add(tr, "ab ab", 5, NULL);
    tokenizer_trainer_add(tr, "ab ab abc", 9, NULL);
    tokenizer_trainer_add(tr, "ab", 2, NULL);
    tokenizer_trainer_add(tr, "x", 1, NULL);
    Tokenizer *t = tokenizer_train(tr, 300);
    EXPECT(t->merges == 2 && tokenizer_vocab(t) == 259 && tokenizer_eod(t) == 258);
    size_t n;
    EXPECT(!memcmp(tokenizer_piece(t, 256, false, &n), "ab", 2) && n == 2);
    EXPECT(!memcmp(tokenizer_piece(t, 257, false, &n), " ab", 3) && n == 3);
    EXPECT_FAIL(tokenizer_train(tr, 256), EXIT_CONFIG, "a vocabulary of 256");
    arena_free(mem);
}

/* (a,a) counts overlapping; of the equals (a,b) and (b,a) the lower left id comes first.
 */
TEST(training_ties) {
    Arena *mem = arena_new();
    Tokenizer *t = train_on(mem, "ba1ab1ba1ab", 258);
    EXPECT(t->merge[0].left == t->byte_id['a'] && t->merge[0].right == t->byte_id['b']);
    t = train_on(mem, "ac1ab1ac1ab", 258);
    EXPECT(t->merge[0].left == t->byte_id['a'] && t->merge[0].right == t->byte_id['b']);
    arena_free(mem);
}

/* The plain way: count all pairs of all words before each merge. */
static void plain_train(const Tokenizer *t, const char *text) {
    Arena *mem = arena_new();
    size_t n = strlen(text), words = 0;
    int32_t *id = NEW_ARRAY(mem, int32_t, 2 * n + 1); /* -1 between words */
    for (const char *p = text, *end = text + n, *next; p < end; p = next) {
        next = bpe_word_end(t->char_class, p, end);
        for (; p < next; p++) id[words++] = t->byte_id[(unsigned char)*p];
        id[words++] = -1;
    }
    int vocab = (int)t->vocab;
    int32_t *count = NEW_ARRAY(mem, int32_t, (size_t)vocab * (size_t)vocab);
    for (int32_t r = 0; r <= t->merges; r++) {
        memset(count, 0, (size_t)vocab * (size_t)vocab * sizeof *count);
        int best = 0;
        for (size_t i = 0; i + 1 < words; i++)
            if (id[i] >= 0 && id[i + 1] >= 0) count[id[i] * vocab + id[i + 1]]++;
        for (int i = 0; i < vocab * vocab; i++)
            if (count[i] > count[best]) best = i;
        if (r == t->merges) {
            EXPECT(t->vocab == 400 || count[best] < 2);
            break;
        }
        MergeSlot m = t->merge[r];
        if (best != m.left * vocab + m.right)
            test_fail(__FILE__, __LINE__, "merge %d is (%d, %d), not (%d, %d)", r, m.left,
                      m.right, best / vocab, best % vocab);
        size_t made = 0;
        for (size_t i = 0; i < words; i++) {
            bool both = i + 1 < words && id[i] == m.left && id[i + 1] == m.right;
            id[made++] = both ? m.result : id[i];
            i += both;
        }
        words = made;
    }
    arena_free(mem);
}

TEST(training_against_plain) {
    Arena *mem = arena_new();
    Text random = text_new(mem);
    uint64_t state = 11;
    for (int i = 0; i < 3000; i++)
        text_add(&random, "%c", "aaabbc "[next_random(&state) % 7]);
    plain_train(train_on(mem, story, 400), story);
    plain_train(train_on(mem, random.s, 400), random.s);
    arena_free(mem);
}

TEST(training_again) {
    Arena *mem = arena_new();
    static const char *const names[] = {"vocab.json", "merges.txt", "tokenizer.json"};
    size_t n[2];
    for (int f = 0; f < 3; f++) {
        char *bytes[2];
        for (int i = 0; i < 2; i++) {
            tokenizer_write(small_tokenizer(mem), temp_dir());
            bytes[i] = file_read(mem, path_join(mem, temp_dir(), names[f]), 1 << 20,
                                 &n[i], EXIT_DATA);
        }
        EXPECT(n[0] == n[1] && n[0] > 100 && !memcmp(bytes[0], bytes[1], n[0]));
    }
    arena_free(mem);
}

TEST(trained_files_load) {
    Arena *mem = arena_new();
    Tokenizer *t = small_tokenizer(mem);
    tokenizer_write(t, temp_dir());
    TokenizerSpec two = {.vocab_file = path_join(mem, temp_dir(), "vocab.json"),
                         .merge_file = path_join(mem, temp_dir(), "merges.txt")};
    TokenizerSpec one = {.tokenizer_file = path_join(mem, temp_dir(), "tokenizer.json")};
    Tokenizer *again[] = {tokenizer_open(mem, &two), tokenizer_open(mem, &one)};
    Ids want = encode(mem, t, story, strlen(story), false);
    EXPECT(want.n < strlen(story) * 2 / 3);
    for (int i = 0; i < 2; i++) {
        Ids ids = encode(mem, again[i], story, strlen(story), false);
        EXPECT(ids.n == want.n && !memcmp(ids.id, want.id, ids.n * sizeof *ids.id));
        EXPECT_INT(tokenizer_eod(again[i]), 279);
        EXPECT_STR(tokenizer_describe(again[i]), tokenizer_describe(t));
    }
    arena_free(mem);
}

TEST(training_size) {
    Arena *mem = arena_new();
    size_t n;
    char *text = file_read(mem, shared_file(mem, "data/tinyshakespeare.txt"), 4 << 20, &n,
                           EXIT_DATA);
    double start = clock_seconds();
    Tokenizer *t = train_on(mem, text, 4096);
    EXPECT(clock_seconds() - start < 20);
    EXPECT_INT(tokenizer_vocab(t), 4096);
    Ids ids = encode(mem, t, text, n, false);
    EXPECT(ids.n < n / 3);
    arena_free(mem);
}
