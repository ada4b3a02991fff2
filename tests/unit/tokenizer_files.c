/* tokenizer_files.c - tokenizers from files, good and damaged; training; the command. */
#include "tokenizer.h"
#include <sys/wait.h>

TEST(specs) {
    Arena *mem = arena_new();
    EXPECT_FAIL(tokenizer_open(mem, &(TokenizerSpec){.type = "GPT2BPETokeniser"}),
                EXIT_CONFIG, "did you mean GPT2BPETokenizer?");
    EXPECT_FAIL(tokenizer_open(mem, &(TokenizerSpec){.vocab_file = "x"}), EXIT_CONFIG,
                "needs a merge_file");
    EXPECT_FAIL(tokenizer_open(mem, &(TokenizerSpec){0}), EXIT_CONFIG, "needs its files");
    EXPECT_FAIL(
        tokenizer_open(mem, &(TokenizerSpec){.vocab_file = "x", .tokenizer_file = "y"}),
        EXIT_CONFIG, "not as both");
    EXPECT_FAIL(tokenizer_open(mem, &(TokenizerSpec){.type = "ByteTokenizer",
                                                     .vocab_file = "x.json"}),
                EXIT_CONFIG, "leave out x.json");
    EXPECT_FAIL(tokenizer_open(mem, &(TokenizerSpec){.tokenizer_file = "/none/t.json"}),
                EXIT_DATA, "cannot open /none/t.json");
    arena_free(mem);
}

/* ---- files ---- */

TEST(gpt2_written_again) {
    Arena *mem = arena_new();
    Tokenizer *t = open_gpt2(mem);
    tokenizer_write(t, temp_dir());
    TokenizerSpec spec = {.tokenizer_file = path_join(mem, temp_dir(), "tokenizer.json")};
    Tokenizer *json = tokenizer_open(mem, &spec);
    EXPECT_STR(tokenizer_describe(json), tokenizer_describe(t));
    EXPECT(tokenizer_eod(json) == 50256 && json->merges == t->merges);
    EXPECT(!memcmp(json->merge, t->merge, (size_t)t->merges * sizeof *t->merge));
    for (int i = 0; i < 50257; i++)
        EXPECT(json->token[i].n == t->token[i].n &&
               !memcmp(json->token[i].s, t->token[i].s, t->token[i].n));
    arena_free(mem);
}

TEST(bytes_in_files) {
    static const unsigned char bytes[] = {0, 10, 32, 33, 126, 127, 160, 161, 173, 255};
    Arena *mem = arena_new();
    size_t n;
    Tokenizer *t = small_tokenizer(mem);
    tokenizer_write(t, temp_dir());
    const Json *v =
        json_read(mem, path_join(mem, temp_dir(), "vocab.json"), 1 << 20, EXIT_DATA);
    static const char *const chars[] = {"\u0100", "\u010A", "\u0120", "!",      "~",
                                        "\u0121", "\u0142", "\u00A1", "\u0143", "\u00FF"};
    for (int i = 0; i < ARRAY_LEN(bytes); i++) {
        const char *s = tokenizer_piece(
            t, (int32_t)json_i64(json_need(v, chars[i]), 0, 255), false, &n);
        EXPECT(n == 1 && (unsigned char)s[0] == bytes[i]);
    }
    EXPECT_INT(json_i64(json_need(v, "!"), 0, 255), 0); /* as in GPT-2's file */
    EXPECT_INT(json_i64(json_need(v, "\u0100"), 0, 255), 188);
    EXPECT_INT(json_i64(json_need(v, "\u0143"), 0, 255), 255);
    arena_free(mem);
}

/* {"byte": id, ...: 256 bytes as files write them, then `more`. */
static char *vocab_json(Arena *mem, const char *more) {
    Text t = text_new(mem);
    Tokenizer *bytes = train_on(mem, "", 257);
    tokenizer_write(bytes, temp_dir());
    size_t n;
    char *s =
        file_read(mem, path_join(mem, temp_dir(), "vocab.json"), 1 << 20, &n, EXIT_DATA);
    char *end = strstr(s, ",\"<|endoftext|>\"");
    EXPECT(end);
    text_add_bytes(&t, s, (size_t)(end - s));
    text_add(&t, "%s}", more);
    return t.s;
}

static Tokenizer *of_vocab(Arena *mem, const char *more, const char *merges) {
    const char *vocab = vocab_json(mem, more);
    return tokenizer_of_vocab(mem, "v.json", vocab, strlen(vocab), "m.txt", merges,
                              strlen(merges));
}

TEST(vocab_and_merges) {
    Arena *mem = arena_new();
    Tokenizer *t =
        of_vocab(mem, ",\"ab\":256,\"<|pad|>\":257,\"abc\":258,\"<|pad|>x\":259",
                 "#version: 0.2\r\na b\r\nab c");
    Ids ids = encode(mem, t, "abcab<|pad|>x<|pad|>", 20, true);
    static const int32_t want[] = {258, 256, 259, 257};
    EXPECT(ids.n == 4 && !memcmp(ids.id, want, sizeof want));
    EXPECT(tokenizer_eod(t) == -1 && t->merges == 2);
    EXPECT_INT(encode(mem, t, "<|pad|>", 7, false).n, 7);
    arena_free(mem);
}

TEST(damaged_vocab_and_merges) {
    static const struct {
        const char *more, *merges, *part;
    } cases[] = {
        {",\"ab\":256", "#version: 0.2\nab\n", "m.txt:2:1: error: a merge is two tokens"},
        {",\"ab\":256", "a b c\n", "m.txt:1:1: error: a merge is two tokens"},
        {",\"ab\":256", "a b\n\na c\n", "m.txt:2:1: error: a merge is two tokens"},
        {",\"ab\":256", "a b\na b\n", "m.txt:2:1: error: this pair is merged twice"},
        {",\"ab\":256", "a c\n", "result is not in the vocabulary: 'ac'"},
        {",\"ab\":256", "a bb\n", "m.txt:1:1: error: not in the vocabulary: 'bb'"},
        {",\"ab\":256,\"abc\":257", "ab c\na b\n",
         "made by no merge before this one: 'ab'"},
        {",\"ab\":257", "a b\n", "'ab' must be between 0 and 256"},
        {",\"ab\":255", "a b\n", "id 255 is taken"},
        {",\"ab\":-1", "a b\n", "'ab' must be between 0 and 256"},
        {",\"ab\":256.0", "a b\n", "v.json"},
        {",\"ab\":\"x\"", "a b\n", "v.json"},
        {",\"\":256", "", "a token is empty"},
        {",\"a\":256", "", "key 'a' is there twice"},
        {",", "", "v.json:"},
    };
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        const char *vocab = vocab_json(mem, cases[i].more), *m = cases[i].merges;
        EXPECT_FAIL(tokenizer_of_vocab(mem, "v.json", vocab, strlen(vocab), "m.txt", m,
                                       strlen(m)),
                    EXIT_DATA, cases[i].part);
    }
    EXPECT_FAIL(tokenizer_of_vocab(mem, "v.json", "{\"a\":0}", 7, "m.txt", "", 0),
                EXIT_DATA, "the vocabulary has 1 of the 256 bytes");
    const char *vocab = vocab_json(mem, ",\"ab\":256");
    EXPECT_FAIL(
        tokenizer_of_vocab(mem, "v.json", vocab, strlen(vocab), "m.txt", "a\0b c", 5),
        EXIT_DATA, "a zero byte");
    arena_free(mem);
}

/* The tokenizer.json of "ab" and "<|e|>", with `from` replaced by `to`. */
static Tokenizer *of_json(Arena *mem, const char *from, const char *to) {
    static const char head[] =
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":["
        "{\"id\":257,\"content\":\"<|e|>\",\"single_word\":false,\"lstrip\":false,"
        "\"rstrip\":false,\"normalized\":true,\"special\":true}],\"normalizer\":null,"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
        "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":{\"type\":"
        "\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":false},\"decoder\":"
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true},"
        "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
        "\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":\"\",\"fuse_unk\":"
        "false,"
        "\"vocab\":";
    const char *all = arena_printf(mem, "%s%s,\"merges\":[\"a b\"]}}", head,
                                   vocab_json(mem, ",\"ab\":256"));
    const char *at = strstr(all, from);
    EXPECT(at);
    const char *text =
        arena_printf(mem, "%.*s%s%s", (int)(at - all), all, to, at + strlen(from));
    return tokenizer_of_json(mem, "t.json", text, strlen(text));
}

TEST(tokenizer_json) {
    static const int32_t want[] = {256, 257, 256};
    static const char *const same[][2] = {
        {"\"version\"", "\"version\""},
        {"[\"a b\"]", "[[\"a\",\"b\"]]"},
        {",\"use_regex\":true", ""},
        {"\"unk_token\":null,", ""},
        {"\"ab\":256", "\"ab\":256,\"<|e|>\":257"},
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":false}",
         "null"},
    };
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(same); i++) {
        Tokenizer *t = of_json(mem, same[i][0], same[i][1]);
        Ids ids = encode(mem, t, "ab<|e|>ab", 9, true);
        EXPECT(ids.n == 3 && !memcmp(ids.id, want, sizeof want));
        EXPECT_INT(tokenizer_vocab(t), 258);
    }
    arena_free(mem);
}

/* Files whose tokenizer is the same, as other versions of the libraries write it. */
TEST(tokenizer_json_other_forms) {
    static const char *const same[][2] = {
        {"\"type\":\"BPE\",", ""},
        {"\"truncation\":null",
         "\"truncation\":{\"direction\":\"Right\",\"max_length\":512,\"strategy\":"
         "\"LongestFirst\",\"stride\":0}"},
        {"\"padding\":null",
         "\"padding\":{\"strategy\":\"BatchLongest\",\"direction\":\"Right\","
         "\"pad_to_multiple_of\":null,\"pad_id\":257,\"pad_type_id\":0,\"pad_token\":"
         "\"<|e|>\"}"},
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":false}",
         "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\","
         "\"type_id\":0}}],\"pair\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{"
         "\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],\"special_tokens\":{}}"},
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
         "\"use_regex\":true}",
         "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
         "\"Regex\":\"'(?:[sdmt]|ll|ve|re)| ?\\\\p{L}+| ?\\\\p{N}+| "
         "?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":"
         "\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":"
         "false,\"use_regex\":false}]}"},
        {"\"dropout\":null", "\"dropout\":0.0"},
        {"\"special\":true", "\"special\":false"},
        {"\"vocab\":", "\"ignore_merges\":true,\"vocab\":"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\"}"},
    };
    static const int32_t want[] = {256, 257, 256, 220, 256};
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(same); i++) {
        Tokenizer *t = of_json(mem, same[i][0], same[i][1]);
        Ids ids = encode(mem, t, "ab<|e|>ab ab", 12, true);
        int n;
        if (ids.n != 5 || memcmp(ids.id, want, sizeof want))
            test_fail(__FILE__, __LINE__, "other ids in case %d", i);
        tokenizer_prefix(t, &n);
        EXPECT_INT(n, 0);
    }
    arena_free(mem);
}

TEST(tokenizer_json_not_understood) {
    static const char *const cases[][3] = {
        {"\"1.0\"", "\"2.0\"", "'version' may only be: \"1.0\""},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"NFKC\"}",
         "t.json:1:201: error: the normalizer 'NFKC' is not built in"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}",
         "there are: NFC, Prepend, Replace, Sequence"},
        {"\"normalizer\":null",
         "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{"
         "\"type\":\"StripAccents\"}]}",
         "the normalizer 'StripAccents' is not built in"},
        {"\"normalizer\":null",
         "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},"
         "\"content\":\"b\"}",
         "'String' may only be \" \""},
        {"\"normalizer\":null",
         "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
         "\"content\":\"\xE2\x96\x81\"}",
         "a Replace beside ByteLevel is not built in"},
        {"\"truncation\":null", "\"truncation\":{}", "'max_length' is missing"},
        {"\"truncation\":null", "\"truncation\":{\"max_length\":1,\"x\":2}",
         "'x' is not understood"},
        {"\"version\"", "\"extra\":1,\"version\"", "'extra' is not understood"},
        {"\"add_prefix_space\":false", "\"add_prefix_space\":true", "'add_prefix_space'"},
        {"\"use_regex\":true", "\"use_regex\":false", "'use_regex' may only be true"},
        {"{\"type\":\"ByteLevel\"", "{\"type\":\"Whitespace\"",
         "the pre-tokenizer 'Whitespace' is not built in"},
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
         "\"use_regex\":true}",
         "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
         "\"Regex\":\"\\\\w+\"},\"behavior\":\"Isolated\",\"invert\":false}]}",
         "the regular expression '\\w+' is not known"},
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
         "\"use_regex\":true}",
         "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"}]}",
         "the pre-tokenizer 'Digits' is not built in"},
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
         "\"use_regex\":true}",
         "null", "neither byte_fallback nor ByteLevel"},
        {"\"post_processor\":{\"type\":\"ByteLevel\"",
         "\"post_processor\":{\"type\":\"RobertaProcessing\"",
         "the post-processor 'RobertaProcessing' is not built in"},
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":false}",
         "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>"
         "\",\"type_id\":0}}],\"special_tokens\":{}}",
         "'<s>' is not among the special_tokens of the template"},
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":false}",
         "{\"type\":\"TemplateProcessing\",\"single\":[],\"special_tokens\":{}}",
         "the template has no Sequence A"},
        {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"CTC\"",
         "the decoder 'CTC' is not built in"},
        {"\"BPE\"", "\"WordPiece\"", "'type' may only be: \"BPE\""},
        {"\"dropout\":null", "\"dropout\":0.1", "'dropout' may only be: null"},
        {"\"vocab\":", "\"byte_fallback\":true,\"vocab\":",
         "byte_fallback beside ByteLevel is not built in"},
        {"\"end_of_word_suffix\":\"\"", "\"end_of_word_suffix\":\"</w>\"",
         "'end_of_word_suffix'"},
        {"\"lstrip\":false", "\"lstrip\":1", "'lstrip' may only be: true false"},
        {"\"id\":257", "\"id\":256", "id 256 is taken"},
        {"\"id\":257", "\"id\":258", "'id' must be between 0 and 257"},
        {"\"<|e|>\"", "\"\"", "an added token is empty"},
        {"\"id\":257,\"content\":\"<|e|>\"", "\"id\":256,\"content\":\"a\"",
         "this token has id 64 in the vocabulary"},
        {"[\"a b\"]", "[\"a b\",\"a b\"]", "this pair is merged twice"},
        {"[\"a b\"]", "[[\"a\",\"b\",\"c\"]]", "a merge is two tokens"},
        {"[\"a b\"]", "[7]", "t.json"},
        {"[\"a b\"]", "{}", "t.json"},
    };
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(cases); i++)
        EXPECT_FAIL(of_json(mem, cases[i][0], cases[i][1]), EXIT_DATA, cases[i][2]);
    arena_free(mem);
}

/* ---- training ---- */

/* By hand. Words: "ab" 3, " ab" 2, " abc" 1, "x" 1. Pairs: (a,b) 6; then (G,ab) 3, with G
 * for the space; then (Gab,c) once: not merged. */
TEST(training_by_hand) {
    Arena *mem = arena_new();
    TokenizerTrainer *tr = tokenizer_trainer_new(mem);
    tokenizer_trainer_add(tr, "ab ab", 5, NULL);
    tokenizer_trainer_add(tr, "ab ab abc", 9, NULL);
    tokenizer_trainer_add(tr, "ab", 2, NULL);
    tokenizer_trainer_add(tr, "x", 1, NULL);
    Tokenizer *t = tokenizer_train(tr, 300);
    EXPECT(t->merges == 2 && tokenizer_vocab(t) == 259 && tokenizer_eod(t) == 258);
    size_t n;
    EXPECT(!memcmp(tokenizer_piece(t, 256, false, &n), "ab", 2) && n == 2);
    EXPECT(!memcmp(tokenizer_piece(t, 257, false, &n), " ab", 3) && n == 3);
    EXPECT_FAIL(tokenizer_train(tr, 256), EXIT_CONFIG, "a vocabulary of 256");
    arena_free(mem);
}

/* (a,a) counts overlapping; of the equals (a,b) and (b,a) the lower left id comes first.
 */
TEST(training_ties) {
    Arena *mem = arena_new();
    Tokenizer *t = train_on(mem, "ba1ab1ba1ab", 258);
    EXPECT(t->merge[0].left == t->byte_id['a'] && t->merge[0].right == t->byte_id['b']);
    t = train_on(mem, "ac1ab1ac1ab", 258);
    EXPECT(t->merge[0].left == t->byte_id['a'] && t->merge[0].right == t->byte_id['b']);
    arena_free(mem);
}

/* The plain way: count all pairs of all words before each merge. */
static void plain_train(const Tokenizer *t, const char *text) {
    Arena *mem = arena_new();
    size_t n = strlen(text), words = 0;
    int32_t *id = NEW_ARRAY(mem, int32_t, 2 * n + 1); /* -1 between words */
    for (const char *p = text, *end = text + n, *next; p < end; p = next) {
        next = bpe_word_end(t->char_class, p, end);
        for (; p < next; p++) id[words++] = t->byte_id[(unsigned char)*p];
        id[words++] = -1;
    }
    int vocab = (int)t->vocab;
    int32_t *count = NEW_ARRAY(mem, int32_t, (size_t)vocab * (size_t)vocab);
    for (int32_t r = 0; r <= t->merges; r++) {
        memset(count, 0, (size_t)vocab * (size_t)vocab * sizeof *count);
        int best = 0;
        for (size_t i = 0; i + 1 < words; i++)
            if (id[i] >= 0 && id[i + 1] >= 0) count[id[i] * vocab + id[i + 1]]++;
        for (int i = 0; i < vocab * vocab; i++)
            if (count[i] > count[best]) best = i;
        if (r == t->merges) {
            EXPECT(t->vocab == 400 || count[best] < 2);
            break;
        }
        MergeSlot m = t->merge[r];
        if (best != m.left * vocab + m.right)
            test_fail(__FILE__, __LINE__, "merge %d is (%d, %d), not (%d, %d)", r, m.left,
                      m.right, best / vocab, best % vocab);
        size_t made = 0;
        for (size_t i = 0; i < words; i++) {
            bool both = i + 1 < words && id[i] == m.left && id[i + 1] == m.right;
            id[made++] = both ? m.result : id[i];
            i += both;
        }
        words = made;
    }
    arena_free(mem);
}

TEST(training_against_plain) {
    Arena *mem = arena_new();
    Text random = text_new(mem);
    uint64_t state = 11;
    for (int i = 0; i < 3000; i++)
        text_add(&random, "%c", "aaabbc "[next_random(&state) % 7]);
    plain_train(train_on(mem, story, 400), story);
    plain_train(train_on(mem, random.s, 400), random.s);
    arena_free(mem);
}

TEST(training_again) {
    Arena *mem = arena_new();
    static const char *const names[] = {"vocab.json", "merges.txt", "tokenizer.json"};
    size_t n[2];
    for (int f = 0; f < 3; f++) {
        char *bytes[2];
        for (int i = 0; i < 2; i++) {
            tokenizer_write(small_tokenizer(mem), temp_dir());
            bytes[i] = file_read(mem, path_join(mem, temp_dir(), names[f]), 1 << 20,
                                 &n[i], EXIT_DATA);
        }
        EXPECT(n[0] == n[1] && n[0] > 100 && !memcmp(bytes[0], bytes[1], n[0]));
    }
    arena_free(mem);
}

TEST(trained_files_load) {
    Arena *mem = arena_new();
    Tokenizer *t = small_tokenizer(mem);
    tokenizer_write(t, temp_dir());
    TokenizerSpec two = {.vocab_file = path_join(mem, temp_dir(), "vocab.json"),
                         .merge_file = path_join(mem, temp_dir(), "merges.txt")};
    TokenizerSpec one = {.tokenizer_file = path_join(mem, temp_dir(), "tokenizer.json")};
    Tokenizer *again[] = {tokenizer_open(mem, &two), tokenizer_open(mem, &one)};
    Ids want = encode(mem, t, story, strlen(story), false);
    EXPECT(want.n < strlen(story) * 2 / 3);
    for (int i = 0; i < 2; i++) {
        Ids ids = encode(mem, again[i], story, strlen(story), false);
        EXPECT(ids.n == want.n && !memcmp(ids.id, want.id, ids.n * sizeof *ids.id));
        EXPECT_INT(tokenizer_eod(again[i]), 279);
        EXPECT_STR(tokenizer_describe(again[i]), tokenizer_describe(t));
    }
    arena_free(mem);
}

TEST(cannot_write) {
    Arena *mem = arena_new();
    char *file = path_join(mem, temp_dir(), "file");
    EXPECT_INT(file_write_atomic(file, "x", 1), 0);
    EXPECT_FAIL(tokenizer_write(small_tokenizer(mem), file), EXIT_DATA, "cannot make");
    char *dir = path_join(mem, temp_dir(), "taken");
    EXPECT_INT(dir_make(path_join(mem, dir, "vocab.json")), 0);
    EXPECT_FAIL(tokenizer_write(small_tokenizer(mem), dir), EXIT_DATA, "cannot write");
    EXPECT(!file_exists(path_join(mem, dir, "vocab.json.tmp")));
    arena_free(mem);
}

TEST(training_size) {
    Arena *mem = arena_new();
    size_t n;
    char *text = file_read(mem, shared_file(mem, "data/tinyshakespeare.txt"), 4 << 20, &n,
                           EXIT_DATA);
    double start = clock_seconds();
    Tokenizer *t = train_on(mem, text, 4096);
    EXPECT(clock_seconds() - start < 20);
    EXPECT_INT(tokenizer_vocab(t), 4096);
    Ids ids = encode(mem, t, text, n, false);
    EXPECT(ids.n < n / 3);
    arena_free(mem);
}

/* ---- the command ---- */

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
