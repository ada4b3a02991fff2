/* JSON: what is read exactly, what is refused and where, what is written. */
#include "base/json.h"
#include "../test.h"

static const Json *parse(const char *text) {
    return json_parse(arena_new(), "t.json", text, strlen(text), 1 << 20, EXIT_DATA);
}

TEST(values) {
    const Json *v =
        parse(" {\"a\": [1, -2, true, false, null], \"b\": {\"c\": \"x\"}} \n");
    EXPECT(v->kind == JSON_OBJECT && v->n == 2);
    const Json *a = json_need(v, "a");
    EXPECT(a->kind == JSON_ARRAY && a->n == 5 && !strcmp(a->key, "a"));
    EXPECT_INT(json_i64(a->first, 0, 10), 1);
    EXPECT_INT(json_i64(a->first->next, -10, 10), -2);
    EXPECT(json_bool(a->first->next->next));
    EXPECT(!json_bool(a->first->next->next->next));
    EXPECT_INT(a->first->next->next->next->next->kind, JSON_NULL);
    EXPECT_STR(json_string(json_get(json_get(v, "b"), "c")), "x");
    EXPECT(json_get(v, "z") == NULL && json_get(a, "b") == NULL);
    EXPECT(json_get(NULL, "z") == NULL && json_get_i64(NULL, "z", 0, 9, 7) == 7);
    EXPECT_STR(json_raw(arena_new(), a), "[1, -2, true, false, null]");
}

TEST(exact_numbers) {
    const Json *v = parse("[9223372036854775807, -9223372036854775808, "
                          "18446744073709551615, 18446744073709551616, -0, 1.5, 1e4, 0]");
    const Json *e = v->first;
    EXPECT(e->kind == JSON_INT && e->i == INT64_MAX);
    e = e->next;
    EXPECT(e->kind == JSON_INT && e->i == INT64_MIN);
    e = e->next;
    EXPECT(e->kind == JSON_UINT && e->u == UINT64_MAX);
    EXPECT_FAIL(json_i64(e, 0, INT64_MAX), EXIT_DATA, "between");
    e = e->next;
    EXPECT(e->kind == JSON_DOUBLE && e->d == 18446744073709551616.0);
    e = e->next;
    EXPECT(e->kind == JSON_DOUBLE && e->d == 0 && signbit(e->d));
    e = e->next;
    EXPECT(json_f64(e) == 1.5);
    EXPECT_FAIL(json_i64(e, 0, 9), EXIT_DATA, "a number where an integer is expected");
    e = e->next;
    EXPECT_INT(json_i64(e, 0, 10000), 10000);
    e = e->next;
    EXPECT(e->kind == JSON_INT && e->i == 0 && json_f64(e) == 0);
}

TEST(strings) {
    const Json *v =
        parse("[\"\\u00e9\\ud83d\\ude00\\n\\/\\\"\", \"\xC3\xA9\", \"a\\u0000b\"]");
    EXPECT_STR(json_string(v->first), "\xC3\xA9\xF0\x9F\x98\x80\n/\"");
    EXPECT_STR(json_string(v->first->next), "\xC3\xA9");
    const Json *zero = v->first->next->next;
    EXPECT(zero->length == 3 && !memcmp(zero->s, "a\0b", 3));
    EXPECT_FAIL(json_string(zero), EXIT_DATA, "zero byte");
}

static void refuse(const char *text, const char *part) {
    EXPECT_FAIL(parse(text), EXIT_DATA, part);
}

TEST(refused) {
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "t.json:1:1: error: the text ends"},
        {"  ", "the text ends"},
        {"{\"a\":1,}", "t.json:1:8: error: key expected"},
        {"[1,]", "t.json:1:4: error: value expected"},
        {"[1 2]", "',' or ']' expected"},
        {"{\"a\":1 \"b\":2}", "',' or '}' expected"},
        {"{\"a\" 1}", "':' expected"},
        {"{a:1}", "key expected"},
        {"[1", "t.json:1:1: error: never closed"},
        {"{\"a\":1]", "',' or '}' expected"},
        {"1 2", "something follows"},
        {"]", "value expected"},
        {"01", "leading zero"},
        {"-", "digit expected"},
        {"+1", "value expected"},
        {"1.", "digit expected after the point"},
        {".5", "value expected"},
        {"1e", "digit expected in the exponent"},
        {"1e999", "too large"},
        {"NaN", "value expected"},
        {"nul", "value expected"},
        {"truex", "something follows"},
        {"\"abc", "closing quote"},
        {"\"abc\\\"", "closing quote"},
        {"\"\\x\"", "unknown escape"},
        {"\"\\u12g4\"", "four hexadecimal"},
        {"\"\\ud800\"", "high surrogate"},
        {"\"\\ud800\\u0041\"", "high surrogate"},
        {"\"\\udc00\"", "low surrogate"},
        {"\"a\nb\"", "control character"},
        {"\"\xC0\xAF\"", "not UTF-8"},
        {"\"\xED\xA0\x80\"", "not UTF-8"},
        {"\"\xF4\x90\x80\x80\"", "not UTF-8"},
        {"\"\xE2\x82\"", "not UTF-8"},
        {"\"\xFF\"", "not UTF-8"},
        {"{\"a\":1,\n \"b\":2, \"a\":3}", "'a' is there twice"},
        {"{\"a\":1,\"\\u0061\":3}", "'a' is there twice"},
        {"// x\n1", "value expected"},
    };
    for (int i = 0; i < ARRAY_LEN(cases); i++) refuse(cases[i].text, cases[i].part);
}

/* Exactly n bytes, so that reading behind them is seen. */
static void refuse_prefix(const char *text, size_t n) {
    char *part = malloc(n ? n : 1);
    memcpy(part, text, n);
    EXPECT_FAIL(json_parse(arena_new(), "t", part, n, 1000, EXIT_CONFIG), EXIT_CONFIG,
                "error");
    free(part);
}

TEST(every_prefix_is_refused) {
    const char *text = "{\"k\\u00e9\": [1.5e3, {\"x\": \"\xE2\x82\xAC\"}, true, null]}";
    for (size_t n = 0; n < strlen(text); n++) refuse_prefix(text, n);
    EXPECT_INT(parse(text)->n, 1);
}

static const char *nested(char *out, size_t depth) {
    memset(out, '[', depth);
    memset(out + depth, ']', depth);
    out[2 * depth] = 0;
    return out;
}

TEST(limits) {
    char deep[131];
    int depth = 1;
    for (const Json *v = parse(nested(deep, 64)); v->first; v = v->first) depth++;
    EXPECT(depth == 64);
    EXPECT_FAIL(parse(nested(deep, 65)), EXIT_DATA,
                "t.json:1:65: error: nested deeper than 64");
    EXPECT_FAIL(json_parse(arena_new(), "big", "[1]", 3, 2, EXIT_DATA), EXIT_DATA,
                "3 bytes; at most 2");
    size_t n = 2 * 4194304 + 1; /* 4194304 elements and the array around them */
    char *many = malloc(n);
    memset(many, '1', n);
    many[0] = '[';
    for (size_t i = 2; i < n; i += 2) many[i] = ',';
    many[n - 1] = ']';
    EXPECT_FAIL(json_parse(arena_new(), "many", many, n, n, EXIT_DATA), EXIT_DATA,
                "more than 4194304 values");
    free(many);
}

TEST(large_object) {
    Arena *mem = arena_new();
    Text t = text_new(mem);
    text_add(&t, "{");
    for (int i = 0; i < 50000; i++) text_add(&t, "%s\"key%d\":%d", i ? "," : "", i, i);
    size_t good = t.n;
    text_add(&t, "}");
    const Json *v = json_parse(mem, "v", t.s, t.n, t.n, EXIT_DATA);
    char key[16];
    for (int i = 0; i < 50000; i++) {
        snprintf(key, sizeof key, "key%d", i);
        EXPECT_INT(json_i64(json_need(v, key), i, i), i);
    }
    EXPECT(!json_get(v, "key50000"));
    t.n = good;
    text_add(&t, ",\"key777\":0}");
    EXPECT_FAIL(json_parse(mem, "v", t.s, t.n, t.n, EXIT_DATA), EXIT_DATA,
                "'key777' is there twice");
}

TEST(getters) {
    const Json *v =
        parse("{\"n\": 5,\n  \"s\": \"x\", \"f\": 2.5, \"b\": true, \"z\": null}");
    EXPECT(json_get_i64(v, "n", 0, 9, 7) == 5 && json_get_i64(v, "m", 0, 9, 7) == 7);
    EXPECT_INT(json_get_i64(v, "z", 0, 9, 7), 7);
    EXPECT(json_get_f64(v, "f", 0) == 2.5 && json_get_f64(v, "n", 0) == 5);
    EXPECT(json_get_bool(v, "b", false) && !json_get_bool(v, "q", false));
    EXPECT_STR(json_get_string(v, "s", "d"), "x");
    EXPECT_STR(json_get_string(v, "q", "d"), "d");
    EXPECT_FAIL(json_i64(json_get(v, "s"), 0, 1), EXIT_DATA,
                "t.json:2:8: error: 's' is a string; it must be an integer");
    EXPECT_FAIL(json_get_i64(v, "n", 6, 9, 7), EXIT_DATA, "'n' must be between 6 and 9");
    EXPECT_FAIL(json_need(v, "heads"), EXIT_DATA,
                "t.json:1:1: error: 'heads' is missing");
    EXPECT_FAIL(json_get_bool(v, "n", 0), EXIT_DATA, "'n' is an integer");
    EXPECT_FAIL(json_want(v, JSON_ARRAY), EXIT_DATA, "an object where an array");
}

TEST(writer) {
    static const char text[] = "\"\\u0001\\n\\t\\\"\\\\\\u007f\\u0000\xE2\x82\xAC\"";
    const Json *v = parse(text);
    Text t = text_new(arena_new());
    json_write_bytes(&t, v->s, v->length);
    EXPECT_STR(t.s, text);
    t = text_new(arena_new());
    json_write_string(&t, "a\xFFz\xE2\x82");
    EXPECT_STR(t.s, "\"a\xEF\xBF\xBDz\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

TEST(doubles_round_trip) {
    Arena *mem = arena_new();
    static const double special[] = {0.1,  1.0 / 3, 5e-324,       1.7976931348623157e308,
                                     -2.5, 1e22,    123456789.125};
    uint64_t bits = 88172645463325252u;
    for (int i = 0; i < 20000; i++) {
        double d;
        bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
        memcpy(&d, &bits, 8);
        if (i < ARRAY_LEN(special)) d = special[i];
        Text t = text_new(mem);
        json_write_double(&t, d);
        if (!isfinite(d)) {
            EXPECT_STR(t.s, "null");
            continue;
        }
        double back = json_f64(json_parse(mem, "d", t.s, t.n, 100, EXIT_DATA));
        EXPECT(memcmp(&back, &d, 8) == 0);
    }
    Text t = text_new(mem);
    json_write_double(&t, 0.1);
    text_add(&t, " ");
    json_write_double(&t, NAN);
    text_add(&t, " ");
    json_write_double(&t, -INFINITY);
    EXPECT_STR(t.s, "0.1 null null");
}

TEST(golden_config) {
    if (!shared_dir()) test_skip("no shared folder with the golden files");
    Arena *mem = arena_new();
    const char *path = path_join(mem, shared_dir(), "golden/gpt2_tiny/config.json");
    const Json *v = json_read(mem, path, 1 << 20, EXIT_CONFIG);
    EXPECT_STR(json_string(json_need(v, "model_type")), "gpt2");
    EXPECT_INT(json_i64(json_need(v, "n_embd"), 1, 1000), 32);
    EXPECT(json_f64(json_need(v, "layer_norm_epsilon")) == 1e-5);
}

TEST(a_byte_order_mark_is_passed_over) {
    Arena *mem = arena_new();
    static const char text[] = "\xEF\xBB\xBF{\"a\": 7}";
    const Json *v = json_parse(mem, "t.json", text, sizeof text - 1, 100, EXIT_DATA);
    EXPECT_INT(json_get_i64(v, "a", 0, 9, 0), 7);
    EXPECT_FAIL(json_parse(mem, "t.json", text, 3, 100, EXIT_DATA), EXIT_DATA, "t.json");
    EXPECT_FAIL(json_parse(mem, "t.json", text + 1, 9, 100, EXIT_DATA), EXIT_DATA,
                "t.json");
    arena_free(mem);
}
