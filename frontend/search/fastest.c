/* fastest.c - all choices that fit, and the fastest of them by their pieces. */
#include "frontend/search/search_state.h"
#include <stdlib.h>

enum { CHOICE_BLOCK = 1 << 9 };

void space_keep(SearchSpace *b, const Choice *c) {
    if (b->n == b->nblocks * CHOICE_BLOCK)
        PUSH(b->s->mem, b->block, b->nblocks, b->block_cap,
             NEW_ARRAY(b->s->mem, Choice, CHOICE_BLOCK));
    while (b->nlast <= c->probe) PUSH(b->s->mem, b->last, b->nlast, b->last_cap, -1);
    Choice *kept = &b->block[b->nblocks - 1][b->n % CHOICE_BLOCK];
    *kept = *c;
    kept->before = b->last[c->probe];
    b->last[c->probe] = b->n++;
}

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
static void sort_keys(Keyed *k, int n) {
    if (n) qsort(k, (size_t)n, sizeof *k, by_key);
}

/* In the order of search_each. */
static Choice *space_choice(const SearchSpace *b, int i) {
    return &b->block[i / CHOICE_BLOCK][i % CHOICE_BLOCK];
}

Choice *space_last(const SearchSpace *b, int probe) {
    return probe < b->nlast && b->last[probe] >= 0 ? space_choice(b, b->last[probe])
                                                   : NULL;
}

Choice *space_before(const SearchSpace *b, const Choice *c) {
    return c->before >= 0 ? space_choice(b, c->before) : NULL;
}

/* Puts those that are new to b->by among the others. */
void space_sort(SearchSpace *b) {
    Arena *own = arena_new();
    int old = b->nby, n = b->n - old;
    Keyed *k = NEW_ARRAY(own, Keyed, (size_t)n + 1);
    for (int i = 0; i < n; i++) {
        Choice *c = space_choice(b, old + i);
        k[i] = (Keyed){c->first_bound, c->number, c};
        PUSH(b->s->mem, b->by, b->nby, b->by_cap, c);
    }
    sort_keys(k, n);
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

/* By the program's own seconds layers may be even, as those of another choice. */
static bool is_another(Search *s, const Choice *c) {
    return c->layers == LAYERS_BALANCED && !choice_may_balance(s, c);
}

static void leave_out(SearchSpace *b, Choice *c) {
    Family *f = &b->r->family[c->family];
    c->remade = REMADE_REFUSED;
    f->choices--;
    f->fit--;
    b->s->choices--;
}

void space_make_probe(SearchSpace *b, int probe) {
    Search *s = b->s;
    search_make_probe(s, probe);
    search_tell(s, b->r->top, b->r->ntop);
    for (Choice *c = space_last(b, probe); c; c = space_before(b, c)) {
        if (c->remade <= REMADE_PLAN_TOO_LARGE) continue;
        if (s->probe[probe].refused || is_another(s, c))
            leave_out(b, c);
        else
            choice_bound(s, c);
    }
}

/* Goes through the schedules of choices in the order of their bounds, until none can be one
 * of the k fastest. Bounds only grow when plans correct them. */
int space_fastest(SearchSpace *b, Choice **top, int k) {
    int n = 0;
    for (int i = 0; i < b->n; i++) {
        Choice *c = b->by[i];
        if (n == k && c->first_bound > top[k - 1]->seconds) break;
        if (c->remade < 0 || (n == k && c->bound > top[k - 1]->seconds)) continue;
        if (b->s->probe[c->probe].is_bound) {
            if (!search_goes_on(b->s)) continue;
            space_make_probe(b, c->probe);
            i--; /* it is looked at anew */
            continue;
        }
        if (!(c->seconds > 0)) {
            search_seconds(b->s, c);
            b->r->simulated++;
        }
        keep_fastest(top, &n, k, c);
    }
    return n;
}

int space_by_bytes(const SearchSpace *b, Choice **by) {
    Arena *own = arena_new();
    Keyed *k = NEW_ARRAY(own, Keyed, (size_t)b->n + 1);
    int n = 0;
    for (int i = 0; i < b->n; i++) {
        Choice *c = b->by[i];
        if (c->remade >= 0) k[n++] = (Keyed){choice_least_bytes(b->s, c), c->number, c};
    }
    sort_keys(k, n);
    for (int i = 0; i < n; i++) by[i] = k[i].c;
    arena_free(own);
    return n;
}
