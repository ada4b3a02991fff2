/* data_open.h - the data that a configuration names: for training, validation and test,
 * and for a look at it. */
#ifndef STATOR_DATA_OPEN_H
#define STATOR_DATA_OPEN_H
#include "frontend/config/config.h"
#include "runtime/data/data.h"

/* What the configuration alone does not say. */
typedef struct DataShape {
    int64_t rows;      /* sequences that data_batch gives; 0: the file's */
    int64_t seq;       /* tokens of each; 0: the file's */
    int64_t vocab;     /* 0: not known */
    int64_t step_rows; /* sequences of a training step: sizes of the splits count in it */
    int64_t steps;     /* of training; -1: what the epochs or num_samples have */
    const DataColumn *column; /* Tensors: what the model takes of a sample */
    int ncolumns;
    bool
        once; /* every sample of it once, in its order, the end that fills no sequence too */
    bool all; /* of all splits, asked for as train */
} DataShape;

/* Type of the loader, as data.h names it. */
const char *data_loader_name(const Config *cfg);
/* Path of the data of a part as one text for people; "" when none is given. Of validation it is that
 * of eval_dataset, where that names data. */
const char *data_path_given(const Config *cfg, DataSplit which);

/* The keys that say where the data of a part are, and what they say. */
typedef struct DataPlace {
    const char *path_key, *dir_key;
    TextList paths;
    const char *dir;
} DataPlace;
DataPlace data_place(const Config *cfg, DataSplit which);
/* The first path of a part that is not there; NULL: all are, or none is given. */
const char *data_missing(Arena *mem, const Config *cfg, DataSplit which);
/* Each path of training and of validation's own that is not there becomes a problem of the
 * configuration (config_try). */
void data_try_paths(Config *cfg);
/* The shares of the splits as one text, "" without. Fails with EXIT_CONFIG at the key where they are
 * none. */
const char *data_split_text(Arena *mem, const Config *cfg);
/* Does validation take data of its own, and not a part of those of training? */
bool data_is_own(const Config *cfg, DataSplit which);

/* Does something of a GPTDataset depend on where documents end? */
bool data_asks_for_ends(const Config *cfg);
/* The token with which the tokenizer beside the data, or else that of the run, ends a document;
 * -1: there is none that knows it. */
int64_t data_eod_of_tokenizer(const Config *cfg);

/* True if there are data for validation (or test) at all: data of its own, or of any type but
 * TensorBatches a share above 0, and eval_iters above 0. */
bool data_has_split(const Config *cfg, DataSplit which);
/* The same whatever eval_iters says. */
bool data_has_part(const Config *cfg, DataSplit which);

/* Opens one split. GPTDataset's sizes are num_samples, else as in Megatron-LM with GBS =
 * step_rows: train steps * GBS; valid (steps / eval_interval + 1) * eval_iters * GBS;
 * test eval_iters * GBS. Prints a note of the source (a cache that was rebuilt) to
 * stderr. Fails as data_open, and with EXIT_CONFIG for a split that is not there. */
Data *data_open_split(Arena *mem, const Config *cfg, DataSplit which,
                      const DataShape *shape);

/* Steps that training takes when max_steps is not given, or -1 if the type has no such
 * count (then epochs decide): num_samples of train, else what the source has. */
int64_t data_steps(const Config *cfg, const Data *train);
/* Samples of an epoch; of GPTDataset those that such a training takes. */
int64_t data_samples(const Config *cfg, const Data *train);

#endif
