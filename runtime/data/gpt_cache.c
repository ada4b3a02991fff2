/* gpt_cache.c - files of prepared data under a key and checksums; see gpt_index.h.
 *
 * Frame: 8 bytes magic, 32 hex digits of the key, u64 bytes of data, u64 XXH3 of the
 * data, u64 XXH3 of the 56 bytes before. All little-endian. */
#include "runtime/data/gpt_index.h"
#include <errno.h>
#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>

enum { AT_KEY = 8, AT_SIZE = 40, AT_DATA_HASH = 48, AT_FRAME_HASH = 56 };

static const char magic[8] = {'S', 'T', 'A', 'T', 'O', 'R', 'C', '1'};

static uint64_t u64_at(const unsigned char *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

bool cache_begins(const void *bytes, uint64_t n) {
    return n >= sizeof magic && !memcmp(bytes, magic, sizeof magic);
}

int64_t cache_check(const void *bytes, uint64_t n, const char key[33], const char **why) {
    const unsigned char *p = bytes;
    *why = "it is damaged: it ends inside its header";
    if (n < CACHE_FRAME) return -1;
    *why = "it is no cache of this program";
    if (memcmp(p, magic, sizeof magic)) return -1;
    *why = "it is damaged: the checksum of its header is wrong";
    if (u64_at(p + AT_FRAME_HASH) != hash64(p, AT_FRAME_HASH)) return -1;
    *why = "it was made from other data or with other settings";
    if (memcmp(p + AT_KEY, key, 32)) return -1;
    *why = "it is damaged: its size is wrong";
    if (u64_at(p + AT_SIZE) != n - CACHE_FRAME) return -1;
    *why = "it is damaged: the checksum of its data is wrong";
    if (u64_at(p + AT_DATA_HASH) != hash64(p + CACHE_FRAME, n - CACHE_FRAME)) return -1;
    *why = "";
    return (int64_t)(n - CACHE_FRAME);
}

void *cache_buffer(Arena *mem, uint64_t n) {
    uint64_t bytes;
    if (!add_size(n, CACHE_FRAME, &bytes) || bytes > PTRDIFF_MAX / 2)
        fail(EXIT_MEMORY, "%llu bytes of prepared data", (unsigned long long)n);
    return (char *)arena_alloc(mem, bytes) + CACHE_FRAME;
}

int cache_write(const char *path, const char key[33], void *data, uint64_t n) {
    char own[4096], frame[CACHE_FRAME] = {0};
    uint64_t hash = hash64(data, n);
    memcpy(frame, magic, sizeof magic);
    memcpy(frame + AT_KEY, key, 32);
    memcpy(frame + AT_SIZE, &n, sizeof n);
    memcpy(frame + AT_DATA_HASH, &hash, sizeof hash);
    hash = hash64(frame, AT_FRAME_HASH);
    memcpy(frame + AT_FRAME_HASH, &hash, sizeof hash);
    char *whole = (char *)data - CACHE_FRAME;
    memcpy(whole, frame, CACHE_FRAME);
    /* Each process writes under a name of its own, so that several on one disk do not
     * meet in one temporary file; pids and clocks of several hosts may agree. */
    uint64_t word;
    if (getentropy(&word, sizeof word) != 0) return errno;
    int used = snprintf(own, sizeof own, "%s.%016llx", path, (unsigned long long)word);
    if (used >= (int)sizeof own) return ENAMETOOLONG;
    int error = file_write_atomic(own, whole, n + CACHE_FRAME);
    if (error) return error;
    if (rename(own, path) == 0) return 0;
    error = errno;
    unlink(own);
    return error;
}
