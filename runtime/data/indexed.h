/* indexed.h - Megatron-LM's pairs of files: tokens (.bin) and where the sequences and
 * documents among them begin (.idx). Layout and meaning: its indexed_dataset.py. */
#ifndef STATOR_INDEXED_H
#define STATOR_INDEXED_H
#include "runtime/core/file_map.h"

/* Header and tables of an .idx file in memory. The pointers lead into its bytes and are not
 * aligned. */
typedef struct IndexedTable {
    int token_bytes, dtype_code;
    const char *dtype; /* "u16" */
    int64_t sequences, documents;
    const unsigned char *lengths;   /* i32 [sequences] */
    const unsigned char *pointers;  /* i64 [sequences], byte offsets in the .bin */
    const unsigned char *doc_index; /* i64 [documents + 1], sequence numbers */
} IndexedTable;

/* Reads and checks an .idx of `n` bytes that belongs to a .bin of `bin_bytes`: every offset,
 * length and count. `name` is the .idx path for messages. Fails with EXIT_DATA: file,
 * offset, what. */
IndexedTable indexed_parse(const char *name, const void *bytes, uint64_t n,
                           uint64_t bin_bytes);
/* Tokens of a sequence, and the token of the .bin that it begins with. */
static inline int64_t indexed_length(const IndexedTable *t, int64_t sequence) {
    int32_t v;
    memcpy(&v, t->lengths + 4 * sequence, sizeof v);
    return v;
}
static inline int64_t indexed_begin(const IndexedTable *t, int64_t sequence) {
    return i64_at(t->pointers, sequence) / t->token_bytes;
}
/* The number at p, of the element type with that code in a .idx. */
double indexed_number(const unsigned char *p, int code);

/* An open pair. */
typedef struct IndexedFile {
    FileMap idx, bin;
    const char *idx_path, *bin_path;
    IndexedTable table;
} IndexedFile;
/* `path` with or without .bin/.idx. Fails as data_open; close it after that too. */
void indexed_file_open(Arena *mem, IndexedFile *x, const char *path);
void indexed_file_close(IndexedFile *x);

#endif
