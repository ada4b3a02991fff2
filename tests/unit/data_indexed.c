/* data_indexed.c - pairs of .bin and .idx as Megatron-LM writes them: types, bad tokens,
 * damage. */
#include "data_files.h"
#include "runtime/data/indexed.h"
#include <math.h>
#include <unistd.h>

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
        data_batch(d, 1, &(DataBatch){tokens, labels});
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
    EXPECT_FAIL(data_batch(data_open(mem, &s), 1, &(DataBatch){tokens, labels}),
                EXIT_DATA,
                "pair.bin: document 1, offset 32: token 50257 is outside the vocabulary "
                "of 50257 (0 .. 50256)");
    i32[8] = 8, i32[1] = -3;
    put_pair(4, i32, 4);
    EXPECT_FAIL(data_batch(data_open(mem, &s), 0, &(DataBatch){tokens, labels}),
                EXIT_DATA, "document 0, offset 4: token -3");
    double f64[12] = {0, 1, 2.5, NAN, 1e300};
    put_pair(6, f64, 8);
    EXPECT_FAIL(data_batch(data_open(mem, &s), 0, &(DataBatch){tokens, labels}),
                EXIT_DATA, "document 0, offset 16: token 2.5");
    f64[2] = 2;
    put_pair(6, f64, 8);
    EXPECT_FAIL(data_batch(data_open(mem, &s), 0, &(DataBatch){tokens, labels}),
                EXIT_DATA, "token nan");
    f64[3] = 3;
    put_pair(6, f64, 8);
    EXPECT_FAIL(data_batch(data_open(mem, &s), 0, &(DataBatch){tokens, labels}),
                EXIT_DATA, "token 1e+300");
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
        data_batch(d, step, &(DataBatch){tokens, labels});
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
    EXPECT_FAIL(data_batch(data_open(mem, &s), 0, &(DataBatch){tokens, labels}),
                EXIT_DATA, "document 0, offset ");
}
