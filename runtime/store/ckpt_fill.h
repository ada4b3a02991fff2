/* ckpt_fill.h - filling this rank's tensors from the files of a checkpoint, whatever
 * ranks wrote them; see ckpt.h and ckpt_load.c. */
#ifndef STATOR_CKPT_FILL_H
#define STATOR_CKPT_FILL_H
#include "runtime/store/ckpt_comm.h"
#include "runtime/store/ckpt_stream.h"
#include "runtime/store/ckpt_table.h"

/* A tensor that is loaded, or some rows of one. */
typedef struct Wanted {
    CkptTensor *t;
    Layout layout; /* on this run's ranks */
    bool found;    /* the table has it */
    DType stored;  /* as what: that of t, or f32, which is rounded to it */
} Wanted;

/* What is wanted of the tensor that a row of the table has some of. */
typedef struct RowTarget {
    Wanted *wanted;
    int n;
} RowTarget;

typedef struct Load {
    Arena *mem;
    const char *folder;
    CkptGroup group;
    CkptTensor *t;
    int n;
    const Mesh *mesh;
    Manifest m;
    CkptTable table;
    Wanted *wanted;    /* [n], by file and tensor */
    RowTarget *target; /* by row of the table */
    bool want[CKPT_FILES];
    const char *misfit; /* the first difference to the model: no damage */
    int misfit_kind;    /* the kind of file that it is in */
} Load;

/* Reads what this rank holds, or gets it from rank 0, and checks the files; with a misfit
 * only that. NULL, or what is damaged as far as this rank saw. All ranks must call it. */
const char *fill_tensors(Load *l);
/* What the table is of: the name of a file, for messages. */
const char *load_table_name(const Load *l, int kind);

#endif
