/* stage_layers.c - the layers of each chunk of a pipeline by lists, ends and offsets: how
 * they are read, shared out and refused. */
#include "frontend/model/stage_layers.h"
#include "../plans.h"
#include "configs.h"

#define PC "parallel_config."

/* ---- as written ---- */

static void expect_table(const Config *cfg, const char *want) {
    Arena *a = arena_new();
    EXPECT_STR(config_value(cfg, a, PC "num_layer_list"), want);
    expect_round_trip(cfg);
    arena_free(a);
}

TEST(a_list_reads_the_same_however_it_is_written) {
    static const char *const texts[] = {
        "parallel_config: {num_layer_list: [[4,4],[4,2]]}",
        "parallel_config: {num_layer_list: \"[[4,4],[4,2]]\"}",
        "parallel_config:\n  num_layer_list:\n  - [4, 4]\n  -\n    - 4\n    - 2\n",
        "parallel_config: {layer_list: ' [[4, 4], [4, 2]]'}",
        "layer_list: [[4,4],[4,2]]",
        "num_layer_list: [[4,4],[4,2]]"};
    for (int i = 0; i < ARRAY_LEN(texts); i++)
        expect_table(parse(texts[i]), "[[4, 4], [4, 2]]");
    expect_table(FLAGS("--parallel_config.num_layer_list", "[[4,4],[4,2]]"),
                 "[[4, 4], [4, 2]]");
    expect_table(FLAGS("--parallel-config.num-layer-list=[[4, 4], [4, 2]]"),
                 "[[4, 4], [4, 2]]");
    expect_table(FLAGS("--layer_list", "3,3,2"), "[3, 3, 2]");
    expect_table(parse("parallel_config: {num_layer_list: [3, 3, 2]}"), "[3, 3, 2]");
    expect_table(parse("parallel_config: {num_layer_list: '3,3,2'}"), "[3, 3, 2]");
    expect_table(parse("parallel_config: {num_layer_list: [[3], [2]]}"), "[[3], [2]]");
    expect_table(parse("parallel_config: {num_layer_list: }"), "[]");
    EXPECT_INT(parse("parallel_config: {offset: '1,-1'}")->parallel_config_offset.columns,
               2);
}

TEST(what_is_no_list_is_refused_where_it_is) {
    static const char *const cases[][2] = {
        {"{num_layer_list: [[4, 4], [4]]}",
         "t.yaml:1:44: error: parallel_config.num_layer_list: row 2 has 1 numbers, the "
         "first one has 2"},
        {"{num_layer_list: [[4, 4], 4]}", "t.yaml:1:44: error: "},
        {"{num_layer_list: [4, [4, 4]]}", "t.yaml:1:39: error: "},
        {"{num_layer_list: [[4, x]]}",
         "t.yaml:1:40: error: parallel_config.num_layer_list "
         "must be a list of lists of whole numbers, not"},
        {"{num_layer_list: [[4, -1]]}", "must be 0 to 4096, not -1"},
        {"{num_layer_list: [[], []]}", "must be a list of lists"},
        {"{num_layer_list: '[[4, 4'}", "t.yaml:1:35: error: "},
        {"{num_layer_list: {a: 1}}", "must be a list of lists of whole numbers, not a"}};
    Arena *a = arena_new();
    for (int i = 0; i < ARRAY_LEN(cases); i++)
        EXPECT_FAIL(parse(arena_printf(a, "parallel_config: %s", cases[i][0])),
                    EXIT_CONFIG, cases[i][1]);
    arena_free(a);
}

TEST(names_of_other_programs) {
    EXPECT_FAIL(FLAGS("--decoder-first-pipeline-num-layers", "3"), EXIT_CONFIG,
                "did you mean parallel_config.num_layers_in_first_pipeline_stage?");
    EXPECT_FAIL(FLAGS("--decoder-last-pipeline-num-layers", "3"), EXIT_CONFIG,
                "did you mean parallel_config.num_layers_in_last_pipeline_stage?");
    EXPECT_FAIL(FLAGS("--accelerate_config.parallelization.pipeline.layer_list", "[4]"),
                EXIT_CONFIG, "did you mean parallel_config.num_layer_list?");
    EXPECT_FAIL(parse("accelerate_config: {parallelization: {pipeline: {layer_list: "
                      "[4]}}}"),
                EXIT_CONFIG, "stator import reads a file of MindSpeed-Core-MS");
    EXPECT_FAIL(parse("parallel: {pipeline: 2, tensor: {mode: 1d, size: 2}}"),
                EXIT_CONFIG, "parallel_config.model_parallel is its size, of mode 1d");
    EXPECT_FAIL(FLAGS("--tp_size", "4"), EXIT_CONFIG,
                "did you mean parallel_config.model_parallel?");
    EXPECT_FAIL(FLAGS("--zero_stage", "2"), EXIT_CONFIG,
                "parallel.parallel_optimizer_config.optimizer_level: level1 to level3");
    EXPECT_FAIL(FLAGS("--num-layers-per-vpp", "4"), EXIT_CONFIG,
                "parallel_config.num_layer_list has the layers of every chunk");
}

/* ---- shared out ---- */

static const char *shared(Arena *a, const StageLayers *s, const PipeSchedule *p,
                          int64_t layers) {
    const int64_t *n = stage_layers(s, a, p, layers);
    Text t = text_new(a);
    for (int c = 0; c < p->chunks; c++)
        text_add(&t, "%s%lld", c ? " " : "", (long long)n[c]);
    return t.s;
}

/* Of the chunks in the order of the model. */
TEST(a_column_is_a_stage_wherever_its_chunks_are) {
    static const int64_t items[] = {1, 2, 3, 4};
    const StageLayers list = {.list = {items, 2, 2}};
    Arena *a = arena_new();
    PipeSchedule *round = schedule_make(a, "1f1b", 2, 4, 2);
    PipeSchedule *vee = schedule_make(a, "zero_bubble_v", 2, 4, 2);
    PipeSchedule *mine = schedule_parse(a, "mine.csv",
                                        "1F0,2F0,2B0,1B0\n"
                                        "0F0,3F0,3B0,0B0\n",
                                        1);
    EXPECT_STR(shared(a, &list, round, 10), "1 2 3 4");
    EXPECT_STR(shared(a, &list, vee, 10), "1 2 4 3");
    EXPECT_STR(shared(a, &list, mine, 10), "2 1 3 4");
    PipeSchedule *askew = schedule_parse(a, "askew.csv",
                                         "0F0,1F0,2F0,2B0,1B0,0B0\n"
                                         "3F0,3B0\n",
                                         1);
    EXPECT_FAIL(shared(a, &list, askew, 10), EXIT_CONFIG,
                "num_layer_list has 2 rows, but schedule askew.csv gives stage 0 3 "
                "chunks");
    arena_free(a);
}

TEST(the_ends_and_the_rest) {
    const StageLayers none = {0}, first = {.has_first = true, .first = 2},
                      last = {.has_last = true, .last = 0},
                      both = {.has_first = true, .has_last = true, .first = 2, .last = 4};
    Arena *a = arena_new();
    PipeSchedule *four = schedule_make(a, "1f1b", 4, 4, 4);
    PipeSchedule *two = schedule_make(a, "1f1b", 2, 2, 4);
    PipeSchedule *eight = schedule_make(a, "1f1b", 4, 8, 4);
    PipeSchedule *vee = schedule_make(a, "zero_bubble_v", 3, 6, 4);
    EXPECT_STR(shared(a, &none, four, 10), "3 3 2 2");
    EXPECT_STR(shared(a, &first, four, 11), "2 3 3 3");
    EXPECT_STR(shared(a, &last, four, 9), "3 3 3 0");
    EXPECT_STR(shared(a, &both, four, 12), "2 3 3 4");
    EXPECT_STR(shared(a, &both, two, 6), "2 4");
    EXPECT_STR(shared(a, &both, eight, 14), "1 2 2 2 1 2 2 2");
    EXPECT_STR(shared(a, &both, vee, 14), "1 4 2 2 4 1");
    EXPECT_FAIL(shared(a, &first, four, 12), EXIT_CONFIG,
                "leave 10 of 12 layers to 3 others, which cannot share them evenly");
    EXPECT_FAIL(shared(a, &both, two, 7), EXIT_CONFIG, "leave 1 of 7 layers to 0 others");
    EXPECT_FAIL(shared(a, &both, four, 5), EXIT_CONFIG, "leave -1 of 5 layers");
    EXPECT_FAIL(shared(a, &first, eight, 11), EXIT_CONFIG,
                "3 layers of stage 1 cannot be divided over its 2 chunks");
    arena_free(a);
}

TEST(noop_layers_take_a_place) {
    static const int64_t ids[] = {9, 0, 5}, items[] = {6, 4}, offset[] = {-3, 3};
    const IntList noop = {ids, 3};
    const StageLayers even = {.noop = noop}, list = {.list = {items, 1, 2}, .noop = noop},
                      moved = {.offset = {offset, 2}, .noop = noop},
                      ends = {.has_first = true, .first = 1, .noop = noop};
    Arena *a = arena_new();
    PipeSchedule *two = schedule_make(a, "1f1b", 2, 2, 4);
    EXPECT_STR(shared(a, &even, two, 7), "4 3");
    EXPECT_STR(shared(a, &list, two, 7), "4 3");
    EXPECT_STR(shared(a, &moved, two, 7), "1 6");
    EXPECT_STR(shared(a, &ends, two, 7), "0 7");
    EXPECT_FAIL(shared(a, &list, two, 8), EXIT_CONFIG,
                "the list has 10 layers, the model 11 with noop_layers");
    arena_free(a);
}

/* ---- planned ---- */

static const char yaml_62[] = "model:\n"
                              "  model_config: {vocab_size: 64, seq_length: 8,\n"
                              "    hidden_size: 8, num_layers: 62, num_heads: 1}\n"
                              "runner_config: {batch_size: 1}\n"
                              "context: {threads: 1}\n"
                              "parallel_config:\n"
                              "  pipeline_stage: 4\n"
                              "  pp_interleave_num: 4\n"
                              "  micro_batch_num: 4\n"
                              "  num_layer_list: \"%s\"\n"
                              "%s";

static Plan plan_62(Arena *mem, const char *list, const char *more) {
    return plan_of(mem, arena_printf(mem, yaml_62, list, more), "");
}

TEST(the_list_of_the_published_configuration) {
    Arena *mem = arena_new();
    Plan p = plan_62(mem, "[[4,4,4,4],[4,4,4,4],[4,4,4,4],[4,4,4,2]]", "");
    for (int c = 0; c < 16; c++) EXPECT_INT(p.pipe->layers[c], c < 15 ? 4 : 2);
    arena_free(mem);
}

/* Where, and what to write. */
TEST(lists_that_do_not_fit_are_refused) {
    static const char *const cases[][3] = {
        {"[[4,4,4,4],[4,4,4,4],[4,4,4,4],[4,4,4,4]]", "",
         "plan.yaml:10:19: error: the list has 64 layers, the model 62"},
        {"[[4,4,4,4],[4,4,4,4],[4,4,4,4],[4,4,4,1]]", "",
         "the list has 61 layers, the model 62"},
        {"[16,16,16,14]", "",
         "plan.yaml:10:19: error: num_layer_list has 1 row of 4, but there are 4 stages "
         "of 4 chunks: it must have 4 rows of 4"},
        {"[[31,31]]", "", "has 1 row of 2, but"},
        {"[[4,4,4,4],[4,4,4,4],[4,4,4,4],[4,4,4,2]]", "  offset: [1]\n",
         "plan.yaml:10:19: error: parallel_config.num_layer_list and "
         "parallel_config.offset"},
        {"[16,16,16,14]", "  num_layers_in_last_pipeline_stage: 3\n",
         "both say how many layers a stage has"}};
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(cases); i++)
        EXPECT_FAIL(plan_62(mem, cases[i][0], cases[i][1]), EXIT_CONFIG, cases[i][2]);
    arena_free(mem);
}

static const char yaml_64[] = "model:\n"
                              "  model_config: {vocab_size: 64, seq_length: 8,\n"
                              "    hidden_size: 8, num_layers: 64, num_heads: 1}\n"
                              "runner_config: {batch_size: 1}\n"
                              "context: {threads: 1}\n"
                              "parallel_config:\n"
                              "  pipeline_stage: 4\n"
                              "  pp_interleave_num: 4\n"
                              "  micro_batch_num: 4\n"
                              "  noop_layers: \"60,61\"\n";

/* The same programs, and so the same initial weights. */
TEST(noop_layers_plan_what_the_list_does) {
    Arena *mem = arena_new();
    Config *cfg = plan_config(mem, yaml_64, "");
    Plan p = plan_of_config(mem, cfg, 0);
    Plan want = plan_62(mem, "[[4,4,4,4],[4,4,4,4],[4,4,4,4],[4,4,4,2]]", "");
    EXPECT_STR(p.pipe->hash, want.pipe->hash);
    EXPECT(cfg->model_output_init_std == 0.02 / sqrt(2.0 * 62));
    EXPECT(has_note(cfg, "plan.yaml:10: 64 layers, 2 of them noop: 62 are trained"));
    EXPECT_STR(plan_of(mem, plan_gpt2, PC "noop_layers 3,1").hash,
               plan_of(mem, plan_gpt2, "model.model_config.num_layers 2").hash);
    arena_free(mem);
}

TEST(noop_layers_that_cannot_be_are_refused) {
    static const char *const cases[][2] = {
        {"1,4", "noop_layers has 4, but the last of 4 layers is 3"},
        {"1,1", "noop_layers has 1 twice"},
        {"0,1,2,3", "noop_layers leaves none of 4 layers"},
        {"0,1,2,3,4,5", "noop_layers has 4, but the last"},
        {"-1", "must be 0 to 4095, not -1"},
        {"all", "must be a list of whole numbers, not \"all\""}};
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(cases); i++)
        EXPECT_FAIL(
            plan_of(mem, plan_gpt2, arena_printf(mem, PC "noop_layers %s", cases[i][0])),
            EXIT_CONFIG, cases[i][1]);
    const char *module = path_join(mem, TESTS_DIR, "ir/residual_mlp.ir");
    EXPECT_FAIL(plan_of(mem, "context: {threads: 1}\n",
                        arena_printf(mem, "model.file %s " PC "noop_layers 1", module)),
                EXIT_CONFIG, "says itself what its layers are");
    arena_free(mem);
}

#define STAGES PC "pipeline_stage 2 " PC "pp_interleave_num 2 micro 2 "
#define VEE    "parallel.pipeline_config.pipeline_scheduler zero_bubble_v "

static const char *hash_of(Arena *mem, const char *keys) {
    return plan_of(mem, plan_gpt2, keys).pipe->hash;
}

TEST(a_list_plans_what_an_offset_does) {
    Arena *mem = arena_new();
    EXPECT_STR(hash_of(mem, STAGES PC "num_layer_list [[2,1],[1,0]]"),
               hash_of(mem, STAGES PC "offset [1,0,0,-1]"));
    EXPECT_STR(hash_of(mem, STAGES VEE PC "num_layer_list [[2,0],[1,1]]"),
               hash_of(mem, STAGES VEE PC "offset [1,-1,0,0]"));
    EXPECT_STR(hash_of(mem, STAGES PC "num_layer_list [[1,1],[1,1]]"),
               hash_of(mem, STAGES));
    EXPECT_STR(hash_of(mem, PC "pipeline_stage 2 micro 2 " PC
                               "num_layers_in_first_pipeline_stage 1"),
               hash_of(mem, PC "pipeline_stage 2 micro 2 " PC "num_layer_list [1,3]"));
    arena_free(mem);
}

#define MODULE(name) "model.file %s/ir/" name " " PC "pipeline_stage 4 micro 2 "

/* A module that says itself where its chunks begin, and one that should. */
TEST(modules_without_loops) {
    Arena *mem = arena_new();
    const char *threads = "context: {threads: 1}\n"
                          "train_dataset: {data_loader: {type: Tensors}}\n";
    const char *marked = arena_printf(mem, MODULE("plain_mlp.ir"), tests_dir());
    const char *plain = arena_printf(mem, MODULE("mlp.ir"), tests_dir());
    Plan p = plan_of(mem, threads, marked);
    EXPECT_INT(p.pipe->schedule->chunks, 4);
    for (int k = 0; k < 4; k++)
        EXPECT(p.pipe->stage[k].memory.class_bytes[MEM_WEIGHTS] > 0);
    EXPECT_FAIL(plan_of(mem, threads,
                        arena_printf(mem, "%s" PC "num_layer_list [1,1,1,1]", marked)),
                EXIT_CONFIG,
                "parallel_config.num_layer_list is given, but ops of module @plain_mlp "
                "say where its chunks begin");
    EXPECT_FAIL(plan_of(mem, threads, plain), EXIT_CONFIG,
                "0 layers cannot be cut into 4 chunks");
    EXPECT_FAIL(plan_of(mem, threads, plain), EXIT_CONFIG,
                "a module without loops says stage=K on the op that begins chunk K");
    arena_free(mem);
}

TEST(fewer_layers_than_chunks_are_told_at_the_key) {
    Arena *mem = arena_new();
    EXPECT_FAIL(plan_of(mem, plan_gpt2,
                        "model.model_config.num_layers 1 " PC "pipeline_stage 4 " PC
                        "micro_batch_num 4"),
                EXIT_CONFIG,
                "error: 1 layer cannot be cut into 4 chunks: "
                "parallel_config.pipeline_stage 4 x pp_interleave_num 1\n"
                "    --parallel_config.pipeline_stage 4\n");
    arena_free(mem);
}

TEST(without_stages_a_line_says_that_they_do_nothing) {
    Arena *mem = arena_new();
    Config *cfg = plan_config(mem, plan_gpt2, PC "num_layer_list [1,3]");
    plan_of_config(mem, cfg, 0);
    EXPECT(has_note(cfg, "num_layer_list has no effect: pipeline_stage is 1"));
    arena_free(mem);
}
