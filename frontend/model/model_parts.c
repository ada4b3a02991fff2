/* model_parts.c - see model_parts.h. */
#include "frontend/model/model_parts.h"

typedef struct PartRow {
    const char *name[3]; /* by family */
    const char *in, *out;
    size_t std; /* offset of the standard deviation in ModelSpec */
} PartRow;

static const PartRow rows[PARTS] = {
#define PART(id, gpt2, llama, neox, in, out, std)                                        \
    [PART_##id] = {{gpt2, llama, neox}, in, out, offsetof(ModelSpec, std)},
    MODEL_PARTS(PART)
#undef PART
};

static int64_t letter_size(const ModelSpec *s, char c) {
    switch (c) {
    case 'c':
        return s->hidden;
    case 'a':
        return 3;
    case 'h':
        return s->heads;
    case 'g':
        return s->kv_heads;
    case 'd':
        return s->head_dim;
    case 'f':
        return s->ffn;
    case 'v':
        return s->vocab;
    case 'p':
        return s->max_positions;
    default:
        die("letter %c", c);
    }
}

static bool is_table(ModelPart p) {
    return p == PART_TOKENS || p == PART_POSITIONS || p == PART_HEAD;
}

/* GPT-2 keeps matrices as [in,out], the others as [out,in]; tables are rows of width c
 * in all. */
void model_part_letters(const ModelSpec *s, ModelPart part, char stored[8],
                        const char **in, const char **out) {
    const PartRow *r = &rows[part];
    bool out_first = s->family != MODEL_GPT2 && !is_table(part);
    *in = r->in;
    *out = r->out;
    snprintf(stored, 8, "%s%s", out_first ? r->out : r->in, out_first ? r->in : r->out);
}

static Type letters_type(const ModelSpec *s, const char *letters) {
    Type t = {.dt = DT_F32};
    for (; *letters; letters++) t.dim[t.rank++] = letter_size(s, *letters);
    return t;
}

static bool has_part(const ModelSpec *s, ModelPart p) {
    bool same = s->kv_heads == s->heads;
    bool fused = s->family == MODEL_GPT2 && same;
    bool by_head = s->family == MODEL_NEOX && same;
    switch (p) {
    case PART_POSITIONS:
        return s->positions == POSITION_LEARNED;
    case PART_QKV:
        return fused;
    case PART_QKV_BY_HEAD:
        return by_head;
    case PART_Q:
    case PART_K:
    case PART_V:
        return !fused && !by_head;
    case PART_Q_NORM:
    case PART_K_NORM:
        return s->qk_norm;
    case PART_POST1:
    case PART_POST2:
        return s->sandwich;
    case PART_GATE:
        return s->gated;
    case PART_HEAD:
        return !s->tied;
    default:
        return true;
    }
}

static bool has_bias(const ModelSpec *s, ModelPart p) {
    switch (p) {
    case PART_QKV:
    case PART_QKV_BY_HEAD:
    case PART_Q:
    case PART_K:
    case PART_V:
        return s->qkv_bias;
    case PART_OUT:
        return s->out_bias;
    case PART_GATE:
    case PART_UP:
    case PART_DOWN:
        return s->mlp_bias;
    case PART_NORM1:
    case PART_NORM2:
    case PART_Q_NORM:
    case PART_K_NORM:
    case PART_POST1:
    case PART_POST2:
    case PART_NORM_F:
        return s->norm == NORM_LAYER;
    default:
        return false;
    }
}

static const char *init_attrs(Arena *mem, const ModelSpec *s, ModelPart p) {
    const PartRow *r = &rows[p];
    double first = p == PART_POST1 ? s->attn_post : p == PART_POST2 ? s->mlp_post : 1;
    if (!*r->in && first == 1) return "init=\"ones\"";
    if (!*r->in) return arena_printf(mem, "init=\"normal\"; std=0; mean=%.17g", first);
    double std;
    memcpy(&std, (const char *)s + r->std, sizeof std);
    return arena_printf(mem, "init=\"normal\"; std=%.17g; decay=1", std);
}

static PartParam one_param(Arena *mem, const ModelSpec *s, ModelPart p, bool bias) {
    const PartRow *r = &rows[p];
    const char *name = r->name[s->family], *in, *out;
    char stored[8];
    model_part_letters(s, p, stored, &in, &out);
    PartParam q = {.part = p, .bias = bias, .layer = strchr(name, '#') != NULL};
    q.hf = arena_printf(mem, "%s.%s", name, bias ? "bias" : "weight");
    q.attrs = arena_printf(mem, "role=\"param\"; %s; hf=\"%s\"",
                           bias ? "init=\"zeros\"" : init_attrs(mem, s, p), q.hf);
    q.ty = letters_type(s, bias ? out : stored);
    return q;
}

int model_params(Arena *mem, const ModelSpec *s, PartParam out[MODEL_MAX_PARAMS]) {
    int n = 0;
    for (int p = 0; p < PARTS; p++) {
        if (!has_part(s, p)) continue;
        out[n++] = one_param(mem, s, p, false);
        if (has_bias(s, p)) out[n++] = one_param(mem, s, p, true);
    }
    return n;
}

int64_t model_parameters(const ModelSpec *s) {
    Arena *mem = arena_new();
    PartParam p[MODEL_MAX_PARAMS];
    int64_t total = 0;
    model_spec_check(s);
    for (int i = 0, n = model_params(mem, s, p); i < n; i++) {
        total += type_count(&p[i].ty) * (p[i].layer ? s->layers : 1);
    }
    arena_free(mem);
    return total;
}
