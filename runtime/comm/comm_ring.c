/* comm_ring.c - reduce-scatter, all-gather, their sequence all-reduce, all-to-all and
 * ring shift. A payload is cut into segments; each goes through the steps of its
 * collective in a lane of its own, and the lanes take turns, so that one's message is in
 * flight while another's sum is computed. All members post their messages in the same
 * order, so one tag is enough. */
#include "runtime/comm/comm_ring.h"

enum {
    LANES = LINK_SENDS,
    SEGMENT_BYTES = LINK_ROOM_BYTES, /* at most */
    SEGMENT_LEAST = 16 << 10,        /* unless the piece is smaller */
    KEPT_BYTES = 16 << 20,           /* caches keep no larger result until it is read */
};

const KindInfo comm_kind_info[COMM_KINDS] = {
    [COMM_ALL_REDUCE] = {SIDE_FROM, SIDE_TO, .sliced = true, .reduces = true,
                         .gathers = true},
    [COMM_ALL_REDUCE_MAX] = {SIDE_FROM, SIDE_TO, .sliced = true, .reduces = true,
                             .max = true, .gathers = true},
    [COMM_REDUCE_SCATTER] = {SIDE_FROM_CUT, SIDE_TO, .reduces = true},
    [COMM_ALL_GATHER] = {SIDE_FROM, SIDE_TO_CUT, .gathers = true},
    [COMM_ALL_TO_ALL] = {SIDE_FROM_CUT, SIDE_TO_JOIN, .exchanges = true},
    [COMM_RING_SHIFT] = {SIDE_FROM, SIDE_TO},
};

/* ---- how the payload is cut ---- */

typedef struct Cut {
    int64_t segment_bytes, items; /* an item goes through `steps` steps */
    int steps, lanes;
} Cut;

static Cut cut_of(const KindInfo *k, const CommStream *from) {
    int n = from->members;
    int64_t piece = from->slice_bytes ? from->slice_bytes : from->total_bytes;
    int64_t segment = MAX(SEGMENT_LEAST, MIN(piece / LANES, SEGMENT_BYTES));
    Cut c = {.segment_bytes = align_up(MIN(segment, MAX(piece, 1)))};
    int rounds = k->reduces + k->gathers;
    c.steps = k->exchanges || !rounds ? 1 : rounds * (n - 1);
    c.items = from->total_bytes ? (piece + c.segment_bytes - 1) / c.segment_bytes : 0;
    if (k->exchanges) c.items *= n - 1;
    c.lanes = (int)MIN(c.items, LANES);
    return c;
}

int64_t ring_workspace_bytes(CommKind kind, int members, const CommPart *part, int n) {
    const KindInfo *k = &comm_kind_info[kind];
    CommStream from = comm_stream_new(k->from, part, n, members, k->sliced);
    Cut c = cut_of(k, &from);
    return 2 * c.lanes * c.segment_bytes;
}

/* ---- steps ---- */

typedef struct Step {
    int to, from;               /* members */
    int send_piece, take_piece; /* what goes there and what comes from here */
    bool carry;                 /* sends what the step before has made */
    bool add, store;            /* adds own elements to what comes; puts it into `to` */
} Step;

static Step step_of(const KindInfo *k, const CommGroup *g, int64_t item, int step) {
    int n = g->n, me = g->me, last = n - 1;
    Step s = {.to = (me + 1) % n, .from = (me + last) % n, .store = true};
    if (k->exchanges) {
        int distance = 1 + (int)(item % last);
        s.to = s.send_piece = (me + distance) % n;
        s.from = s.take_piece = (me + n - distance) % n;
    } else if (k->reduces && step < last) {
        s.send_piece = (me + n - 1 - step) % n;
        s.take_piece = (s.send_piece + last) % n;
        s.carry = step > 0;
        s.add = true;
        s.store = step == last - 1;
    } else if (k->gathers) {
        int turn = k->reduces ? step - last : step;
        s.send_piece = (me + n - turn) % n;
        s.take_piece = (s.send_piece + last) % n;
        s.carry = step > 0;
    }
    return s;
}

/* ---- lanes ---- */

typedef struct Lane {
    int64_t item;
    int step;
    Step now;
    int slot;            /* receives: one of two in turns, as what came may be sent on */
    char *hold, *fresh;  /* sent, received, where the parts do not serve */
    const char *carried; /* result of the last step */
    char *landing;       /* receives the message */
    int64_t offset, take_bytes;
} Lane;

typedef struct Ring {
    const KindInfo *kind;
    const CommGroup *group;
    CommStream from, to;
    bool keeps_sent;  /* the result has what is sent first, which is in a cache then */
    bool past_caches; /* results are written so */
    Cut cut;
    Lane lane[LANES];
    int64_t sent_bytes;
} Ring;

static int64_t bytes_here(const Ring *r, int piece, int64_t offset) {
    int64_t left = comm_stream_piece_bytes(&r->from, piece) - offset;
    return MAX(0, MIN(left, r->cut.segment_bytes));
}

/* Puts bytes of this member where they are to be, unless they are there. */
static void keep(const Ring *r, int piece, int64_t offset, int64_t bytes,
                 const char *own) {
    if (own != comm_stream_pointer(&r->to, piece, offset, bytes))
        comm_stream_write(&r->to, piece, offset, bytes, own, r->past_caches);
}

/* The lane's other one of the two that receive. */
static int other_slot(int slot) {
    return LANES + ((slot - LANES) ^ 1);
}

/* Starts the messages of the lane's step. */
static void lane_post(Ring *r, int i) {
    Lane *l = &r->lane[i];
    Step s = l->now = step_of(r->kind, r->group, l->item, l->step);
    int64_t segment = r->kind->exchanges ? l->item / (r->group->n - 1) : l->item;
    l->offset = segment * r->cut.segment_bytes;
    int64_t send_bytes = bytes_here(r, s.send_piece, l->offset);
    l->take_bytes = bytes_here(r, s.take_piece, l->offset);
    int came = l->slot;
    l->slot = other_slot(came);
    l->landing = NULL;
    if (s.store && !s.add) {
        l->landing = comm_stream_pointer(&r->to, s.take_piece, l->offset, l->take_bytes);
    }
    if (!l->landing) l->landing = l->fresh;
    link_receive(l->slot, comm_group_rank(r->group, s.from), l->landing, l->take_bytes);
    int to = comm_group_rank(r->group, s.to);
    const char *out = l->carried;
    if (!s.carry)
        out = comm_stream_pointer(&r->from, s.send_piece, l->offset, send_bytes);
    if (!out) {
        char *room = link_room(i, to, send_bytes);
        if (!room) room = l->hold;
        comm_stream_read(&r->from, s.send_piece, l->offset, send_bytes, room);
        out = room;
    }
    link_send(i, to, out, send_bytes);
    if (r->keeps_sent && !s.carry) keep(r, s.send_piece, l->offset, send_bytes, out);
    if (link_is_sent(i)) link_release(came);
    r->sent_bytes += send_bytes;
}

/* Where the sum with what came goes. */
static char *place_of_sum(const Ring *r, const Lane *l, char *dest) {
    Step s = l->now;
    if (!dest || !r->past_caches) return dest ? dest : l->fresh;
    const char *own =
        comm_stream_pointer(&r->from, s.take_piece, l->offset, l->take_bytes);
    return dest == own ? dest : l->fresh;
}

/* Puts what came where it belongs; returns where it can be sent on from. */
static const char *lane_store(Ring *r, Lane *l, const char *came) {
    Step s = l->now;
    char *dest = NULL;
    const char *out = came;
    if (s.store)
        dest = comm_stream_pointer(&r->to, s.take_piece, l->offset, l->take_bytes);
    if (s.add) {
        char *sum = place_of_sum(r, l, dest);
        comm_stream_combine(&r->from, s.take_piece, l->offset, l->take_bytes,
                            r->kind->max, came, sum);
        out = sum;
    }
    if (s.store && out != dest)
        comm_stream_write(&r->to, s.take_piece, l->offset, l->take_bytes, out,
                          r->past_caches);
    return out;
}

/* Waits for what comes and does with it what the step says. What came before stays where it is
 * until it was sent on. */
static void lane_take(Ring *r, int i) {
    Lane *l = &r->lane[i];
    l->carried = lane_store(r, l, link_arrived(l->slot));
    link_wait(i);
    link_release(other_slot(l->slot));
    if (l->carried == l->fresh) {
        l->fresh = l->hold;
        l->hold = (char *)(uintptr_t)l->carried;
    }
}

/* To the next step, or item; false when the lane has none left. */
static bool lane_advance(Ring *r, int i) {
    Lane *l = &r->lane[i];
    if (++l->step < r->cut.steps) return true;
    l->step = 0;
    l->item += r->cut.lanes;
    return l->item < r->cut.items;
}

/* What nobody is sent. */
static void keep_own(const Ring *r, void *buffer) {
    int me = r->group->me;
    for (int64_t at = 0, n; (n = bytes_here(r, me, at)) > 0; at += n) {
        const char *own = comm_stream_pointer(&r->from, me, at, n);
        if (!own) comm_stream_read(&r->from, me, at, n, buffer);
        keep(r, me, at, n, own ? own : buffer);
    }
}

int64_t ring_run(CommKind kind, const CommGroup *g, const CommPart *part, int n,
                 void *workspace) {
    const KindInfo *k = &comm_kind_info[kind];
    Ring r = {.kind = k, .group = g};
    r.from = comm_stream_new(k->from, part, n, g->n, k->sliced);
    r.to = comm_stream_new(k->to, part, n, g->n, k->sliced);
    r.cut = cut_of(k, &r.from);
    r.keeps_sent = k->gathers && !k->reduces;
    int pieces = r.keeps_sent || k->exchanges ? g->n : 1;
    r.past_caches = r.to.total_bytes * pieces > KEPT_BYTES;
    if (k->exchanges && r.cut.lanes) keep_own(&r, workspace);
    for (int i = 0; i < r.cut.lanes; i++) {
        r.lane[i] = (Lane){.item = i, .slot = LANES + 2 * i};
        r.lane[i].hold = (char *)workspace + 2 * i * r.cut.segment_bytes;
        r.lane[i].fresh = r.lane[i].hold + r.cut.segment_bytes;
        lane_post(&r, i);
    }
    bool done[LANES] = {false};
    for (int active = r.cut.lanes, i = 0; active; i = (i + 1) % r.cut.lanes) {
        if (done[i]) continue;
        lane_take(&r, i);
        if (lane_advance(&r, i))
            lane_post(&r, i);
        else
            link_release(r.lane[i].slot), done[i] = true, active--;
    }
    return r.sent_bytes;
}
