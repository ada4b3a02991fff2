/* choice_flags.c - a choice of a search as flags, which give it again. */
#include "frontend/config/config_state.h"
#include "frontend/model/recompute.h"
#include "frontend/search/search_state.h"

typedef struct Flags {
    Arena *mem;
    const Config *given; /* whose flags stay as they are */
    char **flag;
    int n, cap;
} Flags;

static void put(Flags *f, const char *key, const char *text) {
    PUSH(f->mem, f->flag, f->n, f->cap, arena_printf(f->mem, "--%s=%s", key, text));
}

static void add_list(Flags *f, const char *key, const char *text) {
    if (!config_by_flag(f->given, key)) put(f, key, text);
}

static void add_flag(Flags *f, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void add_flag(Flags *f, const char *key, const char *fmt, ...) {
    char value[64];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(value, sizeof value, fmt, ap);
    va_end(ap);
    add_list(f, key, value);
}

/* Rows of the nth chunks of all stages; one row as a list. */
static void add_layers(Flags *f, Search *s, const Choice *c) {
    const PipeScheduleKind *kind = schedule_kind_at(c->schedule);
    Text t = text_new(f->mem);
    int64_t *n = NEW_ARRAY(f->mem, int64_t, (size_t)c->pp * (size_t)c->chunks);
    choice_layers(s, c, n);
    for (int nth = 0; nth < c->chunks; nth++)
        for (int k = 0; k < c->pp; k++)
            text_add(&t, "%s%lld",
                     k               ? ","
                     : nth           ? "],["
                     : c->chunks > 1 ? "[["
                                     : "[",
                     (long long)n[schedule_stage_chunk(kind, c->pp, k, nth)]);
    text_add(&t, c->chunks > 1 ? "]]" : "]");
    add_list(f, knob_key[KNOB_LAYERS], t.s);
}

static void add_recompute(Flags *f, Search *s, const Choice *c) {
    int *n = choice_remade(f->mem, s, c), chunks = c->pp * c->chunks;
    Text t = text_new(f->mem);
    bool same = true;
    for (int k = 1; k < chunks; k++) same &= n[k] == n[0];
    for (int k = 0; k < (same ? 1 : chunks); k++)
        text_add(&t, "%s%d", k ? "," : same ? "" : "[", n[k]);
    if (!same) text_add(&t, "]");
    add_list(f, knob_key[KNOB_RECOMPUTE], same && !n[0] ? "False" : t.s);
}

static bool only_file_says(const Search *s, const char *key) {
    return config_given(s->o.cfg, key) && !config_by_flag(s->o.cfg, key);
}

/* Takes back numbers of layers of which a part is made again: those of the chunks of the file. */
static void add_parts(Flags *f, const Search *s) {
    for (int i = 0; i < RECOMPUTE_PARTS; i++)
        if (recompute_counts(s->o.cfg, i)) put(f, recompute_part_keys[i], "null");
}

/* Takes back what is said of the layers of stages besides a list, which may not stand beside one
 * even where it says nothing; and with `even` a list of the file. */
static void add_even_layers(Flags *f, const Search *s, bool even) {
    static const char *const key[] = {PC "offset",
                                      PC "num_layers_in_first_pipeline_stage",
                                      PC "num_layers_in_last_pipeline_stage"};
    const char *list = knob_key[KNOB_LAYERS];
    if (even && only_file_says(s, list)) put(f, list, "[]");
    for (int i = 0; i < ARRAY_LEN(key); i++)
        if (config_given(s->o.cfg, key[i])) put(f, key[i], "null");
}

static void add_overlap(Flags *f, const Search *s, const Choice *c) {
    static const char *const name[] = {
        [OVERLAP_AUTO] = "auto", [OVERLAP_THREAD] = "thread"};
    bool idle = s->o.ranks == 1 && !config_given(s->o.cfg, knob_key[KNOB_OVERLAP]);
    if (idle || s->fixed[KNOB_OVERLAP] >= 0) return;
    add_list(f, knob_key[KNOB_OVERLAP],
             c->no_overlap ? "off" : name[s->o.cfg->parallel_overlap]);
}

/* What a file says of a mix of both does not go with sequences that are whole. */
static void add_ring(Flags *f, const Search *s, const Choice *c) {
    bool all_ring = c->ring == c->cp, whole = c->ring == 1;
    bool mixed = s->o.cfg->parallel_config_context_parallel_algo == CP_HYBRID;
    if (c->cp > 1 || mixed)
        add_flag(f, knob_key[KNOB_ALGO], "%s",
                 whole      ? "ulysses_cp_algo"
                 : all_ring ? "megatron_cp_algo"
                            : "hybrid_cp_algo");
    if (!whole && !all_ring) add_flag(f, INNER, "%d", c->cp / c->ring);
}

/* Also the usual one, where it is one of several that were tried. */
static void add_order(Flags *f, const Search *s, const Choice *c) {
    RankOrder order[SEARCH_ORDERS];
    if (config_given(s->o.cfg, knob_key[KNOB_ORDER]) || choice_mesh(c).norder ||
        choice_orders(s, c, order) > 1)
        add_list(f, knob_key[KNOB_ORDER], rank_order_text(f->mem, &c->order));
}

bool search_has_flag(char *const *flag, int n, const char *other) {
    size_t length = strcspn(other, "=");
    for (int i = 0; i < n; i++)
        if (!strncmp(flag[i], other, length) && flag[i][length] == '=') return true;
    return false;
}

static const char *truth(bool yes) {
    return yes ? "True" : "False";
}

char **search_flags(Arena *mem, Search *s, const Choice *c, int *n) {
    Flags f = {.mem = mem, .given = s->o.cfg};
    if (c->tp * c->cp > 1) put(&f, "parallel.parallel_mode", "1");
    add_flag(&f, knob_key[KNOB_DP], "%d", c->dp);
    add_flag(&f, knob_key[KNOB_TP], "%d", c->tp);
    add_flag(&f, knob_key[KNOB_CP], "%d", c->cp);
    add_ring(&f, s, c);
    add_flag(&f, knob_key[KNOB_PP], "%d", c->pp);
    if (c->pp > 1 || config_given(s->o.cfg, knob_key[KNOB_CHUNKS]))
        add_flag(&f, knob_key[KNOB_CHUNKS], "%d", c->chunks);
    if (c->pp > 1)
        add_flag(&f, knob_key[KNOB_SCHEDULE], "%s", schedule_name_at(c->schedule));
    add_flag(&f, knob_key[KNOB_BATCH], "%d", c->batch);
    add_flag(&f, knob_key[KNOB_MICRO], "%d", c->micro);
    if (c->parts > 1 || config_given(s->o.cfg, knob_key[KNOB_PARTS]))
        add_flag(&f, knob_key[KNOB_PARTS], "%d", c->parts);
    add_overlap(&f, s, c);
    add_order(&f, s, c);
    if (c->zero || !config_by_flag(s->o.cfg, knob_key[KNOB_ZERO]))
        add_flag(&f, SHARD, "%s", truth(c->zero > 0));
    if (c->zero)
        add_flag(&f, knob_key[KNOB_ZERO], "level%d", c->zero);
    else if (config_given(s->o.cfg, knob_key[KNOB_ZERO]))
        add_flag(&f, knob_key[KNOB_ZERO], "auto");
    if (config_given(s->o.cfg, SHARE)) add_flag(&f, SHARE, "-1");
    add_flag(&f, knob_key[KNOB_SP], "%s", truth(c->sequence_parallel));
    add_flag(&f, knob_key[KNOB_VOCAB], "%s", truth(!c->splits_vocab));
    if (c->inside)
        add_list(&f, knob_key[KNOB_SHARD], c->inside);
    else if (only_file_says(s, knob_key[KNOB_SHARD]))
        add_list(&f, knob_key[KNOB_SHARD], "[]");
    if (c->layers == LAYERS_BALANCED) add_layers(&f, s, c);
    add_even_layers(&f, s, c->layers == LAYERS_EVEN);
    if (s->fixed[KNOB_RECOMPUTE] < 0) add_recompute(&f, s, c);
    add_parts(&f, s);
    if (config_given(s->o.cfg, METHOD)) add_flag(&f, METHOD, "block");
    for (int i = 0, own = f.n; i < s->o.nflags; i++)
        if (!search_has_flag(f.flag, own, s->o.flag[i]))
            PUSH(mem, f.flag, f.n, f.cap, s->o.flag[i]);
    *n = f.n;
    return f.flag;
}
