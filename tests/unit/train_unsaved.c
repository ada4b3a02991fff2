/* Tests of checkpoints that cannot be saved: what the run says then, and what it has. */
#include "frontend/config/commands.h"
#include "ranks.h"
#include <sys/resource.h>

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);

/* What is left of a save that failed, and no save can remove. */
static void block_step(const char *folder, int step) {
    EXPECT_INT(dir_make(arena_printf(mem(), "%s/step_%08d.tmp/x", folder, step)), 0);
}

/* An older checkpoint of the same step, which is damaged, is none that was saved now. */
TEST_LIMIT(a_damaged_checkpoint_is_not_saved_again, 120) {
    const char *config = runs_small_config(6, 2), *run = in_temp("run");
    RUN_EXPECT(0, runs_words(config, run, ""));
    const char *folder = path_join(mem(), run, "ckpt"), *file;
    file = path_join(mem(), folder, "step_00000006/model.safetensors");
    int fd = open(file, O_RDWR);
    EXPECT(fd >= 0 && pwrite(fd, "damage", 6, 20000) == 6 && close(fd) == 0);
    block_step(folder, 6);
    RUN_EXPECT(EXIT_CHECKPOINT, runs_words(config, run, ""));
    SAID_EXPECT("resumed after step 4");
    SAID_EXPECT("WARNING: no checkpoint of step 6: cannot clear the leftover");
    SAID_EXPECT("the last good one is of step 4");
    SAID_EXPECT("stator: error: the final weights are not saved");
}

static void small_files_only(void) {
    const struct rlimit most = {20 << 10, 20 << 10};
    setrlimit(RLIMIT_FSIZE, &most);
}

TEST_LIMIT(a_signal_where_nothing_can_be_saved, 120) {
    const char *config = runs_small_config(100000, 50000), *run = in_temp("run");
    driven_prepare = small_files_only;
    pid_t pid = stator_start(runs_words(config, run, ""));
    EXPECT(runs_wait_steps(pid, run, 1));
    kill(pid, SIGTERM);
    EXPECT_INT(stator_wait(pid), EXIT_CHECKPOINT);
    SAID_EXPECT("stopped by SIGTERM after step ");
    SAID_EXPECT("; there is no checkpoint\n");
    EXPECT(!strstr(said(), "goes on from there"));
}

/* What a killed save leaves goes when a run goes on there, and not when others look. */
TEST_LIMIT(leftovers_are_removed_by_who_writes_there, 120) {
    const char *config = runs_small_config(4, 2), *run = in_temp("run");
    const char *leftover = path_join(mem(), run, "ckpt/step_00000003.tmp");
    RUN_EXPECT(0, runs_words(config, run, ""));
    EXPECT_INT(dir_make(leftover), 0);
    RUN_EXPECT(0, arena_printf(mem(), "predict %s --prompt a --max_new_tokens 1", run));
    RUN_EXPECT(0, arena_printf(mem(), "convert --to hf %s %s", run, in_temp("hf")));
    RUN_EXPECT(0, arena_printf(mem(), "eval %s --data %s", run, in_temp("text.txt")));
    RUN_EXPECT(
        0, runs_words(config, in_temp("other"), arena_printf(mem(), "--resume %s", run)));
    EXPECT(file_exists(leftover));
    const char *best = path_join(mem(), run, "best/step_00000003.tmp");
    EXPECT_INT(dir_make(path_join(mem(), run, "best")), 0);
    EXPECT_INT(dir_make(best), 0);
    RUN_EXPECT(0, runs_words(config, run, ""));
    EXPECT(!file_exists(leftover) && !file_exists(best));
}

/* Losses of validation by step. */
static int points(const char *run, int *step, double *loss, int most) {
    const char *text =
        file_read(mem(), path_join(mem(), run, "valid.jsonl"), 1 << 20, NULL, EXIT_DATA);
    int n = 0;
    for (const char *p = text; n < most && (p = strstr(p, "{\"step\": ")); p++)
        n += sscanf(p, "{\"step\": %d, \"valid_loss\": %lf", &step[n], &loss[n]) == 2;
    return n;
}

/* Step of the lowest loss but for step `not`. */
static int least_but(const int *step, const double *loss, int n, int not ) {
    int best = -1;
    for (int i = 0; i < n; i++)
        if (step[i] != not &&(best < 0 || loss[i] < loss[best])) best = i;
    return step[best];
}

/* The best checkpoint is the best of those that could be saved. */
TEST_LIMIT(a_best_checkpoint_that_cannot_be_saved, 120) {
    enum { STEPS = 12 };
    const char *config = runs_small_config(STEPS, 0), *run = in_temp("run");
    const char *best = path_join(mem(), run, "best");
    const char *more = "--train_dataset.data_loader.split 6,2,2 "
                       "--runner_config.eval_iters 3 --runner_config.eval_interval 1 "
                       "--callbacks.CheckpointMonitor.save_best True "
                       "--lr_schedule.learning_rate 0.03 --lr_schedule.type constant "
                       "--lr_schedule.warmup_steps 0";
    int step[STEPS];
    double loss[STEPS];
    RUN_EXPECT(0, runs_words(config, run, more));
    EXPECT_INT(points(run, step, loss, STEPS), STEPS);
    int least = least_but(step, loss, STEPS, -1);
    int next = least_but(step, loss, STEPS, least);
    EXPECT(least > 1 && next > least);
    remove_all(run);
    block_step(best, least);
    RUN_EXPECT(0, runs_words(config, run, more));
    SAID_EXPECT(arena_printf(mem(), "WARNING: no best checkpoint of step %d", least));
    EXPECT(file_exists(arena_printf(mem(), "%s/step_%08d/manifest.json", best, next)));
}

/* No rank is to blame for what all could not save. */
TEST_LIMIT(ranks_that_cannot_save_the_last_step, 120) {
    const char *config = runs_small_config(4, 2), *run = in_temp("run");
    block_step(path_join(mem(), run, "ckpt"), 4);
    pid_t pid =
        ranks_start(3, config, run,
                    "--parallel_config.data_parallel 3 --runner_config.batch_size "
                    "1");
    ranks_end(pid, EXIT_CHECKPOINT, "the last checkpoint");
    SAID_EXPECT("WARNING: no checkpoint of step 4: ");
    SAID_EXPECT("stator: error: the final weights are not saved");
    EXPECT(!strstr(said(), "stator: rank"));
}
