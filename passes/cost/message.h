/* message.h - bytes and seconds of collectives and messages on a machine. */
#ifndef STATOR_MESSAGE_H
#define STATOR_MESSAGE_H
#include "passes/cost/machine.h"

/* Ranks that communicate: where they are. */
typedef struct GroupShape {
    int members;
    int on_host; /* of them on one host, at most */
    int host_ranks; /* on a host, of all groups together; of two stages on hosts of their own: those
                     * that send to the other one */
    int at_work; /* of these, that collectives are done by at once */
    LinkLevel level;
} GroupShape;

/* The groups of `axes` of the meshes of all stages, on this machine: all are at work at once, so
 * this is the shape of the slowest, which has the fewest neighbours on a host. */
GroupShape group_shape(const Machine *m, const Mesh *mesh, Axes axes, int stages);
/* By set of axes of a stage's mesh: where the members of a group are. */
GroupShape *mesh_shapes(Arena *mem, const Machine *m, const Mesh *mesh, int stages,
                        int threads);
/* The pairs of ranks of equal coordinates of two stages: each is on one host, or all count as of
 * two, and as many share a host's network as its fullest host has. */
GroupShape stages_shape(const Machine *m, const Mesh *mesh, int stages, int from, int to);

/* Bytes a second of a rank on the slowest part of a ring, and where each sends to each. */
double ring_rate(const Machine *m, const GroupShape *g);
double pairs_rate(const Machine *m, const GroupShape *g);

/* What a machine has its collectives of this kind send for numbers of that type, by the bytes that
 * they are: those that add up floats may sum in another width. */
double message_width(const Machine *m, int kind, DType type);
/* Bytes that a rank sends in a group of n ranks for one operand of `bytes` bytes, with
 * the ring algorithms: all_reduce 2 (n-1)/n B, reduce_scatter and all_to_all (n-1)/n B,
 * all_gather (n-1) B, ring_shift B. Rounded up; INT64_MAX at most. */
int64_t message_sent_bytes(int kind, int64_t bytes, int n);
/* The same of bytes that may be parts of some, not rounded. */
double message_sent(int kind, double bytes, double n);
/* Does a collective (OpKind) add up what ranks send? */
bool message_sums(int kind);
/* How often what it sends goes round the ring: twice for all_reduce, which adds up and then
 * gathers, once for others. */
int message_turns(int kind);

/* Does each member send to its neighbour alone, or in rounds to all others? */
bool message_in_ring(int kind);

/* Seconds of a collective (OpKind) for which a rank sends so many bytes, all groups at once:
 * as measured, or what the starts and the bytes take on the slowest link of a ring, or where each
 * sends to each, on the network of a host. Small ones take log2 n rounds, as runtime/comm/comm_run.c sends them. */
double collective_seconds(const Machine *m, const GroupShape *g, int kind,
                          double sent_bytes);
/* Seconds from the begin of a message to the end of its receive. */
double message_seconds(const Machine *m, const GroupShape *g, double bytes);

/* Of an op that only moves memory, or a further step: so that of two ways that take equally long
 * the one of fewer steps is the shorter. */
extern const double next_to_nothing_seconds;
#endif
