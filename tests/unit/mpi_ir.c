/* mpi_ir.c - compiled programs of several ranks under mpirun against the interpreter: every
 * file of tests/ir/mpi and the local program of tests/ir, by tests/mpi/run_ir.c. */
#include "../../ir/ir.h"
#include "../mpi.h"
#include <dirent.h>

static int ranks_of(Arena *mem, const char *path) {
    size_t n;
    char *text = file_read(mem, path, 1 << 20, &n, EXIT_DATA);
    return mesh_ranks(&module_parse(mem, path, text, n)->mesh);
}

static void check_file(const char *path, int threads, const char *cpu) {
    Arena *mem = arena_new();
    EXPECT_MPI(ranks_of(mem, path), "",
               arena_printf(mem, "%s/tests/mpi/mpi_run_ir %s %d %s", BUILD_DIR, path, threads,
                            cpu));
    arena_free(mem);
}

static void check_folder(int threads, const char *cpu) {
    Arena *mem = arena_new();
    const char *folder = path_join(mem, tests_dir(), "ir/mpi");
    DIR *d = opendir(folder);
    EXPECT(d);
    int files = 0;
    for (struct dirent *e; (e = readdir(d)); ) {
        size_t n = strlen(e->d_name);
        if (n < 4 || strcmp(e->d_name + n - 3, ".ir")) continue;
        check_file(path_join(mem, folder, e->d_name), threads, cpu);
        files++;
    }
    closedir(d);
    EXPECT(files >= 5);
    arena_free(mem);
}

TEST(every_file) {
    check_folder(1, "native");
}

TEST(two_threads_a_rank_avx2) {
    check_folder(2, "x86-64-v3");
}

TEST(tensor_parallel_by_hand) {
    Arena *mem = arena_new();
    check_file(path_join(mem, tests_dir(), "ir/mesh_local.ir"), 1, "native");
    arena_free(mem);
}

/* The program must see what differs: another number of ranks than the mesh has is refused. */
TEST(wrong_number_of_ranks) {
    Arena *mem = arena_new();
    const char *path = path_join(mem, tests_dir(), "ir/mpi/odd.ir");
    int code = mpi_run(
        2, "", arena_printf(mem, "%s/tests/mpi/mpi_run_ir %s 1 native", BUILD_DIR, path));
    EXPECT(code == EXIT_CONFIG);
    EXPECT(strstr(mpi_said(), "the mesh has 3 ranks, there are 2"));
    arena_free(mem);
}
