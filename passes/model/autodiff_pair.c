/* autodiff_pair.c - see autodiff_pair.h. */
#include "passes/model/autodiff_pair.h"
#include "ir/placement.h"
#include "passes/model/made_again.h"

/* ---- gradients ---- */

void grad_lie_like(Value *grad, const Type *ty) {
    if (!type_is_split(ty)) return;
    memcpy(grad->ty.split, ty->split, sizeof ty->split);
    grad->ty.open_sum = true;
}

void grad_name(Arena *mem, Value *v, const char *prefix, const Value *of) {
    v->name = arena_printf(mem, "%s.%s", prefix, of->name);
    v->grad_of = of->name;
}

Value *grad_zeros(Builder *b, const Type *ty) {
    return build_as(b, OP_fill, "value=0", *ty, NULL);
}

void grad_place(const PassOptions *o, const Func *f, int i, Value *grad) {
    if (!grad || !grad->def) return;
    const Type *ty = &f->arg[i]->ty;
    if (arg_float(f, i, "zero", 0) < 2) {
        grad_lie_like(grad, ty);
        return;
    }
    grad->ty = zero_type(f->mod, o, ty);
    grad->ty.open_sum =
        true; /* copies over other axes add theirs at the end of the step */
}

/* ---- what @f.bwd is given and gives back ---- */

/* Is it there when forward, whose ops end with `last_id`, is done? */
static bool is_forward(const Value *v, int last_id, int first_cot) {
    return v && (v->def ? v->def->id <= last_id : v->nth < first_cot);
}

/* In fwd: forward ops up to `last`, then backward ops. Lists the forward values that
 * backward reads: arguments that the caller still has by index, the rest as new results. */
static Value **collect_saved(Pair *p, Op *last, Value **grads, int ncot) {
    Func *w = p->fwd;
    Arena *mem = w->mod->mem;
    func_number(w);
    bool *seen = NEW_ARRAY(mem, bool, (size_t)w->nvalues);
    Value **saved = NEW_ARRAY(mem, Value *, (size_t)w->nvalues);
    int first_cot = w->narg - ncot, n = 0;
    p->saved_arg = NEW_ARRAY(mem, int, (size_t)w->narg);
    int last_id = last ? last->id : -1;
    for (Op *op = last ? last->next : w->first;; op = op->next) {
        int count = op ? op->nin : p->call.f->narg;
        for (int i = 0; i < count; i++) {
            Value *v = op ? op->in[i] : grads[i];
            if (!is_forward(v, last_id, first_cot) || seen[v->id]) continue;
            seen[v->id] = true;
            if (!v->def && v->nth >= p->call.carry)
                p->saved_arg[p->nsaved_arg++] = v->nth;
            else
                saved[n++] = v;
        }
        if (!op) break;
    }
    p->nsaved = n;
    return saved;
}

static bool is_sum(const Pair *p, int i) {
    return p->call.loop && i >= p->call.carry + p->call.each;
}

/* Is there an input of this kind for number i, of a result, an argument, a saved value or
 * a saved argument? */
static bool has_input(const Pair *p, InputKind kind, int i) {
    bool carried = i < p->call.carry;
    switch (kind) {
    case CARRIED_INPUT:
        return p->cot[i] && carried;
    case SUM_INPUT:
        return p->wants[i] && is_sum(p, i);
    case RESULT_INPUT:
        return p->cot[i] && !carried;
    case SAVED_INPUT:
        return true;
    case SLICED_INPUT:
        return call_slices(&p->call, p->saved_arg[i]);
    case SHARED_INPUT:
        return !call_slices(&p->call, p->saved_arg[i]);
    }
    return false;
}

/* In the order of a call: carried, of which runs see slices, the same for all runs. */
static void list_inputs(Arena *mem, Pair *p) {
    const Func *f = p->call.f;
    const int most[] = {[CARRIED_INPUT] = f->nret,      [SUM_INPUT] = f->narg,
                        [RESULT_INPUT] = f->nret,       [SAVED_INPUT] = p->nsaved,
                        [SLICED_INPUT] = p->nsaved_arg, [SHARED_INPUT] = p->nsaved_arg};
    p->input = NEW_ARRAY(mem, Input, (size_t)(f->nret + 2 * f->narg + p->nsaved));
    for (InputKind kind = 0; kind < ARRAY_LEN(most); kind++) {
        for (int i = 0; i < most[kind]; i++) {
            int of = kind >= SLICED_INPUT ? p->saved_arg[i] : i;
            if (has_input(p, kind, i)) p->input[p->ninput++] = (Input){kind, of};
        }
    }
}

/* Carried gradients, sums, then those of slices. */
static void list_outputs(Arena *mem, Pair *p) {
    p->output = NEW_ARRAY(mem, int, (size_t)p->call.f->narg);
    for (int group = 0; group < 3; group++) {
        for (int i = 0; i < p->call.f->narg; i++) {
            int mine = i < p->call.carry ? 0 : is_sum(p, i) ? 1 : 2;
            if (p->wants[i] && mine == group) p->output[p->noutput++] = i;
        }
    }
}

/* The arguments of @f.bwd; map is by value id of fwd. acc[i] gets the sum so far of
 * argument i. */
static void bwd_arguments(Pair *p, Value **cot, Value **saved, Value **map, Value **acc) {
    Func *bwd = p->bwd;
    for (int k = 0; k < p->ninput; k++) {
        const int i = p->input[k].i;
        Value *arg = NULL;
        switch (p->input[k].kind) {
        case SUM_INPUT:
            acc[i] = func_arg(bwd, "acc", p->call.f->arg[i]->ty);
            grad_name(bwd->mod->mem, acc[i], "acc", p->call.f->arg[i]);
            continue;
        case CARRIED_INPUT:
        case RESULT_INPUT:
            arg = cot[i];
            break;
        case SAVED_INPUT:
            arg = saved[i];
            break;
        case SLICED_INPUT:
        case SHARED_INPUT:
            arg = p->fwd->arg[i];
            break;
        }
        map[arg->id] = func_arg_given(bwd, arg);
    }
}

static void bwd_results(Pair *p, Value **grads, Value **acc) {
    Builder b = build_at_end(p->bwd);
    for (int k = 0; k < p->noutput; k++) {
        int i = p->output[k];
        Value *v = grads[i] ? grads[i]
                   : acc[i] ? acc[i]
                            : grad_zeros(&b, &p->call.f->arg[i]->ty);
        if (acc[i] && grads[i]) v = build1(&b, OP_add, NULL, acc[i], grads[i], NULL);
        func_ret(p->bwd, v, acc[i] ? acc[i]->nth : -1);
    }
}

/* ---- forward and backward apart ---- */

/* Whether some op of backward reads v. */
static bool read_behind(const Op *last, const Value *v) {
    for (const Op *op = last->next; op; op = op->next)
        if (op_reads_value(op, v)) return true;
    return false;
}

/* Split over the further axes in the first dimension that they divide; false: none is, or it
 * is split over them already, or its placement is open: nothing is written, and there are
 * other axes that may split it. */
static bool split_further(const Mesh *m, Axes axes, Type *t) {
    bool open = !type_is_split(t) && mesh_ranks(m) > mesh_group_size(m, axes);
    if (!axes || !dtype_is_float(t->dt) || open) return false;
    for (int d = 0; d < t->rank; d++)
        if (t->split[d] & axes) return false;
    for (int d = 0; d < t->rank; d++) {
        Axes both = t->split[d] | axes;
        if (t->dim[d] % mesh_group_size(m, both)) continue;
        t->split[d] = both;
        return true;
    }
    return false;
}

/* What a layer makes everything again from is kept in parts. */
static void keep_in_parts(Pair *p, const Op *last, const PassOptions *o) {
    Func *w = p->fwd;
    const Mesh *m = &w->mod->mesh;
    Axes axes = 0;
    if (!last->next || !p->remake || !p->call.loop || !o->remake_axes) return;
    check(mesh_axes_parse(m, o->remake_axes, &axes));
    for (int i = 0; i < p->call.carry; i++) {
        Value *v = w->arg[i];
        Type part = v->ty;
        if (!read_behind(last, v) || !split_further(m, splitting_axes(m, axes), &part))
            continue;
        Builder b = build_at_start(w), behind = build_before(last->next);
        Value *kept = build_placed(&b, OP_reshard, NULL, part, v);
        Value *whole = build_placed(&behind, OP_reshard, NULL, v->ty, kept);
        kept->name = whole->name = v->name;
        for (Op *op = whole->def->next; op; op = op->next)
            for (int k = 0; k < op->nin; k++)
                if (op->in[k] == v) op->in[k] = whole;
    }
}

/* What a loop saves comes out of it as a stack of one a run. */
static void refuse_unstackable(const Pair *p, Value *const *saved) {
    for (int i = 0; i < p->nsaved; i++)
        if (p->call.loop && saved[i]->ty.rank == MAX_RANK)
            fail(EXIT_CONFIG,
                 "@%s: %%%s of each run of a loop is kept for backward: it may have at "
                 "most "
                 "%d dimensions; reshape it to fewer",
                 p->call.f->name, saved[i]->name, MAX_RANK - 1);
}

/* In calls of calls everything that is kept goes through all callers. */
static void refuse_many(const Pair *p) {
    enum { MAX_SAVED = 1 << 16 };
    if (p->nsaved > MAX_SAVED)
        fail(EXIT_CONFIG,
             "@%s: %d values are kept for backward, at most %d can be; call what it "
             "calls in a loop",
             p->call.f->name, p->nsaved, MAX_SAVED);
}

/* What backward makes again, its copies of ops of forward, and what they begin with. */
static void make_layer_again(Pair *p, Op *last, Value **grads, const PassOptions *o) {
    LayerSeen layer = {.w = p->fwd,
                       .last = last,
                       .carry = p->call.carry,
                       .grads = grads,
                       .ngrads = p->call.f->narg,
                       .elementwise = o->remake_elementwise};
    if (p->call.loop && o->layer_seen) o->layer_seen(&layer, o->layer_ctx);
    make_again(&layer, p->remake);
    keep_in_parts(p, last, o);
}

/* @f.bwd, with nothing in it. */
static Func *bwd_new(const Pair *p) {
    Module *m = p->fwd->mod;
    Func *bwd =
        func_new_unique(m, arena_printf(m->mem, "%s.bwd", p->call.f->name), ROLE_FUNC);
    func_made_of(bwd, p->call.f, PART_BACKWARD);
    bwd->task = p->call.f->task ? TASK_BACKWARD : TASK_NONE;
    bwd->chunk = p->call.f->chunk;
    return bwd;
}

/* The ops from `op` on, with the values of map, which gets theirs. */
static void move_ops(Func *to, Op *op, Value **map) {
    Builder b = build_at_end(to);
    for (Op *next; op; op = next) {
        next = op->next;
        op_clone(&b, op, map);
        op_remove(op);
    }
}

void pair_split(Pair *p, Op *last, Value **cot, int ncot, Value **grads,
                const PassOptions *o) {
    Func *w = p->fwd;
    Arena *mem = w->mod->mem;
    if (last) make_layer_again(p, last, grads, o);
    Value **saved = collect_saved(p, last, grads, ncot);
    refuse_unstackable(p, saved);
    refuse_many(p);
    list_inputs(mem, p);
    list_outputs(mem, p);
    p->bwd = bwd_new(p);
    Value **map = NEW_ARRAY(mem, Value *, (size_t)w->nvalues);
    Value **acc = NEW_ARRAY(mem, Value *, (size_t)p->call.f->narg);
    bwd_arguments(p, cot, saved, map, acc);
    move_ops(p->bwd, last ? last->next : w->first, map);
    for (int i = 0; i < p->call.f->narg; i++) {
        if (!grads[i]) continue;
        grads[i] = map[grads[i]->id];
        grad_place(o, w, i, grads[i]);
    }
    bwd_results(p, grads, acc);
    w->narg -= ncot;
    for (int i = 0; i < p->nsaved; i++) func_ret(w, saved[i], -1);
    make_plain_calls(w);
    func_remove_dead(p->bwd);
}
