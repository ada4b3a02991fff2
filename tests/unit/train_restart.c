/* Tests of a run folder in which another run is started: one that is refused changes nothing,
 * and what a new one finds goes aside together. */
#include "frontend/config/commands.h"
#include "ranks.h"
#include <sys/stat.h>

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);

static const char *in(const char *folder, const char *name) {
    return path_join(mem(), folder, name);
}

/* A tokenizer of so many tokens, and flags for it. */
static const char *tokenizer(int tokens) {
    const char *folder = in_temp(arena_printf(mem(), "tokens_%d", tokens));
    runs_text();
    RUN_EXPECT(0, arena_printf(mem(),
                               "tokenizer train --input %s --vocab-size %d --output %s",
                               in_temp("text.txt"), tokens, folder));
    return in(folder, "tokenizer.json");
}

static const char *with(const char *tokenizer_json) {
    return arena_printf(mem(), "--model.model_config.vocab_size 304 --tokenizer_file %s",
                        tokenizer_json);
}

/* Copies all of a folder but its logs, or compares with the copy. */
static void keep_copy(const char *run) {
    EXPECT_INT(system(arena_printf(mem(), "cp -a '%s' '%s.copy'", run, run)), 0);
}

static void expect_as_copy(const char *run) {
    EXPECT_INT(system(arena_printf(mem(), "diff -r -x logs '%s' '%s.copy'", run, run)),
               0);
}

/* ---- refused ---- */

TEST_LIMIT(a_refused_start_changes_nothing, 180) {
    const char *config = runs_small_config(4, 2), *run = in_temp("run");
    const char *other = "--model.model_config.hidden_size 32";
    RUN_EXPECT(0, runs_words(config, run, with(tokenizer(290))));
    keep_copy(run);
    const char *changed = arena_printf(mem(), "%s %s --runner_config.max_steps 6",
                                       with(tokenizer(280)), other);
    RUN_EXPECT(EXIT_CHECKPOINT, runs_words(config, run, changed));
    SAID_EXPECT("is of another model");
    expect_as_copy(run);
    ranks_end(ranks_start(2, config, run, changed), EXIT_CHECKPOINT, "two ranks");
    expect_as_copy(run);
    RUN_EXPECT(
        EXIT_CHECKPOINT,
        runs_words(config, run, arena_printf(mem(), "%s --resume %s", changed, run)));
    expect_as_copy(run);
}

/* ---- aside ---- */

TEST_LIMIT(the_tokenizer_goes_with_its_checkpoints, 180) {
    const char *config = runs_small_config(4, 2), *run = in_temp("run");
    const char *first = tokenizer(290), *second = tokenizer(280);
    static const char *const was[] = {"ckpt.before-1/tokenizer.json",
                                      "best.before-1/tokenizer.json"};
    static const char *const is[] = {"ckpt/tokenizer.json", "tokenizer.json"};
    const char *best = "--callbacks.CheckpointMonitor.save_best True "
                       "--train_dataset.data_loader.split 9,1 "
                       "--runner_config.eval_interval 2 --runner_config.eval_iters 1";
    RUN_EXPECT(0,
               runs_words(config, run, arena_printf(mem(), "%s %s", with(first), best)));
    keep_copy(run);
    RUN_EXPECT(0, runs_words(config, run,
                             arena_printf(mem(), "%s --resume never", with(second))));
    for (int i = 0; i < 2; i++) EXPECT(same_file(in(run, was[i]), first));
    for (int i = 0; i < 2; i++) EXPECT(same_file(in(run, is[i]), second));
    EXPECT(same_file(in(run, "ckpt.before-1/config.yaml"),
                     in(in_temp("run.copy"), "config.yaml")));
    RUN_EXPECT(0, arena_printf(mem(), "eval %s/ckpt.before-1", run));
    SAID_EXPECT("ckpt.before-1/step_00000004");
    /* One without: nothing of the other is left where it would be taken for its own. */
    RUN_EXPECT(0, runs_words(config, run, "--resume never"));
    EXPECT(same_file(in(run, "ckpt.before-2/tokenizer.json"), second));
    for (int i = 0; i < 2; i++) EXPECT(!file_exists(in(run, is[i])));
    RUN_EXPECT(0, arena_printf(mem(), "eval %s --data %s", run, in_temp("text.txt")));
    /* Those that are aside have none from above. */
    RUN_EXPECT(0, runs_words(config, run,
                             arena_printf(mem(), "%s --resume never", with(first))));
    EXPECT(!file_exists(in(run, "ckpt.before-3/tokenizer.json")));
    RUN_EXPECT(0, arena_printf(mem(), "eval %s/ckpt.before-3/step_00000004 --data %s",
                               run, in_temp("text.txt")));
}

/* Those behind the checkpoint that a run goes back to are read as they were, too. */
TEST_LIMIT(the_tokenizer_goes_with_later_checkpoints, 180) {
    const char *config = runs_small_config(4, 2), *run = in_temp("run");
    const char *first = tokenizer(290), *second = tokenizer(280);
    RUN_EXPECT(0, runs_words(config, run, with(first)));
    keep_copy(run);
    RUN_EXPECT(0, runs_words(config, run,
                             arena_printf(mem(), "%s --resume %s", with(second),
                                          in(run, "ckpt/step_00000002"))));
    SAID_EXPECT("checkpoints of steps after 2 are now in ");
    EXPECT(same_file(in(run, "ckpt.before-1/tokenizer.json"), first));
    EXPECT(same_file(in(run, "ckpt.before-1/config.yaml"),
                     in(in_temp("run.copy"), "config.yaml")));
    EXPECT(same_file(in(run, "tokenizer.json"), second));
    RUN_EXPECT(0, arena_printf(mem(), "eval %s/ckpt.before-1", run));
    SAID_EXPECT("ckpt.before-1/step_00000004");
}

/* Of a run that saved nothing. */
TEST_LIMIT(a_tokenizer_without_checkpoints_goes_aside, 120) {
    const char *config = runs_small_config(4, 0), *run = in_temp("run");
    const char *first = tokenizer(290);
    RUN_EXPECT(0, runs_words(config, run, with(first)));
    RUN_EXPECT(0, runs_words(config, run, ""));
    SAID_EXPECT("tokenizer.json of an earlier run is now ");
    EXPECT(!file_exists(in(run, "tokenizer.json")));
    EXPECT(same_file(in(run, "tokenizer.json.before-1"), first));
}

TEST_LIMIT(checkpoints_elsewhere_have_their_tokenizer, 120) {
    const char *config = runs_small_config(4, 2), *run = in_temp("run");
    const char *first = tokenizer(290), *second = tokenizer(280);
    const char *there = arena_printf(mem(), "--callbacks.CheckpointMonitor.directory %s",
                                     in_temp("there"));
    RUN_EXPECT(0,
               runs_words(config, run, arena_printf(mem(), "%s %s", with(first), there)));
    ranks_run(2, config, run,
              arena_printf(mem(), "%s %s --resume never", with(second), there));
    EXPECT(same_file(in_temp("there/tokenizer.json"), second));
    EXPECT(same_file(in_temp("there.before-1/tokenizer.json"), first));
    EXPECT(file_exists(in_temp("there.before-1/config.yaml")));
}

/* ---- folders by other paths ---- */

/* What else is in the folder stays, and it is still the run's. */
TEST_LIMIT(a_run_folder_with_its_checkpoints_in_itself, 120) {
    const char *config = runs_small_config(4, 2), *run = in_temp("run");
    const char *more = arena_printf(
        mem(), "--callbacks.CheckpointMonitor.directory %s --resume never", run);
    RUN_EXPECT(0, runs_words(config, run, more));
    write_text(in(run, "notes.txt"), "mine");
    RUN_EXPECT(0, runs_words(config, run, more));
    EXPECT(!strstr(said(), "WARNING"));
    EXPECT(file_exists(in(run, "ckpt.before-1/step_00000004/manifest.json")));
    static const char *const stay[] = {"notes.txt", "config.yaml", "plan.json",
                                       "step_00000004/manifest.json",
                                       "metrics.jsonl.before-1"};
    for (int i = 0; i < ARRAY_LEN(stay); i++) EXPECT(file_exists(in(run, stay[i])));
}

TEST_LIMIT(a_folder_of_checkpoints_with_a_slash, 120) {
    const char *config = runs_small_config(6, 2), *run = in_temp("run/");
    const char *there = arena_printf(mem(), "--callbacks.CheckpointMonitor.directory %s",
                                     in_temp("there//"));
    RUN_EXPECT(0, runs_words(config, run, there));
    RUN_EXPECT(0,
               runs_words(config, run, arena_printf(mem(), "%s --resume never", there)));
    EXPECT(file_exists(in_temp("there.before-1/step_00000006/manifest.json")));
    RUN_EXPECT(0, runs_words(config, run,
                             arena_printf(mem(), "%s --resume %s", there,
                                          in_temp("there/step_00000004"))));
    EXPECT(file_exists(in_temp("there.before-2/step_00000006/manifest.json")));
}

/* The link stays, so that the next ones go to the same disk. */
TEST_LIMIT(a_link_to_a_folder_of_checkpoints, 120) {
    const char *config = runs_small_config(4, 2), *run = in_temp("run");
    EXPECT(!dir_make(run) && !dir_make(in_temp("disk/all")));
    EXPECT(!symlink("../disk/all", in(run, "ckpt")));
    RUN_EXPECT(0, runs_words(config, run, ""));
    RUN_EXPECT(0, runs_words(config, run, "--resume never"));
    EXPECT(file_exists(in_temp("disk/all/step_00000004/manifest.json")));
    EXPECT(file_exists(in_temp("disk/all.before-1/step_00000004/manifest.json")));
}

/* ---- the configuration in the folder ---- */

static const char *again(const char *run, const char *more) {
    return arena_printf(mem(), "train %s/config.yaml %s", run, more);
}

TEST_LIMIT(the_configuration_of_a_run_goes_on, 180) {
    const char *config = runs_small_config(6, 2), *never = in_temp("never");
    const char *whole = in_temp("whole"), *on = in_temp("on");
    RUN_EXPECT(0, runs_words(config, whole, ""));
    RUN_EXPECT(0, runs_words(config, never,
                             "--resume never --runner_config.max_steps 4 "
                             "--lr_schedule.total_steps 6"));
    RUN_EXPECT(0, again(never, "--runner_config.max_steps 6"));
    SAID_EXPECT("resumed after step 4");
    EXPECT(!strstr(said(), "earlier run"));
    runs_expect_same_losses(whole, never, 6);
    /* From a checkpoint elsewhere, whose run is gone later. */
    const char *from = in_temp("whole/ckpt/step_00000002");
    RUN_EXPECT(0, runs_words(config, on,
                             arena_printf(mem(),
                                          "--resume %s --runner_config.max_steps 4 "
                                          "--lr_schedule.total_steps 6",
                                          from)));
    RUN_EXPECT(0, arena_printf(mem(), "eval %s/config.yaml", on));
    SAID_EXPECT("/on/ckpt/step_00000004");
    /* In a new folder it begins as the first did. */
    RUN_EXPECT(0, again(on, arena_printf(mem(), "--output_dir %s", in_temp("new"))));
    SAID_EXPECT("resumed after step 2");
    EXPECT(!rename(whole, in_temp("gone")));
    RUN_EXPECT(0, again(on, "--runner_config.max_steps 6"));
    SAID_EXPECT("resumed after step 4");
    runs_expect_same_tensors(in_temp("gone"), on, 6);
}

/* A checkpoint that it has not come to is none that it goes on from. */
TEST_LIMIT(a_run_without_checkpoints_begins_where_it_did, 120) {
    const char *config = runs_small_config(6, 2), *from = in_temp("from");
    RUN_EXPECT(0, runs_words(config, from, ""));
    const char *run = in_temp("run");
    RUN_EXPECT(0,
               runs_words(config, run,
                          arena_printf(mem(), "--resume %s/ckpt/step_00000004", from)));
    remove_all(in(run, "ckpt"));
    RUN_EXPECT(0, again(run, ""));
    SAID_EXPECT("resumed after step 4");
    runs_expect_same_tensors(from, run, 6);
}
