/* Tests of micro-batches that are done as several parts beside each other: the numbers are
 * those of the whole micro-batch, with all ranks of all stages simulated by the interpreter;
 * and what one part sends is on its way while another computes. INTERLEAVE="gpt2_tiny PARTS
 * STAGES CHUNKS SCHEDULE DP TP CP RING SP VOCAB ZERO MICRO BESIDE REMAKE DROPOUT MASKED" runs
 * that one in test `one` (BESIDE: 1 with parallel.overlap; REMAKE: - for none);
 * SIM_DUMP=folder keeps what each pass made. */
#include "../pairwise.h"
#include "../plans.h"
#include "../simulated.h"

TEST_LABEL(RELEASED);

static const char to_local[] =
    "simplify,seed,zero,remake,cut,autodiff,simplify,halve,train,simplify,shard,"
    "reshard,collect,simplify,localize,simplify,keep,beside,sink,simplify,pipeline,meet,"
    "simplify";

typedef struct Way {
    const char *name; /* golden case */
    int parts, stages, chunks;
    const char *schedule;
    int dp, tp, cp, ring, sp, vocab, zero, micro, beside;
    const char *remake;
    int dropout, masked;
} Way;

static Strategy strategy_of(const Way *w) {
    return (Strategy){SIM_STRATEGY(w), .stages = w->stages, .chunks = w->chunks,
                      .schedule = w->schedule, .remake = w->remake};
}

static const char *describe(Arena *mem, const Way *w) {
    return arena_printf(
        mem, "INTERLEAVE=\"%s %d %d %d %s %d %d %d %d %d %d %d %d %d %s %d %d\"", w->name,
        w->parts, w->stages, w->chunks, w->schedule, w->dp, w->tp, w->cp, w->ring, w->sp,
        w->vocab, w->zero, w->micro, w->beside, w->remake ? w->remake : "-", w->dropout,
        w->masked);
}

enum { ALL_STEPS = 20, STEPS = 3 };

static SimCurve train(const Way *w, int steps) {
    Arena *mem = arena_new();
    const double drop = w->dropout ? 0.1 : 0;
    SimChange change = {drop, 2 * drop, drop, w->masked, .interleave = w->parts};
    test_at("%s", describe(mem, w));
    Simulated s = sim_open(mem, w->name, strategy_of(w), w->micro, change, to_local);
    SimCurve curve = sim_train(&s, steps);
    arena_free(mem);
    return curve;
}

/* PyTorch's; with dropout and labels that do not count those of one rank that does a
 * micro-batch as a whole. */
static const SimCurve *reference(const Way *w) {
    static SimCurve known[2][2][2];
    SimCurve *r = &known[!strcmp(w->name, "llama_tiny")][w->dropout][w->masked];
    Way alone = {.name = w->name,
                 .parts = 1,
                 .stages = 1,
                 .chunks = 1,
                 .schedule = "1f1b",
                 .dp = 1,
                 .tp = 1,
                 .cp = 1,
                 .ring = 1,
                 .micro = 1,
                 .dropout = w->dropout,
                 .masked = w->masked};
    if (r->steps) return r;
    *r = w->dropout || w->masked ? train(&alone, STEPS)
                                 : sim_golden_curve(w->name, ALL_STEPS);
    return r;
}

/* Returns the worst relative difference of a loss. */
static double check_way(const Way *w, int steps) {
    Arena *mem = arena_new();
    const SimCurve *want = reference(w);
    SimCurve got = train(w, steps);
    double worst = 0;
    for (int i = 0; i < steps; i++) {
        double off = fabs(got.loss[i] - want->loss[i]) / want->loss[i];
        worst = fmax(worst, off);
        if (!(off <= 1e-5))
            test_fail(__FILE__, __LINE__, "%s: loss of step %d is %.9g, wanted %.9g",
                      describe(mem, w), i + 1, got.loss[i], want->loss[i]);
        if (!(fabs(got.norm[i] - want->norm[i]) <= 1e-4 * want->norm[i]))
            test_fail(__FILE__, __LINE__, "%s: norm of step %d is %.9g, wanted %.9g",
                      describe(mem, w), i + 1, got.norm[i], want->norm[i]);
    }
    arena_free(mem);
    return worst;
}

TEST_LIMIT(one, 300) {
    Way w = {"gpt2_tiny", 2, 1, 1, "1f1b", 1, 2, 1, 1, 0, 0, 0, 1, 1, NULL, 0, 0};
    const char *text = getenv("INTERLEAVE");
    char name[64], schedule[64], remake[64];
    if (text) {
        EXPECT_INT(sscanf(text,
                          "%63s %d %d %d %63s %d %d %d %d %d %d %d %d %d %63s %d %d",
                          name, &w.parts, &w.stages, &w.chunks, schedule, &w.dp, &w.tp,
                          &w.cp, &w.ring, &w.sp, &w.vocab, &w.zero, &w.micro, &w.beside,
                          remake, &w.dropout, &w.masked),
                   17);
        w.name = name;
        w.schedule = schedule;
        w.remake = strcmp(remake, "-") ? remake : NULL;
    }
    bool plain = !w.dropout && !w.masked;
    printf("  worst relative loss %.2g\n", check_way(&w, plain ? ALL_STEPS : STEPS));
}

/* ---- the matrix ---- */

enum { MODEL, PARTS, PIPE, DP, TP, CP, SP, VOCAB, ZERO, MICRO, BESIDE, REMAKE, DROPOUT };
enum { MASKED = DROPOUT + 1, FACTORS };
static const int factor_size[FACTORS] = {2, 3, 5, 2, 2, 4, 2, 2, 4, 2, 2, 2, 2, 2};

static Way way_of(const int *v) {
    static const char *const models[] = {"gpt2_tiny", "llama_tiny"};
    static const struct {
        int stages, chunks;
        const char *schedule;
    } pipe[] = {{1, 1, "1f1b"},
                {2, 1, "1f1b"},
                {2, 2, "1f1b"},
                {2, 1, "zero_bubble_h1"},
                {2, 1, "gpipe"}};
    static const struct { int cp, ring; } context[] = {{1, 1}, {2, 1}, {2, 2}, {4, 2}};
    const int p = v[PIPE];
    return (Way){.name = models[v[MODEL]],
                 .parts = 1 << v[PARTS],
                 .stages = pipe[p].stages,
                 .chunks = pipe[p].chunks,
                 .schedule = pipe[p].schedule,
                 .dp = 1 << v[DP],
                 .tp = 1 << v[TP],
                 .cp = context[v[CP]].cp,
                 .ring = context[v[CP]].ring,
                 .sp = v[SP],
                 .vocab = v[VOCAB],
                 .zero = v[ZERO],
                 .micro = 1 << v[MICRO],
                 .beside = v[BESIDE],
                 .remake = v[REMAKE] ? "full" : NULL,
                 .dropout = v[DROPOUT],
                 .masked = v[MASKED]};
}

/* As strategy_check has it for these models (16 tokens, 4 heads, 8 sequences a step). */
static bool is_valid(const int *v) {
    Way w = way_of(v);
    int exchanged = w.cp / w.ring, heads = v[MODEL] ? 2 : 4; /* of keys */
    if (w.dp * w.tp * w.cp > 8 || 8 / w.micro / w.parts % w.dp) return false;
    if (8 < w.micro * w.parts * w.dp || heads % (exchanged * w.tp)) return false;
    if ((w.sp || w.vocab) && w.tp == 1) return false;
    if (w.chunks > 1 && w.micro % w.stages) return false;
    return !w.zero || w.dp * w.cp > 1;
}

/* The first ones meet every pair, and 95 % of what three values go together; those of the long
 * form nearly all. */
enum { WAYS = 48, WAYS_LONG = 96, SHARES = 4 };

static int ways(void) {
    return test_long() ? WAYS_LONG : WAYS;
}

static Pairing pairs(Arena *mem) {
    return pairing_new(mem, FACTORS, factor_size, is_valid);
}

TEST_LABEL_OF(every_pair_is_met, SLOW);
TEST_LIMIT(every_pair_is_met, 120) {
    Arena *mem = arena_new();
    Pairing p = pairs(mem);
    EXPECT(pairing_meets_all(&p, ways(), "all"));
    arena_free(mem);
}

static void run_share(int share) {
    Arena *mem = arena_new();
    Pairing p = pairs(mem);
    double worst = 0;
    int runs = 0;
    memory_keep(0);
    for (int n = 0; n < ways(); n++) {
        Way w = way_of(pairing_next(&p));
        if (n % SHARES != share) continue;
        worst = fmax(worst, check_way(&w, STEPS));
        runs++;
    }
    printf("  %d combinations, worst relative loss %.2g\n", runs, worst);
    arena_free(mem);
}

TEST_LABEL_OF(first_share, SLOW);
TEST_LIMIT(first_share, 180) {
    run_share(0);
}

TEST_LABEL_OF(second_share, SLOW);
TEST_LIMIT(second_share, 180) {
    run_share(1);
}

TEST_LABEL_OF(third_share, SLOW);
TEST_LIMIT(third_share, 180) {
    run_share(2);
}

TEST_LABEL_OF(fourth_share, SLOW);
TEST_LIMIT(fourth_share, 180) {
    run_share(3);
}

/* ---- what is in flight while another part computes ---- */

typedef struct Hidden {
    int sent, beside; /* collectives of forward layers; with matmuls until they arrive */
} Hidden;

static int matmuls_until(const Op *from, const Op *to) {
    int n = 0;
    for (const Op *op = from->next; op && op != to; op = op->next)
        n += op_has(op, F_DENSE) != 0;
    return n;
}

static Hidden hidden_in_forward(const char *keys) {
    Arena *mem = arena_new();
    Plan p = plan_of(mem, plan_gpt2, keys);
    Hidden h = {0};
    for (const Func *f = p.m->first; f; f = f->next)
        for (const Op *op = f->first; op && f->part == PART_FORWARD; op = op->next) {
            if (!op_has(op, F_COMM) || !op_attr(op, "axis")) continue;
            const Op *arrival = op_arrival(op);
            h.sent++;
            h.beside += arrival && matmuls_until(op, arrival) > 0;
        }
    printf("  %-60s %d collectives, %d beside matmuls\n", keys, h.sent, h.beside);
    arena_free(mem);
    return h;
}

#define IN_PARTS " micro_batch_interleave_num 2"

/* A layer adds up over tp behind attention and behind the MLP, and computes nothing until the
 * sum is there; of two parts the other one does, but at the end of a layer, where both have
 * done everything. */
TEST(one_part_computes_while_another_sends) {
    Hidden whole = hidden_in_forward("tp 2"), parts = hidden_in_forward("tp 2" IN_PARTS);
    EXPECT_INT(whole.sent, 2);
    EXPECT_INT(whole.beside, 0);
    EXPECT_INT(parts.sent, 4);
    EXPECT_INT(parts.beside, 3);
}

/* At the beginning of a layer nothing is in flight yet, at its end nothing is left. */
TEST(parts_of_a_sequence_too) {
    Hidden whole = hidden_in_forward("tp 2 sp True");
    Hidden parts = hidden_in_forward("tp 2 sp True" IN_PARTS);
    EXPECT_INT(whole.sent, 4);
    EXPECT_INT(whole.beside, 0);
    EXPECT_INT(parts.sent, 8);
    EXPECT_INT(parts.beside, 6);
    whole = hidden_in_forward("cp 2");
    parts = hidden_in_forward("cp 2" IN_PARTS);
    EXPECT_INT(whole.beside, 0);
    EXPECT_INT(parts.beside, parts.sent);
}

/* ---- memory ---- */

static int64_t planned(const char *keys, MemoryClass class) {
    Arena *mem = arena_new();
    Plan p = plan_of(mem, plan_gpt2, keys);
    int64_t bytes =
        class == MEM_CLASSES ? p.memory.total_bytes : p.memory.class_bytes[class];
    arena_free(mem);
    return bytes;
}

/* Gradients of all parts are added into one buffer, and of what a part needs while it
 * computes there is less. */
TEST(memory_of_parts) {
    static const char *const keys[] = {"tp 2",
                                       "tp 2 sp True",
                                       "tp 2 micro 2",
                                       "cp 2",
                                       "dp 2 tp 2",
                                       "dp 2 tp 2 micro 4",
                                       "tp 2 recompute_config.recompute True"};
    for (int i = 0; i < ARRAY_LEN(keys); i++) {
        Arena *mem = arena_new();
        const char *parts = arena_printf(mem, "%s" IN_PARTS, keys[i]);
        int64_t a = planned(keys[i], MEM_CLASSES), b = planned(parts, MEM_CLASSES);
        printf("  %-40s %6.2f MB whole, %6.2f MB in two parts\n", keys[i],
               1e-6 * (double)a, 1e-6 * (double)b);
        EXPECT_INT(planned(parts, MEM_GRADIENTS), planned(keys[i], MEM_GRADIENTS));
        EXPECT((double)b <= 1.01 * (double)a);
        arena_free(mem);
    }
}

/* ---- what it is not for ---- */

static bool has_note(const Config *cfg, const char *part) {
    for (int i = 0; i < cfg->n_notes; i++)
        if (strstr(cfg->notes[i], part)) return true;
    return false;
}

static const char *hash_of(Arena *mem, const char *keys) {
    Plan p = plan_of(mem, plan_gpt2, keys);
    return arena_strdup(mem, p.hash);
}

/* Where layers communicate nothing, or nothing at the same time as they compute. */
TEST(without_anything_to_hide_nothing_changes) {
    static const char *const keys[] = {"dp 2", "tp 2 parallel.overlap off"};
    static const char *const why[] = {"model_parallel and context_parallel are 1",
                                      "parallel.overlap is off"};
    for (int i = 0; i < ARRAY_LEN(keys); i++) {
        Arena *mem = arena_new();
        const char *parts = arena_printf(mem, "%s" IN_PARTS, keys[i]);
        EXPECT_STR(hash_of(mem, keys[i]), hash_of(mem, parts));
        Config *cfg = plan_config(mem, plan_gpt2, parts);
        plan_of_config(mem, cfg, 0);
        EXPECT(has_note(
            cfg,
            arena_printf(mem, "micro_batch_interleave_num has no effect: %s", why[i])));
        arena_free(mem);
    }
}

/* The key under parallel_config is the same one. */
TEST(both_names_of_the_key) {
    Arena *mem = arena_new();
    const char *other = "tp 2 parallel_config.micro_batch_interleave_num 2";
    EXPECT_STR(hash_of(mem, "tp 2" IN_PARTS), hash_of(mem, other));
    EXPECT(strcmp(hash_of(mem, "tp 2" IN_PARTS), hash_of(mem, "tp 2")) != 0);
    arena_free(mem);
}

TEST(what_cannot_be_cut_is_refused) {
    Arena *mem = arena_new();
    EXPECT_FAIL(plan_of(mem, plan_gpt2, "tp 2 micro_batch_interleave_num 3"), EXIT_CONFIG,
                "4 sequences on each of 1 replicas, which are not a multiple of 3 parts");
    EXPECT_FAIL(plan_of(mem, plan_gpt2, "tp 2 dp 2 runner_config.batch_size 3" IN_PARTS),
                EXIT_CONFIG, "3 sequences on each of 2 replicas");
    const char *module = path_join(mem, TESTS_DIR, "ir/residual_mlp.ir");
    EXPECT_FAIL(plan_of(mem,
                        "context: {threads: 1}\n"
                        "train_dataset: {data_loader: {type: Tensors}}\n",
                        arena_printf(mem, "model.file %s tp 2" IN_PARTS, module)),
                EXIT_CONFIG, "has a batch of its own, which cannot be cut in parts");
    EXPECT_FAIL(plan_of(mem, plan_gpt2,
                        "tp 2 runner_wrapper.calculate_per_token_loss False "
                        "train_dataset.data_loader.type GPTDataset" IN_PARTS),
                EXIT_CONFIG, "the loss is a mean over a micro-batch as a whole");
    arena_free(mem);
}
