/* ckpt_shard.h - the files of one rank in a checkpoint that is being written; see ckpt.h.
 * Functions that return int: 0 or an errno value. */
#ifndef STATOR_CKPT_SHARD_H
#define STATOR_CKPT_SHARD_H
#include "runtime/store/ckpt_comm.h"
#include "runtime/store/ckpt_table.h"

typedef struct ShardFile {
    CkptFile as; /* name; once written also bytes and xxh3 */
    bool there;
    SafeTensor *t;
    int n;
    SafeLayout layout;
} ShardFile;

typedef struct CkptShard {
    int rank;
    ShardFile file[CKPT_FILES];
} CkptShard;

/* What `rank` writes of t[n]: its parts of those of which it holds copy number copy[i]
 * (copy NULL: 0 of all). Of version CKPT_WHOLE rank 0 writes both files and the others
 * none; else there is a file when there is something in it. t[].data
 * are those of the rank when this process writes or sends them, else not looked at.
 * Returns NULL, or the file that has two tensors of one name or a bad shape. */
const ShardFile *shard_plan(Arena *mem, CkptShard *s, int64_t version, int rank,
                            const CkptTensor *t, int n, const int *copy);
/* Creates a file and reserves its room. */
int shard_create(const ShardFile *f, int folder_fd);
/* Fills and syncs it, with data from the tensors or, when not NULL, from the pipe (which
 * is then emptied also after a failure). */
int shard_write(ShardFile *f, int folder_fd, CkptPipe *from, char *chunk);
uint64_t shard_data_bytes(const CkptShard *s);
void shard_send(const CkptShard *s, CkptPipe *to);

/* A small file, synced. Its size and hash in *as when not NULL. */
int shard_write_text(int folder_fd, const char *name, const Text *text, CkptFile *as);

static inline void ckpt_reach(const char *where) {
    if (ckpt_failpoint) ckpt_failpoint(where);
}

#endif
