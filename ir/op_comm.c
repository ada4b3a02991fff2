/* op_comm.c - collectives over one axis of the mesh. A rank's group are the ranks that
 * differ from it in that axis only, ordered by their coordinate. */
#include "op_hooks.h"

static int axis_of(const Op *op, const Mesh *mesh) {
    const Attr *a = op_attr(op, "axis");
    for (int k = 0; a && k < mesh->naxes; k++) {
        if (!strcmp(mesh->axis[k].name, a->s)) return k;
    }
    infer_error("mesh axis '%s' not found", a ? a->s : "");
}

/* Rank of the member with coordinate c in the group of `rank` along `axis`. */
static int member(const Mesh *m, int rank, int axis, int c) {
    int stride = 1;
    for (int a = m->naxes - 1; a > axis; a--) stride *= m->axis[a].size;
    return rank + (c - mesh_coord(m, rank, axis)) * stride;
}

static int64_t dim_attr(const Op *op, const char *key) {
    int64_t d = op_int(op, key, -1);
    if (d < 0 || d >= op->in[0]->ty.rank) infer_error("%s is not a dimension", key);
    return d;
}

static void multiply(const Op *op, Type *t, int64_t d) {
    const Mesh *m = &op->fn->mod->mesh;
    int n = m->axis[axis_of(op, m)].size;
    if (type_bytes(t) > TYPE_MAX_BYTES / n) {
        infer_error("a result of more than 2^50 bytes");
    }
    t->dim[d] *= n;
}

void infer_all_reduce(Op *op, Type *out) {
    (void)out;
    axis_of(op, &op->fn->mod->mesh);
}

void infer_all_gather(Op *op, Type *out) {
    out[0] = op->in[0]->ty;
    multiply(op, &out[0], dim_attr(op, "dim"));
}

static void divide(const Op *op, Type *t, int64_t d) {
    const Mesh *m = &op->fn->mod->mesh;
    int n = m->axis[axis_of(op, m)].size;
    if (t->dim[d] % n) infer_error("%d ranks do not divide %lld", n, (long long)t->dim[d]);
    t->dim[d] /= n;
}

void infer_reduce_scatter(Op *op, Type *out) {
    out[0] = op->in[0]->ty;
    divide(op, &out[0], dim_attr(op, "dim"));
}

void infer_all_to_all(Op *op, Type *out) {
    out[0] = op->in[0]->ty;
    divide(op, &out[0], dim_attr(op, "split"));
    multiply(op, &out[0], dim_attr(op, "join"));
}

void ref_all_reduce(const Ref *r) {
    int axis = axis_of(r->op, r->mesh);
    for (int64_t i = 0, n = type_count(&r->out[0]->ty); i < n; i++) {
        double sum = 0;
        for (int c = 0; c < r->mesh->axis[axis].size; c++) {
            sum += tensor_get(r->peers[member(r->mesh, r->rank, axis, c)][0], i);
        }
        tensor_set(r->out[0], i, sum);
    }
}

/* Copies rows [from, from + n) of dimension d of `src` to rows [to, to + n) of `dst`;
 * the other dimensions agree. */
static void copy_rows(Tensor *dst, int64_t to, const Tensor *src, int64_t from, int64_t n,
                      int64_t d) {
    int64_t before = 1;
    size_t after = dtype_bytes[src->ty.dt];
    for (int k = 0; k < d; k++) before *= src->ty.dim[k];
    for (int k = (int)d + 1; k < src->ty.rank; k++) after *= (size_t)src->ty.dim[k];
    for (int64_t b = 0; b < before; b++) {
        memcpy((char *)dst->data + (size_t)(b * dst->ty.dim[d] + to) * after,
               (char *)src->data + (size_t)(b * src->ty.dim[d] + from) * after,
               (size_t)n * after);
    }
}

void ref_all_gather(const Ref *r) {
    int axis = axis_of(r->op, r->mesh);
    int64_t d = op_int(r->op, "dim", 0), part = r->in[0]->ty.dim[d];
    for (int c = 0; c < r->mesh->axis[axis].size; c++) {
        copy_rows(r->out[0], c * part, r->peers[member(r->mesh, r->rank, axis, c)][0], 0,
                  part, d);
    }
}

/* This rank's part along dimension d. */
void ref_shard(const Ref *r) {
    int axis = axis_of(r->op, r->mesh);
    int64_t d = op_int(r->op, "dim", 0), part = r->out[0]->ty.dim[d];
    copy_rows(r->out[0], 0, r->in[0], mesh_coord(r->mesh, r->rank, axis) * part, part, d);
}

void ref_reduce_scatter(const Ref *r) {
    int axis = axis_of(r->op, r->mesh);
    int64_t d = op_int(r->op, "dim", 0), part = r->out[0]->ty.dim[d];
    Arena *mem = arena_new();
    Tensor *piece = tensor_new(mem, &r->out[0]->ty);
    int64_t n = type_count(&r->out[0]->ty), mine = mesh_coord(r->mesh, r->rank, axis) * part;
    double *sum = NEW_ARRAY(mem, double, (size_t)n);
    for (int c = 0; c < r->mesh->axis[axis].size; c++) {
        copy_rows(piece, 0, r->peers[member(r->mesh, r->rank, axis, c)][0], mine, part, d);
        for (int64_t i = 0; i < n; i++) sum[i] += tensor_get(piece, i);
    }
    for (int64_t i = 0; i < n; i++) tensor_set(r->out[0], i, sum[i]);
    arena_free(mem);
}

/* Member c's part (along `split`) for this rank becomes part c along `join`. */
void ref_all_to_all(const Ref *r) {
    int axis = axis_of(r->op, r->mesh), n = r->mesh->axis[axis].size;
    int64_t split = op_int(r->op, "split", 0), join = op_int(r->op, "join", 0);
    Arena *mem = arena_new();
    Type ty = r->in[0]->ty;
    ty.dim[split] /= n;
    Tensor *piece = tensor_new(mem, &ty);
    for (int c = 0; c < n; c++) {
        copy_rows(piece, 0, r->peers[member(r->mesh, r->rank, axis, c)][0],
                  mesh_coord(r->mesh, r->rank, axis) * ty.dim[split], ty.dim[split], split);
        copy_rows(r->out[0], c * ty.dim[join], piece, 0, ty.dim[join], join);
    }
    arena_free(mem);
}
