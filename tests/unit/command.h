/* command.h - for tests: runs the commands predict and convert in this process, and small
 * models for them. */
#ifndef STATOR_TESTS_COMMAND_H
#define STATOR_TESTS_COMMAND_H
#include "../test.h"
#include "frontend/config/commands.h"
#include "frontend/model/source.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wunused-function" /* each test uses some of it */

enum { MAX_WORDS = 24 };

/* What a command printed; valid until the next one. */
static char printed[1 << 18];
static int code; /* it returned or failed with this */
static char message[8192];
/* So that tests beside others are quick; "--threads=0" is all cores. */
static char *predict_threads = "--threads=1";

static void capture(int fd, const char *name, int *saved) {
    char *path = path_join(arena_new(), temp_dir(), name);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    *saved = dup(fd);
    EXPECT(file >= 0 && *saved >= 0 && dup2(file, fd) == fd);
    close(file);
}

static size_t release(int fd, int saved, char *out, size_t size) {
    ssize_t n = pread(fd, out, size - 1, 0);
    EXPECT(n >= 0);
    out[n] = 0;
    dup2(saved, fd);
    close(saved);
    return (size_t)n;
}

/* Runs a command of words ended by NULL; fills printed, code and message (the failure,
 * or what went to stderr). Returns printed. */
static char *run(int (*command)(int, char **), ...) {
    char *argv[MAX_WORDS] = {"command"};
    int argc = 1, out, err;
    va_list ap;
    if (command == cmd_predict) argv[argc++] = predict_threads;
    va_start(ap, command);
    for (char *w; (w = va_arg(ap, char *));) {
        EXPECT(argc < MAX_WORDS);
        argv[argc++] = w;
    }
    va_end(ap);
    fflush(stdout);
    capture(1, "stdout", &out);
    capture(2, "stderr", &err);
    Catch c;
    if (CATCH(c)) {
        code = command(argc, argv);
        catch_end(&c);
    } else {
        code = c.code;
    }
    fflush(stdout);
    release(2, err, message, sizeof message);
    release(1, out, printed, sizeof printed);
    if (c.code) snprintf(message, sizeof message, "%s", c.message);
    return printed;
}
#define PREDICT(...) run(cmd_predict, __VA_ARGS__, (char *)NULL)
#define CONVERT(...) run(cmd_convert, __VA_ARGS__, (char *)NULL)

/* The command must have failed with `want`, saying `part`. */
static void refused(int want, const char *part) {
    if (code != want || !strstr(message, part))
        test_fail(__FILE__, __LINE__, "code %d, message:\n%s\nwanted code %d: %s", code,
                  message, want, part);
}

static void worked(void) {
    if (code != 0) test_fail(__FILE__, __LINE__, "code %d:\n%s", code, message);
}

static char *golden(const char *name) {
    static char path[1024];
    snprintf(path, sizeof path, "%s/golden/%s", tests_dir(), name);
    return path;
}

static char *temp(const char *name) {
    return path_join(arena_new(), temp_dir(), name);
}

/* A folder `name` with the weights of llama_tiny, whose queries see `window` keys. */
static inline char *mistral_folder(Arena *mem, const char *name, int window) {
    static const char *const files[] = {"model.safetensors", "config.json"};
    char *dir = temp(name);
    EXPECT(!dir_make(dir));
    for (int i = 0; i < 2; i++) {
        size_t n;
        char *bytes = file_read(mem, path_join(mem, golden("llama_tiny"), files[i]),
                                1 << 20, &n, EXIT_DATA);
        if (i == 1) {
            const char *rest = strstr(bytes, "\"num_hidden_layers\"");
            EXPECT(rest);
            bytes =
                arena_printf(mem, "{\"model_type\":\"mistral\",\"sliding_window\":%d,%s",
                             window, rest);
            n = strlen(bytes);
        }
        EXPECT(!file_write_atomic(path_join(mem, dir, files[i]), bytes, n));
    }
    return dir;
}

typedef struct Weights {
    float **of;
} Weights;

static float *weight_of(void *context, int arg) {
    return ((Weights *)context)->of[arg];
}

/* Random weights of a model, by argument of its entry *f. */
static Weights make_weights(Arena *mem, const ModelSpec *spec, Func **f) {
    ModelShape shape = {.batch = 1, .seq = 1};
    *f = model_entry(model_build(mem, spec, shape, MODEL_TRAIN));
    Weights w = {NEW_ARRAY(mem, float *, (size_t)(*f)->narg)};
    int n, *arg = source_parameters(mem, *f, &n);
    for (int i = 0; i < n; i++) {
        int64_t bytes = type_bytes(&(*f)->arg[arg[i]]->ty);
        w.of[arg[i]] = arena_alloc(mem, (size_t)bytes);
        weights_init(*f, arg[i], NULL, 0, w.of[arg[i]], 3);
    }
    return w;
}

static ModelSpec spec_of_yaml(Arena *mem, const char *yaml) {
    return model_spec_of_config(config_parse(mem, "test.yaml", yaml, strlen(yaml)));
}

/* The weights of llama_tiny, with `eos` in config.json and a generation_config.json of this
 * text (NULL: none). */
static char *llama_folder(const char *name, const char *eos, const char *generation) {
    Arena *mem = arena_new();
    char *dir = temp(name), *from = golden("llama_tiny");
    char *config =
        file_read(mem, path_join(mem, from, "config.json"), 4096, NULL, EXIT_DATA);
    EXPECT_INT(dir_make(dir), 0);
    write_text(
        path_join(mem, dir, "config.json"),
        arena_printf(mem, "{\"eos_token_id\": %s,%s", eos, strchr(config, '{') + 1));
    if (generation) write_text(path_join(mem, dir, "generation_config.json"), generation);
    size_t n;
    char *weights =
        file_read(mem, path_join(mem, from, "model.safetensors"), 1 << 20, &n, EXIT_DATA);
    EXPECT_INT(file_write_atomic(path_join(mem, dir, "model.safetensors"), weights, n),
               0);
    arena_free(mem);
    return dir;
}

#endif
