/* Modules of the user (model.file) on tensors by name: the examples train under any
 * strategy with one curve, validate, go on, and their results come back by predict. */
#include "example_data.h"
#include "ranks.h"
#include "runtime/store/safetensors.h"
#include <sys/stat.h>

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);
TEST_LABEL(RELEASED);

enum { STEPS = 24 };

typedef struct Example {
    const char *name;
    const char *(*make)(void);
    const char *shard; /* over tp */
} Example;

static const Example examples[] = {
    {"lstm", make_sequences, "[\"wx=-,-,tp\",\"wh=-,-,tp\",\"b=-,tp\",\"w_out=tp,-\"]"},
    {"classifier", make_classes, "[\"w1=-,tp\",\"b1=tp\",\"w2=tp,-\"]"},
    {"two_towers", make_pairs,
     "[\"left_in=-,tp\",\"blocks_w=-,-,tp\",\"blocks_b=-,tp\",\"right_out=-,tp\"]"}};

static const char *config_of(const Example *e) {
    return arena_printf(mem(), "%s/../examples/%s/train.yaml", tests_dir(), e->name);
}

static const char *words_of(const char *data, int steps, const char *more) {
    return arena_printf(mem(),
                        "--dataset_dir %s --train_steps %d --eval_interval 8 --threads 1 "
                        "--lr_schedule.total_steps 24 --lr_schedule.warmup_steps 0 %s",
                        data, steps, more);
}

/* Losses of training and of validation, relative. */
static double worst_difference(const char *a, const char *b, int steps) {
    int na, nb;
    double worst = 0;
    const MetricsRow *x = runs_metrics(a, &na), *y = runs_metrics(b, &nb);
    EXPECT(na == steps && nb == steps);
    for (int i = 0; i < steps; i++) {
        worst = fmax(worst, fabs(x[i].loss - y[i].loss) / fabs(x[i].loss));
        worst = fmax(worst, fabs(x[i].grad_norm - y[i].grad_norm) / x[i].grad_norm / 10);
    }
    const char *va =
        file_read(mem(), path_join(mem(), a, "valid.jsonl"), 1 << 20, NULL, EXIT_DATA);
    const char *vb =
        file_read(mem(), path_join(mem(), b, "valid.jsonl"), 1 << 20, NULL, EXIT_DATA);
    int points = 0;
    for (; (va = strstr(va, "valid_loss\": ")) && (vb = strstr(vb, "valid_loss\": "));
         points++) {
        double p = atof(va += 13), q = atof(vb += 13);
        worst = fmax(worst, fabs(p - q) / fabs(p));
    }
    EXPECT_INT(points, steps / 8);
    return worst;
}

/* ---- one curve ---- */

enum { STRATEGIES = 5 };

typedef struct Run {
    int ranks, micro;
    const char *words; /* %s: the entries of parallel.shard */
} Run;

static const Run runs[STRATEGIES] = {
    {2, 1, "--parallel_config.data_parallel 2"},
    {2, 1, "--parallel_config.model_parallel 2 --parallel.shard %s"},
    {2, 1, "--parallel_config.data_parallel 2 " ZERO_LEVEL(3)},
    {4, 2, "--parallel_config.data_parallel 4 " ZERO_LEVEL(1)},
    {4, 2,
     "--parallel_config.data_parallel 2 --parallel_config.model_parallel 2 "
     "--parallel.shard %s " ZERO_LEVEL(3)},
};

static double against_alone(const Example *e, const Run *r, const char *alone,
                            const char *data) {
    const char *run = in_temp("run");
    char words[1024];
    snprintf(words, sizeof words, r->words, e->shard);
    const char *more =
        arena_printf(mem(), "--parallel_config.micro_batch_num %d %s", r->micro, words);
    ranks_run(r->ranks, config_of(e), run, words_of(data, STEPS, more));
    double off = worst_difference(alone, run, STEPS);
    if (!(off <= 1e-5))
        test_fail(__FILE__, __LINE__, "%s %s: off by %g", e->name, more, off);
    remove_all(run);
    return off;
}

/* `set`: which of the strategies, a bit each. */
static void one_curve(const Example *e, unsigned set) {
    const char *data = e->make();
    double worst = 0;
    for (int micro = 1; micro <= 2; micro++) {
        const char *alone = in_temp(arena_printf(mem(), "alone%d", micro));
        const char *more =
            arena_printf(mem(), "--parallel_config.micro_batch_num %d ", micro);
        ranks_run(1, config_of(e), alone, words_of(data, STEPS, more));
        int n;
        const MetricsRow *row = runs_metrics(alone, &n);
        double least = row[0].loss;
        for (int i = 0; i < n; i++) least = fmin(least, row[i].loss);
        EXPECT(n == STEPS && least < 0.95 * row[0].loss);
        for (int i = 0; i < STRATEGIES; i++) {
            bool wanted = set >> i & 1 && !(RANKS_SANITIZED && runs[i].ranks > 2);
            if (wanted && runs[i].micro == micro)
                worst = fmax(worst, against_alone(e, &runs[i], alone, data));
        }
    }
    printf("  %s: worst relative difference %.2g\n", e->name, worst);
}

TEST_LIMIT(lstm_has_one_curve, 240) {
    one_curve(&examples[0], 0x17);
}

TEST_LIMIT(classifier_has_one_curve, 240) {
    one_curve(&examples[1], 0x07);
}

TEST_LIMIT(two_towers_have_one_curve, 240) {
    one_curve(&examples[2], 0x0f);
}

/* The classifier's module with the first `from` and then `from2` changed. */
static const char *classifier_with(const char *from, const char *to, const char *from2,
                                   const char *to2) {
    const char *text = file_read(
        mem(), arena_printf(mem(), "%s/../examples/classifier/mlp.ir", tests_dir()),
        1 << 16, NULL, EXIT_DATA);
    const char *pair[2][2] = {{from, to}, {from2, to2}};
    for (int i = 0; i < 2; i++) {
        const char *at = strstr(text, pair[i][0]);
        EXPECT(at != NULL);
        text = arena_printf(mem(), "%.*s%s%s", (int)(at - text), text, pair[i][1],
                            at + strlen(pair[i][0]));
    }
    return text;
}

/* ---- going on, and results ---- */

/* Two thirds and then the rest, under another strategy in between for the checkpoint. */
TEST_LIMIT(a_run_goes_on_where_it_was, 120) {
    const Example *e = &examples[0];
    const char *data = e->make(), *config = config_of(e);
    const char *whole = in_temp("whole"), *parts = in_temp("parts");
    ranks_run(1, config, whole, words_of(data, STEPS, ""));
    ranks_run(1, config, parts, words_of(data, 16, ""));
    ranks_run(1, config, parts, words_of(data, STEPS, ""));
    runs_expect_same_losses(whole, parts, STEPS);
    runs_expect_same_tensors(whole, parts, STEPS);
    const char *other = in_temp("other");
    ranks_run(2, config, other, words_of(data, 16, ZERO_LEVEL(3)));
    ranks_run(1, config, other, words_of(data, STEPS, ""));
    double off = worst_difference(whole, other, STEPS);
    if (!(off <= 1e-5)) test_fail(__FILE__, __LINE__, "off by %g", off);
}

static const float *read_result(const char *path, const char *name, int64_t count) {
    Safetensors *s = safetensors_open(mem(), path, EXIT_DATA);
    const SafeTensor *t = safetensors_need(s, name);
    EXPECT(safetensors_count(t) == count && t->dim[0] == SAMPLES && t->dtype == DT_F32);
    return t->data;
}

/* From a folder that was moved, without the module beside it or the labels; 500 samples
 * are no multiple of the batch of 32. */
TEST_LIMIT(results_come_back_by_predict, 120) {
    const Example *e = &examples[1];
    const char *data = e->make(), *config = config_of(e), *out[2];
    const int ranks[] = {1, 2};
    for (int i = 0; i < 2; i++) {
        const char *run = in_temp("run"), *moved = in_temp("moved");
        ranks_run(ranks[i], config, run, words_of(data, STEPS, i ? ZERO_LEVEL(3) : ""));
        EXPECT(rename(run, moved) == 0);
        out[i] = in_temp(arena_printf(mem(), "out%d.safetensors", i));
        RUN_EXPECT(
            0, arena_printf(mem(), "predict %s --data %s --out %s", moved, data, out[i]));
        if (i == 0) {
            const char *again = arena_printf(
                mem(), "train %s/config.yaml --output_dir %s --dataset_dir %s", moved,
                in_temp("again"), data);
            RUN_EXPECT(0, again);
            runs_expect_same_losses(moved, in_temp("again"), STEPS);
        }
        remove_all(moved);
    }
    const float *a = read_result(out[0], "probability", SAMPLES * 5);
    const float *b = read_result(out[1], "probability", SAMPLES * 5);
    size_t n;
    const char *labels =
        file_read(mem(), path_join(mem(), data, "labels.npy"), 1 << 20, &n, EXIT_DATA);
    int right = 0;
    for (int s = 0; s < SAMPLES; s++) {
        int64_t label;
        double sum = 0;
        int best = 0;
        memcpy(&label, labels + n - (size_t)(SAMPLES - s) * 8, 8);
        for (int c = 0; c < 5; c++) {
            sum += (double)a[5 * s + c];
            if (a[5 * s + c] > a[5 * s + best]) best = c;
            EXPECT_NEAR(a[5 * s + c], b[5 * s + c], 1e-5);
        }
        EXPECT_NEAR(sum, 1, 1e-5);
        right += best == label;
    }
    printf("  %d of %d samples right after %d steps\n", right, SAMPLES, STEPS);
    EXPECT(right > SAMPLES / 2);
}

/* That of the training, which names the run by a flag, and the run's own. */
static void predict_of_configurations(const char *data, const char *run) {
    static const char *const more[] = {"", " --seed 3",
                                       " --model.model_config.compute_dtype bfloat16"};
    const char *word[] = {config_of(&examples[1]), path_join(mem(), run, "config.yaml")};
    const char *line = "predict %s --output_dir %s --data %s%s";
    RUN_EXPECT(0, arena_printf(mem(), "predict %s --data %s", run, data));
    const char *want = arena_strdup(mem(), strstr(said(), "{\"sample\": 0,"));
    for (int i = 0; i < ARRAY_LEN(word); i++)
        for (int k = 0; k < ARRAY_LEN(more); k++) {
            bool typed = k == 2;
            RUN_EXPECT(typed ? EXIT_CONFIG : 0,
                       arena_printf(mem(), line, word[i], run, data, more[k]));
            if (typed)
                SAID_EXPECT("is given together with model.file");
            else
                EXPECT_STR(strstr(said(), "{\"sample\": 0,"), want);
        }
}

TEST_LIMIT(predict_prints_a_line_a_sample, 60) {
    const char *data = make_classes(), *run = in_temp("run");
    ranks_run(1, config_of(&examples[1]), run, words_of(data, 2, ""));
    EXPECT(remove(path_join(mem(), data, "labels.npy")) == 0);
    RUN_EXPECT(0, arena_printf(mem(), "predict %s --data %s", run, data));
    const char *line = strstr(said(), "{\"sample\": 499, \"probability\": [");
    EXPECT(line != NULL);
    const Json *v =
        json_parse(mem(), "line", line, strcspn(line, "\n"), 1 << 16, EXIT_DATA);
    EXPECT_INT(json_need(v, "probability")->n, 5);
    RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(), "predict %s", run));
    SAID_EXPECT("give its samples, --data PATH");
    RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(), "predict %s --prompt x", run));
    SAID_EXPECT("no options of texts");
    predict_of_configurations(data, run);
    RUN_EXPECT(EXIT_CHECKPOINT,
               arena_printf(mem(), "convert --to hf %s %s", run, in_temp("hf")));
    SAID_EXPECT("model.file");
}

/* ---- what is done in training alone ---- */

static const char *replaced(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    if (!at) test_fail(__FILE__, __LINE__, "no '%s' in the module", from);
    return arena_printf(mem(), "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

static double last_valid_loss(const char *run) {
    const char *at =
        file_read(mem(), path_join(mem(), run, "valid.jsonl"), 1 << 20, NULL, EXIT_DATA);
    const char *last = NULL;
    while ((at = strstr(at, "valid_loss\": "))) last = at += 13;
    EXPECT(last != NULL);
    return atof(last);
}

/* The classifier with dropout of its hidden layer validates and predicts as without. */
TEST_LIMIT(dropout_is_for_training, 60) {
    const char *data = make_classes(), *run[2], *out[2];
    const char *plain =
        arena_printf(mem(), "%s/../examples/classifier/mlp.ir", tests_dir());
    const char *text = file_read(mem(), plain, 1 << 20, NULL, EXIT_DATA);
    text = replaced(text, "{role=\"labels\"},",
                    "{role=\"labels\"},\n    %rng: i32[4] "
                    "{role=\"rng\"},");
    text = replaced(text, "%h = gelu %h1 : f32[32,64]",
                    "%h2 = gelu %h1 : f32[32,64]\n"
                    "  %h = dropout %h2, %rng {p=0.5; site=0} : f32[32,64]");
    const char *dropping = in_temp("dropping.ir");
    write_text(dropping, text);
    const char *files[] = {plain, dropping};
    double loss[2];
    for (int i = 0; i < 2; i++) {
        run[i] = in_temp(i ? "dropped" : "plain");
        out[i] = in_temp(i ? "dropped.safetensors" : "plain.safetensors");
        /* a rate at which a step changes nothing that can be seen */
        ranks_run(1, config_of(&examples[1]), run[i],
                  arena_printf(mem(),
                               "%s --model.file %s --lr_schedule.learning_rate 1e-9",
                               words_of(data, 1, ""), files[i]));
        RUN_EXPECT(0, arena_printf(mem(), "predict %s --data %s --out %s", run[i], data,
                                   out[i]));
        int n;
        loss[i] = runs_metrics(run[i], &n)[0].loss;
    }
    EXPECT(fabs(loss[0] - loss[1]) > 1e-4);
    EXPECT_NEAR(last_valid_loss(run[0]), last_valid_loss(run[1]), 1e-6);
    const float *a = read_result(out[0], "probability", SAMPLES * 5);
    const float *b = read_result(out[1], "probability", SAMPLES * 5);
    for (int i = 0; i < SAMPLES * 5; i++) EXPECT_NEAR(a[i], b[i], 1e-6);
}

/* The mean over batches of a result that is of no sample: over whole batches only. */
TEST_LIMIT(a_mean_over_batches_needs_whole_ones, 60) {
    const char *data = make_classes(), *out = in_temp("out.safetensors");
    write_text(in_temp("mass.ir"),
               classifier_with("-> (f32[],", "-> (f32[], f32[5],", "  return %loss,",
                               "  %mass = sum %probability {bc->c} : f32[5]\n"
                               "  return %loss, %mass,"));
    ranks_run(
        1, config_of(&examples[1]), in_temp("run"),
        words_of(data, 2, arena_printf(mem(), "--model.file %s", in_temp("mass.ir"))));
    RUN_EXPECT(0, arena_printf(mem(), "predict %s --data %s --out %s", in_temp("run"),
                               data, out));
    SAID_EXPECT("%mass is no result of each sample and is left out: 500 samples are no "
                "multiple of the batch of 32");
    Safetensors *s = safetensors_open(mem(), out, EXIT_DATA);
    EXPECT(safetensors_find(s, "probability") && !safetensors_find(s, "mass"));
    const char *whole = folder("whole");
    npy_write(path_join(mem(), whole, "x.npy"), "<f8", "(64, 6)",
              NEW_ARRAY(mem(), double, 64 * 6), 64 * 48);
    RUN_EXPECT(0, arena_printf(mem(), "predict %s --data %s --out %s", in_temp("run"),
                               whole, out));
    s = safetensors_open(mem(), out, EXIT_DATA);
    const SafeTensor *mass = safetensors_need(s, "mass");
    double sum = 0;
    EXPECT_INT(safetensors_count(mass), 5);
    for (int c = 0; c < 5; c++) sum += ((const float *)mass->data)[c];
    EXPECT_NEAR(sum, 32, 1e-4);
}

/* ---- bad samples ---- */

/* Puts numbers that are none into some samples; the loss of two_towers becomes NaN or
 * infinite where they are. */
static void spoil(const char *dir) {
    const char *path = path_join(mem(), dir, "right.npy");
    size_t n;
    char *bytes = file_read(mem(), path, 1 << 20, &n, EXIT_DATA);
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    for (int i = 0; i < 12; i++) {
        size_t sample = (size_t)(41 * i + 7) % (SAMPLES * 4 / 5);
        memcpy(bytes + n - (SAMPLES - sample) * 12 + 4 * (i % 3), &bad[i % 4], 4);
    }
    EXPECT_INT(file_write_atomic(path, bytes, n), 0);
}

/* Steps that such a sample meets are skipped on all ranks, and the run goes on: one and
 * four ranks, micro-batches, parts of the optimizer. */
TEST_LIMIT(bad_samples_skip_their_steps, 120) {
    const Example *e = &examples[2];
    const char *data = e->make(), *alone = in_temp("alone");
    spoil(data);
    const char *batches = "--parallel_config.micro_batch_num 2 ";
    ranks_run(1, config_of(e), alone, words_of(data, STEPS, batches));
    int n, skipped = 0, by_gradient = 0;
    const MetricsRow *row = runs_metrics(alone, &n);
    EXPECT_INT(n, STEPS);
    for (int i = 0; i < n; i++) {
        skipped += row[i].skipped;
        by_gradient += row[i].skipped && isfinite(row[i].loss);
        EXPECT(row[i].skipped || isfinite(row[i].loss));
    }
    printf("  %d of %d steps skipped, %d with a finite loss\n", skipped, n, by_gradient);
    EXPECT(skipped >= 8 && skipped <= STEPS - 5 && by_gradient > 0);
    for (int i = 0; i < 2; i++) {
        const char *run = in_temp("run");
        const char *words = i ? "--parallel_config.data_parallel 4 " ZERO_LEVEL(2)
                              : "--parallel_config.data_parallel 2 " ZERO_LEVEL(3);
        ranks_run(i ? 4 : 2, config_of(e), run,
                  words_of(data, STEPS, arena_printf(mem(), "%s%s", batches, words)));
        const MetricsRow *other = runs_metrics(run, &n);
        EXPECT_INT(n, STEPS);
        for (int k = 0; k < n; k++) {
            EXPECT(other[k].skipped == row[k].skipped && other[k].lr == row[k].lr);
            if (!row[k].skipped)
                EXPECT_NEAR(other[k].loss, row[k].loss, 1e-5 * row[k].loss);
        }
        remove_all(run);
    }
}

TEST(inspect_shows_the_tensors_of_a_sample) {
    const char *words = arena_printf(mem(),
                                     "inspect %s --dataset_dir %s --split valid "
                                     "--samples 0,99 --json",
                                     config_of(&examples[1]), make_classes());
    RUN_EXPECT(0, words);
    const char *text = said();
    const Json *v = json_parse(mem(), "samples", text, strlen(text), 1 << 20, EXIT_DATA);
    const Json *item = json_need(v, "items")->first;
    EXPECT_INT(json_i64(json_need(v, "samples"), 0, 1000), SAMPLES / 5);
    EXPECT(json_need(item, "x")->n == 6 && json_need(v, "items")->n == 2);
    int64_t label = json_i64(json_need(item, "labels"), 0, 4);
    EXPECT(label >= 0);
}

/* ---- numbers of the first step ---- */

/* The module of an example with another batch, in a folder of its own. */
static const char *with_batch(const char *path, const char *from, const char *to) {
    const char *text = file_read(mem(), path, 1 << 20, NULL, EXIT_DATA), *at;
    Text t = text_new(mem());
    while ((at = strstr(text, from))) {
        text_add_bytes(&t, text, (size_t)(at - text));
        text_add(&t, "%s", to);
        text = at + strlen(from);
    }
    text_add(&t, "%s", text);
    const char *out = in_temp("other.ir");
    write_text(out, t.s);
    return out;
}

static const SafeTensor *dumped(const char *path, const char *name) {
    return safetensors_need(safetensors_open(mem(), path, EXIT_DATA), name);
}

/* Two micro-batches of 16 dump what one of 32 does. */
TEST_LIMIT(a_dump_of_micro_batches_is_that_of_the_step, 60) {
    const char *data = make_pairs(), *a = in_temp("a.safetensors"),
               *b = in_temp("b.safetensors");
    const char *small =
        arena_printf(mem(), "%s/../examples/two_towers/towers.ir", tests_dir());
    const char *text =
        "train --model.file %s --train_dataset.data_loader.type Tensors "
        "--dataset_dir %s --train_steps 1 --seed 1 --output_dir %s --dump %s "
        "--parallel_config.micro_batch_num %d";
    char words[4096];
    snprintf(words, sizeof words, text, small, data, in_temp("r1"), a, 2);
    RUN_EXPECT(0, words);
    const char *twice = with_batch(small, "f32[16,24]", "f32[32,24]");
    twice = with_batch(twice, "f32[16,6]", "f32[32,6]");
    twice = with_batch(twice, "f32[16,3]", "f32[32,3]");
    twice =
        with_batch(twice, "%r1 = tanh %r0 : f32[16,16]", "%r1 = tanh %r0 : f32[32,16]");
    twice = with_batch(twice, "{bi,io->bo} : f32[16,16]", "{bi,io->bo} : f32[32,16]");
    twice = with_batch(twice, "%right_out: f32[32,24]", "%right_out: f32[16,24]");
    twice = with_batch(twice, "f32[16])", "f32[32])");
    twice = with_batch(twice, "%target: f32[16]", "%target: f32[32]");
    twice = with_batch(twice, ": f32[16]\n", ": f32[32]\n");
    twice = with_batch(twice, "0.0625", "0.03125");
    snprintf(words, sizeof words, text, twice, data, in_temp("r2"), b, 1);
    RUN_EXPECT(0, words);
    static const char *const names[] = {"score", "grad.left_in", "grad.blocks_w",
                                        "grad.right_out"};
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        const SafeTensor *x = dumped(a, names[i]), *y = dumped(b, names[i]);
        EXPECT(safetensors_count(x) == safetensors_count(y) && x->dim[0] == y->dim[0]);
        double size = 0;
        for (int64_t k = 0; k < safetensors_count(x); k++) {
            double p = (double)((const float *)x->data)[k];
            double q = (double)((const float *)y->data)[k];
            EXPECT_NEAR(p, q, 1e-5 * fmax(1, fabs(q)));
            size = fmax(size, fabs(p));
        }
        EXPECT(size > 1e-3);
    }
}

/* ---- what does not fit ---- */

static void refuse(const char *more, int code, const char *part) {
    const char *data = make_classes();
    RUN_EXPECT(code, arena_printf(mem(), "train %s --dataset_dir %s --output_dir %s %s",
                                  config_of(&examples[1]), data, in_temp("run"), more));
    SAID_EXPECT(part);
}

TEST(what_does_not_fit_is_refused) {
    refuse("--train_dataset.data_loader.type TextFile", EXIT_CONFIG,
           "data of type TextFile cannot fill argument %x of role data");
    refuse("--batch_size 7", EXIT_CONFIG, "takes 32");
    refuse("--parallel_config.data_parallel 3", EXIT_CONFIG, "3 ranks, but 1 process");
    refuse("--train_dataset.data_loader.split 0,100,0", EXIT_DATA,
           "leaves no sample for train");
    refuse("--model.file nowhere.ir", EXIT_CONFIG, "nowhere.ir");
    if (!mpi_available()) return;
    driven_prepare = mpi_environment;
    const char *launch = "launch -n 2 train %s --dataset_dir %s --output_dir %s "
                         "--parallel_config.model_parallel 2 %s";
    char words[4096];
    snprintf(words, sizeof words, launch, config_of(&examples[1]), make_classes(),
             in_temp("run"), "--parallel_config.sequence_parallel True");
    RUN_EXPECT(EXIT_CONFIG, words);
    SAID_EXPECT("parallel.shard, which places the module's values by name");
    snprintf(words, sizeof words, launch, config_of(&examples[1]), make_classes(),
             in_temp("run"), "--train_steps 1 --lr_schedule.warmup_steps 0");
    RUN_EXPECT(0, words);
    SAID_EXPECT("model_parallel 2 has no effect: no entry of parallel.shard");
    /* an entry for a value whose name has the letters tp in it */
    write_text(in_temp("named.ir"),
               classifier_with("%b1:", "%tp_b1:", "%h0, %b1", "%h0, %tp_b1"));
    snprintf(words, sizeof words, launch, config_of(&examples[1]), make_classes(),
             in_temp("named"),
             arena_printf(mem(),
                          "--train_steps 1 --lr_schedule.warmup_steps 0 "
                          "--model.file %s --parallel.shard tp_b1=-",
                          in_temp("named.ir")));
    RUN_EXPECT(0, words);
    SAID_EXPECT("model_parallel 2 has no effect: no entry of parallel.shard");
}

/* The module is found beside the YAML that names it, wherever the command runs. */
TEST(a_module_is_found_beside_its_yaml) {
    const char *data = make_classes(), *dir = folder("elsewhere");
    const char *text =
        file_read(mem(), config_of(&examples[1]), 1 << 16, NULL, EXIT_DATA);
    write_text(path_join(mem(), dir, "train.yaml"), text);
    const char *words = arena_printf(mem(),
                                     "train %s/train.yaml --dataset_dir %s --output_dir "
                                     "%s --train_steps 1 --lr_schedule.warmup_steps 0",
                                     dir, data, in_temp("run"));
    RUN_EXPECT(EXIT_CONFIG, words);
    SAID_EXPECT("mlp.ir");
    text = file_read(mem(),
                     arena_printf(mem(), "%s/../examples/classifier/mlp.ir", tests_dir()),
                     1 << 16, NULL, EXIT_DATA);
    write_text(path_join(mem(), dir, "mlp.ir"), text);
    RUN_EXPECT(0, words);
}
