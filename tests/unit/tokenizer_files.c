/* tokenizer_files.c - tokenizers from files, good and damaged. */
#include "tokenizer.h"

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

TEST_LABEL_OF(gpt2_written_again, RELEASED);
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
