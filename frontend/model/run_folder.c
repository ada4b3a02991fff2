/* run_folder.c - see run_folder.h. */
#include "frontend/model/run_folder.h"
#include "frontend/config/config.h"
#include <sys/stat.h>

const char *run_names_checkpoints(Arena *mem, const char *run) {
    const char *path = path_join(mem, run, "config.yaml");
    Catch c;
    if (!file_exists(path) || !CATCH(c)) return NULL;
    const char *named = config_load(mem, path, 0, NULL)->checkpoint_directory;
    catch_end(&c);
    return named[0] ? named : NULL;
}

bool same_folder(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}
