/* overlap.c - what collectives save that run concurrently with compute: one GPT-2 of four
 * layers, trained on the ranks of mpirun (2 of this host, started by itself, when run
 * alone) without overlap, and the program with it, with its collectives run at once and
 * run by the thread, a step of each in turn.
 *     bench_overlap [--a.b.c VALUE ...]
 * Any key of a configuration; by default dp = ranks, level 2, one thread a rank. Prints
 * the seconds of a step (best and median of the slowest rank) and how many of them
 * messages would take on their own. */
#define _GNU_SOURCE
#include "base/rng.h"
#include "codegen/codegen.h"
#include "frontend/config/config_state.h"
#include "frontend/model/strategy.h"
#include "runtime/comm/comm.h"
#include "runtime/core/rt.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum { ROUNDS = 9, MODES = 3 };

static const struct {
    const char *name;
    bool overlap;
    CommProgress progress;
} modes[MODES] = {{"off", false, COMM_AT_ONCE},
                  {"at once", true, COMM_AT_ONCE},
                  {"thread", true, COMM_THREAD}};

static const char *const defaults[] = {
    "--model.model_config.num_layers",
    "4",
    "--model.model_config.vocab_size",
    "4096",
    "--model.model_config.seq_length",
    "256",
    "--runner_config.batch_size",
    "2",
    "--parallel_config.micro_batch_num",
    "1",
    "--context.threads",
    "1",
    "--model.model_config.eos_token",
    "0",
    "--parallel.enable_parallel_optimizer",
    "True",
};

static void fill(const Program *p) {
    for (int i = 0; i < p->entry->narg; i++) {
        const Type *ty = &p->entry->arg[i]->ty;
        if (arg_role(p->entry, i) == ARG_state) continue; /* zero */
        for (int64_t k = 0, n = type_count(ty); k < n; k++) {
            double u = rng_uniform(1, (uint64_t)i, (uint64_t)k);
            if (ty->dt == DT_I32)
                ((int32_t *)p->arg[i])[k] = (int32_t)(1000 * u);
            else if (ty->rank == 0)
                ((float *)p->arg[i])[k] = 1e-4f + (float)(i % 2);
            else
                ((float *)p->arg[i])[k] = (float)(0.04 * (u - 0.5));
        }
    }
}

static Program *make(Arena *mem, Config *cfg, int mode, int64_t *batch) {
    ModelSpec spec = model_spec_of_config(cfg);
    Strategy s = strategy_of_config(cfg);
    if (strategy_ranks(&s) != comm_size()) {
        fail(EXIT_CONFIG, "the strategy has %lld ranks, there are %d",
             (long long)strategy_ranks(&s), comm_size());
    }
    *batch = cfg->runner_config_batch_size * s.data;
    ModelShape shape = {.batch = *batch, .seq = cfg->model_seq_length};
    Module *m = model_build(mem, &spec, shape, MODEL_TRAIN);
    PassOptions po = pass_options_default();
    strategy_apply(&s, &spec, m, &po);
    po.overlap = modes[mode].overlap;
    po.clip_norm = 1;
    po.micro_batches = 1;
    CompileOptions co = {.cpu = cfg->context_cpu, .threads = (int)cfg->context_threads};
    int size[MAX_AXES];
    for (int a = 0; a < m->mesh.naxes; a++) size[a] = m->mesh.axis[a].size;
    comm_mesh(1, m->mesh.naxes, size);
    Program *p = program_make(mem, m, train_passes, &po, &co);
    program_allocate(p, NULL, 0);
    fill(p);
    return p;
}

/* Of the slowest rank. */
static double run_once(Program *p, int mode) {
    comm_progress(modes[mode].progress);
    comm_barrier();
    double start = clock_seconds();
    program_run(p);
    return (double)comm_max_i64((int64_t)(1e9 * (clock_seconds() - start))) * 1e-9;
}

static double messages_seconds(void) {
    double seconds = 0;
    for (CommKind k = 0; k < COMM_KINDS; k++) seconds += comm_stats(k).seconds;
    return seconds;
}

static void start_ranks(char **argv) {
    Arena *mem = arena_new();
    char **args = NULL;
    int n = 0, cap = 0;
    const char *first[] = {"mpirun", "--oversubscribe", "--bind-to", "none", "-n", "2"};
    for (int i = 0; i < ARRAY_LEN(first); i++) PUSH(mem, args, n, cap, (char *)first[i]);
    for (int i = 0; argv[i]; i++) PUSH(mem, args, n, cap, argv[i]);
    PUSH(mem, args, n, cap, NULL);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
    setenv("BENCH_OVERLAP_STARTED", "1", 1);
    execvp("mpirun", args);
    die("cannot run mpirun: %s", strerror(errno));
}

static Config *configure(Arena *mem, int argc, char **argv) {
    char **args = NULL, *ranks = arena_printf(mem, "%d", comm_size());
    int n = 0, cap = 0;
    bool given = false;
    for (int i = 0; i < ARRAY_LEN(defaults); i++)
        PUSH(mem, args, n, cap, (char *)defaults[i]);
    for (int i = 1; i < argc; i++) given |= !strncmp(argv[i], "--parallel_config.", 18);
    if (!given) {
        PUSH(mem, args, n, cap, (char *)"--parallel_config.data_parallel");
        PUSH(mem, args, n, cap, ranks);
    }
    for (int i = 1; i < argc; i++) PUSH(mem, args, n, cap, argv[i]);
    return config_load(mem, CONFIGS_DIR "/gpt2_124m.yaml", n, args);
}

int main(int argc, char **argv) {
    comm_start();
    if (comm_size() == 1 && !getenv("BENCH_OVERLAP_STARTED")) start_ranks(argv);
    Arena *mem = arena_new();
    Config *cfg = configure(mem, argc, argv);
    Program *program[MODES];
    double seconds[MODES][ROUNDS], sent[MODES];
    float loss[MODES];
    int64_t batch;
    for (int k = 0; k < MODES; k++) {
        program[k] = make(mem, cfg, k, &batch);
        run_once(program[k], k);
    }
    for (int r = 0; r < ROUNDS; r++) {
        for (int k = 0; k < MODES; k++) {
            double before = messages_seconds();
            seconds[k][r] = run_once(program[k], k);
            sent[k] = messages_seconds() - before;
            loss[k] = *(float *)program[k]->ret[0];
        }
    }
    for (int k = 0; k < MODES && comm_rank() == 0; k++) {
        sort_doubles(seconds[k], ROUNDS);
        printf("%-10s %.3f s a step, the middle one %.3f; inside messages %.3f s; ratio "
               "%.2f; "
               "loss %.6g; %.1f MB\n",
               modes[k].name, seconds[k][0], seconds[k][ROUNDS / 2], sent[k],
               seconds[0][ROUNDS / 2] / seconds[k][ROUNDS / 2], (double)loss[k],
               1e-6 * (double)program[k]->plan.total_bytes);
    }
    comm_progress(COMM_AT_ONCE);
    for (int k = 0; k < MODES; k++) program_free(program[k]);
    comm_end();
    arena_free(mem);
    return 0;
}
