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
    OpSize s = {.kind = SIZE_ELEMENTS, .n = {.bytes = 3 * bytes / ops}};
    if (!(ops > 0)) return 0;
    s.n.written = s.n.overwritten = bytes / ops;
    return t->stretch * ops * op_size_seconds(t->m, t->rank, &s);
}

static double clear_seconds(const Timing *t, double bytes) {
    const OpSize s = {.kind = SIZE_ELEMENTS, .n = {.bytes = bytes, .written = bytes}};
    return t->stretch * op_size_seconds(t->m, t->rank, &s);
}

/* Bytes of all parameters. */
static double held_bytes(const Probe *p, const OpSizes *model) {
    const ParamBytes *held = &p->bytes.held;
    return model->size[p->begin].times * held->layer + held->first + held->last -
           held->tied;
}

static ProbeSeconds seconds_of(const Timing *timing, const Probe *p, const FuncSizes *s,
                               const ProbeSeconds *like) {
    Timing t = *timing;
    const FuncTime *f = func_seconds(t.mem, s, &t);
    const OpSizes *model = &s->func[p->model];
    const OpSizes *backward = &s->func[p->backward];
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
        .remade = remade_seconds(&t, p, &s->func[p->forward]),
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

ProbeSeconds probe_seconds(const Timing *t, const Probe *p, double b,
                           const ProbeSeconds *like) {
    FuncSizes s = sizes_of(t->mem, p, b / (double)p->unit);
    return seconds_of(t, p, &s, like);
}

/* ---- bounds ---- */

static bool grows(const OpSize *one, const OpSize *two) {
    for (int i = 0; i < one->nelements; i++)
        if (one->element[i].count != two->element[i].count) return true;
    return memcmp(&one->n, &two->n, sizeof one->n) != 0;
}

/* Ops that grow with the micro-batch take no time: as a wait for what was never begun. */
static FuncSizes fixed_sizes(Arena *mem, const Probe *p) {
    FuncSizes s = sizes_of(mem, p, 1);
    for (int f = 0; f < s.n; f++)
        for (int i = 0; i < s.func[f].n; i++)
            if (grows(&p->size[0].func[f].size[i], &p->size[1].func[f].size[i]))
                s.func[f].size[i] = (OpSize){.kind = SIZE_ARRIVE, .begun = -1};
    return s;
}

/* What a micro-batch takes, by their places in ProbeSeconds. */
static const size_t running[] = {
    offsetof(ProbeSeconds, forward),       offsetof(ProbeSeconds, inputs),
    offsetof(ProbeSeconds, weights),       offsetof(ProbeSeconds, again),
    offsetof(ProbeSeconds, remade),        offsetof(ProbeSeconds, messages),
    offsetof(ProbeSeconds, first_forward), offsetof(ProbeSeconds, first_backward),
    offsetof(ProbeSeconds, last_forward),  offsetof(ProbeSeconds, last_backward)};

static double *running_at(ProbeSeconds *t, int i) {
    return (double *)((char *)t + running[i]);
}

/* What stands around the layers may be done for all parts at once. */
static void take_less_around(ProbeSeconds *t, const ProbeSeconds *joined) {
    t->first_forward = MIN(t->first_forward, joined->first_forward);
    t->first_backward = MIN(t->first_backward, joined->first_backward);
    t->last_forward = MIN(t->last_forward, joined->last_forward);
    t->last_backward = MIN(t->last_backward, joined->last_backward);
}

/* A message costs compute the share of its time that the machine cannot hide; those of all parts may
 * be sent as one. Ops that do not grow with the micro-batch may be done once for all parts. Programs of
 * several parts have been seen to take 0.9988 of that, as some gradients are added once. */
ProbeSeconds probe_parts_least(const Timing *timing, const Probe *p, double b, int parts,
                               const ProbeSeconds *all) {
    static const double seen = 0.995;
    Timing t = *timing;
    t.free = 1 - (1 - t.m->hidden) / parts;
    FuncSizes fixed = fixed_sizes(t.mem, p);
    ProbeSeconds least = probe_seconds(&t, p, b, all);
    ProbeSeconds once = seconds_of(&t, p, &fixed, all);
    for (int i = 0; i < ARRAY_LEN(running); i++) {
        double *x = running_at(&least, i);
        *x = seen * (parts * *x - (parts - 1) * *running_at(&once, i));
    }
    const ProbeSeconds joined = probe_seconds(&t, p, parts * b, all);
    take_less_around(&least, &joined);
    return least;
}

ProbeSeconds probe_parts_most(const ProbeSeconds *all, int parts) {
    ProbeSeconds most = *all;
    for (int i = 0; i < ARRAY_LEN(running); i++) *running_at(&most, i) *= parts;
    return most;
}
