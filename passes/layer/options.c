/* options.c - the ways in which pass shard may compute an op of a layer, and what each of them
 * takes of operands and seeds. It splits an op over the letter that the foremost of its terms is
 * split over, and among letters of equal priority over the one that moves the fewest bytes. An
 * option is one letter and the priority of the terms that decide for it; it allows no other
 * letter of that priority, so that bytes have nothing to decide. That one of the terms is really
 * split so is left open until a solution breaks it: `exact` ops have an option for each such
 * term. */
#include "passes/layer/layer.h"

static int priority_of(const LayerGraph *g, const LayerOp *op, int t) {
    if (t < op->op->nin) return g->value[op->in[t]].priority;
    const LayerValue *y = &g->value[op->out[t - op->op->nin]];
    return y->open && !y->returned ? PRIORITY_FOLLOWS : PRIORITY_RESULT;
}

/* The letter that a placement of the term splits; -1: it splits none. */
static int letter_of(const LayerOp *op, int t, int place) {
    const Type *ty = &op_term(op->op, t)->ty;
    if (place == PLACE_WHOLE || place == place_pending(ty) || !op->over.has_dims)
        return -1;
    return over_leader(&op->over.d, op->over.d.term[t][place - 1]);
}

static bool fits(const LayerOp *op, int letter) {
    return over_fits(op->op, &op->over, letter, 1);
}

/* Does a vote for the letter make pass shard write the op with others? */
static bool expands(const LayerOp *op, int letter) {
    return op->over.d.whole[letter] && optab[op->op->kind].expand;
}

static bool ignored(const LayerOp *op, int t) {
    bool zero;
    return t < op->op->nin && value_is_free(op->op->in[t], &zero);
}

bool layer_allows(const LayerGraph *g, const LayerOp *op, const LayerOption *o, int t,
                  int place) {
    bool operand = t < op->op->nin;
    if (ignored(op, t)) return true;
    bool sum = operand && place == place_pending(&op_term(op->op, t)->ty);
    if (operand && (o->pending >> t & 1) && !sum) return false;
    if (operand && (o->finished >> t & 1) && sum) return false;
    int letter = letter_of(op, t, place);
    if (letter >= 0 && expands(op, letter)) return false;
    if (letter >= 0 && !fits(op, letter)) letter = -1;
    if (t == o->voter) return letter == o->letter;
    if (letter < 0) return true;
    if (o->letter < 0) return false;
    int its = priority_of(g, op, t);
    /* of an elementwise op two seeds on different dimensions are refused */
    if (op_has(op->op, F_MAP) || its == o->priority) return letter == o->letter;
    return its < o->priority;
}

/* ---- splits ---- */

/* Would a rank's part of a result be more than a part, or a summand? */
static bool can_split(const LayerOp *op, int letter) {
    bool finishes = op_has(op->op, F_REDUCE) && !op_has(op->op, F_LINEAR);
    if (over_leader(&op->over.d, letter) != letter || !fits(op, letter)) return false;
    for (int t = 0; t < op->op->nin + op->op->nout; t++) {
        Over o = op->over;
        int n = 0;
        over_add(op->op, &o, letter, 0);
        for (int k = 0; k < o.d.rank[t]; k++) n += o.split[o.d.term[t][k]] != 0;
        if (n > 1 || (!n && t >= op->op->nin && finishes)) return false;
    }
    return true;
}

static void add(LayerGraph *g, LayerOp *op, LayerOption o) {
    PUSH(g->mem, op->option, op->noptions, op->cap, o);
}

static void add_split(LayerGraph *g, LayerOp *op, int id, int priority) {
    bool added = false;
    for (int t = 0; t < op->op->nin + op->op->nout; t++) {
        if (over_dim(&op->over, t, id) < 0 || ignored(op, t) ||
            priority_of(g, op, t) != priority)
            continue;
        if (!added || op->exact)
            add(g, op,
                (LayerOption){
                    .letter = id, .priority = priority, .voter = op->exact ? t : -1});
        added = true;
    }
}

static void add_splits(LayerGraph *g, LayerOp *op) {
    for (int id = 0; op->over.has_dims && id < op->over.d.n; id++)
        for (int priority = PRIORITY_PARAMETER; priority > 0 && can_split(op, id);
             priority--)
            add_split(g, op, id, priority);
}

static int place_of_term(const LayerGraph *g, const LayerOp *op, const LayerChoice *c,
                         int t) {
    if (t < op->op->nin) return c->place[op->in[t]];
    int group = g->value[op->out[t - op->op->nin]].group;
    return group >= 0 ? c->seed[group] : PLACE_WHOLE;
}

bool layer_decided(const LayerGraph *g, const LayerOp *op, const LayerOption *o,
                   const LayerChoice *c) {
    if (o->letter < 0) return true;
    for (int t = 0; t < op->op->nin + op->op->nout; t++) {
        if (ignored(op, t) || priority_of(g, op, t) != o->priority) continue;
        if (letter_of(op, t, place_of_term(g, op, c, t)) == o->letter) return true;
    }
    return false;
}

/* ---- sums that are handed on ---- */

static unsigned float_operands(const LayerOp *op) {
    unsigned set = 0;
    for (int i = 0; i < op->op->nin; i++)
        if (dtype_is_float(op->op->in[i]->ty.dt) && !ignored(op, i)) set |= 1u << i;
    return set;
}

/* Does a sum of these operands go on into the results? */
static bool hands_on(const LayerOp *op, unsigned pending) {
    SumOperands in = {0};
    for (int i = 0; i < op->op->nin; i++) {
        const Value *x = op->op->in[i];
        bool zero, free = value_is_free(x, &zero);
        sum_operand(&in, &x->ty, free, zero, pending >> i & 1);
    }
    return sums_go_on(op->op, &in);
}

enum { FEW_OPERANDS = 4 };

/* Every set of operands that are sums, where that may make a difference. */
static void add_wholes(LayerGraph *g, LayerOp *op) {
    unsigned all = float_operands(op), in_all = op->op->nin < 32 ? all : 0;
    bool linear = op_has(op->op, F_PLUS | F_MOVE | F_LINEAR) && op->over.has_dims;
    if (!linear || op->op->nin > FEW_OPERANDS) {
        /* of many operands: all are sums, or none is */
        add(g, op,
            (LayerOption){
                .letter = OVER_WHOLE, .voter = -1, .finished = linear ? all : 0});
        if (linear && hands_on(op, all))
            add(g, op, (LayerOption){.letter = OVER_PASS, .voter = -1, .pending = all});
        return;
    }
    for (unsigned set = 0; set <= in_all; set++) {
        if (set & ~all) continue;
        add(g, op,
            (LayerOption){.letter = hands_on(op, set) ? OVER_PASS : OVER_WHOLE,
                          .voter = -1,
                          .pending = set,
                          .finished = all & ~set});
    }
}

/* ---- what they take ---- */

static Over over_letter(const LayerOp *op, int letter) {
    Over o = op->over;
    if (letter >= 0) over_add(op->op, &o, letter, 0);
    return o;
}

int layer_place(const Type *t, Axes axis) {
    for (int d = 0; d < t->rank; d++)
        if (t->split[d] & axis) return 1 + d;
    return t->pending & axis ? place_pending(t) : PLACE_WHOLE;
}

int layer_need(const LayerOp *op, int letter, int i, int was) {
    const Type *ty = &op->op->in[i]->ty;
    if (letter == OVER_PASS) {
        bool sum = dtype_is_float(ty->dt) &&
                   (op_has(op->op, F_PLUS) || was == place_pending(ty));
        return sum ? place_pending(ty) : PLACE_WHOLE;
    }
    Over o = over_letter(op, letter);
    Type t = over_operand(op->op, &o, i);
    return layer_place(&t, ~(Axes)0);
}

int layer_gives(const LayerOp *op, int letter, int i) {
    const Type *ty = &op->op->out[i]->ty;
    if (letter == OVER_PASS)
        return dtype_is_float(ty->dt) ? place_pending(ty) : PLACE_WHOLE;
    Over o = over_letter(op, letter);
    Type t = over_result(op->op, &o, i);
    return layer_place(&t, ~(Axes)0);
}

static void cut(Type *t, int n) {
    for (int d = 0; d < t->rank; d++)
        if (t->split[d]) t->dim[d] /= n;
    memset(t->split, 0, sizeof t->split);
    t->pending = 0;
}

/* The op as a rank has it. */
static double seconds_over(LayerGraph *g, const LayerOp *op, int letter) {
    Arena *mem = arena_new();
    Over o = over_letter(op, letter);
    Op part = *op->op;
    OpSizes sizes = {0};
    int *row = NEW_ARRAY(mem, int, (size_t)op->op->fn->nops + 1);
    part.in = NEW_ARRAY(mem, Value *, (size_t)part.nin + 1);
    part.out = NEW_ARRAY(mem, Value *, (size_t)part.nout + 1);
    for (int t = 0; t < part.nin + part.nout; t++) {
        Value *v = NEW(mem, Value);
        *v = *op_term(op->op, t);
        v->ty = t < part.nin ? over_operand(op->op, &o, t)
                             : over_result(op->op, &o, t - part.nin);
        cut(&v->ty, g->ranks);
        *(t < part.nin ? &part.in[t] : &part.out[t - part.nin]) = v;
    }
    op_sizes_add(mem, &sizes, &part, true, NULL, row);
    double seconds = 0;
    for (int i = 0; i < sizes.n; i++)
        seconds += g->stretch * op_size_seconds(g->machine, g->rank, &sizes.size[i]);
    arena_free(mem);
    return seconds;
}

static bool is_free(const LayerGraph *g, const LayerOp *op) {
    bool free = true;
    for (int i = 0; i < op->op->nout; i++) free &= g->value[op->out[i]].free;
    return free;
}

void layer_options(LayerGraph *g, LayerOp *op) {
    op->noptions = 0;
    if (is_free(g, op)) return;
    add_wholes(g, op);
    add_splits(g, op);
}

void layer_time_op(LayerGraph *g, LayerOp *op) {
    op->over = over_none(op->op);
    op->seconds = NEW_ARRAY(g->mem, double, (size_t)op->over.d.n + 1);
    if (is_free(g, op)) return;
    op->seconds[0] = seconds_over(g, op, OVER_WHOLE);
    for (int id = 0; op->over.has_dims && id < op->over.d.n; id++)
        if (can_split(op, id)) op->seconds[id + 1] = seconds_over(g, op, id);
}
