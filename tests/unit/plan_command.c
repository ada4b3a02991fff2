/* The command `plan`, and the plan of every file of configs/. */
#include "../plans.h"
#include "base/json.h"
#include "driven.h"
#include <fts.h>

static const char *config_file(void) {
    const char *path = in_temp("small.yaml");
    write_text(path, plan_gpt2);
    return path;
}

TEST(degrees_that_do_not_divide_are_said_where_they_stand) {
    RUN_EXPECT(EXIT_CONFIG,
               arena_printf(mem(), "plan %s --parallel_config.context_parallel 64",
                            config_file()));
    SAID_EXPECT("command line:1:36: error: all-to-all exchanges parts of the sequence");
    SAID_EXPECT("hint: context_parallel_algo megatron_cp_algo");
    RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(), "layer %s -n 7", config_file()));
    SAID_EXPECT("-n 7: error: model_parallel cuts the attention heads");
}

TEST(the_command_prints_and_then_refuses) {
    RUN_EXPECT(EXIT_MEMORY, arena_printf(mem(),
                                         "plan %s -n 4 --parallel_config.model_parallel "
                                         "2 --context.max_device_memory 20MB",
                                         config_file()));
    SAID_EXPECT("ranks     4 = dp 2 x tp 2");
    SAID_EXPECT("2 all_reduce");
    SAID_EXPECT("f32[4,256,1024:tp]");
    SAID_EXPECT(
        "nothing is left of context.max_device_memory, 20MB (21.0 MB in steps of 1000)");
    SAID_EXPECT("\n  process        52.0 MB besides: libraries, MPI");
    RUN_EXPECT(0, arena_printf(mem(), "plan %s", config_file()));
    EXPECT(!strstr(said(), "besides"));
    RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(), "plan %s -n 0", config_file()));
    RUN_EXPECT(EXIT_CONFIG, "plan");
}

/* Seconds of a step on two cores, with the rates of ranks of so many threads. */
static double seconds_with(const char *how, int threads, double share) {
    const char *file = in_temp("machine.yaml");
    write_text(file,
               arena_printf(mem(),
                            "name: own\ncores: 2\n"
                            "links: {host: {start_us: 1, gbytes: 12}, network: "
                            "{start_us: 2, gbytes: 11}}\n"
                            "ranks: [{ranks: 1, threads: %d, f32_gflops: %g, "
                            "bf16_gflops: %g, memory: {bytes: [1e6, 1e8], gbytes: "
                            "[%g, %g]}}]\n",
                            threads, 200 * share, 200 * share, 80 * share, 20 * share));
    RUN_EXPECT(0,
               arena_printf(mem(), "plan %s %s --machine %s", config_file(), how, file));
    bool part = strstr(said(), "their part of them is taken") != NULL;
    const char *at = strstr(said(), "\ntime      ");
    EXPECT(at != NULL);
    EXPECT_INT(part, threads == 2 && !strstr(how, "threads 2"));
    return strtod(at + strlen("\ntime      "), NULL);
}

/* Rates of a rank with all cores are not those of each that has a part of them. */
TEST(ranks_of_fewer_threads_than_measured) {
    static const char *const how[] = {"-n 1 --context.threads 2", "-n 1",
                                      "-n 2 --context.threads 0",
                                      "-n 4 --context.threads 0"};
    for (int i = 0; i < ARRAY_LEN(how); i++) {
        test_at("%s", how[i]);
        double whole = seconds_with(how[i], 2, 1), part = seconds_with(how[i], 1, 0.5);
        EXPECT(i ? fabs(whole / part - 1) < 0.01 : whole < 0.6 * part);
    }
}

TEST(the_json_has_what_the_text_has) {
    RUN_EXPECT(
        0, arena_printf(mem(), "plan %s --json -n 2 --use_parallel True", config_file()));
    const char *text = said();
    const Json *v = json_parse(mem(), "plan", text, strlen(text), 1 << 24, EXIT_DATA);
    EXPECT_INT(json_i64(json_need(v, "ranks"), 0, 100), 2);
    EXPECT_INT(json_i64(json_need(v, "sequences_per_step"), 0, 100), 2 * PLAN_B);
    EXPECT(json_need(v, "placement")->n == 16 && json_need(v, "collectives")->n > 0);
    EXPECT_PART(text, "use_parallel has no effect");
    EXPECT_PART(text, "data_parallel is 2, as 2 ranks are asked for");
}

/* A plan reads no text, and so needs no tokenizer, of whatever data and vocabulary. */
TEST(bytes_are_not_needed) {
    static const char *const data[] = {"embedded", "nowhere.txt"};
    static const char note[] = "training needs --tokenizer_file tokenizer.json: TextFile";
    for (int i = 0; i < ARRAY_LEN(data); i++)
        for (int vocab = 256; vocab <= 257; vocab++) {
            const char *words = arena_printf(
                mem(),
                "%s --train_dataset.data_loader.type TextFile --dataset_dir %s "
                "--model.model_config.vocab_size %d",
                config_file(), data[i], vocab);
            RUN_EXPECT(0, arena_printf(mem(), "plan %s", words));
            EXPECT(!strstr(said(), note) == (vocab == 256));
        }
    write_text(in_temp("pair.idx"), "");
    RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(),
                                         "plan %s --train_dataset.data_loader.type "
                                         "TextFile --dataset_dir %s",
                                         config_file(), in_temp("pair")));
    SAID_EXPECT("type MegatronIndexed, or GPTDataset");
}

/* What fewer threads than a rank has do is not measured: a note says so if that is all. */
TEST(products_too_small_to_be_measured) {
    static const struct {
        int hidden, threads;
        bool small;
    } kinds[] = {{8, 2, true}, {8, 1, false}, {64, 2, false}};
    for (int i = 0; i < ARRAY_LEN(kinds); i++) {
        RUN_EXPECT(0,
                   arena_printf(mem(),
                                "plan %s --context.measure_products_seconds 0.01 "
                                "--model.model_config.hidden_size %d --context.threads "
                                "%d --model.model_config.vocab_size 16 "
                                "--model.model_config.seq_length 32",
                                config_file(), kinds[i].hidden, kinds[i].threads));
        EXPECT(!strstr(said(), "no product is large enough for 2 threads") ==
               !kinds[i].small);
    }
    RUN_EXPECT(0, arena_printf(mem(),
                               "plan %s --model.model_config.hidden_size 8 "
                               "--context.threads 2",
                               config_file()));
    EXPECT(!strstr(said(), "no product is large enough"));
}

/* In the order of the keys' places, one for each degree. */
TEST(degrees_that_do_not_fit) {
    RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(),
                                         "plan %s --parallel_config.context_parallel 3 "
                                         "--parallel_config.model_parallel 5",
                                         config_file()));
    const char *first = strstr(said(), "context_parallel cuts the tokens of a sequence");
    EXPECT(first && strstr(first, "model_parallel cuts the attention heads"));
    EXPECT(!strstr(said(), "width of the MLP") && !strstr(said(), "all-to-all"));
}

/* Whatever is wrong with the stages is told with what is wrong with the degrees, and alone. */
TEST(stages_that_do_not_fit) {
    static const char *const kinds[][2] = {
        {"num_layer_list [3,3]", "the list has 6 layers, the model 4"},
        {"num_layer_list [2,2] --parallel_config.pp_interleave_num 2",
         "num_layer_list has 1 row of 2, but there are 2 stages of 2 chunks"},
        {"num_layers_in_first_pipeline_stage 5", "the first and the last stage leave -1"},
        {"offset [1,1]", "with these offsets the chunks have 6 layers, the model has 4"},
        {"pp_interleave_num 3", "4 layers cannot be cut into 6 chunks"},
        {"num_layer_list [1,3] --recompute_config.recompute 3,3",
         "3 layers of chunk 0 are to be computed again, it has 1"},
    };
    static const char heads[] = "model_parallel cuts the attention heads";
    for (int i = 0; i < ARRAY_LEN(kinds); i++)
        for (int both = 0; both < 2; both++) {
            test_at("%s, %d", kinds[i][0], both);
            RUN_EXPECT(EXIT_CONFIG,
                       arena_printf(mem(),
                                    "plan %s --parallel_config.pipeline_stage 2 "
                                    "--parallel_config.micro_batch_num 2 "
                                    "--parallel_config.%s "
                                    "--parallel_config.model_parallel %d",
                                    config_file(), kinds[i][0], both ? 3 : 1));
            SAID_EXPECT(kinds[i][1]);
            EXPECT(!strstr(said(), heads) == !both);
        }
}

/* Each of these is refused before the model is known. */
TEST(problems_of_a_strategy_are_told_at_once) {
    static const char *const flags[][2] = {
        {"parallel_config.num_layer_list [2,2] --parallel_config.offset [0,0]",
         "both say how many layers"},
        {"parallel_config.context_parallel_algo hybrid_cp_algo",
         "ulysses_degree_in_cp 1"},
        {"parallel.pipeline_config.pipeline_scheduler foo", "unknown schedule 'foo'"},
        {"parallel.comm_fusion.allreduce.mode index", "mode index counts"},
        {"recompute_config.recompute abc", "recompute cannot be \"abc\""},
        {"parallel_config.rank_order tp", "error: rank_order 'tp'"},
    };
    Text words = text_new(mem());
    text_add(&words, "plan %s", config_file());
    for (int i = 0; i < ARRAY_LEN(flags); i++) text_add(&words, " --%s", flags[i][0]);
    RUN_EXPECT(EXIT_CONFIG, words.s);
    for (int i = 0; i < ARRAY_LEN(flags); i++) SAID_EXPECT(flags[i][1]);
}

/* Layers that are all below the threshold, and layers of which one parameter is not. */
TEST(shards_that_split_nothing) {
    const char *words = arena_printf(mem(),
                                     "plan %s -n 2 --model.model_config.hidden_size 16 "
                                     "--parallel.parallel_optimizer_config.",
                                     config_file());
    const char *note = "optimizer_level splits nothing: no parameter has, in one layer,";
    RUN_EXPECT(0, arena_printf(mem(), "%soptimizer_level level3", words));
    SAID_EXPECT(note);
    SAID_EXPECT("the 64 KB of parallel_optimizer_threshold");
    static const char *const some[] = {"parallel_optimizer_threshold 0",
                                       "parallel_optimizer_threshold 1"};
    for (int i = 0; i < ARRAY_LEN(some); i++) {
        RUN_EXPECT(0, arena_printf(mem(),
                                   "%soptimizer_level level3 "
                                   "--parallel.parallel_optimizer_config.%s",
                                   words, some[i]));
        EXPECT(!strstr(said(), "splits nothing"));
    }
}

/* Keys of messages that find none which they are about; with stages nothing is said. */
TEST(messages_that_are_not_there) {
    static const char joins[] = " joins nothing: no two messages",
                      tensor[] = "model_parallel 2", data[] = "data_parallel 2",
                      hides[] = "overlap thread hides nothing";
    static const struct {
        const char *degrees, *flag, *says; /* NULL: neither */
    } kinds[] = {
        {tensor, "parallel.bucket_size 64MB", joins},
        {tensor, "parallel_config.gradient_aggregation_group 2", joins},
        {tensor, "parallel.comm_fusion.allgather.mode size", NULL},
        {tensor,
         "parallel.comm_fusion.allgather.mode size "
         "--parallel.comm_fusion.allgather.config 64",
         joins},
        {tensor, "parallel.bucket_size 0", NULL},
        {tensor, "seed 1", NULL},
        {data, "parallel.bucket_size 64MB", NULL},
        {data, "parallel_config.gradient_aggregation_group 2", NULL},
        {data, "parallel.overlap thread --model.model_config.hidden_size 64", hides},
        {data, "parallel.overlap auto --model.model_config.hidden_size 64", NULL},
        {data, "parallel.overlap thread", NULL},
        {tensor, "parallel.overlap thread", NULL},
        {"pipeline_stage 2 --parallel_config.micro_batch_num 2 "
         "--parallel_config.model_parallel 2",
         "parallel.bucket_size 64MB", NULL},
    };
    for (int i = 0; i < ARRAY_LEN(kinds); i++) {
        test_at("%s --%s", kinds[i].degrees, kinds[i].flag);
        RUN_EXPECT(0, arena_printf(mem(), "plan %s --parallel_config.%s --%s",
                                   config_file(), kinds[i].degrees, kinds[i].flag));
        EXPECT(!strstr(said(), joins) == (kinds[i].says != joins));
        EXPECT(!strstr(said(), hides) == (kinds[i].says != hides));
    }
}

TEST_LABEL_OF(train_has_the_same_plan, RELEASED);
TEST(train_has_the_same_plan) {
    const char *config = config_file(), *run = in_temp("run");
    RUN_EXPECT(0, arena_printf(mem(),
                               "train %s --train_dataset.data_loader.type TextFile "
                               "--model.model_config.vocab_size 256 "
                               "--dataset_dir embedded --train_steps 1 --output_dir %s",
                               config, run));
    const char *path = path_join(mem(), run, "plan.json");
    const char *hash =
        json_string(json_need(json_read(mem(), path, 1 << 24, EXIT_DATA), "plan_hash"));
    RUN_EXPECT(0, arena_printf(mem(),
                               "plan %s --train_dataset.data_loader.type TextFile "
                               "--model.model_config.vocab_size 256",
                               config));
    SAID_EXPECT(hash);
}

/* ---- what is shipped ---- */

typedef struct Shipped {
    const char *file; /* in configs/ */
    int ranks;
    double weights;
    int notes; /* a vocabulary that is padded */
} Shipped;

static const Shipped shipped[] = {
    {"gpt2-tiny.yaml", 1, 0.842e6, 0},
    {"gpt2/run_gpt2.yaml", 1, 124.4e6, 0},
    {"gpt2/run_gpt2_13b.yaml", 32, 12.85e9, 0},
    {"gpt2/run_gpt2_52b.yaml", 128, 51.97e9, 0},
    {"gpt2_124m.yaml", 1, 124.4e6, 0},
    {"gpt2_13b.yaml", 32, 12.85e9, 1},
    {"gpt/run_gpt3_175b.yaml", 1024, 174.6e9, 1},
    {"gpt/run_gpt_39b.yaml", 64, 39.09e9, 0},
    {"llama-tiny.yaml", 1, 0.804e6, 0},
    {"llama/run_llama2_7b.yaml", 8, 6.738e9, 0},
    {"llama/run_llama3_8b.yaml", 16, 8.030e9, 0},
};

static bool is_part(const char *path) {
    return strstr(path, "/base/") || strstr(path, "_config/");
}

/* Every file that is no part of others: as large as it says, on the ranks that it says, below
 * its own limit of memory, and with no key that has no effect. */
TEST_LIMIT(every_file_of_configs, 120) {
    Arena *mem = arena_new();
    char *root[] = {path_join(mem, TESTS_DIR, "../configs"), NULL};
    FTS *tree = fts_open(root, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    EXPECT(tree != NULL);
    int seen = 0;
    for (FTSENT *e; (e = fts_read(tree));) {
        const char *file = e->fts_path + strlen(root[0]) + 1;
        if (e->fts_info != FTS_F || is_part(e->fts_path)) continue;
        const Shipped *s = NULL;
        for (int i = 0; i < ARRAY_LEN(shipped); i++)
            if (!strcmp(shipped[i].file, file)) s = &shipped[i];
        if (!s) test_fail(__FILE__, __LINE__, "configs/%s is not in this test", file);
        Config *cfg = config_load(mem, e->fts_path, 0, NULL);
        Plan p = plan_of_config(mem, cfg, 0);
        plan_check_memory(&p);
        int ranks = p.ranks * (p.pipe ? p.pipe->schedule->stages : 1);
        if (ranks != s->ranks || cfg->n_notes != s->notes ||
            fabs((double)p.parameters / s->weights - 1) > 1e-3)
            test_fail(__FILE__, __LINE__, "configs/%s: %d ranks, %d notes, %.4g weights",
                      file, ranks, cfg->n_notes, (double)p.parameters);
        seen++;
    }
    fts_close(tree);
    EXPECT_INT(seen, ARRAY_LEN(shipped));
}
