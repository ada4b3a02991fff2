/* readme.c - the commands of README.md do what it says: they are taken from there and run as
 * they stand, in a folder where build/, configs/, machines/, gpt2/ and my.txt are what it
 * speaks of. */
#include "evaluated.h"
#include "ranks.h"

TEST_LABEL(RELEASED);

enum { MOST_COMMANDS = 8 };

/* The lines of a section that begin with build/stator, as commands; how many. */
static int commands_of(const char *section, const char **command) {
    const char *text =
        file_read(mem(), arena_printf(mem(), "%s/../README.md", tests_dir()), 1 << 20,
                  NULL, EXIT_DATA);
    const char *at = strstr(text, arena_printf(mem(), "\n## %s\n", section));
    if (!at) test_fail(__FILE__, __LINE__, "README.md has no section %s", section);
    const char *end = strstr(at + 1, "\n## ");
    int n = 0;
    for (at++; at && (!end || at < end); at = strchr(at, '\n'), at += at != NULL) {
        static const char begin[] = "    build/stator ";
        if (strncmp(at, begin, sizeof begin - 1)) continue;
        EXPECT(n < MOST_COMMANDS);
        command[n++] = arena_strndup(mem(), at + 4, strcspn(at + 4, "#\n"));
    }
    return n;
}

static const char *in_work(const char *name) {
    return path_join(mem(), in_temp("work"), name);
}

/* The folder in which the commands are run. */
static void make_work(void) {
    EXPECT(!dir_make(in_temp("work")));
    EXPECT(!symlink(BUILD_DIR, in_work("build")));
    static const char *const folders[] = {"configs", "machines"};
    for (int i = 0; i < ARRAY_LEN(folders); i++)
        EXPECT(!symlink(arena_printf(mem(), "%s/../%s", tests_dir(), folders[i]),
                        in_work(folders[i])));
    mpi_environment();
}

/* What it prints, without what goes to stderr. */
static const char *run_there(const char *command) {
    const char *out = in_temp("stdout.txt"), *err = in_temp("stderr.txt");
    int status = system(arena_printf(mem(), "cd '%s' && %s > %s 2> %s", in_temp("work"),
                                     command, out, err));
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        test_fail(__FILE__, __LINE__, "%s\n%s%s", command,
                  file_read(mem(), err, 1 << 20, NULL, EXIT_DATA),
                  file_read(mem(), out, 1 << 20, NULL, EXIT_DATA));
    return file_read(mem(), out, 1 << 20, NULL, EXIT_DATA);
}

/* ---- a model of Hugging Face ---- */

static const char small_yaml[] =
    "seed: 3\n"
    "model: {model_config: {type: GPT2Config, vocab_size: 300, seq_length: 64, "
    "hidden_size: 32, num_layers: 2, num_heads: 4}}\n"
    "train_dataset: {data_loader: {type: TextFile, dataset_dir: my.txt, "
    "tokenizer_file: made/tokenizer.json}}\n"
    "runner_config: {max_steps: 1, batch_size: 2}\n";

static void make_text(void) {
    Text t = text_new(mem());
    for (int i = 0; i < 400; i++)
        text_add(&t, "the cat number %d sat on the mat, and said one two three %d\n", i,
                 i * 7 % 50);
    write_text(in_work("my.txt"), t.s);
}

/* A small GPT-2 that knows nothing, with a tokenizer, by stator itself. */
static void make_folder(void) {
    write_text(in_work("small.yaml"), small_yaml);
    run_there(
        "build/stator tokenizer train --input my.txt --vocab-size 300 --output made");
    run_there("build/stator train small.yaml --output_dir made/run --context.threads 1");
    run_there("build/stator convert --to hf made/run gpt2");
}

static double loss_there(const char *folder) {
    const char *text = run_there(
        arena_printf(mem(), "build/stator eval %s --data my.txt --json", folder));
    return json_f64(json_need(
        json_parse(mem(), "eval", text, strlen(text), 1 << 16, EXIT_DATA), "loss"));
}

/* Trains, predicts and converts; what it predicted. */
static const char *fine_tune(void) {
    const char *command[MOST_COMMANDS], *said_then = "";
    int n = commands_of("A model of Hugging Face", command);
    EXPECT_INT(n, 3);
    for (int i = 0; i < n; i++) {
        const char *text = run_there(command[i]);
        if (strstr(command[i], " predict ")) said_then = text;
    }
    static const char *const files[] = {"config.json", "model.safetensors",
                                        "tokenizer.json", "tokenizer_config.json"};
    for (int i = 0; i < ARRAY_LEN(files); i++)
        EXPECT(file_exists(path_join(mem(), in_work("my-gpt2"), files[i])));
    EXPECT(loss_there("my-gpt2") < loss_there("gpt2"));
    return said_then;
}

TEST_LABEL_OF(a_folder_is_fine_tuned, SLOW);
TEST_LIMIT(a_folder_is_fine_tuned, 120) {
    make_work();
    make_text();
    make_folder();
    const char *text = fine_tune();
    EXPECT(!strncmp(text, "Once upon a time", 16) && strlen(text) > 30);
    EXPECT(same_file(in_work("gpt2/tokenizer.json"), in_work("my-gpt2/tokenizer.json")));
}

/* ---- the same, of transformers and for it ---- */

static const char *python_there(const char *words) {
    const char *text = run_there(
        arena_printf(mem(), "python3 '%s/compare_models.py' %s", tests_dir(), words));
    if (strstr(text, "skipped:")) test_skip("%s", text);
    return text;
}

TEST_LABEL_OF(transformers_answers_as_stator, SLOW);
TEST_LIMIT(transformers_answers_as_stator, 240) {
    make_work();
    make_text();
    python_there("gpt2 gpt2 my.txt");
    fine_tune();
    const char *want =
        run_there("build/stator predict my-gpt2 'the cat number 3' --greedy "
                  "--max_new_tokens 20");
    EXPECT_STR(python_there("answer my-gpt2 'the cat number 3' 20"), want);
}

/* ---- the other sections ---- */

/* The last loss of a run and its first one. */
static bool has_learned(const char *run) {
    int n;
    const MetricsRow *row = runs_metrics(in_work(run), &n);
    return n > 100 && row[n - 1].loss < row[0].loss / 2;
}

/* It writes what it has read: words of C, by a model of bytes. In the long form. */
TEST_LABEL_OF(a_minute, SLOW);
TEST_LIMIT(a_minute, 900) {
    const char *command[MOST_COMMANDS], *text = "";
    EXPECT_INT(commands_of("A minute", command), 2);
    if (!test_long()) test_skip("it takes minutes: STATOR_LONG_TESTS=1 runs it");
    make_work();
    for (int i = 0; i < 2; i++) text = run_there(command[i]);
    EXPECT(has_learned("runs/a"));
    EXPECT(!strncmp(text, "static int ", 11) && strlen(text) > 60 && strchr(text, '('));
    static const char *const files[] = {"config.yaml", "plan.json", "metrics.jsonl",
                                        "loss.svg"};
    for (int i = 0; i < ARRAY_LEN(files); i++)
        EXPECT(file_exists(path_join(mem(), in_work("runs/a"), files[i])));
}

static void expect_losses(const char *a, const char *b, int steps) {
    runs_expect_near_losses(in_work(a), in_work(b), steps);
}

/* Many ranks on few cores take a while: in the long form. */
TEST_LABEL_OF(strategies_have_one_ranks_losses, RANKS);
TEST_LIMIT(strategies_have_one_ranks_losses, 900) {
    const char *command[MOST_COMMANDS];
    int n = commands_of("What is special", command);
    EXPECT(n >= 5);
    if (!mpi_available()) test_skip("there is no mpirun");
    if (!test_long()) test_skip("64 ranks: STATOR_LONG_TESTS=1 runs them");
    make_work();
    for (int i = 0; i < n; i++) run_there(command[i]);
    expect_losses("runs/one", "runs/many", 10);
    run_there("build/stator train configs/gpt2-tiny.yaml --output_dir runs/whole "
              "--train_steps 20 --lr_schedule.total_steps 20");
    expect_losses("runs/whole", "runs/half", 20);
}
