/* data.h - where token batches come from: text, indexed token files, ready tensors. */
#ifndef STATOR_DATA_H
#define STATOR_DATA_H
#include "base/base.h"

/* What to read.
 * "TextFile": `path` is a file, a folder (all regular files below it, sorted by name,
 *     links not followed) or "embedded"; a token is a byte, or with the tokenizer of `gpt`
 *     one of its tokens, which are kept in a cache. A split is a stretch of tokens.
 * "MegatronIndexed": `path` with or without .bin/.idx names a pair of files. A split is
 *     some consecutive documents.
 * "GPTDataset": Megatron-LM's data set of one split of one .bin/.idx pair or a blend of
 *     them; see DataGptSpec. The order is Megatron's: `seed` its random seed, `shuffle`
 *     does not apply, and there are no batches beyond the samples asked for.
 * "WebtextDataset": `path` is loose JSON (an object with a text on each line); a sample
 *     is one text, cut or padded to seq tokens; see DataGptSpec.
 * "TensorBatches": `path` is a safetensors file with tensor `tokens`, int32 or int64
 *     [steps, batch, seq+1]; batches come in file order, `shuffle` does not apply.
 * "Tensors": `path` is a safetensors file, or a folder of .npy files, with a tensor
 *     [samples, ...] for each column of the spec; a sample is slice i of each, seq is 1
 *     and there are no tokens.
 * `gpt` has the split of any type but TensorBatches; NULL: everything is train.
 * batch 0 and seq 0 are taken from the file (TensorBatches alone).
 * vocab 0: the size is not known; tokens are only checked to be 0 .. 2^31-1. */
typedef enum DataSplit { SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST, SPLIT_COUNT } DataSplit;
extern const char *const data_split_name[SPLIT_COUNT]; /* "train", ... */

/* The split of a GPTDataset where none is given, as Megatron-LM has it. */
#define DATA_GPT_SPLIT "969,30,1"

/* The split, and what GPTDataset and WebtextDataset need besides the rest. A blend is the
 * words of `paths`: "w1 p1 w2 p2 ..." (weights and what they belong to) or "p1 p2 ...";
 * one item with blanks that is not itself a file is split at the blanks. With weights
 * `samples` must be given, or `once`; without, sources count by their sizes. */
typedef struct DataGptSpec {
    const char *const *paths; /* GPTDataset; n_paths 0: DataSpec.path alone */
    int n_paths;
    DataSplit which;
    const char *split; /* "949,50,1"; "": all is train, of GPTDataset DATA_GPT_SPLIT */
    int64_t samples;   /* asked for; -1: what `epochs` passes hold */
    int64_t epochs;    /* at least 1 */
    bool once;         /* each source once, whatever the weights */
    const char *cache_path; /* folder for indices and tokens; "": see the readers */
    int64_t eod;            /* token that ends a document; -1: none */
    bool reset_position_ids, reset_attention_mask, eod_mask_loss;
    /* Token that fills up; -1: WebtextDataset eod, else the tokenizer's; GPTDataset none. */
    int64_t pad;
    /* WebtextDataset: */
    const char *text_key; /* "" is "text" */
    bool pad_in_loss;     /* the model learns to go on padding */
    /* WebtextDataset, TextFile; or NULL: */
    const char *tokenizer_type, *vocab_file, *merge_file, *tokenizer_file;
} DataGptSpec;

/* What a source of type Tensors gives for each sample under one name, row-major. */
typedef struct DataColumn {
    const char *name;
    bool is_float; /* elements are f32, else i32 */
    int rank;
    int64_t dim[8], count; /* of a sample: dimensions and their product */
    int64_t low, high;     /* an integer is low .. high - 1; high 0: up to 2^31 - 1 */
} DataColumn;

typedef struct DataSpec {
    const char *type;
    const char *path;
    int64_t batch, seq;
    uint64_t seed;
    bool shuffle;
    int64_t vocab;
    const DataGptSpec *gpt;   /* NULL: no split */
    const DataColumn *column; /* Tensors; they must stay as long as the source */
    int ncolumns;
    /* The end of a stream of tokens, which fills no sequence, is a last sample, whose labels
     * behind it are -1; else it is left out. */
    bool rest;
} DataSpec;

/* An open source. It does not change after data_open: several threads may read it. */
typedef struct Data {
    int64_t batch, seq;
    int64_t samples;         /* sequences in one epoch; GPTDataset: in all */
    int64_t steps_available; /* TensorBatches, GPTDataset: batches there; -1: endless */
    int64_t tokens;          /* in the source, in all */
    int64_t moved;           /* see data_go_on; else 0 */
    uint64_t order;          /* GPTDataset: a mark of the order, which depends on how many
                                samples were asked for; else 0 */
    int64_t rest;            /* labels of the last sample, below seq; 0: it has all */
    int64_t vocab;
    uint64_t seed;
    bool shuffle;
    const char *path;
    const struct DataReader *reader;
    void *state;      /* of the reader */
    DataGptSpec *gpt; /* a copy; its texts are those of data_open's caller */
    const DataColumn *column;
    int ncolumns;
    char note[512]; /* one line for the user (a cache that was rebuilt), or "" */
} Data;

/* The words of data_path, of which there are *n before and behind: one item alone may hold a whole
 * blend with blanks between, unless it, or its .idx, is a file. */
const char *const *data_path_words(Arena *mem, const char *const *paths, int *n);
/* Opens and checks a source; everything lives in the arena but file mappings, which
 * data_close gives back. The texts of spec->gpt must stay as long as the source. Fails
 * with EXIT_CONFIG for a wrong spec (about "seed" or "samples" where it is one of these) and
 * EXIT_DATA for a file that is missing, damaged or shorter than one sequence; then nothing is
 * left open. */
Data *data_open(Arena *mem, const DataSpec *spec);
/* Is there no file of this name, but a .bin/.idx pair with it as prefix? */
bool data_is_pair(Arena *mem, const char *path);
void data_close(Data *d);
/* Batch `step` begins with sample `sample`, and those behind it follow: of a run whose
 * batches had another size up to there. Before anybody reads; TensorBatches have their own. */
void data_go_on(Data *d, int64_t step, int64_t sample);

/* All that a batch has, each [batch, seq]. `tokens` must be there; the others are NULL
 * where they are not needed. A source of columns fills `column` and nothing else.
 *   positions     position id; begins again after the end of a document with
 *                 reset_position_ids, else 0 .. seq - 1
 *   attends_from  first position that this one attends to: 0, or with
 *                 reset_attention_mask the first one of its document
 *   loss_mask     0 where the label does not count (eod_mask_loss, padding), else 1
 * A label that does not count is -1, unless keep_labels: so a step that reads only labels
 * leaves it out as well. */
typedef struct DataBatch {
    int32_t *tokens, *labels, *positions, *attends_from;
    float *loss_mask;
    bool keep_labels;
    void **column; /* [ncolumns], each [batch, count] elements of 4 bytes */
} DataBatch;
/* Batch number `step` (from 0): inputs and labels, each [batch, seq] row by row; a label
 * is the token after its input. A pure function of spec and step: row r is sample number
 * step*batch + r of an endless stream; each epoch of the stream holds every sample once,
 * in an order of its own that depends on seed and epoch alone (or in file order without
 * shuffle). An epoch's last samples are not dropped: a batch may span two epochs.
 * Fails with EXIT_DATA for a token outside the vocabulary (file, document, offset) and
 * for a step that TensorBatches does not have. Allocates nothing. */
void data_batch(const Data *d, int64_t step, const DataBatch *out);
/* The same for rows [first_row, first_row + rows) of the batch, as [rows, seq]. */
void data_rows(const Data *d, int64_t step, int64_t first_row, int64_t rows,
               const DataBatch *out);

/* Allocates all arrays of a batch. */
DataBatch data_batch_new(Arena *mem, const Data *d);

/* Position of item i in the order of `epoch`: a bijection on 0 .. n-1, computed from the
 * arguments alone (Feistel network on the next power of 4, walked back into range). */
int64_t data_permute(uint64_t seed, int64_t epoch, int64_t i, int64_t n);

/* A thread that makes batches ahead of the trainer. `steps` -1: without end; depth is
 * the number of batches made ahead, at least 1; full: with positions, attends_from and
 * loss_mask. Allocates here, never in between. */
typedef struct Prefetch Prefetch;
Prefetch *prefetch_start(const Data *d, int64_t first_step, int64_t steps, int depth,
                         bool full);
/* Bytes of the batches that it holds, `depth` ahead and the one in use; UINT64_MAX: beyond
 * counting. Of d only the shape of a batch counts. */
uint64_t prefetch_bytes(const Data *d, bool full, int64_t depth);
/* Waits for the next batch; its arrays are for reading, until the next call. False when
 * there are no further steps. A failure of data_batch fails in this call, after the good
 * batches before it; call prefetch_stop then too. */
bool prefetch_next(Prefetch *p, DataBatch *out);
void prefetch_stop(Prefetch *p);

/* The corpus in the program itself, from the project's sources and docs; made by the
 * build. */
extern const unsigned char embedded_corpus[];
extern const size_t embedded_corpus_bytes;

#endif
