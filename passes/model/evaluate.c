/* evaluate.c - turns a model for training into one for prediction: ops that drop elements
 * at random drop none. Level global. */
#include "passes/passes.h"

static void drop_nothing(Op *op) {
    if (optab[op->kind].flags & F_MAP) {
        func_replace(op->fn, op->out[0], op->in[0]);
        op_remove(op);
    } else {
        op_set_float(op, "p", 0);
    }
}

void pass_evaluate(Module *m, const PassOptions *o) {
    (void)o;
    for (Func *f = m->first; f; f = f->next) {
        for (Op *op = f->first, *next; op; op = next) {
            next = op->next;
            if (optab[op->kind].flags & F_RANDOM) drop_nothing(op);
        }
    }
}
