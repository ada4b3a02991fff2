/* indexed_write.c - see indexed_write.h. The .idx begins with the lengths, so they are
 * written straight away; the sequence counts of the documents wait in a file without a
 * name, and the header comes last. */
#define _GNU_SOURCE
#include "runtime/data/indexed_write.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

enum { HEADER_BYTES = 34, BUFFER_BYTES = 256 << 10 };

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tables are little-endian");

typedef struct Out {
    const char *path; /* as it is called now */
    const char *name; /* in the end */
    int fd;
    char *buffer;
    size_t used;
} Out;

struct IndexedWriter {
    Arena *mem;
    const char *prefix;
    int token_bytes;
    uint64_t sequences, documents, tokens;
    Out bin, idx, counts;
    bool finished;
};

static _Noreturn void cannot(const Out *o, int error) {
    off_t at = lseek(o->fd, 0, SEEK_CUR);
    fail(EXIT_DATA, "%s: offset %lld: cannot write: %s", o->path, (long long)at,
         strerror(error));
}

static void write_all(Out *o, const char *p, size_t n) {
    int error = fd_write(o->fd, p, n);
    if (error) cannot(o, error);
}

static void flush(Out *o) {
    write_all(o, o->buffer, o->used);
    o->used = 0;
}

static void out(Out *o, const void *p, size_t n) {
    if (n > BUFFER_BYTES - o->used) flush(o);
    if (n >= BUFFER_BYTES) {
        write_all(o, p, n);
        return;
    }
    if (n) memcpy(o->buffer + o->used, p, n); /* p may be NULL with nothing */
    o->used += n;
}

static void read_at(const Out *o, void *p, size_t n, uint64_t offset) {
    for (size_t have = 0; have < n;) {
        ssize_t got = pread(o->fd, (char *)p + have, n - have, (off_t)(offset + have));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            fail(EXIT_DATA, "%s: offset %llu: cannot read back: %s", o->path,
                 (unsigned long long)(offset + have), got ? strerror(errno) : "cut off");
        have += (size_t)got;
    }
}

/* Opens and locks a .tmp file: one that a killed process has left is taken over. */
static void out_open(Arena *mem, Out *o, const char *prefix, const char *suffix) {
    o->name = arena_printf(mem, "%s%s", prefix, suffix);
    o->path = arena_printf(mem, "%s.tmp", o->name);
    o->buffer = arena_alloc(mem, BUFFER_BYTES);
    for (;;) {
        o->fd = open(o->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (o->fd < 0) fail(EXIT_DATA, "cannot write %s: %s", o->path, strerror(errno));
        if (flock(o->fd, LOCK_EX | LOCK_NB) != 0) {
            int error = errno;
            close(o->fd);
            o->fd = -1;
            fail(EXIT_DATA, "cannot write %s: %s", o->path,
                 error == EWOULDBLOCK ? "another process is writing it"
                                      : strerror(error));
        }
        /* another process may have given it its name between our open and our lock */
        if (fd_is_at(o->fd, o->path)) break;
        close(o->fd);
        o->fd = -1;
    }
    if (ftruncate(o->fd, 0) != 0) cannot(o, errno);
}

/* A file without a name in the same folder, so that it cannot be left over: it has one for an instant
 * where the file system cannot make any other. */
static void counts_open(IndexedWriter *w) {
    Out *o = &w->counts;
    char *path = arena_printf(w->mem, "%s.counts.XXXXXX", w->prefix);
    o->path = path;
    o->buffer = arena_alloc(w->mem, BUFFER_BYTES);
    o->fd = open(path_folder(w->mem, path), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (o->fd >= 0) return;
    o->fd = mkostemp(path, O_CLOEXEC);
    if (o->fd < 0) fail(EXIT_DATA, "cannot write %s: %s", path, strerror(errno));
    unlink(path);
}

IndexedWriter *indexed_write_open(Arena *mem, const char *prefix, int64_t vocab) {
    IndexedWriter *w = NEW(mem, IndexedWriter);
    w->mem = mem;
    w->prefix = arena_strdup(mem, prefix);
    w->token_bytes = indexed_token_bytes(vocab);
    w->bin.fd = w->idx.fd = w->counts.fd = -1;
    const char *dir = path_folder(mem, prefix);
    int error = dir_make(dir);
    if (error) fail(EXIT_DATA, "cannot make the folder %s: %s", dir, strerror(error));
    Catch c;
    if (CATCH(c)) {
        out_open(mem, &w->bin, prefix, ".bin");
        out_open(mem, &w->idx, prefix, ".idx");
        counts_open(w);
        char header[HEADER_BYTES] = {0};
        out(&w->idx, header, sizeof header);
        catch_end(&c);
        return w;
    }
    indexed_write_close(w);
    fail_again(c.code, c.message);
}

void indexed_write_add(IndexedWriter *w, const IndexedPart *part) {
    uint64_t tokens = 0, sequences = 0;
    for (size_t i = 0; i < part->nlengths; i++) {
        check(part->lengths[i] >= 0);
        tokens += (uint64_t)part->lengths[i];
    }
    for (size_t i = 0; i < part->nsequences; i++)
        sequences += (uint64_t)part->sequences[i];
    check(sequences == part->nlengths);
    check(tokens * (uint64_t)w->token_bytes == part->token_bytes);
    out(&w->bin, part->tokens, part->token_bytes);
    out(&w->idx, part->lengths, part->nlengths * sizeof *part->lengths);
    out(&w->counts, part->sequences, part->nsequences * sizeof *part->sequences);
    w->sequences += sequences;
    w->documents += part->nsequences;
    w->tokens += tokens;
}

/* n numbers of `from` at `offset`, summed up and scaled, as int64 at the end of the
 * .idx. */
static void write_sums(IndexedWriter *w, const Out *from, uint64_t offset, uint64_t n,
                       int64_t scale) {
    enum { CHUNK = 4096 };
    int32_t in[CHUNK];
    int64_t sums[CHUNK], sum = 0;
    while (n) {
        size_t now = (size_t)MIN(n, CHUNK);
        read_at(from, in, now * sizeof *in, offset);
        for (size_t i = 0; i < now; i++) {
            sums[i] = sum;
            sum += scale * in[i];
        }
        out(&w->idx, sums, now * sizeof *sums);
        offset += now * sizeof *in;
        n -= now;
    }
}

static void write_header(const IndexedWriter *w) {
    uint64_t version = 1, entries = w->documents + 1;
    unsigned char header[HEADER_BYTES] = "MMIDIDX";
    memcpy(header + 9, &version, 8);
    header[17] = w->token_bytes == 2 ? 8 : 4;
    memcpy(header + 18, &w->sequences, 8);
    memcpy(header + 26, &entries, 8);
    ssize_t put = pwrite(w->idx.fd, header, sizeof header, 0);
    if (put != (ssize_t)sizeof header) cannot(&w->idx, put < 0 ? errno : ENOSPC);
}

static void sync_dir(const IndexedWriter *w) {
    int error = dir_sync_of(w->prefix);
    if (error)
        fail(EXIT_DATA, "cannot sync the folder of %s: %s", w->prefix, strerror(error));
}

static void give_name(Out *o) {
    if (rename(o->path, o->name) != 0)
        fail(EXIT_DATA, "cannot rename %s to %s: %s", o->path, o->name, strerror(errno));
    o->path = o->name;
}

void indexed_write_complete(IndexedWriter *w) {
    flush(&w->bin);
    flush(&w->idx);
    flush(&w->counts);
    write_sums(w, &w->idx, HEADER_BYTES, w->sequences, w->token_bytes);
    write_sums(w, &w->counts, 0, w->documents, 1);
    int64_t sequences = (int64_t)w->sequences;
    out(&w->idx, &sequences, sizeof sequences); /* the last document ends there */
    flush(&w->idx);
    write_header(w);
    if (fsync(w->bin.fd) != 0) cannot(&w->bin, errno);
    if (fsync(w->idx.fd) != 0) cannot(&w->idx, errno);
}

void indexed_write_withdraw(IndexedWriter *w) {
    if (unlink(w->idx.name) != 0 && errno != ENOENT)
        fail(EXIT_DATA, "cannot replace %s: %s", w->idx.name, strerror(errno));
    sync_dir(w);
}

void indexed_write_publish(IndexedWriter *w) {
    indexed_write_withdraw(w);
    give_name(&w->bin);
    sync_dir(w);
    give_name(&w->idx);
    w->finished = true;
    sync_dir(w);
}

static void out_close(Out *o, bool keep) {
    if (o->fd < 0) return;
    if (!keep && o->name) unlink(o->path);
    close(o->fd);
    o->fd = -1;
}

void indexed_write_close(IndexedWriter *w) {
    if (!w) return;
    out_close(&w->bin, w->finished);
    out_close(&w->idx, w->finished);
    out_close(&w->counts, true);
}

uint64_t indexed_write_documents(const IndexedWriter *w) {
    return w->documents;
}

uint64_t indexed_write_sequences(const IndexedWriter *w) {
    return w->sequences;
}

uint64_t indexed_write_tokens(const IndexedWriter *w) {
    return w->tokens;
}

const char *indexed_write_prefix(const IndexedWriter *w) {
    return w->prefix;
}
