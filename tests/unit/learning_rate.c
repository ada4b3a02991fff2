/* learning_rate.c - learning rates against PyTorch's trajectory and the formulas by hand. */
#include "runtime/run/learning_rate.h"
#include "../test.h"
#include "base/json.h"

static void check_golden(Arena *mem, const char *name) {
    char *path = arena_printf(mem, "%s/golden/%s/trajectory.json", shared_dir(), name);
    const Json *root = json_read(mem, path, 1 << 20, EXIT_DATA);
    const Json *o = json_need(root, "optimizer");
    RateSchedule s = {.kind = RATE_COSINE,
                      .rate = json_f64(json_need(o, "lr")),
                      .rate_end = json_f64(json_need(o, "min_lr")),
                      .warmup_steps = json_i64(json_need(o, "warmup_steps"), 0, 1000),
                      .total_steps = json_i64(json_need(o, "decay_steps"), 1, 1000),
                      .num_cycles = 0.5};
    learning_rate_check(&s);
    int steps = 0;
    for (const Json *e = json_need(root, "steps")->first; e; e = e->next) {
        double want = json_f64(json_need(e, "lr"));
        double got = learning_rate_at(&s, json_i64(json_need(e, "step"), 1, 1000));
        EXPECT(fabs(got - want) <= 1e-15 * s.rate);
        steps++;
    }
    EXPECT_INT(steps, 20);
}

TEST(golden_rates) {
    if (!shared_dir()) test_skip("no shared reference data");
    Arena *mem = arena_new();
    check_golden(mem, "gpt2_tiny");
    check_golden(mem, "gpt2_untied");
    check_golden(mem, "llama_tiny");
    check_golden(mem, "llama_tied_mqa");
}

/* Peak 1, end 0.2, warm-up 4, decay until clock 12. */
static RateSchedule base(RateKind kind) {
    return (RateSchedule){.kind = kind,
                          .rate = 1,
                          .rate_end = 0.2,
                          .warmup_steps = 4,
                          .total_steps = 12,
                          .power = 1,
                          .num_cycles = 0.5,
                          .wsd_decay_steps = 4};
}

static void expect_rates(const RateSchedule *s, const double *want, int n) {
    learning_rate_check(s);
    for (int i = 0; i < n; i++)
        if (!(fabs(learning_rate_at(s, i + 1) - want[i]) < 1e-14))
            test_fail(__FILE__, __LINE__, "%s: step %d: %.17g, wanted %.17g",
                      learning_rate_name[s->kind], i + 1, learning_rate_at(s, i + 1),
                      want[i]);
}
#define RATES(s, ...)                                                                    \
    expect_rates(s, (double[]){__VA_ARGS__}, ARRAY_LEN(((double[]){__VA_ARGS__})))

TEST(warmup) {
    RateSchedule s = base(RATE_CONSTANT);
    RATES(&s, 0, 0.25, 0.5, 0.75, 1, 1, 1);
    s.warmup_rate_init = 0.2;
    RATES(&s, 0.2, 0.45, 0.7, 0.95, 1, 1);
    s.warmup_steps = 0;
    RATES(&s, 1, 1);
    EXPECT(learning_rate_at(&s, INT64_MAX) == 1);
}

TEST(linear_and_polynomial) {
    RateSchedule s = base(RATE_LINEAR), p = base(RATE_POLYNOMIAL);
    RATES(&s, 0, .25, .5, .75, 1, .9, .8, .7, .6, .5, .4, .3, .2, .2, .2);
    RATES(&p, 0, .25, .5, .75, 1, .9, .8, .7, .6, .5, .4, .3, .2, .2, .2);
    p.power = 2;
    RATES(&p, 0, .25, .5, .75, 1, .2 + .8 * 49 / 64, .2 + .8 * 36 / 64);
    p.power = 0.5;
    EXPECT_NEAR(learning_rate_at(&p, 11), 0.2 + 0.8 * 0.5, 1e-15);
    EXPECT(learning_rate_at(&p, 13) == 0.2 && learning_rate_at(&p, INT64_MAX) == 0.2);
    s.warmup_steps = s.total_steps = 3; /* no room to decay */
    RATES(&s, 0, 1 / 3., 2 / 3., .2, .2);
}

TEST(cosine) {
    RateSchedule s = base(RATE_COSINE);
    EXPECT_NEAR(learning_rate_at(&s, 5), 1, 1e-15);
    EXPECT_NEAR(learning_rate_at(&s, 7), 0.2 + 0.4 * (1 + sqrt(0.5)), 1e-15);
    EXPECT_NEAR(learning_rate_at(&s, 9), 0.6, 1e-15);
    EXPECT_NEAR(learning_rate_at(&s, 13), 0.2, 1e-15);
    EXPECT_NEAR(learning_rate_at(&s, 1000), 0.2, 1e-15);
    s.num_cycles = 1; /* down and up again */
    EXPECT_NEAR(learning_rate_at(&s, 9), 0.2, 1e-15);
    EXPECT_NEAR(learning_rate_at(&s, 12), 0.2 + 0.4 * (1 + sqrt(0.5)), 1e-15);
    EXPECT_NEAR(learning_rate_at(&s, 13), 0.2, 1e-15); /* over */
    EXPECT_NEAR(learning_rate_at(&s, 1000), 0.2, 1e-15);
    RateSchedule r = base(RATE_COSINE_RESTARTS);
    r.num_cycles = 2;
    RATES(&r, 0, .25, .5, .75, 1, .6 + .4 * sqrt(.5), .6, .6 - .4 * sqrt(.5), 1,
          .6 + .4 * sqrt(.5), .6, .6 - .4 * sqrt(.5), .2, .2);
}

TEST(inverse_sqrt) {
    RateSchedule s = base(RATE_INVERSE_SQRT);
    s.total_steps = 200;
    RATES(&s, 0, .25, .5, .75, 1, 2 / sqrt(5), 2 / sqrt(6));
    EXPECT_NEAR(learning_rate_at(&s, 17), 0.5, 1e-15);
    EXPECT(learning_rate_at(&s, 151) == 0.2); /* 2/sqrt(150) is below the end */
    s.rate_end = 0.01;
    EXPECT_NEAR(learning_rate_at(&s, 201), 2 / sqrt(200), 1e-15);
    EXPECT(learning_rate_at(&s, 202) == 0.01);
    s.warmup_steps = 0;
    RATES(&s, 1, 1, sqrt(.5));
}

TEST(wsd) {
    RateSchedule s = base(RATE_WSD);
    RATES(&s, 0, .25, .5, .75, 1, 1, 1, 1, 1, .8, .6, .4, .2, .2);
    s.wsd_decay = DECAY_COSINE;
    RATES(&s, 0, .25, .5, .75, 1, 1, 1, 1, 1, .6 + .4 * sqrt(.5), .6, .6 - .4 * sqrt(.5),
          .2, .2);
    s.wsd_decay = DECAY_EXPONENTIAL;
    RATES(&s, 0, .25, .5, .75, 1, 1, 1, 1, 1, .2 + .8 * (2 * pow(.5, .25) - 1),
          .2 + .8 * (sqrt(2) - 1), .2 + .8 * (2 * pow(.5, .75) - 1), .2, .2);
    s.wsd_decay = DECAY_MINUS_SQRT;
    RATES(&s, 0, .25, .5, .75, 1, 1, 1, 1, 1, .6, .2 + .8 * (1 - sqrt(.5)),
          .2 + .8 * (1 - sqrt(.75)), .2, .2);
}

/* Megatron-LM's get_wd, in which the clock is the updates that are done. */
TEST(weight_decay_ramps) {
    WeightDecay w = {RAMP_CONSTANT, 0.1, 0.1, 4};
    for (int step = 1; step < 9; step++) EXPECT(weight_decay_at(&w, step) == 0.1);
    w = (WeightDecay){RAMP_LINEAR, 0.2, 1, 4};
    static const double line[] = {.2, .4, .6, .8, 1, 1};
    for (int i = 0; i < ARRAY_LEN(line); i++)
        EXPECT_NEAR(weight_decay_at(&w, i + 1), line[i], 1e-15);
    w.style = RAMP_COSINE;
    const double wave[] = {.2, .6 - .4 * sqrt(.5), .6, .6 + .4 * sqrt(.5), 1, 1};
    for (int i = 0; i < ARRAY_LEN(wave); i++)
        EXPECT_NEAR(weight_decay_at(&w, i + 1), wave[i], 1e-15);
    w = (WeightDecay){RAMP_LINEAR, 1, 0, 2}; /* down */
    EXPECT(weight_decay_at(&w, 2) == 0.5 && weight_decay_at(&w, INT64_MAX) == 0);
}

TEST(a_rate_that_ends_where_it_begins) {
    static const RateKind kinds[] = {RATE_LINEAR,     RATE_COSINE,
                                     RATE_POLYNOMIAL, RATE_COSINE_RESTARTS,
                                     RATE_WSD,        RATE_INVERSE_SQRT};
    for (int i = 0; i < ARRAY_LEN(kinds); i++) {
        RateSchedule s = base(kinds[i]);
        s.rate_end = s.rate;
        learning_rate_check(&s);
        for (int step = 5; step < 16; step++)
            EXPECT_NEAR(learning_rate_at(&s, step), s.rate, 1e-15);
    }
}

/* Behind the end of the decay it is lr_end, also where the warm-up takes all of it. */
TEST(warmup_up_to_the_end_of_the_decay) {
    static const RateKind kinds[] = {RATE_LINEAR, RATE_COSINE, RATE_POLYNOMIAL,
                                     RATE_COSINE_RESTARTS, RATE_INVERSE_SQRT};
    for (int i = 0; i < ARRAY_LEN(kinds); i++) {
        RateSchedule s = base(kinds[i]);
        s.warmup_steps = s.total_steps = 4;
        s.rate_end = s.rate / 10;
        learning_rate_check(&s);
        test_at("%s", learning_rate_name[kinds[i]]);
        EXPECT_NEAR(learning_rate_at(&s, 4), s.warmup_rate_init + 0.75 * s.rate, 1e-15);
        for (int step = 6; step < 16; step++)
            EXPECT_NEAR(learning_rate_at(&s, step), s.rate_end, 1e-15);
    }
}

TEST(wrong_schedules) {
    RateSchedule s = base(RATE_COSINE);
    s.rate = 0;
    EXPECT_FAIL(learning_rate_check(&s), EXIT_CONFIG, "learning_rate is 0");
    s = base(RATE_COSINE), s.rate = NAN;
    EXPECT_FAIL(learning_rate_check(&s), EXIT_CONFIG, "learning_rate is nan");
    s = base(RATE_COSINE), s.rate_end = 1.5;
    EXPECT_FAIL(learning_rate_check(&s), EXIT_CONFIG, "lr_end is 1.5");
    s = base(RATE_COSINE), s.num_cycles = 0;
    EXPECT_FAIL(learning_rate_check(&s), EXIT_CONFIG, "num_cycles is 0");
    s = base(RATE_LINEAR), s.total_steps = 3;
    EXPECT_FAIL(learning_rate_check(&s), EXIT_CONFIG, "they are 3 and 4");
    s = base(RATE_POLYNOMIAL), s.power = -1;
    EXPECT_FAIL(learning_rate_check(&s), EXIT_CONFIG, "power is -1");
    s = base(RATE_WSD), s.wsd_decay_steps = 9;
    EXPECT_FAIL(learning_rate_check(&s), EXIT_CONFIG, "it must be 1 .. 8");
    s = base(RATE_CONSTANT), s.warmup_rate_init = -1;
    EXPECT_FAIL(learning_rate_check(&s), EXIT_CONFIG, "warmup_lr_init is -1");
    s = base(RATE_CONSTANT), s.warmup_steps = -1;
    EXPECT_FAIL(learning_rate_check(&s), EXIT_CONFIG, "warmup_steps is -1");
}
