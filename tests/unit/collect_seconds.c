/* collect_seconds.c - collectives that pass collect chooses for a machine: on hosts that are far
 * from each other sums are made within a host first; and on random machines no other way takes less
 * time. Where no machine is given bytes count. */
#include "../test.h"
#include "base/rng.h"
#include "ir/placement.h"
#include "passes/cost/message.h"
#include "passes/passes.h"
#include <math.h>

/* dp goes over 2 hosts, tp over the 4 ranks of one; messages between hosts are slow. */
static Machine far_hosts(void) {
    Machine m = machine_plain;
    m.host_ranks = 4;
    m.link[LINK_HOST] = (Link){.start_seconds = 1e-6, .bytes_per_second = 100e9};
    m.link[LINK_NETWORK] = (Link){.start_seconds = 2e-5, .bytes_per_second = 1e9};
    return m;
}

/* The steps between two placements of a value. */
static Func *collected(Arena *mem, const char *mesh, const char *from, const char *to,
                       const Machine *machine) {
    char *text = arena_printf(mem,
                              "module @m mesh(%s) level(sharded)\n"
                              "func @f(%%x: %s) -> (%s) {\n"
                              "  %%y = reshard %%x : %s\n  return %%y\n}\n",
                              mesh, from, to, to);
    Module *m = module_parse(mem, "test.ir", text, strlen(text));
    PassOptions o = pass_options_default();
    o.machine = machine;
    passes_run(m, "collect", &o);
    return m->first;
}

static const char *steps_text(Arena *mem, const Func *f) {
    Text t = text_new(mem);
    for (const Op *op = f->first; op; op = op->next)
        if (op->kind == OP_reshard)
            text_add(&t, "%s%s %s", t.n ? ", " : "", op_attr(op, "how")->s,
                     op_attr(op, "axis")->s);
    return t.s;
}

static void expect_steps(const char *from, const char *to, const Machine *machine,
                         const char *want) {
    Arena *mem = arena_new();
    EXPECT_STR(steps_text(mem, collected(mem, "dp=2, tp=4", from, to, machine)), want);
    arena_free(mem);
}

TEST(sums_are_made_on_a_host_first) {
    Machine far = far_hosts(), one = far;
    one.host_ranks = 0;
    one.link[LINK_HOST].start_seconds = 0;
    expect_steps("f32[4096,4096]+dp.tp", "f32[4096,4096]", &far,
                 "reduce_scatter tp, all_reduce dp, all_gather tp");
    expect_steps("f32[4096,4096]+dp.tp", "f32[4096,4096]", &one, "all_reduce dp.tp");
    expect_steps("f32[4096,4096]+dp.tp", "f32[4096,4096]", NULL, "all_reduce dp.tp");
}

/* Of few bytes each way is as long as its starts: on one host at once, else those on a host do not
 * wait for the network. */
TEST(small_sums_take_the_fewest_starts) {
    Machine far = far_hosts(), one = far;
    one.host_ranks = 0;
    expect_steps("f32[8,8]+dp.tp", "f32[8,8]", &far, "all_reduce tp, all_reduce dp");
    expect_steps("f32[8,8]+dp.tp", "f32[8,8]", &one, "all_reduce dp.tp");
}

/* ---- random machines ---- */

static double uniform(uint64_t at) {
    return rng_uniform(17, 5, at);
}

static Machine random_machine(uint64_t n) {
    static const int hosts[] = {0, 1, 2, 4, 6, 12};
    Machine m = machine_plain;
    m.host_ranks = hosts[n % ARRAY_LEN(hosts)];
    for (int l = 0; l < 2; l++) {
        m.link[l].start_seconds = 1e-7 * pow(1e3, uniform(8 * n + (uint64_t)l));
        m.link[l].bytes_per_second = 1e8 * pow(1e3, uniform(8 * n + 2 + (uint64_t)l));
    }
    return m;
}

static double seconds_of(const Func *f, const Machine *m) {
    const Mesh *mesh = &f->mod->mesh;
    double seconds = 0;
    for (const Op *op = f->first; op; op = op->next) {
        Axes axes = 0;
        if (op->kind != OP_reshard) continue;
        EXPECT(mesh_axes_parse(mesh, op_attr(op, "axis")->s, &axes));
        int kind = op_kind(op_attr(op, "how")->s), n = mesh_group_size(mesh, axes);
        if (kind == OP_shard || kind == OP_on_first) continue;
        double bytes = type_part_bytes(mesh, &op->in[0]->ty);
        double sent = (double)message_sent_bytes(kind, (int64_t)bytes, n);
        sent *= message_width(m, kind, op->in[0]->ty.dt);
        GroupShape g = group_shape(m, mesh, axes, 1);
        seconds += collective_seconds(m, &g, kind, sent);
    }
    return seconds;
}

/* Of rows, of columns, and of sums; those without sums first. */
static const char *const placements[][3] = {
    {"", "", ""},       {":a", "", ""},   {"", ":a", ""},   {":b", ":c", ""},
    {":a.b", "", ""},   {"", ":b.c", ""}, {":c", ":a", ""}, {":a.b.c", "", ""},
    {"", "", "+a"},     {"", "", "+a.b"}, {":a", "", "+b"}, {"", ":c", "+a.b"},
    {"", "", "+a.b.c"}, {":c", "", "+a"},
};
enum { WHOLE = 8 };

static const char *placed(Arena *mem, int rows, int nth) {
    const char *const *p = placements[nth];
    return arena_printf(mem, "f32[%d%s,24%s]%s", rows, p[0], p[1], p[2]);
}

static Axes axes_of(const Type *t) {
    Axes a = t->pending;
    for (int d = 0; d < t->rank; d++) a |= t->split[d] & (Axes)~AXES_REVERSED;
    return a;
}

/* Only axes that the one or the other has are used on the way. */
static bool is_on_the_way(const Func *chosen, const Func *to) {
    Axes used = axes_of(&chosen->arg[0]->ty) | axes_of(&chosen->ret[0]->ty);
    return !(axes_of(&to->ret[0]->ty) & ~used);
}

/* Where one axis changes its links are the same for every way, and bytes decide. */
static bool several_change(const Func *f) {
    const Type *a = &f->arg[0]->ty, *b = &f->ret[0]->ty;
    Axes changed = a->pending ^ b->pending;
    for (int d = 0; d < a->rank; d++) changed |= a->split[d] ^ b->split[d];
    changed &= (Axes)~AXES_REVERSED;
    return changed & (changed - 1);
}

static const char mesh[] = "a=2, b=2, c=3";

/* Nothing that bytes choose takes less time, and no way over another placement. */
TEST(nothing_is_faster) {
    int faster = 0, count = test_long() ? 5000 : 500;
    for (int n = 0; n < count; n++) {
        Arena *mem = arena_new();
        Machine m = random_machine((uint64_t)n);
        m.sum_bytes = n % 4 == 3 ? 2 : 0;
        int rows = n % 3 ? 24 * (1 << n % 14) : 24;
        const char *from = placed(mem, rows, n * 5 % ARRAY_LEN(placements));
        const char *to = placed(mem, rows, n / 3 % WHOLE);
        const char *by = placed(mem, rows, n * 7 / 5 % WHOLE);
        Func *chosen = collected(mem, mesh, from, to, &m);
        double seconds = seconds_of(chosen, &m);
        double bytes = seconds_of(collected(mem, mesh, from, to, NULL), &m);
        Func *first = collected(mem, mesh, from, by, &m);
        double around =
            seconds_of(first, &m) + seconds_of(collected(mem, mesh, by, to, &m), &m);
        test_at("case %d: %s to %s by %s", n, from, to, by);
        EXPECT(seconds <= bytes * (1 + 1e-6) + 1e-9);
        if (several_change(chosen) && is_on_the_way(chosen, first))
            EXPECT(seconds <= around * (1 + 1e-6) + 1e-9);
        faster += seconds < bytes * 0.99;
        arena_free(mem);
    }
    printf("  %d of %d are faster than what bytes choose\n", faster, count);
    EXPECT(faster > count / 50);
}
