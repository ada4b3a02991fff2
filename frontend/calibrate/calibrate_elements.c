/* calibrate_elements.c - numbers a second of elementwise ops and reductions, without what
 * moving them takes: what a kernel takes longer with more ops of the kind, on numbers that
 * caches hold. The operands of an op are read off its row. */
#include "frontend/calibrate/calibrate.h"
#include <ctype.h>

enum { ROWS = 32, INNER = 1024, TIMES = 4 };

/* The type of operand (or result) i by the row's rule, for rows x inner; NULL: none that is
 * known. */
static const char *operand_text(const OpInfo *row, int i, char letter) {
    static const char *const of_float[] = {"f32[32,1024]", "f32[32]", "f32[4]", "f32[]"};
    static const char *const of_int[] = {"i32[32,1024]", "i32[32]", "i32[4]", "i32[]"};
    const char *const *type = letter == 'i' ? of_int : of_float;
    const char *term = row->rule ? row->rule : "...";
    bool last_apart = row->rule && strstr(row->rule, "...v");
    for (; row->rule && i > 0; i--) {
        term = strpbrk(term, ",>");
        if (!term++) return NULL;
    }
    int n = (int)strcspn(term, ",-;");
    if (n == 4 && !strncmp(term, "...v", 4)) return type[0];
    if (n == 3 && !strncmp(term, "...", 3)) return type[last_apart];
    if (n == 2 && !strncmp(term, "r!", 2)) return type[2];
    return n == 1 && *term == '_' ? type[3] : NULL;
}

/* The attributes that a row asks for. */
static bool add_attributes(Text *t, const char *spec) {
    bool first = true;
    for (const char *p = spec; *p;) {
        size_t name = strcspn(p, ":"), all = strcspn(p, " ");
        char letter = p[name + 1];
        bool optional = p[all - 1] == '?';
        if (!optional && letter != 'f' && letter != 'i') return false;
        if (!optional) {
            text_add(t, first ? " {" : "; ");
            text_add_bytes(t, p, name);
            text_add(t, letter == 'f' ? "=0.5" : "=1");
            first = false;
        }
        p += all + (p[all] == ' ');
    }
    if (!first) text_add(t, "}");
    return true;
}

/* y of number k, by an op of the kind; or, of a cast, by one to bf16 and one back. */
static void add_op(Text *t, int op, int k, const char *type, const Text *attributes) {
    const OpInfo *row = &optab[op];
    if (row->flags & F_CAST) {
        text_add(t, "  %%n%d = %s %%x%d : bf16[%d,%d]\n", k, row->name, k, ROWS, INNER);
        text_add(t, "  %%y%d = %s %%n%d : %s\n", k, row->name, k, type);
        return;
    }
    text_add(t, "  %%y%d = %s %%x%d", k, row->name, k);
    for (int i = 1; i < row->nin_min; i++) text_add(t, ", %%i%d", i);
    text_add_bytes(t, attributes->s, attributes->n);
    text_add(t, " : %s\n", type);
}

/* A kernel of the sum of x0, x1, ..., each by itself or after an op of the kind: so the ops of
 * one number wait for each other as little as those of several; NULL: an op that this does
 * not know. */
static const char *sum_text(Arena *mem, int op, bool with) {
    const OpInfo *row = &optab[op];
    const char *first = operand_text(row, 0, row->types[0]);
    Text t = text_new(mem), attributes = text_new(mem);
    bool floats = row->types[0] == 'f' || row->flags & F_CAST;
    if (!first || !floats || strcmp(first, "f32[32,1024]")) return NULL;
    if (!add_attributes(&attributes, row->attrs)) return NULL;
    for (int k = 0; k < TIMES; k++) text_add(&t, "%s%%x%d: %s", k ? ", " : "(", k, first);
    for (int i = 1; i < row->nin_min; i++) {
        const char *type = operand_text(row, i, row->types[i]);
        if (!type) return NULL;
        text_add(&t, ", %%i%d: %s", i, type);
    }
    text_add(&t, ") -> (%s) {\n", first);
    for (int k = 0; k < TIMES; k++) {
        if (with) add_op(&t, op, k, first, &attributes);
        const char *x = with ? "y" : "x";
        if (k == 1) text_add(&t, "  %%s1 = add %%%s0, %%%s1 : %s\n", x, x, first);
        if (k > 1)
            text_add(&t, "  %%s%d = add %%s%d, %%%s%d : %s\n", k, k - 1, x, k, first);
    }
    text_add(&t, "  return %%s%d\n}", TIMES - 1);
    return t.s;
}

/* A kernel of the sum of x and y, that is reduced besides, to a number a row. */
static const char *reduce_text(Arena *mem, int op, int n) {
    const char *more = n ? ", f32[32]" : "", *ret = n ? ", %r" : "";
    Text t = text_new(mem);
    text_add(&t,
             "(%%x: f32[32,1024], %%y: f32[32,1024]) -> (f32[32,1024]%s) {\n"
             "  %%z = add %%x, %%y : f32[32,1024]\n",
             more);
    if (n) text_add(&t, "  %%r = %s %%z {ij->i} : f32[32]\n", optab[op].name);
    text_add(&t, "  return %%z%s\n}", ret);
    return t.s;
}

static void measure(Calibration *c, MachineRank *r, int op) {
    const double most = 1e13; /* numbers a second: as good as nothing */
    TrialOptions o = calibrate_options(c);
    Arena *mem = arena_new();
    bool reduces = optab[op].flags & F_REDUCE, casts = optab[op].flags & F_CAST;
    int n = reduces ? 1 : casts ? 2 * TIMES : TIMES;
    const char *none = reduces ? reduce_text(mem, op, 0) : sum_text(mem, op, false);
    const char *some = reduces ? reduce_text(mem, op, n) : sum_text(mem, op, true);
    o.spread_bytes = 0;
    if (none && some) {
        double less = trial_of(&o, none, c->seconds / 4);
        double seconds = trial_of(&o, some, c->seconds / 4) - less;
        double rate = (double)n * ROWS * INNER / MAX(seconds, 1e-12);
        r->element[r->nelements++] = (ElementRate){op, MIN(rate, most)};
    }
    arena_free(mem);
}

void calibrate_elements(Calibration *c, MachineRank *r) {
    r->element = NEW_ARRAY(c->mem, ElementRate, OP_COUNT);
    for (int op = 0; op < OP_COUNT && !(c->quick && r->nelements >= 3); op++) {
        const OpInfo *row = &optab[op];
        bool map = row->flags & F_MAP && !row->expand && row->nin_min > 0;
        if (map || row->flags & F_REDUCE) measure(c, r, op);
    }
    calibrate_say("rates of %d elementwise ops and reductions", r->nelements);
}
