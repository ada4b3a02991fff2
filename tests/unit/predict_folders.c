/* predict_folders.c - where predict takes a model from: run folders, checkpoints and their
 * damage. */
#include "command.h"

static void copy_file(const char *from, const char *to) {
    size_t n;
    char *bytes = file_read(arena_new(), from, 1 << 20, &n, EXIT_DATA);
    EXPECT_INT(file_write_atomic(to, bytes, n), 0);
}

static void copy_checkpoint(const char *from, const char *to) {
    const char *files[] = {"manifest.json", "model.safetensors", "optimizer.safetensors"};
    EXPECT_INT(dir_make(to), 0);
    for (int i = 0; i < ARRAY_LEN(files); i++)
        copy_file(path_join(arena_new(), from, files[i]),
                  path_join(arena_new(), to, files[i]));
}

TEST(run_folder_with_its_configuration) {
    char *dir = temp("run"), *config = temp("run/config.yaml"), *want;
    PREDICT(golden("gpt2_tiny"), "--greedy", "--prompt_tokens", "4,5");
    worked();
    want = arena_strdup(arena_new(), printed);
    EXPECT_INT(dir_make(dir), 0);
    write_text(config, "model: {model_config: {do_sample: False}}\n");
    PREDICT(dir, "--prompt_tokens", "4,5");
    refused(EXIT_CHECKPOINT, "has no checkpoint yet");
    CONVERT("--to", "stator", golden("gpt2_tiny"), temp("run/ckpt"));
    worked();
    EXPECT_STR(PREDICT(dir, "--prompt_tokens", "4,5"), want);
    EXPECT_STR(PREDICT(temp("run/ckpt"), "--greedy", "--prompt_tokens", "4,5"), want);
    EXPECT_STR(
        PREDICT(temp("run/ckpt/step_00000000"), "--greedy", "--prompt_tokens", "4,5"),
        want);
    EXPECT_STR(PREDICT(temp("run/ckpt"), "--prompt_tokens", "4,5"), want);
    EXPECT_STR(PREDICT(temp("run/ckpt/step_00000000"), "--prompt_tokens", "4,5"), want);
    EXPECT(!rename(temp("run/ckpt"), temp("run/best")));
    EXPECT_STR(PREDICT(temp("run/best"), "--prompt_tokens", "4,5"), want);
    /* A configuration above that is not theirs is not read. */
    EXPECT(!rename(temp("run/best"), temp("run/mine")));
    write_text(config, "nonsense: {\n");
    PREDICT(temp("run/mine"), "--prompt_tokens", "4,5");
    worked();
    EXPECT(!rename(temp("run/mine"), temp("run/ckpt")));
    write_text(config, "model: {model_config: {do_sample: False}}\n");
    write_text(temp("c.yaml"), arena_printf(arena_new(), "output_dir: %s\n", dir));
    EXPECT_STR(PREDICT(temp("c.yaml"), "--greedy", "--prompt_tokens", "4,5"), want);
    PREDICT(temp("c.yaml"), "--output_dir", temp("elsewhere"), "--prompt_tokens", "4,5");
    refused(EXIT_CHECKPOINT, "no weights yet");
    PREDICT(temp("c.yaml"), "--load_checkpoint", temp("elsewhere"), "--prompt_tokens",
            "4,5");
    refused(EXIT_CHECKPOINT, "elsewhere is no checkpoint");
}

/* A folder that was downloaded does not say where to write nor what to use up. */
TEST(of_a_run_folder_model_and_choices_alone) {
    Arena *mem = arena_new();
    char *dir = temp("run"), *config = temp("run/config.yaml"), *ir = temp("ir");
    EXPECT_INT(dir_make(dir), 0);
    CONVERT("--to", "stator", golden("gpt2_tiny"), temp("run/ckpt"));
    worked();
    write_text(config, arena_printf(mem,
                                    "dump_ir: %s\noutput_dir: %s/out\n"
                                    "context: {max_device_memory: 100KB}\n"
                                    "model: {model_config: {do_sample: False}}\n",
                                    ir, dir));
    char *want = arena_strdup(
        mem, PREDICT(golden("gpt2_tiny"), "--greedy", "--prompt_tokens", "4,5"));
    EXPECT_STR(PREDICT(dir, "--prompt_tokens", "4,5"), want);
    worked();
    EXPECT(!file_exists(ir) && !file_exists(temp("run/out")));
    PREDICT(dir, "--prompt_tokens", "4,5", "--dump_ir", ir);
    worked();
    EXPECT(file_exists(ir)); /* what the user says counts */
    PREDICT(config, "--prompt_tokens", "4,5", "--output_dir", dir);
    refused(EXIT_MEMORY, "max_device_memory");
}

TEST(damaged_checkpoints) {
    char *good = temp("ck/step_00000000"), *bad = temp("ck/step_00000007"), *want;
    CONVERT("--to", "stator", golden("gpt2_tiny"), temp("ck"));
    worked();
    PREDICT(temp("ck"), "--greedy", "--prompt_tokens", "4,5");
    worked();
    want = arena_strdup(arena_new(), printed);
    copy_checkpoint(good, bad); /* its manifest is of step 0 */
    EXPECT_STR(PREDICT(temp("ck"), "--greedy", "--prompt_tokens", "4,5"), want);
    EXPECT_PART(message, "step_00000007 is damaged");
    EXPECT(strstr(message, "model ") && strstr(message, "ck/step_00000000:"));
    EXPECT(truncate(path_join(arena_new(), good, "model.safetensors"), 1000) == 0);
    PREDICT(temp("ck"), "--greedy", "--prompt_tokens", "4,5");
    refused(EXIT_CHECKPOINT, "none of the checkpoints");
    PREDICT(good, "--greedy", "--prompt_tokens", "4,5");
    refused(EXIT_CHECKPOINT, "model.safetensors has 1000 bytes");
    CONVERT("--to", "hf", good, temp("never"));
    refused(EXIT_CHECKPOINT, "damaged");
    EXPECT(!file_exists(temp("never")));
}
