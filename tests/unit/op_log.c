/* op_log.c - tasks are written in the order in which they happen, as far as there is room,
 * and what that costs. */
#include "runtime/core/op_log.h"
#include "../test.h"
#include "base/base.h"
#include "runtime/core/rt.h"

static void happen(int64_t number) {
    rt_op_begin(number);
    rt_op_end(number);
}

TEST(tasks_are_written_as_they_happen) {
    TaskTime time[4] = {{0}};
    double before = clock_seconds();
    happen(9); /* nobody listens */
    EXPECT_INT(op_log_to(time, 3), 0);
    happen(2), happen(0), happen(1), happen(3);
    EXPECT_INT(op_log_to(NULL, 0), 3);
    EXPECT(time[0].number == 2 && time[1].number == 0 && time[2].number == 1);
    for (int i = 0; i < 3; i++) {
        EXPECT(time[i].begin >= before && time[i].end >= time[i].begin);
        before = time[i].end;
    }
    EXPECT(time[3].number == 0 && time[3].begin == 0);
    happen(5);
    EXPECT_INT(op_log_to(NULL, 0), 0);
}

/* A task takes a tenth of a millisecond and more: 3 % of that are 3 microseconds. */
TEST(a_task_costs_two_looks_at_the_clock) {
    enum { TASKS = 100000 };
    static TaskTime time[TASKS];
    op_log_to(time, TASKS);
    double best = 1e9;
    for (int run = 0; run < 10; run++) {
        double start = clock_seconds();
        for (int i = 0; i < TASKS / 10; i++) happen(i);
        best = MIN(best, (clock_seconds() - start) / (TASKS / 10));
    }
    EXPECT_INT(op_log_to(NULL, 0), TASKS);
    double start = clock_seconds();
    for (int i = 0; i < TASKS; i++) happen(i);
    double off = (clock_seconds() - start) / TASKS;
    printf("  %.0f ns a task, %.1f ns in steps that are not recorded\n", 1e9 * best,
           1e9 * off);
    EXPECT(best < 3e-6);
}
