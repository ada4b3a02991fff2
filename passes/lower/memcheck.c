/* memcheck.c - the independent check of a memory plan, and what a plan adds up to.
 *
 * The check knows only the locations, and which op reads which value: of every two values
 * of a function whose bytes overlap, one must be dead before the other is made, unless
 * they share the bytes on purpose (a view, a result over an operand that is not read
 * again). */
#include "ir/iteration_space.h"
#include "passes/lower/frame.h"
#include "passes/passes.h"
#include <stdlib.h>

const char *const memory_class_name[MEM_CLASSES] = {
    "weights", "optimizer", "gradients", "activations", "workspace", "data"};

typedef struct Span { /* bytes of one value or workspace, and when they are in use */
    int space;        /* 0 = frame, else a buffer of the caller */
    int64_t from, to;
    int born, dies; /* op ids */
    const Value *v; /* NULL: workspace */
} Span;

static int space_number(const Func *f, Loc loc) {
    if (loc.kind == LOC_FRAME) return 0;
    if (loc.kind == LOC_ARG) return 1 + (int)loc.at;
    int a = f->alias[loc.at]; /* a result over an argument is that argument's buffer */
    return a >= 0 ? 1 + a : 1 + f->narg + (int)loc.at;
}

/* The bytes; when they are dead is not said. */
static Span value_span(const Func *f, const Value *v) {
    Loc loc = v->def ? v->loc : (Loc){LOC_ARG, v->nth};
    int64_t from = loc.kind == LOC_FRAME ? loc.at : 0;
    return (Span){.space = space_number(f, loc),
                  .from = from,
                  .to = from + type_bytes(&v->ty),
                  .born = v->def ? v->def->id : -1,
                  .v = v};
}

/* By value id: the last op that reads it; that of a result is behind all. */
static int *last_reads(Arena *mem, const Func *f) {
    int *dies = NEW_ARRAY(mem, int, (size_t)f->nvalues + 1);
    for (int i = 0; i < f->narg; i++) dies[f->arg[i]->id] = -1;
    for (const Op *op = f->first; op; op = op->next) {
        for (int i = 0; i < op->nout; i++) dies[op->out[i]->id] = op->id;
        for (int i = 0; i < op->nin; i++) dies[op->in[i]->id] = op->id;
    }
    for (int i = 0; i < f->nret; i++) dies[f->ret[i]->id] = f->nops;
    return dies;
}

/* What a value is a view of, over any number of views: the same bytes. A function of its own, as
 * the proof shares none with the plan. */
static const Value *viewed(const Value *v) {
    while (v && v->def && (optab[v->def->kind].flags & F_VIEW)) {
        v = v->def->in[v->nth];
    }
    return v;
}

/* Does op, or the arrive of op, read a for the last time, and nobody in between? */
static bool last_reader(const Span *a, const Op *op) {
    const Op *end = op_arrival(op);
    if (!end || a->dies != end->id) return a->dies == op->id;
    for (const Op *at = op->next; at != end; at = at->next) {
        for (int i = 0; i < at->nin; i++) {
            if (viewed(at->in[i]) == viewed(a->v)) return false;
        }
    }
    return true;
}

/* Has operand i the letters of the result, each where the result has it? */
static bool added_in_order(const Op *op, int i) {
    Dims d;
    if (!op_dims(op, &d) || d.rank[i] != d.rank[op->nin]) return false;
    for (int k = 0; k < d.rank[i]; k++) {
        if (d.term[i][k] != d.term[op->nin][k]) return false;
    }
    return true;
}

/* Does the function that an op calls put result `nth` over operand `at`? */
static bool callee_overwrites(Arena *mem, const Func *callee, int at, int nth) {
    if (callee->role == ROLE_KERNEL) return space_inplace(mem, callee, at, nth);
    return callee->alias[nth] == at;
}

static bool op_overwrites(const Op *op, int at, int nth) {
    unsigned flags = optab[op->kind].flags;
    if (flags & F_ADDENDS) return at >= 2 && added_in_order(op, at);
    return (flags & F_INPLACE) && at == (flags & F_COMM ? nth : 0);
}

/* b is made by an op that reads a for the last time: may it be the same bytes? */
static bool overwrite_allowed(Arena *mem, const Span *a, const Span *b) {
    const Op *op = b->v ? b->v->def : NULL;
    if (!op || !a->v || a->from != b->from || !last_reader(a, op)) return false;
    if (optab[op->kind].flags & F_VIEW) return true;
    const Func *callee = op_callee(op);
    int reads = 0, at = -1;
    for (int i = 0; i < op->nin; i++) {
        if (viewed(op->in[i]) == viewed(a->v)) reads++;
        if (op->in[i] == a->v) at = i;
    }
    if (reads != 1 || at < 0) return false;
    return callee ? callee_overwrites(mem, callee, at, b->v->nth)
                  : op_overwrites(op, at, b->v->nth);
}

/* Is a stack that a loop reads slice by slice, and nobody after it, overwritten by one of its
 * results, each slice of which lies where no later run reads? */
static bool slices_pass(const Span *a, const Span *b) {
    const Op *op = b->v ? b->v->def : NULL;
    if (!op || !a->v || !op_is_call(op) || a->dies != op->id) return false;
    const Call c = call_of(op);
    if (!c.loop || b->v->nth < c.carry || c.f->alias[b->v->nth] >= 0) return false;
    for (int i = 0; i < op->nin; i++)
        if (viewed(op->in[i]) == viewed(a->v) && !call_slices(&c, i)) return false;
    Stack r = {op, false, (a->to - a->from) / c.times, c.times, c.reverse};
    Stack w = {op, true, (b->to - b->from) / c.times, c.times, c.reverse};
    return frame_slices_pass(&r, a->from, &w, b->from);
}

static bool may_meet(Arena *mem, const Span *a, const Span *b) {
    if (a->space != b->space || a->to <= b->from || b->to <= a->from) return true;
    if (a->born > b->born) {
        const Span *t = a;
        a = b;
        b = t;
    }
    if (a->dies < b->born) return true;
    if (a->v && viewed(a->v) == viewed(b->v) && a->from == b->from) return true;
    return a->born < b->born && (slices_pass(a, b) || overwrite_allowed(mem, a, b));
}

/* Buffers of arguments are written to only where the function says so. */
static const char *check_arguments(Arena *mem, const Func *f) {
    for (const Op *op = f->first; op; op = op->next) {
        for (int i = 0; i < op->nout; i++) {
            const Value *v = op->out[i], *of = viewed(v);
            if (v->loc.kind != LOC_ARG || (!of->def && of->nth == v->loc.at)) continue;
            if (func_result_over(f, (int)v->loc.at) >= 0) continue;
            return arena_printf(
                mem, "@%s: %%%s overwrites an argument that must stay as it is", f->name,
                v->name);
        }
    }
    return NULL;
}

static bool same_location(const Func *f, const Value *a, const Value *b) {
    Span x = value_span(f, a), y = value_span(f, b);
    return x.space == y.space && x.from == y.from;
}

/* What a callee writes over an operand is found there; a view has its operand's bytes. */
static const char *check_shared(Arena *mem, const Func *f) {
    for (const Op *op = f->first; op; op = op->next) {
        const Func *callee = op_callee(op);
        bool view = optab[op->kind].flags & F_VIEW;
        for (int i = 0; i < op->nout; i++) {
            bool shares = callee && callee->role != ROLE_KERNEL;
            int a = shares ? callee->alias[i] : view ? i : -1;
            if (a < 0 || same_location(f, op->in[a], op->out[i])) continue;
            return arena_printf(mem, "@%s: %%%s is not at the location of %%%s", f->name,
                                op->out[i]->name, op->in[a]->name);
        }
    }
    return NULL;
}

/* What a late collective reads and writes is in use until its arrive, which must keep all
 * of it alive; before that nobody else sees the results. */
static const char *check_flight(Arena *mem, const Func *f) {
    for (const Op *op = f->first; op; op = op->next) {
        const Op *arrival = op_arrival(op);
        if (!op_int(op, "late", 0)) continue;
        if (!arrival)
            return arena_printf(mem, "@%s: %s never arrives", f->name,
                                optab[op->kind].name);
        for (int i = 0; i < op->nin + op->nout; i++) {
            const Value *v = i < op->nout ? op->out[i] : op->in[i - op->nout];
            bool kept = false;
            for (int k = 0; k < arrival->nin; k++) kept |= arrival->in[k] == v;
            if (!kept)
                return arena_printf(mem, "@%s: %%%s is not kept until it arrives",
                                    f->name, v->name);
            if (i >= op->nout || value_uses(f, v) == 1) continue;
            return arena_printf(mem, "@%s: %%%s is used in flight", f->name, v->name);
        }
    }
    return NULL;
}

static int by_bytes(const void *a, const void *b) {
    const Span *x = a, *y = b;
    if (x->space != y->space) return x->space < y->space ? -1 : 1;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    return (x->born > y->born) - (x->born < y->born);
}

/* All values of a numbered function and the workspaces of its ops; *n of them. */
static Span *list_spans(Arena *mem, const Func *f, int *n) {
    Span *span = NEW_ARRAY(mem, Span, (size_t)(f->nvalues + f->nops));
    const int *dies = last_reads(mem, f);
    *n = 0;
    for (int i = 0; i < f->narg; i++) span[(*n)++] = value_span(f, f->arg[i]);
    for (const Op *op = f->first; op; op = op->next) {
        for (int i = 0; i < op->nout; i++) span[(*n)++] = value_span(f, op->out[i]);
        int64_t bytes = op_int(op, "ws_bytes", 0), at = op_int(op, "ws", 0);
        const Op *arrival = op_arrival(op);
        int done = arrival ? arrival->id : op->id;
        if (bytes) span[(*n)++] = (Span){0, at, at + bytes, op->id, done, NULL};
    }
    for (int i = 0; i < *n; i++)
        if (span[i].v) span[i].dies = dies[span[i].v->id];
    if (*n > 1) qsort(span, (size_t)*n, sizeof *span, by_bytes);
    return span;
}

/* Of spans in the order of by_bytes: b and those after it do not, once one does not. */
static bool shares_bytes(const Span *a, const Span *b) {
    return a->space == b->space && b->from < a->to;
}

static const char *span_name(const Span *s) {
    return s->v ? s->v->name : "workspace";
}

static const char *check_spans(Arena *mem, const Func *f) {
    int n;
    const Span *span = list_spans(mem, f, &n);
    for (int i = 0; i < n; i++) {
        const Span *s = &span[i];
        if (s->space == 0 && (s->from < 0 || s->to > f->frame_bytes))
            return arena_printf(mem, "@%s: %%%s is outside the frame", f->name,
                                span_name(s));
        for (int j = i + 1; j < n && shares_bytes(s, &span[j]); j++)
            if (!may_meet(mem, s, &span[j]))
                return arena_printf(mem, "@%s: %%%s and %%%s live in the same bytes",
                                    f->name, span_name(s), span_name(&span[j]));
    }
    return NULL;
}

static const char *check_results(Arena *mem, const Func *f) {
    for (int i = 0; i < f->nret; i++) {
        const Value *v = f->ret[i];
        bool own = v->loc.kind == LOC_RET && v->loc.at == i && f->alias[i] < 0;
        bool over = v->loc.kind == LOC_ARG && v->loc.at == f->alias[i];
        bool good = v->def ? own || over : v->nth == f->alias[i];
        if (!good)
            return arena_printf(mem, "@%s: result %d is not where the caller looks",
                                f->name, i);
    }
    return NULL;
}

const char *memplan_check(Arena *mem, const Module *m) {
    for (Func *f = m->first; f; f = f->next) {
        if (f->role == ROLE_KERNEL) continue;
        const char *why = check_flight(mem, f);
        func_number(f);
        if (!why) why = check_spans(mem, f);
        if (!why) why = check_results(mem, f);
        if (!why) why = check_arguments(mem, f);
        if (!why) why = check_shared(mem, f);
        if (!why) why = flight_check(mem, f);
        if (why) return why;
    }
    return NULL;
}

/* ---- sums ---- */

static MemoryClass class_of_arg(const Func *f, int i) {
    ArgRole role = arg_role(f, i);
    if (role == ARG_param) return MEM_WEIGHTS;
    if (role == ARG_state) return MEM_OPTIMIZER;
    return MEM_DATA;
}

/* Of so many bytes of the parameter, those of its gradient. */
static int64_t in_its_type(const Func *entry, int param, int64_t bytes) {
    const Module *m = entry->mod;
    const char *type = arg_str(entry, param, "gradient", NULL);
    DType of = entry->arg[param]->ty.dt;
    DType dt = type ? type_parse(m->mem, &m->mesh, type).dt : of;
    return bytes / dtype_bytes[of] * dtype_bytes[dt];
}

int64_t memory_gradient_bytes(const Func *entry, int param) {
    const Value *p = entry->arg[param];
    int level = (int)arg_float(entry, param, "zero", 0);
    for (int i = 0; i < entry->narg && level >= 2; i++) {
        if (!strcmp(arg_str(entry, i, "like", ""), p->name))
            return in_its_type(entry, param, type_bytes(&entry->arg[i]->ty));
    }
    Axes axes = 0; /* over which the parameter itself is split */
    check(mesh_axes_parse(&entry->mod->mesh, arg_str(entry, param, "flat", ""), &axes));
    int64_t whole = type_bytes(&p->ty) * mesh_group_size(&entry->mod->mesh, axes);
    return in_its_type(entry, param, whole);
}

/* Bytes of the frame that gradients take: each parameter that the entry overwrites has one,
 * which lives until its update. */
static int64_t gradient_bytes(const Func *entry) {
    int64_t bytes = 0;
    for (int i = 0; i < entry->narg; i++) {
        if (class_of_arg(entry, i) != MEM_WEIGHTS) continue;
        if (func_result_over(entry, i) >= 0) bytes += memory_gradient_bytes(entry, i);
    }
    return MIN(bytes, entry->frame_bytes);
}

/* The largest workspace of the entry that is not the frame of a function. */
static int64_t workspace_bytes(const Module *m) {
    int64_t most = 0;
    for (const Func *f = m->first; f; f = f->next) {
        for (const Op *op = f->first; op; op = op->next) {
            const Func *callee = op_callee(op);
            int64_t bytes = op_int(op, "ws_bytes", 0);
            if (callee && callee->role != ROLE_KERNEL) bytes -= callee->frame_bytes;
            most = MAX(most, bytes);
        }
    }
    return most;
}

MemoryPlan memory_plan(Arena *mem, const Func *entry) {
    MemoryPlan p = {0};
    p.arg_offset = NEW_ARRAY(mem, int64_t, (size_t)entry->narg + 1);
    p.ret_offset = NEW_ARRAY(mem, int64_t, (size_t)entry->nret + 1);
    int64_t at = 0;
    for (int i = 0; i < entry->narg; i++) {
        int64_t bytes = align_up(type_bytes(&entry->arg[i]->ty));
        p.arg_offset[i] = at;
        p.class_bytes[class_of_arg(entry, i)] += bytes;
        at += bytes;
    }
    for (int i = 0; i < entry->nret; i++) {
        if (entry->alias[i] >= 0) {
            p.ret_offset[i] = p.arg_offset[entry->alias[i]];
            continue;
        }
        int64_t bytes = align_up(type_bytes(&entry->ret[i]->ty));
        p.ret_offset[i] = at;
        p.class_bytes[MEM_DATA] += bytes;
        at += bytes;
    }
    p.frame_offset = at;
    p.total_bytes = at + entry->frame_bytes;
    int64_t frame = entry->frame_bytes;
    p.class_bytes[MEM_GRADIENTS] = gradient_bytes(entry);
    frame -= p.class_bytes[MEM_GRADIENTS];
    p.class_bytes[MEM_WORKSPACE] = MIN(frame, workspace_bytes(entry->mod));
    p.class_bytes[MEM_ACTIVATIONS] = frame - p.class_bytes[MEM_WORKSPACE];
    return p;
}
