/* cmd_plan.c - stator plan: what training would take, on any number of ranks. */
#include "frontend/config/commands.h"
#include "frontend/config/machine_file.h"
#include "frontend/config/options.h"
#include "frontend/plan/plan.h"
#include "frontend/plan/plan_trace.h"
#include "frontend/search/automatic.h"
#include "runtime/core/peak.h"
#include "runtime/core/rt.h"

static void draw_schedule(Arena *mem, const Plan *p, const char *path) {
    if (!p->pipe)
        fail(EXIT_CONFIG,
             "--svg %s: there is one stage, and so no schedule to draw\n    hint: "
             "--parallel_config.pipeline_stage 2, or more, with as many "
             "parallel_config.micro_batch_num",
             path);
    Timeline l =
        p->time ? plan_time_timeline(mem, p)
                : plan_schedule_timeline(mem, p->pipe->schedule,
                                         (const double(*)[TASK_KINDS])p->pipe->flops);
    Text picture = timeline_svg(mem, &l);
    file_write(path, picture.s, picture.n, EXIT_DATA);
}

static void write_trace(const Plan *p, const char *path) {
    if (!p->machine)
        fail(EXIT_CONFIG,
             "--trace %s needs a machine, for when each op runs\n    hint: --machine "
             "FILE.yaml, as stator calibrate makes it or as in machines/",
             path);
    plan_trace(p, path);
}

static double best_of(double (*measure)(int threads), int threads) {
    enum { TIMES = 2 };
    double best = 0;
    for (int i = 0; i < TIMES; i++) best = MAX(best, measure(threads));
    return best;
}

static double f32_peak(int threads) {
    const char *unit;
    return peak_f32(threads, PEAK_SECONDS, &unit);
}

static double bf16_peak(int threads) {
    const char *unit;
    return peak_bf16(threads, PEAK_SECONDS, &unit);
}

/* As on the command line, or measured with the threads of a rank. A CPU without a unit for
 * bf16 makes its products at the rate of f32. */
static void set_rates(const Options *o, Plan *p) {
    static const char *const names[] = {"--peak_gflops", "--peak_bf16_gflops",
                                        "--bandwidth_gbytes"};
    bool measure = option_given(o, "--measure"), wanted = measure;
    int threads = p->job->threads;
    for (int i = 0; i < ARRAY_LEN(names); i++) wanted |= option_given(o, names[i]);
    if (!wanted) return;
    if (measure) rt_set_threads(threads);
    WorkRates r = {.f32_flops = 1e9 * option_number(o, names[0]),
                   .bf16_flops = 1e9 * option_number(o, names[1]),
                   .bytes = 1e9 * option_number(o, names[2])};
    if (measure && !(r.f32_flops > 0)) r.f32_flops = 1e9 * best_of(f32_peak, threads);
    if (measure && !(r.bf16_flops > 0)) r.bf16_flops = 1e9 * best_of(bf16_peak, threads);
    if (measure && !(r.bf16_flops > 0)) r.bf16_flops = r.f32_flops;
    if (measure && !(r.bytes > 0)) r.bytes = best_of(memory_bandwidth, threads);
    plan_set_rates(p, r);
}

int cmd_plan(int argc, char **argv) {
    double start = clock_seconds();
    const Options *o = options_take(COMMAND_plan, argc, argv);
    if (!o) return 0;
    Arena *mem = o->mem;
    if (argc < 2)
        fail(EXIT_CONFIG,
             "stator plan needs a configuration: stator plan CONFIG.yaml "
             "[-n RANKS] [--json] [--svg FILE.svg] [--measure] [--a.b.c VALUE "
             "...]");
    ConfigWords words = {config_files(mem, o->nwords ? o->word[0] : NULL), o->nflags,
                         o->flag};
    int64_t ranks = option_int(o, "-n", 0);
    Config *cfg = automatic_load(mem, &words, ranks);
    Plan p = plan_of_config(mem, cfg, ranks);
    double seconds = clock_seconds() - start;
    const Machine *machine = config_machine(cfg);
    if (machine) plan_set_machine(mem, &p, machine, 0);
    set_rates(o, &p);
    const char *svg = option_text(o, "--svg");
    if (svg) draw_schedule(mem, &p, svg);
    const char *trace = option_text(o, "--trace");
    if (trace) write_trace(&p, trace);
    Text out = text_new(mem);
    if (option_given(o, "--json")) {
        text_add(&out, "{\n");
        plan_json(&p, &out);
        text_add(&out, "\n}\n");
    } else {
        plan_print(mem, &p, seconds, &out);
    }
    text_print(&out);
    plan_check_memory(&p);
    arena_free(mem);
    return 0;
}
