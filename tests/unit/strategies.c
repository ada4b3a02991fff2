/* Tests of strategies: the golden cases give PyTorch's losses whatever the strategy, with
 * ranks simulated by the interpreter. */
#include "../simulated.h"

static const char to_local[] = "simplify,seed,zero,autodiff,simplify,train,simplify,shard,"
                               "reshard,collect,simplify,localize,simplify";

typedef struct Combination {
    const char *name; /* golden case */
    int dp, tp, cp, ring, sp, vocab, zero, micro;
} Combination;

static Strategy strategy_of(const Combination *c) {
    bool hybrid = c->ring > 1 && c->ring < c->cp;
    return (Strategy){.data = c->dp, .context = c->cp, .tensor = c->tp, .ring = c->ring,
                      .sequence_parallel = c->sp, .vocab_parallel = c->vocab,
                      .zero_level = c->zero, .zero_axes = hybrid ? "dp.cp.up" : "dp.cp",
                      .bucket_bytes = 1 << 20};
}

static const char *describe(Arena *mem, const Combination *c) {
    return arena_printf(mem, "%s dp=%d tp=%d cp=%d ring=%d sp=%d vocab=%d zero=%d micro=%d",
                        c->name, c->dp, c->tp, c->cp, c->ring, c->sp, c->vocab, c->zero,
                        c->micro);
}

static void train(const Combination *c) {
    Arena *mem = arena_new();
    Simulated s = sim_open(mem, c->name, strategy_of(c), c->micro, to_local);
    int64_t step = 0;
    double worst = 0;
    for (const Json *at = json_need(s.trajectory, "steps")->first; at; at = at->next, step++) {
        double loss, norm, want = json_f64(json_need(at, "loss"));
        sim_step(&s, step, json_f64(json_need(at, "lr")), &loss, &norm);
        double off = fabs(loss - want) / want;
        worst = fmax(worst, off);
        if (!(off <= 1e-5))
            test_fail(__FILE__, __LINE__, "%s: loss of step %lld is %.9g, wanted %.9g",
                      describe(mem, c), (long long)step + 1, loss, want);
        double want_norm = json_f64(json_need(at, "grad_norm"));
        if (!(fabs(norm - want_norm) <= 1e-4 * want_norm))
            test_fail(__FILE__, __LINE__, "%s: norm of step %lld is %.9g, wanted %.9g",
                      describe(mem, c), (long long)step + 1, norm, want_norm);
        if (getenv("SIM_STEPS") && step + 1 >= atoi(getenv("SIM_STEPS"))) break;
    }
    printf("%s: worst loss %.2g\n", describe(mem, c), worst);
    arena_free(mem);
}

TEST_LIMIT(one, 300) {
    Combination c = {"gpt2_tiny", 2, 1, 1, 1, 0, 0, 0, 1};
    const char *text = getenv("SIM");
    if (text) {
        char name[64];
        EXPECT(sscanf(text, "%63s %d %d %d %d %d %d %d %d", name, &c.dp, &c.tp, &c.cp, &c.ring,
                      &c.sp, &c.vocab, &c.zero, &c.micro) == 9);
        c.name = name;
        train(&c);
        return;
    }
    train(&c);
}
