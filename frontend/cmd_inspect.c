/* cmd_inspect.c - the command inspect: finds out what a path is; checkpoints and run
 * folders. The other files are in inspect_files.c, samples of a configuration in
 * inspect_samples.c. */
#include "../ir/json.h"
#include "../runtime/ckpt_files.h"
#include "../runtime/data_reader.h"
#include "../runtime/safetensors.h"
#include "commands.h"
#include "inspect.h"
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

static bool ends(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && !strcmp(s + n - m, suffix);
}

static bool has(Arena *mem, const char *dir, const char *name) {
    return file_exists(path_join(mem, dir, name));
}

/* Checkpoints. */

/* NULL, or what differs from the manifest. */
static const char *check_file(Arena *mem, const char *folder, const Manifest *m, int i) {
    FileMap map = {0};
    char hex[33];
    file_map(&map, path_join(mem, folder, m->file[i].name));
    hash_hex(map.bytes ? map.bytes : (const unsigned char *)"", map.n, hex);
    file_unmap(&map);
    if (!strcmp(hex, m->file[i].xxh3)) return NULL;
    return arena_printf(mem, "%s: its checksum is %s, not %s as saved",
                        m->file[i].name, hex, m->file[i].xxh3);
}

static const char *checkpoint_wrong(Arena *mem, const char *folder, Manifest *m) {
    const char *wrong = manifest_read(mem, folder, m);
    if (wrong) return wrong;
    if (m->version > CKPT_VERSION)
        return arena_printf(mem, "format version %lld is newer than this stator's %d",
                            (long long)m->version, CKPT_VERSION);
    for (int i = 0; i < m->nfiles && !wrong; i++) wrong = check_file(mem, folder, m, i);
    return wrong;
}

static void say_state(Arena *mem, const char *state_json) {
    const Json *state = json_parse(mem, "state", state_json, strlen(state_json), 16 << 20,
                                   EXIT_CHECKPOINT);
    for (const Json *e = state->first; e; e = e->next)
        printf("  %-12s %.400s\n", e->key, json_raw(mem, e));
}

static void say_file(Arena *mem, const char *folder, const CkptFile *f) {
    unsigned long long bytes = f->bytes;
    if (f->rank < 0) {
        printf("  %-32s %12llu bytes, which rank wrote what\n", f->name, bytes);
        return;
    }
    const char *path = path_join(mem, folder, f->name);
    Safetensors *s = safetensors_open(mem, path, EXIT_CHECKPOINT);
    printf("  %-32s %12llu bytes, %d tensors\n", f->name, bytes, s->n);
    safetensors_close(s);
}

void inspect_checkpoint(Arena *mem, const char *folder) {
    Manifest m;
    const char *wrong = checkpoint_wrong(mem, folder, &m);
    if (wrong) fail(EXIT_CHECKPOINT, "checkpoint %s is damaged: %s", folder, wrong);
    printf("%s: checkpoint of step %lld\n", folder, (long long)m.step);
    for (int i = 0; i < m.nfiles; i++) say_file(mem, folder, &m.file[i]);
    say_state(mem, m.state_json);
}

void inspect_checkpoints(Arena *mem, const char *folder) {
    CkptEntry *e;
    int n, damaged = 0;
    int error = ckpt_list(mem, folder, &e, &n);
    if (error) fail(EXIT_CHECKPOINT, "cannot read %s: %s", folder, strerror(error));
    Text all = text_new(mem);
    printf("%s: checkpoints\n", folder);
    for (int i = 0; i < n; i++) {
        Manifest m;
        const char *wrong = "unfinished; it does no harm";
        if (!e[i].tmp) {
            wrong = checkpoint_wrong(mem, path_join(mem, folder, e[i].name), &m);
            if (!wrong && m.step != e[i].step) wrong = "the manifest is of another step";
            if (wrong) text_add(&all, "\n  %s: %s", e[i].name, wrong);
            damaged += wrong != NULL;
        }
        printf("  %s  %s\n", e[i].name, wrong ? wrong : "sound");
    }
    if (damaged)
        fail(EXIT_CHECKPOINT, "%d of the checkpoints in %s are damaged:%s", damaged,
             folder, all.s);
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
    if (ends(path, ".idx") || ends(path, ".bin") ||
        (!file_exists(path) && file_exists(arena_printf(mem, "%s.idx", path)))) {
        inspect_indexed(mem, path, vocab);
        return true;
    }
    if (!file_exists(path)) fail(EXIT_DATA, "cannot open %s: %s", path, strerror(ENOENT));
    if (ends(path, ".safetensors") || ends(path, ".safetensors.index.json")) {
        inspect_safetensors(mem, path);
        return true;
    }
    if (ends(path, "metrics.jsonl")) {
        inspect_metrics(mem, path);
        return true;
    }
    for (int i = 0; i < ARRAY_LEN(tokenizers); i++) {
        if (!ends(path, tokenizers[i])) continue;
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
        if (ends(argv[i], ".yaml") || ends(argv[i], ".yml"))
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
