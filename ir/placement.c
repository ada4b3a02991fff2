/* placement.c - see placement.h. */
#include "ir/placement.h"
#include <stdlib.h>

static const Mesh *mesh_of(const Op *op) {
    return &op->fn->mod->mesh;
}

Over over_none(const Op *op) {
    Over o = {0};
    o.has_dims = op_placement_dims(op, &o.d);
    return o;
}

int over_leader(const Dims *d, int id) {
    for (int k = 0; k < d->n; k++) {
        if (d->tied[k] == id) return k;
    }
    return id;
}

int over_dim(const Over *o, int term, int id) {
    for (int k = 0; k < o->d.rank[term]; k++) {
        if (over_leader(&o->d, o->d.term[term][k]) == id) return k;
    }
    return -1;
}

/* ---- text ---- */

static int find_id(const Dims *d, const char *name, size_t n) {
    if (n > 1 && name[0] == '#') {
        int id = atoi(name + 1);
        return id < d->n ? id : -1;
    }
    for (int id = 0; n == 1 && id < d->n; id++) {
        if (d->letter[id] == name[0] && name[0] != '.') return id;
    }
    return -1;
}

/* One word of the text, "d:dp" or "+tp": *id is the dimension, -1 for a pending sum. */
static Axes read_split(const Op *op, const Over *o, const char *text, const char *word,
                       size_t n, int *id) {
    bool pending = *word == '+';
    size_t colon = strcspn(word, ":"), from = pending ? 1 : colon + 1;
    Axes bits;
    *id = pending || colon >= n ? -1 : find_id(&o->d, word, colon);
    if (!pending && *id < 0)
        fail_op(op, "over=\"%s\" does not fit the dimensions of %s", text,
                optab[op->kind].name);
    const char *axes = arena_strndup(op->fn->mod->mem, word + from, n - from);
    if (!mesh_axes_parse(mesh_of(op), axes, &bits))
        fail_op(op, "over=\"%s\": no mesh axis '%s'", text, axes);
    return bits;
}

/* What is tied to a dimension is split along with it, where it can be. */
static void split_tied(const Op *op, Over *o, int id, Axes bits) {
    for (int k = 0; k < o->d.n; k++) {
        if (over_leader(&o->d, k) == id && k != id && over_fits(op, o, k, bits))
            o->split[k] |= bits;
    }
}

Over over_read(const Op *op) {
    Over o = over_none(op);
    const Attr *a = op_attr(op, "over");
    Axes used = 0;
    for (const char *p = a ? a->s : ""; *p; p += strspn(p, " ")) {
        size_t n = strcspn(p, " ");
        int id;
        Axes bits = read_split(op, &o, a->s, p, n, &id);
        bool again = used & bits & (Axes)~AXES_REVERSED;
        if (again || (id >= 0 && !over_fits(op, &o, id, bits)))
            fail_op(op,
                    "over=\"%s\": %s cannot be split so: each axis is there once, and "
                    "sizes are multiples of its ranks",
                    a->s, optab[op->kind].name);
        used |= bits;
        *(id < 0 ? &o.passes : &o.split[id]) |= bits;
        if (id >= 0) split_tied(op, &o, id, bits);
        p += n;
    }
    return o;
}

static void write_axes(Text *t, const char *before, const Mesh *m, Axes axes) {
    const char *text = mesh_axes_text(t->mem, m, axes);
    text_add_bytes(t, before, strlen(before));
    text_add_bytes(t, text, strlen(text));
}

void over_write(Op *op, const Over *o) {
    Arena *mem = op->fn->mod->mem;
    Text t = text_new(mem);
    for (int id = 0; id < o->d.n; id++) {
        if (!o->split[id] || over_leader(&o->d, id) != id) continue;
        if (t.n) text_add_bytes(&t, " ", 1);
        if (o->d.letter[id] == '.')
            text_add(&t, "#%d", id);
        else
            text_add_bytes(&t, &o->d.letter[id], 1);
        write_axes(&t, ":", mesh_of(op), o->split[id]);
    }
    if (o->passes) write_axes(&t, t.n ? " +" : "+", mesh_of(op), o->passes);
    over_drop(op); /* a copied op has that of the other */
    if (t.n) op_set_str(op, "over", t.s);
}

void over_drop(Op *op) {
    op_drop_attr(op, "over");
}

/* ---- splitting ---- */

bool over_fits(const Op *op, const Over *o, int id, Axes axes) {
    int n = mesh_group_size(mesh_of(op), axes);
    if (o->d.whole[id] || (o->d.most[id] && n > o->d.most[id])) return false;
    for (int term = 0; term < o->d.nin + o->d.nout; term++) {
        const Type *t = &op_term(op, term)->ty;
        for (int k = 0; k < o->d.rank[term]; k++) {
            if (o->d.term[term][k] == id && t->dim[k] % n) return false;
        }
    }
    int tied = o->d.tied[id];
    if (tied < 0 || over_fits(op, o, tied, axes)) return true;
    return o->d.size[tied] == 1; /* one group for all: every rank has it */
}

void over_add(const Op *op, Over *o, int id, int axis) {
    Axes bit = (Axes)(1u << axis);
    o->split[id] |= bit;
    int tied = o->d.tied[id];
    if (tied >= 0 && o->d.size[tied] > 1 && over_fits(op, o, tied, o->split[id])) {
        o->split[tied] |= bit;
    }
}

static void place_term(const Over *o, int term, Type *t) {
    memset(t->split, 0, sizeof t->split);
    t->open = 0;
    t->open_sum = false;
    t->pending = 0;
    for (int k = 0; o->has_dims && k < o->d.rank[term]; k++) {
        t->split[k] = o->split[o->d.term[term][k]];
    }
}

/* Axes over which result i is a partial sum. */
static Axes over_summed(const Over *o, int i) {
    Axes all = 0, kept = AXES_REVERSED;
    if (!o->has_dims) return 0;
    int term = o->d.nin + i;
    for (int id = 0; id < o->d.n; id++) all |= o->split[id];
    for (int k = 0; k < o->d.rank[term]; k++) kept |= o->split[o->d.term[term][k]];
    return all & ~kept;
}

Type over_operand(const Op *op, const Over *o, int i) {
    Type t = op->in[i]->ty;
    Axes pending = t.pending;
    place_term(o, i, &t);
    /* a sum goes through the operand that has it, or through both of a sum */
    if (optab[op->kind].flags & F_PLUS) pending = o->passes;
    if (dtype_is_float(t.dt)) t.pending = o->passes & pending;
    /* what is added to a partial sum counts once only: it is a partial sum too */
    if ((optab[op->kind].flags & F_ADDENDS) && i >= 2) t.pending |= over_summed(o, 0);
    return t;
}

Type over_result(const Op *op, const Over *o, int i) {
    Type t = op->out[i]->ty;
    unsigned flags = optab[op->kind].flags;
    place_term(o, o->d.nin + i, &t);
    bool finished = (flags & F_REDUCE) && !(flags & F_LINEAR); /* a max: see local_max */
    t.pending = finished ? 0 : over_summed(o, i);
    if (dtype_is_float(t.dt)) t.pending |= o->passes;
    return t;
}

/* ---- calls ---- */

Type call_operand(const Op *op, int i) {
    const Call c = call_of(op);
    const Type *ty = &c.f->arg[i]->ty;
    return call_slices(&c, i) ? type_stack(ty, c.times) : *ty;
}

Type call_result(const Op *op, int i) {
    const Call c = call_of(op);
    int alias = i < c.carry ? i : c.f->alias[i];
    Type ty = alias >= 0 ? c.f->arg[alias]->ty : c.f->ret[i]->ty;
    return c.loop && i >= c.carry ? type_stack(&ty, c.times) : ty;
}

/* ---- types ---- */

Type type_slice(const Type *t) {
    Type s = *t;
    s.rank--;
    memmove(s.dim, t->dim + 1, sizeof(int64_t) * (MAX_RANK - 1));
    memmove(s.split, t->split + 1, sizeof(Axes) * (MAX_RANK - 1));
    s.open = (uint8_t)(t->open >> 1);
    return s;
}

Type type_stack(const Type *slice, int64_t n) {
    Type s = *slice;
    check(s.rank < MAX_RANK);
    memmove(s.dim + 1, slice->dim, sizeof(int64_t) * (MAX_RANK - 1));
    memmove(s.split + 1, slice->split, sizeof(Axes) * (MAX_RANK - 1));
    s.dim[0] = n;
    s.split[0] = 0;
    s.open = (uint8_t)(slice->open << 1);
    s.rank++;
    return s;
}

bool type_same_placement(const Type *a, const Type *b) {
    return a->rank == b->rank && a->pending == b->pending &&
           !memcmp(a->split, b->split, sizeof(Axes) * (size_t)a->rank);
}

bool type_is_split(const Type *t) {
    return type_axes(t) != 0;
}

enum { MOST_FREE_OPS = 8 };

static bool made_from_nothing(const Value *v, int depth) {
    const Op *op = v->def;
    if (!op || !(optab[op->kind].flags & F_MAP) || depth == MOST_FREE_OPS) return false;
    for (int i = 0; i < op->nin; i++) {
        const Value *x = op->in[i];
        if (x->ty.rank == 0 && !x->ty.pending) continue;
        if (optab[op->kind].local || !made_from_nothing(x, depth + 1)) return false;
    }
    return v->ty.rank > 0 || op->nin == 0;
}

bool value_is_free(const Value *v, bool *zero) {
    *zero = v->def && op_has(v->def, F_FILL) && op_float(v->def, "value", 1) == 0;
    return made_from_nothing(v, 0);
}

void sum_operand(SumOperands *in, const Type *t, bool free, bool zero, bool pending) {
    if (!dtype_is_float(t->dt)) return;
    in->floats++;
    in->zeros += free && zero;
    if (free || !pending) return;
    in->pending++;
    in->summed += type_count(t);
}

/* Summands are not rounded unless the op says so. */
bool sums_may_go_on(const Op *op, const SumOperands *in) {
    bool rounds = op_has(op, F_CAST) && !op_int(op, "parts", 0) &&
                  dtype_bytes[op->out[0]->ty.dt] < dtype_bytes[op->in[0]->ty.dt];
    if (!in->pending || rounds) return false;
    for (int i = 0; i < op->nout; i++)
        if (!dtype_is_float(op->out[i]->ty.dt)) return false;
    if (op_has(op, F_PLUS))
        return in->pending + in->zeros == in->floats || op->out[0]->ty.rank == 0;
    if (op_has(op, F_MOVE)) return true;
    if (!op_has(op, F_LINEAR)) return false;
    if (op_has(op, F_ADDENDS)) return op->nin == 2 && in->pending == 1;
    return in->pending == in->floats;
}

/* There are no more numbers to sum than before. */
bool sums_go_on(const Op *op, const SumOperands *in) {
    int64_t out = 0;
    for (int i = 0; i < op->nout; i++) out += type_count(&op->out[i]->ty);
    if (!op_has(op, F_PLUS | F_MOVE) && out > in->summed) return false;
    return sums_may_go_on(op, in);
}

static void drop_axes(Type *t, Axes single) {
    for (int d = 0; d < t->rank; d++)
        t->split[d] = axes_normal(t->split[d] & (Axes)~single);
    t->pending &= (Axes)~single;
}

/* The axes from the outermost on; how many. */
static int axes_in_order(Axes a, Axes *list) {
    int n = 0;
    for (int i = 0; i < MAX_AXES; i++) {
        int axis = a & AXES_REVERSED ? MAX_AXES - 1 - i : i;
        if (a >> axis & 1) list[n++] = (Axes)(1u << axis);
    }
    return n;
}

bool axes_agree(Axes a, Axes b) {
    Axes in_a[MAX_AXES], in_b[MAX_AXES];
    int n = MIN(axes_in_order(a, in_a), axes_in_order(b, in_b));
    return n == 0 || !memcmp(in_a, in_b, (size_t)n * sizeof(Axes));
}

Axes splitting_axes(const Mesh *m, Axes axes) {
    for (int a = 0; a < m->naxes; a++) {
        if (m->axis[a].size == 1) axes &= (Axes) ~(1u << a);
    }
    return axes_normal(axes);
}

double type_part_bytes(const Mesh *m, const Type *t) {
    double n = (double)type_bytes(t);
    for (int d = 0; d < t->rank; d++) n /= mesh_group_size(m, t->split[d]);
    return n;
}

void drop_single_axes(Module *m) {
    Axes all = (Axes)((1u << m->mesh.naxes) - 1);
    Axes single = all & (Axes)~splitting_axes(&m->mesh, all);
    for (Func *f = m->first; f && single; f = f->next) {
        for (int i = 0; i < f->narg; i++) drop_axes(&f->arg[i]->ty, single);
        for (Op *op = f->first; op; op = op->next) {
            for (int i = 0; i < op->nout; i++) drop_axes(&op->out[i]->ty, single);
        }
    }
}

void fail_op(const Op *op, const char *fmt, ...) {
    const Module *m = op->fn->mod;
    char message[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    if (!op->line || !m->file) fail(EXIT_CONFIG, "@%s: %s", op->fn->name, message);
    SourcePos at = {m->file, m->text, op->line};
    fail_at(EXIT_CONFIG, at, NULL, "@%s: %s", op->fn->name, message);
}
