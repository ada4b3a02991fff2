/* simulate_traffic.c - collectives and messages as they are run, beside those of the plan,
 * which counts them without running anything. */
#include "frontend/simulate/simulate.h"
#include "passes/cost/message.h"

static SimulateTraffic *row_of(SimulateTraffics *t, int stage, const char *kind,
                               const char *axes) {
    for (int i = 0; i < t->n; i++) {
        SimulateTraffic *r = &t->row[i];
        if (r->stage == stage && !strcmp(r->kind, kind) && !strcmp(r->axes, axes))
            return r;
    }
    SimulateTraffic r = {
        .stage = stage, .kind = kind, .axes = arena_strdup(t->mem, axes)};
    PUSH(t->mem, t->row, t->n, t->cap, r);
    return &t->row[t->n - 1];
}

static SimulateTraffic *message_row(SimulateTraffics *t, int stage, int64_t to) {
    char name[32];
    snprintf(name, sizeof name, "stage %lld", (long long)to);
    const char *near = to == stage + 1 ? "next stage" : "stage before";
    return row_of(t, stage, "send", to == stage + 1 || to == stage - 1 ? near : name);
}

static void see_collective(SimulateTraffics *t, int stage, const Op *op) {
    int n = mesh_group_size(&op->fn->mod->mesh, op_axes(op));
    if (n == 1) return;
    const char *axes = op_attr(op, "axis")->s;
    SimulateTraffic *r = row_of(t, stage, optab[op->kind].name, axes);
    r->operations++;
    for (int i = 0; i < op->nin; i++)
        r->sent_bytes += message_sent_bytes(op->kind, type_bytes(&op->in[i]->ty), n);
}

static void see(void *ctx, int stage, const Op *op) {
    SimulateTraffics *t = ctx;
    if (op_has(op, F_COMM)) {
        see_collective(t, stage, op);
        return;
    }
    SimulateTraffic *r = message_row(t, stage, op_int(op, "to", 0));
    r->operations++;
    r->sent_bytes += type_bytes(&op->in[0]->ty);
}

InterpWatch simulate_traffic_watch(SimulateTraffics *t) {
    return (InterpWatch){see, t};
}

static void add_stage(SimulateTraffics *t, const Plan *p, int stage) {
    for (int i = 0; i < p->ncomm; i++) {
        const PlanComm *c = &p->comm[i];
        SimulateTraffic *r = row_of(t, stage, c->kind, c->axes);
        r->planned_operations += c->operations * c->runs;
        r->planned_bytes += c->sent_bytes * c->runs;
    }
    for (int i = 0; i < p->nmessages; i++) {
        SimulateTraffic *r = message_row(t, stage, p->messages[i].to);
        r->planned_operations += p->messages[i].messages;
        r->planned_bytes += p->messages[i].bytes;
    }
}

void simulate_traffic_plan(SimulateTraffics *t, const Plan *p) {
    for (int k = 0; k < plan_stage_count(p); k++) add_stage(t, plan_stage(p, k), k);
}
