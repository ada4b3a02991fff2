/* cmd_launch.c - the command launch: its options, and --dry-run. */
#include "frontend/config/commands.h"
#include "frontend/launch/launch.h"
#include "frontend/launch/launch_parts.h"
#include "frontend/launch/rank_table.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>

extern char **environ;

static const char usage_text[] =
    "stator launch -n N [options] COMMAND ...\n"
    "stator launch --rank-table RANK_TABLE.json [options] COMMAND ...\n\n"
    "Runs a command of stator on N ranks under Open MPI's mpirun; for instance\n"
    "  stator launch -n 4 train conf.yaml --runner_config.max_steps 100\n"
    "  -n N                 ranks (-np too)\n"
    "  --hostfile FILE      hosts, a line NAME slots=N each; else this machine, or the\n"
    "                       batch system's allocation\n"
    "  --rank-table FILE    ranks and their servers, as MindSpore's tools write it\n"
    "  --threads T          of a rank; else the cores of a host over its ranks\n"
    "  --timeout SECONDS    then SIGTERM, and 60 s later the end\n"
    "  --dry-run            print the line for mpirun, start nothing\n"
    "  --program FILE ...   another program than stator; all that follows are its words\n"
    "Every rank gets cores of its own if there are enough. Rank 0 is at the terminal,\n"
    "the others write to logs/ in the run folder. SIGINT, SIGTERM and SIGUSR1 ask the\n"
    "ranks to save and end, a second one ends them.\n"
    "Exit codes: those of the command; 128 + signal for a rank that was killed.\n";

enum { MAX_THREADS = 4096, MAX_TIMEOUT_SECONDS = 1000000000 };

static int whole_number(const char *option, const char *s, int high) {
    char *end;
    errno = 0;
    long n = strtol(s, &end, 10);
    if (errno || end == s || *end || n < 1 || n > high)
        fail(EXIT_CONFIG, "%s %.100s: write a number from 1 to %d", option, s, high);
    return (int)n;
}

static double seconds_of(const char *option, const char *s) {
    char *end;
    double v = strtod(s, &end);
    if (end == s || *end || !(v > 0) || v > MAX_TIMEOUT_SECONDS)
        fail(EXIT_CONFIG, "%s %.100s: write seconds, above 0 and up to %d", option, s,
             MAX_TIMEOUT_SECONDS);
    return v;
}

static void set_ranks(LaunchOptions *o, const char *name, const char *value) {
    o->ranks = whole_number(name, value, MAX_RANKS);
}
static void set_threads(LaunchOptions *o, const char *name, const char *value) {
    o->threads = whole_number(name, value, MAX_THREADS);
}
static void set_timeout(LaunchOptions *o, const char *name, const char *value) {
    o->timeout_seconds = seconds_of(name, value);
}
static void set_hostfile(LaunchOptions *o, const char *name, const char *value) {
    (void)name;
    o->hostfile = value;
}
static void set_rank_table(LaunchOptions *o, const char *name, const char *value) {
    (void)name;
    o->rank_table = value;
}
static void set_program(LaunchOptions *o, const char *name, const char *value) {
    if (!*value || *value == '-') fail(EXIT_CONFIG, "%s needs a program", name);
    o->program = value;
}

static const struct {
    const char *name;
    void (*set)(LaunchOptions *o, const char *name, const char *value);
} options[] = {
    {"-n", set_ranks},
    {"-np", set_ranks},
    {"--threads", set_threads},
    {"--timeout", set_timeout},
    {"--hostfile", set_hostfile},
    {"--rank-table", set_rank_table},
    {"--rank_table", set_rank_table},
    {"--program", set_program},
};

/* Takes the option at argv[i], written NAME VALUE or NAME=VALUE; returns the number of
 * the last word it took. */
static int take_option(LaunchOptions *o, int argc, char **argv, int i) {
    const char *names[ARRAY_LEN(options)];
    for (int k = 0; k < ARRAY_LEN(options); k++) {
        const char *name = names[k] = options[k].name;
        size_t n = strlen(name);
        if (strncmp(argv[i], name, n) || (argv[i][n] && argv[i][n] != '=')) continue;
        if (argv[i][n]) {
            options[k].set(o, name, argv[i] + n + 1);
            return i;
        }
        if (i + 1 == argc) fail(EXIT_CONFIG, "%s needs a value", name);
        options[k].set(o, name, argv[i + 1]);
        return i + 1;
    }
    const char *near = nearest_name(argv[i], names, ARRAY_LEN(options));
    fail(EXIT_CONFIG,
         "unknown option %.100s of launch%s%s%s; options of the command "
         "stand behind its name",
         argv[i], near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

/* False: only the help was wanted. */
static bool read_options(LaunchOptions *o, int argc, char **argv) {
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return false;
        if (!strcmp(argv[i], "--")) {
            i++;
            break;
        }
        if (!strcmp(argv[i], "--dry-run"))
            o->dry_run = true;
        else
            i = take_option(o, argc, argv, i);
        if (!o->program) continue;
        i++; /* what follows are the program's words, options too */
        break;
    }
    o->command = argv + i;
    o->words = argc - i;
    return true;
}

static void check_options(LaunchOptions *o) {
    const char *threads = getenv("STATOR_THREADS");
    const char *omp = getenv("OMP_NUM_THREADS");
    if (threads && *threads && !o->threads) set_threads(o, "STATOR_THREADS", threads);
    if (omp && *omp && !o->threads) {
        char first[16] = "";
        snprintf(first, sizeof first, "%.*s", (int)strcspn(omp, ","), omp);
        set_threads(o, "OMP_NUM_THREADS", first);
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
    LaunchOptions o = {0};
    if (!read_options(&o, argc, argv)) {
        fputs(usage_text, stdout);
        return 0;
    }
    check_options(&o);
    Arena *mem = arena_new();
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
