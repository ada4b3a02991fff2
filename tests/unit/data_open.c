/* data_open.c - splits and sizes from the configuration's keys; stator inspect of
 * samples. */
#include "frontend/config/data_open.h"
#include "base/json.h"
#include "command.h"

#define INSPECT(...) run(cmd_inspect, __VA_ARGS__, (char *)NULL)

static Arena *mem;

/* 40 documents of 25 tokens: token t of document i is 100 i + t, more than `first`. */
static char *make_pair_of(const char *name, int first) {
    enum { DOCS = 40, TOKENS = 25 };
    Text bin = text_new(mem), idx = text_new(mem);
    int64_t count = DOCS, entries = DOCS + 1, version = 1;
    int32_t length = TOKENS;
    text_add_bytes(&idx, "MMIDIDX\0\0", 9);
    text_add_bytes(&idx, &version, 8);
    text_add_bytes(&idx, "\4", 1);
    text_add_bytes(&idx, &count, 8);
    text_add_bytes(&idx, &entries, 8);
    for (int i = 0; i < DOCS; i++) text_add_bytes(&idx, &length, 4);
    for (int64_t i = 0; i < DOCS; i++) {
        int64_t at = 4 * TOKENS * i;
        text_add_bytes(&idx, &at, 8);
        for (int t = 0; t < TOKENS; t++) {
            int32_t token = first + 100 * (int32_t)i + t;
            text_add_bytes(&bin, &token, 4);
        }
    }
    for (int64_t i = 0; i <= DOCS; i++) text_add_bytes(&idx, &i, 8);
    char *path = temp(name);
    EXPECT(!file_write_atomic(arena_printf(mem, "%s.bin", path), bin.s, bin.n));
    EXPECT(!file_write_atomic(arena_printf(mem, "%s.idx", path), idx.s, idx.n));
    return path;
}

static char *make_pair(void) {
    return make_pair_of("p", 0);
}

static Config *config(const char *loader, const char *rest) {
    const char *yaml =
        arena_printf(mem, "train_dataset:\n  data_loader:\n%s\n%s\n", loader, rest);
    return config_parse(mem, "test.yaml", yaml, strlen(yaml));
}

static int64_t samples_of(const Config *cfg, DataSplit which, int64_t steps) {
    DataShape shape = {.rows = 2, .seq = 4, .step_rows = 2, .steps = steps};
    Data *d = data_open_split(mem, cfg, which, &shape);
    int64_t asked = d->gpt->samples;
    EXPECT(asked < 0 || d->samples >= asked);
    EXPECT_INT(d->steps_available, d->samples / 2);
    data_close(d);
    return asked;
}

TEST(sizes_follow_from_the_steps) {
    mem = arena_new();
    char *loader = arena_printf(mem,
                                "    type: GPTDataset\n    data_path: %s\n"
                                "    split: 80,10,10",
                                make_pair());
    Config *cfg = config(loader, "eval_interval: 10\neval_iters: 3\nepochs: 2");
    EXPECT_INT(samples_of(cfg, SPLIT_TRAIN, 35), 70);
    EXPECT_INT(samples_of(cfg, SPLIT_VALID, 35), (3 + 1) * 3 * 2);
    EXPECT_INT(samples_of(cfg, SPLIT_TEST, 35), 3 * 2);
    /* no steps: two epochs of 32 documents, (2 * 800 - 1) / 4 samples, 199 steps */
    DataShape shape = {.rows = 2, .seq = 4, .step_rows = 2, .steps = -1};
    Data *d = data_open_split(mem, cfg, SPLIT_TRAIN, &shape);
    EXPECT(d->samples == 399 && data_steps(cfg, d) == 199);
    EXPECT_INT(samples_of(cfg, SPLIT_VALID, -1), (19 + 1) * 3 * 2);
    data_close(d);
    cfg = config(arena_printf(mem, "%s\n    num_samples: [50, 8]", loader), "");
    EXPECT_INT(samples_of(cfg, SPLIT_TRAIN, -1), 50);
    EXPECT_INT(samples_of(cfg, SPLIT_VALID, -1), 8);
    EXPECT_INT(samples_of(cfg, SPLIT_TEST, -1), 200);
    d = data_open_split(mem, cfg, SPLIT_TRAIN, &shape);
    EXPECT(d->samples == 199 && data_steps(cfg, d) == 25);
    data_close(d);
}

TEST(which_splits_there_are) {
    mem = arena_new();
    char *loader =
        arena_printf(mem, "    type: GPTDataset\n    data_path: %s", make_pair());
    Config *cfg = config(loader, "");
    EXPECT(data_has_split(cfg, SPLIT_VALID) && data_has_split(cfg, SPLIT_TEST));
    cfg = config(loader, "eval_iters: 0");
    EXPECT(data_has_split(cfg, SPLIT_TRAIN) && !data_has_split(cfg, SPLIT_VALID));
    cfg = config(arena_printf(mem, "%s\n    num_samples: [200, 20, 5]", loader),
                 "eval_iters: 0");
    EXPECT(!data_has_split(cfg, SPLIT_VALID) && !data_has_split(cfg, SPLIT_TEST));
    EXPECT(data_has_part(cfg, SPLIT_VALID));
    cfg = config(arena_printf(mem, "%s\n    split: [90, 10, 0]", loader), "");
    EXPECT(data_has_split(cfg, SPLIT_VALID) && !data_has_split(cfg, SPLIT_TEST));
    DataShape shape = {.rows = 1, .seq = 4, .step_rows = 1, .steps = 5};
    EXPECT_FAIL(data_open_split(mem, cfg, SPLIT_TEST, &shape), EXIT_CONFIG,
                "no samples for test");
    cfg = config("    dataset_dir: embedded", "");
    EXPECT(!data_has_split(cfg, SPLIT_VALID));
    cfg = config("    dataset_dir: embedded\n    split: 9,1", "");
    EXPECT(data_has_split(cfg, SPLIT_VALID) && !data_has_split(cfg, SPLIT_TEST));
    cfg = config("    dataset_dir: x\n    data_path: y", "");
    EXPECT_FAIL(data_path_given(cfg, SPLIT_TRAIN), EXIT_CONFIG,
                "both data_path and dataset_dir");
    cfg = config(arena_printf(mem, "%s\n    num_samples: [0]", loader), "");
    EXPECT_FAIL(data_open_split(mem, cfg, SPLIT_TRAIN, &shape), EXIT_CONFIG,
                "num_samples 0");
    cfg = config("    dataset_dir: embedded\n    num_samples: [0]", "");
    data_close(data_open_split(mem, cfg, SPLIT_TRAIN, &shape));
}

/* The same samples of a part, one after the other? */
static void expect_same_samples(const Config *a, const Config *b, DataSplit which) {
    DataShape shape = {.rows = 1, .seq = 4, .step_rows = 1, .steps = 300};
    Data *x = data_open_split(mem, a, which, &shape);
    Data *y = data_open_split(mem, b, which, &shape);
    int32_t token[2][4], label[2][4];
    EXPECT(x->samples == y->samples && x->samples > 100);
    for (int64_t i = 0; i < x->samples; i++) {
        data_batch(x, i, &(DataBatch){token[0], label[0]});
        data_batch(y, i, &(DataBatch){token[1], label[1]});
        EXPECT(!memcmp(token[0], token[1], sizeof token[0]));
        EXPECT(!memcmp(label[0], label[1], sizeof label[0]));
    }
    data_close(x);
    data_close(y);
}

/* As Megatron-LM has parts with data of their own: each is that part alone of its data. */
TEST(validation_has_data_of_its_own) {
    mem = arena_new();
    char *p = make_pair(), *q = make_pair_of("q", 5000);
    char *loader = arena_printf(mem, "    type: GPTDataset\n    data_path: %s", p);
    char *whole = arena_printf(mem, "%s\n    split: 1,0,0", loader);
    char *parts = arena_printf(mem, "%s\n    split: 80,10,10", loader);
    char *valid =
        arena_printf(mem, "    type: GPTDataset\n    data_path: %s\n    split: 0,1,0", q);
    char *own = arena_printf(mem, "eval_dataset:\n  data_loader:\n    data_path: %s", q);
    Config *cfg = config(loader, own), *split = config(parts, own);
    EXPECT(data_has_split(cfg, SPLIT_VALID) && !data_has_split(cfg, SPLIT_TEST));
    EXPECT(data_has_split(split, SPLIT_VALID) && data_has_split(split, SPLIT_TEST));
    expect_same_samples(cfg, config(whole, ""), SPLIT_TRAIN);
    expect_same_samples(split, config(parts, ""), SPLIT_TRAIN);
    expect_same_samples(cfg, config(valid, ""), SPLIT_VALID);
    expect_same_samples(split, config(valid, ""), SPLIT_VALID);
    expect_same_samples(split, config(parts, ""), SPLIT_TEST);
    EXPECT_INT(cfg->n_notes, 0);
    cfg = config(loader, arena_printf(mem, "%s\ndo_eval: False", own));
    EXPECT(!data_has_split(cfg, SPLIT_VALID) && !data_has_split(cfg, SPLIT_TEST));
    cfg = config(parts, "do_eval: False\neval_iters: 3");
    EXPECT(!data_has_split(cfg, SPLIT_VALID) && !data_has_split(cfg, SPLIT_TEST));
    EXPECT(data_has_part(cfg, SPLIT_VALID)); /* for stator eval */
    cfg = config(whole, arena_printf(mem, "%s\neval_iters: 0", own));
    EXPECT(!data_has_split(cfg, SPLIT_VALID) && data_has_part(cfg, SPLIT_VALID));
    cfg = config("    dataset_dir: embedded",
                 "eval_dataset:\n  data_loader:\n    dataset_dir: no");
    DataShape shape = {.rows = 1, .seq = 4, .step_rows = 1, .steps = 5};
    EXPECT_FAIL(data_open_split(mem, cfg, SPLIT_VALID, &shape), EXIT_DATA,
                "test.yaml:6:18");
    data_close(data_open_split(mem, cfg, SPLIT_TRAIN, &shape));
    cfg = config("    dataset_dir: embedded",
                 "eval_dataset:\n  data_loader: {type: MindDataset, dataset_dir: ''}");
    EXPECT(!data_has_part(cfg, SPLIT_VALID));
    EXPECT(cfg->n_notes == 1 && strstr(cfg->notes[0], "eval_dataset has no effect"));
    arena_free(mem);
}

/* First and last token of a split that is read in order, labels included. */
static void expect_part(const char *loader, DataSplit which, int first, int last) {
    Config *cfg = config(loader, "");
    DataShape shape = {.rows = 1, .seq = 4, .step_rows = 1, .steps = -1};
    Data *d = data_open_split(mem, cfg, which, &shape);
    int32_t tokens[4], labels[4];
    data_batch(d, 0, &(DataBatch){tokens, labels});
    EXPECT_INT(tokens[0], first);
    data_batch(d, d->samples - 1, &(DataBatch){tokens, labels});
    EXPECT(labels[3] == last && (d->tokens - 1) % 4 == 0);
    data_close(d);
}

/* Parts that stand side by side and share nothing: of bytes, or of whole documents. */
TEST(text_and_indexed_files_are_split) {
    mem = arena_new();
    char text[18 + 9 + 1];
    for (int i = 0; i < 27; i++) text[i] = (char)('A' + i);
    text[27] = 0;
    write_text(temp("text"), text);
    char *loader = arena_printf(mem,
                                "    dataset_dir: %s\n    shuffle: False\n"
                                "    split: 17,9,1",
                                temp("text"));
    expect_part(loader, SPLIT_TRAIN, 'A', 'A' + 16);
    expect_part(loader, SPLIT_VALID, 'A' + 17, 'A' + 25);
    DataShape shape = {.rows = 1, .seq = 4, .step_rows = 1, .steps = -1};
    EXPECT_FAIL(data_open_split(mem, config(loader, ""), SPLIT_TEST, &shape), EXIT_DATA,
                "text, split test holds 1 tokens");
    loader = arena_printf(mem,
                          "    type: MegatronIndexed\n    dataset_dir: %s\n"
                          "    shuffle: False\n    split: 2,1,1",
                          make_pair());
    /* 20, 10 and 10 documents: 500 and 250 tokens, the last of a sample at 4 i */
    Config *cfg = config(loader, "");
    for (int which = 0; which < 3; which++) {
        Data *d = data_open_split(mem, cfg, which, &shape);
        int32_t tokens[4], labels[4];
        EXPECT(d->tokens == (which ? 250 : 500));
        data_batch(d, 0, &(DataBatch){tokens, labels});
        EXPECT(tokens[0] == (which ? 100 * (10 + 10 * which) : 0));
        data_batch(d, d->samples - 1, &(DataBatch){tokens, labels});
        EXPECT(labels[3] == (which ? 1900 + 1000 * which + 23 : 1921));
        data_close(d);
    }
}

TEST(inspect_shows_what_training_sees) {
    mem = arena_new();
    char *yaml = temp("c.yaml");
    write_text(yaml, arena_printf(mem,
                                  "model: {model_config: {seq_length: 4}}\n"
                                  "train_dataset:\n  data_loader:\n"
                                  "    {type: GPTDataset, data_path: %s, split: '1',\n"
                                  "     seed: 5, num_samples: 30, eod: 2424,\n"
                                  "     eod_mask_loss: True}\n",
                                  make_pair()));
    Arena *a = arena_new();
    INSPECT(yaml, "--split", "train", "--samples=7,0", "--json");
    worked();
    const Json *v = json_parse(a, "out", printed, strlen(printed), 1 << 20, EXIT_DATA);
    EXPECT_INT(json_i64(json_need(v, "samples"), 0, 1 << 20), 249);
    const Json *items = json_need(v, "items");
    EXPECT_INT(items->n, 2);
    size_t n;
    char *text = file_read(a, yaml, 1 << 16, &n, EXIT_CONFIG);
    Config *cfg = config_parse(mem, "c.yaml", text, n);
    DataShape shape = {.rows = 8, .seq = 4, .step_rows = 8, .steps = 3};
    Data *d = data_open_split(mem, cfg, SPLIT_TRAIN, &shape);
    int32_t tokens[32], labels[32];
    data_batch(d, 0, &(DataBatch){tokens, labels});
    const Json *item = items->first;
    EXPECT_INT(json_i64(json_need(item, "sample"), 0, 99), 7);
    const Json *t = json_need(item, "tokens")->first;
    const Json *l = json_need(item, "labels")->first;
    for (int i = 0; i < 4; i++, t = t->next, l = l->next) {
        EXPECT_INT(json_i64(t, 0, 1 << 20), tokens[28 + i]);
        EXPECT_INT(json_i64(l, 0, 1 << 20), labels[28 + i]);
    }
    EXPECT_INT(json_need(item, "position_ids")->n, 4);
    EXPECT_INT(json_need(item, "loss_mask")->n, 4);
    EXPECT_INT(json_need(item, "attends_from")->n, 4);
    data_close(d);
    INSPECT(yaml, "--split", "train", "--samples", "0", "--runner_config.batch_size=3");
    worked();
    EXPECT_PART(printed, "train: 249 samples of 4 tokens\nsample 0\n  tokens ");
}

/* Of a model that comes from a folder the weights say how long a sample is. */
TEST(inspect_asks_the_weights) {
    mem = arena_new();
    char *yaml = temp("c.yaml"), *text = arena_alloc(mem, 4097);
    memset(text, 'A', 4096);
    write_text(temp("a.txt"), text);
    write_text(yaml, arena_printf(mem,
                                  "init_from: %s\nseed: 1\ntrain_dataset: {data_loader: "
                                  "{type: TextFile, dataset_dir: %s}}\n",
                                  golden("gpt2_tiny"), temp("a.txt")));
    INSPECT(yaml, "--split", "train", "--samples", "0");
    worked();
    EXPECT_PART(printed, " samples of 32 tokens\n");
    INSPECT(yaml, "--split", "train", "--samples", "0",
            "--model.model_config.seq_length=8");
    worked();
    EXPECT_PART(printed, " samples of 8 tokens\n");
}

/* The other key may be in another file, and what is said there is undone from above. */
TEST(two_keys_of_one_path) {
    mem = arena_new();
    char *base = temp("base.yaml"), *yaml = temp("c.yaml");
    const char *section = "train_dataset:\n  data_loader:\n    ";
    char *flag = "--dataset_dir=b",
         *undone = "--train_dataset.data_loader.data_path=null";
    char *both[] = {flag, undone};
    for (int k = 0; k < 2; k++) {
        const char *name[] = {"data_path", "dataset_dir"};
        write_text(base, arena_printf(mem, "%s%s: a\n", section, name[!k]));
        write_text(yaml, arena_printf(mem, "base_config: base.yaml\n%s%s: b\n", section,
                                      name[k]));
        const Config *cfg = config_load(mem, yaml, 0, NULL);
        EXPECT_FAIL(data_path_given(cfg, SPLIT_TRAIN), EXIT_CONFIG,
                    arena_printf(mem, "c.yaml:4:%d: error: both", k ? 18 : 16));
        EXPECT_FAIL(data_path_given(cfg, SPLIT_TRAIN), EXIT_CONFIG,
                    arena_printf(mem, "given (%s: %s:3)", name[!k], base));
        EXPECT_FAIL(data_path_given(cfg, SPLIT_TRAIN), EXIT_CONFIG,
                    arena_printf(mem, "hint: %s: null in %s takes", name[!k], yaml));
        write_text(yaml,
                   arena_printf(mem, "base_config: base.yaml\n%s%s: b\n    %s: null\n",
                                section, name[k], name[!k]));
        EXPECT_STR(data_path_given(config_load(mem, yaml, 0, NULL), SPLIT_TRAIN), "b");
    }
    write_text(yaml, arena_printf(mem, "%sdata_path: a\n", section));
    const Config *cfg = config_load(mem, yaml, 1, &flag);
    EXPECT_FAIL(data_path_given(cfg, SPLIT_TRAIN), EXIT_CONFIG, "command line:1:");
    EXPECT_FAIL(data_path_given(cfg, SPLIT_TRAIN), EXIT_CONFIG,
                arena_printf(mem, "given (data_path: %s:3)", yaml));
    EXPECT_FAIL(data_path_given(cfg, SPLIT_TRAIN), EXIT_CONFIG,
                arena_printf(mem, "hint: %s takes", undone));
    EXPECT_STR(data_path_given(config_load(mem, yaml, 2, both), SPLIT_TRAIN), "b");
}

/* Told at the key that the failure is about. */
TEST(failures_have_a_place) {
    mem = arena_new();
    const char *pair = make_pair(), *lines = temp("x.jsonl");
    write_text(lines, "{\"text\": \"one\"}\n");
    EXPECT(!chdir(temp_dir()));
    write_text("seeds.bin", "no tokens");
    write_text("seeds.idx", "no table");
    const struct {
        const char *loader, *said;
        int code;
    } bad[] = {
        {arena_printf(mem, "    type: GPTDataset\n    data_path: [0.5, %s, 0.5, %s]",
                      pair, pair),
         "test.yaml:4:16: error: data_path with weights needs num_samples", EXIT_CONFIG},
        {arena_printf(mem, "    type: GPTDataset\n    data_path: [%s, nowhere]", pair),
         "test.yaml:4:16: error: cannot open nowhere.idx", EXIT_DATA},
        {"    type: MegatronIndexed\n    dataset_dir: nowhere",
         "test.yaml:4:18: error: cannot open nowhere.idx", EXIT_DATA},
        {"    type: MegatronIndexed\n    dataset_dir: x.jsonl",
         "test.yaml:4:18: error: there is no x.jsonl.idx; x.jsonl itself may be a text",
         EXIT_DATA},
        {arena_printf(mem, "    type: WebtextDataset\n    dataset_dir: %s", lines),
         "test.yaml:4:18: error: GPT2BPETokenizer needs its files", EXIT_CONFIG},
        {arena_printf(mem,
                      "    type: WebtextDataset\n    dataset_dir: %s\n"
                      "    tokenizer_file: no.json",
                      lines),
         "test.yaml:5:21: error: cannot open no.json", EXIT_DATA},
        /* A file that has the name of another key. */
        {"    type: MegatronIndexed\n    dataset_dir: seeds",
         "test.yaml:4:18: error: seeds.idx: ", EXIT_DATA},
        {arena_printf(mem,
                      "    type: GPTDataset\n    data_path: %s\n"
                      "    num_samples: [4294967294]",
                      pair),
         "test.yaml:5:18: error: num_samples 4294967294: at most", EXIT_CONFIG}};
    for (int i = 0; i < ARRAY_LEN(bad); i++) {
        Config *cfg = config(bad[i].loader, "seed: 7");
        DataShape shape = {.rows = 2, .seq = 4, .step_rows = 2, .steps = -1};
        EXPECT_FAIL(data_open_split(mem, cfg, SPLIT_TRAIN, &shape), bad[i].code,
                    bad[i].said);
    }
    Config *cfg =
        config(arena_printf(mem, "    type: GPTDataset\n    data_path: %s", pair),
               "seed: 4294967296");
    DataShape shape = {.rows = 2, .seq = 4, .step_rows = 2, .steps = -1};
    EXPECT_FAIL(data_open_split(mem, cfg, SPLIT_TRAIN, &shape), EXIT_CONFIG,
                "test.yaml:5:7: error: seed 4294967296: a GPTDataset's seed");
}

TEST(inspect_refuses) {
    mem = arena_new();
    char *yaml = temp("c.yaml");
    write_text(yaml, arena_printf(mem,
                                  "model: {model_config: {seq_length: 4}}\n"
                                  "train_dataset:\n  data_loader:\n"
                                  "    {type: GPTDataset, data_path: %s, split: '1',\n"
                                  "     num_samples: 30}\n",
                                  make_pair()));
    INSPECT(yaml, "--split", "train", "--samples", "249");
    refused(EXIT_CONFIG, "train has samples 0 .. 248");
    INSPECT(yaml, "--split", "valid");
    refused(EXIT_CONFIG, "no samples for valid");
    INSPECT(yaml, "--split", "dev");
    refused(EXIT_CONFIG, "--split dev: write train, valid or test");
    INSPECT(yaml, "--split", "train", "--samples", "1,-2");
    refused(EXIT_CONFIG, "give numbers from 0");
    INSPECT(yaml, "--samples");
    refused(EXIT_CONFIG, "--samples needs a value");
    INSPECT("--json");
    refused(EXIT_CONFIG, "stator inspect CONFIG.yaml");
    write_text(yaml, "model: {model_config: {seq_length: 4}}\n");
    INSPECT(yaml, "--split", "train");
    refused(EXIT_CONFIG, "names no data");
}
