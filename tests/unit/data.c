/* data.c - sources of batches: order, resume, texts, tensors, checks, prefetch. */
#include "runtime/data/data.h"
#include "data_files.h"
#include "runtime/store/safetensors.h"
#include <sys/stat.h>
#include <unistd.h>

const unsigned char embedded_corpus[] = "the corpus in the program";
const size_t embedded_corpus_bytes = sizeof embedded_corpus - 1;

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
    data_batch(d, 1, &(DataBatch){tokens, labels});
    for (int i = 0; i < 8; i++) EXPECT(tokens[i] == 8 + i && labels[i] == 9 + i);
    /* samples 62 and, in the next epoch, 0 */
    data_batch(d, 31, &(DataBatch){tokens, labels});
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
            data_batch(d, epoch * 21 + s, &(DataBatch){tokens, labels});
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
        data_batch(large, s, &(DataBatch){a, labels});
        for (int i = 0; i < 3; i++)
            data_batch(small, 3 * s + i, &(DataBatch){b + 8 * i, labels});
        EXPECT(!memcmp(a, b, sizeof a));
        data_rows(large, s, 3, 2, &(DataBatch){.tokens = rows, .labels = labels});
        EXPECT(!memcmp(rows, a + 12, sizeof rows));
    }
    DataSpec other = {"TextFile", path, 6, 4, 8, true, 256, NULL};
    Data *seeded = data_open(mem, &other);
    data_batch(large, 0, &(DataBatch){a, labels});
    data_batch(seeded, 0, &(DataBatch){b, labels});
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
    data_batch(d, 5, &(DataBatch){tokens, labels});
    for (int i = 0; i < 7; i++) EXPECT(tokens[i] == 'a' + i && labels[i] == 'b' + i);
    DataSpec narrow = {"TextFile", folder, 1, 7, 0, false, 'e', NULL};
    Data *n = data_open(mem, &narrow);
    EXPECT_FAIL(
        data_batch(n, 0, &(DataBatch){tokens, labels}), EXIT_DATA,
        "text/b/x: offset 1: token 101 (a byte) is outside the vocabulary of 101");
    Data *e = open_text("embedded", 1, 5, false);
    data_batch(e, 0, &(DataBatch){tokens, labels});
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
    s.rest = true;
    EXPECT_FAIL(data_open(mem, &s), EXIT_DATA, "holds 0 tokens; 2 at least are needed");
    s.rest = false;
    s.path = "/dev/null";
    EXPECT_FAIL(data_open(mem, &s), EXIT_DATA, "not a regular file");
}

/* Read as text all the same, but not without a word. */
TEST(what_may_be_no_text_is_told) {
    mem = arena_new();
    DataSpec s = {"TextFile", put_file("words", "ten words", 9), 1, 4, 0, false, 256,
                  NULL};
    EXPECT_STR(data_open(mem, &s)->note, "");
    s.path = put_file("pair.bin", "ten\0words", 9);
    const char *note = data_open(mem, &s)->note;
    EXPECT(strstr(note, "zero byte at offset 3") && strstr(note, "MegatronIndexed"));
    put_file("pair.idx", "x", 1);
    s.path = path_join(mem, temp_dir(), "pair");
    EXPECT_FAIL(data_open(mem, &s), EXIT_DATA, "but there is ");
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
    data_batch(d, 1, &(DataBatch){tokens, labels});
    for (int i = 0; i < 12; i++) {
        int want = 115 + i / 4 * 5 + i % 4;
        EXPECT(tokens[i] == want && labels[i] == want + 1);
    }
    EXPECT_FAIL(data_batch(d, 2, &(DataBatch){tokens, labels}), EXIT_DATA,
                "holds 2 batches");
    data_close(d);
    s.vocab = 129;
    d = data_open(mem, &s);
    data_batch(d, 0, &(DataBatch){tokens, labels});
    EXPECT_FAIL(data_batch(d, 1, &(DataBatch){tokens, labels}), EXIT_DATA,
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
    EXPECT_FAIL(data_batch(data_open(mem, &s), 0, &(DataBatch){tokens, labels}),
                EXIT_DATA, "tokens[0, 0, 2]: token -1");
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
        data_batch(d, i, &(DataBatch){tokens, labels});
        for (int r = 0; r < 8; r++)
            EXPECT(!memcmp(tokens + 16 * r + 1, labels + 16 * r, 15 * 4));
    }
    data_close(d);
}

TEST(prefetch_gives_the_same_batches) {
    Data *d = open_text(count_file(), 3, 4, true);
    int32_t tokens[12], labels[12];
    for (int depth = 1; depth <= 8; depth += 7) {
        Prefetch *p = prefetch_start(d, 5, 200, depth, false);
        DataBatch b;
        for (int64_t step = 5; step < 205; step++) {
            EXPECT(prefetch_next(p, &b));
            if (step % 50 == 0) usleep(2000); /* lets the thread fill every slot */
            data_batch(d, step, &(DataBatch){tokens, labels});
            EXPECT(!memcmp(b.tokens, tokens, sizeof tokens) &&
                   !memcmp(b.labels, labels, sizeof labels));
        }
        EXPECT(!prefetch_next(p, &b) && !prefetch_next(p, &b));
        prefetch_stop(p);
    }
    prefetch_stop(prefetch_start(d, 0, -1, 4, false)); /* while it waits for room */
    prefetch_stop(prefetch_start(d, 0, 0, 1, false));
}

TEST(prefetch_hands_failures_over) {
    char *path = count_file();
    DataSpec s = {"TextFile", path, 1, 10, 0, false, 35, NULL};
    Data *d = data_open(mem, &s);
    Prefetch *p = prefetch_start(d, 0, -1, 2, false);
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
