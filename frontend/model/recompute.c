/* recompute.c - see recompute.h. */
#include "frontend/model/recompute.h"
#include "frontend/config/config_state.h"
#include "frontend/model/strategy.h"
#include <stdlib.h>

#define RC "recompute_config."

enum { ALL = INT32_MAX };

/* What a key says: of so many layers of each chunk, or names. */
typedef struct Choice {
    const char *names; /* NULL: none */
    int64_t *layers;   /* ALL: all that are left */
    int n;             /* 1: the same for every chunk */
} Choice;

typedef struct Reader {
    Config *cfg;
    Arena *mem;
    const Strategy *s;
} Reader;

static bool is_number(const char *s) {
    size_t n = strspn(s, "0123456789");
    return n && n < 10 && !s[n];
}

static int numbers_of(const TextList *l) {
    int n = 0;
    for (int i = 0; i < l->n; i++) n += is_number(l->items[i]);
    return n;
}

const char *const recompute_part_keys[RECOMPUTE_PARTS] = {RC "select_recompute",
                                                          RC "select_comm_recompute"};

bool recompute_counts(const Config *cfg, int nth) {
    const TextList *part[RECOMPUTE_PARTS] = {
        &cfg->recompute_config_select_recompute,
        &cfg->recompute_config_select_comm_recompute};
    return part[nth]->n && numbers_of(part[nth]) == part[nth]->n;
}

void recompute_part_default(Config *cfg, int nth) {
    const Key *key = &key_table[key_find(recompute_part_keys[nth])];
    key_store_text(cfg->state->mem, key, key->def, cfg);
}

static const char *joined(Arena *mem, const TextList *l, const char *behind) {
    Text t = text_new(mem);
    for (int i = 0; i < l->n; i++)
        text_add(&t, "%s%s%s", i ? "," : "", l->items[i], behind);
    return t.s;
}

static int64_t chunks_of(const Strategy *s) {
    return MAX(s->stages, 1) * MAX(s->chunks, 1);
}

static Choice same_for_all(const Reader *r, int64_t layers) {
    Choice c = {.layers = NEW_ARRAY(r->mem, int64_t, 1), .n = 1};
    c.layers[0] = layers;
    return c;
}

static Choice counts_of(const Reader *r, const char *key, const TextList *l) {
    int64_t chunks = chunks_of(r->s);
    Choice c = {.layers = NEW_ARRAY(r->mem, int64_t, (size_t)l->n), .n = l->n};
    if (l->n != 1 && l->n != chunks)
        config_refuse(r->cfg, key, NULL,
                      "one number for every chunk, or one for each in the order of the "
                      "model",
                      "%d numbers of layers for %lld chunk%s of the model", l->n,
                      (long long)chunks, chunks == 1 ? "" : "s");
    for (int i = 0; i < l->n; i++) c.layers[i] = atoll(l->items[i]);
    return c;
}

/* True, False, numbers of layers, or (where the key takes them) names. */
static Choice choice_of(const Reader *r, const char *key, const TextList *l, bool named,
                        const char *behind) {
    int on = config_switch(l), numbers = numbers_of(l);
    if (on >= 0) return same_for_all(r, on ? ALL : 0);
    if (numbers == l->n) return counts_of(r, key, l);
    if (numbers || !named)
        config_refuse(r->cfg, key, NULL,
                      named
                          ? "True, numbers of layers, or names of values such as [q, k]"
                          : "True, auto, a number of first layers, or a list of one for "
                            "each chunk in the order of the model",
                      "%s cannot be \"%.100s\"", key + strlen(RC), joined(r->mem, l, ""));
    Choice c = same_for_all(r, ALL);
    c.names = joined(r->mem, l, behind);
    return c;
}

/* ---- what is exchanged ---- */

/* Values that are kept so that they need not be exchanged again. */
static const char *kept_of(const Reader *r) {
    const Strategy *s = r->s;
    Text t = text_new(r->mem);
    if (s->tensor > 1 && !r->cfg->model_file[0]) text_add(&t, ",-attn,-mlp");
    if (s->context > s->ring)
        for (const char *c = "qkvo"; *c; c++) text_add(&t, ",-%c" RECOMPUTE_GATHERED, *c);
    if (s->sequence_parallel) text_add(&t, ",-norm" RECOMPUTE_GATHERED);
    if (s->ring > 1) text_add(&t, ",-o,-lse");
    for (int i = 0; i < s->user.n; i++) {
        const char *slash = strchr(s->user.items[i], '/');
        if (slash) text_add(&t, ",-%.*s", (int)strcspn(slash + 1, "="), slash + 1);
    }
    return t.s;
}

/* ---- the text of the option ---- */

typedef struct Parts {
    const char *full, *some, *again; /* policies */
    Choice all, selected, gathers;
} Parts;

static int64_t layers_at(const Choice *c, int64_t chunk) {
    return c->n ? c->layers[c->n == 1 ? 0 : chunk] : 0;
}

static void add_span(Text *t, int64_t layers, const char *policy, const char *more) {
    if (layers <= 0) return;
    if (t->n && t->s[t->n - 1] != '|') text_add(t, ";");
    if (layers < ALL / 2) text_add(t, "%lld:", (long long)layers);
    text_add(t, "%s%s%s", policy, *policy && *more ? "," : "", more);
}

/* Full layers come first, then those of which both are made again, then one of the two. */
static void add_chunk(Text *t, const Parts *p, int64_t chunk) {
    int64_t some = layers_at(&p->selected, chunk), again = layers_at(&p->gathers, chunk);
    int64_t both = MIN(some, again);
    add_span(t, layers_at(&p->all, chunk), p->full, "");
    if (layers_at(&p->all, chunk) == ALL) return;
    add_span(t, both, p->some, p->again);
    if (both == ALL) return;
    add_span(t, MAX(some, again) == ALL ? ALL : MAX(some, again) - both,
             some > again ? p->some : p->again, "");
}

static const char *text_of(const Reader *r, const Parts *p) {
    Text t = text_new(r->mem);
    bool same = p->all.n <= 1 && p->selected.n <= 1 && p->gathers.n <= 1;
    for (int64_t c = 0; c < (same ? 1 : chunks_of(r->s)); c++) {
        if (c) text_add(&t, "|");
        add_chunk(&t, p, c);
    }
    return t.n && strspn(t.s, "|") < t.n ? t.s : NULL;
}

/* ---- keys ---- */

/* What would be said of single layers. */
static void refuse_beside_uniform(const Reader *r) {
    static const char *const keys[] = {RC "select_recompute", RC "mp_comm_recompute",
                                       RC "select_comm_recompute"};
    const Config *c = r->cfg;
    const bool says[] = {config_switch(&c->recompute_config_select_recompute) != 0,
                         !c->recompute_config_mp_comm_recompute,
                         config_switch(&c->recompute_config_select_comm_recompute) <= 0};
    for (int i = 0; i < ARRAY_LEN(keys); i++)
        if (says[i])
            config_refuse(c, keys[i], RC "recompute_method",
                          "leave it out, or recompute_method block",
                          "%s is about single layers, and recompute_method uniform "
                          "computes several together again",
                          keys[i] + strlen(RC));
}

/* recompute N with method uniform: N layers are one piece. */
static const char *uniform_of(const Reader *r, const Choice *all) {
    int64_t together = all->layers[0];
    refuse_beside_uniform(r);
    if (all->n != 1 || together == 0 || together == ALL)
        config_refuse(r->cfg, RC "recompute", RC "recompute_method",
                      "recompute 2, so that of each two layers the first one's input is "
                      "kept",
                      "recompute_method uniform wants a number of layers in recompute");
    return arena_printf(r->mem, "x%lld:full", (long long)together);
}

static void note_needless(const Reader *r, const Choice *all, const Choice *selected) {
    bool whole = all->n == 1 && all->layers[0] == ALL;
    if (r->s->remake_auto && (selected->n > 1 || selected->layers[0]))
        config_note(r->cfg, RC "select_recompute",
                    "select_recompute has no effect: recompute auto chooses");
    if (r->s->remake_auto &&
        config_switch(&r->cfg->recompute_config_select_comm_recompute) < 0)
        config_note(r->cfg, RC "select_comm_recompute",
                    "select_comm_recompute has no effect: recompute auto chooses which "
                    "layers gather again");
    if (whole && (selected->n > 1 || selected->layers[0]))
        config_note(r->cfg, RC "select_recompute",
                    "select_recompute has no effect: recompute True computes all of "
                    "every layer again");
}

/* Norms and activations read what is kept, so recompute_elementwise makes them again. Values
 * that were gathered have names of their own. */
static void note_adds_nothing(const Reader *r, const Choice *selected) {
    const TextList *l = &r->cfg->recompute_config_select_recompute;
    if (!selected->names || r->cfg->model_file[0] || r->s->names_gathered ||
        r->s->remake_auto || !r->cfg->recompute_config_recompute_elementwise)
        return;
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->items[i], "norm") != 0 && strcmp(l->items[i], "act") != 0) return;
    config_note(r->cfg, RC "select_recompute",
                "select_recompute %s adds nothing: recompute_elementwise, which is on, "
                "makes these values again; leave it out, or name others",
                joined(r->mem, l, ""));
}

/* Do readers of gathered values see values of their own, which may be kept? */
static bool keeps_gathered(const Reader *r, const Choice *gathers) {
    const Config *c = r->cfg;
    bool always = gathers->n == 1 && gathers->layers[0] == ALL && !gathers->names;
    bool more = config_switch(&c->recompute_config_recompute) ||
                config_switch(&c->recompute_config_select_recompute);
    return (r->s->sequence_parallel || r->s->context > r->s->ring) &&
           (!always || (more && !c->recompute_config_mp_comm_recompute));
}

/* A word with '-' is what is not made again, whether it is there or not. */
static bool gathers_named(const Strategy *s, const char *word) {
    const char *end = word + strlen(word), *const heads[] = {"q", "k", "v", "o"};
    if (*word == '-') return true;
    if (s->sequence_parallel && text_matches("norm", word, end)) return true;
    for (int i = 0; i < ARRAY_LEN(heads) && s->context > s->ring; i++)
        if (text_matches(heads[i], word, end)) return true;
    return false;
}

static void check_gathered(const Reader *r) {
    const TextList *l = &r->cfg->recompute_config_select_comm_recompute;
    const bool heads = r->s->context > r->s->ring, tokens = r->s->sequence_parallel;
    for (int i = 0; i < l->n; i++)
        if (!gathers_named(r->s, l->items[i]))
            config_refuse(r->cfg, RC "select_comm_recompute", NULL,
                          arena_printf(r->mem, "True, or some of %s%s%s",
                                       tokens ? "norm" : "", tokens && heads ? ", " : "",
                                       heads ? "q, k, v, o" : ""),
                          "layers gather nothing that is called '%s'", l->items[i]);
}

void recompute_of_config(Config *cfg, Strategy *s) {
    Reader r = {cfg, cfg->state->mem, s};
    const TextList *all = &cfg->recompute_config_recompute;
    s->selected_pos = config_where(cfg, RC "select_recompute");
    s->remake_pos = config_where(cfg, RC "recompute");
    if (!s->remake_pos.line) s->remake_pos = s->selected_pos;
    if (!s->remake_pos.line)
        s->remake_pos = config_where(cfg, RC "select_comm_recompute");
    s->remake_auto = all->n == 1 && !strcmp(all->items[0], "auto");
    static TextList none;
    Parts p = {.full = "full", .some = "selective", .again = ""};
    p.all = choice_of(&r, RC "recompute", s->remake_auto ? &none : all, false, "");
    p.selected = choice_of(&r, RC "select_recompute",
                           &cfg->recompute_config_select_recompute, true, "");
    p.gathers =
        choice_of(&r, RC "select_comm_recompute",
                  &cfg->recompute_config_select_comm_recompute, true, RECOMPUTE_GATHERED);
    if (p.selected.names) p.some = p.selected.names;
    note_needless(&r, &p.all, &p.selected);
    s->names_gathered = keeps_gathered(&r, &p.gathers);
    if (s->names_gathered && p.gathers.names) check_gathered(&r);
    note_adds_nothing(&r, &p.selected);
    s->remake_kept = "";
    if (s->tensor * s->context > 1 && !cfg->recompute_config_mp_comm_recompute) {
        s->remake_kept = kept_of(&r);
        p.full = arena_printf(r.mem, "full%s", s->remake_kept);
        p.some = arena_printf(r.mem, "%s%s", p.some, s->remake_kept);
    }
    if (s->names_gathered)
        p.again = p.gathers.names ? p.gathers.names : "*" RECOMPUTE_GATHERED;
    else
        p.gathers.n = 0;
    if (cfg->recompute_config_recompute_method == RECOMPUTE_UNIFORM)
        s->remake = uniform_of(&r, &p.all);
    else if (!s->remake_auto)
        s->remake = text_of(&r, &p);
}

/* Layers that the spans of a chunk count, up to the end of the text or '|'. */
static int64_t counted(const char *text) {
    int64_t n = 0;
    for (size_t length = 1; *text && *text != '|' && length;) {
        length = strcspn(text, ";|");
        if (memchr(text, ':', length)) n += atoll(text);
        text += length + (text[length] == ';');
    }
    return n;
}

bool recompute_count_fits(int64_t n, int64_t layers, bool each) {
    return n <= layers || (!each && !layers);
}

/* As many of each chunk as it has of n. */
static char *counts_that_fit(int64_t n, const int64_t *layers, int chunks) {
    Text t = text_new(arena_new()); /* for a message that ends the command */
    text_add(&t, "a number for each chunk, [");
    for (int c = 0; c < chunks; c++)
        text_add(&t, "%s%lld", c ? "," : "", (long long)MIN(n, layers[c]));
    text_add(&t, "]");
    return t.s;
}

void recompute_check_counts(const Strategy *s, const int64_t *layers, int chunks) {
    const char *text = s->remake;
    bool each = strchr(text, '|');
    for (int c = 0; c < chunks; c++) {
        if (!recompute_count_fits(counted(text), layers[c], each))
            fail_at(EXIT_CONFIG, s->remake_pos,
                    each ? NULL : counts_that_fit(counted(text), layers, chunks),
                    "%lld layers of chunk %d are to be computed again, it has %lld",
                    (long long)counted(text), c, (long long)layers[c]);
        if (each && strchr(text, '|')) text = strchr(text, '|') + 1;
    }
}
