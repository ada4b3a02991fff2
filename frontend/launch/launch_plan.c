/* launch_plan.c - the line for mpirun: where ranks go, what they are bound to, and which
 * environment they get. */
#include "frontend/launch/launch.h"
#include "frontend/launch/launch_parts.h"
#include <stdlib.h>

/* What Open MPI 5 calls otherwise; it starts ranks with PRRTE, which has settings of its
 * own (docs.open-mpi.org, mpirun(1); docs.prrte.org). */
typedef struct Dialect {
    const char *rankfile_option, *rankfile; /* before the file's name */
    bool lists_hosts;                       /* a rankfile brings none by itself */
    const char *crowded_option;             /* or NULL: a word of --map-by */
    const char *no_cma, *no_cma_value;      /* ranks do not read each other's memory */
    const char *ssh_option, *ssh_args;
    const char *users_args, *users_agent; /* the same in the environment */
} Dialect;

static const Dialect dialects[] = {
    {"--rankfile", "", false, "--oversubscribe", "btl_vader_single_copy_mechanism",
     "none", "--mca", "plm_rsh_args", "OMPI_MCA_plm_rsh_args", "OMPI_MCA_plm_rsh_agent"},
    {"--map-by", "rankfile:file=", true, NULL, "smsc", "^cma", "--prtemca",
     "plm_ssh_args", "PRTE_MCA_plm_ssh_args", "PRTE_MCA_plm_ssh_agent"},
};

typedef struct Planner {
    Arena *mem;
    const LaunchOptions *o;
    const Machine *m;
    const Placement *p;
    const Dialect *words;
    LaunchPlan *plan;
    int cap;
    bool bound;    /* each rank on cores of its own, by mpirun */
    bool crowded;  /* more threads than cores */
    bool set_bind; /* the user's STATOR_BIND is there */
} Planner;

static void add(Planner *l, const char *word) {
    PUSH(l->mem, l->plan->argv, l->plan->argc, l->cap, word);
}

static void add_int(Planner *l, const char *word, int n) {
    add(l, word);
    add(l, arena_printf(l->mem, "%d", n));
}

static void add_mca(Planner *l, const char *name, const char *value) {
    add(l, "--mca");
    add(l, name);
    add(l, value);
}

static void add_export(Planner *l, const char *name, const char *value) {
    add(l, "-x");
    add(l, arena_printf(l->mem, "%s=%s", name, value));
}

/* Threads of a rank, and whether ranks can have cores of their own. Other hosts are taken
 * to be like this one, unless --threads says that they are not. */
static void plan_threads(Planner *l) {
    const Machine *m = l->m;
    const Placement *p = l->p;
    int threads = l->o->threads ? l->o->threads : MAX(1, m->cores / p->most);
    bool known = p->local || !l->o->threads;
    l->crowded = p->crowded || (known && (int64_t)threads * p->most > m->cores);
    /* mpirun does not see that taskset took cores away */
    l->bound = !l->crowded && !(p->local && m->narrowed);
    l->plan->threads = threads;
    if (known && (int64_t)threads * p->most > m->cores)
        l->plan->warning =
            arena_printf(l->mem,
                         "%d rank%s with %d thread%s each share %d core%s and wait for "
                         "each other: right "
                         "for trying out, slow for training",
                         p->most, p->most == 1 ? "" : "s", threads,
                         threads == 1 ? "" : "s", m->cores, m->cores == 1 ? "" : "s");
    else if (p->crowded)
        l->plan->warning =
            arena_printf(l->mem, "%d ranks on %d slots: no rank has cores of its own",
                         p->ranks, p->slots);
}

/* A line per rank: with its cores (a rankfile), or only its host (mapped by seq). Written
 * out so that ranks stand where they are wanted; mpirun would put its own host first. */
static void plan_seats(Planner *l) {
    const Placement *p = l->p;
    int threads = l->plan->threads;
    Text t = text_new(l->mem);
    for (int r = 0; r < p->ranks; r++) {
        const char *host = p->host[p->host_of[r]];
        int first = p->slot_of[r] * threads;
        if (!l->bound)
            text_add(&t, "%s\n", host);
        else if (threads == 1)
            text_add(&t, "rank %d=%s slot=%d\n", r, host, first);
        else
            text_add(&t, "rank %d=%s slot=%d-%d\n", r, host, first, first + threads - 1);
    }
    l->plan->seats = t.s;
}

/* "a:2,b:1": hosts and how many ranks each gets. */
static const char *host_list(const Planner *l) {
    const Placement *p = l->p;
    int *ranks = NEW_ARRAY(l->mem, int, (size_t)p->hosts);
    for (int r = 0; r < p->ranks; r++) ranks[p->host_of[r]]++;
    Text t = text_new(l->mem);
    for (int i = 0; i < p->hosts; i++)
        if (ranks[i]) text_add(&t, "%s%s:%d", t.n ? "," : "", p->host[i], ranks[i]);
    return t.s;
}

static void add_rankfile(Planner *l, const char *seats) {
    if (l->words->lists_hosts) {
        add(l, "--host");
        add(l, host_list(l));
    }
    add(l, l->words->rankfile_option);
    add(l, arena_printf(l->mem, "%s%s", l->words->rankfile, seats));
}

static void add_unbound(Planner *l, const char *seats) {
    bool crowded = l->p->crowded || l->p->most > l->m->cores;
    const char *option = l->words->crowded_option;
    const char *word = crowded && !option ? ":oversubscribe" : "";
    if (l->p->hosts) {
        add(l, "--hostfile");
        add(l, seats);
    }
    if (l->p->hosts || *word) {
        add(l, "--map-by");
        add(l, arena_printf(l->mem, "%s%s", l->p->hosts ? "seq" : "", word));
    }
    if (crowded && option) add(l, option);
    add(l, "--bind-to");
    add(l, "none");
}

static void add_placement(Planner *l, const char *dir) {
    const char *seats = path_join(l->mem, dir, LAUNCH_SEATS);
    if (l->p->hosts) plan_seats(l);
    if (l->bound && l->p->hosts) {
        add_rankfile(l, seats);
    } else if (l->bound) {
        add(l, "--map-by");
        add(l, arena_printf(l->mem, "slot:PE=%d", l->plan->threads));
        add(l, "--bind-to");
        add(l, "core");
    } else {
        add_unbound(l, seats);
    }
    if (l->crowded) add_mca(l, "mpi_yield_when_idle", "1");
    if (l->m->no_cma) add_mca(l, l->words->no_cma, l->words->no_cma_value);
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

/* A host that does not answer, or asks for a password, is said within seconds, not after
 * the minutes of TCP. What the user says about ssh counts more. */
static void add_ssh(Planner *l, char **env) {
    bool far = false;
    for (int i = 0; i < l->p->hosts; i++) far |= strcmp(l->p->host[i], l->m->host) != 0;
    if (!far || any_set(env, l->words->users_args, l->words->users_agent)) return;
    add(l, l->words->ssh_option);
    add(l, l->words->ssh_args);
    add(l, "-o ConnectTimeout=10 -o BatchMode=yes");
}

/* The user's own STATOR_* go along, by name; ours with their values. */
static void add_environment(Planner *l, const char *dir, char **env) {
    for (; *env; env++) {
        if (strncmp(*env, "STATOR_", 7) || is_variable(*env, "STATOR_THREADS") ||
            is_variable(*env, LAUNCH_REPORT_ENV) || is_variable(*env, LAUNCH_COLUMNS_ENV))
            continue;
        if (is_variable(*env, "STATOR_BIND")) l->set_bind = true;
        add(l, "-x");
        add(l, arena_strndup(l->mem, *env, strcspn(*env, "=")));
    }
    add_export(l, "STATOR_THREADS", arena_printf(l->mem, "%d", l->plan->threads));
    if (!l->bound && l->p->most > 1 && !l->set_bind) add_export(l, "STATOR_BIND", "off");
    add_export(l, LAUNCH_REPORT_ENV, dir);
    if (l->m->columns)
        add_export(l, LAUNCH_COLUMNS_ENV, arena_printf(l->mem, "%d", l->m->columns));
}

LaunchPlan *launch_plan(Arena *mem, const LaunchOptions *o, const Machine *m,
                        const Placement *p, const char *dir, char **user_env) {
    Planner l = {.mem = mem, .o = o, .m = m, .p = p, .plan = NEW(mem, LaunchPlan)};
    l.words = &dialects[m->mpi_major >= 5];
    plan_threads(&l);
    add(&l, "mpirun");
    if (m->root) add(&l, "--allow-run-as-root");
    add_int(&l, "-n", p->ranks);
    add_placement(&l, dir);
    add_ssh(&l, user_env);
    add_environment(&l, dir, user_env);
    add(&l, o->program ? o->program : m->self);
    for (int i = 0; i < o->words; i++) add(&l, o->command[i]);
    add(&l, NULL);
    l.plan->argc--;
    return l.plan;
}

static void add_quoted(Text *t, const char *word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789_./:=,@%+-";
    size_t n = strlen(word);
    if (n && strspn(word, plain) == n) {
        text_add_bytes(t, word, n);
        return;
    }
    text_add(t, "'");
    for (const char *s = word; *s; s++) {
        if (*s == '\'')
            text_add(t, "'\\''");
        else
            text_add_bytes(t, s, 1);
    }
    text_add(t, "'");
}

char *shell_line(Arena *mem, const LaunchPlan *plan) {
    Text t = text_new(mem);
    for (int i = 0; i < plan->argc; i++) {
        if (i) text_add(&t, " ");
        add_quoted(&t, plan->argv[i]);
    }
    return t.s;
}
