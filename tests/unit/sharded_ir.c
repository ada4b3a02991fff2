/* Textual modules with placements: their step on all ranks of a mesh is the step of the
 * module without a mesh, whatever the sizes of the axes and the optimizer shard. */
#include "../sharded.h"

static const char *module_path(Arena *mem, const char *name) {
    return arena_printf(mem, "%s/ir/mesh/%s", tests_dir(), name);
}

static PassOptions options(int zero, int micro) {
    PassOptions o = pass_options_default();
    o.zero_level = zero;
    o.zero_axes = "dp";
    o.micro_batches = micro;
    o.weight_decay = 0.1;
    o.clip_norm = 0.1;
    return o;
}

static double worst_of(const char *name, int dp, int tp, PassOptions o) {
    Arena *mem = arena_new();
    double off = sharded_difference(module_path(mem, name), (int[]){dp, tp}, &o, 3);
    if (!(off <= 1e-5))
        test_fail(__FILE__, __LINE__, "%s dp=%d tp=%d zero=%d micro=%lld: off by %.2g", name,
                  dp, tp, o.zero_level, (long long)o.micro_batches, off);
    arena_free(mem);
    return off;
}

static void perceptron(int zero) {
    static const int sizes[] = {1, 2, 3, 5, 6, 7};
    double worst = 0;
    for (int i = 0; i < ARRAY_LEN(sizes); i++)
        for (int tp = 1; tp <= 2; tp++)
            for (int micro = 1; micro <= 2; micro++)
                worst = fmax(worst, worst_of("mlp.ir", sizes[i], tp, options(zero, micro)));
    printf("  worst difference %.2g\n", worst);
}

TEST(perceptron_zero_0) {
    perceptron(0);
}

TEST(perceptron_zero_1) {
    perceptron(1);
}

TEST(perceptron_zero_2) {
    perceptron(2);
}

TEST(perceptron_zero_3) {
    perceptron(3);
}

/* Weights of one tower are split by the user, by pattern; the other tower stays whole. */
TEST(towers) {
    static const Annotation split[] = {{"up", "-,tp", "parallel.shard, entry 1", false},
                                       {"bias", "tp", "parallel.shard, entry 2", false},
                                       {"down", "tp,-", "parallel.shard, entry 3", false}};
    static const int sizes[][2] = {{1, 1}, {2, 1}, {1, 2}, {1, 4}, {3, 2}, {2, 4}, {6, 1}};
    double worst = 0;
    for (int i = 0; i < ARRAY_LEN(sizes); i++) {
        for (int zero = 0; zero <= 3; zero++) {
            PassOptions o = options(zero, 1 + zero % 2);
            o.annotation = split;
            o.nannotations = ARRAY_LEN(split);
            worst = fmax(worst, worst_of("towers.ir", sizes[i][0], sizes[i][1], o));
        }
    }
    printf("  worst difference %.2g\n", worst);
}
