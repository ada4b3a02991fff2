/* cmd_plan.c - stator plan: what training would take, on any number of ranks. */
#include "frontend/config/commands.h"
#include "frontend/config/options.h"
#include "frontend/plan/plan.h"
#include <errno.h>

static void draw_schedule(Arena *mem, const Plan *p, const char *path) {
    if (!p->pipe)
        fail(EXIT_CONFIG,
             "--svg %s: there is one stage, and so no schedule to draw\n    hint: "
             "--parallel_config.pipeline_stage 2, or more, with as many "
             "parallel_config.micro_batch_num",
             path);
    Timeline l = plan_schedule_timeline(mem, p->pipe->schedule,
                                        (const double(*)[TASK_KINDS])p->pipe->flops);
    int error = timeline_write(path, &l);
    if (error) fail(EXIT_DATA, "cannot write %s: %s", path, strerror(error));
}

int cmd_plan(int argc, char **argv) {
    double start = clock_seconds();
    Arena *mem = arena_new();
    const Options *o = options_read(mem, COMMAND_plan, argc, argv);
    if (!o) {
        arena_free(mem);
        return 0;
    }
    if (argc < 2)
        fail(EXIT_CONFIG, "stator plan needs a configuration: stator plan CONFIG.yaml "
                          "[-n RANKS] [--json] [--svg FILE.svg] [--a.b.c VALUE ...]");
    Config *cfg = config_load(mem, o->nwords ? o->word[0] : NULL, o->nflags, o->flag);
    Plan p = plan_of_config(mem, cfg, option_int(o, "-n", 0));
    const char *svg = option_text(o, "--svg");
    if (svg) draw_schedule(mem, &p, svg);
    Text out = text_new(mem);
    if (option_given(o, "--json")) {
        text_add(&out, "{\n");
        plan_json(&p, &out);
        text_add(&out, "\n}\n");
    } else {
        plan_print(mem, &p, clock_seconds() - start, &out);
    }
    if (fwrite(out.s, 1, out.n, stdout) != out.n || fflush(stdout))
        fail(EXIT_DATA, "cannot write the plan: %s", strerror(errno));
    plan_check_memory(&p);
    arena_free(mem);
    return 0;
}
