/* The commands take a checkpoint that ranks saved in parts like one of whole tensors. */
#define _GNU_SOURCE
#include "command.h"
#include "runtime/store/ckpt_files.h"
#include "runtime/store/safetensors.h"

enum { RANKS = 4 };

/* dp=2, tp=2; the last dimension that 2 divides is split over tp, the rest is flattened
 * and cut over dp, or dp has copies of it. */
static Layout *cut(Arena *mem, const Mesh *mesh, const SafeTensor *t, bool copies) {
    Layout *l = NEW(mem, Layout);
    Type ty = type_make((DType)t->dtype, t->rank, t->dim);
    int d = t->rank - 1;
    while (d >= 0 && t->dim[d] % 2) d--;
    if (d >= 0) ty.split[d] = 2;
    EXPECT(!layout_make(mem, mesh, &ty, copies ? NULL : "dp", !copies && t->rank > 2, l));
    return l;
}

static char *part_of(Arena *mem, const Layout *l, int rank, const SafeTensor *t) {
    size_t bytes = (size_t)layout_local_count(l) * dtype_bytes[t->dtype];
    char *part = arena_alloc(mem, bytes);
    layout_scatter(l, rank, t->data, part);
    return part;
}

/* The state of a checkpoint, and so many bytes more. */
static const char *larger_state(Arena *mem, const Manifest *m, size_t more) {
    char *blank = arena_alloc(mem, more);
    Text t = text_new(mem);
    text_add(&t, "{\"more\": \"");
    text_add_bytes(&t, memset(blank, ' ', more), more);
    text_add(&t, "\", ");
    text_add_bytes(&t, m->state_json + 1, strlen(m->state_json + 1));
    return t.s;
}

/* Saves the model of the checkpoint in `from` again, in `to`, as four ranks would. */
static void save_in_parts(Arena *mem, const char *from, const char *to, bool copies,
                          size_t more_state) {
    static Mesh mesh = {.naxes = 2, .axis = {{"dp", 2}, {"tp", 2}}};
    CkptTensor *t[RANKS];
    const char *folder = path_join(mem, from, "step_00000000");
    Manifest m;
    char why[256];
    EXPECT(!manifest_read(mem, folder, &m));
    Safetensors *s = safetensors_open(mem, folder, EXIT_CHECKPOINT);
    for (int r = 0; r < RANKS; r++) t[r] = NEW_ARRAY(mem, CkptTensor, (size_t)s->n);
    for (int i = 0; i < s->n; i++) {
        const SafeTensor *whole = &s->t[i];
        const Layout *l = cut(mem, &mesh, whole, copies);
        for (int r = 0; r < RANKS; r++) {
            t[r][i] = (CkptTensor){.name = whole->name,
                                   .dtype = (DType)whole->dtype,
                                   .rank = whole->rank,
                                   .data = part_of(mem, l, r, whole),
                                   .file = CKPT_MODEL,
                                   .layout = l};
            memcpy(t[r][i].dim, whole->dim, sizeof whole->dim);
        }
    }
    CkptSave what[RANKS];
    const char *state = larger_state(mem, &m, more_state);
    for (int r = 0; r < RANKS; r++) what[r] = (CkptSave){0, t[r], s->n, state};
    int error = ckpt_save_ranks(to, what, RANKS, why, sizeof why);
    if (error) test_fail(__FILE__, __LINE__, "%s", why);
    EXPECT(!file_exists(path_join(mem, to, "step_00000000/model.safetensors")));
}

static void same_file(Arena *mem, const char *a, const char *b, const char *name) {
    size_t n, m;
    char *x = file_read(mem, path_join(mem, a, name), 1 << 24, &n, EXIT_DATA);
    char *y = file_read(mem, path_join(mem, b, name), 1 << 24, &m, EXIT_DATA);
    EXPECT(n == m && !memcmp(x, y, n));
}

static void check_model(const char *name, bool copies, size_t more_state) {
    Arena *mem = arena_new();
    char *whole = path_join(mem, temp_dir(), arena_printf(mem, "%s_whole", name));
    char *parts = path_join(mem, temp_dir(), arena_printf(mem, "%s_parts", name));
    char *hf = path_join(mem, temp_dir(), arena_printf(mem, "%s_hf", name));
    char *again = path_join(mem, temp_dir(), arena_printf(mem, "%s_again", name));
    CONVERT("--to", "stator", golden(name), whole);
    worked();
    save_in_parts(mem, whole, parts, copies, more_state);
    CONVERT("--to", "hf", whole, hf);
    worked();
    CONVERT("--to", "hf", parts, again);
    worked();
    same_file(mem, hf, again, "model.safetensors");
    same_file(mem, hf, again, "config.json");
    char *words[] = {"--greedy", "--prompt_tokens", "7,8,9", "--max_new_tokens", "9"};
    PREDICT(whole, words[0], words[1], words[2], words[3], words[4]);
    worked();
    char *want = arena_strdup(mem, printed);
    PREDICT(parts, words[0], words[1], words[2], words[3], words[4]);
    worked();
    EXPECT_STR(printed, want);
    run(cmd_inspect, parts, (char *)NULL);
    worked();
    run(cmd_inspect, path_join(mem, parts, "step_00000000"), (char *)NULL);
    worked();
    EXPECT(strstr(printed, "layout.json") && strstr(printed, "model.rank_00003"));
    arena_free(mem);
}

TEST(commands_on_parts) {
    check_model("gpt2_tiny", false, 0);
    check_model("llama_tied_mqa", false, 0);
}

TEST(commands_on_shared_copies) {
    check_model("gpt2_tiny", true, 0);
}

/* What can be saved can be read. */
TEST(commands_on_a_large_state) {
    check_model("gpt2_tiny", true, CKPT_STATE_MAX_BYTES / 2);
}
