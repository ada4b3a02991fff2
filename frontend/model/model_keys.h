/* model_keys.h - keys of model.model_config given with a model that is loaded
 * (init_from). */
#ifndef STATOR_MODEL_KEYS_H
#define STATOR_MODEL_KEYS_H
#include "frontend/config/config.h"
#include "frontend/model/model.h"

/* Changes what the given keys may change of a loaded model: dropout, the tokens with a
 * meaning, and the positions of a model without a table of them. Fails with EXIT_CONFIG at
 * a key that contradicts the weights; `from` names them. */
void model_keys_override(const Config *cfg, ModelSpec *s, const char *from);
/* Writes the model into the keys that are not given, so that config_print says what
 * trains, and whoever asks for the model's tokens gets those of the model. */
void model_keys_fill(Config *cfg, const ModelSpec *s);
/* True if a key is given that says what a model is (not how it is used). */
bool model_keys_given(const Config *cfg);

#endif
