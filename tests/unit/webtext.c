/* webtext.c - loose JSON as samples: cutting, padding, what counts in the loss, cache. */
#include "../test.h"
#include "only_file.h"
#include "runtime/data/data.h"
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

static Arena *mem;

static char *put(const char *name, const char *text) {
    if (!mem) mem = arena_new();
    char *path = path_join(mem, temp_dir(), name);
    EXPECT(!file_write_atomic(path, text, strlen(text)));
    return path;
}

static DataGptSpec plain(void) {
    if (!mem) mem = arena_new();
    return (DataGptSpec){.samples = -1,
                         .epochs = 1,
                         .eod = -1,
                         .pad = 0,
                         .tokenizer_type = "ByteTokenizer",
                         .cache_path = path_join(mem, temp_dir(), "cache")};
}

static Data *open_web(const char *path, const DataGptSpec *gpt, int64_t seq) {
    DataSpec spec = {.type = "WebtextDataset",
                     .path = path,
                     .batch = 1,
                     .seq = seq,
                     .vocab = 256,
                     .gpt = gpt};
    return data_open(mem, &spec);
}

static void expect_row(const Data *d, int64_t i, const char *tokens, const char *labels) {
    int32_t have[8], next[8], positions[8], from[8];
    float mask[8];
    DataBatch row = {have, next, positions, from, mask, false};
    check(d->seq <= 8);
    data_batch(d, i, &row);
    for (int k = 0; k < d->seq; k++) {
        int32_t want = labels[k] == '!' ? -1 : labels[k] == '.' ? 0 : labels[k];
        if (have[k] != (tokens[k] == '.' ? 0 : tokens[k]) || next[k] != want)
            test_fail(__FILE__, __LINE__, "sample %lld, token %d: %d, label %d",
                      (long long)i, k, have[k], next[k]);
        EXPECT(mask[k] == (want < 0 ? 0 : 1) && positions[k] == k && from[k] == 0);
    }
}

static const char lines[] = "{\"text\": \"abcdefgh\"}\n"
                            "\n"
                            "  {\"id\": 7, \"text\": \"ab\"}\r\n"
                            "{\"text\": \"\"}\n"
                            "{\"text\": \"x\"}\n"
                            "{\"text\": \"abcde\"}";

TEST(cut_and_padded) {
    char *path = put("web.json", lines);
    DataGptSpec gpt = plain();
    Data *d = open_web(path, &gpt, 5);
    EXPECT(d->samples == 3 && d->steps_available == -1);
    EXPECT_PART(d->note, "2 of its texts have less than two tokens");
    expect_row(d, 0, "abcde", "bcde!"); /* the text goes on, the sample does not */
    expect_row(d, 1, "ab...", "b!!!!");
    expect_row(d, 2, "abcde", "bcde!");
    expect_row(d, 3, "abcde", "bcde!"); /* the next epoch */
    data_close(d);
}

TEST(padding_in_the_loss) {
    char *path = put("web.json", lines);
    DataGptSpec gpt = plain();
    gpt.pad_in_loss = true;
    Data *d = open_web(path, &gpt, 5);
    EXPECT_INT(d->samples, 5);
    expect_row(d, 1, "ab...", "b...!");
    expect_row(d, 2, ".....", "....!");
    expect_row(d, 3, "x....", "....!");
    data_close(d);
}

TEST(parts_of_a_split) {
    char *path = put("web.json", lines);
    DataGptSpec gpt = plain();
    gpt.split = "2,1,0";
    gpt.which = SPLIT_VALID;
    Data *d = open_web(path, &gpt, 8);
    EXPECT_INT(d->samples, 1);
    expect_row(d, 0, "abcde...", "bcde!!!!");
    data_close(d);
    gpt.which = SPLIT_TEST;
    EXPECT_FAIL(open_web(path, &gpt, 8), EXIT_DATA, "leaves no text for test");
}

/* What json.loads takes, as preprocess does. */
TEST(loose_lines) {
    DataGptSpec gpt = plain();
    char *path =
        put("loose.json", "{\"score\": NaN, \"text\": \"ab\", \"n\": -Infinity}\n"
                          "{\"text\": \"no\", \"text\": \"cd\"}\n"
                          "{\"other\": \"\\ud800\", \"text\": \"ef\"}\n"
                          "{\"text\": \"\\ud800\"}\n");
    Data *d = open_web(path, &gpt, 4);
    EXPECT_INT(d->samples, 4);
    expect_row(d, 0, "ab..", "b!!!");
    expect_row(d, 1, "cd..", "d!!!");
    expect_row(d, 2, "ef..", "f!!!");
    int32_t tokens[4], labels[4];
    data_batch(d, 3, &(DataBatch){tokens, labels});
    EXPECT(tokens[0] == 0xEF && tokens[1] == 0xBF && tokens[2] == 0xBD && !tokens[3]);
    data_close(d);
    path = put("loose.json", "{\"text\": [\"ab\", \"cd\"]}\n");
    EXPECT_FAIL(open_web(path, &gpt, 4), EXIT_DATA,
                "line 1, column 1: key 'text': a sample");
}

/* A file of n zero bytes. */
static char *zeros(const char *name, int64_t n) {
    char *path = put(name, "");
    EXPECT(truncate(path, n) == 0);
    return path;
}

TEST(blank_and_long_lines_as_preprocess_has_them) {
    DataGptSpec gpt = plain();
    char *path =
        put("blank.json", "{\"text\": \"ab\"}\n \t\v\f\r\n\f\n{\"text\": \"cd\"}\n");
    Data *d = open_web(path, &gpt, 4);
    EXPECT_INT(d->samples, 2);
    data_close(d);
    int64_t longest = 32 << 20;
    EXPECT_FAIL(open_web(zeros("long.json", longest), &gpt, 4), EXIT_DATA,
                "line 1, column 1: an object {...} expected");
    EXPECT_FAIL(open_web(zeros("long.json", longest + 1), &gpt, 4), EXIT_DATA,
                "line 1, column 1: longer than 32 MiB");
}

TEST(byte_order_mark_is_no_text) {
    char *path =
        put("mark.json", "\xEF\xBB\xBF{\"text\": \"abc\"}\n{\"text\": \"de\"}\n");
    DataGptSpec gpt = plain();
    Data *d = open_web(path, &gpt, 3);
    EXPECT_INT(d->samples, 2);
    expect_row(d, 0, "abc", "bc!");
    data_close(d);
    path = put("only.json", "\xEF\xBB\xBF\n{\"text\": \"\xEF\xBB\xBF\"}");
    d = open_web(path, &gpt, 3);
    EXPECT_INT(d->samples, 1);
    data_close(d);
}

TEST(wrong_lines_and_settings) {
    DataGptSpec gpt = plain();
    char *path = put("bad.json", "{\"text\": \"ab\"}\n\n{\"text\": \"ab\"\n");
    EXPECT_FAIL(open_web(path, &gpt, 4), EXIT_DATA, "bad.json, line 3");
    path = put("bad.json", "{\"content\": \"ab\"}\n");
    EXPECT_FAIL(open_web(path, &gpt, 4), EXIT_DATA, "text");
    gpt.text_key = "content";
    Data *d = open_web(path, &gpt, 4);
    expect_row(d, 0, "ab..", "b!!!");
    data_close(d);
    path = put("bad.json", "{\"content\": 5}\n");
    EXPECT_FAIL(open_web(path, &gpt, 4), EXIT_DATA, "line 1");
    path = put("bad.json", "");
    EXPECT_FAIL(open_web(path, &gpt, 4), EXIT_DATA, "leaves no text for train");
    gpt.pad = -1;
    EXPECT_FAIL(open_web(path, &gpt, 4), EXIT_CONFIG,
                "--train_dataset.data_loader.pad_token N");
    gpt.pad = 256;
    EXPECT_FAIL(open_web(path, &gpt, 4), EXIT_CONFIG, "token 256, which is not below");
    gpt.pad = 0;
    gpt.reset_position_ids = true;
    EXPECT_FAIL(open_web(path, &gpt, 4), EXIT_CONFIG, "do not apply");
    gpt.reset_position_ids = false;
    gpt.tokenizer_type = "NoSuchTokenizer";
    EXPECT_FAIL(open_web(path, &gpt, 4), EXIT_CONFIG, "NoSuchTokenizer");
}

static void expect_cached(const char *path, const DataGptSpec *gpt, const char *part) {
    Data *d = open_web(path, gpt, 5);
    expect_row(d, 1, "ab...", "b!!!!");
    if (!strstr(d->note, part[0] ? part : " are left out"))
        test_fail(__FILE__, __LINE__, "note '%s', wanted '%s'", d->note, part);
    data_close(d);
}

TEST(tokens_are_cached) {
    char *path = put("web.json", lines);
    DataGptSpec gpt = plain();
    expect_cached(path, &gpt, "");
    char *file = only_file(mem, gpt.cache_path);
    struct stat before, after;
    EXPECT(stat(file, &before) == 0);
    expect_cached(path, &gpt, "");
    EXPECT(stat(file, &after) == 0 && before.st_ino == after.st_ino);
    size_t n;
    char *good = file_read(mem, file, 1 << 20, &n, EXIT_DATA);
    char *bad = arena_alloc(mem, n + 1);
    for (size_t at = 0; at < n; at++) {
        memcpy(bad, good, n);
        bad[at] ^= 1;
        EXPECT(!file_write_atomic(file, bad, n));
        expect_cached(path, &gpt, "is made again");
    }
    for (size_t size = 0; size < n; size += 7) {
        EXPECT(!file_write_atomic(file, good, size));
        expect_cached(path, &gpt, "is made again");
    }
    expect_cached(path, &gpt, "");
    put("web.json", "{\"text\": \"q\"}\n{\"text\": \"zz\"}\n{\"text\": \"ab\"}\n");
    Data *d = open_web(path, &gpt, 5); /* other text, other cache */
    expect_row(d, 0, "zz...", "z!!!!");
    data_close(d);
}

TEST(cache_lies_beside_the_file) {
    char *dir = path_join(mem = arena_new(), temp_dir(), "own");
    EXPECT(!dir_make(dir));
    char *path = put("own/web.json", lines);
    DataGptSpec gpt = plain();
    gpt.cache_path = "";
    expect_cached(path, &gpt, "");
    int files = 0;
    DIR *list = opendir(dir);
    for (struct dirent *e; (e = readdir(list));)
        files += !strncmp(e->d_name, "gpt_webtext_5_", 14);
    closedir(list);
    EXPECT_INT(files, 1);
}

TEST(gpt2_tokens) {
    mem = arena_new();
    if (!shared_dir()) test_skip("no shared reference data");
    char *dir = path_join(mem, shared_dir(), "data/gpt2-tokenizer");
    char *vocab = path_join(mem, dir, "vocab.json");
    if (!file_exists(vocab)) test_skip("no GPT-2 vocabulary");
    char *path = put("web.json", "{\"text\": \"Hello world\"}\n");
    DataGptSpec gpt = plain();
    gpt.tokenizer_type = "";
    gpt.vocab_file = vocab;
    gpt.merge_file = path_join(mem, dir, "merges.txt");
    gpt.pad = -1;
    gpt.eod = 50256;
    DataSpec spec = {"WebtextDataset", path, 1, 4, 0, true, 50257, &gpt};
    Data *d = data_open(mem, &spec);
    int32_t tokens[4], labels[4];
    data_batch(d, 0, &(DataBatch){tokens, labels});
    EXPECT(tokens[0] == 15496 && tokens[1] == 995 && tokens[2] == 50256);
    EXPECT(labels[0] == 995 && labels[1] == -1 && labels[3] == -1);
    data_close(d);
    spec.vocab = 50000;
    gpt.pad = 0;
    d = data_open(mem, &spec);
    data_close(d);
    spec.vocab = 10000;
    d = data_open(mem, &spec);
    EXPECT_FAIL(data_batch(d, 0, &(DataBatch){tokens, labels}), EXIT_DATA,
                "text 0, token 0: token 15496 is outside the vocabulary of 10000");
    data_close(d);
}
