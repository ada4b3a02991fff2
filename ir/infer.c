/* infer.c - result types of an op from its row: shapes by the dimension rule, element
 * types by the types column, the rest by the row's infer hook.
 *
 * types column: one character an operand (the last one repeats): f = float, all of one
 * type; g = float, of any type; w = f32 or f64; i = i32; * = anything. After "->" one a
 * result: a digit = like that operand, i = i32, * = as declared, w = the same, which must be
 * f32 or f64, d = as declared or, where nothing is, like operand 0, s = what operand 0 is
 * summed in: f32 for anything narrower. */
#include "ir/op_hooks.h"
#include <float.h>
#include <math.h>

static _Thread_local char error_text[512];
static _Thread_local jmp_buf *error_jump;

_Noreturn void infer_error(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(error_text, sizeof error_text, fmt, ap);
    va_end(ap);
    if (!error_jump) die("%s", error_text);
    longjmp(*error_jump, 1);
}

static bool is_wide(DType dt) {
    return dt == DT_F32 || dt == DT_F64;
}

static void check_operand_types(const Op *op) {
    const char *spec = optab[op->kind].types;
    DType float_type = DT_COUNT;
    char c = '*';
    for (int i = 0; i < op->nin; i++) {
        if (*spec && !begins_with(spec, "->")) c = *spec++;
        DType dt = op->in[i]->ty.dt;
        if (c == 'i' && dt != DT_I32) {
            infer_error("operand %d (%%%s) is %s, must be i32", i, op->in[i]->name,
                        dtype_name[dt]);
        }
        if (c == 'w' && !is_wide(dt))
            infer_error("operand %d (%%%s) is %s, must be f32", i, op->in[i]->name,
                        dtype_name[dt]);
        if (c != 'f' && c != 'g') continue;
        if (!dtype_is_float(dt)) {
            infer_error("operand %d (%%%s) is %s, must be a float type", i,
                        op->in[i]->name, dtype_name[dt]);
        }
        if (c == 'g') continue;
        if (float_type == DT_COUNT) float_type = dt;
        if (dt != float_type) {
            infer_error("operand %d (%%%s) is %s, but an earlier one is %s; use cast", i,
                        op->in[i]->name, dtype_name[dt], dtype_name[float_type]);
        }
    }
}

static DType result_type(const Op *op, int i, const Type *declared, int ndeclared) {
    const char *spec = strstr(optab[op->kind].types, "->") + 2;
    char c = spec[MIN((size_t)i, strlen(spec) - 1)];
    if (c == 'i') return DT_I32;
    if (c >= '0' && c <= '9') {
        if (c - '0' >= op->nin) infer_error("too few operands");
        return op->in[c - '0']->ty.dt;
    }
    if (c == 's') return dtype_sum(op->in[0]->ty.dt);
    if (c == 'd' && i >= ndeclared) return op->in[0]->ty.dt;
    if (i >= ndeclared) infer_error("the type of result %d must be given", i);
    if (c == 'w' && !is_wide(declared[i].dt))
        infer_error("result %d is %s, must be f32", i, dtype_name[declared[i].dt]);
    if (c == 'd' && !dtype_is_float(declared[i].dt))
        infer_error("result %d is %s, must be a float type", i,
                    dtype_name[declared[i].dt]);
    return declared[i].dt;
}

static bool term_has(const Term *t, char letter) {
    return memchr(t->letter, letter, (size_t)t->n) != NULL;
}

/* Does one of the first n operands have the letter? */
static bool in_some(const Rule *r, int n, char letter) {
    for (int i = 0; i < n; i++)
        if (term_has(&r->term[i], letter)) return true;
    return false;
}

/* Gives `out` the dimensions bound to the letter; how many there are. */
static int add_bound(Type *out, int i, const Dims *d, char letter) {
    int found = 0;
    for (int id = 0; id < d->n; id++) {
        if (d->letter[id] != letter) continue;
        if (out->rank >= MAX_RANK) infer_error("result %d has too many dimensions", i);
        out->dim[out->rank++] = d->size[id];
        found++;
    }
    return found;
}

/* Gives `out` the next `count` dimensions of the declared type. */
static void add_declared(Type *out, int i, const Type *declared, int count,
                         const Rule *r) {
    for (int j = 0; j < count; j++) {
        if (out->rank >= MIN(declared->rank, MAX_RANK))
            infer_error("result %d has too few dimensions for the rule %s", i, r->text);
        out->dim[out->rank] = declared->dim[out->rank];
        out->rank++;
    }
}

/* Shapes of results from the bound letters; letters that only results have take their
 * size from the declared type. */
static void infer_by_rule(Arena *mem, Op *op, const Type *declared, int ndeclared,
                          Type *out, int *nout) {
    const Rule *r = op_rule(op);
    Dims d;
    const char *why = rule_bind(mem, r, op->nin, op->in, 0, NULL, &d);
    if (why) infer_error("%s", why);
    bool rest_known = in_some(r, r->nin, '.');
    *nout = r->nout;
    for (int i = 0; i < r->nout; i++) {
        const Term *t = &r->term[r->nin + i];
        out[i] = (Type){.dt = result_type(op, i, declared, ndeclared)};
        for (int k = 0; k < t->n; k++) {
            bool rest = t->letter[k] == '.';
            if (add_bound(&out[i], i, &d, t->letter[k]) || (rest && rest_known)) continue;
            if (i >= ndeclared) infer_error("the type of result %d must be given", i);
            int count = rest ? declared[i].rank - (t->n - 1) : 1;
            add_declared(&out[i], i, &declared[i], count, r);
        }
    }
}

void check_rng(const Op *op, int i) {
    if (op->in[i]->ty.dim[0] != RNG_WORDS) infer_error("rng must be i32[%d]", RNG_WORDS);
}

void check_dropout(const Op *op) {
    double p = op_float(op, "p", 0);
    int64_t site = op_int(op, "site", 0);
    if (!(p >= 0 && p < 1)) infer_error("p is the share that is dropped: 0 <= p < 1");
    if (site < 0 || site > UINT32_MAX) infer_error("site must be in 0..2^32-1");
}

/* What a rule attribute must be beyond spelling. Results are made of letters of operands,
 * those of a matmul of letters of its factors; maps and moves use each letter in the
 * result; what a matmul sums over is in both factors (else its gradient would have no
 * size), and its addends have letters of the result. */
static void check_rule_letters(const Op *op, const Rule *r) {
    unsigned flags = optab[op->kind].flags;
    bool addends = flags & F_ADDENDS;
    const Term *out = &r->term[r->nin];
    if (r->nout != 1) infer_error("the rule %s must have one result", r->text);
    for (int k = 0; k < out->n; k++)
        if (!in_some(r, addends ? MIN(r->nin, 2) : r->nin, out->letter[k]))
            infer_error("'%c' of the result is in no %s", out->letter[k],
                        addends ? "factor" : "operand");
    for (int i = 0; i < r->nin && !(flags & F_REDUCE); i++) {
        const Term *other = addends && i < 2 ? &r->term[1 - i] : NULL;
        for (int k = 0; k < r->term[i].n; k++) {
            char c = r->term[i].letter[k];
            if (term_has(out, c) || (other && term_has(other, c))) continue;
            infer_error("'%c' of operand %d must be in %s", c, i,
                        other ? "the other factor or the result" : "the result");
        }
    }
}

void infer_free(Op *op, Type *out) {
    (void)op, (void)out; /* shapes by the rule, element type as declared */
}

/* Code has the numbers of an op in f32, unless it works in f64. */
static void check_numbers(const Op *op, const Type *out, int nout) {
    bool wide = false;
    for (int i = 0; i < op->nin; i++) wide |= op->in[i]->ty.dt == DT_F64;
    for (int i = 0; i < nout; i++) wide |= out[i].dt == DT_F64;
    for (const Attr *a = op->attr; a && !wide; a = a->next)
        if (a->kind == ATTR_FLOAT && isfinite(a->f) && fabs(a->f) > FLT_MAX)
            infer_error("%s=%g is more than an f32 holds: write a number from -3.4e38 to "
                        "3.4e38",
                        a->key, a->f);
}

static void infer_all(Arena *mem, Op *op, const Type *declared, int ndeclared, Type *out,
                      int *nout) {
    const OpInfo *info = &optab[op->kind];
    if (info->nin_max >= 0 && op->nin > info->nin_max)
        infer_error("%d operands; it takes %s%d", op->nin,
                    info->nin_max > info->nin_min ? "at most " : "", info->nin_max);
    if (op->nin < info->nin_min)
        infer_error("%d operands; it takes %s%d", op->nin,
                    info->nin_max != info->nin_min ? "at least " : "", info->nin_min);
    check_operand_types(op);
    const Attr *rule = op_attr(op, "rule");
    if (rule && op->nin == rule->rule->nin) check_rule_letters(op, rule->rule);
    *nout = info->nout >= 0 ? info->nout : ndeclared;
    if (op_rule(op)) {
        infer_by_rule(mem, op, declared, ndeclared, out, nout);
    } else {
        for (int i = 0; i < *nout && i < ndeclared; i++) {
            out[i] = declared[i];
            out[i].dt = result_type(op, i, declared, ndeclared);
        }
    }
    if (info->infer) info->infer(op, out);
    check_numbers(op, out, *nout);
}

const char *op_infer(Arena *mem, Op *op, const Type *declared, int ndeclared, Type *out,
                     int *nout) {
    jmp_buf jump, *outer = error_jump;
    if (setjmp(jump)) {
        error_jump = outer;
        return arena_strdup(mem, error_text);
    }
    error_jump = &jump;
    /* hooks of ops with a free number of results set op->nout themselves */
    op->nout = ndeclared;
    infer_all(mem, op, declared, ndeclared, out, nout);
    if (optab[op->kind].nout < 0) *nout = op->nout;
    error_jump = outer;
    return NULL;
}
