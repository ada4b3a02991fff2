/* Tests of what a search takes from a file and from flags: keys of a file are free, flags are kept,
 * and what is left out is told with its own reason. */
#include "command.h"
#include "frontend/search/search.h"

static const char model[] =
    "model:\n"
    "  model_config: {type: GPT2Config, vocab_size: 256, seq_length: %d,\n"
    "    hidden_size: 32, num_layers: 2, num_heads: %d}\n"
    "runner_config: {batch_size: 2}\n";

static char *file(int seq, int heads, const char *more) {
    char *path = temp("free.yaml");
    write_text(path, arena_printf(arena_new(), "%s%s",
                                  arena_printf(arena_new(), model, seq, heads), more));
    return path;
}

static char *machine(void) {
    return arena_printf(arena_new(), "%s/../machines/cpu100g.yaml", tests_dir());
}

#define SEARCH(path, ranks, ...)                                                         \
    run(cmd_search, path, "-n", ranks, "--machine", machine(), __VA_ARGS__, (char *)NULL)

#define ALGO  "--parallel_config.context_parallel_algo"
#define INNER "--parallel_config.ulysses_degree_in_cp"

TEST(layers_together_in_a_file_are_free) {
    char *path =
        file(16, 2, "recompute_config: {recompute: 2, recompute_method: uniform}\n");
    SEARCH(path, "2", NULL);
    worked();
    EXPECT_PART(printed, "--recompute_config.recompute_method=block");
    SEARCH(path, "2", "--recompute_config.recompute=True");
    worked();
    EXPECT_PART(printed, "--recompute_config.recompute_method=block");
    SEARCH(path, "2", "--recompute_config.recompute_method=uniform");
    refused(EXIT_CONFIG, "a search takes layers that are computed again one by one");
}

#define SHARE "--parallel.parallel_optimizer_config.optimizer_weight_shard_size"

TEST(states_of_groups_in_a_file_are_free) {
    char *path = file(16, 2,
                      "parallel: {parallel_optimizer_config: {optimizer_level: level1,\n"
                      "  optimizer_weight_shard_size: 2}}\n");
    SEARCH(path, "4", NULL);
    worked();
    EXPECT_PART(printed, SHARE "=-1");
    SEARCH(path, "4", SHARE "=-1");
    worked();
    SEARCH(path, "4", SHARE "=2");
    refused(EXIT_CONFIG, "a search splits states over all replicas, or none");
}

/* Strategies that were planned, each of which has the text. */
static int rows_with(const char *part) {
    const char *at = strstr(printed, "(micro-batches x sequences)\n"), *end;
    int n = 0;
    EXPECT(at);
    for (at = strchr(at, '\n') + 1; *at == ' '; at = end + 1, n++) {
        end = strchr(at, '\n');
        if (!strstr(arena_strndup(arena_new(), at, (size_t)(end - at)), part))
            test_fail(__FILE__, __LINE__, "not '%s':\n%s", part, printed);
    }
    return n;
}

TEST(parts_that_go_against_heads_are_kept) {
    static char *const fixed[] = {"--parallel_config.data_parallel=1",
                                  "--parallel_config.model_parallel=1",
                                  "--parallel_config.pipeline_stage=1"};
    SEARCH(file(64, 4, "parallel_config: {context_parallel: 4}\n"), "8",
           ALGO "=hybrid_cp_algo", INNER "=2", fixed[0], fixed[1], fixed[2]);
    worked();
    EXPECT(rows_with("cp 8 (both)") > 0);
    EXPECT_PART(printed, INNER "=2\n");
    SEARCH(file(64, 4, ""), "4", ALGO "=hybrid_cp_algo", INNER "=2");
    worked();
    EXPECT(rows_with("cp 4 (both)") > 0);
    SEARCH(file(64, 4, ""), "8", INNER "=4", fixed[0], fixed[1], fixed[2]);
    worked();
    EXPECT_PART(printed, INNER "=4\n");
    SEARCH(file(64, 4, ""), "4", ALGO "=hybrid_cp_algo", INNER "=4");
    refused(EXIT_CONFIG, "no strategy of 4 ranks has the keys that are given");
}

/* Of a file they are no reason against whole sequences. */
TEST_LABEL_OF(parts_that_go_against_heads_in_a_file_are_free, RELEASED);
TEST(parts_that_go_against_heads_in_a_file_are_free) {
    SEARCH(file(64, 4,
                "parallel_config: {context_parallel: 4, ulysses_degree_in_cp: 2,\n"
                "  context_parallel_algo: hybrid_cp_algo}\n"),
           "4", "--parallel_config.context_parallel=1");
    worked();
    EXPECT_PART(printed, ALGO "=ulysses_cp_algo");
}

/* The row of a split has that text. */
static void expect_row(const char *split, const char *reason) {
    const char *at = strstr(printed, "\nthe fastest of each split"), *row;
    EXPECT(at);
    row = strstr(at, arena_printf(arena_new(), "\n  %s", split));
    if (!row ||
        !strstr(arena_strndup(arena_new(), row + 1, strcspn(row + 1, "\n")), reason))
        test_fail(__FILE__, __LINE__, "%s, '%s' in:\n%s", split, reason, at);
}

TEST(splits_are_refused_for_reasons_of_their_own) {
    SEARCH(file(15, 2, ""), "2", NULL);
    worked();
    expect_row("tp 2   cp 1   pp 1 ", " s ");
    EXPECT(!strstr(printed, "tp 2   cp 1   refused"));
    expect_row("tp 1   cp 2   refused: ", "context_parallel cuts the tokens");
    SEARCH(file(16, 2, ""), "4", NULL);
    worked();
    EXPECT(!strstr(printed, "cp 4   refused"));
    expect_row("tp 4   cp 1   refused: ", "cuts the attention heads");
    EXPECT(!strstr(printed, "error: "));
    expect_row("pp 4   refused: ", "the model has 2 layers, fewer than stages");
    SEARCH(file(16, 2, ""), "4", "--json");
    worked();
    EXPECT_PART(printed, "{\"pipeline_stage\": 4, \"refused\": ");
    EXPECT_PART(printed, "\"refused\": \"model_parallel cuts the attention heads");
    SEARCH(file(16, 4, ""), "3", NULL);
    worked();
    expect_row("tp 3   cp 1   refused: ", "cuts the attention heads");
}

/* The mean of the means of micro-batches is another one when these are others. */
TEST(batches_stay_where_the_loss_depends_on_them) {
    static const char data[] = "train_dataset: {data_loader: {type: %s}}\n"
                               "runner_wrapper: {calculate_per_token_loss: %s}\n"
                               "parallel_config: {micro_batch_num: 4}\n";
    static const struct {
        const char *loader, *per_token;
        bool stays;
    } c[] = {{"WebtextDataset", "False", true},
             {"GPTDataset", "False", true},
             {"WebtextDataset", "True", false},
             {"MegatronIndexed", "False", false}};
    for (int i = 0; i < ARRAY_LEN(c); i++) {
        test_at("%s, %s", c[i].loader, c[i].per_token);
        char *path =
            file(16, 2, arena_printf(arena_new(), data, c[i].loader, c[i].per_token));
        SEARCH(path, "2", NULL);
        worked();
        EXPECT(!strstr(printed, "batch_size stays 2") == !c[i].stays);
        if (c[i].stays) EXPECT_PART(printed, "runner_config.batch_size=2\n");
    }
}

/* Several orders of the ranks are tried, and the flags of the answer keep its own, also the usual
 * one. */
TEST(the_order_of_an_answer_is_kept) {
    SEARCH(file(16, 2, ""), "4", "--parallel_config.pipeline_stage=2", "--json");
    worked();
    EXPECT_PART(printed, "\"--parallel_config.rank_order=tp-cp-dp-pp\"");
}

/* ---- the flags of an answer ---- */

static SearchResult result_of(Arena *mem, char *path, int nflags, char **flag) {
    SearchOptions o = search_options(mem, config_files(mem, path), nflags, flag, 4);
    SearchResult r = search_run(mem, &o);
    EXPECT(r.ntop > 0);
    return r;
}

static bool has_flag(const Verified *v, const char *flag) {
    for (int i = 0; i < v->nflags; i++)
        if (!strcmp(v->flag[i], flag)) return true;
    return false;
}

/* The best of 4 ranks with these words, and with a machine; its flags give it again. */
static Verified best_of_words(Arena *mem, char *path, const char *words) {
    char *flag[8] = {
        arena_printf(mem, "--context.machine=%s/../machines/a100.yaml", tests_dir())};
    int n = 1;
    char *rest = arena_strdup(mem, words);
    for (char *w = strtok(rest, " "); w; w = strtok(NULL, " "))
        flag[n++] = arena_printf(mem, "--%s", w);
    Verified best = result_of(mem, path, n, flag).top[0];
    Verified again = result_of(mem, path, best.nflags, best.flag).top[0];
    EXPECT(again.seconds == best.seconds && again.bytes == best.bytes);
    EXPECT_INT(again.nflags, best.nflags);
    for (int i = 0; i < best.nflags; i++) EXPECT(has_flag(&again, best.flag[i]));
    return best;
}

#define PC   "parallel_config."
#define ZERO "parallel.parallel_optimizer_config."

static char *nine_layers(const char *more) {
    char *path = temp("nine.yaml");
    write_text(path, arena_printf(arena_new(),
                                  "model: {model_config: {type: GPT2Config, vocab_size: "
                                  "64, seq_length: 64, hidden_size: 64, num_layers: 9, "
                                  "num_heads: 4}}\n"
                                  "parallel_config: {micro_batch_num: 8%s}\n",
                                  more));
    return path;
}

TEST(layers_of_stages_in_a_file_are_free) {
    static const struct {
        const char *file, *words;
        int ways; /* LAYERS_ of the best */
    } c[] = {
        {"num_layer_list: [3, 2, 2, 2]", PC "pipeline_stage=1", LAYERS_EVEN},
        {"num_layer_list: [3, 2, 2, 2]", PC "pipeline_stage=4", LAYERS_BALANCED},
        {"num_layer_list: [3, 2, 2, 2]", PC "pipeline_stage=4 " PC "num_layer_list=[]",
         LAYERS_EVEN},
        {"offset: [0, 0, 1, 0]", PC "pipeline_stage=1", LAYERS_EVEN},
        {"offset: [0, 0, 1, 0]", PC "pipeline_stage=4", LAYERS_BALANCED},
        {"offset: [0, 0, 1, 0]", PC "pipeline_stage=4 " PC "offset=0", LAYERS_BALANCED},
        {"offset: [0, 0, 1, 0]", PC "pipeline_stage=4 " PC "offset=[]", LAYERS_BALANCED},
        {"num_layers_in_first_pipeline_stage: 1", PC "pipeline_stage=1", LAYERS_EVEN},
        {"num_layers_in_first_pipeline_stage: 1, num_layers_in_last_pipeline_stage: 2",
         PC "pipeline_stage=4", LAYERS_BALANCED},
        {"num_layers_in_last_pipeline_stage: 1",
         PC "pipeline_stage=4 " PC "num_layers_in_last_pipeline_stage=-1",
         LAYERS_BALANCED}};
    for (int i = 0; i < ARRAY_LEN(c); i++) {
        Arena *mem = arena_new();
        test_at("%s with %s", c[i].file, c[i].words);
        char *path = nine_layers(arena_printf(mem, ", pipeline_stage: 4, %s", c[i].file));
        EXPECT_INT(best_of_words(mem, path, c[i].words).c.layers, c[i].ways);
        arena_free(mem);
    }
    static char *const says[] = {PC "offset=1", PC "offset=[0,1]",
                                 PC "num_layers_in_first_pipeline_stage=0",
                                 PC "num_layers_in_last_pipeline_stage=2"};
    for (int i = 0; i < ARRAY_LEN(says); i++) {
        SEARCH(nine_layers(""), "4", arena_printf(arena_new(), "--%s", says[i]));
        refused(EXIT_CONFIG, "a search takes layers of stages as num_layer_list");
    }
}

#define REMAKE "recompute_config."

TEST(numbers_of_layers_made_again_in_part_are_free) {
    static const char *const says[] = {
        "select_recompute: [2, 1, 0, 0]", "select_recompute: 2",
        "select_comm_recompute: [1, 1, 1, 0]",
        "select_recompute: [[2, 0, 0, 1]], select_comm_recompute: 1"};
    static const char *const words[] = {PC "pipeline_stage=1", PC "pipeline_stage=2",
                                        PC "model_parallel=2 " PC
                                           "sequence_parallel=True"};
    for (int i = 0; i < ARRAY_LEN(says) * ARRAY_LEN(words); i++) {
        Arena *mem = arena_new();
        const char *said = says[i % ARRAY_LEN(says)];
        const char *flags = words[i / ARRAY_LEN(says)];
        test_at("%s with %s", said, flags);
        char *path = nine_layers(
            arena_printf(mem, ", pipeline_stage: 4}\nrecompute_config: {%s", said));
        Verified best = best_of_words(mem, path, flags);
        EXPECT(has_flag(&best, arena_printf(mem, "--" REMAKE "%.*s=null",
                                            (int)strcspn(said, ":"), said)));
        run(cmd_layer, path, "-n", "2", "--machine", machine(), (char *)NULL);
        worked();
        arena_free(mem);
    }
    static char *const stay[] = {"[q, k]", "True", "False"};
    for (int i = 0; i < ARRAY_LEN(stay); i++) {
        SEARCH(nine_layers(""), "4",
               arena_printf(arena_new(), "--" REMAKE "select_recompute=%s", stay[i]));
        worked();
        EXPECT_PART(printed, arena_printf(arena_new(), "select_recompute=%s", stay[i]));
    }
    SEARCH(nine_layers(""), "4", "--" REMAKE "select_recompute=[2,1,0,0]");
    refused(EXIT_CONFIG,
            "a search takes recompute_config.select_recompute alike for all layers");
}

TEST(flags_without_effect_stay) {
    static const struct {
        const char *words, *stays;
    } c[] = {
        {PC "sequence_parallel=True " PC "data_parallel=4", PC "sequence_parallel=True"},
        {PC "vocab_emb_dp=False " PC "data_parallel=4", PC "vocab_emb_dp=False"},
        {PC "optimizer_shard=True " PC "model_parallel=4", PC "optimizer_shard=True"},
        {PC "optimizer_shard=True " PC "pipeline_stage=4", PC "optimizer_shard=True"},
        {ZERO "optimizer_level=level3 " PC "model_parallel=4",
         ZERO "optimizer_level=level3"},
        {ZERO "optimizer_level=level3 " PC "data_parallel=4",
         ZERO "optimizer_level=level3"},
        {PC "pp_interleave_num=1 " PC "pipeline_stage=1", PC "pp_interleave_num=1"},
        {PC "sequence_parallel=null " PC "data_parallel=4", PC "sequence_parallel=False"},
    };
    for (int i = 0; i < ARRAY_LEN(c); i++) {
        Arena *mem = arena_new();
        test_at("%s", c[i].words);
        Verified v = best_of_words(mem, nine_layers(""), c[i].words);
        EXPECT(has_flag(&v, arena_printf(mem, "--%s", c[i].stays)));
        arena_free(mem);
    }
}

/* More than are tried without asking. */
TEST_LABEL_OF(as_many_chunks_as_are_asked_for, RELEASED);
TEST(as_many_chunks_as_are_asked_for) {
    static const struct {
        const char *words;
        int chunks;
    } c[] = {{PC "pipeline_stage=4 " PC "pp_interleave_num=9", 9},
             {PC "pipeline_stage=2 " PC "pp_interleave_num=18", 18},
             {PC "num_layer_list=[[2,1,1,1],[1,1,1,1],[1,1,1,1],[1,1,1,1],[1,1,1,1],[1,1,"
                 "1,1],[1,1,1,1],[1,1,1,1],[1,1,1,1]]",
              9}};
    Arena *mem = arena_new();
    EXPECT(9 * 4 > SEARCH_CHUNKS);
    for (int i = 0; i < ARRAY_LEN(c); i++) {
        const char *words = arena_printf(
            mem, "%s model.model_config.num_layers=37 " PC "micro_batch_num=8",
            c[i].words);
        test_at("%s", words);
        EXPECT_INT(best_of_words(mem, nine_layers(""), words).c.chunks, c[i].chunks);
    }
    arena_free(mem);
}
