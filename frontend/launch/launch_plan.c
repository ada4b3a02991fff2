/* launch_plan.c - the line for mpirun: where ranks go, what they are bound to, and which
 * environment they get. */
#include "frontend/launch/launch.h"
#include "frontend/launch/launch_parts.h"
#include <stdlib.h>

typedef struct Planner {
    Arena *mem;
    const LaunchOptions *o;
    const Machine *m;
    const Placement *p;
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

static void add_placement(Planner *l, const char *dir) {
    const char *seats = path_join(l->mem, dir, LAUNCH_SEATS);
    if (l->p->hosts) plan_seats(l);
    if (l->bound && l->p->hosts) {
        add(l, "--rankfile");
        add(l, seats);
    } else if (l->bound) {
        add(l, "--map-by");
        add(l, arena_printf(l->mem, "slot:PE=%d", l->plan->threads));
        add(l, "--bind-to");
        add(l, "core");
    } else {
        if (l->p->hosts) {
            add(l, "--hostfile");
            add(l, seats);
            add(l, "--map-by");
            add(l, "seq");
        }
        if (l->p->crowded || l->p->most > l->m->cores) add(l, "--oversubscribe");
        add(l, "--bind-to");
        add(l, "none");
    }
    if (l->crowded) add_mca(l, "mpi_yield_when_idle", "1");
    if (l->m->no_cma) add_mca(l, "btl_vader_single_copy_mechanism", "none");
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
    if (far && !any_set(env, "OMPI_MCA_plm_rsh_args", "OMPI_MCA_plm_rsh_agent"))
        add_mca(l, "plm_rsh_args", "-o ConnectTimeout=10 -o BatchMode=yes");
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
