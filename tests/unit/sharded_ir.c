/* Textual modules with placements: their step on all ranks of a mesh is the step of the
 * module without a mesh, whatever the sizes of the axes, the optimizer shard, and the
 * placements themselves. SIM_SEED=n runs one placement of the dice,
 * SIM_DUMP=1 prints it. */
#include "../sharded.h"
#include "base/rng.h"
#include "passes/cost/machine.h"

static const char *module_path(Arena *mem, const char *name) {
    return arena_printf(mem, "%s/ir/mesh/%s", tests_dir(), name);
}

/* With two micro-batches on hosts of two ranks that are far from each other: collectives are others
 * there. */
static PassOptions options(int zero, int micro, bool beside) {
    static Machine far;
    PassOptions o = pass_options_default();
    far = machine_plain;
    far.host_ranks = 2;
    far.link[LINK_NETWORK].bytes_per_second /= 100;
    if (micro == 2) o.machine = &far;
    o.zero_level = zero;
    o.overlap = beside ? 2 : 0;
    o.zero_axes = "dp";
    o.micro_batches = micro;
    o.decay_weights = true;
    o.clip_norm = 0.1;
    o.tile_bytes = 100;
    o.tile_rows = 1 + micro % 2;
    return o;
}

static double worst_of(const char *name, int dp, int tp, PassOptions o) {
    Arena *mem = arena_new();
    const char *path = module_path(mem, name);
    const int size[] = {dp, tp};
    Module *whole = sharded_read(mem, path, size), *part = sharded_read(mem, path, size);
    Sharded s = sharded_open(mem, whole, part, &o);
    EXPECT(s.ranks == 1 || s.collectives > 0);
    double off = sharded_difference(&s, 3);
    if (!(off <= 1e-5))
        test_fail(__FILE__, __LINE__, "%s dp=%d tp=%d zero=%d micro=%lld: off by %.2g",
                  name, dp, tp, o.zero_level, (long long)o.micro_batches, off);
    arena_free(mem);
    return off;
}

static void perceptron(int zero) {
    static const int sizes[] = {1, 2, 3, 5, 6, 7};
    double worst = 0;
    for (int i = 0; i < ARRAY_LEN(sizes); i++)
        for (int tp = 1; tp <= 2; tp++)
            for (int micro = 1; micro <= 3; micro++)
                for (int beside = 0; beside < 2; beside++)
                    worst = fmax(worst, worst_of("mlp.ir", sizes[i], tp,
                                                 options(zero, micro, beside)));
    printf("  worst difference %.2g\n", worst);
}

TEST_LABEL_OF(perceptron_zero_0, RELEASED);
TEST(perceptron_zero_0) {
    perceptron(0);
}

TEST_LABEL_OF(perceptron_zero_1, RELEASED);
TEST(perceptron_zero_1) {
    perceptron(1);
}

TEST_LABEL_OF(perceptron_zero_2, RELEASED);
TEST(perceptron_zero_2) {
    perceptron(2);
}

TEST_LABEL_OF(perceptron_zero_3, RELEASED);
TEST(perceptron_zero_3) {
    perceptron(3);
}

/* Weights of one tower are split by the user, by pattern; the other tower stays whole. */
TEST_LABEL_OF(towers, RELEASED);
TEST(towers) {
    static const Annotation split[] = {
        {"up", "-,tp", "parallel.shard, entry 1", false},
        {"bias", "tp", "parallel.shard, entry 2", false},
        {"down", "tp,-", "parallel.shard, entry 3", false}};
    static const int sizes[][2] = {{1, 1}, {2, 1}, {1, 2}, {1, 4},
                                   {3, 2}, {2, 4}, {6, 1}};
    double worst = 0;
    for (int i = 0; i < ARRAY_LEN(sizes); i++) {
        for (int zero = 0; zero <= 7; zero++) {
            PassOptions o = options(zero % 4, 1 + zero % 2, zero > 3);
            o.annotation = split;
            o.nannotations = ARRAY_LEN(split);
            worst = fmax(worst, worst_of("towers.ir", sizes[i][0], sizes[i][1], o));
        }
    }
    printf("  worst difference %.2g\n", worst);
}

/* ---- placements by dice ---- */

#ifdef __SANITIZE_ADDRESS__
enum { THROWS = 12, MOST_THROWS = 60 };
#else
enum { THROWS = 100, MOST_THROWS = 400 };
#endif

typedef struct Dice {
    uint64_t seed, thrown;
} Dice;

static int throw(Dice * d, int sides) {
    return (int)(rng_uniform(d->seed, 1, d->thrown++) * sides);
}

/* Each axis splits some dimension that it divides, or none. Many placements conflict. */
static void place_by_dice(Dice *d, const Mesh *m, Value *v) {
    for (int a = 0; a < m->naxes; a++) {
        int at = throw(d, 2 * v->ty.rank + 1);
        if (at >= v->ty.rank) continue;
        Axes axes = v->ty.split[at] | (Axes)(1u << a);
        if (axes & (axes - 1) && throw(d, 2)) axes |= AXES_REVERSED;
        if (v->ty.dim[at] % mesh_group_size(m, axes) == 0) v->ty.split[at] = axes;
    }
}

static void add_mesh(Dice *d, Module *m) {
    static const char *const names[] = {"dp", "cp", "tp"};
    static const int sizes[] = {2, 3, 2};
    for (int a = 0; a < ARRAY_LEN(names); a++) {
        m->mesh.axis[a].name = names[a];
        m->mesh.axis[a].size = throw(d, 4) ? sizes[a] : 4;
    }
    m->mesh.naxes = 2 + throw(d, 2);
}

/* All arguments of the model, and one value in eight. */
static void place_module(Dice *d, Module *m) {
    add_mesh(d, m);
    for (Func *f = m->first; f; f = f->next) {
        for (int i = 0; f->role == ROLE_MODEL && i < f->narg; i++)
            place_by_dice(d, &m->mesh, f->arg[i]);
        for (Op *op = f->first; op; op = op->next)
            for (int i = 0; i < op->nout; i++)
                if (!throw(d, 8)) place_by_dice(d, &m->mesh, op->out[i]);
    }
}

static void round_by_dice(Dice *d, PassOptions *o) {
    o->narrow = throw(d, 2) ? DT_BF16 : DT_F16;
    o->round_gradients = throw(d, 2);
    o->round_sums = throw(d, 2);
    o->residual_exact = throw(d, 2);
}

/* False: the placements contradict each other, which must be said. */
static bool run_throw(const char *name, bool narrow, uint64_t seed, double *worst) {
    Arena *mem = arena_new();
    const char *path = arena_printf(mem, "%s/ir/%s", tests_dir(), name);
    Module *whole = sharded_read(mem, path, NULL), *part = sharded_read(mem, path, NULL);
    Dice d = {seed, 0};
    place_module(&d, part);
    PassOptions o = options(throw(&d, 4), 1 + throw(&d, 3), throw(&d, 2));
    if (narrow) round_by_dice(&d, &o);
    if (getenv("SIM_DUMP")) printf("%s\n", module_print(mem, part));
    Catch c;
    volatile bool done = false;
    if (CATCH(c)) {
        Sharded s = sharded_open(mem, whole, part, &o);
        *worst = sharded_difference(&s, 2);
        done = true;
        catch_end(&c);
    } else {
        if (getenv("SIM_DUMP")) printf("%s\n", c.message);
        EXPECT(c.code == EXIT_CONFIG && strstr(c.message, " meets two placements "));
        EXPECT(strstr(c.message, " would move ") || strstr(c.message, "No collectives"));
    }
    arena_free(mem);
    return done;
}

static void dice(const char *name, bool narrow, double tolerance) {
    const char *only = getenv("SIM_SEED");
    int first = only ? atoi(only) : 0, last = only ? first : MOST_THROWS - 1;
    int ran = 0, seed;
    double worst = 0;
    for (seed = first; seed <= last && ran < THROWS; seed++) {
        double off = 0;
        ran += run_throw(name, narrow, (uint64_t)seed, &off);
        if (!(off <= tolerance))
            test_fail(__FILE__, __LINE__, "%s, seed %d: off by %.2g", name, seed, off);
        worst = fmax(worst, off);
    }
    printf("  %s: %d placements, %d more refused; worst difference %.2g\n", name, ran,
           seed - first - ran, worst);
    EXPECT(only || ran == THROWS);
}

static const char *const small[] = {"mlp.ir", "classify.ir", "two_towers.ir",
                                    "reverse.ir", "dropout.ir"};

TEST_LABEL_OF(dice_small_modules, SLOW);
TEST_LABEL_OF(dice_small_modules, RELEASED);
TEST(dice_small_modules) {
    for (int i = 0; i < ARRAY_LEN(small); i++) dice(small[i], false, 1e-5);
}

/* Sums in another order are rounded to other numbers of 16 bits. */
TEST_LABEL_OF(dice_small_rounded, SLOW);
TEST(dice_small_rounded) {
    for (int i = 0; i < ARRAY_LEN(small); i++) dice(small[i], true, 2e-2);
}

TEST_LABEL_OF(dice_models_rounded, SLOW);
TEST_LABEL_OF(dice_models_rounded, RELEASED);
TEST(dice_models_rounded) {
    dice("tiny_gpt.ir", true, 2e-2);
    dice("llama_tiny.ir", true, 2e-2);
}

/* A sum of parts in bf16 rounds each part. */
TEST(dice_mixed_types) {
    dice("mixed.ir", false, 1e-2);
}

/* Composites whose parts would leave the range of f16. */
TEST(dice_narrow_norms) {
    dice("narrow_norms.ir", false, 2e-2);
}

TEST_LABEL_OF(dice_gpt, SLOW);
TEST(dice_gpt) {
    dice("tiny_gpt.ir", false, 1e-5);
}

TEST_LABEL_OF(dice_llama, SLOW);
TEST_LABEL_OF(dice_llama, RELEASED);
TEST(dice_llama) {
    dice("llama_tiny.ir", false, 1e-5);
}
