/* prepared.c - files of prepared data under a key and checksums; see prepared.h.
 *
 * Frame: 8 bytes magic, 32 hex digits of the key, u64 bytes of data, u64 XXH3 of the
 * data, u64 XXH3 of the 56 bytes before. All little-endian. */
#include "runtime/data/prepared.h"
#include <errno.h>
#include <stdio.h>
#include <sys/random.h>

enum { AT_KEY = 8, AT_SIZE = 40, AT_DATA_HASH = 48, AT_FRAME_HASH = 56 };

static const char magic[8] = {'S', 'T', 'A', 'T', 'O', 'R', 'C', '1'};

bool prepared_begins(const void *bytes, uint64_t n) {
    return n >= sizeof magic && !memcmp(bytes, magic, sizeof magic);
}

int64_t prepared_check(const void *bytes, uint64_t n, const char key[HASH_HEX_BYTES],
                       const char **why) {
    const unsigned char *p = bytes;
    *why = "it is damaged: it ends inside its header";
    if (n < PREPARED_FRAME) return -1;
    *why = "it is no cache of this program";
    if (memcmp(p, magic, sizeof magic)) return -1;
    *why = "it is damaged: the checksum of its header is wrong";
    if (u64_at(p + AT_FRAME_HASH) != hash64(p, AT_FRAME_HASH)) return -1;
    *why = "it was made from other data or with other settings";
    if (memcmp(p + AT_KEY, key, HASH_HEX_BYTES - 1)) return -1;
    *why = "it is damaged: its size is wrong";
    if (u64_at(p + AT_SIZE) != n - PREPARED_FRAME) return -1;
    *why = "it is damaged: the checksum of its data is wrong";
    if (u64_at(p + AT_DATA_HASH) != hash64(p + PREPARED_FRAME, n - PREPARED_FRAME))
        return -1;
    *why = "";
    return (int64_t)(n - PREPARED_FRAME);
}

void *prepared_buffer(Arena *mem, uint64_t n) {
    uint64_t bytes;
    if (!add_size(n, PREPARED_FRAME, &bytes) || bytes > PTRDIFF_MAX / 2)
        fail(EXIT_MEMORY, "%llu bytes of prepared data", (unsigned long long)n);
    return (char *)arena_alloc(mem, bytes) + PREPARED_FRAME;
}

static int write_framed(const char *path, const char key[HASH_HEX_BYTES], void *data,
                        uint64_t n) {
    char own[4096], frame[PREPARED_FRAME] = {0};
    uint64_t hash = hash64(data, n);
    memcpy(frame, magic, sizeof magic);
    memcpy(frame + AT_KEY, key, HASH_HEX_BYTES - 1);
    memcpy(frame + AT_SIZE, &n, sizeof n);
    memcpy(frame + AT_DATA_HASH, &hash, sizeof hash);
    hash = hash64(frame, AT_FRAME_HASH);
    memcpy(frame + AT_FRAME_HASH, &hash, sizeof hash);
    char *whole = (char *)data - PREPARED_FRAME;
    memcpy(whole, frame, PREPARED_FRAME);
    /* Each process writes under a name of its own, so that several on one disk do not
     * meet in one temporary file; pids and clocks of several hosts may agree. */
    uint64_t word;
    if (getentropy(&word, sizeof word) != 0) return errno;
    int used = snprintf(own, sizeof own, "%s.%016llx", path, (unsigned long long)word);
    if (used >= (int)sizeof own) return ENAMETOOLONG;
    Aside a;
    int error = aside_open(&a, path, own);
    if (error) return error;
    error = aside_close(&a, fd_write(a.fd, whole, n + PREPARED_FRAME));
    return error ? error : aside_publish(&a);
}

bool prepared_read(const Prepared *f, PreparedUse *use, void *context, FileMap *held) {
    char text[512];
    const char *why = text;
    if (!file_exists(f->path)) return false;
    if (file_map_quietly(held, f->path, text, sizeof text)) {
        int64_t n = prepared_check(held->bytes, held->n, f->key, &why);
        if (n >= 0 && use(context, held->bytes + PREPARED_FRAME, (uint64_t)n))
            return true;
        if (n >= 0) why = "it is damaged: its data contradicts itself";
        file_unmap(held);
    }
    snprintf(f->note, PREPARED_NOTE, "%s %.200s is made again: %.250s", f->what, f->path,
             why);
    return false;
}

void prepared_write(const Prepared *f, void *data, uint64_t n) {
    int error = f->folder ? dir_make(f->folder) : 0;
    if (!error) error = write_framed(f->path, f->key, data, n);
    if (error)
        snprintf(f->note, PREPARED_NOTE,
                 "the %s %.300s cannot be written (%s): going on without", f->what,
                 f->path, strerror(error));
}
