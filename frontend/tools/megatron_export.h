/* megatron_export.h - the strategy of a configuration as flags of Megatron-LM. */
#ifndef STATOR_MEGATRON_EXPORT_H
#define STATOR_MEGATRON_EXPORT_H
#include "frontend/model/job.h"

typedef struct MegatronExport {
    Text flags;        /* a line each: "--tensor-model-parallel-size 4\n" */
    const char **note; /* a line on each key that no flag says, or not all of it */
    int nnotes;
} MegatronExport;

/* Of the job, whose module job_module made with `o`: what parallel, parallel_config,
 * recompute_config and batches are in Megatron-LM (docs/megatron.md); megatron_keys of the flags
 * beside those of the model is the same strategy again. Fails with EXIT_CONFIG for a model.file. */
MegatronExport megatron_export(Arena *mem, const Job *j, const PassOptions *o);

#endif
