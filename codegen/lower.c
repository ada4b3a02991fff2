/* lower.c - functions, calls and loops. */
#include "codegen/lower.h"
#include "codegen/program_ops.h"

static LLVMTypeRef *pointers(Lower *l, int n) {
    LLVMTypeRef *t = NEW_ARRAY(l->mem, LLVMTypeRef, (size_t)n);
    for (int i = 0; i < n; i++) t[i] = l->e->ptr;
    return t;
}

/* ---- calls ---- */

static int64_t carry_bytes(const Op *op, const Func *callee, int i) {
    return callee->alias[i] >= 0 ? 0 : align_up(type_bytes(&op->out[i]->ty));
}

static int64_t call_workspace(Lower *l, const Op *op) {
    const Func *callee = op_func(op);
    if (callee->role == ROLE_KERNEL) {
        return kernel_workspace_bytes(l->mem, callee, l->threads);
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
    args[n++] = lower_workspace_if_any(l, op);
    emit_call(l->e, lower_symbol(l, op_func(op)), args, n);
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
    args[n++] = lower_workspace_if_any(l, op);
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
    emit_call(l->e, lower_symbol(l, callee), args, n);
}

static void call_loop(Lower *l, const Op *op) {
    const Call c = call_of(op);
    LLVMTypeRef i64 = l->e->i64;
    /* what is overwritten in place stays where it is */
    LLVMValueRef *carry = NEW_ARRAY(l->mem, LLVMValueRef, 2 * (size_t)c.carry + 1);
    LLVMValueRef *out = carry + c.carry, moving[LOOP_CARRY_MAX];
    int *nth = NEW_ARRAY(l->mem, int, (size_t)c.carry + 1), n = 0;
    for (int i = 0; i < c.carry; i++) {
        carry[i] = lower_pointer(l, op->in[i]);
        nth[i] = c.f->alias[i] == i ? -1 : n;
        if (nth[i] < 0) continue;
        if (n == LOOP_CARRY_MAX)
            lower_refuse(op,
                         arena_printf(l->mem,
                                      "a loop carries at most %d values that are not "
                                      "overwritten in place: stack some into one tensor",
                                      LOOP_CARRY_MAX));
        moving[n++] = carry[i];
    }
    Loop loop;
    loop_begin(l->e, &loop, LLVMConstInt(i64, 0, 0), emit_i64(l->e, c.times), 1, n,
               moving);
    for (int i = 0; i < c.carry; i++)
        if (nth[i] >= 0) carry[i] = loop.carry[nth[i]];
    Run r = {.run = loop.i,
             .at = loop.i,
             .last = emit_i64(l->e, c.times - 1),
             .carry = carry,
             .carry_out = out};
    if (c.reverse) r.at = emit_sub(l->e, r.last, loop.i);
    call_once(l, op, &r);
    for (int i = 0; i < c.carry; i++)
        if (nth[i] >= 0) moving[nth[i]] = out[i];
    loop_end(l->e, &loop, n ? moving : NULL);
}

/* ---- calls of the entry ---- */

/* A step of a pipeline is thousands of calls of a few functions with a hundred pointers each.
 * So the entry calls a function through another one that reads from a table of constants
 * where its operands and results live. */

enum { IN_FRAME, IN_ARGUMENT, IN_RESULT, LOCATIONS };

static const char *by_table(Lower *l, const Func *f) {
    return arena_printf(l->mem, "%s:by_table", lower_symbol(l, f));
}

static int64_t table_number(const Value *v) {
    if (!v->def) return v->nth * LOCATIONS + IN_ARGUMENT;
    int where = v->loc.kind == LOC_FRAME ? IN_FRAME
                : v->loc.kind == LOC_ARG ? IN_ARGUMENT
                                         : IN_RESULT;
    return v->loc.at * LOCATIONS + where;
}

static void call_by_table(Lower *l, const Op *op) {
    int n = 0;
    LLVMValueRef *item =
        NEW_ARRAY(l->mem, LLVMValueRef, (size_t)(op->nin + op->nout + 1));
    item[n++] = emit_i64(l->e, op_int(op, "ws", 0) * LOCATIONS + IN_FRAME);
    for (int i = 0; i < op->nin; i++) item[n++] = emit_i64(l->e, table_number(op->in[i]));
    for (int i = 0; i < op->nout; i++)
        item[n++] = emit_i64(l->e, table_number(op->out[i]));
    LLVMValueRef args[] = {l->products, l->frame, emit_param(l->e, 2),
                           emit_param(l->e, 3), lower_numbers(l, n, item)};
    emit_call(l->e, by_table(l, op_func(op)), args, ARRAY_LEN(args));
}

/* The pointer that entry i of the table means. There is always a first argument or room for
 * one, so the load is good whatever is taken of it. */
static LLVMValueRef table_pointer(Lower *l, LLVMValueRef table, int i) {
    Emit *e = l->e;
    LLVMValueRef v = emit_load(e, e->i64, emit_at(e, e->i64, table, i), NULL, 8);
    LLVMValueRef where = LLVMBuildURem(e->b, v, emit_i64(e, LOCATIONS), "");
    LLVMValueRef at = LLVMBuildUDiv(e->b, v, emit_i64(e, LOCATIONS), "");
    LLVMValueRef framed = emit_icmp(e, LLVMIntEQ, where, emit_i64(e, IN_FRAME));
    LLVMValueRef given = emit_icmp(e, LLVMIntEQ, where, emit_i64(e, IN_ARGUMENT));
    LLVMValueRef all = emit_select(e, given, emit_param(e, 2), emit_param(e, 3));
    LLVMValueRef nth = emit_select(e, framed, emit_i64(e, 0), at);
    LLVMValueRef loaded = emit_load(e, e->ptr, emit_gep(e, e->ptr, all, nth), NULL, 8);
    return emit_select(e, framed, emit_gep(e, e->i8, emit_param(e, 1), at), loaded);
}

/* void NAME:by_table(products, frame, ptr in[], ptr out[], i64 table[]) */
static void make_by_table(Lower *l, const Func *f) {
    Emit *e = l->e;
    int n = f->narg + f->nret + 1;
    if (LLVMGetNamedFunction(e->mod, by_table(l, f))) return;
    emit_func(e, by_table(l, f), e->void_, pointers(l, 5), 5, true);
    LLVMValueRef *args = NEW_ARRAY(l->mem, LLVMValueRef, (size_t)n + 1);
    args[0] = emit_param(e, 0);
    for (int i = 0; i < n; i++) args[i + 1] = table_pointer(l, emit_param(e, 4), i);
    emit_call(e, lower_symbol(l, f), args, n + 1);
    emit_ret(e, NULL);
}

static bool goes_by_table(const Op *op) {
    return op_calls_ops(op) && !call_of(op).loop;
}

void lower_call(Lower *l, const Op *op) {
    Run r = {0};
    if (op_func(op)->role == ROLE_KERNEL)
        call_kernel(l, op);
    else if (l->in_entry && goes_by_table(op))
        call_by_table(l, op);
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

/* Bytes besides the frame of a callee; an op without a row has none. */
static int64_t (*const workspace[OP_COUNT])(Lower *, const Op *) = {
    [OP_call] = call_workspace,
    [OP_dot] = lower_product_workspace,
    [OP_sum] = lower_reduce_workspace,
    [OP_max] = lower_reduce_workspace,
    [OP_all_reduce] = lower_comm_workspace,
    [OP_all_gather] = lower_comm_workspace,
    [OP_reduce_scatter] = lower_comm_workspace,
    [OP_all_to_all] = lower_comm_workspace,
    [OP_ring_shift] = lower_comm_workspace,
    [OP_attention] = lower_attention_workspace,
    [OP_attention_grad] = lower_attention_workspace,
    [OP_attention_within] = lower_attention_workspace,
    [OP_attention_within_grad] = lower_attention_workspace,
    [OP_attention_each] = lower_attention_workspace,
};

int64_t lower_workspace_bytes(const Op *op, void *lower) {
    return workspace[op->kind] ? workspace[op->kind](lower, op) : 0;
}

static void lower_op(Lower *l, const Op *op) {
    bool logged = l->log_ops && op_is_logged(op);
    if (!lowering[op->kind]) die("%s reached code generation", optab[op->kind].name);
    if (logged) CALL_RT(l->e, rt_op_begin, emit_i64(l->e, l->nlogged));
    lowering[op->kind](l, op);
    if (logged) CALL_RT(l->e, rt_op_end, emit_i64(l->e, l->nlogged++));
}

/* Ops from `op` up to `end`, NULL: all. */
static void lower_ops(Lower *l, const Op *op, const Op *end) {
    for (; op != end; op = op->next) {
        lower_tell_task(l, op);
        lower_op(l, op);
    }
    emit_ret(l->e, NULL);
}

static void begin_func(Lower *l, const Func *f) {
    l->products = emit_param(l->e, 0);
    l->frame = emit_param(l->e, 1);
    l->arg = NEW_ARRAY(l->mem, LLVMValueRef, (size_t)f->narg);
    l->ret = NEW_ARRAY(l->mem, LLVMValueRef, (size_t)f->nret);
}

static void lower_func(Lower *l, const Func *f) {
    Emit *e = l->e;
    int n = 2 + f->narg + f->nret;
    emit_func(e, lower_symbol(l, f), e->void_, pointers(l, n), n, true);
    begin_func(l, f);
    for (int i = 0; i < f->narg; i++) l->arg[i] = emit_param(e, 2 + i);
    for (int i = 0; i < f->nret; i++) l->ret[i] = emit_param(e, 2 + f->narg + i);
    lower_ops(l, f->first, NULL);
}

/* ---- the entry: of many ops, but simple ones ---- */

/* LLVM takes more than twice as long for twice as long a function, so the entry becomes a
 * function for each of so many ops. */
enum { PART_OPS = 64 };

/* The address of the argument or result that the value lives in, if it does. */
static void load_address(Lower *l, const Value *v) {
    bool arg = !v->def || v->loc.kind == LOC_ARG;
    int64_t i = v->def ? v->loc.at : v->nth;
    if (!arg && v->loc.kind != LOC_RET) return;
    LLVMValueRef *at = arg ? &l->arg[i] : &l->ret[i];
    if (!*at) *at = emit_slot(l->e, emit_param(l->e, arg ? 2 : 3), i);
}

/* void NAME(products, frame, ptr in[], ptr out[]): the ops from `op` up to `end`. */
static void lower_part(Lower *l, const Func *f, const char *name, const Op *op,
                       const Op *end) {
    emit_func(l->e, name, l->e->void_, pointers(l, 4), 4, true);
    emit_unoptimized(l->e);
    begin_func(l, f);
    for (const Op *at = op; at != end; at = at->next) {
        if (goes_by_table(at)) continue;
        for (int i = 0; i < at->nin; i++) load_address(l, at->in[i]);
        for (int i = 0; i < at->nout; i++) load_address(l, at->out[i]);
    }
    lower_ops(l, op, end);
}

static const char *part_name(Lower *l, int k) {
    return arena_printf(l->mem, "stator_part.%d", k);
}

/* void stator_entry(products, frame, ptr in[], ptr out[]) */
static void lower_entry(Lower *l, const Func *f) {
    Emit *e = l->e;
    LLVMValueRef args[4];
    int parts = 0;
    for (const Op *op = f->first; op; op = op->next)
        if (goes_by_table(op)) make_by_table(l, op_func(op));
    l->in_entry = true;
    l->task = l->m->stages ? op_tasks(l->mem, f) : NULL;
    for (const Op *op = f->first, *end; op; op = end, parts++) {
        end = op;
        for (int n = 0; end && n < PART_OPS; n++) end = end->next;
        lower_part(l, f, part_name(l, parts), op, end);
    }
    emit_func(e, "stator_entry", e->void_, pointers(l, 4), 4, false);
    for (int i = 0; i < ARRAY_LEN(args); i++) args[i] = emit_param(e, i);
    for (int k = 0; k < parts; k++) emit_call(e, part_name(l, k), args, ARRAY_LEN(args));
    emit_ret(e, NULL);
}

void lower_module(Lower *l, const Func *entry) {
    Func **order = module_order(l->mem, l->m);
    for (int i = 0; order[i]; i++) {
        if (order[i]->role == ROLE_KERNEL)
            lower_kernel(l, order[i]);
        else if (order[i] != entry)
            lower_func(l, order[i]);
    }
    lower_entry(l, entry);
}
