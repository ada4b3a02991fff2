/* run_folder.h - where the checkpoints of a run folder are. */
#ifndef STATOR_RUN_FOLDER_H
#define STATOR_RUN_FOLDER_H
#include "base/base.h"

/* The folder that the config.yaml of a run names for its checkpoints
 * (callbacks.CheckpointMonitor.directory): as it is written, so it counts from the folder in
 * which the run was started. NULL: it names none, is not there or cannot be read. */
const char *run_names_checkpoints(Arena *mem, const char *run);

/* Are both paths those of one folder, which is there? */
bool same_folder(const char *a, const char *b);

#endif
