/* ckpt_comm.h - messages between the ranks while they save and load a checkpoint. With
 * one rank, and when one process acts as a rank in a test, nothing is sent. See
 * ckpt.h. */
#ifndef STATOR_CKPT_COMM_H
#define STATOR_CKPT_COMM_H
#include "base/base.h"

enum { CKPT_CHUNK_BYTES = 1 << 20 };

/* Ranks count as layouts count them (comm_place). */
typedef struct CkptGroup {
    int rank, ranks;
    bool alone;   /* there are no other ranks */
    bool *remote; /* by rank: does not see rank 0's folder; NULL: not asked yet */
    int nremote, first_remote; /* of processes */
    const char *remote_host;
} CkptGroup;
CkptGroup group_of_comm(void);
CkptGroup group_alone(int rank, int ranks);
/* The number of its process, for messages. */
int group_process(const CkptGroup *c, int rank);

/* 0 on all ranks, or on all ranks the error and sentence of the first rank that has
 * one. */
int group_agree(const CkptGroup *c, int error, char *why, size_t why_size);
/* The same for sentences (NULL: nothing wrong), in mem. */
const char *group_agree_wrong(const CkptGroup *c, Arena *mem, const char *wrong);
/* Rank 0's text on all ranks. */
const char *group_share(const CkptGroup *c, Arena *mem, const char *text);
/* Every rank's bytes; not alone. */
const void *group_gather(const CkptGroup *c, Arena *mem, const void *mine, size_t bytes);
/* Fills remote, nremote, ...: every rank says whether it sees the folder of rank 0. */
void group_find_remote(CkptGroup *c, Arena *mem, bool i_see);

/* A stream of bytes between rank 0 and a remote rank, in chunks. Both know `total`. */
typedef struct CkptPipe {
    int peer;
    uint64_t total, done; /* bytes put or taken */
    char *chunk;          /* CKPT_CHUNK_BYTES */
    size_t used, have;
} CkptPipe;
CkptPipe pipe_of(Arena *mem, int peer, uint64_t total);
void pipe_put(CkptPipe *p, const void *bytes, uint64_t n); /* NULL: zeros */
void pipe_take(CkptPipe *p, void *bytes, uint64_t n);

#endif
