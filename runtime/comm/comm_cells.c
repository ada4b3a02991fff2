/* comm_cells.c - the memory that the ranks of a host share: for each pair of ranks a queue of
 * entries, and for each rank cells. Message m of a pair is told of in entry m % ENTRIES, whose
 * state is 2 m + 1 when it is there and 2 m + 2 when it was read: only the sender makes it odd,
 * only the receiver even. An entry has a cache line for itself. */
#include "runtime/comm/comm_cells.h"
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>

enum {
    LINE_BYTES = 64,
    PAGE_BYTES = 4096,
    CELLS = 2 * CELL_SLOTS,
    ENTRIES = 4 * CELL_SLOTS, /* lanes take turns, so none is this far ahead of another */
};

typedef struct Entry {
    alignas(LINE_BYTES) atomic_llong state;
    int64_t bytes;
    int cell;
} Entry;

/* What a slot has sent last from each of its cells; a message number of -1: nothing. */
typedef struct Sent {
    int peer;
    int64_t number;
} Sent;

static struct {
    char *shared;
    int me, n, neighbours;
    int64_t *sends, *receives; /* by peer: messages so far */
    Sent sent[CELLS];
    int turn[CELL_SLOTS];
} c;

static size_t queues_bytes(int n) {
    size_t pairs = array_bytes((size_t)n, (size_t)n);
    return (size_t)round_up((int64_t)array_bytes(pairs, ENTRIES * sizeof(Entry)),
                            PAGE_BYTES);
}

size_t cells_bytes(int n) {
    return queues_bytes(n) + array_bytes((size_t)n, (size_t)CELLS * CELL_BYTES);
}

static size_t cells_of_rank(int rank, int n) {
    return queues_bytes(n) + (size_t)rank * CELLS * CELL_BYTES;
}

/* The first one the queues too. */
void cells_reserved(int rank, int n, size_t *offset, size_t *bytes) {
    *offset = rank ? cells_of_rank(rank, n) : 0;
    *bytes = cells_of_rank(rank + 1, n) - *offset;
}

void cells_start(void *shared, int me, int n) {
    c.shared = shared;
    c.me = me;
    c.n = n;
    if (!shared) return;
    c.sends = calloc((size_t)n, sizeof *c.sends);
    c.receives = calloc((size_t)n, sizeof *c.receives);
    if (!c.sends || !c.receives) die("no memory for messages of %d ranks", n);
    for (int i = 0; i < CELLS; i++) c.sent[i].number = -1;
}

void cells_among(int neighbours) {
    c.neighbours = neighbours;
}

bool cells_take(int peer, int64_t bytes) {
    bool near = !c.neighbours || peer / c.neighbours == c.me / c.neighbours;
    return c.shared && peer >= 0 && near && bytes <= CELL_BYTES;
}

static Entry *entry_of(int from, int to, int64_t number) {
    Entry *queue =
        (Entry *)(void *)c.shared + ((size_t)from * (size_t)c.n + (size_t)to) * ENTRIES;
    return &queue[number % ENTRIES];
}

static char *cell_at(int rank, int cell) {
    return c.shared + cells_of_rank(rank, c.n) + (size_t)cell * CELL_BYTES;
}

static int cell_of(int slot) {
    check(slot >= 0 && slot < CELL_SLOTS);
    return 2 * slot + c.turn[slot];
}

static bool was_read(int peer, int64_t number) {
    if (number < 0) return true;
    const Entry *e = entry_of(c.me, peer, number);
    return atomic_load_explicit(&e->state, memory_order_acquire) >= 2 * number + 2;
}

bool cells_free(int slot) {
    Sent s = c.sent[cell_of(slot)];
    return was_read(s.peer, s.number);
}

int cells_reader(int slot) {
    return c.sent[cell_of(slot)].peer;
}

char *cells_room(int slot) {
    return cell_at(c.me, cell_of(slot));
}

void cells_send(int slot, int peer, int64_t bytes) {
    int cell = cell_of(slot);
    int64_t number = c.sends[peer]++;
    Entry *e = entry_of(c.me, peer, number);
    check(was_read(peer, number - ENTRIES));
    e->cell = cell;
    e->bytes = bytes;
    c.sent[cell] = (Sent){peer, number};
    c.turn[slot] ^= 1;
    atomic_store_explicit(&e->state, 2 * number + 1, memory_order_release);
}

int64_t cells_expect(int peer) {
    return c.receives[peer]++;
}

const char *cells_arrived(int peer, int64_t number, int64_t *bytes) {
    const Entry *e = entry_of(peer, c.me, number);
    if (atomic_load_explicit(&e->state, memory_order_acquire) != 2 * number + 1)
        return NULL;
    check(e->cell >= 0 && e->cell < CELLS);
    *bytes = e->bytes;
    return cell_at(peer, e->cell);
}

void cells_release(int peer, int64_t number) {
    Entry *e = entry_of(peer, c.me, number);
    atomic_store_explicit(&e->state, 2 * number + 2, memory_order_release);
}
