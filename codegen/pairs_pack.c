/* pairs_pack.c - see pairs_pack.h. */
#include "codegen/pairs_pack.h"
#include "codegen/rt_call.h"
#include "codegen/turn_parts.h"

enum { PACK_TILES = 4 };

LLVMTypeRef pairs_number_type(const Pairs2d *p) {
    return p->number_bytes == 4 ? p->e->f32 : p->e->i16;
}

LLVMValueRef pairs_number(const Pairs2d *p, LLVMValueRef ctx, int i) {
    return emit_load(p->e, p->e->i64, emit_at(p->e, p->e->ptr, ctx, i), NULL, 8);
}

void pairs_set_number(const Pairs2d *p, LLVMValueRef ctx, int slot, LLVMValueRef n) {
    emit_store(p->e, n, emit_at(p->e, p->e->ptr, ctx, slot), NULL, 8);
}

void pairs_run(const Pairs2d *p, LLVMValueRef ctx, LLVMValueRef fn, LLVMValueRef items) {
    rt_run(p->e, fn, ctx, items, p->s->threads > 1 ? RUN_BALANCED : RUN_ALONE);
}

void pairs_fetch_share(Emit *e, LLVMValueRef from, LLVMValueRef n, int64_t share,
                       int64_t lines, int64_t stride) {
    int64_t whole = share / lines, parts = divided_up(lines, share);
    LLVMValueRef at = emit_muli(e, n, whole * stride);
    if (!whole) {
        at = emit_muli(e, emit_divi(e, n, parts), stride);
        at = emit_plus(e, at, emit_remi(e, n, parts), share * EMIT_LINE_BYTES);
    }
    at = emit_gep(e, e->i8, from, at);
    for (int64_t x = 0; x < (whole ? whole * lines : share); x++) {
        int64_t byte = x / lines * stride + x % lines * EMIT_LINE_BYTES;
        emit_prefetch(e, emit_at(e, e->i8, at, byte), false, 2);
    }
}

/* Two vectors of f32 to words: themselves, of the first, or pairs of their parts. */
static void words_of_f32(const Pairs2d *p, const LLVMValueRef *x, bool along,
                         LLVMValueRef *word) {
    Emit *e = p->e;
    LLVMValueRef part[2][BF16_PARTS];
    for (int i = 0; i < 2; i++) emit_split_bf16(e, x[i], part[i]);
    for (int q = 0; q < BF16_PARTS; q++)
        word[q] = emit_pair_up_parts(e, part[0][q], part[1][q], along);
}

/* vl numbers as f32. */
static LLVMValueRef numbers_at(const Pairs2d *p, LLVMValueRef at, LLVMValueRef mask) {
    return emit_load_as(p->e, p->s->dt, at, mask);
}

/* The same from number `first` of a row on; those from k on (tail) are 0. */
static LLVMValueRef f32_from(const Pairs2d *p, LLVMValueRef row, LLVMValueRef first,
                             bool tail) {
    Emit *e = p->e;
    LLVMValueRef left = emit_sub(e, emit_i64(e, p->s->k), first);
    LLVMValueRef some = tail ? emit_tail_mask(e, left) : NULL;
    return numbers_at(p, emit_gep(e, pairs_number_type(p), row, first), some);
}

/* vl words of a row of numbers that lie one after the other, from word w on, of each part; numbers
 * from k on are 0. */
static void row_words(const Pairs2d *p, LLVMValueRef row, LLVMValueRef w, bool tail,
                      LLVMValueRef *word) {
    Emit *e = p->e;
    LLVMValueRef first = emit_muli(e, w, p->per_word), mask = NULL;
    if (p->parts > 1 || p->per_word == 1) {
        LLVMValueRef next = emit_addi(e, first, e->vl);
        LLVMValueRef x[2] = {f32_from(p, row, first, tail)};
        if (p->parts > 1) {
            x[1] = f32_from(p, row, next, tail);
            words_of_f32(p, x, true, word);
        } else {
            word[0] = LLVMBuildBitCast(e->b, x[0], e->vi32, "");
        }
        return;
    }
    LLVMTypeRef halves = emit_vec(e->i16, 2 * e->vl);
    if (tail) {
        LLVMValueRef lane[32];
        for (int i = 0; i < 2 * e->vl; i++) lane[i] = emit_i32(e, i);
        LLVMValueRef left = emit_sub(e, emit_i64(e, p->s->k), first);
        left = emit_imax(e, emit_imini(e, left, 2 * e->vl), emit_i64(e, 0));
        left = emit_splat_n(e, LLVMBuildTrunc(e->b, left, e->i32, ""), 2 * e->vl);
        mask =
            emit_icmp(e, LLVMIntSLT, LLVMConstVector(lane, (unsigned)(2 * e->vl)), left);
    }
    LLVMValueRef x = emit_load(e, halves, emit_gep(e, e->i16, row, first), mask, 2);
    word[0] = LLVMBuildBitCast(e->b, x, e->vi32, "");
}

/* vl words of two rows of k, 2w and 2w + 1, or of row w as f32, of each part: of columns from j
 * on. Beyond k rows are 0. */
static void column_words(const Pairs2d *p, LLVMValueRef base, LLVMValueRef w,
                         int64_t row_stride, LLVMValueRef j, LLVMValueRef mask,
                         LLVMValueRef *word) {
    Emit *e = p->e;
    const int width = (int)p->number_bytes;
    LLVMTypeRef number = pairs_number_type(p), numbers = emit_vec(number, e->vl);
    LLVMValueRef first = emit_muli(e, w, p->per_word), x[2];
    if (p->per_word == 1) {
        LLVMValueRef at = emit_gep(e, number, base, emit_plus(e, j, w, row_stride));
        word[0] = LLVMBuildBitCast(e->b, numbers_at(p, at, mask), e->vi32, "");
        return;
    }
    LLVMValueRef second = emit_addi(e, first, 1), there = NULL;
    if (p->s->k % 2) {
        there = emit_icmp(e, LLVMIntSLT, second, emit_i64(e, p->s->k));
        second = emit_select(e, there, second, first);
    }
    LLVMValueRef row[] = {first, second};
    for (int i = 0; i < 2; i++) {
        LLVMValueRef at = emit_plus(e, j, row[i], row_stride);
        at = emit_gep(e, number, base, at);
        x[i] = p->parts > 1 ? numbers_at(p, at, mask)
                            : emit_load(e, numbers, at, mask, width);
    }
    if (there) x[1] = emit_select(e, there, x[1], LLVMConstNull(LLVMTypeOf(x[1])));
    if (p->parts > 1)
        words_of_f32(p, x, false, word);
    else
        word[0] = emit_pair_up(e, x[0], x[1]);
}

/* Where a packed panel of B has column j and word w: strips of columns, one after the other. */
static LLVMValueRef packed_b(const Pairs2d *p, LLVMValueRef to, LLVMValueRef j,
                             LLVMValueRef w) {
    Emit *e = p->e;
    LLVMValueRef strip = emit_i64(e, p->strip), vl = emit_i64(e, e->vl);
    if (p->parts > 1) /* vl words of each */
        w = emit_plus(e, emit_rem(e, w, vl), emit_div(e, w, vl), p->parts * e->vl);
    LLVMValueRef at = emit_muli(e, emit_div(e, j, strip), p->b_words);
    at = emit_mul(e, emit_add(e, at, w), strip);
    return emit_gep(e, e->f32, to, emit_add(e, at, emit_rem(e, j, strip)));
}

/* vl rows of A or columns of B from i on, words of k from w on; tail: they may reach beyond k. */
typedef struct TileSource {
    const Pairs2d *p;
    LLVMValueRef from, i, w;
    bool of_b, tail;
} TileSource;

/* vl words of row or column t, or of word t of all of them where A lies across, of each part. */
static void tile_words(const TileSource *x, LLVMValueRef t, LLVMValueRef *word) {
    const Pairs2d *p = x->p;
    const PairsMatmul *s = p->s;
    Emit *e = p->e;
    if (x->of_b || s->a_k == 1) {
        LLVMValueRef last = emit_i64(e, (x->of_b ? s->n : s->m) - 1);
        LLVMValueRef n = emit_imin(e, emit_add(e, x->i, t), last);
        n = emit_muli(e, n, x->of_b ? s->b_n : s->a_m);
        row_words(p, emit_gep(e, pairs_number_type(p), x->from, n), x->w, x->tail, word);
        return;
    }
    LLVMValueRef n = emit_add(e, x->w, t), rows = emit_sub(e, emit_i64(e, s->m), x->i);
    LLVMValueRef some = s->m % e->vl ? emit_tail_mask(e, rows) : NULL;
    LLVMValueRef there = emit_icmp(e, LLVMIntSLT, n, emit_i64(e, p->words));
    if (x->tail) n = emit_imini(e, n, p->words - 1);
    column_words(p, x->from, n, s->a_k, x->i, some, word);
    for (int q = 0; q < p->parts && x->tail && p->tiles; q++)
        word[q] = emit_select(e, there, word[q], LLVMConstNull(e->vi32));
}

static LLVMValueRef as_f32(Emit *e, LLVMValueRef words) {
    return LLVMBuildBitCast(e->b, words, e->vf32, "");
}

static void tile_line(const void *x, LLVMValueRef t, LLVMValueRef *word) {
    tile_words(x, t, word);
}

/* A tile of each of several parts, rows `row` words apart, parts `part`. In a loop: code for all rows
 * would take long to compile. */
static void pack_parts(const TileSource *x, LLVMValueRef to, int64_t row, int64_t part) {
    const Pairs2d *p = x->p;
    Emit *e = p->e;
    LLVMValueRef word[BF16_PARTS];
    Loop t;
    loop_begin(e, &t, emit_i64(e, 0), emit_i64(e, e->vl), 1, 0, NULL);
    tile_words(x, t.i, word);
    LLVMValueRef line = emit_gep(e, e->f32, to, emit_muli(e, t.i, row));
    for (int i = 0; i < p->parts; i++)
        emit_store(e, word[i], emit_at(e, e->f32, line, i * part), NULL, 4);
    loop_end(e, &t, NULL);
}

void pairs_pack_a_tile(const Pairs2d *p, LLVMValueRef a, LLVMValueRef to, LLVMValueRef i,
                       LLVMValueRef w, bool tail) {
    Emit *e = p->e;
    const PairsMatmul *s = p->s;
    const TileSource x = {p, a, i, w, false, tail};
    if (p->parts > 1) {
        const int64_t part = 2 * e->vl * e->vl;
        if (s->a_k == 1)
            pack_parts(&x, to, p->a_row, part);
        else
            turn_parts(e, tile_line, &x, p->parts, to, p->a_row, part);
        return;
    }
    LLVMValueRef v[16], word[BF16_PARTS];
    LLVMValueRef left = emit_sub(e, emit_i64(e, p->words), w);
    LLVMValueRef rows = emit_sub(e, emit_i64(e, s->m), i);
    for (int t = 0; t < e->vl; t++) {
        tile_words(&x, emit_i64(e, t), word);
        v[t] = as_f32(e, word[0]);
    }
    if (s->a_k != 1) emit_transpose(e, v);
    for (int t = 0; t < e->vl; t++) {
        LLVMValueRef row = emit_i64(e, t), mask = NULL;
        LLVMValueRef there = emit_icmp(e, LLVMIntSLT, row, rows);
        LLVMValueRef n =
            emit_select(e, there, tail ? left : emit_i64(e, e->vl), emit_i64(e, 0));
        if (!p->tiles && (tail || s->m % e->vl)) mask = emit_tail_mask(e, n);
        emit_store(e, v[t], emit_at(e, e->f32, to, t * p->a_row), mask, 4);
    }
}

/* The lines of A that are read after those of word w of rows i and on: rows of k far apart, of
 * which no cache guesses the next. */
static void fetch_a(const Pairs2d *p, LLVMValueRef a, LLVMValueRef i, LLVMValueRef w,
                    LLVMValueRef first, LLVMValueRef end) {
    Emit *e = p->e;
    const int64_t row = p->number_bytes * p->s->a_k, item = PACK_TILES * e->vl;
    int64_t bytes =
        p->number_bytes * item + (row % EMIT_LINE_BYTES ? EMIT_LINE_BYTES : 0);
    LLVMValueRef next = emit_addi(e, w, e->vl);
    LLVMValueRef more = emit_icmp(e, LLVMIntSLT, next, end);
    next = emit_select(e, more, next, first);
    i = emit_select(e, more, i, emit_addi(e, i, item));
    LLVMValueRef at = emit_plus(e, i, next, p->per_word * p->s->a_k);
    at = emit_gep(e, pairs_number_type(p), a, at);
    for (int t = 0; t < p->per_word * e->vl; t++)
        for (int64_t byte = 0; byte < bytes; byte += EMIT_LINE_BYTES)
            emit_prefetch(e, emit_at(e, e->i8, at, t * row + byte), false, 2);
}

/* PACK_TILES x vl rows an item. It goes over vl pairs of k at a time where A lies across: there
 * these rows are neighbours in memory, so that whole cache lines are used at once. */
static void pack_a_rows(const Pairs2d *p, LLVMValueRef ctx, LLVMValueRef i,
                        LLVMValueRef end, bool tail) {
    Emit *e = p->e;
    LLVMValueRef a = emit_slot(p->e, ctx, SLOT_A), ws = emit_slot(p->e, ctx, SLOT_WS);
    LLVMValueRef row0 = pairs_number(p, ctx, SLOT_ROW);
    LLVMValueRef w0 = pairs_number(p, ctx, SLOT_WORD);
    LLVMValueRef w1 = pairs_number(p, ctx, SLOT_WORDS_END);
    LLVMValueRef whole = emit_imini(e, w1, p->s->k / p->per_word / e->vl * e->vl);
    LLVMValueRef lo[] = {tail ? whole : w0, i}, hi[] = {tail ? w1 : whole, end};
    int words = p->s->a_k == 1; /* which loop is the words' */
    Loop l[2];
    loop_begin(e, &l[0], lo[words], hi[words], e->vl, 0, NULL);
    if (!words && !tail) fetch_a(p, a, i, l[0].i, w0, whole);
    loop_begin(e, &l[1], lo[!words], hi[!words], e->vl, 0, NULL);
    LLVMValueRef w = l[words].i, row = l[!words].i;
    LLVMValueRef to = emit_plus(e, emit_sub(e, w, w0), emit_sub(e, row, row0), p->a_row);
    pairs_pack_a_tile(p, a, emit_gep(e, e->f32, ws, to), row, w, tail);
    loop_end(e, &l[1], NULL);
    loop_end(e, &l[0], NULL);
}

LLVMValueRef pairs_pack_a_items(const Pairs2d *p, LLVMValueRef rows) {
    Emit *e = p->e;
    const int64_t item = PACK_TILES * e->vl;
    return emit_divi(e, emit_addi(e, rows, item - 1), item);
}

LLVMValueRef pairs_pack_a_emit(const Pairs2d *p) {
    Emit *e = p->e;
    LLVMValueRef fn = emit_items_func(e, p->name, "pack");
    LLVMValueRef ctx = emit_param(e, 0);
    Loop items;
    loop_begin(e, &items, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    const int64_t rows = PACK_TILES * e->vl;
    LLVMValueRef i = emit_plus(e, pairs_number(p, ctx, SLOT_ROW), items.i, rows);
    LLVMValueRef end = emit_addi(e, i, rows);
    end = emit_imin(e, end, pairs_number(p, ctx, SLOT_ROWS_END));
    const int64_t whole = p->s->k / p->per_word;
    for (int tail = 0; tail < 2; tail++)
        if (tail ? whole % e->vl || p->s->k % p->per_word : whole >= e->vl)
            pack_a_rows(p, ctx, i, end, tail);
    loop_end(e, &items, NULL);
    emit_ret(e, NULL);
    return fn;
}

/* Words of a tile from `count` on, which are none of k. */
static void zero_b_rows(const Pairs2d *p, LLVMValueRef to, LLVMValueRef count) {
    Emit *e = p->e;
    Loop words;
    LLVMValueRef vl = emit_i64(e, e->vl), end = emit_addi(e, count, e->vl - 1);
    loop_begin(e, &words, count, emit_mul(e, emit_div(e, end, vl), vl), 1, 0, NULL);
    for (int64_t v = 0; v < p->panel; v += e->vl)
        for (int q = 0; q < p->parts; q++) {
            LLVMValueRef at = packed_b(p, to, emit_i64(e, v), words.i);
            at = emit_at(e, e->f32, at, q * e->vl * p->strip);
            emit_store(e, LLVMConstNull(e->vf32), at, NULL, 4);
        }
    loop_end(e, &words, NULL);
}

/* Columns j to j + vl of the panel at columns j0 of B: words w.. of k, `count` of them, to
 * panel rows. B lies along n. */
static void pack_b_rows(const Pairs2d *p, LLVMValueRef b, LLVMValueRef to,
                        LLVMValueRef j0, LLVMValueRef w0, LLVMValueRef count) {
    Emit *e = p->e;
    Loop words;
    loop_begin(e, &words, emit_i64(e, 0), count, 1, 0, NULL);
    for (int64_t v = 0; v < p->panel; v += e->vl) {
        LLVMValueRef j = emit_addi(e, j0, v), mask = NULL;
        LLVMValueRef left = emit_sub(e, emit_i64(e, p->s->n), j);
        if (p->s->n % p->panel) mask = emit_tail_mask(e, left);
        LLVMValueRef word[BF16_PARTS];
        LLVMValueRef at = packed_b(p, to, emit_i64(e, v), words.i);
        column_words(p, b, emit_add(e, w0, words.i), p->s->b_k, j, mask, word);
        for (int q = 0; q < p->parts; q++)
            emit_store(e, word[q], emit_at(e, e->f32, at, q * e->vl * p->strip), NULL, 4);
    }
    loop_end(e, &words, NULL);
    if (p->tiles && p->words % e->vl) zero_b_rows(p, to, count);
}

static void pack_b_tile(const Pairs2d *p, LLVMValueRef b, LLVMValueRef to, LLVMValueRef j,
                        LLVMValueRef w, bool tail) {
    Emit *e = p->e;
    const TileSource x = {p, b, j, w, true, tail};
    if (p->parts > 1) {
        turn_parts(e, tile_line, &x, p->parts, to, p->strip, e->vl * p->strip);
        return;
    }
    LLVMValueRef v[16], word[BF16_PARTS];
    for (int t = 0; t < e->vl; t++) {
        tile_words(&x, emit_i64(e, t), word);
        v[t] = as_f32(e, word[0]);
    }
    emit_transpose(e, v);
    for (int t = 0; t < e->vl; t++)
        emit_store(e, v[t], emit_at(e, e->f32, to, t * p->strip), NULL, 4);
}

/* Of the columns of B behind those of now the lines that have the same words. */
static void fetch_b_columns(const Pairs2d *p, LLVMValueRef b, LLVMValueRef j,
                            LLVMValueRef w) {
    Emit *e = p->e;
    LLVMValueRef first = emit_muli(e, w, p->per_word);
    j = emit_addi(e, j, e->vl);
    LLVMValueRef at =
        emit_gep(e, pairs_number_type(p), b, emit_plus(e, first, j, p->s->b_n));
    for (int t = 0; t < e->vl; t++)
        for (int64_t byte = 0; byte < p->number_bytes * p->per_word * e->vl;
             byte += EMIT_LINE_BYTES)
            emit_prefetch(e,
                          emit_at(e, e->i8, at, t * p->number_bytes * p->s->b_n + byte),
                          false, 3);
}

/* The same where B lies along k. Room for a multiple of vl words. */
static void pack_b_columns(const Pairs2d *p, LLVMValueRef b, LLVMValueRef to,
                           LLVMValueRef j0, LLVMValueRef w0, LLVMValueRef count) {
    Emit *e = p->e;
    Loop words, vectors;
    LLVMValueRef vl = emit_i64(e, e->vl);
    bool tails = p->s->k % (p->per_word * e->vl) || (!p->tiles && p->b_words % e->vl);
    for (int tail = 0; tail <= tails; tail++) {
        /* the last numbers of k: apart, with a mask */
        LLVMValueRef left = emit_sub(e, emit_i64(e, p->s->k / p->per_word), w0);
        LLVMValueRef whole = emit_mul(e, emit_div(e, emit_imin(e, count, left), vl), vl);
        loop_begin(e, &vectors, emit_i64(e, 0), emit_i64(e, p->panel), e->vl, 0, NULL);
        loop_begin(e, &words, tail ? whole : emit_i64(e, 0), tail ? count : whole, e->vl,
                   0, NULL);
        LLVMValueRef j = emit_add(e, j0, vectors.i), w = emit_add(e, w0, words.i);
        if (!tail) fetch_b_columns(p, b, j, w);
        pack_b_tile(p, b, packed_b(p, to, vectors.i, words.i), j, w, tail);
        loop_end(e, &words, NULL);
        loop_end(e, &vectors, NULL);
    }
}

void pairs_pack_b(const Pairs2d *p, LLVMValueRef b, LLVMValueRef to, LLVMValueRef j0,
                  LLVMValueRef w0, LLVMValueRef count) {
    if (p->s->b_n == 1)
        pack_b_rows(p, b, to, j0, w0, count);
    else
        pack_b_columns(p, b, to, j0, w0, count);
}
