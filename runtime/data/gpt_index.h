/* gpt_index.h - which tokens make which sample of a GPT data set, and in what order:
 * Megatron-LM's document, sample and shuffle indices bit for bit (gpt_dataset.py,
 * helpers.cpp and blended_dataset.py of its core), and their cache.
 *
 * A "document" here is a sequence of the .idx file, as in Megatron-LM. */
#ifndef STATOR_GPT_INDEX_H
#define STATOR_GPT_INDEX_H
#include "runtime/data/indexed.h"

typedef struct GptIndexSpec {
    const char *name;          /* of the data, for messages */
    const IndexedTable *table; /* its lengths alone count */
    int64_t first, end;        /* the split has sequences [first, end) */
    int64_t seq;               /* a sample has seq + 1 tokens */
    int64_t samples;           /* asked for; -1: what `epochs` passes hold */
    int64_t epochs;            /* for samples -1 */
    uint32_t seed;
} GptIndexSpec;

typedef struct GptIndex {
    int64_t documents; /* entries of the document index: those of the split per epoch */
    int64_t samples;   /* available: at least those asked for */
    int64_t epochs, tokens_per_epoch;
    const int32_t *document; /* [documents] sequence numbers, shuffled */
    const int32_t *sample;   /* [samples + 1, 2]: index in `document`, token in it */
    const uint32_t *shuffle; /* [samples]: the sample that is number i in training */
} GptIndex;

/* Builds the indices in `mem`: 4 bytes an entry of the document index and 12 a sample,
 * nothing else. Fails with EXIT_DATA when the split has no tokens for a sample
 * and EXIT_CONFIG when more is asked for than the format's 32-bit entries can count. */
void gpt_index_build(Arena *mem, const GptIndexSpec *spec, GptIndex *out);

/* The same, read from the folder `cache` when it is there, else built and written there
 * (no shared disk needed: whoever finds no file builds its own). `idx_hash` is the hash
 * of the .idx file. A file that is damaged or of something else is made again; that, and
 * a folder that cannot be written, is said in `note` (else ""). Unmap *held at last. */
void gpt_index_cached(Arena *mem, const GptIndexSpec *spec, const char *cache,
                      uint64_t idx_hash, GptIndex *out, FileMap *held, char note[512]);

/* Indices in the bytes of a cache file after its frame; false if anything in them points
 * outside of the split. Nothing is copied: `bytes` is 8-byte aligned and stays. */
bool gpt_index_parse(const void *bytes, uint64_t n, const GptIndexSpec *spec,
                     GptIndex *out);

/* Ranges of train, valid and test, bound[i] .. bound[i + 1], of n documents: numbers in
 * `split` ("949,50,1"), scaled to a sum of 1, added up, times n, rounded half to even.
 * Fails with EXIT_CONFIG for anything but one to three numbers with a sum above 0. */
void gpt_split(const char *split, int64_t n, int64_t bound[4]);

/* Blends. Item i of the stream is sample `sample[i]` of source `source[i]`: each item
 * goes to the source whose share is furthest below its weight. Weights have the sum 1. */
void gpt_blend(const double *weight, int n, int64_t items, int16_t *source,
               uint32_t *sample);
/* All samples of all sources, in proportion to their sizes until each is spent;
 * `items` is the sum of the sizes. */
void gpt_blend_all(const int64_t *size, int n, int64_t items, int16_t *source,
                   uint32_t *sample);

#endif
