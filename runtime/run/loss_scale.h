/* loss_scale.h - what the loss is multiplied by so that gradients fit into f16: a constant,
 * or adjusted as Megatron-LM's DynamicGradScaler does. */
#ifndef STATOR_LOSS_SCALE_H
#define STATOR_LOSS_SCALE_H
#include <stdbool.h>
#include <stdint.h>

#define LOSS_SCALE_MOST 0x1p60 /* it grows no further */

typedef struct LossScaleRule {
    bool dynamic;
    double first;   /* above 0; it stays that where it is not dynamic */
    double least;   /* it falls no further */
    double factor;  /* above 1: of one step up or down */
    int64_t window; /* good steps in a row before it grows, at least 1 */
    int64_t
        hysteresis; /* overflows before it falls, at least 1; counted anew after a growth */
} LossScaleRule;

typedef struct LossScale {
    LossScaleRule rule;
    double value;           /* of the next step */
    int64_t good_steps;     /* in a row, since it changed */
    int64_t overflows_left; /* before it falls; 0: it falls with each */
} LossScale;

/* Of the first step: the first value of the rule, nothing counted yet. */
LossScale loss_scale_start(const LossScaleRule *rule);
/* Could a smaller scale mend an overflow? */
bool loss_scale_can_fall(const LossScale *s);
/* After a step: were all its gradients finite? */
void loss_scale_update(LossScale *s, bool good);
/* Goes on from what a checkpoint has; false, and nothing changed, for what cannot be. */
bool loss_scale_restore(LossScale *s, double value, int64_t good_steps,
                        int64_t overflows_left);

#endif
