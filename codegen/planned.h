/* planned.h - a module planned as program_make would, without its code: for plans. */
#ifndef STATOR_PLANNED_H
#define STATOR_PLANNED_H
#include "codegen/codegen.h"

/* Runs `passes` over m, which must end at level planned; code generation says how much
 * workspace matmuls and kernels need for co->cpu and co->threads (0: those of this process;
 * other machines have more than it may start, which only measuring takes). No code is made and no memory of the program is taken. Returns the entry function. User
 * failures: as program_make. */
Func *module_plan(Arena *mem, Module *m, const char *passes, const PassOptions *po,
                  const CompileOptions *co);

/* Runs the passes of training that all stages have in common, those before pass stage. */
void module_plan_common(Arena *mem, Module *m, const PassOptions *po);
/* module_plan of stage po->stage of what that has left, which stays. */
Func *module_plan_stage(Arena *mem, const Module *m, const PassOptions *po,
                        const CompileOptions *co);

/* Fails with EXIT_CONFIG where CompileOptions.cpu is not known, or has what this CPU lacks. */
void compile_check_cpu(const char *cpu);

#endif
