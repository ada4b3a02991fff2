/* plan_json.c - a plan for programs. docs/plan.md names every key. */
#include "base/json.h"
#include "frontend/plan/plan.h"

typedef struct Number {
    const char *key;
    int64_t n;
} Number;

static void add_numbers(Text *s, const char *between, const Number *list, int n) {
    for (int i = 0; i < n; i++)
        text_add(s, "%s\"%s\": %lld", between, list[i].key, (long long)list[i].n);
}

/* ---- strategy ---- */

static void add_mesh(const Plan *p, Text *s) {
    const Mesh *m = &p->m->mesh;
    text_add(s, "  \"plan_hash\": \"%s\",\n", p->pipe ? p->pipe->hash : p->hash);
    int stages = plan_stage_count(p);
    text_add(s, "  \"ranks\": %d,\n  \"mesh\": [", p->ranks * stages);
    for (int a = 0; a < m->naxes; a++) {
        json_add_text(s, a ? ", {" : "{", "axis", m->axis[a].name);
        text_add(s, ", \"size\": %d}", m->axis[a].size);
    }
    text_add(s, "]");
}

static void add_strategy(const Plan *p, Text *s) {
    const Strategy *t = &p->job->strategy;
    text_add(s, ",\n  \"strategy\": {\"data_parallel\": %lld", (long long)t->data);
    const Number numbers[] = {{"model_parallel", t->tensor},
                              {"context_parallel", t->context},
                              {"ring", t->ring},
                              {"optimizer_level", t->zero_level},
                              {"bucket_bytes", t->bucket_bytes}};
    add_numbers(s, ", ", numbers, ARRAY_LEN(numbers));
    json_add_bool(s, ", ", "sequence_parallel", t->sequence_parallel);
    json_add_bool(s, ", ", "vocab_parallel", t->vocab_parallel);
    if (t->groups > 1) text_add(s, ", \"state_groups\": %lld", (long long)t->groups);
    if (p->m->mesh.norder)
        text_add(s, ", \"rank_order\": \"%s\"", rank_order_text(s->mem, &t->order));
    text_add(s, "}");
}

/* ---- work of a step ---- */

/* Whole numbers below 2^53. */
static void add_count(Text *s, const char *key, double n) {
    text_add(s, "\"%s\": %.0f", key, n);
}

static void add_sum(Text *s, const char *key, const WorkSum *w) {
    text_add(s, "\"%s\": {", key);
    add_count(s, "f32_flops", w->f32_flops);
    text_add(s, ", ");
    add_count(s, "bf16_flops", w->bf16_flops);
    text_add(s, ", ");
    add_count(s, "bytes", w->bytes);
    text_add(s, "}");
}

/* Members of an object: what is done and needed by kind; `line` begins each. */
static void add_kinds(const Plan *p, Text *s, const char *line) {
    WorkSum all = work_total(p->done), needed[WORK_KINDS];
    for (int k = 0; k < WORK_KINDS; k++) needed[k] = work_sum(p->needed, (WorkKind)k);
    WorkSum must = work_total(needed);
    for (int k = 0; k <= WORK_KINDS; k++) {
        bool last = k == WORK_KINDS;
        text_add(s, "%s\"%s\": {", line, last ? "all" : work_kind_name[k]);
        add_sum(s, "done", last ? &all : &p->done[k]);
        text_add(s, ", ");
        add_sum(s, "needed", last ? &must : &needed[k]);
        text_add(s, "}%s", last ? "" : ",");
    }
}

static void add_bound(const Plan *p, Text *s, const char *between) {
    const WorkRates *r = &p->rates;
    const struct {
        const char *key;
        double v;
    } list[] = {{"bound_seconds", plan_bound_seconds(p)},
                {"bound_f32_flops", r->f32_flops},
                {"bound_bf16_flops", r->bf16_flops},
                {"bound_bytes", r->bytes}};
    if (!(r->bytes > 0)) return;
    for (int i = 0; i < ARRAY_LEN(list); i++)
        json_add_double(s, between, list[i].key, list[i].v);
}

/* ---- pipeline ---- */

/* What a rank sends in collectives, by axes; all of it, a row a line, or what a step has. */
static void add_traffic(const Plan *p, Text *s, bool all) {
    const char *first = all ? "\n    {" : "{", *next = all ? ",\n    {" : ", {";
    text_add(s, all ? ",\n  \"traffic\": [" : ", \"traffic\": [");
    for (int i = 0; i < p->ntraffic; i++) {
        const PlanTraffic *t = &p->traffic[i];
        json_add_text(s, i ? next : first, "axes", t->axes);
        const Number numbers[] = {{"group", t->group},
                                  {"operations_per_step", t->operations},
                                  {"sent_bytes_per_step", t->sent_bytes},
                                  {"operations_per_micro_batch", t->micro_operations},
                                  {"sent_bytes_per_micro_batch", t->micro_sent_bytes}};
        add_numbers(s, ", ", all ? numbers : numbers + 1, all ? ARRAY_LEN(numbers) : 2);
        text_add(s, "}");
    }
    text_add(s, all && p->ntraffic ? "\n  ]" : "]");
}

static void add_stage(const Plan *p, Text *s) {
    const PlanPipe *pipe = p->pipe;
    text_add(s, "%s\n      {\"stage\": %d", p->stage ? "," : "", p->stage);
    const Number numbers[] = {{"rank_parameters", p->rank_parameters},
                              {"in_flight", schedule_in_flight(pipe->schedule, p->stage)},
                              {"memory_bytes", p->memory.total_bytes}};
    add_numbers(s, ", ", numbers, ARRAY_LEN(numbers));
    for (int i = 0; i < MEM_CLASSES; i++)
        text_add(s, ", \"%s_bytes\": %lld", memory_class_name[i],
                 (long long)p->memory.class_bytes[i]);
    json_add_text(s, ", ", "plan_hash", p->hash);
    text_add(s, ", \"messages\": [");
    for (int i = 0; i < p->nmessages; i++)
        text_add(s, "%s{\"to\": %d, \"messages\": %lld, \"bytes\": %lld}", i ? ", " : "",
                 p->messages[i].to, (long long)p->messages[i].messages,
                 (long long)p->messages[i].bytes);
    text_add(s, "]");
    add_traffic(p, s, false);
    if (p->needed) {
        text_add(s, ", \"work\": {");
        add_kinds(p, s, " ");
        text_add(s, " }");
        add_bound(p, s, ", ");
    }
    text_add(s, "}");
}

/* What stands for one rank below is of stage 0. */
static void add_pipeline(const PlanPipe *p, Text *s) {
    const PipeSchedule *o = p->schedule;
    text_add(s, ",\n  \"pipeline\": {\"stages\": %d, \"chunks\": %d", o->stages,
             o->chunks);
    json_add_text(s, ", ", "schedule", o->name);
    json_add_double(s, ", ", "bubble", plan_bubble(p));
    text_add(s, ",\n    \"layers\": [");
    for (int c = 0; c < o->chunks; c++)
        text_add(s, "%s%lld", c ? ", " : "", (long long)p->layers[c]);
    text_add(s, "],\n    \"stage\": [");
    for (int k = 0; k < o->stages; k++) add_stage(&p->stage[k], s);
    text_add(s, "\n    ]}");
}

/* ---- work and memory ---- */

static void add_work(const Plan *p, Text *s) {
    const Job *w = p->job;
    const Number numbers[] = {{"parameters", p->parameters},
                              {"rank_parameters", p->rank_parameters},
                              {"batch", w->batch},
                              {"micro_batches", w->micro},
                              {"seq", w->seq},
                              {"sequences_per_step", w->batch * w->micro},
                              {"tokens_per_step", w->batch * w->micro * w->seq}};
    add_numbers(s, ",\n  ", numbers, ARRAY_LEN(numbers));
    json_add_double(s, ",\n  ", "flops_per_token", w->flops_per_token);
    if (w->remade_per_token > 0)
        json_add_double(s, ",\n  ", "remade_flops_per_token", w->remade_per_token);
    text_add(s, ",\n  \"rank_flops_per_step\": ");
    json_add_double(s, "{", "matmul", p->matmul_flops);
    json_add_double(s, ", ", "attention", p->attention_flops);
    text_add(s, "}");
    if (!p->needed) return;
    text_add(s, ",\n  \"work\": {");
    add_kinds(p, s, "\n    ");
    text_add(s, "\n  }");
    add_bound(p, s, ",\n  ");
}

void plan_json_memory(const MemoryPlan *m, Text *out) {
    text_add(out, "{");
    for (int i = 0; i < MEM_CLASSES; i++)
        text_add(out, "\"%s\": %lld, ", memory_class_name[i],
                 (long long)m->class_bytes[i]);
    text_add(out, "\"total\": %lld}", (long long)m->total_bytes);
}

static void add_memory(const Plan *p, Text *s) {
    text_add(s, ",\n  \"memory_bytes\": ");
    plan_json_memory(&p->memory, s);
    text_add(s, ",\n  \"memory_limit_bytes\": %lld",
             (long long)p->job->cfg->context_max_device_memory);
    if (p->job->cfg->context_max_device_memory)
        text_add(s, ",\n  \"beside_bytes\": {\"process\": %lld, \"batches_ahead\": %lld}",
                 (long long)plan_process_bytes(p->job->cfg), (long long)p->ahead_bytes);
}

/* ---- tables: a row is a line ---- */

static void add_placement(const Plan *p, Text *s) {
    text_add(s, ",\n  \"placement\": [");
    for (int i = 0; i < p->nparam; i++) {
        const PlanParam *r = &p->param[i];
        json_add_text(s, i ? ",\n    {" : "\n    {", "name", r->name);
        json_add_text(s, ", ", "global", r->placement);
        json_add_bool(s, ", ", "flattened", r->flattened);
        json_add_text(s, ", ", "weight_over", r->weight_axes);
        json_add_text(s, ", ", "state_over", r->state_axes);
        const Number numbers[] = {{"count", r->count},
                                  {"rank_count", r->rank_count},
                                  {"weight_bytes", r->weight_bytes},
                                  {"gradient_bytes", r->gradient_bytes},
                                  {"state_bytes", r->state_bytes}};
        add_numbers(s, ", ", numbers, ARRAY_LEN(numbers));
        text_add(s, "}");
    }
    text_add(s, "\n  ]");
}

static void add_collectives(const Plan *p, Text *s) {
    text_add(s, ",\n  \"collectives\": [");
    for (int i = 0; i < p->ncomm; i++) {
        const PlanComm *c = &p->comm[i];
        json_add_text(s, i ? ",\n    {" : "\n    {", "part", plan_part_name[c->part]);
        json_add_text(s, ", ", "function", c->function);
        json_add_text(s, ", ", "kind", c->kind);
        json_add_text(s, ", ", "axes", c->axes);
        const Number numbers[] = {{"group", c->group},
                                  {"operations", c->operations},
                                  {"operands", c->operands},
                                  {"bytes", c->bytes},
                                  {"sent_bytes", c->sent_bytes},
                                  {"runs_per_step", c->runs},
                                  {"runs_per_micro_batch", c->micro_runs}};
        add_numbers(s, ", ", numbers, ARRAY_LEN(numbers));
        text_add(s, "}");
    }
    text_add(s, "%s]", p->ncomm ? "\n  " : "");
}

static void add_notes(const Config *cfg, Text *s) {
    text_add(s, ",\n  \"notes\": [");
    for (int i = 0; i < cfg->n_notes; i++) {
        text_add(s, "%s\n    ", i ? "," : "");
        json_write_string(s, cfg->notes[i]);
    }
    text_add(s, "%s]", cfg->n_notes ? "\n  " : "");
}

void plan_json(const Plan *p, Text *out) {
    add_mesh(p, out);
    add_strategy(p, out);
    if (p->pipe) add_pipeline(p->pipe, out);
    add_work(p, out);
    add_memory(p, out);
    plan_json_products(p, out);
    add_placement(p, out);
    add_collectives(p, out);
    add_traffic(p, out, true);
    add_notes(p->job->cfg, out);
    plan_json_time(p, out);
}
