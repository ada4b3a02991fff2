/* pieces.c (test) - what programs have in common is compiled once: products and attention of a
 * shape are objects of their own in the cache. */
#include "codegen/cache.h"
#include "codegen/codegen.h"
#include "codegen/kept.h"
#include "runs.h"
#include <dirent.h>

TEST_LABEL(SLOW);

/* What a program has besides its pieces: all its objects together, and that of the rest. */
enum { REST = 2 };

static int objects(void) {
    int n = 0;
    DIR *d = opendir(in_temp("cache"));
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t length = strlen(e->d_name);
        n += length > 2 && !strcmp(e->d_name + length - 2, ".o");
    }
    if (d) closedir(d);
    return n;
}

static const char *trained(const char *config, const char *keys, bool kept) {
    static int runs;
    const char *run = in_temp(arena_printf(mem(), "run%d", runs++));
    setenv("STATOR_CACHE", kept ? in_temp("cache") : "off", 1);
    RUN_EXPECT(0, runs_words(config, run, keys));
    EXPECT(!strstr(said(), "(from the cache)"));
    return run;
}

/* What a run adds to the cache. Products of bf16 are ours on every CPU, whatever their size. */
static int added_by(const char *config, const char *keys) {
    int before = objects();
    test_at("%s", keys);
    trained(config,
            arena_printf(mem(),
                         "--model.model_config.compute_dtype bfloat16 "
                         "--context.jit_level O0 %s",
                         keys),
            true);
    return objects() - before;
}

TEST_LABEL_OF(only_what_is_new_is_compiled, RELEASED);
TEST_LIMIT(only_what_is_new_is_compiled, 240) {
    const char *config = runs_small_config(4, 0);
    int all = added_by(config, "");
    printf("  %d objects of the first\n", all);
    EXPECT(all > 5);
    EXPECT_INT(added_by(config, "--optimizer.type SGD"), REST);
    EXPECT_INT(added_by(config, "--recompute_config.recompute True"), REST);
    EXPECT_INT(added_by(config, "--model.model_config.num_layers 3"), REST);
    EXPECT(added_by(config, "--context.cpu x86-64-v2") > 5);
    EXPECT(added_by(config, "--context.jit_level O2") > 5);
    EXPECT(added_by(config, "--model.model_config.attention_probs_dropout_prob 0.3") > 2);
}

/* With objects of another program, and with none that is kept. */
TEST_LABEL_OF(losses_are_those_without_a_cache, RELEASED);
TEST_LIMIT(losses_are_those_without_a_cache, 240) {
    const char *config = runs_small_config(4, 0),
               *keys = "--recompute_config.recompute True";
    trained(config, "", true);
    int before = objects();
    const char *run = trained(config, keys, true);
    EXPECT_INT(objects() - before, REST);
    runs_expect_same_losses(run, trained(config, keys, false), 4);
}

/* Every object is nonsense under a good checksum. */
static void spoil(void) {
    DIR *d = opendir(in_temp("cache"));
    EXPECT(d);
    for (struct dirent *e; (e = readdir(d));) {
        size_t length = strlen(e->d_name);
        if (length != CACHE_KEY_CHARS + 1) continue;
        cache_put(arena_strndup(mem(), e->d_name, length - 2), "nonsense", 8);
    }
    closedir(d);
}

/* They are compiled again, and kept: no later program meets those that do not link. */
TEST_LABEL_OF(pieces_that_do_not_link_are_made_again, RELEASED);
TEST_LIMIT(pieces_that_do_not_link_are_made_again, 240) {
    const char *config = runs_small_config(4, 0), *keys = "--optimizer.type SGD";
    trained(config, "", true);
    spoil();
    int before = objects();
    const char *run = trained(config, keys, true);
    EXPECT_INT(objects() - before, REST);
    runs_expect_same_losses(run, trained(config, keys, false), 4);
    Arena *a = arena_new();
    DIR *d = opendir(in_temp("cache"));
    int bad = 0;
    setenv("STATOR_CACHE", in_temp("cache"), 1);
    for (struct dirent *e; (e = readdir(d));) {
        size_t n, length = strlen(e->d_name);
        if (length != CACHE_KEY_CHARS + 1) continue;
        bad += cache_get(a, arena_strndup(a, e->d_name, length - 2), &n) && n == 8;
    }
    closedir(d);
    arena_free(a);
    EXPECT_INT(bad, REST); /* those of the program before */
}

/* Lowers a sum times `by`, whatever is kept; how many objects that adds to the cache. */
static int lowered(const char *by) {
    const char *text = arena_printf(mem(),
                                    "module @t mesh() level(local)\n"
                                    "func @t:model(%%x: f32[4,16]) -> (f32[4]) {\n"
                                    "  %%s = sum %%x {mk->m} : f32[4]\n"
                                    "  %%y = scale %%s {by=%s} : f32[4]\n"
                                    "  return %%y\n}\n",
                                    by);
    PassOptions po = pass_options_default();
    CompileOptions co = {.threads = 1, .lower_anew = true};
    Module *m = module_parse(mem(), "lowered.ir", text, strlen(text));
    int before = objects();
    Program *p = program_make(mem(), m, "fuse,memplan", &po, &co);
    EXPECT(!p->cached);
    program_allocate(p, NULL, 0);
    for (int i = 0; i < 64; i++) ((float *)p->arg[0])[i] = 1;
    program_run(p);
    EXPECT(*(float *)p->ret[0] == (float)(16 * atof(by)));
    program_free(p);
    return objects() - before;
}

TEST(modules_are_found_by_their_llvm_ir) {
    setenv("STATOR_CACHE", in_temp("cache"), 1);
    EXPECT_INT(lowered("2"), 1);
    EXPECT_INT(lowered("2"), 0);
    EXPECT_INT(lowered("3"), 1);
}

/* LLVM IR says it all: what another build has compiled is taken, whatever else it does. */
TEST(objects_of_llvm_ir_are_of_any_build) {
    Target *t = target_open(NULL);
    EXPECT(!strstr(kept_compiler(mem(), t), kept_build_id()));
    target_close(t);
}
