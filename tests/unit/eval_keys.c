/* eval_keys.c - stator eval of a run and of its configuration: keys that say of the model what
 * its weights do not keep as it was said; how many samples; what to do where memory is short. */
#include "evaluated.h"
#include <math.h>

static double loss_of(const char *what, const char *more) {
    return evaluated(arena_printf(mem(), "%s --data %s %s", what,
                                  evaluated_text("part.txt", 1003), more))
        .loss;
}

static const char *with_keys(const char *keys) {
    return arena_printf(mem(), "--model.model_config.type LlamaConfig %s", keys);
}

/* NTK is another base of plain rotary positions. */
TEST_LIMIT(ntk_is_its_base, 120) {
    const char *const bases[] = {"", "--model.model_config.rotary_base 700.1 "};
    const char *factor = "--model.model_config.extend_method NTK "
                         "--model.model_config.scaling_factor.factor ";
    for (int i = 0; i < ARRAY_LEN(bases); i++) {
        const char *keys = with_keys(arena_printf(mem(), "%s3.3 %s", factor, bases[i]));
        const char *run = evaluated_run(arena_printf(mem(), "--resume never %s", keys));
        double loss = loss_of(run, "");
        const char *config = arena_printf(mem(), "%s --init_from %s %s",
                                          runs_small_config(12, 6), run, keys);
        EXPECT(loss_of(config, "") == loss);
        const char *next = in_temp("next");
        RUN_EXPECT(0, arena_printf(mem(), "train %s --output_dir %s --resume never",
                                   config, next));
        EXPECT(isfinite(loss_of(next, "")));
        RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(), "eval %s %s5", run, factor));
        SAID_EXPECT(i ? "rotary_base is 700.1, but the weights of "
                      : "extend_method is NTK, but the weights of ");
    }
    SAID_EXPECT("have 462.066");
}

/* num_layers of the run counts them. */
TEST_LIMIT(noop_layers_are_of_the_model, 120) {
    const char *run = evaluated_run("--model.model_config.num_layers 4 "
                                    "--parallel_config.noop_layers 1,3");
    const char *checkpoints = path_join(mem(), run, "ckpt");
    double loss = loss_of(run, "");
    EXPECT(loss == loss_of(checkpoints, "--model.model_config.seq_length 16 "
                                        "--runner_config.batch_size 2"));
}

/* The sums are those of a text that ends there. */
TEST_LIMIT(first_samples_alone, 120) {
    const char *run = evaluated_run("");
    const char *data =
        arena_printf(mem(), "%s --data %s", run, evaluated_text("all.txt", 1003));
    Evaluated all = evaluated(data);
    Evaluated some = evaluated(arena_printf(mem(), "%s --samples 7", data));
    Evaluated part = evaluated(
        arena_printf(mem(), "%s --data %s", run, evaluated_text("part.txt", 7 * 16 + 1)));
    EXPECT(some.samples == 7 && some.tokens == 7 * 16 && part.tokens == some.tokens);
    EXPECT_NEAR(some.loss, part.loss, 1e-6 * part.loss);
    Evaluated more = evaluated(arena_printf(mem(), "%s --samples 9999", data));
    EXPECT(more.samples == all.samples && more.loss == all.loss);
    RUN_EXPECT(0, arena_printf(mem(), "eval %s --samples 7", data));
    SAID_EXPECT(arena_printf(mem(), "(all), the first 7 of %lld samples, 112 tokens",
                             (long long)all.samples));
    RUN_EXPECT(0, arena_printf(mem(), "eval %s", data));
    SAID_EXPECT(arena_printf(mem(), "(all), %lld samples", (long long)all.samples));
    RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(), "eval %s --eval_iters 3", data));
    SAID_EXPECT("runner_config.eval_iters is of the validation in training; write "
                "--samples N");
    RUN_EXPECT(EXIT_CONFIG,
               arena_printf(mem(), "eval %s --endings x.jsonl --samples 3", run));
    SAID_EXPECT("leave --samples out");
}

TEST_LIMIT(endings_are_samples, 120) {
    const char *run = evaluated_run(""), *file = in_temp("endings.jsonl");
    write_text(file,
               "{\"ctx\": \"one and\", \"endings\": [\"one\", \"two\"], \"label\": 0}\n"
               "{\"ctx\": \"two\", \"endings\": [\"a\", \"b\", \"c\"], \"label\": 1}\n");
    RUN_EXPECT(0, arena_printf(mem(), "eval %s --endings %s", run, file));
    SAID_EXPECT("(all), 5 samples, ");
    SAID_EXPECT("examples       2\n");
}

/* Where there is one rank nothing is left to be searched for. */
TEST_LIMIT(mode_2_on_one_rank, 120) {
    const char *run = evaluated_run("");
    const char *config =
        arena_printf(mem(), "%s --init_from %s --parallel.parallel_mode 2",
                     runs_small_config(12, 6), run);
    EXPECT(loss_of(config, "") == loss_of(run, ""));
    RUN_EXPECT(EXIT_CONFIG,
               arena_printf(mem(), "eval %s --parallel_config.data_parallel 2", config));
    SAID_EXPECT("parallel_mode 2: train, plan and simulate search for a strategy, this "
                "command does not");
}

TEST_LIMIT(memory_that_is_short_in_an_evaluation, 120) {
    const char *run = evaluated_run("");
    RUN_EXPECT(EXIT_MEMORY, arena_printf(mem(),
                                         "eval %s --data %s "
                                         "--context.max_device_memory 1KB",
                                         run, evaluated_text("part.txt", 1003)));
    SAID_EXPECT("hint: a smaller batch (--runner_config.batch_size) or sequence");
    EXPECT(!strstr(said(), "micro_batch_num"));
}
