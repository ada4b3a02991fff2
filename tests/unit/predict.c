/* predict.c - the command predict on the golden models: generation against the training
 * forward, ends, seeds, several texts at a time and beyond the context. */
#include "base/json.h"
#include "command.h"
#include "frontend/tools/generate.h"
#include "frontend/tools/text.h"

/* ---- greedy generation is the argmax of the training forward ---- */

typedef struct Forward {
    Func *entry;
    Tensor **arg, **ret;
} Forward;

static float *forward_weight(void *context, int arg) {
    return ((Forward *)context)->arg[arg]->data;
}

/* Scores [1, context, vocab] of the training forward, by the interpreter. */
static const Tensor *forward_scores(Arena *mem, const char *dir, const ModelSpec *spec,
                                    Tokens text) {
    ModelShape shape = {.batch = 1, .seq = spec->max_positions};
    Forward f = {.entry = model_entry(model_build(mem, spec, shape, MODEL_TRAIN_LOGITS))};
    f.arg = NEW_ARRAY(mem, Tensor *, (size_t)f.entry->narg);
    f.ret = NEW_ARRAY(mem, Tensor *, (size_t)f.entry->nret);
    for (int i = 0; i < f.entry->narg; i++) {
        f.arg[i] = tensor_new(mem, &f.entry->arg[i]->ty);
        if (arg_role(f.entry, i) != ARG_tokens) continue;
        for (int t = 0; t < text.n; t++) tensor_set(f.arg[i], t, text.id[t]);
    }
    for (int i = 0; i < f.entry->nret; i++)
        f.ret[i] = tensor_new(mem, &f.entry->ret[i]->ty);
    weights_load_hf(dir, f.entry, forward_weight, &f);
    interp_run(mem, f.entry, &f.arg, &f.ret);
    return f.ret[1];
}

static double best_score(const Tensor *scores, int row, int64_t vocab) {
    double best = -INFINITY;
    for (int64_t v = 0; v < vocab; v++)
        best = fmax(best, tensor_get(scores, row * vocab + v));
    return best;
}

/* Continues the first n of a fixed row of tokens up to the context, greedily: each new
 * token must have the best score that the training forward gives after those before it.
 * One forward shows all of that, since a row sees only what is before it. */
static void check_greedy_of(char *dir, int n) {
    Arena *mem = arena_new();
    ModelSpec spec = model_spec_of_hf(mem, dir);
    int context = (int)spec.max_positions;
    Text list = text_new(mem);
    for (int i = 0; i < n; i++)
        text_add(&list, "%s%d", i ? "," : "", (i * 37 + 11) % (int)spec.vocab);
    predict_threads = "--threads=0";
    char *got = PREDICT(dir, "--greedy", "--prompt_tokens", list.s);
    worked();
    text_add(&list, ",%s", got);
    Tokens text = tokens_parse(mem, list.s, spec.vocab);
    EXPECT_INT(text.n, context);
    const Tensor *scores = forward_scores(mem, dir, &spec, text);
    for (int i = n; i < context; i++) {
        double best = best_score(scores, i - 1, spec.vocab);
        double chosen = tensor_get(scores, (i - 1) * spec.vocab + text.id[i]);
        if (!(chosen >= best - 1e-5 * fmax(1, fabs(best))))
            test_fail(__FILE__, __LINE__,
                      "%s, prompt of %d: token %d has score %g, the "
                      "best is %g",
                      dir, n, i, chosen, best);
    }
    arena_free(mem);
}

static void check_greedy(const char *name, int n) {
    check_greedy_of(golden(name), n);
}

/* 1: no prompt program; 5: padded to 8; 8: a whole program; 17: padded to the context. */
TEST_LIMIT(greedy_gpt2, 240) {
    const int prompts[] = {1, 5, 8, 17};
    for (int i = 0; i < 4; i++) check_greedy("gpt2_tiny", prompts[i]);
    check_greedy("gpt2_untied", 19); /* one token is left of the context */
}

TEST_LIMIT(greedy_llama, 240) {
    const int prompts[] = {1, 5, 8, 17};
    for (int i = 0; i < 4; i++) check_greedy("llama_tiny", prompts[i]);
    check_greedy("llama_tied_mqa", 7);
}

/* A window much shorter than the cache, and one that only the last tokens leave. */
TEST_LIMIT(greedy_with_a_window, 240) {
    Arena *mem = arena_new();
    check_greedy_of(mistral_folder(mem, "narrow", 3), 5);
    check_greedy_of(mistral_folder(mem, "narrow", 3), 17);
    check_greedy_of(mistral_folder(mem, "wide", 28), 1);
    arena_free(mem);
}

TEST(rows_of_programs) {
    EXPECT(generator_rows(1, 1000) == 1 && generator_rows(2, 1000) == 2);
    EXPECT(generator_rows(5, 1000) == 8 && generator_rows(33, 1000) == 64);
    EXPECT(generator_rows(64, 1000) == 64 && generator_rows(65, 1000) == 128);
    EXPECT_INT(generator_rows(129, 1000), 192);
    EXPECT(generator_rows(5, 6) == 6 && generator_rows(990, 1000) == 1000);
}

/* ---- length, ends, seeds ---- */

TEST(lengths) {
    char *dir = golden("gpt2_tiny");
    PREDICT(dir, "--greedy", "--prompt_tokens", "1,2", "--max_new_tokens", "1");
    worked();
    EXPECT(!strchr(printed, ',') && strstr(message, "new: 1 tokens; ended by length"));
    PREDICT(dir, "--greedy", "--prompt_tokens", "1,2", "--max_new_tokens", "40");
    worked();
    EXPECT(strstr(message, "stops after 30") && strstr(message, "new: 30 tokens"));
    PREDICT(dir, "--greedy", "--prompt_tokens", "1,2", "--max_decode_length", "6");
    worked();
    EXPECT_PART(message, "new: 4 tokens");
    PREDICT(dir, "--prompt_tokens", "1,2", "--max_decode_length", "2");
    refused(EXIT_CONFIG, "write --max_new_tokens");
    PREDICT(dir, "--prompt_tokens", "1,2", "--max_new_tokens", "0");
    refused(EXIT_CONFIG, "whole number from 1 to");
    Text full = text_new(arena_new());
    for (int i = 0; i < 32; i++) text_add(&full, "3 ");
    PREDICT(dir, "--prompt_tokens", full.s);
    refused(EXIT_CONFIG, "context 32");
}

TEST(end_token_ends) {
    char *dir = temp("eos"), first[64];
    Arena *mem = arena_new();
    PREDICT(golden("llama_tiny"), "--greedy", "--prompt_tokens", "1,2,3,4,5",
            "--max_new_tokens", "2");
    worked();
    Tokens two = tokens_parse(mem, printed, 96);
    EXPECT(two.n == 2 && two.id[0] != two.id[1]);
    EXPECT_INT(dir_make(dir), 0);
    char *text = file_read(mem, path_join(mem, golden("llama_tiny"), "config.json"), 4096,
                           NULL, EXIT_DATA);
    write_text(
        path_join(mem, dir, "config.json"),
        arena_printf(mem, "{\"eos_token_id\": %d,%s", two.id[1], strchr(text, '{') + 1));
    EXPECT(symlink(path_join(mem, golden("llama_tiny"), "model.safetensors"),
                   path_join(mem, dir, "model.safetensors")) == 0);
    PREDICT(dir, "--greedy", "--prompt_tokens", "1,2,3,4,5");
    worked();
    snprintf(first, sizeof first, "%d\n", two.id[0]);
    EXPECT_STR(printed, first);
    EXPECT_PART(message, "ended by end token");
    arena_free(mem);
}

static const Json *text_at(Arena *mem, const char **at) {
    size_t n = strcspn(*at, "\n");
    const Json *text = json_parse(mem, "text", *at, n, 1 << 20, EXIT_DATA);
    *at += n + ((*at)[n] == '\n');
    return text;
}

/* Lines of --json: the same texts, tokens and ends, and log-probabilities within `off`. */
static void expect_texts(const char *got, const char *want, double off) {
    Arena *mem = arena_new();
    while (*want) {
        const Json *a = text_at(mem, &got), *b = text_at(mem, &want);
        const Json *x = json_need(a, "tokens")->first, *y = json_need(b, "tokens")->first;
        const Json *p = json_need(a, "logprobs")->first;
        const Json *q = json_need(b, "logprobs")->first;
        EXPECT(y && q);
        for (; y; x = x->next, y = y->next, p = p->next, q = q->next) {
            EXPECT(x && p && json_f64(x) == json_f64(y));
            EXPECT_NEAR(json_f64(p), json_f64(q), off);
        }
        EXPECT(!x && !p);
        EXPECT_STR(json_get_string(a, "ended_by", ""),
                   json_get_string(b, "ended_by", "?"));
    }
    EXPECT_STR(got, "");
    arena_free(mem);
}

/* Texts at a time: the tokens of each alone, also drawn ones, and its log-probabilities but for
 * the rounding of f32: their prompts are another program's, whose sums have another order. */
static const double OFF = 4e-6; /* 8 roundings of a logarithm of about 4 */

static void several_at_a_time(char *dir, char *prompt, char *how, char *more) {
    char *one = arena_strdup(
        arena_new(), PREDICT(dir, "--prompt_tokens", prompt, "--seed=3", how, more,
                             "--num_samples=5", "--json", "--tokens", "--batch=1"));
    worked();
    expect_texts(PREDICT(dir, "--prompt_tokens", prompt, "--seed=3", how, more,
                         "--num_samples=5", "--json", "--tokens", "--batch=3"),
                 one, OFF);
    expect_texts(PREDICT(dir, "--prompt_tokens", prompt, "--seed=3", how, more,
                         "--num_samples=5", "--json", "--tokens"),
                 one, OFF);
}

TEST(several_texts_at_a_time) {
    Arena *mem = arena_new();
    several_at_a_time(golden("gpt2_tiny"), "1,2", "--top_k=0", "--json");
    several_at_a_time(golden("llama_tiny"), "1,2", "--top_k=0", "--json");
    several_at_a_time(golden("llama_tied_mqa"), "1,2", "--top_k=3", "--json");
    several_at_a_time(mistral_folder(mem, "ring", 3), "1,2,3,4,5", "--top_k=0", "--json");
    arena_free(mem);
}

/* ---- beyond the context ---- */

enum { CONTEXT = 32, HALF = CONTEXT / 2, BEYOND = 60 };

static char *numbers(Arena *mem, const int32_t *id, int n) {
    Text t = text_new(mem);
    for (int i = 0; i < n; i++) text_add(&t, "%s%d", i ? "," : "", id[i]);
    return t.s;
}

/* With each full context begins a text of its own, of its last half and the token after it. */
static void slides(char *dir, char *prompt) {
    Arena *mem = arena_new();
    char *out = PREDICT(dir, "--greedy", "--prompt_tokens", prompt, "--slide",
                        "--max_new_tokens", arena_printf(mem, "%d", BEYOND));
    worked();
    Tokens text = tokens_parse(mem, arena_printf(mem, "%s,%s", prompt, out), 1 << 20);
    EXPECT_INT(text.n, 5 + BEYOND);
    for (int at = HALF; at + CONTEXT <= text.n; at += HALF) {
        PREDICT(dir, "--greedy", "--prompt_tokens", numbers(mem, text.id + at, HALF + 1));
        EXPECT_STR(
            printed,
            arena_printf(mem, "%s\n", numbers(mem, text.id + at + HALF + 1, HALF - 1)));
    }
    arena_free(mem);
}

TEST(text_slides_beyond_the_context) {
    Arena *mem = arena_new();
    slides(golden("gpt2_tiny"), "1,2,3,4,5");
    slides(mistral_folder(mem, "window", 3), "1,2,3,4,5");
    several_at_a_time(golden("gpt2_tiny"), "1,2", "--slide", "--max_new_tokens=70");
    several_at_a_time(golden("llama_tiny"), "7", "--slide", "--max_new_tokens=70");
    Text full = text_new(mem);
    for (int i = 0; i < CONTEXT + 3; i++) text_add(&full, "%s%d", i ? "," : "", i);
    char *all =
        arena_strdup(mem, PREDICT(golden("gpt2_tiny"), "--greedy", "--slide",
                                  "--prompt_tokens", full.s, "--max_new_tokens", "15"));
    worked();
    Tokens t = tokens_parse(mem, full.s, 1 << 20);
    EXPECT_STR(PREDICT(golden("gpt2_tiny"), "--greedy", "--prompt_tokens",
                       numbers(mem, t.id + t.n - HALF, HALF), "--max_new_tokens", "15"),
               all);
    arena_free(mem);
}

/* What a text of any length beyond the window takes is the same. */
TEST(memory_of_a_ring) {
    Arena *mem = arena_new();
    ModelSpec s = model_spec_of_hf(mem, golden("llama_tiny"));
    s.max_positions = 1 << 20;
    int64_t all = generator_cache_bytes(&s, 1 << 20);
    s.window = 128;
    EXPECT_INT(generator_cache_bytes(&s, 1 << 20) * (1 << 20) / 128, all);
    static const Strategy one = {.data = 1,
                                 .tensor = 1,
                                 .context = 1,
                                 .ring = 1,
                                 .zero_axes = "dp",
                                 .own_data = true};
    Source source = {.spec = s};
    const Config *cfg = config_load(mem, NULL, 0, NULL);
    int64_t bytes[3], total[] = {129, 4096, 1 << 20};
    for (int i = 0; i < 3; i++) {
        Generator *g =
            generator_new(mem, &source, &one, (GeneratorSize){2, 1, total[i]}, cfg);
        bytes[i] = g->token->plan.total_bytes;
        generator_free(g);
    }
    EXPECT(bytes[0] == bytes[1] && bytes[1] == bytes[2]);
    arena_free(mem);
}

TEST(seeds) {
    char *dir = golden("gpt2_tiny"), *first;
    PREDICT(dir, "--prompt_tokens", "1,2", "--top_k", "0", "--seed", "5");
    worked();
    first = arena_strdup(arena_new(), printed);
    EXPECT_STR(PREDICT(dir, "--prompt_tokens", "1,2", "--top_k=0", "--seed=5"), first);
    EXPECT(strcmp(PREDICT(dir, "--prompt_tokens", "1,2", "--top_k", "0", "--seed", "6"),
                  first));
    worked();
    PREDICT(dir, "--prompt_tokens", "1,2", "--greedy");
    first = arena_strdup(arena_new(), printed);
    EXPECT_STR(PREDICT(dir, "--prompt_tokens", "1,2", "--temperature", "0"), first);
    EXPECT_STR(PREDICT(dir, "--prompt_tokens", "1,2", "--top_k", "1"), first);
    EXPECT_STR(PREDICT(dir, "--prompt_tokens", "1,2", "--top_p", "1e-6", "--top_k", "0"),
               first);
}

TEST(refusals_of_predict) {
    char *dir = golden("gpt2_tiny");
    PREDICT(dir, "--prompt", "hi");
    refused(EXIT_CONFIG, "--prompt_tokens 1,2,3");
    PREDICT(dir);
    refused(EXIT_CONFIG, "no prompt: write one of");
    PREDICT(dir, "--prompt_tokens", "1", "--prompt", "a");
    refused(EXIT_CONFIG, "more than one prompt");
    PREDICT(dir, "--prompt_tokens", "");
    refused(EXIT_CONFIG, "the prompt is empty");
    PREDICT(dir, "--prompt_tokens", "96");
    refused(EXIT_CONFIG, "0..95");
    PREDICT(dir, "--prompt_tokens", "1", "--stop", "x");
    refused(EXIT_CONFIG, "--stop is a text");
    PREDICT(dir, "--prompt_tokens");
    refused(EXIT_CONFIG, "--prompt_tokens needs a value");
    PREDICT(dir, "--prompt_tokens", "1", "--top_p", "0");
    refused(EXIT_CONFIG, "top_p");
    PREDICT(dir, "--prompt_tokens", "1", "--model.model_config.topk", "1");
    refused(EXIT_CONFIG, "did you mean model.model_config.top_k");
    PREDICT(dir, "--prompt_tokens", "1", "--model.model_config.num_layers", "3");
    refused(EXIT_CONFIG, "num_layers changes nothing here");
    PREDICT(dir, "--prompt_tokens", "1", "--init_from", dir);
    refused(EXIT_CONFIG, "init_from changes nothing here");
    PREDICT(dir, "--prompt_tokens", "1", "--init-from", dir);
    refused(EXIT_CONFIG, "init_from changes nothing here");
    PREDICT(dir, "--prompt_tokens", "1", "--context.max_device_memory", "1KB");
    refused(EXIT_MEMORY, "max_device_memory, 1KB (1.02 kB in steps of 1000)");
    EXPECT_PART(message, "hint: fewer new tokens (--max_new_tokens)");
    EXPECT_PART(message, ", or a larger context.max_device_memory");
    EXPECT(!strstr(message, "from the system"));
    EXPECT(strstr(message, " weights ") && !strstr(message, "optimizer"));
    EXPECT(!strstr(message, "gradients") && !strstr(message, "micro_batch_num"));
    PREDICT(dir, "more");
    refused(EXIT_CONFIG, "--prompt cannot be read: put its tokenizer.json into");
    PREDICT(temp("nothing"), "--prompt", "a");
    refused(EXIT_CONFIG, "No such file");
    PREDICT((char *)temp_dir(), "--prompt", "a");
    refused(EXIT_CONFIG, "holds no model");
}
