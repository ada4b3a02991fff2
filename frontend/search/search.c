/* search.c - see search.h. */
#include "frontend/search/search_state.h"
#include <math.h>
#include <stdlib.h>

enum { CHOICE_BLOCK = 1 << 9 };

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

void space_keep(Space *b, const Choice *c) {
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
        space_keep(b, &own);
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

Choice *space_choice(const Space *b, int i) {
    return &b->block[i / CHOICE_BLOCK][i % CHOICE_BLOCK];
}

/* Puts those that are new to b->by among the others. */
void space_sort(Space *b) {
    Arena *own = arena_new();
    int old = b->nby, n = b->n - old;
    Keyed *k = NEW_ARRAY(own, Keyed, (size_t)n + 1);
    for (int i = 0; i < n; i++) {
        Choice *c = space_choice(b, old + i);
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
int space_fastest(Space *b, Choice **top, int k) {
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
    space_sort(&b);
    space_plan(&b);
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
