/* ir_docs.c - docs/ir.md: its examples are modules that hold what they say, and it names
 * everything that the parser knows. */
#include "../test.h"
#include "ir/placement.h"
#include "passes/passes.h"
#include <ctype.h>

static char *page(Arena *mem) {
    size_t n;
    return file_read(mem, path_join(mem, tests_dir(), "../docs/ir.md"), 1 << 20, &n,
                     EXIT_DATA);
}

/* The text of the next example from *at on, behind as many empty lines as stand above it
 * on the page, so that failures name its lines; NULL: there is none. */
static char *next_example(Arena *mem, const char *text, const char **at) {
    static const char mark[] = "\n```ir\n", end[] = "\n```\n";
    const char *from = strstr(*at, mark), *to;
    if (!from) return NULL;
    from += strlen(mark);
    to = strstr(from, end);
    if (!to) test_fail(__FILE__, __LINE__, "docs/ir.md: an example without end");
    Text t = text_new(mem);
    for (const char *p = text; p < from; p++)
        if (*p == '\n') text_add(&t, "\n");
    text_add_bytes(&t, from, (size_t)(to - from) + 1);
    *at = to;
    return t.s;
}

/* Parsing verifies; what it leaves to passes: `over` fits its op, values in memory do not
 * overlap. The canonical text is read back as itself. */
static void check_example(Arena *mem, const char *text) {
    Module *m = module_parse(mem, "docs/ir.md", text, strlen(text));
    for (const Func *f = m->first; f; f = f->next)
        for (const Op *op = f->first; op; op = op->next) over_read(op);
    const char *wrong = m->level == LEVEL_PLANNED ? memplan_check(mem, m) : NULL;
    if (wrong) test_fail(__FILE__, __LINE__, "module @%s: %s", m->name, wrong);
    char *printed = module_print(mem, m);
    Module *again = module_parse(mem, "printed", printed, strlen(printed));
    EXPECT_STR(module_print(mem, again), printed);
}

TEST(examples_are_modules) {
    Arena *mem = arena_new();
    char *text = page(mem), *example;
    const char *at = text;
    int n = 0;
    for (; (example = next_example(mem, text, &at)); n++) check_example(mem, example);
    EXPECT(n >= 12);
    arena_free(mem);
}

/* `key` in code style, or as a word of the grammar. */
static void expect_named(const char *text, const char *key, size_t n) {
    char code[64], word[64];
    snprintf(code, sizeof code, "`%.*s", (int)n, key);
    snprintf(word, sizeof word, "\"%.*s\"", (int)n, key);
    const char *found = strstr(text, code);
    while (found && (isalnum((unsigned char)found[n + 1]) || found[n + 1] == '_'))
        found = strstr(found + 1, code);
    if (!found && !strstr(text, word))
        test_fail(__FILE__, __LINE__, "docs/ir.md does not name %.*s", (int)n, key);
}

/* The keys of a spec such as "eps:f p:f?". */
static void expect_keys(const char *text, const char *spec) {
    for (const char *p = spec; *p; p += strcspn(p, " "), p += *p == ' ')
        expect_named(text, p, strcspn(p, ":"));
}

TEST(page_names_what_the_parser_knows) {
    Arena *mem = arena_new();
    char *text = page(mem);
    expect_keys(text, arg_spec);
    expect_keys(text, common_attr_spec);
    for (int i = 0; i < LEVEL_COUNT; i++)
        expect_named(text, level_name[i], strlen(level_name[i]));
    for (int i = 0; i < ROLE_COUNT; i++)
        expect_named(text, role_name[i], strlen(role_name[i]));
    for (int i = 0; i < DT_COUNT; i++)
        expect_named(text, dtype_name[i], strlen(dtype_name[i]));
    arena_free(mem);
}
