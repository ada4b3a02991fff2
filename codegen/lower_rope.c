/* lower_rope.c - turning pairs of features by the angles of their positions, for each op:
 *     rows(ctx = {to, x, table}, begin, end, thread): of each position in turn all heads
 * Cosines and sines alternate in the table; a vector of each serves all heads. */
#include "codegen/lower.h"

/* Numbers below which starting the threads costs more than they gain. */
enum { SMALL_ROPE = 1 << 13 };

typedef struct Rope {
    Emit *e;
    DType dt;
    int64_t rows;                    /* of the table */
    int64_t positions, heads, width; /* of x: [positions, heads, width] */
    int64_t half;                    /* 2 half of the width are turned */
    bool inverse;
    LLVMValueRef to, x, table;
} Rope;

static LLVMValueRef element(const Rope *r, LLVMValueRef base, LLVMValueRef index) {
    return emit_gep(r->e, r->dt == DT_F32 ? r->e->f32 : r->e->i16, base, index);
}

/* Every second of the lanes of two vectors, from `first` on. */
static LLVMValueRef every_second(Emit *e, const LLVMValueRef *both, int first) {
    LLVMValueRef lane[16];
    for (int i = 0; i < e->vl; i++) lane[i] = emit_i32(e, 2 * i + first);
    LLVMValueRef lanes = LLVMConstVector(lane, (unsigned)e->vl);
    return LLVMBuildShuffleVector(e->b, both[0], both[1], lanes, "");
}

/* The pairs k and k + half from k on, of all heads of a position; `left` of them (0: a vector). */
static void turn(const Rope *r, LLVMValueRef position, LLVMValueRef k, int64_t left) {
    Emit *e = r->e;
    LLVMValueRef mask = left ? emit_tail_mask(e, emit_i64(e, left)) : NULL, both[2];
    LLVMValueRef row = emit_remi(e, position, r->rows);
    LLVMValueRef at = emit_add(e, emit_muli(e, row, r->half), k);
    at = emit_gep(e, e->f32, r->table, emit_muli(e, at, 2));
    for (int i = 0; i < 2; i++) {
        LLVMValueRef some =
            left ? emit_tail_mask(e, emit_i64(e, 2 * left - i * e->vl)) : NULL;
        both[i] = emit_load(e, e->vf32, emit_at(e, e->f32, at, i * e->vl), some, 4);
    }
    LLVMValueRef cosine = every_second(e, both, 0), sine = every_second(e, both, 1);
    if (r->inverse) sine = emit_fneg(e, sine);
    Loop heads;
    loop_begin(e, &heads, emit_i64(e, 0), emit_i64(e, r->heads), 1, 0, NULL);
    LLVMValueRef head = emit_muli(e, position, r->heads);
    head = emit_muli(e, emit_add(e, head, heads.i), r->width);
    LLVMValueRef first = emit_add(e, head, k);
    LLVMValueRef second = emit_addi(e, first, r->half);
    LLVMValueRef a = emit_load_as(e, r->dt, element(r, r->x, first), mask);
    LLVMValueRef b = emit_load_as(e, r->dt, element(r, r->x, second), mask);
    LLVMValueRef x = emit_fsub(e, emit_fmul(e, a, cosine), emit_fmul(e, b, sine));
    LLVMValueRef y = emit_fadd(e, emit_fmul(e, b, cosine), emit_fmul(e, a, sine));
    emit_store_as(e, r->dt, x, element(r, r->to, first), mask);
    emit_store_as(e, r->dt, y, element(r, r->to, second), mask);
    loop_end(e, &heads, NULL);
}

/* The features of all heads of a position that are not turned. */
static void copy_rest(const Rope *r, LLVMValueRef position) {
    Emit *e = r->e;
    const int64_t rest = r->width - 2 * r->half;
    Loop heads;
    loop_begin(e, &heads, emit_i64(e, 0), emit_i64(e, r->heads), 1, 0, NULL);
    LLVMValueRef head = emit_muli(e, position, r->heads);
    head = emit_muli(e, emit_add(e, head, heads.i), r->width);
    LLVMValueRef from = emit_addi(e, head, 2 * r->half);
    unsigned align = (unsigned)dtype_bytes[r->dt];
    LLVMBuildMemMove(e->b, element(r, r->to, from), align, element(r, r->x, from), align,
                     emit_i64(e, rest * dtype_bytes[r->dt]));
    loop_end(e, &heads, NULL);
}

static LLVMValueRef emit_rows(Rope *r, const char *name) {
    Emit *e = r->e;
    LLVMValueRef fn = emit_items_func(e, name, NULL);
    LLVMValueRef *slot[] = {&r->to, &r->x, &r->table};
    for (int i = 0; i < ARRAY_LEN(slot); i++)
        *slot[i] = emit_slot(e, emit_param(e, 0), i);
    Loop positions, vectors;
    loop_begin(e, &positions, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    const int64_t left = r->half % e->vl, whole = r->half - left;
    loop_begin(e, &vectors, emit_i64(e, 0), emit_i64(e, whole), e->vl, 0, NULL);
    turn(r, positions.i, vectors.i, 0);
    loop_end(e, &vectors, NULL);
    if (left) turn(r, positions.i, emit_i64(e, whole), left);
    if (2 * r->half < r->width) copy_rest(r, positions.i);
    loop_end(e, &positions, NULL);
    emit_ret(e, NULL);
    return fn;
}

/* Emitted apart from the function that calls it; the builder comes back where it was. */
static LLVMValueRef rows_function(Lower *l, Rope *r, const char *name) {
    LLVMValueRef fn = l->e->fn;
    LLVMBasicBlockRef block = LLVMGetInsertBlock(l->e->b);
    LLVMValueRef rows = emit_rows(r, name);
    l->e->fn = fn;
    LLVMPositionBuilderAtEnd(l->e->b, block);
    return rows;
}

/* The table has a row per position, or per token. */
void lower_rope(Lower *l, const Op *op) {
    Emit *e = l->e;
    const Type *x = &op->in[0]->ty, *table = &op->in[1]->ty;
    if (x->dt != DT_F32 && dtype_sum(x->dt) != DT_F32)
        lower_refuse(op, "its operands must be f32, bf16 or f16");
    if (table->dt != DT_F32) lower_refuse(op, "its table must be f32");
    Rope r = {.e = e, .dt = x->dt, .half = table->dim[table->rank - 2]};
    r.rows = type_count(table) / (2 * r.half);
    r.positions = x->dim[0] * x->dim[1], r.heads = x->dim[2], r.width = x->dim[3];
    r.inverse = op_int(op, "inverse", 0) != 0;
    char *name = arena_printf(l->mem, "stator.rope.%d", l->nrope++);
    LLVMValueRef rows = rows_function(l, &r, name), ctx = emit_alloca(e, 3 * 8);
    const Value *value[] = {op->out[0], op->in[0], op->in[1]};
    for (int i = 0; i < ARRAY_LEN(value); i++)
        emit_store(e, lower_pointer(l, value[i]), emit_at(e, e->ptr, ctx, i), NULL, 8);
    rt_run(e, rows, ctx, emit_i64(e, r.positions),
           type_count(x) < SMALL_ROPE ? RUN_ALONE : RUN_PARALLEL);
}

void lower_rope_each(Lower *l, const Op *op) {
    lower_rope(l, op);
}
