/* pass_options.c - options of passes by name (passes/options.c), and parts of their lists. */
#include "../test.h"
#include "passes/passes.h"

TEST(each_kind) {
    PassOptions o = pass_options_default();
    pass_option_set(&o, "micro_batches=3");
    pass_option_set(&o, "zero=2");
    pass_option_set(&o, "decay_weights=1");
    pass_option_set(&o, "beta2=0.5");
    pass_option_set(&o, "optimizer=sgd");
    pass_option_set(&o, "zero_axes=dp.cp");
    EXPECT_INT(o.narrow, DT_F32);
    pass_option_set(&o, "narrow=f16");
    EXPECT_INT(o.narrow, DT_F16);
    EXPECT_INT(o.micro_batches, 3);
    EXPECT_INT(o.zero_level, 2);
    EXPECT(o.decay_weights && !o.gathers_at_end);
    EXPECT(o.beta2 == 0.5 && o.beta1 == pass_options_default().beta1);
    EXPECT_STR(o.optimizer, "sgd");
    EXPECT_STR(o.zero_axes, "dp.cp");
}

TEST(what_is_refused) {
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"overlp=1", "unknown option 'overlp' of a pass; did you mean overlap"},
        {"overlap", "KEY=VALUE, got 'overlap'"},
        {"overlap=", "a whole number from 0 to 2, got ''"},
        {"overlap=3", "a whole number from 0 to 2, got '3'"},
        {"zero=1.5", "a whole number from 0 to 3, got '1.5'"},
        {"zero=nan", "a whole number from 0 to 3, got 'nan'"},
        {"micro_batches=-1", "a whole number from 0 to 1e+15, got '-1'"},
        {"micro_batches=2e15", "got '2e15'"},
        {"beta1=0.5x", "a number from 0 to 1, got '0.5x'"},
        {"clip_norm=inf", "got 'inf'"},
        {"narrow=1", "narrow wants f32, bf16 or f16, got '1'"},
        {"narrow=i32", "narrow wants f32, bf16 or f16, got 'i32'"},
        {"=1", "unknown option ''"},
        {"micro_batches_and_much_more_than_any_name_has=1", "unknown option"},
    };
    PassOptions o = pass_options_default();
    for (int i = 0; i < ARRAY_LEN(bad); i++)
        EXPECT_FAIL(pass_option_set(&o, bad[i].text), EXIT_CONFIG, bad[i].says);
    EXPECT_INT(o.micro_batches, 1);
}

TEST(parts_of_lists) {
    Arena *mem = arena_new();
    const char *list = "simplify,seed,simplify,shard,reshard";
    EXPECT_STR(passes_part(mem, list, NULL, NULL, ""), list);
    EXPECT_STR(passes_part(mem, list, NULL, "shard", ""), "simplify,seed,simplify");
    EXPECT_STR(passes_part(mem, list, "seed", "simplify", ""), "seed");
    EXPECT_STR(passes_part(mem, list, "shard", NULL, ""), "shard,reshard");
    EXPECT_STR(passes_part(mem, list, NULL, "reshard", "simplify,seed"), "shard");
    EXPECT_STR(passes_part(mem, list, "simplify", "seed", "simplify"), "");
}
