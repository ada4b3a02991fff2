/* PyTorch's files: one that torch.save wrote against the same tensors as safetensors,
 * shards, and files made to do harm. golden/torch/{state,protocol4}.bin hold every type,
 * tensors that share numbers, lie across or begin inside of a storage. */
#include "runtime/store/torch_file.h"
#include "../test.h"
#include "runtime/store/torch_pickle.h"
#include "runtime/store/zip_stored.h"
#include <stdlib.h>

static const char *golden(Arena *mem, const char *name) {
    return arena_printf(mem, "%s/golden/torch/%s", tests_dir(), name);
}

static uint8_t *read_golden(Arena *mem, const char *name, size_t *n) {
    return (uint8_t *)file_read(mem, golden(mem, name), 1 << 20, n, EXIT_DATA);
}

static void same(const char *a_path, const char *b_path) {
    Arena *mem = arena_new();
    Safetensors *a = safetensors_open(mem, a_path, EXIT_DATA);
    Safetensors *b = safetensors_open(mem, b_path, EXIT_DATA);
    EXPECT(a->n == b->n && a->n >= 14);
    for (int i = 0; i < a->n; i++) {
        const SafeTensor *t = &a->t[i], *u = safetensors_need(b, t->name);
        EXPECT_STR(t->type_name, u->type_name);
        EXPECT(t->dtype == u->dtype && t->rank == u->rank && t->bytes == u->bytes);
        EXPECT(!memcmp(t->dim, u->dim, sizeof t->dim));
        EXPECT(!t->bytes || !memcmp(t->data, u->data, (size_t)t->bytes));
    }
    safetensors_close(a);
    safetensors_close(b);
    arena_free(mem);
}

TEST(reads_what_torch_saves) {
    Arena *mem = arena_new();
    same(golden(mem, "state.bin"), golden(mem, "state.safetensors"));
    same(golden(mem, "protocol4.bin"), golden(mem, "state.safetensors"));
    arena_free(mem);
}

/* ---- folders ---- */

static const char *folder_with_index(Arena *mem, const char *shard) {
    size_t n;
    const void *bytes = read_golden(mem, "state.bin", &n);
    const char *dir = path_join(mem, temp_dir(), "shards");
    EXPECT(!dir_make(dir));
    EXPECT(!file_write_atomic(path_join(mem, dir, "pytorch_model-00001.bin"), bytes, n));
    bytes = read_golden(mem, "protocol4.bin", &n);
    EXPECT(!file_write_atomic(path_join(mem, dir, "pytorch_model-00002.bin"), bytes, n));
    char *index = arena_printf(
        mem,
        "{\"metadata\":{\"total_size\":1},\"weight_map\":{\"a.weight\":\"%s\","
        "\"half\":\"pytorch_model-00002.bin\"}}",
        shard);
    const char *path = path_join(mem, dir, "pytorch_model.bin.index.json");
    EXPECT(!file_write_atomic(path, index, strlen(index)));
    return dir;
}

TEST(reads_shards) {
    Arena *mem = arena_new();
    const char *dir = folder_with_index(mem, "pytorch_model-00001.bin");
    Safetensors *s = safetensors_open(mem, dir, EXIT_CHECKPOINT);
    EXPECT_INT(s->n, 2);
    EXPECT_INT(safetensors_need(s, "a.weight")->bytes, 24);
    EXPECT_STR(safetensors_need(s, "half")->type_name, "F16");
    safetensors_close(s);
    static const char *const bad[] = {
        "../pytorch_model-00001.bin", "/etc/passwd", "", ".", "..", "a/b.bin"};
    for (int i = 0; i < ARRAY_LEN(bad); i++)
        EXPECT_FAIL(
            safetensors_open(mem, folder_with_index(mem, bad[i]), EXIT_CHECKPOINT),
            EXIT_CHECKPOINT, "must name a file in the same folder");
    EXPECT_FAIL(
        safetensors_open(mem, folder_with_index(mem, "gone.bin"), EXIT_CHECKPOINT),
        EXIT_CHECKPOINT, "shard gone.bin: cannot open");
    arena_free(mem);
}

/* ---- pickles ---- */

static void refuse_pickle(const char *bytes, size_t n, const char *part) {
    Arena *mem = arena_new();
    TorchTensors all;
    const char *wrong = torch_pickle_try(mem, (const uint8_t *)bytes, n, &all);
    if (!wrong || !strstr(wrong, part))
        test_fail(__FILE__, __LINE__, "'%s', not '%s'", wrong ? wrong : "taken", part);
    arena_free(mem);
}
#define REFUSE(bytes, part) refuse_pickle(bytes, sizeof(bytes) - 1, part)
#define STORAGE                                                                          \
    "(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"                                   \
    "0X\3\0\0\0cpuK\6tQ"
#define REBUILD "\x80\2}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n"

TEST(pickles_do_nothing_but_hold_tensors) {
    REFUSE("\x80\2cos\nsystem\nX\2\0\0\0id\x85R.",
           "byte 2 of the pickle: GLOBAL names os.system, which");
    REFUSE("\x80\2cbuiltins\neval\n.", "builtins.eval");
    REFUSE("\x80\4\x8c\2os\x8c\6system\x93.",
           "byte 14 of the pickle: STACK_GLOBAL names");
    REFUSE("\x80\2ctorch.storage\n_load_from_bytes\n.", "_load_from_bytes");
    REFUSE("\x80\2(S'id'\nios\nsystem\n.", "byte 3 of the pickle: instruction 0x53");
    REFUSE("\x80\2]\x81.", "instruction 0x81");
    REFUSE("\x80\2ctorch\nFloatStorage\n)R.", "calls what nothing can be made with");
    REFUSE("\x80\2K\1K\2\x85R.", "calls what nothing");
    REFUSE("\x80\5}.", "is not protocol 2, 3 or 4");
    REFUSE("", "has no end");
    REFUSE("\x80", "is cut off");
    REFUSE("\x80\2}", "has no end");
    REFUSE("\x80\2.", "holds no dictionary");
    REFUSE("\x80\2].", "holds no dictionary");
    REFUSE("\x80\2}}.", "holds no dictionary");
    REFUSE("\x80\2}K\1K\2s.", "keys that are no text");
    REFUSE("\x80\2}X\1\0\0\0wK\2s.", "'w' is no tensor");
}

TEST(pickles_keep_to_their_stack) {
    REFUSE("\x80\2s.", "SETITEM takes a value, and there is none");
    REFUSE("\x80\2}K\1s.", "SETITEM takes a value");
    REFUSE("\x80\2}(K\1s.", "SETITEM takes a value");
    REFUSE("\x80\2u.", "SETITEMS takes values from a mark on");
    REFUSE("\x80\2(u.", "takes a value");
    REFUSE("\x80\2((u.", "adds to something that does not collect");
    REFUSE("\x80\2}(K\1u.", "adds a key without a value");
    REFUSE("\x80\2](K\1u.", "does not collect");
    REFUSE("\x80\2t.", "TUPLE takes values from a mark on");
    REFUSE("\x80\2K\1\x86.", "TUPLE2 takes a value");
    REFUSE("\x80\2(\x85.", "TUPLE1 takes a value");
    REFUSE("\x80\2R.", "REDUCE calls");
    REFUSE("\x80\2Q.", "refers to what is no storage");
    REFUSE("\x80\2b.", "BUILD takes a value");
    REFUSE("\x80\2]}b.", "sets attributes of what is no dictionary");
    REFUSE("\x80\2q\0.", "BINPUT takes a value");
    REFUSE("\x80\2}r\xff\xff\xff\xff.", "under a number out of order");
    REFUSE("\x80\2h\0.", "takes a remembered value that there is not");
    REFUSE("\x80\2j\xff\xff\xff\xff.", "takes a remembered value that there is not");
    REFUSE("\x80\2X\xff\xff\xff\xffhi.", "BINUNICODE is cut off");
    REFUSE("\x80\2X\2\0\0\0a\0.", "zero byte");
    REFUSE("\x80\2\x8a\x09"
           "123456789.",
           "more than 64 bits");
    REFUSE("\x80\2ctorch\nFloat", "GLOBAL is cut off");
}

TEST(pickles_with_tensors_that_are_none) {
    REFUSE(REBUILD "(" STORAGE "K\0J\xff\xff\xff\xff\x85K\1\x85tRs.",
           "REDUCE makes a tensor with a negative size");
    REFUSE(REBUILD "(" STORAGE "J\xff\xff\xff\xffK\1\x85K\1\x85tRs.", "negative");
    REFUSE(REBUILD "(" STORAGE "K\0K\1K\1\x86K\1\x85tRs.", "another number of strides");
    REFUSE(REBUILD "(" STORAGE "K\0(KKKKKKKKKKKKKKKKKKtK\1\x85tRs.", "more than 8");
    REFUSE(REBUILD "(K\0K\0K\1\x85K\1\x85tRs.", "other things than a storage");
    REFUSE(REBUILD ")Rs.", "other things than a storage");
    REFUSE(REBUILD "(" STORAGE "K\0K\1\x85K\1\x85\x89}}X\3\0\0\0neg\x88stRs.",
           "makes a tensor with marks");
    REFUSE("\x80\2ctorch._utils\n_rebuild_parameter\n)R.", "no tensor");
    REFUSE("\x80\2(X\7\0\0\0storagectorch\nSize\nX\1\0\0\0"
           "0X\3\0\0\0cpuK\6tQ.",
           "refers to what is no storage");
}

/* ---- archives ---- */

static const char *try_file(Arena *mem, const uint8_t *bytes, size_t n) {
    Safetensors *s = NULL;
    uint8_t *exact = malloc(n + 1); /* so that a sanitizer sees a read beyond the end */
    memcpy(exact, bytes, n);
    const char *wrong = torch_file_try(mem, "t", exact, n, &s);
    EXPECT(wrong ? wrong[0] != 0 : s != NULL);
    if (wrong) wrong = arena_strdup(mem, wrong);
    free(exact);
    return wrong;
}

TEST(every_cut_is_refused) {
    Arena *mem = arena_new();
    size_t n;
    const uint8_t *bytes = read_golden(mem, "state.bin", &n);
    EXPECT(!try_file(mem, bytes, n));
    for (size_t cut = 0; cut < n; cut++)
        if (!try_file(mem, bytes, cut))
            test_fail(__FILE__, __LINE__, "cut to %zu bytes is taken", cut);
    arena_free(mem);
}

/* An archive of two stored entries, data.pkl and the 24 bytes of storage 0. */
static uint8_t *archive(Arena *mem, const void *pickle, size_t n, size_t *bytes) {
    static const uint8_t data[24] = {1, 2, 3};
    const char *const name[] = {"t/data.pkl", "t/data/0"};
    const void *const body[] = {pickle, data};
    const uint32_t size[] = {(uint32_t)n, sizeof data};
    uint32_t at[2];
    Text t = text_new(mem);
    for (int pass = 0; pass < 2; pass++) {
        uint32_t directory = (uint32_t)t.n;
        for (int i = 0; i < 2; i++) {
            uint32_t length = (uint32_t)strlen(name[i]);
            if (pass == 0) at[i] = (uint32_t)t.n;
            text_add_bytes(&t, pass ? "PK\1\2\0\0" : "PK\3\4", pass ? 6 : 4);
            text_add_bytes(&t, (char[14]){0}, 14);
            text_add_bytes(&t, &size[i], 4);
            text_add_bytes(&t, &size[i], 4);
            text_add_bytes(&t, &length, 4); /* and no extra field */
            if (pass) text_add_bytes(&t, (char[10]){0}, 10);
            if (pass) text_add_bytes(&t, &at[i], 4);
            text_add_bytes(&t, name[i], length);
            if (!pass) text_add_bytes(&t, body[i], size[i]);
        }
        if (!pass) continue;
        uint32_t long_ = (uint32_t)t.n - directory;
        text_add_bytes(&t, "PK\5\6\0\0\0\0\2\0\2\0", 12);
        text_add_bytes(&t, &long_, 4);
        text_add_bytes(&t, &directory, 4);
        text_add_bytes(&t, "\0\0", 2);
    }
    *bytes = t.n;
    return (uint8_t *)t.s;
}

static const char *try_pickle(Arena *mem, const char *pickle, size_t n) {
    size_t bytes;
    const uint8_t *file = archive(mem, pickle, n, &bytes);
    return try_file(mem, file, bytes);
}

/* A tensor of offset, size and stride in the 6 floats of storage 0. */
#define TENSOR(place) REBUILD "(" STORAGE place "\x89}tRs."
#define MOST          "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f" /* 2^63-1 */

TEST(tensors_stay_in_their_storage) {
    Arena *mem = arena_new();
    static const struct {
        const char *pickle;
        size_t n;
        const char *part;
    } t[] = {
#define ROW(place, part) {TENSOR(place), sizeof(TENSOR(place)) - 1, part}
        ROW("K\0K\6\x85K\1\x85", NULL),
        ROW("K\5K\1\x85K\1\x85", NULL),
        ROW("K\0K\3K\2\x86K\1K\3\x86", NULL),
        ROW("K\0K\2\x85K\5\x85", NULL),
        ROW("K\0))", NULL),
        ROW("K\1K\6\x85K\1\x85", "reaches beyond its storage"),
        ROW("K\6K\1\x85K\1\x85", "reaches beyond its storage"),
        ROW("K\0K\7\x85K\1\x85", "reaches beyond its storage"),
        ROW("K\0K\7\x85K\0\x85", "repeats elements of its storage"),
        ROW("K\0K\2\x85K\6\x85", "reaches beyond its storage"),
        ROW(MOST "K\1\x85K\1\x85", "reaches beyond its storage"),
        ROW(MOST "K\2\x85" MOST "\x85", "reaches beyond its storage"),
        ROW("K\0" MOST "\x85K\0\x85", "repeats elements of its storage"),
        ROW("K\0" MOST MOST "\x86K\0K\0\x86", "has a size that overflows"),
        ROW("K\0K\4\x85" MOST "\x85", "has strides that overflow")};
    for (int i = 0; i < ARRAY_LEN(t); i++) {
        const char *wrong = try_pickle(mem, t[i].pickle, t[i].n);
        if (t[i].part ? !wrong || !strstr(wrong, t[i].part) : wrong != NULL)
            test_fail(__FILE__, __LINE__, "%d: '%s', not '%s'", i, wrong, t[i].part);
    }
    arena_free(mem);
}

/* No change of a byte reads outside of the file; those of sizes, places, names and
 * methods are refused or change nothing. */
TEST(every_byte_may_be_anything) {
    static const uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff};
    size_t n, taken = 0;
    Arena *keep = arena_new();
    uint8_t *bytes = read_golden(keep, "state.bin", &n);
    for (size_t at = 0; at < n; at++) {
        for (int v = 0; v < ARRAY_LEN(values); v++) {
            Arena *mem = arena_new();
            uint8_t was = bytes[at];
            bytes[at] = values[v];
            taken += !try_file(mem, bytes, n);
            bytes[at] = was;
            arena_free(mem);
        }
    }
    EXPECT(taken < n * ARRAY_LEN(values));
    arena_free(keep);
}

/* Changes the 1 to 4 bytes at `at` behind the first signature `sign` of the file. */
static void refuse_changed(const char *sign, size_t at, uint32_t value, int size,
                           const char *part) {
    Arena *mem = arena_new();
    size_t n;
    uint8_t *bytes = read_golden(mem, "state.bin", &n);
    uint8_t *p = bytes;
    while (memcmp(p, sign, 4)) EXPECT(++p + 4 <= bytes + n);
    for (int i = 0; i < size; i++) p[at + (size_t)i] = (uint8_t)(value >> (8 * i));
    const char *wrong = try_file(mem, bytes, n);
    if (!wrong || !strstr(wrong, part))
        test_fail(__FILE__, __LINE__, "'%s', not '%s'", wrong ? wrong : "taken", part);
    arena_free(mem);
}

TEST(archives_that_lie) {
    static const char central[] = "PK\1\2", end[] = "PK\5\6", local[] = "PK\3\4";
    refuse_changed(central, 10, 8, 2, "a compressed entry");
    refuse_changed(central, 8, 1, 2, "an encrypted entry");
    refuse_changed(central, 20, 77, 4, "an entry with two sizes");
    refuse_changed(central, 24, 77, 4, "an entry with two sizes");
    refuse_changed(central, 28, 0, 2, "without a name");
    refuse_changed(central, 28, 0xffff, 2, "an entry of the directory that is cut off");
    refuse_changed(central, 42, 0xfffffff0u, 4, "an entry outside of the file");
    refuse_changed(central, 42, 1, 4, "an entry without its header");
    refuse_changed(local, 26, 3, 2, "another name than the directory");
    refuse_changed(local, 28, 0xffff, 2, "reaches beyond the data");
    refuse_changed(end, 10, 0xfffe, 2, "more entries than its directory has bytes for");
    refuse_changed(end, 12, 0xfffffff0u, 4, "a directory outside of the file");
    refuse_changed(end, 16, 0xfffffff0u, 4, "a directory outside of the file");
    refuse_changed(end, 4, 1, 2, "in several files");
    refuse_changed(end, 0, 0, 4, "has no directory of a zip archive");
}

TEST(files_that_are_something_else) {
    Arena *mem = arena_new();
    static const char old[] = "\x80\2\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\2";
    const char *wrong = try_file(mem, (const uint8_t *)old, sizeof old);
    EXPECT(strstr(wrong, "before 1.6"));
    static const char empty[22] = "PK\5\6";
    EXPECT(strstr(try_file(mem, (const uint8_t *)empty, 22), "has no entry data.pkl"));
    arena_free(mem);
}
