/* Tests of pipelines on real MPI ranks: any strategy with stages gives PyTorch's losses,
 * whatever the schedule, however little MPI buffers; runs go on under other stages. */
#include "ranks_matrix.h"

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

enum { MODEL, PP, CHUNKS, SCHEDULE, UNEVEN, MICRO, DP, TP, CP, ZERO, BESIDE, FACTORS };

static const int factor_size[FACTORS] = {2, 2, 2, 6, 2, 3, 2, 2, 3, 4, 2};
enum { WHOLE, ULYSSES, RING };

static int stages_of(const int *v) {
    return 2 << v[PP];
}

static int ranks_of(const int *v) {
    return stages_of(v) << (v[DP] + v[TP] + (v[CP] != WHOLE));
}

/* What the models can be cut into (4 layers, 4 heads, 4 or 2 of keys, 8 sequences); without
 * what would have no effect. */
static bool is_valid(const int *v) {
    int chunks = 1 + v[CHUNKS], micro = 2 << v[MICRO];
    bool one_chunk = v[SCHEDULE] == 1 || v[SCHEDULE] == 4;
    if (stages_of(v) * chunks > 4 || (one_chunk && chunks > 1)) return false;
    if (v[SCHEDULE] == 5 && chunks == 1) return false;
    if (v[SCHEDULE] == 0 && chunks > 1 && micro % stages_of(v)) return false;
    if (ranks_of(v) > 8 || v[DP] + v[MICRO] > 2) return false;
    if ((v[MODEL] ? 2 : 4) % ((v[CP] == ULYSSES ? 2 : 1) << v[TP])) return false;
    return !v[ZERO] || v[DP] || v[CP] != WHOLE;
}

/* An order of the user's: all forward, then all backward, from the first micro-batch on or
 * from the last one; two chunks a stage are placed as a V. */
static const char *own_schedule(int stages, int chunks, int micro, bool reversed) {
    const char *path = in_temp("mine.csv");
    Text t = text_new(mem());
    for (int k = 0; k < stages; k++) {
        int last = 2 * stages - 1 - k;
        for (int i = 0; i < micro; i++) {
            text_add(&t, "%dF%d,", k, i);
            if (chunks > 1) text_add(&t, "%dF%d,", last, i);
        }
        for (int i = 0; i < micro; i++) {
            int b = reversed ? micro - 1 - i : i;
            if (chunks > 1) text_add(&t, "%dB%d,", last, b);
            text_add(&t, "%dB%d,", k, b);
        }
        text_add(&t, "\n");
    }
    write_text(path, t.s);
    return path;
}

#define PC "--parallel_config."
#define PIPELINE(stages, chunks, schedule)                                               \
    PC "pipeline_stage " #stages " " PC "pp_interleave_num " #chunks                     \
       " --parallel.pipeline_config.pipeline_scheduler " #schedule " "

static const char *words_of(const int *v) {
    static const char *const zero[] = {"", ZERO_LEVEL(1), ZERO_LEVEL(2), ZERO_LEVEL(3)};
    static const char *const algorithms[] = {"", "ulysses_cp_algo", "megatron_cp_algo"};
    static const char *const offsets[] = {"[1,-1]", "[1,0,-1,0]", "[0,1,0,-1]"};
    int stages = stages_of(v), chunks = 1 + v[CHUNKS], micro = 2 << v[MICRO];
    const char *const schedules[] = {
        "1f1b",           "gpipe",
        "breadth_first",  own_schedule(stages, chunks, micro, !v[UNEVEN]),
        "zero_bubble_h1", "zero_bubble_v"};
    Text t = text_new(mem());
    text_add(&t, PC "pipeline_stage %d " PC "pp_interleave_num %d ", stages, chunks);
    text_add(&t, "--parallel.pipeline_config.pipeline_scheduler %s ",
             schedules[v[SCHEDULE]]);
    text_add(&t, PC "data_parallel %d " PC "model_parallel %d " PC "micro_batch_num %d ",
             1 << v[DP], 1 << v[TP], micro);
    text_add(&t, "%s", zero[v[ZERO]]);
    if (v[UNEVEN])
        text_add(&t, PC "offset %s ", offsets[chunks > 1 ? 1 : stages == 4 ? 2 : 0]);
    if (v[CP] != WHOLE)
        text_add(&t, PC "context_parallel 2 " PC "context_parallel_algo %s ",
                 algorithms[v[CP]]);
    text_add(&t, "%s--parallel.overlap %s ", ranks_no_starts(),
             v[BESIDE] ? "thread" : "off");
    return t.s;
}

static const Matrix matrix = {.nfactors = FACTORS,
                              .size = factor_size,
                              .every_pair = 42,
                              .valid = is_valid,
                              .ranks = ranks_of,
                              .words = words_of};

TEST(pairs_of_the_matrix) {
    matrix_expect_pairs(&matrix);
}

TEST_LIMIT(matrix_first_part, 1200) {
    matrix_run_part(&matrix, 0);
}
TEST_LIMIT(matrix_second_part, 1200) {
    matrix_run_part(&matrix, 1);
}
TEST_LIMIT(matrix_third_part, 1200) {
    matrix_run_part(&matrix, 2);
}

/* Backward from the last micro-batch on, with states over replicas and messages beside the work. */
TEST_LIMIT(another_order_with_overlap, 300) {
    const char *config = runs_golden_config("gpt2_tiny"), *run = in_temp("run");
    const char *words =
        arena_printf(mem(),
                     PC "pipeline_stage 2 " PC "micro_batch_num 4 " PC "data_parallel 2 "
                        "--parallel.overlap thread " ZERO_LEVEL(
                            1) "--parallel.pipeline_config.pipeline_scheduler %s",
                     own_schedule(2, 1, 4, true));
    ranks_run(4, config, run, words);
    ranks_expect_curve("gpt2_tiny", run, words);
    remove_all(run);
}

/* ---- messages that are not buffered ---- */

static void run_unbuffered(int ranks, const char *words) {
    const char *config = runs_golden_config("gpt2_tiny"), *run = in_temp("run");
    ranks_run(ranks, config, run, words);
    ranks_expect_curve("gpt2_tiny", run, words);
    remove_all(run);
}

static void run_all_unbuffered(void) {
    run_unbuffered(4, PIPELINE(4, 1, 1f1b) PC "micro_batch_num 8 ");
    run_unbuffered(4, PIPELINE(2, 2, breadth_first) PC
                   "micro_batch_num 4 " PC
                   "data_parallel 2 --parallel.overlap thread " ZERO_LEVEL(1));
    if (!test_long()) return;
    run_unbuffered(2, PIPELINE(2, 2, 1f1b) PC "micro_batch_num 4 ");
    run_unbuffered(4, arena_printf(mem(),
                                   PC "pipeline_stage 4 " PC "micro_batch_num 4 "
                                      "--parallel.pipeline_config.pipeline_scheduler %s",
                                   own_schedule(4, 1, 4, true)));
}

/* Every message waits for who receives it: 56 bytes are the head of an empty one. */
TEST_LIMIT(nothing_is_sent_eagerly_in_shared_memory, 180) {
    setenv("OMPI_MCA_btl", "vader,self", 1);
    setenv("OMPI_MCA_btl_vader_eager_limit", "56", 1);
    run_all_unbuffered();
}

TEST_LIMIT(nothing_is_sent_eagerly_over_tcp, 180) {
    setenv("OMPI_MCA_btl", "tcp,self", 1);
    setenv("OMPI_MCA_btl_tcp_eager_limit", "56", 1);
    setenv("OMPI_MCA_btl_tcp_rndv_eager_limit", "56", 1);
    run_all_unbuffered();
}

/* ---- going on ---- */

static const struct {
    int ranks;
    const char *words;
} layouts[] = {
    {1, PC "micro_batch_num 2 "},
    {2, PIPELINE(2, 1, 1f1b) PC "micro_batch_num 4 "},
    {4, PIPELINE(4, 1, gpipe) PC "micro_batch_num 2 " PC "offset [0,1,0,-1] "},
    {2, PIPELINE(2, 2, 1f1b) PC "micro_batch_num 2 "},
    {8, PIPELINE(4, 1, 1f1b) PC "micro_batch_num 4 " PC "data_parallel 2 " ZERO_LEVEL(1)},
    /* the first and the last one have embedding and head alone */
    {4, PIPELINE(4, 1, zero_bubble_h1) PC "micro_batch_num 4 " PC
                                          "num_layer_list [0,2,2,0] "},
};
enum { LAYOUTS = ARRAY_LEN(layouts) };

/* Ten steps under each layout of some, ten more under each other one of some. */
static void go_on(const char *name, int from, const int *to, int n) {
    const char *config = runs_golden_config(name), *half = in_temp("half");
    double worst = 0;
    ranks_run(layouts[from].ranks, config, half,
              arena_printf(mem(), "%s--runner_config.max_steps 10", layouts[from].words));
    for (int i = 0; i < n; i++) {
        const char *run = in_temp(arena_printf(mem(), "run%d", to[i]));
        EXPECT_INT(system(arena_printf(mem(), "cp -r '%s' '%s'", half, run)), 0);
        ranks_run(layouts[to[i]].ranks, config, run, layouts[to[i]].words);
        SAID_EXPECT("resumed after step 10");
        worst = fmax(worst, ranks_expect_curve(name, run, layouts[to[i]].words));
        remove_all(run);
    }
    remove_all(half);
    printf("  %s, layout %d goes on under %d others: worst relative loss %.2g\n", name,
           from, n, worst);
}

TEST_LIMIT(runs_go_on_under_other_stages, 180) {
    go_on("gpt2_tiny", 1, (int[]){0}, 1); /* a tied table */
    go_on("gpt2_tiny", 0, (int[]){2}, 1);
    go_on("gpt2_tiny", 3, (int[]){4}, 1);
    go_on("llama_tiny", 4, (int[]){3}, 1);
}

TEST_LIMIT(runs_go_on_from_any_stages_to_any, 1800) {
    if (!test_long()) test_skip("in the long form");
    for (int m = 0; m < ARRAY_LEN(models); m++)
        for (int from = 0; from < LAYOUTS; from++)
            go_on(models[m], from, (int[]){0, 1, 2, 3, 4, 5}, LAYOUTS);
}

static void go_on_the_same(int ranks, const char *layout) {
    const char *config = runs_small_config(12, 6), *whole = in_temp("whole");
    const char *run = in_temp("run");
    const char *words = arena_printf(
        mem(), "--lr_schedule.total_steps 12 --model.model_config.num_layers 4 %s",
        layout);
    ranks_run(ranks, config, whole, words);
    ranks_run(ranks, config, run,
              arena_printf(mem(), "%s --runner_config.max_steps 6", words));
    ranks_run(ranks, config, run, words);
    SAID_EXPECT("resumed after step 6");
    runs_expect_same_losses(whole, run, 12);
    runs_expect_same_tensors(whole, run, 12);
    remove_all(whole);
    remove_all(run);
}

TEST_LIMIT(the_same_stages_go_on_to_the_same_bits, 180) {
    if (test_long())
        go_on_the_same(2, PIPELINE(2, 1, 1f1b) PC "micro_batch_num 4 --batch_size 1 ");
    go_on_the_same(4, PIPELINE(2, 2, 1f1b) PC
                   "data_parallel 2 --batch_size 1 " ZERO_LEVEL(2));
    if (test_long()) go_on_the_same(4, PIPELINE(4, 1, gpipe) "--batch_size 2 ");
}

/* What a checkpoint of stages predicts is what that of one rank does. */
TEST_LIMIT(predictions_as_of_one_rank, 120) {
    for (int m = !test_long(); m < ARRAY_LEN(models); m++) {
        const char *config = runs_golden_config(models[m]), *first = NULL;
        for (int i = 0; i < LAYOUTS; i++) {
            const char *run = in_temp(arena_printf(mem(), "run%d", i));
            ranks_run(layouts[i].ranks, config, run, layouts[i].words);
            const char *tokens = ranks_predicted(run);
            if (!first) first = tokens;
            EXPECT(strlen(tokens) > 20);
            EXPECT_STR(tokens, first);
            remove_all(run);
        }
    }
}

/* ---- validation, and many ranks ---- */

static const char yaml[] = "seed: 5\n"
                           "model:\n"
                           "  model_config: {type: LlamaConfig, vocab_size: 257,\n"
                           "    seq_length: 32, hidden_size: 32, num_layers: 8,\n"
                           "    intermediate_size: 48, num_heads: 4}\n"
                           "train_dataset:\n"
                           "  data_loader: {type: WebtextDataset, dataset_dir: %s,\n"
                           "    pad_token: 0, split: \"1,1,0\",\n"
                           "    tokenizer_type: ByteTokenizer}\n"
                           "runner_config: {max_steps: 4, eval_iters: 2}\n"
                           "lr_schedule: {learning_rate: 3.e-3, warmup_steps: 1}\n";

/* Lines of 3 to 32 tokens, the short ones together: so micro-batches have other numbers of
 * labels that count, and a mean of their means is another number. */
static const char *web_config(void) {
    const char *config = in_temp("web.yaml"), *data = in_temp("web.jsonl");
    Text t = text_new(mem());
    for (int i = 0; i < 120; i++)
        text_add(&t, "{\"text\": \"%.*s\"}\n", i % 20 < 10 ? 3 : 20 + i % 13,
                 "go on with words until the line is full");
    write_text(data, t.s);
    write_text(config, arena_printf(mem(), yaml, data));
    return config;
}

/* What a run says of its last validation; four digits are printed. */
static double validated(const char *config, int ranks, const char *words,
                        const char *run) {
    static const char mark[] = "validation at step 4: loss ";
    ranks_run(ranks, config, run, words);
    const char *at = strstr(said(), mark);
    EXPECT(at);
    return atof(at + strlen(mark));
}

static void expect_as_one(const char *config, int sequences, int ranks,
                          const char *words) {
    const char *one = in_temp("one"), *many = in_temp("many");
    double want =
        validated(config, 1, arena_printf(mem(), "--batch_size %d ", sequences), one);
    double got = validated(config, ranks, words, many);
    EXPECT(want > 1 && want < 6);
    if (fabs(got - want) > 1.5e-4)
        test_fail(__FILE__, __LINE__, "%s: validation %.4f, one rank %.4f", words, got,
                  want);
    runs_expect_near_losses(one, many, 4);
    remove_all(one);
    remove_all(many);
}

TEST_LIMIT(validation_as_one, 180) {
    const char *config = web_config();
    expect_as_one(config, 8, 2,
                  PIPELINE(2, 4, 1f1b) PC "micro_batch_num 4 "
                                          "--batch_size 2 ");
    expect_as_one(config, 8, 4,
                  PIPELINE(4, 2, breadth_first) PC "micro_batch_num 4 "
                                                   "--batch_size 2 ");
    expect_as_one(config, 8, 8,
                  PIPELINE(2, 1, gpipe) PC
                  "micro_batch_num 2 " PC "data_parallel 2 " PC "model_parallel 2 " PC
                  "sequence_parallel True " PC "vocab_emb_dp False "
                  "--batch_size 2 " ZERO_LEVEL(3));
}

/* The layout of a model of 13 billion parameters, with a small one. */
TEST_LIMIT(thirty_two_ranks_as_one, 300) {
    expect_as_one(web_config(), 16, 32,
                  PIPELINE(4, 2, 1f1b) PC
                  "micro_batch_num 4 " PC "data_parallel 4 " PC
                  "model_parallel 2 --batch_size 1 " ZERO_LEVEL(1));
}

/* ---- values that are too large to be whole ---- */

/* Bytes of the last of two stages. */
static int64_t last_stage_bytes(const char *config, const char *words) {
    RUN_EXPECT(0, arena_printf(mem(), "plan %s -n 2 --json %s", config, words));
    const char *text = strchr(said(), '{'); /* behind notes */
    EXPECT(text != NULL);
    const Json *plan =
        json_parse(mem(), "the plan", text, strlen(text), 1 << 24, EXIT_DATA);
    const Json *stage = json_need(json_need(plan, "pipeline"), "stage")->first;
    return json_i64(json_need(stage->next, "memory_bytes"), 1, INT64_MAX);
}

/* Logits of 512 rows, made and used 128 at a time in forward, on two threads a rank: losses are
 * those of one rank that has them whole. */
TEST_LIMIT(logits_in_parts, 180) {
    static const char small[] =
        "--model.model_config.seq_length 128 --model.model_config.dropout_prob "
        "0.1 --runner_config.max_steps 6 --batch_size 4 " PC "micro_batch_num 2 ";
    static const char *const schedules[] = {"1f1b", "gpipe", "zero_bubble_h1"};
    const char *config = runs_small_config(6, 0), *one = in_temp("one");
    int n, m;
    ranks_run(1, config, one, arena_printf(mem(), "%s--context.tile_size 0B", small));
    const MetricsRow *x = runs_metrics(one, &n);
    EXPECT_INT(n, 6);
    for (int i = 0; i < ARRAY_LEN(schedules); i++) {
        const char
            *many = in_temp("many"),
            *words = arena_printf(
                mem(),
                "%s" PC
                "pipeline_stage 2 --parallel.pipeline_config.pipeline_scheduler %s "
                "--context.threads 2 ",
                small, schedules[i]);
        const char *parts = arena_printf(mem(), "%s--context.tile_size 64KB", words);
        int64_t whole_bytes = last_stage_bytes(
            config, arena_printf(mem(), "%s--context.tile_size 0B", words));
        EXPECT(last_stage_bytes(config, parts) < whole_bytes);
        ranks_run(2, config, many, parts);
        const MetricsRow *y = runs_metrics(many, &m);
        EXPECT_INT(m, 6);
        for (int k = 0; k < n; k++)
            if (!(fabs(x[k].loss - y[k].loss) <= 1e-5 * x[k].loss))
                test_fail(__FILE__, __LINE__, "%s, step %d: loss %.9g, %.9g on one rank",
                          schedules[i], k + 1, y[k].loss, x[k].loss);
        remove_all(many);
    }
}

/* ---- what the run folder says ---- */

static const Json *planned(const char *run) {
    return json_read(mem(), path_join(mem(), run, "plan.json"), 1 << 24, EXIT_DATA);
}

/* Not only what the stage of rank 0 does; with weights that all ranks look for together. */
TEST_LIMIT(the_plan_is_of_all_stages, 120) {
    const char *run = in_temp("run"), *config = runs_golden_config("gpt2_tiny");
    const char *machine = arena_printf(mem(), "%s/../machines/cpu100g.yaml", tests_dir());
    const char *words = arena_printf(
        mem(), "%s --machine %s",
        PIPELINE(2, 1, gpipe) PC "data_parallel 1 " PC "micro_batch_num 2 --batch_size 4 "
                                 "--context.threads 1 --train_steps 1",
        machine);
    ranks_run(2, config, run, words);
    RUN_EXPECT(0, arena_printf(mem(), "plan %s --json -n 2 %s", config, words));
    const Json *said_plan =
        json_parse(mem(), "plan", said(), strlen(said()), 1 << 24, EXIT_DATA);
    const Json *plan = planned(run);
    EXPECT_INT(json_i64(json_need(plan, "ranks"), 0, 100), 2);
    EXPECT_STR(json_string(json_need(plan, "plan_hash")),
               json_string(json_need(said_plan, "plan_hash")));
    const Json *stage = json_need(json_need(plan, "pipeline"), "stage");
    EXPECT_INT(stage->n, 2);
    EXPECT_STR(
        json_string(json_need(stage->first, "plan_hash")),
        json_string(json_need(json_need(json_need(said_plan, "pipeline"), "stage")->first,
                              "plan_hash")));
}
