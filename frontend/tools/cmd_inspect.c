/* cmd_inspect.c - the command inspect: finds out what a path is; run folders. Checkpoints
 * are in inspect_ckpt.c, the other files in inspect_files.c, samples of a configuration
 * in inspect_samples.c. */
#include "base/json.h"
#include "frontend/config/commands.h"
#include "frontend/model/run_folder.h"
#include "frontend/tools/inspect.h"
#include "runtime/store/ckpt_files.h"
#include <errno.h>

static int checkpoints_in(Arena *mem, const char *folder) {
    CkptEntry *e;
    int n = 0;
    return ckpt_list(mem, folder, &e, &n) == 0 ? n : 0;
}

/* Folders. */

typedef struct Wrong {
    Text said;
    int code; /* of the first that was found; 0: none */
} Wrong;

/* What is wrong there is kept, with its exit code, so that all is looked at. */
static void look_at(Arena *mem, void (*inspect)(Arena *, const char *), const char *path,
                    Wrong *wrong) {
    Catch c;
    if (!file_exists(path)) return;
    if (CATCH(c)) {
        inspect(mem, path);
        catch_end(&c);
        return;
    }
    text_add(&wrong->said, "%s%s", wrong->code ? "\n" : "", c.message);
    if (!wrong->code) wrong->code = c.code;
}

static void inspect_plan(Arena *mem, const char *path) {
    json_read(mem, path, 64u << 20, EXIT_DATA);
}

static void inspect_run(Arena *mem, const char *folder) {
    static const char *const names[] = {
        RUN_CONFIG,       "plan.json",      RUN_METRICS,     "loss.svg", RUN_SCHEDULE,
        RUN_TIMELINE_CSV, RUN_TIMELINE_SVG, RUN_CHECKPOINTS, RUN_BEST};
    const char *named = run_names_checkpoints(mem, folder);
    const char *own = path_join(mem, folder, RUN_CHECKPOINTS);
    const char *const checkpoints[] = {own, path_join(mem, folder, RUN_BEST), named};
    int n = named && !same_folder(named, own) ? 3 : 2;
    printf("%s: run folder with", make_printable(arena_strdup(mem, folder), LINES_NONE));
    for (int i = 0; i < ARRAY_LEN(names); i++)
        if (folder_has(mem, folder, names[i])) printf(" %s", names[i]);
    putchar('\n');
    Wrong wrong = {text_new(mem), 0};
    look_at(mem, inspect_plan, path_join(mem, folder, "plan.json"), &wrong);
    look_at(mem, inspect_metrics, path_join(mem, folder, RUN_METRICS), &wrong);
    for (int i = 0; i < n; i++) look_at(mem, inspect_checkpoints, checkpoints[i], &wrong);
    if (wrong.code) fail_again(wrong.code, wrong.said.s);
}

static bool inspect_folder(Arena *mem, const char *path) {
    bool weights = folder_has(mem, path, "model.safetensors.index.json") ||
                   folder_has(mem, path, "model.safetensors") ||
                   folder_has(mem, path, "pytorch_model.bin.index.json") ||
                   folder_has(mem, path, "pytorch_model.bin");
    bool tokenizer =
        folder_has(mem, path, "tokenizer.json") || folder_has(mem, path, "vocab.json");
    if (folder_has(mem, path, CKPT_MANIFEST)) {
        inspect_checkpoint(mem, path);
    } else if (folder_has(mem, path, RUN_METRICS) ||
               dir_exists(path_join(mem, path, RUN_CHECKPOINTS))) {
        inspect_run(mem, path);
    } else if (checkpoints_in(mem, path)) {
        inspect_checkpoints(mem, path);
    } else if (folder_has(mem, path, "layout.json") ||
               folder_has(mem, path, "optimizer.safetensors")) {
        inspect_checkpoint(mem, path); /* which misses its manifest */
    } else {
        if (weights) inspect_safetensors(mem, path);
        if (tokenizer) inspect_tokenizer(mem, path);
        return weights || tokenizer;
    }
    return true;
}

/* Data of Megatron's have the same ending; PyTorch's file begins like any zip archive. */
static bool weights_of_torch(const char *path) {
    char magic[4] = {0};
    if (!ends_with(path, ".bin")) return ends_with(path, ".bin.index.json");
    FILE *f = fopen(path, "rbe");
    size_t got = f ? fread(magic, 1, sizeof magic, f) : 0;
    if (f) fclose(f);
    return got == sizeof magic && !memcmp(magic, "PK\3\4", sizeof magic);
}

static bool is_indexed(Arena *mem, const char *path) {
    if (dir_exists(path) || weights_of_torch(path)) return false;
    return ends_with(path, ".idx") || ends_with(path, ".bin") ||
           (!file_exists(path) && file_exists(arena_printf(mem, "%s.idx", path)));
}

static bool inspect_path(Arena *mem, const char *path, int64_t vocab) {
    static const char *const tokenizers[] = {"tokenizer.json", "vocab.json", "merges.txt",
                                             "encoder.json", "vocab.bpe"};
    path = ckpt_of_latest(mem, path);
    if (is_indexed(mem, path)) {
        inspect_indexed(mem, path, vocab);
        return true;
    }
    if (!file_exists(path)) fail(EXIT_DATA, "cannot open %s: %s", path, strerror(ENOENT));
    if (vocab)
        fail(EXIT_CONFIG,
             "--vocab_size is for tokens of a .bin/.idx pair, which %s is not", path);
    if (dir_exists(path)) return inspect_folder(mem, path);
    if (weights_of_torch(path) || ends_with(path, ".safetensors") ||
        ends_with(path, ".safetensors.index.json")) {
        inspect_safetensors(mem, path);
        return true;
    }
    if (ends_with(path, "metrics.jsonl")) {
        inspect_metrics(mem, path);
        return true;
    }
    for (int i = 0; i < ARRAY_LEN(tokenizers); i++) {
        if (!ends_with(path, tokenizers[i])) continue;
        inspect_tokenizer(mem, path);
        return true;
    }
    return false;
}

/* Options of samples are not for files. */
static void check_options(const Options *o) {
    static const char *const of_samples[] = {"--split", "--samples", "--json"};
    for (int i = 0; i < ARRAY_LEN(of_samples); i++)
        if (option_given(o, of_samples[i]))
            fail(EXIT_CONFIG, "%s is for samples: stator inspect CONFIG.yaml %s ...",
                 of_samples[i], of_samples[i]);
    if (o->nflags)
        fail(EXIT_CONFIG, "unknown option %.100s; stator help inspect", o->flag[0]);
}

int cmd_inspect(int argc, char **argv) {
    const Options *o = options_take(COMMAND_inspect, argc, argv);
    if (!o) return 0;
    Arena *mem = o->mem;
    if (!o->nwords || !o->word[0][0])
        fail(EXIT_CONFIG, "inspect needs a path: stator inspect FILE|FOLDER, or stator "
                          "inspect CONFIG.yaml --split train; stator help inspect");
    const char *path = o->word[0];
    if (is_yaml_name(path)) {
        inspect_samples(o);
        arena_free(mem);
        return 0;
    }
    check_options(o);
    if (!inspect_path(mem, path, option_int(o, "--vocab_size", 0)))
        fail(EXIT_CONFIG,
             "%s: not known what this is; stator help inspect lists what "
             "can be looked at",
             path);
    printf("%s: sound\n", path);
    arena_free(mem);
    return 0;
}
