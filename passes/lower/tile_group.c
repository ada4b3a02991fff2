/* tile_group.c - see tile_group.h. Dimensions of values are rows because an op ties them to
 * those of the large value, by its rule; a value has all rows, in order and first, or none. */
#include "passes/lower/tile_group.h"

/* What an op does or where it runs depends on more than the elements of its operands. */
enum { F_NEVER = F_RANDOM | F_RANK | F_EFFECT | F_CALL };

static int terms_of(const Op *op) {
    return op->nin + op->nout;
}

bool tile_type(const Type *t, int lead, int64_t tile_rows, Type *tile) {
    int64_t left = tile_rows;
    *tile = *t;
    for (int d = lead - 1; d >= 0; d--) {
        int64_t size = MIN(left, t->dim[d]);
        if (left % size || t->dim[d] % size) return false;
        tile->dim[d] = size;
        left /= size;
    }
    return left == 1;
}

/* So many first dimensions that they are all rows; 0: there is no such number. */
static int lead_of_rows(const Type *t, int64_t rows) {
    int lead = 1;
    while (lead < t->rank && sizes_product(t->dim, lead) < rows) lead++;
    return lead <= t->rank && sizes_product(t->dim, lead) == rows ? lead : 0;
}

/* ---- one op ---- */

static bool set_lead(TileGroup *g, const Value *v, int lead, bool *changed) {
    if (g->lead[v->id] == lead) return true;
    if (g->lead[v->id]) return false;
    g->lead[v->id] = lead;
    return *changed = true;
}

static void set_large(TileGroup *g, const Value *v, bool *changed) {
    if (g->large[v->id] || !g->lead[v->id]) return;
    g->large[v->id] = *changed = true;
}

/* A term of the op that has rows; -1: none is known. */
static int term_with_rows(const TileGroup *g, const Op *op) {
    for (int t = 0; t < terms_of(op); t++)
        if (g->lead[op_term(op, t)->id]) return t;
    return -1;
}

/* May these dimensions of the op be cut? */
static bool are_free(const Dims *d, uint32_t mask) {
    for (int id = 0; id < d->n; id++) {
        if ((mask >> id & 1) && (d->whole[id] || d->tied[id] >= 0)) return false;
    }
    return true;
}

/* The dimensions of a value of which the op has another large one, and more of them. */
static void tie_large(TileGroup *g, const Op *op, const Dims *d, bool *changed) {
    for (int t = 0; t < terms_of(op); t++) {
        if (!g->large[op_term(op, t)->id]) continue;
        uint32_t mask = dims_mask(d, t);
        for (int k = 0; k < terms_of(op); k++)
            if (!(mask & ~dims_mask(d, k))) set_large(g, op_term(op, k), changed);
    }
}

static bool tie_rule(TileGroup *g, const Op *op, bool *changed) {
    Dims d;
    int from = term_with_rows(g, op);
    if (!op_dims(op, &d)) return false;
    if (from < 0) return true;
    int n = g->lead[op_term(op, from)->id];
    const int8_t *row = d.term[from];
    uint32_t mask = 0;
    for (int k = 0; k < n; k++) mask |= 1u << row[k];
    if (!are_free(&d, mask)) return false;
    for (int t = 0; t < terms_of(op); t++) {
        const Value *v = op_term(op, t);
        bool some = dims_mask(&d, t) & mask;
        if (!some && g->lead[v->id]) return false;
        if (!some) continue;
        bool first = d.rank[t] >= n && !memcmp(d.term[t], row, (size_t)n * sizeof *row);
        if (!first || !set_lead(g, v, n, changed)) return false;
    }
    tie_large(g, op, &d, changed);
    return true;
}

/* Operand i and result i have the same rows: a view, a collective along other dimensions. */
static bool tie_pair(TileGroup *g, const Value *in, const Value *out, bool *changed) {
    const Value *from = g->lead[in->id] ? in : out, *to = from == in ? out : in;
    if (!g->lead[from->id]) return true;
    int lead = lead_of_rows(&to->ty, g->rows);
    if (!lead || !set_lead(g, to, lead, changed)) return false;
    if (g->large[from->id] || g->large[to->id]) {
        set_large(g, from, changed);
        set_large(g, to, changed);
    }
    return true;
}

static bool acts_on_rows(const TileGroup *g, const Op *op) {
    if (op->nin != op->nout) return false;
    for (const Attr *a = op->attr; a; a = a->next) {
        if (a->kind != ATTR_DIM) continue;
        int64_t dim = a->i < 0 ? a->i + op->in[0]->ty.rank : a->i;
        if (dim < g->lead[op->in[0]->id] || dim < g->lead[op->out[0]->id]) return false;
    }
    return true;
}

static bool tie_pairs(TileGroup *g, const Op *op, bool *changed) {
    for (int i = 0; i < op->nin; i++)
        if (!tie_pair(g, op->in[i], op->out[i], changed)) return false;
    return acts_on_rows(g, op);
}

/* Carries what is known of the op's values to its others. False: it cannot be cut. */
static bool tie(TileGroup *g, const Op *op, bool *changed) {
    if (op_has(op, F_NEVER) || !op->nout) return false;
    bool pairs = op_has(op, F_COMM | F_VIEW) && !op_rule(op) && op->nin == op->nout;
    return pairs ? tie_pairs(g, op, changed) : tie_rule(g, op, changed);
}

/* ---- the group ---- */

/* All that read large values, and those that make them if they can be cut. */
static bool take_large(TileGroup *g, bool *changed) {
    for (Op *op = g->f->first; op; op = op->next) {
        if (g->has[op->id]) continue;
        bool reads = op_reads_marked(op, g->large);
        if (!reads && !op_makes_marked(op, g->large)) continue;
        if (tie(g, op, changed))
            g->has[op->id] = *changed = true;
        else if (reads)
            return false;
    }
    return true;
}

/* after: what needs the group; of these, what the group needs is taken into it. */
static void take_between(TileGroup *g, bool *changed) {
    bool *makes = NEW_ARRAY(g->mem, bool, (size_t)g->f->nvalues + 1);
    bool *needed = NEW_ARRAY(g->mem, bool, (size_t)g->f->nvalues + 1);
    for (Op *op = g->f->first; op; op = op->next) {
        bool after = op_reads_marked(op, makes);
        for (int i = 0; i < op->nout; i++)
            makes[op->out[i]->id] = after || g->has[op->id];
        g->after[op->id] = after && !g->has[op->id];
    }
    for (Op *op = g->f->last; op; op = op->prev) {
        if (!g->has[op->id] && !op_makes_marked(op, needed)) continue;
        op_mark_operands(op, needed);
        if (!g->after[op->id]) continue;
        g->has[op->id] = *changed = true;
        g->after[op->id] = false;
    }
}

static bool tie_all(TileGroup *g, bool *changed) {
    for (Op *op = g->f->first; op; op = op->next)
        if (g->has[op->id] && !tie(g, op, changed)) return false;
    return true;
}

static bool grow(TileGroup *g) {
    bool changed = true;
    while (changed) {
        changed = false;
        if (!take_large(g, &changed)) return false;
        take_between(g, &changed);
        if (!tie_all(g, &changed)) return false;
    }
    return true;
}

/* ---- is it sound? ---- */

/* Operands and results that have rows, and whether that is all of them. */
static int with_rows(const TileGroup *g, Value *const *v, int n, bool *all) {
    int count = 0;
    for (int i = 0; i < n; i++) count += g->lead[v[i]->id] > 0;
    *all = count == n;
    return count;
}

static bool is_sum_over_rows(const Op *op, const Value *v, bool all_rows) {
    return all_rows && op_has(op, F_LINEAR) && !op_has(op, F_COMM) &&
           dtype_bytes[v->ty.dt] >= dtype_bytes[DT_F32];
}

/* The op on a part of the rows gives these rows of its results, or a summand of them. */
static bool is_sound(TileGroup *g, const Op *op) {
    bool all_in, all_out;
    int in = with_rows(g, op->in, op->nin, &all_in);
    with_rows(g, op->out, op->nout, &all_out);
    if (!in && !(op_has(op, F_FILL) && !op->nin)) return false;
    if ((optab[op->kind].local || op_has(op, F_COMM)) && !(all_in && all_out))
        return false;
    if (op_reads_marked(op, g->sum)) return false;
    for (int i = 0; i < op->nout; i++) {
        if (g->lead[op->out[i]->id]) continue;
        if (!is_sum_over_rows(op, op->out[i], all_in)) return false;
        g->sum[op->out[i]->id] = true;
    }
    return true;
}

static bool all_sound(TileGroup *g) {
    for (Op *op = g->f->first; op; op = op->next) {
        if (!g->has[op->id]) continue;
        if (!is_sound(g, op)) return false;
        g->last = op;
    }
    for (Op *op = g->f->first; op != g->last;
         op = op->next) /* it would move behind others */
        if (g->after[op->id] && op_has(op, F_EFFECT)) return false;
    for (int i = 0; i < g->f->nret; i++) { /* then nothing is saved */
        const Value *v = g->f->ret[i];
        if (v->def && g->has[v->def->id] && g->large[v->id]) return false;
    }
    return true;
}

/* ---- sizes ---- */

static bool value_fits(const TileGroup *g, const Value *v, int64_t tile_rows) {
    Type tile;
    int lead = g->lead[v->id];
    return !lead || (v->ty.rank < MAX_RANK && tile_type(&v->ty, lead, tile_rows, &tile));
}

static bool all_fit(const TileGroup *g, int64_t tile_rows) {
    for (const Op *op = g->f->first; op; op = op->next)
        for (int t = 0; g->has[op->id] && t < terms_of(op); t++)
            if (!value_fits(g, op_term(op, t), tile_rows)) return false;
    return true;
}

/* What elementwise ops and reductions alone make and read is one kernel, and in no memory. */
static bool meets_product(const Value *v) {
    bool meets = op_has(v->def, F_DENSE);
    for (const Op *op = v->def->next; op && !meets; op = op->next)
        meets = op_has(op, F_DENSE) && op_reads_value(op, v);
    return meets;
}

/* Bytes that a row has in memory, of all large values: those of one size take each other's place, as
 * a gradient that is made of them row by row does; one of another type is there beside them. */
static int64_t bytes_a_row(const TileGroup *g) {
    int64_t size[8], sizes = 0, total = 0;
    for (const Op *op = g->f->first; op; op = op->next)
        for (int i = 0; g->has[op->id] && i < op->nout; i++) {
            const Value *v = op->out[i];
            int64_t bytes = type_bytes(&v->ty) / g->rows;
            bool known = !g->large[v->id] || !meets_product(v);
            for (int64_t n = 0; n < sizes; n++) known |= size[n] == bytes;
            if (known || sizes == ARRAY_LEN(size)) continue;
            size[sizes++] = bytes;
            total += bytes;
        }
    return MAX(total, 1);
}

/* Of the sums that each tile adds to. */
static int64_t sum_bytes(const TileGroup *g) {
    int64_t bytes = 0;
    for (const Op *op = g->f->first; op; op = op->next)
        for (int i = 0; g->has[op->id] && i < op->nout; i++)
            if (g->sum[op->out[i]->id]) bytes += type_bytes(&op->out[i]->ty);
    return bytes;
}

/* The most rows within the bytes, else the fewest beyond: of those that tile the seed. Each tile reads and
 * writes all sums, so that much smaller ones than these would take most of their time for that. */
static bool choose_rows(TileGroup *g, const Value *seed, const PassOptions *o) {
    int64_t bytes = MAX(o->tile_bytes, sum_bytes(g) / 4);
    int64_t suffix = 1, best = 0, most = bytes / bytes_a_row(g),
            least = MAX(o->tile_rows, 1);
    for (int d = g->lead[seed->id] - 1; d >= 0; suffix *= seed->ty.dim[d], d--) {
        int64_t n = seed->ty.dim[d];
        for (int64_t parts = 1; parts <= n; parts++) {
            int64_t rows = n / parts * suffix;
            if (n % parts || rows < least || rows >= g->rows) continue;
            bool better =
                !best || (best > most ? rows < best : rows > best && rows <= most);
            if (better && all_fit(g, rows)) best = rows;
        }
    }
    g->tile_rows = best;
    return best && g->rows / best <= MAX_TIMES;
}

static bool find_with(TileGroup *g, const Value *seed, int lead, const PassOptions *o) {
    Func *f = g->f;
    g->has = NEW_ARRAY(g->mem, bool, (size_t)f->nops + 1);
    g->after = NEW_ARRAY(g->mem, bool, (size_t)f->nops + 1);
    g->large = NEW_ARRAY(g->mem, bool, (size_t)f->nvalues + 1);
    g->sum = NEW_ARRAY(g->mem, bool, (size_t)f->nvalues + 1);
    g->lead = NEW_ARRAY(g->mem, int, (size_t)f->nvalues + 1);
    g->lead[seed->id] = lead;
    g->large[seed->id] = true;
    g->rows = sizes_product(seed->ty.dim, lead);
    return grow(g) && g->has[seed->def->id] && all_sound(g) && choose_rows(g, seed, o);
}

bool tile_group_find(TileGroup *g, const Value *seed, const PassOptions *o) {
    if (type_bytes(&seed->ty) <= o->tile_bytes) return false;
    if (op_has(seed->def, F_NEVER | F_VIEW) || !meets_product(seed)) return false;
    g->mem = arena_new();
    g->f = seed->def->fn;
    func_number(g->f);
    for (int lead = seed->ty.rank - 1; lead > 0; lead--)
        if (find_with(g, seed, lead, o)) return true;
    return false;
}
