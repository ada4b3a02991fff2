/* recompute_auto.h - recompute: auto. What backward makes again is chosen for each stage, so
 * that its exact plan fits context.max_device_memory with the least work.
 *
 * A choice for a stage is a set of the values that a layer keeps, to be made again from the
 * others, in the first layers of each of its chunks (all, or sixteenths of the largest). */
#ifndef STATOR_RECOMPUTE_AUTO_H
#define STATOR_RECOMPUTE_AUTO_H
#include "frontend/model/job.h"

enum { RECOMPUTE_MOST_GROUPS = 12 };

/* What layers keep: values of one op, and those of the same names, are one group. A set of
 * groups is a number with a bit for each. */
typedef struct RecomputeMenu {
    Arena *mem;
    const char *group[RECOMPUTE_MOST_GROUPS]; /* names: "q,k,v" */
    int n;
    const char *kept; /* further words of every policy: ",-attn" */
    double *seconds;  /* by set that is made again: of a layer on the machine */
} RecomputeMenu;

/* Of the layers of a job as autodiff sees them, whatever the job has made again itself. Further
 * groups than the first RECOMPUTE_MOST_GROUPS are left out, so that the sets are few. */
RecomputeMenu recompute_menu(Arena *mem, const Job *j);
/* The policy that makes the set again: "full,-h"; NULL for the empty set. */
const char *recompute_policy(const RecomputeMenu *m, unsigned set);
/* Memory of a rank of each stage where `remake` is made again (remake_spans.h; NULL:
 * nothing). */
int64_t *recompute_stage_bytes(Arena *mem, const Job *j, const char *remake);

/* Sets j->strategy.remake where the configuration says auto, and adds a note that says
 * what was chosen. Needs context.max_device_memory: EXIT_CONFIG without. Where nothing fits
 * all is made again. */
void recompute_choose(Job *j);
#endif
