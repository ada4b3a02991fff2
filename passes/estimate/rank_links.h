/* rank_links.h - groups of ranks by set of axes, and how much slower slow links make them. */
#ifndef STATOR_RANK_LINKS_H
#define STATOR_RANK_LINKS_H
#include "passes/estimate/rank_seconds.h"

/* How many times as long, and which link that is; -1: none. */
typedef struct LinkDelay {
    double factor;
    int link;
} LinkDelay;

/* The groups of a set of axes in a stage. */
typedef struct RankGroups {
    int n;
    int *of;                 /* by rank of the stage */
    LinkDelay *ring, *pairs; /* by group; NULL: no link is slow */
} RankGroups;

typedef struct RankLinks {
    const RankProgram *p;
    const SlowLink *link;
    int n, host_ranks;
} RankLinks;
/* The groups of ranks of that stage which differ in `axes` only, numbered in `of`, and by how much
 * slow links hold up a ring through each group, and messages between all its pairs. */
RankGroups rank_groups(Arena *mem, const RankLinks *l, Axes axes, int stage);
/* Of what ranks a and b of all send each other. */
LinkDelay link_delay(const RankLinks *l, int a, int b);
#endif
