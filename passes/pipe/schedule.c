/* schedule.c - see schedule.h. The orders are those of the papers and programs named at each
 * generator. */
#include "passes/pipe/schedule.h"
#include "passes/passes.h"
#include <ctype.h>
#include <stdlib.h>

static void add(PipeSchedule *s, int stage, TaskKind kind, int chunk, int micro) {
    TaskList *l = &s->stage[stage];
    l->task[l->n++] = (Task){kind, chunk, micro};
}

/* Its stages have no room for tasks yet. */
static PipeSchedule *schedule_new(Arena *mem, const char *name, int stages, int chunks,
                                  int micro) {
    PipeSchedule *s = NEW(mem, PipeSchedule);
    *s = (PipeSchedule){.stages = stages, .chunks = chunks, .micro = micro, .name = name};
    s->stage_of = NEW_ARRAY(mem, int, (size_t)chunks);
    s->stage = NEW_ARRAY(mem, TaskList, (size_t)stages);
    for (int c = 0; c < chunks; c++) s->stage_of[c] = c % stages;
    return s;
}

/* The same for each stage. */
static void give_room(Arena *mem, PipeSchedule *s, int tasks) {
    for (int k = 0; k < s->stages; k++)
        s->stage[k].task = NEW_ARRAY(mem, Task, (size_t)tasks);
}

/* ---- generators ---- */

/* Micro-batch and chunk of the k-th forward (or backward) of a stage: groups of as many
 * micro-batches as there are stages go through its chunks one after the other. */
static void interleaved_task(PipeSchedule *s, int stage, TaskKind kind, int k) {
    int p = s->stages, v = s->chunks / p;
    int nth = k % (p * v) / p, micro = k / (p * v) * p + k % p;
    int local = kind == TASK_FORWARD ? nth : v - 1 - nth;
    add(s, stage, kind, local * p + stage, micro);
}

/* Forward until the pipe is full, then one forward and one backward in turn: PipeDream-Flush
 * (arXiv 2006.09503); with several chunks a stage the interleaved order of Megatron-LM (arXiv
 * 2104.04473, schedules.py). */
static void make_1f1b(PipeSchedule *s) {
    int p = s->stages, v = s->chunks / p, all = s->micro * v;
    for (int k = 0; k < p; k++) {
        int warm = v == 1 ? p - 1 - k : 2 * (p - 1 - k) + (v - 1) * p;
        warm = MIN(warm, all);
        for (int i = 0; i < warm; i++) interleaved_task(s, k, TASK_FORWARD, i);
        for (int i = warm; i < all; i++) {
            interleaved_task(s, k, TASK_FORWARD, i);
            interleaved_task(s, k, TASK_BACKWARD, i - warm);
        }
        for (int i = all - warm; i < all; i++) interleaved_task(s, k, TASK_BACKWARD, i);
    }
}

/* 1F1B with backward in halves: the gradients of weights of stage s wait until s + 1 are due, or
 * nothing else is left: ZB-H1 (arXiv 2401.10241). As much memory as 1F1B, a third of its idle
 * time. */
static void make_zero_bubble_h1(PipeSchedule *s) {
    for (int k = 0; k < s->stages; k++) {
        int warm = MIN(s->stages - 1 - k, s->micro), weights = 0;
        for (int i = 0; i < warm; i++) add(s, k, TASK_FORWARD, k, i);
        for (int i = 0; i < s->micro; i++) {
            if (warm + i < s->micro) add(s, k, TASK_FORWARD, k, warm + i);
            add(s, k, TASK_INPUTS, k, i);
            if (i + 1 - weights > k) add(s, k, TASK_WEIGHTS, k, weights++);
        }
        while (weights < s->micro) add(s, k, TASK_WEIGHTS, k, weights++);
    }
}

/* Two chunks a stage, the first and the last one on stage 0 (a V): ZBV (arXiv 2401.10241), in
 * the phases in which torch.distributed.pipelining makes it (ScheduleZBVZeroBubble). */
typedef struct Wave { /* how often each of a stage's two chunks has done what */
    PipeSchedule *s;
    int stage, done[2][TASK_KINDS];
} Wave;

static void wave(Wave *w, int local, TaskKind kind) {
    int micro = w->done[local][kind]++;
    int chunk = local ? w->s->chunks - 1 - w->stage : w->stage;
    if (micro < w->s->micro) add(w->s, w->stage, kind, chunk, micro);
}

static void wave_backward(Wave *w, int local) {
    wave(w, local, TASK_INPUTS);
    wave(w, local, TASK_WEIGHTS);
}

static void make_zero_bubble_v(PipeSchedule *s) {
    int p = s->stages, n = MAX(2 * p - 1, s->micro);
    for (int k = 0; k < p; k++) {
        Wave w = {.s = s, .stage = k};
        int *forward[2] = {&w.done[0][TASK_FORWARD], &w.done[1][TASK_FORWARD]};
        for (int i = 0; i < 2 * (p - k) - 1; i++) wave(&w, 0, TASK_FORWARD);
        for (int i = 0; i < k; i++) {
            wave(&w, 1, TASK_FORWARD);
            wave(&w, 0, TASK_FORWARD);
        }
        for (int i = 0; i < p - k; i++) {
            wave(&w, 1, TASK_FORWARD);
            wave_backward(&w, 1);
        }
        while (*forward[1] < *forward[0] || *forward[0] < n) {
            if (*forward[0] < n) wave(&w, 0, TASK_FORWARD);
            wave_backward(&w, 0);
            wave(&w, 1, TASK_FORWARD);
            wave_backward(&w, 1);
        }
        for (int i = 0; i < k; i++) {
            wave(&w, 0, TASK_INPUTS);
            wave(&w, 1, TASK_INPUTS);
        }
        for (int i = 0; i < p - k; i++) wave_backward(&w, 0);
        for (int local = 1; local >= 0; local--)
            while (w.done[local][TASK_WEIGHTS] < w.done[local][TASK_INPUTS])
                wave(&w, local, TASK_WEIGHTS);
    }
}

/* All forward, then all backward, a chunk at a time: GPipe (arXiv 1811.06965); with several
 * chunks a stage breadth-first (arXiv 2211.05953). */
static void make_all_forward(PipeSchedule *s) {
    for (int k = 0; k < s->stages; k++) {
        for (int c = k; c < s->chunks; c += s->stages)
            for (int m = 0; m < s->micro; m++) add(s, k, TASK_FORWARD, c, m);
        for (int c = s->chunks - s->stages + k; c >= 0; c -= s->stages)
            for (int m = 0; m < s->micro; m++) add(s, k, TASK_BACKWARD, c, m);
    }
}

int pass_stages(const PassOptions *o) {
    return o->schedule ? o->schedule->stages : MAX(o->stages, 1);
}

PipeSchedule *schedule_forward(Arena *mem, const PipeSchedule *like) {
    PipeSchedule *s = schedule_new(mem, "forward", like->stages, like->chunks, 1);
    give_room(mem, s, like->chunks);
    memcpy(s->stage_of, like->stage_of, (size_t)like->chunks * sizeof(int));
    for (int c = 0; c < s->chunks; c++) add(s, s->stage_of[c], TASK_FORWARD, c, 0);
    return s;
}

static const struct {
    PipeScheduleKind is;
    void (*make)(PipeSchedule *);
} generators[] = {
    {{"1f1b", 1, MAX_CHUNKS, .groups = true}, make_1f1b},
    {{"gpipe", 1, 1, .all_forward = true}, make_all_forward},
    {{"breadth_first", 1, MAX_CHUNKS, .all_forward = true}, make_all_forward},
    {{"zero_bubble_h1", 1, 1, .halves = true}, make_zero_bubble_h1},
    {{"zero_bubble_v", 2, 2, .halves = true, .folded = true}, make_zero_bubble_v}};

const PipeScheduleKind *schedule_kind_at(int k) {
    return k < ARRAY_LEN(generators) ? &generators[k].is : NULL;
}

const char *schedule_name_at(int k) {
    return k < ARRAY_LEN(generators) ? generators[k].is.name : NULL;
}

int schedule_chunk_stage(const PipeScheduleKind *s, int stages, int chunk) {
    return s->folded && chunk >= stages ? 2 * stages - 1 - chunk : chunk % stages;
}

int schedule_stage_chunk(const PipeScheduleKind *s, int stages, int stage, int nth) {
    return s->folded && nth ? 2 * stages - 1 - stage : nth * stages + stage;
}

int schedule_kind_in_flight(const PipeScheduleKind *s, int stages, int each, int micro,
                            int stage) {
    int all = micro * each, warm = 2 * (stages - 1 - stage) + (each - 1) * stages;
    if (s->all_forward) return all;
    if (s->folded) return MIN(micro, 2 * (stages - stage) - 1); /* before it turns back */
    return MIN(all, each == 1 ? stages - stage : warm + 1);
}

static int find_generator(const char *name) {
    int k = 0;
    while (k < ARRAY_LEN(generators) && strcmp(generators[k].is.name, name)) k++;
    return k;
}

bool schedule_fits(const char *name, int stages, int each, int micro) {
    int k = find_generator(name);
    if (k == ARRAY_LEN(generators)) return false;
    bool groups = generators[k].is.groups && each > 1;
    return each >= generators[k].is.least && each <= generators[k].is.most &&
           (!groups || micro % stages == 0);
}

PipeSchedule *schedule_make(Arena *mem, const char *name, int stages, int chunks,
                            int micro) {
    int k = find_generator(name);
    check(stages > 0 && chunks % stages == 0 && micro > 0);
    if (k == ARRAY_LEN(generators)) fail(EXIT_CONFIG, "unknown schedule '%s'", name);
    int v = chunks / stages;
    if (v < generators[k].is.least || v > generators[k].is.most)
        fail(
            EXIT_CONFIG,
            "schedule %s takes %s of layers a stage, not %d: 1f1b and breadth_first take "
            "several (parallel_config.pp_interleave_num)",
            name, generators[k].is.least == 1 ? "one chunk" : "two chunks", v);
    if (!schedule_fits(name, stages, v, micro))
        fail(EXIT_CONFIG,
             "%s with %d chunks a stage goes in groups of %d micro-batches, one for "
             "each stage: %d is not a multiple of that",
             name, v, stages, micro);
    PipeSchedule *s = schedule_new(mem, name, stages, chunks, micro);
    give_room(mem, s, 3 * micro * v);
    for (int c = 0; c < chunks; c++)
        s->stage_of[c] = schedule_chunk_stage(&generators[k].is, stages, c);
    generators[k].make(s);
    return s;
}

const PipeSchedule *schedule_of_options(Arena *mem, const PassOptions *o) {
    if (o->schedule || o->stages <= 1) return o->schedule;
    int chunks = o->stages * MAX(o->stage_chunks, 1);
    if (chunks > MAX_CHUNKS)
        fail(EXIT_CONFIG, "%d chunks; at most %d", chunks, MAX_CHUNKS);
    return schedule_make(mem, o->schedule_name, o->stages, chunks,
                         (int)MAX(o->micro_batches, 1));
}

const int64_t *schedule_even_layers(Arena *mem, int64_t layers, int chunks) {
    int64_t *n = NEW_ARRAY(mem, int64_t, (size_t)chunks);
    for (int c = 0; c < chunks; c++) n[c] = layers / chunks + (c < layers % chunks);
    return n;
}

/* ---- text ---- */

const char *task_text(Arena *mem, Task t) {
    return arena_printf(mem, "%d%c%d", t.chunk, task_letter[t.kind], t.micro);
}

void schedule_print(const PipeSchedule *s, Text *out) {
    for (int k = 0; k < s->stages; k++) {
        const TaskList *l = &s->stage[k];
        for (int i = 0; i < l->n; i++)
            text_add(out, "%s%d%c%d", i ? "," : "", l->task[i].chunk,
                     task_letter[l->task[i].kind], l->task[i].micro);
        text_add(out, "\n");
    }
}

/* What may be between two cells; a row ends with '\n'. */
static const char between[] = ", \t\r\n";

typedef struct Cells {
    const char *file, *text, *p, *line_start;
    int line;
} Cells;

static _Noreturn void bad_cell(const Cells *c, const char *at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static _Noreturn void bad_cell(const Cells *c, const char *at, const char *fmt, ...) {
    char message[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    SourcePos where = {c->file, c->text, c->line, (int)(at - c->line_start) + 1};
    fail_at(
        EXIT_CONFIG, where,
        "a row is a stage, a cell such as 0F3 a task: chunk, F, B, I or W, micro-batch",
        "%s", message);
}

static int cell_number(Cells *c, int limit, const char *what) {
    const char *at = c->p;
    int64_t n = 0;
    if (!isdigit((unsigned char)*c->p)) bad_cell(c, at, "a %s is missing", what);
    while (isdigit((unsigned char)*c->p) && n <= limit) n = 10 * n + (*c->p++ - '0');
    if (n >= limit) bad_cell(c, at, "%s %lld is above %d", what, (long long)n, limit - 1);
    return (int)n;
}

static Task parse_cell(Cells *c, int micro) {
    Task t = {.chunk = cell_number(c, MAX_CHUNKS, "chunk")};
    const char *letter = *c->p ? strchr(task_letter + 1, *c->p) : NULL;
    if (!letter) bad_cell(c, c->p, "a task is F, B, I or W");
    t.kind = (TaskKind)(letter - task_letter);
    c->p++;
    t.micro = cell_number(c, micro, "micro-batch");
    if (*c->p && !strchr(between, *c->p)) bad_cell(c, c->p, "a cell ends with a comma");
    return t;
}

/* What has been read of a chunk on a micro-batch. */
typedef struct Seen {
    bool kind[TASK_KINDS];
} Seen;

/* `seen`: by micro-batch, of the chunk. */
static void note_task(Cells *c, const char *at, PipeSchedule *s, Seen *seen, int stage,
                      Task t) {
    Seen *k = &seen[t.micro];
    int *owner = &s->stage_of[t.chunk];
    if (*owner >= 0 && *owner != stage)
        bad_cell(c, at, "chunk %d is on stage %d already", t.chunk, *owner);
    *owner = stage;
    bool halves = t.kind == TASK_INPUTS || t.kind == TASK_WEIGHTS;
    if (k->kind[t.kind] || (t.kind == TASK_BACKWARD && k->kind[TASK_INPUTS]) ||
        (halves && k->kind[TASK_BACKWARD]))
        bad_cell(c, at, "this task is there twice");
    if (t.kind != TASK_FORWARD && !k->kind[TASK_FORWARD])
        bad_cell(c, at, "chunk %d has not run forward on micro-batch %d", t.chunk,
                 t.micro);
    if (t.kind == TASK_WEIGHTS && !k->kind[TASK_INPUTS])
        bad_cell(c, at, "W of a task comes after its I");
    k->kind[t.kind] = true;
}

/* row: the end of each stage's row, where something is missing; of a chunk on none c. */
static void check_complete(const Cells *c, const Cells *row, const PipeSchedule *s,
                           Seen *const *seen) {
    static const Seen nothing;
    for (int chunk = 0; chunk < s->chunks; chunk++)
        for (int m = 0; m < s->micro; m++) {
            const bool *k = seen[chunk] ? seen[chunk][m].kind : nothing.kind;
            bool done = k[TASK_FORWARD] &&
                        (k[TASK_BACKWARD] || (k[TASK_INPUTS] && k[TASK_WEIGHTS]));
            const int stage = s->stage_of[chunk];
            const Cells *end = stage < 0 ? c : &row[stage];
            if (!done)
                bad_cell(end, end->p,
                         "chunk %d never runs %s on micro-batch %d (there are %d "
                         "micro-batches)",
                         chunk, k[TASK_FORWARD] ? "backward" : "forward", m, s->micro);
        }
}

/* The next task; NULL: the row has no more. */
static const char *next_cell(Cells *c) {
    while (*c->p && *c->p != '\n' && strchr(between, *c->p)) c->p++;
    return *c->p && *c->p != '\n' ? c->p : NULL;
}

static void parse_row(Arena *mem, Cells *c, PipeSchedule *s, Seen **seen) {
    for (const char *at; (at = next_cell(c));) {
        Task t = parse_cell(c, s->micro);
        if (!seen[t.chunk]) seen[t.chunk] = NEW_ARRAY(mem, Seen, (size_t)s->micro);
        note_task(c, at, s, seen[t.chunk], s->stages, t);
        add(s, s->stages, t.kind, t.chunk, t.micro);
        s->chunks = MAX(s->chunks, t.chunk + 1);
    }
}

PipeSchedule *schedule_parse(Arena *mem, const char *file, const char *text, int micro) {
    Cells c = {file, text, text, text, 1};
    int rows = 0;
    size_t cells = 1;
    for (const char *p = text; *p; p++) {
        cells += strchr(between, *p) != NULL;
        rows += *p == '\n' || !p[1];
    }
    if (!rows || rows > MAX_STAGES)
        bad_cell(&c, text, "a schedule has 1 to %d rows", MAX_STAGES);
    PipeSchedule *s = schedule_new(mem, file, rows, MAX_CHUNKS, micro);
    Seen **seen = NEW_ARRAY(mem, Seen *, MAX_CHUNKS);
    Task *task = NEW_ARRAY(mem, Task, cells); /* of all stages, in their order */
    Cells *row = NEW_ARRAY(mem, Cells, (size_t)rows);
    for (int k = 0; k < MAX_CHUNKS; k++) s->stage_of[k] = -1;
    for (s->stages = s->chunks = 0; *c.p; c.p += *c.p == '\n') {
        c.line_start = c.p;
        c.line += c.p > text;
        s->stage[s->stages].task = task;
        parse_row(mem, &c, s, seen);
        row[s->stages] = c;
        task += s->stage[s->stages].n;
        s->stages += s->stage[s->stages].n > 0;
    }
    if (!s->stages) bad_cell(&c, c.line_start, "a schedule without a task");
    check_complete(&c, row, s, seen);
    return s;
}

/* ---- what it means ---- */

bool schedule_has_halves(const PipeSchedule *s) {
    for (int k = 0; k < s->stages; k++)
        for (int i = 0; i < s->stage[k].n; i++)
            if (s->stage[k].task[i].kind == TASK_WEIGHTS) return true;
    return false;
}

int schedule_in_flight(const PipeSchedule *s, int stage) {
    int now = 0, most = 0;
    for (int i = 0; i < s->stage[stage].n; i++) {
        TaskKind kind = s->stage[stage].task[i].kind;
        now += kind == TASK_FORWARD;
        most = MAX(most, now);
        now -= kind == TASK_BACKWARD || kind == TASK_WEIGHTS;
    }
    return most;
}

/* ---- time ---- */

typedef struct Clock {
    TasksDone done;
    double message; /* seconds between stages */
    int *next;      /* by stage: the task it is at */
    double *free;   /* by stage: when it can begin that */
} Clock;

TasksDone tasks_done_new(Arena *mem, const PipeSchedule *s) {
    size_t n = (size_t)s->chunks * (size_t)s->micro;
    TasksDone d = {.s = s,
                   .forward = NEW_ARRAY(mem, double, n),
                   .backward = NEW_ARRAY(mem, double, n)};
    for (size_t i = 0; i < n; i++) d.forward[i] = d.backward[i] = -1;
    return d;
}

static double *done_at(const TasksDone *d, double *of, int chunk, int micro) {
    return &of[(size_t)chunk * (size_t)d->s->micro + (size_t)micro];
}

void tasks_done_note(TasksDone *d, Task t, double at) {
    if (t.kind == TASK_WEIGHTS) return;
    *done_at(d, t.kind == TASK_FORWARD ? d->forward : d->backward, t.chunk, t.micro) = at;
}

/* When the stage of chunk `to` has what chunk `from` made; -1: not yet. */
static double arrival(const TasksDone *d, double *of, int from, int to, int micro,
                      double message) {
    double done = *done_at(d, of, from, micro);
    bool sent = d->s->stage_of[from] != d->s->stage_of[to];
    return done < 0 ? -1 : done + (sent ? message : 0);
}

double task_ready(const TasksDone *d, Task t, double message) {
    bool first = t.chunk == 0, last = t.chunk == d->s->chunks - 1;
    if (t.kind == TASK_FORWARD)
        return first ? 0 : arrival(d, d->forward, t.chunk - 1, t.chunk, t.micro, message);
    if (t.kind == TASK_WEIGHTS) return *done_at(d, d->backward, t.chunk, t.micro);
    return last ? *done_at(d, d->forward, t.chunk, t.micro)
                : arrival(d, d->backward, t.chunk + 1, t.chunk, t.micro, message);
}

double task_seconds(const TaskSeconds *t, Task task) {
    return t->chunk ? t->chunk[task.chunk][task.kind] : t->kind[task.kind];
}

static bool advance(Clock *c, int stage, const TaskSeconds *seconds, double **begin) {
    const TaskList *l = &c->done.s->stage[stage];
    bool moved = false;
    for (; c->next[stage] < l->n; c->next[stage]++) {
        Task t = l->task[c->next[stage]];
        double at = task_ready(&c->done, t, c->message);
        if (at < 0) break;
        at = MAX(at, c->free[stage]);
        if (begin) begin[stage][c->next[stage]] = at;
        c->free[stage] = at + task_seconds(seconds, t);
        tasks_done_note(&c->done, t, c->free[stage]);
        moved = true;
    }
    return moved;
}

double schedule_seconds(Arena *mem, const PipeSchedule *s, const TaskSeconds *t,
                        double **begin) {
    Clock c = {.done = tasks_done_new(mem, s),
               .message = t->message,
               .next = NEW_ARRAY(mem, int, (size_t)s->stages),
               .free = NEW_ARRAY(mem, double, (size_t)s->stages)};
    for (bool moved = true; moved;) {
        moved = false;
        for (int k = 0; k < s->stages; k++) moved |= advance(&c, k, t, begin);
    }
    double end = 0;
    for (int k = 0; k < s->stages; k++) {
        if (c.next[k] < s->stage[k].n) return 0;
        end = MAX(end, c.free[k]);
    }
    return end;
}

double schedule_bubble(const PipeSchedule *s, const TaskSeconds *t) {
    Arena *mem = arena_new();
    double all = schedule_seconds(mem, s, t, NULL), busy = 0;
    for (int k = 0; k < s->stages; k++)
        for (int i = 0; i < s->stage[k].n; i++)
            busy += task_seconds(t, s->stage[k].task[i]);
    arena_free(mem);
    return all > 0 ? 1 - busy / (all * s->stages) : 0;
}
