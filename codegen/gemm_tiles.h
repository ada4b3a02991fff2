/* gemm_tiles.h - products of pairs of bf16 by a CPU's tile registers (AMX). For gemm.c and
 * those who call it with pairs. */
#ifndef STATOR_GEMM_TILES_H
#define STATOR_GEMM_TILES_H
#include "codegen/gemm.h"

/* Round a piece of code that calls gemm_emit with pairs, on the thread that runs it: sets
 * the shapes of the tile registers, and frees them. Nothing where e->tiles is not
 * TILES_CPU. */
void gemm_tiles_begin(Emit *e);
void gemm_tiles_end(Emit *e);

/* Turn n of those that numbers of so many parts take for 16 pairs of k: the parts of A and B that it
 * multiplies, and whether they are others than those of the turn before. The largest products are
 * last, each with a part of those before; what is left out is less than what f32 rounds. */
typedef struct GemmTurn {
    int a, b;
    bool next_a, next_b;
} GemmTurn;
int gemm_turns(int parts);
GemmTurn gemm_turn(int parts, int n);

/* gemm_emit for pairs where e->tiles is not TILES_NONE; needs 16 lanes. Of every 16 pairs
 * of k the first and the second numbers are summed apart, in order by fma, starting from
 * 0; both are added, and that to the sum before: with GEMM_ADD and no user the first sum is what C
 * holds. */
void gemm_tiles_emit(Emit *e, const GemmStrides *s, GemmInit init, const GemmData *data,
                     const GemmSize *size);

#endif
