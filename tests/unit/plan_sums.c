/* plan_sums.c - what plans say of sums of activations of 16 bits. */
#include "../plans.h"

/* Without replicas, so that sums over tp are of activations but for gradients of what all ranks
 * have. */
static const char *const way[] = {
    "tp 2 emb_dp False",
    "tp 2 sp True emb_dp False",
    "tp 4 sp True",
    "tp 2 sp True micro 2 again True",
    "tp 2 cp 2 algo megatron_cp_algo sp True",
    "tp 2 pp 2 micro 4 sp True",
    "tp 2 pp 2 chunks 2 micro 4 schedule zero_bubble_v beside 2",
};

static Plan plan_in(Arena *mem, const char *yaml, const char *words, const char *wide) {
    return plan_of(mem, yaml,
                   arena_printf(mem, "%s type float16 M.allreduce_activations_in_fp32 %s",
                                words, wide));
}

/* But for those of the loss and of what all ranks have. */
TEST(half_of_the_bytes_of_split_products) {
    static const char *const model[] = {plan_gpt2, plan_llama};
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(way) * ARRAY_LEN(model); i++) {
        const char *words = way[i / ARRAY_LEN(model)],
                   *yaml = model[i % ARRAY_LEN(model)];
        test_at("%s of %s", words, yaml);
        Plan wide = plan_in(mem, yaml, words, "True"),
             narrow = plan_in(mem, yaml, words, "False");
        double share = (double)plan_summed_bytes(&narrow, "tp", 2) /
                       (double)plan_summed_bytes(&wide, "tp", 2);
        if (!(share >= 0.5 && share < 0.52))
            test_fail(__FILE__, __LINE__, "%s: %.3f of the bytes", words, share);
        /* a sum may be in the buffer of what it is added to, one of 16 bits not */
        EXPECT(narrow.memory.total_bytes <= 1.01 * (double)wide.memory.total_bytes);
    }
    arena_free(mem);
}

/* Gradients of weights are summed as without. */
TEST(other_sums_have_the_bytes_they_had) {
    static const struct {
        const char *words, *axes;
    } of[] = {{"dp 2 tp 2 sp True", "dp"},
              {"dp 2 tp 2 micro 2 zero level2 threshold 0", "dp"},
              {"dp 4 tp 2 M.dropout_prob 0.1 emb_dp False", "dp"},
              {"cp 2 tp 2 algo megatron_cp_algo", "cp"},
              {"dp 2 pp 2 micro 4 zero level1", "dp"}};
    static const char *const model[] = {plan_gpt2, plan_llama};
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(of) * ARRAY_LEN(model); i++) {
        const char *yaml = model[i % ARRAY_LEN(model)], *words = of[i / 2].words;
        test_at("%s of %s", words, yaml);
        Plan wide = plan_in(mem, yaml, words, "True"),
             narrow = plan_in(mem, yaml, words, "False");
        int64_t want = plan_summed_bytes(&wide, of[i / 2].axes, 1);
        EXPECT(want > 0);
        EXPECT_INT(plan_summed_bytes(&narrow, of[i / 2].axes, 1), want);
    }
    arena_free(mem);
}
