/* interp.c - runs functions by the reference kernels, on all ranks of the mesh at once:
 * rank by rank within an op, op by op in program order, so that a collective finds the
 * operands of all ranks ready. At level planned the values live where memory planning put
 * them, so a wrong plan gives wrong numbers. */
#include "ir/ir.h"
#include "ir/placement.h"

/* Messages between stages that are on their way: what was sent, of every rank. */
typedef struct Message {
    int from, to;
    int64_t number;
    Tensor **tensor; /* [rank] */
    struct Message *next;
} Message;
typedef struct Post {
    Arena *mem;
    Message *first;
} Post;

/* What the calls of one entry have in common. */
typedef struct Run {
    Post *post;               /* NULL: it is run alone */
    const InterpWatch *watch; /* NULL: nobody looks */
    int stage;
} Run;

typedef struct Env { /* one call of one function on all ranks */
    Arena *mem;
    const Run *run;
    bool is_entry; /* it may send and receive */
    const Func *f;
    int nranks;
    Tensor ***value; /* [rank][value id] */
    char **frame;    /* [rank]; level planned */
} Env;

static bool planned(const Env *e) {
    return e->f->mod->level == LEVEL_PLANNED && e->f->role != ROLE_KERNEL;
}

static Tensor *bind_value(Env *e, int rank, const Value *v, Tensor **arg, Tensor **ret) {
    if (!planned(e)) return tensor_new(e->mem, &v->ty);
    Tensor *t = NEW(e->mem, Tensor);
    t->ty = v->ty;
    if (v->loc.kind == LOC_FRAME) {
        check(v->loc.at >= 0 && v->loc.at + type_bytes(&v->ty) <= e->f->frame_bytes);
        t->data = e->frame[rank] + v->loc.at;
    } else if (v->loc.kind == LOC_ARG) {
        t->data = arg[v->loc.at]->data;
    } else {
        check(v->loc.kind == LOC_RET);
        t->data = ret[v->loc.at]->data;
    }
    return t;
}

static void run_func(const Run *run, const Func *f, Tensor ***arg, Tensor ***ret,
                     char **frame);

static void seen(const Env *e, const Op *op) {
    const InterpWatch *w = e->run->watch;
    if (w) w->op(w->ctx, e->run->stage, op);
}

/* Slice i of a stacked tensor, sharing its data. */
static Tensor *slice(Arena *mem, const Tensor *t, int64_t i) {
    Tensor *s = NEW(mem, Tensor);
    s->ty = type_slice(&t->ty);
    s->data = (char *)t->data + i * type_bytes(&s->ty);
    return s;
}

static void tensor_copy(Tensor *to, const Tensor *from) {
    if (to->data != from->data)
        memmove(to->data, from->data, (size_t)type_bytes(&to->ty));
}

/* Operands and results of a call by rank; at level planned the callee's frames too. */
typedef struct Frames {
    Tensor ***arg, ***ret;
    char **frame; /* NULL: results are where tensor_new put them */
} Frames;

static Frames open_frames(Env *e, const Op *op) {
    size_t n = (size_t)e->nranks;
    Frames s = {.arg = NEW_ARRAY(e->mem, Tensor **, n),
                .ret = NEW_ARRAY(e->mem, Tensor **, n)};
    if (planned(e) && op_func(op)->role != ROLE_KERNEL)
        s.frame = NEW_ARRAY(e->mem, char *, n);
    for (int r = 0; r < e->nranks; r++) {
        s.arg[r] = NEW_ARRAY(e->mem, Tensor *, (size_t)op->nin);
        s.ret[r] = NEW_ARRAY(e->mem, Tensor *, (size_t)op->nout);
        for (int i = 0; i < op->nin; i++) s.arg[r][i] = e->value[r][op->in[i]->id];
        if (s.frame) s.frame[r] = e->frame[r] + op_int(op, "ws", 0);
    }
    return s;
}

/* What one run of a call reads and writes on a rank; `at` is its slice. */
static void set_run(Env *e, const Call *c, Frames *s, int rank, int64_t at) {
    Tensor **arg = s->arg[rank], **ret = s->ret[rank], **value = e->value[rank];
    for (int i = c->carry; i < c->carry + c->each; i++)
        arg[i] = slice(e->mem, value[c->op->in[i]->id], at);
    for (int i = 0; i < c->op->nout; i++) {
        Tensor *out = value[c->op->out[i]->id];
        int a = c->f->alias[i];
        if (s->frame && a >= 0)
            ret[i] = arg[a];
        else if (i < c->carry)
            ret[i] = tensor_new(e->mem, &out->ty);
        else
            ret[i] = c->loop ? slice(e->mem, out, at) : out;
    }
}

/* One call op on all ranks; loops as ops.def describes. */
static void run_call(Env *e, const Op *op) {
    const Call c = call_of(op);
    Frames s = open_frames(e, op);
    for (int64_t k = 0; k < c.times; k++) {
        int64_t at = c.reverse ? c.times - 1 - k : k;
        for (int r = 0; r < e->nranks; r++) set_run(e, &c, &s, r, at);
        run_func(e->run, c.f, s.arg, s.ret, s.frame);
        for (int r = 0; r < e->nranks; r++)
            for (int i = 0; i < c.carry; i++) s.arg[r][i] = s.ret[r][i];
    }
    for (int r = 0; r < e->nranks; r++)
        for (int i = 0; i < c.carry; i++)
            tensor_copy(e->value[r][op->out[i]->id], s.arg[r][i]);
}

void ref_call(const Ref *r) {
    die("%s is run by the interpreter itself", optab[r->op->kind].name);
}

/* ---- stages ---- */

void ref_send(const Ref *r) {
    die("%s is run by the interpreter itself", optab[r->op->kind].name);
}

void ref_receive(const Ref *r) {
    ref_send(r);
}

void ref_sent(const Ref *r) {
    ref_send(r);
}

static void send(Env *e, const Op *op) {
    Post *post = e->run->post;
    Message *m = NEW(post->mem, Message);
    *m = (Message){.from = e->f->stage,
                   .to = (int)op_int(op, "to", 0),
                   .number = op_int(op, "message", 0),
                   .next = post->first};
    m->tensor = NEW_ARRAY(post->mem, Tensor *, (size_t)e->nranks);
    for (int r = 0; r < e->nranks; r++) {
        m->tensor[r] = tensor_new(post->mem, &op->in[0]->ty);
        tensor_copy(m->tensor[r], e->value[r][op->in[0]->id]);
    }
    post->first = m;
    seen(e, op);
}

/* false: it has not been sent yet. */
static bool receive(Env *e, const Op *op) {
    for (Message **at = &e->run->post->first; *at; at = &(*at)->next) {
        Message *m = *at;
        if (m->to != e->f->stage || m->from != op_int(op, "from", -1) ||
            m->number != op_int(op, "message", -1))
            continue;
        if (!type_same_shape(&m->tensor[0]->ty, &op->out[0]->ty))
            fail_op(op, "message %lld of stage %d is %s", (long long)m->number, m->from,
                    type_text(e->mem, &e->f->mod->mesh, &m->tensor[0]->ty));
        for (int r = 0; r < e->nranks; r++) {
            tensor_copy(e->value[r][op->out[0]->id], m->tensor[r]);
        }
        *at = m->next;
        return true;
    }
    return false;
}

/* false: it must wait for another stage. */
static bool run_effect(Env *e, const Op *op) {
    if (!e->is_entry || !e->run->post)
        die("%s outside of a module with stages", optab[op->kind].name);
    if (!op->nin) return receive(e, op);
    if (op->nout) send(e, op);
    return true;
}

static void run_op(Env *e, const Op *op) {
    if (op_is_call(op)) {
        run_call(e, op);
        return;
    }
    if (op_has(op, F_COMM)) seen(e, op);
    Tensor ***in = NEW_ARRAY(e->mem, Tensor **, (size_t)e->nranks);
    for (int r = 0; r < e->nranks; r++) {
        in[r] = NEW_ARRAY(e->mem, Tensor *, (size_t)op->nin);
        for (int i = 0; i < op->nin; i++) {
            Tensor *t = in[r][i] = e->value[r][op->in[i]->id];
            /* the next rank reads what this one writes */
            unsigned both = F_COMM | F_INPLACE;
            if ((optab[op->kind].flags & both) != both) continue;
            in[r][i] = tensor_new(e->mem, &t->ty);
            memcpy(in[r][i]->data, t->data, (size_t)type_bytes(&t->ty));
        }
    }
    Tensor **out = NEW_ARRAY(e->mem, Tensor *, (size_t)op->nout);
    for (int r = 0; r < e->nranks; r++) {
        for (int i = 0; i < op->nout; i++) out[i] = e->value[r][op->out[i]->id];
        Ref ref = {op, in[r], out, r, &e->f->mod->mesh, in};
        optab[op->kind].ref(&ref);
    }
}

/* ret[rank][i] are allocated; frame[rank] may be NULL: then frames are made here. */
static Env enter(const Run *run, const Func *f, Tensor ***arg, Tensor ***ret,
                 char **frame) {
    Env e = {.mem = arena_new(), .run = run, .f = f, .nranks = mesh_ranks(&f->mod->mesh)};
    e.value = NEW_ARRAY(e.mem, Tensor **, (size_t)e.nranks);
    e.frame = frame ? frame : NEW_ARRAY(e.mem, char *, (size_t)e.nranks);
    for (int r = 0; r < e.nranks; r++) {
        if (!frame) {
            e.frame[r] = arena_alloc(e.mem, (size_t)f->frame_bytes + 64);
            /* NaN shows what is not written */
            memset(e.frame[r], 0xff, (size_t)f->frame_bytes);
        }
        e.value[r] = NEW_ARRAY(e.mem, Tensor *, (size_t)f->nvalues + 1);
        for (int i = 0; i < f->narg; i++) e.value[r][f->arg[i]->id] = arg[r][i];
        for (const Op *op = f->first; op; op = op->next) {
            for (int i = 0; i < op->nout; i++) {
                e.value[r][op->out[i]->id] =
                    bind_value(&e, r, op->out[i], arg[r], ret[r]);
            }
        }
    }
    return e;
}

static void leave(Env *e, Tensor ***ret) {
    for (int r = 0; r < e->nranks; r++) {
        for (int i = 0; i < e->f->nret; i++)
            tensor_copy(ret[r][i], e->value[r][e->f->ret[i]->id]);
    }
    arena_free(e->mem);
}

static void run_func(const Run *run, const Func *f, Tensor ***arg, Tensor ***ret,
                     char **frame) {
    Env e = enter(run, f, arg, ret, frame);
    for (const Op *op = f->first; op; op = op->next) run_op(&e, op);
    leave(&e, ret);
}

static void make_results(Arena *mem, const Func *f, Tensor ***arg, Tensor ***ret) {
    bool in_place = f->mod->level == LEVEL_PLANNED;
    for (int r = 0; r < mesh_ranks(&f->mod->mesh); r++) {
        for (int i = 0; i < f->nret; i++) {
            int a = in_place ? f->alias[i] : -1;
            ret[r][i] = a >= 0 ? arg[r][a] : tensor_new(mem, &f->ret[i]->ty);
        }
    }
}

void interp_run(Arena *mem, const Func *f, Tensor ***arg, Tensor ***ret) {
    for (Func *g = f->mod->first; g; g = g->next) func_number(g);
    make_results(mem, f, arg, ret);
    run_func(&(Run){0}, f, arg, ret, NULL);
}

/* Runs ops of a stage until one waits; false: that was the first. */
static bool go_on(Env *e, const Op **at) {
    const Op *begin = *at;
    for (; *at; *at = (*at)->next) {
        if (!op_has(*at, F_EFFECT))
            run_op(e, *at);
        else if (!run_effect(e, *at))
            break;
    }
    return *at != begin;
}

static const char *say_stuck(Arena *mem, const Op *const *at, int n) {
    Text t = text_new(mem);
    for (int s = 0; s < n; s++) {
        if (!at[s]) continue;
        text_add(&t, "%sstage %d waits for message %lld of stage %lld (%%%s)",
                 t.n ? ", " : "", s, (long long)op_int(at[s], "message", 0),
                 (long long)op_int(at[s], "from", 0), at[s]->out[0]->name);
    }
    return t.s;
}

const char *interp_run_steps(Arena *mem, const InterpStep *step, int n,
                             const InterpWatch *watch) {
    Post post = {.mem = arena_new()};
    Run *run = NEW_ARRAY(mem, Run, (size_t)n);
    Env *e = NEW_ARRAY(mem, Env, (size_t)n);
    const Op **at = NEW_ARRAY(mem, const Op *, (size_t)n);
    for (int s = 0; s < n; s++) {
        const Func *f = step[s].f;
        for (Func *g = f->mod->first; g; g = g->next) func_number(g);
        make_results(mem, f, step[s].arg, step[s].ret);
        run[s] = (Run){&post, watch, s};
        e[s] = enter(&run[s], f, step[s].arg, step[s].ret, NULL);
        e[s].is_entry = true;
        at[s] = f->first;
    }
    bool moved = true, waits = true;
    while (moved && waits) {
        moved = waits = false;
        for (int s = 0; s < n; s++) {
            if (at[s]) moved |= go_on(&e[s], &at[s]);
            waits |= at[s] != NULL;
        }
    }
    const char *stuck = waits ? say_stuck(mem, at, n) : NULL;
    for (int s = 0; s < n; s++) leave(&e[s], step[s].ret);
    arena_free(post.mem);
    return stuck;
}

const char *interp_run_stages(Arena *mem, const Module *m, Tensor ****arg,
                              Tensor ****ret) {
    int n = MAX(m->stages, 1);
    InterpStep *step = NEW_ARRAY(mem, InterpStep, (size_t)n);
    for (int s = 0; s < n; s++) {
        step[s] = (InterpStep){module_stage(m, s), arg[s], ret[s]};
        if (!step[s].f)
            fail(EXIT_CONFIG, "module @%s has no step of stage %d", m->name, s);
    }
    return interp_run_steps(mem, step, n, NULL);
}
