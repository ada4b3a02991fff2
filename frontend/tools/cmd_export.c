/* cmd_export.c - the command export: a strategy as flags of Megatron-LM. */
#include "frontend/config/commands.h"
#include "frontend/config/options.h"
#include "frontend/plan/recompute_auto.h"
#include "frontend/tools/megatron_export.h"

int cmd_export(int argc, char **argv) {
    const Options *o = options_take(COMMAND_export, argc, argv);
    if (!o) return 0;
    if (!o->nwords)
        fail(EXIT_CONFIG,
             "stator export needs a configuration: stator export CONFIG.yaml");
    Config *cfg = config_load(o->mem, o->word[0], o->nflags, o->flag);
    Job *j = job_to_plan(o->mem, cfg);
    recompute_choose(j);
    PassOptions passes = strategy_pass_options(cfg);
    job_module(j, &passes);
    MegatronExport e = megatron_export(o->mem, j, &passes);
    say_aside("note: of %lld ranks", (long long)strategy_ranks(&j->strategy));
    for (int i = 0; i < e.nnotes; i++) say_aside("note: %s", e.note[i]);
    fwrite(e.flags.s, 1, e.flags.n, stdout);
    arena_free(o->mem);
    return 0;
}
