/* ckpt_load.c - loading checkpoints; see ckpt.h. Files are read and hashed in one pass,
 * straight into the tensors; the verdict comes at the end of the pass. */
#define _GNU_SOURCE
#define XXH_INLINE_ALL
#include "ckpt_files.h"
#include "safetensors.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#define CHUNK_BYTES (1u << 20)

typedef struct Stream {
    Arena *mem;
    const char *name;
    int fd;
    XXH3_state_t hash;
    char *scratch; /* CHUNK_BYTES, for what nobody wants */
} Stream;

typedef struct Load {
    Arena *mem;
    const char *folder;
    CkptTensor *t;
    int n;
    const char *misfit; /* the first difference to the model: no damage */
} Load;

/* Reads exactly n bytes to out (NULL: to nowhere) and hashes them. NULL or the reason. */
static const char *pull(Stream *s, char *out, uint64_t n) {
    while (n) {
        char *to = out ? out : s->scratch;
        ssize_t got = read(s->fd, to, (size_t)MIN(n, CHUNK_BYTES));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return arena_printf(s->mem, "%s: %s", s->name, strerror(errno));
        if (got == 0) return arena_printf(s->mem, "%s ends too early", s->name);
        XXH3_128bits_update(&s->hash, to, (size_t)got);
        if (out) out += got;
        n -= (uint64_t)got;
    }
    return NULL;
}

static const char *pull_header(Stream *s, uint64_t file_bytes, Safetensors **st) {
    uint8_t length[8];
    uint64_t header = 0;
    if (file_bytes < 8) return arena_printf(s->mem, "%s is too short", s->name);
    const char *wrong = pull(s, (char *)length, 8);
    if (wrong) return wrong;
    for (int i = 7; i >= 0; i--) header = header << 8 | length[i];
    if (header > file_bytes - 8 || header > (256u << 20))
        return arena_printf(s->mem, "%s has a wrong header length", s->name);
    char *bytes = arena_alloc(s->mem, 8 + header);
    memcpy(bytes, length, 8);
    wrong = pull(s, bytes + 8, header);
    if (wrong) return wrong;
    wrong = safetensors_try(s->mem, s->name, bytes, 8 + header, file_bytes, st);
    return wrong ? arena_printf(s->mem, "%s: %s", s->name, wrong) : NULL;
}

static const char *shape_text(Arena *mem, const char *type, int rank,
                              const int64_t *dim) {
    Text t = text_new(mem);
    text_add(&t, "%s[", type);
    for (int i = 0; i < rank; i++)
        text_add(&t, "%s%lld", i ? "," : "", (long long)dim[i]);
    text_add(&t, "]");
    return t.s;
}

static bool same_shape(const SafeTensor *a, const CkptTensor *b) {
    if (a->dtype != (int)b->dtype || a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

static const char *type_text(const SafeTensor *t) {
    return t->dtype >= 0 ? dtype_name[t->dtype] : t->type_name;
}

/* target[i]: where tensor i of the file goes. Sets l->misfit at the first difference. */
static void match_tensors(Load *l, int file, const Safetensors *st, CkptTensor **target) {
    for (int i = 0; i < l->n; i++) {
        CkptTensor *t = &l->t[i];
        if (t->file != file) continue;
        const SafeTensor *from = safetensors_find(st, t->name);
        if (!from) {
            l->misfit = arena_printf(l->mem, "%s has no tensor '%s', which the model has",
                                     ckpt_file_name[file], t->name);
            return;
        }
        if (!same_shape(from, t)) {
            l->misfit = arena_printf(
                l->mem, "tensor '%s' is %s in %s and %s in the model", t->name,
                shape_text(l->mem, type_text(from), from->rank, from->dim),
                ckpt_file_name[file],
                shape_text(l->mem, dtype_name[t->dtype], t->rank, t->dim));
            return;
        }
        check(!target[from - st->t]);
        target[from - st->t] = t;
    }
    for (int i = 0; i < st->n; i++) {
        if (target[i]) continue;
        l->misfit = arena_printf(
            l->mem, "%s has a tensor '%s' (%s), which the model has not",
            ckpt_file_name[file], st->t[i].name,
            shape_text(l->mem, type_text(&st->t[i]), st->t[i].rank, st->t[i].dim));
        return;
    }
}

/* One file; NULL or what is damaged. */
static const char *pull_file(Load *l, int file, Stream *s, const Manifest *m) {
    Safetensors *st = NULL;
    const char *wrong = pull_header(s, m->file[file].bytes, &st);
    if (wrong) return wrong;
    CkptTensor **target = NEW_ARRAY(l->mem, CkptTensor *, (size_t)st->n);
    if (!l->misfit) match_tensors(l, file, st, target);
    for (int i = 0; i < st->n && !wrong; i++)
        wrong = pull(s, l->misfit ? NULL : target[i]->data, st->t[i].bytes);
    if (wrong) return wrong;
    char hex[33];
    XXH128_hash_t h = XXH3_128bits_digest(&s->hash);
    snprintf(hex, sizeof hex, "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
    if (strcmp(hex, m->file[file].xxh3))
        return arena_printf(l->mem, "%s: its checksum is %s, not %s as saved",
                            ckpt_file_name[file], hex, m->file[file].xxh3);
    return NULL;
}

static const char *load_file(Load *l, int file, const Manifest *m, char *scratch) {
    Stream s = {.mem = l->mem, .name = ckpt_file_name[file], .scratch = scratch};
    s.fd = open(path_join(l->mem, l->folder, s.name), O_RDONLY | O_CLOEXEC);
    if (s.fd < 0) return arena_printf(l->mem, "%s: %s", s.name, strerror(errno));
    XXH3_128bits_reset(&s.hash);
    const char *wrong = pull_file(l, file, &s, m);
    close(s.fd);
    return wrong;
}

/* NULL or what is damaged; fails when the checkpoint is good but not for this model. */
static const char *load_folder(Arena *mem, const char *folder, CkptTensor *t, int n,
                               Manifest *m) {
    Load l = {mem, folder, t, n, NULL};
    const char *wrong = manifest_read(mem, folder, m);
    if (wrong) return wrong;
    if (m->version > CKPT_VERSION)
        fail(EXIT_CHECKPOINT,
             "checkpoint %s has format version %lld; this stator reads up "
             "to %d: use the newer one that wrote it",
             folder, (long long)m->version, CKPT_VERSION);
    char *scratch = arena_alloc(mem, CHUNK_BYTES);
    for (int file = 0; file < CKPT_FILES && !wrong; file++) {
        bool wanted = file == CKPT_MODEL;
        for (int i = 0; i < n; i++) wanted |= t[i].file == file;
        if (wanted) wrong = load_file(&l, file, m, scratch);
    }
    if (!wrong && l.misfit)
        fail(EXIT_CHECKPOINT,
             "checkpoint %s is of another model: %s. Use the "
             "configuration it was trained with, or another folder",
             folder, l.misfit);
    return wrong;
}

static void hand_out(const Manifest *m, char **state_json, int64_t *step, Arena *mem) {
    if (state_json) *state_json = arena_strdup(mem, m->state_json);
    if (step) *step = m->step;
}

void ckpt_load_dir(Arena *mem, const char *folder, CkptTensor *t, int n,
                   char **state_json, int64_t *step) {
    Manifest m;
    const char *wrong = load_folder(mem, folder, t, n, &m);
    if (wrong) fail(EXIT_CHECKPOINT, "checkpoint %s cannot be used: %s", folder, wrong);
    hand_out(&m, state_json, step, mem);
}

static void remove_leftovers(const char *dir, const CkptEntry *e, int n) {
    int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0) return;
    /* One that cannot be removed does no harm: loading never looks at it. */
    for (int i = 0; i < n; i++)
        if (e[i].tmp) ckpt_remove(dir_fd, e[i].name);
    close(dir_fd);
}

bool ckpt_load_latest(Arena *mem, const char *dir, CkptTensor *t, int n,
                      char **state_json, int64_t *step, Text *log) {
    CkptEntry *e;
    int count, error = ckpt_list(mem, dir, &e, &count);
    if (error == ENOENT) return false;
    if (error)
        fail(EXIT_CHECKPOINT, "cannot read the folder %s: %s", dir, strerror(error));
    remove_leftovers(dir, e, count);
    Text damaged = text_new(mem);
    for (int i = 0; i < count; i++) {
        Manifest m;
        if (e[i].tmp) continue;
        const char *wrong = load_folder(mem, path_join(mem, dir, e[i].name), t, n, &m);
        if (!wrong && m.step != e[i].step) wrong = "the manifest is of another step";
        if (!wrong) {
            hand_out(&m, state_json, step, mem);
            return true;
        }
        text_add(&damaged, "\n  %s: %s", e[i].name, wrong);
        if (log)
            text_add(log, "checkpoint %s/%s is damaged: %s\n", dir, e[i].name, wrong);
    }
    if (damaged.n == 0) return false;
    fail(EXIT_CHECKPOINT, "none of the checkpoints in %s is good:%s", dir, damaged.s);
}
