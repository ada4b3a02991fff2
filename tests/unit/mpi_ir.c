/* mpi_ir.c - compiled programs of several ranks under mpirun against the interpreter:
 * every file of tests/ir/mpi, and models that the passes spread over a mesh, by
 * tests/mpi/run_ir.c. */
#include "../mpi.h"
#include "ir/ir.h"
#include <dirent.h>

TEST_LABEL(RANKS);

static int ranks_of(Arena *mem, const char *path) {
    size_t n;
    char *text = file_read(mem, path, 1 << 20, &n, EXIT_DATA);
    return mesh_ranks(&module_parse(mem, path, text, n)->mesh);
}

static const char *also = ""; /* a further argument */

static void check_file(const char *path, int threads, const char *cpu) {
    Arena *mem = arena_new();
    EXPECT_MPI(ranks_of(mem, path), "",
               arena_printf(mem, "%s/tests/mpi/mpi_run_ir %s %d %s %s", BUILD_DIR, path,
                            threads, cpu, also));
    arena_free(mem);
}

static void check_folder(int threads, const char *cpu) {
    Arena *mem = arena_new();
    const char *folder = path_join(mem, tests_dir(), "ir/mpi");
    DIR *d = opendir(folder);
    EXPECT(d);
    int files = 0;
    for (struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n < 4 || strcmp(e->d_name + n - 3, ".ir")) continue;
        check_file(path_join(mem, folder, e->d_name), threads, cpu);
        files++;
    }
    closedir(d);
    EXPECT(files >= 5);
    arena_free(mem);
}

TEST_LABEL_OF(every_file, RELEASED);
TEST(every_file) {
    check_folder(1, "native");
}

TEST_LABEL_OF(two_threads_a_rank_avx2, RELEASED);
TEST(two_threads_a_rank_avx2) {
    check_folder(2, "x86-64-v3");
}

TEST(tensor_parallel_by_hand) {
    Arena *mem = arena_new();
    check_file(path_join(mem, tests_dir(), "ir/mesh_local.ir"), 1, "native");
    arena_free(mem);
}

/* Models of tests/ir made into steps of a mesh by the passes, which stator-opt runs. */
static const struct {
    const char *file, *mesh, *options;
} made[] = {
    {"mlp", "dp=2, tp=2", "-o zero=3 -o zero_axes=dp -s x=dp,- -s w1=-,tp"},
    {"mlp", "dp=2, tp=2",
     "-o zero=2 -o zero_axes=dp -o micro_batches=2 -o clip_norm=1 -s x=dp,- -s w1=-,tp"},
    {"dropout", "dp=2, tp=2", "-s x=dp,-,- -s w=-,-,-,tp,-"},
    {"dropout", "dp=2, cp=2, tp=2", "-s x=dp,cp,- -s w=-,-,-,tp,-"},
    {"tiny_gpt", "dp=2, tp=2",
     "-o zero=1 -o zero_axes=dp -s tokens=dp,- -s labels=dp,- -s wqkv=-,-,tp,- -s "
     "wi=-,tp"},
    {"mpi/made/ring", "cp=2, tp=2", "-s x=-,cp,- -s wq=-,tp,- -s wk=-,tp,-"},
    {"mpi/made/ring", "dp=2, cp=2", "-s x=dp,cp,-"},
    {"two_towers", "a=3", "-s w0=a,- -s wr=-,a"},
};

static char *made_program(Arena *mem, int i) {
    size_t n;
    char *path = arena_printf(mem, "%s/ir/%s.ir", tests_dir(), made[i].file);
    char *text = file_read(mem, path, 1 << 20, &n, EXIT_DATA),
         *at = strstr(text, "mesh()");
    EXPECT(at);
    *at = 0;
    text = arena_printf(mem, "%smesh(%s)%s", text, made[i].mesh, at + strlen("mesh()"));
    path = path_join(mem, temp_dir(), "whole.ir");
    EXPECT_INT(file_write_atomic(path, text, strlen(text)), 0);
    char *command =
        arena_printf(mem,
                     "%s/stator-opt -p simplify,seed,zero,autodiff,train,shard,"
                     "reshard,collect,localize %s %s",
                     BUILD_DIR, made[i].options, path);
    int code = mpi_run_alone(command);
    const char *said = mpi_said();
    if (code) test_fail(__FILE__, __LINE__, "%s:\n%s", command, said);
    path = path_join(mem, temp_dir(), "local.ir");
    EXPECT_INT(file_write_atomic(path, said, strlen(said)), 0);
    return path;
}

TEST_LABEL_OF(steps_made_by_passes, RELEASED);
TEST(steps_made_by_passes) {
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(made); i++) {
        check_file(made_program(mem, i), 1, i % 2 ? "native" : "x86-64-v3");
    }
    arena_free(mem);
}

/* Messages beside the rest, by a thread: results as of the interpreter, the same bits as
 * at once. */
TEST_LABEL_OF(beside_other_work, RELEASED);
TEST(beside_other_work) {
    also = "overlap";
    check_folder(1, "native");
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(made); i++)
        check_file(made_program(mem, i), 1, "native");
    arena_free(mem);
    also = "";
}

/* The program must see what differs: another number of ranks than the mesh has is
 * refused. */
TEST(wrong_number_of_ranks) {
    Arena *mem = arena_new();
    const char *path = path_join(mem, tests_dir(), "ir/mpi/odd.ir");
    int code = mpi_run(
        2, "", arena_printf(mem, "%s/tests/mpi/mpi_run_ir %s 1 native", BUILD_DIR, path));
    EXPECT_INT(code, EXIT_CONFIG);
    EXPECT_PART(mpi_said(), "the mesh has 3 ranks, there are 2");
    arena_free(mem);
}
