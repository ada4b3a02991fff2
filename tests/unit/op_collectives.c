/* op_collectives.c - collectives by their samples (ops.h) on meshes of all forms, against a
 * computation on the operands of all ranks. */
#include "op_programs.h"

/* The group of an op's axes by coordinates; axes have names of one letter. */
static bool has_axis(const Op *op, int axis) {
    return strchr(op_attr(op, "axis")->s, op->fn->mod->mesh.axis[axis].name[0]) != NULL;
}

static int group_size(const Op *op) {
    const Mesh *m = &op->fn->mod->mesh;
    int n = 1;
    for (int a = 0; a < m->naxes; a++) n *= has_axis(op, a) ? m->axis[a].size : 1;
    return n;
}

/* Coordinates of a rank, axis 0 outermost. */
static void coordinates(const Mesh *m, int rank, int *c) {
    for (int a = m->naxes - 1; a >= 0; rank /= m->axis[a--].size)
        c[a] = rank % m->axis[a].size;
}

static int number_in_group(const Op *op, int rank) {
    const Mesh *m = &op->fn->mod->mesh;
    int c[MAX_AXES], k = 0;
    coordinates(m, rank, c);
    for (int a = 0; a < m->naxes; a++) {
        if (has_axis(op, a)) k = k * m->axis[a].size + c[a];
    }
    return k;
}

/* The k-th member of the rank's group: of all ranks the one with that number whose other
 * coordinates agree. */
static int peer(const Op *op, int rank, int k) {
    const Mesh *m = &op->fn->mod->mesh;
    for (int r = 0; r < mesh_ranks(m); r++) {
        int mine[MAX_AXES], its[MAX_AXES];
        bool same = number_in_group(op, r) == k;
        coordinates(m, rank, mine);
        coordinates(m, r, its);
        for (int a = 0; a < m->naxes; a++) same &= has_axis(op, a) || mine[a] == its[a];
        if (same) return r;
    }
    test_fail(__FILE__, __LINE__, "rank %d has no peer %d", rank, k);
}

static int64_t element(const Type *t, const int64_t *at) {
    int64_t i = 0;
    for (int d = 0; d < t->rank; d++) i = i * t->dim[d] + at[d];
    return i;
}

static double reduced(const Op *op, Tensor ***arg, int rank, int nth, const int64_t *at) {
    bool max = op_attr(op, "of") != NULL;
    double all = 0;
    for (int k = 0; k < group_size(op); k++) {
        double v = tensor_get(arg[peer(op, rank, k)][nth], element(&op->in[nth]->ty, at));
        all = !k ? v : max ? fmax(all, v) : all + v;
    }
    return all;
}

static int64_t dim_of(const Op *op, int nth, const char *key) {
    int64_t d = op_int(op, key, 0);
    return d < 0 ? d + op->in[nth]->ty.rank : d;
}

/* One element of result `nth` of a collective on `rank`, from the
 * operands of all ranks. */
static double comm_element(const Op *op, Tensor ***arg, int rank, int nth,
                           const int64_t *out_at) {
    const Type *in = op->nin ? &op->in[nth]->ty : NULL, *out = &op->out[nth]->ty;
    int n = group_size(op), mine = number_in_group(op, rank);
    int64_t at[MAX_RANK], dim = in && in->rank ? dim_of(op, nth, "dim") : 0;
    memcpy(at, out_at, sizeof at);
    switch (op->kind) {
    case OP_all_reduce:
        return reduced(op, arg, rank, nth, at);
    case OP_all_gather: {
        int c = (int)(at[dim] / in->dim[dim]);
        at[dim] %= in->dim[dim];
        return tensor_get(arg[peer(op, rank, c)][nth], element(in, at));
    }
    case OP_reduce_scatter:
        at[dim] += mine * out->dim[dim];
        return reduced(op, arg, rank, nth, at);
    case OP_shard:
        at[dim] += mine * out->dim[dim];
        return tensor_get(arg[rank][nth], element(in, at));
    case OP_all_to_all: {
        int64_t split = dim_of(op, nth, "split"), join = dim_of(op, nth, "join");
        int64_t part = in->dim[join] / (split == join ? n : 1);
        int c = (int)(at[join] / part);
        at[join] %= part;
        at[split] += mine * (in->dim[split] / n);
        return tensor_get(arg[peer(op, rank, c)][nth], element(in, at));
    }
    case OP_ring_shift:
        return tensor_get(arg[peer(op, rank, mine ? mine - 1 : n - 1)][nth],
                          element(in, at));
    case OP_on_first:
        return mine ? 0 : tensor_get(arg[rank][nth], element(in, at));
    case OP_coord:
        return (double)mine * (double)op_int(op, "by", 0);
    default:
        test_fail(__FILE__, __LINE__, "no computation of %s", optab[op->kind].name);
    }
}

typedef struct CommMesh {
    const char *mesh, *axis;
    int ranks; /* in a group */
} CommMesh;

static void check_comm(const Sample *sample, const CommMesh *c) {
    Arena *mem = arena_new();
    Sample s = *sample;
    s.body = replaced(mem, s.body, "axis=a", arena_printf(mem, "axis=\"%s\"", c->axis));
    Module *m = sample_module(mem, &s, "f32", c->mesh, c->ranks, "local");
    Func *f = entry(m);
    const Op *op = f->last;
    return_results(f);
    EXPECT_INT(group_size(op), c->ranks);
    Tensor ***arg = make_arguments(mem, f), ***ret = run(mem, f, arg);
    for (int r = 0; r < mesh_ranks(&m->mesh) * op->nout; r++) {
        int nth = r % op->nout, rank = r / op->nout;
        const Type *t = &op->out[nth]->ty;
        for (int64_t i = 0, n = type_count(t); i < n; i++) {
            int64_t at[MAX_RANK] = {0}, rest = i;
            for (int d = t->rank - 1; d >= 0; rest /= t->dim[d--])
                at[d] = rest % t->dim[d];
            double want = comm_element(op, arg, rank, nth, at);
            double got = tensor_get(ret[rank][nth], i);
            if (near(got, want, 1e-6)) continue;
            test_fail(__FILE__, __LINE__,
                      "%s on mesh(%s), rank %d, result %d, element %lld: "
                      "%g, wanted %g",
                      s.body, c->mesh, rank, nth, (long long)i, got, want);
        }
    }
    arena_free(mem);
}

TEST(collectives) {
    static const CommMesh meshes[] = {
        {"a=1", "a", 1},
        {"a=2", "a", 2},
        {"a=3", "a", 3},
        {"a=4", "a", 4},
        {"a=2, b=2", "a", 2},
        {"a=3, b=2", "a", 3},
        {"a=2, b=2, c=3", "a", 2},
        {"a=2, b=3, c=2", "b", 3},
        {"a=2, b=3", "a.b", 6},
        {"a=2, b=2, c=3", "a.c", 6},
        {"a=2, b=2, c=3", "b.c", 6},
        {"a=3, b=1, c=2, d=2", "b.c.d", 4},
        {"a=2, b=3, c=2", "a.b.c", 12},
    };
    int checked = 0;
    for (int i = 0; i < ARRAY_LEN(samples); i++) {
        if (!is_comm(&samples[i])) continue;
        for (int k = 0; k < ARRAY_LEN(meshes); k++) {
            check_comm(&samples[i], &meshes[k]);
            checked++;
        }
    }
    EXPECT(checked > 20 * ARRAY_LEN(meshes));
}
