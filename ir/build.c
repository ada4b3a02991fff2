/* build.c - making, moving and copying functions and ops. */
#include "ir/op_hooks.h"

Module *module_new(Arena *mem, const char *name) {
    Module *m = NEW(mem, Module);
    m->mem = mem;
    m->name = arena_strdup(mem, name);
    return m;
}

Func *func_new(Module *m, const char *name, Role role) {
    Func *f = NEW(m->mem, Func), **end = &m->first;
    f->name = arena_strdup(m->mem, name);
    f->role = role;
    f->mod = m;
    while (*end) end = &(*end)->next;
    *end = f;
    return f;
}

Func *func_new_unique(Module *m, const char *name, Role role) {
    const char *unique = name;
    for (int k = 1; module_find(m, unique); k++) {
        unique = arena_printf(m->mem, "%s.%d", name, k);
    }
    return func_new(m, unique, role);
}

/* Copies `n` pointers into an array one longer, with `last` at the end. */
static void *append_pointer(Arena *mem, void *array, int n, const void *last) {
    const void **grown = NEW_ARRAY(mem, const void *, (size_t)n + 1);
    if (n) memcpy(grown, array, (size_t)n * sizeof(void *));
    grown[n] = last;
    return grown;
}

Value *func_arg(Func *f, const char *name, Type ty) {
    Arena *mem = f->mod->mem;
    Value *v = NEW(mem, Value);
    v->name = arena_strdup(mem, name);
    v->ty = ty;
    v->nth = f->narg;
    int n = f->narg;
    PUSH(mem, f->arg_attr, n, f->arg_attr_cap, NULL);
    PUSH(mem, f->arg, f->narg, f->arg_cap, v);
    return v;
}

Value *func_arg_given(Func *f, const Value *v) {
    Value *arg = func_arg(f, v->name, v->ty);
    arg->grad_of = v->grad_of;
    return arg;
}

Value *func_arg_at(Func *f, int at, const char *name, Type ty) {
    Value *v = func_arg(f, name, ty);
    for (int i = f->narg - 1; i > at; i--) {
        f->arg[i] = f->arg[i - 1];
        f->arg_attr[i] = f->arg_attr[i - 1];
        f->arg[i]->nth = i;
    }
    f->arg[at] = v;
    f->arg_attr[at] = NULL;
    v->nth = at;
    for (int i = 0; i < f->nret; i++) f->alias[i] += f->alias[i] >= at;
    return v;
}

void func_drop_arg(Func *f, int i) {
    for (int k = 0; k < f->nret; k++) {
        check(f->alias[k] != i);
        f->alias[k] -= f->alias[k] > i;
    }
    f->narg--;
    for (int k = i; k < f->narg; k++) {
        f->arg[k] = f->arg[k + 1];
        f->arg_attr[k] = f->arg_attr[k + 1];
        f->arg[k]->nth = k;
    }
}

void func_arg_attr(Func *f, int i, const char *attrs) {
    f->arg_attr[i] = attr_copy(f->mod->mem, attrs_parse(f->mod->mem, arg_spec, attrs));
}

void func_arg_set(Func *f, int i, const Attr *a) {
    Arena *mem = f->mod->mem;
    Attr *list = attr_copy(mem, f->arg_attr[i]), **at = &list, *copy = attr_copy(mem, a);
    while (*at && strcmp((*at)->key, a->key)) at = &(*at)->next;
    copy->next = *at ? (*at)->next : NULL;
    *at = copy;
    f->arg_attr[i] = list;
}

void func_arg_set_int(Func *f, int i, const char *key, int64_t v) {
    func_arg_set(f, i, &(Attr){.key = key, .kind = ATTR_INT, .i = v});
}

void func_arg_set_text(Func *f, int i, const char *key, AttrKind kind, const char *s) {
    func_arg_set(f, i, &(Attr){.key = key, .kind = kind, .s = s});
}

int func_ret(Func *f, Value *v, int alias_arg) {
    Arena *mem = f->mod->mem;
    int n = f->nret;
    PUSH(mem, f->alias, n, f->alias_cap, alias_arg);
    PUSH(mem, f->ret, f->nret, f->ret_cap, v);
    return f->nret - 1;
}

int func_result_over(const Func *f, int arg) {
    for (int r = 0; r < f->nret; r++)
        if (f->alias[r] == arg) return r;
    return -1;
}

void func_made_of(Func *f, const Func *of, FuncPart part) {
    f->made_of = of->made_of ? of->made_of : of->name;
    f->part = part == PART_WHOLE ? of->part : part;
}

Builder build_at_end(Func *f) {
    return (Builder){.fn = f, .mem = f->mod->mem};
}

Builder build_at_start(Func *f) {
    return (Builder){.fn = f, .before = f->first, .mem = f->mod->mem};
}

Builder build_before(Op *op) {
    return (Builder){
        .fn = op->fn, .before = op, .mem = op->fn->mod->mem, .line = op->line};
}

Builder build_behind(Op *op) {
    Builder b = build_before(op);
    b.before = op->next;
    return b;
}

Value *build_placed(Builder *b, int kind, const char *attrs, Type want, Value *v) {
    Value *out = build_as(b, kind, attrs, want, v, NULL);
    out->ty = want;
    return out;
}

char *bfmt(Builder *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char *text = arena_vprintf(b->mem, fmt, ap);
    va_end(ap);
    return text;
}

static void link_op(Builder *b, Op *op) {
    Func *f = b->fn;
    op->fn = f;
    op->next = b->before;
    op->prev = b->before ? b->before->prev : f->last;
    *(op->prev ? &op->prev->next : &f->first) = op;
    *(b->before ? &b->before->prev : &f->last) = op;
}

static int line_of(const Builder *b, const Op *op) {
    int line = b->line;
    for (int i = 0; i < op->nin && !line; i++)
        if (op->in[i]->def) line = op->in[i]->def->line;
    return line;
}

static void make_results(Builder *b, Op *op, const Type *ty, int n) {
    op->nout = n;
    op->out = NEW_ARRAY(b->mem, Value *, (size_t)n);
    for (int i = 0; i < n; i++) {
        Value *v = op->out[i] = NEW(b->mem, Value);
        v->ty = ty[i];
        v->def = op;
        v->nth = i;
        v->name = b->name ? b->name : optab[op->kind].name;
    }
    b->name = NULL;
}

/* Attributes that were written for an op of the module before. */
struct AttrText {
    int kind;
    const char *text;
    const Attr *attrs;
    AttrText *next; /* with the same hash */
};

/* Number of the bucket of a text, of a power of two. */
static size_t bucket_of(const Module *m, const char *text, size_t n) {
    return hash64(text, n) & (m->attr_buckets - 1);
}

/* A message of a pipeline has a text of its own: there are many in a step. */
static void more_buckets(Module *m) {
    AttrText **old = m->attr_text;
    size_t n = m->attr_buckets;
    m->attr_buckets = n ? 4 * n : 64;
    m->attr_text = NEW_ARRAY(m->mem, AttrText *, m->attr_buckets);
    for (size_t i = 0; i < n; i++)
        for (AttrText *t = old[i], *next; t; t = next) {
            AttrText **to = &m->attr_text[bucket_of(m, t->text, strlen(t->text))];
            next = t->next;
            t->next = *to;
            *to = t;
        }
}

/* Texts are the same for each layer and each op of a composite, so each is read once. */
static const Attr *attrs_of_text(Module *m, int kind, const char *text) {
    size_t n = strlen(text);
    if (m->attr_texts >= m->attr_buckets) more_buckets(m);
    AttrText **bucket = &m->attr_text[bucket_of(m, text, n)];
    for (const AttrText *t = *bucket; t; t = t->next)
        if (t->kind == kind && !strcmp(t->text, text)) return t->attrs;
    AttrText *t = NEW(m->mem, AttrText);
    t->kind = kind;
    t->text = arena_strndup(m->mem, text, n);
    t->attrs = attrs_parse(m->mem, optab[kind].attrs, text);
    t->next = *bucket;
    *bucket = t;
    m->attr_texts++;
    return t->attrs;
}

/* Without attributes and results. */
static Op *begin_op(Builder *b, int kind, int nin, Value **in) {
    Op *op = NEW(b->mem, Op);
    op->kind = kind;
    op->nin = nin;
    op->in = NEW_ARRAY(b->mem, Value *, (size_t)nin);
    for (int i = 0; i < nin; i++) {
        if (!in[i]) die("%s: operand %d is missing", optab[kind].name, i);
        op->in[i] = in[i];
    }
    op->line = line_of(b, op);
    link_op(b, op);
    return op;
}

/* Its results follow from the row and from what is declared. */
static Op *end_op(Builder *b, Op *op, const Type *declared, int ndeclared) {
    const Func *callee = op_callee(op);
    int cap = MAX(MAX_TERMS, MAX(ndeclared, callee ? callee->nret : 0)), nout = 0;
    Type few[MAX_TERMS] = {0}, *out = few;
    if (cap > MAX_TERMS) out = NEW_ARRAY(b->mem, Type, (size_t)cap);
    const char *why = op_infer(b->mem, op, declared, ndeclared, out, &nout);
    check(nout <= cap);
    if (why) die("building %s in @%s: %s", optab[op->kind].name, b->fn->name, why);
    make_results(b, op, out, nout);
    return op;
}

Op *build_list(Builder *b, int kind, const char *attrs, int nin, Value **in,
               const Type *declared, int ndeclared) {
    Op *op = begin_op(b, kind, nin, in);
    if (attrs && *attrs) {
        const Attr *a = attrs_of_text(b->fn->mod, kind, attrs);
        for (; a; a = a->next) op_set_attr(op, a);
    }
    return end_op(b, op, declared, ndeclared);
}

Op *build_runs(Builder *b, const Call *c, int nin, Value **in) {
    Op *op = begin_op(b, OP_call, nin, in);
    op_set_func(op, c->f);
    if (c->loop) {
        op_set_int(op, "times", c->times);
        op_set_int(op, "carry", c->carry);
        op_set_int(op, "each", c->each);
        if (c->reverse) op_set_int(op, "reverse", 1);
    }
    return end_op(b, op, NULL, 0);
}

Op *build_call(Builder *b, Func *f, int nin, Value **in) {
    return build_runs(b, &(Call){.f = f}, nin, in);
}

static int collect_operands(va_list ap, Value **in) {
    int n = 0;
    for (Value *v; (v = va_arg(ap, Value *)); n++) {
        check(n < MAX_TERMS);
        in[n] = v;
    }
    return n;
}

Op *build(Builder *b, int kind, const char *attrs, ...) {
    Value *in[MAX_TERMS];
    va_list ap;
    va_start(ap, attrs);
    int n = collect_operands(ap, in);
    va_end(ap);
    return build_list(b, kind, attrs, n, in, NULL, 0);
}

Value *build_as(Builder *b, int kind, const char *attrs, Type out, ...) {
    Value *in[MAX_TERMS];
    va_list ap;
    va_start(ap, out);
    int n = collect_operands(ap, in);
    va_end(ap);
    return build_list(b, kind, attrs, n, in, &out, 1)->out[0];
}

Value *build_cast(Builder *b, Value *v, DType to) {
    Type ty = v->ty;
    ty.dt = to;
    return v->ty.dt == to ? v : build_placed(b, OP_cast, NULL, ty, v);
}

Value *build_named(Builder *b, const char *name, Value *v) {
    v->name = arena_strdup(b->mem, name);
    return v;
}

void op_expand(Builder *b, Op *op, Value **out) {
    for (int i = 0; i < op->nin; i++)
        if (dtype_is_narrow(op->in[i]->ty.dt))
            op->in[i] = build_cast(b, op->in[i], DT_F32);
    optab[op->kind].expand(b, op, out);
    for (int i = 0; i < op->nout; i++) {
        if (!out[i]) continue;
        out[i] = build_cast(b, out[i], op->out[i]->ty.dt);
        out[i]->name = op->out[i]->name;
    }
}

void op_move(Builder *b, Op *op) {
    if (b->before == op) return;
    op_unlink(op);
    link_op(b, op);
}

void op_replace_in(Op *op, Value *from, Value *to) {
    for (int i = 0; i < op->nin; i++) {
        if (op->in[i] == from) op->in[i] = to;
    }
}

static void replace_in_rest(Func *f, Op *rest, Value *from, Value *to) {
    for (; rest; rest = rest->next) op_replace_in(rest, from, to);
    for (int i = 0; i < f->nret; i++)
        if (f->ret[i] == from) f->ret[i] = to;
}

void func_replace(Func *f, Value *from, Value *to) {
    replace_in_rest(f, f->first, from, to);
}

void value_replace_behind(Value *from, Value *made) {
    replace_in_rest(made->def->fn, made->def->next, from, made);
}

Renames renames_new(Arena *mem, Func *f) {
    func_number(f);
    return (Renames){f, NEW_ARRAY(mem, Value *, (size_t)f->nvalues + 1)};
}

static void rename_value(const Renames *r, Value **v) {
    if (r->now[(*v)->id]) *v = r->now[(*v)->id];
}

void renames_reach(const Renames *r, Op *op) {
    for (int i = 0; i < op->nin; i++) rename_value(r, &op->in[i]);
}

void renames_end(const Renames *r) {
    for (int i = 0; i < r->f->nret; i++) rename_value(r, &r->f->ret[i]);
}

void func_rewrite(Func *f, OpGive *give, void *context) {
    Arena *mem = arena_scratch();
    Renames r = renames_new(mem, f);
    int most = 0; /* results of an op: those of calls are any number */
    for (const Op *op = f->first; op; op = op->next) most = MAX(most, op->nout);
    Value **out = NEW_ARRAY(mem, Value *, (size_t)most + 1);
    for (Op *op = f->first, *next; op; op = next) {
        next = op->next;
        renames_reach(&r, op);
        if (!give(op, out, context)) continue;
        for (int i = 0; i < op->nout; i++) r.now[op->out[i]->id] = out[i];
        op_remove(op);
    }
    renames_end(&r);
    arena_free(mem);
}

void value_move(Value *v, Op *to, int nth) {
    check(type_same_shape(&v->ty, &to->out[nth]->ty));
    v->ty = to->out[nth]->ty;
    v->def = to;
    v->nth = nth;
    to->out[nth] = v;
}

Op *op_again(Builder *b, const Op *op, Value **in) {
    Op *copy = NEW(b->mem, Op);
    copy->kind = op->kind;
    copy->line = op->line;
    copy->nin = op->nin;
    copy->in = NEW_ARRAY(b->mem, Value *, (size_t)op->nin);
    copy->attr = attr_copy(b->mem, op->attr);
    for (int i = 0; i < op->nin; i++) copy->in[i] = in[i];
    link_op(b, copy);
    Type *ty = NEW_ARRAY(b->mem, Type, (size_t)op->nout);
    for (int i = 0; i < op->nout; i++) ty[i] = op->out[i]->ty;
    make_results(b, copy, ty, op->nout);
    for (int i = 0; i < op->nout; i++) {
        copy->out[i]->name = op->out[i]->name;
        copy->out[i]->grad_of = op->out[i]->grad_of;
    }
    return copy;
}

Op *op_clone(Builder *b, const Op *op, Value **map) {
    Value **in = NEW_ARRAY(b->mem, Value *, (size_t)op->nin);
    for (int i = 0; i < op->nin; i++) {
        in[i] = map[op->in[i]->id];
        check(in[i]);
    }
    Op *copy = op_again(b, op, in);
    for (int i = 0; i < op->nout; i++) map[op->out[i]->id] = copy->out[i];
    return copy;
}

Value *op_add_result(Op *op, Type ty) {
    Arena *mem = op->fn->mod->mem;
    Value *v = NEW(mem, Value);
    *v = (Value){.ty = ty, .def = op, .nth = op->nout, .name = optab[op->kind].name};
    op->out = append_pointer(mem, op->out, op->nout++, v);
    return v;
}

void op_add_operand(Op *op, Value *v) {
    op->in = append_pointer(op->fn->mod->mem, op->in, op->nin++, v);
}

void op_drop_operand(Op *op, int i) {
    op->nin--;
    memmove(op->in + i, op->in + i + 1, (size_t)(op->nin - i) * sizeof *op->in);
}

static void drop_result(Op *op, int r) {
    op->nout--;
    memmove(op->out + r, op->out + r + 1, (size_t)(op->nout - r) * sizeof *op->out);
    for (int i = r; i < op->nout; i++) op->out[i]->nth = i;
}

void func_drop_result(Func *f, int r, Op *const *call, int n) {
    size_t behind = (size_t)(--f->nret - r);
    memmove(f->ret + r, f->ret + r + 1, behind * sizeof *f->ret);
    memmove(f->alias + r, f->alias + r + 1, behind * sizeof *f->alias);
    for (int i = 0; i < n; i++) drop_result(call[i], r);
}
