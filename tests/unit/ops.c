/* ops.c - every row of ops.def by its samples (ops.h): text round trip, gradients against
 * finite differences, composites against their expansion, all of it against the fused and
 * planned program, collectives against a computation on whole tensors. */
#include "op_programs.h"

/* Equal, or both not numbers, or within tol * max(1, |b|). */
static bool near(double a, double b, double tol) {
    return a == b || (a != a && b != b) || fabs(a - b) <= tol * fmax(1, fabs(b));
}

static void expect_near(const Sample *s, const char *what, int nth, const Tensor *a,
                        const Tensor *b, double tol) {
    EXPECT(type_same_shape(&a->ty, &b->ty));
    for (int64_t i = 0, n = type_count(&a->ty); i < n; i++) {
        double x = tensor_get(a, i), y = tensor_get(b, i);
        if (near(x, y, tol)) continue;
        test_fail(__FILE__, __LINE__,
                  "%s {%s}: %s %d, element %lld is %.17g, wanted %.17g", s->kind, s->body,
                  what, nth, (long long)i, x, y);
    }
}

/* ---- tests ---- */

TEST(every_op_has_samples) {
    for (int k = 0; k < OP_COUNT; k++) {
        bool found = false;
        for (int i = 0; i < ARRAY_LEN(samples); i++) {
            found |= !strcmp(samples[i].kind, optab[k].name);
        }
        if (!found) test_fail(__FILE__, __LINE__, "no sample for op %s", optab[k].name);
    }
    for (int i = 0; i < ARRAY_LEN(samples); i++) {
        Arena *mem = arena_new();
        EXPECT(op_kind(samples[i].kind) >= 0);
        Func *f = entry(plain_module(mem, &samples[i], "f32"));
        EXPECT_STR(optab[f->last->kind].name, samples[i].kind);
        arena_free(mem);
    }
}

TEST(text_round_trip) {
    for (int i = 0; i < ARRAY_LEN(samples); i++) {
        Arena *mem = arena_new();
        Module *m = plain_module(mem, &samples[i], "f32");
        return_results(entry(m));
        char *once = module_print(mem, m);
        EXPECT_STR(module_print(mem, module_parse(mem, "again", once, strlen(once))),
                   once);
        arena_free(mem);
    }
}

/* A program of bf16 is read, printed and run like the others. */
TEST(bf16_runs) {
    for (int i = 0; i < ARRAY_LEN(samples); i++) {
        if (is_comm(&samples[i]) || starts(samples[i].kind, "rope_table")) continue;
        Arena *mem = arena_new();
        Func *f = entry(plain_module(mem, &samples[i], "bf16"));
        return_results(f);
        run(mem, f, make_arguments(mem, f));
        arena_free(mem);
    }
}

/* Adds to the model: loss = sum over float results of (result * fixed numbers). Rows with
 * statistics as further results have a gradient for the first one alone. */
static bool add_loss(Func *f) {
    Op *op = f->last;
    Builder b = build_at_end(f);
    Value *loss = NULL;
    for (int i = 0; i < op->nout; i++) {
        if (!dtype_is_float(op->out[i]->ty.dt)) continue;
        if (i && optab[op->kind].nout > 1) continue;
        Value *by = func_arg(f, bfmt(&b, "by%d", i), op->out[i]->ty);
        Value *part = build1(&b, OP_mul, NULL, op->out[i], by, NULL);
        part = build1(&b, OP_sum, "...->_", part, NULL);
        loss = loss ? build1(&b, OP_add, NULL, loss, part, NULL) : part;
    }
    if (loss) func_ret(f, loss, -1);
    return loss != NULL;
}

static double loss_with(const Func *f, Tensor ***arg, Tensor *t, int64_t i, double v) {
    Arena *mem = arena_new();
    double old = tensor_get(t, i);
    tensor_set(t, i, v);
    double loss = tensor_get(run(mem, f, arg)[0][0], 0);
    tensor_set(t, i, old);
    arena_free(mem);
    return loss;
}

static void check_gradient(const Sample *s) {
    Arena *mem = arena_new();
    Module *m = plain_module(mem, s, "f64");
    Func *model = entry(m);
    int operands = model->narg;
    if (!add_loss(model)) {
        arena_free(mem);
        return;
    }
    for (int i = 0; i < operands; i++) {
        bool param =
            dtype_is_float(model->arg[i]->ty.dt) && !starts(model->arg[i]->name, "table");
        func_arg_attr(model, i, param ? "role=param" : "role=data");
    }
    Module *d = module_clone(mem, m);
    PassOptions o = pass_options_default();
    passes_run(d, "autodiff", &o);
    Func *grad = entry(d);
    Tensor ***arg = make_arguments(mem, grad);
    tensor_set(arg[0][grad->narg - 1], 0, 1);
    Tensor **ret = run(mem, grad, arg)[0];
    int nth = 1;
    for (int i = 0; i < operands; i++) {
        if (strcmp(arg_str(model, i, "role", ""), "param")) continue;
        Tensor *t = arg[0][i], *g = ret[nth++];
        for (int64_t k = 0, n = type_count(&t->ty); k < n; k++) {
            double x = tensor_get(t, k), h = 1e-4;
            /* Richardson: errors of h^2 cancel */
            double wide = (loss_with(model, arg, t, k, x + 2 * h) -
                           loss_with(model, arg, t, k, x - 2 * h)) /
                          (4 * h);
            double slim = (loss_with(model, arg, t, k, x + h) -
                           loss_with(model, arg, t, k, x - h)) /
                          (2 * h);
            double want = (4 * slim - wide) / 3;
            if (near(tensor_get(g, k), want, 1e-6)) continue;
            test_fail(__FILE__, __LINE__,
                      "%s {%s}: d loss / d %%%s[%lld] = %.12g, by "
                      "differences %.12g",
                      s->kind, s->body, model->arg[i]->name, (long long)k,
                      tensor_get(g, k), want);
        }
    }
    EXPECT(nth == grad->nret);
    arena_free(mem);
}

TEST(gradients_are_slopes) {
    int checked = 0;
    for (int i = 0; i < ARRAY_LEN(samples); i++) {
        int kind = op_kind(samples[i].kind);
        if (!optab[kind].vjp && kind != OP_call) continue;
        check_gradient(&samples[i]);
        checked++;
    }
    EXPECT(checked > 80);
}

/* What is fused, planned, or written with primitives means what the reference says. */
static void check_passes(const char *names, bool composite_only, double tol) {
    PassOptions o = pass_options_default();
    for (int i = 0; i < ARRAY_LEN(samples); i++) {
        const Sample *s = &samples[i];
        if (is_comm(s) || (composite_only && !optab[op_kind(s->kind)].expand)) continue;
        Arena *mem = arena_new();
        Module *m = plain_module(mem, s, "f64");
        return_results(entry(m));
        Module *after = module_clone(mem, m);
        passes_run(after, names, &o);
        Func *f = entry(m), *g = entry(after);
        Tensor **want = run(mem, f, make_arguments(mem, f))[0];
        Tensor **got = run(mem, g, make_arguments(mem, g))[0];
        for (int k = 0; k < f->nret; k++)
            expect_near(s, "result", k, got[k], want[k], tol);
        arena_free(mem);
    }
}

TEST(composites_expand) {
    check_passes("place,expand", true, 1e-12);
}

TEST(planned_programs_agree) {
    check_passes("place,expand,simplify,epilogue,fuse,memplan", false, 1e-12);
}

TEST(fused_programs_agree) {
    check_passes("place,expand,fuse,memplan", false, 1e-12);
}

/* ---- collectives ---- */

/* The rank that has coordinate c on axis 0 and agrees with `rank` elsewhere. */
static int peer(const Mesh *m, int rank, int c) {
    int others = mesh_ranks(m) / m->axis[0].size; /* axis 0 is the outermost */
    return c * others + rank % others;
}

static int64_t element(const Type *t, const int64_t *at) {
    int64_t i = 0;
    for (int d = 0; d < t->rank; d++) i = i * t->dim[d] + at[d];
    return i;
}

/* One element of a collective's result on `rank`, from the operands of all ranks. */
static double comm_element(const Op *op, Tensor ***arg, const Mesh *m, int rank,
                           const int64_t *out_at) {
    const Type *in = &op->in[0]->ty, *out = &op->out[0]->ty;
    int n = m->axis[0].size, mine = rank / (mesh_ranks(m) / n);
    int64_t at[MAX_RANK], dim = op_int(op, "dim", 0);
    memcpy(at, out_at, sizeof at);
    double sum = 0;
    switch (op->kind) {
    case OP_all_reduce:
        for (int c = 0; c < n; c++) {
            sum += tensor_get(arg[peer(m, rank, c)][0], element(in, at));
        }
        return sum;
    case OP_all_gather: {
        int c = (int)(at[dim] / in->dim[dim]);
        at[dim] %= in->dim[dim];
        return tensor_get(arg[peer(m, rank, c)][0], element(in, at));
    }
    case OP_reduce_scatter:
        at[dim] += mine * out->dim[dim];
        for (int c = 0; c < n; c++) {
            sum += tensor_get(arg[peer(m, rank, c)][0], element(in, at));
        }
        return sum;
    case OP_shard:
        at[dim] += mine * out->dim[dim];
        return tensor_get(arg[rank][0], element(in, at));
    case OP_all_to_all: {
        int64_t split = op_int(op, "split", 0), join = op_int(op, "join", 0);
        int64_t part = in->dim[join] / (split == join ? n : 1);
        int c = (int)(at[join] / part);
        at[join] %= part;
        at[split] += mine * (in->dim[split] / n);
        return tensor_get(arg[peer(m, rank, c)][0], element(in, at));
    }
    default:
        test_fail(__FILE__, __LINE__, "no direct computation of %s",
                  optab[op->kind].name);
    }
}

static void check_comm(const Sample *s, const char *mesh, int ranks) {
    Arena *mem = arena_new();
    Module *m = sample_module(mem, s, "f32", mesh, ranks, "local");
    Func *f = entry(m);
    const Op *op = f->last;
    return_results(f);
    Tensor ***arg = make_arguments(mem, f), ***ret = run(mem, f, arg);
    const Type *t = &op->out[0]->ty;
    for (int r = 0; r < mesh_ranks(&m->mesh); r++) {
        for (int64_t i = 0, n = type_count(t); i < n; i++) {
            int64_t at[MAX_RANK] = {0}, rest = i;
            for (int d = t->rank - 1; d >= 0; rest /= t->dim[d--])
                at[d] = rest % t->dim[d];
            double want = comm_element(op, arg, &m->mesh, r, at);
            if (near(tensor_get(ret[r][0], i), want, 1e-6)) continue;
            test_fail(__FILE__, __LINE__,
                      "%s on mesh(%s), rank %d, element %lld: %g, "
                      "wanted %g",
                      s->body, mesh, r, (long long)i, tensor_get(ret[r][0], i), want);
        }
    }
    arena_free(mem);
}

TEST(collectives) {
    static const struct {
        const char *mesh;
        int ranks;
    } meshes[] = {{"a=1", 1},      {"a=2", 2},      {"a=3", 3},          {"a=4", 4},
                  {"a=2, b=2", 2}, {"a=3, b=2", 3}, {"a=2, b=2, c=3", 2}};
    int checked = 0;
    for (int i = 0; i < ARRAY_LEN(samples); i++) {
        if (!is_comm(&samples[i])) continue;
        for (int k = 0; k < ARRAY_LEN(meshes); k++) {
            check_comm(&samples[i], meshes[k].mesh, meshes[k].ranks);
            checked++;
        }
    }
    EXPECT(checked == 11 * ARRAY_LEN(meshes));
}

/* The axis of a collective may be any of the mesh: sums along the last one. */
TEST(collective_on_inner_axis) {
    Arena *mem = arena_new();
    static const Sample s = {"all_reduce", NULL, "%x: f32[3]",
                             "%y = all_reduce %x {axis=b} : f32[3]"};
    Module *m = sample_module(mem, &s, "f32", "a=2, b=3, c=2", 2, "local");
    Func *f = entry(m);
    return_results(f);
    Tensor ***arg = make_arguments(mem, f), ***ret = run(mem, f, arg);
    for (int r = 0; r < 12; r++) {
        int first = r / 6 * 6 + r % 2; /* ranks first, first+2, first+4 */
        double want = 0;
        for (int c = 0; c < 3; c++) want += tensor_get(arg[first + 2 * c][0], 1);
        EXPECT_NEAR(tensor_get(ret[r][0], 1), want, 1e-6);
    }
    arena_free(mem);
}

/* ---- numbers that the interpreter must refuse, types that the verifier must ---- */

static void run_sample(const Sample *s) {
    Arena *mem = arena_new();
    Func *f = entry(plain_module(mem, s, "f32"));
    return_results(f);
    run(mem, f, make_arguments(mem, f));
}

TEST(bad_indices_fail) {
    static const Sample embed = {"embed", NULL, "%t: F[3,2], %off: i32[], %ids: i32[50]",
                                 "%y = embed %t, %ids : F[50,2]"};
    static const Sample grad = {"embed_grad", NULL, "%ids: i32[50], %dy: F[50,2]",
                                "%y = embed_grad %ids, %dy : F[2,2]"};
    static const Sample negative = {"embed", NULL, "%t: F[4,2], %lab: i32[50]",
                                    "%y = embed %t, %lab : F[50,2]"};
    static const Sample cache = {"cache_write", NULL,
                                 "%c: F[1,3,1,1], %x: F[1,2,1,1], %off: i32[]",
                                 "%y = cache_write %c, %x, %off : F[1,3,1,1]"};
    static const Sample label = {"xent", NULL, "%x: F[50,3], %lab: i32[50]",
                                 "%l, %s = xent %x, %lab : F[50], F[50]"};
    EXPECT_FAIL(run_sample(&embed), EXIT_DATA, "index 3 of a table of 3 rows");
    EXPECT_FAIL(run_sample(&grad), EXIT_DATA, "of a table of 2 rows");
    EXPECT_FAIL(run_sample(&negative), EXIT_DATA, "index -1 of a table");
    EXPECT_FAIL(run_sample(&cache), EXIT_DATA, "rows 2 to 3 of a cache of 3 rows");
    EXPECT_FAIL(run_sample(&label), EXIT_DATA, "label 3 of 3 classes");
}

TEST(bad_types_fail) {
    static const struct {
        Sample s;
        const char *part;
    } bad[] = {
        {{"dot", NULL, "%x: F[3,5], %w: F[2]", "%y = dot %x, %w {mk,n->mn} : F[3,2]"},
         "'k' of operand 0 must stand in the other factor or the result"},
        {{"dot", NULL, "%x: F[3,5], %w: F[5,2], %b: F[5]",
          "%y = dot %x, %w, %b {mk,kn,k->mn} : F[3,2]"},
         "'k' of operand 2 must stand in the result"},
        {{"dot", NULL, "%x: F[3,5], %w: F[5,2]",
          "%y, %z = dot %x, %w {mk,kn->mn,mn} : F[3,2], F[3,2]"},
         "must have one result"},
        {{"add", NULL, "%x: F[3,5], %y: F[3,5]", "%z = add %x, %y {mn,mn->m} : F[3]"},
         "'n' of operand 0 must stand in the result"},
        {{"sum", NULL, "%x: F[3]", "%z = sum %x {m->mn} : F[3,2]"},
         "'n' of the result is in no operand"},
        {{"rearrange", NULL, "%x: F[3,5]", "%z = rearrange %x {mn->m} : F[3]"},
         "'n' of operand 0 must stand in the result"},
        {{"rope_table", NULL, "%o: i32[]", "%y = rope_table %o {base=10} : F[4,2,1]"},
         "pairs of cos and sin"},
        {{"rng_layer", NULL, "%r: i32[2], %o: i32[]", "%y = rng_layer %r, %o : i32[2]"},
         "rng must be i32[3]"},
        {{"dropout", NULL, "%x: F[5], %r: i32[3]",
          "%y = dropout %x, %r {p=1; site=0} : F[5]"},
         "0 <= p < 1"},
        {{"dropout", NULL, "%x: F[5], %r: i32[1]",
          "%y = dropout %x, %r {p=0.1; site=0} : F[5]"},
         "rng must be i32[3]"},
        {{"attention", NULL, "%q: F[1,1,3,1], %k: F[1,1,2,1], %o: i32[], %r: i32[3]",
          "%y, %l = attention %q, %k, %k, %o, %r {scale=1; causal=1} : F[1,1,3,1], "
          "F[1,1,3]"},
         "3 query heads, which 2 key heads do not divide"},
        {{"gelu", NULL, "%x: i32[5]", "%y = gelu %x : i32[5]"}, "must be a float type"},
        {{"stack", NULL, "%x: F[2], %y: F[3]", "%z = stack %x, %y {dim=0} : F[2,2]"},
         "operands of different types"},
        {{"reshape", NULL, "%x: F[2,3]", "%z = reshape %x : F[7]"},
         "6 elements cannot be reshaped to 7"},
        {{"all_reduce", NULL, "%x: F[2]", "%z = all_reduce %x {axis=q} : F[2]"},
         "mesh axis 'q' not found"},
        {{"reduce_scatter", NULL, "%x: F[3]",
          "%z = reduce_scatter %x {axis=a; dim=0} : F[1]"},
         "2 ranks do not divide 3"},
        {{"all_gather", NULL, "%x: F[281474976710656]",
          "%z = all_gather %x {axis=a; dim=0} : F[1]"},
         "more than 2^50 bytes"},
    };
    for (volatile int i = 0; i < ARRAY_LEN(bad); i++) {
        Arena *mem = arena_new();
        EXPECT_FAIL(plain_module(mem, &bad[i].s, "f32"), EXIT_CONFIG, bad[i].part);
        arena_free(mem);
    }
}
