/* train_aside.c - what another run has left in the folders of this one: checkpoints and lines
 * that would be taken for its own. They are the user's: moved, not deleted. */
#include "frontend/config/commands.h"
#include "frontend/model/run_folder.h"
#include "frontend/train/folder_lock.h"
#include "frontend/train/train.h"
#include "runtime/comm/comm.h"
#include "runtime/store/ckpt_files.h"
#include "runtime/text/tokenizer.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* A folder that cannot be made is said when it is saved to. */
void aside_lock_checkpoints(Train *t) {
    if (comm_rank() != 0) return;
    t->made_ckpt_dir = !file_exists(t->ckpt_dir);
    if (dir_make(t->ckpt_dir) && t->made_ckpt_dir) return;
    t->ckpt_lock_fd =
        folder_lock(t->ckpt_dir, t->lock_fd, "--callbacks.CheckpointMonitor.directory");
    ckpt_give_back(t->mem, t->ckpt_dir);
    ckpt_give_back(t->mem, path_join(t->mem, t->run_dir, RUN_BEST));
}

void aside_unlock_checkpoints(Train *t) {
    if (t->ckpt_lock_fd < 0) return;
    if (t->made_ckpt_dir) rmdir(t->ckpt_dir);
    close(t->ckpt_lock_fd);
}

static const char *name_aside(const Train *t, const char *path) {
    return file_aside(t->mem, path, "before", EXIT_CHECKPOINT);
}

static void move(const char *path, const char *to) {
    if (rename(path, to) != 0)
        fail(EXIT_CHECKPOINT, "cannot move %s to %s: %s", path, to, strerror(errno));
}

/* A file or folder of an earlier run gets another name. */
static void aside_move(const Train *t, const char *path) {
    const char *to = name_aside(t, path);
    move(path, to);
    report_say(t, "note: %s of an earlier run is now %s", path, to);
}

/* Beside the folder itself, on its disk, where the path is a link; of a run folder that has its
 * checkpoints in itself, inside of it. */
static const char *checkpoints_aside(const Train *t) {
    const char *path = t->ckpt_dir, *name = path_name(path);
    struct stat st;
    bool link = lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
    char *whole = NULL;
    if (same_folder(t->run_dir, path))
        path = path_join(t->mem, t->run_dir, RUN_CHECKPOINTS);
    else if (link || !strcmp(name, ".") || !strcmp(name, ".."))
        whole = realpath(path, NULL);
    path = name_aside(t, whole ? whole : path);
    free(whole);
    return path;
}

/* ---- what belongs to checkpoints that go aside ---- */

static void copy_file(const char *from, const char *to, const char *name) {
    Arena *mem = arena_new();
    const char *path = path_join(mem, from, name), *copy = path_join(mem, to, name);
    struct stat st;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && !file_exists(copy)) {
        size_t n;
        const char *bytes =
            file_read(mem, path, LINES_FILE_MAX_BYTES, &n, EXIT_CHECKPOINT);
        char *folder = arena_strdup(mem, copy);
        *strrchr(folder, '/') = 0;
        int error = dir_make(folder);
        if (error) fail(EXIT_CHECKPOINT, "cannot make %s: %s", folder, strerror(error));
        file_write(copy, bytes, n, EXIT_CHECKPOINT);
    }
    arena_free(mem);
}

/* By which the checkpoints are read, and are known for what they are. */
static void copy_along(const char *from, const char *to) {
    static const char *const names[] = {RUN_CONFIG, RUN_MODULE, RUN_PRODUCTS};
    Arena *mem = arena_new();
    int n;
    const char *const *name = tokenizer_files_in(mem, from, &n);
    for (int i = 0; i < ARRAY_LEN(names); i++) copy_file(from, to, names[i]);
    for (int i = 0; i < n; i++) copy_file(from, to, name[i]);
    arena_free(mem);
}

/* Does the folder of the run say that these are its checkpoints? */
static bool are_of_folder(const Train *t) {
    const char *named = run_names_checkpoints(t->mem, t->run_dir);
    if (!named) named = path_join(t->mem, t->run_dir, RUN_CHECKPOINTS);
    return same_folder(named, t->ckpt_dir);
}

/* A folder that is made, with what it takes to read the checkpoints that are moved to it. */
static const char *aside_with_belongings(const Train *t) {
    const char *to = checkpoints_aside(t);
    int error = dir_make(to);
    if (error) fail(EXIT_CHECKPOINT, "cannot make %s: %s", to, strerror(error));
    copy_along(t->ckpt_dir, to);
    if (are_of_folder(t)) copy_along(t->run_dir, to);
    return to;
}

/* Checkpoints of steps above `after`, which were saved here. The newest goes last: while it is there,
 * a run that was killed in between finds what it found before. */
static void move_checkpoints(const Train *t, const char *to, int64_t after) {
    CkptEntry *entry;
    int n, error = ckpt_list(t->mem, t->ckpt_dir, &entry, &n);
    if (error)
        fail(EXIT_CHECKPOINT, "cannot move checkpoints to %s: %s", to, strerror(error));
    for (int i = n - 1; i >= 0; i--)
        if (!entry[i].tmp && entry[i].step > after)
            move(path_join(t->mem, t->ckpt_dir, entry[i].name),
                 path_join(t->mem, to, entry[i].name));
}

/* The checkpoint that the run goes on from, and those before it, stay in their place. */
static void move_later(const Train *t) {
    const char *to = aside_with_belongings(t);
    move_checkpoints(t, to, t->step);
    report_say(t, "note: checkpoints of steps after %lld are now in %s",
               (long long)t->step, to);
}

/* The folder stays, as what else is in it may be of nobody's run. */
static void move_all_checkpoints(const Train *t) {
    static const char *const along[] = {CKPT_LATEST, RUN_PRODUCTS};
    const char *to = aside_with_belongings(t);
    move_checkpoints(t, to, -1);
    for (int i = 0; i < ARRAY_LEN(along); i++) {
        const char *path = path_join(t->mem, t->ckpt_dir, along[i]);
        if (file_exists(path)) move(path, path_join(t->mem, to, along[i]));
    }
    tokenizer_remove(t->ckpt_dir);
    if (are_of_folder(t)) tokenizer_remove(t->run_dir);
    report_say(t, "note: the checkpoints of an earlier run in %s are now in %s",
               t->ckpt_dir, to);
}

void aside_move_best(const Train *t) {
    const char *best = path_join(t->mem, t->run_dir, RUN_BEST);
    copy_along(t->run_dir, best);
    aside_move(t, best);
}

/* That of an earlier run, which a run without one would be taken to have. */
static void move_tokenizer(const Train *t, const char *folder) {
    int n;
    const char *const *name = tokenizer_files_in(t->mem, folder, &n);
    for (int i = 0; i < n; i++) {
        const char *path = path_join(t->mem, folder, name[i]);
        if (i)
            move(path, name_aside(t, path));
        else
            aside_move(t, path);
    }
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
static void move_all(const Train *t, bool checkpoints) {
    static const char *const lines[] = {RUN_METRICS, RUN_VALIDATION, RUN_SAMPLES};
    const char *best = path_join(t->mem, t->run_dir, RUN_BEST);
    if (count_checkpoints(t, best, -1)) aside_move_best(t);
    if (checkpoints) move_all_checkpoints(t);
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
        bool was_run = folder_has(t->mem, t->run_dir, RUN_CONFIG);
        if (any || !t->loaded) move_all(t, any);
        if (was_run && !t->job.tokenizer) {
            move_tokenizer(t, t->run_dir);
            move_tokenizer(t, t->ckpt_dir);
        }
        return;
    }
    bool newest = !strcmp(t->job.cfg->resume, "auto") && !t->went_back;
    if (!newest && count_checkpoints(t, t->ckpt_dir, t->step)) move_later(t);
}
