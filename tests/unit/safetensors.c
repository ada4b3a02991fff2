/* safetensors: golden files, lying headers, shards, writing. */
#include "runtime/store/safetensors.h"
#include "../test.h"
#include "base/json.h"
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

/* A file image: length of the header, the header, data_bytes bytes 0, 1, 2, ... */
static uint8_t *image(const char *header, size_t data_bytes, size_t *n) {
    size_t length = strlen(header);
    uint8_t *p = malloc(8 + length + data_bytes);
    for (int i = 0; i < 8; i++) p[i] = (uint8_t)((uint64_t)length >> (8 * i));
    memcpy(p + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++) p[8 + length + i] = (uint8_t)i;
    *n = 8 + length + data_bytes;
    return p;
}

static Safetensors *parse(const char *header, size_t data_bytes) {
    size_t n;
    uint8_t *p = image(header, data_bytes, &n);
    return safetensors_parse(arena_new(), "t", p, n);
}

TEST(reads) {
    Safetensors *s =
        parse("  {\"b\":{\"dtype\":\"I32\",\"shape\":[1,2],\"data_offsets\":[4,12]},"
              "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
              "\"z\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[12,12]},"
              "\"__metadata__\":{\"format\":\"pt\"}}   ",
              12);
    EXPECT(s->n == 3 && s->metadata_n == 1);
    EXPECT_STR(s->metadata_key[0], "format");
    EXPECT_STR(s->metadata_value[0], "pt");
    EXPECT_STR(s->t[0].name, "a");
    EXPECT(s->t[0].rank == 0 && s->t[0].bytes == 4 && safetensors_count(&s->t[0]) == 1);
    const SafeTensor *b = safetensors_need(s, "b");
    EXPECT(b->rank == 2 && b->dim[0] == 1 && b->dim[1] == 2 && b->dtype == DT_I32);
    EXPECT(b->bytes == 8 && ((const uint8_t *)b->data)[0] == 4);
    int32_t got[2];
    safetensors_read(s, b, DT_I32, got, sizeof got);
    EXPECT(got[0] == 0x07060504 && got[1] == 0x0b0a0908);
    EXPECT_INT(safetensors_need(s, "z")->bytes, 0);
    EXPECT(!safetensors_find(s, "c"));
    EXPECT_FAIL(safetensors_need(s, "bb"), EXIT_CHECKPOINT,
                "no tensor 'bb'; the nearest");
    EXPECT_FAIL(safetensors_read(s, b, DT_F32, got, 8), EXIT_CHECKPOINT,
                "type I32 and cannot be read as f32");
    EXPECT_INT(parse("{}", 0)->n, 0);
}

static void refuse(const char *header, size_t data_bytes, const char *part) {
    EXPECT_FAIL(parse(header, data_bytes), EXIT_CHECKPOINT, part);
}

#define ONE(dtype, shape, offsets)                                                       \
    "{\"x\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define TWO(offsets_x, offsets_y)                                                        \
    "{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" offsets_x "},"            \
    "\"y\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" offsets_y "}}"

TEST(lying_headers) {
    EXPECT_INT(parse(ONE("F32", "[2]", "[0,8]"), 8)->n, 1);
    refuse(ONE("F32", "[2]", "[0,8]"), 7, "outside of the file");
    refuse(ONE("F32", "[2]", "[0,8]"), 9, "have 8 bytes, the file has 9");
    refuse(ONE("F32", "[3]", "[0,8]"), 8, "do not fit its shape");
    refuse(ONE("F32", "[2]", "[8,0]"), 8, "outside of the file");
    refuse(ONE("F32", "[2]", "[1,9]"), 9, "begins at 1 where 0 is expected");
    refuse(ONE("F32", "[2]", "[0,18446744073709551615]"), 8, "outside of the file");
    refuse(ONE("F32", "[2]", "[-1,7]"), 8, "data_offsets [begin, end]");
    refuse(ONE("F32", "[2]", "[0,8.0]"), 8, "data_offsets [begin, end]");
    refuse(ONE("F32", "[2]", "[0,8,8]"), 8, "data_offsets [begin, end]");
    refuse(ONE("F32", "[-2]", "[0,8]"), 8, "dimension that is no integer");
    refuse(ONE("F32", "[2.0]", "[0,8]"), 8, "dimension that is no integer");
    refuse(ONE("F32", "2", "[0,8]"), 8, "no shape");
    refuse(ONE("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8, "more than 8 dimensions");
    refuse(ONE("F16", "[4294967296,4294967296]", "[0,0]"), 0, "product overflows");
    refuse(ONE("F32", "[4611686018427387904]", "[0,0]"), 0, "size in bits overflows");
    refuse(ONE("F32", "[9223372036854775808]", "[0,0]"), 0, "dimension that is no");
    refuse(ONE("F4", "[3]", "[0,1]"), 1, "whole byte");
    EXPECT_INT(parse(ONE("F4", "[4]", "[0,2]"), 2)->t[0].dtype, -1);
    refuse(ONE("F12", "[2]", "[0,8]"), 8, "dtype 'F12'");
    refuse(ONE("f32", "[2]", "[0,8]"), 8, "dtype 'f32'");
    refuse("{\"x\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "no dtype");
    refuse("{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "no shape");
    refuse("{\"x\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "no data_offsets");
    refuse("{\"x\":7}", 8, "not described by an object");
    refuse("[]", 0, "not a JSON object");
    refuse("{", 0, "not valid JSON");
    refuse("", 0, "not valid JSON");
    refuse("\xEF\xBB\xBF{}", 0, "byte order mark");
    refuse("{\"__metadata__\":{\"a\":1}}", 0, "no string");
    refuse("{\"__metadata__\":[]}", 0, "not an object");
    refuse("{\"x\\u0000\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
           "zero byte in its name");
    refuse("{\"__metadata__\":{\"a\":\"b\"},\"__metadata__\\u0000\":{\"a\":\"b\"}}", 0,
           "zero byte in its name");
}

TEST(overlaps_holes_and_duplicates) {
    EXPECT_INT(parse(TWO("[4,8]", "[0,4]"), 8)->n, 2);
    refuse(TWO("[0,4]", "[0,4]"), 4, "begins at 0 where 4 is expected");
    refuse(TWO("[0,4]", "[2,6]"), 6, "begins at 2 where 4 is expected");
    refuse(TWO("[0,4]", "[5,9]"), 9, "begins at 5 where 4 is expected");
    refuse("{\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
           "\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
           0, "'x' is there twice");
}

static void refuse_bytes(const uint8_t *p, size_t n) {
    uint8_t *copy = malloc(n ? n : 1); /* so that reading behind n is seen */
    memcpy(copy, p, n);
    EXPECT_FAIL(safetensors_parse(arena_new(), "t", copy, n), EXIT_CHECKPOINT, "t: ");
    free(copy);
}

TEST(truncated_and_wrong_lengths) {
    size_t n;
    uint8_t *p = image(TWO("[0,4]", "[4,8]"), 8, &n);
    for (size_t i = 0; i < n; i++) refuse_bytes(p, i);
    static const uint64_t lengths[] = {0,         1,          100000000,
                                       100000001, INT32_MAX,  1ull << 32,
                                       INT64_MAX, UINT64_MAX, UINT64_MAX - 7};
    for (int k = 0; k < ARRAY_LEN(lengths); k++) {
        for (int i = 0; i < 8; i++) p[i] = (uint8_t)(lengths[k] >> (8 * i));
        refuse_bytes(p, n);
    }
}

TEST(half_floats) {
    /* IEEE 754 binary16 by its definition, every value. */
    static uint8_t bytes[1 << 17];
    static float out[1 << 16];
    for (int i = 0; i < 1 << 16; i++)
        bytes[2 * i] = (uint8_t)i, bytes[2 * i + 1] = i >> 8;
    size_t n;
    uint8_t *p = image(ONE("F16", "[65536]", "[0,131072]"), sizeof bytes, &n);
    memcpy(p + n - sizeof bytes, bytes, sizeof bytes);
    Safetensors *s = safetensors_parse(arena_new(), "h", p, n);
    EXPECT_INT(s->t[0].dtype, DT_F16);
    safetensors_read(s, s->t, DT_F32, out, sizeof out);
    for (int i = 0; i < 1 << 16; i++) {
        int e = i >> 10 & 31, m = i & 1023;
        double want = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
        if (i & 0x8000) want = -want;
        if (e == 31 && m)
            EXPECT(isnan(out[i]));
        else if (e == 31)
            EXPECT(isinf(out[i]) && !signbit(out[i]) == !(i & 0x8000));
        else
            EXPECT(out[i] == want && !signbit(out[i]) == !signbit(want));
    }
    EXPECT_FAIL(safetensors_read(s, s->t, DT_F64, out, sizeof out), EXIT_CHECKPOINT,
                "F16");
    s = parse(ONE("BF16", "[2]", "[0,4]"), 4);
    safetensors_read(s, s->t, DT_F32, out, 8);
    uint32_t bits;
    memcpy(&bits, out + 1, 4);
    EXPECT_INT(bits, 0x03020000);
    s = parse(ONE("U16", "[2]", "[0,4]"), 4);
    EXPECT_FAIL(safetensors_read(s, s->t, DT_F32, out, 8), EXIT_CHECKPOINT, "U16");
}

TEST(golden) {
    if (!shared_dir()) test_skip("no shared folder with the golden files");
    static const struct {
        const char *name;
        int tensors, expected;
    } cases[] = {{"gpt2_tiny", 52, 106},
                 {"gpt2_untied", 29, 60},
                 {"llama_tiny", 39, 80},
                 {"llama_tied_mqa", 20, 42}};
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        const char *folder =
            arena_printf(mem, "%s/golden/%s", shared_dir(), cases[i].name);
        Safetensors *s = safetensors_open(mem, folder, EXIT_CHECKPOINT);
        Safetensors *e = safetensors_open(
            mem, path_join(mem, folder, "expected.safetensors"), EXIT_DATA);
        /* Without __metadata__. */
        EXPECT_INT(s->n, cases[i].tensors - s->metadata_n);
        EXPECT_INT(e->n, cases[i].expected - e->metadata_n);
        EXPECT_INT(safetensors_need(e, "tokens")->dtype, DT_I64);
        double sum = 0;
        for (int k = 0; k < s->n; k++) {
            float *f = NEW_ARRAY(mem, float, s->t[k].bytes / 4);
            safetensors_read(s, &s->t[k], DT_F32, f, s->t[k].bytes);
            for (uint64_t j = 0; j < s->t[k].bytes / 4; j++) sum += fabs(f[j]);
        }
        EXPECT(isfinite(sum) && sum > 10);
        safetensors_close(s);
        safetensors_close(e);
    }
}

static float weights[6] = {1, 2, 3, 4, 5, 6};
static int64_t ids[2] = {7, -8};
static uint16_t halves[3] = {0x3f80, 0x4000, 0x4040};
static const SafeTensor sample[] = {
    {.name = "w", .dtype = DT_F32, .rank = 2, .dim = {2, 3}, .data = weights},
    {.name = "h\"\xC3\xA9", .dtype = DT_BF16, .rank = 1, .dim = {3}, .data = halves},
    {.name = "ids", .dtype = DT_I64, .rank = 1, .dim = {2}, .data = ids},
    {.name = "empty", .dtype = DT_F32, .rank = 2, .dim = {0, 5}, .data = weights},
    {.name = "scalar", .dtype = DT_F32, .rank = 0, .data = weights},
};

static const void *one_by_one(void *context, int i) {
    static double copy[8]; /* one buffer for all: the contract of SafeSource */
    (*(int *)context)++;
    memset(copy, 0x55, sizeof copy);
    memcpy(copy, sample[i].data, i == 0 ? 24 : i == 1 ? 6 : i == 2 ? 16 : i == 3 ? 0 : 4);
    return copy;
}

TEST(writes) {
    Arena *mem = arena_new();
    const char *path = path_join(mem, temp_dir(), "out.safetensors");
    EXPECT_INT(safetensors_write(path, sample, 5, NULL, NULL), 0);
    size_t n, again;
    char *bytes = file_read(mem, path, 1 << 20, &n, EXIT_DATA);
    uint64_t length;
    memcpy(&length, bytes, 8);
    EXPECT(length % 8 == 0 && bytes[8] == '{');
    EXPECT(!strncmp(bytes + 8, "{\"__metadata__\":{\"format\":\"pt\"},\"ids\":", 38));
    Safetensors *s = safetensors_open(mem, path, EXIT_DATA);
    EXPECT_INT(s->n, 5);
    static const char *const order[] = {"ids", "empty", "scalar", "w", "h\"\xC3\xA9"};
    for (int i = 0; i < 5; i++) EXPECT_STR(s->t[i].name, order[i]);
    float got[6];
    safetensors_read(s, safetensors_need(s, "w"), DT_F32, got, sizeof got);
    EXPECT(!memcmp(got, weights, sizeof got));
    safetensors_read(s, safetensors_need(s, "h\"\xC3\xA9"), DT_F32, got, 12);
    EXPECT(got[0] == 1 && got[1] == 2 && got[2] == 3);
    EXPECT_INT((uintptr_t)safetensors_need(s, "ids")->data & 7, 0);
    int calls = 0;
    EXPECT_INT(safetensors_write(path, sample, 5, one_by_one, &calls), 0);
    EXPECT_INT(calls, 5);
    char *streamed = file_read(mem, path, 1 << 20, &again, EXIT_DATA);
    EXPECT(again == n && !memcmp(streamed, bytes, n));
    EXPECT(!file_exists(arena_printf(mem, "%s.tmp", path)));
    EXPECT_INT(safetensors_write(path, NULL, 0, NULL, NULL), 0);
    EXPECT_INT(safetensors_open(mem, path, EXIT_DATA)->n, 0);
}

TEST(write_errors) {
    Arena *mem = arena_new();
    const char *path = path_join(mem, temp_dir(), "out.safetensors");
    SafeTensor bad[2] = {sample[0], sample[0]};
    EXPECT_INT(safetensors_write(path, bad, 2, NULL, NULL), EINVAL);
    bad[1].name = "__metadata__";
    EXPECT_INT(safetensors_write(path, bad, 2, NULL, NULL), EINVAL);
    bad[1] = (SafeTensor){.name = "v", .rank = 2, .dim = {INT64_MAX, 4}};
    EXPECT_INT(safetensors_write(path, bad, 2, NULL, NULL), EINVAL);
    bad[1].dim[0] = -1;
    EXPECT_INT(safetensors_write(path, bad, 2, NULL, NULL), EINVAL);
    EXPECT_INT(safetensors_write("/no/such/folder/x", sample, 5, NULL, NULL), ENOENT);
    EXPECT(!file_exists(path));
    /* A full disk: the old file stays, nothing is left behind. */
    EXPECT_INT(safetensors_write(path, sample, 2, NULL, NULL), 0);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {300, 300};
    EXPECT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    EXPECT_INT(safetensors_write(path, sample, 5, NULL, NULL), EFBIG);
    EXPECT(!file_exists(arena_printf(mem, "%s.tmp", path)));
    EXPECT_INT(safetensors_open(mem, path, EXIT_DATA)->n, 2);
}

/* Shards. */

static const char *write_index(Arena *mem, const char *map) {
    char *text =
        arena_printf(mem, "{\"metadata\":{\"total_size\":1},\"weight_map\":%s}", map);
    const char *path = path_join(mem, temp_dir(), "model.safetensors.index.json");
    EXPECT_INT(file_write_atomic(path, text, strlen(text)), 0);
    return path;
}

static void refuse_index(const char *map, const char *part) {
    Arena *mem = arena_new();
    const char *path = write_index(mem, map);
    EXPECT_FAIL(safetensors_open(mem, path, EXIT_DATA), EXIT_DATA, part);
}

TEST(shards) {
    Arena *mem = arena_new();
    EXPECT_FAIL(safetensors_open(mem, temp_dir(), EXIT_DATA), EXIT_DATA,
                "has no model.safetensors and no");
    EXPECT(!safetensors_write(path_join(mem, temp_dir(), "a.safetensors"), sample, 2,
                              NULL, NULL));
    EXPECT(!safetensors_write(path_join(mem, temp_dir(), "b.safetensors"), sample + 2, 1,
                              NULL, NULL));
    write_index(mem, "{\"ids\":\"b.safetensors\",\"w\":\"a.safetensors\"}");
    Safetensors *s = safetensors_open(mem, temp_dir(), EXIT_DATA);
    EXPECT_INT(s->n, 2);
    float got[6];
    int64_t got_ids[2];
    safetensors_read(s, safetensors_need(s, "w"), DT_F32, got, sizeof got);
    safetensors_read(s, safetensors_need(s, "ids"), DT_I64, got_ids, sizeof got_ids);
    EXPECT(!memcmp(got, weights, sizeof got) && !memcmp(got_ids, ids, sizeof ids));
    safetensors_close(s);
    refuse_index("{\"w\":\"../a.safetensors\"}", "without '/'");
    refuse_index("{\"w\":\"/etc/passwd\"}", "without '/'");
    refuse_index("{\"w\":\"..\"}", "without '/'");
    refuse_index("{\"w\":\"\"}", "without '/'");
    refuse_index("{\"w\":\"a.safetensors\\u0000\"}", "without '/'");
    refuse_index("{\"w\":3}", "without '/'");
    refuse_index("{\"w\":\"c.safetensors\"}", "shard c.safetensors: cannot open");
    refuse_index("{\"ids\":\"a.safetensors\"}", "'ids' is not in shard a.safetensors");
    refuse_index("[]", "'weight_map' is an array");
}

TEST(open_errors) {
    Arena *mem = arena_new();
    EXPECT_FAIL(safetensors_open(mem, "/no/file.safetensors", EXIT_DATA), EXIT_DATA,
                "/no/file.safetensors: cannot open: No such file");
    const char *path = path_join(mem, temp_dir(), "x.safetensors");
    EXPECT_INT(file_write_atomic(path, "", 0), 0);
    EXPECT_FAIL(safetensors_open(mem, path, EXIT_DATA), EXIT_DATA,
                "shorter than 8 bytes");
    EXPECT_FAIL(safetensors_open(mem, "/dev/null", EXIT_DATA), EXIT_DATA, "regular");
}
