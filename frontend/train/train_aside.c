/* train_aside.c - what another run has left in the folders of this one: checkpoints and lines
 * that would be taken for its own. They are the user's: moved, not deleted. */
#include "frontend/config/commands.h"
#include "frontend/train/folder_lock.h"
#include "frontend/train/train.h"
#include "runtime/comm/comm.h"
#include "runtime/store/ckpt_files.h"
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_ASIDE = 10000 };

/* A folder that cannot be made is said when it is saved to. */
void aside_lock_checkpoints(Train *t) {
    if (comm_rank() != 0) return;
    if (t->ckpt_lock_fd >= 0) close(t->ckpt_lock_fd);
    t->ckpt_lock_fd = -1;
    if (t->job.cfg->checkpoint_save_checkpoint_steps > 0) dir_make(t->ckpt_dir);
    if (!file_exists(t->ckpt_dir)) return;
    t->ckpt_lock_fd =
        folder_lock(t->ckpt_dir, t->lock_fd, "--callbacks.CheckpointMonitor.directory");
}

static const char *name_aside(const Train *t, const char *path) {
    for (int i = 1; i < MAX_ASIDE; i++) {
        const char *to = arena_printf(t->mem, "%s.before-%d", path, i);
        if (!file_exists(to)) return to;
    }
    fail(EXIT_CHECKPOINT, "%s has too many earlier copies; remove some", path);
}

static void move(const char *path, const char *to) {
    if (rename(path, to) != 0)
        fail(EXIT_CHECKPOINT, "cannot move %s to %s: %s", path, to, strerror(errno));
}

void aside_move(const Train *t, const char *path) {
    const char *to = name_aside(t, path);
    move(path, to);
    report_say(t, "note: %s of an earlier run is now %s", path, to);
}

/* The checkpoint that the run goes on from, and those before it, stay in their place. */
static void move_later(const Train *t) {
    const char *to = name_aside(t, t->ckpt_dir);
    CkptEntry *entry;
    int n, error = dir_make(to);
    if (!error) error = ckpt_list(t->mem, t->ckpt_dir, &entry, &n);
    if (error)
        fail(EXIT_CHECKPOINT, "cannot move checkpoints to %s: %s", to, strerror(error));
    for (int i = 0; i < n; i++)
        if (!entry[i].tmp && entry[i].step > t->step)
            move(path_join(t->mem, t->ckpt_dir, entry[i].name),
                 path_join(t->mem, to, entry[i].name));
    report_say(t, "note: checkpoints of steps after %lld are now in %s",
               (long long)t->step, to);
}

/* Is the checkpoint that the run goes on from one of its own folder, by whatever path? */
static bool goes_on_here(const Train *t) {
    char name[CKPT_NAME_BYTES];
    struct stat from, here;
    if (!t->loaded || stat(t->loaded, &from)) return false;
    ckpt_name(t->step, name);
    if (stat(path_join(t->mem, t->ckpt_dir, name), &here)) return false;
    return from.st_dev == here.st_dev && from.st_ino == here.st_ino;
}

/* Checkpoints of steps above `after` in a folder. */
static int count_checkpoints(const Train *t, const char *folder, int64_t after) {
    CkptEntry *entry;
    int n, count = 0;
    if (ckpt_list(t->mem, folder, &entry, &n) != 0) return 0;
    for (int i = 0; i < n; i++) count += !entry[i].tmp && entry[i].step > after;
    return count;
}

/* What is there was written by a run that had another state at these steps. */
static void move_all(Train *t, bool checkpoints) {
    static const char *const lines[] = {RUN_METRICS, RUN_VALIDATION, RUN_SAMPLES};
    const char *best = path_join(t->mem, t->run_dir, RUN_BEST);
    if (checkpoints) {
        aside_move(t, t->ckpt_dir);
        aside_lock_checkpoints(t); /* of the folder that is made in its place */
    }
    if (count_checkpoints(t, best, -1)) aside_move(t, best);
    for (int i = 0; i < ARRAY_LEN(lines); i++) {
        const char *path = path_join(t->mem, t->run_dir, lines[i]);
        struct stat st;
        if (stat(path, &st) == 0 && st.st_size > 0) aside_move(t, path);
    }
}

void aside_move_others(Train *t) {
    if (comm_rank() != 0) return;
    if (!goes_on_here(t)) {
        bool any = count_checkpoints(t, t->ckpt_dir, -1) > 0;
        if (any || !t->loaded) move_all(t, any);
        return;
    }
    bool newest = !strcmp(t->job.cfg->resume, "auto") && !t->went_back;
    if (!newest && count_checkpoints(t, t->ckpt_dir, t->step)) move_later(t);
}
