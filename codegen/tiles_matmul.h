/* tiles_matmul.h - products of bf16, and of f32 as sums of such, by tile registers, from matrices
 * in memory. For pairs_matmul.c. */
#ifndef STATOR_TILES_MATMUL_H
#define STATOR_TILES_MATMUL_H
#include "codegen/pairs_matmul.h"

/* pairs_matmul.h's, where s->tiles. */
int64_t tiles_matmul_workspace_bytes(const PairsMatmul *s);
bool tiles_matmul_same(const PairsMatmul *x, const PairsMatmul *y);
void tiles_matmul_emit(Emit *e, const char *name, const PairsMatmul *s);

#endif
