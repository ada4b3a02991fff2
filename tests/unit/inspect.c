/* inspect.c - the command inspect: what it says of sound files, and that it finds what is
 * damaged. */
#define _GNU_SOURCE
#include "../test.h"
#include "frontend/config/commands.h"
#include "runtime/data/indexed_write.h"
#include "runtime/run/metrics.h"
#include "runtime/store/ckpt_files.h"
#include "runtime/store/safetensors.h"
#include "runtime/text/tokenizer.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int code;
static char said[1 << 14];

static char *temp(const char *name) {
    return path_join(arena_new(), temp_dir(), name);
}

static void inspect_words(int argc, char **argv) {
    Catch c;
    fflush(NULL);
    int log = open(temp("log"), O_RDWR | O_CREAT | O_TRUNC, 0600), out = dup(1);
    EXPECT(log >= 0 && dup2(log, 1) == 1);
    if (CATCH(c)) {
        code = cmd_inspect(argc, argv);
        catch_end(&c);
    } else {
        code = c.code;
        puts(c.message);
    }
    fflush(NULL);
    ssize_t n = pread(log, said, sizeof said - 1, 0);
    dup2(out, 1);
    close(out);
    close(log);
    EXPECT(n >= 0);
    said[n] = 0;
}

static void inspect(const char *path) {
    char *argv[] = {"inspect", (char *)path, NULL};
    inspect_words(2, argv);
}

static void says(int want_code, const char *part) {
    if (code != want_code || !strstr(said, part))
        test_fail(__FILE__, __LINE__, "code %d:\n%s\nwanted %d: %s", code, said,
                  want_code, part);
}

static void sound(const char *part) {
    says(0, ": sound\n");
    says(0, part);
}

/* One byte of a file changed, or with `cut` its end taken off. */
static void damage(const char *path, off_t at, bool cut) {
    int fd = open(path, O_RDWR);
    unsigned char byte;
    EXPECT(fd >= 0);
    if (cut) {
        EXPECT(ftruncate(fd, at) == 0);
    } else {
        EXPECT_INT(pread(fd, &byte, 1, at), 1);
        byte ^= 0x41;
        EXPECT_INT(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
}

static void make_pair(const char *prefix) {
    static const uint16_t tokens[] = {5, 6, 7, 300, 9};
    static const int32_t lengths[] = {3, 2}, sequences[] = {1, 0, 1};
    IndexedWriter *w = indexed_write_open(arena_new(), prefix, 1000);
    IndexedPart part = {tokens, sizeof tokens, lengths, 2, sequences, 3};
    indexed_write_add(w, &part);
    indexed_write_complete(w);
    indexed_write_publish(w);
    indexed_write_close(w);
}

TEST(inspect_pairs) {
    char *p = temp("p");
    make_pair(p);
    inspect(p);
    sound("  tokens       5, u16\n  documents    3 (1 empty)\n  sequences    2\n"
          "  lengths      2 .. 3, mean 2.5\n  largest      token 300\n");
    inspect(temp("p.bin"));
    sound("largest      token 300");
    char *words[] = {"inspect", temp("p.idx"), "--vocab_size", "300", NULL};
    inspect_words(4, words);
    says(EXIT_DATA, "p.bin: offset 6: token 300 is outside the vocabulary");
    words[3] = "301";
    inspect_words(4, words);
    sound("token 300");
    words[3] = "30x";
    inspect_words(4, words);
    says(EXIT_CONFIG, "--vocab_size 30x: write a whole number from 1");
    damage(temp("p.idx"), 36, false);
    inspect(p);
    says(EXIT_DATA, "p.idx: offset 34: sequence 0 of");
    make_pair(p);
    damage(temp("p.bin"), 8, true);
    inspect(p);
    says(EXIT_DATA, "p.idx: offset 38");
    EXPECT(unlink(temp("p.bin")) == 0);
    inspect(p);
    says(EXIT_DATA, "cannot open");
}

TEST(inspect_weights) {
    float w[6] = {1, 2, NAN, 4, INFINITY, 6};
    SafeTensor t = {.name = "w", .dtype = DT_F32, .rank = 2, .dim = {2, 3}, .data = w};
    char *path = temp("model.safetensors");
    EXPECT_INT(safetensors_write(path, &t, 1, NULL, NULL), 0);
    inspect(path);
    says(EXIT_CHECKPOINT, "  F32    [2,3] w   2 values are not finite\n");
    says(EXIT_CHECKPOINT, "  1 tensors, 6 numbers, 24 B, 2 not finite\n");
    says(EXIT_CHECKPOINT, "2 of the numbers are inf or NaN, the first in w");
    EXPECT(!strstr(said, "sound"));
    w[2] = w[4] = 0;
    EXPECT_INT(safetensors_write(path, &t, 1, NULL, NULL), 0);
    inspect(path);
    sound("1 tensors, 6 numbers, 24 B, 0 not finite\n");
    inspect(temp_dir()); /* as a folder of Hugging Face's */
    sound("[2,3] w");
    struct stat st;
    EXPECT(stat(path, &st) == 0);
    damage(path, st.st_size - 1, true);
    inspect(path);
    says(EXIT_CHECKPOINT, "model.safetensors");
}

/* A name must not write over lines, or write lines of its own. */
TEST(inspect_names_of_control_characters) {
    float w[2] = {1, NAN};
    const char *name = "w\033[2J\nx: sound\xC2\x9B\x7F";
    SafeTensor t = {.name = name, .dtype = DT_F32, .rank = 1, .dim = {2}, .data = w};
    EXPECT_INT(safetensors_write(temp("x.safetensors"), &t, 1, NULL, NULL), 0);
    inspect(temp("x.safetensors"));
    says(EXIT_CHECKPOINT, "[2] w?[2J?x: sound?");
    says(EXIT_CHECKPOINT, "the first in w?[2J?x: sound?");
    EXPECT(!strchr(said, 033) && !strchr(said, 0x7F) && !strstr(said, "\xC2\x9B"));
}

TEST(inspect_names_of_files_begin_no_lines) {
    const char *path = temp("w\nstator: error: x");
    write_text(path, "what is no file of weights");
    inspect(path);
    EXPECT(code != 0);
    EXPECT_PART(said, "w?stator: error: x");
    EXPECT(!strstr(said, "\nstator: error: x"));
}

static void save_keeping(const char *dir, int64_t step, float last, int keep) {
    float w[4] = {1, 2, 3, 4}, m[4] = {[2] = last, [3] = last};
    CkptTensor t[] = {{"w", DT_F32, 1, {4}, w, CKPT_MODEL},
                      {"w.m", DT_F32, 1, {4}, m, CKPT_OPTIMIZER}};
    char why[256];
    const CkptSave what = {step, t, 2, "{\"seed\": 42}", keep, -1};
    EXPECT_INT(ckpt_save(dir, &what, why, sizeof why), 0);
}

static void save_numbers(const char *dir, int64_t step, float last) {
    save_keeping(dir, step, last, 0);
}

static void save(const char *dir, int64_t step) {
    save_numbers(dir, step, 0);
}

/* Weights that no step can use are not sound, whatever their checksums say. */
TEST(inspect_checkpoints_that_are_not_finite) {
    char *dir = temp("ckpt");
    EXPECT_INT(dir_make(dir), 0);
    save(dir, 5);
    save_numbers(dir, 10, NAN);
    inspect(temp("ckpt/step_00000010"));
    says(EXIT_CHECKPOINT,
         "optimizer.safetensors: 2 of the 4 numbers of w.m are inf or NaN");
    inspect(dir);
    says(EXIT_CHECKPOINT, "  step_00000005  sound\n");
    says(EXIT_CHECKPOINT, "1 of the checkpoints");
}

/* What is wrong in one folder of checkpoints hides no other. */
TEST(inspect_a_run_with_a_damaged_checkpoint) {
    static const char *const dirs[] = {"run", "run/ckpt", "run/best"};
    for (int i = 0; i < ARRAY_LEN(dirs); i++) EXPECT_INT(dir_make(temp(dirs[i])), 0);
    save(temp("run/ckpt"), 5);
    save(temp("run/best"), 4);
    damage(temp("run/ckpt/step_00000005/model.safetensors"), 60, false);
    inspect(temp("run"));
    says(EXIT_CHECKPOINT, "1 of the checkpoints");
    says(EXIT_CHECKPOINT, "best: checkpoints\n  step_00000004  sound\n");
    damage(temp("run/best/step_00000004/manifest.json"), 30, false);
    write_text(temp("run/metrics.jsonl"), "{");
    inspect(temp("run"));
    says(EXIT_DATA, "metrics.jsonl:1: the line is broken");
    says(EXIT_DATA, "ckpt are damaged:");
    EXPECT_INT(unlink(temp("run/metrics.jsonl")), 0);
    inspect(temp("run"));
    says(EXIT_CHECKPOINT, "ckpt are damaged:");
    says(EXIT_CHECKPOINT, "best are damaged:\n  step_00000004: manifest.json: its own");
}

TEST(inspect_a_checkpoint_without_manifest) {
    char *dir = temp("ckpt");
    EXPECT_INT(dir_make(dir), 0);
    save(dir, 5);
    EXPECT(unlink(temp("ckpt/step_00000005/manifest.json")) == 0);
    inspect(temp("ckpt/step_00000005"));
    says(EXIT_CHECKPOINT, "manifest.json is missing");
}

/* Two ranks that hold half of w each. */
static void save_parts(Arena *mem, const char *dir) {
    static Mesh mesh = {.naxes = 1, .axis = {{.name = "tp", .size = 2}}};
    float w[2] = {1, 2}, m[2] = {0};
    Type whole = type_parse(mem, &mesh, "f32[4:tp]");
    Layout l;
    EXPECT(!layout_make(mem, &mesh, &whole, NULL, 0, &l));
    CkptTensor t[] = {{"w", DT_F32, 1, {4}, w, CKPT_MODEL, &l},
                      {"w.m", DT_F32, 1, {4}, m, CKPT_OPTIMIZER, &l}};
    const CkptSave of_rank[] = {{5, t, 2, "{}"}, {5, t, 2, "{}"}};
    char why[256];
    EXPECT_INT(ckpt_save_ranks(dir, of_rank, 2, why, sizeof why), 0);
}

/* The manifest with the checksum that the file has now, sealed again. */
static void seal_again(Arena *mem, const char *folder, const char *name) {
    const char *text;
    Manifest m;
    EXPECT(!manifest_fetch(mem, folder, &text) && !manifest_parse(mem, text, &m));
    for (int i = 0; i < m.nfiles; i++) {
        size_t n;
        if (strcmp(m.file[i].name, name)) continue;
        char *bytes = file_read(mem, path_join(mem, folder, name), 1 << 20, &n, 1);
        m.file[i].bytes = n;
        hash_hex(bytes, n, m.file[i].xxh3);
    }
    Text sealed = manifest_text(mem, &m);
    write_text(path_join(mem, folder, "manifest.json"), sealed.s);
}

TEST(inspect_a_checksum_with_more_digits) {
    Arena *mem = arena_new();
    char *dir = temp("ckpt"), *folder = temp("ckpt/step_00000005"), seal[HASH_HEX_BYTES];
    const char *path = path_join(mem, folder, "manifest.json"), *text;
    EXPECT(dir_make(dir) == 0);
    save_parts(mem, dir);
    EXPECT(!manifest_fetch(mem, folder, &text));
    const char *end = strstr(text, "\"}"), *last = strstr(text, "\"xxh3\": \"");
    while (strstr(last + 1, "\"xxh3\": \"")) last = strstr(last + 1, "\"xxh3\": \"");
    Text longer = text_new(mem);
    text_add(&longer, "%.*s0%.*s", (int)(end - text), text, (int)(last - end), end);
    hash_hex(longer.s, longer.n, seal);
    text_add(&longer, "\"xxh3\": \"%s\"\n}\n", seal);
    write_text(path, longer.s);
    inspect(folder);
    says(EXIT_CHECKPOINT, "a checksum has 32 digits");
}

/* With checksums that are right. */
TEST(inspect_a_layout_of_nothing) {
    Arena *mem = arena_new();
    char *dir = temp("ckpt"), *folder = temp("ckpt/step_00000005");
    char *layout = path_join(mem, folder, "layout.json");
    EXPECT_INT(dir_make(dir), 0);
    save_parts(mem, dir);
    inspect(folder);
    sound("which rank wrote what");
    char *text = file_read(mem, layout, 1 << 20, NULL, 1), *at;
    write_text(layout, "garbage");
    seal_again(mem, folder, "layout.json");
    inspect(folder);
    says(EXIT_CHECKPOINT, "layout.json");
    inspect(dir);
    says(EXIT_CHECKPOINT, "1 of the checkpoints");
    for (char *p = text; (at = strstr(p, "[4:tp]")); p = at) memcpy(at, "[4]   ", 6);
    write_text(layout, text);
    seal_again(mem, folder, "layout.json");
    inspect(folder);
    says(EXIT_CHECKPOINT, "is not what layout.json says");
    write_text(layout, "{\"mesh\": [], \"tensors\": []}");
    seal_again(mem, folder, "layout.json");
    inspect(folder);
    says(EXIT_CHECKPOINT, "is not what layout.json says");
}

/* An empty document is one without sequences; a sequence without tokens is nobody's. */
TEST(inspect_sequences_without_tokens) {
    static const uint16_t tokens[] = {5, 6, 7, 300, 9};
    static const int32_t lengths[] = {3, 0, 2}, sequences[] = {1, 1, 1};
    IndexedWriter *w = indexed_write_open(arena_new(), temp("p"), 1000);
    IndexedPart part = {tokens, sizeof tokens, lengths, 3, sequences, 3};
    indexed_write_add(w, &part);
    indexed_write_complete(w);
    indexed_write_publish(w);
    indexed_write_close(w);
    inspect(temp("p"));
    says(EXIT_DATA, "p.idx: offset 38: sequence 1 has no token (1 of 3 have none)");
}

TEST(inspect_checkpoints) {
    char *dir = temp("run/ckpt");
    EXPECT_INT(dir_make(dir), 0);
    save(dir, 5);
    save(dir, 10);
    inspect(temp("run/ckpt/step_00000010"));
    sound("checkpoint of step 10\n");
    says(0, "seed         42\n");
    says(0, "1 tensors");
    inspect(dir);
    sound("  step_00000010  sound\n  step_00000005  sound\n");
    write_text(temp("run/config.yaml"), "a: 1\n");
    inspect(temp("run"));
    sound("run folder with config.yaml ckpt\n");
    char *model = temp("run/ckpt/step_00000005/model.safetensors");
    struct stat st;
    EXPECT(stat(model, &st) == 0);
    damage(model, st.st_size - 1, false);
    inspect(temp("run/ckpt/step_00000005"));
    says(EXIT_CHECKPOINT, "model.safetensors: its checksum is");
    inspect(temp("run"));
    says(EXIT_CHECKPOINT, "1 of the checkpoints");
    says(EXIT_CHECKPOINT, "  step_00000010  sound\n");
    EXPECT(unlink(model) == 0);
    inspect(dir);
    says(EXIT_CHECKPOINT, "step_00000005: model.safetensors is missing");
}

/* A run that trains deletes them: what is listed and then not there is not damaged. */
TEST_LIMIT(inspect_checkpoints_that_are_deleted_meanwhile, 60) {
    enum { SAVED = 100 };
    char *dir = temp("ckpt");
    int looks = 0;
    EXPECT_INT(dir_make(dir), 0);
    save(dir, 1);
    fflush(NULL);
    pid_t pid = fork();
    for (int64_t step = 2; pid == 0 && step < SAVED; step++)
        save_keeping(dir, step, 0, 1);
    if (pid == 0) _exit(0);
    for (; waitpid(pid, NULL, WNOHANG) == 0; looks++) {
        inspect(dir);
        sound("checkpoints\n");
    }
    EXPECT(looks > 0);
}

TEST(inspect_the_best_checkpoint_of_a_run) {
    EXPECT_INT(dir_make(temp("run/ckpt")), 0);
    EXPECT_INT(dir_make(temp("run/best")), 0);
    save(temp("run/ckpt"), 10);
    save(temp("run/best"), 5);
    inspect(temp("run"));
    sound("run folder with ckpt best\n");
    damage(temp("run/best/step_00000005/model.safetensors"), 9, false);
    inspect(temp("run"));
    says(EXIT_CHECKPOINT, "step_00000005: model.safetensors: its checksum is");
}

TEST(inspect_metrics) {
    char *path = temp("metrics.jsonl");
    Arena *mem = arena_new();
    Metrics *m = metrics_open(mem, path, 3, 0, NULL);
    for (int step = 1; step <= 3; step++) {
        MetricsRow row = {.step = step,
                          .loss = 5 - step,
                          .grad_norm = step == 2 ? INFINITY : 1,
                          .skipped = step == 2,
                          .lr = 0.1,
                          .tokens = 100,
                          .seconds = 20,
                          .mfu = -1};
        metrics_write(m, &row);
    }
    metrics_close(m);
    inspect(path);
    sound("  steps        1 .. 3\n  skipped      1\n  loss         4.0000 .. 2.0000\n"
          "  tokens       300 in 0:01:00\n");
    struct stat st;
    EXPECT(stat(path, &st) == 0);
    damage(path, st.st_size - 4, true);
    inspect(path);
    says(EXIT_DATA, "metrics.jsonl:3: the line is broken (1 in all)");
    write_text(path, "");
    inspect(path);
    sound("  steps        none\n");
}

/* Rows as a run writes them, and others that no run does. */
TEST(inspect_metrics_by_their_values) {
    static const struct {
        const char *second; /* line, after one of step 1 */
        int code;
        const char *says;
    } kinds[] = {
        {"{\"step\":2,\"loss\":3,\"grad_norm\":1,\"tokens\":8}\n", 0, "1 .. 2\n  loss"},
        {"{\"step\":2,\"loss\":null,\"loss_is\":\"nan\",\"grad_norm\":1,\"skipped\":true}"
         "\n",
         0, "skipped      1\n"},
        {"{\"step\":5,\"loss\":3,\"grad_norm\":1}\n", 0,
         "missing      3, the first is step 2\n"},
        {"{\"step\":2,\"loss\":null,\"loss_is\":\"nan\",\"grad_norm\":1}\n", EXIT_DATA,
         ":2: step 2 has loss nan and gradient norm 1, and is none of those that were"},
        {"{\"step\":2,\"loss\":3,\"grad_norm\":null,\"grad_norm_is\":\"inf\"}\n",
         EXIT_DATA, ":2: step 2 has loss 3 and gradient norm inf"},
        {"{\"step\":1,\"loss\":3,\"grad_norm\":1}\n", EXIT_DATA,
         ":2: step 1 follows step 1"},
        {"{\"step\":2,\"loss\":NaN,\"grad_norm\":1}\n", EXIT_DATA,
         ":2: the line is broken (1 in"},
        {"{\"step\":2,\"grad_norm\":1}\n", EXIT_DATA, ":2: the line is broken (1 in"},
        {"{\"step\":2,\"loss\":\"a\",\"grad_norm\":1}\n", EXIT_DATA,
         ":2: the line is broken"},
        {"{\"step\":2,\"loss\":3,\"grad_norm\":1,\"tokens\":-8}\n{", EXIT_DATA,
         ":2: the line is broken (2 in all)"},
        {"{\"step\":2,\"loss\":3,\"grad_norm\":1}", EXIT_DATA,
         ":2: the line is broken (1 in"},
    };
    const char *path = temp("metrics.jsonl");
    for (int i = 0; i < ARRAY_LEN(kinds); i++) {
        test_at("%s", kinds[i].second);
        write_text(path, arena_printf(arena_new(),
                                      "{\"step\":1,\"loss\":4,\"grad_norm\":1}\n%s",
                                      kinds[i].second));
        inspect(path);
        says(kinds[i].code, kinds[i].says);
    }
}

/* Numbers of tokens whose sum has no room. */
TEST(inspect_metrics_beyond_all_numbers) {
    const char *path = temp("metrics.jsonl");
    Text t = text_new(arena_new());
    for (int step = 1; step <= 2; step++)
        text_add(&t,
                 "{\"step\":%d,\"loss\":1,\"grad_norm\":1,\"lr\":1,\"tokens\":%lld,"
                 "\"seconds\":1}\n",
                 step, (long long)INT64_MAX - 5);
    write_text(path, t.s);
    inspect(path);
    sound("  steps        1 .. 2\n  loss         1.0000 .. 1.0000\n"
          "  tokens       9223372036854775807 in 0:00:02\n");
}

TEST(inspect_tokenizers) {
    static const char text[] = "a text of some words, and some words again";
    Arena *mem = arena_new();
    TokenizerTrainer *tr = tokenizer_trainer_new(mem);
    tokenizer_trainer_add(tr, text, sizeof text - 1, NULL);
    char *dir = temp("tok");
    tokenizer_write(tokenizer_train(tr, 260), dir);
    static const char *const names[] = {"tok/tokenizer.json", "tok/vocab.json",
                                        "tok/merges.txt", "tok"};
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        inspect(temp(names[i]));
        sound("  vocabulary   260, end of document 259\n");
    }
    char *words[] = {"inspect", temp("tok"), "--vocab_size", "300", NULL};
    inspect_words(4, words);
    says(EXIT_CONFIG, "--vocab_size is for tokens of a .bin/.idx pair, which ");
    damage(temp("tok/tokenizer.json"), 0, false);
    inspect(dir);
    says(EXIT_DATA, "tokenizer.json");
}

TEST(inspect_unknown) {
    write_text(temp("x.dat"), "x");
    inspect(temp("x.dat"));
    says(EXIT_CONFIG, "not known what this is");
    inspect(temp("gone.safetensors"));
    says(EXIT_DATA, "cannot open");
    EXPECT_INT(dir_make(temp("empty")), 0);
    inspect(temp("empty"));
    says(EXIT_CONFIG, "not known what this is");
    char *none[] = {"inspect", NULL};
    inspect_words(1, none);
    says(EXIT_CONFIG, "inspect needs a path");
}
