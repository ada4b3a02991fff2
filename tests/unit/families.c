/* The families of Hugging Face's models in the interpreter: logits against those of
 * transformers, folders in and out, and keys of config.json. */
#include "families.h"
#include "model_case.h"

/* The model with its weights and the first `seq` tokens, run. */
static Run logits_of(Arena *mem, const char *dir, const ModelSpec *s, const FamilyText *t,
                     int seq) {
    ModelShape shape = {.batch = 1, .seq = seq};
    Module *m = model_build(mem, s, shape, MODEL_TRAIN_LOGITS);
    PassOptions o = pass_options_default();
    passes_run(m, "evaluate", &o); /* the configurations have dropout */
    Run r = run_new(mem, m, "model");
    weights_load_hf(dir, r.f, weight_at, &r);
    for (int i = 0; i < seq; i++) {
        tensor_set(arg_named(&r, "tokens"), i, t->token[i]);
        tensor_set(arg_named(&r, "labels"), i, t->token[i]);
    }
    run(&r);
    return r;
}

static void expect_logits(int i, const FamilyText *t, const Run *r, int seq) {
    const Tensor *got = r->ret[0][1];
    EXPECT_INT(type_count(&got->ty), seq * FAMILY_VOCAB);
    for (int k = 0, row = FAMILY_PROMPT - 1; row < seq; k++, row += FAMILY_ROW_STEP)
        family_expect_row(families[i].name, t, k,
                          (const float *)got->data + row * FAMILY_VOCAB);
}

/* Writes the model and reads it again: the same spec, weights and file. */
static void expect_round_trip(Arena *mem, const Run *r, const ModelSpec *s,
                              const char *from) {
    const char *dir = path_join(mem, temp_dir(), "again");
    weights_save_hf(dir, s, r->f, weight_at, (void *)(uintptr_t)r, DT_F32);
    ModelSpec again = model_spec_of_hf(mem, dir);
    EXPECT_STR(model_spec_json(mem, &again, false), model_spec_json(mem, s, false));
    Safetensors *a = safetensors_open(mem, from, EXIT_DATA);
    Safetensors *b = safetensors_open(mem, dir, EXIT_DATA);
    EXPECT_INT(a->n, b->n);
    for (int k = 0; k < b->n; k++) {
        const SafeTensor *u = &b->t[k], *t = safetensors_find(a, u->name);
        if (!t) t = safetensors_need(a, arena_printf(mem, "transformer.%s", u->name));
        EXPECT(t->rank == u->rank && !memcmp(t->dim, u->dim, sizeof t->dim));
        float *x = NEW_ARRAY(mem, float, (size_t)safetensors_count(t));
        safetensors_read(a, t, DT_F32, x, (size_t)u->bytes);
        EXPECT(!memcmp(x, u->data, (size_t)u->bytes));
    }
    safetensors_close(a);
    safetensors_close(b);
}

/* A row sees those before it, so a part of the text is enough, but where the length of the
 * sequence stretches positions. */
TEST_LIMIT(logits_are_those_of_transformers, 120) {
    for (int i = 0; i < ARRAY_LEN(families); i++) {
        Arena *mem = arena_new();
        FamilyText t = family_text(mem, i);
        const char *dir = family_folder(mem, i);
        ModelSpec s = model_spec_of_hf(mem, dir);
        int seq = families[i].longer ? FAMILY_TOKENS : 50;
        Run r = logits_of(mem, dir, &s, &t, seq);
        expect_logits(i, &t, &r, seq);
        expect_round_trip(mem, &r, &s, dir);
        ModelSpec own = spec_of(mem, model_spec_json(mem, &s, false));
        EXPECT_STR(model_spec_json(mem, &own, false), model_spec_json(mem, &s, false));
        arena_free(mem);
    }
}
