/* Tests of send, sent and receive: steps of two stages written by hand, at levels local and
 * planned, and what the verifier and the interpreter say of wrong ones. */
#include "../mem.h"
#include "../test.h"
#include "ir/ir.h"
#include "passes/passes.h"

static const char head[] = "module @two mesh() stages(2) level(local)\n\n";

/* Stage 0 doubles and sends, adds what comes back; stage 1 adds one and sends that back. */
static const char good[] =
    "func @a:step(%x: f32[3] {role=\"data\"}) -> (f32[3], f32[3]) stage(0) {\n"
    "  %y = scale %x {by=2} : f32[3]\n"
    "  %t = send %y {to=1; message=0} : i32[]\n"
    "  %w = exp %x : f32[3]\n"
    "  %z = receive {from=1; message=0} : f32[3]\n"
    "  %r = add %w, %z : f32[3]\n"
    "  sent %t, %y {to=1; message=0}\n"
    "  return %r, %z\n"
    "}\n\n"
    "func @b:step(%one: f32[] {role=\"data\"}) -> (f32[3]) stage(1) {\n"
    "  %y = receive {from=0; message=0} : f32[3]\n"
    "  %z = add %y, %one {c,_->c} : f32[3]\n"
    "  %t = send %z {to=0; message=0} : i32[]\n"
    "  sent %t, %z {to=0; message=0}\n"
    "  return %z\n"
    "}\n";

static Module *read_text(const char *text) {
    return module_parse(mem(), "two.ir", text, strlen(text));
}

static Module *read_steps(const char *steps) {
    return read_text(arena_printf(mem(), "%s%s", head, steps));
}

/* `from` (all of them) is `to`. */
static const char *with(const char *text, const char *from, const char *to) {
    Text t = text_new(mem());
    EXPECT(strstr(text, from));
    for (const char *p = text, *at; *p; p = at ? at + strlen(from) : p + strlen(p)) {
        at = strstr(p, from);
        text_add_bytes(&t, p, at ? (size_t)(at - p) : strlen(p));
        if (at) text_add(&t, "%s", to);
    }
    return t.s;
}

typedef struct Run {
    Tensor ****arg, ****ret;
    const char *stuck;
} Run;

static Run run_steps(Module *m) {
    Run r = {NEW_ARRAY(mem(), Tensor ***, 2), NEW_ARRAY(mem(), Tensor ***, 2), NULL};
    for (int s = 0; s < 2; s++) {
        const Func *f = module_stage(m, s);
        r.arg[s] = NEW_ARRAY(mem(), Tensor **, 1);
        r.ret[s] = NEW_ARRAY(mem(), Tensor **, 1);
        r.arg[s][0] = NEW_ARRAY(mem(), Tensor *, 4);
        r.ret[s][0] = NEW_ARRAY(mem(), Tensor *, 4);
        for (int i = 0; i < f->narg; i++) {
            r.arg[s][0][i] = tensor_new(mem(), &f->arg[i]->ty);
            for (int64_t k = 0; k < type_count(&f->arg[i]->ty); k++)
                tensor_set(r.arg[s][0][i], k, (double)(k + 1));
        }
    }
    r.stuck = interp_run_stages(mem(), m, r.arg, r.ret);
    return r;
}

static void expect_sums(Module *m) {
    Run r = run_steps(m);
    EXPECT(!r.stuck);
    for (int k = 0; k < 3; k++) {
        double there = 2.0 * (k + 1) + 1;
        EXPECT_NEAR(tensor_get(r.ret[1][0][0], k), there, 1e-6);
        EXPECT_NEAR(tensor_get(r.ret[0][0][1], k), there, 1e-6);
        EXPECT_NEAR(tensor_get(r.ret[0][0][0], k), there + exp(k + 1), 1e-6);
    }
}

TEST(stages_send_each_other) {
    expect_sums(read_steps(good));
}

/* In places of one frame a stage: the plan leaves what was sent until it was waited for. */
TEST(stages_send_each_other_in_planned_memory) {
    Module *m = read_steps(good);
    PassOptions o = pass_options_default();
    passes_run(m, "expand,epilogue,arrange,fuse,overlap,memplan", &o);
    EXPECT(m->level == LEVEL_PLANNED);
    expect_sums(m);
    const char *text = module_print(mem(), m);
    EXPECT_PART(text, "send");
    EXPECT_STR(module_print(mem(), read_text(text)), text);
    expect_sums(read_text(text));
}

/* A value that nobody else reads is in nobody's way before `sent`, and is after it. */
TEST(what_is_sent_keeps_its_place_until_it_is_waited_for) {
    Module *m = read_steps(good);
    PassOptions o = pass_options_default();
    passes_run(m, "expand,epilogue,arrange,fuse,overlap,memplan", &o);
    const Func *f = module_stage(m, 0);
    const Value *sent = NULL, *other = NULL;
    for (const Op *op = f->first; op; op = op->next) {
        if (op->kind == OP_send) sent = op->in[0];
        if (sent && !other && op_is_call(op)) other = op->out[0];
    }
    EXPECT(sent && other && sent != other);
    EXPECT(sent->loc.kind != other->loc.kind || sent->loc.at != other->loc.at);
}

TEST(printed_as_read) {
    const char *text = module_print(mem(), read_steps(good));
    EXPECT_PART(text, "module @two mesh() stages(2) level(local)");
    EXPECT_PART(text, "%t = send %y {to=1; message=0} : i32[]");
    EXPECT_PART(text, "  sent %t, %y {to=1; message=0}\n");
    EXPECT_PART(text, "%z = receive {from=1; message=0} : f32[3]");
    EXPECT_STR(module_print(mem(), read_text(text)), text);
}

/* Dead or repeated they stay: they are for another stage. */
TEST(simplify_keeps_messages) {
    Module *m = read_steps(good);
    PassOptions o = pass_options_default();
    passes_run(m, "simplify", &o);
    expect_sums(m);
    m = read_steps(with(good, "return %r, %z", "return %w, %x"));
    passes_run(m, "simplify", &o);
    int messages = 0;
    for (const Op *op = module_stage(m, 0)->first; op; op = op->next)
        messages += op_has(op, F_EFFECT);
    EXPECT_INT(messages, 3);
}

/* Order between two stages is by number, not by time. */
TEST(messages_are_taken_by_their_number) {
    static const char steps[] =
        "func @a:step(%x: f32[3] {role=\"data\"}) -> (f32[3]) stage(0) {\n"
        "  %y = scale %x {by=10} : f32[3]\n"
        "  %t = send %x {to=1; message=7} : i32[]\n"
        "  %u = send %y {to=1; message=2} : i32[]\n"
        "  sent %u, %y {to=1; message=2}\n"
        "  sent %t, %x {to=1; message=7}\n"
        "  return %y\n"
        "}\n"
        "func @b:step() -> (f32[3]) stage(1) {\n"
        "  %y = receive {from=0; message=2} : f32[3]\n"
        "  %x = receive {from=0; message=7} : f32[3]\n"
        "  %d = sub %y, %x : f32[3]\n"
        "  return %d\n"
        "}\n";
    Run r = run_steps(read_steps(steps));
    EXPECT(!r.stuck);
    for (int k = 0; k < 3; k++)
        EXPECT_NEAR(tensor_get(r.ret[1][0][0], k), 9.0 * (k + 1), 1e-6);
}

/* ---- wrong ones ---- */

TEST(stages_that_wait_for_each_other_are_told) {
    static const char steps[] =
        "func @a:step(%x: f32[3] {role=\"data\"}) -> (f32[3]) stage(0) {\n"
        "  %z = receive {from=1; message=4} : f32[3]\n"
        "  %t = send %x {to=1; message=0} : i32[]\n"
        "  sent %t, %x {to=1; message=0}\n"
        "  return %z\n"
        "}\n"
        "func @b:step() -> (f32[3]) stage(1) {\n"
        "  %y = receive {from=0; message=0} : f32[3]\n"
        "  %t = send %y {to=0; message=4} : i32[]\n"
        "  sent %t, %y {to=0; message=4}\n"
        "  return %y\n"
        "}\n";
    EXPECT_STR(run_steps(read_steps(steps)).stuck,
               "stage 0 waits for message 4 of stage 1 (%z), "
               "stage 1 waits for message 0 of stage 0 (%y)");
}

TEST(a_message_that_nobody_sends_is_told) {
    const char *stuck = run_steps(read_steps(with(good, "receive {from=1; message=0}",
                                                  "receive {from=1; message=1}")))
                            .stuck;
    EXPECT_STR(stuck, "stage 0 waits for message 1 of stage 1 (%z)");
}

TEST(wrong_messages_are_refused) {
    static const struct {
        const char *from, *to, *error;
    } wrong[] = {
        {"sent %t, %y", "sent %t, %w", "operand 0 is no send of operand 1"},
        {"  sent %t, %y {to=1; message=0}\n", "",
         "send: nobody waits for this message: a `sent` is missing"},
        {"  return %r, %z\n", "  sent %t, %y {to=1; message=0}\n  return %r, %z\n",
         "sent: this message has been waited for"},
        {"{to=1;", "{to=0;", "to=0 is no other one of the 2 stages"},
        {"{to=1;", "{to=2;", "to=2 is no other one of the 2 stages"},
        {"{from=0;", "{from=1;", "from=1 is no other one of the 2 stages"},
        {"{from=0;", "{from=-1;", "from=-1 is no other one of the 2 stages"},
        {"stage(1)", "stage(2)", "stage is said of an entry, and below the module's"},
        {"stage(1)", "stage(0)", "@b: stage 0 has an entry already"},
        {"{from=0; message=0}", "{from=0}", "attribute 'message' is missing"},
    };
    for (int i = 0; i < ARRAY_LEN(wrong); i++) {
        test_at("%s", wrong[i].error);
        EXPECT_FAIL(read_steps(with(good, wrong[i].from, wrong[i].to)), EXIT_CONFIG,
                    wrong[i].error);
    }
}

TEST(messages_are_between_stages_alone) {
    static const char inside[] = "func @f(%x: f32[3]) -> (f32[3]) {\n"
                                 "  %y = receive {from=0; message=0} : f32[3]\n"
                                 "  return %y\n"
                                 "}\n";
    static const char why[] = "messages are for the steps of stages, in a module with";
    EXPECT_FAIL(read_steps(inside), EXIT_CONFIG, why);
    EXPECT_FAIL(read_text(arena_printf(mem(), "module @m mesh() level(local)\n%s",
                                       with(inside, "@f(", "@f:step("))),
                EXIT_CONFIG, why);
    EXPECT_FAIL(read_text("module @m mesh() stages(0) level(local)\n"), EXIT_CONFIG,
                "a module has 1 to 1024 stages");
    EXPECT_FAIL(read_text("module @m mesh() stages(1025) level(local)\n"), EXIT_CONFIG,
                "a module has 1 to 1024 stages");
}

/* Found when it is run: the verifier sees a stage at a time. */
TEST(a_message_of_another_type_is_refused) {
    const char *longer =
        with(with(with(good, "%y = receive {from=0; message=0} : f32[3]",
                       "%y = receive {from=0; message=0} : f32[4]"),
                  "add %y, %one {c,_->c} : f32[3]", "add %y, %one {c,_->c} : f32[4]"),
             "(f32[3]) stage(1)", "(f32[4]) stage(1)");
    EXPECT_FAIL(run_steps(read_steps(longer)), EXIT_CONFIG,
                "message 0 of stage 0 is f32[3]");
}
