/* Tests of the machines that come with the program, and of what their keys change. */
#include "../mem.h"
#include "../test.h"
#include "frontend/config/machine_file.h"
#include "passes/estimate/func_seconds.h"
#include <dirent.h>
#include <math.h>
#include <unistd.h>

static const char *printed(const Machine *m) {
    Text t = text_new(mem());
    machine_print(m, NULL, &t);
    return t.s;
}

/* What is printed of a machine is read as the same machine. */
static void expect_round_trip(const char *path) {
    const char *first = printed(machine_read(mem(), path));
    const char *copy = path_join(mem(), temp_dir(), "machine.yaml");
    EXPECT_INT(file_write_atomic(copy, first, strlen(first)), 0);
    EXPECT_STR(printed(machine_read(mem(), copy)), first);
}

TEST(every_file_of_machines_is_read) {
    const char *folder = TESTS_DIR "/../machines";
    DIR *d = opendir(folder);
    int files = 0;
    check(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (!ends_with(e->d_name, ".yaml")) continue;
        expect_round_trip(path_join(mem(), folder, e->d_name));
        files++;
    }
    closedir(d);
    EXPECT(files >= 5);
}

/* 1e12 flops and 1e9 bytes a second, 1 GB/s between two ranks; nothing else takes time. */
static Machine simple_machine(void) {
    static double at = 1, rate = 1e9;
    static MachineRank rank = {.ranks = 1, .threads = 1, .flops = {1e12, 1e12}};
    rank.memory = (Curve){.n = 1, .x = &at, .y = &rate};
    return (Machine){.rank = &rank,
                     .nranks = 1,
                     .reached = 1,
                     .inner_reached = 1,
                     .link = {{.bytes_per_second = 1e9}, {.bytes_per_second = 1e9}}};
}

TEST(the_matrix_between_products_goes_through_memory) {
    const double bytes[] = {0, 2, 12};
    const int64_t width[] = {64, 128};
    for (int b = 0; b < ARRAY_LEN(bytes); b++)
        for (int w = 0; w < ARRAY_LEN(width); w++) {
            Machine m = simple_machine();
            m.inner_bytes = bytes[b];
            OpSize s = {.kind = SIZE_INNER, .type = DT_BF16, .width = width[w]};
            double numbers = 1e6, products = 2;
            s.n.flops = products * numbers * 2 * (double)width[w];
            s.n.first = 1;
            double want = s.n.flops / 1e12 + products * numbers * bytes[b] / 1e9;
            EXPECT(fabs(op_size_seconds(&m, m.rank, &s) / want - 1) < 1e-12);
        }
}

/* In whichever of its sizes a product is odd, it reaches a quarter; others and those of a
 * machine without the key take what their flops do. */
TEST(products_of_odd_sizes_reach_a_share) {
    static const struct {
        int aligned;
        double rows, columns, summed, share;
    } rows[] = {{0, 63, 50257, 31, 1},   {8, 64, 4096, 32, 1},
                {8, 63, 4096, 32, 0.25}, {8, 64, 50257, 32, 0.25},
                {8, 64, 4096, 33, 0.25}, {8, 4, 4096, 32, 0.25},
                {2, 62, 50258, 32, 1},   {2, 62, 50257, 31, 0.25}};
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        Machine m = simple_machine();
        m.aligned = rows[i].aligned;
        m.unaligned = 0.25;
        double flops = 2 * 3 * rows[i].rows * rows[i].columns * rows[i].summed;
        ProductSize size = {3, rows[i].rows, rows[i].columns, rows[i].summed};
        double at = machine_product_seconds(&m, m.rank, DT_BF16, FORM_NN, &size);
        EXPECT(fabs(at * 1e12 * rows[i].share / flops - 1) < 1e-12);
    }
}

/* A function of these ops; its seconds. */
static FuncTime time_of(const Machine *m, OpSize *op, int n) {
    GroupShape pair[2] = {{1, 1, 2, LINK_HOST}, {2, 2, 2, LINK_HOST}};
    OpSizes sizes = {op, n, n};
    FuncSizes f = {.func = &sizes, .n = 1};
    Timing t = {.mem = mem(), .m = m, .rank = m->rank, .shape = pair, .stretch = 1};
    return func_seconds(mem(), &f, &t)[0];
}

TEST(sums_have_the_width_that_the_machine_says) {
    static const struct {
        int op;
        DType type;
        double sum_bytes, factor;
    } rows[] = {{OP_all_reduce, DT_F32, 0, 1},       {OP_all_reduce, DT_F32, 2, 0.5},
                {OP_all_reduce, DT_F32, 4, 1},       {OP_all_reduce, DT_BF16, 4, 2},
                {OP_reduce_scatter, DT_F32, 2, 0.5}, {OP_all_gather, DT_F32, 2, 1},
                {OP_all_to_all, DT_F32, 2, 1},       {OP_all_reduce, DT_I32, 2, 1}};
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        Machine m = simple_machine();
        m.sum_bytes = rows[i].sum_bytes;
        OpSize s = {.kind = SIZE_COLLECTIVE,
                    .work = WORK_MESSAGES,
                    .op = rows[i].op,
                    .type = rows[i].type,
                    .axes = 1};
        s.n.bytes = 1e8;
        EXPECT(fabs(time_of(&m, &s, 1).all / (0.1 * rows[i].factor) - 1) < 1e-12);
    }
}

/* Ops of so many bytes each: the function takes what they take, or their way into the
 * queue. */
TEST(ops_wait_for_their_queue) {
    const double issue[] = {0, 1e-4, 1e-2};
    for (int i = 0; i < ARRAY_LEN(issue); i++)
        for (int n = 1; n <= 4; n++) {
            Machine m = simple_machine();
            OpSize s[4] = {{.kind = SIZE_ELEMENTS, .work = WORK_KERNELS}};
            for (int k = 0; k < n; k++) {
                s[k] = s[0];
                s[k].n.bytes = 1e6;
            }
            m.issue_seconds = issue[i];
            FuncTime t = time_of(&m, s, n);
            EXPECT(fabs(t.all / (n * MAX(1e-3, issue[i])) - 1) < 1e-12);
            EXPECT(fabs(t.kind[WORK_KERNELS] - t.all) < 1e-12);
        }
}
