/* simulate.c - stator simulate: strategies of all kinds on 4 to 64 ranks compute what one
 * rank does, and programs that do not are found. */
#include "../simulations.h"
#include "command.h"
#include <stdlib.h>

/* Sanitized, the interpreter is an order of magnitude slower: then every fourth. */
#ifdef __SANITIZE_ADDRESS__
enum { EVERY = 4 };
#else
enum { EVERY = 1 };
#endif

/* ---- strategies ---- */

typedef struct Way {
    int ranks;
    const char *model, *keys;
} Way;

static const char gpt2[] = "gpt2", llama[] = "llama";
static const Way ways[] = {
    {4, gpt2, ""},
    {4, gpt2, "tp 2 emb_dp False"},
    {4, llama, "cp 4"},
    {4, gpt2, "cp 4 algo megatron_cp_algo micro 2"},
    {4, llama, "pp 4 micro 4"},
    {4, gpt2, "tp 4 sp True beside 2"},
    {8, gpt2, "cp 8 algo hybrid_cp_algo ulysses 2"},
    {8, llama, "tp 2 sp True zero level1 type bfloat16"},
    {8, llama, "tp 2 pp 2 chunks 2 micro 6 zero level2 again True"},
    {8, gpt2, "pp 4 schedule gpipe micro 3 type float16"},
    {8, gpt2, "pp 4 schedule zero_bubble_h1 micro 9 select [norm,act]"},
    {8, gpt2, "pp 2 chunks 2 schedule zero_bubble_v micro 4 emb_dp False"},
    {8, llama, "pp 2 chunks 2 schedule breadth_first micro 4 tp 2 type bfloat16"},
    {8, llama, "M.n_kv_heads 1 tp 2 cp 2 recompute_config.select_comm_recompute False"},
    {8, llama, "M.qk_layernorm True M.head_dim 8 tp 2 cp 2 sp True micro 2 zero level3"},
    {16, gpt2, "pp 4 layers [5,4,4,3] micro 5 again [2,1,0,2] zero level3"},
    {16, llama, "tp 2 cp 2 pp 2 sp True micro 4 zero level3 type bfloat16"},
    {16, gpt2,
     "data GPTDataset L.reset_position_ids True L.reset_attention_mask True "
     "cp 2 tp 2 micro 2 L.eod 7"},
    {16, gpt2,
     "data GPTDataset runner_wrapper.calculate_per_token_loss False tp 2 micro "
     "3 L.eod 7"},
    {16, gpt2, "M.dropout_prob 0.1 tp 2 cp 2 micro 2 pp 2"},
    {16, llama, "M.sliding_window 64 cp 4 algo megatron_cp_algo tp 2 sp True"},
    {16, llama, "M.n_kv_heads 1 tp 4 optimizer.type SGD zero level2"},
    {16, llama, "optimizer.type Momentum tp 4 zero level1 micro 2"},
    {32, gpt2, "tp 2 pp 4 chunks 2 micro 4 zero level2 parallel.overlap off"},
    {32, llama, "tp 2 cp 4 algo hybrid_cp_algo ulysses 2 pp 2 micro 4 type float16"},
    {64, gpt2, "tp 4 pp 4 micro 4 zero level1 sp True emb_dp False"},
    {64, gpt2, "tp 4 pp 4 chunks 2 micro 4 zero level2 again True type bfloat16"},
    {64, llama, "tp 2 cp 2 pp 4 schedule zero_bubble_h1 micro 4 zero level3"},
};

static Simulation simulated(Arena *mem, const Way *w, int64_t steps) {
    const char *yaml = w->model == gpt2 ? simulated_gpt2 : simulated_llama;
    Simulation s = simulated_open(mem, plan_config(mem, yaml, w->keys), w->ranks, steps);
    simulate_run(&s);
    return s;
}

TEST_LABEL_OF(ranks_compute_what_one_does, SLOW);
TEST_LABEL_OF(ranks_compute_what_one_does, RELEASED);
TEST_LIMIT(ranks_compute_what_one_does, 120) {
    double worst[SIMULATE_NUMBERS] = {0};
    double start = clock_seconds();
    int found = 0;
    for (int i = 0; i < ARRAY_LEN(ways); i += EVERY) {
        Arena *mem = arena_new();
        test_at("%d ranks, %s: %s", ways[i].ranks, ways[i].model, ways[i].keys);
        Simulation s = simulated(mem, &ways[i], 2);
        Text out = text_new(mem);
        simulate_print(&s, &out);
        if (!simulate_passes(&s)) test_fail(__FILE__, __LINE__, "%s", out.s);
        EXPECT(s.job->shrunk && s.ranks[1].loss != s.ranks[0].loss);
        EXPECT(strstr(out.s, arena_printf(mem, "simulated %d ranks", ways[i].ranks)));
        DType narrow = strategy_pass_options(s.job->job.cfg).narrow;
        for (int n = SIMULATE_WEIGHTS; n < SIMULATE_NUMBERS && narrow == DT_F32; n++)
            worst[n] = fmax(worst[n], s.compare.difference[n]);
        found++;
        arena_free(mem);
    }
    printf("  %d strategies in %.1f s; f32: weights %.2g apart, states %.2g\n", found,
           clock_seconds() - start, worst[SIMULATE_WEIGHTS], worst[SIMULATE_STATES]);
}

/* Narrow numbers differ, or nothing was rounded; and by less than is let through. */
TEST_LABEL_OF(tolerances_follow_the_type, RELEASED);
TEST(tolerances_follow_the_type) {
    static const char *const types[] = {"float32", "float16", "bfloat16"};
    double last = 0;
    for (int i = 0; i < ARRAY_LEN(types); i++) {
        Arena *mem = arena_new();
        Way w = {8, llama, arena_printf(mem, "tp 4 sp True micro 2 type %s", types[i])};
        Simulation s = simulated(mem, &w, 2);
        double d = s.compare.difference[SIMULATE_STATES];
        printf("  %s: states %.2g apart\n", types[i], d);
        EXPECT(simulate_passes(&s) && d > 4 * last);
        last = d;
        arena_free(mem);
    }
}

/* ---- what is sent ---- */

TEST(what_is_sent_is_compared_with_the_plan) {
    Arena *mem = arena_new();
    Way w = {8, gpt2, "tp 2 pp 2 micro 2"};
    Simulation s = simulated(mem, &w, 1);
    EXPECT(simulate_passes(&s) && s.traffic.n > 6);
    bool sends[2] = {false, false};
    for (int i = 0; i < s.traffic.n; i++) {
        SimulateTraffic *r = &s.traffic.row[i];
        sends[r->stage] |= !strcmp(r->kind, "send");
        EXPECT(r->operations > 0 && r->operations == r->planned_operations &&
               r->sent_bytes == r->planned_bytes);
        r->planned_bytes++;
        EXPECT(!simulate_passes(&s));
        r->planned_bytes--;
        r->operations--;
        EXPECT(!simulate_passes(&s));
        r->operations++;
    }
    EXPECT(sends[0] && sends[1] && simulate_passes(&s));
    arena_free(mem);
}

/* ---- programs that are wrong ---- */

static char *config_path(void) {
    char *path = temp("wrong.yaml");
    write_text(path, simulated_gpt2);
    return path;
}

#define SIMULATE(...) run(cmd_simulate, config_path(), __VA_ARGS__, (char *)NULL)

/* What pass number `nth` left, of the texts that were dumped; with `end` in its name. */
static char *dumped(Arena *mem, const char *dir, const char *name) {
    size_t n;
    return file_read(mem, path_join(mem, path_join(mem, temp_dir(), dir), name), 1 << 22,
                     &n, EXIT_DATA);
}

/* Line i of text, and the text without its end. */
typedef struct Lines {
    char *line[8192];
    int n;
} Lines;

static Lines *lines_of(Arena *mem, char *text) {
    Lines *l = NEW(mem, Lines);
    for (char *at = text; at && l->n < ARRAY_LEN(l->line);) {
        l->line[l->n++] = at;
        at = strchr(at, '\n');
        if (at) *at++ = 0;
    }
    return l;
}

static void write_lines(Arena *mem, const Lines *l, const char *path) {
    Text t = text_new(mem);
    for (int i = 0; i < l->n; i++)
        text_add(&t, "%s%s", l->line[i], i + 1 < l->n ? "\n" : "");
    EXPECT(!file_write_atomic(path, t.s, t.n));
}

/* The same line with another op that does nothing, or that doubles the sum; NULL: it is no
 * sum over ranks. */
static char *without_sum(Arena *mem, const char *line, const char *by) {
    const char *op = strstr(line, " = all_reduce "), *attrs = strstr(line, " {");
    const char *end = strstr(line, "} : ");
    if (!op || !attrs || !end || strstr(line, "of=")) return NULL;
    const char *operand = op + strlen(" = all_reduce ");
    return arena_printf(mem, "%.*s = scale %.*s {by=%s%s", (int)(op - line), line,
                        (int)(attrs - operand), operand, by, end);
}

static void expect_every_lost_sum_found(char *type) {
    Arena *mem = arena_new();
    char *dir = temp("ir"), *wrong = temp("wrong.ir");
    SIMULATE("-n", "4", "--parallel_config.model_parallel", "2",
             "--model.model_config.compute_dtype", type, "--dump_ir", dir);
    worked();
    Lines *l = lines_of(mem, dumped(mem, "ir", "19-simplify.ir"));
    int sums = 0, nth = 0;
    for (int i = -1; i < l->n; i++) {
        char *was = i < 0 ? NULL : l->line[i];
        char *is = was ? without_sum(mem, was, sums % 2 ? "1.0" : "3.0") : NULL;
        if (i >= 0 && (!is || nth++ % EVERY)) continue;
        if (is) l->line[i] = is;
        write_lines(mem, l, wrong);
        SIMULATE("-n", "4", "--parallel_config.model_parallel", "2",
                 "--model.model_config.compute_dtype", type, "--ir", wrong, "--steps",
                 "3");
        if (is) l->line[i] = was;
        if (code != (is != NULL))
            test_fail(__FILE__, __LINE__, "code %d with %s:\n%s%s", code, is ? is : "all",
                      printed, message);
        if (is) EXPECT_PART(printed, "\nDIFFERS: ");
        sums += is != NULL;
    }
    printf("  %s: %d sums lost, all found\n", type, sums);
    EXPECT(nth > 15 && sums * EVERY >= nth);
    arena_free(mem);
}

TEST_LABEL_OF(every_lost_sum_is_found, SLOW);
TEST(every_lost_sum_is_found) {
    expect_every_lost_sum_found("float32");
}

TEST_LABEL_OF(every_lost_sum_is_found_in_bf16, SLOW);
TEST_LABEL_OF(every_lost_sum_is_found_in_bf16, RELEASED);
TEST(every_lost_sum_is_found_in_bf16) {
    expect_every_lost_sum_found("bfloat16");
}

TEST_LABEL_OF(every_lost_sum_is_found_in_f16, SLOW);
TEST_LABEL_OF(every_lost_sum_is_found_in_f16, RELEASED);
TEST(every_lost_sum_is_found_in_f16) {
    expect_every_lost_sum_found("float16");
}

/* The first from line `from` on. */
static int line_with(const Lines *l, int from, const char *part) {
    for (int i = from; i < l->n; i++)
        if (strstr(l->line[i], part)) return i;
    test_fail(__FILE__, __LINE__, "no line has %s", part);
}

/* A stage that receives before it sends what the other one waits for. */
TEST(ranks_that_wait_for_each_other_are_told) {
    Arena *mem = arena_new();
    char *wrong = temp("wrong.ir");
    SIMULATE("-n", "4", "--parallel_config.pipeline_stage", "2",
             "--parallel_config.micro_batch_num", "2", "--dump_ir", temp("ir"));
    worked();
    Lines *l = lines_of(mem, dumped(mem, "ir", "25-meet.ir"));
    int receive = line_with(l, 0, "%d.y = receive {from=1; message=0}");
    int send = line_with(l, 0, "send %y {to=1; message=0}");
    EXPECT(send < receive);
    char *line = l->line[receive];
    memmove(&l->line[send + 1], &l->line[send],
            sizeof(char *) * (size_t)(receive - send));
    l->line[send] = line;
    write_lines(mem, l, wrong);
    SIMULATE("-n", "4", "--parallel_config.pipeline_stage", "2",
             "--parallel_config.micro_batch_num", "2", "--ir", wrong);
    refused(EXIT_CONFIG, "stage 0 waits for stage 1, which waits for stage 0, for ever");
    refused(EXIT_CONFIG, arena_printf(mem, "%s:%d:3: error", wrong, send + 1));
    arena_free(mem);
}

/* ---- data ---- */

TEST(data_of_the_configuration_or_random) {
    char *text = temp("words.txt");
    SIMULATE("-n", "2");
    worked();
    EXPECT_PART(printed, "random: the configuration names none");
    char *first = arena_strdup(arena_new(), printed);
    SIMULATE("-n", "2", "--dataset_dir", text, "--vocab_size_is_no_key", "1");
    refused(EXIT_CONFIG, "vocab_size_is_no_key");
    SIMULATE("-n", "2", "--dataset_dir", text, "--model.model_config.vocab_size", "256");
    worked();
    EXPECT_PART(printed, "words.txt is not there");
    write_text(text, "To be, or not to be, that is the question: whether 'tis nobler in "
                     "the mind to suffer the slings and arrows of outrageous fortune, or "
                     "to take arms against a sea of troubles.");
    SIMULATE("-n", "2", "--dataset_dir", text, "--model.model_config.vocab_size", "256");
    worked();
    EXPECT_PART(printed, "words.txt\n");
    EXPECT(strcmp(first, printed));
    SIMULATE("-n", "2", "--dataset_dir", text, "--model.model_config.vocab_size", "256",
             "--random");
    worked();
    EXPECT_PART(printed, "as --random says");
    write_text(text, "short");
    SIMULATE("-n", "2", "--dataset_dir", text, "--model.model_config.vocab_size", "256");
    refused(EXIT_DATA, "words.txt");
}

/* Ready batches have sizes of their own, and there are so many of them. */
TEST(ready_batches_are_for_the_whole_model) {
    char *data = path_join(arena_new(), golden("gpt2_tiny"), "expected.safetensors");
    char *words[] = {"--init_from",
                     golden("gpt2_tiny"),
                     "--train_dataset.data_loader.type",
                     "TensorBatches",
                     "--dataset_dir",
                     data,
                     "-n",
                     "2"};
    for (int full = 0; full < 2; full++) {
        run(cmd_simulate, words[0], words[1], words[2], words[3], words[4], words[5],
            words[6], words[7], full ? "--full" : "--steps=2", (char *)NULL);
        worked();
        EXPECT_PART(printed, full ? "expected.safetensors\n" : "a size of their own");
        EXPECT_PART(printed, full ? "model     as it is" : "hidden_size");
    }
    run(cmd_simulate, words[0], words[1], words[2], words[3], words[4], words[5],
        "--full", "--steps", "100", (char *)NULL);
    refused(EXIT_DATA, "fewer than --steps 100");
}

/* ---- other words ---- */

TEST(a_module_of_the_user_is_simulated_as_it_is) {
    Arena *mem = arena_new();
    static const char *const examples[] = {"classifier", "lstm", "two_towers"};
    for (int i = 0; i < ARRAY_LEN(examples); i++) {
        char *path =
            arena_printf(mem, "%s/../examples/%s/train.yaml", tests_dir(), examples[i]);
        run(cmd_simulate, path, "-n", "4", (char *)NULL);
        worked();
        EXPECT_PART(printed, "as it is: its text has its sizes");
        EXPECT_PART(printed, "\npassed");
    }
    arena_free(mem);
}

/* On two ranks, which must agree with one. */
static void simulate_module(Arena *mem, const char *module) {
    char *path = path_join(mem, temp_dir(), "m.ir");
    EXPECT_INT(file_write_atomic(path, module, strlen(module)), 0);
    char *yaml = arena_printf(
        mem, "model: {file: %s}\ntrain_dataset: {data_loader: {type: Tensors}}\n", path);
    path = path_join(mem, temp_dir(), "m.yaml");
    EXPECT_INT(file_write_atomic(path, yaml, strlen(yaml)), 0);
    run(cmd_simulate, path, "-n", "2", (char *)NULL);
    worked();
    EXPECT_PART(printed, "\npassed");
}

/* What is rounded to 16 bits differs by such roundings, whatever says so. */
TEST(a_module_that_rounds_has_the_limits_of_its_types) {
    static const char text[] =
        "module @m mesh() level(global)\n"
        "func @net:model(%%x: f32[8,6] {role=\"data\"}, %%target: f32[8,4] "
        "{role=\"data\"},\n"
        "    %%w: f32[6,4] {role=\"param\"; init=\"normal\"; std=0.5; decay=1},\n"
        "    %%b: f32[4] {role=\"param\"; init=\"normal\"; std=0.5}) -> (f32[]) {\n"
        "  %%xb = cast %%x : %s[8,6]\n  %%wb = cast %%w : %s[6,4]\n"
        "  %%h = dot %%xb, %%wb {bi,io->bo} : %s[8,4]\n  %%y = cast %%h : f32[8,4]\n"
        "  %%z = add %%y, %%b {bo,o->bo} : f32[8,4]\n  %%t = tanh %%z : f32[8,4]\n"
        "  %%e = sub %%t, %%target : f32[8,4]\n  %%e2 = mul %%e, %%e : f32[8,4]\n"
        "  %%s = sum %%e2 {bo->_} : f32[]\n  %%loss = scale %%s {by=0.03125} : f32[]\n"
        "  return %%loss\n}\n";
    static const char *const type[][2] = {
        {"f32", "0.0001"}, {"f16", "0.0025"}, {"bf16", "0.02"}};
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(type); i++) {
        const char *t = type[i][0];
        simulate_module(mem, arena_printf(mem, text, t, t, t));
        EXPECT_PART(printed, type[i][1]);
    }
    arena_free(mem);
}

TEST(a_parameter_with_the_name_of_a_state_is_another_tensor) {
    Arena *mem = arena_new();
    simulate_module(
        mem,
        "module @m mesh() level(global)\n"
        "func @net:model(%x: f32[8,6] {role=\"data\"},\n"
        "    %w: f32[6,4] {role=\"param\"; init=\"normal\"; std=0.5},\n"
        "    %m.w: f32[6,4] {role=\"param\"; init=\"normal\"; std=0.5}) -> (f32[]) {\n"
        "  %a = dot %x, %w {bi,io->bo} : f32[8,4]\n"
        "  %b = dot %x, %m.w {bi,io->bo} : f32[8,4]\n"
        "  %y = mul %a, %b : f32[8,4]\n  %e = mul %y, %y : f32[8,4]\n"
        "  %s = sum %e {bo->_} : f32[]\n  %loss = scale %s {by=0.03125} : f32[]\n"
        "  return %loss\n}\n");
    arena_free(mem);
}

TEST(what_cannot_be_simulated_is_refused) {
    run(cmd_simulate, (char *)NULL);
    refused(EXIT_CONFIG, "stator simulate CONFIG.yaml");
    SIMULATE("-n", "5000");
    refused(EXIT_CONFIG, "one process simulates 4096 at most");
    SIMULATE("-n", "3", "--parallel_config.model_parallel", "2");
    refused(EXIT_CONFIG, "no multiple");
    SIMULATE("-n", "3", "--parallel_config.model_parallel", "3");
    refused(EXIT_CONFIG, "attention heads: 16 is not a multiple of 3");
    SIMULATE("--steps", "0");
    refused(EXIT_CONFIG, "from 1 to 100");
    SIMULATE("--ir", "/nowhere.ir");
    refused(EXIT_CONFIG, "/nowhere.ir");
    SIMULATE("-n", "2", "--full", "--model.model_config.hidden_size", "16384",
             "--model.model_config.num_layers", "1000");
    refused(EXIT_MEMORY, "leave --full out");
}

/* Gradients of the biases of keys are rounding alone, of which Adam makes steps as of others; those
 * of norms of keys nearly so. */
TEST(steps_of_rounding_are_no_difference) {
    Arena *mem = arena_new();
    char *tiny = arena_printf(mem, "%s/../configs/gpt2-tiny.yaml", tests_dir());
    static const char *const keys[][7] = {
        {"2", "--parallel_config.context_parallel", "2",
         "--parallel_config.context_parallel_algo", "megatron_cp_algo",
         "--model.model_config.n_kv_heads", "2"},
        {"4", "--parallel_config.model_parallel", "4", "--parallel_config.vocab_emb_dp",
         "True", "--model.model_config.qk_layernorm", "True"}};
    for (int i = 0; i < 2 * 4; i++) {
        const char *const *k = keys[i % 2];
        run(cmd_simulate, tiny, "-n", k[0], k[1], k[2], k[3], k[4], k[5], k[6], "--seed",
            arena_printf(mem, "%d", 1 + i / 2), "--random",
            "--model.model_config.compute_dtype", "bfloat16",
            "--model.model_config.initializer_range", "0.08", (char *)NULL);
        worked();
    }
    arena_free(mem);
}

/* A text must be the step of these ranks, with the arguments that are filled. */
TEST(a_text_of_something_else_is_refused) {
    Arena *mem = arena_new();
    char *text = temp("ir/19-simplify.ir"), *early = temp("ir/13-simplify.ir");
    SIMULATE("-n", "2", "--dump_ir", temp("ir"));
    worked();
    SIMULATE("-n", "2", "--ir", text);
    worked();
    SIMULATE("-n", "4", "--ir", text);
    refused(EXIT_CONFIG, "is for 1 stage, dp=2, the configuration has 1 stage, dp=4");
    SIMULATE("-n", "2", "--ir", early);
    refused(EXIT_CONFIG, "is at level diffed");
    SIMULATE("-n", "2", "--ir", text, "--parallel_config.micro_batch_num", "2");
    refused(EXIT_CONFIG, "i32 of all tokens of a step");
    Lines *l = lines_of(mem, dumped(mem, "ir", "19-simplify.ir"));
    int at = line_with(l, line_with(l, 0, "func @step"), "init=\"normal\"");
    char *init = strstr(l->line[at], "init=\"normal\"");
    memcpy(init, "init=\"nobody\"", strlen("init=\"nobody\""));
    write_lines(mem, l, temp("wrong.ir"));
    SIMULATE("-n", "2", "--ir", temp("wrong.ir"));
    refused(EXIT_CONFIG, "made by an init");
    static const char huge[] = "module @huge mesh(dp=2) level(local)\n"
                               "func @step:step(%x: f32[]) -> (f32[]) {\n"
                               "  %y = fill {value=1.0} : f32[1048576,1048576]\n"
                               "  return %x\n}\n";
    write_text(temp("wrong.ir"), huge);
    SIMULATE("-n", "2", "--ir", temp("wrong.ir"));
    refused(EXIT_MEMORY, "wrong.ir takes about 17.6 TB in this process");
    arena_free(mem);
}
