/* cmd_launch.c - the command launch: its options, and --dry-run. */
#include "frontend/config/commands.h"
#include "frontend/config/options.h"
#include "frontend/launch/launch.h"
#include "frontend/launch/launch_parts.h"
#include <stdlib.h>

extern char **environ;

static int threads_of(const char *variable, const char *text) {
    return (int)option_int_of(COMMAND_launch, "--threads", variable, text);
}

static LaunchOptions options_of(const Options *o) {
    return (LaunchOptions){.ranks = (int)option_int(o, "-n", 0),
                           .threads = (int)option_int(o, "--threads", 0),
                           .timeout_seconds = option_number(o, "--timeout", 0),
                           .hostfile = option_text(o, "--hostfile"),
                           .rank_table = option_text(o, "--rank-table"),
                           .program = option_text(o, "--program"),
                           .dry_run = option_given(o, "--dry-run"),
                           .command = o->word,
                           .words = o->nwords};
}

static void check_options(LaunchOptions *o) {
    const char *threads = getenv("STATOR_THREADS");
    const char *omp = getenv("OMP_NUM_THREADS");
    if (threads && *threads && !o->threads)
        o->threads = threads_of("STATOR_THREADS", threads);
    if (omp && *omp && !o->threads) {
        char first[16] = "";
        snprintf(first, sizeof first, "%.*s", (int)strcspn(omp, ","), omp);
        o->threads = threads_of("OMP_NUM_THREADS", first);
    }
    if (o->hostfile && o->rank_table)
        fail(EXIT_CONFIG, "--hostfile and --rank-table both say where the ranks go; "
                          "leave one out");
    if (!o->program && !o->words)
        fail(EXIT_CONFIG, "what to launch? write stator launch -n N train conf.yaml");
    if (!o->program && !strcmp(o->command[0], "launch"))
        fail(EXIT_CONFIG, "a rank cannot launch ranks; leave the second launch out");
    for (int i = 0; i < o->words; i++)
        if (!strcmp(o->command[i], ":"))
            fail(EXIT_CONFIG, "':' as a word of its own ends a command for mpirun; leave "
                              "it out");
    if (getenv(LAUNCH_REPORT_ENV) || getenv("OMPI_COMM_WORLD_RANK"))
        fail(EXIT_CONFIG, "this process is already a rank of mpirun; start stator launch "
                          "once, without mpirun");
}

static void print_plan(Arena *mem, const LaunchOptions *o, const Machine *m,
                       const Placement *p) {
    static const char dir[] = "/tmp/stator-launch-XXXXXX";
    LaunchPlan *plan = launch_plan(mem, o, m, p, dir, environ);
    if (plan->warning) fprintf(stderr, "stator: warning: %s\n", plan->warning);
    if (plan->seats) {
        printf("# %s/" LAUNCH_SEATS " holds:\n", dir);
        for (const char *s = plan->seats; *s; s += strcspn(s, "\n") + 1)
            printf("#   %.*s\n", (int)strcspn(s, "\n"), s);
    }
    puts(shell_line(mem, plan));
}

int cmd_launch(int argc, char **argv) {
    Arena *mem = arena_new();
    const Options *given = options_read(mem, COMMAND_launch, argc, argv);
    if (!given) {
        arena_free(mem);
        return 0;
    }
    LaunchOptions o = options_of(given);
    check_options(&o);
    Machine m = machine_find(mem);
    Placement *p = placement_make(mem, &o, &m);
    int code = 0;
    if (o.dry_run)
        print_plan(mem, &o, &m, p);
    else
        code = launch_run(mem, &o, &m, p);
    arena_free(mem);
    return code;
}
