/* model_hf_words.h - the words that are values in Hugging Face's config.json. */
#ifndef STATOR_MODEL_HF_WORDS_H
#define STATOR_MODEL_HF_WORDS_H
#include "frontend/config/config_state.h"
#include "frontend/model/model_hf.h"

extern const char *const hf_rope_types[ROPE_TYPES];

/* Fails where there is none of that name, and lists all: one that is alike is another model. */
HfType hf_type_of(const Json *v);
MlpAct hf_act_of(const Json *v); /* fails where there is none of that name */
const char *hf_act_name(MlpAct act);

#endif
