/* sampler.c - see sampler.h. */
#include "frontend/tools/sampler.h"
#include "base/rng.h"
#include <math.h>

enum { STREAM_SAMPLER = 0x73616d70 }; /* apart from the streams of initial weights */

struct Sampler {
    Sampling set;
    int vocab;
    bool *seen;
    double *score; /* after penalty and temperature */
    int *heap, *ids;
    double *p;
};

Sampler *sampler_new(Arena *mem, const Sampling *set, int vocab) {
    if (!(set->temperature >= 0 && set->temperature < INFINITY))
        fail(EXIT_CONFIG,
             "temperature is %g; write a number from 0 (always the best "
             "token) up",
             set->temperature);
    if (set->top_k < 0)
        fail(EXIT_CONFIG,
             "top_k is %lld; write how many of the best tokens to keep, or "
             "0 for all",
             (long long)set->top_k);
    if (!(set->top_p > 0 && set->top_p <= 1))
        fail(EXIT_CONFIG,
             "top_p is %g; write a probability above 0, at most 1 (all "
             "tokens)",
             set->top_p);
    if (!(set->repetition_penalty >= 0.01 && set->repetition_penalty <= 100))
        fail(EXIT_CONFIG,
             "repetition_penalty is %g; write a number in 0.01..100 (1: "
             "none)",
             set->repetition_penalty);
    check(vocab > 0);
    size_t n = (size_t)vocab;
    Sampler *s = NEW(mem, Sampler);
    s->set = *set;
    s->set.greedy |= set->temperature == 0;
    s->vocab = vocab;
    s->seen = NEW_ARRAY(mem, bool, n);
    s->score = NEW_ARRAY(mem, double, n);
    s->heap = NEW_ARRAY(mem, int, n);
    s->ids = NEW_ARRAY(mem, int, n);
    s->p = NEW_ARRAY(mem, double, n);
    return s;
}

void sampler_seen(Sampler *s, int token) {
    check(token >= 0 && token < s->vocab);
    s->seen[token] = true;
}

/* Fills s->score, the best one being 0. */
static void score_all(Sampler *s, const float *logits) {
    double best = -INFINITY, penalty = s->set.repetition_penalty;
    double temperature = s->set.greedy ? 1 : s->set.temperature;
    for (int i = 0; i < s->vocab; i++) {
        double x = logits[i];
        if (isnan(x) || x == INFINITY)
            fail(EXIT_CHECKPOINT,
                 "the model's score of token %d is %g: its weights are "
                 "broken; take an older checkpoint",
                 i, x);
        if (s->seen[i]) x = x > 0 ? x / penalty : x * penalty;
        s->score[i] = x;
        best = MAX(best, x);
    }
    if (best == -INFINITY)
        fail(EXIT_CHECKPOINT, "the model's scores are all -inf: its weights are broken; "
                              "take an older checkpoint");
    /* Only differences to the best one are divided: they cannot overflow upwards. */
    for (int i = 0; i < s->vocab; i++) s->score[i] = (s->score[i] - best) / temperature;
}

static bool better(const Sampler *s, int a, int b) {
    return s->score[a] > s->score[b] || (s->score[a] == s->score[b] && a < b);
}

/* Restores the heap of the best of n tokens below position i. */
static void sift(const Sampler *s, int n, int i) {
    for (;;) {
        int child = 2 * i + 1, moved = s->heap[i];
        if (child >= n) return;
        if (child + 1 < n && better(s, s->heap[child + 1], s->heap[child])) child++;
        if (!better(s, s->heap[child], moved)) return;
        s->heap[i] = s->heap[child];
        s->heap[child] = moved;
        i = child;
    }
}

/* The best `most` tokens in falling order, but no more than reach `mass`. */
static int take_best(Sampler *s, int most, double mass, int *ids, double *p) {
    int n = s->vocab, count = 0;
    double sum = 0;
    for (int i = 0; i < n; i++) s->heap[i] = i;
    for (int i = n / 2 - 1; i >= 0; i--) sift(s, n, i);
    while (count < most && sum < mass) {
        int id = s->heap[0];
        s->heap[0] = s->heap[--n];
        sift(s, n, 0);
        ids[count] = id;
        p[count] = exp(s->score[id]);
        sum += p[count++];
    }
    return count;
}

static int take_all(const Sampler *s, int *ids, double *p) {
    for (int i = 0; i < s->vocab; i++) {
        ids[i] = i;
        p[i] = exp(s->score[i]);
    }
    return s->vocab;
}

static double total(const double *p, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += p[i];
    return sum;
}

/* The first tokens of ids[n], best first, that reach the share `top_p`. */
static int cut_mass(const double *p, int n, double top_p) {
    double mass = top_p * total(p, n), sum = 0;
    int count = 0;
    while (count < n && sum < mass) sum += p[count++];
    return count;
}

int sampler_candidates(Sampler *s, const float *logits, int *ids, double *p) {
    score_all(s, logits);
    int n;
    int64_t k = s->set.greedy ? 1 : s->set.top_k;
    if (k > 0 && k < s->vocab) {
        n = take_best(s, (int)k, INFINITY, ids, p);
        if (s->set.top_p < 1) n = cut_mass(p, n, s->set.top_p);
    } else {
        n = take_all(s, ids, p);
        if (s->set.top_p < 1)
            n = take_best(s, s->vocab, s->set.top_p * total(p, n), ids, p);
    }
    double sum = total(p, n);
    for (int i = 0; i < n; i++) p[i] /= sum;
    return n;
}

int sampler_next(Sampler *s, const float *logits, int64_t position) {
    check(position >= 0);
    int n = sampler_candidates(s, logits, s->ids, s->p);
    double u = rng_uniform(s->set.seed, STREAM_SAMPLER, (uint64_t)position), sum = 0;
    int last = 0; /* of positive probability, should the sum round to below u */
    for (int i = 0; i < n; i++) {
        if (s->p[i] == 0) continue;
        sum += s->p[i];
        last = i;
        if (u < sum) break;
    }
    return s->ids[last];
}
