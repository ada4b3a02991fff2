/* kernels.h - the plain C that generated code calls where a loop of its own would gain
 * nothing: moving rows, tables, positions. Sizes count elements unless they say bytes. */
#ifndef STATOR_KERNELS_H
#define STATOR_KERNELS_H
#include <stdint.h>

/* to[i...] = from[i...] over rank dimensions; `to` is contiguous, `stride` are the strides
 * of `from` (0 repeats). Elements of `element_bytes`. */
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
/* Rows of table[v, row_bytes] by id; aborts on an id outside. */
void rt_embed(char *to, const char *table, const int32_t *ids, int64_t n, int64_t v,
              int64_t row_bytes);
/* to[v, c] = 0, then to[ids[i]] += dy[i]; in the order of i whatever the threads. */
void rt_embed_grad(float *to, const int32_t *ids, const float *dy, int64_t n, int64_t v,
                   int64_t c);
void rt_positions(int32_t *to, const int32_t *offset, int64_t n);
void rt_rng_layer(int32_t *to, const int32_t *rng, const int32_t *layer);
/* cos, sin of (offset + t) * base^(-k / half), as float[t, half, 2] */
void rt_rope_table(float *to, const int32_t *offset, int64_t t, int64_t half, double base);
void rt_rope(float *to, const float *x, const float *table, int64_t batch, int64_t t,
             int64_t heads, int64_t half, double sign);
/* Rows [offset, offset + n) of dimension 1 of cache[batch, rows, row_bytes]; aborts when
 * they do not fit. */
void rt_cache_write(char *cache, const char *x, const int32_t *offset, int64_t batch,
                    int64_t rows, int64_t n, int64_t row_bytes);

#endif
