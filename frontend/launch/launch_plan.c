/* launch_plan.c - the line for mpirun: where ranks go, and which environment they get. */
#include "frontend/launch/launch.h"
#include "frontend/launch/launch_parts.h"
#include "runtime/core/rt.h"

enum { WORD_MAX_BYTES = 128 << 10 }; /* of a command: Linux takes no longer one */

/* What Open MPI 5 calls otherwise; it starts ranks with PRRTE, which has settings of its
 * own (docs.open-mpi.org, mpirun(1); docs.prrte.org). */
typedef struct Dialect {
    const char *no_cma, *no_cma_value;    /* ranks do not read each other's memory */
    const char *ssh_option, *ssh_args;    /* words for ssh */
    const char *users_args, *users_agent; /* the same in the environment */
} Dialect;

static const Dialect dialects[] = {
    {"btl_vader_single_copy_mechanism", "none", "--mca", "plm_rsh_args",
     "OMPI_MCA_plm_rsh_args", "OMPI_MCA_plm_rsh_agent"},
    {"smsc", "^cma", "--prtemca", "plm_ssh_args", "PRTE_MCA_plm_ssh_args",
     "PRTE_MCA_plm_ssh_agent"},
};

typedef struct Planner {
    Arena *mem;
    LaunchPlan *plan;
    int cap;
} Planner;

#define ADD(l, ...) add(l, (const char *const[]){__VA_ARGS__, NULL})

static void add(Planner *l, const char *const *words) {
    for (; *words; words++) PUSH(l->mem, l->plan->argv, l->plan->argc, l->cap, *words);
}

/* Threads of a rank. Other hosts are taken to be like this one, unless --threads says how
 * they are. */
static int plan_threads(Planner *l, const LaunchOptions *o, const ThisHost *m,
                        const Placement *p) {
    int threads = o->threads ? o->threads : rt_threads_left(MAX(1, m->cores / p->most));
    bool known = !p->host || !o->threads;
    if (known && (int64_t)threads * p->most > m->cores)
        l->plan->warning = arena_printf(
            l->mem,
            "%d rank%s with %d thread%s each share %d core%s and wait for each other: "
            "right for trying out, slow for training",
            p->most, p->most == 1 ? "" : "s", threads, threads == 1 ? "" : "s", m->cores,
            m->cores == 1 ? "" : "s");
    else if (p->host && p->ranks > p->slots)
        l->plan->warning =
            arena_printf(l->mem, "%d ranks on %d slots: no rank has cores of its own",
                         p->ranks, p->slots);
    return threads;
}

/* A host for each rank, in their order: left to itself, mpirun puts its own first. */
static void add_hosts(Planner *l, const Placement *p) {
    Text t = text_new(l->mem);
    for (int r = 0; r < p->ranks; r++) text_add(&t, "%s%s", r ? "," : "", p->host[r]);
    if (t.n >= WORD_MAX_BYTES)
        fail(
            EXIT_CONFIG,
            "the hosts of %d ranks have %zu letters, and mpirun takes up to %d; give the "
            "hosts shorter names",
            p->ranks, t.n, WORD_MAX_BYTES - 1);
    ADD(l, "--host", t.s, "--map-by", "seq");
}

static bool is_variable(const char *setting, const char *name) {
    size_t n = strlen(name);
    return !strncmp(setting, name, n) && setting[n] == '=';
}

static bool any_set(char **env, const char *first, const char *second) {
    for (; *env; env++)
        if (is_variable(*env, first) || is_variable(*env, second)) return true;
    return false;
}

/* The user's own STATOR_* go along, by name; ours with their values. */
static void add_environment(Planner *l, int threads, int columns, char **env) {
    for (; *env; env++)
        if (begins_with(*env, "STATOR_") && !is_variable(*env, "STATOR_THREADS") &&
            !is_variable(*env, LAUNCH_ENV) && !is_variable(*env, LAUNCH_COLUMNS_ENV))
            ADD(l, "-x", arena_strndup(l->mem, *env, strcspn(*env, "=")));
    ADD(l, "-x", arena_printf(l->mem, "STATOR_THREADS=%d", threads), "-x",
        LAUNCH_ENV "=1");
    if (columns) ADD(l, "-x", arena_printf(l->mem, LAUNCH_COLUMNS_ENV "=%d", columns));
}

/* The ranks of another MPI would not see each other. */
static void check_library(const LaunchOptions *o, const ThisHost *m, int ranks) {
    if (o->program || !m->mpi_library || !strncmp(m->mpi_library, "Open MPI", 8)) return;
    fail(EXIT_CONFIG,
         "stator launch is for Open MPI, and this stator is built with another MPI (%s): "
         "start the ranks with its own mpiexec -n %d stator %s ..., or build stator with "
         "Open MPI",
         m->mpi_library, ranks, o->command[0]);
}

LaunchPlan *launch_plan(Arena *mem, const LaunchOptions *o, const ThisHost *m,
                        const Placement *p, char **user_env) {
    Planner planner = {.mem = mem, .plan = NEW(mem, LaunchPlan)}, *l = &planner;
    const Dialect *words = &dialects[m->mpi_major >= 5];
    check_library(o, m, p->ranks);
    int threads = plan_threads(l, o, m, p);
    ADD(l, "mpirun");
    if (m->root) ADD(l, "--allow-run-as-root");
    ADD(l, "-n", arena_printf(l->mem, "%d", p->ranks));
    bool crowded = !p->host && p->most > m->cores;
    if (p->host) add_hosts(l, p);
    if (crowded) ADD(l, "--map-by", ":oversubscribe");
    if (!crowded) l->plan->tasks = p->tasks;
    ADD(l, "--bind-to", "none");
    if (m->no_cma) ADD(l, "--mca", words->no_cma, words->no_cma_value);
    /* A host that does not answer, or asks for a password, is said within seconds, not
     * after the minutes of TCP. What the user says about ssh counts more. */
    if (p->host && !any_set(user_env, words->users_args, words->users_agent))
        ADD(l, words->ssh_option, words->ssh_args,
            "-o ConnectTimeout=10 -o BatchMode=yes");
    add_environment(l, threads, m->columns, user_env);
    ADD(l, o->program ? o->program : m->self);
    for (int i = 0; i < o->words; i++) ADD(l, o->command[i]);
    PUSH(mem, l->plan->argv, l->plan->argc, l->cap, NULL);
    l->plan->argc--;
    return l->plan;
}

char *shell_line(Arena *mem, const LaunchPlan *plan) {
    Text t = text_new(mem);
    if (plan->tasks) text_add(&t, SLURM_TASKS "='%s' ", plan->tasks);
    for (int i = 0; i < plan->argc; i++) {
        if (i) text_add(&t, " ");
        text_add_word(&t, plan->argv[i]);
    }
    return t.s;
}
