/* simulate_shrink.c - the model of a simulation is small, and of the kind that it was. */
#include "../simulations.h"
#include <math.h>

static SimulateJob shrunk(Arena *mem, const char *yaml, const char *keys, Plan *p) {
    *p = plan_of_config(mem, plan_config(mem, yaml, keys), 0);
    return simulate_shrink(mem, p, false);
}

static SimulateJob gpt2(Arena *mem, const char *keys) {
    return shrunk(mem, simulated_gpt2, keys, NEW(mem, Plan));
}

static SimulateJob llama(Arena *mem, const char *keys) {
    return shrunk(mem, simulated_llama, keys, NEW(mem, Plan));
}

/* ---- sizes ---- */

TEST(sizes_are_the_least_that_divide) {
    Arena *mem = arena_new();
    SimulateJob s = gpt2(mem, "");
    EXPECT(s.job.spec.heads == 2 && s.job.spec.head_dim == 4 && s.job.spec.hidden == 8);
    EXPECT(s.job.spec.ffn == 32 && s.job.spec.vocab == 48 && s.job.seq == 16);
    EXPECT(s.job.spec.layers == 2 && s.job.batch == 1 && s.job.micro == 1);
    s = gpt2(mem, "tp 8 cp 2 dp 3 pp 4 micro 30");
    EXPECT(s.job.spec.heads == 16 && s.job.spec.hidden == 64);
    EXPECT(s.job.batch == 3 && s.job.micro == 8 + 30 % 4 && s.job.spec.layers == 8);
    s = gpt2(mem, "cp 16 algo megatron_cp_algo");
    EXPECT(s.job.seq == 32 && s.job.spec.heads == 2);
    s = gpt2(mem, "cp 2 algo megatron_cp_algo tp 16 sp True");
    EXPECT(s.job.seq == 32 && s.job.spec.heads == 16);
    s = gpt2(mem, "micro 7 beside 2 tp 2");
    EXPECT(s.job.micro == 3 && s.job.batch == 2 && s.job.parts == 2);
    arena_free(mem);
}

/* Rounding to 16 bits explains what norms over few numbers make of it, and they stay small else. */
TEST_LABEL_OF(norms_behind_norms_are_over_enough_numbers, RELEASED);
TEST(norms_behind_norms_are_over_enough_numbers) {
    static const char *const types[] = {"bfloat16", "float16"};
    static const char *const normed[] = {"M.use_sandwich_norm True",
                                         "M.qk_layernorm True M.use_sandwich_norm True"};
    Arena *mem = arena_new();
    SimulateJob s = gpt2(mem, normed[1]);
    EXPECT(s.job.spec.head_dim == 4 && s.job.spec.hidden == 8);
    s = gpt2(mem, "M.qk_layernorm True type bfloat16");
    EXPECT(s.job.spec.head_dim == 4 && s.job.spec.hidden == 8);
    for (int i = 0; i < 16; i++) {
        const char *keys =
            arena_printf(mem,
                         "%s type %s seed %d tp 2 pp 2 micro 2 sp True emb_dp False "
                         "again True runner_wrapper.max_grad_norm 0.01",
                         normed[i % 4 / 2], types[i % 2], i);
        test_at("%s", keys);
        Simulation t = simulated_open(mem, plan_config(mem, simulated_gpt2, keys), 4, 3);
        EXPECT(t.job->job.spec.head_dim == 16 && t.job->job.spec.hidden == 32);
        simulate_run(&t);
        EXPECT(simulate_passes(&t));
    }
    arena_free(mem);
}

TEST(a_narrow_inside_stays) {
    Arena *mem = arena_new();
    SimulateJob s = gpt2(mem, "M.ffn_hidden_size 8 tp 2");
    EXPECT(s.job.spec.ffn == 4);
    s = gpt2(mem, "M.ffn_hidden_size 2 tp 2");
    EXPECT(s.job.spec.ffn == 2);
    arena_free(mem);
}

TEST(keys_stay_shared) {
    Arena *mem = arena_new();
    SimulateJob s = llama(mem, "tp 4");
    EXPECT(s.job.spec.kv_heads == 4 && s.job.spec.heads == 8);
    s = llama(mem, "M.n_kv_heads 1 tp 4");
    EXPECT(s.job.spec.kv_heads == 1 && s.job.spec.heads == 4);
    s = llama(mem, "M.n_kv_heads 32 tp 4");
    EXPECT(s.job.spec.kv_heads == 4 && s.job.spec.heads == 4);
    s = llama(mem, "cp 2 tp 2 dp 2");
    EXPECT(s.job.spec.kv_heads == 4 && s.job.spec.heads == 8);
    arena_free(mem);
}

TEST(padding_windows_and_positions_stay) {
    Arena *mem = arena_new();
    SimulateJob s = gpt2(mem, "tp 4 emb_dp False"); /* 1001 */
    EXPECT(s.job.spec.vocab == 49 && s.job.shape.vocab_rows == 52);
    s = llama(mem, "tp 4 emb_dp False"); /* 1000 */
    EXPECT(s.job.spec.vocab == 48 && s.job.shape.vocab_rows == 48);
    s = llama(mem, "M.sliding_window 64");
    EXPECT(s.job.spec.window == 4 && s.job.seq == 16);
    s = llama(mem,
              "M.sliding_window 8"); /* of one token nothing would depend on queries */
    EXPECT(s.job.spec.window == 4 && s.job.seq == 16);
    s = llama(mem, "M.sliding_window 2");
    EXPECT(s.job.spec.window == 2 && s.job.seq == 16);
    s = llama(mem, "M.sliding_window 1024");
    EXPECT(s.job.spec.window >= s.job.seq);
    s = gpt2(mem, "M.max_position_embeddings 512");
    EXPECT(s.job.spec.max_positions == 32 && s.job.seq == 16);
    arena_free(mem);
}

TEST(entries_still_divide) {
    Arena *mem = arena_new();
    SimulateJob s = gpt2(mem, "dp 4 tp 2 parallel.shard [\"h.mlp.c_fc.weight=-,dp,tp\"]");
    EXPECT(s.job.spec.hidden % 8 == 0 && s.job.spec.ffn % 8 == 0);
    s = gpt2(mem, "dp 2 parallel.shard [\"wte.weight=-,dp\"]");
    EXPECT(s.job.spec.hidden % 2 == 0);
    Simulation t = simulated_open(
        mem,
        plan_config(mem, simulated_gpt2,
                    "dp 4 tp 2 parallel.shard [\"h.mlp.c_fc.weight=-,dp,tp\"]"),
        8, 1);
    simulate_run(&t);
    EXPECT(simulate_passes(&t));
    arena_free(mem);
}

TEST(entries_still_divide_sequences) {
    const char *keys =
        "dp 2 tp 2 runner_config.batch_size 2 parallel.shard [\"layer/x=dp.tp,-,-\"]";
    Arena *mem = arena_new();
    SimulateJob s = gpt2(mem, keys);
    EXPECT(s.job.batch == 4);
    s = gpt2(mem, "dp 2 tp 2 runner_config.batch_size 2");
    EXPECT(s.job.batch == 2);
    Simulation t = simulated_open(mem, plan_config(mem, simulated_gpt2, keys), 4, 1);
    simulate_run(&t);
    EXPECT(simulate_passes(&t));
    arena_free(mem);
}

/* ---- layers ---- */

static void expect_order_of_layers(const char *keys) {
    Arena *mem = arena_new();
    Plan p;
    SimulateJob s = shrunk(mem, simulated_gpt2, keys, &p);
    PassOptions o = strategy_pass_options(s.job.cfg);
    job_module(&s.job, &o);
    const int64_t *was = p.pipe->layers, *is = o.chunk_layers;
    int64_t sum = 0;
    for (int c = 0; c < p.pipe->schedule->chunks; c++) {
        sum += is[c];
        EXPECT(is[c] <= was[c] && (is[c] == 0) == (was[c] == 0) && is[c] <= 4);
        for (int d = 0; d < c; d++) EXPECT((was[c] - was[d]) * (is[c] - is[d]) >= 0);
    }
    EXPECT(sum == s.job.spec.layers && sum < p.job->spec.layers);
    arena_free(mem);
}

TEST_LABEL_OF(chunks_stay_uneven, RELEASED);
TEST(chunks_stay_uneven) {
    expect_order_of_layers("pp 2 micro 2");
    expect_order_of_layers("pp 3 micro 3");
    expect_order_of_layers("pp 4 layers [7,4,4,1] micro 4");
    expect_order_of_layers("pp 4 layers [0,8,8,0] micro 4");
    expect_order_of_layers("pp 2 chunks 2 layers [[5,4],[4,3]] micro 4");
    expect_order_of_layers("pp 2 parallel_config.offset [3,-3] micro 2");
    expect_order_of_layers("pp 2 parallel_config.noop_layers [0,15,14] micro 2");
    expect_order_of_layers(
        "pp 4 parallel_config.num_layers_in_first_pipeline_stage 1 micro 4");
    expect_order_of_layers("pp 2 chunks 2 schedule zero_bubble_v micro 4");
    expect_order_of_layers("pp 4 micro 4 again [2,3,0,1]");
}

TEST(policies_stay) {
    static const struct {
        const char *keys, *is;
    } rows[] = {{"again True", "full"},
                {"again 5", "1:full"},
                {"again 16", "2:full"},
                {"again 16 select [norm]", "2:full;norm"},
                {"pp 2 micro 2 again 8", "2:full"},
                {"pp 2 micro 2 again [8,5]", "2:full|1:full"},
                {"pp 2 layers [9,7] micro 2 again [9,7]", "2:full|1:full"},
                {"pp 2 layers [9,7] micro 2 again 7", "1:full"},
                {"pp 2 micro 2 again [5,0]", "1:full|"},
                {"again 3 select [norm,act]", "1:full;norm,act"},
                {"again 4 recompute_config.recompute_method uniform", "x2:full"}};
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        Arena *mem = arena_new();
        SimulateJob s = gpt2(mem, rows[i].keys);
        EXPECT_STR(s.job.strategy.remake, rows[i].is);
        arena_free(mem);
    }
}

/* What entries of parallel.shard split over layers is split in the small model too. */
TEST(layers_stay_divisible) {
    Arena *mem = arena_new();
    SimulateJob s = gpt2(mem, "tp 8 parallel.shard ['h.ln_2.weight=tp,-']");
    EXPECT_INT(s.job.spec.layers, 8);
    s = gpt2(mem, "tp 8");
    EXPECT_INT(s.job.spec.layers, 2);
    s = gpt2(mem, "pp 2 micro 2 tp 4 parallel.shard ['h.ln_2.weight=-,tp']");
    EXPECT_INT(s.job.spec.layers, 8);
    arena_free(mem);
}

/* ---- limits in bytes ---- */

/* Without the first row that a chunk has of it. */
static size_t name_length(const PlanParam *p) {
    return strcspn(p->name, "#");
}

/* The same parameters are split, and the same kinds of collectives go over the same axes. */
static void expect_same_program(const Plan *was, const Plan *is) {
    EXPECT_INT(was->nparam, is->nparam);
    for (int i = 0; i < was->nparam; i++) {
        const PlanParam *a = &was->param[i], *b = &is->param[i];
        EXPECT(name_length(a) == name_length(b) &&
               !memcmp(a->name, b->name, name_length(a)));
        if (a->flattened != b->flattened || strcmp(a->state_axes, b->state_axes) ||
            strcmp(a->weight_axes, b->weight_axes))
            test_fail(__FILE__, __LINE__, "%s is split otherwise", a->name);
    }
    for (int swap = 0; swap < 2; swap++, is = was)
        for (int i = 0; i < was->ncomm; i++) {
            bool found = false;
            for (int k = 0; k < is->ncomm; k++)
                found |= !strcmp(was->comm[i].kind, is->comm[k].kind) &&
                         !strcmp(was->comm[i].axes, is->comm[k].axes);
            if (!found)
                test_fail(__FILE__, __LINE__, "%s over %s is of one alone",
                          was->comm[i].kind, was->comm[i].axes);
        }
}

TEST_LABEL_OF(programs_stay_of_their_kind, RELEASED);
TEST(programs_stay_of_their_kind) {
    static const char *const keys[] = {
        "dp 2 zero level1",
        "dp 4 tp 2 zero level2 micro 3",
        "dp 2 cp 2 zero level3 micro 2",
        "dp 2 tp 2 sp True emb_dp False zero level3 again True",
        "dp 2 cp 4 algo megatron_cp_algo tp 2 micro 2",
        "dp 2 tp 2 pp 2 zero level1 micro 4 emb_dp False type bfloat16",
        "dp 2 zero level2 "
        "parallel.parallel_optimizer_config.parallel_optimizer_threshold 300",
        "dp 2 zero level2 "
        "parallel.parallel_optimizer_config.parallel_optimizer_threshold 0",
        "dp 2 zero level2 "
        "parallel.parallel_optimizer_config.parallel_optimizer_threshold 1048576",
    };
    for (int i = 0; i < 2 * ARRAY_LEN(keys); i++) {
        Arena *mem = arena_new();
        Plan p;
        test_at("%s", keys[i / 2]);
        SimulateJob s =
            shrunk(mem, i % 2 ? simulated_gpt2 : simulated_llama, keys[i / 2], &p);
        PassOptions o = strategy_pass_options(s.job.cfg);
        Module *m = job_module(&s.job, &o);
        simulate_tune(&s, &o);
        Plan small = plan_of_module(mem, &s.job, m, &o);
        int stages = p.pipe ? p.pipe->schedule->stages : 1;
        for (int k = 0; k < stages; k++)
            expect_same_program(p.pipe ? &p.pipe->stage[k] : &p,
                                p.pipe ? &small.pipe->stage[k] : &small);
        EXPECT(small.memory.total_bytes * 20 < p.memory.total_bytes);
        arena_free(mem);
    }
}

/* Loops over tiles of logits are there if they were. */
TEST(tiles_stay) {
    Arena *mem = arena_new();
    for (int tiled = 0; tiled < 2; tiled++) {
        Plan p;
        const char *keys = tiled ? "dp 2 context.tile_size 1MB" : "dp 2";
        SimulateJob s = shrunk(mem, simulated_gpt2, keys, &p);
        Config *cfg = s.job.cfg;
        Simulation t = simulated_open(mem, cfg, 2, 1);
        simulate_run(&t);
        EXPECT(simulate_passes(&t));
        char *was = module_print(mem, p.m), *is = module_print(mem, t.shrunk->m);
        EXPECT((strstr(was, "tile") != NULL) == tiled);
        EXPECT((strstr(is, "tile") != NULL) == tiled);
    }
    arena_free(mem);
}

/* What each of many layers adds is less, or they would make more of what is rounded before them than
 * the limits allow. */
TEST_LABEL_OF(deep_models_stay_within_the_limits, RELEASED);
TEST(deep_models_stay_within_the_limits) {
    static const char *const types[] = {"float32", "bfloat16", "float16"};
    Arena *mem = arena_new();
    SimulateJob s = llama(mem, "");
    double some = s.job.spec.block_std;
    s = llama(mem, "pp 4 chunks 4 micro 8 M.num_layers 32");
    EXPECT(s.job.spec.layers == 32 && fabs(s.job.spec.block_std / some - 0.25) < 1e-9);
    EXPECT(s.job.spec.embedding_std == some);
    for (int i = 0; i < 12; i++) {
        const char *keys =
            arena_printf(mem,
                         "pp 4 chunks 4 micro 8 M.num_layers 32 type %s seed %d "
                         "optimizer.learning_rate 1e-3",
                         types[i % 3], i / 3);
        test_at("%s", keys);
        Simulation t = simulated_open(mem, plan_config(mem, simulated_llama, keys), 4, 2);
        simulate_run(&t);
        EXPECT(simulate_passes(&t));
    }
    arena_free(mem);
}

TEST(what_is_changed_is_listed) {
    Arena *mem = arena_new();
    Plan p;
    SimulateJob s = shrunk(mem, simulated_gpt2, "tp 2 zero level1 dp 2", &p);
    static const char *const rows[][3] = {{"num_layers", "16", "2"},
                                          {"hidden_size", "256", "8"},
                                          {"batch_size", "4", "1"},
                                          {"optimizer.eps", "1e-08", "0.001"}};
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        bool found = false;
        for (int k = 0; k < s.nchanges; k++)
            found |= !strcmp(s.change[k].what, rows[i][0]) &&
                     !strcmp(s.change[k].was, rows[i][1]) &&
                     !strcmp(s.change[k].is, rows[i][2]);
        if (!found) test_fail(__FILE__, __LINE__, "%s is not listed", rows[i][0]);
    }
    s = simulate_shrink(mem, &p, true);
    EXPECT(!s.shrunk && s.nchanges == 1 && s.job.spec.hidden == 256);
    arena_free(mem);
}
