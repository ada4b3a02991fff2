/* place.c - a module without placements is the local program of each rank as it is. Level
 * global or diffed -> local; fails when a type has a placement. */
#include "passes/passes.h"

static void refuse_placement(const Module *m, const Func *f, const Value *v) {
    bool placed = v->ty.pending != 0;
    for (int d = 0; d < v->ty.rank; d++) placed |= v->ty.split[d] != 0;
    if (!placed) return;
    Text t = text_new(m->mem);
    type_print(&t, &m->mesh, &v->ty);
    fail(EXIT_CONFIG,
         "@%s: %%%s has the placement %s; pass place takes modules without placements: "
         "run seed, shard, reshard, collect and localize instead",
         f->name, v->name, t.s);
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
