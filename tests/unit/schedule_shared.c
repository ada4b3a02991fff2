/* Schedules of stages that share cores: work is not lost and not made, and with a core for each
 * stage they take what schedule.h says. */
#include "passes/estimate/schedule_shared.h"
#include "../test.h"
#include <math.h>

static const TaskSeconds unit = {
    .kind = {
        [TASK_FORWARD] = 1, [TASK_BACKWARD] = 2, [TASK_INPUTS] = 1, [TASK_WEIGHTS] = 1}};
static const char *const names[] = {"1f1b", "gpipe", "zero_bubble_h1"};

/* One rank a stage; stage s is on place s mod `places`. */
static Sharing dealt_out(Arena *mem, int stages, int places) {
    Sharing h = {.stages = stages, .places = places, .room = 1};
    h.load = NEW_ARRAY(mem, int, (size_t)(stages * places));
    for (int s = 0; s < stages; s++) h.load[s * places + s % places] = 1;
    return h;
}

static double seconds_of(Arena *mem, const char *name, int stages, int micro, int places,
                         double message, double notice, double step) {
    double steps[8];
    const PipeSchedule *s = schedule_make(mem, name, stages, stages, micro);
    Sharing h = dealt_out(mem, stages, places);
    TaskSeconds t = unit;
    t.take = message;
    for (int k = 0; k < stages; k++) steps[k] = step;
    return schedule_seconds_shared(mem, s, &t, &h, notice, steps);
}

TEST(a_core_for_each_stage) {
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(names); i++)
        for (int stages = 2; stages <= 4; stages++)
            for (int micro = 1; micro <= 9; micro += 4) {
                const PipeSchedule *s =
                    schedule_make(mem, names[i], stages, stages, micro);
                TaskSeconds t = unit;
                t.take = 0.25;
                EXPECT_NEAR(
                    seconds_of(mem, names[i], stages, micro, stages, 0.25, 5, 0.5),
                    schedule_seconds(mem, s, &t, NULL) + 0.5, 1e-9);
            }
    arena_free(mem);
}

/* All of the work, and no core waits while there is some. */
TEST(one_core_for_all) {
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(names); i++)
        for (int stages = 2; stages <= 4; stages++)
            EXPECT_NEAR(seconds_of(mem, names[i], stages, 5, 1, 0, 0, 0.5),
                        stages * (5 * 3 + 0.5), 1e-9);
    arena_free(mem);
}

TEST(no_schedule_is_faster_than_its_cores) {
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(names); i++)
        for (int micro = 1; micro <= 6; micro++) {
            double busy[4];
            Sharing h = dealt_out(mem, 4, 2);
            for (int k = 0; k < 4; k++) busy[k] = 3 * micro + 0.5;
            double least = shared_seconds_least(&h, busy);
            EXPECT_NEAR(least, 2 * (3 * micro + 0.5), 1e-9);
            EXPECT(seconds_of(mem, names[i], 4, micro, 2, 0.1, 0, 0.5) >= least - 1e-9);
        }
    arena_free(mem);
}

/* One micro-batch goes there and back: a stage that waits for it has the core for itself, so
 * nothing is noticed late. With more others compute meanwhile. */
TEST(messages_are_noticed_late_where_others_compute) {
    Arena *mem = arena_new();
    double alone = seconds_of(mem, "gpipe", 2, 1, 1, 0.25, 0, 0);
    EXPECT_NEAR(alone, 2 * 3 + 2 * 0.25, 1e-9);
    EXPECT_NEAR(seconds_of(mem, "gpipe", 2, 1, 1, 0.25, 0.75, 0), alone, 1e-9);
    int changed = 0; /* slower or not: what computes first has the core for longer */
    for (int micro = 1; micro <= 6; micro++) {
        double at_once = seconds_of(mem, "1f1b", 4, micro, 2, 0.25, 0, 0);
        double late = seconds_of(mem, "1f1b", 4, micro, 2, 0.25, 0.75, 0);
        changed += fabs(late - at_once) > 0.1;
    }
    EXPECT_INT(changed, 5);
    arena_free(mem);
}
