/* Tests of the folders that stator train writes to: who may write there, and what it finds
 * and leaves there. */
#include "ranks.h"
#include <sys/stat.h>

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

static const char *words(const char *config, const char *run, const char *more) {
    return arena_printf(mem(), "train %s --output_dir %s %s", config, run, more);
}

static const char *checkpoints_in(const char *folder) {
    return arena_printf(mem(), "--callbacks.CheckpointMonitor.directory %s", folder);
}

static void kill_and_wait(pid_t pid) {
    kill(pid, SIGKILL);
    EXPECT_INT(stator_wait(pid), -SIGKILL);
}

/* ---- one run at a time ---- */

TEST_LIMIT(one_folder_of_checkpoints_for_two_runs_is_refused, 120) {
    const char *config = runs_small_config(100000, 50000), *run = in_temp("run");
    const char *both = checkpoints_in(in_temp("both"));
    pid_t pid = stator_start(words(config, run, both));
    EXPECT(runs_wait_steps(pid, run, 1));
    RUN_EXPECT(EXIT_CONFIG, words(config, in_temp("other"), both));
    SAID_EXPECT("another stator train is writing to");
    SAID_EXPECT("/both; give another --callbacks.CheckpointMonitor.directory");
    RUN_EXPECT(EXIT_CONFIG,
               words(config, in_temp("other"),
                     checkpoints_in(path_join(mem(), run, "ckpt/../../both"))));
    kill_and_wait(pid);
}

/* Also where it is the usual one of the other run. */
TEST_LIMIT(the_checkpoints_of_a_running_run_are_refused, 120) {
    const char *config = runs_small_config(100000, 50000), *run = in_temp("run");
    pid_t pid = stator_start(words(config, run, ""));
    EXPECT(runs_wait_steps(pid, run, 1));
    RUN_EXPECT(EXIT_CONFIG, words(config, in_temp("other"),
                                  checkpoints_in(path_join(mem(), run, "ckpt"))));
    SAID_EXPECT("/run/ckpt; give another");
    kill_and_wait(pid);
}

TEST_LIMIT(one_folder_for_the_run_and_its_checkpoints, 120) {
    const char *config = runs_small_config(4, 2), *run = in_temp("run");
    RUN_EXPECT(0, words(config, run, checkpoints_in(run)));
    EXPECT(file_exists(path_join(mem(), run, "step_00000004")));
}

/* The lock is on the folder that is there now, not on the one that went aside. */
TEST_LIMIT(a_folder_made_anew_is_locked, 120) {
    const char *both = checkpoints_in(in_temp("both")), *run = in_temp("run");
    RUN_EXPECT(0, words(runs_small_config(4, 2), in_temp("before"), both));
    const char *config = runs_small_config(100000, 50000);
    pid_t pid =
        stator_start(words(config, run, arena_printf(mem(), "%s --resume never", both)));
    EXPECT(runs_wait_steps(pid, run, 1));
    EXPECT(file_exists(in_temp("both.before-1/step_00000004")));
    RUN_EXPECT(EXIT_CONFIG, words(config, in_temp("other"), both));
    kill_and_wait(pid);
}

TEST_LIMIT(one_folder_of_checkpoints_for_two_runs_of_ranks, 180) {
    const char *config = runs_small_config(100000, 50000), *run = in_temp("run");
    const char *both = checkpoints_in(in_temp("both"));
    pid_t pid = ranks_start(2, config, run, both);
    EXPECT(runs_wait_steps(pid, run, 1));
    RUN_EXPECT(EXIT_CONFIG, words(config, in_temp("one"), both));
    ranks_end(ranks_start(2, config, in_temp("two"), both), EXIT_CONFIG, both);
    SAID_EXPECT("another stator train is writing to");
    kill(pid, SIGTERM);
    stator_wait(pid);
}

/* ---- data that change under a run ---- */

/* The steps up to the last good batch are saved; returns the number of the last. */
static int ends_for_data(const char *run, const char *words_after,
                         void (*spoil)(const char *)) {
    const char *config = runs_small_config(100000, 50000);
    pid_t pid = stator_start(words(config, run, words_after));
    EXPECT(runs_wait_steps(pid, run, 3));
    spoil(in_temp("text.txt"));
    int code = stator_wait(pid), n = 0;
    if (code != EXIT_DATA)
        test_fail(__FILE__, __LINE__, "exit code %d:\n%s", code, said());
    runs_metrics(run, &n);
    EXPECT(n >= 3);
    SAID_EXPECT(arena_printf(mem(), "saved %s/ckpt/step_%08d", run, n));
    EXPECT(file_exists(arena_printf(mem(), "%s/ckpt/step_%08d/manifest.json", run, n)));
    return n;
}

static void cut_short(const char *path) {
    EXPECT(truncate(path, 0) == 0);
}

static void write_other_bytes(const char *path) {
    char bytes[5000];
    memset(bytes, 0xC8, sizeof bytes);
    int fd = open(path, O_WRONLY);
    EXPECT(fd >= 0);
    for (int i = 0; i < 2; i++)
        EXPECT_INT(pwrite(fd, bytes, sizeof bytes, i * 4000), (ssize_t)sizeof bytes);
    close(fd);
}

TEST_LIMIT(a_text_that_is_cut_short_while_training, 120) {
    const char *run = in_temp("run");
    int n = ends_for_data(run, "", cut_short);
    SAID_EXPECT("text.txt was cut short, or cannot be read any more");
    RUN_EXPECT(0, words(runs_small_config(n + 2, 50000), run, ""));
    SAID_EXPECT(arena_printf(mem(), "resumed after step %d", n));
}

TEST_LIMIT(a_token_that_goes_bad_while_training, 120) {
    ends_for_data(in_temp("run"), "--model.model_config.vocab_size 128",
                  write_other_bytes);
    SAID_EXPECT("token 200 (a byte) is outside the vocabulary of 128");
}

/* All end, on each with the same code. */
TEST_LIMIT(a_text_that_is_cut_short_under_two_ranks, 120) {
    const char *config = runs_small_config(100000, 50000), *run = in_temp("run");
    pid_t pid = ranks_start(2, config, run, "");
    EXPECT(runs_wait_steps(pid, run, 3));
    cut_short(in_temp("text.txt"));
    ranks_end(pid, EXIT_DATA, "a text cut short");
    SAID_EXPECT("text.txt was cut short, or cannot be read any more");
}

static void change_a_byte(const char *path) {
    int fd = open(path, O_WRONLY);
    EXPECT(fd >= 0 && pwrite(fd, "#", 1, 3001) == 1);
    close(fd);
}

TEST_LIMIT(a_resume_says_that_the_text_has_changed, 120) {
    const char *config = runs_small_config(8, 4), *run = in_temp("run");
    const char *half = "--runner_config.max_steps 4 --lr_schedule.total_steps 8";
    RUN_EXPECT(0, words(config, run, half));
    RUN_EXPECT(0, words(config, run, half));
    EXPECT(!strstr(said(), "other content"));
    change_a_byte(in_temp("text.txt"));
    RUN_EXPECT(0, words(config, run, half));
    SAID_EXPECT("text.txt has the size it had when the checkpoint was saved, but other "
                "content");
}

TEST_LIMIT(a_text_shorter_than_a_step, 120) {
    const char *config = runs_small_config(4, 0), *run = in_temp("run");
    RUN_EXPECT(0, words(config, run, ""));
    EXPECT(!strstr(said(), "more than once"));
    EXPECT(truncate(in_temp("text.txt"), 49) == 0);
    RUN_EXPECT(0, words(config, in_temp("short"), ""));
    SAID_EXPECT("text.txt has 3 sequences of 16, a step takes 4");
}

TEST_LIMIT(damaged_metrics_are_told_at_a_resume, 120) {
    const char *config = runs_small_config(8, 4), *run = in_temp("run");
    RUN_EXPECT(0, words(config, run, ""));
    const char *path = path_join(mem(), run, "metrics.jsonl");
    int fd = open(path, O_WRONLY);
    EXPECT(fd >= 0 && pwrite(fd, "@", 1, 0) == 1);
    close(fd);
    RUN_EXPECT(0, words(config, run, "--runner_config.log_interval 3"));
    SAID_EXPECT("metrics.jsonl:1: the line is broken or out of order; 1 such lines are "
                "taken out, the file as it was is ");
    EXPECT(file_exists(arena_printf(mem(), "%s.damaged-1", path)));
}

TEST_LIMIT(a_run_folder_removed_while_training, 120) {
    const char *config = runs_small_config(100000, 20), *run = in_temp("run");
    pid_t pid = stator_start(words(config, run, ""));
    EXPECT(runs_wait_steps(pid, run, 1));
    EXPECT(rename(run, in_temp("moved")) == 0);
    for (int i = 0; i < 600 && !strstr(said(), "was removed"); i++) usleep(100000);
    SAID_EXPECT("was removed or moved while training");
    kill(pid, SIGTERM);
    stator_wait(pid);
    EXPECT(file_exists(path_join(mem(), run, "ckpt/latest")));
}

/* ---- what is no file ---- */

/* Nobody writes to these pipes: each is refused at once. */
TEST_LIMIT(pipes_in_the_place_of_files, 60) {
    const char *pipe = in_temp("tokenizer.json"), *weights = in_temp("hf");
    EXPECT(mkfifo(pipe, 0600) == 0 && dir_make(weights) == 0);
    RUN_EXPECT(EXIT_DATA, arena_printf(mem(), "inspect %s", pipe));
    SAID_EXPECT("tokenizer.json is no regular file but a pipe or a device");
    RUN_EXPECT(EXIT_CONFIG, words(pipe, in_temp("run"), ""));
    EXPECT_INT(system(arena_printf(mem(), "cp %s/config.json %s",
                                   runs_golden("gpt2_tiny"), weights)),
               0);
    EXPECT(mkfifo(path_join(mem(), weights, "model.safetensors"), 0600) == 0);
    RUN_EXPECT(EXIT_CHECKPOINT, arena_printf(mem(), "inspect %s", weights));
    SAID_EXPECT("not a regular file");
}

/* A run folder from elsewhere could name any file of the user's as its log. */
TEST_LIMIT(a_log_that_is_a_link_is_not_followed, 60) {
    const char *run = in_temp("run"), *mine = in_temp("mine.txt");
    write_text(mine, "keep");
    EXPECT_INT(dir_make(path_join(mem(), run, "logs")), 0);
    EXPECT(symlink(mine, path_join(mem(), run, "logs/rank_0.log")) == 0);
    RUN_EXPECT(EXIT_DATA, words(runs_small_config(4, 2), run, ""));
    SAID_EXPECT("logs/rank_0.log: Too many levels of symbolic links");
    EXPECT_STR(file_read(mem(), mine, 100, NULL, EXIT_DATA), "keep");
}

/* ---- what is small ---- */

TEST_LIMIT(latest_as_a_folder_does_not_hide_the_checkpoint, 60) {
    const char *run = in_temp("run"), *config = runs_small_config(4, 2);
    EXPECT_INT(dir_make(path_join(mem(), run, "ckpt/latest/x")), 0);
    RUN_EXPECT(0, words(config, run, ""));
    SAID_EXPECT("ckpt/step_00000004, but: cannot write ");
    EXPECT(!strstr(said(), "no checkpoint of step"));
    RUN_EXPECT(0, words(config, run, ""));
    SAID_EXPECT("resumed after step 4");
}

static void to_full_disk(void) {
    int fd = open("/dev/full", O_WRONLY);
    dup2(fd, 1);
}

TEST_LIMIT(lost_output_is_an_error, 60) {
    static const char *const lines[] = {"help", "--version", "train --help",
                                        "inspect --help", "help optimizer"};
    for (int i = 0; i < ARRAY_LEN(lines); i++) {
        driven_prepare = NULL;
        RUN_EXPECT(0, lines[i]);
        driven_prepare = to_full_disk;
        RUN_EXPECT(EXIT_DATA, lines[i]);
        SAID_EXPECT("cannot write to stdout: No space left on device");
    }
    const char *ir = arena_printf(mem(), "%s/ir/mlp.ir", tests_dir());
    EXPECT(system(arena_printf(mem(), "%s/stator-opt %s > /dev/full 2> %s", BUILD_DIR, ir,
                               in_temp("output.txt"))) != 0);
    SAID_EXPECT("cannot write to stdout");
}

TEST_LIMIT(numbers_of_threads_and_steps, 60) {
    const char *run = in_temp("run"), *config = runs_small_config(4, 2);
    RUN_EXPECT(EXIT_CONFIG, words(config, run, "--context.threads 4096"));
    SAID_EXPECT("4096 threads on ");
    RUN_EXPECT(EXIT_CONFIG, words(config, run,
                                  "--runner_config.max_steps 0 "
                                  "--lr_schedule.total_steps 8"));
    SAID_EXPECT("max_steps is 0: nothing would be trained");
}
