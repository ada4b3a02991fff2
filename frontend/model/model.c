/* model.c - the transformer from its blocks (model_blocks.h). The body of a layer is @layer,
 * which is called in a loop over the stacked parameters (and caches). */
#include "frontend/model/model_blocks.h"

static bool draws(const Make *k) {
    const ModelSpec *s = k->s;
    return k->use != MODEL_PREDICT &&
           (s->embd_dropout > 0 || s->attn_dropout > 0 || s->resid_dropout > 0);
}

/* ---- the layer ---- */

static Type cache_type(const Make *k) {
    return TYPE(k->shape.caches, k->shape.batch, k->shape.cache_len, k->s->kv_heads,
                k->s->head_dim);
}

/* A row for each position, or each token where they have their own. */
static Type table_type(const Make *k) {
    int64_t b = k->shape.batch, t = k->shape.seq, half = model_rotary_pairs(k->s);
    return k->positions ? TYPE(DT_F32, b, t, half, 2) : TYPE(DT_F32, t, half, 2);
}

/* @layer(x, parameters, [kcache, vcache], [layer index], offset, [taken], [zero], rng,
 * [rope table], [first])
 *     -> (x, [kcache, vcache]) */
static void make_layer(const Make *outer) {
    Make k = *outer;
    Func *f = func_new(outer->f->mod, "layer", ROLE_FUNC);
    Value *index = NULL, *kcache = NULL, *vcache = NULL;
    k.b = build_at_end(f);
    Value *x = func_arg(f, "x", TYPE(DT_F32, k.shape.batch, k.shape.seq, k.s->hidden));
    for (int i = 0; i < k.nparam; i++) {
        const PartParam *p = &k.param[i];
        k.value[i] = p->layer ? func_arg(f, p->hf, p->ty) : NULL;
    }
    int cache_arg = f->narg;
    if (k.use == MODEL_PREDICT) {
        kcache = func_arg(f, "kcache", cache_type(&k));
        vcache = func_arg(f, "vcache", cache_type(&k));
    }
    if (draws(&k)) index = func_arg(f, "index", type_scalar(DT_I32));
    k.offset = k.zero = func_arg(f, "offset", outer->offset->ty);
    if (k.taken) k.taken = func_arg(f, "taken", outer->taken->ty);
    if (kcache) k.zero = func_arg(f, "zero", type_scalar(DT_I32));
    k.rng = func_arg(f, "rng", TYPE(DT_I32, RNG_WORDS));
    if (k.table) k.table = func_arg(f, "table", table_type(&k));
    if (k.first) k.first = func_arg(f, "first", k.first->ty);
    if (index)
        k.rng = build1(model_named(&k, "rng"), OP_rng_layer, NULL, k.rng, index, NULL);
    bool behind = k.s->normed_residual;
    Value *from = x, *normed = model_norm(&k, PART_NORM1, x);
    Value *a = model_attention(&k, normed, &kcache, &vcache);
    x = model_residual(&k, behind ? normed : x, a, SITE_ATTENTION_OUT, PART_POST1);
    if (!k.s->parallel_residual) from = x;
    normed = model_norm(&k, PART_NORM2, from);
    x = model_residual(&k, behind ? normed : x, model_mlp(&k, normed), SITE_MLP_OUT,
                       PART_POST2);
    func_ret(f, x, -1);
    if (kcache) {
        func_ret(f, kcache, cache_arg);
        func_ret(f, vcache, cache_arg + 1);
    }
}

static Value *constant_i32(Make *k, const char *name, Type ty, int64_t value) {
    Type f32 = ty;
    f32.dt = DT_F32;
    char *attrs = bfmt(&k->b, "value=%lld", (long long)value);
    Value *v = build_as(model_named(k, name), OP_fill, attrs, f32, NULL);
    return build_as(model_named(k, name), OP_cast, NULL, ty, v, NULL);
}

/* Runs the layers on x; cache[0..2) are replaced by their new values. */
static Value *call_layers(Make *k, Value *x, Value *cache[2]) {
    Value *in[MODEL_MAX_PARAMS + 10];
    int n = 0;
    make_layer(k);
    in[n++] = x;
    for (int i = 0; i < k->nparam; i++) {
        if (k->param[i].layer) in[n++] = k->value[i];
    }
    for (int i = 0; i < 2 && cache[i]; i++) in[n++] = cache[i];
    if (draws(k)) {
        Value *zero = constant_i32(k, "zero", type_scalar(DT_I32), 0);
        in[n++] = build_as(model_named(k, "index"), OP_positions, NULL,
                           TYPE(DT_I32, k->s->layers), zero, NULL);
    }
    int each = n - 1;
    in[n++] = k->offset;
    if (k->taken) in[n++] = k->taken;
    if (cache[0]) in[n++] = k->zero;
    in[n++] = k->rng;
    if (k->table) in[n++] = k->table;
    if (k->first) in[n++] = k->first;
    char *attrs = bfmt(&k->b, "fn=@layer; times=%lld; carry=1; each=%d",
                       (long long)k->s->layers, each);
    Op *run = build_list(model_named(k, "y"), OP_call, attrs, n, in, NULL, 0);
    for (int i = 0; i < 2 && cache[i]; i++) cache[i] = run->out[1 + i];
    return run->out[0];
}

/* ---- the model ---- */

static Value *argument(Make *k, const char *name, const char *attrs, Type ty) {
    Value *v = func_arg(k->f, name, ty);
    func_arg_attr(k->f, k->f->narg - 1, attrs);
    return v;
}

const char *model_param_name(Arena *mem, const char *hf) {
    const char *hash = strstr(hf, "#.");
    return hash ? arena_printf(mem, "%.*s%s", (int)(hash - hf), hf, hash + 2) : hf;
}

static Type stacked(int64_t n, Type t) {
    check(t.rank < MAX_RANK);
    memmove(t.dim + 1, t.dim, (MAX_RANK - 1) * sizeof t.dim[0]);
    t.dim[0] = n;
    t.rank++;
    return t;
}

static bool pads_vocab(const Make *k) {
    return k->shape.vocab_rows > k->s->vocab;
}

/* Logits of padding become so small that softmax gives them nothing: a bias of -1e30. */
static Value *mask_padding(Make *k, Value *logits) {
    if (!pads_vocab(k)) return logits;
    Type ty = TYPE(DT_I32, k->shape.vocab_rows);
    Value *zero = constant_i32(k, "zero", type_scalar(DT_I32), 0);
    Value *index = build_as(model_named(k, "class"), OP_positions, NULL, ty, zero, NULL);
    Value *vocab = constant_i32(k, "vocab", type_scalar(DT_I32), k->s->vocab);
    index = build1(model_named(k, "padding"), OP_index_from, NULL, index, vocab, NULL);
    ty.dt = DT_F32;
    Value *mask = build_as(model_named(k, "padding"), OP_valid, NULL, ty, index, NULL);
    mask = build1(model_named(k, "padding"), OP_scale, "by=-1e30", mask, NULL);
    return build1(model_named(k, "logits"), OP_add, "btv,v->btv", logits, mask, NULL);
}

static void add_params(Make *k) {
    Arena *mem = k->b.mem;
    k->nparam = model_params(mem, k->s, k->param);
    for (int i = 0; i < k->nparam; i++) {
        PartParam *p = &k->param[i];
        Type ty = p->layer ? stacked(k->s->layers, p->ty) : p->ty;
        p->hf = model_param_name(mem, p->hf);
        if (pads_vocab(k) && (p->part == PART_TOKENS || p->part == PART_HEAD)) {
            ty.dim[0] = k->shape.vocab_rows;
            p->attrs =
                arena_printf(mem, "%s; rows=%lld", p->attrs, (long long)k->s->vocab);
        }
        k->value[i] = argument(k, p->hf, p->attrs, ty);
    }
}

/* Positions of the tokens of a sequence, i32[t]. */
static Value *positions(Make *k) {
    char *attrs =
        k->shape.zigzag ? bfmt(&k->b, "zigzag=%lld", (long long)k->shape.zigzag) : NULL;
    return build_as(model_named(k, "at"), OP_positions, attrs, TYPE(DT_I32, k->shape.seq),
                    k->offset, NULL);
}

/* Tokens i32[b,t] -> x[b,t,c]. */
static Value *embedding(Make *k, Value *tokens) {
    Value *x = build1(model_named(k, "x"), OP_embed, NULL,
                      model_weight(k, PART_TOKENS, false), tokens, NULL);
    if (k->s->positions == POSITION_LEARNED) {
        Value *at = k->positions ? k->positions : positions(k);
        Value *rows = build1(model_named(k, "rows"), OP_embed, NULL,
                             model_weight(k, PART_POSITIONS, false), at, NULL);
        const char *rule = k->positions ? NULL : "btc,tc->btc";
        x = build1(model_named(k, "x"), OP_add, rule, x, rows, NULL);
    }
    return model_dropout(k, x, k->s->embd_dropout, SITE_EMBEDDING);
}

static char *rope_attrs(Make *k, int64_t pairs) {
    const ModelSpec *s = k->s;
    Arena *mem = k->b.mem;
    Text t = text_new(mem);
    if (s->rope.type == ROPE_DEFAULT)
        return arena_printf(mem, "base=%.17g", s->rope_base);
    double *angle = NEW_ARRAY(mem, double, (size_t)pairs);
    rope_angles(&s->rope, s->rope_base, pairs, s->max_positions, k->shape.seq, angle);
    for (int64_t i = 0; i < pairs; i++)
        text_add(&t, "%s%.17g", i ? " " : "freqs=\"", angle[i]);
    text_add(&t, "\"");
    if (s->rope.type == ROPE_YARN) text_add(&t, "; scale=%.17g", s->rope.attention);
    return t.s;
}

static void rope_table(Make *k) {
    if (k->s->positions != POSITION_ROPE) return;
    int64_t t = k->shape.seq, d = 2 * model_rotary_pairs(k->s);
    char *attrs = rope_attrs(k, d / 2);
    Type ty = TYPE(DT_F32, t, d / 2, 2);
    if (k->use == MODEL_PREDICT && k->positions) {
        k->table = build_as(model_named(k, "table"), OP_rope_table_each, attrs,
                            table_type(k), k->positions, NULL);
        return;
    }
    k->table =
        build_as(model_named(k, "table"), OP_rope_table, attrs, ty, k->offset, NULL);
    Value *at = k->positions;
    if (!at && !k->shape.zigzag) return;
    if (!at) at = positions(k);
    Value *rows = build_as(model_named(k, "table"), OP_reshape, NULL, TYPE(DT_F32, t, d),
                           k->table, NULL);
    rows = build1(model_named(k, "table"), OP_embed, NULL, rows, at, NULL);
    k->table =
        build_as(model_named(k, "table"), OP_reshape, NULL, table_type(k), rows, NULL);
}

static Value *head_weight(Make *k) {
    return model_weight(k, k->s->tied ? PART_TOKENS : PART_HEAD, false);
}

/* max(1, x), of the op that there is: min(-1, -x) turned round. */
static Value *at_least_one(Make *k, Value *x) {
    x = build1(&k->b, OP_scale, "by=-1", x, NULL);
    x = build1(&k->b, OP_atmost, "by=-1", x, NULL);
    return build1(&k->b, OP_scale, "by=-1", x, NULL);
}

/* The mean over the groups of the means of their rows that count. */
static Value *mean_of_means(Make *k, Value *rows, Value *labels) {
    int64_t n = k->shape.loss_groups, t = k->shape.seq;
    Type ty = TYPE(DT_F32, n, k->shape.batch / n, t);
    Value *counts =
        build_as(model_named(k, "counts"), OP_valid, NULL, rows->ty, labels, NULL);
    counts = build_as(model_named(k, "counts"), OP_reshape, NULL, ty, counts, NULL);
    rows = build_as(model_named(k, "rows"), OP_reshape, NULL, ty, rows, NULL);
    Value *sum = build1(model_named(k, "sum"), OP_sum, "gbt->g", rows, NULL);
    Value *count = build1(model_named(k, "count"), OP_sum, "gbt->g", counts, NULL);
    Value *means =
        build1(model_named(k, "means"), OP_div, NULL, sum, at_least_one(k, count), NULL);
    sum = build1(model_named(k, "sum"), OP_sum, "g->_", means, NULL);
    return build1(model_named(k, "loss"), OP_scale,
                  bfmt(&k->b, "by=%.17g", 1 / (double)n), sum, NULL);
}

static Value *mean_loss(Make *k, Value *rows, Value *labels, Value *counted) {
    int64_t b = k->shape.batch, t = k->shape.seq;
    if (k->shape.masked && !counted) return mean_of_means(k, rows, labels);
    Value *sum = build1(model_named(k, "sum"), OP_sum, "bt->_", rows, NULL);
    if (counted) return build1(model_named(k, "loss"), OP_div, NULL, sum, counted, NULL);
    char *mean = bfmt(&k->b, "by=%.17g", 1 / ((double)b * (double)t));
    return build1(model_named(k, "loss"), OP_scale, mean, sum, NULL);
}

static void make_train(Make *k) {
    int64_t b = k->shape.batch, t = k->shape.seq;
    Value *none[2] = {NULL, NULL}, *counted = NULL;
    Value *tokens = argument(k, "tokens", "role=\"tokens\"", TYPE(DT_I32, b, t));
    Value *labels = argument(k, "labels", "role=\"labels\"", TYPE(DT_I32, b, t));
    if (k->shape.own_positions) {
        k->positions = argument(k, "positions", "role=\"positions\"", TYPE(DT_I32, b, t));
    }
    if (k->shape.documents) {
        k->first =
            argument(k, "attends_from", "role=\"attends_from\"", TYPE(DT_I32, b, t));
    }
    if (k->shape.masked && !k->shape.loss_groups)
        counted = argument(k, "counted", "role=\"counted\"", type_scalar(DT_F32));
    if (draws(k)) k->rng = argument(k, "rng", "role=\"rng\"", TYPE(DT_I32, RNG_WORDS));
    add_params(k);
    k->offset = constant_i32(k, "offset", type_scalar(DT_I32), 0);
    if (!k->rng) k->rng = constant_i32(k, "rng", TYPE(DT_I32, RNG_WORDS), 0);
    rope_table(k);
    Value *x = call_layers(k, embedding(k, tokens), none);
    x = model_norm(k, PART_NORM_F, x);
    Value *logits =
        build1(model_named(k, "logits"), OP_dot, "btc,vc->btv", x, head_weight(k), NULL);
    logits = mask_padding(k, logits);
    model_named(k, "rows");
    Value *rows = build(&k->b, OP_xent, NULL, logits, labels, NULL)->out[0];
    func_ret(k->f, mean_loss(k, rows, labels, counted), -1);
    if (k->use == MODEL_TRAIN_LOGITS) func_ret(k->f, logits, -1);
}

/* Sequences have lengths of their own, and a run may take nothing of one. */
static void make_predict(Make *k) {
    int64_t b = k->shape.batch, t = k->shape.seq, c = k->s->hidden;
    Value *tokens = argument(k, "tokens", "role=\"tokens\"", TYPE(DT_I32, b, t));
    k->offset = argument(k, "offset", "role=\"offset\"", TYPE(DT_I32, b));
    k->taken = argument(k, "taken", "role=\"taken\"", TYPE(DT_I32, b));
    k->positions = argument(k, "positions", "role=\"positions\"", TYPE(DT_I32, b, t));
    Value *last = argument(k, "last", "role=\"last\"", TYPE(DT_I32, b));
    int cache_arg = k->f->narg;
    Type ty = stacked(k->s->layers, cache_type(k));
    Value *cache[2] = {argument(k, "kcache", "role=\"cache\"", ty),
                       argument(k, "vcache", "role=\"cache\"", ty)};
    add_params(k);
    k->zero = constant_i32(k, "zero", type_scalar(DT_I32), 0);
    k->rng = constant_i32(k, "rng", TYPE(DT_I32, RNG_WORDS), 0);
    rope_table(k);
    Value *x = call_layers(k, embedding(k, tokens), cache);
    x = build_as(model_named(k, "tokens"), OP_reshape, NULL, TYPE(DT_F32, b * t, c), x,
                 NULL);
    x = build1(model_named(k, "row"), OP_embed, NULL, x, last, NULL);
    x = model_norm(k, PART_NORM_F, x);
    func_ret(
        k->f,
        build1(model_named(k, "logits"), OP_dot, "bc,vc->bv", x, head_weight(k), NULL),
        -1);
    func_ret(k->f, cache[0], cache_arg);
    func_ret(k->f, cache[1], cache_arg + 1);
}

int64_t model_cache_rows(const ModelSpec *s, int64_t tokens) {
    return s->window ? MIN(s->window, tokens) : tokens;
}

void model_logits_whole(Module *m) {
    Func *f = model_entry(m);
    Value *logits = f->ret[0];
    if (!m->mesh.naxes) return;
    Builder b = build_at_end(f);
    b.name = logits->name;
    f->ret[0] = build_placed(&b, OP_reshard, NULL, logits->ty, logits);
}

static void check_shape(const ModelSpec *s, ModelShape h, ModelUse use) {
    if (h.batch < 1 || h.seq < 1 || h.batch > INT32_MAX / h.seq)
        fail(EXIT_CONFIG,
             "%lld sequences of %lld tokens in one run: more than %d tokens, or "
             "none; make the batch smaller",
             (long long)h.batch, (long long)h.seq, INT32_MAX);
    int64_t top = use == MODEL_PREDICT ? MAX(h.seq, h.cache_len) : h.seq;
    if (h.loss_groups && h.batch % h.loss_groups)
        die("%lld sequences in %lld groups", (long long)h.batch,
            (long long)h.loss_groups);
    bool grows = model_grows(s) && use != MODEL_PREDICT;
    if (s->positions != POSITION_NONE && top > s->max_positions && !grows)
        fail(EXIT_CONFIG, "a sequence of %lld tokens: the model has %lld positions",
             (long long)top, (long long)s->max_positions);
    if (use != MODEL_PREDICT) return;
    if (h.ring && (!s->window || h.cache_len != s->window))
        die("a ring of %lld rows for a window of %lld", (long long)h.cache_len,
            (long long)s->window);
    if ((!h.ring && h.cache_len < h.seq) || h.cache_len > INT32_MAX)
        fail(EXIT_CONFIG, "a cache of %lld rows for %lld tokens", (long long)h.cache_len,
             (long long)h.seq);
}

Module *model_build(Arena *mem, const ModelSpec *s, ModelShape shape, ModelUse use) {
    static const char *const name[] = {"gpt2", "llama", "gpt_neox"};
    model_spec_check(s);
    check_shape(s, shape, use);
    Module *m = module_new(mem, name[s->family]);
    Make k = {.s = s, .shape = shape, .use = use, .f = func_new(m, "model", ROLE_MODEL)};
    k.b = build_at_end(k.f);
    if (use == MODEL_PREDICT)
        make_predict(&k);
    else
        make_train(&k);
    module_verify(m, NULL, NULL);
    return m;
}
