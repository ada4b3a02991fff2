/* Tests of pipelines of models written as text, none of them a GPT: trained under stages as
 * under one, at level local and with planned memory; and under orders that were broken at
 * random, which are refused or give the same numbers, and never hang. */
#include "../pipe_trained.h"
#include "base/rng.h"

/* The V placement of four chunks. */
static const char vee[] =
    "0F0,3F0,0F1,3F1,3B0,0B0,3B1,0B1\n1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\n";
/* Backward in halves for some micro-batches, whole for others. */
static const char mixed[] = "0F0,0F1,0F2,0I0,0W0,0B1,0I2,0W2\n"
                            "1F0,1I0,1F1,1W0,1B1,1F2,1B2\n";
/* Halves that are far apart. */
static const char apart[] = "0F0,0F1,0I0,0I1,0W0,0W1\n1F0,1B0,1F1,1I1,1W1\n";
static const int64_t uneven[] = {1, 4, 0, 3}, last_empty[] = {5, 3, 0, 0};

static const How ways[] = {
    {2, 1, 1, "1f1b"},
    {2, 1, 4, "1f1b"},
    {4, 1, 3, "1f1b"},
    {4, 2, 4, "1f1b"},
    {2, 4, 2, "1f1b"},
    {8, 1, 2, "gpipe"},
    {2, 2, 3, "breadth_first"},
    {2, 2, 2, NULL, vee},
    {2, 1, 3, NULL, mixed},
    {2, 1, 2, NULL, apart},
    {4, 1, 4, "zero_bubble_h1"},
    {2, 1, 3, "zero_bubble_h1"},
    {4, 2, 4, "zero_bubble_v"},
    {2, 2, 3, "zero_bubble_v"},
    {4, 1, 2, "gpipe", NULL, uneven},
    {4, 1, 2, "1f1b", NULL, last_empty},
};

static void check_ways(const char *file) {
    for (int i = 0; i < ARRAY_LEN(ways); i++) {
        How h = ways[i];
        check_way(file, &h);
        h.planned = true;
        check_way(file, &h);
    }
}

TEST_LABEL_OF(encoder_and_decoder_with_a_tied_table, SLOW);
TEST_LIMIT(encoder_and_decoder_with_a_tied_table, 120) {
    check_ways("encoder_decoder.ir");
}

TEST_LABEL_OF(residual_mlp, SLOW);
TEST_LIMIT(residual_mlp, 120) {
    check_ways("residual_mlp.ir");
}

TEST(tiny_gpt_in_three) {
    const How h = {3, 1, 2, "1f1b"};
    check_way("tiny_gpt.ir", &h);
}

/* ---- broken orders ---- */

enum { MODEL_MICRO = 4, MOST_CELLS = 64, MOST_ROWS = 4 };

typedef struct Orders {
    char cell[MOST_ROWS][MOST_CELLS][8];
    int rows, n[MOST_ROWS];
} Orders;

static Orders orders_of(const PipeSchedule *s) {
    Orders o = {.rows = s->stages};
    for (int k = 0; k < s->stages; k++)
        for (int i = 0; i < s->stage[k].n; i++) {
            Task t = s->stage[k].task[i];
            snprintf(o.cell[k][o.n[k]++], sizeof o.cell[k][0], "%d%c%d", t.chunk & 15,
                     task_letter[t.kind], t.micro & 15);
        }
    return o;
}

static int dice(uint64_t seed, int *throw, int sides) {
    return (int)(rng_uniform(seed, 11, (uint64_t)(*throw)++) * sides);
}

static void insert(Orders *o, int row, int at, const char *cell) {
    char copy[8];
    snprintf(copy, sizeof copy, "%s", cell);
    if (o->n[row] == MOST_CELLS) return;
    memmove(o->cell[row][at + 1], o->cell[row][at],
            (size_t)(o->n[row] - at) * sizeof o->cell[0][0]);
    memcpy(o->cell[row][at], copy, sizeof copy);
    o->n[row]++;
}

static void drop(Orders *o, int row, int at) {
    o->n[row]--;
    memmove(o->cell[row][at], o->cell[row][at + 1],
            (size_t)(o->n[row] - at) * sizeof o->cell[0][0]);
}

static void swap(Orders *o, int row, int a, int b) {
    char copy[8];
    memcpy(copy, o->cell[row][a], sizeof copy);
    memcpy(o->cell[row][a], o->cell[row][b], sizeof copy);
    memcpy(o->cell[row][b], copy, sizeof copy);
}

enum { NEIGHBOURS, SWAPPED, MOVED, DROPPED, DOUBLED, OTHER_ROW, OTHER_LETTER, HALVED };

/* Mostly what keeps every task: the others are found when the text is read. */
static void break_once(Orders *o, uint64_t seed, int *throw) {
    static const int kinds[] = {
        NEIGHBOURS, NEIGHBOURS, NEIGHBOURS, NEIGHBOURS,   NEIGHBOURS, NEIGHBOURS,
        SWAPPED,    SWAPPED,    MOVED,      MOVED,        MOVED,      MOVED,
        DROPPED,    DOUBLED,    OTHER_ROW,  OTHER_LETTER, HALVED,     HALVED};
    int row = dice(seed, throw, o->rows), n = o->n[row];
    if (n < 2) return;
    int kind = kinds[dice(seed, throw, ARRAY_LEN(kinds))];
    int a = dice(seed, throw, n), b = dice(seed, throw, n), c = dice(seed, throw, n - 1);
    char cell[8];
    memcpy(cell, o->cell[row][a], sizeof cell);
    if (kind == NEIGHBOURS) swap(o, row, c, c + 1);
    if (kind == SWAPPED) swap(o, row, a, b);
    if (kind == MOVED || kind == DROPPED || kind == OTHER_ROW) drop(o, row, a);
    if (kind == MOVED) insert(o, row, c, cell);
    if (kind == DOUBLED) insert(o, row, b, cell);
    if (kind == OTHER_ROW) {
        int to = dice(seed, throw, o->rows);
        insert(o, to, dice(seed, throw, o->n[to] + 1), cell);
    }
    if (kind == HALVED && cell[1] == 'B') {
        o->cell[row][a][1] = 'I';
        cell[1] = 'W';
        insert(o, row, a + 1 + dice(seed, throw, n - a), cell);
    }
    if (kind == OTHER_LETTER) o->cell[row][a][1] = "FBIW"[dice(seed, throw, 4)];
}

static const char *orders_text(Arena *mem, const Orders *o) {
    Text t = text_new(mem);
    for (int k = 0; k < o->rows; k++) {
        for (int i = 0; i < o->n[k]; i++) text_add(&t, "%s,", o->cell[k][i]);
        text_add(&t, "\n");
    }
    return t.s;
}

typedef enum Fate { READ, WAITED, RAN, FATES } Fate;

/* Is it said in one of the ways in which an order may be refused? */
static Fate fate_of(const Catch *c, const char *text) {
    if (c->code == EXIT_CONFIG && c->at.line > 0 && strstr(c->message, "orders.csv:"))
        return READ;
    if (c->code == EXIT_CONFIG && strstr(c->message, "wait for each other for ever\n"))
        return WAITED;
    test_fail(__FILE__, __LINE__, "%s\ncode %d: %s", text, c->code, c->message);
}

static Fate run_broken(const char *text, int stages, int chunks, const Trained one[2]) {
    Arena *mem = arena_new();
    const How h = {stages, chunks, MODEL_MICRO, NULL, text};
    Module *volatile m = NULL;
    Catch c;
    Fate fate = RAN;
    test_at("%s", text);
    if (CATCH(c)) {
        m = made(mem, "residual_mlp.ir", &h);
        catch_end(&c);
    } else {
        fate = fate_of(&c, text);
    }
    if (fate == RAN) {
        Trained t = opened(mem, m);
        EXPECT(pipe_order_ends(mem, m));
        begin_as(&t, &one[0]);
        train(&t, 1);
        double worst = difference(&t, &one[1], 1);
        if (!(worst <= 1e-6))
            test_fail(__FILE__, __LINE__, "%s\nis off by %.2g", text, worst);
    }
    arena_free(mem);
    return fate;
}

#ifdef __SANITIZE_ADDRESS__
enum { BROKEN = 100 };
#else
enum { BROKEN = 1000 };
#endif

TEST_LABEL_OF(broken_orders_are_refused_or_right, SLOW);
TEST_LIMIT(broken_orders_are_refused_or_right, 600) {
    static const How from[] = {
        {2, 1, MODEL_MICRO, "1f1b"},           {4, 1, MODEL_MICRO, "1f1b"},
        {2, 2, MODEL_MICRO, "1f1b"},           {2, 2, MODEL_MICRO, "breadth_first"},
        {4, 1, MODEL_MICRO, "zero_bubble_h1"}, {2, 2, MODEL_MICRO, "zero_bubble_v"}};
    int fates[FATES] = {0}, count = test_long() ? 20000 : BROKEN;
    Arena *mem = arena_new();
    Trained one[2];
    train_one(mem, "residual_mlp.ir", &from[0], 1, one);
    for (int n = 0; n < count; n++) {
        const How *h = &from[n % ARRAY_LEN(from)];
        Arena *own = arena_new();
        int throw = 0, times = 1 + n % 3;
        Orders o = orders_of(
            schedule_make(own, h->name, h->stages, h->stages * h->chunks, h->micro));
        for (int i = 0; i < times; i++) break_once(&o, (uint64_t)n, &throw);
        fates[run_broken(orders_text(own, &o), o.rows, h->chunks, one)]++;
        arena_free(own);
    }
    printf("  of %d orders %d were refused as texts, %d for ever waiting; %d ran to the "
           "right "
           "loss\n",
           count, fates[READ], fates[WAITED], fates[RAN]);
    for (int i = 0; i < FATES; i++) EXPECT(fates[i] > 0);
    arena_free(mem);
}

/* Who waits for whom is said task by task. */
TEST(stages_that_wait_for_each_other_are_named) {
    static const char orders[] = "0F0,0B0,0F1,0B1,0F2,0F3,0B2,0B3\n"
                                 "1F0,1F1,1B0,1B1,1F2,1F3,1B2,1B3\n";
    const How h = {2, 1, MODEL_MICRO, NULL, orders};
    Arena *mem = arena_new();
    EXPECT_FAIL(made(mem, "residual_mlp.ir", &h), EXIT_CONFIG,
                "schedule orders.csv: its stages wait for each other for ever\n"
                "    stage 0: 0B0 waits for 1B0 of stage 1\n"
                "    stage 1: 1F1 waits for 0F1 of stage 0");
}
