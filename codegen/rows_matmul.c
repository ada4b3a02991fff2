/* rows_matmul.c - see rows_matmul.h. B lies in one of two ways: along n (rows_along_n.c), or along
 * k, a column in one piece: then lanes are places of k.
 *     for item (some columns), over the threads:
 *         for each group of them: m * group sums of vl lanes, over all of k
 *         the lanes of each are added up, all sums at once
 * In both B is read in long runs, and what comes next is fetched ahead: that of the next rows
 * lies too far away for the CPU to see it. */
#include "codegen/rows_along_n.h"
#include "codegen/rt_call.h"

enum {
    JOIN_SMALL = 1 << 14, /* sums below which one thread puts them together */
    AHEAD_BYTES = 8192,
};

bool rows_matmul_takes(const RowsMatmul *s) {
    return s->m >= 1 && s->m <= ROWS_MATMUL_MOST && s->n >= 1 && s->k >= 1 &&
           (s->b_n == 1 || s->b_k == 1);
}

int64_t rows_matmul_workspace_bytes(const RowsMatmul *s, int vl) {
    return rows_of(s, vl).bytes;
}

/* vl words of a row of A or a column of B, from place l of k on: numbers, or pairs. */
static LLVMValueRef load_words(const Rows *r, LLVMValueRef row, LLVMValueRef l,
                               bool tail) {
    Emit *e = r->e;
    LLVMValueRef at = emit_gep(e, rows_element(r), row, l);
    LLVMValueRef left = emit_sub(e, emit_i64(e, r->s->k), l);
    if (!r->s->narrow)
        return emit_load(e, e->vf32, at, tail ? emit_tail_mask(e, left) : NULL, 4);
    LLVMTypeRef halves = emit_vec(e->i16, 2 * e->vl);
    LLVMValueRef mask = tail ? emit_halves_mask(e, left) : NULL;
    return LLVMBuildBitCast(e->b, emit_load(e, halves, at, mask, 2), e->vi32, "");
}

typedef struct Group { /* of columns, and the rows of A that meet them */
    LLVMValueRef column[16], a;
    int64_t i0, rows, columns;
} Group;

/* sum[i * columns + c] += A[i][l ..] B[.. l][c]. Each group of rows fetches some of the columns
 * that come next, so that memory is read all the time. */
static void add_words(const Rows *r, const Group *g, LLVMValueRef l, bool tail,
                      LLVMValueRef *sum) {
    Emit *e = r->e;
    bool narrow = r->s->narrow;
    int64_t column_bytes = r->s->b_n * (narrow ? 2 : 4);
    int64_t next =
        MAX(1, divided_up(AHEAD_BYTES, g->columns * column_bytes)) * g->columns;
    int64_t groups = divided_up(r->s->m, r->rows), nth = g->i0 / r->rows;
    LLVMValueRef b[16];
    Pairs pairs[16];
    for (int64_t c = 0; c < g->columns; c++) {
        b[c] = load_words(r, g->column[c], l, tail);
        if (narrow) pairs[c] = emit_pairs(e, b[c]);
        if (tail || c % groups != nth) continue;
        LLVMValueRef at = emit_gep(e, rows_element(r), g->column[c], l);
        rows_fetch(r, emit_at(e, rows_element(r), at, next * r->s->b_n));
    }
    for (int64_t i = 0; i < g->rows; i++) {
        LLVMValueRef row = emit_at(e, rows_element(r), g->a, (g->i0 + i) * r->s->a_m);
        LLVMValueRef x = load_words(r, row, l, tail);
        Pairs p = {0};
        if (narrow) p = emit_pairs(e, x);
        for (int64_t c = 0; c < g->columns; c++) {
            LLVMValueRef *to = &sum[i * g->columns + c];
            *to = narrow ? emit_dot_pairs(e, &p, &pairs[c], *to)
                         : emit_fma(e, x, b[c], *to);
        }
    }
}

/* Lanes to the front, from lane `first` on. */
static LLVMValueRef lanes_from(Emit *e, LLVMValueRef x, int64_t first) {
    LLVMValueRef lane[16];
    if (!first) return x;
    for (int i = 0; i < e->vl; i++) lane[i] = emit_i32(e, (first + i) % e->vl);
    return LLVMBuildShuffleVector(e->b, x, x, LLVMConstVector(lane, (unsigned)e->vl), "");
}

/* C from vectors of sums: as many rows at a time as a transpose takes. */
static void add_lanes(const Rows *r, LLVMValueRef ctx, const Group *g, LLVMValueRef j,
                      const LLVMValueRef *sum) {
    Emit *e = r->e;
    int64_t rows = e->vl / g->columns;
    LLVMValueRef left = emit_sub(e, emit_i64(e, r->s->n), j), x[16];
    LLVMValueRef mask = emit_tail_mask(e, emit_imin(e, left, emit_i64(e, g->columns)));
    for (int64_t i0 = 0; i0 < g->rows; i0 += rows) {
        int64_t n = MIN(rows, g->rows - i0) * g->columns;
        for (int64_t t = 0; t < e->vl; t++)
            x[t] = t < n ? sum[i0 * g->columns + t] : LLVMConstNull(e->vf32);
        LLVMValueRef sums = emit_add_lanes(e, x);
        for (int64_t i = 0; i < n / g->columns; i++)
            rows_write(r, ctx, emit_i64(e, g->i0 + i0 + i), j,
                       lanes_from(e, sums, i * g->columns), mask);
    }
}

static void group(const Rows *r, LLVMValueRef ctx, const Group *g, LLVMValueRef j) {
    const RowsMatmul *s = r->s;
    Emit *e = r->e;
    int64_t step = e->vl * (s->narrow ? 2 : 1), whole = s->k / step * step;
    int n = (int)(g->rows * g->columns);
    LLVMValueRef sum[ROWS_SUMS];
    Loop l;
    for (int t = 0; t < n; t++) sum[t] = LLVMConstNull(e->vf32);
    if (whole) {
        loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, whole), step, n, sum);
        memcpy(sum, l.carry, (size_t)n * sizeof *sum);
        add_words(r, g, l.i, false, sum);
        loop_end(e, &l, sum);
        memcpy(sum, l.carry, (size_t)n * sizeof *sum);
    }
    if (whole < s->k) add_words(r, g, emit_i64(e, whole), true, sum);
    add_lanes(r, ctx, g, j, sum);
}

static LLVMValueRef along_k_emit(const Rows *r) {
    const RowsMatmul *s = r->s;
    Emit *e = r->e;
    LLVMValueRef fn = rows_body(r, "body"), ctx = emit_param(e, 0);
    LLVMValueRef b = rows_slot(r, ctx, SLOT_B), size = emit_i64(e, r->item);
    LLVMValueRef from = emit_mul(e, emit_param(e, 1), size);
    LLVMValueRef to = emit_mul(e, emit_param(e, 2), size);
    to = emit_imin(e, to, emit_i64(e, s->n));
    Loop l;
    loop_begin(e, &l, from, to, r->group, 0, NULL);
    Group g = {.a = rows_slot(r, ctx, SLOT_A), .columns = r->group};
    for (int64_t c = 0; c < r->group; c++) {
        LLVMValueRef j = emit_add(e, l.i, emit_i64(e, c));
        if (s->n % r->group) j = emit_imin(e, j, emit_i64(e, s->n - 1));
        g.column[c] =
            emit_gep(e, rows_element(r), b, emit_mul(e, j, emit_i64(e, s->b_n)));
    }
    for (; g.i0 < s->m; g.i0 += g.rows) {
        g.rows = MIN(s->m - g.i0, r->rows);
        group(r, ctx, &g, l.i);
    }
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
    return fn;
}

static void run_items(const Rows *r, LLVMValueRef ctx, LLVMValueRef fn, const char *part,
                      int64_t items, bool alone) {
    Emit *e = r->e;
    if (!alone) {
        CALL_RT(e, rt_parallel, emit_i64(e, items), fn, ctx);
        return;
    }
    LLVMValueRef args[] = {ctx, emit_i64(e, 0), emit_i64(e, items), emit_i64(e, 0)};
    emit_call(e, arena_printf(e->mem, "%s.%s", r->name, part), args, 4);
}

void rows_matmul_emit(Emit *e, const char *name, const RowsMatmul *s) {
    Rows r = rows_of(s, e->vl);
    r.e = e;
    r.name = name;
    LLVMValueRef body = r.along_n ? rows_along_n_emit(&r) : along_k_emit(&r), last = NULL;
    if (r.parts > 1) last = rows_join_emit(&r);
    LLVMTypeRef params[SLOTS];
    for (int i = 0; i < SLOTS; i++) params[i] = e->ptr;
    emit_func(e, name, e->void_, params, SLOTS, true);
    LLVMValueRef ctx = emit_alloca(e, SLOTS * 8);
    for (int i = 0; i < SLOTS; i++)
        emit_store(e, emit_param(e, i), emit_at(e, e->ptr, ctx, i), NULL, 8);
    if (r.along_n && rows_widen(&r))
        rows_widen_emit(&r, emit_param(e, SLOT_A), emit_param(e, SLOT_WS));
    run_items(&r, ctx, body, "body", r.items, s->threads == 1);
    if (last)
        run_items(&r, ctx, last, "join", rows_join_items(&r),
                  s->threads == 1 || s->m * s->n < JOIN_SMALL);
    emit_ret(e, NULL);
}
