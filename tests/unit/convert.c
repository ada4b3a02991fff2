/* convert.c - the command convert: weights between checkpoints and Hugging Face folders
 * and back, bit for bit. */
#define _GNU_SOURCE
#include "command.h"
#include "runtime/store/safetensors.h"
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

static void check_same_tensors(const char *a, const char *b) {
    Arena *mem = arena_new();
    Safetensors *x = safetensors_open(mem, a, EXIT_DATA);
    Safetensors *y = safetensors_open(mem, b, EXIT_DATA);
    EXPECT(x->n == y->n && x->n > 10);
    for (int i = 0; i < x->n; i++) {
        const char *name = x->t[i].name;
        const SafeTensor *t = safetensors_find(y, name);
        if (!t) t = safetensors_find(y, arena_printf(mem, "transformer.%s", name));
        EXPECT(t && t->bytes == x->t[i].bytes && t->rank == x->t[i].rank);
        for (int d = 0; d < t->rank; d++) EXPECT_INT(t->dim[d], x->t[i].dim[d]);
        EXPECT(!memcmp(t->data, x->t[i].data, t->bytes));
    }
    safetensors_close(x);
    safetensors_close(y);
    arena_free(mem);
}

static void check_round_trip_of(char *dir, const char *name) {
    Arena *mem = arena_new();
    char *first = temp("first"), *there = temp("there"), *back = temp("back");
    first = path_join(mem, first, name);
    there = path_join(mem, there, name);
    back = path_join(mem, back, name);
    char *prompt[] = {"--greedy", "--prompt_tokens", "7,8,9", "--max_new_tokens", "9"};
    CONVERT("--to", "stator", dir, there);
    worked();
    CONVERT("--to", "hf", there, back);
    worked();
    check_same_tensors(dir, back);
    CONVERT("--to=hf", dir, first);
    worked();
    size_t n, m;
    const char *files[] = {"config.json", "generation_config.json", "model.safetensors"};
    for (int i = 0; i < ARRAY_LEN(files); i++) {
        char *a = file_read(mem, path_join(mem, first, files[i]), 1 << 20, &n, EXIT_DATA);
        char *b = file_read(mem, path_join(mem, back, files[i]), 1 << 20, &m, EXIT_DATA);
        EXPECT(n == m && !memcmp(a, b, n));
    }
    PREDICT(dir, prompt[0], prompt[1], prompt[2], prompt[3], prompt[4]);
    worked();
    char *want = arena_strdup(mem, printed);
    EXPECT_STR(PREDICT(there, prompt[0], prompt[1], prompt[2], prompt[3], prompt[4]),
               want);
    EXPECT_STR(PREDICT(back, prompt[0], prompt[1], prompt[2], prompt[3], prompt[4]),
               want);
    arena_free(mem);
}

static void check_round_trip(const char *name) {
    check_round_trip_of(golden(name), name);
}

TEST_LIMIT(convert_there_and_back, 240) {
    check_round_trip("gpt2_tiny");
    check_round_trip("gpt2_untied");
    check_round_trip("llama_tiny");
    check_round_trip("llama_tied_mqa");
    Arena *mem = arena_new();
    check_round_trip_of(mistral_folder(mem, "mistral", 4), "mistral_tiny");
    arena_free(mem);
}

/* As save_pretrained has them: without a prefix transformers 4 takes the file of GPT-2 for one
 * without a head. */
TEST(names_are_those_of_save_pretrained) {
    static const struct {
        char *folder, *table, *norm, *head; /* head NULL: it is the table */
    } of[] = {{"gpt2_tiny", "transformer.wte.weight", "transformer.h.0.ln_1.bias", NULL},
              {"gpt2_untied", "transformer.wte.weight", "transformer.ln_f.bias",
               "lm_head.weight"},
              {"llama_tiny", "model.embed_tokens.weight", "model.norm.weight",
               "lm_head.weight"},
              {"llama_tied_mqa", "model.embed_tokens.weight", "model.norm.weight", NULL}};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        Arena *mem = arena_new();
        char *out = temp(of[i].folder), *again = temp("again");
        CONVERT("--to", "hf", golden(of[i].folder), out);
        worked();
        Safetensors *st = safetensors_open(mem, out, EXIT_DATA);
        EXPECT(safetensors_find(st, of[i].table) && safetensors_find(st, of[i].norm));
        EXPECT(!of[i].head || safetensors_find(st, of[i].head));
        for (int k = 0; k < st->n; k++) {
            bool head = of[i].head && !strcmp(st->t[k].name, of[i].head);
            size_t prefix = strcspn(of[i].table, ".") + 1;
            EXPECT(head || !strncmp(st->t[k].name, of[i].table, prefix));
        }
        CONVERT("--to", "hf", "--force", out, again); /* and reads them */
        worked();
        check_same_tensors(out, again);
        safetensors_close(st);
        arena_free(mem);
    }
}

/* Weights of 16 bits there and back: rounded once, then equal. */
TEST(convert_writes_the_type_asked_for) {
    static const struct {
        char *word, *type;
        double most; /* relative error of rounding */
    } types[] = {{"bfloat16", "BF16", 0x1p-8}, {"float16", "F16", 0x1p-11}};
    for (int i = 0; i < ARRAY_LEN(types); i++) {
        Arena *mem = arena_new();
        char *out = temp(types[i].word),
             *again = path_join(mem, temp("x"), types[i].word);
        CONVERT("--to", "hf", "--dtype", types[i].word, golden("llama_tiny"), out);
        worked();
        CONVERT("--to", "hf", "--dtype", types[i].word, out, again);
        worked();
        check_same_tensors(out, again);
        Safetensors *x = safetensors_open(mem, golden("llama_tiny"), EXIT_DATA);
        Safetensors *y = safetensors_open(mem, out, EXIT_DATA);
        for (int k = 0; k < x->n; k++) {
            const SafeTensor *t = safetensors_need(y, x->t[k].name);
            float *v = NEW_ARRAY(mem, float, (size_t)safetensors_count(t));
            EXPECT_STR(t->type_name, types[i].type);
            safetensors_read(y, t, DT_F32, v, (size_t)x->t[k].bytes);
            for (int64_t e = 0; e < safetensors_count(t); e++) {
                float was = ((const float *)x->t[k].data)[e];
                EXPECT(fabsf(v[e] - was) <= types[i].most * fabsf(was) + 0x1p-25);
            }
        }
        const char *config =
            file_read(mem, path_join(mem, out, "config.json"), 4096, NULL, EXIT_DATA);
        EXPECT(
            strstr(config, arena_printf(mem, "\"torch_dtype\": \"%s\"", types[i].word)));
        safetensors_close(x);
        safetensors_close(y);
        arena_free(mem);
    }
    CONVERT("--to", "stator", "--dtype", "float16", golden("llama_tiny"), temp("own"));
    refused(EXIT_CONFIG, "--dtype is of --to hf");
}

TEST(refusals_of_convert) {
    char *dir = golden("gpt2_tiny"), *out = temp("out"), *run_dir = temp("run");
    CONVERT(dir, out);
    refused(EXIT_CONFIG, "write --to hf or --to stator");
    CONVERT("--to", "onnx", dir, out);
    refused(EXIT_CONFIG, "--to onnx: write");
    CONVERT("--to", "hf", dir);
    refused(EXIT_CONFIG, "needs two folders");
    CONVERT("--to", "hf", temp("nothing"), out);
    refused(EXIT_CONFIG, "No such file");
    EXPECT(!file_exists(out));
    EXPECT_INT(dir_make(out), 0);
    write_text(path_join(arena_new(), out, "mine.txt"), "keep");
    CONVERT("--to", "stator", dir, out);
    refused(EXIT_CONFIG, "is not empty");
    CONVERT("--to", "stator", dir, out, "--force");
    worked();
    EXPECT(file_exists(path_join(arena_new(), out, "mine.txt")));
    CONVERT("--to", "stator", dir, out, "--force");
    worked();
    EXPECT_INT(dir_make(path_join(arena_new(), run_dir, "step_00000003")), 0);
    CONVERT("--to", "stator", dir, run_dir, "--force");
    refused(EXIT_CHECKPOINT, "holds the checkpoint step_00000003");
}

static bool disk_is_bad;

/* In the place of libc's. */
int rename(const char *from, const char *to) {
    if (disk_is_bad && ends_with(to, "model.safetensors")) {
        int fd = open(from, O_RDWR);
        off_t end = lseek(fd, 0, SEEK_END);
        EXPECT(pwrite(fd, "?", 1, end - 1) == 1 && !close(fd));
    }
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

TEST(shards_stay_until_what_was_written_is_read_back) {
    Arena *mem = arena_new();
    char *out = temp("old"), *shard = path_join(mem, out, "model-1.safetensors");
    EXPECT_INT(dir_make(out), 0);
    write_text(path_join(mem, out, "model.safetensors.index.json"),
               "{\"weight_map\":{\"a\":\"model-1.safetensors\"}}");
    write_text(shard, "the only weights");
    disk_is_bad = true;
    CONVERT("--to", "hf", golden("gpt2_tiny"), out, "--force");
    refused(EXIT_CHECKPOINT, "is not what was written to it");
    EXPECT(file_exists(shard));
    disk_is_bad = false;
    CONVERT("--to", "hf", golden("gpt2_tiny"), out, "--force");
    worked();
    EXPECT(!file_exists(shard));
    arena_free(mem);
}

/* Weights in shards, and a tokenizer, that were in the folder before are not read again. */
TEST(convert_over_shards) {
    static const char index[] =
        "{\"metadata\":{},\"weight_map\":{\"transformer.wte.weight\":"
        "\"model-1.safetensors\",\"a\":\"mine.txt\",\"b\":3}}";
    Arena *mem = arena_new();
    char *dir = golden("llama_tiny"), *out = temp("old");
    CONVERT("--to", "hf", golden("gpt2_tiny"), out);
    worked();
    char *index_at = path_join(mem, out, "model.safetensors.index.json");
    char *shard = path_join(mem, out, "model-1.safetensors");
    char *mine = path_join(mem, out, "mine.txt");
    char *tokenizer = path_join(mem, out, "tokenizer.json");
    EXPECT(!rename(path_join(mem, out, "model.safetensors"), shard));
    write_text(index_at, index);
    write_text(mine, "keep");
    write_text(tokenizer, "{}");
    CONVERT("--to", "hf", dir, out, "--force");
    worked();
    check_same_tensors(dir, out);
    EXPECT(!file_exists(index_at) && !file_exists(shard) && !file_exists(tokenizer));
    EXPECT(file_exists(mine));
    char *prompt[] = {"--greedy", "--prompt_tokens", "7,8,9", "--max_new_tokens", "9"};
    PREDICT(dir, prompt[0], prompt[1], prompt[2], prompt[3], prompt[4]);
    char *want = arena_strdup(mem, printed);
    EXPECT_STR(PREDICT(out, prompt[0], prompt[1], prompt[2], prompt[3], prompt[4]), want);
    write_text(index_at, index); /* the one file is preferred, as in transformers */
    EXPECT_STR(PREDICT(out, prompt[0], prompt[1], prompt[2], prompt[3], prompt[4]), want);
    arena_free(mem);
}

/* A folder is a model's by its config.json, which comes behind the weights. */
TEST(convert_on_a_full_disk) {
    const struct rlimit small = {16 << 10, 16 << 10};
    signal(SIGXFSZ, SIG_IGN); /* as the program has it */
    EXPECT(setrlimit(RLIMIT_FSIZE, &small) == 0);
    CONVERT("--to", "hf", golden("gpt2_tiny"), temp("out"));
    refused(EXIT_CHECKPOINT, "model.safetensors: File too large");
    EXPECT(rmdir(temp("out")) == 0); /* nothing is in it */
}

TEST(numbers_that_are_not_finite_are_told) {
    Arena *mem = arena_new();
    char *dir = temp("bad");
    const char *from = path_join(mem, golden("gpt2_tiny"), "model.safetensors");
    EXPECT_INT(dir_make(dir), 0);
    EXPECT_INT(
        system(arena_printf(mem, "cp %s/config.json %s", golden("gpt2_tiny"), dir)), 0);
    Safetensors *st = safetensors_open(mem, from, EXIT_DATA);
    SafeTensor *t = (SafeTensor *)(uintptr_t)safetensors_need(st, "ln_f.bias");
    float *w = arena_alloc(mem, t->bytes);
    memcpy(w, t->data, t->bytes);
    w[0] = NAN, w[3] = INFINITY;
    t->data = w;
    EXPECT_INT(safetensors_write(path_join(mem, dir, "model.safetensors"), st->t, st->n,
                                 NULL, NULL),
               0);
    CONVERT("--to", "stator", dir, temp("out"));
    worked();
    if (!strstr(message, "/bad: 2 of the 32 numbers of "))
        test_fail(__FILE__, __LINE__, "said: %s", message);
}

/* A checkpoint of a new model in `dir`. */
static void save_new(Arena *mem, const char *yaml, const char *dir) {
    ModelSpec spec = spec_of_yaml(mem, yaml);
    Func *f;
    Weights w = make_weights(mem, &spec, &f);
    int n;
    CkptTensor *t = source_tensors(mem, f, weight_of, &w, &n);
    char why[256];
    char *state =
        arena_printf(mem, "{\"model\": %s}", model_spec_json(mem, &spec, false));
    EXPECT_INT(dir_make(dir), 0);
    EXPECT_INT(ckpt_save(dir, &(CkptSave){4, t, n, state}, why, sizeof why), 0);
}

TEST(models_that_hugging_face_has_not) {
    Arena *mem = arena_new();
    static const char yaml[] = "model: {model_config: {vocab_size: 256, seq_length: 16,"
                               " hidden_size: 16, num_layers: 2, num_heads: 2,"
                               " use_sandwich_norm: True}}\n";
    char *dir = temp("sandwich"), *out = temp("sandwich_hf"), why[256];
    save_new(mem, yaml, dir);
    CONVERT("--to", "hf", dir, out);
    refused(EXIT_CONFIG, "no model of Hugging Face's");
    EXPECT(!file_exists(out));
    PREDICT(dir, "--prompt", "a");
    worked();
    EXPECT(!strncmp(printed, "a", 1));
    const CkptSave none = {6, .state_json = "{\"model\": null}"};
    EXPECT_INT(ckpt_save(dir, &none, why, sizeof why), 0);
    PREDICT(dir, "--prompt", "a");
    refused(EXIT_CHECKPOINT, "model.file");
    arena_free(mem);
}

/* LlamaConfig of transformers takes no number of heads that does not divide the width. */
TEST(heads_that_do_not_divide_the_width) {
    Arena *mem = arena_new();
    static const char yaml[] =
        "model: {model_config: {type: LlamaConfig, vocab_size: 256, seq_length: 16,"
        " hidden_size: 16, num_layers: 2, num_heads: 3, head_dim: 4%s}}\n";
    char *dir = temp("uneven"), *out = temp("uneven_hf");
    save_new(mem, arena_printf(mem, yaml, ""), dir);
    CONVERT("--to", "hf", dir, out);
    worked();
    size_t n;
    char *config =
        file_read(mem, path_join(mem, out, "config.json"), 1 << 20, &n, EXIT_DATA);
    EXPECT_PART(config, "\"model_type\": \"mistral\"");
    EXPECT_PART(config, "\"sliding_window\": null");
    char *want = arena_strdup(mem, PREDICT(dir, "--prompt", "abc", "--greedy"));
    worked();
    EXPECT_STR(PREDICT(out, "--prompt", "abc", "--greedy"), want);
    save_new(mem, arena_printf(mem, yaml, ", add_qkv_bias: True, add_bias_linear: True"),
             temp("biases"));
    CONVERT("--to", "hf", temp("biases"), temp("biases_hf"));
    refused(EXIT_CONFIG, "no multiple of num_heads");
    arena_free(mem);
}

TEST(convert_names_of_tensors_begin_no_lines) {
    Arena *mem = arena_new();
    char *dir = mistral_folder(mem, "forged", 64);
    const char *path = path_join(mem, dir, "model.safetensors");
    Safetensors *s = safetensors_open(mem, path, EXIT_DATA);
    float w[2] = {1, 2};
    SafeTensor *t = NEW_ARRAY(mem, SafeTensor, (size_t)s->n + 1);
    memcpy(t, s->t, (size_t)s->n * sizeof *t);
    t[s->n] = (SafeTensor){
        .name = "w\nstator: error: x", .dtype = DT_F32, .rank = 1, .dim = {2}, .data = w};
    EXPECT_INT(safetensors_write(path, t, s->n + 1, NULL, NULL), 0);
    CONVERT("--to", "stator", dir, temp("out"));
    refused(EXIT_CHECKPOINT, "\n  extra: w?stator: error: x [2]");
    EXPECT(!strstr(message, "\nstator: error: x"));
    arena_free(mem);
}
