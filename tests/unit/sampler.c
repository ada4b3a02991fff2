/* sampler.c - which tokens may come next and how likely, and the streamed text. */
#include "runtime/text/sampler.h"
#include "../test.h"
#include "frontend/tools/text.h"

enum { V = 5 };

static Sampling plain(void) {
    return (Sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 7};
}

/* Scores whose softmax is exactly proportional to these weights. */
static const float weights_8[V] = {1, 4, 0.5f, 2, 0.5f};

static void scores(float out[V]) {
    for (int i = 0; i < V; i++) out[i] = (float)log(weights_8[i]) + 3;
}

static int candidates(Sampling set, const float *logits, int n, int *ids, double *p) {
    Arena *mem = arena_new();
    int got = sampler_candidates(sampler_new(mem, &set, n), logits, ids, p);
    arena_free(mem);
    return got;
}

TEST(all_tokens) {
    float x[V];
    int ids[V];
    double p[V];
    scores(x);
    EXPECT_INT(candidates(plain(), x, V, ids, p), V);
    for (int i = 0; i < V; i++) {
        EXPECT_INT(ids[i], i);
        EXPECT_NEAR(p[i], weights_8[i] / 8, 1e-7);
    }
}

TEST(temperature) {
    float x[V];
    int ids[V];
    double p[V];
    scores(x);
    Sampling s = plain();
    s.temperature = 0.5; /* squares the weights: 1 16 .25 4 .25 of 21.5 */
    EXPECT_INT(candidates(s, x, V, ids, p), V);
    EXPECT_NEAR(p[1], 16 / 21.5, 1e-7);
    EXPECT_NEAR(p[2], 0.25 / 21.5, 1e-7);
    s.temperature = 1e-300;
    EXPECT_INT(candidates(s, x, V, ids, p), V);
    EXPECT(p[1] == 1 && p[0] == 0);
}

TEST(top_k_renormalises) {
    float x[V];
    int ids[V];
    double p[V];
    scores(x);
    Sampling s = plain();
    s.top_k = 3;
    EXPECT_INT(candidates(s, x, V, ids, p), 3);
    EXPECT(ids[0] == 1 && ids[1] == 3 && ids[2] == 0);
    EXPECT_NEAR(p[0], 4.0 / 7, 1e-7);
    EXPECT_NEAR(p[1], 2.0 / 7, 1e-7);
    EXPECT_NEAR(p[2], 1.0 / 7, 1e-7);
    s.top_k = 100;
    EXPECT_INT(candidates(s, x, V, ids, p), V);
}

TEST(top_p_is_the_smallest_set) {
    float x[V];
    int ids[V];
    double p[V];
    scores(x);
    Sampling s = plain();
    s.top_p = 0.74; /* 4/8 + 2/8 = 0.75 reach it */
    EXPECT_INT(candidates(s, x, V, ids, p), 2);
    EXPECT(ids[0] == 1 && ids[1] == 3);
    EXPECT_NEAR(p[0], 2.0 / 3, 1e-7);
    s.top_p = 0.76;
    EXPECT_INT(candidates(s, x, V, ids, p), 3);
    s.top_p = 1e-6;
    EXPECT_INT(candidates(s, x, V, ids, p), 1);
    EXPECT(ids[0] == 1 && p[0] == 1);
}

TEST(top_p_counts_within_top_k) {
    float x[V];
    int ids[V];
    double p[V];
    scores(x);
    Sampling s = plain();
    s.top_k = 3;    /* 4/7 2/7 1/7 */
    s.top_p = 0.85; /* 6/7 = 0.857: of all tokens it would take three */
    EXPECT_INT(candidates(s, x, V, ids, p), 2);
    s.top_p = 0.86;
    EXPECT_INT(candidates(s, x, V, ids, p), 3);
}

TEST(ties_go_to_lower_ids) {
    const float x[6] = {1, 2, 2, 0, 2, 2};
    int ids[6];
    double p[6];
    Sampling s = plain();
    s.top_k = 3;
    EXPECT_INT(candidates(s, x, 6, ids, p), 3);
    EXPECT(ids[0] == 1 && ids[1] == 2 && ids[2] == 4);
    s.greedy = true;
    EXPECT(candidates(s, x, 6, ids, p) == 1 && ids[0] == 1 && p[0] == 1);
}

TEST(penalty_of_seen_tokens) {
    Arena *mem = arena_new();
    const float x[3] = {2, -1, 1};
    int ids[3];
    double p[3];
    Sampling s = plain();
    s.repetition_penalty = 2; /* scores 1, -2, 1 */
    Sampler *sampler = sampler_new(mem, &s, 3);
    sampler_seen(sampler, 0);
    sampler_seen(sampler, 1);
    EXPECT_INT(sampler_candidates(sampler, x, ids, p), 3);
    double sum = 2 * exp(1) + exp(-2);
    EXPECT_NEAR(p[0], exp(1) / sum, 1e-12);
    EXPECT_NEAR(p[1], exp(-2) / sum, 1e-12);
    arena_free(mem);
}

/* Draws follow the probabilities: chi-squared of 4 degrees below its 0.9999 quantile. */
/* Weights 1 4 .5 2 .5: without the second one the others share what is left. */
TEST(barred_tokens_do_not_come) {
    static const int best[] = {1}, all[] = {0, 1, 2, 3, 4};
    Arena *mem = arena_new();
    float x[V];
    int ids[V];
    double p[V];
    scores(x);
    Sampling sets[] = {plain(), plain(), plain(), plain()};
    sets[1].top_k = 2;
    sets[2].top_p = 0.6;
    sets[3].greedy = true;
    for (int i = 0; i < ARRAY_LEN(sets); i++) {
        Sampler *s = sampler_new(mem, &sets[i], V);
        sampler_bar(s, best, 1);
        int n = sampler_candidates(s, x, ids, p);
        for (int k = 0; k < n; k++) {
            if (ids[k] == 1) EXPECT(p[k] == 0);
            if (i == 0 && ids[k] == 3) EXPECT_NEAR(p[k], 2 / 4.0, 1e-7);
            if (i == 1 && ids[k] == 3) EXPECT_NEAR(p[k], 2 / 3.0, 1e-7);
            if (i == 2) EXPECT_NEAR(p[k], ids[k] == 3 ? 2 / 3.0 : 1 / 3.0, 1e-7);
            if (i == 3) EXPECT(n == 1 && ids[k] == 3 && p[k] == 1);
        }
        EXPECT_INT(sampler_next(s, x, 5) == 1, 0);
        sampler_bar(s, all, V);
        EXPECT(!sampler_takes(s, x));
        EXPECT_FAIL(sampler_next(s, x, 5), EXIT_CHECKPOINT, "all -inf");
        sampler_bar(s, NULL, 0);
        n = sampler_candidates(s, x, ids, p);
        int k = 0;
        while (ids[k] != 1) k++;
        EXPECT(p[k] >= 0.5);
    }
    arena_free(mem);
}

TEST(draws_follow_the_distribution) {
    Arena *mem = arena_new();
    enum { DRAWS = 40000 };
    float x[V];
    scores(x);
    Sampling s = plain();
    Sampler *sampler = sampler_new(mem, &s, V);
    int count[V] = {0};
    for (int i = 0; i < DRAWS; i++) count[sampler_next(sampler, x, i)]++;
    double chi2 = 0;
    for (int i = 0; i < V; i++) {
        double want = DRAWS * weights_8[i] / 8.0;
        chi2 += (count[i] - want) * (count[i] - want) / want;
    }
    EXPECT(chi2 < 23.5);
    arena_free(mem);
}

TEST(same_seed_same_tokens) {
    Arena *mem = arena_new();
    float x[V];
    scores(x);
    Sampling s = plain();
    Sampler *a = sampler_new(mem, &s, V), *b = sampler_new(mem, &s, V);
    s.seed = 8;
    Sampler *c = sampler_new(mem, &s, V);
    int differ = 0, first[100];
    for (int i = 0; i < 100; i++) first[i] = sampler_next(a, x, i);
    for (int i = 99; i >= 0; i--) { /* no state between the draws */
        EXPECT_INT(sampler_next(b, x, i), first[i]);
        differ += sampler_next(c, x, i) != first[i];
    }
    EXPECT(differ > 20);
    arena_free(mem);
}

TEST(broken_scores_are_refused) {
    float x[3] = {0, NAN, 0};
    int ids[3];
    double p[3];
    EXPECT_FAIL(candidates(plain(), x, 3, ids, p), EXIT_CHECKPOINT, "token 1 is");
    x[1] = INFINITY;
    EXPECT_FAIL(candidates(plain(), x, 3, ids, p), EXIT_CHECKPOINT, "is inf");
    x[0] = x[1] = x[2] = -INFINITY;
    EXPECT_FAIL(candidates(plain(), x, 3, ids, p), EXIT_CHECKPOINT, "all -inf");
    x[2] = 0; /* a token that can never come is no fault */
    EXPECT(candidates(plain(), x, 3, ids, p) == 3 && p[2] == 1 && p[0] == 0);
}

TEST(broken_scores_are_refused_when_greedy) {
    float x[3] = {0, NAN, 0};
    int ids[3];
    double p[3];
    Sampling s = plain();
    s.greedy = true;
    EXPECT_FAIL(candidates(s, x, 3, ids, p), EXIT_CHECKPOINT, "token 1 is");
}

TEST(settings_out_of_range) {
    Arena *mem = arena_new();
    Sampling s = plain();
    s.temperature = -1;
    EXPECT_FAIL(sampler_new(mem, &s, V), EXIT_CONFIG, "temperature");
    s = plain();
    s.temperature = NAN;
    EXPECT_FAIL(sampler_new(mem, &s, V), EXIT_CONFIG, "temperature");
    s = plain();
    s.top_k = -1;
    EXPECT_FAIL(sampler_new(mem, &s, V), EXIT_CONFIG, "top_k");
    s = plain();
    s.top_p = 0;
    EXPECT_FAIL(sampler_new(mem, &s, V), EXIT_CONFIG, "top_p");
    s = plain();
    s.repetition_penalty = 0;
    EXPECT_FAIL(sampler_new(mem, &s, V), EXIT_CONFIG, "repetition_penalty");
    arena_free(mem);
}

TEST(large_vocabulary) {
    Arena *mem = arena_new();
    enum { LARGE = 50257 };
    float *x = NEW_ARRAY(mem, float, LARGE);
    int *ids = NEW_ARRAY(mem, int, LARGE);
    double *p = NEW_ARRAY(mem, double, LARGE);
    for (int i = 0; i < LARGE; i++) x[i] = (float)((int64_t)i * 7919 % LARGE) * 1e-3f;
    Sampling s = plain();
    s.top_p = 0.9;
    int n = candidates(s, x, LARGE, ids, p);
    /* Weights fall by exp(-0.001) a rank: 1 - exp(-0.001 n) = 0.9 (1 - exp(-50.257)). */
    EXPECT_INT(n, 2303);
    for (int i = 1; i < n; i++) EXPECT(x[ids[i]] < x[ids[i - 1]]);
    arena_free(mem);
}

/* ---- text ---- */

/* What the stream printed after each byte of s[n], joined by '|', then the end. */
static char *streamed(const char *s, size_t n, const char *stop, bool each_byte) {
    static char all[512];
    Arena *mem = arena_new();
    char *buffer = NULL;
    size_t size = 0, before = 0, at = 0;
    FILE *out = open_memstream(&buffer, &size);
    TextPrinter *t = text_printer_new(mem, out, NULL, &stop, stop != NULL);
    t->each_byte = each_byte;
    for (size_t i = 0; i <= n; i++) {
        bool more = i < n && text_printer_put(t, (unsigned char)s[i]);
        if (!more) text_printer_end(t);
        fflush(out);
        memcpy(all + at, buffer + before, size - before);
        at += size - before;
        before = size;
        if (!more) break;
        all[at++] = '|';
    }
    all[at] = 0;
    fclose(out);
    free(buffer);
    arena_free(mem);
    return all;
}
#define STREAMED(s, stop) streamed((s), sizeof(s) - 1, (stop), false)

TEST(stream_whole_characters) {
    EXPECT_STR(STREAMED("ab", NULL), "a|b|");
    EXPECT_STR(STREAMED("\xC3\xA4x", NULL), "|\xC3\xA4|x|");
    EXPECT_STR(STREAMED("\xE2\x82\xAC", NULL), "||\xE2\x82\xAC|");
    EXPECT_STR(STREAMED("\xF0\x9F\x99\x82", NULL), "|||\xF0\x9F\x99\x82|");
}

TEST(stream_bytes_that_are_no_text) {
    const char *bad = "\xEF\xBF\xBD|";
    EXPECT_STR(STREAMED("\xFF", NULL), bad);
    EXPECT_STR(STREAMED("\x80", NULL), bad);
    EXPECT_STR(STREAMED("\xC3"
                        "a",
                        NULL),
               "|\xEF\xBF\xBD"
               "a|");
    EXPECT_STR(STREAMED("\xE0\x80", NULL), "|\xEF\xBF\xBD\xEF\xBF\xBD|");
    EXPECT_STR(STREAMED("\xED\xA0", NULL), "|\xEF\xBF\xBD\xEF\xBF\xBD|");
    EXPECT_STR(STREAMED("\xF4\x90", NULL), "|\xEF\xBF\xBD\xEF\xBF\xBD|");
    EXPECT_STR(STREAMED("\xE2\x82", NULL), "||\xEF\xBF\xBD");
    EXPECT_STR(STREAMED("\xE4\xB8"
                        "A",
                        NULL),
               "||\xEF\xBF\xBD"
               "A|");
}

TEST(stream_bytes_of_byte_fallback_one_by_one) {
    EXPECT_STR(streamed("\xE4\xB8"
                        "A",
                        3, NULL, true),
               "||\xEF\xBF\xBD\xEF\xBF\xBD"
               "A|");
}

TEST(stream_stop_text) {
    EXPECT_STR(STREAMED("one. two. END more", "END"), "o|n|e|.| |t|w|o|.| |||");
    EXPECT_STR(STREAMED("aab", "ab"), "|a|");
    EXPECT_STR(STREAMED("ENx", "END"), "||ENx|");
    EXPECT_STR(STREAMED("xEN", "END"), "x|||EN");
    EXPECT_STR(STREAMED("\n\nx", "\n\n"), "|");
    EXPECT_STR(STREAMED("a\xC3\xA4!", "\xC3\xA4"), "a||");
    EXPECT_STR(STREAMED("ab", ""), "a|b|");
}

TEST(stop_text_too_long) {
    Arena *mem = arena_new();
    char *long_stop = arena_alloc(mem, TEXT_MAX_STOP_BYTES + 2);
    const char *stop = long_stop;
    memset(long_stop, 'a', TEXT_MAX_STOP_BYTES + 1);
    EXPECT_FAIL(text_printer_new(mem, stdout, NULL, &stop, 1), EXIT_CONFIG,
                "at most 4096");
    arena_free(mem);
}

TEST(token_lists) {
    Arena *mem = arena_new();
    Tokens t = tokens_parse(mem, " 1, 22,3 4\n", 23);
    EXPECT(t.n == 4 && t.id[0] == 1 && t.id[1] == 22 && t.id[2] == 3 && t.id[3] == 4);
    EXPECT_INT(tokens_parse(mem, "", 5).n, 0);
    EXPECT_FAIL(tokens_parse(mem, "1,23", 23), EXIT_CONFIG, "outside of the model's");
    EXPECT_FAIL(tokens_parse(mem, "99999999999999999999", 23), EXIT_CONFIG, "0..22");
    EXPECT_FAIL(tokens_parse(mem, "-1", 23), EXIT_CONFIG, "character 1");
    EXPECT_FAIL(tokens_parse(mem, "1,,2", 23), EXIT_CONFIG, "character 3");
    EXPECT_FAIL(tokens_parse(mem, "1,", 23), EXIT_CONFIG, "after the comma");
    EXPECT_FAIL(tokens_parse(mem, "1;2", 23), EXIT_CONFIG, "character 2");
    t = tokens_of_bytes(mem,
                        "\xFF"
                        "a",
                        2);
    EXPECT(t.n == 2 && t.id[0] == 255 && t.id[1] == 'a');
    arena_free(mem);
}
