/* tile_ops.c - see tile_ops.h. */
#include "codegen/tile_ops.h"
#include "codegen/gemm_tiles.h"

/* ---- by instructions ---- */

static LLVMValueRef tile_number(Emit *e, int tile) {
    return LLVMConstInt(e->i8, (unsigned)tile, 0);
}

static void zero_by_cpu(const Tiles *t, int tile) {
    LLVMValueRef arg = tile_number(t->e, tile);
    emit_intrinsic(t->e, "llvm.x86.tilezero", NULL, 0, &arg, 1);
}

static void load_by_cpu(const Tiles *t, int tile, LLVMValueRef from,
                        LLVMValueRef stride) {
    LLVMValueRef args[] = {tile_number(t->e, tile), from, stride};
    emit_intrinsic(t->e, "llvm.x86.tileloadd64", NULL, 0, args, 3);
}

static void stream_by_cpu(const Tiles *t, int tile, LLVMValueRef from,
                          LLVMValueRef stride) {
    LLVMValueRef args[] = {tile_number(t->e, tile), from, stride};
    emit_intrinsic(t->e, "llvm.x86.tileloaddt164", NULL, 0, args, 3);
}

static void dot_by_cpu(const Tiles *t, int sum, int a, int b) {
    LLVMValueRef args[] = {tile_number(t->e, sum), tile_number(t->e, a),
                           tile_number(t->e, b)};
    emit_intrinsic(t->e, "llvm.x86.tdpbf16ps", NULL, 0, args, 3);
}

static void store_by_cpu(const Tiles *t, int tile, LLVMValueRef to, LLVMValueRef stride) {
    LLVMValueRef args[] = {tile_number(t->e, tile), to, stride};
    emit_intrinsic(t->e, "llvm.x86.tilestored64", NULL, 0, args, 3);
}

/* Palette 1: eight tiles of 16 rows of 64 bytes. */
void gemm_tiles_begin(Emit *e) {
    if (e->tiles != TILES_CPU) return;
    LLVMValueRef shapes = emit_alloca(e, 64);
    emit_store(e, LLVMConstNull(e->vi32), shapes, NULL, 64);
    emit_store(e, LLVMConstInt(e->i8, 1, 0), shapes, NULL, 1);
    for (int i = 0; i < TILE_REGISTERS; i++) {
        LLVMValueRef row_bytes = LLVMConstInt(e->i16, 4 * TILE_SIDE, 0);
        emit_store(e, row_bytes, emit_at(e, e->i8, shapes, 16 + 2 * i), NULL, 2);
        LLVMValueRef rows = LLVMConstInt(e->i8, TILE_SIDE, 0);
        emit_store(e, rows, emit_at(e, e->i8, shapes, 48 + i), NULL, 1);
    }
    emit_intrinsic(e, "llvm.x86.ldtilecfg", NULL, 0, &shapes, 1);
}

void gemm_tiles_end(Emit *e) {
    if (e->tiles != TILES_CPU) return;
    emit_intrinsic(e, "llvm.x86.tilerelease", NULL, 0, NULL, 0);
}

/* ---- emulated ---- */

static LLVMValueRef tile_row(const Tiles *t, int tile, int row) {
    return emit_at(t->e, t->e->f32, t->room, tile * TILE_WORDS + row * TILE_SIDE);
}

static LLVMValueRef row_at(Emit *e, LLVMValueRef base, LLVMValueRef stride, int row) {
    return emit_gep(e, e->i8, base, emit_muli(e, stride, row));
}

static void zero_emulated(const Tiles *t, int tile) {
    LLVMValueRef zero = LLVMConstNull(t->e->vf32);
    for (int r = 0; r < TILE_SIDE; r++)
        emit_store(t->e, zero, tile_row(t, tile, r), NULL, 4);
}

static void load_emulated(const Tiles *t, int tile, LLVMValueRef from,
                          LLVMValueRef stride) {
    Emit *e = t->e;
    for (int r = 0; r < TILE_SIDE; r++) {
        LLVMValueRef x = emit_load(e, e->vf32, row_at(e, from, stride, r), NULL, 4);
        emit_store(e, x, tile_row(t, tile, r), NULL, 4);
    }
}

static void store_emulated(const Tiles *t, int tile, LLVMValueRef to,
                           LLVMValueRef stride) {
    Emit *e = t->e;
    for (int r = 0; r < TILE_SIDE; r++) {
        LLVMValueRef x = emit_load(e, e->vf32, tile_row(t, tile, r), NULL, 4);
        emit_store(e, x, row_at(e, to, stride, r), NULL, 4);
    }
}

static LLVMValueRef half_as_f32(Emit *e, LLVMValueRef pairs, bool second) {
    LLVMValueRef bits =
        second ? LLVMBuildAnd(e->b, pairs, emit_i32_like(e, pairs, 0xffff0000), "")
               : LLVMBuildShl(e->b, pairs, emit_i32_like(e, pairs, 16), "");
    return LLVMBuildBitCast(e->b, bits, e->vf32, "");
}

static void dot_emulated(const Tiles *t, int sum, int a, int b) {
    Emit *e = t->e;
    Loop row, turn;
    LLVMValueRef zero = LLVMConstNull(e->vf32), none[] = {zero, zero};
    loop_begin(e, &row, emit_i64(e, 0), emit_i64(e, TILE_SIDE), 1, 0, NULL);
    LLVMValueRef at = emit_muli(e, row.i, TILE_SIDE);
    loop_begin(e, &turn, emit_i64(e, 0), emit_i64(e, TILE_SIDE), 1, 2, none);
    LLVMValueRef from = emit_gep(e, e->i32, tile_row(t, a, 0), emit_add(e, at, turn.i));
    LLVMValueRef x = emit_splat(e, emit_load(e, e->i32, from, NULL, 4));
    LLVMValueRef y_at = emit_muli(e, turn.i, TILE_SIDE);
    LLVMValueRef y = emit_gep(e, e->i32, tile_row(t, b, 0), y_at), next[2];
    y = emit_load(e, e->vi32, y, NULL, 4);
    for (int i = 0; i < 2; i++)
        next[i] = emit_fma(e, half_as_f32(e, x, i), half_as_f32(e, y, i), turn.carry[i]);
    loop_end(e, &turn, next);
    LLVMValueRef to = emit_gep(e, e->f32, tile_row(t, sum, 0), at);
    LLVMValueRef more = emit_fadd(e, turn.carry[0], turn.carry[1]);
    LLVMValueRef old = emit_load(e, e->vf32, to, NULL, 4);
    emit_store(e, emit_fadd(e, old, more), to, NULL, 4);
    loop_end(e, &row, NULL);
}

static const TileOps tile_ops[] = {
    [TILES_CPU] = {zero_by_cpu, load_by_cpu, stream_by_cpu, dot_by_cpu, store_by_cpu},
    [TILES_EMULATED] = {zero_emulated, load_emulated, load_emulated, dot_emulated,
                        store_emulated},
};

const TileOps *tile_ops_of(const Emit *e) {
    return &tile_ops[e->tiles];
}
