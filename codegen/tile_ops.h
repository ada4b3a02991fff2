/* tile_ops.h - tile registers of a CPU (AMX), or vectors that do the same. For gemm_tiles.c. */
#ifndef STATOR_TILE_OPS_H
#define STATOR_TILE_OPS_H
#include "codegen/emit.h"

/* Eight registers, of 16 rows of 16 words. */
enum { TILE_WORDS = TILE_SIDE * TILE_SIDE, TILE_REGISTERS = 8 };

/* Where the emulated registers are. */
typedef struct Tiles {
    Emit *e;
    LLVMValueRef room;
} Tiles;

/* The operations on tile registers. Strides in bytes. stream: load what need not stay in the
 * first cache. dot: sum += a b. */
typedef struct TileOps {
    void (*zero)(const Tiles *t, int tile);
    void (*load)(const Tiles *t, int tile, LLVMValueRef from, LLVMValueRef stride);
    void (*stream)(const Tiles *t, int tile, LLVMValueRef from, LLVMValueRef stride);
    void (*dot)(const Tiles *t, int sum, int a, int b);
    void (*store)(const Tiles *t, int tile, LLVMValueRef to, LLVMValueRef stride);
} TileOps;

/* By what e->tiles says. */
const TileOps *tile_ops_of(const Emit *e);

#endif
