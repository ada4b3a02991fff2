/* check_placement.c - is a module at level sharded ready for pass localize? What the
 * passes make is. A text written by hand, or made by a list of passes without reshard or
 * collect, may not be and would give wrong numbers. */
#include "ir/placement.h"
#include "passes/passes.h"

static const char *shown(const Func *f, const Type *ty) {
    return type_text(f->mod->mem, &f->mod->mesh, ty);
}

static void expect(const Op *op, const Value *v, const Type *want, const char *what) {
    if (type_same_placement(&v->ty, want)) return;
    fail_op(
        op, "%s: %s %%%s is %s, but must be %s here: run pass reshard before localize",
        optab[op->kind].name, what, v->name, shown(op->fn, &v->ty), shown(op->fn, want));
}

/* The sum over ranks of what the op makes of parts is what it makes of their sum. */
static void expect_sums(const Op *op, Axes passes) {
    const Mesh *m = &op->fn->mod->mesh;
    for (int a = 0; a < m->naxes; a++) {
        SumOperands in = {0};
        if (!(passes >> a & 1)) continue;
        for (int i = 0; i < op->nin; i++) {
            const Type *t = &op->in[i]->ty;
            sum_operand(&in, t, false, false, t->pending >> a & 1);
        }
        if (sums_may_go_on(op, &in)) continue;
        const char *name = m->axis[a].name;
        fail_op(op,
                "%s: partial sums over %s do not go on into its results: put reshard "
                "{how=\"all_reduce\"; axis=\"%s\"} before it and leave +%s out of over",
                optab[op->kind].name, name, name, name);
    }
}

/* The result as it lies, where every rank can make it so; as the op gives it else. */
static Type result_or_free(const Op *op, const Over *o, int i) {
    Type gives = over_result(op, o, i), ty = op->out[i]->ty;
    bool zero, parts = false;
    if (!value_is_free(op->out[i], &zero)) return gives;
    for (int k = 0; k < op->nin; k++) parts |= op->in[k]->ty.rank > 0;
    if (!parts) memcpy(gives.split, ty.split, sizeof gives.split);
    if (zero) gives.pending = ty.pending;
    return gives;
}

static void expect_op(const Op *op) {
    Over o = over_read(op);
    for (int i = 0; i < op->nin; i++) {
        Type want = over_operand(op, &o, i);
        expect(op, op->in[i], &want, "operand");
    }
    expect_sums(op, o.passes);
    for (int i = 0; i < op->nout; i++) {
        Type gives = result_or_free(op, &o, i);
        expect(op, op->out[i], &gives, "result");
    }
}

/* What a function returns over an argument, or to the next run, has the placement of that
 * argument. */
static void expect_back(const Func *f, int ret, int arg) {
    const Value *v = f->ret[ret], *a = f->arg[arg];
    if (type_same_placement(&v->ty, &a->ty)) return;
    fail(EXIT_CONFIG,
         "@%s: result %%%s is %s, but the argument %%%s, which it follows, is %s: run "
         "pass "
         "reshard before localize",
         f->name, v->name, shown(f, &v->ty), a->name, shown(f, &a->ty));
}

/* What reads the results of an entry takes them for whole sums. */
static void expect_finished(const Func *f, int ret) {
    const Value *v = f->ret[ret];
    if (!v->ty.pending) return;
    fail(EXIT_CONFIG,
         "@%s: result %%%s is %s, a partial sum on each rank: run pass reshard before "
         "localize",
         f->name, v->name, shown(f, &v->ty));
}

static void expect_call(const Op *op) {
    const Call c = call_of(op);
    for (int i = 0; i < c.carry; i++) expect_back(op_func(op), i, i);
    for (int i = 0; i < op->nin; i++) {
        Type want = call_operand(op, i);
        expect(op, op->in[i], &want, "operand");
    }
    for (int i = 0; i < op->nout; i++) {
        Type gives = call_result(op, i);
        expect(op, op->out[i], &gives, "result");
    }
}

static void expect_step(const Op *op) {
    if (reshard_is_step(op)) return;
    fail_op(op,
            "reshard of %%%s from %s to %s is not one collective as its attributes say: "
            "leave how, axis, dim and to out and run pass collect before localize",
            op->in[0]->name, shown(op->fn, &op->in[0]->ty),
            shown(op->fn, &op->out[0]->ty));
}

void check_placed(const Module *m) {
    for (const Func *f = m->first; f; f = f->next) {
        for (const Op *op = f->first; op; op = op->next) {
            if (op->kind == OP_reshard)
                expect_step(op);
            else if (op_is_call(op))
                expect_call(op);
            else
                expect_op(op);
        }
        for (int i = 0; i < f->nret; i++)
            if (f->alias[i] >= 0)
                expect_back(f, i, f->alias[i]);
            else if (func_is_entry(f))
                expect_finished(f, i);
    }
}
