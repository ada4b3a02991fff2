/* Tests of the folders that stator train writes to: who may write there, and what it finds
 * and leaves there. */
#include "frontend/config/commands.h"
#include "ranks.h"
#include "runtime/store/safetensors.h"
#include <sys/stat.h>

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);
TEST_LABEL(RELEASED);

static const char *checkpoints_in(const char *folder) {
    return arena_printf(mem(), "--callbacks.CheckpointMonitor.directory %s", folder);
}

static void kill_and_wait(pid_t pid) {
    kill(pid, SIGKILL);
    EXPECT_INT(stator_wait(pid), -SIGKILL);
}

/* ---- one run at a time ---- */

/* A run that writes there, and computes no more, so that it takes nothing from those that are
 * refused because of it. */
static pid_t start_and_stop(const char *run, const char *its_words) {
    pid_t pid = stator_start(its_words);
    EXPECT(runs_wait_steps(pid, run, 1));
    kill(pid, SIGSTOP);
    return pid;
}

TEST_LIMIT(one_folder_of_checkpoints_for_two_runs_is_refused, 120) {
    const char *config = runs_small_config(100000, 50000), *run = in_temp("run");
    const char *both = checkpoints_in(in_temp("both"));
    pid_t pid = start_and_stop(run, runs_words(config, run, both));
    RUN_EXPECT(EXIT_CONFIG, runs_words(config, in_temp("other"), both));
    SAID_EXPECT("another stator train is writing to");
    SAID_EXPECT("/both; give another --callbacks.CheckpointMonitor.directory");
    RUN_EXPECT(EXIT_CONFIG,
               runs_words(config, in_temp("other"),
                          checkpoints_in(path_join(mem(), run, "ckpt/../../both"))));
    kill_and_wait(pid);
}

/* Also where it is the usual one of the other run. */
TEST_LIMIT(the_checkpoints_of_a_running_run_are_refused, 120) {
    const char *config = runs_small_config(100000, 50000), *run = in_temp("run");
    pid_t pid = start_and_stop(run, runs_words(config, run, ""));
    RUN_EXPECT(EXIT_CONFIG, runs_words(config, in_temp("other"),
                                       checkpoints_in(path_join(mem(), run, "ckpt"))));
    SAID_EXPECT("/run/ckpt; give another");
    kill_and_wait(pid);
}

/* A save that replaces one of its step was killed where a disk cannot exchange names. */
TEST_LIMIT(a_checkpoint_that_was_moved_out_of_the_way_comes_back, 120) {
    const char *run = in_temp("run"),
               *saved = path_join(mem(), run, "ckpt/step_00000004");
    RUN_EXPECT(0, runs_words(runs_small_config(4, 2), run, ""));
    EXPECT_INT(rename(saved, arena_printf(mem(), "%s.old.tmp", saved)), 0);
    RUN_EXPECT(0, runs_words(runs_small_config(6, 2), run, ""));
    SAID_EXPECT("resumed after step 4");
    EXPECT(file_exists(saved));
}

TEST_LIMIT(one_folder_for_the_run_and_its_checkpoints, 120) {
    const char *config = runs_small_config(4, 2), *run = in_temp("run");
    RUN_EXPECT(0, runs_words(config, run, checkpoints_in(run)));
    EXPECT(file_exists(path_join(mem(), run, "step_00000004")));
}

/* Also when what another run had there has gone aside. */
TEST_LIMIT(a_folder_of_an_earlier_run_is_locked, 120) {
    const char *both = checkpoints_in(in_temp("both")), *run = in_temp("run");
    RUN_EXPECT(0, runs_words(runs_small_config(4, 2), in_temp("before"), both));
    const char *config = runs_small_config(100000, 50000);
    pid_t pid = start_and_stop(
        run, runs_words(config, run, arena_printf(mem(), "%s --resume never", both)));
    EXPECT(file_exists(in_temp("both.before-1/step_00000004")));
    RUN_EXPECT(EXIT_CONFIG, runs_words(config, in_temp("other"), both));
    kill_and_wait(pid);
}

/* A signal asks for a checkpoint where the configuration asks for none. */
TEST_LIMIT(a_run_that_saves_at_a_signal_alone_has_its_folder, 120) {
    const char *config = runs_small_config(100000, 0), *run = in_temp("run");
    const char *both = checkpoints_in(in_temp("both"));
    pid_t pid = start_and_stop(run, runs_words(config, run, both));
    RUN_EXPECT(EXIT_CONFIG, runs_words(config, in_temp("other"), both));
    SAID_EXPECT("another stator train is writing to");
    kill(pid, SIGTERM);
    kill(pid, SIGCONT);
    EXPECT_INT(stator_wait(pid), EXIT_SIGNALLED);
    EXPECT(file_exists(in_temp("both/latest")));
    /* It stays only where it has got one, or was there. */
    config = runs_small_config(4, 0);
    RUN_EXPECT(0, runs_words(config, in_temp("a"), ""));
    EXPECT(!file_exists(in_temp("a/ckpt")));
    EXPECT_INT(dir_make(in_temp("mine")), 0);
    RUN_EXPECT(0, runs_words(config, in_temp("b"), checkpoints_in(in_temp("mine"))));
    EXPECT(file_exists(in_temp("mine")));
}

TEST_LIMIT(one_folder_of_checkpoints_for_two_runs_of_ranks, 180) {
    const char *config = runs_small_config(100000, 50000), *run = in_temp("run");
    const char *both = checkpoints_in(in_temp("both"));
    pid_t rank[2], pid = ranks_start(2, config, run, both);
    ranks_wait_start(pid, rank, 2);
    EXPECT(runs_wait_steps(pid, run, 1));
    for (int r = 0; r < 2; r++) kill(rank[r], SIGSTOP);
    RUN_EXPECT(EXIT_CONFIG, runs_words(config, in_temp("one"), both));
    ranks_end(ranks_start(2, config, in_temp("two"), both), EXIT_CONFIG, both);
    SAID_EXPECT("another stator train is writing to");
    for (int r = 0; r < 2; r++) kill(rank[r], SIGCONT);
    kill(pid, SIGTERM);
    stator_wait(pid);
}

/* ---- data that change under a run ---- */

/* The steps up to the last good batch are saved; returns the number of the last. */
static int ends_for_data(const char *run, const char *words_after,
                         void (*spoil)(const char *)) {
    const char *config = runs_small_config(100000, 50000);
    pid_t pid = stator_start(runs_words(config, run, words_after));
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
    RUN_EXPECT(0, runs_words(runs_small_config(n + 2, 50000), run, ""));
    SAID_EXPECT(arena_printf(mem(), "resumed after step %d", n));
}

TEST_LIMIT(a_token_that_goes_bad_while_training, 120) {
    ends_for_data(in_temp("run"), "--model.model_config.vocab_size 128",
                  write_other_bytes);
    SAID_EXPECT("token 200 (a byte) is outside the vocabulary of 128");
}

/* What `folder/text.txt` was before it was spoiled. */
static void text_as_it_was(const char *folder) {
    const char *good = runs_text();
    EXPECT_INT(system(arena_printf(mem(),
                                   "cp %s %s/text.txt.new && mv %s/text.txt.new "
                                   "%s/text.txt",
                                   good, folder, folder, folder)),
               0);
}

static const char *rest_words(const char *more, int steps) {
    return arena_printf(
        mem(), "%s --runner_config.max_steps %d --lr_schedule.total_steps 100000", more,
        steps);
}

#define DP2_TP2                                                                          \
    "--parallel_config.data_parallel 2 --parallel_config.model_parallel 2 " ZERO_LEVEL(1)
#define DP4_ZERO3 "--parallel_config.data_parallel 4 " ZERO_LEVEL(3)

/* All ranks save the state of the last step with data, and go on to the bits of a run
 * that was not disturbed. */
static void saves_for_data(int ranks, const char *more, void (*spoil)(const char *)) {
    const char *run = in_temp("run"), *whole = in_temp("whole");
    const char *config = runs_small_config(100000, 50000);
    pid_t pid = ranks_start(ranks, config, run, more);
    int n;
    EXPECT(runs_wait_steps(pid, run, 3));
    spoil(in_temp("text.txt"));
    ranks_end(pid, EXIT_DATA, "bad data");
    runs_metrics(run, &n);
    SAID_EXPECT(arena_printf(mem(), "saved %s/ckpt/step_%08d", run, n));
    text_as_it_was(temp_dir());
    ranks_run(ranks, config, run, rest_words(more, n + 3));
    SAID_EXPECT(arena_printf(mem(), "resumed after step %d", n));
    ranks_run(ranks, config, whole, rest_words(more, n + 3));
    runs_expect_same_losses(whole, run, n + 3);
    runs_expect_same_tensors(whole, run, n + 3);
    remove_all(run);
    remove_all(whole);
}

TEST_LIMIT(a_text_that_is_cut_short_under_ranks, 240) {
    saves_for_data(2, "", cut_short);
    saves_for_data(4, DP2_TP2, cut_short);
    saves_for_data(4, DP4_ZERO3, cut_short);
    saves_for_data(2, "--parallel_config.pipeline_stage 2", cut_short);
}

TEST_LIMIT(a_token_that_goes_bad_under_ranks, 120) {
    saves_for_data(2, "--model.model_config.vocab_size 128", write_other_bytes);
}

/* Rank 1 alone has no data any more; the other has its batch. */
TEST_LIMIT(a_text_that_is_cut_short_for_one_rank, 180) {
    const char *config = runs_small_config(100000, 50000), *run = in_temp("run");
    const char *here = in_temp("here"), *there = in_temp("there");
    EXPECT(dir_make(here) == 0 && dir_make(there) == 0);
    text_as_it_was(here);
    text_as_it_was(there);
    const char *command =
        arena_printf(mem(), "%s train %s --output_dir %s --dataset_dir text.txt",
                     stator_program(), config, run);
    mpi_adopt_ranks();
    pid_t pid =
        mpi_start(1, arena_printf(mem(), "-wdir %s", here),
                  arena_printf(mem(), "%s : -n 1 -wdir %s %s", command, there, command));
    EXPECT(runs_wait_steps(pid, run, 3));
    cut_short(path_join(mem(), there, "text.txt"));
    int code = mpi_wait(pid), n;
    mpi_wait_for_ranks();
    runs_metrics(run, &n);
    const char *saved = arena_printf(mem(), "saved %s/ckpt/step_%08d", run, n);
    if (code != EXIT_DATA || !strstr(mpi_said(), saved) ||
        !strstr(mpi_said(), "text.txt was cut short"))
        test_fail(__FILE__, __LINE__, "exit code %d, wanted '%s':\n%s", code, saved,
                  mpi_said());
    ranks_run(2, config, run, rest_words("", n + 3));
    SAID_EXPECT(arena_printf(mem(), "resumed after step %d", n));
}

/* The last twentieth of the text, which validation alone reads. */
static void spoil_validation(const char *path) {
    char bytes[200];
    memset(bytes, 0xC8, sizeof bytes);
    size_t n;
    file_read(mem(), path, 1 << 20, &n, EXIT_DATA);
    int fd = open(path, O_WRONLY);
    EXPECT(fd >= 0);
    EXPECT_INT(pwrite(fd, bytes, sizeof bytes, (off_t)(n - sizeof bytes)), sizeof bytes);
    close(fd);
}

TEST_LIMIT(validation_that_goes_bad_while_training, 240) {
    static const char more[] = "--model.model_config.vocab_size 128 --eval_interval 50 "
                               "--train_dataset.data_loader.split 95,5,0 --eval_iters 4";
    for (int ranks = 1; ranks <= 2; ranks++)
        saves_for_data(ranks, more, spoil_validation);
}

/* ids[40] is outside of the table, which the step finds: what is looked up is a difference. What is behind
 * it may be of a second stage. */
static const char *module_with_a_table(void) {
    enum { SAMPLES = 400 };
    static int32_t ids[SAMPLES];
    static float y[SAMPLES][2];
    uint64_t random = 88172645463325252u;
    for (int i = 0; i < SAMPLES; i++) {
        ids[i] = (int32_t)(runs_random(&random) >> 40 & 7);
        y[i][0] = y[i][1] = (float)ids[i] / 7;
    }
    ids[40] = 8;
    static int32_t base[SAMPLES]; /* what is asked of a difference is not known before */
    SafeTensor t[] = {
        {.name = "base", .dtype = DT_I32, .rank = 1, .dim = {SAMPLES}, .data = base},
        {.name = "ids", .dtype = DT_I32, .rank = 1, .dim = {SAMPLES}, .data = ids},
        {.name = "y", .dtype = DT_F32, .rank = 2, .dim = {SAMPLES, 2}, .data = y}};
    const char *data = in_temp("rows.safetensors"), *ir = in_temp("table.ir");
    EXPECT_INT(safetensors_write(data, t, ARRAY_LEN(t), NULL, NULL), 0);
    write_text(ir, "module @table mesh() level(global)\n"
                   "func @row(%t: f32[8,2], %ids: i32[4]) -> (f32[4,2]) {\n"
                   "  %x = embed %t, %ids : f32[4,2]\n"
                   "  return %x\n}\n"
                   "func @net:model(\n"
                   "    %ids: i32[4] {role=\"data\"},\n"
                   "    %base: i32[4] {role=\"data\"},\n"
                   "    %y: f32[4,2] {role=\"data\"},\n"
                   "    %t: f32[8,2] {role=\"param\"; init=\"normal\"; std=1.0},\n"
                   "    %w: f32[2,2] {role=\"param\"; init=\"normal\"; std=1.0}) "
                   "-> (f32[]) {\n"
                   "  %b1 = slice %base {dim=0; first=0; size=1} : i32[1]\n"
                   "  %b = reshape %b1 : i32[]\n"
                   "  %at = index_from %ids, %b : i32[4]\n"
                   "  %x = call %t, %at {fn=@row} : f32[4,2]\n"
                   "  %z = dot %x, %w {bi,ic->bc; stage=1} : f32[4,2]\n"
                   "  %d = sub %z, %y : f32[4,2]\n"
                   "  %d2 = mul %d, %d : f32[4,2]\n"
                   "  %loss = sum %d2 {bc->_} : f32[]\n"
                   "  return %loss\n}\n");
    return arena_printf(mem(),
                        "--model.file %s --dataset_dir %s "
                        "--train_dataset.data_loader.type Tensors --threads 1 "
                        "--runner_config.max_steps 100",
                        ir, data);
}

TEST_LIMIT(an_index_outside_of_a_table_while_training, 120) {
    static const struct {
        int ranks;
        const char *words;
    } way[] = {{1, ""},
               {2, ""},
               {2, "--parallel_config.pipeline_stage 2 "
                   "--parallel_config.micro_batch_num 2"}};
    const char *more = module_with_a_table();
    for (int i = 0; i < ARRAY_LEN(way); i++) {
        const char *run = in_temp(arena_printf(mem(), "run%d", i));
        const char *words_of = arena_printf(mem(), "%s %s", more, way[i].words);
        int n;
        ranks_end(ranks_start(way[i].ranks, "", run, words_of), EXIT_DATA, "an index");
        SAID_EXPECT("index 8 of a table of 8 rows");
        runs_metrics(run, &n);
        EXPECT(n > 0);
        SAID_EXPECT(arena_printf(mem(), "saved %s/ckpt/step_%08d", run, n));
    }
}

static void change_a_byte(const char *path) {
    int fd = open(path, O_WRONLY);
    EXPECT(fd >= 0 && pwrite(fd, "#", 1, 3000) == 1);
    close(fd);
}

TEST_LIMIT(a_resume_says_that_the_text_has_changed, 120) {
    const char *config = runs_small_config(8, 4), *run = in_temp("run");
    const char *half = "--runner_config.max_steps 4 --lr_schedule.total_steps 8";
    RUN_EXPECT(0, runs_words(config, run, half));
    RUN_EXPECT(0, runs_words(config, run, half));
    EXPECT(!strstr(said(), "other content"));
    change_a_byte(in_temp("text.txt"));
    RUN_EXPECT(0, runs_words(config, run, half));
    SAID_EXPECT("text.txt has the size it had when the checkpoint was saved, but other "
                "content");
}

/* Whatever the size of a step was, also over two resumes. */
TEST_LIMIT(a_resume_in_other_steps_says_that_the_text_has_changed, 120) {
    const char *config = runs_small_config(12, 4), *run = in_temp("run");
    const char *sizes[] = {"4 --train_steps 4", "8 --train_steps 6", "2 --train_steps 9",
                           "4 --train_steps 12", "1 --train_steps 16"};
    for (int i = 0; i < ARRAY_LEN(sizes); i++) {
        if (i == 3) change_a_byte(in_temp("text.txt"));
        RUN_EXPECT(0, runs_words(config, run,
                                 arena_printf(mem(), "--runner_config.batch_size %s",
                                              sizes[i])));
        EXPECT_INT(strstr(said(), "steps have another size now") != NULL, i > 0);
        EXPECT_INT(strstr(said(), "but other content") != NULL, i == 3);
    }
}

/* Also where data have a token outside of the vocabulary, in a batch that no step takes. */
TEST_LIMIT(a_resume_says_that_a_text_with_a_bad_token_has_changed, 120) {
    const char *config = runs_small_config(4, 4), *run = in_temp("run");
    const char *text = in_temp("text.txt");
    char *bytes = file_read(mem(), text, 1 << 20, NULL, EXIT_DATA);
    size_t size = strlen(bytes);
    const char *more = "--model.model_config.vocab_size 128 --seed 3";
    bytes[size - 100] = (char)200;
    write_text(text, bytes);
    RUN_EXPECT(0, runs_words(config, run, more));
    RUN_EXPECT(0, runs_words(config, run, more));
    EXPECT(!strstr(said(), "WARNING"));
    change_a_byte(text);
    RUN_EXPECT(0, runs_words(config, run, more));
    SAID_EXPECT("but other content");
}

/* Whatever else is changed; but not where other data are asked for. */
TEST_LIMIT(a_longer_run_says_that_the_text_has_changed, 120) {
    const char *config = runs_small_config(8, 4), *run = in_temp("run");
    const char *other = in_temp("other.txt"), *text = in_temp("text.txt");
    RUN_EXPECT(0, runs_words(config, run, "--runner_config.max_steps 4"));
    RUN_EXPECT(0, runs_words(config, run, "--runner_config.max_steps 5"));
    SAID_EXPECT("max_steps was 4 and is 5");
    EXPECT(!strstr(said(), "WARNING"));
    change_a_byte(text);
    RUN_EXPECT(0, runs_words(config, run, "--runner_config.max_steps 6"));
    SAID_EXPECT("text.txt has the size it had when the checkpoint was saved, but other "
                "content");
    RUN_EXPECT(0, runs_words(config, run, "--runner_config.max_steps 7 --seed 9"));
    EXPECT(!strstr(said(), "WARNING"));
    EXPECT(truncate(text, 5000) == 0);
    RUN_EXPECT(0, runs_words(config, run, "--runner_config.max_steps 8 --seed 8"));
    SAID_EXPECT("tokens when the checkpoint was saved and has 5000 now");
    write_text(other, file_read(mem(), text, 1 << 20, NULL, EXIT_DATA));
    change_a_byte(other);
    EXPECT(truncate(other, 4500) == 0);
    RUN_EXPECT(0, runs_words(config, run,
                             arena_printf(mem(),
                                          "--runner_config.max_steps 9 --dataset_dir "
                                          "%s --seed 8",
                                          other)));
    SAID_EXPECT("dataset_dir was ");
    EXPECT(!strstr(said(), "WARNING"));
}

/* The order of GPTDataset is another one when a run needs more epochs. */
TEST_LIMIT(a_longer_run_says_that_a_pair_has_changed, 120) {
    const char *config = runs_small_config(8, 2), *run = in_temp("run");
    const char *pair = in_temp("pair");
    RUN_EXPECT(0, arena_printf(mem(),
                               "preprocess --input %s --output-prefix %s "
                               "--text-documents line --tokenizer-type ByteTokenizer",
                               runs_text(), pair));
    const char *gpt = arena_printf(mem(),
                                   "--train_dataset.data_loader.type GPTDataset "
                                   "--train_dataset.data_loader.split 1 "
                                   "--runner_config.batch_size 64 --dataset_dir "
                                   "%s_text_document --runner_config.max_steps",
                                   pair);
    int others = 0;
    for (int steps = 3; steps <= 19; steps += 8) {
        RUN_EXPECT(0, runs_words(config, run, arena_printf(mem(), "%s %d", gpt, steps)));
        EXPECT(!strstr(said(), "but other content"));
        others += strstr(said(), "samples come in another order") != NULL;
    }
    EXPECT(others > 0);
    change_a_byte(arena_printf(mem(), "%s_text_document.bin", pair));
    RUN_EXPECT(0, runs_words(config, run, arena_printf(mem(), "%s 27", gpt)));
    SAID_EXPECT("max_steps was 19 and is 27");
    SAID_EXPECT("but other content");
}

TEST_LIMIT(a_text_shorter_than_a_step, 120) {
    const char *config = runs_small_config(4, 0), *run = in_temp("run");
    RUN_EXPECT(0, runs_words(config, run, ""));
    EXPECT(!strstr(said(), "more than once"));
    EXPECT(truncate(in_temp("text.txt"), 49) == 0);
    RUN_EXPECT(0, runs_words(config, in_temp("short"), ""));
    SAID_EXPECT("text.txt has 3 sequences of 16, a step takes 4");
}

TEST_LIMIT(a_run_folder_removed_while_training, 120) {
    const char *config = runs_small_config(100000, 20), *run = in_temp("run");
    pid_t pid = stator_start(runs_words(config, run, ""));
    EXPECT(runs_wait_steps(pid, run, 1));
    EXPECT(rename(run, in_temp("moved")) == 0);
    for (int i = 0; i < 600 && !strstr(said(), "was removed"); i++) usleep(100000);
    SAID_EXPECT("was removed or moved while training");
    kill(pid, SIGTERM);
    stator_wait(pid);
    EXPECT(file_exists(path_join(mem(), run, "ckpt/latest")));
}

/* The curve is drawn from what the run remembers: the file is not read again. */
TEST_LIMIT(metrics_removed_while_training, 120) {
    const char *config = runs_small_config(100000, 50000), *run = in_temp("run");
    pid_t pid = stator_start(runs_words(config, run, ""));
    EXPECT(runs_wait_steps(pid, run, 5));
    EXPECT(unlink(path_join(mem(), run, "metrics.jsonl")) == 0);
    kill(pid, SIGTERM);
    EXPECT_INT(stator_wait(pid), EXIT_SIGNALLED);
    size_t n;
    const char *svg =
        file_read(mem(), path_join(mem(), run, "loss.svg"), 1 << 24, &n, EXIT_DATA);
    EXPECT_PART(svg, "class=\"line ");
}

/* ---- what is no file ---- */

/* Nobody writes to these pipes: each is refused at once. */
TEST_LIMIT(pipes_in_the_place_of_files, 60) {
    const char *pipe = in_temp("tokenizer.json"), *weights = in_temp("hf");
    EXPECT(mkfifo(pipe, 0600) == 0 && dir_make(weights) == 0);
    RUN_EXPECT(EXIT_DATA, arena_printf(mem(), "inspect %s", pipe));
    SAID_EXPECT("tokenizer.json is not a regular file but a pipe or a device");
    RUN_EXPECT(EXIT_CONFIG, runs_words(pipe, in_temp("run"), ""));
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
    RUN_EXPECT(EXIT_DATA, runs_words(runs_small_config(4, 2), run, ""));
    SAID_EXPECT("logs/rank_0.log: Too many levels of symbolic links");
    EXPECT_STR(file_read(mem(), mine, 100, NULL, EXIT_DATA), "keep");
}

/* ---- what is small ---- */

TEST_LIMIT(latest_as_a_folder_does_not_hide_the_checkpoint, 60) {
    const char *run = in_temp("run"), *config = runs_small_config(4, 2);
    EXPECT_INT(dir_make(path_join(mem(), run, "ckpt/latest/x")), 0);
    RUN_EXPECT(0, runs_words(config, run, ""));
    SAID_EXPECT("ckpt/step_00000004, but: cannot write ");
    EXPECT(!strstr(said(), "no checkpoint of step"));
    RUN_EXPECT(0, runs_words(config, run, ""));
    SAID_EXPECT("resumed after step 4");
}

static void to_full_disk(void) {
    int fd = open("/dev/full", O_WRONLY);
    dup2(fd, 1);
}

TEST_LIMIT(lost_output_is_an_error, 60) {
    static const char *const lines[] = {"help",
                                        "--version",
                                        "train --help",
                                        "inspect --help",
                                        "help optimizer",
                                        "launch --help",
                                        "launch -n 1 --dry-run train"};
    for (int i = 0; i < ARRAY_LEN(lines); i++) {
        driven_prepare = NULL;
        RUN_EXPECT(0, lines[i]);
        driven_prepare = to_full_disk;
        RUN_EXPECT(EXIT_DATA, lines[i]);
        SAID_EXPECT("cannot write to stdout: No space left on device");
    }
    const char *words[] = {arena_printf(mem(), "%s/ir/mlp.ir", tests_dir()), "--help"};
    for (int i = 0; i < ARRAY_LEN(words); i++) {
        int status = system(arena_printf(mem(), "%s/stator-opt %s > /dev/full 2> %s",
                                         BUILD_DIR, words[i], in_temp("output.txt")));
        EXPECT_INT(WEXITSTATUS(status), EXIT_DATA);
        SAID_EXPECT("cannot write to stdout");
    }
}

TEST_LIMIT(numbers_of_threads_and_steps, 60) {
    const char *run = in_temp("run"), *config = runs_small_config(4, 2);
    RUN_EXPECT(EXIT_CONFIG, runs_words(config, run, "--context.threads 4096"));
    SAID_EXPECT("4096 threads on ");
    RUN_EXPECT(EXIT_CONFIG, runs_words(config, run,
                                       "--runner_config.max_steps 0 "
                                       "--lr_schedule.total_steps 8"));
    SAID_EXPECT("max_steps is 0: nothing would be trained");
    RUN_EXPECT(EXIT_CONFIG, runs_words(config, run, "--runner_config.max_steps 0"));
    SAID_EXPECT("max_steps is 0: nothing would be trained");
}
