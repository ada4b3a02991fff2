/* bucket.c - joins collectives of one kind into one op with several operands (a bucket),
 * so that their latency is paid once. Level local. The later one moves up to the first if
 * its operands are there already; else the first moves down to it if nothing has used its
 * result yet.
 *     %a2 = all_reduce %a {axis="dp"}; %b2 = all_reduce %b {axis="dp"}
 *     -> %a2, %b2 = all_reduce %a, %b {axis="dp"}
 * With `overlap` this is done only where it costs no more waiting than the latency of a
 * message: a bucket starts when its last operand is there, and its first use waits for
 * all of it. */
#include "passes/comm/cost.h"
#include "passes/passes.h"

/* The dimension an attribute names, counted from the end: so tensors of different ranks can
 * share it. */
static int64_t from_end(const Op *op, const Attr *a) {
    return a->kind != ATTR_DIM || a->i < 0 ? a->i : a->i - op->in[0]->ty.rank;
}

/* A message that is summed has elements of one width: it is cut anywhere between two. */
static bool fits_beside(const Op *x, const Op *y) {
    return !message_sums(x->kind) ||
           dtype_bytes[x->in[0]->ty.dt] == dtype_bytes[y->in[0]->ty.dt];
}

static bool same_attrs(const Op *x, const Op *y) {
    const Attr *a = x->attr, *b = y->attr;
    for (; a && b; a = a->next, b = b->next)
        if (!attr_equal_but_int(a, b) || from_end(x, a) != from_end(y, b)) return false;
    return !a && !b;
}

static int64_t operand_bytes(const Op *op) {
    int64_t n = 0;
    for (int i = 0; i < op->nin; i++) n += type_bytes(&op->in[i]->ty);
    return n;
}

/* Are the operands of b made before a? Ids are those of func_number. */
static bool ready_at(const Op *b, const Op *a) {
    for (int i = 0; i < b->nin; i++) {
        if (b->in[i]->def && b->in[i]->def->id >= a->id) return false;
    }
    return true;
}

static bool used_before(const Op *a, const Op *b) {
    for (const Op *op = a->next; op != b; op = op->next) {
        if (op_reads(op, a)) return true;
    }
    return false;
}

/* At `before`, which is one of the two, with its number: others stay in order. */
static Op *merge(Op *a, Op *b, Op *before) {
    Func *f = a->fn;
    int id = before->id;
    Builder at = build_before(before);
    int n = a->nin + b->nin;
    Value **in = NEW_ARRAY(f->mod->mem, Value *, (size_t)n);
    memcpy(in, a->in, (size_t)a->nin * sizeof *in);
    memcpy(in + a->nin, b->in, (size_t)b->nin * sizeof *in);
    Op *both = NEW(f->mod->mem, Op);
    *both = *a;
    both->nout = n;
    both->out = NEW_ARRAY(f->mod->mem, Value *, (size_t)n);
    memcpy(both->out, a->out, (size_t)a->nout * sizeof *both->out);
    memcpy(both->out + a->nout, b->out, (size_t)b->nout * sizeof *both->out);
    Op *made = op_again(&at, both, in);
    for (Attr *d = made->attr; d; d = d->next)
        if (d->kind == ATTR_DIM && a->in[0]->ty.rank != b->in[0]->ty.rank)
            d->i = from_end(a, d);
    made->nin = n;
    made->in = in;
    for (int i = 0; i < n; i++) value_move(both->out[i], made, i);
    op_remove(a);
    op_remove(b);
    made->id = id;
    return made;
}

typedef struct Bucket {
    const Cost *known; /* NULL: no overlap */
    int64_t room_bytes;
} Bucket;

/* How much of sending them is hidden behind the work between ready and use. */
static double hidden(const Cost *c, double work, int n, const Op *const *op) {
    return c->m->hidden * MIN(work, cost_to_send(c, n, op));
}

/* Seconds that one message instead of two saves: a start at least, also where two small ones
 * make a large one, which goes round in more messages. */
static double saved(const Cost *c, const Op *const *both) {
    double apart = cost_to_send(c, 1, &both[0]) + cost_to_send(c, 1, &both[1]);
    return MAX(cost_start(c, both[0]), apart - cost_to_send(c, 2, both));
}

/* Would one message instead of two be waited for longer? */
static bool better_apart(const Bucket *k, const Op *a, const Op *b) {
    if (!k->known) return false;
    const Op *both[] = {a, b};
    Window x = window_of(k->known, a), y = window_of(k->known, b);
    const Op *ready =
        x.ready && (!y.ready || x.ready->id > y.ready->id) ? x.ready : y.ready;
    const Op *use = x.use && (!y.use || x.use->id < y.use->id) ? x.use : y.use;
    double apart =
        hidden(k->known, x.work, 1, &both[0]) + hidden(k->known, y.work, 1, &both[1]);
    double joined = hidden(k->known, cost_between(k->known, a->fn, ready, use), 2, both);
    return joined < apart - saved(k->known, both);
}

/* Where a collective and a later one can be one: at the first, at the later, or NULL. */
static Op *meeting(Op *a, Op *b) {
    if (ready_at(b, a)) return a;
    return op_reads(b, a) || used_before(a, b) ? NULL : b;
}

/* The next collective that can join `a`, and where they meet; NULL: none. */
static Op *partner(Op *a, const Bucket *k, Op **before) {
    for (Op *b = a->next; b; b = b->next) {
        if (b->kind != a->kind || !same_attrs(a, b) || !fits_beside(a, b)) continue;
        bool fits = operand_bytes(b) <= k->room_bytes - operand_bytes(a);
        if (!fits || a->nin + b->nin > MAX_BUCKET) continue;
        *before = meeting(a, b);
        if (*before && !better_apart(k, a, b)) return b;
    }
    return NULL;
}

static void bucket_func(Func *f, const Bucket *k) {
    func_number(f);
    for (Op *op = f->first, *next; op; op = next) {
        Op *above = op->prev;
        bool joined = false;
        for (Op *before, *b; op_has(op, F_COMM) && (b = partner(op, k, &before));) {
            op = merge(op, b, before);
            joined = true;
        }
        /* one that met another further down leaves those between to be looked at */
        next = !joined ? op->next : above ? above->next : f->first;
    }
}

void pass_bucket(Module *m, const PassOptions *o) {
    Arena *mem = arena_new();
    Func **order = module_order(mem, m);
    Cost known = cost_new(mem, m, o);
    Bucket k = {.room_bytes = o->bucket_bytes, .known = o->overlap ? &known : NULL};
    for (int i = 0; order[i]; i++) {
        if (o->overlap) cost_add(&known, order[i]);
        bucket_func(order[i], &k);
    }
    arena_free(mem);
}
