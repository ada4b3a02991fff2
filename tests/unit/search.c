/* Tests of stator search: the fastest of all choices against going through every one of them,
 * what must not make an answer worse, and its seconds and bytes against the planner's. */
#include "frontend/search/search.h"
#include "../draws.h"
#include "../test.h"
#include "frontend/config/config_state.h"

TEST_LABEL(SLOW);
TEST_LABEL(RELEASED);

/* ---- machines and models ---- */

typedef struct Made {
    Machine m;
    MachineRank rank;
} Made;

static Made machine_of(Random *r) {
    Made k = {.m = machine_plain};
    k.rank = (MachineRank){.ranks = 1, .threads = 1};
    k.rank.flops[0] = k.rank.flops[1] = between(r, 1e10, 1e14);
    k.m.half = between(r, 1, 300);
    k.m.op_start_seconds = between(r, 1e-7, 1e-5);
    k.m.hidden = (double)draw(r, 0, 4) / 4;
    k.m.host_ranks = (int)draw(r, 1, 8);
    for (int l = 0; l < LINK_LEVELS; l++) {
        k.m.link[l].start_seconds = between(r, 1e-7, 1e-4);
        k.m.link[l].bytes_per_second = between(r, 1e8, 3e11);
    }
    k.m.cores = (int)draw(r, 0, 4); /* 0: as many as ranks */
    return k;
}

static const char *model_of(Arena *mem, Random *r) {
    static const char *const type[] = {"GPT2Config", "LlamaConfig"};
    int64_t heads = 2 * draw(r, 1, 4), seq = 16 * draw(r, 1, 4);
    return arena_printf(
        mem,
        "model:\n  model_config: {type: %s, vocab_size: %lld, seq_length: %lld, "
        "hidden_size: %lld, num_layers: %lld, num_heads: %lld}\n"
        "runner_config: {batch_size: %lld}\n",
        type[draw(r, 0, 1)], (long long)draw(r, 50, 3000), (long long)seq,
        (long long)(heads * 8), (long long)draw(r, 1, 6), (long long)heads,
        (long long)draw(r, 1, 12));
}

static SearchOptions options_of(Arena *mem, const char *yaml, const Machine *m,
                                int ranks) {
    SearchOptions o = {.machine = m, .ranks = ranks, .tops = 1};
    o.cfg = config_parse(mem, "model.yaml", yaml, strlen(yaml));
    o.sequences = o.cfg->runner_config_batch_size * ranks;
    return o;
}

/* ---- every choice ---- */

typedef struct All {
    Search *s;
    Choice best;
    int64_t n, fit;
    double least_bytes, most_bytes;
} All;

static void see(void *ctx, const Choice *c) {
    All *a = ctx;
    Choice own = *c;
    a->n++;
    a->least_bytes = MIN(a->least_bytes, c->bytes);
    a->most_bytes = MAX(a->most_bytes, c->bytes);
    if (c->remade < 0) return;
    a->fit++;
    double seconds = search_seconds(a->s, &own);
    EXPECT(seconds >= c->bound * (1 - 1e-9));
    bool better = seconds < a->best.seconds ||
                  (seconds == a->best.seconds && own.bytes < a->best.bytes);
    if (better) a->best = own;
}

static All go_through(Arena *mem, const SearchOptions *o) {
    All a = {
        .s = search_open(mem, o), .best = {.seconds = INFINITY}, .least_bytes = 1e300};
    search_each(a.s, see, &a);
    return a;
}

static double fastest(Arena *mem, const SearchOptions *o) {
    const Choice *fastest = search_fastest(mem, o);
    return fastest ? fastest->seconds : INFINITY;
}

static int cases(void) { /* 100 in the long form */
    return test_long() ? 100 : 3;
}

TEST_LIMIT(it_finds_what_going_through_all_finds, 240) {
    static const int ranks[] = {1, 2, 3, 4, 6, 8, 12};
    int64_t most = 0, all = 0;
    for (int i = 0; i < cases(); i++) {
        Arena *mem = arena_new();
        Random r = {.seed = (uint64_t)i};
        Made k = machine_of(&r);
        SearchOptions o = options_of(mem, model_of(mem, &r), &k.m, ranks[draw(&r, 0, 6)]);
        k.m.rank = &k.rank;
        k.m.nranks = 1;
        test_at("case %d, %d ranks", i, o.ranks);
        All a = go_through(mem, &o);
        o.limit_bytes = PLAN_PROCESS_BYTES + a.least_bytes +
                        (a.most_bytes - a.least_bytes) / (double)draw(&r, 1, 9);
        a = go_through(mem, &o);
        double found = fastest(mem, &o);
        EXPECT(found == a.best.seconds || (isinf(found) && !a.fit));
        most = MAX(most, a.n);
        all += a.n;
        arena_free(mem);
    }
    printf("  %d machines and models, %lld choices, %lld at most\n", cases(),
           (long long)all, (long long)most);
    EXPECT(most > 100);
}

TEST_LIMIT(more_memory_or_faster_links_are_never_worse, 240) {
    Arena *mem = arena_new();
    for (int i = 0; i < cases(); i++) {
        Random r = {.seed = 1000 + (uint64_t)i};
        Made k = machine_of(&r);
        SearchOptions o = options_of(mem, model_of(mem, &r), &k.m, 8);
        k.m.rank = &k.rank;
        k.m.nranks = 1;
        All a = go_through(mem, &o);
        o.limit_bytes = PLAN_PROCESS_BYTES + (a.least_bytes + a.most_bytes) / 2;
        double before = fastest(mem, &o);
        o.limit_bytes *= 1.5;
        double roomy = fastest(mem, &o);
        k.m.link[LINK_HOST].bytes_per_second *= 2;
        k.m.link[LINK_NETWORK].bytes_per_second *= 2;
        double fast = fastest(mem, &o);
        test_at("case %d: %g, %g, %g", i, before, roomy, fast);
        EXPECT(roomy <= before && fast <= roomy);
    }
    arena_free(mem);
}

/* Both of Megatron-LM's orders are among those that are gone through, and no other but real
 * ones. */
TEST_LIMIT(the_order_of_the_degrees_is_searched, 240) {
    static const char *const words[] = {"tp", "cp", "dp", "pp"};
    Arena *mem = arena_new();
    for (int i = 0; i < (test_long() ? 20 : 2); i++) {
        Random r = {.seed = 3000 + (uint64_t)i};
        Made k = machine_of(&r);
        const char *yaml = model_of(mem, &r);
        char *path = path_join(mem, temp_dir(), "model.yaml");
        EXPECT_INT(file_write_atomic(path, yaml, strlen(yaml)), 0);
        char *flag[] = {"--parallel_config.sequence_parallel=False",
                        "--parallel_config.vocab_emb_dp=True",
                        "--parallel_config.context_parallel=1",
                        "--micro_batch_interleave_num=1", NULL};
        SearchOptions o = options_of(mem, yaml, &k.m, 8);
        k.m.host_ranks = 2 + i % 3;
        k.m.rank = &k.rank;
        k.m.nranks = 1;
        o.flag = flag;
        o.nflags = 4;
        o.cfg = config_load(mem, path, o.nflags, flag);
        double free = fastest(mem, &o), best = INFINITY, usual = INFINITY;
        o.nflags = 5;
        for (int n = 0; n < 256; n++) {
            int a = n & 3, b = n >> 2 & 3, c = n >> 4 & 3, d = n >> 6;
            if ((1 << a | 1 << b | 1 << c | 1 << d) != 15) continue;
            flag[4] = arena_printf(mem, "--parallel_config.rank_order=%s-%s-%s-%s",
                                   words[a], words[b], words[c], words[d]);
            o.cfg = config_load(mem, path, o.nflags, flag);
            double seconds = fastest(mem, &o);
            best = fmin(best, seconds);
            if (!a && b == 1) usual = fmin(usual, seconds);
        }
        test_at("case %d: %.17g of %.17g to %.17g", i, free, best, usual);
        EXPECT(free >= best * (1 - 1e-12) && free <= usual * (1 + 1e-12));
    }
    arena_free(mem);
}

/* ---- with the planner ---- */

static const char *const small =
    "model:\n  model_config: {type: GPT2Config, vocab_size: 2000, seq_length: 64, "
    "hidden_size: 128, num_layers: 6, num_heads: 4}\n"
    "runner_config: {batch_size: 4}\n";

static Made gpus(void) {
    Random r = {.seed = 7};
    Made k = machine_of(&r);
    k.m.host_ranks = 4;
    k.m.hidden = 0.5;
    k.m.cores = 0;
    k.m.link[LINK_HOST] = (Link){1e-6, 1e10, 0};
    k.m.link[LINK_NETWORK] = (Link){5e-6, 2e9, 0};
    k.rank.flops[0] = 1e11;
    return k;
}

static SearchResult run(Arena *mem, Made *k, int nflags, char **flag, SearchOptions *o) {
    char *path = path_join(mem, temp_dir(), "small.yaml");
    EXPECT_INT(file_write_atomic(path, small, strlen(small)), 0);
    k->m.rank = &k->rank;
    k->m.nranks = 1;
    *o = (SearchOptions){.files = config_files(mem, path),
                         .nflags = nflags,
                         .flag = flag,
                         .machine = &k->m,
                         .ranks = 8,
                         .sequences = 32,
                         .tops = 4};
    o->cfg = config_load(mem, path, nflags, flag);
    return search_run(mem, o);
}

/* Pieces leave out what a step does once (norm of the gradients, small collectives) and sums
 * over micro-batches: so plans are slower, by a few percent where layers are not tiny. */
TEST(the_planner_agrees) {
    Arena *mem = arena_new();
    Made k = gpus();
    SearchOptions o;
    SearchResult r = run(mem, &k, 0, NULL, &o);
    double least = INFINITY, most = 0;
    EXPECT(r.ntop >= 1);
    for (int i = 0; i < r.ntop; i++) {
        const Verified *v = &r.top[i];
        double ratio = v->seconds / v->c.seconds;
        if (v->c.inside) continue; /* pieces do not know what that gains */
        test_at("pieces %.5g s %.4g B, plan %.5g s %lld B", v->c.seconds, v->c.bytes,
                v->seconds, (long long)v->bytes);
        EXPECT(v->c.bytes <= (double)v->bytes); /* nothing is left out that fits */
        least = MIN(least, ratio);
        most = MAX(most, ratio);
    }
    printf("  %d plans take %.3f to %.3f of what pieces say\n", r.ntop, least, most);
    EXPECT(least > 0.95 && most < 1.3);
    arena_free(mem);
}

TEST(fixing_the_keys_of_the_answer_gives_it_again) {
    Arena *mem = arena_new();
    Made k = gpus();
    SearchOptions o;
    SearchResult r = run(mem, &k, 0, NULL, &o);
    EXPECT(r.ntop >= 1);
    SearchResult again = run(mem, &k, r.top[0].nflags, r.top[0].flag, &o);
    EXPECT(again.ntop >=
           1); /* parts of a micro-batch, say, are not in the flags of one */
    EXPECT(again.top[0].seconds == r.top[0].seconds);
    EXPECT(again.top[0].bytes == r.top[0].bytes);
    char *one[] = {"--parallel_config.model_parallel=2"};
    SearchResult two = run(mem, &k, 1, one, &o);
    EXPECT(two.ntop >= 1 && two.top[0].seconds >= r.top[0].seconds);
    for (int i = 0; i < two.ntop; i++) EXPECT_INT(two.top[i].c.tp, 2);
    arena_free(mem);
}

/* So that overlap need not be a choice of its own: without it nothing is faster by its pieces. */
TEST_LIMIT(overlap_is_never_slower_by_pieces, 240) {
    Arena *mem = arena_new();
    char *off[] = {"--parallel.overlap=off"};
    for (int i = 0; i < cases(); i++) {
        Random r = {.seed = 2000 + (uint64_t)i};
        Made k = machine_of(&r);
        const char *yaml = model_of(mem, &r);
        char *path = path_join(mem, temp_dir(), "model.yaml");
        EXPECT_INT(file_write_atomic(path, yaml, strlen(yaml)), 0);
        SearchOptions o = options_of(mem, yaml, &k.m, 8);
        k.m.rank = &k.rank;
        k.m.nranks = 1;
        double with = fastest(mem, &o);
        o.nflags = 1;
        o.flag = off;
        o.cfg = config_load(mem, path, 1, off);
        test_at("case %d: %g", i, with);
        EXPECT(with <= fastest(mem, &o) * (1 + 1e-9));
    }
    arena_free(mem);
}

/* Plans of micro-batches in parts have what their pieces say, as others have. */
TEST(the_planner_agrees_on_parts) {
    Arena *mem = arena_new();
    Made k = gpus();
    SearchOptions o;
    char *two[] = {"--micro_batch_interleave_num=2",
                   "--parallel_config.model_parallel=2"};
    SearchResult r = run(mem, &k, 2, two, &o);
    EXPECT(r.ntop >= 1);
    for (int i = 0; i < r.ntop; i++) {
        const Verified *v = &r.top[i];
        double ratio = v->seconds / v->c.seconds;
        if (v->c.inside) continue; /* pieces do not know what that gains */
        test_at("pieces %.5g s %.4g B, plan %.5g s %lld B", v->c.seconds, v->c.bytes,
                v->seconds, (long long)v->bytes);
        if (v->c.no_overlap) continue;
        EXPECT_INT(v->c.parts, 2);
        EXPECT(v->c.bytes <= (double)v->bytes);
        EXPECT(ratio > 0.95 && ratio < 1.3);
    }
    arena_free(mem);
}

/* What gradients of weights read until they are made is in the bytes of pieces. */
TEST(the_planner_agrees_on_halves) {
    static const char *const types[] = {"float32", "bfloat16"};
    static const char *const schedules[] = {"zero_bubble_h1", "zero_bubble_v"};
    for (int i = 0; i < 4; i++) {
        Arena *mem = arena_new();
        Made k = gpus();
        SearchOptions o;
        char *flag[] = {
            i % 2 ? "--parallel_config.pipeline_stage=2"
                  : "--parallel_config.pipeline_stage=4",
            "--recompute_config.recompute=False",
            "--model.model_config.num_layers=16",
            "--model.model_config.vocab_size=200",
            "--model.model_config.seq_length=512",
            "--parallel_config.micro_batch_num=16",
            "--parallel_config.optimizer_shard=True",
            "--parallel.overlap=off",
            arena_printf(mem, "--model.model_config.compute_dtype=%s", types[i / 2]),
            arena_printf(mem, "--parallel.pipeline_config.pipeline_scheduler=%s",
                         schedules[i % 2])};
        SearchResult r = run(mem, &k, ARRAY_LEN(flag), flag, &o);
        double least = INFINITY;
        EXPECT(r.ntop >= 1);
        for (int t = 0; t < r.ntop; t++) {
            const Verified *v = &r.top[t];
            if (v->c.inside) continue; /* pieces do not know what that gains */
            test_at("pieces %.4g B, plan %lld B", v->c.bytes, (long long)v->bytes);
            EXPECT(v->c.bytes <= (double)v->bytes);
            least = MIN(least, v->c.bytes / (double)v->bytes);
        }
        printf("  %s, %s: %d plans, of which pieces have %.3f of the bytes at least\n",
               schedules[i % 2], types[i / 2], r.ntop, least);
        EXPECT(least > 0.75); /* 0.58 to 0.73 without what waits */
        arena_free(mem);
    }
}

static void note_chunks(void *ctx, const Choice *c) {
    *(unsigned *)ctx |= 1U << c->chunks;
}

/* The first chunks have one more then, as in a plan without a list. */
TEST(chunks_of_unequal_layers_are_tried_where_there_are_no_others) {
    static const struct {
        const char *schedule;
        int layers, pp;
        unsigned tried; /* by chunks of a stage */
        int chunks;
    } rows[] = {{"zero_bubble_v", 6, 2, 1U << 2, 2},
                {"zero_bubble_v", 17, 4, 1U << 2, 2},
                {"1f1b", 7, 2, 1U << 1 | 1U << 2, 3}, /* 3 when asked for */
                {"1f1b", 10, 4, 1U << 1 | 1U << 2, 2},
                {"1f1b", 10, 2, 1U << 1 | 1U << 5, 5}};
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        Arena *mem = arena_new();
        Made k = gpus();
        SearchOptions o;
        char *flag[] = {
            arena_printf(mem, "--parallel_config.pipeline_stage=%d", rows[i].pp),
            arena_printf(mem, "--model.model_config.num_layers=%d", rows[i].layers),
            arena_printf(mem, "--parallel.pipeline_config.pipeline_scheduler=%s",
                         rows[i].schedule),
            "--model.model_config.vocab_size=200",
            arena_printf(mem, "--parallel_config.pp_interleave_num=%d", rows[i].chunks)};
        SearchResult r = run(mem, &k, ARRAY_LEN(flag), flag, &o);
        EXPECT(r.ntop >= 1);
        for (int t = 0; t < r.ntop; t++) {
            const Verified *v = &r.top[t];
            EXPECT_INT(v->c.chunks, rows[i].chunks);
            if (v->c.inside) continue; /* pieces do not know what that gains */
            test_at("case %d: pieces %.4g s %.4g B, plan %.4g s %lld B", i, v->c.seconds,
                    v->c.bytes, v->seconds, (long long)v->bytes);
            EXPECT(v->c.bytes <= (double)v->bytes);
            EXPECT(v->seconds / v->c.seconds > 0.95 && v->seconds / v->c.seconds < 1.3);
        }
        unsigned tried = 0;
        o.nflags--;
        o.cfg = config_load_of(mem, o.files, o.nflags, flag);
        search_each(search_open(mem, &o), note_chunks, &tried);
        EXPECT_INT(tried, rows[i].tried);
        arena_free(mem);
    }
}

/* A row for the nth chunks of all stages, in the order of the stages in a V too. */
TEST(a_list_of_layers_is_taken_as_it_is) {
    static char *const ways[][2] = {
        {"--parallel_config.num_layer_list=[[2,1],[2,1]]", "1f1b"},
        {"--parallel_config.num_layer_list=[[3,0],[3,0]]", "zero_bubble_v"}};
    for (int w = 0; w < ARRAY_LEN(ways); w++) {
        Arena *mem = arena_new();
        Made k = gpus();
        SearchOptions o;
        char *flag[] = {ways[w][0],
                        arena_printf(mem,
                                     "--parallel.pipeline_config.pipeline_scheduler=%s",
                                     ways[w][1])};
        SearchResult r = run(mem, &k, 2, flag, &o);
        EXPECT(r.ntop >= 1);
        for (int i = 0; i < r.ntop; i++) {
            const Verified *v = &r.top[i];
            test_at("%s: pieces %.4g s, plan %.4g s", ways[w][1], v->c.seconds,
                    v->seconds);
            EXPECT_INT(v->c.pp, 2);
            EXPECT_INT(v->c.chunks, 2);
            EXPECT_INT(v->c.layers, LAYERS_GIVEN);
            EXPECT(v->c.inside || v->seconds < 1.3 * v->c.seconds);
        }
        arena_free(mem);
    }
}

/* With a head that is as much work as some layers, on the stage of a V that has both ends. */
TEST(chunks_of_a_v_are_balanced) {
    Arena *mem = arena_new();
    Made k = gpus();
    SearchOptions o;
    char *flag[] = {"--parallel_config.pipeline_stage=2",
                    "--model.model_config.num_layers=12",
                    "--model.model_config.vocab_size=4000",
                    "--parallel.pipeline_config.pipeline_scheduler=zero_bubble_v", NULL};
    SearchResult r = run(mem, &k, 4, flag, &o);
    EXPECT(r.ntop >= 1);
    const Verified *best = &r.top[0];
    EXPECT_INT(best->c.layers, LAYERS_BALANCED);
    double balanced = best->seconds;
    const char *list = NULL;
    for (int i = 0; i < best->nflags; i++)
        if (strstr(best->flag[i], "num_layer_list=[[")) list = best->flag[i];
    EXPECT(list);
    test_at("%s", list);
    EXPECT(best->seconds < 1.3 * best->c.seconds && best->c.bytes <= (double)best->bytes);
    flag[4] = "--parallel_config.num_layer_list=[[3,3],[3,3]]";
    r = run(mem, &k, 5, flag, &o);
    EXPECT(r.ntop >= 1 && balanced < 0.95 * r.top[0].seconds);
    flag[4] = arena_strdup(mem, list);
    r = run(mem, &k, 5, flag, &o);
    EXPECT(r.ntop >= 1 && r.top[0].seconds == balanced);
    arena_free(mem);
}
