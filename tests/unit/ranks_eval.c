/* ranks_eval.c - stator eval gives one loss under any strategy. */
#include "evaluated.h"
#include "example_data.h"
#include <math.h>

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

#define CUT "--parallel_config."

static const char *const strategies[] = {
    CUT "model_parallel 2 " CUT "sequence_parallel True " CUT "vocab_emb_dp False " CUT
        "data_parallel 2",
    CUT "context_parallel 4",
    CUT "context_parallel 2 " CUT "context_parallel_algo megatron_cp_algo " CUT
        "data_parallel 2",
    CUT "pipeline_stage 2 " CUT "micro_batch_num 4 " CUT "data_parallel 2",
    CUT "pipeline_stage 4 " CUT "micro_batch_num 4",
    ZERO_LEVEL(1),
    ZERO_LEVEL(3),
};

static Evaluated on_ranks(const char *words) {
    RUN_EXPECT(0, arena_printf(mem(), "launch -n 4 eval %s --json", words));
    return evaluated_read();
}

TEST(any_strategy) {
    const char *run = in_temp("trained"), *text = evaluated_text("part.txt", 1003);
    if (!mpi_available()) test_skip("there is no mpirun");
    driven_prepare = mpi_environment;
    RUN_EXPECT(0, arena_printf(mem(),
                               "train %s --output_dir %s --context.threads 1 "
                               "--model.model_config.num_layers 4 "
                               "--model.model_config.num_heads 4",
                               runs_small_config(12, 6), run));
    const char *words = arena_printf(mem(), "%s --data %s", run, text);
    Evaluated want = evaluated(words);
    double worst = 0;
    for (int k = 0; k < ARRAY_LEN(strategies); k++) {
        for (int batch = 2; batch <= (test_long() ? 5 : 2); batch += 3) {
            const char *more = arena_printf(mem(), "%s --runner_config.batch_size %d %s",
                                            words, batch, strategies[k]);
            Evaluated e = on_ranks(more);
            double off = fabs(e.loss - want.loss) / want.loss;
            worst = fmax(worst, off);
            if (e.tokens != want.tokens || e.bytes != want.bytes || !(off <= 1e-5) ||
                fabs(e.accuracy - want.accuracy) > 1e-12)
                test_fail(__FILE__, __LINE__, "%s: %.9g of %lld, wanted %.9g of %lld",
                          more, e.loss, (long long)e.tokens, want.loss,
                          (long long)want.tokens);
        }
    }
    printf("  worst relative loss %.2g\n", worst);
}

TEST(endings) {
    const char *config = runs_small_config(6, 6), *run = in_temp("trained");
    const char *file = in_temp("endings.jsonl");
    if (!mpi_available()) test_skip("there is no mpirun");
    driven_prepare = mpi_environment;
    RUN_EXPECT(0, arena_printf(mem(), "train %s --output_dir %s --context.threads 1",
                               config, run));
    write_text(file,
               "{\"ctx\": \"one and\", \"endings\": [\"one\", \"zz\"], \"label\": 0}\n"
               "{\"ctx\": \"two\", \"endings\": [\"q\", \"and two\", \"\\u00e9\"], "
               "\"label\": 1}\n");
    const char *words = arena_printf(mem(), "%s --endings %s", run, file);
    Evaluated want = evaluated(words);
    Evaluated e = on_ranks(arena_printf(mem(),
                                        "%s " CUT "context_parallel 2 " CUT
                                        "context_parallel_algo megatron_cp_algo " CUT
                                        "model_parallel 2",
                                        words));
    EXPECT(e.tokens == want.tokens && e.acc == want.acc && e.acc_norm == want.acc_norm);
    EXPECT_NEAR(e.loss, want.loss, 1e-5 * want.loss);
}

/* Of a module of its own, in batches of 32. The valid part is 96 of the 500 samples, three of
 * them, so validation takes it whole; all are no multiple. */
TEST(module_of_its_own) {
    const char *dir = make_classes(), *run = in_temp("own");
    if (!mpi_available()) test_skip("there is no mpirun");
    driven_prepare = mpi_environment;
    RUN_EXPECT(0,
               arena_printf(mem(),
                            "train %s/../examples/classifier/train.yaml --dataset_dir %s "
                            "--output_dir %s --train_dataset.data_loader.split 404,96 "
                            "--runner_config.max_steps 40 --context.threads 1",
                            tests_dir(), dir, run));
    const char *points =
        file_read(mem(), path_join(mem(), run, "valid.jsonl"), 1 << 20, NULL, EXIT_DATA);
    double loss = 0;
    EXPECT_INT(sscanf(points, "{\"step\": 40, \"valid_loss\": %lf", &loss), 1);
    Evaluated valid = evaluated(run);
    EXPECT(valid.samples == 96 && valid.tokens == 96);
    EXPECT_NEAR(valid.loss, loss, 1e-6 * loss);
    const char *words = arena_printf(mem(), "%s --split all", run);
    Evaluated all = evaluated(words), ranks = on_ranks(words);
    EXPECT(all.tokens == SAMPLES && ranks.tokens == SAMPLES && all.accuracy > 0.3);
    EXPECT_NEAR(ranks.loss, all.loss, 1e-5 * all.loss);
    EXPECT_NEAR(ranks.accuracy, all.accuracy, 1e-12);
}
