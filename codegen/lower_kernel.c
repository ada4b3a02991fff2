/* lower_kernel.c - a kernel function as one loop nest over its iteration space.
 *
 *     void kernel(in..., out..., ws):  clear partial sums; in parallel, items: body;
 *                                      add up the threads' partial sums
 *     void body(ctx, begin, end, thread):
 *         for item (a row, or a block of one):
 *             for each phase: numbers of the row; a vector loop over inner that feeds row
 *             sums, column sums, whole sums and stores; a masked tail
 * What a phase does is in lower_kernel_phase.c. Partial sums are added in the order of the
 * threads. */
#include "codegen/lower_kernel_phase.h"

/* Elements below which starting the threads costs more than they gain. */
enum { SMALL_KERNEL = 1 << 13 };

int64_t kernel_workspace_bytes(Arena *mem, const Func *kernel, int threads) {
    int64_t bytes;
    Space s = space_of(mem, kernel);
    kernel_sums_at(&s, 0, &bytes);
    return bytes * threads;
}

/* ---- an item ---- */

/* Element offset of a value at the item's row and block. */
static LLVMValueRef row_offset(Kernel *k, const SpaceValue *v, LLVMValueRef *index) {
    Emit *e = k->e;
    LLVMValueRef offset = emit_i64(e, 0);
    int64_t stride = kernel_has_inner(k, v) ? k->s.inner : 1;
    for (int g = k->s.ngroups - 2; g >= 0; g--) {
        if (!(v->mask >> g & 1)) continue;
        offset = emit_add(e, offset, emit_muli(e, index[g], stride));
        stride *= k->s.size[g];
    }
    return kernel_has_inner(k, v) ? emit_add(e, offset, k->base) : offset;
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
                               : emit_gep(e, kernel_element(k, v->v), pointer[i],
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
    kernel_numbers(k);
    for (int phase = 0; phase < k->s.nphases; phase++) kernel_phase(k, phase, length);
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
        if (op->kind == OP_dropout) find_part(k, i, pointer[kernel_index(k, op->in[1])]);
    }
}

/* void body(ptr ctx, i64 begin, i64 end, i64 thread); ctx: in..., out..., ws */
static LLVMValueRef emit_body(Kernel *k, const char *name) {
    Emit *e = k->e;
    const Func *f = k->f;
    LLVMValueRef body = emit_items_func(e, name, NULL);
    LLVMValueRef ctx = emit_param(e, 0);
    LLVMValueRef *pointer = NEW_ARRAY(k->mem, LLVMValueRef, (size_t)k->s.nvalues);
    for (int i = 0; i < f->narg + f->nret; i++) {
        const Value *v = i < f->narg ? f->arg[i] : f->ret[i - f->narg];
        if (!space_value(&k->s, v)) continue;
        pointer[kernel_index(k, v)] = emit_slot(e, ctx, i);
    }
    LLVMValueRef ws = emit_slot(e, ctx, f->narg + f->nret);
    int64_t bytes;
    kernel_sums_at(&k->s, 0, &bytes);
    k->partial = emit_gep(e, e->i8, ws, emit_muli(e, emit_param(e, 3), bytes));
    find_parts(k, pointer);
    Loop items;
    loop_begin(e, &items, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    emit_item(k, items.i, pointer);
    loop_end(e, &items, NULL);
    emit_ret(e, NULL);
    return body;
}

/* ---- around the body ---- */

/* out[0..n), which is v: the sum over threads of the partial sums at `offset`, which are f32; it is
 * rounded once, to the type of v. */
static void add_columns(Kernel *k, const Value *v, LLVMValueRef ws, int64_t offset,
                        int64_t bytes, LLVMValueRef out) {
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
            LLVMValueRef some =
                emit_load(e, e->vf32, emit_gep(e, e->f32, part, l.i), mask, 4);
            sum = sum ? emit_fadd(e, sum, some) : some;
        }
        emit_store_as(e, v->ty.dt, sum, emit_gep(e, kernel_element(k, v), out, l.i),
                      mask);
        loop_end(e, &l, NULL);
    }
}

/* What threads have of the sum or, from `offset` on, of what it lost to rounding. */
static LLVMValueRef add_lanes_of_threads(Kernel *k, LLVMValueRef ws, int64_t offset,
                                         int64_t bytes) {
    Emit *e = k->e;
    LLVMValueRef sum = NULL;
    for (int t = 0; t < k->l->threads; t++) {
        LLVMValueRef some =
            emit_load(e, e->vf32, emit_at(e, e->i8, ws, offset + t * bytes), NULL, 4);
        sum = sum ? emit_fadd(e, sum, some) : some;
    }
    return emit_reduce_add(e, sum);
}

/* A sum that is not finite has lost NaN, which is left out. */
static void add_all(Kernel *k, const Value *v, LLVMValueRef ws, int64_t offset,
                    int64_t bytes, LLVMValueRef out) {
    Emit *e = k->e;
    LLVMValueRef sum = add_lanes_of_threads(k, ws, offset, bytes);
    LLVMValueRef lost = add_lanes_of_threads(k, ws, offset + KERNEL_SUM_BYTES, bytes);
    LLVMValueRef number = emit_fcmp(e, LLVMRealORD, lost, lost);
    lost = emit_select(e, number, lost, emit_f32(e, 0));
    emit_store_as(e, v->ty.dt, emit_fadd(e, sum, lost), out, NULL);
}

static void finish_sums(Kernel *k, LLVMValueRef ws, int64_t bytes) {
    for (int i = 0; i < k->f->nret; i++) {
        const SpaceValue *v = space_value(&k->s, k->f->ret[i]);
        if (!v->at_end) continue;
        LLVMValueRef out = emit_param(k->e, k->f->narg + i);
        int op = 0;
        while (k->s.op[op]->out[0] != v->v) op++;
        int64_t offset = kernel_sums_at(&k->s, op, NULL);
        if (k->s.reduce[op] == REDUCE_COL)
            add_columns(k, v->v, ws, offset, bytes, out);
        else
            add_all(k, v->v, ws, offset, bytes, out);
    }
}

void lower_kernel(Lower *l, const Func *f) {
    Emit *e = l->e;
    Kernel k = {.l = l, .e = e, .mem = l->mem, .f = f, .s = space_of(l->mem, f)};
    size_t n = (size_t)k.s.nvalues;
    k.start = NEW_ARRAY(l->mem, LLVMValueRef, n);
    k.number = NEW_ARRAY(l->mem, LLVMValueRef, n);
    k.vector = NEW_ARRAY(l->mem, LLVMValueRef, n);
    const char *name = lower_symbol(l, f);
    LLVMValueRef body = emit_body(&k, arena_printf(l->mem, "%s:body", name));
    const int nparams = f->narg + f->nret + 1;
    LLVMValueRef ctx = emit_context_func(e, name, nparams, nparams, true);
    LLVMValueRef ws = emit_param(e, nparams - 1);
    int64_t bytes;
    kernel_sums_at(&k.s, 0, &bytes);
    if (bytes) {
        LLVMBuildMemSet(e->b, ws, LLVMConstInt(e->i8, 0, 0),
                        emit_i64(e, bytes * l->threads), 64);
    }
    RtRun how =
        bytes ? RUN_PARALLEL : RUN_BALANCED; /* sums of a thread are of its part */
    if (k.s.rows * k.s.inner < SMALL_KERNEL) how = RUN_ALONE;
    rt_run(e, body, ctx, emit_i64(e, k.s.rows * k.s.blocks), how);
    finish_sums(&k, ws, bytes);
    emit_ret(e, NULL);
}
