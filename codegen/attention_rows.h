/* attention_rows.h - rows of heads in memory, as what packs them reads them; for attention_pack.c and
 * attention_tiles.c. */
#ifndef STATOR_ATTENTION_ROWS_H
#define STATOR_ATTENTION_ROWS_H
#include "codegen/attention_parts.h"

/* Words w.. of a row of a head, `width` of them: f32, or two numbers of bf16 each, of which the last
 * of an odd head is 0. */
LLVMValueRef attn_load_words(const Attn *a, LLVMValueRef row, LLVMValueRef w, int width);
/* The same as tiles have them, of each part; f32 times `scale`, or NULL. */
void attn_tile_words(const Attn *a, LLVMValueRef row, LLVMValueRef w, int width,
                     LLVMValueRef scale, LLVMValueRef *word);
/* vl numbers of a row: bf16 for pairs as it is in memory, else f32. */
LLVMValueRef attn_load_row(const Attn *a, LLVMValueRef at, LLVMValueRef mask);
/* Two vectors of them, of neighbouring rows, to pairs, of each part. */
void attn_pair_words(const Attn *a, const LLVMValueRef *x, LLVMValueRef *word);
/* Pairs of rows r and r + 1 of parameter 0, columns c..; r + 1 is 0 from row parameter 2 on. */
void attn_pair_of_rows(const Attn *a, LLVMValueRef r, LLVMValueRef c, LLVMValueRef mask,
                       int64_t stride, LLVMValueRef *word);

/* What is done with `width` columns from c on of row r; `span` for every step-th row of [from, to), of
 * q (from_q) or of k and v, and all vectors of n columns. */
typedef void (*AttnSpan)(const Attn *a, LLVMValueRef r, LLVMValueRef c, int width,
                         int64_t stride);
void attn_spans(const Attn *a, bool from_q, LLVMValueRef from, LLVMValueRef to, int step,
                int64_t n, AttnSpan span);
LLVMValueRef attn_width_mask(const Attn *a, int width); /* NULL for all lanes */
/* &ptr[r][c] of rows that are `stride` elements apart. */
LLVMValueRef attn_memory_at(const Attn *a, LLVMValueRef ptr, LLVMValueRef r,
                            LLVMValueRef c, int64_t stride);
/* Vectors of zeros at floats [from, to) of dst. */
void attn_zeros(const Attn *a, LLVMValueRef dst, LLVMValueRef from, LLVMValueRef to);

#endif
