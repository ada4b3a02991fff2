/* layer_probe.h - programs of one configuration that stator layer looks at: the graph of its
 * layer on one axis, and the same layer as planned with entries of parallel.shard or with keys
 * of parallel_config. */
#ifndef STATOR_LAYER_PROBE_H
#define STATOR_LAYER_PROBE_H
#include "frontend/model/job.h"
#include "passes/layer/layer.h"

typedef struct LayerAsk {
    const Config *cfg;
    int ranks; /* of the axis */
    LayerMachine machine;
    LayerKnown *known; /* of other graphs too; NULL: its own */
} LayerAsk;

/* The graph, of micro-batches as the configuration has them for a replica. */
LayerGraph *layer_probe_graph(Arena *mem, const LayerAsk *a);

typedef struct LayerPlanned {
    const char *refused; /* why there is no such program; NULL */
    LayerChoice
        *choice; /* as it was made; NULL: its ops are others than those of the graph */
    const char *differs; /* why, then */
    LayerMessages sent;
    double
        seconds; /* of a layer, forward and backward, of the fused and overlapped program */
} LayerPlanned;

/* With entries; or (n < 0) as model_parallel does it, with or without sequence_parallel. */
LayerPlanned layer_probe_plan(Arena *mem, const LayerAsk *a, const LayerGraph *g, int n,
                              char **entry, bool sequence_parallel);

/* The entries of parallel.shard that ask for the choice: one for each parameter of the layer
 * and each seed; with replicas the dimension of samples is over dp. */
char **layer_entries(Arena *mem, const LayerAsk *a, const LayerGraph *g,
                     const LayerChoice *c, bool replicas, int *n);

#endif
