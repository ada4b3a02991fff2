/* how_to.c - docs/add-an-op.md and docs/add-a-pass.md speak of what is there: their examples
 * stand in the code, their files exist, every flag of an op is explained, and the picture of
 * docs/design.md has the passes. */
#include "../test.h"
#include "passes/passes.h"
#include <ctype.h>

static const char *const pages[] = {"add-an-op.md", "add-a-pass.md"};

static char *read_file(Arena *mem, const char *path) {
    return file_read(mem, arena_printf(mem, "%s/../%s", tests_dir(), path), 1 << 20, NULL,
                     EXIT_DATA);
}

static char *read_page(Arena *mem, int i) {
    return read_file(mem, arena_printf(mem, "docs/%s", pages[i]));
}

/* Without white space, which is another on a page than in the code. */
static char *squeezed(Arena *mem, const char *text) {
    Text t = text_new(mem);
    text_add(&t, "%s", "");
    for (const char *p = text; *p; p++)
        if (!isspace((unsigned char)*p)) text_add_bytes(&t, p, 1);
    return t.s;
}

/* Lines of examples that are code: in which file they stand, by how they begin. */
static const struct {
    const char *begin, *file;
} quoted[] = {
    {"MAP(", "ir/ops.def"},
    {"REF1(", "ir/ops/map.c"},
    {"REF1_BY(", "ir/ops/map.c"},
    {"char *attrs", "ir/ops/map.c"},
    {"Value *", "ir/ops/map.c"},
    {"UNARY(", "codegen/lower_map.c"},
    {"{\"", "tests/unit/ops.h"},
    {"PASS(", "passes/passes.def"},
    {"static void drop_nothing", "passes/model/evaluate.c"},
    {"void pass_", "passes/model/evaluate.c"},
    {"if (optab", "passes/model/evaluate.c"},
    {"# Dropout", "tests/passes/evaluate/dropout.ir"},
};

TEST(examples_stand_in_the_code) {
    Arena *mem = arena_new();
    int found[ARRAY_LEN(quoted)] = {0};
    for (int i = 0; i < ARRAY_LEN(pages); i++) {
        char *save = NULL, *page = read_page(mem, i);
        for (char *line = strtok_r(page, "\n", &save); line;
             line = strtok_r(NULL, "\n", &save)) {
            if (strncmp(line, "    ", 4)) continue;
            const char *code = line + strspn(line, " ");
            for (int k = 0; k < ARRAY_LEN(quoted); k++) {
                if (strncmp(code, quoted[k].begin, strlen(quoted[k].begin))) continue;
                char *all = squeezed(mem, read_file(mem, quoted[k].file));
                if (!strstr(all, squeezed(mem, code)))
                    test_fail(__FILE__, __LINE__, "%s: this is not in %s:\n%s", pages[i],
                              quoted[k].file, line);
                found[k]++;
            }
        }
    }
    for (int k = 0; k < ARRAY_LEN(quoted); k++)
        if (!found[k])
            test_fail(__FILE__, __LINE__, "no example begins with %s", quoted[k].begin);
    arena_free(mem);
}

static bool is_there(Arena *mem, const char *path) {
    FILE *f = fopen(arena_printf(mem, "%s/../%s", tests_dir(), path), "r");
    if (f) fclose(f);
    return f != NULL;
}

/* `folder/name.c` between backquotes; with NAME or * in it one of the reader's own. */
TEST(files_exist) {
    Arena *mem = arena_new();
    int n = 0;
    for (int i = 0; i < ARRAY_LEN(pages); i++) {
        for (const char *p = read_page(mem, i); (p = strchr(p, '`')); p++) {
            size_t length = strcspn(p + 1, "`\n ");
            char *word = arena_strndup(mem, p + 1, length);
            bool path = p[1 + length] == '`' && strchr(word, '/') && islower(word[0]);
            if (!path || strpbrk(word, "*ANM(\"=")) continue;
            if (!is_there(mem, word))
                test_fail(__FILE__, __LINE__, "%s names %s, which is not there", pages[i],
                          word);
            n++;
        }
    }
    EXPECT(n > 20);
    arena_free(mem);
}

TEST(flags_are_explained) {
    Arena *mem = arena_new();
    char *page = read_page(mem, 0), *header = read_file(mem, "ir/ir.h");
    const char *end = strstr(header, "/* In the flags of a row");
    int n = 0;
    EXPECT(end != NULL);
    for (const char *p = strstr(header, "enum OpFlag {"); p && p < end;
         p = strchr(p + 1, '\n')) {
        const char *word = p + strspn(p, " \n");
        if (strncmp(word, "F_", 2)) continue;
        char *flag = arena_strndup(mem, word, strcspn(word, " ="));
        if (!strstr(page, arena_printf(mem, "| `%s` |", flag)))
            test_fail(__FILE__, __LINE__, "%s does not say what %s promises", pages[0],
                      flag);
        n++;
    }
    EXPECT(n >= 15);
    arena_free(mem);
}

TEST(the_picture_has_the_passes) {
    Arena *mem = arena_new();
    char *save = NULL, *page = read_file(mem, "docs/design.md");
    const char *begin = strstr(page, "passes     ");
    const char *end = begin ? strstr(begin, "ir  @step") : NULL;
    EXPECT(end != NULL);
    Text picture = text_new(mem);
    for (const char *p = begin; p < end; p++)
        text_add_bytes(&picture, islower((unsigned char)*p) ? p : ",", 1);
    char *list = arena_printf(mem, "%s,%s", train_passes, forward_passes);
    for (char *name = strtok_r(list, ",", &save); name; name = strtok_r(NULL, ",", &save))
        if (!strstr(picture.s, arena_printf(mem, ",%s,", name)))
            test_fail(__FILE__, __LINE__,
                      "the picture of docs/design.md lacks the pass %s", name);
    arena_free(mem);
}
