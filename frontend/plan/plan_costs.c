/* plan_costs.c - what the seconds of a planned step go into, and which keys would lower that, of
 * those that the configuration leaves to be set. See plan.h. */
#include "frontend/plan/plan.h"
#include "passes/cost/message.h"
#include <stdlib.h>

typedef struct Cost {
    int kind;       /* WorkKind, or WAITING */
    double seconds; /* of a rank, on average */
} Cost;
enum { WAITING = WORK_KINDS, COSTS, COSTS_SHOWN = 5 };

/* ---- what is still to be had ---- */

/* Ranks of a host that could split states among themselves, which those of several hosts do; 0:
 * none. */
static int64_t group_of_host(const Plan *p) {
    const Strategy *s = &p->job->strategy;
    const Mesh *mesh = &p->m->mesh;
    Axes axes;
    if (s->zero_level < 2 || !mesh_axes_parse(mesh, s->zero_axes, &axes)) return 0;
    GroupShape g = group_shape(p->machine, mesh, axes, plan_stage_count(p));
    bool fits = g.on_host > 1 && g.on_host % s->context == 0 &&
                s->data * s->context % MAX(g.on_host, 1) == 0;
    return g.level == LINK_NETWORK && fits ? g.on_host : 0;
}

static void add_what(const Plan *p, int kind, Text *out) {
    const Job *j = p->job;
    const Strategy *s = &j->strategy;
    const MachineRank *r = plan_machine_rank(p);
    DType factors = strategy_pass_options(j->cfg).narrow;
    int64_t on_host = group_of_host(p);
    bool bf16_is_faster = machine_peak(r, DT_BF16) > machine_peak(r, factors);
    bool remakes = s->remake && *s->remake, rounds = factors != DT_F32;
    bool splits = s->tensor > 1, replicas = s->data * s->context > 1;
    /* a machine may say itself how wide numbers in sums are */
    bool wide = rounds && !(p->machine->sum_bytes > 0);
    const struct {
        int kind;
        bool applies;
        const char *what;
    } lowers[] = {
        {WORK_PRODUCTS, bf16_is_faster, "compute_dtype bfloat16"},
        {WORK_PRODUCTS, remakes, "fewer layers recomputed"},
        {WORK_PRODUCTS, true, "more ranks share them"},
        {WORK_ATTENTION, true, "context_parallel shares it"},
        {WORK_ATTENTION, j->has_spec && !j->spec.window, "sliding_window"},
        {WORK_ATTENTION, bf16_is_faster, "compute_dtype bfloat16"},
        {WORK_KERNELS, splits && !s->sequence_parallel,
         "sequence_parallel shares norms and dropout"},
        {WORK_KERNELS, remakes, "fewer layers recomputed"},
        {WORK_KERNELS, true, "more ranks share them"},
        {WORK_UPDATE, !s->zero_level && replicas,
         "optimizer_shard shares it over the replicas"},
        {WORK_COPIES, rounds, "more micro-batches a step: rounded weights are made once"},
        {WORK_MESSAGES, splits, "fewer ranks in model_parallel, on one host"},
        {WORK_MESSAGES, s->zero_level > 1 && j->micro > 1, "optimizer_level level1"},
        {WORK_MESSAGES, on_host > 0,
         arena_printf(out->mem,
                      "optimizer_weight_shard_size %lld, the replicas on a host",
                      (long long)on_host)},
        {WORK_MESSAGES, wide && splits && j->cfg->model_allreduce_activations_in_fp32,
         "allreduce_activations_in_fp32 False"},
        {WORK_MESSAGES,
         wide && replicas && j->cfg->model_accumulate_allreduce_grads_in_fp32,
         "accumulate_allreduce_grads_in_fp32 False"},
        {WORK_MESSAGES, s->overlap == OVERLAP_OFF, "parallel.overlap thread"},
        {WAITING, true, "more micro-batches (micro_batch_num)"},
        {WAITING, s->chunks <= 1, "pp_interleave_num"},
        {WAITING, p->pipe && !schedule_has_halves(p->pipe->schedule),
         "a zero_bubble schedule"},
        {WAITING, true, "num_layer_list"},
    };
    for (int i = 0, n = 0; i < ARRAY_LEN(lowers); i++)
        if (lowers[i].kind == kind && lowers[i].applies)
            text_add(out, "%s%s", n++ ? "; " : "  ", lowers[i].what);
}

/* ---- the costs ---- */

static const char *cost_name(int kind) {
    return kind == WAITING ? "waiting" : work_kind_name[kind];
}

static int by_seconds(const void *a, const void *b) {
    const Cost *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds > y->seconds ? -1 : 1;
    return strcmp(cost_name(x->kind), cost_name(y->kind));
}

/* The largest first. */
static void largest_costs(const StepTime *t, Cost cost[COSTS]) {
    for (int k = 0; k < COSTS; k++) {
        cost[k] = (Cost){.kind = k};
        for (int s = 0; s < t->stages; s++)
            cost[k].seconds +=
                (k == WAITING ? t->stage[s].waiting : t->stage[s].kind[k]) / t->stages;
    }
    qsort(cost, COSTS, sizeof *cost, by_seconds);
}

void plan_print_costs(const Plan *p, Text *out) {
    Cost cost[COSTS];
    largest_costs(p->time, cost);
    text_add(out, "  where it goes, and what lowers that\n");
    for (int i = 0; i < COSTS_SHOWN && cost[i].seconds > 0; i++) {
        text_add(out, "    %-9s %5.1f %%", cost_name(cost[i].kind),
                 100 * cost[i].seconds / p->time->seconds);
        add_what(p, cost[i].kind, out);
        text_add(out, "\n");
    }
}

void plan_json_costs(const Plan *p, Text *out) {
    Cost cost[COSTS];
    largest_costs(p->time, cost);
    text_add(out, "{");
    for (int i = 0; i < COSTS; i++)
        text_add(out, "%s\"%s\": %.6g", i ? ", " : "", cost_name(cost[i].kind),
                 cost[i].seconds);
    text_add(out, "}");
}
