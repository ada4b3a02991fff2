/* comm_stream.c - walks over the rows of parts. Sums are plain loops for the compiler to
 * vectorise; each element by itself, so their order is the caller's. */
#include "runtime/comm/comm_stream.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* A part, or one piece of it: rows of row_bytes each, at equal distances. */
typedef struct Rows {
    char *base;
    int64_t n, row_bytes, stride_bytes;
    DType dtype;
} Rows;

static int64_t product(int64_t a, int64_t b) {
    uint64_t out;
    check(a >= 0 && b >= 0 && mul_size((uint64_t)a, (uint64_t)b, &out) &&
          out <= INT64_MAX);
    return (int64_t)out;
}

static const struct {
    bool to, cut, join;
} side_info[SIDES] = {
    [SIDE_FROM] = {false, false, false}, [SIDE_FROM_CUT] = {false, true, false},
    [SIDE_TO] = {true, false, false},    [SIDE_TO_CUT] = {true, true, false},
    [SIDE_TO_JOIN] = {true, true, true},
};

static Rows rows_of(const CommStream *s, const CommPart *p, int piece) {
    bool join = side_info[s->side].join;
    int64_t before = join ? p->join_before : p->before;
    int64_t row = (join ? p->join_each * p->join_after : p->each * p->after) *
                  dtype_bytes[p->dtype];
    Rows r = {.base = side_info[s->side].to ? p->to : (char *)(uintptr_t)p->from,
              .dtype = p->dtype};
    if (!side_info[s->side].cut || before == 1) {
        r.n = 1;
        r.row_bytes = before * row;
    } else {
        r.n = before;
        r.row_bytes = row;
        r.stride_bytes = s->members * row;
    }
    if (side_info[s->side].cut) r.base += piece * row;
    return r;
}

static int64_t part_bytes(const CommPart *p) {
    int64_t row = product(product(p->each, p->after), dtype_bytes[p->dtype]);
    return product(p->before, row);
}

CommStream comm_stream_new(Side side, const CommPart *part, int n, int members,
                           bool sliced) {
    CommStream s = {side, part, n, members};
    for (int i = 0; i < n; i++) {
        int64_t bytes = part_bytes(&part[i]);
        product(bytes, members); /* the whole tensor has a size too */
        s.total_bytes += bytes;
        check(s.total_bytes >= 0 && s.total_bytes <= INT64_MAX / 4);
        if (!side_info[side].join) continue;
        int64_t row = product(part[i].join_each, part[i].join_after);
        row = product(row, dtype_bytes[part[i].dtype]);
        check(product(part[i].join_before, row) == bytes);
    }
    if (!sliced) return s;
    int64_t slice = s.total_bytes / members + (s.total_bytes % members != 0);
    s.slice_bytes = align_up(MAX(slice, 1));
    return s;
}

int64_t comm_stream_piece_bytes(const CommStream *s, int piece) {
    if (!s->slice_bytes) return s->total_bytes;
    int64_t left = s->total_bytes - piece * s->slice_bytes;
    return MAX(0, MIN(left, s->slice_bytes));
}

/* ---- walking ---- */

typedef struct Walk {
    const CommStream *s;
    int piece, part;
    Rows rows;
    int64_t row, column; /* the next byte, in rows */
    int64_t left;        /* bytes to go */
} Walk;
typedef struct Run {
    char *at;
    int64_t bytes;
    DType dtype;
} Run;

static Walk walk_start(const CommStream *s, int piece, int64_t offset, int64_t bytes) {
    Walk w = {.s = s, .piece = piece, .left = bytes};
    if (!bytes) return w;
    check(offset >= 0 && bytes > 0 &&
          offset + bytes <= comm_stream_piece_bytes(s, piece));
    offset += piece * s->slice_bytes;
    for (;; w.part++) {
        w.rows = rows_of(s, &s->part[w.part], piece);
        if (offset < w.rows.n * w.rows.row_bytes) break;
        offset -= w.rows.n * w.rows.row_bytes;
    }
    w.row = offset / w.rows.row_bytes;
    w.column = offset % w.rows.row_bytes;
    return w;
}

/* The next stretch; false at the end. */
static bool walk_next(Walk *w, Run *run) {
    if (!w->left) return false;
    while (w->row == w->rows.n || !w->rows.row_bytes) {
        w->rows = rows_of(w->s, &w->s->part[++w->part], w->piece);
        w->row = w->column = 0;
    }
    run->at = w->rows.base + w->row * w->rows.stride_bytes + w->column;
    run->bytes = MIN(w->left, w->rows.row_bytes - w->column);
    run->dtype = w->rows.dtype;
    w->left -= run->bytes;
    w->column += run->bytes;
    if (w->column == w->rows.row_bytes) w->row++, w->column = 0;
    return true;
}

char *comm_stream_pointer(const CommStream *s, int piece, int64_t offset, int64_t bytes) {
    Walk w = walk_start(s, piece, offset, bytes);
    Run run;
    return walk_next(&w, &run) && run.bytes == bytes ? run.at : NULL;
}

void comm_stream_read(const CommStream *s, int piece, int64_t offset, int64_t bytes,
                      void *to) {
    Walk w = walk_start(s, piece, offset, bytes);
    char *out = to;
    for (Run run; walk_next(&w, &run); out += run.bytes) {
        memcpy(out, run.at, (size_t)run.bytes);
    }
}

/* A line that is written in whole this way is not read first. Short rows have other lines too. */
static void copy_past_caches(char *to, const char *from, int64_t bytes) {
    int64_t i = 0;
#ifdef __SSE2__
    enum { LINE = 64, LEAST = 64 * LINE };
    if (bytes >= LEAST) {
        i = -(intptr_t)to & (LINE - 1);
        memcpy(to, from, (size_t)i);
        for (; i + LINE <= bytes; i += LINE)
            for (int j = 0; j < LINE; j += (int)sizeof(__m128i))
                _mm_stream_si128((void *)(to + i + j),
                                 _mm_loadu_si128((const void *)(from + i + j)));
    }
#endif
    memcpy(to + i, from + i, (size_t)(bytes - i));
}

/* Other threads see what was written so only after a fence. */
static void end_past_caches(void) {
#ifdef __SSE2__
    _mm_sfence();
#endif
}

void comm_stream_write(const CommStream *s, int piece, int64_t offset, int64_t bytes,
                       const void *from, bool past_caches) {
    Walk w = walk_start(s, piece, offset, bytes);
    const char *in = from;
    for (Run run; walk_next(&w, &run); in += run.bytes) {
        if (past_caches)
            copy_past_caches(run.at, in, run.bytes);
        else
            memcpy(run.at, in, (size_t)run.bytes);
    }
    if (past_caches) end_past_caches();
}

/* ---- sums ---- */

/* NaN wins over every number. */
static float larger(float a, float b) {
    return a > b || a != a ? a : b;
}

#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* `out` may be `a` or `b`, element for element. */
static void combine_f32(float *out, const float *a, const float *b, int64_t n, bool max) {
    if (max) {
        INDEPENDENT
        for (int64_t i = 0; i < n; i++) out[i] = larger(a[i], b[i]);
    } else {
        INDEPENDENT
        for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i];
    }
}

/* Sums wrap, as those of generated code. */
static void combine_i32(int32_t *out, const int32_t *a, const int32_t *b, int64_t n,
                        bool max) {
    if (max) {
        INDEPENDENT
        for (int64_t i = 0; i < n; i++) out[i] = MAX(a[i], b[i]);
    } else {
        INDEPENDENT
        for (int64_t i = 0; i < n; i++) {
            out[i] = (int32_t)((uint32_t)a[i] + (uint32_t)b[i]);
        }
    }
}

/* Every sum of two is rounded. */
#define COMBINE_NARROW(name, wide, narrow)                                               \
    static void name(uint16_t *out, const uint16_t *a, const uint16_t *b, int64_t n,     \
                     bool max) {                                                         \
        if (max) {                                                                       \
            for (int64_t i = 0; i < n; i++)                                              \
                out[i] = narrow(larger(wide(a[i]), wide(b[i])));                         \
        } else {                                                                         \
            INDEPENDENT for (int64_t i = 0; i < n; i++) out[i] =                         \
                narrow(wide(a[i]) + wide(b[i]));                                         \
        }                                                                                \
    }
COMBINE_NARROW(combine_bf16, bf16_to_f32, f32_to_bf16)
COMBINE_NARROW(combine_f16, f16_to_f32, f32_to_f16)

static void combine(DType dtype, void *out, const void *a, const void *b, int64_t bytes,
                    bool max) {
    int64_t n = bytes / dtype_bytes[dtype];
    check(bytes % dtype_bytes[dtype] == 0);
    switch (dtype) {
    case DT_F32:
        combine_f32(out, a, b, n, max);
        break;
    case DT_I32:
        combine_i32(out, a, b, n, max);
        break;
    case DT_BF16:
        combine_bf16(out, a, b, n, max);
        break;
    default:
        check(dtype == DT_F16);
        combine_f16(out, a, b, n, max);
    }
}

void comm_stream_combine(const CommStream *s, int piece, int64_t offset, int64_t bytes,
                         bool max, const void *first, void *out) {
    Walk w = walk_start(s, piece, offset, bytes);
    const char *a = first;
    char *o = out;
    for (Run run; walk_next(&w, &run); a += run.bytes, o += run.bytes) {
        combine(run.dtype, o, a, run.at, run.bytes, max);
    }
}

void comm_stream_accumulate(const CommStream *s, int piece, int64_t offset, int64_t bytes,
                            bool max, void *out, const void *more) {
    Walk w = walk_start(s, piece, offset, bytes);
    const char *b = more;
    char *o = out;
    for (Run run; walk_next(&w, &run); b += run.bytes, o += run.bytes) {
        combine(run.dtype, o, o, b, run.bytes, max);
    }
}
