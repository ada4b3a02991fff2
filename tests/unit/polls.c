/* polls.c - where generated code polls: behind work that can run while a collective is
 * under way, and nowhere else. */
#include "../test.h"
#include "codegen/lower.h"

/* @deep runs within the collective of @step, through @middle; @aside before it. %small is
 * no work, %view no code. */
static const char text[] =
    "module @t mesh(a=2) level(fused)\n"
    "func @deep:func(%x: f32[128,128]) -> (f32[128,128]) {\n"
    "  %y = copy %x : f32[128,128]\n"
    "  return %y\n}\n"
    "func @middle:func(%x: f32[128,128]) -> (f32[128,128]) {\n"
    "  %y = call %x {fn=@deep} : f32[128,128]\n"
    "  return %y\n}\n"
    "func @aside:func(%x: f32[128,128]) -> (f32[128,128]) {\n"
    "  %y = copy %x : f32[128,128]\n"
    "  return %y\n}\n"
    "func @step:step(%x: f32[128,128], %n: f32[4]) -> (f32[128,128], f32[128,128]) {\n"
    "  %before = call %x {fn=@aside} : f32[128,128]\n"
    "  %s = all_reduce %before {axis=\"a\"; late=LATE} : f32[128,128]\n"
    "  %small = copy %n : f32[4]\n"
    "  %one = copy %x : f32[128,128]\n"
    "  %two = call %one {fn=@middle} : f32[128,128]\n"
    "  ARRIVE\n"
    "  %last = dot %two, %t {ab,bc->ac} : f32[128,128]\n"
    "  return %t, %last\n}\n";

/* The module of `text` with a late collective, or with one that is not. */
static Module *module_of(Arena *mem, bool late) {
    Text t = text_new(mem);
    const char *a = strstr(text, "LATE"), *b = strstr(text, "ARRIVE");
    text_add_bytes(&t, text, (size_t)(a - text));
    text_add(&t, "%d", late);
    text_add_bytes(&t, a + 4, (size_t)(b - a - 4));
    text_add(&t, late ? "%%t = arrive %%s, %%before : f32[128,128]"
                      : "%%t = copy %%s : f32[128,128]");
    text_add(&t, "%s", b + 6);
    return module_parse(mem, "polls", t.s, strlen(t.s));
}

/* Calls of rt_poll in a function of the generated module. */
static int polls_in(const Emit *e, const char *name) {
    LLVMValueRef poll = LLVMGetNamedFunction(e->mod, "rt_poll");
    LLVMValueRef fn = LLVMGetNamedFunction(e->mod, name);
    int n = 0;
    EXPECT(fn);
    LLVMUseRef use = poll ? LLVMGetFirstUse(poll) : NULL;
    for (; use; use = LLVMGetNextUse(use)) {
        n += LLVMGetBasicBlockParent(LLVMGetInstructionParent(LLVMGetUser(use))) == fn;
    }
    return n;
}

static Emit *lowered(Arena *mem, bool late) {
    Target *t = target_open(NULL);
    Lower *l = NEW(mem, Lower);
    PassOptions o = pass_options_default();
    *l = (Lower){.mem = mem, .m = module_of(mem, late), .threads = 1, .vl = t->lanes};
    o.workspace_bytes = lower_workspace_bytes;
    o.workspace_ctx = l;
    passes_run(l->m, "memplan", &o);
    Func *entry = l->m->first;
    while (!func_is_entry(entry)) entry = entry->next;
    l->e = emit_new(mem, "polls", t->lanes, t->cpu, t->features);
    lower_module(l, entry);
    for (int i = 0; i < l->nproducts; i++) dnnl_matmul_free(l->product[i].matmul);
    target_close(t);
    return l->e;
}

TEST(within_a_late_collective) {
    Arena *mem = arena_new();
    Emit *e = lowered(mem, true);
    EXPECT(polls_in(e, "stator.deep") == 1);
    EXPECT(polls_in(e, "stator.middle") == 1);
    EXPECT(polls_in(e, "stator.aside") == 0);
    EXPECT(polls_in(e, "stator.step") == 2);
    emit_free(e);
    arena_free(mem);
}

TEST(no_polls_without_late_collectives) {
    Arena *mem = arena_new();
    Emit *e = lowered(mem, false);
    EXPECT(!LLVMGetNamedFunction(e->mod, "rt_poll"));
    emit_free(e);
    arena_free(mem);
}
