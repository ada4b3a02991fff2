/* weights.h - values of a function's parameters (arguments of role param): initial ones,
 * and Hugging Face folders in and out. Works on any entry function that keeps the
 * parameters' attributes: the model, its gradient, the training step. */
#ifndef STATOR_WEIGHTS_H
#define STATOR_WEIGHTS_H
#include "frontend/model/model.h"
#include "ir/layout.h"

/* The memory of argument `arg` of the entry function: f32, row-major, of its type's
 * size. */
typedef float *(*WeightAt)(void *context, int arg);

/* Fills parameter i by its attributes init (normal, zeros, ones), std and mean. Element k
 * is mean + std * a standard normal that follows from (seed, name, k) alone: no layout,
 * no number of threads and no other parameter changes it. Of a rank's part, as the layout
 * says, padding is left alone; layout NULL: all of it. */
void weights_init(const Func *entry, int i, const Layout *layout, int rank, float *out,
                  uint64_t seed);

/* One tensor of a Hugging Face file: a whole parameter, or one layer of a stacked one.
 * Its bytes are those of the parameter from element `first` on, in the same order. */
typedef struct HfTensor {
    const char *name; /* "h.3.attn.c_attn.weight" */
    int arg;          /* index of the parameter in the function */
    int64_t layer;    /* -1: not of a layer */
    int rank;
    int64_t dim[MAX_RANK]; /* as Hugging Face has it: matrices are 2-D, biases 1-D */
    int64_t first, count;  /* elements of the parameter */
} HfTensor;
typedef struct HfMap {
    int n;
    HfTensor *t;
} HfMap;

/* All tensors of the parameters of f, in their order, layers counting up. A parameter
 * without the attribute hf (model.file) has its own name and shape. */
HfMap hf_map(Arena *mem, const Func *f);
/* The name of such a tensor in a file, as save_pretrained has it: GPT-2's begin with
 * "transformer.", but for the head. Without it transformers 4 takes a file for that of the base
 * model, which has no head. */
const char *hf_name_in_file(Arena *mem, const ModelSpec *s, const char *name);

/* Reads model.safetensors (or the shards of its index) in `dir` into the parameters.
 * F16 and BF16 are widened. An optional prefix "transformer." and the buffers attn.bias
 * and attn.masked_bias of old GPT-2 files are passed over, and so is lm_head.weight when
 * the head is tied and it equals the embedding. Everything else must match: missing,
 * extra and misshapen tensors fail with EXIT_CHECKPOINT, listing them, before anything is
 * written. */
void weights_load_hf(const char *dir, const Func *entry, WeightAt at, void *context);

/* Gets `count` values of argument `arg`, from element `first` on. */
typedef void (*WeightSink)(void *context, int arg, int64_t first, int64_t count,
                           const float *values);
/* The same piece by piece, for programs that hold parts: `entry` has the whole
 * parameters, at most one tensor of the file is in memory. */
void weights_load_hf_pieces(const char *dir, const Func *entry, WeightSink sink,
                            void *context);

/* Says of each parameter of `entry`, by argument, whether all its tensors in `dir` are stored
 * in that type: exact[narg]. Tensors that are missing are not; nothing fails on them. */
void weights_stored_as(const char *dir, const Func *entry, DType type, bool *exact);

/* Writes config.json, generation_config.json and model.safetensors to `dir`, which is
 * made when missing. Existing files of these names are replaced, each atomically, the
 * weights last. Fails with EXIT_CONFIG for a spec that Hugging Face's classes cannot
 * express, and with EXIT_CHECKPOINT when writing fails or, before weights are written, when
 * a finite number is too large for the type, bf16 or f16, to which they are rounded (f32: they
 * stay as they are). */
void weights_save_hf(const char *dir, const ModelSpec *s, const Func *entry, WeightAt at,
                     void *context, DType type);

#endif
