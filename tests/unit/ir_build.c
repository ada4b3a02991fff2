/* Tests of building ops: attributes by their text, values that take the place of others. */
#include "../test.h"
#include "ir/ir.h"

static Type vector(int64_t n) {
    return (Type){.dt = DT_F32, .rank = 1, .dim = {n}};
}

static Func *func_of(Arena *mem) {
    return func_new(module_new(mem, "m"), "f", ROLE_MODEL);
}

/* The text is read once; what one op is told afterwards, the others do not hear. */
TEST(attributes_of_the_same_text_are_each_op_s_own) {
    Arena *mem = arena_new();
    Func *f = func_of(mem);
    Builder b = build_at_end(f);
    Value *x = func_arg(f, "x", vector(4));
    Op *one = build1(&b, OP_scale, "by=2", x, NULL)->def;
    Op *two = build1(&b, OP_scale, "by=2", x, NULL)->def;
    Op *other = build1(&b, OP_scale, "by=20", x, NULL)->def;
    op_set_float(one, "by", 3);
    Op *three = build1(&b, OP_scale, "by=2", x, NULL)->def;
    EXPECT(op_float(one, "by", 0) == 3 && op_float(two, "by", 0) == 2);
    EXPECT(op_float(three, "by", 0) == 2 && op_float(other, "by", 0) == 20);
    arena_free(mem);
}

/* The same text means another attribute where the op is another. */
TEST(attributes_of_the_same_text_of_other_ops) {
    Arena *mem = arena_new();
    Func *f = func_of(mem);
    Builder b = build_at_end(f);
    Value *x = func_arg(f, "x", vector(4));
    Op *scale = build1(&b, OP_scale, "by=2", x, NULL)->def;
    Op *atmost = build1(&b, OP_atmost, "by=2", x, NULL)->def;
    EXPECT(scale->kind == OP_scale && atmost->kind == OP_atmost);
    EXPECT(op_float(scale, "by", 0) == 2 && op_float(atmost, "by", 0) == 2);
    arena_free(mem);
}

/* y and z are copies of x: one after the other they go, and who read them reads x. */
/* Each text is found again when there are many: a pipeline has one for each message. */
TEST(attributes_of_many_texts) {
    enum { TEXTS = 3000 };
    Arena *mem = arena_new();
    Func *f = func_of(mem);
    Builder b = build_at_end(f);
    Value *x = func_arg(f, "x", vector(4));
    for (int again = 0; again < 2; again++)
        for (int i = 0; i < TEXTS; i++) {
            char text[32];
            snprintf(text, sizeof text, "by=%d", i);
            EXPECT(op_float(build1(&b, OP_scale, text, x, NULL)->def, "by", -1) == i);
        }
    EXPECT_INT(f->mod->attr_texts, TEXTS);
    arena_free(mem);
}

TEST(renames_go_through_chains) {
    Arena *mem = arena_new();
    Func *f = func_of(mem);
    Builder b = build_at_end(f);
    Value *x = func_arg(f, "x", vector(4));
    Value *y = build1(&b, OP_scale, "by=1", x, NULL);
    Value *z = build1(&b, OP_scale, "by=1", y, NULL);
    Value *sum = build1(&b, OP_add, NULL, y, z, NULL);
    func_ret(f, sum, -1);
    func_ret(f, z, -1);
    Renames r = renames_new(mem, f);
    for (Op *op = f->first; op; op = op->next) {
        renames_reach(&r, op);
        if (op->kind == OP_scale) r.now[op->out[0]->id] = op->in[0];
    }
    renames_end(&r);
    EXPECT(sum->def->in[0] == x && sum->def->in[1] == x);
    EXPECT(f->ret[0] == sum && f->ret[1] == x);
    arena_free(mem);
}

TEST(who_reads_a_value) {
    Arena *mem = arena_new();
    Func *f = func_of(mem);
    Builder b = build_at_end(f);
    Value *x = func_arg(f, "x", vector(4));
    Value *y = build1(&b, OP_scale, "by=1", x, NULL);
    Value *sum = build1(&b, OP_add, NULL, y, y, NULL);
    Value *last = build1(&b, OP_add, NULL, x, sum, NULL);
    func_ret(f, sum, -1);
    func_ret(f, last, -1);
    func_ret(f, sum, -1);
    func_number(f);
    Op ***reader = func_readers(mem, f), **of_x = reader[x->id], **of_y = reader[y->id];
    EXPECT(of_x[0] == y->def && of_x[1] == last->def && !of_x[2]);
    EXPECT(of_y[0] == sum->def && of_y[1] == sum->def && !of_y[2]); /* twice */
    EXPECT(!reader[last->id][0]);
    EXPECT(op_reads_value(sum->def, y) && !op_reads_value(sum->def, x));
    EXPECT_INT(func_result(f, sum), 0);
    EXPECT_INT(func_result(f, last), 1);
    EXPECT_INT(func_result(f, y), -1);
    arena_free(mem);
}

TEST(a_value_moves_to_another_op) {
    Arena *mem = arena_new();
    Func *f = func_of(mem);
    Builder b = build_at_end(f);
    Value *x = func_arg(f, "x", vector(4));
    Value *y = build1(&b, OP_scale, "by=2", x, NULL);
    func_ret(f, y, -1);
    Op *old = y->def, *made = build1(&b, OP_add, NULL, x, x, NULL)->def;
    value_move(y, made, 0);
    op_remove(old);
    EXPECT(y->def == made && made->out[0] == y && y->nth == 0 && f->ret[0] == y);
    EXPECT(f->first == made && f->last == made);
    arena_free(mem);
}
