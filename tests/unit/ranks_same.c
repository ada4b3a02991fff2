/* Tests of training on real MPI ranks: what dropout drops, which labels count and where
 * documents end does not depend on the strategy, so losses are those of one rank with one
 * micro-batch. */
#include "ranks.h"

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

/* Documents of 1 to 20 tokens, each ended by token 0; the path of the pair. */
static const char *make_documents(void) {
    enum { DOCS = 120, VERSION = 1 };
    Text bin = text_new(mem()), lengths = text_new(mem()), pointers = text_new(mem()),
         idx = text_new(mem());
    int64_t count = DOCS, entries = DOCS + 1, version = VERSION, at = 0;
    uint64_t random = 88172645463325252u;
    for (int64_t i = 0; i < DOCS; i++) {
        int32_t n = 2 + (int32_t)(runs_random(&random) % 20), token = 1;
        text_add_bytes(&lengths, &n, 4);
        text_add_bytes(&pointers, &at, 8);
        for (int32_t t = 0; t < n; t++, at += 4) {
            token = t == n - 1 ? 0 : 1 + (token * 3 + (int32_t)(random >> t & 3)) % 62;
            text_add_bytes(&bin, &token, 4);
        }
    }
    text_add_bytes(&idx, "MMIDIDX\0\0", 9);
    text_add_bytes(&idx, &version, 8);
    text_add_bytes(&idx, "\4", 1);
    text_add_bytes(&idx, &count, 8);
    text_add_bytes(&idx, &entries, 8);
    text_add_bytes(&idx, lengths.s, lengths.n);
    text_add_bytes(&idx, pointers.s, pointers.n);
    for (int64_t i = 0; i <= DOCS; i++) text_add_bytes(&idx, &i, 8);
    EXPECT(!file_write_atomic(in_temp("p.bin"), bin.s, bin.n));
    EXPECT(!file_write_atomic(in_temp("p.idx"), idx.s, idx.n));
    return in_temp("p");
}

static const char yaml[] =
    "seed: 11\n"
    "model:\n"
    "  model_config: {type: %s, vocab_size: 64, seq_length: 16, hidden_size: 32,\n"
    "    num_layers: 2, num_heads: 4, dropout_prob: %g,\n"
    "    attention_probs_dropout_prob: %g}\n"
    "train_dataset:\n"
    "  data_loader: {type: GPTDataset, data_path: %s, split: '1,0,0', eod: 0,\n"
    "    reset_position_ids: %s, reset_attention_mask: %s, eod_mask_loss: %s}\n"
    "runner_config: {max_steps: 4, batch_size: 8, eval_iters: 0}\n"
    "lr_schedule: {learning_rate: 3.e-3, warmup_steps: 0}\n";

typedef struct Case {
    const char *model;
    double dropout, attention_dropout;
    bool documents;
} Case;

static const char *config_of(const Case *c) {
    const char *path = in_temp("same.yaml"), *is = c->documents ? "True" : "False";
    write_text(path, arena_printf(mem(), yaml, c->model, c->dropout, c->attention_dropout,
                                  make_documents(), is, is, is));
    return path;
}

static void expect_as_one(const char *one, const char *many, const char *words) {
    int n, m;
    const MetricsRow *x = runs_metrics(one, &n), *y = runs_metrics(many, &m);
    EXPECT(n == 4 && m == 4);
    for (int i = 0; i < n; i++) {
        if (fabs(x[i].loss - y[i].loss) <= 1e-5 * x[i].loss &&
            fabs(x[i].grad_norm - y[i].grad_norm) <= 1e-4 * x[i].grad_norm)
            continue;
        test_fail(__FILE__, __LINE__,
                  "%s: step %d has loss %.9g and norm %.9g, %.9g and %.9g on one rank",
                  words, i + 1, y[i].loss, y[i].grad_norm, x[i].loss, x[i].grad_norm);
    }
}

typedef struct Way {
    int ranks;
    const char *words;
} Way;

#define RING "--parallel_config.context_parallel_algo megatron_cp_algo "
#define HYBRID                                                                           \
    "--parallel_config.context_parallel_algo hybrid_cp_algo "                            \
    "--parallel_config.ulysses_degree_in_cp 2 "
#define DEGREES(dp, tp, cp)                                                              \
    "--parallel_config.data_parallel " #dp " --parallel_config.model_parallel " #tp      \
    " --parallel_config.context_parallel " #cp " "
/* so many micro-batches of so many sequences a replica */
#define MICRO(n, b) "--parallel_config.micro_batch_num " #n " --batch_size " #b " "

/* In the short form every second one, so that of two cases each has the other half. */
static void run_ways(const Case *c, const Way *way, int n, int first) {
    const char *config = config_of(c), *one = in_temp("one"), *many = in_temp("many");
    ranks_run(1, config, one, "");
    for (int i = test_long() ? 0 : first; i < n; i += test_long() ? 1 : 2) {
        ranks_run(way[i].ranks, config, many,
                  arena_printf(mem(), "%s%s", ranks_no_starts(), way[i].words));
        expect_as_one(one, many, way[i].words);
        remove_all(many);
    }
}

static const Way ways[] = {
    {2, DEGREES(1, 1, 2) RING MICRO(2, 4)},
    {4, DEGREES(1, 1, 4) RING MICRO(1, 8) ZERO_LEVEL(3)},
    {8, DEGREES(1, 2, 4) HYBRID MICRO(4, 2) "--parallel_config.sequence_parallel True "},
    {8, DEGREES(2, 2, 2)
            RING MICRO(2, 2) "--parallel_config.vocab_emb_dp False "
                             "--parallel_config.sequence_parallel True " ZERO_LEVEL(1)},
    {4, DEGREES(2, 1, 2) MICRO(4, 1) "--parallel.overlap thread " ZERO_LEVEL(2)},
    {4, DEGREES(1, 2, 2) RING MICRO(2, 4) "--micro_batch_interleave_num 2 "},
};
enum { WAYS = RANKS_SANITIZED ? 2 : ARRAY_LEN(ways) };

TEST_LIMIT(dropout_of_embedding_and_residuals, 180) {
    Case c = {"GPT2Config", 0.1, 0, false};
    run_ways(&c, ways, WAYS, 0);
}

TEST_LIMIT(dropout_everywhere, 180) {
    Case c = {"LlamaConfig", 0.1, 0.2, false};
    run_ways(&c, ways, WAYS, 1);
}

TEST_LIMIT(documents_and_masked_labels, 180) {
    Case c = {"LlamaConfig", 0, 0, true};
    run_ways(&c, ways, WAYS, 0);
}

TEST_LIMIT(documents_and_dropout, 180) {
    Case c = {"GPT2Config", 0.1, 0.2, true};
    run_ways(&c, ways, WAYS, 1);
}

/* Megatron-LM's mean of means: a micro-batch of a replica is one of one rank. */
TEST_LIMIT(means_of_replicas, 180) {
    static const char flag[] = "--calculate_per_token_loss False ";
    Case c = {"GPT2Config", 0.1, 0.2, true};
    const char *config = config_of(&c), *one = in_temp("one"), *many = in_temp("many");
    ranks_run(1, config, one, arena_printf(mem(), "%s%s", MICRO(4, 2), flag));
    const char *words = DEGREES(2, 1, 2) RING MICRO(2, 2);
    ranks_run(4, config, many, arena_printf(mem(), "%s%s", words, flag));
    expect_as_one(one, many, words);
}

/* ---- long sequences ---- */

static const char long_yaml[] =
    "seed: 11\n"
    "model:\n"
    "  model_config: {type: %s, vocab_size: 256, seq_length: 2048, hidden_size: 64,\n"
    "    num_layers: 2, num_heads: 4, %s, attention_probs_dropout_prob: 0.1}\n"
    "train_dataset: {data_loader: {type: TextFile, dataset_dir: embedded}}\n"
    "runner_config: {max_steps: 2, batch_size: 2, eval_iters: 0}\n"
    "lr_schedule: {learning_rate: 3.e-3, warmup_steps: 0}\n";

/* From some hundred tokens of a rank on attention takes copies of heads, and strips of tiles where
 * there are any: that changes no number, whatever a rank has of the sequence. */
static void run_long(const char *model, const char *more, const char *type, double within,
                     const Way *way, int n) {
    const char *config = in_temp("long.yaml"), *one = in_temp("one"),
               *many = in_temp("many");
    double worst = 0;
    write_text(config, arena_printf(mem(), long_yaml, model, more));
    ranks_run(1, config, one, type);
    for (int i = 0; i < n; i++) {
        int x, y;
        ranks_run(way[i].ranks, config, many,
                  arena_printf(mem(), "%s%s", type, way[i].words));
        const MetricsRow *a = runs_metrics(one, &x), *b = runs_metrics(many, &y);
        EXPECT(x == 2 && y == 2);
        for (int k = 0; k < x; k++) {
            double off = fabs(a[k].loss - b[k].loss) / a[k].loss;
            worst = fmax(worst, off);
            if (!(off <= within &&
                  fabs(a[k].grad_norm - b[k].grad_norm) <= 10 * within * a[k].grad_norm))
                test_fail(__FILE__, __LINE__,
                          "%s: step %d has loss %.9g, %.9g on one rank", way[i].words,
                          k + 1, b[k].loss, a[k].loss);
        }
        remove_all(many);
    }
    printf("  worst relative loss %.2g\n", worst);
}

TEST_LIMIT(long_sequences, 180) {
    static const Way of[] = {
        {2, DEGREES(1, 1, 2) RING MICRO(1, 2)},
        {2, DEGREES(1, 2, 1) MICRO(2, 1) "--parallel_config.sequence_parallel True "},
        {4, DEGREES(1, 1, 4) HYBRID MICRO(1, 2)},
    };
    run_long("GPT2Config", "dropout_prob: 0.1", "", 1e-5, of, ARRAY_LEN(of));
}

TEST_LIMIT(long_sequences_behind_a_window, 180) {
    static const Way of[] = {
        {2, DEGREES(1, 1, 2) MICRO(1, 2)},
        {2, DEGREES(1, 1, 2) RING MICRO(1, 2)},
        {2, DEGREES(1, 2, 1) MICRO(1, 2) "--recompute_config.recompute True "},
    };
    static const char more[] = "n_kv_heads: 2, sliding_window: 700";
    run_long("LlamaConfig", more, "", 1e-5, of, ARRAY_LEN(of));
    run_long("LlamaConfig", more, "--model.model_config.compute_dtype bfloat16 ", 2e-3,
             of, 1);
}
