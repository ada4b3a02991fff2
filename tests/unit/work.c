/* work.c - bytes and flops of steps against numbers worked out by hand, what is needed of them
 * under strategies, and the bound that follows from rates. */
#include "passes/model/work.h"
#include "../ir_file.h"
#include "../plans.h"
#include "base/json.h"
#include "codegen/planned.h"
#include "command.h"
#include <math.h>

enum { F32 = 4, BF16 = 2 };

static Module *parsed(Arena *mem, const char *text) {
    return module_parse(mem, "test", text, strlen(text));
}

static WorkSum needed(Arena *mem, Module *m, int micro, const char *optimizer) {
    PassOptions o = pass_options_default();
    Work work = {0};
    o.micro_batches = micro;
    o.optimizer = optimizer;
    work_add_needed(mem, m, &o, &work);
    return work_sum(&work, WORK_PRODUCTS);
}

/* ---- an op ---- */

static double bytes_of_op(const char *body) {
    Arena *mem = arena_new();
    const Module *m = parsed(
        mem,
        arena_printf(mem,
                     "module @m mesh() level(local)\n"
                     "func @f:model(%%t: f32[100,8], %%i: i32[3], %%x: f32[4,6], %%y: "
                     "f32[4,6], %%z: bf16[6,5], %%b: f32[5]) -> (%s\n  return %%r\n}\n",
                     body));
    double bytes = op_bytes(m->first->first);
    arena_free(mem);
    return bytes;
}

/* Rows of a table, a row of a tensor: no more is read than given. */
TEST(lookups) {
    EXPECT(bytes_of_op("f32[3,8]) {\n %r = embed %t, %i : f32[3,8]") ==
           3 * 8 * F32 + 3 * 4 + 3 * 8 * F32);
    EXPECT(bytes_of_op("f32[2,8]) {\n %r = slice %t {dim=0; first=5; size=2} : "
                       "f32[2,8]") == 2 * 2 * 8 * F32);
    int found = 0;
    for (int k = 0; k < OP_COUNT; k++) found += (optab[k].flags & F_LOOKUP) != 0;
    EXPECT(found > 0);
}

/* Of a sum as much as is added to it is read and written, at most all of it. */
TEST(touches) {
    for (int rows = 2; rows <= 20; rows += 18) {
        Arena *mem = arena_new();
        const char *text = arena_printf(
            mem,
            "module @m mesh() level(local)\n"
            "func @f:model(%%s: f32[%d,5], %%i: i32[3], %%d: f32[3,5]) -> (f32[%d,5]) {\n"
            "  %%r = embed_add %%s, %%i, %%d : f32[%d,5]\n  return %%r\n}\n",
            rows, rows, rows);
        double given = 3 * 4 + 3 * 5 * F32, touched = 2 * MIN(rows, 3) * 5 * F32;
        EXPECT(op_bytes(parsed(mem, text)->first->first) == given + touched);
        arena_free(mem);
    }
}

TEST(every_operand_once) {
    EXPECT(bytes_of_op("f32[4,6]) {\n %r = mul %x, %y : f32[4,6]") == 3 * 24 * F32);
    EXPECT(bytes_of_op("f32[4,6]) {\n %r = mul %x, %x : f32[4,6]") == 2 * 24 * F32);
    EXPECT(bytes_of_op("f32[24]) {\n %r = reshape %x : f32[24]") == 0);
    EXPECT(bytes_of_op("bf16[6,5]) {\n %r = copy %z : bf16[6,5]") == 2 * 30 * BF16);
    EXPECT(bytes_of_op("f32[4,5]) {\n %z32 = cast %z : f32[6,5]\n %r = dot %x, %z32, %b "
                       "{mk,kn,n->mn} : f32[4,5]") == 30 * (F32 + BF16));
}

/* ---- what is needed, by hand ---- */

/* 8 rows, 6 -> 10 -> 3, with a bias. Nobody wants the gradient of the data. */
enum {
    MLP_FORWARD = (48 + 60 + 10 + 80) + (80 + 30 + 24),
    MLP_BACKWARD = (24 + 30 + 80) + (80 + 24 + 30) + (48 + 80 + 60)
};

TEST(mlp) {
    Arena *mem = arena_new();
    WorkSum w = needed(mem, ir_file(mem, "mlp.ir"), 1, "adamw");
    EXPECT(w.bytes == F32 * (MLP_FORWARD + MLP_BACKWARD) && w.f32_flops == 3360);
    EXPECT(w.bf16_flops == 0);
}

/* Each micro-batch adds its gradients to the sum of those before. */
TEST(micro_batches_read_the_sum_so_far) {
    Arena *mem = arena_new();
    for (int micro = 2; micro <= 4; micro++) {
        WorkSum w = needed(mem, ir_file(mem, "mlp.ir"), micro, "sgd");
        EXPECT(w.bytes == F32 * micro * (MLP_FORWARD + MLP_BACKWARD + 60 + 30));
        EXPECT(w.f32_flops == 3360 * micro);
    }
}

static const char loop_text[] =
    "module @loop mesh() level(global)\n"
    "func @layer(%%x: f32[4,6], %%w: f32[6,6]) -> (f32[4,6]) {\n"
    "  %%h = dot %%x, %%w {bi,io->bo} : f32[4,6]\n"
    "  %%y = tanh %%h : f32[4,6]\n"
    "  return %%y\n"
    "}\n"
    "func @m:model(%%x: f32[4,6] {role=\"data\"},\n"
    "    %%w: f32[%d,6,6] {role=\"param\"; init=\"normal\"; std=0.3}) -> (f32[]) {\n"
    "  %%y = call %%x, %%w {fn=@layer; times=%d; carry=1; each=1%s} : f32[4,6]\n"
    "  %%loss = sum %%y {bi->_} : f32[]\n"
    "  return %%loss\n"
    "}\n";

/* Of each layer three products: 4 x 6 of 4 x 6 and 6 x 6, and the gradients of both. What the
 * text asks to be made again is not needed. */
TEST(loops_count_their_times) {
    Arena *mem = arena_new();
    for (int layers = 3; layers <= 90; layers += 29)
        for (int again = 0; again < 2; again++) {
            const char *text = arena_printf(mem, loop_text, layers, layers,
                                            again ? "; remake=\"full\"" : "");
            WorkSum w = needed(mem, parsed(mem, text), 1, "sgd");
            EXPECT(w.bytes == F32 * layers * 3 * (24 + 36 + 24));
            EXPECT(w.f32_flops == layers * 3 * 2.0 * 4 * 6 * 6);
        }
}

/* A model that multiplies nothing has its update alone. */
TEST(a_model_without_products) {
    Arena *mem = arena_new();
    WorkSum w = needed(
        mem,
        parsed(mem, "module @m mesh() level(global)\n"
                    "func @m:model(%x: f32[4,6] {role=\"data\"},\n"
                    "    %g: f32[6] {role=\"param\"; init=\"ones\"}) -> (f32[]) {\n"
                    "  %y = mul %x, %g {bi,i->bi} : f32[4,6]\n"
                    "  %loss = sum %y {bi->_} : f32[]\n"
                    "  return %loss\n}\n"),
        2, "adamw");
    EXPECT(w.bytes == 0 && w.f32_flops == 0);
}

static double update_bytes(Arena *mem, const char *optimizer) {
    PassOptions o = pass_options_default();
    o.optimizer = optimizer;
    CompileOptions co = {.threads = 1};
    Work work = {0};
    work_add_update(mem, module_plan(mem, ir_file(mem, "mlp.ir"), train_passes, &o, &co),
                    &work);
    EXPECT(work.n == 1 && work_sum(&work, WORK_UPDATE).f32_flops == 0);
    return work_sum(&work, WORK_UPDATE).bytes;
}

/* 100 parameters: each read and written, and its gradient read; two states, one, or none. */
TEST(updates) {
    Arena *mem = arena_new();
    EXPECT(update_bytes(mem, "adamw") == F32 * 100 * (3 + 4));
    EXPECT(update_bytes(mem, "momentum") == F32 * 100 * (3 + 2));
    EXPECT(update_bytes(mem, "sgd") == F32 * 100 * 3);
}

/* ---- GPT-2 ---- */

/* Bytes of the products of a micro-batch: `act` and `weight` of an element of what they read
 * and give, and of their weights; biases, gradients, logits and their sums are f32; `sums`:
 * gradients are added to those of other micro-batches. */
static double gpt2_products(double act, double weight, bool sums) {
    const double n = PLAN_B * PLAN_T, c = PLAN_C, f = 4 * PLAN_C, v = PLAN_V,
                 grad = F32 * (sums ? 2 : 1);
    double forward = act * (n * c + 3 * n * c) + weight * 3 * c * c + F32 * 3 * c;
    forward += act * 2 * n * c + weight * c * c + F32 * c;
    forward += act * (n * c + n * f) + weight * c * f + F32 * f;
    forward += act * (n * f + n * c) + weight * f * c + F32 * c;
    double backward = 0; /* of each the gradient of its input, and of its weight */
    const double in[] = {c, c, c, f}, out[] = {3 * c, c, f, c};
    for (int i = 0; i < 4; i++) {
        backward += act * n * (out[i] + in[i]) + weight * in[i] * out[i];
        backward += act * n * (out[i] + in[i]) + grad * in[i] * out[i];
    }
    double head = act * n * c + weight * v * c + F32 * n * v;
    head += act * n * v + weight * v * c + act * n * c;
    head +=
        act * n * c + act * n * v + grad * v * c; /* rows of the lookup are added to it */
    return PLAN_L * (forward + backward) + head;
}

/* Queries, keys, values and results, with a number a query and head; a position, a key of
 * random numbers. */
static double gpt2_attention(double act) {
    const double n = PLAN_B * PLAN_T, c = PLAN_C, heads = 8, rest = 4 + 16;
    double forward = act * 4 * n * c + F32 * n * heads + rest;
    double backward = act * (5 + 3) * n * c + F32 * n * heads + rest;
    return PLAN_L * (forward + backward);
}

TEST(gpt2_in_f32_and_bf16) {
    static const char narrow[] = " model.model_config.compute_dtype bfloat16";
    Arena *mem = arena_new();
    for (int micro = 1; micro <= 3; micro++)
        for (int k = 0; k < 2; k++) {
            double act = k ? BF16 : F32;
            Plan p = plan_of(mem, plan_gpt2,
                             arena_printf(mem, "micro %d%s", micro, k ? narrow : ""));
            WorkSum products = work_sum(p.needed, WORK_PRODUCTS),
                    attention = work_sum(p.needed, WORK_ATTENTION);
            double want = micro * gpt2_products(act, act, micro > 1);
            if (products.bytes != want)
                test_fail(__FILE__, __LINE__, "%.0f bytes of products, wanted %.0f",
                          products.bytes, want);
            EXPECT(attention.bytes == micro * gpt2_attention(act));
            EXPECT((k ? products.f32_flops : products.bf16_flops) == 0);
            EXPECT(products.bf16_flops + products.f32_flops == p.matmul_flops);
            EXPECT(attention.bf16_flops + attention.f32_flops == p.attention_flops);
            EXPECT(work_sum(p.needed, WORK_UPDATE).bytes ==
                   7.0 * F32 * (double)p.rank_parameters);
            EXPECT(work_asks_bf16(p.needed) == k);
        }
}

/* ---- strategies ---- */

/* Of all ranks of all stages. */
static double all_flops(const Plan *p) {
    double flops = 0;
    for (int s = 0; s < (p->pipe ? p->pipe->schedule->stages : 1); s++)
        for (int k = 0; k < WORK_KINDS; k++) {
            const Plan *stage = p->pipe ? &p->pipe->stage[s] : p;
            WorkSum w = work_sum(stage->needed, (WorkKind)k);
            flops += p->ranks * (w.f32_flops + w.bf16_flops);
            EXPECT(k > WORK_ATTENTION || w.bytes <= stage->done[k].bytes);
            EXPECT(k > WORK_ATTENTION || w.f32_flops <= stage->done[k].f32_flops);
            EXPECT(k == WORK_UPDATE || k <= WORK_ATTENTION || w.bytes == 0);
        }
    return flops;
}

static double model_flops_of(const Plan *p) {
    const Job *j = p->job;
    return j->flops_per_token * (double)(j->batch * j->micro * j->seq);
}

/* Where nothing is done twice, the ranks share the flops of the model. */
TEST(ranks_share_what_the_model_needs) {
    static const char pipe[] = "parallel_config.pipeline_stage 2 micro 4 "
                               "parallel.pipeline_config.pipeline_scheduler";
    Arena *mem = arena_new();
    const char *keys[] = {"dp 2 micro 2",
                          "dp 4 zero level1 threshold 0 micro 3",
                          "dp 4 zero level3 threshold 0",
                          "tp 2 emb_dp False",
                          "tp 4 sp True emb_dp False",
                          "cp 2",
                          "dp 2 tp 2 cp 2 sp True emb_dp False micro 2",
                          "tp 2 emb_dp False micro 2 micro_batch_interleave_num 2",
                          arena_printf(mem, "%s 1f1b", pipe),
                          arena_printf(mem, "%s zero_bubble_h1 tp 2 emb_dp False", pipe),
                          arena_printf(mem, "%s 1f1b dp 2 zero level1", pipe),
                          arena_printf(mem,
                                       "%s zero_bubble_v "
                                       "parallel_config.pp_interleave_num 2",
                                       pipe)};
    for (int i = 0; i < ARRAY_LEN(keys); i++) {
        Plan p = plan_of(mem, plan_gpt2, keys[i]);
        double got = all_flops(&p), want = model_flops_of(&p);
        if (fabs(got / want - 1) > 1e-12)
            test_fail(__FILE__, __LINE__, "%s: %.0f flops, the model has %.0f", keys[i],
                      got, want);
    }
}

/* Stages, together, need the products of one rank; each updates what it has. */
TEST(stages_have_their_parts) {
    Arena *mem = arena_new();
    Plan one = plan_of(mem, plan_gpt2, "micro 4");
    Plan p = plan_of(mem, plan_gpt2, "parallel_config.pipeline_stage 4 micro 4");
    double products = 0, attention = 0, update = 0;
    EXPECT(p.needed == p.pipe->stage[0].needed);
    for (int k = 0; k < 4; k++) {
        const Plan *s = &p.pipe->stage[k];
        products += work_sum(s->needed, WORK_PRODUCTS).bytes;
        attention += work_sum(s->needed, WORK_ATTENTION).bytes;
        update += work_sum(s->needed, WORK_UPDATE).bytes;
        EXPECT(work_sum(s->needed, WORK_ATTENTION).bytes == gpt2_attention(F32));
    }
    EXPECT(products == work_sum(one.needed, WORK_PRODUCTS).bytes);
    EXPECT(attention == work_sum(one.needed, WORK_ATTENTION).bytes);
    EXPECT(update == work_sum(one.needed, WORK_UPDATE).bytes);
}

/* What is made again, and what tiles read again, is done and not needed. */
TEST(what_is_done_again_is_not_needed) {
    Arena *mem = arena_new();
    Plan all = plan_of(mem, plan_gpt2, "micro 2"),
         again = plan_of(mem, plan_gpt2, "micro 2 recompute_config.recompute True"),
         tiles = plan_of(mem, plan_gpt2, "micro 2 context.tile_size 1MB");
    double bytes = work_sum(all.needed, WORK_PRODUCTS).bytes;
    double flops = work_sum(all.needed, WORK_PRODUCTS).f32_flops;
    const Plan *other[] = {&again, &tiles};
    for (int i = 0; i < 2; i++) {
        WorkSum w = work_sum(other[i]->needed, WORK_PRODUCTS);
        EXPECT(w.bytes == bytes && w.f32_flops == flops);
        EXPECT(work_sum(other[i]->needed, WORK_ATTENTION).bytes ==
               work_sum(all.needed, WORK_ATTENTION).bytes);
        EXPECT(other[i]->done[WORK_PRODUCTS].bytes > all.done[WORK_PRODUCTS].bytes);
    }
    EXPECT(all.done[WORK_PRODUCTS].f32_flops == flops);
    EXPECT(again.done[WORK_PRODUCTS].f32_flops > flops);
    EXPECT(tiles.done[WORK_PRODUCTS].f32_flops == flops);
}

/* ---- the bound ---- */

/* 10 flops and 100 bytes twice, 90 and 60 once, in two rates; the larger of each. */
TEST(bounds) {
    WorkRow rows[] = {{WORK_PRODUCTS, {.f32_flops = 10, .bytes = 100}, 2},
                      {WORK_PRODUCTS, {.bf16_flops = 90, .bytes = 60}, 1},
                      {WORK_UPDATE, {.bytes = 7}, 1}};
    Work w = {.row = rows, .n = ARRAY_LEN(rows)};
    WorkRates slow = {.f32_flops = 1, .bf16_flops = 2, .bytes = 20},
              wide = {.f32_flops = 1, .bf16_flops = 2, .bytes = 1};
    EXPECT(work_bound_seconds(&w, WORK_PRODUCTS, &slow) == 2 * 10 + 45);
    EXPECT(work_bound_seconds(&w, WORK_PRODUCTS, &wide) == 2 * 100 + 60);
    EXPECT(work_bound_total(&w, &wide) == 2 * 100 + 60 + 7);
    EXPECT(work_bound_seconds(&w, WORK_KERNELS, &wide) == 0);
}

static const Json *parsed_plan(Arena *mem) {
    const char *path = path_join(mem, temp_dir(), "plan.json");
    worked();
    EXPECT_INT(file_write_atomic(path, printed, strlen(printed)), 0);
    return json_read(mem, path, 1 << 20, EXIT_DATA);
}

static double number(const Json *j, const char *key) {
    return json_f64(json_need(j, key));
}

static char *config_file(Arena *mem) {
    char *path = path_join(mem, temp_dir(), "small.yaml");
    EXPECT_INT(file_write_atomic(path, plan_gpt2, strlen(plan_gpt2)), 0);
    return path;
}

/* Half the rates, twice the bound; those that are missing are named. */
TEST(the_bound_of_given_rates) {
    Arena *mem = arena_new();
    char *config = config_file(mem);
    Plan p = plan_of(mem, plan_gpt2, "");
    double bound[2];
    run(cmd_plan, config, "--json", NULL);
    const Json *plain = parsed_plan(mem);
    EXPECT(!json_get(plain, "bound_seconds"));
    const Json *all = json_need(json_need(plain, "work"), "all");
    EXPECT(number(json_need(all, "done"), "bytes") == work_total(p.done).bytes);
    EXPECT(number(json_need(all, "needed"), "f32_flops") ==
           p.matmul_flops + p.attention_flops);
    for (int i = 0; i < 2; i++) {
        run(cmd_plan, config, "--json", "--peak_gflops", i ? "50" : "100",
            "--bandwidth_gbytes", i ? "10" : "20", NULL);
        const Json *j = parsed_plan(mem);
        bound[i] = number(j, "bound_seconds");
        EXPECT(number(j, "bound_f32_flops") == (i ? 50e9 : 100e9));
        EXPECT_STR(json_string(json_need(j, "plan_hash")), p.hash);
    }
    EXPECT_NEAR(bound[1], 2 * bound[0], 1e-12);
    EXPECT(bound[0] >= (p.matmul_flops + p.attention_flops) / 100e9);
    run(cmd_plan, config, "--peak_gflops", "100", NULL);
    refused(EXIT_CONFIG, "--bandwidth_gbytes");
    run(cmd_plan, config, "--bandwidth_gbytes", "20", NULL);
    refused(EXIT_CONFIG, "--peak_gflops");
    run(cmd_plan, config, "--bandwidth_gbytes", "20", "--peak_gflops", "100",
        "--model.model_config.compute_dtype", "bfloat16", NULL);
    refused(EXIT_CONFIG, "--peak_bf16_gflops");
    run(cmd_plan, config, "--bandwidth_gbytes", "0", "--peak_gflops", "100", NULL);
    refused(EXIT_CONFIG, "--bandwidth_gbytes");
}

TEST(the_bound_of_this_machine) {
    Arena *mem = arena_new();
    char *config = config_file(mem);
    double start = clock_seconds();
    run(cmd_plan, config, "--measure", "--bandwidth_gbytes", "20",
        "--model.model_config.compute_dtype", "bfloat16", NULL);
    worked();
    printf("  %.2f s\n", clock_seconds() - start);
    EXPECT(strstr(printed, "bound ") && strstr(printed, "FLOP/s bf16, 20.0 GB/s"));
}
