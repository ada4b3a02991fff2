/* price.h - what a collective weighs where passes shard and collect choose: seconds on the machine
 * of PassOptions; where none is given, bytes. */
#ifndef STATOR_PRICE_H
#define STATOR_PRICE_H
#include "passes/cost/message.h"
#include "passes/passes.h"

/* least: of a byte that is sent, at least: 1 where bytes count. */
typedef struct Price {
    const Machine *machine;  /* NULL: bytes */
    const GroupShape *shape; /* by set of axes of the mesh */
    double least;
} Price;
/* For programs on this mesh, a stage of o->stages. The memory lives as long as it. */
Price price_new(Arena *mem, const Mesh *mesh, const PassOptions *o);
/* Of a collective (OpKind) over these axes for which a rank sends so many bytes. A start weighs as
 * much as `start_bytes`, where bytes count: all_reduce has two. */
double price_of(const Price *p, int kind, Axes axes, double sent_bytes,
                double start_bytes);
/* Of a step that sends nothing: less than any that does, but never 0. */
double price_of_none(const Price *p);

#endif
