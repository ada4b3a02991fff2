/* flops.c - the flops of a model, counted in its gradient function, which contains all
 * that has to be computed; ops in a loop count once for every run. */
#include "passes/passes.h"

/* The letters of float operands and results; of two tied ones (heads and their groups)
 * the one that the other follows. */
static uint32_t letters_of(const Op *op, const Dims *d) {
    uint32_t mask = 0;
    for (int i = 0; i < op->nin; i++) {
        if (dtype_is_float(op->in[i]->ty.dt)) mask |= dims_mask(d, i);
    }
    for (int i = 0; i < op->nout; i++) mask |= dims_mask(d, d->nin + i);
    for (int id = 0; id < d->n; id++) {
        if (d->tied[id] >= 0) mask &= ~(1u << d->tied[id]);
    }
    return mask;
}

double op_flops_of(const Op *op, const Dims *d) {
    double n = 2.0 * flag_products(optab[op->kind].flags);
    uint32_t letters = letters_of(op, d);
    for (int id = 0; id < d->n; id++) {
        if (letters >> id & 1) n *= (double)d->size[id];
    }
    return optab[op->kind].share ? n * optab[op->kind].share(op) : n;
}

double op_flops(const Op *op) {
    Dims d;
    bool products = flag_products(optab[op->kind].flags) > 0;
    return products && op_dims(op, &d) ? op_flops_of(op, &d) : 0;
}

double func_flops(const Func *f, const double *by_nth) {
    double flops = 0;
    for (const Op *op = f->first; op; op = op->next) {
        const Func *callee = op_callee(op);
        flops += callee ? (double)call_of(op).times * by_nth[callee->nth] : op_flops(op);
    }
    return flops;
}

void remake_nothing(Module *m) {
    for (Func *f = m->first; f; f = f->next)
        for (Op *op = f->first; op; op = op->next)
            if (op_attr(op, "remake")) op_set_str(op, "remake", "");
}

double model_flops(Module *m) {
    PassOptions o = pass_options_default();
    if (m->level == LEVEL_GLOBAL) remake_nothing(m);
    if (m->level == LEVEL_GLOBAL) passes_run(m, "simplify,autodiff,simplify", &o);
    check(m->level == LEVEL_DIFFED);
    Arena *mem = arena_new();
    Func **order = module_order(mem, m);
    int n = order_length(order);
    double *by_nth = NEW_ARRAY(mem, double, (size_t)n + 1), flops = 0;
    for (int i = 0; i < n; i++) {
        by_nth[i] = func_flops(order[i], by_nth);
        if (func_is_gradient(order[i])) flops = by_nth[i];
    }
    arena_free(mem);
    return flops;
}
