/* weight_files.c - files and folders of weights: safetensors or PyTorch's, whole or in
 * shards with an index; see safetensors.h. */
#include "base/json.h"
#include "runtime/core/map_guard.h"
#include "runtime/store/safetensors.h"
#include "runtime/store/torch_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_INDEX  (256u << 20)
#define MAX_SHARDS 10000

#define WHOLE_SAFE  "model.safetensors"
#define WHOLE_TORCH "pytorch_model.bin"
#define INDEX       ".index.json"

typedef struct SafeMap {
    void *bytes;
    size_t n;
    struct SafeMap *next;
} SafeMap;

static const char *map_file(Arena *mem, const char *path, SafeMap *m) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return arena_printf(mem, "cannot open: %s", strerror(errno));
    const char *wrong = NULL;
    if (fstat(fd, &st) != 0)
        wrong = strerror(errno);
    else if (!S_ISREG(st.st_mode))
        wrong = "not a regular file";
    else if (st.st_size < 8)
        wrong = "shorter than 8 bytes, so this is no file of weights";
    if (!wrong) {
        m->n = (size_t)st.st_size;
        m->bytes = mmap(NULL, m->n, PROT_READ, MAP_PRIVATE, fd, 0);
        if (m->bytes == MAP_FAILED) wrong = strerror(errno);
        if (!wrong) map_note(m->bytes, m->n, path);
    }
    close(fd);
    return wrong;
}

static void unmap_file(const SafeMap *m) {
    map_forget(m->bytes);
    munmap(m->bytes, m->n);
}

static const char *open_file(Arena *mem, const char *path, Safetensors **s) {
    SafeMap *m = NEW(mem, SafeMap);
    const char *wrong = map_file(mem, path, m);
    if (wrong) return wrong;
    if (ends_with(path, ".bin"))
        wrong = torch_file_try(mem, path, m->bytes, m->n, s);
    else
        wrong = safetensors_try(mem, path, m->bytes, m->n, m->n, s);
    if (wrong)
        unmap_file(m);
    else
        (*s)->maps = m;
    return wrong;
}

void safetensors_close(Safetensors *s) {
    for (SafeMap *m = s->maps; m; m = m->next) unmap_file(m);
    s->maps = NULL;
    for (int i = 0; i < s->n; i++) s->t[i].data = NULL;
}

static const char *plain_string(const Json *v) {
    return v->kind == JSON_STRING && strlen(v->s) == v->length ? v->s : NULL;
}

static bool plain_basename(const char *name) {
    return name && name[0] && name[0] != '.' && !strchr(name, '/') && strlen(name) < 256;
}

static int compare_shards(const void *a, const void *b) {
    const Json *x = *(const Json *const *)a, *y = *(const Json *const *)b;
    return strcmp(x->s, y->s);
}

/* Adds the tensors that entries e[n] of the weight map, all naming one shard, list. */
static const char *add_shard(Arena *mem, const char *folder, const Json **e, int n,
                             Safetensors *all) {
    Safetensors *shard = NULL;
    const char *wrong = open_file(mem, path_join(mem, folder, e[0]->s), &shard);
    if (wrong) return arena_printf(mem, "shard %s: %s", e[0]->s, wrong);
    shard->maps->next = all->maps;
    all->maps = shard->maps;
    for (int i = 0; i < n; i++) {
        const SafeTensor *t = safetensors_find(shard, e[i]->key);
        if (!t || strlen(e[i]->key) != e[i]->key_length)
            return arena_printf(mem,
                                "tensor '%.200s' is not in shard %s, where the index "
                                "says it is",
                                e[i]->key, e[0]->s);
        all->t[all->n++] = *t;
    }
    return NULL;
}

static const char *add_shards(Arena *mem, const char *folder, const Json *map,
                              Safetensors *all) {
    const Json **e = NEW_ARRAY(mem, const Json *, (size_t)map->n);
    int n = 0, shards = 0;
    for (const Json *v = map->first; v; v = v->next) {
        if (!plain_basename(plain_string(v)))
            return arena_printf(mem,
                                "'%.200s' must name a file in the same folder, "
                                "without '/'",
                                v->key);
        e[n++] = v;
    }
    if (n > 1) qsort(e, (size_t)n, sizeof *e, compare_shards);
    all->t = NEW_ARRAY(mem, SafeTensor, (size_t)n);
    for (int i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && !strcmp(e[end]->s, e[i]->s);) end++;
        if (++shards > MAX_SHARDS) return "more than 10000 shards";
        const char *wrong = add_shard(mem, folder, e + i, end - i, all);
        if (wrong) return wrong;
    }
    safetensors_sort(mem, all);
    return NULL;
}

static Safetensors *open_index(Arena *mem, const char *path, int code) {
    const Json *root = json_read(mem, path, MAX_INDEX, code);
    const Json *map = json_need(root, "weight_map");
    json_want(map, JSON_OBJECT);
    const char *folder = path_folder(mem, path);
    Safetensors *all = NEW(mem, Safetensors);
    all->name = arena_strdup(mem, path);
    const char *wrong = add_shards(mem, folder, map, all);
    if (wrong) {
        all->n = 0;
        safetensors_close(all);
        fail(code, "%s: %s", path, wrong);
    }
    return all;
}

const char *safetensors_of_folder(Arena *mem, const char *folder) {
    static const char *const names[] = {WHOLE_SAFE, WHOLE_SAFE INDEX, WHOLE_TORCH,
                                        WHOLE_TORCH INDEX};
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        const char *path = path_join(mem, folder, names[i]);
        if (file_exists(path)) return path;
    }
    return NULL;
}

/* One that is broken names none. */
static void remove_named(Arena *mem, const char *folder, const char *index) {
    Catch c;
    if (!CATCH(c)) return;
    const Json *map = json_get(json_read(mem, index, MAX_INDEX, EXIT_DATA), "weight_map");
    for (const Json *v = map ? map->first : NULL; v; v = v->next) {
        const char *name = plain_string(v);
        if (!plain_basename(name) || !strcmp(name, WHOLE_SAFE) ||
            !strcmp(name, WHOLE_TORCH))
            continue;
        if (ends_with(name, ".safetensors") || ends_with(name, ".bin"))
            unlink(path_join(mem, folder, name));
    }
    catch_end(&c);
}

void safetensors_remove_shards(const char *folder) {
    static const char *const names[] = {WHOLE_SAFE INDEX, WHOLE_TORCH INDEX};
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        const char *index = path_join(mem, folder, names[i]);
        if (!file_exists(index)) continue;
        remove_named(mem, folder, index);
        unlink(index);
    }
    arena_free(mem);
}

Safetensors *safetensors_open(Arena *mem, const char *path, int code) {
    Safetensors *s = NULL;
    if (dir_exists(path)) {
        const char *folder = path;
        if (!(path = safetensors_of_folder(mem, folder)))
            fail(code,
                 "%s has no model.safetensors and no pytorch_model.bin, nor an index of "
                 "one (model.safetensors.index.json, pytorch_model.bin.index.json)",
                 folder);
    }
    if (ends_with(path, INDEX)) {
        s = open_index(mem, path, code);
    } else {
        const char *wrong = open_file(mem, path, &s);
        if (wrong) fail(code, "%s: %s", path, wrong);
    }
    s->code = code;
    return s;
}
