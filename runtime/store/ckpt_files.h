/* ckpt_files.h - the folder and manifest of a checkpoint, shared by ckpt_save.c and
 * ckpt_load.c; see ckpt.h. */
#ifndef STATOR_CKPT_FILES_H
#define STATOR_CKPT_FILES_H
#include "runtime/store/ckpt.h"

enum { CKPT_VERSION = 4, CKPT_NAME_BYTES = 48, CKPT_RANKS_MAX = 1 << 20 };

/* Version 1: model.safetensors and optimizer.safetensors with whole tensors.
 * Version 2: layout.json (ckpt_table.h), then what each rank wrote, copies by the first.
 * Version 3: the same, and layout.json says of each tensor which copy was written.
 * Version 4: the same, and in layout.json of which stage a tensor is and which of the rows it has
 * that all stages have of it together. */
enum { CKPT_WHOLE = 1, CKPT_PARTS = 2, CKPT_SHARED = 3, CKPT_STAGES = 4 };
#define CKPT_MANIFEST "manifest.json"
#define CKPT_LAYOUT   "layout.json"
#define CKPT_LATEST   "latest"
#define CKPT_OLD_TMP  ".old.tmp" /* ends the name of one that another is to replace */

extern const char *const ckpt_file_name[CKPT_FILES];

typedef struct CkptFile {
    char name[CKPT_NAME_BYTES];
    int kind, rank; /* CKPT_MODEL or CKPT_OPTIMIZER of that rank; -1: layout.json */
    uint64_t bytes;
    char xxh3[HASH_HEX_BYTES];
} CkptFile;

typedef struct Manifest {
    int64_t version, step;
    int nfiles;
    CkptFile *file; /* layout.json first, then by rank and kind */
    const char *state_json;
} Manifest;

/* The name that a file of this kind and rank has; rank -1: layout.json. */
CkptFile ckpt_file(int64_t version, int kind, int rank);

/* The text of manifest.json: the last member is the XXH3-128 of all before it. */
Text manifest_text(Arena *mem, const Manifest *m);
/* Reads folder/manifest.json and compares the sizes of the files (not their content).
 * NULL, or what is damaged. With a version above CKPT_VERSION only that is filled. Fails as
 * ckpt_damage does. */
const char *manifest_read(Arena *mem, const char *folder, Manifest *m);
/* The same in two steps: the text as it is in the file, and its content. */
const char *manifest_fetch(Arena *mem, const char *folder, const char **text);
const char *manifest_parse(Arena *mem, const char *text, Manifest *m);
const char *manifest_sizes(Arena *mem, const char *folder, const Manifest *m);

/* step_%08d */
void ckpt_name(int64_t step, char name[CKPT_NAME_BYTES]);

typedef struct CkptEntry {
    int64_t step;
    bool tmp;
    char name[CKPT_NAME_BYTES];
} CkptEntry;

/* The checkpoints and .tmp folders in dir, largest step first. 0 or errno. */
int ckpt_list(Arena *mem, const char *dir, CkptEntry **entries, int *n);
int64_t ckpt_newest(Arena *mem, const char *dir); /* its step; -1: there is none */
/* dir/latest names this checkpoint of the folder from now on. 0 or errno. */
int ckpt_point_latest(Arena *mem, const char *dir, const char *name);
/* What a save that was killed in between has left: dir/latest names the checkpoint of this step, if
 * it is there. 0 or errno. */
int ckpt_mend_latest(Arena *mem, const char *dir, int64_t step);
/* The folder of the checkpoint that `path`, a file `latest`, names; any other path as it is. */
const char *ckpt_of_latest(Arena *mem, const char *path);
/* Deletes a folder of plain files. EBUSY when a save holds its lock. 0 or errno. */
int ckpt_remove(int dir_fd, const char *name);
/* Gives an .old.tmp in dir its name again where no other has taken it: a save was killed in between, on a
 * disk that cannot exchange names. For who has locked dir. */
void ckpt_give_back(Arena *mem, const char *dir);
/* Deletes the .tmp folders in dir that nobody writes: for who has locked dir, to write there. */
void ckpt_remove_leftovers(Arena *mem, const char *dir);

/* One process acts as all ranks, for tests: what[rank] is what each saves. */
int ckpt_save_ranks(const char *dir, const CkptSave *what, int ranks, char *why,
                    size_t why_size);
/* ckpt_load_dir as that rank would do it, alone. */
void ckpt_load_rank(Arena *mem, const char *folder, int rank, CkptTensor *t, int n);

#endif
