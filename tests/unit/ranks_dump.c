/* Tests of the weights of a module of the user (model.file) that several ranks trained, as whole
 * tensors. */
#include "example_data.h"
#include "ranks.h"
#include "runtime/store/safetensors.h"

TEST_LABEL(RANKS);

/* The parts that two ranks wrote of a tensor, which is cut in its first dimension. */
static void expect_parts(const char *run, const SafeTensor *whole) {
    size_t half = whole->bytes / 2;
    for (int r = 0; r < 2; r++) {
        const char *name =
            arena_printf(mem(), "ckpt/step_00000004/model.rank_%05d.safetensors", r);
        const char *path = path_join(mem(), run, name);
        Safetensors *part = safetensors_open(mem(), path, EXIT_CHECKPOINT);
        const SafeTensor *t = safetensors_need(part, "w2");
        EXPECT(t->bytes == half);
        EXPECT(!memcmp(t->data, (const char *)whole->data + (size_t)r * half, half));
        safetensors_close(part);
    }
}

TEST_LIMIT(whole_weights_of_a_module, 120) {
    const char *run = in_temp("run"), *whole = in_temp("whole"), *out = in_temp("d");
    const char *data = make_classes();
    ranks_run(2, arena_printf(mem(), "%s/../examples/classifier/train.yaml", tests_dir()),
              run,
              arena_printf(mem(),
                           "--dataset_dir %s --train_steps 4 --threads 1 "
                           "--lr_schedule.warmup_steps 0 "
                           "--parallel_config.model_parallel 2 --parallel.shard "
                           "[\"w1=-,tp\",\"b1=tp\",\"w2=tp,-\"]",
                           data));
    const char *config = path_join(mem(), run, "config.yaml");
    const char *dump = arena_printf(mem(), "--resume %s --dump %s", run, out);
    ranks_end(ranks_start(2, config, in_temp("two"), dump), EXIT_CONFIG, "dump");
    SAID_EXPECT("stator train CONFIG.yaml --resume RUN --output_dir OTHER --dump FILE");
    ranks_run(1, config, whole,
              arena_printf(mem(), "%s --parallel_config.model_parallel 1", dump));
    SAID_EXPECT("all 4 steps are done already");
    Safetensors *saved = safetensors_open(
        mem(), path_join(mem(), whole, "ckpt/step_00000004/model.safetensors"),
        EXIT_CHECKPOINT);
    Safetensors *dumped = safetensors_open(mem(), out, EXIT_CHECKPOINT);
    const SafeTensor *w = safetensors_need(saved, "w2");
    const SafeTensor *final = safetensors_need(dumped, "final.w2");
    EXPECT(w->bytes == final->bytes && !memcmp(w->data, final->data, w->bytes));
    expect_parts(run, w);
    safetensors_close(saved);
    safetensors_close(dumped);
    RUN_EXPECT(EXIT_CHECKPOINT,
               arena_printf(mem(), "convert --to hf %s %s", run, in_temp("hf")));
    SAID_EXPECT("this needs a model of model.model_config");
}
