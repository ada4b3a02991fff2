/* replicas.c - see replicas.h. */
#include "frontend/tools/replicas.h"
#include "runtime/comm/comm.h"

enum { STEP_END, STEP_PROMPTS, STEP_TOKENS };

/* Ranks of a replica. */
static int replica_ranks(const Strategy *s) {
    return (int)(s->tensor * s->context);
}

Replicas *replicas_new(Arena *mem, Generator *g) {
    const Strategy *s = g->strategy;
    Replicas *r = NEW(mem, Replicas);
    r->g = g;
    r->n = (int)(s->data * g->batch);
    r->mine = comm_place() % comm_stage_ranks() / replica_ranks(s) * (int)g->batch;
    r->message = NEW_ARRAY(mem, int32_t, (size_t)r->n + 1);
    r->token = NEW_ARRAY(mem, int32_t, (size_t)(r->n * g->prompt_len));
    r->scores = NEW_ARRAY(mem, const float *, (size_t)r->n);
    if (comm_rank() == 0 && s->data > 1)
        r->received = NEW_ARRAY(mem, float, (size_t)(r->n * g->scores_row));
    return r;
}

static bool has_text(const Replicas *r, int first) {
    for (int k = 0; k < r->g->batch; k++)
        if (r->message[1 + first + k]) return true;
    return false;
}

/* Every rank has the scores of its replica; the first of each sends them to rank 0. */
static void collect_scores(Replicas *r, const float *own) {
    const Generator *g = r->g;
    int batch = (int)g->batch, ranks = replica_ranks(g->strategy);
    size_t bytes = (size_t)(g->batch * g->scores_row) * sizeof *own;
    for (int k = 0; k < r->n; k += batch) {
        int rank = comm_rank_at(k / batch * ranks);
        const float *from = own;
        if (!has_text(r, k)) continue;
        if (k && comm_rank() == rank) comm_send_bytes(0, own, bytes);
        if (comm_rank() != 0) continue;
        if (k) {
            from = r->received + k * g->scores_row;
            comm_receive_bytes(rank, r->received + k * g->scores_row, bytes);
        }
        for (int i = 0; i < batch; i++) r->scores[k + i] = from + i * g->scores_row;
    }
}

/* A step of all ranks, of which rank 0 knows message and tokens; false: it was the end.
 * Replicas without a text compute where others need parts of weights from them. */
static bool step(Replicas *r) {
    int64_t all = 0, before = 0;
    bool whole = false;
    comm_broadcast(r->message, (size_t)(r->n + 1) * sizeof *r->message, 0);
    if (r->message[0] == STEP_END) return false;
    for (int k = 0; k < r->n; k++) {
        if (k == r->mine) before = all;
        all += r->message[1 + k];
        whole |= r->message[1 + k] > 1;
    }
    comm_broadcast(r->token, (size_t)all * sizeof *r->token, 0);
    const int32_t *n = r->message + 1 + r->mine;
    const float *own = NULL;
    if (has_text(r, r->mine) || r->g->strategy->zero_level)
        own = r->message[0] == STEP_PROMPTS
                  ? generator_prompts(r->g, r->token + before, n, whole)
                  : generator_tokens(r->g, r->token + before, n);
    collect_scores(r, own);
    return true;
}

static void order(Replicas *r, int kind, const Tokens *t) {
    int32_t *to = r->token;
    r->message[0] = kind;
    for (int k = 0; k < r->n && t; k++) {
        check(t[k].n <= r->g->prompt_len);
        r->message[1 + k] = t[k].n;
        if (t[k].n) memcpy(to, t[k].id, (size_t)t[k].n * sizeof *to);
        to += t[k].n;
    }
    step(r);
}

void replicas_prompts(Replicas *r, const Tokens *prompt) {
    order(r, STEP_PROMPTS, prompt);
}

void replicas_tokens(Replicas *r, const Tokens *token) {
    order(r, STEP_TOKENS, token);
}

void replicas_end(Replicas *r) {
    order(r, STEP_END, NULL);
}

void replicas_follow(Replicas *r) {
    while (step(r)) continue;
}
