/* probe_seconds.c - what the pieces of a program take: see probe.h. */
#include "frontend/search/probe.h"

static double along(double one, double two, double b) {
    return one + (b - 1) * (two - one);
}

static OpSize size_of(Arena *mem, const OpSize *one, const OpSize *two, double b) {
    OpSize s = *one;
    _Static_assert(sizeof s.n % sizeof(double) == 0, "its fields are doubles");
    const double *x = (const double *)&one->n, *y = (const double *)&two->n;
    double *z = (double *)&s.n;
    for (size_t i = 0; i < sizeof s.n / sizeof *z; i++) z[i] = along(x[i], y[i], b);
    if (s.nelements)
        s.element = arena_room(mem, array_bytes((size_t)s.nelements, sizeof *s.element));
    for (int i = 0; i < s.nelements; i++) {
        s.element[i] = (ElementCount){
            one->element[i].op, along(one->element[i].count, two->element[i].count, b)};
    }
    return s;
}

static FuncSizes sizes_of(Arena *mem, const Probe *p, double b) {
    FuncSizes s = p->size[0];
    s.func = NEW_ARRAY(mem, OpSizes, (size_t)s.n + 1);
    for (int f = 0; f < s.n; f++) {
        const OpSizes *one = &p->size[0].func[f], *two = &p->size[1].func[f];
        OpSize *size = arena_room(mem, array_bytes((size_t)one->n + 1, sizeof *size));
        s.func[f] = (OpSizes){size, one->n, one->n};
        for (int i = 0; i < one->n; i++)
            s.func[f].size[i] = size_of(mem, &one->size[i], &two->size[i], b);
    }
    return s;
}

static double seconds_between(const Timing *t, const OpSizes *s, int from, int to) {
    OpClock c = {0};
    for (int i = from; i < to; i++) clock_add(&c, t, s, i);
    return c.t.all;
}

/* Of the ops of a layer's backward that are so. */
static double later_seconds(const Timing *t, const Probe *p, const OpSizes *s,
                            Later later) {
    OpClock c = {0};
    for (int i = 0; i < s->n; i++)
        if (p->later[i] & later) clock_add(&c, t, s, i);
    return c.t.all;
}

/* Of the ops of a layer whose results backward makes again. */
static double remade_seconds(const Timing *t, const Probe *p, const OpSizes *s) {
    OpClock c = {0};
    for (int i = 0; i < s->n; i++)
        if (p->remade[i]) clock_add(&c, t, s, i);
    return c.t.all;
}

/* Products that sum over the sequences make gradients of weights. */
static bool sums_sequences(const Probe *p, int f, int i) {
    return p->size[1].func[f].size[i].n.product.summed >
           p->size[0].func[f].size[i].n.product.summed;
}

/* Products between two rows of the model; only those that make gradients of weights. */
static double products_between(const Timing *t, const Probe *p, const OpSizes *s,
                               int from, int to, bool gradients) {
    double seconds = 0;
    for (int i = from; i < to; i++)
        if (s->size[i].kind == SIZE_PRODUCT &&
            (!gradients || sums_sequences(p, p->model, i)))
            seconds += t->stretch * op_size_seconds(t->m, t->rank, &s->size[i]);
    return seconds;
}

/* The step without the model. */
static void add_update(const Timing *model, const ProbeUpdate *u, ProbeSeconds *to) {
    Timing t = *model;
    func_seconds(t.mem, &u->size, &t);
    const OpSizes *step = &u->size.func[u->step];
    OpClock c = {0};
    for (int i = 0; i < step->n; i++) {
        const OpSize *x = &step->size[i];
        if (x->kind != SIZE_CALL || !u->size.in_model[x->callee])
            clock_add(&c, &t, step, i);
    }
    to->update = c.t.kind[WORK_UPDATE];
    to->round = c.t.kind[WORK_COPIES];
}

/* Of `ops` ops that read two numbers for each that they write over one of them. */
static double add_seconds(const Timing *t, double ops, double bytes) {
    OpSize s = {.kind = SIZE_ELEMENTS, .op = OP_add, .n = {.bytes = 3 * bytes / ops}};
    if (!(ops > 0)) return 0;
    s.n.written = s.n.overwritten = bytes / ops;
    return t->stretch * ops * op_size_seconds(t->m, t->rank, &s);
}

static double clear_seconds(const Timing *t, double bytes) {
    const OpSize s = {
        .kind = SIZE_ELEMENTS, .op = OP_fill, .n = {.bytes = bytes, .written = bytes}};
    return t->stretch * op_size_seconds(t->m, t->rank, &s);
}

/* Bytes of all parameters. */
static double held_bytes(const Probe *p, const OpSizes *model) {
    const ParamBytes *held = &p->bytes.held;
    return model->size[p->begin].times * held->layer + held->first + held->last -
           held->tied;
}

ProbeSeconds probe_seconds(const Timing *timing, const Probe *p, double b,
                           const ProbeSeconds *like) {
    Arena *mem = timing->mem;
    FuncSizes s = sizes_of(mem, p, b / (double)p->unit);
    Timing t = *timing;
    const FuncTime *f = func_seconds(mem, &s, &t);
    const OpSizes *model = &s.func[p->model];
    const OpSizes *backward = &s.func[p->backward];
    double weights = later_seconds(&t, p, backward, LATER);
    double head = seconds_between(&t, model, p->begin + 1, p->end);
    double products = products_between(&t, p, model, p->begin + 1, p->end, false);
    double of_weights = products_between(&t, p, model, p->begin + 1, p->end, true);
    /* the gradient of its weights may stand behind the layers */
    double behind = products_between(&t, p, model, p->end + 1, model->n, true);
    double share = products > 0 ? (of_weights + behind) / products : 1.0 / 3;
    ProbeSeconds r = {
        .forward = f[p->forward].all,
        .inputs = f[p->backward].all - weights,
        .weights = weights,
        .again = later_seconds(&t, p, backward, LATER_AGAIN),
        .remade = remade_seconds(&t, p, &s.func[p->forward]),
        .messages =
            f[p->forward].kind[WORK_MESSAGES] + f[p->backward].kind[WORK_MESSAGES],
        .first_forward = seconds_between(&t, model, 0, p->begin),
        .first_backward = seconds_between(&t, model, p->end + 1, model->n) - behind,
        .last_forward = head * share,
        .last_backward = head * (1 - share) + behind,
        .update = like ? like->update : 0,
        .round = like ? like->round : 0,
        .clear = clear_seconds(&t, held_bytes(p, model)),
        .add = add_seconds(&t, p->bytes.added, p->bytes.added_bytes),
        .add_all = add_seconds(&t, p->bytes.gradients, p->bytes.held.layer)};
    if (!like) add_update(&t, p->update, &r);
    return r;
}
