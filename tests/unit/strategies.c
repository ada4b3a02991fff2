/* Tests of strategies: the golden cases give PyTorch's losses whatever the strategy, with
 * ranks simulated by the interpreter. A list of combinations that meets every pair of
 * values is run, a part in each test.
 * SIM="gpt2_tiny DP TP CP RING SP VOCAB ZERO MICRO BESIDE" runs that one in test `one`
 * (BESIDE: 1 with parallel.overlap);
 * SIM_STEPS ends runs early, SIM_DUMP=folder keeps what each pass made. */
#include "../pairwise.h"
#include "../simulated.h"
#include <malloc.h>

static const char to_local[] =
    "simplify,seed,zero,autodiff,simplify,train,simplify,shard,"
    "reshard,collect,simplify,localize,simplify,keep,sink,simplify";

typedef struct Combination {
    const char *name; /* golden case */
    int dp, tp, cp, ring, sp, vocab, zero, micro, beside;
} Combination;

static Strategy strategy_of(const Combination *c) {
    bool hybrid = c->ring > 1 && c->ring < c->cp;
    return (Strategy){.data = c->dp, .context = c->cp, .tensor = c->tp, .ring = c->ring,
                      .sequence_parallel = c->sp, .vocab_parallel = c->vocab,
                      .zero_level = c->zero, .zero_axes = hybrid ? "dp.cp.up" : "dp.cp",
                      .bucket_bytes = 1 << 20,
                      .overlap = c->beside ? OVERLAP_AUTO : OVERLAP_OFF};
}

static const char *describe(Arena *mem, const Combination *c) {
    return arena_printf(mem,
                        "%s dp=%d tp=%d cp=%d ring=%d sp=%d vocab=%d zero=%d micro=%d "
                        "beside=%d",
                        c->name, c->dp, c->tp, c->cp, c->ring, c->sp, c->vocab, c->zero,
                        c->micro, c->beside);
}

/* Sanitized, the interpreter is an order of magnitude slower: then the beginning of the
 * list, which meets every pair already, takes fewer steps. */
#ifdef __SANITIZE_ADDRESS__
enum { COMBINATIONS = 24, STEPS = 5 };
#else
enum { COMBINATIONS = 108, STEPS = 1 << 20 };
#endif

/* Returns the worst relative difference of a loss. */
static double train(const Combination *c) {
    Arena *mem = arena_new();
    Simulated s = sim_open(mem, c->name, strategy_of(c), c->micro, 0, to_local);
    int64_t step = 0;
    int64_t steps = getenv("SIM_STEPS") ? atoi(getenv("SIM_STEPS")) : STEPS;
    double worst = 0;
    for (const Json *at = json_need(s.trajectory, "steps")->first; at;
         at = at->next, step++) {
        double loss, norm, want = json_f64(json_need(at, "loss"));
        sim_step(&s, step, json_f64(json_need(at, "lr")), &loss, &norm);
        double off = fabs(loss - want) / want;
        worst = fmax(worst, off);
        if (!(off <= 1e-5))
            test_fail(__FILE__, __LINE__, "%s: loss of step %lld is %.9g, wanted %.9g",
                      describe(mem, c), (long long)step + 1, loss, want);
        double want_norm = json_f64(json_need(at, "grad_norm"));
        if (!(fabs(norm - want_norm) <= 1e-4 * want_norm))
            test_fail(__FILE__, __LINE__, "%s: norm of step %lld is %.9g, wanted %.9g",
                      describe(mem, c), (long long)step + 1, norm, want_norm);
        if (step + 1 >= steps) break;
    }
    arena_free(mem);
    return worst;
}

TEST_LIMIT(one, 300) {
    Combination c = {"gpt2_tiny", 2, 1, 1, 1, 0, 0, 0, 1, 0};
    const char *text = getenv("SIM");
    char name[64];
    if (text) {
        EXPECT(sscanf(text, "%63s %d %d %d %d %d %d %d %d %d", name, &c.dp, &c.tp, &c.cp,
                      &c.ring, &c.sp, &c.vocab, &c.zero, &c.micro, &c.beside) == 10);
        c.name = name;
    }
    double worst = train(&c);
    Arena *mem = arena_new();
    printf("  %s: worst relative loss %.2g\n", describe(mem, &c), worst);
    arena_free(mem);
}

/* ---- the matrix ---- */

enum { MODEL, DP, TP, CP, ALGORITHM, SP, VOCAB, ZERO, MICRO, BESIDE, FACTORS };
enum { EXCHANGED, RING, HYBRID }; /* how the parts of a sequence meet in attention */

static const int factor_size[FACTORS] = {2, 4, 3, 3, 3, 2, 2, 4, 3, 2};

static Combination combination_of(const int *c) {
    static const char *const models[] = {"gpt2_tiny", "llama_tiny"};
    Combination k = {models[c[MODEL]], 1 << c[DP], 1 << c[TP], 1 << c[CP], 1,
                     c[SP], c[VOCAB], c[ZERO], 1 << c[MICRO], c[BESIDE]};
    if (c[ALGORITHM] == RING) k.ring = k.cp;
    if (c[ALGORITHM] == HYBRID) k.ring = k.cp / 2;
    return k;
}

/* As strategy_check has it for these models (16 tokens, 4 heads, 8 sequences a step);
 * without what would have no effect. */
static bool is_valid(const int *v) {
    Combination c = combination_of(v);
    int exchanged = c.cp / MAX(c.ring, 1), heads = v[MODEL] ? 2 : 4; /* of keys */
    if (c.dp * c.tp * c.cp > 8 || 8 / c.micro % c.dp) return false;
    if (v[ALGORITHM] == RING && c.cp < 2) return false;
    if (v[ALGORITHM] == HYBRID && c.cp < 4) return false;
    if (heads % (exchanged * c.tp)) return false;
    if ((c.sp || c.vocab) && c.tp == 1) return false;
    return !c.zero || c.dp * c.cp > 1;
}

enum { PARTS = 4 };

TEST(every_pair_is_met) {
    Arena *mem = arena_new();
    Pairing p = pairing_new(mem, FACTORS, factor_size, is_valid);
    int n = 0, all_met = 0;
    while (n < COMBINATIONS && pairing_next(&p)) {
        n++;
        if (!all_met && p.nmet == p.npossible) all_met = n;
    }
    printf("  %d of %d valid combinations meet %d of %d pairs (all after %d)\n", n,
           p.nvalid, p.nmet, p.npossible, all_met);
    EXPECT(n == COMBINATIONS && p.nmet == p.npossible);
    arena_free(mem);
}

static void run_part(int part) {
    Arena *mem = arena_new();
    mallopt(M_TRIM_THRESHOLD, 1 << 30); /* memory of a step serves the next one */
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    Pairing p = pairing_new(mem, FACTORS, factor_size, is_valid);
    double worst = 0;
    int runs = 0;
    for (int n = 0; n < COMBINATIONS; n++) {
        const int *v = pairing_next(&p);
        if (n % PARTS != part) continue;
        Combination c = combination_of(v);
        worst = fmax(worst, train(&c));
        runs++;
    }
    printf("  %d combinations, worst relative loss %.2g\n", runs, worst);
    arena_free(mem);
}

TEST_LIMIT(matrix_first_part, 120) {
    run_part(0);
}

TEST_LIMIT(matrix_second_part, 120) {
    run_part(1);
}

TEST_LIMIT(matrix_third_part, 120) {
    run_part(2);
}

TEST_LIMIT(matrix_fourth_part, 120) {
    run_part(3);
}

/* ---- dropout ---- */

enum { DROPPED_STEPS = 4 };

/* Losses of the first steps with dropout. */
static void train_dropped(const Combination *c, double loss[DROPPED_STEPS]) {
    Arena *mem = arena_new();
    double norm;
    Simulated s = sim_open(mem, c->name, strategy_of(c), c->micro, 0.1, to_local);
    const Json *at = json_need(s.trajectory, "steps")->first;
    for (int64_t step = 0; step < DROPPED_STEPS; step++, at = at->next) {
        sim_step(&s, step, json_f64(json_need(at, "lr")), &loss[step], &norm);
        double without = json_f64(json_need(at, "loss"));
        EXPECT(fabs(loss[step] - without) > 1e-4 * without);
    }
    arena_free(mem);
}

/* Masks are keyed by the element of the step: any strategy drops the same. */
TEST(dropout_drops_the_same) {
    static const Combination combinations[] = {{"gpt2_tiny", 4, 1, 1, 1, 0, 0, 2, 2, 1},
                                               {"gpt2_tiny", 1, 4, 1, 1, 1, 1, 0, 1, 0},
                                               {"gpt2_tiny", 2, 1, 4, 1, 0, 0, 1, 1, 1},
                                               {"llama_tiny", 2, 2, 1, 1, 1, 0, 0, 4, 1},
                                               {"gpt2_tiny", 2, 2, 2, 1, 1, 1, 3, 2, 0},
                                               {"gpt2_tiny", 1, 1, 2, 2, 0, 0, 0, 2, 0},
                                               {"llama_tiny", 1, 2, 4, 4, 1, 0, 1, 1, 0},
                                               {"gpt2_tiny", 1, 2, 4, 2, 1, 0, 1, 2, 1}};
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(combinations); i++) {
        const Combination *c = &combinations[i];
        Combination alone = {c->name, 1, 1, 1, 1, 0, 0, 0, 1, 0};
        double loss[DROPPED_STEPS], want[DROPPED_STEPS];
        train_dropped(&alone, want);
        train_dropped(c, loss);
        for (int k = 0; k < DROPPED_STEPS; k++) {
            if (fabs(loss[k] - want[k]) <= 1e-5 * want[k]) continue;
            test_fail(__FILE__, __LINE__, "%s: loss of step %d is %.9g, wanted %.9g",
                      describe(mem, c), k + 1, loss[k], want[k]);
        }
    }
    arena_free(mem);
}
