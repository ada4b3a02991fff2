/* tile.c - what is large and used up where it is made is never whole in memory: the ops around
 * it become a loop over tiles of its rows. Level local.
 *     %l = dot %x, %w {btc,vc->btv}; %r, %z = xent %l, %labels
 *     %d = xent_grad %l, %labels, %z, %g; %dw = dot %x, %d {btc,btv->vc}
 *  -> %dw, %r = call %zeros, %x', %labels', %g', %w {fn=@f.tile; times=n; carry=1; each=3}
 * where %x' = reshape %x: a slice of it for each tile. Sums over rows are carried from tile to
 * tile, in place; or on from the accumulator that they are added to. The order of such a sum
 * is another, and the same in every run. Which ops: tile_group.h. */
#include "ir/placement.h"
#include "passes/lower/tile_group.h"
#include <stdlib.h>

typedef struct Values {
    Arena *mem;
    Value **v;
    int n, cap;
} Values;

typedef struct Loop {
    TileGroup *g;
    Func *tile;
    Value **map; /* by value id: its value in `tile` */
    Values sums, each,
        same;    /* of the caller: carried, cut, and read by the group as they are */
    Values rows; /* of the caller: made by the group, put together again */
    Builder b;   /* behind the group */
    Op *call;
} Loop;

/* ---- what goes in and out ---- */

static bool is_in(const Values *list, const Value *v) {
    for (int i = 0; i < list->n; i++)
        if (list->v[i] == v) return true;
    return false;
}

static void add(Values *list, Value *v) {
    if (!is_in(list, v)) PUSH(list->mem, list->v, list->n, list->cap, v);
}

static bool read_outside(const TileGroup *g, const Value *v) {
    for (const Op *op = g->f->first; op; op = op->next)
        if (!g->has[op->id] && op_reads_value(op, v)) return true;
    return func_result(g->f, v) >= 0;
}

static void list_values(Loop *l) {
    const TileGroup *g = l->g;
    l->sums.mem = l->each.mem = l->same.mem = l->rows.mem = g->mem;
    for (Op *op = g->f->first; op; op = op->next) {
        if (!g->has[op->id]) continue;
        for (int i = 0; i < op->nin; i++) {
            Value *v = op->in[i];
            if (!v->def || !g->has[v->def->id])
                add(g->lead[v->id] ? &l->each : &l->same, v);
        }
        for (int i = 0; i < op->nout; i++) {
            Value *v = op->out[i];
            if (read_outside(g, v)) add(g->sum[v->id] ? &l->sums : &l->rows, v);
        }
    }
}

/* ---- the function of a tile ---- */

static Type tile_of(const Loop *l, const Value *v) {
    Type tile = v->ty;
    int lead = l->g->lead[v->id];
    if (lead) check(tile_type(&v->ty, lead, l->g->tile_rows, &tile));
    return tile;
}

static void add_arguments(Loop *l, const Values *list) {
    for (int i = 0; i < list->n; i++) {
        Value *v = list->v[i];
        Value *arg = func_arg_given(l->tile, v);
        arg->ty = tile_of(l, v);
        if (list != &l->sums) l->map[v->id] = arg;
    }
}

/* The summand of this tile, added to what came in. */
static void add_up(Loop *l, Builder *b, const Value *v) {
    for (int i = 0; i < l->sums.n; i++) {
        if (l->sums.v[i] != v) continue;
        Value *sum = build1(b, OP_add, NULL, l->tile->arg[i], l->map[v->id], NULL);
        sum->grad_of = v->grad_of;
        l->map[v->id] = build_named(b, v->name, sum);
    }
}

static void make_tile(Loop *l) {
    Func *f = l->g->f;
    l->tile =
        func_new_unique(f->mod, arena_printf(f->mod->mem, "%s.tile", f->name), ROLE_FUNC);
    add_arguments(l, &l->sums);
    add_arguments(l, &l->each);
    add_arguments(l, &l->same);
    Builder b = build_at_end(l->tile);
    for (Op *op = f->first; op; op = op->next) {
        if (!l->g->has[op->id]) continue;
        Op *copy = op_clone(&b, op, l->map);
        for (int i = 0; i < op->nout; i++) copy->out[i]->ty = tile_of(l, op->out[i]);
        for (int i = 0; i < op->nout; i++) add_up(l, &b, op->out[i]);
    }
    for (int i = 0; i < l->sums.n; i++) func_ret(l->tile, l->map[l->sums.v[i]->id], i);
    for (int i = 0; i < l->rows.n; i++) func_ret(l->tile, l->map[l->rows.v[i]->id], -1);
}

/* ---- the call ---- */

static Type stack_of(const Loop *l, const Value *v) {
    Type tile = tile_of(l, v);
    return type_stack(&tile, l->g->rows / l->g->tile_rows);
}

/* The op that alone reads v, if it adds it to a value of the same shape, or is a view of it. */
static Op *only_addition(const Func *f, const Value *v) {
    Op *op = value_only_reader(f, v);
    if (!op || (op->nin == 1 && op_has(op, F_VIEW))) return op;
    bool plain = op_has(op, F_PLUS) && !op_attr(op, "rule");
    return plain && type_same_shape(&op->in[0]->ty, &op->in[1]->ty) ? op : NULL;
}

static bool is_before(const TileGroup *g, const Value *v) {
    const Op *def = v->def;
    return !def || (def->id < g->last->id && !g->after[def->id] && !g->has[def->id]);
}

/* What is added to the sum, in the end, of what was there before: then the tiles are added to
 * that, and the addition is none. NULL: there is no such. */
static Value *take_accumulator(Loop *l, Value *sum) {
    Func *f = l->g->f;
    Value *v = sum;
    for (Op *op; (op = only_addition(f, v)); v = op->out[0]) {
        if (op->nin == 1) continue;
        Value *other = op->in[op->in[0] == v];
        if (!is_before(l->g, other)) continue;
        func_replace(f, op->out[0], v);
        op->in[op->in[0] == v] = v; /* dead */
        bool same = type_same_shape(&other->ty, &sum->ty);
        return same ? other : build_as(&l->b, OP_reshape, NULL, sum->ty, other, NULL);
    }
    return NULL;
}

/* What the carried sum begins with. */
static Value *beginning(Loop *l, Value *sum) {
    Value *before = take_accumulator(l, sum);
    return before ? before : build_as(&l->b, OP_fill, "value=0", sum->ty, NULL);
}

static void make_call(Loop *l) {
    int n = 0;
    Value **in = NEW_ARRAY(l->g->mem, Value *, (size_t)l->tile->narg + 1);
    for (int i = 0; i < l->sums.n; i++) in[n++] = beginning(l, l->sums.v[i]);
    for (int i = 0; i < l->each.n; i++) {
        Value *v = l->each.v[i];
        l->b.name = v->name;
        in[n++] = build_as(&l->b, OP_reshape, NULL, stack_of(l, v), v, NULL);
    }
    for (int i = 0; i < l->same.n; i++) in[n++] = l->same.v[i];
    const char *carry = l->sums.n ? bfmt(&l->b, "; carry=%d", l->sums.n) : "";
    char *attrs = bfmt(&l->b, "fn=@%s; times=%lld%s; each=%d", l->tile->name,
                       (long long)(l->g->rows / l->g->tile_rows), carry, l->each.n);
    l->call = build_list(&l->b, OP_call, attrs, n, in, NULL, 0);
}

/* v in place of the old value, which only dead ops of the group make and read then. */
static void replace_result(Func *f, Value *old, Value *v) {
    v->name = old->name;
    v->grad_of = old->grad_of;
    func_replace(f, old, v);
}

static void replace_results(Loop *l) {
    Func *f = l->g->f;
    for (int i = 0; i < l->sums.n; i++) replace_result(f, l->sums.v[i], l->call->out[i]);
    for (int i = 0; i < l->rows.n; i++) {
        Value *old = l->rows.v[i], *stack = l->call->out[l->sums.n + i];
        stack->name = old->name;
        Value *v = build_as(&l->b, OP_reshape, NULL, old->ty, stack, NULL);
        replace_result(f, old, v);
    }
}

/* ---- the module ---- */

static Op *make_loop(TileGroup *g) {
    Loop l = {.g = g};
    l.map = NEW_ARRAY(g->mem, Value *, (size_t)g->f->nvalues + 1);
    /* ops that stand among those of the group and need them */
    Op **behind = NEW_ARRAY(g->mem, Op *, (size_t)g->f->nops + 1);
    int nbehind = 0;
    for (Op *op = g->f->first; op != g->last; op = op->next)
        if (g->after[op->id]) behind[nbehind++] = op;
    list_values(&l);
    make_tile(&l);
    l.b = build_behind(g->last);
    make_call(&l);
    replace_results(&l);
    for (int i = 0; i < nbehind; i++) op_move(&l.b, behind[i]);
    func_remove_dead(g->f); /* what is left of the group */
    return l.call;
}

/* A value that is too large. */
typedef struct Large {
    Value *v;
    int64_t bytes;
    int nth; /* in the order of the program */
} Large;

static int by_bytes(const void *a, const void *b) {
    const Large *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->nth - y->nth;
}

/* What ops make of more than o->tile_bytes and at most `most`, the largest first. */
static Large *list_large(Arena *mem, const Func *f, int64_t most, const PassOptions *o,
                         int *n) {
    Large *list = NULL;
    int cap = 0;
    *n = 0;
    for (Op *op = f->first; op; op = op->next)
        for (int i = 0; i < op->nout; i++) {
            const Large large = {op->out[i], type_bytes(&op->out[i]->ty), *n};
            if (large.bytes > o->tile_bytes && large.bytes <= most)
                PUSH(mem, list, *n, cap, large);
        }
    if (*n) qsort(list, (size_t)*n, sizeof *list, by_bytes);
    return list;
}

static bool tile_value(const Value *v, const PassOptions *o) {
    TileGroup g = {0};
    bool tiled = tile_group_find(&g, v, o) && make_loop(&g);
    arena_free(g.mem);
    return tiled;
}

/* The largest values first: a loop around a smaller one could take from the group of a larger
 * one. A loop leaves other values, so they are listed anew. */
static void tile_func(Func *f, const PassOptions *o) {
    int64_t most = INT64_MAX;
    for (bool again = true; again;) {
        Arena *mem = arena_new();
        int n, i = 0;
        const Large *list = list_large(mem, f, most, o, &n);
        while (i < n && !tile_value(list[i].v, o)) i++;
        again = i < n;
        if (again) most = list[i].bytes;
        arena_free(mem);
    }
}

/* The functions of a module that no loop calls itself, ended by NULL: layers are not worth it, while
 * the gradient of a model, whose logits are large, is called by the function of a micro-batch. */
static Func **outside_loops(Arena *mem, const Module *m) {
    int n = 0, k = 0;
    for (Func *f = m->first; f; f = f->next) f->nth = n++;
    bool *looped = NEW_ARRAY(mem, bool, (size_t)n + 1);
    Func **list = NEW_ARRAY(mem, Func *, (size_t)n + 1);
    for (const Func *f = m->first; f; f = f->next)
        for (const Op *op = f->first; op; op = op->next)
            if (op_is_call(op) && call_of(op).loop) looped[op_func(op)->nth] = true;
    for (Func *f = m->first; f; f = f->next)
        if (!looped[f->nth]) list[k++] = f;
    return list;
}

/* Not in what a loop runs, which is a layer or a tile: there is one at a time, and collectives
 * of its gradients are to start before its other work. */
void pass_tile(Module *m, const PassOptions *o) {
    if (!o->tile_bytes) return;
    Arena *mem = arena_new();
    Func **list = outside_loops(mem, m);
    for (int i = 0; list[i]; i++) tile_func(list[i], o);
    arena_free(mem);
}
