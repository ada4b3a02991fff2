/* ckpt_table.c - see ckpt_table.h. */
#include "runtime/store/ckpt_table.h"
#include "base/json.h"
#include <stdlib.h>

#define MAX_TABLE (256u << 20)

/* ---- tensors in memory ---- */

const Mesh *ckpt_mesh(const CkptTensor *t, int n) {
    const Mesh *mesh = NULL;
    for (int i = 0; i < n; i++) {
        if (!t[i].layout) continue;
        check(!mesh || mesh == t[i].layout->mesh);
        mesh = t[i].layout->mesh;
    }
    return mesh;
}

static bool shape_fits(const Type *whole, int dtype, int rank, const int64_t *dim) {
    if ((int)whole->dt != dtype || whole->rank != rank) return false;
    for (int d = 0; d < rank; d++)
        if (whole->dim[d] != dim[d] && (d > 0 || whole->dim[d] < dim[d])) return false;
    return true;
}

static Layout whole_layout(const Mesh *mesh, int dtype, int rank, const int64_t *dim) {
    static const Mesh alone;
    DType dt = dtype < 0 ? DT_F32 : (DType)dtype;
    return (Layout){.mesh = mesh ? mesh : &alone, .whole = type_make(dt, rank, dim)};
}

Layout ckpt_layout(const CkptTensor *t, const Mesh *mesh) {
    if (!t->layout) return whole_layout(mesh, (int)t->dtype, t->rank, t->dim);
    check(shape_fits(&t->layout->whole, (int)t->dtype, t->rank, t->dim));
    return *t->layout;
}

int ckpt_stages(const CkptTensor *t, int n) {
    int stages = 1;
    for (int i = 0; i < n; i++)
        if (t[i].layout) stages = MAX(stages, t[i].layout->stages);
    return stages;
}

bool ckpt_by_rows(const CkptTensor *t, int n) {
    for (int i = 0; i < n; i++)
        if (t[i].layout && t[i].layout->rows) return true;
    return ckpt_stages(t, n) > 1;
}

bool ckpt_all_whole(const CkptTensor *t, int n) {
    if (ckpt_by_rows(t, n)) return false;
    for (int i = 0; i < n; i++) {
        const Layout *l = t[i].layout;
        if (l && mesh_group_size(l->mesh, l->flat | type_axes(&l->whole)) > 1)
            return false;
    }
    return true;
}

bool ckpt_writes(const CkptRow *row, int rank) {
    const Layout *l = &row->layout;
    int ranks = mesh_ranks(l->mesh), stage = l->stages > 1 ? MAX(l->stage, 0) : 0;
    return rank / ranks == stage && layout_copy(l, rank) == row->copy;
}

int ckpt_part_shape(const Layout *l, int64_t dim[SAFETENSORS_MAX_RANK]) {
    int n = l->flattened ? l->lead : l->whole.rank;
    for (int d = 0; d < n; d++)
        dim[d] = !d && l->rows
                     ? l->rows
                     : l->whole.dim[d] / mesh_group_size(l->mesh, l->whole.split[d]);
    if (l->flattened) dim[n++] = l->padded / mesh_group_size(l->mesh, l->flat);
    return n;
}

/* ---- who writes ---- */

typedef struct Piece {
    int tensor;
    Layout layout;
    uint64_t bytes; /* of a rank's part */
} Piece;

/* The large ones first: the small ones even out what those leave. */
static int compare_pieces(const void *a, const void *b) {
    const Piece *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->tensor - y->tensor;
}

/* The copy whose busiest writer has least to do; of equals the first. */
static int best_copy(const Layout *l, const uint64_t *load, int ranks,
                     uint64_t *busiest) {
    int copies = layout_copies(l), best = 0;
    memset(busiest, 0, (size_t)copies * sizeof *busiest);
    for (int r = 0; r < ranks; r++) {
        if (!layout_holds(l, r)) continue;
        uint64_t *b = &busiest[layout_copy(l, r)];
        *b = MAX(*b, load[r]);
    }
    for (int c = 1; c < copies; c++)
        if (busiest[c] < busiest[best]) best = c;
    return best;
}

int *ckpt_share(Arena *mem, const CkptTensor *t, int n) {
    const Mesh *mesh = ckpt_mesh(t, n);
    int ranks = (mesh ? mesh_ranks(mesh) : 1) * ckpt_stages(t, n);
    int *copy = NEW_ARRAY(mem, int, (size_t)n);
    Piece *piece = NEW_ARRAY(mem, Piece, (size_t)n);
    uint64_t *load = NEW_ARRAY(mem, uint64_t, (size_t)ranks);
    uint64_t *busiest = NEW_ARRAY(mem, uint64_t, (size_t)ranks);
    for (int i = 0; i < n; i++) {
        piece[i] = (Piece){.tensor = i, .layout = ckpt_layout(&t[i], mesh)};
        uint64_t count = (uint64_t)layout_local_count(&piece[i].layout);
        piece[i].bytes = count * dtype_bytes[t[i].dtype];
    }
    if (n > 1) qsort(piece, (size_t)n, sizeof *piece, compare_pieces);
    for (int i = 0; i < n; i++) {
        const Layout *l = &piece[i].layout;
        int best = best_copy(l, load, ranks, busiest);
        copy[piece[i].tensor] = best;
        for (int r = 0; r < ranks; r++)
            if (layout_holds(l, r) && layout_copy(l, r) == best)
                load[r] += piece[i].bytes;
    }
    return copy;
}

/* ---- writing ---- */

static void add_row(Text *t, const char *name, int kind, const char *type_name, int rank,
                    const int64_t *dim) {
    json_add_text(t, t->s[t->n - 1] == '[' ? "\n{" : ",\n{", "name", name);
    json_add_text(t, ", ", "file", kind == CKPT_MODEL ? "model" : "optimizer");
    json_add_text(t, ", ", "dtype", type_name);
    text_add(t, ", \"shape\": [");
    text_add_ints(t, ", ", dim, rank);
    text_add(t, "]");
}

static void add_layout(Text *t, const Layout *l) {
    json_add_text(t, ", ", "whole", type_text(t->mem, l->mesh, &l->whole));
    if (!l->flattened) return;
    json_add_text(t, ", ", "flat", mesh_axes_text(t->mem, l->mesh, l->flat));
    text_add(t, ", \"lead\": %d", l->lead);
    if (l->padded != layout_least_padded(l))
        text_add(t, ", \"padded\": %lld", (long long)l->padded);
}

/* Rows of a tensor, those that the ranks of one stage hold or some of them. */
static void add_stage(Text *t, const CkptTensor *c) {
    const Layout *l = c->layout;
    if (!l || (l->stages <= 1 && !l->rows)) return;
    if (c->tensor) json_add_text(t, ", ", "tensor", c->tensor);
    if (l->rows)
        text_add(t, ", \"first\": %lld, \"rows\": %lld", (long long)l->first,
                 (long long)l->rows);
    if (l->stages > 1 && l->stage >= 0) text_add(t, ", \"stage\": %d", l->stage);
}

static void add_mesh(Text *t, const Mesh *m, int stages) {
    text_add(t, "{\n");
    if (stages > 1) text_add(t, "\"stages\": %d,\n", stages);
    text_add(t, "\"mesh\": [");
    for (int a = 0; m && a < m->naxes; a++) {
        json_add_text(t, a ? ", {" : "{", "axis", m->axis[a].name);
        text_add(t, ", \"size\": %d}", m->axis[a].size);
    }
    text_add(t, "],\n\"tensors\": [");
}

Text table_text(Arena *mem, const CkptTensor *t, int n, const int *copy) {
    Text text = text_new(mem);
    add_mesh(&text, ckpt_mesh(t, n), ckpt_stages(t, n));
    for (int i = 0; i < n; i++) {
        add_row(&text, t[i].name, t[i].file, dtype_name[t[i].dtype], t[i].rank, t[i].dim);
        if (t[i].layout) add_layout(&text, t[i].layout);
        add_stage(&text, &t[i]);
        if (copy && copy[i]) text_add(&text, ", \"copy\": %d", copy[i]);
        text_add(&text, "}");
    }
    text_add(&text, "\n]\n}\n");
    return text;
}

Text table_text_of_files(Arena *mem, const Safetensors *const st[CKPT_FILES]) {
    Text text = text_new(mem);
    add_mesh(&text, NULL, 1);
    for (int kind = 0; kind < CKPT_FILES; kind++)
        for (int i = 0; st[kind] && i < st[kind]->n; i++) {
            const SafeTensor *t = &st[kind]->t[i];
            const char *type = t->dtype >= 0 ? dtype_name[t->dtype] : t->type_name;
            add_row(&text, t->name, kind, type, t->rank, t->dim);
            text_add(&text, "}");
        }
    text_add(&text, "\n]\n}\n");
    return text;
}

/* ---- reading ---- */

static void parse_mesh(Arena *mem, const Json *list, Mesh *m) {
    json_want(list, JSON_ARRAY);
    int64_t ranks = 1;
    if (list->n > MAX_AXES) json_fail(list, NULL, "more than %d axes", MAX_AXES);
    for (const Json *a = list->first; a; a = a->next) {
        int size = (int)json_i64(json_need(a, "size"), 1, CKPT_RANKS_MAX);
        const char *name = json_string(json_need(a, "axis"));
        for (int i = 0; i < m->naxes; i++)
            if (!strcmp(m->axis[i].name, name))
                json_fail(a, NULL, "the axis '%.100s' is there twice", name);
        m->axis[m->naxes].name = arena_strdup(mem, name);
        m->axis[m->naxes++].size = size;
        ranks *= size;
        if (ranks > CKPT_RANKS_MAX)
            json_fail(list, NULL, "more than %d ranks", CKPT_RANKS_MAX);
    }
}

static void parse_whole(Arena *mem, const Json *j, const Mesh *mesh, CkptRow *r) {
    const Json *whole = json_get(j, "whole"), *flat = json_get(j, "flat");
    r->layout = whole_layout(mesh, r->dtype, r->rank, r->dim);
    if (!whole) return;
    Type ty = type_parse(mem, mesh, json_string(whole));
    const char *wrong = layout_make(mem, mesh, &ty, flat ? json_string(flat) : NULL,
                                    json_get_i64(j, "lead", 0, MAX_RANK, 0), &r->layout);
    const Json *padded = json_get(j, "padded");
    if (!wrong && padded)
        wrong = layout_pad(&r->layout, json_i64(padded, 1, TYPE_MAX_BYTES));
    if (!wrong && !shape_fits(&ty, r->dtype, r->rank, r->dim))
        wrong = "it is not of the tensor's shape";
    if (wrong) json_fail(whole, NULL, "layout of '%.200s': %s", r->name, wrong);
}

static void parse_layout(Arena *mem, const Json *j, const CkptTable *table, CkptRow *r) {
    const Json *first = json_get(j, "first");
    parse_whole(mem, j, &table->mesh, r);
    r->tensor = arena_strdup(mem, json_get_string(j, "tensor", r->name));
    r->layout.stages = table->stages;
    r->layout.stage = (int)json_get_i64(j, "stage", 0, table->stages - 1, -1);
    if (!first) return;
    const char *wrong = layout_rows(&r->layout, json_i64(first, 0, TYPE_MAX_BYTES),
                                    json_get_i64(j, "rows", 1, TYPE_MAX_BYTES, 1));
    if (wrong) json_fail(first, NULL, "rows of '%.200s': %s", r->name, wrong);
}

static void parse_row(Arena *mem, const Json *j, const CkptTable *table, CkptRow *r) {
    uint64_t count = 8;
    r->name = arena_strdup(mem, json_string(json_need(j, "name")));
    const Json *file = json_need(j, "file");
    r->kind = strcmp(json_string(file), "model") ? CKPT_OPTIMIZER : CKPT_MODEL;
    if (r->kind == CKPT_OPTIMIZER && strcmp(file->s, "optimizer"))
        json_fail(file, NULL, "'file' is model or optimizer");
    r->type_name = arena_strdup(mem, json_string(json_need(j, "dtype")));
    r->dtype = -1;
    for (int i = 0; i < DT_COUNT; i++)
        if (!strcmp(r->type_name, dtype_name[i])) r->dtype = i;
    const Json *shape = json_need(j, "shape");
    json_want(shape, JSON_ARRAY);
    if (shape->n > SAFETENSORS_MAX_RANK) json_fail(shape, NULL, "too many dimensions");
    for (const Json *d = shape->first; d; d = d->next) {
        r->dim[r->rank] = json_i64(d, 0, TYPE_MAX_BYTES);
        /* Dimensions of 0 must not hide what the others multiply to. */
        if (!mul_size(count, (uint64_t)MAX(r->dim[r->rank], 1), &count) ||
            count > 8 * (uint64_t)TYPE_MAX_BYTES)
            json_fail(shape, NULL, "a tensor too large");
        r->rank++;
    }
    parse_layout(mem, j, table, r);
    r->copy = (int)json_get_i64(j, "copy", 0, layout_copies(&r->layout) - 1, 0);
}

static int compare_rows(const void *a, const void *b) {
    const CkptRow *x = a, *y = b;
    return x->kind != y->kind ? x->kind - y->kind : strcmp(x->name, y->name);
}

static void parse_table(Arena *mem, const char *text, CkptTable *table) {
    const Json *root =
        json_parse(mem, CKPT_LAYOUT, text, strlen(text), MAX_TABLE, EXIT_CHECKPOINT);
    const Json *list = json_need(root, "tensors");
    json_want(list, JSON_ARRAY);
    parse_mesh(mem, json_need(root, "mesh"), &table->mesh);
    table->stages = (int)json_get_i64(root, "stages", 1,
                                      CKPT_RANKS_MAX / mesh_ranks(&table->mesh), 1);
    table->row = NEW_ARRAY(mem, CkptRow, (size_t)list->n);
    for (const Json *j = list->first; j; j = j->next)
        parse_row(mem, j, table, &table->row[table->n++]);
    if (table->n > 1)
        qsort(table->row, (size_t)table->n, sizeof *table->row, compare_rows);
    for (int i = 1; i < table->n; i++)
        if (!compare_rows(&table->row[i - 1], &table->row[i]))
            json_fail(list, NULL, "two tensors '%.200s'", table->row[i].name);
}

const char *table_parse(Arena *mem, const char *text, CkptTable *table) {
    Catch c;
    *table = (CkptTable){0};
    if (CATCH(c)) {
        parse_table(mem, text, table);
        catch_end(&c);
        return NULL;
    }
    return arena_printf(mem, CKPT_LAYOUT ": %.1000s", catch_text(&c));
}

CkptRow *table_find(const CkptTable *table, int kind, const char *name) {
    if (!table->n) return NULL;
    CkptRow key = {.kind = kind, .name = name};
    return bsearch(&key, table->row, (size_t)table->n, sizeof *table->row, compare_rows);
}

const SafeTensor *table_part(const CkptRow *row, int rank, const Safetensors *st) {
    const SafeTensor *t = safetensors_find(st, row->name);
    if (!t || row->dtype < 0 || t->dtype != row->dtype || !ckpt_writes(row, rank))
        return NULL;
    uint64_t each = dtype_bytes[row->dtype];
    return t->bytes == (uint64_t)layout_local_count(&row->layout) * each ? t : NULL;
}

/* ---- what two layouts share ---- */

Overlap overlap_of(const Layout *a, int rank_a, const Layout *b, int rank_b,
                   int64_t limit) {
    return (Overlap){
        .a = layout_walk(a, rank_a), .b = layout_walk(b, rank_b), .limit = limit};
}

/* The next part of a walk's run when the present one is used up. */
static bool refill(LayoutWalk *w, int64_t *used) {
    if (*used < w->count) return true;
    *used = 0;
    return layout_next(w);
}

bool overlap_next(Overlap *o) {
    while (refill(&o->a, &o->a_used) && refill(&o->b, &o->b_used)) {
        int64_t a = o->a.global + o->a_used, a_end = o->a.global + o->a.count;
        int64_t b = o->b.global + o->b_used, b_end = o->b.global + o->b.count;
        int64_t from = MAX(a, b), to = MIN(MIN(a_end, b_end), o->limit);
        if (from >= o->limit) return false;
        o->a_at = o->a.local + (from - o->a.global);
        o->b_at = o->b.local + (from - o->b.global);
        o->count = to - from;
        int64_t past = MIN(a_end, b_end); /* the run that ends first is used up */
        o->a_used = MIN(MAX(past, a), a_end) - o->a.global;
        o->b_used = MIN(MAX(past, b), b_end) - o->b.global;
        if (o->count > 0) return true;
    }
    return false;
}
