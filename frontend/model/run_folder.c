/* run_folder.c - see run_folder.h. */
#include "frontend/model/run_folder.h"
#include "frontend/config/commands.h"
#include "frontend/config/config.h"
#include "runtime/store/ckpt_files.h"
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

const char *run_names_checkpoints(Arena *mem, const char *run) {
    const char *path = path_join(mem, run, RUN_CONFIG);
    Catch c;
    if (!file_exists(path) || !CATCH(c)) return NULL;
    const char *named = config_load(mem, path, 0, NULL)->checkpoint_directory;
    catch_end(&c);
    return named[0] ? named : NULL;
}

bool has_checkpoints(Arena *mem, const char *folder) {
    CkptEntry *e;
    int n = 0;
    if (!dir_exists(folder)) return false;
    int error = ckpt_list(mem, folder, &e, &n);
    if (error && error != ENOENT)
        fail(EXIT_CHECKPOINT, "cannot read the folder %s: %s", folder, strerror(error));
    for (int i = 0; i < n; i++)
        if (!e[i].tmp) return true;
    return false;
}

const char *run_checkpoints(Arena *mem, const char *run) {
    const char *own = path_join(mem, run, RUN_CHECKPOINTS);
    const char *named = run_names_checkpoints(mem, run);
    bool has = has_checkpoints(mem, own);
    if (!named || !has_checkpoints(mem, named) || same_folder(named, own))
        return has ? own : NULL;
    if (has)
        say_aside("note: the checkpoints of %s are those in %s, which its config.yaml "
                  "names; %s has others: write that folder to take one of them",
                  run, named, own);
    return named;
}

const char *run_where_named(Arena *mem, const char *run) {
    const char *named = run_names_checkpoints(mem, run);
    if (!named) return "";
    char here[4096] = ".";
    if (!getcwd(here, sizeof here)) strcpy(here, ".");
    return arena_printf(mem,
                        ", and none in %s, which its config.yaml names "
                        "(callbacks.CheckpointMonitor.directory)%s%s",
                        named, named[0] == '/' ? "" : ", seen from ",
                        named[0] == '/' ? "" : here);
}

bool same_folder(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}
