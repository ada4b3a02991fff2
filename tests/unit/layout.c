/* Layouts: the parts of all ranks cover a tensor exactly once, and each run says where
 * its elements are, as a slow computation over single elements finds them. */
#include "ir/layout.h"
#include "../test.h"

static Mesh mesh_of(int n, const char *const *name, const int *size) {
    Mesh m = {.naxes = n};
    for (int a = 0; a < n; a++) {
        m.axis[a].name = name[a];
        m.axis[a].size = size[a];
    }
    return m;
}

/* dp=2, cp=3, tp=2 */
static const Mesh *mesh3(void) {
    static Mesh m;
    m = mesh_of(3, (const char *[]){"dp", "cp", "tp"}, (int[]){2, 3, 2});
    return &m;
}

static Layout make(Arena *mem, const Mesh *m, const char *whole, const char *flat,
                   int lead) {
    Layout l;
    Type t = type_parse(mem, m, whole);
    const char *wrong = layout_make(mem, m, &t, flat, lead, &l);
    if (wrong) test_fail(__FILE__, __LINE__, "%s: %s", whole, wrong);
    return l;
}

/* Where element i of rank's argument lies in the whole tensor; -1: padding. */
static int64_t slow_global(const Layout *l, int rank, int64_t i) {
    if (!l->flattened) return part_element(l->mesh, rank, &l->whole, i);
    int64_t box = 1, parts = mesh_group_size(l->mesh, l->flat);
    for (int d = l->lead; d < l->whole.rank; d++)
        box *= l->whole.dim[d] / mesh_group_size(l->mesh, l->whole.split[d]);
    int64_t part = l->padded / parts;
    int64_t at = i % part + part * mesh_group_coord(l->mesh, rank, l->flat);
    if (at >= box) return -1;
    return part_element(l->mesh, rank, &l->whole, i / part * box + at);
}

static void check_layout(const Layout *l) {
    int64_t n = type_count(&l->whole), mine = layout_local_count(l);
    int *owners = calloc((size_t)n, sizeof *owners);
    int64_t *at = malloc((size_t)mine * sizeof *at);
    for (int rank = 0; rank < mesh_ranks(l->mesh); rank++) {
        int64_t local_end = 0, global_end = 0;
        for (int64_t i = 0; i < mine; i++) at[i] = -1;
        for (LayoutWalk w = layout_walk(l, rank); layout_next(&w);) {
            EXPECT(w.count > 0 && w.local >= local_end && w.global >= global_end);
            local_end = w.local + w.count;
            global_end = w.global + w.count;
            EXPECT(local_end <= mine && global_end <= n);
            for (int64_t k = 0; k < w.count; k++) {
                at[w.local + k] = w.global + k;
                owners[w.global + k] += layout_copy(l, rank) == 0;
            }
        }
        for (int64_t i = 0; i < mine; i++)
            if (at[i] != slow_global(l, rank, i))
                test_fail(__FILE__, __LINE__, "rank %d element %lld: %lld, wanted %lld",
                          rank, (long long)i, (long long)at[i],
                          (long long)slow_global(l, rank, i));
    }
    for (int64_t i = 0; i < n; i++)
        if (owners[i] != 1)
            test_fail(__FILE__, __LINE__, "element %lld has %d owners", (long long)i,
                      owners[i]);
    free(owners);
    free(at);
}

static int runs_of(const Layout *l, int rank) {
    int n = 0;
    for (LayoutWalk w = layout_walk(l, rank); layout_next(&w);) n++;
    return n;
}

TEST(boxes) {
    static const char *const whole[] = {"f32[]",
                                        "f32[7]",
                                        "f32[12:dp.cp.tp]",
                                        "bf16[1,1,6:cp]",
                                        "f32[4:tp,5]",
                                        "f32[5,4:tp]",
                                        "f32[3,6:cp,5]",
                                        "f32[8:dp,12:cp.tp]",
                                        "i64[5,3]",
                                        "f32[6:cp,4:tp]",
                                        "f32[4:dp,9:cp,2:tp]",
                                        "f32[2,6:dp.cp,3,4:tp,1]"};
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(whole); i++) {
        Layout l = make(mem, mesh3(), whole[i], NULL, 0);
        check_layout(&l);
    }
}

/* Several axes on one dimension: the lowest is the outermost. */
TEST(order_of_axes) {
    Layout l = make(arena_new(), mesh3(), "f32[12:dp.tp]", NULL, 0);
    for (int rank = 0; rank < 12; rank++) {
        LayoutWalk w = layout_walk(&l, rank);
        EXPECT(layout_next(&w) && w.global == 3 * (rank / 6 * 2 + rank % 2));
        EXPECT(w.count == 3 && w.local == 0 && !layout_next(&w));
    }
}

TEST(runs_are_as_long_as_they_can_be) {
    Arena *mem = arena_new();
    Layout rows = make(mem, mesh3(), "f32[8:tp,5,3]", NULL, 0);
    EXPECT_INT(runs_of(&rows, 3), 1);
    Layout columns = make(mem, mesh3(), "f32[5,8:tp,3]", NULL, 0);
    EXPECT_INT(runs_of(&columns, 3), 5);
    Layout same = make(mem, mesh3(), "f32[5,8,3]", NULL, 0);
    EXPECT_INT(runs_of(&same, 3), 1);
}

TEST(flattened) {
    static const struct {
        const char *whole, *flat;
        int lead;
    } c[] = {{"f32[4,32,96:tp]", "dp.cp", 1},
             {"f32[3,5,7]", "dp.cp.tp", 1},
             {"f32[3,5,7]", "dp.cp.tp", 0},
             {"f32[5,14:tp]", "dp.cp", 0},
             {"f32[]", "dp.cp.tp", 0},
             {"f32[4]", "dp.cp.tp", 1},
             {"f32[3,5,7]", "", 1},
             {"f32[5,6:cp,3]", "", 0},
             {"f32[4:dp,5,6:cp]", "tp", 1},
             {"f32[2,1]", "cp", 0},
             {"f32[1]", "dp", 0},
             {"f32[6,10:tp,3]", "cp", 1}};
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(c); i++) {
        Layout l = make(mem, mesh3(), c[i].whole, c[i].flat, c[i].lead);
        check_layout(&l);
    }
}

TEST(padding) {
    Arena *mem = arena_new();
    Layout l = make(mem, mesh3(), "f32[3,5,7]", "dp.cp", 1);
    EXPECT(l.padded == 36 && layout_local_count(&l) == 3 * 6);
    /* 35 = 5 * 6 + 5: the last of the six has one element of padding per layer. */
    int64_t held = 0;
    for (LayoutWalk w = layout_walk(&l, 11); layout_next(&w);) held += w.count;
    EXPECT_INT(held, 15);
    /* More parts than elements: the last ones hold nothing. */
    Layout few = make(mem, mesh3(), "f32[2]", "dp.cp", 0);
    EXPECT(few.padded == 6 && runs_of(&few, 0) == 1 && runs_of(&few, 11) == 0);
    check_layout(&few);
}

TEST(random_layouts) {
    Arena *mem = arena_new();
    uint64_t r = 88172645463325252u;
    for (int i = 0; i < 400; i++) {
        Type t = {.dt = DT_F32};
        Axes left = 7, flat = 0;
        r ^= r << 13, r ^= r >> 7, r ^= r << 17;
        t.rank = (int)(r % 5);
        for (int d = 0; d < t.rank; d++) {
            if (r >> (8 + d) & 1) t.split[d] = (Axes)(r >> (16 + 3 * d)) & left;
            left &= (Axes)~t.split[d];
            t.dim[d] = (int64_t)(1 + (r >> (32 + 3 * d)) % 4) *
                       mesh_group_size(mesh3(), t.split[d]);
        }
        flat = (Axes)(r >> 50) & left;
        bool flattened = r >> 60 & 1;
        int lead = flattened && t.rank && (r >> 61 & 1);
        Layout l;
        const char *axes = mesh_axes_text(mem, mesh3(), flat);
        EXPECT(!layout_make(mem, mesh3(), &t, flattened ? axes : NULL, lead, &l));
        check_layout(&l);
    }
}

/* A program that has nothing but an argument, and the layout of that. */
static Module *module_of(Arena *mem, const char *local, const char *attrs) {
    Text t = text_new(mem);
    text_add(&t,
             "module @m mesh(dp=2, cp=3, tp=2) level(local)\n"
             "func @f:step(%%x: %s {role=\"state\"%s}) -> (%s) {\n  return %%x\n}\n",
             local, attrs, local);
    return module_parse(mem, "test", t.s, t.n);
}

static Layout of(Arena *mem, const char *local, const char *attrs) {
    return layout_of(mem, module_find(module_of(mem, local, attrs), "f"), 0);
}

TEST(from_attributes) {
    Arena *mem = arena_new();
    Layout l = of(mem, "f32[3,5]", "");
    EXPECT(!l.flattened && runs_of(&l, 5) == 1 && l.whole.dim[1] == 5);
    EXPECT(layout_copy(&l, 0) == 0 && layout_copy(&l, 1) != 0);
    l = of(mem, "f32[2,32,48]", "; global=\"f32[4:dp,32,96:tp]\"");
    EXPECT(!l.flattened && layout_local_count(&l) == 2 * 32 * 48);
    check_layout(&l);
    l = of(mem, "f32[4,1,256]", "; global=\"f32[4,32,96:tp]\"; flat=\"dp.cp\"; lead=1");
    EXPECT(l.flattened && l.lead == 1 && l.padded == 1536 && l.flat == 3);
    check_layout(&l);
    l = of(mem, "f32[1,105]", "; global=\"f32[3,5,7]\"; flat=\"\"");
    EXPECT(l.flattened && l.lead == 0 && l.flat == 0 && l.padded == 105);
    check_layout(&l);
}

/* The parts are those of the tensor in the order of files. */
TEST(turned) {
    Arena *mem = arena_new();
    Layout l =
        of(mem, "f32[4,3,5,2]", "; turned=\"abcd->adbc\"; global=\"f32[8:dp,3,5,4:tp]\"");
    EXPECT(!l.flattened && layout_local_count(&l) == 4 * 3 * 5 * 2);
    EXPECT(l.whole.dim[1] == 5 && l.whole.dim[2] == 4 && l.whole.dim[3] == 3);
    EXPECT(l.whole.split[0] == 1 && l.whole.split[2] == 4 && !l.whole.split[3]);
    check_layout(&l);
    static const struct {
        const char *local, *order;
        int lead, group;
        int64_t dim[4];
    } c[] = {{"f32[3,5]", "ab->ba", 0, 1, {5, 3}},
             {"f32[3,5,7]", "abc->bca", 0, 1, {7, 3, 5}},
             {"f32[3,5,7]", "abc->cab", 0, 2, {5, 7, 3}},
             {"f32[2,3,5,7]", "abcd->acdb", 1, 1, {2, 7, 3, 5}}};
    for (int i = 0; i < ARRAY_LEN(c); i++) {
        const char *attrs = arena_printf(mem, "; turned=\"%s\"", c[i].order);
        Module *m = module_of(mem, c[i].local, attrs);
        Type was;
        int lead, group;
        EXPECT(layout_turned(module_find(m, "f"), 0, &was, &lead, &group));
        EXPECT(lead == c[i].lead && group == c[i].group);
        for (int k = 0; k < was.rank; k++) EXPECT(was.dim[k] == c[i].dim[k]);
    }
}

TEST(contradictions) {
    Arena *mem = arena_new();
    static const struct {
        const char *local, *attrs, *part;
    } c[] = {
        {"f32[3]", "; global=\"f32[6:xx]\"", "'xx' not found"},
        {"f32[3]", "; global=\"f32[7:tp]\"", "0 of 7 elements does not split in 2"},
        {"f32[3]", "; global=\"f32[6,2:tp]\"", "its part of f32[6,2:tp] has 6 elements"},
        {"bf16[3]", "; global=\"f32[6:tp]\"", "is bf16[3]"},
        {"f32[3]", "; global=\"f32[6:tp]+dp\"", "its placement is not decided"},
        {"f32[3]", "; global=\"f32[6:?]\"", "its placement is not decided"},
        {"f32[1,3]", "; global=\"f32[6:tp]\"; flat=\"tp\"", "axis of flat splits"},
        {"f32[1,3]", "; global=\"f32[6]\"; flat=\"pp\"", "names no axes"},
        {"f32[1,3]", "; global=\"f32[6]\"; flat=\"tp\"; lead=2", "lead must be 0 or 1"},
        {"f32[]", "; global=\"f32[]\"; flat=\"tp\"; lead=1", "lead must be 0 or 1"},
        {"f32[6]", "; global=\"f32[6]\"; lead=1", "lead needs flat"},
        {"f32[6,2]", "; turned=\"ab->ab\"", "write \"abc->acb\""},
        {"f32[6,2]", "; turned=\"abc->acb\"", "write \"abc->acb\""},
        {"f32[6,2]", "; turned=\"ab->bc\"", "write \"abc->acb\""},
        {"f32[6,2]", "; turned=\"\"", "write \"abc->acb\""},
        {"f32[6,2,3]", "; turned=\"abc->cba\"", "write \"abc->acb\""}};
    for (int i = 0; i < ARRAY_LEN(c); i++)
        EXPECT_FAIL(of(mem, c[i].local, c[i].attrs), EXIT_CONFIG, c[i].part);
}
