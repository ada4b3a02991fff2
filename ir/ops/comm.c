/* comm.c - collectives over one axis of the mesh or several, messages, and ops that
 * depend on the rank. */
#include "ir/op_hooks.h"
#include "ir/tensor_fast.h"

static Axes axes_of(const Op *op) {
    const Attr *a = op_attr(op, "axis");
    Axes axes = 0;
    if (!a || !mesh_axes_parse(&op->fn->mod->mesh, a->s, &axes) || !axes) {
        infer_error("mesh axis '%s' not found", a ? a->s : "");
    }
    if ((axes & AXES_REVERSED) && (optab[op->kind].flags & F_COMM)) {
        infer_error("axes of a collective are in the order of the mesh, not %s", a->s);
    }
    return axes;
}

static int members(const Op *op) {
    return mesh_group_size(&op->fn->mod->mesh, axes_of(op));
}

static int64_t dim_of(const Op *op, int i, const char *key) {
    int64_t d = op_int(op, key, 0);
    if (d < 0) d += op->in[i]->ty.rank;
    if (d < 0 || d >= op->in[i]->ty.rank) infer_error("%s is not a dimension", key);
    return d;
}

/* ---- result types ---- */

static void multiply(Type *t, int64_t d, int n) {
    if (type_bytes(t) > TYPE_MAX_BYTES / n) {
        infer_error("a result of more than 2^50 bytes");
    }
    t->dim[d] *= n;
}

static void divide(Type *t, int64_t d, int n) {
    if (t->dim[d] % n)
        infer_error("%d ranks do not divide %lld", n, (long long)t->dim[d]);
    t->dim[d] /= n;
}

static void need_float(const Op *op) {
    for (int i = 0; i < op->nin; i++) {
        if (dtype_is_float(op->in[i]->ty.dt)) continue;
        infer_error("operand %d (%%%s) must be a float type", i, op->in[i]->name);
    }
}

/* Results are like the operands; also of ring_shift. */
void infer_all_reduce(Op *op, Type *out) {
    const Attr *of = op_attr(op, "of");
    if (of && strcmp(of->s, "max") && strcmp(of->s, "sum"))
        infer_error("of is sum or max");
    axes_of(op);
    for (int i = 0; i < op->nin; i++) out[i] = op->in[i]->ty;
    op->nout = op->nin;
}

/* The attributes name the dimension that is split, and that which is joined; NULL: none is. */
static void infer_exchange(Op *op, Type *out, const char *split, const char *join) {
    int n = members(op);
    for (int i = 0; i < op->nin; i++) {
        out[i] = op->in[i]->ty;
        if (split) divide(&out[i], dim_of(op, i, split), n);
        if (join) multiply(&out[i], dim_of(op, i, join), n);
    }
    op->nout = op->nin;
}

void infer_all_gather(Op *op, Type *out) {
    infer_exchange(op, out, NULL, "dim");
}

void infer_reduce_scatter(Op *op, Type *out) {
    axes_of(op);
    need_float(op);
    infer_exchange(op, out, "dim", NULL);
}

void infer_all_to_all(Op *op, Type *out) {
    infer_exchange(op, out, "split", "join");
}

void infer_arrive(Op *op, Type *out) {
    if (op->nout < 1 || op->nout > op->nin) {
        infer_error("%d results of %d operands", op->nout, op->nin);
    }
    for (int i = 0; i < op->nout; i++) out[i] = op->in[i]->ty;
}

void infer_send(Op *op, Type *out) {
    out[0] = type_scalar(DT_I32);
    op->nout = 1;
}

void infer_sent(Op *op, Type *out) {
    const Op *from = op->in[0]->def;
    (void)out;
    if (!from || !op_has(from, F_EFFECT) || from->nin != 1 || from->in[0] != op->in[1])
        infer_error("operand 0 is no send of operand 1");
    op->nout = 0;
}

void infer_shard(Op *op, Type *out) {
    out[0] = op->in[0]->ty;
    divide(&out[0], dim_of(op, 0, "dim"), members(op));
}

void infer_axis(Op *op, Type *out) {
    (void)out;
    axes_of(op);
}

/* ---- meaning ---- */

/* Operand i of member k of the group of this rank. */
static Tensor *from_member(const Ref *r, int k, int i) {
    return r->peers[mesh_group_member(r->mesh, r->rank, axes_of(r->op), k)][i];
}

static int coord_of(const Ref *r) {
    return mesh_group_coord(r->mesh, r->rank, axes_of(r->op));
}

void ref_reshard(const Ref *r) {
    memcpy(r->out[0]->data, r->in[0]->data, (size_t)type_bytes(&r->out[0]->ty));
}

void ref_all_reduce(const Ref *r) {
    const Attr *of = op_attr(r->op, "of");
    bool max = of && !strcmp(of->s, "max");
    Arena *mem = arena_new();
    int ranks = members(r->op);
    Tensor **from = NEW_ARRAY(mem, Tensor *, (size_t)ranks);
    for (int i = 0; i < r->op->nin; i++) {
        for (int k = 0; k < ranks; k++) from[k] = from_member(r, k, i);
        for (int64_t at = 0, n = type_count(&r->out[i]->ty); at < n; at++) {
            double all = tensor_get_fast(from[0], at);
            for (int k = 1; k < ranks; k++) {
                double v = tensor_get_fast(from[k], at);
                all = !max ? all + v : v > all || v != v ? v : all;
            }
            tensor_set_fast(r->out[i], at, all);
        }
    }
    arena_free(mem);
}

void ref_arrive(const Ref *r) {
    for (int i = 0; i < r->op->nout; i++) {
        size_t bytes = (size_t)type_bytes(&r->out[i]->ty);
        if (r->out[i]->data != r->in[i]->data)
            memcpy(r->out[i]->data, r->in[i]->data, bytes);
    }
}

/* Copies rows [from, from + n) of dimension d of `src` to rows [to, to + n) of `dst`;
 * the other dimensions agree. */
static void copy_rows(Tensor *dst, int64_t to, const Tensor *src, int64_t from, int64_t n,
                      int64_t d) {
    const TypeAround a = type_around(&src->ty, d);
    size_t after = (size_t)a.after * dtype_bytes[src->ty.dt];
    for (int64_t b = 0; b < a.before; b++) {
        memcpy((char *)dst->data + (size_t)(b * dst->ty.dim[d] + to) * after,
               (char *)src->data + (size_t)(b * src->ty.dim[d] + from) * after,
               (size_t)n * after);
    }
}

void ref_all_gather(const Ref *r) {
    for (int i = 0; i < r->op->nin; i++) {
        int64_t d = dim_of(r->op, i, "dim"), part = r->in[i]->ty.dim[d];
        for (int k = 0; k < members(r->op); k++) {
            copy_rows(r->out[i], k * part, from_member(r, k, i), 0, part, d);
        }
    }
}

void ref_shard(const Ref *r) {
    int64_t d = dim_of(r->op, 0, "dim"), part = r->out[0]->ty.dim[d];
    copy_rows(r->out[0], 0, r->in[0], coord_of(r) * part, part, d);
}

void ref_reduce_scatter(const Ref *r) {
    Arena *mem = arena_new();
    for (int i = 0; i < r->op->nin; i++) {
        int64_t d = dim_of(r->op, i, "dim"), part = r->out[i]->ty.dim[d];
        int64_t n = type_count(&r->out[i]->ty);
        Tensor *piece = tensor_new(mem, &r->out[i]->ty);
        double *sum = NEW_ARRAY(mem, double, (size_t)n);
        for (int k = 0; k < members(r->op); k++) {
            copy_rows(piece, 0, from_member(r, k, i), coord_of(r) * part, part, d);
            for (int64_t at = 0; at < n; at++) sum[at] += tensor_get_fast(piece, at);
        }
        for (int64_t at = 0; at < n; at++) tensor_set_fast(r->out[i], at, sum[at]);
    }
    arena_free(mem);
}

/* Member k's part (along `split`) for this rank becomes part k along `join`. */
void ref_all_to_all(const Ref *r) {
    Arena *mem = arena_new();
    int n = members(r->op);
    for (int i = 0; i < r->op->nin; i++) {
        int64_t split = dim_of(r->op, i, "split"), join = dim_of(r->op, i, "join");
        Type ty = r->in[i]->ty;
        ty.dim[split] /= n;
        Tensor *piece = tensor_new(mem, &ty);
        for (int k = 0; k < n; k++) {
            copy_rows(piece, 0, from_member(r, k, i), coord_of(r) * ty.dim[split],
                      ty.dim[split], split);
            copy_rows(r->out[i], k * ty.dim[join], piece, 0, ty.dim[join], join);
        }
    }
    arena_free(mem);
}

void ref_ring_shift(const Ref *r) {
    int n = members(r->op), before = (coord_of(r) + n - 1) % n;
    for (int i = 0; i < r->op->nin; i++) {
        memcpy(r->out[i]->data, from_member(r, before, i)->data,
               (size_t)type_bytes(&r->out[i]->ty));
    }
}

void ref_on_first(const Ref *r) {
    bool first = coord_of(r) == 0;
    for (int64_t i = 0, n = type_count(&r->out[0]->ty); i < n; i++) {
        tensor_set_fast(r->out[0], i, first ? tensor_get_fast(r->in[0], i) : 0);
    }
}

void ref_coord(const Ref *r) {
    tensor_set_fast(r->out[0], 0, (double)(coord_of(r) * op_int(r->op, "by", 1)));
}

void ref_index_from(const Ref *r) {
    int64_t base = tensor_get_int(r->in[1], 0);
    for (int64_t i = 0, n = type_count(&r->out[0]->ty); i < n; i++) {
        tensor_set_fast(r->out[0], i, (double)(tensor_get_int(r->in[0], i) - base));
    }
}

Value *local_first(Local *l, int id) {
    const Mesh *m = &l->op->fn->mod->mesh;
    int64_t part = l->d->size[id] / mesh_group_size(m, l->split[id]);
    char *attrs = bfmt(&l->b, "axis=\"%s\"; by=%lld",
                       mesh_axes_text(l->b.mem, m, l->split[id]), (long long)part);
    return build1(&l->b, OP_coord, attrs, NULL);
}
