/* replicas.h - the ranks of a prediction, told by rank 0 what to do: each replica of the
 * model goes on with texts of its own, all of them a step at a time. With one rank there
 * is one replica and nothing is sent. */
#ifndef STATOR_REPLICAS_H
#define STATOR_REPLICAS_H
#include "frontend/tools/generate.h"
#include "frontend/tools/text.h"

typedef struct Replicas {
    Generator *g;
    int n;    /* texts at a time: a batch for each replica, one replica after the other */
    int mine; /* the first of this rank's */
    const float **scores; /* on rank 0, by text: of the next token, f32[vocab], until the
                             next step; of one that is not there whatever there was */
    int32_t *message;     /* kind of step, then tokens for each text */
    int32_t *token;       /* of all texts, one after the other */
    float *received;
} Replicas;

/* On all ranks. */
Replicas *replicas_new(Arena *mem, Generator *g);

/* On rank 0, for all. The prompts that texts begin with, or a token more of each text; n = 0:
 * there is no such text (any more). */
void replicas_prompts(Replicas *r, const Tokens *prompt);
void replicas_tokens(Replicas *r, const Tokens *token);
void replicas_end(Replicas *r); /* lets the others return from replicas_follow */

/* On the other ranks: does what rank 0 says until it ends. */
void replicas_follow(Replicas *r);

#endif
