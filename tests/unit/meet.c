/* Tests of pass meet: it takes whatever pass pipeline makes, and of steps that are spoilt
 * by chance those alone that do the same as before. */
#include "../test.h"
#include "base/rng.h"
#include "ir/ir.h"
#include "ir/sample.h"
#include "passes/passes.h"
#include "passes/pipe/schedule.h"

static const char to_steps[] =
    "simplify,cut,autodiff,simplify,halve,train,simplify,place,"
    "simplify,keep,sink,simplify,pipeline";
static const char to_forward[] = "simplify,cut,place,simplify,pipeline";

/* Residual layers; %e is read by the first and by the last stage. */
static Module *model_of(Arena *mem, int layers) {
    char *text = arena_printf(
        mem,
        "module @deep mesh() level(global)\n"
        "func @layer(%%x: f32[2,3], %%w: f32[3,3]) -> (f32[2,3]) {\n"
        "  %%d = dot %%x, %%w {bi,io->bo} : f32[2,3]\n"
        "  %%t = tanh %%d : f32[2,3]\n"
        "  %%y = add %%x, %%t : f32[2,3]\n"
        "  return %%y\n}\n"
        "func @net:model(%%x: f32[2,4] {role=data}, %%e: f32[4,3] {role=param},\n"
        "    %%w: f32[%d,3,3] {role=param; decay=1}) -> (f32[]) {\n"
        "  %%h = dot %%x, %%e {bi,io->bo} : f32[2,3]\n"
        "  %%y = call %%h, %%w {fn=@layer; times=%d; carry=1; each=1} : f32[2,3]\n"
        "  %%z = dot %%y, %%e {bo,io->bi} : f32[2,4]\n"
        "  %%s = mul %%z, %%z : f32[2,4]\n"
        "  %%loss = sum %%s {bi->_} : f32[]\n"
        "  return %%loss\n}\n",
        layers, layers);
    return module_parse(mem, "deep", text, strlen(text));
}

static Module *steps_of(Arena *mem, const char *schedule, int stages, int chunks,
                        int micro) {
    Module *m = model_of(mem, stages * chunks);
    PassOptions o = pass_options_default();
    o.stages = stages;
    o.stage_chunks = chunks;
    o.schedule_name = schedule;
    o.micro_batches = micro;
    o.clip_norm = 0.01;
    passes_run(m, to_steps, &o);
    return m;
}

static void run_meet(Module *m) {
    PassOptions o = pass_options_default();
    passes_run(m, "meet", &o);
}

static int count(const Module *m, int kind) {
    int n = 0;
    for (const Func *f = m->first; f; f = f->next)
        for (const Op *op = f->first; op; op = op->next) n += op->kind == kind;
    return n;
}

/* ---- what pass pipeline makes ---- */

static bool schedule_takes(const char *name, int stages, int chunks, int micro) {
    return (stages > 1 || chunks == 1) && schedule_fits(name, stages, chunks, micro);
}

static void meet_forward(Arena *mem, const char *name, int stages, int chunks) {
    Module *m = model_of(mem, stages * chunks);
    PassOptions o = pass_options_default();
    const PipeSchedule *s = schedule_make(mem, name, stages, stages * chunks, stages);
    o.schedule = schedule_forward(mem, s);
    passes_run(m, to_forward, &o);
    run_meet(m);
}

TEST_LABEL_OF(every_schedule_meets, RELEASED);
TEST_LIMIT(every_schedule_meets, 120) {
    int n = 0, messages = 0;
    for (int g = 0; schedule_name_at(g); g++)
        for (int stages = 1; stages <= 6; stages++)
            for (int chunks = 1; chunks <= 3; chunks++)
                for (int micro = 1; micro <= 9; micro++) {
                    const char *name = schedule_name_at(g);
                    if (!schedule_takes(name, stages, chunks, micro)) continue;
                    test_at("%s, %d stages of %d chunks, %d micro-batches", name, stages,
                            chunks, micro);
                    Arena *mem = arena_new();
                    Module *m = steps_of(mem, name, stages, chunks, micro);
                    run_meet(m);
                    if (stages > 1) meet_forward(mem, name, stages, chunks);
                    messages += count(m, OP_send);
                    n++;
                    arena_free(mem);
                }
    printf("  %d pipelines, %d messages\n", n, messages);
    EXPECT(n > 250 && messages > 40 * n);
}

static void look_through(Module *m) {
    module_verify(m, NULL, NULL);
}

static void meet(Module *m) {
    pass_meet(m, NULL);
}

/* The best of several, since other programs run beside it. */
static double seconds_of(void (*run)(Module *m), Module *m) {
    double best = INFINITY;
    for (int i = 0; i < 5; i++) {
        double start = clock_seconds();
        run(m);
        best = fmin(best, clock_seconds() - start);
    }
    return best;
}

/* Over those of looking at each op and operand, which a module that no cache holds makes slow
 * as well. */
static double meet_share(int micro) {
    Arena *mem = arena_new();
    Module *m = steps_of(mem, "1f1b", 8, 1, micro);
    double meets = seconds_of(meet, m), looks = seconds_of(look_through, m);
    printf("  %d micro-batches on 8 stages, %d messages: %.1f ms, looked through in %.1f "
           "ms\n",
           micro, count(m, OP_send), 1e3 * meets, 1e3 * looks);
    arena_free(mem);
    return meets / looks;
}

TEST_LABEL_OF(many_micro_batches_take_no_time, RELEASED);
TEST_LABEL_OF(many_micro_batches_take_no_time, ALONE);
TEST(many_micro_batches_take_no_time) {
    /* Measured 0.4 to 1.9 times; 8 times where it grows with the square of the messages. */
    double few = meet_share(256), many = meet_share(2048);
    EXPECT(many < 4 * few);
}

/* ---- spoilt steps ---- */

typedef struct Spoil {
    Module *m;
    uint64_t seed, drawn;
    const char *what;
} Spoil;

static int draw(Spoil *s, int n) {
    return (int)(rng_uniform(s->seed, 0, s->drawn++) * n);
}

static bool is_message(const Op *op) {
    return op->kind == OP_send || op->kind == OP_sent || op->kind == OP_receive;
}

static int list_messages(const Func *f, int kind, Op **list) {
    int n = 0;
    for (Op *op = f->first; op; op = op->next)
        if (kind < 0 ? is_message(op) : op->kind == kind) list[n++] = op;
    return n;
}

static const char *peer_key(const Op *op) {
    return op->kind == OP_receive ? "from" : "to";
}

static Op *wait_of(const Op *send) {
    for (Op *op = send->next; op; op = op->next)
        if (op->kind == OP_sent && op->in[0] == send->out[0]) return op;
    test_fail(__FILE__, __LINE__, "a send without sent");
}

static void unlink_op(Op *op) {
    Func *f = op->fn;
    *(op->prev ? &op->prev->next : &f->first) = op->next;
    *(op->next ? &op->next->prev : &f->last) = op->prev;
}

static void link_before(Op *op, Op *before) {
    Func *f = op->fn;
    op->next = before;
    op->prev = before->prev;
    *(before->prev ? &before->prev->next : &f->first) = op;
    before->prev = op;
}

/* Where it goes, and whether values are made before their uses then, is left to chance. */
static void move_one(Spoil *s, Op **list, int n) {
    int from = draw(s, n), to = from + draw(s, 7) - 3;
    if (to < 0 || to >= n || to == from) return;
    s->what = "moved";
    unlink_op(list[from]);
    link_before(list[from], list[to]);
}

static void swap_two(Spoil *s, Op **list, int n) {
    int a = draw(s, n), b = a + 1 + draw(s, 4);
    b = MIN(b, n - 1);
    Op *next = list[b]->next;
    if (a == b || !next) return;
    s->what = "swapped";
    unlink_op(list[b]);
    link_before(list[b], list[a]);
    unlink_op(list[a]);
    link_before(list[a], next);
}

static void drop_one(Spoil *s, Op **list, int n) {
    Op *op = list[draw(s, n)];
    Builder b = build_before(op);
    s->what = "dropped";
    if (op->kind == OP_send) op_remove(wait_of(op));
    if (op->kind == OP_receive)
        func_replace(op->fn, op->out[0],
                     build_as(&b, OP_fill, "value=0", op->out[0]->ty, NULL));
    op_remove(op);
}

static void double_one(Spoil *s, Op **list, int n) {
    Op *op = list[draw(s, n)], *at = list[draw(s, n)];
    Builder b = build_before(at);
    char *attrs =
        bfmt(&b, "%s=%lld; message=%lld", peer_key(op),
             (long long)op_int(op, peer_key(op), 0), (long long)op_int(op, "message", 0));
    s->what = "doubled";
    if (op->kind == OP_receive) {
        build_as(&b, OP_receive, attrs, op->out[0]->ty, NULL);
    } else if (op->kind == OP_send) {
        Value *token = build1(&b, OP_send, attrs, op->in[0], NULL);
        if (draw(s, 2)) build(&b, OP_sent, attrs, token, op->in[0], NULL);
    } else {
        build(&b, OP_sent, attrs, op->in[0], op->in[1], NULL);
    }
}

static void set_both(Op *send, const char *key, int64_t v) {
    op_set_int(wait_of(send), key, v);
    op_set_int(send, key, v);
}

static void change_number(Spoil *s, Op **list, int n) {
    Op *op = list[draw(s, n)];
    int64_t to = op_int(list[draw(s, n)], "message", 0);
    s->what = "another number";
    if (op->kind == OP_send && draw(s, 2))
        set_both(op, "message", to);
    else
        op_set_int(op, "message", to);
}

static void change_peer(Spoil *s, Op **list, int n) {
    Op *op = list[draw(s, n)];
    int to = draw(s, s->m->stages + 1);
    s->what = "another peer";
    if (op->kind == OP_send && draw(s, 2))
        set_both(op, "to", to);
    else
        op_set_int(op, peer_key(op), to);
}

static bool of_task(const Op *send) {
    const Op *maker = send->in[0]->def;
    return maker && op_callee(maker) && op_callee(maker)->task;
}

/* Two messages of tasks to one stage change their numbers: every message stays whole. (Of
 * others nothing but the numbers says which is which.) */
static void exchange_numbers(Spoil *s, Op **list, int n) {
    int sends = 0;
    for (int i = 0; i < n; i++)
        if (list[i]->kind == OP_send && of_task(list[i])) list[sends++] = list[i];
    if (sends < 2) return;
    int a = draw(s, sends), b = (a + 1 + draw(s, sends - 1)) % sends;
    int64_t x = op_int(list[a], "message", 0), y = op_int(list[b], "message", 0);
    if (op_int(list[a], "to", 0) != op_int(list[b], "to", 0)) return;
    s->what = "exchanged";
    set_both(list[a], "message", y);
    set_both(list[b], "message", x);
}

static void (*const ways[])(Spoil *, Op **, int) = {
    move_one,    swap_two, drop_one,      double_one,
    change_peer, move_one, change_number, exchange_numbers};

static void spoil(Arena *mem, Spoil *s) {
    const Func *f = module_stage(s->m, draw(s, s->m->stages));
    Op **list = NEW_ARRAY(mem, Op *, (size_t)count(s->m, OP_send) * 4 + 4);
    int n = list_messages(f, -1, list);
    s->what = NULL;
    if (n) ways[draw(s, ARRAY_LEN(ways))](s, list, n);
}

/* ret[stage][rank][i]; a sentence when the stages wait for ever. */
static const char *run_steps(Arena *mem, const Module *m, Tensor *****ret) {
    size_t n = (size_t)m->stages;
    Tensor ****arg = NEW_ARRAY(mem, Tensor ***, n);
    *ret = NEW_ARRAY(mem, Tensor ***, n);
    for (int s = 0; s < m->stages; s++) {
        arg[s] = sample_arguments(mem, module_stage(m, s));
        (*ret)[s] = sample_results(mem, module_stage(m, s));
    }
    return interp_run_stages(mem, m, arg, *ret);
}

static bool same_results(const Module *m, Tensor ****a, Tensor ****b) {
    for (int s = 0; s < m->stages; s++) {
        const Func *f = module_stage(m, s);
        for (int i = 0; i < f->nret; i++)
            if (memcmp(a[s][0][i]->data, b[s][0][i]->data,
                       (size_t)type_bytes(&f->ret[i]->ty)))
                return false;
    }
    return true;
}

static bool is_refused(Module *m, void (*by)(Module *), char *why, size_t size) {
    Catch c;
    if (CATCH(c)) {
        by(m);
        catch_end(&c);
    }
    if (c.code) snprintf(why, size, "%.*s", (int)size - 1, c.message);
    if (c.code) EXPECT_INT(c.code, EXIT_CONFIG);
    return c.code != 0;
}

static void run_verify(Module *m) {
    module_verify(m, NULL, NULL);
}

typedef struct Tally {
    int malformed, refused, circles, same;
} Tally;

/* One change; none where its draw finds nothing to change. */
static void try_spoilt(const Module *good, Tensor ****want, uint64_t seed, Tally *t) {
    Arena *mem = arena_new();
    Spoil s = {.m = module_clone(mem, good), .seed = seed};
    char why[512] = "";
    spoil(mem, &s);
    if (s.what) test_at("seed %llu, %s", (unsigned long long)seed, s.what);
    if (!s.what) {
    } else if (is_refused(s.m, run_verify, why, sizeof why)) {
        t->malformed++;
    } else if (is_refused(s.m, run_meet, why, sizeof why)) {
        t->refused++;
        t->circles += strstr(why, "for ever") != NULL;
    } else {
        Tensor ****got;
        const char *stuck = run_steps(mem, s.m, &got);
        if (stuck || !same_results(s.m, want, got))
            test_fail(__FILE__, __LINE__, "seed %llu, %s, passes meet: %s",
                      (unsigned long long)seed, s.what, stuck ? stuck : "other results");
        t->same++;
    }
    arena_free(mem);
}

static const struct {
    const char *schedule;
    int stages, chunks, micro;
} pipelines[] = {{"1f1b", 2, 1, 3},           {"1f1b", 3, 1, 4},
                 {"1f1b", 4, 1, 5},           {"gpipe", 3, 1, 4},
                 {"1f1b", 2, 2, 4},           {"breadth_first", 2, 3, 3},
                 {"zero_bubble_h1", 3, 1, 4}, {"zero_bubble_v", 2, 2, 4}};

TEST_LIMIT(spoilt_steps_are_refused_or_right, 300) {
    Tally t = {0};
    int each = test_long() ? 400 : 60;
    for (int p = 0; p < ARRAY_LEN(pipelines); p++) {
        Arena *mem = arena_new();
        Module *m = steps_of(mem, pipelines[p].schedule, pipelines[p].stages,
                             pipelines[p].chunks, pipelines[p].micro);
        Tensor ****want;
        EXPECT(run_steps(mem, m, &want) == NULL);
        for (int i = 0; i < each; i++) try_spoilt(m, want, (uint64_t)(1000 * p + i), &t);
        arena_free(mem);
    }
    printf("  %d malformed, %d refused (%d of them circles), %d with the same results\n",
           t.malformed, t.refused, t.circles, t.same);
    EXPECT(t.refused > each && t.circles > each / 10 && t.same > each / 2);
}

/* ---- plans ---- */

/* Every result between a send and its sent on top of what is sent. */
static int spoil_plan(Arena *mem, const Module *m, const Func *f) {
    int n = 0;
    for (Op *send = f->first; send; send = send->next) {
        if (send->kind != OP_send || send->in[0]->loc.kind != LOC_FRAME) continue;
        for (Op *op = send; op != wait_of(send); op = op->next)
            for (int i = 0; i < op->nout; i++) {
                Loc old = op->out[i]->loc;
                if (op_has(op, F_VIEW)) continue;
                op->out[i]->loc = send->in[0]->loc;
                if (!flight_check(mem, f) || !memplan_check(mem, m))
                    test_fail(__FILE__, __LINE__, "@%s: %%%s over %%%s is not noticed",
                              f->name, op->out[i]->name, send->in[0]->name);
                op->out[i]->loc = old;
                n++;
            }
        EXPECT(!flight_check(mem, f));
    }
    return n;
}

TEST(no_plan_writes_over_what_is_sent) {
    Arena *mem = arena_new();
    int n = 0;
    for (int p = 0; p < ARRAY_LEN(pipelines); p++) {
        Module *m = steps_of(mem, pipelines[p].schedule, pipelines[p].stages,
                             pipelines[p].chunks, pipelines[p].micro);
        PassOptions o = pass_options_default();
        passes_run(m, "meet,simplify,expand,simplify,epilogue,arrange,fuse,meet", &o);
        passes_run(m, "memplan,meet", &o);
        for (int s = 0; s < m->stages; s++) n += spoil_plan(mem, m, module_stage(m, s));
    }
    printf("  %d results moved\n", n);
    EXPECT(n > 200);
    arena_free(mem);
}
