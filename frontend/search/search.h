/* search.h - the strategies of a configuration on so many ranks, and the fastest that fits.
 * Every combination of the free keys is a choice. A choice is put together from the pieces
 * of probe.h: a bound of its seconds and of its bytes at once, its seconds by going through
 * its schedule where the bound may be among the best, and both exactly by the planner where
 * it is. docs/search.md says what is exact about it. */
#ifndef STATOR_SEARCH_H
#define STATOR_SEARCH_H
#include "frontend/plan/plan.h"
#include "frontend/search/probe.h"
#include <signal.h>

/* The keys that a search chooses. */
typedef enum Knob {
    KNOB_DP,
    KNOB_TP,
    KNOB_CP,
    KNOB_ALGO, /* of cp */
    KNOB_PP,
    KNOB_CHUNKS, /* of a stage */
    KNOB_SCHEDULE,
    KNOB_BATCH, /* sequences of a replica in a micro-batch */
    KNOB_MICRO,
    KNOB_PARTS, /* of a micro-batch, beside each other */
    KNOB_ZERO,
    KNOB_SP,
    KNOB_VOCAB,
    KNOB_LAYERS,    /* of the chunks */
    KNOB_RECOMPUTE, /* layers of each chunk */
    KNOB_OVERLAP,
    KNOB_ORDER, /* of the degrees in the numbers of ranks */
    KNOB_SHARD, /* placements inside of a layer */
    KNOBS
} Knob;
extern const char *const knob_key[KNOBS];
/* What the key has, as a number of its knob; 0 of those that are no one number. */
int64_t knob_value(const Config *cfg, Knob k);

/* Chunks of all stages, where a stage has several: more only shorten what is short by then. */
enum { SEARCH_CHUNKS = 32 };
enum { SEARCH_PARTS = 2 };   /* of a micro-batch */
enum { SEARCH_ORDERS = 24 }; /* of tp, cp, dp, pp */

enum { LAYERS_EVEN, LAYERS_BALANCED, LAYERS_GIVEN, LAYERS_WAYS };

/* In place of the layers that are made again, of a choice that does not fit. */
enum {
    REMADE_TOO_LARGE = -1,      /* by its pieces, whatever is made again */
    REMADE_PLAN_TOO_LARGE = -2, /* its plan, where its pieces fit: looked at no more */
    REMADE_REFUSED =
        -3 /* there is no plan, or balanced layers are even: looked at no more */
};

typedef struct Choice {
    int dp, tp, cp, ring, pp, chunks, schedule, micro, zero;
    int batch, parts, layers; /* LAYERS_EVEN, ... */
    RankOrder order;
    bool sequence_parallel, splits_vocab;
    bool no_overlap; /* parallel.overlap off: once a plan corrected that with overlap */
    const char *inside; /* entries of parallel.shard (inside.c): the same; NULL: none */
    bool apart;         /* what plans of choices like it had more does not count */
    bool remakes_all;   /* all layers are made again, and not as few as fit */
    bool by_most;       /* layers are balanced by the most that they may take (Pieces) */
    int number; /* in the order of search_each, those without overlap behind all others */
    int probe;  /* whose pieces it is made of */
    int before; /* number of the one before it with that probe; -1: none */
    int family; /* of those of the result, before they are sorted */
    int remade; /* most layers of a chunk that are made again, or REMADE_... */
    double first_bound;           /* before plans corrected its bytes */
    double bound, seconds, bytes; /* seconds 0: only bounded */
    double extra_bytes;           /* in bytes: what plans have more (Extra) */
} Choice;

/* Does the loss depend on which sequences share a micro-batch? Then batch_size stays. */
bool search_keeps_batches(const Config *cfg);

/* orders.c: the mesh of a stage. */
Mesh choice_mesh(const Choice *c);

/* A choice as the planner has it. */
typedef struct Verified {
    Choice c;
    char **flag; /* "--a.b=VALUE" */
    int nflags;
    char keys[HASH_HEX_BYTES]; /* hash of the flags */
    double seconds;
    int64_t bytes;      /* of the largest rank */
    int64_t sent_bytes; /* in a step, of the rank that sends most */
    const char *why;    /* it was refused; NULL: it was planned */
    bool fits;
} Verified;

/* The choices that split ranks alike over tp, cp and pp; 0: any, where all are refused. */
typedef struct Family {
    int tp, cp, pp;
    int64_t choices, fit;
    double seconds, bytes; /* of the fastest that fits; of the smallest where none does */
    double unfit_bytes; /* of the smallest that does not fit before anything is planned */
    Choice best;        /* the one of `seconds` */
    const char *unplanned; /* why one of it was refused when it was planned; NULL */
    const char *refused;   /* why there is none */
} Family;

typedef struct SearchOptions {
    ConfigFiles *files;
    int nflags; /* of the user: what they name stays */
    char **flag;
    Config *cfg;
    const Machine *machine;
    int ranks;
    double limit_bytes; /* of a rank; 0: none */
    int64_t sequences;  /* of a step */
    int tops;           /* choices that are planned */
    bool all_programs;  /* those too that cannot be of use: the same answer, later */
    const char *record; /* file for what was found out, read and written; NULL: none */
    /* Not 0: what was found so far is wanted. NULL: no, and nobody is at the terminal. */
    const volatile sig_atomic_t *stop;
} SearchOptions;

typedef struct SearchResult {
    Verified *top; /* the fastest that fit, planned; by seconds */
    int ntop;
    Choice *front; /* of seconds and bytes: none is better in both; by seconds */
    int nfront;
    Family *family; /* by seconds, those without a choice last */
    int nfamilies, family_cap;
    int64_t choices, simulated; /* that were bounded, gone through */
    int probes, planned;
    double room_bytes; /* that a plan may have; INFINITY */
    bool stopped;      /* by the user, before it was done */
    bool by_bytes;     /* the smallest were planned, as no other fitted */
    bool gave_up;      /* there were more to plan than it plans */
    const char *why;   /* all that were planned were refused, the first for this; NULL */
} SearchResult;

/* search_options.c: of a configuration as config_load takes it, on so many ranks (0: on as many
 * as its degrees have), with the defaults of stator search. */
SearchOptions search_options(Arena *mem, ConfigFiles *files, int nflags, char **flag,
                             int ranks);
/* Sequences of a step as the file has them, which a search leaves as they are; flags of keys that a
 * search chooses do not count. Replicas that it leaves open are as many as so many ranks have. */
int64_t search_sequences(Arena *mem, ConfigFiles *files, int nflags, char **flag,
                         int ranks);
/* Flags of a configuration that they were read into; what a search chooses is named by the key that
 * it chooses: micro_batch_num where another key for micro-batches is given. */
char **search_first_names(Arena *mem, const Config *cfg, int nflags, char **flag);
/* The memory of a rank, as it is written or as the machine has it. */
const char *search_limit(const SearchOptions *o);
/* Fails with EXIT_CONFIG, EXIT_MEMORY or EXIT_SIGNALLED where there is no answer, and says why. */
void search_check_found(const SearchOptions *s, const SearchResult *r);

/* Fails with EXIT_CONFIG for a model without a loop over layers. A result without top: no
 * choice fits; the families say why. */
SearchResult search_run(Arena *mem, const SearchOptions *o);

/* The fastest as its pieces say, without planning it; NULL: none fits. */
Choice *search_fastest(Arena *mem, const SearchOptions *o);

/* All choices one by one, with bounds; their seconds, through the schedule; their keys as
 * flags, with those of the user. */
typedef struct Search Search;
Search *search_open(Arena *mem, const SearchOptions *o);
void search_each(Search *s, void (*see)(void *ctx, const Choice *c), void *ctx);
double search_seconds(Search *s, Choice *c);
char **search_flags(Arena *mem, Search *s, const Choice *c, int *n);
/* Does one of n flags "--a.b=VALUE" have the key of `other`? */
bool search_has_flag(char *const *flag, int n, const char *other);

#endif
