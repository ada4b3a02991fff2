/* Tests of the watching thread in one process: what it says of a file that does not
 * answer, and when it says nothing. */
#include "runtime/comm/watch.h"
#include "../test.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static char said[4][WATCH_REPORT_BYTES];
static atomic_int nsaid;
static bool ended;

static void say(int rank, const char *host, const char *text, bool ends) {
    (void)host;
    if (nsaid >= 4 || rank != 0) return;
    ended |= ends;
    snprintf(said[nsaid], sizeof said[0], "%s", text);
    nsaid++;
}

static void start(double seconds) {
    watch_set(seconds, true);
    watch_start(say);
}

TEST(a_file_that_does_not_answer) {
    start(0.3);
    watch_task("saving the checkpoint of step", 12, false);
    watch_file("ckpt/step_00000012.tmp");
    usleep(800000);
    watch_file(NULL);
    usleep(300000);
    watch_stop();
    EXPECT(nsaid >= 2 && !ended);
    EXPECT_PART(said[0], "gets no further: in the file ckpt/step_00000012.tmp "
                         "(saving the checkpoint of step 12)");
    EXPECT_STR(said[nsaid - 1], "the run goes on");
}

TEST(a_file_that_gets_on) {
    start(0.3);
    watch_file("a");
    for (int i = 0; i < 40; i++, usleep(20000)) watch_progress();
    watch_stop();
    EXPECT_INT(nsaid, 0);
}

TEST(work_is_no_waiting) {
    start(0.2);
    usleep(700000);
    watch_stop();
    EXPECT_INT(nsaid, 0);
}

TEST(nothing_is_said_with_0_seconds) {
    start(0);
    watch_file("a");
    usleep(700000);
    watch_stop();
    EXPECT_INT(nsaid, 0);
}

static void say_nothing_more(int rank, const char *host, const char *text, bool ends) {
    (void)rank, (void)host, (void)text, (void)ends;
    for (;;) pause();
}

/* A second rank whose watching thread does not come back from what it writes. */
static pid_t start_held_up(void *board) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return pid;
    watch_board(board, 1, 2);
    watch_set(0.1, true);
    watch_start(say_nothing_more);
    watch_file("b");
    for (;;) pause();
}

/* It has given no sign of life, but a process that runs is no stopped one: it is told of at the
 * times of one that is alive, and not in every round. */
TEST(one_that_is_silent_and_runs) {
    void *board = mmap(NULL, watch_board_bytes(2), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(board != MAP_FAILED);
    pid_t pid = start_held_up(board);
    usleep(400000);
    watch_board(board, 0, 2);
    start(0.4);
    watch_file("a");
    usleep(1500000);
    watch_stop();
    watch_board(NULL, 0, 1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    EXPECT(nsaid >= 1 && nsaid <= 3);
    EXPECT_PART(said[0], "has given no sign of life for ");
    EXPECT_PART(said[0], " is in state S");
}
