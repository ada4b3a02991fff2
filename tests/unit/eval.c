/* eval.c - stator eval: every token once, whatever the batches; against PyTorch's logits,
 * against the validation of a run, and endings against texts. */
#include "evaluated.h"
#include "example_data.h"
#include "runtime/store/safetensors.h"
#include <math.h>

/* ---- against a plain formula ---- */

typedef struct Plain {
    double loss, accuracy, error;
} Plain;

/* Of logits[rows][seq][vocab] and tokens[rows][seq + 1]. */
static Plain plain_formula(const float *logits, const int64_t *tokens, int rows, int seq,
                           int vocab) {
    double sum[64] = {0}, all = 0, right = 0, squares = 0;
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < seq; i++) {
            const float *x = logits + (r * seq + i) * vocab;
            int64_t label = tokens[r * (seq + 1) + i + 1];
            double total = 0;
            bool most = true;
            for (int v = 0; v < vocab; v++) {
                total += exp((double)x[v]);
                most &= x[v] <= x[label];
            }
            sum[r] += log(total) - (double)x[label];
            right += most;
        }
        all += sum[r];
    }
    double n = rows * seq, mean = all / n;
    for (int r = 0; r < rows; r++) squares += pow(sum[r] - mean * seq, 2);
    return (Plain){mean, right / n, sqrt(squares * rows / (rows - 1)) / n};
}

/* Returns the accuracy. */
static double expect_formula(const char *name) {
    enum { ROWS = 8, SEQ = 16, VOCAB = 96 };
    const char *path = path_join(mem(), runs_golden(name), "expected.safetensors");
    Safetensors *file = safetensors_open(mem(), path, EXIT_DATA);
    const SafeTensor *logits = safetensors_need(file, "logits");
    const SafeTensor *tokens = safetensors_need(file, "tokens");
    EXPECT(logits->dim[0] == ROWS && logits->dim[1] == SEQ && logits->dim[2] == VOCAB);
    static int64_t first[ROWS * (SEQ + 1)];
    static float x[ROWS * SEQ * VOCAB];
    memcpy(first, tokens->data, sizeof first);
    memcpy(x, logits->data, sizeof x);
    SafeTensor one = *tokens;
    one.dim[0] = 1;
    one.data = first;
    one.bytes = sizeof first;
    const char *batch = in_temp("batch.safetensors");
    EXPECT_INT(safetensors_write(batch, &one, 1, NULL, NULL), 0);
    Plain want = plain_formula(x, first, ROWS, SEQ, VOCAB);
    Evaluated e =
        evaluated(arena_printf(mem(), "%s --data %s", runs_golden(name), batch));
    safetensors_close(file);
    EXPECT(e.samples == ROWS && e.tokens == ROWS * SEQ);
    EXPECT_NEAR(e.loss, want.loss, 2e-6 * want.loss);
    EXPECT_NEAR(e.perplexity, exp(want.loss), 1e-5 * exp(want.loss));
    EXPECT_NEAR(e.accuracy, want.accuracy, 1e-12);
    EXPECT_NEAR(e.error, want.error, 1e-4 * want.error);
    EXPECT(isnan(e.bits_per_byte));
    return want.accuracy;
}

TEST(pytorch_logits) {
    EXPECT(expect_formula("gpt2_tiny") + expect_formula("llama_tiny") > 0);
}

/* ---- against validation ---- */

/* The loss at the last step, as the run wrote it. */
static double last_valid_loss(const char *run) {
    const char *path = path_join(mem(), run, "valid.jsonl");
    const char *last =
        strstr(file_read(mem(), path, 1 << 20, NULL, EXIT_DATA), "{\"step\": 12,");
    double loss = 0;
    EXPECT(last && sscanf(last, "{\"step\": 12, \"valid_loss\": %lf", &loss) == 1);
    return loss;
}

/* 28 samples of the valid part are seven batches of the run's four, none left over. */
TEST(validation_of_the_run) {
    const char *text = evaluated_text("whole.txt", 5 * (28 * 16 + 1));
    const char *run = evaluated_run(
        arena_printf(mem(),
                     "--dataset_dir %s --train_dataset.data_loader.split 8,2 "
                     "--eval_iters 100000 --eval_interval 4 "
                     "--callbacks.CheckpointMonitor.save_best True",
                     text));
    double loss = last_valid_loss(run);
    Evaluated e = evaluated(run);
    EXPECT(e.samples == 28 && e.tokens == 28 * 16 && e.bytes == e.tokens);
    EXPECT_NEAR(e.loss, loss, 1e-6 * loss);
    EXPECT_NEAR(e.bits_per_byte, e.loss / log(2), 1e-9);
    EXPECT(evaluated(arena_printf(mem(), "%s/best", run)).loss == e.loss);
    Evaluated all = evaluated(
        arena_printf(mem(), "%s --split all --runner_config.batch_size 4", run));
    Evaluated best =
        evaluated(arena_printf(mem(),
                               "%s/best --data %s --model.model_config.seq_length 16 "
                               "--runner_config.batch_size 4",
                               run, text));
    EXPECT(all.tokens == 5 * (28 * 16 + 1) - 1 && best.tokens == all.tokens);
    EXPECT(best.loss == all.loss); /* the last step is the best */
}

/* Samples that fill whole batches, so that validation takes all of them. */
TEST(validation_on_data_of_its_own) {
    const char *text = evaluated_text("train.txt", 40 * 16 + 1);
    const char *other = evaluated_text("other.txt", 28 * 16 + 1);
    const char *run = evaluated_run(
        arena_printf(mem(), "--dataset_dir %s --eval_dataset_dir %s --eval_iters 100000",
                     text, other));
    SAID_EXPECT("other.txt: 28 samples");
    double loss = last_valid_loss(run);
    Evaluated e = evaluated(run);
    EXPECT(e.samples == 28);
    EXPECT_NEAR(e.loss, loss, 1e-6 * loss);
    EXPECT(evaluated(arena_printf(mem(), "%s --data %s", run, other)).loss == e.loss);
    Evaluated all = evaluated(arena_printf(mem(), "%s --split all", run));
    EXPECT(all.samples == 40 && all.loss != e.loss);
    EXPECT(evaluated(arena_printf(mem(), "%s --data %s", run, text)).loss == all.loss);
    EXPECT(unlink(other) == 0);
    RUN_EXPECT(EXIT_DATA, arena_printf(mem(), "eval %s", run));
    SAID_EXPECT("other.txt, which are the data");
}

/* A learning rate that spoils the model: the best one is not the last. A run that goes on
 * keeps it, one that starts anew puts it aside. */
TEST(best_checkpoint) {
    const char *more = "--train_dataset.data_loader.split 6,2,2 --eval_iters 3 "
                       "--eval_interval 2 --callbacks.CheckpointMonitor.save_best True "
                       "--lr_schedule.learning_rate 3 --lr_schedule.warmup_steps 6";
    const char *run = evaluated_run(more), *best = path_join(mem(), run, "best");
    SAID_EXPECT("test at step 12: loss ");
    const char *points =
        file_read(mem(), path_join(mem(), run, "valid.jsonl"), 1 << 20, NULL, EXIT_DATA);
    double least = INFINITY, loss;
    int at = 0, step;
    for (const char *p = points; (p = strstr(p, "{\"step\": ")); p++)
        if (sscanf(p, "{\"step\": %d, \"valid_loss\": %lf", &step, &loss) == 2 &&
            loss < least)
            least = loss, at = step;
    EXPECT(at > 0 && at < 12);
    const char *kept = path_join(mem(), best, arena_printf(mem(), "step_%08d", at));
    EXPECT(file_exists(path_join(mem(), kept, "manifest.json")));
    evaluated_run(arena_printf(mem(), "%s --runner_config.max_steps 14", more));
    EXPECT(file_exists(kept) && !file_exists(arena_printf(mem(), "%s.before-1", best)));
    evaluated_run(arena_printf(mem(), "%s --resume never", more));
    EXPECT(file_exists(arena_printf(mem(), "%s.before-1", best)));
}

/* ---- every token once ---- */

TEST_LABEL_OF(batches_and_the_rest, RELEASED);
TEST(batches_and_the_rest) {
    const char *run = evaluated_run("");
    static const size_t sizes[] = {2, 11, 17, 18, 33, 500, 1003};
    for (int k = 0; k < ARRAY_LEN(sizes); k++) {
        const char *text = evaluated_text("part.txt", sizes[k]);
        double loss = 0;
        for (int batch = 1; batch <= 5; batch++) {
            Evaluated e = evaluated(arena_printf(
                mem(), "%s --data %s --runner_config.batch_size %d", run, text, batch));
            if (batch == 1) loss = e.loss;
            EXPECT_INT(e.tokens, (int64_t)sizes[k] - 1);
            EXPECT_INT(e.samples, ((int64_t)sizes[k] + 14) / 16);
            if (fabs(e.loss - loss) > 1e-6 * loss)
                test_fail(__FILE__, __LINE__, "%zu bytes by %d: %.9g, wanted %.9g",
                          sizes[k], batch, e.loss, loss);
        }
        if (!test_long() && k > 2) break;
    }
}

/* Batches of a file have a size of their own, which is a micro-batch of no run. */
TEST(ready_batches_by_any_size) {
    const char *run = in_temp("batches"), *config = runs_golden_config("gpt2_tiny");
    RUN_EXPECT(0, arena_printf(mem(),
                               "train %s --output_dir %s --runner_config.max_steps 2 "
                               "--runner_config.batch_size 2 "
                               "--parallel_config.micro_batch_num 4",
                               config, run));
    Evaluated own = evaluated(run);
    for (int batch = 1; batch <= 8; batch += 3) {
        Evaluated e = evaluated(
            arena_printf(mem(), "%s --runner_config.batch_size %d", run, batch));
        EXPECT(e.samples == own.samples && e.tokens == own.tokens &&
               own.samples % 8 == 0);
        EXPECT_NEAR(e.loss, own.loss, 1e-6 * own.loss);
    }
}

/* A run folder takes its weights with it, but not its data. */
TEST(a_run_that_was_moved) {
    const char *run = evaluated_run(""), *moved = in_temp("moved"), *data = runs_text();
    Evaluated want = evaluated(run);
    EXPECT(!rename(run, moved));
    Evaluated there = evaluated(moved);
    EXPECT(there.loss == want.loss && there.tokens == want.tokens);
    EXPECT(!rename(data, in_temp("elsewhere.txt")));
    RUN_EXPECT(EXIT_DATA, arena_printf(mem(), "eval %s", moved));
    SAID_EXPECT("/moved/config.yaml names: write where they are now, --data PATH");
    Evaluated other =
        evaluated(arena_printf(mem(), "%s --data %s", moved, in_temp("elsewhere.txt")));
    EXPECT(other.loss == want.loss);
    RUN_EXPECT(
        0, arena_printf(mem(), "predict %s one --max_new_tokens 3 --threads 1", moved));
}

/* A template's keys that are given as "" are those of no file. */
TEST(keys_that_are_empty) {
    const char *config = in_temp("empty.yaml"), *text = runs_text();
    const char *small = file_read(mem(), runs_small_config(12, 6), 1 << 20, NULL, 0);
    const char *names = arena_printf(mem(), "dataset_dir: %s", text);
    const char *at = strstr(small, names);
    EXPECT(at != NULL);
    write_text(config, arena_printf(mem(),
                                    "%.*sdata_path: %s, dataset_dir: \"\", vocab_file: "
                                    "\"\", tokenizer_file: \"\", text_key: \"\"%s",
                                    (int)(at - small), small, text, at + strlen(names)));
    RUN_EXPECT(0, arena_printf(mem(), "train %s --output_dir %s --context.threads 1",
                               config, in_temp("empty")));
    Evaluated own = evaluated(in_temp("empty"));
    Evaluated other =
        evaluated(arena_printf(mem(), "%s --data %s", in_temp("empty"), text));
    EXPECT(own.loss == other.loss && own.tokens == other.tokens);
}

static void expect_missing(const char *run, const char *path) {
    RUN_EXPECT(EXIT_DATA, arena_printf(mem(), "eval %s", run));
    SAID_EXPECT(arena_printf(mem(),
                             "there is no %s, which are the data that %s/config.yaml "
                             "names: write where they are now, --data PATH",
                             path, run));
}

/* Of pairs, and of a blend of them with weights. */
TEST(a_run_without_its_pairs) {
    const char *config = in_temp("blend.yaml"), *run = in_temp("blend");
    const char *pair[2];
    for (int i = 0; i < 2; i++) {
        RUN_EXPECT(0, arena_printf(mem(),
                                   "preprocess --input %s --output-prefix %s/p%d "
                                   "--text-documents line --tokenizer-type ByteTokenizer",
                                   runs_text(), temp_dir(), i));
        pair[i] = arena_printf(mem(), "%s/p%d_text_document", temp_dir(), i);
    }
    const char *small = file_read(mem(), runs_small_config(4, 4), 1 << 20, NULL, 0);
    const char *data = arena_printf(mem(), "TextFile, dataset_dir: %s", runs_text());
    const char *at = strstr(small, data);
    EXPECT(at != NULL);
    const char *const blend[] = {
        arena_printf(mem(), "[0.7, %s, 0.3, %s]", pair[0], pair[1]),
        arena_printf(mem(), "0.7 %s 0.3 %s", pair[0], pair[1])};
    const char *idx = arena_printf(mem(), "%s.idx", pair[1]), *aside = in_temp("aside");
    for (int i = 0; i < 2; i++) {
        write_text(config,
                   arena_printf(mem(), "%.*sGPTDataset, split: 1, data_path: %s%s",
                                (int)(at - small), small, blend[i], at + strlen(data)));
        RUN_EXPECT(0, arena_printf(mem(),
                                   "train %s --output_dir %s --context.threads 1 "
                                   "--resume never",
                                   config, run));
        Evaluated one = evaluated(arena_printf(mem(), "%s --data %s", run, pair[0]));
        Evaluated both = evaluated(run); /* whatever the weights */
        EXPECT_INT(both.samples, 2 * one.samples);
        EXPECT_NEAR(both.loss, one.loss, 1e-6);
        EXPECT(!rename(idx, aside));
        expect_missing(run, pair[1]);
        EXPECT(!rename(aside, idx));
    }
}

/* ---- other data are read as the run's own ---- */

static void expect_same_by_path(const char *run, const char *data, const char *from) {
    Evaluated own = evaluated(arena_printf(mem(), "%s --split all", run));
    Evaluated other = evaluated(arena_printf(mem(), "%s --data %s", from, data));
    EXPECT(other.loss == own.loss && other.samples == own.samples);
    other = evaluated(arena_printf(mem(), "%s --dataset_dir %s --split all", run, data));
    EXPECT(other.loss == own.loss && other.samples == own.samples);
}

/* Its name does not say that a file has tensors by name. */
TEST(data_of_a_module) {
    const struct {
        const char *name, *data;
    } example[] = {{"classifier", make_classes()}, {"lstm", make_sequences()}};
    for (int i = 0; i < 2; i++) {
        const char *run = in_temp(example[i].name);
        RUN_EXPECT(0,
                   arena_printf(mem(),
                                "train %s/../examples/%s/train.yaml --dataset_dir %s "
                                "--output_dir %s --runner_config.max_steps 4 "
                                "--lr_schedule.warmup_steps 2 "
                                "--callbacks.CheckpointMonitor.save_checkpoint_steps 4",
                                tests_dir(), example[i].name, example[i].data, run));
        expect_same_by_path(run, example[i].data, run);
        expect_same_by_path(run, example[i].data,
                            arena_printf(mem(), "%s/ckpt/step_00000004", run));
    }
}

/* GPTDataset leaves out the end, MegatronIndexed does not; here it also begins attention
 * anew in each document, and seq_length is the data's. */
TEST(data_in_megatrons_order) {
    const char *small = file_read(mem(), runs_small_config(4, 4), 1 << 20, NULL, 0);
    const char *config = in_temp("gpt.yaml"), *run = in_temp("gpt"), *pair = in_temp("p");
    RUN_EXPECT(0, arena_printf(mem(),
                               "preprocess --input %s --output-prefix %s "
                               "--text-documents line --tokenizer-type ByteTokenizer",
                               runs_text(), pair));
    const char *key = "    seq_length: 16\n", *data = "type: TextFile";
    const char *seq = strstr(small, key), *at = strstr(small, data);
    EXPECT(seq && at);
    const char *rest = seq + strlen(key);
    pair = arena_printf(mem(), "%s_text_document", pair);
    write_text(config, arena_printf(mem(),
                                    "%.*s%.*stype: GPTDataset, seq_length: 16, split: 1, "
                                    "eod: 49, reset_attention_mask: True%s",
                                    (int)(seq - small), small, (int)(at - rest), rest,
                                    at + strlen(data)));
    RUN_EXPECT(0, arena_printf(mem(),
                               "train %s --output_dir %s --context.threads 1 "
                               "--dataset_dir %s",
                               config, run, pair));
    expect_same_by_path(run, pair, run);
}

/* A line of loose JSON is a sample: what fills it up does not count. */
TEST(labels_that_do_not_count) {
    static const char *const text[] = {"one and one is 7", "two", "two and"};
    const char *run = evaluated_run(""), *web = in_temp("web.jsonl");
    double sum = 0;
    int64_t tokens = 0;
    Text lines = text_new(mem());
    for (int i = 0; i < 3; i++) {
        const char *one = in_temp("one.txt");
        text_add(&lines, "{\"text\": \"%s\"}\n", text[i]);
        write_text(one, text[i]);
        Evaluated e = evaluated(arena_printf(mem(), "%s --data %s", run, one));
        EXPECT_INT(e.tokens, (int64_t)strlen(text[i]) - 1);
        sum += e.loss * (double)e.tokens;
        tokens += e.tokens;
    }
    write_text(web, lines.s);
    Evaluated e = evaluated(arena_printf(
        mem(),
        "%s --data %s --train_dataset.data_loader.tokenizer_type ByteTokenizer "
        "--train_dataset.data_loader.eod -1 --train_dataset.data_loader.pad_token 0",
        run, web));
    EXPECT_INT(e.samples, 3);
    EXPECT_INT(e.tokens, tokens);
    EXPECT_NEAR(e.loss, sum / (double)tokens, 1e-6 * e.loss);
}

static const char *lines_of(const char *name, const char *key) {
    const char *path = in_temp(name);
    Text t = text_new(mem());
    for (int i = 0; i < 40; i++)
        text_add(&t, "{\"%s\": \"%.*s\"}\n", key, 5 + i % 11, "one and one is 7");
    write_text(path, t.s);
    return path;
}

static void expect_no_notes(void) {
    EXPECT(!strstr(said(), "has no effect"));
}

/* Nothing but the path is needed, whatever the run has learned from. */
TEST(lines_for_any_run) {
    const char *web = lines_of("web.jsonl", "text"), *tok = in_temp("tok");
    const char *bytes = evaluated_run("");
    EXPECT_INT(evaluated(arena_printf(mem(), "%s --data %s", bytes, web)).samples, 40);
    expect_no_notes();
    RUN_EXPECT(0, arena_printf(mem(),
                               "tokenizer train --input %s --vocab-size 300 "
                               "--output %s",
                               runs_text(), tok));
    const char *bpe = in_temp("bpe"), *own = in_temp("own");
    const char *small = runs_small_config(4, 4);
    RUN_EXPECT(0, arena_printf(mem(),
                               "train %s --output_dir %s --model.model_config.vocab_size "
                               "512 --tokenizer_file %s/tokenizer.json",
                               small, bpe, tok));
    EXPECT_INT(evaluated(arena_printf(mem(), "%s --data %s", bpe, web)).samples, 40);
    expect_no_notes();
    web = lines_of("said.jsonl", "said");
    RUN_EXPECT(0, arena_printf(mem(),
                               "train %s --output_dir %s --model.model_config.vocab_size "
                               "512 --tokenizer_file %s/tokenizer.json --dataset_dir %s "
                               "--train_dataset.data_loader.type WebtextDataset "
                               "--train_dataset.data_loader.text_key said "
                               "--train_dataset.data_loader.pad_in_loss True "
                               "--train_dataset.data_loader.pad_token 511",
                               small, own, tok, web));
    expect_same_by_path(own, web, own);
    EXPECT(isnan(evaluated(own).bits_per_byte)); /* the loss is of padding too */
    expect_no_notes();
}

/* ---- endings ---- */

/* The sum over a text's labels. */
static double sum_of(const char *run, const char *text) {
    const char *path = in_temp("sum.txt");
    write_text(path, text);
    Evaluated e = evaluated(arena_printf(mem(), "%s --data %s", run, path));
    EXPECT_INT(e.samples, 1);
    return e.loss * (double)e.tokens;
}

/* The loss of an ending is that of the text with it less that of the context. */
TEST(endings) {
    static const char *const ctx[] = {"one and", "two a", "o "};
    static const char *const end[][3] = {
        {"one is", "is", "zzz"}, {"nd two", "nd", "x"}, {"ne and o", "e", "ab"}};
    const char *run = evaluated_run(""), *file = in_temp("endings.jsonl");
    double total = 0;
    int64_t tokens = 0;
    int best[3][2] = {{0}};
    for (int i = 0; i < 3; i++) {
        double least = INFINITY, least_mean = INFINITY;
        for (int k = 0; k < 3; k++) {
            const char *own =
                arena_printf(mem(), "%s%s", ends_with(ctx[i], " ") ? "" : " ", end[i][k]);
            double loss = sum_of(run, arena_printf(mem(), "%s%s", ctx[i], own)) -
                          sum_of(run, ctx[i]);
            int64_t n = (int64_t)strlen(own);
            total += loss, tokens += n;
            if (loss < least) least = loss, best[i][0] = k;
            if (loss / (double)n < least_mean)
                least_mean = loss / (double)n, best[i][1] = k;
        }
    }
    for (int way = 0; way < 2; way++) {
        Text t = text_new(mem());
        double other = 0;
        for (int i = 0; i < 3; i++) {
            /* a label as a number and as a text, a blank line, and one that is wrong */
            const char *quote = i == 1 ? "\"" : "";
            int label = i == 2 ? (best[i][way] + 1) % 3 : best[i][way];
            text_add(&t, "{\"ctx\": \"%s\", \"endings\": [\"%s\", \"%s\", \"%s\"], ",
                     ctx[i], end[i][0], end[i][1], end[i][2]);
            text_add(&t, "\"label\": %s%d%s, \"more\": [1]}\n\n", quote, label, quote);
            other += label == best[i][!way];
        }
        write_text(file, t.s);
        for (int batch = 1; batch <= 4; batch += 3) {
            Evaluated e = evaluated(
                arena_printf(mem(), "%s --endings %s --runner_config.batch_size %d", run,
                             file, batch));
            EXPECT_INT(e.tokens, tokens);
            EXPECT_NEAR(e.loss, total / (double)tokens, 1e-5 * e.loss);
            EXPECT_NEAR(way ? e.acc_norm : e.acc, 2. / 3, 1e-12);
            EXPECT_NEAR(way ? e.acc : e.acc_norm, other / 3, 1e-12);
        }
    }
}

TEST(what_only_training_does_is_refused) {
    static const char *const of[][2] = {
        {"--dump x.st", "--dump changes nothing here"},
        {"--dump_ir x", "--dump_ir changes nothing here"},
        {"--dump-ir x", "--dump_ir changes nothing here"},
        {"--profile", "--profile changes nothing here"},
        {"--context.save_graphs True", "--context.save_graphs changes nothing here"},
        {"--resume never", "leave --resume out"},
        {"--resume_training True", "leave --resume_training out"},
        {"--load_checkpoint x", "leave --load_checkpoint out"},
        {"--resume_or_finetune_checkpoint=x",
         "leave --resume_or_finetune_checkpoint out"},
        {"--runner_wrapper.calculate_per_token_loss False",
         "the loss of an evaluation is the mean over all labels"}};
    const char *run = evaluated_run("");
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(), "eval %s %s", run, of[i][0]));
        SAID_EXPECT(of[i][1]);
    }
    /* Beside a configuration they say which weights are meant. */
    RUN_EXPECT(0, arena_printf(mem(), "eval %s --load_checkpoint %s --resume auto",
                               runs_small_config(12, 6), run));
}

/* Spaces alone are no context, as they are in the tokens of the ending: what stands before it is the
 * end of a text, and all its tokens count. */
TEST(endings_behind_spaces) {
    const char *tok = in_temp("tok"), *bpe = in_temp("bpe"), *file = in_temp("e.jsonl");
    RUN_EXPECT(0, arena_printf(mem(),
                               "tokenizer train --input %s --vocab-size 300 "
                               "--output %s",
                               runs_text(), tok));
    RUN_EXPECT(0, arena_printf(mem(),
                               "train %s --output_dir %s --model.model_config.vocab_size "
                               "512 --tokenizer_file %s/tokenizer.json",
                               runs_small_config(4, 4), bpe, tok));
    static const char *const line[] = {
        "{\"ctx\": \" \", \"endings\": [\"to\", \"and he\"], \"label\": 0}\n",
        "{\"ctx\": \"\", \"endings\": [\" to\", \" and he\"], \"label\": 0}\n"};
    Evaluated e[2];
    for (int i = 0; i < 2; i++) {
        write_text(file, line[i]);
        e[i] = evaluated(arena_printf(mem(), "%s --endings %s", bpe, file));
    }
    EXPECT(e[0].tokens >= 2 && e[0].tokens == e[1].tokens && e[0].loss == e[1].loss);
}

TEST(bad_endings) {
    static const struct {
        const char *line, *where;
    } bad[] = {
        {"{\"ctx\": \"a\", \"endings\": [\"b\"], \"label\": 0}",
         ":3:25: error: 1 ending"},
        {"{\"ctx\": \"a\", \"endings\": [\"b\", \"\"], \"label\": 0}",
         ":3:31: error: an"},
        {"{\"ctx\": \"\", \"endings\": [\"b\", \"c\"], \"label\": 0}",
         ":3:9: error: the"},
        {"{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": 2}",
         ":3:46: error: the"},
        {"{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": \"x\"}",
         ":3:46: error"},
        {"{\"ctx\": \"a\", \"endings\": [\"b\", 4], \"label\": 1}",
         ":3:31: error: an int"},
        {"{\"ctx\": \"a\", \"endings\": \"b\", \"label\": 1}", ":3:25: error: 'endings'"},
        {"{\"ctx\": 3, \"endings\": [\"b\", \"c\"], \"label\": 1}", ":3:9: error: 'ctx'"},
        {"{\"endings\": [\"b\", \"c\"], \"label\": 1}", ":3:1: error: 'ctx' is missing"},
        {"{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"]", ":3:1: error: never closed"},
        {"{\"ctx\": \"a\", \"endings\": [\"b\", \"seventeen letters\"], \"label\": 1}",
         ":3:31: error: the ending has 18 tokens"},
    };
    const char *run = evaluated_run(""), *file = in_temp("bad.jsonl");
    for (int i = 0; i < ARRAY_LEN(bad); i++) {
        write_text(file, arena_printf(mem(),
                                      "\n{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], "
                                      "\"label\": 1}\n%s\n",
                                      bad[i].line));
        RUN_EXPECT(EXIT_DATA, arena_printf(mem(), "eval %s --endings %s", run, file));
        SAID_EXPECT(bad[i].where);
        SAID_EXPECT(bad[i].line);
    }
}

/* ---- what is asked for ---- */

TEST(checkpoints_and_refusals) {
    const char *run = evaluated_run(""), *text = runs_text();
    Evaluated last = evaluated(arena_printf(mem(), "%s --checkpoint 12", run));
    Evaluated first = evaluated(arena_printf(mem(), "%s --checkpoint 6", run));
    Evaluated newest = evaluated(run);
    EXPECT(last.loss == newest.loss && first.loss > last.loss);
    Evaluated narrow = evaluated(
        arena_printf(mem(), "%s --model.model_config.compute_dtype bfloat16", run));
    EXPECT(narrow.loss != newest.loss);
    EXPECT_NEAR(narrow.loss, newest.loss, 1e-3 * newest.loss);
    Evaluated config = evaluated(arena_printf(mem(), "%s --output_dir %s --run_mode eval",
                                              runs_small_config(12, 6), run));
    EXPECT(config.loss == last.loss && config.tokens == last.tokens);
    RUN_EXPECT(0, arena_printf(mem(), "eval %s", run));
    SAID_EXPECT("perplexity ");
    static const struct {
        int code;
        const char *words, *says;
    } refused[] = {
        {EXIT_CHECKPOINT, "--checkpoint 7", "no checkpoint of step 7"},
        {EXIT_DATA, "--data nowhere.txt", "stator: error: cannot open nowhere.txt"},
        {EXIT_CONFIG, "--data a --endings b", "one at a time"},
        {EXIT_CONFIG, "--endings b --split all", "--split is a part"},
        {EXIT_CONFIG, "--split test", "no samples for test"},
        {EXIT_CONFIG, "--init_from x", "leave --init_from out"},
        {EXIT_CONFIG, "--parallel_config.model_parallel 2", "2 ranks, but 1 process"},
    };
    for (int i = 0; i < ARRAY_LEN(refused); i++) {
        RUN_EXPECT(refused[i].code,
                   arena_printf(mem(), "eval %s %s", run, refused[i].words));
        SAID_EXPECT(refused[i].says);
    }
    RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(), "eval %s/nowhere --data %s", run, text));
    RUN_EXPECT(EXIT_CONFIG,
               arena_printf(mem(), "train %s --run_mode eval", runs_small_config(12, 6)));
    SAID_EXPECT("stator eval");
}
