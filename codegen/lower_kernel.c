/* lower_kernel.c - a kernel function as one loop nest over its iteration space.
 *
 *     void kernel(in..., out..., ws):  clear partial sums; in parallel, items: body;
 *                                      add up the threads' partial sums
 *     void body(ctx, begin, end, thread):
 *         for item (a row, or a block of one):
 *             for each phase: numbers of the row; a vector loop over inner that feeds row
 *             sums, column sums, whole sums and stores; a masked tail
 * Vectors of the loop are as wide as two registers, which LLVM makes two instructions next to
 * each other of: a CPU looks ahead some hundred instructions, which the chain of one elementary
 * function fills with what waits for itself. Sums take one half after the other.
 * All values of a vector step are computed before the first store of the step, so that a
 * result may overwrite an operand. Partial sums are added in the order of the threads. */
#include "codegen/lower.h"
#include <math.h>

/* Elements below which starting the threads costs more than they gain. */
enum { SMALL_KERNEL = 1 << 13 };

enum { REGISTERS = 2 }; /* of a vector */

typedef struct Kernel {
    Lower *l;
    Emit *e;
    Arena *mem;
    const Func *f;
    Space s;
    LLVMValueRef *start;  /* by value index: its pointer at the start of the item's row */
    LLVMValueRef *number; /* by value index: the number of the row, once known */
    LLVMValueRef *vector; /* by value index: in the present vector step */
    LLVMValueRef partial; /* this thread's partial sums */
    /* by op, of dropout; see MapContext */
    Part **part;
    LLVMValueRef *part_base, *part_first_row;
    LLVMValueRef base; /* first element of the block within the row */
    LLVMValueRef row;
} Kernel;

static int index_of(const Kernel *k, const Value *v) {
    return (int)(space_value(&k->s, v) - k->s.value);
}

static bool is_narrow(const Value *v) {
    return v->ty.dt == DT_BF16 || v->ty.dt == DT_F16;
}

/* In memory. In registers what is narrow is f32. */
static LLVMTypeRef element_type(const Kernel *k, const Value *v) {
    if (v->ty.dt == DT_F32) return k->e->f32;
    if (v->ty.dt == DT_I32) return k->e->i32;
    if (is_narrow(v)) return k->e->i16;
    fail(EXIT_CONFIG, "@%s: %%%s is %s; generated code takes f32, bf16, f16 and i32",
         k->f->name, v->name, dtype_name[v->ty.dt]);
}

/* What an op makes is rounded at once, used here or stored. */
static LLVMValueRef rounded(const Kernel *k, const Value *v, LLVMValueRef x) {
    return is_narrow(v) ? emit_round_narrow(k->e, v->ty.dt, x) : x;
}

static LLVMValueRef load_one(const Kernel *k, const Value *v, LLVMValueRef at) {
    if (is_narrow(v)) return emit_load_narrow_one(k->e, v->ty.dt, at);
    return emit_load(k->e, element_type(k, v), at, NULL, 4);
}

static void store_one(const Kernel *k, const Value *v, LLVMValueRef x, LLVMValueRef at) {
    if (is_narrow(v))
        emit_store_rounded(k->e, v->ty.dt, x, at, NULL);
    else
        emit_store(k->e, x, at, NULL, 4);
}

/* Offset in bytes of op k's partial sum within a thread's; total in *bytes. */
static int64_t partial_offset(const Space *s, int op, int64_t *bytes) {
    int64_t at = 0, mine = 0;
    for (int k = 0; k < s->nops; k++) {
        if (k == op) mine = at;
        if (s->reduce[k] == REDUCE_COL) at += align_up(s->inner * 4);
        if (s->reduce[k] == REDUCE_ALL) at += 64;
    }
    if (bytes) *bytes = at;
    return mine;
}

int64_t kernel_workspace_bytes(Arena *mem, const Func *kernel, int threads, int vl) {
    (void)vl;
    int64_t bytes;
    Space s = space_of(mem, kernel);
    partial_offset(&s, 0, &bytes);
    return bytes * threads;
}

static bool has_inner(const Kernel *k, const SpaceValue *v) {
    return (v->mask & space_inner_bit(&k->s)) != 0;
}

/* ---- the numbers of a row ---- */

static LLVMValueRef row_number(Kernel *k, const Value *v) {
    int at = index_of(k, v);
    return k->s.value[at].table ? k->start[at] : k->number[at];
}

/* Operands that are one number a row, read before the first phase. */
static void load_numbers(Kernel *k) {
    for (int i = 0; i < k->s.nvalues; i++) {
        const SpaceValue *v = &k->s.value[i];
        if (v->made || v->table || has_inner(k, v)) continue;
        k->number[i] = load_one(k, v->v, k->start[i]);
    }
}

static void compute_row(Kernel *k, int nth) {
    const Op *op = k->s.op[nth];
    LLVMValueRef in[MAX_TERMS];
    for (int i = 0; i < op->nin; i++) in[i] = row_number(k, op->in[i]);
    MapContext c = {.e = k->e, .op = op, .in = in};
    LLVMValueRef out = map_emitter[op->kind] ? map_emitter[op->kind](&c) : in[0];
    k->number[index_of(k, op->out[0])] = rounded(k, op->out[0], out);
}

/* Adds to lane 0 of a whole sum's partial. */
static void add_row_to_all(Kernel *k, int nth) {
    LLVMValueRef at =
        emit_at(k->e, k->e->i8, k->partial, partial_offset(&k->s, nth, NULL));
    LLVMValueRef sum = emit_load(k->e, k->e->f32, at, NULL, 4);
    sum = emit_fadd(k->e, sum, row_number(k, k->s.op[nth]->in[0]));
    emit_store(k->e, sum, at, NULL, 4);
}

static void row_phase(Kernel *k, int phase) {
    for (int i = 0; i < k->s.nops; i++) {
        const SpaceValue *out = space_value(&k->s, k->s.op[i]->out[0]);
        const SpaceValue *in =
            k->s.op[i]->nin ? space_value(&k->s, k->s.op[i]->in[0]) : out;
        if (k->s.reduce[i] == REDUCE_NONE && !has_inner(k, out) && out->phase == phase) {
            compute_row(k, i);
        }
        if (k->s.reduce[i] == REDUCE_ALL && !has_inner(k, in) && in->phase == phase) {
            add_row_to_all(k, i);
        }
    }
    for (int i = 0; i < k->f->nret; i++) {
        const SpaceValue *v = space_value(&k->s, k->f->ret[i]);
        if (has_inner(k, v) || v->at_end || v->phase != phase) continue;
        store_one(k, v->v, row_number(k, v->v), k->start[v - k->s.value]);
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
        if (!has_inner(k, in) || in->phase != phase) continue;
        int carry = kind == REDUCE_COL ? -1 : p->naccs++;
        p->root[p->n++] = (Root){root_kind[kind], i, in->v, carry};
    }
    for (int i = 0; i < k->f->nret; i++) {
        const SpaceValue *v = space_value(s, k->f->ret[i]);
        if (has_inner(k, v) && !v->at_end && v->phase == phase)
            p->root[p->n++] = (Root){ROOT_STORE, i, v->v, -1};
    }
}

static Phase phase_of(Kernel *k, int phase) {
    const Space *s = &k->s;
    Phase p = {.root = NEW_ARRAY(k->mem, Root, (size_t)(s->nops + k->f->nret)),
               .needed = NEW_ARRAY(k->mem, bool, (size_t)s->nops)};
    bool *want = NEW_ARRAY(k->mem, bool, (size_t)s->nvalues);
    add_roots(k, &p, phase);
    for (int i = 0; i < p.n; i++) want[index_of(k, p.root[i].v)] = true;
    for (int i = s->nops - 1; i >= 0; i--) {
        const Op *op = s->op[i];
        const SpaceValue *out = space_value(s, op->out[0]);
        p.needed[i] =
            want[out - s->value] && s->reduce[i] == REDUCE_NONE && has_inner(k, out);
        for (int j = 0; p.needed[i] && j < op->nin; j++)
            want[index_of(k, op->in[j])] = true;
    }
    return p;
}

/* The present lanes of a value; j counts from the block's start. */
static LLVMValueRef lanes(Kernel *k, const Value *v, LLVMValueRef j, LLVMValueRef mask) {
    int at = index_of(k, v);
    const SpaceValue *sv = &k->s.value[at];
    if (sv->table) return k->start[at];
    if (k->vector[at]) return k->vector[at];
    if (!has_inner(k, sv)) return k->vector[at] = emit_splat(k->e, row_number(k, v));
    check(!sv->made);
    LLVMTypeRef type = element_type(k, v);
    LLVMValueRef p = emit_gep(k->e, type, k->start[at], j);
    return k->vector[at] = is_narrow(v)
                               ? emit_load_narrow(k->e, v->ty.dt, p, mask)
                               : emit_load(k->e, emit_vec(type, k->e->vl), p, mask, 4);
}

static LLVMValueRef columns(Kernel *k, LLVMValueRef j) {
    LLVMValueRef at = LLVMBuildTrunc(k->e->b, emit_add(k->e, k->base, j), k->e->i32, "");
    return LLVMBuildAdd(k->e->b, emit_splat(k->e, at), emit_iota(k->e), "");
}

static void add_to_column(Kernel *k, const Root *r, LLVMValueRef v, LLVMValueRef j,
                          LLVMValueRef mask) {
    Emit *e = k->e;
    LLVMValueRef sums = emit_at(e, e->i8, k->partial, partial_offset(&k->s, r->op, NULL));
    LLVMValueRef at = emit_gep(e, e->f32, sums, emit_add(e, k->base, j));
    LLVMValueRef sum = emit_load(e, e->vf32, at, mask, 4);
    emit_store(e, emit_fadd(e, sum, v), at, mask, 4);
}

static LLVMValueRef neutral(Kernel *k, const Root *r) {
    bool sum = optab[k->s.op[r->op]->kind].flags & F_LINEAR;
    return emit_splat(k->e, emit_f32(k->e, sum ? 0 : -INFINITY));
}

static LLVMValueRef accumulate(Kernel *k, const Root *r, LLVMValueRef acc, LLVMValueRef v,
                               LLVMValueRef mask) {
    if (mask) v = emit_select(k->e, mask, v, neutral(k, r));
    bool sum = optab[k->s.op[r->op]->kind].flags & F_LINEAR;
    for (int at = 0; at < emit_lanes(v); at += emit_lanes(acc)) {
        LLVMValueRef part = emit_part(k->e, v, at, emit_lanes(acc));
        acc = sum ? emit_fadd(k->e, acc, part) : emit_fmax(k->e, acc, part);
    }
    return acc;
}

/* One step of vl elements at j; accs are read and replaced. */
static void vector_step(Kernel *k, const Phase *p, LLVMValueRef j, LLVMValueRef mask,
                        LLVMValueRef *accs) {
    memset(k->vector, 0, (size_t)k->s.nvalues * sizeof *k->vector);
    LLVMValueRef row = emit_mul(k->e, k->row, emit_i64(k->e, k->s.inner));
    LLVMValueRef element = emit_add(k->e, row, emit_add(k->e, k->base, j));
    for (int i = 0; i < k->s.nops; i++) {
        if (!p->needed[i]) continue;
        const Op *op = k->s.op[i];
        LLVMValueRef in[MAX_TERMS], out;
        for (int t = 0; t < op->nin; t++) in[t] = lanes(k, op->in[t], j, mask);
        MapContext c = {.e = k->e,
                        .op = op,
                        .in = in,
                        .column = columns(k, j),
                        .element = element,
                        .row = row,
                        .inner = k->s.inner,
                        .part = k->part[i],
                        .base = k->part_base[i],
                        .first_row = k->part_first_row[i]};
        out = map_emitter[op->kind] ? map_emitter[op->kind](&c) : in[0];
        if (!emit_lanes(out)) out = emit_splat(k->e, out);
        out = rounded(k, op->out[0], out);
        k->vector[index_of(k, op->out[0])] = out;
    }
    LLVMValueRef *v = NEW_ARRAY(k->mem, LLVMValueRef, (size_t)p->n);
    for (int i = 0; i < p->n; i++) v[i] = lanes(k, p->root[i].v, j, mask);
    for (int i = 0; i < p->n; i++) {
        const Root *r = &p->root[i];
        if (r->carry >= 0) accs[r->carry] = accumulate(k, r, accs[r->carry], v[i], mask);
        if (r->kind == ROOT_COL) add_to_column(k, r, v[i], j, mask);
        if (r->kind == ROOT_STORE) {
            LLVMValueRef at =
                emit_gep(k->e, element_type(k, r->v), k->start[index_of(k, r->v)], j);
            if (is_narrow(r->v))
                emit_store_rounded(k->e, r->v->ty.dt, v[i], at, mask);
            else
                emit_store(k->e, v[i], at, mask, 4);
        }
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
    vector_step(k, p, loop.i, mask, next);
    loop_end(e, &loop, p->naccs ? next : NULL);
    memcpy(accs, loop.carry, sizeof loop.carry);
}

static void vector_phase(Kernel *k, int phase, LLVMValueRef length) {
    Emit *e = k->e;
    Phase p = phase_of(k, phase);
    if (!p.n) return;
    if (p.naccs > LOOP_CARRY_MAX) die("@%s: too many sums in one kernel", k->f->name);
    LLVMValueRef accs[LOOP_CARRY_MAX];
    for (int i = 0; i < p.n; i++) {
        if (p.root[i].carry >= 0) accs[p.root[i].carry] = neutral(k, &p.root[i]);
    }
    int one = e->vl, wide = k->s.inner < REGISTERS * one ? one : REGISTERS * one;
    LLVMValueRef size = emit_i64(e, wide);
    LLVMValueRef whole = emit_mul(e, emit_div(e, length, size), size);
    emit_set_lanes(e, wide);
    vector_loop(k, &p, emit_i64(e, 0), whole, false, accs);
    emit_set_lanes(e, one);
    if (k->s.inner % wide) vector_loop(k, &p, whole, length, true, accs);
    for (int i = 0; i < p.n; i++) {
        const Root *r = &p.root[i];
        if (r->kind == ROOT_ROW) {
            bool sum = optab[k->s.op[r->op]->kind].flags & F_LINEAR;
            const Value *out = k->s.op[r->op]->out[0];
            LLVMValueRef x = sum ? emit_reduce_add(e, accs[r->carry])
                                 : emit_reduce_max(e, accs[r->carry]);
            k->number[index_of(k, out)] = rounded(k, out, x);
        }
        if (r->kind == ROOT_ALL) {
            LLVMValueRef at =
                emit_at(e, e->i8, k->partial, partial_offset(&k->s, r->op, NULL));
            emit_store(e,
                       emit_fadd(e, emit_load(e, e->vf32, at, NULL, 4), accs[r->carry]),
                       at, NULL, 4);
        }
    }
}

/* ---- an item ---- */

/* Element offset of a value at the item's row and block. */
static LLVMValueRef row_offset(Kernel *k, const SpaceValue *v, LLVMValueRef *index) {
    Emit *e = k->e;
    LLVMValueRef offset = emit_i64(e, 0);
    int64_t stride = has_inner(k, v) ? k->s.inner : 1;
    for (int g = k->s.ngroups - 2; g >= 0; g--) {
        if (!(v->mask >> g & 1)) continue;
        offset = emit_add(e, offset, emit_mul(e, index[g], emit_i64(e, stride)));
        stride *= k->s.size[g];
    }
    return has_inner(k, v) ? emit_add(e, offset, k->base) : offset;
}

static void locate(Kernel *k, LLVMValueRef *pointer) {
    Emit *e = k->e;
    LLVMValueRef index[SPACE_MAX_GROUPS], rest = k->row;
    for (int g = k->s.ngroups - 2; g >= 0; g--) {
        LLVMValueRef size = emit_i64(e, k->s.size[g]);
        index[g] = g ? emit_rem(e, rest, size) : rest;
        if (g) rest = emit_div(e, rest, size);
    }
    for (int i = 0; i < k->s.nvalues; i++) {
        const SpaceValue *v = &k->s.value[i];
        k->start[i] = NULL;
        if (!pointer[i] || v->at_end) continue;
        k->start[i] = v->table ? pointer[i]
                               : emit_gep(e, element_type(k, v->v), pointer[i],
                                          row_offset(k, v, index));
    }
}

static void emit_item(Kernel *k, LLVMValueRef item, LLVMValueRef *pointer) {
    Emit *e = k->e;
    LLVMValueRef length = emit_i64(e, k->s.inner), blocks = emit_i64(e, k->s.blocks);
    k->base = emit_i64(e, 0);
    k->row = item;
    if (k->s.blocks > 1) {
        LLVMValueRef block = emit_i64(e, k->s.block);
        k->row = emit_div(e, item, blocks);
        k->base = emit_mul(e, emit_rem(e, item, blocks), block);
        length = emit_imin(e, block, emit_sub(e, length, k->base));
    }
    memset(k->number, 0, (size_t)k->s.nvalues * sizeof *k->number);
    locate(k, pointer);
    load_numbers(k);
    for (int phase = 0; phase < k->s.nphases; phase++) {
        row_phase(k, phase);
        if (k->s.ngroups) vector_phase(k, phase, length);
    }
}

/* Where the elements of op number i, a dropout, are in the step's tensor. `rng` points to
 * its key. */
static void find_part(Kernel *k, int i, LLVMValueRef rng) {
    const Op *op = k->s.op[i];
    int64_t zigzag = op_int(op, "zigzag", 0);
    Type whole = dropout_whole(op);
    k->part_base[i] = rng_micro_element(k->e, rng, type_count(&whole));
    if (!op_attr(op, "of") && zigzag <= 1) return;
    Part *p = k->part[i] = NEW(k->mem, Part);
    *p = part_of(&k->f->mod->mesh, &whole, zigzag);
    k->part_base[i] = emit_add(k->e, k->part_base[i], part_base(k->e, p));
    k->part_first_row[i] = part_first_row(k->e, p);
}

/* pointer: of arguments, by value index. */
static void find_parts(Kernel *k, const LLVMValueRef *pointer) {
    k->part = NEW_ARRAY(k->mem, Part *, (size_t)k->s.nops);
    k->part_base = NEW_ARRAY(k->mem, LLVMValueRef, (size_t)k->s.nops);
    k->part_first_row = NEW_ARRAY(k->mem, LLVMValueRef, (size_t)k->s.nops);
    for (int i = 0; i < k->s.nops; i++) {
        const Op *op = k->s.op[i];
        if (op->kind == OP_dropout) find_part(k, i, pointer[index_of(k, op->in[1])]);
    }
}

/* void body(ptr ctx, i64 begin, i64 end, i64 thread); ctx: in..., out..., ws */
static LLVMValueRef emit_body(Kernel *k, const char *name) {
    Emit *e = k->e;
    const Func *f = k->f;
    LLVMTypeRef params[] = {e->ptr, e->i64, e->i64, e->i64};
    LLVMValueRef body = emit_func(e, name, e->void_, params, 4, true);
    LLVMValueRef ctx = emit_param(e, 0);
    LLVMValueRef *pointer = NEW_ARRAY(k->mem, LLVMValueRef, (size_t)k->s.nvalues);
    for (int i = 0; i < f->narg + f->nret; i++) {
        const Value *v = i < f->narg ? f->arg[i] : f->ret[i - f->narg];
        if (!space_value(&k->s, v)) continue;
        pointer[index_of(k, v)] =
            emit_load(e, e->ptr, emit_at(e, e->ptr, ctx, i), NULL, 8);
    }
    LLVMValueRef ws =
        emit_load(e, e->ptr, emit_at(e, e->ptr, ctx, f->narg + f->nret), NULL, 8);
    int64_t bytes;
    partial_offset(&k->s, 0, &bytes);
    k->partial =
        emit_gep(e, e->i8, ws, emit_mul(e, emit_param(e, 3), emit_i64(e, bytes)));
    find_parts(k, pointer);
    Loop items;
    loop_begin(e, &items, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    emit_item(k, items.i, pointer);
    loop_end(e, &items, NULL);
    emit_ret(e, NULL);
    return body;
}

/* ---- around the body ---- */

/* out[0..n) = sum over threads of the partial sums at `offset`. */
static void add_columns(Kernel *k, LLVMValueRef ws, int64_t offset, int64_t bytes,
                        LLVMValueRef out) {
    Emit *e = k->e;
    int64_t whole = k->s.inner / e->vl * e->vl;
    for (int tail = 0; tail < 2; tail++) {
        int64_t from = tail ? whole : 0, to = tail ? k->s.inner : whole;
        if (from >= to) continue;
        LLVMValueRef mask = tail ? emit_tail_mask(e, emit_i64(e, to - from)) : NULL;
        Loop l;
        loop_begin(e, &l, emit_i64(e, from), emit_i64(e, to), e->vl, 0, NULL);
        LLVMValueRef sum = NULL;
        for (int t = 0; t < k->l->threads; t++) {
            LLVMValueRef part = emit_at(e, e->i8, ws, offset + t * bytes);
            LLVMValueRef v =
                emit_load(e, e->vf32, emit_gep(e, e->f32, part, l.i), mask, 4);
            sum = sum ? emit_fadd(e, sum, v) : v;
        }
        emit_store(e, sum, emit_gep(e, e->f32, out, l.i), mask, 4);
        loop_end(e, &l, NULL);
    }
}

static void add_all(Kernel *k, LLVMValueRef ws, int64_t offset, int64_t bytes,
                    LLVMValueRef out) {
    Emit *e = k->e;
    LLVMValueRef sum = NULL;
    for (int t = 0; t < k->l->threads; t++) {
        LLVMValueRef v =
            emit_load(e, e->vf32, emit_at(e, e->i8, ws, offset + t * bytes), NULL, 4);
        sum = sum ? emit_fadd(e, sum, v) : v;
    }
    emit_store(e, emit_reduce_add(e, sum), out, NULL, 4);
}

static void finish_sums(Kernel *k, LLVMValueRef ws, int64_t bytes) {
    for (int i = 0; i < k->f->nret; i++) {
        const SpaceValue *v = space_value(&k->s, k->f->ret[i]);
        if (!v->at_end) continue;
        if (v->v->ty.dt != DT_F32) lower_refuse(v->v->def, "sums over rows are f32");
        LLVMValueRef out = emit_param(k->e, k->f->narg + i);
        int op = 0;
        while (k->s.op[op]->out[0] != v->v) op++;
        int64_t offset = partial_offset(&k->s, op, NULL);
        if (k->s.reduce[op] == REDUCE_COL)
            add_columns(k, ws, offset, bytes, out);
        else
            add_all(k, ws, offset, bytes, out);
    }
}

void lower_kernel(Lower *l, const Func *f) {
    Emit *e = l->e;
    Kernel k = {.l = l, .e = e, .mem = l->mem, .f = f, .s = space_of(l->mem, f)};
    size_t n = (size_t)k.s.nvalues;
    k.start = NEW_ARRAY(l->mem, LLVMValueRef, n);
    k.number = NEW_ARRAY(l->mem, LLVMValueRef, n);
    k.vector = NEW_ARRAY(l->mem, LLVMValueRef, n);
    LLVMValueRef body = emit_body(&k, arena_printf(l->mem, "stator.%s.body", f->name));
    int nparams = f->narg + f->nret + 1;
    LLVMTypeRef *params = NEW_ARRAY(l->mem, LLVMTypeRef, (size_t)nparams);
    for (int i = 0; i < nparams; i++) params[i] = e->ptr;
    emit_func(e, arena_printf(l->mem, "stator.%s", f->name), e->void_, params, nparams,
              true);
    LLVMValueRef ctx = emit_alloca(e, 8 * nparams), ws = emit_param(e, nparams - 1);
    for (int i = 0; i < nparams; i++) {
        emit_store(e, emit_param(e, i), emit_at(e, e->ptr, ctx, i), NULL, 8);
    }
    int64_t bytes;
    partial_offset(&k.s, 0, &bytes);
    if (bytes) {
        LLVMBuildMemSet(e->b, ws, LLVMConstInt(e->i8, 0, 0),
                        emit_i64(e, bytes * l->threads), 64);
    }
    int64_t items = k.s.rows * k.s.blocks;
    if (k.s.rows * k.s.inner < SMALL_KERNEL) {
        LLVMValueRef args[] = {ctx, emit_i64(e, 0), emit_i64(e, items), emit_i64(e, 0)};
        emit_call(e, arena_printf(l->mem, "stator.%s.body", f->name), args, 4);
    } else if (bytes) { /* sums of a thread are of its part */
        CALL_RT(l->e, rt_parallel, emit_i64(e, items), body, ctx);
    } else {
        CALL_RT(l->e, rt_parallel_balanced, emit_i64(e, items), body, ctx);
    }
    finish_sums(&k, ws, bytes);
    emit_ret(e, NULL);
}
