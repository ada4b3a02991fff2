/* runs.h - for tests of stator train: configurations to train, and what run folders must
 * have in common. */
#ifndef STATOR_TESTS_RUNS_H
#define STATOR_TESTS_RUNS_H
#include "base/json.h"
#include "driven.h"
#include "frontend/config/commands.h"
#include "runtime/data/indexed_write.h"
#include "runtime/run/metrics.h"
#include <dirent.h>

#pragma GCC diagnostic ignored "-Wunused-function" /* each test uses some of it */

static uint64_t runs_random(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

/* ---- configurations ---- */

static const char runs_golden_yaml[] = "seed: 1\n"
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

static const char *runs_golden(const char *name) {
    return arena_printf(mem(), "%s/golden/%s", tests_dir(), name);
}

/* A configuration that trains a golden case for its 20 steps; its path. */
static const char *runs_golden_config(const char *name) {
    const char *folder = runs_golden(name);
    const char *config = in_temp(arena_printf(mem(), "%s.yaml", name));
    write_text(config, arena_printf(mem(), runs_golden_yaml, folder, folder));
    return config;
}

static const char runs_small_yaml[] =
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
static const char *runs_text(void) {
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

/* Flags that train on token numbers below 256 of a .bin/.idx pair, for models with a
 * larger vocabulary, which do not take bytes. */
static const char *runs_pair_words(void) {
    enum { TOKENS = 40000 };
    static uint16_t tokens[TOKENS];
    const char *prefix = in_temp("tokens");
    int32_t length = TOKENS, one = 1;
    uint64_t random = 88172645463325252u;
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (uint16_t)(runs_random(&random) >> 40 & 255);
    IndexedPart part = {tokens, sizeof tokens, &length, 1, &one, 1};
    IndexedWriter *w = indexed_write_open(mem(), prefix, 256);
    indexed_write_add(w, &part);
    indexed_write_complete(w);
    indexed_write_publish(w);
    indexed_write_close(w);
    return arena_printf(mem(),
                        "--train_dataset.data_loader.type MegatronIndexed "
                        "--dataset_dir %s ",
                        prefix);
}

/* A tiny model with dropout. */
static const char *runs_small_config(int steps, int save_every) {
    const char *config = in_temp("small.yaml");
    write_text(config,
               arena_printf(mem(), runs_small_yaml, runs_text(), steps, save_every));
    return config;
}

/* What trains a configuration into a folder; `more` are more words. */
static const char *runs_words(const char *config, const char *run, const char *more) {
    return arena_printf(mem(), "train %s --output_dir %s %s", config, run, more);
}

/* ---- what a run left ---- */

static const MetricsRow *runs_metrics(const char *run, int *n) {
    return metrics_read(mem(), path_join(mem(), run, "metrics.jsonl"), n);
}

static int runs_steps(const char *run) {
    int n = 0;
    if (file_exists(path_join(mem(), run, "metrics.jsonl"))) runs_metrics(run, &n);
    return n;
}

/* A checkpoint is being written. */
static bool runs_is_saving(const char *run) {
    DIR *d = opendir(path_join(mem(), run, "ckpt"));
    bool saving = false;
    for (struct dirent *e; d && (e = readdir(d));)
        saving = saving || strstr(e->d_name, ".tmp");
    if (d) closedir(d);
    return saving;
}

/* Steps and losses of validation. A perplexity of the loss as it was read may have another
 * last digit. */
static const char *runs_points(const char *run) {
    const char *path = path_join(mem(), run, RUN_VALIDATION);
    Text t = text_new(mem());
    for (const char *p = file_read(mem(), path, 1 << 16, NULL, EXIT_DATA); *p;) {
        const char *end = strchr(p, ',');
        EXPECT((end = strchr(end + 1, ',')) != NULL);
        text_add(&t, "%.*s\n", (int)(end - p), p);
        p = strchr(end, '\n') + 1;
    }
    return t.s;
}

/* The 20 steps of a golden case, losses and gradient norms within these relative
 * differences; returns the worst one of a loss. */
static double runs_expect_curve(const char *name, const char *run, const char *what,
                                double loss_off, double norm_off) {
    const char *path = path_join(mem(), runs_golden(name), "trajectory.json");
    const Json *file = json_read(mem(), path, 1 << 20, EXIT_DATA);
    double worst = 0;
    int n, i = 0;
    const MetricsRow *row = runs_metrics(run, &n);
    for (const Json *s = json_need(file, "steps")->first; s; s = s->next, i++) {
        double loss = json_f64(json_need(s, "loss"));
        double norm = json_f64(json_need(s, "grad_norm"));
        EXPECT(i < n && row[i].step == i + 1);
        EXPECT_NEAR(row[i].lr, json_f64(json_need(s, "lr")), 1e-12);
        EXPECT(row[i].tokens > 0 && row[i].seconds > 0 && row[i].mfu >= 0);
        double off = fabs(row[i].loss - loss) / loss;
        if (!(off <= loss_off) || !(fabs(row[i].grad_norm - norm) <= norm_off * norm))
            test_fail(__FILE__, __LINE__,
                      "%s %s: step %d has loss %.9g and norm %.9g, wanted %.9g and %.9g",
                      name, what, i + 1, row[i].loss, row[i].grad_norm, loss, norm);
        worst = fmax(worst, off);
    }
    EXPECT(i == 20 && n == 20);
    return worst;
}

static void runs_expect_same_losses(const char *a, const char *b, int steps) {
    int na, nb;
    const MetricsRow *x = runs_metrics(a, &na), *y = runs_metrics(b, &nb);
    EXPECT(na == steps && nb == steps);
    for (int i = 0; i < steps; i++) {
        if (x[i].step != i + 1 || y[i].step != i + 1 || x[i].loss != y[i].loss ||
            x[i].grad_norm != y[i].grad_norm || x[i].lr != y[i].lr)
            test_fail(__FILE__, __LINE__, "step %d: loss %.9g, and %.9g in the other run",
                      i + 1, x[i].loss, y[i].loss);
    }
}

/* Losses of the first steps of two runs, which differ in the order of sums alone. */
static void runs_expect_near_losses(const char *a, const char *b, int steps) {
    int na, nb;
    const MetricsRow *x = runs_metrics(a, &na), *y = runs_metrics(b, &nb);
    EXPECT(na == steps && nb == steps);
    for (int i = 0; i < steps; i++) {
        if (fabs(x[i].loss - y[i].loss) <= 1e-5 * x[i].loss) continue;
        test_fail(__FILE__, __LINE__, "step %d: loss %.9g, and %.9g in the other run",
                  i + 1, x[i].loss, y[i].loss);
    }
}

/* The checkpoints of a step hold the same tensors, bit by bit, in the same files. */
static void runs_expect_same_tensors(const char *a, const char *b, int step) {
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

/* Memory that a process has, without pages of files. */
static int64_t runs_resident_bytes(pid_t pid) {
    char line[256];
    long long kb, sum = 0;
    FILE *f = fopen(arena_printf(mem(), "/proc/%d/status", (int)pid), "re");
    EXPECT(f != NULL);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %lld", &kb) == 1 ||
            sscanf(line, "RssShmem: %lld", &kb) == 1)
            sum += kb;
    fclose(f);
    EXPECT(sum > 0);
    return (int64_t)sum * 1024;
}

/* Waits until the run has n lines of metrics; false: it ended before. */
static bool runs_wait_steps(pid_t pid, const char *run, int n) {
    for (int i = 0; i < 60000; i++, usleep(1000)) {
        siginfo_t info = {0};
        if (runs_steps(run) >= n) return true;
        if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info.si_pid == pid)
            return false;
    }
    kill(pid, SIGTERM);
    test_fail(__FILE__, __LINE__, "no step %d:\n%s", n, said());
}

#endif
