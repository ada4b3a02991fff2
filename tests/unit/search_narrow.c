/* Tests that a search with fewer free keys finds nothing faster, on the machines that are shipped:
 * pieces may not be slower than plans of small layers, whose messages are sent together. */
#include "command.h"
#include "frontend/config/config_state.h"
#include "frontend/config/machine_file.h"
#include "frontend/search/search.h"

TEST_LABEL(SLOW);
TEST_LABEL(RELEASED);

static const char *const machines[] = {"h100", "a100", "cpu100g"};

/* As a flag, so that passes reckon with it too. */
static char *machine_flag(Arena *mem, int nth) {
    return arena_printf(mem, "--context.machine=%s/../machines/%s.yaml", tests_dir(),
                        machines[nth]);
}

static const char model[] =
    "model:\n  model_config: {type: %s, vocab_size: 301, seq_length: 64, "
    "hidden_size: %d, num_layers: 4, num_heads: 4}\n"
    "runner_config: {batch_size: 2}\n";

static char *config(const char *type, int width) {
    char *path = temp("narrow.yaml");
    write_text(path, arena_printf(arena_new(), model, type, width));
    return path;
}

enum { MOST_FLAGS = 3 };

/* Seconds of the answer; 0: there is none. */
static double answered(const char *path, int nth, int ranks, char *const *flag) {
    Arena *mem = arena_new();
    char *flags[MOST_FLAGS + 1] = {machine_flag(mem, nth)};
    int n = 1;
    for (int i = 0; flag && i < MOST_FLAGS && flag[i]; i++) flags[n++] = flag[i];
    SearchOptions o = search_options(mem, config_files(mem, path), n, flags, ranks);
    SearchResult r = search_run(mem, &o);
    double seconds = r.ntop ? r.top[0].seconds : 0;
    arena_free(mem);
    return seconds;
}

static char *const narrower[][MOST_FLAGS] = {
    {"--parallel.overlap=off"},
    {"--parallel_config.optimizer_shard=False"},
    {"--parallel_config.optimizer_shard=True"},
    {"--parallel_config.model_parallel=2"},
    {"--parallel_config.pipeline_stage=1", "--parallel_config.model_parallel=1",
     "--parallel_config.context_parallel=1"},
    {"--parallel_config.pipeline_stage=2"},
};

TEST_LIMIT(fewer_free_keys_find_nothing_faster, 120) {
    for (int nth = 0; nth < ARRAY_LEN(machines); nth++) {
        const char *type = nth % 2 ? "LlamaConfig" : "GPT2Config";
        const char *path = config(type, nth == 2 ? 64 : 128);
        int ranks = nth == 1 ? 6 : test_long() ? 8 : 4;
        double best = answered(path, nth, ranks, NULL), least = INFINITY;
        EXPECT(best > 0);
        for (int i = 0; i < ARRAY_LEN(narrower); i++) {
            test_at("%s, %s", machines[nth], narrower[i][0]);
            double seconds = answered(path, nth, ranks, narrower[i]);
            EXPECT(seconds > 0);
            EXPECT(best <= seconds * 1.01); /* less is no promise to a search */
            least = MIN(least, seconds);
        }
        printf("  %s: %.4g us, narrowed %.4g us at least\n", machines[nth], 1e6 * best,
               1e6 * least);
    }
}

/* A model of few layers, of which the stages have two and one. What a plan of the balanced list takes
 * too much says nothing of the even one, and no other one fits. */
TEST(an_even_split_fits_where_a_balanced_one_does_not) {
    const char *path = temp("even.yaml");
    write_text(
        path,
        "model:\n  model_config: {type: LlamaConfig, vocab_size: 256, seq_length: 64, "
        "hidden_size: 48, num_layers: 4, num_heads: 3, n_kv_heads: 1}\n"
        "runner_config: {batch_size: 1}\n"
        "parallel_config: {micro_batch_num: 8}\n"
        "context: {threads: 1, cpu: x86-64-v3}\n"); /* bytes are those of any machine */
    Arena *mem = arena_new();
    char *flag[] = {machine_flag(mem, 1),
                    "--parallel_config.pipeline_stage=3",
                    "--parallel_config.context_parallel=2",
                    "--parallel_config.context_parallel_algo=megatron_cp_algo",
                    "--parallel_config.optimizer_shard=True",
                    "--parallel.parallel_optimizer_config.optimizer_level=level1",
                    "--runner_config.batch_size=24",
                    "--parallel.pipeline_config.pipeline_scheduler=zero_bubble_h1",
                    "--recompute_config.recompute=False",
                    "--context.max_device_memory=65137KB"};
    SearchOptions o =
        search_options(mem, config_files(mem, path), ARRAY_LEN(flag), flag, 6);
    SearchResult r = search_run(mem, &o);
    EXPECT(r.ntop > 0 && r.top[0].c.layers == LAYERS_EVEN);
    arena_free(mem);
}

/* A small model with a large vocabulary, most of whose memory pieces do not know of: of all that are fast
 * none fits. */
TEST_LIMIT(the_smallest_is_planned_where_many_do_not_fit, 120) {
    const char *path = temp("vocabulary.yaml"), *machine = temp("machine.yaml");
    write_text(
        path,
        "model:\n  model_config: {type: GPT2Config, vocab_size: 5003, seq_length: 32, "
        "hidden_size: 32, num_layers: 6, num_heads: 2}\n"
        "runner_config: {batch_size: 6}\n"
        "parallel_config: {micro_batch_num: 8}\n"
        "context: {threads: 1, cpu: x86-64-v3}\n"); /* bytes are those of any machine */
    write_text(machine,
               "name: small\ncores: 16\nop_start_us: 2\n"
               "links:\n  host: {start_us: 5, gbytes: 100}\n"
               "  network: {start_us: 20, gbytes: 12}\n"
               "ranks:\n- ranks: 1\n  threads: 1\n  f32_gflops: 5000\n"
               "  bf16_gflops: 50\n  memory: {bytes: [1e6, 1e8], gbytes: [100, 50]}\n");
    Arena *mem = arena_new();
    char *flag[] = {arena_printf(mem, "--context.machine=%s", machine),
                    "--parallel_config.pipeline_stage=1",
                    "--parallel_config.context_parallel=1", "--parallel.overlap=auto",
                    "--context.max_device_memory=56561KB"};
    SearchOptions o =
        search_options(mem, config_files(mem, path), ARRAY_LEN(flag), flag, 4);
    SearchResult r = search_run(mem, &o);
    printf("  %d planned, %s\n", r.planned,
           r.by_bytes ? "the smallest too" : "by seconds");
    EXPECT(r.by_bytes && r.ntop > 0 && !r.gave_up);
    arena_free(mem);
}

static double planned(const char *path, int nth, const char *overlap, int replicas) {
    Arena *mem = arena_new();
    char *flag[] = {machine_flag(mem, nth),
                    arena_printf(mem, "--parallel.overlap=%s", overlap),
                    arena_printf(mem, "--parallel_config.data_parallel=%d", replicas)};
    SearchOptions o =
        search_options(mem, config_files(mem, path), ARRAY_LEN(flag), flag, replicas);
    Config *cfg = config_load(mem, path, ARRAY_LEN(flag), flag);
    int threads = plan_threads(cfg, o.machine, replicas);
    double seconds = plan_cost(mem, cfg, replicas, o.machine, threads, INFINITY).seconds;
    arena_free(mem);
    return seconds;
}

/* What plans have more than pieces, with few layers made again, was counted for any number of them; so with
 * limits between those of two numbers of layers nothing fitted, though the smallest did. */
TEST_LIMIT(more_memory_does_not_lose_the_answer, 120) {
    char *path = arena_printf(arena_new(), "%s/../configs/gpt2_124m.yaml", tests_dir());
    bool found = false;
    for (int megabytes = 464; megabytes <= 544; megabytes += 10) {
        char *limit =
            arena_printf(arena_new(), "--context.max_device_memory=%dMB", megabytes);
        char *const flag[MOST_FLAGS] = {"--parallel_config.data_parallel=4",
                                        "--parallel_config.model_parallel=2", limit};
        bool fits = answered(path, 1, 8, flag) > 0;
        test_at("%d MB", megabytes);
        EXPECT(fits || !found);
        found |= fits;
    }
    EXPECT(found);
}

/* A message of one layer is not worth its start where a layer is small; where it is large, what is
 * hidden is. */
TEST(overlap_auto_is_no_slower_than_off) {
    static const int replicas[] = {2, 8, 64}, widths[] = {64, 256, 4096};
    int faster = 0;
    for (int nth = 0; nth < ARRAY_LEN(machines); nth++)
        for (int k = 0; k < ARRAY_LEN(replicas); k++)
            for (int w = 0; w < ARRAY_LEN(widths); w++) {
                const char *path = config("GPT2Config", widths[w]);
                double on = planned(path, nth, "auto", replicas[k]);
                double off = planned(path, nth, "off", replicas[k]);
                test_at("%s, %d replicas, width %d: %.4g and %.4g us", machines[nth],
                        replicas[k], widths[w], 1e6 * on, 1e6 * off);
                EXPECT(on <= off * 1.02);
                faster += on < off * 0.98;
            }
    EXPECT(faster >= 3);
}

/* What weights are held in beside their rounded copies is in the pieces: they promise no more than
 * plans have, nor much less. */
TEST_LIMIT(bytes_of_pieces_are_near_those_of_plans, 120) {
    static const struct {
        const char *type, *overlap;
        int stages, micro;
    } cases[] = {{"float32", "off", 2, 4},
                 {"bfloat16", "off", 2, 4},
                 {"float32", "auto", 1, 1},
                 {"bfloat16", "auto", 1, 1}};
    for (int k = 0; k < ARRAY_LEN(cases); k++) {
        Arena *mem = arena_new();
        const char *path = config("GPT2Config", 512);
        char *flag[] = {
            machine_flag(mem, 1),
            arena_printf(mem, "--parallel_config.pipeline_stage=%d", cases[k].stages),
            arena_printf(mem, "--parallel_config.micro_batch_num=%d", cases[k].micro),
            arena_printf(mem, "--parallel.overlap=%s", cases[k].overlap),
            "--parallel.parallel_optimizer_config.optimizer_level=level1",
            "--parallel_config.context_parallel=1",
            "--parallel.pipeline_config.pipeline_scheduler=1f1b",
            "--parallel_config.pp_interleave_num=1",
            arena_printf(mem, "--model.model_config.compute_dtype=%s", cases[k].type)};
        SearchOptions o =
            search_options(mem, config_files(mem, path), ARRAY_LEN(flag), flag, 8);
        o.tops = 6;
        SearchResult r = search_run(mem, &o);
        double least = 1, most = 0;
        EXPECT(r.ntop >= 4);
        for (int i = 0; i < r.ntop; i++) {
            const Verified *v = &r.top[i];
            double part = v->c.bytes / (double)v->bytes;
            if (v->c.inside) continue;
            least = MIN(least, part);
            most = MAX(most, part);
        }
        printf("  %s, %d stages, overlap %s: %.3f to %.3f of the plans' bytes\n",
               cases[k].type, cases[k].stages, cases[k].overlap, least, most);
        test_at("%s: %.3f to %.3f", cases[k].type, least, most);
        /* of a whole step on one stage pieces leave out more: what the head makes, say */
        EXPECT(most > 0 && most <= 1.001 && least >= (cases[k].stages > 1 ? 0.85 : 0.55));
        arena_free(mem);
    }
}

/* Seconds by pieces over those of the plan, of one strategy on 8 ranks. */
static double part_of_plan(const char *path, const char *type, const char *overlap,
                           int stages, int level) {
    Arena *mem = arena_new();
    char *flag[] = {
        machine_flag(mem, 1),
        arena_printf(mem, "--parallel_config.pipeline_stage=%d", stages),
        arena_printf(mem, "--parallel_config.data_parallel=%d", 8 / stages),
        arena_printf(mem, "--parallel.overlap=%s", overlap),
        arena_printf(mem, "--parallel.parallel_optimizer_config.optimizer_level=level%d",
                     level),
        "--parallel_config.optimizer_shard=True",
        arena_printf(mem, "--parallel_config.micro_batch_num=%d", 2 * stages),
        "--recompute_config.recompute=False",
        "--parallel.pipeline_config.pipeline_scheduler=1f1b",
        "--parallel_config.pp_interleave_num=1",
        arena_printf(mem, "--model.model_config.compute_dtype=%s", type)};
    SearchOptions o =
        search_options(mem, config_files(mem, path), ARRAY_LEN(flag), flag, 8);
    o.tops = 1;
    SearchResult r = search_run(mem, &o);
    EXPECT(r.ntop > 0);
    double part = r.top[0].c.seconds / r.top[0].seconds;
    arena_free(mem);
    return part;
}

/* Pieces promise no more than plans have, nor much less: with narrow weights somewhat less, as tables
 * that lookups read too are gathered whole, and loops of layers hide less of their messages. */
TEST_LIMIT(seconds_of_pieces_are_near_those_of_plans, 120) {
    static const struct {
        const char *type;
        double least, least_of_3; /* with ZeRO-3 */
    } types[] = {{"float32", 0.97, 0.97}, {"bfloat16", 0.9, 0.8}};
    static const char *const overlaps[] = {"auto", "off"};
    char *path = temp("wide.yaml");
    write_text(
        path, "model:\n  model_config: {type: GPT2Config, vocab_size: 50257, seq_length: "
              "1024, hidden_size: 4096, num_layers: 4, num_heads: 32}\n"
              "runner_config: {batch_size: 2}\n");
    for (int k = 0; k < 24; k++) {
        const char *type = types[k % 2].type, *overlap = overlaps[k / 2 % 2];
        int stages = 1 + k / 4 % 2, level = 1 + k / 8;
        double part = part_of_plan(path, type, overlap, stages, level);
        double least = level == 3 ? types[k % 2].least_of_3 : types[k % 2].least;
        printf("  %s, %d stages, level %d, overlap %s: %.3f\n", type, stages, level,
               overlap, part);
        test_at("%s, %d stages, level %d, overlap %s", type, stages, level, overlap);
        EXPECT(part <= 1.01 && part >= least);
    }
}

/* Many replicas on a machine that sums in the width of half: what the sums take is in the pieces as
 * it is in plans. Where all is sent in one go, to a slow network, little else is in a step. */
TEST_LIMIT(sums_of_pieces_are_as_wide_as_those_of_plans, 120) {
    static const char *const levels[] = {"level1", "level2"};
    for (int k = 0; k < ARRAY_LEN(levels); k++) {
        Arena *mem = arena_new();
        const char *path = config("GPT2Config", 4096);
        char *flag[] = {
            arena_printf(mem, "--context.machine=%s/../machines/%s.yaml", tests_dir(),
                         "a100-megatron"),
            "--parallel_config.data_parallel=64", "--parallel_config.micro_batch_num=1",
            "--parallel.overlap=off",
            arena_printf(mem, "--parallel.parallel_optimizer_config.optimizer_level=%s",
                         levels[k])};
        SearchOptions o =
            search_options(mem, config_files(mem, path), ARRAY_LEN(flag), flag, 64);
        SearchResult r = search_run(mem, &o);
        const Verified *v = &r.top[0];
        printf("  %s: bound %.4g, pieces %.4g, plan %.4g us\n", levels[k],
               1e6 * v->c.bound, 1e6 * v->c.seconds, 1e6 * v->seconds);
        test_at("%s", levels[k]);
        EXPECT(r.ntop > 0 && v->c.seconds <= v->seconds);
        EXPECT(v->c.seconds >= 0.8 * v->seconds);
        arena_free(mem);
    }
}

/* Chunks that all micro-batches go back through before the next one begins need less than all
 * gradients and all activations at once; bytes by pieces are no more than those of plans. */
TEST(chunks_that_go_back_one_by_one) {
    static const char chunks[] =
        "model:\n"
        "  model_config: {type: GPT2Config, vocab_size: 301, seq_length: 64, "
        "hidden_size: 128,\n"
        "                 num_layers: 16, num_heads: 4, compute_dtype: bfloat16}\n"
        "runner_config: {batch_size: 1}\n"
        "parallel_config: {data_parallel: 2, pipeline_stage: 4, pp_interleave_num: 4,\n"
        "                  micro_batch_num: 4, optimizer_shard: True}\n";
    static char *const way[] = {
        "--parallel.pipeline_config.pipeline_scheduler=1f1b",
        "--parallel.pipeline_config.pipeline_scheduler=breadth_first"};
    char *path = temp("chunks.yaml"), *flag[2 + 6];
    int n = 2, planned = 0;
    write_text(path, chunks);
    static char *const fixed[] = {"--parallel_config.data_parallel=2",
                                  "--parallel_config.pipeline_stage=4",
                                  "--parallel_config.pp_interleave_num=4",
                                  "--parallel_config.micro_batch_num=4",
                                  "--recompute_config.recompute=1",
                                  "--parallel_config.optimizer_shard=True"};
    for (int i = 0; i < ARRAY_LEN(fixed); i++) flag[n++] = fixed[i];
    for (int i = 0; i < ARRAY_LEN(way); i++) {
        Arena *mem = arena_new();
        flag[0] = way[i];
        flag[1] = machine_flag(mem, 0);
        SearchOptions o = search_options(mem, config_files(mem, path), n, flag, 8);
        o.tops = 32;
        SearchResult r = search_run(mem, &o);
        for (int k = 0; k < r.ntop; k++, planned++) {
            const Verified *v = &r.top[k];
            test_at("%s: pieces %.4g B, plan %lld B", way[i], v->c.bytes,
                    (long long)v->bytes);
            EXPECT(v->c.bytes <= (double)v->bytes);
        }
        arena_free(mem);
    }
    printf("  %d planned\n", planned);
    EXPECT(planned >= 6);
}

/* Searches with all keys fixed but the layers that are made again, and little more memory than the
 * plan with so many of them takes, beside what a process and batches that are read ahead do. */
typedef struct Tight {
    const char *sizes, *flags, *again;
    int ranks, batch; /* sequences of a step for each rank */
} Tight;

static const Tight tight[] = {
    /* bytes by pieces are the same for many numbers of layers */
    {"type: LlamaConfig, vocab_size: 5000, hidden_size: 128, num_layers: 12, num_heads: "
     "4",
     "--parallel_config.data_parallel=2 --parallel_config.model_parallel=2 "
     "--parallel_config.micro_batch_num=1 --runner_config.batch_size=2 "
     "--parallel_config.optimizer_shard=True "
     "--parallel.parallel_optimizer_config.optimizer_level=level3",
     "6", 4, 1},
    /* the smaller stage needs them as well */
    {"type: LlamaConfig, vocab_size: 3000, hidden_size: 64, num_layers: 12, num_heads: 4",
     "--parallel_config.model_parallel=2 --parallel_config.pipeline_stage=2 "
     "--parallel_config.data_parallel=1 --parallel_config.micro_batch_num=8 "
     "--runner_config.batch_size=4 --parallel_config.optimizer_shard=False "
     "--parallel.pipeline_config.pipeline_scheduler=1f1b",
     "6", 4, 8},
    /* gathers of both gradients and activations are one */
    {"type: GPT2Config, vocab_size: 301, hidden_size: 64, num_layers: 16, num_heads: 4",
     "--parallel_config.model_parallel=4 --parallel_config.pipeline_stage=8 "
     "--parallel_config.data_parallel=1 --parallel_config.micro_batch_num=16 "
     "--runner_config.batch_size=8 --parallel_config.sequence_parallel=True "
     "--parallel.pipeline_config.pipeline_scheduler=zero_bubble_h1",
     "2", 32, 4},
    /* copies go as gradients come */
    {"type: GPT2Config, vocab_size: 301, hidden_size: 128, num_layers: 16, num_heads: 4, "
     "compute_dtype: float16",
     "--parallel_config.data_parallel=4 --parallel_config.micro_batch_num=1 "
     "--runner_config.batch_size=2 --parallel_config.optimizer_shard=True "
     "--parallel.parallel_optimizer_config.optimizer_level=level1",
     "16", 4, 2},
};

static char **words(Arena *mem, const char *text, int *n) {
    char **word = NEW_ARRAY(mem, char *, 32);
    for (char *p = arena_strdup(mem, text); (p = strtok(p, " ")); p = NULL)
        word[(*n)++] = p;
    return word;
}

TEST(what_fits_with_layers_made_again_is_found) {
    enum { BESIDE_KBYTES = (PLAN_PROCESS_BYTES + 1023) / 1024 + 220 };
    for (int i = 0; i < ARRAY_LEN(tight); i++) {
        const Tight *t = &tight[i];
        Arena *mem = arena_new();
        int n = 0;
        test_at("%s, %s", t->sizes, t->flags);
        char *path = temp("tight.yaml");
        write_text(path, arena_printf(mem,
                                      "model:\n  model_config: {%s, seq_length: "
                                      "64}\nrunner_config: {batch_size: %d}\n",
                                      t->sizes, t->batch));
        char **flag = words(mem, t->flags, &n);
        flag[n] = machine_flag(mem, 0);
        flag[n + 1] = arena_printf(mem, "--recompute_config.recompute=%s", t->again);
        SearchOptions o =
            search_options(mem, config_files(mem, path), n + 2, flag, t->ranks);
        SearchResult fixed = search_run(mem, &o);
        EXPECT(fixed.ntop > 0);
        int64_t least = fixed.top[0].bytes;
        for (int k = 0; k < fixed.ntop; k++) least = MIN(least, fixed.top[k].bytes);
        flag[n + 1] =
            arena_printf(mem, "--context.max_device_memory=%lldKB",
                         (long long)((double)least * 1.003 / 1024) + BESIDE_KBYTES);
        o = search_options(mem, config_files(mem, path), n + 2, flag, t->ranks);
        if (!search_run(mem, &o).ntop)
            test_fail(__FILE__, __LINE__, "%s: nothing fits %s", t->sizes, flag[n + 1]);
        arena_free(mem);
    }
}
