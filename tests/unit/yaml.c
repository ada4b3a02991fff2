/* yaml.c - the YAML layer: values, places, sharing, limits. */
#include "frontend/config/yaml.h"
#include "../test.h"

static YamlNode *parse(const char *text) {
    return yaml_parse(arena_new(), "t.yaml", text, strlen(text));
}

TEST(tree_and_positions) {
    YamlNode *root = parse("a: 1\nb:\n  c: [x, 'y']\n  d: ~\n");
    EXPECT(root->kind == NODE_MAP && root->n == 2);
    EXPECT_STR(root->keys[1]->text, "b");
    YamlNode *list = root->items[1]->items[0];
    EXPECT(list->kind == NODE_LIST && list->n == 2);
    EXPECT_STR(list->items[0]->text, "x");
    EXPECT(!list->items[0]->quoted && list->items[1]->quoted);
    EXPECT(list->items[1]->at.line == 3 && list->items[1]->at.col == 10);
    EXPECT_STR(list->items[1]->at.file, "t.yaml");
    EXPECT(yaml_is_null(root->items[1]->items[1]));
    EXPECT(!yaml_is_null(root->items[0]));
}

TEST(empty_is_a_map) {
    EXPECT_INT(parse("")->kind, NODE_MAP);
    EXPECT_INT(parse("# only words\n")->n, 0);
    EXPECT_INT(parse("---\n...\n")->n, 0);
    EXPECT_INT(parse("\xef\xbb\xbf"
                     "a: 1\nb: 2\n")
                   ->n,
               2);
}

TEST(aliases_repeat) {
    YamlNode *root = parse("a: &x {b: 1}\nc: *x\n");
    const YamlNode *a = root->items[0], *c = root->items[1];
    EXPECT_INT(root->height, 2);
    EXPECT(c->n == 1 && !strcmp(c->items[0]->text, "1"));
    EXPECT(c->keys[0]->at.line == 1 && c->keys[0]->at.col == a->keys[0]->at.col);
    EXPECT(c->items[0]->at.alias == 2 && !a->items[0]->at.alias);
}

TEST(errors_name_the_position) {
    EXPECT_FAIL(parse("a: 1\nb: 2\na: 3\n"), EXIT_CONFIG,
                "t.yaml:3:1: error: key 'a' is already in line 1");
    EXPECT_FAIL(parse("a: [1, 2\nb: 3\n"), EXIT_CONFIG, "t.yaml:2:");
    EXPECT_FAIL(parse("a: *x\n"), EXIT_CONFIG, "t.yaml:1:4: error: unknown alias");
    EXPECT_FAIL(parse("a: &x [*x]\n"), EXIT_CONFIG, "inside of what it repeats");
    EXPECT_FAIL(parse("a: !!python/tuple [1]\n"), EXIT_CONFIG, "tag is not supported");
    EXPECT_FAIL(parse("a: !x 1\n"), EXIT_CONFIG, "tag is not supported");
    EXPECT_FAIL(parse("ä:\n\tb: 1\n"), EXIT_CONFIG, "spaces, not with tabs");
    EXPECT_FAIL(parse("ä: @\n"), EXIT_CONFIG, "cannot start any token");
    EXPECT_FAIL(parse("a: 1\n---\nb: 1\n"), EXIT_CONFIG, "second document");
    EXPECT_FAIL(parse("[1]: 2\n"), EXIT_CONFIG, "a key must be a word");
    EXPECT_FAIL(parse("a: &x {b: 1}\nc:\n  <<: *x\n"), EXIT_CONFIG, "merge keys");
    EXPECT_FAIL(parse("a: \"x\\0y\"\n"), EXIT_CONFIG, "zero byte");
    EXPECT_FAIL(parse("a: 1\nb: \xff\n"), EXIT_CONFIG, "t.yaml:2:4: error:");
}

TEST(core_tags) {
    YamlNode *root = parse("a: !!str 1\nb: !!int 2\nc: !!map {}\nd: !!seq []\n");
    EXPECT(root->n == 4 && root->items[0]->quoted && !root->items[1]->quoted);
}

/* Nine levels of nine aliases each: some 300 bytes that stand for 10^8 nodes and more. */
TEST(alias_bomb_refused) {
    static const char bomb[] = "a: &a [x,x,x,x,x,x,x,x,x]\n"
                               "b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
                               "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
                               "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
                               "e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\n"
                               "f: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n"
                               "g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n"
                               "h: &h [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n"
                               "i:    [*h,*h,*h,*h,*h,*h,*h,*h,*h]";
    EXPECT(sizeof bomb - 1 < 320);
    EXPECT_FAIL(parse(bomb), EXIT_CONFIG, "more than 100000 values");
}

TEST(limits) {
    char deep[200];
    memset(deep, '[', 64);
    memset(deep + 64, ']', 64);
    deep[128] = 0;
    EXPECT_INT(parse(deep)->height, 64);
    memset(deep, '[', 65);
    deep[65] = 0;
    EXPECT_FAIL(parse(deep), EXIT_CONFIG, "more than 64 levels");
    /* 40 levels anchored, then put 40 levels deep */
    Text t = text_new(arena_new());
    text_add(&t, "a: &x ");
    for (int i = 0; i < 40; i++) text_add(&t, "[");
    for (int i = 0; i < 40; i++) text_add(&t, "]");
    text_add(&t, "\nb: ");
    for (int i = 0; i < 40; i++) text_add(&t, "[");
    text_add(&t, "*x");
    for (int i = 0; i < 40; i++) text_add(&t, "]");
    EXPECT_FAIL(parse(t.s), EXIT_CONFIG, "more than 64 levels");
    Text many = text_new(t.mem);
    text_add(&many, "[");
    for (int i = 0; i < 100000; i++) text_add(&many, "1,");
    text_add(&many, "]");
    EXPECT_FAIL(parse(many.s), EXIT_CONFIG, "more than 100000 values");
    char *large = arena_alloc(t.mem, YAML_MAX_BYTES + 1);
    memset(large, '#', YAML_MAX_BYTES + 1);
    EXPECT_FAIL(yaml_parse(t.mem, "t.yaml", large, YAML_MAX_BYTES + 1), EXIT_CONFIG,
                "t.yaml has more than 1048576 bytes");
}

TEST(quote_reads_back) {
    static const char *const texts[] = {"",
                                        "plain",
                                        "a \"b\" \\ c",
                                        "tab\tline\nret\r",
                                        "\x01\x7f",
                                        "\xc3\xa9\xe4\xb8\xad",
                                        "\xf0\x9f\x98\x80",
                                        "\xc2\x85\xe2\x80\xa8\xef\xbb\xbf\xef\xbf\xbe",
                                        "#: - ~"};
    Arena *a = arena_new();
    for (int i = 0; i < ARRAY_LEN(texts); i++) {
        Text t = text_new(a);
        EXPECT(yaml_utf8_valid(texts[i]));
        text_add(&t, "k: ");
        yaml_quote(&t, texts[i]);
        EXPECT_STR(parse(t.s)->items[0]->text, texts[i]);
    }
    EXPECT(!yaml_utf8_valid("\xff") && !yaml_utf8_valid("\xc0\x80") &&
           !yaml_utf8_valid("\xed\xa0\x80"));
    EXPECT(!yaml_utf8_valid("a\xe4\xb8") && !yaml_utf8_valid("\xf5\x80\x80\x80"));
}
