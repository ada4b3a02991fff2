/* train_step.c - how much of the machine a training step uses: GPT-2 124M, 4 sequences of
 * 1024 tokens, f32, one micro-batch, on random tokens.
 *     bench_train_step [--a.b.c VALUE ...]
 * Keys of a configuration change the shape, e.g. --model.model_config.num_layers 2,
 * --runner_config.batch_size 1, --context.threads 1; --runner_config.max_steps is the
 * number of timed steps (2), after one that warms up. With
 * --model.model_config.compute_dtype bfloat16 the base is the peak of the bf16 units. The time
 * is also compared with the bound of the step (docs/plan.md) at rates measured here. */
#include "base/rng.h"
#include "codegen/codegen.h"
#include "frontend/model/strategy.h"
#include "frontend/model/weights.h"
#include "passes/model/work.h"
#include "runtime/core/peak.h"
#include <math.h>

enum { TIMED_STEPS = 2 };
static const double mark = 0.55; /* share of the peak that a step must reach */

static void fill_tokens(int32_t *to, int64_t n, int64_t vocab, uint64_t stream) {
    for (int64_t i = 0; i < n; i++)
        to[i] = (int32_t)((double)vocab * rng_uniform(1, stream, (uint64_t)i));
}

static void fill_inputs(const Program *p, const ModelSpec *s, ModelShape shape) {
    const Func *f = p->entry;
    for (int i = 0; i < f->narg; i++)
        if (arg_role(f, i) == ARG_param) weights_init(f, i, NULL, 0, p->arg[i], 1);
    fill_tokens(program_slot(p, ARG_tokens), shape.batch * shape.seq, s->vocab, 1);
    fill_tokens(program_slot(p, ARG_labels), shape.batch * shape.seq, s->vocab, 2);
    *(float *)program_slot(p, ARG_lr) = 1e-4f;
    *(float *)program_slot(p, ARG_weight_decay) = 0.1f;
    *(float *)program_slot(p, ARG_bias_correction1) = (float)(1 - 0.9);
    *(float *)program_slot(p, ARG_bias_correction2) = (float)(1 - 0.95);
}

static double run_once(Program *p) {
    double start = clock_seconds();
    program_run(p);
    double seconds = clock_seconds() - start, loss = *(float *)p->ret[0];
    printf("  %.3f s  loss %.4f  grad norm %.3f\n", seconds, loss, *(float *)p->ret[1]);
    fflush(stdout);
    if (!isfinite(loss)) die("the loss is not a number");
    return seconds;
}

/* The best of a few, so that the base of the ratio is not a bad moment. */
static double peak_flops(int threads, bool narrow, const char **unit) {
    double best = 0;
    for (int i = 0; i < 5; i++) {
        double peak = narrow ? peak_bf16(threads, PEAK_SECONDS, unit)
                             : peak_f32(threads, PEAK_SECONDS, unit);
        best = fmax(best, 1e9 * peak);
    }
    return best > 0 ? best : peak_flops(threads, false, unit);
}

static WorkRates measured_rates(int threads) {
    const char *unit;
    WorkRates r = {.f32_flops = peak_flops(threads, false, &unit),
                   .bf16_flops = peak_flops(threads, true, &unit)};
    for (int i = 0; i < 2; i++) r.bytes = fmax(r.bytes, memory_bandwidth(threads));
    return r;
}

static void compare_with_bound(const Work *needed, WorkRates r, double seconds) {
    double bound = work_bound_total(needed, &r);
    printf("train_step: %.3f s a step, bound %.3f s (", seconds, bound);
    for (int k = 0, n = 0; k < WORK_KINDS; k++) {
        double of = work_bound_seconds(needed, (WorkKind)k, &r);
        if (of > 0) printf("%s%s %.3f", n++ ? ", " : "", work_kind_name[k], of);
    }
    printf("; %.1f GB/s): the bound is %.2f of the time\n", r.bytes / 1e9,
           bound / seconds);
}

int main(int argc, char **argv) {
    Arena *mem = arena_new();
    Config *cfg = config_load(mem, CONFIGS_DIR "/gpt2_124m.yaml", argc - 1, argv + 1);
    ModelSpec s = model_spec_of_config(cfg);
    ModelShape shape = {.batch = cfg->runner_config_batch_size,
                        .seq = cfg->model_seq_length};
    PassOptions po = strategy_pass_options(cfg);
    po.micro_batches = 1;
    po.decay_weights = true;
    po.clip_norm = 1;
    po.tile_bytes = cfg->context_tile_size;
    CompileOptions co = {.cpu = cfg->context_cpu, .threads = (int)cfg->context_threads};
    Module *m = model_build(mem, &s, shape, MODEL_TRAIN);
    double flops = model_flops(module_clone(mem, m));
    Work needed = {0};
    work_add_needed(mem, module_clone(mem, m), &po, &needed);
    Program *p = program_make(mem, m, train_passes, &po, &co);
    work_add_update(mem, p->entry, &needed);
    program_allocate(p, NULL, (uint64_t)cfg->context_max_device_memory);
    fill_inputs(p, &s, shape);

    double tokens = (double)(shape.batch * shape.seq);
    flops /= tokens; /* of a token */
    printf("train_step: %lld layers of %lld, vocabulary %lld, %lld x %lld tokens, "
           "%d threads, %.2f GB planned\n",
           (long long)s.layers, (long long)s.hidden, (long long)s.vocab,
           (long long)shape.batch, (long long)shape.seq, p->threads,
           (double)p->plan.total_bytes / 1e9);
    const char *unit;
    double peak = peak_flops(p->threads, po.narrow, &unit);
    printf("  %.1f GFLOP/s %s peak, %.3f GFLOP a token\n", peak / 1e9, unit, flops / 1e9);

    int64_t steps =
        cfg->runner_config_max_steps > 0 ? cfg->runner_config_max_steps : TIMED_STEPS;
    double seconds = 0;
    run_once(p);
    for (int64_t i = 0; i < steps; i++) seconds += run_once(p);
    WorkRates after =
        measured_rates(p->threads); /* other guests may have had a core before */
    double *same = po.narrow ? &after.bf16_flops : &after.f32_flops;
    peak = *same = fmax(peak, *same);
    double per_second = tokens * (double)steps / seconds, mfu = per_second * flops / peak;
    printf("train_step: %.1f tokens/s, MFU %.3f of the %s peak, %.1f GFLOP/s before or "
           "after; the mark is %.2f, ratio %.2f\n",
           per_second, mfu, unit, peak / 1e9, mark, mfu / mark);
    compare_with_bound(&needed, after, seconds / (double)steps);
    program_free(p);
    arena_free(mem);
    return 0;
}
