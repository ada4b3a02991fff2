/* Tests of the files of lines that stator train writes (metrics.jsonl, valid.jsonl): what it
 * says of lines that are damaged or missing at a resume, and of a file that is gone; its last
 * line at the terminal. */
#include "ranks.h"
#include <sys/stat.h>

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);
TEST_LABEL(RELEASED);

/* The program by its path, unless PATH finds it, and a folder with quotes where it needs them. */
TEST(the_next_command_can_be_typed) {
    const char *config = runs_small_config(4, 4), *run = in_temp("run$1");
    RUN_EXPECT(0, runs_words(config, run, ""));
    SAID_EXPECT("/stator predict ");
    SAID_EXPECT(arena_printf(mem(), "predict '%s' --prompt", run));
    setenv("PATH", arena_printf(mem(), "%s:%s", getenv("PATH"), BUILD_DIR), 1);
    RUN_EXPECT(0, runs_words(config, run, "--train_steps 5"));
    SAID_EXPECT("next       stator predict ");
}

TEST_LIMIT(damaged_metrics_are_told_at_a_resume, 120) {
    const char *config = runs_small_config(8, 4), *run = in_temp("run");
    RUN_EXPECT(0, runs_words(config, run, ""));
    const char *path = path_join(mem(), run, "metrics.jsonl");
    int fd = open(path, O_WRONLY);
    EXPECT(fd >= 0 && pwrite(fd, "@", 1, 0) == 1);
    close(fd);
    RUN_EXPECT(0, runs_words(config, run, "--runner_config.log_interval 3"));
    SAID_EXPECT("metrics.jsonl:1: the line is broken or out of order; 1 such lines are "
                "taken out, the file as it was is ");
    EXPECT(file_exists(arena_printf(mem(), "%s.damaged-1", path)));
}

TEST_LIMIT(missing_metrics_are_told_at_a_resume, 120) {
    static const struct {
        const char *spoil, *said; /* command before the path; NULL: nothing is said */
    } rows[] = {
        {": >", "no line of 8 of the steps up to 8, the first of them step 1"},
        {"rm", "no line of 8 of the steps up to 8, the first of them step 1"},
        {"sed -i 1,2d", "no line of 2 of the steps up to 8, the first of them step 1"},
        {"sed -i 3d", "no line of 1 of the steps up to 8, the first of them step 3"},
        {"sed -i '3d;6,$d'",
         "no line of 4 of the steps up to 8, the first of them step 3"},
        {":", NULL}};
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        const char *config = runs_small_config(8, 4),
                   *run = in_temp(arena_printf(mem(), "run%d", i));
        const char *path = path_join(mem(), run, "metrics.jsonl");
        RUN_EXPECT(0, runs_words(config, run, ""));
        EXPECT_INT(system(arena_printf(mem(), "%s %s", rows[i].spoil, path)), 0);
        RUN_EXPECT(0, runs_words(config, run, "--train_steps 9"));
        if (rows[i].said) SAID_EXPECT(rows[i].said);
        RUN_EXPECT(0, runs_words(config, run, "--train_steps 10"));
        EXPECT(!strstr(said(), "no line of") == !rows[i].said);
    }
    const char *elsewhere = in_temp("elsewhere"), *config = runs_small_config(12, 4);
    RUN_EXPECT(0, runs_words(config, elsewhere,
                             arena_printf(mem(), "--resume %s", in_temp("run0"))));
    EXPECT(!strstr(said(), "no line of"));
    RUN_EXPECT(0, runs_words(config, elsewhere, "--train_steps 13"));
    EXPECT(!strstr(said(), "no line of"));
}

TEST_LIMIT(damaged_points_are_told_at_a_resume, 120) {
    const char *config = runs_small_config(8, 4), *run = in_temp("run");
    const char *valid = "--train_dataset.data_loader.split 9,1 --eval_interval 2";
    RUN_EXPECT(0, runs_words(config, run, valid));
    const char *path = path_join(mem(), run, "valid.jsonl");
    EXPECT_INT(system(arena_printf(mem(), "echo garbage >> %s", path)), 0);
    RUN_EXPECT(0, runs_words(config, run, valid));
    SAID_EXPECT("valid.jsonl:5: the line is broken or out of order; 1 such lines are");
    const char *aside = arena_printf(mem(), "%s.damaged-1", path);
    EXPECT_PART(file_read(mem(), aside, 1 << 16, NULL, EXIT_DATA), "garbage\n");
    RUN_EXPECT(0, runs_words(config, run, valid));
    EXPECT(!strstr(said(), "broken"));
}

TEST_LIMIT(missing_points_are_told_at_a_resume, 120) {
    const char *config = runs_small_config(8, 4), *run = in_temp("run");
    const char *valid = "--train_dataset.data_loader.split 9,1 --eval_interval 2";
    RUN_EXPECT(0, runs_words(config, run, valid));
    RUN_EXPECT(0, runs_words(config, run, valid));
    EXPECT(!strstr(said(), "no point of"));
    const char *path = path_join(mem(), run, "valid.jsonl");
    EXPECT_INT(system(arena_printf(mem(), "sed -i '1d;3d' %s", path)), 0);
    RUN_EXPECT(0, runs_words(config, run, valid));
    SAID_EXPECT("valid.jsonl has no point of 2 of the steps up to 8 at which this run "
                "validates, the first of them step 2");
}

TEST_LIMIT(metrics_removed_while_training, 120) {
    const char *config = runs_small_config(100000, 20), *run = in_temp("run");
    const char *path = path_join(mem(), run, "metrics.jsonl");
    pid_t pid = stator_start(runs_words(config, run, ""));
    EXPECT(runs_wait_steps(pid, run, 1));
    EXPECT(unlink(path) == 0);
    for (int i = 0; i < 600 && !file_exists(path); i++) usleep(100000);
    EXPECT(runs_wait_steps(pid, run, 1));
    SAID_EXPECT("metrics.jsonl was removed while training: the steps from here on");
    kill(pid, SIGTERM);
    stator_wait(pid);
}

/* ---- the terminal ---- */

TEST_LIMIT(what_a_loss_is_of, 60) {
    const char *config = runs_small_config(4, 0), *run = in_temp("run");
    RUN_EXPECT(0, runs_words(config, run, "--runner_config.log_interval 3"));
    SAID_EXPECT(" (of the last step alone, not a mean of 3)\n");
    EXPECT(!strstr(said(), "lr_schedule.total_steps"));
    RUN_EXPECT(0, runs_words(config, in_temp("short"),
                             "--lr_schedule.type linear --lr_schedule.lr_end 1e-5 "
                             "--lr_schedule.total_steps 3 --lr_schedule.warmup_steps 1"));
    EXPECT(!strstr(said(), "of the last step alone"));
    SAID_EXPECT(
        "note: the learning rate goes down over lr_schedule.total_steps 3 of the 4 "
        "steps, then stays at 1e-05\n");
}

/* Only a picture that is there has a line. */
TEST_LIMIT(a_picture_that_cannot_be_written, 60) {
    const char *run = in_temp("run");
    EXPECT_INT(dir_make(path_join(mem(), run, "loss.svg/x")), 0);
    RUN_EXPECT(0, runs_words(runs_small_config(4, 2), run, ""));
    SAID_EXPECT("WARNING: cannot write ");
    SAID_EXPECT("done       4 steps");
    EXPECT(!strstr(said(), "loss curve"));
}

static void to_full_disk(void) {
    dup2(open("/dev/full", O_WRONLY), STDOUT_FILENO);
}

TEST_LIMIT(a_run_that_cannot_print_says_so_in_its_log, 60) {
    const char *run = in_temp("run"), *note = "note: stdout cannot be written to";
    driven_prepare = to_full_disk;
    RUN_EXPECT(0, runs_words(runs_small_config(4, 2), run, ""));
    const char *log = file_read(mem(), path_join(mem(), run, "logs/rank_0.log"), 1 << 20,
                                NULL, EXIT_DATA);
    EXPECT(strstr(log, note) && !strstr(strstr(log, note) + 1, note));
    EXPECT_PART(log, "done       4 steps");
}
