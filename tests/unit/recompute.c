/* Tests of recomputation: the numbers of PyTorch whatever backward makes again, with all
 * ranks of all stages simulated by the interpreter; the same bits of the loss on one rank,
 * dropout included; and the memory that it saves. RECOMPUTE="gpt2_tiny POLICY STAGES
 * CHUNKS SCHEDULE DP TP CP RING ZERO MICRO BESIDE VOCAB SP" runs that one in test `one`
 * (POLICY: - for none; SIM_DUMP=folder keeps what each pass made). */
#include "../pairwise.h"
#include "../plans.h"
#include "../simulated.h"

TEST_LABEL(RELEASED);

static const char to_local[] =
    "simplify,seed,zero,remake,cut,autodiff,simplify,halve,train,simplify,shard,"
    "reshard,collect,simplify,localize,simplify,keep,sink,simplify,pipeline,simplify";

typedef struct Way {
    const char *name, *remake;
    int stages, chunks;
    const char *schedule;
    int dp, tp, cp, ring, zero, micro, beside, vocab, sp, slice;
} Way;

static Strategy strategy_of(const Way *w) {
    return (Strategy){SIM_STRATEGY(w),
                      .stages = w->stages,
                      .chunks = w->chunks,
                      .schedule = w->schedule,
                      .remake = w->remake,
                      .slice_kept = w->slice,
                      .names_gathered = w->remake && strstr(w->remake, "gathered")};
}

static const char *describe(Arena *mem, const Way *w) {
    return arena_printf(mem,
                        "%s remake=%s pp=%d x %d %s dp=%d tp=%d cp=%d ring=%d "
                        "zero=%d micro=%d beside=%d vocab=%d sp=%d slice=%d",
                        w->name, w->remake ? w->remake : "-", w->stages, w->chunks,
                        w->schedule, w->dp, w->tp, w->cp, w->ring, w->zero, w->micro,
                        w->beside, w->vocab, w->sp, w->slice);
}

static double worst_loss(const Way *w, int steps) {
    Arena *mem = arena_new();
    Simulated s =
        sim_open(mem, w->name, strategy_of(w), w->micro, (SimChange){0}, to_local);
    const Json *at = json_need(s.trajectory, "steps")->first;
    double worst = 0;
    for (int i = 0; i < steps; i++, at = at->next) {
        double loss, norm, want = json_f64(json_need(at, "loss"));
        double want_norm = json_f64(json_need(at, "grad_norm"));
        sim_step(&s, i, json_f64(json_need(at, "lr")), &loss, &norm);
        worst = fmax(worst, fabs(loss - want) / want);
        if (!(fabs(loss - want) <= 1e-5 * want))
            test_fail(__FILE__, __LINE__, "%s: loss of step %d is %.9g, wanted %.9g",
                      describe(mem, w), i + 1, loss, want);
        if (!(fabs(norm - want_norm) <= 1e-4 * want_norm))
            test_fail(__FILE__, __LINE__, "%s: norm of step %d is %.9g, wanted %.9g",
                      describe(mem, w), i + 1, norm, want_norm);
    }
    arena_free(mem);
    return worst;
}

static const char *or_none(const char *text) {
    return strcmp(text, "-") ? text : NULL;
}

TEST_LIMIT(one, 300) {
    Way w = {"gpt2_tiny", "full", 1, 1, "1f1b", 1, 1, 1, 1, 0, 1, 0, 0, 0};
    const char *text = getenv("RECOMPUTE");
    char name[64], remake[64], schedule[64];
    if (text) {
        EXPECT_INT(sscanf(text, "%63s %63s %d %d %63s %d %d %d %d %d %d %d %d %d", name,
                          remake, &w.stages, &w.chunks, schedule, &w.dp, &w.tp, &w.cp,
                          &w.ring, &w.zero, &w.micro, &w.beside, &w.vocab, &w.sp),
                   14);
        w.name = name;
        w.remake = or_none(remake);
        w.schedule = schedule;
    }
    printf("  worst relative loss %.2g\n", worst_loss(&w, 20));
}

/* ---- the matrix ---- */

enum { MODEL, WHAT, PIPE, DP, TP, CP, SP, ZERO, MICRO, BESIDE, SLICE, FACTORS };
static const int factor_size[FACTORS] = {2, 9, 4, 2, 2, 3, 2, 4, 3, 2, 2};

static Way way_of(const int *v) {
    static const char *const models[] = {"gpt2_tiny", "llama_tiny"};
    static const char *const what[] = {"full",
                                       "norm,ac*,q,h",
                                       "selective",
                                       "1:full",
                                       "1:full;*",
                                       "x2:full",
                                       "1:full;1:selective",
                                       "full,-attn,-mlp,-*.gathered,-lse",
                                       "1:full;1:*.gathered"};
    static const struct {
        int stages, chunks;
        const char *schedule;
    } pipe[] = {{1, 1, "1f1b"}, {2, 1, "1f1b"}, {2, 2, "1f1b"}, {2, 1, "zero_bubble_h1"}};
    const int p = v[PIPE];
    return (Way){.name = models[v[MODEL]],
                 .remake = what[v[WHAT]],
                 .stages = pipe[p].stages,
                 .chunks = pipe[p].chunks,
                 .schedule = pipe[p].schedule,
                 .dp = 1 << v[DP],
                 .tp = 1 << v[TP],
                 .cp = v[CP] ? 2 : 1,
                 .ring = v[CP] == 2 ? 2 : 1,
                 .sp = v[SP],
                 .zero = v[ZERO],
                 .micro = 1 << v[MICRO],
                 .beside = v[BESIDE],
                 .slice = v[SLICE]};
}

/* As the checks of strategies have it: 16 tokens, 8 sequences, 2 heads of keys at least. */
static bool is_valid(const int *v) {
    Way w = way_of(v);
    int exchanged = w.cp / w.ring, heads = v[MODEL] ? 2 : 4;
    if (w.dp * w.tp * w.cp * w.stages > 8 || heads % (exchanged * w.tp)) return false;
    if ((w.sp || w.slice) && w.tp == 1) return false;
    if (w.stages > 1 && w.micro == 1) return false;
    if (strstr(w.remake, ";1:") && w.stages * w.chunks > 2) return false;
    if (strstr(w.remake, ":*.gathered") && !w.sp && exchanged == 1) return false;
    return !w.zero || w.dp * w.cp > 1;
}

#ifdef __SANITIZE_ADDRESS__
enum { WAYS = 8, EVERY_PAIR = 0, STEPS = 3 };
#else
enum { WAYS = 40, EVERY_PAIR = 1, STEPS = 3 };
#endif

TEST_LABEL_OF(same_numbers, SLOW);
TEST_LIMIT(same_numbers, 240) {
    Arena *mem = arena_new();
    Pairing p = pairing_new(mem, FACTORS, factor_size, is_valid);
    double worst = 0;
    int steps =
        test_long() ? 10 : STEPS; /* what goes wrong in a state shows in the next */
    for (int n = 0; n < WAYS; n++) {
        Way w = way_of(pairing_next(&p));
        worst = fmax(worst, worst_loss(&w, steps));
    }
    printf("  %d combinations meet %d of %d pairs, worst relative loss %.2g\n", WAYS,
           p.nmet, p.npossible, worst);
    EXPECT(p.nmet == p.npossible || !EVERY_PAIR);
    arena_free(mem);
}

/* ---- memory ---- */

#define ELEMENTWISE "recompute_config.recompute_elementwise"

/* Bytes of activations that a plan has for so many layers, with gradients that live through
 * two micro-batches, so that they cannot lie over activations; what elementwise ops make is
 * kept unless the keys say it. */
static double activations(const char *yaml, int layers, const char *keys) {
    Arena *mem = arena_new();
    Plan p = plan_of(mem, yaml,
                     arena_printf(mem, "model.model_config.num_layers %d micro 2 %s %s",
                                  layers, keys,
                                  strstr(keys, ELEMENTWISE) ? "" : ELEMENTWISE " False"));
    double bytes = (double)p.memory.class_bytes[MEM_ACTIVATIONS];
    arena_free(mem);
    return bytes;
}

static double of_a_layer(const char *yaml, const char *keys) {
    return (activations(yaml, 12, keys) - activations(yaml, 4, keys)) / 8;
}

#define ALL_AGAIN    "recompute_config.recompute True"
#define SUMS_KEPT    " recompute_config.mp_comm_recompute False"
#define GATHERS_KEPT "recompute_config.select_comm_recompute False"

static void expect_near(const char *what, double got, double want) {
    printf("  %-46s %9.4g, by the formula %9.4g\n", what, got, want);
    if (!(fabs(got - want) <= 0.1 * want))
        test_fail(__FILE__, __LINE__, "%s: %g, by the formula %g", what, got, want);
}

/* Of GPT-2 without dropout, in tensors of batch x length x width f32: input and both sums 2,
 * norms 2, queries, keys, values and the result 4, hidden values before and behind the
 * activation 8; over tp all but inputs, sums and norms are split, with sequence_parallel
 * those too. Made again: the input alone. */
TEST(memory_of_a_layer) {
    const double x = 4.0 * PLAN_B * PLAN_T * PLAN_C;
    const char *const half[] = {"tp 2 ", "tp 2 sp True "};
    expect_near("all is kept", of_a_layer(plan_gpt2, "") / x, 16);
    expect_near("elementwise ops and norms made again",
                of_a_layer(plan_gpt2, ELEMENTWISE " True") / x, 16 - 2 - 4);
    /* and the layer's weights of 12 C C, rounded */
    expect_near("the same in bf16",
                of_a_layer(plan_gpt2,
                           "model.model_config.compute_dtype bfloat16 " ELEMENTWISE
                           " True") /
                    x,
                5 + 6.0 * PLAN_C / (PLAN_B * PLAN_T));
    expect_near("full", of_a_layer(plan_gpt2, ALL_AGAIN) / x, 1);
    expect_near("full, Llama", of_a_layer(plan_llama, ALL_AGAIN) / x, 1);
    expect_near("norms and activations",
                of_a_layer(plan_gpt2, "recompute_config.select_recompute norm,act") / x,
                16 - 2 - 4);
    expect_near("attention",
                of_a_layer(plan_gpt2, "recompute_config.select_recompute True") / x,
                16 - 1);
    expect_near("tp 2", of_a_layer(plan_gpt2, half[0]) / x, 4 + 6);
    expect_near("tp 2, full", of_a_layer(plan_gpt2, "tp 2 " ALL_AGAIN) / x, 1);
    expect_near("tp 2, full, in parts",
                of_a_layer(plan_gpt2, "tp 2 recompute_config.recompute_slice_activation "
                                      "True " ALL_AGAIN) /
                    x,
                0.5);
    expect_near("tp 2, sequence_parallel", of_a_layer(plan_gpt2, half[1]) / x, 8);
    expect_near("tp 2, sequence_parallel, full",
                of_a_layer(plan_gpt2, "tp 2 sp True " ALL_AGAIN) / x, 0.5);
    expect_near("tp 2, full, sums over tp kept",
                of_a_layer(plan_gpt2, "tp 2 " ALL_AGAIN SUMS_KEPT) / x, 2);
    expect_near("tp 2, sequence_parallel, full, gathers kept too",
                of_a_layer(plan_gpt2, "tp 2 sp True " ALL_AGAIN SUMS_KEPT) / x, 3);
    expect_near("tp 2, sequence_parallel, gathers kept",
                of_a_layer(plan_gpt2, "tp 2 sp True " GATHERS_KEPT) / x, 8 + 1);
    expect_near("two layers together",
                of_a_layer(plan_gpt2, "recompute_config.recompute 2 "
                                      "recompute_config.recompute_method uniform") /
                    x,
                0.5);
}

/* Messages that a layer sends, forward and backward. */
static int64_t operations_of(const char *model, const char *keys) {
    Arena *mem = arena_new();
    int64_t n = 0;
    for (int more = 0; more < 2; more++) {
        Plan p = plan_of(
            mem, model,
            arena_printf(mem, "model.model_config.num_layers %d %s", more ? 4 : 8, keys));
        EXPECT_INT(p.ntraffic, 1);
        n = p.traffic[0].operations - n;
    }
    arena_free(mem);
    return -n / 4;
}

static int64_t operations(const char *keys) {
    Arena *mem = arena_new();
    int64_t n = operations_of(plan_gpt2, arena_printf(mem, "tp 2 %s", keys));
    arena_free(mem);
    return n;
}

/* Of a layer forward 2 (with sequence_parallel 4, as halves) and backward as many; made
 * again all but the last, whose sum nobody reads; the input of each weight's gradient is
 * gathered again with sequence_parallel, beside the gather of its gradient. */
TEST(messages_of_a_layer) {
    EXPECT_INT(operations(""), 4);
    EXPECT_INT(operations(ALL_AGAIN), 5);
    EXPECT_INT(operations(ALL_AGAIN SUMS_KEPT), 4);
    EXPECT_INT(operations("sp True"), 4 + 4 + 1);
    EXPECT_INT(operations("sp True" SUMS_KEPT),
               4 + 4 + 1); /* no effect, as it is noted */
    EXPECT_INT(operations("sp True " GATHERS_KEPT), 4 + 4);
    EXPECT_INT(operations("sp True " ALL_AGAIN), 4 + 4 + 3);
    EXPECT_INT(operations("sp True " ALL_AGAIN SUMS_KEPT), 4 + 4);
}

/* Without biases nothing is between a product and the sum that it goes into. */
TEST(messages_of_a_layer_without_biases) {
    static const struct {
        const char *model, *keys;
    } of[] = {
        {plan_llama, "tp 2 "},
        {plan_gpt2, "tp 2 M.add_bias_linear False M.add_qkv_bias False "},
    };
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        test_at("%s", of[i].keys);
        const char *again = arena_printf(mem, "%s" ALL_AGAIN, of[i].keys);
        const char *halves = arena_printf(mem, "%ssp True " ALL_AGAIN, of[i].keys);
        EXPECT_INT(operations_of(of[i].model, again), 5);
        EXPECT_INT(operations_of(of[i].model, arena_printf(mem, "%s" SUMS_KEPT, again)),
                   4);
        EXPECT_INT(operations_of(of[i].model, halves), 4 + 4 + 3);
        EXPECT_INT(operations_of(of[i].model, arena_printf(mem, "%s" SUMS_KEPT, halves)),
                   4 + 4);
    }
    arena_free(mem);
}

static void expect_exchanges(const char *keys) {
    Arena *mem = arena_new();
    Plan p = plan_of(mem, plan_llama, keys);
    EXPECT_INT(plan_find(&p, PLAN_FORWARD, "all_to_all", "cp").operands, 4);
    EXPECT_INT(plan_find(&p, PLAN_BACKWARD, "all_to_all", "cp").operands, 4);
    arena_free(mem);
}

/* Queries, keys, values and the result of attention go between heads and sequence once each,
 * with biases and turned positions behind the products of the first three; so do their
 * gradients. */
TEST(exchanges_with_heads_of_a_layer) {
    expect_exchanges("cp 2 " GATHERS_KEPT);
    expect_exchanges("cp 2 M.add_qkv_bias True " GATHERS_KEPT);
    expect_exchanges("cp 2 M.add_qkv_bias True " ALL_AGAIN SUMS_KEPT);
}

/* ---- keys ---- */

static void expect_text(const char *keys, const char *want) {
    Arena *mem = arena_new();
    Config *cfg = plan_config(mem, plan_gpt2, keys);
    Strategy s = strategy_of_config(cfg);
    EXPECT_STR(s.remake ? s.remake : "", want);
    arena_free(mem);
}

#define RC         "recompute_config."
#define TWO_CHUNKS "parallel_config.pipeline_stage 2 micro 2 "

/* As any other switch is written. */
TEST(switches_have_all_spellings) {
    static const char *const words[] = {"True", "yes", "Yes", "ON", "False", "No", "OFF"};
    for (int i = 0; i < ARRAY_LEN(words); i++) {
        Arena *mem = arena_new();
        expect_text(arena_printf(mem, RC "recompute %s", words[i]), i < 4 ? "full" : "");
        arena_free(mem);
    }
}

TEST(counts_are_one_list) {
    Arena *mem = arena_new();
    EXPECT_FAIL(plan_config(mem, plan_gpt2, RC "recompute [[x,0],[0,0]]"), EXIT_CONFIG,
                "recompute_config.recompute is a list without lists in it");
    /* rows of numbers, as MindFormers has them for chunks of stages, are one after the other */
    EXPECT_FAIL(expect_text(RC "recompute [[1,0],[0,0]]", ""), EXIT_CONFIG,
                "4 numbers of layers for 1 chunk of the model");
    plan_of(mem, plan_gpt2,
            TWO_CHUNKS "parallel_config.num_layer_list [0,4] " RC "recompute 1");
    EXPECT_FAIL(expect_text(RC "recompute 1,2", ""), EXIT_CONFIG,
                "2 numbers of layers for 1 chunk of the model");
    EXPECT_FAIL(expect_text(RC "recompute_method uniform", ""), EXIT_CONFIG,
                "recompute_method uniform wants a number of layers in recompute");
    EXPECT_FAIL(plan_of(mem, plan_gpt2, RC "recompute 3 " RC "select_recompute 2"),
                EXIT_CONFIG,
                "command line:1:30: error: 5 layers of chunk 0 are to be computed again, "
                "it has 4");
    EXPECT_FAIL(plan_of(mem, plan_gpt2, TWO_CHUNKS RC "recompute 2,3"), EXIT_CONFIG,
                "3 layers of chunk 1 are to be computed again, it has 2");
    EXPECT_FAIL(expect_text("tp 2 " RC "recompute 2 " RC
                            "recompute_method uniform" SUMS_KEPT,
                            ""),
                EXIT_CONFIG, "mp_comm_recompute is about single layers");
    EXPECT_FAIL(expect_text(RC "recompute 2 " RC "recompute_method uniform " RC
                               "select_recompute norm",
                            ""),
                EXIT_CONFIG, "select_recompute is about single layers");
    EXPECT_FAIL(expect_text(RC "recompute all", ""), EXIT_CONFIG,
                "recompute cannot be \"all\"");
    EXPECT_FAIL(expect_text(RC "select_recompute 1,norm", ""), EXIT_CONFIG,
                "select_recompute cannot be \"1,norm\"");
    EXPECT_FAIL(expect_text("cp 2 " RC "select_comm_recompute q,norm", ""), EXIT_CONFIG,
                "layers gather nothing that is called 'norm'\n"
                "    --recompute_config.select_comm_recompute q,norm");
    EXPECT_FAIL(expect_text("tp 2 sp True " RC "select_comm_recompute q", ""),
                EXIT_CONFIG, "hint: True, or some of norm");
    EXPECT_FAIL(plan_of(mem, plan_gpt2, RC "select_recompute nothing_so"), EXIT_CONFIG,
                "command line:1:37: error: nothing in a layer is called 'nothing_so', so "
                "it cannot be made again\n");
    arena_free(mem);
}

static bool says(const char *note, const char *flags) {
    Arena *a = arena_new();
    const char *text = arena_printf(
        a, "parallel_config: {model_parallel: 2}\nrecompute_config: {%s}", flags);
    Config *cfg = config_parse(a, "t.yaml", text, strlen(text));
    strategy_of_config(cfg);
    bool said = false;
    for (int i = 0; i < cfg->n_notes; i++) said |= strstr(cfg->notes[i], note) != NULL;
    arena_free(a);
    return said;
}

static bool says_nothing_added(const char *flags) {
    return says("adds nothing: recompute_elementwise", flags);
}

TEST(names_that_are_made_again_anyhow) {
    EXPECT(says_nothing_added("select_recompute: [norm, act]"));
    EXPECT(says_nothing_added("select_recompute: act"));
    EXPECT(!says_nothing_added("select_recompute: [norm, h]"));
    EXPECT(!says_nothing_added("select_recompute: True"));
    EXPECT(!says_nothing_added("select_recompute: act, recompute_elementwise: False"));
}

TEST(elementwise_beside_all_of_a_layer) {
    static const char note[] = "recompute True makes all of a layer again";
    EXPECT(says(note, "recompute: True, recompute_elementwise: False"));
    EXPECT(!says(note, "recompute: 2, recompute_elementwise: False"));
    EXPECT(!says(note, "recompute: True, recompute_elementwise: False}\n"
                       "parallel: {pipeline_stages: 2"));
}

static bool file_says(const char *part, const char *file, const char *key,
                      const char *value) {
    Arena *a = arena_new();
    const char *path =
        arena_printf(a, "%s/../examples/classifier/train.yaml", tests_dir());
    char *flag = arena_printf(a, "--model.file=%s/%s", tests_dir(), file);
    Config *cfg = config_load(a, path, 1, &flag);
    config_set_flag(cfg, key, value);
    const Job *j = job_to_plan(a, cfg);
    bool said = false;
    for (int i = 0; i < cfg->n_notes; i++) said |= strstr(cfg->notes[i], part) != NULL;
    if (strstr(part, "has no layers")) EXPECT(said == !j->strategy.remake);
    arena_free(a);
    return said;
}

static bool module_says(const char *example, const char *key, const char *value) {
    static const char *const file[] = {"../examples/classifier/mlp.ir",
                                       "../examples/lstm/lstm.ir"};
    return file_says("mlp.ir has no layers", file[strcmp(example, "lstm") == 0], key,
                     value);
}

TEST(a_module_without_layers) {
    EXPECT(module_says("classifier", "recompute_config.recompute", "True"));
    EXPECT(module_says("classifier", "recompute_config.recompute", "2"));
    EXPECT(module_says("classifier", "recompute_config.select_recompute", "[q]"));
    EXPECT(!module_says("lstm", "recompute_config.recompute", "True"));
}

/* select_recompute True is about attention, and names about values. */
TEST(a_module_whose_layers_have_no_attention) {
    static const char note[] = "has no effect: no layer of ",
                      *const plain[] = {"ir/residual_mlp.ir", "../examples/lstm/lstm.ir"};
    for (int i = 0; i < ARRAY_LEN(plain); i++) {
        EXPECT(file_says(note, plain[i], RC "select_recompute", "True"));
        EXPECT(file_says(note, plain[i], RC "select_recompute", "1"));
        EXPECT(!file_says(note, plain[i], RC "select_recompute", "[h]"));
        EXPECT(!file_says(note, plain[i], RC "recompute", "True"));
        EXPECT(!file_says(note, plain[i], RC "select_recompute", "False"));
    }
    EXPECT(!file_says(note, "ir/tiny_gpt.ir", RC "select_recompute", "True"));
}

TEST(a_switch_is_off_in_every_spelling) {
    static const char idle[] = "recompute_slice_activation has no effect";
    static const char *const no[] = {"False", "false", "'FALSE'", "no", "'off'"};
    for (int i = 0; i < 2 * ARRAY_LEN(no); i++) {
        const char *key = i % 2 ? "select_recompute" : "recompute";
        EXPECT(says(idle, arena_printf(arena_new(),
                                       "recompute_slice_activation: True, "
                                       "%s: %s",
                                       key, no[i / 2])));
    }
    EXPECT(!says(idle, "recompute_slice_activation: True, recompute: true"));
    EXPECT(!says(idle, "recompute_slice_activation: True, recompute: 2"));
}

TEST(keys_become_spans) {
    expect_text("", "");
    expect_text(ALL_AGAIN, "full");
    expect_text(RC "recompute 2", "2:full");
    expect_text(TWO_CHUNKS RC "recompute 2,1", "2:full|1:full");
    expect_text(TWO_CHUNKS RC "recompute 0,1", "|1:full");
    expect_text(RC "select_recompute True", "selective");
    expect_text(RC "select_recompute norm,act", "norm,act");
    expect_text(RC "recompute 1 " RC "select_recompute norm", "1:full;norm");
    expect_text(RC "recompute 1 " RC "select_recompute 2", "1:full;2:selective");
    expect_text(RC "recompute 2 " RC "recompute_method uniform", "x2:full");
    expect_text("tp 2 " ALL_AGAIN SUMS_KEPT, "full,-attn,-mlp");
    expect_text("tp 2 sp True " GATHERS_KEPT, "");
    expect_text(TWO_CHUNKS "tp 2 " RC "recompute 1 " RC "select_comm_recompute 1,2",
                "1:full");
    expect_text("tp 2 sp True " RC "select_comm_recompute 1", "1:*.gathered");
    expect_text("tp 2 sp True " RC "select_comm_recompute norm", "norm.gathered");
    expect_text("tp 2 sp True " RC "recompute 1 " RC "select_recompute 1 " RC
                "select_comm_recompute 2",
                "1:full;1:selective,*.gathered;1:*.gathered");
    expect_text("tp 2 sp True " RC "select_recompute 2 " RC "select_comm_recompute 1",
                "1:selective,*.gathered;1:selective");
    expect_text("tp 2 " RC "recompute 1 " RC "select_recompute norm" SUMS_KEPT,
                "1:full,-attn,-mlp;norm,-attn,-mlp");
}

/* Beside the inputs one layer's working set: what a model of one layer has. */
TEST(memory_of_the_working_set) {
    const double x = 4.0 * PLAN_B * PLAN_T * PLAN_C;
    expect_near("4 layers", activations(plan_gpt2, 4, ALL_AGAIN) / x,
                activations(plan_gpt2, 1, ALL_AGAIN) / x + 3);
    /* with one layer too: what products pack is held beside all that a layer keeps, or not */
    expect_near("12 layers", activations(plan_llama, 12, ALL_AGAIN) / x,
                activations(plan_llama, 1, ALL_AGAIN) / x + 11);
}

/* The first layers only: what they keep, and the others. */
TEST(memory_of_the_first_layers) {
    const double x = 4.0 * PLAN_B * PLAN_T * PLAN_C;
    double all = activations(plan_gpt2, 12, "");
    double some = activations(plan_gpt2, 12, "recompute_config.recompute 8");
    expect_near("8 of 12 layers: less", (all - some) / x, 8 * 15);
}

/* ---- the same bits ---- */

static void expect_same_bits(const char *name, const char *remake) {
    enum { RUN_STEPS = 3 };
    double loss[2][RUN_STEPS];
    for (int again = 0; again < 2; again++) {
        Arena *mem = arena_new();
        Way w = {name, again ? remake : NULL, 1, 1, "1f1b", 1, 1, 1, 1, 0, 2, 0, 0, 0};
        SimChange all = {.embd_dropout = 0.1, .attn_dropout = 0.2, .resid_dropout = 0.1};
        Simulated s = sim_open(mem, name, strategy_of(&w), w.micro, all, to_local);
        for (int i = 0; i < RUN_STEPS; i++) {
            double norm;
            sim_step(&s, i, 1e-2, &loss[again][i], &norm);
        }
        arena_free(mem);
    }
    for (int i = 0; i < RUN_STEPS; i++) EXPECT(loss[0][i] == loss[1][i]);
    EXPECT(loss[0][0] != loss[0][1]);
}

/* Masks of dropout are those of forward. */
TEST(same_bits_with_dropout) {
    static const char *const models[] = {"gpt2_tiny", "llama_tiny"};
    static const char *const what[] = {"full", "selective", "kept,norm,act", "*",
                                       "x2:full"};
    for (int m = 0; m < ARRAY_LEN(models); m++)
        for (int i = 0; i < ARRAY_LEN(what); i++) expect_same_bits(models[m], what[i]);
}
