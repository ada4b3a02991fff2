/* search.c - see search.h. */
#include "frontend/config/config_state.h"
#include "frontend/search/search_state.h"
#include <math.h>
#include <stdlib.h>

/* Strategies that are planned at most, and where none of them fits. */
enum { MOST_PLANS = 256, MOST_UNFIT = 1024, CHOICE_BLOCK = 1 << 9 };

typedef struct Space { /* all choices that fit; by first_bound */
    Search *s;
    Choice **block; /* of CHOICE_BLOCK each */
    int n, nblocks, block_cap;
    Choice **by;     /* nby of them, sorted */
    int nby, by_cap; /* all, when sort_choices is done */
    int alone_from;  /* numbers of those without overlap */
    SearchResult *r;
} Space;

/* ---- families ---- */

static Family *family_of(Space *b, int tp, int cp, int pp) {
    SearchResult *r = b->r;
    for (int i = r->nfamilies - 1; i >= 0; i--) {
        Family *f = &r->family[i];
        if (f->tp == tp && f->cp == cp && f->pp == pp) return f;
    }
    const Family none = {.tp = tp,
                         .cp = cp,
                         .pp = pp,
                         .seconds = INFINITY,
                         .bytes = INFINITY,
                         .unfit_bytes = INFINITY};
    PUSH(b->s->mem, r->family, r->nfamilies, r->family_cap, none);
    return &r->family[r->nfamilies - 1];
}

/* The fastest that fits counts; where none does, the smallest. */
static void note_family(Family *f, const Choice *c) {
    bool fits = c->remade >= 0;
    f->choices++;
    f->fit += fits;
    bool better = fits ? c->bound < f->seconds : !f->fit && c->bytes < f->bytes;
    if (!better) return;
    f->seconds = fits ? c->bound : INFINITY;
    f->bytes = c->bytes;
    f->best = *c;
}

static void keep_choice(Space *b, const Choice *c) {
    if (b->n == b->nblocks * CHOICE_BLOCK)
        PUSH(b->s->mem, b->block, b->nblocks, b->block_cap,
             NEW_ARRAY(b->s->mem, Choice, CHOICE_BLOCK));
    b->block[b->nblocks - 1][b->n++ % CHOICE_BLOCK] = *c;
}

static void take_choice(void *ctx, const Choice *c) {
    Space *b = ctx;
    Family *f = family_of(b, c->tp, c->cp, c->pp);
    Choice own = *c;
    own.family = (int)(f - b->r->family);
    if (c->remade >= 0)
        keep_choice(b, &own);
    else
        f->unfit_bytes = MIN(f->unfit_bytes, c->bytes);
    note_family(f, &own);
}

/* One without overlap before a plan corrected it: what overlap was corrected by is in it too. */
static bool is_unsure(const Space *b, const Choice *c) {
    return c->alone && !choice_extra(b->s, c)->planned;
}

/* Anew, with what plans corrected, and through the schedule. */
static void correct_families(Space *b) {
    SearchResult *r = b->r;
    Family *before = NEW_ARRAY(b->s->mem, Family, (size_t)r->nfamilies + 1);
    for (int i = 0; i < r->nfamilies; i++) {
        Family *f = &r->family[i];
        before[i] = *f;
        if (f->fit) f->fit = 0, f->seconds = f->bytes = INFINITY;
    }
    for (int i = 0; i < b->n; i++) {
        const Choice *c = b->by[i];
        if (before[c->family].fit && c->remade > -2 && !is_unsure(b, c))
            note_family(&r->family[c->family], c);
    }
    for (int i = 0; i < r->nfamilies; i++) {
        Family *f = &r->family[i];
        f->choices = before[i].choices;
        if (f->fit) f->seconds = search_seconds(b->s, &f->best);
        if (!f->fit) f->bytes = MIN(f->bytes, f->unfit_bytes);
        if (before[i].fit && isinf(f->bytes)) f->refused = "none of it can be planned";
    }
}

static int by_family(const void *a, const void *b) {
    const Family *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x->pp != y->pp ? x->pp - y->pp : x->tp - y->tp;
}

/* ---- the fastest by their pieces ---- */

typedef struct Keyed {
    double key;
    int number;
    Choice *c;
} Keyed;

static int by_key(const void *a, const void *b) {
    const Keyed *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->number - y->number;
}

/* Keys lie beside one another, as choices are too many for the caches. */
static void sort_by_keys(Keyed *k, int n, Choice **by) {
    if (n) qsort(k, (size_t)n, sizeof *k, by_key);
    for (int i = 0; i < n; i++) by[i] = k[i].c;
}

static Choice *choice_at(const Space *b, int i) {
    return &b->block[i / CHOICE_BLOCK][i % CHOICE_BLOCK];
}

/* Puts those that are new to b->by among the others. */
static void sort_choices(Space *b) {
    Arena *own = arena_new();
    int old = b->nby, n = b->n - old;
    Keyed *k = NEW_ARRAY(own, Keyed, (size_t)n + 1);
    for (int i = 0; i < n; i++) {
        Choice *c = choice_at(b, old + i);
        k[i] = (Keyed){c->first_bound, c->number, c};
        PUSH(b->s->mem, b->by, b->nby, b->by_cap, c);
    }
    if (n) qsort(k, (size_t)n, sizeof *k, by_key);
    /* what is not moved yet is by[0 .. old) and k[0 .. n) */
    for (int at = b->n; n > 0;) {
        bool later = old && b->by[old - 1]->first_bound > k[n - 1].key;
        b->by[--at] = later ? b->by[--old] : k[--n].c;
    }
    arena_free(own);
}

/* Of equally fast ones the smaller, then the one that comes first. */
static int by_seconds(const void *a, const void *b) {
    const Choice *x = *(Choice *const *)a, *y = *(Choice *const *)b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x->number - y->number;
}

static void keep_fastest(Choice **top, int *n, int k, Choice *c) {
    if (*n == k && by_seconds(&c, &top[k - 1]) >= 0) return;
    int at = *n < k ? (*n)++ : k - 1;
    for (; at > 0 && by_seconds(&c, &top[at - 1]) < 0; at--) top[at] = top[at - 1];
    top[at] = c;
}

/* Goes through the schedules of choices in the order of their bounds, until none can be one
 * of the k fastest. Bounds only grow when plans correct them. */
static int find_fastest(Space *b, Choice **top, int k) {
    int n = 0;
    for (int i = 0; i < b->n; i++) {
        Choice *c = b->by[i];
        if (n == k && c->first_bound > top[k - 1]->seconds) break;
        if (c->remade < 0 || (n == k && c->bound > top[k - 1]->seconds)) continue;
        if (!(c->seconds > 0)) {
            search_seconds(b->s, c);
            b->r->simulated++;
        }
        keep_fastest(top, &n, k, c);
    }
    return n;
}

/* ---- with the planner ---- */

static void hash_flags(const Verified *v, char keys[33]) {
    Arena *own = arena_new();
    Text t = text_new(own);
    for (int i = 0; i < v->nflags; i++) text_add(&t, "%s\n", v->flag[i]);
    hash_hex(t.s, t.n, keys);
    arena_free(own);
}

static void make_plan(Search *s, const Verified *v, RecordedPlan *out) {
    Arena *own = arena_new();
    Catch caught;
    double room = search_room(s) + s->ahead_bytes;
    if (CATCH(caught)) {
        Config *cfg = config_load(own, s->o.path, v->nflags, v->flag);
        PlanCost p = plan_cost(own, cfg, s->o.ranks, s->o.machine, s->threads, room);
        out->seconds = p.seconds;
        out->bytes = p.bytes;
        out->ahead_bytes = p.ahead_bytes;
        out->sent_bytes = p.sent_bytes;
        catch_end(&caught);
    } else {
        out->why = arena_strdup(s->mem, caught.message);
    }
    arena_free(own);
    record_add_plan(s->record, out);
}

static void verify(Search *s, const Choice *c, Verified *v) {
    RecordedPlan p = {0};
    *v = (Verified){.c = *c};
    v->flag = search_flags(s->mem, s, c, &v->nflags);
    hash_flags(v, p.keys);
    const RecordedPlan *found = record_plan(s->record, p.keys);
    if (!found) make_plan(s, v, &p);
    if (found) p = *found;
    v->why = p.why;
    v->seconds = p.seconds;
    v->bytes = p.bytes;
    v->sent_bytes = p.sent_bytes;
    v->fits =
        !v->why && (double)(p.bytes + p.ahead_bytes) <= search_room(s) + s->ahead_bytes;
}

/* With the same keys. */
static Verified *find_verified(Search *s, SearchResult *r, const Choice *c) {
    int n;
    char **flag = NULL;
    for (int i = 0; i < r->ntop; i++) {
        const Verified *v = &r->top[i];
        if (v->c.number != c->number && !c->inside) continue;
        if (!flag) flag = search_flags(s->mem, s, c, &n);
        bool same = n == v->nflags;
        for (int k = 0; same && k < n; k++) same = !strcmp(flag[k], v->flag[k]);
        if (same) return &r->top[i];
    }
    return NULL;
}

/* By pieces nothing is faster without overlap, nor smaller; so these are choices of their own only
 * when a plan has corrected those with it. */
static void add_alone(Space *b, const Verified *v, const Extra *e) {
    Search *s = b->s;
    bool same = !s->overlap || s->fixed[KNOB_OVERLAP] >= 0 || s->o.ranks == v->c.pp;
    int n = b->n;
    if (same || v->c.alone || v->c.parts > 1) return;
    for (int i = 0; i < n; i++) {
        Choice c = *choice_at(b, i);
        if (c.probe != v->c.probe || !choice_is_like(&c, e) || c.remade == -2) continue;
        c.alone = true;
        choice_bound(s, &c);
        c.first_bound = c.bound;
        if (c.remade < 0) continue;
        c.number += b->alone_from;
        s->choices++;
        b->r->family[c.family].choices++;
        keep_choice(b, &c);
    }
    sort_choices(b);
}

/* What a plan has more than was reckoned, others like it have too (Extra). One that does not
 * fit and has no more adds a thousandth, so that each correction changes something and the
 * search ends. False: nothing was corrected. */
static bool correct(Space *b, const Verified *v) {
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
    for (int i = 0; i < b->n; i++) {
        Choice *c = b->by[i];
        bool like = c->probe == v->c.probe && choice_is_like(c, e);
        if (like && c->remade > -2) choice_bound(b->s, c);
    }
    return true;
}

static void drop(Space *b, const Verified *v) {
    for (int i = 0; i < b->n; i++)
        if (b->by[i]->number == v->c.number) b->by[i]->remade = -2;
}

static int by_planned(const void *a, const void *b) {
    const Verified *x = a, *y = b;
    if (x->fits != y->fits) return x->fits ? -1 : 1;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x->c.number - y->c.number;
}

/* Pieces are faster than plans, by a percent or more, so what they promise less than that is
 * none. */
static const double promised = 1 - 0.01;

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
    return fit < k || c->seconds < promised * fastest_seconds(r);
}

static bool any_fits(const SearchResult *r) {
    return fastest_seconds(r) < INFINITY;
}

static bool is_full(const SearchResult *r) {
    return r->ntop >= (any_fits(r) ? MOST_PLANS : MOST_UNFIT);
}

/* With the placements that stator layer finds for its layers, which pieces do not know. */
static void plan_inside(Space *b, const Choice *c) {
    Search *s = b->s;
    SearchResult *r = b->r;
    Choice inside = *c;
    const Inside *in = c->inside ? NULL : search_inside(s, c);
    if (!in || !(in->gain < 1) || r->ntop == MOST_UNFIT) return;
    inside.inside = true;
    inside.sp = false;
    if (!find_verified(s, r, &inside)) verify(s, &inside, &r->top[r->ntop++]);
}

enum { ZERO_LEVELS = ZERO_3 + 1 };

/* Of each split of the ranks and level of ZeRO, about which pieces say least, the fastest whose
 * layers may be placed otherwise; NULL: none. */
static const Choice **fastest_to_place(const Space *b) {
    size_t n = (size_t)b->r->nfamilies * ZERO_LEVELS;
    const Choice **of = NEW_ARRAY(b->s->mem, const Choice *, n + 1);
    for (int i = 0; i < b->n; i++) {
        const Choice *c = b->by[i];
        if (c->remade < 0 || !inside_may(b->s, c)) continue;
        const Choice **best = &of[c->family * ZERO_LEVELS + c->zero];
        if (!*best || c->bound < (*best)->bound) *best = c;
    }
    return of;
}

/* Where it would be the fastest of all if its layers had no messages; then those that were
 * planned. */
static void plan_all_inside(Space *b) {
    SearchResult *r = b->r;
    const Choice **of = fastest_to_place(b);
    for (int i = 0; i < r->nfamilies * ZERO_LEVELS && search_goes_on(b->s); i++) {
        const Choice *c = of[i];
        double best = promised * fastest_seconds(r);
        if (!c || c->bound * inside_least(b->s, c) >= best) continue;
        const Inside *in = search_inside(b->s, c);
        if (in && c->bound * in->gain < best) plan_inside(b, c);
    }
    int n = search_goes_on(b->s) ? MIN(b->s->o.tops, r->ntop) : 0;
    qsort(r->top, (size_t)r->ntop, sizeof *r->top, by_planned);
    for (int i = 0; i < n && r->top[i].fits; i++) plan_inside(b, &r->top[i].c);
}

/* Plans the fastest; where one is slower or larger than was reckoned, or cannot be planned, the
 * fastest are looked for again. */
static void plan_fastest(Space *b) {
    Search *s = b->s;
    SearchResult *r = b->r;
    Choice **top = NEW_ARRAY(s->mem, Choice *, (size_t)s->o.tops);
    r->top = NEW_ARRAY(s->mem, Verified, MOST_UNFIT);
    for (bool again = true; again && !is_full(r);) {
        if (!search_goes_on(s) && any_fits(r)) break;
        int n = find_fastest(b, top, s->o.tops);
        again = false;
        for (int i = 0; i < n && !again && !is_full(r); i++) {
            Verified *v = find_verified(s, r, top[i]);
            if (v && !v->fits) {
                drop(b, v); /* its pieces are too small still */
                again = true;
            }
            if (v || !is_promising(r, top[i], s->o.tops)) continue;
            v = &r->top[r->ntop++];
            verify(s, top[i], v);
            search_tell(s, r->top, r->ntop);
            if (v->why) drop(b, v);
            again = v->why || correct(b, v);
        }
    }
    r->gave_up = is_full(r);
    plan_all_inside(b);
    r->planned = r->ntop;
    qsort(r->top, (size_t)r->ntop, sizeof *r->top, by_planned);
    while (r->ntop && !r->top[r->ntop - 1].fits) r->ntop--;
}

/* ---- seconds against bytes ---- */

/* Those that fit, by bytes; returns how many. */
static int sort_by_bytes(const Space *b, Choice **by) {
    Arena *own = arena_new();
    Keyed *k = NEW_ARRAY(own, Keyed, (size_t)b->n + 1);
    int n = 0;
    for (int i = 0; i < b->n; i++) {
        Choice *c = b->by[i];
        if (c->remade >= 0) k[n++] = (Keyed){c->bytes, c->number, c};
    }
    sort_by_keys(k, n, by);
    arena_free(own);
    return n;
}

/* Those than which none takes fewer bytes in less time, by their bounds. */
static void find_front(Space *b) {
    Search *s = b->s;
    Choice **by = NEW_ARRAY(s->mem, Choice *, (size_t)b->n + 1);
    int n = sort_by_bytes(b, by);
    double least = INFINITY;
    b->r->front = NEW_ARRAY(s->mem, Choice, (size_t)n + 1);
    for (int i = 0; i < n; i++) {
        if (by[i]->bound >= least || is_unsure(b, by[i])) continue;
        if (!(by[i]->seconds > 0)) search_seconds(s, by[i]);
        if (by[i]->seconds >= least) continue;
        least = by[i]->seconds;
        int last = b->r->nfront - 1;
        if (last < 0 || b->r->front[last].bytes < by[i]->bytes)
            last = b->r->nfront++; /* of as many bytes the faster one stays */
        b->r->front[last] = *by[i];
    }
}

Choice *search_fastest(Arena *mem, const SearchOptions *o) {
    SearchResult r = {0};
    Space b = {.s = search_open(mem, o), .r = &r};
    Choice *fastest;
    search_each(b.s, take_choice, &b);
    sort_choices(&b);
    return find_fastest(&b, &fastest, 1) ? fastest : NULL;
}

/* ---- the whole ---- */

static bool is_taken(const Search *s, const ProbeKey *key) {
    for (int i = 0; i < s->nprobes; i++) {
        const Probe *p = &s->probe[i];
        if (p->key.tp == key->tp && p->key.cp == key->cp && !p->refused) return true;
    }
    return false;
}

/* Ways to split that are refused altogether; the first that was tried, without
 * sequence_parallel, says why. */
static void note_refused(Space *b) {
    for (int i = 0; i < b->s->nprobes; i++) {
        const Probe *p = &b->s->probe[i];
        if (!p->refused || is_taken(b->s, &p->key)) continue;
        Family *f = family_of(b, p->key.tp, p->key.cp, 0);
        if (!f->refused) f->refused = p->refused;
    }
    for (int i = 0; i < b->s->nleft_out; i++) {
        const Family *l = &b->s->left_out[i];
        family_of(b, l->tp, l->cp, l->pp)->refused = l->refused;
    }
}

SearchResult search_run(Arena *mem, const SearchOptions *o) {
    SearchResult r = {0};
    Space b = {.s = search_open(mem, o), .r = &r};
    search_each(b.s, take_choice, &b);
    b.alone_from = (int)b.s->choices;
    note_refused(&b);
    sort_choices(&b);
    plan_fastest(&b);
    if (search_goes_on(b.s)) find_front(&b);
    r.stopped = !search_goes_on(b.s);
    if (!r.stopped) correct_families(&b);
    search_told(b.s);
    record_finish(b.s->record);
    if (r.nfamilies) qsort(r.family, (size_t)r.nfamilies, sizeof *r.family, by_family);
    r.choices = b.s->choices;
    r.probes = b.s->nprobes;
    r.room_bytes = search_room(b.s);
    return r;
}
