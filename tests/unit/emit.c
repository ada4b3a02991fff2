/* emit.c - loops, conditions, masks and reductions as compiled code. */
#include "jitted.h"

static void *one(Emit *e, Target *t, const char *name) {
    return jit_lookup(emit_finish(e, t, NULL, 0), name);
}

/* f(lo, hi): sum and count of lo, lo + 3, ... below hi, as sum * 1000 + count. */
TEST(loop_carries_and_runs_zero_times) {
    Target *t = target_of_lanes(8);
    Emit *e = emit_for(arena_new(), t);
    LLVMTypeRef params[] = {e->i64, e->i64};
    emit_func(e, "f", e->i64, params, 2, false);
    LLVMValueRef init[] = {emit_i64(e, 0), emit_i64(e, 0)};
    Loop l;
    loop_begin(e, &l, emit_param(e, 0), emit_param(e, 1), 3, 2, init);
    LLVMValueRef next[] = {emit_add(e, l.carry[0], l.i),
                           emit_add(e, l.carry[1], emit_i64(e, 1))};
    loop_end(e, &l, next);
    emit_ret(e, emit_add(e, emit_mul(e, l.carry[0], emit_i64(e, 1000)), l.carry[1]));
    int64_t (*f)(int64_t, int64_t) = (int64_t(*)(int64_t, int64_t))one(e, t, "f");
    EXPECT(f(0, 10) == 18004 && f(2, 3) == 2001 && f(5, 5) == 0 && f(7, -7) == 0);
    EXPECT_INT(f(0, 9), 9003);
}

TEST(conditions) {
    Target *t = target_of_lanes(8);
    Emit *e = emit_for(arena_new(), t);
    emit_func(e, "f", e->i64, &e->i64, 1, false);
    LLVMValueRef x = emit_param(e, 0), zero = emit_i64(e, 0), y = emit_alloca(e, 8);
    If outer, inner;
    if_begin(e, &outer, LLVMBuildICmp(e->b, LLVMIntSLT, x, zero, ""));
    emit_store(e, emit_sub(e, zero, x), y, NULL, 8);
    if_else(e, &outer);
    emit_store(e, x, y, NULL, 8);
    if_begin(e, &inner, LLVMBuildICmp(e->b, LLVMIntSGT, x, emit_i64(e, 100), ""));
    emit_store(e, emit_div(e, x, emit_i64(e, 2)), y, NULL, 8);
    if_end(e, &inner);
    if_end(e, &outer);
    emit_ret(e, emit_load(e, e->i64, y, NULL, 8));
    int64_t (*f)(int64_t) = (int64_t(*)(int64_t))one(e, t, "f");
    EXPECT(f(-5) == 5 && f(7) == 7 && f(100) == 100 && f(300) == 150 && f(0) == 0);
}

/* f(x, n, out): the first n of x to out, their sum in out[vl], the largest of all x in
 * out[vl + 1]; the copy goes through room on the stack. */
static void masks_and_reductions(int vl) {
    Target *t = target_of_lanes(vl);
    Emit *e = emit_for(arena_new(), t);
    LLVMTypeRef params[] = {e->ptr, e->i64, e->ptr};
    emit_func(e, "f", e->void_, params, 3, false);
    LLVMValueRef mask = emit_tail_mask(e, emit_param(e, 1)), out = emit_param(e, 2);
    LLVMValueRef room = emit_alloca(e, vl * 4);
    emit_store(e, emit_load(e, e->vf32, emit_param(e, 0), mask, 4), room, NULL, 64);
    LLVMValueRef some = emit_load(e, e->vf32, room, NULL, 64);
    emit_store(e, some, out, mask, 4);
    emit_store(e, emit_reduce_add(e, some), emit_at(e, e->f32, out, vl), NULL, 4);
    LLVMValueRef all = emit_load(e, e->vf32, emit_param(e, 0), NULL, 4);
    emit_store(e, emit_reduce_max(e, all), emit_at(e, e->f32, out, vl + 1), NULL, 4);
    emit_ret(e, NULL);
    typedef void (*F)(const float *, int64_t, float *);
    F f = (F)one(e, t, "f");
    float x[16], out_c[18];
    for (int i = 0; i < 16; i++) x[i] = (float)(i * 7 % 16 + 1);
    for (int64_t n = -2; n <= vl + 2; n++) {
        float sum = 0;
        for (int i = 0; i < 18; i++) out_c[i] = -1;
        f(x, n, out_c);
        for (int i = 0; i < vl; i++) {
            EXPECT(out_c[i] == (i < n ? x[i] : -1));
            sum += i < n ? x[i] : 0;
        }
        EXPECT(out_c[vl] == sum);
        float top = 0;
        for (int i = 0; i < vl; i++) top = fmaxf(top, x[i]);
        EXPECT(out_c[vl + 1] == top);
    }
}

TEST(masks_and_reductions_16) {
    masks_and_reductions(16);
}

TEST(masks_and_reductions_8) {
    masks_and_reductions(8);
}

/* The order of the sum is by halves: 1e8 + 1 loses the 1, 1e8 - 1e8 does not. */
TEST(sums_by_halves) {
    Target *t = target_of_lanes(8);
    Emit *e = emit_for(arena_new(), t);
    emit_func(e, "f", e->f32, &e->ptr, 1, false);
    LLVMValueRef x = emit_load(e, e->vf32, emit_param(e, 0), NULL, 4);
    emit_ret(e, emit_reduce_add(e, x));
    float (*f)(const float *) = (float (*)(const float *))one(e, t, "f");
    const float near[8] = {1e8f, 1, 0, 0, -1e8f, 0, 0, 0};
    const float far[8] = {1e8f, -1e8f, 0, 0, 1, 0, 0, 0};
    EXPECT(f(near) == 1 && f(far) == 0);
}

/* f(x, out): x is vl vectors; out[i] the sum of the lanes of vector i, out[vl + i] the same by
 * emit_reduce_add. All are of sizes that make each order of adding another sum. */
static void sums_of_lanes(int vl) {
    Target *t = target_of_lanes(vl);
    Emit *e = emit_for(arena_new(), t);
    LLVMTypeRef params[] = {e->ptr, e->ptr};
    LLVMValueRef v[16];
    emit_func(e, "f", e->void_, params, 2, false);
    LLVMValueRef out = emit_param(e, 1);
    for (int i = 0; i < vl; i++) {
        LLVMValueRef at = emit_at(e, e->f32, emit_param(e, 0), i * vl);
        v[i] = emit_load(e, e->vf32, at, NULL, 4);
        LLVMValueRef sum = emit_reduce_add(e, v[i]);
        emit_store(e, sum, emit_at(e, e->f32, out, vl + i), NULL, 4);
    }
    emit_store(e, emit_add_lanes(e, v), out, NULL, 4);
    emit_ret(e, NULL);
    void (*f)(const float *, float *) =
        (void (*)(const float *, float *))(uintptr_t)one(e, t, "f");
    float x[256], sum[32];
    for (int i = 0; i < 256; i++)
        x[i] = ldexpf(1 + (float)(i * 37 % 101) / 128, i * 29 % 31 - 15);
    f(x, sum);
    for (int i = 0; i < vl; i++) EXPECT(sum[i] == sum[vl + i]);
}

TEST(sums_of_lanes_16) {
    sums_of_lanes(16);
}

TEST(sums_of_lanes_8) {
    sums_of_lanes(8);
}

static int64_t twice(int64_t x) {
    return 2 * x;
}

TEST(calls_named_functions) {
    Target *t = target_of_lanes(8);
    Emit *e = emit_for(arena_new(), t);
    JitSymbol symbol = {"twice", (void *)twice};
    emit_func(e, "f", e->i64, &e->i64, 1, false);
    LLVMValueRef x = emit_param(e, 0);
    emit_extern(e, "twice", e->i64, &e->i64, 1);
    emit_ret(e, emit_add(e, emit_call(e, "twice", &x, 1), emit_i64(e, 1)));
    int64_t (*f)(int64_t) =
        (int64_t(*)(int64_t))jit_lookup(emit_finish(e, t, &symbol, 1), "f");
    EXPECT_INT(f(20), 41);
}
