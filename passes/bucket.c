/* bucket.c - makes collectives of one kind one op with several operands (a bucket), which
 * costs its latency once. Level local. The later one comes up to the first when its operands
 * are there; else the first goes down to it when nobody has used its result yet.
 *     %a2 = all_reduce %a {axis="dp"}; %b2 = all_reduce %b {axis="dp"}
 *     -> %a2, %b2 = all_reduce %a, %b {axis="dp"} */
#include "passes.h"

/* The dimension an attribute names, counted from the end: so tensors of different ranks can
 * share it. */
static int64_t from_end(const Op *op, const Attr *a) {
    return strcmp(a->key, "dim") || a->i < 0 ? a->i : a->i - op->in[0]->ty.rank;
}

static bool same_attrs(const Op *x, const Op *y) {
    const Attr *a = x->attr, *b = y->attr;
    for (; a && b; a = a->next, b = b->next) {
        if (strcmp(a->key, b->key) || a->kind != b->kind) return false;
        if (from_end(x, a) != from_end(y, b)) return false;
        if (a->s && strcmp(a->s, b->s)) return false;
    }
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
        for (int i = 0; i < op->nin; i++) {
            if (op->in[i]->def == a) return true;
        }
    }
    return false;
}

static bool feeds(const Op *a, const Op *b) {
    for (int i = 0; i < b->nin; i++) {
        if (b->in[i]->def == a) return true;
    }
    return false;
}

static Op *merge(Op *a, Op *b, Op *before) {
    Func *f = a->fn;
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
    const Attr *dim = op_attr(a, "dim");
    if (dim && a->in[0]->ty.rank != b->in[0]->ty.rank) op_set_int(made, "dim", from_end(a, dim));
    made->nin = n;
    made->in = in;
    for (int i = 0; i < n; i++) func_replace(f, both->out[i], made->out[i]);
    op_remove(a);
    op_remove(b);
    return made;
}

/* The next collective that can join `a`, and where they meet; NULL: none. */
static Op *partner(Op *a, int64_t room, Op **before) {
    for (Op *b = a->next; b; b = b->next) {
        if (b->kind != a->kind || !same_attrs(a, b)) continue;
        if (operand_bytes(b) > room || a->nin + b->nin > MAX_BUCKET) continue;
        if (ready_at(b, a)) {
            *before = a;
            return b;
        }
        if (!feeds(a, b) && !used_before(a, b)) {
            *before = b;
            return b;
        }
    }
    return NULL;
}

void pass_bucket(Module *m, const PassOptions *o) {
    for (Func *f = m->first; f; f = f->next) {
        for (Op *op = f->first; op; op = op->next) {
            if (!(optab[op->kind].flags & F_COMM)) continue;
            for (;;) {
                Op *before, *b;
                func_number(f);
                b = partner(op, o->bucket_bytes - operand_bytes(op), &before);
                if (!b) break;
                op = merge(op, b, before);
            }
        }
    }
}
