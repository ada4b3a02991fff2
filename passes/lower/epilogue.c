/* epilogue.c - an addition after a matmul becomes an addend of the matmul, if its row
 * takes addends. Level local.
 *     %y = dot %x, %w {mk,kn->mn}; %z = add %y, %b {mn,n->mn}
 *  -> %z = dot %x, %w, %b {mk,kn,n->mn}
 * and a cast of a product to a narrower type becomes the type of the product; where such a cast may
 * be of parts of a sum (`parts`), the sum with an accumulator of that type is rounded once instead:
 *     %y = dot %x, %d : f32[..]; %y1 = cast %y {parts=1} : bf16[..]; %z = add %acc, %y1
 *  -> %z = dot %x, %d, %acc : bf16[..]
 * and an addition after an op whose row names one that adds onto something is that one:
 *     %y = embed_grad %ids, %d; %z = add %acc, %y  ->  %z = embed_add %acc, %ids, %d
 * Only addends that cost nothing there: those with fewer dimensions (a bias), and
 * accumulators, full tensors whose buffer the result can overwrite. */
#include "ir/matmul.h"
#include "passes/passes.h"

/* Spells `t` (a term of the sum's rule) in the letters of the product's result. */
static bool respell(const Rule *sum, const Term *t, const Rule *product, int rank,
                    Text *text) {
    const Term *from = &sum->term[sum->nin], *to = &product->term[product->nin];
    if (from->n == 1 && from->letter[0] == '.') { /* same shape: the same letters */
        if (t->n != 1) return false;
        text_add(text, "%.*s", to->n, to->letter);
        return !memchr(to->letter, '.', (size_t)to->n);
    }
    if (from->n != rank || to->n != rank) return false;
    for (int k = 0; k < t->n; k++) {
        const char *at = memchr(from->letter, t->letter[k], (size_t)from->n);
        if (!at || t->letter[k] == '.') return false;
        text_add(text, "%c", to->letter[at - from->letter]);
    }
    return true;
}

/* An accumulator: a full tensor read only here, so the result may take its buffer. */
static bool is_accumulator(const Func *f, const Value *v) {
    if (value_uses(f, v) != 1) return false;
    return v->def || func_result_over(f, v->nth) >= 0;
}

/* Does the product already have an addend of this sort? It takes one of each. */
static bool has_addend(const Op *op, bool full) {
    for (int i = 2; i < op->nin; i++) {
        if ((op->in[i]->ty.rank == op->out[0]->ty.rank) == full) return true;
    }
    return false;
}

/* What v is a view of, or v, where nobody else reads that or a view between; else NULL. */
static Value *viewed_alone(const Func *f, Value *v) {
    while (v->def && op_has(v->def, F_VIEW) && v->def->nin == 1 && value_uses(f, v) == 1)
        v = v->def->in[0];
    return value_uses(f, v) == 1 ? v : NULL;
}

/* What v is rounded from, if that may be done behind a sum and a product of such numbers makes it;
 * else v. */
static Value *unrounded(const Func *f, Value *v) {
    const Op *cast = v->def;
    if (!cast || !op_has(cast, F_CAST) || !op_int(cast, "parts", 0)) return v;
    Value *from = cast->in[0];
    const Op *op = from->def;
    bool product = op && op_has(op, F_ADDENDS) && op->in[0]->ty.dt == v->ty.dt;
    return product && value_uses(f, v) == 1 ? from : v;
}

/* May the op add what it makes to something? */
static bool adds(const Op *op) {
    return op && (op_has(op, F_ADDENDS | F_TOUCHES) || optab[op->kind].onto);
}

/* A sum with what such an op makes, in another shape, is made in the op's:
 *     %z = add %acc, (reshape %y)  ->  %z = reshape (add (reshape %acc), %y) */
static Op *in_shape_of_maker(Func *f, Op *sum) {
    for (int i = 0; i < 2; i++) {
        const Op *view = sum->in[i]->def;
        if (!view || !op_has(view, F_VIEW)) continue;
        Value *made = viewed_alone(f, sum->in[i]), *addend = sum->in[1 - i];
        bool alike = type_same_shape(&sum->in[i]->ty, &addend->ty);
        if (!made || made == sum->in[i] || !alike) continue;
        if (!adds(unrounded(f, made)->def)) continue;
        if (op_attr(sum, "rule") || !is_accumulator(f, addend)) continue;
        Builder b = build_before(sum);
        b.name = addend->name;
        addend = build_as(&b, OP_reshape, NULL, made->ty, addend, NULL);
        Value *both = build1(&b, sum->kind, NULL, addend, made, NULL);
        Value *back = build_as(&b, OP_reshape, NULL, sum->out[0]->ty, both, NULL);
        both->name = back->name = sum->out[0]->name;
        func_replace(f, sum->out[0], back);
        op_remove(sum);
        func_remove_dead(f);
        return both->def;
    }
    return sum;
}

/* The operand that is made last. */
static int last_made(const Op *sum) {
    for (const Op *at = sum->prev; at; at = at->prev)
        for (int i = 0; i < 2; i++)
            if (sum->in[i]->def == at) return i;
    return 0;
}

/* Operand i of the sum is a product, which adds the other one. The addend may be anywhere before
 * the sum; the matmul moves down to the sum. */
static bool merge_into(Func *f, Op *sum, int i) {
    Value *product = unrounded(f, sum->in[i]), *addend = sum->in[1 - i];
    Op *op = product->def, *rounds = product == sum->in[i] ? NULL : sum->in[i]->def;
    if (!op || !(optab[op->kind].flags & F_ADDENDS) || product == addend) return false;
    if (op->nin >= optab[op->kind].nin_max || value_uses(f, product) != 1) return false;
    if (!type_same_shape(&sum->in[i]->ty, &sum->out[0]->ty)) return false;
    if (dtype_is_narrow(product->ty.dt)) return false; /* it is rounded */
    bool full = addend->ty.rank == product->ty.rank;
    if (full && !is_accumulator(f, addend)) return false;
    if (has_addend(op, full)) return false;
    const Rule *r = op_rule(op), *s = op_rule(sum);
    Text text = text_new(f->mod->mem);
    for (int k = 0; k < r->nin; k++) {
        text_add(&text, "%.*s,", r->term[k].n, r->term[k].letter);
    }
    if (memchr(text.s, '.', text.n)) return false;
    if (!respell(s, &s->term[1 - i], r, product->ty.rank, &text)) return false;
    text_add(&text, "->%.*s", r->term[r->nin].n, r->term[r->nin].letter);
    Value *in[MAX_TERMS];
    memcpy(in, op->in, (size_t)op->nin * sizeof(Value *));
    in[op->nin] = addend;
    Builder b = build_before(sum);
    Type ty = sum->out[0]->ty;
    Value *v = build_list(&b, op->kind, text.s, op->nin + 1, in, &ty, 1)->out[0];
    v->name = sum->out[0]->name;
    v->def->line = op->line;
    func_replace(f, sum->out[0], v);
    op_remove(sum);
    if (rounds) op_remove(rounds);
    op_remove(op);
    return true;
}

/* What is near the sum rather than what is not: all that a product reads is kept for it. */
static bool try_merge(Func *f, Op *sum) {
    int last = last_made(sum);
    return merge_into(f, sum, last) || merge_into(f, sum, 1 - last);
}

/* ---- ops that can add what they make to something ---- */

static Op *again_onto(Func *f, Op *sum, const Op *op, Value *addend) {
    Value *in[MAX_TERMS];
    Builder b = build_before(sum);
    in[0] = addend;
    memcpy(in + 1, op->in, (size_t)op->nin * sizeof *in);
    Op *made = build_list(&b, optab[op->kind].onto, NULL, op->nin + 1, in, NULL, 0);
    for (const Attr *a = op->attr; a; a = a->next) op_set_attr(made, a);
    made->line = op->line;
    made->out[0]->name = sum->out[0]->name;
    func_replace(f, sum->out[0], made->out[0]);
    return made;
}

static bool is_plain(const Op *sum) {
    return !op_attr(sum, "rule") && type_same_shape(&sum->in[0]->ty, &sum->in[1]->ty) &&
           sum->in[0]->ty.dt == sum->in[1]->ty.dt;
}

/* Is the value in the buffer of an argument, or added to what is? */
static bool has_place(const Func *f, const Value *v) {
    const Op *sum = value_only_reader(f, v);
    while (sum && op_has(sum, F_VIEW) && sum->nin == 1)
        v = sum->out[0], sum = value_only_reader(f, v);
    int result = func_result(f, v);
    if (result >= 0) return f->alias[result] >= 0;
    if (!sum || !op_has(sum, F_PLUS) || !is_plain(sum)) return false;
    const Value *other = viewed_alone(f, sum->in[sum->in[0] == v]);
    return other && !other->def && is_accumulator(f, other);
}

/* Bytes of what nobody reads after the op. */
static int64_t last_read_bytes(const Op *op) {
    int64_t bytes = 0;
    for (int i = 0; i < op->nin; i++) {
        bool last = op->in[i]->def != NULL;
        for (const Op *at = op->next; at && last; at = at->next)
            for (int k = 0; k < at->nin; k++) last &= at->in[k] != op->in[i];
        if (last) bytes += type_bytes(&op->in[i]->ty);
    }
    return bytes;
}

/* A product waits for what is added to it, unless what it reads is much more than what it makes:
 * both are there at once when it is made, which is best when little else is. */
static Value *made_late(Func *f, Op *sum, Value *v) {
    Op *op = v->def;
    if (!op || !op_has(op, F_ADDENDS) || value_uses(f, v) != 1) return v;
    if (has_place(f, sum->out[0]) || last_read_bytes(op) >= 2 * type_bytes(&v->ty))
        return v;
    Builder b = build_before(sum);
    op_move(&b, op);
    return v;
}

/* %y = embed_grad ...; %z = add %acc, %y  ->  %z = embed_add %acc, ... */
static bool add_onto(Func *f, Op *sum) {
    for (int i = 0; i < 2 && is_plain(sum); i++) {
        Op *op = sum->in[i]->def;
        Value *addend = sum->in[1 - i];
        if (!op || !optab[op->kind].onto || value_uses(f, sum->in[i]) != 1) continue;
        if (!is_accumulator(f, addend)) continue;
        again_onto(f, sum, op, made_late(f, sum, addend));
        op_remove(sum);
        op_remove(op);
        return true;
    }
    return false;
}

/* An accumulator that such an op would be added to is added to what that is added to, which a
 * product may do: returns that sum, or NULL.
 *     %y = embed_add %x, ...; %z = add %acc, %y  ->  %s = add %acc, %x; %z = embed_add %s, ... */
static Op *add_before(Func *f, Op *sum) {
    for (int i = 0; i < 2 && is_plain(sum); i++) {
        Op *op = sum->in[i]->def;
        if (!op || !op_has(op, F_TOUCHES) || value_uses(f, sum->in[i]) != 1) continue;
        Value *acc = sum->in[1 - i], *x = op->in[0], *whole = viewed_alone(f, acc);
        if (!whole || whole->def || !is_accumulator(f, whole)) continue;
        if (!x->def || value_uses(f, x) != 1) continue;
        Builder b = build_behind(x->def);
        if (acc != whole) acc = build_as(&b, OP_reshape, NULL, acc->ty, whole, NULL);
        Value *made = build1(&b, sum->kind, NULL, acc, x, NULL);
        made->name = op->out[0]->name = sum->out[0]->name;
        op->in[0] = made;
        func_replace(f, sum->out[0], op->out[0]);
        op_remove(sum);
        func_remove_dead(f);
        return made->def;
    }
    return NULL;
}

static void merge(Func *f, Op *sum) {
    sum = in_shape_of_maker(f, sum);
    if (add_onto(f, sum)) return;
    Op *before = add_before(f, sum);
    if (before) sum = in_shape_of_maker(f, before);
    try_merge(f, sum);
}

/* Is nothing added to it but, at most, one number a column? */
static bool adds_columns_only(const Op *op) {
    Dims d;
    Matmul mm;
    if (op->nin == 2) return true;
    return op_dims(op, &d) && !matmul_of(&d, &mm) && mm.sum < 0;
}

/* A product of narrow factors that only a cast to their type reads gives that type at once:
 * it is rounded once as before. Not where more than a bias is added to it in place. */
static void round_in_product(Func *f, Op *cast) {
    Value *product = cast->in[0];
    Op *op = product->def;
    if (!op || !op_has(op, F_ADDENDS) || value_uses(f, product) != 1) return;
    if (cast->out[0]->ty.dt != op->in[0]->ty.dt || !adds_columns_only(op)) return;
    if (dtype_bytes[cast->out[0]->ty.dt] >= dtype_bytes[product->ty.dt]) return;
    product->ty.dt = cast->out[0]->ty.dt;
    product->name = cast->out[0]->name;
    func_replace(f, cast->out[0], product);
    op_remove(cast);
}

void pass_epilogue(Module *m, const PassOptions *o) {
    (void)o;
    for (Func *f = m->first; f; f = f->next) {
        for (Op *op = f->first, *next; op; op = next) {
            next = op->next;
            if (op_has(op, F_PLUS)) merge(f, op);
        }
        for (Op *op = f->first, *next; op; op = next) {
            next = op->next;
            if (op_has(op, F_CAST)) round_in_product(f, op);
        }
    }
}
