/* comm_link.h - between the files comm*.c: the processes, groups of them, and messages
 * between two ranks. */
#ifndef STATOR_COMM_LINK_H
#define STATOR_COMM_LINK_H
#include "runtime/comm/comm.h"
#include "runtime/comm/comm_cells.h"

enum { COMM_HOST_BYTES = 64 };
typedef struct CommWorld {
    int rank, size;
    int local_rank, local_size;
    int local_cores; /* that the processes of this host may use together */
    char host[256];
    char (*hosts)[COMM_HOST_BYTES]; /* of all ranks, cut off; NULL: alone */
    int *local_of; /* of all ranks: their number on this host, -1: not here */
} CommWorld;
extern CommWorld comm_world; /* filled by comm_start */

/* The ranks that differ from this one in some axes only. */
typedef struct CommGroup {
    int n, me; /* members; this rank's number among them */
    int naxes; /* of more than one coordinate, outermost first */
    int size[COMM_MAX_AXES], stride[COMM_MAX_AXES];
    int first; /* rank of member 0 */
} CommGroup;
CommGroup comm_group(unsigned axes);
int comm_group_rank(const CommGroup *g, int member);

/* Messages of at most LINK_MAX_BYTES, several at once, each in a slot of the caller's choice that
 * must be free: the first LINK_SENDS send, the others receive. link_wait frees it (and returns at
 * once when it is free). Between two ranks messages arrive in the order of their sends, and meet
 * receives in the order in which these were posted. A send may wait for its receive: post receives
 * first. Empty messages are not sent. */
enum { LINK_SENDS = CELL_SLOTS, LINK_SLOTS = 3 * LINK_SENDS, LINK_MAX_BYTES = 1 << 30 };
void link_receive(int slot, int rank, void *to, int64_t bytes);
void link_send(int slot, int rank, const void *from, int64_t bytes);
void link_wait(int slot);
/* Memory where such a message, of LINK_ROOM_BYTES at most, may be put, to be sent from there
 * without a copy; NULL: anywhere. */
enum { LINK_ROOM_BYTES = CELL_BYTES };
char *link_room(int slot, int rank, int64_t bytes);
/* May what a slot sends be written again? link_wait waits for that. */
bool link_is_sent(int slot);
/* Waits for what a slot receives, and says where it is, to be read until link_release: in `to`, or
 * where a rank of this host has put it, without a copy (then `to` is not written). */
const char *link_arrived(int slot);
void link_release(int slot);

/* The same by MPI; done: the bytes that were sent, or came. */
void mpi_receive(int slot, int rank, void *to, int64_t bytes);
void mpi_send(int slot, int rank, const void *from, int64_t bytes);
bool mpi_done(int slot, int64_t *bytes);
/* Lets MPI go on with messages that are not done, for who waits for something else. */
void mpi_advance(void);

/* Messages of compiled programs between stages: those of one number arrive in their order,
 * others in any. A post is a slot of its own kind, in [0, posts) after link_posts(posts),
 * which may only grow and only while the other thread is idle. link_unpost waits until its data
 * may be written again. */
void link_posts(int posts);
void link_post(int post, int rank, int64_t message, const void *data, int64_t bytes);
void link_unpost(int post);
void link_take(int rank, int64_t message, void *to, int64_t bytes);
/* May another thread than the one of comm_start send and receive, one at a time? */
bool link_allows_threads(void);

/* What comm_end does once nothing is in flight any more. */
void link_end(void);

#endif
