/* run_folder.h - where the checkpoints of a run folder are. */
#ifndef STATOR_RUN_FOLDER_H
#define STATOR_RUN_FOLDER_H
#include "base/base.h"

/* The folder that the config.yaml of a run names for its checkpoints
 * (callbacks.CheckpointMonitor.directory): as it is written, so it counts from the folder in
 * which the run was started. NULL: it names none, is not there or cannot be read. */
const char *run_names_checkpoints(Arena *mem, const char *run);

/* Does the folder hold finished checkpoints, good or damaged? */
bool has_checkpoints(Arena *mem, const char *folder);
/* Where the checkpoints of a run are: in the folder that its config.yaml names, as soon as that
 * has some, else in its own; where both have some a line on stderr says which are taken. NULL:
 * there are none. */
const char *run_checkpoints(Arena *mem, const char *run);
/* Goes on a message that a run has no checkpoint, where its config.yaml names a folder: ", and
 * none in ...", or "". */
const char *run_where_named(Arena *mem, const char *run);

/* Are both paths those of one folder, which is there? */
bool same_folder(const char *a, const char *b);

#endif
