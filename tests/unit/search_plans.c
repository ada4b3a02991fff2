/* stator search against planning every strategy there is, of random machines and models: what it
 * answers is the fastest plan, or nearly. */
#include "../draws.h"
#include "../test.h"
#include "frontend/config/config_state.h"
#include "frontend/search/search_state.h"

TEST_LABEL(SLOW);
TEST_LABEL(RELEASED);

static void draw_machine(Random *r, Machine *m, MachineRank *rank) {
    *m = machine_plain;
    *rank = (MachineRank){.ranks = 1, .threads = 1};
    rank->flops[0] = rank->flops[1] = between(r, 1e10, 1e14);
    m->rank = rank;
    m->nranks = 1;
    m->cores = (int)draw(r, 0, 4); /* 0: as many as ranks */
    m->half = between(r, 1, 300);
    m->op_start_seconds = between(r, 1e-7, 1e-5);
    m->hidden = (double)draw(r, 0, 4) / 4;
    m->host_ranks = (int)draw(r, 1, 8);
    for (int l = 0; l < LINK_LEVELS; l++) {
        m->link[l].start_seconds = between(r, 1e-7, 1e-4);
        m->link[l].bytes_per_second = between(r, 1e8, 3e11);
    }
    m->sum_bytes = 2 * (double)draw(r, 0, 1);
}

static char *draw_model(Arena *mem, Random *r) {
    static const char *const type[] = {"GPT2Config", "LlamaConfig"};
    static const char *const numbers[] = {
        "float32", "float32", "bfloat16", "float16",
        "bfloat16, accumulate_allreduce_grads_in_fp32: False, "
        "allreduce_activations_in_fp32: False"};
    int64_t heads = 2 * draw(r, 1, 4), seq = 64 * draw(r, 1, 4);
    const char *yaml = arena_printf(
        mem,
        "model:\n  model_config: {type: %s, vocab_size: %lld, seq_length: %lld, "
        "hidden_size: %lld, num_layers: %lld, num_heads: %lld, "
        "compute_dtype: %s}\n"
        "runner_config: {batch_size: %lld}\n",
        type[draw(r, 0, 1)], (long long)draw(r, 50, 3000), (long long)seq,
        (long long)(heads * 32), (long long)draw(r, 1, 6), (long long)heads,
        numbers[draw(r, 0, ARRAY_LEN(numbers) - 1)], (long long)draw(r, 1, 4));
    char *path = path_join(mem, temp_dir(), "model.yaml");
    EXPECT_INT(file_write_atomic(path, yaml, strlen(yaml)), 0);
    return path;
}

typedef struct All {
    Search *s;
    const SearchOptions *o;
    int64_t n, seen,
        each; /* of the strategies that are seen each so-manieth is planned */
    double best;
    char *keys;
} All;

static void plan_choice(All *a, const Choice *c) {
    Arena *own = arena_new();
    int n;
    Catch caught;
    char **flag = search_flags(own, a->s, c, &n);
    if (CATCH(caught)) {
        Config *cfg = config_load_of(own, a->o->files, n, flag);
        int threads = plan_threads(cfg, a->o->machine, a->o->ranks);
        PlanCost p = plan_cost(own, cfg, a->o->ranks, a->o->machine, threads, INFINITY);
        if (p.seconds < a->best) {
            a->best = p.seconds;
            Text t = text_new(own);
            for (int i = 0; i < n; i++) text_add(&t, "%s ", flag[i]);
            snprintf(a->keys, 1024, "%s", t.s);
        }
        catch_end(&caught);
    }
    a->n++;
    arena_free(own);
}

static void see(void *ctx, const Choice *c) {
    All *a = ctx;
    Choice alone = *c;
    alone.no_overlap = true;
    if (a->seen++ % a->each) return;
    plan_choice(a, c);
    if (c->parts == 1) plan_choice(a, &alone);
}

/* Pieces know nothing of what padding for ZeRO costs in tiny layers, a few percent. */
TEST_LIMIT(no_plan_is_much_faster, 900) {
    static const int ranks[] = {2, 3, 4, 6};
    int cases = test_long() ? 50 : 4;
    int64_t all = 0;
    double worst = 0;
    for (int i = 0; i < cases; i++) {
        Arena *mem = arena_new();
        Random r = {.seed = 5000 + (uint64_t)i};
        Machine m;
        MachineRank rank;
        draw_machine(&r, &m, &rank);
        char *path = draw_model(mem, &r);
        SearchOptions o =
            search_options(mem, config_files(mem, path), 0, NULL, ranks[i % 4]);
        o.machine = &m;
        SearchResult found = search_run(mem, &o);
        char keys[1024] = "";
        All a = {.s = search_open(mem, &o), .o = &o, .best = INFINITY, .keys = keys};
        a.each = test_long() || o.ranks < 4 ? 1 : 3;
        search_each(a.s, see, &a);
        double over = found.top[0].seconds / a.best;
        test_at("case %d, %d ranks, %g s with %s", i, o.ranks, a.best, keys);
        EXPECT(found.ntop > 0 && over < 1.05);
        worst = MAX(worst, over);
        all += a.n;
        arena_free(mem);
    }
    printf("  %d machines and models, %lld plans: the answer takes at most %.4f of the "
           "fastest\n",
           cases, (long long)all, worst);
}

/* ---- with a limit of memory ---- */

typedef struct Point {
    double seconds, bytes;
} Point;

typedef struct Points {
    Search *s;
    const SearchOptions *o;
    Arena *mem;
    Point *p;
    int n, cap;
    int64_t seen, each;
} Points;

/* With so many layers made again. */
static void add_point(Points *a, int n, char **flag, int64_t again) {
    Arena *own = arena_new();
    Catch caught;
    char **all = NEW_ARRAY(own, char *, (size_t)n + 1);
    memcpy(all, flag, (size_t)n * sizeof *all);
    all[n] = arena_printf(own, "--recompute_config.recompute=%lld", (long long)again);
    if (again == 0) all[n] = "--recompute_config.recompute=False";
    if (CATCH(caught)) {
        Config *cfg = config_load_of(own, a->o->files, n + 1, all);
        int threads = plan_threads(cfg, a->o->machine, a->o->ranks);
        PlanCost p = plan_cost(own, cfg, a->o->ranks, a->o->machine, threads, INFINITY);
        Point at = {p.seconds, (double)(p.bytes + p.ahead_bytes)};
        PUSH(a->mem, a->p, a->n, a->cap, at);
        catch_end(&caught);
    }
    arena_free(own);
}

static void see_point(void *ctx, const Choice *c) {
    Points *a = ctx;
    if (c->parts > 1 || a->seen++ % a->each) return;
    for (int alone = 0; alone < 2; alone++) {
        Choice one = *c;
        int n;
        one.no_overlap |= alone;
        char **flag = search_flags(a->mem, a->s, &one, &n);
        for (int64_t k = 0; k <= a->s->layers; k++) add_point(a, n, flag, k);
    }
}

static double fastest_within(const Points *a, double bytes) {
    double best = INFINITY;
    for (int i = 0; i < a->n; i++)
        if (a->p[i].bytes <= bytes) best = MIN(best, a->p[i].seconds);
    return best;
}

static double least_bytes(const Points *a, double seconds) {
    double least = INFINITY;
    for (int i = 0; i < a->n; i++)
        if (a->p[i].seconds <= seconds) least = MIN(least, a->p[i].bytes);
    return least;
}

/* From what the fastest takes down to the least that anything takes. */
TEST_LIMIT(no_plan_that_fits_is_much_faster, 900) {
    enum { LIMITS = 12 };
    int cases = test_long() ? 12 : 2, limits = 0;
    double worst = 0;
    for (int i = 0; i < cases; i++) {
        Arena *mem = arena_new();
        Random r = {.seed = 6000 + (uint64_t)i};
        Machine m;
        MachineRank rank;
        draw_machine(&r, &m, &rank);
        char *path = draw_model(mem, &r);
        char *flag[] = {"--micro_batch_interleave_num=1",
                        "--parallel_config.pipeline_stage=1"};
        int given = i % 2 ? 1 : 2; /* stages are free, too */
        SearchOptions o =
            search_options(mem, config_files(mem, path), given, flag, 2 + i % 3);
        o.machine = &m;
        Points a = {.s = search_open(mem, &o), .o = &o, .mem = mem};
        a.each = test_long() ? 1 : 2;
        search_each(a.s, see_point, &a);
        double most = least_bytes(&a, fastest_within(&a, INFINITY)),
               least = least_bytes(&a, INFINITY);
        for (int k = 0; k <= LIMITS; k++) {
            double room = least + (most - least) * k / LIMITS;
            o.limit_bytes = (double)plan_process_bytes(o.cfg) + room;
            SearchResult found = search_run(mem, &o);
            double best = fastest_within(&a, room);
            EXPECT(found.ntop > 0);
            double over = found.top[0].seconds / best;
            if (over > 1.005)
                test_fail(__FILE__, __LINE__,
                          "case %d, %d ranks, %.0f bytes: %g s, and %g are possible", i,
                          o.ranks, room, found.top[0].seconds, best);
            worst = MAX(worst, over);
            limits++;
        }
        arena_free(mem);
    }
    printf("  %d limits: the answer takes at most %.4f of the fastest that fits\n",
           limits, worst);
}
