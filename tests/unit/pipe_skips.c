/* pipe_skips.c - pipelines whose chunks read values of several chunks before them, on ranks that
 * have these in parts: what is to be done between the chunks, as adding up the gradients that two
 * of them give, is done in time, and gives the numbers of one stage. */
#include "../test.h"
#include "ir/sample.h"
#include "passes/passes.h"
#include "passes/pipe/op_tasks.h"

static const char to_local[] =
    "simplify,seed,zero,cut,autodiff,simplify,halve,train,simplify,shard,reshard,collect,"
    "simplify,localize,simplify,keep,sink,simplify,pipeline,meet,simplify";
static const char to_memory[] =
    "bucket,expand,simplify,epilogue,arrange,fuse,overlap,memplan";

typedef struct Way {
    int stages, chunks, micro, zero;
    const char *schedule;
    bool planned;
} Way;

typedef struct Ran {
    Arena *mem;
    Module *m;
    int stages;
    Tensor ****arg, ****ret; /* by stage, rank and number */
} Ran;

static Module *made(Arena *mem, const Way *w) {
    size_t n;
    const char *path = arena_printf(mem, "%s/ir/mesh/skips.ir", tests_dir());
    const char *text = file_read(mem, path, 1 << 20, &n, EXIT_DATA);
    char *at = strstr(text, "dp=1");
    if (w->zero) at[3] = '2';
    Module *m = module_parse(mem, path, text, n);
    PassOptions o = pass_options_default();
    o.micro_batches = w->micro;
    o.clip_norm = 0.1;
    o.stages = w->stages;
    o.stage_chunks = w->chunks;
    o.schedule_name = w->schedule;
    o.zero_level = w->zero;
    o.zero_axes = "dp";
    passes_run(m, to_local, &o);
    if (w->planned) passes_run(m, to_memory, &o);
    return m;
}

static Ran ran(Arena *mem, const Way *w) {
    Ran r = {.mem = mem, .m = made(mem, w), .stages = w->stages};
    r.arg = NEW_ARRAY(mem, Tensor ***, (size_t)r.stages);
    r.ret = NEW_ARRAY(mem, Tensor ***, (size_t)r.stages);
    for (int k = 0; k < r.stages; k++) {
        r.arg[k] = sample_parts(mem, module_stage(r.m, k));
        r.ret[k] = sample_results(mem, module_stage(r.m, k));
    }
    const char *stuck = interp_run_stages(mem, r.m, r.arg, r.ret);
    if (stuck) test_fail(__FILE__, __LINE__, "%s", stuck);
    return r;
}

/* The result of one stage that a result is: of the same number, or over the same argument. */
static int result_like(const Func *one, const Func *f, int i) {
    if (f->alias[i] < 0) return i;
    for (int k = 0; k < one->nret; k++)
        if (one->alias[k] >= 0 &&
            !strcmp(one->arg[one->alias[k]]->name, f->arg[f->alias[i]]->name))
            return k;
    test_fail(__FILE__, __LINE__, "result %d of @%s is none of @%s", i, f->name,
              one->name);
}

static double difference(const Ran *r, const Ran *one) {
    const Func *whole = module_stage(one->m, 0);
    double worst = 0;
    for (int k = 0; k < r->stages; k++) {
        const Func *f = module_stage(r->m, k);
        for (int i = 0; i < f->nret; i++) {
            const Tensor *got = sample_together(r->mem, f, r->ret[k], i);
            const Tensor *want =
                sample_together(r->mem, whole, one->ret[0], result_like(whole, f, i));
            EXPECT(got && want && type_count(&got->ty) == type_count(&want->ty));
            for (int64_t e = 0; e < type_count(&got->ty); e++)
                worst = fmax(worst, fabs(tensor_get(got, e) - tensor_get(want, e)));
        }
    }
    return worst;
}

/* The task behind the one op of a stage that sends ("to") or receives ("from") a message. */
static Task task_behind(Arena *mem, const Module *m, int stage, const char *key,
                        int64_t other, int64_t number) {
    Func *f = module_stage(m, stage);
    func_number(f);
    const Task *of = op_tasks(mem, f);
    for (const Op *op = f->first; op; op = op->next)
        if (op_has(op, F_EFFECT) && op_int(op, key, -1) == other &&
            op_int(op, "message", -1) == number)
            return of[op->id];
    test_fail(__FILE__, __LINE__, "no message");
}

/* What a task of the first micro-batch reads is not left until its sender has done all tasks. */
static void expect_in_time(Arena *mem, const Module *m) {
    for (int k = 0; k < m->stages; k++)
        for (const Op *op = module_stage(m, k)->first; op; op = op->next) {
            if (!op_has(op, F_EFFECT) || op->nin) continue;
            int64_t from = op_int(op, "from", 0), number = op_int(op, "message", 0);
            Task reads = task_behind(mem, m, k, "from", from, number);
            if (!reads.kind || reads.micro) continue;
            EXPECT(task_behind(mem, m, (int)from, "to", k, number).kind);
        }
}

static void check_ways(int stages, int chunks, const char *schedule, int zero) {
    for (int micro = 1; micro <= 6; micro++) {
        if (chunks > 1 && micro % stages && !strcmp(schedule, "1f1b")) continue;
        for (int planned = 0; planned < 2; planned++) {
            Arena *mem = arena_new();
            const Way alone = {1, 1, micro, zero, "1f1b", planned},
                      way = {stages, chunks, micro, zero, schedule, planned};
            test_at("stages=%d chunks=%d micro=%d zero=%d %s planned=%d", stages, chunks,
                    micro, zero, schedule, planned);
            Ran one = ran(mem, &alone), all = ran(mem, &way);
            EXPECT(difference(&all, &one) <= 1e-6);
            if (micro > 1) expect_in_time(mem, all.m);
            arena_free(mem);
        }
    }
}

static void check_schedules(int zero) {
    check_ways(4, 1, "1f1b", zero);
    check_ways(4, 1, "gpipe", zero);
    check_ways(4, 1, "zero_bubble_h1", zero);
    check_ways(2, 2, "1f1b", zero);
    check_ways(2, 2, "breadth_first", zero);
    check_ways(2, 2, "zero_bubble_v", zero);
}

TEST(values_that_several_chunks_read) {
    check_schedules(0);
}

TEST_LABEL_OF(values_that_several_chunks_read_with_optimizer_shards, RELEASED);
TEST(values_that_several_chunks_read_with_optimizer_shards) {
    check_schedules(2);
}
