/* jit.c - targets, compiling modules, linking objects. */
#include "codegen/jit.h"
#include "../test.h"
#include <llvm-c/IRReader.h>

static const char *const program =
    "@table = internal constant [4 x i32] [i32 2, i32 3, i32 5, i32 7]\n"
    "declare i32 @twice(i32)\n"
    "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n"
    "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n"
    "define i32 @pick(i32 %i) {\n"
    "  %p = getelementptr [4 x i32], ptr @table, i64 0, i32 %i\n"
    "  %v = load i32, ptr %p\n"
    "  %w = call i32 @twice(i32 %v)\n"
    "  ret i32 %w\n"
    "}\n"
    "define void @copy(ptr %to, ptr %from, i64 %n) {\n"
    "  call void @llvm.memset.p0.i64(ptr %to, i8 1, i64 %n, i1 false)\n"
    "  %half = lshr i64 %n, 1\n"
    "  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %half, i1 false)\n"
    "  ret void\n"
    "}\n"
    "declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)\n"
    "define void @axpy(ptr %a, ptr %b) {\n"
    "  %x = load <16 x float>, ptr %a, align 4\n"
    "  %y = load <16 x float>, ptr %b, align 4\n"
    "  %r = call <16 x float> @llvm.fma.v16f32(<16 x float> %x, <16 x float> %x,"
    " <16 x float> %y)\n"
    "  store <16 x float> %r, ptr %b, align 4\n"
    "  ret void\n"
    "}\n";

static int calls;
static int twice(int x) {
    calls++;
    return 2 * x;
}

static const JitSymbol symbols[] = {{"twice", (void *)twice}};

static Object *compile_text(Target *t, const char *ir, const char *passes) {
    LLVMContextRef context = LLVMContextCreate();
    LLVMModuleRef module;
    char *message = NULL;
    LLVMMemoryBufferRef text =
        LLVMCreateMemoryBufferWithMemoryRangeCopy(ir, strlen(ir), "test");
    if (LLVMParseIRInContext(context, text, &module, &message))
        test_fail(__FILE__, __LINE__, "%s", message);
    Object *o = jit_compile(t, module, passes);
    LLVMDisposeModule(module);
    LLVMContextDispose(context);
    return o;
}

static void expect_program_works(Target *t, const void *object, size_t n) {
    char why[256] = "";
    Jit *j = jit_load(t, object, n, symbols, 1, why, sizeof why);
    if (!j) test_fail(__FILE__, __LINE__, "%s", why);
    int (*pick)(int) = (int (*)(int))(uintptr_t)jit_lookup(j, "pick");
    calls = 0;
    EXPECT(pick(0) == 4 && pick(3) == 14 && calls == 2);
    void (*copy)(char *, const char *, int64_t) =
        (void (*)(char *, const char *, int64_t))(uintptr_t)jit_lookup(j, "copy");
    char from[1000], to[1001] = "";
    memset(from, 9, sizeof from);
    copy(to, from, 1000);
    for (int i = 0; i < 1001; i++) EXPECT(to[i] == (i < 500 ? 9 : i < 1000 ? 1 : 0));
    void (*axpy)(float *, float *) =
        (void (*)(float *, float *))(uintptr_t)jit_lookup(j, "axpy");
    float a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = (float)i, b[i] = 1;
    axpy(a, b);
    for (int i = 0; i < 16; i++) EXPECT(b[i] == (float)(i * i + 1));
    jit_free(j);
}

TEST(native_host) {
    Target *t = target_open(NULL), *same = target_open("native");
    EXPECT(t->lanes == target_lanes(t) && t->lanes == same->lanes);
    EXPECT_STR(t->cpu, same->cpu);
    int lanes = __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
                    ? 16
                : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 8
                                                                                  : 4;
    EXPECT_INT(t->lanes, lanes);
    static const char *const passes[] = {NULL, "", "default<O2>", "default<O0>"};
    for (int i = 0; i < ARRAY_LEN(passes); i++) {
        Object *o = compile_text(t, program, passes[i]);
        expect_program_works(t, o->bytes, o->n);
        object_free(o);
    }
    target_close(t);
    target_close(same);
}

TEST(named_cpus) {
    static const struct {
        const char *name;
        int lanes;
        const char *needs;
    } cpus[] = {{"x86-64-v2", 4, ""},
                {"x86-64-v3", 8, "+avx2"},
                {"haswell", 8, "+avx2"},
                {"x86-64-v4", 16, "+avx512vl"},
                {"skylake-avx512", 16, "+avx512vl"},
                {"cooperlake", 16, "+avx512bf16"},
                {"sapphirerapids", 16, "+amx-bf16"}};
    Target *host = target_open(NULL);
    for (int i = 0; i < ARRAY_LEN(cpus); i++) {
        if (!strstr(host->features, cpus[i].needs)) {
            EXPECT_FAIL(target_open(cpus[i].name), EXIT_CONFIG, "this machine lacks");
            continue;
        }
        Target *t = target_open(cpus[i].name);
        EXPECT_INT(target_lanes(t), cpus[i].lanes);
        Object *o = compile_text(t, program, NULL);
        expect_program_works(t, o->bytes, o->n);
        object_free(o);
        target_close(t);
    }
}

/* The override must hold in the code, not only in the number of lanes: EVEX-coded
 * instructions start with byte 0x62, which no other 64-bit instruction does. */
TEST(override_keeps_avx512_out) {
    if (target_lanes(target_open(NULL)) != 16) test_skip("no AVX-512 here to keep out");
    static const char *const cpus[] = {"native", "haswell"};
    for (int i = 0; i < 2; i++) {
        Target *t = target_open(cpus[i]);
        Object *o = compile_text(t, program, NULL);
        char why[256];
        Jit *j = jit_load(t, o->bytes, o->n, symbols, 1, why, sizeof why);
        EXPECT(j);
        const unsigned char *code = jit_lookup(j, "axpy");
        bool evex = false;
        for (int k = 0; k < 16 && code[k] != 0xc3; k++) evex |= code[k] == 0x62;
        EXPECT(evex == (i == 0));
        jit_free(j);
        object_free(o);
        target_close(t);
    }
}

TEST(unknown_cpu) {
    EXPECT_FAIL(target_open("pentium"), EXIT_CONFIG,
                "unknown CPU 'pentium'; write one of native, x86-64-v2, x86-64-v3");
    EXPECT_FAIL(target_open("x86-64-v33"), EXIT_CONFIG, "unknown CPU");
}

TEST(description_tells_targets_apart) {
    Arena *a = arena_new();
    Text x = text_new(a), y = text_new(a), z = text_new(a);
    target_describe(target_open("x86-64-v2"), &x);
    target_describe(target_open("x86-64-v2"), &y);
    target_describe(target_open("native"), &z);
    EXPECT_STR(x.s, y.s);
    EXPECT(strcmp(x.s, z.s) != 0);
    EXPECT(strstr(x.s, "LLVM ") && strstr(x.s, "cpu x86-64-v2\n"));
    arena_free(a);
}

TEST(only_the_given_symbols) {
    Target *t = target_open(NULL);
    char why[256] = "";
    Object *o = compile_text(t,
                             "declare i32 @getpid()\n"
                             "define i32 @f() { %r = call i32 @getpid() ret i32 %r }\n",
                             NULL);
    EXPECT(!jit_load(t, o->bytes, o->n, symbols, 1, why, sizeof why));
    EXPECT_PART(why, "getpid");
    JitSymbol own[] = {{"getpid", (void *)twice}};
    Jit *j = jit_load(t, o->bytes, o->n, own, 1, why, sizeof why);
    EXPECT(j && jit_lookup(j, "f"));
    jit_free(j);
    object_free(o);
    target_close(t);
}

TEST(two_objects_at_once) {
    Target *t = target_open(NULL);
    char why[256];
    Object *one = compile_text(t, "define i32 @f() { ret i32 1 }", NULL);
    Object *two = compile_text(t, "define i32 @f() { ret i32 2 }", NULL);
    Jit *a = jit_load(t, one->bytes, one->n, NULL, 0, why, sizeof why);
    Jit *b = jit_load(t, two->bytes, two->n, NULL, 0, why, sizeof why);
    object_free(one);
    object_free(two); /* the bytes were copied */
    int (*f)(void) = (int (*)(void))(uintptr_t)jit_lookup(a, "f");
    int (*g)(void) = (int (*)(void))(uintptr_t)jit_lookup(b, "f");
    EXPECT(f() == 1 && g() == 2);
    jit_free(a);
    EXPECT_INT(g(), 2);
    jit_free(b);
    target_close(t);
}

/* The cache's checksum keeps damage away from here; still nothing may crash on a file
 * that is cut short or is no object at all. */
TEST(bad_objects) {
    Target *t = target_open(NULL);
    char why[256] = "";
    Object *o = compile_text(t, program, NULL);
    for (size_t n = 0; n < o->n; n += o->n / 40 + 1) {
        why[0] = 0;
        Jit *j = jit_load(t, o->bytes, n, symbols, 1, why, sizeof why);
        EXPECT(!j && why[0]);
    }
    EXPECT(!jit_load(t, "#!/bin/sh\n", 10, symbols, 1, why, sizeof why));
    object_free(o);
    o = compile_text(t, "@x = internal global i32 1\n", NULL);
    EXPECT(!jit_load(t, o->bytes, o->n, symbols, 1, why, sizeof why));
    EXPECT_PART(why, "no function");
    object_free(o);
    target_close(t);
}

TEST(same_object_every_time) {
    Target *t = target_open(NULL);
    Object *a = compile_text(t, program, NULL), *b = compile_text(t, program, NULL);
    EXPECT(a->n == b->n && memcmp(a->bytes, b->bytes, a->n) == 0);
    object_free(a);
    object_free(b);
    target_close(t);
}
