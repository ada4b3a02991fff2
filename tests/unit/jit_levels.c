/* Tests of context.jit_level: code that is made quickly has the same results, to the bit. */
#include "runs.h"

TEST_LABEL(SLOW);

static void train_by(const char *config, const char *run, const char *more) {
    RUN_EXPECT(0, runs_words(config, run, more));
}

/* The second level finds nothing of the first one's in the cache, the third run all of it. */
static void expect_same_bits(const char *more) {
    const char *config = runs_small_config(4, 4);
    static const char *const level[] = {"O2", "O0", "O0"};
    const char *run[ARRAY_LEN(level)];
    setenv("STATOR_CACHE", in_temp("cache"), 1);
    for (int i = 0; i < ARRAY_LEN(level); i++) {
        run[i] = in_temp(arena_printf(mem(), "run%d", i));
        train_by(config, run[i],
                 arena_printf(mem(), "--context.jit_level %s %s", level[i], more));
        EXPECT((strstr(said(), "(from the cache)") != NULL) == (i == 2));
        runs_expect_same_losses(run[0], run[i], 4);
        runs_expect_same_tensors(run[0], run[i], 4);
    }
    remove_all(in_temp("cache"));
    for (int i = 0; i < ARRAY_LEN(level); i++) remove_all(run[i]);
}

TEST_LABEL_OF(both_have_the_same_bits, RELEASED);
TEST_LIMIT(both_have_the_same_bits, 180) {
    static const char *const cpu[] = {"native", "x86-64-v3", "x86-64-v2"};
    for (int i = 0; i < ARRAY_LEN(cpu); i++)
        expect_same_bits(arena_printf(
            mem(),
            "--context.cpu %s --model.model_config.attention_probs_dropout_prob 0.1",
            cpu[i]));
}

TEST_LABEL_OF(both_have_the_same_bits_of_narrow_types, RELEASED);
TEST_LIMIT(both_have_the_same_bits_of_narrow_types, 180) {
    expect_same_bits("--model.model_config.compute_dtype bfloat16");
    expect_same_bits("--model.model_config.compute_dtype float16 "
                     "--runner_wrapper.loss_scale 1024");
}

/* The key goes before the variable. */
TEST_LIMIT(a_variable_is_the_default, 120) {
    const char *config = runs_small_config(4, 0), *run = in_temp("run");
    setenv("STATOR_CACHE", in_temp("cache"), 1);
    setenv("STATOR_JIT_LEVEL", "O0", 1);
    train_by(config, run, "--resume never");
    train_by(config, run, "--resume never --context.jit_level O0");
    SAID_EXPECT("(from the cache)");
    train_by(config, run, "--resume never --context.jit_level O2");
    EXPECT(!strstr(said(), "(from the cache)"));
    setenv("STATOR_JIT_LEVEL", "fast", 1);
    RUN_EXPECT(2, arena_printf(mem(), "train %s --output_dir %s", config, in_temp("no")));
    SAID_EXPECT("STATOR_JIT_LEVEL=fast: write O0 or O2");
}
