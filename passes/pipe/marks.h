/* marks.h - where the text of a model says that a chunk of the pipeline begins: the
 * attribute `stage` of ops of the entry, at level global.
 *     %h = dot %x, %w1 {bi,ih->bh}; %a = tanh %h {stage=1}; %y = dot %a, %w2 {bh,ho->bo}
 * has %h in chunk 0, %a and %y in chunk 1. Loops are whole in their chunk. Chunks that no op
 * begins share the layers of the loops before the next mark. */
#ifndef STATOR_MARKS_H
#define STATOR_MARKS_H
#include "ir/ir.h"

typedef struct Mark { /* another chunk than that of the op before it */
    Op *op;
    int chunk;
    int64_t layers; /* before it */
} Mark;

typedef struct Marks {
    Mark *mark;
    int n;
    bool any; /* does any op say it? */
} Marks;

/* Where the attribute `stage` of the model's ops begins chunks, in the order of the text. The first
 * chunk needs no mark: one that says 0 there is none, but sets `any`. */
Marks marks_read(Arena *mem, const Func *model);
/* Layers of each chunk. Fails with EXIT_CONFIG at the op that leaves a chunk without any. */
int64_t *marks_layers(Arena *mem, const Marks *marks, const Func *model, int chunks);
/* The same of a module; NULL: nothing is marked. */
const int64_t *module_marked_layers(const Module *m, int chunks);
#endif
