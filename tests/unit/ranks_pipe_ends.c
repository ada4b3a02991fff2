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
    int hits, in_save;
    double worst;
} Blow;

/* Runs on, and hits a rank. Its exit code. */
static int run_and_hit(Blow *b, const char *config, const char *run, const char *words,
                       int nth, uint64_t *random) {
    int before = runs_steps(run), victim = (int)(runs_random(random) % RANKS);
    pid_t rank[RANKS], launch = ranks_start(RANKS, config, run, words);
    ranks_wait_start(launch, rank, RANKS);
    bool runs = wait_for_instant(launch, run, nth, runs_random(random), before);
    bool saving = runs_is_saving(run);
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
              .deadline = 10};
    setenv("OMPI_MCA_odls_base_sigkill_timeout", "0", 1);
    hit_and_go_on(&b, "");
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
