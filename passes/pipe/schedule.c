/* schedule.c - see schedule.h. The orders are those of the papers and programs named at each
 * generator. */
#include "passes/pipe/schedule.h"
#include "passes/passes.h"

void schedule_add(PipeSchedule *s, int stage, TaskKind kind, int chunk, int micro) {
    TaskList *l = &s->stage[stage];
    l->task[l->n++] = (Task){kind, chunk, micro};
}

PipeSchedule *schedule_new(Arena *mem, const char *name, int stages, int chunks,
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
    schedule_add(s, stage, kind, local * p + stage, micro);
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
        for (int i = 0; i < warm; i++) schedule_add(s, k, TASK_FORWARD, k, i);
        for (int i = 0; i < s->micro; i++) {
            if (warm + i < s->micro) schedule_add(s, k, TASK_FORWARD, k, warm + i);
            schedule_add(s, k, TASK_INPUTS, k, i);
            if (i + 1 - weights > k) schedule_add(s, k, TASK_WEIGHTS, k, weights++);
        }
        while (weights < s->micro) schedule_add(s, k, TASK_WEIGHTS, k, weights++);
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
    if (micro < w->s->micro) schedule_add(w->s, w->stage, kind, chunk, micro);
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
            for (int m = 0; m < s->micro; m++) schedule_add(s, k, TASK_FORWARD, c, m);
        for (int c = s->chunks - s->stages + k; c >= 0; c -= s->stages)
            for (int m = 0; m < s->micro; m++) schedule_add(s, k, TASK_BACKWARD, c, m);
    }
}

int pass_stages(const PassOptions *o) {
    return o->schedule ? o->schedule->stages : MAX(o->stages, 1);
}

PipeSchedule *schedule_forward(Arena *mem, const PipeSchedule *like) {
    PipeSchedule *s = schedule_new(mem, "forward", like->stages, like->chunks, 1);
    give_room(mem, s, like->chunks);
    memcpy(s->stage_of, like->stage_of, (size_t)like->chunks * sizeof(int));
    for (int c = 0; c < s->chunks; c++)
        schedule_add(s, s->stage_of[c], TASK_FORWARD, c, 0);
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

int schedule_kind_in_flight(const PipeScheduleKind *s, int stages, int each, int micro,
                            int stage) {
    int all = micro * each, warm = 2 * (stages - 1 - stage) + (each - 1) * stages;
    if (s->all_forward) return all;
    if (s->folded) return MIN(micro, 2 * (stages - stage) - 1); /* before it turns back */
    return MIN(all, each == 1 ? stages - stage : warm + 1);
}

/* Micro-batches of a group go back through a chunk one after the other. */
Alive schedule_kind_alive(const PipeScheduleKind *s, int stages, int each, int micro,
                          int stage, int nth) {
    int most = schedule_kind_in_flight(s, stages, each, micro, stage);
    int group = s->all_forward ? micro : stages, back = nth * group;
    if (s->folded || each == 1) return (Alive){most, each};
    int there = MIN(micro * each, most + back);
    return (Alive){there - back, group == micro ? each - nth : each};
}

/* As they are made: the last tasks I of a V; behind the warm-up otherwise. */
Waiting schedule_kind_waiting(const PipeScheduleKind *s, int stages, int micro,
                              int stage) {
    int forward = MIN(micro, stages - stage), rounds = MAX(2 * stages - 1, micro);
    if (!s->halves) return (Waiting){0};
    if (!s->folded) return (Waiting){forward, MIN(stage, micro - forward)};
    /* rounds beyond the micro-batches are empty */
    int there = MAX(0, micro - (rounds - stages)), back = micro - (rounds - stage);
    return (Waiting){MAX(0, MIN(stages, there) - stage),
                     MIN(stage, there) + MAX(0, MIN(stage, back))};
}

static int find_generator(const char *name) {
    int k = 0;
    while (k < ARRAY_LEN(generators) && strcmp(generators[k].is.name, name)) k++;
    return k;
}

static bool has_room(int chunks, int64_t micro) {
    return micro <= MAX_TASKS / TASKS_OF_CHUNK / chunks;
}

bool schedule_fits(const char *name, int stages, int each, int micro) {
    int k = find_generator(name);
    if (k == ARRAY_LEN(generators) || !has_room(stages * each, micro)) return false;
    bool groups = generators[k].is.groups && each > 1;
    return each >= generators[k].is.least && each <= generators[k].is.most &&
           (!groups || micro % stages == 0);
}

PipeSchedule *schedule_make(Arena *mem, const char *name, int stages, int chunks,
                            int64_t micro) {
    int k = find_generator(name);
    check(stages > 0 && chunks % stages == 0 && micro > 0);
    if (k == ARRAY_LEN(generators)) fail(EXIT_CONFIG, "unknown schedule '%s'", name);
    int v = chunks / stages;
    if (!has_room(chunks, micro))
        fail(EXIT_CONFIG,
             "%d chunks and %lld micro-batches; a schedule has at most %d tasks", chunks,
             (long long)micro, MAX_TASKS);
    if (v < generators[k].is.least || v > generators[k].is.most)
        fail(
            EXIT_CONFIG,
            "schedule %s takes %s of layers a stage, not %d "
            "(parallel_config.pp_interleave_num); 1f1b and breadth_first take any number",
            name, generators[k].is.least == 1 ? "one chunk" : "two chunks", v);
    if (!schedule_fits(name, stages, v, (int)micro))
        fail(EXIT_CONFIG,
             "%s with %d chunks a stage goes in groups of %d micro-batches, one for "
             "each stage: %d is not a multiple of that; breadth_first takes any number",
             name, v, stages, (int)micro);
    PipeSchedule *s = schedule_new(mem, name, stages, chunks, (int)micro);
    give_room(mem, s, TASKS_OF_CHUNK * (int)micro * v);
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
                         MAX(o->micro_batches, 1));
}

const int64_t *schedule_even_layers(Arena *mem, int64_t layers, int chunks) {
    int64_t *n = NEW_ARRAY(mem, int64_t, (size_t)chunks);
    for (int c = 0; c < chunks; c++) n[c] = layers / chunks + (c < layers % chunks);
    return n;
}

/* ---- what it means ---- */

static bool has_task(const PipeSchedule *s, TaskKind kind) {
    for (int k = 0; k < s->stages; k++)
        for (int i = 0; i < s->stage[k].n; i++)
            if (s->stage[k].task[i].kind == kind) return true;
    return false;
}

bool schedule_has_halves(const PipeSchedule *s) {
    return has_task(s, TASK_WEIGHTS);
}

bool schedule_has_backward(const PipeSchedule *s) {
    return has_task(s, TASK_BACKWARD) || schedule_has_halves(s);
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
