/* search.c - see search.h. */
#include "frontend/search/search_state.h"
#include <math.h>
#include <stdlib.h>

/* ---- families ---- */

static Family *family_of(SearchSpace *b, int tp, int cp, int pp) {
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

/* Of what does not fit, with the batches that are read ahead. */
static double bytes_of(const Search *s, const Choice *c) {
    return c->remade >= 0 ? c->bytes : c->bytes + choice_ahead(s, c);
}

/* The fastest that fits counts; where none does, the smallest. */
static void note_family(const Search *s, Family *f, const Choice *c) {
    bool fits = c->remade >= 0;
    double bytes = bytes_of(s, c);
    f->choices++;
    f->fit += fits;
    bool better = fits ? c->bound < f->seconds : !f->fit && bytes < f->bytes;
    if (!better || s->probe[c->probe].is_bound) return;
    f->seconds = fits ? c->bound : INFINITY;
    f->bytes = bytes;
    f->best = *c;
}

static void take_choice(void *ctx, const Choice *c) {
    SearchSpace *b = ctx;
    Family *f = family_of(b, c->tp, c->cp, c->pp);
    Choice own = *c;
    own.family = (int)(f - b->r->family);
    if (c->remade >= 0)
        space_keep(b, &own);
    else
        f->unfit_bytes = MIN(f->unfit_bytes, bytes_of(b->s, c));
    note_family(b->s, f, &own);
}

/* One without overlap before a plan corrected it: what overlap was corrected by is in it too. */
static bool is_unsure(const SearchSpace *b, const Choice *c) {
    return c->no_overlap && !choice_extra(b->s, c)->planned;
}

/* Anew, with what plans corrected, and through the schedule. */
static void correct_families(SearchSpace *b) {
    SearchResult *r = b->r;
    Family *before = NEW_ARRAY(b->s->mem, Family, (size_t)r->nfamilies + 1);
    for (int i = 0; i < r->nfamilies; i++) {
        Family *f = &r->family[i];
        before[i] = *f;
        if (f->fit) f->fit = 0, f->seconds = f->bytes = INFINITY;
    }
    for (int i = 0; i < b->n; i++) {
        const Choice *c = b->by[i];
        if (before[c->family].fit && c->remade > REMADE_PLAN_TOO_LARGE &&
            !is_unsure(b, c))
            note_family(b->s, &r->family[c->family], c);
    }
    for (int i = 0; i < r->nfamilies; i++) {
        Family *f = &r->family[i];
        f->choices = before[i].choices;
        if (f->fit) f->seconds = search_seconds(b->s, &f->best);
        if (!f->fit) f->bytes = MIN(f->bytes, f->unfit_bytes);
        if (before[i].fit && isinf(f->bytes))
            f->refused = f->unplanned ? f->unplanned
                         : f->fit     ? "what was planned of it does not fit"
                                      : "none of it fits when it is planned";
    }
}

static int by_family(const void *a, const void *b) {
    const Family *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x->pp != y->pp ? x->pp - y->pp : x->tp - y->tp;
}

/* ---- seconds against bytes ---- */

/* Makes the programs that are not known yet and may have a choice of the front. */
static void make_front_probes(SearchSpace *b, Choice **by, int n) {
    Search *s = b->s;
    double least = INFINITY;
    bool *marked = NEW_ARRAY(s->mem, bool, (size_t)s->nprobes + 1);
    for (int i = 0; i < n; i++) {
        Choice *c = by[i];
        if (c->bound >= least || is_unsure(b, c) || marked[c->probe]) continue;
        double seconds = c->seconds > 0 ? c->seconds : search_seconds(s, c);
        if (s->probe[c->probe].is_bound)
            marked[c->probe] = seconds < least;
        else
            least = MIN(least, seconds);
    }
    for (int i = 0; i < s->nprobes && search_goes_on(s); i++)
        if (marked[i]) space_make_probe(b, i);
}

/* Those than which none takes fewer bytes in less time, by their bounds. */
static void find_front(SearchSpace *b) {
    Search *s = b->s;
    Choice **by = NEW_ARRAY(s->mem, Choice *, (size_t)b->n + 1);
    make_front_probes(b, by, space_by_bytes(b, by));
    int n = space_by_bytes(b, by);
    double least = INFINITY;
    b->r->front = NEW_ARRAY(s->mem, Choice, (size_t)n + 1);
    for (int i = 0; i < n; i++) {
        if (by[i]->bound >= least || is_unsure(b, by[i])) continue;
        if (s->probe[by[i]->probe].is_bound) continue; /* so make_front_probes found */
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
    SearchSpace b = {.s = search_open(mem, o), .r = &r};
    Choice *fastest;
    b.s->bounds_parts = !o->all_programs;
    search_each(b.s, take_choice, &b);
    space_sort(&b);
    return space_fastest(&b, &fastest, 1) ? fastest : NULL;
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
static void note_refused(SearchSpace *b) {
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
    SearchSpace b = {.s = search_open(mem, o), .r = &r};
    b.s->bounds_parts = !o->all_programs;
    search_each(b.s, take_choice, &b);
    b.alone_from = (int)b.s->choices;
    note_refused(&b);
    space_sort(&b);
    space_plan(&b);
    if (search_goes_on(b.s)) find_front(&b);
    r.stopped = !search_goes_on(b.s);
    if (!r.stopped) correct_families(&b);
    search_told(b.s);
    record_finish(b.s->record);
    if (r.nfamilies) qsort(r.family, (size_t)r.nfamilies, sizeof *r.family, by_family);
    r.choices = b.s->choices;
    r.probes = b.s->programs;
    r.room_bytes = search_room(b.s);
    return r;
}
