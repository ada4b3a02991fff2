/* stage_layers.h - how many layers each chunk of a pipeline has, by the keys of
 * parallel_config: a list, the first and the last stage, or an offset; else evenly. And which
 * of these layers do not exist (noop_layers). */
#ifndef STATOR_STAGE_LAYERS_H
#define STATOR_STAGE_LAYERS_H
#include "frontend/config/config.h"
#include "passes/pipe/schedule.h"

typedef struct StageLayers { /* zeros: evenly */
    IntTable list; /* num_layer_list: a row for each chunk of a stage, a column a stage */
    IntList offset; /* layers more than even, by chunk in the order of the model */
    bool has_first, has_last; /* the first and the last stage have so many: */
    int64_t first, last;
    IntList noop; /* layers that take a place in a chunk, and are not in the model */
    /* for messages; of all: how many chunks there are */
    SourcePos list_pos, offset_pos, first_pos, last_pos, chunks_pos;
} StageLayers;

/* Fails with EXIT_CONFIG when two of them are given. */
StageLayers stage_layers_of_config(const Config *cfg);
/* Are the noop layers all different, and not all, of so many layers? Fails with EXIT_CONFIG;
 * adds a note of how many are left. */
void stage_layers_check_noop(Config *cfg, int64_t layers);
/* Fails with EXIT_CONFIG if there are any, for a module that is what it is. */
void stage_layers_refuse_noop(const Config *cfg, const char *module);
/* Fails with EXIT_CONFIG if a key says it, and the module does already. */
void stage_layers_refuse_keys(const StageLayers *s, const char *module);
/* By chunk of the schedule, in the order of the model, which has so many layers,
 * noop ones not counted. Fails with
 * EXIT_CONFIG at the value that does not go with them. */
const int64_t *stage_layers(const StageLayers *s, Arena *mem, const PipeSchedule *p,
                            int64_t layers);

#endif
