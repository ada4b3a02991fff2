/* pipe_order.h - do the steps of all stages end when nothing is buffered: when a message that
 * was sent stays with its sender until it is received? Of all orders in which MPI may do
 * things that is the narrowest, and there is no choice in it. */
#ifndef STATOR_TEST_PIPE_ORDER_H
#define STATOR_TEST_PIPE_ORDER_H
#include "ir/ir.h"
#include "test.h"

/* The messages of a module: from a stage to another, by number. */
typedef struct PipeMail {
    bool sent, received;
} PipeMail;

typedef struct PipeOrder {
    const Module *m;
    int64_t numbers; /* above every message number */
    PipeMail *mail;
} PipeOrder;

static inline PipeMail *pipe_mail(PipeOrder *p, int64_t from, int64_t to,
                                  int64_t number) {
    return &p->mail[(from * p->m->stages + to) * p->numbers + number];
}

/* false: it must wait. */
static inline bool pipe_order_do(PipeOrder *p, const Op *op, int stage) {
    int64_t number = op_int(op, "message", 0);
    if (!op->nin) {
        PipeMail *mail = pipe_mail(p, op_int(op, "from", 0), stage, number);
        EXPECT(!mail->received);
        mail->received = mail->sent;
        return mail->sent;
    }
    PipeMail *mail = pipe_mail(p, stage, op_int(op, "to", 0), number);
    if (op->nout) {
        EXPECT(!mail->sent);
        mail->sent = true;
    }
    return op->nout || mail->received;
}

static inline bool pipe_order_ends(Arena *mem, const Module *m) {
    PipeOrder p = {.m = m};
    const Op **at = NEW_ARRAY(mem, const Op *, (size_t)m->stages + 1);
    for (int k = 0; k < m->stages; k++) {
        at[k] = module_stage(m, k)->first;
        for (const Op *op = at[k]; op; op = op->next)
            if (op_has(op, F_EFFECT))
                p.numbers = MAX(p.numbers, op_int(op, "message", 0) + 1);
    }
    p.mail = NEW_ARRAY(mem, PipeMail, (size_t)(m->stages * m->stages * p.numbers + 1));
    for (bool moved = true; moved;) {
        moved = false;
        for (int k = 0; k < m->stages; k++)
            for (; at[k]; at[k] = at[k]->next, moved = true)
                if (op_has(at[k], F_EFFECT) && !pipe_order_do(&p, at[k], k)) break;
    }
    for (int k = 0; k < m->stages; k++)
        if (at[k]) return false;
    for (int64_t i = 0; i < m->stages * m->stages * p.numbers; i++)
        EXPECT(p.mail[i].sent == p.mail[i].received);
    return true;
}

#endif
