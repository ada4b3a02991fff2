/* Tests of the watching thread in one process: what it says of a file that does not
 * answer, and when it says nothing. */
#include "runtime/comm/watch.h"
#include "../test.h"
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
