/* rank_seconds.c - a step with a clock for every rank: it is that of a plan where no rank is
 * slow, and what theory says where one is. */
#include "passes/estimate/rank_seconds.h"
#include "../mem.h"
#include "../plans.h"
#include "base/rng.h"
#include <math.h>

static double seconds_with(const RankProgram *p, const RankNoise *noise, int64_t step) {
    return rank_run_step(mem(), rank_run_new(mem(), p, noise), step, RANK_SHOW_NONE)
        .seconds;
}

/* ---- no noise: the plan ---- */

static const struct {
    int ranks;
    const char *yaml, *keys;
} strategies[] = {
    {1, plan_gpt2, ""},
    {8, plan_gpt2, "zero level1 micro 2"},
    {8, plan_llama, "tp 2 sp True zero level3 micro 2"},
    {8, plan_gpt2, "cp 2 algo megatron_cp_algo tp 2"},
    {8, plan_gpt2, "cp 4 algo hybrid_cp_algo ulysses 2"},
    {8, plan_llama, "tp 2 pp 2 chunks 2 micro 6 zero level2 again True"},
    {16, plan_gpt2, "pp 4 schedule zero_bubble_h1 micro 9 zero level1"},
    {8, plan_gpt2, "pp 2 chunks 2 schedule zero_bubble_v micro 4 tp 2 emb_dp False"},
    {16, plan_llama, "pp 4 micro 5 zero level3 parallel.overlap thread"},
    {16, plan_llama, "tp 2 pp 4 micro 4 zero level1 sp True parallel.overlap thread"},
};

static double peak_memory[] = {1e9}, peak_bytes[] = {1};

/* Hosts of four ranks. */
static Machine small_machine(double hidden, double issue_seconds) {
    static MachineRank r;
    r = (MachineRank){.ranks = 4,
                      .threads = 1,
                      .flops = {4e9, 8e9, 8e9},
                      .memory = {1, peak_bytes, peak_memory, false}};
    Machine m = {.name = "small",
                 .host = "",
                 .host_ranks = 4,
                 .rank = &r,
                 .nranks = 1,
                 .reached = 0.9,
                 .inner_reached = 0.5,
                 .half = 30,
                 .op_start_seconds = 1e-6,
                 .issue_seconds = issue_seconds,
                 .hidden = hidden};
    m.link[LINK_HOST] = (Link){.start_seconds = 2e-6, .bytes_per_second = 3e9};
    m.link[LINK_NETWORK] = (Link){.start_seconds = 2e-5, .bytes_per_second = 1e9};
    return m;
}

static RankProgram program_of(const Plan *p, const Machine *m) {
    int stages = p->pipe ? p->pipe->schedule->stages : 1;
    const Func **entry = NEW_ARRAY(mem(), const Func *, (size_t)stages);
    for (int s = 0; s < stages; s++)
        entry[s] = p->pipe ? p->pipe->stage[s].entry : p->entry;
    return rank_program(mem(), m, entry, stages, 1);
}

/* The same sums in another order: a rounding for each of some thousand ops. */
static const double ROUNDING = 1e-11;

TEST(without_noise_a_step_is_as_planned) {
    static const double hidden[] = {0, 0.5, 1}, issue[] = {0, 2e-4};
    for (int i = 0; i < ARRAY_LEN(strategies); i++) {
        Config *cfg = plan_config(mem(), strategies[i].yaml, strategies[i].keys);
        Plan p = plan_of_config(mem(), cfg, strategies[i].ranks);
        for (int k = 0; k < 6; k++) {
            Machine m = small_machine(hidden[k % 3], issue[k / 3]);
            test_at("%s, hidden %g, issue %g", strategies[i].keys, m.hidden,
                    m.issue_seconds);
            plan_set_machine(mem(), &p, &m, 1);
            RankProgram r = program_of(&p, &m);
            RankNoise none = {0};
            RankStep s =
                rank_run_step(mem(), rank_run_new(mem(), &r, &none), 0, (RankShow){0});
            EXPECT_NEAR(s.seconds / p.time->seconds, 1, ROUNDING);
            for (int a = 0; a < 1 << r.parts.mesh->naxes; a++)
                EXPECT_NEAR(s.sums.wait[a], 0,
                            ROUNDING * strategies[i].ranks * s.seconds);
            for (int stage = 0; stage < p.time->stages; stage++) {
                const StageTime *a = &s.shown[stage], *b = &p.time->stage[stage];
                EXPECT_NEAR(a->end / b->end, 1, ROUNDING);
                EXPECT_INT(a->ntasks, b->ntasks);
                for (int t = 0; t < a->ntasks; t++)
                    EXPECT_NEAR(a->task[t].end / b->task[t].end, 1, ROUNDING);
            }
        }
    }
}

/* Every second of every rank is in one sum. */
TEST(the_sums_are_the_step_of_all_ranks) {
    Config *cfg = plan_config(mem(), plan_llama,
                              "tp 2 pp 4 micro 4 zero level1 sp True parallel.overlap "
                              "thread");
    Plan p = plan_of_config(mem(), cfg, 16);
    Machine m = small_machine(0.5, 0);
    RankProgram r = program_of(&p, &m);
    SlowRanks slow = {5, 5, 1.5};
    SlowLink link = {true, 1, -1, 3};
    RankNoise noise = {.slow = &slow,
                       .nslow = 1,
                       .link = &link,
                       .nlinks = 1,
                       .compute = jitter_parse("-", "normal:0.1"),
                       .message = jitter_parse("-", "exponential:0.5")};
    RankStep s = rank_run_step(mem(), rank_run_new(mem(), &r, &noise), 3, RANK_SHOW_NONE);
    double sum = s.sums.compute + s.sums.messages + s.sums.stages + s.sums.end;
    for (int a = 0; a < 1 << r.parts.mesh->naxes; a++) sum += s.sums.wait[a];
    EXPECT_NEAR(sum / (16 * s.seconds), 1, ROUNDING);
    EXPECT(s.sums.end > 0 && s.sums.stages > 0 && s.sums.compute > 0);
}

/* ---- programs by hand ---- */

enum { MOST_PIECES = 4096 };

/* One group of n ranks: a second of compute, a collective. */
static RankProgram replicas(int n, double collective_seconds) {
    static Machine m = {.name = "", .hidden = 1};
    Mesh *mesh = NEW(mem(), Mesh);
    mesh->naxes = 1;
    mesh->axis[0].name = "dp";
    mesh->axis[0].size = n;
    RankProgram p = {.ranks = n, .stage = NEW(mem(), StageProgram)};
    p.parts = (StepParts){.machine = &m, .mesh = mesh, .stages = 1};
    RankFunc *f = NEW(mem(), RankFunc);
    *f = (RankFunc){.communicates = true};
    RankPiece compute = {.kind = RANK_COMPUTE, .seconds = 1};
    RankPiece sum = {
        .kind = RANK_COLLECTIVE, .axes = 1, .slot = -1, .seconds = collective_seconds};
    PUSH(mem(), f->piece, f->n, f->cap, compute);
    PUSH(mem(), f->piece, f->n, f->cap, sum);
    *p.stage = (StageProgram){.func = f, .nfuncs = 1};
    return p;
}

TEST(replicas_wait_for_the_slowest) {
    RankProgram p = replicas(8, 0.25);
    SlowRanks slow[] = {{3, 3, 1.5}, {5, 6, 1.25}};
    RankNoise noise = {.slow = slow, .nslow = 2};
    RankStep s = rank_run_step(mem(), rank_run_new(mem(), &p, &noise), 0, RANK_SHOW_NONE);
    EXPECT_NEAR(s.seconds, 1.5 + 0.25, 1e-15);
    EXPECT_NEAR(s.sums.compute, 5 + 1.5 + 2 * 1.25, 1e-12);
    EXPECT_NEAR(s.sums.messages, 8 * 0.25, 1e-12);
    EXPECT_NEAR(s.sums.wait[1], 5 * 0.5 + 2 * 0.25, 1e-12);
    EXPECT_NEAR(s.blame[3], s.sums.wait[1], 1e-12);
    EXPECT_NEAR(s.blame[5], 0, 1e-12);
}

/* Two collectives at once, of 1 and 0.5 s, the second of which is awaited first; what is late by
 * is waited for once, in the first, and messages take what they take. */
TEST(what_waits_in_a_queue_is_no_wait_for_others) {
    RankProgram p = replicas(4, 0.25);
    RankFunc *f = p.stage->func;
    f->n = 1;
    f->piece[0].seconds = 1;
    const RankPiece more[] = {
        {.kind = RANK_COLLECTIVE, .axes = 1, .slot = 0, .seconds = 1},
        {.kind = RANK_COLLECTIVE, .axes = 1, .slot = 1, .seconds = 0.5},
        {.kind = RANK_ARRIVE, .axes = 1, .slot = 1},
        {.kind = RANK_ARRIVE, .axes = 1, .slot = 0},
        {.kind = RANK_COLLECTIVE, .axes = 1, .slot = 0, .seconds = 1},
        {.kind = RANK_COLLECTIVE, .axes = 1, .slot = -1, .seconds = 0.25},
        {.kind = RANK_ARRIVE, .axes = 1, .slot = 0},
    };
    for (int i = 0; i < ARRAY_LEN(more); i++)
        PUSH(mem(), f->piece, f->n, f->cap, more[i]);
    f->begins = true;
    p.stage->slots = 2;
    SlowRanks slow[] = {{2, 2, 1.125}};
    for (int n = 0; n < 2; n++) {
        RankNoise noise = {.slow = slow, .nslow = n};
        RankStep s =
            rank_run_step(mem(), rank_run_new(mem(), &p, &noise), 0, RANK_SHOW_NONE);
        EXPECT_NEAR(s.seconds, 3.75 + 0.125 * n, 1e-12);
        EXPECT_NEAR(s.sums.messages, 4 * 2.75, 1e-12);
        EXPECT_NEAR(s.sums.wait[1], 3 * 0.125 * n, 1e-12);
        EXPECT_NEAR(s.blame[2], 3 * 0.125 * n, 1e-12);
    }
}

/* A ring has the link between 7 and 0 and none between 3 and 5; rounds of pairs have one of
 * seven over it. */
TEST(a_slow_link_is_waited_for_by_its_ring) {
    RankProgram p = replicas(8, 0.25);
    SlowLink link[] = {{false, 0, 7, 3}, {false, 3, 5, 100}};
    RankNoise noise = {.link = link, .nlinks = 1};
    EXPECT_NEAR(seconds_with(&p, &noise, 0), 1.75, 1e-15);
    noise.link = &link[1];
    EXPECT_NEAR(seconds_with(&p, &noise, 0), 1.25, 1e-15);
    p.stage->func->piece[1].pairs = true;
    EXPECT_NEAR(seconds_with(&p, &noise, 0), 1 + 0.25 * (1 + 99.0 / 7), 1e-12);
}

TEST(a_host_has_links_to_all_others) {
    static Machine m = {.name = "", .host_ranks = 4};
    RankProgram p = replicas(8, 0.25);
    p.parts.machine = &m;
    SlowLink leaves = {true, 1, -1, 3}, inside = {false, 0, 1, 2};
    RankNoise noise = {.link = &leaves, .nlinks = 1};
    EXPECT_NEAR(seconds_with(&p, &noise, 0), 1.75, 1e-15);
    p.stage->func->piece[1].pairs = true; /* 4 of 7 rounds leave it */
    EXPECT_NEAR(seconds_with(&p, &noise, 0), 1 + 0.25 * (1 + 2 * 4.0 / 7), 1e-12);
    noise.link = &inside;
    p.stage->func->piece[1].pairs = false;
    EXPECT_NEAR(seconds_with(&p, &noise, 0), 1.5, 1e-15);
}

/* ---- pipelines ---- */

static RankPiece message_piece(RankPieceKind kind, int message) {
    return (RankPiece){.kind = kind, .message = message};
}

/* A schedule as a program: its tasks take these seconds, messages go between chunks of other
 * stages. Message numbers: forward of chunk c, micro-batch i, then backward. */
static int message_of(const PipeSchedule *s, TaskKind kind, int chunk, int micro) {
    return ((kind == TASK_FORWARD ? 0 : s->chunks) + chunk) * s->micro + micro;
}

static bool sends(const PipeSchedule *s, Task t, int *to) {
    *to = t.chunk + (t.kind == TASK_FORWARD ? 1 : -1);
    return t.kind <= TASK_BACKWARD && *to >= 0 && *to < s->chunks &&
           s->stage_of[*to] != s->stage_of[t.chunk];
}

static void write_stage(RankProgram *p, const PipeSchedule *s, int stage,
                        const double seconds[TASK_KINDS], double message_seconds) {
    RankFunc *f = NEW(mem(), RankFunc);
    *f = (RankFunc){.communicates = true};
    RankPiece *all = NEW_ARRAY(mem(), RankPiece, MOST_PIECES);
    int n = 0, to;
    for (int i = 0; i < s->stage[stage].n; i++) {
        Task t = s->stage[stage].task[i];
        int before = t.chunk + (t.kind == TASK_FORWARD ? -1 : 1);
        Task theirs = {t.kind, before, t.micro};
        bool takes = before >= 0 && before < s->chunks && sends(s, theirs, &to);
        if (takes)
            all[n++] =
                message_piece(RANK_RECEIVE, message_of(s, t.kind, before, t.micro));
        all[n++] = (RankPiece){
            .kind = RANK_COMPUTE, .seconds = seconds[t.kind], .is_task = true, .task = t};
        if (!sends(s, t, &to)) continue;
        int number = message_of(s, t.kind, t.chunk, t.micro);
        p->parts.message[number] =
            (StageMessage){stage, s->stage_of[to], message_seconds};
        all[n++] = message_piece(RANK_SEND, number);
    }
    for (int i = 0; i < s->stage[stage].n; i++) {
        Task t = s->stage[stage].task[i];
        if (sends(s, t, &to))
            all[n++] = message_piece(RANK_SENT, message_of(s, t.kind, t.chunk, t.micro));
    }
    EXPECT(n <= MOST_PIECES);
    f->piece = all;
    f->n = n;
    p->stage[stage] = (StageProgram){.func = f, .nfuncs = 1, .tasks = s->stage[stage].n};
}

static RankProgram pipeline(const char *name, int stages, int each, int micro, int dp,
                            const double seconds[TASK_KINDS], double message_seconds) {
    RankProgram p = replicas(dp, 0);
    const PipeSchedule *s = schedule_make(mem(), name, stages, stages * each, micro);
    p.parts.stages = stages;
    p.stage = NEW_ARRAY(mem(), StageProgram, (size_t)stages);
    p.parts.nmessages = 2 * s->chunks * micro;
    p.parts.message = NEW_ARRAY(mem(), StageMessage, (size_t)p.parts.nmessages);
    for (int k = 0; k < stages; k++) write_stage(&p, s, k, seconds, message_seconds);
    return p;
}

/* Tasks of f and b seconds: (m + p - 1) (f + b) of a schedule of m micro-batches on p stages.
 * With stage k F times as slow a gpipe schedule waits for it m times forward and backward, and
 * for each of the others once. In 1f1b so does what is before it; of the d = p - 1 - k stages
 * behind it the first micro-batch is back after d (f + b), while it makes d more forwards, and
 * the last one as well, while it makes d backwards: where these are as long, nothing is waited
 * for. */
static double slow_stage_seconds(bool one_forward, int p, int m, int k, double f,
                                 double b, double slow) {
    int d = p - 1 - k;
    if (!one_forward) return (p - 1) * (f + b) + m * slow * (f + b);
    return k * (f + b) + m * slow * (f + b) +
           d * (MAX(0, f + b - slow * f) + MAX(0, f + b - slow * b));
}

TEST(a_slow_stage_costs_each_micro_batch) {
    static const double seconds[TASK_KINDS] = {[TASK_FORWARD] = 1, [TASK_BACKWARD] = 2};
    static const int sizes[][2] = {{2, 2}, {4, 4}, {4, 13}, {8, 8}, {8, 32}};
    static const char *const names[] = {"gpipe", "1f1b"};
    static const double factors[] = {1, 1.25, 1.5, 2, 5};
    for (int i = 0; i < ARRAY_LEN(sizes) * 2 * 8 * ARRAY_LEN(factors); i++) {
        int p = sizes[i / 80][0], m = sizes[i / 80][1], kind = i % 2, k = i / 2 % 8;
        double factor = factors[i / 16 % 5];
        if (k >= p) continue;
        RankProgram r = pipeline(names[kind], p, 1, m, 2, seconds, 0);
        SlowRanks all = {2 * k, 2 * k + 1, factor}, one = {2 * k + 1, 2 * k + 1, factor};
        RankNoise noise = {.slow = &all, .nslow = 1};
        double wanted = slow_stage_seconds(kind, p, m, k, 1, 2, factor);
        test_at("%s, %d stages, %d micro-batches, stage %d", names[kind], p, m, k);
        EXPECT_NEAR(seconds_with(&r, &noise, 0), wanted, 1e-9);
        /* One rank of it: those of the same coordinate alone are behind. */
        noise.slow = &one;
        RankStep s =
            rank_run_step(mem(), rank_run_new(mem(), &r, &noise), 0, (RankShow){0});
        EXPECT_NEAR(s.seconds, wanted, 1e-9);
        EXPECT_NEAR(s.shown[0].end, 3.0 * (m + p - 1), 1e-9);
    }
}

/* What schedule.h says of them in its own way. */
TEST(schedules_take_their_unit_times) {
    static const double seconds[TASK_KINDS] = {[TASK_FORWARD] = 1, [TASK_BACKWARD] = 2};
    static const int sizes[][3] = {{2, 1, 5}, {4, 2, 8}, {4, 4, 12}, {8, 2, 16}};
    static const char *const names[] = {"gpipe", "1f1b", "1f1b", "breadth_first"};
    for (int i = 0; i < ARRAY_LEN(sizes); i++) {
        int stages = sizes[i][0], each = sizes[i][1], micro = sizes[i][2];
        const char *name = each == 1 ? names[i] : names[3];
        RankProgram p = pipeline(name, stages, each, micro, 1, seconds, 0.25);
        RankNoise none = {0};
        TaskSeconds t = {.kind = {[TASK_FORWARD] = 1, [TASK_BACKWARD] = 2}, .take = 0.25};
        const PipeSchedule *s = schedule_make(mem(), name, stages, stages * each, micro);
        EXPECT_NEAR(seconds_with(&p, &none, 0), schedule_seconds(mem(), s, &t, NULL),
                    1e-9);
        t.take = 0;
        for (int k = 0; k < p.parts.nmessages; k++) p.parts.message[k].seconds = 0;
        EXPECT_NEAR(seconds_with(&p, &none, 0), schedule_seconds(mem(), s, &t, NULL),
                    1e-9);
    }
}

/* ---- jitter ---- */

TEST(quantiles_are_those_of_the_distributions) {
    static const double u[] = {1e-10, 1e-5, 0.02, 0.3, 0.5, 0.8, 0.99, 1 - 1e-9};
    for (int i = 0; i < ARRAY_LEN(u); i++) {
        double x = normal_quantile(u[i]);
        EXPECT_NEAR(0.5 * erfc(-x / sqrt(2)) / u[i], 1, 1e-12);
        Jitter j = jitter_parse("-", "exponential:0.25");
        EXPECT_NEAR(jitter_quantile(&j, u[i]), 1 - 0.25 * log(1 - u[i]), 1e-7);
        j = jitter_parse("-", "lognormal:0.25");
        EXPECT_NEAR(log(jitter_quantile(&j, u[i])), 0.25 * x, 1e-12);
        j = jitter_parse("-", "spike:0.1:4");
        EXPECT_NEAR(jitter_quantile(&j, u[i]), u[i] > 0.9 ? 4 : 1, 0);
    }
}

/* Means are as they are called: by the midpoints of 10^6 equal parts; of a Pareto distribution of
 * shape 3 what is left of the tail is of order (10^6)^(1/3 - 1). */
TEST(means_are_those_of_the_distributions) {
    static const struct {
        const char *text;
        double mean;
    } of[] = {{"normal:0.1", 1},
              {"exponential:0.5", 1.5},
              {"uniform:0.5", 1.25},
              {"pareto:0.5:3", 1.5},
              {"spike:0.25:5", 2}};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        Jitter j = jitter_parse("-", of[i].text);
        double sum = 0;
        int n = 1000000;
        for (int k = 0; k < n; k++) sum += jitter_quantile(&j, (k + 0.5) / n);
        EXPECT_NEAR(sum / n, of[i].mean, 1e-4);
    }
}

/* Expected maxima of n draws of a normal distribution (Harter, "Expected values of normal order
 * statistics", Biometrika 48, 1961; n = 1000: Tippett, Biometrika 17, 1925) and of an exponential
 * one (the harmonic numbers). The mean over so many steps is known to its standard error; five of
 * those, with the deviation of a maximum below 0.83 and 1.29. */
TEST(the_slowest_of_more_ranks_is_slower) {
    static const struct {
        int n;
        double normal;
    } of[] = {{2, 0.56419}, {10, 1.53875}, {100, 2.50759}, {1000, 3.24144}};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        RankProgram p = replicas(of[i].n, 0);
        RankNoise normal = {.compute = jitter_parse("-", "normal:0.02"), .seed = 1};
        RankNoise exponential = {.compute = jitter_parse("-", "exponential:0.02")};
        const RankRun *a = rank_run_new(mem(), &p, &normal);
        const RankRun *b = rank_run_new(mem(), &p, &exponential);
        int steps = 400;
        double most[2] = {0}, harmonic = 0;
        for (int k = 1; k <= of[i].n; k++) harmonic += 1.0 / k;
        for (int s = 0; s < steps; s++) {
            most[0] +=
                (rank_run_step(mem(), a, s, RANK_SHOW_NONE).seconds - 1) / 0.02 / steps;
            most[1] +=
                (rank_run_step(mem(), b, s, RANK_SHOW_NONE).seconds - 1) / 0.02 / steps;
        }
        EXPECT_NEAR(most[0], of[i].normal, 5 * 0.83 / sqrt(steps));
        EXPECT_NEAR(most[1], harmonic, 5 * 1.29 / sqrt(steps));
    }
}

TEST(steps_are_those_of_their_seed) {
    RankProgram p = replicas(5, 0.1);
    RankNoise noise = {.compute = jitter_parse("-", "lognormal:0.1"),
                       .message = jitter_parse("-", "pareto:0.1:2.5"),
                       .rank = jitter_parse("-", "uniform:0.1"),
                       .seed = 7};
    double first = seconds_with(&p, &noise, 0);
    EXPECT(first == seconds_with(&p, &noise, 0));
    EXPECT(first != seconds_with(&p, &noise, 1));
    noise.seed = 8;
    EXPECT(first != seconds_with(&p, &noise, 0));
}

/* The line between two rows of the table is as close as jitter.h says. */
TEST(draws_are_quantiles) {
    static const char *const texts[] = {"normal:1",      "lognormal:0.5", "pareto:0.5:3",
                                        "exponential:1", "uniform:1",     "spike:0.3:2"};
    enum { N = 4096 };
    double factor[N], sum[2];
    for (int i = 0; i < ARRAY_LEN(texts); i++) {
        Jitter j = jitter_parse("-", texts[i]);
        JitterKey key = {.seed = 3, .number = (uint32_t)i};
        jitter_draw(jitter_table(mem(), j), &key, N, factor);
        sum[0] = sum[1] = 0;
        for (int k = 0; k < N; k++) {
            uint32_t counter[4] = {(uint32_t)k / 4, (uint32_t)i, 0, 0}, word[4];
            rng_philox(counter, (uint32_t[2]){3, 0}, word);
            double exact = jitter_quantile(&j, (word[k % 4] + 0.5) * 0x1p-32);
            EXPECT_NEAR(factor[k], exact, 2e-4);
            sum[0] += factor[k], sum[1] += exact;
        }
        EXPECT_NEAR(sum[0] / sum[1], 1, 1e-5);
    }
}

/* ---- more noise is never faster ---- */

static double noisy(const RankProgram *p, int slow_rank, double factor, double link,
                    double mean) {
    SlowRanks slow = {slow_rank, slow_rank, factor};
    SlowLink l = {true, 1, -1, link};
    char text[64];
    snprintf(text, sizeof text, "exponential:%g", mean);
    RankNoise noise = {.slow = &slow,
                       .nslow = 1,
                       .link = &l,
                       .nlinks = 1,
                       .compute = jitter_parse("-", text),
                       .message = jitter_parse("-", text),
                       .seed = (uint64_t)slow_rank};
    return seconds_with(p, &noise, 0);
}

TEST_LABEL_OF(more_noise_never_makes_a_step_shorter, RELEASED);
TEST(more_noise_never_makes_a_step_shorter) {
    for (int i = 1; i < ARRAY_LEN(strategies); i++) {
        test_at("%s", strategies[i].keys);
        Config *cfg = plan_config(mem(), strategies[i].yaml, strategies[i].keys);
        Plan p = plan_of_config(mem(), cfg, strategies[i].ranks);
        for (int k = 0; k < 4; k++) {
            Machine m = small_machine(k % 2 ? 0.3 : 1, k / 2 ? 2e-4 : 0);
            RankProgram r = program_of(&p, &m);
            for (int rank = 0; rank < strategies[i].ranks; rank += 3) {
                double base = noisy(&r, rank, 1.1, 1.5, 0.02) * (1 - ROUNDING);
                EXPECT(noisy(&r, rank, 1.4, 1.5, 0.02) >= base);
                EXPECT(noisy(&r, rank, 1.1, 2.5, 0.02) >= base);
                EXPECT(noisy(&r, rank, 1.1, 1.5, 0.05) >= base);
            }
        }
    }
}

/* ---- what is written wrong ---- */

static void expect_refused(const char *text, const char *part) {
    Catch c;
    if (CATCH(c)) {
        jitter_parse("--jitter", text);
        catch_end(&c);
        test_fail(__FILE__, __LINE__, "%s was taken", text);
    }
    EXPECT_INT(c.code, EXIT_CONFIG);
    EXPECT_PART(c.message, part);
}

TEST(distributions_that_are_none_are_refused) {
    expect_refused("gauss:1", "normal:DEVIATION, lognormal:DEVIATION");
    expect_refused("", "no such distribution");
    expect_refused("normal", "DEVIATION is a number above 0");
    expect_refused("normal:0", "DEVIATION is a number above 0");
    expect_refused("normal:-1", "DEVIATION is a number above 0");
    expect_refused("normal:nan", "DEVIATION is a number above 0");
    expect_refused("normal:inf", "up to 10");
    expect_refused("normal:0.1:3", "':3' is too much");
    expect_refused("pareto:0.1:1", "SHAPE is a number above 1");
    expect_refused("pareto:0.1", "SHAPE is a number above 1");
}
