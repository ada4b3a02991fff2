/* evaluator.c - see evaluator.h. */
#include "frontend/train/evaluator.h"
#include "frontend/model/sample_flow.h"
#include "ir/placement.h"

/* ---- results for each sample ---- */

/* Values that result 0 of f is made of, by id; it numbers f. */
static bool *made_of(Arena *mem, Func *f) {
    func_number(f);
    bool *made = NEW_ARRAY(mem, bool, (size_t)f->nvalues);
    made[f->ret[0]->id] = true;
    for (const Op *op = f->last; op; op = op->prev)
        if (op_makes_marked(op, made)) op_mark_operands(op, made);
    return made;
}

/* Are its elements those of the argument, under another shape or in another order? */
static bool has_elements_of(const Value *v, const Value *arg) {
    while (v->def && v->def->nin == 1 && op_has(v->def, F_MOVE | F_TYPELESS)) {
        const Value *from = v->def->in[0];
        if (type_count(&from->ty) != type_count(&v->ty)) return false;
        v = from;
    }
    return v == arg;
}

/* The one cross entropy of the labels that the loss is made of, which has the losses of each
 * sample after one another. */
static const Op *find_loss(const Train *t, Func *f, const SampleFlow *flow) {
    const bool *made = made_of(t->mem, f);
    int labels = func_arg_role(f, ARG_labels), n = 0;
    const Op *found = NULL;
    for (const Op *op = f->first; op && labels >= 0; op = op->next)
        if (op->kind == OP_xent && made[op->out[0]->id] &&
            has_elements_of(op->in[1], f->arg[labels]))
            found = op, n++;
    if (n == 1 && sample_flow_in_rows(flow, found->out[0], t->job.batch)) return found;
    fail(EXIT_CONFIG,
         "%s: the loss of @%s is not made of one cross entropy (op xent) of its argument "
         "of role labels, a row or more of each sample in the order of the samples, so "
         "there is no loss of a token: train it with a valid part "
         "(train_dataset.data_loader.split), whose mean loss is told",
         t->job.module.path, f->name);
}

/* A short last batch is filled up with other samples. */
static void check_mixing(const Train *t, const Op *mixes, int64_t samples) {
    int64_t over = samples % t->job.batch;
    if (!mixes || !over) return;
    fail_op(
        mixes,
        "by this op a sample's loss depends on others of its batch, or may, and the last "
        "batch of %lld has %lld of %lld samples, so others would have to fill it up: "
        "%s--samples %lld takes whole batches",
        (long long)t->job.batch, (long long)over, (long long)samples,
        samples == over ? "give more data; " : "",
        (long long)MAX(samples - over, t->job.batch));
}

/* "abc->a" of rank 3, "abc->ab" when one is left out. */
static const char *sum_rule(Builder *b, int rank, int kept) {
    static const char letters[] = "abcdefgh";
    check(rank < (int)sizeof letters);
    return bfmt(b, "%.*s->%.*s", rank, letters, kept, letters);
}

/* Of rows, those of each sample after one another. */
static Value *sample_sum(Builder *b, const char *name, Value *rows, int64_t samples) {
    Type by_sample = TYPE(DT_F32, samples, type_count(&rows->ty) / samples);
    if (rows->ty.dim[0] != samples)
        rows = build_as(b, OP_reshape, NULL, by_sample, rows, NULL);
    int rank = rows->ty.rank;
    if (rank > 1) rows = build1(b, OP_sum, sum_rule(b, rank, 1), rows, NULL);
    return build_named(b, name, rows);
}

/* 1 where the label has the largest logit: its distance from that, however small, times a
 * large number is 1 or more, or it is 0. */
static Value *correct_rows(Builder *b, Value *logits, Value *labels, Type rows) {
    int rank = logits->ty.rank;
    const char *rule = sum_rule(b, rank, rank - 1);
    Value *most = build1(b, OP_max, rule, logits, NULL);
    Value *own = build1(b, OP_pick, NULL, logits, labels, NULL);
    own = build1(b, OP_sum, rule, own, NULL);
    Value *off = build1(b, OP_sub, NULL, most, own, NULL);
    off = build1(b, OP_scale, "by=1e30", off, NULL);
    off = build1(b, OP_atmost, "by=1", off, NULL);
    off = build1(b, OP_scale, "by=-1", off, NULL);
    Value *right = build1(b, OP_offset, "by=1", off, NULL);
    Value *counts = build_as(b, OP_valid, NULL, rows, labels, NULL);
    return build1(b, OP_mul, NULL, right, counts, NULL);
}

static void add_sample_results(const Train *t, Module *m, int64_t samples) {
    Func *f = model_entry(m);
    const SampleFlow *flow = sample_flow(t->mem, f);
    const Op *xent = find_loss(t, f, flow);
    check_mixing(t, flow[xent->out[0]->id].mixes, samples);
    Builder b = build_at_end(f);
    Value *rows = xent->out[0];
    Value *correct = correct_rows(&b, xent->in[0], xent->in[1], rows->ty);
    func_ret(f, sample_sum(&b, "sample_loss", rows, t->job.batch), -1);
    func_ret(f, sample_sum(&b, "sample_correct", correct, t->job.batch), -1);
    module_verify(m, NULL, NULL);
}

static const float *result_from_end(const Evaluator *e, int n) {
    check(e->samples);
    return e->program->ret[e->program->entry->nret - n];
}

float evaluator_loss(const Evaluator *e) {
    return *(const float *)e->program->ret[0];
}

const float *evaluator_sample_loss(const Evaluator *e) {
    return result_from_end(e, 2);
}

const float *evaluator_sample_correct(const Evaluator *e) {
    return result_from_end(e, 1);
}

/* ---- the program ---- */

void evaluator_plan(Train *t, Evaluator *e, int64_t samples) {
    Module *m = job_build(&t->job, MODEL_TRAIN, t->job.batch);
    *e = (Evaluator){.samples = samples > 0};
    e->weighted = func_arg_role(model_entry(m), ARG_counted) >= 0;
    if (samples) add_sample_results(t, m, samples);
    PassOptions o = pass_options_default();
    o.tile_bytes = t->job.cfg->context_tile_size;
    /* validation takes its loss in f32, whatever training computes in */
    if (samples) o.narrow = strategy_pass_options(t->job.cfg).narrow;
    o.micro_batches = t->job.micro; /* of the schedule that training has */
    ranks_apply(t, m, &o);
    if (o.schedule) o.schedule = schedule_forward(t->mem, o.schedule);
    if (zero_gathers_ahead(&o)) o.zero_level = 3; /* as training leaves the parameters */
    if (samples) ranks_agree_module(t, m, o.schedule);
    CompileOptions co = strategy_compile_options(t->job.cfg);
    co.memory_limit = config_memory_limit(t->job.cfg);
    if (samples)
        co.memory_hint = "a smaller batch (--runner_config.batch_size) or sequence "
                         "(--model.model_config.seq_length), more ranks that share it "
                         "(stator launch -n N eval, --parallel_config.model_parallel N)";
    const char *passes = arena_printf(t->mem, "evaluate,%s", forward_passes);
    e->program = program_make(t->mem, m, passes, &o, &co);
}

void evaluator_start(const Train *t, Evaluator *e) {
    e->feed = feed_make(t, e->program);
    e->counted = program_slot(e->program, ARG_counted);
}

/* Labels of the run from row `row` on that count, which its loss is the mean of. */
static double run_weight(const Train *t, const Evaluator *e, const DataBatch *b,
                         int64_t row) {
    if (!e->weighted) return 1;
    int64_t n = counted_labels(&t->job, b, row, t->job.batch);
    if (e->counted) *e->counted = (float)MAX(n, 1);
    return (double)n;
}

void evaluator_run(const Train *t, const Evaluator *e, const DataBatch *b, bool there,
                   int64_t rows, EvaluatorTake *take, void *context) {
    for (int64_t row = 0; row < rows; row += t->job.batch) {
        double weight = run_weight(t, e, b, row);
        train_feed(e->feed, there ? b : NULL, row);
        train_run(e->program);
        take(context, e, row, weight);
    }
}
