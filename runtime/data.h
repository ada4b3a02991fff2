/* data.h - where token batches come from: text, indexed token files, ready tensors. */
#ifndef STATOR_DATA_H
#define STATOR_DATA_H
#include "../ir/base.h"

/* What to read.
 * "TextFile": `path` is a file, a folder (all regular files below it, sorted by name,
 *     links not followed) or "embedded"; a token is a byte.
 * "MegatronIndexed": `path` with or without .bin/.idx names a pair of files.
 * "TensorBatches": `path` is a safetensors file with tensor `tokens`, int32 or int64
 *     [steps, batch, seq+1]; batches come in file order, `shuffle` does not apply.
 * batch 0 and seq 0 are taken from the file (TensorBatches alone).
 * vocab 0: the size is not known; tokens are only checked to be 0 .. 2^31-1. */
typedef struct DataSpec {
    const char *type;
    const char *path;
    int64_t batch, seq;
    uint64_t seed;
    bool shuffle;
    int64_t vocab;
} DataSpec;

/* An open source. It does not change after data_open: several threads may read it. */
typedef struct Data {
    int64_t batch, seq;
    int64_t samples;         /* sequences in one epoch */
    int64_t steps_available; /* TensorBatches: batches in the file; else -1: endless */
    int64_t tokens;          /* in the source, in all */
    int64_t vocab;
    uint64_t seed;
    bool shuffle;
    const char *path;
    const struct DataReader *reader;
    void *state; /* of the reader */
} Data;

/* Opens and checks a source; everything lives in the arena but file mappings, which
 * data_close gives back. Fails with EXIT_CONFIG for a wrong spec and EXIT_DATA for a file
 * that is missing, damaged or shorter than one sequence; then nothing is left open. */
Data *data_open(Arena *mem, const DataSpec *spec);
void data_close(Data *d);

/* Batch number `step` (from 0): inputs and labels, each [batch, seq] row by row; a label
 * is the token after its input. A pure function of spec and step: row r is sample number
 * step*batch + r of an endless stream; each epoch of the stream holds every sample once,
 * in an order of its own that depends on seed and epoch alone (or in file order without
 * shuffle). An epoch's last samples are not dropped: a batch may span two epochs.
 * Fails with EXIT_DATA for a token outside the vocabulary (file, document, offset) and
 * for a step that TensorBatches does not have. Allocates nothing. */
void data_batch(const Data *d, int64_t step, int32_t *tokens, int32_t *labels);

/* The same for rows [first_row, first_row + rows) of the batch, as [rows, seq]. */
void data_rows(const Data *d, int64_t step, int64_t first_row, int64_t rows,
               int32_t *tokens, int32_t *labels);

/* Place of item i in the order of `epoch`: a bijection on 0 .. n-1, computed from the
 * arguments alone (Feistel network on the next power of 4, walked back into range). */
int64_t data_permute(uint64_t seed, int64_t epoch, int64_t i, int64_t n);

/* Header and tables of an .idx file in memory. The pointers lead into `bytes` and are not
 * aligned: read them with memcpy. */
typedef struct IndexedTable {
    int token_bytes, dtype_code;
    int64_t sequences, documents;
    const unsigned char *lengths;   /* i32 [sequences] */
    const unsigned char *pointers;  /* i64 [sequences], byte offsets in the .bin */
    const unsigned char *doc_index; /* i64 [documents + 1], sequence numbers */
} IndexedTable;

/* Reads and checks an .idx of `n` bytes that belongs to a .bin of `bin_bytes`. Layout and
 * meaning: Megatron-LM's indexed_dataset.py; every offset, length and count is checked.
 * `name` is the .idx path for messages. Fails with EXIT_DATA: file, offset, what. */
IndexedTable indexed_parse(const char *name, const void *bytes, uint64_t n,
                           uint64_t bin_bytes);

/* A thread that makes batches ahead of the trainer. `steps` -1: without end; depth is
 * the number of batches made ahead, at least 1. Allocates here, never in between. */
typedef struct Prefetch Prefetch;
Prefetch *prefetch_start(const Data *d, int64_t first_step, int64_t steps, int depth);
/* Waits for the next batch; the pointers are valid until the next call. False when all
 * steps were handed out. A failure of data_batch ends this call the same way, after the
 * good batches before it; prefetch_stop is due then too. */
bool prefetch_next(Prefetch *p, const int32_t **tokens, const int32_t **labels);
void prefetch_stop(Prefetch *p);

/* The corpus in the program itself, from the project's sources and docs; made by the
 * build. */
extern const unsigned char embedded_corpus[];
extern const size_t embedded_corpus_bytes;

#endif
