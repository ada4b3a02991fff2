/* plan.c - reads a planned module: parameters, collectives, flops. See plan.h. */
#include "frontend/plan/plan.h"
#include "ir/layout.h"
#include "passes/cost/message.h"
#include "passes/pipe/op_tasks.h"

const char *const plan_part_name[PLAN_PARTS] = {"forward layers", "backward layers",
                                                "embedding, head and loss", "step"};

/* ---- how often a function runs ---- */

/* The model may be in the step several times, the first and the last micro-batch with
 * collectives of their own (passes/model/train.c); of a pipeline each micro-batch is one,
 * which runs the tasks of the stage. */
typedef struct FuncRuns {
    const Func *f;
    int model;    /* not all of it, but the ops with this number; 0: those without */
    int64_t runs; /* in a step */
    int64_t *model_runs; /* in one run of each model */
    int64_t micro_runs;  /* the least of them: in every micro-batch */
    bool in_model, in_layers, backward;
} FuncRuns;

typedef struct Walk {
    Plan *p;
    Arena *mem;
    FuncRuns *func; /* callers before callees */
    int n;
    int nmodels;
    const Task *task; /* by op id of the entry of a stage; NULL: there are no stages */
} Walk;

/* Is the op one of these? */
static bool is_of(const FuncRuns *r, const Op *op) {
    return op_int(op, "model", 0) == r->model;
}

static int models_in(const Func *f) {
    int n = 0;
    for (const Op *op = f->first; op; op = op->next)
        n = MAX(n, (int)op_int(op, "model", 0));
    return n;
}

static FuncRuns *find_func(Walk *w, const Func *f) {
    for (int i = 0; i < w->n; i++)
        if (w->func[i].f == f) return &w->func[i];
    die("@%s is called but not in the order of the module", f->name);
}

static void list_functions(Walk *w, const Module *m) {
    Func **order = module_order(w->mem, m);
    int n = order_length(order);
    int models = 0; /* that pass inline made parts of their callers */
    for (int i = 0; i < n; i++) models = MAX(models, models_in(order[i]));
    w->func = NEW_ARRAY(w->mem, FuncRuns, (size_t)n + (size_t)models + 1);
    for (int i = n; i-- > 0;) {
        if (order[i]->role == ROLE_KERNEL) continue;
        w->func[w->n++].f = order[i];
        w->nmodels += func_is_gradient(order[i]) + models_in(order[i]);
        for (int k = 1; k <= models_in(order[i]); k++)
            w->func[w->n++] = (FuncRuns){.f = order[i], .model = k};
    }
    if (w->task) w->nmodels = (int)w->p->job->micro;
    for (int i = 0, nth = 0; i < w->n; i++) {
        FuncRuns *r = &w->func[i];
        r->model_runs = NEW_ARRAY(w->mem, int64_t, (size_t)w->nmodels + 1);
        bool model = func_is_gradient(r->f) || r->model;
        r->in_model = model || r->f->task;
        if (model && !w->task) r->model_runs[nth++] = 1;
    }
}

static void count_call(Walk *w, const FuncRuns *caller, const Op *op) {
    FuncRuns *callee = find_func(w, op_func(op));
    int64_t repeats = call_of(op).times;
    callee->runs = plus_capped(callee->runs, times_capped(caller->runs, repeats));
    for (int k = 0; k < w->nmodels && caller->in_model; k++) {
        int64_t more = times_capped(caller->model_runs[k], repeats);
        callee->model_runs[k] = plus_capped(callee->model_runs[k], more);
    }
    if (w->task && caller->f == w->p->entry && op_is_task(op))
        callee->model_runs[w->task[op->id].micro]++;
    callee->in_layers |= caller->in_model;
    callee->in_model |= caller->in_model;
    callee->backward |= caller->backward || callee->f->part == PART_BACKWARD ||
                        callee->f->task > TASK_FORWARD;
    callee->in_layers &= !callee->f->task;
}

static void count_runs(Walk *w, const Module *m) {
    if (m->stages > 1) {
        func_number((Func *)(uintptr_t)w->p->entry);
        w->task = op_tasks(w->mem, w->p->entry);
    }
    list_functions(w, m);
    find_func(w, w->p->entry)->runs = 1;
    for (int i = 0; i < w->n; i++) {
        FuncRuns *caller = &w->func[i];
        if (caller->model) caller->runs = find_func(w, caller->f)->runs;
        for (const Op *op = caller->f->first; op; op = op->next) {
            bool calls = op_calls_ops(op);
            if (calls && is_of(caller, op)) count_call(w, caller, op);
        }
        caller->micro_runs = w->nmodels ? INT64_MAX : 0;
        for (int k = 0; k < w->nmodels; k++) {
            caller->micro_runs = MIN(caller->micro_runs, caller->model_runs[k]);
        }
    }
}

static PlanPart part_of(const FuncRuns *r) {
    if (!r->in_model) return PLAN_STEP;
    if (!r->in_layers) return PLAN_MODEL;
    return r->backward ? PLAN_BACKWARD : PLAN_FORWARD;
}

/* ---- collectives ---- */

static PlanComm *comm_row(Walk *w, const FuncRuns *r, const Op *op, const char *axes) {
    Plan *p = w->p;
    const char *kind = optab[op->kind].name;
    for (int i = 0; i < p->ncomm; i++) {
        PlanComm *c = &p->comm[i];
        if (c->function == r->f->name && c->model == r->model && c->part == part_of(r) &&
            !strcmp(c->kind, kind) && !strcmp(c->axes, axes))
            return c;
    }
    PlanComm c = {.kind = kind,
                  .axes = axes,
                  .function = r->f->name,
                  .model = r->model,
                  .part = part_of(r),
                  .runs = r->runs,
                  .micro_runs = r->micro_runs};
    PUSH(w->mem, p->comm, p->ncomm, p->comm_cap, c);
    return &p->comm[p->ncomm - 1];
}

static void count_collective(Walk *w, const FuncRuns *r, const Op *op) {
    int n = mesh_group_size(&w->p->m->mesh, op_axes(op));
    if (n == 1) return;
    PlanComm *c = comm_row(w, r, op, op_attr(op, "axis")->s);
    c->group = n;
    c->operations++;
    c->operands += op->nin;
    for (int i = 0; i < op->nin; i++) {
        int64_t bytes = type_bytes(&op->in[i]->ty);
        c->bytes = plus_capped(c->bytes, bytes);
        c->sent_bytes =
            plus_capped(c->sent_bytes, message_sent_bytes(op->kind, bytes, n));
    }
}

static PlanTraffic *traffic_row(Walk *w, const PlanComm *c) {
    Plan *p = w->p;
    for (int i = 0; i < p->ntraffic; i++)
        if (!strcmp(p->traffic[i].axes, c->axes)) return &p->traffic[i];
    int64_t none = w->nmodels ? INT64_MAX : 0; /* the least is wanted */
    PlanTraffic t = {.axes = c->axes,
                     .group = c->group,
                     .micro_operations = none,
                     .micro_sent_bytes = none};
    PUSH(w->mem, p->traffic, p->ntraffic, p->traffic_cap, t);
    return &p->traffic[p->ntraffic - 1];
}

/* What one run of model k sends over the axes of t. */
static void add_model_traffic(Walk *w, PlanTraffic *t, int k) {
    int64_t operations = 0, sent = 0;
    for (int i = 0; i < w->p->ncomm; i++) {
        const PlanComm *c = &w->p->comm[i];
        if (strcmp(c->axes, t->axes)) continue;
        int64_t runs = 0;
        for (int f = 0; f < w->n; f++)
            if (w->func[f].f->name == c->function && w->func[f].model == c->model)
                runs = w->func[f].model_runs[k];
        operations = plus_capped(operations, times_capped(c->operations, runs));
        sent = plus_capped(sent, times_capped(c->sent_bytes, runs));
    }
    t->micro_operations = MIN(t->micro_operations, operations);
    t->micro_sent_bytes = MIN(t->micro_sent_bytes, sent);
}

static void add_traffic(Walk *w) {
    Plan *p = w->p;
    for (int i = 0; i < p->ncomm; i++) {
        const PlanComm *c = &p->comm[i];
        PlanTraffic *t = traffic_row(w, c);
        t->operations = plus_capped(t->operations, times_capped(c->operations, c->runs));
        t->sent_bytes = plus_capped(t->sent_bytes, times_capped(c->sent_bytes, c->runs));
    }
    for (int i = 0; i < p->ntraffic; i++) {
        for (int k = 0; k < w->nmodels; k++) add_model_traffic(w, &p->traffic[i], k);
    }
}

/* By part, else as they were found; few rows. */
static void sort_collectives(Plan *p) {
    for (int i = 1; i < p->ncomm; i++) {
        PlanComm c = p->comm[i];
        int at = i;
        for (; at > 0 && p->comm[at - 1].part > c.part; at--)
            p->comm[at] = p->comm[at - 1];
        p->comm[at] = c;
    }
}

/* ---- ops ---- */

static void count_ops(Walk *w) {
    for (int i = 0; i < w->n; i++) {
        const FuncRuns *r = &w->func[i];
        for (const Op *op = r->f->first; op && r->runs; op = op->next) {
            const Func *callee = op_callee(op);
            if (!is_of(r, op)) continue;
            if (op_has(op, F_COMM)) count_collective(w, r, op);
            if (!callee || callee->role == ROLE_KERNEL)
                work_add_op(w->p->done, op, r->in_model, (double)r->runs);
            plan_add_product(w->mem, w->p, op, r->runs);
        }
    }
    const WorkSum *done = w->p->done;
    w->p->matmul_flops = done[WORK_PRODUCTS].f32_flops + done[WORK_PRODUCTS].bf16_flops;
    w->p->attention_flops =
        done[WORK_ATTENTION].f32_flops + done[WORK_ATTENTION].bf16_flops;
}

/* Messages of the entry to other stages. */
static void count_messages(Walk *w) {
    Plan *p = w->p;
    int stages = MAX(p->m->stages, 1);
    p->messages = NEW_ARRAY(w->mem, PlanMessages, (size_t)stages);
    for (const Op *op = p->entry->first; op; op = op->next) {
        const Attr *to = op_has(op, F_EFFECT) && op->nout ? op_attr(op, "to") : NULL;
        int k = 0;
        if (!to) continue;
        while (k < p->nmessages && p->messages[k].to != to->i) k++;
        if (k == p->nmessages)
            p->messages[p->nmessages++] = (PlanMessages){.to = (int)to->i};
        p->messages[k].messages++;
        p->messages[k].bytes =
            plus_capped(p->messages[k].bytes, type_bytes(&op->in[0]->ty));
    }
}

/* ---- parameters ---- */

static void add_states(const Plan *p, PlanParam *row) {
    const Func *f = p->entry;
    for (int i = 0; i < f->narg; i++) {
        if (arg_role(f, i) != ARG_state || strcmp(arg_str(f, i, "like", ""), row->name))
            continue;
        row->state_bytes = plus_capped(row->state_bytes, type_bytes(&f->arg[i]->ty));
        row->state_axes = arg_str(f, i, "flat", "");
    }
}

/* Elements of an argument's tensor, of the layers that it has of a stack. */
static int64_t count_of(const Layout *l) {
    int64_t n = type_count(&l->whole);
    return l->rows ? n / l->whole.dim[0] * l->rows : n;
}

static void read_parameters(Walk *w) {
    Plan *p = w->p;
    const Func *f = p->entry;
    p->param = NEW_ARRAY(w->mem, PlanParam, (size_t)f->narg + 1);
    for (int i = 0; i < f->narg; i++) p->nparam += arg_role(f, i) == ARG_param;
    for (int i = 0, nth = 0; i < f->narg; i++) {
        if (arg_role(f, i) != ARG_param) continue;
        const Value *v = f->arg[i];
        Layout l = layout_of(w->mem, f, i);
        PlanParam *row = &p->param[nth];
        *row = (PlanParam){.name = v->name,
                           .placement = type_text(w->mem, &p->m->mesh, &l.whole),
                           .weight_axes = mesh_axes_text(w->mem, &p->m->mesh, l.flat),
                           .state_axes = "",
                           .flattened = l.flattened,
                           .count = count_of(&l),
                           .rank_count = type_count(&v->ty),
                           .weight_bytes = type_bytes(&v->ty)};
        row->gradient_bytes = memory_gradient_bytes(f, i);
        add_states(p, row);
        bool earlier = attr_find(f->arg_attr[i], "same"); /* another stage has it */
        if (!earlier) p->parameters = plus_capped(p->parameters, row->count);
        p->rank_parameters = plus_capped(p->rank_parameters, row->rank_count);
        nth++;
    }
}

/* ---- the whole ---- */

Plan plan_count(Arena *mem, const Func *entry, const Job *job) {
    Plan p = {.job = job, .m = entry->mod, .entry = entry};
    Walk w = {.p = &p, .mem = mem};
    check(p.m->level == LEVEL_PLANNED);
    p.ranks = mesh_ranks(&p.m->mesh);
    p.stage = entry->stage;
    p.memory = memory_plan(mem, entry);
    p.ahead_bytes = job_ahead_bytes(job);
    count_runs(&w, p.m);
    read_parameters(&w);
    count_ops(&w);
    count_messages(&w);
    sort_collectives(&p);
    add_traffic(&w);
    if (job->has_spec) p.parameters = model_parameters(&job->spec); /* without padding */
    return p;
}

int64_t plan_stage_parameters(const PlanPipe *p) {
    int64_t n = 0;
    for (int k = 0; k < p->schedule->stages; k++)
        n = plus_capped(n, p->stage[k].parameters);
    return n;
}

int64_t plan_sent_bytes(const Plan *p) {
    int64_t bytes = 0;
    for (int i = 0; i < p->ntraffic; i++)
        bytes = plus_capped(bytes, p->traffic[i].sent_bytes);
    for (int i = 0; i < p->nmessages; i++)
        bytes = plus_capped(bytes, p->messages[i].bytes);
    return bytes;
}

Plan plan_read(Arena *mem, const Func *entry, const Job *job) {
    Plan p = plan_count(mem, entry, job);
    const char *text = module_print(mem, p.m);
    hash_hex(text, strlen(text), p.hash);
    return p;
}

int plan_stage_count(const Plan *p) {
    return p->pipe ? p->pipe->schedule->stages : 1;
}

const Plan *plan_stage(const Plan *p, int k) {
    return p->pipe ? &p->pipe->stage[k] : p;
}

int plan_host_ranks(const Plan *p) {
    return machine_host_ranks(p->machine, p->ranks * plan_stage_count(p));
}

const MachineRank *plan_machine_rank(const Plan *p) {
    return machine_rank_of(p->machine, p->ranks * plan_stage_count(p), p->threads);
}

const Func **plan_entries(Arena *mem, const Plan *p) {
    int stages = plan_stage_count(p);
    const Func **entry = NEW_ARRAY(mem, const Func *, (size_t)stages);
    for (int k = 0; k < stages; k++) entry[k] = plan_stage(p, k)->entry;
    return entry;
}

/* The plan of the stage that needs most memory. */
static const Plan *largest(const Plan *p) {
    const Plan *most = p;
    for (int k = 0; k < plan_stage_count(p); k++)
        if (plan_stage(p, k)->memory.total_bytes > most->memory.total_bytes)
            most = plan_stage(p, k);
    return most;
}

int64_t plan_process_bytes(const Config *cfg) {
    return PLAN_PROCESS_BYTES + (cfg->profile ? PLAN_PROFILE_BYTES : 0);
}

static int64_t packed_bytes(const Config *cfg, int threads) {
    return cfg->model_compute_dtype == FLOAT_32 ? threads * (int64_t)PLAN_THREAD_BYTES
                                                : 0;
}

int64_t plan_packed_bytes(const Config *cfg, int threads, int64_t plan_bytes) {
    return MIN(packed_bytes(cfg, threads), plan_bytes);
}

int64_t plan_room_bytes(const Config *cfg, int threads, int64_t left_bytes) {
    return MAX(left_bytes - packed_bytes(cfg, threads), left_bytes / 2);
}

const char *plan_memory_where(Arena *mem, const Job *j, int stage) {
    if (j->strategy.stages < 2) return "on every rank";
    return arena_printf(mem, "on every rank of stage %d", stage);
}

const char *plan_memory_hint(Arena *mem, const Job *j) {
    return arena_printf(
        mem,
        "%s%smore ranks that share weights or tokens (parallel_config), "
        "optimizer_shard, a smaller batch or sequence, more micro-batches "
        "(parallel_config.micro_batch_num), parallel.overlap_param_gather False",
        j->strategy.stages > 1 ? "fewer layers there (parallel_config.num_layer_list), "
                               : "",
        j->strategy.remake_auto ? "" : "recompute_config.recompute auto, ");
}

void plan_check_memory(const Plan *all) {
    const Plan *p = largest(all);
    Arena *mem = p->job->mem;
    int64_t limit = p->job->cfg->context_max_device_memory;
    int64_t beside = plan_process_bytes(p->job->cfg) + p->ahead_bytes;
    if (!limit || p->memory.total_bytes <= limit - beside) return;
    if (beside >= limit)
        fail(EXIT_MEMORY,
             "the process alone needs %.1f MB, %.1f of them for batches that are read "
             "ahead, and nothing is left of context.max_device_memory, %s, for the plan\n"
             "    hint: a larger context.max_device_memory%s%s",
             (double)beside / 1e6, (double)p->ahead_bytes / 1e6,
             config_memory_limit(p->job->cfg),
             p->job->cfg->profile ? ", profile False" : "",
             p->ahead_bytes ? ", or a smaller train_dataset.prefetch_size, batch or "
                              "sequence"
                            : "");
    fail(EXIT_MEMORY,
         "the plan needs %.1f MB %s, and the process %.1f MB besides, more "
         "than context.max_device_memory, %s\n    hint: %s, or a larger "
         "context.max_device_memory",
         (double)p->memory.total_bytes / 1e6, plan_memory_where(mem, p->job, p->stage),
         (double)beside / 1e6, config_memory_limit(p->job->cfg),
         plan_memory_hint(mem, p->job));
}
