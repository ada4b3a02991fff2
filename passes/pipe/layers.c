/* layers.c - see layers.h. */
#include "passes/pipe/layers.h"
#include "ir/placement.h"

Func *layers_model(const Module *m) {
    for (Func *f = m->first; f; f = f->next)
        if (f->role == ROLE_MODEL) return f;
    fail(EXIT_CONFIG, "module @%s has no model: write func @name:model(...)", m->name);
}

int64_t layers_of(const Op *op) {
    int64_t n = 0;
    if (op_is_loop(op)) return call_of(op).times;
    if (!op_is_call(op) || !op_attr(op, "remake")) return 0;
    for (const Op *in = op_func(op)->first; in; in = in->next)
        if (op_is_loop(in)) n += call_of(in).times;
    return n;
}

int64_t layers_count(const Func *model) {
    int64_t n = 0;
    for (const Op *op = model->first; op; op = op->next) n += layers_of(op);
    return n;
}

bool layers_is_param(const Func *f, const Value *v) {
    return !v->def && arg_role(f, v->nth) == ARG_param;
}

/* The result of f that is operand i of the loop with what its runs made of their slices, and
 * overwrites it: a cache. -1: there is none that nothing else reads. */
static int result_over(const Call *c, int i) {
    const Func *f = c->op->fn;
    const Value *v = c->op->in[i];
    if (v->def || value_uses(f, v) != 1) return -1;
    int r = func_result_over(f, v->nth);
    for (int j = c->carry; r >= 0 && j < c->op->nout; j++) {
        const Value *out = c->op->out[j];
        if (out == f->ret[r] && c->f->alias[j] == i && value_uses(f, out) == 1) return r;
    }
    return -1;
}

/* Is operand i stacked memory of the model that can be handed to pieces row by row: a
 * parameter, or a cache? */
static bool has_rows(const Call *c, int i) {
    return layers_is_param(c->op->fn, c->op->in[i]) || result_over(c, i) >= 0;
}

/* Rows [first, first + n) of a stacked argument, which may be some rows of a tensor
 * already, as an argument before it. */
static Value *argument_piece(Func *f, const Value *v, int64_t first, int64_t n) {
    Module *m = f->mod;
    Type ty = v->ty;
    const int at = v->nth;
    const Attr *attrs = f->arg_attr[at], *begin = attr_find(attrs, "first");
    const char *tensor = arg_str(f, at, "tensor", v->name);
    int64_t row = first + (begin ? begin->i : 0);
    ty.dim[0] = n;
    const char *name =
        row ? arena_printf(m->mem, "%s#%lld", tensor, (long long)row) : tensor;
    const char *whole = type_text(m->mem, &m->mesh, &v->ty);
    Value *arg = func_arg_at(f, at, name, ty);
    f->arg_attr[at] = attr_copy(m->mem, attrs);
    if (!attr_find(attrs, "global")) func_arg_set_text(f, at, "global", ATTR_TYPE, whole);
    func_arg_set_text(f, at, "tensor", ATTR_STR, tensor);
    func_arg_set_int(f, at, "first", row);
    return arg;
}

static Value *slice_piece(Builder *b, Value *v, int64_t first, int64_t n) {
    char *attrs = bfmt(b, "dim=0; first=%lld; size=%lld", (long long)first, (long long)n);
    b->name = v->name;
    return build1(b, OP_slice, attrs, v, NULL);
}

static Value *operand_piece(Builder *b, const Call *c, int i, int64_t first, int64_t n) {
    Value *v = c->op->in[i];
    Func *f = c->op->fn;
    /* the pieces of this loop before this one are arguments of their own */
    if (!has_rows(c, i) || value_uses(f, v) != 1) return slice_piece(b, v, first, n);
    if (v->ty.split[0])
        fail(EXIT_CONFIG,
             "%%%s: its layers are split over axes of the mesh, so they cannot be done "
             "in parts, as stages of a pipeline and layers that are made again are",
             v->name);
    return argument_piece(f, v, first, n);
}

/* Is result j a slice a run that overwrites none? */
static bool is_stack(const Call *c, int j) {
    return j >= c->carry &&
           (c->f->alias[j] < c->carry || result_over(c, c->f->alias[j]) < 0);
}

static void refuse_loop(const Call *c) {
    bool stacks = false;
    for (int j = 0; j < c->op->nout; j++) stacks |= is_stack(c, j);
    if (c->reverse || stacks)
        fail_op(c->op,
                "this loop cannot be cut into parts: it %s; a loop over layers hands on "
                "what it carries, and nothing else",
                c->reverse ? "runs in reverse" : "also gives a slice a run");
}

/* Layers [from, to) of the loop become a call of their own before it. */
static Op *cut_piece(Arena *mem, const Call *c, Value **carried, int64_t from,
                     int64_t to) {
    Builder b = build_before((Op *)c->op);
    Value **in = NEW_ARRAY(mem, Value *, (size_t)c->op->nin);
    for (int i = 0; i < c->op->nin; i++) {
        bool each = call_slices(c, i);
        in[i] = i < c->carry ? carried[i]
                : each       ? operand_piece(&b, c, i, from, to - from)
                             : c->op->in[i];
    }
    Op *op = op_again(&b, c->op, in);
    op_set_int(op, "times", to - from);
    for (int i = c->carry; i < op->nout; i++) op->out[i]->ty.dim[0] = to - from;
    for (int i = 0; i < c->carry; i++) carried[i] = op->out[i];
    return op;
}

typedef struct
    Rewritten { /* result `out` of the loop is result `ret` of f, over operand `in` */
    int out, in, ret;
} Rewritten;

static int find_over(Arena *mem, const Call *c, Rewritten **list) {
    int n = 0;
    *list = NEW_ARRAY(mem, Rewritten, (size_t)c->op->nout + 1);
    for (int j = c->carry; j < c->op->nout; j++)
        (*list)[n++] = (Rewritten){j, c->f->alias[j], result_over(c, c->f->alias[j])};
    return n;
}

static void return_pieces(Func *f, const LoopPieces *p, const Rewritten *over, int n) {
    for (int k = 0; k < n; k++)
        for (int i = 0; i < p->n; i++) {
            Value *v = p->piece[i]->out[over[k].out];
            int arg = p->piece[i]->in[over[k].in]->nth;
            if (i)
                func_ret(f, v, arg);
            else
                f->ret[over[k].ret] = v, f->alias[over[k].ret] = arg;
        }
}

static void drop_unused_pieces(Func *f, Value **old, int n) {
    for (int i = n - 1; i >= 0; i--)
        if (!old[i]->def && !value_uses(f, old[i])) func_drop_arg(f, old[i]->nth);
}

LoopPieces layers_cut(Arena *mem, Op *loop, const int64_t *end, int n) {
    LoopPieces p = {NEW_ARRAY(mem, Op *, (size_t)n), n};
    const Call c = call_of(loop);
    Func *f = loop->fn;
    check(n > 0 && end[n - 1] == c.times);
    p.piece[0] = loop;
    if (n == 1) return p;
    refuse_loop(&c);
    Value **old = NEW_ARRAY(mem, Value *, (size_t)loop->nin);
    int nold = 0;
    for (int i = c.carry; i < c.carry + c.each; i++)
        if (has_rows(&c, i)) old[nold++] = loop->in[i];
    Rewritten *over;
    int nover = find_over(mem, &c, &over);
    Value **carried = NEW_ARRAY(mem, Value *, (size_t)loop->nin);
    memcpy(carried, loop->in, (size_t)c.carry * sizeof *carried);
    for (int i = 0; i < n; i++)
        p.piece[i] = cut_piece(mem, &c, carried, i ? end[i - 1] : 0, end[i]);
    for (int i = 0; i < c.carry; i++) func_replace(f, loop->out[i], carried[i]);
    return_pieces(f, &p, over, nover);
    op_remove(loop);
    drop_unused_pieces(f, old, nold);
    return p;
}
