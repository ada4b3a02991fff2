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

static const Strategy *strategy_of(const Plan *p) {
    return &p->job->strategy;
}

static bool always(const Plan *p) {
    (void)p;
    return true;
}

static DType factors_of(const Plan *p) {
    return strategy_pass_options(p->job->cfg).narrow;
}

static bool is_faster_in_bf16(const Plan *p) {
    const MachineRank *r = plan_machine_rank(p);
    return machine_peak(r, DT_BF16) > machine_peak(r, factors_of(p));
}

static bool remakes_layers(const Plan *p) {
    const char *remake = strategy_of(p)->remake;
    return remake && *remake;
}

static bool sees_all_keys(const Plan *p) {
    return p->job->has_spec && !p->job->spec.window;
}

static bool has_whole_norms(const Plan *p) {
    return strategy_of(p)->tensor > 1 && !strategy_of(p)->sequence_parallel;
}

static int64_t replicas(const Plan *p) {
    return strategy_of(p)->data * strategy_of(p)->context;
}

static bool has_whole_states(const Plan *p) {
    return !strategy_of(p)->zero_level && replicas(p) > 1;
}

static bool rounds_weights(const Plan *p) {
    return factors_of(p) != DT_F32;
}

static bool splits_matrices(const Plan *p) {
    return strategy_of(p)->tensor > 1;
}

static bool reduces_often(const Plan *p) {
    return strategy_of(p)->zero_level > 1 && p->job->micro > 1;
}

/* Ranks of a host that could split states among themselves, which those of several hosts do; 0:
 * none. */
static int64_t group_of_host(const Plan *p) {
    const Strategy *s = strategy_of(p);
    const Mesh *mesh = &p->m->mesh;
    Axes axes;
    if (s->zero_level < 2 || !mesh_axes_parse(mesh, s->zero_axes, &axes)) return 0;
    GroupShape g = group_shape(p->machine, mesh, axes, plan_stage_count(p));
    bool fits = g.on_host > 1 && g.on_host % s->context == 0 &&
                replicas(p) % MAX(g.on_host, 1) == 0;
    return g.level == LINK_NETWORK && fits ? g.on_host : 0;
}

static bool gathers_between_hosts(const Plan *p) {
    return group_of_host(p) > 0;
}

/* A machine may say itself how wide numbers in sums are. */
static bool sums_wide_gradients(const Plan *p) {
    bool wide = p->job->cfg->model_accumulate_allreduce_grads_in_fp32;
    return wide && rounds_weights(p) && replicas(p) > 1 && !(p->machine->sum_bytes > 0);
}

static bool sums_wide_activations(const Plan *p) {
    bool wide = p->job->cfg->model_allreduce_activations_in_fp32;
    return wide && rounds_weights(p) && splits_matrices(p) &&
           !(p->machine->sum_bytes > 0);
}

static bool waits_for_messages(const Plan *p) {
    return strategy_of(p)->overlap == OVERLAP_OFF;
}

static bool has_whole_stages(const Plan *p) {
    return strategy_of(p)->chunks <= 1;
}

static bool has_whole_backward(const Plan *p) {
    return p->pipe && !schedule_has_halves(p->pipe->schedule);
}

static const struct {
    int kind;
    bool (*applies)(const Plan *p);
    const char *what; /* %lld: group_of_host */
} lowers[] = {
    {WORK_PRODUCTS, is_faster_in_bf16, "compute_dtype bfloat16"},
    {WORK_PRODUCTS, remakes_layers, "fewer layers recomputed"},
    {WORK_PRODUCTS, always, "more ranks share them"},
    {WORK_ATTENTION, always, "context_parallel shares it"},
    {WORK_ATTENTION, sees_all_keys, "sliding_window"},
    {WORK_ATTENTION, is_faster_in_bf16, "compute_dtype bfloat16"},
    {WORK_KERNELS, has_whole_norms, "sequence_parallel shares norms and dropout"},
    {WORK_KERNELS, remakes_layers, "fewer layers recomputed"},
    {WORK_KERNELS, always, "more ranks share them"},
    {WORK_UPDATE, has_whole_states, "optimizer_shard shares it over the replicas"},
    {WORK_COPIES, rounds_weights,
     "more micro-batches a step: rounded weights are made once"},
    {WORK_MESSAGES, splits_matrices, "fewer ranks in model_parallel, on one host"},
    {WORK_MESSAGES, reduces_often, "optimizer_level level1"},
    {WORK_MESSAGES, gathers_between_hosts,
     "optimizer_weight_shard_size %lld, the replicas on a host"},
    {WORK_MESSAGES, sums_wide_activations, "allreduce_activations_in_fp32 False"},
    {WORK_MESSAGES, sums_wide_gradients, "accumulate_allreduce_grads_in_fp32 False"},
    {WORK_MESSAGES, waits_for_messages, "parallel.overlap thread"},
    {WAITING, always, "more micro-batches (micro_batch_num)"},
    {WAITING, has_whole_stages, "pp_interleave_num"},
    {WAITING, has_whole_backward, "a zero_bubble schedule"},
    {WAITING, always, "num_layer_list"},
};

static void add_what(const Plan *p, int kind, Text *out) {
    int n = 0;
    for (int i = 0; i < ARRAY_LEN(lowers); i++) {
        if (lowers[i].kind != kind || !lowers[i].applies(p)) continue;
        text_add(out, "%s", n++ ? "; " : "  ");
        if (lowers[i].applies == gathers_between_hosts)
            text_add(out, lowers[i].what, (long long)group_of_host(p));
        else
            text_add(out, "%s", lowers[i].what);
    }
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
