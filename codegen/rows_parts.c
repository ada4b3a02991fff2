/* rows_parts.c - see rows_parts.h. */
#include "codegen/rows_parts.h"

enum {
    BLOCK_MOST =
        8, /* rows of B at a time: more streams than that a CPU does not follow */
    STRETCHES_MOST = 8, /* the same, of columns */
    NEAR_BYTES =
        24 << 10, /* of A: more does not stay in the first cache, and is read from the */
    FAR_ROWS = 4, /* second again for each column, so of fewer rows for more columns */
    PART_UNIT = 32, /* of k */
    PART_LEAST = 2 * PART_UNIT,
    TILE_BYTES = 1 << 18, /* of the sums of a tile: they stay in the second cache */
    TILE_LEAST = 1024,    /* columns, so that B is read in long runs */
    LINE_FLOATS =
        16, /* between rows of sums, lest they share places of the first cache */
};

/* A part of k for each thread, as far as it goes: so each reads rows of B one after the other, in
 * one piece. That is worth more than what putting the parts together takes. */
static void cut_along_n(Rows *r, int vl) {
    const RowsMatmul *s = r->s;
    int64_t unit = vl * r->deep, fits = TILE_BYTES / 4 / s->m / unit * unit;
    r->parts = MIN(s->threads, MAX(1, s->k / PART_LEAST));
    int64_t wide = MIN(divided_up(s->threads, r->parts), MAX(1, s->n / TILE_LEAST));
    r->part = round_up(divided_up(s->k, r->parts), PART_UNIT);
    r->parts = divided_up(s->k, r->part);
    int64_t turns = divided_up(divided_up(s->n, wide), MAX(fits, TILE_LEAST));
    r->tile = round_up(divided_up(s->n, wide * turns), unit);
    r->tiles = divided_up(s->n, r->tile);
    r->items = r->parts * r->tiles;
    int64_t numbers = vl >= 16 ? ROWS_BLOCK_NUMBERS : ROWS_BLOCK_NUMBERS / 2;
    r->rows = divided_up(s->m, divided_up(s->m, numbers / 4));
    r->block = MIN(BLOCK_MOST, numbers / r->rows / r->deep * r->deep);
    r->sums_row = round_up(s->n, unit) + LINE_FLOATS;
    r->wide_row = round_up(s->k, vl);
    r->a_bytes = dtype_is_narrow(s->dt) ? align_up(s->m * r->wide_row * 4) : 0;
    r->bytes = r->a_bytes + align_up(r->parts * s->m * r->sums_row * 4);
}

bool rows_widen(const Rows *r) {
    return dtype_is_narrow(r->s->dt) && !(r->pairs && emit_has_dots(r->e));
}

Rows rows_of(const RowsMatmul *s, int vl) {
    Rows r = {.s = s, .along_n = s->b_n == 1 && (s->n > 1 || s->b_k != 1)};
    r.pairs = s->dt == DT_BF16;
    r.deep = r.pairs ? 2 : 1;
    if (r.along_n) {
        cut_along_n(&r, vl);
        return r;
    }
    int64_t sums = vl >= 16 ? ROWS_SUMS : ROWS_SUMS / 2; /* as the CPU has registers */
    int64_t a_bytes = s->m * s->k * dtype_bytes[s->dt];
    int64_t most = a_bytes > NEAR_BYTES ? MIN(FAR_ROWS, sums / 3) : sums / 3;
    r.rows = divided_up(s->m, divided_up(s->m, most));
    r.item = vl;
    r.items = divided_up(s->n, r.item);
    /* no more than fill the tiles that a thread goes through */
    int64_t each = divided_up(r.items, s->threads), most_stretches = sums / r.rows;
    int64_t tiles = divided_up(each, MIN(STRETCHES_MOST, most_stretches));
    r.stretches = divided_up(each, tiles);
    return r;
}

LLVMTypeRef rows_element(const Rows *r) {
    return dtype_is_narrow(r->s->dt) ? r->e->i16 : r->e->f32;
}

void rows_fetch(const Rows *r, LLVMValueRef at) {
    emit_prefetch(r->e, at, false, 2);
}

void rows_write(const Rows *r, LLVMValueRef ctx, LLVMValueRef i, LLVMValueRef j,
                LLVMValueRef x, LLVMValueRef mask) {
    const RowsMatmul *s = r->s;
    Emit *e = r->e;
    const DType dt = s->rounds ? s->dt : DT_F32;
    LLVMTypeRef type = dtype_is_narrow(dt) ? e->i16 : e->f32;
    LLVMValueRef to =
        emit_gep(e, type, emit_slot(r->e, ctx, SLOT_C), emit_plus(e, j, i, s->c_m));
    if (s->bias) {
        LLVMValueRef at = emit_gep(e, e->f32, emit_slot(r->e, ctx, SLOT_BIAS), j);
        x = emit_fadd(e, x, emit_load(e, e->vf32, at, mask, 4));
    }
    emit_store_sum(e, dt, x, to, mask, s->adds);
}

LLVMValueRef rows_body(const Rows *r, const char *part) {
    return emit_items_func(r->e, r->name, part);
}
