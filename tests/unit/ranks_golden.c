/* Tests of training on real MPI ranks: any strategy gives PyTorch's losses. */
#include "ranks_matrix.h"

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

enum { MODEL, DP, TP, CP, ALGORITHM, SP, VOCAB, ZERO, MICRO, FACTORS };
enum { ULYSSES, RING, HYBRID };

static const int factor_size[FACTORS] = {2, 4, 3, 3, 3, 2, 2, 4, 3};

static int ranks_of(const int *v) {
    return 1 << (v[DP] + v[TP] + v[CP]);
}

/* Several ranks, of what the models can be cut into (4 heads, 4 or 2 of keys, 8
 * sequences); without what would have no effect. */
static bool is_valid(const int *v) {
    int tp = 1 << v[TP], cp = 1 << v[CP], ring = 1;
    if (v[ALGORITHM] == RING) ring = cp;
    if (v[ALGORITHM] == HYBRID) ring = cp / 2;
    if (v[ALGORITHM] == RING && cp < 2) return false;
    if (v[ALGORITHM] == HYBRID && cp < 4) return false;
    if (ranks_of(v) > 8 || ranks_of(v) == 1 || v[DP] + v[MICRO] > 3) return false;
    if ((v[MODEL] ? 2 : 4) % (cp / MAX(ring, 1) * tp)) return false;
    if ((v[SP] || v[VOCAB]) && tp == 1) return false;
    return !v[ZERO] || v[DP] + v[CP] > 0;
}

static const char *words_of(const int *v) {
    static const char *const algorithms[] = {
        "ulysses_cp_algo", "megatron_cp_algo",
        "hybrid_cp_algo --parallel_config.ulysses_degree_in_cp 2"};
    static const char *const zero[] = {"", ZERO_LEVEL(1), ZERO_LEVEL(2), ZERO_LEVEL(3)};
    Text t = text_new(mem());
    text_add(&t, "--parallel_config.data_parallel %d ", 1 << v[DP]);
    text_add(&t, "--parallel_config.model_parallel %d ", 1 << v[TP]);
    text_add(&t, "--parallel_config.micro_batch_num %d ", 1 << v[MICRO]);
    text_add(&t, "%s", zero[v[ZERO]]);
    if (v[CP])
        text_add(&t,
                 "--parallel_config.context_parallel %d "
                 "--parallel_config.context_parallel_algo %s ",
                 1 << v[CP], algorithms[v[ALGORITHM]]);
    if (v[SP]) text_add(&t, "--parallel_config.sequence_parallel True ");
    if (v[VOCAB]) text_add(&t, "--parallel_config.vocab_emb_dp False ");
    return t.s;
}

static const Matrix matrix = {.nfactors = FACTORS,
                              .size = factor_size,
                              .every_pair = 36,
                              .valid = is_valid,
                              .ranks = ranks_of,
                              .words = words_of};

TEST(pairs_of_the_matrix) {
    matrix_expect_pairs(&matrix);
}

TEST_LIMIT(matrix_first_part, 180) {
    matrix_run_part(&matrix, 0);
}
TEST_LIMIT(matrix_second_part, 180) {
    matrix_run_part(&matrix, 1);
}
TEST_LIMIT(matrix_third_part, 180) {
    matrix_run_part(&matrix, 2);
}

/* ---- many ranks, odd ones ---- */

static const char wide_yaml[] = "seed: 5\n"
                                "model:\n"
                                "  model_config:\n"
                                "    type: LlamaConfig\n"
                                "    vocab_size: 250\n"
                                "    seq_length: 32\n"
                                "    hidden_size: 64\n"
                                "    intermediate_size: 96\n"
                                "    num_layers: 2\n"
                                "    num_heads: 8\n"
                                "train_dataset:\n"
                                "  data_loader: {type: TextFile, dataset_dir: %s}\n"
                                "runner_config: {max_steps: 6}\n"
                                "lr_schedule: {learning_rate: 3.e-3, warmup_steps: 1}\n";

/* Six steps of `batch` sequences on one rank. */
static const char *run_wide(const char *config, int batch) {
    const char *one = in_temp("one");
    write_text(config, arena_printf(mem(), wide_yaml, runs_text()));
    ranks_run(1, config, one, arena_printf(mem(), "--batch_size %d", batch));
    return one;
}

static void expect_as_one(const char *one, const char *many, int batch) {
    int n, m;
    const MetricsRow *x = runs_metrics(one, &n), *y = runs_metrics(many, &m);
    EXPECT(n == 6 && m == 6 && y[5].loss < y[0].loss);
    for (int i = 0; i < n; i++) {
        EXPECT(x[i].tokens == batch * 32 && y[i].tokens == batch * 32);
        if (!(fabs(x[i].loss - y[i].loss) <= 1e-5 * x[i].loss))
            test_fail(__FILE__, __LINE__, "step %d: loss %.9g, %.9g on one rank", i + 1,
                      y[i].loss, x[i].loss);
    }
}

TEST_LIMIT(thirty_two_ranks_as_one, 180) {
    const char *config = in_temp("wide.yaml"), *many = in_temp("many");
    const char *one = run_wide(config, 4);
    ranks_run(32, config, many,
              "--parallel_config.data_parallel 2 --parallel_config.context_parallel 4 "
              "--parallel_config.context_parallel_algo hybrid_cp_algo "
              "--parallel_config.ulysses_degree_in_cp 2 "
              "--parallel_config.model_parallel 4 --parallel_config.vocab_emb_dp False "
              "--parallel_config.sequence_parallel True --batch_size 2 " ZERO_LEVEL(3));
    expect_as_one(one, many, 4);
}

/* Replicas whose number divides no parameter. */
TEST_LIMIT(three_five_and_seven_replicas, 180) {
    const char *config = in_temp("wide.yaml"), *many = in_temp("many");
    const char *one = run_wide(config, 105);
    ranks_run(3, config, many, "--batch_size 35 " ZERO_LEVEL(1));
    expect_as_one(one, many, 105);
    remove_all(many);
    ranks_run(5, config, many, "--batch_size 21 " ZERO_LEVEL(3));
    expect_as_one(one, many, 105);
    remove_all(many);
    ranks_run(7, config, many, "--batch_size 15 " ZERO_LEVEL(2));
    expect_as_one(one, many, 105);
}

/* ---- messages beside the work ---- */

/* The losses of 20 steps on two ranks; whoever runs the collectives, the same bits. */
TEST_LIMIT(whoever_runs_collectives, 180) {
    static const char *const ways[] = {"off", "thread"};
    const char *config = runs_golden_config("gpt2_tiny");
    const MetricsRow *first = NULL;
    for (int k = 0; k < ARRAY_LEN(ways); k++) {
        const char *run = in_temp(ways[k]);
        int n;
        ranks_run(2, config, run,
                  arena_printf(mem(), "%s--parallel.overlap %s " ZERO_LEVEL(3),
                               ranks_no_starts(), ways[k]));
        ranks_expect_curve("gpt2_tiny", run, ways[k]);
        const MetricsRow *row = runs_metrics(run, &n);
        EXPECT_INT(n, 20);
        if (!first) first = row;
        for (int i = 0; i < n; i++) EXPECT(row[i].loss == first[i].loss);
    }
}

/* A model whose layers are worth messages of their own: parameters are gathered in the
 * first micro-batch and gradients reduced in the last one, or in each. */
TEST_LIMIT(messages_in_layers, 180) {
    static const struct {
        int level, micro;
        const char *way;
    } runs[] = {{0, 3, "thread"}, {0, 1, "auto"},   {1, 1, "thread"},
                {1, 3, "auto"},   {2, 3, "thread"}, {3, 3, "auto"}};
    static const char *const zero[] = {"", ZERO_LEVEL(1), ZERO_LEVEL(2), ZERO_LEVEL(3)};
    static const char large[] = "--model.model_config.hidden_size 128 "
                                "--model.model_config.intermediate_size 256 ";
    const char *config = in_temp("large.yaml"), *one = in_temp("one"),
               *many = in_temp("many");
    write_text(config, arena_printf(mem(), wide_yaml, runs_text()));
    ranks_run(1, config, one, arena_printf(mem(), "%s--batch_size 12", large));
    for (int i = 0; i < ARRAY_LEN(runs); i++) {
        int micro = runs[i].micro;
        ranks_run(2, config, many,
                  arena_printf(mem(),
                               "%s--batch_size %d --parallel_config.micro_batch_num %d "
                               "--parallel_config.data_parallel 2 "
                               "--parallel.overlap %s %s%s",
                               large, 6 / micro, micro, runs[i].way, ranks_no_starts(),
                               zero[runs[i].level]));
        expect_as_one(one, many, 12);
        remove_all(many);
    }
}

/* ---- validation ---- */

static const char web_yaml[] = "seed: 5\n"
                               "model:\n"
                               "  model_config: {type: LlamaConfig, vocab_size: 257,\n"
                               "    seq_length: 32, hidden_size: 64, num_layers: 2,\n"
                               "    intermediate_size: 96, num_heads: 8}\n"
                               "train_dataset:\n"
                               "  data_loader: {type: WebtextDataset, dataset_dir: %s,\n"
                               "    pad_token: 0, split: \"1,1,0\",\n"
                               "    tokenizer_type: ByteTokenizer}\n"
                               "runner_config: {max_steps: 4, eval_iters: 2}\n"
                               "lr_schedule: {learning_rate: 3.e-3, warmup_steps: 1}\n";

/* What a run on so many ranks says of its last validation; four digits are printed. */
static double validated(const char *config, int ranks, const char *words) {
    static const char mark[] = "validation at step 4: loss ";
    const char *run = in_temp("valid");
    ranks_run(ranks, config, run, words);
    const char *at = strstr(said(), mark);
    EXPECT(at);
    remove_all(run);
    return atof(at + strlen(mark));
}

/* It reads the parameters as training leaves them, in parts or whole. */
TEST_LIMIT(validation_as_one, 180) {
    static const char *const levels[] = {
        ZERO_LEVEL(1), ZERO_LEVEL(2), ZERO_LEVEL(3),
        ZERO_LEVEL(1) "--parallel.overlap off ",
        ZERO_LEVEL(2) "--parallel.overlap_param_gather False "};
    const char *config = in_temp("web.yaml"), *data = in_temp("web.jsonl");
    Text t = text_new(mem());
    for (int i = 0; i < 60; i++) {
        text_add(&t, "{\"text\": \"line %d goes on with %d words\"}\n", i, i * i);
    }
    write_text(data, t.s);
    write_text(config, arena_printf(mem(), web_yaml, data));
    double one = validated(config, 1, "--batch_size 8");
    EXPECT(one > 1 && one < 6);
    for (int i = 0; i < ARRAY_LEN(levels); i++) {
        double loss = validated(config, 2,
                                arena_printf(mem(),
                                             "%s--batch_size 2 "
                                             "--parallel_config.data_parallel 2 "
                                             "--parallel_config.micro_batch_num 2",
                                             levels[i]));
        if (fabs(loss - one) > 1.5e-4)
            test_fail(__FILE__, __LINE__, "%s: %.4f, one rank %.4f", levels[i], loss,
                      one);
    }
}
