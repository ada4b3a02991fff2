/* model_hf_words.h - the words that are values in Hugging Face's config.json. */
#ifndef STATOR_MODEL_HF_WORDS_H
#define STATOR_MODEL_HF_WORDS_H
#include "frontend/model/model_hf.h"

/* model_type of Hugging Face's files. */
typedef enum HfType {
    HF_GPT2,
    HF_LLAMA,
    HF_MISTRAL,
    HF_QWEN2,
    HF_QWEN3,
    HF_NEOX,
    HF_TYPES
} HfType;
extern const char *const hf_types[HF_TYPES];
extern const char *const hf_rope_types[ROPE_TYPES];

MlpAct hf_act_of(const Json *v); /* fails where there is none of that name */
const char *hf_act_name(MlpAct act);

#endif
