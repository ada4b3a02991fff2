/* frame.c - see frame.h. Buffers go, by falling size, to the lowest offset where they fit. */
#include "passes/lower/frame.h"
#include <stdlib.h>

static int by_size(const void *a, const void *b) {
    const FrameBuffer *x = *(FrameBuffer *const *)a, *y = *(FrameBuffer *const *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->first != y->first ? (x->first < y->first ? -1 : 1) : x->nth - y->nth;
}

/* ---- how near two buffers may be ---- */

static bool share_a_loop(const Stack *r, const Stack *w) {
    return r->loop && r->loop == w->loop && !r->written && w->written;
}

/* How far behind the start of the lower of two stacks of n slices the other one may start, of
 * whose slice i the lower one's slices up to i must keep clear: lower + (i + 1) low <= upper +
 * i up for every i. */
static int64_t slices_distance(int64_t low, int64_t up, int64_t n) {
    return align_up(MAX(low, n * low - (n - 1) * up));
}

/* How far behind a's start b must begin at least, if it begins behind it. In a loop that goes
 * backward what it writes may lie over the end of what it has read; in one that goes forward
 * what it still reads over the end of what it has written. */
static int64_t distance(const FrameBuffer *a, const FrameBuffer *b) {
    const Stack *x = &a->stack, *y = &b->stack;
    bool onto_read = share_a_loop(x, y) && x->reverse;
    bool under_read = share_a_loop(y, x) && !x->reverse;
    if (!onto_read && !under_read) return a->bytes;
    return slices_distance(x->slice_bytes, y->slice_bytes, x->times);
}

bool frame_slices_pass(const Stack *r, int64_t from, const Stack *w, int64_t to) {
    if (!share_a_loop(r, w) || r->times != w->times) return false;
    for (int64_t i = 0; i < r->times; i++) {
        /* what this run and later ones read */
        int64_t low = r->reverse ? 0 : i, high = r->reverse ? i + 1 : r->times;
        int64_t begin = to + i * w->slice_bytes, end = begin + w->slice_bytes;
        if (end > from + low * r->slice_bytes && begin < from + high * r->slice_bytes)
            return false;
    }
    return true;
}

/* ---- the lowest offset ---- */

/* Those that have an offset, in its order, in groups of neighbours that know when the first of
 * them begins to live and the last one ends: most groups live at another time than what looks
 * for a place, and are passed as a whole. */
enum { GROUP = 32 };
typedef struct Group {
    FrameBuffer *at[GROUP];
    int n, first, last;
    struct Group *next;
} Group;

typedef struct Placed {
    Arena *mem;
    Group *groups; /* NULL: none is placed */
} Placed;

static bool live_together(const FrameBuffer *a, const FrameBuffer *b) {
    return a->first <= b->last && b->first <= a->last;
}

/* The lowest offset from `at` on where b is clear of all placed buffers. */
static int64_t lowest_offset(const Placed *p, const FrameBuffer *b, int64_t at) {
    bool near = false; /* is b nearer before a buffer than its own size? */
    for (const Group *g = p->groups, *next; g; g = next) {
        next = g->next;
        bool together = g->first <= b->last && b->first <= g->last;
        for (int i = 0; i < g->n && together; i++) {
            const FrameBuffer *s = g->at[i];
            if (!live_together(s, b)) continue;
            if (s->offset >= at + b->bytes) return at;
            if (s->offset >= at + distance(b, s)) {
                near = true;
                continue;
            }
            int64_t behind = s->offset + distance(s, b);
            if (behind <= at) continue;
            at = behind;
            if (!near) continue;
            near = false;
            next = p->groups; /* it may now be too near to one that it was before */
            break;
        }
    }
    return at;
}

static void set_lives(Group *g) {
    g->first = g->at[0]->first;
    g->last = g->at[0]->last;
    for (int i = 1; i < g->n; i++) {
        g->first = MIN(g->first, g->at[i]->first);
        g->last = MAX(g->last, g->at[i]->last);
    }
}

static void split(Arena *mem, Group *g) {
    Group *half = NEW(mem, Group);
    *half = (Group){.n = g->n / 2, .next = g->next};
    g->n -= half->n;
    memcpy(half->at, g->at + g->n, (size_t)half->n * sizeof *half->at);
    g->next = half;
    set_lives(g);
    set_lives(half);
}

/* Behind all that are not above it. */
static void place(Placed *p, FrameBuffer *b, int64_t offset) {
    Group *g = p->groups;
    if (!g) {
        g = p->groups = NEW(p->mem, Group);
        *g = (Group){.n = 0, .first = b->first, .last = b->last};
    }
    while (g->next && g->next->at[0]->offset <= offset) g = g->next;
    int at = g->n++;
    for (; at > 0 && g->at[at - 1]->offset > offset; at--) g->at[at] = g->at[at - 1];
    g->at[at] = b;
    g->first = MIN(g->first, b->first);
    g->last = MAX(g->last, b->last);
    b->offset = offset;
    b->placed = true;
    if (g->n == GROUP) split(p->mem, g);
}

/* Both of a pair, the one `after` behind the other. */
static void place_pair(Placed *p, FrameBuffer *lower, FrameBuffer *upper, int64_t after) {
    for (int64_t at = 0;;) {
        at = lowest_offset(p, lower, at);
        int64_t above = lowest_offset(p, upper, at + after);
        if (above == at + after) {
            place(p, lower, at);
            place(p, upper, above);
            return;
        }
        at = above - after;
    }
}

/* ---- pairs ---- */

/* The bytes that two stacks of a loop save when one lies partly over the other. */
static int64_t saved_bytes(const FrameBuffer *a, const FrameBuffer *b) {
    int64_t behind = a->bytes - distance(a, b), before = b->bytes - distance(b, a);
    return MAX(behind, before);
}

/* Each written stack, the largest first, takes the read one with which it saves the most. */
static bool make_pairs(FrameBuffer **sorted, int n) {
    bool any = false;
    for (int i = 0; i < n; i++) {
        FrameBuffer *w = sorted[i], *best = NULL;
        if (!w->stack.loop || !w->stack.written) continue;
        int64_t most = 0;
        for (int k = 0; k < n; k++) {
            FrameBuffer *r = sorted[k];
            if (r->partner || !share_a_loop(&r->stack, &w->stack)) continue;
            int64_t saved = saved_bytes(r, w);
            if (saved > most) most = saved, best = r;
        }
        if (!best) continue;
        best->partner = w;
        w->partner = best;
        any = true;
    }
    return any;
}

/* ---- all ---- */

static int64_t place_all(Arena *mem, FrameBuffer **sorted, int n, bool pairs) {
    Placed p = {.mem = mem};
    int64_t bytes = 0;
    for (int i = 0; i < n; i++) sorted[i]->placed = false;
    for (int i = 0; i < n && pairs; i++) {
        FrameBuffer *a = sorted[i], *b = a->partner;
        if (!b || a->placed) continue;
        bool up = distance(a, b) < a->bytes;
        place_pair(&p, up ? a : b, up ? b : a, up ? distance(a, b) : distance(b, a));
    }
    for (int i = 0; i < n; i++)
        if (!sorted[i]->placed) place(&p, sorted[i], lowest_offset(&p, sorted[i], 0));
    for (int i = 0; i < n; i++) {
        if (sorted[i]->offset > TYPE_MAX_BYTES) return INT64_MAX;
        bytes = MAX(bytes, sorted[i]->offset + sorted[i]->bytes);
    }
    return bytes;
}

enum { TRIES = 400 }; /* of all pairs in a function: few have more than a dozen */

/* The pair without which the frame is smallest, if it is smaller than `best` then. */
static FrameBuffer *worst_pair(Arena *mem, FrameBuffer **sorted, int n, int64_t *best,
                               int *tries) {
    FrameBuffer *worst = NULL;
    for (int i = 0; i < n && *tries < TRIES; i++) {
        FrameBuffer *w = sorted[i], *r = w->partner;
        if (!r || !w->stack.written) continue;
        w->partner = r->partner = NULL;
        int64_t bytes = place_all(mem, sorted, n, true);
        w->partner = r, r->partner = w;
        ++*tries;
        if (bytes < *best) *best = bytes, worst = w;
    }
    return worst;
}

/* Takes apart pairs as long as that makes the frame smaller: what stands out of one is a gap
 * while only one of the two is live. Returns the bytes. */
static int64_t part_pairs(Arena *mem, FrameBuffer **sorted, int n) {
    int64_t best = place_all(mem, sorted, n, true);
    int tries = 0;
    for (FrameBuffer *w; (w = worst_pair(mem, sorted, n, &best, &tries));)
        w->partner->partner = NULL, w->partner = NULL;
    return best;
}

int64_t frame_pack(Arena *mem, FrameBuffer **all, int n) {
    if (n > 1) qsort(all, (size_t)n, sizeof *all, by_size);
    int64_t alone = place_all(mem, all, n, false);
    if (!make_pairs(all, n)) return alone;
    bool pairs = part_pairs(mem, all, n) < alone;
    return place_all(mem, all, n, pairs);
}
