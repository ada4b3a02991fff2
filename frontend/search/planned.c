/* planned.c - the fastest choices as the planner has them. */
#include "frontend/config/config.h"
#include "frontend/search/search_state.h"
#include <math.h>
#include <stdlib.h>

/* Strategies that are planned at most, where none of them fits, and then of the smallest. */
enum {
    MOST_PLANS = 256,
    MOST_UNFIT = 1024, /* plans while none fits */
    MOST_SMALLEST = 32,
    MOST_PLANNED = MOST_UNFIT + 4 * MOST_SMALLEST
};

static void hash_flags(char **flag, int n, char keys[HASH_HEX_BYTES]) {
    Arena *own = arena_new();
    Text t = text_new(own);
    for (int i = 0; i < n; i++) text_add(&t, "%s\n", flag[i]);
    hash_hex(t.s, t.n, keys);
    arena_free(own);
}

static void make_plan(Search *s, const Verified *v, RecordedPlan *out) {
    Arena *own = arena_new();
    Catch caught;
    double room = search_room(s);
    if (CATCH(caught)) {
        Config *cfg = config_load_of(own, s->o.files, v->nflags, v->flag);
        cfg->dump_ir = "";
        out->cost = plan_cost(own, cfg, s->o.ranks, s->o.machine, s->threads, room);
        catch_end(&caught);
    } else {
        out->why = probe_reason(s->mem, caught.message);
    }
    arena_free(own);
    record_add_plan(s->record, out);
}

static void verify(Search *s, const Choice *c, Verified *v) {
    RecordedPlan p = {0};
    *v = (Verified){.c = *c};
    v->flag = search_flags(s->mem, s, c, &v->nflags);
    hash_flags(v->flag, v->nflags, v->keys);
    memcpy(p.keys, v->keys, sizeof p.keys);
    const RecordedPlan *found = record_plan(s->record, p.keys);
    if (!found) make_plan(s, v, &p);
    if (found) p = *found;
    v->why = p.why;
    v->seconds = p.cost.seconds;
    v->bytes = p.cost.bytes;
    v->sent_bytes = p.cost.sent_bytes;
    v->fits = !v->why && (double)(v->bytes + p.cost.ahead_bytes) <= search_room(s);
}

/* With the same keys. */
static Verified *find_verified(Search *s, SearchResult *r, const Choice *c) {
    Arena *own = arena_scratch();
    char keys[HASH_HEX_BYTES];
    int n;
    char **flag = search_flags(own, s, c, &n);
    hash_flags(flag, n, keys);
    arena_free(own);
    for (int i = 0; i < r->ntop; i++)
        if (!strcmp(r->top[i].keys, keys)) return &r->top[i];
    return NULL;
}

/* By pieces nothing is faster without overlap, nor smaller; so these are choices of their own only
 * when a plan has corrected those with it. */
static void add_alone(SearchSpace *b, const Verified *v, const Extra *e) {
    Search *s = b->s;
    bool same = !s->overlap || s->fixed[KNOB_OVERLAP] >= 0 || s->o.ranks == v->c.pp;
    if (same || v->c.no_overlap || v->c.parts > 1) return;
    for (const Choice *at = space_last(b, v->c.probe); at; at = space_before(b, at)) {
        Choice c = *at;
        if (!choice_is_like(&c, e) || c.remade <= REMADE_PLAN_TOO_LARGE) continue;
        c.no_overlap = true;
        choice_bound(s, &c);
        c.first_bound = c.bound;
        if (c.remade < 0) continue;
        c.number += b->alone_from;
        s->choices++;
        b->r->family[c.family].choices++;
        space_keep(b, &c);
    }
    space_sort(b);
}

/* What a plan has more than was reckoned, others like it have too (Extra). One that does not
 * fit and has no more adds a thousandth, so that each correction changes something and the
 * search ends. False: nothing was corrected. */
static bool correct(SearchSpace *b, const Verified *v) {
    Extra *e = choice_extra(b->s, &v->c);
    double more = MAX((double)v->bytes - v->c.bytes, 0.001 * (double)v->bytes);
    if (v->fits && e->planned) return false;
    if (!e->corrected) add_alone(b, v, e);
    e->corrected = true;
    if (v->fits)
        e->slower = MAX(1, v->seconds / v->c.seconds);
    else
        e->bytes += more;
    e->planned |= v->fits;
    for (Choice *c = space_last(b, v->c.probe); c; c = space_before(b, c))
        if (choice_is_like(c, e) && c->remade > REMADE_PLAN_TOO_LARGE)
            choice_bound(b->s, c);
    return true;
}

static void refuse(SearchSpace *b, Choice *c, const Verified *v) {
    Family *f = &b->r->family[c->family];
    if (!f->unplanned) f->unplanned = v->why;
    c->remade = REMADE_REFUSED;
}

static int by_planned(const void *a, const void *b) {
    const Verified *x = a, *y = b;
    if (x->fits != y->fits) return x->fits ? -1 : 1;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x->c.number - y->c.number;
}

static double fastest_seconds(const SearchResult *r) {
    double best = INFINITY;
    for (int i = 0; i < r->ntop; i++)
        if (r->top[i].fits) best = MIN(best, r->top[i].seconds);
    return best;
}

/* Is it to be planned? */
static bool is_promising(const SearchResult *r, const Choice *c, int k) {
    int fit = 0;
    for (int i = 0; i < r->ntop; i++) fit += r->top[i].fits;
    return fit < k || c->seconds < fastest_seconds(r);
}

static bool any_fits(const SearchResult *r) {
    return fastest_seconds(r) < INFINITY;
}

static bool is_full(const SearchResult *r) {
    return r->ntop >= (any_fits(r) && !r->by_bytes ? MOST_PLANS : MOST_UNFIT);
}

/* Plans it, unless the same has been; NULL: there is no room for it. */
static const Verified *plan_anew(SearchSpace *b, const Choice *c) {
    Search *s = b->s;
    SearchResult *r = b->r;
    Verified *v = find_verified(s, r, c);
    if (v || r->ntop == MOST_PLANNED) return v;
    v = &r->top[r->ntop++];
    verify(s, c, v);
    search_tell(s, r->top, r->ntop);
    return v;
}

/* With the placements that stator layer finds for its layers, which pieces do not know, where these
 * take less than so much of the seconds of layers. */
static void plan_inside(SearchSpace *b, const Choice *c, double part) {
    Choice inside = *c;
    const Inside *in = c->inside ? NULL : search_inside(b->s, c, part);
    if (!in) return;
    inside.inside = in->entries;
    inside.sequence_parallel = false;
    plan_anew(b, &inside);
}

enum { ZERO_LEVELS = ZERO_3 + 1 };

/* The fastest with its sequences a micro-batch and its way to split the vocabulary. */
typedef struct ToPlace {
    const Choice *c;
    struct ToPlace *next; /* of others */
} ToPlace;

static void keep_to_place(Arena *mem, ToPlace **first, const Choice *c) {
    ToPlace *p = *first;
    while (p && (p->c->batch != c->batch || p->c->splits_vocab != c->splits_vocab))
        p = p->next;
    if (!p) {
        p = NEW(mem, ToPlace);
        *p = (ToPlace){c, *first};
        *first = p;
    } else if (c->bound < p->c->bound) {
        p->c = c;
    }
}

/* Of each split of the ranks, level of ZeRO, micro-batch and split of the vocabulary, about which
 * pieces say least, the fastest whose layers may be placed otherwise. */
static ToPlace **fastest_to_place(const SearchSpace *b) {
    size_t n = (size_t)b->r->nfamilies * ZERO_LEVELS;
    ToPlace **of = NEW_ARRAY(b->s->mem, ToPlace *, n + 1);
    for (int i = 0; i < b->n; i++) {
        const Choice *c = b->by[i];
        if (c->remade < 0 || !inside_may(b->s, c)) continue;
        keep_to_place(b->s->mem, &of[c->family * ZERO_LEVELS + c->zero], c);
    }
    return of;
}

/* Where it would be the fastest of all if its layers had no messages. */
static void plan_placed(SearchSpace *b, const Choice *c) {
    double best = fastest_seconds(b->r);
    if (!search_goes_on(b->s)) return;
    double least = inside_least(b->s, c);
    if (c->bound * least >= best) return;
    Choice timed = *c;
    double seconds = search_seconds(b->s, &timed);
    if (seconds * least < best) plan_inside(b, c, MIN(1, best / seconds));
}

/* All of them, then those that were planned. */
static void plan_all_inside(SearchSpace *b) {
    SearchResult *r = b->r;
    ToPlace **of = fastest_to_place(b);
    for (int i = 0; i < r->nfamilies * ZERO_LEVELS; i++)
        for (const ToPlace *p = of[i]; p; p = p->next) plan_placed(b, p->c);
    int n = search_goes_on(b->s) ? MIN(b->s->o.tops, r->ntop) : 0;
    qsort(r->top, (size_t)r->ntop, sizeof *r->top, by_planned);
    for (int i = 0; i < n && r->top[i].fits; i++) plan_inside(b, &r->top[i].c, 1);
}

/* ---- with just as many layers made again as it takes ---- */

/* The choice of a plan that did not fit, with the most extra bytes with which it would be faster
 * than `best` by its pieces, and so with the most layers made again. False: that is less than half
 * of what the plan had more than its pieces, most of which stays whatever is made again. */
static bool still_faster(Search *s, const Verified *v, double best, Choice *c) {
    enum { HALVINGS = 16 };
    double low = v->c.extra_bytes, high = choice_room(s, &v->c);
    double least = low + 0.5 * MAX(0, (double)v->bytes - v->c.bytes);
    bool found = false;
    for (int i = 0; i < HALVINGS && high > least; i++) {
        Choice other = v->c;
        other.apart = true;
        other.extra_bytes = i ? (low + high) / 2 : least;
        bool faster = search_seconds(s, &other) < best && other.remade >= 0;
        if (faster) *c = other, low = other.extra_bytes;
        if (!faster) high = other.extra_bytes;
        found |= faster;
    }
    return found;
}

/* Halfway, again and again, between what does not fit and what does. */
static void plan_between(SearchSpace *b, double low, const Choice *fits) {
    enum { HALVINGS = 4 };
    Choice c = *fits;
    double high = fits->extra_bytes;
    c.remakes_all = false;
    for (int i = 0; i < HALVINGS && search_goes_on(b->s); i++) {
        c.extra_bytes = (low + high) / 2;
        search_seconds(b->s, &c);
        const Verified *v = plan_anew(b, &c);
        if (!v) return;
        if (v->fits)
            high = c.extra_bytes;
        else
            low = c.extra_bytes;
    }
}

/* What a plan that did not fit took more than its pieces counted for all choices like it, with any
 * number of layers made again, which may have been too much. So each that did not fit is tried
 * with the most of them with which it would be the fastest: where that does not fit either it
 * cannot be. */
static void plan_unfit_again(SearchSpace *b) {
    Search *s = b->s;
    SearchResult *r = b->r;
    const int n = r->ntop;
    for (int i = 0; i < n && search_goes_on(s); i++) {
        Choice c;
        if (r->top[i].fits || r->top[i].why) continue;
        if (!still_faster(s, &r->top[i], fastest_seconds(r), &c)) continue;
        const Verified *v = plan_anew(b, &c);
        if (v && v->fits) plan_between(b, r->top[i].c.extra_bytes, &c);
    }
}

/* ---- what plans of others say too little of ---- */

/* Pieces without overlap were up to 0.7 % slower than plans. */
static const double nearly = 1.01;

/* The choice as if nothing was known of plans; false: it is not nearly as fast as the fastest. */
static bool may_be_faster(SearchSpace *b, const Choice *of, bool no_overlap, Choice *c) {
    *c = *of;
    c->apart = true;
    c->no_overlap |= no_overlap;
    c->extra_bytes = 0;
    return search_seconds(b->s, c) < nearly * fastest_seconds(b->r) && c->remade >= 0;
}

/* Layers that are all made again may take less than some of them, which are a loop of their own. */
static void plan_all_again(SearchSpace *b, const Choice *c) {
    Choice all = *c;
    all.remakes_all = true;
    if (search_seconds(b->s, &all) < nearly * fastest_seconds(b->r) && all.remade >= 0)
        plan_anew(b, &all);
}

/* Plans it, and, where it does not fit, with as many layers made again as it takes. */
static void plan_fitting(SearchSpace *b, const Choice *c) {
    const Verified *v = plan_anew(b, c);
    Choice more;
    if (!v || v->why || b->s->fixed[KNOB_RECOMPUTE] >= 0) return;
    bool fits = v->fits;
    double low = v->c.extra_bytes;
    if (!fits || c->remade > 0) plan_all_again(b, c);
    if (fits || !still_faster(b->s, v, fastest_seconds(b->r), &more)) return;
    v = plan_anew(b, &more);
    if (v && v->fits) plan_between(b, low, &more);
}

typedef struct Candidates {
    Choice *c;
    int n, cap;
} Candidates;

static int by_seconds(const void *a, const void *b) {
    const Choice *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    if (x->number != y->number) return x->number - y->number;
    return x->no_overlap - y->no_overlap;
}

/* With overlap or without. */
static void add_candidates(SearchSpace *b, const Choice *of, Candidates *all) {
    const Search *s = b->s;
    bool may_alone = s->overlap && s->fixed[KNOB_OVERLAP] < 0 && s->o.ranks > of->pp;
    Choice c;
    for (int alone = 0; alone <= may_alone; alone++)
        if (may_be_faster(b, of, alone, &c)) PUSH(s->mem, all->c, all->n, all->cap, c);
}

/* What plans of others had more may be wrong for a choice. So each is planned that may be the fastest
 * by its pieces alone. */
static void plan_each_that_may_be(SearchSpace *b) {
    Search *s = b->s;
    Candidates all = {0};
    double best = nearly * fastest_seconds(b->r);
    for (int i = 0; i < b->n && search_goes_on(s); i++) {
        const Choice *c = b->by[i];
        if (c->first_bound >= best) break;
        if (c->remade == REMADE_REFUSED) continue;
        if (s->probe[c->probe].is_bound) space_make_probe(b, c->probe);
        if (c->remade != REMADE_REFUSED) add_candidates(b, c, &all);
    }
    if (all.n) qsort(all.c, (size_t)all.n, sizeof *all.c, by_seconds);
    for (int i = 0; i < all.n && search_goes_on(s) && !is_full(b->r); i++)
        if (all.c[i].seconds < nearly * fastest_seconds(b->r)) plan_fitting(b, &all.c[i]);
}

/* ---- where the fastest do not fit ---- */

/* The choice with as many layers made again as may be, and nothing that plans of others had more;
 * false: it does not fit by its pieces. *least: its bytes by them. */
static bool as_small(Search *s, const Choice *of, Choice *c, double *least) {
    double room = choice_room(s, of);
    if (of->remade == REMADE_REFUSED) return false; /* it may have no pieces */
    *c = *of;
    c->apart = true;
    c->extra_bytes = room;
    search_seconds(s, c);
    *least = c->bytes - room;
    if (!(*least <= room)) return false;
    c->extra_bytes = s->fixed[KNOB_RECOMPUTE] < 0 ? (room - *least) * (1 - 1e-9) : 0;
    c->remakes_all = s->fixed[KNOB_RECOMPUTE] < 0;
    search_seconds(s, c);
    return c->remade >= 0;
}

typedef struct Small {
    Choice c;
    double bytes; /* by its pieces */
    bool
        first; /* of its way to split a layer, whose pieces are wrong by the same, and to give
                     layers to stages */
} Small;

static int by_small(const void *a, const void *b) {
    const Small *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x->c.number - y->c.number;
}

/* In the order of their bytes. */
static Small *smallest(const SearchSpace *b, int *n) {
    Search *s = b->s;
    Small *of = NEW_ARRAY(s->mem, Small, (size_t)b->n + 1);
    bool *seen = NEW_ARRAY(s->mem, bool, (size_t)s->nprobes *LAYERS_WAYS + 1);
    *n = 0;
    for (int i = 0; i < b->n; i++) *n += as_small(s, b->by[i], &of[*n].c, &of[*n].bytes);
    qsort(of, (size_t)*n, sizeof *of, by_small);
    for (int i = 0; i < *n; i++) {
        bool *way = &seen[of[i].c.probe * LAYERS_WAYS + of[i].c.layers];
        of[i].first = !*way;
        *way = true;
    }
    return of;
}

/* False: one fits, or the user wants an end. */
static bool plan_small(SearchSpace *b, const Choice *of) {
    Search *s = b->s;
    bool may_alone = s->overlap && s->fixed[KNOB_OVERLAP] < 0 && s->o.ranks > of->pp;
    for (int alone = 0; alone <= may_alone; alone++) {
        Choice c = *of;
        if (any_fits(b->r) || !search_goes_on(s)) return false;
        c.no_overlap |= alone;
        const Verified *v = plan_anew(b, &c);
        if (v && v->fits) plan_between(b, 0, &c);
    }
    return true;
}

/* What plans have more than their pieces counts for all that are like them, so a search by seconds
 * may go through thousands before one fits. The smallest are planned until one does, those of other
 * ways first, without overlap too, which takes memory that pieces do not know of. */
static void plan_smallest(SearchSpace *b) {
    Search *s = b->s;
    int n;
    for (int i = 0; i < s->nprobes && search_goes_on(s); i++)
        if (s->probe[i].is_bound) space_make_probe(b, i);
    const Small *of = smallest(b, &n);
    b->r->by_bytes = true;
    for (int first = 1; first >= 0; first--)
        for (int i = 0, tried = 0; i < n && tried < (first ? MOST_SMALLEST : 8); i++) {
            if (of[i].first != first) continue;
            tried++;
            if (!plan_small(b, &of[i].c)) return;
        }
}

static const char *why_all_refused(const SearchResult *r) {
    for (int i = 0; i < r->ntop; i++)
        if (!r->top[i].why) return NULL;
    return r->ntop ? r->top[0].why : NULL;
}

/* Plans the fastest; where one is slower or larger than was reckoned, or cannot be planned, the
 * fastest are looked for again. */
void space_plan(SearchSpace *b) {
    Search *s = b->s;
    SearchResult *r = b->r;
    Choice **top = NEW_ARRAY(s->mem, Choice *, (size_t)s->o.tops);
    r->top = NEW_ARRAY(s->mem, Verified, MOST_PLANNED);
    for (bool again = true; again && !is_full(r);) {
        if (!search_goes_on(s) && any_fits(r)) break;
        if (r->ntop >= MOST_PLANS && !any_fits(r) && !r->by_bytes) plan_smallest(b);
        int n = space_fastest(b, top, s->o.tops);
        again = false;
        for (int i = 0; i < n && !again && !is_full(r); i++) {
            const Verified *v = find_verified(s, r, top[i]);
            if (v && !v->fits) {
                top[i]->remade = REMADE_PLAN_TOO_LARGE; /* its pieces are too small */
                again = true;
            }
            if (v || !is_promising(r, top[i], s->o.tops)) continue;
            v = plan_anew(b, top[i]);
            if (v->why) refuse(b, top[i], v);
            again = v->why || correct(b, v);
        }
    }
    if (!any_fits(r) && !r->by_bytes) plan_smallest(b);
    if (any_fits(r) && s->fixed[KNOB_RECOMPUTE] < 0) plan_unfit_again(b);
    if (any_fits(r)) plan_each_that_may_be(b);
    r->gave_up = is_full(r);
    plan_all_inside(b);
    r->planned = r->ntop;
    r->why = why_all_refused(r);
    qsort(r->top, (size_t)r->ntop, sizeof *r->top, by_planned);
    while (r->ntop && !r->top[r->ntop - 1].fits) r->ntop--;
}
