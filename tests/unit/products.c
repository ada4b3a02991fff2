/* products.c - products of rules made by chance, compiled, against the interpreter: up to
 * 8 dimensions a tensor in any order, sizes of 1, letters in both factors or in one, with
 * none summed or none left, and up to two addends of any of the result's letters, some of
 * which die there or are overwritten by the result. */
#include "codegen/codegen.h"
#include "op_programs.h"

TEST_LABEL(SLOW);

enum { PROGRAMS = 40, PRODUCTS = 16, LETTERS = 12, MOST_ELEMENTS = 1500 };

typedef struct MadeTerm {
    int n;
    char letter[MAX_RANK];
} MadeTerm;

typedef struct MadeRule {
    uint64_t seed, drawn;
    int size[LETTERS];
    MadeTerm term[5]; /* factors, addends, result */
    int nin;
} MadeRule;

static int draw(MadeRule *r, int n) {
    return (int)(rng_uniform(r->seed, 11, r->drawn++) * n);
}

static void shuffle(MadeRule *r, MadeTerm *t) {
    for (int i = t->n - 1; i > 0; i--) {
        int j = draw(r, i + 1);
        char c = t->letter[i];
        t->letter[i] = t->letter[j];
        t->letter[j] = c;
    }
}

static int64_t elements(const MadeRule *r, const MadeTerm *t) {
    int64_t n = 1;
    for (int i = 0; i < t->n; i++) n *= r->size[t->letter[i] - 'a'];
    return n;
}

/* Adds letter l to the terms of the set, if all have room for it. */
static void add_letter(MadeRule *r, int l, unsigned set) {
    for (int t = 0; t < 3; t++) {
        const MadeTerm *at = &r->term[t];
        if ((set >> t & 1) &&
            (at->n == MAX_RANK || elements(r, at) * r->size[l] > MOST_ELEMENTS)) {
            return;
        }
    }
    for (int t = 0; t < 3; t++) {
        if (set >> t & 1) r->term[t].letter[r->term[t].n++] = (char)('a' + l);
    }
}

static MadeTerm made_addend(MadeRule *r, const MadeTerm *result) {
    MadeTerm t = {0};
    int some = draw(r, 3); /* 0: the result's letters, 1: in any order, 2: some of them */
    for (int k = 0; k < result->n; k++) {
        if (some < 2 || draw(r, 2)) t.letter[t.n++] = result->letter[k];
    }
    if (some) shuffle(r, &t);
    return t;
}

static MadeRule made_rule(uint64_t seed) {
    static const int sizes[] = {1, 2, 3, 3, 5, 7};
    static const unsigned sets[] = {3, 5, 6, 7}; /* summed, rows, columns, batch */
    MadeRule r = {.seed = seed};
    int letters = 2 + draw(&r, LETTERS - 1);
    int all = draw(&r, 3) ? 0 : 3; /* one size, so that other orders have the same type */
    unsigned kinds = 1 + (unsigned)draw(&r, 15); /* sets that occur */
    for (int l = 0; l < letters; l++) {
        int kind = draw(&r, 4);
        r.size[l] = all ? all : sizes[draw(&r, ARRAY_LEN(sizes))];
        if (kinds >> kind & 1) add_letter(&r, l, sets[kind]);
    }
    for (int t = 0; t < 3; t++) {
        if (draw(&r, 4)) shuffle(&r, &r.term[t]);
    }
    MadeTerm result = r.term[2];
    r.nin = 2 + draw(&r, 3);
    for (int i = 2; i < r.nin; i++) r.term[i] = made_addend(&r, &result);
    r.term[r.nin] = result;
    return r;
}

/* ---- programs ---- */

static const char *rule_text(Arena *mem, const MadeRule *r) {
    Text t = text_new(mem);
    for (int i = 0; i <= r->nin; i++) {
        text_add(&t, "%s", i == r->nin ? "->" : i ? "," : "");
        if (!r->term[i].n) text_add(&t, "_");
        text_add(&t, "%.*s", r->term[i].n, r->term[i].letter);
    }
    return t.s;
}

static void add_type(Text *t, const MadeRule *r, const MadeTerm *term) {
    text_add(t, "f32[");
    for (int k = 0; k < term->n; k++) {
        text_add(t, "%s%d", k ? "," : "", r->size[term->letter[k] - 'a']);
    }
    text_add(t, "]");
}

static bool same_term(const MadeTerm *a, const MadeTerm *b) {
    return a->n == b->n && !memcmp(a->letter, b->letter, (size_t)a->n);
}

/* An addend is an argument (overwritten, when it can be) or a value that dies. */
static bool is_scaled(const MadeRule *r, int i) {
    return i >= 2 && (r->seed >> i & 1);
}

static int overwritten(const MadeRule *r) {
    for (int i = 2; i < r->nin; i++) {
        bool like = same_term(&r->term[i], &r->term[r->nin]);
        if (like && !is_scaled(r, i) && r->seed % 3) return i;
    }
    return -1;
}

/* func @t:model(%p0x0, %p0x1, ...) -> (...): all products of the program */
static char *program_text(Arena *mem, const MadeRule *rule, int n) {
    Text t = text_new(mem), body = text_new(mem);
    text_add(&t, "module @t mesh() level(local)\nfunc @t:model(");
    for (int p = 0; p < n; p++) {
        const MadeRule *r = &rule[p];
        for (int i = 0; i < r->nin; i++) {
            text_add(&t, "%s%%p%dx%d: ", p + i ? ", " : "", p, i);
            add_type(&t, r, &r->term[i]);
            if (!is_scaled(r, i)) continue;
            text_add(&body, "  %%s%dx%d = scale %%p%dx%d {by=1.5} : ", p, i, p, i);
            add_type(&body, r, &r->term[i]);
            text_add(&body, "\n");
        }
        text_add(&body, "  %%r%d = dot ", p);
        for (int i = 0; i < r->nin; i++) {
            text_add(&body, "%s%%%c%dx%d", i ? ", " : "", is_scaled(r, i) ? 's' : 'p', p,
                     i);
        }
        text_add(&body, " {%s} : ", rule_text(mem, r));
        add_type(&body, r, &r->term[r->nin]);
        text_add(&body, "\n");
    }
    text_add(&t, ") -> (");
    text_add(&body, "  return ");
    for (int p = 0; p < n; p++) {
        int over = overwritten(&rule[p]);
        text_add(&t, "%s", p ? ", " : "");
        add_type(&t, &rule[p], &rule[p].term[rule[p].nin]);
        if (over >= 0) text_add(&t, "=%%p%dx%d", p, over);
        text_add(&body, "%s%%r%d", p ? ", " : "", p);
    }
    text_add(&t, ") {\n%s\n}\n", body.s);
    return t.s;
}

static void compare(Arena *mem, const MadeRule *r, const Tensor *want, const void *got) {
    Tensor g = {want->ty, (void *)(uintptr_t)got};
    for (int64_t i = 0, n = type_count(&want->ty); i < n; i++) {
        double x = tensor_get(&g, i), y = tensor_get(want, i);
        if (fabs(x - y) <= 4e-6 * fmax(1, fabs(y))) continue;
        test_fail(__FILE__, __LINE__, "seed %d {%s}: element %lld is %.9g, wanted %.9g",
                  (int)r->seed, rule_text(mem, r), (long long)i, x, y);
    }
}

static int count_of(const Func *f, int kind) {
    int n = 0;
    for (const Op *op = f->first; op; op = op->next) n += op->kind == kind;
    return n;
}

/* The number of products that were arranged. */
static int check_program(const MadeRule *rule, int n, const char *cpu, int threads) {
    Arena *mem = arena_new();
    char *text = program_text(mem, rule, n);
    Module *m = module_parse(mem, "products", text, strlen(text));
    module_verify(m, "products", text);
    Tensor ***arg = make_arguments(mem, entry(m)),
           ***before = make_arguments(mem, entry(m));
    Tensor ***ret = run(mem, entry(m), arg);
    PassOptions po = pass_options_default();
    CompileOptions co = {
        .cpu = cpu, .threads = threads, .quick = test_quick(), .lower_anew = true};
    Program *p = program_make(mem, m, "epilogue,arrange,fuse,memplan", &po, &co);
    program_allocate(p, NULL, 0);
    for (int i = 0; i < p->entry->narg; i++) {
        size_t bytes = (size_t)type_bytes(&p->entry->arg[i]->ty);
        memcpy(p->arg[i], before[0][i]->data, bytes);
    }
    program_run(p);
    for (int i = 0; i < n; i++) compare(mem, &rule[i], ret[0][i], p->ret[i]);
    int moved = count_of(p->entry, OP_rearrange);
    program_free(p);
    arena_free(mem);
    return moved;
}

/* ---- training ---- */

/* A model whose loss is the sum of squares (which do not cancel) of the tanh of all
 * products; every operand is a parameter. */
static char *model_text(Arena *mem, const MadeRule *rule, int n) {
    Text t = text_new(mem), body = text_new(mem);
    text_add(&t, "module @t mesh() level(global)\nfunc @t:model(");
    for (int p = 0; p < n; p++) {
        const MadeRule *r = &rule[p];
        const MadeTerm *result = &r->term[r->nin];
        text_add(&body, "  %%r%d = dot ", p);
        for (int i = 0; i < r->nin; i++) {
            text_add(&t, "%s%%p%dx%d: ", p + i ? ", " : "", p, i);
            add_type(&t, r, &r->term[i]);
            text_add(&t, " {role=\"param\"; init=\"normal\"; std=0.5}");
            text_add(&body, "%s%%p%dx%d", i ? ", " : "", p, i);
        }
        text_add(&body, " {%s} : ", rule_text(mem, r));
        add_type(&body, r, result);
        text_add(&body, "\n  %%t%d = tanh %%r%d : ", p, p);
        add_type(&body, r, result);
        text_add(&body, "\n  %%q%d = mul %%t%d, %%t%d : ", p, p, p);
        add_type(&body, r, result);
        text_add(&body, "\n  %%s%d = sum %%q%d {%.*s->_} : f32[]\n", p, p,
                 MAX(result->n, 1), result->n ? result->letter : "_");
        if (p)
            text_add(&body, "  %%l%d = add %%%c%d, %%s%d : f32[]\n", p, p > 1 ? 'l' : 's',
                     p - 1, p);
    }
    text_add(&t, ") -> (f32[]) {\n%s  return %%l%d\n}\n", body.s, n - 1);
    return t.s;
}

/* Largest difference of two tensors over the largest magnitude. */
static double difference(const Tensor *want, const void *got) {
    double worst = 0, size = 1e-20;
    Tensor g = {want->ty, (void *)(uintptr_t)got};
    for (int64_t k = 0, n = type_count(&want->ty); k < n; k++) {
        double a = tensor_get(want, k), b = tensor_get(&g, k);
        worst = fmax(worst, fabs(a - b));
        size = fmax(size, fabs(a));
        EXPECT(a == a && b == b);
    }
    return worst / size;
}

/* Through the passes of training to a program, whose step is what the interpreter makes
 * of the model as it was before pass arrange. */
static void check_training(const MadeRule *rule, int n, int64_t micro_batches) {
    Arena *mem = arena_new();
    char *text = model_text(mem, rule, n);
    Module *m = module_parse(mem, "products", text, strlen(text));
    PassOptions po = pass_options_default();
    po.optimizer = "sgd";
    po.micro_batches = micro_batches;
    CompileOptions co = {.threads = 2, .lower_anew = true};
    Module *plain = module_clone(mem, m);
    passes_run(plain, "simplify,autodiff,simplify,train,simplify,place", &po);
    Program *p = program_make(mem, m, train_passes, &po, &co);
    program_allocate(p, NULL, 0);
    Func *step = plain->first;
    while (step->role != ROLE_STEP) step = step->next;
    Tensor ***arg = make_arguments(mem, step);
    EXPECT(step->narg == p->entry->narg && step->nret == p->entry->nret);
    for (int i = 0; i < step->narg; i++) {
        memcpy(p->arg[i], arg[0][i]->data, (size_t)type_bytes(&step->arg[i]->ty));
    }
    Tensor ***ret = run(mem, step, arg);
    program_run(p);
    for (int i = 0; i < step->nret; i++) {
        double d = difference(ret[0][i], p->ret[i]);
        if (d > 2e-5)
            test_fail(__FILE__, __LINE__, "seed %d: result %d (%s) differs by %.3g",
                      (int)rule->seed, i, step->ret[i]->name, d);
    }
    program_free(p);
    arena_free(mem);
}

/* Sanitizers see as much of the compiler in fewer models. */
#ifdef __SANITIZE_ADDRESS__
enum { MODELS = 9 };
#else
enum { MODELS = 30 };
#endif

TEST_LIMIT(made_rules_trained, 300) {
    enum { EACH = 6 };
    const uint64_t models = test_long() ? 30 : MODELS;
    for (uint64_t k = 0; k < models; k++) {
        MadeRule rule[EACH];
        for (uint64_t i = 0; i < EACH; i++) rule[i] = made_rule(5000000 + k * EACH + i);
        check_training(rule, EACH, 1 + (int64_t)(k % 3));
    }
}

static void make_program(const char *text) {
    Arena *mem = arena_new();
    PassOptions po = pass_options_default();
    CompileOptions co = {.threads = 1, .lower_anew = true};
    Module *m = module_parse(mem, "doubles.ir", text, strlen(text));
    program_make(mem, m, predict_passes, &po, &co);
}

/* Element types are what is left to refuse; with a bias it is still the product's line.
 */
TEST(another_type_is_refused_at_its_line) {
    static const char text[] =
        "module @t mesh() level(global)\n"
        "func @t:model(%a: f64[2,3], %b: f64[3,4], %c: f64[4]) -> (f64[2,4]) {\n"
        "  %y = dot %a, %b {mk,kn->mn} : f64[2,4]\n"
        "  %z = add %y, %c {mn,n->mn} : f64[2,4]\n"
        "  return %z\n}\n";
    EXPECT_FAIL(make_program(text), EXIT_CONFIG,
                "doubles.ir:3:3: error: @t: no code can");
}

static void check_all(const char *cpu, int threads, uint64_t first) {
    int moved = 0;
    for (uint64_t k = 0; k < PROGRAMS; k++) {
        MadeRule rule[PRODUCTS];
        for (uint64_t i = 0; i < PRODUCTS; i++) {
            rule[i] = made_rule(first + k * PRODUCTS + i);
        }
        moved += check_program(rule, PRODUCTS, cpu, threads);
    }
    printf("  %d products, %d rearranged tensors\n", PROGRAMS * PRODUCTS, moved);
    EXPECT(moved > PROGRAMS);
}

TEST_LIMIT(made_rules_two_threads, 300) {
    check_all("native", 2, 1);
}

TEST_LABEL_OF(made_rules_avx2_one_thread, QUICK);
TEST_LIMIT(made_rules_avx2_one_thread, 300) {
    check_all("x86-64-v3", 1, 1000000);
}
