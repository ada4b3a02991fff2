/* job_columns.c - what the arguments of a user's module take of a sample; see job.h. */
#include "frontend/model/job.h"

bool job_is_sample(const Func *f, int i) {
    ArgRole role = arg_role(f, i);
    return role == ARG_tokens || role == ARG_labels || role == ARG_data;
}

/* ---- the range of integers ---- */

/* What uses of an integer ask of it: less than `most`, and at least 0 where it is the row
 * of a table. A label below 0 counts for nothing. */
typedef struct IntRange {
    int64_t most;
    bool indexes;
} IntRange;

static void range_narrow(IntRange *r, IntRange by) {
    r->most = MIN(r->most, by.most);
    r->indexes |= by.indexes;
}

/* What is known of a function. */
typedef struct Ranges {
    IntRange *asked; /* of each argument */
    int *from;       /* per result: the argument whose elements it has; -1: none */
} Ranges;

/* What op asks of operand i; of: by number of the function. */
static IntRange asked_by(const Op *op, int i, const Ranges *of) {
    IntRange all = {(int64_t)INT32_MAX + 1, false};
    if (op_is_call(op)) return of[op_callee(op)->nth].asked[i];
    bool made = op->kind == OP_onehot; /* of the classes of its result */
    if (i != !made) return all;
    const Type *ty = made ? &op->out[0]->ty : &op->in[0]->ty;
    if (op->kind == OP_embed) return (IntRange){ty->dim[0], true};
    bool classes = made || op->kind == OP_xent || op->kind == OP_pick;
    return classes ? (IntRange){ty->dim[ty->rank - 1], false} : all;
}

/* The operand whose elements result `nth` of op has, in another order, under another shape or in
 * part; NULL: of none. */
static const Value *elements_of(const Op *op, int nth, const Ranges *of) {
    if (op_is_call(op)) {
        int i = of[op_callee(op)->nth].from[nth];
        return i < 0 ? NULL : op->in[i];
    }
    return op->nin == 1 && op_has(op, F_MOVE | F_TYPELESS) ? op->in[0] : NULL;
}

/* The argument that v has its elements of; NULL: none. */
static const Value *argument_of(const Value *v, const Ranges *of) {
    while (v && v->def) v = elements_of(v->def, v->nth, of);
    return v;
}

static Ranges ranges_of(Arena *mem, const Func *f, const Ranges *of) {
    Ranges r = {NEW_ARRAY(mem, IntRange, (size_t)f->narg + 1),
                NEW_ARRAY(mem, int, (size_t)f->nret + 1)};
    for (int k = 0; k < f->narg; k++) r.asked[k].most = (int64_t)INT32_MAX + 1;
    for (const Op *op = f->first; op; op = op->next)
        for (int i = 0; i < op->nin; i++) {
            const Value *arg =
                op->in[i]->ty.dt == DT_I32 ? argument_of(op->in[i], of) : NULL;
            if (arg) range_narrow(&r.asked[arg->nth], asked_by(op, i, of));
        }
    for (int k = 0; k < f->nret; k++) {
        const Value *arg = argument_of(f->ret[k], of);
        r.from[k] = arg ? arg->nth : -1;
    }
    return r;
}

/* Of the model's arguments, through the functions that it calls, which come first. */
static const IntRange *model_ranges(Arena *mem, const Func *model) {
    Func **order = module_order(mem, model->mod);
    int n = order_length(order);
    Ranges *of = NEW_ARRAY(mem, Ranges, (size_t)n);
    for (int i = 0; i < n; i++) of[i] = ranges_of(mem, order[i], of);
    return of[model->nth].asked;
}

/* ---- columns ---- */

static DataColumn column_of(const Func *f, int i, IntRange range) {
    const Type *ty = &f->arg[i]->ty;
    DataColumn c = {.name = f->arg[i]->name,
                    .is_float = ty->dt == DT_F32,
                    .rank = ty->rank - 1,
                    .count = 1};
    for (int d = 1; d < ty->rank; d++) c.count *= c.dim[d - 1] = ty->dim[d];
    if (c.is_float) return c;
    c.low = range.indexes ? 0 : INT32_MIN;
    c.high = range.most;
    return c;
}

DataColumn job_column(Arena *mem, const Func *model, int i) {
    return column_of(model, i, model_ranges(mem, model)[i]);
}

DataColumn *job_columns(Arena *mem, const Func *model, int *n) {
    DataColumn *column = NEW_ARRAY(mem, DataColumn, (size_t)model->narg + 1);
    const IntRange *range = model_ranges(mem, model);
    *n = 0;
    for (int i = 0; i < model->narg; i++)
        if (job_is_sample(model, i) && value_uses(model, model->arg[i]))
            column[(*n)++] = column_of(model, i, range[i]);
    return column;
}
