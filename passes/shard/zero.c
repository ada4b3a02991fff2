/* zero.c - prepares parameters whose optimizer state, gradient or weights are sharded
 * over the ranks that would hold replicas (ZeRO, arXiv 1910.02054). Level global.
 *
 * Such a parameter is stored flattened: [L, 96, 32:tp] becomes [L, T:tp, n], one row for
 * each part over tp, padded with zeros so that any number of replicas divides it. The
 * function that uses it starts with unpad, reshape, rearrange, reshape back to the
 * matrix, which cost nothing on a rank when there is no padding; at level 3 the parts are
 * gathered before that. What is then split over the replicas follows from the level: 1
 * the states (see train_update.c), 2 the gradient too (see autodiff_pair.c), 3 the
 * parameter itself.
 * Replicas over other axes than option zero_axes split it likewise; gradients stay partial sums
 * over these until the step ends. Attribute `global` has its shape, `zero` the level. */
#include "ir/placement.h"
#include "passes/passes.h"

/* Is the parameter a stack of slices, one a run of a loop, and nothing else? Then *call
 * and *operand say which. */
static bool is_stack(const Module *m, const Func *f, const Value *v, Op **call,
                     int *operand) {
    *call = value_only_reader(f, v);
    if (!*call || !op_is_call(*call)) return false;
    const Call c = call_of(*call);
    for (*operand = 0; (*call)->in[*operand] != v;) ++*operand;
    return call_slices(&c, *operand) && only_call(m, c.f) == *call;
}

/* Dimension that is split, or -1; -2: several. */
static int split_dim(const Type *t) {
    int d = -1;
    for (int k = 0; k < t->rank; k++) {
        if (t->split[k]) d = d == -1 ? k : -2;
    }
    return d;
}

/* One slice [boxes, padded] -> the matrix of type `ty`. */
static Value *unflatten(Builder *b, Value *v, const Type *ty, int parts,
                        const char *name) {
    int64_t n = type_count(ty) / parts;
    int d = split_dim(ty);
    Type gathered = v->ty;
    gathered.split[1] = 0;
    if (v->ty.split[1]) v = build_placed(b, OP_reshard, NULL, gathered, v);
    Type flat = TYPE(ty->dt, parts, n);
    if (v->ty.dim[1] != n) v = build_as(b, OP_unpad, NULL, flat, v, NULL);
    if (d < 0) return build_named(b, name, build_placed(b, OP_reshape, NULL, *ty, v));
    /* [parts, before..., size / parts, after...] */
    Type inner = {.dt = ty->dt, .rank = ty->rank + 1};
    inner.dim[0] = parts;
    for (int k = 0; k < ty->rank; k++)
        inner.dim[k + 1] = ty->dim[k] / (k == d ? parts : 1);
    v = build_as(b, OP_reshape, NULL, inner, v, NULL);
    char from[MAX_RANK + 2], to[MAX_RANK + 2];
    int at = 0;
    for (int k = 0; k <= ty->rank; k++) from[k] = (char)('a' + k);
    for (int k = 0; k < ty->rank; k++) {
        if (k == d) to[at++] = 'a';
        to[at++] = (char)('b' + k);
    }
    from[ty->rank + 1] = to[at] = 0;
    if (d) v = build1(b, OP_rearrange, bfmt(b, "%s->%s", from, to), v, NULL);
    return build_named(b, name, build_placed(b, OP_reshape, NULL, *ty, v));
}

static void use_flat(Func *f, Value *arg, const Type *matrix_type, const Type *slice,
                     int parts) {
    Builder b = build_at_start(f);
    arg->ty = *slice;
    value_replace_behind(arg, unflatten(&b, arg, matrix_type, parts, arg->name));
}

static void flatten(Module *m, Func *f, int i, const PassOptions *o, Axes copies) {
    Value *v = f->arg[i];
    Op *call = NULL;
    int operand = 0, lead = is_stack(m, f, v, &call, &operand);
    Type one = lead ? type_slice(&v->ty) : v->ty;
    int d = split_dim(&one);
    int64_t bytes = type_bytes(&one);
    /* What a result overwrites keeps its shape. */
    if (func_result_over(f, i) >= 0) return;
    if (lead && func_result_over(op_func(call), operand) >= 0) return;
    if (d >= 0 && one.rank == MAX_RANK) return; /* no room for the parts beside them */
    if (lead && v->ty.split[0]) return; /* its layers are on several ranks already */
    if (d == -2 || !dtype_is_float(one.dt) || bytes < o->zero_threshold_bytes) return;
    copies &= (Axes) ~(d >= 0 ? one.split[d] : 0);
    int ranks = mesh_group_size(&m->mesh, copies);
    int parts = d >= 0 ? mesh_group_size(&m->mesh, one.split[d]) : 1;
    int64_t n = type_count(&one) / parts, padded = round_up(n, ranks);
    if (ranks == 1) return;
    Type flat = TYPE(one.dt, parts, padded);
    flat.split[0] = d >= 0 ? one.split[d] : 0;
    if (o->zero_level >= 3) flat.split[1] = copies;
    Attr global = {
        .key = "global", .kind = ATTR_TYPE, .s = type_text(m->mem, &m->mesh, &v->ty)};
    if (lead) {
        Func *body = op_func(call);
        use_flat(body, body->arg[operand], &one, &flat, parts);
        func_arg_set_int(body, operand, "zero", o->zero_level);
        v->ty = type_stack(&flat, v->ty.dim[0]);
    } else {
        use_flat(f, v, &one, &flat, parts);
    }
    func_arg_set(f, i, &global);
    func_arg_set_int(f, i, "lead", lead);
    func_arg_set_int(f, i, "zero", o->zero_level);
}

static bool is_large(const Module *m, const Func *f, const Value *v, int64_t bytes) {
    Op *call = NULL;
    int operand = 0;
    Type one = v->ty;
    if (is_stack(m, f, v, &call, &operand)) one = type_slice(&v->ty);
    return dtype_is_float(one.dt) && type_bytes(&one) >= bytes;
}

bool zero_splits_any(const Module *m, const PassOptions *o) {
    for (const Func *f = m->first; f; f = f->next)
        for (int i = 0; f->role == ROLE_MODEL && i < f->narg; i++)
            if (arg_role(f, i) == ARG_param &&
                is_large(m, f, f->arg[i], o->zero_threshold_bytes))
                return true;
    return false;
}

Axes zero_axes_of(const Module *m, const PassOptions *o) {
    Axes copies = 0;
    if (o->zero_level && !mesh_axes_parse(&m->mesh, o->zero_axes, &copies)) {
        fail(EXIT_CONFIG, "optimizer shard over '%s': not axes of the mesh",
             o->zero_axes);
    }
    return splitting_axes(&m->mesh, copies);
}

void pass_zero(Module *m, const PassOptions *o) {
    Axes copies = zero_axes_of(m, o);
    if (!o->zero_level) return;
    for (Func *f = m->first; f; f = f->next) {
        for (int i = 0; f->role == ROLE_MODEL && i < f->narg; i++) {
            if (arg_role(f, i) == ARG_param) flatten(m, f, i, o, copies);
        }
    }
}

/* The type with its last dimension split over the copies: of the states of a flattened
 * parameter, and of its gradient. */
Type zero_type(const Module *m, const PassOptions *o, const Type *flat) {
    Type t = *flat;
    Axes copies = zero_axes_of(m, o);
    for (int d = 0; d < t.rank - 1; d++) copies &= (Axes)~t.split[d];
    t.split[t.rank - 1] = copies;
    return t;
}

bool zero_gathers_ahead(const PassOptions *o) {
    return o->overlap && !o->gathers_at_end && (o->zero_level == 1 || o->zero_level == 2);
}
