/* cache.c - the folder of compiled objects; see cache.h. A file is a Header and the
 * object; its name is the key and ".o". The key is in the header too: an object under the
 * wrong name would run and give wrong numbers. All files are reached through the folder's
 * descriptor, so that the folder that was checked is the one that is used. */
#define _GNU_SOURCE
#include "codegen/cache.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct Header {
    char magic[8];
    uint64_t bytes; /* of the object */
    char key[32];
    char checksum[32]; /* XXH3-128 of the whole file but these 32 zero, hex */
} Header;
_Static_assert(sizeof(Header) == 80, "the header has no padding");

static const char magic[8] = {'s', 't', 'a', 't', 'o', 'r', 'O', '2'};
enum { HEX = CACHE_KEY_CHARS - 1, TMP_CHARS = 40, STALE_SECONDS = 3600 };

void cache_key(const char *text, size_t n, char key[CACHE_KEY_CHARS]) {
    hash_hex(text, n, key);
}

/* Said once a run: the cache is a convenience. */
static void warn_unusable(const char *path, const char *what) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool said;
    pthread_mutex_lock(&lock);
    bool first = !said;
    said = true;
    pthread_mutex_unlock(&lock);
    if (first)
        fprintf(stderr,
                "stator: warning: compiled code is not kept in %s: %s "
                "(STATOR_CACHE names another folder; STATOR_CACHE=off is silent)\n",
                path, what);
}

/* False when the cache is off or no folder is known. */
static bool folder_path(char *path, size_t size) {
    const char *own = getenv("STATOR_CACHE"), *xdg = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    int n;
    if (own && own[0]) {
        if (strcmp(own, "off") == 0) return false;
        n = snprintf(path, size, "%s", own);
    } else if (xdg && xdg[0] == '/') {
        n = snprintf(path, size, "%s/stator", xdg);
    } else if (home && home[0] == '/') {
        n = snprintf(path, size, "%s/.cache/stator", home);
    } else {
        warn_unusable("a folder", "neither HOME nor XDG_CACHE_HOME is set");
        return false;
    }
    if (n < (int)size) return true;
    warn_unusable("STATOR_CACHE", "the path is too long");
    return false;
}

/* Makes the parents as usual and the folder itself for the user alone. */
static int folder_make(const char *path) {
    char parent[4096];
    snprintf(parent, sizeof parent, "%s", path);
    char *slash = strrchr(parent, '/');
    if (slash && slash != parent) {
        *slash = 0;
        int error = dir_make(parent);
        if (error) return error;
    }
    return mkdir(path, 0700) == 0 || errno == EEXIST ? 0 : errno;
}

/* Descriptor of the checked folder, or -1 (said once, unless it is off). */
static int folder_open(void) {
    char path[4096];
    if (!folder_path(path, sizeof path)) return -1;
    int error = folder_make(path);
    int fd = error ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        warn_unusable(path, strerror(error ? error : errno));
        return -1;
    }
    struct stat st;
    const char *bad = fstat(fd, &st) != 0       ? strerror(errno)
                      : st.st_uid != geteuid()  ? "it belongs to another user"
                      : (st.st_mode & 022) != 0 ? "others may write to it (chmod 700)"
                                                : NULL;
    if (!bad) return fd;
    close(fd);
    warn_unusable(path, bad);
    return -1;
}

static bool key_is_good(const char *key) {
    return strlen(key) == HEX && strspn(key, "0123456789abcdef") == HEX;
}

static void file_name(const char *key, char name[HEX + 3]) {
    check(key_is_good(key));
    memcpy(name, key, HEX);
    memcpy(name + HEX, ".o", 3);
}

/* Why a file is not to be trusted, whatever is in it. */
static const char *not_ours(const struct stat *st) {
    if (!S_ISREG(st->st_mode) || st->st_uid != geteuid())
        return "not a file of this user";
    if (st->st_mode & 022) return "others may write to it";
    if (st->st_size < (off_t)sizeof(Header) || (uint64_t)st->st_size > CACHE_LIMIT_BYTES)
        return "its size is impossible";
    return NULL;
}

static bool read_whole(int fd, char *to, size_t n) {
    for (size_t have = 0; have < n;) {
        ssize_t got = pread(fd, to + have, n - have, (off_t)have);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        have += (size_t)got;
    }
    return true;
}

static const char *damage(char *file, size_t n, const char *key) {
    Header h;
    char sum[33];
    memcpy(&h, file, sizeof h);
    if (memcmp(h.magic, magic, sizeof magic) != 0) return "not an object of this cache";
    if (h.bytes != (uint64_t)n - sizeof h) return "truncated";
    memset(file + offsetof(Header, checksum), 0, sizeof h.checksum);
    hash_hex(file, n, sum);
    if (memcmp(sum, h.checksum, sizeof h.checksum) != 0) return "its checksum is wrong";
    return memcmp(h.key, key, HEX) ? "it is the object of another key" : NULL;
}

/* Reads and checks a file; NULL and a reason when it is not the object of `key`. */
static void *object_read(Arena *a, int fd, const char *key, size_t *n, const char **bad) {
    struct stat st;
    *bad = fstat(fd, &st) != 0 ? strerror(errno) : not_ours(&st);
    if (*bad) return NULL;
    size_t size = (size_t)st.st_size;
    char *file = arena_alloc(a, size);
    *bad = read_whole(fd, file, size) ? damage(file, size, key) : "unreadable";
    *n = size - sizeof(Header);
    return *bad ? NULL : file + sizeof(Header);
}

void *cache_get(Arena *a, const char *key, size_t *n) {
    char name[HEX + 3];
    file_name(key, name);
    int folder = folder_open();
    if (folder < 0) return NULL;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    void *object = NULL;
    const char *bad = NULL;
    if (fd >= 0)
        object = object_read(a, fd, key, n, &bad);
    else if (errno != ENOENT)
        bad = strerror(errno);
    if (object) futimens(fd, NULL); /* used now: trimmed last */
    if (fd >= 0) close(fd);
    if (bad) {
        fprintf(stderr, "stator: warning: cached object %s: %s; compiling again\n", name,
                bad);
        unlinkat(folder, name, 0);
    }
    close(folder);
    return object;
}

/* A file that is there at that moment is of another writer: no name is taken over. */
static int temporary_open(int folder, char name[TMP_CHARS]) {
    uint64_t word[2];
    if (getentropy(word, sizeof word) != 0) return -1;
    snprintf(name, TMP_CHARS, "tmp-%016llx%016llx", (unsigned long long)word[0],
             (unsigned long long)word[1]);
    return openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                  0600);
}

/* The checksum is over header and object in one piece, as they are read. */
static char *file_bytes(Arena *mem, const char *key, const void *object, size_t n) {
    char sum[33], *file = arena_alloc(mem, sizeof(Header) + n);
    Header h = {.bytes = n};
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.key, key, sizeof h.key);
    memcpy(file, &h, sizeof h);
    memcpy(file + sizeof h, object, n);
    hash_hex(file, sizeof h + n, sum);
    memcpy(file + offsetof(Header, checksum), sum, sizeof h.checksum);
    return file;
}

/* Writes under a name of this call alone, then renames. No fsync: what a power cut leaves
 * fails its checksum and is compiled again. */
static int object_write(int folder, const char *key, const void *object, size_t n) {
    char tmp[TMP_CHARS], name[HEX + 3];
    int fd = temporary_open(folder, tmp);
    if (fd < 0) return errno;
    Arena *mem = arena_new();
    int error = fd_write(fd, file_bytes(mem, key, object, n), sizeof(Header) + n);
    arena_free(mem);
    if (close(fd) != 0 && !error) error = errno;
    file_name(key, name);
    if (!error && renameat(folder, tmp, folder, name) != 0) error = errno;
    if (error) unlinkat(folder, tmp, 0);
    return error;
}

/* Trimming. */

typedef struct Entry {
    char name[HEX + 3];
    uint64_t bytes;
    struct timespec used;
} Entry;

typedef struct Listing {
    Entry *items;
    int n, cap;
    uint64_t bytes;
} Listing;

static int older_first(const void *x, const void *y) {
    const Entry *a = x, *b = y;
    if (a->used.tv_sec != b->used.tv_sec) return a->used.tv_sec < b->used.tv_sec ? -1 : 1;
    if (a->used.tv_nsec != b->used.tv_nsec)
        return a->used.tv_nsec < b->used.tv_nsec ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Adds one file; anything in the folder that is not ours is left alone. */
static void listing_add(Arena *a, Listing *l, int folder, const char *name) {
    struct stat st;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
        return;
    if (strncmp(name, "tmp-", 4) == 0) {
        if (time(NULL) - st.st_mtime > STALE_SECONDS) unlinkat(folder, name, 0);
        return;
    }
    if (strlen(name) != HEX + 2 || strspn(name, "0123456789abcdef") != HEX ||
        strcmp(name + HEX, ".o"))
        return;
    Entry e = {.bytes = (uint64_t)st.st_size, .used = st.st_mtim};
    memcpy(e.name, name, sizeof e.name);
    PUSH(a, l->items, l->n, l->cap, e);
    l->bytes += e.bytes;
}

static void trim(int folder, uint64_t limit_bytes) {
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        if (fd >= 0) close(fd);
        return;
    }
    Arena *a = arena_new();
    Listing l = {0};
    for (struct dirent *d; (d = readdir(dir));) listing_add(a, &l, folder, d->d_name);
    closedir(dir);
    if (l.bytes > limit_bytes) qsort(l.items, (size_t)l.n, sizeof *l.items, older_first);
    for (int i = 0; i < l.n && l.bytes > limit_bytes; i++) {
        unlinkat(folder, l.items[i].name, 0);
        l.bytes -= l.items[i].bytes;
    }
    arena_free(a);
}

void cache_trim(uint64_t limit_bytes) {
    int folder = folder_open();
    if (folder < 0) return;
    trim(folder, limit_bytes);
    close(folder);
}

void cache_put(const char *key, const void *object, size_t n) {
    char path[4096];
    if (n > CACHE_LIMIT_BYTES / 2) return; /* it would throw all others out */
    int folder = folder_open();
    if (folder < 0) return;
    int error = object_write(folder, key, object, n);
    if (error && folder_path(path, sizeof path)) warn_unusable(path, strerror(error));
    if (!error) trim(folder, CACHE_LIMIT_BYTES);
    close(folder);
}
