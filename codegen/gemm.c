/* gemm.c - see gemm.h. A tile of C stays in registers while k runs: `rows` broadcasts of
 * A against `vecs` vectors of B. Columns are split into panels of up to max_vecs vectors,
 * rows of a panel into full tiles and a rest. */
#include "codegen/gemm.h"
#include "codegen/gemm_result.h"
#include "codegen/gemm_tiles.h"

typedef struct Panel {
    Emit *e;
    const GemmStrides *s;
    GemmInit init;
    GemmData data;  /* b, c, scale: at the panel's first column */
    LLVMValueRef j; /* that column */
    LLVMValueRef m, k;
    LLVMValueRef mask; /* of the last vector, or NULL */
    int vecs;
    int64_t strips; /* panels of the same kind from here on, a tile of each in turn */
} Panel;

static int max_vecs(const Emit *e) {
    return e->vl == 16 ? 4 : 2;
}

int64_t gemm_tile_columns(const Emit *e) {
    return (int64_t)max_vecs(e) * e->vl;
}

/* With 32 registers 6 x 4, 8 x 3, 12 x 2; with 16 registers 6 x 2: enough independent
 * sums to cover the latency of fma, few enough to leave room for B and a broadcast. One
 * vector alone is bound by the loads of A, whatever the rows. Pairs of bf16 that become
 * f32 first take two registers each. */
static int max_rows(const Panel *p) {
    static const int rows[2][2][5] = {{{0, 10, 6}, {0, 14, 12, 8, 6}},
                                      {{0, 8, 4}, {0, 12, 10, 6, 5}}};
    bool widened = p->s->pairs && !emit_has_dots(p->e);
    return rows[widened][p->e->vl == 16][p->vecs];
}

static LLVMValueRef mask_of(const Panel *p, int v) {
    return v == p->vecs - 1 ? p->mask : NULL;
}

static LLVMValueRef row_of(const Panel *p, LLVMValueRef base, LLVMValueRef i,
                           int64_t stride) {
    Emit *e = p->e;
    return emit_gep(e, e->f32, base, emit_muli(e, i, stride));
}

/* The sums of one tile, in registers. */
typedef struct Tile {
    const Panel *p;
    int rows;
    LLVMValueRef a, c; /* first row of the tile */
    LLVMValueRef sum[LOOP_CARRY_MAX];
} Tile;

/* A vector of B, or a broadcast element of A. */
static Pairs operand(const Panel *p, LLVMValueRef at, LLVMValueRef mask, bool splat) {
    Emit *e = p->e;
    bool pairs = p->s->pairs;
    LLVMTypeRef type = pairs ? e->vi32 : e->vf32, one = pairs ? e->i32 : e->f32;
    LLVMValueRef x = splat ? emit_splat(e, emit_load(e, one, at, NULL, 4))
                           : emit_load(e, type, at, mask, 4);
    return pairs ? emit_pairs(e, x) : (Pairs){.bits = x};
}

/* One step of k: the outer product of a column of A and a row of B. */
static void tile_step(Tile *t, LLVMValueRef l) {
    const Panel *p = t->p;
    Emit *e = p->e;
    Pairs b[4];
    LLVMValueRef row = row_of(p, p->data.b, l, p->s->b_row);
    LLVMValueRef col = row_of(p, t->a, l, p->s->a_col);
    for (int v = 0; v < p->vecs; v++)
        b[v] = operand(p, emit_at(e, e->f32, row, v * e->vl), mask_of(p, v), false);
    for (int r = 0; r < t->rows; r++) {
        Pairs x = operand(p, emit_at(e, e->f32, col, r * p->s->a_row), NULL, true);
        for (int v = 0; v < p->vecs; v++) {
            LLVMValueRef *sum = &t->sum[r * p->vecs + v];
            *sum = p->s->pairs ? emit_dot_pairs(e, &x, &b[v], *sum)
                               : emit_fma(e, x.bits, b[v].bits, *sum);
        }
    }
}

static void tile_loop(Tile *t, LLVMValueRef lo, LLVMValueRef hi, int step) {
    Emit *e = t->p->e;
    Loop l;
    int n = t->rows * t->p->vecs;
    loop_begin(e, &l, lo, hi, step, n, t->sum);
    memcpy(t->sum, l.carry, sizeof(LLVMValueRef) * (size_t)n);
    for (int i = 0; i < step; i++) tile_step(t, emit_addi(e, l.i, i));
    loop_end(e, &l, t->sum);
    memcpy(t->sum, l.carry, sizeof(LLVMValueRef) * (size_t)n);
}

/* C enters after the sums: its loads then overlap with the next tile's first steps. */
static void tile_store(const Tile *t, const GemmBlock *at_block) {
    const Panel *p = t->p;
    Emit *e = p->e;
    if (p->s->user && p->s->user->take) {
        p->s->user->take(p->s->user->ctx, at_block, t->sum);
        return;
    }
    for (int k = 0; k < t->rows * p->vecs; k++) {
        int r = k / p->vecs, v = k % p->vecs;
        LLVMValueRef at = emit_at(e, e->f32, t->c, r * p->s->c_row + v * e->vl);
        LLVMValueRef scale =
            p->data.scale ? emit_at(e, e->f32, p->data.scale, v * e->vl) : NULL;
        gemm_result(e, p->init, t->sum[k], at, scale, mask_of(p, v));
    }
}

/* Full tiles take k in steps of UNROLL, so that the end of a loop over some dozens of k
 * is near enough for branch prediction to see it coming. */
enum { UNROLL = 4 };

static void tile_emit(const Panel *p, int rows, LLVMValueRef i) {
    Emit *e = p->e;
    Tile t = {.p = p, .rows = rows};
    t.a = row_of(p, p->data.a, i, p->s->a_row);
    GemmBlock block = {i, p->j, p->mask, rows, p->vecs};
    const GemmUser *user = p->s->user;
    if (!user || !user->take) t.c = row_of(p, p->data.c, i, p->s->c_row);
    if (user && user->ahead) user->ahead(user->ctx, &block);
    for (int k = 0; k < rows * p->vecs; k++) t.sum[k] = LLVMConstNull(e->vf32);
    LLVMValueRef done = emit_i64(e, 0);
    bool known = LLVMIsAConstantInt(p->k);
    int64_t k = known ? LLVMConstIntGetSExtValue(p->k) : 0;
    if (rows == max_rows(p) && (!known || k >= UNROLL)) {
        LLVMValueRef per = emit_i64(e, UNROLL);
        LLVMValueRef whole = emit_mul(e, emit_div(e, p->k, per), per);
        tile_loop(&t, done, whole, UNROLL);
        done = whole;
    }
    if (!known || k > LLVMConstIntGetSExtValue(done)) tile_loop(&t, done, p->k, 1);
    tile_store(&t, &block);
}

/* The panel of `vecs` vectors at column j of `whole`. */
static Panel panel_at(const Panel *whole, LLVMValueRef j, int vecs, LLVMValueRef mask) {
    Emit *e = whole->e;
    Panel p = *whole;
    int64_t b_col = MAX(1, p.s->b_col);
    p.data.b = emit_gep(e, e->f32, p.data.b, emit_muli(e, j, b_col));
    p.j = emit_add(e, p.j, j);
    if (p.data.c) p.data.c = emit_gep(e, e->f32, p.data.c, j);
    if (p.data.scale) p.data.scale = emit_gep(e, e->f32, p.data.scale, j);
    p.vecs = vecs;
    p.mask = mask;
    p.strips = 1;
    return p;
}

/* A tile of each strip: the rows of A stay in the first cache meanwhile. */
static void row_emit(const Panel *p, int rows, LLVMValueRef i) {
    Emit *e = p->e;
    if (p->strips == 1) {
        tile_emit(p, rows, i);
        return;
    }
    int64_t wide = (int64_t)p->vecs * e->vl;
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, p->strips * wide), wide, 0, NULL);
    Panel strip = panel_at(p, l.i, p->vecs, NULL);
    tile_emit(&strip, rows, i);
    loop_end(e, &l, NULL);
}

/* Does one of the m that there are leave so many rows over? */
static bool may_be_left(const Panel *p, int rows, int t) {
    const int64_t *m = p->s->m_is;
    for (int i = 0; i < GEMM_M_KNOWN && m[i]; i++)
        if (m[i] % rows & t) return true;
    return !m[0];
}

/* The rows that full tiles leave over, by powers of two: at most four smaller tiles. */
static void rest_rows(const Panel *p, int rows, LLVMValueRef done, LLVMValueRef rest) {
    Emit *e = p->e;
    for (int t = 8; t; t /= 2) {
        if (t >= rows || !may_be_left(p, rows, t)) continue;
        LLVMValueRef bit = LLVMBuildAnd(e->b, rest, emit_i64(e, t), "");
        LLVMValueRef above = LLVMBuildAnd(e->b, rest, emit_i64(e, -2 * t), "");
        LLVMValueRef any = emit_icmp(e, LLVMIntNE, bit, emit_i64(e, 0));
        If s;
        if_begin(e, &s, any);
        row_emit(p, t, emit_add(e, done, above));
        if_end(e, &s);
    }
}

static void panel_emit(const Panel *p) {
    Emit *e = p->e;
    int rows = max_rows(p);
    LLVMValueRef per = emit_i64(e, rows), zero = emit_i64(e, 0);
    LLVMValueRef full = emit_mul(e, emit_div(e, p->m, per), per);
    LLVMValueRef rest = emit_sub(e, p->m, full);
    bool known = LLVMIsAConstantInt(p->m);
    if (!known || LLVMConstIntGetSExtValue(full) > 0) {
        Loop l;
        loop_begin(e, &l, zero, full, rows, 0, NULL);
        row_emit(p, rows, l.i);
        loop_end(e, &l, NULL);
    }
    if (!known) {
        rest_rows(p, rows, full, rest);
    } else if (LLVMConstIntGetSExtValue(rest) > 0) {
        row_emit(p, (int)LLVMConstIntGetSExtValue(rest), full);
    }
}

static void columns_known(const Panel *whole, int64_t n) {
    Emit *e = whole->e;
    int wide = max_vecs(e);
    int64_t vecs = divided_up(n, e->vl), full = vecs / wide, rest = vecs % wide;
    LLVMValueRef mask = n % e->vl ? emit_tail_mask(e, emit_i64(e, n % e->vl)) : NULL;
    bool even = full && rest && rest <= wide / 2 && wide > 2; /* 4 + 1 becomes 3 + 2 */
    if (mask && !rest) rest = wide;
    if (even) rest += wide;
    full = (vecs - rest) / wide;
    int64_t j = full * wide * e->vl;
    if (full && whole->s->b_col) {
        Panel p = panel_at(whole, emit_i64(e, 0), wide, NULL);
        p.strips = full;
        panel_emit(&p);
    } else if (full) {
        Loop l;
        loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, j), wide * e->vl, 0, NULL);
        Panel p = panel_at(whole, l.i, wide, NULL);
        panel_emit(&p);
        loop_end(e, &l, NULL);
    }
    if (rest > wide) {
        int first = (int)(rest + 1) / 2;
        Panel p = panel_at(whole, emit_i64(e, j), first, NULL);
        panel_emit(&p);
        j += first * e->vl;
        rest -= first;
    }
    if (rest) {
        Panel p = panel_at(whole, emit_i64(e, j), (int)rest, mask);
        panel_emit(&p);
    }
}

static void columns_unknown(const Panel *whole, LLVMValueRef n) {
    Emit *e = whole->e;
    int wide = max_vecs(e) * e->vl;
    LLVMValueRef per = emit_i64(e, wide);
    LLVMValueRef full = emit_mul(e, emit_div(e, n, per), per);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), full, wide, 0, NULL);
    Panel p = panel_at(whole, l.i, max_vecs(e), NULL);
    panel_emit(&p);
    loop_end(e, &l, NULL);
    loop_begin(e, &l, full, n, e->vl, 0, NULL);
    p = panel_at(whole, l.i, 1, emit_tail_mask(e, emit_sub(e, n, l.i)));
    panel_emit(&p);
    loop_end(e, &l, NULL);
}

void gemm_emit(Emit *e, const GemmStrides *s, GemmInit init, const GemmData *data,
               const GemmSize *size) {
    check((init == GEMM_SCALE) == (data->scale != NULL));
    if (s->pairs && e->tiles != TILES_NONE) {
        gemm_tiles_emit(e, s, init, data, size);
        return;
    }
    Panel whole = {.e = e,
                   .s = s,
                   .init = init,
                   .data = *data,
                   .j = emit_i64(e, 0),
                   .m = size->m,
                   .k = size->k};
    bool known = LLVMIsAConstantInt(size->n);
    check(!s->b_col ||
          (known && LLVMConstIntGetSExtValue(size->n) % gemm_tile_columns(e) == 0));
    if (known) {
        columns_known(&whole, LLVMConstIntGetSExtValue(size->n));
    } else {
        columns_unknown(&whole, size->n);
    }
}
