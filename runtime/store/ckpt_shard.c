/* ckpt_shard.c - see ckpt_shard.h. */
#define _GNU_SOURCE
#define XXH_INLINE_ALL
#include "runtime/store/ckpt_shard.h"
#include "runtime/comm/watch.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

void (*ckpt_failpoint)(const char *where);

#define FLUSH_BYTES (32u << 20)

/* ---- what there is to write ---- */

static SafeTensor entry_of(const CkptTensor *t, const Layout *l, bool whole) {
    SafeTensor e = {.name = t->name, .dtype = (int)t->dtype, .data = t->data};
    if (whole) {
        e.rank = t->rank;
        memcpy(e.dim, t->dim, sizeof e.dim);
    } else {
        e.rank = ckpt_part_shape(l, e.dim);
    }
    return e;
}

const ShardFile *shard_plan(Arena *mem, CkptShard *s, int64_t version, int rank,
                            const CkptTensor *t, int n, const int *copy) {
    const Mesh *mesh = ckpt_mesh(t, n);
    *s = (CkptShard){.rank = rank};
    for (int k = 0; k < CKPT_FILES; k++)
        s->file[k].t = NEW_ARRAY(mem, SafeTensor, (size_t)n);
    for (int i = 0; i < n; i++) {
        check(t[i].file >= 0 && t[i].file < CKPT_FILES);
        Layout l = ckpt_layout(&t[i], mesh);
        ShardFile *f = &s->file[t[i].file];
        bool whole = version == CKPT_WHOLE;
        CkptRow row = {.layout = l, .copy = copy ? copy[i] : 0};
        if (ckpt_writes(&row, rank)) f->t[f->n++] = entry_of(&t[i], &l, whole);
    }
    for (int k = 0; k < CKPT_FILES; k++) {
        ShardFile *f = &s->file[k];
        f->as = ckpt_file(version, k, rank);
        f->there = f->n > 0 || (version == CKPT_WHOLE && rank == 0);
        if (safetensors_layout(mem, f->t, f->n, &f->layout)) return f;
    }
    return NULL;
}

static uint64_t bytes_of(const SafeTensor *t) {
    return (uint64_t)safetensors_count(t) * dtype_bytes[t->dtype];
}

uint64_t shard_data_bytes(const CkptShard *s) {
    uint64_t all = 0;
    for (int k = 0; k < CKPT_FILES; k++)
        for (int i = 0; i < s->file[k].n; i++) all += bytes_of(&s->file[k].t[i]);
    return all;
}

void shard_send(const CkptShard *s, CkptPipe *to) {
    for (int k = 0; k < CKPT_FILES; k++)
        for (int i = 0; i < s->file[k].n; i++) {
            const SafeTensor *t = &s->file[k].t[s->file[k].layout.order[i]];
            pipe_put(to, t->data, bytes_of(t));
        }
}

/* ---- files ---- */

int shard_create(const ShardFile *f, int folder_fd) {
    int fd = openat(folder_fd, f->as.name,
                    O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) return errno;
    int error = fd_reserve(fd, f->layout.bytes);
    if (close(fd) != 0 && !error) error = errno;
    return error;
}

typedef struct Out {
    int fd, error;
    uint64_t written;
    XXH3_state_t hash;
} Out;

/* Nothing more is written after a failure. Chunks stay in the cache between hashing and
 * writing. */
static void put(Out *o, const char *p, uint64_t n) {
    while (n && !o->error) {
        size_t part = (size_t)MIN(n, CKPT_CHUNK_BYTES);
        XXH3_128bits_update(&o->hash, p, part);
        o->error = fd_write(o->fd, p, part);
        watch_progress();
        o->written += part;
        p += part;
        n -= part;
        /* Starts the disk early, so that the fsync at the end has less to wait for. It is
         * only a hint: errors show at fsync. */
        if (!o->error && o->written % FLUSH_BYTES < part)
            sync_file_range(o->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    }
}

static void put_from_pipe(Out *o, CkptPipe *from, char *chunk, uint64_t n) {
    while (n) {
        size_t part = (size_t)MIN(n, CKPT_CHUNK_BYTES);
        pipe_take(from, chunk, part);
        put(o, chunk, part);
        n -= part;
    }
}

int shard_write(ShardFile *f, int folder_fd, CkptPipe *from, char *chunk) {
    Out o = {.fd = openat(folder_fd, f->as.name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW)};
    if (o.fd < 0) o.error = errno;
    XXH3_128bits_reset(&o.hash);
    put(&o, f->layout.header.s, f->layout.header.n);
    for (int k = 0; k < f->n; k++) {
        const SafeTensor *t = &f->t[f->layout.order[k]];
        if (from)
            put_from_pipe(&o, from, chunk, bytes_of(t));
        else
            put(&o, t->data, bytes_of(t));
        ckpt_reach("tensor");
    }
    if (!o.error) check(o.written == f->layout.bytes);
    if (!o.error && fsync(o.fd) != 0) o.error = errno;
    if (o.fd >= 0 && close(o.fd) != 0 && !o.error) o.error = errno;
    if (o.error) return o.error;
    XXH128_hash_t h = XXH3_128bits_digest(&o.hash);
    f->as.bytes = f->layout.bytes;
    snprintf(f->as.xxh3, sizeof f->as.xxh3, "%016llx%016llx",
             (unsigned long long)h.high64, (unsigned long long)h.low64);
    ckpt_reach("file");
    return 0;
}

int shard_write_text(int folder_fd, const char *name, const Text *text, CkptFile *as) {
    int fd = openat(folder_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                    0644);
    if (fd < 0) return errno;
    int error = fd_write(fd, text->s, text->n);
    if (!error && fsync(fd) != 0) error = errno;
    if (close(fd) != 0 && !error) error = errno;
    if (!as) return error;
    as->bytes = text->n;
    hash_hex(text->s, text->n, as->xxh3);
    return error;
}
