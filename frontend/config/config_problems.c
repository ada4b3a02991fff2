/* config_problems.c - all mistakes of a configuration at once, in the order of the files. */
#include "frontend/config/config_state.h"
#include <limits.h>

enum { MOST_SHOWN = 20 };

bool config_try(ConfigState *s, void (*f)(void *), void *context) {
    Catch c;
    if (CATCH(c)) {
        f(context);
        catch_end(&c);
        return true;
    }
    if (c.code != EXIT_CONFIG && c.code != EXIT_DATA)
        fail_again(c.code, arena_strdup(s->mem, c.message));
    Problem p = {c.code, c.at, arena_strdup(s->mem, c.message)};
    if (!s->follows) PUSH(s->mem, s->problem, s->n_problems, s->cap_problems, p);
    s->follows = false;
    return false;
}

const char config_flags_file[] = "command line", config_search_file[] = "the search";

bool config_of_flag(SourcePos at) {
    return at.file &&
           (!strcmp(at.file, config_flags_file) || !strcmp(at.file, config_search_file));
}

/* Flags come last; a file where its first problem was found. */
static int file_rank(const ConfigState *s, const Problem *p) {
    if (config_of_flag(p->at)) return INT_MAX;
    for (int i = 0; i < s->n_problems; i++) {
        const char *file = s->problem[i].at.file;
        if (file == p->at.file || (file && p->at.file && !strcmp(file, p->at.file)))
            return i;
    }
    return 0;
}

static bool stands_before(const ConfigState *s, const Problem *a, const Problem *b) {
    int fa = file_rank(s, a), fb = file_rank(s, b);
    if (fa != fb) return fa < fb;
    if (a->at.line != b->at.line) return a->at.line < b->at.line;
    return a->at.col < b->at.col;
}

/* Few, so by insertion; equal positions stay in the order they were found. */
static Problem *sorted(const ConfigState *s) {
    Problem *list = NEW_ARRAY(s->mem, Problem, (size_t)s->n_problems);
    for (int i = 0; i < s->n_problems; i++) {
        int at = i;
        for (; at > 0 && stands_before(s, &s->problem[i], &list[at - 1]); at--)
            list[at] = list[at - 1];
        list[at] = s->problem[i];
    }
    return list;
}

void config_fail_all(ConfigState *s) {
    if (!s->n_problems) return;
    const Problem *p = sorted(s);
    Text t = text_new(s->mem);
    int shown = 0, code = EXIT_DATA;
    for (int i = 0; i < s->n_problems; i++)
        if (p[i].code == EXIT_CONFIG) code = EXIT_CONFIG;
    for (int i = 0; i < s->n_problems && shown < MOST_SHOWN; i++, shown++)
        text_add(&t, "%s%s", i ? "\n" : "", p[i].message);
    if (s->n_problems > shown)
        text_add(&t, "\nand %d more errors", s->n_problems - shown);
    s->n_problems = 0; /* who catches them goes on without */
    fail_again(code, t.s);
}
