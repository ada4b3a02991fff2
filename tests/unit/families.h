/* families.h - for tests: folders of Hugging Face's models with random weights, and what
 * transformers computed with them; tests/compare_models.py makes both. */
#ifndef STATOR_TESTS_FAMILIES_H
#define STATOR_TESTS_FAMILIES_H
#include "../test.h"
#include "runtime/store/safetensors.h"

enum {
    FAMILY_VOCAB = 48,
    FAMILY_PROMPT = 16,
    FAMILY_NEW = 200, /* tokens that transformers chose greedily */
    FAMILY_TOKENS = FAMILY_PROMPT + FAMILY_NEW,
    FAMILY_ROW_STEP =
        9, /* from the last of the prompt on the logits of every ninth row */
};

/* Cases and the weights that they share; a .bin is PyTorch's. */
typedef struct Family {
    const char *name, *weights;
    bool longer; /* the text is longer than max_position_embeddings: no prediction */
} Family;
static const Family families[] = {{"gpt2", "gpt2.safetensors", false},
                                  {"llama3", "llama.safetensors", false},
                                  {"yarn", "llama.safetensors", false},
                                  {"yarn_exact", "llama.safetensors", false},
                                  {"linear", "llama.safetensors", false},
                                  {"dynamic", "llama.safetensors", false},
                                  {"dynamic_longer", "llama.safetensors", true},
                                  {"mistral", "llama.safetensors", false},
                                  {"mistral_window", "llama.safetensors", false},
                                  {"qwen2", "qwen2.safetensors", false},
                                  {"qwen3", "qwen3.safetensors", false},
                                  {"neox", "neox.bin", false},
                                  {"neox_sequential", "neox.bin", false}};

/* Where they are; NULL: golden/families. */
static const char *families_dir;

static inline const char *family_file(Arena *mem, const char *name) {
    if (families_dir) return path_join(mem, families_dir, name);
    return arena_printf(mem, "%s/golden/families/%s", tests_dir(), name);
}

static inline void family_copy(Arena *mem, const char *from, const char *to) {
    size_t n;
    const void *bytes = file_read(mem, from, 1 << 20, &n, EXIT_DATA);
    EXPECT(!file_write_atomic(to, bytes, n));
}

/* A folder as Hugging Face has it. */
static inline const char *family_folder(Arena *mem, int i) {
    const char *dir = path_join(mem, temp_dir(), families[i].name);
    bool bin = ends_with(families[i].weights, ".bin");
    EXPECT(!dir_make(dir));
    family_copy(mem, family_file(mem, arena_printf(mem, "%s.json", families[i].name)),
                path_join(mem, dir, "config.json"));
    family_copy(mem, family_file(mem, families[i].weights),
                path_join(mem, dir, bin ? "pytorch_model.bin" : "model.safetensors"));
    return dir;
}

/* What transformers made with a case. */
typedef struct FamilyText {
    const int32_t *token; /* [FAMILY_TOKENS] */
    const float *logits;  /* [rows][FAMILY_VOCAB] */
    int rows;
} FamilyText;

static inline const void *family_tensor(Arena *mem, const Safetensors *file,
                                        const char *name, const char *what) {
    const SafeTensor *t = safetensors_need(file, arena_printf(mem, "%s.%s", name, what));
    void *copy = arena_alloc(mem, (size_t)t->bytes);
    memcpy(copy, t->data, (size_t)t->bytes);
    return copy;
}

static inline FamilyText family_text(Arena *mem, int i) {
    const char *path = family_file(mem, "expected.safetensors");
    Safetensors *file = safetensors_open(mem, path, EXIT_DATA);
    const SafeTensor *logits =
        safetensors_need(file, arena_printf(mem, "%s.logits", families[i].name));
    EXPECT(logits->dim[1] == FAMILY_VOCAB && logits->dtype == DT_F32);
    FamilyText t = {.token = family_tensor(mem, file, families[i].name, "tokens"),
                    .logits = family_tensor(mem, file, families[i].name, "logits"),
                    .rows = (int)logits->dim[0]};
    EXPECT_INT(t.rows, FAMILY_NEW / FAMILY_ROW_STEP + 1);
    safetensors_close(file);
    return t;
}

/* Logits of row k of those that transformers computed, to 1e-5 of the largest. */
static inline void family_expect_row(const char *name, const FamilyText *t, int k,
                                     const float *got) {
    const float *want = t->logits + k * FAMILY_VOCAB;
    float most = 0, off = 0;
    for (int v = 0; v < FAMILY_VOCAB; v++) {
        most = fmaxf(most, fabsf(want[v]));
        off = fmaxf(off, fabsf(got[v] - want[v]));
    }
    if (!(off <= 1e-5f * most))
        test_fail(__FILE__, __LINE__,
                  "%s: logits of row %d are %.3g off, of at most %.3g", name,
                  FAMILY_PROMPT - 1 + k * FAMILY_ROW_STEP, (double)off, (double)most);
}

#endif
