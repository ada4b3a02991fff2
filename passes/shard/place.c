/* place.c - a module without placements is the local program of each rank as it is. Level
 * global or diffed -> local; fails when a type has a placement. */
#include "passes/passes.h"

static void refuse_placement(const Module *m, const Func *f, const Value *v) {
    if (!v->ty.pending && !type_axes(&v->ty)) return;
    fail(EXIT_CONFIG,
         "@%s: %%%s has the placement %s; pass place takes modules without placements: "
         "run seed, shard, reshard, collect and localize instead",
         f->name, v->name, type_text(m->mem, &m->mesh, &v->ty));
}

void pass_place(Module *m, const PassOptions *o) {
    (void)o;
    module_drop_attr(m, "stage"); /* of level global */
    for (Func *f = m->first; f; f = f->next) {
        for (int i = 0; i < f->narg; i++) refuse_placement(m, f, f->arg[i]);
        for (Op *op = f->first; op; op = op->next) {
            for (int i = 0; i < op->nout; i++) refuse_placement(m, f, op->out[i]);
        }
    }
}
