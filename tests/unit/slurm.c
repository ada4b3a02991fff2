/* Tests of stator under Slurm, without one: by the environment of its tasks, the name of their
 * parent, and the batch scripts of docs/launch.md with other programs in place of Slurm's. */
#include "driven.h"
#include <sys/prctl.h>
#include <sys/stat.h>

/* One of the tasks of a step, as Slurm's own process starts it. */
static void be_in_step(const char *step, const char *tasks) {
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_STEP_ID", step, 1);
    setenv("SLURM_STEP_NUM_TASKS", tasks, 1);
    EXPECT_INT(prctl(PR_SET_NAME, "slurmstepd"), 0);
}

/* ---- what a task may be ---- */

static const char dry_launch[] = "launch -n 2 --dry-run train x";

TEST(launch_is_started_once) {
    be_in_step("0", "3");
    RUN_EXPECT(EXIT_CONFIG, dry_launch);
    SAID_EXPECT("one of 3 tasks of srun; start stator launch once, without srun");
    setenv("SLURM_PTY_PORT", "4711", 1);
    RUN_EXPECT(0, dry_launch);
    unsetenv("SLURM_PTY_PORT");
    be_in_step("0", "1");
    RUN_EXPECT(0, dry_launch);
    be_in_step("4294967291", "3"); /* the script of sbatch */
    RUN_EXPECT(0, dry_launch);
}

static bool refused(const char *words) {
    RUN_EXPECT(EXIT_CONFIG, words);
    return strstr(said(), "does its work in one process: run it without srun") != NULL;
}

TEST(commands_that_work_alone_on_each_task) {
    static const char *const alone[] = {"plan x", "search x", "simulate x"};
    for (int i = 0; i < ARRAY_LEN(alone); i++) {
        be_in_step("0", "2");
        EXPECT(refused(alone[i]));
        EXPECT_INT(prctl(PR_SET_NAME, "bash"), 0); /* a script of the user */
        EXPECT(!refused(alone[i]));
        be_in_step("1", "1");
        EXPECT(!refused(alone[i]));
    }
    be_in_step("0", "2");
    RUN_EXPECT(0, "help plan");
}

/* ---- the scripts of the page ---- */

static const char *page(void) {
    const char *path = path_join(mem(), tests_dir(), "../docs/launch.md");
    return file_read(mem(), path, 1 << 20, NULL, EXIT_DATA);
}

/* Adds the lines of a page from `from` as far as `to`, or as they are indented. */
static const char *add_lines(Text *t, const char *from, const char *to) {
    EXPECT(from);
    for (; !strncmp(from, "    ", 4) && from != to; from += strcspn(from, "\n") + 1)
        text_add(t, "%.*s\n", (int)strcspn(from + 4, "\n"), from + 4);
    return from;
}

static void program(const char *name, const char *body) {
    const char *path = in_temp(name);
    write_text(path, arena_printf(mem(), "#!/bin/bash\n%s", body));
    EXPECT_INT(chmod(path, 0755), 0);
}

/* Both scripts, and what they call. */
static void make_scripts(void) {
    Text srun = text_new(mem()), launch = text_new(mem());
    const char *all = page(), *first = strstr(all, "    #!/bin/bash\n    #SBATCH");
    const char *run = strstr(all, "    srun "), *code = strstr(all, "    code=$?");
    add_lines(&srun, first, NULL);
    add_lines(&launch, first, run);
    add_lines(&launch, strstr(all, "    trap 'kill"), NULL);
    add_lines(&launch, code + strlen("    code=$?\n"), NULL);
    program("srun.sh", srun.s);
    program("launch.sh", launch.s);
    program("srun", "echo \"$*\" > words\nexit $CODE\n");
    program("scontrol", "echo \"$*\" > requeued\n");
    program("stator", "echo \"$*\" > words\n"
                      "trap 'sleep 0.5; echo > saved; exit 75' USR1\n"
                      "echo > started\nwhile sleep 0.02; do :; done\n");
    setenv("PATH", arena_printf(mem(), "%s:%s", temp_dir(), getenv("PATH")), 1);
    setenv("SLURM_JOB_ID", "7", 1);
    setenv("SLURM_NTASKS", "4", 1);
    setenv("SLURM_CPUS_PER_TASK", "3", 1);
    EXPECT_INT(chdir(temp_dir()), 0);
}

static pid_t start_script(const char *name) {
    static const char *const made[] = {"words", "requeued", "started", "saved"};
    for (int i = 0; i < ARRAY_LEN(made); i++) unlink(in_temp(made[i]));
    pid_t pid = fork();
    EXPECT(pid >= 0);
    if (pid) return pid;
    execl("/bin/bash", "bash", name, (char *)NULL);
    _exit(126);
}

/* What the file holds; "": there is none. */
static const char *text_of(const char *name) {
    const char *path = in_temp(name);
    return file_exists(path) ? file_read(mem(), path, 1 << 16, NULL, EXIT_DATA) : "";
}

static void expect_srun(const char *code, const char *requeued) {
    setenv("CODE", code, 1);
    EXPECT_INT(stator_wait(start_script("srun.sh")), atoi(code));
    EXPECT_STR(text_of("requeued"), requeued);
}

TEST(a_batch_script_with_srun) {
    make_scripts();
    expect_srun("75", "requeue 7\n");
    EXPECT_PART(text_of("words"), "--cpus-per-task=3 ");
    EXPECT_PART(text_of("words"), "--context.threads 3 ");
    expect_srun("0", "");
    expect_srun("2", "");
    setenv("SLURM_ARRAY_JOB_ID", "5", 1);
    setenv("SLURM_ARRAY_TASK_ID", "0", 1);
    expect_srun("75", "requeue 5_0\n");
}

/* Sends the signals to the script alone, some time apart. */
static void expect_launch(const int *signals, const char *requeued) {
    pid_t pid = start_script("launch.sh");
    while (!file_exists(in_temp("started"))) usleep(1000);
    for (; *signals; signals++) {
        kill(pid, *signals);
        usleep(100000);
    }
    EXPECT_INT(stator_wait(pid), 75);
    EXPECT_STR(text_of("saved"), "\n");
    EXPECT_STR(text_of("requeued"), requeued);
}

TEST(a_batch_script_with_launch) {
    make_scripts();
    expect_launch((int[]){SIGUSR1, 0}, "requeue 7\n");
    EXPECT_PART(text_of("words"), "launch -n 4 --threads 3 train");
    expect_launch((int[]){SIGUSR1, SIGUSR1, 0}, "requeue 7\n");
    expect_launch((int[]){SIGTERM, 0}, "");
    expect_launch((int[]){SIGUSR1, SIGTERM, SIGTERM, 0}, "");
}
