/* interp.c - runs functions by the reference kernels, on all ranks of the mesh at once:
 * rank by rank within an op, op by op in program order, so that a collective finds the
 * operands of all ranks ready. At level planned the values live where memory planning put
 * them, so a wrong plan gives wrong numbers. */
#include "ir/ir.h"
#include <math.h>

typedef struct Env { /* one call of one function on all ranks */
    Arena *mem;
    const Func *f;
    int nranks;
    Tensor ***value; /* [rank][value id] */
    char **frame;    /* [rank]; level planned */
} Env;

static bool planned(const Env *e) {
    return e->f->mod->level == LEVEL_PLANNED && e->f->role != ROLE_KERNEL;
}

static Tensor *place_value(Env *e, int rank, const Value *v, Tensor **arg, Tensor **ret) {
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

static void run_func(const Func *f, Tensor ***arg, Tensor ***ret, char **frame);

/* Slice i of a stacked tensor, sharing its data. */
static Tensor *slice(Arena *mem, const Tensor *t, int64_t i) {
    Tensor *s = NEW(mem, Tensor);
    s->ty = t->ty;
    s->ty.rank--;
    memmove(s->ty.dim, t->ty.dim + 1, sizeof(int64_t) * (MAX_RANK - 1));
    s->data = (char *)t->data + i * type_bytes(&s->ty);
    return s;
}

static void tensor_copy(Tensor *to, const Tensor *from) {
    if (to->data != from->data)
        memmove(to->data, from->data, (size_t)type_bytes(&to->ty));
}

/* One call op on all ranks; loops as ops.def describes. */
static void run_call(Env *e, const Op *op) {
    const Call c = call_of(op);
    const Func *callee = c.f;
    int n = e->nranks;
    bool in_place = planned(e) && callee->role != ROLE_KERNEL;
    Tensor ***arg = NEW_ARRAY(e->mem, Tensor **, (size_t)n);
    Tensor ***ret = NEW_ARRAY(e->mem, Tensor **, (size_t)n);
    char **frame = NEW_ARRAY(e->mem, char *, (size_t)n);
    for (int r = 0; r < n; r++) {
        arg[r] = NEW_ARRAY(e->mem, Tensor *, (size_t)op->nin);
        ret[r] = NEW_ARRAY(e->mem, Tensor *, (size_t)op->nout);
        for (int i = 0; i < op->nin; i++) arg[r][i] = e->value[r][op->in[i]->id];
        if (in_place) frame[r] = e->frame[r] + op_int(op, "ws", 0);
    }
    for (int64_t k = 0; k < c.times; k++) {
        int64_t at = c.reverse ? c.times - 1 - k : k;
        for (int r = 0; r < n; r++) {
            for (int i = c.carry; i < c.carry + c.each; i++) {
                arg[r][i] = slice(e->mem, e->value[r][op->in[i]->id], at);
            }
            for (int i = 0; i < op->nout; i++) {
                Tensor *out = e->value[r][op->out[i]->id];
                if (i < c.carry)
                    ret[r][i] = tensor_new(e->mem, &out->ty);
                else
                    ret[r][i] = c.loop ? slice(e->mem, out, at) : out;
                int a = callee->alias[i];
                if (in_place && a >= 0) ret[r][i] = arg[r][a];
            }
        }
        run_func(callee, arg, ret, in_place ? frame : NULL);
        for (int r = 0; r < n; r++) {
            for (int i = 0; i < c.carry; i++) arg[r][i] = ret[r][i];
        }
    }
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < c.carry; i++)
            tensor_copy(e->value[r][op->out[i]->id], arg[r][i]);
    }
}

void ref_call(const Ref *r) {
    die("%s is run by the interpreter itself", optab[r->op->kind].name);
}

static void run_op(Env *e, const Op *op) {
    if (op_is_call(op)) {
        run_call(e, op);
        return;
    }
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
static void run_func(const Func *f, Tensor ***arg, Tensor ***ret, char **frame) {
    Env e = {.mem = arena_new(), .f = f, .nranks = mesh_ranks(&f->mod->mesh)};
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
                    place_value(&e, r, op->out[i], arg[r], ret[r]);
            }
        }
    }
    for (const Op *op = f->first; op; op = op->next) run_op(&e, op);
    for (int r = 0; r < e.nranks; r++) {
        for (int i = 0; i < f->nret; i++)
            tensor_copy(ret[r][i], e.value[r][f->ret[i]->id]);
    }
    arena_free(e.mem);
}

void interp_run(Arena *mem, const Func *f, Tensor ***arg, Tensor ***ret) {
    int n = mesh_ranks(&f->mod->mesh);
    for (Func *g = f->mod->first; g; g = g->next) func_number(g);
    bool in_place = f->mod->level == LEVEL_PLANNED;
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < f->nret; i++) {
            int a = in_place ? f->alias[i] : -1;
            ret[r][i] = a >= 0 ? arg[r][a] : tensor_new(mem, &f->ret[i]->ty);
        }
    }
    run_func(f, arg, ret, NULL);
}
