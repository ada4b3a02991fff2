/* graph.c - a module as a graph: numbers, uses, the order of its functions. */
#include "ir/ir.h"
#include "ir/placement.h"

void func_number(Func *f) {
    f->nvalues = f->nops = 0;
    for (int i = 0; i < f->narg; i++) f->arg[i]->id = f->nvalues++;
    for (Op *op = f->first; op; op = op->next) {
        op->id = f->nops++;
        for (int i = 0; i < op->nout; i++) op->out[i]->id = f->nvalues++;
    }
}

int value_uses(const Func *f, const Value *v) {
    int n = 0;
    for (const Op *op = f->first; op; op = op->next) {
        for (int i = 0; i < op->nin; i++) n += op->in[i] == v;
    }
    for (int i = 0; i < f->nret; i++) n += f->ret[i] == v;
    return n;
}

const Value *value_viewed(const Value *v) {
    while (v->def && op_has(v->def, F_VIEW)) v = v->def->in[v->nth];
    return v;
}

Op *value_only_reader(const Func *f, const Value *v) {
    if (value_uses(f, v) != 1) return NULL;
    Op *op = v->def ? v->def->next : f->first;
    while (op && !op_reads_value(op, v)) op = op->next;
    return op;
}

int *func_uses(Arena *mem, const Func *f) {
    int *n = NEW_ARRAY(mem, int, (size_t)f->nvalues + 1);
    for (const Op *op = f->first; op; op = op->next)
        for (int i = 0; i < op->nin; i++) n[op->in[i]->id]++;
    for (int i = 0; i < f->nret; i++) n[f->ret[i]->id]++;
    return n;
}

Op ***func_readers(Arena *mem, const Func *f) {
    int *n = NEW_ARRAY(mem, int, (size_t)f->nvalues + 1);
    Op ***reader = NEW_ARRAY(mem, Op **, (size_t)f->nvalues + 1);
    for (const Op *op = f->first; op; op = op->next)
        for (int i = 0; i < op->nin; i++) n[op->in[i]->id]++;
    for (int v = 0; v < f->nvalues; v++)
        reader[v] = NEW_ARRAY(mem, Op *, (size_t)n[v] + 1), n[v] = 0;
    for (Op *op = f->first; op; op = op->next)
        for (int i = 0; i < op->nin; i++) {
            int v = op->in[i]->id;
            reader[v][n[v]++] = op;
        }
    return reader;
}

int func_result(const Func *f, const Value *v) {
    for (int i = 0; i < f->nret; i++)
        if (f->ret[i] == v) return i;
    return -1;
}

int func_calls(const Module *m, const Func *f) {
    int n = 0;
    for (const Func *g = m->first; g; g = g->next)
        for (const Op *op = g->first; op; op = op->next) n += op_callee(op) == f;
    return n;
}

typedef struct Visit { /* one function on the way down from an entry */
    Func *f;
    const Op *at; /* its next op to look at */
} Visit;

/* Depth first, with a stack of its own; Func.order says where the search is. */
Func **module_order(Arena *mem, const Module *m) {
    int total = 0, n = 0, depth = 0;
    for (Func *f = m->first; f; f = f->next) f->order = ORDER_NEW, total++;
    Func **order = NEW_ARRAY(mem, Func *, (size_t)total + 1);
    Visit stack[MAX_CALL_DEPTH + 1];
    for (Func *f = m->first; f; f = f->next) {
        if (f->order == ORDER_NEW) stack[depth++] = (Visit){f, f->first};
        f->order = f->order == ORDER_NEW ? ORDER_OPEN : f->order;
        while (depth) {
            Visit *v = &stack[depth - 1];
            while (v->at && !op_is_call(v->at)) v->at = v->at->next;
            if (!v->at) {
                v->f->order = ORDER_DONE;
                v->f->nth = n;
                order[n++] = v->f;
                depth--;
                continue;
            }
            const Op *call = v->at;
            Func *callee = op_func(call);
            v->at = call->next;
            if (callee->order == ORDER_DONE) continue;
            if (callee->order == ORDER_OPEN) {
                fail_op(call, "@%s calls itself", callee->name);
            }
            if (depth > MAX_CALL_DEPTH) {
                fail_op(call, "calls nested deeper than %d", MAX_CALL_DEPTH);
            }
            callee->order = ORDER_OPEN;
            stack[depth++] = (Visit){callee, callee->first};
        }
    }
    return order;
}

int order_length(Func *const *order) {
    int n = 0;
    while (order[n]) n++;
    return n;
}

bool func_is_entry(const Func *f) {
    return f->role == ROLE_MODEL || f->role == ROLE_STEP;
}

Func *module_stage(const Module *m, int stage) {
    for (Func *f = m->first; f; f = f->next)
        if (func_is_entry(f) && f->stage == stage) return f;
    return NULL;
}

bool func_is_gradient(const Func *f) {
    return func_arg_role(f, ARG_dloss) >= 0;
}

Func *module_gradient(const Module *m) {
    for (Func *f = m->first; f; f = f->next)
        if (func_is_gradient(f)) return f;
    return NULL;
}

void func_remove_dead(Func *f) {
    func_number(f);
    Arena *mem = arena_new();
    bool *live = NEW_ARRAY(mem, bool, (size_t)f->nvalues + 1);
    for (int i = 0; i < f->nret; i++) live[f->ret[i]->id] = true;
    for (Op *op = f->last, *prev; op; op = prev) {
        prev = op->prev;
        if (op_has(op, F_EFFECT) || op_makes_marked(op, live))
            op_mark_operands(op, live);
        else
            op_remove(op);
    }
    arena_free(mem);
}

void module_remove_unused(Module *m) {
    Arena *mem = arena_new();
    Func **order = module_order(mem, m);
    int n = order_length(order);
    bool *used = NEW_ARRAY(mem, bool, (size_t)n + 1);
    bool entries = false;
    for (int i = 0; i < n; i++) entries |= func_is_entry(order[i]);
    for (int i = n - 1; i >= 0; i--) {
        if (!entries || func_is_entry(order[i])) used[i] = true;
        for (Op *op = order[i]->first; op && used[i]; op = op->next) {
            if (op_is_call(op)) used[op_func(op)->nth] = true;
        }
    }
    for (Func **at = &m->first; *at;) {
        if (used[(*at)->nth])
            at = &(*at)->next;
        else
            *at = (*at)->next;
    }
    arena_free(mem);
}

Op *only_call(const Module *m, const Func *f) {
    Op *found = NULL;
    for (Func *g = m->first; g; g = g->next) {
        for (Op *op = g->first; op; op = op->next) {
            if (!op_is_call(op) || op_func(op) != f) continue;
            if (found) return NULL;
            found = op;
        }
    }
    return found;
}
