/* comm_cells.h - messages between the ranks of a host, through memory that they share: a sender
 * puts a message into a cell of its own, and its receiver reads it there. */
#ifndef STATOR_COMM_CELLS_H
#define STATOR_COMM_CELLS_H
#include "base/base.h"

enum {
    CELL_BYTES = 256 << 10, /* of a message, at most */
    CELL_SLOTS = 4,         /* of a sender; each has a cell to fill while one is read */
};

/* Bytes of the shared memory, zeroed at first, and which of them a rank is to reserve. */
size_t cells_bytes(int local_size);
void cells_reserved(int local_rank, int local_size, size_t *offset, size_t *bytes);
/* All ranks of the host have it, or none (NULL). */
void cells_start(void *shared, int local_rank, int local_size);
/* Only so many neighbours among the ranks of the host use cells with each other; 0: all do. */
void cells_among(int neighbours);
/* Does a message to or from this rank of the host go through cells? */
bool cells_take(int peer, int64_t bytes);

/* A message of a slot: it may be written to cells_room once cells_free says so, and goes with
 * cells_send. */
bool cells_free(int slot);
int cells_reader(int slot); /* the peer that has yet to read, while it is not free */
char *cells_room(int slot);
void cells_send(int slot, int peer, int64_t bytes);
/* The messages of a peer are numbered: cells_expect gives the next one its number. It is NULL until
 * it is there, and may be read until cells_release. */
int64_t cells_expect(int peer);
const char *cells_arrived(int peer, int64_t number, int64_t *bytes);
void cells_release(int peer, int64_t number);

#endif
