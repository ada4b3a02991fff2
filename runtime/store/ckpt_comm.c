/* ckpt_comm.c - see ckpt_comm.h. */
#include "runtime/store/ckpt_comm.h"
#include "runtime/comm/comm.h"

CkptGroup group_alone(int rank, int ranks) {
    return (CkptGroup){.rank = rank, .ranks = ranks, .alone = true};
}

CkptGroup group_of_comm(void) {
    return (CkptGroup){
        .rank = comm_place(), .ranks = comm_size(), .alone = comm_size() == 1};
}

int group_process(const CkptGroup *c, int rank) {
    return c->alone ? rank : comm_rank_at(rank);
}

int group_agree(const CkptGroup *c, int error, char *why, size_t why_size) {
    struct {
        int error;
        char why[1024];
    } said = {0};
    if (c->alone) return error;
    int64_t first = comm_min_i64(error ? c->rank : INT64_MAX);
    if (first == INT64_MAX) return 0;
    said.error = error;
    if (first == c->rank && first == 0)
        snprintf(said.why, sizeof said.why, "%s", why);
    else if (first == c->rank)
        snprintf(said.why, sizeof said.why, "rank %d on %.200s: %.700s", comm_rank(),
                 comm_host(), why);
    comm_broadcast(&said, sizeof said, comm_rank_at((int)first));
    snprintf(why, why_size, "%s", said.why);
    return said.error;
}

const char *group_agree_wrong(const CkptGroup *c, Arena *mem, const char *wrong) {
    char why[1024];
    if (c->alone) return wrong;
    snprintf(why, sizeof why, "%.1000s", wrong ? wrong : "");
    return group_agree(c, wrong != NULL, why, sizeof why) ? arena_strdup(mem, why) : NULL;
}

const char *group_share(const CkptGroup *c, Arena *mem, const char *text) {
    return c->alone ? text : comm_broadcast_text(mem, text);
}

const void *group_gather(const CkptGroup *c, Arena *mem, const void *mine, size_t bytes) {
    check(!c->alone);
    const char *all = comm_gather(mem, mine, bytes);
    char *by_rank = arena_alloc(mem, array_bytes((size_t)c->ranks, bytes));
    for (int r = 0; r < c->ranks; r++)
        memcpy(by_rank + (size_t)r * bytes, all + (size_t)comm_rank_at(r) * bytes, bytes);
    return by_rank;
}

void group_find_remote(CkptGroup *c, Arena *mem, bool i_see) {
    typedef struct Answer {
        bool remote;
        char host[256];
    } Answer;
    Answer mine = {.remote = !i_see};
    c->remote = NEW_ARRAY(mem, bool, (size_t)c->ranks);
    if (c->alone) return;
    snprintf(mine.host, sizeof mine.host, "%s", comm_host());
    const Answer *all = group_gather(c, mem, &mine, sizeof mine);
    for (int r = 0; r < c->ranks; r++) {
        c->remote[r] = all[r].remote;
        if (!all[r].remote) continue;
        if (!c->nremote++) {
            c->first_remote = group_process(c, r);
            c->remote_host = all[r].host;
        }
    }
}

CkptPipe pipe_of(Arena *mem, int peer, uint64_t total) {
    return (CkptPipe){
        .peer = peer, .total = total, .chunk = arena_alloc(mem, CKPT_CHUNK_BYTES)};
}

void pipe_put(CkptPipe *p, const void *bytes, uint64_t n) {
    check(n <= p->total - p->done);
    for (const char *from = bytes; n;) {
        size_t part = (size_t)MIN(n, CKPT_CHUNK_BYTES - p->used);
        if (from)
            memcpy(p->chunk + p->used, from, part);
        else
            memset(p->chunk + p->used, 0, part);
        if (from) from += part;
        p->used += part;
        p->done += part;
        n -= part;
        if (p->used < CKPT_CHUNK_BYTES && p->done < p->total) continue;
        comm_send_bytes(comm_rank_at(p->peer), p->chunk, p->used);
        p->used = 0;
    }
}

void pipe_take(CkptPipe *p, void *bytes, uint64_t n) {
    check(n <= p->total - p->done);
    for (char *to = bytes; n;) {
        if (p->used == p->have) {
            p->have = (size_t)MIN(CKPT_CHUNK_BYTES, p->total - p->done);
            p->used = 0;
            comm_receive_bytes(comm_rank_at(p->peer), p->chunk, p->have);
        }
        size_t part = (size_t)MIN(n, p->have - p->used);
        memcpy(to, p->chunk + p->used, part);
        to += part;
        p->used += part;
        p->done += part;
        n -= part;
    }
}
