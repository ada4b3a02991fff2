/* inspect_ckpt.c - see inspect.h: checkpoints. */
#include "base/json.h"
#include "frontend/tools/inspect.h"
#include "runtime/core/file_map.h"
#include "runtime/store/ckpt_table.h"
#include <sys/stat.h>

/* A checkpoint as it is looked at. Sentences about what is wrong are in the arena. */
typedef struct Look {
    Arena *mem;
    const char *folder;
    Manifest m;
    CkptTable table; /* no rows: all files hold whole tensors */
    int64_t parts;   /* of tensors, found in files and as the table says */
} Look;

/* ---- tensors ---- */

/* The tensors of a file are what layout.json says that this rank wrote. */
static const char *file_differs(Look *l, const CkptFile *f, const Safetensors *s) {
    if (l->m.version == CKPT_WHOLE) return NULL;
    for (int k = 0; k < s->n; k++, l->parts++) {
        const CkptRow *row = table_find(&l->table, f->kind, s->t[k].name);
        if (!row || !table_part(row, f->rank, s))
            return arena_printf(l->mem,
                                "%s: tensor '%.200s' is not what " CKPT_LAYOUT " says",
                                f->name, s->t[k].name);
    }
    return NULL;
}

static const char *numbers_wrong(Look *l, const CkptFile *f, const Safetensors *s) {
    const SafeTensor *first = NULL;
    uint64_t bad = 0;
    int tensors = 0;
    for (int k = 0; k < s->n; k++) {
        uint64_t here = safetensors_not_finite(&s->t[k]);
        if (!here) continue;
        if (!tensors++) first = &s->t[k], bad = here;
    }
    if (!tensors) return NULL;
    return arena_printf(
        l->mem, "%s: %llu of the %lld numbers of %.200s are inf or NaN%s", f->name,
        (unsigned long long)bad, (long long)safetensors_count(first), first->name,
        tensors == 1
            ? ""
            : arena_printf(l->mem, ", and some of %d more tensors", tensors - 1));
}

static const char *tensors_wrong(Look *l, const CkptFile *f, const FileMap *map) {
    Safetensors *s = NULL;
    const char *wrong = safetensors_try(l->mem, f->name, map->bytes, map->n, map->n, &s);
    if (wrong) return wrong;
    wrong = file_differs(l, f, s);
    return wrong ? wrong : numbers_wrong(l, f, s);
}

/* ---- files ---- */

static const char *table_wrong(Look *l, const FileMap *map) {
    if (map->n && memchr(map->bytes, 0, map->n)) return CKPT_LAYOUT " has a zero byte";
    return table_parse(l->mem, arena_strndup(l->mem, (const char *)map->bytes, map->n),
                       &l->table);
}

static const char *content_wrong(Look *l, const CkptFile *f, const FileMap *map) {
    char hex[HASH_HEX_BYTES];
    hash_hex(map->bytes ? map->bytes : (const unsigned char *)"", map->n, hex);
    if (strcmp(hex, f->xxh3))
        return arena_printf(l->mem, "%s: its checksum is %s, not %s as saved", f->name,
                            hex, f->xxh3);
    return f->rank < 0 ? table_wrong(l, map) : tensors_wrong(l, f, map);
}

static const char *file_wrong(Look *l, const CkptFile *f) {
    FileMap map = {0};
    file_map(&map, path_join(l->mem, l->folder, f->name));
    const char *wrong = content_wrong(l, f, &map);
    if (wrong) wrong = arena_strdup(l->mem, wrong);
    file_unmap(&map);
    return wrong;
}

/* Each tensor is written by all ranks but those that hold copies. */
static const char *parts_missing(const Look *l) {
    int64_t want = 0;
    for (int i = 0; i < l->table.n; i++)
        want += mesh_ranks(&l->table.mesh) / layout_copies(&l->table.row[i].layout);
    if (l->m.version == CKPT_WHOLE || want == l->parts) return NULL;
    return arena_printf(
        l->mem, CKPT_LAYOUT " has %lld parts of tensors, the other files have %lld",
        (long long)want, (long long)l->parts);
}

static const char *checkpoint_wrong(Look *l) {
    const char *wrong = manifest_read(l->mem, l->folder, &l->m);
    if (wrong) return wrong;
    if (l->m.version > CKPT_VERSION)
        return arena_printf(l->mem, "format version %lld is newer than this stator's %d",
                            (long long)l->m.version, CKPT_VERSION);
    for (int i = 0; i < l->m.nfiles && !wrong; i++) wrong = file_wrong(l, &l->m.file[i]);
    return wrong ? wrong : parts_missing(l);
}

/* The same of one in the folder of a run that may train: looks fail at what is deleted under
 * them. *gone: it was, and that is nothing wrong. */
static const char *listed_wrong(Look *l, bool *gone) {
    Catch c;
    struct stat st;
    if (CATCH(c)) {
        const char *wrong = checkpoint_wrong(l);
        catch_end(&c);
        *gone = wrong && lstat(l->folder, &st) != 0;
        return wrong;
    }
    *gone = lstat(l->folder, &st) != 0;
    if (!*gone) fail_again(c.code, c.message);
    return NULL;
}

/* ---- what is said ---- */

/* Its line breaks and what indents lines are left out; texts have none. */
static char *on_a_line(char *json) {
    char *to = json;
    for (const char *p = json; *p; p++) {
        if (*p == '\n')
            while (p[1] == ' ') p++;
        else
            *to++ = *p;
    }
    *to = 0;
    return json;
}

static void say_state(Arena *mem, const char *state_json) {
    const Json *state = ckpt_state_parse(mem, "state", state_json);
    for (const Json *e = state->first; e; e = e->next)
        printf("  %-12s %.400s\n", make_printable(arena_strdup(mem, e->key), LINES_NONE),
               make_printable(on_a_line(json_raw(mem, e)), LINES_NONE));
}

static void say_file(Arena *mem, const char *folder, const CkptFile *f) {
    unsigned long long bytes = f->bytes;
    if (f->rank < 0) {
        printf("  %-32s %12llu bytes, which rank wrote what\n", f->name, bytes);
        return;
    }
    const char *path = path_join(mem, folder, f->name);
    Safetensors *s = safetensors_open(mem, path, EXIT_CHECKPOINT);
    printf("  %-32s %12llu bytes, %d tensors\n", f->name, bytes, s->n);
    safetensors_close(s);
}

void inspect_checkpoint(Arena *mem, const char *folder) {
    Look l = {.mem = mem, .folder = folder};
    const char *wrong = checkpoint_wrong(&l);
    if (wrong) fail(EXIT_CHECKPOINT, "checkpoint %s is damaged: %s", folder, wrong);
    printf("%s: checkpoint of step %lld\n", folder, (long long)l.m.step);
    for (int i = 0; i < l.m.nfiles; i++) say_file(mem, folder, &l.m.file[i]);
    say_state(mem, l.m.state_json);
}

void inspect_checkpoints(Arena *mem, const char *folder) {
    CkptEntry *e;
    int n, damaged = 0;
    int error = ckpt_list(mem, folder, &e, &n);
    if (error) fail(EXIT_CHECKPOINT, "cannot read %s: %s", folder, strerror(error));
    Text all = text_new(mem);
    printf("%s: checkpoints\n", folder);
    for (int i = 0; i < n; i++) {
        Look l = {.mem = mem, .folder = path_join(mem, folder, e[i].name)};
        const char *wrong = "unfinished; it does no harm";
        bool gone = false;
        if (!e[i].tmp) {
            wrong = listed_wrong(&l, &gone);
            if (gone) continue;
            if (!wrong && l.m.step != e[i].step)
                wrong = "the manifest is of another step";
            if (wrong) text_add(&all, "\n  %s: %s", e[i].name, wrong);
            damaged += wrong != NULL;
        }
        printf("  %s  %s\n", e[i].name, wrong ? wrong : "sound");
    }
    if (damaged)
        fail(EXIT_CHECKPOINT, "%d of the checkpoints in %s are damaged:%s", damaged,
             folder, all.s);
}
