/* exact.c - what a pass prints, to the letter: tests/passes/PASS/NAME.ir, each a command,
 * one comment on what is shown, a module, and what must come out of it:
 *     # RUN: -p simplify -o micro_batches=2 -s w=-,tp
 *     # A sum with zero is its other operand.
 *     module ...
 *     # EXPECT
 *     module ...
 * or instead of EXPECT one line `# ERROR line:col text` (0:0: no place in the file).
 * Each file is a test, PASS/NAME. STATOR_BLESS=1 writes what comes out into the files; read
 * the diff. */
#include "../test.h"
#include "ir/ir.h"
#include "passes/passes.h"
#include <dirent.h>

static const char expect_mark[] = "# EXPECT\n", error_mark[] = "# ERROR ";

enum { MAX_ANNOTATIONS = 8 };

typedef struct Case {
    Arena *mem;
    const char *path, *text;
    size_t input_bytes;   /* command, comment and module */
    const char *expected; /* from the mark on */
    const char *passes;
    PassOptions options;
    Annotation annotation[MAX_ANNOTATIONS];
} Case;

/* PATTERN=PLACEMENT */
static void add_annotation(Case *c, char *text) {
    char *eq = strrchr(text, '=');
    int n = c->options.nannotations++;
    if (!eq || n == MAX_ANNOTATIONS)
        test_fail(__FILE__, __LINE__, "%s: -s '%s'", c->path, text);
    *eq = 0;
    c->annotation[n] = (Annotation){text, eq + 1, "-s", false};
}

/* The words of the first line: -p passes, -o option, -s annotation. */
static void parse_command(Case *c) {
    if (strncmp(c->text, "# RUN:", 6)) {
        test_fail(__FILE__, __LINE__, "%s does not begin with '# RUN:'", c->path);
    }
    char *line = arena_strndup(c->mem, c->text + 6, strcspn(c->text + 6, "\n"));
    const char *flag = NULL;
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) {
        if (word[0] == '-')
            flag = word;
        else if (flag && !strcmp(flag, "-p"))
            c->passes = word;
        else if (flag && !strcmp(flag, "-o"))
            pass_option_set(&c->options, word);
        else if (flag && !strcmp(flag, "-s"))
            add_annotation(c, word);
        else
            test_fail(__FILE__, __LINE__, "%s: '%s' in the command", c->path, word);
    }
    const char *second = strchr(c->text, '\n');
    if (!second || strncmp(second + 1, "# ", 2)) {
        test_fail(__FILE__, __LINE__, "%s: the second line is no comment", c->path);
    }
}

static Case read_case(Arena *mem, const char *path) {
    Case c = {.mem = mem, .path = path, .passes = "", .options = pass_options_default()};
    size_t n;
    c.text = file_read(mem, path, 1 << 20, &n, EXIT_CONFIG);
    c.input_bytes = n;
    c.expected = "";
    for (const char *p = c.text; p && *p;
         p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL) {
        if (strncmp(p, expect_mark, strlen(expect_mark)) &&
            strncmp(p, error_mark, strlen(error_mark))) {
            continue;
        }
        c.input_bytes = (size_t)(p - c.text);
        c.expected = p;
        break;
    }
    parse_command(&c);
    return c;
}

/* "file:line:col: error: text" or "stator: error: text" -> "line:col text" */
static char *spell_error(Arena *mem, const char *file, const char *message) {
    const char *text = strstr(message, "error: ") + strlen("error: ");
    int line = 0, col = 0;
    if (!strncmp(message, file, strlen(file))) {
        sscanf(message + strlen(file), ":%d:%d", &line, &col);
    }
    return arena_printf(mem, "%d:%d %.*s", line, col, (int)strcspn(text, "\n"), text);
}

/* What the file says after its input when the passes do what they do now. */
static char *outcome(Case *c) {
    char *volatile said = NULL;
    c->options.annotation = c->annotation;
    Catch failed;
    if (CATCH(failed)) {
        Module *m = module_parse(c->mem, "test.ir", c->text, c->input_bytes);
        passes_run(m, c->passes, &c->options);
        said = arena_printf(c->mem, "%s%s", expect_mark, module_print(c->mem, m));
        catch_end(&failed);
    } else {
        said = arena_printf(c->mem, "%s%s\n", error_mark,
                            spell_error(c->mem, "test.ir", failed.message));
    }
    return said;
}

static void check_case(const char *path) {
    Arena *mem = arena_new();
    Case c = read_case(mem, path);
    char *got = outcome(&c);
    if (test_bless()) {
        Text t = text_new(mem);
        text_add_bytes(&t, c.text, c.input_bytes);
        text_add_bytes(&t, got, strlen(got));
        EXPECT_INT(file_write_atomic(path, t.s, t.n), 0);
    } else if (strcmp(got, c.expected)) {
        test_fail(__FILE__, __LINE__, "%s: got\n%s\nwanted\n%s", path, got, c.expected);
    }
    arena_free(mem);
}

/* Calls `take`, when there is one, with every file of tests/passes/NAME; how many. */
static int each_case(const char *name, void (*take)(const char *name, const char *path)) {
    static Arena *mem; /* stays: tests have names from it */
    if (!mem) mem = arena_new();
    char *dir = arena_printf(mem, "%s/passes/%s", tests_dir(), name);
    DIR *d = opendir(dir);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t length = strlen(e->d_name);
        if (length < 3 || strcmp(e->d_name + length - 3, ".ir")) continue;
        const char *path = path_join(mem, dir, e->d_name);
        if (take)
            take(arena_printf(mem, "%s/%.*s", name, (int)length - 3, e->d_name), path);
        n++;
    }
    if (d) closedir(d);
    return n;
}

static void add_case(const char *name, const char *path) {
    test_add(name, check_case, path);
}

TEST_MADE(cases) {
    for (int i = 0; i < npasses; i++) each_case(passtab[i].name, add_case);
    each_case("parse", add_case);
}

/* A pass that is added to passes.def without cases fails here. */
TEST(every_pass) {
    for (int i = 0; i < npasses; i++) {
        int n = each_case(passtab[i].name, NULL);
        if (n < 3) {
            test_fail(__FILE__, __LINE__,
                      "pass %s has %d exact cases, wants 3: tests/passes/%s/NAME.ir, see "
                      "docs/add-a-pass.md",
                      passtab[i].name, n, passtab[i].name);
        }
    }
}

/* Errors of the parser and of the verifier, without any pass. */
TEST(text_errors) {
    EXPECT(each_case("parse", NULL) >= 12);
}
