/* tiles_parts.h - what the files of tiles_matmul.h share; not for others. */
#ifndef STATOR_TILES_PARTS_H
#define STATOR_TILES_PARTS_H
#include "codegen/gemm.h"
#include "codegen/pairs_pack.h"

enum { TILES_WIDE = 2 * TILE_SIDE }; /* rows and columns that are multiplied at a time */

/* A product, cut: into slabs of columns, rows and k that are packed at a time, and these into items
 * of rows and a group of panels. A is packed in tiles (gemm.h, a_block). */
typedef struct Tiles2d {
    Pairs2d p;
    int64_t slab_panels; /* of columns that are packed at a time */
    int64_t group;       /* panels of an item */
    /* A panel goes over all blocks of k before the next one: rows of A have room for these. */
    bool panels_first;
    bool shares_b; /* it is packed for all rows by all threads, not by each of them */
    bool realigns; /* they begin in lines: the last part of one waits for more columns */
    int64_t sums_row; /* numbers from row to row of a panel's sums */
    int64_t a_block;  /* words of 32 rows of A */
    int64_t b_bytes, own_a_bytes, waiting_bytes;
} Tiles2d;
Tiles2d tiles_of(const PairsMatmul *s);
int64_t tiles_panel_bytes(const Pairs2d *p); /* of B, packed, for a block of k */
int64_t tiles_k_blocks(const Pairs2d *p);    /* of a slab */
bool tiles_group_sums(const Tiles2d *t);     /* of all panels of an item, not of one */
/* So that those of a block are taken before its last step. */
int tiles_rows_a_step(const Tiles2d *t);
/* Of the workspace before what each thread has. */
int64_t tiles_shared_bytes(const Tiles2d *t);

/* A block of rows and a panel of C while its product runs, for a block of k. */
typedef struct TilesBlock {
    const Tiles2d *t;
    LLVMValueRef c, bias;    /* all of them */
    LLVMValueRef i, j;       /* the block's first row and column of C */
    LLVMValueRef rows;       /* how many */
    LLVMValueRef words;      /* of k */
    LLVMValueRef sums;       /* of the block */
    LLVMValueRef more, last; /* blocks of k before? the last? NULL: there is only one */
    LLVMValueRef packed;     /* the panel of B */
    LLVMValueRef next_b;     /* where B has what is packed next; NULL: it is shared */
    LLVMValueRef aligned;    /* do rows of C begin with a line? */
    LLVMValueRef waiting;    /* a line of each row, of the last columns */
    LLVMValueRef first, end; /* columns of C that the item has */
} TilesBlock;

/* For GemmUser; ctx: a TilesBlock. */
void tiles_fetch_step(void *ctx, const GemmBlock *at, LLVMValueRef l);
void tiles_take_row(void *ctx, const GemmBlock *at, const LLVMValueRef *x);

#endif
