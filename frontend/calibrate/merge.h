/* merge.h - what belongs to a machine file besides what is measured. */
#ifndef STATOR_MERGE_H
#define STATOR_MERGE_H
#include "passes/cost/machine.h"

/* `old` (NULL: there is none) with what `now` has measured in place of what it had: sections of
 * the same numbers of ranks and threads, collectives of the same numbers of ranks, links with
 * bytes_per_second, host, and the name where that is the host's. Other keys of the file stay as
 * they are. */
Machine *machine_merge(Arena *mem, const Machine *old, const Machine *now);

#endif
