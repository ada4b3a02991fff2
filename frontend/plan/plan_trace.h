/* plan_trace.h - a planned step over time as a trace for Perfetto. */
#ifndef STATOR_PLAN_TRACE_H
#define STATOR_PLAN_TRACE_H
#include "frontend/plan/plan.h"
#include "passes/estimate/rank_seconds.h"

/* The first rank of each stage of a plan with a machine. Fails with EXIT_CONFIG where stages
 * share cores, and above so many events that nothing opens them. A file that cannot be
 * written fails with EXIT_DATA. */
void plan_trace(const Plan *p, const char *path);
/* A step whose pieces are noted, of that rank of each stage; the check comes first. */
void plan_trace_write(const RankProgram *p, const RankStep *step, int rank,
                      const char *path);
void plan_trace_check(const RankProgram *p);
#endif
