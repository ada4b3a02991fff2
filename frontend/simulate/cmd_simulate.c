/* cmd_simulate.c - stator simulate: a strategy tried out with all of its ranks in this
 * process. START HERE: the ways to do that are rows of a table. */
#include "frontend/config/commands.h"
#include "frontend/config/options.h"
#include "frontend/simulate/simulate.h"
#include <errno.h>

typedef struct Given {
    Arena *mem;
    const Options *o;
    Config *cfg;
    Plan plan; /* of the configuration */
} Given;

static void print(const Text *out) {
    if (fwrite(out->s, 1, out->n, stdout) != out->n || fflush(stdout))
        fail(EXIT_DATA, "cannot write the simulation: %s", strerror(errno));
}

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
    simulate_data_close(&s.data);
    Text out = text_new(g->mem);
    simulate_print(&s, &out);
    print(&out);
    return simulate_passes(&s) ? 0 : EXIT_DIFFERS;
}

static const struct {
    const char *option; /* that asks for it; NULL: nothing does */
    int (*run)(Given *);
} ways[] = {{NULL, simulate_numbers}};

/* The plan alone is of the configuration; what is dumped is what is simulated. */
static Plan plan_quietly(Arena *mem, Config *cfg, int64_t ranks) {
    const char *dump = cfg->dump_ir;
    cfg->dump_ir = "";
    Plan p = plan_of_config(mem, cfg, ranks);
    cfg->dump_ir = dump;
    int64_t n = strategy_ranks(&p.job->strategy);
    if (n > SIMULATE_MOST_RANKS)
        fail(
            EXIT_CONFIG,
            "%lld ranks: one process simulates %d at most\n    hint: fewer replicas show "
            "the same (parallel_config.data_parallel); stator plan takes any number",
            (long long)n, SIMULATE_MOST_RANKS);
    for (int i = 0; i < cfg->n_notes; i++) fprintf(stderr, "note: %s\n", cfg->notes[i]);
    return p;
}

int cmd_simulate(int argc, char **argv) {
    Arena *mem = arena_new();
    Given g = {.mem = mem, .o = options_read(mem, COMMAND_simulate, argc, argv)};
    if (!g.o) {
        arena_free(mem);
        return 0;
    }
    if (argc < 2)
        fail(EXIT_CONFIG, "stator simulate needs a configuration: stator simulate "
                          "CONFIG.yaml [-n RANKS] [--a.b.c VALUE ...]");
    g.cfg = config_load(mem, g.o->nwords ? g.o->word[0] : NULL, g.o->nflags, g.o->flag);
    g.plan = plan_quietly(mem, g.cfg, option_int(g.o, "-n", 0));
    int way = 0;
    for (int i = 0; i < ARRAY_LEN(ways); i++)
        if (ways[i].option && option_given(g.o, ways[i].option)) way = i;
    int code = ways[way].run(&g);
    arena_free(mem);
    return code;
}
