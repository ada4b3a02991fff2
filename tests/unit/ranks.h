/* ranks.h - for tests that run stator on several MPI ranks through `stator launch`: the
 * configurations, the processes of the ranks, and what run folders must have in common.
 */
#ifndef STATOR_TESTS_RANKS_H
#define STATOR_TESTS_RANKS_H
#include "../../ir/json.h"
#include "../../runtime/metrics.h"
#include "../mpi.h"
#include "driven.h"
#include <dirent.h>

#pragma GCC diagnostic ignored "-Wunused-function" /* each test uses some of it */

/* ---- command lines ---- */

/* Under sanitizers everything is slower by some times, so less of it is run. */
#ifdef __SANITIZE_ADDRESS__
#define RANKS_SANITIZED 1
#else
#define RANKS_SANITIZED 0
#endif

#define ZERO_LEVEL(n)                                                                    \
    "--parallel_config.optimizer_shard True "                                            \
    "--parallel.parallel_optimizer_config.optimizer_level level" #n                      \
    " --parallel.parallel_optimizer_config.parallel_optimizer_threshold 0 "

/* Starts training on `ranks` ranks (1: without launch); `more` are more words. */
static pid_t ranks_start(int ranks, const char *config, const char *run,
                         const char *more) {
    if (!mpi_available()) test_skip("there is no mpirun");
    driven_prepare = mpi_environment;
    const char *launch = ranks > 1 ? arena_printf(mem(), "launch -n %d ", ranks) : "";
    return stator_start(arena_printf(mem(), "%strain %s --output_dir %s %s", launch,
                                     config, run, more));
}

static void ranks_end(pid_t pid, int want, const char *what) {
    int code = stator_wait(pid);
    if (code != want)
        test_fail(__FILE__, __LINE__, "exit code %d, wanted %d: %s\n%s", code, want, what,
                  said());
}

static void ranks_run(int ranks, const char *config, const char *run, const char *more) {
    ranks_end(ranks_start(ranks, config, run, more), 0,
              arena_printf(mem(), "%d ranks %s", ranks, more));
}

/* Two ranks under plain mpirun, each with words of its own; the exit code. */
static int ranks_pair(const char *flags0, const char *words0, const char *flags1,
                    const char *words1) {
    const char *first = arena_printf(mem(), "%s train %s", stator_program(), words0);
    const char *second = arena_printf(mem(), ": -n 1 %s %s train %s", flags1,
                                      stator_program(), words1);
    return mpi_run(1, flags0, arena_printf(mem(), "%s %s", first, second));
}

/* ---- configurations ---- */

static const char ranks_golden_yaml[] = "seed: 1\n"
                                        "optimizer:\n"
                                        "  type: AdamW\n"
                                        "  beta1: 0.9\n"
                                        "  beta2: 0.95\n"
                                        "  eps: 1.e-8\n"
                                        "  weight_decay: 0.1\n"
                                        "lr_schedule:\n"
                                        "  type: cosine\n"
                                        "  learning_rate: 3.e-3\n"
                                        "  lr_end: 3.e-4\n"
                                        "  warmup_steps: 4\n"
                                        "  total_steps: 20\n"
                                        "runner_wrapper:\n"
                                        "  use_clip_grad: True\n"
                                        "  max_grad_norm: 1.0\n"
                                        "init_from: %s\n"
                                        "train_dataset:\n"
                                        "  data_loader:\n"
                                        "    type: TensorBatches\n"
                                        "    dataset_dir: %s/expected.safetensors\n";

static const char *ranks_golden(const char *name) {
    return arena_printf(mem(), "%s/golden/%s", tests_dir(), name);
}

/* A configuration that trains a golden case for its 20 steps; its path. */
static const char *ranks_golden_config(const char *name) {
    const char *folder = ranks_golden(name);
    const char *config = in_temp(arena_printf(mem(), "%s.yaml", name));
    write_text(config, arena_printf(mem(), ranks_golden_yaml, folder, folder));
    return config;
}

static const char ranks_small_yaml[] =
    "seed: 7\n"
    "model:\n"
    "  model_config:\n"
    "    type: GPT2Config\n"
    "    vocab_size: 256\n"
    "    seq_length: 16\n"
    "    hidden_size: 16\n"
    "    num_layers: 2\n"
    "    num_heads: 2\n"
    "    dropout_prob: 0.1\n"
    "    attention_probs_dropout_prob: 0.1\n"
    "train_dataset:\n"
    "  data_loader: {type: TextFile, dataset_dir: %s}\n"
    "runner_config: {max_steps: %d, batch_size: 2}\n"
    "parallel_config: {micro_batch_num: 2}\n"
    "lr_schedule: {type: cosine, learning_rate: 1.e-3, warmup_steps: 3}\n"
    "callbacks:\n"
    "  - type: CheckpointMonitor\n"
    "    save_checkpoint_steps: %d\n"
    "    keep_checkpoint_max: 3\n";

/* Text to train on, one byte a token, always the same; its path. */
static const char *ranks_text(void) {
    const char *path = in_temp("text.txt");
    Text t = text_new(mem());
    uint64_t random = 88172645463325252u;
    for (int i = 0; i < 500; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        text_add(&t, "%s %d\n", random % 3 ? "one and one is" : "two and two is",
                 (int)(random >> 20 & 63));
    }
    write_text(path, t.s);
    return path;
}

/* A tiny model with dropout. */
static const char *ranks_small_config(int steps, int save_every) {
    const char *config = in_temp("small.yaml");
    write_text(config,
               arena_printf(mem(), ranks_small_yaml, ranks_text(), steps, save_every));
    return config;
}

/* ---- what a run left ---- */

static const MetricsRow *ranks_metrics(const char *run, int *n) {
    return metrics_read(mem(), path_join(mem(), run, "metrics.jsonl"), n);
}

/* The losses of a golden case's 20 steps, within 1e-5; returns the worst difference. */
static double ranks_expect_curve(const char *name, const char *run, const char *what) {
    const char *path = path_join(mem(), ranks_golden(name), "trajectory.json");
    const Json *file = json_read(mem(), path, 1 << 20, EXIT_DATA);
    double worst = 0;
    int n, i = 0;
    const MetricsRow *row = ranks_metrics(run, &n);
    for (const Json *s = json_need(file, "steps")->first; s; s = s->next, i++) {
        double loss = json_f64(json_need(s, "loss"));
        double norm = json_f64(json_need(s, "grad_norm"));
        EXPECT(i < n && row[i].step == i + 1);
        double off = fabs(row[i].loss - loss) / loss;
        if (!(off <= 1e-5) || !(fabs(row[i].grad_norm - norm) <= 1e-4 * norm))
            test_fail(__FILE__, __LINE__,
                      "%s %s: step %d has loss %.9g and norm %.9g, wanted %.9g and %.9g",
                      name, what, i + 1, row[i].loss, row[i].grad_norm, loss, norm);
        worst = fmax(worst, off);
    }
    EXPECT(i == 20 && n == 20);
    return worst;
}

static void ranks_expect_same_losses(const char *a, const char *b, int steps) {
    int na, nb;
    const MetricsRow *x = ranks_metrics(a, &na), *y = ranks_metrics(b, &nb);
    EXPECT(na == steps && nb == steps);
    for (int i = 0; i < steps; i++) {
        if (x[i].step != i + 1 || y[i].step != i + 1 || x[i].loss != y[i].loss ||
            x[i].grad_norm != y[i].grad_norm || x[i].lr != y[i].lr)
            test_fail(__FILE__, __LINE__, "step %d: loss %.9g, and %.9g in the other run",
                      i + 1, x[i].loss, y[i].loss);
    }
}

/* The checkpoints of a step hold the same tensors, bit by bit, in the same files. */
static void ranks_expect_same_tensors(const char *a, const char *b, int step) {
    const char *in_a = arena_printf(mem(), "%s/ckpt/step_%08d", a, step);
    const char *in_b = arena_printf(mem(), "%s/ckpt/step_%08d", b, step);
    DIR *d = opendir(in_a);
    int files = 0;
    if (!d) test_fail(__FILE__, __LINE__, "there is no %s", in_a);
    for (struct dirent *e; (e = readdir(d));) {
        if (!strstr(e->d_name, ".safetensors")) continue;
        files++;
        if (!same_file(path_join(mem(), in_a, e->d_name),
                       path_join(mem(), in_b, e->d_name)))
            test_fail(__FILE__, __LINE__, "%s differs between %s and %s", e->d_name, a,
                      b);
    }
    closedir(d);
    EXPECT(files >= 2);
}

static const char *ranks_log(const char *run, int rank) {
    const char *path = arena_printf(mem(), "%s/logs/rank_%d.log", run, rank);
    return file_read(mem(), path, 1 << 24, NULL, EXIT_DATA);
}

/* ---- processes ---- */

/* The parent of a process; -1: it is gone. */
static pid_t ranks_parent(pid_t pid) {
    char line[512];
    int parent = -1;
    FILE *f = fopen(arena_printf(mem(), "/proc/%d/stat", (int)pid), "re");
    if (!f) return -1;
    const char *end = fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    if (!end || sscanf(end + 1, " %*c %d", &parent) != 1) parent = -1;
    fclose(f);
    return parent;
}

/* The rank that mpirun gave a process; -1: none. */
static int ranks_number(pid_t pid) {
    static const char name[] = "OMPI_COMM_WORLD_RANK=";
    static char text[1 << 16];
    FILE *f = fopen(arena_printf(mem(), "/proc/%d/environ", (int)pid), "re");
    if (!f) return -1;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    for (const char *s = text; s < text + n; s += strlen(s) + 1)
        if (!strncmp(s, name, sizeof name - 1)) return atoi(s + sizeof name - 1);
    return -1;
}

/* Puts the processes of the ranks below `launch` into pid[rank]; how many there are. */
static int ranks_find(pid_t launch, pid_t *pid, int ranks) {
    DIR *d = opendir("/proc");
    int found = 0;
    memset(pid, 0, (size_t)ranks * sizeof *pid);
    for (struct dirent *e; d && (e = readdir(d));) {
        pid_t p = (pid_t)atoi(e->d_name), parent = p > 0 ? ranks_parent(p) : -1;
        if (parent <= 1 || ranks_parent(parent) != launch) continue;
        int rank = ranks_number(p);
        if (rank < 0 || rank >= ranks || pid[rank]) continue;
        pid[rank] = p;
        found++;
    }
    if (d) closedir(d);
    return found;
}

/* Waits until all ranks run. */
static void ranks_wait_start(pid_t launch, pid_t *pid, int ranks) {
    for (int i = 0; i < 6000; i++, usleep(5000))
        if (ranks_find(launch, pid, ranks) == ranks) return;
    kill(launch, SIGTERM);
    test_fail(__FILE__, __LINE__, "%d ranks did not start:\n%s", ranks, said());
}

/* Waits until the run has n lines of metrics; false: it ended before. */
static bool ranks_wait_steps(pid_t launch, const char *run, int n) {
    const char *path = path_join(mem(), run, "metrics.jsonl");
    for (int i = 0; i < 60000; i++, usleep(1000)) {
        int rows = 0;
        siginfo_t info = {0};
        if (file_exists(path)) metrics_read(mem(), path, &rows);
        if (rows >= n) return true;
        if (waitid(P_PID, (id_t)launch, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info.si_pid == launch)
            return false;
    }
    kill(launch, SIGTERM);
    test_fail(__FILE__, __LINE__, "no step %d:\n%s", n, said());
}

/* Threads of a process that have not ended. Orphans stay in the table of processes until
 * somebody waits for them: they do not count. */
static int ranks_threads(pid_t pid) {
    DIR *d = opendir(arena_printf(mem(), "/proc/%d/task", (int)pid));
    int alive = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char line[512];
        const char *path =
            arena_printf(mem(), "/proc/%d/task/%s/stat", (int)pid, e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (!f) continue;
        const char *end = fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
        alive += end && end[1] && !strchr("ZXx", end[2]);
        fclose(f);
    }
    if (d) closedir(d);
    return alive;
}

/* None of the ranks is left after `seconds` more. */
static void ranks_expect_gone(const pid_t *pid, int ranks, double seconds) {
    double until = clock_seconds() + seconds;
    for (int r = 0; r < ranks; r++) {
        while (ranks_threads(pid[r]) && clock_seconds() < until) usleep(1000);
        if (ranks_threads(pid[r]))
            test_fail(__FILE__, __LINE__, "rank %d outlives launch:\n%s", r, said());
    }
}

#endif
