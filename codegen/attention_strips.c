/* attention_strips.c - attention forward strip by strip: while softmax of 16 queries runs, tile
 * registers have the scores of the next 16 and the values of the 16 before. */
#include "codegen/attention_forward.h"
#include "codegen/attention_pack.h"
#include "codegen/attention_weave.h"
#include "codegen/vmath.h"

enum { WORK, K, V, BLOCKS, AHEAD, J0, K_AT, ROWS, FIRST }; /* parameters of name.strips */
enum { SUMS = 4 };                                         /* chains of additions */

typedef struct Strip {
    const Attn *a;
    LLVMValueRef work, top, sum[SUMS];
    ForwardScratch x;
} Strip;

static LLVMValueRef in_strip(const Strip *x, int64_t at) {
    return emit_at(x->a->e, x->a->e->f32, x->work, at);
}

static Strip strip_of(const Attn *a, LLVMValueRef n) {
    Emit *e = a->e;
    Strip x = {.a = a, .x = attn_forward_scratch(a)};
    x.work = attn_f32(a, emit_param(e, WORK), emit_mul(e, n, emit_i64(e, x.x.strip)));
    return x;
}

static WeaveProduct scores_of(const Attn *a, LLVMValueRef block, LLVMValueRef n) {
    Emit *e = a->e;
    Strip x = strip_of(a, n);
    LLVMValueRef tiles = emit_mul(e, block, emit_i64(e, a->bk * a->words));
    return (WeaveProduct){.a = attn_f32(a, emit_param(e, K), tiles),
                          .b = in_strip(&x, x.x.packed),
                          .c = in_strip(&x, x.x.s),
                          .rows = a->bk,
                          .pairs = a->words};
}

static WeaveProduct values_of(const Attn *a, LLVMValueRef block, LLVMValueRef n) {
    Emit *e = a->e;
    Strip x = strip_of(a, n);
    LLVMValueRef tiles = emit_mul(e, block, emit_i64(e, attn_tiled_words(&a->s)));
    return (WeaveProduct){.a = attn_f32(a, emit_param(e, V), tiles),
                          .b = in_strip(&x, x.x.p),
                          .c = in_strip(&x, x.x.out),
                          .rows = a->s.dim,
                          .pairs = a->bk / 2,
                          .adds = true};
}

/* Of the scores of a strip and a block of keys. */
static void masks(const Strip *x, const StripAt *at) {
    const Attn *a = x->a;
    Emit *e = a->e;
    LLVMValueRef zero = emit_i64(e, 0), keys = emit_i64(e, a->bk);
    LLVMValueRef lane = emit_mul(e, at->strip, emit_i64(e, a->bq));
    LLVMValueRef j0 = emit_plus(e, emit_param(e, J0), at->block, a->bk);
    LLVMValueRef ahead = emit_sub(e, emit_add(e, emit_param(e, AHEAD), j0), lane);
    LLVMValueRef rows = emit_imax(e, emit_sub(e, emit_param(e, ROWS), lane), zero);
    AttnQueries q = {NULL, rows, emit_param(e, K_AT)};
    if (a->s.within) q.first = emit_gep(e, e->i32, emit_param(e, FIRST), lane);
    attn_block_masks(a, in_strip(x, x->x.s), keys, ahead, j0, &q);
}

static LLVMValueRef largest(const Strip *x) {
    Emit *e = x->a->e;
    LLVMValueRef top[SUMS];
    for (int key = 0; key < x->a->bk; key++) {
        LLVMValueRef from = in_strip(x, x->x.s + key * x->a->bq);
        LLVMValueRef score = emit_load(e, e->vf32, from, NULL, 4);
        const int i = key % SUMS;
        top[i] = key < SUMS ? score : emit_fmax(e, score, top[i]);
    }
    for (int i = 1; i < SUMS; i++) top[0] = emit_fmax(e, top[0], top[i]);
    return top[0];
}

/* What a larger maximum does to older sums. */
static void decay(const Strip *x, LLVMValueRef old, LLVMValueRef any) {
    const Attn *a = x->a;
    Emit *e = a->e;
    If f;
    if_begin(e, &f, any);
    LLVMValueRef factor = vmath_exp2_fast(e, emit_fsub(e, old, x->top));
    LLVMValueRef sum = in_strip(x, x->x.sum), out = in_strip(x, x->x.out);
    emit_store(e, x->top, in_strip(x, x->x.max), NULL, 4);
    LLVMValueRef less = emit_fmul(e, emit_load(e, e->vf32, sum, NULL, 4), factor);
    emit_store(e, less, sum, NULL, 4);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, a->s.dim * a->bq), a->bq, 0, NULL);
    LLVMValueRef at = attn_f32(a, out, l.i);
    less = emit_fmul(e, emit_load(e, e->vf32, at, NULL, 4), factor);
    emit_store(e, less, at, NULL, 4);
    loop_end(e, &l, NULL);
    if_end(e, &f);
}

static void two_keys(void *ctx, int i) {
    Strip *x = ctx;
    LLVMValueRef from = in_strip(x, x->x.s + 2 * i * x->a->bq);
    LLVMValueRef to = in_strip(x, x->x.p + i * x->a->bq);
    attn_pair_of_keys(x->a, from, to, x->top, &x->sum[2 * i % SUMS]);
}

static void strip(void *ctx, const StripAt *at) {
    const Attn *a = ctx;
    Emit *e = a->e;
    Strip x = strip_of(a, at->strip);
    LLVMValueRef sum = in_strip(&x, x.x.sum), any = NULL;
    LLVMValueRef old = emit_load(e, e->vf32, in_strip(&x, x.x.max), NULL, 4);
    masks(&x, at);
    x.top = attn_maximum(a, old, largest(&x), &any);
    decay(&x, old, any);
    x.sum[0] = emit_load(e, e->vf32, sum, NULL, 4);
    for (int i = 1; i < SUMS; i++) x.sum[i] = LLVMConstNull(e->vf32);
    WeaveProduct product[] = {scores_of(a, at->next_block, at->next_strip),
                              values_of(a, at->last_block, at->last_strip)};
    attn_weave(a, product, at->first ? 1 : 2, (int)a->bk / 2, two_keys, &x);
    for (int i = 1; i < SUMS; i++) x.sum[0] = emit_fadd(e, x.sum[0], x.sum[i]);
    emit_store(e, x.sum[0], sum, NULL, 4);
}

void attn_strips_emit(const Attn *a) {
    Emit *e = a->e;
    attn_func(a, "strips", "pppiiiiip");
    LLVMValueRef zero = emit_i64(e, 0), blocks = emit_param(e, BLOCKS);
    WeaveProduct scores = scores_of(a, zero, zero);
    attn_weave(a, &scores, 1, 0, NULL, NULL);
    attn_walk_strips(a, blocks, strip, (void *)(uintptr_t)a);
    LLVMValueRef last = emit_sub(e, blocks, emit_i64(e, 1));
    WeaveProduct values = values_of(a, last, emit_i64(e, a->strips - 1));
    attn_weave(a, &values, 1, 0, NULL, NULL);
    emit_ret(e, NULL);
}
