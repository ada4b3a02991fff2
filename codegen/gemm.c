/* gemm.c - see gemm.h. A tile of C stays in registers while k runs: `rows` broadcasts of
 * A against `vecs` vectors of B. Columns are split into panels of up to max_vecs vectors,
 * rows of a panel into full tiles and a rest. */
#include "gemm.h"

typedef struct Panel {
    Emit *e;
    const GemmStrides *s;
    GemmInit init;
    LLVMValueRef a, b, c, scale; /* b, c, scale: at the panel's first column */
    LLVMValueRef m, k;
    LLVMValueRef mask; /* of the last vector, or NULL */
    int vecs;
} Panel;

static int max_vecs(const Emit *e) {
    return e->vl == 16 ? 4 : 2;
}

/* With 32 registers 6 x 4, 8 x 3, 12 x 2; with 16 registers 6 x 2: enough independent
 * sums to cover the latency of fma, few enough to leave room for B and a broadcast. One
 * vector alone is bound by the loads of A, whatever the rows. */
static int max_rows(const Emit *e, int vecs) {
    static const int many[] = {0, 14, 12, 8, 6};
    static const int few[] = {0, 10, 6};
    return e->vl == 16 ? many[vecs] : few[vecs];
}

static LLVMValueRef mask_of(const Panel *p, int v) {
    return v == p->vecs - 1 ? p->mask : NULL;
}

static LLVMValueRef row_of(const Panel *p, LLVMValueRef base, LLVMValueRef i,
                           int64_t stride) {
    Emit *e = p->e;
    return emit_gep(e, e->f32, base, emit_mul(e, i, emit_i64(e, stride)));
}

static void tile_init(const Panel *p, int rows, LLVMValueRef c, LLVMValueRef *acc) {
    Emit *e = p->e;
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < p->vecs; v++) {
            LLVMValueRef x = LLVMConstNull(e->vf32);
            if (p->init != GEMM_SET) {
                LLVMValueRef at = emit_at(e, e->f32, c, r * p->s->c_row + v * e->vl);
                x = emit_load(e, e->vf32, at, mask_of(p, v), 4);
            }
            if (p->init == GEMM_SCALE) {
                LLVMValueRef at = emit_at(e, e->f32, p->scale, v * e->vl);
                x = emit_fmul(e, x, emit_load(e, e->vf32, at, mask_of(p, v), 4));
            }
            acc[r * p->vecs + v] = x;
        }
    }
}

static void tile_emit(const Panel *p, int rows, LLVMValueRef i) {
    Emit *e = p->e;
    LLVMValueRef acc[LOOP_CARRY_MAX], b[4];
    LLVMValueRef a = row_of(p, p->a, i, p->s->a_row);
    LLVMValueRef c = row_of(p, p->c, i, p->s->c_row);
    int n = rows * p->vecs;
    tile_init(p, rows, c, acc);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), p->k, 1, n, acc);
    LLVMValueRef b_row = row_of(p, p->b, l.i, p->s->b_row);
    LLVMValueRef a_col = row_of(p, a, l.i, p->s->a_col);
    for (int v = 0; v < p->vecs; v++) {
        LLVMValueRef at = emit_at(e, e->f32, b_row, v * e->vl);
        b[v] = emit_load(e, e->vf32, at, mask_of(p, v), 4);
    }
    for (int r = 0; r < rows; r++) {
        LLVMValueRef at = emit_at(e, e->f32, a_col, r * p->s->a_row);
        LLVMValueRef x = emit_splat(e, emit_load(e, e->f32, at, NULL, 4));
        for (int v = 0; v < p->vecs; v++) {
            acc[r * p->vecs + v] = emit_fma(e, x, b[v], l.carry[r * p->vecs + v]);
        }
    }
    loop_end(e, &l, acc);
    for (int k = 0; k < n; k++) {
        int r = k / p->vecs, v = k % p->vecs;
        LLVMValueRef at = emit_at(e, e->f32, c, r * p->s->c_row + v * e->vl);
        emit_store(e, l.carry[k], at, mask_of(p, v), 4);
    }
}

/* The rows that full tiles leave over, by powers of two: at most four smaller tiles. */
static void rest_rows(const Panel *p, int rows, LLVMValueRef done, LLVMValueRef rest) {
    Emit *e = p->e;
    for (int t = 8; t; t /= 2) {
        if (t >= rows) continue;
        LLVMValueRef bit = LLVMBuildAnd(e->b, rest, emit_i64(e, t), "");
        LLVMValueRef above = LLVMBuildAnd(e->b, rest, emit_i64(e, -2 * t), "");
        LLVMValueRef any = LLVMBuildICmp(e->b, LLVMIntNE, bit, emit_i64(e, 0), "");
        If s;
        if_begin(e, &s, any);
        tile_emit(p, t, emit_add(e, done, above));
        if_end(e, &s);
    }
}

static void panel_emit(const Panel *p) {
    Emit *e = p->e;
    int rows = max_rows(e, p->vecs);
    LLVMValueRef per = emit_i64(e, rows), zero = emit_i64(e, 0);
    LLVMValueRef full = emit_mul(e, emit_div(e, p->m, per), per);
    LLVMValueRef rest = emit_sub(e, p->m, full);
    bool known = LLVMIsAConstantInt(p->m);
    if (!known || LLVMConstIntGetSExtValue(full) > 0) {
        Loop l;
        loop_begin(e, &l, zero, full, rows, 0, NULL);
        tile_emit(p, rows, l.i);
        loop_end(e, &l, NULL);
    }
    if (!known) {
        rest_rows(p, rows, full, rest);
    } else if (LLVMConstIntGetSExtValue(rest) > 0) {
        tile_emit(p, (int)LLVMConstIntGetSExtValue(rest), full);
    }
}

/* The panel of `vecs` vectors at column j. */
static void panel_at(const Panel *whole, LLVMValueRef j, int vecs, LLVMValueRef mask) {
    Emit *e = whole->e;
    Panel p = *whole;
    p.b = emit_gep(e, e->f32, p.b, j);
    p.c = emit_gep(e, e->f32, p.c, j);
    if (p.scale) p.scale = emit_gep(e, e->f32, p.scale, j);
    p.vecs = vecs;
    p.mask = mask;
    panel_emit(&p);
}

static void columns_known(const Panel *whole, int64_t n) {
    Emit *e = whole->e;
    int wide = max_vecs(e);
    int64_t vecs = (n + e->vl - 1) / e->vl, full = vecs / wide, rest = vecs % wide;
    LLVMValueRef mask = n % e->vl ? emit_tail_mask(e, emit_i64(e, n % e->vl)) : NULL;
    bool even = full && rest && rest <= wide / 2 && wide > 2; /* 4 + 1 becomes 3 + 2 */
    if (mask && !rest) rest = wide;
    if (even) rest += wide;
    full = (vecs - rest) / wide;
    int64_t j = full * wide * e->vl;
    if (full) {
        Loop l;
        loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, j), wide * e->vl, 0, NULL);
        panel_at(whole, l.i, wide, NULL);
        loop_end(e, &l, NULL);
    }
    if (rest > wide) {
        int first = (int)(rest + 1) / 2;
        panel_at(whole, emit_i64(e, j), first, NULL);
        j += first * e->vl;
        rest -= first;
    }
    if (rest) panel_at(whole, emit_i64(e, j), (int)rest, mask);
}

static void columns_unknown(const Panel *whole, LLVMValueRef n) {
    Emit *e = whole->e;
    int wide = max_vecs(e) * e->vl;
    LLVMValueRef per = emit_i64(e, wide);
    LLVMValueRef full = emit_mul(e, emit_div(e, n, per), per);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), full, wide, 0, NULL);
    panel_at(whole, l.i, max_vecs(e), NULL);
    loop_end(e, &l, NULL);
    loop_begin(e, &l, full, n, e->vl, 0, NULL);
    panel_at(whole, l.i, 1, emit_tail_mask(e, emit_sub(e, n, l.i)));
    loop_end(e, &l, NULL);
}

void gemm_emit(Emit *e, const GemmStrides *s, GemmInit init, LLVMValueRef a,
               LLVMValueRef b, LLVMValueRef c, LLVMValueRef scale, LLVMValueRef m,
               LLVMValueRef n, LLVMValueRef k) {
    check((init == GEMM_SCALE) == (scale != NULL));
    Panel whole = {.e = e, .s = s, .init = init, .a = a, .b = b, .c = c, .scale = scale,
                   .m = m, .k = k};
    if (LLVMIsAConstantInt(n)) {
        columns_known(&whole, LLVMConstIntGetSExtValue(n));
    } else {
        columns_unknown(&whole, n);
    }
}
