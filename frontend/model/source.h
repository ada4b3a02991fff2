/* source.h - where a trained model comes from: a run folder, a folder of checkpoints, one
 * checkpoint, a Hugging Face folder, or the configuration file of a run. */
#ifndef STATOR_SOURCE_H
#define STATOR_SOURCE_H
#include "frontend/model/run_folder.h"
#include "frontend/model/weights.h"
#include "runtime/store/ckpt.h"
#include "runtime/text/tokenizer.h"

typedef enum SourceKind {
    SOURCE_CHECKPOINTS, /* the newest undamaged one of a folder of step_* folders */
    SOURCE_CHECKPOINT,  /* one folder with a manifest.json */
    SOURCE_HF           /* config.json and safetensors */
} SourceKind;

typedef struct Source {
    SourceKind kind;
    const char *path;      /* of the folder the weights are in */
    const char *config;    /* YAML file that belongs to it or to its run, NULL: none */
    ModelSpec spec;        /* see source_spec */
    const char *data_type; /* of the data it was trained on, a value of the key
                              train_dataset.data_loader.type; "": not known */
    const char *module; /* text of the module it was trained as (model.file); or NULL */
    TokenizerSpec tokenizer; /* that belongs to it; all NULL: none */
    const Config *words;     /* whose keys name the tokenizer; NULL: it was found */
    const char *gone;        /* a line on one that they name and that was not; or NULL */
    bool
        bytes; /* tokens are bytes: without a tokenizer, and a vocabulary of 256 or trained
                   on a text file */
} Source;

/* The token that begins a text of such a model (its tokenizer: or NULL), or else ends the one
 * before; -1: none is known. */
int64_t source_first_token(const ModelSpec *m, const Tokenizer *t);
/* Looks what `path` is and reads what model it holds; the weights stay where they are. A
 * configuration file, with flags as config_load takes them (unused for folders), stands
 * for load_checkpoint, or else the checkpoints in its output_dir (these first with resume: auto),
 * or else init_from.
 * Fails with EXIT_CONFIG when it is nothing of the kind, with EXIT_CHECKPOINT when the
 * checkpoint is damaged. */
Source source_open(Arena *mem, const char *path, int nflags, char **flags);

/* The tokenizer that the keys name, if they name one, becomes that of the source. What a file says
 * does not, where it is of the run that has the weights, and kept a copy, and where the files are
 * gone and there is a copy. */
void source_take_keys(Arena *mem, Source *s, const Config *cfg);
/* Is one of these keys a flag? */
bool source_tokenizer_by_flag(const Config *cfg);
/* Opens the tokenizer, which is known to be there; fails at the key that names it. */
Tokenizer *source_tokenizer(Arena *mem, const Source *s);

/* The same for all ranks of a run: rank 0 looks at its disk and tells the others what it found.
 * `config`, `data_type` and what is of the tokenizer are rank 0's. */
Source source_open_with(Arena *mem, const char *path, int nflags, char **flags);

/* Is the folder one of Hugging Face, with weights and nothing to go on from? */
bool source_is_hf(Arena *mem, const char *dir);

/* The numbers of the model; fails with EXIT_CHECKPOINT when it is a user's module. */
ModelSpec source_spec(const Source *s);

/* What messages call its module, which the checkpoint has within: no file of its own. */
const char *source_module_name(Arena *mem, const Source *s);

/* Reads the weights into the parameters of `entry`, which model_build made of s->spec.
 * Fails with EXIT_CHECKPOINT. Returns the folder they came from; a damaged checkpoint
 * that was passed over gets a line on stderr. */
const char *source_load(Arena *mem, const Source *s, const Func *entry, WeightAt at,
                        void *context);
/* The same for all ranks of a run, whose programs hold parts: `entry` is that of the
 * module with whole parameters, `t[n]` the program's parameters with their layouts, found
 * by name; one without a layout is whole. Those of 16 bits are rounded while they are read.
 * Rank 0 reads a Hugging Face folder, and sends the others each tensor. */
const char *source_load_parts(Arena *mem, const Source *s, const Func *entry,
                              CkptTensor *t, int n);

/* On all ranks of a run: writes the attribute `exact` on the parameters of `entry`, which
 * model_build made of s->spec, that a Hugging Face folder stores in that type. */
void source_mark_exact(const Source *s, Func *entry, DType type);

/* The parameters of a function as tensors of a checkpoint; *n of them. */
CkptTensor *source_tensors(Arena *mem, const Func *entry, WeightAt at, void *context,
                           int *n);
/* The indices of the parameters (arguments of role param) of a function; *n of them. */
int *source_parameters(Arena *mem, const Func *entry, int *n);

#endif
