/* transformers.c - what is compiled computes as transformers does, for a model of every
 * family: the logits of a text and each of its 200 greedy tokens on one rank, the same tokens
 * and the loss of data on four ranks under three strategies, and folders that went through
 * convert. First with the models of golden/families, then, where python3 has transformers,
 * with other random ones (tests/compare_models.py). */
#include "evaluated.h"
#include "family_generator.h"
#include "ranks.h"

TEST_LABEL(RELEASED);

#define CUT "--parallel_config."

/* ---- one rank: logits and tokens ---- */

static int best_of(const float *logits) {
    int best = 0;
    for (int v = 1; v < FAMILY_VOCAB; v++)
        if (logits[v] > logits[best]) best = v;
    return best;
}

/* The programs of predict, for a prompt and for a token. */
static void expect_prediction(int i) {
    Arena *mem = arena_new();
    FamilyText t = family_text(mem, i);
    Generator *g = family_generator(mem, family_folder(mem, i), "float32");
    const float *logits = family_logits(mem, g, &t, FAMILY_NEW);
    for (int nth = 0; nth < FAMILY_NEW; nth++, logits += FAMILY_VOCAB) {
        int want = t.token[FAMILY_PROMPT + nth];
        if (nth % FAMILY_ROW_STEP == 0)
            family_expect_row(families[i].name, &t, nth / FAMILY_ROW_STEP, logits);
        if (best_of(logits) != want)
            test_fail(__FILE__, __LINE__, "%s: token %d is %d, wanted %d",
                      families[i].name, nth, best_of(logits), want);
    }
    generator_free(g);
    arena_free(mem);
}

static void expect_predictions(void) {
    for (int i = 0; i < ARRAY_LEN(families); i++)
        if (!families[i].longer) expect_prediction(i);
}

TEST_LABEL_OF(predicts_as_transformers, SLOW);
TEST_LIMIT(predicts_as_transformers, 120) {
    expect_predictions();
}

/* ---- four ranks ---- */

/* Words for predict and for eval; the data have batches of four rows. Qwen2 and Qwen3 here have
 * two heads of keys and values, which four ranks cannot share. */
static const struct {
    const char *predict, *eval;
} strategies[] = {{"--tp 4 " CUT "vocab_emb_dp False",
                   CUT "model_parallel 4 " CUT
                       "vocab_emb_dp False --runner_config.batch_size 4"},
                  {"--dp 4 " ZERO_LEVEL(3),
                   CUT "data_parallel 4 --runner_config.batch_size 1 " ZERO_LEVEL(3)},
                  {"--pp 2 --tp 2", CUT "pipeline_stage 2 " CUT "model_parallel 2 " CUT
                                        "micro_batch_num 2 --runner_config.batch_size 2"},
                  {"--dp 2 --tp 2 " ZERO_LEVEL(3),
                   CUT "data_parallel 2 " CUT
                       "model_parallel 2 --runner_config.batch_size 2 " ZERO_LEVEL(3)}};
enum { STRATEGIES = 3, FOR_QWEN = 3 };

static int fitting(int family, int strategy) {
    return !strategy && !strncmp(families[family].name, "qwen", 4) ? FOR_QWEN : strategy;
}

static const char *numbers(const int32_t *token, int n) {
    Text t = text_new(mem());
    for (int i = 0; i < n; i++) text_add(&t, "%s%d", i ? "," : "", token[i]);
    return t.s;
}

/* What the command prints, without what goes to stderr. */
static const char *printed_by(const char *words) {
    const char *out = in_temp("stdout.txt"), *err = in_temp("stderr.txt");
    mpi_environment();
    int status = system(
        arena_printf(mem(), "'%s' %s > %s 2> %s", stator_program(), words, out, err));
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        test_fail(__FILE__, __LINE__, "%s:\n%s", words,
                  file_read(mem(), err, 1 << 20, NULL, EXIT_DATA));
    return file_read(mem(), out, 1 << 20, NULL, EXIT_DATA);
}

static void expect_tokens_on_ranks(int i, int strategy) {
    if (families[i].longer) return;
    FamilyText t = family_text(mem(), i);
    const char *how = strategies[fitting(i, strategy)].predict;
    const char *got = printed_by(arena_printf(
        mem(),
        "launch -n 4 predict %s --greedy --tokens --threads 1 --max_new_tokens %d "
        "--prompt_tokens %s %s",
        family_folder(mem(), i), FAMILY_NEW, numbers(t.token, FAMILY_PROMPT), how));
    const char *want = numbers(t.token + FAMILY_PROMPT, FAMILY_NEW);
    if (strcmp(got, arena_printf(mem(), "%s\n", want)))
        test_fail(__FILE__, __LINE__, "%s under %s: got\n%s\nwanted\n%s",
                  families[i].name, how, got, want);
}

static double loss_of_transformers(int i) {
    const Json *root =
        json_read(mem(), family_file(mem(), "expected.json"), 1 << 16, EXIT_DATA);
    return json_f64(json_need(json_need(root, "loss"), families[i].name));
}

/* `launch` is the beginning of the command line. */
static void expect_loss(int i, const char *launch, const char *how) {
    double want = loss_of_transformers(i);
    RUN_EXPECT(0, arena_printf(mem(), "%seval %s --data %s --json --context.threads 1 %s",
                               launch, family_folder(mem(), i),
                               family_file(mem(), "data.safetensors"), how));
    Evaluated e = evaluated_read();
    if (!(fabs(e.loss - want) <= 1e-5 * want) ||
        !(fabs(e.perplexity - exp(want)) <= 1e-5 * exp(want)))
        test_fail(__FILE__, __LINE__,
                  "%s %s: loss %.9g and perplexity %.9g, wanted %.9g and %.9g",
                  families[i].name, how, e.loss, e.perplexity, want, exp(want));
}

static void expect_loss_on_ranks(int i, int strategy) {
    expect_loss(i, "launch -n 4 ", strategies[fitting(i, strategy)].eval);
}

static void expect_loss_alone(int i) {
    expect_loss(i, "", "--runner_config.batch_size 4");
}

static void need_ranks(void) {
    if (!mpi_available()) test_skip("there is no mpirun");
    driven_prepare = mpi_environment;
}

/* Each strategy with some families; in the long form with all. */
static void on_ranks(const char *const *names, int n,
                     void (*expect)(int family, int strategy)) {
    int next = 0;
    for (int i = 0; i < ARRAY_LEN(families); i++) {
        bool wanted = test_long();
        for (int k = 0; k < n; k++) wanted |= !strcmp(families[i].name, names[k]);
        for (int s = 0; s < STRATEGIES && wanted; s++)
            if (test_long() || s == next % STRATEGIES) expect(i, s);
        next += wanted;
    }
}

TEST_LABEL_OF(tokens_on_four_ranks, RANKS);
TEST_LIMIT(tokens_on_four_ranks, 400) {
    static const char *const names[] = {"gpt2",  "yarn",  "mistral_window",
                                        "qwen2", "qwen3", "neox"};
    need_ranks();
    on_ranks(names, ARRAY_LEN(names), expect_tokens_on_ranks);
}

TEST_LABEL_OF(loss_on_four_ranks, RANKS);
TEST_LIMIT(loss_on_four_ranks, 400) {
    static const char *const names[] = {"gpt2",  "dynamic_longer", "mistral_window",
                                        "qwen2", "qwen3",          "neox_sequential"};
    need_ranks();
    on_ranks(names, ARRAY_LEN(names), expect_loss_on_ranks);
}

/* Under plain mpirun, without stator launch. */
TEST_LABEL_OF(plain_mpirun, RANKS);
TEST_LIMIT(plain_mpirun, 120) {
    FamilyText t = family_text(mem(), 0);
    const char *folder = family_folder(mem(), 0);
    /* tokens come one by one, and mpirun puts the other stream's lines anywhere between them */
    const char *script = in_temp("predict.sh");
    write_text(script,
               arena_printf(mem(),
                            "exec '%s' predict '%s' --greedy --tokens --threads 1 "
                            "--max_new_tokens 20 --prompt_tokens %s 2>/dev/null\n",
                            stator_program(), folder, numbers(t.token, FAMILY_PROMPT)));
    const char *words = arena_printf(mem(), "sh %s", script);
    EXPECT_MPI(2, "", words);
    EXPECT_PART(mpi_said(), numbers(t.token + FAMILY_PROMPT, 15));
    EXPECT_MPI(2, "",
               arena_printf(mem(),
                            "%s eval %s --data %s --context.threads 1 "
                            "--runner_config.batch_size 2 " CUT "data_parallel 2",
                            stator_program(), folder,
                            family_file(mem(), "data.safetensors")));
    const char *line = strstr(mpi_said(), "loss ");
    double loss = 0, want = loss_of_transformers(0);
    EXPECT(line && sscanf(line, "loss %lf", &loss) == 1);
    EXPECT_NEAR(loss, want, 1e-5 * want);
}

TEST_LABEL_OF(loss_on_one_rank, SLOW);
TEST_LIMIT(loss_on_one_rank, 120) {
    for (int i = 0; i < ARRAY_LEN(families); i++) expect_loss_alone(i);
}

/* ---- transformers, where it is there ---- */

/* Runs compare_models.py with these words; what it said. Skips the test where the libraries
 * are missing. */
static const char *python(const char *words) {
    const char *out = in_temp("python.txt");
    int status = system(arena_printf(mem(), "python3 '%s/compare_models.py' %s > %s 2>&1",
                                     tests_dir(), words, out));
    const char *text = file_read(mem(), out, 1 << 20, NULL, EXIT_DATA);
    if (strstr(text, "skipped:")) test_skip("%s", text);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        test_fail(__FILE__, __LINE__, "compare_models.py %s:\n%s", words, text);
    return text;
}

/* To stator and back; a pair of folders that must be the same. */
static const char *converted(int i) {
    const char *from = family_folder(mem(), i);
    const char *there = in_temp(arena_printf(mem(), "%s-there", families[i].name));
    const char *back = in_temp(arena_printf(mem(), "%s-back", families[i].name));
    RUN_EXPECT(0, arena_printf(mem(), "convert --to stator %s %s", from, there));
    RUN_EXPECT(0, arena_printf(mem(), "convert --to hf %s %s", there, back));
    return arena_printf(mem(), "%s %s", from, back);
}

static void expect_conversions(void) {
    Text pairs = text_new(mem());
    for (int i = 0; i < ARRAY_LEN(families); i++) text_add(&pairs, " %s", converted(i));
    const char *text = python(arena_printf(mem(), "same%s", pairs.s));
    for (int i = 0; i < ARRAY_LEN(families); i++)
        EXPECT_PART(text, arena_printf(mem(), "%s\n", family_folder(mem(), i)));
}

TEST_LABEL_OF(other_models, SLOW);
TEST_LIMIT(other_models, 900) {
    enum { FIRST_SEED = 2, MORE_SEEDS = 4 };
    int seeds = 1 + (test_long() ? MORE_SEEDS : 0);
    for (int seed = FIRST_SEED; seed < FIRST_SEED + seeds; seed++) {
        const char *dir = in_temp(arena_printf(mem(), "models-%d", seed));
        python(arena_printf(mem(), "models %s --seed %d", dir, seed));
        families_dir = dir;
        expect_predictions();
        for (int i = 0; i < ARRAY_LEN(families); i++) expect_loss_alone(i);
        if (seed == FIRST_SEED) expect_conversions();
    }
}
