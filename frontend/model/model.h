/* model.h - from a model's plain numbers (ModelSpec) to a module of the IR. */
#ifndef STATOR_MODEL_H
#define STATOR_MODEL_H
#include "frontend/config/config.h"
#include "frontend/model/rope.h"
#include "ir/ir.h"

/* The function between the two matrices of the MLP. gelu is the tanh form (gelu_new in
 * Hugging Face), fast_gelu x * sigmoid(1.702 x) (quick_gelu there). */
typedef enum MlpAct {
    MLP_GELU,
    MLP_GELU_ERF,
    MLP_FAST_GELU,
    MLP_RELU,
    MLP_SILU,
    MLP_ACTS
} MlpAct;

enum { MODEL_MAX_EOS = 8 };

/* How tokens of texts are chosen, see runtime/text/sampler.h; 0 where it is not given. */
typedef enum TokenChoice {
    CHOICE_DO_SAMPLE,
    CHOICE_TEMPERATURE,
    CHOICE_TOP_K,
    CHOICE_TOP_P,
    CHOICE_PENALTY,
    CHOICES
} TokenChoice;
typedef struct TokenChoices {
    bool given[CHOICES];
    double value[CHOICES];
} TokenChoices;

/* Everything that decides a model's shape, arithmetic and initial weights. NormType,
 * PositionType and ModelType are those of config.h. */
typedef struct ModelSpec {
    ModelType family; /* MODEL_GPT2: matrices stored [in,out]; the others: [out,in]; and
                         the Hugging Face names */
    int64_t vocab, hidden, layers, heads, kv_heads, head_dim, ffn, max_positions;
    NormType norm;
    double norm_eps;
    MlpAct act;
    int64_t
        window; /* keys that a query sees, itself the last of them; 0: all before it */
    bool gated; /* act(gate) * up */
    PositionType positions;
    double rope_base;
    RopeScaling rope;
    double
        rotary_percent; /* share of a head's numbers, the first ones, that rope turns */
    bool parallel_residual; /* x + attention(norm x) + MLP(norm' x) */
    bool normed_residual;   /* n + attention(n) with n = norm x, and so with the MLP */
    bool qkv_bias, out_bias, mlp_bias;
    bool qk_norm;  /* norms of each head's queries and keys, before positions */
    bool tied;     /* the head is the embedding */
    bool sandwich; /* norms after attention and MLP, weights first attn_post, mlp_post */
    double attn_post, mlp_post;
    double embd_dropout, attn_dropout, resid_dropout;
    double embedding_std, position_std, block_std, output_std; /* of initial weights;
        output: the two projections back into the residual stream of a layer */
    int64_t bos_token, pad_token;                              /* -1: none */
    int n_eos;
    int64_t eos[MODEL_MAX_EOS]; /* of config.json: the first one ends documents */
    int n_ends;
    int64_t ends[MODEL_MAX_EOS]; /* of generation_config.json: generated texts end with
                                    these, not with eos; none: with eos */
    TokenChoices choices;        /* of the same file */
} ModelSpec;

/* May a sequence of fixed length have more tokens than max_positions? */
static inline bool model_grows(const ModelSpec *s) {
    return s->positions == POSITION_ROPE && s->rope.type == ROPE_DYNAMIC;
}

/* The tokens that end a text that the model makes; *n of them. */
const int64_t *model_ends(const ModelSpec *s, int *n);
/* Is this one of them? */
bool model_ends_text(const ModelSpec *s, int64_t token);

/* Of a configuration's model.model_config (not model.file). Fails with EXIT_CONFIG. */
ModelSpec model_spec_of_config(const Config *cfg);
/* Of a Hugging Face folder (or of its config.json itself), or of config.json's text. Of a
 * generation_config.json in the folder ends and choices are taken, see generation.h.
 * model_type gpt2, llama, mistral (a Llama that may have a window), qwen2 (a Llama with
 * biases on q, k, v), qwen3 (with norms of queries and keys) and gpt_neox; whatever changes the
 * arithmetic and is not known here fails with EXIT_CONFIG at its place. Reads what both forms
 * of model_spec_json write. */
ModelSpec model_spec_of_hf(Arena *mem, const char *dir);
ModelSpec model_spec_of_json(Arena *mem, const char *name, const char *text, size_t n);
/* As config.json: hf = true gives Hugging Face's keys alone, and needs a spec that they
 * can express; false adds an object "stator" with every field: nothing is lost. */
char *model_spec_json(Arena *mem, const ModelSpec *s, bool hf);
/* Hugging Face's keys alone, of weights that are f32, bf16 or f16 (torch_dtype). */
char *model_spec_json_hf(Arena *mem, const ModelSpec *s, DType weights);
/* NULL, or a sentence with what keeps the spec from being a Hugging Face model. */
const char *model_spec_not_hf(const ModelSpec *s);
/* Fails with EXIT_CONFIG when the numbers do not make a model. */
void model_spec_check(const ModelSpec *s);
int64_t model_rotary_pairs(const ModelSpec *s); /* pairs of a head that rope turns */
/* "GPT-2", "Llama", "GPT-NeoX" */
const char *model_family_title(ModelType family);
int64_t model_parameters(const ModelSpec *s); /* number of weights */

typedef enum ModelUse { MODEL_TRAIN, MODEL_TRAIN_LOGITS, MODEL_PREDICT } ModelUse;

typedef struct ModelShape {
    int64_t batch, seq; /* B sequences of T tokens in one run */
    int64_t cache_len;  /* MODEL_PREDICT: rows of the caches, at least seq */
    bool ring; /* they have the last keys of a window alone: cache_len = window. A run of
                  several tokens begins the texts, at offset 0 */
    DType
        caches; /* their type: DT_F32, or that of products of narrow numbers (pass narrow),
                     which round what they read of them anyhow */
    /* training on packed documents: */
    bool own_positions; /* positions come with the batch, i32[B,T], not 0, 1, 2, ... */
    bool documents; /* so does attends_from, i32[B,T]: the first key a query may see */
    int64_t vocab_rows;  /* of the tables of the vocabulary, so that ranks can split them
                           evenly; 0: as many as the vocabulary. Padding takes no part in
                           the loss */
    int64_t zigzag;      /* tokens are in zigzag order over so many ranks (op positions);
                         * 0: no */
    bool masked;         /* the loss is the mean over the rows whose label is not -1 */
    int64_t loss_groups; /* masked: 0: the mean over the step, by the argument of role
                            counted; else the mean of the means of so many equal parts of
                            the batch, which needs none */
} ModelShape;

/* Argument of role counted, f32[], of a model with masked labels: max(1, labels >= 0 of
 * the step) / micro-batches, so that the mean of the losses of the micro-batches is the
 * mean over the counted labels of the step.
 *
 * The module at level global with the entry @model:model and the layer body @layer.
 *   MODEL_TRAIN         (tokens i32[B,T], labels i32[B,T], counted if masked, rng i32[4]
 *                       if there is any dropout, params) -> loss f32[], the mean over B*T
 *                       rows, or over those that count
 *   MODEL_TRAIN_LOGITS  the same -> loss, logits f32[B,T,V]
 *   MODEL_PREDICT       (tokens i32[B,T], offset of the first token, last i32[B]: the
 *                       rows of B*T whose logits are wanted, kcache, vcache
 *                       f32[layers,B,cache_len,kv_heads,head_dim] (or bf16), params)
 *                       -> logits f32[B,V], kcache and vcache in place
 *                       offset is i32[] for one sequence without a ring: rows
 *                       offset..offset+T of the caches are written, so a prompt padded to T
 *                       is fine as long as offset + T <= cache_len. Else it is i32[B], and
 *                       behind it are taken i32[B], how many tokens are no padding, and
 *                       positions i32[B,T], which are offset[b] + t: row (offset[b] + t)
 *                       mod cache_len is written for t < taken[b]
 * Positions of padding must be ones the model has. Parameters have the same names, order and
 * types in all uses. Fails with EXIT_CONFIG when the shape does not fit the spec. */
Module *model_build(Arena *mem, const ModelSpec *s, ModelShape shape, ModelUse use);

/* Rows of the caches of a text of up to `tokens` tokens; fewer than these, a ring, where a window
 * sees no more. */
int64_t model_cache_rows(const ModelSpec *s, int64_t tokens);
/* Of MODEL_PREDICT, with its mesh: ranks that have parts of the logits hand them to each
 * other. */
void model_logits_whole(Module *m);

#define MODEL_MAX_BYTES (4ull << 20) /* of a model.file */
/* The user's own module (model.file), at level global: one function of role model with
 * parameters that have an init, tokens or data with the batch as first dimension, and a
 * scalar loss as its first result; what nobody reads is left out. `path` is for messages,
 * `text` must stay as long as the module. Fails with EXIT_CONFIG, naming what is missing. */
Module *model_parse(Arena *mem, const char *path, const char *text, size_t n);
/* The function of role model; never NULL for modules of this header. */
Func *model_entry(const Module *m);

#endif
