/* cmd_inspect.c - the command inspect: finds out what a path is; run folders. Checkpoints
 * are in inspect_ckpt.c, the other files in inspect_files.c, samples of a configuration
 * in inspect_samples.c. */
#include "base/json.h"
#include "frontend/config/commands.h"
#include "frontend/tools/inspect.h"
#include "runtime/store/ckpt_files.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

static const char usage_text[] =
    "stator inspect FILE|FOLDER [--vocab_size N]\n"
    "stator inspect CONFIG.yaml --split train|valid|test --samples 0,17,100 [--json]\n\n"
    "Says what it holds, and whether it is sound:\n"
    "  P.bin, P.idx or P       tokens of stator preprocess or Megatron-LM; every token\n"
    "                          is read, with --vocab_size N it must be below N\n"
    "  *.safetensors, *.safetensors.index.json, a Hugging Face folder\n"
    "  a checkpoint, a folder of checkpoints, a run folder: checksums of all files\n"
    "  tokenizer.json, vocab.json, merges.txt, or a folder with them\n"
    "  metrics.jsonl\n"
    "Exit codes: 0 sound, 2 not known what it is, 3 data or 4 weights are damaged.\n";

static bool is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool has(Arena *mem, const char *dir, const char *name) {
    return file_exists(path_join(mem, dir, name));
}

static int checkpoints_in(Arena *mem, const char *folder) {
    CkptEntry *e;
    int n = 0;
    return ckpt_list(mem, folder, &e, &n) == 0 ? n : 0;
}

/* Folders. */

static void inspect_run(Arena *mem, const char *folder) {
    static const char *const names[] = {"config.yaml", "plan.json", RUN_METRICS,
                                        "loss.svg", RUN_CHECKPOINTS};
    printf("%s: run folder with", folder);
    for (int i = 0; i < ARRAY_LEN(names); i++)
        if (has(mem, folder, names[i])) printf(" %s", names[i]);
    putchar('\n');
    const char *plan = path_join(mem, folder, "plan.json");
    if (file_exists(plan)) json_read(mem, plan, 64u << 20, EXIT_DATA);
    const char *metrics = path_join(mem, folder, RUN_METRICS);
    if (file_exists(metrics)) inspect_metrics(mem, metrics);
    const char *ckpt = path_join(mem, folder, RUN_CHECKPOINTS);
    if (is_dir(ckpt)) inspect_checkpoints(mem, ckpt);
}

static bool inspect_folder(Arena *mem, const char *path) {
    bool weights = has(mem, path, "model.safetensors.index.json") ||
                   has(mem, path, "model.safetensors");
    bool tokenizer = has(mem, path, "tokenizer.json") || has(mem, path, "vocab.json");
    if (has(mem, path, "manifest.json")) {
        inspect_checkpoint(mem, path);
    } else if (has(mem, path, RUN_METRICS) ||
               is_dir(path_join(mem, path, RUN_CHECKPOINTS))) {
        inspect_run(mem, path);
    } else if (checkpoints_in(mem, path)) {
        inspect_checkpoints(mem, path);
    } else if (has(mem, path, "layout.json") || has(mem, path, "optimizer.safetensors")) {
        inspect_checkpoint(mem, path); /* which misses its manifest */
    } else {
        if (weights) inspect_safetensors(mem, path);
        if (tokenizer) inspect_tokenizer(mem, path);
        return weights || tokenizer;
    }
    return true;
}

static bool inspect_path(Arena *mem, const char *path, int64_t vocab) {
    static const char *const tokenizers[] = {"tokenizer.json", "vocab.json", "merges.txt",
                                             "encoder.json", "vocab.bpe"};
    if (is_dir(path)) return inspect_folder(mem, path);
    if (ends_with(path, ".idx") || ends_with(path, ".bin") ||
        (!file_exists(path) && file_exists(arena_printf(mem, "%s.idx", path)))) {
        inspect_indexed(mem, path, vocab);
        return true;
    }
    if (!file_exists(path)) fail(EXIT_DATA, "cannot open %s: %s", path, strerror(ENOENT));
    if (ends_with(path, ".safetensors") || ends_with(path, ".safetensors.index.json")) {
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

static const char *read_words(int argc, char **argv, int64_t *vocab) {
    const char *path = NULL;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (!strcmp(word, "--vocab_size") || !strcmp(word, "--vocab-size")) {
            char *end = NULL;
            errno = 0;
            if (i + 1 < argc) *vocab = strtoll(argv[++i], &end, 10);
            if (!end || *end || errno || *vocab < 1 || *vocab > INT32_MAX)
                fail(EXIT_CONFIG, "%s needs a whole number, 1 .. %d", word, INT32_MAX);
        } else if (!strncmp(word, "--", 2)) {
            fail(EXIT_CONFIG, "unknown option %.100s; stator inspect --help", word);
        } else if (path) {
            fail(EXIT_CONFIG, "one path at a time: %.200s", word);
        } else {
            path = word;
        }
    }
    if (!path || !path[0])
        fail(EXIT_CONFIG, "inspect needs a path; stator inspect --help");
    return path;
}

int cmd_inspect(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            fputs(usage_text, stdout);
            return 0;
        }
    }
    for (int i = 1; i < argc; i++)
        if (ends_with(argv[i], ".yaml") || ends_with(argv[i], ".yml"))
            return inspect_samples(argc, argv);
    int64_t vocab = 0;
    const char *path = read_words(argc, argv, &vocab);
    Arena *mem = arena_new();
    if (!inspect_path(mem, path, vocab))
        fail(EXIT_CONFIG,
             "%s: not known what this is; stator inspect --help lists what "
             "can be looked at",
             path);
    printf("%s: sound\n", path);
    arena_free(mem);
    return 0;
}
