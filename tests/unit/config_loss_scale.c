/* config_loss_scale.c - keys of loss scaling, by the names of several programs. */
#include "configs.h"
#include "frontend/config/config_state.h"

static Config *parse_with_notes(const char *text) {
    Config *cfg = parse(text);
    config_note_idle(cfg);
    return cfg;
}

/* A number, or a section; and what has no effect says so. */
TEST(loss_scaling) {
#define HALF "model: {model_config: {compute_dtype: float16}}\n"
    Config *cfg = parse_with_notes(HALF);
    EXPECT(cfg->runner_wrapper_loss_scale == 0 && cfg->runner_wrapper_hysteresis == 2 &&
           cfg->runner_wrapper_min_loss_scale == 1 && cfg->n_notes == 0 &&
           cfg->runner_wrapper_scale_sense_type == SCALE_DYNAMIC &&
           cfg->runner_wrapper_scale_sense_loss_scale_value == 4294967296 &&
           cfg->runner_wrapper_scale_sense_scale_factor == 2 &&
           cfg->runner_wrapper_scale_sense_scale_window == 1000);
    cfg = parse_with_notes(HALF "runner_wrapper: {scale_sense: 1024}\n");
    EXPECT(cfg->runner_wrapper_loss_scale == 1024 && cfg->n_notes == 0);
    expect_round_trip(cfg);
    cfg =
        parse_with_notes(HALF "runner_wrapper:\n  scale_sense:\n    type: "
                              "DynamicLossScaleUpdateCell\n    loss_scale_value: 65536\n"
                              "    scale_factor: 4\n    scale_window: 7\n");
    EXPECT(cfg->runner_wrapper_loss_scale == 0 && cfg->n_notes == 0 &&
           cfg->runner_wrapper_hysteresis == 1 &&
           cfg->runner_wrapper_scale_sense_loss_scale_value == 65536 &&
           cfg->runner_wrapper_scale_sense_scale_factor == 4 &&
           cfg->runner_wrapper_scale_sense_scale_window == 7);
    expect_round_trip(cfg);
    cfg = parse_with_notes(
        HALF "initial_loss_scale: 2048\nloss_scale_window: 5\nhysteresis: 3\n"
             "min_loss_scale: 4\nloss_scale_factor: 8\n");
    EXPECT(cfg->runner_wrapper_scale_sense_loss_scale_value == 2048 &&
           cfg->runner_wrapper_scale_sense_scale_window == 5 &&
           cfg->runner_wrapper_hysteresis == 3 &&
           cfg->runner_wrapper_min_loss_scale == 4 &&
           cfg->runner_wrapper_scale_sense_scale_factor == 8 && cfg->n_notes == 0);
    expect_round_trip(cfg);
    cfg = parse_with_notes(HALF "loss_scale: 8\nhysteresis: 2\ninitial_loss_scale: 4\n");
    EXPECT(has_note(cfg, ": hysteresis has no effect: the loss scale is fixed"));
    EXPECT(has_note(cfg, ": initial_loss_scale has no effect: "
                         "runner_wrapper.loss_scale fixes the loss scale"));
    cfg = parse_with_notes(
        HALF "runner_wrapper: {scale_sense: {type: FixedLossScaleUpdateCell, "
             "loss_scale_value: 16, scale_window: 9}}\n");
    EXPECT_INT(cfg->n_notes, 1);
    EXPECT(
        has_note(cfg, "scale_sense.scale_window has no effect: the loss scale is fixed"));
    static const char *const other[] = {
        "runner_wrapper: {scale_sense: 1024}\n",
        "model: {model_config: {compute_dtype: bfloat16}}\n"
        "runner_wrapper: {scale_sense: 1024}\n"};
    for (int i = 0; i < ARRAY_LEN(other); i++)
        EXPECT(has_note(parse_with_notes(other[i]),
                        "runner_wrapper.scale_sense has no effect: "
                        "compute_dtype is not float16"));
    EXPECT_FAIL(parse(HALF "min_loss_scale: 8\ninitial_loss_scale: 4\n"), EXIT_CONFIG,
                "loss_scale_value 4 is below min_loss_scale 8");
    static const char small[] = "runner_wrapper: {scale_sense: {type: %s, "
                                "loss_scale_value: 0.5}}\n"
                                "model: {model_config: {compute_dtype: %s}}\n";
    static const char *const taken[][2] = {{"FixedLossScaleUpdateCell", "float16"},
                                           {"FixedLossScaleUpdateCell", "bfloat16"},
                                           {"DynamicLossScaleUpdateCell", "float32"},
                                           {"DynamicLossScaleUpdateCell", "bfloat16"}};
    for (int i = 0; i < ARRAY_LEN(taken); i++)
        EXPECT(parse(arena_printf(arena_new(), small, taken[i][0], taken[i][1]))
                   ->runner_wrapper_scale_sense_loss_scale_value == 0.5);
    EXPECT_FAIL(parse(arena_printf(arena_new(), small, taken[2][0], "float16")),
                EXIT_CONFIG, "loss_scale_value 0.5 is below min_loss_scale 1");
    EXPECT_FAIL(parse("runner_wrapper: {scale_sense: [1]}\n"), EXIT_CONFIG, "t.yaml:1:");
    EXPECT_FAIL(parse("loss_scale: 1\nrunner_wrapper: {scale_sense: 2}\n"), EXIT_CONFIG,
                "keep one of the two");
    EXPECT_FAIL(parse("loss_scale: -1\n"), EXIT_CONFIG, "0 to 1e18");
    EXPECT_FAIL(parse("hysteresis: 0\n"), EXIT_CONFIG, "1 to 1000000000");
#undef HALF
}
