/* lower.c - functions, calls and loops. */
#include "codegen/lower.h"
#include "ir/placement.h"

static const char *symbol(Lower *l, const Func *f) {
    return arena_printf(l->mem, "stator.%s", f->name);
}

static LLVMTypeRef *pointers(Lower *l, int n) {
    LLVMTypeRef *t = NEW_ARRAY(l->mem, LLVMTypeRef, (size_t)n);
    for (int i = 0; i < n; i++) t[i] = l->e->ptr;
    return t;
}

/* ---- calls ---- */

static int64_t carry_bytes(const Op *op, const Func *callee, int i) {
    return callee->alias[i] >= 0 ? 0 : align_up(type_bytes(&op->out[i]->ty));
}

static int64_t call_workspace(const Op *op, Lower *l) {
    const Func *callee = op_func(op);
    if (callee->role == ROLE_KERNEL) {
        return kernel_workspace_bytes(l->mem, callee, l->threads, l->vl);
    }
    int64_t bytes = 0;
    for (int i = 0, n = call_of(op).carry; i < n; i++)
        bytes += carry_bytes(op, callee, i);
    return bytes;
}

static void call_kernel(Lower *l, const Op *op) {
    LLVMValueRef *args =
        NEW_ARRAY(l->mem, LLVMValueRef, (size_t)(op->nin + op->nout + 1));
    int n = 0;
    for (int i = 0; i < op->nin; i++) args[n++] = lower_pointer(l, op->in[i]);
    for (int i = 0; i < op->nout; i++) args[n++] = lower_pointer(l, op->out[i]);
    args[n++] = lower_workspace(l, op, 0);
    emit_call(l->e, symbol(l, op_func(op)), args, n);
}

/* Pointers for one run: `at` is the slice (NULL outside loops), `run` its number. */
typedef struct Run {
    LLVMValueRef run, at, last; /* last: number of the last run */
    LLVMValueRef *carry;        /* what the run reads */
    LLVMValueRef *carry_out;    /* filled: where it writes */
} Run;

static LLVMValueRef slice(Lower *l, LLVMValueRef base, const Type *slice_type,
                          LLVMValueRef at) {
    if (!at) return base;
    LLVMValueRef bytes = emit_i64(l->e, type_bytes(slice_type));
    return emit_gep(l->e, l->e->i8, base, emit_mul(l->e, at, bytes));
}

/* Carried values that are not overwritten in place alternate between the result and a
 * second buffer, so that the last run writes the result. */
static LLVMValueRef carry_target(Lower *l, const Op *op, const Func *callee, int i,
                                 int64_t *skip, const Run *r) {
    LLVMValueRef result = lower_pointer(l, op->out[i]);
    int64_t bytes = carry_bytes(op, callee, i);
    if (!bytes) return result;
    LLVMValueRef other = lower_workspace(l, op, *skip);
    *skip += bytes;
    LLVMValueRef left = emit_sub(l->e, r->last, r->run);
    LLVMValueRef odd = LLVMBuildTrunc(l->e->b, left, l->e->i1, "");
    return emit_select(l->e, odd, other, result);
}

static void call_once(Lower *l, const Op *op, Run *r) {
    const Call c = call_of(op);
    const Func *callee = c.f;
    int n = 0;
    LLVMValueRef *args =
        NEW_ARRAY(l->mem, LLVMValueRef, (size_t)(op->nin + op->nout + 2));
    int64_t skip = align_up(callee->frame_bytes);
    args[n++] = l->products;
    args[n++] = lower_workspace(l, op, 0);
    for (int i = 0; i < op->nin; i++) {
        if (i < c.carry) {
            args[n++] = r->carry[i];
        } else {
            args[n++] = slice(l, lower_pointer(l, op->in[i]), &callee->arg[i]->ty,
                              call_slices(&c, i) ? r->at : NULL);
        }
    }
    for (int i = 0; i < op->nout; i++) {
        if (i < c.carry) {
            args[n++] = r->carry_out[i] = carry_target(l, op, callee, i, &skip, r);
        } else {
            args[n++] =
                slice(l, lower_pointer(l, op->out[i]), &callee->ret[i]->ty, r->at);
        }
    }
    emit_call(l->e, symbol(l, callee), args, n);
}

static void call_loop(Lower *l, const Op *op) {
    const Call c = call_of(op);
    LLVMTypeRef i64 = l->e->i64;
    if (c.carry > LOOP_CARRY_MAX) lower_refuse(op, "too many carried values");
    LLVMValueRef init[LOOP_CARRY_MAX], out[LOOP_CARRY_MAX];
    for (int i = 0; i < c.carry; i++) init[i] = lower_pointer(l, op->in[i]);
    Loop loop;
    loop_begin(l->e, &loop, LLVMConstInt(i64, 0, 0), emit_i64(l->e, c.times), 1, c.carry,
               init);
    Run r = {.run = loop.i,
             .at = loop.i,
             .last = emit_i64(l->e, c.times - 1),
             .carry = loop.carry,
             .carry_out = out};
    if (c.reverse) r.at = emit_sub(l->e, r.last, loop.i);
    call_once(l, op, &r);
    loop_end(l->e, &loop, c.carry ? out : NULL);
}

void lower_call(Lower *l, const Op *op) {
    Run r = {0};
    if (op_func(op)->role == ROLE_KERNEL)
        call_kernel(l, op);
    else if (call_of(op).loop)
        call_loop(l, op);
    else
        call_once(l, op, &r);
}

/* ---- functions ---- */

#define OP(name, ...)        [OP_##name] = lower_##name,
#define MAP(name, ...)       [OP_##name] = NULL,
#define COMPOSITE(name, ...) [OP_##name] = NULL,
static void (*const lowering[OP_COUNT])(Lower *, const Op *) = {
#include "ir/ops.def"
};
#undef OP
#undef MAP
#undef COMPOSITE

/* Time since the last tick belongs to this op. */
static void tick(Lower *l, const Op *op) {
    LLVMValueRef number = emit_i64(l->e, l->nticked);
    PUSH(l->mem, l->ticked, l->nticked, l->ticked_cap, op);
    CALL_RT(l->e, rt_tick, number);
}

static void lower_func(Lower *l, const Func *f) {
    Emit *e = l->e;
    int n = 2 + f->narg + f->nret;
    emit_func(e, symbol(l, f), e->void_, pointers(l, n), n, true);
    l->products = emit_param(e, 0);
    l->frame = emit_param(e, 1);
    l->arg = NEW_ARRAY(l->mem, LLVMValueRef, (size_t)f->narg);
    l->ret = NEW_ARRAY(l->mem, LLVMValueRef, (size_t)f->nret);
    for (int i = 0; i < f->narg; i++) l->arg[i] = emit_param(e, 2 + i);
    for (int i = 0; i < f->nret; i++) l->ret[i] = emit_param(e, 2 + f->narg + i);
    l->task = l->m->stages && func_is_entry(f) ? op_tasks(l->mem, f) : NULL;
    for (const Op *op = f->first; op; op = op->next) {
        if (!lowering[op->kind]) die("%s reached code generation", optab[op->kind].name);
        lowering[op->kind](l, op);
        if (l->profile) tick(l, op);
    }
    emit_ret(e, NULL);
}

/* void stator_entry(products, frame, ptr in[], ptr out[]) */
static void lower_entry(Lower *l, const Func *f) {
    Emit *e = l->e;
    emit_func(e, "stator_entry", e->void_, pointers(l, 4), 4, false);
    LLVMValueRef *args = NEW_ARRAY(l->mem, LLVMValueRef, (size_t)(2 + f->narg + f->nret));
    int n = 0;
    args[n++] = emit_param(e, 0);
    args[n++] = emit_param(e, 1);
    for (int i = 0; i < f->narg + f->nret; i++) {
        LLVMValueRef table = emit_param(e, i < f->narg ? 2 : 3);
        LLVMValueRef at = emit_at(e, e->ptr, table, i < f->narg ? i : i - f->narg);
        args[n++] = emit_load(e, e->ptr, at, NULL, 8);
    }
    emit_call(e, symbol(l, f), args, n);
    emit_ret(e, NULL);
}

void lower_module(Lower *l, const Func *entry) {
    Func **order = module_order(l->mem, l->m);
    for (int i = 0; order[i]; i++) {
        if (order[i]->role == ROLE_KERNEL)
            lower_kernel(l, order[i]);
        else
            lower_func(l, order[i]);
    }
    lower_entry(l, entry);
}

int64_t lower_workspace_bytes(const Op *op, void *lower) {
    Lower *l = lower;
    if (op_is_call(op)) return call_workspace(op, l);
    if (op->kind == OP_dot) {
        int i = lower_product(l, op); /* may move the table */
        return (int64_t)dnnl_matmul_scratch_bytes(l->product[i].matmul);
    }
    if (optab[op->kind].flags & F_COMM) return lower_comm_workspace(op, l);
    return lower_attention_workspace(op, l);
}
