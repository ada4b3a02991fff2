/* Seconds of steps of hand-made programs on hand-made machines, against arithmetic on paper. */
#include "passes/estimate/step_seconds.h"
#include "../test.h"
#include <math.h>

static Arena *mem(void) {
    static Arena *a;
    if (!a) a = arena_new();
    return a;
}

/* Products at 1 GFLOP/s, messages of 1 ms and 1 GB/s. */
static Machine slow_machine(int cores) {
    static MachineRank rank = {.ranks = 1, .threads = 1, .flops = {1e9, 2e9}};
    Machine m = machine_plain;
    m.rank = &rank;
    m.cores = cores;
    for (int l = 0; l < LINK_LEVELS; l++)
        m.link[l] = (Link){.start_seconds = 1e-3, .bytes_per_second = 1e9};
    return m;
}

/* stage -1: there is one. */
static const Func *entry_of(const char *mesh, const char *body, int stage) {
    const char *rest = strstr(body, " {\n");
    bool many = stage >= 0;
    const char *text = arena_printf(
        mem(), "module @t mesh(%s)%s level(fused)\nfunc @step:step%.*s%s%s\n", mesh,
        many ? " stages(4)" : "", (int)(rest - body), body,
        many ? arena_printf(mem(), " stage(%d)", stage) : "", rest);
    return module_parse(mem(), "step.ir", text, strlen(text))->first;
}

static double seconds_of(const Machine *m, const char *mesh, const char *body) {
    const Func *entry = entry_of(mesh, body, -1);
    return step_seconds(mem(), m, &entry, 1, 1).seconds;
}

#define EXP_500                                                                          \
    "(%x: f32[500]) -> (f32[500]) {\n"                                                   \
    "  %y = exp %x : f32[500]\n  return %y\n}"
#define MATRIX  "(%x: f32[100,200], %w: f32[200,400]) -> (f32[100,400]) {\n"
#define PRODUCT "  %y = dot %x, %w {mk,kn->mn} : f32[100,400]\n" /* 16 ms */

TEST(a_product_takes_its_flops_or_its_bytes) {
    Machine m = slow_machine(1);
    m.op_start_seconds = 1e-3;
    EXPECT_NEAR(1e3 * seconds_of(&m, "", MATRIX PRODUCT "  return %y\n}"), 17, 1e-9);
    /* 320000 + 160000 + 80000 bytes */
    double x = 1, y = 1e6;
    MachineRank r = m.rank[0];
    r.memory = (Curve){1, &x, &y, false};
    m.rank = &r;
    EXPECT_NEAR(1e3 * seconds_of(&m, "", MATRIX PRODUCT "  return %y\n}"), 561, 1e-9);
    EXPECT_NEAR(1e3 * seconds_of(&m, "", EXP_500), 5, 1e-9);
    ElementRate rate = {OP_exp, 1e5};
    r.element = &rate;
    r.nelements = 1;
    EXPECT_NEAR(1e3 * seconds_of(&m, "", EXP_500), 10, 1e-9);
}

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

#define LATE                                                                             \
    "(%x: f32[100,200], %w: f32[200,400], %g: f32[1000000]) -> (f32[100,400], "          \
    "f32[1000000]) {\n"                                                                  \
    "  %h = all_reduce %g {axis=\"dp\"; late=1} : f32[1000000]\n"
#define ARRIVES "  %s = arrive %h, %g : f32[1000000]\n"

/* 4 MB, 2 rounds: 6 ms. */
TEST(late_collectives_hide_behind_products) {
    Machine m = slow_machine(2);
    const char *hidden = LATE PRODUCT ARRIVES "  return %y, %s\n}";
    const char *exposed = LATE ARRIVES PRODUCT "  return %y, %s\n}";
    EXPECT_NEAR(1e3 * seconds_of(&m, "dp=2", hidden), 16, 1e-9);
    EXPECT_NEAR(1e3 * seconds_of(&m, "dp=2", exposed), 22, 1e-9);
    m.hidden = 0.5;
    EXPECT_NEAR(1e3 * seconds_of(&m, "dp=2", hidden), 19, 1e-9);
    m.hidden = 0;
    EXPECT_NEAR(1e3 * seconds_of(&m, "dp=2", hidden), 22, 1e-9);
    EXPECT_NEAR(1e3 * seconds_of(&m, "dp=2", exposed), 22, 1e-9);
}

/* A collective that begins behind a late one waits for it, and nothing is computed meanwhile. */
TEST(what_is_waited_for_slows_no_compute) {
    Machine m = slow_machine(2);
    const char *behind =
        LATE "  %u = all_reduce %g {axis=\"dp\"} : f32[1000000]\n" PRODUCT ARRIVES
             "  return %y, %s\n}";
    for (m.hidden = 0; m.hidden <= 1; m.hidden += 0.5)
        EXPECT_NEAR(1e3 * seconds_of(&m, "dp=2", behind), 6 + 6 + 16, 1e-9);
}

static uint64_t next_random(uint64_t *state, uint64_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % below;
}

/* Products and collectives in a random order; late: collectives end somewhere behind. */
static const char *random_step(uint64_t seed, bool late) {
    enum { OPS = 24 };
    Text t = text_new(mem());
    int end[OPS];
    text_add(
        &t, "(%%x: f32[100,200], %%w: f32[200,400], %%g: f32[1000000]) -> (f32[100,400]) "
            "{\n");
    for (int i = 0; i < OPS; i++) {
        bool product = next_random(&seed, 2);
        end[i] =
            (int)next_random(&seed, OPS); /* drawn for each, so that both draw alike */
        bool ends = end[i] >= i && next_random(&seed, 3);
        if (product || !ends) end[i] = -1;
        if (product)
            text_add(&t, "  %%y%d = dot %%x, %%w {mk,kn->mn} : f32[100,400]\n", i);
        else
            text_add(&t, "  %%h%d = all_reduce %%g {axis=\"dp\"%s} : f32[1000000]\n", i,
                     late && ends ? "; late=1" : "");
        for (int k = 0; late && k <= i; k++)
            if (end[k] == i)
                text_add(&t, "  %%s%d = arrive %%h%d, %%g : f32[1000000]\n", k, k);
    }
    text_add(&t, "  %%y = dot %%x, %%w {mk,kn->mn} : f32[100,400]\n  return %%y\n}");
    return t.s;
}

/* Each second of a collective is waited for, or costs what cannot be hidden of it. */
TEST(late_collectives_are_never_slower) {
    Machine m = slow_machine(2);
    for (uint64_t seed = 1; seed <= 200; seed++) {
        m.hidden = (double)(seed % 5) / 4;
        double late = seconds_of(&m, "dp=2", random_step(seed, true));
        double at_once = seconds_of(&m, "dp=2", random_step(seed, false));
        test_at("seed %llu: %g, %g", (unsigned long long)seed, late, at_once);
        EXPECT(late <= at_once * (1 + 1e-12));
    }
}

/* What collectives take was measured with all ranks at work: only compute is stretched. */
TEST(ranks_of_a_stage_share_cores) {
    Machine m = slow_machine(1);
    const char *exposed = LATE ARRIVES PRODUCT "  return %y, %s\n}";
    EXPECT_NEAR(1e3 * seconds_of(&m, "dp=2", exposed), 32 + 6, 1e-9);
    double x[] = {1e6, 4e6}, y[] = {2e-3, 8e-3};
    CollectiveCurve c = {OP_all_reduce, 2, 2, LINK_HOST, {2, x, y, true}};
    m.collective = &c;
    m.ncollectives = 1;
    EXPECT_NEAR(1e3 * seconds_of(&m, "dp=2", exposed), 32 + 8, 1e-9);
}

#define SENDS                                                                            \
    "(%x: f32[100,200], %w: f32[200,400]) -> (f32[100,400]) {\n" PRODUCT                 \
    "  %t = send %y {to=1; message=0} : i32[]\n  sent %t, %y {to=1; message=0}\n"        \
    "  return %y\n}"
#define TAKES                                                                            \
    "(%w: f32[400,100]) -> (f32[100,100]) {\n"                                           \
    "  %x = receive {from=0; message=0} : f32[100,400]\n"                                \
    "  %y = dot %x, %w {mk,kn->mn} : f32[100,100]\n  return %y\n}"
#define IDLE "(%x: f32[4]) -> (f32[4]) {\n  return %x\n}"
#define BOTH                                                                             \
    "(%x: f32[100,200], %w: f32[200,400]) -> (f32[100,400]) {\n" PRODUCT "  return "     \
    "%y\n}"

static StepTime seconds_of_two(const Machine *m, const char *first, const char *second) {
    const Func *entry[] = {entry_of("", first, 0), entry_of("", second, 1)};
    return step_seconds(mem(), m, entry, 2, 1);
}

/* 16 ms, a message of 160000 bytes, 8 ms. */
TEST(stages_wait_for_messages) {
    Machine m = slow_machine(2);
    StepTime t = seconds_of_two(&m, SENDS, TAKES);
    EXPECT_NEAR(1e3 * t.seconds, 16 + 1.16 + 8, 1e-9);
    EXPECT_NEAR(1e3 * t.stage[1].waiting, 17.16, 1e-9);
    EXPECT_NEAR(1e3 * t.stage[1].sending, 1.16, 1e-9);
    EXPECT_NEAR(1e3 * t.stage[0].end, 17.16, 1e-9);
    EXPECT_NEAR(1e3 * t.stage[1].kind[WORK_PRODUCTS], 8, 1e-9);
}

#define TAKES_LATE                                                                       \
    "(%w: f32[400,100], %g: f32[1000000]) -> (f32[100,100], f32[1000000]) {\n"           \
    "  %h = all_reduce %g {axis=\"dp\"; late=1} : f32[1000000]\n"                        \
    "  %x = receive {from=0; message=0} : f32[100,400]\n"                                \
    "  %s = arrive %h, %g : f32[1000000]\n"                                              \
    "  %y = dot %x, %w {mk,kn->mn} : f32[100,100]\n  return %y, %s\n}"

#define SENDS_AT_ONCE                                                                    \
    "(%y: f32[100,400]) -> (f32[100,400]) {\n"                                           \
    "  %t = send %y {to=1; message=0} : i32[]\n  sent %t, %y {to=1; message=0}\n"        \
    "  return %y\n}"

/* 6 ms of a collective pass while the product of the other stage does; one of 1.16 that is ready is
 * taken behind it. */
TEST(late_collectives_go_on_while_a_stage_waits) {
    Machine m = slow_machine(4);
    const Func *slow[] = {entry_of("dp=2", SENDS, 0), entry_of("dp=2", TAKES_LATE, 1)};
    const Func *fast[] = {entry_of("dp=2", SENDS_AT_ONCE, 0),
                          entry_of("dp=2", TAKES_LATE, 1)};
    EXPECT_NEAR(1e3 * step_seconds(mem(), &m, slow, 2, 1).seconds, 16 + 1.16 + 8, 1e-9);
    EXPECT_NEAR(1e3 * step_seconds(mem(), &m, fast, 2, 1).seconds, 6 + 1.16 + 8, 1e-9);
}

/* The message sets off behind the 6 ms, though its stage has gone on. */
TEST(messages_are_sent_behind_late_collectives) {
    static const char sends[] =
        "(%y: f32[100,400], %x: f32[100,200], %w: f32[200,400], %g: f32[1000000]) -> "
        "(f32[100,400], f32[1000000]) {\n"
        "  %h = all_reduce %g {axis=\"dp\"; late=1} : f32[1000000]\n"
        "  %t = send %y {to=1; message=0} : i32[]\n"
        "  %z = dot %x, %w {mk,kn->mn} : f32[100,400]\n"
        "  sent %t, %y {to=1; message=0}\n"
        "  %s = arrive %h, %g : f32[1000000]\n"
        "  return %z, %s\n}";
    Machine m = slow_machine(4);
    const Func *entry[] = {entry_of("dp=2", sends, 0), entry_of("dp=2", TAKES, 1)};
    StepTime t = step_seconds(mem(), &m, entry, 2, 1);
    EXPECT_NEAR(1e3 * t.stage[0].end, 16, 1e-9);
    EXPECT_NEAR(1e3 * t.stage[1].end, 6 + 1.16 + 8, 1e-9);
}

/* A function that computes for 16 ms and then sends for 6 is not held up by 6 ms that its caller has in
 * flight; one that sends first is, in its first run. */
TEST(messages_of_a_call_wait_for_those_of_its_caller) {
    static const char text[] =
        "module @t mesh(dp=2) level(fused)\n"
        "func @step:step(%%x: f32[100,200], %%w: f32[200,400], %%g: f32[1000000]) -> "
        "(f32[100,200], f32[1000000]) {\n"
        "  %%h = all_reduce %%g {axis=\"dp\"; late=1} : f32[1000000]\n"
        "  %%y = call %%x, %%w, %%g {fn=@f; times=2; carry=1; each=0} : f32[100,200]\n"
        "  %%s = arrive %%h, %%g : f32[1000000]\n  return %%y, %%s\n}\n"
        "func @f(%%x: f32[100,200], %%w: f32[200,400], %%g: f32[1000000]) -> "
        "(f32[100,200]) {\n%s%s%s  return %%x\n}\n";
    static const char sends[] = "  %h = all_reduce %g {axis=\"dp\"} : f32[1000000]\n";
    Machine m = slow_machine(2);
    for (int first = 0; first < 2; first++) {
        const char *t =
            arena_printf(mem(), text, first ? sends : "", PRODUCT, first ? "" : sends);
        const Func *entry = module_parse(mem(), "step.ir", t, strlen(t))->first;
        m.hidden = 1;
        EXPECT_NEAR(1e3 * step_seconds(mem(), &m, &entry, 1, 1).seconds,
                    2 * (16 + 6) + (first ? 6 : 0), 1e-9);
        m.hidden = 0; /* what is waited for costs compute nothing besides */
        EXPECT_NEAR(1e3 * step_seconds(mem(), &m, &entry, 1, 1).seconds, 2 * (16 + 6) + 6,
                    1e-9);
    }
}

TEST(stages_share_cores_while_both_compute) {
    Machine m = slow_machine(1);
    EXPECT_NEAR(1e3 * seconds_of_two(&m, SENDS, TAKES).seconds, 16 + 1.16 + 8, 1e-9);
    EXPECT_NEAR(1e3 * seconds_of_two(&m, BOTH, BOTH).seconds, 32, 1e-9);
    m.cores = 2;
    EXPECT_NEAR(1e3 * seconds_of_two(&m, BOTH, BOTH).seconds, 16, 1e-9);
    EXPECT_NEAR(1e3 * seconds_of_two(&m, SENDS, TAKES).seconds, 16 + 1.16 + 8, 1e-9);
    /* On two hosts of a rank each they do not share. */
    m.cores = 1;
    m.host_ranks = 1;
    EXPECT_NEAR(1e3 * seconds_of_two(&m, BOTH, BOTH).seconds, 16, 1e-9);
}

/* Rank g is on core g % 2. */
TEST(ranks_are_dealt_out_to_cores) {
    static const struct {
        const char *mesh;
        bool works[4];
        double slower;
    } cases[] = {
        {"", {true, false, false, false}, 1},
        {"", {true, true, false, false}, 1},
        {"", {true, false, true, false}, 2},
        {"", {true, true, true, false}, 2},
        {"", {true, true, true, true}, 2},
        {"dp=2", {true, false}, 1},
        {"dp=2", {true, true}, 2},
        {"dp=2", {true, true, true, true}, 4},
        {"dp=3", {true, false, false, false}, 2}, /* two ranks on one core */
        {"dp=3", {true, true, false, false}, 3},
        {"dp=3", {true, true, true, false}, 5},
    };
    Machine m = slow_machine(2);
    const Func *entry[4];
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        for (int s = 0; s < 4; s++)
            entry[s] = entry_of(cases[i].mesh, cases[i].works[s] ? BOTH : IDLE, s);
        double seconds = step_seconds(mem(), &m, entry, 4, 1).seconds;
        EXPECT_NEAR(1e3 * seconds, 16 * cases[i].slower, 1e-9);
    }
}

/* Stage 1 gets a message after 17.16 ms, for 8 ms of work, while stage 3 has 32 ms for their
 * core. */
TEST(a_stage_without_a_core_sees_a_message_late) {
    static const char twice[] =
        "(%x: f32[100,200], %w: f32[200,400]) -> (f32[100,400], "
        "f32[100,400]) {\n" PRODUCT "  %z = dot %x, %w {mk,kn->mn} : f32[100,400]\n"
        "  return %y, %z\n}";
    static const struct {
        double notice_ms, end_ms;
    } cases[] = {
        {0, 17.16 + 16},
        {2, 17.16 + 2 + 16},
        {100, 32 + 8}, /* by then the core is free */
    };
    Machine m = slow_machine(2);
    const Func *entry[] = {entry_of("", SENDS, 0), entry_of("", TAKES, 1),
                           entry_of("", IDLE, 2), entry_of("", twice, 3)};
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        m.notice_seconds = 1e-3 * cases[i].notice_ms;
        StepTime t = step_seconds(mem(), &m, entry, 4, 1);
        EXPECT_NEAR(1e3 * t.stage[1].end, cases[i].end_ms, 1e-9);
        EXPECT_NEAR(1e3 * t.seconds, 40, 1e-9); /* no core stands still */
        EXPECT_NEAR(1e3 * t.stage[0].end, 17.16, 1e-9);
    }
    m.cores = 4;
    EXPECT_NEAR(1e3 * step_seconds(mem(), &m, entry, 4, 1).stage[1].end, 25.16, 1e-9);
}

/* Where cores have different numbers of ranks launch binds none, and half of what the system
 * could win by moving ranks it does; so it does where a rank has more threads than cores. */
TEST(ranks_that_do_not_come_out_even_are_moved) {
    static const struct {
        const char *mesh;
        int cores, threads;
        double slower;
    } cases[] = {
        {"dp=3", 2, 1, (1.5 + 2) / 2},
        {"dp=4", 2, 1, 2},
        {"dp=5", 2, 1, (2.5 + 3) / 2},
        {"dp=2", 3, 2, (4 / 3.0 + 2) / 2},
        {"", 2, 3, (1.5 + 2) / 2},
        {"dp=3", 6, 2, 1},
        {"dp=3", 0, 2, 1},
    };
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        Machine m = slow_machine(cases[i].cores);
        const Func *entry = entry_of(cases[i].mesh, BOTH, -1);
        test_at("%s on %d cores", cases[i].mesh, cases[i].cores);
        EXPECT_NEAR(1e3 * step_seconds(mem(), &m, &entry, 1, cases[i].threads).seconds,
                    16 * cases[i].slower, 1e-9);
    }
    /* Of three stages two work: they have a core each. */
    Machine m = slow_machine(2);
    const Func *two[] = {entry_of("", BOTH, 0), entry_of("", IDLE, 1),
                         entry_of("", BOTH, 2)};
    EXPECT_NEAR(1e3 * step_seconds(mem(), &m, two, 3, 1).seconds, 16, 1e-9);
}
