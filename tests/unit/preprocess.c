/* preprocess.c - the command preprocess: the very bytes it writes, whatever the workers
 * and the packing of the input. */
#define _GNU_SOURCE
#include "preprocess.h"
#include "runtime/text/tokenizer.h"
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <zlib.h>
#include <zstd.h>

static void put_gz(const char *path, const char *bytes, size_t n, int members) {
    unlink(path);
    for (int i = 0; i < members; i++) {
        size_t from = n * (size_t)i / (size_t)members,
               to = n * (size_t)(i + 1) / (size_t)members;
        gzFile f = gzopen(path, i ? "ab" : "wb");
        EXPECT(f && gzwrite(f, bytes + from, (unsigned)(to - from)) == (int)(to - from));
        EXPECT_INT(gzclose(f), Z_OK);
    }
}

static void put_zst(const char *path, const char *bytes, size_t n) {
    size_t cap = ZSTD_compressBound(n);
    char *out = arena_alloc(arena_new(), cap);
    size_t got = ZSTD_compress(out, cap, bytes, n, 3);
    EXPECT(!ZSTD_isError(got));
    put(path, out, got);
}

TEST(preprocess_exact_bytes) {
    char *in =
        put_text("in.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"\"}\n\n{\"text\":\"c\"}");
    RUN("--input", in, "--output-prefix", temp("new/folder/p"), BYTES, "--workers", "2");
    worked();
    static const unsigned char want[] = {
        'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 8,
        2,   0,   0,   0,   0,   0,   0,   0, 4, 0, 0, 0, 0, 0, 0, 0, /* 2 sequences, 4
                                                                         boundaries */
        2,   0,   0,   0,   1,   0,   0,   0,                         /* lengths */
        0,   0,   0,   0,   0,   0,   0,   0, 4, 0, 0, 0, 0, 0, 0, 0, /* pointers */
        0,   0,   0,   0,   0,   0,   0,   0, 1, 0, 0, 0, 0, 0, 0, 0, /* the second one is
                                                                         empty */
        1,   0,   0,   0,   0,   0,   0,   0, 2, 0, 0, 0, 0, 0, 0, 0};
    size_t n;
    char *idx = get(temp("new/folder/p_text_document.idx"), &n);
    EXPECT(n == sizeof want && !memcmp(idx, want, n));
    char *bin = get(temp("new/folder/p_text_document.bin"), &n);
    EXPECT(n == 6 && !memcmp(bin, "a\0b\0c\0", 6));
    says("Processed 3 documents (");
    says("p_text_document.bin/.idx: 3 documents, 2 sequences, 3 tokens");
}

TEST_LIMIT(preprocess_megatron_bytes, 120) {
    const char *shared = shared_dir();
    if (!shared) test_skip("no shared reference data");
    char *golden = cat(shared, "/golden/megatron_data/"),
         *docs = cat(golden, "docs.jsonl");
    char *want = cat(golden, "shakespeare_text_document");
    char *vocab = cat(shared, "/data/gpt2-tokenizer/vocab.json");
    char *merges = cat(shared, "/data/gpt2-tokenizer/merges.txt");
    static char *workers[] = {"1", "2", "4"};
    size_t n;
    char *text = get(docs, &n),
         *inputs[3] = {docs, temp("d.jsonl.gz"), temp("d.json.zst")};
    put_gz(inputs[1], text, n, 3);
    put_zst(inputs[2], text, n);
    for (int i = 0; i < 3; i++) {
        for (int w = 0; w < 3; w++) {
            if (!test_long() && (i + w) % 3 != 2) continue; /* each once */
            RUN("--input", inputs[i], "--output_prefix", temp("s"), "--tokenizer-type",
                "GPT2BPETokenizer", "--vocab-file", vocab, "--merge-file", merges,
                "--append-eod", "--workers", workers[w], "--log-interval", "1000");
            worked();
            same_pair(temp("s_text_document"), want);
        }
    }
    says("Processed 1000 documents (");
}

TEST_LABEL_OF(preprocess_workers_and_packing_change_nothing, RELEASED);
TEST_LIMIT(preprocess_workers_and_packing_change_nothing, 120) {
    size_t n;
    char *text = made_lines(&n), *path = temp("in.jsonl");
    put(path, text, n);
    put_gz(temp("one.jsonl.gz"), text, n, 1);
    put_gz(temp("many.jsonl.gz"), text, n, 5);
    put_zst(temp("in.jsonl.zst"), text, n);
    RUN("--input", path, "--output-prefix", temp("w1"), BYTES, "--workers", "1");
    worked();
    struct stat st;
    EXPECT(stat(temp("w1_text_document.bin"), &st) == 0 && st.st_size > 4 << 20);
    static char *inputs[] = {"in.jsonl", "one.jsonl.gz", "many.jsonl.gz", "in.jsonl.zst"};
    static char *workers[] = {"2", "4", "7", "3"};
    for (int i = 0; i < 4; i++) {
        RUN("--input", temp(inputs[i]), "--output-prefix", temp("w2"), BYTES, "--workers",
            workers[i]);
        worked();
        same_pair(temp("w1_text_document"), temp("w2_text_document"));
    }
}

TEST(preprocess_files_and_globs) {
    put_text("b1.jsonl", "{\"text\":\"b1\"}\n");
    put_text("b2.jsonl", "\xEF\xBB\xBF{\"text\":\"b2\"}\r\n");
    char *a = put_text("a.json", "{\"text\":[\"a\",\"\",\"x\"],\"url\":\"u\"}\n");
    char *star = temp("b*.jsonl");
    RUN("--input", star, a, "--output-prefix", temp("p"), BYTES, "--workers=2");
    worked();
    EXPECT_STR(shown(temp("p_text_document")), "b1|\nb2|\na|x|\n");
    RUN("--input", a, star, "--output-prefix", temp("p"), BYTES);
    worked();
    EXPECT_STR(shown(temp("p_text_document")), "a|x|\nb1|\nb2|\n");
    RUN("--input", a, "--json-keys", "url", "text", "--output-prefix", temp("q"), BYTES);
    worked();
    EXPECT_STR(shown(temp("q_text_document")), "a|x|\n");
    EXPECT_STR(shown(temp("q_url_document")), "u|\n");
    RUN("--input", temp("none*.jsonl"), "--output-prefix", temp("r"), BYTES);
    refused(EXIT_DATA, "none matches it");
    RUN("--input", a, temp("gone.jsonl"), "--output-prefix", temp("r"), BYTES);
    refused(EXIT_DATA, "gone.jsonl");
    RUN("--input", temp_dir()[0] ? (char *)temp_dir() : "", "--output-prefix", temp("r"),
        BYTES);
    refused(EXIT_DATA, "is a folder");
    RUN("--input", put_text("data.bin", "x"), "--output-prefix", temp("r"), BYTES);
    refused(EXIT_CONFIG, "--input-format json");
    nothing_left(temp("r"));
}

TEST(preprocess_plain_text) {
    char *in = put_text("t.txt", "one\ntwo\r\n\n \t\n\nthree\n\nfour\nfive\n");
    RUN("--input", in, "--output-prefix", temp("p"), BYTES);
    worked();
    EXPECT_STR(shown(temp("p_text_document")),
               "one\ntwo\r\n\n \t\n\nthree\n\nfour\nfive\n|\n");
    RUN("--input", in, "--output-prefix", temp("p"), BYTES, "--text-documents",
        "blank-line");
    worked();
    EXPECT_STR(shown(temp("p_text_document")), "one\ntwo|\nthree|\nfour\nfive|\n");
    RUN("--input", in, "--output-prefix", temp("p"), BYTES, "--text_documents", "line");
    worked();
    EXPECT_STR(shown(temp("p_text_document")), "one|\ntwo|\nthree|\nfour|\nfive|\n");
    RUN("--input", in, "--output-prefix", temp("q"), BYTES, "--json-keys", "a", "b");
    refused(EXIT_CONFIG, "plain text, which has no keys");
    char *lines = put_text("t.jsonl", "{\"text\": \"one\"}\n");
    RUN("--input", lines, "--output-prefix", temp("q"), BYTES, "--text-documents",
        "line");
    refused(EXIT_CONFIG, "t.jsonl has a document in each line: leave it out");
    nothing_left(temp("q"));
    RUN("--input", lines, in, "--output-prefix", temp("q"), BYTES, "--text-documents",
        "line");
    worked();
}

TEST(preprocess_broken_lines) {
    char *in =
        put_text("in.jsonl", "{\"text\":\"good\"}\n{\"text\":\"bad}\n\n"
                             "{\"no\":\"text\"}\n{\"text\":7}\n{\"text\":\"end\"}\n");
    RUN("--input", in, "--output-prefix", temp("p"), BYTES);
    worked();
    says("in.jsonl:2:9: string without a closing quote; the line is left out");
    says("in.jsonl:4:1: key 'text': the line does not have it");
    says("in.jsonl:5:9: key 'text': its value is no string");
    says("3 broken lines were left out");
    EXPECT_STR(shown(temp("p_text_document")), "good|\nend|\n");
    RUN("--input", in, "--output-prefix", temp("p3"), BYTES, "--max-bad-lines", "3");
    worked();
    RUN("--input", in, "--output-prefix", temp("p2"), BYTES, "--max-bad-lines", "2");
    refused(EXIT_DATA, "in.jsonl:5:9: key 'text': its value is no string; that is broken "
                       "line 3, and --max-bad-lines is 2");
    nothing_left(temp("p2"));
    char *array = put_text("array.json", "\n [{\"text\":\"a\"}]\n");
    RUN("--input", array, "--output-prefix", temp("p4"), BYTES);
    refused(EXIT_DATA, "array.json:2: the file is one JSON array");
    RUN("--input", put_text("x.jsonl", "x\ny\n"), "--output-prefix", temp("p4"), BYTES);
    refused(EXIT_DATA, "no document in the input, only broken lines");
    nothing_left(temp("p4"));
}

TEST(preprocess_replaced_characters) {
    char *in = put_text("in.jsonl", "{\"text\":\"a\\ud800b\"}\n");
    RUN("--input", in, "--output-prefix", temp("p"), BYTES);
    worked();
    says("1 lone surrogates became U+FFFD");
    EXPECT_STR(shown(temp("p_text_document")), "a\xEF\xBF\xBD"
                                               "b|\n");
}

TEST(preprocess_line_too_long) {
    size_t n = (32 << 20) + 100;
    char *text = arena_alloc(arena_new(), n + 64), *p = text;
    p += sprintf(p, "{\"text\":\"");
    memset(p, 'x', n);
    p += n;
    strcpy(p, "\"}\n{\"text\":\"ok\"}\n");
    char *in = put_text("in.jsonl", text);
    RUN("--input", in, "--output-prefix", temp("p"), BYTES);
    worked();
    says("in.jsonl:1:1: longer than 32 MiB; the line is left out");
    EXPECT_STR(shown(temp("p_text_document")), "ok|\n");
    char *plain = put_text("in.txt", text);
    RUN("--input", plain, "--output-prefix", temp("q"), BYTES);
    refused(EXIT_DATA, "--text-documents blank-line or line");
    nothing_left(temp("q"));
    text[32 << 20] = '\n'; /* the line end does not count */
    put(in, text, (32 << 20) + 1);
    RUN("--input", in, "--output-prefix", temp("q"), BYTES);
    says("in.jsonl:1:9: string without a closing quote");
}

TEST(preprocess_damaged_packing) {
    size_t n, m;
    char *text = made_lines(&n), *path = temp("in.jsonl.gz");
    put_gz(path, text, n, 1);
    char *packed = get(path, &m);
    put(path, packed, m - 9);
    RUN("--input", path, "--output-prefix", temp("p"), BYTES);
    refused(EXIT_DATA, "in.jsonl.gz: offset");
    says("the file ends inside its compressed data");
    packed[m / 2] ^= 0x10;
    put(path, packed, m);
    RUN("--input", path, "--output-prefix", temp("p"), BYTES, "--max-bad-lines",
        "100000");
    refused(EXIT_DATA, "in.jsonl.gz: offset");
    put_text("in.jsonl.gz", "{\"text\":\"not packed\"}\n");
    RUN("--input", path, "--output-prefix", temp("p"), BYTES);
    refused(EXIT_DATA, "in.jsonl.gz: offset 2: incorrect header check");
    put_text("in.jsonl.gz", "");
    RUN("--input", path, "--output-prefix", temp("p"), BYTES);
    refused(EXIT_DATA, "empty");
    path = temp("in.jsonl.zst");
    put_zst(path, text, n);
    packed = get(path, &m);
    put(path, packed, m - 4);
    RUN("--input", path, "--output-prefix", temp("p"), BYTES);
    refused(EXIT_DATA, "the file ends inside its compressed data");
    nothing_left(temp("p"));
}

TEST(preprocess_words) {
    char *in = put_text("in.jsonl", "{\"text\":\"a\"}\n"), *p = temp("p");
    RUN("--input", in, "--output-prefix", p, BYTES, "--partitions", "2",
        "--keep-sequential-samples");
    worked();
    says("--partitions has no effect");
    says("--keep-sequential-samples has no effect");
    RUN("--output-prefix", p, BYTES);
    refused(EXIT_CONFIG, "--input is missing");
    RUN("--input", in, BYTES);
    refused(EXIT_CONFIG, "--output-prefix is missing");
    RUN("--input", in, "--output-prefix", p, BYTES, "--worker", "2");
    refused(EXIT_CONFIG, "did you mean --workers");
    RUN("--input", in, "--output-prefix", p, BYTES, "\\");
    refused(EXIT_CONFIG, "lone backslash");
    RUN("--input", in, "--output-prefix", p, BYTES, "--workers");
    refused(EXIT_CONFIG, "--workers needs a value");
    RUN("--input", in, "--output-prefix", p, BYTES, "--workers", "0");
    refused(EXIT_CONFIG, "from 1 to 256");
    RUN("--input", in, "--output-prefix", p, BYTES, "--append-eod");
    refused(EXIT_CONFIG, "no token that ends a text");
    RUN("--input", in, "--output-prefix", p, BYTES, "--split-sentences");
    refused(EXIT_CONFIG, "BERT");
    RUN("--input", in, "--output-prefix", p, BYTES, "--json-keys", "../x");
    refused(EXIT_CONFIG, "part of a file's name");
}

/* A BPE of our own, so that output is smaller than input; literal special tokens in the
 * text do not become them. */
static char *trained(const char *name, const char *text, size_t n) {
    Arena *mem = arena_new();
    TokenizerTrainer *tr = tokenizer_trainer_new(mem);
    tokenizer_trainer_add(tr, text, n, NULL);
    char *dir = temp(name);
    tokenizer_write(tokenizer_train(tr, 600), dir);
    return path_join(mem, dir, "tokenizer.json");
}

TEST(preprocess_special_text_is_text) {
    static const char text[] = "some words and some more words, again some words";
    char *file = trained("tok", text, sizeof text - 1);
    char *in = put_text("in.jsonl", "{\"text\":\"some<|endoftext|>words\"}\n");
    RUN("--input", in, "--output-prefix", temp("p"), "--tokenizer-file", file);
    worked();
    RUN("--input", in, "--output-prefix", temp("q"), "--tokenizer-file", file,
        "--append-eod");
    worked();
    TokenizerSpec spec = {.tokenizer_file = file};
    Tokenizer *t = tokenizer_open(arena_new(), &spec);
    size_t n, m;
    char *p = get(temp("p_text_document.bin"), &n),
         *q = get(temp("q_text_document.bin"), &m);
    EXPECT(m == n + 2 && !memcmp(p, q, n));
    uint16_t eod = (uint16_t)tokenizer_eod(t), id;
    for (size_t i = 0; i < m; i += 2) {
        memcpy(&id, q + i, 2);
        EXPECT((id == eod) == (i == n));
    }
}

/* Peak memory of the command, in MB. */
static double peak_mb(char **words) {
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        dup2(null, 2);
        _exit(run_words(words));
    }
    int status;
    struct rusage use;
    EXPECT(pid > 0 && wait4(pid, &status, 0, &use) == pid);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return (double)use.ru_maxrss * 1024 / 1e6;
}

/* What data.md says of many workers, which are the default on a machine of many cores. */
TEST(many_workers_in_little_memory) {
#ifdef __SANITIZE_ADDRESS__
    test_skip("the address sanitizer has memory of its own");
#endif
    size_t n;
    char *text = made_lines(&n), *file = trained("tok", text, n / 8), *first = NULL;
    size_t m[2];
    FILE *f = fopen(temp("many.jsonl"), "w");
    for (size_t all = 0; all < (size_t)60 << 20; all += n)
        EXPECT(fwrite(text, 1, n, f) == n);
    EXPECT_INT(fclose(f), 0);
    static char *const workers[] = {"64", "1"};
    double own_mb = peak_mb((char *[]){"--help", NULL}); /* what the test has */
    for (int i = 0; i < ARRAY_LEN(workers); i++) {
        char *words[] = {"--input",        temp("many.jsonl"), "--output-prefix",
                         temp(workers[i]), "--tokenizer-file", file,
                         "--workers",      workers[i],         NULL};
        double mb = peak_mb(words);
        printf("  %s workers: %.0f MB more in memory\n", workers[i], mb - own_mb);
        if (!i && mb - own_mb >= 60 + 3 * 64)
            test_fail(__FILE__, __LINE__, "%.0f MB, of which %.0f are the test's", mb,
                      own_mb);
        char *bin = get(
            temp(arena_printf(arena_new(), "%s_text_document.bin", workers[i])), &m[i]);
        EXPECT(!first || (m[0] == m[1] && !memcmp(bin, first, m[0])));
        first = bin;
    }
}

TEST_LABEL_OF(preprocess_large_input_in_little_memory, SLOW);
TEST_LIMIT(preprocess_large_input_in_little_memory, 600) {
#ifdef __SANITIZE_ADDRESS__
    test_skip("the address sanitizer has memory of its own");
#endif
    size_t n, bytes = getenv("CHECK_LARGE") ? (size_t)2 << 30 : (size_t)200 << 20;
    char *text = made_lines(&n), *file = trained("tok", text, n / 8);
    gzFile f = gzopen(temp("large.jsonl.gz"), "wb1");
    size_t rounds = bytes / n + 1;
    for (size_t i = 0; i < rounds; i++) EXPECT_INT(gzwrite(f, text, (unsigned)n), (int)n);
    EXPECT_INT(gzclose(f), Z_OK);
    char *words[] = {"--input",
                     temp("large.jsonl.gz"),
                     "--output-prefix",
                     temp("p"),
                     "--tokenizer-file",
                     file,
                     "--append-eod",
                     "--workers",
                     "4",
                     NULL};
    double mb = peak_mb(words);
    printf("  %zu MB of text: %.0f MB at most in memory\n", rounds * n >> 20, mb);
    EXPECT(mb < 200);
    size_t m, b;
    char *idx = get(temp("p_text_document.idx"), &m);
    struct stat st;
    EXPECT(stat(temp("p_text_document.bin"), &st) == 0);
    b = (size_t)st.st_size;
    IndexedTable t = indexed_parse("large", idx, m, b);
    EXPECT_INT(t.documents, (int64_t)rounds * 4000);
}
