/* pieces.c - bytes and seconds of a choice from the pieces of its probe. */
#include "frontend/search/search_state.h"
#include "passes/cost/message.h"
#include <math.h>

double search_gradient_share(const Search *s) {
    return dtype_bytes[s->gradient] / (double)dtype_bytes[DT_F32];
}

double search_room(const Search *s) {
    double process = (double)plan_process_bytes(s->o.cfg);
    return s->o.limit_bytes > 0 ? s->o.limit_bytes - process : INFINITY;
}

double choice_ahead(const Search *s, const Choice *c) {
    return s->ahead_bytes / c->dp;
}

double choice_room(const Search *s, const Choice *c) {
    return search_room(s) - choice_ahead(s, c);
}

/* ---- bytes ---- */

double choice_in_flight(const Choice *c, int stage) {
    if (c->pp == 1) return 1;
    return schedule_kind_in_flight(schedule_kind_at(c->schedule), c->pp, c->chunks,
                                   c->micro, stage);
}

typedef struct StageBytes {
    double held, read;        /* of parameters, as ProbeBytes has them */
    double state;             /* of weights and states */
    double gradients, copies; /* of gradients; of what is rounded once a step */
    double layer_gradients, layer_copies; /* of these those of layers */
    double layers;                        /* of the stage */
    bool first, last;                     /* it has that chunk */
    double extra;                         /* that plans of such choices had beside */
    const PipeScheduleKind *kind;
    int stage;
    double in_flight; /* micro-batches whose activations of a chunk it keeps */
    Waiting waiting;
} StageBytes;

/* With overlap what is rounded is stored in parts as its states are, so that copies are what ranks
 * gather. */
static bool rounds_parts(const Search *s, const Choice *c, const StageBytes *b) {
    return c->zero >= 1 && b->read < b->held && s->overlap && !c->no_overlap;
}

/* Of what is rounded once a step there are copies. At least: one micro-batch may round layer by
 * layer otherwise, and its gradients are summed over the replicas as they are made. */
static void add_state_bytes(const Search *s, const Choice *c, StageBytes *b) {
    double replicas = (double)c->dp * c->cp;
    double weights = b->held, states = s->probe[c->probe].bytes.states * b->held;
    double rounded = b->held - b->read; /* to half of their bytes */
    bool parts = rounds_parts(s, c, b);
    bool copied = c->zero < 3 && (c->micro > 1 || parts);
    bool early = c->zero == 1 && c->micro == 1 && s->overlap && !c->no_overlap;
    const ProbeBytes *p = &s->probe[c->probe].bytes;
    double share = search_gradient_share(s) / (c->zero >= 2 || early ? replicas : 1);
    b->gradients = b->held * share;
    b->layer_gradients = b->layers * p->held.layer * share;
    b->copies = copied ? rounded : 0;
    b->layer_copies = copied ? b->layers * (p->held.layer - p->read.layer) : 0;
    if (c->zero >= 1) states /= replicas;
    if (c->zero >= 3 || parts) weights /= replicas;
    b->state = weights + states;
}

bool choice_is_like(const Choice *c, const Extra *e) {
    const Choice *of = &e->of;
    return c->batch == of->batch && c->pp == of->pp && c->zero == of->zero &&
           c->schedule == of->schedule && c->chunks == of->chunks &&
           c->layers == of->layers && c->no_overlap == of->no_overlap;
}

static Extra *find_extra(const Search *s, const Choice *c) {
    Extra *e = s->probe[c->probe].extra;
    while (e && !choice_is_like(c, e)) e = e->next;
    return e;
}

Extra *choice_extra(Search *s, const Choice *c) {
    Extra *e = find_extra(s, c);
    if (e) return e;
    Probe *p = &s->probe[c->probe];
    e = NEW(s->mem, Extra);
    *e = (Extra){.of = *c, .slower = 1, .next = p->extra};
    return p->extra = e;
}

/* Bytes when the nth chunk to go back begins its backward. Gradients are held of the chunks that
 * have begun (with ZeRO-1 of those that have ended the part that is updated here), rounded copies of
 * weights for those that have not ended; gradients of a table come with the last. kept: bytes of
 * activations of a chunk on one micro-batch. */
static double bytes_when(const Choice *c, const StageBytes *b, int nth, double kept) {
    Alive a = {(int)b->in_flight, c->chunks};
    if (c->chunks > 1)
        a = schedule_kind_alive(b->kind, c->pp, c->chunks, c->micro, b->stage, nth);
    double begun = (nth + 1.0) / c->chunks, left = (double)a.chunks / c->chunks;
    double parts = c->zero == 1 ? 1 - 1.0 / ((double)c->dp * c->cp) : 0;
    double copies = left < 1 ? left * b->layer_copies : b->copies;
    double gradients = (begun - (1 - left) * parts) * b->layer_gradients;
    if (nth == c->chunks - 1) gradients += b->gradients - b->layer_gradients;
    return gradients + copies + a.forward * kept;
}

/* At least: without what a layer makes for itself. With one micro-batch gradients may lie where
 * activations and copies were. */
static double bytes_with(const Search *s, const Choice *c, const StageBytes *b,
                         double remade) {
    const ProbeBytes *p = &s->probe[c->probe].bytes;
    double layers = b->layers / c->chunks, again = MIN(remade, layers);
    double of_one = (layers - again) * p->kept + again * p->carried;
    double waits = b->waiting.forward * of_one + b->waiting.weights * layers * p->delayed;
    double most = 0;
    if (c->micro == 1)
        most = MAX(b->gradients, b->in_flight * of_one * c->batch + b->copies);
    else if (waits > 0)
        most = b->gradients + b->copies + waits * c->batch;
    /* else all have begun while forward still goes on */
    bool at_once = b->kind->all_forward || c->micro <= c->pp;
    for (int nth = at_once ? 0 : c->chunks - 1; nth < c->chunks && c->micro > 1; nth++)
        most = MAX(most, bytes_when(c, b, nth, of_one * c->batch));
    return b->state + most + b->extra;
}

/* Fewest layers of each chunk of the stage that must be made again; -1: all are too few. whole: its
 * bytes with none. */
static int fewest_remade(const Search *s, const Choice *c, const StageBytes *b,
                         double whole) {
    double room = s->times.room;
    int most = (int)ceil(b->layers / c->chunks);
    if (whole <= room) return 0;
    for (int low = 0, high = most;;) { /* bytes fall with the layers */
        int mid = (low + high) / 2;
        bool fits = bytes_with(s, c, b, mid) <= room;
        if (low == high) return fits ? mid : -1;
        if (fits)
            high = mid;
        else
            low = mid + 1;
    }
}

static double bytes_of(const ParamBytes *p, double layers, bool first, bool last) {
    double bytes = layers * p->layer + first * p->first + last * p->last;
    return first && last ? bytes - p->tied : bytes;
}

static void add_parameter_bytes(const Search *s, const Choice *c, StageBytes *b) {
    const ProbeBytes *p = &s->probe[c->probe].bytes;
    b->held = bytes_of(&p->held, b->layers, b->first, b->last);
    b->read = bytes_of(&p->read, b->layers, b->first, b->last);
    add_state_bytes(s, c, b);
}

static StageBytes stage_bytes(const ChunkTimes *t, const Choice *c, int stage) {
    StageBytes b = {.kind = t->kind,
                    .stage = stage,
                    .in_flight = choice_in_flight(c, stage),
                    .waiting = schedule_kind_waiting(t->kind, c->pp, c->micro, stage)};
    for (int nth = 0; nth < c->chunks; nth++) {
        int i = schedule_stage_chunk(t->kind, c->pp, stage, nth);
        b.layers += (double)t->layers[i];
        b.first |= i == 0;
        b.last |= i == c->pp * c->chunks - 1;
    }
    return b;
}

static bool holds_the_same(const StageBytes *a, const StageBytes *b) {
    return a->layers == b->layers && a->first == b->first && a->last == b->last;
}

/* ---- messages over the replicas ---- */

/* Of so many bytes in all, before they are split or when they are together again; sums are those of
 * gradients. */
static double collective(const Search *s, const GroupShape *g, int kind, double bytes) {
    const Machine *m = s->o.machine;
    double operand = kind == OP_all_gather ? bytes / g->members : bytes;
    double sent = message_sent(kind, operand, g->members);
    return collective_seconds(m, g, kind, sent * message_width(m, kind, s->gradient));
}

/* What a rank cannot compute beside; where what it computes is a bound, it may be longer. */
static double exposed(const Search *s, const Choice *c, double seconds, double window) {
    if (!s->overlap || c->no_overlap) return seconds;
    if (s->probe[c->probe].is_bound) window = INFINITY;
    return MAX(seconds - window, (1 - s->o.machine->hidden) * seconds);
}

typedef struct Replicas {
    double forward, backward; /* exposed in every micro-batch, of a layer */
    double step;              /* exposed once a step, of a stage */
} Replicas;

/* Once a step, of all layers and the rest: at least, in one message, or layers beside compute, with
 * what is computed for that. */
static double once(const Search *s, const Choice *c, const GroupShape *g, int kind,
                   double layers, double all, double window, double more) {
    double apart = exposed(s, c, collective(s, g, kind, layers), window) +
                   collective(s, g, kind, all - layers) + more;
    return MIN(apart, collective(s, g, kind, all));
}

/* Of what stands around the layers, in each micro-batch: at least, all but one beside compute. */
static double each_time(const Search *s, const Choice *c, const GroupShape *g, int kind,
                        double bytes) {
    double seconds = collective(s, g, kind, bytes);
    return seconds + (c->micro - 1) * exposed(s, c, seconds, INFINITY);
}

/* Gradients are summed in their type, weights gathered as they are read; without overlap levels 1 and
 * 2 gather them as they are held. */
static Replicas replicas_seconds(const Search *s, const Choice *c, const GroupShape *g,
                                 const ProbeSeconds *t, const StageBytes *b) {
    Replicas r = {0};
    if (g->members <= 1) return r;
    const ProbeBytes *p = &s->probe[c->probe].bytes;
    double n = b->layers, read = n * p->read.layer;
    double share = search_gradient_share(s);
    double all = b->held * share, sums = n * p->held.layer * share;
    double back = t->inputs + t->weights;
    double beside =
        c->pp == 1 ? MAX(0, n - 1) : 0; /* layers; stages wait until the end */
    double in_backward = beside * back, in_forward = beside * t->forward;
    /* layers that sum the last micro-batch over replicas add it to the others by itself */
    double adds = c->micro > 1 ? n * t->add_all : 0;
    if (c->zero == 0) r.step = once(s, c, g, OP_all_reduce, sums, all, in_backward, adds);
    if (c->zero == 1)
        r.step = once(s, c, g, OP_reduce_scatter, sums, all, in_backward, adds);
    if (c->zero >= 2) r.step = each_time(s, c, g, OP_reduce_scatter, all - sums);
    if (c->zero == 1 || c->zero == 2) {
        bool rounded = rounds_parts(s, c, b);
        r.step += once(s, c, g, OP_all_gather, rounded ? read : n * p->held.layer,
                       rounded ? b->read : b->held, in_forward, 0);
    }
    if (c->zero == 3) r.step += each_time(s, c, g, OP_all_gather, b->read - read);
    if (c->zero < 2) return r;
    double reduce = collective(s, g, OP_reduce_scatter, sums) / MAX(n, 1);
    r.backward += exposed(s, c, reduce, back);
    if (c->zero < 3) return r;
    double gather = collective(s, g, OP_all_gather, read) / MAX(n, 1);
    r.forward += exposed(s, c, gather, t->forward);
    r.backward += exposed(s, c, gather, back);
    return r;
}

/* ---- seconds ---- */

void choice_make_room(Search *s) {
    size_t n = (size_t)s->layers; /* a chunk has one at least */
    ChunkTimes *t = &s->times;
    t->layers = NEW_ARRAY(s->mem, int64_t, n);
    t->task = arena_alloc(s->mem, n * sizeof *t->task);
    t->step = NEW_ARRAY(s->mem, double, n);
    t->busy = NEW_ARRAY(s->mem, double, n);
    t->again = NEW_ARRAY(s->mem, int, n);
    t->hop = NEW_ARRAY(s->mem, double, n);
}

/* Once a step: the update, and stages clear gradients before the first micro-batch. */
static double update_of(const Search *s, const Choice *c, const ProbeSeconds *t,
                        const StageBytes *b) {
    const ParamBytes *p = &s->probe[c->probe].bytes.held;
    double all = bytes_of(p, (double)s->layers, true, true);
    double replicas = (double)c->dp * c->cp;
    double update = t->update / (c->zero ? replicas : 1);
    double round = t->round / (c->zero == 3 || rounds_parts(s, c, b) ? replicas : 1);
    double clear = c->pp > 1 && c->micro > 1 ? t->clear * b->gradients : 0;
    return ((update + round) * b->held + clear) / all;
}

/* Seconds in which a layer adds a micro-batch's gradients to those of the others; the first of one
 * stage may have none to add to. */
static double adds_of(const Choice *c, const ProbeSeconds *t) {
    double others = c->pp > 1 ? c->micro : c->micro - 1;
    double add = c->zero >= 2 ? t->add_all / ((double)c->dp * c->cp) : t->add;
    return c->micro > 1 ? add * others / c->micro : 0;
}

static void set_tasks(const Search *s, const Choice *c, const ProbeSeconds *t,
                      const Replicas *r, int stage, ChunkTimes *out) {
    int chunks = c->pp * c->chunks;
    double adds = adds_of(c, t);
    for (int nth = 0; nth < c->chunks; nth++) {
        int i = schedule_stage_chunk(out->kind, c->pp, stage, nth);
        double n = (double)out->layers[i], remade = MIN(n, out->again[i]);
        double *task = out->task[i], first = i == 0, last = i == chunks - 1;
        task[TASK_FORWARD] = n * (t->forward + r->forward) + first * t->first_forward +
                             last * t->last_forward;
        task[TASK_WEIGHTS] = n * t->weights;
        task[TASK_INPUTS] = n * (t->inputs + r->backward + adds) + remade * t->remade +
                            first * t->first_backward + last * t->last_backward;
        task[TASK_BACKWARD] = task[TASK_INPUTS] + task[TASK_WEIGHTS];
        task[TASK_WEIGHTS] += n * exposed(s, c, t->again, t->weights);
    }
}

/* Sets how many layers of each chunk of the stage are made again, and *bytes with so many; false:
 * they do not fit, and *bytes are those with all. */
static bool set_remade(Search *s, Choice *c, const StageBytes *b, int stage,
                       double *bytes) {
    ChunkTimes *t = &s->times;
    int64_t given = s->fixed[KNOB_RECOMPUTE];
    *bytes = bytes_with(s, c, b, 0);
    int same = given >= 0       ? (int)MIN(given, s->layers)
               : c->remakes_all ? (int)ceil(b->layers / c->chunks)
                                : fewest_remade(s, c, b, *bytes);
    double sum = 0;
    for (int nth = 0; nth < c->chunks; nth++) {
        int i = schedule_stage_chunk(t->kind, c->pp, stage, nth);
        t->again[i] = s->nremade ? s->remade[i] : MAX(same, 0);
        sum += t->again[i];
        c->remade = MAX(c->remade, t->again[i]);
    }
    if (same < 0) *bytes = bytes_with(s, c, b, b->layers);
    if (same >= 0 && sum > 0) *bytes = bytes_with(s, c, b, sum / c->chunks);
    return same >= 0;
}

/* Sets layers that are made again and bytes of the choice, and s->times; false: it does not
 * fit. */
static bool choice_times(Search *s, Choice *c) {
    const Places *at = choice_places(s, c);
    const ProbeSeconds *t = &search_pieces_at(s, c, at->shapes)->t;
    ChunkTimes *out = &s->times;
    bool fits = true;
    StageBytes b = {0};
    Replicas r = {0};
    const Extra *extra = find_extra(s, c);
    double step = 0;
    choice_layers(s, c, out->layers);
    c->bytes = c->remade = 0;
    if (!c->apart) c->extra_bytes = extra ? extra->bytes : 0;
    out->places = at;
    out->kind = schedule_kind_at(c->schedule);
    out->room = choice_room(s, c);
    for (int k = 0; k < c->pp && c->pp > 1; k++)
        out->hop[k] = message_seconds(s->o.machine, &at->hop[k],
                                      s->probe[c->probe].bytes.carried * c->batch);
    for (int k = 0; k < c->pp; k++) {
        StageBytes stage = stage_bytes(out, c, k);
        if (k && holds_the_same(&stage, &b)) {
            b.stage = k;
            b.in_flight = stage.in_flight;
            b.waiting = stage.waiting;
        } else {
            b = stage;
            b.extra = c->extra_bytes;
            add_parameter_bytes(s, c, &b);
            r = replicas_seconds(s, c, &at->replicas, t, &b);
            step = r.step + update_of(s, c, t, &b);
        }
        double bytes;
        fits &= set_remade(s, c, &b, k, &bytes) && bytes <= out->room;
        out->step[k] = step;
        c->bytes = MAX(c->bytes, bytes);
        set_tasks(s, c, t, &r, k, out);
    }
    if (!fits) c->remade = REMADE_TOO_LARGE;
    return fits;
}

/* Of a message between the chunk and its neighbour; 0: the stage has both, or there is none. */
static double hop_between(const ChunkTimes *t, const Choice *c, int chunk,
                          int neighbour) {
    if (neighbour < 0 || neighbour == c->pp * c->chunks) return 0;
    int a = schedule_chunk_stage(t->kind, c->pp, chunk),
        b = schedule_chunk_stage(t->kind, c->pp, neighbour);
    return a == b ? 0 : t->hop[(a + 1) % c->pp == b ? a : b];
}

/* The messages of a micro-batch that the stage takes. */
static double takes_seconds(const ChunkTimes *t, const Choice *c, int stage) {
    double seconds = 0;
    for (int nth = 0; nth < c->chunks; nth++) {
        int i = schedule_stage_chunk(t->kind, c->pp, stage, nth);
        seconds += hop_between(t, c, i, i - 1) + hop_between(t, c, i, i + 1);
    }
    return seconds;
}

/* No order of tasks is faster: a stage begins when those before it have done their first
 * chunk once, and what it did last goes back through them, unless that is the gradients of
 * weights; and those that share cores have no more than these. While it takes a message it does
 * nothing else. */
static double bound_of(const Choice *c, const ChunkTimes *t) {
    bool halves = t->kind->halves;
    double most = 0, before = 0;
    for (int k = 0; k < c->pp; k++) {
        double busy = 0, takes = c->micro * takes_seconds(t, c, k);
        for (int nth = 0; nth < c->chunks; nth++) {
            const double *task = t->task[schedule_stage_chunk(t->kind, c->pp, k, nth)];
            busy += task[TASK_FORWARD] + task[TASK_BACKWARD];
        }
        t->busy[k] = c->micro * busy + t->step[k];
        if (k) takes -= t->hop[k - 1]; /* the first is in `before` */
        most = MAX(most, before + t->busy[k] + takes);
        before += t->task[k][TASK_FORWARD] + (halves ? 1 : 2) * t->hop[k];
        if (!halves) before += t->task[k][TASK_BACKWARD];
    }
    return MAX(most, shared_seconds_least(&t->places->share, t->busy));
}

static double slower(const Search *s, const Choice *c) {
    const Extra *e = c->apart ? NULL : find_extra(s, c);
    return e ? e->slower : 1;
}

static double least_seconds(Search *s, Choice *c) {
    return choice_times(s, c) ? bound_of(c, &s->times) : INFINITY;
}

/* With layers that may lie in two ways the less of both, seconds and bytes. */
static double either_balance(Search *s, Choice *c,
                             double (*seconds)(Search *, Choice *)) {
    c->by_most = false;
    bool two = c->layers == LAYERS_BALANCED && choice_other_balance(s, c);
    double least = seconds(s, c);
    if (!two) return least;
    Choice other = *c;
    other.by_most = true;
    double most = seconds(s, &other);
    if (other.remade >= 0 && (c->remade < 0 || other.bytes < c->bytes)) *c = other;
    return MIN(least, most);
}

void choice_bound(Search *s, Choice *c) {
    c->seconds = 0;
    c->bound = either_balance(s, c, least_seconds) * slower(s, c);
}

double choice_least_bytes(Search *s, const Choice *c) {
    Choice all = *c;
    if (!s->probe[c->probe].is_bound || c->remade <= 0 || s->fixed[KNOB_RECOMPUTE] >= 0)
        return c->bytes;
    all.remakes_all = true;
    choice_times(s, &all);
    return MIN(c->bytes, all.bytes);
}

int *choice_remade(Arena *mem, Search *s, const Choice *c) {
    const ChunkTimes *t = &s->times;
    int *n = NEW_ARRAY(mem, int, (size_t)c->pp *(size_t)c->chunks);
    Choice copy = *c;
    choice_times(s, &copy);
    for (int k = 0; k < c->pp; k++)
        for (int nth = 0; nth < c->chunks; nth++) {
            int i = schedule_stage_chunk(t->kind, c->pp, k, nth);
            n[i] = (int)MIN(t->layers[i], t->again[i]);
        }
    return n;
}

/* Through the schedule. */
static double pipe_seconds(Arena *own, const Search *s, const Choice *c) {
    const ChunkTimes *t = &s->times;
    const Sharing *share = &t->places->share;
    const PipeSchedule *p = schedule_make(own, schedule_name_at(c->schedule), c->pp,
                                          c->pp * c->chunks, c->micro);
    TaskSeconds seconds = {.chunk = (const double(*)[TASK_KINDS])t->task, .hop = t->hop};
    double step = 0;
    if (share->places)
        return schedule_seconds_shared(own, p, &seconds, share,
                                       s->o.machine->notice_seconds, t->step);
    for (int k = 0; k < c->pp; k++) step = MAX(step, t->step[k]);
    return schedule_seconds(own, p, &seconds, NULL) + step;
}

static double schedule_of(Search *s, Choice *c) {
    if (c->pp == 1) return least_seconds(s, c);
    Arena *own = arena_new();
    double seconds = choice_times(s, c) ? pipe_seconds(own, s, c) : INFINITY;
    arena_free(own);
    return seconds;
}

double search_seconds(Search *s, Choice *c) {
    double seconds = either_balance(s, c, schedule_of);
    return c->seconds = seconds * slower(s, c);
}
