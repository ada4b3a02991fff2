/* config_help.c - what is said of a key: by stator help, and where it has no effect. */
#include "configs.h"
#include "frontend/config/config_state.h"

TEST_LABEL(QUICK);

static char *help_on(const char *word) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    EXPECT(config_help(f, word));
    fclose(f);
    return text;
}

/* By its last words, its path, its flag, and other names; with all that is said of it. */
TEST(help_on_a_key) {
    char *one = help_on("pp_interleave_num");
    EXPECT(!strcmp(one, help_on("parallel_config.pp_interleave_num")));
    EXPECT(!strcmp(one, help_on("--parallel_config.pp_interleave_num")));
    EXPECT_PART(one, "--parallel_config.pp_interleave_num  (a whole number, ");
    EXPECT(!strstr(one, "micro_batch_interleave_num"));
    EXPECT_PART(help_on("num_hidden_layers"), "--model.model_config.num_layers  (");
    EXPECT_PART(help_on("num_layers"),
                "also called model.model_config.num_hidden_layers");
    EXPECT_PART(help_on("type"), "--optimizer.type");
    EXPECT_PART(help_on("type"), "--lr_schedule.type");
    EXPECT_PART(help_on("use_parallel"), "no effect: stator launch starts the ranks");
    EXPECT_PART(help_on("pipeline_scheduler"), "has no effect when ");
}

TEST(help_on_a_section) {
    EXPECT_PART(help_on("optimizer"), "--optimizer.eps  (");
    EXPECT_PART(help_on("model"), "--model.file  (");
    char *inner = help_on("model.model_config");
    EXPECT_PART(inner, "--model.model_config.num_layers  (");
    EXPECT(!strstr(inner, "--model.file"));
    EXPECT_PART(help_on("run"), "--seed  (");
}

/* Six lines at most say why; more keys are one line, and what tells something keeps its own. */
TEST(many_keys_without_effect_are_one_line) {
    static const char six[] =
        "use_parallel: True\nauto_trans_ckpt: True\nauto_tune: True\n"
        "metric: {type: PerplexityMetric}\n"
        "trainer: {type: x}\nprofile_memory: True\n";
    Config *cfg = parse(six);
    EXPECT_INT(cfg->n_notes, 6);
    EXPECT(has_note(cfg, "t.yaml:3: auto_tune has no effect: the data pipeline needs"));
    cfg = parse(
        arena_printf(arena_new(), "%sfilepath_prefix: x\ncontext: {mode: 1}\n", six));
    EXPECT_INT(cfg->n_notes, 2);
    EXPECT(has_note(cfg, "7 keys have no effect, stator help KEY says why: use_parallel, "
                         "auto_trans_ckpt, auto_tune, filepath_prefix, "));
    EXPECT(has_note(cfg, "t.yaml:8: context.mode is 0, not 1"));
}

/* Keys that a search set are no keys of the user's: they are neither told nor counted. */
TEST(keys_that_a_search_set_are_not_told) {
    static const char *const key[] = {"auto_tune",       "use_parallel", "metric",
                                      "profile_memory",  "trainer",      "eval_dataset",
                                      "auto_trans_ckpt", "processor"};
    Arena *a = arena_new();
    char *word[2 * ARRAY_LEN(key) + 1];
    int n = 0;
    for (int i = 0; i < ARRAY_LEN(key); i++) {
        word[n++] = config_flag_from(a, (SourcePos){.file = config_search_file});
        word[n++] = arena_printf(a, "--%s=True", key[i]);
    }
    EXPECT_INT(flags(n, word)->n_notes, 0);
    word[n++] = "--filepath_prefix=x";
    Config *cfg = flags(n, word);
    EXPECT_INT(cfg->n_notes, 1);
    EXPECT(has_note(cfg, "filepath_prefix has no effect: the data pipeline needs"));
}
