/* verify.c - what must be true of a module at its level; run after parsing and after
 * every pass. Errors name the line that the op came from, of arguments and results that of
 * their function. */
#include "ir/op_hooks.h"

typedef struct Check {
    const Module *m;
    const char *file, *text;
    const Func *f;
    const Op *op;
    int *uses;              /* of the function's values, by id */
    Type *types, *inferred; /* scratch for the results of one op */
} Check;

static _Noreturn void bad(const Check *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static _Noreturn void bad(const Check *c, const char *fmt, ...) {
    char message[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    int line = c->op ? c->op->line : c->f->line;
    SourcePos at = {c->file ? c->file : c->m->name, c->text, line};
    fail_at(EXIT_CONFIG, at, NULL, "@%s: %s%s%s", c->f->name,
            c->op ? optab[c->op->kind].name : "", c->op ? ": " : "", message);
}

static bool has_attr(const Op *op, const char *key, size_t n) {
    for (const Attr *a = op->attr; a; a = a->next)
        if (!strncmp(a->key, key, n) && !a->key[n]) return true;
    return false;
}

/* The row has "key:kind key:kind? ..."; those without the mark must be there. */
static void check_attrs(const Check *c) {
    for (const char *p = optab[c->op->kind].attrs; *p; p += *p == ' ') {
        const char *key = p;
        while (*p != ':') p++;
        size_t n = (size_t)(p - key);
        bool optional = p[2] == '?';
        while (*p && *p != ' ') p++;
        if (!optional && !has_attr(c->op, key, n))
            bad(c, "attribute '%.*s' is missing", (int)n, key);
    }
}

/* Result shapes against the row. Call has its own check of operands
 * against the callee. */
static void check_types(const Check *c, Arena *mem) {
    const Op *op = c->op;
    Type *types = c->types, *out = c->inferred;
    for (int i = 0; i < op->nout; i++) types[i] = op->out[i]->ty;
    Op probe = *op;
    int nout = 0;
    const char *why = op_infer(mem, &probe, types, op->nout, out, &nout);
    if (why) bad(c, "%s", why);
    if (nout != op->nout) bad(c, "%d results, must be %d", op->nout, nout);
    for (int i = 0; i < nout; i++) {
        if (type_same_shape(&out[i], &types[i])) continue;
        Text t = text_new(mem);
        type_print(&t, &c->m->mesh, &out[i]);
        bad(c, "result %d must be %s", i, t.s);
    }
}

static void check_placement(const Check *c, const Value *v) {
    Axes used = 0;
    for (int d = 0; d < v->ty.rank; d++) {
        Axes set = v->ty.split[d] & (Axes)~AXES_REVERSED;
        if (used & set) bad(c, "%%%s uses a mesh axis twice", v->name);
        used |= set;
        int parts = mesh_group_size(&c->m->mesh, set);
        if (v->ty.dim[d] % parts)
            bad(c, "%%%s: dimension %d is %lld, which %d ranks do not divide", v->name, d,
                (long long)v->ty.dim[d], parts);
    }
    if (used & v->ty.pending) bad(c, "%%%s uses a mesh axis twice", v->name);
    if (c->m->level >= LEVEL_LOCAL && (used || v->ty.pending)) {
        bad(c, "%%%s has a placement at level %s", v->name, level_name[c->m->level]);
    }
    bool located = v->loc.kind != LOC_NONE;
    bool wanted = c->m->level == LEVEL_PLANNED && v->def && c->f->role != ROLE_KERNEL;
    if (located != wanted) {
        bad(c, "%%%s %s a location in memory at level %s", v->name,
            located ? "has" : "lacks", level_name[c->m->level]);
    }
}

/* Bytes [at, at + bytes) must be in the frame. */
static void check_in_frame(const Check *c, int64_t at, int64_t bytes, const char *what) {
    int64_t room = c->f->frame_bytes;
    if (at < 0 || bytes < 0 || bytes > room || at > room - bytes) {
        bad(c, "%s is outside the frame of %lld bytes", what, (long long)room);
    }
}

/* A location in a text must be within its memory; whether values that live at the same
 * time overlap is for memplan_check to say. */
static void check_loc(const Check *c, const Value *v) {
    int64_t bytes = type_bytes(&v->ty), at = v->loc.at, room = 0;
    if (v->loc.kind == LOC_NONE) return;
    if (v->loc.kind == LOC_FRAME) {
        check_in_frame(c, at, bytes, "a result");
        return;
    }
    bool arg = v->loc.kind == LOC_ARG;
    if (at >= 0 && at < (arg ? c->f->narg : c->f->nret)) {
        room = type_bytes(arg ? &c->f->arg[at]->ty : &c->f->ret[at]->ty);
    }
    if (bytes > room) {
        bad(c, "%%%s is in %s %lld, which has %lld bytes", v->name,
            arg ? "argument" : "result", (long long)at, (long long)room);
    }
}

static void check_workspace(const Check *c) {
    int64_t bytes = op_int(c->op, "ws_bytes", 0);
    const Func *callee = op_callee(c->op);
    if (c->m->level < LEVEL_PLANNED) return;
    check_in_frame(c, op_int(c->op, "ws", 0), bytes, "the workspace");
    if (callee && callee->frame_bytes > bytes) {
        bad(c, "%lld bytes of workspace, @%s needs %lld", (long long)bytes, callee->name,
            (long long)callee->frame_bytes);
    }
}

static void check_kernel(const Check *c) {
    unsigned flags = optab[c->op->kind].flags;
    if (!(flags & (F_MAP | F_REDUCE))) bad(c, "not an op of a kernel function");
}

static void check_level(const Check *c) {
    const OpInfo *info = &optab[c->op->kind];
    if (c->m->level >= LEVEL_FUSED && info->expand) {
        bad(c, "a composite op at level %s", level_name[c->m->level]);
    }
    if ((info->flags & F_COMM) && c->m->level < LEVEL_LOCAL) {
        bad(c, "a collective at level %s", level_name[c->m->level]);
    }
    if ((info->flags & F_RANK) && c->m->level < LEVEL_LOCAL) {
        bad(c, "differs from rank to rank, which no value does at level %s",
            level_name[c->m->level]);
    }
}

/* A late collective has one arrive, which names its results and then its operands. */
static void check_late(const Check *c) {
    const Op *op = c->op, *at = op_arrival(op);
    if (!op_int(op, "late", 0)) return;
    if (c->m->level < LEVEL_FUSED) bad(c, "late at level %s", level_name[c->m->level]);
    if (!at || at->nout != op->nout || at->nin != op->nout + op->nin) {
        bad(c, "late, but no arrive waits for all its results");
    }
    for (int i = 0; i < at->nin; i++) {
        const Value *want = i < op->nout ? op->out[i] : op->in[i - op->nout];
        if (at->in[i] != want)
            bad(c, "its arrive does not name %%%s at %d", want->name, i);
    }
    for (int i = 0; i < op->nout; i++) {
        if (c->uses[op->out[i]->id] == 1) continue;
        bad(c, "%%%s is used by more than its arrive", op->out[i]->name);
    }
}

/* Between stages: the step of one speaks to another one. */
static void check_message(const Check *c) {
    const Op *op = c->op;
    const char *key = op->nin ? "to" : "from";
    if (!op_has(op, F_EFFECT)) return;
    if (!c->m->stages || !func_is_entry(c->f))
        bad(c, "messages are for the steps of stages, in a module with stages(N)");
    int64_t other = op_int(op, key, -1);
    if (other < 0 || other >= c->m->stages || other == c->f->stage)
        bad(c, "%s=%lld is no other one of the %d stages", key, (long long)other,
            c->m->stages);
}

/* Each token of a send is waited for once. `seen` is scratch, by value id. */
static void check_tokens(Check *c, bool *seen) {
    memset(seen, 0, (size_t)c->f->nvalues * sizeof *seen);
    for (const Op *op = c->f->first; op; op = op->next) {
        if (!op_has(op, F_EFFECT) || op->nin < 2) continue;
        c->op = op;
        if (seen[op->in[0]->id]) bad(c, "this message has been waited for");
        seen[op->in[0]->id] = true;
    }
    for (const Op *op = c->f->first; op; op = op->next) {
        c->op = op;
        if (op_has(op, F_EFFECT) && op->nin == 1 && !seen[op->out[0]->id])
            bad(c, "nobody waits for this message: a `sent` is missing");
    }
}

static void check_stages(Check *c) {
    const Module *m = c->m;
    bool *seen = NEW_ARRAY(m->mem, bool, (size_t)m->stages + 1);
    for (Func *f = m->first; f; f = f->next) {
        if (!m->stages || !func_is_entry(f)) continue;
        c->f = f;
        c->op = NULL;
        if (seen[f->stage]) bad(c, "stage %d has an entry already", f->stage);
        seen[f->stage] = true;
    }
}

/* Chunks of a pipeline that ops of the model begin, in its order. */
static void check_marks(Check *c) {
    int64_t chunk = 0;
    for (const Op *op = c->f->first; op; op = op->next) {
        const Attr *mark = op_attr(op, "stage");
        if (!mark) continue;
        c->op = op;
        if (c->m->level != LEVEL_GLOBAL || c->f->role != ROLE_MODEL)
            bad(c, "stage is said of ops of the model, at level global");
        if (mark->i < 0 || mark->i >= MAX_CHUNKS)
            bad(c, "stage=%lld: chunks are numbered from 0 to %d", (long long)mark->i,
                MAX_CHUNKS - 1);
        if (mark->i < chunk)
            bad(c,
                "stage=%lld behind stage=%lld: chunks follow each other in the order "
                "of the model",
                (long long)mark->i, (long long)chunk);
        chunk = mark->i;
    }
}

static void check_aliases(const Check *c) {
    const Func *f = c->f;
    for (int i = 0; i < f->nret; i++) {
        int a = f->alias[i];
        if (a < 0) continue;
        if (!type_same_shape(&f->arg[a]->ty, &f->ret[i]->ty)) {
            bad(c, "result %d overwrites an argument of another type", i);
        }
        for (int j = 0; j < i; j++) {
            if (f->alias[j] == a) bad(c, "two results overwrite one argument");
        }
    }
}

static void check_func(Check *c, Arena *mem) {
    c->uses = func_uses(mem, c->f);
    bool *seen = NEW_ARRAY(mem, bool, (size_t)c->f->nvalues + 1);
    c->op = NULL;
    for (int i = 0; i < c->f->narg; i++) {
        seen[c->f->arg[i]->id] = true;
        check_placement(c, c->f->arg[i]);
    }
    check_aliases(c);
    for (const Op *op = c->f->first; op; op = op->next) {
        c->op = op;
        for (int i = 0; i < op->nin; i++) {
            if (op->in[i]->def && op->in[i]->def->fn != c->f) {
                bad(c, "operand %d belongs to another function", i);
            }
            if (!seen[op->in[i]->id]) bad(c, "operand %d is used before it is made", i);
        }
        check_attrs(c);
        check_types(c, mem);
        check_level(c);
        check_late(c);
        check_message(c);
        check_workspace(c);
        if (c->f->role == ROLE_KERNEL) check_kernel(c);
        for (int i = 0; i < op->nout; i++) {
            seen[op->out[i]->id] = true;
            check_placement(c, op->out[i]);
            check_loc(c, op->out[i]);
        }
    }
    check_tokens(c, seen);
    check_marks(c);
}

/* At least as many as any op has or its row or callee says it has: some rows have one for each
 * operand. */
static int most_results(const Module *m) {
    int most = MAX_TERMS;
    for (const Func *f = m->first; f; f = f->next) {
        most = MAX(most, f->nret);
        for (const Op *op = f->first; op; op = op->next)
            most = MAX(most, MAX(op->nout, op->nin));
    }
    return most;
}

void module_verify(const Module *m, const char *file, const char *text) {
    Arena *mem = m->mem;
    Check c = {.m = m, .file = file, .text = text};
    int most = most_results(m);
    c.types = NEW_ARRAY(mem, Type, (size_t)most);
    c.inferred = NEW_ARRAY(mem, Type, (size_t)most);
    for (Func *f = m->first; f; f = f->next) {
        for (const Op *op = f->first; op; op = op->next) {
            if (!op_is_call(op)) continue;
            const Attr *fn = op_attr(op, "fn");
            c.f = f;
            c.op = op;
            if (!fn) bad(&c, "attribute 'fn' is missing");
            const Func *callee = module_find(m, fn->s);
            if (!callee) bad(&c, "function @%s not found", fn->s);
            if (callee->role == ROLE_KERNEL && op_attr(op, "times"))
                bad(&c, "a kernel runs once: @%s takes no times", fn->s);
        }
    }
    check_stages(&c);
    module_order(mem, m);
    for (Func *f = m->first; f; f = f->next) {
        func_number(f);
        c.f = f;
        check_func(&c, mem);
    }
}
