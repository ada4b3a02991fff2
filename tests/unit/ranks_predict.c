/* Tests of stator predict on several MPI ranks: greedy texts (tokens that were seen count
 * less, so that texts vary) are those of one rank under any strategy, from checkpoints of
 * any; replicas share the prompts out; what does not fit is refused; a rank that dies ends
 * all. */
#include "base/json.h"
#include "ranks.h"

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

enum { NEW_TOKENS = 110, MOST_TEXTS = 8 };

static const char model_yaml[] = "seed: 5\n"
                                 "model:\n"
                                 "  model_config:\n"
                                 "    type: %s\n"
                                 "    vocab_size: 256\n"
                                 "    seq_length: 128\n"
                                 "    hidden_size: 32\n"
                                 "    num_layers: 4\n"
                                 "    num_heads: 4\n"
                                 "%s"
                                 "train_dataset:\n"
                                 "  data_loader: {type: TextFile, dataset_dir: %s}\n"
                                 "runner_config: {max_steps: 60, batch_size: 4}\n"
                                 "lr_schedule: {type: constant, learning_rate: 1.e-2}\n"
                                 "callbacks:\n"
                                 "  - type: CheckpointMonitor\n"
                                 "    save_checkpoint_steps: 60\n";

/* A run of a small model of bytes; `train` are words on how it was trained. */
static const char *trained(const char *type, const char *keys, int ranks,
                           const char *train) {
    const char *config = in_temp(arena_printf(mem(), "%s.yaml", type));
    const char *run = in_temp(arena_printf(mem(), "%s-%d", type, ranks));
    write_text(config, arena_printf(mem(), model_yaml, type, keys, runs_text()));
    ranks_run(ranks, config, run, train);
    return run;
}

/* Words are split at blanks; the exit code. */
static int predict(int ranks, const char *words) {
    if (!mpi_available()) test_skip("there is no mpirun");
    driven_prepare = mpi_environment;
    const char *launch = ranks > 1 ? arena_printf(mem(), "launch -n %d ", ranks) : "";
    return stator_wait(stator_start(
        arena_printf(mem(), "%spredict %s --context.threads 1", launch, words)));
}

/* What is printed, without what goes to stderr. */
static const char *printed_by(int ranks, const char *words) {
    if (!mpi_available()) test_skip("there is no mpirun");
    mpi_environment();
    const char *launch = ranks > 1 ? arena_printf(mem(), "launch -n %d ", ranks) : "";
    const char *out = in_temp("stdout.txt");
    EXPECT_INT(
        system(arena_printf(mem(), "%s %spredict %s --context.threads 1 > %s 2> %s",
                            stator_program(), launch, words, out, in_temp("stderr.txt"))),
        0);
    return file_read(mem(), out, 1 << 20, NULL, EXIT_DATA);
}

/* The JSON objects that were printed, in their order; how many. */
static int texts(const char *all, const Json **list) {
    int n = 0;
    for (const char *s = all; *s; s += strcspn(s, "\n") + 1) {
        EXPECT(n < MOST_TEXTS);
        list[n++] = json_parse(mem(), "text", s, strcspn(s, "\n"), 1 << 20, EXIT_DATA);
    }
    return n;
}

/* The same token over and over would be the same under any strategy. */
static void expect_varied(const Json *text) {
    bool seen[256] = {false};
    int kinds = 0;
    for (const Json *x = json_need(text, "tokens")->first; x; x = x->next) {
        int token = (int)json_f64(x);
        kinds += !seen[token];
        seen[token] = true;
    }
    EXPECT(kinds > 5);
}

/* The same tokens, and log-probabilities within rounding. */
static void expect_texts(const char *all, const Json *const *want, int n,
                         const char *how) {
    const Json *got[MOST_TEXTS];
    EXPECT_INT(texts(all, got), n);
    for (int i = 0; i < n; i++) {
        EXPECT_STR(json_get_string(got[i], "prompt", ""),
                   json_get_string(want[i], "prompt", "?"));
        const Json *a = json_need(got[i], "tokens"), *b = json_need(want[i], "tokens");
        const Json *p = json_need(got[i], "logprobs")->first;
        const Json *q = json_need(want[i], "logprobs")->first;
        EXPECT(a->n == b->n && a->n == NEW_TOKENS);
        const Json *x = a->first, *y = b->first;
        for (int k = 0; k < a->n; k++, x = x->next, y = y->next) {
            if (json_f64(x) != json_f64(y))
                test_fail(__FILE__, __LINE__, "%s: token %d of text %d is %g, wanted %g",
                          how, k, i, json_f64(x), json_f64(y));
            EXPECT_NEAR(json_f64(p), json_f64(q), 1e-4);
            p = p->next, q = q->next;
        }
    }
}

#define CP "--parallel_config.context_parallel "

static const char *const strategies[] = {
    "--tp 2 --dp 2",
    "--tp 2 --pp 2 --parallel_config.vocab_emb_dp False",
    CP "2 --dp 2",
    "--pp 4",
    "--dp 2 --tp 2 " ZERO_LEVEL(3),
    "--dp 2 --pp 2",
    CP "2 --pp 2 " ZERO_LEVEL(3)};
enum { SOME = 3 };

/* Three prompts, of lengths of their own, so that replicas have one more and one less. What
 * each gives alone is what all must give as batches. */
static void same_texts(const char *run, const char *first, int some) {
    const Json *want[MOST_TEXTS];
    const char *words = arena_printf(
        mem(),
        "%s --greedy --repetition_penalty 2 --json --max_new_tokens %d one two-and-two i",
        run, NEW_TOKENS);
    int n = texts(printed_by(1, arena_printf(mem(), "%s --batch 1", words)), want);
    EXPECT_INT(n, 3);
    expect_texts(printed_by(1, words), want, n, "a batch of three");
    expect_texts(printed_by(1, arena_printf(mem(), "%s --batch 2", words)), want, n,
                 "batches of two");
    expect_varied(want[0]);
    for (int i = -1; i < some; i++) {
        const char *how = i < 0 ? first : strategies[i];
        test_at("%s", how);
        const char *all = printed_by(4, arena_printf(mem(), "%s %s", words, how));
        expect_texts(all, want, n, how);
        EXPECT_PART(file_read(mem(), in_temp("stderr.txt"), 1 << 20, NULL, EXIT_DATA),
                    "4 ranks: ");
    }
}

/* Without a word four ranks share the heads. */
TEST_LIMIT(gpt2_trained_on_one_rank, 120) {
    same_texts(trained("GPT2Config", "", 1, ""), "",
               test_long() ? ARRAY_LEN(strategies) : SOME);
}

TEST_LIMIT(gpt2_trained_with_zero, 120) {
    same_texts(trained("GPT2Config", "", 2, ZERO_LEVEL(1)), "",
               test_long() ? ARRAY_LEN(strategies) : 1);
}

#define GROUPED "    n_kv_heads: 2\n"

TEST_LIMIT(llama_trained_on_one_rank, 120) {
    same_texts(trained("LlamaConfig", GROUPED, 1, ""), strategies[0],
               test_long() ? ARRAY_LEN(strategies) : SOME);
}

TEST_LIMIT(llama_trained_with_zero, 120) {
    same_texts(trained("LlamaConfig", GROUPED, 2, ZERO_LEVEL(1)), strategies[4],
               test_long() ? ARRAY_LEN(strategies) : 0);
}

/* Sampled texts follow from the seed and the sample alone, and come in their order, each
 * in one piece. */
TEST_LIMIT(samples_and_text, 60) {
    const char *words = arena_printf(
        mem(), "%s --num_samples 3 --max_new_tokens 25 --prompt_tokens 1,2,3",
        runs_golden("gpt2_tiny"));
    const char *want = printed_by(1, words);
    EXPECT_PART(want, "== 3 of 3\n");
    EXPECT_STR(printed_by(2, arena_printf(mem(), "%s --dp 2", words)), want);
    EXPECT_STR(printed_by(2, arena_printf(mem(), "%s --pp 2", words)), want);
}

/* Texts of other lengths slide at other times, where a replica may have nothing to do. */
TEST_LIMIT(sliding_texts, 120) {
    const char *words = arena_printf(
        mem(),
        "%s --greedy --repetition_penalty 2 --json --slide --max_new_tokens %d "
        "one-and-two-and-three-and-four-and-five-and-six-and-seven-and-eight "
        "nine-and-ten-and-eleven-and-twelve",
        trained("GPT2Config", "", 1, ""), NEW_TOKENS);
    const Json *want[MOST_TEXTS];
    int n = texts(printed_by(1, arena_printf(mem(), "%s --batch 1", words)), want);
    EXPECT_INT(n, 2);
    static const char *const how[] = {"--dp 2", "--dp 2 " ZERO_LEVEL(3), "--tp 2",
                                      "--pp 2", CP "2"};
    for (int i = 0; i < ARRAY_LEN(how); i++) {
        test_at("%s", how[i]);
        expect_texts(printed_by(2, arena_printf(mem(), "%s %s", words, how[i])), want, n,
                     how[i]);
    }
}

static void refused(int ranks, const char *words, const char *part) {
    int code = predict(ranks, words);
    if (code != EXIT_CONFIG)
        test_fail(__FILE__, __LINE__, "exit code %d: %s\n%s", code, words, said());
    SAID_EXPECT(part);
}

TEST_LIMIT(what_does_not_fit, 120) {
    const char *llama =
        arena_printf(mem(), "%s --prompt_tokens 1,2 ", runs_golden("llama_tiny"));
    refused(4, llama,
            "such as --tp 2 --dp 2 (replicas, for several prompts) or --tp 2 --pp 2");
    refused(4, arena_printf(mem(), "%s--tp 4", llama),
            "model_parallel cuts the heads of keys and values: 2 is not a multiple of 4");
    refused(
        4, arena_printf(mem(), "%s--parallel_config.context_parallel 4", llama),
        "all-to-all exchanges parts of the sequence against heads of keys and values: "
        "2 is not a multiple of 4");
    refused(2, arena_printf(mem(), "%s--dp 2 " ZERO_LEVEL(1), llama),
            "optimizer_level level3, which splits the weights");
    refused(2, arena_printf(mem(), "%s--tp 2 --dp 2", llama),
            "stator launch -n 4 predict");
    refused(1, arena_printf(mem(), "%s--tp 2", llama), "stator launch -n 2 predict");
    refused(2, arena_printf(mem(), "%s--parallel_config.sequence_parallel True", llama),
            "changes nothing here");
    refused(2, arena_printf(mem(), "%s --prompt_tokens 1,999", runs_golden("llama_tiny")),
            "outside of the model's vocabulary");
}

/* A text so long that it is killed on the way. */
TEST_LIMIT(a_rank_that_dies_ends_all, 120) {
    const char *run = trained("GPT2Config", "", 1, "");
    driven_prepare = mpi_environment;
    pid_t launch = stator_start(arena_printf(
        mem(),
        "launch -n 2 predict %s --context.threads 1 --tp 2 --num_samples 1000000 "
        "x",
        run));
    pid_t pid[2];
    for (int i = 0; i < 600 && !strstr(said(), "== 3 of "); i++) usleep(100000);
    SAID_EXPECT("== 3 of ");
    EXPECT(ranks_find(launch, pid, 2) == 2 && kill(pid[1], SIGKILL) == 0);
    EXPECT_INT(stator_wait(launch), 128 + SIGKILL);
    SAID_EXPECT("rank 1 of 2 ");
    EXPECT_INT(ranks_threads(pid[0]), 0);
}
