/* Tests of placements inside of a layer: the elimination against going through all states and
 * against cbc, an integer programming solver of others; what pass shard makes of an answer; and
 * answers that are known. */
#include "../factors_lp.h"
#include "../simulated.h"
#include "frontend/config/config_state.h"
#include "frontend/config/machine_file.h"
#include "frontend/plan/plan.h"
#include "frontend/search/layer_probe.h"
#include <unistd.h>

TEST_LABEL(SLOW);
TEST_LABEL(RELEASED);

typedef struct Random {
    uint64_t seed, n;
} Random;

static int draw(Random *r, int from, int to) {
    uint64_t x = hash64(&(uint64_t[]){r->seed, r->n++}, 16);
    return from + (int)(x % (uint64_t)(to - from + 1));
}

/* ---- tables ---- */

static Factors random_factors(Arena *mem, Random *r) {
    Factors f = factors_new(mem);
    int n = draw(r, 1, 8);
    for (int v = 0; v < n; v++) factors_var(&f, draw(r, 1, 3));
    for (int i = draw(r, 1, 12); i > 0; i--) {
        int var[FACTOR_VARS], most = MIN(n, FACTOR_VARS), nvars = draw(r, 1, most),
                              size = 1;
        for (int k = 0; k < nvars; k++) {
            bool again = true;
            while (again) {
                var[k] = draw(r, 0, n - 1);
                again = false;
                for (int j = 0; j < k; j++) again |= var[j] == var[k];
            }
            size *= f.states[var[k]];
        }
        double *cost = factors_add(&f, nvars, var);
        for (int e = 0; e < size; e++)
            cost[e] = draw(r, 0, 4) ? (double)draw(r, 0, 100) : INFINITY;
    }
    return f;
}

static int64_t entry_at(const Factors *f, const Factor *t, const int *state) {
    int64_t at = 0;
    for (int k = 0; k < t->n; k++) at = at * f->states[t->var[k]] + state[t->var[k]];
    return at;
}

/* The sum for these states. */
static double sum_of(const Factors *f, const int *state) {
    double sum = 0;
    for (int i = 0; i < f->nfactors; i++)
        sum += f->factor[i].cost[entry_at(f, &f->factor[i], state)];
    return sum;
}

static double least_of_all(const Factors *f) {
    int state[8] = {0};
    double least = INFINITY;
    for (;;) {
        least = fmin(least, sum_of(f, state));
        int v = 0;
        while (v < f->n && ++state[v] == f->states[v]) state[v++] = 0;
        if (v == f->n) return least;
    }
}

TEST(elimination_finds_what_all_states_have) {
    int none = 0;
    Arena *all = arena_new();
    FactorOrders *known = factors_orders(all);
    for (uint64_t seed = 0; seed < 500; seed++) {
        Arena *mem = arena_new();
        Random r = {seed, 0};
        Factors f = random_factors(mem, &r);
        int state[8] = {0}, again[8] = {0};
        double want = least_of_all(&f), got = factors_least(&f, 1 << 20, state, NULL);
        EXPECT(got == want); /* sums of small integers are exact */
        none += want == INFINITY;
        if (want < INFINITY) EXPECT(sum_of(&f, state) == want);
        for (int i = 0; i < 2; i++) { /* finds an order, then takes it */
            EXPECT(factors_least(&f, 1 << 20, again, known) == want);
            EXPECT(!memcmp(state, again, sizeof state));
        }
        arena_free(mem);
    }
    EXPECT(none > 0 && none < 400);
    arena_free(all);
}

TEST(a_table_that_is_too_large_is_refused) {
    Arena *mem = arena_new();
    Factors f = factors_new(mem);
    int v[6], state[6];
    for (int i = 0; i < 6; i++) v[i] = factors_var(&f, 10);
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < i; j++) {
            double *cost = factors_add(&f, 2, (int[]){v[i], v[j]});
            for (int s = 0; s < 10; s++) cost[s * 10 + (s + i + j) % 10] = 1;
        }
    EXPECT_FAIL(factors_least(&f, 1000, state, NULL), EXIT_CONFIG, "needs a table of");
    EXPECT(factors_least(&f, 1000000, state, NULL) == 0);
    arena_free(mem);
}

TEST(states_that_another_is_never_worse_than_take_no_room) {
    Arena *mem = arena_new();
    Factors f = factors_new(mem);
    int v[6], state[6] = {0};
    for (int i = 0; i < 6; i++) v[i] = factors_var(&f, 10);
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < i; j++) {
            double *cost = factors_add(&f, 2, (int[]){v[i], v[j]});
            for (int s = 0; s < 100; s++) cost[s] = abs(s / 10 - 6) + s % 10 % 6;
        }
    EXPECT(factors_least(&f, 1, state, NULL) == 0); /* a state each is left */
    for (int i = 1; i < 6; i++) EXPECT(state[i] == 6);
    arena_free(mem);
}

/* ---- layers ---- */

typedef struct Case {
    Arena *mem;
    Config *cfg;
    LayerAsk ask;
    LayerGraph *g;
} Case;

static Case open_case(const char *yaml, const char *machine, int ranks) {
    Case c = {.mem = arena_new()};
    c.cfg = config_parse(c.mem, "model.yaml", yaml, strlen(yaml));
    c.ask = (LayerAsk){.cfg = c.cfg, .ranks = ranks};
    c.ask.machine.machine = machine_read(
        c.mem, arena_printf(c.mem, "%s/../machines/%s.yaml", TESTS_DIR, machine));
    c.ask.machine.threads = plan_threads(c.cfg, c.ask.machine.machine, ranks);
    c.g = layer_probe_graph(c.mem, &c.ask);
    return c;
}

static const char *model(Arena *mem, const char *type, int seq, int hidden, int heads,
                         int batch) {
    return arena_printf(
        mem,
        "model:\n  model_config: {type: %s, vocab_size: 96, seq_length: %d, "
        "hidden_size: %d, num_layers: 4, num_heads: %d}\n"
        "runner_config: {batch_size: %d}\n",
        type, seq, hidden, heads, batch);
}

/* A model with further keys of its section. */
static const char *with_keys(Arena *mem, const char *yaml, const char *keys) {
    const char *at = strstr(yaml, "vocab_size");
    return arena_printf(mem, "%.*s%s%s", (int)(at - yaml), yaml, keys, at);
}

static void expect_same_messages(const LayerMessages *want, const LayerMessages *is) {
    for (int part = 0; part < PART_OF_STEP; part++)
        for (int k = 0; k < OP_COUNT; k++) {
            if (want->bytes[part][k] == is->bytes[part][k]) continue;
            test_fail(__FILE__, __LINE__, "%s, %s: %.0f bytes instead of %.0f",
                      layer_part_name[part], optab[k].name, is->bytes[part][k],
                      want->bytes[part][k]);
        }
}

/* What pass shard makes of the entries is the choice: so is what it sends. */
static LayerCost expect_realised(const Case *c, const LayerChoice *choice, char ***entry,
                                 int *n) {
    *entry = layer_entries(c->mem, &c->ask, c->g, choice, true, n);
    LayerPlanned p = layer_probe_plan(c->mem, &c->ask, c->g, *n, *entry, false);
    if (p.refused) test_fail(__FILE__, __LINE__, "%s", p.refused);
    LayerCost cost = layer_cost(c->g, choice);
    /* the graph of narrow numbers has other casts, so that its choice is not read */
    if (c->cfg->model_compute_dtype == FLOAT_32) {
        EXPECT(p.choice);
        LayerCost is = layer_cost(c->g, p.choice);
        EXPECT(fabs(cost.seconds - is.seconds) <= 1e-9 * cost.seconds);
    }
    expect_same_messages(&cost.sent, &p.sent);
    return cost;
}

static const struct {
    const char *type, *machine;
    int seq, hidden, heads, batch, ranks;
    const char *keys;
} layers[] = {
    {"GPT2Config", "a100", 64, 64, 4, 2, 2, ""},
    {"GPT2Config", "cpu100g", 64, 64, 4, 1, 4, ""},
    {"GPT2Config", "cpu100g", 32, 2048, 16, 1, 4, ""},
    {"LlamaConfig", "cpu100g", 64, 64, 4, 1, 2, ""},
    {"LlamaConfig", "h100", 64, 1024, 8, 1, 4, ""},
    {"GPT2Config", "cpu100g", 64, 64, 4, 2, 2, "compute_dtype: bfloat16, "},
    {"LlamaConfig", "a100", 64, 1024, 8, 2, 4,
     "compute_dtype: bfloat16, allreduce_activations_in_fp32: False, "
     "accumulate_allreduce_grads_in_fp32: False, "},
    {"GPT2Config", "h100", 64, 1024, 8, 1, 4,
     "compute_dtype: float16, allreduce_activations_in_fp32: False, "},
    {"GPT2Config", "cpu100g", 64, 64, 4, 1, 2,
     "compute_dtype: bfloat16, accumulate_allreduce_grads_in_fp32: False, "},
};

TEST_LIMIT(what_is_chosen_is_what_pass_shard_makes, 120) {
    for (int i = 0; i < ARRAY_LEN(layers); i += test_long() ? 1 : 3) {
        Arena *mem = arena_new();
        const char *yaml = model(mem, layers[i].type, layers[i].seq, layers[i].hidden,
                                 layers[i].heads, layers[i].batch);
        test_at("%s on %s %s", layers[i].type, layers[i].machine, layers[i].keys);
        Case c = open_case(with_keys(mem, yaml, layers[i].keys), layers[i].machine,
                           layers[i].ranks);
        double least;
        int n;
        char **entry;
        LayerChoice *best = layer_solve(c.mem, c.g, (LayerPrice){0}, &least);
        LayerCost cost = expect_realised(&c, best, &entry, &n);
        EXPECT(fabs(cost.seconds - least) <= 1e-9 * least);
        for (int sp = 0; sp < 2;
             sp++) { /* no slower than Megatron-LM's, as they are planned */
            LayerPlanned p = layer_probe_plan(c.mem, &c.ask, c.g, -1, NULL, sp);
            if (c.cfg->model_compute_dtype != FLOAT_32) break;
            EXPECT(!p.refused && p.choice);
            LayerCost k = layer_cost(c.g, p.choice);
            expect_same_messages(&k.sent, &p.sent);
            EXPECT(least <= k.seconds * (1 + 1e-9));
        }
        arena_free(c.mem);
        arena_free(mem);
    }
}

/* What a graph on other ranks made exact makes nothing slower, nor faster. */
TEST(what_another_graph_has_shown_changes_no_answer) {
    static const int ranks[] = {2, 4, 8, 2};
    Arena *mem = arena_new();
    LayerKnown *known = layer_known(mem);
    int exact = 0;
    for (int i = 0; i < ARRAY_LEN(ranks); i++) {
        double own, least;
        Case c = open_case(model(mem, "GPT2Config", 1024, 5120, 40, 4), "a100", ranks[i]);
        layer_solve(c.mem, c.g, (LayerPrice){0}, &own);
        c.ask.known = known;
        LayerGraph *g = layer_probe_graph(c.mem, &c.ask);
        LayerChoice *best = layer_solve(c.mem, g, (LayerPrice){0}, &least);
        LayerCost cost = layer_cost(g, best);
        EXPECT(fabs(least - own) <= 1e-12 * own);
        EXPECT(fabs(cost.seconds - own) <= 1e-12 * own);
        for (int k = 0; k < g->nops; k++) exact += g->op[k].exact && !c.g->op[k].exact;
        arena_free(c.mem);
    }
    EXPECT(exact > 0);
    arena_free(mem);
}

/* Entries drawn at random are planned too: none is faster than the best. */
TEST_LIMIT(no_entries_at_random_are_faster, 120) {
    Arena *mem = arena_new();
    Case c = open_case(model(mem, "GPT2Config", 64, 64, 4, 2), "cpu100g", 2);
    double least;
    Random r = {1, 0};
    int planned = 0;
    LayerChoice *best = layer_solve(c.mem, c.g, (LayerPrice){0}, &least);
    for (int i = 0; i < (test_long() ? 300 : 30); i++) {
        int n;
        LayerChoice any = *best;
        any.seed = NEW_ARRAY(mem, int, (size_t)c.g->ngroups + 1);
        for (int k = 0; k < c.g->ngroups; k++) {
            int d = draw(&r, 0, c.g->group[k].ty.rank);
            bool may = d && !draw(&r, 0, 7) && c.g->group[k].may >> (d - 1) & 1;
            any.seed[k] = may ? d : PLACE_WHOLE;
        }
        char **entry = layer_entries(mem, &c.ask, c.g, &any, true, &n);
        LayerPlanned p = layer_probe_plan(mem, &c.ask, c.g, n, entry, false);
        if (p.refused || !p.choice) continue; /* seeds that contradict each other */
        planned++;
        EXPECT(layer_cost(c.g, p.choice).seconds >= least * (1 - 1e-9));
    }
    EXPECT(planned > 3);
    arena_free(c.mem);
    arena_free(mem);
}

/* Samples are over dp in every entry of a value, also where rounding makes other ops of the layer:
 * else each replica would compute what all do, with the same losses. */
TEST(entries_leave_the_samples_to_replicas) {
    static const char *const types[] = {"GPT2Config", "LlamaConfig"};
    static const char *const dtypes[] = {"float32", "bfloat16"};
    enum { SAMPLES = 7 };
    for (int i = 0; i < 4; i++) {
        Arena *mem = arena_new();
        const char *yaml = model(mem, types[i / 2], 64, 64, 4, SAMPLES);
        yaml =
            with_keys(mem, yaml, arena_printf(mem, "compute_dtype: %s, ", dtypes[i % 2]));
        Case c = open_case(yaml, "h100", 2);
        LayerChoice any = {.seed = NEW_ARRAY(mem, int, (size_t)c.g->ngroups + 1)};
        int n, values = 0;
        for (int k = 0; k < c.g->ngroups; k++)
            for (int d = 1; d <= c.g->group[k].ty.rank; d++)
                if (c.g->group[k].may >> (d - 1) & 1) any.seed[k] = d;
        char **entry = layer_entries(mem, &c.ask, c.g, &any, true, &n);
        for (int k = 0; k < n; k++) {
            test_at("%s %s: %s", types[i / 2], dtypes[i % 2], entry[k]);
            if (!strchr(entry[k], '/')) continue; /* a parameter */
            EXPECT_PART(entry[k], "=dp,");
            values++;
        }
        EXPECT(values > 3);
        entry = layer_entries(mem, &c.ask, c.g, &any, false, &n);
        for (int k = 0; k < n; k++) EXPECT(!strstr(entry[k], "dp"));
        arena_free(c.mem);
        arena_free(mem);
    }
}

/* ---- another solver ---- */

static double by_cbc(Arena *mem, const Factors *f) {
    Text lp = text_new(mem);
    factors_write_lp(f, &lp);
    const char *in = path_join(mem, temp_dir(), "layer.lp");
    const char *out = path_join(mem, temp_dir(), "layer.txt");
    EXPECT(!file_write_atomic(in, lp.s, lp.n));
    EXPECT(!system(
        arena_printf(mem, "cbc %s ratio 0 solve solution %s >/dev/null 2>&1", in, out)));
    size_t size;
    const char *text = file_read(mem, out, 64 << 20, &size, EXIT_DATA);
    const char *value = strstr(text, "objective value");
    EXPECT(!strncmp(text, "Optimal", 7) && value);
    return atof(value + strlen("objective value"));
}

TEST_LIMIT(cbc_agrees, 240) {
    if (system("command -v cbc >/dev/null 2>&1"))
        test_skip("cbc is not installed (Debian: coinor-cbc)");
    for (int i = 0; i < ARRAY_LEN(layers); i += test_long() ? 1 : 3) {
        Arena *mem = arena_new();
        Case c = open_case(model(mem, layers[i].type, layers[i].seq, layers[i].hidden,
                                 layers[i].heads, layers[i].batch),
                           layers[i].machine, layers[i].ranks);
        double least;
        layer_solve(c.mem, c.g, (LayerPrice){0}, &least);
        LayerProblem p = layer_problem(c.mem, c.g, (LayerPrice){0});
        for (int t = 0; t < p.f.nfactors; t++) { /* cbc takes 1e-6 for nothing: in us */
            int64_t n = 1;
            for (int k = 0; k < p.f.factor[t].n; k++)
                n *= p.f.states[p.f.factor[t].var[k]];
            for (int64_t e = 0; e < n; e++) p.f.factor[t].cost[e] *= 1e6;
        }
        double cbc = by_cbc(mem, &p.f);
        if (fabs(cbc - 1e6 * least) > 1e-6 * cbc)
            test_fail(__FILE__, __LINE__, "case %d: cbc %.9g us, here %.9g us", i, cbc,
                      1e6 * least);
        arena_free(c.mem);
        arena_free(mem);
    }
}

/* ---- answers that are known ---- */

static int group_of(const LayerGraph *g, const char *name) {
    for (int i = 0; i < g->ngroups; i++)
        if (!strcmp(g->group[i].name, name)) return i;
    test_fail(__FILE__, __LINE__, "no group is called %s", name);
}

static LayerChoice *chosen(Case *c, int micro, double limit_bytes, double *bound) {
    c->cfg->parallel_config_micro_batch_num = micro;
    c->g = layer_probe_graph(c->mem, &c->ask);
    return layer_solve_within(c->mem, c->g, limit_bytes, bound);
}

/* A layer of 13 B parameters on 8 A100: matrices do not fit whole. Products over their outputs,
 * then over their inputs, as Megatron-LM has them. The residual stream is split over tokens where
 * the sums that this leaves to norms and biases are once in many micro-batches. */
TEST_LIMIT(megatrons_layout_is_found, 60) {
    static const struct {
        const char *name;
        int dim;
    } want[] = {{"h.attn.c_attn.weight", 3}, {"h.attn.c_proj.weight", 1},
                {"h.mlp.c_fc.weight", 2},    {"h.mlp.c_proj.weight", 1},
                {"h.ln_1.weight", 0},        {"h.ln_2.weight", 0}};
    static const int micro[] = {1, 64}, x[] = {PLACE_WHOLE, 2};
    Arena *mem = arena_new();
    double bound;
    Case c = open_case(model(mem, "GPT2Config", 1024, 5120, 40, 4), "a100", 8);
    for (int k = 0; k < 2; k++) {
        LayerChoice *best = chosen(&c, micro[k], 2e9, &bound);
        for (int i = 0; i < ARRAY_LEN(want); i++)
            EXPECT_INT(best->seed[group_of(c.g, want[i].name)], want[i].dim);
        EXPECT_INT(best->seed[group_of(c.g, "x")], x[k]);
        EXPECT(bound <= layer_cost(c.g, best).seconds * (1 + 1e-9));
    }
    EXPECT(!layer_solve_within(c.mem, c.g, 1e6, &bound));
    arena_free(c.mem);
    arena_free(mem);
}

/* Small matrices and one long sequence: tokens are split and matrices stay whole. Trained so, the
 * golden case has the numbers of PyTorch; tolerances are those of tests/unit/strategies.c. */
TEST_LIMIT(tokens_are_split_where_matrices_are_small, 120) {
    Arena *mem = arena_new();
    double bound;
    int n;
    char **entry;
    Case c = open_case(model(mem, "GPT2Config", 4096, 256, 4, 1), "cpu100g", 2);
    LayerChoice *best = chosen(&c, 64, 0, &bound);
    LayerCost cost = expect_realised(&c, best, &entry, &n);
    LayerPlanned tp = layer_probe_plan(c.mem, &c.ask, c.g, -1, NULL, false);
    EXPECT(tp.choice && cost.seconds < 0.99 * layer_cost(c.g, tp.choice).seconds);
    EXPECT_INT(best->seed[group_of(c.g, "x")], 2);
    EXPECT_INT(best->seed[group_of(c.g, "h.mlp.c_fc.weight")], PLACE_WHOLE);
    EXPECT_INT(best->seed[group_of(c.g, "h.mlp.c_proj.weight")], PLACE_WHOLE);
    Strategy s = {.data = 1,
                  .context = 1,
                  .tensor = 2,
                  .ring = 1,
                  .stages = 1,
                  .zero_axes = "",
                  .user = {.items = (const char *const *)entry, .n = n}};
    Simulated sim = sim_open(
        mem, "gpt2_tiny", s, 1, (SimChange){0},
        "simplify,seed,zero,autodiff,simplify,train,simplify,shard,reshard,collect,"
        "simplify,localize,simplify,keep,sink,simplify");
    SimCurve got = sim_train(&sim, 3), want = sim_golden_curve("gpt2_tiny", 3);
    for (int i = 0; i < 3; i++) {
        EXPECT(fabs(got.loss[i] - want.loss[i]) <= 1e-5 * want.loss[i]);
        EXPECT(fabs(got.norm[i] - want.norm[i]) <= 1e-4 * want.norm[i]);
    }
    arena_free(c.mem);
    arena_free(mem);
}
