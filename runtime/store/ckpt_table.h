/* ckpt_table.h - what tensors a checkpoint holds and which rank wrote which part: the
 * content of layout.json, and the elements that two layouts share. See ckpt.h. */
#ifndef STATOR_CKPT_TABLE_H
#define STATOR_CKPT_TABLE_H
#include "runtime/store/ckpt_files.h"
#include "runtime/store/safetensors.h"

typedef struct CkptRow {
    const char *name;
    const char *tensor;    /* of which it has the rows of its layout; mostly `name` */
    int kind;              /* CKPT_MODEL or CKPT_OPTIMIZER */
    int dtype;             /* a DType, or -1 when it is not one of ours */
    const char *type_name; /* for messages */
    int rank;
    int64_t dim[SAFETENSORS_MAX_RANK];
    Layout layout; /* how the ranks that saved it held it */
    int copy;      /* that was written, of those that ranks held */
} CkptRow;

typedef struct CkptTable {
    Mesh mesh;  /* of the ranks that saved; the rows' layouts point here */
    int stages; /* each of which had such a mesh */
    int n;
    CkptRow *row; /* by kind, then name */
} CkptTable;

/* Are all tensors whole on every rank? Then rank 0 alone writes. */
bool ckpt_all_whole(const CkptTensor *t, int n);
/* The layout of t, or that of a whole tensor on this mesh (NULL: of one rank). Dies when
 * it contradicts the tensor's shape. */
Layout ckpt_layout(const CkptTensor *t, const Mesh *mesh);
const Mesh *ckpt_mesh(const CkptTensor *t, int n); /* that of the layouts, or NULL */
/* Has a tensor rows of what another has the rest of? */
bool ckpt_by_rows(const CkptTensor *t, int n);
int ckpt_stages(const CkptTensor *t, int n); /* at least 1 */
/* Did `rank` write a part of it? A mesh of no axes has rank 0 only. */
bool ckpt_writes(const CkptRow *row, int rank);
/* Which copy of each tensor is to be written, so that the bytes that ranks write are as
 * even as whole tensors allow. The same on all ranks. */
int *ckpt_share(Arena *mem, const CkptTensor *t, int n);
/* Shape of a rank's part, in elements. */
int ckpt_part_shape(const Layout *l, int64_t dim[SAFETENSORS_MAX_RANK]);

/* The text of layout.json. Of tensors in memory (copy[n] of which are written; NULL: the
 * first), or of the files of a checkpoint that has
 * only whole tensors (st[kind], NULL: not read). */
Text table_text(Arena *mem, const CkptTensor *t, int n, const int *copy);
Text table_text_of_files(Arena *mem, const Safetensors *const st[CKPT_FILES]);
/* NULL, or what is wrong. */
const char *table_parse(Arena *mem, const char *text, CkptTable *table);
CkptRow *table_find(const CkptTable *table, int kind, const char *name); /* or NULL */
/* What `rank` wrote of a row, in its file; NULL when it is not as the row says. */
const SafeTensor *table_part(const CkptRow *row, int rank, const Safetensors *st);

/* The elements, of the first `limit` of a tensor, that rank_a holds by layout a and
 * rank_b by layout b, as runs: elements [a_at, a_at + count) of rank_a's part are
 * elements [b_at, b_at + count) of rank_b's. Both grow from run to run. */
typedef struct Overlap {
    LayoutWalk a, b;
    int64_t limit;
    int64_t a_at, b_at, count;
    int64_t a_used, b_used; /* of the walks' runs; private */
} Overlap;
Overlap overlap_of(const Layout *a, int rank_a, const Layout *b, int rank_b,
                   int64_t limit);
bool overlap_next(Overlap *o);

#endif
