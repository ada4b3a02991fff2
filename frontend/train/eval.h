/* eval.h - what the files of the command `eval` share. The order of an evaluation:
 * cmd_eval.c (configuration, data, program, weights) -> eval_data.c or eval_endings.c (all
 * samples) -> eval_report.c. */
#ifndef STATOR_EVAL_H
#define STATOR_EVAL_H
#include "frontend/train/evaluator.h"

enum { MAX_COLUMNS = 64 }; /* tensors of a sample */

typedef struct EvalSums {
    int64_t samples, tokens; /* done; labels that count */
    int64_t bytes;           /* of their text; see Eval.bytes */
    double loss, correct;    /* sums over the tokens */
    /* over the samples: products of their loss and their tokens, for the spread */
    double loss2, loss_tokens, tokens2;
} EvalSums;

/* The samples that are evaluated, by their numbers. */
typedef struct EvalSource {
    void *of;
    int64_t n, all; /* that are taken, that there are */
    const char *name;
    /* Sample k, without masked rows, into row `row` of the batch. */
    void (*fill)(const void *of, int64_t k, int64_t row, const DataBatch *to);
    /* What the program gave for it; may be NULL. */
    void (*take)(void *of, int64_t k, double loss, double correct);
} EvalSource;

typedef struct Eval {
    Train t; /* model, strategy and weights, as of a run */
    Evaluator evaluator;
    const char *word, *from; /* as asked for; the folder of the weights */
    const char *data_path;   /* --data, or NULL */
    const char *data_type;   /* of it, as train_dataset.data_loader.type says it */
    const char *endings_path;
    bool json, all;
    int64_t most; /* samples that are taken, the first ones; 0: all */
    DataSplit split;
    int32_t *bytes; /* of the text of each token, below vocab; NULL: not known */
    int64_t vocab;
    struct Endings *endings; /* or NULL */
    char endings_hash[HASH_HEX_BYTES];
    EvalSource source;
    EvalSums sums;
    double seconds;
} Eval;

/* eval_config.c: the configuration: that of the file, or what of a run folder's says how its
 * model and data are read, with the flags. */
Config *eval_config(Eval *e, int argc, char **argv);

/* eval_data.c: all samples of a source of data. */
void eval_data_open(Eval *e);
/* Runs over all samples of e->source and sums. */
void eval_run(Eval *e);

/* eval_endings.c: lines of a context and its endings. */
typedef struct Endings Endings;
/* Reads and tokenizes the file, of lines {"ctx": TEXT, "endings": [TEXT, ...], "label": N}.
 * Fails with EXIT_DATA at file:line:col. */
void eval_endings_open(Eval *e);
/* Lines, and for how many the ending with the largest sum of log-probabilities, or with the
 * largest mean over its tokens, is the right one. */
int64_t eval_endings_count(const Endings *d);
void eval_endings_score(const Endings *d, int64_t *right, int64_t *right_mean);

/* eval_report.c: the result on stdout; false: the loss is not a number. */
bool eval_report(const Eval *e);

#endif
