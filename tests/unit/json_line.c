/* json_line.c - lines of loose JSON: what is taken out, what is refused and where. */
#include "runtime/text/json_line.h"
#include "../test.h"

static JsonLine line;

static bool read_keys(const char *text, const char *key, const char *other) {
    const char *keys[] = {key, other};
    return json_line_read(&line, text, strlen(text), keys, other ? 2 : key ? 1 : 0);
}

/* The only piece of key k must be `want`. */
static void expect_text(int k, const char *want, size_t want_n) {
    size_t n;
    EXPECT_INT(line.key[k].n, 1);
    const char *s = json_line_piece(&line, k, 0, &n);
    EXPECT(n == want_n && !memcmp(s, want, n));
}

static void refused(const char *text, const char *why, size_t at) {
    if (read_keys(text, "t", NULL)) test_fail(__FILE__, __LINE__, "accepted: %s", text);
    EXPECT_STR(line.wrong, why);
    if (line.wrong_at != at)
        test_fail(__FILE__, __LINE__, "%s: at %zu, wanted %zu", text, line.wrong_at, at);
}

TEST(json_line_texts) {
    EXPECT(read_keys("{\"t\":\"plain\"}", "t", NULL));
    expect_text(0, "plain", 5);
    EXPECT(read_keys(" { \"a\" : [1,{\"t\":\"x\"},[]] , \"t\" : \"\" } \r", "t", NULL));
    expect_text(0, "", 0);
    EXPECT(read_keys("{\"u\":\"two\",\"x\":null,\"t\":\"one\"}", "t", "u"));
    expect_text(0, "one", 3);
    expect_text(1, "two", 3);
    EXPECT(read_keys("{\"t\":\"first\",\"t\":\"last\"}", "t", NULL));
    expect_text(0, "last", 4);
    EXPECT(read_keys("{\"\\u0074\":\"escaped key\"}", "t", NULL));
    expect_text(0, "escaped key", 11);
    EXPECT(read_keys("{\"n\":-1.5e+3,\"m\":NaN,\"i\":-Infinity,\"t\":\"x\"}", "t", NULL));
    EXPECT(read_keys("{}", NULL, NULL));
}

TEST(json_line_escapes) {
    EXPECT(read_keys("{\"t\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20AC\"}", "t",
                     NULL));
    expect_text(0, "\"\\/\b\f\n\r\tA\xC3\xA9\xE2\x82\xAC", 14);
    EXPECT(read_keys("{\"t\":\"a\\u0000b\"}", "t", NULL));
    expect_text(0, "a\0b", 3);
    EXPECT(read_keys("{\"t\":\"\\ud83d\\ude00\"}", "t", NULL));
    expect_text(0, "\xF0\x9F\x98\x80", 4);
    EXPECT_INT(line.surrogates, 0);
    EXPECT(read_keys("{\"t\":\"\\ud83d-\\ude00\\ud83d\\ud83d\\ude00\"}", "t", NULL));
    expect_text(0, "\xEF\xBF\xBD-\xEF\xBF\xBD\xEF\xBF\xBD\xF0\x9F\x98\x80", 14);
    EXPECT_INT(line.surrogates, 3);
    EXPECT(read_keys("{\"other\":\"\\ud83d\",\"t\":\"bytes \xFF\"}", "t", NULL));
    expect_text(0, "bytes \xFF", 7);
    EXPECT_INT(line.surrogates, 3); /* what nobody wants counts nothing */
}

TEST(json_line_arrays) {
    size_t n;
    EXPECT(read_keys("{\"t\":[\"one\", \"\",\"three\"]}", "t", NULL));
    EXPECT_INT(line.key[0].n, 3);
    EXPECT(!memcmp(json_line_piece(&line, 0, 2, &n), "three", 5) && n == 5);
    json_line_piece(&line, 0, 1, &n);
    EXPECT_INT(n, 0);
    EXPECT(read_keys("{\"t\":[]}", "t", NULL) && line.key[0].n == 0);
    refused("{\"t\":[\"a\",1]}", "its array must hold strings alone", 10);
    EXPECT_INT(line.wrong_key, 0);
}

TEST(json_line_refused) {
    refused("", "an object {...} expected", 0);
    refused("[1]", "an object {...} expected", 0);
    refused("{\"a\":1}", "the line does not have it", 0);
    EXPECT_INT(line.wrong_key, 0);
    refused("{\"t\":5}", "its value is no string", 5);
    refused("{\"t\":\"x\"", "the line ends inside its object", 8);
    refused("{\"t\":\"x", "string without a closing quote", 5);
    refused("{\"t\":\"x\\", "no such escape in a string", 7);
    refused("{\"t\":\"\\x\"}", "no such escape in a string", 6);
    refused("{\"t\":\"\\u12G4\"}", "no such escape in a string", 6);
    refused("{\"t\":\"a\tb\"}", "control character in a string", 7);
    refused("{\"t\":\"x\"} x", "something follows the object", 10);
    refused("{\"t\":\"x\",}", "key expected", 9);
    refused("{\"a\":[1,],\"t\":\"x\"}", "nothing follows the comma", 8);
    refused("{\"a\":01,\"t\":\"x\"}", "number with a leading zero", 5);
    refused("{\"a\":1.,\"t\":\"x\"}", "digit expected after the point", 7);
    refused("{\"a\":tru,\"t\":\"x\"}", "value expected", 5);
    refused("{\"a\" 1}", "':' expected", 5);
    refused("{\"a\":", "the line ends where a value is expected", 5);
    refused("{\"a\":[1 2]}", "',' or ']' expected", 8);
    refused("{\"a\":{\"b\":1", "the line ends inside an object or array", 11);
}

TEST(json_line_depth) {
    static char text[4096];
    for (int depth = 511; depth <= 513; depth++) {
        Arena *mem = arena_new();
        Text t = text_new(mem);
        text_add(&t, "{\"t\":\"x\",\"a\":");
        for (int i = 0; i < depth; i++) text_add(&t, i % 2 ? "{\"k\":" : "[");
        text_add(&t, "0");
        for (int i = depth; i-- > 0;) text_add(&t, i % 2 ? "}" : "]");
        text_add(&t, "}");
        EXPECT(t.n < sizeof text);
        memcpy(text, t.s, t.n + 1);
        arena_free(mem);
        EXPECT(read_keys(text, "t", NULL) == (depth <= 512));
    }
    EXPECT_STR(line.wrong, "nested deeper than 512");
}
