/* comm_link.c - messages of collectives between two ranks: of this host through memory that both
 * have, else by MPI. Both ranks choose by the size and the place of the other, so each way has its
 * messages in order. */
#include "runtime/comm/comm_link.h"
#include "runtime/comm/comm_wait.h"
#include "runtime/comm/watch.h"

static struct Slot {
    bool busy;
    int rank;
    int peer; /* of the host; -1: MPI has it */
    int64_t bytes, number;
    char *to;
} slots[LINK_SLOTS];

static bool sends(int slot) {
    return slot < LINK_SENDS;
}

/* NULL: there is nothing to send. */
static struct Slot *take_slot(int slot, int rank, int64_t bytes) {
    struct Slot *s = &slots[slot];
    int peer = comm_world.local_of[rank];
    check(!s->busy && bytes >= 0 && bytes <= LINK_MAX_BYTES);
    *s = (struct Slot){.busy = bytes > 0, .rank = rank, .bytes = bytes};
    s->peer = cells_take(peer, bytes) ? peer : -1;
    return bytes ? s : NULL;
}

void link_receive(int slot, int rank, void *to, int64_t bytes) {
    check(slot >= LINK_SENDS && slot < LINK_SLOTS);
    struct Slot *s = take_slot(slot, rank, bytes);
    if (!s) return;
    s->to = to;
    if (s->peer < 0)
        mpi_receive(slot, rank, to, bytes);
    else
        s->number = cells_expect(s->peer);
}

static int rank_on_host(int peer) {
    int rank = 0;
    while (comm_world.local_of[rank] != peer) rank++;
    return rank;
}

static void wait_for_cell(int slot) {
    if (cells_free(slot)) return;
    double start = clock_seconds();
    int rank = rank_on_host(cells_reader(slot));
    while (!cells_free(slot)) {
        watch_wait(WATCH_FOR_RANK, rank);
        mpi_advance();
        wait_for_message(start);
    }
    watch_go_on();
}

char *link_room(int slot, int rank, int64_t bytes) {
    if (!bytes || !cells_take(comm_world.local_of[rank], bytes)) return NULL;
    wait_for_cell(slot);
    return cells_room(slot);
}

void link_send(int slot, int rank, const void *from, int64_t bytes) {
    check(slot >= 0 && sends(slot));
    struct Slot *s = take_slot(slot, rank, bytes);
    if (!s) return;
    if (s->peer < 0) {
        mpi_send(slot, rank, from, bytes);
        return;
    }
    char *room = link_room(slot, rank, bytes);
    if (room != from) memcpy(room, from, (size_t)bytes);
    cells_send(slot, s->peer, bytes);
}

static const char *arrived(int slot, int64_t *bytes) {
    struct Slot *s = &slots[slot];
    if (s->peer >= 0) return cells_arrived(s->peer, s->number, bytes);
    return mpi_done(slot, bytes) ? s->to : NULL;
}

const char *link_arrived(int slot) {
    struct Slot *s = &slots[slot];
    const char *at;
    int64_t got;
    check(slot >= LINK_SENDS && slot < LINK_SLOTS);
    if (!s->busy) return s->to;
    double start = clock_seconds();
    while (!(at = arrived(slot, &got))) {
        watch_wait(WATCH_FOR_RANK, s->rank);
        if (s->peer >= 0) mpi_advance();
        wait_for_message(start);
    }
    watch_go_on();
    if (got != s->bytes)
        die("rank %d sent %lld bytes to rank %d in a collective, where %lld were "
            "expected",
            s->rank, (long long)got, comm_world.rank, (long long)s->bytes);
    return at;
}

void link_release(int slot) {
    struct Slot *s = &slots[slot];
    check(slot >= LINK_SENDS && slot < LINK_SLOTS);
    if (s->busy && s->peer >= 0) cells_release(s->peer, s->number);
    s->busy = false;
}

bool link_is_sent(int slot) {
    struct Slot *s = &slots[slot];
    int64_t bytes;
    check(slot >= 0 && sends(slot));
    if (s->busy && s->peer < 0 && !mpi_done(slot, &bytes)) return false;
    s->busy = false; /* a message in a cell is out of the caller's hands */
    return true;
}

static void wait_sent(int slot) {
    double start = clock_seconds();
    while (!link_is_sent(slot)) {
        watch_wait(WATCH_FOR_RANK, slots[slot].rank);
        wait_for_message(start);
    }
    watch_go_on();
}

void link_wait(int slot) {
    struct Slot *s = &slots[slot];
    check(slot >= 0 && slot < LINK_SLOTS);
    if (!s->busy) return;
    if (sends(slot)) {
        wait_sent(slot);
        return;
    }
    const char *at = link_arrived(slot);
    if (at != s->to) memcpy(s->to, at, (size_t)s->bytes);
    link_release(slot);
}
