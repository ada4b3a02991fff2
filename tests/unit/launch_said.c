/* Tests of what stator launch makes of the words on the stderr of mpirun. */
#include "driven.h"
#include "frontend/config/commands.h"
#include "frontend/launch/launch.h"
#include "frontend/launch/launch_parts.h"

#include <malloc.h>

static char *heard; /* what went on to the terminal */
static int result;

/* Feeds mpirun's words, `step` bytes at a time, of a run of 4 ranks on `here`. */
static void hear(const char *words, size_t step, int exit_code, int64_t oom_kills,
                 int stopped) {
    size_t n;
    FILE *out = open_memstream(&heard, &n);
    LaunchReport *r = launch_report_new(mem(), out, 4, "here", false);
    for (size_t i = 0, length = strlen(words); i < length; i += step)
        launch_report_take(r, words + i, MIN(step, length - i));
    result = launch_report_end(r, exit_code << 8, oom_kills, stopped);
    fclose(out);
}

#define FRAME                                                                            \
    "--------------------------------------------------------------------------\n"
#define NOTICED(rank, signal)                                                            \
    LAUNCH_REPORT_MARK "{\"rank\": " rank ", \"host\": \"here\", \"signal\": " signal    \
                       "}\n" FRAME "mpirun noticed that process rank " rank              \
                       " with PID 0 on node here exited on "                             \
                       "signal " signal " (Killed).\n" FRAME
#define REPORT(rank, code, message)                                                      \
    LAUNCH_REPORT_MARK "{\"rank\": " rank ", \"host\": \"b\", \"code\": " code           \
                       ", \"message\": \"" message "\"}\n"

TEST(words_of_ranks_go_on) {
    const char *words = "step 1\nstep 2\nmpirun: Forwarding signal 10 to job\nno end";
    hear(words, 1, 0, 0, 0);
    EXPECT_STR(heard, "step 1\nstep 2\nno end");
    EXPECT_INT(result, 0);
}

TEST(a_rank_that_was_killed) {
    for (size_t step = 1; step < 500; step = step * 3 + 1) {
        hear("hello\n" NOTICED("2", "9"), step, 137, 0, 0);
        EXPECT_STR(heard,
                   "hello\n"
                   "stator: rank 2 of 4 on here killed by signal 9 (SIGKILL)\n"
                   "  the kernel killed nothing for lack of memory: somebody sent the "
                   "signal\n"
                   "  the other ranks were ended\n");
        EXPECT_INT(result, 137);
    }
}

TEST(a_rank_that_the_kernel_killed) {
    hear(NOTICED("2", "9"), 100, 137, 1, 0);
    EXPECT_PART(heard, "the kernel killed 1 process of this machine");
    hear(NOTICED("2", "9"), 100, 137, -1, 0);
    EXPECT_PART(heard, "if nobody sent the signal, the kernel may have");
    hear(NOTICED("2", "11"), 100, 139, 1, 0);
    EXPECT(!strstr(heard, "kernel"));
}

/* Marks that are no reports of failures, without end. */
TEST(repeated_marks_take_no_memory) {
    static const char *const line[] = {LAUNCH_REPORT_MARK "{\"rank\": 1, \"pid\": 7}\n",
                                       LAUNCH_REPORT_MARK "broken\n",
                                       LAUNCH_REPORT_MARK "{\"rank\": 9, \"code\": 3}\n"};
    FILE *out = fopen("/dev/null", "w");
    LaunchReport *r = launch_report_new(mem(), out, 4, "here", false);
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < 30000; i++)
        launch_report_take(r, line[i % 3], strlen(line[i % 3]));
    EXPECT(mallinfo2().uordblks < before + (1 << 18));
    fclose(out);
}

TEST(the_first_report_counts) {
    hear(REPORT("1", "3", "stator: error: no data\\nat all") REPORT("0", "5", "memory")
             FRAME "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\nwith "
                   "errorcode 5.\n" FRAME,
         7, 5, 0, 0);
    EXPECT_STR(heard, "stator: rank 1 of 4 on b ended with exit code 3\n"
                      "  stator: error: no data\n"
                      "  at all\n"
                      "  later, rank 0: memory\n"
                      "  the other ranks were ended\n");
    EXPECT_INT(result, 3);
}

/* Messages are as long as they are. */
TEST(what_others_say_is_not_cut) {
#define HALF                                                                             \
    "a rather long name of a file of data, and what is wrong there is told behind it: "
#define WHOLE HALF HALF HALF "the end"
    hear(REPORT("1", "3", "no data") REPORT("0", "5", WHOLE "\\n    hint: less"), 7, 5, 0,
         0);
    EXPECT_PART(heard, "  later, rank 0: " WHOLE "\n      hint: less\n");
}

TEST(a_killed_rank_counts_more_than_those_who_miss_it) {
    hear(REPORT("0", "6", "rank 3 does not answer") NOTICED("3", "9"), 100, 137, -1, 0);
    EXPECT_PART(heard, "stator: rank 3 of 4 on here killed by signal 9");
    EXPECT_PART(heard, "later, rank 0: rank 3 does not answer");
    EXPECT_INT(result, 137);
}

#define CRASH(rank, signal)                                                              \
    LAUNCH_REPORT_MARK "{\"rank\": " rank ", \"host\": \"b\", \"signal\": " signal "}\n"

TEST(a_rank_that_says_that_it_crashes) {
    hear(CRASH("1", "11") REPORT("0", "6", "rank 1 is gone"), 100, 139, 0, 0);
    EXPECT_STR(heard, "stator: rank 1 of 4 on b killed by signal 11 (SIGSEGV)\n"
                      "  later, rank 0: rank 1 is gone\n"
                      "  the other ranks were ended\n");
    EXPECT_INT(result, 139);
    hear(REPORT("1", "134", "a bug") CRASH("1", "6"), 100, 134, 0, 0);
    EXPECT_STR(heard, "stator: rank 1 of 4 on b killed by signal 6 (SIGABRT)\n"
                      "  a bug\n"
                      "  the other ranks were ended\n");
    EXPECT_INT(result, 134);
}

/* Whatever mpirun says of a failure that is known, in whatever words. */
TEST(mpiruns_words_on_a_known_failure_are_left_out) {
    hear(REPORT("1", "3", "no data") FRAME "prterun: proc 1 went away\n" FRAME, 9, 3, 0,
         0);
    EXPECT(!strstr(heard, "went away") && result == 3);
    hear(FRAME "a word of advice\n" FRAME REPORT("1", "3", "no data"), 9, 3, 0, 0);
    EXPECT(strstr(heard, "a word of advice") && result == 3);
}

/* Its guard says how a rank ended that said nothing. */
TEST(a_rank_that_ends_without_a_word) {
    const char *end = LAUNCH_REPORT_MARK "{\"rank\": 2, \"host\": \"b\", \"code\": 9}\n";
    hear(end, 9, 9, 0, 0);
    EXPECT_STR(heard, "stator: rank 2 of 4 on b ended with exit code 9\n"
                      "  the other ranks were ended\n");
    hear(arena_printf(mem(), "%s%s", REPORT("2", "9", "why"), end), 9, 9, 0, 0);
    EXPECT_STR(heard, "stator: rank 2 of 4 on b ended with exit code 9\n  why\n"
                      "  the other ranks were ended\n");
    hear(LAUNCH_REPORT_MARK "{\"rank\": 0, \"host\": \"b\", \"pid\": 7}\n", 9, 7, 0, 0);
    EXPECT(strstr(heard, "mpirun ended with exit code 7") && result == 7);
}

TEST(a_killed_rank_that_mpirun_does_not_name) {
    hear("", 1, 137, 0, 0);
    EXPECT_PART(heard, "a rank was killed by signal 9 (SIGKILL)");
    EXPECT_INT(result, 137);
    hear(" noticed that process rank 4 with PID 0", 1, 137, 0, 0);
    EXPECT_PART(heard, "a rank was killed by signal 9 (SIGKILL)");
}

/* Then the rank is killed too, and no guard says so. */
TEST(a_rank_whose_guard_was_killed) {
    static const char *const by[] = {"mpirun", "prterun"};
    static const int oom[] = {0, 2, -1};
    static const char *const says[] = {"the kernel killed nothing",
                                       "the kernel killed 2 processes",
                                       "if nobody sent the signal"};
    for (int i = 0; i < 24; i++) {
        int rank = i % 4;
        bool here = i & 4;
        hear(arena_printf(mem(),
                          LAUNCH_REPORT_MARK "{\"rank\": %d, \"host\": \"%s\", \"pid\": "
                                             "7}\n" FRAME
                                             "%s noticed that process rank %d "
                                             "with PID 0 on node x exited on\nsignal 9 "
                                             "(Killed).\n" FRAME,
                          rank, here ? "here" : "c7", by[i / 8 % 2], rank),
             1 + (size_t)i, 137, oom[i / 8], 0);
        EXPECT_PART(heard,
                    arena_printf(mem(),
                                 "stator: rank %d of 4 on %s killed by signal 9 "
                                 "(SIGKILL)\n  %s",
                                 rank, here ? "here" : "c7", says[here ? i / 8 : 2]));
        EXPECT_INT(result, 137);
    }
}

/* What a rank was doing is news where it did not end by itself. */
TEST(what_a_rank_was_doing) {
#define GUARD(what)                                                                      \
    LAUNCH_REPORT_MARK "{\"rank\": 1, \"host\": \"b\", " what                            \
                       ", \"at\": \"in receive of stage 1, task 0F2 (step 7)\"}\n"
    static const char *const ends[] = {GUARD("\"signal\": 11"), GUARD("\"code\": 9"),
                                       REPORT("1", "134", "a bug")
                                           GUARD("\"signal\": 6")};
    for (int i = 0; i < ARRAY_LEN(ends); i++) {
        hear(ends[i], 20, 1, 0, 0);
        EXPECT_PART(heard, "\n  it was in receive of stage 1, task 0F2 (step 7)\n");
    }
    hear(REPORT("1", "3", "no data") GUARD("\"code\": 3"), 20, 3, 0, 0);
    EXPECT(!strstr(heard, "it was"));
}

TEST(the_same_failure_everywhere_is_said_once) {
    hear(REPORT("2", "2", "x.yaml:1:1: error: key model.model_config.num_layers")
             REPORT("0", "2", "x.yaml:1:1: error: key model.model_config.num_layers"),
         100, 2, 0, 0);
    EXPECT_STR(heard, "stator: rank 2 of 4 on b ended with exit code 2\n"
                      "  x.yaml:1:1: error: key model.model_config.num_layers\n"
                      "  key: model.model_config.num_layers\n"
                      "  1 other rank said the same\n"
                      "  the other ranks were ended\n");
}

TEST(a_key_of_the_hint_is_not_what_failed) {
    hear(REPORT("2", "2",
                "x.yaml:1:1: error: no key max_stepz\\n    hint: did you mean "
                "runner_config.max_steps?"),
         100, 2, 0, 0);
    EXPECT_PART(heard, "runner_config.max_steps?");
    EXPECT(!strstr(heard, "key: "));
    hear(REPORT("2", "5",
                "more than context.max_device_memory, 1MB\\n    hint: more "
                "micro-batches (parallel_config.micro_batch_num)"),
         100, 5, 0, 0);
    EXPECT_PART(heard, "  key: context.max_device_memory\n");
}

TEST(the_op_of_a_message) {
    hear(REPORT("2", "134", "check failed in op %h.3: 100% sure"), 100, 134, 0, 0);
    EXPECT_PART(heard, "stator: rank 2 of 4 on b stopped itself\n");
    EXPECT_PART(heard, "\n  op: %h.3\n");
}

TEST(mpiruns_other_words_are_shown) {
    const char *words = FRAME "There are not enough slots available\n" FRAME;
    hear(words, 10, 1, 0, 0);
    EXPECT(!strncmp(heard, words, strlen(words)));
    EXPECT_PART(heard, "stator: error: mpirun ended with exit code 1");
    EXPECT_INT(result, EXIT_CONFIG);
    hear(FRAME "unfinished\n", 10, 1, 0, 0);
    EXPECT(!strncmp(heard, FRAME "unfinished\n", 86));
}

#define TOGETHER(code)                                                                   \
    LAUNCH_REPORT_MARK "{\"rank\": 0, \"ends\": " code ", \"host\": \"here\"}\n"
#define ENDED(rank, code)                                                                \
    LAUNCH_REPORT_MARK "{\"rank\": " rank ", \"host\": \"here\", \"code\": " code "}\n"

/* A code that others may have together is no excuse for one rank. */
TEST(a_rank_that_ends_alone) {
    hear(ENDED("1", "1"), 10, 1, 0, 0);
    EXPECT_STR(heard, "stator: rank 1 of 4 on here ended with exit code 1\n"
                      "  the other ranks were ended\n");
    EXPECT_INT(result, 1);
    hear(TOGETHER("4") REPORT("2", "4", "no room") ENDED("2", "4"), 10, 4, 0, 0);
    EXPECT_PART(heard, "stator: rank 2 of 4 on b ended with exit code 4\n  no room\n");
    EXPECT_INT(result, 4);
}

TEST(ends_that_are_no_failures) {
    const char *words = LAUNCH_REPORT_MARK
        "{\"rank\": 1, \"host\": \"here\", \"code\": 75}\n" FRAME
        "mpirun detected that one or more processes exited with non-zero status, "
        "thus causing\nthe job to be terminated. The first process to do so was:\n\n"
        "  Process name: [[18968,1],1]\n  Exit code:    75\n" FRAME;
    hear(words, 10, 75, 0, 0);
    EXPECT_STR(heard, "");
    EXPECT_INT(result, 75);
    hear(NOTICED("1", "10"), 10, 138, 0, SIGINT);
    EXPECT_STR(heard, "stator: stopped by SIGINT\n");
    EXPECT_INT(result, 128 + SIGINT);
    hear(TOGETHER("1") ENDED("1", "1"), 10, 1, 0, 0);
    EXPECT_STR(heard, "");
    EXPECT_INT(result, EXIT_DIVERGED);
    hear(TOGETHER("4") ENDED("2", "4") ENDED("0", "4"), 10, 4, 0, 0);
    EXPECT_STR(heard, "");
    EXPECT_INT(result, EXIT_CHECKPOINT);
}

/* mpirun has codes of its own when it got the signal that all ranks follow. */
TEST(what_rank_0_says_counts_more_than_mpiruns_code) {
    static const int ends[] = {75, 1, 4}, codes[] = {0, 1, 137, 143},
                     sent[] = {0, SIGTERM};
    for (int i = 0; i < ARRAY_LEN(ends) * ARRAY_LEN(codes) * ARRAY_LEN(sent); i++) {
        int end = ends[i % 3], code = codes[i / 3 % 4];
        hear(arena_printf(mem(), "saved\n" TOGETHER("%d") "mpirun: why\n", end), 10, code,
             0, sent[i / 12]);
        EXPECT_STR(heard, "saved\n");
        EXPECT_INT(result, end);
    }
    hear(TOGETHER("75") CRASH("1", "9"), 10, 143, 0, 0);
    EXPECT_PART(heard, "stator: rank 1 of 4 on b killed by signal 9 (SIGKILL)\n");
    EXPECT_INT(result, 137);
    hear(TOGETHER("75") REPORT("1", "7", "MPI_Finalize failed"), 10, 1, 0, SIGTERM);
    EXPECT_PART(heard, "stator: rank 1 of 4 on b ended with exit code 7\n");
    EXPECT_INT(result, 7);
}

/* On a second signal mpirun ends the ranks, which report nothing then, with a code of its
 * own that is also that of a run that diverged. */
TEST(a_run_that_two_signals_end_did_not_diverge) {
    hear(LAUNCH_REPORT_MARK "{\"rank\": 0, \"host\": \"here\", \"pid\": 7}\n", 10, 1, 0,
         SIGINT);
    EXPECT_STR(heard, "stator: stopped by SIGINT\n");
    EXPECT_INT(result, 128 + SIGINT);
}

TEST(a_host_that_is_gone) {
    hear(FRAME "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : "
               "[[1,0],0] on node here\n  Remote daemon: [[1,0],2] on node c7\n\n" FRAME,
         10, 205, 0, 0); /* mpirun's own code */
    EXPECT_PART(heard, "stator: host c7 is gone");
    EXPECT_INT(result, EXIT_NETWORK);
}

TEST(reports_that_are_none_are_shown) {
    const char *words =
        LAUNCH_REPORT_MARK "{\"rank\": 9, \"code\": 1}\n" LAUNCH_REPORT_MARK
                           "{\"rank\"\n" LAUNCH_REPORT_MARK "[]\n";
    hear(words, 10, 0, 0, 0);
    EXPECT_STR(heard, words);
}

TEST(a_line_without_an_end) {
    Text t = text_new(mem());
    for (int i = 0; i < 100000; i++) text_add(&t, "%d,", i);
    hear(t.s, 4096, 0, 0, 0);
    EXPECT_STR(heard, t.s);
}
