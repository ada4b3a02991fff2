/* touches.c - see touches.h. */
#include "passes/estimate/touches.h"

/* What functions do, by Func.nth. */
typedef struct Whole {
    Done run;  /* once, with what they call */
    Call loop; /* the longest that calls it; times 0: none does */
    DType products;
} Whole;

/* What has been done when values were touched last, by their ids, between two calls of functions. */
typedef struct Touches {
    const SizeScale *scale;
    const Func *f;
    const Whole *whole;
    Done *at, now;
    int *between,
        calls;    /* by value: as many calls were before; all until now. 0: not touched */
    bool *sliced; /* by value: it is in a slice of what a loop has whole */
} Touches;

static void add_done(Done *to, Done w, double times) {
    to->bytes += times * w.bytes;
    to->flops += times * w.flops;
}

static bool is_compute(const OpSize *s) {
    return s->kind <= SIZE_ELEMENTS;
}

static Whole whole_of(const OpSizes *s, const Whole *callee) {
    Whole w = {.products = DT_F32};
    double most = 0;
    for (int i = 0; i < s->n; i++) {
        const OpSize *size = &s->size[i];
        if (size->kind == SIZE_CALL)
            add_done(&w.run, callee[size->callee].run, size->times);
        if (!is_compute(size)) continue;
        add_done(&w.run, (Done){.bytes = size->n.bytes, .flops = size->n.flops}, 1);
        if (size->n.flops > most) w.products = size->type;
        most = MAX(most, size->n.flops);
    }
    return w;
}

static void note_loops(const Func *f, Whole *whole) {
    for (const Op *op = f->first; op; op = op->next) {
        if (!op_calls_ops(op) || !op_is_loop(op)) continue;
        Call c = call_of(op);
        Call *longest = &whole[c.f->nth].loop;
        if (c.times > longest->times) *longest = c;
    }
}

static bool is_known(const Touches *t, const Value *v) {
    return t->between[v->id] == t->calls;
}

static void note_touch(Touches *t, const Value *v) {
    t->at[v->id] = t->now;
    t->between[v->id] = t->calls;
}

static Touches touches_new(Arena *mem, const Func *f, const SizeScale *scale,
                           const Whole *whole) {
    Touches t = {.scale = scale, .f = f, .whole = whole};
    const Call *loop = &whole[f->nth].loop;
    t.at = NEW_ARRAY(mem, Done, (size_t)f->nvalues + 1);
    t.between = NEW_ARRAY(mem, int, (size_t)f->nvalues + 1);
    t.calls = 1;
    t.sliced = NEW_ARRAY(mem, bool, (size_t)f->nvalues + 1);
    for (int i = 0; loop->loop && i < f->narg; i++)
        t.sliced[f->arg[i]->id] = call_slices(loop, i);
    for (int r = loop->carry; loop->loop && r < f->nret; r++)
        t.sliced[value_viewed(f->ret[r])->id] = true;
    return t;
}

static double bytes_of(const Touches *t, const Value *v) {
    return (double)scaled_bytes(t->scale, &v->ty);
}

/* What is done from one run to the next, or from loop to loop: the mean of values by their bytes. */
typedef struct Mean {
    double bytes, sliced;
} Mean;

static void add_value(Mean *m, const Touches *t, const Value *v) {
    double bytes = bytes_of(t, v);
    m->bytes += bytes;
    if (t->sliced[v->id]) m->sliced += bytes;
}

static Done since_run(const Touches *t, const Mean *m) {
    const Whole *w = &t->whole[t->f->nth];
    Done since = {0};
    double sliced = m->bytes > 0 ? m->sliced / m->bytes : 0;
    add_done(&since, w->run, 1 - sliced + sliced * (double)MAX(w->loop.times, 1));
    return since;
}

/* Ops go over their operands one after the other, so in the middle of the op. */
static void touch(Touches *t, const Op *op, OpNumbers *n) {
    Mean reads = {0}, writes = {0};
    const Done w = {n->bytes, n->flops};
    add_done(&t->now, w, 0.5);
    n->near = 0;
    n->since_near = (Done){0};
    for (int i = 0; i < op->nin; i++) {
        const Value *v = value_viewed(op->in[i]);
        Done at = t->at[v->id];
        if (!is_known(t, v)) add_value(&reads, t, v);
        if (!is_known(t, v) || !(at.bytes < t->now.bytes)) continue;
        n->near += bytes_of(t, op->in[i]);
        n->since_near.bytes = MAX(n->since_near.bytes, t->now.bytes - at.bytes);
        n->since_near.flops = MAX(n->since_near.flops, t->now.flops - at.flops);
        note_touch(t, v);
    }
    for (int i = 0; i < op->nin; i++) note_touch(t, value_viewed(op->in[i]));
    for (int i = 0; i < op->nout; i++) {
        add_value(&writes, t, op->out[i]);
        note_touch(t, op->out[i]);
    }
    n->near = MIN(n->near, n->bytes - n->written);
    n->since_read = since_run(t, &reads);
    n->since_written = since_run(t, &writes);
    add_done(&t->now, w, 0.5);
}

static void note_func(Arena *mem, const Func *f, const SizeScale *scale,
                      const Whole *whole, OpSizes *sizes, const int *row) {
    Touches t = touches_new(mem, f, scale, whole);
    for (const Op *op = f->first; op; op = op->next) {
        if (row[op->id] < 0) continue;
        OpSize *s = &sizes->size[row[op->id]];
        s->products = whole[f->nth].products;
        if (s->kind == SIZE_CALL)
            t.calls++;
        else if (is_compute(s))
            touch(&t, op, &s->n);
    }
}

void touches_note(Arena *mem, Func **order, const SizeScale *scale, FuncSizes *sizes) {
    Whole *whole = NEW_ARRAY(mem, Whole, (size_t)sizes->n + 1);
    for (int i = 0; i < sizes->n; i++) whole[i] = whole_of(&sizes->func[i], whole);
    for (int i = 0; i < sizes->n; i++)
        if (sizes->row[i]) note_loops(order[i], whole);
    for (int i = 0; i < sizes->n; i++)
        if (sizes->row[i] && sizes->func[i].n)
            note_func(mem, order[i], scale, whole, &sizes->func[i], sizes->row[i]);
}
