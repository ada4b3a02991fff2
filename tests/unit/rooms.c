/* The rooms of the house: a file includes what stands in its own room or in one before
 * it, and no two files need each other. docs/design.md says what each room is for. */
#include "../mem.h"
#include "../test.h"
#include "passes/passes.h"
#include <fts.h>
#include <stdlib.h>

/* In the order in which they may know each other. */
static const char *const rooms[] = {
    "base",
    "ir",
    "ir/ops",
    "passes",
    "passes/cost",
    "passes/pipe",
    "passes/shard",
    "passes/model",
    "passes/estimate",
    "passes/layer",
    "passes/comm",
    "passes/lower",
    "runtime/core",
    "runtime/comm",
    "runtime/store",
    "runtime/text",
    "runtime/data",
    "runtime/run",
    "codegen",
    "frontend/config",
    "frontend/model",
    "frontend/plan",
    "frontend/search",
    "frontend/launch",
    "frontend/train",
    "frontend/simulate",
    "frontend/calibrate",
    "frontend/tools",
    "frontend",
};

/* Tables that name everything of one kind: of ops, of passes. */
static const char *const tables[] = {"ir/optab.c", "passes/run.c"};

static const char *const tops[] = {"base",    "ir",      "passes",
                                   "runtime", "codegen", "frontend"};

/* Number of the room that a path from the root stands in; -1: in none. */
static int room_of(const char *path) {
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    for (int r = 0; r < ARRAY_LEN(rooms); r++)
        if (strlen(rooms[r]) == n && !strncmp(rooms[r], path, n)) return r;
    return -1;
}

/* Calls `f` with the path from `root` of each file below root/dir. */
static void each_file(const char *root, const char *dir,
                      void (*f)(const char *root, const char *path)) {
    char *roots[] = {path_join(mem(), root, dir), NULL};
    FTS *fts = fts_open(roots, FTS_PHYSICAL, NULL);
    EXPECT(fts != NULL);
    for (FTSENT *e; (e = fts_read(fts));)
        if (e->fts_info == FTS_F) f(root, e->fts_path + strlen(root) + 1);
    fts_close(fts);
}

/* ---- includes ---- */

static int nincludes;

static void check_includes(const char *root, const char *path) {
    if (!ends_with(path, ".c") && !ends_with(path, ".h") && !ends_with(path, ".def"))
        return;
    int room = room_of(path);
    if (room < 0) test_fail(__FILE__, __LINE__, "%s stands in no room", path);
    char *text = file_read(mem(), path_join(mem(), root, path), 1 << 22, NULL, EXIT_DATA);
    for (char *line = text; (line = strstr(line, "#include \"")); line++) {
        char *name = line + strlen("#include \"");
        const char *other = arena_strndup(mem(), name, strcspn(name, "\""));
        int there = room_of(other);
        nincludes++;
        if (there < 0 || there > room)
            test_fail(__FILE__, __LINE__, "%s includes %s, which %s", path, other,
                      there < 0 ? "is no path of a room" : "stands in a later room");
    }
}

TEST(includes_point_one_way) {
    const char *root = path_join(mem(), tests_dir(), "..");
    for (int i = 0; i < ARRAY_LEN(tops); i++) each_file(root, tops[i], check_includes);
    printf("  %d includes\n", nincludes);
    EXPECT(nincludes > 500);
}

/* ---- symbols ---- */

enum { MAX_FILES = 1024 };

typedef struct Symbol {
    const char *name;
    int file;
} Symbol;

static const char *file_name[MAX_FILES];
static int nfiles;
static Symbol *defined, *used;
static int ndefined, defined_cap, nused, used_cap;

/* "BUILD/CMakeFiles/stator_ir.dir/ir/op.c.o" -> "ir/op.c"; NULL: no source of ours. */
static const char *source_of(const char *object) {
    const char *dir = strstr(object, ".dir/");
    if (!dir || !ends_with(object, ".c.o")) return NULL;
    const char *source = arena_strndup(mem(), dir + 5, strlen(dir + 5) - 2);
    bool there = file_exists(arena_printf(mem(), "%s/../%s", tests_dir(), source));
    return room_of(source) >= 0 && there ? source : NULL;
}

static char last_object[8192];

/* A line of `nm -A -P`: "object: name kind ...", objects one after the other. */
static void take_symbol(char *line) {
    char *name = strstr(line, ": "), *kind = name ? strchr(name + 2, ' ') : NULL;
    if (!kind) return;
    *name = *kind = 0;
    if (strcmp(last_object, line)) {
        snprintf(last_object, sizeof last_object, "%s", line);
        EXPECT(nfiles < MAX_FILES);
        file_name[nfiles++] = source_of(line);
    }
    if (!file_name[nfiles - 1]) return;
    Symbol s = {arena_strdup(mem(), name + 2), nfiles - 1};
    if (kind[1] == 'U')
        PUSH(mem(), used, nused, used_cap, s);
    else if (strchr("TDBRVWC", kind[1]))
        PUSH(mem(), defined, ndefined, defined_cap, s);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const Symbol *)a)->name, ((const Symbol *)b)->name);
}

static void read_objects(void) {
    char line[8192];
    FILE *nm = popen("find " BUILD_DIR "/CMakeFiles -path '*/stator_*.dir/*.c.o' | "
                     "xargs nm -A -P",
                     "r");
    while (nm && fgets(line, sizeof line, nm)) take_symbol(line);
    EXPECT(nm && pclose(nm) == 0);
    qsort(defined, (size_t)ndefined, sizeof *defined, by_name);
}

static bool is_table(int file) {
    for (int i = 0; i < ARRAY_LEN(tables); i++)
        if (!strcmp(file_name[file], tables[i])) return true;
    return false;
}

static bool needs[MAX_FILES][MAX_FILES];

static void link_files(void) {
    for (int i = 0; i < nused; i++) {
        const Symbol *s =
            bsearch(&used[i], defined, (size_t)ndefined, sizeof *s, by_name);
        if (!s || s->file == used[i].file || is_table(used[i].file)) continue;
        int from = used[i].file, to = s->file;
        needs[from][to] = true;
        if (room_of(file_name[to]) > room_of(file_name[from]))
            test_fail(__FILE__, __LINE__,
                      "%s calls %s of %s, which stands in a later room", file_name[from],
                      s->name, file_name[to]);
    }
}

/* Takes away files that need none of those left or that none of them needs: what stays
 * is in circles, or between two. */
static int circles(bool *left) {
    int n = nfiles;
    for (bool more = true; more;) {
        more = false;
        for (int f = 0; f < nfiles; f++) {
            bool needs_some = false, is_needed = false;
            for (int k = 0; k < nfiles; k++) {
                needs_some |= left[k] && needs[f][k];
                is_needed |= left[k] && needs[k][f];
            }
            if (!left[f] || (needs_some && is_needed)) continue;
            left[f] = false;
            more = true;
            n--;
        }
    }
    return n;
}

TEST(no_two_files_need_each_other) {
    bool left[MAX_FILES];
    read_objects();
    printf("  %d files, %d symbols\n", nfiles, ndefined);
    EXPECT(nfiles > 150 && ndefined > 500);
    link_files();
    for (int f = 0; f < nfiles; f++) left[f] = true;
    if (!circles(left)) return;
    for (int f = 0; f < nfiles; f++) {
        if (!left[f]) continue;
        fprintf(stderr, "%s needs", file_name[f]);
        for (int k = 0; k < nfiles; k++)
            if (left[k] && needs[f][k]) fprintf(stderr, " %s", file_name[k]);
        fprintf(stderr, "\n");
    }
    test_fail(__FILE__, __LINE__, "files need each other in a circle");
}

/* ---- labels of headers ---- */

#define WORD "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789"
static int nlabelled;

/* "graph.c, copy.c: ..." -> "/graph.c/copy.c/"; "" where no name of a file is first. */
static const char *files_at(const char *at) {
    Text t = text_new(mem());
    text_add(&t, "/");
    for (size_t n; n = strspn(at, WORD "/") + 2, !strncmp(at + n - 2, ".c", 2);) {
        if (strspn(at + n, WORD)) break; /* .csv */
        text_add(&t, "%.*s/", (int)n, at);
        at += n + strspn(at + n, ", ");
    }
    return t.n > 1 ? t.s : "";
}

/* Is it no symbol of ours, or is one of the files where it is defined in the label? */
static void check_symbol(const char *path, const char *label, const char *name) {
    const char *is = NULL;
    for (int i = 0; i < ndefined; i++) {
        if (strcmp(defined[i].name, name)) continue;
        is = file_name[defined[i].file];
        nlabelled++;
        if (strstr(label, arena_printf(mem(), "%s/", strrchr(is, '/')))) return;
    }
    if (is)
        test_fail(__FILE__, __LINE__, "%s: %s is in %s, not in %s", path, name, is,
                  label);
}

/* A comment that names files first is for what is below it up to an empty line; that of a
 * section, which may name them in brackets, up to the next. */
static void check_labels(const char *root, const char *path) {
    if (!ends_with(path, ".h")) return;
    char *text = file_read(mem(), path_join(mem(), root, path), 1 << 22, NULL, EXIT_DATA);
    const char *label = "";
    bool section = false;
    int depth = 0;
    for (char *p = strstr(text, "*/"); *p;) {
        size_t n = strspn(p, WORD);
        if (!strncmp(p, "/*", 2)) {
            bool begins = p[-1] == '\n' && !strncmp(p, "/* ---- ", 8);
            const char *files = p[-1] == '\n' ? files_at(p + (begins ? 8 : 3)) : "";
            if (begins && !*files) files = files_at(strpbrk(p, "(\n") + 1);
            if (begins || *files) label = files, section = begins;
            n = (size_t)(strstr(p, "*/") + 2 - p);
        } else if (*p == '#') {
            while (n += strcspn(p + n, "\n"), p[n - 1] == '\\') n++;
        } else if (n) {
            if (!depth && *label) check_symbol(path, label, arena_strndup(mem(), p, n));
        } else {
            depth += (*p == '{' || *p == '(') - (*p == '}' || *p == ')');
            if (!strncmp(p, "\n\n", 2) && !section) label = "";
            n = 1;
        }
        p += n;
    }
}

TEST(headers_say_where_functions_are) {
    const char *root = path_join(mem(), tests_dir(), "..");
    read_objects();
    for (int i = 0; i < ARRAY_LEN(tops); i++) each_file(root, tops[i], check_labels);
    EXPECT(nlabelled > 300);
}

/* ---- knowledge is data ---- */

/* Comparisons of texts in passes and in the lowering of ops: of all that there are, those
 * of text against text as such (an attribute's value, an option's word), none of which asks
 * what an op, a value or a function is called to know what it is. */
static const char *const of_text[] = {
    "!strcmp(a->key, layout[k])",                /* train: attributes that are copied */
    "!strcmp(name, optimizers[i].name)",         /* train: an option */
    "!strcmp(name, \"none\")",                   /* the same */
    "!strcmp(a->axis[k].name, b->axis[k].name)", /* collect: equal meshes */
    "strcmp(a->key, b->key) || a->kind != b->kind", /* simplify, bucket: equal attributes */
    "a->s && strcmp(a->s, b->s)",                   /* the same */
    "strcmp(a->rule->text, b->rule->text)",         /* the same */
    "!strcmp(word, \"-\")",                         /* seed: the user's placement */
    "arg_str(entry, i, \"like\", \"\"), p->name",   /* memcheck: refers to an argument */
    "strcmp(generators[k].is.name, name)",          /* schedule: what a user writes */
    "!strcmp(k->name, name)", /* layer: values that one entry of the user places */
    "a && b ? !strcmp(a, b) : a == b",    /* made_again: equal policies */
    "!strncmp(word, text, strlen(text))", /* made_again: an attribute's value */
    "!strcmp(of->s, \"max\")",            /* lower_comm: an attribute's value */
};

static int ncompared;

static void check_no_spelling(const char *root, const char *path) {
    bool lowers = !strncmp(path, "codegen/", 8) && strncmp(path, "codegen/lower", 13);
    if (!ends_with(path, ".c") || lowers || !strcmp(path, "passes/opt_main.c") ||
        !strcmp(path, "passes/options.c") || !strcmp(path, "passes/run.c"))
        return;
    char *save = NULL;
    char *text = file_read(mem(), path_join(mem(), root, path), 1 << 22, NULL, EXIT_DATA);
    for (char *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        if (!strstr(line, "strcmp(") && !strstr(line, "strncmp(") &&
            !strstr(line, "strstr("))
            continue;
        bool known = false;
        for (int i = 0; i < ARRAY_LEN(of_text); i++)
            known |= strstr(line, of_text[i]) != NULL;
        if (!known)
            test_fail(
                __FILE__, __LINE__,
                "%s compares texts:\n%s\nWhat an op, a value, a function or an argument "
                "is stands in flags, ArgRole, grad_of and made_of",
                path, line);
        ncompared++;
    }
}

TEST(passes_ask_for_data_not_for_names) {
    const char *root = path_join(mem(), tests_dir(), "..");
    each_file(root, "passes", check_no_spelling);
    each_file(root, "codegen", check_no_spelling);
    printf("  %d comparisons of texts as such\n", ncompared);
    EXPECT(ncompared >= 5);
}

/* ---- lists of passes ---- */

static int nlists;

/* What is behind that name in a list; NULL: it is not in it. */
static const char *behind_name(const char *list, const char *name, size_t n) {
    for (; *list; list += strcspn(list, ","), list += *list == ',')
        if (strcspn(list, ",") == n && !memcmp(list, name, n)) return list + n;
    return NULL;
}

static bool is_list_of_passes(const char *text) {
    char *save = NULL, *names = arena_strdup(mem(), text);
    int n = 0;
    for (char *name = strtok_r(names, ",", &save); name;
         name = strtok_r(NULL, ",", &save), n++)
        if (!pass_find(name)) return false;
    return n > 1;
}

/* Those that train_passes has too are in its order; simplify may be anywhere. */
static void check_order(const char *path, const char *list) {
    const char *rest = train_passes;
    for (const char *p = list; *p; p += *p == ',') {
        size_t n = strcspn(p, ",");
        bool ordered = strncmp(p, "simplify", n) && behind_name(train_passes, p, n);
        if (ordered) rest = behind_name(rest, p, n);
        if (!rest)
            test_fail(__FILE__, __LINE__,
                      "%s: %s\n%.*s is not in the order of train_passes", path, list,
                      (int)n, p);
        p += n;
    }
    nlists++;
}

/* The text of the literal at *p and of those right behind it. */
static const char *literal(const char **p) {
    Text t = text_new(mem());
    while (**p == '"') {
        size_t n = strcspn(++*p, "\"\n");
        text_add(&t, "%.*s", (int)n, *p);
        *p += n;
        *p += **p == '"';
        *p += strspn(*p, " \n");
    }
    return t.s;
}

static void check_lists(const char *root, const char *path) {
    if (!ends_with(path, ".c")) return;
    const char *p =
        file_read(mem(), path_join(mem(), root, path), 1 << 22, NULL, EXIT_DATA);
    while ((p = strchr(p, '"'))) {
        const char *text = literal(&p);
        if (is_list_of_passes(text)) check_order(path, text);
    }
}

TEST(lists_of_passes_have_one_order) {
    const char *root = path_join(mem(), tests_dir(), "..");
    each_file(root, "passes", check_lists);
    each_file(root, "frontend", check_lists);
    printf("  %d lists\n", nlists);
    EXPECT(nlists >= 10);
}
