/* predict_bytes.c - the command predict on models of bytes: prompts and texts as they are, weights
 * that are broken, texts at a time that fit. */
#define _GNU_SOURCE
#include "command.h"
#include "frontend/tools/text.h"
#include "runtime/store/safetensors.h"
#include <math.h>
#include <sys/wait.h>

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
    TextPrinter *s = text_printer_new(mem, out, NULL, NULL, 0);
    for (int i = 0; i < n; i++) text_printer_put(s, (unsigned char)id[i]);
    text_printer_end(s);
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
/* Weights of 25 MB and caches of 4 MB a text: a quarter of a limit that is just enough for the
 * weights is several caches too many. Fewer texts at a time then, unless a number is asked for. */
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
