/* results.c - see results.h. */
#include "frontend/train/results.h"
#include "frontend/model/sample_flow.h"
#include <math.h>

static void check_result(const Func *model, const Result *r) {
    if (r->per_sample || r->along || r->alike || r->ty.dt == DT_F32) return;
    fail(EXIT_CONFIG,
         "@%s: result %%%s is %s and no number of each sample: its first dimension must "
         "be the batch, or it must be f32, whose mean is taken",
         model->name, r->name, dtype_name[r->ty.dt]);
}

static int64_t result_bytes(const Results *r, const Result *x) {
    int64_t bytes = type_bytes(&x->ty);
    if (!x->per_sample) return bytes;
    if (r->samples > TYPE_MAX_BYTES / MAX(bytes, 1))
        fail(EXIT_MEMORY, "%%%s: the results of %lld samples have more than 2^50 bytes",
             x->name, (long long)r->samples);
    return bytes / r->batch * r->samples;
}

/* Whose the elements of result x are, which is value v. */
static void set_owner(Result *x, const SampleFlow *flow, const Value *v, int64_t batch) {
    const SampleFlow *s = &flow[v->id];
    bool sized = x->ty.rank && x->ty.dim[0] == batch;
    bool rows = s->owner == OWNER_UNKNOWN || sample_flow_in_rows(flow, v, batch);
    x->per_sample = sized && rows;
    x->along = s->owner == OWNER_SAMPLE && !x->per_sample;
    x->alike = s->owner == OWNER_NONE;
    x->mixes = s->mixes;
}

Results *results_new(Arena *mem, Func *model, int first, int64_t batch, int64_t samples) {
    Results *r = NEW(mem, Results);
    const SampleFlow *flow = sample_flow(mem, model);
    *r = (Results){.batch = batch, .samples = samples};
    r->result = NEW_ARRAY(mem, Result, (size_t)model->nret);
    for (int i = first; i < model->nret; i++) {
        Result *x = &r->result[r->n++];
        *x = (Result){.name = model->ret[i]->name, .ty = model->ret[i]->ty, .nth = i};
        set_owner(x, flow, model->ret[i], batch);
        check_result(model, x);
        x->data = arena_alloc(mem, (size_t)result_bytes(r, x));
    }
    return r;
}

bool results_known(const Results *r, int i) {
    const Result *x = &r->result[i];
    if (x->per_sample || x->alike || r->samples == r->batch) return true;
    if (x->along)
        fprintf(stderr,
                "note: %%%s is left out: it has numbers of each sample, which are no "
                "rows of a first dimension that is the batch; rearrange or reshape it\n",
                x->name);
    else if (r->samples % r->batch)
        fprintf(
            stderr,
            "note: %%%s is no result of each sample and is left out: %lld samples are "
            "no multiple of the batch of %lld\n",
            x->name, (long long)r->samples, (long long)r->batch);
    return !x->along && r->samples % r->batch == 0;
}

void results_take(Results *r, const Program *p, int64_t count) {
    check(count >= 1 && count <= r->batch && r->seen + count <= r->samples);
    for (int i = 0; i < r->n; i++) {
        const Result *x = &r->result[i];
        int64_t n = type_count(&x->ty), row = type_bytes(&x->ty) / r->batch;
        const float *from = p->ret[x->nth];
        float *to = x->data;
        double share = (double)count / (double)r->samples;
        bool whole = x->alike || (x->along && r->samples == r->batch);
        if (x->per_sample)
            memcpy((char *)to + r->seen * row, from, (size_t)(count * row));
        else if (whole)
            memcpy(to, from, (size_t)type_bytes(&x->ty));
        for (int64_t k = 0; k < n && !x->per_sample && !x->along && !whole; k++)
            to[k] += (float)(share * (double)from[k]);
    }
    r->seen += count;
}

SafeTensor results_tensor(const Results *r, int i) {
    const Result *x = &r->result[i];
    SafeTensor s = {
        .name = x->name, .dtype = (int)x->ty.dt, .rank = x->ty.rank, .data = x->data};
    memcpy(s.dim, x->ty.dim, sizeof s.dim);
    if (x->per_sample) s.dim[0] = r->samples;
    return s;
}

static void add_number(Text *t, bool is_float, const void *data, int64_t k) {
    double v = is_float ? (double)((const float *)data)[k] : 0;
    if (!is_float)
        text_add(t, "%d", (int)((const int32_t *)data)[k]);
    else if (isfinite(v))
        text_add(t, "%.9g", v);
    else
        text_add(t, "null");
}

void numbers_add_json(Text *t, bool is_float, int rank, const int64_t *dim,
                      const void *data) {
    int64_t n = sizes_product(dim, rank);
    for (int64_t k = 0; k < n; k++) {
        int64_t list = n; /* numbers of a list at each depth */
        if (k) text_add(t, ", ");
        for (int d = 0; d < rank; list /= dim[d++])
            if (k % list == 0) text_add(t, "[");
        add_number(t, is_float, data, k);
        list = n;
        for (int d = 0; d < rank; list /= dim[d++])
            if ((k + 1) % list == 0) text_add(t, "]");
    }
}
