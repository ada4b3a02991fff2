/* Seconds of steps of hand-made programs on hand-made machines, against arithmetic on paper. */
#include "hand_machine.h"

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
