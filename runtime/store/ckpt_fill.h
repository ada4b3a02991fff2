/* ckpt_fill.h - filling this rank's tensors from the files of a checkpoint, whatever
 * ranks wrote them; see ckpt.h and ckpt_load.c. */
#ifndef STATOR_CKPT_FILL_H
#define STATOR_CKPT_FILL_H
#include "runtime/store/ckpt_stream.h"
#include "runtime/store/ckpt_table.h"
#include "runtime/store/ckpt_talk.h"

typedef struct Load {
    Arena *mem;
    const char *folder;
    Crew crew;
    CkptTensor *t;
    int n;
    const Mesh *mesh;
    Manifest m;
    CkptTable table;
    CkptTensor **target; /* by row of the table; NULL: not wanted */
    Layout *layout;      /* of the target, on this run's ranks; by row */
    bool want[CKPT_FILES];
    const char *misfit; /* the first difference to the model: no damage */
} Load;

/* Reads what this rank holds, or gets it from rank 0, and checks the files; with a misfit
 * only that. NULL, or what is damaged as far as this rank saw. All ranks must call it. */
const char *fill_tensors(Load *l);
/* What the table is of: the name of a file, for messages. */
const char *load_table_name(const Load *l, int kind);

#endif
