/* model_hf.h - a ModelSpec from and to the keys of Hugging Face's config.json. */
#ifndef STATOR_MODEL_HF_H
#define STATOR_MODEL_HF_H
#include "base/json.h"
#include "frontend/model/model.h"

/* Of model_type gpt2, llama, mistral, qwen2 or gpt_neox. What changes the arithmetic and is
 * not built fails with EXIT_CONFIG at its place. Not checked by model_spec_check. */
ModelSpec model_hf_read(const Json *root);
/* The keys, without braces around them, for a spec that they can express and weights that
 * are f32, bf16 or f16. */
void model_hf_write(Text *t, const ModelSpec *s, DType weights);

/* Index of a text in names[n]; fails with the nearest one. */
int model_hf_name(const Json *v, const char *const *names, int n);
/* The list of tokens that end a text; those outside of the vocabulary are left out. */
void model_hf_read_eos(const Json *list, int64_t vocab, ModelSpec *s);
void model_hf_write_eos(Text *t, const ModelSpec *s);

#endif
