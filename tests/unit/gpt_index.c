/* gpt_index.c - what Megatron-LM's sample order is made of: the random stream, splits,
 * blends, indices on lengths made here. */
#include "runtime/data/gpt_index.h"
#include "../test.h"
#include "runtime/data/mt19937.h"

static Arena *mem;

/* ---- the random stream ---- */

/* numpy: RandomState(5489).randint(0, 2**32, dtype=uint32) begins as std::mt19937 does;
 * its 10000th word is fixed by the C++ standard. */
TEST(mt19937_known_words) {
    Mt19937 m;
    mt19937_seed(&m, 5489);
    EXPECT_INT(mt19937_next(&m), 3499211612u);
    EXPECT_INT(mt19937_next(&m), 581869302u);
    for (int i = 2; i < 9999; i++) mt19937_next(&m);
    EXPECT_INT(mt19937_next(&m), 4123659995u);
}

/* numpy.random.RandomState(1234): shuffle(arange(10)); RandomState(0): arange(16) */
TEST(shuffle_is_numpys) {
    static const uint32_t want10[] = {7, 2, 9, 1, 0, 8, 4, 5, 6, 3};
    static const uint32_t want16[] = {1,  6, 8,  9,  13, 4, 2, 14,
                                      10, 7, 15, 11, 3,  0, 5, 12};
    uint32_t x[16];
    Mt19937 m;
    mt19937_seed(&m, 1234);
    for (uint32_t i = 0; i < 10; i++) x[i] = i;
    mt19937_shuffle(&m, x, 10);
    EXPECT(!memcmp(x, want10, sizeof want10));
    mt19937_seed(&m, 0);
    for (uint32_t i = 0; i < 16; i++) x[i] = i;
    mt19937_shuffle(&m, x, 16);
    EXPECT(!memcmp(x, want16, sizeof want16));
    mt19937_shuffle(&m, x, 1);
    mt19937_shuffle(&m, x, 0);
    EXPECT(!memcmp(x, want16, sizeof want16));
}

TEST(interval_of_two_words) {
    Mt19937 a, b;
    mt19937_seed(&a, 7);
    mt19937_seed(&b, 7);
    EXPECT_INT(mt19937_interval(&a, 0), 0);
    EXPECT_INT(mt19937_interval(&a, UINT32_MAX), mt19937_next(&b));
    uint64_t high = mt19937_next(&b), low = mt19937_next(&b);
    EXPECT(mt19937_interval(&a, UINT64_MAX) == (high << 32 | low));
    for (int i = 0; i < 1000; i++) EXPECT(mt19937_interval(&a, 4) <= 4);
}

/* ---- splits and blends ---- */

static void expect_split(const char *split, int64_t n, int64_t a, int64_t b, int64_t c) {
    int64_t bound[4];
    gpt_split(split, n, bound);
    if (bound[0] || bound[1] != a || bound[2] != b || bound[3] != c)
        test_fail(__FILE__, __LINE__, "%s of %lld: %lld %lld %lld", split, (long long)n,
                  (long long)bound[1], (long long)bound[2], (long long)bound[3]);
}

TEST(splits) {
    int64_t bound[4];
    expect_split("949,50,1", 1500, 1424, 1498, 1500); /* 1423.5 and 1498.5: to even */
    expect_split("90,10,0", 1500, 1350, 1500, 1500);
    expect_split("1", 3, 3, 3, 3);
    expect_split("0.5, 0.25, 0.25", 10, 5, 8, 10); /* 7.5 to 8 */
    expect_split("1,1,2", 10, 2, 5, 10);           /* 2.5 to 2 */
    expect_split("969, 30, 1", 0, 0, 0, 0);
    EXPECT_FAIL(gpt_split("", 5, bound), EXIT_CONFIG, "949,50,1");
    EXPECT_FAIL(gpt_split("0,0", 5, bound), EXIT_CONFIG, "not all 0");
    EXPECT_FAIL(gpt_split("1,2,3,4", 5, bound), EXIT_CONFIG, "one to three");
    EXPECT_FAIL(gpt_split("1.2.3", 5, bound), EXIT_CONFIG, "split");
    EXPECT_FAIL(gpt_split("-1,2", 5, bound), EXIT_CONFIG, "split");
}

TEST(blends) {
    static const double weight[] = {0.5, 0.3, 0.2};
    static const int16_t want[] = {0, 1, 2, 0, 1, 0, 2, 0, 1, 0};
    int16_t source[10];
    uint32_t sample[10], count[3] = {0};
    gpt_blend(weight, 3, 10, source, sample);
    for (int i = 0; i < 10; i++) {
        EXPECT_INT(source[i], want[i]);
        EXPECT(sample[i] == count[source[i]]++);
    }
    static const int64_t size[] = {1, 5, 2};
    static const int16_t all[] = {1, 2, 0, 1, 1, 2, 1, 1};
    gpt_blend_all(size, 3, 8, source, sample);
    for (int i = 0; i < 8; i++) EXPECT_INT(source[i], all[i]);
}

/* ---- indices on lengths made here ---- */

static GptIndexSpec spec_of(const int32_t *lengths, int64_t n, int64_t seq,
                            int64_t samples) {
    IndexedTable *t = NEW(mem, IndexedTable);
    t->lengths = (const unsigned char *)lengths;
    return (GptIndexSpec){"test", t, 0, n, seq, samples, 1, 1234};
}

/* Every sample has seq + 1 tokens and begins where the one before ended. */
static void expect_sound(const GptIndexSpec *s, const GptIndex *x) {
    char *seen = arena_alloc(mem, (size_t)x->samples);
    for (int64_t i = 0; i < x->samples; i++) {
        int64_t place = x->sample[2 * i], offset = x->sample[2 * i + 1], n = 0;
        for (; place < x->sample[2 * i + 2]; place++, offset = 0)
            n += indexed_length(s->table, x->document[place]) - offset;
        n += x->sample[2 * i + 3] - offset;
        EXPECT_INT(n, s->seq);
        EXPECT(x->shuffle[i] < x->samples && !seen[x->shuffle[i]]++);
    }
    EXPECT_INT(x->documents, x->epochs * (s->end - s->first));
}

TEST(one_document) {
    mem = arena_new();
    int32_t length = 100;
    GptIndex x;
    GptIndexSpec s = spec_of(&length, 1, 10, -1);
    gpt_index_build(mem, &s, &x);
    EXPECT(x.samples == 9 && x.epochs == 1 && x.tokens_per_epoch == 100);
    expect_sound(&s, &x);
    s.samples = 30;
    gpt_index_build(mem, &s, &x);
    EXPECT(x.epochs == 4 && x.samples == 39);
    expect_sound(&s, &x);
    s.seq = 99;
    s.samples = 1;
    gpt_index_build(mem, &s, &x);
    EXPECT(x.epochs == 1 && x.samples == 1);
    s.seq = 100; /* one token short: a second epoch */
    gpt_index_build(mem, &s, &x);
    EXPECT(x.epochs == 2 && x.samples == 1);
    s.samples = -1;
    EXPECT_FAIL(gpt_index_build(mem, &s, &x), EXIT_DATA, "hold 100 tokens; a sample of");
}

TEST(empty_documents) {
    mem = arena_new();
    int32_t lengths[] = {0, 3, 0, 0, 9, 1, 0, 5};
    GptIndex x;
    for (int64_t seq = 1; seq < 12; seq++) {
        for (int64_t samples = -1; samples < 40; samples += 3) {
            GptIndexSpec s = spec_of(lengths, 8, seq, samples);
            gpt_index_build(mem, &s, &x);
            EXPECT(x.samples >= samples);
            expect_sound(&s, &x);
        }
    }
    GptIndexSpec s = spec_of(lengths, 8, 4, 5);
    s.first = 2, s.end = 4;
    EXPECT_FAIL(gpt_index_build(mem, &s, &x), EXIT_DATA, "hold no tokens");
    s.first = s.end = 8;
    EXPECT_FAIL(gpt_index_build(mem, &s, &x), EXIT_DATA, "hold no tokens");
}

/* 10 documents of 100 tokens, seq 10: 99 samples in an epoch. With less than 79 from the
 * last epoch that epoch stays behind the others, documents and samples. */
TEST(last_epoch_apart) {
    mem = arena_new();
    int32_t lengths[10];
    for (int i = 0; i < 10; i++) lengths[i] = 100;
    GptIndex x;
    GptIndexSpec s = spec_of(lengths, 10, 10, 99 + 78);
    gpt_index_build(mem, &s, &x);
    EXPECT(x.epochs == 2 && x.samples == 199);
    int sum = 0;
    for (int i = 0; i < 10; i++) sum += x.document[i];
    EXPECT_INT(sum, 45);
    for (int i = 0; i < 99; i++) EXPECT(x.shuffle[i] < 99);
    expect_sound(&s, &x);
    s.samples = 99 + 79;
    gpt_index_build(mem, &s, &x);
    int late = 0;
    for (int i = 0; i < 99; i++) late += x.shuffle[i] >= 99;
    EXPECT(x.samples == 199 && late > 20);
    expect_sound(&s, &x);
}

TEST(too_many) {
    mem = arena_new();
    int32_t lengths[2] = {5, 5};
    GptIndex x;
    GptIndexSpec s = spec_of(lengths, 2, 1, INT64_MAX);
    EXPECT_FAIL(gpt_index_build(mem, &s, &x), EXIT_CONFIG, "ask for fewer");
    s.samples = (int64_t)1 << 33;
    EXPECT_FAIL(gpt_index_build(mem, &s, &x), EXIT_CONFIG, "ask for fewer");
    s.samples = -1;
    s.epochs = (int64_t)1 << 62;
    EXPECT_FAIL(gpt_index_build(mem, &s, &x), EXIT_CONFIG, "ask for fewer");
}

TEST_LABEL_OF(ten_million_documents, SLOW);
TEST_LIMIT(ten_million_documents, 120) {
    mem = arena_new();
    int64_t n = 10000000;
    int32_t *lengths = NEW_ARRAY(mem, int32_t, (size_t)n);
    uint32_t r = 1;
    for (int64_t i = 0; i < n; i++) {
        r = r * 1664525u + 1013904223u;
        lengths[i] = (int32_t)(r >> 22);
    }
    GptIndex x;
    GptIndexSpec s = spec_of(lengths, n, 1024, -1);
    double begin = clock_seconds();
    gpt_index_build(mem, &s, &x);
    double seconds = clock_seconds() - begin;
    printf("  index of 10 million documents, %lld samples: %.2f s\n",
           (long long)x.samples, seconds);
    EXPECT(x.samples == (x.tokens_per_epoch - 1) / 1024 && seconds < 10);
}
