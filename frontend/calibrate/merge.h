/* merge.h - what belongs to a machine file besides what is measured. */
#ifndef STATOR_MERGE_H
#define STATOR_MERGE_H
#include "passes/cost/machine.h"

/* `now` with the sections of `old` for other numbers of ranks or threads, and its collectives
 * of other numbers of ranks. */
Machine *machine_merge(Arena *mem, const Machine *old, const Machine *now);
/* CPU and libraries: "AMD EPYC, 2 cores, oneDNN 2.6.3, ..." */
void machine_describe_host(Arena *mem, Text *out);

#endif
