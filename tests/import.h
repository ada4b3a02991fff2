/* import.h - for tests of stator import: words of Megatron-LM and what becomes of them. */
#ifndef STATOR_TESTS_IMPORT_H
#define STATOR_TESTS_IMPORT_H
#include "frontend/config/config.h"
#include "frontend/tools/megatron_parts.h"
#include "mem.h"
#include "test.h"

/* A small model on 8 ranks; what a test adds comes behind it, so it counts. */
static const char base[] =
    "torchrun --nproc_per_node 4 --nnodes=2 pretrain_gpt.py --num-layers 8 --hidden-size "
    "192 "
    "--num-attention-heads 6 --seq-length 64 --max-position-embeddings 64 "
    "--micro-batch-size 2 "
    "--global-batch-size 32 --train-iters 100 --lr 1e-3 --vocab-size 1000 "
    "--tokenizer-type HuggingFaceTokenizer ";

/* The words of a text, by blanks. */
static int words_of(const char *text, char **word, int cap) {
    int n = 0;
    for (char *p = arena_strdup(mem(), text); (p = strtok(p, " ")); p = NULL) {
        check(n < cap);
        word[n++] = p;
    }
    return n;
}

static Megatron *read_words(const char *text, int64_t ranks) {
    char *word[256];
    int n = words_of(text, word, ARRAY_LEN(word));
    char **kept = NEW_ARRAY(mem(), char *, ARRAY_LEN(word));
    memcpy(kept, word, sizeof word);
    Megatron *m = megatron_read(mem(), n, kept);
    megatron_keys(m, ranks);
    return m;
}

static const Config *config_of(const char *more) {
    Megatron *m = read_words(arena_printf(mem(), "%s%s", base, more), 0);
    return config_load(mem(), NULL, m->nkeys, m->key);
}

static inline char *text_of(const char *more) {
    Text t = text_new(mem());
    config_print_given(config_of(more), &t);
    return t.s;
}

#define REFUSED(more, part) EXPECT_FAIL((void)config_of(more), EXIT_CONFIG, part)

#endif
