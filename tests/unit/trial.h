/* trial.h - one sample of ops.h, to try out what its row promises. */
#ifndef STATOR_TESTS_TRIAL_H
#define STATOR_TESTS_TRIAL_H
#include "op_programs.h"

typedef struct Trial {
    Arena *mem;
    const Sample *sample;
    Func *f;
    Op *op;
    const OpInfo *row;
    Dims d; /* of an op that has a rule */
} Trial;

#define WRONG(t, ...)                                                                    \
    test_fail(__FILE__, __LINE__, "%s {%s}: %s", (t)->sample->kind, (t)->sample->body,   \
              arena_printf((t)->mem, __VA_ARGS__))

/* `type` is that of its floats. */
static inline Trial trial_of(Arena *mem, const Sample *s, const char *type) {
    Trial t = {.mem = mem, .sample = s, .f = entry(plain_module(mem, s, type))};
    t.op = t.f->last;
    t.row = &optab[t.op->kind];
    if (op_rule(t.op)) EXPECT(op_dims(t.op, &t.d));
    return t;
}

static inline Trial trial_new(Arena *mem, const Sample *s) {
    return trial_of(mem, s, "f64");
}

static inline bool agree(double a, double b) {
    return a == b || (a != a && b != b) || fabs(a - b) <= 1e-12 * fmax(1, fabs(b));
}

static inline bool is_float(const Value *v) {
    return dtype_is_float(v->ty.dt);
}

#endif
