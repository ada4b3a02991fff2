/* kinds_ckpt.c - checkpoints; see read.h. */
#include "../ckpt_crowd.h"
#include "frontend/tools/inspect.h"
#include "read.h"
#include "runtime/store/ckpt_files.h"
#include "runtime/store/ckpt_table.h"

enum { MOST_BYTES = 64 << 20 };

/* ---- what a checkpoint holds ---- */

typedef struct Tensors {
    CkptTensor *t;
    int n;
} Tensors;

static void add_rows(Arena *mem, const CkptTable *table, Tensors *all) {
    uint64_t bytes = 0;
    all->t = NEW_ARRAY(mem, CkptTensor, (size_t)table->n + 1);
    for (int i = 0; i < table->n; i++) {
        const CkptRow *r = &table->row[i];
        if (r->dtype < 0) fail(EXIT_CHECKPOINT, "'%s' has another type", r->name);
        uint64_t size = dtype_bytes[r->dtype];
        for (int d = 0; d < r->rank; d++) size *= (uint64_t)r->dim[d];
        bytes += size;
        if (bytes > MOST_BYTES) fail(EXIT_CHECKPOINT, "no model has such tensors here");
        CkptTensor *t = &all->t[all->n++];
        *t = (CkptTensor){.name = r->name,
                          .dtype = (DType)r->dtype,
                          .rank = r->rank,
                          .data = arena_alloc(mem, size),
                          .file = r->kind};
        memcpy(t->dim, r->dim, sizeof t->dim);
    }
}

/* Tensors as the model has them that wrote this, in the place of a configuration. */
static Tensors tensors_of(Arena *mem, const char *folder) {
    Manifest m;
    CkptTable table;
    Tensors all = {0};
    const Safetensors *file[CKPT_FILES];
    const char *text, *wrong = manifest_read(mem, folder, &m);
    if (!wrong && m.version > CKPT_VERSION) wrong = "of a newer version";
    if (wrong) fail(EXIT_CHECKPOINT, "%s", wrong);
    if (m.version == CKPT_WHOLE) {
        for (int i = 0; i < CKPT_FILES; i++)
            file[i] = safetensors_open(mem, path_join(mem, folder, ckpt_file_name[i]),
                                       EXIT_CHECKPOINT);
        text = table_text_of_files(mem, file).s;
    } else {
        text = file_read(mem, path_join(mem, folder, CKPT_LAYOUT), MOST_BYTES, NULL,
                         EXIT_CHECKPOINT);
    }
    wrong = table_parse(mem, text, &table);
    if (wrong) fail(EXIT_CHECKPOINT, "%s", wrong);
    add_rows(mem, &table, &all);
    return all;
}

static void put_tensors(const Tensors *all, Text *out) {
    for (int i = 0; i < all->n; i++) {
        const CkptTensor *t = &all->t[i];
        size_t bytes = dtype_bytes[t->dtype];
        for (int d = 0; d < t->rank; d++) bytes *= (size_t)t->dim[d];
        text_add(out, "%d", t->file);
        put_name(out, t->name);
        text_add(out, " %s", dtype_name[t->dtype]);
        put_shape(out, t->rank, t->dim);
        put_sum(out, t->data, bytes);
        text_add(out, "\n");
    }
}

/* ---- kinds ---- */

/* What stator inspect thinks of it, in a word. */
static void put_inspected(Arena *mem, const char *folder, Text *out) {
    Catch c;
    if (CATCH(c)) {
        inspect_checkpoint(mem, folder);
        catch_end(&c);
        text_add(out, "sound\n");
    } else {
        text_add(out, strstr(c.message, "inf or NaN") ? "not finite\n" : "damaged\n");
    }
}

void read_checkpoint(Arena *mem, const char *path, const char *more, Text *out) {
    (void)more;
    Tensors all = tensors_of(mem, path);
    char *state;
    int64_t step;
    ckpt_load_dir(mem, path, all.t, all.n, &state, &step);
    text_add(out, "step %lld", (long long)step);
    put_name(out, state);
    text_add(out, "\n");
    put_tensors(&all, out);
    put_inspected(mem, path, out);
}

/* The newest good one of a folder, for the model that wrote step 1. */
void read_newest(Arena *mem, const char *path, const char *more, Text *out) {
    Tensors all = tensors_of(mem, path_join(mem, path, more));
    char *state;
    int64_t step;
    if (!ckpt_load_latest(mem, path, all.t, all.n, &state, &step, NULL))
        fail(EXIT_CHECKPOINT, "no checkpoint in %s", path);
    text_add(out, "step %lld", (long long)step);
    put_name(out, state);
    text_add(out, "\n");
    put_tensors(&all, out);
}

static void make_one(Arena *mem, const char *dir, int strategy, int64_t step) {
    static const char state[] = "{\"step\": 7, \"seed\": 1, \"skipped\": [1, 2.5, null]}";
    enum { NO_LARGE = TENSORS - 1 };
    char why[512];
    Crowd *c = crowd_new(&strategies[strategy]);
    CkptSave *of_rank = NEW_ARRAY(mem, CkptSave, (size_t)c->ranks);
    crowd_fill(c, step);
    for (int r = 0; r < c->ranks; r++)
        of_rank[r] = (CkptSave){step, c->t[r], NO_LARGE, state};
    if (ckpt_save_ranks(dir, of_rank, c->ranks, why, sizeof why)) die("%s", why);
}

/* path/STRATEGY/step_00000001 and 2. */
void make_checkpoints(Arena *mem, const char *path, const char *more, Text *out) {
    (void)more;
    for (int i = 0; i < STRATEGIES; i++) {
        const char *dir = path_join(mem, path, arena_printf(mem, "%d", i));
        for (int64_t step = 1; step <= 2; step++) make_one(mem, dir, i, step);
    }
    text_add(out, "%d", STRATEGIES);
}
