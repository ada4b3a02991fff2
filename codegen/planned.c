/* planned.c - see planned.h. */
#include "codegen/planned.h"
#include "codegen/lower.h"
#include "codegen/product_choices.h"
#include "runtime/core/rt.h"

static Func *entry_of(const Module *m) {
    for (Func *f = m->first; f; f = f->next) {
        if (func_is_entry(f)) return f;
    }
    fail(EXIT_CONFIG, "module @%s has no function of role model or step", m->name);
}

Func *module_plan(Arena *mem, Module *m, const char *passes, const PassOptions *po,
                  const CompileOptions *co) {
    if (co->choices && co->choices->limit_seconds > 0)
        rt_set_threads(co->threads); /* it may measure */
    else if (!co->threads)
        rt_count_threads(0);
    Target *target = target_open(co->cpu);
    Lower lower = {.mem = mem,
                   .m = m,
                   .threads = co->threads ? co->threads : rt_threads(),
                   .vl = target_lanes(target),
                   .target = target,
                   .choices = co->choices};
    PassOptions options = *po;
    options.choose = lower_choose;
    options.workspace_bytes = lower_workspace_bytes;
    options.workspace_ctx = &lower;
    options.verbose |= co->verbose;
    passes_run(m, passes, &options);
    if (m->level != LEVEL_PLANNED) {
        fail(EXIT_CONFIG, "passes '%s' end at level %s; a plan needs memplan last",
             passes, level_name[m->level]);
    }
    for (int i = 0; i < lower.nproducts; i++)
        dnnl_matmul_free(lower.product[i].code.matmul);
    target_close(target);
    return entry_of(m);
}

void module_plan_common(Arena *mem, Module *m, const PassOptions *po) {
    passes_run(m, passes_part(mem, train_passes, NULL, "stage", ""), po);
}

Func *module_plan_stage(Arena *mem, const Module *m, const PassOptions *po,
                        const CompileOptions *co) {
    const char *rest = passes_part(mem, train_passes, "stage", NULL, "");
    return module_plan(mem, module_copy(m, m->stages ? po->stage : -1), rest, po, co);
}

void compile_check_cpu(const char *cpu) {
    target_close(target_open(cpu));
}
