/* seconds_print.c - what slow ranks cost, for people and for programs. */
#include "base/json.h"
#include "frontend/simulate/seconds.h"
#include "frontend/simulate/simulate.h"

/* What axes of a mesh are for. */
static const struct {
    const char *axis, *words;
} axis_words[] = {
    {"dp", "data parallel"},   {"rp", "data parallel"},    {"rp.dp", "data parallel"},
    {"tp", "tensor parallel"}, {"cp", "context parallel"}, {"up", "context parallel"},
};

static const Mesh *mesh_of(const Seconds *s) {
    return s->program.parts.mesh;
}

static const char *wait_name(const Seconds *s, Axes axes) {
    const char *text = mesh_axes_text(s->mem, mesh_of(s), axes);
    for (int i = 0; i < ARRAY_LEN(axis_words); i++)
        if (!strcmp(axis_words[i].axis, text))
            return arena_printf(s->mem, "%s (%s)", axis_words[i].words, text);
    return text;
}

/* "rank 37 (stage 0, dp 4, tp 5, host 4)", or the link as it was written. */
static const char *culprit_name(const Seconds *s, int who) {
    Text t = text_new(s->mem);
    if (who >= s->all) {
        const SlowLink *l = &s->noise.link[who - s->all];
        const char *of = l->hosts ? "host" : "rank ";
        text_add(&t, l->b < 0 ? "links of %s%d" : "link of %s%d", of, l->a);
        if (l->b >= 0) text_add(&t, " and %s%d", of, l->b);
        return t.s;
    }
    RankPlace p = seconds_place(s, who);
    const Mesh *m = mesh_of(s);
    text_add(&t, "rank %d (stage %d", who, p.stage);
    for (int a = 0; a < m->naxes; a++)
        if (m->axis[a].size > 1)
            text_add(&t, ", %s %d", m->axis[a].name, mesh_coord(m, p.of_stage, a));
    text_add(&t, ", host %d)", p.host);
    return t.s;
}

/* ---- rows: of a rank, on average ---- */

typedef struct Row {
    const char *name, *key;
    double ideal, here;
} Row;

enum { MOST_ROWS = (1 << MAX_AXES) + 4 };

static int list_rows(const Seconds *s, Row row[MOST_ROWS]) {
    const RankSums *a = &s->ideal.sums, *b = &s->sums;
    int n = 0;
    row[n++] = (Row){"compute", "compute", a->compute, b->compute};
    row[n++] = (Row){"messages", "messages", a->messages, b->messages};
    for (int x = 1; x < 1 << mesh_of(s)->naxes; x++) {
        if (!(a->wait[x] > 0) && !(b->wait[x] > 0)) continue;
        const char *key = mesh_axes_text(s->mem, mesh_of(s), (Axes)x);
        row[n++] = (Row){arena_printf(s->mem, "waits: %s", wait_name(s, (Axes)x)),
                         arena_printf(s->mem, "wait_%s", key), a->wait[x], b->wait[x]};
    }
    if (s->program.parts.stages > 1)
        row[n++] = (Row){"waits: pipeline (other stages)", "wait_pipeline", a->stages,
                         b->stages};
    row[n++] = (Row){"until the last rank is done", "wait_end", a->end, b->end};
    for (int i = 0; i < n; i++) {
        row[i].ideal /= s->all;
        row[i].here /= s->all;
    }
    return n;
}

/* ---- for people ---- */

static void add_steps(const Seconds *s, Text *out) {
    double ideal = s->ideal.seconds, median = seconds_quantile(s, 0.5);
    double most = seconds_quantile(s, 0.95);
    text_add(out, "\nstep      %.4g s with nothing slow\n", ideal);
    text_add(out, "          %.4g s ", median);
    if (s->steps > 1)
        text_add(out, "in the median, %.4g s or less in 95 %% of the steps", most);
    text_add(out, "%s: %+.1f %%", s->steps > 1 ? "" : "so", 100 * (median / ideal - 1));
    if (s->steps > 1) text_add(out, " and %+.1f %%", 100 * (most / ideal - 1));
    text_add(out, "\n");
}

static void add_rows(const Seconds *s, Text *out) {
    Row row[MOST_ROWS];
    int n = list_rows(s, row);
    text_add(out, "\n%-36s %10s %10s %10s\n", "seconds of a rank, on average",
             "none slow", "so", "more");
    for (int i = 0; i < n; i++)
        text_add(out, "  %-34s %10.4g %10.4g %+10.4g\n", row[i].name, row[i].ideal,
                 row[i].here, row[i].here - row[i].ideal);
}

static double waited(const Seconds *s) {
    double all = 0;
    for (int k = 0; k < s->all + s->noise.nlinks; k++) all += s->blame[k];
    return all;
}

/* Where all are as slow there is nobody to look at. */
static void add_culprits(const Seconds *s, Text *out) {
    static const double least = 0.01;
    double all = waited(s);
    if (!(all > 0)) return;
    text_add(out,
             "\nwaited for what is slow: %.4g s of a rank, on average, of these for\n",
             all / s->all);
    for (int i = 0; i < SECONDS_WAITED_FOR && s->culprit[i].seconds > least * all; i++)
        text_add(out, "  %5.1f %%  %s\n", 100 * s->culprit[i].seconds / all,
                 culprit_name(s, s->culprit[i].who));
    if (!(s->culprit[0].seconds > least * all))
        text_add(out, "  no rank for more than %.2g %%: most is %s\n",
                 100 * s->culprit[0].seconds / all, culprit_name(s, s->culprit[0].who));
}

void seconds_print(const Seconds *s, Text *out) {
    simulate_print_ranks(s->mem, s->plan, s->steps, out);
    text_add(out, "machine   %s, %d host%s\n", s->machine->name, s->hosts,
             s->hosts == 1 ? "" : "s");
    for (int i = 0; i < s->nnoise; i++) text_add(out, "%s\n", s->noise_text[i]);
    add_steps(s, out);
    add_rows(s, out);
    add_culprits(s, out);
    text_add(out, "\n(%.2f s to plan, %.2f s to simulate, seed %llu)\n", s->plan_seconds,
             s->run_seconds, (unsigned long long)s->noise.seed);
}

/* ---- for programs ---- */

static void add_json_rows(const Seconds *s, Text *out) {
    Row row[MOST_ROWS];
    int n = list_rows(s, row);
    text_add(out, ",\n  \"rank_seconds\": {");
    for (int i = 0; i < n; i++) {
        text_add(out, "%s\n    \"%s\": ", i ? "," : "", row[i].key);
        json_add_double(out, "{", "ideal", row[i].ideal);
        json_add_double(out, ", ", "mean", row[i].here);
        text_add(out, "}");
    }
    text_add(out, "\n  }");
}

static void add_json_culprits(const Seconds *s, Text *out) {
    json_add_double(out, ",\n  ", "waited_for_seconds", waited(s) / s->all);
    text_add(out, ",\n  \"waited_for\": [");
    for (int i = 0; i < SECONDS_WAITED_FOR && s->culprit[i].seconds > 0; i++) {
        const SecondsCulprit *c = &s->culprit[i];
        RankPlace p = seconds_place(s, c->who);
        text_add(out, "%s\n    {", i ? "," : "");
        if (c->who < s->all)
            text_add(out, "\"rank\": %d, \"stage\": %d, \"host\": %d", c->who, p.stage,
                     p.host);
        else
            text_add(out, "\"slow_link\": %d", c->who - s->all);
        text_add(out, ", \"share\": %.6g}", c->seconds / waited(s));
    }
    text_add(out, "\n  ],\n");
}

void seconds_json(const Seconds *s, Text *out) {
    text_add(out, "{\n  \"ranks\": %d,\n  \"stages\": %d,\n  \"hosts\": %d", s->all,
             s->program.parts.stages, s->hosts);
    json_add_text(out, ",\n  ", "machine", s->machine->name);
    text_add(out, ",\n  \"plan\": \"%s\",\n  \"seed\": %llu,\n  \"steps\": %lld",
             s->plan->pipe ? s->plan->pipe->hash : s->plan->hash,
             (unsigned long long)s->noise.seed, (long long)s->steps);
    json_add_double(out, ",\n  ", "ideal_seconds", s->ideal.seconds);
    json_add_double(out, ",\n  ", "median_seconds", seconds_quantile(s, 0.5));
    json_add_double(out, ",\n  ", "p95_seconds", seconds_quantile(s, 0.95));
    json_add_double(out, ",\n  ", "least_seconds", s->step[0]);
    json_add_double(out, ",\n  ", "most_seconds", s->step[s->steps - 1]);
    add_json_rows(s, out);
    add_json_culprits(s, out);
    text_add(out, "  \"plan_seconds\": %.3f,\n  \"run_seconds\": %.3f\n}\n",
             s->plan_seconds, s->run_seconds);
}
