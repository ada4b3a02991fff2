/* Tests of passes/same.c: functions that do the same whatever things are called, and functions
 * that differ in one thing. */
#include "../test.h"
#include "passes/passes.h"

static const char base[] =
    "func @f:kernel(%x: f32[4,8], %y: f32[8]) -> (f32[4,8], f32[4]) {\n"
    "  %a = add %x, %x : f32[4,8]\n"
    "  %b = mul %a, %y {mn,n->mn} : f32[4,8]\n"
    "  %s = sum %b {mn->m} : f32[4]\n"
    "  return %b, %s\n"
    "}\n";

static Func *func_of(Arena *mem, const char *from, const char *to) {
    static const char head[] = "module @m mesh() level(fused)\n\n";
    const char *at = strstr(base, from);
    check(at);
    const char *text = arena_printf(mem, "%s%.*s%s%s", head, (int)(at - base), base, to,
                                    at + strlen(from));
    return module_parse(mem, "same.ir", text, strlen(text))->first;
}

TEST(names_do_not_count) {
    Arena *mem = arena_new();
    Func *a = func_of(mem, "@f", "@f"), *b = func_of(mem, "@f", "@g");
    Func *c = func_of(mem, "%s = sum %b {mn->m} : f32[4]\n  return %b, %s",
                      "%t = sum %b {mn->m} : f32[4]\n  return %b, %t");
    EXPECT(funcs_same(a, b) && func_hash(a) == func_hash(b));
    EXPECT(funcs_same(a, c) && func_hash(a) == func_hash(c));
    arena_free(mem);
}

TEST(one_thing_is_enough_to_differ) {
    static const char *const change[][2] = {
        {"add %x, %x", "mul %x, %x"},                    /* the op */
        {"mul %a, %y", "mul %x, %y"},                    /* an operand */
        {"return %b", "return %a"},                      /* a result */
        {"(f32[4,8], f32[4])", "(f32[4,8]=%x, f32[4])"}, /* its buffer */
        {"@f:kernel", "@f"},                             /* the role */
        {"return %b, %s", "return %b, %s\n"},            /* nothing */
    };
    Arena *mem = arena_new();
    Func *a = func_of(mem, "@f", "@f");
    for (int i = 0; i < ARRAY_LEN(change); i++) {
        test_at("%s", change[i][1]);
        EXPECT_INT(funcs_same(a, func_of(mem, change[i][0], change[i][1])),
                   i == ARRAY_LEN(change) - 1);
    }
    static const char small[] = "func @f(%x: f32[4]) -> (f32[4]) {\n"
                                "  %a = scale %x {by=2} : f32[4]\n  return %a\n}\n";
    const char *head = "module @m mesh() level(global)\n\n";
    const char *two = arena_printf(mem, "%s%s", head, small);
    char *three = arena_printf(mem, "%s%s", head, small);
    *strchr(strstr(three, "by="), '2') = '3';
    char *wide = arena_printf(mem, "%s%s", head, small);
    for (char *p = wide; (p = strchr(p, '[')); p++) p[1] = '8';
    Func *f = module_parse(mem, "two.ir", two, strlen(two))->first;
    EXPECT(funcs_same(f, module_parse(mem, "2.ir", two, strlen(two))->first));
    EXPECT(!funcs_same(f, module_parse(mem, "three.ir", three, strlen(three))->first));
    EXPECT(!funcs_same(f, module_parse(mem, "wide.ir", wide, strlen(wide))->first));
    arena_free(mem);
}
