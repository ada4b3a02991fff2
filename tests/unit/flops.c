/* flops.c - the flops of a model against numbers worked out by hand: a product of m x k
 * and k x n is 2 m n k, and backward has one more for each factor that a parameter is
 * behind. */
#include "../ir_file.h"
#include "../plans.h"
#include "frontend/model/model.h"
#include "passes/passes.h"

static void expect_flops(const char *name, double want) {
    Arena *mem = arena_new();
    double got = model_flops(ir_file(mem, name));
    if (got != want)
        test_fail(__FILE__, __LINE__, "%s: %.0f flops, wanted %.0f", name, got, want);
    arena_free(mem);
}

/* 8 rows, 6 -> 10 -> 3. Nobody wants the gradient of the data. */
TEST(mlp) {
    double first = 2 * 8 * 6 * 10, second = 2 * 8 * 10 * 3;
    expect_flops("mlp.ir", 2 * first + 3 * second); /* 3360 */
}

/* 7 rows, 6 -> 9 -> 5; the class probabilities are no product. */
TEST(classify) {
    double first = 2 * 7 * 6 * 9, second = 2 * 7 * 9 * 5;
    expect_flops("classify.ir", 2 * first + 3 * second); /* 3402 */
}

/* 4 rows. The wide tower has a call on data, a loop of 2 and a call; the slim one a loop
 * of 5, whose runs are all alike, so the first has a gradient of the data too. */
TEST(two_towers) {
    double wide = 2 * 4 * 6 * 6, slim = 2 * 4 * 3 * 3, join = 2 * 4 * 6 * 3;
    expect_flops("two_towers.ir",
                 (2 + 2 * 3 + 3) * wide + 5 * 3 * slim + 3 * join); /* 4680 */
}

/* 2 x 5 tokens, 8 wide, 3 layers, feed-forward 16, vocabulary 11. Two products of
 * attention forward, four backward, half of the scores each. Lookups and biases are no
 * products. */
TEST(tiny_gpt) {
    double tokens = 10;
    double layer = 2 * tokens * (8 * 24 + 8 * 8 + 8 * 16 + 16 * 8);
    double attention = 2 * (2 * 5 * 5 * 8) / 2.0, head = 2 * tokens * 8 * 11;
    expect_flops("tiny_gpt.ir", 3 * (3 * layer + 6 * attention) + 3 * head); /* 104640 */
}

/* From its gradient on it is the same number. */
TEST(of_a_module_with_gradients) {
    Arena *mem = arena_new();
    Module *m = ir_file(mem, "tiny_gpt.ir");
    PassOptions o = pass_options_default();
    passes_run(m, "simplify,autodiff", &o);
    EXPECT(model_flops(m) == 104640);
    arena_free(mem);
}

static double of_spec(const ModelSpec *s, ModelShape shape) {
    Arena *mem = arena_new();
    double flops = model_flops(model_build(mem, s, shape, MODEL_TRAIN));
    arena_free(mem);
    return flops / (double)(shape.batch * shape.seq);
}

/* 6 N + 6 L T C, N the weights of its products: those of norms, biases and positions,
 * which model_parameters counts, are a thousandth of it. */
TEST(gpt2_124m) {
    Arena *mem = arena_new();
    const char *file = path_join(mem, TESTS_DIR, "../configs/gpt2_124m.yaml");
    ModelSpec s = model_spec_of_config(config_load(mem, file, 0, NULL));
    double layers = 12, width = 768, seq = 1024, vocab = 50257;
    double weights = layers * 12 * width * width + vocab * width;
    double flops = of_spec(&s, (ModelShape){.batch = 2, .seq = 1024});
    EXPECT(weights == 123532032);
    EXPECT(flops == 6 * weights + 6 * layers * seq * width);
    EXPECT((double)model_parameters(&s) - seq * width - weights == 121344);
    arena_free(mem);
}

/* Two heads share a key and a value; the table of tokens is not the head's, so it is
 * looked up only. */
TEST(llama_with_groups) {
    Arena *mem = arena_new();
    Plan p = plan_of(mem, plan_llama, "micro 2");
    double attention = 2.0 * PLAN_C * PLAN_C + 2.0 * PLAN_C * PLAN_C / 2;
    double layer = attention + 3.0 * PLAN_C * PLAN_F;
    double weights = PLAN_L * layer + PLAN_V * PLAN_C;
    EXPECT(p.job->flops_per_token == 6 * weights + 6.0 * PLAN_L * PLAN_T * PLAN_C);
    arena_free(mem);
}

/* Pairs of a query and a key that it sees, where the queries are the last of the keys. */
static double pairs_seen(int queries, int keys, int window) {
    double pairs = 0;
    for (int i = keys - queries; i < keys; i++)
        pairs += window && window < i + 1 ? window : i + 1;
    return pairs;
}

/* Of parts of causal attention that have some of the queries each, the last has the most to do;
 * what each of them has on average is what is counted. */
TEST(the_last_queries_of_causal_attention) {
    static const char text[] = "module @m mesh() level(global)\n"
                               "func @f(%%q: f32[1,%d,1,8], %%k: f32[1,%d,1,8], %%v: "
                               "f32[1,%d,1,8], %%at: i32[],\n"
                               "        %%rng: i32[4]) -> (f32[1,%d,1,8]) {\n"
                               "  %%o, %%l = attention %%q, %%k, %%v, %%at, %%at, %%rng "
                               "{scale=1; causal=%d%s} : "
                               "f32[1,%d,1,8], f32[1,%d,1]\n"
                               "  return %%o\n}\n";
    enum { KEYS = 960 };
    for (int parts = 1; parts <= 8; parts *= 2)
        for (int window = 0; window <= 640; window += 160)
            for (int causal = 0; causal < 2; causal++) {
                Arena *mem = arena_new();
                int queries = KEYS / parts;
                if (window && !causal) continue;
                test_at("%d parts, window %d, causal %d", parts, window, causal);
                const char *more = window ? arena_printf(mem, "; window=%d", window) : "";
                char *s = arena_printf(mem, text, queries, KEYS, KEYS, queries, causal,
                                       more, queries, queries);
                const Op *op = module_parse(mem, "t.ir", s, strlen(s))->first->first;
                double slowest = optab[op->kind].slowest(op);
                double mean = pairs_seen(KEYS, KEYS, window) / parts;
                double want = causal ? pairs_seen(queries, KEYS, window) / mean : 1;
                if (fabs(slowest - want) > 0.003 * want)
                    test_fail(__FILE__, __LINE__, "slowest %g, wanted %g", slowest, want);
            }
}
