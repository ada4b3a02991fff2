/* megatron_layout.c - layers of each chunk by the text of --pipeline-model-parallel-layout, as
 * Megatron-LM's guide to custom pipeline layouts has it: stages split by '|', those of all first
 * chunks, then of all second ones; in each E (embedding), t (a layer), L (loss). x*3 and (x|)*3
 * repeat; commas say nothing. */
#include "frontend/tools/megatron_parts.h"
#include <stdlib.h>

enum { MOST_LETTERS = 1 << 16, MOST_GROUPS = 16, NOTHING = -1 };

typedef struct Layout {
    const char *text;
    char *letter; /* without what repeats */
    int n;
    int from;              /* where begins what a '*' repeats; NOTHING */
    int open[MOST_GROUPS]; /* where groups begin that are not closed */
    int depth;
} Layout;

static _Noreturn void refuse(const Layout *l, const char *why) {
    fail(EXIT_CONFIG, "--pipeline-model-parallel-layout %.80s: %s", l->text, why);
}

static void add_letter(Layout *l, char c) {
    if (l->n == MOST_LETTERS) refuse(l, "too many layers");
    l->from = l->n;
    l->letter[l->n++] = c;
}

static void open_group(Layout *l) {
    if (l->depth == MOST_GROUPS) refuse(l, "too many '(' in one another");
    l->open[l->depth++] = l->n;
    l->from = NOTHING;
}

static void close_group(Layout *l) {
    if (!l->depth) refuse(l, "a ')' without a '('");
    l->from = l->open[--l->depth];
}

/* `p` is at the number; returns where it ends. */
static const char *repeat(Layout *l, const char *p) {
    size_t digits = strspn(p, "0123456789");
    if (l->from == NOTHING) refuse(l, "a '*' stands behind a letter or a ')'");
    if (!digits || digits > 5) refuse(l, "behind a '*' is how often, up to 99999");
    int64_t times = strtoll(p, NULL, 10), each = l->n - l->from;
    if (l->from + each * times > MOST_LETTERS) refuse(l, "too many layers");
    for (int64_t i = 1; i < times; i++)
        memcpy(l->letter + l->from + i * each, l->letter + l->from, (size_t)each);
    l->n = (int)(l->from + each * times);
    l->from = NOTHING;
    return p + digits;
}

static void expand(Layout *l) {
    for (const char *p = l->text; *p;) {
        char c = *p++;
        if (c == '*')
            p = repeat(l, p);
        else if (c == '(')
            open_group(l);
        else if (c == ')')
            close_group(l);
        else if (strchr("EtLm|", c))
            add_letter(l, c);
        else if (c != ',')
            refuse(l, "write E, t and L, '|' between stages, (t|)*3 for what repeats");
    }
    if (l->depth) refuse(l, "a '(' without a ')'");
}

/* The embedding is the first of all, the loss the last. */
static void check_ends(const Layout *l) {
    for (int i = 0; i < l->n; i++) {
        if (l->letter[i] == 'm') refuse(l, "m, layers for more tokens, are not there");
        if ((l->letter[i] == 'E') != (i == 0)) refuse(l, "E stands first, once");
        if ((l->letter[i] == 'L') != (i == l->n - 1)) refuse(l, "L stands last, once");
    }
    if (!l->n) refuse(l, "E stands first, once");
}

int64_t *megatron_layout(Arena *mem, const char *text, int *chunks) {
    Layout l = {
        .text = text, .letter = NEW_ARRAY(mem, char, MOST_LETTERS), .from = NOTHING};
    expand(&l);
    check_ends(&l);
    int64_t *layers = NEW_ARRAY(mem, int64_t, (size_t)l.n + 1);
    *chunks = 1;
    for (int i = 0; i < l.n; i++) {
        if (l.letter[i] == '|') ++*chunks;
        if (l.letter[i] == 't') layers[*chunks - 1]++;
    }
    return layers;
}
