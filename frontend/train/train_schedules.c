/* train_schedules.c - how the learning rate and the weight decay go over the steps of a run. */
#include "frontend/config/config_state.h"
#include "frontend/train/train.h"

static const RateKind kind_of[] = {
    [LR_COSINE] = RATE_COSINE,
    [LR_COSINE_WITH_RESTARTS] = RATE_COSINE_RESTARTS,
    [LR_CONSTANT] = RATE_CONSTANT,
    [LR_CONSTANT_WITH_WARMUP] = RATE_CONSTANT,
    [LR_LINEAR] = RATE_LINEAR,
    [LR_POLYNOMIAL] = RATE_POLYNOMIAL,
    [LR_INVERSE_SQRT] = RATE_INVERSE_SQRT,
    [LR_WSD] = RATE_WSD,
};

static const RateDecay decay_of[] = {
    [WSD_LINEAR] = DECAY_LINEAR,
    [WSD_COSINE] = DECAY_COSINE,
    [WSD_EXPONENTIAL] = DECAY_EXPONENTIAL,
    [WSD_MINUS_SQRT] = DECAY_MINUS_SQRT,
};

static void choose_schedule(Train *t) {
    Config *cfg = t->job.cfg;
    bool given = config_given(cfg, "lr_schedule.total_steps");
    int64_t total = cfg->lr_schedule_total_steps, warmup = cfg->lr_schedule_warmup_steps;
    if (total < 0 || (!given && cfg->runner_config_max_steps < 0))
        total = MAX(t->steps, 1);
    if (!config_given(cfg, "lr_schedule.warmup_steps"))
        warmup = config_warmup_of(cfg, total);
    if (!given) cfg->lr_schedule_total_steps = total; /* as checkpoints have it */
    cfg->lr_schedule_warmup_steps = warmup;
    t->schedule = (RateSchedule){.kind = kind_of[cfg->lr_schedule_type],
                                 .rate = cfg->lr_schedule_learning_rate,
                                 .rate_end = cfg->lr_schedule_lr_end,
                                 .warmup_rate_init = cfg->lr_schedule_warmup_lr_init,
                                 .warmup_steps = warmup,
                                 .total_steps = total,
                                 .power = cfg->lr_schedule_power,
                                 .num_cycles = cfg->lr_schedule_num_cycles,
                                 .wsd_decay = decay_of[cfg->lr_schedule_wsd_decay_style],
                                 .wsd_decay_steps = cfg->lr_schedule_wsd_decay_steps};
}

static void choose_decay(Train *t) {
    static const DecayStyle style[] = {[WD_CONSTANT] = RAMP_CONSTANT,
                                       [WD_LINEAR] = RAMP_LINEAR,
                                       [WD_COSINE] = RAMP_COSINE};
    const Config *cfg = t->job.cfg;
    double always = cfg->optimizer_weight_decay;
    t->decay = (WeightDecay){.style = style[cfg->optimizer_weight_decay_incr_style],
                             .start = cfg->optimizer_start_weight_decay,
                             .end = cfg->optimizer_end_weight_decay,
                             .total_steps = MAX(t->steps, 1)};
    if (t->decay.style == RAMP_CONSTANT) t->decay.start = t->decay.end = always;
}

void train_choose_schedules(Train *t) {
    choose_schedule(t);
    choose_decay(t);
}

/* Where nothing says how many steps there are, the data do: no check of keys knows it. */
static void check_steps_of_data(const Train *t) {
    const Config *cfg = t->job.cfg;
    const RateSchedule *s = &t->schedule;
    bool wsd = s->kind == RATE_WSD;
    long long warmup = s->warmup_steps, decay = wsd ? s->wsd_decay_steps : 0;
    if (s->kind == RATE_CONSTANT || warmup + decay <= s->total_steps) return;
    config_refuse(cfg, wsd ? "lr_schedule.wsd_decay_steps" : "lr_schedule.warmup_steps",
                  "lr_schedule.type", "fewer of them, or more epochs",
                  "warmup_steps %lld%s are above the %lld steps that epochs %lld has",
                  warmup,
                  wsd ? arena_printf(t->mem, " and wsd_decay_steps %lld", decay) : "",
                  (long long)s->total_steps, (long long)cfg->runner_config_epochs);
}

void train_check_schedules(const Train *t) {
    int64_t warmup = t->schedule.warmup_steps;
    if (t->job.cfg->runner_config_max_steps < 0 && t->steps == t->schedule.total_steps)
        check_steps_of_data(t);
    learning_rate_check(&t->schedule);
    if (warmup > 0 && warmup >= t->steps && t->steps > 0)
        config_note(t->job.cfg, "lr_schedule.warmup_steps",
                    "the run of %lld steps ends before its warm-up of %lld steps does",
                    (long long)t->steps, (long long)warmup);
}
