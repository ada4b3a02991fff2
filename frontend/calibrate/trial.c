/* trial.c - see trial.h. */
#include "frontend/calibrate/trial.h"
#include "base/rng.h"
#include "runtime/comm/comm.h"
#include "runtime/core/rt.h"
#include <sys/mman.h>

enum { ALIGN = 4096, MOST_COPIES = 256, MOST_RUNS = 512, LEAST_RUNS = 3 };
#define LEAST_SECONDS 5e-5 /* between two looks at the clock */

static int64_t room_of(const Type *t) {
    return round_up(MAX(type_bytes(t), (int64_t)1), ALIGN);
}

/* The same numbers again and again: to draw each would take longer than what is measured. */
static void fill(char *to, const Type *t, uint64_t stream) {
    enum { PERIOD = 1 << 16 };
    Tensor x = {.ty = *t, .data = to};
    int64_t n = type_count(t);
    size_t each = dtype_bytes[t->dt];
    for (int64_t i = 0; i < MIN(n, PERIOD); i++) {
        double u = 2 * rng_uniform(1, stream, (uint64_t)i) - 1;
        tensor_set(&x, i, dtype_is_float(t->dt) ? u : 0);
    }
    for (int64_t i = PERIOD; i < n; i += PERIOD)
        memcpy(to + (size_t)i * each, to, (size_t)MIN(PERIOD, n - i) * each);
}

/* One copy of the operands is made of numbers, the others of it. */
static void make_pool(Trial *t, int64_t spread_bytes) {
    const Func *f = t->p->entry;
    for (int i = 0; i < f->narg; i++) t->copy_bytes += room_of(&f->arg[i]->ty);
    for (int i = 0; i < f->nret; i++)
        if (f->alias[i] < 0) t->copy_bytes += room_of(&f->ret[i]->ty);
    t->copies = (spread_bytes + t->copy_bytes - 1) / MAX(t->copy_bytes, 1);
    t->copies = MAX(MIN(t->copies, MOST_COPIES), 1);
    size_t bytes = (size_t)(t->copies * t->copy_bytes);
    t->pool =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (t->pool == MAP_FAILED)
        fail(EXIT_MEMORY, "no %.0f MB of memory for a trial; --quick takes less",
             (double)bytes / 1e6);
    madvise(t->pool, bytes, MADV_HUGEPAGE);
    char *at = t->pool;
    for (int i = 0; i < f->narg; at += room_of(&f->arg[i++]->ty))
        fill(at, &f->arg[i]->ty, (uint64_t)i);
    memset(at, 0, (size_t)(t->pool + t->copy_bytes - at));
    for (int64_t k = 1; k < t->copies; k++)
        memcpy(t->pool + k * t->copy_bytes, t->pool, (size_t)t->copy_bytes);
}

Trial *trial_make(const TrialOptions *o, const char *func) {
    Arena *mem = arena_new();
    Trial *t = NEW(mem, Trial);
    t->mem = mem;
    t->turns = o->turns;
    t->pause_seconds = o->pause_seconds;
    Text text = text_new(mem);
    text_add(&text, "module @trial mesh(%s) level(%s)\nfunc @trial:model%s\n", o->mesh,
             o->fused ? "fused" : "local", func);
    const char *passes = o->fused ? "memplan" : "epilogue,arrange,fuse,memplan";
    Module *m = module_parse(mem, "a trial", text.s, text.n);
    module_verify(m, NULL, NULL);
    PassOptions po = pass_options_default();
    CompileOptions co = {.threads = o->threads};
    t->p = program_make(mem, m, passes, &po, &co);
    program_allocate(t->p, NULL, 0);
    make_pool(t, o->spread_bytes);
    return t;
}

static void run_once(Trial *t) {
    Program *p = t->p;
    const Func *f = p->entry;
    char *at = t->pool + t->next * t->copy_bytes;
    t->next = (t->next + 1) % t->copies;
    for (int i = 0; i < f->narg; at += room_of(&f->arg[i++]->ty)) p->arg[i] = at;
    for (int i = 0; i < f->nret; i++) {
        int a = f->alias[i];
        p->ret[i] = a >= 0 ? p->arg[a] : at;
        if (a < 0) at += room_of(&f->ret[i]->ty);
    }
    program_run(p);
}

static void pause_for(double seconds) {
    for (double until = clock_seconds() + seconds; clock_seconds() < until;) {
    }
}

static double seconds_of_runs(Trial *t, int64_t n) {
    if (t->pause_seconds > 0) pause_for(t->pause_seconds);
    double start = clock_seconds();
    for (int64_t i = 0; i < n; i++) run_once(t);
    return (clock_seconds() - start) / (double)n;
}

/* An op of a step takes what it takes on average, disturbances of every day included, of which
 * the fastest runs know nothing; the slowest eighth, one run at least, is left out, for those of
 * once an hour. */
static double mean_of_most(double *took, int64_t runs) {
    int64_t most = runs - MAX(runs / 8, (int64_t)1);
    double sum = 0;
    sort_doubles(took, (size_t)runs);
    for (int64_t i = 0; i < most; i++) sum += took[i];
    return sum / (double)most;
}

double ranks_mean(double mine) {
    if (comm_size() == 1) return mine;
    Arena *mem = arena_new();
    const double *all = comm_gather(mem, &mine, sizeof mine);
    double sum = 0;
    for (int i = 0; i < comm_size(); i++) sum += all[i];
    arena_free(mem);
    return sum / comm_size();
}

/* Sooner or later in a step all ranks wait for the slowest one. */
static double ranks_most(double mine) {
    if (comm_size() == 1) return mine;
    Arena *mem = arena_new();
    const double *all = comm_gather(mem, &mine, sizeof mine);
    double most = mine;
    for (int i = 0; i < comm_size(); i++) most = MAX(most, all[i]);
    arena_free(mem);
    return most;
}

double trial_seconds(Trial *t, double seconds) {
    double took[MOST_RUNS];
    seconds_of_runs(t, 2);
    if (comm_size() > 1) comm_barrier();
    took[0] = seconds_of_runs(t, 1);
    double once = MAX(ranks_mean(took[0]), 1e-9);
    int64_t each = t->pause_seconds > 0 ? 1 : (int64_t)MAX(1, LEAST_SECONDS / once);
    int64_t runs = (int64_t)(seconds / (t->pause_seconds + once * (double)each));
    runs = MAX(MIN(runs, MOST_RUNS), LEAST_RUNS);
    if (comm_size() > 1) comm_barrier();
    if (t->turns) return ranks_most(seconds_of_runs(t, runs * each));
    for (int64_t i = each == 1; i < runs; i++) took[i] = seconds_of_runs(t, each);
    return ranks_most(mean_of_most(took, runs));
}

void trial_free(Trial *t) {
    munmap(t->pool, (size_t)(t->copies * t->copy_bytes));
    program_free(t->p);
    arena_free(t->mem);
}

double trial_of(const TrialOptions *o, const char *func, double seconds) {
    Trial *t = trial_make(o, func);
    double result = trial_seconds(t, seconds);
    trial_free(t);
    return result;
}
