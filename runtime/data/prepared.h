/* prepared.h - files of prepared data (indices, tokens): read where they are whole and of what
 * is asked for, else made anew by the caller and written. */
#ifndef STATOR_PREPARED_H
#define STATOR_PREPARED_H
#include "runtime/core/file_map.h"

/* One such file: a frame of PREPARED_FRAME bytes (magic, key, size, checksums) and the data
 * after it. `note` gets a line where it cannot be used or written, and stays else. */
typedef struct Prepared {
    const char *what; /* for the note: "token cache" */
    const char *path;
    const char *folder;       /* is made before the file is written; NULL: is there */
    char key[HASH_HEX_BYTES]; /* 32 hex digits that identify what the data is made from */
    char *note;               /* [PREPARED_NOTE] */
} Prepared;
enum { PREPARED_FRAME = 64, PREPARED_NOTE = 512 };

/* Takes the n bytes of data into use, 8-byte aligned; false: they contradict themselves. */
typedef bool PreparedUse(void *context, const void *data, uint64_t n);

/* Maps the file and has its data used, until *held is unmapped; false: make it anew. */
bool prepared_read(const Prepared *f, PreparedUse *use, void *context, FileMap *held);
/* Room for n bytes of data, as prepared_write takes them. */
void *prepared_buffer(Arena *mem, uint64_t n);
/* Replaces the file as a whole; several processes may do so at once, each on a disk of its
 * own or all on one. */
void prepared_write(const Prepared *f, void *data, uint64_t n);

/* Size of the data in the bytes of such a file, or -1 and the reason. */
int64_t prepared_check(const void *bytes, uint64_t n, const char key[HASH_HEX_BYTES],
                       const char **why);
/* Are the bytes, by their first ones, those of such a file? */
bool prepared_begins(const void *bytes, uint64_t n);

#endif
