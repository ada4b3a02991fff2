/* cgroup.h - what the cgroups of this process say, version 1 and 2. All reads are below `root`,
 * which is "" except in tests. */
#ifndef STATOR_CGROUP_H
#define STATOR_CGROUP_H
#include "base/base.h"

/* A controller as one of the versions has it. */
typedef struct Cgroup {
    const char *controller; /* in /proc/self/cgroup; "": version 2, which lists none */
    const char *mount[2];   /* where it may be mounted */
} Cgroup;

/* Calls level(context, folder, name) for the group of this process and those around it. */
typedef void (*CgroupLevel)(void *context, const char *dir, const char *group);
void cgroup_walk(const char *root, const Cgroup *c, CgroupLevel level, void *context);
/* The line of a file of one line; false: there is none. */
bool cgroup_line(const char *dir, const char *name, char *line, size_t size);

/* Whole cores that the CPU quotas leave, at least 1; INT_MAX: there is no quota. */
int cgroup_cores(const char *root);

#endif
