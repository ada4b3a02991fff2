/* predict_strategy.h - how prediction is spread over the processes that run. */
#ifndef STATOR_PREDICT_STRATEGY_H
#define STATOR_PREDICT_STRATEGY_H
#include "frontend/config/options.h"
#include "frontend/model/strategy.h"

/* Does a key say something of the strategy of a prediction? */
bool predict_strategy_key(const char *key);

/* The strategy that the flags ask for, whatever the run was trained with; without any all
 * processes share the model by its heads (tensor parallel). Processes that the flags do not
 * name are replicas. Fails with EXIT_CONFIG, saying what to write, where the model or the
 * number of processes do not fit. On all ranks. */
Strategy predict_strategy(Arena *mem, const Options *o, const ModelSpec *spec);

/* "tp 2, dp 2" */
const char *predict_strategy_text(Arena *mem, const Strategy *s);

#endif
