/* Tests of stator train through the command line: agreement with PyTorch, the run folder,
 * resuming after kill -9 and after signals, memory. */
#include "passes/passes.h"
#include "runs.h"
#include "runtime/store/safetensors.h"

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);

/* ---- agreement with the reference numbers of tests/golden ---- */

/* The key third of c_attn.bias has gradient 0: rounding noise moves it. Elements there
 * (the middle third) are left out. */
static bool is_noise(const char *name, int64_t i, int64_t n) {
    return strstr(name, "c_attn.bias") && i >= n / 3 && i < 2 * n / 3;
}

static double relative_error(const Safetensors *a, const Safetensors *b,
                             const char *name) {
    const SafeTensor *x = safetensors_need(a, name), *y = safetensors_need(b, name);
    int64_t n = safetensors_count(y);
    EXPECT(safetensors_count(x) == n && x->rank == y->rank);
    for (int i = 0; i < y->rank; i++) EXPECT_INT(x->dim[i], y->dim[i]);
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        float u, v;
        memcpy(&u, (const char *)x->data + 4 * i, 4);
        memcpy(&v, (const char *)y->data + 4 * i, 4);
        if (is_noise(name, i, n)) continue;
        difference += ((double)u - v) * ((double)u - v);
        norm += (double)v * v;
    }
    return sqrt(difference / norm);
}

static void expect_dump(const char *folder, const char *dump) {
    Safetensors *want = safetensors_open(
        mem(), path_join(mem(), folder, "expected.safetensors"), EXIT_DATA);
    Safetensors *got = safetensors_open(mem(), dump, EXIT_DATA);
    EXPECT_INT(got->n, want->n - 1); /* all but `tokens` */
    for (int i = 0; i < want->n; i++) {
        const char *name = want->t[i].name;
        if (!strcmp(name, "tokens")) continue;
        double error = relative_error(got, want, name);
        if (!(error <= 1e-5))
            test_fail(__FILE__, __LINE__, "%s is off by %.3g of its norm", name, error);
    }
    safetensors_close(want);
    safetensors_close(got);
}

static void check_golden(const char *name, const char *more) {
    const char *run = in_temp("run"), *dump = in_temp("dump.safetensors");
    RUN_EXPECT(0, arena_printf(mem(), "train %s --output_dir %s --dump %s %s",
                               runs_golden_config(name), run, dump, more));
    runs_expect_curve(name, run, more, 5e-6, 5e-6);
    expect_dump(runs_golden(name), dump);
}

TEST_LIMIT(golden_gpt2_tiny, 120) {
    check_golden("gpt2_tiny", "");
}
TEST_LIMIT(golden_gpt2_untied, 120) {
    check_golden("gpt2_untied", "");
}
TEST_LIMIT(golden_llama_tiny, 120) {
    check_golden("llama_tiny", "");
}
TEST_LIMIT(golden_llama_tied_mqa, 120) {
    check_golden("llama_tied_mqa", "");
}
TEST_LIMIT(golden_in_micro_batches, 120) {
    check_golden("gpt2_tiny", "--parallel_config.micro_batch_num 4");
}
TEST_LIMIT(golden_on_one_thread, 120) {
    check_golden("llama_tiny", "--context.threads 1");
}

/* OpenMP reads its limits when a process starts. A number of threads that nobody gave follows
 * them, one that was given is refused: of other threads than kernels are made for, losses would
 * be wrong. */
TEST_LIMIT(limits_of_openmp, 180) {
    static const char *const limit[] = {"OMP_THREAD_LIMIT", "OMP_MAX_ACTIVE_LEVELS"};
    const char *config = runs_small_config(4, 4), *one = in_temp("one");
    unsetenv("STATOR_THREADS");
    RUN_EXPECT(0, runs_words(config, one, "--context.threads 1"));
    for (int i = 0; i < ARRAY_LEN(limit); i++) {
        const char *run = in_temp(limit[i]);
        setenv(limit[i], i ? "0" : "1", 1);
        RUN_EXPECT(EXIT_CONFIG, runs_words(config, run, "--context.threads 2"));
        SAID_EXPECT(arena_printf(mem(), "OpenMP gives 1 of 2 threads: unset %s, or use 1",
                                 limit[i]));
        RUN_EXPECT(0, runs_words(config, run, ""));
        runs_expect_same_losses(one, run, 4);
        RUN_EXPECT(EXIT_CONFIG,
                   arena_printf(mem(), "eval %s --data %s --context.threads 2", run,
                                runs_text()));
        SAID_EXPECT(limit[i]);
        unsetenv(limit[i]);
    }
}

/* ---- a small run of its own ---- */

TEST_LIMIT(run_folder_and_learning, 120) {
    const char *run = in_temp("run"), *ir = in_temp("ir");
    RUN_EXPECT(0, runs_words(runs_small_config(40, 15), run,
                             arena_printf(mem(), "--dump_ir %s", ir)));
    static const char *const files[] = {"config.yaml",
                                        "plan.json",
                                        "metrics.jsonl",
                                        "loss.svg",
                                        "logs/rank_0.log",
                                        "ckpt/latest",
                                        "ckpt/step_00000015/manifest.json",
                                        "ckpt/step_00000030/manifest.json",
                                        "ckpt/step_00000040/manifest.json"};
    for (int i = 0; i < ARRAY_LEN(files); i++)
        EXPECT(file_exists(path_join(mem(), run, files[i])));
    EXPECT(file_exists(path_join(mem(), ir, "01-simplify.ir")));
    SAID_EXPECT(" peak "); /* of multiply-adds, or of AMX */
    SAID_EXPECT("stator predict");
    int n;
    const MetricsRow *row = runs_metrics(run, &n);
    EXPECT(n == 40 && row[39].step == 40);
    EXPECT(row[0].loss > 5 && row[39].loss < row[0].loss - 0.5);
    EXPECT_INT(row[0].tokens, 2 * 2 * 16);
    /* The merged configuration runs again, to the same numbers. */
    const char *again = in_temp("again");
    RUN_EXPECT(0, runs_words(path_join(mem(), run, "config.yaml"), again, ""));
    runs_expect_same_losses(run, again, 40);
    runs_expect_same_tensors(run, again, 40);
}

TEST_LIMIT(a_finished_run_does_nothing_more, 120) {
    const char *run = in_temp("run"), *config = runs_small_config(6, 2);
    RUN_EXPECT(0, runs_words(config, run, "--context.save_graphs True"));
    int passes = 1;
    for (const char *p = train_passes; *p; p++) passes += *p == ',';
    EXPECT(file_exists(arena_printf(mem(), "%s/ir/%02d-memplan.ir", run, passes)));
    RUN_EXPECT(0, runs_words(config, run, ""));
    SAID_EXPECT("all 6 steps are done already");
    /* Its configuration stays that of its weights. */
    size_t n;
    const char *path = path_join(mem(), run, "config.yaml");
    char *before = file_read(mem(), path, 1 << 20, &n, EXIT_DATA);
    RUN_EXPECT(0, runs_words(config, run, "--model.model_config.norm_epsilon 1e-3"));
    SAID_EXPECT("all 6 steps are done already");
    EXPECT_STR(file_read(mem(), path, 1 << 20, &n, EXIT_DATA), before);
    /* never: from the start again; the older checkpoints are kept aside. */
    RUN_EXPECT(0, runs_words(config, run, "--resume never --runner_config.max_steps 4"));
    EXPECT(file_exists(path_join(mem(), run, "ckpt.before-1/step_00000006")));
    EXPECT(file_exists(path_join(mem(), run, "metrics.jsonl.before-1")));
    EXPECT(file_exists(path_join(mem(), run, "ckpt/step_00000004")));
    EXPECT(!file_exists(path_join(mem(), run, "ckpt/step_00000006")));
}

/* Text has a part that is not trained on, and its loss is of a model that learns. */
TEST_LIMIT(validation_on_a_part_of_a_text, 60) {
    const char *config = runs_small_config(8, 0), *run = in_temp("run");
    RUN_EXPECT(0, runs_words(config, run,
                             "--train_dataset.data_loader.split 9,1 --eval_interval 4 "
                             "--eval_iters 2 --lr_schedule.learning_rate 1e-2"));
    SAID_EXPECT("validation at step 4: loss ");
    SAID_EXPECT("(2 batches, ");
    const char *points =
        file_read(mem(), path_join(mem(), run, "valid.jsonl"), 1 << 16, NULL, EXIT_DATA);
    double loss[2] = {0};
    for (int i = 0; i < 2; i++) {
        static const char mark[] = "\"valid_loss\": ";
        points = strstr(points, mark);
        EXPECT(points != NULL);
        loss[i] = atof(points += strlen(mark));
    }
    EXPECT(loss[0] < log(256) && loss[1] < loss[0]);
}

/* A rate that spoils the model: the perplexity is that of the loss, however large. */
TEST_LIMIT(validation_of_a_large_loss, 60) {
    const char *config = runs_small_config(2, 0), *run = in_temp("run");
    RUN_EXPECT(0, runs_words(config, run,
                             "--train_dataset.data_loader.split 9,1 --optimizer.type SGD "
                             "--lr_schedule.type constant --lr_schedule.warmup_steps 0 "
                             "--lr_schedule.learning_rate 6 "
                             "--runner_wrapper.use_clip_grad False"));
    const char *point =
        file_read(mem(), path_join(mem(), run, "valid.jsonl"), 1 << 16, NULL, EXIT_DATA);
    double loss, perplexity;
    EXPECT(sscanf(point, "{\"step\": 2, \"valid_loss\": %lf, \"valid_perplexity\": %lf",
                  &loss, &perplexity) == 2);
    EXPECT(loss > 21 && loss < 600);
    EXPECT_NEAR(perplexity, exp(loss), 1e-6 * perplexity);
    SAID_EXPECT(arena_printf(mem(), ", perplexity %.3g (", perplexity));
}

/* Weights of a checkpoint, without its step and optimizer. */
TEST_LIMIT(init_from_a_checkpoint, 120) {
    const char *run = in_temp("run"), *next = in_temp("next"),
               *config = runs_small_config(6, 6);
    RUN_EXPECT(0, runs_words(config, run, ""));
    RUN_EXPECT(0, runs_words(config, next,
                             arena_printf(mem(), "--init_from %s --dump %s", run,
                                          in_temp("d.safetensors"))));
    SAID_EXPECT("weights from");
    int n;
    const MetricsRow *a = runs_metrics(run, &n);
    const MetricsRow *b = runs_metrics(next, &n);
    EXPECT(n == 6 && b[0].loss < a[0].loss);
}

/* Steps that follow from epochs are named as they come out. */
TEST(resume_names_steps_of_epochs) {
    const char *config = runs_small_config(6, 0), *run = in_temp("run");
    const char *words = "--runner_config.max_steps -1 --callbacks.CheckpointMonitor."
                        "save_checkpoint_steps 1000 --runner_config.epochs %d";
    for (int epochs = 1; epochs <= 2; epochs++)
        RUN_EXPECT(0, runs_words(config, run, arena_printf(mem(), words, epochs)));
    const char *was = strstr(said(), "lr_schedule.total_steps was ");
    int from = 0, to = 0;
    EXPECT(was &&
           sscanf(was, "lr_schedule.total_steps was %d and is %d", &from, &to) == 2);
    EXPECT(from > 0 && to > from);
}

/* What has changed is named; a folder that was not chosen is pointed at; a checkpoint
 * beyond the run is a line, not an abort. */
TEST_LIMIT(resume_names_what_differs, 120) {
    const char *config = runs_small_config(6, 3), *run = in_temp("run");
    RUN_EXPECT(0, runs_words(config, run, ""));
    RUN_EXPECT(
        0, runs_words(config, run, "--runner_config.max_steps 8 --optimizer.beta1 0.8"));
    SAID_EXPECT("runner_config.max_steps was 6 and is 8");
    SAID_EXPECT("optimizer.beta1 was 0.9 and is 0.8");
    EXPECT(!strstr(said(), "optimizer.beta2 was") &&
           !strstr(said(), "output_dir is not"));
    RUN_EXPECT(0, runs_words(config, run, "--runner_config.max_steps 4"));
    SAID_EXPECT("all 4 steps are done already: the checkpoint is of step 8");
    EXPECT(!chdir(temp_dir()));
    RUN_EXPECT(0, arena_printf(mem(), "train %s", config));
    RUN_EXPECT(0, arena_printf(mem(), "train %s --seed 9", config));
    SAID_EXPECT("seed was 7 and is 9");
    SAID_EXPECT("output_dir is not given, and ./output holds that earlier run");
    RUN_EXPECT(0, arena_printf(mem(), "train %s --train_steps 8", config));
    SAID_EXPECT("runner_config.max_steps was 6 and is 8");
    EXPECT(!strstr(said(), "output_dir is not given"));
    RUN_EXPECT(EXIT_CHECKPOINT, arena_printf(mem(),
                                             "train %s --model.model_config."
                                             "num_layers 1",
                                             config));
    SAID_EXPECT("another folder (--output_dir DIR), or --resume never to start anew");
}

TEST(a_warm_up_longer_than_the_run) {
    const char *config = runs_small_config(4, 0), *run = in_temp("run");
    RUN_EXPECT(0, runs_words(config, run,
                             "--lr_schedule.warmup_steps 100 "
                             "--lr_schedule.total_steps 1000"));
    SAID_EXPECT("the run of 4 steps ends before its warm-up of 100 steps does");
    RUN_EXPECT(0, runs_words(config, run, "--resume never"));
    EXPECT(!strstr(said(), "before its warm-up"));
}

/* Of one process, by either name of the key. */
TEST(stages_of_one_process) {
    static const char *const keys[] = {"parallel.pipeline_stages",
                                       "parallel_config.pipeline_stage"};
    const char *config = runs_small_config(4, 0), *run = in_temp("run");
    for (int i = 0; i < ARRAY_LEN(keys); i++) {
        RUN_EXPECT(EXIT_CONFIG, runs_words(config, run,
                                           arena_printf(mem(),
                                                        "--%s 2 --runner_config."
                                                        "batch_size 2",
                                                        keys[i])));
        SAID_EXPECT("= 2 ranks, but 1 process runs");
        EXPECT(!strstr(said(), "default: error"));
    }
}

/* How many steps there are is known when the data are open. */
TEST(rates_for_more_steps_than_the_epochs_have) {
    static const struct {
        const char *words, *says;
    } of[] = {{"--lr_schedule.type WSD --lr_schedule.wsd_decay_steps 100000",
               "error: warmup_steps 3 and wsd_decay_steps 100000 are above the "},
              {"--lr_schedule.type WSD --lr_schedule.wsd_decay_steps 1 "
               "--lr_schedule.warmup_steps 100000",
               "error: warmup_steps 100000 and wsd_decay_steps 1 are above the "},
              {"--lr_schedule.type linear --lr_schedule.warmup_steps 100000",
               "error: warmup_steps 100000 are above the "}};
    const char *config = runs_small_config(4, 0), *run = in_temp("run");
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        RUN_EXPECT(EXIT_CONFIG, runs_words(config, run,
                                           arena_printf(mem(),
                                                        "--lr_schedule.total_steps null "
                                                        "--runner_config.max_steps -1 %s",
                                                        of[i].words)));
        SAID_EXPECT(of[i].says);
        SAID_EXPECT("steps that epochs 1 has");
        EXPECT(!strstr(said(), "default: error"));
    }
}

static const char *golden_words(const char *run, const char *more) {
    return arena_printf(mem(), "train %s --runner_config.max_steps 2 --output_dir %s %s",
                        runs_golden_config("gpt2_tiny"), run, more);
}

/* Keys change what the weights leave open; the run folder says what has trained. */
TEST_LIMIT(keys_beside_init_from, 120) {
    const char *plain = in_temp("plain"), *changed = in_temp("changed");
    int n;
    RUN_EXPECT(0, golden_words(plain, ""));
    RUN_EXPECT(0, golden_words(changed, "--model.model_config.dropout_prob 0.3 "
                                        "--model.model_config.hidden_size 32"));
    SAID_EXPECT("model      GPT-2: 4 layers of 32, 4 heads, vocabulary 96");
    EXPECT(runs_metrics(changed, &n)->loss != runs_metrics(plain, &n)->loss);
    const char *config = path_join(mem(), changed, "config.yaml");
    const char *text = file_read(mem(), config, 1 << 20, NULL, EXIT_DATA);
    EXPECT(strstr(text, "# num_layers: 4\n") && strstr(text, "dropout_prob: 0.3\n") &&
           strstr(text, "# hidden_dropout_prob: 0.3\n"));
    RUN_EXPECT(EXIT_CONFIG, golden_words(plain, "--model.model_config.num_layers 3"));
    SAID_EXPECT("command line:3:");
    SAID_EXPECT("num_layers is 3, but the weights of ");
    SAID_EXPECT(" have 4");
    RUN_EXPECT(EXIT_CONFIG, golden_words(plain, "--model.model_config.seq_length 33"));
    SAID_EXPECT("seq_length is 33, but the model of ");
    RUN_EXPECT(EXIT_CONFIG, golden_words(plain, "--model.model_config.hidden_act relu"));
    SAID_EXPECT("hidden_act is relu, but the weights of ");
}

/* Dropout of a config.json is said; a shorter context is the run's own affair. */
TEST_LIMIT(dropout_and_length_beside_init_from, 120) {
    const char *hf = in_temp("hf");
    remove_all(hf);
    EXPECT(!system(arena_printf(mem(), "cp -r %s %s", runs_golden("gpt2_tiny"), hf)));
    EXPECT(!system(arena_printf(mem(),
                                "sed -i 's/\"attn_pdrop\": 0.0/\"attn_pdrop\": 0.25/' "
                                "%s/config.json",
                                hf)));
    const char *words =
        arena_printf(mem(),
                     "train --init_from %s --dataset_dir %s --runner_config.max_steps 1 "
                     "--model.model_config.seq_length 8 --output_dir %s ",
                     hf, runs_text(), in_temp("short"));
    RUN_EXPECT(EXIT_DATA, words); /* of 96 tokens, bytes below 96 alone */
    SAID_EXPECT("attention_probs_dropout_prob is 0.25, as config.json of ");
    SAID_EXPECT("is outside the vocabulary of 96");
    const char *digits = in_temp("digits.txt");
    write_text(digits,
               "12 34 56 78 12 34 56 78 12 34 56 78 12 34 56 78 12 34 56 78 12 34 "
               "12 34 56 78 12 34 56 78 12 34 56 78 12 34 56 78 12 34 56 78 12 34");
    RUN_EXPECT(0, arena_printf(mem(), "%s --dataset_dir %s", words, digits));
    SAID_EXPECT("sequences of 8\n");
}

/* Bytes are no tokens of GPT-2. */
TEST(no_bytes_for_another_vocabulary) {
    const char *config = runs_small_config(4, 0), *run = in_temp("run");
    RUN_EXPECT(EXIT_CONFIG,
               runs_words(config, run, "--model.model_config.vocab_size 257"));
    SAID_EXPECT("TextFile gives bytes as tokens, 0 .. 255, but this model has a "
                "vocabulary of 257");
    SAID_EXPECT("stator tokenizer train --input ");
    SAID_EXPECT("or vocab_size 256");
    write_text(in_temp("pair.idx"), "");
    RUN_EXPECT(EXIT_CONFIG, runs_words(config, run,
                                       arena_printf(mem(),
                                                    "--model.model_config.vocab_size "
                                                    "257 --dataset_dir %s",
                                                    in_temp("pair"))));
    SAID_EXPECT("pair.idx is of a .bin/.idx pair");
    SAID_EXPECT("type MegatronIndexed, or GPTDataset");
    RUN_EXPECT(0, runs_words(config, run, "--model.model_config.vocab_size 250"));
}

/* ---- a model as text ---- */

static const char *text_model_words(const char *file, const char *run, int32_t most) {
    static int32_t tokens[8 * 2 * 6];
    for (int i = 0; i < ARRAY_LEN(tokens); i++) tokens[i] = i % (most + 1);
    SafeTensor t = {
        .name = "tokens", .dtype = DT_I32, .rank = 3, .dim = {8, 2, 6}, .data = tokens};
    const char *data = in_temp("tokens.safetensors");
    EXPECT_INT(safetensors_write(data, &t, 1, NULL, NULL), 0);
    return arena_printf(mem(),
                        "train --model.file %s/ir/%s --output_dir %s --dump %s "
                        "--train_dataset.data_loader.type TensorBatches "
                        "--dataset_dir %s --lr_schedule.learning_rate 1e-2",
                        tests_dir(), file, run, in_temp("dump.safetensors"), data);
}

TEST_LIMIT(a_model_file, 120) {
    const char *run = in_temp("run");
    RUN_EXPECT(0, text_model_words("tiny_gpt.ir", run, 10));
    int n;
    const MetricsRow *row = runs_metrics(run, &n);
    EXPECT_INT(n, 8);
    EXPECT_NEAR(row[0].loss, log(11), 0.02);
    EXPECT(row[7].loss < row[0].loss - 0.05);
    Safetensors *dump = safetensors_open(mem(), in_temp("dump.safetensors"), EXIT_DATA);
    EXPECT_INT(safetensors_count(safetensors_need(dump, "grad.wqkv")), 3 * 8 * 3 * 2 * 4);
    EXPECT_INT(safetensors_count(safetensors_need(dump, "final.wte")), 11 * 8);
    /* A token that the table has not, and models that are no language models. */
    RUN_EXPECT(EXIT_DATA, text_model_words("tiny_gpt.ir", in_temp("run2"), 11));
    SAID_EXPECT("outside the vocabulary of 11");
    RUN_EXPECT(EXIT_CONFIG, text_model_words("mlp.ir", in_temp("run3"), 10));
    SAID_EXPECT("data of type TensorBatches cannot fill argument %x of role data");
}

/* The same model with its loss as a sum divided by what the runtime counts. */
TEST_LIMIT(a_model_file_that_counts, 120) {
    static const char sum[] = "%loss = scale %sum {by=0.1} : f32[]";
    static const char rng[] = "    %rng: i32[4] {role=\"rng\"},\n    %wte";
    const char *run = in_temp("run"), *counts = in_temp("counts");
    char *text = file_read(mem(), arena_printf(mem(), "%s/ir/tiny_gpt.ir", tests_dir()),
                           1 << 20, NULL, EXIT_DATA);
    char *arg = strstr(text, rng), *loss = strstr(text, sum);
    EXPECT(arg && loss && arg < loss);
    *loss = 0;
    write_text(in_temp("counts.ir"),
               arena_printf(mem(),
                            "%.*s    %%counted: f32[] {role=counted},\n%s"
                            "%%loss = div %%sum, %%counted : f32[]%s",
                            (int)(arg - text), text, arg, loss + strlen(sum)));
    RUN_EXPECT(0, text_model_words("tiny_gpt.ir", run, 10));
    const char *words = text_model_words("tiny_gpt.ir", counts, 10);
    RUN_EXPECT(0, arena_printf(mem(), "%s --model.file %s", words, in_temp("counts.ir")));
    runs_expect_near_losses(run, counts, 8);
    RUN_EXPECT(EXIT_CONFIG,
               arena_printf(mem(), "%s --calculate_per_token_loss False", words));
    SAID_EXPECT("the module of model.file says itself what its loss is");
}

/* ---- stopping and going on ---- */

TEST_LIMIT(killed_at_random_instants, 900) {
    enum { STEPS = 40 };
    const int most = test_long() ? 50 : 20;
    const char *config = runs_small_config(STEPS, 2), *whole = in_temp("whole");
    RUN_EXPECT(0, runs_words(config, whole, ""));
    double start = clock_seconds();
    remove_all(whole);
    RUN_EXPECT(0, runs_words(config, whole, ""));
    uint64_t run_us = (uint64_t)(1e6 * (clock_seconds() - start));
    uint64_t random = 0x9e3779b97f4a7c15u;
    int kills = 0, finished = 0, resumed = 0;
    while (kills < most || !finished) {
        const char *run = in_temp(arena_printf(mem(), "run%d", finished));
        int code = -1;
        while (code != 0) {
            int done = 0;
            if (file_exists(path_join(mem(), run, "metrics.jsonl")))
                runs_metrics(run, &done);
            pid_t pid = stator_start(runs_words(config, run, ""));
            if (kills < most) { /* anywhere, or some steps further than it came before */
                uint64_t wait = runs_random(&random);
                if (kills % 2 == 0)
                    usleep((useconds_t)(wait % run_us));
                else if (runs_wait_steps(pid, run, done + 3))
                    usleep(wait % 3000);
                kill(pid, SIGKILL);
            }
            code = stator_wait(pid);
            if (code != 0 && code != -SIGKILL)
                test_fail(__FILE__, __LINE__, "exit code %d:\n%s", code, said());
            kills += code == -SIGKILL;
            resumed += strstr(said(), "resumed after step") != NULL;
        }
        runs_expect_same_tensors(whole, run, STEPS);
        runs_expect_same_losses(whole, run, STEPS);
        finished++;
        remove_all(run);
    }
    EXPECT(resumed > 3);
}

static void check_signal(int number, const char *name) {
    const char *config = runs_small_config(100000, 50000);
    const char *run = in_temp(arena_printf(mem(), "run%d", number));
    pid_t pid = stator_start(runs_words(config, run, ""));
    EXPECT(runs_wait_steps(pid, run, 5));
    kill(pid, number);
    int code = stator_wait(pid), n;
    if (code != 75) test_fail(__FILE__, __LINE__, "exit code %d:\n%s", code, said());
    runs_metrics(run, &n);
    EXPECT(n >= 5 && n < 100000);
    EXPECT(file_exists(arena_printf(mem(), "%s/ckpt/step_%08d/manifest.json", run, n)));
    SAID_EXPECT(arena_printf(mem(), "stopped by %s after step ", name));
    /* Going on with the same schedule equals a run that was never stopped. */
    int more = n + 3;
    const char *rest = arena_printf(mem(),
                                    "--runner_config.max_steps %d "
                                    "--lr_schedule.total_steps 100000",
                                    more);
    const char *whole = in_temp(arena_printf(mem(), "whole%d", number));
    RUN_EXPECT(0, runs_words(config, run, rest));
    SAID_EXPECT(arena_printf(mem(), "resumed after step %d", n));
    RUN_EXPECT(0, runs_words(config, whole, rest));
    runs_expect_same_losses(run, whole, more);
}

TEST_LIMIT(sigterm_saves_and_stops, 180) {
    check_signal(SIGTERM, "SIGTERM");
}
TEST_LIMIT(sigint_saves_and_stops, 180) {
    check_signal(SIGINT, "SIGINT");
}
TEST_LIMIT(sigusr1_saves_and_stops, 180) {
    check_signal(SIGUSR1, "SIGUSR1");
}

/* As service managers send them, in a step that takes longer than both. */
TEST_LIMIT(signals_that_come_together_save, 180) {
    static const int second[] = {SIGHUP, SIGINT, SIGUSR1};
    const char *config = runs_small_config(100000, 50000);
    for (int i = 0; i < ARRAY_LEN(second); i++) {
        const char *run = in_temp(arena_printf(mem(), "run%d", i));
        pid_t pid =
            stator_start(runs_words(config, run, "--runner_config.batch_size 256"));
        EXPECT(runs_wait_steps(pid, run, 2));
        kill(pid, SIGTERM);
        kill(pid, second[i]);
        int code = stator_wait(pid);
        if (code != EXIT_SIGNALLED)
            test_fail(__FILE__, __LINE__, "exit code %d:\n%s", code, said());
        SAID_EXPECT("stopped by SIG");
        EXPECT(file_exists(arena_printf(mem(), "%s/ckpt/step_%08d/manifest.json", run,
                                        runs_steps(run))));
    }
}

TEST_LIMIT(a_second_run_in_the_folder_is_refused, 120) {
    const char *config = runs_small_config(100000, 50000), *run = in_temp("run");
    pid_t pid = stator_start(runs_words(config, run, ""));
    EXPECT(runs_wait_steps(pid, run, 1));
    RUN_EXPECT(EXIT_CONFIG, runs_words(config, run, ""));
    SAID_EXPECT("another stator train");
    kill(pid, SIGKILL);
    EXPECT_INT(stator_wait(pid), -SIGKILL);
}

/* ---- memory ---- */

static const Json *read_plan(const char *run) {
    return json_read(mem(), path_join(mem(), run, "plan.json"), 1 << 20, EXIT_DATA);
}

static int64_t plan_number(const char *run, const char *key) {
    return json_i64(json_need(read_plan(run), key), 0, INT64_MAX);
}

/* A mapping of exactly the planned bytes, rounded up to whole pages or huge ones, all of
 * it resident. */
static bool has_arena(pid_t pid, int64_t bytes) {
    char line[512];
    bool candidate = false, found = false;
    FILE *f = fopen(arena_printf(mem(), "/proc/%d/smaps", (int)pid), "r");
    EXPECT(f != NULL);
    while (fgets(line, sizeof line, f)) {
        unsigned long long from, to, kb;
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2) {
            int64_t n = (int64_t)(to - from);
            candidate = n >= bytes && n < bytes + (4 << 20);
        } else if (candidate && sscanf(line, "Rss: %llu kB", &kb) == 1) {
            found |= (int64_t)kb * 1024 >= bytes - (64 << 10);
        }
    }
    fclose(f);
    return found;
}

TEST_LIMIT(memory_is_as_planned, 180) {
#ifdef __SANITIZE_ADDRESS__
    test_skip("the sanitizer's own memory is not in the plan");
#endif
    const char *run = in_temp("run"), *config = runs_small_config(100000, 0);
    const char *large =
        arena_printf(mem(),
                     "%s --model.model_config.vocab_size 50021 "
                     "--model.model_config.hidden_size 256 --batch_size 8",
                     runs_pair_words());
    pid_t pid = stator_start(runs_words(config, run, large));
    EXPECT(runs_wait_steps(pid, run, 4));
    int64_t resident = runs_resident_bytes(pid);
    int64_t planned = plan_number(run, "resident_bytes"), sum = 0;
    const Json *memory = json_need(read_plan(run), "memory_bytes");
    int64_t total = json_i64(json_need(memory, "total"), 1, INT64_MAX);
    for (const Json *c = memory->first; c; c = c->next)
        if (strcmp(c->key, "total")) sum += json_i64(c, 0, INT64_MAX);
    bool arena = has_arena(pid, total);
    kill(pid, SIGKILL);
    stator_wait(pid);
    EXPECT_INT(sum, total);
    EXPECT(arena);
    EXPECT(total > 100 << 20);
    double ratio = (double)resident / (double)planned;
    if (!(ratio > 0.95 && ratio < 1.05))
        test_fail(__FILE__, __LINE__, "resident %lld, planned %lld: ratio %.3f",
                  (long long)resident, (long long)planned, ratio);
}

TEST_LIMIT(a_plan_above_the_limit_is_refused, 120) {
    const char *run = in_temp("run"), *config = runs_small_config(10, 0);
    RUN_EXPECT(EXIT_MEMORY, runs_words(config, run, "--context.max_device_memory 100KB"));
    SAID_EXPECT("weights");
    SAID_EXPECT("activations");
    SAID_EXPECT("optimizer");
    EXPECT(!file_exists(run));
    /* Above the plan, and below the process. */
    RUN_EXPECT(EXIT_MEMORY, runs_words(config, run, "--context.max_device_memory 10MB"));
    SAID_EXPECT("MB besides, more than context.max_device_memory");
    RUN_EXPECT(0, runs_words(config, run, "--context.max_device_memory 1GB"));
    int64_t total = json_i64(
        json_need(json_need(read_plan(run), "memory_bytes"), "total"), 1, 1 << 30);
    EXPECT(total > 100 * 1024);
}
