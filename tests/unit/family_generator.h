/* family_generator.h - for tests: the programs of predict on the models of families.h, on one
 * rank in this process. */
#ifndef STATOR_TESTS_FAMILY_GENERATOR_H
#define STATOR_TESTS_FAMILY_GENERATOR_H
#include "families.h"
#include "frontend/tools/generate.h"

/* For the text of a case, from the folder or checkpoint `from`; `compute` is a type of
 * compute_dtype. */
static inline Generator *family_generator(Arena *mem, const char *from,
                                          const char *compute) {
    static const Strategy one = {.data = 1,
                                 .tensor = 1,
                                 .context = 1,
                                 .ring = 1,
                                 .zero_axes = "dp",
                                 .own_data = true};
    char *flags[] = {"--context.threads=1",
                     arena_printf(mem, "--model.model_config.compute_dtype=%s", compute)};
    const Config *cfg = config_load(mem, NULL, ARRAY_LEN(flags), flags);
    Source *s = NEW(mem, Source);
    *s = source_open(mem, from, 0, NULL);
    Generator *g = generator_new(mem, s, &one,
                                 (GeneratorSize){1, FAMILY_PROMPT, FAMILY_TOKENS}, cfg);
    generator_load(mem, g, s);
    return g;
}

/* Logits [n][FAMILY_VOCAB] after the prompt and after each of n - 1 tokens of the text. */
static inline float *family_logits(Arena *mem, Generator *g, const FamilyText *t, int n) {
    float *all = NEW_ARRAY(mem, float, (size_t)n *FAMILY_VOCAB);
    const int32_t prompt = FAMILY_PROMPT, one = 1;
    const float *logits = generator_prompts(g, t->token, &prompt, true);
    for (int i = 0; i < n; i++) {
        memcpy(all + i * FAMILY_VOCAB, logits, FAMILY_VOCAB * sizeof *logits);
        if (i + 1 < n) logits = generator_tokens(g, &t->token[FAMILY_PROMPT + i], &one);
    }
    return all;
}

#endif
