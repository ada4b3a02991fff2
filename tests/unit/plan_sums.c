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

/* Bytes that a rank sends within micro-batches in sums over tp. */
static int64_t summed_bytes(const Plan *p) {
    int64_t bytes = 0;
    for (int i = 0; i < p->ncomm; i++) {
        const PlanComm *c = &p->comm[i];
        bool sums = !strcmp(c->kind, "reduce_scatter") || !strcmp(c->kind, "all_reduce");
        if (sums && !strcmp(c->axes, "tp") && c->runs > 1)
            bytes += c->sent_bytes * c->runs;
    }
    return bytes;
}

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
        double share = (double)summed_bytes(&narrow) / (double)summed_bytes(&wide);
        if (!(share >= 0.5 && share < 0.52))
            test_fail(__FILE__, __LINE__, "%s: %.3f of the bytes", words, share);
        /* a sum may be in the buffer of what it is added to, one of 16 bits not */
        EXPECT(narrow.memory.total_bytes <= 1.01 * (double)wide.memory.total_bytes);
    }
    arena_free(mem);
}
