/* layout.c - see layout.h. */
#include "ir/layout.h"

/* ---- from attributes ---- */

const char *layout_make(Arena *mem, const Mesh *mesh, const Type *whole, const char *flat,
                        int64_t lead, Layout *l) {
    *l = (Layout){.mesh = mesh, .whole = *whole, .flattened = flat != NULL, .stage = -1};
    Axes used = 0;
    if (whole->pending || whole->open) return "its placement is not decided";
    if (lead < 0 || lead > 1 || lead > whole->rank) return "lead must be 0 or 1";
    if (lead && !flat) return "lead needs flat";
    l->lead = (int)lead;
    for (int d = 0; d < whole->rank; d++) {
        int parts = mesh_group_size(mesh, whole->split[d]);
        if (used & whole->split[d]) return "an axis splits two dimensions";
        if (whole->dim[d] % parts)
            return arena_printf(mem, "dimension %d of %lld elements does not split in %d",
                                d, (long long)whole->dim[d], parts);
        used |= whole->split[d];
    }
    if (!flat) return NULL;
    if (!mesh_axes_parse(mesh, flat, &l->flat))
        return arena_printf(mem, "flat \"%.200s\" names no axes of the mesh", flat);
    if (used & l->flat) return "an axis of flat splits a dimension too";
    l->padded = layout_least_padded(l);
    return NULL;
}

int64_t layout_least_padded(const Layout *l) {
    int64_t box = 1;
    for (int d = l->lead; d < l->whole.rank; d++)
        box *= l->whole.dim[d] / mesh_group_size(l->mesh, l->whole.split[d]);
    return round_up(box, mesh_group_size(l->mesh, l->flat));
}

const char *layout_pad(Layout *l, int64_t padded) {
    int64_t least = layout_least_padded(l);
    if (!l->flattened) return "padded needs flat";
    if (padded < least || padded - least >= mesh_ranks(l->mesh) ||
        padded % mesh_group_size(l->mesh, l->flat))
        return "it is not padded to so many elements";
    l->padded = padded;
    return NULL;
}

const char *layout_rows(Layout *l, int64_t first, int64_t rows) {
    const Type *t = &l->whole;
    if (!t->rank || first < 0 || rows < 1 || first > t->dim[0] - rows)
        return "it has not these rows";
    if (t->split[0] || (l->flattened && !l->lead))
        return "an axis splits its rows, so it cannot be some of them";
    l->first = first;
    l->rows = rows;
    return NULL;
}

/* ty, which has the order behind "->", in the one before it; false: the text is none of two
 * groups of dimensions that change places. */
static bool turn_back(const char *order, Type *ty, int *lead, int *group) {
    Type now = *ty;
    int n = ty->rank, front = 0;
    if ((int)strlen(order) != 2 * n + 2 || !begins_with(order + n, "->")) return false;
    const char *to = order + n + 2;
    while (front < n && order[front] == to[front]) front++;
    const char *first =
        front < n ? memchr(to + front, order[front], (size_t)(n - front)) : NULL;
    if (!first) return false;
    int behind = (int)(first - to) - front, turned = n - front;
    for (int k = 0; k < turned; k++) {
        int at = front + (k + behind) % turned;
        if (order[front + k] != to[at]) return false;
        ty->dim[front + k] = now.dim[at];
        ty->split[front + k] = now.split[at];
    }
    *lead = front;
    *group = turned - behind;
    return true;
}

static bool as_before(const Func *entry, int i, Type *ty, int *lead, int *group) {
    const char *order = arg_str(entry, i, "turned", NULL);
    if (order && !turn_back(order, ty, lead, group))
        fail(EXIT_CONFIG,
             "argument %%%s of rank %d: turned=\"%.40s\"; write \"abc->acb\"",
             entry->arg[i]->name, ty->rank, order);
    return order != NULL;
}

bool layout_turned(const Func *entry, int i, Type *before, int *lead, int *group) {
    *before = entry->arg[i]->ty;
    return as_before(entry, i, before, lead, group);
}

Layout layout_of(Arena *mem, const Func *entry, int i) {
    const Mesh *mesh = &entry->mod->mesh;
    const Value *v = entry->arg[i];
    const Attr *lead = attr_find(entry->arg_attr[i], "lead");
    const char *text = arg_str(entry, i, "global", NULL);
    const char *flat = arg_str(entry, i, "flat", NULL);
    Layout l;
    Type whole = v->ty;
    if (text)
        whole = type_parse(mem, mesh, text);
    else
        memset(whole.split, 0, sizeof whole.split);
    int front, group;
    as_before(entry, i, &whole, &front, &group);
    const char *wrong = layout_make(mem, mesh, &whole, flat, lead ? lead->i : 0, &l);
    /* the argument may have more padding than its own parts need: see passes/shard/zero.c */
    if (!wrong && flat && v->ty.rank)
        l.padded = v->ty.dim[v->ty.rank - 1] * mesh_group_size(mesh, l.flat);
    const Attr *first = attr_find(entry->arg_attr[i], "first");
    if (!wrong && first) wrong = layout_rows(&l, first->i, v->ty.rank ? v->ty.dim[0] : 0);
    l.stage = func_arg_stage(entry, i);
    l.stages = entry->mod->stages;
    if (wrong)
        fail(EXIT_CONFIG, "argument %%%s, global \"%s\": %s", v->name,
             type_text(mem, mesh, &whole), wrong);
    if (whole.dt != v->ty.dt || layout_local_count(&l) != type_count(&v->ty))
        fail(EXIT_CONFIG, "argument %%%s is %s, but its part of %s has %lld elements",
             v->name, type_text(mem, mesh, &v->ty), type_text(mem, mesh, &whole),
             (long long)layout_local_count(&l));
    return l;
}

/* ---- what it means ---- */

static int64_t box_size(const Layout *l, int d) {
    if (!d && l->rows) return l->rows;
    return l->whole.dim[d] / mesh_group_size(l->mesh, l->whole.split[d]);
}

int64_t layout_local_count(const Layout *l) {
    int64_t n = l->flattened ? l->padded / mesh_group_size(l->mesh, l->flat) : 1;
    int end = l->flattened ? l->lead : l->whole.rank;
    for (int d = 0; d < end; d++) n *= box_size(l, d);
    return n;
}

static Axes copying(const Layout *l) {
    Axes all = (Axes)(((uint64_t)1 << l->mesh->naxes) - 1);
    return all & ~(l->flat | type_axes(&l->whole));
}

bool layout_holds(const Layout *l, int rank) {
    return l->stages <= 1 || l->stage < 0 || rank / mesh_ranks(l->mesh) == l->stage;
}

int layout_copies(const Layout *l) {
    return mesh_group_size(l->mesh, copying(l));
}

int layout_copy(const Layout *l, int rank) {
    return mesh_group_coord(l->mesh, rank, copying(l));
}

LayoutWalk layout_walk(const Layout *l, int rank) {
    const Type *t = &l->whole;
    LayoutWalk w = {.l = l, .row = 1, .box = 1};
    bool whole = true; /* all dimensions from d on */
    if (!layout_holds(l, rank)) return w;
    for (int d = t->rank - 1; d >= 0; d--) {
        w.size[d] = box_size(l, d);
        w.first[d] = mesh_group_coord(l->mesh, rank, t->split[d]) * w.size[d];
        if (!d) w.first[d] += l->first;
        if (d < l->lead) break;
        w.box *= w.size[d];
        if (whole) w.row *= w.size[d];
        whole = whole && w.size[d] == t->dim[d];
    }
    w.part = l->flattened ? l->padded / mesh_group_size(l->mesh, l->flat) : w.box;
    w.begin = mesh_group_coord(l->mesh, rank, l->flat) * w.part;
    w.end = MIN(w.begin + w.part, w.box);
    w.at = w.begin;
    w.more = w.begin < w.end;
    return w;
}

/* Number in the whole tensor of element `at` of the box at the present lead index. */
static int64_t whole_of_box(const LayoutWalk *w) {
    const Type *t = &w->l->whole;
    int64_t at = w->at, number = 0, stride = 1;
    for (int d = t->rank - 1; d >= 0; d--) {
        int64_t i = d < w->l->lead ? w->lead_at : at % w->size[d];
        if (d >= w->l->lead) at /= w->size[d];
        number += (w->first[d] + i) * stride;
        stride *= t->dim[d];
    }
    return number;
}

bool layout_next(LayoutWalk *w) {
    if (!w->more) return false;
    w->count = MIN(w->row - w->at % w->row, w->end - w->at);
    w->local = w->lead_at * w->part + w->at - w->begin;
    w->global = whole_of_box(w);
    w->at += w->count;
    if (w->at == w->end) {
        w->at = w->begin;
        w->more = ++w->lead_at < (w->l->lead ? w->size[0] : 1);
    }
    return true;
}

void layout_scatter(const Layout *l, int rank, const void *whole, void *part) {
    int64_t bytes = dtype_bytes[l->whole.dt];
    for (LayoutWalk w = layout_walk(l, rank); layout_next(&w);)
        memcpy((char *)part + w.local * bytes, (const char *)whole + w.global * bytes,
               (size_t)(w.count * bytes));
}

void layout_gather(const Layout *l, int rank, const void *part, void *whole) {
    int64_t bytes = dtype_bytes[l->whole.dt];
    for (LayoutWalk w = layout_walk(l, rank); layout_next(&w);)
        memcpy((char *)whole + w.global * bytes, (const char *)part + w.local * bytes,
               (size_t)(w.count * bytes));
}
