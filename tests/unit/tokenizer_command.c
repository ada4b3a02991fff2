/* tokenizer_command.c - the command tokenizer: training, encoding, decoding, refusals. */
#include "tokenizer.h"
#include <sys/wait.h>

/* Runs `stator tokenizer ...` in a shell; fills what it prints, returns its exit code. */
static int command(char *printed, size_t size, const char *fmt, ...) {
    Arena *mem = arena_new();
    Text line = text_new(mem);
    va_list ap;
    char words[2048];
    va_start(ap, fmt);
    EXPECT(vsnprintf(words, sizeof words, fmt, ap) < (int)sizeof words);
    va_end(ap);
    text_add(&line, "cd '%s' && exec 2>&1; S='%s/stator tokenizer'; %s", temp_dir(),
             BUILD_DIR, words);
    FILE *f = popen(line.s, "r");
    EXPECT(f);
    size_t n = fread(printed, 1, size - 1, f);
    printed[n] = 0;
    int status = pclose(f);
    EXPECT(WIFEXITED(status));
    arena_free(mem);
    return WEXITSTATUS(status);
}

TEST(command_trains_and_encodes) {
    static const char files[] = "--vocab_file out/vocab.json --merge-file=out/merges.txt";
    char out[4096];
    Arena *mem = arena_new();
    EXPECT(!file_write_atomic(path_join(mem, temp_dir(), "a"), story, strlen(story)));
    EXPECT(!file_write_atomic(path_join(mem, temp_dir(), "b"), "\xFF the the", 9));
    int code =
        command(out, sizeof out, "$S train --input a b --vocab_size 270 --output out");
    EXPECT(code == 0 && strstr(out, "1 sequences are not valid UTF-8"));
    EXPECT_PART(out, "out: byte-level BPE, 270 ids, 13 merges, 1 special");
    EXPECT_INT(command(out, sizeof out, "$S encode %s the the", files), 0);
    char *ids = arena_strdup(mem, out);
    EXPECT_INT(command(out, sizeof out,
                       "printf 'the the' | $S encode --tokenizer-file "
                       "out/tokenizer.json"),
               0);
    EXPECT_STR(out, ids);
    ids[strcspn(ids, "\n")] = 0;
    EXPECT_INT(command(out, sizeof out, "$S decode %s %s", files, ids), 0);
    EXPECT_STR(out, "the the");
    EXPECT_INT(command(out, sizeof out,
                       "printf '<|endoftext|>' | $S encode %s "
                       "--allow-special",
                       files),
               0);
    EXPECT_STR(out, "269\n");
    EXPECT_INT(
        command(out, sizeof out, "$S encode --tokenizer-type ByteTokenizer -- --a"), 0);
    EXPECT_STR(out, "45 45 97\n");
    arena_free(mem);
}

TEST(command_json_and_template) {
    char out[4096];
    Arena *mem = arena_new();
    const char *file = arena_printf(
        mem, "--tokenizer-file '%s/golden/tokenizers/llama2.json'", tests_dir());
    const char *lines = "printf '\"a b\"\\n\"\\\\u00e9\\\\n\"\\n\"\"\\n'";
    EXPECT_INT(
        command(out, sizeof out, "%s | $S encode --json --template %s", lines, file), 0);
    EXPECT(!strncmp(out, "[1,", 3) && strstr(out, "\n[1]\n"));
    EXPECT_INT(command(out, sizeof out, "%s | $S encode --json %s | $S decode --json %s",
                       lines, file, file),
               0);
    EXPECT_STR(out, "\"a b\"\n\"\xC3\xA9\\n\"\n\"\"\n");
    EXPECT_INT(command(out, sizeof out, "$S encode --template %s '</s>'", file), 0);
    EXPECT(strcmp(out, "1 2\n") != 0);
    EXPECT_INT(
        command(out, sizeof out, "$S encode --template --allow-special %s '</s>'", file),
        0);
    EXPECT_STR(out, "1 2\n");
    EXPECT_INT(command(out, sizeof out, "echo 7 | $S encode --json %s", file), 3);
    EXPECT_INT(command(out, sizeof out, "echo [-1] | $S decode --json %s", file), 3);
    EXPECT_INT(command(out, sizeof out, "$S encode --json %s word", file), 2);
    EXPECT_INT(command(out, sizeof out, "$S decode --template %s 1", file), 2);
    arena_free(mem);
}

TEST(command_refuses) {
    static const struct {
        const char *words, *part;
        int code;
    } cases[] = {
        {"$S", "write train, encode or decode", 2},
        {"$S tran", "stator tokenizer tran: write train", 2},
        {"$S train --input none --vocab-size 300 --output o", "cannot open none", 3},
        {"$S train --input none --vocab-size 12 --output o",
         "write a whole number from 257 to", 2},
        {"$S train --input none --vocab-size 3x --output o", "--vocab-size 3x: write", 2},
        {"$S train --input none --output o", "--vocab-size N", 2},
        {"$S encode --vocab-size 300 x", "are for stator tokenizer train alone", 2},
        {"$S encode --vocab-file", "--vocab-file needs a value", 2},
        {"$S encode --vocab-file a --vocab-file b", "--vocab-file is given twice", 2},
        {"$S encode --wrong", "unknown option --wrong", 2},
        {"$S encode x", "GPT2BPETokenizer needs its files", 2},
        {"$S decode --tokenizer-type ByteTokenizer 256", "256 is outside of the model's",
         2},
        {"$S encode --tokenizer-type ByteTokenizer abc >/dev/full", "cannot write the",
         3},
    };
    char out[4096];
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        int code = command(out, sizeof out, "%s", cases[i].words);
        if (code != cases[i].code || !strstr(out, cases[i].part))
            test_fail(__FILE__, __LINE__, "%s: code %d:\n%s\nwanted %d: %s",
                      cases[i].words, code, out, cases[i].code, cases[i].part);
    }
}
