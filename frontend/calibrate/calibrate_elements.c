/* calibrate_elements.c - numbers a second of elementwise ops and reductions, without what
 * moving them takes: what a kernel takes longer with an op of the kind, on numbers that
 * caches hold. Kernels of programs have one or two costly ops, which wait for each other, so
 * these have one. The operands of an op are read off its row. */
#include "frontend/calibrate/calibrate.h"

enum { ROWS = 64, INNER = 1024 };

/* The type of operand (or result) i by the row's rule, for rows x inner; NULL: none that is
 * known. */
static const char *operand_text(const OpInfo *row, int i, char letter) {
    static const char *const of_float[] = {"f32[64,1024]", "f32[64]", "f32[4]", "f32[]"};
    static const char *const of_int[] = {"i32[64,1024]", "i32[64]", "i32[4]", "i32[]"};
    const char *const *type = letter == 'i' ? of_int : of_float;
    const char *term = row->rule ? row->rule : "...";
    bool last_apart = row->rule && strstr(row->rule, "...v");
    for (; row->rule && i > 0; i--) {
        term = strpbrk(term, ",>");
        if (!term++) return NULL;
    }
    int n = (int)strcspn(term, ",-;");
    if (n == 4 && begins_with(term, "...v")) return type[0];
    if (n == 3 && begins_with(term, "...")) return type[last_apart];
    if (n == 2 && begins_with(term, "r!")) return type[2];
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

/* A kernel of the sum of z and what an op of the kind makes of its operands; or of z and those
 * operands that are as large, which are read in both. NULL: an op that this does not know. */
static const char *sum_text(Arena *mem, int op, bool with) {
    const OpInfo *row = &optab[op];
    const char *first = operand_text(row, 0, row->types[0]);
    Text t = text_new(mem), sums = text_new(mem);
    if (!first || row->types[0] != 'f' || strcmp(first, "f32[64,1024]")) return NULL;
    text_add(&t, "(%%z: %s", first);
    if (with) text_add(&sums, "  %%y = %s ", row->name);
    const char *last = "z";
    for (int i = 0; i < row->nin_min; i++) {
        const char *type = operand_text(row, i, row->types[i]);
        if (!type) return NULL;
        text_add(&t, ", %%x%d: %s", i, type);
        if (with) {
            text_add(&sums, "%s%%x%d", i ? ", " : "", i);
        } else if (!strcmp(type, first)) {
            text_add(&sums, "  %%s%d = add %%%s, %%x%d : %s\n", i, last, i, first);
            last = arena_printf(mem, "s%d", i);
        }
    }
    if (with) {
        if (!add_attributes(&sums, row->attrs)) return NULL;
        text_add(&sums, " : %s\n  %%s = add %%z, %%y : %s\n", first, first);
        last = "s";
    }
    text_add(&t, ") -> (%s) {\n%s  return %%%s\n}", first, sums.s, last);
    return t.s;
}

/* The sum of two tensors of bf16, each widened, that is rounded: CASTS in all; or of as many
 * bytes of f32, without one. */
enum { CASTS = 3 };
static const char *cast_text(bool with) {
    return with ? "(%x: bf16[64,1024], %z: bf16[64,1024]) -> (bf16[64,1024]) {\n"
                  "  %a = cast %x : f32[64,1024]\n"
                  "  %b = cast %z : f32[64,1024]\n"
                  "  %s = add %a, %b : f32[64,1024]\n"
                  "  %r = cast %s : bf16[64,1024]\n"
                  "  return %r\n}"
                : "(%x: f32[64,512], %z: f32[64,512]) -> (f32[64,512]) {\n"
                  "  %s = add %x, %z : f32[64,512]\n"
                  "  return %s\n}";
}

/* A kernel of the sum of x and y, that is reduced besides, to a number a row. */
static const char *reduce_text(Arena *mem, int op, int n) {
    const char *more = n ? ", f32[64]" : "", *ret = n ? ", %r" : "";
    Text t = text_new(mem);
    text_add(&t,
             "(%%x: f32[64,1024], %%y: f32[64,1024]) -> (f32[64,1024]%s) {\n"
             "  %%z = add %%x, %%y : f32[64,1024]\n",
             more);
    if (n) text_add(&t, "  %%r = %s %%z {ij->i} : f32[64]\n", optab[op].name);
    text_add(&t, "  return %%z%s\n}", ret);
    return t.s;
}

static void measure(Calibration *c, MachineRank *r, int op) {
    const double most = 1e13; /* numbers a second: as good as nothing */
    TrialOptions o = calibrate_options(c);
    Arena *mem = arena_new();
    bool reduces = optab[op].flags & F_REDUCE, casts = optab[op].flags & F_CAST;
    int n = casts ? CASTS : 1;
    const char *text[2];
    for (int with = 0; with < 2; with++)
        text[with] = reduces ? reduce_text(mem, op, with)
                     : casts ? cast_text(with)
                             : sum_text(mem, op, with);
    o.spread_bytes = 0;
    if (text[0] && text[1]) {
        double less = trial_of(&o, text[0], c->seconds / 4);
        double seconds = trial_of(&o, text[1], c->seconds / 4) - less;
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
