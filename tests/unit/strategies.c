/* Tests of strategies: the same numbers whatever the strategy, with ranks simulated by
 * the interpreter. The golden cases give PyTorch's losses; and with dropout, labels that
 * do not count and several documents in a sequence, every combination gives those of one
 * rank with one micro-batch. Lists of combinations that meet every pair of values are
 * run, a part in each test. SIM="gpt2_tiny DP TP CP RING SP VOCAB ZERO GROUPS MICRO
 * BESIDE DROPOUT MASKED DOCUMENTS" runs that one in test `one` (GROUPS: of replicas that split
 * states each; BESIDE: 1 with parallel.overlap; DROPOUT: 0 none, 1 of the embedding, 2 of attention, 3 of residuals, 4 all); SIM_STEPS
 * ends runs early, SIM_DUMP=folder keeps what each pass made. */
#include "../pairwise.h"
#include "../simulated.h"

TEST_LABEL(RELEASED);

static const char to_local[] =
    "simplify,seed,zero,narrow,autodiff,simplify,train,hoist,simplify,shard,"
    "reshard,collect,simplify,localize,simplify,keep,sink,simplify";

static const char *const models[] = {"gpt2_tiny", "llama_tiny"};

enum { NONE, EMBEDDING, ATTENTION, RESIDUAL, ALL, DROPOUTS };

typedef struct Combination {
    const char *name; /* golden case */
    int dp, tp, cp, ring, sp, vocab, zero, groups, micro, beside;
    int dropout, masked, documents;
    DType narrow;
    bool normed; /* residuals behind norms */
} Combination;

static Strategy strategy_of(const Combination *c) {
    return (Strategy){SIM_STRATEGY(c), .groups = c->groups};
}

static SimChange change_of(const Combination *c) {
    bool all = c->dropout == ALL;
    return (SimChange){.embd_dropout = c->dropout == EMBEDDING || all ? 0.1 : 0,
                       .attn_dropout = c->dropout == ATTENTION || all ? 0.2 : 0,
                       .resid_dropout = c->dropout == RESIDUAL || all ? 0.1 : 0,
                       .masked = c->masked,
                       .documents = c->documents,
                       .narrow = c->narrow,
                       .normed = c->normed};
}

static const char *describe(Arena *mem, const Combination *c) {
    return arena_printf(mem,
                        "%s dp=%d tp=%d cp=%d ring=%d sp=%d vocab=%d zero=%d groups=%d "
                        "micro=%d beside=%d dropout=%d masked=%d documents=%d",
                        c->name, c->dp, c->tp, c->cp, c->ring, c->sp, c->vocab, c->zero,
                        c->groups, c->micro, c->beside, c->dropout, c->masked,
                        c->documents);
}

/* The beginnings of both lists meet every pair, and that of the wide one most of what three values
 * go together; the rest is for the long form. Sanitized, the interpreter is an order of magnitude
 * slower: then a part that meets most pairs is run, in fewer steps. */
#ifdef __SANITIZE_ADDRESS__
enum { GOLDEN = 12, GOLDEN_LONG = 12, WIDE = 20, WIDE_LONG = 20, EVERY_PAIR = 0 };
enum { GOLDEN_STEPS = 5, STEPS = 2, NARROW_STEPS = 2 };
#else
enum { GOLDEN = 34, GOLDEN_LONG = 64, WIDE = 96, WIDE_LONG = 208, EVERY_PAIR = 1 };
enum { GOLDEN_STEPS = 20, STEPS = 3, NARROW_STEPS = 6 };
#endif

static SimCurve train(const Combination *c, int steps) {
    Arena *mem = arena_new();
    const char *fewer = getenv("SIM_STEPS");
    Simulated s =
        sim_open(mem, c->name, strategy_of(c), c->micro, change_of(c), to_local);
    SimCurve curve = sim_train(&s, fewer ? MIN(steps, atoi(fewer)) : steps);
    arena_free(mem);
    return curve;
}

/* Returns the worst relative difference of a loss. */
static double expect_curve_within(const Combination *c, const SimCurve *got,
                                  const SimCurve *want, double of_loss, double of_norm) {
    Arena *mem = arena_new();
    double worst = 0;
    for (int i = 0; i < got->steps; i++) {
        double off = fabs(got->loss[i] - want->loss[i]) / want->loss[i];
        worst = fmax(worst, off);
        if (!(off <= of_loss))
            test_fail(__FILE__, __LINE__, "%s: loss of step %d is %.9g, wanted %.9g",
                      describe(mem, c), i + 1, got->loss[i], want->loss[i]);
        if (!(fabs(got->norm[i] - want->norm[i]) <= of_norm * want->norm[i]))
            test_fail(__FILE__, __LINE__, "%s: norm of step %d is %.9g, wanted %.9g",
                      describe(mem, c), i + 1, got->norm[i], want->norm[i]);
    }
    arena_free(mem);
    return worst;
}

static double expect_curve(const Combination *c, const SimCurve *got,
                           const SimCurve *want) {
    return expect_curve_within(c, got, want, 1e-5, 1e-4);
}

static double check_golden(const Combination *c, int steps) {
    SimCurve got = train(c, steps), want = sim_golden_curve(c->name, GOLDEN_STEPS);
    return expect_curve(c, &got, &want);
}

/* ---- references: one rank, one micro-batch ---- */

enum { REFERENCES = 2 * DROPOUTS * 2 * 2 };

static int reference_of(const Combination *c) {
    return ((!strcmp(c->name, "llama_tiny") * DROPOUTS + c->dropout) * 2 + c->masked) *
               2 +
           c->documents;
}

static const SimCurve *reference(const Combination *c) {
    static SimCurve known[REFERENCES];
    SimCurve *r = &known[reference_of(c)];
    Combination alone = {.name = c->name,
                         .dp = 1,
                         .tp = 1,
                         .cp = 1,
                         .ring = 1,
                         .micro = 1,
                         .dropout = c->dropout,
                         .masked = c->masked,
                         .documents = c->documents};
    if (!r->steps) *r = train(&alone, STEPS);
    return r;
}

static double check_as_one(const Combination *c) {
    SimCurve got = train(c, STEPS);
    return expect_curve(c, &got, reference(c));
}

TEST_LABEL_OF(references_differ, SLOW);
/* Each of what a reference is made of changes it, and without all it is PyTorch's. */
TEST(references_differ) {
    static const Combination way[] = {
        {.dropout = NONE},     {.dropout = EMBEDDING}, {.dropout = ATTENTION},
        {.dropout = RESIDUAL}, {.dropout = ALL},       {.masked = 1},
        {.documents = 1},
    };
    for (int m = 0; m < ARRAY_LEN(models); m++) {
        double loss[ARRAY_LEN(way)];
        for (int i = 0; i < ARRAY_LEN(way); i++) {
            Combination c = way[i];
            c.name = models[m];
            loss[i] = reference(&c)->loss[0];
            for (int k = 0; k < i; k++) EXPECT(fabs(loss[i] - loss[k]) > 1e-4 * loss[k]);
        }
        Combination plain = {.name = models[m]};
        SimCurve want = sim_golden_curve(models[m], GOLDEN_STEPS);
        expect_curve(&plain, reference(&plain), &want);
    }
}

TEST_LIMIT(one, 300) {
    Combination c = {"gpt2_tiny", 2, 1, 1, 1, 0, 0, 0, 1, 1, 0, NONE, 0, 0};
    const char *text = getenv("SIM");
    char name[64];
    if (text) {
        EXPECT_INT(sscanf(text, "%63s %d %d %d %d %d %d %d %d %d %d %d %d %d", name,
                          &c.dp, &c.tp, &c.cp, &c.ring, &c.sp, &c.vocab, &c.zero,
                          &c.groups, &c.micro, &c.beside, &c.dropout, &c.masked,
                          &c.documents),
                   14);
        c.name = name;
    }
    bool plain = !c.dropout && !c.masked && !c.documents;
    double worst = plain ? check_golden(&c, GOLDEN_STEPS) : check_as_one(&c);
    Arena *mem = arena_new();
    printf("  %s: worst relative loss %.2g\n", describe(mem, &c), worst);
    arena_free(mem);
}

/* ---- the matrices ---- */

enum {
    MODEL,
    DP,
    TP,
    CP,
    ALGORITHM,
    SP,
    VOCAB,
    ZERO,
    MICRO,
    BESIDE,
    GOLDEN_FACTORS,
    DROPOUT = GOLDEN_FACTORS,
    MASKED,
    DOCUMENTS,
    FACTORS
};
enum { EXCHANGED, RING, HYBRID }; /* how the parts of a sequence meet in attention */

enum {
    LEVELS = 3
}; /* of ZeRO; factor ZERO has each with one group of replicas and with two */

static const int factor_size[FACTORS] = {2, 4, 3,        3, 3, 2, 2, 1 + 2 * LEVELS,
                                         3, 2, DROPOUTS, 2, 2};

static Combination combination_of(const int *c, int factors) {
    bool two = c[ZERO] > LEVELS;
    Combination k = {.name = models[c[MODEL]],
                     .dp = 1 << c[DP],
                     .tp = 1 << c[TP],
                     .cp = 1 << c[CP],
                     .ring = 1,
                     .sp = c[SP],
                     .vocab = c[VOCAB],
                     .zero = c[ZERO] - two * LEVELS,
                     .groups = 1 + two,
                     .micro = 1 << c[MICRO],
                     .beside = c[BESIDE]};
    if (c[ALGORITHM] == RING) k.ring = k.cp;
    if (c[ALGORITHM] == HYBRID) k.ring = k.cp / 2;
    if (factors > GOLDEN_FACTORS)
        k.dropout = c[DROPOUT], k.masked = c[MASKED], k.documents = c[DOCUMENTS];
    return k;
}

/* As strategy_check has it for these models (16 tokens, 4 heads, 8 sequences a step);
 * without what would have no effect. */
static bool is_valid(const int *v) {
    Combination c = combination_of(v, GOLDEN_FACTORS);
    int exchanged = c.cp / MAX(c.ring, 1), heads = v[MODEL] ? 2 : 4; /* of keys */
    if (c.dp * c.tp * c.cp > 8 || 8 / c.micro % c.dp) return false;
    if (v[ALGORITHM] == RING && c.cp < 2) return false;
    if (v[ALGORITHM] == HYBRID && c.cp < 4) return false;
    if (v[ALGORITHM] == EXCHANGED && c.ring != 1) return false;
    if (heads % (exchanged * c.tp)) return false;
    if ((c.sp || c.vocab) && c.tp == 1) return false;
    return !c.zero || (c.dp % c.groups == 0 && c.dp * c.cp > c.groups);
}

enum { PARTS = 4 };

static int golden_count(void) {
    return test_long() ? GOLDEN_LONG : GOLDEN;
}

static int wide_count(void) {
    return test_long() ? WIDE_LONG : WIDE;
}

static Pairing golden_pairs(Arena *mem) {
    return pairing_new(mem, GOLDEN_FACTORS, factor_size, is_valid);
}

static Pairing wide_pairs(Arena *mem) {
    return pairing_new(mem, FACTORS, factor_size, is_valid);
}

TEST_LABEL_OF(every_pair_is_met, SLOW);
TEST(every_pair_is_met) {
    Arena *mem = arena_new();
    Pairing golden = golden_pairs(mem), wide = wide_pairs(mem);
    EXPECT(pairing_meets_all(&golden, golden_count(), "golden") || !EVERY_PAIR);
    EXPECT(pairing_meets_all(&wide, wide_count(), "wide") || !EVERY_PAIR);
    arena_free(mem);
}

/* What goes wrong in a state of the optimizer shows in the next steps. */
static int golden_steps(void) {
    return test_long() ? GOLDEN_STEPS : MIN(GOLDEN_STEPS, 6);
}

static void run_golden(int part, int parts) {
    Arena *mem = arena_new();
    memory_keep(0);
    Pairing p = golden_pairs(mem);
    double worst = 0;
    int runs = 0;
    for (int n = 0; n < golden_count(); n++) {
        const int *v = pairing_next(&p);
        if (n % parts != part) continue;
        Combination c = combination_of(v, GOLDEN_FACTORS);
        worst = fmax(worst, check_golden(&c, golden_steps()));
        runs++;
    }
    printf("  %d combinations, worst relative loss %.2g\n", runs, worst);
    arena_free(mem);
}

/* In narrow numbers ranks round other sums than one rank does. */
static void run_narrow(DType type, int part, int parts, double as_one, double as_f32) {
    Arena *mem = arena_new();
    memory_keep(0);
    Pairing p = golden_pairs(mem);
    SimCurve one[ARRAY_LEN(models)], f32[ARRAY_LEN(models)];
    double worst = 0, from_f32 = 0;
    for (int i = 0; i < ARRAY_LEN(models); i++) {
        Combination alone = {models[i], 1, 1, 1, 1, .micro = 1, .narrow = type};
        one[i] = train(&alone, NARROW_STEPS);
        f32[i] = sim_golden_curve(models[i], GOLDEN_STEPS);
    }
    for (int n = 0; n < golden_count(); n++) {
        const int *v = pairing_next(&p);
        if (n % parts != part) continue;
        Combination c = combination_of(v, GOLDEN_FACTORS);
        c.narrow = type;
        SimCurve got = train(&c, NARROW_STEPS);
        const int m = v[MODEL];
        worst = fmax(worst, expect_curve_within(&c, &got, &one[m], as_one, 0.05));
        from_f32 = fmax(from_f32, expect_curve_within(&c, &got, &f32[m], as_f32, 0.05));
    }
    EXPECT(from_f32 > 1e-6); /* or nothing was rounded */
    printf("  %s: worst relative loss %.2g of one rank, %.2g of f32\n", dtype_name[type],
           worst, from_f32);
    arena_free(mem);
}

/* A part of the golden combinations, with another model. */
static void run_normed(void) {
    enum { EVERY = 3 };
    Arena *mem = arena_new();
    memory_keep(0);
    Pairing p = golden_pairs(mem);
    SimCurve one[ARRAY_LEN(models)];
    double worst = 0, apart = INFINITY;
    for (int i = 0; i < ARRAY_LEN(models); i++) {
        Combination alone = {models[i], 1, 1, 1, 1, .micro = 1, .normed = true};
        SimCurve golden = sim_golden_curve(models[i], GOLDEN_STEPS);
        one[i] = train(&alone, STEPS);
        apart = fmin(apart, fabs(one[i].loss[STEPS - 1] - golden.loss[STEPS - 1]));
    }
    EXPECT(apart > 1e-3); /* or it is the same model */
    for (int n = 0; n < golden_count(); n++) {
        const int *v = pairing_next(&p);
        if (n % EVERY) continue;
        Combination c = combination_of(v, GOLDEN_FACTORS);
        c.normed = true;
        SimCurve got = train(&c, STEPS);
        worst = fmax(worst, expect_curve(&c, &got, &one[v[MODEL]]));
    }
    printf("  worst relative loss %.2g\n", worst);
    arena_free(mem);
}

/* Those of one reference are in one part. */
static void run_wide(int part) {
    Arena *mem = arena_new();
    memory_keep(0);
    Pairing p = wide_pairs(mem);
    double worst = 0;
    int runs = 0;
    for (int n = 0; n < wide_count(); n++) {
        Combination c = combination_of(pairing_next(&p), FACTORS);
        if (reference_of(&c) % PARTS != part) continue;
        worst = fmax(worst, check_as_one(&c));
        runs++;
    }
    printf("  %d combinations, worst relative loss %.2g\n", runs, worst);
    arena_free(mem);
}

TEST_LABEL_OF(golden_first_half, SLOW);
TEST_LIMIT(golden_first_half, 120) {
    run_golden(0, 2);
}

TEST_LABEL_OF(golden_second_half, SLOW);
TEST_LIMIT(golden_second_half, 120) {
    run_golden(1, 2);
}

TEST_LABEL_OF(bf16_first_half, SLOW);
TEST_LIMIT(bf16_first_half, 120) {
    run_narrow(DT_BF16, 0, 2, 2e-3, 1e-2);
}

TEST_LABEL_OF(bf16_second_half, SLOW);
TEST_LIMIT(bf16_second_half, 120) {
    run_narrow(DT_BF16, 1, 2, 2e-3, 1e-2);
}

TEST_LABEL_OF(residuals_behind_norms, SLOW);
TEST_LIMIT(residuals_behind_norms, 120) {
    run_normed();
}

TEST_LABEL_OF(wide_first_part, SLOW);
TEST_LIMIT(wide_first_part, 120) {
    run_wide(0);
}

TEST_LABEL_OF(wide_second_part, SLOW);
TEST_LIMIT(wide_second_part, 120) {
    run_wide(1);
}

TEST_LABEL_OF(wide_third_part, SLOW);
TEST_LIMIT(wide_third_part, 120) {
    run_wide(2);
}

TEST_LABEL_OF(wide_fourth_part, SLOW);
TEST_LIMIT(wide_fourth_part, 120) {
    run_wide(3);
}

/* A part of them, and all in the long form. */
TEST_LABEL_OF(f16, SLOW);
TEST_LIMIT(f16, 240) {
    run_narrow(DT_F16, 0, test_long() ? 1 : 4, 5e-4, 2e-3);
}
