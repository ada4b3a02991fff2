/* attention_pack.h - between rows of heads in memory and blocks in scratch; not for others
 * than attention. In scratch bf16 stands in pairs of 4 bytes: of neighbours in the head
 * where a product sums over it, of neighbouring rows where it sums over these. */
#ifndef STATOR_ATTENTION_PACK_H
#define STATOR_ATTENTION_PACK_H
#include "codegen/attention_parts.h"

/* name.pack(src, dst, rows, scale): dst[words][bq] = transpose of src's rows, the last of
 * them again beyond `rows`; f32 is multiplied by scale, bf16 stays as it is. For tiles f32 becomes
 * parts, of 16 words each the first, then the others. */
void attn_pack_emit(const Attn *a);
/* name.unpack(src, dst, rows, factor): dst's rows = transpose of src[dim][bq], query
 * lanes times factor[bq]. */
void attn_unpack_emit(const Attn *a);
/* name.round_q(src, dst, rows): the same without a factor. */
void attn_turn_emit(const Attn *a);

/* Fetches `rows` rows of a head into the second cache, as they lie in memory, `row` elements
 * apart. */
void attn_fetch(const Attn *a, LLVMValueRef ptr, LLVMValueRef rows, int64_t row);
/* name.PART(ptr, rows): clears `rows` rows of dim f32 values, `stride` apart. */
void attn_clear_emit(const Attn *a, const char *part, int64_t stride);

/* For bf16, f32 in tiles and f32 that is copied. Rows of q (from_q) or of k and v.
 * name.PART(src, dst, rows): dst[rows][words] = src's rows; an odd head gets a 0. */
void attn_rows_emit(const Attn *a, const char *part, bool from_q);
/* name.PART(src, dst, rows): dst[(rows + 1) / 2][dim] = pairs of src's rows 2i, 2i + 1;
 * an odd last row is paired with 0. */
void attn_pairs_emit(const Attn *a, const char *part, bool from_q);
/* name.PART(src, dst, rows): dst = the transpose of src's rows, pairs of them, in tiles of gemm.h
 * (a_block = attn_tiled_block): rows of the head, and 0 beyond the last of src's. For tile
 * registers. */
void attn_tiles_emit(const Attn *a, const char *part, bool from_q);
int64_t attn_tiled_block(const Attn *a);
/* Words of all tiles of a block of so many keys. */
int64_t attn_tiled_words(const AttnShape *s, int64_t keys);
/* Words of the tiles of all blocks of keys before `block`. */
LLVMValueRef attn_tiles_before(const Attn *a, LLVMValueRef block);
/* name.PART(src, dst, rows): the same of src's rows as they are, with zeros beyond the head. */
void attn_row_tiles_emit(const Attn *a, const char *part);
/* name.PART(ptr, floats): zeros, a multiple of vl of them. */
void attn_zeros_emit(const Attn *a, const char *part);
/* For strips (attention_weave.h). name.PART(src, dst, rows): pairs of src's rows, of q, in strips of 16
 * numbers of the head, with zeros for what a block of queries lacks. */
void attn_pair_strips_emit(const Attn *a, const char *part);
/* name.PART(src, dst, rows): dst's rows = src, f32, rounded for bf16, which has strips of 16 numbers
 * of the head, each with the rows of all blocks of keys. */
void attn_round_strips_emit(const Attn *a, const char *part);
/* name.PART(src, dst, rows): dst's rows = src[rows][dim], f32, rounded for bf16. */
void attn_round_emit(const Attn *a, const char *part, bool from_q);

#endif
