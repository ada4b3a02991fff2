/* hand_machine.h - seconds of steps of hand-made programs on hand-made machines. */
#ifndef STATOR_HAND_MACHINE_H
#define STATOR_HAND_MACHINE_H
#include "../mem.h"
#include "../test.h"
#include "passes/estimate/step_seconds.h"

/* Products at 1 GFLOP/s, messages of 1 ms and 1 GB/s. */
static inline Machine slow_machine(int cores) {
    static MachineRank rank = {.ranks = 1, .threads = 1, .flops = {1e9, 2e9}};
    Machine m = machine_plain;
    m.rank = &rank;
    m.cores = cores;
    for (int l = 0; l < LINK_LEVELS; l++)
        m.link[l] = (Link){.start_seconds = 1e-3, .bytes_per_second = 1e9};
    return m;
}

/* stage -1: there is one. */
static inline const Func *entry_of(const char *mesh, const char *body, int stage) {
    const char *rest = strstr(body, " {\n");
    bool many = stage >= 0;
    const char *text = arena_printf(
        mem(), "module @t mesh(%s)%s level(fused)\nfunc @step:step%.*s%s%s\n", mesh,
        many ? " stages(4)" : "", (int)(rest - body), body,
        many ? arena_printf(mem(), " stage(%d)", stage) : "", rest);
    return module_parse(mem(), "step.ir", text, strlen(text))->first;
}

static inline double seconds_of(const Machine *m, const char *mesh, const char *body) {
    const Func *entry = entry_of(mesh, body, -1);
    return step_seconds(mem(), m, &entry, 1, 1).seconds;
}

#define EXP_500                                                                          \
    "(%x: f32[500]) -> (f32[500]) {\n"                                                   \
    "  %y = exp %x : f32[500]\n  return %y\n}"
#define MATRIX  "(%x: f32[100,200], %w: f32[200,400]) -> (f32[100,400]) {\n"
#define PRODUCT "  %y = dot %x, %w {mk,kn->mn} : f32[100,400]\n" /* 16 ms */

#endif
