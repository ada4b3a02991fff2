/* tokenizer_families.c - small tokenizers built as those of GPT-2, GPT-NeoX, Llama 2 and 3,
 * Mistral and Qwen2, and what the library `tokenizers` makes of texts with them, saved by
 * tests/compare_tokenizers.py --fixtures; the same script compares many more texts. */
#include "runs.h"
#include "runtime/text/nfc.h"
#include "tokenizer.h"
#include <sys/wait.h>

static Tokenizer *open_family(Arena *mem, const char *name) {
    const char *file = arena_printf(mem, "tokenizers/%s.json", name);
    TokenizerSpec spec = {.tokenizer_file = runs_golden(file)};
    return tokenizer_open(mem, &spec);
}

static void expect_ids(const Json *line, const char *key, Ids got, const int32_t *prefix,
                       int nprefix) {
    const Json *want = json_need(line, key);
    bool same = (size_t)want->n == got.n + (size_t)nprefix;
    int i = 0;
    for (const Json *e = want->first; same && e; e = e->next, i++)
        same = e->i == (i < nprefix ? prefix[i] : got.id[i - nprefix]);
    if (!same)
        test_fail(__FILE__, __LINE__, "other %s: %s", key,
                  json_raw(mem(), json_need(line, "text")));
}

static void check_text(Arena *mem, const Tokenizer *t, const Json *line) {
    const Json *text = json_need(line, "text"), *decoded = json_need(line, "decoded");
    int nprefix;
    const int32_t *prefix = tokenizer_prefix(t, &nprefix);
    expect_ids(line, "ids", encode(mem, t, text->s, text->length, true), prefix, nprefix);
    expect_ids(line, "plain", encode(mem, t, text->s, text->length, false), NULL, 0);
    const Json *want = json_need(line, "ids");
    Ids ids = {NEW_ARRAY(mem, int32_t, (size_t)want->n + 1), 0, 0};
    for (const Json *e = want->first; e; e = e->next) ids.id[ids.n++] = (int32_t)e->i;
    size_t n;
    const char *s = decode(mem, t, ids, &n);
    if (n != decoded->length || memcmp(s, decoded->s, n) != 0)
        test_fail(__FILE__, __LINE__, "other text: %.*s\n%s", (int)n, s, decoded->s);
}

static void check_family(const char *name) {
    Arena *mem = arena_new();
    size_t n;
    const char *path = runs_golden(arena_printf(mem, "tokenizers/%s.jsonl", name));
    char *all = file_read(mem, path, 16 << 20, &n, EXIT_DATA);
    Tokenizer *t = open_family(mem, name);
    int lines = 0;
    for (char *p = all, *end; p < all + n; p = end + 1, lines++) {
        end = memchr(p, '\n', (size_t)(all + n - p));
        EXPECT(end);
        check_text(mem, t,
                   json_parse(mem, name, p, (size_t)(end - p), 1 << 20, EXIT_DATA));
    }
    EXPECT_INT(lines, 60);
    arena_free(mem);
}

TEST(gpt2) {
    check_family("gpt2");
}
TEST(neox) {
    check_family("neox");
}
TEST(llama2) {
    check_family("llama2");
}
TEST(llama2_metaspace) {
    check_family("llama2_metaspace");
}
TEST(mistral) {
    check_family("mistral");
}
TEST(llama3) {
    check_family("llama3");
}
TEST(qwen2) {
    check_family("qwen2");
}

TEST(begin_and_end) {
    static const struct {
        const char *name, *bos, *eod;
    } cases[] = {{"gpt2", NULL, "<|endoftext|>"},
                 {"llama2", "<s>", "</s>"},
                 {"llama3", "<|begin_of_text|>", "<|end_of_text|>"}};
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        Tokenizer *t = open_family(mem, cases[i].name);
        size_t n;
        int64_t bos = tokenizer_bos(t);
        EXPECT_STR(tokenizer_piece(t, (int32_t)tokenizer_eod(t), false, &n),
                   cases[i].eod);
        EXPECT_INT(bos >= 0, cases[i].bos != NULL);
        if (bos >= 0)
            EXPECT_STR(tokenizer_piece(t, (int32_t)bos, false, &n), cases[i].bos);
        EXPECT(tokenizer_special(t, (int32_t)tokenizer_eod(t)));
        EXPECT(!tokenizer_special(t, 5));
    }
    /* As in transformers: null is none, and what is left out has a usual name. */
    for (int i = 0; i < ARRAY_LEN(cases); i++)
        for (int none = 0; none < 4; none++) {
            Tokenizer *t = open_family(mem, cases[i].name);
            int64_t bos = tokenizer_bos(t), eod = tokenizer_eod(t);
            const char *file =
                arena_printf(mem, "{%s\"added_tokens_decoder\": {}%s}",
                             none & 1 ? "\"eos_token\": null, " : "",
                             none & 2 ? ", \"bos_token\": {\"content\": null}" : "");
            tokenizer_take_config(mem, t, "tokenizer_config.json", file, strlen(file));
            EXPECT_INT(tokenizer_eod(t), none & 1 ? -1 : eod);
            EXPECT_INT(tokenizer_bos(t), none & 2 ? -1 : bos);
        }
    Tokenizer *t = open_family(mem, "qwen2");
    static const char config[] = "{\"eos_token\": {\"content\": \"<|im_end|>\"}, "
                                 "\"bos_token\": null}";
    tokenizer_take_config(mem, t, "tokenizer_config.json", config, strlen(config));
    size_t n;
    EXPECT_STR(tokenizer_piece(t, (int32_t)tokenizer_eod(t), false, &n), "<|im_end|>");
    EXPECT_INT(tokenizer_bos(t), -1);
    arena_free(mem);
}

/* An added token of one character, which is a byte's token too, is found before all others;
 * the other bytes stay what they were. */
TEST(added_token_of_one_byte) {
    Arena *mem = arena_new();
    size_t n;
    const char *path = runs_golden("tokenizers/gpt2.json");
    const char *json = file_read(mem, path, 1 << 20, &n, EXIT_DATA);
    const char *at = strstr(json, "\"added_tokens\"");
    EXPECT(at && (at = strchr(at, '[')));
    Tokenizer *plain = tokenizer_of_json(mem, path, json, n);
    int32_t id = encode(mem, plain, "#", 1, false).id[0];
    json = arena_printf(mem,
                        "%.*s{\"id\":%d,\"content\":\"#\",\"single_word\":false,"
                        "\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                        "\"special\":true},%s",
                        (int)(at + 1 - json), json, id, at + 1);
    Tokenizer *t = tokenizer_of_json(mem, path, json, strlen(json));
    Ids got = encode(mem, t, "a#b", 3, true);
    EXPECT_INT(got.n, 3);
    EXPECT_INT(got.id[0], encode(mem, plain, "a", 1, false).id[0]);
    EXPECT_INT(got.id[1], id);
    EXPECT_INT(got.id[2], encode(mem, plain, "b", 1, false).id[0]);
    EXPECT_STR(decode(mem, t, got, &n), "a#b");
    arena_free(mem);
}

/* What is written is what was read. */
TEST(written_again) {
    Arena *mem = arena_new();
    static const char *const names[] = {"llama2", "qwen2"};
    for (int i = 0; i < 2; i++) {
        tokenizer_write(open_family(mem, names[i]), temp_dir());
        size_t n, m;
        const char *from = runs_golden(arena_printf(mem, "tokenizers/%s.json", names[i]));
        char *a = file_read(mem, from, 1 << 20, &n, EXIT_DATA);
        char *b = file_read(mem, path_join(mem, temp_dir(), "tokenizer.json"), 1 << 20,
                            &m, EXIT_DATA);
        EXPECT(n == m && !memcmp(a, b, n));
        b = file_read(mem, path_join(mem, temp_dir(), "tokenizer_config.json"), 1 << 20,
                      &m, EXIT_DATA);
        EXPECT_PART(b, i ? "\"eos_token\": \"<|endoftext|>\"" : "\"bos_token\": \"<s>\"");
    }
    arena_free(mem);
}

/* A byte that no character holds, long runs, and words longer than what is remembered, in
 * a tokenizer with byte fallback: the bound on the ids holds and nothing is lost. */
TEST(bounds) {
    static const char *const names[] = {"llama2", "llama2_metaspace", "neox", "llama3"};
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        Tokenizer *t = open_family(mem, names[i]);
        for (size_t n = 1; n < 400; n = n * 3 / 2 + 1) {
            static const char of[] = "  \xFF\xF0\x9D\x85\xA0 \xE2\x96\x81"
                                     "a\xCC\x81";
            char *s = arena_alloc(mem, n);
            for (size_t k = 0; k < n; k++) s[k] = of[k % (sizeof of - 1)];
            Ids ids = encode(mem, t, s, n, false);
            EXPECT(ids.n <= tokenizer_max_tokens(t, n));
            Text again = text_new(mem);
            size_t size;
            char *back = decode(mem, t, ids, &size);
            text_add_bytes(&again, back, size);
            EXPECT(size >= n / 2);
        }
    }
    arena_free(mem);
}

/* ---- NFC ---- */

TEST(nfc) {
    static const char *const cases[][2] = {
        {"e\xCC\x81", "\xC3\xA9"},
        {"plain \xC3\xA9", "plain \xC3\xA9"},
        {"a\xCC\x95\xCC\x80\xD6\xAE\xCC\x80"
         "b",
         "\xC3\xA0\xD6\xAE\xCC\x80\xCC\x95"
         "b"},                                        /* NormalizationTest.txt, part 2 */
        {"\xE2\x84\xAB", "\xC3\x85"},                 /* the angstrom sign */
        {"\xEA\xB0\x80\xE1\x86\xA8", "\xEA\xB0\x81"}, /* Hangul LV + T */
        {"\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81"},
        {"\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC"}, /* excluded from composition */
        {"\xCC\x81"
         "e",
         "\xCC\x81"
         "e"},
        {"q\xCC\x87\xCC\xA3", "q\xCC\xA3\xCC\x87"},
    };
    Arena *mem = arena_new();
    const Nfc *nfc = nfc_new(mem);
    void *room = arena_alloc(mem, NFC_ROOM_BYTES);
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        size_t n = strlen(cases[i][0]);
        char *out = arena_alloc(mem, 3 * n + 1);
        out[nfc_put(nfc, cases[i][0], n, out, room)] = 0;
        EXPECT_STR(out, cases[i][1]);
        if (nfc_is(nfc, cases[i][0], n)) EXPECT_STR(cases[i][0], cases[i][1]);
    }
    size_t n = 2 * NFC_MAX_MARKS + 3;
    char *many = arena_alloc(mem, n), *out = arena_alloc(mem, 3 * n);
    many[0] = 'e';
    for (size_t i = 1; i + 1 < n; i += 2) memcpy(many + i, "\xCC\x81", 2);
    EXPECT_FAIL(nfc_put(nfc, many, n, out, room), EXIT_DATA, "marks on it");
    arena_free(mem);
}

/* ---- against the library ---- */

TEST_LABEL_OF(library, SLOW);
TEST_LIMIT(library, 300) {
    Arena *mem = arena_new();
    const char *script = path_join(mem, runs_golden(".."), "compare_tokenizers.py");
    FILE *f =
        popen(arena_printf(mem, "python3 '%s' --stator '%s/stator' --texts 1000 2>&1",
                           script, BUILD_DIR),
              "r");
    EXPECT(f);
    char out[4096];
    size_t n = fread(out, 1, sizeof out - 1, f);
    out[n] = 0;
    int status = pclose(f);
    if (strstr(out, "skipped")) test_skip("%s", out);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        test_fail(__FILE__, __LINE__, "%s", out);
    arena_free(mem);
}
