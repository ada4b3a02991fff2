/* predict_ends.c - where texts end: the tokens of config.json and of generation_config.json,
 * and special tokens that are named. */
#include "command.h"
#include "frontend/tools/text.h"
#include "runtime/store/safetensors.h"

enum { NEW_TOKENS = 6, VOCAB = 96, END = 3 };

static char *greedy(char *dir) {
    PREDICT(dir, "--greedy", "--prompt_tokens", "1,2,3,4,5", "--max_new_tokens", "6");
    worked();
    return arena_strdup(arena_new(), printed);
}

/* What the model says where nothing ends it. */
static Tokens free_text(Arena *mem) {
    Tokens all = tokens_parse(mem, greedy(golden("llama_tiny")), VOCAB);
    EXPECT_INT(all.n, NEW_TOKENS);
    for (int i = 0; i < END; i++) EXPECT(all.id[i] != all.id[END]);
    return all;
}

static char *first_tokens(Arena *mem, const Tokens *t, int n) {
    Text s = text_new(mem);
    for (int i = 0; i < n; i++) text_add(&s, "%s%d", i ? "," : "", t->id[i]);
    text_add(&s, "\n");
    return s.s;
}

/* As in transformers: those of config.json do not end a text beside others, and documents do
 * not end with the others. */
TEST(ends_of_generation_config) {
    Arena *mem = arena_new();
    Tokens all = free_text(mem);
    char *eos = arena_printf(mem, "%d", all.id[1]);
    char *want = first_tokens(mem, &all, END);
    char *dir = llama_folder(
        "hf", eos,
        arena_printf(mem, "{\"eos_token_id\": [%d, 500, %d]}", VOCAB - 1, all.id[END]));
    ModelSpec s = model_spec_of_hf(mem, dir);
    EXPECT(s.n_eos == 1 && s.eos[0] == all.id[1] && s.n_ends == 2);
    EXPECT_STR(greedy(dir), want);
    EXPECT_PART(message, "ended by end token");
    CONVERT("--to", "stator", dir, temp("ckpt"));
    worked();
    EXPECT_STR(greedy(temp("ckpt")), want);
    CONVERT("--to", "hf", temp("ckpt"), temp("back"));
    worked();
    EXPECT_STR(greedy(temp("back")), want);
    char *written = file_read(mem, temp("back/generation_config.json"), 4096, NULL, 3);
    EXPECT_PART(written,
                arena_printf(mem, "\"eos_token_id\": [%d, %d]", VOCAB - 1, all.id[END]));
    EXPECT_PART(written, "\"_from_model_config\": false");
    written = file_read(mem, temp("back/config.json"), 4096, NULL, 3);
    EXPECT_PART(written, arena_printf(mem, "\"eos_token_id\": %s,", eos));
    arena_free(mem);
}

/* One that names no token that there is leaves those of config.json. */
TEST(generation_config_without_ends) {
    static const char *const texts[] = {"{}", "{\"eos_token_id\": null, \"top_k\": 3}",
                                        "{\"eos_token_id\": []}",
                                        "{\"eos_token_id\": 4000}"};
    Arena *mem = arena_new();
    Tokens all = free_text(mem);
    char *want = first_tokens(mem, &all, END);
    for (int i = 0; i < ARRAY_LEN(texts); i++)
        EXPECT_STR(
            greedy(llama_folder("hf", arena_printf(mem, "%d", all.id[END]), texts[i])),
            want);
    char *one = arena_printf(mem, "{\"eos_token_id\": %d}", all.id[END]);
    EXPECT_STR(greedy(llama_folder("hf", "null", one)), want);
    arena_free(mem);
}

TEST(generation_config_that_is_damaged) {
    static const struct {
        const char *text, *part;
    } bad[] = {{"{\"eos_token_id\": \"x\"}", "eos_token_id"},
               {"{\"eos_token_id\": true}", "eos_token_id"},
               {"{\"eos_token_id\": {\"a\": 1}}", "eos_token_id"},
               {"{\"eos_token_id\": [1, \"x\"]}", "generation_config.json:1:"},
               {"{\"eos_token_id\": [1, -1]}", "generation_config.json:1:"},
               {"{\"eos_token_id\": 1e30}", "eos_token_id"},
               {"{\"eos_token_id\": [1,2,3,4,5,6,7,8,9]}", "more than 8 tokens"},
               {"[1, 2]", "object"},
               {"{\"eos_token_id\": 1", "generation_config.json:1:"}};
    for (int i = 0; i < ARRAY_LEN(bad); i++) {
        PREDICT(llama_folder("hf", "1", bad[i].text), "--prompt_tokens", "1");
        refused(EXIT_CONFIG, bad[i].part);
        EXPECT_PART(message, "hf/generation_config.json");
    }
    char *file = temp("hf/generation_config.json");
    EXPECT_INT(truncate(file, 5 << 20), 0);
    PREDICT(temp("hf"), "--prompt_tokens", "1");
    refused(EXIT_CONFIG, "hf/generation_config.json");
    EXPECT(!unlink(file) && !mkfifo(file, 0600));
    PREDICT(temp("hf"), "--prompt_tokens", "1");
    refused(EXIT_CONFIG, "is not a regular file");
}

/* ---- special tokens by name ---- */

/* A model that says token `token` whatever it is asked, with the tokenizer of Qwen2. */
static char *that_says(int token) {
    Arena *mem = arena_new();
    char *dir = temp("says"), *path = path_join(mem, dir, "model.safetensors");
    ModelSpec spec = spec_of_yaml(
        mem, "model: {model_config: {type: GPT2Config, vocab_size: 512, seq_length: 32,"
             " hidden_size: 8, num_layers: 1, num_heads: 2, eos_token: -1}}\n");
    Func *f;
    Weights w = make_weights(mem, &spec, &f);
    weights_save_hf(dir, &spec, f, weight_of, &w, DT_F32);
    Safetensors *s = safetensors_open(mem, path, EXIT_DATA);
    for (int i = 0; i < s->n; i++) {
        bool bias = ends_with(s->t[i].name, "ln_f.bias");
        bool table = ends_with(s->t[i].name, "wte.weight");
        if (!bias && !table && !ends_with(s->t[i].name, "ln_f.weight")) continue;
        float *x = arena_alloc(mem, s->t[i].bytes);
        for (int k = 0; k < 8; k++)
            if (bias || table) x[bias ? k : token * 8 + k] = 1;
        s->t[i].data = x;
    }
    EXPECT_INT(safetensors_write(path, s->t, s->n, NULL, NULL), 0);
    size_t n;
    char *json = file_read(mem, path_join(mem, golden("tokenizers"), "qwen2.json"),
                           1 << 20, &n, EXIT_DATA);
    EXPECT_INT(file_write_atomic(path_join(mem, dir, "tokenizer.json"), json, n), 0);
    return dir;
}

TEST(stops_at_a_special_token) {
    char *dir = that_says(402);
    PREDICT(dir, "--greedy", "--json", "--max_new_tokens=4", "word");
    worked();
    EXPECT_PART(printed, "\"text\":\"\",\"tokens\":[402,402,402,402]");
    PREDICT(dir, "--greedy", "--json", "--max_new_tokens=4", "word<|im_end|>", "--stop",
            "x", "--stop", "<|im_end|>");
    worked();
    EXPECT_PART(printed, "\"text\":\"\",\"tokens\":[402],");
    EXPECT_PART(printed, "\"ended_by\":\"stop text\"");
    PREDICT(dir, "--greedy", "--json", "--max_new_tokens=4", "word", "--stop", "<|im_end",
            "--stop", "<|im_start|>");
    worked();
    EXPECT_PART(printed, "\"ended_by\":\"length\"");
    PREDICT(dir, "word", "--stop", "<|im_start|>", "--stop", "");
    refused(EXIT_CONFIG, "--stop is empty: give the text to stop at");
    PREDICT(that_says(407), "--greedy", "--max_new_tokens=4", "a", "--stop", "rd");
    worked();
    EXPECT_STR(printed, "awo\n");
}

/* A text ends with the token of generation_config.json, which config.json and the tokenizer
 * name, too, once it is converted. */
TEST(ends_are_the_same_wherever_they_are_named) {
    char *dir = that_says(400);
    Arena *mem = arena_new();
    write_text(path_join(mem, dir, "generation_config.json"), "{\"eos_token_id\": 400}");
    CONVERT("--to", "hf", dir, temp("out"));
    worked();
    ModelSpec s = model_spec_of_hf(mem, temp("out"));
    EXPECT(s.n_eos == 1 && s.eos[0] == 400 && !s.n_ends);
    arena_free(mem);
}

/* With the fourth token as the one that ends a text: it comes where it may, and another one before.
 * The new texts go on as long as is asked for. */
TEST(no_end_before_the_least_length) {
    Arena *mem = arena_new();
    Tokens all = free_text(mem);
    char *dir = llama_folder("hf", arena_printf(mem, "%d", all.id[END]), "{}");
    static char *const least[][2] = {
        {"--min_new_tokens=5", "--seed=1"},
        {"--model.model_config.min_new_tokens=5", "--model.model_config.min_length=99"},
        {"--min_length=10", "--model.model_config.max_new_tokens=9"}};
    for (int i = 0; i < ARRAY_LEN(least); i++) {
        PREDICT(dir, "--greedy", "--prompt_tokens", "1,2,3,4,5", "--max_new_tokens=6",
                least[i][0], least[i][1]);
        worked();
        Tokens t = tokens_parse(mem, printed, VOCAB);
        EXPECT(t.n >= 5);
        for (int k = 0; k < END; k++) EXPECT_INT(t.id[k], all.id[k]);
        for (int k = 0; k < 5; k++) EXPECT(t.id[k] != all.id[END]);
    }
    PREDICT(dir, "--greedy", "--prompt_tokens", "1,2,3,4,5", "--max_new_tokens=6",
            "--min_new_tokens=3");
    worked();
    EXPECT_STR(printed, first_tokens(mem, &all, END));
    PREDICT(dir, "--greedy", "--prompt_tokens", "1,2", "--max_new_tokens=6",
            "--min_new_tokens=7");
    refused(EXIT_CONFIG,
            "of 2 tokens come 6 new ones at most, and 7 are asked for at least");
    arena_free(mem);
}

/* Of two flags for one length one counts, whichever words they have, and a note says so. */
TEST(a_length_that_does_not_count) {
    static char *const of[][3] = {
        {"--max_new_tokens=2", "--max_decode_length=9", "max_new_tokens"},
        {"--model.model_config.max_new_tokens=2", "--max_decode_length=3",
         "max_new_tokens"},
        {"--min_new_tokens=2", "--min_length=9", "min_new_tokens"},
        {"--model.model_config.min_new_tokens=3", "--model.model_config.min_length=99",
         "min_new_tokens"}};
    char *dir = golden("llama_tiny");
    for (int i = 0; i < ARRAY_LEN(of); i++)
        for (int both = 0; both < 2; both++) {
            char *name =
                strstr(of[i][1], "min_length") ? "min_length" : "max_decode_length";
            char *max = i < 2 ? of[i][0] : "--max_new_tokens=4";
            char *other = both ? of[i][1] : "--greedy";
            PREDICT(dir, "--greedy", "--prompt_tokens", "1,2,3,4,5", max,
                    i < 2 ? "--seed=1" : of[i][0], other);
            worked();
            EXPECT_INT(tokens_parse(arena_new(), printed, VOCAB).n, i < 2 ? 2 : 4);
            const char *note = strstr(message, "has no effect: ");
            EXPECT(!note == !both);
            if (!both) continue;
            EXPECT_PART(message, name);
            EXPECT_PART(note, of[i][2]);
            EXPECT_PART(note, " takes precedence\n");
        }
    PREDICT(dir, "--prompt_tokens=1,2", "--max_decode_length=4", "--min_length=3");
    worked();
    EXPECT(!strstr(message, "no effect"));
}

/* What the configuration of a run says is no flag. */
TEST(lengths_of_a_run_are_no_flags) {
    static char *const of[] = {"--max_new_tokens=5", "--min_new_tokens=3",
                               "--model.model_config.max_new_tokens=5", "--greedy"};
    char *dir = temp("run"), *config = temp("run/config.yaml");
    EXPECT_INT(dir_make(dir), 0);
    CONVERT("--to", "stator", golden("llama_tiny"), temp("run/ckpt"));
    worked();
    char *folder[] = {dir, temp("run/ckpt"), config};
    write_text(config, arena_printf(arena_new(),
                                    "output_dir: %s\nmodel:\n  model_config:\n"
                                    "    {max_decode_length: 12, min_length: 4}\n",
                                    dir));
    for (int i = 0; i < ARRAY_LEN(folder); i++) {
        for (int k = 0; k < ARRAY_LEN(of); k++) {
            PREDICT(folder[i], "--tokens", "--prompt_tokens=1,2", of[k]);
            worked();
            EXPECT(!strstr(message, "note: "));
        }
        PREDICT(folder[i], "--prompt_tokens=1,2", of[0], of[1], "--min_length=4");
        worked();
        EXPECT_PART(message, "min_length has no effect");
        EXPECT(!strstr(message, "max_decode_length"));
    }
    write_text(config, "model:\n  model_config:\n    {do_sample: True, top_p: 7}\n");
    PREDICT(dir, "--prompt_tokens=1,2");
    refused(EXIT_CONFIG, "run/config.yaml:3:");
}
