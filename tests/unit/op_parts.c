/* op_parts.c - what rule, ties, `dims`, `local` and F_LINEAR of ops.def promise of
 * several ranks, for every op by its samples (ops.h) and in double: each dimension that
 * may be split in as many parts as it has, two of them at once, operands that are sums
 * over ranks. The results of all ranks together are those of the whole. */
#include "ir/placement.h"
#include "trial.h"

/* ---- parts ---- */

/* One op on a mesh, its operands and results as they lie there. */
typedef struct Parts {
    const Trial *whole;
    Tensor **want, **arg; /* results and arguments of the whole */
    Type lies[MAX_TERMS]; /* the arguments */
    Func *f;
    uint32_t sums; /* arguments that are pending sums */
} Parts;

static Parts parts_new(const Trial *whole, const char *mesh, Level level) {
    Module *m = sample_module(whole->mem, whole->sample, "f64", mesh, 1, "global");
    Func *f = entry(whole->f->mod);
    return_results(f);
    Tensor ***arg = make_arguments(whole->mem, f);
    m->level = level;
    return (Parts){whole, run(whole->mem, f, arg)[0], arg[0], .f = entry(m)};
}

/* Rank r's argument i: its part; of a pending sum a share that differs by rank. */
static Tensor *part_of(const Parts *p, int r, int i) {
    const Mesh *m = &p->f->mod->mesh;
    Tensor *part = tensor_new(p->whole->mem, &p->f->arg[i]->ty);
    for (int64_t k = 0; k < type_count(&part->ty); k++) {
        double all = tensor_get(p->arg[i], part_element(m, r, &p->lies[i], k));
        double share = 0.75 + 0.125 * (double)(k % 5), rest = 1 - share;
        double v = p->sums >> i & 1 ? all * (r ? rest : share) : all;
        tensor_set(part, k, v);
    }
    return part;
}

static void expect_whole(const Parts *p, Tensor **got, int rank) {
    for (int i = 0; i < p->f->nret; i++) {
        for (int64_t k = 0; k < type_count(&got[i]->ty); k++) {
            double x = tensor_get(got[i], k), y = tensor_get(p->want[i], k);
            if (agree(x, y)) continue;
            WRONG(p->whole,
                  "in parts, rank %d has %.17g as element %lld of result %d, not %.17g:"
                  "\n%s",
                  rank, x, (long long)k, i, y, module_print(p->whole->mem, p->f->mod));
        }
    }
}

/* Runs the passes from the module's level on, then all ranks. */
static void check_parts(Parts *p, const char *passes) {
    Module *m = p->f->mod;
    Arena *mem = p->whole->mem;
    int n = mesh_ranks(&m->mesh);
    PassOptions o = pass_options_default();
    for (int i = 0; i < p->f->narg; i++) p->lies[i] = p->f->arg[i]->ty;
    passes_run(m, passes, &o);
    Tensor ***arg = NEW_ARRAY(mem, Tensor **, (size_t)n);
    for (int r = 0; r < n; r++) {
        arg[r] = NEW_ARRAY(mem, Tensor *, (size_t)p->f->narg + 1);
        for (int i = 0; i < p->f->narg; i++) arg[r][i] = part_of(p, r, i);
    }
    Tensor ***ret = run(mem, p->f, arg);
    for (int r = 0; r < n; r++) expect_whole(p, ret[r], r);
}

/* Operands and results as `over` has them; what is added to a partial sum is whole. */
static void place_terms(Op *op, const Over *o) {
    over_write(op, o);
    for (int i = 0; i < op->nin; i++) {
        op->in[i]->ty = over_operand(op, o, i);
        op->in[i]->ty.pending = 0;
    }
    for (int i = 0; i < op->nout; i++) op->out[i]->ty = over_result(op, o, i);
    return_results(op->fn);
}

typedef struct Split {
    int id, ranks;
} Split;

/* Splits dimension s[0] over axis a and s[1] (-1: none) over axis b; false: the row says
 * that it cannot be. */
static bool check_split(const Sample *sample, const Split *s) {
    Arena *mem = arena_new();
    Trial t = trial_new(mem, sample);
    Parts p = parts_new(&t, arena_printf(mem, "a=%d, b=%d", s[0].ranks, s[1].ranks),
                        LEVEL_SHARDED);
    Op *op = p.f->last;
    Over o = over_none(op);
    bool may = true;
    for (int a = 0; may && a < 2 && s[a].id >= 0; a++) {
        may = over_fits(op, &o, s[a].id, o.split[s[a].id] | (Axes)(1u << a));
        if (may) over_add(op, &o, s[a].id, a);
    }
    if (may) {
        place_terms(op, &o);
        check_parts(&p, "reshard,collect,localize");
    }
    arena_free(mem);
    return may;
}

/* The dimensions of an op that are split by themselves, or with others tied to them. */
static int leaders(const Sample *s, int *id, int64_t *size) {
    Arena *mem = arena_new();
    Trial t = trial_new(mem, s);
    Over o = over_none(t.op);
    int n = 0;
    for (int k = 0; k < o.d.n && o.has_dims && !op_attr(t.op, "fn"); k++) {
        if (over_leader(&o.d, k) != k) continue;
        id[n] = k;
        size[n++] = o.d.size[k];
    }
    arena_free(mem);
    return n;
}

/* Every dimension over every number of ranks up to its size; how many could be split. */
static int one_dimension(const Sample *s) {
    int id[MAX_DIMS], done = 0;
    int64_t size[MAX_DIMS];
    for (int k = 0, n = leaders(s, id, size); k < n; k++) {
        for (int ranks = 2; ranks <= size[k]; ranks++)
            done += check_split(s, (Split[]){{id[k], ranks}, {-1, 1}});
    }
    return done;
}

/* The smallest number that divides. */
static int least_ranks(int64_t size) {
    int n = 2;
    while (n < size && size % n) n++;
    return n;
}

static int two_dimensions(const Sample *s) {
    int id[MAX_DIMS], done = 0;
    int64_t size[MAX_DIMS];
    int n = leaders(s, id, size);
    for (int k = 0; k < n; k++) {
        for (int j = 0; j < n; j++) {
            Split two[] = {{id[k], least_ranks(size[k])}, {id[j], least_ranks(size[j])}};
            done += check_split(s, two);
        }
    }
    return done;
}

static int all_splits(int (*split)(const Sample *)) {
    int n = 0;
    for (int i = 0; i < ARRAY_LEN(samples); i++) {
        if (!on_mesh(&samples[i])) n += split(&samples[i]);
    }
    printf("  %d splits\n", n);
    return n;
}

TEST_LABEL_OF(a_dimension_in_parts, RELEASED);
TEST(a_dimension_in_parts) {
    EXPECT(all_splits(one_dimension) > 280);
}

TEST(two_dimensions_in_parts) {
    EXPECT(all_splits(two_dimensions) > 200);
}

/* ---- pending sums ---- */

static bool hands_on(const Op *op) {
    const Attr *over = op_attr(op, "over");
    return over && strchr(over->s, '+');
}

/* Arguments of `sums` are sums over two ranks that are still to be done. Shard decides
 * which of them go on into the results; 1: some do. */
static int check_pending(const Sample *s, uint32_t sums) {
    Arena *mem = arena_new();
    Trial t = trial_new(mem, s);
    Parts p = parts_new(&t, "a=2", LEVEL_GLOBAL);
    PassOptions o = pass_options_default();
    Op *op = p.f->last;
    p.sums = sums;
    for (int i = 0; i < p.f->narg; i++) p.f->arg[i]->ty.pending = sums >> i & 1;
    return_results(p.f);
    passes_run(p.f->mod, "shard", &o);
    int late = hands_on(op);
    check_parts(&p, "reshard,collect,localize");
    arena_free(mem);
    return late;
}

static uint32_t float_arguments(const Sample *s) {
    Arena *mem = arena_new();
    Func *f = trial_new(mem, s).f;
    uint32_t set = 0;
    for (int i = 0; i < f->narg; i++) set |= (uint32_t)is_float(f->arg[i]) << i;
    arena_free(mem);
    return set;
}

/* The same where a text has said that the sums go on, whatever the op: they do, or it is
 * refused. 1: they do. */
static int check_said(const Sample *s, uint32_t sums) {
    Arena *mem = arena_new();
    Trial t = trial_new(mem, s);
    Parts p = parts_new(&t, "a=2", LEVEL_SHARDED);
    Op *op = p.f->last;
    Over o = over_none(op);
    Catch c;
    p.sums = sums;
    o.passes = 1;
    for (int i = 0; i < p.f->narg; i++) p.f->arg[i]->ty.pending = sums >> i & 1;
    for (int i = 0; i < op->nout; i++) op->out[i]->ty = over_result(op, &o, i);
    over_write(op, &o);
    return_results(p.f);
    if (CATCH(c)) {
        check_parts(&p, "reshard,collect,localize");
        catch_end(&c);
    } else if (!strstr(c.message, "do not go on into its results")) {
        WRONG(&t, "%s", c.message);
    }
    arena_free(mem);
    return !c.code;
}

/* One float argument, two of them, all of them. */
static int every_sum(const Sample *s, int (*sum)(const Sample *, uint32_t)) {
    uint32_t all = float_arguments(s);
    int n = all ? sum(s, all) : 0;
    for (int i = 0; i < MAX_TERMS; i++) {
        for (int k = 0; k <= i; k++) {
            uint32_t two = 1u << i | 1u << k;
            if ((two & all) == two && two != all) n += sum(s, two);
        }
    }
    return n;
}

static int every_sample(int (*sum)(const Sample *, uint32_t)) {
    int n = 0;
    for (int i = 0; i < ARRAY_LEN(samples); i++)
        if (!on_mesh(&samples[i])) n += every_sum(&samples[i], sum);
    return n;
}

TEST_LABEL_OF(sums_over_ranks, RELEASED);
TEST(sums_over_ranks) {
    int late = every_sample(check_pending);
    printf("  %d sums handed on\n", late);
    EXPECT(late > 40);
}

TEST(sums_that_texts_hand_on) {
    int on = every_sample(check_said);
    printf("  %d sums handed on\n", on);
    EXPECT(on > 40);
}
