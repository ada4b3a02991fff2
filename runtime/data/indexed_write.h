/* indexed_write.h - writes Megatron-LM's .bin/.idx pairs (its indexed_dataset.py) as a
 * stream: memory does not grow with the data. Until all is on disk the files are called
 * PREFIX.bin.tmp and PREFIX.idx.tmp; an .idx under its final name always belongs to the
 * .bin next to it. */
#ifndef STATOR_INDEXED_WRITE_H
#define STATOR_INDEXED_WRITE_H
#include "base/base.h"

typedef struct IndexedWriter IndexedWriter;

/* Element type of the tokens of a vocabulary, as Megatron's preprocess_data.py takes it:
 * u16 (code 8) below 65500 tokens, else i32 (code 4). Bytes of a token. */
static inline int indexed_token_bytes(int64_t vocab) {
    return vocab < 65500 ? 2 : 4;
}

/* Documents as a worker has made them: tokens in their element type, the length of each
 * sequence, and for each document how many of the sequences are its own (0: it is empty
 * and only counts). */
typedef struct IndexedPart {
    const void *tokens;
    size_t token_bytes; /* of all of them */
    const int32_t *lengths;
    size_t nlengths;
    const int32_t *sequences;
    size_t nsequences;
} IndexedPart;

/* Begins PREFIX.bin and PREFIX.idx; makes the folder. Fails with EXIT_DATA when it cannot
 * be written or when another process is writing the same pair. */
IndexedWriter *indexed_write_open(Arena *mem, const char *prefix, int64_t vocab);
/* Fails with EXIT_DATA when the disk is full or at its limit: file and offset. */
void indexed_write_add(IndexedWriter *w, const IndexedPart *part);
/* Completes both files and puts them on disk, still as .tmp: a disk can fill until here
 * and not after. Fails with EXIT_DATA. */
void indexed_write_complete(IndexedWriter *w);
/* Takes the .idx of an older pair away: it must never be next to the new .bin, or to what else
 * belongs to the new pair. Fails with EXIT_DATA. */
void indexed_write_withdraw(IndexedWriter *w);
/* Then gives them their names; an older pair is replaced. Fails with EXIT_DATA. */
void indexed_write_publish(IndexedWriter *w);
/* Closes everything and removes what is not finished; nothing after publish. */
void indexed_write_close(IndexedWriter *w);

/* What has been added so far; the prefix that it was opened with. */
uint64_t indexed_write_documents(const IndexedWriter *w);
uint64_t indexed_write_sequences(const IndexedWriter *w);
uint64_t indexed_write_tokens(const IndexedWriter *w);
const char *indexed_write_prefix(const IndexedWriter *w);

#endif
