/* ckpt.h - training checkpoints that survive kill -9, full disks and flipped bits.
 * A checkpoint is a folder step_00000012 with model.safetensors, optimizer.safetensors
 * and manifest.json (size and XXH3-128 of each file and of itself, and the run's state).
 * It gets that name only when it is complete and on disk; until then, and while it is
 * being deleted, it is called step_00000012.tmp.
 * Checkpoints hold global tensors. When ranks hold parts of them, each writes its own
 * model.rank_00002.safetensors and optimizer.rank_00002.safetensors, and layout.json says
 * what part of what each is; any other mesh, or one process, can load that again.
 * Ranks of the stages of a pipeline hold rows of a tensor each: parts with a name each, and
 * t[] has those of all stages on all ranks, data NULL where another stage has them.
 * Saving and loading are collective: all ranks call them with the same tensors (but their
 * own data), and all get the same answer. */
#ifndef STATOR_CKPT_H
#define STATOR_CKPT_H
#include "base/base.h"
#include "base/dtype.h"
#include "ir/layout.h"

enum { CKPT_STATE_MAX_BYTES = 32 << 20 };
enum { CKPT_MODEL = 0, CKPT_OPTIMIZER = 1, CKPT_FILES = 2 };

typedef struct CkptTensor {
    const char *name; /* unique within its file */
    DType dtype;
    int rank;
    int64_t dim[8]; /* of the global tensor */
    void *data;     /* this rank's part, row-major: layout_local_count elements */
    int file;       /* CKPT_MODEL or CKPT_OPTIMIZER */
    /* NULL: the whole tensor is on every rank. layout->whole has the sizes of dim, except
     * that its first may be larger: rows past dim[0] are padding and not looked at. The
     * mesh is the same for all tensors and has comm_size() ranks over all stages. */
    const Layout *layout;
    /* The tensor of which layout has some rows; others have the rest by other names. NULL:
     * that of `name`. */
    const char *tensor;
} CkptTensor;

/* What a rank saves, and which checkpoints stay: the newest `keep` intact ones up to this step (0:
 * all) and that of step `spare` (-1: none), which the caller knows to be good. */
typedef struct CkptSave {
    int64_t step;
    const CkptTensor *t;
    int n;
    /* Rank 0's JSON object, of CKPT_STATE_MAX_BYTES at most; NULL is {}. */
    const char *state_json;
    int keep;
    int64_t spare;
} CkptSave;

/* Saves it as dir/step_%08d, then points dir/latest (a text file with the folder's name)
 * to it, then deletes all that do not stay. Returns 0, or an errno
 * value with a sentence in `why`: nothing of the attempt is left and the older ones are
 * untouched, so the caller may go on and try again. A failure after the rename (latest,
 * deleting) is minus an errno value: the new checkpoint is good nevertheless.
 * Of several ranks each writes what it holds; of what several hold each tensor is written
 * by one, so that all write about as much. Ranks that do not see rank 0's folder (hosts
 * that share no disk) send theirs to rank 0, in small pieces, and then it is always the
 * first holder that writes or sends; `why` has a line on that although 0 is returned,
 * else it is empty. Under a file size limit the process must ignore SIGXFSZ to get EFBIG
 * here. */
int ckpt_save(const char *dir, const CkptSave *what, char *why, size_t why_size);

/* Fills t[i].data from the newest good checkpoint (largest step) in dir. Each damaged one
 * on the way gets a line in `log` (may be NULL). Nothing in dir is changed.
 * When no tensor asks for the optimizer's file, that is not read.
 * *state_json (may be NULL) is the object as it was saved; *step may be NULL.
 * Padding becomes 0. What was saved as f32 is rounded for a tensor of bf16 or f16. Rank 0
 * chooses the checkpoint; ranks that do not see its folder get
 * their parts from rank 0, which is a line in `log`.
 * Returns false when there is no checkpoint (or no dir). Fails with EXIT_CHECKPOINT when
 * there are some but none is good, when names, shapes or types differ from t, and when
 * another rank sees checkpoints in dir but rank 0 none. */
bool ckpt_load_latest(Arena *mem, const char *dir, CkptTensor *t, int n,
                      char **state_json, int64_t *step, Text *log);
/* The same for one checkpoint folder of any name; fails when it is missing or damaged. */
void ckpt_load_dir(Arena *mem, const char *folder, CkptTensor *t, int n,
                   char **state_json, int64_t *step);

/* Who loads may say in what its configuration differs from that in the state of a checkpoint which
 * is of another model: words that begin with "; ", or "". NULL: nobody does. */
typedef const char *CkptExplain(void *context, const char *state_json);
void ckpt_explain(CkptExplain *explain, void *context);

/* The state that a checkpoint has; `name` is what failures, with EXIT_CHECKPOINT, call it. */
const struct Json *ckpt_state_parse(Arena *mem, const char *name, const char *state_json);

/* For tests: called, when set, at named instants of ckpt_save ("rename.before", ...). */
extern void (*ckpt_failpoint)(const char *where);

#endif
