/* jitter.c - see jitter.h. A distribution is a row with its quantiles: so a draw is a function
 * of one uniform number, and grows with it. */
#include "passes/estimate/jitter.h"
#include "base/rng.h"
#include <math.h>
#include <stdlib.h>

/* ---- quantiles ---- */

static double ratio(const double over[8], const double under[8], double x) {
    double p = over[7], q = under[7];
    for (int i = 6; i >= 0; i--) {
        p = p * x + over[i];
        q = q * x + under[i];
    }
    return p / q;
}

/* Algorithm AS 241, PPND16 (Wichura, "The percentage points of the normal distribution",
 * Applied Statistics 37, 1988): rational functions for the middle and two parts of the tails;
 * relative error about 1e-16. */
double normal_quantile(double u) {
    static const double middle[2][8] = {
        {3.3871328727963666080e0, 1.3314166789178437745e+2, 1.9715909503065514427e+3,
         1.3731693765509461125e+4, 4.5921953931549871457e+4, 6.7265770927008700853e+4,
         3.3430575583588128105e+4, 2.5090809287301226727e+3},
        {1, 4.2313330701600911252e+1, 6.8718700749205790830e+2, 5.3941960214247511077e+3,
         2.1213794301586595867e+4, 3.9307895800092710610e+4, 2.8729085735721942674e+4,
         5.2264952788528545610e+3}};
    static const double near[2][8] = {
        {1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
         3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
         2.27238449892691845833e-2, 7.74545014278341407640e-4},
        {1, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
         1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
         1.05075007164441684324e-9}};
    static const double far[2][8] = {
        {6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
         2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
         2.71155556874348757815e-5, 2.01033439929228813265e-7},
        {1, 5.99832206555887937690e-1, 1.36929880922735805310e-1,
         1.48753612908506148525e-2, 7.86869131145613259100e-4, 1.84631831751005468180e-5,
         1.42151175831644588870e-7, 2.04426310338993978564e-15}};
    double q = u - 0.5;
    if (fabs(q) <= 0.425) return q * ratio(middle[0], middle[1], 0.180625 - q * q);
    double r = sqrt(-log(q < 0 ? u : 1 - u));
    double x = r <= 5 ? ratio(near[0], near[1], r - 1.6) : ratio(far[0], far[1], r - 5);
    return q < 0 ? -x : x;
}

static double normal_factor(const Jitter *j, double u) {
    return MAX(0, 1 + j->a * normal_quantile(u));
}

static double lognormal_factor(const Jitter *j, double u) {
    return exp(j->a * normal_quantile(u));
}

static double uniform_factor(const Jitter *j, double u) {
    return 1 + j->a * u;
}

static double exponential_factor(const Jitter *j, double u) {
    return 1 - j->a * log1p(-u);
}

/* Of Lomax: a Pareto distribution that begins at 0. */
static double pareto_factor(const Jitter *j, double u) {
    return 1 + j->a * (j->b - 1) * expm1(-log1p(-u) / j->b);
}

static double spike_factor(const Jitter *j, double u) {
    return u > 1 - j->a ? j->b : 1;
}

struct JitterRow {
    const char *name, *a, *b; /* the numbers' names; b NULL: there is one */
    double least[2], most[2]; /* they are above, and up to */
    double (*factor)(const Jitter *, double u);
    bool steps; /* no line lies between two quantiles */
};

static const JitterRow rows[] = {
    {"normal", "DEVIATION", NULL, {0}, {10}, normal_factor},
    {"lognormal", "DEVIATION", NULL, {0}, {10}, lognormal_factor},
    {"uniform", "WIDTH", NULL, {0}, {1000}, uniform_factor},
    {"exponential", "MEAN", NULL, {0}, {1000}, exponential_factor},
    {"pareto", "MEAN", "SHAPE", {0, 1}, {1000, 1000}, pareto_factor},
    {"spike", "SHARE", "FACTOR", {0, 1}, {1, 1000000}, spike_factor, true},
};

double jitter_quantile(const Jitter *j, double u) {
    return j->row ? j->row->factor(j, u) : 1;
}

/* ---- text ---- */

static const JitterRow *find_row(const char *name, size_t n) {
    for (int i = 0; i < ARRAY_LEN(rows); i++)
        if (strlen(rows[i].name) == n && !memcmp(rows[i].name, name, n)) return &rows[i];
    return NULL;
}

static _Noreturn void unknown(const char *said_as, const char *text) {
    char all[256];
    size_t at = 0;
    for (int i = 0; i < ARRAY_LEN(rows) && at < sizeof all; i++) {
        const JitterRow *r = &rows[i];
        at += (size_t)snprintf(all + at, sizeof all - at, "%s%s:%s%s%s", i ? ", " : "",
                               r->name, r->a, r->b ? ":" : "", r->b ? r->b : "");
    }
    fail(EXIT_CONFIG,
         "%s %.60s: there is no such distribution\n    hint: write one of %s", said_as,
         text, all);
}

/* A number behind a ':', above `least` and up to `most`. */
static double read_number(const char *said_as, const char *text, const char *name,
                          double least, double most, const char **at) {
    char *end = NULL;
    double v = **at == ':' ? strtod(*at + 1, &end) : 0;
    if (**at != ':' || end == *at + 1 || !(v > least) || v > most ||
        (*end && *end != ':'))
        fail(EXIT_CONFIG,
             "%s %.60s: %s is a number above %g and up to %g\n    hint: it is written "
             "behind a colon, as in lognormal:0.05",
             said_as, text, name, least, most);
    *at = end;
    return v;
}

Jitter jitter_parse(const char *said_as, const char *text) {
    size_t n = strcspn(text, ":");
    const char *at = text + n;
    Jitter j = {.row = find_row(text, n)};
    if (!j.row) unknown(said_as, text);
    const JitterRow *r = j.row;
    j.a = read_number(said_as, text, r->a, r->least[0], r->most[0], &at);
    if (r->b) j.b = read_number(said_as, text, r->b, r->least[1], r->most[1], &at);
    if (*at)
        fail(EXIT_CONFIG, "%s %.60s: '%.30s' is too much\n    hint: %s:%s%s%s", said_as,
             text, at, r->name, r->a, r->b ? ":" : "", r->b ? r->b : "");
    return j;
}

/* ---- draws ---- */

const JitterTable *jitter_table(Arena *mem, Jitter j) {
    if (!j.row) return NULL;
    JitterTable *t = NEW(mem, JitterTable);
    t->jitter = j;
    for (int i = 1; i < JITTER_CELLS; i++)
        t->at[i] = (float)jitter_quantile(&j, (double)i / JITTER_CELLS);
    return t;
}

static double factor_of(const JitterTable *t, uint32_t word) {
    enum { CELL_BITS = 20 };
    _Static_assert(JITTER_CELLS == 1 << (32 - CELL_BITS),
                   "a cell for each of the first bits");
    int cell = (int)(word >> CELL_BITS);
    bool middle = cell >= JITTER_EXACT_CELLS && cell < JITTER_CELLS - JITTER_EXACT_CELLS;
    if (!middle || t->jitter.row->steps)
        return jitter_quantile(&t->jitter, (word + 0.5) * 0x1p-32);
    double share = ((word & ((1u << CELL_BITS) - 1)) + 0.5) / (1 << CELL_BITS);
    return t->at[cell] + share * ((double)t->at[cell + 1] - t->at[cell]);
}

/* Four of 32 bits at a time: the farthest is at 1e-10 of the distribution. */
void jitter_draw(const JitterTable *t, const JitterKey *k, int n, double *factor) {
    uint32_t key[2] = {(uint32_t)k->seed, (uint32_t)(k->seed >> 32)}, word[4];
    for (int i = 0; i < n; i += 4) {
        uint32_t counter[4] = {(uint32_t)i / 4, k->number, k->step, k->purpose};
        rng_philox(counter, key, word);
        for (int w = 0; w < 4 && i + w < n; w++) factor[i + w] = factor_of(t, word[w]);
    }
}
