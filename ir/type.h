/* type.h - types of tensors, with their placement on a mesh of ranks. ir.h includes it. */
#ifndef STATOR_TYPE_H
#define STATOR_TYPE_H
#include "base/base.h"
#include "base/dtype.h"

enum {
    MAX_RANK = 8, /* dimensions of a tensor */
    MAX_AXES = 8, /* axes of a mesh */
};
#define TYPE_MAX_BYTES ((int64_t)1 << 50)

/* Set of mesh axes, bit i = axis i. Where several split one dimension, the lowest bit is
 * the outermost ("cp.tp"), unless AXES_REVERSED is set ("tp.cp"); with fewer than two it
 * is not. */
typedef uint16_t Axes;
enum { AXES_REVERSED = 1 << 15 };
static inline Axes axes_normal(Axes a) {
    Axes bits = a & (Axes)~AXES_REVERSED;
    return bits & (bits - 1) ? a : bits;
}

typedef struct Mesh {
    int naxes;
    struct {
        const char *name;
        int size;
    } axis[MAX_AXES];
    /* How the ranks of all stages are numbered: axes from that on in which neighbouring ranks
     * differ, `naxes` for the stage. norder 0: axis naxes - 1, ..., axis 0, the stage. */
    int norder;
    uint8_t order[MAX_AXES + 1];
} Mesh;

/* A tensor type: `f32[8:dp,64]+tp` is 8 x 64 floats, dimension 0 split over axis dp, a
 * partial sum over axis tp. Sizes are those of the whole tensor up to level sharded, those
 * of one rank's part from level local on. */
typedef struct Type {
    DType dt;
    int rank;
    int64_t dim[MAX_RANK];
    Axes split[MAX_RANK]; /* axes that split a dimension */
    Axes pending;         /* axes over which it is a partial sum */
    uint8_t open;         /* bit d: dimension d is marked `:?`; layouts refuse it */
    bool open_sum;        /* the splits are decided, pending sums are not (`+?`) */
} Type;

/* type.c */
int64_t type_count(const Type *t); /* elements */
int64_t type_bytes(const Type *t);
Axes type_axes(const Type *t);                 /* that split any dimension, as a set */
bool type_equal(const Type *a, const Type *b); /* with placement */
bool type_same_shape(const Type *a, const Type *b); /* element type and sizes */
Type type_make(DType dt, int rank, const int64_t *dim);
#define TYPE(dt, ...)                                                                    \
    type_make((dt), ARRAY_LEN(((int64_t[]){__VA_ARGS__})), (int64_t[]){__VA_ARGS__})
Type type_scalar(DType dt);
/* A tensor seen as [before, count, after] around dimension `dim`. */
typedef struct TypeAround {
    int64_t before, count, after;
} TypeAround;
TypeAround type_around(const Type *t, int64_t dim);

/* mesh.c */
int mesh_ranks(const Mesh *m);
int mesh_coord(const Mesh *m, int rank, int axis);
bool mesh_axes_parse(const Mesh *m, const char *names, Axes *axes); /* "dp.cp", "" */
const char *mesh_axes_text(Arena *mem, const Mesh *m, Axes axes);   /* "dp.cp" */
int mesh_group_size(const Mesh *m, Axes axes);
/* A rank's number in its group, those that differ from it in `axes` only; and the k-th
 * member of that group. */
int mesh_group_coord(const Mesh *m, int rank, Axes axes);
int mesh_group_member(const Mesh *m, int rank, Axes axes, int k);
/* The k-th of what ranks are numbered by, neighbours first: an axis; naxes for the stage. */
int mesh_axis_at(const Mesh *m, int k);
/* Ranks of all stages together from one coordinate of an axis to the next; axis naxes: from one
 * stage to the next. */
int mesh_stride(const Mesh *m, int stages, int axis);
/* Which of all ranks is rank `nth` of a stage; and back. */
int mesh_rank_at(const Mesh *m, int stages, int stage, int nth);
void mesh_place(const Mesh *m, int stages, int rank, int *stage, int *nth);
/* Number in the whole tensor (a global type with its splits) of element i of a rank's
 * part. */
int64_t part_element(const Mesh *m, int rank, const Type *whole, int64_t i);
/* Is `local` the type that a rank has of `whole`? */
bool part_fits(const Mesh *mesh, const Type *whole, const Type *local);

#endif
