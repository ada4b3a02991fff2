/* step_parts.c - see step_parts.h. */
#include "passes/estimate/step_parts.h"

/* ---- messages ---- */

/* Those from one stage to another by their numbers: 1 + where they are. */
typedef struct Numbers {
    int *at, n;
    GroupShape shape;
} Numbers;

typedef struct Maker {
    Arena *mem;
    StepParts *p;
    Numbers *numbers; /* [from][to] */
} Maker;

static int *number_place(Arena *mem, Numbers *list, int64_t number) {
    enum { MOST = 1 << 24 };
    check(number >= 0 && number < MOST);
    if (number >= list->n) {
        int n = MAX(2 * list->n, (int)number + 16);
        int *at = NEW_ARRAY(mem, int, (size_t)n);
        if (list->n) memcpy(at, list->at, (size_t)list->n * sizeof *at);
        list->at = at, list->n = n;
    }
    return &list->at[number];
}

static int find_message(Maker *b, int from, int to, const Op *op) {
    StepParts *p = b->p;
    Numbers *list = &b->numbers[from * p->stages + to];
    if (!list->n) list->shape = stages_shape(p->machine, p->mesh, p->stages, from, to);
    int *place = number_place(b->mem, list, op_int(op, "message", 0));
    if (*place) return *place - 1;
    const Value *v = op->nin ? op->in[op->nin - 1] : op->out[0];
    StageMessage one = {
        from, to, message_seconds(p->machine, &list->shape, (double)type_bytes(&v->ty))};
    PUSH(b->mem, p->message, p->nmessages, p->cap_messages, one);
    *place = p->nmessages;
    return p->nmessages - 1;
}

static void list_messages(Maker *b, int stage) {
    StageParts *s = &b->p->stage[stage];
    s->message = NEW_ARRAY(b->mem, int, (size_t)s->entry->nops + 1);
    for (const Op *op = s->entry->first; op; op = op->next) {
        s->message[op->id] = -1;
        if (!op_has(op, F_EFFECT) || op_has(op, F_COMM)) continue;
        bool receives = op->kind == OP_receive;
        int peer = (int)op_int(op, receives ? "from" : "to", -1);
        check(peer >= 0 && peer < b->p->stages);
        s->message[op->id] = receives ? find_message(b, peer, stage, op)
                                      : find_message(b, stage, peer, op);
    }
}

/* ---- the step ---- */

int step_host_ranks(const StepParts *p) {
    return machine_host_ranks(p->machine, mesh_ranks(p->mesh) * p->stages);
}

StepParts step_parts(Arena *mem, const Machine *m, const Func *const *entry, int stages,
                     int threads) {
    const Mesh *mesh = &entry[0]->mod->mesh;
    StepParts p = {.machine = m, .mesh = mesh, .stages = stages};
    Timing timing = {.mem = mem,
                     .m = m,
                     .rank = machine_rank_of(m, mesh_ranks(mesh) * stages, threads),
                     .shape = mesh_shapes(mem, m, mesh, stages, threads)};
    p.share = sharing_of(mem, m, mesh, stages, threads);
    Maker b = {mem, &p, NEW_ARRAY(mem, Numbers, (size_t)stages * (size_t)stages)};
    p.stage = NEW_ARRAY(mem, StageParts, (size_t)stages);
    for (int s = 0; s < stages; s++) {
        StageParts *at = &p.stage[s];
        *at = (StageParts){.entry = entry[s], .timing = timing};
        at->timing.stretch = sharing_stage_stretch(&p.share, s) *
                             machine_rank_stretch(m, timing.rank, threads);
        at->sizes = func_sizes(mem, entry[s]->mod, NULL);
        func_seconds(mem, &at->sizes, &at->timing);
        list_messages(&b, s);
    }
    return p;
}
