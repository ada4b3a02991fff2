/* predict_module.h - prediction of a user's module (model.file). */
#ifndef STATOR_PREDICT_MODULE_H
#define STATOR_PREDICT_MODULE_H
#include "frontend/config/config.h"
#include "frontend/model/source.h"

/* Runs the module of `s`, whose weights it loads, forward over the samples in `data` (as
 * data of type Tensors), without dropout. The results besides the loss are written by
 * name to the safetensors file `out`, or (NULL) to stdout, a JSON object a sample. Only
 * what these results read must be there: no labels where only the loss needs them. Fails
 * with EXIT_CONFIG for a module that returns its loss alone. */
void predict_module(Arena *mem, const Source *s, const Config *cfg, const char *data,
                    const char *out);

#endif
