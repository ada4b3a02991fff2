/* model_blocks.c - see model_blocks.h. */
#include "frontend/model/model_blocks.h"
#include <math.h>

Builder *model_named(Make *k, const char *name) {
    k->b.name = name;
    return &k->b;
}

Value *model_weight(const Make *k, ModelPart part, bool bias) {
    for (int i = 0; i < k->nparam; i++) {
        if (k->param[i].part == part && k->param[i].bias == bias) return k->value[i];
    }
    return NULL;
}

/* Over the last dimension, with the weights of `part`. */
static Value *norm_named(Make *k, ModelPart part, Value *x, const char *name) {
    char *attrs = bfmt(&k->b, "eps=%.17g", k->s->norm_eps);
    Value *scale = model_weight(k, part, false), *shift = model_weight(k, part, true);
    model_named(k, name);
    if (k->s->norm == NORM_RMS)
        return build(&k->b, OP_rmsnorm, attrs, x, scale, NULL)->out[0];
    return build(&k->b, OP_layernorm, attrs, x, scale, shift, NULL)->out[0];
}

Value *model_norm(Make *k, ModelPart part, Value *x) {
    return norm_named(k, part, x, "norm");
}

/* x[b,t,in] times the matrix of `part`, plus its bias: [b,t,out]. */
static Value *linear(Make *k, ModelPart part, Value *x, const char *name) {
    const char *in, *out;
    char stored[8];
    model_part_letters(k->s, part, stored, &in, &out);
    char *rule = bfmt(&k->b, "bt%s,%s->bt%s", in, stored, out);
    Value *y =
        build1(model_named(k, name), OP_dot, rule, x, model_weight(k, part, false), NULL);
    Value *bias = model_weight(k, part, true);
    if (!bias) return y;
    rule = bfmt(&k->b, "bt%s,%s->bt%s", out, out, out);
    return build1(model_named(k, name), OP_add, rule, y, bias, NULL);
}

Value *model_dropout(Make *k, Value *x, double p, int site) {
    if (p <= 0 || k->use == MODEL_PREDICT) return x;
    char *attrs = bfmt(&k->b, "p=%.17g; site=%d", p, site);
    if (k->shape.zigzag)
        attrs = bfmt(&k->b, "%s; zigzag=%lld", attrs, (long long)k->shape.zigzag);
    return build1(model_named(k, "kept"), OP_dropout, attrs, x, k->rng, NULL);
}

Value *model_residual(Make *k, Value *x, Value *y, int site, ModelPart post) {
    y = model_dropout(k, y, k->s->resid_dropout, site);
    if (k->s->sandwich) y = model_norm(k, post, y);
    return build1(model_named(k, "x"), OP_add, NULL, x, y, NULL);
}

static Value *rotate(Make *k, Value *x, const char *name) {
    if (!k->table) return x;
    int kind = k->table->ty.rank == 4 ? OP_rope_each : OP_rope;
    return build1(model_named(k, name), kind, NULL, x, k->table, NULL);
}

static Value *cast(Make *k, Value *x, DType to, const char *name) {
    Type ty = x->ty;
    ty.dt = to;
    return x->ty.dt == to ? x
                          : build_as(model_named(k, name), OP_cast, NULL, ty, x, NULL);
}

/* The cache gets this run's rows of x from the offset on; returns what queries see, as x is:
 * the cache, or x alone where a ring may have no room for all of it. */
static Value *cache_write(Make *k, Value **cache, Value *x, const char *name) {
    int kind = k->taken ? OP_cache_write_each : OP_cache_write;
    DType dt = x->ty.dt;
    x = cast(k, x, (*cache)->ty.dt, "cached");
    *cache =
        build1(model_named(k, name), kind, NULL, *cache, x, k->offset, k->taken, NULL);
    bool begins = k->shape.ring && k->shape.seq > 1;
    return cast(k, begins ? x : *cache, dt, name);
}

Value *model_attention(Make *k, Value *x, Value **kcache, Value **vcache) {
    const ModelSpec *s = k->s;
    Value *q, *key, *v;
    bool by_head = model_weight(k, PART_QKV_BY_HEAD, false);
    if (by_head || model_weight(k, PART_QKV, false)) {
        Value *qkv = linear(k, by_head ? PART_QKV_BY_HEAD : PART_QKV, x, "qkv");
        const char *dim = by_head ? "dim=3" : "dim=2";
        Op *parts = build_list(&k->b, OP_unstack, dim, 1, &qkv, NULL, 0);
        q = build_named(&k->b, "q", parts->out[0]);
        key = build_named(&k->b, "k", parts->out[1]);
        v = build_named(&k->b, "v", parts->out[2]);
    } else {
        q = linear(k, PART_Q, x, "q");
        key = linear(k, PART_K, x, "k");
        v = linear(k, PART_V, x, "v");
    }
    if (s->qk_norm) {
        q = norm_named(k, PART_Q_NORM, q, "q");
        key = norm_named(k, PART_K_NORM, key, "k");
    }
    q = rotate(k, q, "q");
    key = rotate(k, key, "k");
    if (*kcache) {
        key = cache_write(k, kcache, key, "kcache");
        v = cache_write(k, vcache, v, "vcache");
    }
    double p = k->use == MODEL_PREDICT ? 0 : s->attn_dropout;
    char *attrs = bfmt(&k->b, "scale=%.17g; causal=1", 1 / sqrt((double)s->head_dim));
    if (s->window && s->window < key->ty.dim[1])
        attrs = bfmt(&k->b, "%s; window=%lld", attrs, (long long)s->window);
    if (p > 0) attrs = bfmt(&k->b, "%s; p=%.17g; site=%d", attrs, p, SITE_ATTENTION);
    if (k->shape.zigzag)
        attrs = bfmt(&k->b, "%s; zigzag=%lld", attrs, (long long)k->shape.zigzag);
    int kind = k->first             ? OP_attention_within
               : k->offset->ty.rank ? OP_attention_each
                                    : OP_attention;
    Op *o = build(model_named(k, "o"), kind, attrs, q, key, v, k->offset, k->zero, k->rng,
                  k->first, NULL);
    build_named(&k->b, "lse", o->out[1]);
    return linear(k, PART_OUT, o->out[0], "attn");
}

static Value *activation(Make *k, Value *x) {
    static const int kind[MLP_ACTS] = {[MLP_GELU] = OP_gelu,
                                       [MLP_GELU_ERF] = OP_gelu_erf,
                                       [MLP_FAST_GELU] = OP_fast_gelu,
                                       [MLP_RELU] = OP_relu,
                                       [MLP_SILU] = OP_silu};
    return build1(model_named(k, "act"), kind[k->s->act], NULL, x, NULL);
}

Value *model_mlp(Make *k, Value *x) {
    Value *h = linear(k, k->s->gated ? PART_GATE : PART_UP, x, "h");
    h = activation(k, h);
    if (k->s->gated) {
        Value *up = linear(k, PART_UP, x, "up");
        h = build1(model_named(k, "h"), OP_mul, NULL, h, up, NULL);
    }
    return linear(k, PART_DOWN, h, "mlp");
}
