/* ckpt_load.c - loading checkpoints; see ckpt.h. Each rank reads what it holds from the
 * files that hold it, whatever ranks wrote them; every file is hashed by one of the ranks
 * in the same pass, and the verdict comes at the end of it. */
#define _GNU_SOURCE
#include "ckpt_stream.h"
#include "ckpt_table.h"
#include "ckpt_talk.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_LAYOUT (256u << 20)

typedef struct Load {
    Arena *mem;
    const char *folder;
    Crew crew;
    CkptTensor *t;
    int n;
    const Mesh *mesh;
    Manifest m;
    CkptTable table;
    CkptTensor **target; /* by row of the table; NULL: not wanted */
    Layout *layout;      /* of the target, on this run's ranks; by row */
    bool want[CKPT_FILES];
    const char *misfit; /* the first difference to the model: no damage */
} Load;

/* ---- does it fit the model? ---- */

static const char *shape_text(Arena *mem, const char *type, int rank,
                              const int64_t *dim) {
    Text t = text_new(mem);
    text_add(&t, "%s[", type);
    for (int i = 0; i < rank; i++)
        text_add(&t, "%s%lld", i ? "," : "", (long long)dim[i]);
    text_add(&t, "]");
    return t.s;
}

static bool same_shape(const CkptRow *a, const CkptTensor *b) {
    return a->dtype == (int)b->dtype && a->rank == b->rank &&
           !memcmp(a->dim, b->dim, (size_t)a->rank * sizeof a->dim[0]);
}

static const char *file_of_kind(const Load *l, int kind) {
    return l->m.version == CKPT_WHOLE ? ckpt_file_name[kind] : CKPT_LAYOUT;
}

/* Sets the target of each row, or l->misfit at the first difference. */
static void match_kind(Load *l, int kind) {
    const char *file = file_of_kind(l, kind);
    for (int i = 0; i < l->n; i++) {
        CkptTensor *t = &l->t[i];
        if (t->file != kind) continue;
        const CkptRow *row = table_find(&l->table, kind, t->name);
        if (!row) {
            l->misfit = arena_printf(l->mem, "%s has no tensor '%s', which the model has",
                                     file, t->name);
            return;
        }
        if (!same_shape(row, t)) {
            l->misfit = arena_printf(
                l->mem, "tensor '%s' is %s in %s and %s in the model", t->name,
                shape_text(l->mem, row->type_name, row->rank, row->dim), file,
                shape_text(l->mem, dtype_name[t->dtype], t->rank, t->dim));
            return;
        }
        check(!l->target[row - l->table.row]);
        l->target[row - l->table.row] = t;
        l->layout[row - l->table.row] = ckpt_layout(t, l->mesh);
    }
    for (int i = 0; i < l->table.n; i++) {
        const CkptRow *row = &l->table.row[i];
        if (l->target[i] || row->kind != kind) continue;
        l->misfit =
            arena_printf(l->mem, "%s has a tensor '%s' (%s), which the model has not",
                         file, row->name,
                         shape_text(l->mem, row->type_name, row->rank, row->dim));
        return;
    }
}

static void match(Load *l) {
    l->target = NEW_ARRAY(l->mem, CkptTensor *, (size_t)l->table.n);
    l->layout = NEW_ARRAY(l->mem, Layout, (size_t)l->table.n);
    for (int kind = 0; kind < CKPT_FILES; kind++)
        if (l->want[kind] && !l->misfit) match_kind(l, kind);
}

/* ---- runs ---- */

static int64_t row_count(const CkptRow *row) {
    int64_t n = 1;
    for (int d = 0; d < row->rank; d++) n *= row->dim[d];
    return n;
}

static uint64_t row_element(const CkptRow *row) {
    return dtype_bytes[row->dtype];
}

/* Of a row, what one of this run's ranks needs of what one that saved it wrote. */
static Overlap overlap_row(const Load *l, int i, int saved_rank, int rank) {
    const CkptRow *row = &l->table.row[i];
    return overlap_of(&row->layout, saved_rank, &l->layout[i], rank, row_count(row));
}

/* Bytes of all wanted tensors that a rank holds, without padding. */
static uint64_t needed_bytes(const Load *l, int rank) {
    uint64_t all = 0;
    for (int i = 0; i < l->table.n; i++) {
        if (!l->target[i]) continue;
        int64_t limit = row_count(&l->table.row[i]), count = 0;
        for (LayoutWalk w = layout_walk(&l->layout[i], rank); layout_next(&w);)
            count += MAX(MIN(w.global + w.count, limit) - w.global, 0);
        all += (uint64_t)count * row_element(&l->table.row[i]);
    }
    return all;
}

/* Did that rank write rows of this file that are wanted here? */
static bool needs_file(const Load *l, const CkptFile *f) {
    for (int i = 0; i < l->table.n; i++) {
        const CkptRow *row = &l->table.row[i];
        if (row->kind != f->kind || !l->target[i]) continue;
        if (!ckpt_owns(&row->layout, f->rank)) continue;
        Overlap o = overlap_row(l, i, f->rank, l->crew.rank);
        if (overlap_next(&o)) return true;
    }
    return false;
}

static void clear_padding(const Load *l) {
    for (int i = 0; i < l->table.n; i++) {
        if (!l->target[i]) continue;
        int64_t held = 0, all = layout_local_count(&l->layout[i]);
        for (LayoutWalk w = layout_walk(&l->layout[i], l->crew.rank); layout_next(&w);)
            held += MAX(MIN(w.global + w.count, row_count(&l->table.row[i])) - w.global, 0);
        if (held < all)
            memset(l->target[i]->data, 0,
                   (size_t)all * (size_t)row_element(&l->table.row[i]));
    }
}

/* ---- files ---- */

/* The tensor of a file that belongs to a row; NULL when it is not as the row says. */
static const SafeTensor *part_of_row(const CkptRow *row, int rank, const Safetensors *st) {
    const SafeTensor *t = safetensors_find(st, row->name);
    if (!t || t->dtype != row->dtype || !ckpt_owns(&row->layout, rank)) return NULL;
    uint64_t bytes = (uint64_t)layout_local_count(&row->layout) * row_element(row);
    return t->bytes == bytes ? t : NULL;
}

static const char *not_as_said(const Load *l, const CkptFile *f, const char *name) {
    return arena_printf(l->mem, "%s: tensor '%s' is not what %s says", f->name, name,
                        file_of_kind(l, f->kind));
}

/* The tensors of a file in the order they lie there. */
static const char *fill_from(Load *l, CkptStream *s, const Safetensors *st,
                             uint64_t *filled) {
    for (int k = 0; k < st->n; k++) {
        const CkptRow *row = table_find(&l->table, s->file->kind, st->t[k].name);
        if (!row) return not_as_said(l, s->file, st->t[k].name);
        int i = (int)(row - l->table.row);
        if (!l->target[i]) continue;
        const SafeTensor *t = part_of_row(row, s->file->rank, st);
        if (!t) return not_as_said(l, s->file, row->name);
        uint64_t base = st->header_bytes + t->offset, each = row_element(row);
        Overlap o = overlap_row(l, i, s->file->rank, l->crew.rank);
        while (overlap_next(&o)) {
            char *to = (char *)l->target[i]->data + (uint64_t)o.b_at * each;
            const char *wrong = stream_seek(s, base + (uint64_t)o.a_at * each);
            if (!wrong) wrong = stream_pull(s, to, (uint64_t)o.count * each);
            if (wrong) return wrong;
            *filled += (uint64_t)o.count * each;
        }
    }
    return NULL;
}

/* The sentence outlives the arena that a file was read with. */
static const char *close_file(Load *l, CkptStream *s, const char *wrong) {
    stream_close(s);
    if (wrong) wrong = arena_strdup(l->mem, wrong);
    arena_free(s->mem);
    return wrong;
}

static const char *load_file(Load *l, const CkptFile *f, bool verify, uint64_t *filled) {
    CkptStream s;
    Safetensors *st = NULL;
    const char *wrong = stream_open(&s, arena_new(), l->folder, f, verify);
    if (!wrong) wrong = stream_header(&s, &st);
    if (!wrong && !l->misfit) wrong = fill_from(l, &s, st, filled);
    if (!wrong) wrong = stream_check(&s);
    return close_file(l, &s, wrong);
}

/* The ranks that see the folder hash each file once among them. */
static bool verifies(const Load *l, int file) {
    int near = 0, mine = 0;
    if (l->crew.alone) return true;
    for (int r = 0; r < l->crew.ranks; r++) {
        if (r == l->crew.rank) mine = near;
        near += !l->crew.far[r];
    }
    return file % near == mine;
}

static const char *not_all(const Load *l) {
    return arena_printf(l->mem, "%s: a file of some rank is missing",
                        l->m.version == CKPT_WHOLE ? "manifest.json" : CKPT_LAYOUT);
}

static const char *load_files(Load *l) {
    uint64_t filled = 0;
    if (!l->misfit) clear_padding(l);
    for (int i = 0; i < l->m.nfiles; i++) {
        const CkptFile *f = &l->m.file[i];
        if (f->rank < 0 || !l->want[f->kind]) continue;
        bool verify = verifies(l, i);
        if (!verify && (l->misfit || !needs_file(l, f))) continue;
        const char *wrong = load_file(l, f, verify, &filled);
        if (wrong) return wrong;
    }
    bool all = l->misfit || filled == needed_bytes(l, l->crew.rank);
    return all ? NULL : not_all(l);
}

/* ---- ranks without the folder ---- */

/* One row of a file for a far rank; zeros from the point on where something is wrong.
 * st NULL: only zeros. */
static const char *serve_row(Load *l, int i, int rank, CkptStream *s,
                             const Safetensors *st, Pipe *to, char *chunk) {
    const CkptRow *row = &l->table.row[i];
    const SafeTensor *t = st ? part_of_row(row, s->file->rank, st) : NULL;
    const char *wrong = t ? NULL : not_as_said(l, s->file, row->name);
    uint64_t each = row_element(row), base = t ? st->header_bytes + t->offset : 0;
    Overlap o = overlap_row(l, i, s->file->rank, rank);
    while (overlap_next(&o)) {
        uint64_t left = (uint64_t)o.count * each;
        if (!wrong) wrong = stream_seek(s, base + (uint64_t)o.a_at * each);
        for (uint64_t part; left; left -= part) {
            part = MIN(left, CKPT_CHUNK_BYTES);
            if (!wrong) wrong = stream_pull(s, chunk, part);
            pipe_put(to, wrong ? NULL : chunk, part);
        }
    }
    return wrong;
}

/* One file's part for a far rank. Both sides go through the same runs. */
static const char *serve_file(Load *l, const CkptFile *f, int rank, Pipe *to) {
    CkptStream s;
    Safetensors *st = NULL;
    const char *wrong = stream_open(&s, arena_new(), l->folder, f, false);
    char *chunk = arena_alloc(s.mem, CKPT_CHUNK_BYTES);
    if (!wrong) wrong = stream_header(&s, &st);
    for (int i = 0; i < l->table.n; i++) {
        const CkptRow *row = &l->table.row[i];
        if (row->kind != f->kind || !ckpt_owns(&row->layout, f->rank)) continue;
        const char *here = serve_row(l, i, rank, &s, wrong ? NULL : st, to, chunk);
        if (!wrong) wrong = here;
    }
    return close_file(l, &s, wrong);
}

static void take_file(Load *l, const CkptFile *f, Pipe *from) {
    for (int i = 0; i < l->table.n; i++) {
        const CkptRow *row = &l->table.row[i];
        if (row->kind != f->kind || !ckpt_owns(&row->layout, f->rank)) continue;
        Overlap o = overlap_row(l, i, f->rank, l->crew.rank);
        while (overlap_next(&o)) {
            uint64_t each = row_element(row);
            char *to = (char *)l->target[i]->data + (uint64_t)o.b_at * each;
            pipe_take(from, to, (uint64_t)o.count * each);
        }
    }
}

static const char *serve(Load *l, int rank) {
    const char *wrong = NULL;
    uint64_t total = needed_bytes(l, rank);
    bool giving = l->crew.rank == 0;
    Pipe pipe = pipe_of(l->mem, giving ? rank : 0, total);
    if (!giving) clear_padding(l);
    for (int i = 0; i < l->m.nfiles; i++) {
        const CkptFile *f = &l->m.file[i];
        if (f->rank < 0 || !l->want[f->kind]) continue;
        if (!giving) {
            take_file(l, f, &pipe);
            continue;
        }
        const char *here = serve_file(l, f, rank, &pipe);
        if (!wrong) wrong = here;
    }
    if (pipe.done == total) return wrong;
    /* Both know that something is missing; what was promised must still arrive. */
    if (giving) {
        pipe_put(&pipe, NULL, total - pipe.done);
    } else {
        char *nowhere = arena_alloc(l->mem, CKPT_CHUNK_BYTES);
        while (pipe.done < total)
            pipe_take(&pipe, nowhere, MIN(total - pipe.done, CKPT_CHUNK_BYTES));
    }
    return wrong ? wrong : not_all(l);
}

static const char *serve_far(Load *l) {
    const char *wrong = NULL;
    for (int r = 1; r < l->crew.ranks; r++) {
        if (!l->crew.far[r] || (l->crew.rank != 0 && l->crew.rank != r)) continue;
        const char *here = serve(l, r);
        if (!wrong) wrong = here;
    }
    return wrong;
}

/* ---- one checkpoint ---- */

/* On rank 0: the text of layout.json, or what the headers of whole files say. */
static const char *read_table(Load *l, const char **text) {
    Arena *mem = arena_new();
    Safetensors *st[CKPT_FILES] = {NULL};
    const char *wrong = NULL;
    for (int i = 0; i < l->m.nfiles && !wrong; i++) {
        const CkptFile *f = &l->m.file[i];
        if (f->rank >= 0 && (l->m.version != CKPT_WHOLE || !l->want[f->kind])) continue;
        CkptStream s;
        wrong = stream_open(&s, mem, l->folder, f, f->rank < 0);
        if (!wrong && f->rank < 0 && f->bytes > MAX_LAYOUT)
            wrong = CKPT_LAYOUT " is too large";
        if (!wrong && f->rank < 0) {
            char *all = arena_alloc(l->mem, f->bytes + 1);
            wrong = stream_pull(&s, all, f->bytes);
            if (!wrong) wrong = stream_check(&s);
            *text = all;
        } else if (!wrong) {
            wrong = stream_header(&s, &st[f->kind]);
        }
        stream_close(&s);
    }
    if (!wrong && l->m.version == CKPT_WHOLE)
        *text = table_text_of_files(l->mem, (const Safetensors *const *)st).s;
    if (wrong) wrong = arena_strdup(l->mem, wrong);
    arena_free(mem);
    return wrong;
}

/* The manifest and the table, as rank 0 finds them, on all ranks. */
static const char *read_head(Load *l) {
    const char *text = "", *wrong = NULL;
    bool root = l->crew.alone || l->crew.rank == 0;
    if (root) wrong = manifest_fetch(l->mem, l->folder, &text);
    wrong = crew_agree_wrong(&l->crew, l->mem, wrong);
    if (wrong) return wrong;
    const char *mine = "";
    text = crew_share(&l->crew, l->mem, text);
    wrong = manifest_parse(l->mem, text, &l->m);
    if (wrong || l->m.version > CKPT_VERSION) return wrong;
    bool seen = root || (!manifest_fetch(l->mem, l->folder, &mine) && !strcmp(mine, text));
    crew_ask_far(&l->crew, l->mem, seen);
    text = "";
    if (root) wrong = manifest_sizes(l->mem, l->folder, &l->m);
    if (root && !wrong) wrong = read_table(l, &text);
    wrong = crew_agree_wrong(&l->crew, l->mem, wrong);
    if (wrong) return wrong;
    return table_parse(l->mem, crew_share(&l->crew, l->mem, text), &l->table);
}

/* NULL or what is damaged; fails when the checkpoint is good but not for this model. On
 * all ranks the same. */
static const char *load_folder(Load *l) {
    const char *wrong = read_head(l);
    if (wrong) return wrong;
    if (l->m.version > CKPT_VERSION)
        fail(EXIT_CHECKPOINT,
             "checkpoint %s has format version %lld; this stator reads up "
             "to %d: use the newer one that wrote it",
             l->folder, (long long)l->m.version, CKPT_VERSION);
    match(l);
    bool far = !l->crew.alone && l->crew.far[l->crew.rank];
    if (!far) wrong = load_files(l);
    if (l->crew.nfar && !l->misfit) {
        const char *here = serve_far(l);
        if (!wrong) wrong = here;
    }
    wrong = crew_agree_wrong(&l->crew, l->mem, wrong);
    if (!wrong && l->misfit)
        fail(EXIT_CHECKPOINT,
             "checkpoint %s is of another model: %s. Use the "
             "configuration it was trained with, or another folder",
             l->folder, l->misfit);
    return wrong;
}

static Load load_of(Arena *mem, const char *folder, Crew crew, CkptTensor *t, int n) {
    Load l = {.mem = mem, .folder = folder, .crew = crew, .t = t, .n = n};
    l.want[CKPT_MODEL] = true;
    for (int i = 0; i < n; i++) {
        check(t[i].file >= 0 && t[i].file < CKPT_FILES);
        l.want[t[i].file] = true;
    }
    l.mesh = ckpt_mesh(t, n);
    check(!l.mesh || crew.rank < mesh_ranks(l.mesh));
    return l;
}

static void hand_out(const Load *l, char **state_json, int64_t *step) {
    if (state_json) *state_json = arena_strdup(l->mem, l->m.state_json);
    if (step) *step = l->m.step;
}

static void load_one(Load *l, char **state_json, int64_t *step) {
    const char *wrong = load_folder(l);
    if (wrong)
        fail(EXIT_CHECKPOINT, "checkpoint %s cannot be used: %s", l->folder, wrong);
    hand_out(l, state_json, step);
}

void ckpt_load_dir(Arena *mem, const char *folder, CkptTensor *t, int n,
                   char **state_json, int64_t *step) {
    Load l = load_of(mem, folder, crew_of_comm(), t, n);
    load_one(&l, state_json, step);
}

void ckpt_load_rank(Arena *mem, const char *folder, int rank, CkptTensor *t, int n) {
    Load l = load_of(mem, folder, crew_alone(rank, 1), t, n);
    load_one(&l, NULL, NULL);
}

/* ---- the newest ---- */

static void remove_leftovers(const char *dir, const CkptEntry *e, int n) {
    int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0) return;
    /* One that cannot be removed does no harm: loading never looks at it. */
    for (int i = 0; i < n; i++)
        if (e[i].tmp) ckpt_remove(dir_fd, e[i].name);
    close(dir_fd);
}

typedef struct Steps {
    int error; /* of listing the folder */
    int n;
    int64_t *step;  /* finished checkpoints, newest first */
    int64_t newest; /* that any rank sees; -1: none */
    int seen_by;
} Steps;

/* Rank 0's list on all ranks. */
static void share_steps(Steps *s, Arena *mem, const Crew *crew) {
    Text text = text_new(mem);
    text_add(&text, "%d", s->error);
    for (int i = 0; i < s->n; i++) text_add(&text, " %lld", (long long)s->step[i]);
    const int64_t *newest = crew_gather(crew, mem, &s->newest, sizeof s->newest);
    for (int r = 0; r < crew->ranks; r++) {
        if (newest[r] <= s->newest) continue;
        s->newest = newest[r];
        s->seen_by = r;
    }
    const char *shared = crew_share(crew, mem, text.s);
    char *p;
    s->error = (int)strtol(shared, &p, 10);
    s->step = NEW_ARRAY(mem, int64_t, strlen(p));
    for (s->n = 0; *p;) s->step[s->n++] = strtoll(p, &p, 10);
}

static Steps list_steps(Arena *mem, const char *dir, const Crew *crew) {
    CkptEntry *e;
    int n;
    Steps s = {.newest = -1, .seen_by = crew->rank};
    s.error = ckpt_list(mem, dir, &e, &n);
    if (crew->rank == 0 && !s.error) remove_leftovers(dir, e, n);
    s.step = NEW_ARRAY(mem, int64_t, (size_t)n);
    for (int i = 0; i < n; i++)
        if (!e[i].tmp) s.step[s.n++] = e[i].step;
    if (s.n) s.newest = s.step[0];
    if (!crew->alone) share_steps(&s, mem, crew);
    return s;
}

/* The newest good one; false and what is damaged in each. */
static bool load_newest(Load *l, const char *dir, const Steps *s, Text *damaged,
                        Text *log) {
    for (int i = 0; i < s->n; i++) {
        char name[CKPT_NAME_BYTES];
        ckpt_name(s->step[i], name);
        Load this = *l;
        this.folder = path_join(l->mem, dir, name);
        const char *wrong = load_folder(&this);
        if (!wrong && this.m.step != s->step[i]) wrong = "the manifest is of another step";
        if (!wrong) {
            *l = this;
            return true;
        }
        text_add(damaged, "\n  %s: %s", name, wrong);
        if (log) text_add(log, "checkpoint %s/%s is damaged: %s\n", dir, name, wrong);
    }
    return false;
}

static void say_far(const Load *l, Text *log) {
    if (l->crew.nfar && log)
        text_add(log,
                 "%d of %d ranks (the first: rank %d on %s) do not see %s of rank 0 and "
                 "get what they hold from it\n",
                 l->crew.nfar, l->crew.ranks, l->crew.first_far, l->crew.far_host,
                 l->folder);
}

bool ckpt_load_latest(Arena *mem, const char *dir, CkptTensor *t, int n,
                      char **state_json, int64_t *step, Text *log) {
    Load l = load_of(mem, dir, crew_of_comm(), t, n);
    Steps s = list_steps(mem, dir, &l.crew);
    if (s.error && s.error != ENOENT)
        fail(EXIT_CHECKPOINT, "cannot read the folder %s: %s", dir, strerror(s.error));
    if (s.n == 0 && s.newest >= 0)
        fail(EXIT_CHECKPOINT,
             "rank 0 sees no checkpoint in %s, but rank %d sees one of step %lld: copy "
             "that folder to the host of rank 0, or start with resume: never",
             dir, s.seen_by, (long long)s.newest);
    if (s.n == 0) return false;
    if (s.newest > s.step[0] && log)
        text_add(log, "rank %d sees a checkpoint of step %lld in %s; rank 0, which "
                      "decides, sees none above step %lld\n",
                 s.seen_by, (long long)s.newest, dir, (long long)s.step[0]);
    Text damaged = text_new(mem);
    if (!load_newest(&l, dir, &s, &damaged, log))
        fail(EXIT_CHECKPOINT, "none of the checkpoints in %s is good:%s", dir, damaged.s);
    say_far(&l, log);
    hand_out(&l, state_json, step);
    return true;
}
