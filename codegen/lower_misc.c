/* lower_misc.c - ops that move data or build tables: calls of runtime/core/kernels.c. */
#include "codegen/lower.h"

/* A constant array in the module. */
static LLVMValueRef constant_array(Lower *l, LLVMTypeRef of, int64_t n,
                                   LLVMValueRef *item, const char *name) {
    LLVMValueRef array = LLVMConstArray2(of, item, (uint64_t)n);
    LLVMValueRef global = LLVMAddGlobal(l->e->mod, LLVMTypeOf(array), name);
    LLVMSetInitializer(global, array);
    LLVMSetGlobalConstant(global, 1);
    LLVMSetLinkage(global, LLVMPrivateLinkage);
    return global;
}

/* The same of i64. */
static LLVMValueRef numbers(Lower *l, int n, const int64_t *v) {
    LLVMValueRef item[2 * MAX_DIMS];
    check(n <= ARRAY_LEN(item));
    for (int i = 0; i < n; i++) item[i] = emit_i64(l->e, v[i]);
    return lower_numbers(l, n, item);
}

LLVMValueRef lower_numbers(Lower *l, int n, LLVMValueRef *item) {
    return constant_array(l, l->e->i64, n, item, "sizes");
}

static void need_f32(const Op *op, const Value *v) {
    if (v->ty.dt != DT_F32) lower_refuse(op, "its operands must be f32");
}

/* to = from, read with the given strides (by dimension of `to`). */
void lower_spread(Lower *l, LLVMValueRef to, LLVMValueRef from, int rank,
                  const int64_t *size, const int64_t *stride, DType dt) {
    CALL_RT(l->e, rt_spread, to, from, emit_i64(l->e, rank), numbers(l, rank, size),
            numbers(l, rank, stride), emit_i64(l->e, dtype_bytes[dt]));
}

int64_t lower_reduce_workspace(Lower *l, const Op *op) {
    (void)l;
    if (!dtype_is_narrow(op->in[0]->ty.dt)) return 0;
    return lower_widened_bytes(op->in[0]) + lower_widened_bytes(op->out[0]);
}

/* Where numbers are narrow, on copies in f32: of the operand, then of the result. */
static void lower_reduce(Lower *l, const Op *op, bool take_max) {
    const Value *x = op->in[0], *y = op->out[0];
    const bool narrow = dtype_is_narrow(x->ty.dt);
    if (!narrow) need_f32(op, x);
    Dims d;
    check(op_dims(op, &d));
    int64_t from[MAX_DIMS], size[MAX_DIMS], stride[MAX_DIMS];
    int n = 0;
    dims_strides(&d, 0, from);
    for (int k = 0; k < d.rank[1]; k++, n++) {
        size[n] = d.size[d.term[1][k]];
        stride[n] = from[d.term[1][k]];
    }
    for (int id = 0; id < d.n; id++) {
        if (dims_mask(&d, 1) >> id & 1) continue;
        size[n] = d.size[id];
        stride[n++] = from[id];
    }
    LLVMValueRef to =
        narrow ? lower_workspace(l, op, lower_widened_bytes(x)) : lower_pointer(l, y);
    LLVMValueRef values =
        narrow ? lower_widened(l, x, lower_workspace(l, op, 0)) : lower_pointer(l, x);
    CALL_RT(l->e, rt_reduce, to, values, emit_i64(l->e, d.rank[1]),
            emit_i64(l->e, n - d.rank[1]), numbers(l, n, size), numbers(l, n, stride),
            emit_i64(l->e, take_max));
    if (narrow) lower_rounded(l, y, to);
}

void lower_sum(Lower *l, const Op *op) {
    lower_reduce(l, op, false);
}

void lower_max(Lower *l, const Op *op) {
    lower_reduce(l, op, true);
}

void lower_rearrange(Lower *l, const Op *op) {
    Dims d;
    check(op_dims(op, &d));
    int64_t from[MAX_DIMS], stride[MAX_RANK];
    dims_strides(&d, 0, from);
    for (int k = 0; k < d.rank[1]; k++) stride[k] = from[d.term[1][k]];
    lower_spread(l, lower_pointer(l, op->out[0]), lower_pointer(l, op->in[0]), d.rank[1],
                 op->out[0]->ty.dim, stride, op->out[0]->ty.dt);
}

void lower_reshape(Lower *l, const Op *op) {
    (void)l, (void)op; /* the result is the operand's buffer */
}

void lower_copy(Lower *l, const Op *op) {
    CALL_RT(l->e, rt_copy, lower_pointer(l, op->out[0]), lower_pointer(l, op->in[0]),
            emit_i64(l->e, type_bytes(&op->in[0]->ty)));
}

/* Rows of the last dimension, cut or filled up with zeros. */
static void fit_rows(Lower *l, const Op *op) {
    const Type *in = &op->in[0]->ty, *out = &op->out[0]->ty;
    int64_t from = in->dim[in->rank - 1], to = out->dim[out->rank - 1];
    int64_t size = dtype_bytes[in->dt];
    CALL_RT(l->e, rt_fit_rows, lower_pointer(l, op->out[0]), lower_pointer(l, op->in[0]),
            emit_i64(l->e, type_count(in) / from), emit_i64(l->e, to * size),
            emit_i64(l->e, from * size));
}

void lower_pad(Lower *l, const Op *op) {
    fit_rows(l, op);
}

void lower_unpad(Lower *l, const Op *op) {
    fit_rows(l, op);
}

/* Slices first to first + size of dimension `dim` of the tensor `whole` are runs of bytes with
 * gaps between them; copies them to v (out), or v to them. */
static void copy_part(Lower *l, const Op *op, const Value *whole, int64_t first,
                      int64_t size, const Value *v, bool out) {
    TypeAround a = type_around(&whole->ty, op_int(op, "dim", 0));
    int64_t run = a.after * dtype_bytes[whole->ty.dt], step = run * a.count;
    LLVMValueRef at = emit_at(l->e, l->e->i8, lower_pointer(l, whole), first * run);
    LLVMValueRef part = lower_pointer(l, v);
    run *= size;
    CALL_RT(l->e, rt_copy_runs, out ? part : at, out ? at : part,
            emit_i64(l->e, a.before), emit_i64(l->e, run),
            emit_i64(l->e, out ? run : step), emit_i64(l->e, out ? step : run));
}

void lower_slice(Lower *l, const Op *op) {
    copy_part(l, op, op->in[0], op_int(op, "first", 0), op_int(op, "size", 1), op->out[0],
              true);
}

void lower_unstack(Lower *l, const Op *op) {
    for (int i = 0; i < op->nout; i++)
        copy_part(l, op, op->in[0], i, 1, op->out[i], true);
}

void lower_stack(Lower *l, const Op *op) {
    for (int i = 0; i < op->nin; i++)
        copy_part(l, op, op->out[0], i, 1, op->in[i], false);
}

void lower_embed(Lower *l, const Op *op) {
    const Type *table = &op->in[0]->ty;
    CALL_RT(l->e, rt_embed, lower_pointer(l, op->out[0]), lower_pointer(l, op->in[0]),
            lower_pointer(l, op->in[1]), emit_i64(l->e, type_count(&op->in[1]->ty)),
            emit_i64(l->e, table->dim[0]),
            emit_i64(l->e, table->dim[1] * dtype_bytes[table->dt]),
            emit_i64(l->e, op_int(op, "partial", 0)));
}

/* Of zeros where there is no sum. */
static void add_rows(Lower *l, const Op *op, const Value *sum, const Value *ids,
                     const Value *dy) {
    need_f32(op, dy);
    const Type *table = &op->out[0]->ty;
    LLVMValueRef to = lower_pointer(l, op->out[0]);
    LLVMValueRef from = sum ? lower_pointer(l, sum) : LLVMConstNull(LLVMTypeOf(to));
    CALL_RT(l->e, rt_embed_add, to, from, lower_pointer(l, ids), lower_pointer(l, dy),
            emit_i64(l->e, type_count(&ids->ty)), emit_i64(l->e, table->dim[0]),
            emit_i64(l->e, table->dim[1]), emit_i64(l->e, op_int(op, "partial", 0)));
}

void lower_embed_grad(Lower *l, const Op *op) {
    add_rows(l, op, NULL, op->in[0], op->in[1]);
}

void lower_embed_add(Lower *l, const Op *op) {
    add_rows(l, op, op->in[0], op->in[1], op->in[2]);
}

void lower_positions(Lower *l, const Op *op) {
    CALL_RT(l->e, rt_positions, lower_pointer(l, op->out[0]), lower_pointer(l, op->in[0]),
            emit_i64(l->e, op->out[0]->ty.dim[0]),
            emit_i64(l->e, op_int(op, "zigzag", 0)));
}

void lower_rng_layer(Lower *l, const Op *op) {
    CALL_RT(l->e, rt_rng_layer, lower_pointer(l, op->out[0]), lower_pointer(l, op->in[0]),
            lower_pointer(l, op->in[1]));
}

void lower_rope_table(Lower *l, const Op *op) {
    need_f32(op, op->out[0]);
    const Type *table = &op->out[0]->ty;
    int64_t n = table->dim[table->rank - 2];
    Arena *mem = arena_new();
    double *freq = NEW_ARRAY(mem, double, (size_t)n);
    LLVMValueRef *item = NEW_ARRAY(mem, LLVMValueRef, (size_t)n);
    if (!rope_frequencies(op, n, freq)) die("frequencies of rope");
    for (int64_t k = 0; k < n; k++) item[k] = LLVMConstReal(l->e->f64, freq[k]);
    LLVMValueRef freqs = constant_array(l, l->e->f64, n, item, "freqs");
    CALL_RT(l->e, rt_rope_table, lower_pointer(l, op->out[0]),
            lower_pointer(l, op->in[0]), emit_i64(l->e, type_count(table) / (2 * n)),
            emit_i64(l->e, n), freqs, LLVMConstReal(l->e->f64, op_float(op, "scale", 1)),
            emit_i64(l->e, op->in[0]->ty.rank > 0));
    arena_free(mem);
}

/* Where the result is not in the cache's own buffer it begins as a copy. */
static LLVMValueRef cache_result(Lower *l, const Op *op) {
    LLVMValueRef to = lower_pointer(l, op->out[0]);
    CALL_RT(l->e, rt_copy, to, lower_pointer(l, op->in[0]),
            emit_i64(l->e, type_bytes(&op->in[0]->ty)));
    return to;
}

static int64_t cache_row_bytes(const Type *cache) {
    return cache->dim[2] * cache->dim[3] * dtype_bytes[cache->dt];
}

void lower_cache_write(Lower *l, const Op *op) {
    const Type *cache = &op->in[0]->ty, *x = &op->in[1]->ty;
    LLVMValueRef to = cache_result(l, op);
    CALL_RT(l->e, rt_cache_write, to, lower_pointer(l, op->in[1]),
            lower_pointer(l, op->in[2]), emit_i64(l->e, cache->dim[0]),
            emit_i64(l->e, cache->dim[1]), emit_i64(l->e, x->dim[1]),
            emit_i64(l->e, cache_row_bytes(cache)));
}

void lower_cache_write_each(Lower *l, const Op *op) {
    const Type *cache = &op->in[0]->ty, *x = &op->in[1]->ty;
    LLVMValueRef to = cache_result(l, op);
    CALL_RT(l->e, rt_cache_write_each, to, lower_pointer(l, op->in[1]),
            lower_pointer(l, op->in[2]), lower_pointer(l, op->in[3]),
            emit_i64(l->e, cache->dim[0]), emit_i64(l->e, cache->dim[1]),
            emit_i64(l->e, x->dim[1]), emit_i64(l->e, cache_row_bytes(cache)));
}
