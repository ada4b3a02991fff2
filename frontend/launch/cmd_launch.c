/* cmd_launch.c - the command launch: its options, and --dry-run. */
#include "frontend/config/commands.h"
#include "frontend/config/options.h"
#include "frontend/launch/launch.h"
#include "frontend/launch/launch_parts.h"
#include "runtime/comm/comm_launcher.h"
#include "runtime/core/rt.h"
#include <stdlib.h>

extern char **environ;

static LaunchOptions options_of(const Options *o) {
    return (LaunchOptions){.ranks = (int)option_int(o, "-n", 0),
                           .threads = (int)option_int(o, "--threads", rt_threads_asked()),
                           .timeout_seconds = option_number(o, "--timeout"),
                           .hostfile = option_text(o, "--hostfile"),
                           .rank_table = option_text(o, "--rank-table"),
                           .program = option_text(o, "--program"),
                           .dry_run = option_given(o, "--dry-run"),
                           .command = o->word,
                           .words = o->nwords};
}

void launch_refuse_alone(const char *name, const char *launcher) {
    Arena *mem = arena_new();
    Text ranks = text_new(mem);
    bool alone = false;
    for (int c = 0; c < N_COMMANDS; c++) {
        bool together = command_table[c].flags & COMMAND_RANKS;
        if (together)
            text_add(&ranks, "%s%s", ranks.n ? ", " : "", command_table[c].name);
        alone |= !together && !strcmp(command_table[c].name, name);
    }
    if (alone)
        fail(EXIT_CONFIG,
             "stator %s does its work in one process: run it without %s, stator %s "
             "...; on ranks run %s, and other programs with --program",
             name, launcher, name, ranks.s);
    arena_free(mem);
}

static void check_options(const LaunchOptions *o) {
    if (o->hostfile && o->rank_table)
        fail(EXIT_CONFIG, "--hostfile and --rank-table both say where the ranks go; "
                          "leave one out");
    if (!o->program && !o->words)
        fail(EXIT_CONFIG, "what to launch? write stator launch -n N train conf.yaml");
    if (!o->program && !strcmp(o->command[0], "launch"))
        fail(EXIT_CONFIG, "a rank cannot launch ranks; leave the second launch out");
    if (!o->program) launch_refuse_alone(o->command[0], "launch");
    for (int i = 0; i < o->words; i++)
        if (!strcmp(o->command[i], ":"))
            fail(EXIT_CONFIG, "':' as a word of its own ends a command for mpirun; leave "
                              "it out");
    if (getenv(LAUNCH_ENV) || getenv("OMPI_COMM_WORLD_RANK"))
        fail(EXIT_CONFIG, "this process is already a rank of mpirun; start stator launch "
                          "once, without mpirun");
    /* of srun --pty only one does anything: the user's shell */
    int64_t tasks = getenv("SLURM_PTY_PORT") ? 0 : launcher_slurm_tasks();
    if (tasks > 1)
        fail(EXIT_CONFIG,
             "this process is one of %lld tasks of srun; start stator launch once, "
             "without srun",
             (long long)tasks);
}

int cmd_launch(int argc, char **argv) {
    const Options *given = options_take(COMMAND_launch, argc, argv);
    if (!given) return 0;
    Arena *mem = given->mem;
    LaunchOptions o = options_of(given);
    check_options(&o);
    ThisHost m = this_host(mem);
    Placement *p = placement_make(mem, &o, &m);
    LaunchPlan *plan = launch_plan(mem, &o, &m, p, environ);
    if (plan->warning) fprintf(stderr, "stator: warning: %s\n", plan->warning);
    int code = 0;
    if (o.dry_run)
        puts(shell_line(mem, plan));
    else
        code = launch_run(mem, &o, &m, p, plan);
    arena_free(mem);
    return code;
}
