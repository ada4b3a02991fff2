/* model_parts.h - the weights of a model, one row each, and their types: what model.c
 * builds with and model_parameters counts. */
#ifndef STATOR_MODEL_PARTS_H
#define STATOR_MODEL_PARTS_H
#include "frontend/model/model.h"

/* PART(constant, GPT-2's name, Llama's name, NeoX's, input letters, output letters, std)
 * Letters: c hidden, a 3, h heads, g heads of keys and values, d width of a head, f width
 * of the MLP, v vocabulary, p positions. Without input letters: a norm. The output
 * letters are those of the bias too. '#' in a name: the layer. */
#define MODEL_PARTS(PART)                                                                \
    PART(TOKENS, "wte", "model.embed_tokens", "gpt_neox.embed_in", "v", "c",             \
         embedding_std)                                                                  \
    PART(POSITIONS, "wpe", "model.embed_positions", "gpt_neox.embed_positions", "p",     \
         "c", position_std)                                                              \
    PART(NORM1, "h.#.ln_1", "model.layers.#.input_layernorm",                            \
         "gpt_neox.layers.#.input_layernorm", "", "c", block_std)                        \
    PART(QKV, "h.#.attn.c_attn", "model.layers.#.self_attn.qkv_proj",                    \
         "gpt_neox.layers.#.attention.qkv", "c", "ahd", block_std)                       \
    PART(QKV_BY_HEAD, "h.#.attn.c_qkv", "model.layers.#.self_attn.query_key_value",      \
         "gpt_neox.layers.#.attention.query_key_value", "c", "had", block_std)           \
    PART(Q, "h.#.attn.c_q", "model.layers.#.self_attn.q_proj",                           \
         "gpt_neox.layers.#.attention.query", "c", "hd", block_std)                      \
    PART(K, "h.#.attn.c_k", "model.layers.#.self_attn.k_proj",                           \
         "gpt_neox.layers.#.attention.key", "c", "gd", block_std)                        \
    PART(V, "h.#.attn.c_v", "model.layers.#.self_attn.v_proj",                           \
         "gpt_neox.layers.#.attention.value", "c", "gd", block_std)                      \
    PART(Q_NORM, "h.#.attn.q_norm", "model.layers.#.self_attn.q_norm",                   \
         "gpt_neox.layers.#.attention.q_norm", "", "d", block_std)                       \
    PART(K_NORM, "h.#.attn.k_norm", "model.layers.#.self_attn.k_norm",                   \
         "gpt_neox.layers.#.attention.k_norm", "", "d", block_std)                       \
    PART(OUT, "h.#.attn.c_proj", "model.layers.#.self_attn.o_proj",                      \
         "gpt_neox.layers.#.attention.dense", "hd", "c", output_std)                     \
    PART(POST1, "h.#.attn.post_norm", "model.layers.#.self_attn.post_norm",              \
         "gpt_neox.layers.#.attention.post_norm", "", "c", block_std)                    \
    PART(NORM2, "h.#.ln_2", "model.layers.#.post_attention_layernorm",                   \
         "gpt_neox.layers.#.post_attention_layernorm", "", "c", block_std)               \
    PART(GATE, "h.#.mlp.c_gate", "model.layers.#.mlp.gate_proj",                         \
         "gpt_neox.layers.#.mlp.dense_gate", "c", "f", block_std)                        \
    PART(UP, "h.#.mlp.c_fc", "model.layers.#.mlp.up_proj",                               \
         "gpt_neox.layers.#.mlp.dense_h_to_4h", "c", "f", block_std)                     \
    PART(DOWN, "h.#.mlp.c_proj", "model.layers.#.mlp.down_proj",                         \
         "gpt_neox.layers.#.mlp.dense_4h_to_h", "f", "c", output_std)                    \
    PART(POST2, "h.#.mlp.post_norm", "model.layers.#.mlp.post_norm",                     \
         "gpt_neox.layers.#.mlp.post_norm", "", "c", block_std)                          \
    PART(NORM_F, "ln_f", "model.norm", "gpt_neox.final_layer_norm", "", "c", block_std)  \
    PART(HEAD, "lm_head", "lm_head", "embed_out", "v", "c", block_std)

typedef enum ModelPart {
#define PART(id, ...) PART_##id,
    MODEL_PARTS(PART)
#undef PART
        PARTS
} ModelPart;

/* One parameter. `ty` is the type that the layer body sees; the stacked parameter has the
 * layers before it. */
typedef struct PartParam {
    ModelPart part;
    bool bias, layer;
    const char *hf;    /* Hugging Face's name */
    const char *attrs; /* of the argument */
    Type ty;
} PartParam;

enum { MODEL_MAX_PARAMS = 2 * PARTS };

/* The parameters in the order of the model's arguments; returns their number. Names and
 * attributes go to mem. */
int model_params(Arena *mem, const ModelSpec *s, PartParam out[MODEL_MAX_PARAMS]);
/* "h.#.ln_1.weight" -> "h.ln_1.weight": the stacked parameter is one
 * value of the module. */
const char *model_param_name(Arena *mem, const char *hf);
/* Letters of a matrix as it is stored, then where its result's letters are. */
void model_part_letters(const ModelSpec *s, ModelPart part, char stored[8],
                        const char **in, const char **out);

#endif
