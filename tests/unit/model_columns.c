/* Which numbers a module takes of a sample: integers that index a table, or are classes of a loss,
 * have its range, also where they get there under another shape or through a function. */
#include "../test.h"
#include "frontend/model/job.h"

static DataColumn column_of(const char *labels, const char *moves, const char *moved) {
    Arena *mem = arena_new();
    const char *text = arena_printf(
        mem,
        "module @m mesh() level(global)\n"
        "func @net:model(%%x: f32[4,3] {role=\"data\"}, %%labels: %s {role=\"labels\"},\n"
        "    %%w: f32[3,5] {role=\"param\"; init=\"normal\"; std=1.0}) -> (f32[]) {\n"
        "  %%y = dot %%x, %%w {mk,kn->mn} : f32[4,5]\n"
        "%s"
        "  %%l, %%z = xent %%y, %s : f32[4], f32[4]\n"
        "  %%loss = sum %%l {b->_} : f32[]\n"
        "  return %%loss\n}\n",
        labels, moves, moved);
    const Module *m = module_parse(mem, "columns.ir", text, strlen(text));
    int n;
    DataColumn *c = job_columns(mem, m->first, &n);
    EXPECT_INT(n, 2);
    EXPECT_STR(c[1].name, "labels");
    return c[1];
}

TEST(classes_have_the_range_of_the_loss) {
    EXPECT_INT(column_of("i32[4]", "", "%labels").high, 5);
    EXPECT_INT(column_of("i32[4,1]", "  %r = reshape %labels : i32[4]\n", "%r").high, 5);
    EXPECT_INT(column_of("i32[4,2]",
                         "  %s = slice %labels {dim=1; first=1; size=1} : i32[4,1]\n"
                         "  %r = reshape %s : i32[4]\n",
                         "%r")
                   .high,
               5);
    EXPECT_INT(column_of("i32[4]", "  %c = copy %labels : i32[4]\n", "%c").high, 5);
    EXPECT_INT(column_of("i32[4]", "  %o = onehot %labels : f32[4,3]\n", "%labels").high,
               3);
    EXPECT_INT(column_of("i32[4,2]",
                         "  %one, %two = unstack %labels {dim=1} : i32[4], i32[4]\n",
                         "%two")
                   .high,
               5);
}

/* The first integers look rows up through two functions, the second ones through one, in a smaller
 * table; the labels come back from a function. */
TEST(integers_of_called_functions_have_the_range_of_their_tables) {
    const char *text =
        "module @m mesh() level(global)\n"
        "func @rows(%t: f32[7,2], %at: i32[4]) -> (f32[4,2]) {\n"
        "  %r = embed %t, %at : f32[4,2]\n"
        "  return %r\n}\n"
        "func @both(%t: f32[7,2], %u: f32[5,2], %at: i32[4], %too: i32[4])\n"
        "    -> (f32[4,2]) {\n"
        "  %r = call %t, %at {fn=@rows} : f32[4,2]\n"
        "  %s = embed %u, %too : f32[4,2]\n"
        "  %y = add %r, %s : f32[4,2]\n"
        "  return %y\n}\n"
        "func @two(%y: f32[4,2], %n: i32[4]) -> (f32[4,2], i32[4]) {\n"
        "  %d = add %y, %y : f32[4,2]\n"
        "  return %d, %n\n}\n"
        "func @net:model(%one: i32[4] {role=\"data\"}, %two: i32[4] {role=\"data\"},\n"
        "    %free: i32[4] {role=\"data\"},\n"
        "    %labels: i32[4] {role=\"labels\"},\n"
        "    %t: f32[7,2] {role=\"param\"; init=\"normal\"; std=1.0},\n"
        "    %u: f32[5,2] {role=\"param\"; init=\"normal\"; std=1.0}) -> (f32[]) {\n"
        "  %y = call %t, %u, %one, %two {fn=@both} : f32[4,2]\n"
        "  %d, %same = call %y, %labels {fn=@two} : f32[4,2], i32[4]\n"
        "  %l, %z = xent %d, %same : f32[4], f32[4]\n"
        "  %f = valid %free : f32[4]\n"
        "  %w = mul %l, %f : f32[4]\n"
        "  %loss = sum %w {b->_} : f32[]\n"
        "  return %loss\n}\n";
    Arena *mem = arena_new();
    const Module *m = module_parse(mem, "columns.ir", text, strlen(text));
    int n;
    DataColumn *c = job_columns(mem, model_entry(m), &n);
    EXPECT_INT(n, 4);
    const int64_t low[] = {0, 0, INT32_MIN, INT32_MIN};
    const int64_t high[] = {7, 5, (int64_t)INT32_MAX + 1, 2};
    for (int i = 0; i < n; i++) {
        EXPECT_INT(c[i].low, low[i]);
        EXPECT_INT(c[i].high, high[i]);
    }
}
