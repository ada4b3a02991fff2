/* sample_flow.c - see sample_flow.h. What is known of a value only grows, from sweep to sweep over
 * the functions, until a sweep changes nothing. */
#include "frontend/model/sample_flow.h"
#include "frontend/model/job.h"

typedef struct Sweep {
    int64_t batch;
    SampleFlow **of; /* by number of the function, by id of the value */
    bool changed;
} Sweep;

static SampleFlow *of_value(const Sweep *s, const Func *f, const Value *v) {
    return &s->of[f->nth][v->id];
}

/* Two that have different samples in one element: the outer order is kept. */
static void join(Sweep *s, SampleFlow *into, SampleFlow from, const Op *op) {
    SampleFlow was = *into;
    bool both = was.owner == OWNER_SAMPLE && from.owner == OWNER_SAMPLE;
    bool more = from.owner > was.owner || (both && from.stride > was.stride);
    if (both && from.stride != was.stride && !into->mixes) into->mixes = op;
    if (more) into->owner = from.owner, into->stride = from.stride;
    if (!into->mixes) into->mixes = from.mixes;
    s->changed |= more || into->mixes != was.mixes;
}

/* ---- through an op with dimensions ---- */

/* Dimensions of a type, those of one element aside, which tell the sample together. */
typedef struct Span {
    int n;
    int dim[MAX_RANK]; /* the last one first */
    int64_t inner;     /* elements of the last one that are of one sample */
} Span;

/* False where a sample ends within a row of a dimension. */
static bool span_of(const Type *ty, int64_t stride, int64_t batch, Span *s) {
    int64_t step = 1, end = stride * batch;
    *s = (Span){.inner = 1};
    for (int d = ty->rank - 1; d >= 0; d--) {
        int64_t next = step * ty->dim[d], low = MAX(step, stride), high = MIN(next, end);
        if (low < high) {
            if (low % step || high % low || next % high) return false;
            if (!s->n) s->inner = low / step;
            s->dim[s->n++] = d;
        }
        step = next;
    }
    return true;
}

/* Elements of result `r` between the samples that operand `i` has along the span; 0: it has not
 * these dimensions, in this order and next to each other. */
static int64_t stride_of(const Op *op, const Dims *d, int i, int r, const Span *s) {
    const Type *ty = &op->out[r]->ty;
    int term = d->nin + r, found = 0;
    int64_t step = 1, stride = 0;
    for (int k = ty->rank - 1; k >= 0 && found < s->n; step *= ty->dim[k--]) {
        if (ty->dim[k] == 1) continue;
        if (d->term[term][k] == d->term[i][s->dim[found]]) {
            if (!found++) stride = step * s->inner;
        } else if (found) {
            return 0;
        }
    }
    return found == s->n ? stride : 0;
}

static bool has_any(const Dims *d, int i, int term, const Span *s) {
    uint32_t mask = dims_mask(d, term);
    for (int k = 0; k < s->n; k++)
        if (mask >> d->term[i][s->dim[k]] & 1) return true;
    return false;
}

static bool works_along(const Dims *d, int i, const Span *s) {
    for (int k = 0; k < s->n; k++)
        if (d->whole[d->term[i][s->dim[k]]]) return true;
    return false;
}

/* What operand i, of which s is known, gives to result r. */
static SampleFlow through(const Op *op, const Dims *d, int i, int r, SampleFlow s,
                          int64_t batch) {
    enum {
        IN_PLACES = F_MOVE | F_TYPELESS | F_LOOKUP
    }; /* it takes some of the elements */
    SampleFlow lost = {.owner = OWNER_UNKNOWN, .mixes = s.mixes ? s.mixes : op};
    Span span;
    if (s.owner == OWNER_BATCH) s.mixes = lost.mixes;
    if (s.owner != OWNER_SAMPLE || op_has(op, F_VIEW)) return s;
    if (batch == 1) s.stride = type_count(&op->out[r]->ty);
    if (batch == 1) return s;
    if (!d || !span_of(&op->in[i]->ty, s.stride, batch, &span)) return lost;
    int64_t stride = stride_of(op, d, i, r, &span);
    if (!stride && !op_has(op, IN_PLACES) && !has_any(d, i, d->nin + r, &span))
        lost.owner = OWNER_BATCH;
    if (!stride) return lost;
    s.stride = stride;
    if (!s.mixes && works_along(d, i, &span)) s.mixes = op;
    return s;
}

static void sweep_op(Sweep *s, const Func *f, const Op *op) {
    Dims dims;
    bool has = op_rule(op)            ? op_dims(op, &dims)
               : optab[op->kind].dims ? op_placement_dims(op, &dims)
                                      : false;
    for (int r = 0; r < op->nout; r++)
        for (int i = 0; i < op->nin; i++) {
            SampleFlow of = *of_value(s, f, op->in[i]);
            join(s, of_value(s, f, op->out[r]),
                 through(op, has ? &dims : NULL, i, r, of, s->batch), op);
        }
}

/* ---- through functions ---- */

/* A run of a loop sees a slice of what is followed where each slice has all samples. */
static SampleFlow slice_of(const Call *c, int i, SampleFlow s, int64_t batch) {
    if (s.owner != OWNER_SAMPLE || !call_slices(c, i)) return s;
    int64_t slice = type_count(&c->op->in[i]->ty) / c->times;
    if (batch == 1) s.stride = slice;
    if (slice % (s.stride * batch) == 0) return s;
    return (SampleFlow){.owner = OWNER_UNKNOWN, .mixes = s.mixes ? s.mixes : c->op};
}

static void sweep_call(Sweep *s, const Func *f, const Op *op) {
    Call c = call_of(op);
    bool reads = false; /* whatever other callers give the function */
    for (int i = 0; i < op->nin; i++) {
        SampleFlow of = *of_value(s, f, op->in[i]);
        reads |= of.owner != OWNER_NONE;
        join(s, of_value(s, c.f, c.f->arg[i]), slice_of(&c, i, of, s->batch), op);
    }
    for (int r = 0; r < op->nout && reads; r++) {
        SampleFlow of = *of_value(s, c.f, c.f->ret[r]), all = of;
        if (s->batch == 1) all.stride = type_count(&op->out[r]->ty);
        join(s, of_value(s, f, op->out[r]), all, op);
        if (r < c.carry) join(s, of_value(s, c.f, c.f->arg[r]), of, op);
    }
}

/* ---- the model ---- */

static void sweep_func(Sweep *s, const Func *f) {
    for (const Op *op = f->first; op; op = op->next)
        if (op_is_call(op))
            sweep_call(s, f, op);
        else
            sweep_op(s, f, op);
}

static void begin(Sweep *s, const Func *model) {
    for (int i = 0; i < model->narg; i++) {
        const Type *ty = &model->arg[i]->ty;
        if (arg_role(model, i) == ARG_counted)
            of_value(s, model, model->arg[i])->owner = OWNER_BATCH;
        if (!job_is_sample(model, i)) continue;
        s->batch = ty->dim[0];
        *of_value(s, model, model->arg[i]) =
            (SampleFlow){OWNER_SAMPLE, type_count(ty) / ty->dim[0], NULL};
    }
}

const SampleFlow *sample_flow(Arena *mem, Func *model) {
    Func **order = module_order(mem, model->mod);
    int n = order_length(order);
    Sweep s = {.of = NEW_ARRAY(mem, SampleFlow *, (size_t)n), .changed = true};
    for (int k = 0; k < n; k++) {
        func_number(order[k]);
        s.of[k] = NEW_ARRAY(mem, SampleFlow, (size_t)order[k]->nvalues + 1);
    }
    begin(&s, model);
    while (s.changed) {
        s.changed = false;
        for (int k = n - 1; k >= 0; k--) sweep_func(&s, order[k]);
    }
    return s.of[model->nth];
}

bool sample_flow_in_rows(const SampleFlow *s, const Value *v, int64_t batch) {
    return s[v->id].owner == OWNER_SAMPLE &&
           s[v->id].stride * batch == type_count(&v->ty);
}
