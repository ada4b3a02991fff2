/* stage.c - keeps the step of one stage, and what it calls. Level local. */
#include "passes/passes.h"

void pass_stage(Module *m, const PassOptions *o) {
    if (!m->stages || o->stage < 0) return;
    if (o->stage >= m->stages)
        fail(EXIT_CONFIG, "stage=%d: module @%s has the stages 0 to %d", o->stage,
             m->name, m->stages - 1);
    for (Func *f = m->first; f; f = f->next) {
        if (!func_is_entry(f)) continue;
        if (o->steps) o->steps[f->stage] = f;
        if (f->stage != o->stage) f->role = ROLE_FUNC;
    }
    module_remove_unused(m);
}
