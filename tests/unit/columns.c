/* columns.c - what the flags of ops.def promise, held against what the reference kernel
 * does, for every op by its samples (ops.h) and in double. op_parts.c has the columns
 * rule, dims and local, ops.c vjp and expand, op_codegen.c results over operands in
 * generated code. F_DENSE promises work, which no number shows. */
#include "ir/walk.h"
#include "trial.h"

/* ---- one op on given operands ---- */

/* Numbers for the operands, each its own tensor; other ones for another `stream`. */
static Tensor **operands(const Trial *t, int stream) {
    Tensor **in = NEW_ARRAY(t->mem, Tensor *, (size_t)t->op->nin + 1);
    for (int i = 0; i < t->op->nin; i++) {
        in[i] = tensor_new(t->mem, &t->op->in[i]->ty);
        fill_argument(in[i], t->op->in[i]->name, stream);
    }
    return in;
}

static void apply_to(const Trial *t, Tensor **in, Tensor ***peers, int rank,
                     Tensor **out) {
    Ref ref = {t->op, in, out, rank, &t->f->mod->mesh, peers};
    t->row->ref(&ref);
}

static Tensor **results(const Trial *t) {
    Tensor **out = NEW_ARRAY(t->mem, Tensor *, (size_t)t->op->nout + 1);
    for (int i = 0; i < t->op->nout; i++) out[i] = tensor_new(t->mem, &t->op->out[i]->ty);
    return out;
}

static Tensor **apply(const Trial *t, Tensor **in) {
    Tensor **out = results(t);
    apply_to(t, in, NULL, 0, out);
    return out;
}

static bool same_bytes(const Tensor *a, const Tensor *b) {
    int64_t n = type_bytes(&a->ty);
    return n == type_bytes(&b->ty) && !memcmp(a->data, b->data, (size_t)n);
}

/* Runs `test` on all samples whose op has one of the flags (0: any) and a reference
 * kernel that needs no other ranks; how many. */
static int each(unsigned flags, void (*test)(const Trial *)) {
    int n = 0;
    for (int i = 0; i < ARRAY_LEN(samples); i++) {
        unsigned has = optab[op_kind(samples[i].kind)].flags;
        Arena *mem = arena_new();
        Trial t = trial_new(mem, &samples[i]);
        bool alone = !(has & F_COMM) && !op_is_call(t.op);
        if (alone && (!flags || (has & flags))) test(&t), n++;
        arena_free(mem);
    }
    return n;
}

/* ---- which columns go together ---- */

enum { KIND_OP, KIND_MAP, KIND_COMPOSITE };
static const int row_macro[OP_COUNT] = {
#define OP(...)        KIND_OP,
#define MAP(...)       KIND_MAP,
#define COMPOSITE(...) KIND_COMPOSITE,
#include "ir/ops.def"
#undef OP
#undef MAP
#undef COMPOSITE
};

TEST(rows_are_consistent) {
    for (int k = 0; k < OP_COUNT; k++) {
        const OpInfo *row = &optab[k];
        unsigned has = row->flags;
        bool good = (row_macro[k] == KIND_MAP) == !!(has & F_MAP) &&
                    (row_macro[k] == KIND_COMPOSITE) == (row->expand != NULL) &&
                    !(has & F_LINEAR && has & (F_COMM | F_RANK)) &&
                    (!(has & (F_MOVE | F_PLUS)) || has & F_LINEAR) &&
                    (!(has & (F_MOVE | F_MAP | F_REDUCE | F_PLUS)) || row->nout == 1) &&
                    (!(has & F_FILL) || row->nin_max == 0) &&
                    (!(has & F_SCALE) || row->nin_max == 1) &&
                    (!(has & F_DENSE) || row->rule || strstr(row->attrs, "rule:r"));
        if (!good)
            test_fail(__FILE__, __LINE__, "the row of %s contradicts itself", row->name);
        bool found = has & F_EFFECT; /* tests/unit/pipeline.c */
        for (int i = 0; i < ARRAY_LEN(samples); i++)
            found |= !strcmp(samples[i].kind, row->name);
        if (!found) test_fail(__FILE__, __LINE__, "no sample for op %s", row->name);
    }
}

/* ---- F_LINEAR ---- */

/* f(x + y) = f(x) + f(y) in the float results, for x and y in the operands of `set`. */
static bool additive(const Trial *t, uint32_t set) {
    Tensor **x = operands(t, 0), **y = operands(t, 1), **both = operands(t, 0);
    for (int i = 0; i < t->op->nin; i++) {
        if (!(set >> i & 1)) y[i] = x[i];
        for (int64_t k = 0; set >> i & 1 && k < type_count(&x[i]->ty); k++)
            tensor_set(both[i], k, tensor_get(x[i], k) + tensor_get(y[i], k));
    }
    Tensor **fx = apply(t, x), **fy = apply(t, y), **sum = apply(t, both);
    for (int i = 0; i < t->op->nout; i++) {
        if (!is_float(t->op->out[i])) continue;
        for (int64_t k = 0; k < type_count(&sum[i]->ty); k++) {
            if (!agree(tensor_get(sum[i], k),
                       tensor_get(fx[i], k) + tensor_get(fy[i], k)))
                return false;
        }
    }
    return true;
}

static uint32_t float_operands(const Op *op) {
    uint32_t set = 0;
    for (int i = 0; i < op->nin; i++) set |= (uint32_t)is_float(op->in[i]) << i;
    return set;
}

static bool makes_floats(const Op *op) {
    for (int i = 0; i < op->nout; i++) {
        if (is_float(op->out[i])) return true;
    }
    return false;
}

/* Of a product: each factor alone, the addends with it. */
static bool is_linear(const Trial *t) {
    uint32_t all = float_operands(t->op);
    if (t->row->flags & F_ADDENDS)
        return additive(t, all & ~1u) && additive(t, all & ~2u);
    return additive(t, all);
}

static void expect_linear(const Trial *t) {
    if (float_operands(t->op) && !is_linear(t))
        WRONG(t, "F_LINEAR, but the result of a sum is not the sum of the results");
}

TEST(linear) {
    EXPECT(each(F_LINEAR, expect_linear) > 40);
}

/* Linear in all samples, without the flag: each needs a reason here. */
static const struct {
    const char *op, *reason;
} not_flagged[] = {
    {"arrive", "stands in programs of one rank only, where sums are finished"},
    {"select", "its condition is nothing to be summed; the sample's is never 0"},
    {"agree", "the least of a sum is not the sum of what is least"},
};

TEST(linear_ops_say_so) {
    bool linear[OP_COUNT] = {0}, bent[OP_COUNT] = {0};
    for (int i = 0; i < ARRAY_LEN(samples); i++) {
        Arena *mem = arena_new();
        Trial t = trial_new(mem, &samples[i]);
        bool asked = !(t.row->flags & (F_COMM | F_RANK)) && !op_is_call(t.op) &&
                     float_operands(t.op) && makes_floats(t.op);
        if (asked && is_linear(&t)) linear[t.op->kind] = true;
        if (asked && !is_linear(&t)) bent[t.op->kind] = true;
        arena_free(mem);
    }
    for (int k = 0; k < OP_COUNT; k++) {
        bool excused = false, is = linear[k] && !bent[k];
        for (int i = 0; i < ARRAY_LEN(not_flagged); i++)
            excused |= !strcmp(not_flagged[i].op, optab[k].name);
        bool said = (optab[k].flags & F_LINEAR) != 0;
        if (is && !said && !excused)
            test_fail(__FILE__, __LINE__,
                      "%s is linear: give it F_LINEAR, or a reason in not_flagged",
                      optab[k].name);
        if (excused && (!is || said))
            test_fail(__FILE__, __LINE__, "%s needs no reason in not_flagged",
                      optab[k].name);
    }
}

/* ---- F_MAP, F_REDUCE, F_PLUS, F_ADDENDS: element by element ---- */

/* Another number that the element may have. */
static double disturbed(const Tensor *x, int64_t k) {
    double v = tensor_get(x, k);
    return dtype_is_float(x->ty.dt) ? v + 0.25 : v == 0 ? 1 : 0;
}

/* May element `at` of the operand have a part in element `out` of the result? By result
 * element, as the rule says. */
static bool *touched_by(const Trial *t, int operand, int64_t at) {
    int64_t n = type_count(&t->op->out[0]->ty);
    bool *may = NEW_ARRAY(t->mem, bool, (size_t)n);
    Walk w = walk_over(&t->d, (1u << t->d.n) - 1);
    do {
        if (w.offset[operand] == at) may[w.offset[t->d.nin]] = true;
    } while (walk_next(&w));
    return may;
}

static void expect_elementwise(const Trial *t) {
    Tensor **in = operands(t, 0), *before = apply(t, in)[0];
    for (int i = 0; i < t->op->nin; i++) {
        for (int64_t at = 0; at < type_count(&in[i]->ty); at++) {
            double old = tensor_get(in[i], at);
            tensor_set(in[i], at, disturbed(in[i], at));
            Tensor *after = apply(t, in)[0];
            bool *may = touched_by(t, i, at);
            for (int64_t k = 0; k < type_count(&after->ty); k++) {
                if (!may[k] && tensor_get(after, k) != tensor_get(before, k))
                    WRONG(t, "element %lld of operand %d changes element %lld",
                          (long long)at, i, (long long)k);
            }
            tensor_set(in[i], at, old);
        }
    }
}

TEST(maps_and_reductions_are_elementwise) {
    EXPECT(each(F_MAP | F_REDUCE, expect_elementwise) > 80);
}

static void expect_result(const Trial *t, const Tensor *got, const double *want,
                          const char *what) {
    for (int64_t k = 0; k < type_count(&got->ty); k++) {
        if (!agree(tensor_get(got, k), want[k]))
            WRONG(t, "element %lld is %.17g, but %s is %.17g", (long long)k,
                  tensor_get(got, k), what, want[k]);
    }
}

static void expect_reduction(const Trial *t) {
    bool sum = (t->row->flags & F_LINEAR) != 0;
    Tensor **in = operands(t, 0), *out = apply(t, in)[0];
    int64_t n = type_count(&out->ty);
    double *want = NEW_ARRAY(t->mem, double, (size_t)n);
    for (int64_t k = 0; k < n; k++) want[k] = sum ? 0 : -INFINITY;
    Walk w = walk_over(&t->d, (1u << t->d.n) - 1);
    do {
        double v = tensor_get(in[0], w.offset[0]), *at = &want[w.offset[1]];
        *at = sum ? *at + v : fmax(*at, v);
    } while (walk_next(&w));
    expect_result(t, out, want, sum ? "the sum" : "the maximum");
}

TEST(reductions_are_sums_or_maxima) {
    EXPECT(each(F_REDUCE, expect_reduction) > 5);
}

static void expect_sum_of_two(const Trial *t) {
    Tensor **in = operands(t, 0), *out = apply(t, in)[0];
    double *want = NEW_ARRAY(t->mem, double, (size_t)type_count(&out->ty));
    EXPECT_INT(t->op->nin, 2);
    Walk w = walk_over(&t->d, (1u << t->d.n) - 1);
    do {
        want[w.offset[2]] =
            tensor_get(in[0], w.offset[0]) + tensor_get(in[1], w.offset[1]);
    } while (walk_next(&w));
    expect_result(t, out, want, "the sum of the operands");
}

TEST(plus) {
    EXPECT(each(F_PLUS, expect_sum_of_two) > 5);
}

static void expect_fill(const Trial *t) {
    Tensor *out = apply(t, operands(t, 0))[0];
    int64_t n = type_count(&out->ty);
    double *want = NEW_ARRAY(t->mem, double, (size_t)n);
    for (int64_t k = 0; k < n; k++) want[k] = op_float(t->op, "value", NAN);
    expect_result(t, out, want, "the value");
}

static void expect_scaled(const Trial *t) {
    Tensor **in = operands(t, 0), *out = apply(t, in)[0];
    int64_t n = type_count(&out->ty);
    double *want = NEW_ARRAY(t->mem, double, (size_t)n);
    for (int64_t k = 0; k < n; k++)
        want[k] = op_float(t->op, "by", NAN) * tensor_get(in[0], k);
    expect_result(t, out, want, "the operand, scaled,");
}

TEST(constants_and_scaling) {
    EXPECT(each(F_FILL, expect_fill) > 0);
    EXPECT(each(F_SCALE, expect_scaled) > 0);
}

/* Who runs a function says so, and nobody else. */
TEST(calls) {
    for (int k = 0; k < OP_COUNT; k++) {
        bool names = strstr(optab[k].attrs, "fn:F") != NULL;
        if (names != !!(optab[k].flags & F_CALL))
            test_fail(__FILE__, __LINE__, "%s: F_CALL and the attribute fn go together",
                      optab[k].name);
    }
}

static void expect_addends(const Trial *t) {
    Tensor **in = operands(t, 0), *with = apply(t, in)[0];
    Tensor **none = operands(t, 0);
    for (int i = 2; i < t->op->nin; i++)
        memset(none[i]->data, 0, (size_t)type_bytes(&none[i]->ty));
    Tensor *bare = apply(t, none)[0];
    double *want = NEW_ARRAY(t->mem, double, (size_t)type_count(&with->ty));
    Walk w = walk_over(&t->d, dims_mask(&t->d, t->d.nin));
    do {
        double *at = &want[w.offset[t->d.nin]];
        *at = tensor_get(bare, w.offset[t->d.nin]);
        for (int i = 2; i < t->op->nin; i++) *at += tensor_get(in[i], w.offset[i]);
    } while (walk_next(&w));
    expect_result(t, with, want, "the product with its addends");
}

TEST(addends) {
    EXPECT(each(F_ADDENDS, expect_addends) > 5);
}

/* ---- F_MOVE, F_VIEW, F_INPLACE: whose elements, whose buffer ---- */

/* The elements of the operand are 1, 2, ...: each is in the result once or not at all. */
static void expect_move(const Trial *t) {
    Tensor **in = operands(t, 0);
    int64_t n = type_count(&in[0]->ty);
    EXPECT_INT(t->op->nin, 1);
    for (int64_t k = 0; k < n; k++) tensor_set(in[0], k, (double)(k + 1));
    Tensor *out = apply(t, in)[0];
    bool *seen = NEW_ARRAY(t->mem, bool, (size_t)n + 1);
    for (int64_t k = 0; k < type_count(&out->ty); k++) {
        double v = tensor_get(out, k);
        bool known = v >= 0 && v <= (double)n && v == floor(v);
        if (!known || (v > 0 && seen[(int64_t)v]))
            WRONG(t, "F_MOVE, but element %lld is none of the operand, or one again",
                  (long long)k);
        seen[(int64_t)v] = true;
    }
}

TEST(moves) {
    EXPECT(each(F_MOVE, expect_move) > 10);
}

static void expect_view(const Trial *t) {
    Tensor **in = operands(t, 0), **out = apply(t, in);
    EXPECT(t->op->nout <= t->op->nin);
    for (int i = 0; i < t->op->nout; i++) {
        if (!same_bytes(in[i], out[i]))
            WRONG(t, "F_VIEW, but result %d has other bytes than operand %d", i, i);
    }
}

TEST(views) {
    EXPECT(each(F_VIEW, expect_view) > 3);
}

/* ---- F_CAST, F_TYPELESS, F_ROUNDS: element types ---- */

static void expect_cast(const Trial *t) {
    Tensor **in = operands(t, 0), *out = apply(t, in)[0];
    bool same = t->op->nin == 1 && type_count(&in[0]->ty) == type_count(&out->ty);
    Tensor *want = tensor_new(t->mem, &out->ty);
    for (int64_t k = 0; same && k < type_count(&out->ty); k++)
        tensor_set(want, k, tensor_get(in[0], k));
    if (!same || !same_bytes(out, want)) WRONG(t, "F_CAST, but elements are other ones");
}

TEST(casts) {
    EXPECT(each(F_CAST, expect_cast) > 0);
}

/* On operands that the narrow type can hold, its op gives the rounded results of the op of
 * f64. */
static void expect_rounded(const Sample *s, const char *type) {
    Arena *mem = arena_new();
    Trial wide = trial_new(mem, s), narrow = trial_of(mem, s, type);
    Tensor **in = operands(&narrow, 0), **same = operands(&wide, 0);
    for (int i = 0; i < wide.op->nin; i++)
        for (int64_t k = 0; k < type_count(&in[i]->ty); k++)
            tensor_set(same[i], k, tensor_get(in[i], k));
    Tensor **got = apply(&narrow, in), **exact = apply(&wide, same);
    for (int i = 0; i < wide.op->nout; i++) {
        Tensor *want = tensor_new(mem, &got[i]->ty);
        for (int64_t k = 0; k < type_count(&want->ty); k++)
            tensor_set(want, k, tensor_get(exact[i], k));
        if (!same_bytes(want, got[i]))
            WRONG(&narrow, "narrow operands give other results");
    }
    arena_free(mem);
}

TEST(typeless) {
    int n = 0;
    for (int i = 0; i < ARRAY_LEN(samples); i++) {
        unsigned has = optab[op_kind(samples[i].kind)].flags;
        if (has & (F_COMM | F_RANK) || strstr(samples[i].body, "i32[")) continue;
        if (!(has & (F_TYPELESS | F_MOVE | F_ROUNDS))) continue;
        expect_rounded(&samples[i], "bf16");
        expect_rounded(&samples[i], "f16");
        n++;
    }
    EXPECT(n > 10);
}

/* The results are the same when result 0 is written over operand `i`. */
static void expect_over(const Trial *t, int i) {
    Tensor **in = operands(t, 0), **apart = apply(t, in), **over = results(t);
    over[0]->data = in[i]->data;
    apply_to(t, in, NULL, 0, over);
    for (int k = 0; k < t->op->nout; k++) {
        if (!same_bytes(apart[k], over[k]))
            WRONG(t, "result %d is another one when operand %d is overwritten", k, i);
    }
}

/* What the plan of memory may do: of a product an addend of the result's shape, else
 * operand 0 where it has as many bytes. */
static void expect_inplace(const Trial *t) {
    const Type *out = &t->op->out[0]->ty;
    for (int i = 2; t->row->flags & F_ADDENDS && i < t->op->nin; i++) {
        if (type_same_shape(&t->op->in[i]->ty, out)) expect_over(t, i);
    }
    if (t->row->flags & F_INPLACE && type_bytes(&t->op->in[0]->ty) == type_bytes(out))
        expect_over(t, 0);
}

TEST(results_over_operands) {
    EXPECT(each(F_INPLACE | F_ADDENDS, expect_inplace) > 70);
}

/* ---- F_RANK, F_COMM: who sees what ---- */

/* Does rank 0 of two get another result where its neighbour has other operands? */
static bool hears(const Trial *t) {
    Tensor **mine = operands(t, 0), **out[2] = {results(t), results(t)};
    bool other = false;
    for (int stream = 0; stream < 2; stream++) {
        Tensor **peers[2] = {mine, operands(t, stream + 1)};
        Tensor **in = operands(t, 0);
        apply_to(t, in, peers, 0, out[stream]);
    }
    for (int i = 0; i < t->op->nout; i++) other |= !same_bytes(out[0][i], out[1][i]);
    return other;
}

/* Do ranks 0 and 1 get different results of the same operands? */
static bool differs(const Trial *t) {
    Tensor **out[2] = {results(t), results(t)};
    bool other = false;
    for (int rank = 0; rank < 2; rank++) {
        Tensor **in = operands(t, 0), **peers[2] = {in, in};
        apply_to(t, in, peers, rank, out[rank]);
    }
    for (int i = 0; i < t->op->nout; i++) other |= !same_bytes(out[0][i], out[1][i]);
    return other;
}

/* An op whose attribute `of` is a type works on the part that this rank has. */
TEST(ranks) {
    for (int k = 0; k < OP_COUNT; k++) {
        bool heard = false, different = false, called = false;
        for (int i = 0; i < ARRAY_LEN(samples); i++) {
            if (op_kind(samples[i].kind) != k) continue;
            Arena *mem = arena_new();
            bool part = strstr(samples[i].body, "of=\"") != NULL;
            const char *level = on_mesh(&samples[i]) ? "local" : "global";
            Trial t = trial_new(mem, &samples[i]);
            t.f = entry(sample_module(mem, &samples[i], "f64", "a=2", 2, level));
            t.op = t.f->last;
            called |= op_attr(t.op, "fn") != NULL;
            if (!called) heard |= hears(&t);
            if (!called && !part) different |= differs(&t);
            arena_free(mem);
        }
        unsigned has = optab[k].flags;
        bool good = heard == !!(has & F_COMM);
        if (!(has & F_COMM)) good &= different == !!(has & F_RANK);
        if (!called && !good)
            test_fail(__FILE__, __LINE__, "%s: F_COMM or F_RANK is not what it does",
                      optab[k].name);
    }
}
