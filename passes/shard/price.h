/* price.h - what a step between two placements weighs where pass collect chooses: bytes, or seconds
 * on a machine. */
#ifndef STATOR_PRICE_H
#define STATOR_PRICE_H
#include "passes/cost/message.h"

/* least: of a byte that is sent, at least: 1 where bytes count. */
typedef struct Price {
    const Machine *machine;  /* NULL: bytes */
    const GroupShape *shape; /* by set of axes of the mesh */
    double least;
} Price;
Price price_of_bytes(void);
/* For programs on this mesh, the stage of so many, on a machine whose ranks have so many
 * threads. The memory lives as long as it. */
Price price_of_seconds(Arena *mem, const Machine *m, const Mesh *mesh, int stages,
                       int threads);
/* Of a collective (OpKind) over these axes for which a rank sends so many bytes of numbers of that
 * type. Where bytes count a start weighs as much as some: all_reduce has two. */
double price_to_send(const Price *p, int kind, Axes axes, DType type, double sent_bytes);
/* Of a step that sends nothing: less than any that does, but never 0. */
double price_of_nothing(const Price *p);

#endif
