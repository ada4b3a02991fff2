/* layers.h - the layers of a model: the runs of its loops, in their order. A loop is cut into
 * calls one after another where what is done to its layers differs.
 *     %y = call %x, %w {fn=@layer; times=12; carry=1; each=1}
 *     -> %x6 = call %x, %w {fn=@layer; times=6; ...}; %y = call %x6, %w#6 {...; times=6; ...}
 * A stacked parameter becomes one argument for each: `tensor` is its name, `global` its
 * type, `first` its first row there. So does what results of the loop overwrite, a cache,
 * and its results become one for each. The module means what it meant. */
#ifndef STATOR_LAYERS_H
#define STATOR_LAYERS_H
#include "ir/ir.h"

Func *layers_model(const Module *m); /* fails where there is none */
/* Layers that the op runs: of a loop its runs, of a call that is made again as a whole the
 * layers of its function, else 0. */
int64_t layers_of(const Op *op);
int64_t layers_count(const Func *model);
bool layers_is_param(const Func *f, const Value *v);

/* Pieces of a loop: piece[i] is the call of its runs up to end[i]. */
typedef struct LoopPieces {
    Op **piece;
    int n;
} LoopPieces;

/* `end`: runs up to the end of each piece, ascending; the last is all. One piece is the loop
 * itself. */
LoopPieces layers_cut(Arena *mem, Op *loop, const int64_t *end, int n);
#endif
