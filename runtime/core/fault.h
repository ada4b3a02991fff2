/* fault.h - data that turn out to be bad in the middle of a step. A rank that failed there
 * would leave the others waiting for it, and all would lose what they did since the last
 * checkpoint. So where ranks wait for each other it keeps the failure, goes on with other
 * numbers, and votes against the step (kernels_comm.c), which then changes nothing on any rank;
 * who runs the step asks for the failure when it is over. In a pipeline only one stage votes:
 * there a row that is missing (rt_embed) is not a number, which makes the step bad. */
#ifndef STATOR_FAULT_H
#define STATOR_FAULT_H
#include "base/base.h"

/* From now on fault_raise keeps the failure, or (as at the start) fails with it. */
void fault_go_on(bool go_on);
void fault_raise(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Keeps a failure that was caught, the first one alone. */
void fault_keep(int code, const char *message);
/* Its exit code, 0: there is none; and its message. */
int fault_kept(const char **message);

#endif
