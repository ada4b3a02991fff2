/* Tests of placements inside of layers that a search asks stator layer for: they are taken where
 * plans with them are faster, with keys that give the answer again and the losses of one rank. */
#include "command.h"
#include "frontend/config/config_state.h"
#include "frontend/config/machine_file.h"
#include "frontend/search/search.h"

TEST_LABEL(SLOW);

/* Wide values and few of them, so that parts of samples or of sequences cost less than sums over
 * outputs do. */
static const char model[] =
    "seed: 3\n"
    "model:\n  model_config: {type: GPT2Config, vocab_size: 256, seq_length: %d, "
    "hidden_size: %d, num_layers: 4, num_heads: 4}\n"
    "runner_config: {batch_size: %d}\n"
    "train_dataset:\n  data_loader: {type: TextFile, dataset_dir: embedded}\n";

static char *config(int length, int width, int batch) {
    char *path = temp("inside.yaml");
    write_text(path, arena_printf(arena_new(), model, length, width, batch));
    return path;
}

static const Machine *machine(Arena *mem, const char *name, double memory_bytes) {
    char *path = arena_printf(mem, "%s/../machines/%s.yaml", tests_dir(), name);
    Machine *m = machine_read(mem, path);
    m->memory_bytes = memory_bytes;
    return m;
}

static SearchResult search(Arena *mem, char *path, const Machine *m, int nflags,
                           char **flag, SearchOptions *o) {
    *o = search_options(mem, config_files(mem, path), nflags, flag, 4);
    o->machine = m;
    o->limit_bytes = m->memory_bytes;
    return search_run(mem, o);
}

static char *whole[] = {"--parallel_config.model_parallel=4"};

static const Verified *fastest(const SearchResult *r, bool inside) {
    for (int i = 0; i < r->ntop; i++)
        if (!r->top[i].c.inside == !inside) return &r->top[i];
    return NULL;
}

/* With the keys of the answer a plan has its seconds and bytes. */
static void keys_give_it_again(Arena *mem, const char *path, const SearchOptions *o,
                               const Verified *v) {
    Config *cfg = config_load(mem, path, v->nflags, v->flag);
    int threads = plan_threads(cfg, o->machine, o->ranks);
    PlanCost p = plan_cost(mem, cfg, o->ranks, o->machine, threads, INFINITY);
    EXPECT(p.seconds == v->seconds);
    EXPECT_INT(p.bytes, v->bytes);
}

TEST(what_is_faster_inside_of_layers_is_found) {
    static const char *const machines[] = {"cpu100g", "a100", "h100"};
    for (int i = 0; i < ARRAY_LEN(machines); i++) {
        Arena *mem = arena_new();
        SearchOptions o;
        char *path = config(256, 64, 4);
        SearchResult r = search(mem, path, machine(mem, machines[i], 0), 1, whole, &o);
        const Verified *in = fastest(&r, true), *out = fastest(&r, false);
        EXPECT(in && out && in == &r.top[0]);
        for (int k = 1; k < r.ntop; k++) EXPECT(r.top[k - 1].seconds <= r.top[k].seconds);
        keys_give_it_again(mem, path, &o, in);
        SearchOptions fixed;
        SearchResult again = search(mem, path, o.machine, in->nflags, in->flag, &fixed);
        EXPECT(again.ntop > 0 && again.top[0].seconds == in->seconds);
        keys_give_it_again(mem, path, &o, out);
        printf("  %s: %.4g us inside of layers, %.4g us by keys\n", machines[i],
               1e6 * in->seconds, 1e6 * out->seconds);
        EXPECT(in->seconds < out->seconds);
        arena_free(mem);
    }
}

/* The entries go with stages, replicas and split states. */
TEST_LABEL_OF(losses_are_those_of_one_rank, RELEASED);
TEST(losses_are_those_of_one_rank) {
    static const char *const more[] = {
        NULL, "--parallel_config.pipeline_stage=2",
        "--parallel.parallel_optimizer_config.optimizer_level=level2"};
    for (int i = 0; i < ARRAY_LEN(more); i++) {
        Arena *mem = arena_new();
        SearchOptions o;
        char *path = config(64, 64, 1), *best = temp("best.yaml");
        char *flag[] = {"--parallel_config.model_parallel=2",
                        "--runner_config.batch_size=1", (char *)more[i]};
        SearchResult r =
            search(mem, path, machine(mem, "h100", 0), more[i] ? 3 : 2, flag, &o);
        const Verified *in = fastest(&r, true);
        EXPECT(in != NULL);
        Text out = text_new(mem);
        config_print(config_load(mem, path, in->nflags, in->flag), &out);
        write_text(best, out.s);
        run(cmd_simulate, best, "-n", "4", (char *)NULL);
        worked();
        EXPECT_PART(printed, "tp 2");
        arena_free(mem);
    }
}

/* The user's placements, and a residual stream that is asked for, stay. */
TEST(what_is_given_stays) {
    static char *given[][2] = {
        {"--parallel_config.model_parallel=4",
         "--parallel_config.sequence_parallel=True"},
        {"--parallel_config.model_parallel=4", "--parallel.shard=[\"layer/x=-,tp,-\"]"},
        {"--parallel_config.model_parallel=4", "--parallel.shard=[]"},
        {"--parallel_config.model_parallel=2", "--parallel_config.context_parallel=2"}};
    for (int i = 0; i < ARRAY_LEN(given); i++) {
        Arena *mem = arena_new();
        SearchOptions o;
        SearchResult r =
            search(mem, config(256, 64, 4), machine(mem, "h100", 0), 2, given[i], &o);
        EXPECT(r.ntop > 0);
        EXPECT(!fastest(&r, true));
        arena_free(mem);
    }
}

/* What a file places is taken back, as what it says of other keys is. */
TEST(placements_of_a_file_are_free) {
    static const char given[] =
        "parallel: {shard: ['h.attn.c_attn.weight=-,-,-,-', 'h.mlp.c_fc.weight=-,-']}\n";
    for (int fixed = 0; fixed < 2; fixed++) {
        Arena *mem = arena_new();
        SearchOptions o, free;
        char *flag[] = {whole[0], "--parallel_config.sequence_parallel=False"};
        char *path = config(256, 64, 4), *other = temp("placed.yaml");
        SearchResult r = search(mem, path, machine(mem, "h100", 0), 1 + fixed, flag, &o);
        char *text = file_read(mem, path, 1 << 20, NULL, EXIT_DATA);
        write_text(other, arena_printf(mem, "%s%s", text, given));
        SearchResult placed = search(mem, other, o.machine, 1 + fixed, flag, &free);
        EXPECT(r.ntop > 0);
        EXPECT_INT(placed.ntop, r.ntop);
        for (int i = 0; i < r.ntop; i++) {
            EXPECT(placed.top[i].seconds == r.top[i].seconds);
            EXPECT_INT(placed.top[i].bytes, r.top[i].bytes);
        }
        EXPECT((placed.top[0].c.inside == NULL) == fixed);
        keys_give_it_again(mem, other, &free, &placed.top[0]);
        arena_free(mem);
    }
}

/* What is placed inside of layers fits, as all does. */
TEST(it_has_to_fit) {
    Arena *mem = arena_new();
    SearchOptions o;
    char *path = config(256, 64, 4);
    SearchResult any = search(mem, path, machine(mem, "h100", 0), 1, whole, &o);
    const Verified *in = fastest(&any, true);
    EXPECT(in != NULL);
    double room = (double)in->bytes - 1;
    const Machine *m = machine(mem, "h100", room + PLAN_PROCESS_BYTES);
    SearchResult r = search(mem, path, m, 1, whole, &o);
    EXPECT(r.ntop > 0);
    for (int i = 0; i < r.ntop; i++) EXPECT((double)r.top[i].bytes <= room);
}

/* With states over two replicas they are found in the memory that their plan takes, which is too
 * little for all of the states. */
TEST(states_of_replicas_leave_room) {
    static char *flag[] = {"--parallel_config.model_parallel=2",
                           "--parallel_config.data_parallel=2",
                           "--parallel.parallel_optimizer_config.optimizer_level=level1",
                           "--runner_config.batch_size=1"};
    Arena *mem = arena_new();
    SearchOptions o;
    char *path = config(32, 256, 1);
    SearchResult any =
        search(mem, path, machine(mem, "h100", 0), ARRAY_LEN(flag), flag, &o);
    const Verified *in = fastest(&any, true);
    EXPECT(in != NULL && in == &any.top[0]);
    const Machine *m =
        machine(mem, "h100", 1.001 * (double)in->bytes + PLAN_PROCESS_BYTES);
    SearchResult r = search(mem, path, m, ARRAY_LEN(flag), flag, &o);
    EXPECT(r.ntop > 0 && r.top[0].c.inside);
    EXPECT(r.top[0].seconds == any.top[0].seconds);
}
