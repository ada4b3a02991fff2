/* touches.h - where caches and memory have the operands of an op from: what is done since they were
 * touched. */
#ifndef STATOR_TOUCHES_H
#define STATOR_TOUCHES_H
#include "passes/estimate/func_seconds.h"

/* Sets `since_...` and `near` of all sizes that there are. An operand that an op of the same run has
 * touched was touched then, be it through a view. If a function of ops was called in between, or if it
 * was in the run before, all is done since that a run does; for a slice that a loop hands to a run, or
 * gets of it, all that the loop does. */
void touches_note(Arena *mem, Func **order, const SizeScale *scale, FuncSizes *sizes);

#endif
