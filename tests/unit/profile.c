/* Tests of the key profile on one rank: every op of the planned step is in the trace as often as
 * it runs, the table adds up to the steps, nothing else changes, and perf gets names. */
#include "codegen/jit.h"
#include "ir/ir.h"
#include "profiled.h"
#include "runtime/core/peak.h"
#include "runtime/run/op_report.h"
#include <llvm-c/IRReader.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

TEST_LABEL(RELEASED);

enum { FIRST = 2, LAST = 4, STEPS = 6 };

/* Trains the small model; the process. */
static pid_t train(const char *run, const char *more) {
    pid_t pid = stator_start(runs_words(runs_small_config(STEPS, STEPS), run, more));
    int code = stator_wait(pid);
    if (code) test_fail(__FILE__, __LINE__, "exit code %d:\n%s", code, said());
    return pid;
}

#define RECORD "--profile --profile_start_step 2 --profile_stop_step 4 "

/* ---- every op, as often as it runs ---- */

typedef struct Planned {
    const char *in, *name; /* "@layer.fwd", "d.norm.1" */
    bool call;
    int64_t runs;
} Planned;

static Planned *planned;
static int nplanned, planned_cap;

static void count_planned(const Func *f, int64_t runs) {
    for (const Op *op = f->first; op; op = op->next) {
        const Func *callee = op_callee(op);
        bool call = callee && callee->role != ROLE_KERNEL;
        if (op->kind == OP_reshape) continue;
        const char *in = arena_printf(mem(), "@%s", f->name);
        const char *name = call ? callee->name : op->out[0]->name;
        int i = 0;
        while (i < nplanned && (strcmp(planned[i].in, in) ||
                                strcmp(planned[i].name, name) || planned[i].call != call))
            i++;
        if (i == nplanned)
            PUSH(mem(), planned, nplanned, planned_cap, ((Planned){in, name, call, 0}));
        planned[i].runs += runs;
        if (call) count_planned(callee, runs * call_of(op).times);
    }
}

static bool is_of(const Event *e, const Planned *p) {
    size_t n = strlen(p->in), m = strlen(p->name);
    if (strncmp(e->where, p->in, n) || (e->where[n] && !strchr(" ,", e->where[n])))
        return false;
    if (p->call)
        return e->name[0] == '@' && !strncmp(e->name + 1, p->name, m) &&
               (!e->name[1 + m] || e->name[1 + m] == ' ');
    const char *value = strrchr(e->name, ' ');
    return value && !strcmp(value + 1, p->name);
}

static void expect_all_ops(const char *ir, const Event *e, int n, int steps) {
    size_t size;
    const char *path = ir;
    for (int i = 1; i < 100 && !ends_with(path, ".ir"); i++) {
        const char *last = arena_printf(mem(), "%s/%02d-memplan.ir", ir, i);
        if (file_exists(last)) path = last;
    }
    const char *text = file_read(mem(), path, 1 << 24, &size, EXIT_DATA);
    Module *m = module_parse(mem(), path, text, size);
    count_planned(module_find(m, "step"), 1);
    int64_t met = 0, marks = 0;
    for (int i = 0; i < nplanned; i++) {
        int64_t times = 0;
        for (int k = 0; k < n; k++) times += is_of(&e[k], &planned[i]);
        if (times != planned[i].runs * steps)
            test_fail(__FILE__, __LINE__, "%s %%%s is there %lld times, not %lld",
                      planned[i].in, planned[i].name, (long long)times,
                      (long long)(planned[i].runs * steps));
        met += times;
    }
    for (int k = 0; k < n; k++) marks += !e[k].where[0];
    EXPECT_INT(marks, 3 * steps);
    EXPECT_INT(met + marks, n);
    printf("  %d ops, %lld runs of them in %d steps\n", nplanned, (long long)met, steps);
}

TEST(a_trace_has_every_op) {
    const char *run = in_temp("run"), *ir = in_temp("passes");
    pid_t pid =
        train(run, arena_printf(mem(), RECORD PROFILED_LONGER "--dump_ir %s", ir));
    remove(profiled_perf_map(pid));
    int n, other;
    const Event *e = profiled_events(run, "trace.json", &n);
    profiled_events(run, "trace.rank0.json", &other);
    EXPECT_INT(n, other);
    EXPECT_INT(profiled_steps(e, n, 0), LAST - FIRST + 1);
    EXPECT(e[0].step == FIRST && e[n - 1].step == LAST && e[0].begin == 0);
    profiled_expect_nested(e, n, 0, 0, true);
    expect_all_ops(ir, e, n, LAST - FIRST + 1);
    profiled_expect_sum(run, FIRST, LAST);
    SAID_EXPECT("profile/trace.json");
    SAID_EXPECT("rank 0, steps 2 to 4; measured on ");
    SAID_EXPECT(" ms, its bound is ");
}

/* ---- what they take, as the plan has it ---- */

/* Of a step, all ops of a trace: flops and bytes. */
static void add_trace(const char *run, double *flops, double *bytes) {
    const char *path = arena_printf(mem(), "%s/profile/trace.json", run);
    const Json *file = json_read(mem(), path, 1u << 30, EXIT_DATA);
    const double share = 1.0 / (LAST - FIRST + 1);
    *flops = *bytes = 0;
    for (const Json *e = json_need(file, "traceEvents")->first; e; e = e->next) {
        const Json *args = json_need(e, "args");
        const Json *f = json_get(args, "flops"), *b = json_get(args, "bytes");
        if (f) *flops += share * json_f64(f);
        if (b) *bytes += share * json_f64(b);
    }
}

/* The same of ops.txt, which is rounded; the number of rows. */
static int add_table(const char *run, double *flops, double *bytes) {
    char *save = NULL, *text = file_read(mem(), path_join(mem(), run, "profile/ops.txt"),
                                         1 << 24, NULL, EXIT_DATA);
    int rows = 0;
    *flops = *bytes = 0;
    for (char *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        char gflop[64], mb[64];
        if (sscanf(line, "%*f %*f %*s %63s %63s", gflop, mb) != 2) continue;
        *flops += 1e9 * strtod(gflop, NULL); /* "-" is 0 */
        *bytes += 1e6 * strtod(mb, NULL);
        rows++;
    }
    return rows;
}

static void expect_planned_work(const char *name, const char *keys) {
    const char *run = in_temp(name);
    pid_t pid = train(run, arena_printf(mem(), RECORD PROFILED_LONGER "%s", keys));
    remove(profiled_perf_map(pid));
    const Json *plan =
        json_read(mem(), path_join(mem(), run, "plan.json"), 1 << 24, EXIT_DATA);
    const Json *done = json_need(json_need(json_need(plan, "work"), "all"), "done");
    double flops, bytes, want_bytes = json_f64(json_need(done, "bytes"));
    double want_flops =
        json_f64(json_need(done, "f32_flops")) + json_f64(json_need(done, "bf16_flops"));
    add_trace(run, &flops, &bytes);
    EXPECT_NEAR(flops, want_flops, 1e-12);
    EXPECT_NEAR(bytes, want_bytes, 1e-12);
    int rows = add_table(run, &flops, &bytes);
    printf("  %s: %d rows, %.3f MB, %.4f Gflop\n", name, rows, want_bytes / 1e6,
           want_flops / 1e9);
    EXPECT(rows > 50 && want_bytes > 0 && want_flops > 0);
    EXPECT(fabs(bytes - want_bytes) <= rows * 0.5e3);
    EXPECT(fabs(flops - want_flops) <= rows * 0.5e5);
}

TEST(the_plan_has_the_bytes_of_the_ops) {
    expect_planned_work("narrow", "--model.model_config.compute_dtype bfloat16 "
                                  "--recompute_config.recompute True");
    expect_planned_work("tiles", "--context.tile_size 64KB");
}

/* Ops of a text of the user's are told by its lines. */
TEST(a_trace_names_lines) {
    const char *run = in_temp("run"), *model = in_temp("m.ir");
    write_text(model, "module @m mesh() level(global)\n"
                      "func @m:model(%tokens: i32[2,8] {role=\"tokens\"},\n"
                      "    %labels: i32[2,8] {role=\"labels\"},\n"
                      "    %w: f32[256,8] {role=\"param\"; init=\"normal\"; std=0.1})"
                      " -> (f32[]) {\n"
                      "  %x = embed %w, %tokens : f32[2,8,8]\n"
                      "  %a = gelu %x : f32[2,8,8]\n"
                      "  %y = dot %a, %w {btc,vc->btv} : f32[2,8,256]\n"
                      "  %rows, %lse = xent %y, %labels : f32[2,8], f32[2,8]\n"
                      "  %sum = sum %rows {bt->_} : f32[]\n"
                      "  %loss = scale %sum {by=0.0625} : f32[]\n"
                      "  return %loss\n}\n");
    const char *config = in_temp("m.yaml");
    write_text(config, arena_printf(mem(),
                                    "model: {file: %s}\n"
                                    "train_dataset:\n"
                                    "  data_loader: {type: TextFile, dataset_dir: %s}\n"
                                    "runner_config: {max_steps: 2}\n",
                                    model, runs_text()));
    pid_t pid = stator_start(
        arena_printf(mem(), "train %s --output_dir %s --profile", config, run));
    EXPECT_INT(stator_wait(pid), 0);
    remove(profiled_perf_map(pid));
    int n, gelu = 0, dot = 0;
    const Event *e = profiled_events(run, "trace.json", &n);
    for (int i = 0; i < n; i++) {
        gelu += !strcmp(e[i].name, "gelu a") && strstr(e[i].where, "m.ir:6");
        dot += !strcmp(e[i].name, "dot y") && strstr(e[i].where, "m.ir:7");
    }
    EXPECT(gelu == 2 && dot == 2);
}

/* ---- what stays as it was ---- */

static bool from_cache(const char *run, const char **hash) {
    const Json *plan =
        json_read(mem(), path_join(mem(), run, "plan.json"), 1 << 24, EXIT_DATA);
    *hash = json_string(json_need(plan, "plan_hash"));
    return json_bool(json_need(plan, "from_cache"));
}

static bool code_tells(const char *cache) {
    return system(arena_printf(mem(), "grep -rq rt_op_begin '%s'", cache)) == 0;
}

TEST(a_profile_changes_no_bit) {
    static const char *const more[] = {"", RECORD, "", RECORD};
    const char *hash[ARRAY_LEN(more)], *first = in_temp("run0");
    setenv("STATOR_CACHE", in_temp("cache"), 1);
    for (int i = 0; i < ARRAY_LEN(more); i++) {
        const char *run = in_temp(arena_printf(mem(), "run%d", i));
        remove(profiled_perf_map(train(run, more[i])));
        EXPECT(from_cache(run, &hash[i]) == (i > 1));
        EXPECT_STR(hash[i], hash[0]);
        EXPECT(code_tells(in_temp("cache")) == (i > 0));
        EXPECT(file_exists(path_join(mem(), run, "profile")) == (i % 2 == 1));
        runs_expect_same_losses(first, run, STEPS);
        runs_expect_same_tensors(first, run, STEPS);
    }
    const char *metrics =
        file_read(mem(), path_join(mem(), first, "metrics.jsonl"), 1 << 20, NULL, 3);
    EXPECT(!strstr(metrics, "communication_seconds"));
}

/* More ops than are kept: the last steps are left out, with a warning. A run that is stopped
 * writes what it has. */
TEST(a_profile_that_is_cut_says_so) {
    const char *run = in_temp("run"), *config = runs_small_config(100000, 0);
    pid_t pid = stator_start(arena_printf(
        mem(), "train %s --output_dir %s --profile --profile_stop_step 100000", config,
        run));
    EXPECT(runs_wait_steps(pid, run, 3));
    kill(pid, SIGTERM);
    EXPECT_INT(stator_wait(pid), 75);
    remove(profiled_perf_map(pid));
    SAID_EXPECT("WARNING: profile records up to step ");
    SAID_EXPECT("for later steps give another profile_start_step");
    int n, steps;
    const Event *e = profiled_events(run, "trace.json", &n);
    runs_metrics(run, &steps);
    EXPECT_INT(profiled_steps(e, n, 0), steps);
}

/* ---- the table ---- */

static const OpRow rows[] = {
    {.name = "dot y", .kind = "dot", .runs = 2, .flops = 1e6, .bytes = 10},
    {.name = "add z", .kind = "kernel", .runs = 1, .flops = 1, .bytes = 1e6},
    {.name = "@f x 2", .kind = "call", .runs = 1, .nests = true},
    {.name = "receive r", .kind = "receive", .runs = 1, .bytes = 1e6, .waits = true},
};

/* dot y is bound by flops and takes twice its bound, add z by bytes and takes four times its
 * own. */
TEST(a_table_adds_up) {
    const OpTime event[] = {{MARK_STEP, 0, 0.020},     {MARK_DATA, 0, 0.001},
                            {MARK_FEED, 0.001, 0.001}, {2, 0.001, 0.015},
                            {0, 0.002, 0.004},         {0, 0.004, 0.006},
                            {1, 0.006, 0.010},         {3, 0.015, 0.019}};
    OpReport r = {.op = rows,
                  .nops = ARRAY_LEN(rows),
                  .event = event,
                  .nevents = ARRAY_LEN(event),
                  .steps = 1,
                  .peak_flops = 1e9,
                  .peak_bytes = 1e9};
    const char *text = op_report(mem(), &r, 0).s;
    static const char want[] =
        "share% ms/step  calls/step Gflop/step MB/step GFLOP/s GB/s bound%  op\n"
        " 35.00     7.0000         -          -          -        -        -        -"
        "  outside of ops\n"
        " 20.00     4.0000       1.0     0.0000      1.000      0.0     0.25     25.0"
        "  add z\n"
        " 20.00     4.0000       2.0     0.0020      0.000      0.5     0.00     50.0"
        "  dot y\n"
        " 20.00     4.0000       1.0          -      1.000        -     0.25        -"
        "  receive r\n"
        "  5.00     1.0000       1.0          -          -        -        -        -"
        "  wait for data\n"
        "  0.00     0.0000       1.0          -          -        -        -        -"
        "  batch to its place\n";
    EXPECT_STR(text, want);
}

TEST(memory_has_a_bandwidth) {
    double start = clock_seconds(), bytes = memory_bandwidth(1);
    printf("  %.1f GB/s in %.2f s\n", 1e-9 * bytes, clock_seconds() - start);
    EXPECT(bytes > 1e8 && bytes < 1e13);
}

/* ---- memory ---- */

/* Of the processes that have been waited for, the most that one had. */
static int64_t most_resident(void) {
    struct rusage used;
    EXPECT(!getrusage(RUSAGE_CHILDREN, &used));
    return (int64_t)used.ru_maxrss * 1024;
}

/* The speed of memory is measured in the place of the program, not beside it. */
TEST(a_profile_takes_the_memory_of_the_plan) {
#ifdef __SANITIZE_ADDRESS__
    test_skip("the sanitizer's own memory is not in the plan");
#endif
    train(in_temp("plain"), "");
    int64_t plain = most_resident();
    const char *run = in_temp("run");
    train(run, RECORD);
    const Json *plan =
        json_read(mem(), path_join(mem(), run, "plan.json"), 1 << 24, EXIT_DATA);
    int64_t kept = json_i64(json_need(plan, "profile_bytes"), 1, 26000000);
    int64_t sum =
        kept + json_i64(json_need(plan, "process_bytes"), 0, INT64_MAX) +
        json_i64(json_need(plan, "batches_ahead_bytes"), 0, INT64_MAX) +
        json_i64(json_need(json_need(plan, "memory_bytes"), "total"), 0, INT64_MAX);
    EXPECT_INT(sum, json_i64(json_need(plan, "resident_bytes"), 0, INT64_MAX));
    printf("  %.1f MB without, %.1f MB with\n", 1e-6 * (double)plain,
           1e-6 * (double)most_resident());
    EXPECT(most_resident() - plain < kept + (24 << 20));
}

/* ---- names for perf ---- */

static const char functions[] = "define internal i64 @inner(i64 %x) noinline {\n"
                                "  %y = mul i64 %x, %x\n"
                                "  ret i64 %y\n"
                                "}\n"
                                "define i64 @address() {\n"
                                "  %a = ptrtoint ptr @inner to i64\n"
                                "  ret i64 %a\n"
                                "}\n"
                                "define i64 @square(i64 %x) {\n"
                                "  %y = call i64 @inner(i64 %x)\n"
                                "  ret i64 %y\n"
                                "}\n";

/* Also of functions that cannot be looked up. */
TEST(functions_are_where_their_names_say) {
    Target *t = target_open(NULL);
    LLVMContextRef context = LLVMContextCreate();
    LLVMModuleRef module;
    char *message = NULL, why[256] = "";
    EXPECT(!LLVMParseIRInContext(
        context,
        LLVMCreateMemoryBufferWithMemoryRangeCopy(functions, strlen(functions), "test"),
        &module, &message));
    Object *o = jit_compile(t, module, "");
    Jit *j = jit_load(t, o->bytes, o->n, NULL, 0, why, sizeof why);
    if (!j) test_fail(__FILE__, __LINE__, "%s", why);
    unsigned long long inner =
        ((unsigned long long (*)(void))(uintptr_t)jit_lookup(j, "address"))();
    char *text = jit_functions(mem(), j, o->bytes, o->n).s, *save = NULL;
    int met = 0, lines = 0;
    for (char *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save), lines++) {
        unsigned long long at, size;
        char name[64];
        EXPECT_INT(sscanf(line, "%llx %llx %63s", &at, &size, name), 3);
        EXPECT(size > 0 && size < 1000);
        if (!strcmp(name, "inner")) met += at == inner;
        if (!strcmp(name, "address")) met += at == (uintptr_t)jit_lookup(j, "address");
    }
    EXPECT(met == 2 && lines == 3);
    jit_free(j);
    object_free(o);
    LLVMDisposeModule(module);
    LLVMContextDispose(context);
    target_close(t);
}

TEST(perf_gets_the_names_of_a_run) {
    static const char *const names[] = {" stator:layer.fwd\n", " stator:layer.bwd\n",
                                        " stator:k0:body\n", " stator_entry\n"};
    pid_t pid = train(in_temp("run"), RECORD);
    const char *map = file_read(mem(), profiled_perf_map(pid), 1 << 20, NULL, EXIT_DATA);
    remove(profiled_perf_map(pid));
    for (int i = 0; i < ARRAY_LEN(names); i++)
        if (!strstr(map, names[i]))
            test_fail(__FILE__, __LINE__, "no%s in\n%s", names[i], map);
    time_t began = time(NULL);
    pid = train(in_temp("off"), "");
    struct stat left; /* by an earlier process of this number */
    EXPECT(stat(profiled_perf_map(pid), &left) || left.st_mtime < began - 1);
}
