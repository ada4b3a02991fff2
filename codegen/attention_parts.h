/* attention_parts.h - what attention's forward and backward share; not for others. */
#ifndef STATOR_ATTENTION_PARTS_H
#define STATOR_ATTENTION_PARTS_H
#include "codegen/attention.h"
#include "codegen/gemm.h"
#include "codegen/gemm_tiles.h"

/* Floats of the workspace of the backward part. */
int64_t attn_grad_floats(const AttnShape *s, int threads, int vl);

/* A block of scores is S[keys][queries]: up to bk keys by bq queries, rows of bq values. A block of
 * queries has one, or strips side by side (attention_weave.h), each with its part of everything.
 * q_row and kv_row are the distances of neighbouring positions in q and in k, v. Lanes
 * of queries beyond the last one repeat it; nothing of theirs is stored. */
typedef struct Attn {
    Emit *e;
    const char *name;
    AttnShape s;
    int64_t bq, bk, strips, q_blocks, q_row, kv_row;
    Part part;          /* what the probabilities are a part of */
    int64_t next_query; /* from the number of a probability to that of the next query */
    bool narrow;        /* products are of pairs of bf16, else of f32 */
    bool tiles;         /* which tile registers multiply; f32 only in strips */
    int tile_parts;     /* a number in tiles is the sum of so many of bf16 */
    bool rows_in_place; /* those of keys and values, by tile registers */
    bool copies;        /* products of f32 by fma read copies of heads, or of blocks */
    int64_t words;      /* of 4 bytes in a packed row: dim of f32, or pairs of a part */
    double times;  /* factor of a block's scores of bf16, for powers of two; else 1 */
    int64_t parts; /* of the keys; see attn_key_parts */
    double least;  /* multiply-adds below which it stays on one thread */
} Attn;

/* What the shape is cut into, for lanes of `e`; functions that are emitted have `name` in theirs.
 * Dies for a shape that attention_too_large refuses. */
Attn attn_of(Emit *e, const char *name, const AttnShape *s);
/* Queries of a block: a multiple of the lanes. */
int64_t attn_block_queries(const AttnShape *s, int vl);
/* bf16 becomes f32 where it is copied to scratch, unless tile registers or dots (emit_has_dots)
 * multiply it. */
void attn_widen(Attn *a);
/* Words of 4 bytes of a packed row of keys or values: one of f32, or (narrow) two numbers of bf16. */
int64_t attn_words(const AttnShape *s, bool narrow);
/* Has multiplying f32 by fma more of copies of one of so many heads, in which rows are neighbours, than
 * it costs to make them once for all queries, at least `queries`? Rows in memory that are, say, 3072
 * bytes apart meet in a quarter of the first cache. Of narrow types there must be copies. */
bool attn_copies_pay(const AttnShape *s, int64_t heads, int64_t queries);
/* Numbers of a head as tiles have them, in rows as well as in pairs; and of how many of bf16 a
 * number there is the sum (emit_split_bf16): 1, or BF16_PARTS of what is f32 there. */
int64_t attn_tiled_dim(const AttnShape *s);
int attn_tile_parts(const AttnShape *s);
enum { ATTN_BLOCK_KEYS = 64 };

/* Starts the internal function name.part; one letter of `sig` per parameter: p pointer,
 * i i64, f f32. attn_call calls it. */
void attn_func(const Attn *a, const char *part, const char *sig);
void attn_call(const Attn *a, const char *part, const LLVMValueRef *args, int n);
#define ATTN_CALL(a, part, ...)                                                          \
    attn_call(a, part, (LLVMValueRef[]){__VA_ARGS__},                                    \
              (int)(sizeof((LLVMValueRef[]){__VA_ARGS__}) / sizeof(LLVMValueRef)))
/* void name(n pointers): stores them in an array and runs name.BODY of each phase over its
 * items by rt_parallel_balanced, one phase after the other. emit_slot reads pointer i of that
 * array, in a body. */
typedef struct AttnPhase {
    const char *body;
    int64_t items;
} AttnPhase;
LLVMValueRef attn_entry(const Attn *a, int n, const AttnPhase *phase, int phases);
/* &ptr[index] of f32, index a run-time i64. */
LLVMValueRef attn_f32(const Attn *a, LLVMValueRef ptr, LLVMValueRef index);

/* &ptr[index] of q, k, v, o or their gradients, and vl values there, as f32. */
LLVMValueRef attn_element(const Attn *a, LLVMValueRef ptr, LLVMValueRef index);
/* The same of the tensor in a slot of the context. */
LLVMValueRef attn_tensor(const Attn *a, LLVMValueRef ctx, int64_t slot,
                         LLVMValueRef index);
LLVMValueRef attn_load(const Attn *a, LLVMValueRef ptr, LLVMValueRef mask);
void attn_store(const Attn *a, LLVMValueRef value, LLVMValueRef ptr, LLVMValueRef mask);

/* Words from key to key as products find keys and values. */
int64_t attn_key_row(const Attn *a);
/* name.PART(x, packed, s, keys): S = x[keys][words] packed[words][bq]. With bf16 x is in
 * scratch, unless rows_in_place, and S lacks a->times; with f32 the packed factor has been
 * multiplied by scale already. */
void attn_scores_emit(const Attn *a, const char *part);
/* A vector of a block's scores times what they still lack; and x less than that. */
LLVMValueRef attn_times(const Attn *a, LLVMValueRef score);
LLVMValueRef attn_times_less(const Attn *a, LLVMValueRef score, LLVMValueRef x);
LLVMValueRef attn_score_of_none(const Attn *a);        /* that becomes -inf */
LLVMValueRef attn_exp2(const Attn *a, LLVMValueRef x); /* a probability, for x <= 0 */
/* Starts name.part(s, keys, ...) and a loop over the rows of S, one of which it gives. */
LLVMValueRef attn_rows_begin(const Attn *a, const char *part, const char *sig, Loop *l);
/* Lanes of queries l.. that dropout keeps, for the probability number `index` (i64) of
 * the first lane; rng is read through the pointer. */
LLVMValueRef attn_keep(const Attn *a, LLVMValueRef rng, LLVMValueRef index);

/* Positions of the first query and the first key, i64. */
typedef struct AttnOrigin {
    LLVMValueRef q, k;
} AttnOrigin;
/* Of sequence b, read through the pointers in two slots; 0 when nothing needs positions. */
AttnOrigin attn_origin(const Attn *a, LLVMValueRef ctx, int q_slot, int k_slot,
                       LLVMValueRef b);
/* A block of queries of one head: the sequence, the head, its first query and how many
 * there are; the row of the first in lse, and elements in q and o, k and v. */
typedef struct AttnPlace {
    LLVMValueRef b, h, i0, rows, row, q_at, kv_at;
} AttnPlace;
/* Without kv_at: of the element where keys of a sequence and a kv head begin. */
AttnPlace attn_block_place(const Attn *a, LLVMValueRef b, LLVMValueRef h,
                           LLVMValueRef block);
LLVMValueRef attn_kv_at(const Attn *a, LLVMValueRef b, LLVMValueRef kv_head);
/* Number in the step of the probability of key 0 for the first query of a place. */
LLVMValueRef attn_number(const Attn *a, LLVMValueRef rng, const AttnOrigin *at,
                         const AttnPlace *p);
/* Keys [from, to) that the block of queries from i0 reads, from the start of a block of
 * keys on; none when from >= to. */
typedef struct AttnRange {
    LLVMValueRef from, to;
} AttnRange;
AttnRange attn_range(const Attn *a, const AttnOrigin *at, LLVMValueRef i0,
                     LLVMValueRef rows);
/* By how many positions key 0 is ahead of query i0, for attn_block_masks; may be
 * negative. */
LLVMValueRef attn_ahead(const Attn *a, const AttnOrigin *at, LLVMValueRef i0);
/* Of those that the shape needs:
 *   name.mask(s, keys, ahead): row r, lane l is set to what becomes -inf where l < ahead + r;
 *   name.window(s, keys, ahead): where l >= ahead + r + window;
 *   name.within(s, keys, first, at, rows): where position at + r is before first[l]. */
void attn_masks_emit(const Attn *a);
/* A block of queries within its sequence: the positions of their first keys (NULL unless
 * `within`), how many queries there are, and the position of key 0. */
typedef struct AttnQueries {
    LLVMValueRef first, rows, k_at;
} AttnQueries;
/* Of a place: `first` is &first[b, i0] from slot `slot`, or NULL. */
AttnQueries attn_queries(const Attn *a, LLVMValueRef ctx, int slot, const AttnOrigin *at,
                         const AttnPlace *p);
/* Into how many parts the keys are split so that all threads have work, where there would
 * only be `items` pieces of it; 1 where these are enough, or it is not worth it. */
int64_t attn_key_parts(const AttnShape *s, int64_t items);
bool attn_is_small(const AttnShape *s); /* so that it stays on one thread */
/* name.merge(work, other): adds to the sums of a block of queries at `work` those of other
 * keys. In floats from there: out[dim][bq] and sum[bq], relative to max[bq]. */
void attn_merge_emit(const Attn *a, int64_t out, int64_t max, int64_t sum);
/* name.add(ctx, begin, end, thread): rows of slot `to`, of q_row numbers, are the sums of
 * those of the parts, f32, one after the other from float `at` of slot `work` on. */
void attn_add_emit(const Attn *a, int to, int work, int64_t at);
/* Part `part` of a->parts of the keys of the range, in whole blocks of `block` from its
 * start on. */
AttnRange attn_part(const Attn *a, AttnRange all, int64_t block, LLVMValueRef part);
/* Masks the scores of one block of keys from j0 on, where the block crosses the diagonal, the edge
 * of the window or the start of a document. */
void attn_block_masks(const Attn *a, LLVMValueRef s, LLVMValueRef keys,
                      LLVMValueRef ahead, LLVMValueRef j0, const AttnQueries *q);

#endif
