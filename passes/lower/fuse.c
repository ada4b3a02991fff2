/* fuse.c - groups elementwise ops and reductions into kernel functions. Level local ->
 * fused.
 *     %a = mul %x, %y; %b = sum %a {mn->m}; %c = gelu %a
 *  -> %b, %c = call %x, %y {fn=@k0}
 * An op joins the groups that make its operands (or else one that reads the same tensor)
 * into one group, if they fit one iteration space (ir/iteration_space.h) and nothing
 * outside has used their results yet: the kernel takes the position of its last op. Equal
 * kernels are one function. */
#include "ir/iteration_space.h"
#include "ir/placement.h"
#include "passes/lower/fuse_prepare.h"
#include "passes/passes.h"
#include <stdlib.h>

enum {
    SIBLING_REACH = 24, /* how many ops back a group with a common operand may end */
    MAX_KERNEL_OPS = 96,
};

typedef struct Group {
    Op **op;
    int n, cap;
    Space space; /* of these ops; fuse keeps no blocks */
} Group;

typedef struct Fuse {
    Module *m;
    Func *f;
    Arena *mem;        /* of this function */
    Group **of;        /* by op id */
    Op **order;        /* by op id */
    const Dims **dims; /* by op id; NULL: not looked at yet */
    Op ***reader;      /* func_readers */
    int *calls;        /* by op id: of functions, before it */
    bool *given;       /* by value id: the function returns it */
    Renames renames;   /* results of ops that are in kernels now */
    Value **map;       /* by value id: its value in the kernel that is being made */
    FuncSet *kernels;  /* that were made, of the whole module */
    int next_id;
    Space fitted; /* of the groups and op that fitted last */
} Fuse;

/* The ops of several groups and one more, in program order. */
static int gather(Group **set, int n, Op *op, Op **ops) {
    int count = 0;
    for (int k = 0; k < n; k++) {
        memcpy(ops + count, set[k]->op, (size_t)set[k]->n * sizeof *ops);
        count += set[k]->n;
    }
    if (n > 1) qsort(ops, (size_t)count, sizeof *ops, op_by_id);
    ops[count++] = op;
    return count;
}

static bool in_set(const Fuse *fu, Group **set, int n, int id) {
    for (int k = 0; k < n; k++)
        if (fu->of[id] == set[k]) return true;
    return false;
}

/* Has an op outside the set, before `op`, read what an op of the set makes? */
static bool read_outside(const Fuse *fu, Group **set, int n, const Op *op) {
    for (int k = 0; k < n; k++)
        for (int i = 0; i < set[k]->n; i++)
            for (int j = 0; j < set[k]->op[i]->nout; j++) {
                Op **r = fu->reader[set[k]->op[i]->out[j]->id];
                for (; *r && (*r)->id < op->id; r++)
                    if (!in_set(fu, set, n, (*r)->id)) return true;
            }
    return false;
}

/* The last op that reads it; -1: what the function is given or gives lives anyway. */
static int last_reader(const Fuse *fu, const Value *v) {
    int last = -1;
    for (Op **r = fu->reader[v->id]; *r; r++) last = (*r)->id;
    return v->def && !fu->given[v->id] ? last : -1;
}

static bool is_read_outside(const Fuse *fu, const Group *g, const Value *v) {
    for (Op **r = fu->reader[v->id]; *r; r++)
        if (fu->of[(*r)->id] != g) return true;
    return fu->given[v->id];
}

/* Does more memory wait for `op` with what the group reads than with what it makes, while functions
 * are called? Sums of many things would keep them all. */
static bool keeps_more(const Fuse *fu, const Group *g, const Op *op) {
    double reads = 0, makes = 0;
    if (fu->calls[g->op[g->n - 1]->id] == fu->calls[op->id]) return false;
    for (int k = 0; k < g->n; k++) {
        const Op *at = g->op[k];
        for (int i = 0; i < at->nin; i++) {
            const Value *v = at->in[i];
            bool again = i > 0 && at->in[i - 1] == v;
            if (last_reader(fu, v) == at->id && fu->of[v->def->id] != g && !again)
                reads += (double)type_bytes(&v->ty);
        }
        for (int i = 0; i < at->nout; i++)
            if (is_read_outside(fu, g, at->out[i]))
                makes += (double)type_bytes(&at->out[i]->ty);
    }
    return reads > makes;
}

static const Dims *dims_of(Fuse *fu, const Op *op) {
    const Dims **d = &fu->dims[op->id];
    if (!*d) *d = space_dims(fu->mem, op);
    return *d;
}

/* Can the groups and `op` be one kernel at the position of `op`? Then they become one. */
static bool fits(Fuse *fu, Group **set, int n, Op *op) {
    int total = 1;
    for (int k = 0; k < n; k++) total += set[k]->n;
    if (total > MAX_KERNEL_OPS || read_outside(fu, set, n, op)) return false;
    for (int k = 0; k < n; k++)
        if (keeps_more(fu, set[k], op)) return false;
    if (n == 1 && space_extend(&set[0]->space, op, dims_of(fu, op))) {
        fu->fitted = set[0]->space;
        return true;
    }
    Op *ops[MAX_KERNEL_OPS];
    const Dims *dims[MAX_KERNEL_OPS];
    Space s;
    gather(set, n, op, ops);
    for (int i = 0; i < total; i++) dims[i] = dims_of(fu, ops[i]);
    if (space_analyze(fu->mem, ops, dims, total, &s)) return false;
    fu->fitted = s;
    return true;
}

static bool reads_same_tensor(const Group *g, const Op *op) {
    for (int k = 0; k < g->n; k++)
        for (int j = 0; j < op->nin; j++)
            if (op->in[j]->ty.rank > 1 && op_reads_value(g->op[k], op->in[j]))
                return true;
    return false;
}

/* Groups that an op has been held against, each beside so many that fit. */
typedef struct Tried {
    struct {
        const Group *group;
        int beside;
    } at[MAX_TERMS + 1 + SIBLING_REACH];
    int n;
} Tried;

static bool is_new(Tried *t, Group *const *set, int n) {
    for (int k = 0; k < n; k++)
        if (set[k] == set[n]) return false;
    for (int k = 0; k < t->n; k++)
        if (t->at[k].group == set[n] && t->at[k].beside == n) return false;
    t->at[t->n].group = set[n];
    t->at[t->n++].beside = n;
    return true;
}

/* The groups that `op` joins: those of its operands, latest first, then one nearby that
 * reads the same tensor. */
static int choose_groups(Fuse *fu, Op *op, Group **set) {
    int n = 0, ndefs = 0;
    Op *def[MAX_TERMS + 1];
    Tried tried = {.n = 0};
    check(op->nin <= MAX_TERMS);
    for (int i = 0; i < op->nin; i++)
        if (op->in[i]->def && fu->of[op->in[i]->def->id]) def[ndefs++] = op->in[i]->def;
    if (ndefs > 1) qsort(def, (size_t)ndefs, sizeof *def, op_by_id);
    while (ndefs-- > 0) {
        set[n] = fu->of[def[ndefs]->id];
        if (is_new(&tried, set, n)) n += fits(fu, set, n + 1, op);
    }
    for (int id = op->id - 1; !n && id >= MAX(0, op->id - SIBLING_REACH); id--) {
        set[0] = fu->of[id];
        if (set[0] && is_new(&tried, set, 0) && reads_same_tensor(set[0], op))
            n += fits(fu, set, 1, op);
    }
    return n;
}

/* The first group takes over the others and the op. */
static void unite(Fuse *fu, Group **set, int n, Op *op) {
    Op *ops[MAX_KERNEL_OPS];
    int count = gather(set, n, op, ops);
    Group *g = n ? set[0] : NEW(fu->mem, Group);
    g->n = 0;
    g->space = fu->fitted;
    for (int i = 0; i < count; i++) {
        PUSH(fu->mem, g->op, g->n, g->cap, ops[i]);
        fu->of[ops[i]->id] = g;
    }
}

static void make_groups(Fuse *fu) {
    for (Op *op = fu->f->first; op; op = op->next) {
        fu->order[op->id] = op;
        if (!fuse_takes(op)) continue;
        Group *set[MAX_TERMS + 1];
        int n = choose_groups(fu, op, set);
        if (n || fits(fu, NULL, 0, op))
            unite(fu, set, n, op);
        else if (op_has(op, F_MAP))
            fail_op(op,
                    "%s (%%%s): no kernel can go over its operands as the rule has them",
                    optab[op->kind].name, op->out[0]->name);
    }
}

/* ---- outlining ---- */

static void drop_func(Module *m, const Func *f) {
    for (Func **at = &m->first; *at; at = &(*at)->next) {
        if (*at == f) {
            *at = f->next;
            return;
        }
    }
}

/* The kernel, or the one there is that does the same. */
static Func *kept_kernel(Fuse *fu, Func *k) {
    Func *kept = func_set_take(fu->kernels, k);
    if (kept != k) drop_func(fu->m, k);
    return kept;
}

/* A group as it becomes a kernel: what it reads, and what others read of it. */
typedef struct Outline {
    Group *g;
    Value **in, **out;
    int nin, nout;
} Outline;

static Outline outline_new(Fuse *fu, Group *g) {
    size_t reads = 0, makes = 0;
    for (int i = 0; i < g->n; i++) {
        reads += (size_t)g->op[i]->nin;
        makes += (size_t)g->op[i]->nout;
    }
    return (Outline){.g = g,
                     .in = NEW_ARRAY(fu->mem, Value *, reads + 1),
                     .out = NEW_ARRAY(fu->mem, Value *, makes + 1)};
}

static Func *make_kernel(Fuse *fu, Outline *o) {
    Arena *mem = fu->m->mem;
    const char *name = arena_numbered(mem, "k", fu->kernels->n);
    Func *k = func_new_unique(fu->m, name, ROLE_KERNEL);
    int made = 0;
    Builder b = build_at_end(k);
    for (int i = 0; i < o->g->n; i++) {
        Op *op = o->g->op[i];
        for (int j = 0; j < op->nin; j++) {
            Value *v = op->in[j];
            if (fu->map[v->id]) continue;
            fu->map[v->id] = func_arg(k, arena_numbered(mem, "a", o->nin), v->ty);
            o->in[o->nin++] = v;
        }
        Op *copy = op_clone(&b, op, fu->map);
        for (int j = 0; j < op->nout; j++) {
            copy->out[j]->name = arena_numbered(mem, "t", made++);
            if (!is_read_outside(fu, o->g, op->out[j])) continue;
            o->out[o->nout++] = op->out[j];
            func_ret(k, fu->map[op->out[j]->id], -1);
        }
    }
    for (int i = 0; i < o->nin; i++) fu->map[o->in[i]->id] = NULL;
    return kept_kernel(fu, k);
}

/* In place of the last op of the group. */
static void call_kernel(Fuse *fu, const Outline *o, Func *k) {
    const Group *g = o->g;
    Builder at = build_before(g->op[g->n - 1]);
    Op *call = build_call(&at, k, o->nin, o->in);
    call->id = fu->next_id++; /* in no group */
    for (int i = 0; i < o->nout; i++) {
        call->out[i]->name = o->out[i]->name;
        call->out[i]->id = o->out[i]->id;
        fu->renames.now[o->out[i]->id] = call->out[i];
    }
    for (int i = 0; i < g->n; i++) {
        for (int j = 0; j < g->op[i]->nout; j++) fu->map[g->op[i]->out[j]->id] = NULL;
        op_remove(g->op[i]);
    }
}

static void outline(Fuse *fu, Group *g) {
    Outline o = outline_new(fu, g);
    call_kernel(fu, &o, make_kernel(fu, &o));
}

static void refuse_composites(const Func *f) {
    for (const Op *op = f->first; op; op = op->next) {
        if (!optab[op->kind].expand) continue;
        fail(EXIT_CONFIG, "@%s: %s is a composite op; run expand before fuse", f->name,
             optab[op->kind].name);
    }
}

/* ---- the function ---- */

static void list_readers(Fuse *fu) {
    const Func *f = fu->f;
    fu->reader = func_readers(fu->mem, f);
    fu->given = NEW_ARRAY(fu->mem, bool, (size_t)f->nvalues + 1);
    for (int i = 0; i < f->nret; i++) fu->given[f->ret[i]->id] = true;
}

static void count_calls(Fuse *fu) {
    int calls = 0;
    fu->calls = NEW_ARRAY(fu->mem, int, (size_t)fu->f->nops + 1);
    for (const Op *op = fu->f->first; op; op = op->next) {
        fu->calls[op->id] = calls;
        calls += op_calls_ops(op);
    }
}

static void replace_all(Fuse *fu) {
    for (Op *op = fu->f->first; op; op = op->next) renames_reach(&fu->renames, op);
    renames_end(&fu->renames);
}

static void fuse_func(Module *m, Func *f, FuncSet *kernels) {
    fuse_prepare(f);
    Fuse fu = {.m = m, .f = f, .mem = arena_new(), .kernels = kernels};
    fu.renames = renames_new(fu.mem, f);
    fu.of = NEW_ARRAY(fu.mem, Group *, 2 * (size_t)f->nops + 1);
    fu.next_id = f->nops;
    fu.order = NEW_ARRAY(fu.mem, Op *, (size_t)f->nops + 1);
    fu.dims = NEW_ARRAY(fu.mem, const Dims *, (size_t)f->nops + 1);
    fu.map = NEW_ARRAY(fu.mem, Value *, (size_t)f->nvalues + 1);
    list_readers(&fu);
    count_calls(&fu);
    make_groups(&fu);
    for (int id = 0, n = f->nops; id < n; id++) {
        Group *g = fu.of[id];
        if (g && g->op[g->n - 1] == fu.order[id]) outline(&fu, g);
    }
    replace_all(&fu);
    arena_free(fu.mem);
}

void pass_fuse(Module *m, const PassOptions *o) {
    (void)o;
    FuncSet kernels = {.mem = arena_new()};
    for (Func *f = m->first; f; f = f->next) refuse_composites(f);
    for (Func *f = m->first; f; f = f->next)
        if (f->role == ROLE_KERNEL) func_set_take(&kernels, f);
    for (Func *f = m->first; f; f = f->next) {
        if (f->role != ROLE_KERNEL) fuse_func(m, f, &kernels);
    }
    arena_free(kernels.mem);
}
