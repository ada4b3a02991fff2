/* lower_kernel_phase.c - see lower_kernel_phase.h.
 *
 * Vectors of the loop are as wide as two registers, which LLVM makes two instructions next to
 * each other of: a CPU looks ahead some hundred instructions, which the chain of one elementary
 * function fills with what waits for itself. So are sums and maxima, whose halves meet in the end.
 * All values of a vector step are computed before the first store of the step, so that a
 * result may overwrite an operand. */
#include "codegen/lower_kernel_phase.h"
#include "ir/placement.h"
#include <math.h>

/* Registers of a vector; bytes of a row, beyond which a CPU does not fetch the next by itself. */
enum { REGISTERS = 2, LONG_BYTES = 1 << 14 };
_Static_assert((int)SPACE_MAX_SUMS <= LOOP_CARRY_MAX, "a phase carries every sum");

int kernel_index(const Kernel *k, const Value *v) {
    return (int)(space_value(&k->s, v) - k->s.value);
}

/* In registers what is narrow is f32. */
LLVMTypeRef kernel_element(const Kernel *k, const Value *v) {
    if (v->ty.dt == DT_F32) return k->e->f32;
    if (v->ty.dt == DT_I32) return k->e->i32;
    if (dtype_is_narrow(v->ty.dt)) return k->e->i16;
    const Op *at = v->def;
    for (int i = 0; !at; i++)
        if (op_reads_value(k->s.op[i], v)) at = k->s.op[i];
    fail_op(at, "%%%s is %s; generated code takes f32, bf16, f16 and i32", v->name,
            dtype_name[v->ty.dt]);
}

/* What an op makes is rounded at once, used here or stored. */
static LLVMValueRef rounded(const Kernel *k, const Value *v, LLVMValueRef x) {
    return dtype_is_narrow(v->ty.dt) ? emit_round_narrow(k->e, v->ty.dt, x) : x;
}

static LLVMValueRef load_one(const Kernel *k, const Value *v, LLVMValueRef at) {
    if (dtype_is_narrow(v->ty.dt)) return emit_load_narrow_one(k->e, v->ty.dt, at);
    return emit_load(k->e, kernel_element(k, v), at, NULL, 4);
}

int64_t kernel_sums_at(const Space *s, int op, int64_t *bytes) {
    int64_t at = 0, mine = 0;
    for (int k = 0; k < s->nops; k++) {
        if (k == op) mine = at;
        if (s->reduce[k] == REDUCE_COL) at += align_up(s->inner * 4);
        if (s->reduce[k] == REDUCE_ALL) at += 2 * KERNEL_SUM_BYTES;
    }
    if (bytes) *bytes = at;
    return mine;
}

bool kernel_has_inner(const Kernel *k, const SpaceValue *v) {
    return (v->mask & space_inner_bit(&k->s)) != 0;
}

/* ---- the numbers of a row ---- */

static LLVMValueRef row_number(Kernel *k, const Value *v) {
    int at = kernel_index(k, v);
    return k->s.value[at].table ? k->start[at] : k->number[at];
}

void kernel_numbers(Kernel *k) {
    for (int i = 0; i < k->s.nvalues; i++) {
        const SpaceValue *v = &k->s.value[i];
        if (v->made || v->table || kernel_has_inner(k, v)) continue;
        k->number[i] = load_one(k, v->v, k->start[i]);
    }
}

/* Op number nth on the operands, and at the elements, that c has. */
static LLVMValueRef map_op(const Kernel *k, int nth, MapContext c) {
    const Op *op = c.op = k->s.op[nth];
    c.e = k->e;
    c.inner = k->s.inner;
    c.part = k->part[nth];
    c.base = k->part_base[nth];
    c.first_row = k->part_first_row[nth];
    return map_emitter[op->kind] ? map_emitter[op->kind](&c) : c.in[0];
}

static void compute_row(Kernel *k, int nth) {
    const Op *op = k->s.op[nth];
    LLVMValueRef in[MAX_TERMS];
    for (int i = 0; i < op->nin; i++) in[i] = row_number(k, op->in[i]);
    MapContext c = {.in = in};
    bool alone = !space_full(&k->s); /* one element is all that the kernel has */
    if (alone) c.element = c.row = emit_i64(k->e, 0);
    LLVMValueRef out = map_op(k, nth, c);
    k->number[kernel_index(k, op->out[0])] = rounded(k, op->out[0], out);
}

/* Adds a number or a vector to a whole sum's partial, and behind it what the addition rounds off
 * (Knuth's two-sum): numbers of a million rows one after the other would lose the fourth decimal. */
static void add_to_all(Kernel *k, int nth, LLVMTypeRef type, LLVMValueRef x) {
    Emit *e = k->e;
    LLVMValueRef at = emit_at(e, e->i8, k->partial, kernel_sums_at(&k->s, nth, NULL));
    LLVMValueRef lost_at = emit_at(e, e->i8, at, KERNEL_SUM_BYTES);
    LLVMValueRef old = emit_load(e, type, at, NULL, 4), sum = emit_fadd(e, old, x);
    LLVMValueRef added = emit_fsub(e, sum, old);
    LLVMValueRef lost =
        emit_fadd(e, emit_fsub(e, old, emit_fsub(e, sum, added)), emit_fsub(e, x, added));
    emit_store(e, sum, at, NULL, 4);
    emit_store(e, emit_fadd(e, emit_load(e, type, lost_at, NULL, 4), lost), lost_at, NULL,
               4);
}

static void row_phase(Kernel *k, int phase) {
    for (int i = 0; i < k->s.nops; i++) {
        const SpaceValue *out = space_value(&k->s, k->s.op[i]->out[0]);
        const SpaceValue *in =
            k->s.op[i]->nin ? space_value(&k->s, k->s.op[i]->in[0]) : out;
        if (k->s.reduce[i] == REDUCE_NONE && !kernel_has_inner(k, out) &&
            out->phase == phase) {
            compute_row(k, i);
        }
        if (k->s.reduce[i] == REDUCE_ALL && !kernel_has_inner(k, in) &&
            in->phase == phase) {
            add_to_all(k, i, k->e->f32, row_number(k, k->s.op[i]->in[0]));
        }
    }
    for (int i = 0; i < k->f->nret; i++) {
        const SpaceValue *v = space_value(&k->s, k->f->ret[i]);
        if (kernel_has_inner(k, v) || v->at_end || v->phase != phase) continue;
        emit_store_rounded(k->e, v->v->ty.dt, row_number(k, v->v),
                           k->start[v - k->s.value], NULL);
    }
}

/* ---- a vector step ---- */

typedef enum RootKind { ROOT_ROW, ROOT_COL, ROOT_ALL, ROOT_STORE } RootKind;
typedef struct Root {
    RootKind kind;
    int op;    /* of the reduction */
    Value *v;  /* what is reduced or stored */
    int carry; /* accumulator, or -1 */
} Root;

typedef struct Phase {
    Root *root;
    int n, naccs;
    bool *needed; /* by op */
    bool fetches; /* what the next row reads */
} Phase;

/* Reductions and stores of the phase. */
static void add_roots(Kernel *k, Phase *p, int phase) {
    static const RootKind root_kind[] = {
        [REDUCE_ROW] = ROOT_ROW, [REDUCE_COL] = ROOT_COL, [REDUCE_ALL] = ROOT_ALL};
    const Space *s = &k->s;
    for (int i = 0; i < s->nops; i++) {
        ReduceKind kind = s->reduce[i];
        if (kind == REDUCE_NONE) continue;
        const SpaceValue *in = space_value(s, s->op[i]->in[0]);
        if (!kernel_has_inner(k, in) || in->phase != phase) continue;
        int carry = kind == REDUCE_COL ? -1 : p->naccs++;
        p->root[p->n++] = (Root){root_kind[kind], i, in->v, carry};
    }
    for (int i = 0; i < k->f->nret; i++) {
        const SpaceValue *v = space_value(s, k->f->ret[i]);
        if (kernel_has_inner(k, v) && !v->at_end && v->phase == phase)
            p->root[p->n++] = (Root){ROOT_STORE, i, v->v, -1};
    }
}

static Phase phase_of(Kernel *k, int phase) {
    const Space *s = &k->s;
    Phase p = {.fetches = s->nphases > 1 && phase == s->nphases - 1,
               .root = NEW_ARRAY(k->mem, Root, (size_t)(s->nops + k->f->nret)),
               .needed = NEW_ARRAY(k->mem, bool, (size_t)s->nops)};
    bool *want = NEW_ARRAY(k->mem, bool, (size_t)s->nvalues);
    add_roots(k, &p, phase);
    for (int i = 0; i < p.n; i++) want[kernel_index(k, p.root[i].v)] = true;
    for (int i = s->nops - 1; i >= 0; i--) {
        const Op *op = s->op[i];
        const SpaceValue *out = space_value(s, op->out[0]);
        p.needed[i] = want[out - s->value] && s->reduce[i] == REDUCE_NONE &&
                      kernel_has_inner(k, out);
        for (int j = 0; p.needed[i] && j < op->nin; j++)
            want[kernel_index(k, op->in[j])] = true;
    }
    return p;
}

/* The present lanes of a value; j counts from the block's start. */
static LLVMValueRef lanes(Kernel *k, const Value *v, LLVMValueRef j, LLVMValueRef mask) {
    int at = kernel_index(k, v);
    const SpaceValue *sv = &k->s.value[at];
    if (sv->table) return k->start[at];
    if (k->vector[at]) return k->vector[at];
    if (!kernel_has_inner(k, sv))
        return k->vector[at] = emit_splat(k->e, row_number(k, v));
    check(!sv->made);
    LLVMValueRef p = emit_gep(k->e, kernel_element(k, v), k->start[at], j);
    return k->vector[at] = emit_load_as(k->e, v->ty.dt, p, mask);
}

static LLVMValueRef columns(Kernel *k, LLVMValueRef j) {
    LLVMValueRef at = LLVMBuildTrunc(k->e->b, emit_add(k->e, k->base, j), k->e->i32, "");
    return LLVMBuildAdd(k->e->b, emit_splat(k->e, at), emit_iota(k->e), "");
}

static void add_to_column(Kernel *k, const Root *r, LLVMValueRef v, LLVMValueRef j,
                          LLVMValueRef mask) {
    Emit *e = k->e;
    LLVMValueRef sums = emit_at(e, e->i8, k->partial, kernel_sums_at(&k->s, r->op, NULL));
    LLVMValueRef at = emit_gep(e, e->f32, sums, emit_add(e, k->base, j));
    LLVMValueRef sum = emit_load(e, e->vf32, at, mask, 4);
    emit_store(e, emit_fadd(e, sum, v), at, mask, 4);
}

static bool is_sum(const Kernel *k, const Root *r) {
    return optab[k->s.op[r->op]->kind].flags & F_LINEAR;
}

static LLVMValueRef neutral(Kernel *k, const Root *r) {
    return emit_splat(k->e, emit_f32(k->e, is_sum(k, r) ? 0 : -INFINITY));
}

/* Of a and b, which has been seen before: in maxima only that waits for the step before. */
static LLVMValueRef both(Kernel *k, const Root *r, LLVMValueRef a, LLVMValueRef b) {
    return is_sum(k, r) ? emit_fadd(k->e, b, a) : emit_fmaximum(k->e, a, b);
}

static LLVMValueRef accumulate(Kernel *k, const Root *r, LLVMValueRef acc, LLVMValueRef v,
                               LLVMValueRef mask) {
    if (mask) v = emit_select(k->e, mask, v, neutral(k, r));
    return both(k, r, v, acc);
}

/* The halves of an accumulator of `wide` lanes, if that is more than the present ones. */
static LLVMValueRef folded(Kernel *k, const Root *r, LLVMValueRef acc, int wide) {
    int lanes = k->e->vl;
    if (wide == lanes) return acc;
    return both(k, r, emit_part(k->e, acc, lanes, lanes), emit_part(k->e, acc, 0, lanes));
}

/* One step of vl elements at j; accs are read and replaced. */
static void vector_step(Kernel *k, const Phase *p, LLVMValueRef j, LLVMValueRef mask,
                        LLVMValueRef *accs) {
    memset(k->vector, 0, (size_t)k->s.nvalues * sizeof *k->vector);
    LLVMValueRef row = emit_muli(k->e, k->row, k->s.inner);
    LLVMValueRef element = emit_add(k->e, row, emit_add(k->e, k->base, j));
    for (int i = 0; i < k->s.nops; i++) {
        if (!p->needed[i]) continue;
        const Op *op = k->s.op[i];
        LLVMValueRef in[MAX_TERMS], out;
        for (int t = 0; t < op->nin; t++) in[t] = lanes(k, op->in[t], j, mask);
        const MapContext c = {
            .in = in, .column = columns(k, j), .element = element, .row = row};
        out = map_op(k, i, c);
        if (!emit_lanes(out)) out = emit_splat(k->e, out);
        out = rounded(k, op->out[0], out);
        k->vector[kernel_index(k, op->out[0])] = out;
    }
    LLVMValueRef *v = NEW_ARRAY(k->mem, LLVMValueRef, (size_t)p->n);
    for (int i = 0; i < p->n; i++) v[i] = lanes(k, p->root[i].v, j, mask);
    for (int i = 0; i < p->n; i++) {
        const Root *r = &p->root[i];
        if (r->carry >= 0) accs[r->carry] = accumulate(k, r, accs[r->carry], v[i], mask);
        if (r->kind == ROOT_COL) add_to_column(k, r, v[i], j, mask);
        if (r->kind == ROOT_STORE) {
            LLVMValueRef at = emit_gep(k->e, kernel_element(k, r->v),
                                       k->start[kernel_index(k, r->v)], j);
            emit_store_rounded(k->e, r->v->ty.dt, v[i], at, mask);
        }
    }
}

/* What the next row reads first, with the last phase of a row: with one phase after the other that
 * reads it again from the second cache, the first would wait for memory alone. */
static void fetch_next_row(Kernel *k, LLVMValueRef j) {
    Emit *e = k->e;
    const uint32_t all = space_full(&k->s);
    for (int i = 0; i < k->f->narg; i++) {
        const SpaceValue *v = space_value(&k->s, k->f->arg[i]);
        if (!v || v->made || v->table || (v->mask & all) != all) continue;
        const int64_t each = (int64_t)dtype_bytes[v->v->ty.dt];
        if (k->s.inner * each < LONG_BYTES) continue;
        LLVMValueRef at = emit_addi(e, j, k->s.inner);
        at = emit_gep(e, kernel_element(k, v->v), k->start[v - k->s.value], at);
        for (int64_t byte = 0; byte < e->vl * each; byte += EMIT_LINE_BYTES)
            emit_prefetch(e, emit_at(e, e->i8, at, byte), false, 2);
    }
}

/* The elements between `from` and `to`; masked: their number may be no multiple of a step. */
static void vector_loop(Kernel *k, const Phase *p, LLVMValueRef from, LLVMValueRef to,
                        bool masked, LLVMValueRef *accs) {
    Emit *e = k->e;
    Loop loop;
    LLVMValueRef next[LOOP_CARRY_MAX];
    loop_begin(e, &loop, from, to, e->vl, p->naccs, accs);
    memcpy(next, loop.carry, sizeof next);
    LLVMValueRef mask = masked ? emit_tail_mask(e, emit_sub(e, to, loop.i)) : NULL;
    if (p->fetches && !masked) fetch_next_row(k, loop.i);
    vector_step(k, p, loop.i, mask, next);
    loop_end(e, &loop, p->naccs ? next : NULL);
    memcpy(accs, loop.carry, sizeof loop.carry);
}

static void vector_phase(Kernel *k, int phase, LLVMValueRef length) {
    Emit *e = k->e;
    Phase p = phase_of(k, phase);
    if (!p.n) return;
    LLVMValueRef accs[LOOP_CARRY_MAX];
    int one = e->vl, wide = k->s.inner < REGISTERS * one ? one : REGISTERS * one;
    LLVMValueRef size = emit_i64(e, wide);
    LLVMValueRef whole = emit_mul(e, emit_div(e, length, size), size);
    emit_set_lanes(e, wide);
    for (int i = 0; i < p.n; i++)
        if (p.root[i].carry >= 0) accs[p.root[i].carry] = neutral(k, &p.root[i]);
    vector_loop(k, &p, emit_i64(e, 0), whole, false, accs);
    emit_set_lanes(e, one);
    for (int i = 0; i < p.n; i++) {
        LLVMValueRef *acc = p.root[i].carry >= 0 ? &accs[p.root[i].carry] : NULL;
        if (acc) *acc = folded(k, &p.root[i], *acc, wide);
    }
    if (k->s.inner % wide) vector_loop(k, &p, whole, length, true, accs);
    for (int i = 0; i < p.n; i++) {
        const Root *r = &p.root[i];
        if (r->kind == ROOT_ROW) {
            const Value *out = k->s.op[r->op]->out[0];
            LLVMValueRef x = is_sum(k, r) ? emit_reduce_add(e, accs[r->carry])
                                          : emit_reduce_max(e, accs[r->carry]);
            k->number[kernel_index(k, out)] = rounded(k, out, x);
        }
        if (r->kind == ROOT_ALL) add_to_all(k, r->op, e->vf32, accs[r->carry]);
    }
}

void kernel_phase(Kernel *k, int phase, LLVMValueRef length) {
    row_phase(k, phase);
    if (k->s.ngroups) vector_phase(k, phase, length);
}
