/* memplan.c - a location in memory for every value. Level fused -> planned.
 *
 * Each function has a frame; the frame of a callee is in the workspace of the call.
 * Values that a function returns live where the caller says (@r0), values that overwrite
 * an argument in its buffer (@a2), all others in the frame (@128). Values tied together
 * (views, results that overwrite an operand nothing reads again) share one buffer;
 * buffers that are not live at the same time share bytes. Where a value cannot be at the
 * location where it must be, a copy is made. */
#include "ir/iteration_space.h"
#include "ir/matmul.h"
#include "passes/lower/frame.h"
#include "passes/passes.h"

typedef struct MemPlan {
    Arena *mem;
    Func *f;
    const PassOptions *o;
    int *parent; /* by value id: union-find of values that share a buffer */
    int *first, *last;
    Loc *fixed; /* by root */
} MemPlan;

static int root(MemPlan *p, int id) {
    while (p->parent[id] != id) id = p->parent[id] = p->parent[p->parent[id]];
    return id;
}

/* Numbers the function and computes each value's life. */
static void lives(MemPlan *p) {
    Func *f = p->f;
    func_number(f);
    size_t n = (size_t)f->nvalues;
    p->parent = NEW_ARRAY(p->mem, int, n);
    p->first = NEW_ARRAY(p->mem, int, n);
    p->last = NEW_ARRAY(p->mem, int, n);
    p->fixed = NEW_ARRAY(p->mem, Loc, n);
    for (int i = 0; i < f->nvalues; i++) {
        p->parent[i] = i;
        p->first[i] = p->last[i] = -1;
    }
    for (int i = 0; i < f->narg; i++) p->fixed[f->arg[i]->id] = (Loc){LOC_ARG, i};
    for (Op *op = f->first; op; op = op->next) {
        for (int i = 0; i < op->nin; i++) p->last[op->in[i]->id] = op->id;
        for (int i = 0; i < op->nout; i++) {
            p->first[op->out[i]->id] = p->last[op->out[i]->id] = op->id;
        }
    }
    for (int i = 0; i < f->nret; i++) p->last[f->ret[i]->id] = f->nops;
}

/* Both must not be bound to different locations. The lifetime of the set is kept at the
 * root. */
static bool join(MemPlan *p, const Value *a, const Value *b) {
    int x = root(p, a->id), y = root(p, b->id);
    if (x == y) return true;
    if (p->fixed[x].kind && p->fixed[y].kind) return false;
    if (p->fixed[y].kind) p->fixed[x] = p->fixed[y];
    p->parent[y] = x;
    p->first[x] = MIN(p->first[x], p->first[y]);
    p->last[x] = MAX(p->last[x], p->last[y]);
    return true;
}

static bool fix(MemPlan *p, const Value *v, Loc where) {
    int x = root(p, v->id);
    if (p->fixed[x].kind) return false;
    p->fixed[x] = where;
    return true;
}

static bool addend_like_result(const Op *op, int i) {
    Dims d;
    return op_dims(op, &d) && matmul_like_result(&d, i);
}

/* Is result j of op allowed to be written over operand i? */
static bool may_overwrite(MemPlan *p, const Op *op, int i, int j) {
    const Func *callee = op_callee(op);
    if (callee) {
        return callee->role == ROLE_KERNEL && space_inplace(p->mem, callee, i, j);
    }
    if (optab[op->kind].flags & F_ADDENDS) {
        return j == 0 && i >= 2 && addend_like_result(op, i);
    }
    if (!(optab[op->kind].flags & F_INPLACE)) return false;
    return i == j && (i == 0 || (optab[op->kind].flags & F_COMM));
}

/* When op is done: a late collective at its arrive. */
static const Op *end_of(const Op *op) {
    const Op *arrival = op_arrival(op);
    return arrival ? arrival : op;
}

/* Does nobody read v's buffer once op has begun, but op itself (and only once)? */
static bool dies_at(MemPlan *p, const Value *v, const Op *op) {
    int x = root(p, v->id);
    const Op *end = end_of(op);
    if (p->last[x] != end->id) return false;
    for (const Op *at = op; at != end; at = at->next) {
        for (int i = 0; i < at->nin && at != op; i++) {
            if (root(p, at->in[i]->id) == x) return false;
        }
    }
    for (int i = 0, n = 0; i < op->nin; i++) {
        if (root(p, op->in[i]->id) == x && ++n > 1) return false;
    }
    return true;
}

/* May value `v` take over the buffer of argument `arg`, i.e. is the argument read no later
 * than the op that makes v, which may overwrite it? */
static bool can_take_argument(MemPlan *p, const Value *v, const Value *arg) {
    const Value *made = value_viewed(v);
    const Op *op = made->def;
    int x = root(p, arg->id), from = p->first[root(p, v->id)];
    if (!op || p->last[x] > from) return false;
    if (p->last[x] < from) return true;
    if (op->id != from) return false;
    for (int i = 0; i < op->nin; i++) {
        if (root(p, op->in[i]->id) == x && dies_at(p, op->in[i], op)) {
            return may_overwrite(p, op, i, made->nth);
        }
    }
    return false;
}

static Value *insert_copy(Func *f, Op *before, Value *v) {
    Builder b = before ? build_before(before) : build_at_end(f);
    b.name = v->name;
    return build1(&b, OP_copy, NULL, v, NULL);
}

/* ---- first: copies, until everything fits where it must ---- */

/* Does a function overwrite operand i of the call op? */
static bool is_overwritten(const Op *op, int i) {
    const Func *callee = op_callee(op);
    for (int j = 0; callee && callee->role != ROLE_KERNEL && j < op->nout; j++)
        if (callee->alias[j] == i) return true;
    return false;
}

/* Are its results the same wherever it is? */
static bool makes_constants(const Op *op) {
    const Func *callee = op ? op_callee(op) : NULL;
    bool kernel = callee && callee->role == ROLE_KERNEL;
    return op && !op->nin && op->nout == 1 && (kernel || op_has(op, F_FILL));
}

/* Zeros that a call adds to are made for it alone, right before it, instead of copied from some that
 * others begin with too. */
static void make_constants_apart(Func *f) {
    Arena *own = arena_new();
    func_number(f);
    int *uses = func_uses(own, f);
    for (Op *op = f->first; op; op = op->next)
        for (int i = 0; i < op->nin; i++) {
            Value *v = op->in[i];
            if (!makes_constants(v->def) || !is_overwritten(op, i)) continue;
            Builder b = build_before(op);
            b.name = v->name;
            op->in[i] = op_again(&b, v->def, NULL)->out[0];
            if (--uses[v->id] == 0) op_remove(v->def);
        }
    arena_free(own);
}

static void join_views(MemPlan *p) {
    for (Op *op = p->f->first; op; op = op->next) {
        if (!(optab[op->kind].flags & F_VIEW)) continue;
        for (int i = 0; i < op->nout; i++) join(p, op->in[i], op->out[i]);
    }
}

/* Results of callees that overwrite an operand share its buffer here. */
static bool join_call_aliases(MemPlan *p) {
    for (Op *op = p->f->first; op; op = op->next) {
        const Func *callee = op_callee(op);
        for (int j = 0; callee && j < op->nout; j++) {
            int i = callee->alias[j];
            if (i < 0 || callee->role == ROLE_KERNEL) continue;
            const Value *whole = value_viewed(op->in[i]);
            bool own = p->fixed[root(p, whole->id)].kind != LOC_ARG ||
                       (!whole->def && func_result_over(p->f, whole->nth) >= 0);
            if (own && dies_at(p, op->in[i], op) && join(p, op->in[i], op->out[j]))
                continue;
            op->in[i] = insert_copy(p->f, op, op->in[i]);
            return false;
        }
    }
    return true;
}

/* Is result i, or what it is a view of, the argument that it overwrites? */
static bool in_place_already(MemPlan *p, int i) {
    const Func *f = p->f;
    int a = f->alias[i];
    return a >= 0 && root(p, f->ret[i]->id) == root(p, f->arg[a]->id);
}

/* Results that are in the buffer of some other argument are copied out first, so that the
 * argument can be overwritten after that (two arguments may be exchanged). */
static bool results_leave_arguments(MemPlan *p) {
    Func *f = p->f;
    for (int i = 0; i < f->nret; i++) {
        if (p->fixed[root(p, f->ret[i]->id)].kind != LOC_ARG || in_place_already(p, i)) {
            continue;
        }
        f->ret[i] = insert_copy(f, NULL, f->ret[i]);
        return false;
    }
    return true;
}

static bool assign_results(MemPlan *p) {
    Func *f = p->f;
    if (!results_leave_arguments(p)) return false;
    for (int i = 0; i < f->nret; i++) {
        Value *v = f->ret[i];
        Loc where = {LOC_RET, i};
        bool good = true;
        if (in_place_already(p, i)) continue;
        if (f->alias[i] >= 0) {
            where = (Loc){LOC_ARG, f->alias[i]};
            good = can_take_argument(p, v, f->arg[f->alias[i]]);
        }
        if (good && fix(p, v, where)) continue;
        f->ret[i] = insert_copy(f, NULL, v);
        return false;
    }
    return true;
}

/* Has another result of op the buffer x? One that nobody reads does not keep it alive. */
static bool taken_by_result(MemPlan *p, const Op *op, int x) {
    for (int i = 0; i < op->nout; i++)
        if (root(p, op->out[i]->id) == x) return true;
    return false;
}

/* Operands that die under a result of their size give it their buffer. */
static void reuse_dying(MemPlan *p) {
    for (Op *op = p->f->first; op; op = op->next) {
        for (int j = 0; j < op->nout; j++) {
            int y = root(p, op->out[j]->id);
            if (p->first[y] != op->id || p->fixed[y].kind == LOC_ARG) continue;
            for (int i = 0; i < op->nin; i++) {
                int x = root(p, op->in[i]->id);
                if (taken_by_result(p, op, x) || p->fixed[x].kind) continue;
                if (!dies_at(p, op->in[i], op)) continue;
                if (type_bytes(&op->in[i]->ty) != type_bytes(&op->out[j]->ty)) continue;
                if (may_overwrite(p, op, i, j) && join(p, op->in[i], op->out[j])) break;
            }
        }
    }
}

/* What dies under a result over an argument is in the buffer of the argument before, where that is
 * read no more: a sum of several steps is in its place from the first. */
static void reuse_arguments(MemPlan *p) {
    for (Op *op = p->f->last; op; op = op->prev)
        for (int j = 0; j < op->nout; j++) {
            int y = root(p, op->out[j]->id);
            if (p->first[y] != op->id || p->fixed[y].kind != LOC_ARG) continue;
            const Value *arg = p->f->arg[p->fixed[y].at];
            for (int i = 0; i < op->nin; i++) {
                const Value *v = op->in[i];
                if (p->fixed[root(p, v->id)].kind || !dies_at(p, v, op)) continue;
                if (type_bytes(&v->ty) != type_bytes(&op->out[j]->ty)) continue;
                if (!may_overwrite(p, op, i, j) || !can_take_argument(p, v, arg))
                    continue;
                if (join(p, v, op->out[j])) break;
            }
        }
}

/* ---- then: offsets ---- */

/* Workspace of an op: what codegen asks for, and for calls the frame of the callee. */
static int64_t workspace(MemPlan *p, const Op *op) {
    const Func *callee = op_callee(op);
    int64_t bytes = callee && callee->role != ROLE_KERNEL ? callee->frame_bytes : 0;
    if (p->o->workspace_bytes) {
        bytes = align_up(bytes) + p->o->workspace_bytes(op, p->o->workspace_ctx);
    }
    return bytes;
}

/* Buffers of the frame, values' by root in `of` too; *n of them. */
static FrameBuffer **make_buffers(MemPlan *p, FrameBuffer **of, int *n) {
    Func *f = p->f;
    FrameBuffer **all = NEW_ARRAY(p->mem, FrameBuffer *, (size_t)(f->nvalues + f->nops));
    for (Op *op = f->first; op; op = op->next) {
        for (int i = 0; i < op->nout; i++) {
            int x = root(p, op->out[i]->id);
            if (of[x] || p->fixed[x].kind) continue;
            FrameBuffer *b = all[(*n)++] = of[x] = NEW(p->mem, FrameBuffer);
            *b = (FrameBuffer){.nth = *n,
                               .bytes = align_up(type_bytes(&op->out[i]->ty)),
                               .first = p->first[x],
                               .last = p->last[x]};
        }
        int64_t bytes = workspace(p, op);
        if (!bytes) continue;
        FrameBuffer *b = all[(*n)++] = NEW(p->mem, FrameBuffer);
        *b = (FrameBuffer){.nth = *n,
                           .bytes = align_up(bytes),
                           .first = op->id,
                           .last = end_of(op)->id,
                           .workspace_of = op};
        op_set_int(op, "ws_bytes", bytes);
    }
    return all;
}

static bool is_written_by(MemPlan *p, const Op *op, FrameBuffer *const *of,
                          const FrameBuffer *b) {
    for (int i = 0; i < op->nout; i++)
        if (of[root(p, op->out[i]->id)] == b) return true;
    return false;
}

/* Marks the stacks of a loop: those that nobody reads after it and it only by slices, without
 * writing over them, and those that nobody had before it. */
static void mark_stacks(MemPlan *p, const Op *op, FrameBuffer **of) {
    const Call c = call_of(op);
    Stack s = {op, false, 0, c.times, c.reverse};
    for (int i = 0; i < op->nin; i++) {
        FrameBuffer *b = of[root(p, op->in[i]->id)];
        bool only =
            b && b->last == op->id && call_slices(&c, i) && !is_written_by(p, op, of, b);
        for (int k = 0; k < op->nin && only; k++)
            only = of[root(p, op->in[k]->id)] != b || call_slices(&c, k);
        if (!only) continue;
        s.slice_bytes = type_bytes(&op->in[i]->ty) / c.times;
        b->stack = s;
    }
    s.written = true;
    for (int i = c.carry; i < op->nout; i++) {
        FrameBuffer *b = of[root(p, op->out[i]->id)];
        if (!b || b->first != op->id) continue;
        s.slice_bytes = type_bytes(&op->out[i]->ty) / c.times;
        b->stack = s;
    }
}

static void assign_offsets(MemPlan *p) {
    Func *f = p->f;
    FrameBuffer **of = NEW_ARRAY(p->mem, FrameBuffer *, (size_t)f->nvalues);
    int n = 0;
    FrameBuffer **all = make_buffers(p, of, &n);
    for (Op *op = f->first; op; op = op->next)
        if (op_is_call(op) && call_of(op).loop) mark_stacks(p, op, of);
    f->frame_bytes = frame_pack(p->mem, all, n);
    if (f->frame_bytes > TYPE_MAX_BYTES)
        fail(EXIT_MEMORY, "@%s needs more than 2^50 bytes of memory", f->name);
    for (int i = 0; i < n; i++)
        if (all[i]->workspace_of) op_set_int(all[i]->workspace_of, "ws", all[i]->offset);
    for (Op *op = f->first; op; op = op->next) {
        for (int i = 0; i < op->nout; i++) {
            int x = root(p, op->out[i]->id);
            op->out[i]->loc =
                p->fixed[x].kind ? p->fixed[x] : (Loc){LOC_FRAME, of[x]->offset};
        }
    }
}

static void plan_func(Func *f, const PassOptions *o) {
    MemPlan p = {.f = f, .o = o};
    bool settled;
    make_constants_apart(f);
    do {
        arena_free(p.mem);
        p.mem = arena_new();
        lives(&p);
        join_views(&p);
        settled = join_call_aliases(&p) && assign_results(&p);
    } while (!settled);
    reuse_dying(&p);
    reuse_arguments(&p);
    assign_offsets(&p);
    arena_free(p.mem);
}

void pass_memplan(Module *m, const PassOptions *o) {
    Arena *mem = arena_new();
    if (o->choose) o->choose(m, o->workspace_ctx);
    Func **order = module_order(mem, m);
    for (int i = 0; order[i]; i++) {
        if (order[i]->role != ROLE_KERNEL) plan_func(order[i], o);
    }
    const char *why = o->unverified ? NULL : memplan_check(mem, m);
    if (why) die("memory plan: %s", why);
    arena_free(mem);
}
