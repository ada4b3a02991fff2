/* Tests of runs whose checkpoints are in a folder of their own, which config.yaml names. */
#include "frontend/config/commands.h"
#include "ranks.h"

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);

static const char *in(const char *folder, const char *name) {
    return path_join(mem(), folder, name);
}

/* Four steps in the folder of the run, then up to six with checkpoints in `there`. */
static const char *run_that_moved(const char *there) {
    const char *config = runs_small_config(4, 2), *run = in_temp("run");
    RUN_EXPECT(0, arena_printf(mem(), "train %s --output_dir %s", config, run));
    RUN_EXPECT(0, arena_printf(mem(),
                               "train %s --output_dir %s --resume %s/ckpt/step_00000004 "
                               "--runner_config.max_steps 6 "
                               "--callbacks.CheckpointMonitor.directory %s",
                               config, run, run, there));
    return run;
}

TEST_LIMIT(what_config_yaml_names_counts, 180) {
    const char *run = run_that_moved(in_temp("there"));
    const char *more = arena_printf(mem(), "train %s", in_temp("small.yaml"));
    const char *const commands[] = {
        arena_printf(mem(), "eval %s --data %s", run, in_temp("text.txt")),
        arena_printf(mem(), "predict %s --prompt a --max_new_tokens 1", run),
        arena_printf(mem(), "convert --to hf %s %s", run, in_temp("hf")),
        arena_printf(mem(), "%s --output_dir %s --init_from %s", more, in_temp("w"), run),
        arena_printf(mem(), "eval %s/config.yaml", run)};
    for (int i = 0; i < ARRAY_LEN(commands); i++) {
        RUN_EXPECT(0, commands[i]);
        SAID_EXPECT("there/step_00000006");
    }
    RUN_EXPECT(0, commands[0]);
    SAID_EXPECT("/ckpt has others: write that folder to take one of them");
    const char *on = arena_printf(mem(), "--resume %s --runner_config.max_steps 7", run);
    RUN_EXPECT(0, arena_printf(mem(), "%s --output_dir %s %s", more, in_temp("x"), on));
    SAID_EXPECT("resumed after step 6");
    ranks_run(2, in_temp("small.yaml"), in_temp("y"), on);
    SAID_EXPECT("resumed after step 6");
    RUN_EXPECT(0, arena_printf(mem(), "inspect %s", run));
    SAID_EXPECT("/ckpt: checkpoints");
    SAID_EXPECT("/there: checkpoints");
    /* The other one when it is asked for, or alone has some. */
    RUN_EXPECT(0,
               arena_printf(mem(), "eval %s/ckpt --data %s", run, in_temp("text.txt")));
    SAID_EXPECT("/ckpt/step_00000004");
    remove_all(in_temp("there"));
    RUN_EXPECT(0, commands[0]);
    SAID_EXPECT("/ckpt/step_00000004");
}

TEST_LIMIT(the_folder_that_was_looked_in_is_named, 120) {
    const char *there = in_temp("there"), *run = run_that_moved(there);
    remove_all(in(run, "ckpt"));
    EXPECT(!rename(there, in_temp("moved")));
    RUN_EXPECT(EXIT_CHECKPOINT, arena_printf(mem(), "eval %s", run));
    SAID_EXPECT("and none in ");
    SAID_EXPECT("/there, which its config.yaml names (callbacks.CheckpointMonitor.");
    RUN_EXPECT(EXIT_CHECKPOINT,
               arena_printf(mem(), "train %s --output_dir %s --resume %s",
                            in_temp("small.yaml"), in_temp("x"), run));
    SAID_EXPECT("/there, which its config.yaml names (callbacks.CheckpointMonitor.");
}

TEST_LIMIT(a_checkpoint_without_its_manifest_is_damaged, 120) {
    const char *config = runs_small_config(4, 2), *run = in_temp("run");
    RUN_EXPECT(0, arena_printf(mem(), "train %s --output_dir %s", config, run));
    EXPECT(!unlink(in(run, "ckpt/step_00000004/manifest.json")));
    const char *const commands[] = {
        arena_printf(mem(), "eval %s --checkpoint 4", run),
        arena_printf(mem(), "predict %s/ckpt/step_00000004 --prompt a", run),
        arena_printf(mem(), "predict %s/ckpt/step_00000004/ --prompt a", run)};
    for (int i = 0; i < ARRAY_LEN(commands); i++) {
        RUN_EXPECT(EXIT_CHECKPOINT, commands[i]);
        SAID_EXPECT("is damaged: manifest.json is missing");
    }
}

/* Such a checkpoint says nothing of data or of a configuration. */
TEST_LIMIT(training_goes_on_from_a_converted_checkpoint, 120) {
    const char *more = "--optimizer.type SGD", *how[] = {"resume", "load_checkpoint"};
    const char *config = runs_small_config(4, 4), *run = in_temp("run");
    RUN_EXPECT(0, runs_words(config, run, more));
    RUN_EXPECT(0, arena_printf(mem(), "convert --to hf %s %s", run, in_temp("hf")));
    RUN_EXPECT(0, arena_printf(mem(), "convert --to stator %s %s", in_temp("hf"),
                               in_temp("st")));
    for (int i = 0; i < ARRAY_LEN(how); i++) {
        RUN_EXPECT(0, runs_words(config, in_temp(how[i]),
                                 arena_printf(mem(), "%s --%s %s", more, how[i],
                                              in_temp("st"))));
        SAID_EXPECT("resumed after step 0");
        SAID_EXPECT("done       4 steps");
    }
}

/* ---- a run whose first weights are gone ---- */

TEST_LIMIT(the_weights_that_a_run_began_with_may_go, 180) {
    const char *config = runs_small_config(4, 2), *run = in_temp("run");
    const char *first = in_temp("first"), *hf = in_temp("hf"), *yaml = in_temp("c.yaml");
    RUN_EXPECT(0, arena_printf(mem(),
                               "tokenizer train --input %s --vocab-size 280 --output %s",
                               in_temp("text.txt"), in_temp("tok")));
    RUN_EXPECT(0, arena_printf(mem(),
                               "train %s --output_dir %s --tokenizer_file %s/"
                               "tokenizer.json --model.model_config.vocab_size 280",
                               config, first, in_temp("tok")));
    RUN_EXPECT(0, arena_printf(mem(), "convert --to hf %s %s", first, hf));
    write_text(yaml, arena_printf(mem(),
                                  "init_from: %s\n"
                                  "output_dir: %s\n"
                                  "train_dataset:\n"
                                  "  data_loader: {type: TextFile, dataset_dir: %s}\n"
                                  "lr_schedule: {total_steps: 6}\n"
                                  "runner_config: {max_steps: 4, batch_size: 2}\n",
                                  hf, run, in_temp("text.txt")));
    RUN_EXPECT(0, arena_printf(mem(), "train %s", yaml));
    EXPECT(!rename(hf, in_temp("moved")));
    RUN_EXPECT(0, arena_printf(mem(), "train %s --runner_config.max_steps 5", yaml));
    SAID_EXPECT("hf any more: the model is that of ");
    SAID_EXPECT("resumed after step 4");
    EXPECT(!strstr(said(), "other data"));
    RUN_EXPECT(
        0, arena_printf(mem(), "train %s/config.yaml --runner_config.max_steps 6", run));
    SAID_EXPECT("resumed after step 5");
    EXPECT(same_file(in(run, "tokenizer.json"), in(in_temp("tok"), "tokenizer.json")));
    ranks_run(2, yaml, run, "--runner_config.max_steps 7");
    SAID_EXPECT("resumed after step 6");
    /* Whoever begins anew needs them. */
    RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(), "train %s --resume never", yaml));
    SAID_EXPECT("cannot open ");
    RUN_EXPECT(EXIT_CONFIG,
               arena_printf(mem(), "train %s --output_dir %s", yaml, in_temp("new")));
}

/* ---- checkpoints of a run that get another folder ---- */

TEST_LIMIT(checkpoints_that_a_new_folder_hides_are_told, 120) {
    const char *config = runs_small_config(4, 2), *run = in_temp("run");
    const char *own = in(run, "ckpt"), *other = in_temp("other");
    const char *words =
        arena_printf(mem(), "--callbacks.CheckpointMonitor.directory %s", other);
    RUN_EXPECT(0, runs_words(config, run, words));
    EXPECT(!strstr(said(), "begins anew"));
    RUN_EXPECT(0, runs_words(config, run, "--resume never"));
    EXPECT(!rename(other, in_temp("gone")));
    RUN_EXPECT(0, runs_words(config, run, words));
    SAID_EXPECT(arena_printf(mem(),
                             "note: the run begins anew, as %s has no checkpoint; "
                             "--resume %s goes on",
                             other, own));
    RUN_EXPECT(0, runs_words(config, run,
                             arena_printf(mem(),
                                          "%s --resume %s "
                                          "--runner_config.max_steps 5",
                                          words, own)));
    SAID_EXPECT("resumed after step 4");
    EXPECT(!strstr(said(), "begins anew"));
}
