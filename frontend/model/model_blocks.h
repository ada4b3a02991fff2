/* model_blocks.h - inside of model.c: what a transformer is made of, each as ops at the end of the
 * function that is being built. */
#ifndef STATOR_MODEL_BLOCKS_H
#define STATOR_MODEL_BLOCKS_H
#include "frontend/model/model_parts.h"

/* Places of dropout: part of what a random number follows from, so never renumbered. */
enum { SITE_EMBEDDING, SITE_ATTENTION, SITE_ATTENTION_OUT, SITE_MLP_OUT };

typedef struct Make {
    const ModelSpec *s;
    ModelShape shape;
    ModelUse use;
    Func *f;
    Builder b; /* of the function that is being built */
    int nparam;
    PartParam param[MODEL_MAX_PARAMS];
    Value *value[MODEL_MAX_PARAMS]; /* of each parameter in that function */
    /* of that function; offset: position of the first token, zero: of the first key of
     * the caches, without caches the same; table: NULL without rope */
    Value *offset, *taken, *zero, *rng, *table;
    Value *positions, *first; /* with the batch, or NULL; see ModelShape */
} Make;

Builder *model_named(Make *k, const char *name); /* for the result of the next op */
/* The matrix of a part, or its bias; NULL: the model has none. */
Value *model_weight(const Make *k, ModelPart part, bool bias);
/* x[...c] -> the same shape. */
Value *model_norm(Make *k, ModelPart part, Value *x);
/* Of x[b,t,c], with its tokens in the order of the shape. */
Value *model_dropout(Make *k, Value *x, double p, int site);
/* x + norm(dropout(y)), the norm where there is one (sandwich). */
Value *model_residual(Make *k, Value *x, Value *y, int site, ModelPart post);
/* Causal attention of x[b,t,c]. kcache and vcache (both or neither) get this run's keys
 * and values at rows from the offset, and are what the queries see. */
Value *model_attention(Make *k, Value *x, Value **kcache, Value **vcache);
Value *model_mlp(Make *k, Value *x);

#endif
