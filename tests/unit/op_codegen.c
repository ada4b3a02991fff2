/* op_codegen.c - generated code against the reference kernels, op by op: every sample of
 * ops.h on both vector widths, with one thread and with two, guard bytes round every
 * operand and result, and the sizes of ops.h as well as ones beyond a
 * vector and a block. */
#include "../tiles.h"
#include "codegen/codegen.h"
#include "codegen/target.h"
#include "op_programs.h"
#include "runtime/core/rt.h"

TEST_LABEL(SLOW);

enum { GUARD = 256 };

/* The sample with its last dimension 5 (7) made 37 (9001). */
static Sample enlarged(Arena *mem, const Sample *s) {
    static const char *const change[][2] = {
        {",5]", ",37]"}, {"[5]", "[37]"}, {"[7]", "[9001]"}};
    Sample big = *s;
    for (int i = 0; i < ARRAY_LEN(change); i++) {
        if (big.more) big.more = replaced(mem, big.more, change[i][0], change[i][1]);
        big.args = replaced(mem, big.args, change[i][0], change[i][1]);
        big.body = replaced(mem, big.body, change[i][0], change[i][1]);
    }
    return big;
}

static char *guarded(Arena *mem, int64_t bytes) {
    char *p = arena_alloc(mem, (size_t)bytes + 2 * GUARD);
    memset(p, 0x5a, (size_t)bytes + 2 * GUARD);
    return p + GUARD;
}

static bool untouched(const char *p, int64_t bytes) {
    for (int i = 1; i <= GUARD; i++) {
        if (p[-i] != 0x5a || p[bytes + i - 1] != 0x5a) return false;
    }
    return true;
}

/* Moves arguments and results of the program to guarded memory. */
static void guard_all(Arena *mem, Program *p, Tensor **arg) {
    for (int i = 0; i < p->entry->narg; i++) {
        int64_t bytes = type_bytes(&p->entry->arg[i]->ty);
        p->arg[i] = guarded(mem, bytes);
        memcpy(p->arg[i], arg[i]->data, (size_t)bytes);
    }
    for (int i = 0; i < p->entry->nret; i++) {
        p->ret[i] = guarded(mem, type_bytes(&p->entry->ret[i]->ty));
    }
}

static void check_guards(const Sample *s, const Program *p, Tensor **arg) {
    for (int i = 0; i < p->entry->narg; i++) {
        int64_t bytes = type_bytes(&p->entry->arg[i]->ty);
        if (!untouched(p->arg[i], bytes)) {
            test_fail(__FILE__, __LINE__, "%s {%s} wrote beside operand %d", s->kind,
                      s->body, i);
        }
        if (memcmp(p->arg[i], arg[i]->data, (size_t)bytes)) {
            test_fail(__FILE__, __LINE__, "%s {%s} changed operand %d", s->kind, s->body,
                      i);
        }
    }
    for (int i = 0; i < p->entry->nret; i++) {
        if (!untouched(p->ret[i], type_bytes(&p->entry->ret[i]->ty))) {
            test_fail(__FILE__, __LINE__, "%s {%s} wrote beside result %d", s->kind,
                      s->body, i);
        }
    }
}

static double largest(const Tensor *t) {
    double most = 0;
    for (int64_t i = 0, n = type_count(&t->ty); i < n; i++)
        most = fmax(most, fabs(tensor_get(t, i)));
    return most;
}

/* Rounding of a long sum grows with its length; elementwise ops have a few ulp. The terms
 * of attention's sums are as large as the largest result; in bf16 what they are products
 * of is rounded, by at most 2^-8 of it, and so are both results. */
static void compare(const Sample *s, int nth, const Tensor *want, const void *got) {
    Tensor g = {want->ty, (void *)got};
    double unit = starts(s->kind, "attention") ? fmax(1, largest(want)) : 1;
    double tol = want->ty.dt == DT_BF16  ? 3 * 0x1p-8
                 : want->ty.dt == DT_F16 ? 3 * 0x1p-11
                                         : 4e-6;
    for (int64_t i = 0, n = type_count(&want->ty); i < n; i++) {
        double x = tensor_get(&g, i), y = tensor_get(want, i);
        if (x == y || (x != x && y != y) || fabs(x - y) <= tol * fmax(unit, fabs(y)))
            continue;
        test_fail(__FILE__, __LINE__,
                  "%s {%s}: result %d, element %lld is %.9g, wanted %.9g", s->kind,
                  s->body, nth, (long long)i, x, y);
    }
}

/* Operands that the first result may overwrite become copies, which die at the op. */
static void copy_operands(Op *op) {
    bool product = optab[op->kind].flags & F_ADDENDS;
    Builder b = build_before(op);
    for (int i = product ? 2 : 0; i < (product ? op->nin : 1); i++) {
        b.name = "copied";
        op->in[i] = build1(&b, OP_copy, NULL, op->in[i], NULL);
    }
}

/* Does a result lie over a copy that another op has made? */
static bool overwrites(const Program *p) {
    const Op *copy = NULL;
    for (const Op *op = p->entry->first; op; op = op->next) {
        if (op->kind == OP_copy) copy = op;
        if (op->kind == OP_copy || !copy || !op->nout) continue;
        const Loc *a = &copy->out[0]->loc, *b = &op->out[0]->loc;
        if (a->kind == b->kind && a->at == b->at) return true;
    }
    return false;
}

typedef enum Operands { APART, COPIED } Operands;
static int overwritten; /* programs whose plan writes a result over a copy */

/* Rows whose code is for f32 alone. */
static const char *const f32_alone[] = {"embed_grad", "embed_add"};

static bool may_be_refused(const Sample *s, const char *type) {
    for (int i = 0; i < ARRAY_LEN(f32_alone); i++)
        if (!strcmp(s->kind, f32_alone[i]) && strcmp(type, "f32")) return true;
    return strstr(s->body, "f64") || strstr(s->body, "reshard") ||
           (strstr(s->body, "zigzag=2") && starts(s->kind, "attention"));
}

/* False when generated code has no such program (f64, say): refused, as it must
 * be, with a sentence. */
static bool run_typed(const Sample *s, const char *type, const char *cpu, int threads,
                      Operands how) {
    Arena *mem = arena_new();
    Module *m = sample_module(mem, s, type, on_mesh(s) ? "a=1" : "", 1,
                              on_mesh(s) ? "local" : "global");
    if (how == COPIED) copy_operands(entry(m)->last);
    return_results(entry(m));
    Tensor ***arg = make_arguments(mem, entry(m)), ***ret = run(mem, entry(m), arg);
    PassOptions po = pass_options_default();
    CompileOptions co = {
        .cpu = cpu, .threads = threads, .quick = test_quick(), .lower_anew = true};
    const char *passes = on_mesh(s)
                             ? "expand,epilogue,arrange,fuse,memplan"
                             : "place,expand,simplify,epilogue,arrange,fuse,memplan";
    Catch c;
    Program *p = NULL;
    if (CATCH(c)) {
        p = program_make(mem, m, passes, &po, &co);
        program_allocate(p, NULL, 0);
        catch_end(&c);
    } else {
        EXPECT_INT(c.code, EXIT_CONFIG);
        if (!may_be_refused(s, type))
            test_fail(__FILE__, __LINE__, "%s {%s} in %s: %s", s->kind, s->body, type,
                      c.message);
        arena_free(mem);
        return false;
    }
    overwritten += how == COPIED && overwrites(p);
    guard_all(mem, p, arg[0]);
    program_run(p);
    check_guards(s, p, arg[0]);
    for (int i = 0; i < p->entry->nret; i++) compare(s, i, ret[0][i], p->ret[i]);
    program_free(p);
    arena_free(mem);
    return true;
}

static bool run_sample(const Sample *s, const char *cpu, int threads, Operands how) {
    return run_typed(s, "f32", cpu, threads, how);
}

/* Sizes beyond a block of keys, too slow for finite differences. */
static const Sample more_samples[] = {
    {"rope", NULL, /* whole vectors and a rest, features that are not turned, threads */
     "%x: F[3,40,2,47], %table: f32[40,21,2]",
     "%y = rope %x, %table {inverse=1} : F[3,40,2,47]"},
    {"rope_each", NULL, "%x: F[2,50,3,64], %table: f32[2,50,32,2]",
     "%y = rope_each %x, %table : F[2,50,3,64]"},
    {"attention_within", NULL, /* whole blocks of keys lie before the first one seen */
     "%q: F[1,150,2,3], %k: F[1,150,1,3], %v: F[1,150,1,3], %zeroo: i32[], %rng: i32[4], "
     "%first: i32[1,150]",
     "%o, %l = attention_within %q, %k, %v, %zeroo, %zeroo, %rng, %first "
     "{scale=0.4; causal=1} : F[1,150,2,3], S[1,150,2]"},
    {"attention", NULL, /* whole blocks of queries see no key, the next ones some */
     "%q: F[1,200,2,3], %k: F[1,150,1,3], %v: F[1,150,1,3], %far_back: i32[], %zero: "
     "i32[], %rng: i32[4]",
     "%o, %l = attention %q, %k, %v, %far_back, %zero, %rng {scale=0.4; causal=1} : "
     "F[1,200,2,3], "
     "S[1,200,2]"},
    {"attention_grad", NULL,
     "%q: F[1,200,2,3], %k: F[1,150,1,3], %v: F[1,150,1,3], %far_back: i32[], %zero: "
     "i32[], %rng: i32[4], "
     "%o: F[1,200,2,3], %lse: S[1,200,2], %do: F[1,200,2,3]",
     "%dq, %dk, %dv = attention_grad %q, %k, %v, %far_back, %zero, %rng, %o, %lse, %do "
     "{scale=0.4; "
     "causal=1; p=0.1; site=3} : F[1,200,2,3], F[1,150,1,3], F[1,150,1,3]"},
    {"attention", NULL, ATTN("2,65,4,50", "2,70,2,50"),
     ATTN_OUT("scale=0.2; causal=1; p=0.2; site=1", "2,65,4,50", "2,65,4")},
    {"attention_grad", NULL, ATTN_GRAD_ARGS("1,65,4,80", "1,67,2,80", "1,65,4"),
     ATTN_GRAD_OUT("scale=0.1; causal=1", "1,65,4,80", "1,67,2,80")},
    {"attention_within", NULL, /* a window over the edge of blocks, and documents */
     "%q: F[1,150,2,3], %k: F[1,150,1,3], %v: F[1,150,1,3], %zeroo: i32[], %rng: i32[4], "
     "%first: i32[1,150]",
     "%o, %l = attention_within %q, %k, %v, %zeroo, %zeroo, %rng, %first "
     "{scale=0.4; causal=1; p=0.2; site=1; window=66} : F[1,150,2,3], S[1,150,2]"},
    {"attention_grad", NULL,
     "%q: F[1,200,2,3], %k: F[1,150,1,3], %v: F[1,150,1,3], %far_back: i32[], %zero: "
     "i32[], %rng: i32[4], "
     "%o: F[1,200,2,3], %lse: S[1,200,2], %do: F[1,200,2,3]",
     "%dq, %dk, %dv = attention_grad %q, %k, %v, %far_back, %zero, %rng, %o, %lse, %do "
     "{scale=0.4; causal=1; p=0.1; site=3; window=17} : F[1,200,2,3], F[1,150,1,3], "
     "F[1,150,1,3]"},
    {"dropout", NULL, /* more than a block of a row */
     "%x: F[3,2,4999], %rng: i32[4]",
     "%y = dropout %x, %rng {p=0.3; site=5; of=\"f32[3,2:a,4999]\"} : F[3,2,4999]"},
};

static bool parses(Arena *mem, const Sample *s) {
    Catch c;
    if (!CATCH(c)) return false;
    sample_module(mem, s, "f32", on_mesh(s) ? "a=1" : "", 1,
                  on_mesh(s) ? "local" : "global");
    catch_end(&c);
    return true;
}

static void all_samples(const char *cpu, int threads) {
    int refused = 0, large = 0;
    for (int i = 0; i < ARRAY_LEN(samples); i++) {
        refused += !run_sample(&samples[i], cpu, threads, APART);
        Arena *mem = arena_new();
        Sample big = enlarged(mem, &samples[i]);
        bool changed = strcmp(big.body, samples[i].body) != 0;
        if (changed && parses(mem, &big)) {
            big.body = arena_printf(mem, "%s # enlarged", big.body);
            run_sample(&big, cpu, threads, APART);
            large++;
        }
        arena_free(mem);
    }
    for (int i = 0; i < ARRAY_LEN(more_samples); i++) {
        EXPECT(run_sample(&more_samples[i], cpu, threads, APART));
    }
    printf("  %d samples, %d also large, %d refused\n", ARRAY_LEN(samples), large,
           refused);
    EXPECT(refused == 4 && large > 60);
}

static void compile(const Sample *s) {
    Arena *mem = arena_new();
    Module *m = sample_module(mem, s, "f32", "", 1, "global");
    return_results(entry(m));
    PassOptions po = pass_options_default();
    CompileOptions co = {.threads = 1, .lower_anew = true};
    Program *p = program_make(
        mem, m, "place,expand,simplify,epilogue,arrange,fuse,memplan", &po, &co);
    program_allocate(p, NULL, 0);
    program_free(p);
    arena_free(mem);
}

TEST(types_without_code_are_refused_at_their_line) {
    Sample map = {"tanh", NULL, "%x: f64[8,5]", "%y = tanh %x : f64[8,5]"};
    Sample product = {"dot", NULL, "%x: F[8,37], %w: F[37,5], %a: bf16[8,5]",
                      "%y = dot %x, %w, %a {mk,kn,mn->mn} : F[8,5]"};
    EXPECT_FAIL(compile(&map), EXIT_CONFIG, "tanh:3:3: error: @k0: %");
    EXPECT_FAIL(compile(&product), EXIT_CONFIG, "dot:3:3: error: @t: no code can be");
}

TEST(attention_that_is_too_large_is_refused) {
    Sample wide = {"attention", NULL, ATTN("1,2,1,4100", "1,2,1,4100"),
                   ATTN_OUT("scale=1; causal=1", "1,2,1,4100", "1,2,1")};
    Sample many = {"attention", NULL, ATTN("16777217,1,1,1", "16777217,1,1,1"),
                   ATTN_OUT("scale=1; causal=1", "16777217,1,1,1", "16777217,1,1")};
    Sample back = {"attention_grad", NULL,
                   ATTN_GRAD_ARGS("1,1,2,4097", "1,1,1,4097", "1,1,2"),
                   ATTN_GRAD_OUT("scale=1; causal=1", "1,1,2,4097", "1,1,1,4097")};
    EXPECT_FAIL(compile(&wide), EXIT_CONFIG, "a head has at most 4096 numbers");
    EXPECT_FAIL(compile(&many), EXIT_CONFIG, "keys and heads are at most 16777216 each");
    EXPECT_FAIL(compile(&back), EXIT_CONFIG, "a head has at most 4096 numbers");
}

TEST_LABEL_OF(widest_vectors_two_threads, RELEASED);
TEST_LIMIT(widest_vectors_two_threads, 300) {
    all_samples("native", 2);
}
TEST_LABEL_OF(avx2_one_thread, QUICK);
TEST_LIMIT(avx2_one_thread, 300) {
    all_samples("x86-64-v3", 1);
}

static void samples_of_heads(const char *type, const char *cpu, int threads) {
    int ran = 0;
    for (int i = 0; i < ARRAY_LEN(samples) + ARRAY_LEN(more_samples); i++) {
        int more = i - ARRAY_LEN(samples);
        const Sample *s = more < 0 ? &samples[i] : &more_samples[more];
        if (starts(s->kind, "attention") || (more >= 0 && starts(s->kind, "rope")))
            ran += run_typed(s, type, cpu, threads, APART);
    }
    EXPECT(ran >= 21);
}

TEST(bf16_attention_widest_vectors) {
    samples_of_heads("bf16", "native", 2);
}
TEST_LABEL_OF(bf16_attention_avx2, QUICK);
TEST_LABEL_OF(bf16_attention_avx2, RELEASED);
TEST(bf16_attention_avx2) {
    samples_of_heads("bf16", "x86-64-v3", 1);
}
TEST(bf16_attention_without_avx) {
    samples_of_heads("bf16", "x86-64-v2", 1);
}
TEST_LABEL_OF(bf16_attention_without_the_instruction, QUICK);
TEST_LABEL_OF(bf16_attention_without_the_instruction, RELEASED);
TEST(bf16_attention_without_the_instruction) {
    Target *t = target_open(NULL);
    int lanes = target_lanes(t);
    target_close(t);
    if (lanes < 16) test_skip("the CPU has no AVX-512");
    samples_of_heads("bf16", "x86-64-v4", 2);
}
TEST_LABEL_OF(bf16_attention_by_tiles, QUICK);
TEST_LABEL_OF(bf16_attention_by_tiles, RELEASED);
TEST(bf16_attention_by_tiles) {
    tiles_need();
    samples_of_heads("bf16", "sapphirerapids", 2);
    tiles_expect_dots(100);
}

TEST(f16_attention_widest_vectors) {
    samples_of_heads("f16", "native", 2);
}
TEST_LABEL_OF(f16_attention_without_avx, QUICK);
TEST_LABEL_OF(f16_attention_without_avx, RELEASED);
TEST(f16_attention_without_avx) {
    samples_of_heads("f16", "x86-64-v2", 1);
}

/* All but attention, products with narrow addends among them. */
static void other_samples(const char *type, const char *cpu, int threads) {
    int ran = 0, refused = 0;
    for (int i = 0; i < ARRAY_LEN(samples); i++) {
        if (starts(samples[i].kind, "attention")) continue;
        bool did = run_typed(&samples[i], type, cpu, threads, APART);
        ran += did;
        refused += !did;
    }
    printf("  %d samples, %d refused\n", ran, refused);
    EXPECT(ran > 150);
}

TEST(bf16_widest_vectors) {
    other_samples("bf16", "native", 2);
}
TEST(f16_widest_vectors) {
    other_samples("f16", "native", 2);
}
TEST(f16_without_avx) {
    other_samples("f16", "x86-64-v2", 1);
}

/* Results over operands, where the plan of memory puts them. */
TEST(in_place) {
    for (int i = 0; i < ARRAY_LEN(samples); i++) {
        unsigned has = optab[op_kind(samples[i].kind)].flags;
        if (!(has & (F_INPLACE | F_ADDENDS)) || has & F_COMM) continue;
        run_sample(&samples[i], "x86-64-v3", 1, COPIED);
    }
    printf("  %d programs overwrite an operand\n", overwritten);
    EXPECT(overwritten > 60);
}

/* A factor of the largest numbers that there are is no inf on the way. */
TEST(slopes_of_the_largest_numbers) {
#define SLOPE(kind)                                                                      \
    {                                                                                    \
        kind, NULL, "%x: F[37], %y: F[37]",                                              \
            "%s = scale %x {by=3e38} : F[37]\n  %z = " kind " %s, %y : F[37]"            \
    }
    static const Sample s[] = {SLOPE("fast_gelu_grad"), SLOPE("silu_grad"),
                               SLOPE("gelu_grad"), SLOPE("gelu_erf_grad")};
    for (int i = 0; i < ARRAY_LEN(s); i++) {
        EXPECT(run_sample(&s[i], "x86-64-v2", 1, APART));
        EXPECT(run_sample(&s[i], "x86-64-v3", 1, APART));
    }
}

/* Numbers that an i32 cannot hold, and NaN, as the interpreter has them. */
TEST(casts_out_of_range) {
    static const Sample s[] = {
        {"cast", NULL, "%x: F[37]",
         "%s = scale %x {by=1e12} : F[37]\n  %y = cast %s : i32[37]"},
        {"cast", NULL, "%x: F[37]", "%s = log %x : F[37]\n  %y = cast %s : i32[37]"},
        {"cast", NULL, "%x: F[1]",
         "%s = scale %x {by=-1e12} : F[1]\n  %y = cast %s : i32[1]"},
        {"fill", NULL, "", "%y = fill {value=nan} : i32[3]"},
        {"fill", NULL, "", "%y = fill {value=-inf} : i32[]"}};
    for (int i = 0; i < ARRAY_LEN(s); i++) {
        EXPECT(run_sample(&s[i], "native", 1, APART));
        EXPECT(run_sample(&s[i], "x86-64-v3", 2, APART));
    }
}

/* Its share of numbers far below 0 is 0, whatever they are; of -inf that is NaN. */
TEST(gelu_of_large_numbers) {
    static const Sample s[] = {
        {"gelu", NULL, "%x: F[37]",
         "%s = scale %x {by=1e38} : F[37]\n  %y = gelu %s : F[37]"},
        {"gelu", NULL, "%x: F[37]",
         "%s = scale %x {by=1e3} : F[37]\n  %y = gelu %s : F[37]"},
        {"gelu", NULL, "%nzx: F[37], %zero: F[37]",
         "%s = div %nzx, %zero : F[37]\n  %y = gelu %s : F[37]"}};
    for (int i = 0; i < ARRAY_LEN(s); i++) {
        EXPECT(run_sample(&s[i], "native", 1, APART));
        EXPECT(run_sample(&s[i], "x86-64-v2", 2, APART));
        EXPECT(run_typed(&s[i], "bf16", "x86-64-v3", 1, APART));
    }
}

/* Of narrow factors into a third type, which is done on copies in f32. */
TEST(products_into_another_type) {
    static const Sample s[] = {{"dot", NULL, "%x: bf16[8,37], %w: bf16[37,5]",
                                "%y = dot %x, %w {mk,kn->mn} : f16[8,5]"},
                               {"dot", NULL, "%x: bf16[40,37], %w: bf16[37,1]",
                                "%y = dot %x, %w {mk,kn->mn} : f16[40,1]"},
                               {"dot", NULL, "%x: f16[8,37], %w: f16[37,5], %b: f32[5]",
                                "%y = dot %x, %w, %b {mk,kn,n->mn} : bf16[8,5]"}};
    for (int i = 0; i < ARRAY_LEN(s); i++) {
        EXPECT(run_sample(&s[i], "native", 1, APART));
        EXPECT(run_sample(&s[i], "x86-64-v3", 2, APART));
    }
}

/* Of f32 into a narrow type, or with a bias of one. */
TEST(products_of_f32_with_narrow_numbers) {
    static const Sample s[] = {{"dot", NULL, "%x: f32[8,37], %w: f32[37,5]",
                                "%y = dot %x, %w {mk,kn->mn} : bf16[8,5]"},
                               {"dot", NULL, "%x: f32[8,37], %w: f32[37,5], %b: f16[5]",
                                "%y = dot %x, %w, %b {mk,kn,n->mn} : f32[8,5]"},
                               {"dot", NULL,
                                "%x: f32[8,37], %w: f32[37,5], %b: bf16[5], %a: f16[8,5]",
                                "%y = dot %x, %w, %b, %a {mk,kn,n,mn->mn} : f16[8,5]"},
                               {"dot", NULL, "%x: f32[1,37], %w: f32[37,5], %b: bf16[5]",
                                "%y = dot %x, %w, %b {mk,kn,n->mn} : bf16[1,5]"}};
    for (int i = 0; i < ARRAY_LEN(s); i++) {
        EXPECT(run_sample(&s[i], "native", 1, APART));
        EXPECT(run_sample(&s[i], "x86-64-v3", 2, APART));
    }
}

/* Sums over rows, over all, and over dimensions that no kernel sums over. */
TEST(sums_of_narrow_numbers) {
    static const Sample s[] = {
        {"sum", NULL, "%x: F[64,37]", "%y = sum %x {tc->c} : F[37]"},
        {"sum", NULL, "%x: F[640,16]",
         "%s = tanh %x : F[640,16]\n  %y = sum %s {tc->c} : F[16]"},
        {"sum", NULL, "%x: F[64,37]", "%y = sum %x {tc->_} : F[]"},
        {"sum", NULL, "%x: F[3,64,37]", "%y = sum %x {btc->t} : F[64]"},
        {"sum", NULL, "%x: F[3,64,37]", "%y = sum %x {btc->bc} : F[3,37]"},
        {"max", NULL, "%x: F[3,64,37]", "%y = max %x {btc->bc} : F[3,37]"},
        {"max", NULL, "%x: F[3,64,37]", "%y = max %x {btc->_} : F[]"},
        {"sum", NULL, "%x: F[64,1]", "%y = sum %x {tc->c} : F[1]"}};
    static const char *const type[] = {"bf16", "f16"};
    for (int i = 0; i < 2 * ARRAY_LEN(s); i++) {
        EXPECT(run_typed(&s[i / 2], type[i % 2], "native", 2, APART));
        EXPECT(run_typed(&s[i / 2], type[i % 2], "x86-64-v2", 1, APART));
    }
}

/* A NaN among the numbers is the largest, wherever it stands: here about half of them are. */
TEST(the_largest_of_a_row_with_nan) {
    static const Sample s[] = {{"max", NULL, "%x: F[64,5]",
                                "%s = log %x : F[64,5]\n  %m = max %s {tc->t} : F[64]\n  "
                                "%y = cast %m : i32[64]"},
                               {"max", NULL, "%x: F[64,37]",
                                "%s = log %x : F[64,37]\n  %m = max %s {tc->t} : F[64]\n "
                                " %y = cast %m : i32[64]"}};
    for (int i = 0; i < ARRAY_LEN(s); i++) {
        EXPECT(run_sample(&s[i], "native", 1, APART));
        EXPECT(run_sample(&s[i], "x86-64-v2", 2, APART));
    }
}

/* Ids come from users' files: no abort, and one answer for any number of threads. */
TEST(ids_outside_of_a_table) {
    static int32_t id[5000];
    static float table[3][8], out[5000][8];
    int64_t row = sizeof table[0];
    id[77] = 3, id[4990] = -1;
    EXPECT_FAIL(rt_embed((char *)out, (char *)table, id, 5000, 3, row, 0), EXIT_DATA,
                "index 3 of a table of 3 rows: indices are 0 to 2 (number 77 of the 5000 "
                "indices; 2 are outside)");
    rt_embed((char *)out, (char *)table, id, 5000, 3, row, 1);
    EXPECT_FAIL(rt_embed_add(table[0], NULL, id, out[0], 5000, 3, 8, 0), EXIT_DATA,
                "index 3 of a table of 3 rows: indices are 0 to 2 (number 77 of the 5000 "
                "indices; 2 are outside)");
    rt_embed_add(table[0], NULL, id, out[0], 5000, 3, 8, 1);
    int32_t at = INT32_MAX;
    EXPECT_FAIL(rt_cache_write((char *)out, (char *)table, &at, 1, 3, 2, row), EXIT_DATA,
                "of a cache of 3 rows");
    int32_t from = 7, taken = -1, more = 3;
    EXPECT_FAIL(
        rt_cache_write_each((char *)out, (char *)table, &from, &taken, 1, 3, 2, row),
        EXIT_DATA, "-1 of 2 rows for a cache, from row 7 on");
    EXPECT_FAIL(
        rt_cache_write_each((char *)out, (char *)table, &from, &more, 1, 3, 2, row),
        EXIT_DATA, "3 of 2 rows for a cache, from row 7 on");
}
