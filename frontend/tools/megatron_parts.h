/* megatron_parts.h - what the files share that make keys of flags of Megatron-LM. */
#ifndef STATOR_MEGATRON_PARTS_H
#define STATOR_MEGATRON_PARTS_H
#include "frontend/tools/megatron.h"

#define MODEL "model.model_config."
#define PART  "parallel_config."
#define RUN   "runner_config."
#define WRAP  "runner_wrapper."
#define DATA  "train_dataset.data_loader."

/* A flag by its name in megatron.def; `otherwise` is for one that was not given. Counts are whole
 * numbers, 0 or more; a degree is 1 or more, and 1 otherwise. Numbers fail with EXIT_CONFIG. */
#define GIVEN(m, name)            ((m)->flag[MEGATRON_##name].given)
#define WORD(m, name, otherwise)  megatron_word(m, MEGATRON_##name, otherwise)
#define COUNT(m, name, otherwise) megatron_count(m, MEGATRON_##name, otherwise)
#define DEGREE(m, name)           megatron_degree(m, MEGATRON_##name)
#define REAL(m, name, otherwise)  megatron_real(m, MEGATRON_##name, otherwise)
#define IS(m, name, word)         (!strcmp(WORD(m, name, ""), word))
#define NEED(m, name)             megatron_need(m, MEGATRON_##name)
const char *megatron_word(const Megatron *m, MegatronId id, const char *otherwise);
int64_t megatron_count(const Megatron *m, MegatronId id, int64_t otherwise);
int64_t megatron_degree(const Megatron *m, MegatronId id);
double megatron_real(const Megatron *m, MegatronId id, double otherwise);
/* Fails with EXIT_CONFIG where it was not given. */
void megatron_need(const Megatron *m, MegatronId id);

/* A key that the command line becomes, and a line for people. */
void megatron_add(Megatron *m, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void megatron_add_count(Megatron *m, const char *key, int64_t n);
void megatron_note(Megatron *m, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The key gets the word of the flag; with `otherwise` NULL only where that was given. */
#define ADD(m, name, key, otherwise) megatron_add_word(m, MEGATRON_##name, key, otherwise)
void megatron_add_word(Megatron *m, MegatronId id, const char *key,
                       const char *otherwise);

/* By what is split of the optimizer's, nothing first: the word of
 * --data-parallel-sharding-strategy, the optimizer_level. */
extern const char *const megatron_shards[4][2];

typedef struct MegatronSizes {
    int64_t tp, pp, cp, dp;
    int64_t micro, global; /* sequences of a micro-batch of a replica, and of a step */
    int64_t steps;
} MegatronSizes;

/* Layers of each chunk, in the order in which a micro-batch goes through them, by the text of
 * --pipeline-model-parallel-layout. Fails with EXIT_CONFIG. */
int64_t *megatron_layout(Arena *mem, const char *text, int *chunks);

/* Is it said where the data are? */
bool megatron_has_data(const Megatron *m);

/* A line for each flag of the command line that changes nothing in what `make` makes of those `given`
 * for so many ranks, which m has. */
void megatron_note_unused(Megatron *m, const Megatron *given, int64_t ranks,
                          void (*make)(Megatron *, int64_t));

void megatron_add_model(Megatron *m);
void megatron_add_vocabulary(Megatron *m, const MegatronSizes *s);
void megatron_add_types(Megatron *m);
void megatron_add_parallel(Megatron *m, const MegatronSizes *s);
void megatron_add_recompute(Megatron *m, const MegatronSizes *s);

#endif
