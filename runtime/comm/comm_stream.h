/* comm_stream.h - the bytes of a collective as streams: rows that are scattered in memory
 * are sent as one sequence of bytes. */
#ifndef STATOR_COMM_STREAM_H
#define STATOR_COMM_STREAM_H
#include "runtime/comm/comm.h"

/* Which memory of a part, and how it is cut. */
typedef enum Side {
    SIDE_FROM,     /* all of `from` */
    SIDE_FROM_CUT, /* from[:, piece, :] of [before, n * each, after] */
    SIDE_TO,
    SIDE_TO_CUT,
    SIDE_TO_JOIN, /* to[:, piece, :] of [join_before, n * join_each, join_after] */
    SIDES
} Side;

/* One side of all parts. A piece of it is a stream of comm_stream_piece_bytes: of all_reduce the
 * piece is a range of the whole (the last ones may be shorter), otherwise one of each
 * part. */
typedef struct CommStream {
    Side side;
    const CommPart *part;
    int n, members;
    int64_t slice_bytes; /* all_reduce: of a piece; 0: a piece is one of each part */
    int64_t total_bytes; /* of all of it; without slices, of one piece */
} CommStream;
CommStream comm_stream_new(Side side, const CommPart *part, int n, int members,
                           bool sliced);
/* Bytes of this piece: slices at the end may be short or empty. */
int64_t comm_stream_piece_bytes(const CommStream *s, int piece);

/* Pointer to bytes [offset, offset + bytes) of a piece if they are contiguous; else
 * NULL. */
char *comm_stream_pointer(const CommStream *s, int piece, int64_t offset, int64_t bytes);
/* Copies those bytes from the rows, or into them, past the caches for large results; `from` does
 * not overlap them. */
void comm_stream_read(const CommStream *s, int piece, int64_t offset, int64_t bytes,
                      void *to);
void comm_stream_write(const CommStream *s, int piece, int64_t offset, int64_t bytes,
                       const void *from, bool past_caches);
/* out = sum (or maximum) of `first` and the stream, in this order; 4-byte elements. out
 * may be `first` or the stream's own memory. */
void comm_stream_combine(const CommStream *s, int piece, int64_t offset, int64_t bytes,
                         bool max, const void *first, void *out);
/* out = sum (or maximum) of out and `more`, elements of the stream's type at this
 * offset. */
void comm_stream_accumulate(const CommStream *s, int piece, int64_t offset, int64_t bytes,
                            bool max, void *out, const void *more);

#endif
