/* plan_trace.c - the step of a plan in the trace event format (runtime/run/trace.h): a rank of
 * each stage, with the names of tasks, functions and collectives. */
#include "frontend/plan/plan_trace.h"
#include "runtime/run/trace.h"
#include <math.h>

enum { EVENTS_MOST = 1 << 19 }; /* some 70 MB */

/* Above that doubles do not have all nanoseconds. */
static const double seconds_most = 9e6;

typedef struct Writer {
    Arena *mem;
    const RankProgram *p;
    const Func *const *order; /* functions of the stage by Func.nth */
    Trace trace;
    Text out;
    double beside_end; /* a link shows one collective at a time */
} Writer;

static const char *collective_name(const Writer *w, const RankPiece *p) {
    return arena_printf(w->mem, "%s %s", optab[p->op].name,
                        mesh_axes_text(w->mem, w->p->parts.mesh, p->axes));
}

static OpRow row_of(const Writer *w, const RankEvent *e) {
    const RankPiece *p = e->piece;
    const StageMessage *m = &w->p->parts.message[p->message];
    OpRow row = {.where = arena_printf(w->mem, "@%s", w->order[e->func]->name)};
    if (p->is_task) {
        row.name = task_text(w->mem, p->task);
        row.kind = "task";
    } else if (p->kind == RANK_CALL) {
        row.name = arena_printf(w->mem, "@%s", w->order[p->callee]->name);
        row.kind = "call";
    } else if (p->kind == RANK_COLLECTIVE || e->beside) {
        row.name = collective_name(w, p);
        row.kind = "collective";
    } else if (p->kind == RANK_ARRIVE) {
        row.name = arena_printf(w->mem, "wait for %s", collective_name(w, p));
        row.kind = "wait";
    } else if (p->kind == RANK_RECEIVE || p->kind == RANK_SENT) {
        bool receives = p->kind == RANK_RECEIVE;
        row.name =
            arena_printf(w->mem, "%s stage %d", receives ? "receive from" : "sent to",
                         receives ? m->from : m->to);
        row.kind = "message";
    } else {
        row.name = p->kind == RANK_DRAIN ? "the queue of ops" : "compute";
        row.kind = "compute";
    }
    return row;
}

static void add_event(Writer *w, const RankEvent *e) {
    OpRow row = row_of(w, e);
    OpTime time = {0, e->begin, e->end};
    if (e->beside) {
        time.begin = MIN(MAX(e->begin, w->beside_end), e->end);
        w->beside_end = MAX(w->beside_end, e->end);
    }
    w->trace.op = &row;
    trace_add(&w->out, &w->trace, e->beside ? LOG_BESIDE : LOG_COMPUTE, 1, &time);
}

static void add_stage(Writer *w, const RankStep *step, int stage) {
    OpTime all = {MARK_STEP, 0, step->shown[stage].end};
    Arena *own = arena_new(), *mem = w->mem;
    w->mem = own;
    w->order =
        (const Func *const *)module_order(own, w->p->parts.stage[stage].entry->mod);
    w->beside_end = 0;
    trace_add_rank(&w->out, &w->trace);
    trace_add(&w->out, &w->trace, LOG_COMPUTE, 1, &all);
    for (int i = 0; i < step->log[stage].n; i++) add_event(w, &step->log[stage].event[i]);
    arena_free(own);
    w->mem = mem;
}

void plan_trace_check(const RankProgram *p) {
    double events = rank_program_pieces(p);
    if (events > EVENTS_MOST)
        fail(
            EXIT_CONFIG,
            "--trace: a step would be %.0f events, and a trace has %d at most\n    hint: "
            "fewer micro-batches show the same (parallel_config.micro_batch_num), or "
            "--svg",
            events, EVENTS_MOST);
}

static void check_seconds(const RankProgram *p, const RankStep *step) {
    for (int s = 0; s < p->parts.stages; s++)
        if (!(step->shown[s].end <= seconds_most))
            fail(EXIT_CONFIG,
                 "--trace: the step takes %.4g s, and a trace has nanoseconds of %.0f s "
                 "at most\n    hint: --svg",
                 step->shown[s].end, seconds_most);
}

void plan_trace_write(const RankProgram *p, const RankStep *step, int rank,
                      const char *path) {
    check_seconds(p, step);
    Arena *mem = arena_scratch();
    Writer w = {.mem = mem, .p = p, .out = text_new(mem)};
    for (int s = 0; s < p->parts.stages; s++) {
        int number = mesh_rank_at(p->parts.mesh, p->parts.stages, s, rank);
        w.trace = (Trace){.rank = number, .host = p->parts.machine->name};
        add_stage(&w, step, s);
    }
    Text file = text_new(mem);
    text_add(&file, "%s", trace_head);
    text_add_bytes(&file, w.out.s + TRACE_COMMA_BYTES, w.out.n - TRACE_COMMA_BYTES);
    text_add(&file, "%s", trace_tail);
    file_write(path, file.s, file.n, EXIT_DATA);
    arena_free(mem);
}

static RankProgram program_of(Arena *mem, const Plan *p) {
    int stages = plan_stage_count(p);
    RankProgram r =
        rank_program(mem, p->machine, plan_entries(mem, p), stages, p->threads);
    if (r.parts.share.places && stages > 1)
        fail(EXIT_CONFIG,
             "--trace: on machine %s %d stages share the cores of a host, and when each "
             "of "
             "their ops runs is not known\n    hint: --svg draws their tasks",
             p->machine->name, stages);
    return r;
}

void plan_trace(const Plan *p, const char *path) {
    Arena *mem = arena_scratch();
    RankProgram program = program_of(mem, p);
    plan_trace_check(&program);
    RankStep step =
        rank_run_step(mem, rank_run_alone(mem, &program), 0, (RankShow){0, true});
    plan_trace_write(&program, &step, 0, path);
    arena_free(mem);
}
