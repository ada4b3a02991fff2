/* ckpt.h - training checkpoints that survive kill -9, full disks and flipped bits.
 * A checkpoint is a folder step_00000012 with model.safetensors, optimizer.safetensors
 * and manifest.json (size and XXH3-128 of each file and of itself, and the run's state).
 * It gets that name only when it is complete and on disk; until then, and while it is
 * being deleted, it is called step_00000012.tmp. */
#ifndef STATOR_CKPT_H
#define STATOR_CKPT_H
#include "../ir/base.h"
#include "../ir/dtype.h"

enum { CKPT_MODEL = 0, CKPT_OPTIMIZER = 1, CKPT_FILES = 2 };

typedef struct CkptTensor {
    const char *name; /* unique within its file */
    DType dtype;
    int rank;
    int64_t dim[8];
    void *data; /* dense, row-major */
    int file;   /* CKPT_MODEL or CKPT_OPTIMIZER */
} CkptTensor;

/* Saves t[n] and the JSON object state_json (NULL is {}) as dir/step_%08d, then points
 * dir/latest (a text file with the folder's name) to it, then deletes all but the newest
 * `keep` intact checkpoints up to this step (0 keeps all). Returns 0, or an errno value
 * with a sentence in `why`: nothing of the attempt is left and the older checkpoints are
 * untouched, so the caller may go on and try again. A failure after the rename (latest,
 * deleting) is reported the same way, the new checkpoint is then good nevertheless.
 * Under a file size limit the process must ignore SIGXFSZ to get EFBIG here. */
int ckpt_save(const char *dir, int64_t step, const CkptTensor *t, int n,
              const char *state_json, int keep, char *why, size_t why_size);

/* Fills t[i].data from the newest good checkpoint (largest step) in dir. Each damaged one
 * on the way gets a line in `log` (may be NULL). Leftover .tmp folders that nobody is
 * writing are removed. When no tensor asks for the optimizer's file, that is not read.
 * *state_json (may be NULL) is the object as it was saved; *step may be NULL.
 * Returns false when there is no checkpoint (or no dir). Fails with EXIT_CHECKPOINT when
 * there are some but none is good, and when names, shapes or types differ from t. */
bool ckpt_load_latest(Arena *mem, const char *dir, CkptTensor *t, int n,
                      char **state_json, int64_t *step, Text *log);
/* The same for one checkpoint folder of any name; fails when it is missing or damaged. */
void ckpt_load_dir(Arena *mem, const char *folder, CkptTensor *t, int n,
                   char **state_json, int64_t *step);

/* For tests: called, when set, at named instants of ckpt_save ("rename.before", ...). */
extern void (*ckpt_failpoint)(const char *where);

#endif
