/* Tests of what a plan says would lower its seconds: what is not set yet, and helps on its machine. */
#include "../plans.h"
#include "frontend/config/machine_file.h"

/* What stands beside one cost of a plan. */
static const char *said_of(const char *cost, const char *machine, const char *keys) {
    Arena *mem = arena_new();
    Plan p = plan_of(mem, plan_gpt2, keys);
    const char *path = arena_printf(mem, "%s/../machines/%s.yaml", tests_dir(), machine);
    Text t = text_new(mem);
    plan_set_machine(mem, &p, machine_read(mem, path), 1);
    plan_print_costs(&p, &t);
    const char *at = strstr(t.s, arena_printf(mem, "\n    %s ", cost));
    if (!at) test_fail(__FILE__, __LINE__, "no %s under %s:\n%s", cost, keys, t.s);
    at = strchr(at, '%') + 1;
    return arena_strndup(mem, at, strcspn(at, "\n"));
}

static void expect(const char *cost, const char *machine, const char *keys,
                   const char *want) {
    EXPECT_STR(said_of(cost, machine, keys), want);
}

TEST(products_are_faster_in_bf16_where_units_are) {
    expect("products", "a100", "dp 2", "  compute_dtype bfloat16; more ranks share them");
    expect("products", "a100", "dp 2 type bfloat16", "  more ranks share them");
    expect("products", "a100", "dp 2 type bfloat16 again True",
           "  fewer layers recomputed; more ranks share them");
    expect("attention", "a100", "type bfloat16 M.sliding_window 9",
           "  context_parallel shares it");
}

TEST(what_is_shared_already_is_not_advised) {
    expect("update", "a100", "dp 2", "  optimizer_shard shares it over the replicas");
    expect("update", "a100", "dp 2 zero level1", "");
    expect("kernels", "a100", "tp 2",
           "  sequence_parallel shares norms and dropout; more ranks share them");
    expect("kernels", "a100", "tp 2 sp True", "  more ranks share them");
    expect("copies", "a100", "dp 2 type bfloat16",
           "  more micro-batches a step: rounded weights are made once");
}

TEST(messages_that_could_stay_on_a_host) {
    static const char level3[] = "dp 16 micro 2 parallel.overlap thread zero level3";
    expect("messages", "a100", "tp 2 parallel.overlap off",
           "  fewer ranks in model_parallel, on one host; parallel.overlap thread");
    expect("messages", "a100", level3,
           "  optimizer_level level1; optimizer_weight_shard_size 8, the replicas on a "
           "host");
    Arena *mem = arena_new();
    expect("messages", "a100", arena_printf(mem, "%s shard 8", level3),
           "  optimizer_level level1");
    expect("messages", "a100", "dp 8 zero level3", "");
}

TEST(stages_wait_less_under_another_schedule) {
    expect("waiting", "a100", "pp 2 micro 4",
           "  more micro-batches (micro_batch_num); pp_interleave_num; a zero_bubble "
           "schedule; num_layer_list");
    expect("waiting", "a100", "pp 2 micro 4 schedule zero_bubble_v chunks 2",
           "  more micro-batches (micro_batch_num); num_layer_list");
}
