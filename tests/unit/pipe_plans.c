/* Tests of the plans of pipelines whose chunks have many layers: the halves of backward are
 * as good as with few. */
#include "../plans.h"

static Plan plan_staged(Arena *mem, const char *schedule, int layers, const char *more) {
    bool v = !strcmp(schedule, "zero_bubble_v");
    return plan_of(mem, plan_gpt2,
                   arena_printf(mem,
                                "model.model_config.num_layers %d micro 8 "
                                "parallel_config.pipeline_stage 4 "
                                "parallel_config.pp_interleave_num %d "
                                "parallel.pipeline_config.pipeline_scheduler %s %s",
                                layers, v ? 2 : 1, schedule, more));
}

/* Gradients of weights are in tasks of their own whatever the number of layers, so stages
 * idle for little more than half of what they do without. */
TEST_LABEL_OF(halves_of_many_layers, RELEASED);
TEST(halves_of_many_layers) {
    static const char *const schedules[] = {"zero_bubble_h1", "zero_bubble_v"};
    for (int i = 0; i < ARRAY_LEN(schedules); i++)
        for (int layers = 8; layers <= 32; layers *= 2) {
            Arena *mem = arena_new();
            const Plan whole = plan_staged(mem, "1f1b", layers, "");
            const Plan half = plan_staged(mem, schedules[i], layers, "");
            double a = plan_bubble(whole.pipe), b = plan_bubble(half.pipe);
            printf("  %d layers: bubble %.1f %%, %s %.1f %%\n", layers, 100 * a,
                   schedules[i], 100 * b);
            EXPECT(b < 0.65 * a);
            for (int c = 1; c < half.pipe->schedule->chunks; c++)
                EXPECT(half.pipe->flops[c][TASK_WEIGHTS] >
                       0.5 * half.pipe->flops[c][TASK_INPUTS]);
            arena_free(mem);
        }
}

/* Sums over replicas are finished once a step, not in every micro-batch. */
TEST_LABEL_OF(halves_send_no_more_over_dp, RELEASED);
TEST(halves_send_no_more_over_dp) {
    static const char *const schedules[] = {"zero_bubble_h1", "zero_bubble_v"};
    static const char *const levels[] = {"", " zero level1", " zero level2"};
    for (int i = 0; i < ARRAY_LEN(schedules); i++)
        for (int l = 0; l < ARRAY_LEN(levels); l++) {
            Arena *mem = arena_new();
            const char *more = arena_printf(mem, "dp 2%s", levels[l]);
            const Plan a = plan_staged(mem, "1f1b", 24, more);
            const Plan b = plan_staged(mem, schedules[i], 24, more);
            for (int k = 0; k < 4; k++) {
                const PlanTraffic *t = &a.pipe->stage[k].traffic[0];
                EXPECT((t->micro_operations > 0) == (l == 2));
                EXPECT(t->micro_operations * 8 <= t->operations);
                EXPECT_INT(a.pipe->stage[k].ntraffic, 1);
                EXPECT_INT(b.pipe->stage[k].ntraffic, 1);
                double x = (double)a.pipe->stage[k].traffic[0].sent_bytes;
                double y = (double)b.pipe->stage[k].traffic[0].sent_bytes;
                if (!i) EXPECT(y <= 1.01 * x);
                EXPECT(y <= 1.5 * x); /* the chunks of a V are others */
            }
            arena_free(mem);
        }
}

static int64_t bytes_of_activations(const char *how, const char *way) {
    Arena *mem = arena_new();
    const char *more =
        arena_printf(mem, "%s model.model_config.vocab_size 4096%s", how, way);
    const Plan p = plan_staged(mem, "zero_bubble_v", 8, more);
    int64_t bytes = p.memory.class_bytes[MEM_ACTIVATIONS];
    arena_free(mem);
    return bytes;
}

/* Gradients of a table that two chunks of a stage read are added up as they are made, those of
 * each chunk in a buffer of their own. */
TEST_LABEL_OF(more_micro_batches_take_no_more_memory, RELEASED);
TEST(more_micro_batches_take_no_more_memory) {
    static const char *const ways[] = {"", " dp 2 zero level1", " dp 2 zero level2"};
    static const char *const cases[] = {"micro 12", "micro 32",
                                        "micro 32 M.tie_word_embeddings False"};
    const int64_t table_bytes = 4 * 4096 * PLAN_C;
    for (int w = 0; w < ARRAY_LEN(ways); w++) {
        int64_t bytes[3];
        for (int i = 0; i < 3; i++) bytes[i] = bytes_of_activations(cases[i], ways[w]);
        printf("  activations%s: %lld and %lld bytes, untied %lld\n", ways[w],
               (long long)bytes[0], (long long)bytes[1], (long long)bytes[2]);
        /* what is left are their tokens */
        EXPECT(bytes[1] - bytes[0] < 20 * 4 * 4 * PLAN_B * PLAN_T);
        EXPECT(bytes[1] - bytes[2] < 1.5 * (double)table_bytes);
    }
}

TEST(a_schedule_is_beside_the_file_that_names_it) {
    static const char rows[] = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
    Arena *mem = arena_new();
    const char *yaml =
        arena_printf(mem,
                     "%sparallel: {pipeline_config: {pipeline_scheduler: mine.csv}}\n"
                     "parallel_config: {pipeline_stage: 2, micro_batch_num: 2}\n",
                     plan_gpt2);
    const char *path = path_join(mem, temp_dir(), "mine.csv");
    EXPECT_FAIL(plan_of(mem, yaml, ""), EXIT_CONFIG, "mine.csv");
    EXPECT_INT(file_write_atomic(path, rows, strlen(rows)), 0);
    EXPECT_STR(plan_of(mem, yaml, "").pipe->schedule->name, path);
    arena_free(mem);
}

TEST(an_unknown_schedule_is_told_where_it_stands) {
    Arena *mem = arena_new();
    EXPECT_FAIL(plan_of(mem, plan_gpt2,
                        "parallel_config.pipeline_stage 2 "
                        "parallel.pipeline_config.pipeline_scheduler zb"),
                EXIT_CONFIG, "command line:2:47: error: unknown schedule 'zb'");
    arena_free(mem);
}

TEST(an_unknown_cpu_is_told_where_it_stands) {
    Arena *mem = arena_new();
    EXPECT_FAIL(plan_of(mem, plan_gpt2, "context.cpu pentium"), EXIT_CONFIG,
                "command line:1:15: error: unknown CPU 'pentium'");
    arena_free(mem);
}

TEST(a_schedule_that_does_not_fit_is_told_where_it_is_asked_for) {
    Arena *mem = arena_new();
    EXPECT_FAIL(plan_of(mem, plan_gpt2,
                        "parallel_config.pipeline_stage 2 "
                        "parallel.pipeline_config.pipeline_scheduler zero_bubble_v"),
                EXIT_CONFIG,
                "command line:2:47: error: schedule zero_bubble_v takes two");
    EXPECT_FAIL(plan_of(mem, plan_gpt2,
                        "parallel_config.pipeline_stage 2 "
                        "parallel_config.pp_interleave_num 2 "
                        "parallel_config.micro_batch_num 3"),
                EXIT_CONFIG, "command line:2:37: error: 1f1b with 2 chunks a stage");
    EXPECT_FAIL(plan_of(mem, plan_gpt2,
                        "parallel_config.pipeline_stage 2 "
                        "parallel.pipeline_config.pipeline_scheduler no.csv"),
                EXIT_CONFIG, "command line:2:47: error: cannot open");
    arena_free(mem);
}

/* A parameter that two stages read counts once, as do the layers of a loop that is cut. */
TEST(parameters_of_an_own_model_are_those_of_all_stages) {
    static const struct {
        const char *file;
        int parameters;
    } own[] = {{"residual_mlp.ir", 8 * 6 * 7 + 6 * 3},
               {"encoder_decoder.ir", 11 * 8 + 3 * (8 + 8 + 2 * 8 * 12) + 5 * 4 * 8 * 8}};
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(own); i++)
        for (int stages = 1; stages <= 4; stages *= 2) {
            const char *yaml = arena_printf(
                mem,
                "model: {file: %s/ir/%s}\n"
                "parallel_config: {pipeline_stage: %d, micro_batch_num: 4}\n"
                "train_dataset: {data_loader: {type: Tensors, dataset_dir: x.npz}}\n",
                tests_dir(), own[i].file, stages);
            EXPECT_INT(plan_of(mem, yaml, "").parameters, own[i].parameters);
        }
    arena_free(mem);
}
