/* ops.c - every row of ops.def by its samples (ops.h): text round trip, gradients against
 * finite differences, composites against their expansion, all of it against the fused and
 * planned program. */
#include "op_programs.h"

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
        bool found = optab[k].flags & F_EFFECT; /* tests/unit/pipeline.c */
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

/* A program of narrow numbers is read, printed and run like the others. */
static void runs_in(const char *type) {
    for (int i = 0; i < ARRAY_LEN(samples); i++) {
        if (on_mesh(&samples[i]) || starts(samples[i].kind, "rope_table")) continue;
        Arena *mem = arena_new();
        Func *f = entry(plain_module(mem, &samples[i], type));
        return_results(f);
        run(mem, f, make_arguments(mem, f));
        arena_free(mem);
    }
}

TEST(bf16_runs) {
    runs_in("bf16");
}
TEST(f16_runs) {
    runs_in("f16");
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
        if (arg_role(model, i) != ARG_param) continue;
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
    EXPECT_INT(nth, grad->nret);
    arena_free(mem);
}

TEST(gradients_are_slopes) {
    int checked = 0;
    for (int i = 0; i < ARRAY_LEN(samples); i++) {
        int kind = op_kind(samples[i].kind);
        if ((!optab[kind].vjp && kind != OP_call) || on_mesh(&samples[i])) continue;
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
        if (on_mesh(s) || (composite_only && !optab[op_kind(s->kind)].expand)) continue;
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
    check_passes("place,expand,simplify,epilogue,arrange,fuse,memplan", false, 1e-12);
}

TEST(fused_programs_agree) {
    check_passes("place,expand,arrange,fuse,memplan", false, 1e-12);
}

/* ---- parts ---- */

/* What every rank of mesh(a=2, b=3) makes of its part is the part of what one rank makes
 * of the whole: x is 0..n-1, so that a result says which element it is. */
TEST(dropout_of_parts) {
    static const struct {
        const char *local, *of;
        int64_t whole[3], part[3];
        Axes split[3];
        const char *more; /* attributes */
    } cases[] = {
        {"4,3,5", "8:a,3,5", {8, 3, 5}, {4, 3, 5}, {1, 0, 0}, ""},
        {"4,3,5", "4,9:b,10:a", {4, 9, 10}, {4, 3, 5}, {0, 2, 1}, ""},
        {"2,3,4", "12:a.b,3,4", {12, 3, 4}, {2, 3, 4}, {3, 0, 0}, ""},
        {"2,3,4", "2,3,24:a.b", {2, 3, 24}, {2, 3, 4}, {0, 0, 3}, ""},
        {"2,2,4", "2,12:a.b,4", {2, 12, 4}, {2, 2, 4}, {0, 3, 0}, "; zigzag=3"},
        {"1,4,5", "2:a,12:b,5", {2, 12, 5}, {1, 4, 5}, {1, 2, 0}, "; zigzag=2"},
    };
    for (int k = 0; k < ARRAY_LEN(cases); k++) {
        Arena *mem = arena_new();
        const int64_t *w = cases[k].whole, *p = cases[k].part;
        char *dims = arena_printf(mem, "%d,%d,%d", (int)w[0], (int)w[1], (int)w[2]);
        static const char form[] = "%%y = dropout %%x, %%rng {p=0.5; site=2%s} : F[%s]";
        const char *more = cases[k].more;
        char *of = arena_printf(mem, "; of=\"f32[%s]\"%s", cases[k].of, more);
        Sample whole = {"dropout", NULL,
                        arena_printf(mem, "%%x: F[%s], %%rng: i32[4]", dims),
                        arena_printf(mem, form, more, dims)};
        Sample part = {"dropout", NULL,
                       arena_printf(mem, "%%x: F[%s], %%rng: i32[4]", cases[k].local),
                       arena_printf(mem, form, of, cases[k].local)};
        Func *f = entry(sample_module(mem, &whole, "f32", "", 1, "global"));
        Func *g = entry(sample_module(mem, &part, "f32", "a=2, b=3", 1, "local"));
        return_results(f);
        return_results(g);
        Tensor ***all = make_arguments(mem, f), ***arg = make_arguments(mem, g);
        for (int64_t i = 0; i < type_count(&all[0][0]->ty); i++)
            tensor_set(all[0][0], i, 1);
        for (int r = 0; r < 6; r++) {
            for (int64_t i = 0; i < p[0] * p[1] * p[2]; i++) tensor_set(arg[r][0], i, 1);
        }
        Tensor *want = run(mem, f, all)[0][0], ***got = run(mem, g, arg);
        for (int r = 0; r < 6; r++) {
            int at[] = {0, r / 3, r % 3, r}; /* by set of axes */
            for (int64_t i = 0; i < p[0] * p[1] * p[2]; i++) {
                int64_t x = i / (p[1] * p[2]) + at[cases[k].split[0]] * p[0];
                int64_t y = i / p[2] % p[1] + at[cases[k].split[1]] * p[1];
                int64_t z = i % p[2] + at[cases[k].split[2]] * p[2];
                EXPECT(tensor_get(got[r][0], i) ==
                       tensor_get(want, (x * w[1] + y) * w[2] + z));
            }
        }
        arena_free(mem);
    }
}

/* Numbers count samples of the step and true positions: what a micro-batch in zigzag
 * order drops is what the whole step drops of its samples in order. */
TEST(dropout_counts_the_step) {
    Arena *mem = arena_new();
    static const Sample step = {"dropout", NULL, "%posx: F[4,12,5], %rng: i32[4]",
                                "%y = dropout %posx, %rng {p=0.5; site=2} : F[4,12,5]"};
    static const Sample micro = {
        "dropout", NULL, "%posx: F[2,12,5], %rng: i32[4]",
        "%y = dropout %posx, %rng {p=0.5; site=2; zigzag=3} : F[2,12,5]"};
    Func *f = entry(plain_module(mem, &step, "f64"));
    Func *g = entry(plain_module(mem, &micro, "f64"));
    return_results(f);
    return_results(g);
    Tensor ***in = make_arguments(mem, f), ***part = make_arguments(mem, g);
    tensor_set(in[0][1], RNG_MICRO, 0);
    Tensor *want = run(mem, f, in)[0][0];
    for (int m = 0; m < 2; m++) {
        tensor_set(part[0][1], RNG_MICRO, m);
        int64_t at[2 * 12 * 5];
        for (int64_t i = 0; i < ARRAY_LEN(at); i++) {
            int64_t t = zigzag_position(i / 5 % 12, 12, 3);
            at[i] = ((2 * m + i / 60) * 12 + t) * 5 + i % 5;
            tensor_set(part[0][0], i, tensor_get(in[0][0], at[i]));
        }
        Tensor *got = run(mem, g, part)[0][0];
        for (int64_t i = 0; i < ARRAY_LEN(at); i++)
            EXPECT(tensor_get(got, i) == tensor_get(want, at[i]));
    }
    arena_free(mem);
}

/* Rows of `from` (dimension 1, 12 of them) in the places that 3 ranks in zigzag order
 * give them. */
static void turn_rows(Tensor *to, const Tensor *from) {
    int64_t row = type_count(&from->ty) / 12;
    for (int64_t k = 0; k < 12 * row; k++)
        tensor_set(to, k,
                   tensor_get(from, zigzag_position(k / row, 12, 3) * row + k % row));
}

/* Attention in zigzag order is attention in order with all rows in other places; so are
 * documents, and what dropout drops. */
static void check_zigzag(const Sample *s) {
    Arena *mem = arena_new();
    Sample zigzag = *s;
    zigzag.body = replaced(mem, s->body, "causal=1", "causal=1; zigzag=3");
    Func *f = entry(plain_module(mem, s, "f64")),
         *g = entry(plain_module(mem, &zigzag, "f64"));
    return_results(f);
    return_results(g);
    Tensor ***in = make_arguments(mem, f), ***turned = make_arguments(mem, g);
    for (int i = 0; i < f->narg; i++) {
        if (f->arg[i]->ty.rank > 1) turn_rows(turned[0][i], in[0][i]);
    }
    Tensor **want = run(mem, f, in)[0], **got = run(mem, g, turned)[0];
    for (int i = 0; i < 2; i++) {
        Tensor *place = tensor_new(mem, &want[i]->ty);
        turn_rows(place, want[i]);
        for (int64_t k = 0; k < type_count(&place->ty); k++)
            EXPECT_NEAR(tensor_get(got[i], k), tensor_get(place, k), 1e-12);
    }
    arena_free(mem);
}

TEST(zigzag_attention) {
    static const Sample plain = {
        "attention", NULL, ATTN_AT("%zero", "1,12,2,3", "1,12,1,3"),
        ATTN_OUT_AT("%zero", "scale=0.7; causal=1; p=0.4; site=2", "1,12,2,3", "1,12,2")};
    static const Sample within = {
        "attention_within", NULL,
        ATTN_AT("%zero", "1,12,2,3", "1,12,1,3") ", %first: i32[1,12]",
        "%o, %l = attention_within %q, %k, %v, %zero, %zerok, %rng, %first "
        "{scale=0.7; causal=1; p=0.4; site=2} : F[1,12,2,3], F[1,12,2]"};
    static const Sample window = {
        "attention", NULL, ATTN_AT("%zero", "1,12,2,3", "1,12,1,3"),
        ATTN_OUT_AT("%zero", "scale=0.7; causal=1; window=5", "1,12,2,3", "1,12,2")};
    check_zigzag(&plain);
    check_zigzag(&window);
    check_zigzag(&within);
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

/* An op that is no part of what it says, and a query that lies before its document. */
TEST(bad_parts_fail) {
    static const Sample size = {
        "dropout", NULL, "%x: F[2,8], %rng: i32[4]",
        "%y = dropout %x, %rng {p=0.5; site=0; of=\"f32[2,8:a]\"} : F[2,8]"};
    static const Sample none = {
        "dropout", NULL, "%x: F[2,8], %rng: i32[4]",
        "%y = dropout %x, %rng {p=0.5; site=0; of=\"f32[2,1:a]\"} : F[2,8]"};
    static const Sample zigzag = {"dropout", NULL, "%x: F[2,8], %rng: i32[4]",
                                  "%y = dropout %x, %rng "
                                  "{p=0.5; site=0; of=\"f32[2,16:a]\"; zigzag=40} : "
                                  "F[2,8]"};
    static const Sample queries = {
        "attention", NULL, ATTN("1,2,2,3", "1,4,2,3"),
        ATTN_OUT("scale=1; causal=1; p=0.5; of=\"f32[1,2,4:a,4]\"", "1,2,2,3", "1,2,2")};
    static const Sample heads = {
        "attention", NULL, ATTN("1,2,2,3", "1,4,2,3"),
        ATTN_OUT("scale=1; causal=1; p=0.5; of=\"f32[1,2:a,2,4]\"", "1,2,2,3", "1,2,2")};
    static const Sample early = {
        "attention_within", NULL,
        ATTN_AT("%zero", "1,2,2,3", "1,2,2,3") ", %off_: i32[1,2]",
        "%o, %l = attention_within %q, %k, %v, %zero, %zerok, %rng, %off_ "
        "{scale=1; causal=1} : F[1,2,2,3], F[1,2,2]"};
    EXPECT_FAIL(run_sample(&size), EXIT_CONFIG, "must be the type of the whole tensor");
    EXPECT_FAIL(run_sample(&none), EXIT_CONFIG, "must be the type of the whole tensor");
    EXPECT_FAIL(run_sample(&zigzag), EXIT_CONFIG, "multiple of twice `zigzag`");
    EXPECT_FAIL(run_sample(&queries), EXIT_CONFIG, "split in batch and heads alone");
    EXPECT_FAIL(run_sample(&heads), EXIT_CONFIG, "split in batch and heads alone");
    EXPECT_FAIL(run_sample(&early), EXIT_DATA, "query 0 sees keys from 2 on");
}

TEST(bad_types_fail) {
    static const struct {
        Sample s;
        const char *part;
    } bad[] = {
        {{"dot", NULL, "%x: F[3,5], %w: F[2]", "%y = dot %x, %w {mk,n->mn} : F[3,2]"},
         "'k' of operand 0 must be in the other factor or the result"},
        {{"dot", NULL, "%x: F[3,5], %w: F[5,2], %b: F[5]",
          "%y = dot %x, %w, %b {mk,kn,k->mn} : F[3,2]"},
         "'k' of operand 2 must be in the result"},
        {{"dot", NULL, "%x: F[3,5], %w: F[5,2]",
          "%y, %z = dot %x, %w {mk,kn->mn,mn} : F[3,2], F[3,2]"},
         "must have one result"},
        {{"add", NULL, "%x: F[3,5], %y: F[3,5]", "%z = add %x, %y {mn,mn->m} : F[3]"},
         "'n' of operand 0 must be in the result"},
        {{"sum", NULL, "%x: F[3]", "%z = sum %x {m->mn} : F[3,2]"},
         "'n' of the result is in no operand"},
        {{"rearrange", NULL, "%x: F[3,5]", "%z = rearrange %x {mn->m} : F[3]"},
         "'n' of operand 0 must be in the result"},
        {{"rope_table", NULL, "%o: i32[]", "%y = rope_table %o {base=10} : F[4,2,1]"},
         "pairs of cos and sin"},
        {{"rope_table", NULL, "%o: i32[]", "%y = rope_table %o {base=10} : bf16[4,2,2]"},
         "result 0 is bf16, must be f32"},
        {{"rope_table_each", NULL, "%o: i32[3,4]",
          "%y = rope_table_each %o {base=10} : i32[3,4,2,2]"},
         "result 0 is i32, must be f32"},
        {{"rope", NULL, "%x: F[2,3,5,4], %table: f16[3,2,2]",
          "%y = rope %x, %table : F[2,3,5,4]"},
         "operand 1 (%table) is f16, must be f32"},
        {{"rng_layer", NULL, "%r: i32[2], %o: i32[]", "%y = rng_layer %r, %o : i32[2]"},
         "rng must be i32[4]"},
        {{"dropout", NULL, "%x: F[5], %r: i32[4]",
          "%y = dropout %x, %r {p=1; site=0} : F[5]"},
         "0 <= p < 1"},
        {{"dropout", NULL, "%x: F[5], %r: i32[1]",
          "%y = dropout %x, %r {p=0.1; site=0} : F[5]"},
         "rng must be i32[4]"},
        {{"attention", NULL, "%q: F[1,1,3,1], %k: F[1,1,2,1], %o: i32[], %r: i32[4]",
          "%y, %l = attention %q, %k, %k, %o, %o, %r {scale=1; causal=1} : F[1,1,3,1], "
          "F[1,1,3]"},
         "3 query heads, which 2 key heads do not divide"},
        {{"attention", NULL, "%q: F[1,1,2,1], %k: F[1,1,2,1], %o: i32[], %r: i32[4]",
          "%y, %l = attention %q, %k, %k, %o, %o, %r {scale=nan; causal=1} : "
          "F[1,1,2,1], F[1,1,2]"},
         "scale must be a finite number"},
        {{"attention", NULL, "%q: F[1,1,2,1], %k: F[1,1,2,1], %o: i32[], %r: i32[4]",
          "%y, %l = attention %q, %k, %k, %o, %o, %r {scale=1; causal=0; window=3} : "
          "F[1,1,2,1], F[1,1,2]"},
         "window=3 must be 1..2147483647 and needs causal=1"},
        {{"attention", NULL, "%q: F[1,1,2,1], %k: F[1,1,2,1], %o: i32[], %r: i32[4]",
          "%y, %l = attention %q, %k, %k, %o, %o, %r {scale=1; causal=1; window=-1} : "
          "F[1,1,2,1], F[1,1,2]"},
         "window=-1 must be 1.."},
        {{"softcap", NULL, "%x: F[5]", "%y = softcap %x {cap=0} : F[5]"},
         "cap must be in 1e-30..1e30"},
        {{"softcap", NULL, "%x: F[5]", "%y = softcap %x {cap=nan} : F[5]"},
         "cap must be in 1e-30..1e30"},
        {{"scale", NULL, "%x: F[5]", "%y = scale %x {by=-1e39} : F[5]"},
         "by=-1e+39 is more than an f32 holds"},
        {{"fill", NULL, "", "%y = fill {value=1e39} : F[]"},
         "value=1e+39 is more than an f32 holds"},
        {{"fill", NULL, "", "%y = fill {value=1e400} : F[]"},
         "1e400 is more than a number holds"},
        {{"rmsnorm", NULL, "%x: F[2,3], %g: F[3]",
          "%y, %r = rmsnorm %x, %g {eps=-5} : F[2,3], F[2]"},
         "eps=-5 must be a finite number of at least 0"},
        {{"layernorm", NULL, "%x: F[2,3], %g: F[3]",
          "%y, %m, %r = layernorm %x, %g, %g {eps=nan} : F[2,3], F[2], F[2]"},
         "eps=nan must be a finite number of at least 0"},
        {{"adam", NULL, "%p: F[2], %c: F[]",
          "%x, %m, %v = adam %p, %p, %p, %p, %c, %c, %c, %c, %c "
          "{beta1=0.9; beta2=0.9; eps=inf} : F[2], F[2], F[2]"},
         "eps=inf must be a finite number of at least 0"},
        {{"rope_table", NULL, "%o: i32[]", "%y = rope_table %o {base=0} : f32[4,2,2]"},
         "base=0 must be a finite number above 0"},
        {{"rope_table", NULL, "%o: i32[]",
          "%y = rope_table %o {base=9; scale=inf} : f32[4,2,2]"},
         "scale must be a finite number"},
        {{"attention", NULL, "%q: F[1,1,2,1], %k: F[1,1,2,1], %o: i32[], %r: i32[4]",
          "%y, %l = attention %q, %k, %k, %o, %o, %r {scale=1; causal=5} : "
          "F[1,1,2,1], F[1,1,2]"},
         "causal=5 must be 0 or 1"},
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
