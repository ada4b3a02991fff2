/* rope.h - the angles of rotary positions, as published models stretch them to longer
 * sequences. */
#ifndef STATOR_ROPE_H
#define STATOR_ROPE_H
#include "base/base.h"

/* rope_type of Hugging Face's config.json. */
typedef enum RopeType {
    ROPE_DEFAULT,
    ROPE_LINEAR,  /* positions / factor (arXiv 2306.15595) */
    ROPE_DYNAMIC, /* a larger base, for sequences beyond max_positions ("NTK-aware") */
    ROPE_LLAMA3,  /* long waves / factor, short ones as they are, between them a ramp */
    ROPE_YARN,    /* the same by rotations, and larger logits (arXiv 2309.00071) */
    ROPE_TYPES
} RopeType;

/* What a type needs; the others' numbers are 0. */
typedef struct RopeScaling {
    RopeType type;
    double factor;
    int64_t original; /* positions before stretching: llama3, yarn */
    double low, high; /* llama3: low_freq_factor, high_freq_factor; yarn: beta_slow,
                         beta_fast, rotations in the original positions */
    double attention; /* yarn: factor of cos and sin */
    bool exact;       /* yarn: the ramp does not begin and end at whole pairs */
} RopeScaling;

/* yarn's usual factor of cos and sin: 0.1 * mscale * ln(factor) + 1. */
double rope_yarn_scale(double factor, double mscale);
/* Angle of one position for each of the pairs, with the formulas of transformers'
 * modeling_rope_utils. `seq`: positions of a sequence, `positions`: of the model. */
void rope_angles(const RopeScaling *s, double base, int64_t pairs, int64_t positions,
                 int64_t seq, double *out);

#endif
