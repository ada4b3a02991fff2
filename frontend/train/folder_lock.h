/* folder_lock.h - folders that one run at a time writes to. The lock is flock on the
 * folder itself: a killed process no longer holds it, and nothing is left over. */
#ifndef STATOR_FOLDER_LOCK_H
#define STATOR_FOLDER_LOCK_H
#include <stdbool.h>

/* Locks a folder, made where it is missing, and returns its descriptor; the lock lasts until
 * that is closed. `other` (-1: none) is a folder that this process has locked: when it is the
 * same one, the result is -1. Waits 2 s for another run, which may be ending, then fails with
 * EXIT_CONFIG and `way_out`, what to give instead. On a disk without locks none is held. */
int folder_lock(const char *path, int other, const char *way_out);

#endif
