/* iteration_space.c - see iteration_space.h. Dimensions of values that ops of the kernel tie
 * together are one dimension of the space (union-find); sizes of 1 do not count. */
#include "ir/iteration_space.h"

enum { GROWN_VALUES = 24 }; /* room for, so that most kernels grow from one op */

typedef struct Ties {
    Arena *mem;
    Space *s;
    int *parent;                /* node = value index * MAX_RANK + dimension */
    bool *each;                 /* by value: an op has its elements one by one */
    int order[MAX_RANK], ndims; /* classes of the largest value, in its order */
} Ties;

static int find_root(Ties *t, int node) {
    while (t->parent[node] != node) {
        t->parent[node] = t->parent[t->parent[node]];
        node = t->parent[node];
    }
    return node;
}

/* Of the value, or the free one that it would have. */
static int *slot_of(const Space *s, const Value *v) {
    uint64_t h = ((uint64_t)(uintptr_t)v >> 3) * 0x9e3779b97f4a7c15u >> 32;
    for (;; h++) {
        int *slot = &s->slot[h & (uint64_t)(s->slots - 1)];
        if (!*slot || s->value[*slot - 1].v == v) return slot;
    }
}

SpaceValue *space_value(const Space *s, const Value *v) {
    int nth = *slot_of(s, v);
    return nth ? &s->value[nth - 1] : NULL;
}

static int value_index(Space *s, Value *v, bool made) {
    int *slot = slot_of(s, v);
    if (!*slot) {
        s->value[s->nvalues++] = (SpaceValue){.v = v, .made = made};
        *slot = s->nvalues;
    }
    return *slot - 1;
}

static void collect_values(Arena *mem, Space *s) {
    int max = 0;
    for (int k = 0; k < s->nops; k++) max += s->op[k]->nin + s->op[k]->nout;
    s->values_cap = MAX(2 * max, GROWN_VALUES);
    s->value = NEW_ARRAY(mem, SpaceValue, (size_t)s->values_cap);
    for (s->slots = 4; s->slots < 2 * s->values_cap;) s->slots *= 2;
    s->slot = NEW_ARRAY(mem, int, (size_t)s->slots);
    for (int k = 0; k < s->nops; k++) {
        for (int i = 0; i < s->op[k]->nin; i++) value_index(s, s->op[k]->in[i], false);
        for (int i = 0; i < s->op[k]->nout; i++) value_index(s, s->op[k]->out[i], true);
    }
}

/* The dimensions that one operand has and neither another nor the first result. */
static uint32_t lone_dims(const Dims *d) {
    uint32_t seen = dims_mask(d, d->nin), again = seen;
    for (int k = 0; k < d->nin; k++) {
        uint32_t here = dims_mask(d, k);
        again |= seen & here;
        seen |= here;
    }
    return seen & ~again;
}

static void tie_op(Ties *t, const Op *op, const Dims *d) {
    int first[MAX_DIMS];
    for (int i = 0; i < d->n; i++) first[i] = -1;
    uint32_t lone = op_has(op, F_REDUCE) ? 0 : lone_dims(d);
    for (int term = 0; term < d->nin + d->nout; term++) {
        Value *v = term < d->nin ? op->in[term] : op->out[term - d->nin];
        int at = value_index(t->s, v, false);
        if (lone && term < d->nin && dims_mask(d, term) & lone) {
            t->s->value[at].table = true;
            continue;
        }
        t->each[at] = true;
        for (int k = 0; k < d->rank[term]; k++) {
            int node = at * MAX_RANK + k, id = d->term[term][k];
            if (first[id] < 0) first[id] = node;
            t->parent[find_root(t, node)] = find_root(t, first[id]);
        }
    }
}

static int counted_dims(const SpaceValue *sv) {
    int n = 0;
    for (int d = 0; d < sv->v->ty.rank; d++) n += sv->v->ty.dim[d] > 1;
    return sv->table ? -1 : n;
}

static int class_position(const Ties *t, int root) {
    for (int i = 0; i < t->ndims; i++) {
        if (t->order[i] == root) return i;
    }
    return -1;
}

/* Sets the mask of a value over single dimensions of the space. */
static const char *mask_value(Ties *t, int at) {
    SpaceValue *sv = &t->s->value[at];
    int last = -1;
    for (int d = 0; d < sv->v->ty.rank && !sv->table; d++) {
        if (sv->v->ty.dim[d] == 1) continue;
        int p = class_position(t, find_root(t, at * MAX_RANK + d));
        if (p < 0) return "a dimension that the largest value lacks";
        if (p <= last) return "dimensions in another order";
        sv->mask |= 1u << p;
        last = p;
    }
    sv->dims = sv->mask;
    return NULL;
}

static const char *tie_all(Ties *t, const Dims *const *dims) {
    Space *s = t->s;
    t->parent = NEW_ARRAY(t->mem, int, (size_t)s->nvalues *MAX_RANK);
    t->each = NEW_ARRAY(t->mem, bool, (size_t)s->nvalues);
    for (int i = 0; i < s->nvalues * MAX_RANK; i++) t->parent[i] = i;
    for (int k = 0; k < s->nops; k++) tie_op(t, s->op[k], dims[k]);
    for (int i = 0; i < s->nvalues; i++)
        if (s->value[i].table && t->each[i])
            return "a table whose elements another op has one by one";
    int full = 0;
    for (int i = 1; i < s->nvalues; i++) {
        if (counted_dims(&s->value[i]) > counted_dims(&s->value[full])) full = i;
    }
    const Value *v = s->value[full].v;
    for (int d = 0; d < v->ty.rank; d++) {
        if (v->ty.dim[d] > 1) t->order[t->ndims++] = find_root(t, full * MAX_RANK + d);
    }
    for (int i = 0; i < s->nvalues; i++) {
        const char *why = mask_value(t, i);
        if (why) return why;
    }
    for (int d = 0, k = 0; d < v->ty.rank; d++) {
        if (v->ty.dim[d] > 1) s->size[k++] = v->ty.dim[d];
    }
    s->ngroups = t->ndims;
    return NULL;
}

/* Joins neighbouring dimensions that every value has or lacks together. */
static void collapse(Space *s) {
    int kept = 0;
    int64_t size[SPACE_MAX_GROUPS];
    uint32_t masks[SPACE_MAX_GROUPS] = {0};
    for (int g = 0; g < s->ngroups; g++) {
        bool join = g > 0;
        for (int i = 0; join && i < s->nvalues; i++) {
            join = (s->value[i].mask >> g & 1) == (s->value[i].mask >> (g - 1) & 1);
        }
        if (!join) size[kept++] = 1;
        size[kept - 1] *= s->size[g];
        masks[kept - 1] |= 1u << g;
    }
    for (int i = 0; i < s->nvalues; i++) {
        uint32_t m = 0;
        for (int g = 0; g < kept; g++) {
            if (s->value[i].mask & masks[g]) m |= 1u << g;
        }
        s->value[i].mask = m;
    }
    memcpy(s->size, size, sizeof size);
    memcpy(s->dims_of, masks, sizeof masks);
    s->ngroups = kept;
    s->inner = kept ? size[kept - 1] : 1;
    s->rows = 1;
    for (int g = 0; g + 1 < kept; g++) s->rows *= size[g];
}

/* The phase in which op k has its operands, -1: it never has in a row pass. */
static int operand_phase(const Space *s, const Op *op) {
    int phase = 0;
    for (int i = 0; i < op->nin; i++) {
        const SpaceValue *in = space_value(s, op->in[i]);
        if (in->at_end) return -1;
        phase = MAX(phase, in->phase);
    }
    return phase;
}

/* Results that keep what the op reads are whole rows, or a number for each. */
static const char *check_results(const Space *s, const Op *op) {
    uint32_t full = space_full(s), outer = full & ~space_inner_bit(s);
    for (int i = 0; i < op->nout; i++) {
        uint32_t m = space_value(s, op->out[i])->mask;
        if (m != full && (m != outer || !outer))
            return "a value with only some of the rows' dimensions";
    }
    return NULL;
}

/* A reduction of `from` over `gone`, with `left` left; REDUCE_NONE: over anything else than can
 * be done. */
static ReduceKind reduction(const Space *s, const Op *op, uint32_t from, uint32_t gone,
                            uint32_t left) {
    uint32_t inner = space_inner_bit(s), full = space_full(s), outer = full & ~inner;
    if (gone == inner && outer && left == outer) return REDUCE_ROW;
    if (!(optab[op->kind].flags & F_LINEAR)) return REDUCE_NONE;
    if (outer && gone == outer && from == full) return REDUCE_COL;
    bool all = from == full || (from == outer && outer);
    return all && !left ? REDUCE_ALL : REDUCE_NONE;
}

/* An op that asks which element of its row it has (of which ranks have parts) has the rows of the
 * kernel, or one element each. */
static bool misses_columns(const Space *s, const Op *op, uint32_t mask) {
    const Type *t = &op->out[0]->ty;
    uint32_t inner = space_inner_bit(s);
    if (!op_has(op, F_MAP) || !optab[op->kind].local || !space_full(s) || mask & inner)
        return false;
    return op_has(op, F_RANDOM) || (t->rank && t->dim[t->rank - 1] != 1);
}

static bool takes_number(ReduceKind kind) {
    return kind == REDUCE_ROW || kind == REDUCE_ALL;
}

static const char *classify(Space *s, int k) {
    Op *op = s->op[k];
    SpaceValue *out = space_value(s, op->out[0]);
    int phase = operand_phase(s, op);
    if (phase < 0) return "it reads a sum that is ready only at the end";
    for (int i = 0; i < op->nout; i++) space_value(s, op->out[i])->phase = phase;
    uint32_t from = op->nin ? space_value(s, op->in[0])->mask : out->mask;
    uint32_t gone = optab[op->kind].flags & F_REDUCE ? from & ~out->mask : 0;
    if (!gone && misses_columns(s, op, out->mask))
        return "an op that counts columns, of fewer dimensions than the rows have";
    if (!gone) return check_results(s, op);
    s->reduce[k] = reduction(s, op, from, gone, out->mask);
    if (s->reduce[k] == REDUCE_NONE)
        return "a reduction over only some of the rows' dimensions";
    s->nsums += takes_number(s->reduce[k]);
    if (s->nsums > SPACE_MAX_SUMS) return "more sums than a kernel may have";
    out->at_end = s->reduce[k] != REDUCE_ROW;
    out->phase += s->reduce[k] == REDUCE_ROW;
    return NULL;
}

static void choose_blocks(Space *s) {
    bool whole = false; /* a row must stay whole */
    for (int k = 0; k < s->nops; k++) {
        SpaceValue *out = space_value(s, s->op[k]->out[0]);
        bool row_value = !(out->mask & space_inner_bit(s)) && !out->at_end;
        bool row_sum = s->reduce[k] == REDUCE_ALL &&
                       !(space_value(s, s->op[k]->in[0])->mask & space_inner_bit(s));
        whole |= s->reduce[k] == REDUCE_ROW || row_value || row_sum;
    }
    s->block = whole || s->inner <= SPACE_BLOCK ? s->inner : SPACE_BLOCK;
    s->blocks = (s->inner + s->block - 1) / s->block;
}

const Dims *space_dims(Arena *mem, const Op *op) {
    Dims *d = NEW(mem, Dims);
    check(op_dims(op, d));
    return d;
}

const char *space_analyze(Arena *mem, Op **op, const Dims *const *dims, int nops,
                          Space *s) {
    *s = (Space){.op = op, .nops = nops, .nphases = 1};
    s->reduce = NEW_ARRAY(mem, ReduceKind, (size_t)nops);
    collect_values(mem, s);
    Ties t = {.mem = mem, .s = s};
    const char *why = tie_all(&t, dims);
    if (why) return why;
    collapse(s);
    for (int k = 0; k < nops; k++) {
        why = classify(s, k);
        if (why) return why;
        for (int i = 0; i < op[k]->nout; i++) {
            s->nphases = MAX(s->nphases, space_value(s, op[k]->out[i])->phase + 1);
        }
    }
    choose_blocks(s);
    return NULL;
}

/* ---- one more op ---- */

enum { NOWHERE = -1 };

/* Finds where the dimensions of a value of the space are in it, by dimension id; false: not where
 * they are already. */
static bool find_dims(const SpaceValue *sv, const int8_t *id, int8_t *where) {
    uint32_t left = sv->dims;
    for (int k = 0; k < sv->v->ty.rank; k++) {
        if (sv->v->ty.dim[k] == 1) continue;
        int at = __builtin_ctz(left);
        if (where[id[k]] != NOWHERE && where[id[k]] != at) return false;
        where[id[k]] = (int8_t)at;
        left &= left - 1;
    }
    return true;
}

/* Of a value with dimensions that are known: which it has; false: none that others of the space
 * could have. */
static bool place_value(const Space *s, SpaceValue *sv, const int8_t *id,
                        const int8_t *where) {
    int last = NOWHERE;
    for (int k = 0; k < sv->v->ty.rank; k++) {
        if (sv->v->ty.dim[k] == 1) continue;
        if (where[id[k]] <= last) return false;
        last = where[id[k]];
        sv->dims |= 1u << last;
    }
    for (int g = 0; g < s->ngroups; g++) {
        uint32_t has = sv->dims & s->dims_of[g];
        if (has && has != s->dims_of[g]) return false;
        if (has) sv->mask |= 1u << g;
    }
    return true;
}

/* The phase of results, of which all are in fresh: that of the operands, or the next where the op
 * is a reduction over rows; counts it. False: not one that can be done, or more is to be known. */
static bool phase_results(Space *s, const Op *op, SpaceValue *fresh, int n, int phase) {
    uint32_t full = space_full(s), outer = full & ~space_inner_bit(s);
    ReduceKind kind = REDUCE_NONE;
    if (op_has(op, F_REDUCE)) {
        uint32_t from = space_value(s, op->in[0])->mask, left = fresh[n - 1].mask;
        if (from == left) return false;
        kind = reduction(s, op, from, from & ~left, left);
        if (kind == REDUCE_NONE) return false;
    }
    for (int i = 0; i < n; i++) {
        SpaceValue *sv = &fresh[i];
        if (!sv->made) continue;
        sv->phase = phase + (kind == REDUCE_ROW);
        sv->at_end = kind != REDUCE_NONE && kind != REDUCE_ROW;
        if (kind == REDUCE_NONE && sv->mask != full && (sv->mask != outer || !outer))
            return false;
        if (kind == REDUCE_NONE && misses_columns(s, op, sv->mask)) return false;
    }
    if (takes_number(kind) && s->nsums == SPACE_MAX_SUMS) return false;
    s->nsums += takes_number(kind);
    return true;
}

bool space_extend(Space *s, const Op *op, const Dims *d) {
    int8_t where[MAX_DIMS];
    SpaceValue fresh[MAX_TERMS];
    int n = d->nin + d->nout, nfresh = 0, phase = 0;
    bool reduces = op_has(op, F_REDUCE);
    memset(where, NOWHERE, sizeof where);
    if (s->nvalues + n > s->values_cap || (!reduces && lone_dims(d))) return false;
    if (reduces && (op->nin != 1 || op->nout != 1 || !space_value(s, op->in[0])))
        return false;
    for (int i = 0; i < op->nin; i++) {
        const SpaceValue *in = space_value(s, op->in[i]);
        if (!in) continue;
        if (in->table || in->at_end || !find_dims(in, d->term[i], where)) return false;
        phase = MAX(phase, in->phase);
    }
    for (int i = 0; i < n; i++) {
        bool made = i >= op->nin;
        Value *v = made ? op->out[i - op->nin] : op->in[i];
        if (space_value(s, v)) continue;
        SpaceValue *sv = &fresh[nfresh++];
        *sv = (SpaceValue){.v = v, .made = made};
        if (!place_value(s, sv, d->term[i], where)) return false;
    }
    if (!phase_results(s, op, fresh, nfresh, phase)) return false;
    for (int i = 0; i < nfresh; i++) {
        int *slot = slot_of(s, fresh[i].v);
        if (*slot) continue; /* an operand twice */
        s->value[s->nvalues++] = fresh[i];
        *slot = s->nvalues;
    }
    return true;
}

Space space_of(Arena *mem, const Func *kernel) {
    int n = 0;
    for (Op *op = kernel->first; op; op = op->next) n++;
    Op **ops = NEW_ARRAY(mem, Op *, (size_t)n);
    const Dims **dims = NEW_ARRAY(mem, const Dims *, (size_t)n);
    n = 0;
    for (Op *op = kernel->first; op; op = op->next) {
        dims[n] = space_dims(mem, op);
        ops[n++] = op;
    }
    Space s;
    const char *why = space_analyze(mem, ops, dims, n, &s);
    if (why) fail(EXIT_CONFIG, "kernel @%s: %s", kernel->name, why);
    return s;
}

/* Per value: the last phase in which a row pass reads it, be it for a
 * value made from it. */
static int *last_reads(Arena *mem, const Space *s) {
    int *last = NEW_ARRAY(mem, int, (size_t)s->nvalues);
    for (int k = s->nops - 1; k >= 0; k--) {
        const SpaceValue *out = space_value(s, s->op[k]->out[0]);
        bool recomputed = s->reduce[k] == REDUCE_NONE && (out->mask & space_inner_bit(s));
        int phase = out->phase - (s->reduce[k] == REDUCE_ROW);
        if (recomputed) phase = MAX(phase, last[out - s->value]);
        for (int i = 0; i < s->op[k]->nin; i++) {
            int *at = &last[space_value(s, s->op[k]->in[i]) - s->value];
            *at = MAX(*at, phase);
        }
    }
    return last;
}

bool space_inplace(Arena *mem, const Func *kernel, int arg, int ret) {
    Space s = space_of(mem, kernel);
    const SpaceValue *in = space_value(&s, kernel->arg[arg]);
    const SpaceValue *out = space_value(&s, kernel->ret[ret]);
    if (!in || !out || !out->made || out->at_end) return false;
    if (in->mask != space_full(&s) || out->mask != space_full(&s)) return false;
    if (dtype_bytes[in->v->ty.dt] != dtype_bytes[out->v->ty.dt]) return false;
    return out->phase >= last_reads(mem, &s)[in - s.value];
}
