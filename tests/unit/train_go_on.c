/* train_go_on.c - a run that goes on with steps of another size takes the samples behind those
 * that it has used: with next to no learning rate the losses tell which these are. */
#include "ranks.h"
#include "runtime/data/indexed_write.h"

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);
TEST_LABEL(RELEASED);

enum { STEPS = 20 };

/* %s: the data. */
static const char yaml[] =
    "seed: 5\n"
    "context: {threads: 1}\n"
    "model: {model_config: {vocab_size: 256, seq_length: 8, hidden_size: 8, num_layers: "
    "1,\n"
    "  num_heads: 2}}\n"
    "optimizer: {type: SGD, weight_decay: 0}\n"
    "lr_schedule: {type: constant, learning_rate: 1.e-30}\n"
    "runner_config: {batch_size: 4, eval_iters: 0}\n"
    "callbacks: [{type: CheckpointMonitor, save_checkpoint_steps: 1000}]\n"
    "train_dataset: {data_loader: {%s}}\n";

static const char *config_of(const char *data) {
    const char *path = in_temp("c.yaml");
    write_text(path, arena_printf(mem(), yaml, data));
    return path;
}

static const char *text_data(void) {
    return config_of(arena_printf(mem(), "dataset_dir: %s", runs_text()));
}

/* 40 documents of 9 tokens: 44 samples of 8 in a pass over them. */
static const char *pair_data(const char *more) {
    enum { DOCUMENTS = 40, EACH = 9 };
    static uint16_t token[DOCUMENTS * EACH];
    int32_t length[DOCUMENTS], one[DOCUMENTS];
    uint64_t random = 9;
    for (int i = 0; i < DOCUMENTS * EACH; i++)
        token[i] = (uint16_t)(runs_random(&random) >> 40 & 255);
    for (int i = 0; i < DOCUMENTS; i++) length[i] = EACH, one[i] = 1;
    IndexedPart part = {token, sizeof token, length, DOCUMENTS, one, DOCUMENTS};
    const char *prefix = in_temp("pair");
    IndexedWriter *w = indexed_write_open(mem(), prefix, 256);
    indexed_write_add(w, &part);
    indexed_write_complete(w);
    indexed_write_publish(w);
    indexed_write_close(w);
    return config_of(arena_printf(mem(), "type: GPTDataset, data_path: %s, split: '1'%s",
                                  prefix, more));
}

/* Losses of one run of 4 samples a step are those of a run whose steps grow and shrink. */
static void expect_samples_in_turn(const char *config, const char *until) {
    const char *one = in_temp("one"), *run = in_temp("run");
    ranks_run(1, config, one, arena_printf(mem(), "--train_steps %d %s", STEPS, until));
    ranks_run(1, config, run, arena_printf(mem(), "--train_steps 4 %s", until));
    ranks_run(2, config, run, arena_printf(mem(), "--train_steps 7 %s", until));
    ranks_run(1, config, run,
              arena_printf(mem(),
                           "--train_steps 9 %s --parallel_config.micro_batch_num 2 ",
                           until));
    ranks_run(1, config, run, arena_printf(mem(), "--train_steps 12 %s", until));
    int na, nb;
    const MetricsRow *a = runs_metrics(one, &na), *b = runs_metrics(run, &nb);
    EXPECT(na == STEPS && nb == 12);
    for (int i = 0, at = 0; i < nb; i++) {
        int parts = i < 4 || i >= 9 ? 1 : 2;
        double want = parts == 1 ? a[at].loss : (a[at].loss + a[at + 1].loss) / 2;
        EXPECT_NEAR(b[i].loss, want, 2e-6 * want);
        at += parts;
    }
}

TEST_LIMIT(no_sample_of_a_text_is_left_out_or_taken_twice, 120) {
    expect_samples_in_turn(text_data(), "");
}

TEST_LIMIT(no_sample_of_gpt_dataset_is_left_out_or_taken_twice, 120) {
    expect_samples_in_turn(pair_data(""),
                           "--train_dataset.data_loader.num_samples [100,0,0]");
}

/* As many passes as the samples asked for need are shuffled as one. */
TEST_LIMIT(another_order_is_told, 120) {
    const char *config = pair_data(""), *run = in_temp("run");
    ranks_run(1, config, run, "--train_steps 4");
    ranks_run(1, config, run, "--train_steps 6");
    EXPECT(!strstr(said(), "in another order"));
    ranks_run(1, config, run, "--train_steps 30");
    SAID_EXPECT("GPTDataset's samples come in another order than before");
}

/* Once, and not where the run goes on with steps of that size. */
TEST_LIMIT(another_size_is_told_once, 120) {
    const char *config = text_data(), *run = in_temp("run"), *told = "another size now";
    ranks_run(1, config, run, "--train_steps 4");
    ranks_run(2, config, run, "--train_steps 6");
    SAID_EXPECT(told);
    ranks_run(2, config, run, "--train_steps 8");
    EXPECT(!strstr(said(), told));
}

/* The steps that are left follow from the samples that are left. */
static void ends_with_its_samples(int steps, const char *then, int batch) {
    const char *config = pair_data(""), *run = in_temp("run");
    remove_all(run);
    ranks_run(1, config, run, arena_printf(mem(), "--train_steps %d", steps));
    ranks_run(1, config, run,
              arena_printf(mem(), "--runner_config.max_steps null --epochs 1 %s", then));
    int n;
    const MetricsRow *row = runs_metrics(run, &n);
    EXPECT_INT(n, steps + (44 - 4 * steps) / batch); /* 44 samples, 4 a step used */
    EXPECT_INT(row[n - 1].step, n);
}

TEST_LIMIT(epochs_end_with_their_samples, 120) {
    ends_with_its_samples(4, "--parallel_config.micro_batch_num 2", 8);
    ends_with_its_samples(3, "--runner_config.batch_size 8", 8);
    ends_with_its_samples(6, "--runner_config.batch_size 5", 5);
}

/* Of 132 samples 48 are used, and 84 are 10 steps of 8; not the 16 steps that all of them are. */
TEST_LIMIT(larger_steps_go_as_far_as_their_samples, 120) {
    const char *config = pair_data(", num_samples: [96, 0, 0]"), *run = in_temp("run");
    const char *larger = "--runner_config.batch_size 8",
               *end = "has batches for 22 steps";
    RUN_EXPECT(
        EXIT_CONFIG,
        runs_words(config, run, arena_printf(mem(), "--train_steps 17 %s", larger)));
    SAID_EXPECT("has batches for 16 steps");
    EXPECT(!file_exists(run));
    ranks_run(1, config, run, "--train_steps 12");
    RUN_EXPECT(
        EXIT_CONFIG,
        runs_words(config, run, arena_printf(mem(), "--train_steps 23 %s", larger)));
    SAID_EXPECT(end);
    ranks_run(2, config, run, "--train_steps 18");
    ranks_run(1, config, run, arena_printf(mem(), "--train_steps 22 %s", larger));
    EXPECT_INT(runs_steps(run), 22);
}

/* Longer, or validating more often, one behind the other. */
static const int lengths[][2] = {{4, 2}, {30, 2}, {40, 1}};

static void validate(const char *config, const char *run, const int shape[2]) {
    const char *words = "--train_dataset.data_loader.split 7,2,1 "
                        "--runner_config.eval_iters 2 --train_steps %d "
                        "--runner_config.eval_interval %d";
    ranks_run(1, config, run, arena_printf(mem(), words, shape[0], shape[1]));
}

/* A longer run, or one that does it more often, asks for more samples, in another order. */
TEST_LIMIT(other_samples_of_validation_are_told, 120) {
    const char *config = pair_data(""), *run = in_temp("run");
    for (int i = 0; i < ARRAY_LEN(lengths); i++) {
        validate(config, run, lengths[i]);
        if (i) SAID_EXPECT("note: validation takes other samples than before");
    }
    validate(config, run, lengths[ARRAY_LEN(lengths) - 1]);
    EXPECT(!strstr(said(), "other samples"));
}

/* With num_samples the same ones. */
TEST_LIMIT(validation_takes_the_same_samples_in_a_longer_run, 120) {
    const char *config = pair_data(", num_samples: [160, 16, 0]"), *next;
    const char *run = in_temp("run");
    for (int i = 0; i < ARRAY_LEN(lengths); i++) {
        validate(config, run, lengths[i]);
        EXPECT(!strstr(said(), "validation takes other samples"));
    }
    const char *points = runs_points(run), *key = "\"valid_loss\": ";
    const char *first = strstr(points, key);
    EXPECT(first);
    int n = 0;
    for (const char *at = first; at; at = next, n++) {
        EXPECT(!strncmp(at, first, strcspn(first, "\n") + 1));
        next = strstr(at + 1, key);
    }
    EXPECT_INT(n, 2 + 13 + 10);
}

/* More samples than the present steps would ask for. */
TEST_LIMIT(smaller_steps_find_their_samples, 120) {
    const char *config = pair_data(""), *run = in_temp("run");
    ranks_run(2, config, run, "--train_steps 4");
    ranks_run(1, config, run, "--train_steps 9");
    int n;
    runs_metrics(run, &n);
    EXPECT_INT(n, 9);
}

/* 170 sequences of a text. */
static const char *short_text(void) {
    char text[170 * 8 + 1];
    for (int i = 0; i < ARRAY_LEN(text); i++) text[i] = (char)('a' + i * i % 26);
    const char *path = in_temp("short.txt");
    FILE *f = fopen(path, "w");
    EXPECT(f && fwrite(text, 1, sizeof text, f) == sizeof text && !fclose(f));
    return config_of(arena_printf(mem(), "dataset_dir: %s", path));
}

/* The schedule is that of the steps which the run has: 10, and those of the 180 samples left. */
TEST_LIMIT(the_schedule_is_that_of_the_steps_made, 120) {
    const char *config = short_text(), *run = in_temp("run");
    const char *words = "--runner_config.max_steps -1 --lr_schedule.type cosine "
                        "--lr_schedule.learning_rate 1.e-20 "
                        "--callbacks.CheckpointMonitor.save_checkpoint_steps 10 "
                        "--lr_schedule.warmup_steps 11";
    const char *then = "--epochs 2 --runner_config.batch_size 16";
    const char *from = arena_printf(mem(), "--resume %s/ckpt/step_00000010", run);
    const char *more = "--runner_config.batch_size 34";
    RUN_EXPECT(0, runs_words(config, run, arena_printf(mem(), "%s %s", words, then)));
    RUN_EXPECT(0,
               runs_words(config, in_temp("b"),
                          arena_printf(mem(), "%s --epochs 2 %s %s", words, more, from)));
    SAID_EXPECT("lr_schedule.total_steps was 21 and is 15\n");
    SAID_EXPECT("work       15 steps of 1 x 34 sequences");
    SAID_EXPECT("done       15 steps");
    /* As many steps as a run of three epochs has that begins with this size. */
    RUN_EXPECT(0, runs_words(config, in_temp("b"),
                             arena_printf(mem(), "%s --epochs 3 %s", words, more)));
    SAID_EXPECT("lr_schedule.total_steps was 15 and is 20\n");
    SAID_EXPECT("work       20 steps of 1 x 34 sequences");
    /* One that the schedule does not fit is refused, and noted where it is no failure. */
    const char *longer = arena_printf(mem(), "%s --epochs 2 %s %s --output_dir %s", words,
                                      more, from, in_temp("c"));
    RUN_EXPECT(
        EXIT_CONFIG,
        arena_printf(mem(), "train %s %s --lr_schedule.warmup_steps 16", config, longer));
    SAID_EXPECT("warmup_steps 16 are above the 15 steps");
    RUN_EXPECT(0, arena_printf(mem(),
                               "train %s %s --lr_schedule.warmup_steps 16 "
                               "--lr_schedule.type constant_with_warmup",
                               config, longer));
    SAID_EXPECT("the run of 15 steps ends before its warm-up of 16 steps does");
    EXPECT(!strstr(said(), "the run of 10 steps"));
}
