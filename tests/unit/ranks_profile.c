/* Tests of the key profile on real ranks: the clocks of all traces agree, a rank's thread of
 * communication and messages between stages are in them, and metrics say what ranks wait. */
#include "profiled.h"
#include "ranks.h"

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

enum { FIRST = 2, LAST = 4, STEPS = 5, MOST = 4096 };

#define RECORD PROFILED_LONGER "--profile --profile_start_step 2 --profile_stop_step 4 "

/* Of a rank and a thread, those of one kind. */
static int take_kind(const Event *e, int n, int rank, int thread, const char *kind,
                     const Event **out) {
    int met = 0;
    for (int i = 0; i < n; i++)
        if (e[i].rank == rank && e[i].thread == thread && !strcmp(e[i].kind, kind) &&
            met < MOST)
            out[met++] = &e[i];
    return met;
}

/* No rank has the sum before the other one has begun to give. That is so whatever the machine
 * does, and false of clocks that differ by more than they say and a sum takes. On a machine that
 * is not overloaded it ends everywhere at once: on most, and clocks are known well. */
static void expect_one_clock(const char *run, const Event *e, int n, int thread) {
    static const Event *a[MOST], *b[MOST];
    int met = take_kind(e, n, 0, thread, "all_reduce", a), near = 0;
    double off = profiled_clock_off(run, 1);
    EXPECT(profiled_clock_off(run, 0) == 0 && off > 0 && off < 20e3);
    EXPECT(met >= LAST - FIRST + 1);
    EXPECT_INT(take_kind(e, n, 1, thread, "all_reduce", b), met);
    for (int i = 0; i < met; i++) {
        EXPECT_STR(a[i]->name, b[i]->name);
        EXPECT(a[i]->step == b[i]->step);
        if (a[i]->end < b[i]->begin - off || b[i]->end < a[i]->begin - off)
            test_fail(__FILE__, __LINE__, "%s: [%.0f, %.0f] on rank 0, [%.0f, %.0f] on 1",
                      a[i]->name, a[i]->begin, a[i]->end, b[i]->begin, b[i]->end);
        near += fabs(a[i]->end - b[i]->end) < 20e3;
    }
    printf("  %d of %d sums end within 20 ms, clocks within %.1f us\n", near, met, off);
    EXPECT(2 * near > met);
}

static void expect_traces(const Event *e, int n, const char *run, int ranks) {
    int sum = 0;
    for (int k = 0; k < ranks; k++) {
        int own;
        profiled_events(run, arena_printf(mem(), "trace.rank%d.json", k), &own);
        sum += own;
        EXPECT_INT(profiled_steps(e, n, k), LAST - FIRST + 1);
        profiled_expect_nested(e, n, k, 0, true);
        profiled_expect_nested(e, n, k, 1, false);
    }
    EXPECT_INT(sum, n);
    EXPECT_INT(profiled_remove_maps(run), ranks);
    profiled_expect_sum(run, FIRST, LAST);
}

/* Seconds of communication are some of a step's. */
static void expect_metrics(const char *run) {
    int n;
    const MetricsRow *row = runs_metrics(run, &n);
    EXPECT_INT(n, STEPS);
    for (int i = 0; i < n; i++)
        EXPECT(row[i].communication_seconds > 0 &&
               row[i].communication_seconds < row[i].seconds);
}

TEST_LIMIT(traces_of_replicas_have_one_clock, 120) {
    static const char *const progress[] = {"off", "thread"};
    const char *config = runs_small_config(STEPS, STEPS);
    for (int thread = 0; thread < 2; thread++) {
        const char *how = arena_printf(mem(), "%s--parallel.overlap %s",
                                       ranks_no_starts(), progress[thread]);
        const char *off = in_temp(arena_printf(mem(), "off%d", thread));
        const char *run = in_temp(arena_printf(mem(), "run%d", thread));
        int n;
        ranks_run(2, config, off, arena_printf(mem(), PROFILED_LONGER "%s", how));
        ranks_run(2, config, run, arena_printf(mem(), RECORD "%s", how));
        const Event *e = profiled_events(run, "trace.json", &n);
        expect_traces(e, n, run, 2);
        expect_one_clock(run, e, n, thread);
        expect_metrics(off);
        expect_metrics(run);
        runs_expect_same_losses(off, run, STEPS);
        runs_expect_same_tensors(off, run, STEPS);
    }
}

/* Ranks of several hosts: a time namespace gives one of them another clock. */
TEST_LIMIT(clocks_that_differ_are_aligned, 120) {
    static const char other[] = "unshare -T --monotonic 1000";
    if (!mpi_available()) test_skip("there is no mpirun");
    if (system("unshare -T --monotonic 1000 true 2>/dev/null"))
        test_skip("this user gets no time namespace");
    const char *config = runs_small_config(STEPS, 0), *run = in_temp("run");
    const char *words = arena_printf(mem(), "%s train %s --output_dir %s " RECORD,
                                     stator_program(), config, run);
    int n, code = mpi_run(1, "",
                          arena_printf(mem(), "%s : -n 1 %s %s", words, other, words));
    if (code) test_fail(__FILE__, __LINE__, "exit code %d:\n%s", code, mpi_said());
    const Event *e = profiled_events(run, "trace.json", &n);
    expect_traces(e, n, run, 2);
    expect_one_clock(run, e, n, 0);
}

/* A message is received after it has begun to be sent. */
TEST_LIMIT(traces_of_stages_have_their_messages, 120) {
    static const Event *sent[MOST], *got[MOST];
    const char *run = in_temp("run");
    int n;
    ranks_run(2, runs_small_config(STEPS, 0), run,
              RECORD "--parallel_config.pipeline_stage 2 "
                     "--parallel_config.micro_batch_num 4");
    const Event *e = profiled_events(run, "trace.json", &n);
    expect_traces(e, n, run, 2);
    double off = profiled_clock_off(run, 1);
    for (int k = 0; k < 2; k++) {
        int met = take_kind(e, n, k, 0, "send", sent);
        EXPECT(met >= 4 * (LAST - FIRST + 1));
        EXPECT_INT(take_kind(e, n, 1 - k, 0, "receive", got), met);
        EXPECT_INT(take_kind(e, n, k, 0, "sent", got), met);
        take_kind(e, n, 1 - k, 0, "receive", got);
        for (int i = 0; i < met; i++) EXPECT(got[i]->end >= sent[i]->begin - off);
    }
    double outside;
    EXPECT(profiled_table_ms(run, 1, &outside) > 0);
    EXPECT(file_exists(path_join(mem(), run, "timeline.csv")));
}
