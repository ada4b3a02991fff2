/* Which numbers a module takes of a sample: integers that index a table, or are classes of a loss,
 * have its range, also where they get there under another shape. */
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
}
