/* Tests of the orders in which the stages of a pipeline work, as plain data: every task once,
 * as many micro-batches at a time as the papers say, the idle share to the digits that are
 * published, and texts of any kind. */
#include "../mem.h"
#include "../test.h"
#include "base/rng.h"
#include "passes/pipe/schedule.h"
#include <malloc.h>

/* ---- what generators make ---- */

static bool in_halves(const char *name) {
    return !strncmp(name, "zero_bubble", strlen("zero_bubble"));
}

static bool can_be_made(const char *name, int p, int v, int m) {
    if (!strcmp(name, "zero_bubble_v")) return v == 2;
    if (!strcmp(name, "gpipe") || !strcmp(name, "zero_bubble_h1")) return v == 1;
    return v == 1 || strcmp(name, "1f1b") || m % p == 0;
}

/* Calls `look` with schedules of every name and many sizes. */
static int each_made(void (*look)(const PipeSchedule *, const char *, int v)) {
    int n = 0;
    for (int k = 0; schedule_name_at(k); k++)
        for (int p = 1; p <= 8; p++)
            for (int v = 1; v <= 3; v++)
                for (int m = 1; m <= 16; m++) {
                    const char *name = schedule_name_at(k);
                    test_at("%s p=%d v=%d m=%d", name, p, v, m);
                    EXPECT_INT(schedule_fits(name, p, v, m), can_be_made(name, p, v, m));
                    if (!can_be_made(name, p, v, m)) continue;
                    look(schedule_make(mem(), name, p, p * v, m), name, v);
                    n++;
                }
    return n;
}

static void expect_every_task_once(const PipeSchedule *s, const char *name, int v) {
    (void)v;
    size_t n = (size_t)s->chunks * (size_t)s->micro;
    int(*done)[TASK_KINDS] = arena_alloc(mem(), n * sizeof *done);
    memset(done, 0, n * sizeof *done);
    EXPECT_STR(s->name, name);
    for (int k = 0; k < s->stages; k++)
        for (int i = 0; i < s->stage[k].n; i++) {
            Task t = s->stage[k].task[i];
            int *d = done[t.chunk * s->micro + t.micro];
            EXPECT(t.chunk >= 0 && t.chunk < s->chunks && t.micro < s->micro);
            EXPECT_INT(s->stage_of[t.chunk], k);
            EXPECT(t.chunk % s->stages == k || !strcmp(name, "zero_bubble_v"));
            EXPECT(t.kind == TASK_FORWARD || d[TASK_FORWARD] == 1);
            EXPECT(t.kind != TASK_WEIGHTS || d[TASK_INPUTS] == 1);
            d[t.kind]++;
        }
    for (size_t i = 0; i < n; i++) {
        EXPECT_INT(done[i][TASK_FORWARD], 1);
        EXPECT_INT(done[i][TASK_BACKWARD] + done[i][TASK_INPUTS], 1);
        EXPECT_INT(done[i][TASK_WEIGHTS], done[i][TASK_INPUTS]);
    }
}

TEST(generators_do_every_task_once) {
    EXPECT(each_made(expect_every_task_once) > 500);
}

/* Does every stage go through the micro-batches of each kind of task and chunk in their
 * order? */
static bool is_ascending(const PipeSchedule *s) {
    for (int k = 0; k < s->stages; k++)
        for (int i = 0; i < s->stage[k].n; i++) {
            Task t = s->stage[k].task[i];
            for (int j = i - 1; j >= 0; j--) {
                Task u = s->stage[k].task[j];
                if (u.kind != t.kind || u.chunk != t.chunk) continue;
                if (u.micro > t.micro) return false;
                break;
            }
        }
    return true;
}

static void expect_it_ends(const PipeSchedule *s, const char *name, int v) {
    const TaskSeconds t = {.kind = {0, 1, 2, 1, 1}};
    (void)name, (void)v;
    double least = 3.0 * s->micro * s->chunks / s->stages;
    EXPECT(schedule_seconds(mem(), s, &t, NULL) >= least);
    EXPECT(is_ascending(s));
}

TEST(generators_end_and_take_micro_batches_in_order) {
    each_made(expect_it_ends);
}

/* shared reference/parallel.md, section 2; also Table 1 of arXiv 2104.04473. */
static void expect_in_flight(const PipeSchedule *s, const char *name, int v) {
    int p = s->stages, m = s->micro;
    if (in_halves(name)) return; /* below */
    for (int k = 0; k < p; k++) {
        int want = m * v;
        if (!strcmp(name, "1f1b"))
            want = v == 1 ? MIN(m, p - k) : MIN(m * v, 2 * (p - 1 - k) + (v - 1) * p + 1);
        EXPECT_INT(schedule_in_flight(s, k), want);
    }
}

TEST(in_flight_as_the_papers_say) {
    each_made(expect_in_flight);
}

/* Zero bubbles keep no more than 1F1B does on its first stage; on the V the chunks are half
 * as large. */
static void expect_few_in_flight(const PipeSchedule *s, const char *name, int v) {
    for (int k = 0; k < s->stages && in_halves(name); k++)
        EXPECT(schedule_in_flight(s, k) <= v * MIN(s->micro, s->stages));
}

TEST(in_flight_of_zero_bubbles) {
    each_made(expect_few_in_flight);
}

/* The halves of backward: what a stage keeps is free after the last of them. */
TEST(in_flight_until_the_weights_are_done) {
    static const char text[] = "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n";
    const PipeSchedule *s = schedule_parse(mem(), "t", text, 2);
    EXPECT_INT(schedule_in_flight(s, 0), 2);
    EXPECT_INT(schedule_in_flight(s, 1), 2);
    s = schedule_parse(mem(), "t", "0F0,0B0,0F1,0B1\n", 2);
    EXPECT_INT(schedule_in_flight(s, 0), 1);
}

static void expect_bubble(const PipeSchedule *s, const char *name, int v) {
    static const TaskSeconds equal = {.kind = {[TASK_FORWARD] = 1, [TASK_BACKWARD] = 1}},
                             twice = {.kind = {[TASK_FORWARD] = 1, [TASK_BACKWARD] = 2}};
    double fill = s->stages - 1, work = (double)s->micro * v;
    /* breadth first needs as many micro-batches as stages to be busy all the time */
    if (!strcmp(name, "breadth_first") && v > 1 && s->micro < s->stages) return;
    if (in_halves(name)) return; /* by what is published, below */
    EXPECT_NEAR(schedule_bubble(s, &equal), fill / (work + fill), 1e-12);
    EXPECT_NEAR(schedule_bubble(s, &twice), fill / (work + fill), 1e-12);
}

TEST(idle_share_by_the_formula) {
    each_made(expect_bubble);
}

TEST(layers_as_evenly_as_it_goes) {
    const int64_t *n = schedule_even_layers(mem(), 14, 4);
    EXPECT(n[0] == 4 && n[1] == 4 && n[2] == 3 && n[3] == 3);
}

TEST(validation_goes_forward_once) {
    const PipeSchedule *s = schedule_make(mem(), "1f1b", 2, 6, 4);
    const PipeSchedule *f = schedule_forward(mem(), s);
    Text t = text_new(mem());
    schedule_print(f, &t);
    EXPECT_STR(t.s, "0F0,2F0,4F0\n1F0,3F0,5F0\n");
}

TEST(generators_refuse_what_does_not_go_together) {
    EXPECT_FAIL(schedule_make(mem(), "2f2b", 2, 2, 4), EXIT_CONFIG,
                "unknown schedule '2f2b'");
    EXPECT_FAIL(schedule_make(mem(), "gpipe", 2, 4, 4), EXIT_CONFIG,
                "schedule gpipe takes one chunk of layers a stage, not 2");
    EXPECT_FAIL(schedule_make(mem(), "1f1b", 4, 8, 6), EXIT_CONFIG,
                "6 is not a multiple of that");
    EXPECT_FAIL(
        schedule_make(mem(), "1f1b", 1024, 1024, 1 << 20), EXIT_CONFIG,
        "1024 chunks and 1048576 micro-batches; a schedule has at most 33554432 tasks");
    EXPECT_FAIL(schedule_make(mem(), "gpipe", 2, 2, ((int64_t)1 << 32) + 2), EXIT_CONFIG,
                "2 chunks and 4294967298 micro-batches");
    EXPECT(schedule_fits("1f1b", 16, 1, 1 << 19) &&
           !schedule_fits("1f1b", 16, 1, 1 << 20));
}

/* ---- published times ---- */

typedef struct Row {
    int stages, micro;
    double f, b, w, message, bubble_1f1b, bubble_zb_h1;
} Row;

/* ZB-H1 (arXiv 2401.10241): 1F1B with backward in halves; those of weights wait until more
 * of them are open than the stage's number says, or there is nothing else left. */
static const char *zb_h1_text(int p, int m) {
    Text t = text_new(mem());
    for (int k = 0; k < p; k++) {
        int warm = MIN(p - 1 - k, m), inputs = 0, weights = 0;
        for (int i = 0; i < warm; i++) text_add(&t, "%dF%d,", k, i);
        for (int i = warm; i < m + warm; i++) {
            if (i < m) text_add(&t, "%dF%d,", k, i);
            text_add(&t, "%dI%d,", k, inputs++);
            if (inputs - weights > k) text_add(&t, "%dW%d,", k, weights++);
        }
        while (weights < m) text_add(&t, "%dW%d,", k, weights++);
        text_add(&t, "\n");
    }
    return t.s;
}

static double idle_share(const PipeSchedule *s, const Row *r, double busy) {
    const TaskSeconds t = {.kind = {[TASK_FORWARD] = r->f,
                                    [TASK_BACKWARD] = r->b + r->w,
                                    [TASK_INPUTS] = r->b,
                                    [TASK_WEIGHTS] = r->w},
                           .message = r->message};
    double all = schedule_seconds(mem(), s, &t, NULL);
    EXPECT_NEAR(schedule_bubble(s, &t), 1 - busy / all, 1e-12);
    return 1 - busy / all;
}

static void expect_row(const Row *r) {
    double busy = r->micro * (r->f + r->b + r->w);
    const PipeSchedule *plain =
        schedule_make(mem(), "1f1b", r->stages, r->stages, r->micro);
    const PipeSchedule *split =
        schedule_parse(mem(), "h1", zb_h1_text(r->stages, r->micro), r->micro);
    double a = idle_share(plain, r, busy), b = idle_share(split, r, busy);
    const PipeSchedule *made =
        schedule_make(mem(), "zero_bubble_h1", r->stages, r->stages, r->micro);
    EXPECT(fabs(idle_share(made, r, busy) - r->bubble_zb_h1) <= 0.5001e-4);
    printf(
        "  %d stages, %d micro-batches: 1F1B %.4f (published %.4f), ZB-H1 %.4f (%.4f)\n",
        r->stages, r->micro, a, r->bubble_1f1b, b, r->bubble_zb_h1);
    EXPECT(fabs(a - r->bubble_1f1b) <= 0.5001e-4);
    EXPECT(fabs(b - r->bubble_zb_h1) <= 0.5001e-4);
}

/* Table 5 of the paper, from the times of its Table 9. */
TEST(idle_shares_that_are_published) {
    if (!shared_dir()) test_skip("no shared reference data");
    const char *path = path_join(mem(), shared_dir(), "measured/zero_bubble.csv");
    if (!file_exists(path)) test_skip("no %s", path);
    char *text = file_read(mem(), path, 1 << 20, NULL, EXIT_DATA), *save;
    int rows = 0;
    strtok_r(text, "\n", &save);
    for (char *line; (line = strtok_r(NULL, "\n", &save));) {
        Row r;
        EXPECT_INT(sscanf(line, "%*[^,],%d,%d,%*d,%lf,%lf,%lf,%lf,%lf,%lf", &r.stages,
                          &r.micro, &r.f, &r.b, &r.w, &r.message, &r.bubble_1f1b,
                          &r.bubble_zb_h1),
                   8);
        expect_row(&r);
        rows++;
    }
    EXPECT(rows >= 6);
}

/* ---- texts ---- */

static void expect_same(const PipeSchedule *a, const PipeSchedule *b) {
    EXPECT(a->stages == b->stages && a->chunks == b->chunks && a->micro == b->micro);
    for (int c = 0; c < a->chunks; c++) EXPECT_INT(a->stage_of[c], b->stage_of[c]);
    for (int k = 0; k < a->stages; k++) {
        EXPECT_INT(a->stage[k].n, b->stage[k].n);
        for (int i = 0; i < a->stage[k].n; i++) {
            Task t = a->stage[k].task[i], u = b->stage[k].task[i];
            EXPECT(t.kind == u.kind && t.chunk == u.chunk && t.micro == u.micro);
        }
    }
}

static void expect_round_trip(const PipeSchedule *s, const char *name, int v) {
    Text t = text_new(mem());
    (void)name, (void)v;
    schedule_print(s, &t);
    expect_same(s, schedule_parse(mem(), "printed", t.s, s->micro));
}

TEST(what_is_printed_is_read) {
    each_made(expect_round_trip);
}

TEST(idle_cells_blanks_and_empty_lines_mean_nothing) {
    const PipeSchedule *s = schedule_parse(
        mem(), "t", "\n 0F0 ,, 0F1,\t,0B0,0B1\r\n\r\n,,1F0,1B0,1F1,1B1,,", 2);
    EXPECT_INT(s->stages, 2);
    EXPECT_INT(s->chunks, 2);
    Text t = text_new(mem());
    schedule_print(s, &t);
    EXPECT_STR(t.s, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
}

/* The V placement: first and last chunk on one stage. */
TEST(chunks_may_be_on_any_stage) {
    const PipeSchedule *s =
        schedule_parse(mem(), "t", "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n", 1);
    EXPECT(s->stage_of[0] == 0 && s->stage_of[3] == 0 && s->stage_of[2] == 1);
}

static void expect_error(const char *text, int micro, int line, int col,
                         const char *part) {
    Catch c;
    if (CATCH(c)) {
        schedule_parse(mem(), "orders.csv", text, micro);
        catch_end(&c);
        test_fail(__FILE__, __LINE__, "taken:\n%s", text);
    }
    if (c.code != EXIT_CONFIG || c.at.line != line || c.at.col != col ||
        !strstr(c.message, part) ||
        !strstr(c.message, arena_printf(mem(), "orders.csv:%d:%d", line, col)))
        test_fail(__FILE__, __LINE__, "%s\ncode %d at %d:%d, wanted %d:%d %s:\n%s", text,
                  c.code, c.at.line, c.at.col, line, col, part, c.message);
}

TEST(errors_name_the_cell) {
    expect_error("", 1, 1, 1, "a schedule has 1 to 1024 rows");
    expect_error("\n,,\n", 1, 2, 1, "a schedule without a task");
    expect_error("0F0,F0\n", 1, 1, 5, "a chunk is missing");
    expect_error("0F0,4096F0\n", 1, 1, 5, "chunk 4096 is above 4095");
    expect_error("0F0,99999999999999999999F0\n", 1, 1, 5, "is above 4095");
    expect_error("0F0,0B0\n1F0,1X0\n", 1, 2, 6, "a task is F, B, I or W");
    expect_error("0F0,0", 1, 1, 6, "a task is F, B, I or W");
    expect_error("0F0,0B\n", 1, 1, 7, "a micro-batch is missing");
    expect_error("0F0,0B-1\n", 1, 1, 7, "a micro-batch is missing");
    expect_error("0F0,0F2\n", 2, 1, 7, "micro-batch 2 is above 1");
    expect_error("0F0;0B0\n", 1, 1, 4, "a cell ends with a comma");
    expect_error("0F0,0B0\n1F0,0B0\n", 1, 2, 5, "chunk 0 is on stage 0 already");
    expect_error("0F0,0F0\n", 1, 1, 5, "this task is there twice");
    expect_error("0F0,0B0,0B0\n", 1, 1, 9, "this task is there twice");
    expect_error("0F0,0I0,0B0\n", 1, 1, 9, "this task is there twice");
    expect_error("0F0,0B0,0I0\n", 1, 1, 9, "this task is there twice");
    expect_error("0B0,0F0\n", 1, 1, 1, "chunk 0 has not run forward on micro-batch 0");
    expect_error("0F0,0W0,0I0\n", 1, 1, 5, "W of a task comes after its I");
    expect_error("0F0,0B0\n2F0,2B0\n", 1, 2, 9, "chunk 1 never runs forward");
    expect_error("0F0,0B0,0F1", 2, 1, 12, "chunk 0 never runs backward on micro-batch 1");
    expect_error("0F0,0I0\n", 1, 1, 8, "chunk 0 never runs backward on micro-batch 0");
    expect_error("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n", 2, 1, 12,
                 "chunk 0 never runs backward on micro-batch 1");
    expect_error("0F0,0B0\n", 2, 1, 8, "(there are 2 micro-batches)");
    Text t = text_new(mem());
    for (int i = 0; i <= MAX_STAGES; i++) text_add(&t, "%dF0,%dB0\n", i, i);
    expect_error(t.s, 1, 1, 1, "a schedule has 1 to 1024 rows");
}

/* Cells may be between blanks and tabs as well, any number of them. */
TEST(cells_without_commas) {
    static const char *const between[] = {",", "\t", " ", ", ", " \t,,"};
    enum { MICRO = 200 };
    for (int i = 0; i < ARRAY_LEN(between); i++) {
        Text t = text_new(mem()), again = text_new(mem());
        for (int m = 0; m < 2 * MICRO; m++)
            text_add(&t, "0%c%d%s", m < MICRO ? 'F' : 'B', m % MICRO, between[i]);
        schedule_print(schedule_parse(mem(), "t", t.s, MICRO), &again);
        EXPECT(!strncmp(again.s, "0F0,0F1,0F2,", 12));
        EXPECT_INT(schedule_parse(mem(), "t", again.s, MICRO)->stage[0].n, 2 * MICRO);
    }
}

/* As many rows as there may be, and a long first one: as much memory as the text needs. */
TEST(a_long_text_takes_little_memory) {
    Text t = text_new(mem());
    for (int i = 0; i < 1 << 20; i++) text_add_bytes(&t, ",", 1);
    for (int i = 0; i < MAX_STAGES; i++) text_add(&t, "%dF0,%dB0\n", i, i);
    Arena *own = arena_new();
    const PipeSchedule *s = schedule_parse(own, "t", t.s, 1);
    EXPECT_INT(s->stages, MAX_STAGES);
    EXPECT(mallinfo2().uordblks + mallinfo2().hblkhd < 256u << 20);
    arena_free(own);
}

/* ---- orders that cannot be kept ---- */

static double seconds_of(const char *text, int micro) {
    const TaskSeconds t = {.kind = {[TASK_FORWARD] = 1, [TASK_BACKWARD] = 1}};
    const PipeSchedule *s = schedule_parse(mem(), "t", text, micro);
    return schedule_seconds(mem(), s, &t, NULL);
}

TEST(stages_that_wait_for_each_other_never_end) {
    EXPECT_NEAR(seconds_of("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", 2), 6, 1e-12);
    EXPECT(seconds_of("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", 2) == 0);
}

TEST(ascending_within_a_kind_and_a_chunk) {
    EXPECT(is_ascending(schedule_parse(mem(), "t", "0F0,0F1,0B0,0B1", 2)));
    EXPECT(!is_ascending(schedule_parse(mem(), "t", "0F0,0F1,0B1,0B0", 2)));
    EXPECT(!is_ascending(schedule_parse(mem(), "t", "0F1,0F0,0B0,0B1", 2)));
}

/* Begin of each task, and messages that take time between stages alone. */
TEST(when_tasks_begin) {
    const PipeSchedule *s = schedule_make(mem(), "1f1b", 2, 2, 2);
    double b0[4], b1[4], *begin[] = {b0, b1};
    TaskSeconds t = {.kind = {[TASK_FORWARD] = 1, [TASK_BACKWARD] = 2}, .message = 0.25};
    EXPECT_NEAR(schedule_seconds(mem(), s, &t, begin), 9.5, 1e-12);
    EXPECT(b0[0] == 0 && b0[1] == 1 && b0[2] == 4.5 && b0[3] == 7.5);
    EXPECT(b1[0] == 1.25 && b1[1] == 2.25 && b1[2] == 4.25 && b1[3] == 5.25);
    t.take = t.message, t.message = 0;
    EXPECT_NEAR(schedule_seconds(mem(), s, &t, begin), 9.75, 1e-12);
    EXPECT(b0[0] == 0 && b0[1] == 1 && b0[2] == 4.5 && b0[3] == 7.75);
    EXPECT(b1[0] == 1.25 && b1[1] == 2.25 && b1[2] == 4.5 && b1[3] == 5.5);
    s = schedule_parse(mem(), "t", "0F0,1F0,1B0,0B0", 1);
    EXPECT_NEAR(schedule_seconds(mem(), s, &t, NULL), 6, 1e-12);
}

TEST(times_by_chunk) {
    static const double chunk[2][TASK_KINDS] = {
        {[TASK_FORWARD] = 1, [TASK_BACKWARD] = 2},
        {[TASK_FORWARD] = 3, [TASK_BACKWARD] = 6}};
    const PipeSchedule *s = schedule_make(mem(), "gpipe", 2, 2, 1);
    const TaskSeconds t = {.chunk = chunk};
    EXPECT_NEAR(schedule_seconds(mem(), s, &t, NULL), 12, 1e-12);
    EXPECT_NEAR(schedule_bubble(s, &t), 0.5, 1e-12);
}

/* ---- random texts ---- */

/* A schedule with some cells replaced by others, or by anything. */
static const char *random_text(uint64_t n) {
    static const char *const words[] = {
        "0F0", "0B0", "1F0",    "1B0", "0F1", "1I1", "1W1", "0",  "F",   "",
        "",    "\n",  "0F0\n1", " ",   "-",   "B",   "9",   "\r", "\xff"};
    static const char *const good[] = {"0F0", "0F1", "0B0", "0B1\n", "1F0",
                                       "1B0", "1F1", "1I1", "1W1"};
    Text t = text_new(mem());
    double share = rng_uniform(8, n, 0) * 0.5;
    for (int i = 0; i < ARRAY_LEN(good); i++) {
        bool other = rng_uniform(9, n, (uint64_t)i) < share;
        int w = (int)(rng_uniform(7, n, (uint64_t)i) * ARRAY_LEN(words));
        const char *cell = other ? words[w] : good[i];
        text_add(&t, "%s%s", cell, strchr(cell, '\n') ? "" : ",");
    }
    return t.s;
}

/* Read: what is printed is read again. Refused: with a place in the text. */
static bool take(const char *text, int micro) {
    const TaskSeconds seconds = {.kind = {0, 1, 2, 1, 1}};
    Catch c;
    test_at("%s", text);
    if (CATCH(c)) {
        PipeSchedule *s = schedule_parse(mem(), "random", text, micro);
        catch_end(&c);
        expect_round_trip(s, NULL, 0);
        EXPECT(schedule_seconds(mem(), s, &seconds, NULL) >= 0);
        return true;
    }
    EXPECT(c.code == EXIT_CONFIG && c.at.line > 0 && c.at.col > 0);
    return false;
}

TEST(random_texts) {
    int taken = 0;
    for (int n = 0; n < 20000; n++) taken += take(random_text((uint64_t)n), 2);
    printf("  %d of 20000 are schedules\n", taken);
    EXPECT(taken > 500 && taken < 10000);
}

/* At some time so many wait; where gradients of weights do, never more of both. */
static void expect_waiting(const PipeSchedule *s, int stage, Waiting w) {
    bool any = !w.forward && !w.weights, more = false;
    Waiting now = {0};
    for (int i = 0; i < s->stage[stage].n; i++) {
        TaskKind kind = s->stage[stage].task[i].kind;
        now.forward += (kind == TASK_FORWARD) - (kind == TASK_INPUTS);
        now.weights += (kind == TASK_INPUTS) - (kind == TASK_WEIGHTS);
        any |= now.forward == w.forward && now.weights == w.weights;
        more |= now.forward > w.forward && now.weights > w.weights;
    }
    EXPECT(any);
    EXPECT(!more || !w.weights);
}

/* When a chunk begins to go back: what has gone forward and not back, and chunks not gone back. */
static void expect_alive(const PipeSchedule *s, const PipeScheduleKind *is, int stage) {
    int v = s->chunks / s->stages, nth = 0, forward = 0, ended = 0;
    int *back = NEW_ARRAY(mem(), int, (size_t)s->chunks);
    for (int i = 0; i < s->stage[stage].n; i++) {
        Task t = s->stage[stage].task[i];
        forward += t.kind == TASK_FORWARD;
        if (t.kind != TASK_BACKWARD && t.kind != TASK_INPUTS) continue;
        if (!back[t.chunk]) {
            Alive a = schedule_kind_alive(is, s->stages, v, s->micro, stage, nth++);
            EXPECT_INT(a.chunks, v - ended);
            EXPECT(is->halves || a.forward == forward);
            EXPECT(a.forward <= forward);
        }
        ended += ++back[t.chunk] == s->micro;
        forward--;
    }
    EXPECT_INT(nth, v);
}

/* What a kind of schedule says of itself is what its tasks do. */
TEST(kinds_say_what_their_tasks_do) {
    Arena *mem = arena_new();
    int made = 0;
    for (int k = 0; schedule_kind_at(k); k++)
        for (int p = 2; p <= 6; p++)
            for (int v = 1; v <= 3; v++)
                for (int m = 1; m <= 13; m++) {
                    const PipeScheduleKind *is = schedule_kind_at(k);
                    if (!schedule_fits(is->name, p, v, m)) continue;
                    const PipeSchedule *s = schedule_make(mem, is->name, p, p * v, m);
                    made++;
                    bool halves = false;
                    for (int i = 0; i < s->stage[0].n; i++)
                        halves |= s->stage[0].task[i].kind == TASK_WEIGHTS;
                    EXPECT(halves == is->halves);
                    for (int c = 0; c < p * v; c++)
                        EXPECT_INT(schedule_chunk_stage(is, p, c), s->stage_of[c]);
                    for (int i = 0; i < p; i++) {
                        int says = schedule_kind_in_flight(is, p, v, m, i);
                        int does = schedule_in_flight(s, i);
                        test_at("%s, %d stages, %d chunks, %d micro-batches, stage %d: "
                                "%d, and %d",
                                is->name, p, v, m, i, says, does);
                        if (!(says <= does && (is->halves || says == does)))
                            test_fail(__FILE__, __LINE__,
                                      "%s, %d stages, %d chunks, %d micro-batches, stage "
                                      "%d: says %d, does %d",
                                      is->name, p, v, m, i, says, does);
                        expect_waiting(s, i, schedule_kind_waiting(is, p, m, i));
                        if (!is->folded) expect_alive(s, is, i);
                    }
                }
    EXPECT(made > 200);
    arena_free(mem);
}
