/* collect.c - the cheapest collectives for every reshard. Level sharded.
 *     %y2 = reshard %y : ...   ->   a chain of reshards of one step each, with the step
 * in the attributes: {how="reduce_scatter"; axis="tp"; dim=1} A shortest path over
 * placements: bytes that a rank sends by the ring algorithms, and a little per collective for its
 * latency. Where several axes change, whose links may differ, the options may give a machine: then
 * seconds on it, so that what crosses slow links may be added up on each host before. */
#include "ir/placement.h"
#include "passes/passes.h"
#include "passes/shard/price.h"
#include <math.h>

enum {
    MAX_STATES = 20000,
    FEW_STATES = 256,                                          /* enough for most */
    MAX_STEPS = 2 * (MAX_RANK + 1) + MAX_RANK * (MAX_RANK + 1) /* with one set of axes */
};

typedef struct State {
    Type ty;
    double cost, sent_bytes; /* to get here */
    int from;                /* state before; -1: the start */
    int how;                 /* the op that does it */
    Axes axis;
    int dim, to;
} State;

typedef struct Search {
    const Mesh *mesh;
    const Price *price;
    State *state;
    int n, max;
    double *cost;   /* by state, as there; INFINITY: done */
    int *slot;      /* by hash of a placement: state + 1; NULL: few states, no table */
    uint64_t slots; /* a power of two, more than max */
    bool full;      /* a placement found no room */
    const Type *goal;
    double goal_bytes; /* a rank's part of it */
    double limit;      /* of the cost: what the cheapest way to the goal so far has */
    Axes axes;         /* that matter */
} Search;

static Search search_new(Arena *mem, const Mesh *m, int max) {
    uint64_t slots = 1;
    while (slots < 3 * (uint64_t)max) slots *= 2;
    return (Search){.mesh = m,
                    .state = NEW_ARRAY(mem, State, (size_t)max),
                    .max = max,
                    .cost = NEW_ARRAY(mem, double, (size_t)max),
                    .slots = slots,
                    .slot = NEW_ARRAY(mem, int, slots)};
}

/* The state with a placement, or s->n; *slot: where the table has it, or may. */
static int find_state(const Search *s, const Type *ty, int **slot) {
    Axes key[MAX_RANK + 1];
    int i = 0;
    while (!s->slot && i < s->n && !type_same_placement(&s->state[i].ty, ty)) i++;
    if (!s->slot) return i;
    memcpy(key, ty->split, sizeof ty->split);
    key[MAX_RANK] = ty->pending;
    for (uint64_t h = hash64(key, sizeof key);; h++) {
        *slot = &s->slot[h & (s->slots - 1)];
        if (!**slot) return s->n;
        if (type_same_placement(&s->state[**slot - 1].ty, ty)) return **slot - 1;
    }
}

/* The least price of what is sent until the goal is reached, where a way to it is known: only
 * gathering makes parts larger, and sends what they grow by. */
static double still_to_pay(const Search *s, const Type *ty) {
    if (s->limit == INFINITY) return 0;
    return s->price->least * MAX(0, s->goal_bytes - type_part_bytes(s->mesh, ty));
}

/* sent_bytes: by a rank; 0: the step sends nothing. */
static void reach(Search *s, int from, const State *step, double sent_bytes) {
    double cost = s->state[from].cost;
    cost += sent_bytes > 0
                ? price_to_send(s->price, step->how, step->axis, step->ty.dt, sent_bytes)
                : price_of_nothing(s->price);
    if (cost + still_to_pay(s, &step->ty) >= s->limit) return;
    int *slot = NULL, i = find_state(s, &step->ty, &slot);
    if (i == s->n && s->n == s->max) {
        s->full = true;
        return;
    }
    if (i == s->n)
        s->n++;
    else if (s->state[i].cost <= cost)
        return;
    s->state[i] = *step;
    s->state[i].cost = cost;
    s->state[i].sent_bytes = s->state[from].sent_bytes + sent_bytes;
    s->state[i].from = from;
    if (slot) *slot = i + 1;
    if (s->cost) s->cost[i] = cost;
    if (s->goal && type_same_placement(&step->ty, s->goal)) s->limit = cost;
}

/* Do all steps from the state that send so many bytes cost more than a way that is known? */
static bool too_dear(const Search *s, int at, double sent_bytes) {
    return s->state[at].cost + s->price->least * sent_bytes >= s->limit;
}

static bool single(Axes a) {
    return !(a & (a - 1));
}

/* Axes split a dimension in an order: the inner ones come and go first. `more` inside
 * `there`, or 0 when no order has it there. */
static Axes inside(Axes there, Axes more) {
    Axes bits = there & (Axes)~AXES_REVERSED;
    bool reversed = there & AXES_REVERSED;
    if (!bits) return more;
    if ((more & -more) > bits && !reversed) return there | more;
    if (single(more) && more < (bits & -bits) && (reversed || single(bits))) {
        return bits | more | AXES_REVERSED;
    }
    return 0;
}

/* What is left of `there` without its innermost axes `less`; *legal: they are that. */
static Axes outside(Axes there, Axes less, bool *legal) {
    Axes rest = axes_normal(there & (Axes)~less);
    *legal = (there & less) == less && inside(rest, less) == there;
    return rest;
}

/* Splits dimension d of t over more axes, inside those that it has; false: it cannot. */
static bool cut(const Search *s, Type *t, int d, Axes more) {
    Axes axes = inside(t->split[d], more);
    if (!axes || t->dim[d] % mesh_group_size(s->mesh, axes)) return false;
    t->split[d] = axes;
    return true;
}

/* A step with each dimension but one that it can cut over the axes; `which` of it is that one. */
static void reach_cuts(Search *s, int at, State *step, int *which, int but,
                       double sent_bytes) {
    for (int d = 0; d < step->ty.rank; d++) {
        const Axes before = step->ty.split[d];
        if (d == but || !cut(s, &step->ty, d, step->axis)) continue;
        *which = d;
        reach(s, at, step, sent_bytes);
        step->ty.split[d] = before;
    }
}

static void steps_of_sum(Search *s, int at, Axes set) {
    const Type *ty = &s->state[at].ty;
    double n = mesh_group_size(s->mesh, set), bytes = type_part_bytes(s->mesh, ty);
    if (too_dear(s, at, message_sent(OP_reduce_scatter, bytes, n))) return;
    State step = s->state[at];
    step.axis = set;
    step.dim = step.to = -1;
    step.ty.pending &= (Axes)~set;
    step.how = OP_all_reduce;
    reach(s, at, &step, message_sent(step.how, bytes, n));
    step.how = OP_reduce_scatter;
    reach_cuts(s, at, &step, &step.dim, -1, message_sent(step.how, bytes, n));
}

static void steps_of_split(Search *s, int at, Axes set, int d) {
    const Type *ty = &s->state[at].ty;
    double n = mesh_group_size(s->mesh, set), bytes = type_part_bytes(s->mesh, ty);
    if (too_dear(s, at, message_sent(OP_all_to_all, bytes, n))) return;
    State step = s->state[at];
    bool legal;
    step.axis = set;
    step.dim = d;
    step.to = -1;
    step.ty.split[d] = outside(step.ty.split[d], set, &legal);
    if (!legal) return;
    step.how = OP_all_gather;
    reach(s, at, &step, message_sent(step.how, bytes, n));
    step.how = OP_all_to_all;
    reach_cuts(s, at, &step, &step.to, d, message_sent(step.how, bytes, n));
}

static void steps_of_whole(Search *s, int at, Axes set, Axes pending_at_end) {
    State step = s->state[at];
    step.axis = set;
    step.how = OP_shard;
    step.to = -1;
    reach_cuts(s, at, &step, &step.dim, -1, 0);
    if ((pending_at_end & set) != set) return;
    step.how = OP_on_first;
    step.dim = -1;
    step.ty.pending |= set;
    reach(s, at, &step, 0);
}

static void steps_with(Search *s, int at, Axes axes, Axes pending_at_end) {
    Type t = s->state[at].ty;
    if ((t.pending & axes) == axes) steps_of_sum(s, at, axes);
    for (int d = 0; d < t.rank; d++)
        if (t.split[d] & axes) steps_of_split(s, at, axes, d);
    if (!((t.pending | type_axes(&t)) & axes))
        steps_of_whole(s, at, axes, pending_at_end);
}

static void steps(Search *s, int at, Axes pending_at_end) {
    for (unsigned set = 1; set < 1u << s->mesh->naxes; set++) {
        if (!(set & ~s->axes)) steps_with(s, at, (Axes)set, pending_at_end);
    }
}

bool reshard_is_step(const Op *op) {
    State state[MAX_STEPS + 1] = {{.ty = op->in[0]->ty, .from = -1}};
    const Mesh *m = &op->fn->mod->mesh;
    const Attr *how = op_attr(op, "how"), *axis = op_attr(op, "axis");
    const Type *goal = &op->out[0]->ty;
    const Price bytes = price_of_bytes();
    Search s = {.mesh = m,
                .price = &bytes,
                .state = state,
                .n = 1,
                .max = ARRAY_LEN(state),
                .limit = INFINITY};
    Axes axes = 0;
    if (!how || !axis || !mesh_axes_parse(m, axis->s, &axes)) return false;
    if (!axes || axes & AXES_REVERSED) return false;
    steps_with(&s, 0, axes, goal->pending);
    for (int i = 1; i < s.n; i++) {
        const State *step = &state[i];
        if (type_same_placement(&step->ty, goal) && step->how == op_kind(how->s) &&
            step->dim == op_int(op, "dim", -1) && step->to == op_int(op, "to", -1))
            return true;
    }
    return false;
}

static int cheapest(const Search *s) {
    int best = 0;
    for (int i = 1; i < s->n; i++) {
        if (s->cost[i] < s->cost[best]) best = i;
    }
    return best;
}

/* Index of the state with the placement `goal`; everything cheaper is settled. */
static int search(Search *s, const Type *start, const Type *goal) {
    int *slot;
    memset(s->slot, 0, s->slots * sizeof *s->slot);
    s->n = 0;
    s->full = false;
    s->goal = goal;
    s->goal_bytes = type_part_bytes(s->mesh, goal);
    s->limit = INFINITY;
    s->axes = type_axes(start) | start->pending | type_axes(goal) | goal->pending;
    find_state(s, start, &slot);
    s->state[s->n++] = (State){.ty = *start, .from = -1};
    *slot = s->n;
    s->cost[0] = 0;
    for (;;) {
        int best = cheapest(s);
        if (s->cost[best] == INFINITY) return -1;
        if (type_same_placement(&s->state[best].ty, goal)) return best;
        double cost = s->cost[best];
        s->cost[best] = INFINITY;
        if (cost + still_to_pay(s, &s->state[best].ty) < s->limit)
            steps(s, best, goal->pending);
    }
}

/* The steps from one placement to another. */
typedef struct Path {
    Type from, to;
    State *step;
    int n;     /* -1: there is no path */
    bool full; /* not all placements between them were looked at */
} Path;

/* A search with few states; where they are too few, one with all. */
typedef struct Searches {
    Arena *mem;
    Mesh *mesh;
    Price bytes, seconds; /* without a machine seconds are bytes too */
    Search few, many;     /* many.max 0: not yet made */
    Path *path;           /* that were found: layers want the same ones */
    int n, cap;
    struct Searches *next; /* of another mesh */
} Searches;

static Searches *searches_new(Arena *mem, const Mesh *m, const PassOptions *o) {
    Searches *k = NEW(mem, Searches);
    k->mem = mem;
    k->mesh = NEW(mem, Mesh);
    *k->mesh = *m;
    for (int a = 0; a < m->naxes; a++)
        k->mesh->axis[a].name = arena_strdup(mem, m->axis[a].name);
    k->bytes = k->seconds = price_of_bytes();
    if (o->machine)
        k->seconds =
            price_of_seconds(mem, o->machine, k->mesh, pass_stages(o), o->threads);
    k->few = search_new(mem, k->mesh, FEW_STATES);
    return k;
}

struct KnownPaths {
    Arena *mem;
    Searches *first;
};

KnownPaths *known_paths(Arena *mem) {
    KnownPaths *known = NEW(mem, KnownPaths);
    known->mem = mem;
    return known;
}

static bool same_mesh(const Mesh *a, const Mesh *b) {
    bool same = a->naxes == b->naxes && a->norder == b->norder &&
                !memcmp(a->order, b->order, sizeof a->order);
    for (int k = 0; same && k < a->naxes; k++)
        same = a->axis[k].size == b->axis[k].size &&
               !strcmp(a->axis[k].name, b->axis[k].name);
    return same;
}

static Searches *known_searches(KnownPaths *known, const Mesh *m, const PassOptions *o) {
    for (Searches *k = known->first; k; k = k->next)
        if (same_mesh(k->mesh, m)) return k;
    Searches *k = searches_new(known->mem, m, o);
    k->next = known->first;
    return known->first = k;
}

/* Axes that split something else in b than in a. */
static Axes changed_axes(const Type *a, const Type *b) {
    Axes changed = a->pending ^ b->pending;
    for (int d = 0; d < a->rank; d++)
        if (a->split[d] != b->split[d]) changed |= a->split[d] ^ b->split[d];
    return changed & (Axes)~AXES_REVERSED;
}

static int search_path(Searches *k, const Type *start, const Type *goal, Search **in) {
    const Price *price = single(changed_axes(start, goal)) ? &k->bytes : &k->seconds;
    k->few.price = k->many.price = price;
    *in = &k->few;
    int at = search(&k->few, start, goal);
    if (!k->few.full) return at;
    if (!k->many.max) k->many = search_new(k->mem, k->mesh, MAX_STATES);
    k->many.price = price;
    *in = &k->many;
    return search(&k->many, start, goal);
}

int64_t reshard_sent_bytes(const Mesh *m, const Type *from, const Type *to) {
    Arena *mem = arena_new();
    Searches *k = searches_new(mem, m, &(PassOptions){0});
    Search *s;
    int at = search_path(k, from, to, &s);
    int64_t bytes = at < 0 ? -1 : llround(s->state[at].sent_bytes);
    if (at < 0 && s->full && !from->pending && !to->pending)
        bytes = llround((double)type_bytes(from) - type_part_bytes(m, from));
    arena_free(mem);
    return bytes;
}

static bool same_type(const Type *a, const Type *b) {
    return a->dt == b->dt && type_same_shape(a, b) && type_same_placement(a, b);
}

static const Path *find_path(Searches *k, const Type *from, const Type *to) {
    for (int i = 0; i < k->n; i++)
        if (same_type(&k->path[i].from, from) && same_type(&k->path[i].to, to))
            return &k->path[i];
    Search *s;
    int at = search_path(k, from, to, &s), n = at < 0 ? -1 : 0;
    for (int i = at; i >= 0 && s->state[i].from >= 0; i = s->state[i].from) n++;
    Path p = {*from, *to, NEW_ARRAY(k->mem, State, (size_t)MAX(n, 0) + 1), n, s->full};
    for (int i = at; n > 0; i = s->state[i].from) p.step[--n] = s->state[i];
    PUSH(k->mem, k->path, k->n, k->cap, p);
    return &k->path[k->n - 1];
}

static Value *emit_path(Builder *b, const Path *p, Value *v) {
    for (int i = 0; i < p->n; i++) {
        const State *step = &p->step[i];
        Text attrs = text_new(b->mem);
        text_add(&attrs, "how=\"%s\"; axis=\"%s\"", optab[step->how].name,
                 mesh_axes_text(b->mem, &b->fn->mod->mesh, step->axis));
        if (step->dim >= 0) text_add(&attrs, "; dim=%d", step->dim);
        if (step->to >= 0) text_add(&attrs, "; to=%d", step->to);
        b->name = v->name;
        v = build_placed(b, OP_reshard, attrs.s, step->ty, v);
    }
    return v;
}

/* Returns what takes the place of the op's result. */
static Value *collect_one(Op *op, Searches *k) {
    const Func *f = op->fn;
    const Mesh *m = &f->mod->mesh;
    Type from = op->in[0]->ty, to = op->out[0]->ty;
    const Path *p = find_path(k, &from, &to);
    if (p->n < 0) {
        fail_op(op, "no collectives bring %%%s from %s to %s: %s", op->in[0]->name,
                type_text(f->mod->mem, m, &from), type_text(f->mod->mem, m, &to),
                p->full ? "too many placements are between them; write a reshard to one "
                          "of them first"
                        : "the sizes do not divide");
    }
    Builder b = build_before(op);
    return emit_path(&b, p, op->in[0]);
}

static bool collect_op(Op *op, Value **out, void *searches) {
    if (op->kind != OP_reshard || op_attr(op, "how")) return false;
    out[0] = collect_one(op, searches);
    return true;
}

void pass_collect(Module *m, const PassOptions *o) {
    Arena *mem = arena_scratch();
    Searches *k =
        o->paths ? known_searches(o->paths, &m->mesh, o) : searches_new(mem, &m->mesh, o);
    for (Func *f = m->first; f; f = f->next) func_rewrite(f, collect_op, k);
    arena_free(mem);
}
