/* parse.c - reads the text of a module; the grammar is in docs/ir.md. */
#include "op_hooks.h"
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

enum {
    MAX_TEXT_BYTES = 64 << 20,
    MAX_LIST = 4096, /* operands, results or arguments of one thing */
};

typedef struct Parser {
    Arena *mem;
    const char *file, *text, *p, *end;
    int line;
    const char *line_start;
    Module *m;
    /* values of the function being read, by name */
    Value **slot;
    int nslots, nvalues;
    int nfuncs;
} Parser;

static Place here(const Parser *ps) {
    return (Place){ps->file, ps->text, ps->line, (int)(ps->p - ps->line_start) + 1};
}

#define syntax(ps, hint, ...) fail_at(EXIT_CONFIG, here(ps), hint, __VA_ARGS__)

static void skip_space(Parser *ps) {
    while (ps->p < ps->end) {
        if (*ps->p == '#') {
            while (ps->p < ps->end && *ps->p != '\n') ps->p++;
        } else if (*ps->p == '\n') {
            ps->line++;
            ps->line_start = ++ps->p;
        } else if (*ps->p == ' ' || *ps->p == '\t' || *ps->p == '\r') {
            ps->p++;
        } else {
            return;
        }
    }
}

static bool peek(Parser *ps, const char *token) {
    skip_space(ps);
    size_t n = strlen(token);
    return (size_t)(ps->end - ps->p) >= n && !memcmp(ps->p, token, n);
}

static bool accept(Parser *ps, const char *token) {
    if (!peek(ps, token)) return false;
    ps->p += strlen(token);
    return true;
}

static void expect(Parser *ps, const char *token) {
    if (!accept(ps, token)) syntax(ps, NULL, "expected '%s' here", token);
}

static bool id_char(int c) {
    return isalnum(c) || c == '_' || c == '.' || c == '#';
}

/* [A-Za-z_#][A-Za-z0-9_.#]*, in names of values also digits first */
static const char *parse_id(Parser *ps, const char *what) {
    skip_space(ps);
    const char *from = ps->p;
    while (ps->p < ps->end && id_char((unsigned char)*ps->p)) ps->p++;
    if (ps->p == from) syntax(ps, NULL, "expected %s here", what);
    if (ps->p - from > 200) syntax(ps, NULL, "a name has at most 200 characters");
    return arena_strndup(ps->mem, from, (size_t)(ps->p - from));
}

static int64_t parse_int(Parser *ps) {
    skip_space(ps);
    char *stop;
    errno = 0;
    long long v = strtoll(ps->p, &stop, 10);
    if (stop == ps->p || errno || stop > ps->end)
        syntax(ps, NULL, "expected an integer here");
    ps->p = stop;
    return v;
}

static double parse_float(Parser *ps) {
    skip_space(ps);
    char *stop;
    double v = strtod(ps->p, &stop);
    if (stop == ps->p || stop > ps->end) syntax(ps, NULL, "expected a number here");
    ps->p = stop;
    return v;
}

static const char *parse_string(Parser *ps) {
    expect(ps, "\"");
    Text t = text_new(ps->mem);
    while (ps->p < ps->end && *ps->p != '"' && *ps->p != '\n') {
        if (*ps->p == '\\' && ps->p + 1 < ps->end && ps->p[1] != '\n') ps->p++;
        text_add_bytes(&t, ps->p++, 1);
    }
    if (ps->p >= ps->end || *ps->p != '"') syntax(ps, NULL, "a string ends with '\"'");
    ps->p++;
    return t.s;
}

static int find_axis(Parser *ps, const char *name) {
    for (int a = 0; a < ps->m->mesh.naxes; a++) {
        if (!strcmp(ps->m->mesh.axis[a].name, name)) return a;
    }
    syntax(ps, "axes stand in the first line: module @name mesh(dp=2, tp=2) ...",
           "mesh axis '%s' not found", name);
}

/* id {"." id}; axis names have no dots themselves */
static Axes parse_axes(Parser *ps, Axes taken) {
    Axes axes = 0;
    int last = -1, falls = 0, rises = 0;
    do {
        skip_space(ps);
        const char *from = ps->p;
        while (ps->p < ps->end && (isalnum((unsigned char)*ps->p) || *ps->p == '_'))
            ps->p++;
        char *name = arena_strndup(ps->mem, from, (size_t)(ps->p - from));
        int a = find_axis(ps, name);
        Axes bit = (Axes)(1u << a);
        falls |= last > a;
        rises |= last >= 0 && last < a;
        last = a;
        if ((axes | taken) & bit) {
            syntax(ps, NULL, "mesh axis '%s' is used twice in one type", name);
        }
        axes |= bit;
    } while (ps->p < ps->end && *ps->p == '.' && ps->p++);
    if (falls && rises) {
        syntax(ps, NULL,
               "axes of a dimension stand in the order of the mesh or its reverse");
    }
    return falls ? axes | AXES_REVERSED : axes;
}

static Type parse_type(Parser *ps) {
    Type t = {0};
    skip_space(ps);
    const char *from = ps->p;
    while (ps->p < ps->end && isalnum((unsigned char)*ps->p)) ps->p++;
    char *name = arena_strndup(ps->mem, from, (size_t)(ps->p - from));
    while (t.dt < DT_COUNT && strcmp(dtype_name[t.dt], name)) t.dt++;
    if (t.dt == DT_COUNT) {
        ps->p = from;
        syntax(ps, "element types are f32 f64 bf16 i32 i64", "unknown type '%s'", name);
    }
    expect(ps, "[");
    Axes used = 0;
    uint64_t bytes = dtype_bytes[t.dt];
    while (!peek(ps, "]")) {
        if (t.rank) expect(ps, ",");
        if (t.rank == MAX_RANK)
            syntax(ps, NULL, "a tensor has at most %d dimensions", MAX_RANK);
        int64_t size = parse_int(ps);
        if (size < 1) syntax(ps, NULL, "a dimension is at least 1");
        if (!mul_size(bytes, (uint64_t)size, &bytes) || bytes > TYPE_MAX_BYTES) {
            syntax(ps, NULL, "a tensor of more than 2^50 bytes");
        }
        t.dim[t.rank] = size;
        if (accept(ps, ":")) {
            if (accept(ps, "?")) t.open |= (uint8_t)(1u << t.rank);
            else used |= (t.split[t.rank] = parse_axes(ps, used)) & (Axes)~AXES_REVERSED;
        }
        t.rank++;
    }
    expect(ps, "]");
    if (ps->p < ps->end && *ps->p == '+') {
        ps->p++;
        if (accept(ps, "?")) t.open_sum = true;
        else t.pending = parse_axes(ps, used) & (Axes)~AXES_REVERSED;
    }
    return t;
}

static Loc parse_loc(Parser *ps) {
    Loc loc = {0};
    if (ps->p >= ps->end || *ps->p != '@') return loc;
    ps->p++;
    loc.kind = accept(ps, "a") ? LOC_ARG : accept(ps, "r") ? LOC_RET : LOC_FRAME;
    loc.at = parse_int(ps);
    return loc;
}

/* ---- attributes ---- */

static const Rule *parse_rule(Parser *ps) {
    const char *from = ps->p;
    while (ps->p < ps->end && *ps->p != ';' && *ps->p != '}' && *ps->p != '\n') ps->p++;
    char *text = arena_strndup(ps->mem, from, (size_t)(ps->p - from));
    for (size_t n = strlen(text); n && text[n - 1] == ' ';) text[--n] = 0;
    char why[200];
    const Rule *r = rule_parse(ps->mem, text, why, sizeof why);
    if (!r) {
        ps->p = from;
        syntax(ps, "for example {mk,kn->mn}", "%s", why);
    }
    return r;
}

static Attr *parse_attr(Parser *ps, const char *spec, const char *owner) {
    Attr *a = NEW(ps->mem, Attr);
    skip_space(ps);
    const char *from = ps->p;
    while (ps->p < ps->end && (isalnum((unsigned char)*ps->p) || *ps->p == '_')) ps->p++;
    char *key = arena_strndup(ps->mem, from, (size_t)(ps->p - from));
    if (!accept(ps, "=")) {
        ps->p = from;
        key = "rule";
    }
    bool optional;
    if (!attr_spec_find(spec, key, &a->kind, &optional)) {
        ps->p = from;
        syntax(ps, NULL, "%s has no attribute '%s'; it has: %s", owner, key,
               *spec ? spec : "none");
    }
    a->key = key;
    skip_space(ps);
    switch (a->kind) {
    case ATTR_INT: a->i = parse_int(ps); break;
    case ATTR_FLOAT: a->f = parse_float(ps); break;
    case ATTR_STR:
        a->s = peek(ps, "\"") ? parse_string(ps) : parse_id(ps, "a string");
        break;
    case ATTR_RULE: a->rule = parse_rule(ps); break;
    case ATTR_FUNC: expect(ps, "@"); a->s = parse_id(ps, "a function"); break;
    }
    return a;
}

/* attr {";" attr}, kept in the order of the spec */
static Attr *parse_attrs(Parser *ps, const char *spec, const char *owner) {
    Attr *first = NULL;
    do {
        if (peek(ps, "}")) break;
        Attr *a = parse_attr(ps, spec, owner), **at = &first;
        if (attr_find(first, a->key)) {
            syntax(ps, NULL, "attribute '%s' stands twice", a->key);
        }
        while (*at) at = &(*at)->next;
        *at = a;
    } while (accept(ps, ";"));
    return first;
}

const Attr *attrs_parse(Arena *mem, const char *spec, const char *text) {
    Parser ps = {.mem = mem, .file = "attributes", .text = text, .p = text,
                 .end = text + strlen(text), .line = 1, .line_start = text};
    const Attr *a = parse_attrs(&ps, spec, "this op");
    skip_space(&ps);
    if (ps.p != ps.end) die("attributes '%s'", text);
    return a;
}

Type type_parse(Arena *mem, const Mesh *m, const char *text) {
    Module probe = {.mem = mem, .mesh = *m};
    Parser ps = {.mem = mem, .file = "type", .text = text, .p = text,
                 .end = text + strlen(text), .line = 1, .line_start = text, .m = &probe};
    Type t = parse_type(&ps);
    skip_space(&ps);
    if (ps.p != ps.end) syntax(&ps, NULL, "text behind a type");
    return t;
}

/* ---- functions ---- */

static Value **value_slot(Parser *ps, const char *name) {
    uint64_t h = hash64(name, strlen(name));
    int i = (int)(h % (uint64_t)ps->nslots);
    while (ps->slot[i] && strcmp(ps->slot[i]->name, name)) i = (i + 1) % ps->nslots;
    return &ps->slot[i];
}

static void grow_slots(Parser *ps) {
    Value **old = ps->slot;
    int n = ps->nslots;
    ps->nslots = MAX(64, 2 * n);
    ps->slot = NEW_ARRAY(ps->mem, Value *, (size_t)ps->nslots);
    for (int i = 0; i < n; i++) {
        if (old[i]) *value_slot(ps, old[i]->name) = old[i];
    }
}

static void define(Parser *ps, Value *v) {
    if (2 * (ps->nvalues + 1) > ps->nslots) grow_slots(ps);
    Value **slot = value_slot(ps, v->name);
    if (*slot) syntax(ps, NULL, "value %%%s is defined twice", v->name);
    *slot = v;
    ps->nvalues++;
}

static const char *parse_value_name(Parser *ps) {
    expect(ps, "%");
    return parse_id(ps, "the name of a value");
}

static Value *parse_use(Parser *ps) {
    const char *name = parse_value_name(ps);
    Value *v = ps->nslots ? *value_slot(ps, name) : NULL;
    if (!v) {
        ps->p -= strlen(name);
        syntax(ps, "values are defined above their first use",
               "value %%%s is not defined", name);
    }
    return v;
}

static void parse_params(Parser *ps, Func *f) {
    expect(ps, "(");
    while (!peek(ps, ")")) {
        if (f->narg) expect(ps, ",");
        if (f->narg == MAX_LIST) syntax(ps, NULL, "more than %d arguments", MAX_LIST);
        const char *name = parse_value_name(ps);
        expect(ps, ":");
        Type ty = parse_type(ps);
        Value *v = func_arg(f, name, ty);
        define(ps, v);
        if (accept(ps, "{")) {
            f->arg_attr[f->narg - 1] = parse_attrs(ps, arg_spec, "an argument");
            expect(ps, "}");
        }
    }
    expect(ps, ")");
}

/* The result types of a header: kept for the check against `return`. */
static int parse_ret_types(Parser *ps, Type *types, const char **alias) {
    int n = 0;
    expect(ps, "->");
    expect(ps, "(");
    while (!peek(ps, ")")) {
        if (n) expect(ps, ",");
        if (n == MAX_LIST) syntax(ps, NULL, "more than %d results", MAX_LIST);
        types[n] = parse_type(ps);
        alias[n] = accept(ps, "=") ? parse_value_name(ps) : NULL;
        n++;
    }
    expect(ps, ")");
    return n;
}

static void parse_op(Parser *ps, Func *f, Value **list, const char **names, Type *types) {
    Op *op = NEW(ps->mem, Op);
    int nout = 0, ntypes = 0;
    skip_space(ps);
    op->line = ps->line;
    Loc *locs = NULL;
    if (peek(ps, "%")) {
        do {
            if (nout == MAX_LIST) syntax(ps, NULL, "more than %d results", MAX_LIST);
            names[nout++] = parse_value_name(ps);
        } while (accept(ps, ","));
        expect(ps, "=");
    }
    Place at_name = (skip_space(ps), here(ps));
    const char *name = parse_id(ps, "an op");
    op->kind = op_kind(name);
    if (op->kind < 0) {
        const char *all[OP_COUNT];
        for (int k = 0; k < OP_COUNT; k++) all[k] = optab[k].name;
        const char *near = nearest_name(name, all, OP_COUNT);
        fail_at(EXIT_CONFIG, at_name,
                near ? arena_printf(ps->mem, "did you mean %s?", near) : NULL,
                "unknown op '%s'", name);
    }
    if (peek(ps, "%")) {
        do {
            if (op->nin == MAX_LIST) syntax(ps, NULL, "more than %d operands", MAX_LIST);
            list[op->nin++] = parse_use(ps);
        } while (accept(ps, ","));
    }
    op->in = NEW_ARRAY(ps->mem, Value *, (size_t)op->nin);
    memcpy(op->in, list, (size_t)op->nin * sizeof(Value *));
    op->fn = f;
    if (accept(ps, "{")) {
        Attr *a = parse_attrs(ps, optab[op->kind].attrs, name);
        for (; a; a = a->next) op_set_attr(op, a);
        expect(ps, "}");
    }
    locs = NEW_ARRAY(ps->mem, Loc, (size_t)nout);
    if (nout) {
        expect(ps, ":");
        do {
            if (ntypes == nout) syntax(ps, NULL, "more types than results");
            types[ntypes] = parse_type(ps);
            locs[ntypes] = parse_loc(ps);
            ntypes++;
        } while (accept(ps, ","));
    }
    if (ntypes != nout) syntax(ps, NULL, "%d results but %d types", nout, ntypes);
    op->nout = nout;
    op->out = NEW_ARRAY(ps->mem, Value *, (size_t)nout);
    for (int i = 0; i < nout; i++) {
        Value *v = op->out[i] = NEW(ps->mem, Value);
        *v = (Value){
            .name = names[i], .ty = types[i], .def = op, .nth = i, .loc = locs[i]};
        define(ps, v);
    }
    op->prev = f->last;
    *(f->last ? &f->last->next : &f->first) = op;
    f->last = op;
}

static void parse_func(Parser *ps, Value **list, const char **names, Type *types) {
    expect(ps, "@");
    const char *name = parse_id(ps, "the name of a function");
    if (module_find(ps->m, name)) syntax(ps, NULL, "function @%s is defined twice", name);
    Role role = ROLE_FUNC;
    if (accept(ps, ":")) {
        const char *word = parse_id(ps, "a role");
        role = 0;
        while (role < ROLE_COUNT && strcmp(role_name[role], word)) role++;
        if (role == ROLE_COUNT) {
            syntax(ps, "roles are func model step kernel", "unknown role '%s'", word);
        }
    }
    if (++ps->nfuncs > MAX_FUNCS) {
        syntax(ps, NULL, "a module has at most %d functions", MAX_FUNCS);
    }
    Func *f = func_new(ps->m, name, role);
    ps->slot = NULL;
    ps->nslots = ps->nvalues = 0;
    parse_params(ps, f);
    int nret = parse_ret_types(ps, types, names);
    Type *ret_types = NEW_ARRAY(ps->mem, Type, (size_t)nret);
    const char **alias = NEW_ARRAY(ps->mem, const char *, (size_t)nret);
    if (nret) memcpy(ret_types, types, (size_t)nret * sizeof(Type));
    if (nret) memcpy(alias, names, (size_t)nret * sizeof(char *));
    if (accept(ps, "frame")) {
        expect(ps, "(");
        f->frame_bytes = parse_int(ps);
        if (f->frame_bytes < 0 || f->frame_bytes > (int64_t)1 << 50) {
            syntax(ps, NULL, "a frame has 0 to 2^50 bytes");
        }
        expect(ps, ")");
    }
    expect(ps, "{");
    while (!accept(ps, "return")) {
        if (peek(ps, "}") || ps->p >= ps->end)
            syntax(ps, NULL, "a function ends with return");
        parse_op(ps, f, list, names, types);
    }
    for (int i = 0; i < nret; i++) {
        if (i) expect(ps, ",");
        Value *v = parse_use(ps);
        if (!type_equal(&v->ty, &ret_types[i])) {
            syntax(ps, NULL, "result %d has another type than the header says", i);
        }
        int a = -1;
        if (alias[i]) {
            Value *arg = *value_slot(ps, alias[i]);
            if (!arg || arg->def) syntax(ps, NULL, "=%%%s is no argument", alias[i]);
            a = arg->nth;
        }
        func_ret(f, v, a);
    }
    expect(ps, "}");
}

static void parse_header(Parser *ps) {
    expect(ps, "module");
    expect(ps, "@");
    ps->m = module_new(ps->mem, parse_id(ps, "the name of the module"));
    expect(ps, "mesh");
    expect(ps, "(");
    Mesh *mesh = &ps->m->mesh;
    int64_t ranks = 1;
    while (!peek(ps, ")")) {
        if (mesh->naxes) expect(ps, ",");
        if (mesh->naxes == MAX_AXES)
            syntax(ps, NULL, "a mesh has at most %d axes", MAX_AXES);
        const char *name = parse_id(ps, "the name of an axis");
        for (int a = 0; a < mesh->naxes; a++) {
            if (strcmp(mesh->axis[a].name, name)) continue;
            syntax(ps, NULL, "mesh axis '%s' stands twice", name);
        }
        expect(ps, "=");
        int64_t size = parse_int(ps);
        if (size < 1 || size > 1 << 20 || (ranks *= size) > 1 << 20) {
            syntax(ps, NULL, "a mesh has 1 to 2^20 ranks");
        }
        mesh->axis[mesh->naxes].name = name;
        mesh->axis[mesh->naxes++].size = (int)size;
    }
    expect(ps, ")");
    expect(ps, "level");
    expect(ps, "(");
    const char *word = parse_id(ps, "a level");
    while (ps->m->level < LEVEL_COUNT && strcmp(level_name[ps->m->level], word))
        ps->m->level++;
    if (ps->m->level == LEVEL_COUNT) {
        syntax(ps, "levels are global diffed sharded local fused planned",
               "unknown level '%s'", word);
    }
    expect(ps, ")");
}

Module *module_parse(Arena *mem, const char *file, const char *text, size_t n) {
    if (n > MAX_TEXT_BYTES) {
        fail(EXIT_CONFIG, "%s: a module has at most %d MiB of text", file,
             MAX_TEXT_BYTES >> 20);
    }
    if (memchr(text, 0, n)) fail(EXIT_CONFIG, "%s: a zero byte in the text", file);
    char *copy = arena_strndup(mem, text, n); /* strtod needs the terminator */
    Parser ps = {.mem = mem, .file = file, .text = copy, .p = copy, .end = copy + n,
                 .line = 1, .line_start = copy};
    Value **list = NEW_ARRAY(mem, Value *, MAX_LIST);
    const char **names = NEW_ARRAY(mem, const char *, MAX_LIST);
    Type *types = NEW_ARRAY(mem, Type, MAX_LIST);
    parse_header(&ps);
    ps.m->file = arena_strdup(mem, file);
    ps.m->text = copy;
    while (accept(&ps, "func")) parse_func(&ps, list, names, types);
    skip_space(&ps);
    if (ps.p != ps.end) syntax(&ps, NULL, "expected 'func' here");
    module_verify(ps.m, file, copy);
    return ps.m;
}

Module *module_clone(Arena *mem, const Module *m) {
    char *text = module_print(mem, m);
    return module_parse(mem, m->name, text, strlen(text));
}
