/* schedule_text.c - schedules as text; see schedule.h. */
#include "passes/pipe/schedule.h"
#include <ctype.h>

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
        schedule_add(s, s->stages, t.kind, t.chunk, t.micro);
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
