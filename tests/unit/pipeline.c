/* Tests of pipelines: the numbers of PyTorch whatever the stages, the schedule and the other
 * parts of the strategy, with all ranks of all stages simulated by the interpreter; with
 * dropout, labels that do not count and several documents in a sequence those of one rank
 * with one micro-batch. Lists of combinations that meet every pair of values are run, a part
 * in each test. PIPE="gpt2_tiny STAGES CHUNKS SCHEDULE OFFSET MICRO DP TP CP RING SP VOCAB
 * ZERO BESIDE DROPOUT MASKED DOCUMENTS" runs that one in test `one` (SCHEDULE: a name or
 * FILE.csv; OFFSET: 1 for uneven layers; BESIDE: 1 with parallel.overlap; DROPOUT: 0 none, 1
 * of the embedding, 2 of attention, 3 of residuals, 4 all); PIPE_STEPS ends runs early,
 * SIM_DUMP=folder keeps what each pass made. */
#include "../pairwise.h"
#include "../pipe_order.h"
#include "../simulated.h"
#include "passes/pipe/schedule.h"

TEST_LABEL(RELEASED);

static const char to_local[] =
    "simplify,seed,zero,cut,autodiff,simplify,halve,train,simplify,shard,"
    "reshard,collect,simplify,localize,simplify,keep,sink,simplify,pipeline,meet,"
    "simplify";

enum { NONE, EMBEDDING, ATTENTION, RESIDUAL, ALL, DROPOUTS };

typedef struct Way {
    const char *name; /* golden case */
    int stages, chunks;
    const char *schedule;
    int uneven, micro, dp, tp, cp, ring, sp, vocab, zero, beside;
    int dropout, masked, documents;
} Way;

static const char *describe(Arena *mem, const Way *w) {
    return arena_printf(mem,
                        "PIPE=\"%s %d %d %s %d %d %d %d %d %d %d %d %d %d %d %d %d\"",
                        w->name, w->stages, w->chunks, w->schedule, w->uneven, w->micro,
                        w->dp, w->tp, w->cp, w->ring, w->sp, w->vocab, w->zero, w->beside,
                        w->dropout, w->masked, w->documents);
}

/* ---- a schedule written by the user ---- */

/* One chunk a stage: 1F1B that goes further ahead than it must. */
static void write_eager(Text *t, const Way *w, int stage) {
    int warm = MIN(w->micro, 2 * (w->stages - stage) - 1);
    for (int i = 0; i < w->micro + warm; i++) {
        if (i < w->micro) text_add(t, "%dF%d,", stage, i);
        if (i >= warm) text_add(t, "%dB%d,", stage, i - warm);
    }
}

/* Without overlap any order goes: here backward begins with the last micro-batch. */
static void write_reversed(Text *t, const Way *w, int stage) {
    for (int i = 0; i < w->micro; i++) text_add(t, "%dF%d,", stage, i);
    for (int i = w->micro; i-- > 0;) text_add(t, "%dB%d,", stage, i);
}

/* Two: first and last chunk are on stage 0, the next ones on stage 1, as a V. */
static void write_v(Text *t, const Way *w, int stage) {
    int last = 2 * w->stages - 1 - stage;
    for (int i = 0; i < w->micro; i++) text_add(t, "%dF%d,%dF%d,", stage, i, last, i);
    for (int i = 0; i < w->micro; i++) {
        int k = w->beside ? i : w->micro - 1 - i;
        text_add(t, "%dB%d,%dB%d,", last, k, stage, k);
    }
}

static const char *user_schedule(Arena *mem, const Way *w) {
    const char *path = path_join(mem, temp_dir(), "mine.csv");
    Text t = text_new(mem);
    for (int k = 0; k < w->stages; k++) {
        (w->chunks > 1 ? write_v : w->beside ? write_eager : write_reversed)(&t, w, k);
        text_add(&t, "\n");
    }
    EXPECT_INT(file_write_atomic(path, t.s, t.n), 0);
    return path;
}

/* ---- a run ---- */

static int64_t offsets[3][4] = {{1, -1}, {1, 0, -1, 0}, {0, 1, 0, -1}};

static IntList offset_of(const Way *w) {
    int64_t *of = offsets[w->chunks > 1 ? 1 : w->stages == 4 ? 2 : 0];
    return (IntList){of, w->uneven ? w->stages * w->chunks : 0};
}

static Strategy strategy_of(Arena *mem, const Way *w) {
    bool mine = !strcmp(w->schedule, "mine");
    return (Strategy){SIM_STRATEGY(w), .stages = w->stages, .chunks = w->chunks,
                      .schedule = mine ? user_schedule(mem, w) : w->schedule,
                      .layers.offset = offset_of(w)};
}

static SimChange change_of(const Way *w) {
    bool all = w->dropout == ALL;
    return (SimChange){.embd_dropout = w->dropout == EMBEDDING || all ? 0.1 : 0,
                       .attn_dropout = w->dropout == ATTENTION || all ? 0.2 : 0,
                       .resid_dropout = w->dropout == RESIDUAL || all ? 0.1 : 0,
                       .masked = w->masked,
                       .documents = w->documents};
}

/* Both lists meet every pair, and 90 and 95 % of what three values go together. */
enum { GOLDEN = 48, GOLDEN_LONG = 150, WIDE = 80, WIDE_LONG = 300 };
enum { ALL_STEPS = 20, GOLDEN_STEPS = 6, STEPS = 3 };

static SimCurve train(const Way *w, int steps) {
    Arena *mem = arena_new();
    const char *fewer = getenv("PIPE_STEPS");
    test_at("%s", describe(mem, w));
    Simulated s =
        sim_open(mem, w->name, strategy_of(mem, w), w->micro, change_of(w), to_local);
    EXPECT(pipe_order_ends(mem, s.m));
    SimCurve curve = sim_train(&s, fewer ? MIN(steps, atoi(fewer)) : steps);
    arena_free(mem);
    return curve;
}

/* Returns the worst relative difference of a loss. */
static double expect_curve(const Way *w, const SimCurve *got, const SimCurve *want) {
    Arena *mem = arena_new();
    double worst = 0;
    for (int i = 0; i < got->steps; i++) {
        double off = fabs(got->loss[i] - want->loss[i]) / want->loss[i];
        worst = fmax(worst, off);
        if (!(off <= 1e-5))
            test_fail(__FILE__, __LINE__, "%s: loss of step %d is %.9g, wanted %.9g",
                      describe(mem, w), i + 1, got->loss[i], want->loss[i]);
        if (!(fabs(got->norm[i] - want->norm[i]) <= 1e-4 * want->norm[i]))
            test_fail(__FILE__, __LINE__, "%s: norm of step %d is %.9g, wanted %.9g",
                      describe(mem, w), i + 1, got->norm[i], want->norm[i]);
    }
    arena_free(mem);
    return worst;
}

static double check_golden(const Way *w, int steps) {
    SimCurve got = train(w, steps), want = sim_golden_curve(w->name, ALL_STEPS);
    return expect_curve(w, &got, &want);
}

/* ---- references: one rank, one micro-batch ---- */

enum { REFERENCES = 2 * DROPOUTS * 2 * 2 };

static int reference_of(const Way *w) {
    int model = !strcmp(w->name, "llama_tiny");
    return ((model * DROPOUTS + w->dropout) * 2 + w->masked) * 2 + w->documents;
}

static const SimCurve *reference(const Way *w) {
    static SimCurve known[REFERENCES];
    SimCurve *r = &known[reference_of(w)];
    Way alone = {w->name, 1, 1, "1f1b", 0, 1,          1,         1,           1,
                 1,       0, 0, 0,      0, w->dropout, w->masked, w->documents};
    if (!r->steps) *r = train(&alone, STEPS);
    return r;
}

static double check_as_one(const Way *w) {
    const SimCurve *want = reference(w);
    SimCurve got = train(w, STEPS);
    return expect_curve(w, &got, want);
}

TEST_LIMIT(one, 300) {
    Way w = {"gpt2_tiny", 2, 1, "1f1b", 0, 2, 1, 1, 1, 1, 0, 0, 0, 0, NONE, 0, 0};
    const char *text = getenv("PIPE");
    char name[64], schedule[1024];
    if (text) {
        EXPECT_INT(sscanf(text,
                          "%63s %d %d %1023s %d %d %d %d %d %d %d %d %d %d %d %d %d",
                          name, &w.stages, &w.chunks, schedule, &w.uneven, &w.micro,
                          &w.dp, &w.tp, &w.cp, &w.ring, &w.sp, &w.vocab, &w.zero,
                          &w.beside, &w.dropout, &w.masked, &w.documents),
                   17);
        w.name = name;
        w.schedule = schedule;
    }
    bool plain = !w.dropout && !w.masked && !w.documents;
    double worst = plain ? check_golden(&w, ALL_STEPS) : check_as_one(&w);
    Arena *mem = arena_new();
    printf("  %s: worst relative loss %.2g\n", describe(mem, &w), worst);
    arena_free(mem);
}

/* ---- the matrices ---- */

enum {
    MODEL,
    PP,
    CHUNKS,
    SCHEDULE,
    UNEVEN,
    MICRO,
    DP,
    TP,
    CP,
    SP,
    VOCAB,
    ZERO,
    BESIDE,
    GOLDEN_FACTORS,
    DROPOUT = GOLDEN_FACTORS,
    MASKED,
    DOCUMENTS,
    FACTORS
};
enum { WHOLE, EXCHANGED, RING }; /* CP: how the parts of a sequence meet in attention */

static const int factor_size[FACTORS] = {2, 3, 2, 6, 2, 4,        2, 2,
                                         3, 2, 2, 4, 2, DROPOUTS, 2, 2};

static Way way_of(const int *v, int factors) {
    static const char *const models[] = {"gpt2_tiny", "llama_tiny"};
    static const char *const schedules[] = {"1f1b", "gpipe",          "breadth_first",
                                            "mine", "zero_bubble_h1", "zero_bubble_v"};
    Way w = {.name = models[v[MODEL]],
             .stages = 1 << v[PP],
             .chunks = 1 + v[CHUNKS],
             .schedule = schedules[v[SCHEDULE]],
             .uneven = v[UNEVEN],
             .micro = 1 << v[MICRO],
             .dp = 1 << v[DP],
             .tp = 1 << v[TP],
             .cp = v[CP] == WHOLE ? 1 : 2,
             .ring = v[CP] == RING ? 2 : 1,
             .sp = v[SP],
             .vocab = v[VOCAB],
             .zero = v[ZERO],
             .beside = v[BESIDE]};
    if (factors > GOLDEN_FACTORS)
        w.dropout = v[DROPOUT], w.masked = v[MASKED], w.documents = v[DOCUMENTS];
    return w;
}

/* As strategy_check and the generators have it for these models (4 layers, 16 tokens, 4 or 2
 * heads of keys, 8 sequences a step); without what would have no effect. */
static bool goes_together(const int *v) {
    Way w = way_of(v, GOLDEN_FACTORS);
    bool staged = w.stages > 1, groups = v[SCHEDULE] == 0 && w.chunks > 1;
    if (!staged && (w.chunks > 1 || w.uneven || v[SCHEDULE])) return false;
    bool one_chunk = v[SCHEDULE] == 1 || v[SCHEDULE] == 4;
    if (w.stages * w.chunks > 4 || (one_chunk && w.chunks > 1)) return false;
    if (v[SCHEDULE] == 5 && w.chunks == 1) return false;
    if ((groups && w.micro % w.stages) || 8 / w.micro % w.dp) return false;
    if (w.dp * w.tp * w.cp > 4) return false;
    if ((v[MODEL] ? 2 : 4) % (w.cp / w.ring * w.tp)) return false;
    if ((w.sp || w.vocab) && w.tp == 1) return false;
    return !w.zero || w.dp * w.cp > 1;
}

/* There are too many to look at all of them each time: some by fixed dice. */
static bool is_valid(const int *v) {
    uint64_t number = 0;
    for (int i = 0; i < FACTORS; i++) number = number * 8 + (uint64_t)v[i];
    return goes_together(v) && rng_uniform(3, 0, number) < 0.04;
}

static Pairing golden_pairs(Arena *mem) {
    return pairing_new(mem, GOLDEN_FACTORS, factor_size, goes_together);
}

static Pairing wide_pairs(Arena *mem) {
    return pairing_new(mem, FACTORS, factor_size, is_valid);
}

static int golden_count(void) {
    return test_long() ? GOLDEN_LONG : GOLDEN;
}

static int wide_count(void) {
    return test_long() ? WIDE_LONG : WIDE;
}

TEST_LABEL_OF(every_pair_is_met, SLOW);
TEST(every_pair_is_met) {
    Arena *mem = arena_new();
    Pairing golden = golden_pairs(mem), wide = wide_pairs(mem);
    EXPECT(pairing_meets_all(&golden, golden_count(), "golden"));
    EXPECT(pairing_meets_all(&wide, wide_count(), "wide"));
    arena_free(mem);
}

enum { PARTS = 3 };

static void report(int runs, int staged, double worst) {
    printf("  %d combinations, %d with stages, worst relative loss %.2g\n", runs, staged,
           worst);
}

static void run_golden(int part) {
    Arena *mem = arena_new();
    memory_keep(0);
    Pairing p = golden_pairs(mem);
    double worst = 0;
    int runs = 0, staged = 0;
    for (int n = 0; n < golden_count(); n++) {
        const int *v = pairing_next(&p);
        if (n % PARTS != part) continue;
        Way w = way_of(v, GOLDEN_FACTORS);
        worst = fmax(worst, check_golden(&w, test_long() ? ALL_STEPS : GOLDEN_STEPS));
        runs++;
        staged += w.stages > 1;
    }
    report(runs, staged, worst);
    arena_free(mem);
}

/* Those of one reference are in one part. */
static void run_wide(int part) {
    Arena *mem = arena_new();
    memory_keep(0);
    Pairing p = wide_pairs(mem);
    double worst = 0;
    int runs = 0, staged = 0;
    for (int n = 0; n < wide_count(); n++) {
        Way w = way_of(pairing_next(&p), FACTORS);
        if (reference_of(&w) % PARTS != part) continue;
        worst = fmax(worst, check_as_one(&w));
        runs++;
        staged += w.stages > 1;
    }
    report(runs, staged, worst);
    arena_free(mem);
}

TEST_LABEL_OF(golden_first_part, SLOW);
TEST_LIMIT(golden_first_part, 300) {
    run_golden(0);
}

TEST_LABEL_OF(golden_second_part, SLOW);
TEST_LIMIT(golden_second_part, 300) {
    run_golden(1);
}

TEST_LABEL_OF(golden_third_part, SLOW);
TEST_LIMIT(golden_third_part, 300) {
    run_golden(2);
}

TEST_LABEL_OF(wide_first_part, SLOW);
TEST_LIMIT(wide_first_part, 300) {
    run_wide(0);
}

TEST_LABEL_OF(wide_second_part, SLOW);
TEST_LIMIT(wide_second_part, 300) {
    run_wide(1);
}

TEST_LABEL_OF(wide_third_part, SLOW);
TEST_LIMIT(wide_third_part, 300) {
    run_wide(2);
}
