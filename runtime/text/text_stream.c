/* text_stream.c - see text_stream.h. */
#include "runtime/text/text_stream.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { INPUT_BYTES = 256 << 10, WAIT_MILLISECONDS = 200 };

typedef enum Packing { PLAIN, GZIP, ZSTD } Packing;

struct TextStream {
    Arena *mem;
    const char *path;
    int fd;
    Packing packing;
    TextStop stop;
    bool waits;      /* no regular file: bytes may be long in coming */
    uint64_t offset; /* of the end of what was read */
    bool file_ended;
    unsigned char *input; /* compressed bytes [at, have) */
    size_t at, have;
    bool inside; /* a gzip member or zstd frame has begun and not ended */
    bool whole;  /* one has ended */
    z_stream z;
    bool z_open;
    ZSTD_DStream *zstd;
};

const char *text_stream_packing(const void *bytes, size_t n) {
    if (n >= 3 && !memcmp(bytes, "\x1F\x8B\x08", 3)) return "gzip";
    return n >= 4 && !memcmp(bytes, "\x28\xB5\x2F\xFD", 4) ? "zstd" : NULL;
}

size_t text_stream_stem(const char *path) {
    static const char *const suffix[] = {".gz", ".zst", ".zstd"};
    for (int i = 0; i < ARRAY_LEN(suffix); i++)
        if (ends_with(path, suffix[i])) return strlen(path) - strlen(suffix[i]);
    return strlen(path);
}

TextStream *text_stream_open(const char *path, TextStop stop) {
    struct stat st;
    Arena *mem = arena_new();
    TextStream *s = NEW(mem, TextStream);
    s->path = arena_strdup(mem, path);
    s->mem = mem;
    s->stop = stop;
    s->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer */
    if (s->fd < 0) {
        int error = errno;
        arena_free(mem);
        fail(EXIT_DATA, "cannot open %s: %s", path, strerror(error));
    }
    s->waits = fstat(s->fd, &st) == 0 && !S_ISREG(st.st_mode);
    s->packing = ends_with(path, ".gz")                                ? GZIP
                 : ends_with(path, ".zst") || ends_with(path, ".zstd") ? ZSTD
                                                                       : PLAIN;
    if (s->packing != PLAIN) s->input = arena_alloc(mem, INPUT_BYTES);
    if (s->packing == GZIP) s->z_open = inflateInit2(&s->z, 15 + 16) == Z_OK;
    if (s->packing == ZSTD) s->zstd = ZSTD_createDStream();
    if ((s->packing == GZIP && !s->z_open) || (s->packing == ZSTD && !s->zstd)) {
        text_stream_close(s);
        fail(EXIT_MEMORY, "out of memory for reading %s", path);
    }
    return s;
}

void text_stream_close(TextStream *s) {
    if (!s) return;
    if (s->z_open) inflateEnd(&s->z);
    if (s->zstd) ZSTD_freeDStream(s->zstd);
    close(s->fd);
    arena_free(s->mem);
}

uint64_t text_stream_offset(const TextStream *s) {
    return s->offset;
}

/* Until there are bytes or an end. */
static void wait_for_bytes(const TextStream *s) {
    struct pollfd p = {.fd = s->fd, .events = POLLIN};
    const TextStop *stop = &s->stop;
    do {
        if ((stop->by_signal && *stop->by_signal) || (stop->by_work && *stop->by_work))
            fail(EXIT_DATA, "%s: it is not waited for any more", s->path);
    } while (poll(&p, 1, WAIT_MILLISECONDS) <= 0);
}

static size_t read_file(TextStream *s, void *out, size_t size) {
    ssize_t got;
    do {
        if (s->waits) wait_for_bytes(s);
        got = read(s->fd, out, size);
    } while (got < 0 && (errno == EINTR || (errno == EAGAIN && s->waits)));
    if (got < 0)
        fail(EXIT_DATA, "%s: offset %llu: cannot be read: %s", s->path,
             (unsigned long long)s->offset, strerror(errno));
    s->offset += (uint64_t)got;
    s->file_ended = got == 0;
    return (size_t)got;
}

static _Noreturn void damaged(const TextStream *s, const char *what) {
    fail(EXIT_DATA, "%s: offset %llu: %s", s->path,
         (unsigned long long)(s->offset - (s->have - s->at)), what);
}

/* More compressed bytes when there are none left. False at the end of the file. */
static bool fill(TextStream *s) {
    if (s->at < s->have) return true;
    s->at = 0;
    s->have = 0;
    if (!s->file_ended) s->have = read_file(s, s->input, INPUT_BYTES);
    return s->have > 0;
}

/* One step of inflate; returns the bytes it gave. */
static size_t step_gzip(TextStream *s, void *out, size_t size) {
    if (!s->inside) {
        /* Archives may be padded with zeros after their last member. */
        while (s->whole && s->at < s->have && s->input[s->at] == 0) s->at++;
        if (s->at == s->have) return 0;
        if (inflateReset(&s->z) != Z_OK) damaged(s, "gzip: cannot begin");
        s->inside = true;
    }
    s->z.next_in = s->input + s->at;
    s->z.avail_in = (uInt)(s->have - s->at);
    s->z.next_out = out;
    s->z.avail_out = (uInt)MIN(size, (size_t)1 << 30);
    uInt room = s->z.avail_out;
    int code = inflate(&s->z, Z_NO_FLUSH);
    s->at = s->have - s->z.avail_in;
    if (code == Z_MEM_ERROR) fail(EXIT_MEMORY, "out of memory for reading %s", s->path);
    if (code == Z_STREAM_END) {
        s->inside = false;
        s->whole = true;
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
        damaged(s, s->z.msg ? s->z.msg : "this is no gzip data");
    }
    return room - s->z.avail_out;
}

static size_t step_zstd(TextStream *s, void *out, size_t size) {
    ZSTD_inBuffer in = {s->input, s->have, s->at};
    ZSTD_outBuffer to = {out, size, 0};
    size_t code = ZSTD_decompressStream(s->zstd, &to, &in);
    if (ZSTD_isError(code)) damaged(s, ZSTD_getErrorName(code));
    s->at = in.pos;
    s->inside = code != 0;
    s->whole |= code == 0;
    return to.pos;
}

size_t text_stream_read(TextStream *s, void *out, size_t size) {
    if (s->packing == PLAIN) return s->file_ended ? 0 : read_file(s, out, size);
    for (;;) {
        /* Also with no input left: the decoder may hold output back. */
        bool more = fill(s);
        if (!more && !s->inside) {
            if (!s->whole) damaged(s, "the file is empty, not even compressed nothing");
            return 0;
        }
        size_t before = s->at;
        size_t n = s->packing == GZIP ? step_gzip(s, out, size) : step_zstd(s, out, size);
        if (n) return n;
        if (!more && s->inside && s->at == before)
            damaged(s, "the file ends inside its compressed data");
    }
}
