/* files.c - files and folders; see base.h. */
#define _GNU_SOURCE
#include "base/base.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* A pipe would wait for its writer without end. */
static int regular_open(const char *path, uint64_t max_bytes, size_t *n, int code) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) fail(code, "cannot open %s: %s", path, strerror(errno));
    struct stat st;
    bool known = fstat(fd, &st) == 0;
    if (known && S_ISREG(st.st_mode) && (uint64_t)st.st_size <= max_bytes) {
        *n = (size_t)st.st_size;
        return fd;
    }
    close(fd);
    if (!known) fail(code, "cannot look at %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) fail(code, "%s is a folder, not a file", path);
    if (!S_ISREG(st.st_mode))
        fail(code, "%s is not a regular file but a pipe or a device: give a file", path);
    fail(code, "%s has %lld bytes; at most %llu are read", path, (long long)st.st_size,
         (unsigned long long)max_bytes);
}

static ssize_t read_part(int fd, char *to, size_t n) {
    ssize_t got;
    do got = read(fd, to, n);
    while (got < 0 && errno == EINTR);
    return got;
}

char *file_read(Arena *a, const char *path, uint64_t max_bytes, size_t *size, int code) {
    size_t n, have = 0;
    int fd = regular_open(path, max_bytes, &n, code);
    char *bytes = arena_alloc(a, n + 1);
    for (ssize_t got; have < n && (got = read_part(fd, bytes + have, n - have)) > 0;)
        have += (size_t)got;
    close(fd);
    if (have != n) fail(code, "%s: read %zu of %zu bytes", path, have, n);
    if (size) *size = n;
    return bytes;
}

char *file_read_to_end(Arena *a, const char *path, uint64_t max_bytes, size_t *size,
                       int code) {
    enum { PART = 1 << 16 };
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail(code, "cannot open %s: %s", path, strerror(errno));
    char *part = arena_alloc(a, PART);
    Text all = text_new(a);
    ssize_t got;
    while ((got = read_part(fd, part, PART)) > 0 && all.n <= max_bytes)
        text_add_bytes(&all, part, (size_t)got);
    int error = got < 0 ? errno : 0;
    close(fd);
    if (error) fail(code, "cannot read %s: %s", path, strerror(error));
    if (all.n > max_bytes)
        fail(code, "%s has more than the %llu bytes that are read", path,
             (unsigned long long)max_bytes);
    *size = all.n;
    return all.s;
}

int fd_write(int fd, const void *bytes, size_t n) {
    const char *p = bytes;
    while (n) {
        ssize_t put = write(fd, p, n);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return errno;
        p += put;
        n -= (size_t)put;
    }
    return 0;
}

int fd_reserve(int fd, uint64_t n) {
    int error;
    do error = fallocate(fd, 0, 0, (off_t)n) == 0 ? 0 : errno;
    while (error == EINTR);
    return error == EOPNOTSUPP || error == ENOSYS ? 0 : error;
}

int dir_sync(int fd) {
    return fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
}

int dir_sync_of(const char *path) {
    char folder[4096] = ".";
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + 1 : 1;
    if (n >= sizeof folder) return ENAMETOOLONG;
    if (slash) memcpy(folder, path, n);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno == EACCES ? 0 : errno;
    int error = dir_sync(fd);
    close(fd);
    return error;
}

int aside_open(Aside *a, const char *path, const char *tmp) {
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;
    *a = (Aside){path, tmp, open(tmp, flags, 0644)};
    return a->fd < 0 ? errno : 0;
}

int aside_close(Aside *a, int error) {
    if (!error && fsync(a->fd) != 0) error = errno;
    if (close(a->fd) != 0 && !error) error = errno;
    if (error) unlink(a->tmp);
    return error;
}

int aside_publish(const Aside *a) {
    if (rename(a->tmp, a->path) == 0) return dir_sync_of(a->path);
    int error = errno;
    unlink(a->tmp);
    return error;
}

typedef char AsideName[4096];

static bool name_aside(AsideName tmp, const char *path) {
    return snprintf(tmp, sizeof(AsideName), "%s.tmp", path) < (int)sizeof(AsideName);
}

static int write_aside(Aside *a, const FileBytes *f, AsideName tmp) {
    if (!name_aside(tmp, f->path)) return ENAMETOOLONG;
    int error = aside_open(a, f->path, tmp);
    return error ? error : aside_close(a, fd_write(a->fd, f->bytes, f->n));
}

int file_write_atomic(const char *path, const void *bytes, size_t n) {
    Aside a;
    AsideName tmp;
    int error = write_aside(&a, &(FileBytes){path, bytes, n}, tmp);
    return error ? error : aside_publish(&a);
}

void files_write(const FileBytes *file, int n, int code) {
    Aside a;
    AsideName tmp;
    const char *path = NULL;
    int error = 0, done = 0;
    while (!error && done < n) {
        path = file[done].path;
        error = write_aside(&a, &file[done], tmp);
        done += !error;
    }
    for (int i = 0; i < done; i++) { /* after an error what was written aside goes */
        name_aside(tmp, file[i].path);
        if (error)
            unlink(tmp);
        else
            error = aside_publish(&(Aside){path = file[i].path, tmp, -1});
    }
    if (error) fail(code, "cannot write %s: %s", path, strerror(error));
}

void file_write(const char *path, const void *bytes, size_t n, int code) {
    int error = file_write_atomic(path, bytes, n);
    if (error) fail(code, "cannot write %s: %s", path, strerror(error));
}

void file_check_written(const char *path) {
    char folder[4096] = ".";
    const char *slash = strrchr(path, '/');
    if (slash) snprintf(folder, sizeof folder, "%.*s", (int)(slash - path) + 1, path);
    int error = access(folder, W_OK) ? errno : dir_exists(path) ? EISDIR : 0;
    if (error) fail(EXIT_DATA, "cannot write %s: %s", path, strerror(error));
}

int file_append(const char *path, const void *bytes, size_t n) {
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) return errno;
    const off_t end = lseek(fd, 0, SEEK_END);
    int error = end < 0 ? errno : fd_write(fd, bytes, n);
    if (!error && fsync(fd) != 0) error = errno;
    if (error && end >= 0 && ftruncate(fd, end) != 0) error = errno;
    if (close(fd) != 0 && !error) error = errno;
    return error;
}

char *file_aside(Arena *a, const char *path, const char *why, int code) {
    enum { MOST = 10000 };
    for (int i = 1; i < MOST; i++) {
        char *to = arena_printf(a, "%s.%s-%d", path, why, i);
        if (!file_exists(to)) return to;
    }
    fail(code, "%s has too many earlier copies; remove some", path);
}

bool file_exists(const char *path) {
    return access(path, F_OK) == 0;
}

bool dir_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int dir_make(const char *path) {
    char part[4096];
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part) return ENAMETOOLONG;
    for (char *p = part + 1;; p++) {
        char c = *p;
        if (c != '/' && c != 0) continue;
        *p = 0;
        if (mkdir(part, 0755) != 0 && errno != EEXIST) return errno;
        *p = c;
        if (!c) break;
    }
    struct stat st;
    if (stat(path, &st) != 0) return errno;
    return S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
}

char *path_join(Arena *a, const char *dir, const char *name) {
    if (name[0] == '/' || !dir[0]) return arena_strdup(a, name);
    const char *slash = dir[strlen(dir) - 1] == '/' ? "" : "/";
    return arena_printf(a, "%s%s%s", dir, slash, name);
}

bool folder_has(Arena *a, const char *folder, const char *file) {
    return file_exists(path_join(a, folder, file));
}

const char *path_folder(Arena *a, const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return ".";
    return arena_strndup(a, path, slash == path ? 1 : (size_t)(slash - path));
}

const char *path_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool fd_is_at(int fd, const char *path) {
    struct stat held, there;
    return fstat(fd, &held) == 0 && stat(path, &there) == 0 &&
           held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

char process_state(int pid, int *parent) {
    char path[64], line[512], state = '?';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    line[fread(line, 1, sizeof line - 1, f)] = 0;
    fclose(f);
    const char *end = strrchr(line, ')'); /* the name in (...) may hold anything */
    if (end) sscanf(end + 1, " %c %d", &state, parent);
    return state;
}
