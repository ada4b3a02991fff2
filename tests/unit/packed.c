/* packed.c - several documents in one sequence: with their own positions, attention
 * within each and masked labels, the loss is that of the documents taken one by one. */
#include "../test.h"
#include "codegen/codegen.h"
#include "frontend/model/model.h"
#include "ir/sample.h"

enum { SEQ = 10, FIRST = 4, VOCAB = 13 };

static ModelSpec small_spec(ModelType family) {
    bool llama = family == MODEL_LLAMA;
    return (ModelSpec){.family = family,
                       .vocab = VOCAB,
                       .hidden = 8,
                       .layers = 2,
                       .heads = 2,
                       .kv_heads = llama ? 1 : 2,
                       .head_dim = 4,
                       .ffn = 12,
                       .max_positions = SEQ,
                       .norm = llama ? NORM_RMS : NORM_LAYER,
                       .norm_eps = 1e-5,
                       .act = llama ? MLP_SILU : MLP_GELU,
                       .gated = llama,
                       .positions = llama ? POSITION_ROPE : POSITION_LEARNED,
                       .rope_base = 10000,
                       .rotary_percent = 1,
                       .qkv_bias = !llama,
                       .out_bias = !llama,
                       .mlp_bias = !llama,
                       .tied = true,
                       .attn_post = 1,
                       .mlp_post = 1,
                       .embedding_std = 0.3,
                       .position_std = 0.3,
                       .block_std = 0.3,
                       .output_std = 0.3,
                       .bos_token = -1,
                       .pad_token = -1};
}

/* Token k of the text; labels are the tokens after them. */
static int32_t token_at(int k) {
    return (int32_t)((k * 7 + k * k * 3) % VOCAB);
}

static void set_ints(const Func *f, Tensor **arg, const char *role, const int32_t *v) {
    for (int i = 0; i < f->narg; i++) {
        if (strcmp(arg_str(f, i, "role", ""), role)) continue;
        memcpy(arg[i]->data, v, (size_t)type_bytes(&arg[i]->ty));
    }
}

static void set_counted(const Func *f, Tensor **arg, const int32_t *labels) {
    double n = 0;
    for (int i = 0; i < f->narg; i++) {
        if (arg_role(f, i) != ARG_counted) continue;
        for (int k = 0; k < SEQ; k++) n += labels[k] >= 0;
        tensor_set(arg[i], 0, n);
    }
}

/* Loss by the interpreter (compiled = false) or as a program. */
static double loss_of(Arena *mem, Module *m, const int32_t *tokens, const int32_t *labels,
                      const int32_t *positions, const int32_t *first, bool compiled) {
    Func *f = model_entry(m);
    Tensor ***arg = sample_arguments(mem, f), ***ret = sample_results(mem, f);
    set_ints(f, arg[0], "tokens", tokens);
    set_ints(f, arg[0], "labels", labels);
    set_counted(f, arg[0], labels);
    if (positions) set_ints(f, arg[0], "positions", positions);
    if (first) set_ints(f, arg[0], "attends_from", first);
    if (!compiled) {
        interp_run(mem, f, arg, ret);
        return tensor_get(ret[0][0], 0);
    }
    PassOptions po = pass_options_default();
    CompileOptions co = {.threads = 1, .lower_anew = true};
    Program *p = program_make(mem, m, predict_passes, &po, &co);
    program_allocate(p, NULL, 0);
    for (int i = 0; i < p->entry->narg; i++) {
        memcpy(p->arg[i], arg[0][i]->data, (size_t)type_bytes(&p->entry->arg[i]->ty));
    }
    program_run(p);
    double loss = *(float *)p->ret[0];
    program_free(p);
    return loss;
}

static double document_loss(Arena *mem, const ModelSpec *s, int from, int n) {
    int32_t tokens[SEQ], labels[SEQ];
    for (int i = 0; i < n; i++) {
        tokens[i] = token_at(from + i);
        labels[i] = token_at(from + i + 1);
    }
    Module *m = model_build(mem, s, (ModelShape){.batch = 1, .seq = n}, MODEL_TRAIN);
    return loss_of(mem, m, tokens, labels, NULL, NULL, false);
}

static void packed_equals_apart(ModelType family) {
    Arena *mem = arena_new();
    ModelSpec s = small_spec(family);
    double a = document_loss(mem, &s, 0, FIRST),
           b = document_loss(mem, &s, FIRST, SEQ - FIRST);
    int32_t tokens[SEQ], labels[SEQ], positions[SEQ], first[SEQ];
    for (int i = 0; i < SEQ; i++) {
        tokens[i] = token_at(i);
        labels[i] = token_at(i + 1);
        positions[i] = i < FIRST ? i : i - FIRST;
        first[i] = i < FIRST ? 0 : FIRST;
    }
    ModelShape shape = {
        .batch = 1, .seq = SEQ, .own_positions = true, .documents = true, .masked = true};
    for (int compiled = 0; compiled < 2; compiled++) {
        Module *m = model_build(mem, &s, shape, MODEL_TRAIN);
        double both = loss_of(mem, m, tokens, labels, positions, first, compiled);
        EXPECT_NEAR(both, (a * FIRST + b * (SEQ - FIRST)) / SEQ, 2e-6);
        /* the second document's labels do not count: the first alone is left */
        int32_t some[SEQ];
        for (int i = 0; i < SEQ; i++) some[i] = i < FIRST ? labels[i] : -1;
        m = model_build(mem, &s, shape, MODEL_TRAIN);
        EXPECT_NEAR(loss_of(mem, m, tokens, some, positions, first, compiled), a, 2e-6);
        /* and attention across does change it */
        int32_t zero[SEQ] = {0};
        m = model_build(mem, &s, shape, MODEL_TRAIN);
        double across = loss_of(mem, m, tokens, labels, positions, zero, compiled);
        EXPECT(fabs(across - both) > 1e-4);
    }
    arena_free(mem);
}

TEST(gpt2_documents) {
    packed_equals_apart(MODEL_GPT2);
}
TEST(llama_documents) {
    packed_equals_apart(MODEL_LLAMA);
}
