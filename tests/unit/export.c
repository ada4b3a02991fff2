/* export.c - stator export: a strategy as flags of Megatron-LM, which stator import takes for the
 * same again. */
#include "base/rng.h"
#include "command.h"
#include "frontend/config/commands.h"
#include "frontend/plan/plan.h"
#include "frontend/tools/megatron_export.h"
#include "tests/import.h"

#define PC   "--parallel_config."
#define ZERO "--parallel.parallel_optimizer_config."

enum { MOST = 128 };

typedef struct Keys {
    char *key[MOST];
    int n;
} Keys;

static void add(Keys *k, const char *text) {
    char *words[MOST];
    int n = words_of(text, words, MOST);
    for (int i = 0; i < n; i++) {
        check(k->n < MOST);
        k->key[k->n++] = words[i];
    }
}

static bool narrow; /* numbers of the model: bf16 */

/* The model of tests/import.h with keys behind it. */
static Keys keys_of(const char *flags, int64_t ranks, const char *keys) {
    /* tensor parallelism does not change it, then */
    const char *vocabulary = "--padded-vocab-size 1536", *bf16 = narrow ? "--bf16" : "";
    Megatron *m = read_words(
        arena_printf(mem(), "%s%s %s %s", base, vocabulary, bf16, flags), ranks);
    Keys k = {.n = m->nkeys};
    check(k.n < MOST);
    memcpy(k.key, m->key, (size_t)k.n * sizeof *k.key);
    add(&k, keys);
    return k;
}

static MegatronExport export_of(Config *cfg, int64_t *ranks) {
    Job *j = job_to_plan(mem(), cfg);
    PassOptions o = strategy_pass_options(cfg);
    job_module(j, &o);
    *ranks = strategy_ranks(&j->strategy);
    return megatron_export(mem(), j, &o);
}

static Config *config_with(const char *keys) {
    Keys k = keys_of("", 0, keys);
    return config_load(mem(), NULL, k.n, k.key);
}

static char *flags_of(const char *keys, const char **notes) {
    int64_t ranks;
    MegatronExport e = export_of(config_with(keys), &ranks);
    Text t = text_new(mem());
    for (int i = 0; i < e.nnotes; i++) text_add(&t, "%s\n", e.note[i]);
    *notes = t.s;
    return e.flags.s;
}

/* Flags as words: lines without their ends. */
static char *joined(const char *lines) {
    char *s = arena_strdup(mem(), lines);
    for (char *p = s; (p = strchr(p, '\n'));) *p = ' ';
    return s;
}

/* ---- there and back ---- */

static uint64_t drawn;

static const char *draw(const char *const *from, int n) {
    return from[(int)(rng_uniform(17, 0, drawn++) * n)];
}

#define DRAW(...)                                                                        \
    draw((const char *const[]){__VA_ARGS__},                                             \
         ARRAY_LEN(((const char *const[]){__VA_ARGS__})))

/* What Megatron-LM has flags for. */
static char *random_keys(void) {
    Text t = text_new(mem());
    text_add(&t, PC "data_parallel=%s ", DRAW("1", "2", "4"));
    text_add(&t, PC "model_parallel=%s ", DRAW("1", "2", "3"));
    text_add(&t, PC "vocab_emb_dp=False ");
    text_add(&t, PC "sequence_parallel=%s ", DRAW("True", "False"));
    text_add(&t, PC "context_parallel=%s ", DRAW("1", "1", "2", "4"));
    text_add(&t, PC "context_parallel_algo=%s ",
             DRAW("ulysses_cp_algo", "megatron_cp_algo",
                  "hybrid_cp_algo " PC "ulysses_degree_in_cp=2"));
    text_add(&t, PC "pipeline_stage=%s ",
             DRAW("1", "2", "4", "2 " PC "num_layer_list=5,3",
                  "2 " PC "num_layers_in_first_pipeline_stage=2",
                  "4 " PC "num_layers_in_last_pipeline_stage=2",
                  "3 " PC "pp_interleave_num=2", "2 " PC "pp_interleave_num=2",
                  "2 " PC "pp_interleave_num=2 " PC "num_layer_list=[[1,3],[2,2]]",
                  "2 " PC "pp_interleave_num=2 " PC "num_layers_in_last_pipeline_stage=2",
                  "4 " PC "num_layer_list=2,0,3,3"));
    text_add(&t, PC "rank_order=%s ", DRAW("tp-cp-dp-pp", "tp-cp-pp-dp"));
    text_add(&t, PC "micro_batch_num=%s ", DRAW("4", "6", "12"));
    text_add(&t, "--runner_config.batch_size=%s ", DRAW("1", "2", "3"));
    text_add(&t, "%s ",
             DRAW("", PC "optimizer_shard=True " ZERO "optimizer_level=level1",
                  PC "optimizer_shard=True " ZERO "optimizer_level=level2",
                  PC "optimizer_shard=True " ZERO "optimizer_level=level3",
                  PC "optimizer_shard=True " ZERO "optimizer_level=level1 " ZERO
                     "optimizer_weight_shard_size=2"));
    text_add(&t, "%s ", DRAW("", "", "--parallel.bucket_size=1000004B"));
    text_add(&t, "%s ",
             DRAW("", "--recompute_config.recompute=True",
                  "--recompute_config.recompute=1",
                  "--recompute_config.recompute=2 "
                  "--recompute_config.recompute_method=uniform",
                  "--recompute_config.select_recompute=True",
                  "--recompute_config.recompute=False"));
    text_add(&t, "%s ",
             DRAW("", "", "--recompute_config.recompute_slice_activation=True"));
    return t.s;
}

/* The plan of keys; false: they do not go together. */
static bool plan_hash(Keys *k, char hash[HASH_HEX_BYTES], Config **cfg) {
    Catch c;
    if (!CATCH(c)) {
        EXPECT_INT(c.code, EXIT_CONFIG);
        return false;
    }
    Plan p = plan_of_config(mem(), config_load(mem(), NULL, k->n, k->key), 0);
    memcpy(hash, p.hash, HASH_HEX_BYTES);
    *cfg = config_load(mem(), NULL, k->n, k->key);
    catch_end(&c);
    return true;
}

/* No note but of what other flags say of the same: nothing is lost. False: what Megatron-LM has in
 * other company alone is. */
static bool nothing_is_lost(const MegatronExport *e, const char *keys) {
    bool lost = false;
    static const char *const known[] = {"MindSpeed", "CUDA_DEVICE_MAX_CONNECTIONS",
                                        "rows; Megatron-LM fills"};
    for (int i = 0; i < e->nnotes; i++) {
        bool found = strstr(e->note[i], "recompute_slice_activation");
        lost |= found;
        for (int k = 0; k < ARRAY_LEN(known); k++)
            found |= !!strstr(e->note[i], known[k]);
        if (!found) test_fail(__FILE__, __LINE__, "%s: %s", keys, e->note[i]);
    }
    return !lost;
}

/* Levels 2 and 3 are said without stages alone. */
static bool level_is_said(const Config *cfg) {
    return cfg->parallel_config_pipeline_stage == 1 ||
           strategy_of_config((Config *)cfg).zero_level < 2;
}

TEST_LIMIT(import_takes_it_for_the_same, 120) {
    enum { TIMES = 180 };
    int planned = 0, stages = 0, rings = 0;
    for (int i = 0; i < TIMES; i++) {
        char *text = random_keys();
        narrow = i % 3 == 0;
        Keys was = keys_of("", 0, text);
        char want[HASH_HEX_BYTES], got[HASH_HEX_BYTES];
        Config *cfg;
        int64_t ranks;
        if (!plan_hash(&was, want, &cfg) || !level_is_said(cfg)) continue;
        MegatronExport e = export_of(cfg, &ranks);
        if (!nothing_is_lost(&e, text)) continue;
        Keys now = keys_of(joined(e.flags.s), ranks, "");
        if (!plan_hash(&now, got, &cfg) || strcmp(want, got) != 0)
            test_fail(__FILE__, __LINE__, "%s\nis another plan than\n%s", e.flags.s,
                      text);
        planned++;
        stages += cfg->parallel_config_pipeline_stage > 1;
        rings += cfg->parallel_config_context_parallel > 1;
    }
    printf("  %d of %d strategies, %d of stages, %d of parts of a sequence\n", planned,
           TIMES, stages, rings);
    EXPECT(planned > TIMES / 4 && stages > 10 && rings > 10);
}

/* ---- what no flag says ---- */

TEST(each_key_without_a_flag_is_told) {
    static const char *const cases[][2] = {
        {PC "model_parallel=2", "parallel_config.vocab_emb_dp True: Megatron-LM always"},
        {PC "pipeline_stage=2 " PC "micro_batch_num=4 "
            "--parallel.pipeline_config.pipeline_scheduler=gpipe",
         "pipeline_scheduler gpipe: Megatron-LM has 1f1b alone"},
        {PC "pipeline_stage=2 " PC "micro_batch_num=4 " PC "pp_interleave_num=2 "
            "--parallel.pipeline_config.pipeline_scheduler=zero_bubble_v",
         "pipeline_scheduler zero_bubble_v: "},
        {PC "model_parallel=2 " PC "rank_order=dp-tp-cp-pp",
         "rank_order dp-tp-cp-pp: no flag says it"},
        {"--recompute_config.recompute=[1,2] " PC "pipeline_stage=2 " PC
         "micro_batch_num=4",
         "recompute_config.recompute [1, 2]: 1:full|2:full is made again; "
         "--recompute-num"},
        {"--recompute_config.select_recompute=[q,k]", "select_recompute"},
        {"--recompute_config.recompute=1 --recompute_config.select_recompute=True",
         "select_recompute [True]: --recompute-granularity is full, or"},
        {PC "model_parallel=2 --recompute_config.mp_comm_recompute=False",
         "mp_comm_recompute False: no flag says it"},
        {"--parallel.bucket_size=0", "bucket_size 0B: each message by itself"},
        {"--parallel.shard=[\"h.mlp.c_fc.weight=-,tp\"] " PC "model_parallel=2",
         "parallel.shard"},
        {PC "model_parallel=2 --micro_batch_interleave_num=2",
         "micro_batch_interleave_num 2: --tp-comm-overlap"},
        {PC "pipeline_stage=2 " PC "micro_batch_num=4 " PC "noop_layers=3",
         "noop_layers [3]: --num-layers is 7"},
        {PC "model_parallel=2 --model.model_config.compute_dtype=bfloat16 "
            "--model.model_config.allreduce_activations_in_fp32=True",
         "allreduce_activations_in_fp32 True: Megatron-LM adds"},
        {PC "model_parallel=3 --model.model_config.vocab_size=1000",
         "the vocabulary has 1000 rows; Megatron-LM fills it up"},
        {PC "optimizer_shard=True --optimizer.type=Momentum",
         "optimizer.type Momentum: Megatron-LM's distributed optimizer"},
        {PC "optimizer_shard=True " ZERO "parallel_optimizer_threshold=0",
         "parallel_optimizer_threshold 0: no flag"}};
    const char *notes;
    flags_of(PC "data_parallel=1", &notes);
    EXPECT_STR(notes, "");
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        flags_of(cases[i][0], &notes);
        if (!strstr(notes, cases[i][1]))
            test_fail(__FILE__, __LINE__, "%s: %s", cases[i][0], notes);
    }
}

TEST(flags) {
    const char *notes;
    EXPECT_STR(
        flags_of(PC "data_parallel=4 " PC "model_parallel=2 " PC "vocab_emb_dp=False " PC
                    "pipeline_stage=2 " PC "num_layer_list=5,3 " PC
                    "micro_batch_num=6 " PC "optimizer_shard=True " ZERO
                    "optimizer_level=level2",
                 &notes),
        "--tensor-model-parallel-size 2\n--context-parallel-size 1\n"
        "--pipeline-model-parallel-size 2\n"
        "--pipeline-model-parallel-layout Ettttt|tttL\n--micro-batch-size 2\n"
        "--global-batch-size 48\n--use-distributed-optimizer\n--overlap-grad-reduce\n"
        "--overlap-param-gather\n");
    EXPECT_PART(notes,
                "optimizer_level level2: with stages Megatron-LM splits the state");
    const char *single = "--tensor-model-parallel-size 1\n--context-parallel-size 1\n"
                         "--pipeline-model-parallel-size 1\n--micro-batch-size 2\n"
                         "--global-batch-size 32\n";
    EXPECT_STR(flags_of("--parallel.overlap=off", &notes), single);
    EXPECT_STR(flags_of(PC "optimizer_shard=True " ZERO "optimizer_level=level3", &notes),
               arena_printf(mem(),
                            "%s--use-distributed-optimizer\n--use-megatron-fsdp\n"
                            "--data-parallel-sharding-strategy optim_grads_params\n"
                            "--ckpt-format fsdp_dtensor\n--overlap-grad-reduce\n"
                            "--overlap-param-gather\n",
                            single));
    EXPECT_STR(flags_of("--parallel.overlap=off " PC "model_parallel=2 " PC
                        "sequence_parallel=True " PC "vocab_emb_dp=False "
                        "--recompute_config.recompute=2 "
                        "--recompute_config.recompute_slice_activation=True",
                        &notes),
               "--tensor-model-parallel-size 2\n--sequence-parallel\n"
               "--context-parallel-size 1\n--pipeline-model-parallel-size 1\n"
               "--micro-batch-size 2\n--global-batch-size 32\n"
               "--recompute-granularity full\n--recompute-method block\n"
               "--recompute-num-layers 2\n");
    EXPECT_PART(flags_of(PC "pipeline_stage=2 " PC "micro_batch_num=2 " PC
                            "num_layers_in_first_pipeline_stage=0",
                         &notes),
                "-layout E|ttttttttL\n");
}

TEST(the_command) {
    run(cmd_export, "configs/gpt2-tiny.yaml", "--parallel_config.data_parallel=2", NULL);
    worked();
    EXPECT_STR(printed, "--tensor-model-parallel-size 1\n--context-parallel-size 1\n"
                        "--pipeline-model-parallel-size 1\n--micro-batch-size 16\n"
                        "--global-batch-size 32\n--overlap-grad-reduce\n");
    run(cmd_export, "configs/gpt2-tiny.yaml", "--recompute_config.recompute=auto",
        "--context.max_device_memory=64MB", NULL);
    worked();
    EXPECT_PART(printed, "--recompute-granularity full\n");
    run(cmd_export, "configs/gpt2-tiny.yaml", "--recompute_config.recompute=auto",
        "--context.max_device_memory=8GB", NULL);
    worked();
    EXPECT(!strstr(printed, "recompute"));
    run(cmd_export, NULL);
    refused(EXIT_CONFIG, "stator export CONFIG.yaml");
    run(cmd_export, "configs/gpt2-tiny.yaml", "--parallel.parallel_mode=2",
        "--parallel_config.data_parallel=2", NULL);
    refused(EXIT_CONFIG, "--write best.yaml");
    run(cmd_export, "examples/lstm/train.yaml", NULL);
    refused(EXIT_CONFIG, "Megatron-LM has no such one");
}
