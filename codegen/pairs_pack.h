/* pairs_pack.h - the factors of pairs_matmul.h in the order in which gemm.h reads them; not for
 * others. */
#ifndef STATOR_PAIRS_PACK_H
#define STATOR_PAIRS_PACK_H
#include "codegen/pairs_matmul.h"

enum { PANEL_VECTORS = 4 };

/* What a product is cut into. A packed A is made and used a slab at a time. */
typedef struct Pairs2d {
    Emit *e;
    const PairsMatmul *s;
    const char *name;
    int64_t panel, panels; /* columns of a panel of B; how many there are */
    int64_t strip;         /* columns of a tile, which lie together in a packed panel */
    int64_t b_words;       /* room for so many words of k in one */
    int64_t per_word;      /* numbers of k in a word: 2, or 1 as f32 */
    int parts;             /* 1, or BF16_PARTS: f32 is split into pairs of bf16 */
    int64_t number_bytes;  /* of A and B */
    int64_t words;         /* of k */
    int64_t block_words;   /* of a block, at most */
    bool packs_a, streams; /* streams: whole lines of C go past the caches */
    /* Both into tiles of 16 x 16 words, 0 beyond k; parts of A are two tiles apart. */
    bool tiles;
    int64_t slab_rows, slab_words; /* without packing all of A */
    int64_t a_row;                 /* words from row to row of A, packed or not */
    int64_t rows;                  /* of a block, at most */
    bool adds_up, whole_sums;      /* sums of blocks of k in memory; of all of a slab */
    int64_t a_bytes, all_sums_bytes, sums_bytes, thread_bytes;
} Pairs2d;

enum { SLOT_A, SLOT_B, SLOT_BIAS, SLOT_C, SLOT_WS, POINTERS };
enum {
    SLOT_ROW = POINTERS,
    SLOT_ROWS_END,
    SLOT_WORD,
    SLOT_WORDS_END,
    SLOT_PANEL,
    SLOT_PANELS_END,
    SLOTS
};

LLVMTypeRef pairs_number_type(const Pairs2d *p); /* of A and B */
LLVMValueRef pairs_number(const Pairs2d *p, LLVMValueRef ctx, int i);
void pairs_set_number(const Pairs2d *p, LLVMValueRef ctx, int slot, LLVMValueRef n);
/* Runs the function on all items, alone where that is quicker. */
void pairs_run(const Pairs2d *p, LLVMValueRef ctx, LLVMValueRef fn, LLVMValueRef items);
/* To all caches but the first the share that step n has of strips of `lines` lines, `stride`
 * bytes apart: `share` lines. */
void pairs_fetch_share(Emit *e, LLVMValueRef from, LLVMValueRef n, int64_t share,
                       int64_t lines, int64_t stride);

/* vl words of k from w on of vl rows of A from row i on, to packed rows a_row words apart; `to`
 * is where row i has w. tail: they may reach beyond k, where without tiles nothing is
 * written. */
void pairs_pack_a_tile(const Pairs2d *p, LLVMValueRef a, LLVMValueRef to, LLVMValueRef i,
                       LLVMValueRef w, bool tail);
/* How many items name.pack has for `rows` rows. */
LLVMValueRef pairs_pack_a_items(const Pairs2d *p, LLVMValueRef rows);
/* void name.pack(ctx, begin, end, thread): of the slab in ctx, to the start of the workspace.
 * Rows of A begin there a_row words apart; numbers from k on are 0. */
LLVMValueRef pairs_pack_a_emit(const Pairs2d *p);
/* A panel of B from column j0 and pair w0 of k on, `count` pairs (with room for a multiple of
 * vl): pairs of columns one after the other; of several parts vl pairs, and as many of the next
 * part. Columns from n on are anything, numbers from k on are 0. */
void pairs_pack_b(const Pairs2d *p, LLVMValueRef b, LLVMValueRef to, LLVMValueRef j0,
                  LLVMValueRef w0, LLVMValueRef count);

#endif
