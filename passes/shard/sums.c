/* sums.c - see sums.h. */
#include "passes/shard/sums.h"

enum { MOST_HANDED = 64 }; /* ops from where a value is rounded to where it is summed */

/* The value that a move, a call or a sum of two makes v of; of a sum one of them, as both were
 * rounded alike. */
static const Value *source_of(const Value *v) {
    const Op *op = v->def;
    if (!op || !op->nin) return NULL;
    if (op_is_call(op)) return op_func(op)->ret[v->nth];
    if (op_has(op, F_PLUS)) return op->in[op->in[0]->def == NULL];
    return op_has(op, F_MOVE) ? op->in[0] : NULL;
}

/* The cast that v, or an operand of what it is made of, comes from; NULL. */
static const Op *cast_before(const Value *v) {
    for (int left = MOST_HANDED; v && v->def && left; left--) {
        if (op_has(v->def, F_CAST)) return v->def;
        v = source_of(v);
    }
    return NULL;
}

/* Is v rounded to that type where it is read, with what is added to it until then? */
static bool is_rounded_behind(const Func *f, const Value *v, DType to) {
    for (int left = MOST_HANDED; left; left--) {
        const Op *reader = value_only_reader(f, v);
        if (!reader || reader->nout != 1) return false;
        if (op_has(reader, F_CAST)) return reader->out[0]->ty.dt == to;
        if (!op_has(reader, F_PLUS | F_MOVE)) return false;
        v = reader->out[0];
    }
    return false;
}

DType sum_over_ranks(const Func *f, const Value *v, const PassOptions *o) {
    DType is = v->ty.dt, narrow = o->narrow;
    if (!dtype_is_float(is)) return is;
    const Op *cast = cast_before(v);
    if (is != dtype_sum(is) && cast && op_int(cast, "parts", 0)) return is;
    bool may = o->round_sums && dtype_bytes[narrow] < dtype_bytes[DT_F32];
    bool before = is == narrow || (cast && cast->in[0]->ty.dt == narrow);
    if (may && (before || is_rounded_behind(f, v, narrow))) return narrow;
    return dtype_sum(is);
}
