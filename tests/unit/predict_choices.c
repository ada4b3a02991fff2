/* predict_choices.c - how tokens are chosen: what generation_config.json says beside keys and
 * flags. */
#include "command.h"

#define FEW "--prompt_tokens", "1,2,3,4,5", "--max_new_tokens", "6", "--num_samples", "4"
#define QWEN                                                                             \
    "{\"do_sample\": true, \"temperature\": 1.7, \"top_k\": 20, \"top_p\": 0.9, "        \
    "\"repetition_penalty\": 1.5, \"eos_token_id\": null}"

/* The texts of the last command. */
static char *said(void) {
    worked();
    return arena_strdup(arena_new(), printed);
}

static char *with(const char *generation) {
    PREDICT(llama_folder("hf", "null", generation), FEW);
    return said();
}

static char *by_flags(void) {
    PREDICT(golden("llama_tiny"), FEW, "--temperature=1.7", "--top_k=20", "--top_p=0.9",
            "--repetition_penalty=1.5");
    return said();
}

TEST(generation_config_chooses_tokens) {
    char *want = by_flags();
    PREDICT(golden("llama_tiny"), FEW);
    EXPECT(strcmp(said(), want));
    EXPECT(!strstr(message, "generation_config.json"));
    EXPECT_STR(with(QWEN), want);
    EXPECT_PART(message, "tokens are chosen as generation_config.json of the model says: "
                         "do_sample True, temperature 1.7, top_k 20, top_p 0.9, "
                         "repetition_penalty 1.5; keys and flags go before it\n");
    EXPECT(!strstr(message, "not taken"));
}

TEST(generation_config_goes_along) {
    char *want = by_flags();
    CONVERT("--to", "stator", llama_folder("hf", "null", QWEN), temp("ckpt"));
    worked();
    PREDICT(temp("ckpt"), FEW);
    EXPECT_STR(said(), want);
    CONVERT("--to", "hf", temp("ckpt"), temp("back"));
    worked();
    PREDICT(temp("back"), FEW);
    EXPECT_STR(said(), want);
    char *written = file_read(arena_new(), temp("back/generation_config.json"), 4096,
                              NULL, EXIT_DATA);
    EXPECT_PART(written, "\"_from_model_config\": false");
    EXPECT_PART(written,
                "\"do_sample\": true,\n  \"temperature\": 1.7,\n  \"top_k\": 20,");
}

/* As in transformers: who names no do_sample takes the best token. */
TEST(generation_config_that_does_not_sample) {
    PREDICT(golden("llama_tiny"), FEW, "--greedy");
    char *want = said();
    EXPECT_STR(with("{\"do_sample\": false, \"top_k\": 20}"), want);
    EXPECT_PART(message, "says: do_sample False; keys");
    EXPECT_STR(with("{\"temperature\": 0.6, \"top_p\": 0.9}"), want);
    EXPECT_PART(message, "says: do_sample False; keys");
    PREDICT(golden("llama_tiny"), FEW);
    EXPECT_STR(with("{\"pad_token_id\": 0, \"do_sample\": null}"), said());
    EXPECT(!strstr(message, "generation_config.json"));
}

TEST(generation_config_samples_from_fifty) {
    PREDICT(golden("llama_tiny"), FEW, "--temperature=5", "--top_k=50");
    char *want = said();
    EXPECT_STR(with("{\"do_sample\": true, \"temperature\": 5}"), want);
    EXPECT_PART(message, "do_sample True, temperature 5");
    EXPECT_PART(message, ", top_k 50;");
}

TEST(keys_go_before_generation_config) {
    char *dir = llama_folder("hf", "null", QWEN);
    PREDICT(golden("llama_tiny"), FEW, "--temperature=1.7", "--top_k=3", "--top_p=0.9",
            "--repetition_penalty=1.5");
    char *want = said();
    PREDICT(dir, FEW, "--top_k=3");
    EXPECT_STR(said(), want);
    EXPECT_PART(message,
                "says: temperature 1.7, top_p 0.9, repetition_penalty 1.5; keys");
    write_text(temp("run.yaml"),
               arena_printf(arena_new(),
                            "load_checkpoint: %s\nmodel: {model_config: {top_k: 3}}\n",
                            dir));
    PREDICT(temp("run.yaml"), FEW);
    EXPECT_STR(said(), want);
    PREDICT(golden("llama_tiny"), FEW, "--greedy", "--repetition_penalty=1.5");
    want = said();
    PREDICT(dir, FEW, "--greedy");
    EXPECT_STR(said(), want);
    EXPECT_PART(message, "says: repetition_penalty 1.5; keys");
    PREDICT(golden("llama_tiny"), FEW, "--temperature=3");
    want = said();
    PREDICT(llama_folder("hf", "null", "{\"do_sample\": false}"), FEW, "--temperature=3");
    EXPECT_STR(said(), want);
}

TEST(generation_config_that_says_more) {
    const char *text =
        "{\"do_sample\": false, \"min_p\": 0.05, \"num_beams\": 1, \"max_new_tokens\": "
        "99,"
        " \"use_cache\": true, \"no_repeat_ngram_size\": 0, \"suppress_tokens\": [],"
        " \"transformers_version\": \"4.50.0\", \"length_penalty\": 2}";
    static const char part[] =
        "hf/generation_config.json: not taken: min_p, max_new_tokens, length_penalty";
    static const char with_flag[] =
        "not taken: min_p, max_new_tokens (--max_new_tokens), "
        "length_penalty";
    char *dir = llama_folder("hf", "null", text);
    PREDICT(dir, "--prompt_tokens", "1,2,3");
    worked();
    EXPECT_PART(message, with_flag);
    PREDICT(dir, "--prompt_tokens", "1,2,3", "--model.model_config.max_new_tokens=4");
    worked();
    EXPECT_PART(message, "not taken: min_p, length_penalty");
    PREDICT(dir, FEW); /* says how many */
    worked();
    EXPECT_PART(message, "not taken: min_p, length_penalty");
    CONVERT("--to", "stator", dir, temp("ckpt"));
    worked();
    EXPECT_PART(message, part);
}

TEST(choices_that_are_damaged) {
    static const char *const bad[][2] = {
        {"{\"top_k\": [1]}", "top_k"},
        {"{\"do_sample\": 1}", "do_sample"},
        {"{\"repetition_penalty\": \"x\"}", "repetition_penalty"}};
    for (int i = 0; i < ARRAY_LEN(bad); i++) {
        PREDICT(llama_folder("hf", "1", bad[i][0]), FEW);
        refused(EXIT_CONFIG, bad[i][1]);
        EXPECT_PART(message, "hf/generation_config.json:1:");
    }
}

/* Other programs have other numbers: they are in the way only of texts that they would choose
 * the tokens of. */
TEST(choices_that_cannot_be) {
    static const struct {
        char *member, *flag, *says;
    } of[] = {
        {"\"temperature\": -1", "--temperature=2", "temperature -1, which must be"},
        {"\"top_k\": -1", "--top_k=0", "top_k -1, which must be 0 to 16777216"},
        {"\"top_k\": 1.5", "--top_k=3", "top_k 1.5, which must be"},
        {"\"top_p\": 0.0", "--top_p=0.5", "top_p 0, which must be"},
        {"\"top_p\": 7", "--model.model_config.top_p=0.5", "write another, --model"},
        {"\"repetition_penalty\": 0", "--repetition_penalty=1",
         "repetition_penalty 0, which must be"}};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        Arena *mem = arena_new();
        char *dir = llama_folder(
            "hf", "null", arena_printf(mem, "{\"do_sample\": true, %s}", of[i].member));
        bool penalty = strstr(of[i].member, "penalty") != NULL;
        char *ckpt = temp("ckpt"), *hf = temp("hf2");
        CONVERT("--to", "stator", "--force", dir, ckpt);
        worked();
        CONVERT("--to", "hf", "--force", ckpt, hf);
        worked();
        char *const folders[] = {dir, ckpt, hf};
        for (int k = 0; k < ARRAY_LEN(folders); k++) {
            PREDICT(folders[k], FEW);
            refused(EXIT_CONFIG, of[i].says);
            PREDICT(folders[k], FEW, of[i].flag);
            worked();
            PREDICT(folders[k], FEW, "--greedy");
            if (!penalty) worked();
        }
        arena_free(mem);
    }
    PREDICT(llama_folder("hf", "null", "{\"top_k\": -1, \"top_p\": 0.0}"), FEW);
    worked(); /* which does not sample */
}

#define TEXT "--prompt_tokens=1,2,3", "--seed=4"

/* What the configuration of a run, or one that is named, says in other words. */
TEST(flags_go_before_other_words_of_a_run) {
    static const struct {
        char *key, *flag;
    } of[] = {{"do_sample: False", "--temperature=5"},
              {"do_sample: False", "--top_k=3"},
              {"do_sample: False", "--model.model_config.top_p=0.9"},
              {"max_new_tokens: 6", "--max_decode_length=20"}};
    Arena *mem = arena_new();
    char *folder = temp("run"), *file = temp("run.yaml"), *names[] = {file, folder};
    EXPECT_INT(dir_make(folder), 0);
    CONVERT("--to", "stator", golden("llama_tiny"), temp("run/ckpt"));
    worked();
    for (int i = 0; i <= ARRAY_LEN(of); i++) {
        bool least = i == ARRAY_LEN(of);
        const char *key = least ? "min_new_tokens: 2" : of[i].key;
        char *model = arena_printf(mem, "model: {model_config: {%s}}\n", key);
        write_text(temp("run/config.yaml"), model);
        write_text(file, arena_printf(mem, "load_checkpoint: %s\n%s",
                                      golden("llama_tiny"), model));
        for (int k = 0; k < ARRAY_LEN(names); k++) {
            if (least) {
                PREDICT(names[k], TEXT, "--min_length=9999");
                refused(EXIT_CONFIG, "are asked for at least");
                continue;
            }
            PREDICT(golden("llama_tiny"), TEXT, of[i].flag);
            char *want = said();
            PREDICT(names[k], TEXT);
            EXPECT(strcmp(said(), want) != 0);
            PREDICT(names[k], TEXT, of[i].flag);
            EXPECT_STR(said(), want);
            EXPECT(!strstr(message, "no effect"));
        }
    }
    arena_free(mem);
}

/* The type of a configuration is that of training; a flag's counts alone, and the same of
 * a folder and of a configuration that names it. */
TEST(products_are_of_f32_unless_a_flag_says_so) {
    static char *const flags[][2] = {
        {"--seed=4", "--greedy"},
        {"--model.model_config.compute_dtype=bfloat16", "--greedy"},
        {"--model.model_config.compute_dtype=float16",
         "--model.model_config.fp32_residual_connection=True"}};
    static const char *const trained[] = {
        "compute_dtype: bfloat16",
        "compute_dtype: float16, fp32_residual_connection: True"};
    Arena *mem = arena_new();
    char *folder = arena_strdup(mem, golden("llama_tiny")), *file = temp("run.yaml");
    char *last = "";
    for (int k = 0; k < ARRAY_LEN(flags); k++) {
        PREDICT(folder, FEW, "--json", flags[k][0], flags[k][1]);
        char *want = said();
        EXPECT(strcmp(want, last) != 0);
        last = want;
        for (int i = 0; i < ARRAY_LEN(trained); i++) {
            write_text(file, arena_printf(mem,
                                          "load_checkpoint: %s\n"
                                          "model: {model_config: {%s}}\n",
                                          folder, trained[i]));
            PREDICT(file, FEW, "--json", flags[k][0], flags[k][1]);
            EXPECT_STR(said(), want);
            EXPECT(!strstr(message, "no effect"));
        }
    }
    arena_free(mem);
}
