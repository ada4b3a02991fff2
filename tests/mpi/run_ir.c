/* run_ir.c - run_ir FILE.ir THREADS CPU [overlap]: on every rank of the module's mesh,
 * the compiled program of a module of level local against the interpreter, which runs all
 * ranks in one process. Ends with 0 when every result of every rank agrees, run for run
 * the same bits, and all ranks compiled the same text. With `overlap` collectives are
 * late wherever they can be, and run at once and by the thread. */
#include "codegen/codegen.h"
#include "ir/sample.h"
#include "runtime/comm/comm.h"
#include <math.h>
#include <stdlib.h>

static const char passes[] = "expand,simplify,epilogue,arrange,fuse,overlap,memplan";

static Func *entry_of(const Module *m) {
    for (Func *f = m->first; f; f = f->next) {
        if (func_is_entry(f)) return f;
    }
    die("@%s has no entry", m->name);
}

static void lay_mesh(const Mesh *mesh) {
    int size[MAX_AXES];
    for (int a = 0; a < mesh->naxes; a++) size[a] = mesh->axis[a].size;
    if (mesh_ranks(mesh) != comm_size()) {
        fail(EXIT_CONFIG, "the mesh has %d ranks, there are %d", mesh_ranks(mesh),
             comm_size());
    }
    comm_mesh(1, mesh->naxes, size);
    for (int a = 0; a < mesh->naxes; a++) {
        check(comm_coord(a) == mesh_coord(mesh, comm_rank(), a));
    }
}

/* Counts elements that are wrong, and prints the first. */
static int64_t compare(int nth, const Tensor *want, const void *data) {
    Tensor got = {want->ty, (void *)data};
    int64_t wrong = 0;
    for (int64_t i = 0, n = type_count(&want->ty); i < n; i++) {
        double x = tensor_get(&got, i), y = tensor_get(want, i);
        if (x == y || (x != x && y != y) || fabs(x - y) <= 1e-5 * fmax(1, fabs(y)))
            continue;
        if (!wrong++) {
            printf("rank %d: result %d, element %lld is %.9g, wanted %.9g\n", comm_rank(),
                   nth, (long long)i, x, y);
        }
    }
    return wrong;
}

static void run_once(Program *p, Tensor **arg) {
    for (int i = 0; i < p->entry->narg; i++) {
        memcpy(p->arg[i], arg[i]->data, (size_t)type_bytes(&arg[i]->ty));
    }
    program_run(p);
}

static uint64_t hash_results(const Program *p) {
    uint64_t h = 0;
    for (int i = 0; i < p->entry->nret; i++) {
        h = h * 31 + hash64(p->ret[i], (size_t)type_bytes(&p->entry->ret[i]->ty));
    }
    return h;
}

static bool same_text(Arena *mem, const Module *m) {
    const char *text = module_print(mem, m);
    uint64_t mine = hash64(text, strlen(text)),
             *all = comm_gather(mem, &mine, sizeof mine);
    return all[0] == mine;
}

int main(int argc, char **argv) {
    Arena *mem = arena_new();
    size_t n;
    comm_start();
    bool overlap = argc == 5 && !strcmp(argv[4], "overlap");
    if (argc != 4 && !overlap)
        fail(EXIT_CONFIG, "usage: run_ir FILE.ir THREADS CPU [overlap]");
    char *text = file_read(mem, argv[1], 1 << 20, &n, EXIT_DATA);
    Module *m = module_parse(mem, argv[1], text, n);
    Func *f = entry_of(m);
    lay_mesh(&m->mesh);
    Tensor ***arg = sample_arguments(mem, f), ***want = sample_results(mem, f);
    interp_run(mem, f, arg, want);
    PassOptions po = pass_options_default();
    po.overlap = overlap ? 2 : 0;
    const char *level = getenv("STATOR_JIT_LEVEL");
    CompileOptions co = {.cpu = argv[3], .threads = atoi(argv[2]), .lower_anew = true};
    co.quick = level && !strcmp(level, "O0");
    Program *p = program_make(mem, module_clone(mem, m), passes, &po, &co);
    program_allocate(p, NULL, 0);
    run_once(p, arg[comm_rank()]);
    int64_t wrong = 0;
    for (int i = 0; i < p->entry->nret; i++) {
        wrong += compare(i, want[comm_rank()][i], p->ret[i]);
    }
    uint64_t bits = hash_results(p);
    for (int k = 0; k < 3; k++) {
        bool beside = overlap && comm_size() > 1 && k % 2;
        CommProgress how = beside ? COMM_THREAD : COMM_AT_ONCE;
        if (comm_progress(how) != how) die("collectives cannot run in way %d", k);
        run_once(p, arg[comm_rank()]);
        if (hash_results(p) == bits) continue;
        printf("rank %d: run %d has other bits\n", comm_rank(), k + 2);
        wrong++;
    }
    if (!same_text(mem, p->m)) {
        printf("rank %d: another program than rank 0's\n", comm_rank());
        wrong++;
    }
    wrong = comm_max_i64(wrong);
    program_free(p);
    comm_end();
    arena_free(mem);
    return wrong != 0;
}
