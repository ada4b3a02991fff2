/* op.c - attributes of ops and of arguments. */
#include "ir/ir.h"

const char task_letter[TASK_KINDS + 1] = " FBIW";
const char *const role_name[ROLE_COUNT] = {"func", "model", "step", "kernel"};
const char *const level_name[LEVEL_COUNT] = {"global", "diffed", "sharded",
                                             "local",  "fused",  "planned"};

/* docs/ir.md says what each of them means. */
const char arg_spec[] =
    "role:s init:s? std:f? mean:f? decay:i? like:s? hf:s? "
    "global:t? flat:a? lead:i? zero:i? rows:i? "
    "tensor:s? first:i? same:s? stage:i? exact:t? turned:s? rounds:s? "
    "gradient:t?";

int op_kind(const char *name) {
    for (int k = 0; k < OP_COUNT; k++) {
        if (text_equal(optab[k].name, name)) return k;
    }
    return -1;
}

/* How the op is spread over the mesh (ir/placement.h); the chunk of the pipeline that begins
 * with it (passes/pipe/marks.h); once memory is planned, its workspace in the frame. */
const char common_attr_spec[] = "over:s? stage:i? model:i? ws:i? ws_bytes:i?";

const char attr_kind_letter[] = "ifsrFdato";

bool attr_is_int(const Attr *a) {
    return a->kind == ATTR_INT || a->kind == ATTR_DIM;
}

bool attr_spec_find(const char *spec, const char *key, AttrKind *kind, bool *optional) {
    size_t n = strlen(key);
    if (spec && spec != common_attr_spec &&
        attr_spec_find(common_attr_spec, key, kind, optional)) {
        return true;
    }
    for (const char *p = spec; p && *p; p += strcspn(p, " "), p += *p == ' ') {
        if (strncmp(p, key, n) || p[n] != ':') continue;
        *kind = (AttrKind)(strchr(attr_kind_letter, p[n + 1]) - attr_kind_letter);
        *optional = p[n + 2] == '?';
        return true;
    }
    return false;
}

const Attr *attr_find(const Attr *list, const char *key) {
    for (; list; list = list->next) {
        if (*list->key == *key && !strcmp(list->key, key)) return list;
    }
    return NULL;
}

Attr *attr_copy(Arena *mem, const Attr *list) {
    Attr *first = NULL, **end = &first;
    for (; list; list = list->next) {
        *end = NEW(mem, Attr);
        **end = *list;
        (*end)->next = NULL;
        end = &(*end)->next;
    }
    return first;
}

const Attr *op_attr(const Op *op, const char *key) {
    return attr_find(op->attr, key);
}

int64_t op_int(const Op *op, const char *key, int64_t otherwise) {
    const Attr *a = op_attr(op, key);
    return a ? a->i : otherwise;
}

Axes op_axes(const Op *op) {
    Axes axes;
    check(mesh_axes_parse(&op->fn->mod->mesh, op_attr(op, "axis")->s, &axes));
    return axes;
}

double op_float(const Op *op, const char *key, double otherwise) {
    const Attr *a = op_attr(op, key);
    return a ? a->f : otherwise;
}

Func *op_func(const Op *op) {
    const Attr *a = op_attr(op, "fn");
    const Module *m = op->fn->mod;
    if (a && a->func && a->func->mod == m) return a->func;
    Func *f = a ? module_find(m, a->s) : NULL;
    if (!f) die("%s without a function", optab[op->kind].name);
    ((Attr *)(uintptr_t)a)->func = f;
    return f;
}

bool op_calls_ops(const Op *op) {
    return op_is_call(op) && op_func(op)->role != ROLE_KERNEL;
}

Func *op_callee(const Op *op) {
    return op_is_call(op) ? op_func(op) : NULL;
}

bool op_reads(const Op *op, const Op *of) {
    for (int i = 0; i < op->nin; i++)
        if (op->in[i]->def == of) return true;
    return false;
}

bool op_reads_value(const Op *op, const Value *v) {
    for (int i = 0; i < op->nin; i++)
        if (op->in[i] == v) return true;
    return false;
}

bool op_reads_marked(const Op *op, const bool *mark) {
    for (int i = 0; i < op->nin; i++)
        if (mark[op->in[i]->id]) return true;
    return false;
}

bool op_makes_marked(const Op *op, const bool *mark) {
    for (int i = 0; i < op->nout; i++)
        if (mark[op->out[i]->id]) return true;
    return false;
}

void op_mark_operands(const Op *op, bool *mark) {
    for (int i = 0; i < op->nin; i++) mark[op->in[i]->id] = true;
}

int op_by_id(const void *a, const void *b) {
    return (*(Op *const *)a)->id - (*(Op *const *)b)->id;
}

bool op_is_loop(const Op *op) {
    return op_calls_ops(op) && op_attr(op, "times");
}

Call call_of(const Op *op) {
    return (Call){.op = op,
                  .f = op_func(op),
                  .loop = op_attr(op, "times") != NULL,
                  .carry = (int)op_int(op, "carry", 0),
                  .each = (int)op_int(op, "each", 0),
                  .times = op_int(op, "times", 1),
                  .reverse = op_int(op, "reverse", 0) != 0};
}

bool call_slices(const Call *c, int i) {
    return i >= c->carry && i < c->carry + c->each;
}

/* Position of a key in the spec, so that attributes print in one order. */
static size_t attr_index(const char *spec, const char *key) {
    size_t n = strlen(key);
    for (const char *p = spec; p && *p; p += strcspn(p, " "), p += strspn(p, " "))
        if (!strncmp(p, key, n) && p[n] == ':') return (size_t)(p - spec);
    return spec == common_attr_spec ? 100000 : 10000 + attr_index(common_attr_spec, key);
}

void op_set_attr(Op *op, const Attr *a) {
    const char *spec = optab[op->kind].attrs;
    Attr *copy = NEW(op->fn->mod->mem, Attr), **at = &op->attr;
    *copy = *a;
    while (*at && attr_index(spec, (*at)->key) < attr_index(spec, a->key)) {
        at = &(*at)->next;
    }
    if (*at && !strcmp((*at)->key, a->key)) {
        copy->next = (*at)->next;
    } else {
        copy->next = *at;
    }
    *at = copy;
}

void op_drop_attr(Op *op, const char *key) {
    Attr **at = &op->attr;
    while (*at && strcmp((*at)->key, key)) at = &(*at)->next;
    if (*at) *at = (*at)->next;
}

void module_drop_attr(Module *m, const char *key) {
    for (Func *f = m->first; f; f = f->next)
        for (Op *op = f->first; op; op = op->next) op_drop_attr(op, key);
}

static AttrKind kind_of(const Op *op, const char *key) {
    AttrKind kind;
    bool optional;
    check(attr_spec_find(optab[op->kind].attrs, key, &kind, &optional));
    return kind;
}

void op_set_int(Op *op, const char *key, int64_t i) {
    op_set_attr(op, &(Attr){.key = key, .kind = kind_of(op, key), .i = i});
}

void op_set_float(Op *op, const char *key, double f) {
    op_set_attr(op, &(Attr){.key = key, .kind = ATTR_FLOAT, .f = f});
}

void op_set_str(Op *op, const char *key, const char *s) {
    op_set_attr(op, &(Attr){.key = key, .kind = kind_of(op, key), .s = s});
}

void op_set_func(Op *op, const Func *callee) {
    op_set_attr(op, &(Attr){.key = "fn",
                            .kind = ATTR_FUNC,
                            .s = callee->name,
                            .func = (Func *)(uintptr_t)callee});
}

void op_set_rule(Op *op, const Rule *rule) {
    op_set_attr(op, &(Attr){.key = "rule", .kind = ATTR_RULE, .rule = rule});
}

const char *const arg_role_name[ARG_ROLES] = {
    "none",
#define ARG(name, ...) #name,
#include "ir/roles.def"
#undef ARG
};

static const bool role_of_batch[ARG_ROLES] = {
    true,
#define ARG(name, batch, ...) batch,
#include "ir/roles.def"
#undef ARG
};

ArgRole arg_role(const Func *f, int i) {
    const char *name = arg_str(f, i, "role", NULL);
    for (int r = ARG_none + 1; name && r < ARG_ROLES; r++)
        if (text_equal(arg_role_name[r], name)) return (ArgRole)r;
    return ARG_none;
}

int func_arg_count(const Func *f, ArgRole role) {
    int n = 0;
    for (int i = 0; i < f->narg; i++) n += arg_role(f, i) == role;
    return n;
}

int func_arg_role(const Func *f, ArgRole role) {
    for (int i = 0; i < f->narg; i++)
        if (arg_role(f, i) == role) return i;
    return -1;
}

int func_arg_stage(const Func *f, int i) {
    const Attr *a = attr_find(f->arg_attr[i], "stage");
    return a ? (int)a->i : -1;
}

/* The argument that an attribute of argument i names. */
static int named_arg(const Func *f, int i, const char *key) {
    const char *name = arg_str(f, i, key, NULL);
    for (int k = 0; k < f->narg && name; k++)
        if (k != i && !strcmp(f->arg[k]->name, name)) return k;
    return -1;
}

int func_arg_same(const Func *f, int i) {
    return named_arg(f, i, "same");
}

bool func_arg_in_common(const Func *f, int i) {
    bool common = func_arg_same(f, i) >= 0;
    for (int k = 0; k < f->narg; k++) common |= func_arg_same(f, k) == i;
    return common;
}

int func_arg_like(const Func *f, int i) {
    return named_arg(f, i, "like");
}

bool arg_is_batch(const Func *f, int i) {
    return role_of_batch[arg_role(f, i)];
}

const char *arg_str(const Func *f, int i, const char *key, const char *otherwise) {
    const Attr *a = attr_find(f->arg_attr[i], key);
    return a ? a->s : otherwise;
}

double arg_float(const Func *f, int i, const char *key, double otherwise) {
    const Attr *a = attr_find(f->arg_attr[i], key);
    return !a ? otherwise : attr_is_int(a) ? (double)a->i : a->f;
}

Op *op_arrival(const Op *op) {
    if (!op_int(op, "late", 0)) return NULL;
    for (Op *at = op->next; at; at = at->next) {
        if (at->kind == OP_arrive && at->nin && at->in[0] == op->out[0]) return at;
    }
    return NULL;
}

Func *module_find(const Module *m, const char *name) {
    for (Func *f = m->first; f; f = f->next) {
        if (text_equal(f->name, name)) return f;
    }
    return NULL;
}

void op_unlink(Op *op) {
    *(op->prev ? &op->prev->next : &op->fn->first) = op->next;
    *(op->next ? &op->next->prev : &op->fn->last) = op->prev;
    op->prev = op->next = NULL;
}

/* What is said from an op on is said of the one behind it when it is gone. */
static void hand_on(const Op *op) {
    const Attr *mark = op_attr(op, "stage");
    if (mark && op->next && !op_attr(op->next, "stage")) op_set_attr(op->next, mark);
}

void op_remove(Op *op) {
    hand_on(op);
    op_unlink(op);
}
