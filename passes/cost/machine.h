/* machine.h - what the ranks of a machine do in a second. Plain data: read from a file
 * (frontend/config/machine_file.h), or made by `stator calibrate`. docs/machines.md has its
 * keys and where the figures of those that come with the program are from.
 *
 * Rates are those of one rank while all ranks of its host work. Two kinds of data go
 * together: formulas of a few constants, enough for a machine of which only a data sheet is
 * there, and curves that were measured, which are taken where they exist. */
#ifndef STATOR_MACHINE_H
#define STATOR_MACHINE_H
#include "ir/ir.h"
#include "passes/passes.h"

/* y over x, both above 0, x ascending. Between two points the line through the logarithms;
 * before the first and behind the last point y of that point, or, where `grows`, y in
 * proportion to x. */
typedef struct Curve {
    int n;
    double *x, *y;
    bool grows;
} Curve;
double curve_at(const Curve *c, double x);

/* How the factors of a product lie in memory: first rows x summed or across, second summed x
 * columns or across. */
typedef enum ProductForm {
    FORM_NN,
    FORM_NT,
    FORM_TN,
    FORM_TT,
    PRODUCT_FORMS
} ProductForm;
extern const char *const product_form_name[PRODUCT_FORMS];

/* Flops a second of products over a grid: rate[(i * n + j) * n + k] has size[i] rows, size[j]
 * columns and sums over size[k]. */
typedef struct ProductTable {
    DType type; /* of the factors */
    ProductForm form;
    int n;
    double *size, *rate;
} ProductTable;

/* Rate of an op that has products inside, as attention: flops a second over flops for each
 * number of its first operand, which grow with the sequence. */
typedef struct InnerTable {
    int op; /* OpKind */
    DType type;
    int64_t width; /* last dimension of the first operand: size of a head */
    Curve rate;
} InnerTable;

/* Numbers a second of an elementwise op or a reduction. */
typedef struct ElementRate {
    int op; /* OpKind */
    double rate;
} ElementRate;

/* A rank when so many are at work on a host with so many threads each. */
typedef struct MachineRank {
    int ranks, threads;
    double flops[3]; /* peak of products of f32, bf16, f16 numbers; 0: as of f32 */
    ProductTable *product;
    int nproducts;
    InnerTable *inner;
    int ninner;
    ElementRate *element;
    int nelements;
    /* Bytes a second over the bytes that an op moves: of a sum of two tensors into a third
     * place; into that of one of them; of an op that reads two and writes next to nothing (no
     * points: a byte costs what it does in the first). */
    Curve memory, in_place, reads;
    /* Caches that other guests of the host use as well lose what they hold: after so many seconds all
     * but a part in e of what is not touched. 0: they keep it. */
    double keeps_seconds;
    /* How far a small step was from its prediction when it was measured: predicted over
     * measured seconds, less 1; of f32, of bf16. 0: not measured. For people only. */
    double residual[2];
} MachineRank;

/* What lies between two ranks: within a host, or between hosts. */
typedef enum LinkLevel { LINK_HOST, LINK_NETWORK, LINK_LEVELS } LinkLevel;
extern const char *const link_level_name[LINK_LEVELS];

typedef struct Link {
    double start_seconds;    /* of a message */
    double bytes_per_second; /* of a rank, or (network) of all ranks of a host together */
    double rank_bytes_per_second; /* network: what a rank gets of that at most; 0: all */
} Link;

/* Seconds of one collective as measured, over the bytes that a rank sends with ring
 * algorithms (message_sent_bytes). */
typedef struct CollectiveCurve {
    int op;    /* OpKind */
    int group; /* members */
    int ranks; /* of all groups together, at work at once on a host */
    LinkLevel level;
    Curve seconds;
} CollectiveCurve;

typedef struct Machine {
    const char *name, *made_on; /* libraries and date, as text */
    const char *host;           /* that it was measured on; "": none, or any */
    int cores;                  /* of a host */
    int host_ranks;      /* ranks that a host has at most; 0: as many as there are */
    double memory_bytes; /* of a rank, 0: not known */
    MachineRank *rank;
    int nranks;
    /* Constants of rates where no table says them. A product reaches
     * reached x m/(m + half) x n/(n + half) x k/(k + half) of the peak. */
    double reached, half, inner_reached;
    /* One with rows, columns or summed that are no multiple of `aligned` reaches
     * `unaligned` of that; 0: all sizes are alike. */
    int aligned;
    double unaligned;
    double op_start_seconds; /* of every op */
    /* Ops are put into a queue, which takes the processor so long for each, and done behind
     * it: those of a function take as long as they do, or as putting them there. 0: there is
     * no queue. */
    double issue_seconds;
    /* An op with products inside moves so many bytes for each product and each number of the
     * matrix between them; 0: that matrix is never in memory. */
    double inner_bytes;
    double sum_bytes;    /* of a number in sums over ranks; 0: as the program has them */
    double element_rate; /* numbers a second of an elementwise op without a row; 0: any */
    Link link[LINK_LEVELS];
    CollectiveCurve *collective;
    int ncollectives;
    /* From the arrival of a message to when a rank sees it that waits while others compute on
     * its core. */
    double notice_seconds;
    double
        hidden; /* share of a late message that a rank really computes beside, 0 to 1 */
} Machine;

/* What passes reckon with where nothing better is said: a core of 25 thousand million
 * multiply-adds a second on a link of 2 GB/s that takes 20 us for a message. */
extern const Machine machine_plain;
/* What the passes reckon with under these options. */
const Machine *machine_of_passes(const PassOptions *o);

/* Of so many ranks, those that are on one host. */
int machine_host_ranks(const Machine *m, int ranks);
/* Ranks with so many threads that a host has cores for; INT_MAX: it is not known. */
int machine_ranks_with_cores(const Machine *m, int threads);
/* The data for so many ranks on a host with so many threads: measured ones, or the closest
 * that there are. */
const MachineRank *machine_rank(const Machine *m, int ranks, int threads);
/* The data for a run of so many ranks, of all stages: as many of a host as have cores of their
 * own are at work. Who else shares the cores is not in it. */
const MachineRank *machine_rank_of(const Machine *m, int ranks, int threads);

/* How many times as long a rank computes as these data say that has so many threads: fewer than
 * they are of, it gets its part of their rates. */
double machine_rank_stretch(const Machine *m, const MachineRank *r, int threads);

/* `batch` times rows x columns, summed over `summed`. */
typedef struct ProductSize {
    double batch, rows, columns, summed;
} ProductSize;
/* Seconds of a product. */
double machine_product_seconds(const Machine *m, const MachineRank *r, DType type,
                               ProductForm form, const ProductSize *size);
/* Flops a second that products of such numbers reach at most. */
double machine_peak(const MachineRank *r, DType type);
/* Bytes a second of an op that moves so many, none of which it overwrites. */
double machine_memory_rate(const MachineRank *r, double bytes);
/* From one use of a byte to the next: how many others are touched, and how long it takes. */
typedef struct Since {
    double bytes, seconds;
} Since;
/* Bytes that an op moves. */
typedef struct Moved {
    double read, written;
    double overwritten; /* of these: where an operand was */
    double near;        /* of those read: touched so short a time before */
    Since since_near, since_read, since_written;
} Moved;
/* Seconds in which they move; those that caches have lost come from where the last point of a curve
 * has them from. What a byte costs that is read, written, or written where one was read for the op
 * anyway, follows from the three ops that are measured: reads alone; two bytes read for one written;
 * two for one overwritten. One that is read costs no more than one that is written elsewhere, since a
 * cache reads what it does not hold before it is written; where reads alone are not measured, as
 * much. */
double machine_memory_seconds(const MachineRank *r, const Moved *m);

#endif
