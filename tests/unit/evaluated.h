/* evaluated.h - for tests of stator eval: what it said, as numbers. */
#ifndef STATOR_TESTS_EVALUATED_H
#define STATOR_TESTS_EVALUATED_H
#include "runs.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* each test uses some of it */

typedef struct Evaluated {
    double loss, error, perplexity, accuracy, bits_per_byte, acc, acc_norm;
    int64_t samples, tokens, bytes;
} Evaluated;

/* The object that the last command printed. */
static Evaluated evaluated_read(void) {
    const char *line = said();
    while (line && *line != '{') {
        line = strchr(line, '\n');
        if (line) line++;
    }
    if (!line) test_fail(__FILE__, __LINE__, "no object in:\n%s", said());
    size_t n = strcspn(line, "\n");
    const Json *v = json_parse(mem(), "eval", line, n, n + 1, EXIT_DATA);
    return (Evaluated){.loss = json_f64(json_need(v, "loss")),
                       .error = json_get_f64(v, "loss_error", NAN),
                       .perplexity = json_f64(json_need(v, "perplexity")),
                       .accuracy = json_f64(json_need(v, "accuracy")),
                       .bits_per_byte = json_get_f64(v, "bits_per_byte", NAN),
                       .acc = json_get_f64(v, "acc", NAN),
                       .acc_norm = json_get_f64(v, "acc_norm", NAN),
                       .samples = json_i64(json_need(v, "samples"), 0, INT64_MAX),
                       .tokens = json_i64(json_need(v, "tokens"), 0, INT64_MAX),
                       .bytes = json_get_i64(v, "bytes", 0, INT64_MAX, 0)};
}

static Evaluated evaluated(const char *words) {
    RUN_EXPECT(0, arena_printf(mem(), "eval %s --json --context.threads 1", words));
    return evaluated_read();
}

/* Text of so many bytes, the beginning of runs_text; its path. */
static const char *evaluated_text(const char *name, size_t bytes) {
    size_t n;
    const char *all = file_read(mem(), runs_text(), 1 << 20, &n, EXIT_DATA);
    EXPECT(n > bytes);
    const char *path = in_temp(name);
    write_text(path, arena_strndup(mem(), all, bytes));
    return path;
}

/* A run of some steps of the small model; `more` are more words. */
static const char *evaluated_run(const char *more) {
    const char *run = in_temp("trained");
    RUN_EXPECT(0, arena_printf(mem(), "train %s --output_dir %s --context.threads 1 %s",
                               runs_small_config(12, 6), run, more));
    return run;
}

#endif
