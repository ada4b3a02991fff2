/* train_profile.c - records when the ops of some steps ran on every rank (the keys profile*),
 * and writes it behind the last of them, as traces and as tables. Rank 0 writes for all. */
#include "frontend/config/commands.h"
#include "frontend/plan/plan.h"
#include "frontend/train/train_record.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/watch.h"
#include "runtime/core/peak.h"
#include "runtime/core/rt.h"
#include "runtime/run/op_report.h"
#include "runtime/run/trace.h"
#include <errno.h>
#include <math.h>
#include <unistd.h>

/* Ops that a rank records at most, unless one step has more: 25 MB, some 200 MB of trace. */
enum { OPS_MOST = 1 << 20, SAID_OPS = 10 };
_Static_assert(OPS_MOST * sizeof(OpTime) <= PLAN_PROFILE_BYTES, "plans count less");

/* ---- before the first step ---- */

enum { CLOCK_ROUNDS = 32 };

/* What rank 0 knows of another clock: how far it is ahead, and how far that may be off. */
typedef struct ClockAhead {
    double seconds, off_seconds;
    bool last; /* of the messages: nothing more is asked */
} ClockAhead;

/* The other clock was read between question and answer, so each of them bounds the difference
 * from both sides. Where ranks share cores a message may wait for one, so questions go on until
 * the bounds are near or it has taken long. Within a host there is no difference: then that is
 * within the bounds, and is the answer. */
static ClockAhead ask_clock(int rank) {
    const double near_seconds = 10e-6, long_seconds = MIN(0.2, 4.0 / comm_size());
    double start = clock_seconds(), least = -INFINITY, most = INFINITY, theirs;
    for (int i = 0;; i++) {
        ClockAhead question = {0};
        double asked = clock_seconds();
        if (i >= CLOCK_ROUNDS &&
            (most - least < near_seconds || asked - start > long_seconds))
            break;
        comm_send_bytes(rank, &question, sizeof question);
        comm_receive_bytes(rank, &theirs, sizeof theirs);
        least = fmax(least, theirs - clock_seconds());
        most = fmin(most, theirs - asked);
    }
    double ahead = least <= 0 && 0 <= most ? 0 : (least + most) / 2;
    return (ClockAhead){ahead, fmax(most - ahead, ahead - least), .last = true};
}

static ClockAhead clock_ahead(void) {
    ClockAhead answer = {0};
    for (int k = 1; comm_rank() == 0 && k < comm_size(); k++) {
        ClockAhead theirs = ask_clock(k);
        comm_send_bytes(k, &theirs, sizeof theirs);
    }
    if (comm_rank() == 0) return answer;
    for (;;) {
        comm_receive_bytes(0, &answer, sizeof answer);
        if (answer.last) return answer;
        double now = clock_seconds();
        comm_send_bytes(0, &now, sizeof now);
    }
}

/* Of a step, on each thread. */
static void count_ops(Record *r) {
    r->log[LOG_COMPUTE].each = OP_MARKS;
    for (int i = 0; i < r->nops; i++) {
        r->log[LOG_COMPUTE].each += r->op[i].runs;
        if (r->op[i].waits) r->log[LOG_BESIDE].each += r->op[i].runs;
    }
}

static int64_t ops_of_step(const Record *r) {
    return r->log[LOG_COMPUTE].each + r->log[LOG_BESIDE].each;
}

void profile_plan(Train *t) {
    const Config *cfg = t->job.cfg;
    if (!cfg->profile) return;
    Record *r = t->record = NEW(t->mem, Record);
    r->op = program_ops(t->mem, t->program, &r->nops);
    count_ops(r);
    r->room = MAX(OPS_MOST / comm_max_i64(ops_of_step(r)), 1);
    int64_t last = MIN(cfg->profile_stop_step, t->steps);
    int64_t steps = MIN(last - cfg->profile_start_step + 1, r->room);
    t->profile_bytes = (uint64_t)(MAX(steps, 0) * ops_of_step(r)) * sizeof(OpTime);
}

void profile_measure(Train *t) {
    if (!t->record) return;
    uint64_t bytes = (uint64_t)t->program->plan.total_bytes;
    t->record->peak_bytes = memory_bandwidth_within(t->threads, bytes);
    comm_barrier(); /* all ranks of a host share its memory */
}

/* The steps that are recorded; false: none. */
static bool choose_steps(const Train *t, Record *r) {
    const Config *cfg = t->job.cfg;
    int64_t each = comm_max_i64(ops_of_step(r)), room = r->room;
    r->first = MAX(cfg->profile_start_step, t->step + 1);
    r->last = MIN(cfg->profile_stop_step, t->steps);
    r->done = r->first - 1;
    if (r->first > r->last) {
        report_say(
            t,
            "WARNING: nothing is recorded (profile): of the steps %lld to %lld this "
            "run does none, it goes from %lld to %lld",
            (long long)cfg->profile_start_step, (long long)cfg->profile_stop_step,
            (long long)t->step + 1, (long long)t->steps);
        return false;
    }
    if (r->last - r->first < room) return true;
    r->last = r->first + room - 1;
    report_say(t,
               "WARNING: profile records up to step %lld and not to %lld: a step runs "
               "%lld ops, and at most %d are kept; for later steps give another "
               "profile_start_step",
               (long long)r->last, (long long)cfg->profile_stop_step, (long long)each,
               OPS_MOST);
    return true;
}

/* Flops count at the rate of the unit that most of them run on: what another one makes would
 * take no less. */
static double bound_of_step(const Train *t, double peak_bytes) {
    double peak = t->peak_flops / comm_size();
    Plan plan = plan_read(t->mem, t->program->entry, &t->job);
    if (!(peak > 0) || !(peak_bytes > 0)) return 0;
    plan_count_needed(t->mem, &plan);
    return work_bound_total(
        plan.needed,
        &(WorkRates){.f32_flops = peak, .bf16_flops = peak, .bytes = peak_bytes});
}

void profile_start(Train *t) {
    Record *r = t->record;
    t->record = NULL;
    if (!r || t->step >= t->steps || !choose_steps(t, r)) return;
    size_t steps = (size_t)(r->last - r->first + 1);
    for (int k = 0; k < LOG_THREADS; k++) {
        RecordLog *log = &r->log[k];
        log->event = NEW_ARRAY(t->mem, OpTime, steps * (size_t)log->each + 1);
        log->used = NEW_ARRAY(t->mem, int64_t, steps);
    }
    r->bound_seconds = bound_of_step(t, r->peak_bytes);
    ClockAhead clock = clock_ahead();
    r->ahead_seconds = clock.seconds;
    r->clock_off_seconds = clock.off_seconds;
    t->record = r;
}

/* ---- steps ---- */

void profile_begin_step(Train *t, int64_t step) {
    Record *r = t->record;
    if (!r || step < r->first || step > r->last) return;
    for (int k = 0; k < LOG_THREADS; k++) {
        const RecordLog *log = &r->log[k];
        op_log_to((OpLogThread)k, log->event + (step - r->first) * log->each, log->each);
    }
    rt_op_begin(MARK_STEP);
}

void profile_end_step(Train *t) {
    Record *r = t->record;
    if (!r || t->step < r->first || t->step > r->last) return;
    rt_op_end(MARK_STEP);
    for (int k = 0; k < LOG_THREADS; k++) {
        int64_t n = op_log_to((OpLogThread)k, NULL, 0);
        check(n <= r->log[k].each);
        r->log[k].used[t->step - r->first] = n;
    }
    r->done = t->step;
    if (t->step == r->last) profile_end(t);
}

/* ---- traces ---- */

/* Where a rank's trace goes to: files on rank 0, messages to it on the others. */
typedef struct Sink {
    FILE *one, *all; /* of this rank, of all; NULL: it could not be opened */
    bool begun;      /* `all` has an event */
} Sink;

static void write_events(FILE *f, bool first, const char *s, size_t n) {
    size_t skip = first ? TRACE_COMMA_BYTES : 0;
    if (f && n > skip) fwrite(s + skip, 1, n - skip, f);
}

static void send_text(const char *s, uint64_t n) {
    comm_send_bytes(0, &n, sizeof n);
    if (n) comm_send_bytes(0, s, n);
}

static const char *receive_text(Arena *mem, int rank, uint64_t *n) {
    comm_receive_bytes(rank, n, sizeof *n);
    char *s = arena_alloc(mem, *n + 1);
    if (*n) comm_receive_bytes(rank, s, *n);
    return s;
}

/* `first`: nothing of this rank has been put. A text of no bytes would be the end. */
static void put_piece(Sink *sink, bool first, const char *s, size_t n) {
    if (!n) return;
    if (comm_rank()) {
        send_text(s, n);
        return;
    }
    write_events(sink->one, first, s, n);
    write_events(sink->all, !sink->begun, s, n);
    sink->begun = true;
}

/* This rank's events, some at a time. */
static void put_own(const Train *t, double zero, Sink *sink) {
    enum { PIECE_BYTES = 1 << 20 };
    const Record *r = t->record;
    Trace trace = {.rank = comm_rank(),
                   .pid = (int)getpid(),
                   .host = comm_host(),
                   .op = r->op,
                   .zero = zero + r->ahead_seconds,
                   .zero_off = r->clock_off_seconds};
    Arena *mem = arena_new();
    Text piece = text_new(mem);
    bool first = true;
    trace_add_rank(&piece, &trace);
    for (int64_t step = r->first; step <= r->done; step++)
        for (int k = 0; k < LOG_THREADS; k++) {
            const RecordLog *log = &r->log[k];
            const OpTime *event = log->event + (step - r->first) * log->each;
            for (int64_t i = 0; i < log->used[step - r->first]; i++) {
                trace_add(&piece, &trace, (OpLogThread)k, step, &event[i]);
                if (piece.n < PIECE_BYTES) continue;
                put_piece(sink, first, piece.s, piece.n);
                first = false;
                piece.n = 0;
            }
        }
    put_piece(sink, first, piece.s, piece.n);
    arena_free(mem);
}

/* On rank 0: those of another one. */
static void put_others(int rank, Sink *sink) {
    uint64_t n = 1;
    for (bool first = true; n; first = false) {
        Arena *mem = arena_new();
        const char *piece = receive_text(mem, rank, &n);
        put_piece(sink, first, piece, n);
        arena_free(mem);
    }
}

/* The file has its name once it is whole. */
static FILE *open_trace(Arena *mem, const Train *t, const char *name) {
    const char *path = path_join(mem, t->run_dir, name);
    FILE *f = fopen(arena_printf(mem, "%s.tmp", path), "we");
    if (f)
        fputs(trace_head, f);
    else
        record_say_written(t, "trace", name, errno);
    return f;
}

static void close_trace(Arena *mem, const Train *t, const char *name, FILE *f) {
    if (!f) return;
    const char *path = path_join(mem, t->run_dir, name);
    const char *unfinished = arena_printf(mem, "%s.tmp", path);
    fputs(trace_tail, f);
    errno = 0;
    bool bad = ferror(f) != 0;
    bad |= fclose(f) != 0;
    if (!bad) bad = rename(unfinished, path) != 0;
    if (bad) remove(unfinished);
    if (bad || !strcmp(name, RUN_TRACE))
        record_say_written(t, "trace", name, bad ? (errno ? errno : ENOSPC) : 0);
}

static void write_traces(const Train *t) {
    Arena *mem = arena_new();
    Sink sink = {0};
    double zero = t->record->log[LOG_COMPUTE].event[0].begin;
    comm_broadcast(&zero, sizeof zero, 0); /* the first step begins on rank 0 */
    if (comm_rank()) {
        put_own(t, zero, &sink);
        send_text("", 0);
    } else {
        sink.all = open_trace(mem, t, RUN_TRACE);
        for (int k = 0; k < comm_size(); k++) {
            const char *name = arena_printf(mem, RUN_RANK_TRACE, k);
            sink.one = open_trace(mem, t, name);
            if (k)
                put_others(k, &sink);
            else
                put_own(t, zero, &sink);
            close_trace(mem, t, name, sink.one);
        }
        close_trace(mem, t, RUN_TRACE, sink.all);
    }
    arena_free(mem);
}

/* ---- tables ---- */

/* Events of all recorded steps, which are moved to follow each other. */
static OpReport make_report(const Train *t) {
    const Record *r = t->record;
    const RecordLog *log = &r->log[LOG_COMPUTE];
    OpReport report = {.op = r->op,
                       .nops = r->nops,
                       .steps = r->done - r->first + 1,
                       .peak_flops = t->peak_flops / comm_size(),
                       .peak_bytes = r->peak_bytes};
    for (int64_t i = 0; i < report.steps; i++) {
        memmove(log->event + report.nevents, log->event + i * log->each,
                (size_t)log->used[i] * sizeof *log->event);
        report.nevents += log->used[i];
    }
    report.event = log->event;
    return report;
}

static const char *title_of(const Train *t, Arena *mem, const OpReport *r) {
    const Record *record = t->record;
    double seconds = 0;
    for (int64_t i = 0; i < r->nevents; i++)
        if (r->event[i].number == MARK_STEP)
            seconds += (r->event[i].end - r->event[i].begin) / (double)r->steps;
    return arena_printf(
        mem,
        "rank %d, steps %lld to %lld; measured on %d thread%s: %s, %s of memory; a step "
        "takes %.4g ms, its bound is %.4g ms",
        comm_rank(), (long long)record->first, (long long)record->done, t->threads,
        t->threads > 1 ? "s" : "", human(r->peak_flops, "FLOP/s").s,
        human(r->peak_bytes, "B/s").s, 1e3 * seconds, 1e3 * record->bound_seconds);
}

static void say_longest(const Train *t, Arena *mem, const OpReport *r) {
    report_say(t, "profile    %s", title_of(t, mem, r));
    report_lines(t, "  ", op_report(mem, r, SAID_OPS).s);
}

/* Seconds of a step by WorkKind. */
static void note_kinds(Train *t, const OpReport *r) {
    double kind[WORK_KINDS] = {0}, waiting = 0;
    for (int64_t i = 0; i < r->nevents; i++) {
        const OpRow *op = op_row(r->op, r->event[i].number);
        bool is_op = r->event[i].number >= 0 && !op->nests;
        double seconds = (r->event[i].end - r->event[i].begin) / (double)r->steps;
        if (is_op && op->stages)
            waiting += seconds;
        else if (is_op)
            kind[op->work] += seconds;
    }
    predict_note_ops(t, kind, waiting);
}

static void write_tables(Train *t) {
    Arena *mem = arena_new();
    OpReport r = make_report(t);
    note_kinds(t, &r);
    Text table = text_new(mem);
    text_add(&table, "%s\n%s", title_of(t, mem, &r), op_report(mem, &r, 0).s);
    say_longest(t, mem, &r);
    if (comm_rank()) send_text(table.s, table.n);
    for (int k = 1; comm_rank() == 0 && k < comm_size(); k++) {
        uint64_t n;
        const char *other = receive_text(mem, k, &n);
        text_add(&table, "\n");
        text_add_bytes(&table, other, n);
    }
    if (comm_rank() == 0) record_write(t, "ops", RUN_OPS, &table);
    arena_free(mem);
}

void profile_end(Train *t) {
    const Record *r = t->record;
    if (!r || r->done < r->first) return;
    watch_task("profile behind step", t->step, false);
    if (comm_rank() == 0) {
        Arena *mem = arena_new();
        int error = dir_make(path_join(mem, t->run_dir, RUN_PROFILE));
        if (error) record_say_written(t, "profile", RUN_PROFILE, error);
        arena_free(mem);
    }
    tasks_write_timeline(t, r);
    write_traces(t);
    write_tables(t);
    t->record = NULL;
}
