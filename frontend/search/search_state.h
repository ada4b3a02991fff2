/* search_state.h - what the files of a search share. */
#ifndef STATOR_SEARCH_STATE_H
#define STATOR_SEARCH_STATE_H
#include "frontend/search/record.h"
#include "frontend/search/search.h"
#include "passes/estimate/schedule_shared.h"
#include "passes/layer/layer.h"

/* Keys that choices set. */
#define PC     "parallel_config."
#define SHARD  PC "optimizer_shard"
#define INNER  PC "ulysses_degree_in_cp"
#define SHARE  "parallel.parallel_optimizer_config.optimizer_weight_shard_size"
#define METHOD "recompute_config.recompute_method"

/* By set of axes: where the members of groups within a replica are; and how many times as long
 * compute takes where ranks of a stage share cores. */
typedef struct Shapes {
    const GroupShape *of;
    int sets;
    double stretch;
    uint64_t hash;
    struct Shapes *next; /* of the same probe */
} Shapes;

/* Layers of each of `stages`, where the slowest is the fastest. */
typedef struct Balanced {
    int stages; /* 0: not known yet */
    int64_t *layers;
} Balanced;

/* The pieces of a probe with micro-batches of so many sequences. */
typedef struct Pieces {
    int batch;
    const Shapes *shapes;
    ProbeSeconds t;    /* of a probe that is a bound: no program takes less .. */
    ProbeSeconds most; /* .. nor much more; else unset */
    /* The last chunk is on the first stage, or on another; by t, or by the most. */
    Balanced balanced[2][2];
    struct Pieces *next; /* of the same probe */
} Pieces;

/* What plans had more than was reckoned: those of a probe with so many stages and chunks, that
 * level of ZeRO, that schedule and so many sequences a micro-batch, with overlap or without.
 * Nothing is concluded for micro-batches of other sizes, whose values have other places in
 * memory. */
typedef struct Extra {
    Choice of; /* the first of them */
    double bytes;
    double slower;           /* seconds over those of the pieces, 1 at least */
    bool corrected, planned; /* by a plan; by one that fits */
    struct Extra *next;      /* of the same probe */
} Extra;

/* Where the ranks are that have the same parameters, and the stages. */
typedef struct Places {
    int pp;
    RankOrder order;
    GroupShape replicas;
    GroupShape *hop; /* by stage: from it to the next */
    Sharing share;   /* of the cores by stages */
    const Shapes *shapes;
    struct Places *next; /* of the same probe */
} Places;

/* What stator layer finds for choices with these degrees. */
typedef struct Inside {
    int tp, batch, micro, dp; /* replicas follow from how sequences are split */
    double limit_bytes;       /* of a layer; 0: any number */
    double copies, in_flight; /* with a limit: as LayerGraph has them */
    const char *entries;      /* of parallel.shard; NULL: there is nothing to be had */
    double gain;              /* seconds of the planned layer, over those by the keys */
    double parameter_bytes, kept_bytes; /* of the layer; of one micro-batch */
    struct Inside *next;
} Inside;

/* Of the choice that was looked at last; room for as many chunks as the model has layers. */
typedef struct ChunkTimes {
    const PipeScheduleKind *kind;
    double room; /* bytes that a plan may have */
    const Places *places;
    int64_t *layers;            /* by chunk */
    double (*task)[TASK_KINDS]; /* by chunk */
    double *step;               /* by stage: once a step */
    double *busy;               /* by stage: all of its work */
    int *again;  /* by chunk: layers that are made again, or more than it has */
    double *hop; /* by stage: a message between it and the next */
} ChunkTimes;

struct Search {
    Arena *mem;
    SearchOptions o;
    int64_t fixed[KNOBS]; /* -1: free */
    int least_zero;       /* 1: some level of ZeRO is asked for */
    int *remade,
        nremade; /* of each chunk, where KNOB_RECOMPUTE is a list; nremade 0: it is none */
    int64_t inner;   /* ulysses_degree_in_cp as a flag; 0: free */
    IntTable list;   /* of KNOB_LAYERS, where that is fixed */
    RankOrder order; /* of KNOB_ORDER, where that is fixed */
    Job job;         /* the model */
    int64_t layers;
    int threads;
    bool overlap;
    DType gradient;     /* type of gradients of parameters */
    double ahead_bytes; /* of batches that are read ahead, of one replica */
    Probe *probe;
    int nprobes, probe_cap;
    int programs;               /* of these, that are known, and no bounds */
    const ProbeUpdate **update; /* that probes share */
    int nupdates, update_cap;
    ProbeShared shared; /* by probes; without paths: there is none yet */
    bool bounds_parts;  /* programs of several parts are made when they may be of use */
    Inside *inside;
    LayerKnown *known; /* of layers */
    ChunkTimes times;
    int64_t choices;
    Record *record;   /* NULL: nothing is kept */
    double told;      /* clock_seconds of the last line on the terminal */
    Family *left_out; /* splits that the sequences of a step or the layers do not allow */
    int nleft_out, left_out_cap;
};

typedef struct SearchSpace { /* all choices that fit; by first_bound */
    Search *s;
    Choice **block; /* of CHOICE_BLOCK each */
    int n, nblocks, block_cap;
    int *last; /* by probe: number of its last choice; -1: it has none */
    int nlast, last_cap;
    Choice **by;     /* nby of them, sorted */
    int nby, by_cap; /* all, when space_sort is done */
    int alone_from;  /* numbers of those without overlap */
    SearchResult *r;
} SearchSpace;

/* fastest.c */
/* The last choice of a probe, and the one before another; NULL: there is none. */
Choice *space_last(const SearchSpace *b, int probe);
Choice *space_before(const SearchSpace *b, const Choice *c);
void space_keep(SearchSpace *b, const Choice *c);
/* Puts those that are new to b->by among the others. */
void space_sort(SearchSpace *b);
/* The k fastest by their pieces, as corrected; returns how many there are. */
int space_fastest(SearchSpace *b, Choice **top, int k);
/* All of them, by bytes; returns how many. */
int space_by_bytes(const SearchSpace *b, Choice **by);
/* Makes the program of a probe that is a bound, and bounds its choices anew. */
void space_make_probe(SearchSpace *b, int probe);
/* planned.c. Sets r->top: the fastest by plans, those that fit, sorted. */
void space_plan(SearchSpace *b);

/* resume.c: opens the record that is asked for. */
Record *search_record(Search *s);
/* progress.c. False: the user wants it to end. */
bool search_goes_on(const Search *s);
/* A line on the terminal, some times a second; top[n] has been planned. It goes with the second. */
void search_tell(Search *s, const Verified *top, int n);
void search_told(const Search *s);

/* programs.c: makes the program of a way to split; its update is that of another where it may
 * be. */
Probe search_probe(Search *s, ProbeKey key);
/* Of a step's sequences. What no choice changes is refused here, where it is said best. */
double search_ahead_bytes(const Search *s);
/* A probe becomes its program; what choices know of it stays. */
void probe_take(Probe *p, Probe program);
/* space.c: makes the program of a probe that is a bound. */
void search_make_probe(Search *s, int probe);
/* inside.c. May a choice have placements inside of layers beside those of its keys? */
bool inside_may(const Search *s, const Choice *c);
/* NULL: there are none that take less than that part of the seconds of layers by keys. */
const Inside *search_inside(Search *s, const Choice *c, double part);
/* The least part of its seconds that they could leave of a layer: messages alone can be saved. */
double inside_least(Search *s, const Choice *c);
/* pieces.c: sets bound, bytes, layers made again of a choice, and seconds to 0. */
void choice_bound(Search *s, Choice *c);
/* Bytes of a choice of a bound, where its program needs more layers made again, and so takes fewer; else
 * its own. */
double choice_least_bytes(Search *s, const Choice *c);
/* What plans said of choices like this one; makes it where there is none. */
Extra *choice_extra(Search *s, const Choice *c);
/* Both of the same probe. */
bool choice_is_like(const Choice *c, const Extra *e);
/* Before the first choice, when the model is known. */
void choice_make_room(Search *s);
/* Chunks' forwards whose activations a stage keeps at most. */
double choice_in_flight(const Choice *c, int stage);
/* Layers of each chunk that are made again. */
int *choice_remade(Arena *mem, Search *s, const Choice *c);
/* Bytes that a plan may have with the batches that are read ahead; INFINITY. */
double search_room(const Search *s);
/* Bytes of a gradient over those of its parameter. */
double search_gradient_share(const Search *s);
/* Bytes of batches that are read ahead, of which each replica has its own; what they leave. */
double choice_ahead(const Search *s, const Choice *c);
double choice_room(const Search *s, const Choice *c);
/* places.c: those of a choice; they are made where they are not known yet. */
const Places *choice_places(Search *s, const Choice *c);
Pieces *search_pieces(Search *s, const Choice *c);
Pieces *search_pieces_at(Search *s, const Choice *c, const Shapes *shapes);
/* balance.c: would other layers than even ones make its slowest stage faster? */
bool choice_may_balance(Search *s, const Choice *c);
/* Where seconds are bounds, layers that are balanced by the true ones lie as they are by the least or
 * by the most, or between. By the most, by stage; NULL: that is as by the least, or they are no bounds. */
const int64_t *choice_other_balance(Search *s, const Choice *c);
/* Layers of each chunk. */
void choice_layers(Search *s, const Choice *c, int64_t *layers);
/* orders.c: the axes of a mesh but tp; messages from a stage to the next, behind the last the first. */
Axes choice_replicas(const Mesh *mesh);
GroupShape choice_hop(const Machine *m, const Mesh *mesh, int stages, int stage);
/* The orders that are worth trying for these degrees, at most SEARCH_ORDERS; at least 1. */
int choice_orders(const Search *s, const Choice *c, RankOrder *order);

#endif
