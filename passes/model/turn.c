/* turn.c - a program without gradients has its matrices as products of few rows read them best:
 * what is summed over lies next to each other. Level global, behind hold.
 *     @m(%w: f32[6,8] {role="param"}): dot %x, %w {mk,kn->mn}
 *  -> @m(%w: f32[8,6] {role="param"; turned="ab->ba"}): dot %x, %w {mk,nk->mn}
 * Only a parameter of f32 is turned whose every reader is such a product, also in loops over
 * layers; one that is cut by layers for a pipeline is not. Sums are of the same products. */
#include "passes/passes.h"

typedef struct Turn {
    Arena *mem;
    Module *m;
    Value **v; /* the parameter, and what it is in functions called with it */
    Func **f;  /* those of v */
    int n, cap, fcap;
    Op **product;
    int nproducts, product_cap;
    int rank, summed; /* dimensions of the factor, and how many of them come first */
} Turn;

static void follow(Turn *t, Func *f, Value *v) {
    int n = t->n;
    for (int i = 0; i < t->n; i++)
        if (t->v[i] == v) return;
    PUSH(t->mem, t->f, n, t->fcap, f);
    PUSH(t->mem, t->v, t->n, t->cap, v);
}

/* Dimensions of the second factor that are summed over, all of them before those of the result; 0:
 * it is otherwise. */
static int summed_first(const Op *op) {
    Dims d;
    int n = 0;
    check(op_dims(op, &d));
    uint32_t first = dims_mask(&d, 0), result = dims_mask(&d, d.nin);
    for (int k = 0; k < d.rank[1]; k++) {
        uint32_t bit = 1u << d.term[1][k];
        bool summed = (first & bit) && !(result & bit), own = result & bit & ~first;
        if (d.letter[d.term[1][k]] == '.') return 0;
        if (!(summed || own) || (summed && n < k)) return 0;
        n += summed;
    }
    return n < d.rank[1] ? n : 0;
}

static bool take_product(Turn *t, Op *op, const Value *v) {
    int summed = summed_first(op), rank = op->in[1]->ty.rank;
    if (op->in[0] == v || !summed) return false;
    for (int i = 2; i < op->nin; i++)
        if (op->in[i] == v) return false;
    if (t->nproducts && (t->summed != summed || t->rank != rank)) return false;
    t->summed = summed;
    t->rank = rank;
    PUSH(t->mem, t->product, t->nproducts, t->product_cap, op);
    return true;
}

/* Goes on with the readers of a value; false: one needs it as it is. */
static bool take_readers(Turn *t, Func *f, const Value *v) {
    for (Op *op = f->first; op; op = op->next)
        for (int i = 0; i < op->nin; i++) {
            if (op->in[i] != v) continue;
            if (op_is_call(op) && i < call_of(op).carry) return false;
            if (op_is_call(op))
                follow(t, op_func(op), op_func(op)->arg[i]);
            else if (!op_has(op, F_ADDENDS) || !take_product(t, op, v))
                return false;
        }
    return func_result(f, v) < 0 && func_result_over(f, v->nth) < 0;
}

static bool follows(const Turn *t, const Value *v) {
    bool found = false;
    for (int i = 0; i < t->n; i++) found |= t->v[i] == v;
    return found;
}

/* Is each function that was followed only called with what is turned? */
static bool called_alike(const Turn *t) {
    for (Func *f = t->m->first; f; f = f->next)
        for (const Op *op = f->first; op; op = op->next) {
            if (!op_is_call(op)) continue;
            for (int i = 0; i < op->nin; i++)
                if (follows(t, op_func(op)->arg[i]) && !follows(t, op->in[i]))
                    return false;
        }
    return true;
}

/* The last `rank` dimensions from the one number `summed` of them on. */
static void turn_type(Type *ty, int rank, int summed) {
    Type was = *ty;
    int lead = ty->rank - rank;
    for (int k = 0; k < rank; k++) {
        ty->dim[lead + k] = was.dim[lead + (k + summed) % rank];
        ty->split[lead + k] = was.split[lead + (k + summed) % rank];
    }
}

static void turn_product(Op *op, int summed) {
    Rule rule = *op_rule(op);
    Arena *mem = op->fn->mod->mem;
    Term was = rule.term[1];
    for (int k = 0; k < was.n; k++)
        rule.term[1].letter[k] = was.letter[(k + summed) % was.n];
    op_set_rule(op, rule_of_terms(mem, &rule));
}

static void note_order(Arena *mem, Func *f, int i, int rank, int summed) {
    char order[2 * MAX_RANK + 3] = {0};
    int n = f->arg[i]->ty.rank, lead = n - rank;
    for (int k = 0; k < n; k++) {
        int from = k < lead ? k : lead + (k - lead + summed) % rank;
        order[k] = (char)('a' + k);
        order[n + 2 + k] = (char)('a' + from);
    }
    memcpy(order + n, "->", 2);
    func_arg_set_text(f, i, "turned", ATTR_STR, arena_strdup(mem, order));
}

static void turn_argument(Arena *own, Module *m, Func *f, int i) {
    Turn t = {.mem = own, .m = m};
    bool fits = arg_role(f, i) == ARG_param && f->arg[i]->ty.dt == DT_F32 &&
                !func_arg_in_common(f, i) && !attr_find(f->arg_attr[i], "flat");
    if (!fits) return;
    follow(&t, f, f->arg[i]);
    for (int k = 0; fits && k < t.n; k++) fits = take_readers(&t, t.f[k], t.v[k]);
    if (!fits || !t.nproducts || !called_alike(&t)) return;
    for (int k = 0; k < t.n; k++) fits &= t.v[k]->ty.rank <= t.rank + 1;
    if (!fits) return;
    for (int k = 0; k < t.nproducts; k++) turn_product(t.product[k], t.summed);
    for (int k = 0; k < t.n; k++) turn_type(&t.v[k]->ty, t.rank, t.summed);
    note_order(m->mem, f, i, t.rank, t.summed);
}

void pass_turn(Module *m, const PassOptions *o) {
    if (!o->turn) return;
    for (Func *f = m->first; f; f = f->next)
        for (int i = 0; i < f->narg && func_is_entry(f); i++) {
            Arena *own = arena_new();
            turn_argument(own, m, f, i);
            arena_free(own);
        }
}
