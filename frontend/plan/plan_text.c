/* plan_text.c - a plan for people. */
#include "frontend/plan/plan.h"
#include "passes/cost/message.h"
#include "runtime/core/rt.h"
#include <stdlib.h>

enum { BAR_CHARS = 40, GROUPS_SHOWN = 3, MEMBERS_SHOWN = 8 };

typedef struct Out {
    Arena *mem;
    Text *s;
    const Plan *p;
} Out;

static const char *bytes(const Out *o, int64_t n) {
    return n ? arena_strdup(o->mem, human((double)n, "B").s) : "-";
}

/* ---- model and work ---- */

static void add_model(const Out *o) {
    text_add(o->s, "model     %s\n", job_title(o->mem, o->p->job));
    text_add(o->s, "          %lld parameters (%s), %s on a rank\n",
             (long long)o->p->parameters, human((double)o->p->parameters, "").s,
             human((double)o->p->rank_parameters, "").s);
}

static double rank_flops(const Plan *p) {
    return p->matmul_flops + p->attention_flops;
}

/* Of all ranks of all stages. */
static double all_flops(const Plan *p) {
    double flops = 0;
    for (int k = 0; k < plan_stage_count(p); k++) flops += rank_flops(plan_stage(p, k));
    return flops * p->ranks;
}

/* "full,-h,-q": "all but h, q". */
static void add_policy(const Out *o, const char *at, const char *end) {
    static const char all[] = "full,-";
    size_t skip = strlen(all);
    bool but = (size_t)(end - at) > skip && !memcmp(at, all, skip);
    if (but) text_add(o->s, "all but ");
    for (at += but ? skip : 0; at < end; at++) {
        if (*at == ',') text_add(o->s, ", ");
        if (*at != ',' && !(but && *at == '-' && at[-1] == ','))
            text_add(o->s, "%c", *at);
    }
}

/* "2:full;norm" of a chunk: "full of 2 layers, norm of the others". */
static void add_span(const Out *o, const char *span, size_t n, bool first) {
    const char *colon = memchr(span, ':', n), *x = memchr(span, 'x', n);
    int64_t layers = atoll(span);
    if (!first) text_add(o->s, "; ");
    add_policy(o, colon ? colon + 1 : span, span + n);
    if (colon && x && x < colon)
        text_add(o->s, " of each %lld layers together", (long long)atoll(x + 1));
    else if (colon)
        text_add(o->s, " of %lld layer%s", (long long)layers, layers == 1 ? "" : "s");
    else
        text_add(o->s, first ? " of each layer" : " of the others");
}

/* Of one chunk, up to the end of the text or '|', which is returned. */
static const char *add_chunk_spans(const Out *o, const char *text) {
    size_t n = strcspn(text, "|");
    if (!n) text_add(o->s, "nothing");
    for (size_t at = 0; at < n;) {
        size_t length = strcspn(text + at, ";|");
        add_span(o, text + at, length, !at);
        at += length + 1;
    }
    return text + n;
}

static void add_spans(const Out *o, const char *text) {
    bool chunks = strchr(text, '|');
    for (int c = 0;; c++) {
        if (chunks) text_add(o->s, "%schunk %d: ", c ? "\n          " : "", c);
        text = add_chunk_spans(o, text);
        if (!*text++) break;
    }
    if (!chunks && o->p->pipe) text_add(o->s, " in each chunk");
}

/* What backward computes again. */
static void add_remade(const Out *o) {
    const Job *w = o->p->job;
    const char *remake = w->strategy.remake;
    if (!remake) return;
    text_add(o->s, "again     ");
    add_spans(o, remake);
    text_add(o->s, "\n          %s more a %s in products, %.1f %% of the model\n",
             human(w->remade_per_token, "flop").s, job_unit(w),
             100 * w->remade_per_token / MAX(w->flops_per_token, 1));
}

static void add_work(const Out *o) {
    const Job *w = o->p->job;
    double tokens = (double)w->batch * (double)w->micro * (double)w->seq;
    double model = w->flops_per_token * tokens;
    const char *plural = w->micro == 1 ? "" : "es";
    if (w->ncolumns)
        text_add(o->s, "step      %lld micro-batch%s of %lld samples: %lld samples\n",
                 (long long)w->micro, plural, (long long)w->batch,
                 (long long)(w->batch * w->micro));
    else
        text_add(o->s,
                 "step      %lld micro-batch%s of %lld sequences of %lld tokens: %lld "
                 "sequences, %s tokens\n",
                 (long long)w->micro, plural, (long long)w->batch, (long long)w->seq,
                 (long long)(w->batch * w->micro), human(tokens, "").s);
    if (w->parts > 1)
        text_add(o->s, "          each micro-batch in %lld parts beside each other\n",
                 (long long)w->parts);
    text_add(o->s, "flops     %s a step (%s a %s) for the model\n",
             human(model, "flop").s, human(w->flops_per_token, "").s, job_unit(w));
    add_remade(o);
    text_add(o->s,
             "          %s a step on a rank%s: products %s, attention %s; all ranks "
             "%.2f x the model\n",
             human(rank_flops(o->p), "flop").s, o->p->pipe ? " of stage 0" : "",
             human(o->p->matmul_flops, "").s, human(o->p->attention_flops, "").s,
             model > 0 ? all_flops(o->p) / model : 0);
}

/* ---- mesh ---- */

static void add_group(const Out *o, Axes axes, int first) {
    const Mesh *m = &o->p->m->mesh;
    int n = mesh_group_size(m, axes);
    text_add(o->s, " {");
    for (int k = 0; k < MIN(n, MEMBERS_SHOWN); k++)
        text_add(o->s, "%s%d", k ? " " : "",
                 mesh_rank_at(m, plan_stage_count(o->p), 0,
                              mesh_group_member(m, first, axes, k)));
    text_add(o->s, "%s}", n > MEMBERS_SHOWN ? " ..." : "");
}

/* The first ranks of groups are those with coordinate 0 on all of the axes. */
static void add_groups(const Out *o, const char *name, Axes axes) {
    const Mesh *m = &o->p->m->mesh;
    int n = mesh_group_size(m, axes), groups = o->p->ranks / n, shown = 0;
    text_add(o->s, "  %-8s %5d group%s of %5d", name, groups, groups == 1 ? " " : "s", n);
    for (int r = 0; r < o->p->ranks && shown < MIN(groups, GROUPS_SHOWN); r++) {
        if (mesh_group_coord(m, r, axes)) continue;
        add_group(o, axes, r);
        shown++;
    }
    text_add(o->s, "%s\n", groups > GROUPS_SHOWN ? " ..." : "");
}

static void add_order(const Out *o) {
    const Plan *p = o->p;
    if (p->m->mesh.norder)
        text_add(o->s, "  numbered %s, neighbouring ranks first\n",
                 rank_order_text(o->s->mem, &p->job->strategy.order));
}

/* Does a group of the axis, or a pair of neighbouring stages, have ranks of several hosts? */
static bool crosses_hosts(const Out *o, int axis) {
    const Plan *p = o->p;
    const Mesh *m = &p->m->mesh;
    int stages = plan_stage_count(o->p);
    if (axis < m->naxes)
        return group_shape(p->machine, m, (Axes)(1u << axis), stages).level ==
               LINK_NETWORK;
    for (int k = 0; k + 1 < stages; k++)
        if (stages_shape(p->machine, m, stages, k, k + 1).level == LINK_NETWORK)
            return true;
    return false;
}

static void add_axes_of(const Out *o, bool between, const char *words) {
    const Mesh *m = &o->p->m->mesh;
    int n = 0;
    for (int a = m->naxes; a >= 0; a--) {
        int size = a == m->naxes ? plan_stage_count(o->p) : m->axis[a].size;
        if (size == 1 || crosses_hosts(o, a) != between) continue;
        text_add(o->s, "%s%s", n++ ? ", " : "", a == m->naxes ? "pp" : m->axis[a].name);
    }
    if (n) text_add(o->s, " %s", words);
}

/* What goes over the network of the machine. */
static void add_hosts(const Out *o) {
    const Plan *p = o->p;
    int all = p->ranks * plan_stage_count(o->p),
        host = p->machine ? p->machine->host_ranks : 0;
    if (!host || host >= all) return;
    text_add(o->s, "  hosts    %lld of %d ranks: ", (long long)divided_up(all, host),
             host);
    size_t before = o->s->n;
    add_axes_of(o, false, "within a host");
    if (o->s->n > before) text_add(o->s, "; ");
    add_axes_of(o, true, "between hosts");
    text_add(o->s, "\n");
}

static void add_mesh(const Out *o) {
    const Mesh *m = &o->p->m->mesh;
    int stages = plan_stage_count(o->p);
    text_add(o->s, "\nranks     %d", o->p->ranks * stages);
    if (o->p->pipe) text_add(o->s, " = pp %d", stages);
    for (int a = 0, n = stages > 1; a < m->naxes; a++) {
        if (m->axis[a].size == 1) continue;
        text_add(o->s, "%s%s %d", n++ ? " x " : " = ", m->axis[a].name, m->axis[a].size);
    }
    text_add(o->s, "%s\n",
             o->p->ranks == 1 ? ""
             : o->p->pipe     ? "; the ranks of a stage have the same program and memory"
                              : ", all with the same program and memory");
    for (int a = 0; a < m->naxes; a++)
        if (m->axis[a].size > 1) add_groups(o, m->axis[a].name, (Axes)(1u << a));
    for (int i = 0; i < o->p->ntraffic; i++) {
        Axes axes;
        if (!strchr(o->p->traffic[i].axes, '.')) continue;
        check(mesh_axes_parse(m, o->p->traffic[i].axes, &axes));
        add_groups(o, o->p->traffic[i].axes, axes);
    }
    add_order(o);
    add_hosts(o);
}

/* ---- memory ---- */

static void add_memory(const Out *o) {
    const MemoryPlan *plan = &o->p->memory;
    int64_t total = MAX(plan->total_bytes, 1),
            limit = o->p->job->cfg->context_max_device_memory;
    text_add(o->s, "\nmemory    %s on %s", bytes(o, plan->total_bytes),
             o->p->ranks == 1 ? "the only rank" : "every rank");
    int64_t process = plan_process_bytes(o->p->job->cfg);
    int64_t all = plan->total_bytes + process + o->p->ahead_bytes;
    if (limit)
        text_add(o->s, "; %s with the process, %.1f %% of context.max_device_memory %s",
                 bytes(o, all), 100.0 * (double)all / (double)limit,
                 config_memory_limit(o->p->job->cfg));
    text_add(o->s, "\n");
    for (int i = 0; i < MEM_CLASSES; i++) {
        char bar[BAR_CHARS + 1] = {0};
        double share = (double)plan->class_bytes[i] / (double)total;
        int n = (int)(share * BAR_CHARS + 0.5);
        memset(bar, '#', (size_t)MAX(0, MIN(n, BAR_CHARS)));
        text_add(o->s, "  %-12s %9s %5.1f %%  %s\n", memory_class_name[i],
                 bytes(o, plan->class_bytes[i]), 100 * share, bar);
    }
}

/* What the limit is compared with besides. */
static void add_beside(const Out *o) {
    const Config *cfg = o->p->job->cfg;
    if (!cfg->context_max_device_memory) return;
    text_add(
        o->s, "  %-12s %9s besides: libraries, MPI, compiler, data source%s (stated)\n",
        "process", bytes(o, plan_process_bytes(cfg)), cfg->profile ? ", profile" : "");
    text_add(o->s, "  %-12s %9s besides: read ahead\n", "batches",
             bytes(o, o->p->ahead_bytes));
}

/* ---- work ---- */

static double flops_of(const WorkSum *w) {
    return w->f32_flops + w->bf16_flops;
}

static const char *count(const Out *o, double n, const char *unit) {
    return n > 0 ? arena_strdup(o->mem, human(n, unit).s) : "-";
}

static void add_work_row(const Out *o, const char *name, const WorkSum *done,
                         const WorkSum *needed) {
    if (!(flops_of(done) > 0 || done->bytes > 0 || needed->bytes > 0)) return;
    text_add(o->s, "  %-12s %9s %9s  %9s %9s\n", name, count(o, flops_of(done), ""),
             count(o, flops_of(needed), ""), count(o, done->bytes, "B"),
             count(o, needed->bytes, "B"));
}

static void add_bound(const Out *o) {
    const Plan *p = o->p;
    const WorkRates *r = &p->rates;
    bool first = true;
    if (!(r->bytes > 0)) return;
    text_add(o->s, "  bound %.4g s a step (", plan_bound_seconds(p));
    for (int k = 0; k < WORK_KINDS; k++) {
        double seconds = work_bound_seconds(p->needed, (WorkKind)k, r);
        if (!(seconds > 0)) continue;
        text_add(o->s, "%s%s %.3g", first ? "" : ", ", work_kind_name[k], seconds);
        first = false;
    }
    text_add(o->s, ") at %s f32", human(r->f32_flops, "FLOP/s").s);
    if (work_asks_bf16(p->needed))
        text_add(o->s, ", %s bf16", human(r->bf16_flops, "FLOP/s").s);
    text_add(o->s, ", %s\n", human(r->bytes, "B/s").s);
}

static void add_work_table(const Out *o) {
    const Plan *p = o->p;
    WorkSum needed[WORK_KINDS], all = work_total(p->done);
    if (!p->needed) return;
    for (int k = 0; k < WORK_KINDS; k++) needed[k] = work_sum(p->needed, (WorkKind)k);
    WorkSum must = work_total(needed);
    text_add(o->s,
             "\nwork of a step on %s\n"
             "  %-12s %9s %9s  %9s %9s\n",
             p->ranks == 1 ? "the only rank" : "every rank", "", "flops", "needed",
             "bytes", "needed");
    for (int k = 0; k < WORK_KINDS; k++)
        add_work_row(o, work_kind_name[k], &p->done[k], &needed[k]);
    add_work_row(o, "all", &all, &must);
    add_bound(o);
}

/* ---- placement ---- */

/* "tp" of `f32[12,768,3072:tp]` is seen there; what flattening adds is said after it. */
static const char *over(const Out *o, const PlanParam *r) {
    if (r->weight_axes[0]) return arena_printf(o->mem, "all over %s", r->weight_axes);
    if (r->state_axes[0]) return arena_printf(o->mem, "state over %s", r->state_axes);
    return "";
}

static void add_placement(const Out *o) {
    int name = 9, shape = 6;
    for (int i = 0; i < o->p->nparam; i++) {
        name = MAX(name, MIN((int)strlen(o->p->param[i].name), 44));
        shape = MAX(shape, MIN((int)strlen(o->p->param[i].placement), 44));
    }
    text_add(o->s, "\nplacement, and bytes on a rank\n  %-*s %-*s %9s %9s %9s\n", name,
             "parameter", shape, "tensor", "weight", "gradient", "state");
    for (int i = 0; i < o->p->nparam; i++) {
        const PlanParam *r = &o->p->param[i];
        const char *further = over(o, r);
        text_add(o->s, "  %-*s %-*s %9s %9s %9s%s%s\n", name, r->name, shape,
                 r->placement, bytes(o, r->weight_bytes), bytes(o, r->gradient_bytes),
                 bytes(o, r->state_bytes), further[0] ? "  " : "", further);
    }
}

/* ---- collectives ---- */

static void add_collectives(const Out *o) {
    const Plan *p = o->p;
    if (!p->ncomm) {
        text_add(o->s, "\ncollectives: none\n");
        return;
    }
    text_add(
        o->s,
        "\ncollectives of a rank: tensors and bytes in one run, bytes sent a step\n");
    for (int i = 0; i < p->ncomm; i++) {
        const PlanComm *c = &p->comm[i];
        if (!i || c->function != c[-1].function)
            text_add(o->s, "  %s (@%s, %lld x a step)\n", plan_part_name[c->part],
                     c->function, (long long)c->runs);
        text_add(o->s, "    %4lld %-14s %-8s %4lld tensor%s %9s  sent %9s\n",
                 (long long)c->operations, c->kind, c->axes, (long long)c->operands,
                 c->operands == 1 ? " " : "s", bytes(o, c->bytes),
                 bytes(o, (int64_t)MIN((double)c->sent_bytes * (double)c->runs, 9e18)));
    }
    text_add(o->s, "  all, by axes\n");
    for (int i = 0; i < p->ntraffic; i++) {
        const PlanTraffic *t = &p->traffic[i];
        text_add(o->s,
                 "    %-8s a step %6lld operations %9s sent;  a micro-batch %6lld "
                 "operations %9s sent\n",
                 t->axes, (long long)t->operations, bytes(o, t->sent_bytes),
                 (long long)t->micro_operations, bytes(o, t->micro_sent_bytes));
    }
}

/* ---- pipeline ---- */

static int64_t layers_of_stage(const PlanPipe *p, int stage) {
    int64_t n = 0;
    for (int c = 0; c < p->schedule->chunks; c++)
        if (p->schedule->stage_of[c] == stage) n += p->layers[c];
    return n;
}

static void add_stages(const Out *o) {
    const PlanPipe *pipe = o->p->pipe;
    const PipeSchedule *s = pipe->schedule;
    text_add(o->s,
             "\npipeline  %d stages of %d ranks, %d chunk%s of layers, %d micro-batches, "
             "schedule %s\n  stage  layers  parameters  in flight    memory   weights "
             "optimizer gradients activations      sends\n",
             s->stages, o->p->ranks, s->chunks, s->chunks == 1 ? "" : "s", s->micro,
             s->name);
    for (int k = 0; k < s->stages; k++) {
        const Plan *p = &pipe->stage[k];
        const int64_t *by = p->memory.class_bytes;
        int64_t sent = 0;
        for (int i = 0; i < p->nmessages; i++) sent += p->messages[i].bytes;
        text_add(o->s, "  %5d %7lld %11s %10d %9s", k,
                 (long long)layers_of_stage(pipe, k),
                 human((double)p->rank_parameters, "").s, schedule_in_flight(s, k),
                 bytes(o, p->memory.total_bytes));
        text_add(o->s, " %9s %9s %9s %11s %10s\n", bytes(o, by[MEM_WEIGHTS]),
                 bytes(o, by[MEM_OPTIMIZER]), bytes(o, by[MEM_GRADIENTS]),
                 bytes(o, by[MEM_ACTIVATIONS]), bytes(o, sent));
    }
    text_add(o->s, "  bubble %.1f %% of the time, by the flops of the tasks alone\n",
             100 * plan_bubble(pipe));
    plan_draw(pipe, o->s);
}

static void add_stage(const Out *o) {
    const Plan *p = o->p;
    if (p->pipe) text_add(o->s, "\n-- stage %d --\n", p->stage);
    add_memory(o);
    add_beside(o);
    add_work_table(o);
    plan_print_products(p, o->s);
    add_placement(o);
    add_collectives(o);
    for (int i = 0; i < p->nmessages; i++)
        text_add(o->s, "  to stage %-4d a step %6lld messages   %9s sent\n",
                 p->messages[i].to, (long long)p->messages[i].messages,
                 bytes(o, p->messages[i].bytes));
}

void plan_print(Arena *mem, const Plan *p, double seconds, Text *out) {
    Out o = {mem, out, p};
    add_model(&o);
    add_work(&o);
    add_mesh(&o);
    if (p->pipe) add_stages(&o);
    for (int k = 0; k < plan_stage_count(p); k++) {
        Out stage = {mem, out, plan_stage(p, k)};
        add_stage(&stage);
    }
    plan_print_time(p, out);
    text_add(out, "\n");
    for (int i = 0; i < p->job->cfg->n_notes; i++)
        text_add(out, "note: %s\n", p->job->cfg->notes[i]);
    text_add(out, "plan %s", p->pipe ? p->pipe->hash : p->hash);
    int threads = p->job->threads ? p->job->threads : rt_threads();
    if (seconds > 0)
        text_add(out, " of %d thread%s a rank, made in %.2f s", threads,
                 threads == 1 ? "" : "s", seconds);
    text_add(out, "\n");
}
