/* read.h - what the reader of mutants does with one file of each kind: read it through
 * the product's own functions, and write what was read in a form that another reader can
 * write too. See read.c. */
#ifndef STATOR_TESTS_MUTANTS_READ_H
#define STATOR_TESTS_MUTANTS_READ_H
#include "base/base.h"

/* Writes to out what it read at `path`, or fails as the product does. What else it needs
 * (a folder, keys) is in `more`. */
typedef void (*ReadKind)(Arena *mem, const char *path, const char *more, Text *out);

void read_safetensors(Arena *mem, const char *path, const char *more, Text *out);
void read_npy(Arena *mem, const char *path, const char *more, Text *out);
void read_indexed(Arena *mem, const char *path, const char *more, Text *out);
void read_gpt(Arena *mem, const char *path, const char *more, Text *out);
void read_rank_table(Arena *mem, const char *path, const char *more, Text *out);
void read_metrics(Arena *mem, const char *path, const char *more, Text *out);
void read_object(Arena *mem, const char *path, const char *more, Text *out);
void read_tokenizer(Arena *mem, const char *path, const char *more, Text *out);
void read_config(Arena *mem, const char *path, const char *more, Text *out);
void read_ir(Arena *mem, const char *path, const char *more, Text *out);
void read_hf(Arena *mem, const char *path, const char *more, Text *out);
void read_checkpoint(Arena *mem, const char *path, const char *more, Text *out);
void read_newest(Arena *mem, const char *path, const char *more, Text *out);
/* Writes checkpoints of a small model as several ranks to folders in `path`. */
void make_checkpoints(Arena *mem, const char *path, const char *more, Text *out);

/* " [2,3]" */
void put_shape(Text *out, int rank, const int64_t *dim);
/* A name, whatever is in it, in hex. */
void put_name(Text *out, const char *s);
/* " 1234abcd", CRC-32 of n bytes. */
void put_sum(Text *out, const void *bytes, size_t n);

#endif
