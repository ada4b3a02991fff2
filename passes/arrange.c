/* arrange.c - products whose letters are no matrices as they stand get a factor, or the
 * result, in another order, whichever moves the fewest bytes. Level local.
 *     %d = dot %x, %g {tbh,btv->hv}
 *  -> %g.1 = rearrange %g {btv->tbv}; %d = dot %x, %g.1 {tbh,tbv->hv}
 * Addends that the product has no room for are added behind it, and so are all of a
 * product that makes its result in another order. ir/matmul.h says what is a matrix, and
 * code generation makes of it the same ones. */
#include "../ir/matmul.h"
#include "passes.h"

enum { TENSORS = 3, RESULT = 2 }; /* the factors and the result, terms of `Orders.d` */

typedef struct Orders {
    Dims d; /* of the product without addends */
    bool moved[TENSORS];
    int64_t bytes; /* moved */
} Orders;

static Dims without_addends(const Dims *d) {
    Dims bare = *d;
    bare.nin = 2;
    bare.rank[RESULT] = d->rank[d->nin];
    memcpy(bare.term[RESULT], d->term[d->nin], sizeof *d->term);
    return bare;
}

/* The set of tensors that have a dimension: what kind of letter it is. */
static unsigned tensors_with(const Dims *d, int8_t id) {
    unsigned set = 0;
    for (int t = 0; t < TENSORS; t++) set |= (dims_mask(d, t) >> id & 1) << t;
    return set;
}

/* Appends to term `to` of o the dimensions that stand in exactly the tensors `in` (a set
 * of bits), in the order of the last of them that is not moved, else of the first. */
static void append_kind(const Dims *d, unsigned in, Orders *o, int to) {
    int by = -1;
    for (int t = 0; t < TENSORS; t++) {
        if ((in >> t & 1) && (by < 0 || !o->moved[t])) by = t;
    }
    for (int k = 0; k < d->rank[by]; k++) {
        int8_t id = d->term[by][k];
        if (tensors_with(d, id) == in) o->d.term[to][o->d.rank[to]++] = id;
    }
}

/* Batch dimensions, then the two kinds that a tensor has alone with one other; the kind
 * of its last dimension stays last, so that runs are moved and not elements. */
static void order_tensor(const Dims *d, Orders *o, int t) {
    static const unsigned kinds[TENSORS][2] = {{5, 3}, {3, 6}, {5, 6}};
    int n = d->rank[t];
    bool turned = n && tensors_with(d, d->term[t][n - 1]) == kinds[t][0];
    o->d.rank[t] = 0;
    append_kind(d, 7, o, t);
    append_kind(d, kinds[t][turned], o, t);
    append_kind(d, kinds[t][!turned], o, t);
}

static Orders orders_of(const Dims *d, unsigned set, const int64_t *bytes) {
    Orders o = {.d = *d};
    for (int t = 0; t < TENSORS; t++) {
        o.moved[t] = set >> t & 1;
        if (o.moved[t]) o.bytes += bytes[t];
    }
    for (int t = 0; t < TENSORS; t++) {
        if (o.moved[t]) order_tensor(d, &o, t);
    }
    return o;
}

/* The cheapest orders that are matrices; with all three moved they always are. */
static Orders choose_orders(const Op *op, const Dims *bare) {
    int addends = op->nin - 2;
    const int64_t bytes[TENSORS] = {type_bytes(&op->in[0]->ty),
                                    type_bytes(&op->in[1]->ty),
                                    type_bytes(&op->out[0]->ty) * (1 + addends)};
    Orders best = {.bytes = INT64_MAX};
    Matmul mm;
    if (!matmul_of(bare, &mm)) return (Orders){.d = *bare};
    for (unsigned set = 1; set < 1u << TENSORS; set++) {
        Orders o = orders_of(bare, set, bytes);
        if (o.bytes < best.bytes && !matmul_of(&o.d, &mm)) best = o;
    }
    check(best.bytes < INT64_MAX);
    return best;
}

/* ---- the ops ---- */

/* A letter for each dimension; those of "..." get ones that the rule does not use. */
static void name_letters(const Dims *d, char letter[MAX_DIMS]) {
    char next = 'a';
    for (int id = 0; id < d->n; id++) {
        letter[id] = d->letter[id];
        if (letter[id] != '.') continue;
        while (memchr(d->letter, next, (size_t)d->n)) next++;
        letter[id] = next++;
    }
}

static void spell(Text *t, const Dims *d, const int8_t *ids, int n) {
    char letter[MAX_DIMS];
    name_letters(d, letter);
    if (!n) text_add(t, "_");
    for (int k = 0; k < n; k++) text_add(t, "%c", letter[ids[k]]);
}

static Value *rearranged(Builder *b, const Dims *d, Value *v, const int8_t *from,
                         const int8_t *to) {
    Text t = text_new(b->mem);
    spell(&t, d, from, v->ty.rank);
    text_add(&t, "->");
    spell(&t, d, to, v->ty.rank);
    b->name = v->name;
    return build1(b, OP_rearrange, t.s, v, NULL);
}

/* y + operand i of the product, which has dimensions of y. */
static Value *add_behind(Builder *b, const Dims *d, int i, Value *y, Value *addend) {
    const int8_t *result = d->term[d->nin];
    int8_t order[MAX_RANK];
    int n = 0;
    for (int k = 0; k < y->ty.rank; k++) {
        if (dims_mask(d, i) >> result[k] & 1) order[n++] = result[k];
    }
    if (memcmp(order, d->term[i], (size_t)n)) {
        addend = rearranged(b, d, addend, d->term[i], order);
    }
    Text t = text_new(b->mem);
    spell(&t, d, result, y->ty.rank);
    text_add(&t, ",");
    spell(&t, d, order, n);
    text_add(&t, "->");
    spell(&t, d, result, y->ty.rank);
    return build1(b, OP_add, t.s, y, addend, NULL);
}

/* Which addends stay, by operand: all, if there is room, or one (an accumulator before
 * others), or none where the result is moved. */
static uint32_t addends_kept(const Dims *d, const Orders *o) {
    Dims now = *d;
    Matmul mm;
    if (o->moved[RESULT]) return 0;
    memcpy(now.term, o->d.term, 2 * sizeof *now.term);
    if (!matmul_of(&now, &mm)) return ~0u;
    for (int i = 2; i < d->nin; i++) {
        if (matmul_like_result(d, i)) return 1u << i;
    }
    return 1u << 2;
}

/* The product of its factors and the addends `kept`, in the orders of o. */
static void set_product(Op *op, const Dims *d, const Orders *o, uint32_t kept) {
    Text t = text_new(op->fn->mod->mem);
    Builder b = build_before(op);
    char why[200];
    int n = 0;
    for (int i = 0; i < op->nin; i++) {
        bool factor = i < 2;
        if (!factor && !(kept >> i & 1)) continue;
        if (factor && o->moved[i]) {
            op->in[i] = rearranged(&b, d, op->in[i], d->term[i], o->d.term[i]);
        }
        text_add(&t, "%s", n ? "," : "");
        spell(&t, d, factor ? o->d.term[i] : d->term[i], d->rank[i]);
        op->in[n++] = op->in[i];
    }
    op->nin = n;
    text_add(&t, "->");
    spell(&t, d, o->d.term[RESULT], o->d.rank[RESULT]);
    op_set_rule(op, rule_parse(b.mem, t.s, why, sizeof why));
    for (int k = 0; k < o->d.rank[RESULT]; k++) {
        op->out[0]->ty.dim[k] = d->size[o->d.term[RESULT][k]];
    }
}

static void arrange_product(Func *f, Op *op) {
    Dims d;
    Matmul mm;
    check(op_dims(op, &d));
    if (!matmul_of(&d, &mm)) return;
    Dims bare = without_addends(&d);
    Orders o = choose_orders(op, &bare);
    uint32_t kept = addends_kept(&d, &o);
    Value *addend[MAX_TERMS], *y = op->out[0], *made = y;
    memcpy(addend, op->in, (size_t)op->nin * sizeof *addend);
    set_product(op, &d, &o, kept);
    Builder b = op->next ? build_before(op->next) : build_at_end(f);
    if (o.moved[RESULT]) y = rearranged(&b, &d, y, o.d.term[RESULT], d.term[d.nin]);
    for (int i = 2; i < d.nin; i++) {
        if (!(kept >> i & 1)) y = add_behind(&b, &d, i, y, addend[i]);
    }
    if (y == made) return;
    y->name = made->name;
    Op *first =
        op->next; /* reads what the product makes, all others what is made of it */
    while (first->in[0] != made) first = first->next;
    func_replace(f, made, y);
    first->in[0] = made;
}

void pass_arrange(Module *m, const PassOptions *o) {
    (void)o;
    for (Func *f = m->first; f; f = f->next) {
        for (Op *op = f->first, *next; op; op = next) {
            next = op->next;
            if (optab[op->kind].flags & F_ADDENDS) arrange_product(f, op);
        }
    }
}
