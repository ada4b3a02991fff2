/* program.c - compiling a module into a program, its arena, and running it. */
#include "codegen/bundle.h"
#include "codegen/cache.h"
#include "codegen/codegen.h"
#include "codegen/jit.h"
#include "codegen/kept.h"
#include "codegen/piece.h"
#include "codegen/program_ops.h"
#include "runtime/comm/agree.h"
#include "runtime/comm/comm.h"
#include "runtime/core/free_memory.h"
#include "runtime/core/rt.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

typedef void (*Entry)(Product *products, void *frame, void **in, void **out);

struct ProgramCode {
    Lower lower; /* keeps the table of products */
    Target *target;
    Jit *jit;
    Entry entry;
    void *frame;
    size_t mapped_bytes;
};

/* What generated code calls for a matrix product. */
void rt_product(const void *products, int64_t index, const void *a, const void *b,
                const void *bias, void *c, void *scratch) {
    const Product *product = products;
    dnnl_matmul_run(product[index].code.matmul, a, b, bias, c, scratch);
}

/* The only functions of this process that generated code can reach. */
static const JitSymbol symbols[] = {
#define RT(result, name, params, what) {#name, (void *)name},
#include "runtime/core/rt.def"
};

static Func *find_entry(const Module *m) {
    Func *entry = NULL;
    for (Func *f = m->first; f; f = f->next) {
        if (!func_is_entry(f)) continue;
        if (entry)
            fail(EXIT_CONFIG, "module @%s has two entries, @%s and @%s", m->name,
                 entry->name, f->name);
        entry = f;
    }
    if (!entry)
        fail(EXIT_CONFIG, "module @%s has no function of role model or step", m->name);
    return entry;
}

/* Everything that those of the program depend on. */
static char *cache_text(Arena *mem, const Program *p, const struct ProgramCode *code) {
    Text t = text_new(mem);
    text_add(&t, "build %s\n%sthreads %d\n", kept_build_id(), code->lower.compiler,
             p->threads);
    if (code->lower.log_ops) text_add(&t, "ops are logged\n");
    text_add(&t, "%s", module_print(mem, p->m));
    return t.s;
}

static void report(const CompileOptions *co, const char *what, double start) {
    if (co->verbose)
        fprintf(stderr, "%-10s %8.2f ms\n", what, 1e3 * (clock_seconds() - start));
}

/* perf finds the names of generated functions in a file of this name. */
static void name_for_perf(Jit *j, const JitObject *objects, int n) {
    Arena *mem = arena_new();
    const char *path = arena_printf(mem, "/tmp/perf-%d.map", (int)getpid());
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
    int error = fd < 0 ? errno : 0;
    for (int i = 0; i < n && !error; i++) {
        Text functions = jit_functions(mem, j, objects[i].bytes, objects[i].n);
        error = fd_write(fd, functions.s, functions.n);
    }
    if (error)
        fprintf(stderr, "warning: cannot write %s: %s; perf shows addresses\n", path,
                strerror(error));
    if (fd >= 0) close(fd);
    arena_free(mem);
}

/* The objects of a bundle. */
static Jit *link_objects(Arena *mem, struct ProgramCode *code, const void *bytes,
                         size_t size, bool must) {
    char why[400] = "no bundle of objects";
    int n = 0;
    Jit *j = NULL;
    JitObject *objects = bundle_read(mem, bytes, size, &n);
    if (objects)
        j = jit_load_all(code->target, objects, n, symbols, ARRAY_LEN(symbols), why,
                         sizeof why);
    if (!j && must) die("linking generated code: %s", why);
    if (j && code->lower.log_ops) name_for_perf(j, objects, n);
    return j;
}

const char *program_libraries(Arena *mem) {
    return arena_printf(mem, "oneDNN %s, LLVM %s", dnnl_version_text(mem),
                        target_llvm_version(mem));
}

const char *program_build_id(void) {
    return kept_build_id();
}

/* All ranks run the objects of rank 0, so they must be able to. */
static void compare_targets(Arena *mem, const struct ProgramCode *code) {
    Text mine = text_new(mem);
    agree_on(mem, "JIT level", code->target->quick ? "O0" : "O2",
             "give all ranks the same context.jit_level, or STATOR_JIT_LEVEL");
    target_describe(code->target, &mine);
    agree_on(mem, "CPU", mine.s,
             "set context.cpu to one whose instructions all have, such as x86-64-v3");
}

/* The first rank of a stage compiles, or has compiled before; the others of the stage link
 * its objects. */
static bool compiles(void) {
    return comm_rank() == comm_stage_first();
}

static void receive(Arena *mem, Program *p) {
    size_t n = 0;
    void *bytes = comm_stage_bytes(mem, NULL, &n);
    p->code->jit = link_objects(mem, p->code, bytes, n, true);
    p->cached = true;
}

static void send_objects(const void *bytes, size_t size) {
    Arena *mem = arena_new(); /* for those of other stages */
    if (comm_size() > 1) comm_stage_bytes(mem, bytes, &size);
    arena_free(mem);
}

/* Compiles the program: the object of all but its pieces, and theirs. */
static const void *compile(Arena *mem, Program *p, const CompileOptions *co, size_t *n) {
    struct ProgramCode *code = p->code;
    Lower *l = &code->lower;
    Target *t = code->target;
    double start = clock_seconds();
    Emit *e = l->e = emit_new(mem, p->m->name, target_lanes(t), t->cpu, t->features);
    lower_module(l, p->entry);
    report(co, "lower", start);
    start = clock_seconds();
    int nobjects;
    JitObject *objects = pieces_compile(l, e, &nobjects);
    report(co, "llvm", start);
    emit_free(e);
    l->e = NULL;
    return bundle_make(mem, objects, nobjects, n);
}

static void generate(Arena *mem, Program *p, const CompileOptions *co) {
    struct ProgramCode *code = p->code;
    char key[CACHE_KEY_CHARS];
    compare_targets(mem, code);
    char *text = cache_text(p->m->mem, p, code);
    /* The objects contain the offsets of the plan and the shares of the threads. */
    agree_in_stage(
        mem, "program", text,
        "give all ranks as many cores, or the number in context.threads, and the same "
        "files");
    if (!compiles()) {
        receive(mem, p);
        return;
    }
    cache_key(text, strlen(text), key);
    size_t n;
    void *kept = co->lower_anew ? NULL : cache_get(mem, key, &n);
    if (kept) code->jit = link_objects(mem, code, kept, n, false);
    p->cached = code->jit != NULL;
    if (p->cached) {
        send_objects(kept, n);
        return;
    }
    const Lower before = code->lower;
    const void *made = compile(mem, p, co, &n);
    code->jit = link_objects(mem, code, made, n, false);
    if (!code->jit) { /* a piece that was kept is not what it should be */
        code->lower = before;
        code->lower.kept_no_more = true;
        made = compile(mem, p, co, &n);
        code->jit = link_objects(mem, code, made, n, true);
    }
    if (!co->lower_anew) cache_put(key, made, n);
    send_objects(made, n);
}

/* From the module to its planned entry, with what passes leave behind in the arena of p->m. */
static void plan_module(Arena *mem, Program *p, const char *passes, const PassOptions *po,
                        bool verbose) {
    PassOptions options = *po;
    options.choose = lower_choose;
    options.workspace_bytes = lower_workspace_bytes;
    options.workspace_ctx = &p->code->lower;
    options.verbose |= verbose;
    p->stages = options.schedule ? options.schedule->stages : 1;
    p->step = options.steps = NEW_ARRAY(mem, Func *, (size_t)p->stages);
    if (options.schedule) options.stage = comm_stage();
    passes_run(p->m, passes, &options);
    if (p->m->level != LEVEL_PLANNED)
        fail(EXIT_CONFIG, "passes '%s' end at level %s; a program needs memplan last",
             passes, level_name[p->m->level]);
    p->entry = find_entry(p->m);
    p->step[p->entry->stage] = p->entry;
}

/* The op of the kept module that a product is of. */
static void keep_products(struct ProgramCode *code, const Module *was,
                          const Module *kept) {
    const Func *f = was->first;
    for (const Func *k = kept->first; k; k = k->next, f = f->next) {
        while (strcmp(f->name, k->name)) f = f->next; /* nobody calls it */
        const Op *from = f->first;
        for (const Op *op = k->first; op; op = op->next, from = from->next)
            for (int i = 0; i < code->lower.nproducts; i++)
                if (code->lower.product[i].op == from) code->lower.product[i].op = op;
    }
}

/* What passes made on the way is many times what they leave, the more so the more micro-batches
 * there are: that goes with its arena. */
static void keep_module(Arena *mem, Program *p) {
    Module *was = p->m;
    p->m = module_copy_to(mem, was);
    keep_products(p->code, was, p->m);
    p->code->lower.m = p->m;
    p->entry = find_entry(p->m);
    for (int k = 0; k < p->stages; k++)
        p->step[k] =
            k == p->entry->stage ? p->entry : func_signature_to(p->m, p->step[k]);
    arena_free(was->mem);
}

Program *program_make(Arena *mem, const Module *m, const char *passes,
                      const PassOptions *po, const CompileOptions *co) {
    Program *p = NEW(mem, Program);
    struct ProgramCode *code = p->code = NEW(mem, struct ProgramCode);
    double start = clock_seconds();
    rt_set_threads(co->threads);
    p->m = module_copy_to(arena_new(), m);
    p->threads = rt_threads();
    p->memory_limit = co->memory_limit;
    p->memory_hint = co->memory_hint;
    code->target = target_open(co->cpu);
    code->lower = (Lower){.mem = mem,
                          .m = p->m,
                          .threads = p->threads,
                          .vl = target_lanes(code->target),
                          .target = code->target,
                          .choices = co->choices,
                          .log_ops = co->log_ops};
    plan_module(mem, p, passes, po, co->verbose);
    if (co->quick) target_hurry(code->target); /* not for what was measured */
    code->lower.compiler = kept_compiler(mem, code->target);
    p->plan = memory_plan(mem, p->entry);
    p->arg = NEW_ARRAY(mem, void *, (size_t)p->entry->narg + 1);
    p->ret = NEW_ARRAY(mem, void *, (size_t)p->entry->nret + 1);
    p->pass_seconds = clock_seconds() - start;
    start = clock_seconds();
    generate(mem, p, co);
    keep_module(mem, p);
    memory_give_back();
    code->entry = (Entry)jit_lookup(code->jit, "stator_entry");
    p->codegen_seconds = clock_seconds() - start;
    return p;
}

/* ---- memory ---- */

/* More than a process has whatever it runs, 40 to 60 MB: its program is long. */
#define LONG_PROGRAM_BYTES ((uint64_t)128 << 20)

/* What makes the plan smaller, or, where most is not in it, the process. */
static const char *memory_hint(const Program *p, uint64_t beside_bytes) {
    bool is_long = beside_bytes > LONG_PROGRAM_BYTES;
    if (is_long && beside_bytes > (uint64_t)p->plan.total_bytes && p->stages > 1)
        return "fewer micro-batches (parallel_config.micro_batch_num), whose tasks the "
               "process lists";
    if (p->memory_hint) return p->memory_hint;
    return "a smaller batch or sequence, more micro-batches "
           "(parallel_config.micro_batch_num), more ranks that share it";
}

static const char more_memory[] = "more memory from the system (machine, cgroup, job)";

/* Of its classes those that the program has. */
_Noreturn static void refuse_memory(const Program *p, const char *why, const char *larger,
                                    uint64_t beside_bytes) {
    char sizes[400];
    size_t n = 0;
    sizes[0] = 0;
    for (int c = 0; c < MEM_CLASSES; c++) {
        if (!p->plan.class_bytes[c]) continue;
        n += (size_t)snprintf(sizes + n, sizeof sizes - n, "%s %s %.1f MB", n ? "," : "",
                              memory_class_name[c], (double)p->plan.class_bytes[c] / 1e6);
    }
    fail(EXIT_MEMORY, "the plan needs %.1f MB%s%s, %s:%s\n    hint: %s, or %s",
         (double)p->plan.total_bytes / 1e6, p->memory_where ? " " : "",
         p->memory_where ? p->memory_where : "", why, sizes, memory_hint(p, beside_bytes),
         larger);
}

uint64_t program_lacks(const Program *p, uint64_t beside_bytes, uint64_t limit_bytes) {
    uint64_t all;
    if (!add_size((uint64_t)p->plan.total_bytes, beside_bytes, &all)) return UINT64_MAX;
    return all > limit_bytes ? all - limit_bytes : 0;
}

void program_fit(const Program *p, uint64_t beside_bytes, uint64_t limit_bytes,
                 const char *limit, const char *size) {
    const char *of = limit ? limit : "context.max_device_memory,";
    char why[800], beside[100] = "", megabytes[40];
    if (!program_lacks(p, beside_bytes, limit_bytes)) return;
    if (beside_bytes)
        snprintf(beside, sizeof beside, "and the process %.1f MB besides, ",
                 (double)beside_bytes / 1e6);
    snprintf(megabytes, sizeof megabytes, "%.1f MB", (double)limit_bytes / 1e6);
    snprintf(why, sizeof why, "%smore than %s %s", beside, of, size ? size : megabytes);
    refuse_memory(p, why, limit ? more_memory : "a larger context.max_device_memory",
                  beside_bytes);
}

static bool is_shared(const Program *p, int i, const Program *shared, int *other) {
    ArgRole role = arg_role(p->entry, i);
    *other = shared ? program_arg_named(shared, p->entry->arg[i]->name) : -1;
    return *other >= 0 && (role == ARG_param || role == ARG_cache) &&
           type_same_shape(&p->entry->arg[i]->ty, &shared->entry->arg[*other]->ty);
}

/* Takes arguments out of the plan that are in another program's memory. */
static void leave_out_shared(Program *p, const Program *shared) {
    int64_t removed = 0;
    int other;
    for (int i = 0; i < p->entry->narg; i++) {
        p->plan.arg_offset[i] -= removed;
        if (!is_shared(p, i, shared, &other)) continue;
        int64_t bytes = align_up(type_bytes(&p->entry->arg[i]->ty));
        bool param = arg_role(p->entry, i) == ARG_param;
        p->plan.class_bytes[param ? MEM_WEIGHTS : MEM_DATA] -= bytes;
        removed += bytes;
    }
    for (int i = 0; i < p->entry->nret; i++) p->plan.ret_offset[i] -= removed;
    p->plan.frame_offset -= removed;
    p->plan.total_bytes -= removed;
}

static int64_t bytes_without_shared(const Program *p, const Program *shared) {
    int64_t bytes = p->plan.total_bytes;
    int other;
    for (int i = 0; i < p->entry->narg; i++) {
        if (is_shared(p, i, shared, &other)) bytes -= type_bytes(&p->entry->arg[i]->ty);
    }
    return bytes;
}

/* Puts arguments, results and frame where they belong in the arena. */
static void assign_addresses(Program *p, const Program *shared, void *arena) {
    p->arena = arena;
    p->code->frame = (char *)arena + p->plan.frame_offset;
    for (int i = 0; i < p->entry->narg; i++) {
        int other;
        bool elsewhere = is_shared(p, i, shared, &other);
        p->arg[i] =
            elsewhere ? shared->arg[other] : (char *)arena + p->plan.arg_offset[i];
    }
    for (int i = 0; i < p->entry->nret; i++) {
        int a = p->entry->alias[i];
        p->ret[i] = a >= 0 ? p->arg[a] : (char *)arena + p->plan.ret_offset[i];
    }
}

static void touch(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    volatile char *arena = ctx;
    (void)thread;
    for (int64_t page = begin; page < end; page++) arena[page << 12] = 0;
}

void program_allocate(Program *p, const Program *shared, uint64_t limit_bytes) {
    leave_out_shared(p, shared);
    uint64_t bytes = (uint64_t)p->plan.total_bytes;
    FreeMemory left = memory_left("");
    if (limit_bytes)
        program_fit(p, memory_resident_bytes(), limit_bytes, NULL, p->memory_limit);
    program_fit(p, 0, left.bytes, left.of, NULL);
    size_t mapped = (size_t)round_up((int64_t)bytes, 4096);
    void *arena = mmap(NULL, MAX(mapped, (size_t)4096), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arena == MAP_FAILED) refuse_memory(p, strerror(errno), more_memory, 0);
    madvise(arena, mapped, MADV_HUGEPAGE);
    rt_parallel((int64_t)(mapped >> 12), touch, arena);
    p->code->mapped_bytes = MAX(mapped, (size_t)4096);
    assign_addresses(p, shared, arena);
}

void program_borrow(Program *p, const Program *shared, uint64_t limit_bytes) {
    if (bytes_without_shared(p, shared) > shared->entry->frame_bytes) {
        program_allocate(p, shared, limit_bytes);
        return;
    }
    leave_out_shared(p, shared);
    assign_addresses(p, shared, shared->code->frame);
}

int program_arg_named(const Program *p, const char *name) {
    for (int i = 0; i < p->entry->narg; i++) {
        if (!strcmp(p->entry->arg[i]->name, name)) return i;
    }
    return -1;
}

void *program_slot(const Program *p, ArgRole role) {
    int i = func_arg_role(p->entry, role);
    return i < 0 ? NULL : p->arg[i];
}

void program_set(const Program *p, ArgRole role, const int32_t *value) {
    int i = func_arg_role(p->entry, role);
    if (i >= 0) memcpy(p->arg[i], value, (size_t)type_bytes(&p->entry->arg[i]->ty));
}

void program_run(Program *p) {
    if (!p->arena) die("a program runs after program_allocate");
    p->code->entry(p->code->lower.product, p->code->frame, p->arg, p->ret);
}

Task *program_tasks(Arena *mem, const Program *p, int *n) {
    return op_called_tasks(mem, p->entry, n);
}

OpRow *program_ops(Arena *mem, const Program *p, int *n) {
    return logged_ops(mem, p->m, p->entry, n);
}

void program_free(Program *p) {
    struct ProgramCode *code = p->code;
    if (code->mapped_bytes) munmap(p->arena, code->mapped_bytes);
    if (code->jit) jit_free(code->jit);
    for (int i = 0; i < code->lower.nproducts; i++)
        dnnl_matmul_free(code->lower.product[i].code.matmul);
    target_close(code->target);
    p->arena = NULL;
}

const char *program_describe(Arena *mem, const Program *p) {
    Text t = text_new(mem);
    for (int i = 0; i < p->code->lower.nproducts; i++) {
        const Product *product = &p->code->lower.product[i];
        text_add(&t, "@%s %%%s {%s} %s\n", product->op->fn->name,
                 product->op->out[0]->name, op_rule(product->op)->text,
                 product->code.matmul ? dnnl_matmul_impl(product->code.matmul)
                                      : "generated");
    }
    return t.s;
}
