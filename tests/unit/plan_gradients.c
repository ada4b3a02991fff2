/* plan_gradients.c - what plans say of gradients of 16 bits. */
#include "../plans.h"

static const char *const way[] = {
    "dp 2",
    "dp 2 micro 2",
    "dp 2 zero level1",
    "dp 2 micro 2 zero level1",
    "dp 4 zero level2 threshold 0",
    "dp 2 micro 2 zero level2 threshold 0",
    "dp 2 micro 2 zero level3 threshold 0",
    "dp 2 tp 2 sp True micro 2 zero level2 threshold 0",
    "dp 2 pp 2 micro 4 zero level1",
    "dp 2 pp 2 micro 4 zero level2 threshold 0",
};

static Plan plan_in(Arena *mem, const char *words, const char *wide) {
    return plan_of(mem, plan_gpt2,
                   arena_printf(mem,
                                "%s type bfloat16 "
                                "M.accumulate_allreduce_grads_in_fp32 %s",
                                words, wide));
}

/* But for those of loss, norm and agreement, and of padding. */
TEST(half_of_the_bytes_between_replicas) {
    enum { MOST_OTHERS = 512 };
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(way); i++) {
        test_at("%s", way[i]);
        Plan wide = plan_in(mem, way[i], "True"), narrow = plan_in(mem, way[i], "False");
        int64_t all = plan_summed_bytes(&wide, "dp", 1),
                half = plan_summed_bytes(&narrow, "dp", 1);
        if (all < 1000000 || 2 * half < all || 2 * half > all + MOST_OTHERS)
            test_fail(__FILE__, __LINE__, "%s: %lld bytes of %lld", way[i],
                      (long long)half, (long long)all);
        EXPECT(narrow.memory.total_bytes <= wide.memory.total_bytes);
        for (int k = 0; k < narrow.nparam; k++)
            EXPECT_INT(2 * narrow.param[k].gradient_bytes, wide.param[k].gradient_bytes);
    }
    arena_free(mem);
}

/* A table that is the head's too has two gradients, which ranks sum as one. */
TEST(a_tied_table_is_summed_once) {
    Arena *mem = arena_new();
    static const char *const type[] = {"float32", "bfloat16"};
    for (int level = 2; level <= 3; level++) {
        for (int i = 0; i < ARRAY_LEN(type); i++) {
            const char *words = arena_printf(
                mem, "dp 2 zero level%d threshold 0 micro 2 type %s", level, type[i]);
            Plan tied = plan_of(mem, plan_gpt2, words);
            Plan two =
                plan_of(mem, plan_gpt2,
                        arena_printf(mem, "%s M.tie_word_embeddings False", words));
            int64_t table_bytes = 4 * (int64_t)PLAN_V * PLAN_C;
            EXPECT_INT(plan_summed_bytes(&two, "dp", 1) -
                           plan_summed_bytes(&tied, "dp", 1),
                       2 * table_bytes / 2);
        }
    }
    arena_free(mem);
}
