/* file_map.c - see file_map.h. */
#include "runtime/core/file_map.h"
#include "runtime/core/map_guard.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void file_map(FileMap *map, const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) fail(EXIT_DATA, "cannot open %s: %s", path, strerror(errno));
    struct stat st;
    bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    void *bytes = NULL;
    if (regular && st.st_size > 0)
        bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    int error = errno;
    close(fd);
    if (!regular)
        fail(EXIT_DATA, "%s is %s", path,
             dir_exists(path) ? "a folder, not a file" : "not a regular file");
    if (bytes == MAP_FAILED) fail(EXIT_DATA, "cannot map %s: %s", path, strerror(error));
    map->bytes = bytes;
    map->n = (uint64_t)st.st_size;
    map_note(bytes, map->n, path);
}

bool file_map_quietly(FileMap *map, const char *path, char *why, size_t n) {
    Catch c;
    if (!CATCH(c)) {
        snprintf(why, n, "%s", catch_text(&c));
        return false;
    }
    file_map(map, path);
    catch_end(&c);
    return true;
}

void file_unmap(FileMap *map) {
    map_forget(map->bytes);
    if (map->bytes) munmap((void *)(uintptr_t)map->bytes, map->n);
    map->bytes = NULL;
    map->n = 0;
}
