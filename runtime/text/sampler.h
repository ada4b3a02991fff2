/* sampler.h - from the scores of a row (logits) to the next token. */
#ifndef STATOR_SAMPLER_H
#define STATOR_SAMPLER_H
#include "base/base.h"

typedef struct Sampling {
    bool greedy;               /* always the best token */
    double temperature;        /* divides the scores; 0 is greedy */
    int64_t top_k;             /* keep the k best; 0: all */
    double top_p;              /* keep the best with this much probability; 1: all */
    double repetition_penalty; /* for tokens that are in the text already; 1: none */
    uint64_t seed;
} Sampling;

typedef struct Sampler Sampler;

/* Fails with EXIT_CONFIG for settings out of range: temperature >= 0, top_k >= 0,
 * 0 < top_p <= 1, repetition_penalty in 0.01..100. */
Sampler *sampler_new(Arena *mem, const Sampling *s, int vocab);

/* Notes that `token` is in the text, for the penalty; another text begins. */
void sampler_seen(Sampler *s, int token);
void sampler_forget(Sampler *s);

/* Tokens that do not come next, of those called now, and not those before; n 0: all may. */
void sampler_bar(Sampler *s, const int *token, int n);

/* The tokens that may come next, in ids[vocab], and their probabilities in p[vocab],
 * which sum to 1; returns how many. In this order: penalty (a seen token's score is
 * divided by it when positive, else multiplied; Keskar et al. 2019), temperature, top_k,
 * top_p (the smallest set of best tokens whose probability, among the top_k, reaches it;
 * Holtzman et al. 2019). Of equal scores the lower id is the better. With top_k or top_p
 * the best comes first, else the order is that of the ids. Fails with EXIT_CHECKPOINT
 * when a score is NaN or +inf, or all that may come are -inf: then the weights are broken. */
int sampler_candidates(Sampler *s, const float *logits, int *ids, double *p);

/* Are these scores that sampler_next takes, and does not fail? */
bool sampler_takes(const Sampler *s, const float *logits);

/* Draws the token at `position` of the text: a function of seed, position and scores
 * alone. */
int sampler_next(Sampler *s, const float *logits, int64_t position);

#endif
