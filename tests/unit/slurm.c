/* Tests of stator under Slurm, without one: by the environment of its tasks, and the name of their
 * parent. */
#include "driven.h"
#include <sys/prctl.h>

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
