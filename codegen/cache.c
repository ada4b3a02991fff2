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
enum { HEX = CACHE_KEY_CHARS - 1, NAME_CHARS = HEX + 5, TMP_CHARS = 40 };
enum { STALE_SECONDS = 3600, TEXT_BYTES = 16 << 20 };
/* How names end: of objects, of texts. */
static const char object_end[] = ".o", text_end[] = ".txt";

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
        say_aside("stator: warning: compiled code is not kept in %s: %s "
                  "(STATOR_CACHE names another folder; STATOR_CACHE=off is silent)",
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

static void file_name(const char *key, const char *end, char name[NAME_CHARS]) {
    check(strlen(key) == HEX && strspn(key, "0123456789abcdef") == HEX);
    snprintf(name, NAME_CHARS, "%s%s", key, end);
}

/* Why a file is not to be trusted, whatever is in it. */
static const char *not_ours(const struct stat *st, uint64_t least, uint64_t most) {
    if (!S_ISREG(st->st_mode) || st->st_uid != geteuid())
        return "not a file of this user";
    if (st->st_mode & 022) return "others may write to it";
    if ((uint64_t)st->st_size < least || (uint64_t)st->st_size > most)
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
    char sum[HASH_HEX_BYTES];
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
    *bad = fstat(fd, &st) != 0 ? strerror(errno)
                               : not_ours(&st, sizeof(Header), CACHE_LIMIT_BYTES);
    if (*bad) return NULL;
    size_t size = (size_t)st.st_size;
    char *file = arena_alloc(a, size);
    *bad = read_whole(fd, file, size) ? damage(file, size, key) : "unreadable";
    *n = size - sizeof(Header);
    return *bad ? NULL : file + sizeof(Header);
}

/* The whole file, ended by a zero. */
static void *text_read(Arena *a, int fd, const char *key, size_t *n, const char **bad) {
    struct stat st;
    (void)key;
    *bad = fstat(fd, &st) != 0 ? strerror(errno) : not_ours(&st, 0, TEXT_BYTES);
    if (*bad) return NULL;
    *n = (size_t)st.st_size;
    char *text = arena_alloc(a, *n + 1);
    text[*n] = 0;
    *bad = read_whole(fd, text, *n) ? NULL : "unreadable";
    return *bad ? NULL : text;
}

typedef void *(*ReadFile)(Arena *a, int fd, const char *key, size_t *n, const char **bad);

/* What a file holds that `read` takes; one that it does not is removed. */
static void *get(Arena *a, const char *key, const char *end, ReadFile read, size_t *n,
                 const char *instead) {
    char name[NAME_CHARS];
    file_name(key, end, name);
    int folder = folder_open();
    if (folder < 0) return NULL;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    void *found = NULL;
    const char *bad = NULL;
    if (fd >= 0)
        found = read(a, fd, key, n, &bad);
    else if (errno != ENOENT)
        bad = strerror(errno);
    if (found) futimens(fd, NULL); /* used now: trimmed last */
    if (fd >= 0) close(fd);
    if (bad) {
        fprintf(stderr, "stator: warning: cached %s: %s; %s\n", name, bad, instead);
        unlinkat(folder, name, 0);
    }
    close(folder);
    return found;
}

void *cache_get(Arena *a, const char *key, size_t *n) {
    return get(a, key, object_end, object_read, n, "compiling again");
}

char *cache_get_text(Arena *a, const char *key) {
    size_t n;
    return get(a, key, text_end, text_read, &n, "its choices are made again");
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
    char sum[HASH_HEX_BYTES], *file = arena_alloc(mem, sizeof(Header) + n);
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
static int file_put(int folder, const char *name, const void *bytes, size_t n) {
    char tmp[TMP_CHARS];
    int fd = temporary_open(folder, tmp);
    if (fd < 0) return errno;
    int error = fd_write(fd, bytes, n);
    if (close(fd) != 0 && !error) error = errno;
    if (!error && renameat(folder, tmp, folder, name) != 0) error = errno;
    if (error) unlinkat(folder, tmp, 0);
    return error;
}

/* Trimming. */

typedef struct Entry {
    char name[NAME_CHARS];
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
    if (begins_with(name, "tmp-")) {
        if (time(NULL) - st.st_mtime > STALE_SECONDS) unlinkat(folder, name, 0);
        return;
    }
    if (strspn(name, "0123456789abcdef") != HEX ||
        (strcmp(name + HEX, object_end) && strcmp(name + HEX, text_end)))
        return;
    Entry e = {.bytes = (uint64_t)st.st_size, .used = st.st_mtim};
    memcpy(e.name, name, strlen(name) + 1);
    PUSH(a, l->items, l->n, l->cap, e);
    l->bytes += e.bytes;
}

enum { LIMIT_SHARES = 8 };

/* What is over the limit goes, and a share of it besides; the bytes that are left. */
static uint64_t trim(int folder) {
    const uint64_t limit = CACHE_LIMIT_BYTES, keep = limit - limit / LIMIT_SHARES;
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        if (fd >= 0) close(fd);
        return limit;
    }
    Arena *a = arena_new();
    Listing l = {0};
    for (struct dirent *d; (d = readdir(dir));) listing_add(a, &l, folder, d->d_name);
    closedir(dir);
    bool over = l.bytes > limit;
    if (over) qsort(l.items, (size_t)l.n, sizeof *l.items, older_first);
    for (int i = 0; over && i < l.n && l.bytes > keep; i++) {
        unlinkat(folder, l.items[i].name, 0);
        l.bytes -= l.items[i].bytes;
    }
    arena_free(a);
    return l.bytes;
}

/* Looking at thousands of files takes as long as compiling a kernel: what is free then is added
 * to before the next look, by this process an eighth of it, as others add too. Where nothing was
 * free, some is made. */
static void trim_at_times(int folder, uint64_t added) {
    static _Atomic uint64_t room;
    uint64_t left = room;
    if (left >= added) {
        room = left - added;
        return;
    }
    uint64_t bytes = trim(folder);
    room = bytes < CACHE_LIMIT_BYTES ? (CACHE_LIMIT_BYTES - bytes) / LIMIT_SHARES : 0;
}

static void put(const char *name, const void *bytes, size_t n) {
    char path[4096];
    int folder = folder_open();
    if (folder < 0) return;
    int error = file_put(folder, name, bytes, n);
    if (error && folder_path(path, sizeof path)) warn_unusable(path, strerror(error));
    if (!error) trim_at_times(folder, n);
    close(folder);
}

void cache_put(const char *key, const void *object, size_t n) {
    char name[NAME_CHARS];
    if (n > CACHE_LIMIT_BYTES / 2) return; /* it would throw all others out */
    Arena *mem = arena_new();
    file_name(key, object_end, name);
    put(name, file_bytes(mem, key, object, n), sizeof(Header) + n);
    arena_free(mem);
}

void cache_put_text(const char *key, const char *text) {
    char name[NAME_CHARS];
    size_t n = strlen(text);
    if (n > TEXT_BYTES) return;
    file_name(key, text_end, name);
    put(name, text, n);
}
