/* The families of Hugging Face's models: logits against those that transformers computed
 * (golden/families, made by torch 2.15 and transformers 5.23 from random weights), folders
 * in and out, and keys of config.json. */
#include "families.h"
#include "model_case.h"

/* The model with its weights and tokens, run. */
static Run logits_of(Arena *mem, const char *dir, const ModelSpec *s,
                     const Safetensors *want_file) {
    const SafeTensor *tokens = safetensors_need(want_file, "tokens");
    ModelShape shape = {.batch = 1, .seq = tokens->dim[1]};
    Run r = run_new(mem, model_build(mem, s, shape, MODEL_TRAIN_LOGITS), "model");
    weights_load_hf(dir, r.f, weight_at, &r);
    for (int64_t i = 0; i < shape.seq; i++) {
        int32_t id;
        memcpy(&id, (const char *)tokens->data + 4 * i, 4);
        tensor_set(arg_named(&r, "tokens"), i, id);
        tensor_set(arg_named(&r, "labels"), i, id);
    }
    run(&r);
    return r;
}

static void expect_logits(const Safetensors *want_file, const char *name, const Run *r) {
    const SafeTensor *t = safetensors_need(want_file, name);
    const Tensor *got = r->ret[0][1];
    EXPECT_INT(type_count(&got->ty), safetensors_count(t));
    float *want = NEW_ARRAY(r->mem, float, (size_t)safetensors_count(t));
    safetensors_read(want_file, t, DT_F32, want, (size_t)t->bytes);
    expect_near(name, got->data, want, safetensors_count(t));
}

/* Writes the model and reads it again: the same spec, weights and file. */
static void expect_round_trip(Arena *mem, const Run *r, const ModelSpec *s, int i) {
    const char *dir = path_join(mem, temp_dir(), "again"), *from = family_folder(mem, i);
    weights_save_hf(dir, s, r->f, weight_at, (void *)r);
    ModelSpec again = model_spec_of_hf(mem, dir);
    EXPECT_STR(model_spec_json(mem, &again, false), model_spec_json(mem, s, false));
    Safetensors *a = safetensors_open(mem, from, EXIT_DATA);
    Safetensors *b = safetensors_open(mem, dir, EXIT_DATA);
    EXPECT_INT(a->n, b->n);
    for (int k = 0; k < a->n; k++) {
        const SafeTensor *t = &a->t[k], *u = safetensors_need(b, t->name);
        EXPECT(t->rank == u->rank && !memcmp(t->dim, u->dim, sizeof t->dim));
        float *x = NEW_ARRAY(mem, float, (size_t)safetensors_count(t));
        safetensors_read(a, t, DT_F32, x, (size_t)u->bytes);
        EXPECT(!memcmp(x, u->data, (size_t)u->bytes));
    }
    safetensors_close(a);
    safetensors_close(b);
}

TEST_LIMIT(logits_are_those_of_transformers, 120) {
    for (int i = 0; i < ARRAY_LEN(families); i++) {
        Arena *mem = arena_new();
        Safetensors *want =
            safetensors_open(mem, family_file(mem, "logits.safetensors"), EXIT_DATA);
        const char *dir = family_folder(mem, i);
        ModelSpec s = model_spec_of_hf(mem, dir);
        Run r = logits_of(mem, dir, &s, want);
        expect_logits(want, families[i].name, &r);
        expect_round_trip(mem, &r, &s, i);
        ModelSpec own = spec_of(mem, model_spec_json(mem, &s, false));
        EXPECT_STR(model_spec_json(mem, &own, false), model_spec_json(mem, &s, false));
        safetensors_close(want);
        arena_free(mem);
    }
}
