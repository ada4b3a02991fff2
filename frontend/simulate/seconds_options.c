/* seconds_options.c - slow ranks, slow links and jitter as they are written. */
#include "frontend/simulate/seconds.h"
#include <stdlib.h>

/* What stands before '=': ranks "5", "8-15", hosts "host3", "host3-host5". */
typedef struct Range {
    bool hosts;
    int first, last; /* last -1: not given */
    double factor;
} Range;

static bool read_place(const char **at, bool *host, int *n) {
    *host = begins_with(*at, "host");
    if (*host) *at += 4;
    if (**at < '0' || **at > '9') return false;
    char *end;
    long v = strtol(*at, &end, 10);
    if (v < 0 || v > SECONDS_MOST_RANKS) return false;
    *n = (int)v;
    *at = end;
    return true;
}

static bool read_range(const char *text, Range *r) {
    const char *at = text;
    bool other = false;
    char *end;
    r->last = -1;
    if (!read_place(&at, &r->hosts, &r->first)) return false;
    if (*at == '-' && (at++, !read_place(&at, &other, &r->last) || other != r->hosts))
        return false;
    if (*at++ != '=') return false;
    r->factor = strtod(at, &end);
    return end != at && !*end;
}

static void check_factor(const char *name, const char *text, double factor) {
    if (!(factor >= 1) || factor > 1e6)
        fail(EXIT_CONFIG,
             "%s %.60s: the factor is a number from 1 to 1e6, as what is slow takes so "
             "many times as long\n    hint: half as fast is =2",
             name, text);
}

static Range range_of(const Seconds *s, const char *name, const char *text,
                      const char *forms) {
    Range r = {0};
    if (!read_range(text, &r))
        fail(EXIT_CONFIG, "%s %.60s is not understood\n    hint: write it as one of %s",
             name, text, forms);
    check_factor(name, text, r.factor);
    int most = r.hosts ? s->hosts : s->all;
    if (r.first >= most || r.last >= most)
        fail(EXIT_CONFIG, "%s %.60s: there %s %d %s%s, from 0 on", name, text,
             most == 1 ? "is" : "are", most, r.hosts ? "host" : "rank",
             most == 1 ? "" : "s");
    return r;
}

/* Factors of one rank or link multiply: all of them together stay far from the largest number. */
static void check_product(const char *name, double *product, double factor) {
    *product *= factor;
    if (*product > 1e12)
        fail(EXIT_CONFIG,
             "%s: all factors together are more than 1e12\n    hint: give one "
             "factor for what is slow",
             name);
}

static void note(Seconds *s, int *cap, const char *line) {
    PUSH(s->mem, s->noise_text, s->nnoise, *cap, line);
}

static SlowRanks slow_ranks(const Seconds *s, const char *text) {
    static const char name[] = "--slow_rank";
    Range r = range_of(s, name, text, "5=1.5, 8-15=1.2, host3=1.5, host3-host4=1.5");
    if (r.last < 0) r.last = r.first;
    if (r.last < r.first)
        fail(EXIT_CONFIG,
             "%s %.60s: the first is above the last\n    hint: exchange them", name,
             text);
    if (!r.hosts) return (SlowRanks){r.first, r.last, r.factor};
    return (SlowRanks){r.first * s->host_ranks,
                       MIN((r.last + 1) * s->host_ranks, s->all) - 1, r.factor};
}

static SlowLink slow_link(const Seconds *s, const char *text) {
    static const char name[] = "--slow_link", forms[] = "5-6=4, host3=4, host3-host4=4";
    Range r = range_of(s, name, text, forms);
    if (!r.hosts && r.last < 0)
        fail(EXIT_CONFIG,
             "%s %.60s: a link has two ends\n    hint: write it as one of %s", name, text,
             forms);
    if (r.first == r.last)
        fail(EXIT_CONFIG, "%s %.60s: both ends are one\n    hint: write it as one of %s",
             name, text, forms);
    if (r.hosts && s->hosts == 1)
        fail(EXIT_CONFIG,
             "%s %.60s: all ranks are on one host, which no link leaves\n    hint: "
             "host_ranks "
             "of the machine says how many ranks a host has",
             name, text);
    return (SlowLink){r.hosts, r.first, r.last, r.factor};
}

static Jitter jitter_of(Seconds *s, int *cap, const Options *o, const char *name,
                        const char *what) {
    const char *text = option_text(o, name);
    if (!text) return (Jitter){0};
    Jitter j = jitter_parse(name, text);
    note(s, cap, arena_printf(s->mem, "jitter    %s %s", what, text));
    return j;
}

void seconds_noise(Seconds *s, const Options *o) {
    RankNoise *n = &s->noise;
    double ranks = 1, links = 1;
    int cap = 0;
    const char **text = option_list(o, "--slow_rank", &n->nslow);
    SlowRanks *slow = NEW_ARRAY(s->mem, SlowRanks, (size_t)n->nslow + 1);
    for (int i = 0; i < n->nslow; i++) {
        slow[i] = slow_ranks(s, text[i]);
        check_product("--slow_rank", &ranks, slow[i].factor);
        note(s, &cap, arena_printf(s->mem, "slow      compute of rank %s", text[i]));
    }
    n->slow = slow;
    text = option_list(o, "--slow_link", &n->nlinks);
    SlowLink *link = NEW_ARRAY(s->mem, SlowLink, (size_t)n->nlinks + 1);
    for (int i = 0; i < n->nlinks; i++) {
        link[i] = slow_link(s, text[i]);
        check_product("--slow_link", &links, link[i].factor);
        note(s, &cap, arena_printf(s->mem, "slow      link %s", text[i]));
    }
    n->link = link;
    n->compute = jitter_of(s, &cap, o, "--jitter", "of compute");
    n->message = jitter_of(s, &cap, o, "--message_jitter", "of messages");
    n->rank = jitter_of(s, &cap, o, "--rank_jitter", "of ranks");
}
