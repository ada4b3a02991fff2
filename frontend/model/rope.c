/* rope.c - see rope.h. */
#include "frontend/model/rope.h"
#include <math.h>

static const double turn = 6.28318530717958647693;

double rope_yarn_scale(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* 0 at `low`, 1 at `high`, and straight between. */
static double ramp(double v, double low, double high) {
    return fmin(fmax((v - low) / (high - low), 0), 1);
}

/* Waves that go round more than `high` times in the original positions stay. */
static double llama3(const RopeScaling *s, double angle) {
    double rounds = (double)s->original * angle / turn;
    double stays = ramp(rounds, s->low, s->high);
    return (1 - stays) * angle / s->factor + stays * angle;
}

/* The pair that goes round so often in the original positions, as a real number. */
static double pair_of(const RopeScaling *s, double rounds, double base, double dim) {
    return dim * log((double)s->original / (rounds * turn)) / (2 * log(base));
}

static double yarn(const RopeScaling *s, double angle, double base, int64_t k,
                   int64_t pairs) {
    double dim = 2 * (double)pairs;
    double low = pair_of(s, s->high, base, dim), high = pair_of(s, s->low, base, dim);
    if (!s->exact) low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, dim - 1);
    if (low == high) high += 0.001; /* as transformers keeps it from a division by 0 */
    double stretched = ramp((double)k, low, high);
    return stretched * angle / s->factor + (1 - stretched) * angle;
}

/* Grows with the sequence, so that the longest wave is as long as with positions / factor
 * and the shortest one stays. */
static double dynamic_base(const RopeScaling *s, double base, int64_t pairs,
                           int64_t positions, int64_t seq) {
    double dim = 2 * (double)pairs, times = (double)seq / (double)positions;
    if (times <= 1 || pairs < 2) return base;
    return base * pow(s->factor * times - (s->factor - 1), dim / (dim - 2));
}

void rope_angles(const RopeScaling *s, double base, int64_t pairs, int64_t positions,
                 int64_t seq, double *out) {
    if (s->type == ROPE_DYNAMIC) base = dynamic_base(s, base, pairs, positions, seq);
    for (int64_t k = 0; k < pairs; k++) {
        double angle = pow(base, -(double)k / (double)pairs);
        if (s->type == ROPE_LINEAR) angle /= s->factor;
        if (s->type == ROPE_LLAMA3) angle = llama3(s, angle);
        if (s->type == ROPE_YARN) angle = yarn(s, angle, base, k, pairs);
        out[k] = angle;
    }
}
