/* folder_lock.c - see folder_lock.h. */
#include "frontend/train/folder_lock.h"
#include "base/base.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

enum { ATTEMPTS = 20, WAIT_MICROSECONDS = 100000 };

int folder_lock(const char *path, int other, const char *way_out) {
    if (other >= 0 && fd_is_at(other, path)) return -1;
    for (int i = 0; i <= ATTEMPTS; i++) {
        if (i) usleep(WAIT_MICROSECONDS);
        dir_make(path); /* who had the lock may have removed it */
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
            fail(EXIT_DATA, "cannot open the folder %s: %s", path, strerror(errno));
        int error = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
        if (!error && !fd_is_at(fd, path)) error = EWOULDBLOCK;
        if (error != EWOULDBLOCK && error != EINTR) return fd;
        close(fd);
    }
    fail(EXIT_CONFIG, "another stator train is writing to %s; give another %s", path,
         way_out);
}
