/* tile_group.h - which ops of a function can go over rows a part at a time, so that a large
 * value is never whole in memory. Rows are the first dimensions of the value; the group are
 * the ops that read or write values of its iteration space, and those between them. For pass
 * tile, which makes a loop of a group. Level local. */
#ifndef STATOR_TILE_GROUP_H
#define STATOR_TILE_GROUP_H
#include "passes/passes.h"

typedef struct TileGroup {
    Arena *mem;
    Func *f;     /* numbered */
    bool *has;   /* by op id: it is in the group */
    bool *after; /* by op id: it needs what the group makes, and is not in it */
    bool *large; /* by value id: it has every dimension of the large value */
    bool *sum;   /* by value id: the group makes it, as a sum over rows */
    int *
        lead; /* by value id: so many of its first dimensions are the rows; 0: it has none */
    Op *last;                /* of the group */
    int64_t rows, tile_rows; /* of all, and of a tile; the second divides the first */
} TileGroup;

/* The group of a value that an op makes, and the rows of its tiles: as many as keep the large
 * values that a tile has in memory within o->tile_bytes, or within a quarter of the sums that
 * all tiles add to, but not fewer than o->tile_rows. False: the value is small,
 * or something needs the whole of it, or ops of the group are not the same on a part of the
 * rows. The caller frees g->mem, which may be NULL. */
bool tile_group_find(TileGroup *g, const Value *seed, const PassOptions *o);
/* The type of a tile of so many rows, of a type whose first `lead` dimensions are the rows:
 * neighbours in memory. False: such tiles are no boxes. */
bool tile_type(const Type *t, int lead, int64_t tile_rows, Type *tile);

#endif
