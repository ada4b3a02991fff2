/* Tests of MPI ranks that do not see the same files: what rank 0 finds holds for all, or
 * all end, and the one with other files says what to copy. Two ranks start in folders of
 * their own, under which the same names lead to other files. */
#include "frontend/config/commands.h"
#include "ranks.h"

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

static const char *here, *there; /* the folders of rank 0 and rank 1 */

static void make_folders(void) {
    here = in_temp("here");
    there = in_temp("there");
    EXPECT(dir_make(here) == 0 && dir_make(there) == 0);
}

static int train_pair(const char *words) {
    static const char flags[] = "-x STATOR_THREADS=1 -wdir";
    return ranks_pair(arena_printf(mem(), "%s %s", flags, here), words,
                      arena_printf(mem(), "%s %s", flags, there), words);
}

static void expect_trained(const char *words, const char *part) {
    int code = train_pair(words);
    if (code || !strstr(mpi_said(), part))
        test_fail(__FILE__, __LINE__, "exit code %d, wanted '%s':\n%s", code, part,
                  mpi_said());
}

/* All ranks end with `code` before there is a run folder; somebody says both parts. */
static void expect_refused(int want, const char *words, const char *a, const char *b) {
    int code = train_pair(words);
    const char *text = mpi_said();
    if (code != want || !strstr(text, a) || !strstr(text, b))
        test_fail(__FILE__, __LINE__, "exit code %d, wanted %d, '%s' and '%s':\n%s", code,
                  want, a, b, text);
    EXPECT(!file_exists(path_join(mem(), here, "run")));
}

static const char other_folder[] = "start all ranks in the same folder";

/* ---- weights ---- */

static void copy(const char *from, const char *to) {
    EXPECT_INT(system(arena_printf(mem(), "cp -r '%s' '%s'", from, to)), 0);
}

/* A Hugging Face folder on rank 0's disk; on rank 1's nothing, other weights of the same
 * shapes, or something that is no model. */
static void begin_from_rank_0(const char *key, const char *strategy,
                              const char *otherwise) {
    const char *config = runs_golden_config("gpt2_tiny");
    const char *w = path_join(mem(), there, "w"), *run = path_join(mem(), here, "run");
    const char *words =
        arena_printf(mem(), "%s --output_dir run --%s w %s", config, key, strategy);
    if (!strcmp(otherwise, "other weights")) {
        copy(path_join(mem(), here, "w"), w);
        const char *file = path_join(mem(), w, "model.safetensors");
        size_t n;
        char *bytes = file_read(mem(), file, 1 << 24, &n, EXIT_DATA);
        memset(bytes + n / 2, 0, n / 4);
        EXPECT_INT(file_write_atomic(file, bytes, n), 0);
    } else if (!strcmp(otherwise, "no model")) {
        EXPECT_INT(dir_make(w), 0);
        write_text(path_join(mem(), w, "manifest.json"), "{}");
    }
    expect_trained(words, "weights from w");
    ranks_expect_curve("gpt2_tiny", run, otherwise);
    remove_all(run);
    remove_all(w);
}

TEST_LIMIT(weights_are_those_of_rank_0, 120) {
    make_folders();
    copy(runs_golden("gpt2_tiny"), path_join(mem(), here, "w"));
    begin_from_rank_0("init_from", "", "nothing");
    begin_from_rank_0("pretrained_model_dir", "--init_from null", "nothing");
    begin_from_rank_0("init_from", "", "other weights");
    begin_from_rank_0("init_from", "--parallel_config.model_parallel 2", "no model");
}

/* Loading a checkpoint is a conversation: nobody may take it for something else. */
TEST_LIMIT(a_checkpoint_to_begin_from_that_rank_0_alone_sees, 120) {
    make_folders();
    const char *first = runs_small_config(4, 2), *w = path_join(mem(), there, "first");
    ranks_run(1, first, path_join(mem(), here, "first"), "");
    const char *words =
        arena_printf(mem(), "%s --output_dir run --init_from first", first);
    expect_trained(words, "weights from first/ckpt/step_00000004");
    remove_all(path_join(mem(), here, "run"));
    copy(runs_golden("gpt2_tiny"), w);
    expect_trained(words, "weights from first/ckpt/step_00000004");
}

TEST_LIMIT(weights_that_rank_0_has_not, 120) {
    make_folders();
    copy(runs_golden("gpt2_tiny"), path_join(mem(), there, "w"));
    expect_refused(EXIT_CONFIG,
                   arena_printf(mem(), "%s --output_dir run --init_from w",
                                runs_golden_config("gpt2_tiny")),
                   "cannot open w: No such file", "\n  rank 0 on ");
}

TEST_LIMIT(a_named_checkpoint_that_rank_0_alone_sees, 120) {
    make_folders();
    const char *words =
        arena_printf(mem(), "%s --output_dir run", runs_small_config(4, 2));
    expect_trained(words, "checkpoint run/ckpt/step_00000004");
    words = arena_printf(mem(), "%s --resume run/ckpt/step_00000002", words);
    expect_trained(words, "resumed after step 2");
}

/* Rank 1's host has a copy of rank 0's checkpoint, with other bytes in the middle of the weights,
 * or without them: what it trains on is rank 0's. */
TEST_LIMIT(a_copy_of_a_checkpoint_that_is_damaged, 120) {
    make_folders();
    const char *config = runs_small_config(4, 4), *whole = in_temp("whole");
    const char *more = "--runner_config.max_steps 6 --lr_schedule.total_steps 6";
    const char *kept = path_join(mem(), there, "run/ckpt/step_00000004");
    const char *file = path_join(mem(), kept, "model.safetensors");
    const char *run = path_join(mem(), here, "run"), *first = in_temp("first");
    expect_trained(arena_printf(mem(), "%s --output_dir run", config), "done ");
    copy(run, first);
    ranks_run(2, config, first, more);
    copy(path_join(mem(), run, "ckpt"), path_join(mem(), there, "run"));
    size_t n;
    char *bytes = file_read(mem(), file, 1 << 24, &n, EXIT_DATA);
    memset(bytes + n / 2, 0, n / 4);
    EXPECT_INT(file_write_atomic(file, bytes, n), 0);
    copy(run, whole);
    expect_trained(arena_printf(mem(), "%s --output_dir run %s", config, more),
                   "1 of 2 ranks (the first: rank 1 on ");
    runs_expect_same_losses(first, run, 6);
    remove_all(run);
    copy(whole, run);
    EXPECT_INT(unlink(file), 0);
    expect_trained(arena_printf(mem(), "%s --output_dir run %s", config, more),
                   "resumed after step 4");
    runs_expect_same_losses(first, run, 6);
}

/* ---- configuration and model ---- */

TEST(a_configuration_that_one_rank_has_not) {
    make_folders();
    const char *config = runs_small_config(4, 4);
    copy(config, path_join(mem(), here, "c.yaml"));
    expect_refused(EXIT_CONFIG, "c.yaml --output_dir run",
                   "c.yaml: there is no such file\n  this is rank 1 on ", other_folder);
    Text changed = text_new(mem());
    text_add(&changed, "%s", file_read(mem(), config, 1 << 20, NULL, EXIT_DATA));
    text_add(&changed, "optimizer: {weight_decay: 0.25}\n");
    write_text(path_join(mem(), there, "c.yaml"), changed.s);
    expect_refused(EXIT_CONFIG, "c.yaml --output_dir run",
                   "ranks disagree on the configuration: rank 1 on ",
                   "has 'optimizer.weight_decay = 0.25', rank 0 has ");
}

TEST(another_model_file) {
    make_folders();
    const char *file = arena_printf(mem(), "%s/ir/tiny_gpt.ir", tests_dir());
    char *text = file_read(mem(), file, 1 << 20, NULL, EXIT_DATA);
    char *std = strstr(text, "0.02");
    EXPECT(std != NULL);
    write_text(path_join(mem(), here, "m.ir"), text);
    std[3] = '1';
    write_text(path_join(mem(), there, "m.ir"), text);
    const char *words = arena_printf(
        mem(), "--model.file m.ir --output_dir run --dataset_dir %s", runs_text());
    expect_refused(EXIT_CONFIG, words, "ranks disagree on the model.file: rank 1 on ",
                   other_folder);
    EXPECT(strstr(mpi_said(), "0.01") && strstr(mpi_said(), "0.02"));
    EXPECT(unlink(path_join(mem(), there, "m.ir")) == 0);
    expect_refused(EXIT_CONFIG, words, "rank 0 on ", other_folder);
}

/* Passes choose collectives by it. */
TEST(another_machine_file) {
    make_folders();
    const char *file = arena_printf(mem(), "%s/../machines/cpu100g.yaml", tests_dir());
    char *text = file_read(mem(), file, 1 << 20, NULL, EXIT_DATA);
    char *hidden = strstr(text, "\nhidden:");
    EXPECT(hidden != NULL);
    write_text(path_join(mem(), here, "m.yaml"), text);
    memcpy(hidden, "\n#", 2);
    write_text(path_join(mem(), there, "m.yaml"), text);
    const char *words = arena_printf(
        mem(), "%s --output_dir run --context.machine m.yaml", runs_small_config(4, 4));
    expect_refused(EXIT_CONFIG, words,
                   "ranks disagree on the context.machine: rank 1 on ", other_folder);
    EXPECT(unlink(path_join(mem(), there, "m.yaml")) == 0);
    expect_refused(EXIT_CONFIG, words, "rank 0 on ", other_folder);
}

/* ---- data ---- */

static const char *text_words(void) {
    return arena_printf(mem(), "%s --output_dir run --dataset_dir data",
                        runs_small_config(4, 4));
}

TEST(a_text_of_another_size) {
    make_folders();
    write_text(path_join(mem(), here, "data"), arena_printf(mem(), "%0200d", 1));
    write_text(path_join(mem(), there, "data"), arena_printf(mem(), "%0201d", 1));
    expect_refused(EXIT_CONFIG, text_words(), "ranks disagree on the data: rank 1 on ",
                   "has 'data: 201 tokens, 12 samples, -1 steps', rank 0 has 'data: 200 "
                   "tokens, ");
}

TEST(a_text_of_the_same_size) {
    make_folders();
    char *text = file_read(mem(), runs_text(), 1 << 20, NULL, EXIT_DATA);
    size_t n = strlen(text);
    write_text(path_join(mem(), here, "data"), text);
    for (size_t i = n / 2; i < n; i++) text[i] = text[i] == 'o' ? 'a' : text[i];
    write_text(path_join(mem(), there, "data"), text);
    expect_refused(EXIT_CONFIG, text_words(), "has 'data: batch ", other_folder);
}

TEST(a_text_that_one_rank_has_not) {
    make_folders();
    copy(runs_text(), path_join(mem(), here, "data"));
    expect_refused(EXIT_DATA, text_words(),
                   "cannot open data: No such file or directory\n    --dataset_dir=data\n"
                   "                  ^\n  this is rank 1 on ",
                   other_folder);
}

/* The same bytes train the same, whether a file or a folder holds them. */
TEST(a_folder_and_a_file_of_the_same_text) {
    make_folders();
    const char *folder = path_join(mem(), there, "data");
    EXPECT_INT(dir_make(folder), 0);
    copy(runs_text(), path_join(mem(), here, "data"));
    copy(runs_text(), folder);
    expect_trained(text_words(), "done       4 steps");
    write_text(path_join(mem(), folder, "more"), "and more");
    remove_all(path_join(mem(), here, "run"));
    expect_refused(EXIT_CONFIG, text_words(), "ranks disagree on the data: rank 1 on ",
                   other_folder);
}

/* Texts of loose JSON, the second half of them with this word. */
static void put_lines(const char *folder, const char *word) {
    Text t = text_new(mem());
    for (int i = 0; i < 40; i++)
        text_add(&t, "{\"text\": \"line %d is %s\"}\n", i, i < 20 ? "one" : word);
    write_text(path_join(mem(), folder, "web.jsonl"), t.s);
}

static const char *web_words(const char *more) {
    return arena_printf(mem(),
                        "%s --output_dir run --dataset_dir web.jsonl "
                        "--train_dataset.data_loader.type WebtextDataset "
                        "--train_dataset.data_loader.pad_token 0 %s",
                        runs_small_config(4, 4), more);
}

TEST(other_texts_for_validation) {
    make_folders();
    put_lines(here, "two");
    put_lines(there, "2nd");
    expect_refused(EXIT_CONFIG,
                   web_words("--train_dataset.data_loader.split 1,1,0 "
                             "--train_dataset.data_loader.tokenizer_type ByteTokenizer "
                             "--runner_config.eval_iters 2"),
                   "has 'web.jsonl: batch ", other_folder);
}

TEST(another_tokenizer) {
    make_folders();
    put_lines(here, "two");
    put_lines(there, "two");
    const char *text = runs_text();
    RUN_EXPECT(0, arena_printf(mem(),
                               "tokenizer train --input %s --vocab-size 300 "
                               "--output %s/tok",
                               text, here));
    const char *file = path_join(mem(), here, "tok/tokenizer.json");
    const char *json = file_read(mem(), file, 1 << 20, NULL, EXIT_DATA);
    EXPECT_INT(dir_make(path_join(mem(), there, "tok")), 0);
    write_text(path_join(mem(), there, "tok/tokenizer.json"),
               arena_printf(mem(), "%s\n", json));
    expect_refused(EXIT_CONFIG,
                   web_words("--train_dataset.data_loader.tokenizer_file "
                             "tok/tokenizer.json --model.model_config.vocab_size 300"),
                   "has 'tok/tokenizer.json: ", other_folder);
}
