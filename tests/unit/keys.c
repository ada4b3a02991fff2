/* keys.c - no key of the configuration is read in silence: each, set to another value
 * where it could act, changes the plan or what a run leaves behind, or a line names it. */
#include "frontend/config/config_state.h"
#include "frontend/plan/plan.h"
#include "runs.h"
#include "runtime/data/indexed_write.h"
#include "runtime/store/safetensors.h"
#include <sys/stat.h>

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);
TEST_LABEL(RELEASED);

/* ---- configurations to set keys in ---- */

#define MODEL(type)                                                                      \
    "seed: 7\n"                                                                          \
    "model:\n"                                                                           \
    "  model_config: {type: " type ", vocab_size: 256, seq_length: 16, num_layers: 2,\n" \
    "    hidden_size: 16, num_heads: 2, dropout_prob: 0.1,\n"                            \
    "    attention_probs_dropout_prob: 0.1, eos_token: -1}\n"
#define RUN                                                                              \
    "context: {threads: 1}\n"                                                            \
    "runner_config: {max_steps: 3, batch_size: 2, eval_interval: 2, eval_iters: 2}\n"    \
    "parallel_config: {micro_batch_num: 2}\n"                                            \
    "lr_schedule: {learning_rate: 1.e-3, warmup_steps: 1}\n"                             \
    "callbacks:\n"                                                                       \
    "  - {type: CheckpointMonitor, save_checkpoint_steps: 1, keep_checkpoint_max: 2}\n"
#define DATA(words) "train_dataset: {data_loader: {" words "}}\n"

typedef enum Base { TEXT, LLAMA, INDEXED, PACKED, WEB, READY, RANKS, SHARDS, BASES } Base;

/* %s: the test's folder. Those of several ranks are planned, the others run. */
static const char *const base_yaml[BASES] = {
    [TEXT] = MODEL("GPT2Config") RUN DATA("dataset_dir: %s/text.txt, split: '8,2'"),
    [LLAMA] = MODEL("LlamaConfig") RUN DATA("dataset_dir: %s/text.txt"),
    [INDEXED] = MODEL("GPT2Config") RUN DATA("type: MindDataset, dataset_dir: %s/pair"),
    [PACKED] = MODEL("GPT2Config") RUN DATA("type: GPTDataset, data_path: %s/pair,\n"
                                            "  split: '8,2', eod: 3"),
    [WEB] =
        MODEL("GPT2Config") RUN DATA("type: WebtextDataset, dataset_dir: %s/web.jsonl,\n"
                                     "  tokenizer_type: ByteTokenizer, eod: 3"),
    [READY] = MODEL("GPT2Config") RUN DATA("type: TensorBatches,\n"
                                           "  dataset_dir: %s/ready.safetensors"),
    [RANKS] = "model: {model_config: {hidden_size: 64, num_heads: 8, seq_length: 64,\n"
              "  num_layers: 2, vocab_size: 256}}\n" DATA(
                  "dataset_dir: %s/text.txt") "parallel_config:\n"
                                              "  {data_parallel: 2, model_parallel: 2, "
                                              "context_parallel: 2}\n",
    [SHARDS] = "model: {model_config: {hidden_size: 1024, num_layers: 4, num_heads: 8,\n"
               "  seq_length: 64}}\n" DATA(
                   "data_path: ''") "parallel_config:\n"
                                    "  {data_parallel: 4, optimizer_shard: True, "
                                    "model_parallel: 2}\n",
};

static bool is_planned(Base b) {
    return b >= RANKS;
}

static const char *base_file(Base b) {
    return in_temp(arena_printf(mem(), "base%d.yaml", (int)b));
}

static void write_ready(void) {
    static int32_t tokens[4 * 4 * 17];
    for (int i = 0; i < ARRAY_LEN(tokens); i++) tokens[i] = i * 7 % 251;
    SafeTensor t = {
        .name = "tokens", .dtype = DT_I32, .rank = 3, .dim = {4, 4, 17}, .data = tokens};
    EXPECT(!safetensors_write(in_temp("ready.safetensors"), &t, 1, NULL, NULL));
}

/* 60 documents of 12 to 25 tokens; token 3 ends each. */
static void write_pair(const char *prefix) {
    uint16_t tokens[60 * 25];
    int32_t length[60], sequences[60];
    int n = 0;
    for (int i = 0; i < 60; i++) {
        length[i] = 12 + i * 5 % 14;
        sequences[i] = 1;
        for (int t = 1; t < length[i]; t++)
            tokens[n++] = (uint16_t)(4 + (i * 3 + t) % 250);
        tokens[n++] = 3;
    }
    IndexedPart part = {tokens, (size_t)n * 2, length, 60, sequences, 60};
    IndexedWriter *w = indexed_write_open(mem(), prefix, 256);
    indexed_write_add(w, &part);
    indexed_write_complete(w);
    indexed_write_publish(w);
    indexed_write_close(w);
}

static void write_data(void) {
    EXPECT(!chdir(temp_dir())); /* where keys have their folders by default */
    Text web = text_new(mem());
    for (int i = 0; i < 60; i++)
        text_add(&web, "{\"text\": \"%.*s\", \"other\": \"no %d\"}\n", 3 + i % 14,
                 "one and one is two", i);
    runs_text();
    write_text(in_temp("web.jsonl"), web.s);
    write_ready();
    write_pair(in_temp("pair"));
    for (int b = 0; b < BASES; b++)
        write_text(base_file(b), arena_printf(mem(), base_yaml[b], temp_dir()));
}

/* ---- a key in a configuration ---- */

/* `with` are further flags, for the key and for what it is compared to. %s in them and in
 * the value: the test's folder. */
typedef struct Case {
    const char *path;
    Base base;
    const char *value, *with;
    bool rare; /* acts on what does not happen without `with` */
} Case;

/* Keys that act in another configuration than TEXT, or with another value than the next
 * one; rows of one path stand together. */
static const Case cases[] = {
#include "keys_cases.h"
};

/* Some value that is not the default. */
static const char *other_value(const Key *key) {
    double number = strtod(key->def, NULL);
    const char *bar = strchr(key->range, '|');
    switch (key->kind) {
    case KIND_Bool:
        return key->def[0] == 'T' ? "False" : "True";
    case KIND_Int:
        return arena_printf(mem(), "%g", number > 0 ? number * 2 : 1);
    case KIND_Float:
        return arena_printf(mem(), "%g", number / 2 + 1e-3);
    case KIND_Memory:
        return "3GB";
    case KIND_IntList:
    case KIND_IntTable:
    case KIND_TextList:
        return "[3]";
    case KIND_Enum:
        return arena_strndup(mem(), bar + 1, strcspn(bar + 1, " |"));
    default:
        return "other";
    }
}

/* The flags of a case as words; `key` false: without the key itself. */
static const char *case_words(const Case *c, bool key) {
    const char *dir = temp_dir();
    Text t = text_new(mem());
    const char *parts[] = {c->with ? c->with : "",
                           key ? arena_printf(mem(), " --%s=%s", c->path, c->value) : ""};
    for (int i = 0; i < 2; i++)
        for (const char *p = parts[i]; *p; p++) {
            if (p[0] == '%' && p[1] == 's')
                text_add(&t, "%s", dir), p++;
            else
                text_add_bytes(&t, p, 1);
        }
    return t.s;
}

/* A line that names the key, by its last word. */
static bool names(const char *line, const char *path) {
    const char *dot = strrchr(path, '.');
    return strstr(line, dot ? dot + 1 : path) != NULL;
}

static bool is_predict(const Case *c) {
    return c->with && !strncmp(c->with, "predict ", 8);
}

/* Nothing of the plan stays: the runs to come are forks of this process. */
static const char *planned_in(Arena *own, const Case *c, bool key, bool *said_so) {
    Catch caught;
    if (CATCH(caught)) {
        char *word[DRIVEN_WORDS + 1];
        int n = 0;
        split_words(arena_strdup(mem(), case_words(c, key)), word);
        while (word[n]) n++;
        Config *cfg = config_load(own, base_file(c->base), n, word);
        Plan p = plan_of_config(own, cfg, 0);
        plan_check_memory(&p);
        for (int i = 0; i < cfg->n_notes; i++)
            *said_so |= names(cfg->notes[i], c->path) &&
                        (strstr(cfg->notes[i], "no effect") != NULL ||
                         strstr(cfg->notes[i], "not used") != NULL ||
                         strstr(cfg->notes[i], " is ") != NULL);
        catch_end(&caught);
        return arena_printf(mem(), "%s %lld", p.hash, (long long)p.memory.total_bytes);
    }
    if (!key) test_fail(__FILE__, __LINE__, "%s: %s", c->path, caught.message);
    *said_so |= names(caught.message, c->path);
    return "";
}

/* What is planned; "" with *said_so when the key is refused or a note names it. */
static const char *planned(const Case *c, bool key, bool *said_so) {
    Arena *own = arena_new();
    const char *plan = planned_in(own, c, key, said_so);
    arena_free(own);
    return plan;
}

/* ---- what a run leaves ---- */

static const char *text_of(const char *path) {
    return file_exists(path) ? file_read(mem(), path, 1 << 24, NULL, EXIT_DATA) : "";
}

static void add_metrics(Text *t, const char *run) {
    int n;
    if (!file_exists(path_join(mem(), run, "metrics.jsonl"))) return;
    const MetricsRow *row = runs_metrics(run, &n);
    for (int i = 0; i < n; i++)
        text_add(t, "%.9g %.9g %.9g %.9g\n", row[i].loss, row[i].grad_norm, row[i].lr,
                 row[i].loss_scale);
}

/* Lines of a text that hold a word. */
static void add_lines_with(Text *t, const char *text, const char *part) {
    for (const char *p = text; (p = strstr(p, part)); p++)
        text_add(t, "%.*s\n", (int)strcspn(p, "\n"), p);
}

/* Names of all files of the folder of this case. */
static void add_files(Text *t, const char *dir) {
    const char *list = in_temp("files.txt");
    EXPECT(!system(arena_printf(mem(), "cd %s && find . | sort >%s", dir, list)));
    text_add(t, "%s", text_of(list));
}

/* The program that runs: "train", or "predict" of a run. */
static const char *observed(const Case *c, bool key) {
    const char *dir = in_temp("case"), *run = path_join(mem(), dir, "run");
    Text t = text_new(mem());
    remove_all(dir);
    EXPECT(!mkdir(dir, 0700));
    const char *words = case_words(c, key);
    bool predicts = is_predict(c);
    int exit_code = stator_wait(
        stator_start(predicts ? words : runs_words(base_file(c->base), run, words)));
    if (predicts) return arena_printf(mem(), "%d %s", exit_code, said());
    text_add(&t, "exit code %d\n", exit_code);
    add_metrics(&t, run);
    text_add(&t, "%s", text_of(path_join(mem(), run, "valid.jsonl")));
    const char *plan = text_of(path_join(mem(), run, "plan.json"));
    add_lines_with(&t, plan, "\"threads\"");
    add_lines_with(&t, plan, "batches_ahead");
    const char *state =
        text_of(path_join(mem(), run, "ckpt/step_00000003/manifest.json"));
    add_lines_with(&t, state, "xxh3");
    add_lines_with(&t, state, "token_id");
    add_files(&t, dir);
    text_add(&t, "%d lines of steps\n", (int)(strstr(said(), "step 1/") != NULL));
    if (exit_code) text_add(&t, "%s", said());
    return t.s;
}

/* A failure that names the key, or a line of a run that does. */
static bool is_said(const char *path) {
    const char *text = said();
    for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n') {
        const char *line = arena_strndup(mem(), p, strcspn(p, "\n"));
        bool speaks = strstr(line, "error: ") || strstr(line, "no effect") ||
                      strstr(line, "not used");
        if (speaks && names(line, path)) return true;
    }
    return false;
}

/* What many keys are compared to: a configuration and its flags without the key. */
typedef struct Without {
    Base base;
    const char *with, *planned, *observed; /* NULL: not yet looked at */
} Without;

static Without *without(const Case *c) {
    static Without *all;
    static int n, cap;
    const char *with = c->with ? c->with : "";
    for (int i = 0; i < n; i++)
        if (all[i].base == c->base && !strcmp(all[i].with, with)) return &all[i];
    PUSH(mem(), all, n, cap, ((Without){.base = c->base, .with = with}));
    return &all[n - 1];
}

static const char *planned_without(const Case *c) {
    Without *w = without(c);
    bool ignored = false;
    if (!w->planned) w->planned = planned(c, false, &ignored);
    return w->planned;
}

static const char *observed_without(const Case *c) {
    Without *w = without(c);
    if (!w->observed) w->observed = observed(c, false);
    return w->observed;
}

static int runs; /* that were needed */

static bool acts_or_says(const Case *c) {
    bool said_so = false;
    bool predicts = is_predict(c);
    if (!predicts) {
        const char *before = planned_without(c);
        const char *after = planned(c, true, &said_so);
        if (said_so || strcmp(before, after)) return true;
        if (is_planned(c->base)) return false;
    }
#ifdef __SANITIZE_ADDRESS__
    return true; /* the runs of so many keys take minutes */
#endif
    runs++;
    const char *before = observed_without(c), *after = observed(c, true);
    return strcmp(before, after) != 0 || is_said(c->path);
}

static int failed;

static void expect_case(const Case *c) {
    if (acts_or_says(c)) return;
    failed++;
    fprintf(stderr, "  %s=%s with %s on base %d changes nothing and nothing is said\n",
            c->path, c->value, c->with ? c->with : "nothing else", (int)c->base);
}

/* Keys of what happens when a rank hangs, which takes one that does, of what is measured,
 * which may come out as the rule has it, and of how code is made, which has the same results. */
static const struct {
    const char *path, *test;
} elsewhere[] = {{"runner_config.hang_seconds", "ranks_hang"},
                 {"runner_config.on_hang", "ranks_hang"},
                 {"context.measure_products_seconds", "product_choices"},
                 {"context.jit_level", "jit_levels"}};

static bool is_tested_elsewhere(const char *path) {
    for (int i = 0; i < ARRAY_LEN(elsewhere); i++) {
        if (strcmp(elsewhere[i].path, path)) continue;
        const char *file =
            arena_printf(mem(), "%s/unit/%s.c", tests_dir(), elsewhere[i].test);
        EXPECT_PART(text_of(file), strrchr(path, '.') + 1);
        return true;
    }
    return false;
}

/* Where it could act, and beside nothing else on one rank. */
static void expect_key(const Key *key) {
    bool alone = is_tested_elsewhere(key->path);
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        const Case *c = &cases[i];
        if (strcmp(c->path, key->path)) continue;
        expect_case(c);
        alone |= c->base == TEXT && (!c->with || c->rare || is_predict(c));
    }
    Case c = {key->path, TEXT, other_value(key), NULL};
    if (!alone) expect_case(&c);
}

/* Under sanitizers some keys are enough. */
#ifdef __SANITIZE_ADDRESS__
enum { EACH = 5 };
#else
enum { EACH = 1 };
#endif

TEST_LIMIT(a_key_acts_or_a_line_says_why_not, 300) {
    write_data();
    RUN_EXPECT(0, arena_printf(mem(), "train %s --output_dir %s", base_file(TEXT),
                               in_temp("trained")));
    for (int k = 0; k < N_KEYS; k += EACH) expect_key(&key_table[k]);
    fprintf(stderr, "  %d keys, %d runs\n", N_KEYS, runs);
    EXPECT(!failed);
}

/* Whatever the data, no key of data and validation is passed over. */
TEST_LIMIT(keys_of_data_with_every_source, 300) {
    static const Base sources[] = {TEXT, INDEXED, PACKED, WEB, READY};
    write_data();
    for (int k = 0; k < N_KEYS; k++) {
        const Key *key = &key_table[k];
        bool data = !strncmp(key->path, "train_dataset", 13) ||
                    !strncmp(key->path, "runner_config.e", 15);
        for (int i = 0; i < ARRAY_LEN(sources) && data; i++) {
            Case c = {key->path, sources[i], other_value(key), NULL};
            for (int j = 0; j < ARRAY_LEN(cases); j++)
                if (!strcmp(cases[j].path, key->path) && cases[j].base == sources[i])
                    c = cases[j];
            expect_case(&c);
        }
    }
    fprintf(stderr, "  %d runs\n", runs);
    EXPECT(!failed);
}
