/* Tests of the programs that a search looks at: one that takes its update from another has the
 * same pieces as one with an update of its own. */
#include "../test.h"
#include "frontend/config/config_state.h"
#include "frontend/search/search_state.h"

static Search *search_of(Arena *mem, const char *type, const char *optimizer,
                         const Machine *m, int ranks) {
    const char *yaml = arena_printf(
        mem,
        "model:\n  model_config: {type: %s, vocab_size: 1001, seq_length: 64, "
        "hidden_size: 64, num_layers: 3, num_heads: 8}\n"
        "optimizer: {type: %s}\nrunner_config: {batch_size: 4}\n",
        type, optimizer);
    SearchOptions o = {.machine = m, .ranks = ranks, .tops = 1};
    o.cfg = config_parse(mem, "model.yaml", yaml, strlen(yaml));
    o.sequences = 4 * ranks;
    return search_open(mem, &o);
}

/* Everything on it takes a time that depends on its size. */
static const Machine *slow_machine(void) {
    static double bytes[] = {1e3, 1e5, 1e7}, rate[] = {9e9, 5e9, 2e9};
    static MachineRank rank = {.ranks = 1, .threads = 1, .flops = {5e10, 1e11}};
    static Machine m;
    rank.memory = (Curve){.n = ARRAY_LEN(bytes), .x = bytes, .y = rate};
    m = machine_plain;
    m.rank = &rank;
    m.hidden = 0.5;
    m.half = 30;
    m.op_start_seconds = 1e-6;
    return &m;
}

static Timing timing_of(Arena *mem, Search *s, const Probe *p, double stretch) {
    const Machine *m = s->o.machine;
    return (Timing){.mem = mem,
                    .m = m,
                    .rank = m->rank,
                    .shape = mesh_shapes(mem, m, &p->mesh, 1, s->threads),
                    .stretch = stretch};
}

static ProbeSeconds stretched(Arena *mem, Search *s, const Probe *p, double b,
                              double stretch) {
    Timing t = timing_of(mem, s, p, stretch);
    return probe_seconds(&t, p, b, NULL);
}

static ProbeSeconds seconds_of(Arena *mem, Search *s, const Probe *p, double b) {
    return stretched(mem, s, p, b, 1);
}

static void expect_shared(Arena *mem, Search *s, ProbeKey first, ProbeKey key) {
    const Machine *m = s->o.machine;
    const ProbeShared fresh = probe_shared(mem, &s->job);
    if (!s->shared.paths) s->shared = probe_shared(mem, &s->job);
    Probe from = probe_make(mem, &s->job, m, first, NULL, &s->shared);
    Probe own = probe_make(mem, &s->job, m, key, NULL, &fresh);
    Probe shared = probe_make(mem, &s->job, m, key, from.update, &s->shared);
    EXPECT(!own.refused && !shared.refused && probe_same_update(&first, &key));
    EXPECT(shared.update == from.update && own.update != from.update);
    EXPECT(!memcmp(&own.bytes, &shared.bytes, sizeof own.bytes));
    for (double b = key.parts; b <= 8; b *= 2) {
        ProbeSeconds x = seconds_of(mem, s, &own, b), y = seconds_of(mem, s, &shared, b);
        EXPECT(x.update > 0);
        EXPECT_NEAR(y.update + y.round, x.update + x.round,
                    key.parts == 1 ? 0 : 0.02 * x.update);
        y.update = x.update;
        y.round = x.round;
        EXPECT(!memcmp(&x, &y, sizeof x));
    }
}

static void all_shared(const char *type, const char *optimizer) {
    Arena *mem = arena_new();
    Search *s = search_of(mem, type, optimizer, slow_machine(), 8);
    for (int tp = 1; tp <= 4; tp *= 2)
        for (int cp = 1; cp <= 2; cp++)
            for (int ring = 1; ring <= cp; ring++)
                for (int vocab = 0; vocab <= (tp > 1); vocab++) {
                    ProbeKey key = {tp, cp, ring, 1, false, vocab}, first = key;
                    for (int sp = 0; sp <= (tp > 1); sp++)
                        for (int parts = 1; parts <= 2; parts++) {
                            key.sequence_parallel = sp;
                            key.parts = parts;
                            expect_shared(mem, s, first, key);
                        }
                }
    arena_free(mem);
}

TEST_LABEL_OF(updates_are_shared, RELEASED);
TEST(updates_are_shared) {
    all_shared("GPT2Config", "AdamW");
    all_shared("LlamaConfig", "Momentum");
}

/* A program of two parts takes no less than its bound, and no more than whole ones take in turns but for
 * what puts parts together. */
static void expect_bounds(Arena *mem, Search *s, ProbeKey key) {
    const ProbeShared shared = probe_shared(mem, &s->job);
    Probe whole = probe_make(mem, &s->job, s->o.machine, key, NULL, &shared);
    key.parts = 2;
    Probe two = probe_make(mem, &s->job, s->o.machine, key, NULL, &shared);
    Timing t = timing_of(mem, s, &whole, 1);
    EXPECT(!whole.refused && !two.refused);
    for (double b = 1; b <= 4; b *= 2) {
        ProbeSeconds all = seconds_of(mem, s, &whole, b),
                     x = seconds_of(mem, s, &two, 2 * b);
        ProbeSeconds least = probe_parts_least(&t, &whole, b, 2, &all);
        ProbeSeconds most = probe_parts_most(&all, 2);
        double layer = x.forward + x.inputs + x.weights;
        double first = x.first_forward + x.first_backward;
        double last = x.last_forward + x.last_backward;
        test_at("tp %d cp %d ring %d, %g sequences a part", key.tp, key.cp, key.ring, b);
        EXPECT(x.forward >= least.forward && x.remade >= least.remade);
        EXPECT(layer >= least.forward + least.inputs + least.weights);
        EXPECT(layer <= 1.1 * (most.forward + most.inputs + most.weights));
        EXPECT(first >= least.first_forward + least.first_backward);
        EXPECT(last >= least.last_forward + least.last_backward);
    }
}

TEST_LABEL_OF(programs_of_parts_are_bounded, RELEASED);
TEST(programs_of_parts_are_bounded) {
    static const char *const types[] = {
        "GPT2Config", "LlamaConfig", "LlamaConfig, compute_dtype: bfloat16",
        "GPT2Config, compute_dtype: bfloat16, hidden_dropout_rate: 0.1"};
    for (int i = 0; i < ARRAY_LEN(types); i++) {
        Arena *mem = arena_new();
        Search *s = search_of(mem, types[i], "AdamW", slow_machine(), 8);
        for (int tp = 1; tp <= 2; tp++)
            for (int cp = 1; cp <= 4; cp *= 2)
                for (int ring = 1; ring <= cp && tp * cp > 1; ring *= 2)
                    for (int sp = 0; sp < tp; sp++)
                        expect_bounds(mem, s, (ProbeKey){tp, cp, ring, 1, sp, tp > 1});
        arena_free(mem);
    }
}

/* Nothing is kept of an optimizer without states, and nothing of another is taken for it. */
TEST_LABEL_OF(updates_without_states, RELEASED);
TEST(updates_without_states) {
    Arena *mem = arena_new();
    Search *s = search_of(mem, "GPT2Config", "SGD", slow_machine(), 4);
    const ProbeShared fresh = probe_shared(mem, &s->job);
    Probe p = probe_make(mem, &s->job, s->o.machine, (ProbeKey){2, 1, 1, 1, false, false},
                         NULL, &fresh);
    EXPECT(!p.refused && p.bytes.states == 0);
    arena_free(mem);
    all_shared("GPT2Config", "SGD");
}

/* No size of a model is taken for one that grows with the sequences: one rank's step takes what its
 * pieces say, but for what it does once. */
TEST(heads_of_any_size) {
    static const int dim[] = {20, 70, 80};
    for (int i = 0; i < ARRAY_LEN(dim); i++) {
        Arena *mem = arena_new();
        const char *yaml =
            arena_printf(mem,
                         "model:\n  model_config: {type: LlamaConfig, vocab_size: 1024, "
                         "seq_length: 64, "
                         "hidden_size: 64, num_layers: 3, num_heads: 4, head_dim: %d}\n"
                         "runner_config: {batch_size: 4}\n",
                         dim[i]);
        char *path = path_join(mem, temp_dir(), "heads.yaml");
        EXPECT_INT(file_write_atomic(path, yaml, strlen(yaml)), 0);
        SearchOptions o = search_options(mem, config_files(mem, path), 0, NULL, 1);
        o.machine = slow_machine();
        SearchResult r = search_run(mem, &o);
        EXPECT(r.ntop > 0 && r.top[0].c.micro == 1);
        double over = r.top[0].seconds / r.top[0].c.seconds;
        test_at("head_dim %d: a plan takes %g of its pieces", dim[i], over);
        EXPECT(over > 0.999 && over < 1.03);
        arena_free(mem);
    }
}

/* Schedules that do the gradients of weights later count those apart. */
TEST(shared_cores_make_all_compute_longer) {
    Arena *mem = arena_new();
    Search *s = search_of(mem, "GPT2Config", "AdamW", slow_machine(), 4);
    const ProbeShared fresh = probe_shared(mem, &s->job);
    Probe p = probe_make(mem, &s->job, s->o.machine, (ProbeKey){1, 1, 1, 1, false, false},
                         NULL, &fresh);
    ProbeSeconds x = seconds_of(mem, s, &p, 2), y = stretched(mem, s, &p, 2, 3);
    EXPECT(x.messages == 0 && x.weights > 0 && x.inputs > 0);
    EXPECT_NEAR(y.weights, 3 * x.weights, 1e-9 * y.weights);
    EXPECT_NEAR(y.inputs, 3 * x.inputs, 1e-9 * y.inputs);
    EXPECT_NEAR(y.forward, 3 * x.forward, 1e-9 * y.forward);
    EXPECT_NEAR(y.last_backward, 3 * x.last_backward, 1e-9 * y.last_backward);
    arena_free(mem);
}

static ProbeSeconds seconds_of_key(Arena *mem, Search *s, ProbeKey key) {
    const ProbeShared fresh = probe_shared(mem, &s->job);
    Probe p = probe_make(mem, &s->job, s->o.machine, key, NULL, &fresh);
    EXPECT(!p.refused);
    return seconds_of(mem, s, &p, 2);
}

/* What gradients of weights read of a split sequence is gathered anew where they wait, and nothing where
 * nothing is gathered; of the three products of the head, forward has one. */
TEST(what_gradients_of_weights_take_that_wait) {
    static const char *const types[] = {"GPT2Config", "LlamaConfig"};
    for (int i = 0; i < ARRAY_LEN(types); i++) {
        Arena *mem = arena_new();
        Search *s = search_of(mem, types[i], "AdamW", slow_machine(), 4);
        ProbeSeconds whole = seconds_of_key(mem, s, (ProbeKey){2, 1, 1, 1, false, false});
        ProbeSeconds split = seconds_of_key(mem, s, (ProbeKey){2, 1, 1, 1, true, false});
        test_at("%s", types[i]);
        EXPECT(whole.again == 0 && whole.messages > 0);
        EXPECT(split.again > 0 && split.again < split.messages);
        double head = whole.last_forward + whole.last_backward;
        EXPECT(whole.last_forward > 0.25 * head && whole.last_forward < 0.55 * head);
        arena_free(mem);
    }
}
