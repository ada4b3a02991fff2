/* Tests of what a configuration's optimizer does: one update of stator train, with the
 * gradient of that step, against the formulas of PyTorch, MindSpore and Megatron-LM
 * written down here. */
#include "runs.h"
#include "runtime/store/safetensors.h"

TEST_LABEL(RANKS);

typedef struct Update {
    const char *type, *more; /* optimizer.type, further words */
    double decay;            /* that the first update must use */
    bool adam, corrected, coupled;
} Update;

static const double rate = 0.01, beta1 = 0.9, beta2 = 0.95, eps = 1e-6;

/* The state of one element after an update with gradient g. */
typedef struct Element {
    double p, m, v;
} Element;

static void update(const Update *u, double decay, double g, Element *e) {
    double before = u->coupled ? decay : 0;
    g += before * e->p;
    if (!u->adam) {
        e->m = strcmp(u->type, "SGD") ? 0.8 * e->m + g : g;
        e->p -= rate * e->m;
        return;
    }
    e->m = beta1 * e->m + (1 - beta1) * g;
    e->v = beta2 * e->v + (1 - beta2) * g * g;
    double c1 = u->corrected ? 1 - beta1 : 1, c2 = u->corrected ? 1 - beta2 : 1;
    e->p -= rate * (decay - before) * e->p;
    e->p -= rate * (e->m / c1) / (sqrt(e->v / c2) + eps);
}

static double element(const SafeTensor *t, int64_t i) {
    float v;
    memcpy(&v, (const float *)t->data + i, sizeof v);
    return (double)v;
}

/* The worst difference of an element of a tensor, over what the update can be at most. */
static double worst_of(const Update *u, const SafeTensor *old, const Safetensors *dump) {
    const SafeTensor *g =
        safetensors_need(dump, arena_printf(mem(), "grad.%s", old->name));
    const SafeTensor *p =
        safetensors_need(dump, arena_printf(mem(), "final.%s", old->name));
    double worst = 0, decay = old->rank > 1 ? u->decay : 0; /* biases and norms: none */
    for (int64_t i = 0; i < safetensors_count(old); i++) {
        Element e = {.p = element(old, i)};
        update(u, decay, element(g, i), &e);
        worst = fmax(worst, fabs(element(p, i) - e.p));
    }
    return worst / rate;
}

static void check_update(const Update *u) {
    const char *run = in_temp("run"), *file = in_temp("dump.safetensors");
    const char *folder = runs_golden("gpt2_untied");
    remove_all(run);
    RUN_EXPECT(0, arena_printf(mem(),
                               "train %s --output_dir %s --dump %s --optimizer.type %s "
                               "--optimizer.eps %g --optimizer.momentum 0.8 "
                               "--lr_schedule.type constant --lr_schedule.warmup_steps 0 "
                               "--lr_schedule.learning_rate %g "
                               "--runner_wrapper.use_clip_grad False "
                               "--runner_config.max_steps 1 %s",
                               runs_golden_config("gpt2_untied"), run, file, u->type, eps,
                               rate, u->more));
    Safetensors *dump = safetensors_open(mem(), file, EXIT_DATA);
    Safetensors *old =
        safetensors_open(mem(), path_join(mem(), folder, "model.safetensors"), EXIT_DATA);
    double worst = 0;
    for (int i = 0; i < old->n; i++) worst = fmax(worst, worst_of(u, &old->t[i], dump));
    printf("  %s %s: off by %.2g of the learning rate\n", u->type, u->more, worst);
    EXPECT(old->n > 20 && worst < 1e-4);
}

#define DECAY "--optimizer.weight_decay 0.7"
#define RAMP(style, start)                                                               \
    "--optimizer.weight_decay_incr_style " style                                         \
    " --optimizer.start_weight_decay " start " --optimizer.end_weight_decay 5"

TEST_LIMIT(one_update_of_each_optimizer, 180) {
    static const Update updates[] = {
        {"AdamW", DECAY, 0.7, true, true, false},
        {"AdamWeightDecay", DECAY, 0.7, true, false, false},
        {"FusedAdamWeightDecay", DECAY, 0.7, true, false, false},
        {"Adam", DECAY, 0.7, true, true, true},
        {"Adam", "", 0.1, true, true, true}, /* the default of the key */
        {"Adam", "--optimizer.weight_decay 0", 0, true, true, true},
        {"SGD", DECAY, 0.7, false, false, true},
        {"Momentum", DECAY, 0.7, false, false, true},
        {"AdamW", RAMP("linear", "0.7"), 0.7, true, true, false},
        {"Adam", RAMP("cosine", "0.7"), 0.7, true, true, true},
        {"SGD", RAMP("linear", "0"), 0, false, false, true},
    };
    for (int i = 0; i < ARRAY_LEN(updates); i++) check_update(&updates[i]);
}

/* SGD without momentum is SGD with a momentum of 0, but for what it keeps. */
TEST_LIMIT(sgd_is_momentum_of_zero, 120) {
    const char *config = runs_small_config(8, 0);
    const char *sgd = in_temp("sgd"), *zero = in_temp("zero");
    RUN_EXPECT(0, arena_printf(mem(), "train %s --output_dir %s --optimizer.type SGD",
                               config, sgd));
    RUN_EXPECT(0, arena_printf(mem(),
                               "train %s --output_dir %s --optimizer.type Momentum "
                               "--optimizer.momentum 0",
                               config, zero));
    runs_expect_same_losses(sgd, zero, 8);
}

/* The rates of a run, against the formula of Hugging Face's
 * cosine_with_hard_restarts_schedule_with_warmup. */
TEST_LIMIT(cosine_with_restarts, 120) {
    static const struct {
        const char *words;
        double cycles;
    } cases[] = {
        {"--lr_schedule.type cosine_with_restarts --lr_schedule.num_cycles 3", 3},
        {"--lr_schedule.type CosineWithRestartsAndWarmUpLR --lr_schedule.num_cycles 2.5",
         2.5},
        {"--lr_schedule.type cosine_with_restarts", 1}};
    for (int k = 0; k < ARRAY_LEN(cases); k++) {
        const char *run = in_temp(arena_printf(mem(), "run%d", k));
        RUN_EXPECT(0, runs_words(runs_small_config(12, 0), run, cases[k].words));
        int n;
        const MetricsRow *row = runs_metrics(run, &n);
        EXPECT_INT(n, 12);
        for (int i = 0; i < 12; i++) {
            double x = (i - 3) / 9.0, wave = fmod(cases[k].cycles * x, 1);
            double want = i < 3 ? 1e-3 * i / 3 : 0.5e-3 * (1 + cos(M_PI * wave));
            EXPECT_NEAR(row[i].lr, want, 1e-12);
        }
    }
}
