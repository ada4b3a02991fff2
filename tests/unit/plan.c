/* Plans against closed forms: what a strategy must cost, in operations and in bytes. */
#include "../plans.h"
#include "codegen/planned.h"
#include "passes/cost/message.h"

enum {
    F32 = 4,
    STREAM = PLAN_B * PLAN_T * PLAN_C * F32
}; /* bytes of the residual stream */

/* Weights of the small Llama: two tables, a norm, and in each layer two norms, q and o, k
 * and v of half as many heads, and the three matrices of the MLP. */
enum {
    LLAMA_LAYER = 2 * PLAN_C + 3 * PLAN_C * PLAN_C + 3 * PLAN_C * PLAN_F,
    LLAMA = 2 * PLAN_V * PLAN_C + PLAN_C + PLAN_L * LLAMA_LAYER,
    LLAMA_TENSORS = 3 + 9,
};

static void expect_comm(const Plan *p, PlanPart part, const char *kind, const char *axes,
                        int64_t operands, int64_t bytes, int64_t sent) {
    PlanComm c = plan_find(p, part, kind, axes);
    if (c.operands != operands || c.bytes != bytes || c.sent_bytes != sent)
        test_fail(
            __FILE__, __LINE__,
            "%s over %s, %s: %lld tensors of %lld bytes, %lld sent; wanted %lld of %lld, "
            "%lld sent",
            kind, axes, plan_part_name[part], (long long)c.operands, (long long)c.bytes,
            (long long)c.sent_bytes, (long long)operands, (long long)bytes,
            (long long)sent);
}

TEST(sent_bytes_of_rings) {
    EXPECT_INT(message_sent_bytes(OP_all_reduce, 1200, 4), 1800);
    EXPECT_INT(message_sent_bytes(OP_reduce_scatter, 1200, 4), 900);
    EXPECT_INT(message_sent_bytes(OP_all_to_all, 1200, 3), 800);
    EXPECT_INT(message_sent_bytes(OP_all_gather, 1200, 4), 3600);
    EXPECT_INT(message_sent_bytes(OP_ring_shift, 1200, 4), 1200);
    EXPECT_INT(message_sent_bytes(OP_all_reduce, 4, 3), 6); /* 5 1/3 */
    EXPECT_INT(message_sent_bytes(OP_all_reduce, 1200, 1), 0);
    EXPECT(message_sent_bytes(OP_all_reduce, (int64_t)1 << 50, 1 << 20) ==
           ((int64_t)1 << 51) - ((int64_t)1 << 31));
    EXPECT_INT(message_sent_bytes(OP_all_gather, (int64_t)1 << 50, 1 << 20), INT64_MAX);
}

/* ---- tensor parallel ---- */

TEST(a_row_parallel_matmul_is_one_all_reduce) {
    Arena *mem = arena_new();
    size_t n;
    const char *path = path_join(mem, TESTS_DIR, "ir/mlp.ir");
    char *text = file_read(mem, path, 1 << 20, &n, EXIT_DATA);
    Module *m = module_parse(mem, path, text, n);
    m->mesh = (Mesh){.naxes = 1, .axis = {{"tp", 2}}};
    static const Annotation place[] = {{"w1", "-,tp", "test", false},
                                       {"w2", "tp,-", "test", false}};
    PassOptions o = pass_options_default();
    o.annotation = place;
    o.nannotations = ARRAY_LEN(place);
    CompileOptions co = {.threads = 1};
    const Func *entry = module_plan(mem, m, train_passes, &o, &co);
    Job job = {.cfg = plan_config(mem, plan_gpt2, ""), .micro = 1, .batch = 8, .seq = 1};
    Plan p = plan_read(mem, entry, &job);
    EXPECT_INT(plan_operations(&p, PLAN_MODEL), 1);
    expect_comm(&p, PLAN_MODEL, "all_reduce", "tp", 1, 8 * 3 * F32, 8 * 3 * F32);
    EXPECT(p.parameters == 6 * 10 + 10 + 10 * 3 && p.rank_parameters * 2 == p.parameters);
}

TEST(a_layer_under_tensor_parallel_is_two_all_reduces_each_way) {
    Arena *mem = arena_new();
    for (int n = 2; n <= 4; n *= 2) {
        Plan p = plan_of(mem, plan_gpt2, arena_printf(mem, "tp %d micro 3", n));
        int64_t sent = 2 * STREAM / n * (n - 1) * 2;
        expect_comm(&p, PLAN_FORWARD, "all_reduce", "tp", 2, 2 * STREAM, sent);
        expect_comm(&p, PLAN_BACKWARD, "all_reduce", "tp", 2, 2 * STREAM, sent);
        EXPECT_INT(plan_operations(&p, PLAN_FORWARD), 2);
        EXPECT_INT(plan_operations(&p, PLAN_BACKWARD), 2);
        PlanComm c = plan_find(&p, PLAN_FORWARD, "all_reduce", "tp");
        EXPECT(c.group == n && c.runs == 3 * PLAN_L && c.micro_runs == PLAN_L);
    }
}

/* An all-reduce becomes a reduce-scatter behind the product and a gather before the next;
 * backward gathers its inputs again. */
TEST(sequence_parallel_makes_reduce_scatters_of_them) {
    Arena *mem = arena_new();
    for (int n = 2; n <= 4; n *= 2) {
        Plan p = plan_of(mem, plan_gpt2, arena_printf(mem, "tp %d sp True", n));
        int64_t part = STREAM / n, sent = part * (n - 1);
        expect_comm(&p, PLAN_FORWARD, "reduce_scatter", "tp", 2, 2 * STREAM, 2 * sent);
        expect_comm(&p, PLAN_FORWARD, "all_gather", "tp", 2, 2 * part, 2 * sent);
        expect_comm(&p, PLAN_BACKWARD, "reduce_scatter", "tp", 2, 2 * STREAM, 2 * sent);
        expect_comm(&p, PLAN_BACKWARD, "all_gather", "tp", 4, 4 * part, 4 * sent);
        expect_comm(&p, PLAN_FORWARD, "all_reduce", "tp", 0, 0, 0);
        expect_comm(&p, PLAN_BACKWARD, "all_reduce", "tp", 0, 0, 0);
    }
}

TEST(a_padded_vocabulary_is_said) {
    Arena *mem = arena_new();
    Plan p =
        plan_of(mem, plan_llama, "tp 2 emb_dp False model.model_config.vocab_size 1001");
    const PlanParam *table = NULL;
    bool said = false;
    for (int i = 0; i < p.nparam; i++)
        if (strstr(p.param[i].name, "embed_tokens")) table = &p.param[i];
    EXPECT(table != NULL);
    EXPECT_STR(table->placement, "f32[1002:tp,256]");
    EXPECT_INT(table->rank_count, 501 * PLAN_C);
    for (int i = 0; i < p.job->cfg->n_notes; i++)
        said |= strstr(p.job->cfg->notes[i], "1001 is padded to 1002") != NULL;
    EXPECT(said);
    EXPECT_INT(p.parameters, LLAMA + 2 * PLAN_C); /* the model's own, without padding */
}

/* ---- context parallel ---- */

/* Queries, keys, values and outputs change sides, and their gradients; the output once
 * more, which backward reads in both ways. */
/* Its gradients are 0: without eps the step of padding is 0/0. */
TEST(a_padded_vocabulary_needs_an_eps) {
    static const char padded[] = "tp 2 emb_dp False model.model_config.vocab_size 1001";
    static const struct {
        const char *more;
        bool refused;
    } of[] = {{"optimizer.eps 0", true},
              {"optimizer.eps 0 optimizer.type AdamWeightDecay", true},
              {"optimizer.eps 1e-60", true}, /* 0 in f32 */
              {"optimizer.eps 1e-8", false},
              {"optimizer.eps 0 optimizer.type SGD", false},
              {"optimizer.eps 0 model.model_config.vocab_size 1002", false}};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        Arena *mem = arena_new();
        const char *keys = arena_printf(mem, "%s %s", padded, of[i].more);
        if (of[i].refused)
            EXPECT_FAIL(plan_of(mem, plan_llama, keys), EXIT_CONFIG,
                        "pads the vocabulary of 1001 to 1002 rows");
        else
            EXPECT(plan_of(mem, plan_llama, keys).ranks == 2);
        arena_free(mem);
    }
}

TEST(ulysses_exchanges_four_tensors_each_way) {
    Arena *mem = arena_new();
    Plan p = plan_of(mem, plan_gpt2, "cp 2");
    int64_t part = STREAM / 2;
    expect_comm(&p, PLAN_FORWARD, "all_to_all", "cp", 4, 4 * part, 4 * part / 2);
    EXPECT_INT(plan_find(&p, PLAN_BACKWARD, "all_to_all", "cp").operands, 5);
    expect_comm(&p, PLAN_FORWARD, "all_gather", "cp", 0, 0, 0);
}

TEST(a_ring_sends_keys_and_values_to_the_next) {
    Arena *mem = arena_new();
    Plan p = plan_of(mem, plan_gpt2, "cp 4 algo megatron_cp_algo");
    PlanComm c = plan_find(&p, PLAN_FORWARD, "ring_shift", "cp");
    EXPECT(c.operations > 0 && c.sent_bytes == c.bytes && c.group == 4);
    EXPECT(plan_find(&p, PLAN_BACKWARD, "ring_shift", "cp").operations > 0);
    expect_comm(&p, PLAN_FORWARD, "all_gather", "cp", 0, 0, 0);
    expect_comm(&p, PLAN_FORWARD, "all_to_all", "cp", 0, 0, 0);
}

/* Positions and starts of documents are read where the tokens are. */
TEST(documents_in_a_ring_send_nothing_more) {
    static const char one[] = "dp 2 cp 4 algo megatron_cp_algo";
    static const char documents[] = " train_dataset.data_loader.type GPTDataset"
                                    " train_dataset.data_loader.reset_position_ids "
                                    "True "
                                    "train_dataset.data_loader.reset_attention_mask "
                                    "True";
    Arena *mem = arena_new();
    Plan p = plan_of(mem, plan_llama, one);
    Plan q = plan_of(mem, plan_llama, arena_printf(mem, "%s%s", one, documents));
    for (int part = PLAN_FORWARD; part <= PLAN_BACKWARD; part++)
        EXPECT_INT(plan_operations(&p, part), plan_operations(&q, part));
    PlanComm c = plan_find(&p, PLAN_FORWARD, "ring_shift", "cp");
    expect_comm(&q, PLAN_FORWARD, "ring_shift", "cp", c.operands, c.bytes, c.sent_bytes);
}

/* ---- data parallel and optimizer shards ---- */

/* What a step does with one kind of collective, in whatever part of the program. */
static PlanComm in_a_step(const Plan *p, const char *kind, const char *axes) {
    PlanComm sum = {.kind = kind, .axes = axes};
    for (int i = 0; i < p->ncomm; i++) {
        const PlanComm *c = &p->comm[i];
        if (strcmp(c->kind, kind) || strcmp(c->axes, axes)) continue;
        sum.runs += c->runs;
        sum.micro_runs += c->micro_runs;
        sum.operations += c->operations * c->runs;
        sum.operands += c->operands * c->runs;
        sum.bytes += c->bytes * c->runs;
        sum.sent_bytes += c->sent_bytes * c->runs;
    }
    return sum;
}

/* After the last backward, or beside it: those of large tensors in the layers, but for the one
 * that a layer makes last. Then the ranks agree, with one number, on whether the step is good. */
TEST(gradients_are_reduced_once_a_step) {
    Arena *mem = arena_new();
    static const char keys[] = "dp 2 micro 4 parallel.bucket_size 64MB parallel.overlap ";
    int64_t bytes = F32 * (int64_t)LLAMA + 2 * F32; /* and the loss */
    Plan p = plan_of(mem, plan_llama, arena_printf(mem, "%soff", keys));
    EXPECT_INT(plan_operations(&p, PLAN_FORWARD) + plan_operations(&p, PLAN_BACKWARD), 0);
    EXPECT(plan_operations(&p, PLAN_MODEL) == 0 && plan_operations(&p, PLAN_STEP) == 2);
    expect_comm(&p, PLAN_STEP, "all_reduce", "dp", LLAMA_TENSORS + 2, bytes, bytes);
    EXPECT_INT(plan_find(&p, PLAN_STEP, "all_reduce", "dp").micro_runs, 0);
    p = plan_of(mem, plan_llama, arena_printf(mem, "%sauto", keys));
    PlanComm c = in_a_step(&p, "all_reduce", "dp");
    EXPECT(c.bytes == bytes && c.sent_bytes == bytes && c.micro_runs == 0);
    c = plan_find(&p, PLAN_BACKWARD, "all_reduce", "dp");
    EXPECT(c.runs == PLAN_L && c.operands == 6 && plan_operations(&p, PLAN_FORWARD) == 0);
    EXPECT_INT(c.bytes, F32 * ((int64_t)LLAMA_LAYER - 2 * PLAN_C - PLAN_C * PLAN_C));
}

/* bucket_size goes before comm_fusion, that before gradient_aggregation_group. */
TEST(bucket_sizes_by_any_of_their_keys) {
    Arena *mem = arena_new();
    static const char fused[] = "dp 2 parallel.comm_fusion.allgather.mode size "
                                "parallel.comm_fusion.allgather.config 3 "
                                "parallel_config.gradient_aggregation_group 4";
    Plan p = plan_of(mem, plan_llama, fused);
    EXPECT(p.job->strategy.bucket_bytes == 3 << 20);
    p = plan_of(mem, plan_llama, "dp 2 parallel_config.gradient_aggregation_group 4");
    EXPECT_INT(p.job->strategy.bucket_bytes, F32 * (int64_t)LLAMA / 4 + 1);
    p = plan_of(mem, plan_llama, arena_printf(mem, "%s parallel.bucket_size 5MB", fused));
    EXPECT(p.job->strategy.bucket_bytes == 5 << 20);
}

/* Buckets that have room for everything hold all stacked tensors, and all others; without
 * buckets each tensor goes by itself. */
TEST(zero1_is_one_reduce_scatter_and_one_all_gather_a_bucket) {
    Arena *mem = arena_new();
    static const char *const bucket[] = {"64MB", "0B"};
    for (int k = 0; k < 2; k++) {
        for (int n = 2; n <= 4; n *= 2) {
            Plan p = plan_of(mem, plan_llama,
                             arena_printf(mem,
                                          "dp %d zero level1 threshold 0 micro 2 "
                                          "parallel.overlap off "
                                          "parallel.bucket_size %s",
                                          n, bucket[k]));
            int64_t bytes = F32 * (int64_t)LLAMA, part = bytes / n;
            expect_comm(&p, PLAN_STEP, "reduce_scatter", "dp", LLAMA_TENSORS, bytes,
                        part * (n - 1));
            expect_comm(&p, PLAN_STEP, "all_gather", "dp", LLAMA_TENSORS, part,
                        part * (n - 1));
            int64_t operations = plan_find(&p, PLAN_STEP, "all_gather", "dp").operations;
            EXPECT(operations >= 1 && operations <= 2 ? !k
                                                      : k && operations == LLAMA_TENSORS);
            EXPECT_INT(plan_find(&p, PLAN_STEP, "reduce_scatter", "dp").operations,
                       operations);
            EXPECT_INT(
                plan_operations(&p, PLAN_BACKWARD) + plan_operations(&p, PLAN_MODEL), 0);
        }
    }
}

/* The same bytes beside work: parameters are gathered in the first forward, gradients
 * reduced in the last backward, for any number of micro-batches. */
TEST(overlap_moves_the_bytes_of_zero1) {
    Arena *mem = arena_new();
    for (int micro = 1; micro <= 4; micro++) {
        Plan p =
            plan_of(mem, plan_llama,
                    arena_printf(mem, "dp 2 zero level1 threshold 0 micro %d", micro));
        int64_t bytes = F32 * (int64_t)LLAMA, part = bytes / 2;
        PlanComm gather = in_a_step(&p, "all_gather", "dp");
        PlanComm reduce = in_a_step(&p, "reduce_scatter", "dp");
        EXPECT(gather.bytes == part && gather.sent_bytes == part);
        EXPECT(reduce.bytes == bytes && reduce.sent_bytes == part);
        int64_t large = F32 * ((int64_t)LLAMA_LAYER - 2 * PLAN_C);
        EXPECT_INT(plan_find(&p, PLAN_FORWARD, "all_gather", "dp").bytes, large / 2);
        EXPECT_INT(plan_find(&p, PLAN_BACKWARD, "reduce_scatter", "dp").bytes, large);
        EXPECT_INT(plan_find(&p, PLAN_BACKWARD, "all_gather", "dp").operations, 0);
    }
}

/* It costs a rank its part of the parameters besides. */
TEST(gathering_after_the_update_takes_less_memory) {
    Arena *mem = arena_new();
    static const char keys[] = "dp 2 zero level2 threshold 0 micro 2 "
                               "parallel.overlap_param_gather ";
    Plan ahead = plan_of(mem, plan_llama, arena_printf(mem, "%sTrue", keys));
    Plan after = plan_of(mem, plan_llama, arena_printf(mem, "%sFalse", keys));
    int64_t part = F32 * (int64_t)LLAMA / 2;
    EXPECT_INT(plan_find(&after, PLAN_STEP, "all_gather", "dp").bytes, part);
    EXPECT_INT(in_a_step(&ahead, "all_gather", "dp").bytes, part);
    EXPECT(after.rank_parameters == LLAMA && ahead.rank_parameters * 2 == LLAMA);
    int64_t more = ahead.memory.total_bytes - after.memory.total_bytes;
    EXPECT_NEAR((double)more, (double)part, 0.03);
}

TEST(zero3_gathers_a_layer_each_way_and_reduces_it_once) {
    Arena *mem = arena_new();
    Plan p = plan_of(mem, plan_llama, "dp 4 zero level3 threshold 0");
    int64_t bytes = F32 * (int64_t)LLAMA_LAYER, part = bytes / 4;
    expect_comm(&p, PLAN_FORWARD, "all_gather", "dp", 9, part, part * 3);
    expect_comm(&p, PLAN_BACKWARD, "all_gather", "dp", 9, part, part * 3);
    expect_comm(&p, PLAN_BACKWARD, "reduce_scatter", "dp", 9, bytes, part * 3);
    expect_comm(&p, PLAN_STEP, "all_gather", "dp", 0, 0, 0);
}

/* Gradients of levels 2 and 3 are summed within a group in every micro-batch, over the groups once a
 * step; weights are gathered within a group. At level 1 those of norms are summed at one go. */
TEST(groups_of_replicas_sum_once_a_step) {
    Arena *mem = arena_new();
    static const char keys[] =
        "dp 4 threshold 0 micro 3 parallel.overlap off shard 2 zero ";
    const int64_t bytes = F32 * (int64_t)LLAMA;
    for (int level = 1; level <= 3; level++) {
        Plan p = plan_of(mem, plan_llama, arena_printf(mem, "%slevel%d", keys, level));
        EXPECT_INT(p.job->strategy.groups, 2);
        EXPECT(p.m->mesh.axis[0].size == 2 && !strcmp(p.m->mesh.axis[0].name, "rp"));
        PlanComm within = in_a_step(&p, "reduce_scatter", "dp");
        PlanComm between = in_a_step(&p, "all_reduce", "rp");
        PlanComm gather = in_a_step(&p, "all_gather", "dp");
        int64_t apart = level > 1 ? 0 : F32 * (2 * PLAN_L + 1) * PLAN_C;
        EXPECT_INT(within.bytes, (level > 1 ? 3 : 1) * bytes - apart);
        EXPECT(between.bytes == (bytes - apart) / 2 && between.micro_runs == 0);
        EXPECT(level < 3 ? gather.bytes == bytes / 2 : gather.bytes > 3 * bytes / 2);
    }
    EXPECT_FAIL(plan_of(mem, plan_llama, "dp 4 zero level1 shard 3"), EXIT_CONFIG,
                "a multiple of context_parallel that divides that product");
    EXPECT_FAIL(plan_of(mem, plan_llama, "dp 2 cp 4 zero level1 shard 2"), EXIT_CONFIG,
                "a multiple of context_parallel that divides that product");
    Plan whole = plan_of(mem, plan_llama, "dp 4 zero level2 shard 1");
    EXPECT_INT(whole.job->strategy.zero_level, 0);
}

/* Bytes of weights, gradients and states on each of n ranks, by level. With overlap
 * levels 1 and 2 keep parts of the weights between steps too. */
TEST(optimizer_shards_take_their_share_of_memory) {
    Arena *mem = arena_new();
    static const int cuts[2][4][3] = {{{1, 1, 1}, {1, 1, 4}, {1, 4, 4}, {4, 4, 4}},
                                      {{1, 1, 1}, {4, 1, 4}, {4, 4, 4}, {4, 4, 4}}};
    for (int i = 0; i < 8; i++) {
        int level = i % 4, overlap = i / 4;
        const int(*cut)[3] = cuts[overlap];
        const char *keys =
            arena_printf(mem, "dp 4 micro 2 threshold 0 parallel.overlap %s%s",
                         overlap ? "auto" : "off",
                         level ? arena_printf(mem, " zero level%d", level) : "");
        Plan p = plan_of(mem, plan_llama, keys);
        int64_t sum[3] = {0};
        for (int k = 0; k < p.nparam; k++) {
            sum[0] += p.param[k].weight_bytes;
            sum[1] += p.param[k].gradient_bytes;
            sum[2] += p.param[k].state_bytes;
        }
        EXPECT_INT(sum[0] * cut[level][0], F32 * (int64_t)LLAMA);
        EXPECT_INT(sum[1] * cut[level][1], F32 * (int64_t)LLAMA);
        EXPECT_INT(sum[2] * cut[level][2], 2 * F32 * (int64_t)LLAMA);
        EXPECT_NEAR((double)p.memory.class_bytes[MEM_WEIGHTS], (double)sum[0], 1e-3);
        EXPECT_NEAR((double)p.memory.class_bytes[MEM_OPTIMIZER], (double)sum[2], 1e-3);
    }
}

/* Layers that are done in parts are rows of their own. */
TEST(rows_of_parameters_are_counted_once) {
    static const char *const keys[] = {"", "recompute_config.recompute 1",
                                       "recompute_config.recompute 3 tp 2"};
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(keys); i++) {
        Plan p = plan_of(mem, plan_llama, keys[i]);
        int64_t sum = 0;
        for (int k = 0; k < p.nparam; k++) sum += p.param[k].count;
        EXPECT_INT(sum, p.parameters);
    }
    arena_free(mem);
}

/* ---- work ---- */

TEST(flops_of_a_rank_are_those_of_the_model_shared) {
    Arena *mem = arena_new();
    static const char *const keys[] = {"", "dp 4 micro 2", "cp 2",
                                       "cp 4 algo megatron_cp_algo", "tp 2 emb_dp False"};
    for (int k = 0; k < ARRAY_LEN(keys); k++) {
        Plan p = plan_of(mem, plan_gpt2, keys[k]);
        double tokens = (double)p.job->batch * (double)p.job->micro * (double)p.job->seq;
        double weights = 12.0 * PLAN_L * PLAN_C * PLAN_C + PLAN_V * PLAN_C;
        EXPECT_NEAR(p.matmul_flops * p.ranks, 6 * weights * tokens, 1e-12);
        EXPECT_NEAR(p.attention_flops * p.ranks, 6.0 * PLAN_L * PLAN_T * PLAN_C * tokens,
                    1e-12);
        double model = p.job->flops_per_token * tokens;
        EXPECT_NEAR(model, (p.matmul_flops + p.attention_flops) * p.ranks, 1e-12);
    }
}

TEST(traffic_is_the_sum_of_collectives) {
    Arena *mem = arena_new();
    Plan p = plan_of(mem, plan_gpt2, "dp 2 tp 2 cp 2 sp True micro 2 zero level2");
    EXPECT(p.ranks == 8 && p.ntraffic > 2);
    for (int i = 0; i < p.ntraffic; i++) {
        const PlanTraffic *t = &p.traffic[i];
        int64_t operations = 0, sent = 0, micro = 0;
        for (int k = 0; k < p.ncomm; k++) {
            const PlanComm *c = &p.comm[k];
            if (strcmp(c->axes, t->axes)) continue;
            operations += c->operations * c->runs;
            sent += c->sent_bytes * c->runs;
            micro += c->sent_bytes * c->micro_runs;
            EXPECT(c->part == PLAN_STEP ? c->micro_runs == 0 && c->runs == 1
                                        : c->runs >= 2 * c->micro_runs);
        }
        EXPECT(t->operations == operations && t->sent_bytes == sent);
        EXPECT(t->micro_sent_bytes >= micro && t->micro_sent_bytes <= sent / 2);
    }
}

TEST(equal_plans_have_equal_hashes) {
    Arena *mem = arena_new();
    Plan a = plan_of(mem, plan_gpt2, "dp 2 tp 2"),
         b = plan_of(mem, plan_gpt2, "tp 2 dp 2");
    Plan c = plan_of(mem, plan_gpt2, "dp 4"),
         d = plan_of(mem, plan_gpt2, "dp 2 tp 2 micro 2");
    EXPECT_INT(strlen(a.hash), 32);
    EXPECT_STR(a.hash, b.hash);
    EXPECT(strcmp(a.hash, c.hash) && strcmp(a.hash, d.hash) && strcmp(c.hash, d.hash));
}

/* ---- any number of ranks ---- */

TEST(ranks_that_the_keys_do_not_name_are_replicas) {
    Arena *mem = arena_new();
    Plan p = plan_of_config(mem, plan_config(mem, plan_gpt2, "tp 2"), 6);
    EXPECT(p.ranks == 6 && p.job->strategy.data == 3 && p.job->batch == 3 * PLAN_B);
    EXPECT_FAIL(plan_of_config(mem, plan_config(mem, plan_gpt2, "tp 2"), 5), EXIT_CONFIG,
                "5 ranks are no multiple");
    EXPECT_FAIL(plan_of_config(mem, plan_config(mem, plan_gpt2, "tp 2 dp 2"), 8),
                EXIT_CONFIG, "4 ranks, but -n says 8");
}

TEST_LIMIT(a_thousand_ranks_and_175_billion_weights_take_seconds, 20) {
    Arena *mem = arena_new();
    double start = clock_seconds();
    const char *keys =
        "tp 8 sp True micro 8 zero level1 model.model_config.hidden_size 12288 "
        "model.model_config.num_layers 96 model.model_config.num_heads 96 "
        "model.model_config.seq_length 2048 model.model_config.vocab_size 50304 "
        "runner_config.batch_size 1";
    Plan p = plan_of_config(mem, plan_config(mem, plan_gpt2, keys), 1024);
    EXPECT(p.ranks == 1024 && p.job->strategy.data == 128);
    EXPECT_NEAR((double)p.parameters, 174.6e9, 1e-3);
    EXPECT((double)p.memory.total_bytes > 4.0 * 174e9 / 8);
    EXPECT(clock_seconds() - start < 10);
}

TEST(a_plan_above_the_limit_is_refused) {
    Arena *mem = arena_new();
    Plan p = plan_of(mem, plan_gpt2, "context.max_device_memory 20MB");
    EXPECT_FAIL(plan_check_memory(&p), EXIT_MEMORY, "context.max_device_memory, 20MB");
    EXPECT_FAIL(plan_check_memory(&p), EXIT_MEMORY, "the process alone needs");
    EXPECT_FAIL(plan_check_memory(&p), EXIT_MEMORY,
                "hint: a larger context.max_device_memory");
    const int64_t all = p.memory.total_bytes + PLAN_PROCESS_BYTES + p.ahead_bytes;
    p = plan_of(mem, plan_gpt2,
                arena_printf(mem, "context.max_device_memory %lldB", (long long)all));
    plan_check_memory(&p);
    p = plan_of(mem, plan_gpt2,
                arena_printf(mem, "context.max_device_memory %lldB", (long long)all - 1));
    EXPECT_FAIL(plan_check_memory(&p), EXIT_MEMORY, "MB besides, more than");
    const int64_t profiled = all + PLAN_PROFILE_BYTES;
    for (int less = 0; less < 2; less++) {
        p = plan_of(mem, plan_gpt2,
                    arena_printf(mem, "profile True context.max_device_memory %lldB",
                                 (long long)profiled - less));
        if (less)
            EXPECT_FAIL(plan_check_memory(&p), EXIT_MEMORY, "MB besides, more than");
        else
            plan_check_memory(&p);
    }
    p = plan_of(mem, plan_gpt2, "context.max_device_memory 20GB");
    plan_check_memory(&p);
    p = plan_of(mem, plan_gpt2, "");
    plan_check_memory(&p);
}

/* A plan that is as large as the room fits with what threads pack beside it, and a larger one does not. */
TEST(what_threads_pack_leaves_room) {
    static const char *const types[] = {"float32", "bfloat16"};
    static const int64_t left[] = {1000001, 50000000, 100000000, INT64_C(5000000000)};
    Arena *mem = arena_new();
    for (int i = 0; i < 2 * ARRAY_LEN(left) * 3; i++) {
        int threads = 1 << 2 * (i % 3);
        int64_t bytes = left[i / 6];
        Plan p = plan_of(mem, plan_gpt2,
                         arena_printf(mem, "M.compute_dtype %s", types[i / 3 % 2]));
        const Config *cfg = p.job->cfg;
        int64_t room = plan_room_bytes(cfg, threads, bytes);
        EXPECT(room + plan_packed_bytes(cfg, threads, room) <= bytes);
        EXPECT(room + 1 + plan_packed_bytes(cfg, threads, room + 1) > bytes);
        if (i / 3 % 2) EXPECT_INT(room, bytes);
    }
    arena_free(mem);
}

/* Stages need different memory: the one that needs most is held against the limit. */
TEST(the_largest_stage_is_refused) {
    Arena *mem = arena_new();
    Config *cfg = config_load(
        mem, path_join(mem, TESTS_DIR, "../configs/gpt2-tiny.yaml"), 6,
        (char *[]){"--parallel_config.pipeline_stage", "2", "--parallel_config.offset",
                   "[-1,1]", "--parallel_config.micro_batch_num", "2"});
    Plan p = plan_of_config(mem, cfg, 2);
    int64_t first = p.pipe->stage[0].memory.total_bytes;
    int64_t last = p.pipe->stage[1].memory.total_bytes;
    EXPECT(last > first);
    int64_t beside = PLAN_PROCESS_BYTES + p.ahead_bytes;
    cfg->context_max_device_memory = last + beside;
    plan_check_memory(&p);
    cfg->context_max_device_memory = last + beside - 1;
    EXPECT_FAIL(plan_check_memory(&p), EXIT_MEMORY, "on every rank of stage 1, and");
    EXPECT_FAIL(plan_check_memory(&p), EXIT_MEMORY, "parallel_config.num_layer_list");
    EXPECT(p.pipe->hash[0] && strcmp(p.pipe->hash, p.hash));
    arena_free(mem);
}
