/* cmd_simulate.c - stator simulate: a strategy tried out with all of its ranks in this
 * process. START HERE: the ways to do that are rows of a table. */
#include "frontend/config/commands.h"
#include "frontend/config/machine_file.h"
#include "frontend/config/options.h"
#include "frontend/plan/plan_trace.h"
#include "frontend/search/automatic.h"
#include "frontend/simulate/seconds.h"
#include "frontend/simulate/simulate.h"

typedef struct Given {
    Arena *mem;
    const Options *o;
    Config *cfg;
    Plan plan; /* of the configuration */
    double plan_seconds;
} Given;

/* Numbers: every rank computes its part; exit code EXIT_DIFFERS if one rank would get
 * others. */
static int simulate_numbers(Given *g) {
    SimulateJob job = simulate_shrink(g->mem, &g->plan, option_given(g->o, "--full"));
    Simulation s = {.mem = g->mem,
                    .plan = &g->plan,
                    .job = &job,
                    .ir = option_text(g->o, "--ir"),
                    .steps = option_int(g->o, "--steps", 2)};
    s.data = simulate_data_open(g->mem, &job, s.steps, option_given(g->o, "--random"));
    simulate_run(&s);
    data_close(s.data.source);
    Text out = text_new(g->mem);
    simulate_print(&s, &out);
    text_print(&out);
    return simulate_passes(&s) ? 0 : EXIT_DIFFERS;
}

/* NULL: it is not asked for. */
static void write_pictures(const Seconds *s, const char *svg, const char *trace) {
    int shown = seconds_shown(s);
    RankStep step = seconds_step(s, (RankShow){shown, trace != NULL});
    if (svg) {
        Timeline l = seconds_timeline(s, &step, shown);
        Text picture = timeline_svg(s->mem, &l);
        file_write(svg, picture.s, picture.n, EXIT_DATA);
    }
    if (trace) plan_trace_write(&s->program, &step, shown, trace);
}

/* Time: how long a step takes when ranks or links are slow. */
static int simulate_seconds(Given *g) {
    const char *svg = option_text(g->o, "--svg");
    const char *trace = option_text(g->o, "--trace");
    bool varies =
        option_given(g->o, "--jitter") || option_given(g->o, "--message_jitter");
    const Machine *machine = config_machine(g->cfg);
    if (!machine)
        fail(EXIT_CONFIG,
             "--seconds needs a machine, for what its ranks do in a second\n"
             "    hint: --machine FILE.yaml, as stator calibrate makes it or "
             "as in machines/");
    if (svg && !g->plan.pipe)
        fail(EXIT_CONFIG,
             "--svg %s: there is one stage, and so no tasks to draw\n    hint: "
             "--parallel_config.pipeline_stage 2, or more",
             svg);
    Seconds s = {.mem = g->mem,
                 .plan_seconds = g->plan_seconds,
                 .steps = option_int(g->o, "--steps", varies ? 20 : 1)};
    s.noise.seed = (uint64_t)g->cfg->seed;
    seconds_open(&s, &g->plan, machine);
    seconds_noise(&s, g->o);
    if (trace) plan_trace_check(&s.program);
    seconds_run(&s);
    Text out = text_new(g->mem);
    (option_given(g->o, "--json") ? seconds_json : seconds_print)(&s, &out);
    text_print(&out);
    if (svg || trace) write_pictures(&s, svg, trace);
    return 0;
}

static const struct Way {
    const char *option; /* that asks for it; NULL: nothing does */
    int (*run)(Given *);
    int most_ranks, most_steps;
    const char *only; /* options of this way alone */
} ways[] = {
    {NULL, simulate_numbers, SIMULATE_MOST_RANKS, 100, "--full --random --ir"},
    {"--seconds", simulate_seconds, SECONDS_MOST_RANKS, SECONDS_MOST_STEPS,
     "--slow_rank --slow_link --jitter --message_jitter --rank_jitter --json --svg "
     "--trace"},
};

static const struct Way *way_of(const Options *o) {
    const struct Way *way = &ways[0];
    char name[64];
    for (int i = 0; i < ARRAY_LEN(ways); i++)
        if (ways[i].option && option_given(o, ways[i].option)) way = &ways[i];
    for (int i = 0; i < ARRAY_LEN(ways); i++) {
        const char *at = ways[i].only;
        while (&ways[i] != way && option_next_name(&at, name))
            if (option_given(o, name))
                fail(EXIT_CONFIG, "%s is %s--seconds\n    hint: %s", name,
                     ways[i].option ? "an option of " : "none of ",
                     ways[i].option ? "add --seconds --machine FILE.yaml"
                                    : "leave one of the two out");
    }
    if (option_int(o, "--steps", 1) > way->most_steps)
        fail(EXIT_CONFIG, "--steps: %d at most%s\n    hint: fewer steps", way->most_steps,
             way->option ? "" : ", without --seconds");
    return way;
}

/* What is dumped is what is simulated: numbers are those of a shrunken model, seconds those of
 * the plan. */
static Plan plan_quietly(Arena *mem, Config *cfg, int64_t ranks, const struct Way *way) {
    const char *dump = cfg->dump_ir;
    if (!way->option) cfg->dump_ir = "";
    Plan p = plan_of_config(mem, cfg, ranks);
    cfg->dump_ir = dump;
    int64_t n = strategy_ranks(&p.job->strategy);
    if (n > way->most_ranks)
        fail(
            EXIT_CONFIG,
            "%lld ranks: one process simulates %d at most\n    hint: fewer replicas show "
            "the same (parallel_config.data_parallel); stator plan takes any number",
            (long long)n, way->most_ranks);
    for (int i = 0; i < cfg->n_notes; i++) fprintf(stderr, "note: %s\n", cfg->notes[i]);
    return p;
}

int cmd_simulate(int argc, char **argv) {
    const Options *o = options_take(COMMAND_simulate, argc, argv);
    if (!o) return 0;
    Arena *mem = o->mem;
    Given g = {.mem = mem, .o = o};
    if (argc < 2)
        fail(EXIT_CONFIG, "stator simulate needs a configuration: stator simulate "
                          "CONFIG.yaml [-n RANKS] [--a.b.c VALUE ...]");
    ConfigWords words = {config_files(mem, g.o->nwords ? g.o->word[0] : NULL),
                         g.o->nflags, g.o->flag};
    g.cfg = automatic_load(mem, &words, option_int(g.o, "-n", 0));
    const struct Way *way = way_of(g.o);
    double start = clock_seconds();
    g.plan = plan_quietly(mem, g.cfg, option_int(g.o, "-n", 0), way);
    g.plan_seconds = clock_seconds() - start;
    int code = way->run(&g);
    arena_free(mem);
    return code;
}
