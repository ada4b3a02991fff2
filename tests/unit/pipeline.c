/* Tests of pipelines: the numbers of PyTorch whatever the stages, the schedule and the other
 * parts of the strategy, with all ranks of all stages simulated by the interpreter. */
#include "../simulated.h"

TEST_LABEL(RELEASED);

static const char to_local[] =
    "simplify,seed,zero,cut,autodiff,simplify,train,simplify,shard,"
    "reshard,collect,simplify,localize,simplify,keep,sink,simplify,pipeline,simplify";

typedef struct Way {
    const char *name;
    int stages, chunks;
    const char *schedule;
    int dp, tp, cp, zero, micro, beside, vocab, sp;
} Way;

static void expect_golden(const Way *w, int steps) {
    Arena *mem = arena_new();
    Strategy st = {.data = w->dp,
                   .context = w->cp,
                   .tensor = w->tp,
                   .ring = 1,
                   .stages = w->stages,
                   .chunks = w->chunks,
                   .schedule = w->schedule,
                   .sequence_parallel = w->sp,
                   .vocab_parallel = w->vocab,
                   .zero_level = w->zero,
                   .zero_axes = "dp.cp",
                   .bucket_bytes = 1 << 20,
                   .overlap = w->beside ? OVERLAP_AUTO : OVERLAP_OFF};
    Simulated s = sim_open(mem, w->name, st, w->micro, (SimChange){0}, to_local);
    const Json *at = json_need(s.trajectory, "steps")->first;
    double worst = 0;
    for (int i = 0; i < steps; i++, at = at->next) {
        double loss, norm, want = json_f64(json_need(at, "loss"));
        sim_step(&s, i, json_f64(json_need(at, "lr")), &loss, &norm);
        worst = fmax(worst, fabs(loss - want) / want);
        if (!(fabs(loss - want) <= 1e-5 * want))
            test_fail(__FILE__, __LINE__, "loss of step %d is %.9g, wanted %.9g", i + 1,
                      loss, want);
    }
    printf("  %s pp=%d x %d %s dp=%d tp=%d cp=%d zero=%d micro=%d: worst relative loss "
           "%.2g\n",
           w->name, w->stages, w->chunks, w->schedule, w->dp, w->tp, w->cp, w->zero,
           w->micro, worst);
    arena_free(mem);
}

TEST(one) {
    Way w = {"gpt2_tiny", 2, 1, "1f1b", 1, 1, 1, 0, 2, 0, 0, 0};
    const char *text = getenv("PIPE");
    char name[64], schedule[64];
    if (text) {
        EXPECT_INT(sscanf(text, "%63s %d %d %63s %d %d %d %d %d %d %d %d", name,
                          &w.stages, &w.chunks, schedule, &w.dp, &w.tp, &w.cp, &w.zero,
                          &w.micro, &w.beside, &w.vocab, &w.sp),
                   12);
        w.name = name;
        w.schedule = schedule;
    }
    expect_golden(&w, 20);
}
