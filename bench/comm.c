/* comm.c - how long collectives take, compared with MPI's own, on the ranks of mpirun:
 *     mpirun -n 4 bench_comm
 * or on 2 of this host, started by itself, when run alone. Payload: for all_reduce and
 * reduce_scatter what a member gives, otherwise what it ends up with. GB/s are the bytes
 * that one rank sends divided by the time of the slowest; for MPI's too they are computed
 * from the bytes that ours sends. Both must have the same results. What is sent and where it
 * goes was touched long before, as in a step: COLD_BYTES of other operands come between. */
#define _GNU_SOURCE
#include "runtime/comm/comm_link.h"
#include "runtime/core/rt.h"
#include <errno.h>
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static const int64_t payload_bytes[] = {4,       4 << 10,  64 << 10,
                                        1 << 20, 16 << 20, 64 << 20};
static const char *const kind_name[COMM_KINDS] = {
    "all_reduce", "all_reduce max", "reduce_scatter",
    "all_gather", "all_to_all",     "ring_shift",
};

enum { COLD_BYTES = 192 << 20, PAGE_BYTES = 4096 };

static char *memory_of(int64_t bytes) {
    char *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) die("no memory");
    madvise(p, (size_t)bytes, MADV_HUGEPAGE); /* as the memory of a program */
    return memset(p, 1, (size_t)bytes);
}

typedef struct Bench {
    CommKind kind;
    CommPart part; /* of one row: pieces of `each` floats, one after the other */
    int64_t from_count, to_count;
    int64_t copies, copy_bytes; /* of both operands, one after the other */
    void *workspace;
} Bench;

static void run_ours(const Bench *b) {
    comm_run(b->kind, 1, &b->part, 1, b->workspace);
}

/* ---- MPI's own ---- */

static int mpi_all_reduce(const CommPart *p, int each) {
    return MPI_Allreduce(p->from, p->to, each, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int mpi_reduce_scatter(const CommPart *p, int each) {
    return MPI_Reduce_scatter_block(p->from, p->to, each, MPI_FLOAT, MPI_SUM,
                                    MPI_COMM_WORLD);
}

static int mpi_all_gather(const CommPart *p, int each) {
    return MPI_Allgather(p->from, each, MPI_FLOAT, p->to, each, MPI_FLOAT,
                         MPI_COMM_WORLD);
}

static int mpi_all_to_all(const CommPart *p, int each) {
    return MPI_Alltoall(p->from, each, MPI_FLOAT, p->to, each, MPI_FLOAT, MPI_COMM_WORLD);
}

static int mpi_ring_shift(const CommPart *p, int each) {
    int n = comm_size(), right = (comm_rank() + 1) % n, left = (comm_rank() + n - 1) % n;
    return MPI_Sendrecv(p->from, each, MPI_FLOAT, right, 0, p->to, each, MPI_FLOAT, left,
                        0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static int (*const mpi_of[COMM_KINDS])(const CommPart *p, int each) = {
    [COMM_ALL_REDUCE] = mpi_all_reduce, [COMM_REDUCE_SCATTER] = mpi_reduce_scatter,
    [COMM_ALL_GATHER] = mpi_all_gather, [COMM_ALL_TO_ALL] = mpi_all_to_all,
    [COMM_RING_SHIFT] = mpi_ring_shift,
};

static void run_mpi(const Bench *b) {
    if (mpi_of[b->kind](&b->part, (int)b->part.each) != MPI_SUCCESS)
        die("MPI's %s failed", kind_name[b->kind]);
}

/* ---- both ---- */

/* The hash of what it makes of numbers whose sums are exact in any order. */
static uint64_t result_of(const Bench *b, void (*run)(const Bench *b)) {
    float *from = (void *)(uintptr_t)b->part.from;
    for (int64_t i = 0; i < b->from_count; i++)
        from[i] = (float)((i * 7 + 31 * comm_rank()) % 1000);
    memset(b->part.to, 0, (size_t)b->to_count * sizeof(float));
    run(b);
    return hash64(b->part.to, (size_t)b->to_count * sizeof(float));
}

static void run_copy(const Bench *b, void (*run)(const Bench *b), int64_t i) {
    Bench one = *b;
    one.part.from = (const char *)b->part.from + i % b->copies * b->copy_bytes;
    one.part.to = (char *)b->part.to + i % b->copies * b->copy_bytes;
    run(&one);
}

/* Seconds of the slowest rank: the best mean of a few rounds. */
static double seconds_of(const Bench *b, void (*run)(const Bench *b)) {
    double best = INFINITY, once;
    int64_t turn = 0;
    comm_barrier();
    once = clock_seconds();
    run_copy(b, run, turn++);
    once = (double)comm_max_i64((int64_t)(1e9 * (clock_seconds() - once))) * 1e-9;
    int repeat = (int)fmax(1, fmin(1000, 0.05 / once));
    for (int round = 0; round < 5; round++) {
        comm_barrier();
        double start = clock_seconds();
        for (int i = 0; i < repeat; i++) run_copy(b, run, turn++);
        int64_t ns = comm_max_i64((int64_t)(1e9 * (clock_seconds() - start)));
        best = fmin(best, (double)ns * 1e-9 / repeat);
    }
    return best;
}

static double bench(CommKind kind, int64_t bytes) {
    int n = comm_size();
    int64_t count = MAX(1, bytes / 4);
    bool cut = kind != COMM_ALL_REDUCE && kind != COMM_RING_SHIFT;
    if (cut) count = MAX(1, count / n);
    Bench b = {.kind = kind};
    b.part = (CommPart){.before = 1, .each = count, .after = 1, .dtype = DT_F32};
    b.part.join_before = b.part.join_after = 1;
    b.part.join_each = count;
    int64_t whole = count * 4 * (cut ? n : 1);
    b.from_count = kind == COMM_ALL_GATHER ? count : whole / 4;
    b.to_count = kind == COMM_REDUCE_SCATTER ? count : whole / 4;
    b.copy_bytes = round_up(whole, PAGE_BYTES);
    b.copies = MAX(1, COLD_BYTES / b.copy_bytes);
    b.part.from = memory_of(b.copies * b.copy_bytes);
    b.part.to = memory_of(b.copies * b.copy_bytes);
    int64_t workspace_bytes = comm_workspace_bytes(kind, n, &b.part, 1) + 1;
    b.workspace = memory_of(workspace_bytes);
    int64_t sent = comm_stats(kind).sent_bytes;
    uint64_t result = result_of(&b, run_ours);
    sent = comm_stats(kind).sent_bytes - sent;
    if (result_of(&b, run_mpi) != result)
        die("%s of %lld bytes: MPI's result is another", kind_name[kind],
            (long long)whole);
    double ours = seconds_of(&b, run_ours), mpi = seconds_of(&b, run_mpi);
    if (comm_rank() == 0) {
        printf("  %-15s %10lld B  %10.1f us  %6.2f GB/s   MPI %10.1f us  %6.2f GB/s\n",
               kind_name[kind], (long long)whole, 1e6 * ours, 1e-9 * (double)sent / ours,
               1e6 * mpi, 1e-9 * (double)sent / mpi);
        fflush(stdout);
    }
    munmap((void *)(uintptr_t)b.part.from, (size_t)(b.copies * b.copy_bytes));
    munmap(b.part.to, (size_t)(b.copies * b.copy_bytes));
    munmap(b.workspace, (size_t)workspace_bytes);
    return mpi / ours;
}

/* Copying in memory, on all ranks at once: what a transfer by copies can reach. */
static void bench_copy(void) {
    int64_t bytes = 64 << 20;
    char *from = memory_of(bytes), *to = memory_of(bytes);
    double best = INFINITY;
    for (int i = 0; i < 5; i++) {
        comm_barrier();
        double start = clock_seconds();
        memcpy(to, from, (size_t)bytes);
        int64_t ns = comm_max_i64((int64_t)(1e9 * (clock_seconds() - start)));
        best = fmin(best, (double)ns * 1e-9);
    }
    if (comm_rank() == 0)
        printf("copy in memory: %.2f GB/s\n", 1e-9 * (double)bytes / best);
}

static void start_ranks(char *self) {
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
    setenv("BENCH_COMM_STARTED", "1", 1);
    execlp("mpirun", "mpirun", "--oversubscribe", "-n", "2", self, (char *)NULL);
    die("cannot run mpirun: %s", strerror(errno));
}

int main(int argc, char **argv) {
    (void)argc;
    comm_start();
    if (comm_size() == 1 && !getenv("BENCH_COMM_STARTED")) start_ranks(argv[0]);
    int size = comm_size();
    rt_set_threads(1);
    comm_mesh(1, 1, &size);
    if (comm_rank() == 0) {
        printf("%d ranks, %d of them on %s, which has %d cores for them\n", size,
               comm_local_size(), comm_host(), comm_world.local_cores);
    }
    bench_copy();
    double ratio = 0;
    for (CommKind k = 0; k < COMM_KINDS; k++) {
        if (k == COMM_ALL_REDUCE_MAX) continue;
        for (int i = 0; i < ARRAY_LEN(payload_bytes); i++) {
            double r = bench(k, payload_bytes[i]);
            if (k == COMM_ALL_REDUCE && i == ARRAY_LEN(payload_bytes) - 1) ratio = r;
        }
    }
    if (comm_rank() == 0) {
        printf("all_reduce of 64 MiB on %d ranks, MPI's time over ours: ratio %.2f\n",
               size, ratio);
    }
    comm_end();
    return 0;
}
