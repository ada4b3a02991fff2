/* only_file.h - the one file of a folder, for tests of caches. */
#ifndef STATOR_TEST_ONLY_FILE_H
#define STATOR_TEST_ONLY_FILE_H
#include "../test.h"
#include <dirent.h>

/* Its path, in mem; hidden files do not count. */
static inline char *only_file(Arena *mem, const char *dir) {
    DIR *list = opendir(dir);
    char *found = NULL;
    EXPECT(list != NULL);
    for (struct dirent *e; (e = readdir(list));) {
        if (e->d_name[0] == '.') continue;
        EXPECT(!found);
        found = path_join(mem, dir, e->d_name);
    }
    closedir(list);
    EXPECT(found != NULL);
    return found;
}

#endif
