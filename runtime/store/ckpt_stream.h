/* ckpt_stream.h - reading a file of a checkpoint forward, with or without hashing all of
 * it; see ckpt.h. Functions return NULL, or a sentence on what is damaged, in mem; a file that cannot
 * be read for the moment fails with EXIT_CHECKPOINT. */
#ifndef STATOR_CKPT_STREAM_H
#define STATOR_CKPT_STREAM_H
#include "runtime/store/ckpt_files.h"
#include "runtime/store/safetensors.h"

typedef struct CkptStream {
    Arena *mem;
    const CkptFile *file;
    const char *path;
    int fd;
    bool verify; /* every byte is read and hashed */
    uint64_t at; /* of the next byte that is handed out */
    char *buffer;
    size_t used, have;
    void *hash; /* of the bytes read, when verifying */
} CkptStream;

/* What is said of a file of a checkpoint that gives this error, in mem. Fails with
 * EXIT_CHECKPOINT for an error that says nothing of what is in the file: who took it for damaged
 * would go on without it, and write over it. */
const char *ckpt_damage(Arena *mem, const char *path, int error);

/* Opens a file of the manifest, at its first byte; what is read is in mem. stream_close closes it,
 * also after another function here, or this one, has returned what is wrong. */
const char *stream_open(CkptStream *s, Arena *mem, const char *folder,
                        const CkptFile *file, bool verify);
/* The next n bytes, copied to out (NULL: to nowhere). */
const char *stream_pull(CkptStream *s, char *out, uint64_t n);
/* The next bytes will be those from `at` on: not before the present ones when verifying.
 */
const char *stream_seek(CkptStream *s, uint64_t at);
/* The header of a safetensors file, at its start. */
const char *stream_header(CkptStream *s, Safetensors **st);
/* When verifying: reads the rest and compares the hash with the manifest's. */
const char *stream_check(CkptStream *s);
void stream_close(CkptStream *s);

#endif
