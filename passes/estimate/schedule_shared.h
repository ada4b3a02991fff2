/* schedule_shared.h - the seconds of a schedule whose stages share cores: those that compute at the
 * same time on a place are slower for it, as step_seconds has it for whole programs. */
#ifndef STATOR_SCHEDULE_SHARED_H
#define STATOR_SCHEDULE_SHARED_H
#include "passes/estimate/sharing.h"
#include "passes/pipe/schedule.h"

/* Seconds of the tasks, which are those of a stage that computes alone, and behind them of step[k]
 * seconds that every stage k has once. notice: until a stage sees a message that it waits for while
 * others have its core. */
double schedule_seconds_shared(Arena *mem, const PipeSchedule *s, const TaskSeconds *t,
                               const Sharing *h, double notice, const double *step);
/* No order of tasks is faster: busy[k] seconds of stage k alone, all on the cores that there
 * are. */
double shared_seconds_least(const Sharing *h, const double *busy);

#endif
