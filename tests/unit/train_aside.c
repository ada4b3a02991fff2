/* Tests of runs that go on from a checkpoint that is not their newest, or not theirs, and of
 * what another run has left where they write. */
#include "frontend/config/commands.h"
#include "ranks.h"
#include <sys/inotify.h>

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);

static const char *checkpoint(const char *folder, int step) {
    return arena_printf(mem(), "%s/step_%08d", folder, step);
}

static bool has(const char *run, const char *folder, int step) {
    return file_exists(path_join(mem(), checkpoint(path_join(mem(), run, folder), step),
                                 "manifest.json"));
}

static int rows(const char *run, const char *name, int *first) {
    int n;
    const MetricsRow *row = metrics_read(mem(), path_join(mem(), run, name), &n);
    *first = n ? (int)row[0].step : 0;
    return n;
}

/* A run of six steps with checkpoints of 2, 4 and 6. */
static const char *six_steps(const char *name, const char *more) {
    const char *run = in_temp(name);
    RUN_EXPECT(0, runs_words(runs_small_config(6, 2), run, more));
    return run;
}

static const char *resume(const char *run, int step) {
    return arena_printf(mem(), "--lr_schedule.total_steps 6 --resume %s",
                        checkpoint(path_join(mem(), run, "ckpt"), step));
}

/* Ends a run before its first step: its folder is made while signals wait. */
static void stop_at_once(const char *run, const char *with) {
    const char *file = path_join(mem(), run, "logs/rank_0.log");
    EXPECT(unlink(file) == 0 || errno == ENOENT);
    pid_t pid = stator_start(runs_words(runs_small_config(100000, 50000), run, with));
    for (int i = 0; i < 60000 && !file_exists(file); i++) usleep(1000);
    kill(pid, SIGUSR1);
    EXPECT_INT(stator_wait(pid), EXIT_SIGNALLED);
}

/* Back to a checkpoint before the newest: it and those before it stay. */
TEST_LIMIT(back_to_an_older_checkpoint, 120) {
    const char *run = six_steps("run", ""), *whole = six_steps("whole", "");
    stop_at_once(run, resume(run, 4));
    SAID_EXPECT("note: checkpoints of steps after 4 are now in ");
    SAID_EXPECT("after step 4; the same command with --resume auto goes on from there");
    EXPECT(has(run, "ckpt", 2) && has(run, "ckpt", 4) && !has(run, "ckpt", 6));
    EXPECT(has(run, "ckpt.before-1", 6));
    RUN_EXPECT(0, runs_words(runs_small_config(6, 2), run, ""));
    SAID_EXPECT("resumed after step 4");
    runs_expect_same_losses(whole, run, 6);
    runs_expect_same_tensors(whole, run, 6);
}

static const char *latest_of(const char *run, const char *folder) {
    const char *path = path_join(mem(), path_join(mem(), run, folder), "latest");
    return file_read(mem(), path, 100, NULL, EXIT_CHECKPOINT);
}

static const char *latest(const char *run) {
    return latest_of(run, "ckpt");
}

/* `latest` names one that is there, also where nothing is left to do. */
TEST_LIMIT(latest_is_one_that_stays, 120) {
    const char *run = six_steps("run", "");
    EXPECT_STR(latest(run), "step_00000006\n");
    RUN_EXPECT(0, runs_words(runs_small_config(4, 2), run, resume(run, 4)));
    SAID_EXPECT("all 4 steps are done already");
    EXPECT(has(run, "ckpt.before-1", 6));
    EXPECT_STR(latest(run), "step_00000004\n");
}

/* The names that left a folder since it is watched, in their order. */
static const char *moved_from(int watch) {
    char events[1 << 14] __attribute__((aligned(8)));
    Text names = text_new(mem());
    ssize_t n = read(watch, events, sizeof events);
    for (ssize_t at = 0; at < n;) {
        const struct inotify_event *e = (const void *)(events + at);
        if (e->len && !strncmp(e->name, "step_", 5) && !strstr(e->name, ".tmp"))
            text_add(&names, "%s ", e->name);
        at += (ssize_t)(sizeof *e + e->len);
    }
    return names.s;
}

/* So that a run which was killed in between does not take one of them for the newest. */
static void moves_in_order(const char *run, int steps, const char *words,
                           const char *order) {
    int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    EXPECT(inotify_add_watch(watch, path_join(mem(), run, "ckpt"), IN_MOVED_FROM) >= 0);
    RUN_EXPECT(0, runs_words(runs_small_config(steps, 1000), run, words));
    EXPECT_STR(moved_from(watch), order);
    close(watch);
}

TEST_LIMIT(the_newest_is_moved_last, 120) {
    const char *run = six_steps("run", ""), *other = six_steps("other", "");
    moves_in_order(run, 2, resume(run, 2), "step_00000004 step_00000006 ");
    moves_in_order(other, 6, "--seed 9 --resume never",
                   "step_00000002 step_00000004 step_00000006 ");
}

/* Of a save that was killed between the folder's name and `latest`, with and without steps to do. */
TEST_LIMIT(latest_is_mended_at_a_start, 120) {
    static const char validates[] =
        "--train_dataset.data_loader.split 8,2 --eval_interval 2 --eval_iters 1 "
        "--callbacks.CheckpointMonitor.save_best True";
    const char *run = six_steps("run", validates);
    const char *best = latest_of(run, RUN_BEST);
    for (int i = 0; i < 2; i++) {
        write_text(path_join(mem(), run, "ckpt/latest"), "step_00000004\n");
        write_text(path_join(mem(), run, "ckpt/latest.tmp"), "step_00000006\n");
        EXPECT(!unlink(path_join(mem(), run, "best/latest")));
        RUN_EXPECT(0, runs_words(runs_small_config(6 + 2 * i, 2), run, validates));
        EXPECT_STR(latest(run), i ? "step_00000008\n" : "step_00000006\n");
        EXPECT(!file_exists(path_join(mem(), run, "ckpt/latest.tmp")));
        if (!i) EXPECT_STR(latest_of(run, RUN_BEST), best);
        EXPECT(file_exists(path_join(mem(), run, "best/latest")));
    }
}

/* The config.yaml of a run that was copied, or is started from elsewhere, names another folder. */
TEST_LIMIT(a_copied_run_does_not_write_into_the_first, 120) {
    const char *run = six_steps("run", ""), *copy = in_temp("copy");
    const char *config = path_join(mem(), copy, "config.yaml");
    EXPECT_INT(system(arena_printf(mem(), "cp -r %s %s", run, copy)), 0);
    RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(), "train %s --train_steps 8", config));
    SAID_EXPECT(arena_printf(mem(), "this is the config.yaml of the run in %s", copy));
    SAID_EXPECT(arena_printf(mem(), "--output_dir %s to go on with that run", copy));
    RUN_EXPECT(
        0, arena_printf(mem(), "train %s --train_steps 8 --output_dir %s", config, copy));
    EXPECT(has(copy, "ckpt", 8) && !has(run, "ckpt", 8));
    RUN_EXPECT(0, arena_printf(mem(), "train %s/config.yaml --train_steps 8", run));
    EXPECT(has(run, "ckpt", 8));
}

/* Where a checkpoint is asked for the file stands for the one that it names. */
TEST_LIMIT(latest_stands_for_its_checkpoint, 120) {
    const char *from = six_steps("from", "");
    const char *file = path_join(mem(), from, "ckpt/latest");
    ranks_run(2, runs_small_config(8, 2), in_temp("run"),
              arena_printf(mem(), "--resume %s", file));
    SAID_EXPECT("resumed after step 6");
    RUN_EXPECT(0, arena_printf(mem(), "eval %s --data %s", file, runs_text()));
    SAID_EXPECT("ckpt/step_00000006");
    RUN_EXPECT(0, arena_printf(mem(), "inspect %s", file));
    SAID_EXPECT("checkpoint of step 6");
}

/* Until this run saves, the checkpoint of the other one is not its own. */
TEST_LIMIT(on_from_a_checkpoint_elsewhere, 120) {
    const char *from = six_steps("from", ""), *run = in_temp("run");
    stop_at_once(run, resume(from, 4));
    SAID_EXPECT("after step 4; the same command with --resume auto goes on from there");
    EXPECT(has(run, "ckpt", 4));
    RUN_EXPECT(0,
               runs_words(runs_small_config(6, 2), run, "--lr_schedule.total_steps 6"));
    SAID_EXPECT("resumed after step 4");
    runs_expect_same_tensors(from, run, 6);
    const char *done = in_temp("done");
    RUN_EXPECT(0, runs_words(runs_small_config(6, 2), done, resume(from, 6)));
    SAID_EXPECT("all 6 steps are done already");
    EXPECT(has(done, "ckpt", 6));
}

/* What the line says that a stopped run ends with, and scripts that queue runs again: on from
 * load_checkpoint first, and then from what the run itself has saved. */
static void on_from_load_checkpoint(int ranks) {
    const char *from = six_steps("from", ""), *run = in_temp("run");
    const char *config = runs_small_config(6, 2);
    const char *load = arena_printf(mem(),
                                    "--lr_schedule.total_steps 6 --load_checkpoint %s "
                                    "--resume auto",
                                    checkpoint(path_join(mem(), from, "ckpt"), 2));
    ranks_run(ranks, config, run,
              arena_printf(mem(), "%s --runner_config.max_steps 4", load));
    SAID_EXPECT("resumed after step 2");
    EXPECT(!has(run, "ckpt", 2) && has(run, "ckpt", 4));
    ranks_run(ranks, config, run, load);
    SAID_EXPECT("note: load_checkpoint is not used: a checkpoint is there");
    SAID_EXPECT("resumed after step 4");
    EXPECT(!strstr(said(), "has no line of"));
    EXPECT(has(run, "ckpt", 4) && has(run, "ckpt", 6) && !has(run, "ckpt.before-1", 4));
    if (ranks == 1) runs_expect_same_tensors(from, run, 6);
}

TEST_LIMIT(resume_auto_goes_on_from_load_checkpoint_first, 120) {
    on_from_load_checkpoint(1);
}

TEST_LABEL_OF(resume_auto_goes_on_from_load_checkpoint_first_on_ranks, RELEASED);
TEST_LIMIT(resume_auto_goes_on_from_load_checkpoint_first_on_ranks, 120) {
    on_from_load_checkpoint(2);
}

/* A fine-tuning is resumed as any training is: from the checkpoint that is named, or else from
 * what its folder has. */
TEST_LIMIT(resume_training_goes_on_with_a_finetuning, 120) {
    const char *run = in_temp("run"), *end = "--lr_schedule.total_steps 6";
    const char *from = six_steps("from", "");
    const char *on =
        arena_printf(mem(), "%s --run_mode finetune --resume_training True", end);
    const char *named = arena_printf(mem(), "%s --load_checkpoint %s", on,
                                     checkpoint(path_join(mem(), from, "ckpt"), 2));
    RUN_EXPECT(0, runs_words(runs_small_config(4, 2), run, named));
    SAID_EXPECT("resumed after step 2");
    RUN_EXPECT(0, runs_words(runs_small_config(6, 2), run, on));
    SAID_EXPECT("resumed after step 4");
    runs_expect_same_tensors(from, run, 6);
    RUN_EXPECT(0, runs_words(runs_small_config(6, 2), from, named));
    SAID_EXPECT("resumed after step 2");
    EXPECT(has(from, "ckpt.before-1", 4));
    runs_expect_same_tensors(from, run, 6);
    RUN_EXPECT(EXIT_CONFIG, runs_words(runs_small_config(6, 2), in_temp("new"), on));
    SAID_EXPECT("run_mode finetune needs weights to start from");
    RUN_EXPECT(EXIT_CONFIG, runs_words(runs_small_config(6, 2), run,
                                       arena_printf(mem(), "%s --resume never", on)));
    SAID_EXPECT("keep one of the two");
}

/* Whatever words name it, and before anything is compiled. */
TEST_LIMIT(hugging_face_folders_are_not_resumed, 120) {
    const char *config = runs_small_config(4, 2), *hf = in_temp("hf");
    const char *run = in_temp("run");
    static const char *const of[][2] = {
        {"--load_checkpoint %s", "--run_mode finetune"},
        {"--resume auto --load_checkpoint %s", "--run_mode finetune"},
        {"--run_mode finetune --resume_training True --load_checkpoint %s",
         "--resume_training False"},
        {"--resume %s", "--init_from"}};
    RUN_EXPECT(0, runs_words(config, in_temp("first"), ""));
    RUN_EXPECT(0, arena_printf(mem(), "convert --to hf %s %s", in_temp("first"), hf));
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        size_t n = strcspn(of[i][0], "%");
        const char *words = arena_printf(mem(), "%.*s%s", (int)n, of[i][0], hf);
        RUN_EXPECT(EXIT_CONFIG, runs_words(config, run, words));
        SAID_EXPECT("/hf is a Hugging Face folder: it has no checkpoint to go on from");
        SAID_EXPECT(of[i][1]);
        EXPECT(!strstr(said(), "compiled"));
    }
    const char *load = arena_printf(mem(), "--load_checkpoint %s", hf);
    RUN_EXPECT(
        0, runs_words(config, run, arena_printf(mem(), "--run_mode finetune %s", load)));
    SAID_EXPECT("weights from ");
    RUN_EXPECT(0, runs_words(runs_small_config(6, 2), run,
                             arena_printf(mem(), "--resume auto %s", load)));
    SAID_EXPECT("resumed after step 4");
    RUN_EXPECT(0, arena_printf(mem(), "plan %s %s", config, load));
}

/* The good checkpoint of the other run is none of this one. */
TEST_LIMIT(no_good_checkpoint_from_elsewhere, 120) {
    const char *from = six_steps("from", ""), *run = in_temp("run");
    const char *more = "--runner_config.max_steps 30 "
                       "--model.model_config.compute_dtype float16 "
                       "--runner_wrapper.loss_scale 1e18 "
                       "--runner_config.max_skipped_steps 3";
    RUN_EXPECT(EXIT_DIVERGED,
               runs_words(runs_small_config(6, 2), run,
                          arena_printf(mem(), "%s %s", resume(from, 6), more)));
    SAID_EXPECT("the newest checkpoint is of step 9; ");
    EXPECT(!strstr(said(), "good one"));
}

#define VALIDATES                                                                        \
    "--train_dataset.data_loader.split 9,1 --runner_config.eval_interval 1 "             \
    "--runner_config.eval_iters 1 "

/* Lines of a run that saved nothing, and was no shorter. */
TEST_LIMIT(lines_of_a_run_without_checkpoints_are_kept, 120) {
    const char *run = in_temp("run"), *config = runs_small_config(6, 0);
    int first;
    RUN_EXPECT(0, runs_words(config, run, VALIDATES));
    RUN_EXPECT(0, runs_words(config, run, VALIDATES "--runner_config.max_steps 4"));
    SAID_EXPECT("/metrics.jsonl of an earlier run is now ");
    EXPECT_INT(rows(run, "metrics.jsonl", &first), 4);
    EXPECT_INT(rows(run, "metrics.jsonl.before-1", &first), 6);
    EXPECT(file_exists(path_join(mem(), run, "valid.jsonl.before-1")));
    RUN_EXPECT(0, runs_words(config, run, "--resume never"));
    EXPECT_INT(rows(run, "metrics.jsonl.before-2", &first), 4);
}

/* Lines of the run that was in this folder are not mixed with those of the one that goes on. */
TEST_LIMIT(lines_of_another_run_go_with_its_checkpoints, 120) {
    const char *from = six_steps("from", VALIDATES), *run = six_steps("run", "--seed 9");
    int first;
    RUN_EXPECT(0, runs_words(runs_small_config(6, 2), run,
                             arena_printf(mem(), "%s %s", VALIDATES, resume(from, 4))));
    EXPECT(has(run, "ckpt", 6) && !has(run, "ckpt", 2));
    EXPECT(has(run, "ckpt.before-1", 2) && has(run, "ckpt.before-1", 6));
    EXPECT_INT(rows(run, "metrics.jsonl.before-1", &first), 6);
    EXPECT_INT(rows(run, "metrics.jsonl", &first), 2);
    EXPECT_INT(first, 5);
    EXPECT(!strstr(said(), "has no line of"));
}
