/* program_ops.c - see program_ops.h. */
#include "codegen/program_ops.h"
#include "passes/estimate/func_seconds.h"
#include "passes/pipe/op_tasks.h"

bool op_is_logged(const Op *op) {
    return op->kind == OP_arrive || !op_has(op, F_VIEW);
}

/* ---- names ---- */

/* What a kernel is made of: its ops, each kind once. */
static void add_parts(Text *t, const Func *kernel) {
    enum { MOST = 6 };
    int kinds[MOST], n = 0;
    for (const Op *op = kernel->first; op; op = op->next) {
        int i = 0;
        while (i < n && kinds[i] != op->kind) i++;
        if (i < n) continue;
        if (n == MOST) {
            text_add(t, "+...");
            return;
        }
        kinds[n++] = op->kind;
        text_add(t, "%s%s", n > 1 ? "+" : "", optab[op->kind].name);
    }
}

/* The value that an op is about. Messages of all micro-batches have one name. */
static const char *value_name(const Op *op, const char **spelling) {
    bool gives = op->kind == OP_send || op->kind == OP_sent;
    const Value *v = gives ? op->in[op->nin - 1] : op->nout ? op->out[0] : NULL;
    if (!v) return "";
    return op_has(op, F_EFFECT) ? v->name : spelling[v->id];
}

static const char *name_of(Arena *mem, const Op *op, const char **spelling) {
    Text t = text_new(mem);
    const Func *callee = op_callee(op);
    if (callee && callee->role != ROLE_KERNEL) {
        text_add(&t, "@%s", callee->name);
        if (call_of(op).loop) text_add(&t, " x %lld", (long long)call_of(op).times);
        return t.s;
    }
    if (callee)
        add_parts(&t, callee);
    else
        text_add(&t, "%s", optab[op->kind].name);
    text_add(&t, " %s", value_name(op, spelling));
    if (op_int(op, "late", 0)) text_add(&t, " late");
    return t.s;
}

static const char *where_of(Arena *mem, const Op *op) {
    const Module *m = op->fn->mod;
    const Func *callee = op_callee(op);
    Text t = text_new(mem);
    text_add(&t, "@%s", op->fn->name);
    if (callee && callee->role == ROLE_KERNEL) text_add(&t, " calls @%s", callee->name);
    if (op->line && m->file) text_add(&t, ", %s:%d", m->file, op->line);
    return t.s;
}

/* ---- the table ---- */

typedef struct Table {
    Arena *mem;
    OpRow *op;
    int n, cap, ntasks;
} Table;

static void add_func(Table *t, Func *f, int64_t runs, bool entry, const bool *in_model) {
    const char **spelling = func_spellings(t->mem, f);
    for (const Op *op = f->first; op; op = op->next) {
        const Func *callee = op_callee(op);
        if (!op_is_logged(op)) continue;
        bool kernel = callee && callee->role == ROLE_KERNEL;
        OpRow row = {.name = name_of(t->mem, op, spelling),
                     .kind = kernel ? "kernel" : optab[op->kind].name,
                     .where = where_of(t->mem, op),
                     .runs = runs,
                     .nests = callee && !kernel,
                     .waits = op_has(op, F_COMM | F_EFFECT) || op->kind == OP_arrive,
                     .stages = op_has(op, F_EFFECT) && !op_has(op, F_COMM),
                     .task = entry && op_is_task(op) ? t->ntasks++ : -1};
        if (!row.nests) {
            row.work = row.waits ? WORK_MESSAGES
                                 : (int)op_work_kind(op, op_in_model(op, in_model));
            row.flops = op_run_flops(op);
            row.bytes = op_bytes(op);
        }
        PUSH(t->mem, t->op, t->n, t->cap, row);
    }
}

OpRow *logged_ops(Arena *mem, const Module *m, Func *entry, int *n) {
    Func **order = module_order(mem, m);
    const double *runs = func_runs(mem, order, entry);
    const bool *in_model = model_funcs(mem, order);
    Table t = {.mem = mem};
    for (int i = 0; order[i]; i++)
        if (order[i]->role != ROLE_KERNEL && order[i] != entry)
            add_func(&t, order[i], (int64_t)MIN(runs[i], 9e18), false, in_model);
    add_func(&t, entry, 1, true, in_model);
    *n = t.n;
    return t.op;
}
