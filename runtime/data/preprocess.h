/* preprocess.h - text files to tokens: a reader, workers that tokenize, and a writer that
 * takes their batches in the order of the input, so that the number of workers changes
 * nothing in the output. Bounded memory between them. */
#ifndef STATOR_PREPROCESS_H
#define STATOR_PREPROCESS_H
#include "runtime/data/indexed_write.h"
#include "runtime/data/text_read.h"
#include "runtime/text/json_line.h"
#include "runtime/text/tokenizer.h"
#include <signal.h>

enum { PREPROCESS_MAX_WORKERS = 256 };

typedef struct PreprocessCount {
    uint64_t documents, bytes; /* bytes of text read, decompressed */
    uint64_t bad_lines;        /* left out */
    uint64_t bad_utf8;         /* invalid parts that became U+FFFD */
    uint64_t surrogates;       /* lone ones that did */
    bool interrupted;
} PreprocessCount;

/* A line that was left out. `what` may name the key. */
typedef struct PreprocessBad {
    const char *path, *what, *key;
    int64_t line;
    size_t column; /* from 1, in bytes */
} PreprocessBad;

typedef struct PreprocessSpec {
    const Tokenizer *tokenizer;
    TextReader *reader;
    const char *const *keys; /* of the JSON objects; plain text is the one key there is */
    IndexedWriter **writers; /* one for each key */
    int nkeys;
    bool append_eod; /* to each document that is not empty */
    int workers;
    /* Both are called by preprocess_run's thread, in the order of the input. bad() may
     * fail to end the work. NULL: nobody listens. */
    void (*bad)(void *context, const PreprocessBad *bad, const PreprocessCount *count);
    void (*progress)(void *context, const PreprocessCount *count);
    void *context;
    const volatile sig_atomic_t *stop; /* not 0: end soon, interrupted. NULL: never */
} PreprocessSpec;

/* Reads everything and adds it to the writers, which the caller completes. One document
 * of the input is one of the output, also when it is empty; each string of an array under
 * a key is a sequence of it. Special tokens in the text are text.
 * Fails as text_read_batch, tokenizer_encode and indexed_write_add do, and with EXIT_DATA
 * for a token outside the tokenizer's vocabulary. No thread is left in either case. */
PreprocessCount preprocess_run(const PreprocessSpec *spec);

#endif
