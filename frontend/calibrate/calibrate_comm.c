/* calibrate_comm.c - what ranks send each other: messages between pairs, collectives of groups
 * of every size, all groups at once, and what of a late collective products hide. */
#include "frontend/calibrate/calibrate.h"
#include "passes/cost/message.h"
#include "runtime/comm/comm.h"
#include "runtime/core/rt.h"

/* ---- messages between two ranks ---- */

static bool on_one_host(int rank, int other) {
    return !strcmp(comm_host_of(rank), comm_host_of(other));
}

/* Who sends whom messages: a rank of the first half one of the second, and nobody the one in the
 * middle. Where hosts do not have the same numbers of ranks some pairs may be within one: then
 * those between two are the ones that count. */
typedef struct Pairs {
    int apart; /* ranks from the first of a pair to the second */
    bool hosts;
    int ranks, host_ranks; /* in pairs that count: all; of the host that has most */
} Pairs;

/* The other rank of a pair that counts; -1: this one is in none. */
static int other_of(const Calibration *c, const Pairs *p, int rank) {
    int other = rank < p->apart ? rank + p->apart : rank - p->apart;
    bool paired = rank >= p->apart || other < c->ranks;
    return paired && !(p->hosts && on_one_host(rank, other)) ? other : -1;
}

static Pairs pairs_of(const Calibration *c) {
    Pairs p = {.apart = (c->ranks + 1) / 2};
    for (int i = p.apart; i < c->ranks; i++) p.hosts |= !on_one_host(i, i - p.apart);
    int mine = 0;
    for (int i = 0; i < c->ranks; i++) {
        if (other_of(c, &p, i) < 0) continue;
        p.ranks++;
        mine += on_one_host(i, comm_rank());
    }
    p.host_ranks = (int)comm_max_i64(mine);
    return p;
}

/* Seconds of a message, of messages that go back and forth; every pair at once. */
static double message_time(const Calibration *c, const Pairs *p, int64_t bytes) {
    char *data = arena_alloc(c->mem, (size_t)bytes);
    int one = 1, rounds = 0, other = other_of(c, p, comm_rank());
    bool first = comm_rank() < other;
    memset(data, 1, (size_t)bytes);
    comm_mesh(c->ranks, 1, &one);
    double start = 0, seconds = 0;
    for (int n = 1; rounds == 0 || (seconds < c->seconds && n <= 1 << 12); n *= 2) {
        comm_barrier();
        start = clock_seconds();
        for (int i = 0; other >= 0 && i < n; i++) {
            int64_t ticket = first ? comm_send(other, 0, data, bytes) : 0;
            comm_receive(other, first ? 1 : 0, data, bytes);
            if (!first) ticket = comm_send(other, 1, data, bytes);
            comm_sent(ticket);
        }
        double mine = other >= 0 ? clock_seconds() - start : 0;
        seconds = ranks_mean(mine) * c->ranks / p->ranks;
        rounds = 2 * n;
    }
    return seconds / rounds;
}

enum { WORD_BYTES = 8 };

static void calibrate_links(Calibration *c) {
    int64_t few = WORD_BYTES, many = c->quick ? 1 << 16 : 8 << 20;
    Pairs p = pairs_of(c);
    double of_few[CALIBRATE_ROUNDS], of_many[CALIBRATE_ROUNDS];
    for (int i = 0; i < CALIBRATE_ROUNDS; i++) {
        of_few[i] = message_time(c, &p, few);
        of_many[i] = message_time(c, &p, many);
    }
    double start = calibrate_mean(of_few), all = calibrate_mean(of_many);
    Link *link = &c->m->link[p.hosts ? LINK_NETWORK : LINK_HOST];
    link->start_seconds = start;
    link->bytes_per_second = (double)(many - few) / MAX(all - start, 1e-9);
    if (p.hosts) link->bytes_per_second *= p.host_ranks;
    calibrate_say("messages%s: %.1f us and %.2f GB/s", p.hosts ? " between hosts" : "",
                  1e6 * start, 1e-9 * link->bytes_per_second);
}

/* A host may move the cores of a virtual machine from one of its chips to another: then what is
 * measured before and after is of two machines. The time of a word shows it first. */
typedef struct Watch {
    double least, most; /* seconds */
} Watch;

static void watch_links(const Calibration *c, Watch *w) {
    if (c->crowded) return;
    Pairs p = pairs_of(c);
    double seconds = message_time(c, &p, WORD_BYTES);
    w->least = w->most > 0 ? MIN(w->least, seconds) : seconds;
    w->most = MAX(w->most, seconds);
}

static void say_moved(const Watch *w) {
    if (w->most > 2 * w->least)
        calibrate_say(
            "WARNING: a word between two ranks took %.2f us at one time and %.2f "
            "at another: other programs ran, or the host moved the cores. Times "
            "of messages are of both; calibrate again",
            1e6 * w->least, 1e6 * w->most);
}

/* ---- messages to a rank on whose core another one computes ---- */

/* Between this rank, which leads, and the other one for so long; a message. */
static double notice_of_pair(int other, bool leads, double seconds) {
    double start = clock_seconds(), last = 0;
    int64_t messages = 0;
    while (!(last > 0)) {
        if (leads) last = clock_seconds() - start > seconds;
        int64_t ticket = leads ? comm_send(other, 0, &last, sizeof last) : 0;
        comm_receive(other, !leads ? 0 : 1, &last, sizeof last);
        if (!leads) ticket = comm_send(other, 1, &last, sizeof last);
        comm_sent(ticket);
        messages += 2;
    }
    return (clock_seconds() - start) / (double)messages;
}

/* Ranks as many as the cores have room for send each other messages, in pairs; the others, on
 * the same cores, compute. Only where each core has as many ranks, which launch binds then (not
 * where a quota is all that they may use). */
static void calibrate_notice(Calibration *c) {
    int places = comm_cores() / c->threads, me = comm_rank(), stages = c->ranks, one = 1;
    bool bound = c->ranks == comm_local_size() && rt_quota_cores() > comm_cores() &&
                 comm_cores() % c->threads == 0 && places >= 2 && c->ranks > places &&
                 c->ranks % places == 0;
    if (!bound) return;
    double seconds = c->quick ? 0.02 : 0.5, mine = 0, sum = 0;
    bool paired = me < places / 2 * 2;
    comm_mesh(stages, 1, &one);
    comm_barrier();
    double end = clock_seconds() + 1.2 * seconds;
    if (paired) mine = notice_of_pair(me ^ 1, me % 2 == 0, seconds);
    while (clock_seconds() < end) continue;
    sum = ranks_mean(mine) * c->ranks;
    c->m->notice_seconds = sum / (places / 2 * 2);
    calibrate_say("messages to a core that computes: %.0f us",
                  1e6 * c->m->notice_seconds);
}

/* ---- collectives ---- */

enum { STEP_BYTES = 192 << 20 };

/* Members of a group are neighbours, or (apart) as far from each other as groups are many: axis a
 * of a mesh of two axes. What is sent and where it goes was touched before most of a step went
 * by. */
static TrialOptions group_options(const Calibration *c, int group, bool apart) {
    static char mesh[64];
    int groups = c->ranks / group;
    const int size[] = {apart ? group : groups, apart ? groups : group};
    snprintf(mesh, sizeof mesh, apart ? "a=%d, b=%d" : "b=%d, a=%d", size[0], size[1]);
    comm_mesh(1, 2, size);
    TrialOptions o = calibrate_options(c);
    o.mesh = mesh;
    o.spread_bytes = STEP_BYTES;
    o.turns = c->crowded;
    return o;
}

static const struct {
    int op;
    const char *attrs;
    int in, out; /* operand and result in parts of a group's: 0 is one part, 1 all */
} collectives[] = {
    {OP_all_reduce, "axis=\"a\"", 1, 1},
    {OP_all_gather, "axis=\"a\"; dim=0", 0, 1},
    {OP_reduce_scatter, "axis=\"a\"; dim=0", 1, 0},
    {OP_all_to_all, "axis=\"a\"; split=0; join=1", 1, 1},
    {OP_ring_shift, "axis=\"a\"", 1, 1},
};

enum { WIDTH = 64, MOST_BYTES = 16 << 20, LEAST_BYTES = 1 << 10 };

static void shape_text(Arena *mem, const char **to, int op, bool whole, bool result,
                       int64_t rows, int group) {
    int64_t n = whole ? rows * group : rows;
    if (op == OP_all_to_all && result)
        *to = arena_printf(mem, "f32[%lld,%d]", (long long)rows, WIDTH * group);
    else
        *to = arena_printf(mem, "f32[%lld,%d]", (long long)n, WIDTH);
}

/* The seconds of the point. */
static double add_point(const Calibration *c, CollectiveCurve *k, bool apart, int nth,
                        int64_t rows) {
    TrialOptions o = group_options(c, k->group, apart);
    Arena *mem = arena_new();
    const OpInfo *op = &optab[k->op];
    const char *in, *out;
    shape_text(mem, &in, k->op, collectives[nth].in, false, rows, k->group);
    shape_text(mem, &out, k->op, collectives[nth].out, true, rows, k->group);
    const char *place = op->flags & F_INPLACE ? "=%x" : ""; /* as in a step */
    const char *text = arena_printf(
        mem, "(%%x: %s) -> (%s%s) {\n  %%y = %s %%x {%s} : %s\n  return %%y\n}", in, out,
        place, op->name, collectives[nth].attrs, out);
    int64_t bytes = 4 * WIDTH * rows * (collectives[nth].in ? k->group : 1);
    double seconds = trial_of(&o, text, c->seconds);
    k->seconds.x[k->seconds.n] = (double)message_sent_bytes(k->op, bytes, k->group);
    k->seconds.y[k->seconds.n++] = seconds;
    arena_free(mem);
    return seconds;
}

/* Of a host only if each group is within one. */
static LinkLevel level_of_groups(const Calibration *c, int group, bool apart) {
    int groups = c->ranks / group;
    for (int rank = 0; rank < c->ranks; rank++)
        if (!on_one_host(rank, apart ? rank % groups : rank - rank % group))
            return LINK_NETWORK;
    return LINK_HOST;
}

/* As many points as one round takes seconds for. */
static CollectiveCurve measure_collective(Calibration *c, int nth, int group,
                                          bool apart) {
    CollectiveCurve k = {.op = collectives[nth].op,
                         .group = group,
                         .ranks = c->host_ranks,
                         .level = level_of_groups(c, group, apart)};
    const double long_seconds = 0.25; /* what comes next would take one, in proportion */
    int64_t most = c->quick ? 1 << 14 : MOST_BYTES;
    double took = 0;
    k.seconds = (Curve){.x = NEW_ARRAY(c->mem, double, 32),
                        .y = NEW_ARRAY(c->mem, double, 32),
                        .grows = true};
    for (int64_t bytes = LEAST_BYTES; bytes <= most && took < long_seconds; bytes *= 4)
        took = add_point(c, &k, apart, nth, bytes / (4 * WIDTH));
    return k;
}

static void say_collective(const CollectiveCurve *k, int round) {
    const Curve *of = &k->seconds;
    calibrate_say("%s of %d%s, round %d: %.1f us to %.2f GB/s", optab[k->op].name,
                  k->group, k->level == LINK_NETWORK ? " between hosts" : "", round + 1,
                  1e6 * of->y[0], 1e-9 * of->x[of->n - 1] / of->y[of->n - 1]);
}

/* All of them, in the same order in each round. */
static int measure_collectives(Calibration *c, Watch *watch, int round,
                               CollectiveCurve *to) {
    int n = 0;
    for (int group = 2; group <= c->ranks; group++) {
        if (c->ranks % group) continue;
        bool hosts = level_of_groups(c, group, false) == LINK_HOST &&
                     level_of_groups(c, group, true) == LINK_NETWORK;
        for (int apart = 0; apart <= hosts; apart++)
            for (int k = 0; k < ARRAY_LEN(collectives); k++) {
                watch_links(c, watch);
                to[n] = measure_collective(c, k, group, apart);
                say_collective(&to[n++], round);
            }
    }
    return n;
}

/* The points that all rounds have. */
static CollectiveCurve mean_of_rounds(CollectiveCurve *const round[], int nth) {
    CollectiveCurve k = round[0][nth];
    for (int i = 1; i < CALIBRATE_ROUNDS; i++)
        k.seconds.n = MIN(k.seconds.n, round[i][nth].seconds.n);
    for (int at = 0; at < k.seconds.n; at++) {
        double seconds[CALIBRATE_ROUNDS];
        for (int i = 0; i < CALIBRATE_ROUNDS; i++)
            seconds[i] = round[i][nth].seconds.y[at];
        k.seconds.y[at] = calibrate_mean(seconds);
    }
    return k;
}

static void calibrate_collectives(Calibration *c, Watch *watch) {
    CollectiveCurve *round[CALIBRATE_ROUNDS];
    int n = 0;
    for (int i = 0; i < CALIBRATE_ROUNDS; i++) {
        round[i] =
            NEW_ARRAY(c->mem, CollectiveCurve, 2 * c->ranks * ARRAY_LEN(collectives));
        n = measure_collectives(c, watch, i, round[i]);
    }
    for (int nth = 0; nth < n; nth++)
        c->m->collective[c->m->ncollectives++] = mean_of_rounds(round, nth);
}

/* ---- beside products ---- */

static const char *beside_text(Arena *mem, bool sends, int products, long long n) {
    Text t = text_new(mem);
    text_add(
        &t, "(%%x: f32[%lld], %%a: f32[256,256], %%b: f32[256,256]) -> (f32[256,256]", n);
    if (sends) text_add(&t, ", f32[%lld]", n);
    text_add(&t, ") {\n");
    if (sends)
        text_add(&t, "  %%h = all_reduce %%x {axis=\"a\"; late=1} : f32[%lld]\n", n);
    for (int i = 0; i < products; i++)
        text_add(&t, "  %%p%d = dot %%a, %s {mk,kn->mn} : f32[256,256]\n", i + 1,
                 i ? arena_printf(mem, "%%p%d", i) : "%b");
    if (sends) text_add(&t, "  %%y = arrive %%h, %%x : f32[%lld]\n", n);
    text_add(&t, "  return %s%s\n}",
             products ? arena_printf(mem, "%%p%d", products) : "%b", sends ? ", %y" : "");
    return t.s;
}

static double beside_seconds(const Calibration *c, const TrialOptions *o, bool sends,
                             int products, long long n) {
    Arena *mem = arena_new();
    const char *text = beside_text(mem, sends, products, n);
    double seconds[CALIBRATE_ROUNDS];
    for (int i = 0; i < CALIBRATE_ROUNDS; i++) seconds[i] = trial_of(o, text, c->seconds);
    arena_free(mem);
    return calibrate_mean(seconds);
}

/* One that takes about as long as the products beside it. */
static void calibrate_hidden(Calibration *c) {
    enum { PRODUCTS = 24, NUMBERS = 1 << 18 };
    TrialOptions o = group_options(c, c->ranks, false);
    o.fused = true;
    long long n = c->quick ? 1 << 12 : NUMBERS;
    comm_progress(comm_progress_that_pays());
    double one = beside_seconds(c, &o, false, 1, n);
    double sends = beside_seconds(c, &o, true, 0, n);
    int products = (int)MIN(MAX(sends / one, 1), PRODUCTS * 16);
    double works = beside_seconds(c, &o, false, products, n);
    double both = beside_seconds(c, &o, true, products, n);
    comm_progress(COMM_AT_ONCE);
    double hidden = (sends + works - both) / MIN(sends, works);
    c->m->hidden = MAX(0, MIN(hidden, 1));
    calibrate_say("hidden %.2f of a collective of %.0f us beside products of %.0f us",
                  c->m->hidden, 1e6 * sends, 1e6 * works);
}

void calibrate_comm(Calibration *c) {
    if (c->ranks == 1) return;
    Watch watch = {0};
    calibrate_links(c);
    calibrate_notice(c);
    calibrate_collectives(c, &watch);
    calibrate_hidden(c);
    watch_links(c, &watch);
    say_moved(&watch);
    comm_mesh(1, 1, &c->ranks);
}
