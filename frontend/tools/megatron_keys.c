/* megatron_keys.c - what flags of Megatron-LM are as keys: ranks, batch, optimizer, data, checkpoints;
 * see megatron.h. Defaults are those of megatron/training/arguments.py. */
#include "frontend/config/yaml.h"
#include "frontend/tools/megatron_parts.h"
#include "runtime/data/data.h"
#include <math.h>

#define RATE     "lr_schedule."
#define KEEP_ALL "1000000" /* the most that the key takes */

static void add_plain(Megatron *m) {
    for (int i = 0; i < MEGATRON_FLAGS; i++) {
        const MegatronFlag *f = &megatron_flag[i];
        if (!m->flag[i].given || f->kind != MEGATRON_TO) continue;
        megatron_add(m, f->what, "%s", f->words ? m->flag[i].word[0] : f->value);
    }
}

/* ---- ranks and batch ---- */

static int64_t megatron_steps(const Megatron *m, const MegatronSizes *s, MegatronId steps,
                              MegatronId samples, int64_t otherwise) {
    if (m->flag[steps].given && m->flag[samples].given && megatron_count(m, steps, 0) &&
        megatron_count(m, samples, 0))
        fail(EXIT_CONFIG, "%s and %s are two words for one thing: keep one",
             megatron_name(m->mem, (int)steps), megatron_name(m->mem, (int)samples));
    if (megatron_count(m, samples, 0)) return megatron_count(m, samples, 0) / s->global;
    return megatron_count(m, steps, otherwise);
}

static MegatronSizes sizes_of(const Megatron *m, int64_t ranks) {
    MegatronSizes s = {.tp = DEGREE(m, tensor_model_parallel_size),
                       .pp = DEGREE(m, pipeline_model_parallel_size),
                       .cp = DEGREE(m, context_parallel_size)};
    int64_t of_one = times_capped(times_capped(s.tp, s.pp), s.cp);
    if (!ranks && m->unread)
        fail(EXIT_CONFIG, "%s: write the ranks as -n RANKS before the command",
             m->unread);
    NEED(m, micro_batch_size);
    if (!ranks) ranks = m->ranks;
    if (!ranks)
        fail(EXIT_CONFIG,
             "on how many ranks? The launcher's words do not say: write -n RANKS "
             "before the command (a replica has %lld)",
             (long long)of_one);
    if (ranks % of_one)
        fail(EXIT_CONFIG,
             "%lld rank%s: tensor, pipeline and context parallelism take %lld x %lld x "
             "%lld = %lld "
             "for a replica, which does not divide them",
             (long long)ranks, ranks == 1 ? "" : "s", (long long)s.tp, (long long)s.pp,
             (long long)s.cp, (long long)of_one);
    s.dp = ranks / of_one;
    s.micro = DEGREE(m, micro_batch_size);
    int64_t least = times_capped(s.micro, s.dp);
    s.global = COUNT(m, global_batch_size, times_capped(least, MAX(m->micro_batches, 1)));
    if (s.global < 1 || s.global % least)
        fail(EXIT_CONFIG,
             "--global-batch-size %lld is no multiple of --micro-batch-size %lld times "
             "%lld "
             "replicas",
             (long long)s.global, (long long)s.micro, (long long)s.dp);
    if (!GIVEN(m, train_samples)) NEED(m, train_iters);
    s.steps = megatron_steps(m, &s, MEGATRON_train_iters, MEGATRON_train_samples, 0);
    return s;
}

static void add_batch(Megatron *m, const MegatronSizes *s) {
    megatron_add_count(m, RUN "batch_size", s->micro);
    megatron_add_count(m, PART "micro_batch_num", s->global / s->micro / s->dp);
    megatron_add_count(m, RUN "max_steps", s->steps);
    ADD(m, log_interval, RUN "log_interval", "100");
    ADD(m, eval_interval, RUN "eval_interval", "1000");
    ADD(m, eval_iters, RUN "eval_iters", "100");
    ADD(m, seed, "seed", "1234");
    megatron_add(m, WRAP "calculate_per_token_loss", "%s",
                 GIVEN(m, calculate_per_token_loss) ? "True" : "False");
    if (GIVEN(m, distributed_timeout_minutes))
        megatron_add_count(m, RUN "hang_seconds",
                           times_capped(60, COUNT(m, distributed_timeout_minutes, 0)));
}

/* ---- optimizer ---- */

static void add_optimizer(Megatron *m) {
    const char *type = WORD(m, optimizer, "adam");
    double most = REAL(m, clip_grad, 1);
    bool sgd = !strcmp(type, "sgd");
    if (!sgd && strcmp(type, "adam") != 0)
        fail(EXIT_CONFIG, "--optimizer %.60s: not there; adam and sgd are", type);
    megatron_add(m, "optimizer.type", sgd ? "Momentum" : "AdamW");
    ADD(m, weight_decay, "optimizer.weight_decay", "0.01");
    if (sgd) {
        ADD(m, sgd_momentum, "optimizer.momentum", "0.9");
    } else {
        ADD(m, adam_beta1, "optimizer.beta1", "0.9");
        ADD(m, adam_beta2, "optimizer.beta2", "0.999");
        ADD(m, adam_eps, "optimizer.eps", "1e-8");
    }
    megatron_add(m, WRAP "use_clip_grad", most > 0 ? "True" : "False");
    if (most > 0) ADD(m, clip_grad, WRAP "max_grad_norm", "1.0");
}

/* In whole steps, of a schedule: Megatron-LM goes on in samples. Those of a warm-up are rounded up, as
 * it begins at a rate of 0. */
static int64_t whole_steps(Megatron *m, const MegatronSizes *s, MegatronId steps,
                           MegatronId samples, const char *what, bool up,
                           int64_t otherwise) {
    int64_t whole = megatron_steps(m, s, steps, samples, otherwise);
    int64_t given = megatron_count(m, samples, 0), rest = given % s->global;
    if (!rest) return whole;
    whole += up;
    megatron_note(m, "%s: %g steps in Megatron-LM, %lld here", what,
                  (double)given / (double)s->global, (long long)whole);
    return whole;
}

/* --lr-warmup-fraction is one of the decay. */
static int64_t warmup_of(Megatron *m, const MegatronSizes *s, int64_t decay) {
    double share = REAL(m, lr_warmup_fraction, 0) * (double)decay;
    int64_t steps = whole_steps(m, s, MEGATRON_lr_warmup_iters,
                                MEGATRON_lr_warmup_samples, "warm-up", true, 0);
    if (!GIVEN(m, lr_warmup_fraction)) return steps;
    if (steps)
        fail(EXIT_CONFIG,
             "--lr-warmup-fraction and --lr-warmup-iters or -samples: keep one");
    if (!(share >= 0) || share > (double)decay)
        fail(EXIT_CONFIG, "--lr-warmup-fraction %.60s: write a number from 0 to 1",
             WORD(m, lr_warmup_fraction, ""));
    double whole = ceil(share - 1e-6);
    if (whole - share > 1e-3)
        megatron_note(m, "warm-up: %g steps in Megatron-LM, %.0f here", share, whole);
    return (int64_t)whole;
}

static void add_rate(Megatron *m, const MegatronSizes *s) {
    static const char *const styles[][2] = {{"constant", "constant"},
                                            {"linear", "linear"},
                                            {"cosine", "cosine"},
                                            {"inverse-square-root", "inverse_sqrt"},
                                            {"WSD", "WSD"}};
    const char *style = WORD(m, lr_decay_style, "linear"), *type = NULL;
    for (int i = 0; i < ARRAY_LEN(styles); i++)
        if (!strcmp(style, styles[i][0])) type = styles[i][1];
    if (!type)
        fail(EXIT_CONFIG,
             "--lr-decay-style %.60s: write constant, linear, cosine, "
             "inverse-square-root or WSD",
             style);
    NEED(m, lr);
    int64_t decay = whole_steps(m, s, MEGATRON_lr_decay_iters, MEGATRON_lr_decay_samples,
                                "decay", false, s->steps);
    int64_t warmup = warmup_of(m, s, decay);
    bool constant = !strcmp(type, "constant");
    if (!strcmp(type, "inverse_sqrt") && !warmup && s->global > 1)
        fail(
            EXIT_CONFIG,
            "--lr-decay-style inverse-square-root without a warm-up counts samples in "
            "Megatron-LM: after the first step its rate is that of here over the root of "
            "the global batch size, %lld; write --lr-warmup-iters 1 or more",
            (long long)s->global);
    megatron_add(m, RATE "type", "%s",
                 constant && warmup ? "constant_with_warmup" : type);
    ADD(m, lr, RATE "learning_rate", NULL);
    if (warmup) megatron_add_count(m, RATE "warmup_steps", warmup);
    if (!constant) ADD(m, min_lr, RATE "lr_end", "0.0");
    if (!constant || warmup) megatron_add_count(m, RATE "total_steps", decay);
    if (strcmp(type, "WSD") != 0) return;
    if (!GIVEN(m, lr_wsd_decay_samples)) NEED(m, lr_wsd_decay_iters);
    ADD(m, lr_wsd_decay_style, RATE "wsd_decay_style", "exponential");
    int64_t last = whole_steps(m, s, MEGATRON_lr_wsd_decay_iters,
                               MEGATRON_lr_wsd_decay_samples, "WSD decay", false, 0);
    if (warmup + last > decay)
        fail(EXIT_CONFIG,
             "a warm-up of %lld steps and a WSD decay of %lld overlap in %lld of "
             "--lr-decay-iters: not there",
             (long long)warmup, (long long)last, (long long)decay);
    megatron_add_count(m, RATE "wsd_decay_steps", last);
}

/* ---- data and checkpoints ---- */

static void add_list(Megatron *m, MegatronId id, const char *key) {
    Text t = text_new(m->mem);
    for (int i = 0; i < m->flag[id].n; i++) {
        text_add(&t, i ? ", " : "[");
        yaml_quote(&t, m->flag[id].word[i]);
    }
    text_add(&t, "]");
    megatron_add(m, key, "%s", t.s);
}

/* Data of each part, which Megatron-LM takes instead of --data-path and --split. */
static void add_parts(Megatron *m) {
    if (GIVEN(m, data_path) || GIVEN(m, split))
        fail(EXIT_CONFIG, "--train-data-path and --valid-data-path take the place of "
                          "--data-path and --split: leave these out");
    NEED(m, train_data_path);
    add_list(m, MEGATRON_train_data_path, DATA "data_path");
    if (GIVEN(m, valid_data_path))
        add_list(m, MEGATRON_valid_data_path, "eval_dataset.data_loader.data_path");
    else
        megatron_add(m, DATA "split", "1,0,0");
}

static void add_data(Megatron *m) {
    ADD(m, data_cache_path, DATA "data_cache_path", NULL);
    if (!megatron_has_data(m)) return;
    megatron_add(m, DATA "type", "GPTDataset");
    if (GIVEN(m, train_data_path) || GIVEN(m, valid_data_path)) {
        add_parts(m);
    } else {
        add_list(m, MEGATRON_data_path, DATA "data_path");
        ADD(m, split, DATA "split", DATA_GPT_SPLIT);
    }
}

/* What two words for one folder share: "./a//b/" and "a/b". */
static const char *plain_path(Arena *mem, const char *path) {
    Text t = text_new(mem);
    text_add(&t, "%s", *path == '/' ? "/" : "");
    for (size_t n; *(path += strspn(path, "/")); path += n) {
        n = strcspn(path, "/");
        if (n != 1 || *path != '.') text_add(&t, "/%.*s", (int)n, path);
    }
    return t.n ? t.s : "";
}

/* Megatron-LM goes on from --load alone, and keeps all that it has saved; how many a file of
 * MindSpeed-Core-MS keeps is a name of its own. */
static void add_checkpoints(Megatron *m) {
    const char *save = WORD(m, save, NULL), *load = WORD(m, load, NULL);
    const char *every = WORD(m, save_interval, WORD(m, persistent_save_interval, NULL));
    bool weights = load && (GIVEN(m, finetune) || GIVEN(m, no_load_optim));
    if (weights && !GIVEN(m, finetune))
        megatron_note(m, "--no-load-optim: the run begins with step 1, from the weights");
    if (save && !every)
        fail(EXIT_CONFIG, "--save needs --save-interval, as in Megatron-LM");
    if (save) megatron_add(m, "output_dir", "%s", save);
    megatron_add(m, "callbacks.CheckpointMonitor.save_checkpoint_steps", "%s",
                 save ? every : "0");
    if (save && !m->file)
        megatron_add(m, "callbacks.CheckpointMonitor.keep_checkpoint_max", KEEP_ALL);
    if (weights) megatron_add(m, "run_mode", "finetune");
    if (weights || !load) megatron_add(m, "resume", "never");
    if (!load) return;
    bool same = save && !strcmp(plain_path(m->mem, save), plain_path(m->mem, load));
    if (same && !weights) return;
    megatron_add(m, "resume_or_finetune_checkpoint", "%s", load);
    megatron_note(m, "--load: a checkpoint of stator, or %s, not one of Megatron-LM",
                  weights ? "a Hugging Face folder"
                          : "with --finetune a Hugging Face folder");
}

static void add_profile(Megatron *m) {
    if (!GIVEN(m, profile)) return;
    int64_t last = COUNT(m, profile_step_end, 12);
    megatron_add(m, "profile", "True");
    megatron_add_count(m, "profile_start_step",
                       MIN(COUNT(m, profile_step_start, 10) + 1, MAX(last, 1)));
    megatron_add_count(m, "profile_stop_step", MAX(last, 1));
}

static void make_keys(Megatron *m, int64_t ranks) {
    const MegatronSizes s = sizes_of(m, ranks);
    megatron_add_model(m);
    megatron_add_vocabulary(m, &s);
    megatron_add_types(m);
    add_batch(m, &s);
    add_optimizer(m);
    add_rate(m, &s);
    megatron_add_parallel(m, &s);
    megatron_add_recompute(m, &s);
    add_data(m);
    add_checkpoints(m);
    add_profile(m);
    add_plain(m);
}

void megatron_keys(Megatron *m, int64_t ranks) {
    const Megatron given = *m;
    make_keys(m, ranks);
    megatron_note_unused(m, &given, ranks, make_keys);
}
