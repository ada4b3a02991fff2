/* ckpt_save.c - saving checkpoints; see ckpt.h. The order of the calls is the point: each
 * one leaves the folder in a state from which loading finds a complete checkpoint. */
#define _GNU_SOURCE
#define XXH_INLINE_ALL
#include "../ir/json.h"
#include "ckpt_files.h"
#include "safetensors.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* Chunks stay in the cache between hashing and writing. */
#define CHUNK_BYTES (1u << 20)
#define FLUSH_BYTES (32u << 20)

void (*ckpt_failpoint)(const char *where);

typedef struct SaveFile {
    SafeTensor *t;
    int n, fd;
    int *order;
    Text header;
    uint64_t bytes, written;
    XXH3_state_t hash;
} SaveFile;

typedef struct Save {
    Arena *mem;
    const char *dir;
    char name[CKPT_NAME_BYTES], tmp[CKPT_NAME_BYTES + 4];
    int dir_fd, tmp_fd;
    SaveFile file[CKPT_FILES];
    Manifest manifest;
    char *why;
    size_t why_size;
} Save;

static void reach(const char *where) {
    if (ckpt_failpoint) ckpt_failpoint(where);
}

static int give_up(Save *s, int error, const char *doing, const char *name) {
    snprintf(s->why, s->why_size, "cannot %s %s/%s: %s", doing, s->dir, name,
             strerror(error));
    return error;
}

/* Everything that can be wrong with the arguments, before the disk is touched. */

static int check_state(Save *s, const char *state_json) {
    s->manifest.state_json = state_json ? state_json : "{}";
    Catch c;
    if (CATCH(c)) {
        const char *text = s->manifest.state_json;
        const Json *v =
            json_parse(s->mem, "state", text, strlen(text), 32u << 20, EXIT_CHECKPOINT);
        json_want(v, JSON_OBJECT);
        catch_end(&c);
        return 0;
    }
    snprintf(s->why, s->why_size, "the state to save is no good JSON: %s", c.message);
    return EINVAL;
}

static int lay_out(Save *s, const CkptTensor *t, int n) {
    for (int f = 0; f < CKPT_FILES; f++) {
        s->file[f].t = NEW_ARRAY(s->mem, SafeTensor, (size_t)n);
        s->file[f].fd = -1;
    }
    for (int i = 0; i < n; i++) {
        check(t[i].file >= 0 && t[i].file < CKPT_FILES);
        SaveFile *f = &s->file[t[i].file];
        SafeTensor *to = &f->t[f->n++];
        *to = (SafeTensor){.name = t[i].name,
                           .dtype = (int)t[i].dtype,
                           .rank = t[i].rank,
                           .data = t[i].data};
        memcpy(to->dim, t[i].dim, sizeof to->dim);
    }
    for (int i = 0; i < CKPT_FILES; i++) {
        SaveFile *f = &s->file[i];
        if (!safetensors_layout(s->mem, f->t, f->n, &f->header, &f->order, &f->bytes))
            continue;
        snprintf(s->why, s->why_size, "%s: two tensors of one name, or a bad shape",
                 ckpt_file_name[i]);
        return EINVAL;
    }
    return 0;
}

/* The .tmp folder. Its lock tells a concurrent load that it is no leftover. */
static int make_folder(Save *s) {
    int error = dir_make(s->dir);
    if (error) return give_up(s, error, "create", "");
    s->dir_fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->dir_fd < 0) return give_up(s, errno, "open", "");
    error = ckpt_remove(s->dir_fd, s->tmp);
    if (error && error != ENOENT) return give_up(s, error, "clear the leftover", s->tmp);
    if (mkdirat(s->dir_fd, s->tmp, 0755) != 0) return give_up(s, errno, "create", s->tmp);
    reach("folder");
    s->tmp_fd = openat(s->dir_fd, s->tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->tmp_fd < 0) return give_up(s, errno, "open", s->tmp);
    if (flock(s->tmp_fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return give_up(s, EBUSY, "lock", s->tmp);
    return 0;
}

/* Reserves the room of all files before the first is written. Where the file system
 * cannot reserve, write() is what finds the disk full. */
static int reserve_files(Save *s) {
    for (int i = 0; i < CKPT_FILES; i++) {
        SaveFile *f = &s->file[i];
        f->fd = openat(s->tmp_fd, ckpt_file_name[i],
                       O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (f->fd < 0) return give_up(s, errno, "create", ckpt_file_name[i]);
        int error;
        do error = fallocate(f->fd, 0, 0, (off_t)f->bytes) == 0 ? 0 : errno;
        while (error == EINTR);
        if (error && error != EOPNOTSUPP && error != ENOSYS)
            return give_up(s, error, "reserve the room for", ckpt_file_name[i]);
    }
    reach("reserved");
    return 0;
}

static int write_all(int fd, const char *p, size_t n) {
    while (n) {
        ssize_t put = write(fd, p, n);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return errno;
        p += put;
        n -= (size_t)put;
    }
    return 0;
}

static int put(SaveFile *f, const char *p, uint64_t n) {
    while (n) {
        size_t part = (size_t)MIN(n, CHUNK_BYTES);
        XXH3_128bits_update(&f->hash, p, part);
        int error = write_all(f->fd, p, part);
        if (error) return error;
        f->written += part;
        p += part;
        n -= part;
        /* Starts the disk early, so that the fsync at the end has less to wait for. It is
         * only a hint: errors show at fsync. */
        if (f->written % FLUSH_BYTES < part)
            sync_file_range(f->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    }
    return 0;
}

static uint64_t bytes_of(const SafeTensor *t) {
    return (uint64_t)safetensors_count(t) * dtype_bytes[t->dtype];
}

static int write_file(Save *s, int i) {
    SaveFile *f = &s->file[i];
    XXH3_128bits_reset(&f->hash);
    int error = put(f, f->header.s, f->header.n);
    for (int k = 0; k < f->n && !error; k++) {
        const SafeTensor *t = &f->t[f->order[k]];
        error = put(f, t->data, bytes_of(t));
        reach("tensor");
    }
    if (!error) check(f->written == f->bytes);
    if (!error && fsync(f->fd) != 0) error = errno;
    if (close(f->fd) != 0 && !error) error = errno;
    f->fd = -1;
    if (error) return give_up(s, error, "write", ckpt_file_name[i]);
    XXH128_hash_t h = XXH3_128bits_digest(&f->hash);
    s->manifest.file[i].bytes = f->bytes;
    snprintf(s->manifest.file[i].xxh3, sizeof s->manifest.file[i].xxh3, "%016llx%016llx",
             (unsigned long long)h.high64, (unsigned long long)h.low64);
    reach("file");
    return 0;
}

static int write_manifest(Save *s) {
    Text text = manifest_text(s->mem, &s->manifest);
    int fd = openat(s->tmp_fd, "manifest.json",
                    O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) return give_up(s, errno, "create", "manifest.json");
    int error = write_all(fd, text.s, text.n);
    if (!error && fsync(fd) != 0) error = errno;
    if (close(fd) != 0 && !error) error = errno;
    if (!error && fsync(s->tmp_fd) != 0) error = errno;
    return error ? give_up(s, error, "write", "manifest.json") : 0;
}

/* Gives the folder its name. One of that step may be there already (saved again after
 * going back): then the two change names, and the old one is the .tmp. */
static int publish(Save *s) {
    reach("rename.before");
    if (renameat(s->dir_fd, s->tmp, s->dir_fd, s->name) != 0) {
        int error = errno;
        if (error == ENOTEMPTY || error == EEXIST)
            error = renameat2(s->dir_fd, s->tmp, s->dir_fd, s->name, RENAME_EXCHANGE) == 0
                        ? 0
                        : errno;
        if (error) return give_up(s, error, "rename a complete checkpoint to", s->name);
        reach("exchanged");
    }
    reach("rename.after");
    if (fsync(s->dir_fd) != 0) return give_up(s, errno, "sync the folder of", s->name);
    return 0;
}

/* After this point the new checkpoint is good; errors are still told. */

static int point_latest(Save *s) {
    char line[CKPT_NAME_BYTES + 1];
    int n = snprintf(line, sizeof line, "%s\n", s->name);
    int error = file_write_atomic(path_join(s->mem, s->dir, "latest"), line, (size_t)n);
    if (!error && fsync(s->dir_fd) != 0) error = errno;
    if (error) return give_up(s, error, "write", "latest");
    reach("latest");
    return 0;
}

/* Renamed first, so that a half-deleted checkpoint never looks like one. */
static int delete_one(Save *s, const char *name) {
    char tmp[CKPT_NAME_BYTES + 4];
    snprintf(tmp, sizeof tmp, "%s.tmp", name);
    int error = ckpt_remove(s->dir_fd, tmp);
    if (error && error != ENOENT) return give_up(s, error, "delete", tmp);
    if (renameat(s->dir_fd, name, s->dir_fd, tmp) != 0)
        return give_up(s, errno, "delete", name);
    reach("delete");
    error = ckpt_remove(s->dir_fd, tmp);
    return error ? give_up(s, error, "delete", tmp) : 0;
}

/* Damaged ones do not count towards `keep`; steps after this one are not touched. */
static int delete_older(Save *s, int keep) {
    CkptEntry *e;
    int n, intact = 0;
    if (keep == 0) return 0;
    int error = ckpt_list(s->mem, s->dir, &e, &n);
    if (error) return give_up(s, error, "list", "");
    for (int i = 0; i < n; i++) {
        Manifest m;
        if (e[i].tmp || e[i].step > s->manifest.step) continue;
        if (intact < keep) {
            const char *folder = path_join(s->mem, s->dir, e[i].name);
            intact += e[i].step == s->manifest.step || !manifest_read(s->mem, folder, &m);
            continue;
        }
        int failed = delete_one(s, e[i].name);
        if (failed && !error) error = failed;
    }
    return error;
}

static void close_files(Save *s) {
    for (int i = 0; i < CKPT_FILES; i++)
        if (s->file[i].fd >= 0) close(s->file[i].fd);
    if (s->tmp_fd >= 0) close(s->tmp_fd);
}

static int save(Save *s, const CkptTensor *t, int n, const char *state_json, int keep) {
    int error = lay_out(s, t, n);
    if (!error) error = check_state(s, state_json);
    if (error) return error;
    error = make_folder(s);
    if (!error) error = reserve_files(s);
    for (int i = 0; i < CKPT_FILES && !error; i++) error = write_file(s, i);
    if (!error) error = write_manifest(s);
    if (!error) error = publish(s);
    /* Nothing but a failed attempt, or the old one after an exchange, is .tmp now. */
    close_files(s);
    if (s->tmp_fd >= 0) ckpt_remove(s->dir_fd, s->tmp);
    if (!error) error = point_latest(s);
    if (!error) error = delete_older(s, keep);
    if (s->dir_fd >= 0) close(s->dir_fd);
    return error;
}

int ckpt_save(const char *dir, int64_t step, const CkptTensor *t, int n,
              const char *state_json, int keep, char *why, size_t why_size) {
    check(step >= 0 && n >= 0 && keep >= 0 && why_size > 0);
    Arena *mem = arena_new();
    Save s = {.mem = mem,
              .dir = dir,
              .dir_fd = -1,
              .tmp_fd = -1,
              .manifest = {.version = CKPT_VERSION, .step = step},
              .why = why,
              .why_size = why_size};
    why[0] = 0;
    ckpt_name(step, s.name);
    snprintf(s.tmp, sizeof s.tmp, "%s.tmp", s.name);
    int error = save(&s, t, n, state_json, keep);
    arena_free(mem);
    return error;
}
