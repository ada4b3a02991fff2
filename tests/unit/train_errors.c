/* Tests of stator train with bad input: each ends with its exit code and a message that
 * says what is wrong, and leaves nothing half-written. */
#include "runs.h"
#include "runtime/run/metrics.h"
#include "runtime/store/safetensors.h"
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);

static const char base_yaml[] = "seed: 7\n"
                                "model:\n"
                                "  model_config:\n"
                                "    vocab_size: 256\n"
                                "    seq_length: 16\n"
                                "    hidden_size: 16\n"
                                "    num_layers: 2\n"
                                "    num_heads: 2\n"
                                "train_dataset:\n"
                                "  data_loader:\n"
                                "    dataset_dir: %s\n"
                                "runner_config:\n"
                                "  max_steps: %d\n"
                                "  batch_size: 2\n"
                                "callbacks:\n"
                                "  - type: CheckpointMonitor\n"
                                "    save_checkpoint_steps: 2\n";

static const char *config_of(int steps) {
    Text t = text_new(mem());
    for (int i = 0; i < 400; i++) text_add(&t, "line %d of %d\n", i, i * i % 97);
    write_text(in_temp("text.txt"), t.s);
    const char *path = in_temp("c.yaml");
    write_text(path, arena_printf(mem(), base_yaml, in_temp("text.txt"), steps));
    return path;
}

/* Trains with more words; the run folder must not be there afterwards. */
static void refused(int code, const char *more, const char *part) {
    const char *run = in_temp("run");
    RUN_EXPECT(code, arena_printf(mem(), "train %s --output_dir %s %s", config_of(4), run,
                                  more));
    SAID_EXPECT(part);
    EXPECT(!file_exists(run));
}

TEST(an_unknown_key) {
    const char *path = in_temp("bad.yaml");
    write_text(path, "seed: 1\nmodel:\n  model_config:\n    hiden_size: 16\n");
    RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(), "train %s", path));
    SAID_EXPECT("bad.yaml:4:5");
    SAID_EXPECT("hidden_size");
    refused(EXIT_CONFIG, "--optimizer.weigth_decay 1", "optimizer.weight_decay");
}

TEST(an_unknown_word) {
    RUN_EXPECT(EXIT_CONFIG, "trian");
    SAID_EXPECT("unknown command 'trian'; did you mean 'train'?");
    RUN_EXPECT(EXIT_CONFIG, "help trian");
    SAID_EXPECT("is called 'trian' (did you mean train?); stator help lists");
    RUN_EXPECT(EXIT_CONFIG, "help lr");
    SAID_EXPECT("did you mean lr_schedule.learning_rate?");
    static const char *const versions[] = {"--version", "-V", "-v", "version"};
    for (int i = 0; i < ARRAY_LEN(versions); i++) {
        RUN_EXPECT(0, versions[i]);
        SAID_EXPECT("stator 0.");
    }
}

TEST(a_wrong_type) {
    refused(EXIT_CONFIG, "--model.model_config.num_layers many", "num_layers");
    refused(EXIT_CONFIG, "--runner_config.batch_size 1.5", "batch_size");
}

TEST(heads_that_do_not_divide) {
    refused(EXIT_CONFIG, "--model.model_config.num_heads 3", "3 heads do not divide");
}

TEST(a_missing_file) {
    RUN_EXPECT(EXIT_CONFIG, "train nowhere/at/all.yaml");
    SAID_EXPECT("nowhere/at/all.yaml");
    refused(EXIT_DATA, "--dataset_dir nowhere/text.txt", "nowhere/text.txt");
    refused(EXIT_CONFIG, "--init_from nowhere/model", "nowhere/model");
    refused(EXIT_CONFIG, "--dump nowhere/d.safetensors", "nowhere");
    refused(EXIT_CONFIG, "--model.file nowhere.ir", "model.file");
}

/* There is no code for f64, which a plan knows as well as a run. */
TEST(a_type_without_code) {
    const char *path = in_temp("own.ir");
    write_text(path, "module @own mesh() level(global)\n"
                     "func @net:model(%x: f32[4,3] {role=\"data\"},\n"
                     "    %w: f32[3] {role=\"param\"; init=\"ones\"}) -> (f32[]) {\n"
                     "  %y = mul %x, %w {bi,i->bi} : f32[4,3]\n"
                     "  %z = cast %y : f64[4,3]\n"
                     "  %s = sum %z {bi->_} : f64[]\n"
                     "  %loss = cast %s : f32[]\n"
                     "  return %loss\n"
                     "}\n");
    const char *yaml = in_temp("own.yaml");
    write_text(yaml, "model: {file: own.ir}\n");
    RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(), "plan %s", yaml));
    SAID_EXPECT("own.ir:5:3: error: @net: %z is f64");
}

TEST(no_model_and_no_data) {
    const char *path = in_temp("empty.yaml");
    write_text(path, "seed: 1\n");
    RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(), "train %s --dataset_dir embedded", path));
    SAID_EXPECT("no model");
    refused(EXIT_CONFIG, "--dataset_dir=", "dataset_dir");
    RUN_EXPECT(EXIT_CONFIG, "train");
    RUN_EXPECT(EXIT_CONFIG, "trian x.yaml");
    SAID_EXPECT("did you mean 'train'");
}

TEST(a_vocabulary_below_a_token) {
    refused(EXIT_CONFIG, "--model.model_config.vocab_size 1", "vocab_size");
    const char *run = in_temp("run");
    RUN_EXPECT(EXIT_DATA, arena_printf(mem(),
                                       "train %s --output_dir %s "
                                       "--model.model_config.vocab_size 64",
                                       config_of(4), run));
    SAID_EXPECT("outside the vocabulary of 64");
    EXPECT(!file_exists(path_join(mem(), run, "ckpt/latest")));
}

static const char *tensor_file(void) {
    static int32_t tokens[3 * 4 * 17];
    for (int i = 0; i < ARRAY_LEN(tokens); i++) tokens[i] = i * 7 % 256;
    SafeTensor t = {
        .name = "tokens", .dtype = DT_I32, .rank = 3, .dim = {3, 4, 17}, .data = tokens};
    const char *path = in_temp("tokens.safetensors");
    EXPECT_INT(safetensors_write(path, &t, 1, NULL, NULL), 0);
    return path;
}

static const char *batches(const char *path, const char *more) {
    return arena_printf(mem(),
                        "--train_dataset.data_loader.type TensorBatches "
                        "--dataset_dir %s --batch_size 4 %s",
                        path, more);
}

TEST(tensor_batches) {
    const char *path = tensor_file();
    refused(EXIT_CONFIG, batches(path, "--train_steps 4"), "batches for 3 steps");
    refused(EXIT_DATA, batches(path, "--train_steps 3 --batch_size 5"), "batch");
    refused(EXIT_DATA, batches(path, "--train_steps 3 --model.model_config.seq_length 8"),
            "positions");
    size_t n;
    char *bytes = file_read(mem(), path, 1 << 20, &n, EXIT_DATA);
    const char *bad = in_temp("bad.safetensors");
    EXPECT_INT(file_write_atomic(bad, bytes, n - 5), 0);
    refused(EXIT_DATA, batches(bad, "--train_steps 3"), "bad.safetensors");
    /* A header that says more than there is. */
    char *dims = strstr(bytes + 8, "[3,4,17]");
    EXPECT(dims != NULL);
    dims[1] = '9';
    EXPECT_INT(file_write_atomic(bad, bytes, n), 0);
    refused(EXIT_DATA, batches(bad, "--train_steps 3"), "bad.safetensors");
    memset(bytes, 0xff, 8);
    EXPECT_INT(file_write_atomic(bad, bytes, n), 0);
    refused(EXIT_DATA, batches(bad, "--train_steps 3"), "bad.safetensors");
}

TEST(a_damaged_idx) {
    const char *shared = arena_printf(mem(), "%s/indexed", temp_dir());
    write_text(arena_printf(mem(), "%s.bin", shared), "0123456789");
    write_text(arena_printf(mem(), "%s.idx", shared), "MMIDIDX");
    refused(EXIT_DATA,
            arena_printf(mem(),
                         "--train_dataset.data_loader.type MegatronIndexed "
                         "--dataset_dir %s",
                         shared),
            "indexed.idx");
}

TEST(a_damaged_weight_file) {
    const char *from = arena_printf(mem(), "%s/golden/gpt2_tiny", tests_dir());
    const char *to = in_temp("hf");
    EXPECT_INT(system(arena_printf(mem(), "cp -r '%s' '%s'", from, to)), 0);
    const char *weights = path_join(mem(), to, "model.safetensors");
    size_t n;
    char *bytes = file_read(mem(), weights, 1 << 24, &n, EXIT_DATA);
    const char *config = in_temp("hf.yaml");
    write_text(config, arena_printf(mem(),
                                    "train_dataset:\n  data_loader: {type: "
                                    "TensorBatches, dataset_dir: "
                                    "%s/expected.safetensors}\n",
                                    from));
    const char *words = arena_printf(mem(), "train %s --init_from %s --output_dir %s",
                                     config, to, in_temp("run"));
    EXPECT_INT(file_write_atomic(weights, bytes, n / 2), 0);
    RUN_EXPECT(EXIT_CHECKPOINT, words);
    SAID_EXPECT("model.safetensors");
    char *name = strstr(bytes + 8, "\"wpe.weight\"");
    EXPECT(name != NULL);
    name[1] = 'x';
    EXPECT_INT(file_write_atomic(weights, bytes, n), 0);
    RUN_EXPECT(EXIT_CHECKPOINT, words);
    SAID_EXPECT("wpe.weight");
    EXPECT(!strstr(said(), "error: stator")); /* caught to clean up, and told unchanged */
    EXPECT(unlink(weights) == 0);
    RUN_EXPECT(EXIT_CHECKPOINT, words);
    SAID_EXPECT("model.safetensors");
}

static void flip_byte(const char *path) {
    size_t n;
    char *bytes = file_read(mem(), path, 1 << 26, &n, EXIT_DATA);
    bytes[n - 9] ^= 4;
    EXPECT_INT(file_write_atomic(path, bytes, n), 0);
}

TEST_LIMIT(a_damaged_checkpoint, 120) {
    const char *run = in_temp("run"), *config = config_of(6);
    const char *words = arena_printf(mem(), "train %s --output_dir %s", config, run);
    RUN_EXPECT(0, words);
    flip_byte(path_join(mem(), run, "ckpt/step_00000006/model.safetensors"));
    RUN_EXPECT(0, words);
    SAID_EXPECT("step_00000006 is damaged");
    SAID_EXPECT("resumed after step 4");
    int n;
    metrics_read(mem(), path_join(mem(), run, "metrics.jsonl"), &n);
    EXPECT_INT(n, 6);
    RUN_EXPECT(0, words);
    SAID_EXPECT("all 6 steps are done already");
    /* A named one does not fall back; all damaged is an error. */
    for (int step = 2; step <= 6; step += 2)
        flip_byte(arena_printf(mem(), "%s/ckpt/step_%08d/model.safetensors", run, step));
    RUN_EXPECT(EXIT_CHECKPOINT, words);
    SAID_EXPECT("none of the checkpoints");
    RUN_EXPECT(EXIT_CHECKPOINT,
               arena_printf(mem(), "%s --resume %s/ckpt/step_00000004", words, run));
    SAID_EXPECT("step_00000004");
    RUN_EXPECT(EXIT_CHECKPOINT, arena_printf(mem(), "%s --resume %s", words, temp_dir()));
    SAID_EXPECT("no checkpoint in");
}

/* Missing files and what does not fit the model are one report; of files alone it is of data. */
TEST(what_is_missing_is_told_at_once) {
    static const char loader[] = "train_dataset.data_loader.";
    const char *run = in_temp("run"), *config = runs_small_config(4, 0);
    const char *words = arena_printf(
        mem(),
        "--%stype GPTDataset --dataset_dir=null --%sdata_path [0.5,no1,0.5,no2] "
        "--%ssplit 1,0,0 --eval_dataset.data_loader.data_path [no3] "
        "--%stokenizer_file no4.json --runner_config.eval_iters ",
        loader, loader, loader, loader);
    static const char *const missing[] = {
        "cannot open no1.idx: ", "cannot open no2.idx: ", "cannot open no3.idx: ",
        "cannot open no4.json"};
    for (int iters = 0; iters < 2; iters++) {
        RUN_EXPECT(EXIT_DATA,
                   runs_words(config, run, arena_printf(mem(), "%s%d", words, iters)));
        for (int i = 0; i < ARRAY_LEN(missing); i++)
            EXPECT(!strstr(said(), missing[i]) == (i == 2 && !iters));
    }
    RUN_EXPECT(EXIT_CONFIG,
               runs_words(config, run,
                          "--dataset_dir nowhere --parallel_config.micro_batch_num "
                          "65536 --runner_config.batch_size 65536"));
    SAID_EXPECT("65536 micro-batches of 65536 sequences");
    SAID_EXPECT("cannot open nowhere: ");
}

TEST(a_command_for_one_process_under_mpirun) {
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("OMPI_COMMAND", "build/stator", 1);
    RUN_EXPECT(EXIT_CONFIG, "convert a b --to hf");
    SAID_EXPECT("stator convert does its work in one process: run it without mpirun");
    RUN_EXPECT(0, "help convert");
    setenv("OMPI_COMMAND", "/bin/bash", 1); /* a script of each rank */
    RUN_EXPECT(EXIT_CONFIG, "convert a b --to hf");
    SAID_EXPECT("cannot open a: ");
    setenv("OMPI_COMMAND", "stator", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
    RUN_EXPECT(EXIT_CONFIG, "convert a b --to hf");
    SAID_EXPECT("cannot open a: ");
}

/* What Hydra starts is known by its parent, which this test is for one call. */
TEST(a_command_for_one_process_under_hydra) {
    char name[16];
    setenv("PMI_SIZE", "2", 1);
    RUN_EXPECT(EXIT_CONFIG, "convert a b --to hf");
    SAID_EXPECT("cannot open a: ");
    EXPECT(!prctl(PR_GET_NAME, name) && !prctl(PR_SET_NAME, "hydra_pmi_proxy"));
    RUN_EXPECT(EXIT_CONFIG, "convert a b --to hf");
    SAID_EXPECT("stator convert does its work in one process: run it without mpiexec");
    RUN_EXPECT(0, "help convert");
    setenv("PMI_SIZE", "1", 1);
    RUN_EXPECT(EXIT_CONFIG, "convert a b --to hf");
    SAID_EXPECT("cannot open a: ");
    EXPECT(!prctl(PR_SET_NAME, name));
}

TEST_LIMIT(a_checkpoint_of_another_model, 120) {
    const char *run = in_temp("run"), *config = config_of(2);
    const char *words = arena_printf(mem(), "train %s --output_dir %s", config, run);
    RUN_EXPECT(0, words);
    RUN_EXPECT(EXIT_CHECKPOINT,
               arena_printf(mem(), "%s --model.model_config.num_layers 3", words));
    SAID_EXPECT("is of another model: ");
    SAID_EXPECT("; model.model_config.num_layers was 2 and is 3");
    RUN_EXPECT(EXIT_CHECKPOINT,
               arena_printf(mem(), "%s --model.model_config.add_bias_linear No", words));
    SAID_EXPECT("; model.model_config.add_qkv_bias was True and is False");
    RUN_EXPECT(EXIT_CHECKPOINT,
               arena_printf(mem(), "%s --optimizer.type Momentum", words));
    SAID_EXPECT("is of another optimizer (optimizer.type): ");
    SAID_EXPECT("; optimizer.type was AdamW and is Momentum. Use the configuration");
    RUN_EXPECT(0, words);
}

/* ---- full disk ---- */

/* Saves fail from step 5 on; all steps are made; the checkpoint of step 4 stays good. */
static void expect_survived(const char *run, const char *words) {
    SAID_EXPECT("WARNING: no checkpoint of step 6");
    SAID_EXPECT("training goes on");
    SAID_EXPECT("final weights are not saved");
    EXPECT_PART(said(), "step 8/8");
    EXPECT(!file_exists(path_join(mem(), run, "ckpt/step_00000006")));
    EXPECT(!file_exists(path_join(mem(), run, "ckpt/step_00000006.tmp")));
    driven_prepare = NULL;
    RUN_EXPECT(0, words);
    SAID_EXPECT("resumed after step 4");
    EXPECT(file_exists(path_join(mem(), run, "ckpt/step_00000008/manifest.json")));
}

static void limit_file_size(void) {
    struct rlimit limit = {32 << 10, 32 << 10};
    setrlimit(RLIMIT_FSIZE, &limit);
}

TEST(every_command_tells_a_limit_of_files) {
    const char *text = in_temp("text.txt"), *out = in_temp("tokens");
    Text t = text_new(mem());
    for (int i = 0; i < 40000; i++) text_add(&t, "word%d ", i * i % 7919);
    write_text(text, t.s);
    driven_prepare = limit_file_size;
    RUN_EXPECT(EXIT_DATA,
               arena_printf(mem(),
                            "tokenizer train --input %s --vocab-size 4000 --output %s",
                            text, out));
    SAID_EXPECT("File too large");
    driven_prepare = NULL;
    EXPECT(!file_exists(path_join(mem(), out, "vocab.json")));
}

TEST_LIMIT(files_that_may_not_grow, 120) {
    const char *run = in_temp("run"), *four = config_of(4);
    RUN_EXPECT(0, arena_printf(mem(), "train %s --output_dir %s", four, run));
    const char *words =
        arena_printf(mem(), "train %s --output_dir %s --train_steps 8", four, run);
    driven_prepare = limit_file_size;
    setenv("STATOR_CACHE", "off", 1);
    RUN_EXPECT(EXIT_CHECKPOINT, words);
    expect_survived(run, words);
}

TEST_LIMIT(a_full_disk, 120) {
    const char *disk = in_temp("disk"), *run = path_join(mem(), disk, "run");
    EXPECT_INT(dir_make(disk), 0);
    if (mount("none", disk, "tmpfs", 0, "size=900k") != 0)
        test_skip("cannot mount a small disk: %s", strerror(errno));
    const char *four = config_of(4);
    int code = stator_wait(
        stator_start(arena_printf(mem(), "train %s --output_dir %s", four, run)));
    const char *words =
        arena_printf(mem(), "train %s --output_dir %s --train_steps 8", four, run);
    bool good = code == 0;
    const char *fill = arena_printf(mem(),
                                    "dd if=/dev/zero of=%s/fill bs=1k count=9999 "
                                    "2>/dev/null; truncate -s -12k %s/fill",
                                    disk, disk);
    if (good) good = system(fill) == 0;
    if (good) good = stator_wait(stator_start(words)) == EXIT_CHECKPOINT;
    const char *output = said();
    if (good) unlink(path_join(mem(), disk, "fill"));
    const char *latest = path_join(mem(), run, "ckpt/step_00000004/manifest.json");
    bool kept = file_exists(latest);
    bool half = file_exists(path_join(mem(), run, "ckpt/step_00000006.tmp"));
    int again = good ? stator_wait(stator_start(words)) : -1;
    const char *second = said();
    umount(disk);
    if (!good) test_fail(__FILE__, __LINE__, "the run on a full disk:\n%s", output);
    EXPECT(kept && !half);
    EXPECT_PART(output, "WARNING: no checkpoint of step 6");
    EXPECT_PART(output, "step 8/8");
    if (again != 0) test_fail(__FILE__, __LINE__, "with room again:\n%s", second);
    EXPECT_PART(second, "resumed after step 4");
}

/* ---- help ---- */

TEST(help_and_version) {
    RUN_EXPECT(0, "--version");
    SAID_EXPECT("stator ");
    RUN_EXPECT(0, "help");
    SAID_EXPECT("train CONFIG.yaml");
    SAID_EXPECT("lr_schedule");
    RUN_EXPECT(0, "help lr_schedule");
    SAID_EXPECT("--lr_schedule.warmup_steps");
    RUN_EXPECT(0, "train --help");
    SAID_EXPECT("--init_from");
    RUN_EXPECT(EXIT_CONFIG, "help nonsense");
    RUN_EXPECT(EXIT_CONFIG, "");
}

TEST(parts_that_are_none_are_told_where_they_stand) {
    refused(EXIT_CONFIG, "--train_dataset.data_loader.split abc",
            "error: split \"abc\": give the parts");
    SAID_EXPECT("--train_dataset.data_loader.split=abc");
}

/* Texts in JSON that are trained on as they are: a line says how to have the texts alone. */
TEST(json_that_is_read_as_text_is_noted) {
    const char *config = config_of(2), *json = in_temp("texts.jsonl");
    Text t = text_new(mem());
    for (int i = 0; i < 400; i++) text_add(&t, "{\"text\": \"number %d\"}\n", i);
    write_text(json, t.s);
    RUN_EXPECT(0, arena_printf(mem(), "train %s --output_dir %s --dataset_dir %s", config,
                               in_temp("run"), json));
    SAID_EXPECT("texts.jsonl is read as it is, keys and braces too: "
                "--train_dataset.data_loader.type WebtextDataset takes the texts");
    RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(),
                                         "train %s --train_dataset.data_loader.type "
                                         "WebtextDataset",
                                         config_of(4)));
    SAID_EXPECT(
        "error: data of type WebtextDataset are texts, and there is no tokenizer");
    SAID_EXPECT("hint: --tokenizer_file tokenizer.json, or");
}
