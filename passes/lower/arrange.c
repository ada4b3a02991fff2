/* arrange.c - orders of dimensions that code generation takes. Level local. Matmuls whose
 * factors are no matrices by their strides get a factor, or the result, in another order,
 * whichever moves the fewest bytes. Elementwise ops get operands in the order of the
 * result.
 *     %d = dot %x, %g {tbh,btv->hv}
 *  -> %g.1 = rearrange %g {btv->tbv}; %d = dot %x, %g.1 {tbh,tbv->hv}
 * Addends that a matmul cannot take are added after it, and so are all addends of a
 * matmul that makes its result in another order. ir/matmul.h says what is a matrix, here
 * and in code generation. */
#include "ir/matmul.h"
#include "passes/passes.h"

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

static const char *spell(Arena *mem, const Dims *d, const int8_t *ids, int n) {
    char letter[MAX_DIMS];
    Text t = text_new(mem);
    name_letters(d, letter);
    if (!n) text_add(&t, "_");
    for (int k = 0; k < n; k++) text_add(&t, "%c", letter[ids[k]]);
    return t.s;
}

static const char *spell_term(Arena *mem, const Dims *d, int term) {
    return spell(mem, d, d->term[term], d->rank[term]);
}

static void set_rule(Op *op, const Dims *d) {
    Arena *mem = op->fn->mod->mem;
    Text t = text_new(mem);
    char why[200];
    for (int i = 0; i < d->nin; i++) {
        text_add(&t, "%s%s", i ? "," : "", spell_term(mem, d, i));
    }
    text_add(&t, "->%s", spell_term(mem, d, d->nin));
    op_set_rule(op, rule_parse(mem, t.s, why, sizeof why));
}

/* Operand i of op in another order. */
static void rearrange_operand(Op *op, const Dims *d, int i, const int8_t *order) {
    Builder b = build_before(op);
    Value *v = op->in[i];
    b.name = v->name;
    op->in[i] = build1(
        &b, OP_rearrange,
        bfmt(&b, "%s->%s", spell_term(b.mem, d, i), spell(b.mem, d, order, d->rank[i])),
        v, NULL);
}

/* The dimensions of an operand in the order of the result; false: the result lacks one.
 */
static bool result_order(const Dims *d, int i, int8_t order[MAX_RANK]) {
    int n = 0;
    for (int k = 0; k < d->rank[d->nin]; k++) {
        int8_t id = d->term[d->nin][k];
        if (dims_mask(d, i) >> id & 1) order[n++] = id;
    }
    return n == d->rank[i];
}

/* Do both name the dimensions larger than 1 in one order? */
static bool same_order(const Dims *d, const int8_t *a, const int8_t *b, int n) {
    for (int i = 0, j = 0;; i++, j++) {
        while (i < n && d->size[a[i]] == 1) i++;
        while (j < n && d->size[b[j]] == 1) j++;
        if (i == n || j == n) return i == j;
        if (a[i] != b[j]) return false;
    }
}

/* A kernel has a value once, with the same dimensions for all who read it: what is read with
 * others beside it is a copy. */
static void copy_operands(Op *op, const Dims *d) {
    for (int i = 1; i < op->nin; i++) {
        bool differs = false;
        for (int j = 0; j < i; j++)
            differs |= op->in[j] == op->in[i] &&
                       !same_order(d, d->term[j], d->term[i], d->rank[i]);
        if (!differs) continue;
        Builder b = build_before(op);
        b.name = op->in[i]->name;
        op->in[i] = build1(&b, OP_copy, NULL, op->in[i], NULL);
    }
}

/* An elementwise op goes over all its operands in the order of its result. */
static void arrange_map(Op *op) {
    Dims d, now;
    bool one_order = !optab[op->kind].rule && !op_attr(op, "rule");
    if (one_order) return;
    check(op_dims(op, &d));
    now = d;
    for (int i = 0; i < op->nin; i++) {
        int8_t order[MAX_RANK];
        bool all = result_order(&d, i, order);
        if (!all || same_order(&d, order, d.term[i], d.rank[i])) continue;
        rearrange_operand(op, &d, i, order);
        memcpy(now.term[i], order, sizeof order);
        set_rule(op, &now);
    }
    copy_operands(op, &now);
}

/* y + operand i of a product with the result y. */
static Value *add_behind(Builder *b, const Dims *d, int i, Value *y, Value *addend) {
    addend = build_cast(b, addend, y->ty.dt);
    const char *result = spell_term(b->mem, d, d->nin);
    char *rule = bfmt(b, "%s,%s->%s", result, spell_term(b->mem, d, i), result);
    Value *sum = build1(b, OP_add, rule, y, addend, NULL);
    arrange_map(sum->def);
    return sum;
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
    Dims now = *d;
    int n = 0;
    for (int i = 0; i < d->nin; i++) {
        bool factor = i < 2;
        if (!factor && !(kept >> i & 1)) continue;
        if (factor && o->moved[i]) rearrange_operand(op, d, i, o->d.term[i]);
        memcpy(now.term[n], factor ? o->d.term[i] : d->term[i], sizeof *now.term);
        now.rank[n] = d->rank[i];
        op->in[n++] = op->in[i];
    }
    op->nin = now.nin = n;
    now.rank[n] = o->d.rank[RESULT];
    memcpy(now.term[n], o->d.term[RESULT], sizeof *now.term);
    set_rule(op, &now);
    for (int k = 0; k < now.rank[n]; k++) {
        op->out[0]->ty.dim[k] = d->size[now.term[n][k]];
    }
}

/* The result of a product, made in the order of o, as it was before. */
static Value *moved_back(Builder *b, const Dims *d, const Orders *o, Value *made) {
    const char *from = spell_term(b->mem, &o->d, RESULT);
    return build1(b, OP_rearrange, bfmt(b, "%s->%s", from, spell_term(b->mem, d, d->nin)),
                  made, NULL);
}

static void arrange_product(Op *op) {
    Dims d;
    Matmul mm;
    check(op_dims(op, &d));
    if (!matmul_of(&d, &mm)) return;
    Dims bare = without_addends(&d);
    Orders o = choose_orders(op, &bare);
    uint32_t kept = addends_kept(&d, &o), all = (1u << d.nin) - 4;
    Value *addend[MAX_TERMS], *y = op->out[0], *made = y;
    const DType want = y->ty.dt;
    if ((kept & all) != all && want != dtype_sum(want)) {
        kept = 0; /* what is added behind is added before the only rounding */
        y->ty.dt = dtype_sum(want);
    }
    memcpy(addend, op->in, (size_t)op->nin * sizeof *addend);
    set_product(op, &d, &o, kept);
    Builder b = build_behind(op);
    if (o.moved[RESULT]) y = moved_back(&b, &d, &o, y);
    for (int i = 2; i < d.nin; i++) {
        if (!(kept >> i & 1)) y = add_behind(&b, &d, i, y, addend[i]);
    }
    y = build_cast(&b, y, want);
    if (y == made) return;
    y->name = made->name;
    value_replace_behind(made, y);
}

void pass_arrange(Module *m, const PassOptions *o) {
    (void)o;
    for (Func *f = m->first; f; f = f->next) {
        for (Op *op = f->first, *next; op; op = next) {
            next = op->next;
            if (optab[op->kind].flags & F_ADDENDS)
                arrange_product(op);
            else if (optab[op->kind].flags & F_MAP)
                arrange_map(op);
        }
    }
}
