/* ckpt_fill.c - see ckpt_fill.h. Each rank reads what it holds from the files that hold
 * it; every file is hashed by one of the ranks in the same pass, and the verdict comes at
 * the end of it. */
#include "runtime/store/ckpt_fill.h"

const char *load_table_name(const Load *l, int kind) {
    return l->m.version == CKPT_WHOLE ? ckpt_file_name[kind] : CKPT_LAYOUT;
}

/* ---- runs ---- */

static uint64_t row_element(const CkptRow *row) {
    return dtype_bytes[row->dtype];
}

/* Of a row, what one of this run's ranks needs for w of what one that saved it wrote. */
static Overlap overlap_row(const Load *l, int i, const Wanted *w, int saved_rank,
                           int rank) {
    const CkptRow *row = &l->table.row[i];
    return overlap_of(&row->layout, saved_rank, &w->layout, rank,
                      sizes_product(row->dim, row->rank));
}

/* All runs that a rank needs of a row, for everything that is wanted of its tensor. */
typedef struct RowOverlap {
    const Load *l;
    int row, saved_rank, rank, next;
    Overlap o;
} RowOverlap;

static RowOverlap row_overlap(const Load *l, int row, int saved_rank, int rank) {
    return (RowOverlap){.l = l, .row = row, .saved_rank = saved_rank, .rank = rank};
}

/* Whose the next run is, which is in r->o; NULL: there is none. */
static const Wanted *row_overlap_next(RowOverlap *r) {
    const RowTarget *target = &r->l->target[r->row];
    for (;;) {
        if (r->next && overlap_next(&r->o)) return &target->wanted[r->next - 1];
        if (r->next == target->n) return NULL;
        const Wanted *w = &target->wanted[r->next++];
        r->o = overlap_row(r->l, r->row, w, r->saved_rank, r->rank);
    }
}

/* Elements that a rank holds, without padding. */
static int64_t elements_held(const Wanted *wanted, int rank) {
    int64_t limit = sizes_product(wanted->t->dim, wanted->t->rank), n = 0;
    for (LayoutWalk w = layout_walk(&wanted->layout, rank); layout_next(&w);)
        n += MAX(MIN(w.global + w.count, limit) - w.global, 0);
    return n;
}

/* Bytes of all wanted tensors that a rank holds, as they are stored, without padding. */
static uint64_t needed_bytes(const Load *l, int rank) {
    uint64_t all = 0;
    for (int i = 0; i < l->n; i++)
        all += (uint64_t)elements_held(&l->wanted[i], rank) *
               dtype_bytes[l->wanted[i].stored];
    return all;
}

/* Did that rank write rows of this file that are wanted here? */
static bool needs_file(const Load *l, const CkptFile *f) {
    for (int i = 0; i < l->table.n; i++) {
        const CkptRow *row = &l->table.row[i];
        if (row->kind != f->kind || !ckpt_writes(row, f->rank)) continue;
        for (int k = 0; k < l->target[i].n; k++) {
            Overlap o =
                overlap_row(l, i, &l->target[i].wanted[k], f->rank, l->group.rank);
            if (overlap_next(&o)) return true;
        }
    }
    return false;
}

static void clear_padding(const Load *l) {
    for (int i = 0; i < l->n; i++) {
        const Wanted *w = &l->wanted[i];
        int64_t all = layout_local_count(&w->layout);
        if (!layout_holds(&w->layout, l->group.rank)) continue;
        if (elements_held(w, l->group.rank) < all)
            memset(w->t->data, 0, (size_t)all * dtype_bytes[w->t->dtype]);
    }
}

/* The next bytes of a file, or of what rank 0 sends. */
static const char *next_bytes(CkptStream *s, CkptPipe *from, void *to, uint64_t n) {
    if (s) return stream_pull(s, to, n);
    pipe_take(from, to, n);
    return NULL;
}

/* The elements of a run, which come next. */
static const char *fill_run(CkptStream *s, CkptPipe *from, const Wanted *w,
                            const Overlap *o) {
    enum { PART = 1024 };
    float part[PART];
    DType type = w->t->dtype;
    char *to = (char *)w->t->data + (uint64_t)o->b_at * dtype_bytes[type];
    if (w->stored == type)
        return next_bytes(s, from, to, (uint64_t)o->count * dtype_bytes[type]);
    for (int64_t at = 0, n; at < o->count; at += n) {
        n = MIN(PART, o->count - at);
        const char *wrong = next_bytes(s, from, part, (uint64_t)n * sizeof *part);
        if (wrong) return wrong;
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)(void *)to)[at + i] = f32_to_narrow(type, part[i]);
    }
    return NULL;
}

/* ---- files ---- */

static const char *not_as_said(const Load *l, const CkptFile *f, const char *name) {
    return arena_printf(l->mem, "%s: tensor '%s' is not what %s says", f->name, name,
                        load_table_name(l, f->kind));
}

/* The tensors of a file in their order there. */
static const char *fill_from(Load *l, CkptStream *s, const Safetensors *st,
                             uint64_t *filled) {
    for (int k = 0; k < st->n; k++) {
        const CkptRow *row = table_find(&l->table, s->file->kind, st->t[k].name);
        if (!row) return not_as_said(l, s->file, st->t[k].name);
        int i = (int)(row - l->table.row);
        if (!l->target[i].n) continue;
        const SafeTensor *t = table_part(row, s->file->rank, st);
        if (!t) return not_as_said(l, s->file, row->name);
        uint64_t base = st->header_bytes + t->offset, each = row_element(row);
        const Wanted *w;
        RowOverlap all = row_overlap(l, i, s->file->rank, l->group.rank);
        while ((w = row_overlap_next(&all))) {
            const char *wrong = stream_seek(s, base + (uint64_t)all.o.a_at * each);
            if (!wrong) wrong = fill_run(s, NULL, w, &all.o);
            if (wrong) return wrong;
            *filled += (uint64_t)all.o.count * each;
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
    if (l->group.alone) return true;
    for (int r = 0; r < l->group.ranks; r++) {
        if (r == l->group.rank) mine = near;
        near += !l->group.remote[r];
    }
    return file % near == mine;
}

static const char *not_all(const Load *l) {
    return arena_printf(l->mem, "%s: a file of some rank is missing",
                        l->m.version == CKPT_WHOLE ? CKPT_MANIFEST : CKPT_LAYOUT);
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
    bool all = l->misfit || filled == needed_bytes(l, l->group.rank);
    return all ? NULL : not_all(l);
}

/* ---- ranks without the folder ---- */

/* One row of a file for a remote rank; zeros from the point on where something is wrong.
 * st NULL: only zeros. */
static const char *serve_row(Load *l, int i, int rank, CkptStream *s,
                             const Safetensors *st, CkptPipe *to, char *chunk) {
    const CkptRow *row = &l->table.row[i];
    const SafeTensor *t = st ? table_part(row, s->file->rank, st) : NULL;
    const char *wrong = t ? NULL : not_as_said(l, s->file, row->name);
    uint64_t each = row_element(row), base = t ? st->header_bytes + t->offset : 0;
    RowOverlap all = row_overlap(l, i, s->file->rank, rank);
    while (row_overlap_next(&all)) {
        uint64_t left = (uint64_t)all.o.count * each;
        if (!wrong) wrong = stream_seek(s, base + (uint64_t)all.o.a_at * each);
        for (uint64_t part; left; left -= part) {
            part = MIN(left, CKPT_CHUNK_BYTES);
            if (!wrong) wrong = stream_pull(s, chunk, part);
            pipe_put(to, wrong ? NULL : chunk, part);
        }
    }
    return wrong;
}

/* One file's part for a remote rank. Both sides go through the same runs. */
static const char *serve_file(Load *l, const CkptFile *f, int rank, CkptPipe *to) {
    CkptStream s;
    Safetensors *st = NULL;
    const char *wrong = stream_open(&s, arena_new(), l->folder, f, false);
    char *chunk = arena_alloc(s.mem, CKPT_CHUNK_BYTES);
    if (!wrong) wrong = stream_header(&s, &st);
    for (int i = 0; i < l->table.n; i++) {
        const CkptRow *row = &l->table.row[i];
        if (row->kind != f->kind || !ckpt_writes(row, f->rank)) continue;
        const char *here = serve_row(l, i, rank, &s, wrong ? NULL : st, to, chunk);
        if (!wrong) wrong = here;
    }
    return close_file(l, &s, wrong);
}

static void take_file(Load *l, const CkptFile *f, CkptPipe *from) {
    for (int i = 0; i < l->table.n; i++) {
        const CkptRow *row = &l->table.row[i];
        if (row->kind != f->kind || !ckpt_writes(row, f->rank)) continue;
        const Wanted *w;
        RowOverlap all = row_overlap(l, i, f->rank, l->group.rank);
        while ((w = row_overlap_next(&all))) fill_run(NULL, from, w, &all.o);
    }
}

static const char *serve_with(Arena *mem, Load *l, int rank) {
    const char *wrong = NULL;
    uint64_t total = needed_bytes(l, rank);
    bool giving = l->group.rank == 0;
    CkptPipe pipe = pipe_of(mem, giving ? rank : 0, total);
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
        char *nowhere = arena_alloc(mem, CKPT_CHUNK_BYTES);
        while (pipe.done < total)
            pipe_take(&pipe, nowhere, MIN(total - pipe.done, CKPT_CHUNK_BYTES));
    }
    return wrong ? wrong : not_all(l);
}

/* With buffers of its own: rank 0 serves as many as are remote. */
static const char *serve(Load *l, int rank) {
    Arena *mem = arena_new();
    const char *wrong = serve_with(mem, l, rank);
    arena_free(mem);
    return wrong;
}

static const char *serve_far(Load *l) {
    const char *wrong = NULL;
    for (int r = 1; r < l->group.ranks; r++) {
        if (!l->group.remote[r] || (l->group.rank != 0 && l->group.rank != r)) continue;
        const char *here = serve(l, r);
        if (!wrong) wrong = here;
    }
    return wrong;
}

const char *fill_tensors(Load *l) {
    bool remote = !l->group.alone && l->group.remote[l->group.rank];
    const char *wrong = remote ? NULL : load_files(l);
    if (!l->group.nremote || l->misfit) return wrong;
    const char *here = serve_far(l);
    return wrong ? wrong : here;
}
