/* probe.h - what one layer of the model and what stands around the layers take of a rank,
 * read off real programs: the configuration is planned on one stage and one replica with
 * one micro-batch, for each way of splitting matrices and sequences. Any number of layers,
 * stages, replicas and micro-batches is then put together from these pieces. */
#ifndef STATOR_PROBE_H
#define STATOR_PROBE_H
#include "frontend/model/job.h"
#include "passes/estimate/func_seconds.h"

/* How matrices and sequences are split: a program is made for each of them. */
typedef struct ProbeKey {
    int tp, cp, ring; /* ring: parts whose keys go round; cp / ring go against heads */
    int parts;        /* of a micro-batch, beside each other */
    bool sequence_parallel, splits_vocab;
} ProbeKey;

typedef struct ParamBytes {
    double layer, first, last; /* of a layer, read before the layers, behind */
    double tied;               /* of those that both read */
} ParamBytes;

/* Bytes on a rank of the split; those that grow with the micro-batch are of one sequence. Doubles
 * alone, as in ProbeSeconds: records keep them as rows of numbers. */
typedef struct ProbeBytes {
    ParamBytes held; /* parameters as they are updated */
    ParamBytes read; /* as products read them: rounded, in bf16 and f16 training */
    double kept;     /* of a layer, until its backward */
    double
        delayed; /* of a layer, from there until its gradients of weights, if these wait */
    double states;  /* of the optimizer, over those of parameters */
    double carried; /* from layer to layer, and from stage to stage */
    /* Of a layer's gradients: how many there are, and of those that no product adds up how many
     * and their bytes. */
    double gradients, added, added_bytes;
} ProbeBytes;

/* What the update of all parameters takes: the ops of a step that are not of the model. It is the
 * same with sequence_parallel or without, and but for some slices of the batch in one part or
 * in several. */
typedef struct ProbeUpdate {
    ProbeKey key;   /* of the program that it was read off */
    FuncSizes size; /* functions of the model are empty */
    int step;       /* the function of the update */
    double states;  /* bytes of the optimizer's states, over those of parameters */
} ProbeUpdate;

/* Of an op of a layer's backward, where gradients of weights wait. */
typedef enum Later {
    LATER = 1,      /* it waits with them */
    LATER_AGAIN = 2 /* it is done for both: a gather */
} Later;

typedef struct Probe {
    ProbeKey key;
    struct Pieces *pieces; /* search_state.h */
    struct Places *places;
    const char *refused; /* why the configuration cannot be split so; NULL: it can */
    bool is_bound;       /* there is no program yet; what it takes is bounded by .. */
    int whole; /* .. the probe with the same key whose micro-batches are whole */
    Mesh mesh;
    struct Shapes *shapes; /* search_state.h */
    ProbeBytes bytes;
    struct Extra *extra;          /* search_state.h */
    int64_t unit;                 /* fewest sequences that can be split so */
    FuncSizes size[2];            /* with so many, and with twice as many */
    int model, forward, backward; /* functions: the model, a layer each way */
    int begin, end;               /* rows of the model at which the two loops stand */
    const uint8_t *later;         /* by row of a layer's backward: Later */
    const bool *remade;           /* by row of a layer: what is made again has it */
    const ProbeUpdate *update;
} Probe;

/* Is it the same program but for its batch? */
bool probe_same_key(const ProbeKey *a, const ProbeKey *b);
/* Do programs of these keys update the same parts of parameters? */
bool probe_same_update(const ProbeKey *a, const ProbeKey *b);

/* The configuration for a program of one stage and one replica that is looked at only: nothing
 * of schedules, optimizer shards, recomputation or tiles, no dumps, no notes. */
Config one_stage_config(const Config *cfg);

/* What all probes of a model on a machine share: collectives, and the model of one sequence before
 * anything is split. */
typedef struct ProbeShared {
    KnownPaths *paths;
    const Module *whole;
} ProbeShared;
ProbeShared probe_shared(Arena *mem, const Job *base);

/* What a message says is wrong, without where: nobody wrote the keys of a probe. */
char *probe_reason(Arena *mem, const char *message);

/* Makes it of the model of a job, by passes that reckon with the machine. A configuration that
 * cannot be split so is no failure. update: that of another probe with the same one, so that the
 * program goes without (half of its ops); NULL: it is read off this program. */
Probe probe_make(Arena *mem, const Job *base, const Machine *machine, ProbeKey key,
                 const ProbeUpdate *update, const ProbeShared *shared);

typedef struct ProbeSeconds {
    double forward, inputs, weights; /* of a layer; backward is inputs + weights */
    double again; /* of a layer, where its gradients of weights wait: messages for them */
    double remade;   /* of a layer, where backward makes again what forward else keeps */
    double messages; /* of these, both ways: nothing is computed beside them */
    double first_forward, first_backward;
    double last_forward, last_backward; /* with the loss */
    double update; /* of all parameters of `layers` layers and the rest */
    double round;  /* what a step copies besides: weights that products read rounded */
    double clear;  /* all gradients, before those of several micro-batches are added up */
    double add;    /* of a layer: gradients that no product adds to those so far */
    double add_all; /* of a layer: all of them, where products add none */
} ProbeSeconds;
/* Seconds of a rank for a micro-batch of b sequences of a replica, by what `timing` has of the
 * machine, of where the members of groups are, and of shared cores. like: those of another
 * micro-batch, whose update takes as long; NULL: it is reckoned. */
ProbeSeconds probe_seconds(const Timing *timing, const Probe *p, double b,
                           const ProbeSeconds *like);
/* No less than these takes a program of `parts` micro-batches beside each other, each of b sequences, of
 * what takes no less one after the other (`all`: probe_seconds of one) and as much of whose
 * messages hides behind other work as the machine can. */
ProbeSeconds probe_parts_least(const Timing *timing, const Probe *p, double b, int parts,
                               const ProbeSeconds *all);
/* One after the other. */
ProbeSeconds probe_parts_most(const ProbeSeconds *all, int parts);

#endif
