/* config_sources.c - configurations from files that name others, and from flags: what goes before
 * what, and every refusal of a file or a flag. */
#include "configs.h"
#include "frontend/config/config_state.h"
#include <sys/stat.h>

TEST(override_order) {
    write_file("one.yaml", "seed: 1\nrunner_config: {epochs: 11, batch_size: 12}\n"
                           "optimizer: {beta1: 0.5, beta2: 0.6}\n"
                           "callbacks:\n  - {type: CheckpointMonitor, prefix: one, "
                           "keep_checkpoint_max: 7}\n");
    write_file("two.yaml", "runner_config: {epochs: 21}\n");
    char *path = write_file(
        "main.yaml", "base_config: [one.yaml, two.yaml]\n"
                     "optimizer: {beta2: 0.7}\n"
                     "callbacks:\n  - type: CheckpointMointor\n    prefix: main\n");
    Config *cfg = load(path);
    EXPECT_INT(cfg->seed, 1);
    EXPECT_INT(cfg->runner_config_epochs, 21);
    EXPECT_INT(cfg->runner_config_batch_size,
               8); /* two.yaml replaced the whole section */
    EXPECT(cfg->optimizer_beta1 == 0.5 && cfg->optimizer_beta2 == 0.7);
    EXPECT_STR(cfg->checkpoint_prefix, "main");
    EXPECT_INT(cfg->checkpoint_keep_checkpoint_max, 5); /* the list was replaced */
    SourcePos at = config_where(cfg, "optimizer.beta2");
    EXPECT(at.line == 2 && strstr(at.file, "main.yaml"));
    EXPECT_PART(config_where(cfg, "runner_config.epochs").file, "two.yaml");
    expect_round_trip(cfg);
    char *words[] = {"--optimizer.beta2", "0.8", "--epochs=31",
                     "--callbacks.CheckpointMointor.prefix", "flag"};
    cfg = config_load(arena_new(), path, 5, words);
    EXPECT(cfg->optimizer_beta2 == 0.8 && cfg->runner_config_epochs == 31);
    EXPECT_STR(cfg->checkpoint_prefix, "flag");
    at = config_where(cfg, "epochs");
    EXPECT_STR(at.file, "command line");
    EXPECT_INT(at.line, 2);
    path = write_file("null.yaml", "base_config: one.yaml\noptimizer: {beta1: null}\n");
    EXPECT(load(path)->optimizer_beta1 == 0.9); /* null takes the value back */
}

/* warmup_steps and warmup_ratio are two ways to say one thing. */
TEST(a_flag_takes_the_place_of_the_other_way_to_say_it) {
    char *steps[] = {"--lr_schedule.warmup_steps=3"},
         *ratio[] = {"--lr_schedule.warmup_ratio=0.5"};
    char *file =
        write_file("ratio.yaml", "lr_schedule: {warmup_ratio: 0.1, total_steps: 20}\n");
    Config *cfg = config_load(arena_new(), file, 1, steps);
    EXPECT(cfg->lr_schedule_warmup_steps == 3 && cfg->lr_schedule_warmup_ratio == 0);
    EXPECT(config_warmup_of(&(Config){.lr_schedule_warmup_ratio = 0.26}, 3) == 0);
    EXPECT(config_warmup_of(&(Config){.lr_schedule_warmup_ratio = 0.5}, 5) == 2);
    expect_round_trip(cfg);
    file = write_file("steps.yaml", "lr_schedule: {warmup_steps: 4, total_steps: 20}\n");
    EXPECT_INT(config_load(arena_new(), file, 1, ratio)->lr_schedule_warmup_steps, 10);
    EXPECT_FAIL(FLAGS(steps[0], ratio[0]), EXIT_CONFIG, "together with warmup_steps");
}

TEST(include_failures) {
    EXPECT_FAIL(load("/nowhere/x.yaml"), EXIT_CONFIG, "there is no such file");
    char *lost = write_file("lost.yaml", "seed: 1\nbase_config: [gone.yaml]\n");
    EXPECT_FAIL(load(lost), EXIT_CONFIG, "gone.yaml: there is no such file");
    EXPECT_FAIL(load(lost), EXIT_CONFIG, "lost.yaml:2:15");
    char *cycle = write_file("a.yaml", "base_config: ./b.yaml\n");
    write_file("b.yaml", "base_config: a.yaml\n");
    EXPECT_FAIL(load(cycle), EXIT_CONFIG, "comes back to a file being read");
    EXPECT_FAIL(load(temp_dir()), EXIT_CONFIG, "a folder, not a file");
    EXPECT_FAIL(load(write_file("model.safetensors", "\xff")), EXIT_CONFIG,
                "model.safetensors: weights, not a configuration: stator predict and "
                "--init_from take the folder");
    EXPECT_FAIL(load(write_file("net.ir", "func")), EXIT_CONFIG,
                "a module, not a configuration: model.file of one names it");
    EXPECT_FAIL(load(write_file("config.json", "{\"model_type\": \"llama\"}")),
                EXIT_CONFIG,
                "the config.json of a model, not a configuration: --init_from takes its");
    load(write_file("flow.json", "{\"seed\": 1}"));
    char *zero = path_join(arena_new(), temp_dir(), "zero.yaml");
    file_write(zero, "seed: 1\n\0", 9, EXIT_DATA);
    EXPECT_FAIL(load(zero), EXIT_CONFIG, "zero.yaml: bytes that are no text");
    char *pipe = path_join(arena_new(), temp_dir(), "pipe");
    EXPECT_INT(mkfifo(pipe, 0600), 0);
    EXPECT_FAIL(load(pipe), EXIT_CONFIG, "a pipe or a device: a configuration is read");
    for (int i = 0; i < 17; i++) {
        char name[32], text[64];
        snprintf(name, sizeof name, "c%d.yaml", i);
        snprintf(text, sizeof text, "base_config: c%d.yaml\n", i + 1);
        write_file(name, text);
    }
    EXPECT_INT(load(write_file("c17.yaml", "seed: 2\n"))->seed, 2);
    EXPECT_FAIL(load(path_join(arena_new(), temp_dir(), "c0.yaml")), EXIT_CONFIG,
                "more than 16 levels");
    Text t = text_new(arena_new());
    text_add(&t, "base_config: [");
    for (int i = 0; i < 64; i++) text_add(&t, "c17.yaml,");
    text_add(&t, "]\n");
    EXPECT_FAIL(load(write_file("wide.yaml", t.s)), EXIT_CONFIG, "more than 64 files");
}

TEST(flags_of_every_form) {
    Config *cfg = FLAGS(
        "--dataset_dir", "a b", "--epochs", "3", "--batch_size=4", "--seed", "5",
        "--output_dir", "o", "--resume", "ck", "--init_from", "hf", "--dump",
        "d.safetensors", "--run_mode", "predict", "--train_dataset.input_columns", "x,y",
        "--context.save_graphs", "--resume_training", "--runner_wrapper.use_clip_grad",
        "False", "--runner_config.max_steps", "-1", "--batch_size", "6");
    EXPECT_STR(cfg->train_dataset_data_loader_dataset_dir, "a b");
    EXPECT(cfg->runner_config_epochs == 3 && cfg->runner_config_batch_size == 6);
    EXPECT(cfg->seed == 5 && cfg->run_mode == RUN_PREDICT);
    EXPECT_STR(cfg->resume, "ck");
    EXPECT_STR(cfg->init_from, "hf");
    EXPECT_STR(cfg->dump, "d.safetensors");
    EXPECT_INT(cfg->train_dataset_input_columns.n, 2);
    EXPECT_STR(cfg->train_dataset_input_columns.items[1], "y");
    EXPECT(cfg->context_save_graphs && cfg->resume_training);
    EXPECT(!cfg->runner_wrapper_use_clip_grad && cfg->runner_config_max_steps == -1);
    expect_round_trip(cfg);
    EXPECT(FLAGS("--use_parallel=True")->use_parallel); /* and not False for every word */
    EXPECT_STR(FLAGS("--load_checkpoint", "x")->resume, "x");
}

TEST(flag_failures) {
    EXPECT_FAIL(FLAGS("--seed", "1", "--epochs", "x"), EXIT_CONFIG,
                "command line:2:10: error: epochs must be a whole number, not \"x\"\n"
                "    --epochs x\n             ^");
    EXPECT_FAIL(FLAGS("--epochs"), EXIT_CONFIG, "--epochs has no value");
    EXPECT_FAIL(FLAGS("--epochs", "--seed", "1"), EXIT_CONFIG, "${ARRAY[@]}");
    EXPECT_FAIL(FLAGS("--epochs", "1", "\\"), EXIT_CONFIG, "only a backslash");
    EXPECT_FAIL(FLAGS("--epochs", "\\"), EXIT_CONFIG, "only a backslash");
    EXPECT_FAIL(FLAGS("epochs", "1"), EXIT_CONFIG, "epochs is not a flag");
    EXPECT_FAIL(FLAGS("--optimizer", "1"), EXIT_CONFIG, "is a section of keys");
    EXPECT_FAIL(FLAGS("--output_dir", "\xff"), EXIT_CONFIG, "not UTF-8");
}

TEST(set_flag) {
    Config *cfg = parse("optimizer: {beta1: 0.5}\n");
    config_set_flag(cfg, "train_steps", "7");
    EXPECT(cfg->runner_config_max_steps == 7 && cfg->optimizer_beta1 == 0.5);
    EXPECT_INT(cfg->lr_schedule_total_steps, 7);
    EXPECT(config_given(cfg, "runner_config.max_steps"));
    EXPECT_FAIL(config_set_flag(cfg, "seed", "x"), EXIT_CONFIG, "--seed=x");
    EXPECT(cfg->seed == 0 && !config_given(cfg, "seed"));
}

/* Words that a program hands over, with the place of their value; those typed keep theirs. */
TEST(flags_of_another_place) {
    Arena *a = arena_new();
    char *from =
        config_flag_from(a, (SourcePos){.file = "run/config.yaml", .line = 7, .col = 3});
    char *search = config_flag_from(a, (SourcePos){.file = config_search_file});
    Config *c = FLAGS(from, "--seed=3", "--train_steps=4", search,
                      "--runner_config.gradient_accumulation_steps=2", "--epochs=2");
    EXPECT_INT(config_where(c, "seed").line, 7);
    EXPECT_STR(config_where(c, "seed").file, "run/config.yaml");
    EXPECT_INT(config_where(c, "runner_config.epochs").line, 2);
    EXPECT(!config_by_flag(c, "seed") && config_by_flag(c, "runner_config.max_steps"));
    EXPECT(config_by_flag(c, "runner_config.gradient_accumulation_steps"));
    EXPECT_INT(c->parallel_config_micro_batch_num, 2);
    EXPECT_INT(c->n_notes, 0);
    EXPECT_FAIL(FLAGS(from, "--seed=x"), EXIT_CONFIG, "run/config.yaml:7:3: error: seed");
    EXPECT_FAIL(FLAGS(from, "--seed=3", "--epochs=x"), EXIT_CONFIG,
                "command line:1:10: error: epochs must be a whole number, not \"x\"\n"
                "    --epochs=x");
}
