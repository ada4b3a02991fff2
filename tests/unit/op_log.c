/* op_log.c - ops are written in the order in which they begin, as far as there is room, each
 * thread's by itself, and what that costs. */
#include "runtime/core/op_log.h"
#include "../test.h"
#include "base/base.h"
#include "runtime/core/rt.h"
#include <pthread.h>

static void happen(int64_t number) {
    rt_op_begin(number);
    rt_op_end(number);
}

TEST(ops_are_written_as_they_begin) {
    OpTime op[5] = {{0}};
    double before = clock_seconds();
    happen(9); /* nobody listens */
    EXPECT_INT(op_log_to(LOG_COMPUTE, op, 4), 0);
    rt_op_begin(MARK_STEP);
    EXPECT_INT(op_log_open(), MARK_STEP);
    rt_op_begin(2);
    happen(0);
    EXPECT_INT(op_log_open(), 2);
    rt_op_end(2);
    happen(1), happen(3); /* one more than there is room for */
    rt_op_end(MARK_STEP);
    EXPECT_INT(op_log_open(), 0);
    EXPECT_INT(op_log_to(LOG_COMPUTE, NULL, 0), 5);
    EXPECT(op[0].number == MARK_STEP && op[1].number == 2 && op[2].number == 0 &&
           op[3].number == 1);
    for (int i = 0; i < 4; i++) {
        EXPECT(op[i].begin >= before && op[i].end >= op[i].begin);
        before = op[i].begin;
    }
    EXPECT(op[2].end <= op[1].end && op[1].end <= op[3].begin && op[3].end <= op[0].end);
    EXPECT(op[4].number == 0 && op[4].begin == 0);
    happen(5);
    EXPECT_INT(op_log_to(LOG_COMPUTE, NULL, 0), 0);
}

static void *happen_beside(void *unused) {
    (void)unused;
    op_log_thread(LOG_BESIDE);
    happen(7), happen(8);
    return NULL;
}

TEST(another_thread_has_a_log_of_its_own) {
    OpTime op[4] = {{0}}, beside[4] = {{0}};
    pthread_t thread;
    op_log_to(LOG_COMPUTE, op, 4);
    op_log_to(LOG_BESIDE, beside, 4);
    rt_op_begin(1);
    EXPECT_INT(pthread_create(&thread, NULL, happen_beside, NULL), 0);
    EXPECT_INT(pthread_join(thread, NULL), 0);
    rt_op_end(1);
    EXPECT_INT(op_log_to(LOG_COMPUTE, NULL, 0), 1);
    EXPECT_INT(op_log_to(LOG_BESIDE, NULL, 0), 2);
    EXPECT(op[0].number == 1 && beside[0].number == 7 && beside[1].number == 8);
    EXPECT(beside[0].begin >= op[0].begin && beside[1].end <= op[0].end);
}

/* An op takes ten microseconds and more where time matters: 3 % of that are 0.3. */
TEST(an_op_costs_two_looks_at_the_clock) {
    enum { OPS = 100000 };
    static OpTime op[OPS];
    op_log_to(LOG_COMPUTE, op, OPS);
    double best = 1e9;
    for (int run = 0; run < 10; run++) {
        double start = clock_seconds();
        for (int i = 0; i < OPS / 10; i++) happen(i);
        best = MIN(best, (clock_seconds() - start) / (OPS / 10));
    }
    EXPECT_INT(op_log_to(LOG_COMPUTE, NULL, 0), OPS);
    double start = clock_seconds();
    for (int i = 0; i < OPS; i++) happen(i);
    double off = (clock_seconds() - start) / OPS;
    printf("  %.0f ns an op, %.1f ns in steps that are not recorded\n", 1e9 * best,
           1e9 * off);
    EXPECT(best < 3e-6);
}
