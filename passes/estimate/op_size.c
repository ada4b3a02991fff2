/* op_size.c - see op_size.h. */
#include "passes/estimate/op_size.h"
#include "ir/matmul.h"
#include <math.h>
#include <stdlib.h>

/* ---- from the IR ---- */

static int64_t scaled(const SizeScale *scale, int64_t n) {
    return scale && n % scale->factor == 0 ? n / scale->factor * scale->times : n;
}

static double scaled_count(const SizeScale *scale, const Type *t) {
    double n = 1;
    for (int d = 0; d < t->rank; d++) n *= (double)scaled(scale, t->dim[d]);
    return n;
}

int64_t scaled_bytes(const SizeScale *scale, const Type *t) {
    return (int64_t)(scaled_count(scale, t) * dtype_bytes[t->dt]);
}

static double bytes_of(const Type *t, const void *scale) {
    return (double)scaled_bytes(scale, t);
}

static double product_of(const SizeScale *scale, const MatmulAxis *axis, int n) {
    double all = 1;
    for (int i = 0; i < n; i++) all *= (double)scaled(scale, axis[i].size);
    return all;
}

static ProductForm form_of(const Matmul *p) {
    bool first_across = p->k.stride[0] != 1 && p->m.stride[0] == 1;
    bool second_across = p->n.stride[1] != 1 && p->k.stride[1] == 1;
    return (ProductForm)(2 * first_across + second_across);
}

/* One that is no matrix product by strides counts by its flops alone. */
static void size_product(const SizeScale *scale, const Dims *d, OpSize *s) {
    Matmul p;
    if (matmul_of(d, &p)) return;
    s->form = form_of(&p);
    s->n.product = (ProductSize){
        product_of(scale, p.batch, p.nbatch), (double)scaled(scale, p.m.size),
        (double)scaled(scale, p.n.size), (double)scaled(scale, p.k.size)};
}

static double elements_of(const SizeScale *scale, const Op *op) {
    const Type *t = &op->out[0]->ty;
    if (op_has(op, F_REDUCE)) t = &op->in[0]->ty;
    return scaled_count(scale, t);
}

typedef struct Elements {
    ElementCount at[OP_COUNT];
    int n;
} Elements;

static void count_element(Elements *e, const SizeScale *scale, const Op *op) {
    int i = 0;
    if (!op->nout || op_has(op, F_VIEW)) return;
    while (i < e->n && e->at[i].op != op->kind) i++;
    if (i == e->n) e->at[e->n++] = (ElementCount){.op = op->kind};
    e->at[i].count += elements_of(scale, op);
}

static void size_elements(Arena *mem, const SizeScale *scale, const Op *op, OpSize *s) {
    const Func *callee = op_callee(op);
    Elements e;
    e.n = 0;
    if (!callee) count_element(&e, scale, op);
    for (const Op *at = callee ? callee->first : NULL; at; at = at->next)
        count_element(&e, scale, at);
    if (!e.n) return;
    s->nelements = e.n;
    s->element = arena_room(mem, array_bytes((size_t)e.n, sizeof *s->element));
    memcpy(s->element, e.at, (size_t)e.n * sizeof *s->element);
}

static OpSize size_collective(const SizeScale *scale, const Op *op) {
    OpSize s = {.kind = SIZE_COLLECTIVE, .work = WORK_MESSAGES, .op = op->kind};
    s.axes = op_axes(op) & (Axes)~AXES_REVERSED;
    int n = mesh_group_size(&op->fn->mod->mesh, s.axes);
    for (int i = 0; i < op->nin; i++)
        s.n.bytes +=
            (double)message_sent_bytes(op->kind, scaled_bytes(scale, &op->in[i]->ty), n);
    s.late = op_int(op, "late", 0);
    s.type = op->nin ? op->in[0]->ty.dt : DT_F32;
    return s;
}

/* All products grow with the micro-batch, where an operand does. Others wait for the rank that has
 * the most. */
static double scaled_flops(const SizeScale *scale, const Op *op, const Dims *d) {
    double flops = op_flops_of(op, d);
    if (optab[op->kind].slowest) flops *= optab[op->kind].slowest(op);
    bool grows = false;
    for (int i = 0; scale && i < op->nin; i++)
        grows |= type_count(&op->in[i]->ty) % scale->factor == 0;
    return grows ? flops / (double)scale->factor * (double)scale->times : flops;
}

static bool same_place(const Value *a, const Value *b) {
    const Loc of = a->def ? a->loc : (Loc){LOC_ARG, a->nth};
    return b->loc.kind != LOC_NONE && of.kind == b->loc.kind && of.at == b->loc.at;
}

static bool reads_argument(const Op *op, int arg) {
    for (int i = 0; i < op->nin; i++)
        if (!op->in[i]->def && op->in[i]->nth == arg) return true;
    return false;
}

/* Before memory is planned: will the function leave it in the buffer of an argument that the op
 * reads? */
static bool will_overwrite(const Op *op, const Value *result) {
    const Func *f = op->fn;
    for (int r = 0; r < f->nret; r++)
        if (f->ret[r] == result && f->alias[r] >= 0 && reads_argument(op, f->alias[r]))
            return true;
    return false;
}

/* Is the result where an operand is? */
static bool is_in_place(const Op *op, const Value *result) {
    if (result->loc.kind == LOC_NONE) return will_overwrite(op, result);
    for (int i = 0; i < op->nin; i++)
        if (same_place(op->in[i], result)) return true;
    return false;
}

static double overwritten(const SizeScale *scale, const Op *op) {
    double bytes = 0;
    for (int i = 0; i < op->nout; i++)
        if (is_in_place(op, op->out[i])) bytes += bytes_of(&op->out[i]->ty, scale);
    return bytes;
}

/* An op that touches some rows alone reads as many as it writes. */
static double written(const SizeScale *scale, const Op *op, double bytes) {
    double all = 0;
    for (int i = 0; i < op->nout; i++) all += bytes_of(&op->out[i]->ty, scale);
    return MIN(all, op_has(op, F_TOUCHES) ? bytes / 2 : bytes);
}

static OpSize size_compute(Arena *mem, const SizeScale *scale, const Op *op,
                           bool in_model) {
    const Type *first = op->nin ? &op->in[0]->ty : &op->out[0]->ty;
    bool products = flag_products(optab[op->kind].flags);
    Dims d;
    OpSize s = {.kind = SIZE_ELEMENTS,
                .work = op_work_kind(op, in_model),
                .op = op->kind,
                .type = first->dt,
                .width = first->rank ? first->dim[first->rank - 1] : 1};
    s.n.bytes = op_bytes_by(op, bytes_of, scale);
    s.n.written = written(scale, op, s.n.bytes);
    s.n.overwritten = MIN(overwritten(scale, op), s.n.written);
    s.n.first = scaled_count(scale, first);
    if (!products) {
        size_elements(mem, scale, op, &s);
        return s;
    }
    s.kind = op_has(op, F_ADDENDS) ? SIZE_PRODUCT : SIZE_INNER;
    if (!op_dims(op, &d)) return s;
    s.n.flops = scaled_flops(scale, op, &d);
    if (s.kind == SIZE_PRODUCT) size_product(scale, &d, &s);
    return s;
}

OpSize op_size(Arena *mem, const Op *op, bool in_model, const SizeScale *scale) {
    return op_has(op, F_COMM) ? size_collective(scale, op)
                              : size_compute(mem, scale, op, in_model);
}

void op_sizes_add(Arena *mem, OpSizes *sizes, const Op *op, bool in_model,
                  const SizeScale *scale, int *row) {
    OpSize s;
    row[op->id] = -1;
    if (op_calls_ops(op)) {
        s = (OpSize){.kind = SIZE_CALL,
                     .callee = op_func(op)->nth,
                     .times = (double)call_of(op).times};
    } else if (op->kind == OP_arrive) {
        s = (OpSize){.kind = SIZE_ARRIVE, .begun = row[op->in[0]->def->id]};
    } else if (!op_has(op, F_COMM) && (op_has(op, F_EFFECT | F_VIEW) || !op->nout)) {
        return;
    } else {
        s = op_size(mem, op, in_model, scale);
    }
    row[op->id] = sizes->n;
    PUSH(mem, sizes->size, sizes->n, sizes->cap, s);
}

/* ---- seconds ---- */

static double product_seconds(const Machine *m, const MachineRank *r, const OpSize *s) {
    if (s->n.product.rows > 0)
        return machine_product_seconds(m, r, s->type, s->form, &s->n.product);
    return s->n.flops / (m->reached * machine_peak(r, s->type));
}

static const InnerTable *find_inner(const MachineRank *r, const OpSize *s) {
    const InnerTable *best = NULL;
    for (int i = 0; i < r->ninner; i++) {
        const InnerTable *t = &r->inner[i];
        if (t->type != s->type || t->op != s->op) continue;
        if (!best || llabs(t->width - s->width) < llabs(best->width - s->width)) best = t;
    }
    return best;
}

/* Of the matrix between the products, where it goes through memory: each of its numbers
 * costs a product two flops for each number of the width. */
static double between_seconds(const Machine *m, const MachineRank *r, const OpSize *s) {
    double bytes = m->inner_bytes * s->n.flops / (2.0 * (double)MAX(s->width, 1));
    return bytes > 0 ? bytes / machine_memory_rate(r, bytes) : 0;
}

static double inner_seconds(const Machine *m, const MachineRank *r, const OpSize *s) {
    const InnerTable *t = find_inner(r, s);
    double rate = m->inner_reached * machine_peak(r, s->type);
    if (t) rate = curve_at(&t->rate, s->n.flops / s->n.first);
    return s->n.flops / rate + between_seconds(m, r, s);
}

static double element_rate(const Machine *m, const MachineRank *r, int op) {
    for (int i = 0; i < r->nelements; i++)
        if (r->element[i].op == op) return r->element[i].rate;
    return m->element_rate;
}

static double elements_seconds(const Machine *m, const MachineRank *r, const OpSize *s) {
    double seconds = 0;
    for (int i = 0; i < s->nelements; i++) {
        double rate = element_rate(m, r, s->element[i].op);
        if (rate > 0) seconds += s->element[i].count / rate;
    }
    return seconds;
}

/* Products and bytes take turns, roughly: kernels do not compute much, and products do not move much
 * beside. `least`: bytes. */
static Since since(const Machine *m, const MachineRank *r, const OpSize *s, const Done *w,
                   double least) {
    Since t = {.bytes = MAX(w->bytes, least)};
    if (!(r->keeps_seconds > 0)) return t;
    t.seconds = w->flops / (m->reached * machine_peak(r, s->products)) +
                w->bytes / machine_memory_rate(r, INFINITY);
    return t;
}

double op_size_seconds(const Machine *m, const MachineRank *r, const OpSize *s) {
    const Moved bytes = {.read = s->n.bytes - s->n.written,
                         .written = s->n.written,
                         .overwritten = s->n.overwritten,
                         .near = s->n.near,
                         .since_near = since(m, r, s, &s->n.since_near, 0),
                         .since_read = since(m, r, s, &s->n.since_read, s->n.bytes),
                         .since_written =
                             since(m, r, s, &s->n.since_written, s->n.bytes)};
    double moved = machine_memory_seconds(r, &bytes);
    double computed = s->kind == SIZE_PRODUCT ? product_seconds(m, r, s)
                      : s->kind == SIZE_INNER ? inner_seconds(m, r, s)
                                              : elements_seconds(m, r, s);
    double seconds = s->kind == SIZE_ELEMENTS ? moved + computed : MAX(moved, computed);
    return seconds + m->op_start_seconds;
}

double op_size_sent_bytes(const Machine *m, const OpSize *s) {
    return message_width(m, s->op, s->type) * s->n.bytes;
}
