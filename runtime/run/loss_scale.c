/* loss_scale.c - see loss_scale.h. */
#include "runtime/run/loss_scale.h"
#include <math.h>

LossScale loss_scale_start(const LossScaleRule *rule) {
    return (LossScale){
        .rule = *rule, .value = rule->first, .overflows_left = rule->hysteresis};
}

bool loss_scale_can_fall(const LossScale *s) {
    return s->rule.dynamic && s->value > s->rule.least;
}

static void fall(LossScale *s) {
    s->good_steps = 0;
    if (s->overflows_left > 0) s->overflows_left--;
    if (s->overflows_left == 0 && loss_scale_can_fall(s))
        s->value = fmax(s->value / s->rule.factor, s->rule.least);
}

static void grow(LossScale *s) {
    if (++s->good_steps < s->rule.window) return;
    s->good_steps = 0;
    s->overflows_left = s->rule.hysteresis;
    s->value = fmax(s->value, fmin(s->value * s->rule.factor, LOSS_SCALE_MOST));
}

void loss_scale_update(LossScale *s, bool good) {
    if (!s->rule.dynamic) return;
    if (good)
        grow(s);
    else
        fall(s);
}

bool loss_scale_restore(LossScale *s, double value, int64_t good_steps,
                        int64_t overflows_left) {
    if (!(value > 0 && value <= LOSS_SCALE_MOST)) return false;
    if (good_steps < 0 || overflows_left < 0) return false;
    if (!s->rule.dynamic) return true;
    s->value = fmax(value, s->rule.least);
    s->good_steps = good_steps;
    s->overflows_left =
        overflows_left < s->rule.hysteresis ? overflows_left : s->rule.hysteresis;
    return true;
}
