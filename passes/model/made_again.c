/* made_again.c - see made_again.h. */
#include "passes/model/made_again.h"
#include "passes/passes.h"

const char *made_again_policy(const Op *call) {
    const Attr *a = op_attr(call, "remake");
    return a && a->s[0] ? a->s : NULL;
}

bool made_again_same(const char *a, const char *b) {
    return a && b ? !strcmp(a, b) : a == b;
}

/* ---- what a policy says ---- */

/* Attention multiplies and drops in one op, so that its scores are nowhere in memory. */
static bool is_attention(const Op *op) {
    return op_has(op, F_RANDOM) && flag_products(optab[op->kind].flags);
}

static size_t word_length(const char *word) {
    return strcspn(word, ", ");
}

const char *made_again_next(const char *word) {
    word += word_length(word);
    return word + strspn(word, ", ");
}

static bool word_is(const char *word, const char *text) {
    return word_length(word) == strlen(text) && begins_with(word, text);
}

static bool is_name(const char *word) {
    return *word != '-' && !word_is(word, "full") && !word_is(word, "selective");
}

static bool names_result(const char *name, const Op *op) {
    for (int i = 0; i < op->nout; i++)
        if (text_matches(op->out[i]->name, name, name + word_length(name))) return true;
    return false;
}

/* Some word that begins with '-' (or none that does) names a result of it. */
static bool any_names(const char *policy, bool kept, const Op *op) {
    for (const char *p = policy; *p; p = made_again_next(p))
        if (kept ? *p == '-' && names_result(p + 1, op)
                 : is_name(p) && names_result(p, op))
            return true;
    return false;
}

static bool has_word(const char *policy, const char *text) {
    for (const char *p = policy; *p; p = made_again_next(p))
        if (word_is(p, text)) return true;
    return false;
}

/* Or what it is a view of is. */
static bool is_named(const char *policy, const Op *op) {
    if (!policy || any_names(policy, true, op)) return false;
    if (has_word(policy, "full")) return true;
    while (op->nout == 1 && op_has(op, F_MOVE | F_VIEW) && op->in[0]->def &&
           !any_names(policy, false, op) && !any_names(policy, true, op))
        op = op->in[0]->def;
    if (any_names(policy, true, op)) return false;
    if (has_word(policy, "selective") && is_attention(op)) return true;
    return any_names(policy, false, op);
}

bool made_again_names(const Func *f, const char *word) {
    if (!is_name(word)) return true;
    for (const Op *op = f->first; op; op = op->next)
        if (names_result(word, op)) return true;
    return false;
}

bool made_again_selects(const Func *f) {
    for (const Op *op = f->first; op; op = op->next)
        if (is_attention(op)) return true;
    return false;
}

/* ---- making again ---- */

typedef struct Remake {
    Func *w;
    const Op *last; /* of forward */
    int carry;
    const char *policy;
    bool elementwise;
    bool *kept;   /* by value id: backward reads it, and it is not made again */
    bool *wanted; /* by value id: what is made again reads it */
    int *readers; /* by value id: ops of forward that read it */
    bool *
        unmoved; /* by value id: an argument that no run changes, or moved or cast from one */
    bool *there; /* by value id: kept anyhow, or made at next to no cost of such values */
    bool *again; /* by op id */
} Remake;

static void note_forward(Remake *r) {
    const Func *w = r->w;
    for (int i = r->carry; i < w->narg; i++) r->unmoved[w->arg[i]->id] = true;
    for (const Op *op = w->first; op != r->last->next; op = op->next) {
        for (int i = 0; i < op->nin; i++) r->readers[op->in[i]->id]++;
        if (op->nout == 1)
            r->unmoved[op->out[0]->id] =
                op_has(op, F_MOVE | F_CAST) && r->unmoved[op->in[0]->id];
    }
}

/* A number in a wider type takes more memory and says nothing more. */
static bool is_widened(const Op *op) {
    return op_has(op, F_CAST) &&
           dtype_bytes[op->out[0]->ty.dt] > dtype_bytes[op->in[0]->ty.dt];
}

/* Next to no work: elementwise, or by rows as a norm. */
static bool is_cheap(const Op *op) {
    return op_has(op, F_MAP) || (optab[op->kind].expand && !op_has(op, F_EXACT));
}

static bool reads_what_is_there(const Remake *r, const Op *op) {
    for (int i = 0; i < op->nin; i++)
        if (!r->there[op->in[i]->id]) return false;
    return is_cheap(op);
}

/* What backward reads it reads anyhow, and what it reads in a wider type is kept in the
 * narrow one. */
static void note_there(Remake *r) {
    for (const Op *op = r->last; op; op = op->prev)
        if (is_widened(op)) r->kept[op->in[0]->id] |= r->kept[op->out[0]->id];
    for (int i = 0; i < r->w->nvalues; i++) r->there[i] = r->kept[i] || r->unmoved[i];
    for (const Op *op = r->w->first; op != r->last->next; op = op->next)
        for (int i = 0; i < op->nout; i++)
            r->there[op->out[i]->id] |= reads_what_is_there(r, op);
}

/* Nobody else would read it. */
static bool goes_with_reader(const Remake *r, const Op *op) {
    if (op->nout != 1 || r->readers[op->out[0]->id] != 1) return false;
    if (op_has(op, F_MOVE | F_VIEW)) return true;
    const Op *reader = op->next;
    while (reader != r->last->next) {
        if (op_reads_value(reader, op->out[0]))
            return op_has(op, F_ADDENDS) && op_has(reader, F_PLUS);
        reader = reader->next;
    }
    return false;
}

/* Readers come first, so what they want is known. */
static bool is_made_again(const Remake *r, const Op *op) {
    bool read = op_makes_marked(op, r->kept), wanted = op_makes_marked(op, r->wanted);
    if ((!read && !wanted) || op_has(op, F_EFFECT)) return false;
    if (op->nout == 1 && (r->unmoved[op->out[0]->id] || is_widened(op))) return true;
    if (r->elementwise && reads_what_is_there(r, op)) return true;
    bool stays = r->policy && any_names(r->policy, true, op);
    return is_named(r->policy, op) || (!read && !stays && goes_with_reader(r, op));
}

static void choose(Remake *r, Value **grads, int ngrads) {
    for (const Op *op = r->last->next; op; op = op->next) op_mark_operands(op, r->kept);
    for (int i = 0; i < ngrads; i++)
        if (grads[i]) r->kept[grads[i]->id] = true;
    if (r->elementwise) note_there(r);
    for (const Op *op = r->last; op; op = op->prev) {
        r->again[op->id] = is_made_again(r, op);
        if (r->again[op->id]) op_mark_operands(op, r->wanted);
    }
}

/* In the order of forward, before backward, which reads what was made again. */
static void make(const Remake *r, const Renames *made) {
    Op *first = r->last->next;
    Builder b = build_before(first);
    for (const Op *op = r->w->first;; op = op->next) {
        if (r->again[op->id]) {
            Op *copy = op_again(&b, op, op->in);
            renames_reach(made, copy);
            for (int i = 0; i < op->nout; i++) made->now[op->out[i]->id] = copy->out[i];
        }
        if (op == r->last) break;
    }
    for (Op *op = first; op; op = op->next) renames_reach(made, op);
}

static Remake remake_of(Arena *mem, const LayerSeen *l, const char *policy) {
    func_number(l->w);
    size_t n = (size_t)l->w->nvalues + 1;
    Remake r = {.w = l->w, .last = l->last, .carry = l->carry, .policy = policy};
    r.elementwise = l->elementwise;
    r.there = NEW_ARRAY(mem, bool, n);
    r.kept = NEW_ARRAY(mem, bool, n);
    r.wanted = NEW_ARRAY(mem, bool, n);
    r.unmoved = NEW_ARRAY(mem, bool, n);
    r.readers = NEW_ARRAY(mem, int, n);
    r.again = NEW_ARRAY(mem, bool, (size_t)l->w->nops + 1);
    if (!l->last->next) return r;
    note_forward(&r);
    choose(&r, l->grads, l->ngrads);
    return r;
}

void make_again(const LayerSeen *l, const char *policy) {
    Arena *mem = arena_new();
    Remake r = remake_of(mem, l, policy);
    Value **now = NEW_ARRAY(mem, Value *, (size_t)l->w->nvalues + 1);
    if (l->last->next) make(&r, &(Renames){l->w, now});
    for (int i = 0; i < l->ngrads; i++)
        if (l->grads[i] && now[l->grads[i]->id]) l->grads[i] = now[l->grads[i]->id];
    arena_free(mem);
}

/* ---- what it would do ---- */

bool *made_again_ops(Arena *mem, const LayerSeen *l, const char *policy, bool **kept) {
    Remake r = remake_of(mem, l, policy);
    for (const Op *op = l->w->first; op != l->last->next; op = op->next)
        for (int i = 0; i < op->nout; i++) {
            int v = op->out[i]->id;
            r.kept[v] = (r.kept[v] || r.wanted[v]) && !r.again[op->id];
        }
    *kept = r.kept;
    return r.again;
}

/* ---- calls without what they save ---- */

static Func *plain_function(const Op *call) {
    const Func *f = op_func(call);
    Func *plain = f->part == PART_FORWARD ? module_find(f->mod, f->made_of) : NULL;
    for (int i = plain ? plain->nret : 0; i < call->nout && plain; i++)
        if (value_uses(call->fn, call->out[i])) return NULL;
    return plain;
}

void make_plain_calls(Func *forward) {
    for (Op *op = forward->first; op; op = op->next) {
        const Func *plain = op_is_call(op) ? plain_function(op) : NULL;
        if (!plain) continue;
        op_set_func(op, plain);
        op->nout = plain->nret;
    }
}
