/* Texts that training makes as it goes (runner_config.sample_every): those of predict from the
 * checkpoint of the same step, under any strategy, and training has the bits that it has
 * without them. */
#include "base/json.h"
#include "ranks.h"

TEST_LABEL(RANKS);

enum { STEPS = 20, EVERY = 10, TOKENS = 24 };

#define SAMPLED                                                                          \
    "--sample_every 10 --sample_tokens 24 --sample_prompts [one,two_and_two_i] "
#define SAMPLES                                                                          \
    SAMPLED                                                                              \
    "--model.model_config.do_sample False --model.model_config.repetition_penalty 2 "

static const char *config(void) {
    const char *path = in_temp("samples.yaml");
    write_text(path, arena_printf(mem(),
                                  "seed: 5\n"
                                  "model:\n"
                                  "  model_config: {type: GPT2Config, vocab_size: 256, "
                                  "seq_length: 64, hidden_size: 32, num_layers: 4, "
                                  "num_heads: 4}\n"
                                  "train_dataset:\n"
                                  "  data_loader: {type: TextFile, dataset_dir: %s}\n"
                                  "runner_config: {max_steps: %d, batch_size: 4}\n"
                                  "lr_schedule: {type: constant, learning_rate: 1.e-2}\n"
                                  "context: {threads: 1}\n"
                                  "callbacks:\n"
                                  "  - type: CheckpointMonitor\n"
                                  "    save_checkpoint_steps: %d\n",
                                  runs_text(), STEPS, EVERY));
    return path;
}

/* The lines of a file as JSON; how many. */
static int lines_of(const char *path, const Json **list, int most) {
    int n = 0;
    const char *all = file_read(mem(), path, 1 << 20, NULL, EXIT_DATA);
    for (const char *s = all; *s; s += strcspn(s, "\n") + 1) {
        EXPECT(n < most);
        list[n++] = json_parse(mem(), path, s, strcspn(s, "\n"), 1 << 20, EXIT_DATA);
    }
    return n;
}

static void expect_same_texts(const Json *const *got, const Json *const *want, int n,
                              const char *how) {
    for (int i = 0; i < n; i++) {
        EXPECT_STR(json_get_string(got[i], "prompt", ""),
                   json_get_string(want[i], "prompt", "?"));
        const Json *a = json_need(got[i], "tokens")->first,
                   *b = json_need(want[i], "tokens")->first;
        EXPECT_INT(json_need(got[i], "tokens")->n, TOKENS);
        for (int k = 0; a && b; k++, a = a->next, b = b->next)
            if (json_f64(a) != json_f64(b))
                test_fail(__FILE__, __LINE__, "%s: token %d of text %d is %g, wanted %g",
                          how, k, i, json_f64(a), json_f64(b));
        EXPECT(!a && !b);
    }
}

/* The texts of every step in the run folder are those of predict from its checkpoint. */
static void expect_texts_of_predict(const char *run, const char *how) {
    const Json *got[8], *want[8];
    int n = lines_of(path_join(mem(), run, "samples.jsonl"), got, 8);
    EXPECT_INT(n, 2 * STEPS / EVERY);
    for (int s = 0; s < STEPS / EVERY; s++) {
        int step = (s + 1) * EVERY;
        const char *out = in_temp("texts.jsonl");
        EXPECT_INT(
            system(arena_printf(
                mem(),
                "%s predict %s/ckpt/step_%08d one two_and_two_i --greedy --json "
                "--repetition_penalty 2 --max_new_tokens %d --threads 1 > %s 2> %s",
                stator_program(), run, step, TOKENS, out, in_temp("err.txt"))),
            0);
        EXPECT_INT(lines_of(out, want, 8), 2);
        EXPECT_INT(json_i64(json_need(got[2 * s], "step"), 0, 1000), step);
        expect_same_texts(got + 2 * s, want, 2, how);
    }
}

TEST_LIMIT(training_does_not_notice, 120) {
    const char *with = in_temp("with"), *without = in_temp("without");
    ranks_run(1, config(), with, SAMPLES);
    ranks_run(1, config(), without, "");
    runs_expect_same_losses(with, without, STEPS);
    runs_expect_same_tensors(with, without, STEPS);
    expect_texts_of_predict(with, "one rank");
}

/* Ends that come too early, bytes that are no character (one by one of byte fallback): tokens
 * and text are those of predict, which goes by the configuration in the run folder. */
TEST_LIMIT(texts_are_those_of_predict, 120) {
    Text wide = text_new(mem());
    for (int i = 0; i < 900; i++) text_add(&wide, "\xE6\xA8\xA1\xF0\x9F\x8D\x9E");
    write_text(in_temp("wide.txt"), wide.s);
    const char *data =
        arena_printf(mem(), "--model.model_config.temperature 2 --dataset_dir %s ",
                     in_temp("wide.txt"));
    const char *const keys[] = {
        "--model.model_config.eos_token 32 --model.model_config.min_new_tokens 9 ",
        "--model.model_config.eos_token 32 --model.model_config.min_length 24 ", data,
        arena_printf(mem(), "%s --model.model_config.vocab_size 408 --tokenizer_file %s",
                     data, runs_golden("tokenizers/llama2.json"))};
    int least[] = {9, 21, 0, 0}; /* tokens of the first text */
    for (int i = 0; i < ARRAY_LEN(keys); i++) {
        const char *run = in_temp(arena_printf(mem(), "run%d", i));
        const char *out = in_temp("texts.jsonl");
        const Json *got[8], *want[8];
        test_at("%s", keys[i]);
        ranks_run(1, config(), run, arena_printf(mem(), SAMPLED "%s", keys[i]));
        EXPECT_INT(lines_of(path_join(mem(), run, "samples.jsonl"), got, 8), 4);
        EXPECT_INT(
            system(arena_printf(mem(),
                                "%s predict %s one two_and_two_i --json "
                                "--max_new_tokens %d --threads 1 > %s 2> %s",
                                stator_program(), run, TOKENS, out, in_temp("err.txt"))),
            0);
        EXPECT_INT(lines_of(out, want, 8), 2);
        for (int k = 0; k < 2; k++)
            EXPECT_STR(json_string(json_need(got[2 + k], "text")),
                       json_string(json_need(want[k], "text")));
        EXPECT(json_need(got[2], "tokens")->n >= least[i]);
        bool whole = !strstr(json_string(json_need(got[2], "text")), "\xEF\xBF\xBD");
        EXPECT(whole == (i < 2));
    }
}

/* A run that was killed and goes on has no text twice; what else is no line is kept aside. */
TEST_LIMIT(texts_after_a_resume, 120) {
    const char *run = in_temp("run"), *file = path_join(mem(), run, "samples.jsonl");
    ranks_run(1, config(), run, SAMPLES "--runner_config.max_steps 10");
    const Json *line[8];
    EXPECT_INT(lines_of(file, line, 8), 2);
    FILE *f = fopen(file, "a");
    EXPECT(f && fputs("{\"step\":15,\"prompt\":\"one\"}\n{\"step\":1", f) >= 0);
    EXPECT(!fclose(f));
    ranks_run(1, config(), run, SAMPLES);
    expect_texts_of_predict(run, "a resume");
    const char *aside = arena_printf(mem(), "%s.damaged-1", file);
    EXPECT(!file_exists(aside));
    EXPECT_INT(system(arena_printf(mem(), "printf 'no line\\n\\0\\n' >>%s", file)), 0);
    ranks_run(1, config(), run, SAMPLES);
    expect_texts_of_predict(run, "a damaged file");
    EXPECT(file_exists(aside));
}

static const char *const strategies[] = {
    "--parallel_config.pipeline_stage 2 --parallel_config.pp_interleave_num 2 "
    "--parallel_config.micro_batch_num 2 --parallel_config.model_parallel 2 ",
    "--parallel_config.model_parallel 2 --parallel_config.data_parallel 2 ",
    "--parallel_config.pipeline_stage 2 --parallel_config.model_parallel 2 "
    "--parallel_config.vocab_emb_dp False ",
    "--parallel_config.data_parallel 2 --parallel_config.pipeline_stage 2 " ZERO_LEVEL(1),
    "--parallel_config.data_parallel 2 --parallel_config.context_parallel 2 "
    "--recompute_config.select_comm_recompute False " ZERO_LEVEL(3),
    "--parallel_config.model_parallel 2 --parallel_config.data_parallel 2 "
    "--parallel_config.sequence_parallel True " ZERO_LEVEL(2),
    "--parallel_config.pipeline_stage 4 ",
    "--parallel_config.context_parallel 4 ",
    "--parallel_config.context_parallel 2 --parallel_config.data_parallel 2 "
    "--parallel_config.context_parallel_algo megatron_cp_algo " ZERO_LEVEL(3),
    "--parallel_config.context_parallel 4 --parallel_config.ulysses_degree_in_cp 2 "
    "--parallel_config.context_parallel_algo hybrid_cp_algo " ZERO_LEVEL(1)};

TEST_LABEL_OF(texts_under_strategies, RELEASED);
TEST_LIMIT(texts_under_strategies, 240) {
    for (int i = 0; i < ARRAY_LEN(strategies); i++) {
        if (!test_long() && i % 4)
            continue; /* stages and parts of matrices, ZeRO, a ring */
        const char *run = in_temp(arena_printf(mem(), "run%d", i));
        test_at("%s", strategies[i]);
        ranks_run(4, config(), run, arena_printf(mem(), SAMPLES "%s", strategies[i]));
        expect_texts_of_predict(run, strategies[i]);
    }
}

TEST_LIMIT(what_has_no_texts, 120) {
    ranks_end(ranks_start(1, config(), in_temp("long"),
                          "--sample_every 10 --sample_tokens 24 --sample_prompts "
                          "[one_and_one_and_one_and_one_and_one_and_one_and_one_and_one_"
                          "and_one]"),
              EXIT_CONFIG, "a prompt that is too long");
    SAID_EXPECT("longer than the model's context");
}
