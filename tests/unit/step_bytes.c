/* Where the bytes of ops come from, and what they take, in steps of hand-made programs on hand-made
 * machines, against arithmetic on paper. */
#include "hand_machine.h"

/* Ops move 4000 bytes, of 8000 that the function does. What an op before has touched is 4000 behind,
 * from the middle of the one to that of the other; through a view as well. */
TEST(bytes_come_from_as_far_as_the_function_reaches) {
    Machine m = slow_machine(1);
    double x[] = {4000, 8000}, y[] = {8e6, 4e6};
    MachineRank r = m.rank[0];
    r.memory = (Curve){2, x, y, false};
    m.rank = &r;
    EXPECT_NEAR(1e3 * seconds_of(&m, "", EXP_500), 0.5, 1e-9);
    EXPECT_NEAR(1e3 * seconds_of(&m, "",
                                 "(%x: f32[500]) -> (f32[500]) {\n"
                                 "  %y = exp %x : f32[500]\n"
                                 "  %z = exp %y : f32[500]\n  return %z\n}"),
                0.5 + 0.5 + 0.25 + 0.5, 1e-9);
    EXPECT_NEAR(1e3 * seconds_of(&m, "",
                                 "(%x: f32[500]) -> (f32[5,100], f32[500]) {\n"
                                 "  %v = reshape %x : f32[5,100]\n"
                                 "  %y = exp %v : f32[5,100]\n"
                                 "  %z = exp %x : f32[500]\n  return %y, %z\n}"),
                0.5 + 0.5 + 0.25 + 0.5, 1e-9);
}

/* The second reads what the first has made, which a call between them has driven out; what is called
 * moves 8000 bytes, or none. */
TEST(a_call_of_a_function_touches_other_bytes) {
    static const char text[] =
        "module @t mesh() level(fused)\n"
        "func @step:step(%%x: f32[500]) -> (f32[500]) {\n"
        "  %%y = exp %%x : f32[500]\n"
        "  %%c = call %%x {fn=@other} : f32[500]\n"
        "  %%z = exp %%y : f32[500]\n  return %%z\n}\n"
        "func @other(%%a: f32[500]) -> (f32[500]) {\n%s  return %%a\n}\n";
    Machine m = slow_machine(1);
    double x[] = {4000, 8000}, y[] = {8e6, 4e6}, took[2];
    MachineRank r = m.rank[0];
    r.memory = (Curve){2, x, y, false};
    m.rank = &r;
    for (int moves = 0; moves < 2; moves++) {
        const char *t = arena_printf(
            mem(), text,
            moves ? "  %b = exp %a : f32[500]\n  %d = exp %b : f32[500]\n" : "");
        const Func *entry = module_parse(mem(), "step.ir", t, strlen(t))->first;
        took[moves] = 1e3 * step_seconds(mem(), &m, &entry, 1, 1).seconds;
    }
    EXPECT_NEAR(took[0], 1 + 1, 1e-9);
    EXPECT_NEAR(took[1], 1 + 1.75 + 1, 1e-9);
}

/* A loop over 8 slices of 4000 bytes: a run moves 8000 of them, which stay in a cache that holds that
 * many; what runs hand on is 8000 behind, a slice as many as all runs move. Each op reads 2000
 * bytes and writes as many. */
TEST(slices_of_a_loop_are_as_far_as_the_loop_is_long) {
    static const char text[] =
        "module @t mesh() level(fused)\n"
        "func @step:step(%x: f32[500], %w: f32[8,500]) -> (f32[500], f32[8,500]) {\n"
        "  %y, %z = call %x, %w {fn=@run; times=8; carry=1; each=1} : f32[500], "
        "f32[8,500]\n"
        "  return %y, %z\n}\n"
        "func @run(%x: f32[500], %w: f32[500]) -> (f32[500], f32[500]) {\n"
        "  %y = exp %x : f32[500]\n"
        "  %z = exp %w : f32[500]\n  return %y, %z\n}\n";
    Machine m = slow_machine(1);
    double x[] = {8000, 64000}, y[] = {8e6, 4e6};
    MachineRank r = m.rank[0];
    r.memory = (Curve){2, x, y, false};
    m.rank = &r;
    const Func *entry = module_parse(mem(), "step.ir", text, strlen(text))->first;
    double took = 1e3 * step_seconds(mem(), &m, &entry, 1, 1).seconds;
    EXPECT_NEAR(took, 8 * (0.5 + 1), 1e-9);
}

/* A cache that would hold all gives 8 MB/s, memory 2 MB/s. A run moves 564000 bytes; since an operand
 * was touched the product has taken its flops and the bytes have come from memory: in as long as the
 * cache keeps a part in e of what it holds. */
TEST(caches_lose_what_is_not_touched) {
    static const char both[] = "(%x: f32[100,200], %w: f32[200,400], %a: f32[500]) -> "
                               "(f32[100,400], f32[500]) {\n"
                               "  %b = exp %a : f32[500]\n" PRODUCT "  return %y, %b\n}";
    const double bytes = 564000, held = 1 / 8e6, far = 1 / 2e6;
    Machine m = slow_machine(1);
    double x[] = {1e6, 1e9}, y[] = {8e6, 2e6};
    MachineRank r = m.rank[0];
    r.memory = (Curve){2, x, y, false};
    m.rank = &r;
    EXPECT_NEAR(seconds_of(&m, "", both), bytes * held, 1e-9);
    r.keeps_seconds = 16e-3 + bytes * far;
    EXPECT_NEAR(seconds_of(&m, "", both), bytes * (far + (held - far) * exp(-1)), 1e-9);
    r.keeps_seconds /= 2;
    EXPECT_NEAR(seconds_of(&m, "", both), bytes * (far + (held - far) * exp(-2)), 1e-9);
    r.keeps_seconds = 1e-6;
    EXPECT_NEAR(seconds_of(&m, "", both), bytes * far, 1e-9);
}

/* 6000 bytes at 0.75 kB/s. In place 1 kB/s, so what is overwritten costs a quarter: 2000 bytes
 * of a sum, and half of what goes through a function of one operand. */
TEST(what_is_overwritten_in_place_moves_less) {
    Machine m = slow_machine(1);
    double x = 1, slow = 750, fast = 1000;
    MachineRank r = m.rank[0];
    r.memory = (Curve){1, &x, &slow, false};
    m.rank = &r;
#define SUM(result, where)                                                               \
    "(%x: f32[500], %y: f32[500]) -> (f32[500]" result ") {\n"                           \
    "  %z = add %x, %y : f32[500]" where "\n  return %z\n}"
    EXPECT_NEAR(seconds_of(&m, "", SUM("", "")), 8, 1e-9);
    EXPECT_NEAR(seconds_of(&m, "", SUM("=%x", "")), 8, 1e-9);
    r.in_place = (Curve){1, &x, &fast, false};
    EXPECT_NEAR(seconds_of(&m, "", SUM("", "")), 8, 1e-9);
    EXPECT_NEAR(seconds_of(&m, "", SUM("=%x", "")), 6, 1e-9);
#define EXP(result)                                                                      \
    "(%x: f32[375]) -> (f32[375]" result ") {\n"                                         \
    "  %y = exp %x : f32[375]\n  return %y\n}"
    EXPECT_NEAR(seconds_of(&m, "", EXP("")), 4, 1e-9);
    EXPECT_NEAR(seconds_of(&m, "", EXP("=%x")), 2.5, 1e-9);
    fast = 3000; /* costs nothing, not less */
    EXPECT_NEAR(seconds_of(&m, "", EXP("=%x")), 2, 1e-9);
    fast = 500; /* no slower than a sum into a third place */
    EXPECT_NEAR(seconds_of(&m, "", SUM("=%x", "")), 8, 1e-9);
}

/* A sum reads two bytes for one that it writes: of 8 s those two take 2.67 (6000 bytes at 750 a
 * second, of reads alone 1500), of 6 s in place as well. */
TEST(reads_alone_tell_what_a_byte_costs_that_is_written) {
    Machine m = slow_machine(1);
    double x = 1, slow = 750, fast = 1000, reads = 1500;
    MachineRank r = m.rank[0];
    r.memory = (Curve){1, &x, &slow, false};
    r.in_place = (Curve){1, &x, &fast, false};
    r.reads = (Curve){1, &x, &reads, false};
    m.rank = &r;
    EXPECT_NEAR(seconds_of(&m, "", SUM("", "")), 8, 1e-9);
    EXPECT_NEAR(seconds_of(&m, "", SUM("=%x", "")), 6, 1e-9);
    EXPECT_NEAR(seconds_of(&m, "", EXP("")), 1 + 1.5 * (4 - 4.0 / 3), 1e-9);
    EXPECT_NEAR(seconds_of(&m, "", EXP("=%x")), 1 + 1.5 * (3 - 4.0 / 3), 1e-9);
    reads = 100; /* one that is read takes no longer than one that is written */
    EXPECT_NEAR(seconds_of(&m, "", SUM("", "")), 8, 1e-9);
    EXPECT_NEAR(seconds_of(&m, "", EXP("")), 4, 1e-9);
}

static double seconds_of_planned(const Machine *m, const char *first, const char *last) {
    const char *text =
        arena_printf(mem(),
                     "module @t mesh() level(planned)\n"
                     "func @step:step(%%x: f32[512], %%y: f32[512]) -> (f32[512]=%%x) "
                     "frame(4096) {\n"
                     "  %%z = call %%x, %%y {fn=@k} : f32[512]%s\n"
                     "  %%w = call %%z, %%y {fn=@k} : f32[512]%s\n"
                     "  return %%w\n}\n"
                     "func @k:kernel(%%a: f32[512], %%b: f32[512]) -> (f32[512]) {\n"
                     "  %%c = add %%a, %%b : f32[512]\n  return %%c\n}\n",
                     first, last);
    const Func *entry = module_parse(mem(), "step.ir", text, strlen(text))->first;
    return step_seconds(mem(), m, &entry, 1, 1).seconds;
}

/* Two kernels of 6144 bytes: what counts is where values are. */
TEST(locations_say_what_is_in_place) {
    Machine m = slow_machine(1);
    double x = 1, slow = 768, fast = 1024;
    MachineRank r = m.rank[0];
    r.memory = (Curve){1, &x, &slow, false};
    r.in_place = (Curve){1, &x, &fast, false};
    m.rank = &r;
    EXPECT_NEAR(seconds_of_planned(&m, "@a0", "@a0"), 6 + 6, 1e-9);
    EXPECT_NEAR(seconds_of_planned(&m, "@0", "@a0"), 8 + 8, 1e-9);
    EXPECT_NEAR(seconds_of_planned(&m, "@0", "@0"), 8 + 6, 1e-9);
    EXPECT_NEAR(seconds_of_planned(&m, "@0", "@2048"), 8 + 8, 1e-9);
}
