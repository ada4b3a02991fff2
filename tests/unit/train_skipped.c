/* Tests of stator train with batches that overflow: a token that is in those batches only
 * has an embedding too large to add up, or an infinite one. The run goes on as if they
 * had not been, over a resume as well, says and counts them, and ends after too many in a
 * row. */
#include "ranks.h"
#include "runtime/store/safetensors.h"

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);

enum { STEPS = 20 };

/* ---- data and weights ---- */

typedef struct Bad {
    const char *model, *table; /* a golden case, and its tensor of embeddings */
    float value;               /* all of the row of the last token */
} Bad;

static const Bad large = {"gpt2_untied", "wte.weight", 3e38f};
static const Bad infinite = {"llama_tiny", "model.embed_tokens.weight", INFINITY};

/* A folder with the weights of the case, but for that row. */
static const char *write_weights(const Bad *bad) {
    const char *from = runs_golden(bad->model), *to = in_temp("weights");
    EXPECT_INT(dir_make(to), 0);
    EXPECT_INT(system(arena_printf(mem(), "cp %s/config.json %s", from, to)), 0);
    Safetensors *file =
        safetensors_open(mem(), path_join(mem(), from, "model.safetensors"), EXIT_DATA);
    for (int i = 0; i < file->n; i++) {
        SafeTensor *t = &file->t[i];
        if (strcmp(t->name, bad->table)) continue;
        size_t rows = (size_t)t->dim[0], width = (size_t)t->dim[1];
        float *table = arena_alloc(mem(), rows * width * sizeof *table);
        memcpy(table, t->data, rows * width * sizeof *table);
        for (size_t k = 0; k < width; k++) table[(rows - 1) * width + k] = bad->value;
        t->data = table;
    }
    EXPECT_INT(safetensors_write(path_join(mem(), to, "model.safetensors"), file->t,
                                 file->n, NULL, NULL),
               0);
    return to;
}

/* The batches of the case, in which the last token is no other's; `steps` has a letter a
 * batch: b is a bad one, - one that is left out. */
static const char *write_batches(const Bad *bad, const char *steps) {
    const char *from = path_join(mem(), runs_golden(bad->model), "expected.safetensors");
    const SafeTensor *t =
        safetensors_need(safetensors_open(mem(), from, EXIT_DATA), "tokens");
    int64_t batch = t->dim[1] * t->dim[2], n = 0;
    int32_t last = strcmp(bad->model, "gpt2_untied") ? 95 : 60;
    int32_t *token = NEW_ARRAY(mem(), int32_t, (size_t)(batch * STEPS));
    for (int64_t k = 0; steps[k]; k++) {
        for (int64_t i = 0; i < batch && steps[k] != '-'; i++) {
            int64_t v;
            memcpy(&v, (const int64_t *)t->data + k * batch + i, sizeof v);
            token[n * batch + i] = v == last ? 0 : (int32_t)v;
        }
        if (steps[k] == 'b') token[n * batch + batch / 2 + 1] = last;
        n += steps[k] != '-';
    }
    SafeTensor out = {.name = "tokens", .dtype = DT_I32, .rank = 3, .data = token};
    out.dim[0] = n, out.dim[1] = t->dim[1], out.dim[2] = t->dim[2];
    const char *path = in_temp(arena_printf(mem(), "batches%s.safetensors", steps));
    EXPECT_INT(safetensors_write(path, &out, 1, NULL, NULL), 0);
    return path;
}

static const char bad_yaml[] =
    "seed: 1\n"
    "optimizer: {type: AdamW, beta2: 0.95, weight_decay_incr_style: linear, "
    "start_weight_decay: 0.0, end_weight_decay: 0.2}\n"
    "lr_schedule: {type: cosine_with_restarts, num_cycles: 2, learning_rate: 3.e-3, "
    "lr_end: 3.e-4, warmup_steps: 4, total_steps: 20}\n"
    "init_from: %s\n"
    "callbacks:\n"
    "  - {type: CheckpointMonitor, save_checkpoint_steps: 5, keep_checkpoint_max: 9}\n"
    "train_dataset: {data_loader: {type: TensorBatches, dataset_dir: %s}}\n";

static const char *config_of(const Bad *bad, const char *steps) {
    const char *config = in_temp(arena_printf(mem(), "%s.yaml", steps));
    write_text(config, arena_printf(mem(), bad_yaml, write_weights(bad),
                                    write_batches(bad, steps)));
    return config;
}

/* ---- what runs have in common ---- */

/* A row but for what time it took. */
static const char *steady(const MetricsRow *row, int64_t step) {
    char *line = arena_alloc(mem(), 1024);
    MetricsRow r = *row;
    r.step = step, r.seconds = r.tokens_per_second = 1, r.mfu = -1;
    metrics_format(&r, line, 1024);
    return line;
}

static void expect_same_rows(const char *a, const char *b) {
    int na, nb;
    const MetricsRow *x = runs_metrics(a, &na), *y = runs_metrics(b, &nb);
    EXPECT_INT(na, nb);
    for (int i = 0; i < na; i++) EXPECT_STR(steady(&x[i], i + 1), steady(&y[i], i + 1));
}

/* Rows are skipped where `steps` has a b. */
static const MetricsRow *expect_skipped(const char *run, const char *steps) {
    int n;
    const MetricsRow *row = runs_metrics(run, &n);
    EXPECT_INT(n, (int)strlen(steps));
    for (int i = 0; i < n; i++)
        if (row[i].skipped != (steps[i] == 'b') ||
            isfinite(row[i].loss) == row[i].skipped)
            test_fail(__FILE__, __LINE__, "%s: step %d: loss %g, skipped %d", run, i + 1,
                      row[i].loss, row[i].skipped);
    return row;
}

/* ---- tests ---- */

static const char mixed[] = "..bb...b.bbb........";

/* Without the bad batches the same updates are done: rates, decays and corrections are
 * those of the update, not of the step. */
TEST_LIMIT(good_steps_are_those_of_a_run_without_the_bad, 120) {
    const char *with = in_temp("with"), *without = in_temp("without");
    char good[STEPS + 1];
    for (int i = 0; i <= STEPS; i++) good[i] = mixed[i] == 'b' ? '-' : mixed[i];
    RUN_EXPECT(0, runs_words(config_of(&large, mixed), with, ""));
    SAID_EXPECT("WARNING: step 3 is skipped: loss ");
    SAID_EXPECT("(skipped in a row: 3 of at most 10)");
    SAID_EXPECT("done       20 steps");
    SAID_EXPECT(", skipped: 6");
    const MetricsRow *a = expect_skipped(with, mixed);
    int n, k = 0;
    RUN_EXPECT(0, runs_words(config_of(&large, good), without,
                             "--optimizer.end_weight_decay 0.14")); /* as much a step */
    const MetricsRow *b = runs_metrics(without, &n);
    EXPECT_INT(n, 14);
    for (int i = 0; i < STEPS; i++) {
        if (mixed[i] == 'b') continue;
        EXPECT_STR(steady(&a[i], k + 1), steady(&b[k], k + 1));
        k++;
    }
    EXPECT_INT(k, n);
    EXPECT_INT(
        system(arena_printf(mem(), "cp -r %s/ckpt/step_00000014 %s/ckpt/step_00000020",
                            without, without)),
        0);
    runs_expect_same_tensors(with, without, STEPS);
}

/* Stopped before, between and after bad steps. */
TEST_LABEL_OF(a_resume_across_skipped_steps, RELEASED);
TEST_LIMIT(a_resume_across_skipped_steps, 180) {
    const char *config = config_of(&large, mixed), *whole = in_temp("whole");
    RUN_EXPECT(0, runs_words(config, whole, ""));
    for (int stop = 3; stop <= 12; stop += 3) {
        const char *run = in_temp(arena_printf(mem(), "run%d", stop));
        RUN_EXPECT(0, runs_words(config, run,
                                 arena_printf(mem(),
                                              "--runner_config.max_steps %d "
                                              "--optimizer.end_weight_decay %.17g",
                                              stop, 0.01 * stop)));
        RUN_EXPECT(0, runs_words(config, run, ""));
        SAID_EXPECT(arena_printf(mem(), "resumed after step %d", stop));
        expect_same_rows(whole, run);
        runs_expect_same_tensors(whole, run, STEPS);
    }
}

/* The steps of which there are checkpoints, such as "3 13 14". */
static const char *steps_kept_in(const char *folder) {
    Text kept = text_new(mem());
    for (int k = 1; k <= STEPS; k++)
        if (file_exists(arena_printf(mem(), "%s/step_%08d", folder, k)))
            text_add(&kept, kept.n ? " %d" : "%d", k);
    return kept.s;
}

static const char *steps_kept(const char *run) {
    return steps_kept_in(path_join(mem(), run, "ckpt"));
}

/* The run saves what is good and ends. The same command is refused and changes nothing; who
 * names the last checkpoint goes on behind the skipped steps. */
TEST_LIMIT(the_end_after_too_many_in_a_row, 120) {
    static const char steps[] = "....bb.bbbb...b.....";
    const char *config = config_of(&large, steps), *run = in_temp("run");
    const char *whole = in_temp("whole"), *most = "--runner_config.max_skipped_steps 3";
    RUN_EXPECT(0, runs_words(config, whole, ""));
    RUN_EXPECT(1, runs_words(config, run, most));
    SAID_EXPECT("(skipped in a row: 3 of at most 3)");
    SAID_EXPECT(
        "3 steps in a row were skipped, the weights are those of step 7; the newest "
        "checkpoint is of step 10, the newest good one of step 5 "
        "(--resume ");
    SAID_EXPECT("/ckpt/step_00000005); try a smaller learning rate");
    expect_skipped(run, "....bb.bbb");
    EXPECT(file_exists(path_join(mem(), run, "ckpt/step_00000010/manifest.json")));
    EXPECT(file_exists(path_join(mem(), run, "loss.svg")));
    const char *newest = path_join(mem(), run, "ckpt/step_00000010");
    RUN_EXPECT(1, runs_words(config, run, most));
    SAID_EXPECT("the run has diverged (3 steps in a row were skipped at step 10)");
    SAID_EXPECT(arena_printf(mem(), "or --resume %s to go on", newest));
    EXPECT_STR(steps_kept(run), "5 10");
    RUN_EXPECT(
        0, runs_words(config, run, arena_printf(mem(), "%s --resume %s", most, newest)));
    SAID_EXPECT("resumed after step 10");
    SAID_EXPECT("WARNING: step 11 is skipped: ");
    SAID_EXPECT("(skipped in a row: 1 of at most 3)");
    expect_same_rows(whole, run);
    runs_expect_same_tensors(whole, run, STEPS);
}

/* Of a token that is in no batch there is no gradient. */
TEST_LIMIT(steps_of_nothing_by_nothing, 120) {
    const char *run = in_temp("run"), *config = config_of(&large, "....................");
    const char *none = runs_words(config, run, "--optimizer.eps 0");
    RUN_EXPECT(1, none);
    SAID_EXPECT("optimizer.eps is 0: the step of a number whose gradients");
    SAID_EXPECT("is not finite any more: write an optimizer.eps above 0, as with 0");
    RUN_EXPECT(1, none);
    SAID_EXPECT("write --resume never and an --optimizer.eps above 0 to start anew");
}

/* Rates too large for plain SGD: the loss grows, and then is no number. */
static const char *growing(const char *run, const char *more) {
    return runs_words(
        runs_small_config(40, 2), run,
        arena_printf(mem(),
                     "--optimizer.type SGD --lr_schedule.type constant "
                     "--runner_wrapper.use_clip_grad False "
                     "--callbacks.CheckpointMonitor.keep_checkpoint_max 2 %s",
                     more));
}

/* A run that has diverged does not go on from its bad weights. */
TEST_LIMIT(a_diverged_run_goes_on_from_before, 120) {
    const char *run = in_temp("run"), *large_rate = "--lr_schedule.learning_rate 1000";
    RUN_EXPECT(1, growing(run, large_rate));
    SAID_EXPECT("ERROR: the run has diverged: 10 steps in a row were skipped");
    const char *kept = steps_kept(run);
    RUN_EXPECT(1, growing(run, large_rate));
    SAID_EXPECT("and the same configuration would do so again");
    EXPECT_STR(steps_kept(run), kept);
    RUN_EXPECT(0, growing(run, "--lr_schedule.learning_rate 1e-3 --train_steps 6"));
    SAID_EXPECT("resumed after step 2");
    SAID_EXPECT("note: checkpoints of steps after 2 are now in ");
    EXPECT_STR(steps_kept(run), "2 4 6");
    EXPECT_STR(steps_kept_in(path_join(mem(), run, "ckpt.before-1")),
               kept + strlen("2 "));
}

/* Nor do ranks, each of which has a part of the weights. */
TEST_LABEL_OF(ranks_that_diverged_go_on_from_before, RELEASED);
TEST_LIMIT(ranks_that_diverged_go_on_from_before, 120) {
    const char *run = in_temp("run"), *config = runs_small_config(40, 2);
    const char *more = "--optimizer.type SGD --lr_schedule.type constant "
                       "--runner_wrapper.use_clip_grad False "
                       "--parallel_config.model_parallel 2 --lr_schedule.learning_rate ";
    pid_t pid = ranks_start(2, config, run, arena_printf(mem(), "%s 1000", more));
    ranks_end(pid, 1, "diverges");
    pid = ranks_start(2, config, run, arena_printf(mem(), "%s 1000", more));
    ranks_end(pid, 1, "would do so again");
    SAID_EXPECT("and the same configuration would do so again");
    ranks_run(2, config, run, arena_printf(mem(), "%s 1e-3 --train_steps 6", more));
    EXPECT_PART(ranks_log(run, 0), "resumed after step 2");
}

/* Of checkpoints with a loss far above that of the start none is kept as the good one. */
TEST_LIMIT(a_checkpoint_of_a_large_loss_is_not_good, 120) {
    const char *run = in_temp("run");
    RUN_EXPECT(0, growing(run, "--lr_schedule.learning_rate 30 --train_steps 6 "
                               "--callbacks.CheckpointMonitor.save_checkpoint_steps 1"));
    EXPECT_STR(steps_kept(run), "1 5 6");
}

/* keep_checkpoint_max never leaves only weights of which no step has come. */
TEST_LABEL_OF(a_good_checkpoint_is_kept, RELEASED);
TEST_LIMIT(a_good_checkpoint_is_kept, 240) {
    static const struct {
        const char *steps, *max, *kept;
    } rows[] = {{"....bbbbbbbbbb", "2", "3 13 14"},
                {"....bbbbbbbbbb", "1", "3 14"},
                {"....bbbb....", "3", "10 11 12"},
                {"....bbbb....b", "2", "11 12 13"},
                {"bbbbbbbb", "2", "7 8"}};
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        const char *config = config_of(&large, rows[i].steps);
        const char *run = in_temp(arena_printf(mem(), "run%d", i));
        const char *more =
            arena_printf(mem(),
                         "--runner_config.max_skipped_steps 0 "
                         "--callbacks.CheckpointMonitor.save_checkpoint_steps 1 "
                         "--callbacks.CheckpointMonitor.keep_checkpoint_max %s",
                         rows[i].max);
        RUN_EXPECT(
            0, runs_words(config, run,
                          arena_printf(mem(), "%s --runner_config.max_steps 6", more)));
        RUN_EXPECT(0, runs_words(config, run, more));
        EXPECT_STR(steps_kept(run), rows[i].kept);
    }
}

/* Nothing is trained: no success, and no "done" when it is started again. */
TEST_LIMIT(a_short_run_of_skipped_steps, 120) {
    const char *run = in_temp("run"), *config = config_of(&large, "bbb");
    for (int i = 0; i < 2; i++) {
        RUN_EXPECT(1, runs_words(config, run, ""));
        EXPECT_PART(said(), "3 steps in a row were skipped");
        EXPECT(!strstr(said(), "done "));
    }
    RUN_EXPECT(0, runs_words(config_of(&large, "..b"), in_temp("last"), ""));
    SAID_EXPECT("final loss nan, skipped: 1");
}

TEST_LIMIT(no_end_when_none_is_wanted, 120) {
    static const char steps[] = "bbbbbbbbbbbbbbbb";
    const char *run = in_temp("run"), *config = config_of(&large, steps);
    RUN_EXPECT(0, runs_words(config, run, "--runner_config.max_skipped_steps 0"));
    expect_skipped(run, steps);
    SAID_EXPECT("(skipped in a row: 16)");
}

/* No advice about learning rates where the weights were bad before the first step. */
TEST_LIMIT(weights_that_were_not_finite, 120) {
    const char *run = in_temp("run"), *config = config_of(&infinite, "..bbbb");
    RUN_EXPECT(1, runs_words(config, run, "--runner_config.max_skipped_steps 2"));
    SAID_EXPECT("has elements that are inf or NaN before the first step");
    SAID_EXPECT("was not finite before the first step: start from other weights");
    SAID_EXPECT("there is no checkpoint; ");
    EXPECT(!strstr(said(), "smaller learning rate"));
    EXPECT(!file_exists(path_join(mem(), run, "ckpt/latest")));
}

TEST_LIMIT(an_evaluation_of_them_knows_no_error, 120) {
    const char *eval = arena_printf(mem(), "eval %s --data %s", write_weights(&infinite),
                                    write_batches(&infinite, "bb"));
    RUN_EXPECT(1, eval);
    SAID_EXPECT("\nloss           nan\nperplexity     nan\n");
    RUN_EXPECT(1, arena_printf(mem(), "%s --json", eval));
    SAID_EXPECT("\"loss\": null, \"loss_error\": null, \"perplexity\": null");
}

/* Checkpoints from before steps were skipped do not have the counts. */
TEST_LIMIT(a_checkpoint_without_counts, 120) {
    const char *run = in_temp("run"), *config = config_of(&large, "......");
    RUN_EXPECT(0, runs_words(config, run, "--runner_config.max_steps 5"));
    const char *path = path_join(mem(), run, "ckpt/step_00000005/manifest.json");
    static const char counts[] = ",\"skipped_steps\":0,\"skipped_in_a_row\":0";
    char *text = file_read(mem(), path, 1 << 20, NULL, EXIT_DATA);
    char *at = strstr(text, counts);
    EXPECT(at);
    memmove(at, at + strlen(counts), strlen(at + strlen(counts)) + 1);
    char *end = strrchr(text, ',') + 2,
         seal[HASH_HEX_BYTES]; /* what the checksum is of */
    hash_hex(text, (size_t)(end - text), seal);
    *end = 0;
    write_text(path, arena_printf(mem(), "%s\"xxh3\": \"%s\"\n}\n", text, seal));
    RUN_EXPECT(0, runs_words(config, run, ""));
    SAID_EXPECT("resumed after step 5");
    expect_skipped(run, "......");
}

/* The same steps are skipped on four ranks, by all of them, and the others are the same.
 */
TEST_LABEL_OF(four_ranks_skip_together, RELEASED);
TEST_LIMIT(four_ranks_skip_together, 240) {
    static const char *const ways[] = {
        "--parallel_config.data_parallel 2 --parallel_config.model_parallel 2",
        "--parallel_config.data_parallel 4 " ZERO_LEVEL(1),
        "--parallel_config.data_parallel 4 " ZERO_LEVEL(3),
        "--parallel_config.data_parallel 2 --parallel_config.model_parallel "
        "2 " ZERO_LEVEL(2) "--parallel_config.micro_batch_num 2"};
    const char *config = config_of(&infinite, mixed), *one = in_temp("one");
    ranks_run(1, config, one, "");
    const MetricsRow *a = expect_skipped(one, mixed);
    for (int k = 0; k < ARRAY_LEN(ways); k++) {
        if (RANKS_SANITIZED && !test_long() && k % 2) continue;
        const char *run = in_temp(arena_printf(mem(), "four%d", k));
        ranks_run(4, config, run, ways[k]);
        const MetricsRow *b = expect_skipped(run, mixed);
        for (int i = 0; i < STEPS; i++) {
            EXPECT(a[i].lr == b[i].lr);
            if (!a[i].skipped) EXPECT(fabs(a[i].loss - b[i].loss) <= 1e-5 * a[i].loss);
        }
        for (int r = 0; r < 4; r++)
            EXPECT_PART(ranks_log(run, r), "WARNING: step 12 is skipped: ");
    }
}

/* ---- SGD without momentum ---- */

TEST_LIMIT(sgd_holds_no_state, 120) {
    const char *config = runs_small_config(12, 6), *run = in_temp("run");
    const char *whole = in_temp("whole"), *sgd = "--optimizer.type SGD";
    RUN_EXPECT(0, runs_words(config, whole, sgd));
    SAID_EXPECT("optimizer 0 B");
    RUN_EXPECT(0, runs_words(config, run,
                             arena_printf(mem(),
                                          "%s --runner_config.max_steps 6 "
                                          "--lr_schedule.total_steps 12",
                                          sgd)));
    const char *file = path_join(mem(), run, "ckpt/step_00000006/optimizer.safetensors");
    EXPECT_INT(safetensors_open(mem(), file, EXIT_DATA)->n, 0);
    RUN_EXPECT(0, runs_words(config, run, sgd));
    SAID_EXPECT("resumed after step 6");
    runs_expect_same_losses(whole, run, 12);
    runs_expect_same_tensors(whole, run, 12);
}
