/* ckpt_stream.c - see ckpt_stream.h. */
#define _GNU_SOURCE
#define XXH_INLINE_ALL
#include "runtime/store/ckpt_stream.h"
#include "runtime/comm/watch.h"
#include "runtime/store/element.h"
#include "runtime/store/safetensors.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

enum { BUFFER_BYTES = 256 << 10, READ_BYTES = 1 << 20 };

/* Its vectors want more than an arena's 16. */
static XXH3_state_t *aligned_state(Arena *mem) {
    enum { ALIGN = _Alignof(XXH3_state_t) };
    uintptr_t at = (uintptr_t)arena_alloc(mem, sizeof(XXH3_state_t) + ALIGN);
    return (XXH3_state_t *)(round_up((int64_t)at, ALIGN));
}

const char *ckpt_damage(Arena *mem, const char *path, int error) {
    static const int passing[] = {EACCES, EPERM,  ESTALE, ETIMEDOUT,
                                  EIO,    EMFILE, ENFILE, ENOMEM};
    for (int i = 0; i < ARRAY_LEN(passing); i++)
        if (error == passing[i])
            fail(EXIT_CHECKPOINT,
                 "cannot read %s: %s; it is not taken for damaged: start again when it "
                 "can be read, or move its checkpoint away",
                 path, strerror(error));
    const char *name = path_name(path);
    return error == ENOENT || error == ENOTDIR
               ? arena_printf(mem, "%s is missing", name)
               : arena_printf(mem, "%s: %s", name, strerror(error));
}

static const char *why_not(const CkptStream *s, int error) {
    return ckpt_damage(s->mem, s->path, error);
}

const char *stream_open(CkptStream *s, Arena *mem, const char *folder,
                        const CkptFile *file, bool verify) {
    s->mem = mem;
    s->file = file;
    s->verify = verify;
    s->at = s->used = s->have = 0;
    s->buffer = arena_alloc(mem, BUFFER_BYTES);
    s->hash = aligned_state(mem);
    XXH3_128bits_reset(s->hash);
    s->path = path_join(mem, folder, file->name);
    s->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    return s->fd < 0 ? why_not(s, errno) : NULL;
}

void stream_close(CkptStream *s) {
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
}

/* At least one byte, from the file. */
static const char *read_some(CkptStream *s, char *to, size_t most, size_t *got) {
    ssize_t n;
    do n = read(s->fd, to, most);
    while (n < 0 && errno == EINTR);
    if (n < 0) return why_not(s, errno);
    if (n == 0) return arena_printf(s->mem, "%s ends too early", s->file->name);
    watch_progress();
    if (s->verify) XXH3_128bits_update(s->hash, to, (size_t)n);
    *got = (size_t)n;
    return NULL;
}

const char *stream_pull(CkptStream *s, char *out, uint64_t n) {
    while (n) {
        size_t part = 0;
        const char *wrong = NULL;
        if (s->used == s->have && out && n >= BUFFER_BYTES) {
            wrong = read_some(s, out, (size_t)MIN(n, READ_BYTES), &part);
        } else {
            if (s->used == s->have) {
                s->used = s->have = 0;
                wrong = read_some(s, s->buffer, BUFFER_BYTES, &s->have);
            }
            part = (size_t)MIN(n, s->have - s->used);
            if (out) memcpy(out, s->buffer + s->used, part);
            s->used += part;
        }
        if (wrong) return wrong;
        s->at += part;
        if (out) out += part;
        n -= part;
    }
    return NULL;
}

const char *stream_seek(CkptStream *s, uint64_t at) {
    if (at >= s->at && (s->verify || at - s->at <= s->have - s->used))
        return stream_pull(s, NULL, at - s->at);
    check(!s->verify);
    if (lseek(s->fd, (off_t)at, SEEK_SET) < 0) return why_not(s, errno);
    s->used = s->have = 0;
    s->at = at;
    return NULL;
}

const char *stream_header(CkptStream *s, Safetensors **st) {
    uint8_t length[8];
    uint64_t file_bytes = s->file->bytes;
    const char *name = s->file->name;
    if (file_bytes < 8) return arena_printf(s->mem, "%s is too short", name);
    const char *wrong = stream_pull(s, (char *)length, 8);
    if (wrong) return wrong;
    uint64_t header = little_endian(length, 8);
    if (header > file_bytes - 8 || header > SAFETENSORS_MAX_HEADER)
        return arena_printf(s->mem, "%s has a wrong header length", name);
    char *bytes = arena_alloc(s->mem, 8 + header);
    memcpy(bytes, length, 8);
    wrong = stream_pull(s, bytes + 8, header);
    if (wrong) return wrong;
    wrong = safetensors_try(s->mem, name, bytes, 8 + header, file_bytes, st);
    return wrong ? arena_printf(s->mem, "%s: %s", name, wrong) : NULL;
}

const char *stream_check(CkptStream *s) {
    if (!s->verify) return NULL;
    const char *wrong = stream_seek(s, s->file->bytes);
    if (wrong) return wrong;
    char hex[HASH_HEX_BYTES];
    XXH128_hash_t h = XXH3_128bits_digest(s->hash);
    snprintf(hex, sizeof hex, "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
    if (!strcmp(hex, s->file->xxh3)) return NULL;
    return arena_printf(s->mem, "%s: its checksum is %s, not %s as saved", s->file->name,
                        hex, s->file->xxh3);
}
