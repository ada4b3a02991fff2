/* ckpt_files.h - the folder and manifest of a checkpoint, shared by ckpt_save.c and
 * ckpt_load.c; see ckpt.h. */
#ifndef STATOR_CKPT_FILES_H
#define STATOR_CKPT_FILES_H
#include "ckpt.h"

enum { CKPT_VERSION = 1, CKPT_NAME_BYTES = 48 };

extern const char *const ckpt_file_name[CKPT_FILES];

typedef struct Manifest {
    int64_t version, step;
    struct {
        uint64_t bytes;
        char xxh3[33];
    } file[CKPT_FILES];
    const char *state_json;
} Manifest;

/* The text of manifest.json: the last member is the XXH3-128 of all before it. */
Text manifest_text(Arena *mem, const Manifest *m);
/* Reads folder/manifest.json and compares the sizes of the files (not their content).
 * NULL, or what is damaged. With a version above CKPT_VERSION only that is filled. */
const char *manifest_read(Arena *mem, const char *folder, Manifest *m);

/* step_%08d */
void ckpt_name(int64_t step, char name[CKPT_NAME_BYTES]);

typedef struct CkptEntry {
    int64_t step;
    bool tmp;
    char name[CKPT_NAME_BYTES];
} CkptEntry;

/* The checkpoints and .tmp folders in dir, largest step first. 0 or errno. */
int ckpt_list(Arena *mem, const char *dir, CkptEntry **entries, int *n);
/* Deletes a folder of plain files. EBUSY when a save holds its lock. 0 or errno. */
int ckpt_remove(int dir_fd, const char *name);

#endif
