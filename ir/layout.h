/* layout.h - which elements of a global tensor an argument of a program holds on a rank.
 * A tensor is cut into boxes by the splits of its dimensions. A box may further be
 * flattened (all but a leading dimension of stacked layers), padded and cut over more
 * axes; optimizer shards are stored like that. */
#ifndef STATOR_LAYOUT_H
#define STATOR_LAYOUT_H
#include "ir/ir.h"

typedef struct Layout {
    const Mesh *mesh;
    Type whole;     /* the global tensor; whole.split[] cuts it into boxes */
    Axes flat;      /* axes that cut the flattened box, outermost = lowest bit */
    bool flattened; /* the argument is [lead..., boxes, padded] instead of a box */
    int lead;       /* dimensions kept in front when flattened: 0 or 1 */
    int stages;     /* of the pipeline; 0: one. Stage s has ranks [s, s + 1) x those of
                       the mesh */
    int stage;      /* whose ranks hold it; -1: those of every stage */
    int64_t first, rows; /* rows of dimension 0 that it has; rows = 0: all. No axis splits
                            them unless it has all */
    int64_t padded;      /* elements of a flattened box per lead index, over all parts */
} Layout;

/* Of argument i of an entry function at level local or later: from its attributes
 * `global` (a type text such as "f32[4,32,96:tp]") and, when flattened, `flat` (axes such
 * as "dp.cp", "" for none) and `lead`; without them the argument is the whole tensor on
 * every rank. Of an argument that is `turned` ("abc->acb") it is that of the tensor in the first
 * order, as files have it. Fails with EXIT_CONFIG when they contradict the mesh or the argument. */
Layout layout_of(Arena *mem, const Func *entry, int i);
/* The part of argument i that a rank holds, dimensions in that first order, and how many of them
 * are in front of the two groups that have changed places, and in the first of these; false: it is
 * not turned. */
bool layout_turned(const Func *entry, int i, Type *before, int *lead, int *group);
/* The same from its parts, with all rows and on every stage; flat NULL: boxes as they are.
 * Returns NULL and *l, or a sentence on what is wrong. The mesh must stay. */
const char *layout_make(Arena *mem, const Mesh *mesh, const Type *whole, const char *flat,
                        int64_t lead, Layout *l);
/* Elements of a flattened box that the parts of `flat` need; it may have more, as its optimizer
 * state is cut into more of them. layout_pad sets how many: NULL, or what is wrong. */
int64_t layout_least_padded(const Layout *l);
const char *layout_pad(Layout *l, int64_t padded);
/* Cuts it down to rows [first, first + rows); NULL, or what is wrong. */
const char *layout_rows(Layout *l, int64_t first, int64_t rows);
/* Elements this rank's argument has, with padding. */
int64_t layout_local_count(const Layout *l);
/* Does this rank, of those of all stages, hold any of it? */
bool layout_holds(const Layout *l, int rank);
/* Ranks along axes that cut nothing hold the same elements: the number of such copies,
 * and the number of the copy that `rank` holds, from 0. */
int layout_copies(const Layout *l);
int layout_copy(const Layout *l, int rank);

/* The runs of consecutive elements that a rank holds: elements [local, local + count) of
 * its argument are elements [global, global + count) of the whole tensor. Padding is in
 * none. Both grow from run to run. */
typedef struct LayoutWalk {
    const Layout *l;
    int64_t first[MAX_RANK], size[MAX_RANK]; /* the box; private, down to `more` */
    int64_t row;                             /* elements of a box that stay consecutive */
    int64_t box, part; /* elements of a box and of a part, per lead index */
    int64_t begin, end, at, lead_at;
    bool more;
    int64_t local, global, count; /* the current run */
} LayoutWalk;
LayoutWalk layout_walk(const Layout *l, int rank);
bool layout_next(LayoutWalk *w); /* false: no further run */

/* Copies what `rank` holds of a whole tensor into its part, whose padding stays as it is;
 * and the other way round. Both have elements of type whole.dt. */
void layout_scatter(const Layout *l, int rank, const void *whole, void *part);
void layout_gather(const Layout *l, int rank, const void *part, void *whole);

#endif
