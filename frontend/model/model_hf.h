/* model_hf.h - a ModelSpec from and to the keys of Hugging Face's config.json. */
#ifndef STATOR_MODEL_HF_H
#define STATOR_MODEL_HF_H
#include "base/json.h"
#include "frontend/model/model.h"

enum { CONFIG_JSON_MAX_BYTES = 4 << 20 };

/* Of model_type gpt2, llama, mistral, qwen2, qwen3 or gpt_neox. What changes the arithmetic and is
 * not built fails with EXIT_CONFIG at its place. Not checked by model_spec_check. */
ModelSpec model_hf_read(const Json *root);
/* The keys, without braces around them, for a spec that they can express and weights that
 * are f32, bf16 or f16. */
void model_hf_write(Text *t, const ModelSpec *s, DType weights);
/* Their model_type. */
const char *model_hf_type(const ModelSpec *s);

/* Index of a text in names[n]; fails with the nearest one, or else with all as the hint. */
int model_hf_name(const Json *v, const char *const *names, int n);
/* The tokens that end a text: a number, a list of them, or null or NULL for none. Those
 * outside of the vocabulary, which can never occur, are left out. Returns how many. */
int model_hf_read_eos(const Json *v, int64_t vocab, int64_t eos[MODEL_MAX_EOS]);
void model_hf_write_eos(Text *t, const int64_t *eos, int n);

#endif
