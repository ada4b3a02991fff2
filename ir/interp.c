/* interp.c - runs functions by the reference kernels, on all ranks of the mesh at once:
 * rank by rank within an op, op by op in program order, so that a collective finds the
 * operands of all ranks ready. At level planned the values live where memory planning put
 * them, so a wrong plan gives wrong numbers. */
#include "ir.h"
#include <math.h>

typedef struct Env { /* one call of one function on all ranks */
    Arena *mem;
    const Func *f;
    int nranks;
    Tensor ***value; /* [rank][value id] */
    char **frame;    /* [rank]; level planned */
} Env;

double tensor_get(const Tensor *t, int64_t i) {
    switch (t->ty.dt) {
    case DT_F32: return ((const float *)t->data)[i];
    case DT_F64: return ((const double *)t->data)[i];
    case DT_I32: return ((const int32_t *)t->data)[i];
    case DT_I64: return (double)((const int64_t *)t->data)[i];
    case DT_BF16: {
        uint32_t bits = (uint32_t)((const uint16_t *)t->data)[i] << 16;
        float v;
        memcpy(&v, &bits, 4);
        return v;
    }
    default: die("element type");
    }
}

int64_t tensor_get_int(const Tensor *t, int64_t i) {
    if (t->ty.dt == DT_I64) return ((const int64_t *)t->data)[i];
    if (t->ty.dt == DT_I32) return ((const int32_t *)t->data)[i];
    return (int64_t)tensor_get(t, i);
}

/* Round to nearest even, NaN stays NaN. */
static uint16_t bf16_of(float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    if (v != v) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Towards zero; numbers beyond the type become its ends, NaN 0. */
static int64_t to_integer(double v, int bits) {
    if (v != v) return 0;
    int64_t most = INT64_MAX >> (63 - bits);
    if (v >= ldexp(1, bits)) return most;
    return v < -ldexp(1, bits) ? -most - 1 : (int64_t)v;
}

void tensor_set(Tensor *t, int64_t i, double v) {
    switch (t->ty.dt) {
    case DT_F32: ((float *)t->data)[i] = (float)v; return;
    case DT_F64: ((double *)t->data)[i] = v; return;
    case DT_I32: ((int32_t *)t->data)[i] = (int32_t)to_integer(v, 31); return;
    case DT_I64: ((int64_t *)t->data)[i] = to_integer(v, 63); return;
    case DT_BF16: ((uint16_t *)t->data)[i] = bf16_of((float)v); return;
    default: die("element type");
    }
}

Tensor *tensor_new(Arena *mem, const Type *ty) {
    Tensor *t = NEW(mem, Tensor);
    t->ty = *ty;
    t->data = arena_alloc(mem, (size_t)type_bytes(ty) + 64);
    return t;
}

int mesh_ranks(const Mesh *m) {
    int n = 1;
    for (int a = 0; a < m->naxes; a++) n *= m->axis[a].size;
    return n;
}

/* Axis 0 is the outermost: neighbouring ranks differ in the last axis. */
int mesh_coord(const Mesh *m, int rank, int axis) {
    for (int a = m->naxes - 1; a > axis; a--) rank /= m->axis[a].size;
    return rank % m->axis[axis].size;
}

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
    const Func *callee = op_func(op);
    bool loop = op_attr(op, "times") != NULL;
    int64_t times = op_int(op, "times", 1);
    int carry = loop ? (int)op_int(op, "carry", 0) : 0;
    int each = loop ? (int)op_int(op, "each", 0) : 0;
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
    for (int64_t k = 0; k < times; k++) {
        int64_t at = op_int(op, "reverse", 0) ? times - 1 - k : k;
        for (int r = 0; r < n; r++) {
            for (int i = carry; i < carry + each; i++) {
                arg[r][i] = slice(e->mem, e->value[r][op->in[i]->id], at);
            }
            for (int i = 0; i < op->nout; i++) {
                Tensor *out = e->value[r][op->out[i]->id];
                if (i < carry) ret[r][i] = tensor_new(e->mem, &out->ty);
                else ret[r][i] = loop ? slice(e->mem, out, at) : out;
                int a = callee->alias[i];
                if (in_place && a >= 0) ret[r][i] = arg[r][a];
            }
        }
        run_func(callee, arg, ret, in_place ? frame : NULL);
        for (int r = 0; r < n; r++) {
            for (int i = 0; i < carry; i++) arg[r][i] = ret[r][i];
        }
    }
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < carry; i++)
            tensor_copy(e->value[r][op->out[i]->id], arg[r][i]);
    }
}

void ref_call(const Ref *r) {
    die("%s is run by the interpreter itself", optab[r->op->kind].name);
}

static void run_op(Env *e, const Op *op) {
    if (op->kind == OP_call) {
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
