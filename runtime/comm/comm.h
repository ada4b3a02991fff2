/* comm.h - the processes of a run and the messages between them. Only comm_mpi.c uses
 * MPI. Ranks are the points of a mesh (ir/type.h), once for each stage. A group is made of the
 * ranks that differ in a set of axes only, in the order of their coordinates, axis 0 first;
 * group member k is the k-th of them. */
#ifndef STATOR_COMM_H
#define STATOR_COMM_H
#include "base/base.h"
#include "base/dtype.h"

enum { COMM_MAX_AXES = 8, COMM_MESSAGE_BYTES = 1 << 30 };

/* ---- the processes ---- */

/* Joins the processes that mpirun or srun started; a single process runs alone and never
 * initialises MPI. Call once, before threads are made; from then on a failure of one rank
 * ends all of them (exit_hook). Fails with EXIT_CONFIG, naming the remedy, when the
 * launcher uses another PMI than this MPI. */
void comm_start(void);
int comm_rank(void), comm_size(void);
/* Name and version of the MPI library that this program has; before comm_start too. */
const char *comm_library(void);
/* Until it is told otherwise this rank is a run of one: what it calls meets no other rank, while
 * those wait for it in a call of their own. */
void comm_alone(bool alone);
/* Number of the processes of this host, and the host's name. */
int comm_local_size(void);
int comm_cores(void); /* that the processes of this host may use together */
const char *comm_host(void);
/* Name of the host of any rank. */
const char *comm_host_of(int rank);
/* Orderly end on all ranks; nothing when alone. */
void comm_end(void);
/* Ends all ranks at once with this exit code. */
_Noreturn void comm_abort(int code);

/* Lays the mesh over the processes, once for each stage of a pipeline: from one coordinate of
 * axis a to the next are stride[a] ranks, from one stage to the next stage_stride; all together
 * are comm_size(). comm_mesh: neighbouring ranks differ in the last axis, stage s has those from
 * s times the product of the sizes on. Each rank by itself; may be called again. */
void comm_mesh(int stages, int naxes, const int *size);
void comm_mesh_ordered(int stages, int stage_stride, int naxes, const int *size,
                       const int *stride);
int comm_coord(int axis);
/* This rank's number where ranks count as comm_mesh has them, which layouts know ranks by
 * (ir/layout.h), and the rank of such a number. Rank 0 has number 0. Before the mesh is known a
 * rank is its own number. */
int comm_place(void), comm_rank_at(int place);
int comm_stage(void); /* of this rank; 0 before comm_mesh */
/* The rank of a stage with this rank's coordinates. */
int comm_rank_of_stage(int stage);
/* The rank of a stage whose coordinates are all 0, and that of this rank's stage; how many ranks
 * a stage has. */
int comm_first_of_stage(int stage), comm_stage_first(void), comm_stage_ranks(void);

/* ---- for control: all ranks, small data ---- */

/* Waits until all ranks of the run are there, watched as it is in collectives; nothing for one
 * rank. */
void comm_barrier(void);
void comm_broadcast(void *data, size_t bytes, int root); /* any size */
int64_t comm_max_i64(int64_t v), comm_min_i64(int64_t v);
/* Rank 0's text on all ranks, in mem. */
char *comm_broadcast_text(Arena *mem, const char *text);
/* What the first rank of this rank's stage has, in mem, and its size; a text of it. */
void *comm_stage_bytes(Arena *mem, const void *data, size_t *bytes);
char *comm_stage_text(Arena *mem, const char *text);
/* Every rank's `bytes` bytes, one after the other, in mem (on all ranks). */
void *comm_gather(Arena *mem, const void *mine, size_t bytes);
/* From one rank to another, of any size that both know; return when the memory may be
 * used again. Messages between two ranks arrive in the order they were sent. */
void comm_send_bytes(int to, const void *data, size_t bytes);
void comm_receive_bytes(int from, void *data, size_t bytes);

/* ---- collectives of compiled programs ---- */

/* One operand of a collective and its result: the longer one is seen as
 * [before, n * each, after] around the dimension that is cut or joined over n members.
 * Elements are f32, bf16, f16 or i32 where they are reduced, of any type where they only move.
 * all_reduce and ring_shift: [before = 1, each = 1, after = elements]. */
typedef struct CommPart {
    const void *from;
    void *to; /* all_reduce, and a group of one: may be `from` */
    int64_t before, each, after;
    int64_t join_before, join_each, join_after; /* all_to_all: the joined side */
    DType dtype;
} CommPart;
typedef enum CommKind {
    COMM_ALL_REDUCE, /* to = sum of all members' from */
    COMM_ALL_REDUCE_MAX,
    COMM_REDUCE_SCATTER, /* to[before, each, after] = sum of members' from[:, mine, :] */
    COMM_ALL_GATHER,     /* to[:, member k, :] = member k's from[before, each, after] */
    COMM_ALL_TO_ALL,     /* from [before, n*each, after]: piece k goes to member k; what
                            member k sends becomes piece k of
                            to [join_before, n*join_each, join_after] */
    COMM_RING_SHIFT,     /* to = from of member k-1 (mod n) */
    COMM_KINDS
} CommKind;

/* Bytes of staging memory that a collective needs (from the memory plan, so that nothing
 * is allocated inside a step): a few MiB at most, whatever the payload, except that tiny
 * payloads take their size times the members. part[].from and .to are not read. */
int64_t comm_workspace_bytes(CommKind kind, int members, const CommPart *part, int n);
/* Runs one collective over the n parts as one message stream, in the group of `axes` (bit
 * a = axis a). Every member calls it, with parts of the same shapes; two groups that
 * share two ranks are called in the same order on both. The order of every sum is fixed
 * by the members' numbers: same bits each run, and for all_reduce the same bits on every
 * member. A group of one copies. Blocks; the calling thread does the work. */
void comm_run(CommKind kind, unsigned axes, const CommPart *part, int n, void *workspace);

/* Where the next collective is in a program, for reports on ranks that wait in it; the
 * text must stay until it is done. */
void comm_label(const char *label);

/* Asynchronous collectives: comm_begin returns a ticket, comm_wait returns when that one
 * is done (0: it is already). Until then its parts, workspace and memory are in use.
 * Collectives run in the order of these calls; comm_run is one of them and waits for all
 * that were begun. Only the thread that called comm_start may call these, and nothing
 * else of comm.h while a collective is in flight. */
typedef enum CommProgress {
    COMM_AT_ONCE, /* by comm_begin, before it returns */
    COMM_THREAD,  /* by a thread of its own */
} CommProgress;
/* Sets who runs them from now on and returns it: COMM_AT_ONCE with one rank, or where MPI
 * does not allow another thread. */
CommProgress comm_progress(CommProgress how);
int64_t comm_begin(CommKind kind, unsigned axes, const CommPart *part, int n,
                   void *workspace);
void comm_wait(int64_t ticket);
/* Who should run them, by measurements (docs/communication.md). Ranks may differ. */
CommProgress comm_progress_that_pays(void);

/* Messages between the ranks of two stages that have the same coordinates, told apart by
 * their number; several of one number arrive in the order they were sent. comm_send returns
 * at once with a ticket of comm_sent, which returns when the data may be written again;
 * comm_receive when they are there. Calls keep the order of comm_begin and comm_run, so a
 * message does not overtake a collective. */
int64_t comm_send(int stage, int64_t message, const void *data, int64_t bytes);
void comm_sent(int64_t ticket);
void comm_receive(int stage, int64_t message, void *to, int64_t bytes);

/* Seconds spent inside comm_run since the start and bytes sent by this rank, for benchmarks. */
typedef struct CommStats {
    double seconds;
    int64_t calls, sent_bytes;
} CommStats;
CommStats comm_stats(CommKind kind);

/* Seconds that compiled programs spent in collectives, messages and waits for them since the
 * start (kernels_comm.c), on the thread that computes; what runs beside it does not count. */
double comm_program_seconds(void);

#endif
