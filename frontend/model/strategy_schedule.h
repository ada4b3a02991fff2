/* strategy_schedule.h - the schedule of a pipeline as keys ask for it; for strategy.c. */
#ifndef STATOR_STRATEGY_SCHEDULE_H
#define STATOR_STRATEGY_SCHEDULE_H
#include "frontend/model/strategy.h"

/* A name, or a file beside the one that names it; and where it is asked for. */
const char *schedule_of_config(const Config *cfg);
SourcePos schedule_place(const Config *cfg);
/* That of s, for so many chunks of all stages and micro-batches. What does not fit fails with
 * EXIT_CONFIG at s->schedule_pos. */
PipeSchedule *schedule_of_strategy(const Strategy *s, Arena *mem, int chunks, int micro);

#endif
