/* predict_narrow.c - predict with compute_dtype of 16 bits: matrices are held in that type, and
 * so is what a folder stores in it; the numbers are those of holding them in f32 and rounding
 * where products read them. Wherever the weights come from, on any ranks. */
#include "family_generator.h"
#include "ranks.h"

TEST_LABEL(SLOW);
TEST_LABEL(QUICK);
TEST_LABEL(RELEASED);

enum { ROWS = 40 };

static int family_named(const char *name) {
    int i = 0;
    while (strcmp(families[i].name, name)) EXPECT(++i < ARRAY_LEN(families));
    return i;
}

typedef struct Held {
    const float *logits;
    int64_t weights_bytes;
} Held;

static Held held(int family, const char *from, const char *compute) {
    FamilyText t = family_text(mem(), family);
    Generator *g = family_generator(mem(), from, compute);
    Held h = {family_logits(mem(), g, &t, ROWS), g->owner->plan.class_bytes[MEM_WEIGHTS]};
    generator_free(g);
    return h;
}

/* The logits differ from those of f32, but not by much. */
static void expect_rounded(const char *name, const float *narrow, const float *wide,
                           double most) {
    double off = 0, norm = 0;
    for (int i = 0; i < ROWS * FAMILY_VOCAB; i++) {
        off += pow((double)narrow[i] - (double)wide[i], 2);
        norm += pow((double)wide[i], 2);
    }
    double distance = sqrt(off / norm);
    if (!(distance > 0 && distance <= most))
        test_fail(__FILE__, __LINE__, "%s: %.3g away from f32", name, distance);
}

static const struct {
    const char *family, *compute;
    double most; /* distance from f32; a bit of bf16 is 2^-8, of f16 2^-11 */
    bool stored; /* all of the folder is in that type: only norms stay f32 */
} cases[] = {{"yarn", "bfloat16", 0.1, true},
             {"qwen2", "float16", 0.01, true},
             {"gpt2", "bfloat16", 0.1, false},
             {"neox", "bfloat16", 0.1, false}};

/* A checkpoint has f32, so its tables are held so, with the numbers of the folder. */
TEST_LIMIT(folder_and_checkpoint, 120) {
    for (int k = 0; k < (test_long() ? ARRAY_LEN(cases) : 2); k++) {
        int i = family_named(cases[k].family);
        const char *folder = family_folder(mem(), i);
        const char *own = in_temp(arena_printf(mem(), "own-%d", k));
        RUN_EXPECT(0, arena_printf(mem(), "convert --to stator %s %s", folder, own));
        Held wide = held(i, folder, "float32");
        Held narrow = held(i, folder, cases[k].compute);
        Held other = held(i, own, cases[k].compute);
        expect_rounded(cases[k].family, narrow.logits, wide.logits, cases[k].most);
        EXPECT(!memcmp(narrow.logits, other.logits, ROWS * FAMILY_VOCAB * sizeof(float)));
        EXPECT(narrow.weights_bytes <= other.weights_bytes);
        EXPECT(other.weights_bytes < wide.weights_bytes);
        if (cases[k].stored)
            EXPECT((double)narrow.weights_bytes < 0.6 * (double)wide.weights_bytes);
    }
}

/* The JSON object of a text. */
static const Json *text_by(const char *launch, const char *from, const char *more) {
    const char *out = in_temp("stdout.txt"), *err = in_temp("stderr.txt");
    int status = system(arena_printf(
        mem(),
        "'%s' %spredict %s --greedy --json --threads 1 --max_new_tokens 60 "
        "--prompt_tokens 1,2,3,4,5 --model.model_config.compute_dtype bfloat16 %s "
        "> %s 2> %s",
        stator_program(), launch, from, more, out, err));
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        test_fail(__FILE__, __LINE__, "%s %s:\n%s", launch, more,
                  file_read(mem(), err, 1 << 20, NULL, EXIT_DATA));
    return json_read(mem(), out, 1 << 20, EXIT_DATA);
}

/* The first n tokens are the same, and their log-probabilities within `off`. */
static void expect_text(const Json *got, const Json *want, int n, double off,
                        const char *how) {
    const Json *a = json_need(got, "tokens")->first;
    const Json *b = json_need(want, "tokens")->first;
    const Json *p = json_need(got, "logprobs")->first;
    const Json *q = json_need(want, "logprobs")->first;
    for (int i = 0; i < n; i++, a = a->next, b = b->next, p = p->next, q = q->next)
        if (json_f64(a) != json_f64(b) || !(fabs(json_f64(p) - json_f64(q)) <= off))
            test_fail(__FILE__, __LINE__, "%s: token %d is %g (%g), wanted %g (%g)", how,
                      i, json_f64(a), json_f64(p), json_f64(b), json_f64(q));
}

/* Weights that rank 0 sends, and parts of a checkpoint that each rank reads. Stages and split
 * weights keep the bits; with sums over ranks a rounding to bf16 may come out otherwise. */
TEST_LABEL_OF(on_ranks, RANKS);
TEST_LIMIT(on_ranks, 240) {
    static const struct {
        const char *words;
        int same;
        double off;
    } strategies[] = {
        {"--pp 2 --dp 2", 60, 0},
        {"--dp 4 " ZERO_LEVEL(3), 60, 0},
        {"--cp 2 --dp 2 --context.threads 2", 60, 0},
        {"--dp 2 --tp 2 --parallel_config.vocab_emb_dp False " ZERO_LEVEL(3), 1, 0.05}};
    if (!mpi_available()) test_skip("there is no mpirun");
    mpi_environment();
    const char *own = in_temp("own");
    const char *folder = family_folder(mem(), family_named("yarn"));
    RUN_EXPECT(0, arena_printf(mem(), "convert --to stator %s %s", folder, own));
    const Json *want = text_by("", folder, "");
    for (int k = 0; k < ARRAY_LEN(strategies); k++) {
        const char *how = strategies[k].words;
        for (int of_checkpoint = 0; of_checkpoint < 2; of_checkpoint++) {
            if (of_checkpoint == k % 2 && !test_long()) continue;
            const Json *got = text_by("launch -n 4 ", of_checkpoint ? own : folder, how);
            expect_text(got, want, strategies[k].same, strategies[k].off, how);
        }
    }
}

/* A tied table of f32 is held twice where a rank has both of its readers: whole, split by rows, or
 * as a part of an optimizer shard, which is not. A checkpoint has it in f32. */
TEST_LABEL_OF(tied_on_ranks, RANKS);
TEST_LIMIT(tied_on_ranks, 120) {
    static const char *const strategies[] = {
        "--dp 2", "--tp 2 --parallel_config.vocab_emb_dp False", "--dp 2 " ZERO_LEVEL(3)};
    if (!mpi_available()) test_skip("there is no mpirun");
    mpi_environment();
    const char *own = in_temp("own");
    const char *folder = family_folder(mem(), family_named("gpt2"));
    RUN_EXPECT(0, arena_printf(mem(), "convert --to stator %s %s", folder, own));
    const Json *want = text_by("", own, "");
    for (int k = 0; k < ARRAY_LEN(strategies); k++)
        expect_text(text_by("launch -n 2 ", own, strategies[k]), want, k == 1 ? 1 : 60,
                    k == 1 ? 0.05 : 0, strategies[k]);
}

/* A tied table is on two stages, which hold it in one type. */
TEST_LABEL_OF(tied_on_stages, RANKS);
TEST_LIMIT(tied_on_stages, 120) {
    if (!mpi_available()) test_skip("there is no mpirun");
    mpi_environment();
    const char *folder = family_folder(mem(), family_named("gpt2"));
    const Json *want = text_by("", folder, "");
    expect_text(text_by("launch -n 2 ", folder, "--pp 2"), want, 60, 0, "pp 2");
}
