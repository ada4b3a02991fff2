/* report.c - see report.h: for people. */
#include "frontend/search/report.h"

enum { TOP_SHOWN = 12, FRONT_SHOWN = 12 };

const char *report_strategy(Arena *mem, const Choice *c) {
    Text t = text_new(mem);
    text_add(&t, "dp %d tp %d", c->dp, c->tp);
    if (c->cp > 1)
        text_add(&t, " cp %d (%s)", c->cp,
                 c->ring == 1       ? "all-to-all"
                 : c->ring == c->cp ? "ring"
                                    : "both");
    if (c->pp > 1) text_add(&t, " pp %d %s", c->pp, schedule_name_at(c->schedule));
    if (c->chunks > 1) text_add(&t, " x%d", c->chunks);
    if (c->layers == LAYERS_BALANCED) text_add(&t, " balanced");
    text_add(&t, ", %d x %d", c->micro, c->batch);
    if (c->parts > 1) text_add(&t, " in %d parts", c->parts);
    if (c->zero) text_add(&t, ", ZeRO-%d", c->zero);
    if (c->sequence_parallel) text_add(&t, ", sp");
    if (c->splits_vocab) text_add(&t, ", vocab");
    if (c->remade > 0) text_add(&t, ", again %d", c->remade);
    if (c->inside) text_add(&t, ", placed inside of layers");
    if (c->no_overlap) text_add(&t, ", overlap off");
    if (choice_mesh(c).norder) text_add(&t, ", %s", rank_order_text(mem, &c->order));
    return t.s;
}

const Choice *report_ahead(const SearchResult *r, const Family *f) {
    const Choice *best = NULL;
    for (int i = 0; i < r->nfront && r->front[i].bytes <= f->bytes; i++)
        best = &r->front[i];
    bool own = best && best->tp == f->tp && best->cp == f->cp && best->pp == f->pp;
    return own ? NULL : best;
}

double report_excess(const SearchResult *r, const Family *f) {
    return f->bytes - r->room_bytes;
}

static void add_top(const Report *r, Text *out) {
    text_add(out, "\n  seconds  a rank's memory       sent  strategy (micro-batches x "
                  "sequences)\n");
    int shown = MIN(r->r->ntop, MAX(r->o->tops, TOP_SHOWN));
    for (int i = 0; i < shown; i++) {
        const Verified *v = &r->r->top[i];
        text_add(out, "  %7.4g  %15s  %9s  %s\n", v->seconds,
                 human((double)v->bytes, "B").s, human((double)v->sent_bytes, "B").s,
                 report_strategy(r->mem, &v->c));
    }
    if (shown < r->r->ntop)
        text_add(out, "  and %d more that were planned: --json and --html have all\n",
                 r->r->ntop - shown);
}

/* The choice as it was planned, or NULL. */
static const Verified *planned_as(const SearchResult *r, const Choice *c) {
    for (int i = 0; i < r->ntop; i++) {
        const Choice *t = &r->top[i].c;
        if (t->number == c->number && !t->inside) return &r->top[i];
    }
    return NULL;
}

static void add_front(const Report *r, Text *out) {
    int n = r->r->nfront, step = MAX(1, (n + FRONT_SHOWN - 1) / FRONT_SHOWN);
    if (!n) return;
    text_add(out,
             "\nless memory for more time (%d of %d; with ~: by pieces, plans take "
             "somewhat more)\n",
             (n + step - 1) / step, n);
    for (int i = n - 1; i >= 0; i -= step) {
        const Choice *c = &r->r->front[i];
        const Verified *v = planned_as(r->r, c);
        text_add(out, "  %7.4g %s %14s  %s\n", v ? v->seconds : c->seconds, v ? " " : "~",
                 human(v ? (double)v->bytes : c->bytes, "B").s,
                 report_strategy(r->mem, c));
    }
}

static void add_family(const Report *r, const Family *f, double best, Text *out) {
    text_add(out, "  ");
    if (f->tp) text_add(out, "tp %-3d cp %-3d ", f->tp, f->cp);
    if (f->pp) text_add(out, "pp %-3d ", f->pp);
    if (f->refused) {
        text_add(out, "refused: %.*s\n", (int)strcspn(f->refused, "\n"), f->refused);
    } else if (f->fit) {
        const Choice *ahead = report_ahead(r->r, f);
        text_add(out, "%7.4g s  %9s  %+6.1f %%", f->seconds, human(f->bytes, "B").s,
                 100 * (f->seconds / best - 1));
        if (ahead)
            text_add(out, "  behind %.4g s, %s: %s", ahead->seconds,
                     human(ahead->bytes, "B").s, report_strategy(r->mem, ahead));
        text_add(out, "\n");
    } else {
        text_add(out, "does not fit: %s at least, ", human(f->bytes, "B").s);
        text_add(out, "%s too many\n", human(report_excess(r->r, f), "B").s);
    }
}

static void add_families(const Report *r, Text *out) {
    if (!r->r->nfamilies) return;
    text_add(out, "\nthe fastest of each split of the ranks, all by pieces: plans take "
                  "somewhat more;\nbehind: what is as fast with as little memory\n");
    double best = r->r->family[0].seconds;
    for (int i = 0; i < r->r->nfamilies; i++) add_family(r, &r->r->family[i], best, out);
}

static void add_best(const Report *r, Text *out) {
    const Verified *v = &r->r->top[0];
    text_add(out, "\nbest%s: %.4g s a step, %s on a rank, %s sent by one\n",
             r->r->stopped ? " so far" : "", v->seconds, human((double)v->bytes, "B").s,
             human((double)v->sent_bytes, "B").s);
    for (int i = 0; i < v->nflags; i++) text_add(out, "  %s\n", v->flag[i]);
}

void report_text(const Report *r, Text *out) {
    text_add(out, "search    %lld strategies of %d ranks on %s, %lld sequences a step",
             (long long)r->r->choices, r->o->ranks, r->o->machine->name,
             (long long)r->o->sequences);
    if (r->o->limit_bytes > 0) text_add(out, ", %s on a rank", search_limit(r->o));
    text_add(out,
             "\n          %d programs looked at, %lld schedules gone through, %d "
             "planned, in %.2f s\n",
             r->r->probes, (long long)r->r->simulated, r->r->planned, r->seconds);
    if (search_keeps_batches(r->o->cfg))
        text_add(
            out,
            "          batch_size stays %lld: with calculate_per_token_loss False and "
            "labels that do not\n          count the loss depends on which "
            "sequences share a micro-batch\n",
            (long long)r->o->cfg->runner_config_batch_size);
    if (r->r->stopped)
        text_add(out, "          stopped before it was done: there may be faster ones\n");
    else if (r->r->gave_up)
        text_add(
            out,
            "          more than that are not planned: there may be faster ones, which "
            "flags that narrow\n          the search would show\n");
    if (r->r->ntop) add_top(r, out);
    add_families(r, out);
    if (r->r->ntop) {
        add_front(r, out);
        add_best(r, out);
    }
}
