/* strategy_schedule.c - see strategy_schedule.h. */
#include "frontend/model/strategy_schedule.h"
#include "frontend/config/config_state.h"

const char *schedule_of_config(const Config *cfg) {
    static const char key[] = "parallel.pipeline_config.pipeline_scheduler";
    const char *name = cfg->parallel_pipeline_config_pipeline_scheduler;
    Arena *mem = cfg->state->mem;
    Text names = text_new(mem);
    if (ends_with(name, ".csv")) return config_file_beside(cfg, mem, key, name);
    for (int k = 0; schedule_name_at(k); k++) {
        if (!strcmp(name, schedule_name_at(k))) return name;
        text_add(&names, "%s, ", schedule_name_at(k));
    }
    config_refuse(cfg, key, NULL, arena_printf(mem, "%sor a FILE.csv", names.s),
                  "unknown schedule '%.100s'", name);
}

SourcePos schedule_place(const Config *cfg) {
    static const char *const path[] = {"parallel.pipeline_config.pipeline_scheduler",
                                       "parallel_config.pp_interleave_num"};
    int given = 0;
    while (given < ARRAY_LEN(path) - 1 && !config_given(cfg, path[given])) given++;
    return config_where(cfg, path[given]);
}

static PipeSchedule *schedule_read(const Strategy *s, Arena *mem, int chunks, int micro) {
    size_t n;
    const char *name = s->schedule;
    const char *text = file_read(mem, name, SCHEDULE_MAX_BYTES, &n, EXIT_CONFIG);
    PipeSchedule *p = schedule_parse(mem, name, text, micro);
    if (p->stages != s->stages || p->chunks != chunks)
        fail(EXIT_CONFIG,
             "%s has %d stages and %d chunks; parallel_config.pipeline_stage x "
             "pp_interleave_num is %lld x %lld",
             name, p->stages, p->chunks, (long long)s->stages,
             (long long)MAX(s->chunks, 1));
    return p;
}

PipeSchedule *schedule_of_strategy(const Strategy *s, Arena *mem, int chunks, int micro) {
    const char *name = s->schedule ? s->schedule : "1f1b";
    Catch c;
    if (!CATCH(c)) catch_fail_at(&c, s->schedule_pos);
    PipeSchedule *p = ends_with(name, ".csv")
                          ? schedule_read(s, mem, chunks, micro)
                          : schedule_make(mem, name, (int)s->stages, chunks, micro);
    catch_end(&c);
    return p;
}
