/* Tests of stator train: the numbers of a step are those of all its sequences, however it
 * is cut into micro-batches. */
#include "runs.h"
#include "runtime/store/safetensors.h"

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);

static const char *const cuts[] = {
    "--runner_config.batch_size 4 --parallel_config.micro_batch_num 1",
    "--runner_config.batch_size 2 --parallel_config.micro_batch_num 2",
    "--runner_config.batch_size 1 --parallel_config.micro_batch_num 4"};

/* What dropout drops belongs to the sequence, not to the micro-batch it is in. */
TEST_LIMIT(micro_batches_drop_the_same, 120) {
    const char *config = runs_small_config(4, 0), *run[ARRAY_LEN(cuts)];
    for (int i = 0; i < ARRAY_LEN(cuts); i++) {
        run[i] = in_temp(arena_printf(mem(), "run%d", i));
        RUN_EXPECT(0, runs_words(config, run[i], cuts[i]));
        runs_expect_near_losses(run[0], run[i], 4);
    }
}

/* Texts of very different lengths, padded to one: labels of the padding do not count. */
static const char *masked_config(int steps) {
    static const char form[] = "seed: 7\n"
                               "model:\n"
                               "  model_config: {type: GPT2Config, vocab_size: 257,\n"
                               "    seq_length: 24, hidden_size: 16, num_layers: 2,\n"
                               "    num_heads: 2, dropout_prob: 0.1}\n"
                               "train_dataset:\n"
                               "  data_loader: {type: WebtextDataset, dataset_dir: %s,\n"
                               "    pad_token: 0, tokenizer_type: ByteTokenizer,\n"
                               "    split: \"3,1,0\"}\n"
                               "runner_config: {max_steps: %d, batch_size: 2,\n"
                               "  eval_iters: 2}\n"
                               "parallel_config: {micro_batch_num: 2}\n"
                               "lr_schedule: {learning_rate: 1.e-3, warmup_steps: 0}\n";
    static const int length[] = {1, 17, 3, 2, 9, 1, 23, 5};
    const char *config = in_temp("masked.yaml"), *data = in_temp("masked.jsonl");
    Text t = text_new(mem());
    for (int i = 0; i < 60; i++)
        text_add(&t, "{\"text\": \"%.*s\"}\n", length[i % 8], "one and one is two, and");
    write_text(data, t.s);
    write_text(config, arena_printf(mem(), form, data, steps));
    return config;
}

/* A label counts the same in every micro-batch; of the validation too, whose four digits
 * are printed. */
TEST_LIMIT(micro_batches_count_labels_alike, 120) {
    const char *config = masked_config(3), *run[ARRAY_LEN(cuts)];
    double valid = 0;
    for (int i = 0; i < ARRAY_LEN(cuts); i++) {
        static const char mark[] = "validation at step 3: loss ";
        run[i] = in_temp(arena_printf(mem(), "run%d", i));
        RUN_EXPECT(0, runs_words(config, run[i], cuts[i]));
        runs_expect_near_losses(run[0], run[i], 3);
        SAID_EXPECT(mark);
        double loss = atof(strstr(said(), mark) + strlen(mark));
        if (!i) valid = loss;
        EXPECT_NEAR(loss, valid, 1.5e-4);
    }
    /* Megatron-LM's way, said in a note: other numbers */
    static const char words[] = " --calculate_per_token_loss False";
    const char *means = in_temp("means"), *one = in_temp("one");
    int n;
    RUN_EXPECT(0, runs_words(config, one, arena_printf(mem(), "%s%s", cuts[0], words)));
    runs_expect_near_losses(run[0], one, 3);
    RUN_EXPECT(0, runs_words(config, means, arena_printf(mem(), "%s%s", cuts[2], words)));
    SAID_EXPECT("calculate_per_token_loss False: the loss is the mean of the means");
    double apart = runs_metrics(means, &n)->loss - runs_metrics(run[0], &n)->loss;
    EXPECT(fabs(apart) > 1e-3);
}

/* With plain SGD a step takes away rate times gradient: the dumped ones. */
static void expect_dump_of_step(const char *config, const char *more) {
    static const char form[] = "--optimizer.type SGD --optimizer.weight_decay 0 "
                               "--runner_wrapper.use_clip_grad False "
                               "--lr_schedule.warmup_steps 0 "
                               "--lr_schedule.learning_rate %d --dump %s %s";
    const char *path[2];
    double rate = 0; /* by which the second run's is larger */
    for (int i = 0; i < 2; i++) {
        const char *run = in_temp(i ? "far" : "near");
        int n;
        remove_all(run);
        path[i] = arena_printf(mem(), "%s.safetensors", run);
        RUN_EXPECT(0,
                   runs_words(config, run,
                              arena_printf(mem(), form, i ? 400 : 100, path[i], more)));
        rate = runs_metrics(run, &n)->lr - rate;
    }
    Safetensors *from = safetensors_open(mem(), path[0], EXIT_DATA);
    Safetensors *to = safetensors_open(mem(), path[1], EXIT_DATA);
    int compared = 0;
    for (int i = 0; i < to->n; i++) {
        if (strncmp(to->t[i].name, "grad.", 5)) continue;
        const char *final = arena_printf(mem(), "final.%s", to->t[i].name + 5);
        const float *g = to->t[i].data, *x = safetensors_need(from, final)->data,
                    *y = safetensors_need(to, final)->data;
        double difference = 0, norm = 0;
        for (int64_t k = 0; k < safetensors_count(&to->t[i]); k++) {
            difference += pow(x[k] - y[k] - rate * g[k], 2);
            norm += pow(rate * g[k], 2);
        }
        if (!(difference <= 1e-10 * norm))
            test_fail(__FILE__, __LINE__, "%s is off by %.3g of its norm", final,
                      sqrt(difference / norm));
        compared++;
    }
    EXPECT(compared > 20 && rate > 250);
}

/* Dropout, micro-batches and labels that do not count included. */
TEST_LIMIT(dump_is_of_the_first_step, 120) {
    expect_dump_of_step(runs_small_config(1, 0), "");
    expect_dump_of_step(masked_config(1), "");
    expect_dump_of_step(runs_small_config(1, 0), "--recompute_config.recompute 1");
    expect_dump_of_step(
        runs_small_config(1, 0),
        "--model.model_config.num_layers 3 --recompute_config.recompute 2 "
        "--recompute_config.recompute_method uniform");
    expect_dump_of_step(masked_config(1), "--calculate_per_token_loss False ");
}

/* Heads of queries, keys and values are apart in our matrices alone. */
TEST_LIMIT(matrices_of_a_dump_have_two_dimensions, 60) {
    static const char *const type[] = {"GPT2Config", "LlamaConfig", "GPTNeoXConfig"};
    for (int i = 0; i < 2 * ARRAY_LEN(type); i++) {
        const char *out = in_temp("d");
        RUN_EXPECT(0, arena_printf(mem(),
                                   "train %s --model.model_config.type %s "
                                   "--model.model_config.n_kv_heads %d --train_steps 4 "
                                   "--resume never --output_dir %s --dump %s",
                                   runs_small_config(1, 0), type[i / 2], i % 2 ? 2 : 1,
                                   in_temp("r"), out));
        const Safetensors *f = safetensors_open(mem(), out, EXIT_DATA);
        int matrices = 0;
        for (int k = 0; k < f->n; k++) {
            bool logits = !strcmp(f->t[k].name, "logits");
            if (!logits && f->t[k].rank > 2)
                test_fail(__FILE__, __LINE__, "%s of %s", f->t[k].name, type[i / 2]);
            matrices += f->t[k].rank == 2;
        }
        EXPECT(matrices > 5);
    }
}
