/* ckpt_files.c - folders and manifests of checkpoints; see ckpt_files.h. */
#define _GNU_SOURCE
#include "runtime/store/ckpt_files.h"
#include "base/json.h"
#include "runtime/store/ckpt_stream.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_MANIFEST (64u << 20)
#define SEAL_HEAD    "\"xxh3\": \""
#define SEAL_END     "\"\n}\n"

const char *const ckpt_file_name[CKPT_FILES] = {"model.safetensors",
                                                "optimizer.safetensors"};

/* Names. */

CkptFile ckpt_file(int64_t version, int kind, int rank) {
    CkptFile f = {.kind = kind, .rank = rank};
    if (rank < 0)
        snprintf(f.name, sizeof f.name, "%s", CKPT_LAYOUT);
    else if (version == CKPT_WHOLE)
        snprintf(f.name, sizeof f.name, "%s", ckpt_file_name[kind]);
    else
        snprintf(f.name, sizeof f.name, "%s.rank_%05d.safetensors",
                 kind == CKPT_MODEL ? "model" : "optimizer", rank);
    return f;
}

/* Only names that ckpt_file makes; they hold no '/'. */
static bool parse_file_name(int64_t version, const char *name, CkptFile *f) {
    const char *digits = strstr(name, ".rank_");
    long rank = digits ? strtol(digits + 6, NULL, 10) : 0;
    if (rank < 0 || rank >= CKPT_RANKS_MAX) return false;
    for (int kind = 0; kind < CKPT_FILES; kind++) {
        *f = ckpt_file(version, kind, (int)rank);
        if (!strcmp(f->name, name)) return true;
    }
    *f = ckpt_file(version, CKPT_MODEL, -1);
    return version != CKPT_WHOLE && !strcmp(f->name, name);
}

/* Manifests. */

Text manifest_text(Arena *mem, const Manifest *m) {
    char seal[HASH_HEX_BYTES];
    Text t = text_new(mem);
    text_add(&t, "{\n\"format\": \"stator checkpoint\",\n\"version\": %lld,\n",
             (long long)m->version);
    text_add(&t, "\"step\": %lld,\n\"files\": [\n", (long long)m->step);
    for (int i = 0; i < m->nfiles; i++)
        text_add(&t, "{\"name\": \"%s\", \"size\": %llu, \"xxh3\": \"%s\"}%s\n",
                 m->file[i].name, (unsigned long long)m->file[i].bytes, m->file[i].xxh3,
                 i + 1 < m->nfiles ? "," : "");
    text_add(&t, "],\n\"state\": ");
    text_add_bytes(&t, m->state_json, strlen(m->state_json));
    text_add(&t, ",\n");
    hash_hex(t.s, t.n, seal);
    text_add(&t, SEAL_HEAD "%s" SEAL_END, seal);
    return t;
}

static bool in_order(const CkptFile *a, const CkptFile *b) {
    return a->rank < b->rank || (a->rank == b->rank && a->kind < b->kind);
}

static void parse_files(Arena *mem, const Json *list, Manifest *m) {
    json_want(list, JSON_ARRAY);
    m->file = NEW_ARRAY(mem, CkptFile, (size_t)list->n);
    for (const Json *f = list->first; f; f = f->next) {
        CkptFile *to = &m->file[m->nfiles];
        const char *name = json_string(json_need(f, "name"));
        if (!parse_file_name(m->version, name, to) ||
            (m->nfiles && !in_order(to - 1, to)))
            json_fail(f, NULL, "another file than expected");
        m->nfiles++;
        to->bytes = (uint64_t)json_i64(json_need(f, "size"), 0, INT64_MAX);
        const Json *sum = json_need(f, "xxh3");
        if (strlen(json_string(sum)) != sizeof to->xxh3 - 1)
            json_fail(sum, NULL, "a checksum has 32 digits");
        memcpy(to->xxh3, sum->s, sizeof to->xxh3);
    }
    if (m->version == CKPT_WHOLE && m->nfiles != CKPT_FILES)
        json_fail(list, NULL, "%d files, not %d", m->nfiles, CKPT_FILES);
    if (m->version != CKPT_WHOLE && (!m->nfiles || m->file[0].rank >= 0))
        json_fail(list, NULL, "no " CKPT_LAYOUT);
}

static void parse_manifest(Arena *mem, const char *text, Manifest *m) {
    const Json *root =
        json_parse(mem, CKPT_MANIFEST, text, strlen(text), MAX_MANIFEST, EXIT_CHECKPOINT);
    const Json *format = json_need(root, "format");
    if (strcmp(json_string(format), "stator checkpoint"))
        json_fail(format, NULL, "this is the manifest of something else");
    m->version = json_i64(json_need(root, "version"), 1, INT64_MAX);
    if (m->version > CKPT_VERSION) return;
    m->step = json_i64(json_need(root, "step"), 0, INT64_MAX);
    parse_files(mem, json_need(root, "files"), m);
    const Json *state = json_need(root, "state");
    json_want(state, JSON_OBJECT);
    m->state_json = json_raw(mem, state);
}

const Json *ckpt_state_parse(Arena *mem, const char *name, const char *state_json) {
    return json_parse(mem, name, state_json, strlen(state_json), CKPT_STATE_MAX_BYTES,
                      EXIT_CHECKPOINT);
}

/* True when the text ends with the hash of all that is before it. */
static bool sealed(const char *text, size_t n) {
    char want[128], hex[HASH_HEX_BYTES];
    size_t tail = strlen(SEAL_HEAD) + 32 + strlen(SEAL_END);
    if (n < tail) return false;
    hash_hex(text, n - tail, hex);
    snprintf(want, sizeof want, SEAL_HEAD "%s" SEAL_END, hex);
    return !memcmp(text + n - tail, want, tail);
}

const char *manifest_sizes(Arena *mem, const char *folder, const Manifest *m) {
    for (int i = 0; i < m->nfiles; i++) {
        struct stat st;
        const CkptFile *f = &m->file[i];
        const char *path = path_join(mem, folder, f->name);
        if (stat(path, &st) != 0) return ckpt_damage(mem, path, errno);
        if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != f->bytes)
            return arena_printf(mem, "%s has %lld bytes, not the %llu that were saved",
                                f->name, (long long)st.st_size,
                                (unsigned long long)f->bytes);
    }
    return NULL;
}

const char *manifest_fetch(Arena *mem, const char *folder, const char **text) {
    const CkptFile file = {.name = CKPT_MANIFEST};
    CkptStream s;
    struct stat st;
    const char *wrong = stream_open(&s, mem, folder, &file, false);
    if (wrong) return wrong;
    bool regular = fstat(s.fd, &st) == 0 && S_ISREG(st.st_mode);
    size_t n = regular && st.st_size <= MAX_MANIFEST ? (size_t)st.st_size : 0;
    char *all = arena_alloc(mem, n + 1);
    Catch c;
    if (!CATCH(c)) {
        stream_close(&s);
        fail_again(c.code, c.message);
    }
    wrong = stream_pull(&s, all, n);
    catch_end(&c);
    stream_close(&s);
    *text = all;
    if (wrong || (sealed(all, n) && strlen(all) == n)) return wrong;
    return CKPT_MANIFEST ": its own checksum differs";
}

const char *manifest_parse(Arena *mem, const char *text, Manifest *m) {
    Catch c;
    *m = (Manifest){0};
    if (CATCH(c)) {
        parse_manifest(mem, text, m);
        catch_end(&c);
        return NULL;
    }
    return arena_printf(mem, "manifest.json: %.1000s", catch_text(&c));
}

const char *manifest_read(Arena *mem, const char *folder, Manifest *m) {
    const char *text = NULL;
    *m = (Manifest){0};
    const char *wrong = manifest_fetch(mem, folder, &text);
    if (!wrong) wrong = manifest_parse(mem, text, m);
    return wrong || m->version > CKPT_VERSION ? wrong : manifest_sizes(mem, folder, m);
}

/* Folders. */

void ckpt_name(int64_t step, char name[CKPT_NAME_BYTES]) {
    snprintf(name, CKPT_NAME_BYTES, "step_%08lld", (long long)step);
}

/* Only names that ckpt_name makes, with or without .tmp or .old.tmp, are ours. */
static bool parse_name(const char *name, CkptEntry *e) {
    char canonical[CKPT_NAME_BYTES];
    size_t n = strlen(name);
    if (n >= sizeof e->name || !begins_with(name, "step_")) return false;
    memcpy(e->name, name, n + 1);
    e->tmp = ends_with(name, ".tmp");
    size_t end = n - (ends_with(name, CKPT_OLD_TMP) ? strlen(CKPT_OLD_TMP)
                      : e->tmp                      ? 4
                                                    : 0);
    if (end < 13 || end > 23) return false;
    e->step = 0;
    for (size_t i = 5; i < end; i++) {
        if (name[i] < '0' || name[i] > '9') return false;
        e->step = e->step * 10 + (name[i] - '0');
    }
    ckpt_name(e->step, canonical);
    return strlen(canonical) == end && !memcmp(canonical, name, end);
}

static int compare_entries(const void *a, const void *b) {
    const CkptEntry *x = a, *y = b;
    if (x->step != y->step) return x->step > y->step ? -1 : 1;
    return x->tmp - y->tmp;
}

int ckpt_list(Arena *mem, const char *dir, CkptEntry **entries, int *n) {
    int cap = 0;
    *entries = NULL;
    *n = 0;
    DIR *d = opendir(dir);
    if (!d) return errno;
    for (;;) {
        CkptEntry e;
        errno = 0;
        struct dirent *f = readdir(d);
        if (!f) break;
        if (parse_name(f->d_name, &e)) PUSH(mem, *entries, *n, cap, e);
    }
    int error = errno;
    closedir(d);
    if (*n > 1) qsort(*entries, (size_t)*n, sizeof **entries, compare_entries);
    return error;
}

int64_t ckpt_newest(Arena *mem, const char *dir) {
    CkptEntry *e;
    int n;
    if (ckpt_list(mem, dir, &e, &n) != 0) return -1;
    for (int i = 0; i < n; i++)
        if (!e[i].tmp) return e[i].step;
    return -1;
}

int ckpt_point_latest(Arena *mem, const char *dir, const char *name) {
    const char *line = arena_printf(mem, "%s\n", name);
    return file_write_atomic(path_join(mem, dir, CKPT_LATEST), line, strlen(line));
}

int ckpt_mend_latest(Arena *mem, const char *dir, int64_t step) {
    char name[CKPT_NAME_BYTES];
    const char *latest = path_join(mem, dir, CKPT_LATEST);
    ckpt_name(step, name);
    const char *folder = path_join(mem, dir, name);
    if (!dir_exists(folder)) return 0;
    unlink(arena_printf(mem, "%s.tmp", latest));
    return strcmp(ckpt_of_latest(mem, latest), folder) ? ckpt_point_latest(mem, dir, name)
                                                       : 0;
}

const char *ckpt_of_latest(Arena *mem, const char *path) {
    const char *slash = strrchr(path, '/');
    size_t dir = slash ? (size_t)(slash + 1 - path) : 0;
    struct stat st;
    CkptEntry e;
    if (strcmp(path + dir, CKPT_LATEST) != 0 || stat(path, &st) != 0 ||
        !S_ISREG(st.st_mode) || st.st_size > CKPT_NAME_BYTES)
        return path;
    char *name = file_read(mem, path, CKPT_NAME_BYTES, NULL, EXIT_CHECKPOINT);
    name[strcspn(name, "\n")] = 0;
    if (!parse_name(name, &e) || e.tmp) return path;
    return arena_printf(mem, "%.*s%s", (int)dir, path, name);
}

int ckpt_remove(int dir_fd, const char *name) {
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return errno;
    /* on a disk without locks a run has its folder for itself as well */
    bool busy = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    DIR *d = busy ? NULL : fdopendir(fd);
    int error = busy ? EBUSY : d ? 0 : errno;
    if (!d) {
        close(fd);
        return error;
    }
    for (struct dirent *f; (f = readdir(d));) {
        if (!strcmp(f->d_name, ".") || !strcmp(f->d_name, "..")) continue;
        if (unlinkat(fd, f->d_name, 0) != 0 && errno != ENOENT) error = errno;
    }
    closedir(d);
    if (unlinkat(dir_fd, name, AT_REMOVEDIR) != 0 && errno != ENOENT && !error)
        error = errno;
    return error;
}

void ckpt_give_back(Arena *mem, const char *dir) {
    CkptEntry *e;
    int n, dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0) return;
    ckpt_list(mem, dir, &e, &n);
    for (int i = 0; i < n; i++) {
        char name[CKPT_NAME_BYTES];
        if (!ends_with(e[i].name, CKPT_OLD_TMP)) continue;
        ckpt_name(e[i].step, name);
        renameat(dir_fd, e[i].name, dir_fd, name); /* over none but an empty folder */
    }
    close(dir_fd);
}

void ckpt_remove_leftovers(Arena *mem, const char *dir) {
    CkptEntry *e;
    int n, dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0) return;
    /* One that cannot be removed does no harm: loading never looks at it. */
    ckpt_list(mem, dir, &e, &n);
    for (int i = 0; i < n; i++)
        if (e[i].tmp) ckpt_remove(dir_fd, e[i].name);
    close(dir_fd);
}
