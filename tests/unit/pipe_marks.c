/* pipe_marks.c - models that say themselves where the chunks of a pipeline begin, by the
 * attribute `stage` of ops: trained as under one stage; and such that cannot be cut so. */
#include "../pipe_trained.h"
#include "passes/pipe/layers.h"
#include "passes/pipe/marks.h"

/* ---- texts ---- */

static const char *read_ir(Arena *mem, const char *file) {
    const char *path = arena_printf(mem, "%s/ir/%s", tests_dir(), file);
    return file_read(mem, path, 1 << 20, NULL, EXIT_DATA);
}

static const char *replaced(Arena *mem, const char *text, const char *from,
                            const char *to) {
    const char *at = strstr(text, from);
    if (!at) test_fail(__FILE__, __LINE__, "no '%s' in the text", from);
    return arena_printf(mem, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

/* Each {from, to} once, in the order of the list. */
typedef const char *const Change[2];
static const char *changed(Arena *mem, const char *file, const Change *change, int n) {
    const char *text = read_ir(mem, file), *path = path_join(mem, temp_dir(), "mine.ir");
    for (int i = 0; i < n; i++) text = replaced(mem, text, change[i][0], change[i][1]);
    EXPECT_INT(file_write_atomic(path, text, strlen(text)), 0);
    return path;
}
#define CHANGED(mem, file, ...)                                                          \
    changed(mem, file, (Change[]){__VA_ARGS__}, ARRAY_LEN(((Change[]){__VA_ARGS__})))

/* ---- trained ---- */

static void check_ways(const char *file, const How *ways, int n) {
    for (int i = 0; i < n; i++) {
        How h = ways[i];
        check_way(file, &h);
        h.planned = true;
        check_way(file, &h);
    }
}

TEST(plain_ops_on_four_chunks) {
    static const How ways[] = {{4, 1, 3, "1f1b"},
                               {2, 2, 4, "1f1b"},
                               {4, 1, 2, "zero_bubble_h1"},
                               {2, 2, 3, "zero_bubble_v"},
                               {2, 2, 2, "breadth_first"}};
    check_ways("plain_mlp.ir", ways, ARRAY_LEN(ways));
}

TEST(plain_ops_on_two_chunks) {
    static const How ways[] = {{2, 1, 4, "1f1b"}, {2, 1, 2, "gpipe"}};
    Arena *mem = arena_new();
    const char *file = CHANGED(mem, "plain_mlp.ir", {"; stage=1", ""},
                               {"; stage=2", "; stage=1"}, {"; stage=3", "; stage=1"});
    check_ways(file, ways, ARRAY_LEN(ways));
    arena_free(mem);
}

/* Loops are whole, but where ops begin fewer chunks than there are. */
TEST(loops_between_marks) {
    static const How two = {2, 1, 2, "1f1b"}, four = {4, 1, 3, "1f1b"};
    Arena *mem = arena_new();
    check_way(CHANGED(mem, "residual_mlp.ir",
                      {"bi,io->bo} : f32[4,3]", "bi,io->bo; stage=1} : f32[4,3]"}),
              &two);
    check_way(CHANGED(mem, "residual_mlp.ir",
                      {"bi,io->bo} : f32[4,3]", "bi,io->bo; stage=3} : f32[4,3]"}),
              &four);
    const Change second = {"fn=@decode;", "stage=1; fn=@decode;"};
    check_way(changed(mem, "encoder_decoder.ir", &second, 1), &two);
    check_way(changed(mem, "encoder_decoder.ir", &second, 1), &four);
    arena_free(mem);
}

/* Which layers and ops a chunk has. */
static Module *cut_text(Arena *mem, const char *path, int stages, const char *remake) {
    size_t n;
    const char *text = file_read(mem, path, 1 << 20, &n, EXIT_DATA);
    Module *m = module_parse(mem, path, text, n);
    PassOptions o = pass_options_default();
    o.stages = stages;
    o.remake = remake;
    o.chunk_layers = module_marked_layers(m, stages);
    passes_run(m, "simplify,remake,cut", &o);
    return m;
}

static int64_t layers_in(const Module *m, int chunk) {
    char name[32];
    snprintf(name, sizeof name, "chunk.%d", chunk);
    return layers_count(module_find(m, name));
}

TEST(marks_of_loops_that_are_cut_already) {
    Arena *mem = arena_new();
    const char *path =
        CHANGED(mem, "encoder_decoder.ir", {"fn=@encode;", "stage=0; fn=@encode;"},
                {"fn=@decode;", "stage=2; fn=@decode;"});
    static const int64_t want[] = {2, 1, 5};
    for (int again = 0; again < 2; again++) {
        Module *m = cut_text(mem, path, 3, again ? "1:full||2:full" : NULL);
        for (int c = 0; c < 3; c++) EXPECT_INT(layers_in(m, c), want[c]);
        EXPECT(!strstr(module_print(mem, m), "stage=0;"));
    }
    arena_free(mem);
}

/* ---- the text ---- */

TEST(marks_are_printed_and_read_again) {
    Arena *mem = arena_new();
    const char *text = read_ir(mem, "plain_mlp.ir");
    Module *m = module_parse(mem, "plain_mlp.ir", text, strlen(text));
    const char *printed = module_print(mem, m);
    EXPECT_PART(printed, "%two = fill {value=2; stage=0}");
    EXPECT_PART(printed, "{fn=@half; stage=3}");
    EXPECT_STR(module_print(mem, module_parse(mem, "again", printed, strlen(printed))),
               printed);
    PassOptions o = pass_options_default();
    passes_run(m, "simplify,cut", &o);
    EXPECT_PART(module_print(mem, m), "%h1 = dot %y0, %w1, %b1 {bi,io,o->bo; stage=1}");
    passes_run(m, "autodiff,simplify", &o);
    EXPECT(!strstr(module_print(mem, m), "stage="));
    arena_free(mem);
}

static void refused(const Change *change, int stages, const char *part) {
    Arena *mem = arena_new();
    const How h = {stages, 1, 2, "1f1b"};
    EXPECT_FAIL(made(mem, changed(mem, "plain_mlp.ir", change, 1), &h), EXIT_CONFIG,
                part);
    arena_free(mem);
}

TEST(marks_that_cannot_be_are_refused_at_their_line) {
    const Change back = {"stage=2", "stage=0"}, high = {"stage=3", "stage=4096"},
                 gone = {"stage=1", "stage=2"}, below = {"stage=0", "stage=-1"},
                 end = {"; stage=3", ""}, free = {"stage=0", "stage=1"},
                 inner = {"by=0.5", "by=0.5; stage=1"}, word = {"stage=1", "stage=one"};
    refused(&back, 4, "mine.ir:29:3: error: @net: dot: stage=0 behind stage=1: chunks");
    refused(&high, 4, "mine.ir:33:3: error: @net: call: stage=4096: chunks are numbered");
    refused(&below, 4, "mine.ir:21:3: error: @net: fill: stage=-1: chunks are numbered");
    refused(&inner, 4,
            "mine.ir:7:3: error: @half: scale: stage is said of ops of the "
            "model, at level global");
    refused(&word, 4, "mine.ir:25:");
    refused(&gone, 4, "mine.ir:26:3: error: @net: stage=2: chunk 1 has no ops");
    refused(&end, 4,
            "mine.ir:29:3: error: @net: stage=2: no op begins chunk 3; there "
            "are 4 chunks");
    refused(&free, 4,
            "mine.ir:21:3: error: @net: stage=1: there is no op before it for "
            "chunk 0");
    refused(&end, 2, "mine.ir:29:3: error: @net: stage=2: there are 2 chunks, 0 to 1");
}

/* An op that needs no stage of its own. */
TEST(a_chunk_of_constants_is_refused) {
    Arena *mem = arena_new();
    const How h = {2, 1, 2, "1f1b"};
    const char *path = CHANGED(
        mem, "plain_mlp.ir", {"(f32[]) {", "(f32[], f32[]) {"}, {"; stage=1", ""},
        {"; stage=2", ""}, {"; stage=3", ""},
        {"return %loss", "%one = fill {value=1; stage=1} : f32[]\n  return %loss, %one"});
    EXPECT_FAIL(made(mem, path, &h), EXIT_CONFIG,
                "stage=1: chunk 1 has no op but such that every chunk makes for itself");
    arena_free(mem);
}
