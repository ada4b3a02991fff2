/* attention_weave.h - products by tile registers with other work between their instructions,
 * so that the unit that multiplies and those of vectors run at the same time; not for others than
 * attention. */
#ifndef STATOR_ATTENTION_WEAVE_H
#define STATOR_ATTENTION_WEAVE_H
#include "codegen/attention_parts.h"

/* Lanes of queries that are worked on at a time, a strip of a block. */
enum { ATTN_STRIP = 16 };

/* C[rows][16] = A B, or += (adds), of f32 from pairs of bf16, or of parts of f32. A is in tiles as
 * gemm.h has them, B and C are strips. rows is a multiple of 32, pairs one of 16. */
typedef struct WeaveProduct {
    LLVMValueRef a, b, c;
    int64_t rows, pairs;
    bool adds;
} WeaveProduct;

/* Emits n products, one after the other, and between their instructions unit(ctx, i) for each i
 * below `units`, in order, as evenly as it goes. No product may need what a unit makes, nor
 * the other way round. */
typedef void (*WeaveUnit)(void *ctx, int i);
void attn_weave(const Attn *a, const WeaveProduct *product, int n, int units,
                WeaveUnit unit, void *ctx);

/* Cuts blocks of so many queries (a multiple of two strips), and of `keys` keys, into strips, if that
 * can be: bq and bk are those of a strip then. */
void attn_cut_strips(Attn *a, int64_t queries, int64_t keys);
/* Queries of strip n of a block that has so many: its first one, how many it has, maybe 0; a strip
 * beyond the last query has that one to read, `some` (at least 1) from `from` on. */
typedef struct StripRows {
    LLVMValueRef lane, rows, from, some;
} StripRows;
StripRows attn_strip_rows(const Attn *a, LLVMValueRef n, LLVMValueRef rows);

/* Where strip n is in scratch of `floats` floats a strip. turn: what only lives until the next
 * strip but one is in the first two strips' parts, in turns, so that it stays in the first
 * cache. attn_in_strip, attn_in_turn: so many floats from there on. */
typedef struct StripPlace {
    const Attn *a;
    LLVMValueRef work, turn;
} StripPlace;
StripPlace attn_strip_place(const Attn *a, LLVMValueRef scratch, int64_t floats,
                            LLVMValueRef n, LLVMValueRef turn);
LLVMValueRef attn_in_strip(const StripPlace *x, int64_t at);
LLVMValueRef attn_in_turn(const StripPlace *x, int64_t at);

/* Strip `strip` of a block of queries and block `block` of keys, i64; the pair after it (at the end
 * any one), and the one before it, but at the first one. turn: 0, 1, 0 and so on, for what only
 * lives until the next strip but one; other: 1 - turn. skipped: the first strips of the block of
 * keys, which see none of it. */
typedef struct StripAt {
    LLVMValueRef block, strip, next_block, next_strip, last_block, last_strip;
    LLVMValueRef turn, other, skipped;
    bool first;
} StripAt;
/* What attn_block_masks needs of a block of queries, for position 0 of the keys; with dropout the
 * number of its first probability, and where rng is. */
typedef struct StripMasks {
    LLVMValueRef ahead, number, rng;
    AttnQueries queries;
} StripMasks;
/* rng, first: slots. */
StripMasks attn_strip_masks_of(const Attn *a, LLVMValueRef ctx, int rng, int first,
                               const AttnOrigin *origin, const AttnPlace *p);
/* Where pair i of keys begins in a strip of pairs, in words; and two vectors of f32 to pairs there,
 * rounded for bf16, else each part. */
int64_t attn_pair_at(const Attn *a, int64_t i);
void attn_store_pairs(const Attn *a, const LLVMValueRef *x, LLVMValueRef to);
/* With dropout: room[bk] of i16 gets the lanes of a strip that it keeps, for each key of a block;
 * attn_strip_kept: those of one key from there, i1, or NULL without dropout. _emit: the function
 * that is called for it. */
void attn_strip_keep(const Attn *a, const StripMasks *m, const StripAt *at,
                     LLVMValueRef room);
LLVMValueRef attn_strip_kept(const Attn *a, LLVMValueRef room, int64_t key);
void attn_strip_keep_emit(const Attn *a);
/* Masks scores of a strip and a block of keys, also of keys that the block lacks. */
void attn_strip_masks(const Attn *a, LLVMValueRef s, const StripAt *at,
                      const StripMasks *m);
/* Emits all strips of the blocks of keys in a range of attn_range, block by block, but those that see
 * no key of a block for being before it, as far as others do: begin before the first one, which is its next, each, and end
 * behind the last. Nothing runs where the range is empty. */
typedef struct StripWalk {
    void (*begin)(void *ctx, const StripAt *at);
    void (*each)(void *ctx, const StripAt *at);
    void (*end)(void *ctx, const StripAt *at);
    void *ctx;
} StripWalk;
void attn_walk_strips(const Attn *a, const AttnRange *keys, const StripMasks *m,
                      const StripWalk *w);

#endif
