/* calibrate_inner.c - ops with products inside, over flops for each number of the first
 * operand. */
#include "frontend/calibrate/calibrate.h"
#include "passes/estimate/op_size.h"

typedef struct Shape {
    int64_t batch, length, heads, width;
} Shape;

/* What an op is given, with T the type, S that of sums; the dimensions of a first operand are
 * B x L x H x W. */
static const struct {
    int op;
    const char *args, *body, *ret;
} inner_op[] = {
    {OP_attention, "%q: T[BLHW], %k: T[BLHW], %v: T[BLHW], %at: i32[], %rng: i32[4]",
     "%o, %s = attention %q, %k, %v, %at, %at, %rng {causal=1; scale=0.1} : T[BLHW], "
     "S[BLH]",
     "T[BLHW], S[BLH] %o, %s"},
    {OP_attention_grad,
     "%q: T[BLHW], %k: T[BLHW], %v: T[BLHW], %at: i32[], %rng: i32[4], %o: T[BLHW], %s: "
     "S[BLH], %d: T[BLHW]",
     "%dq, %dk, %dv = attention_grad %q, %k, %v, %at, %at, %rng, %o, %s, %d {causal=1; "
     "scale=0.1} : T[BLHW], T[BLHW], T[BLHW]",
     "T[BLHW], T[BLHW], T[BLHW] %dq, %dk, %dv"},
};

static void spell(Text *t, const char *from, const char *type, const Shape *s) {
    for (const char *p = from; *p; p++) {
        if (p[1] == '[' && (*p == 'T' || *p == 'S')) {
            text_add(t, "%s", *p == 'T' ? type : "f32");
        } else if (begins_with(p, "BLH")) {
            text_add(t, "%lld,%lld,%lld", (long long)s->batch, (long long)s->length,
                     (long long)s->heads);
            p += 2;
            if (p[1] == 'W') text_add(t, ",%lld", (long long)s->width), p++;
        } else {
            text_add(t, "%c", *p);
        }
    }
}

/* Its flops and elements of the first operand are those that the planner counts. */
static OpSize size_of(Arena *mem, const Trial *t, int op) {
    OpSizes sizes = {0};
    const Func *f = t->p->entry;
    func_number(t->p->entry);
    int *row = NEW_ARRAY(mem, int, (size_t)f->nops + 1);
    for (const Op *o = f->first; o; o = o->next)
        op_sizes_add(mem, &sizes, o, true, NULL, row);
    for (int i = 0; i < sizes.n; i++)
        if (sizes.size[i].op == op) return sizes.size[i];
    die("a trial without its op");
}

static void add_point(const Calibration *c, InnerTable *t, int nth, const Shape *s) {
    TrialOptions o = calibrate_options(c);
    Arena *mem = arena_new();
    Text text = text_new(mem);
    const char *type = dtype_name[t->type], *ret = strchr(inner_op[nth].ret, '%');
    text_add(&text, "(");
    spell(&text, inner_op[nth].args, type, s);
    text_add(&text, ") -> (");
    spell(&text,
          arena_strndup(mem, inner_op[nth].ret, (size_t)(ret - 1 - inner_op[nth].ret)),
          type, s);
    text_add(&text, ") {\n  ");
    spell(&text, inner_op[nth].body, type, s);
    text_add(&text, "\n  return %s\n}", ret);
    Trial *trial = trial_make(&o, text.s);
    OpSize size = size_of(mem, trial, t->op);
    double rate = size.n.flops / without_start(c, trial_seconds(trial, c->seconds));
    t->rate.x[t->rate.n] = size.n.flops / size.n.first;
    t->rate.y[t->rate.n] = MAX(t->rate.y[t->rate.n], rate);
    t->rate.n++;
    trial_free(trial);
    arena_free(mem);
}

static InnerTable measure(const Calibration *c, int nth, DType type, int64_t width) {
    enum { LEAST = 64, MOST = 2048, NUMBERS = 1 << 20 };
    InnerTable t = {.op = inner_op[nth].op, .type = type, .width = width};
    int64_t most = c->quick ? LEAST : MOST, numbers = c->quick ? 1 << 12 : NUMBERS;
    t.rate.x = NEW_ARRAY(c->mem, double, 16);
    t.rate.y = NEW_ARRAY(c->mem, double, 16);
    for (int round = 0; round < CALIBRATE_ROUNDS; round++) {
        t.rate.n = 0;
        for (int64_t length = LEAST; length <= most; length *= 2) {
            Shape s = {.batch = 1, .length = length, .width = width};
            s.heads = MAX(4, numbers / (length * width));
            if (s.heads > 16) s.batch = s.heads / 8, s.heads = 8;
            add_point(c, &t, nth, &s);
        }
    }
    calibrate_say("%s %s of %lld: %.1f to %.1f GFLOP/s", optab[t.op].name,
                  dtype_name[type], (long long)width, 1e-9 * t.rate.y[0],
                  1e-9 * t.rate.y[t.rate.n - 1]);
    return t;
}

void calibrate_inner(Calibration *c, MachineRank *r) {
    static const DType types[] = {DT_F32, DT_BF16};
    static const int64_t widths[] = {32, 64, 128};
    int n = c->quick ? 1 : ARRAY_LEN(widths);
    r->inner = NEW_ARRAY(c->mem, InnerTable,
                         ARRAY_LEN(inner_op) * ARRAY_LEN(types) * ARRAY_LEN(widths));
    for (int op = 0; op < ARRAY_LEN(inner_op); op++)
        for (int type = 0; type < ARRAY_LEN(types); type++)
            for (int w = 0; w < n; w++)
                r->inner[r->ninner++] = measure(c, op, types[type], widths[w]);
}
