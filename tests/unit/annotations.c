/* Placements that the user writes (parallel.shard) beside those of a strategy: which one
 * counts, what the plan says of it, and what is said when they contradict each other. */
#include "../plans.h"

static const char *with_entries(Arena *mem, const char *list) {
    return arena_printf(mem, "%sparallel: {shard: [%s]}\n", plan_gpt2, list);
}

/* The note that begins with `parallel.shard`, behind its place. */
static const char *note_of(const Plan *p) {
    for (int i = 0; i < p->job->cfg->n_notes; i++) {
        const char *at = strstr(p->job->cfg->notes[i], ": parallel.shard '");
        if (at) return at + 2;
    }
    return "";
}

static const char *placement_of(const Plan *p, const char *name) {
    for (int i = 0; i < p->nparam; i++)
        if (!strcmp(p->param[i].name, name)) return p->param[i].placement;
    return "";
}

/* The message, without the folder of the configuration. */
static const char *refusal(Arena *mem, const char *list, const char *keys) {
    Catch c;
    if (CATCH(c)) {
        plan_of(mem, with_entries(mem, list), keys);
        test_fail(__FILE__, __LINE__, "[%s] with %s is not refused", list, keys);
    }
    EXPECT_INT(c.code, EXIT_CONFIG);
    Text said = text_new(mem);
    const char *folder = path_join(mem, temp_dir(), "");
    size_t n = strlen(folder);
    for (const char *p = c.message; *p;) {
        size_t step = strncmp(p, folder, n) ? 1 : n;
        if (step == 1) text_add_bytes(&said, p, 1);
        p += step;
    }
    return said.s;
}

TEST(an_entry_replaces_what_the_strategy_says) {
    Arena *mem = arena_new();
    const char *list = "\"h.mlp.c_fc.weight=-,-\", \"h.mlp.c_fc.bias=-\"";
    Plan p = plan_of(mem, with_entries(mem, list), "tp 2");
    EXPECT_STR(note_of(&p),
               "parallel.shard 'h.mlp.c_fc.weight=-,-' replaces the placement "
               "that parallel_config.model_parallel gives 1 value");
    EXPECT_STR(placement_of(&p, "h.mlp.c_fc.weight"), "f32[4,256,1024]");
    EXPECT_STR(placement_of(&p, "h.mlp.c_proj.weight"), "f32[4,1024:tp,256]");
    arena_free(mem);
}

/* The statistics that a norm keeps have its name and one dimension less. */
TEST(a_norm_can_be_placed) {
    Arena *mem = arena_new();
    Plan whole = plan_of(mem, plan_gpt2, "dp 2");
    Plan placed = plan_of(mem, with_entries(mem, "\"layer/norm=dp,-,-\""), "dp 2");
    EXPECT_INT(placed.traffic[0].operations, whole.traffic[0].operations);
    arena_free(mem);
}

TEST(an_entry_that_says_the_same_replaces_nothing) {
    Arena *mem = arena_new();
    Plan p = plan_of(mem, with_entries(mem, "\"h.mlp.c_fc.weight=-,tp\""), "tp 2");
    EXPECT_STR(note_of(&p), "");
    arena_free(mem);
}

TEST(an_axis_of_one_rank_is_said) {
    Arena *mem = arena_new();
    Plan p = plan_of(mem, with_entries(mem, "\"h.mlp.c_fc.weight=-,tp\""), "dp 2");
    EXPECT_STR(note_of(&p), "parallel.shard 'h.mlp.c_fc.weight=-,tp': tp has no effect "
                            "there: it has one rank");
    arena_free(mem);
}

TEST(two_entries_for_one_parameter_are_refused) {
    Arena *mem = arena_new();
    const char *list = "\"h.mlp.c_fc.*=-,dp\", \"h.mlp.c_fc.weight=-,tp\"";
    EXPECT_STR(
        refusal(mem, list, "dp 2 tp 2"),
        "plan.yaml:6:19: error: parallel.shard, entry 2: "
        "'h.mlp.c_fc.weight=-,tp' places %h.mlp.c_fc.weight of @model in another way "
        "than parallel.shard, entry 1: 'h.mlp.c_fc.*=-,dp'; write one "
        "entry for it, or patterns that do not meet\n"
        "    parallel: {shard: [\"h.mlp.c_fc.*=-,dp\", \"h.mlp.c_fc.weight=-,tp\"]}\n"
        "                      ^");
    arena_free(mem);
}

/* The bias of the same columns still lies as the strategy has it. */
TEST(an_entry_against_the_strategy_is_a_conflict_where_they_meet) {
    Arena *mem = arena_new();
    EXPECT_STR(
        refusal(mem, "\"h.mlp.c_fc.weight=-,dp\"", "dp 2 tp 2"),
        "plan.yaml:6:19: error: @layer.fwd: add meets two placements of dimension f, "
        "over dp "
        "and over tp: %h.mlp.c_fc.weight is f32[4,256,1024:dp] (plan.yaml:6: "
        "parallel.shard, entry 1 'h.mlp.c_fc.weight=-,dp') and %h.mlp.c_fc.bias is "
        "f32[4,1024:tp] (parallel_config.model_parallel). Bringing %h.mlp.c_fc.bias "
        "from f32[1024:tp] to f32[1024:dp] would move 2048 bytes a rank and run; "
        "write the same axes there in both, or leave it whole in one\n"
        "    parallel: {shard: [\"h.mlp.c_fc.weight=-,dp\"]}\n"
        "                      ^");
    EXPECT_PART(refusal(mem, "\"h.mlp.c_fc.weight=-,zz\"", "dp 2 tp 2"),
                "plan.yaml:6:19: error: parallel.shard, entry 1: '-,zz': 'zz' is not '-' "
                "nor made of the axes");
    EXPECT_PART(refusal(mem, "\"layer/x=-\"", "dp 2 tp 2"),
                "plan.yaml:6:19: error: parallel.shard, entry 1: '-' has 1 entry, but %x "
                "of @layer has 3 dimensions");
    EXPECT_PART(refusal(mem, "\"layer/norm.2=-,-,tp\"", "dp 2 tp 2"),
                "nothing is called 'layer/norm.2'; did you mean layer/norm");
    EXPECT_PART(refusal(mem, "\"wte.weight\"", "dp 2"),
                "plan.yaml:6:19: error: parallel.shard, entry 1: 'wte.weight' has no "
                "placement\n");
    arena_free(mem);
}

/* A parameter that is stored flat is met as what is made of it. */
TEST(a_conflict_beside_an_optimizer_shard_names_who_asked) {
    Arena *mem = arena_new();
    for (int level = 1; level <= 3; level++) {
        const char *keys =
            arena_printf(mem, "dp 2 tp 2 cp 2 zero level%d threshold 0", level);
        const char *said = refusal(mem, "\"h.mlp.c_fc.weight=-,cp\"", keys);
        EXPECT_PART(said, "plan.yaml:6:19: error: ");
        EXPECT_PART(said,
                    "(plan.yaml:6: parallel.shard, entry 1 'h.mlp.c_fc.weight=-,cp')");
        EXPECT_PART(said, "(parallel_config.model_parallel)");
        EXPECT(!strstr(said, "in the module"));
    }
    arena_free(mem);
}

TEST(the_stream_into_a_loop_and_within_it_is_a_conflict) {
    Arena *mem = arena_new();
    const char *said = refusal(mem, "\"layer/x=tp,-,-\"", "dp 2 tp 2");
    EXPECT_PART(said, "@model.grad: call meets two placements of one dimension, over dp "
                      "and over tp: %x is f32[8:dp,256,256] "
                      "(parallel_config.data_parallel) and %x of @layer.fwd is "
                      "f32[8:tp,256,256] (plan.yaml:6: parallel.shard, entry 1 "
                      "'layer/x=tp,-,-')");
    arena_free(mem);
}
