/* replicas.c - see replicas.h. */
#include "frontend/tools/replicas.h"
#include "runtime/comm/comm.h"

enum { STEP_END, STEP_PROMPTS, STEP_TOKENS };

Replicas *replicas_new(Arena *mem, Generator *g) {
    const Strategy *s = g->strategy;
    Replicas *r = NEW(mem, Replicas);
    r->g = g;
    r->n = (int)s->data;
    r->mine = (comm_rank() - comm_stage_first()) / (int)(s->tensor * s->context);
    r->message = NEW_ARRAY(mem, int32_t, (size_t)r->n + 1);
    r->token = NEW_ARRAY(mem, int32_t, (size_t)(r->n * g->cache_len));
    r->scores = NEW_ARRAY(mem, const float *, (size_t)r->n);
    if (comm_rank() == 0) r->received = NEW_ARRAY(mem, float, (size_t)(r->n * g->vocab));
    return r;
}

/* Every rank has the scores of its replica; the first of each sends them to rank 0. */
static void collect_scores(Replicas *r, const float *own) {
    const Strategy *s = r->g->strategy;
    int ranks = (int)(s->tensor * s->context);
    size_t bytes = (size_t)r->g->vocab * sizeof *own;
    if (comm_rank() == 0) r->scores[0] = own;
    for (int k = 1; k < r->n; k++) {
        if (!r->message[1 + k]) continue;
        if (comm_rank() == k * ranks) comm_send_bytes(0, own, bytes);
        if (comm_rank() != 0) continue;
        r->scores[k] = r->received + (int64_t)k * r->g->vocab;
        comm_receive_bytes(k * ranks, r->received + (int64_t)k * r->g->vocab, bytes);
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
    const int64_t n = r->message[1 + r->mine];
    const float *own = NULL;
    if (n || r->g->strategy->zero_level)
        own = r->message[0] == STEP_PROMPTS
                  ? generator_prompt(r->g, r->token + before, n, whole)
                  : generator_token(r->g, r->token + before, n);
    collect_scores(r, own);
    return true;
}

static void order(Replicas *r, int kind, const Tokens *t) {
    int32_t *to = r->token;
    r->message[0] = kind;
    for (int k = 0; k < r->n && t; k++) {
        check(t[k].n <= r->g->cache_len);
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
