/* sample.c - see sample.h. */
#include "ir/sample.h"
#include "base/rng.h"
#include "ir/layout.h"

/* Fills a tensor from a name: floats in (-1, 1), what is narrower than f32 with its numbers
 * rounded, integers in [0, limit). */
static void fill_by_name(Tensor *t, const char *name, int64_t limit) {
    uint64_t stream = hash64(name, strlen(name));
    for (int64_t i = 0, n = type_count(&t->ty); i < n; i++) {
        double u = rng_uniform(1, stream, (uint64_t)i);
        double v = t->ty.dt == DT_F64 ? 2 * u - 1 : (float)(2 * u - 1);
        tensor_set(t, i,
                   dtype_is_float(t->ty.dt) ? v : (double)(int64_t)(u * (double)limit));
    }
}

/* Roles that steer a program rather than feed it have fixed values. */
static bool fixed_role(const Func *f, int i, double *v) {
    static const struct {
        ArgRole role;
        double value;
    } fixed[] = {{ARG_lr, 0.01},
                 {ARG_bias_correction1, 0.1},
                 {ARG_bias_correction2, 0.05},
                 {ARG_weight_decay, 0.1},
                 {ARG_dloss, 1},
                 {ARG_loss_scale, 1024},
                 {ARG_counted, 5},
                 {ARG_offset, 0},
                 {ARG_taken, 1},
                 {ARG_last, 0}};
    ArgRole role = arg_role(f, i);
    for (int k = 0; k < ARRAY_LEN(fixed); k++) {
        *v = fixed[k].value;
        if (role == fixed[k].role) return true;
    }
    return false;
}

/* Smallest table that integers of the function could index, if arguments are of these
 * types: the least vocabulary. */
static int64_t integer_limit(const Type *t, int n) {
    int64_t limit = 1 << 20;
    for (int i = 0; i < n; i++) {
        for (int d = 0; d < t[i].rank; d++) {
            if (dtype_is_float(t[i].dt) && t[i].rank >= 2 && t[i].dim[d] > 1)
                limit = MIN(limit, t[i].dim[d]);
        }
    }
    return limit;
}

/* The tensor of the model that argument i is a part, a copy or a rounding of. */
static const char *tensor_name(const Func *f, int i) {
    const char *of = arg_str(f, i, "rounds", f->arg[i]->name);
    return arg_str(f, i, "tensor", arg_str(f, i, "same", of));
}

/* Argument i of `f` on a rank, or the whole of it, from a name. */
static void fill_argument(Tensor *t, const Func *f, int i, const char *from, int rank,
                          int64_t limit) {
    double v;
    char name[256];
    int64_t n = type_count(&t->ty);
    if (fixed_role(f, i, &v)) {
        for (int64_t k = 0; k < n; k++) tensor_set(t, k, v);
        return;
    }
    snprintf(name, sizeof name, "%s/%d", from, rank);
    fill_by_name(t, name, limit);
    /* no query is before the first key that it sees */
    int64_t tokens = t->ty.rank ? t->ty.dim[t->ty.rank - 1] : 1;
    bool first = arg_role(f, i) == ARG_attends_from;
    for (int64_t k = 0; first && k < n; k++)
        tensor_set(t, k, MIN(tensor_get(t, k), (double)(k % tokens)));
    /* states may be second moments: above 0, and not so near that roots magnify rounding */
    bool state = arg_role(f, i) == ARG_state;
    for (int64_t k = 0; state && k < n; k++)
        tensor_set(t, k, 0.01 + tensor_get(t, k) * tensor_get(t, k));
}

static Tensor ***new_arguments(Arena *mem, const Func *f) {
    int n = mesh_ranks(&f->mod->mesh);
    Tensor ***arg = NEW_ARRAY(mem, Tensor **, (size_t)n);
    for (int r = 0; r < n; r++) {
        arg[r] = NEW_ARRAY(mem, Tensor *, (size_t)f->narg + 1);
        for (int i = 0; i < f->narg; i++) arg[r][i] = tensor_new(mem, &f->arg[i]->ty);
    }
    return arg;
}

Tensor ***sample_arguments(Arena *mem, const Func *f) {
    Tensor ***arg = new_arguments(mem, f);
    Type *ty = NEW_ARRAY(mem, Type, (size_t)f->narg + 1);
    for (int i = 0; i < f->narg; i++) ty[i] = f->arg[i]->ty;
    int64_t limit = integer_limit(ty, f->narg);
    for (int r = 0; r < mesh_ranks(&f->mod->mesh); r++) {
        for (int i = 0; i < f->narg; i++)
            fill_argument(arg[r][i], f, i, f->arg[i]->name, r, limit);
    }
    return arg;
}

/* ---- parts of one whole ---- */

/* What every rank has of a tensor: its part. Before level local that is all of it, of a
 * flattened one all boxes, one after the other. */
typedef struct Spread {
    Layout l;
    Axes cut;                        /* axes that make the boxes; 0: a rank has one box */
    int boxes;                       /* that a rank has */
    int64_t matrices, rows, columns; /* of a part that is turned; else 0 */
} Spread;

/* Of an argument before level local, all boxes of a flattened tensor that is cut by `whole`. */
static const char *all_boxes(const Func *f, int i, const Type *whole, Spread *s) {
    const Mesh *mesh = &f->mod->mesh;
    const Type *ty = &f->arg[i]->ty;
    int last = s->l.lead + 1;
    for (int d = 0; d < whole->rank; d++) s->cut |= whole->split[d];
    s->boxes = mesh_group_size(mesh, s->cut);
    int64_t rows = s->l.rows || !s->l.lead ? s->l.rows : whole->dim[0];
    if (ty->rank != last + 1 || ty->dim[last - 1] != s->boxes ||
        ty->dim[last] < s->l.padded || ty->dt != whole->dt ||
        (s->l.lead && ty->dim[0] != rows))
        return "its flattened boxes have another type";
    s->l.padded = ty->dim[last];
    return NULL;
}

/* Of an argument before level local: all of the tensor, or some rows of it. */
static const char *before_local(Arena *mem, const Func *f, int i, Spread *s) {
    const Mesh *mesh = &f->mod->mesh;
    const Type *ty = &f->arg[i]->ty;
    const Attr *lead = attr_find(f->arg_attr[i], "lead");
    const Attr *first = attr_find(f->arg_attr[i], "first");
    Type whole;
    int front, group;
    layout_turned(f, i, &whole, &front, &group);
    if (lead || first) whole = type_parse(mem, mesh, arg_str(f, i, "global", "no type"));
    if (!lead) whole = type_make(whole.dt, whole.rank, whole.dim);
    const char *wrong =
        layout_make(mem, mesh, &whole, lead ? "" : NULL, lead ? lead->i : 0, &s->l);
    if (!wrong && first) wrong = layout_rows(&s->l, first->i, ty->rank ? ty->dim[0] : 0);
    if (wrong) return wrong;
    if (lead) return all_boxes(f, i, &whole, s);
    bool fits = ty->dt == whole.dt && layout_local_count(&s->l) == type_count(ty);
    return fits ? NULL : "its rows have another type than `global` says";
}

static Spread spread_of(Arena *mem, const Func *f, int i) {
    Spread s = {.boxes = 1};
    Type part;
    int front, group;
    if (layout_turned(f, i, &part, &front, &group)) {
        s.matrices = sizes_product(part.dim, front);
        s.rows = sizes_product(part.dim + front, group);
        s.columns = sizes_product(part.dim + front + group, part.rank - front - group);
    }
    if (f->mod->level >= LEVEL_LOCAL) {
        s.l = layout_of(mem, f, i);
        return s;
    }
    const char *wrong = before_local(mem, f, i, &s);
    if (wrong) fail(EXIT_CONFIG, "argument %%%s: %s", f->arg[i]->name, wrong);
    return s;
}

/* A part that is turned, from and to the order of dimensions of its tensor. */
static void turn_part(const Spread *s, void *part, bool back) {
    size_t bytes = (size_t)dtype_bytes[s->l.whole.dt];
    int64_t rows = back ? s->columns : s->rows, columns = back ? s->rows : s->columns;
    Arena *mem = arena_new();
    char *was = arena_alloc(mem, bytes * (size_t)(rows * columns) + 1), *at = part;
    for (int64_t k = 0; k < s->matrices; k++) {
        memcpy(was, at, bytes * (size_t)(rows * columns));
        for (int64_t j = 0; j < columns; j++)
            for (int64_t i = 0; i < rows; i++, at += bytes)
                memcpy(at, was + (size_t)(i * columns + j) * bytes, bytes);
    }
    arena_free(mem);
}

/* Moves elements between a whole tensor and what a rank of the stage has of it. */
static void move_elements(const Spread *s, int rank, void *whole, void *part, bool back) {
    const Mesh *m = s->l.mesh;
    int64_t bytes = s->l.padded * dtype_bytes[s->l.whole.dt];
    int64_t leads = !s->l.lead ? 1 : s->l.rows ? s->l.rows : s->l.whole.dim[0];
    if (!s->cut) {
        int of_all = MAX(s->l.stage, 0) * mesh_ranks(m) + rank;
        if (back && s->matrices) turn_part(s, part, true);
        if (back)
            layout_gather(&s->l, of_all, part, whole);
        else
            layout_scatter(&s->l, of_all, whole, part);
        if (s->matrices) turn_part(s, part, false);
        return;
    }
    Arena *mem = arena_new();
    char *box = arena_alloc(mem, (size_t)(leads * bytes));
    for (int b = 0; b < s->boxes; b++) {
        int owner = mesh_group_member(m, rank, s->cut, b);
        int nth = mesh_group_coord(m, owner, s->cut); /* axes may be reversed */
        memset(box, 0, (size_t)(leads * bytes));
        if (!back) layout_scatter(&s->l, owner, whole, box);
        for (int64_t k = 0; k < leads; k++) {
            char *at = (char *)part + (k * s->boxes + nth) * bytes;
            memcpy(back ? box + k * bytes : at, back ? at : box + k * bytes,
                   (size_t)bytes);
        }
        if (back) layout_gather(&s->l, owner, box, whole);
    }
    arena_free(mem);
}

Tensor ***sample_parts(Arena *mem, const Func *f) {
    Tensor ***arg = new_arguments(mem, f);
    Type *ty = NEW_ARRAY(mem, Type, (size_t)f->narg + 1);
    for (int i = 0; i < f->narg; i++) ty[i] = spread_of(mem, f, i).l.whole;
    int64_t limit = integer_limit(ty, f->narg);
    for (int i = 0; i < f->narg; i++) {
        Spread s = spread_of(mem, f, i);
        Tensor *whole = tensor_new(mem, &ty[i]);
        fill_argument(whole, f, i, tensor_name(f, i), 0, limit);
        for (int r = 0; r < mesh_ranks(&f->mod->mesh); r++)
            move_elements(&s, r, whole->data, arg[r][i]->data, false);
    }
    return arg;
}

/* Does a rank have the same elements as the whole tensor? */
static bool agrees(Arena *mem, const Spread *s, int rank, Tensor *whole,
                   const Tensor *part) {
    Tensor *mine = tensor_new(mem, &whole->ty);
    size_t bytes = (size_t)type_bytes(&whole->ty);
    memcpy(mine->data, whole->data, bytes);
    move_elements(s, rank, mine->data, part->data, true);
    return !memcmp(mine->data, whole->data, bytes);
}

Tensor *sample_together(Arena *mem, const Func *f, Tensor ***ret, int i) {
    int n = mesh_ranks(&f->mod->mesh);
    Spread s = {.boxes = 1};
    const Type *ty = &f->ret[i]->ty;
    if (f->alias[i] >= 0)
        s = spread_of(mem, f, f->alias[i]);
    else
        s.l = (Layout){&f->mod->mesh, type_make(ty->dt, ty->rank, ty->dim)};
    Tensor *all = tensor_new(mem, &s.l.whole);
    for (int r = 0; r < n; r++) move_elements(&s, r, all->data, ret[r][i]->data, true);
    for (int r = 0; r < n; r++) {
        if (!agrees(mem, &s, r, all, ret[r][i])) return NULL;
    }
    return all;
}

Tensor ***sample_results(Arena *mem, const Func *f) {
    int n = mesh_ranks(&f->mod->mesh);
    Tensor ***ret = NEW_ARRAY(mem, Tensor **, (size_t)n);
    for (int r = 0; r < n; r++) ret[r] = NEW_ARRAY(mem, Tensor *, (size_t)f->nret + 1);
    return ret;
}
