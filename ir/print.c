/* print.c - the canonical text of a module; parse.c reads it back. */
#include "ir/ir.h"
#include <stdlib.h>

/* Unique spelling of value names: the first holder of a name keeps
 * it, others get .1, .2 */
typedef struct Names {
    Arena *mem;
    int cap;
    const char **slot;     /* open addressing */
    int *next;             /* by slot: the suffix to try next, those below are taken */
    const char **spelling; /* by value id */
} Names;

/* The slot of the name; *fresh: nobody had it before. */
static int name_take(Names *n, const char *name, bool *fresh) {
    uint64_t h = hash64(name, strlen(name));
    int i = (int)(h % (uint64_t)n->cap);
    while (n->slot[i] && strcmp(n->slot[i], name)) i = (i + 1) % n->cap;
    *fresh = !n->slot[i];
    if (*fresh) n->slot[i] = name;
    return i;
}

static void name_value(Names *n, const Value *v) {
    const char *base = v->name && *v->name ? v->name : "v", *spelling = base;
    bool fresh;
    int slot = name_take(n, base, &fresh);
    while (!fresh) {
        spelling = arena_printf(n->mem, "%s.%d", base, ++n->next[slot]);
        name_take(n, spelling, &fresh);
    }
    n->spelling[v->id] = spelling;
}

static Names name_all(Arena *mem, Func *f) {
    func_number(f);
    Names n = {.mem = mem, .cap = 2 * f->nvalues + 16};
    n.slot = NEW_ARRAY(mem, const char *, (size_t)n.cap);
    n.next = NEW_ARRAY(mem, int, (size_t)n.cap);
    n.spelling = NEW_ARRAY(mem, const char *, (size_t)f->nvalues + 1);
    for (int i = 0; i < f->narg; i++) name_value(&n, f->arg[i]);
    for (Op *op = f->first; op; op = op->next) {
        for (int i = 0; i < op->nout; i++) name_value(&n, op->out[i]);
    }
    return n;
}

const char **func_spellings(Arena *mem, Func *f) {
    return name_all(mem, f).spelling;
}

void type_print(Text *t, const Mesh *mesh, const Type *ty) {
    text_add(t, "%s[", dtype_name[ty->dt]);
    for (int d = 0; d < ty->rank; d++) {
        text_add(t, "%s%lld", d ? "," : "", (long long)ty->dim[d]);
        if (ty->split[d])
            text_add(t, ":%s", mesh_axes_text(t->mem, mesh, ty->split[d]));
        else if (ty->open >> d & 1)
            text_add(t, ":?");
    }
    text_add(t, "]");
    if (ty->pending)
        text_add(t, "+%s", mesh_axes_text(t->mem, mesh, ty->pending));
    else if (ty->open_sum)
        text_add(t, "+?");
}

const char *type_text(Arena *mem, const Mesh *m, const Type *ty) {
    Text t = text_new(mem);
    type_print(&t, m, ty);
    return t.s;
}

static void print_loc(Text *t, Loc loc) {
    const char *kind[] = {"", "", "a", "r"};
    if (loc.kind != LOC_NONE) text_add(t, "@%s%lld", kind[loc.kind], (long long)loc.at);
}

static void print_string(Text *t, const char *s) {
    text_add(t, "\"");
    for (; *s; s++) text_add(t, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
    text_add(t, "\"");
}

/* The fewest digits, from nine on, that read back as the same number. */
static void print_float(Text *t, double v) {
    char s[40];
    int digits = 9;
    do {
        snprintf(s, sizeof s, "%.*g", digits, v);
    } while (v == v && strtod(s, NULL) != v && ++digits <= 17);
    text_add(t, "%s", s);
}

static void print_attrs(Text *t, const Attr *a) {
    if (!a) return;
    text_add(t, " {");
    for (const char *sep = ""; a; a = a->next, sep = "; ") {
        text_add(t, "%s", sep);
        if (a->kind == ATTR_RULE) {
            text_add(t, "%s", a->rule->text);
            continue;
        }
        text_add(t, "%s=", a->key);
        if (attr_is_int(a))
            text_add(t, "%lld", (long long)a->i);
        else if (a->kind == ATTR_FLOAT)
            print_float(t, a->f);
        else if (a->kind == ATTR_FUNC)
            text_add(t, "@%s", a->s);
        else
            print_string(t, a->s);
    }
    text_add(t, "}");
}

static void print_op(Text *t, const Module *m, const Names *n, const Op *op) {
    text_add(t, "  ");
    for (int i = 0; i < op->nout; i++) {
        text_add(t, "%s%%%s", i ? ", " : "", n->spelling[op->out[i]->id]);
    }
    text_add(t, "%s%s", op->nout ? " = " : "", optab[op->kind].name);
    for (int i = 0; i < op->nin; i++) {
        text_add(t, "%s%%%s", i ? ", " : " ", n->spelling[op->in[i]->id]);
    }
    print_attrs(t, op->attr);
    for (int i = 0; i < op->nout; i++) {
        text_add(t, "%s", i ? ", " : " : ");
        type_print(t, &m->mesh, &op->out[i]->ty);
        print_loc(t, op->out[i]->loc);
    }
    text_add(t, "\n");
}

static void print_params(Text *t, const Module *m, const Func *f, const Names *n) {
    const char *gap = f->narg > 4 ? "\n    " : " ";
    text_add(t, "(");
    for (int i = 0; i < f->narg; i++) {
        text_add(t, "%s%s%%%s: ", i ? "," : "", i || f->narg > 4 ? gap : "",
                 n->spelling[f->arg[i]->id]);
        type_print(t, &m->mesh, &f->arg[i]->ty);
        print_attrs(t, f->arg_attr[i]);
    }
    text_add(t, ")");
}

static void print_func(Text *t, const Module *m, Func *f) {
    Names n = name_all(t->mem, f);
    text_add(t, "func @%s", f->name);
    if (f->role != ROLE_FUNC) text_add(t, ":%s", role_name[f->role]);
    print_params(t, m, f, &n);
    text_add(t, " -> (");
    for (int i = 0; i < f->nret; i++) {
        if (i) text_add(t, ", ");
        type_print(t, &m->mesh, &f->ret[i]->ty);
        if (f->alias[i] >= 0) text_add(t, "=%%%s", n.spelling[f->arg[f->alias[i]]->id]);
    }
    text_add(t, ")");
    if (f->task) text_add(t, " task(%d%c)", f->chunk, task_letter[f->task]);
    if (m->stages && func_is_entry(f)) text_add(t, " stage(%d)", f->stage);
    if (f->frame_bytes) text_add(t, " frame(%lld)", (long long)f->frame_bytes);
    text_add(t, " {\n");
    for (Op *op = f->first; op; op = op->next) print_op(t, m, &n, op);
    text_add(t, "  return");
    for (int i = 0; i < f->nret; i++) {
        text_add(t, "%s%%%s", i ? ", " : " ", n.spelling[f->ret[i]->id]);
    }
    text_add(t, "\n}\n");
}

static void print_order(Text *t, const Mesh *mesh) {
    text_add(t, " order(");
    for (int k = 0; k < mesh->norder; k++) {
        int a = mesh->order[k];
        text_add(t, "%s%s", k ? ", " : "",
                 a == mesh->naxes ? "stage" : mesh->axis[a].name);
    }
    text_add(t, ")");
}

char *module_print(Arena *mem, const Module *m) {
    Text t = text_new(mem);
    text_add(&t, "module @%s mesh(", m->name);
    for (int a = 0; a < m->mesh.naxes; a++) {
        text_add(&t, "%s%s=%d", a ? ", " : "", m->mesh.axis[a].name,
                 m->mesh.axis[a].size);
    }
    text_add(&t, ")");
    if (m->stages) text_add(&t, " stages(%d)", m->stages);
    if (m->mesh.norder) print_order(&t, &m->mesh);
    text_add(&t, " level(%s)\n", level_name[m->level]);
    for (Func *f = m->first; f; f = f->next) {
        text_add(&t, "\n");
        print_func(&t, m, f);
    }
    return t.s;
}
