/* Golden plans: tests/golden_plans/NAME.json is `stator plan --json` of a small model
 * under a strategy, for one kind of processor, without the hash, which changes with the
 * compiler.
 * STATOR_BLESS=1 writes what comes out; read the diff. */
#include "../plans.h"

typedef struct Golden {
    const char *name, *model, *keys;
} Golden;

static const Golden golden[] = {
    {"gpt2_single", plan_gpt2, "micro 2"},
    {"gpt2_dp2", plan_gpt2, "dp 2 micro 2"},
    {"gpt2_dp3_zero1", plan_gpt2, "dp 3 zero level1 threshold 0"},
    {"gpt2_dp4_zero2", plan_gpt2, "dp 4 zero level2 micro 2"},
    {"gpt2_dp4_zero3", plan_gpt2, "dp 4 zero level3"},
    {"gpt2_tp2", plan_gpt2, "tp 2"},
    {"gpt2_tp4_sp", plan_gpt2, "tp 4 sp True"},
    {"gpt2_tp2_vocab", plan_gpt2, "tp 2 emb_dp False model.model_config.vocab_size 1001"},
    {"gpt2_cp2", plan_gpt2, "cp 2"},
    {"gpt2_cp4_ring", plan_gpt2, "cp 4 algo megatron_cp_algo"},
    {"gpt2_cp4_hybrid", plan_gpt2,
     "cp 4 algo hybrid_cp_algo parallel_config.ulysses_degree_in_cp 2"},
    {"llama_tp4", plan_llama, "tp 4 sp True emb_dp False"},
    {"llama_dp2_tp2_cp2_zero1", plan_llama, "dp 2 tp 2 cp 2 sp True zero level1 micro 4"},
    {"llama_buckets", plan_llama,
     "dp 4 zero level1 parallel.bucket_size 2MB threshold 0"},
};

/* Without the line of the hash. */
static const char *steady(Arena *mem, const Plan *p) {
    Text all = text_new(mem), out = text_new(mem);
    text_add(&all, "{\n");
    plan_json(p, &all);
    text_add(&all, "\n}\n");
    for (const char *line = all.s; *line;) {
        size_t n = strcspn(line, "\n") + 1;
        if (strncmp(line, "  \"plan_hash\"", 13)) text_add_bytes(&out, line, n);
        line += n;
    }
    return out.s;
}

static void check_golden(const Golden *g) {
    Arena *mem = arena_new();
    const char *keys = arena_printf(mem, "%s context.cpu x86-64-v3", g->keys);
    Plan p = plan_of(mem, g->model, keys);
    const char *got = steady(mem, &p);
    const char *path = arena_printf(mem, "%s/golden_plans/%s.json", tests_dir(), g->name);
    if (test_bless()) {
        EXPECT_INT(file_write_atomic(path, got, strlen(got)), 0);
    } else {
        size_t n;
        const char *want = file_read(mem, path, 1 << 20, &n, EXIT_DATA);
        if (strcmp(got, want))
            test_fail(__FILE__, __LINE__, "%s: got\n%s\nwanted\n%s", path, got, want);
    }
    arena_free(mem);
}

TEST(golden_plans) {
    for (int i = 0; i < ARRAY_LEN(golden); i++) check_golden(&golden[i]);
}
