/* loss_scale.c - how a loss scale follows overflows and good steps. */
#include "runtime/run/loss_scale.h"
#include "../test.h"
#include <math.h>

static const LossScaleRule usual = {.dynamic = true,
                                    .first = 1024,
                                    .least = 1,
                                    .factor = 2,
                                    .window = 3,
                                    .hysteresis = 2};

/* The scale that every step has; of the letters b is an overflow. */
static void expect_scales(LossScale *s, const char *steps, const double *want) {
    for (int i = 0; steps[i]; i++) {
        if (s->value != want[i])
            test_fail(__FILE__, __LINE__, "%s: step %d has %g, wanted %g", steps, i + 1,
                      s->value, want[i]);
        loss_scale_update(s, steps[i] != 'b');
    }
}

TEST(it_falls_after_so_many_overflows_and_with_each_later_one) {
    LossScale s = loss_scale_start(&usual);
    /* good steps between overflows give no overflow back; a growth does */
    expect_scales(&s, "b.b.b...bb.",
                  (double[]){1024, 1024, 1024, 512, 512, 256, 256, 256, 512, 512, 256});
    EXPECT(s.value == 256 && s.good_steps == 1 && s.overflows_left == 0);
}

TEST(an_overflow_begins_the_window_anew) {
    LossScale s = loss_scale_start(&usual);
    expect_scales(&s, "..b....", (double[]){1024, 1024, 1024, 1024, 1024, 1024, 2048});
}

TEST(at_once) {
    LossScaleRule rule = usual;
    rule.hysteresis = 1, rule.window = 1, rule.factor = 4;
    LossScale s = loss_scale_start(&rule);
    expect_scales(&s, "b.b.", (double[]){1024, 256, 1024, 256});
    EXPECT(s.value == 1024);
}

TEST(it_stays_between_its_ends) {
    LossScaleRule rule = usual;
    rule.hysteresis = rule.window = 1, rule.least = 300;
    LossScale s = loss_scale_start(&rule);
    expect_scales(&s, "bbb", (double[]){1024, 512, 300});
    EXPECT(s.value == 300 && !loss_scale_can_fall(&s));
    for (int i = 0; i < 100; i++) loss_scale_update(&s, true);
    EXPECT(s.value == LOSS_SCALE_MOST && isfinite((float)s.value * 1e4f));
    EXPECT(loss_scale_can_fall(&s));
}

TEST(a_fixed_one_stays) {
    LossScaleRule rule = usual;
    rule.dynamic = false, rule.hysteresis = rule.window = 1;
    LossScale s = loss_scale_start(&rule);
    expect_scales(&s, "bb..b", (double[]){1024, 1024, 1024, 1024, 1024});
    EXPECT(!loss_scale_can_fall(&s));
    EXPECT(loss_scale_restore(&s, 8, 1, 1) && s.value == 1024); /* the key counts */
}

/* Stopped anywhere, it goes on as if it had not been. */
TEST(restored) {
    static const char steps[] = "b.b.b...bb.....b";
    for (int stop = 0; stop < (int)sizeof steps - 1; stop++) {
        LossScale a = loss_scale_start(&usual), b = a;
        for (int i = 0; steps[i]; i++) {
            if (i == stop) {
                b = loss_scale_start(&usual);
                EXPECT(loss_scale_restore(&b, a.value, a.good_steps, a.overflows_left));
            }
            EXPECT(a.value == b.value || i < stop);
            loss_scale_update(&a, steps[i] != 'b');
            loss_scale_update(&b, steps[i] != 'b');
        }
    }
}

TEST(what_no_checkpoint_has) {
    LossScale s = loss_scale_start(&usual);
    static const double values[] = {0, -1, NAN, INFINITY, 0x1p61};
    for (int i = 0; i < ARRAY_LEN(values); i++)
        EXPECT(!loss_scale_restore(&s, values[i], 0, 0) && s.value == 1024);
    EXPECT(!loss_scale_restore(&s, 8, -1, 0) && !loss_scale_restore(&s, 8, 0, -1));
    /* another configuration: a higher least, a smaller window and hysteresis */
    EXPECT(loss_scale_restore(&s, 0.5, 1000, 1000));
    EXPECT(s.value == 1 && s.overflows_left == 2);
    loss_scale_update(&s, true);
    EXPECT(s.value == 2 && s.good_steps == 0);
}
