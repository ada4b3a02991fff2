/* Tests of what a run that was killed behind saving a step has not come to any more: losses of
 * validation, and the best checkpoint. */
#include "frontend/config/commands.h"
#include "ranks.h"

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);

/* Validates and saves at steps 4 and 8, where the loss is the lowest. */
#define VALIDATES                                                                        \
    "--train_dataset.data_loader.split 6,2,2 --runner_config.eval_interval 4 "           \
    "--runner_config.eval_iters 2 --callbacks.CheckpointMonitor.save_best True "         \
    "--lr_schedule.learning_rate 1e-2 --lr_schedule.total_steps 8 "

static const char *train(int ranks, const char *name, const char *more) {
    const char *run = in_temp(name), *config = runs_small_config(8, 4);
    ranks_run(ranks, config, run, arena_printf(mem(), VALIDATES "%s", more));
    return run;
}

/* As when the run was killed before its last `lines` points. */
static void lose_points(const char *run, int lines) {
    const char *path = path_join(mem(), run, RUN_VALIDATION);
    for (int i = 0; i < lines; i++)
        EXPECT_INT(system(arena_printf(mem(), "sed -i '$d' %s", path)), 0);
}

static void lose_best(const char *run) {
    remove_all(path_join(mem(), run, RUN_BEST));
}

static bool is_best(const char *run, int step) {
    return file_exists(
        arena_printf(mem(), "%s/" RUN_BEST "/step_%08d/manifest.json", run, step));
}

/* Killed while it validated behind its last step. */
static void loses_all_behind_the_last_step(int ranks) {
    const char *run = train(ranks, "run", ""), *before = runs_points(run);
    EXPECT_PART(before, "{\"step\": 8, \"valid_loss\": ");
    EXPECT_PART(before, "{\"step\": 8, \"test_loss\": ");
    EXPECT(is_best(run, 8));
    lose_points(run, 2);
    lose_best(run);
    train(ranks, "run", "");
    SAID_EXPECT("all 8 steps are done already");
    SAID_EXPECT("has no loss on the valid part of step 8 yet");
    EXPECT(!strstr(said(), "no point of"));
    SAID_EXPECT("test at step 8: loss ");
    EXPECT_STR(runs_points(run), before);
    EXPECT(is_best(run, 8));
    train(ranks, "run", "");
    EXPECT(!strstr(said(), "at step 8: loss"));
    EXPECT_STR(runs_points(run), before);
}

TEST_LIMIT(all_behind_the_last_step, 120) {
    loses_all_behind_the_last_step(1);
}

TEST_LABEL_OF(all_behind_the_last_step_on_ranks, RELEASED);
TEST_LIMIT(all_behind_the_last_step_on_ranks, 120) {
    loses_all_behind_the_last_step(2);
}

TEST_LIMIT(the_test_loss_alone, 120) {
    const char *run = train(1, "run", ""), *before = runs_points(run);
    lose_points(run, 1);
    train(1, "run", "");
    EXPECT(!strstr(said(), "validation at step"));
    EXPECT_STR(runs_points(run), before);
}

TEST_LIMIT(the_best_checkpoint_alone, 120) {
    const char *run = train(1, "run", "");
    lose_best(run);
    train(1, "run", "");
    EXPECT(!strstr(said(), "at step 8: loss"));
    EXPECT(is_best(run, 8));
}

/* Nothing that is trained afterwards is changed by it. */
static void loses_a_point_half_way(int ranks) {
    const char *whole = train(ranks, "whole", "");
    const char *run = train(ranks, "run", "--runner_config.max_steps 4");
    lose_points(run, 2);
    train(ranks, "run", "");
    SAID_EXPECT("validation at step 4: loss ");
    EXPECT_STR(runs_points(run), runs_points(whole));
    runs_expect_same_losses(whole, run, 8);
    runs_expect_same_tensors(whole, run, 8);
}

TEST_LIMIT(a_point_half_way, 120) {
    loses_a_point_half_way(1);
}

TEST_LABEL_OF(a_point_half_way_on_ranks, RELEASED);
TEST_LIMIT(a_point_half_way_on_ranks, 120) {
    loses_a_point_half_way(2);
}

/* The run whose checkpoint it is has the point of the step that another one begins with. */
TEST_LIMIT(no_point_where_a_run_begins, 120) {
    const char *from = train(1, "from", "--runner_config.max_steps 4");
    const char *run =
        train(1, "run", arena_printf(mem(), "--resume %s/ckpt/step_00000004", from));
    EXPECT(!strstr(runs_points(run), "\"step\": 4"));
}

/* Texts too, with and without steps to do behind them. */
static void loses_texts(int ranks) {
    static const char texts[] = "--sample_every 4 --sample_tokens 4 "
                                "--sample_prompts [one,two] ";
    const char *whole = train(ranks, "whole", texts);
    const char *file = in_temp("run/" RUN_SAMPLES);
    for (int steps = 4; steps <= 8; steps += 4) {
        const char *short_of =
            arena_printf(mem(), "%s--runner_config.max_steps %d", texts, steps);
        remove_all(in_temp("run"));
        const char *run = train(ranks, "run", short_of);
        EXPECT_INT(system(arena_printf(mem(), "sed -i /step.:%d,/d %s", steps, file)), 0);
        train(ranks, "run", texts);
        SAID_EXPECT(arena_printf(mem(), "sample at step %d: one ... ", steps));
        EXPECT(same_file(file, path_join(mem(), whole, RUN_SAMPLES)));
        train(ranks, "run", texts);
        EXPECT(!strstr(said(), "sample at step"));
        runs_expect_same_tensors(whole, run, 8);
    }
}

TEST_LIMIT(texts, 120) {
    loses_texts(1);
}

TEST_LABEL_OF(texts_on_ranks, RELEASED);
TEST_LIMIT(texts_on_ranks, 120) {
    loses_texts(2);
}

TEST_LIMIT(no_texts_where_a_run_begins, 120) {
    const char *texts = "--sample_every 4 --sample_tokens 4 --sample_prompts [one]";
    const char *from = train(1, "from", "--runner_config.max_steps 4");
    train(1, "run",
          arena_printf(mem(), "%s --resume %s/ckpt/step_00000004", texts, from));
    SAID_EXPECT("sample at step 8");
    EXPECT(!strstr(said(), "sample at step 4"));
}
