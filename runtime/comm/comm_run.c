/* comm_run.c - runs a collective: chooses the algorithm and measures the time. */
#include "runtime/comm/comm_run.h"
#include "passes/cost/small_message.h"
#include "runtime/comm/comm_ring.h"
#include "runtime/comm/watch.h"

enum {
    MEMBER_BYTES = 128, /* staging of a member at least: one plan for all tiny payloads */
};

static const char *const kind_name[COMM_KINDS] = {
    [COMM_ALL_REDUCE] = "all_reduce",         [COMM_ALL_REDUCE_MAX] = "all_reduce max",
    [COMM_REDUCE_SCATTER] = "reduce_scatter", [COMM_ALL_GATHER] = "all_gather",
    [COMM_ALL_TO_ALL] = "all_to_all",         [COMM_RING_SHIFT] = "ring_shift"};

static CommStats stats[COMM_KINDS];

/* ---- small payloads: few messages rather than few bytes ---- */

/* What one member gives, or 0 where the ring does it. */
static int64_t small_bytes(CommKind kind, int members, const CommPart *part, int n) {
    const KindInfo *k = &comm_kind_info[kind];
    CommStream from = comm_stream_new(k->from, part, n, members, false);
    int64_t pieces = kind == COMM_REDUCE_SCATTER ? members : 1;
    double bytes = (double)from.total_bytes * (double)pieces;
    bool small = message_is_small(k->reduces, k->gathers, members, bytes);
    return small ? from.total_bytes * pieces : 0;
}

/* Member (me + j) % n's slot becomes slot j, given this one's in slot 0: in every round
 * twice as many. Returns the bytes sent. */
static int64_t share_slots(const CommGroup *g, char *slots, int64_t slot) {
    int64_t sent = 0;
    for (int have = 1; have < g->n; have *= 2) {
        int64_t bytes = MIN(have, g->n - have) * slot;
        link_receive(LINK_SENDS, comm_group_rank(g, (g->me + have) % g->n),
                     slots + have * slot, bytes);
        link_send(0, comm_group_rank(g, (g->me + g->n - have) % g->n), slots, bytes);
        link_wait(LINK_SENDS);
        link_wait(0);
        sent += bytes;
    }
    return sent;
}

/* Sums in the order of the members. */
static int64_t small_run(CommKind kind, const CommGroup *g, const CommPart *part, int n,
                         int64_t small, char *slots) {
    const KindInfo *k = &comm_kind_info[kind];
    CommStream from = comm_stream_new(k->from, part, n, g->n, false);
    CommStream to = comm_stream_new(k->to, part, n, g->n, false);
    int64_t piece = from.total_bytes, slot = align_up(small), skip = 0;
    for (int64_t at = 0, i = 0; at < small; at += piece, i++) {
        comm_stream_read(&from, (int)i, 0, piece, slots + at);
    }
    int64_t sent = share_slots(g, slots, slot);
    char *first = slots + (g->n - g->me) % g->n * slot;
    if (kind == COMM_REDUCE_SCATTER) skip = g->me * piece;
    for (int m = 0; m < g->n; m++) {
        char *theirs = slots + (m - g->me + g->n) % g->n * slot;
        if (!k->reduces)
            comm_stream_write(&to, m, 0, piece, theirs, false);
        else if (m)
            comm_stream_accumulate(&to, 0, 0, piece, k->max, first + skip, theirs + skip);
    }
    if (k->reduces) comm_stream_write(&to, 0, 0, piece, first + skip, false);
    return sent;
}

/* ---- all of them ---- */

static void copy_parts(CommKind kind, const CommPart *part, int n) {
    const KindInfo *k = &comm_kind_info[kind];
    for (int i = 0; i < n; i++) {
        CommStream one = comm_stream_new(k->from, &part[i], 1, 1, false);
        if (!one.total_bytes || part[i].to == part[i].from) continue;
        memmove(part[i].to, part[i].from, (size_t)one.total_bytes);
    }
}

int64_t comm_workspace_bytes(CommKind kind, int members, const CommPart *part, int n) {
    check(kind >= 0 && kind < COMM_KINDS && members > 0 && n >= 0);
    if (members == 1) return 0;
    int64_t small = small_bytes(kind, members, part, n);
    int64_t bytes =
        small ? members * align_up(small) : ring_workspace_bytes(kind, members, part, n);
    return MAX(bytes, (int64_t)members * MEMBER_BYTES);
}

void comm_run_now(CommKind kind, unsigned axes, const CommPart *part, int n,
                  void *workspace, const char *label) {
    double start = clock_seconds();
    CommGroup g = comm_group(axes);
    check(kind >= 0 && kind < COMM_KINDS && n >= 0);
    int64_t sent = 0;
    if (g.n == 1) {
        copy_parts(kind, part, n);
    } else {
        int64_t small = small_bytes(kind, g.n, part, n);
        watch_enter(
            kind_name[kind], label,
            comm_stream_new(comm_kind_info[kind].from, part, n, g.n, false).total_bytes);
        sent = small ? small_run(kind, &g, part, n, small, workspace)
                     : ring_run(kind, &g, part, n, workspace);
        watch_leave();
        watch_go_on();
    }
    stats[kind].calls++;
    stats[kind].sent_bytes += sent;
    stats[kind].seconds += clock_seconds() - start;
}

CommStats comm_stats(CommKind kind) {
    check(kind >= 0 && kind < COMM_KINDS);
    return stats[kind];
}
