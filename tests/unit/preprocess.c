/* preprocess.c - the command preprocess: the very bytes it writes, whatever the workers
 * and the packing of the input, and what it leaves when something goes wrong. */
#define _GNU_SOURCE
#include "../test.h"
#include "frontend/config/commands.h"
#include "runtime/data/data.h"
#include "runtime/text/tokenizer.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { MAX_WORDS = 32 };
static int code; /* what the command returned or failed with */
static char said[1 << 15];

static char *temp(const char *name) {
    return path_join(arena_new(), temp_dir(), name);
}

static int run_words(char **words) {
    char *argv[MAX_WORDS] = {"preprocess"};
    int argc = 1;
    while (words[argc - 1]) {
        EXPECT(argc < MAX_WORDS);
        argv[argc] = words[argc - 1];
        argc++;
    }
    return cmd_preprocess(argc, argv);
}

/* Runs it with stdout and stderr going to `said`. */
static void run_list(char **words) {
    Catch c;
    fflush(NULL);
    int log = open(temp("log"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    int out = dup(1), err = dup(2);
    EXPECT(log >= 0 && dup2(log, 1) == 1 && dup2(log, 2) == 2);
    if (CATCH(c)) {
        code = run_words(words);
        catch_end(&c);
    } else {
        code = c.code;
        fputs(c.message, stderr);
    }
    fflush(NULL);
    ssize_t n = pread(log, said, sizeof said - 1, 0);
    dup2(out, 1);
    dup2(err, 2);
    close(out);
    close(err);
    close(log);
    EXPECT(n >= 0);
    said[n] = 0;
}
#define RUN(...) run_list((char *[]){__VA_ARGS__, NULL})
#define BYTES    "--tokenizer-type", "ByteTokenizer"

static void worked(void) {
    if (code) test_fail(__FILE__, __LINE__, "code %d:\n%s", code, said);
}

static void says(const char *part) {
    if (!strstr(said, part))
        test_fail(__FILE__, __LINE__, "said:\n%s\nwanted: %s", said, part);
}

static void refused(int want, const char *part) {
    if (code != want) test_fail(__FILE__, __LINE__, "code %d:\n%s", code, said);
    says(part);
}

static void put(const char *path, const void *bytes, size_t n) {
    EXPECT_INT(file_write_atomic(path, bytes, n), 0);
}

static char *put_text(const char *name, const char *text) {
    char *path = temp(name);
    put(path, text, strlen(text));
    return path;
}

static char *get(const char *path, size_t *n) {
    return file_read(arena_new(), path, 1 << 30, n, EXIT_DATA);
}

static void same_file(const char *a, const char *b) {
    size_t n, m;
    char *x = get(a, &n), *y = get(b, &m);
    if (n != m || memcmp(x, y, n))
        test_fail(__FILE__, __LINE__, "%s (%zu bytes) and %s (%zu) differ", a, n, b, m);
}

static char *cat(const char *a, const char *b) {
    return arena_printf(arena_new(), "%s%s", a, b);
}

static void same_pair(const char *a, const char *b) {
    same_file(cat(a, ".bin"), cat(b, ".bin"));
    same_file(cat(a, ".idx"), cat(b, ".idx"));
}

/* Of P_text_document nothing must be there, under no name. */
static void nothing_left(const char *prefix) {
    static const char *const ends[] = {".bin", ".idx", ".bin.tmp", ".idx.tmp"};
    for (int i = 0; i < ARRAY_LEN(ends); i++) {
        char *path = cat(cat(prefix, "_text_document"), ends[i]);
        if (file_exists(path)) test_fail(__FILE__, __LINE__, "%s is there", path);
    }
}

/* The documents of a pair as text: tokens as characters (u16), '|' behind a sequence,
 * a line end behind a document. */
static char *shown(const char *prefix) {
    Arena *mem = arena_new();
    size_t n, m;
    char *idx = get(cat(prefix, ".idx"), &n), *bin = get(cat(prefix, ".bin"), &m);
    IndexedTable t = indexed_parse(prefix, idx, n, m);
    Text out = text_new(mem);
    EXPECT_INT(t.token_bytes, 2);
    for (int64_t d = 0, s = 0, at = 0; d < t.documents; d++) {
        int64_t end;
        memcpy(&end, t.doc_index + 8 * (d + 1), 8);
        for (; s < end; s++) {
            int32_t length;
            memcpy(&length, t.lengths + 4 * s, 4);
            for (int i = 0; i < length; i++, at += 2) text_add(&out, "%c", bin[at]);
            text_add(&out, "|");
        }
        text_add(&out, "\n");
    }
    return out.s;
}

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

/* Some MB of documents of very different sizes, some empty. */
static char *made_lines(size_t *n) {
    Text t = text_new(arena_new());
    uint32_t state = 7;
    for (int i = 0; i < 4000; i++) {
        state = state * 1664525 + 1013904223;
        int words = i % 97 == 0 ? 0 : i % 501 == 0 ? 40000 : (int)(state >> 24);
        text_add(&t, "{\"id\": %d, \"text\": \"", i);
        for (int w = 0; w < words; w++) {
            state = state * 1664525 + 1013904223;
            text_add(&t, "%s%x", w ? " " : "", state >> (12 + state % 16));
        }
        text_add(&t, "\"}\n");
    }
    *n = t.n;
    return t.s;
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
            RUN("--input", inputs[i], "--output_prefix", temp("s"), "--tokenizer-type",
                "GPT2BPETokenizer", "--vocab-file", vocab, "--merge-file", merges,
                "--append-eod", "--workers", workers[w], "--log-interval", "1000");
            worked();
            same_pair(temp("s_text_document"), want);
        }
    }
    says("Processed 1000 documents (");
}

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
    nothing_left(temp("q"));
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
    refused(EXIT_CONFIG, "no <|endoftext|>");
    RUN("--input", in, "--output-prefix", p, BYTES, "--split-sentences");
    refused(EXIT_CONFIG, "BERT");
    RUN("--input", in, "--output-prefix", p, BYTES, "--json-keys", "../x");
    refused(EXIT_CONFIG, "part of a file's name");
}

/* Files bigger than this end in EFBIG, as a full disk ends in ENOSPC. */
static void limit_files(rlim_t bytes) {
    struct rlimit r = {bytes, bytes};
    EXPECT(setrlimit(RLIMIT_FSIZE, &r) == 0);
}

TEST(preprocess_full_disk) {
    size_t n;
    char *text = made_lines(&n), *in = temp("in.jsonl"),
         *old = put_text("o.jsonl", "{\"text\":\"o\"}");
    put(in, text, n);
    RUN("--input", old, "--output-prefix", temp("p"), BYTES);
    worked();
    limit_files(1 << 20);
    RUN("--input", in, "--output-prefix", temp("q"), BYTES, "--workers", "2");
    refused(EXIT_DATA, "q_text_document.bin.tmp: offset 1048576: cannot write: "
                       "File too large");
    nothing_left(temp("q"));
    RUN("--input", in, "--output-prefix", temp("p"), BYTES);
    refused(EXIT_DATA, "p_text_document.bin.tmp: offset");
    EXPECT_STR(shown(temp("p_text_document")), "o|\n"); /* the old pair is still there */
    EXPECT(!file_exists(temp("p_text_document.bin.tmp")));
    if (access("/dev/full", W_OK) == 0) {
        EXPECT(symlink("/dev/full", temp("f_text_document.bin.tmp")) == 0);
        RUN("--input", old, "--output-prefix", temp("f"), BYTES);
        EXPECT_INT(code, EXIT_DATA); /* links are not followed */
    }
}

/* The .idx needs more room than the .bin when documents are many and short. */
TEST(preprocess_full_disk_at_the_end) {
    Text t = text_new(arena_new());
    for (int i = 0; i < 20000; i++) text_add(&t, "{\"text\":\"a\"}\n");
    char *in = put_text("in.jsonl", t.s);
    limit_files(300000); /* .bin 40 kB, .idx 400 kB */
    RUN("--input", in, "--output-prefix", temp("p"), BYTES);
    refused(EXIT_DATA, "p_text_document.idx.tmp: offset");
    nothing_left(temp("p"));
}

/* A command that reads a pipe, so that it is in the midst of its work until the pipe is
 * closed; returns its process. */
static pid_t start_on_pipe(const char *pipe, const char *prefix, int *fd) {
    unlink(pipe);
    EXPECT(mkfifo(pipe, 0600) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        char *words[] = {"--input",
                         (char *)pipe,
                         "--output-prefix",
                         (char *)prefix,
                         BYTES,
                         "--workers",
                         "2",
                         NULL};
        int null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        dup2(null, 2);
        _exit(run_words(words));
    }
    *fd = open(pipe, O_WRONLY);
    EXPECT(pid > 0 && *fd >= 0);
    size_t n;
    const char *text = made_lines(&n);
    for (size_t at = 0; at < n;) { /* more than the command holds in memory */
        ssize_t got = write(*fd, text + at, n - at);
        EXPECT(got > 0);
        at += (size_t)got;
    }
    return pid;
}

TEST(preprocess_killed) {
    int fd, status;
    char *pipe = temp("pipe.jsonl"), *p = temp("p");
    pid_t pid = start_on_pipe(pipe, p, &fd);
    char *good = put_text("good.jsonl", "{\"text\":\"good\"}\n");
    RUN("--input", good, "--output-prefix", p, BYTES);
    refused(EXIT_DATA, "another process is writing it");
    EXPECT(file_exists(temp("p_text_document.bin.tmp")));
    EXPECT(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid);
    EXPECT(WIFSIGNALED(status));
    close(fd);
    EXPECT(!file_exists(temp("p_text_document.bin")));
    EXPECT(!file_exists(temp("p_text_document.idx")));
    RUN("--input", good, "--output-prefix", p, BYTES); /* over what was left */
    worked();
    EXPECT_STR(shown(temp("p_text_document")), "good|\n");
}

TEST(preprocess_stopped) {
    int fd, status;
    char *pipe = temp("pipe.jsonl"), *p = temp("p");
    pid_t pid = start_on_pipe(pipe, p, &fd);
    EXPECT(kill(pid, SIGTERM) == 0);
    usleep(100000);
    size_t n;
    const char *text = made_lines(&n);
    signal(SIGPIPE, SIG_IGN);
    for (size_t at = 0; at < n;) {
        ssize_t got = write(fd, text + at, n - at);
        if (got < 0) break;
        at += (size_t)got;
    }
    close(fd);
    EXPECT_INT(waitpid(pid, &status, 0), pid);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SIGNALLED);
    nothing_left(p);
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
