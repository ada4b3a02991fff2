/* data.c - sources of batches: order, resume, checks, damage, prefetch. */
#include "runtime/data/data.h"
#include "../test.h"
#include "runtime/store/safetensors.h"
#include <sys/stat.h>
#include <unistd.h>

const unsigned char embedded_corpus[] = "the corpus in the program";
const size_t embedded_corpus_bytes = sizeof embedded_corpus - 1;

static Arena *mem;

static char *put_file(const char *name, const void *bytes, size_t n) {
    if (!mem) mem = arena_new();
    char *path = path_join(mem, temp_dir(), name);
    EXPECT_INT(file_write_atomic(path, bytes, n), 0);
    return path;
}

/* 256 bytes, byte i is i: a token tells its offset. */
static char *count_file(void) {
    unsigned char bytes[256];
    for (int i = 0; i < 256; i++) bytes[i] = (unsigned char)i;
    return put_file("count", bytes, sizeof bytes);
}

static Data *open_text(const char *path, int64_t batch, int64_t seq, bool shuffle) {
    if (!mem) mem = arena_new();
    DataSpec s = {"TextFile", path, batch, seq, 7, shuffle, 256, NULL};
    return data_open(mem, &s);
}

TEST(permute_is_a_bijection) {
    for (int64_t n = 1; n <= 300; n++) {
        char seen[300] = {0};
        for (int64_t i = 0; i < n; i++) {
            int64_t p = data_permute(42, n % 3, i, n);
            EXPECT(p >= 0 && p < n && !seen[p]);
            seen[p] = 1;
        }
    }
    int64_t big = ((int64_t)1 << 62) - 1;
    int64_t p = data_permute(1, 0, big - 1, big);
    EXPECT(p >= 0 && p < big);
}

/* A resume with another build must see the same order: these values may not change. */
TEST(permute_is_pinned) {
    static const int64_t want[] = {914, 654, 980, 255, 220, 971, 131, 475};
    for (int i = 0; i < ARRAY_LEN(want); i++)
        EXPECT_INT(data_permute(1234, 2, i, 1000), want[i]);
}

TEST(permute_spreads_evenly) {
    int count[5] = {0};
    for (uint64_t seed = 0; seed < 20000; seed++) count[data_permute(seed, 0, 0, 5)]++;
    for (int i = 0; i < 5; i++) EXPECT(abs(count[i] - 4000) < 300);
    int same = 0;
    for (int64_t i = 0; i < 1000; i++)
        same += data_permute(9, 0, i, 1000) == data_permute(9, 1, i, 1000);
    EXPECT(same < 12);
}

TEST(text_in_order) {
    Data *d = open_text(count_file(), 2, 4, false);
    EXPECT(d->batch == 2 && d->seq == 4 && d->samples == 63 && d->steps_available == -1);
    int32_t tokens[8], labels[8];
    data_batch(d, 1, tokens, labels);
    for (int i = 0; i < 8; i++) EXPECT(tokens[i] == 8 + i && labels[i] == 9 + i);
    data_batch(d, 31, tokens, labels); /* samples 62 and, in the next epoch, 0 */
    EXPECT(tokens[0] == 248 && labels[3] == 252 && tokens[4] == 0 && labels[7] == 4);
    data_close(d);
}

TEST(every_epoch_has_every_sample_once) {
    Data *d = open_text(count_file(), 3, 4, true);
    int32_t tokens[12], labels[12], first_epoch[63];
    int differ = 0;
    for (int epoch = 0; epoch < 3; epoch++) {
        char seen[63] = {0};
        for (int s = 0; s < 21; s++) {
            data_batch(d, epoch * 21 + s, tokens, labels);
            for (int r = 0; r < 3; r++) {
                int sample = tokens[4 * r] / 4;
                EXPECT(tokens[4 * r] % 4 == 0 && !seen[sample]);
                EXPECT_INT(labels[4 * r + 3], tokens[4 * r] + 4);
                seen[sample] = 1;
                if (epoch == 0)
                    first_epoch[3 * s + r] = sample;
                else
                    differ += first_epoch[3 * s + r] != sample;
            }
        }
    }
    EXPECT(differ > 100);
    data_close(d);
}

TEST(order_depends_on_consumed_samples_only) {
    char *path = count_file();
    Data *small = open_text(path, 2, 4, true), *large = open_text(path, 6, 4, true);
    int32_t a[24], b[24], labels[24], rows[8];
    for (int64_t s = 0; s < 40; s++) {
        data_batch(large, s, a, labels);
        for (int i = 0; i < 3; i++) data_batch(small, 3 * s + i, b + 8 * i, labels);
        EXPECT(!memcmp(a, b, sizeof a));
        data_rows_full(large, s, 3, 2, &(DataBatch){.tokens = rows, .labels = labels});
        EXPECT(!memcmp(rows, a + 12, sizeof rows));
    }
    DataSpec other = {"TextFile", path, 6, 4, 8, true, 256, NULL};
    Data *seeded = data_open(mem, &other);
    data_batch(large, 0, a, labels);
    data_batch(seeded, 0, b, labels);
    EXPECT(memcmp(a, b, sizeof a));
}

TEST(text_folder_and_embedded) {
    if (!mem) mem = arena_new();
    char *sub = path_join(mem, temp_dir(), "text/b");
    EXPECT_INT(dir_make(sub), 0);
    put_file("text/c", "gh", 2);
    put_file("text/b/x", "def", 3);
    put_file("text/b/empty", "", 0);
    put_file("text/a", "abc", 3);
    char *secret = put_file("secret", "SECRET", 6);
    EXPECT(symlink(secret, path_join(mem, temp_dir(), "text/aa")) == 0);
    EXPECT(symlink("..", path_join(mem, temp_dir(), "text/b/up")) == 0);
    char *folder = path_join(mem, temp_dir(), "text");
    Data *d = open_text(folder, 1, 7, false);
    int32_t tokens[64], labels[64];
    EXPECT(d->samples == 1 && d->tokens == 8);
    data_batch(d, 5, tokens, labels);
    for (int i = 0; i < 7; i++) EXPECT(tokens[i] == 'a' + i && labels[i] == 'b' + i);
    DataSpec narrow = {"TextFile", folder, 1, 7, 0, false, 'e', NULL};
    Data *n = data_open(mem, &narrow);
    EXPECT_FAIL(
        data_batch(n, 0, tokens, labels), EXIT_DATA,
        "text/b/x: offset 1: token 101 (a byte) is outside the vocabulary of 101");
    Data *e = open_text("embedded", 1, 5, false);
    data_batch(e, 0, tokens, labels);
    EXPECT(tokens[0] == 't' && tokens[4] == 'c' && labels[4] == 'o');
}

/* What preprocess decompresses is no text here. */
TEST(compressed_texts) {
    if (!mem) mem = arena_new();
    EXPECT_INT(dir_make(path_join(mem, temp_dir(), "in")), 0);
    char *gzip = put_file("in/a.gz", "\x1F\x8B\x08\0\0\0\0\0\0\3", 10);
    char *zstd = put_file("b", "\x28\xB5\x2F\xFD\4\0\1\0\0", 9);
    EXPECT_FAIL(open_text(gzip, 1, 2, false), EXIT_DATA,
                "in/a.gz is compressed with gzip");
    EXPECT_FAIL(open_text(zstd, 1, 2, false), EXIT_DATA,
                "'stator preprocess', which reads");
    EXPECT_FAIL(open_text(path_join(mem, temp_dir(), "in"), 1, 2, false), EXIT_DATA,
                "in/a.gz is compressed with gzip");
    DataGptSpec gpt = {.samples = -1, .epochs = 1, .tokenizer_type = "ByteTokenizer"};
    DataSpec lines = {.type = "WebtextDataset",
                      .path = zstd,
                      .batch = 1,
                      .seq = 4,
                      .vocab = 256,
                      .gpt = &gpt};
    EXPECT_FAIL(data_open(mem, &lines), EXIT_DATA, "b is compressed with zstd");
}

TEST(wrong_specs) {
    char *path = count_file();
    DataSpec s = {"TextFiles", path, 1, 4, 0, false, 256, NULL};
    EXPECT_FAIL(data_open(mem, &s), EXIT_CONFIG, "did you mean 'TextFile'?");
    s.type = "TextFile";
    s.seq = 0;
    EXPECT_FAIL(data_open(mem, &s), EXIT_CONFIG, "sequence length 0");
    s.seq = INT64_MAX;
    s.batch = INT64_MAX;
    EXPECT_FAIL(data_open(mem, &s), EXIT_CONFIG, "too large");
    s.seq = 256;
    s.batch = 1;
    EXPECT_FAIL(data_open(mem, &s), EXIT_DATA, "a sequence of 256 needs 257");
    s.seq = 255;
    EXPECT_INT(data_open(mem, &s)->samples, 1);
    s.vocab = -1;
    EXPECT_FAIL(data_open(mem, &s), EXIT_CONFIG, "a vocabulary of -1");
    s.vocab = 256;
    s.path = path_join(mem, temp_dir(), "missing");
    EXPECT_FAIL(data_open(mem, &s), EXIT_DATA, "cannot open");
    s.path = put_file("empty", "", 0);
    EXPECT_FAIL(data_open(mem, &s), EXIT_DATA, "holds 0 tokens");
    s.path = "/dev/null";
    EXPECT_FAIL(data_open(mem, &s), EXIT_DATA, "not a regular file");
}

static char *put_tensor(const char *file, const char *name, DType type, int rank,
                        const int64_t *dim, const void *data) {
    if (!mem) mem = arena_new();
    SafeTensor t = {.name = name, .dtype = (int)type, .rank = rank, .data = data};
    memcpy(t.dim, dim, (size_t)rank * sizeof *dim);
    char *path = path_join(mem, temp_dir(), file);
    EXPECT_INT(safetensors_write(path, &t, 1, NULL, NULL), 0);
    return path;
}

/* Tokens 100 .. 129 as [2, 3, 5]. */
static void check_tensor_file(const char *path) {
    int32_t tokens[12], labels[12];
    DataSpec s = {"TensorBatches", path, 0, 0, 5, true, 130, NULL};
    Data *d = data_open(mem, &s);
    EXPECT(d->batch == 3 && d->seq == 4 && d->steps_available == 2);
    data_batch(d, 1, tokens, labels);
    for (int i = 0; i < 12; i++) {
        int want = 115 + i / 4 * 5 + i % 4;
        EXPECT(tokens[i] == want && labels[i] == want + 1);
    }
    EXPECT_FAIL(data_batch(d, 2, tokens, labels), EXIT_DATA, "holds 2 batches");
    data_close(d);
    s.vocab = 129;
    d = data_open(mem, &s);
    data_batch(d, 0, tokens, labels);
    EXPECT_FAIL(data_batch(d, 1, tokens, labels), EXIT_DATA,
                "tokens[1, 2, 4]: token 129 is outside the vocabulary of 129");
    data_close(d);
    s.batch = 4;
    EXPECT_FAIL(data_open(mem, &s), EXIT_DATA, "a batch of 3, the configuration says 4");
    s.batch = 3;
    s.seq = 5;
    EXPECT_FAIL(data_open(mem, &s), EXIT_DATA,
                "a sequence length of 4, the configuration says 5");
}

TEST(tensor_batches) {
    int64_t wide[2 * 3 * 5], dim[3] = {2, 3, 5};
    int32_t narrow[2 * 3 * 5];
    for (int i = 0; i < 30; i++) wide[i] = narrow[i] = 100 + i;
    check_tensor_file(put_tensor("wide", "tokens", DT_I64, 3, dim, wide));
    check_tensor_file(put_tensor("narrow", "tokens", DT_I32, 3, dim, narrow));
}

TEST(tensor_batches_refused) {
    int64_t bytes[8] = {0, 1, -1, INT64_MIN, 4, 5, 6, 7}, flat[2] = {2, 4};
    int64_t empty[3] = {2, 0, 4}, short_rows[3] = {4, 2, 1}, good[3] = {1, 2, 4};
    int32_t tokens[8], labels[8];
    DataSpec s = {"TensorBatches", NULL, 0, 0, 0, false, 0, NULL};
    s.path = put_tensor("flat", "tokens", DT_I64, 2, flat, bytes);
    EXPECT_FAIL(data_open(mem, &s), EXIT_DATA, "with 2 dimensions");
    s.path = put_tensor("empty", "tokens", DT_I64, 3, empty, bytes);
    EXPECT_FAIL(data_open(mem, &s), EXIT_DATA, "[2, 0, 4]");
    s.path = put_tensor("short", "tokens", DT_I64, 3, short_rows, bytes);
    EXPECT_FAIL(data_open(mem, &s), EXIT_DATA, "[4, 2, 1]");
    s.path = put_tensor("float", "tokens", DT_F64, 3, good, bytes);
    EXPECT_FAIL(data_open(mem, &s), EXIT_DATA, "is F64");
    s.path = put_tensor("name", "token", DT_I64, 3, good, bytes);
    EXPECT_FAIL(data_open(mem, &s), EXIT_DATA, "tokens");
    s.path = put_file("text", "hello", 5);
    EXPECT_FAIL(data_open(mem, &s), EXIT_DATA, "text");
    s.path = put_tensor("minus", "tokens", DT_I64, 3, good, bytes);
    EXPECT_FAIL(data_batch(data_open(mem, &s), 0, tokens, labels), EXIT_DATA,
                "tokens[0, 0, 2]: token -1");
}

TEST(golden_tensor_batches) {
    if (!shared_dir()) test_skip("no shared reference data");
    mem = arena_new();
    char *path = path_join(mem, shared_dir(), "golden/gpt2_tiny/expected.safetensors");
    DataSpec s = {"TensorBatches", path, 8, 16, 0, true, 96, NULL};
    Data *d = data_open(mem, &s);
    EXPECT_INT(d->steps_available, 20);
    int32_t tokens[128], labels[128];
    for (int64_t i = 0; i < 20; i++) {
        data_batch(d, i, tokens, labels);
        for (int r = 0; r < 8; r++)
            EXPECT(!memcmp(tokens + 16 * r + 1, labels + 16 * r, 15 * 4));
    }
    data_close(d);
}

/* An .idx as Megatron-LM writes it. */
typedef struct Index {
    unsigned char bytes[256];
    size_t n;
} Index;

static void index_add(Index *x, int64_t v, size_t n) {
    memcpy(x->bytes + x->n, &v, n);
    x->n += n;
}

/* Sequences of 5, 0 and 7 tokens in two documents. */
static Index make_index(int code, int token_bytes) {
    static const int64_t length[3] = {5, 0, 7}, doc[3] = {0, 1, 3};
    Index x = {.n = 9};
    memcpy(x.bytes, "MMIDIDX\0\0", 9);
    index_add(&x, 1, 8);
    index_add(&x, code, 1);
    index_add(&x, 3, 8);
    index_add(&x, 3, 8);
    for (int i = 0; i < 3; i++) index_add(&x, length[i], 4);
    for (int i = 0, at = 0; i < 3; at += (int)length[i++])
        index_add(&x, at * token_bytes, 8);
    for (int i = 0; i < 3; i++) index_add(&x, doc[i], 8);
    return x;
}

static void put_pair(int code, const void *bin, size_t token_bytes) {
    Index x = make_index(code, (int)token_bytes);
    put_file("pair.idx", x.bytes, x.n);
    put_file("pair.bin", bin, 12 * token_bytes);
}

TEST(indexed_types) {
    unsigned char u8[12];
    int8_t i8[12];
    int16_t i16[12];
    int32_t i32[12];
    int64_t i64[12];
    double f64[12];
    float f32[12];
    uint16_t u16[12];
    for (int i = 0; i < 12; i++) {
        u8[i] = (unsigned char)(200 + i), i8[i] = (int8_t)(100 + i);
        i16[i] = (int16_t)(30000 + i), i32[i] = 2000000000 + i;
        i64[i] = 2147483647 - i, f64[i] = 123456 + i, f32[i] = (float)(1000 + i);
        u16[i] = (uint16_t)(60000 + i);
    }
    const struct {
        const void *bin;
        size_t bytes;
        int64_t first, step;
    } cases[8] = {{u8, 1, 200, 1},         {i8, 1, 100, 1},          {i16, 2, 30000, 1},
                  {i32, 4, 2000000000, 1}, {i64, 8, 2147483647, -1}, {f64, 8, 123456, 1},
                  {f32, 4, 1000, 1},       {u16, 2, 60000, 1}};
    for (int c = 0; c < 8; c++) {
        put_pair(c + 1, cases[c].bin, cases[c].bytes);
        const char *names[] = {"pair", "pair.bin", "pair.idx"};
        DataSpec s = {"MegatronIndexed",
                      path_join(mem, temp_dir(), names[c % 3]),
                      1,
                      5,
                      0,
                      false,
                      0,
                      NULL};
        Data *d = data_open(mem, &s);
        int32_t tokens[5], labels[5];
        EXPECT(d->samples == 2 && d->tokens == 12);
        data_batch(d, 1, tokens, labels);
        for (int i = 0; i < 5; i++) {
            EXPECT_INT(tokens[i], cases[c].first + (5 + i) * cases[c].step);
            EXPECT_INT(labels[i], cases[c].first + (6 + i) * cases[c].step);
        }
        data_close(d);
    }
}

TEST(indexed_bad_tokens) {
    int32_t i32[12] = {0, 1, 2, 3, 4, 5, 6, 7, 50257, 9, 10, 11}, tokens[5], labels[5];
    put_pair(4, i32, 4);
    DataSpec s = {"MegatronIndexed",
                  path_join(mem, temp_dir(), "pair"),
                  1,
                  5,
                  0,
                  false,
                  50257,
                  NULL};
    EXPECT_FAIL(data_batch(data_open(mem, &s), 1, tokens, labels), EXIT_DATA,
                "pair.bin: document 1, offset 32: token 50257 is outside the vocabulary "
                "of 50257 (0 .. 50256)");
    i32[8] = 8, i32[1] = -3;
    put_pair(4, i32, 4);
    EXPECT_FAIL(data_batch(data_open(mem, &s), 0, tokens, labels), EXIT_DATA,
                "document 0, offset 4: token -3");
    double f64[12] = {0, 1, 2.5, NAN, 1e300};
    put_pair(6, f64, 8);
    EXPECT_FAIL(data_batch(data_open(mem, &s), 0, tokens, labels), EXIT_DATA,
                "document 0, offset 16: token 2.5");
    f64[2] = 2;
    put_pair(6, f64, 8);
    EXPECT_FAIL(data_batch(data_open(mem, &s), 0, tokens, labels), EXIT_DATA,
                "token nan");
    f64[3] = 3;
    put_pair(6, f64, 8);
    EXPECT_FAIL(data_batch(data_open(mem, &s), 0, tokens, labels), EXIT_DATA,
                "token 1e+300");
}

/* Whether the damaged copy is refused, with the failure's message. */
static bool refused(Index x, size_t n, uint64_t bin_bytes, char *message) {
    unsigned char *exact = malloc(n + 1); /* so that reading past the end is seen */
    memcpy(exact, x.bytes, n);
    Catch c;
    if (CATCH(c)) {
        indexed_parse("x.idx", exact, n, bin_bytes);
        catch_end(&c);
    } else {
        EXPECT(c.code == EXIT_DATA && strstr(c.message, "x.idx: offset "));
        if (message) strcpy(message, c.message);
    }
    free(exact);
    return c.code != 0;
}

TEST(indexed_damage_of_every_field) {
    static const uint64_t values[] = {0,
                                      1,
                                      2147483647,
                                      2147483648,
                                      (uint64_t)1 << 32,
                                      INT64_MAX,
                                      (uint64_t)1 << 63,
                                      UINT64_MAX,
                                      (uint64_t)-2,
                                      4,
                                      15};
    Index good = make_index(8, 2);
    EXPECT(!refused(good, good.n, 24, NULL));
    struct Field {
        int at, n;
    } fields[12] = {{9, 8}, {18, 8}, {26, 8}};
    for (int i = 0; i < 3; i++) {
        fields[3 + i] = (struct Field){34 + 4 * i, 4};
        fields[6 + i] = (struct Field){46 + 8 * i, 8};
        fields[9 + i] = (struct Field){70 + 8 * i, 8};
    }
    for (int f = 0; f < 12; f++)
        for (int v = 0; v < ARRAY_LEN(values); v++) {
            Index x = good;
            memcpy(x.bytes + fields[f].at, &values[v], (size_t)fields[f].n);
            bool same = !memcmp(x.bytes, good.bytes, good.n);
            /* the one free choice: where the first of two documents ends */
            bool legal = fields[f].at == 78 && values[v] <= 3;
            if (refused(x, x.n, 24, NULL) != !(same || legal))
                test_fail(__FILE__, __LINE__, "field at %d, value %llu", fields[f].at,
                          (unsigned long long)values[v]);
        }
    for (int code = 0; code < 256; code++) {
        Index x = good;
        x.bytes[17] = (unsigned char)code;
        EXPECT(refused(x, x.n, 24, NULL) == !(code == 8 || code == 3));
    }
}

TEST(indexed_damage_of_sizes) {
    Index x = make_index(8, 2);
    char message[4096];
    for (size_t n = 0; n < x.n; n++) EXPECT(refused(x, n, 24, NULL));
    for (uint64_t bin = 0; bin < 60; bin++)
        EXPECT(refused(x, x.n, bin, NULL) == (bin != 24));
    EXPECT(refused(x, x.n + 1, 24, NULL) && refused(x, x.n + 4, 24, NULL));
    EXPECT(!refused(x, x.n + 3, 24, NULL)); /* three modes, all text */
    x.bytes[x.n + 1] = 1;
    EXPECT(refused(x, x.n + 3, 24, message) && strstr(message, "sequence 1 has mode 1"));
    for (int i = 0; i < 9; i++) {
        Index y = make_index(8, 2);
        y.bytes[i] ^= 0x20;
        EXPECT(refused(y, y.n, 24, message) && strstr(message, "no Megatron-LM index"));
    }
}

TEST(indexed_files_missing) {
    uint16_t u16[12] = {0};
    put_pair(8, u16, 2);
    DataSpec s = {
        "MegatronIndexed", path_join(mem, temp_dir(), "pair"), 1, 5, 0, false, 0, NULL};
    unlink(path_join(mem, temp_dir(), "pair.bin"));
    EXPECT_FAIL(data_open(mem, &s), EXIT_DATA, "pair.bin");
    unlink(path_join(mem, temp_dir(), "pair.idx"));
    EXPECT_FAIL(data_open(mem, &s), EXIT_DATA, "pair.idx");
}

TEST(megatron_reference_files) {
    if (!shared_dir()) test_skip("no shared reference data");
    mem = arena_new();
    char *path =
        path_join(mem, shared_dir(), "golden/megatron_data/shakespeare_text_document");
    size_t bytes;
    char *bin = file_read(mem, arena_printf(mem, "%s.bin", path), 1 << 20, &bytes, 3);
    DataSpec s = {"MegatronIndexed", path, 4, 128, 1234, false, 50257, NULL};
    Data *d = data_open(mem, &s);
    EXPECT(d->tokens == (int64_t)bytes / 2 && d->samples == (d->tokens - 1) / 128);
    static const int32_t start[] = {5962, 22307, 25, 198}; /* "First Citizen:\n" */
    int32_t tokens[512], labels[512];
    int ends = 0;
    for (int64_t step = 0; step < d->samples / 4; step++) {
        data_batch(d, step, tokens, labels);
        if (step == 0) EXPECT(!memcmp(tokens, start, sizeof start));
        for (int i = 0; i < 512; i++) {
            uint16_t want[2];
            memcpy(want, bin + 2 * (step * 512 + i), sizeof want);
            EXPECT(tokens[i] == want[0] && labels[i] == want[1]);
            ends += tokens[i] == 50256;
        }
    }
    EXPECT(ends > 1480 &&
           ends <= 1500); /* 1,500 documents, the rest of the last batch off */
    data_close(d);
    s.vocab = 50256;
    EXPECT_FAIL(data_batch(data_open(mem, &s), 0, tokens, labels), EXIT_DATA,
                "document 0, offset ");
}

TEST(prefetch_gives_the_same_batches) {
    Data *d = open_text(count_file(), 3, 4, true);
    int32_t tokens[12], labels[12];
    for (int depth = 1; depth <= 8; depth += 7) {
        Prefetch *p = prefetch_start(d, 5, 200, depth);
        DataBatch b;
        for (int64_t step = 5; step < 205; step++) {
            EXPECT(prefetch_next(p, &b));
            if (step % 50 == 0) usleep(2000); /* lets the thread fill every slot */
            data_batch(d, step, tokens, labels);
            EXPECT(!memcmp(b.tokens, tokens, sizeof tokens) &&
                   !memcmp(b.labels, labels, sizeof labels));
        }
        EXPECT(!prefetch_next(p, &b) && !prefetch_next(p, &b));
        prefetch_stop(p);
    }
    prefetch_stop(prefetch_start(d, 0, -1, 4)); /* while it waits for room */
    prefetch_stop(prefetch_start(d, 0, 0, 1));
}

TEST(prefetch_hands_failures_over) {
    char *path = count_file();
    DataSpec s = {"TextFile", path, 1, 10, 0, false, 35, NULL};
    Data *d = data_open(mem, &s);
    Prefetch *p = prefetch_start(d, 0, -1, 2);
    DataBatch b;
    for (int i = 0; i < 3; i++) EXPECT(prefetch_next(p, &b) && b.tokens[0] == 10 * i);
    for (int twice = 0; twice < 2; twice++) {
        Catch c;
        if (CATCH(c)) {
            prefetch_next(p, &b);
            catch_end(&c);
            EXPECT(!"the failure was lost");
        }
        EXPECT_INT(c.code, EXIT_DATA);
        EXPECT_STR(
            c.message,
            arena_printf(mem,
                         "stator: error: %s: offset 35: token 35 (a byte) is outside "
                         "the vocabulary of 35 (0 .. 34); give the vocab_size that "
                         "the data was made with",
                         path));
    }
    prefetch_stop(p);
}
