/* Tests of stator launch without starting anything: who goes where, and the line for mpirun. */
#include "frontend/launch/launch.h"
#include "driven.h"
#include "frontend/config/commands.h"
#include "frontend/launch/launch_parts.h"
#include <sys/stat.h>

/* A machine of 8 cores called here, not root. */
static ThisHost eight(void) {
    return (ThisHost){
        .cores = 8, .nodes = 1, .mpi_major = 4, .host = "here", .self = "/bin/stator"};
}

static char *no_env[] = {NULL};

static LaunchPlan *plan_of(const LaunchOptions *o, const ThisHost *m, char **env) {
    return launch_plan(mem(), o, m, placement_make(mem(), o, m), env);
}

/* The line for `stator launch -n ranks --threads threads train c.yaml`. */
static const char *line(int ranks, int threads, const ThisHost *m) {
    char *command[] = {"train", "c.yaml"};
    LaunchOptions o = {
        .ranks = ranks, .threads = threads, .command = command, .words = 2};
    return shell_line(mem(), plan_of(&o, m, no_env));
}

#define ENV(threads) "-x STATOR_THREADS=" threads " -x STATOR_LAUNCHED=1 "
#define END          "/bin/stator train c.yaml"

/* ---- the line ---- */

TEST(ranks_of_another_mpi) {
    ThisHost m = eight();
    m.mpi_library = "Open MPI v5.0.11";
    EXPECT_STR(line(4, 0, &m), "mpirun -n 4 --bind-to none " ENV("2") END);
    m.mpi_library = "MPICH Version: 4.0.2";
    EXPECT_FAIL(
        line(4, 0, &m), EXIT_CONFIG,
        "another MPI (MPICH Version: 4.0.2): start the ranks with its own mpiexec "
        "-n 4 stator train ...");
    LaunchOptions other = {.ranks = 4, .program = "/bin/true"};
    EXPECT_PART(shell_line(mem(), plan_of(&other, &m, no_env)), "mpirun -n 4 ");
}

TEST(ranks_share_the_cores) {
    ThisHost m = eight();
    EXPECT_STR(line(4, 0, &m), "mpirun -n 4 --bind-to none " ENV("2") END);
    EXPECT_STR(line(3, 0, &m), "mpirun -n 3 --bind-to none " ENV("2") END);
    EXPECT_STR(line(2, 3, &m), "mpirun -n 2 --bind-to none " ENV("3") END);
    EXPECT_STR(line(4, 3, &m), "mpirun -n 4 --bind-to none " ENV("3") END);
}

TEST(more_ranks_than_cores) {
    ThisHost m = eight();
    EXPECT_STR(line(9, 0, &m),
               "mpirun -n 9 --map-by :oversubscribe --bind-to none " ENV("1") END);
}

TEST(root_and_forbidden_copies) {
    ThisHost m = eight();
    m.root = m.no_cma = true;
    EXPECT_STR(line(8, 0, &m), "mpirun --allow-run-as-root -n 8 --bind-to none --mca "
                               "btl_vader_single_copy_mechanism none " ENV("1") END);
    m.mpi_major = 5;
    EXPECT_STR(
        line(8, 0, &m),
        "mpirun --allow-run-as-root -n 8 --bind-to none --mca smsc '^cma' " ENV("1") END);
}

TEST(ranks_of_an_allocation_of_nodes) {
    ThisHost m = eight();
    m.nodes = 4;
    EXPECT_STR(line(8, 0, &m), "mpirun -n 8 --bind-to none " ENV("4") END);
}

/* mpirun fills the first node before the next. */
TEST(ranks_of_an_allocation_that_is_not_full) {
    static const struct {
        const char *tasks;
        int ranks, threads;
    } way[] = {{"8(x2)", 2, 4}, {"4(x2)", 6, 2},    {"1,4(x2),2", 3, 4}, {"2(x2)", 4, 4},
               {"8", 2, 4},     {"2(x2),1", 10, 2}, {"?", 4, 4}};
    ThisHost m = eight();
    m.nodes = 2;
    for (int i = 0; i < ARRAY_LEN(way); i++) {
        m.tasks = way[i].tasks;
        EXPECT_PART(line(way[i].ranks, 0, &m),
                    arena_printf(mem(), "STATOR_THREADS=%d ", way[i].threads));
    }
}

/* Without room in Slurm's own tasks mpirun would refuse the ranks, however many cores there are;
 * with oversubscription it refuses none, and knows that they share cores. */
TEST(tasks_of_slurm_that_are_too_few) {
    static const struct {
        const char *tasks, *hosts, *line; /* of hosts: NULL: none */
        int nodes, ranks;
    } way[] = {{"1", NULL, "SLURM_TASKS_PER_NODE='2(x1)' mpirun -n 2", 1, 2},
               {"1(x2)", NULL, "SLURM_TASKS_PER_NODE='3(x2)' mpirun", 2, 5},
               {"1(x2)", "b slots=2\na slots=2\n", "SLURM_TASKS_PER_NODE='2(x2)' ", 2, 2},
               {"4,1", "a slots=3\nb slots=1\n", "SLURM_TASKS_PER_NODE='3(x2)' ", 2, 4},
               {"1(x2)", "b\na\n", "SLURM_TASKS_PER_NODE='8(x2)' ", 2, 9},
               {"2", NULL, "mpirun -n 2 ", 1, 2},
               {"4,1", NULL, "mpirun -n 5 ", 2, 5},
               {"2(x2)", "b slots=2\na slots=2\n", "mpirun -n 4 ", 2, 4},
               {"1", NULL, "mpirun -n 9 --map-by :oversubscribe ", 1, 9},
               {NULL, NULL, "mpirun -n 2 ", 1, 2}};
    char *command[] = {"train"};
    ThisHost m = eight();
    for (int i = 0; i < ARRAY_LEN(way); i++) {
        m.tasks = way[i].tasks;
        m.nodes = way[i].nodes;
        const char *hosts = way[i].hosts ? in_temp("hosts") : NULL;
        if (hosts) write_text(hosts, way[i].hosts);
        LaunchOptions o = {.ranks = way[i].ranks,
                           .threads = i % 3,
                           .hostfile = hosts,
                           .command = command,
                           .words = 1};
        const char *got = shell_line(mem(), plan_of(&o, &m, no_env));
        if (strncmp(got, way[i].line, strlen(way[i].line)))
            test_fail(__FILE__, __LINE__, "%s, wanted %s", got, way[i].line);
    }
}

TEST(words_for_a_shell) {
    ThisHost m = eight();
    char *command[] = {"it's", "a b", "", "$x"};
    LaunchOptions o = {.ranks = 1, .program = "p", .command = command, .words = 4};
    const char *s = shell_line(mem(), plan_of(&o, &m, no_env));
    EXPECT_PART(s, " p 'it'\\''s' 'a b' '' '$x'");
}

TEST(settings_go_along) {
    ThisHost m = eight();
    char *env[] = {"STATOR_CACHE=/c", "HOME=/h",           "STATOR_THREADS=7",
                   "STATOR_BIND=on",  "STATOR_LAUNCHED=2", NULL};
    char *command[] = {"train", "c.yaml"};
    LaunchOptions o = {.ranks = 9, .command = command, .words = 2};
    EXPECT_STR(shell_line(mem(), plan_of(&o, &m, env)),
               "mpirun -n 9 --map-by :oversubscribe --bind-to none -x STATOR_CACHE -x "
               "STATOR_BIND " ENV("1") END);
}

TEST(crowded_ranks_are_warned_of) {
    ThisHost m = eight();
    LaunchOptions o = {.ranks = 9, .program = "p"};
    EXPECT(
        strstr(plan_of(&o, &m, no_env)->warning, "9 ranks with 1 thread each share 8"));
    o.ranks = 8;
    EXPECT(!plan_of(&o, &m, no_env)->warning);
}

/* ---- hosts ---- */

static LaunchPlan *plan_on(const char *hosts, int ranks, int threads, ThisHost *m) {
    const char *path = in_temp("hosts");
    write_text(path, hosts);
    LaunchOptions o = {
        .ranks = ranks, .threads = threads, .hostfile = path, .program = "p"};
    return plan_of(&o, m, no_env);
}

#define SSH "--mca plm_rsh_args '-o ConnectTimeout=10 -o BatchMode=yes' "

TEST(hosts_in_the_order_of_their_lines) {
    ThisHost m = eight();
    LaunchPlan *p = plan_on("# two\nb slots=2\n\n here slots=1 # this\n", 3, 0, &m);
    EXPECT_STR(
        shell_line(mem(), p),
        "mpirun -n 3 --host b,b,here --map-by seq --bind-to none " SSH ENV("4") "p");
    EXPECT(!p->warning);
}

/* The user's way to other hosts stays. */
TEST(ssh_gives_up_soon) {
    static char *own[2][2] = {{"OMPI_MCA_plm_rsh_args=-v", NULL},
                              {"PRTE_MCA_plm_ssh_agent=x", NULL}};
    static const char *const words[] = {
        SSH, "--prtemca plm_ssh_args '-o ConnectTimeout=10 -o BatchMode=yes' "};
    write_text(in_temp("hosts"), "b\n");
    LaunchOptions o = {.ranks = 1, .hostfile = in_temp("hosts"), .program = "p"};
    ThisHost m = eight();
    for (int five = 0; five < 2; five++) {
        m.mpi_major = 4 + five;
        EXPECT_PART(shell_line(mem(), plan_of(&o, &m, no_env)), words[five]);
        EXPECT(!strstr(shell_line(mem(), plan_of(&o, &m, own[five])), "sh_args"));
    }
}

TEST(a_host_that_stands_there_twice) {
    ThisHost m = eight();
    const char *s =
        shell_line(mem(), plan_on("a slots=2\nb slots=1\na slots=2\n", 5, 0, &m));
    EXPECT_PART(s, "--host a,a,b,a,a ");
    EXPECT_PART(s, "STATOR_THREADS=2");
}

TEST(a_host_without_slots_gets_a_rank_a_core) {
    ThisHost m = eight();
    EXPECT_PART(shell_line(mem(), plan_on("a\nb\n", 9, 1, &m)),
                "--host a,a,a,a,a,a,a,a,b ");
}

TEST(more_ranks_than_slots) {
    ThisHost m = eight();
    LaunchPlan *p = plan_on("a slots=1\nb slots=2\n", 5, 0, &m);
    EXPECT_PART(shell_line(mem(), p), "--host a,b,b,a,b --map-by seq ");
    EXPECT_PART(p->warning, "5 ranks on 3 slots");
}

TEST(more_hosts_than_a_word_can_hold) {
    ThisHost m = eight();
    EXPECT_FAIL(plan_on("a-host-with-a-name slots=65536\n", 10000, 1, &m), EXIT_CONFIG,
                "the hosts of 10000 ranks");
}

TEST(hostfiles_that_say_nothing_good) {
    ThisHost m = eight();
    EXPECT_FAIL(plan_on("# none\n", 1, 0, &m), EXIT_CONFIG, "names no host");
    EXPECT_FAIL(plan_on("a\nb slots=0\n", 1, 0, &m), EXIT_CONFIG, ":2:1: error: slots=0");
    EXPECT_FAIL(plan_on("a slots=99999999999\n", 1, 0, &m), EXIT_CONFIG, "slots=9999");
    EXPECT_FAIL(plan_on("a slot=2\n", 1, 0, &m), EXIT_CONFIG,
                "'slot=2' is not understood");
    EXPECT_FAIL(plan_on("-oProxyCommand=x\n", 1, 0, &m), EXIT_CONFIG, "name of a host");
}

TEST(ranks_of_a_rank_table) {
    ThisHost m = eight();
    const char *path = in_temp("table.json");
    write_text(path, "{\"version\":\"1.0\",\"server_count\":\"2\",\"server_list\":["
                     "{\"server_id\":\"10.0.0.9\",\"device\":["
                     "{\"device_id\":\"1\",\"rank_id\":\"2\"},"
                     "{\"device_id\":\"0\",\"rank_id\":\"1\"}]},"
                     "{\"server_id\":\"10.0.0.8\",\"device\":["
                     "{\"device_id\":\"5\",\"rank_id\":\"0\"}]}],"
                     "\"status\":\"completed\"}");
    LaunchOptions o = {.rank_table = path, .program = "p"};
    LaunchPlan *p = plan_of(&o, &m, no_env);
    EXPECT_PART(shell_line(mem(), p), "mpirun -n 3 --host 10.0.0.8,10.0.0.9,10.0.0.9 ");
    o.ranks = 4;
    EXPECT_FAIL(plan_of(&o, &m, no_env), EXIT_CONFIG, "-n is 4, but");
}

/* ---- options ---- */

#define REFUSED(words, part)                                                             \
    do {                                                                                 \
        RUN_EXPECT(EXIT_CONFIG, "launch " words);                                        \
        SAID_EXPECT(part);                                                               \
    } while (0)

TEST(options_that_make_no_sense) {
    REFUSED("", "what to launch?");
    REFUSED("-n 2", "what to launch?");
    REFUSED("train c.yaml", "how many ranks?");
    REFUSED("--hostfile h train c.yaml", "how many ranks?");
    REFUSED("-n 0 train c.yaml", "-n 0: write a whole number from 1");
    REFUSED("-n 2x train c.yaml", "-n 2x");
    REFUSED("-n", "-n needs a value");
    REFUSED("-n 2 --timeout 0 train c.yaml", "--timeout 0");
    REFUSED("-n 2 --treads 2 train c.yaml", "did you mean --threads?");
    REFUSED("-n 2 --hostfile a --rank-table b train c.yaml", "leave one out");
    REFUSED("-n 2 --hostfile nowhere train c.yaml", "nowhere");
    REFUSED("--rank-table nowhere.json train c.yaml", "nowhere.json");
    REFUSED("-n 2 launch -n 2 train", "a rank cannot launch ranks");
    REFUSED("-n 2 train c.yaml : x", "ends a command for mpirun");
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    REFUSED("-n 2 train c.yaml", "already a rank");
}

/* Their copies would race on one output. */
TEST(commands_that_work_alone) {
    static const char *const alone[] = {
        "convert",  "tokenizer", "preprocess", "search",     "layer",
        "simulate", "plan",      "inspect",    "completion", "help"};
    static const char *const together[] = {"train", "eval", "predict", "calibrate"};
    for (int i = 0; i < ARRAY_LEN(alone); i++) {
        RUN_EXPECT(EXIT_CONFIG,
                   arena_printf(mem(), "launch -n 2 --dry-run %s x", alone[i]));
        SAID_EXPECT(
            arena_printf(mem(), "run it without launch, stator %s ...", alone[i]));
        SAID_EXPECT("on ranks run train, calibrate, eval, predict,");
    }
    for (int i = 0; i < ARRAY_LEN(together); i++)
        RUN_EXPECT(0, arena_printf(mem(), "launch -n 2 --dry-run %s x", together[i]));
    RUN_EXPECT(0, "launch -n 2 --dry-run --program convert x");
}

TEST(a_dry_run_prints_and_starts_nothing) {
    write_text(in_temp("hosts"), "nobody-here slots=2\n");
    RUN_EXPECT(0, arena_printf(mem(),
                               "launch -n 2 --threads=3 --hostfile %s --dry-run "
                               "train nowhere.yaml",
                               in_temp("hosts")));
    SAID_EXPECT("-n 2 --host nobody-here,nobody-here --map-by seq");
    SAID_EXPECT("/stator train nowhere.yaml\n");
}

TEST(help_of_launch) {
    RUN_EXPECT(0, "launch --help");
    SAID_EXPECT("--rank-table");
    RUN_EXPECT(0, "help launch");
}

TEST(help_of_every_command) {
    static const char *const commands[] = {"train",     "plan",       "predict",
                                           "convert",   "preprocess", "inspect",
                                           "tokenizer", "launch"};
    for (int i = 0; i < ARRAY_LEN(commands); i++)
        RUN_EXPECT(0, arena_printf(mem(), "%s --help", commands[i]));
}

/* ---- run_distribute.sh ---- */

/* Runs the script with these words behind CONFIG; the program it finds prints its words.
 */
static int script(const char *words) {
    write_text(in_temp("stator"), "#!/bin/sh\necho \"$*\"\n");
    EXPECT(chmod(in_temp("stator"), 0755) == 0);
    write_text(in_temp("t.json"), "{}");
    write_text(in_temp("c.yaml"), "seed: 1\n");
    const char *dir = temp_dir();
    int status = system(arena_printf(
        mem(),
        "cd '%s' && STATOR=./stator bash '%s/../scripts/run_distribute.sh' t.json "
        "c.yaml %s > output.txt 2>&1",
        dir, tests_dir(), words));
    return WEXITSTATUS(status);
}

TEST(the_script_starts_all_ranks_on_the_first_host) {
    EXPECT_INT(script("[0,8] train 32 --seed 3"), 0);
    EXPECT_STR(said(), "launch -n 32 --rank-table t.json train c.yaml --seed 3\n");
    EXPECT_INT(script("[8,16] train 32"), 0);
    EXPECT_PART(said(), "the host of rank 0 starts all ranks, 8 to 15 here");
    EXPECT(!strstr(said(), "launch"));
}

TEST(the_script_on_one_host) {
    EXPECT_INT(script("[0,8] predict 8"), 0);
    EXPECT_STR(said(), "launch -n 8 predict c.yaml\n");
    EXPECT_INT(script("[2,4] finetune --seed 3"), 0);
    EXPECT_STR(said(), "launch -n 2 train c.yaml --seed 3\n");
}

TEST(words_that_the_script_refuses) {
    EXPECT(script("[0,8]") == 2 && strstr(said(), "write run_distribute.sh RANK_TABLE"));
    EXPECT(script("0,8 train 8") == 2 && strstr(said(), "as [S,E], not '0,8'"));
    EXPECT(script("[4,4] train 8") == 2 && strstr(said(), "holds no rank"));
    EXPECT(script("[0,9] train 8") == 2 && strstr(said(), "beyond 8 ranks"));
    EXPECT(script("[0,8] export 8") == 2 && strstr(said(), "not 'export'"));
    EXPECT(script("[0,8] train 8x") == 2 && strstr(said(), "no number of ranks"));
}
