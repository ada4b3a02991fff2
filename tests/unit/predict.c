/* predict.c - the command predict on the golden models and a small byte model: generation
 * against the training forward, ends, seeds, sources and damage. */
#define _GNU_SOURCE
#include "base/json.h"
#include "command.h"
#include "frontend/tools/generate.h"
#include "frontend/tools/text.h"
#include "runtime/store/safetensors.h"
#include <sys/stat.h>
#include <sys/wait.h>

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
        Generator *g = generator_new(mem, &source, &one, 2, 1, total[i], cfg);
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
    PREDICT(dir, "--prompt_tokens", "1", "--context.max_device_memory", "1KB");
    refused(EXIT_MEMORY, "max_device_memory, 1KB (1.02 kB in steps of 1000)");
    EXPECT_PART(message, "hint: fewer new tokens (--max_new_tokens)");
    EXPECT(strstr(message, " weights ") && !strstr(message, "optimizer"));
    EXPECT(!strstr(message, "gradients") && !strstr(message, "micro_batch_num"));
    PREDICT(dir, "more");
    refused(EXIT_CONFIG, "--prompt cannot be read: put its tokenizer.json into");
    PREDICT(temp("nothing"), "--prompt", "a");
    refused(EXIT_CONFIG, "No such file");
    PREDICT((char *)temp_dir(), "--prompt", "a");
    refused(EXIT_CONFIG, "holds no model");
}

/* ---- a model of bytes ---- */

/* Writes a random model of bytes with large scores as a Hugging Face folder. */
static char *model_folder(Arena *mem, const char *name, const char *yaml) {
    char *dir = temp(name);
    ModelSpec spec = spec_of_yaml(mem, yaml);
    Func *f;
    Weights w = make_weights(mem, &spec, &f);
    weights_save_hf(dir, &spec, f, weight_of, &w, DT_F32);
    return dir;
}

static char *byte_model(Arena *mem) {
    return model_folder(
        mem, "bytes",
        "model: {model_config: {type: LlamaConfig, vocab_size: 256, seq_length: 128,"
        " hidden_size: 16, num_layers: 2, num_heads: 2, ffn_hidden_size: 24,"
        " initializer_range: 0.5}}\n");
}

/* The stream's text of tokens id[n] behind `before`. */
static char *text_of(Arena *mem, const char *before, const int32_t *id, int n) {
    char *buffer = NULL;
    size_t size;
    FILE *out = open_memstream(&buffer, &size);
    fputs(before, out);
    TextStream *s = text_stream_new(mem, out, NULL, NULL, 0);
    for (int i = 0; i < n; i++) text_stream_put(s, (unsigned char)id[i]);
    text_stream_end(s);
    fputc('\n', out);
    fclose(out);
    return buffer;
}

TEST(text_of_bytes) {
    Arena *mem = arena_new();
    char *dir = byte_model(mem), *file = temp("prompt.txt");
    char *all[] = {"--top_k", "0", "--max_new_tokens", "90", "--prompt", "a\xC3\xA4"};
    PREDICT(dir, all[0], all[1], all[2], all[3], all[4], all[5], "--tokens");
    worked();
    Tokens t = tokens_parse(mem, printed, 256);
    EXPECT_INT(t.n, 90);
    EXPECT_STR(PREDICT(dir, all[0], all[1], all[2], all[3], all[4], all[5]),
               text_of(mem, "a\xC3\xA4", t.id, t.n));
    EXPECT_STR(PREDICT(dir, all[0], all[1], all[2], all[3], "--no_prompt",
                       "--prompt_tokens", "97,195,164"),
               text_of(mem, "", t.id, t.n));
    write_text(file, "a\xC3\xA4");
    EXPECT_STR(PREDICT(dir, all[0], all[1], all[2], all[3], "--prompt_file", file),
               text_of(mem, "a\xC3\xA4", t.id, t.n));
    char *pipe = temp("pipe");
    EXPECT(mkfifo(pipe, 0600) == 0);
    pid_t writer = fork();
    if (writer == 0) {
        int fd = open(pipe, O_WRONLY);
        for (int i = 0; i < 3; i++) {
            usleep(20000);
            if (write(fd, "a\xC3\xA4" + i, 1) != 1) _exit(1);
        }
        _exit(0);
    }
    EXPECT_STR(PREDICT(dir, all[0], all[1], all[2], all[3], "--prompt_file", pipe),
               text_of(mem, "a\xC3\xA4", t.id, t.n));
    EXPECT_INT(waitpid(writer, NULL, 0), writer);
    int at = 5; /* stops before the first letter behind some tokens */
    while (at < t.n && (t.id[at] < 'A' || t.id[at] > 'z')) at++;
    EXPECT(at < t.n);
    char stop[2] = {(char)t.id[at], 0};
    int first = 0;
    while (t.id[first] != t.id[at]) first++;
    EXPECT_STR(
        PREDICT(dir, all[0], all[1], all[2], all[3], all[4], all[5], "--stop", stop),
        text_of(mem, "a\xC3\xA4", t.id, first));
    EXPECT_PART(message, "ended by stop text");
    PREDICT(dir, "--prompt", "");
    refused(EXIT_CONFIG, "the prompt is empty");
    PREDICT(dir, "--prompt_file", temp("no.txt"));
    refused(EXIT_DATA, "cannot open");
    arena_free(mem);
}

/* Weights of 25 MB and caches of 4 MB a text: a quarter of a limit that is just enough for the
 * weights is several caches too many. Fewer texts at a time then, unless a number is asked for. */
/* Weights of which no token can be drawn: below the prompt, not behind it. */
TEST(a_failure_begins_a_line) {
    Arena *mem = arena_new();
    char *dir = byte_model(mem), *path = path_join(mem, dir, "model.safetensors");
    Safetensors *s = safetensors_open(mem, path, EXIT_DATA);
    for (int i = 0; i < s->n; i++) {
        float *x = arena_alloc(mem, s->t[i].bytes);
        for (uint64_t k = 0; k < s->t[i].bytes / sizeof *x; k++) x[k] = NAN;
        s->t[i].data = x;
    }
    EXPECT_INT(safetensors_write(path, s->t, s->n, NULL, NULL), 0);
    EXPECT_STR(PREDICT(dir, "--prompt", "abc"), "abc\n");
    refused(EXIT_CHECKPOINT, "its weights are broken");
    arena_free(mem);
}

TEST_LABEL_OF(a_batch_that_fits, SLOW);
TEST(a_batch_that_fits) {
#ifdef __SANITIZE_ADDRESS__
    test_skip("the address sanitizer has memory of its own");
#endif
    enum { STEP_MB = 8, MOST_MB = 400 };
    Arena *mem = arena_new();
    char *limit = NULL,
         *dir = model_folder(
             mem, "wide",
             "model: {model_config: {type: LlamaConfig, vocab_size: 256, seq_length: 256,"
             " hidden_size: 256, num_layers: 8, num_heads: 4, ffn_hidden_size: 688,"
             " initializer_range: 0.5}}\n");
    char prompt[200];
    memset(prompt, 'a', sizeof prompt - 1), prompt[sizeof prompt - 1] = 0;
    char *all = arena_strdup(mem, PREDICT(dir, "--prompt", prompt, "--num_samples=8",
                                          "--max_new_tokens=4", "--batch=1"));
    worked();
    for (int mb = STEP_MB; mb < MOST_MB && !limit; mb += STEP_MB) {
        char *bytes = arena_printf(mem, "--context.max_device_memory=%dMB", mb);
        PREDICT(dir, "--prompt", prompt, "--num_samples=8", "--max_new_tokens=4", bytes);
        if (code != EXIT_MEMORY) limit = bytes;
    }
    EXPECT(limit);
    worked();
    EXPECT_PART(message, "texts at a time do not fit into the memory; trying ");
    EXPECT_STR(printed, all);
    PREDICT(dir, "--prompt", prompt, "--num_samples=8", "--max_new_tokens=4", "--batch=8",
            limit);
    refused(EXIT_MEMORY, "fewer than 8 texts at a time");
    arena_free(mem);
}

/* ---- run folders and damage ---- */

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
