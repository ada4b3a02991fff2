/* comm_reference.c - collectives by MPI's own, part by part: packed, called, unpacked. */
#include "runtime/comm/comm_reference.h"
#include "runtime/comm/comm_ring.h"

enum { ALIGN_BYTES = 64 };

int64_t reference_workspace_bytes(int members) {
    return (int64_t)members * 2 * ALIGN_BYTES;
}

typedef struct Reference {
    const Group *group;
    DType dtype;
    Stream from, to;
    char *space; /* for two pieces per member */
} Reference;

static void all_reduce(const Reference *r, int64_t at, int64_t bytes, LinkSum how) {
    char *place = stream_place(&r->to, 0, at, bytes);
    stream_read(&r->from, 0, at, bytes, r->space);
    link_all_reduce(r->group, r->space, bytes / dtype_bytes[r->dtype], r->dtype, how);
    memcpy(place, r->space, (size_t)bytes);
}

static void sum(const Reference *r, int64_t at, int64_t bytes) {
    all_reduce(r, at, bytes, LINK_SUM);
}

static void max(const Reference *r, int64_t at, int64_t bytes) {
    all_reduce(r, at, bytes, LINK_MAX);
}

static void read_pieces(const Reference *r, int64_t at, int64_t bytes) {
    for (int k = 0; k < r->group->n; k++) {
        stream_read(&r->from, k, at, bytes, r->space + k * bytes);
    }
}

static void write_pieces(const Reference *r, int64_t at, int64_t bytes, const char *got) {
    for (int k = 0; k < r->group->n; k++) {
        stream_write(&r->to, k, at, bytes, got + k * bytes);
    }
}

static void reduce_scatter(const Reference *r, int64_t at, int64_t bytes) {
    char *got = r->space + r->group->n * bytes;
    read_pieces(r, at, bytes);
    link_reduce_scatter(r->group, r->space, got, bytes / dtype_bytes[r->dtype], r->dtype);
    stream_write(&r->to, 0, at, bytes, got);
}

static void all_gather(const Reference *r, int64_t at, int64_t bytes) {
    char *got = r->space + bytes;
    stream_read(&r->from, 0, at, bytes, r->space);
    link_all_gather(r->group, r->space, got, bytes);
    write_pieces(r, at, bytes, got);
}

static void all_to_all(const Reference *r, int64_t at, int64_t bytes) {
    char *got = r->space + r->group->n * bytes;
    read_pieces(r, at, bytes);
    link_all_to_all(r->group, r->space, got, bytes);
    write_pieces(r, at, bytes, got);
}

static void ring_shift(const Reference *r, int64_t at, int64_t bytes) {
    const Group *g = r->group;
    link_receive(0, group_rank(g, (g->me + g->n - 1) % g->n),
                 stream_place(&r->to, 0, at, bytes), bytes);
    link_send(1, group_rank(g, (g->me + 1) % g->n), stream_place(&r->from, 0, at, bytes),
              bytes);
    link_wait(0);
    link_wait(1);
}

static void (*const run_of[COMM_KINDS])(const Reference *r, int64_t at, int64_t bytes) = {
    [COMM_ALL_REDUCE] = sum,
    [COMM_ALL_REDUCE_MAX] = max,
    [COMM_REDUCE_SCATTER] = reduce_scatter,
    [COMM_ALL_GATHER] = all_gather,
    [COMM_ALL_TO_ALL] = all_to_all,
    [COMM_RING_SHIFT] = ring_shift,
};

int64_t reference_run(CommKind kind, const Group *g, const CommPart *part, int n,
                      void *workspace, int64_t workspace_bytes) {
    const KindInfo *k = &comm_kind_info[kind];
    int64_t sent = 0;
    for (int i = 0; i < n; i++) {
        Reference r = {.group = g, .dtype = part[i].dtype, .space = workspace};
        r.from = stream_new(k->from, &part[i], 1, g->n, false);
        r.to = stream_new(k->to, &part[i], 1, g->n, false);
        int64_t most = MIN(workspace_bytes / (2 * g->n), LINK_MAX_BYTES);
        most = most / ALIGN_BYTES * ALIGN_BYTES;
        check(most > 0);
        int64_t total = r.from.total_bytes;
        for (int64_t at = 0; at < total; at += most) {
            run_of[kind](&r, at, MIN(most, total - at));
        }
        int64_t rounds = k->reduces + k->gathers;
        sent += k->sliced ? rounds * total / g->n * (g->n - 1)
                          : (rounds || k->exchanges ? g->n - 1 : 1) * total;
    }
    return sent;
}
