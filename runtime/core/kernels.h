/* kernels.h - plain C functions that generated code calls where emitting a loop would
 * gain nothing: moving rows, tables, positions. Sizes count elements unless they say
 * bytes. */
#ifndef STATOR_KERNELS_H
#define STATOR_KERNELS_H
#include <stdint.h>

/* to[i...] = from[i...] over rank dimensions; `to` is contiguous, `stride` are the
 * strides of `from` (0 repeats). Elements of `element_bytes`. */
void rt_spread(char *to, const char *from, int64_t rank, const int64_t *size,
               const int64_t *stride, int64_t element_bytes);
void rt_copy(char *to, const char *from, int64_t bytes);
/* `rows` runs of `run_bytes`, each side with its own distance between runs. */
void rt_copy_runs(char *to, const char *from, int64_t rows, int64_t run_bytes,
                  int64_t to_stride_bytes, int64_t from_stride_bytes);
/* Sum (or, with take_max, maximum) over some dimensions of a contiguous f32 tensor: the
 * first nkept sizes and strides are those of the result, in its order. */
void rt_reduce(float *to, const float *from, int64_t nkept, int64_t ngone,
               const int64_t *size, const int64_t *stride, int64_t take_max);
/* Rows of table[v, row_bytes] by id. An id outside is a row of zeros, and raises EXIT_DATA
 * (fault.h) unless the table is `partial`. */
void rt_embed(char *to, const char *table, const int32_t *ids, int64_t n, int64_t v,
              int64_t row_bytes, int64_t partial);
/* to[v, c] = 0, then to[ids[i]] += dy[i]; in the order of i whatever the threads. Ids
 * outside add nothing. */
void rt_embed_grad(float *to, const int32_t *ids, const float *dy, int64_t n, int64_t v,
                   int64_t c);
/* offset, offset + 1, ... in zigzag order over `zigzag` ranks (0: in order) */
void rt_positions(int32_t *to, const int32_t *offset, int64_t n, int64_t zigzag);
void rt_rng_layer(int32_t *to, const int32_t *rng, const int32_t *layer);
/* cos, sin of (offset + t) * base^(-k / half), as float[t, half, 2] */
void rt_rope_table(float *to, const int32_t *offset, int64_t t, int64_t half,
                   double base);
void rt_rope(float *to, const float *x, const float *table, int64_t batch, int64_t t,
             int64_t heads, int64_t half, double sign);
/* Rows [offset, offset + n) of dimension 1 of cache[batch, rows, row_bytes]; EXIT_DATA when
 * they do not fit. */
void rt_cache_write(char *cache, const char *x, const int32_t *offset, int64_t batch,
                    int64_t rows, int64_t n, int64_t row_bytes);
/* Rows of from_bytes to rows of to_bytes: cut, or filled up with zeros. */
void rt_fit_rows(char *to, const char *from, int64_t rows, int64_t to_bytes,
                 int64_t from_bytes);
/* to[i] = from[i] - *base */
void rt_index_from(int32_t *to, const int32_t *from, const int32_t *base, int64_t n);
/* A copy where coord is 0, zeros elsewhere. */
void rt_on_first(char *to, const char *from, int64_t bytes, int64_t coord);

/* kernels_comm.c: this rank's coordinate on an axis of the mesh. */
int64_t rt_coord(int64_t axis);
/* A collective of comm.h over n parts. shape: for each part before, each, after,
 * join_before, join_each, join_after and the element type; after them a text that says
 * where the op is, ended by a zero. ws begins with n pairs of addresses (from, to);
 * rt_collective_bytes(n) bytes of it are for this call, the staging memory of
 * comm_workspace_bytes follows them. */
enum { RT_PART_NUMBERS = 7, RT_LABEL_BYTES = 160 };
void rt_collective(int64_t kind, int64_t axes, int64_t n, const int64_t *shape, void *ws);
int64_t rt_collective_bytes(int64_t n);
/* The same in two halves; between them the workspace is in use. */
void rt_collective_begin(int64_t kind, int64_t axes, int64_t n, const int64_t *shape,
                         void *ws);
void rt_collective_wait(int64_t n, const void *ws);

/* Messages between stages; see comm.h. `label` is text: where the op is. */
void rt_send(int32_t *ticket, int64_t stage, int64_t message, const void *data,
             int64_t bytes, const int64_t *label);
void rt_sent(const int32_t *ticket, const int64_t *label);
void rt_receive(int64_t stage, int64_t message, void *to, int64_t bytes,
                const int64_t *label);

#endif
