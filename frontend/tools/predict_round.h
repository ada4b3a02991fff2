/* predict_round.h - texts that are made at the same time, a batch by each replica. */
#ifndef STATOR_PREDICT_ROUND_H
#define STATOR_PREDICT_ROUND_H
#include "frontend/tools/predict_text.h"
#include "frontend/tools/replicas.h"
#include "runtime/text/sampler.h"

typedef struct RoundText {
    const Prompt *prompt;
    int64_t total;     /* tokens of the whole text, at most; beyond the model's context it
                          slides: where that is full, its last half is a prompt anew */
    int64_t least;     /* no end token comes before it has so many, prompt included */
    int64_t sample;    /* of this prompt, from 0: added to the seed */
    const char *title; /* a line before it; NULL: none */
} RoundText;

/* On rank 0: makes n <= r->n texts and prints them in their order: the first as it comes,
 * the others behind it. A line on each goes to stderr. */
void predict_round(Replicas *r, Sampling sampling, const Wording *w,
                   const RoundText *text, int n);

#endif
