/* Tests of the ranks of a pipeline that end or hang: one that is killed or stopped at any
 * instant is named and ends the run in time, and what is left goes on to the bits of an
 * undisturbed run. */
#include "frontend/config/commands.h"
#include "ranks.h"

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);
TEST_LABEL(RELEASED);

enum { RANKS = 4, STEPS = 30 };

/* Two stages of two replicas, two chunks each; every second time four stages. */
static const char *words_of(int nth) {
    static const char *const layouts[] = {
        "--parallel_config.pipeline_stage 2 --parallel_config.pp_interleave_num 2 "
        "--parallel_config.data_parallel 2 " ZERO_LEVEL(1),
        "--parallel_config.pipeline_stage 4 "};
    return arena_printf(mem(),
                        "%s--model.model_config.num_layers 4 --batch_size 2 "
                        "--parallel_config.micro_batch_num 4 ",
                        layouts[nth % 2]);
}

static int times(void) {
    return test_long() ? 30 : 2;
}

/* Some steps later, every second time while it saves; false: the run is over. Ranks that
 * are hit while they start are not those of a pipeline yet. */
static bool wait_for_instant(pid_t launch, const char *run, int nth, uint64_t random,
                             int before) {
    int steps = before + 1 + (int)(random % 5);
    if (before >= STEPS) return false;
    if (!runs_wait_steps(launch, run, MIN(steps, STEPS))) return false;
    for (int i = 0; nth / 2 % 2 && i < 4000 && !runs_is_saving(run); i++) usleep(50);
    usleep((useconds_t)(random / 5 % 3000));
    return true;
}

typedef struct Blow {
    int signal, code; /* what is sent, and what launch ends with */
    const char *says;
    double deadline;
    int of_stage; /* ranks, where the block says where the rank was; else 0 */
    int late_us;  /* it is hit up to so much later */
    int hits, in_save, in_task;
    double worst;
} Blow;

/* The block of a rank that is no more says where it was: its stage, the task, the step. */
static void expect_place(Blow *b, const char *run, int victim, int before) {
    const char *line = strstr(said(), "\n  it was "), *place = line;
    int stage = -1, chunk = -1, micro = -1, step = -1;
    char kind = 0;
    for (const char *s = line; s && (s = strstr(s, " stage ")); s++) place = s;
    bool in_task = place && sscanf(place, " stage %d, task %d%c%d (step %d)", &stage,
                                   &chunk, &kind, &micro, &step) == 5;
    if (place && !in_task) sscanf(place, " stage %d (%*[a-z, ]%d)", &stage, &step);
    bool right =
        stage == victim / b->of_stage && step >= before && step <= runs_steps(run) + 2;
    if (in_task)
        right &= chunk % (RANKS / b->of_stage) == stage && micro >= 0 && micro < 4 &&
                 strchr("FB", kind);
    if (!right || strstr(said(), "\n    | ["))
        test_fail(__FILE__, __LINE__, "rank %d hit at %d:\n%s", victim, before, said());
    b->in_task += in_task;
}

/* Runs on, and hits a rank. Its exit code. */
static int run_and_hit(Blow *b, const char *config, const char *run, const char *words,
                       int nth, uint64_t *random) {
    int before = runs_steps(run), victim = (int)(runs_random(random) % RANKS);
    pid_t rank[RANKS], launch = ranks_start(RANKS, config, run, words);
    ranks_wait_start(launch, rank, RANKS);
    bool runs = wait_for_instant(launch, run, nth, runs_random(random), before);
    bool saving = runs_is_saving(run);
    if (b->late_us) usleep((useconds_t)(runs_random(random) % (uint64_t)b->late_us));
    double at = clock_seconds();
    if (runs) kill(rank[victim], b->signal);
    int code = stator_wait(launch);
    ranks_expect_gone(rank, RANKS, 20);
    if (code == 0) return 0; /* it was done already */
    double seconds = clock_seconds() - at;
    const char *head = arena_printf(mem(), "stator: rank %d of %d on ", victim, RANKS);
    if (code != b->code || seconds > b->deadline || !strstr(said(), head) ||
        !strstr(said(), b->says))
        test_fail(__FILE__, __LINE__, "rank %d hit: exit code %d after %.1f s:\n%s",
                  victim, code, seconds, said());
    if (b->of_stage) expect_place(b, run, victim, before);
    b->worst = fmax(b->worst, seconds);
    b->hits++;
    b->in_save += saving;
    return code;
}

/* Hits until there are enough, and one more run of each layout to its end. */
static void hit_and_go_on(Blow *b, const char *more) {
    const char *config = runs_small_config(STEPS, 2);
    uint64_t random = 0x9e3779b97f4a7c15u + (uint64_t)b->signal;
    for (int layout = 0; layout < 2; layout++) {
        const char *whole = in_temp("whole"), *run = in_temp("run");
        const char *plain = words_of(layout);
        if (b->of_stage) b->of_stage = layout ? 1 : 2;
        const char *words = arena_printf(mem(), "%s%s", plain, more);
        int want = b->hits + times() / 2;
        ranks_run(RANKS, config, whole, plain);
        for (int n = 0; b->hits < want; n++) {
            /* the run may end before it is hit: then from the beginning */
            if (run_and_hit(b, config, run, words, n, &random)) continue;
            runs_expect_same_losses(whole, run, STEPS);
            runs_expect_same_tensors(whole, run, STEPS);
            remove_all(run);
        }
        ranks_run(RANKS, config, run, plain);
        runs_expect_same_losses(whole, run, STEPS);
        runs_expect_same_tensors(whole, run, STEPS);
        remove_all(run);
        remove_all(whole);
    }
    printf("  %d hits, %d while saving; all ranks ended within %.1f s\n", b->hits,
           b->in_save, b->worst);
    EXPECT(b->in_save > 0 || !test_long());
}

TEST_LIMIT(a_rank_killed_at_random_instants, 900) {
    Blow b = {.signal = SIGKILL,
              .code = 128 + SIGKILL,
              .says = "killed by signal 9 (SIGKILL)",
              .deadline = 10,
              .of_stage = 1};
    setenv("OMPI_MCA_odls_base_sigkill_timeout", "0", 1);
    hit_and_go_on(&b, "");
}

/* The process that mpirun started for a rank, whose child that is. */
TEST_LIMIT(the_rank_of_a_killed_guard_is_named, 120) {
    for (int victim = 0; victim < RANKS; victim += 3) {
        const char *run = in_temp(arena_printf(mem(), "run%d", victim));
        const char *config = runs_small_config(1000000, 1000000);
        pid_t rank[RANKS], launch = ranks_start(RANKS, config, run, words_of(victim));
        ranks_wait_start(launch, rank, RANKS);
        EXPECT(runs_wait_steps(launch, run, 2));
        kill(ranks_parent(rank[victim]), SIGKILL);
        ranks_end(launch, 128 + SIGKILL, run);
        ranks_expect_gone(rank, RANKS, 20);
        SAID_EXPECT(arena_printf(mem(), "stator: rank %d of %d on ", victim, RANKS));
        SAID_EXPECT(" killed by signal 9 (SIGKILL)\n");
    }
}

/* Of a model whose steps are mostly tasks: many of the ranks are hit in one. */
TEST_LIMIT(ranks_that_crash_say_in_which_task, 300) {
    static const int signals[] = {SIGSEGV, SIGFPE, SIGABRT, SIGKILL};
    uint64_t random = 0x9e3779b97f4a7c15u;
    int hits = 2 * times(), in_task = 0;
    for (int i = 0; i < hits; i++) {
        int signal = signals[i % 4];
        Blow b = {.signal = signal,
                  .code = 128 + signal,
                  .says = "killed by signal ",
                  .deadline = 10,
                  .of_stage = i % 2 ? 1 : 2,
                  .late_us = 500000};
        const char *run = in_temp(arena_printf(mem(), "run%d", i));
        const char *words = arena_printf(
            mem(), "%s--model.model_config.hidden_size 128 --batch_size 8", words_of(i));
        const char *config = runs_small_config(1000000, 1000000);
        EXPECT(run_and_hit(&b, config, run, words, 0, &random));
        in_task += b.in_task;
    }
    printf("  %d hits, %d in a task\n", hits, in_task);
    EXPECT(in_task >= hits / 4);
}

TEST_LIMIT(a_rank_stopped_at_random_instants, 900) {
    Blow b = {.signal = SIGSTOP,
              .code = EXIT_HUNG,
              .says = " is stopped by a signal",
              .deadline = 8};
    hit_and_go_on(&b, "--runner_config.hang_seconds 1.5 ");
}

/* Ranks of the other stages wait, for it or for each other, and each says in what. */
TEST_LIMIT(the_others_say_what_they_wait_for, 120) {
    const char *run = in_temp("run"), *config = runs_small_config(1000000, 1000000);
    const char *words =
        arena_printf(mem(), "%s--runner_config.hang_seconds 1.5 ", words_of(1));
    pid_t rank[RANKS], launch = ranks_start(RANKS, config, run, words);
    ranks_wait_start(launch, rank, RANKS);
    EXPECT(runs_wait_steps(launch, run, 3));
    kill(rank[2], SIGSTOP);
    EXPECT_INT(stator_wait(launch), EXIT_HUNG);
    ranks_expect_gone(rank, RANKS, 20);
    SAID_EXPECT("stator: rank 2 of 4 on ");
    for (int r = 0; r < RANKS; r++)
        SAID_EXPECT(r == 2 ? "  rank 2: silent for "
                           : arena_printf(mem(), "  rank %d: waits ", r));
    EXPECT(!strstr(said(), ", 0 bytes"));
}
