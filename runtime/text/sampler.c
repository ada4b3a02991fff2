/* sampler.c - see sampler.h. */
#include "runtime/text/sampler.h"
#include "base/rng.h"
#include <math.h>

enum { STREAM_SAMPLER = 0x73616d70 }; /* apart from the streams of initial weights */

struct Sampler {
    Sampling set;
    int vocab;
    bool *seen, *barred;
    const int *bar; /* the tokens that are barred */
    int nbar;
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
    s->barred = NEW_ARRAY(mem, bool, n);
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

void sampler_forget(Sampler *s) {
    memset(s->seen, 0, (size_t)s->vocab * sizeof *s->seen);
}

void sampler_bar(Sampler *s, const int *token, int n) {
    for (int i = 0; i < s->nbar; i++) s->barred[s->bar[i]] = false;
    for (int i = 0; i < n; i++) {
        check(token[i] >= 0 && token[i] < s->vocab);
        s->barred[token[i]] = true;
    }
    s->bar = token;
    s->nbar = n;
}

enum { LANES = 16 };

/* The best of the logits; false: one of them is NaN or +inf, or all are -inf. */
static bool best_logit(const float *x, int n, float *best) {
    float top[LANES];
    int broken[LANES] = {0}, i = 0;
    for (int l = 0; l < LANES; l++) top[l] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            broken[l] |= !(x[i + l] < INFINITY);
            top[l] = x[i + l] > top[l] ? x[i + l] : top[l];
        }
    for (; i < n; i++) {
        broken[0] |= !(x[i] < INFINITY);
        top[0] = x[i] > top[0] ? x[i] : top[0];
    }
    for (int l = 1; l < LANES; l++) {
        broken[0] |= broken[l];
        top[0] = MAX(top[0], top[l]);
    }
    *best = top[0];
    return !broken[0] && top[0] > -INFINITY;
}

/* The same of those that may come; *best is that of all. */
static bool has_best(const Sampler *s, const float *logits, float *best) {
    int i = 0;
    if (!best_logit(logits, s->vocab, best)) return false;
    while (s->nbar && i < s->vocab && (s->barred[i] || logits[i] == -INFINITY)) i++;
    return i < s->vocab;
}

_Noreturn static void refuse_scores(const Sampler *s, const float *logits) {
    for (int i = 0; i < s->vocab; i++)
        if (isnan(logits[i]) || logits[i] == INFINITY)
            fail(EXIT_CHECKPOINT,
                 "the model's score of token %d is %g: its weights are broken (take an "
                 "older "
                 "checkpoint), or too large for compute_dtype float16, if it has that",
                 i, (double)logits[i]);
    fail(EXIT_CHECKPOINT, "the model's scores are all -inf: its weights are broken; "
                          "take an older checkpoint");
}

static double penalized(const Sampler *s, int i, double x) {
    double penalty = s->set.repetition_penalty;
    if (s->barred[i]) return -INFINITY;
    return !s->seen[i] ? x : x > 0 ? x / penalty : x * penalty;
}

/* Fills s->score, the best one being 0. */
static void score_all(Sampler *s, const float *logits) {
    double best = -INFINITY, temperature = s->set.temperature;
    for (int i = 0; i < s->vocab; i++) {
        s->score[i] = penalized(s, i, logits[i]);
        best = MAX(best, s->score[i]);
    }
    /* Only differences to the best one are divided: they cannot overflow upwards. */
    for (int i = 0; i < s->vocab; i++) s->score[i] = (s->score[i] - best) / temperature;
}

/* The first of the best tokens, of logits whose best is `top`. */
static int best_token(const Sampler *s, const float *logits, float top) {
    int at = 0;
    if (s->set.repetition_penalty == 1 && !s->nbar) {
        while (logits[at] != top) at++;
        return at;
    }
    double best = -INFINITY;
    for (int i = 0; i < s->vocab; i++) {
        double x = penalized(s, i, logits[i]);
        if (x > best) best = x, at = i;
    }
    return at;
}

static bool better(const Sampler *s, int a, int b) {
    return s->score[a] > s->score[b] || (s->score[a] == s->score[b] && a < b);
}

/* Restores the heap of n tokens, the best or the worst of them on top, below position i. */
static void sift(const Sampler *s, int n, int i, bool best) {
    for (;;) {
        int child = 2 * i + 1, moved = s->heap[i];
        if (child >= n) return;
        if (child + 1 < n && better(s, s->heap[child + 1], s->heap[child]) == best)
            child++;
        if (better(s, moved, s->heap[child]) == best) return;
        s->heap[i] = s->heap[child];
        s->heap[child] = moved;
        i = child;
    }
}

/* The k best tokens in falling order, 0 < k < vocab: a heap of the best so far. */
static int take_k(Sampler *s, int k, int *ids, double *p) {
    for (int i = 0; i < k; i++) s->heap[i] = i;
    for (int i = k / 2 - 1; i >= 0; i--) sift(s, k, i, false);
    for (int i = k; i < s->vocab; i++) {
        if (!better(s, i, s->heap[0])) continue;
        s->heap[0] = i;
        sift(s, k, 0, false);
    }
    for (int n = k; n--;) {
        ids[n] = s->heap[0];
        p[n] = exp(s->score[ids[n]]);
        s->heap[0] = s->heap[n];
        sift(s, n, 0, false);
    }
    return k;
}

/* The best tokens in falling order, no more than reach `mass`. */
static int take_best(Sampler *s, double mass, int *ids, double *p) {
    int n = s->vocab, count = 0;
    double sum = 0;
    for (int i = 0; i < n; i++) s->heap[i] = i;
    for (int i = n / 2 - 1; i >= 0; i--) sift(s, n, i, true);
    while (n && sum < mass) {
        int id = s->heap[0];
        s->heap[0] = s->heap[--n];
        sift(s, n, 0, true);
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
    float top;
    if (!has_best(s, logits, &top)) refuse_scores(s, logits);
    if (s->set.greedy) {
        ids[0] = best_token(s, logits, top);
        p[0] = 1;
        return 1;
    }
    score_all(s, logits);
    int n;
    int64_t k = s->set.top_k;
    if (k > 0 && k < s->vocab) {
        n = take_k(s, (int)k, ids, p);
        if (s->set.top_p < 1) n = cut_mass(p, n, s->set.top_p);
    } else {
        n = take_all(s, ids, p);
        if (s->set.top_p < 1) n = take_best(s, s->set.top_p * total(p, n), ids, p);
    }
    double sum = total(p, n);
    for (int i = 0; i < n; i++) p[i] /= sum;
    return n;
}

bool sampler_takes(const Sampler *s, const float *logits) {
    float top;
    return has_best(s, logits, &top);
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
