/* calibrate_rank.c - what a rank computes in a second while all of them do: products, memory,
 * the start of an op, peaks. */
#include "frontend/calibrate/calibrate.h"
#include "runtime/comm/comm.h"
#include "runtime/core/peak.h"
#include <math.h>

/* ---- the start of an op ---- */

/* Sums over all of a small tensor, each of what the one before it gave, so that they are no
 * one kernel. */
static double seconds_of_row(const Calibration *c, int n) {
    TrialOptions o = calibrate_options(c);
    Arena *mem = arena_new();
    Text t = text_new(mem);
    text_add(&t, "(%%x: f32[16,16]) -> (f32[16]) {\n");
    for (int i = 0; i < n; i++)
        text_add(&t,
                 "  %%s%d = sum %%y%d {ij->j} : f32[16]\n"
                 "  %%y%d = add %%x, %%s%d {ij,j->ij} : f32[16,16]\n",
                 i, i, i + 1, i);
    text_add(&t, "  %%r = sum %%y%d {ij->j} : f32[16]\n  return %%r\n}", n);
    char *first = strstr(t.s, "%y0");
    memcpy(first, "%x ", 3);
    double seconds = trial_of(&o, t.s, c->seconds);
    arena_free(mem);
    return seconds;
}

static void calibrate_start(Calibration *c) {
    enum { FEW = 4, MANY = 36 };
    double more = seconds_of_row(c, MANY) - seconds_of_row(c, FEW);
    c->m->op_start_seconds = MAX(more / (MANY - FEW), 1e-9);
    calibrate_say("op start %.2f us", 1e6 * c->m->op_start_seconds);
}

/* ---- memory ---- */

enum { TOUCHES = 3 };

/* What is done with two tensors: their sum goes to a third place, or to that of the first; or they
 * are read alone, and the sum of their products is small. */
static const struct {
    const char *name, *result, *ops;
    double tensors; /* that are touched */
} touches[TOUCHES] = {
    {"memory", "f32[%lld,16]", "%%r = add %%x, %%y : f32[%lld,16]", 3},
    {"in place", "f32[%lld,16]=%%x", "%%r = add %%x, %%y : f32[%lld,16]", 3},
    {"reads", "f32[16]",
     "%%p = mul %%x, %%y : f32[%lld,16]\n  %%r = sum %%p {ij->j} : f32[16]", 2},
};

static double touched_bytes(int touch, int64_t rows) {
    return touches[touch].tensors * 4 * 16 * (double)rows;
}

static double touch_seconds(const Calibration *c, int touch, int64_t rows,
                            double pause_seconds) {
    TrialOptions o = calibrate_options(c);
    o.spread_bytes = 0; /* all that is touched between two runs is what one moves */
    o.pause_seconds = pause_seconds;
    char result[40], ops[120], text[400];
    long long n = (long long)rows;
    snprintf(result, sizeof result, touches[touch].result, n);
    snprintf(ops, sizeof ops, touches[touch].ops, n);
    snprintf(text, sizeof text,
             "(%%x: f32[%lld,16], %%y: f32[%lld,16]) -> (%s) {\n  %s\n  return %%r\n}", n,
             n, result, ops);
    return without_start(c, trial_of(&o, text, c->seconds + 8 * pause_seconds));
}

/* All that is done with the tensors in one round and then in the next: what a byte costs that is
 * written is the difference of two of them. */
static void measure_touches(const Calibration *c, int64_t rows, double seconds[TOUCHES]) {
    double took[TOUCHES][CALIBRATE_ROUNDS];
    for (int round = 0; round < CALIBRATE_ROUNDS; round++)
        for (int t = 0; t < TOUCHES; t++) took[t][round] = touch_seconds(c, t, rows, 0);
    for (int t = 0; t < TOUCHES; t++) seconds[t] = calibrate_mean(took[t]);
}

/* Of 3 kB to 200 MB. */
static void calibrate_memory(Calibration *c, MachineRank *r) {
    enum { FIRST = 1 << 8, POINTS = 9 };
    Curve *const curve[TOUCHES] = {&r->memory, &r->in_place, &r->reads};
    double seconds[TOUCHES];
    for (int t = 0; t < TOUCHES; t++) {
        curve[t]->x = NEW_ARRAY(c->mem, double, POINTS);
        curve[t]->y = NEW_ARRAY(c->mem, double, POINTS);
    }
    int64_t rows = FIRST / 16;
    for (int i = 0; i < (c->quick ? 3 : POINTS); i++, rows *= 4) {
        measure_touches(c, rows, seconds);
        for (int t = 0; t < TOUCHES; t++) {
            double bytes = touched_bytes(t, rows);
            curve[t]->x[i] = bytes;
            curve[t]->y[i] = bytes / seconds[t];
            curve[t]->n = i + 1;
            calibrate_say("%s %9.0f bytes: %.2f GB/s", touches[t].name, bytes,
                          1e-9 * curve[t]->y[i]);
        }
    }
}

/* The share of what a cache saves that is gone after each pause, of the largest sum that it holds.
 * False: there is no such cache. */
static bool measure_lost(const Calibration *c, const Curve *k,
                         const double *pause_seconds, double *lost, int n) {
    int at = k->n - 1;
    while (at >= 0 && k->y[at] < 2 * k->y[k->n - 1]) at--;
    if (at < 0) return false;
    int64_t rows = (int64_t)(k->x[at] / touched_bytes(0, 1));
    double held = touch_seconds(c, 0, rows, 0), far = k->x[at] / k->y[k->n - 1];
    if (!(far > held)) return false;
    for (int i = 0; i < n; i++) {
        double seconds = touch_seconds(c, 0, rows, pause_seconds[i]);
        lost[i] = MAX(0, MIN((seconds - held) / (far - held), 1));
    }
    return true;
}

double calibrate_keeps_seconds(const double *pause_seconds, const double *lost, int n) {
    double least = INFINITY, best = 0;
    for (double s = 1e-4; s < 1; s *= 1.02) {
        double off = 0;
        for (int i = 0; i < n; i++)
            off += pow(1 - exp(-pause_seconds[i] / s) - lost[i], 2);
        if (off < least) best = s;
        least = MIN(least, off);
    }
    return best;
}

/* A cache that has lost next to nothing after the longest pause is the rank's own. */
static void calibrate_keeps(Calibration *c, MachineRank *r) {
    static const double pause_seconds[] = {1e-3, 3e-3, 1e-2, 3e-2};
    const double next_to_nothing = 0.1;
    enum { PAUSES = ARRAY_LEN(pause_seconds) };
    double lost[PAUSES];
    if (!measure_lost(c, &r->memory, pause_seconds, lost, PAUSES)) return;
    if (lost[PAUSES - 1] < next_to_nothing) return;
    r->keeps_seconds = calibrate_keeps_seconds(pause_seconds, lost, PAUSES);
    calibrate_say(
        "caches keep what is not touched for %.1f ms: lost after 1, 3, 10, 30 ms %.0f, "
        "%.0f, %.0f, %.0f %%",
        1e3 * r->keeps_seconds, 100 * lost[0], 100 * lost[1], 100 * lost[2],
        100 * lost[3]);
}

/* ---- products ---- */

static const struct {
    const char *rule;
    bool first_across, second_across, adds;
} forms[PRODUCT_FORMS] = {
    [FORM_NN] = {"mk,kn->mn", false, false, false},
    [FORM_NT] = {"mk,nk->mn", false, true, false},
    [FORM_TN] = {"km,kn,mn->mn", true, false, true}, /* gradients of weights, added up */
    [FORM_TT] = {"km,nk->mn", true, true, false},
};

static void add_matrix(Text *t, const char *name, const char *type, bool across,
                       int64_t rows, int64_t columns) {
    text_add(t, "%s: %s[%lld,%lld]", name, type, (long long)(across ? columns : rows),
             (long long)(across ? rows : columns));
}

static double product_rate(const Calibration *c, const ProductTable *p, int64_t m,
                           int64_t n, int64_t k) {
    const char *type = dtype_name[p->type], *to = forms[p->form].adds ? "f32" : type;
    TrialOptions o = calibrate_options(c);
    Arena *mem = arena_new();
    Text t = text_new(mem);
    text_add(&t, "(");
    add_matrix(&t, "%a", type, forms[p->form].first_across, m, k);
    add_matrix(&t, ", %b", type, forms[p->form].second_across, k, n);
    if (forms[p->form].adds) add_matrix(&t, ", %c", "f32", false, m, n);
    const char *more = forms[p->form].adds ? ", %c" : "";
    text_add(&t,
             ") -> (%s[%lld,%lld]%s) {\n  %%d = dot %%a, %%b%s {%s} : %s[%lld,%lld]\n",
             to, (long long)m, (long long)n, *more ? "=%c" : "", more,
             forms[p->form].rule, to, (long long)m, (long long)n);
    text_add(&t, "  return %%d\n}");
    double seconds = trial_of(&o, t.s, c->seconds / 2);
    arena_free(mem);
    return 2.0 * (double)m * (double)n * (double)k / without_start(c, seconds);
}

static bool is_measured(const Calibration *c, const ProductTable *p, int at) {
    const double most = c->quick ? 1e7 : 5e9;
    int i = at / p->n / p->n, j = at / p->n % p->n, k = at % p->n;
    return 2 * p->size[i] * p->size[j] * p->size[k] <= most;
}

/* The point before or behind it along one of the three sizes; -1: there is none. */
static int neighbour(const ProductTable *p, int at, int along, int by) {
    int stride = along == 0 ? p->n * p->n : along == 1 ? p->n : 1;
    int to = at / stride % p->n + by;
    return to < 0 || to >= p->n ? -1 : at + by * stride;
}

/* Points of too many flops have the rate of one whose largest sizes are smaller. */
static void fill_table(const Calibration *c, ProductTable *p) {
    for (int at = 0; at < p->n * p->n * p->n; at++) {
        const int i[] = {at / p->n / p->n, at / p->n % p->n, at % p->n};
        int from = at, largest = MAX(MAX(i[0], i[1]), i[2]);
        if (is_measured(c, p, at)) continue;
        for (int d = 0; d < 3; d++)
            if (i[d] == largest) from = neighbour(p, from, d, -1);
        p->rate[at] = p->rate[from];
    }
}

static double rate_at(const Calibration *c, const ProductTable *p, int at) {
    return product_rate(c, p, (int64_t)p->size[at / p->n / p->n],
                        (int64_t)p->size[at / p->n % p->n], (int64_t)p->size[at % p->n]);
}

/* A table of rates that are still to be measured. */
static ProductTable empty_table(const Calibration *c, DType type, ProductForm form) {
    static const double sizes[] = {64, 192, 384, 768, 3072};
    int n = c->quick ? 1 : ARRAY_LEN(sizes);
    ProductTable p = {.type = type, .form = form, .n = n};
    p.size = NEW_ARRAY(c->mem, double, (size_t)n);
    p.rate = NEW_ARRAY(c->mem, double, (size_t)(n * n * n));
    memcpy(p.size, sizes, (size_t)n * sizeof *sizes);
    return p;
}

static void measure_table(const Calibration *c, ProductTable *p, int round) {
    double best = 0;
    for (int at = 0; at < p->n * p->n * p->n; at++) {
        if (!is_measured(c, p, at)) continue;
        p->rate[at] = rate_at(c, p, at);
        best = MAX(best, p->rate[at]);
    }
    calibrate_say("products %s %s, round %d: up to %.1f GFLOP/s", dtype_name[p->type],
                  product_form_name[p->form], round + 1, 1e-9 * best);
}

/* The rate of as many flops as take the mean of two times. */
static double mean_rate(double a, double b) {
    const double seconds[CALIBRATE_ROUNDS] = {1 / a, 1 / b};
    return 1 / calibrate_mean(seconds);
}

bool calibrate_is_dip(const ProductTable *p, int at) {
    const double less = 0.85;
    double rate[6];
    size_t n = 0;
    for (int side = 0; side < ARRAY_LEN(rate); side++) {
        int to = neighbour(p, at, side / 2, side % 2 ? 1 : -1);
        if (to >= 0 && p->rate[to] > 0) rate[n++] = p->rate[to];
    }
    sort_doubles(rate, n);
    return n && p->rate[at] > 0 && p->rate[at] < less * rate[(n - 1) / 2];
}

static void measure_dips(const Calibration *c, ProductTable *p) {
    for (int at = 0; at < p->n * p->n * p->n; at++)
        if (calibrate_is_dip(p, at))
            p->rate[at] = mean_rate(p->rate[at], rate_at(c, p, at));
}

/* All tables in one round and then in the next: what disturbs a host for half a minute has one of
 * two times of a point. */
static void calibrate_products(Calibration *c, MachineRank *r) {
    static const DType types[] = {DT_F32, DT_BF16};
    static const ProductForm measured[] = {FORM_NN, FORM_NT, FORM_TN};
    enum { FORMS = ARRAY_LEN(measured), TABLES = ARRAY_LEN(types) * FORMS };
    ProductTable table[CALIBRATE_ROUNDS][TABLES];
    for (int round = 0; round < CALIBRATE_ROUNDS; round++)
        for (int k = 0; k < TABLES; k++) {
            table[round][k] = empty_table(c, types[k / FORMS], measured[k % FORMS]);
            measure_table(c, &table[round][k], round);
        }
    r->product = NEW_ARRAY(c->mem, ProductTable, TABLES);
    for (int k = 0; k < TABLES; k++) {
        ProductTable p = table[0][k];
        for (int at = 0; at < p.n * p.n * p.n; at++)
            if (is_measured(c, &p, at))
                p.rate[at] = mean_rate(p.rate[at], table[1][k].rate[at]);
        measure_dips(c, &p);
        fill_table(c, &p);
        r->product[r->nproducts++] = p;
    }
}

/* ---- all ---- */

/* While all ranks measure theirs. A CPU without units for bf16 has the rate of f32. */
static void calibrate_peaks(Calibration *c, MachineRank *r) {
    const char *unit;
    if (c->ranks > 1) comm_barrier();
    r->flops[0] = 1e9 * ranks_mean(peak_f32(c->threads, PEAK_SECONDS, &unit));
    if (c->ranks > 1) comm_barrier();
    r->flops[1] = 1e9 * ranks_mean(peak_bf16(c->threads, PEAK_SECONDS, &unit));
    if (!(r->flops[1] > 0)) r->flops[1] = r->flops[0];
    calibrate_say("peaks: f32 %.1f, bf16 %.1f GFLOP/s", 1e-9 * r->flops[0],
                  1e-9 * r->flops[1]);
}

MachineRank *calibrate_rank(Calibration *c) {
    MachineRank *r = &c->m->rank[c->m->nranks];
    *r = (MachineRank){.ranks = c->host_ranks, .threads = c->threads};
    calibrate_peaks(c, r);
    calibrate_start(c);
    calibrate_memory(c, r);
    calibrate_keeps(c, r);
    calibrate_products(c, r);
    c->m->nranks++;
    return r;
}
