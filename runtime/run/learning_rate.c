/* learning_rate.c - learning rates and weight decays; see learning_rate.h. */
#include "runtime/run/learning_rate.h"
#include <math.h>

const char *const learning_rate_name[RATE_COUNT] = {
    "constant",   "linear",       "cosine", "cosine_with_restarts",
    "polynomial", "inverse_sqrt", "wsd"};

static const double PI = 3.14159265358979323846;

/* Share of rate - rate_end that is left at r, 0 .. 1, of the last part of WSD. */
static double decay_share(RateDecay decay, double r) {
    switch (decay) {
    case DECAY_LINEAR:
        return 1 - r;
    case DECAY_COSINE:
        return 0.5 * (1 + cos(PI * r));
    case DECAY_EXPONENTIAL:
        return 2 * pow(0.5, r) - 1;
    case DECAY_MINUS_SQRT:
        return 1 - sqrt(r);
    default:
        die("decay %d", (int)decay);
    }
}

static double wsd_share(const RateSchedule *s, int64_t clock) {
    int64_t begin = s->total_steps - s->wsd_decay_steps;
    if (clock <= begin) return 1;
    return decay_share(s->wsd_decay,
                       (double)(clock - begin) / (double)s->wsd_decay_steps);
}

double learning_rate_at(const RateSchedule *s, int64_t step) {
    check(step >= 1);
    int64_t clock = step - 1, warm = s->warmup_steps;
    if (clock < warm) {
        return s->warmup_rate_init + s->rate * (double)clock / (double)warm;
    }
    if (s->kind == RATE_CONSTANT) return s->rate;
    if (clock > s->total_steps) clock = s->total_steps;
    bool after = step - 1 > s->total_steps;
    int64_t span = s->total_steps - warm;
    /* without steps to decay in it is at its end */
    double x = span > 0 ? (double)(clock - warm) / (double)span : 1;
    double drop = s->rate - s->rate_end;
    switch (s->kind) {
    case RATE_LINEAR:
        return s->rate_end + drop * (1 - x);
    case RATE_COSINE:
        if (step - 1 >= s->total_steps) return s->rate_end;
        return s->rate_end + drop * 0.5 * (1 + cos(2 * PI * s->num_cycles * x));
    case RATE_COSINE_RESTARTS:
        if (x >= 1) return s->rate_end;
        return s->rate_end + drop * 0.5 * (1 + cos(PI * fmod(s->num_cycles * x, 1)));
    case RATE_POLYNOMIAL:
        return s->rate_end + drop * pow(1 - x, s->power);
    case RATE_INVERSE_SQRT:
        if (after) return s->rate_end;
        return MAX(s->rate_end,
                   s->rate * sqrt((double)MAX(warm, 1)) / sqrt((double)MAX(clock, 1)));
    case RATE_WSD:
        return after ? s->rate_end : s->rate_end + drop * wsd_share(s, clock);
    default:
        die("schedule %d", (int)s->kind);
    }
}

double weight_decay_at(const WeightDecay *w, int64_t step) {
    check(step >= 1);
    if (w->style == RAMP_CONSTANT || step > w->total_steps) return w->end;
    double x = (double)(step - 1) / (double)w->total_steps;
    if (w->style == RAMP_COSINE) x = 0.5 * (1 + cos(PI * (1 - x)));
    return w->start + (w->end - w->start) * x;
}

#define WANT(cond, ...)                                                                  \
    do {                                                                                 \
        if (!(cond)) fail(EXIT_CONFIG, "lr_schedule: " __VA_ARGS__);                     \
    } while (0)

void learning_rate_check(const RateSchedule *s) {
    check((unsigned)s->kind < RATE_COUNT && (unsigned)s->wsd_decay < DECAY_COUNT);
    const char *name = learning_rate_name[s->kind];
    WANT(isfinite(s->rate) && s->rate > 0, "learning_rate is %g; it must be above 0",
         s->rate);
    WANT(isfinite(s->warmup_rate_init) && s->warmup_rate_init >= 0,
         "warmup_lr_init is %g; it must be 0 or more", s->warmup_rate_init);
    WANT(s->warmup_steps >= 0, "warmup_steps is %lld; it must be 0 or more",
         (long long)s->warmup_steps);
    if (s->kind == RATE_CONSTANT) return;
    WANT(isfinite(s->rate_end) && s->rate_end >= 0 && s->rate_end <= s->rate,
         "lr_end is %g; it must be 0 or more and not above learning_rate %g", s->rate_end,
         s->rate);
    WANT(
        s->total_steps >= 1 && s->warmup_steps <= s->total_steps,
        "%s needs total_steps of 1 or more and not below warmup_steps; they are %lld and "
        "%lld",
        name, (long long)s->total_steps, (long long)s->warmup_steps);
    bool cosine = s->kind == RATE_COSINE || s->kind == RATE_COSINE_RESTARTS;
    WANT(!cosine || (isfinite(s->num_cycles) && s->num_cycles > 0),
         "num_cycles is %g; it must be above 0", s->num_cycles);
    WANT(s->kind != RATE_POLYNOMIAL || (isfinite(s->power) && s->power > 0),
         "power is %g; it must be above 0", s->power);
    WANT(s->kind != RATE_WSD || (s->wsd_decay_steps >= 1 &&
                                 s->wsd_decay_steps <= s->total_steps - s->warmup_steps),
         "wsd decays for %lld steps; it must be 1 .. %lld (total_steps - warmup_steps)",
         (long long)s->wsd_decay_steps, (long long)(s->total_steps - s->warmup_steps));
}
