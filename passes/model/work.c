/* work.c - see work.h. What is needed is counted in the program of a rank before anything in
 * it is fused, tiled or made again: its products, with what is added to them. */
#include "passes/model/work.h"
#include "passes/pipe/schedule.h"

const char *const work_kind_name[WORK_KINDS] = {"products", "attention", "kernels",
                                                "update",   "copies",    "messages"};

/* ---- an op ---- */

static bool is_repeated(const Op *op, int i) {
    for (int k = 0; k < i; k++)
        if (op->in[k] == op->in[i]) return true;
    return false;
}

double op_bytes_by(const Op *op, double (*bytes)(const Type *, const void *),
                   const void *ctx) {
    if (op_has(op, F_VIEW) || !op->nout) return 0;
    bool takes_part = op_has(op, F_MOVE | F_RANK | F_LOOKUP);
    double written = 0, read = 0;
    if (op_has(op, F_TOUCHES)) {
        double added = bytes(&op->in[op->nin - 1]->ty, ctx);
        for (int i = 1; i < op->nin; i++) read += bytes(&op->in[i]->ty, ctx);
        return read + 2 * MIN(added, bytes(&op->out[0]->ty, ctx));
    }
    for (int i = 0; i < op->nout; i++) written += bytes(&op->out[i]->ty, ctx);
    for (int i = 0; i < op->nin; i++) {
        double b = bytes(&op->in[i]->ty, ctx);
        if (!is_repeated(op, i)) read += takes_part ? MIN(b, written) : b;
    }
    return read + written;
}

static double bytes_of(const Type *t, const void *ctx) {
    (void)ctx;
    return (double)type_bytes(t);
}

double op_bytes(const Op *op) {
    return op_bytes_by(op, bytes_of, NULL);
}

static double kernel_flops(const Func *kernel) {
    double n = 0;
    for (const Op *op = kernel->first; op; op = op->next) {
        const Type *t = &op->out[0]->ty;
        if (op_has(op, F_REDUCE)) t = &op->in[0]->ty;
        n += (double)type_count(t);
    }
    return n;
}

double op_run_flops(const Op *op) {
    const Func *callee = op_callee(op);
    if (!callee) return op_flops(op);
    return callee->role == ROLE_KERNEL ? kernel_flops(callee) : 0;
}

static bool only_copies(const Op *op) {
    return op_has(op, F_TYPELESS | F_MOVE | F_RANK | F_CAST | F_FILL);
}

WorkKind op_work_kind(const Op *op, bool in_model) {
    const Func *callee = op_callee(op);
    bool copies = !callee && only_copies(op);
    if (flag_products(optab[op->kind].flags))
        return op_has(op, F_ADDENDS) ? WORK_PRODUCTS : WORK_ATTENTION;
    if (op_has(op, F_COMM | F_EFFECT)) return WORK_MESSAGES;
    if (callee) {
        copies = true;
        for (const Op *k = callee->first; k; k = k->next) copies &= only_copies(k);
    }
    if (copies) return WORK_COPIES;
    return in_model ? WORK_KERNELS : WORK_UPDATE;
}

/* Products of rounded factors are made by the units for them. */
static bool multiplies_bf16(const Op *op) {
    return flag_products(optab[op->kind].flags) && op->in[0]->ty.dt == DT_BF16;
}

/* All of it. */
static WorkRow op_work(const Op *op, bool in_model, double runs) {
    double flops = op_run_flops(op);
    bool narrow = multiplies_bf16(op);
    return (WorkRow){.kind = op_work_kind(op, in_model),
                     .one = {.f32_flops = narrow ? 0 : flops,
                             .bf16_flops = narrow ? flops : 0,
                             .bytes = op_bytes(op)},
                     .runs = runs};
}

double *func_runs(Arena *mem, Func **order, const Func *entry) {
    int n = order_length(order);
    double *runs = NEW_ARRAY(mem, double, (size_t)n + 1);
    runs[entry->nth] = 1;
    for (int i = n - 1; i >= 0; i--)
        for (const Op *op = order[i]->first; op && runs[i] > 0; op = op->next)
            if (op_is_call(op))
                runs[op_func(op)->nth] += runs[i] * (double)call_of(op).times;
    return runs;
}

/* ---- sums ---- */

static void add_times(WorkSum *to, const WorkSum *one, double runs) {
    to->f32_flops += runs * one->f32_flops;
    to->bf16_flops += runs * one->bf16_flops;
    to->bytes += runs * one->bytes;
}

void work_add_op(WorkSum sum[WORK_KINDS], const Op *op, bool in_model, double runs) {
    WorkRow row = op_work(op, in_model, runs);
    add_times(&sum[row.kind], &row.one, runs);
}

WorkSum work_sum(const Work *w, WorkKind kind) {
    WorkSum sum = {0};
    for (int i = 0; i < w->n; i++)
        if (w->row[i].kind == kind) add_times(&sum, &w->row[i].one, w->row[i].runs);
    return sum;
}

WorkSum work_total(const WorkSum sum[WORK_KINDS]) {
    WorkSum all = {0};
    for (int k = 0; k < WORK_KINDS; k++) add_times(&all, &sum[k], 1);
    return all;
}

static double seconds_at(double what, double rate) {
    return what > 0 ? what / rate : 0;
}

double work_bound_seconds(const Work *w, WorkKind kind, const WorkRates *r) {
    double seconds = 0;
    for (int i = 0; i < w->n; i++) {
        const WorkRow *row = &w->row[i];
        if (row->kind != kind) continue;
        double compute = seconds_at(row->one.f32_flops, r->f32_flops) +
                         seconds_at(row->one.bf16_flops, r->bf16_flops);
        seconds += row->runs * MAX(compute, seconds_at(row->one.bytes, r->bytes));
    }
    return seconds;
}

double work_bound_total(const Work *w, const WorkRates *r) {
    double seconds = 0;
    for (int k = 0; k < WORK_KINDS; k++) seconds += work_bound_seconds(w, (WorkKind)k, r);
    return seconds;
}

bool work_asks_bf16(const Work *w) {
    for (int i = 0; i < w->n; i++)
        if (w->row[i].one.bf16_flops > 0) return true;
    return false;
}

/* ---- what is needed ---- */

static void add_products(Arena *mem, const Func *f, double runs, Work *work) {
    for (const Op *op = f->first; op; op = op->next)
        if (flag_products(optab[op->kind].flags))
            PUSH(mem, work->row, work->n, work->cap, op_work(op, true, runs));
}

/* Of what one run of `root` runs. */
static void add_below(Arena *mem, Func **order, const Func *root, double runs,
                      Work *work) {
    const double *of = func_runs(mem, order, root);
    for (int i = 0; order[i]; i++)
        if (of[i] > 0) add_products(mem, order[i], runs * of[i], work);
}

void work_add_needed(Arena *mem, Module *m, const PassOptions *o, Work *work) {
    PassOptions own = *o;
    own.remake = NULL;
    own.remake_axes = NULL;
    own.layer_seen = NULL;
    own.dump_dir = NULL;
    remake_nothing(m);
    /* The program of a rank, without what makes things again or cuts them into parts. */
    passes_run(
        m, passes_part(mem, train_passes, NULL, "pipeline", "remake,halve,keep,beside"),
        &own);
    /* What is added to products becomes a part of them, and gives them their types. */
    passes_run(m, "epilogue", &own);
    Func **order = module_order(mem, m);
    const Func *step = NULL;
    for (int i = 0; order[i]; i++)
        if (func_is_entry(order[i])) step = order[i];
    check(step);
    if (!own.schedule) {
        add_below(mem, order, step, 1, work);
        return;
    }
    const double *runs = func_runs(mem, order, step);
    for (int i = 0; order[i]; i++) {
        const Func *f = order[i];
        if (f->task && runs[i] > 0)
            add_below(mem, order, f, runs[i], &work[own.schedule->stage_of[f->chunk]]);
    }
}

/* ---- the update ---- */

/* By argument of the step: of a parameter, bytes of the part that this rank updates: as much
 * as it has of a state, which is of the same type; where there is none, all. */
static double *updated_bytes(Arena *mem, const Func *step) {
    double *bytes = NEW_ARRAY(mem, double, (size_t)step->narg + 1);
    for (int i = 0; i < step->narg; i++) bytes[i] = (double)type_bytes(&step->arg[i]->ty);
    for (int i = 0; i < step->narg; i++) {
        int param = arg_role(step, i) == ARG_state ? func_arg_like(step, i) : -1;
        if (param >= 0) bytes[param] = bytes[i];
    }
    return bytes;
}

void work_add_update(Arena *mem, const Func *step, Work *work) {
    WorkRow row = {.kind = WORK_UPDATE, .runs = 1};
    const double *bytes = updated_bytes(mem, step);
    for (int k = 0; k < step->nret; k++) {
        int i = step->alias[k];
        ArgRole role = i < 0 ? ARG_none : arg_role(step, i);
        if (role == ARG_state) row.one.bytes += 2 * bytes[i];
        if (role == ARG_param) row.one.bytes += 3 * bytes[i];
    }
    PUSH(mem, work->row, work->n, work->cap, row);
}
