/* fuse.c - groups elementwise ops and reductions into kernel functions. Level local ->
 * fused.
 *     %a = mul %x, %y; %b = sum %a {mn->m}; %c = gelu %a
 *  -> %b, %c = call %x, %y {fn=@k0}
 * An op joins the groups that make its operands (or else one that reads the same tensor)
 * into one group, if they fit one iteration space (ir/iteration_space.h) and nothing
 * outside has used their results yet: the kernel takes the position of its last op. Equal
 * kernels are one function. */
#include "ir/iteration_space.h"
#include "passes/passes.h"

enum {
    SIBLING_REACH = 24, /* how many ops back a group with a common operand may end */
    MAX_KERNEL_OPS = 96,
};

typedef struct Group {
    Op **op;
    int n, cap;
} Group;

typedef struct Fuse {
    Module *m;
    Func *f;
    Arena *mem; /* of this function */
    Group **of; /* by op id */
    Op **order; /* by op id */
    int nkernels, next_id;
} Fuse;

static bool fusable(const Op *op) {
    return (optab[op->kind].flags & (F_MAP | F_REDUCE)) != 0;
}

/* The ops of several groups and one more, in program order. */
static int gather(Fuse *fu, Group **set, int n, Op *op, Op **ops) {
    int count = 0;
    for (int id = 0; id < op->id; id++) {
        for (int k = 0; k < n && fu->of[id]; k++) {
            if (fu->of[id] == set[k]) ops[count++] = fu->order[id];
        }
    }
    ops[count++] = op;
    return count;
}

/* Has an op outside the set, before `op`, read what an op of the set makes? */
static bool read_outside(const Fuse *fu, Group **set, int n, const Op *op) {
    for (int id = 0; id < op->id; id++) {
        const Op *reader = fu->order[id];
        bool inside = false;
        for (int k = 0; k < n; k++) inside |= fu->of[id] == set[k];
        for (int i = 0; i < reader->nin && !inside; i++) {
            const Op *def = reader->in[i]->def;
            for (int k = 0; k < n; k++) {
                if (def && fu->of[def->id] == set[k]) return true;
            }
        }
    }
    return false;
}

/* Can the groups and `op` be one kernel at the position of `op`? */
static bool fits(Fuse *fu, Group **set, int n, Op *op) {
    int total = 1;
    for (int k = 0; k < n; k++) total += set[k]->n;
    if (total > MAX_KERNEL_OPS || read_outside(fu, set, n, op)) return false;
    Op *ops[MAX_KERNEL_OPS];
    Space s;
    return space_analyze(fu->mem, ops, gather(fu, set, n, op, ops), &s) == NULL;
}

static bool reads_same_tensor(const Group *g, const Op *op) {
    for (int k = 0; k < g->n; k++) {
        for (int i = 0; i < g->op[k]->nin; i++) {
            for (int j = 0; j < op->nin; j++) {
                const Value *v = op->in[j];
                if (g->op[k]->in[i] == v && v->ty.rank > 1) return true;
            }
        }
    }
    return false;
}

static void add_if_fits(Fuse *fu, Group *g, Group **set, int *n, Op *op) {
    for (int k = 0; k < *n; k++) {
        if (set[k] == g) return;
    }
    set[*n] = g;
    if (fits(fu, set, *n + 1, op)) ++*n;
}

/* The groups that `op` joins: those of its operands, latest first, then one nearby that
 * reads the same tensor. */
static int choose_groups(Fuse *fu, Op *op, Group **set) {
    int n = 0;
    for (int id = op->id - 1; id >= 0; id--) {
        for (int i = 0; i < op->nin; i++) {
            const Op *def = op->in[i]->def;
            if (def && def->id == id && fu->of[id])
                add_if_fits(fu, fu->of[id], set, &n, op);
        }
    }
    for (int id = op->id - 1; !n && id >= MAX(0, op->id - SIBLING_REACH); id--) {
        Group *g = fu->of[id];
        if (g && reads_same_tensor(g, op)) add_if_fits(fu, g, set, &n, op);
    }
    return n;
}

/* The first group takes over the others and the op. */
static void unite(Fuse *fu, Group **set, int n, Op *op) {
    Op *ops[MAX_KERNEL_OPS];
    int count = gather(fu, set, n, op, ops);
    Group *g = n ? set[0] : NEW(fu->mem, Group);
    g->n = 0;
    for (int i = 0; i < count; i++) {
        PUSH(fu->mem, g->op, g->n, g->cap, ops[i]);
        fu->of[ops[i]->id] = g;
    }
}

static void make_groups(Fuse *fu) {
    for (Op *op = fu->f->first; op; op = op->next) {
        fu->order[op->id] = op;
        if (!fusable(op)) continue;
        Group *set[MAX_TERMS + 1];
        int n = choose_groups(fu, op, set);
        if (n || fits(fu, NULL, 0, op)) unite(fu, set, n, op);
    }
}

/* ---- outlining ---- */

static bool in_group(const Fuse *fu, const Group *g, const Op *op) {
    return op && fu->of[op->id] == g;
}

static bool escapes(const Fuse *fu, const Group *g, const Value *v) {
    for (const Op *op = fu->f->first; op; op = op->next) {
        if (in_group(fu, g, op)) continue;
        for (int i = 0; i < op->nin; i++) {
            if (op->in[i] == v) return true;
        }
    }
    for (int i = 0; i < fu->f->nret; i++) {
        if (fu->f->ret[i] == v) return true;
    }
    return false;
}

static const char *kernel_text(Arena *mem, Func *k) {
    Module alone = *k->mod;
    Func copy = *k;
    alone.first = &copy;
    copy.next = NULL;
    copy.name = "k";
    return module_print(mem, &alone);
}

/* An equal kernel made before, or `k` itself. */
static Func *find_equal(Fuse *fu, Func *k) {
    const char *text = kernel_text(fu->mem, k);
    for (Func *f = fu->m->first; f; f = f->next) {
        if (f == k || f->role != ROLE_KERNEL || f->narg != k->narg ||
            f->nret != k->nret) {
            continue;
        }
        if (!strcmp(kernel_text(fu->mem, f), text)) return f;
    }
    return k;
}

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
    Func *equal = find_equal(fu, k);
    if (equal != k)
        drop_func(fu->m, k);
    else
        fu->nkernels++;
    return equal;
}

static void outline(Fuse *fu, Group *g) {
    Arena *mem = fu->m->mem;
    Func *k = func_new_unique(fu->m, arena_printf(mem, "k%d", fu->nkernels), ROLE_KERNEL);
    Value **map = NEW_ARRAY(fu->mem, Value *, (size_t)fu->f->nvalues);
    Value **in = NEW_ARRAY(fu->mem, Value *, (size_t)fu->f->nvalues);
    Value **out = NEW_ARRAY(fu->mem, Value *, (size_t)fu->f->nvalues);
    int nin = 0, nout = 0, made = 0;
    Builder b = build_at_end(k);
    for (int i = 0; i < g->n; i++) {
        Op *op = g->op[i];
        for (int j = 0; j < op->nin; j++) {
            Value *v = op->in[j];
            if (map[v->id]) continue;
            map[v->id] = func_arg(k, arena_printf(mem, "a%d", nin), v->ty);
            in[nin++] = v;
        }
        Op *copy = op_clone(&b, op, map);
        copy->line = 0;
        for (int j = 0; j < op->nout; j++) {
            copy->out[j]->name = arena_printf(mem, "t%d", made++);
            if (!escapes(fu, g, op->out[j])) continue;
            out[nout++] = op->out[j];
            func_ret(k, map[op->out[j]->id], -1);
        }
    }
    k = kept_kernel(fu, k);
    Builder at = build_before(g->op[g->n - 1]);
    Op *call = build_list(&at, OP_call, bfmt(&at, "fn=@%s", k->name), nin, in, NULL, 0);
    call->id = fu->next_id++; /* in no group */
    for (int i = 0; i < nout; i++) {
        call->out[i]->name = out[i]->name;
        call->out[i]->id = out[i]->id;
        func_replace(fu->f, out[i], call->out[i]);
    }
    for (int i = 0; i < g->n; i++) op_remove(g->op[i]);
}

static void refuse_composites(const Func *f) {
    for (const Op *op = f->first; op; op = op->next) {
        if (!optab[op->kind].expand) continue;
        fail(EXIT_CONFIG, "@%s: %s is a composite op; run expand before fuse", f->name,
             optab[op->kind].name);
    }
}

static void fuse_func(Module *m, Func *f, int *nkernels) {
    func_number(f);
    Fuse fu = {.m = m, .f = f, .mem = arena_new(), .nkernels = *nkernels};
    fu.of = NEW_ARRAY(fu.mem, Group *, 2 * (size_t)f->nops + 1);
    fu.next_id = f->nops;
    fu.order = NEW_ARRAY(fu.mem, Op *, (size_t)f->nops + 1);
    make_groups(&fu);
    for (int id = 0, n = f->nops; id < n; id++) {
        Group *g = fu.of[id];
        if (g && g->op[g->n - 1] == fu.order[id]) outline(&fu, g);
    }
    *nkernels = fu.nkernels;
    arena_free(fu.mem);
}

void pass_fuse(Module *m, const PassOptions *o) {
    (void)o;
    int nkernels = 0;
    for (Func *f = m->first; f; f = f->next) refuse_composites(f);
    for (Func *f = m->first; f; f = f->next) {
        if (f->role != ROLE_KERNEL) fuse_func(m, f, &nkernels);
    }
}
