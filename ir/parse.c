/* parse.c - reads the text of a module; the grammar is in docs/ir.md. */
#include "ir/scan.h"

enum {
    MAX_TEXT_BYTES = 64 << 20,
    MAX_LIST = 4096, /* operands, results or arguments of one thing */
};

static Value **value_slot(Scanner *ps, const char *name) {
    uint64_t h = hash64(name, strlen(name));
    int i = (int)(h % (uint64_t)ps->nslots);
    while (ps->slot[i] && strcmp(ps->slot[i]->name, name)) i = (i + 1) % ps->nslots;
    return &ps->slot[i];
}

static void grow_slots(Scanner *ps) {
    Value **old = ps->slot;
    int n = ps->nslots;
    ps->nslots = MAX(64, 2 * n);
    ps->slot = NEW_ARRAY(ps->mem, Value *, (size_t)ps->nslots);
    for (int i = 0; i < n; i++) {
        if (old[i]) *value_slot(ps, old[i]->name) = old[i];
    }
}

/* `at`: where its name stands. */
static void define(Scanner *ps, Value *v, SourcePos at) {
    if (2 * (ps->nvalues + 1) > ps->nslots) grow_slots(ps);
    Value **slot = value_slot(ps, v->name);
    if (*slot) fail_at(EXIT_CONFIG, at, NULL, "value %%%s is defined twice", v->name);
    *slot = v;
    ps->nvalues++;
}

/* `at` (may be NULL): set to where it stands. */
static const char *parse_value_name(Scanner *ps, SourcePos *at) {
    scan_space(ps);
    if (at) *at = scan_at(ps);
    scan_expect(ps, "%");
    return scan_id(ps, "the name of a value");
}

static Value *parse_use(Scanner *ps) {
    const char *name = parse_value_name(ps, NULL);
    Value *v = ps->nslots ? *value_slot(ps, name) : NULL;
    if (!v) {
        ps->p -= strlen(name);
        syntax(ps, "values are defined above their first use",
               "value %%%s is not defined", name);
    }
    return v;
}

/* `at` is where the attributes begin. */
static void check_role(const Scanner *at, const Func *f, int i) {
    const char *role = arg_str(f, i, "role", NULL);
    if (role && arg_role(f, i) == ARG_none)
        syntax(at, nearest_name(role, arg_role_name + 1, ARG_ROLES - 1),
               "unknown role '%s' of an argument; docs/ops.md lists them", role);
}

static void parse_params(Scanner *ps, Func *f) {
    scan_expect(ps, "(");
    while (!scan_peek(ps, ")")) {
        if (f->narg) scan_expect(ps, ",");
        if (f->narg == MAX_LIST) syntax(ps, NULL, "more than %d arguments", MAX_LIST);
        SourcePos named;
        const char *name = parse_value_name(ps, &named);
        scan_expect(ps, ":");
        Type ty = scan_type(ps);
        Value *v = func_arg(f, name, ty);
        define(ps, v, named);
        if (scan_accept(ps, "{")) {
            Scanner at = *ps;
            f->arg_attr[f->narg - 1] = scan_attrs(ps, arg_spec, "an argument");
            check_role(&at, f, f->narg - 1);
            scan_expect(ps, "}");
        }
    }
    scan_expect(ps, ")");
}

/* Room for what is read of one thing before it is known how much it is. */
typedef struct Lists {
    Value *value[MAX_LIST];
    const char *name[MAX_LIST];
    SourcePos named[MAX_LIST];
    Type type[MAX_LIST];
    Loc loc[MAX_LIST];
} Lists;

/* Result n of a header overwrites what none before it does. */
static void check_overwritten_once(const Lists *l, int n) {
    for (int i = 0; l->name[n] && i < n; i++)
        if (l->name[i] && !strcmp(l->name[i], l->name[n]))
            fail_at(EXIT_CONFIG, l->named[n], NULL, "two results overwrite argument %%%s",
                    l->name[n]);
}

/* The result types of a header: kept for the check against `return`. */
static int parse_ret_types(Scanner *ps, Lists *l) {
    int n = 0;
    scan_expect(ps, "->");
    scan_expect(ps, "(");
    while (!scan_peek(ps, ")")) {
        if (n) scan_expect(ps, ",");
        if (n == MAX_LIST) syntax(ps, NULL, "more than %d results", MAX_LIST);
        l->type[n] = scan_type(ps);
        l->name[n] = scan_accept(ps, "=") ? parse_value_name(ps, &l->named[n]) : NULL;
        check_overwritten_once(l, n);
        n++;
    }
    scan_expect(ps, ")");
    return n;
}

static int parse_result_names(Scanner *ps, Lists *l) {
    int n = 0;
    if (!scan_peek(ps, "%")) return 0;
    do {
        if (n == MAX_LIST) syntax(ps, NULL, "more than %d results", MAX_LIST);
        l->name[n] = parse_value_name(ps, &l->named[n]);
        n++;
    } while (scan_accept(ps, ","));
    scan_expect(ps, "=");
    return n;
}

static int parse_kind(Scanner *ps) {
    scan_space(ps);
    SourcePos at = scan_at(ps);
    const char *name = scan_id(ps, "an op"), *all[OP_COUNT];
    int kind = op_kind(name);
    if (kind >= 0) return kind;
    for (int k = 0; k < OP_COUNT; k++) all[k] = optab[k].name;
    const char *near = nearest_name(name, all, OP_COUNT);
    fail_at(EXIT_CONFIG, at,
            near ? arena_printf(ps->mem, "did you mean %s?", near) : NULL,
            "unknown op '%s'", name);
}

static void parse_operands(Scanner *ps, Op *op, Lists *l) {
    if (scan_peek(ps, "%")) {
        do {
            if (op->nin == MAX_LIST) syntax(ps, NULL, "more than %d operands", MAX_LIST);
            l->value[op->nin++] = parse_use(ps);
        } while (scan_accept(ps, ","));
    }
    op->in = NEW_ARRAY(ps->mem, Value *, (size_t)op->nin);
    memcpy(op->in, l->value, (size_t)op->nin * sizeof(Value *));
}

static void parse_op_attrs(Scanner *ps, Op *op) {
    const OpInfo *row = &optab[op->kind];
    if (!scan_accept(ps, "{")) return;
    for (Attr *a = scan_attrs(ps, row->attrs, row->name); a; a = a->next)
        op_set_attr(op, a);
    scan_expect(ps, "}");
}

/* Types and locations of `nout` results, and the values. */
static void parse_results(Scanner *ps, Op *op, int nout, Lists *l) {
    int n = 0;
    if (nout) {
        scan_expect(ps, ":");
        do {
            if (n == nout) syntax(ps, NULL, "more types than results");
            l->type[n] = scan_type(ps);
            l->loc[n++] = scan_loc(ps);
        } while (scan_accept(ps, ","));
    }
    if (n != nout) syntax(ps, NULL, "%d results but %d types", nout, n);
    op->nout = nout;
    op->out = NEW_ARRAY(ps->mem, Value *, (size_t)nout);
    for (int i = 0; i < nout; i++) {
        Value *v = op->out[i] = NEW(ps->mem, Value);
        *v = (Value){
            .name = l->name[i], .ty = l->type[i], .def = op, .nth = i, .loc = l->loc[i]};
        define(ps, v, l->named[i]);
    }
}

static void parse_op(Scanner *ps, Func *f, Lists *l) {
    Op *op = NEW(ps->mem, Op);
    op->fn = f;
    scan_space(ps);
    op->line = ps->line;
    int nout = parse_result_names(ps, l);
    op->kind = parse_kind(ps);
    parse_operands(ps, op, l);
    parse_op_attrs(ps, op);
    parse_results(ps, op, nout, l);
    op->prev = f->last;
    *(f->last ? &f->last->next : &f->first) = op;
    f->last = op;
}

/* Number of the word that stands here, `n`: not there. */
static int parse_word(Scanner *ps, const char *what, const char *const *words, int n,
                      const char **word) {
    int i = 0;
    *word = scan_id(ps, what);
    while (i < n && strcmp(words[i], *word)) i++;
    return i;
}

static Role parse_role(Scanner *ps) {
    const char *word;
    if (!scan_accept(ps, ":")) return ROLE_FUNC;
    int role = parse_word(ps, "a role", role_name, ROLE_COUNT, &word);
    if (role == ROLE_COUNT)
        syntax(ps, "roles are func model step kernel", "unknown role '%s'", word);
    return (Role)role;
}

/* task(3F): chunk 3, forward. */
static void parse_task(Scanner *ps, Func *f) {
    if (!scan_accept(ps, "task")) return;
    scan_expect(ps, "(");
    int64_t chunk = scan_int(ps);
    if (chunk < 0 || chunk >= MAX_CHUNKS)
        syntax(ps, NULL, "chunks are numbered from 0 to %d", MAX_CHUNKS - 1);
    const char *word = scan_id(ps, "F, B, I or W");
    const char *letter = word[1] ? NULL : strchr(task_letter + 1, word[0]);
    if (!letter) syntax(ps, NULL, "a task is F, B, I or W, not '%s'", word);
    f->chunk = (int)chunk;
    f->task = (TaskKind)(letter - task_letter);
    scan_expect(ps, ")");
}

static void parse_stage(Scanner *ps, Func *f) {
    if (!scan_accept(ps, "stage")) return;
    scan_expect(ps, "(");
    int64_t stage = scan_int(ps);
    if (stage < 0 || stage >= ps->m->stages || !func_is_entry(f))
        syntax(ps, NULL, "stage is said of an entry, and below the module's stages(%d)",
               ps->m->stages);
    f->stage = (int)stage;
    scan_expect(ps, ")");
}

static void parse_frame(Scanner *ps, Func *f) {
    if (!scan_accept(ps, "frame")) return;
    scan_expect(ps, "(");
    f->frame_bytes = scan_int(ps);
    if (f->frame_bytes < 0 || f->frame_bytes > (int64_t)1 << 50)
        syntax(ps, NULL, "a frame has 0 to 2^50 bytes");
    scan_expect(ps, ")");
}

/* Result i behind `return`, against the header: its type, and what it overwrites. */
static void parse_return(Scanner *ps, Func *f, int i, const Type *ty, const char *alias) {
    if (i) scan_expect(ps, ",");
    Value *v = parse_use(ps), *arg = NULL;
    if (!type_equal(&v->ty, ty))
        syntax(ps, NULL, "result %d (%%%s) is %s, the header says %s", i, v->name,
               type_text(ps->m->mem, &ps->m->mesh, &v->ty),
               type_text(ps->m->mem, &ps->m->mesh, ty));
    if (alias) {
        arg = *value_slot(ps, alias);
        if (!arg || arg->def) syntax(ps, NULL, "=%%%s is not an argument", alias);
    }
    func_ret(f, v, arg ? arg->nth : -1);
}

static void parse_func(Scanner *ps, Lists *l) {
    int line = ps->line;
    scan_expect(ps, "@");
    const char *name = scan_id(ps, "the name of a function");
    if (module_find(ps->m, name)) syntax(ps, NULL, "function @%s is defined twice", name);
    Role role = parse_role(ps);
    if (++ps->nfuncs > MAX_FUNCS)
        syntax(ps, NULL, "a module has at most %d functions", MAX_FUNCS);
    Func *f = func_new(ps->m, name, role);
    f->line = line;
    ps->slot = NULL;
    ps->nslots = ps->nvalues = 0;
    parse_params(ps, f);
    int nret = parse_ret_types(ps, l);
    Type *type = NEW_ARRAY(ps->mem, Type, (size_t)nret);
    const char **alias = NEW_ARRAY(ps->mem, const char *, (size_t)nret);
    memcpy(type, l->type, (size_t)nret * sizeof(Type));
    memcpy(alias, l->name, (size_t)nret * sizeof(char *));
    parse_task(ps, f);
    parse_stage(ps, f);
    parse_frame(ps, f);
    scan_expect(ps, "{");
    while (!scan_accept(ps, "return")) {
        if (scan_peek(ps, "}") || ps->p >= ps->end)
            syntax(ps, NULL, "a function ends with return");
        parse_op(ps, f, l);
    }
    for (int i = 0; i < nret; i++) parse_return(ps, f, i, &type[i], alias[i]);
    scan_expect(ps, "}");
}

static void parse_stages(Scanner *ps) {
    if (!scan_accept(ps, "stages")) return;
    scan_expect(ps, "(");
    int64_t stages = scan_int(ps);
    if (stages < 1 || stages > MAX_STAGES)
        syntax(ps, NULL, "a module has 1 to %d stages", MAX_STAGES);
    ps->m->stages = (int)stages;
    scan_expect(ps, ")");
}

/* order(tp, stage, dp): each axis and the stage once. */
static void parse_order(Scanner *ps) {
    Mesh *mesh = &ps->m->mesh;
    unsigned seen = 0;
    if (!scan_accept(ps, "order")) return;
    scan_expect(ps, "(");
    for (int k = 0; k <= mesh->naxes; k++) {
        if (k) scan_expect(ps, ",");
        const char *name = scan_id(ps, "the name of an axis, or stage");
        int a = 0;
        while (a < mesh->naxes && strcmp(mesh->axis[a].name, name)) a++;
        if ((a == mesh->naxes && strcmp(name, "stage")) || seen >> a & 1)
            syntax(ps, NULL, "order has each axis of the mesh once, and stage; not '%s'",
                   name);
        seen |= 1u << a;
        mesh->order[mesh->norder++] = (uint8_t)a;
    }
    scan_expect(ps, ")");
}

static void parse_header(Scanner *ps) {
    scan_expect(ps, "module");
    scan_expect(ps, "@");
    ps->m = module_new(ps->mem, scan_id(ps, "the name of the module"));
    scan_expect(ps, "mesh");
    scan_expect(ps, "(");
    Mesh *mesh = &ps->m->mesh;
    int64_t ranks = 1;
    while (!scan_peek(ps, ")")) {
        if (mesh->naxes) scan_expect(ps, ",");
        if (mesh->naxes == MAX_AXES)
            syntax(ps, NULL, "a mesh has at most %d axes", MAX_AXES);
        const char *name = scan_id(ps, "the name of an axis");
        if (strchr(name, '.'))
            syntax(ps, NULL, "mesh axis '%s' has a dot, which joins axes", name);
        for (int a = 0; a < mesh->naxes; a++) {
            if (strcmp(mesh->axis[a].name, name)) continue;
            syntax(ps, NULL, "mesh axis '%s' is there twice", name);
        }
        scan_expect(ps, "=");
        int64_t size = scan_int(ps);
        if (size < 1 || size > 1 << 20 || (ranks *= size) > 1 << 20) {
            syntax(ps, NULL, "a mesh has 1 to 2^20 ranks");
        }
        mesh->axis[mesh->naxes].name = name;
        mesh->axis[mesh->naxes++].size = (int)size;
    }
    scan_expect(ps, ")");
    parse_stages(ps);
    parse_order(ps);
    scan_expect(ps, "level");
    scan_expect(ps, "(");
    const char *word;
    ps->m->level = (Level)parse_word(ps, "a level", level_name, LEVEL_COUNT, &word);
    if (ps->m->level == LEVEL_COUNT)
        syntax(ps, "levels are global diffed sharded local fused planned",
               "unknown level '%s'", word);
    scan_expect(ps, ")");
}

Module *module_parse(Arena *mem, const char *file, const char *text, size_t n) {
    if (n > MAX_TEXT_BYTES) {
        fail(EXIT_CONFIG, "%s: a module has at most %d MiB of text", file,
             MAX_TEXT_BYTES >> 20);
    }
    if (memchr(text, 0, n)) fail(EXIT_CONFIG, "%s: a zero byte in the text", file);
    char *copy = arena_strndup(mem, text, n); /* strtod needs the terminator */
    Scanner ps = {.mem = mem,
                  .file = file,
                  .text = copy,
                  .p = copy,
                  .end = copy + n,
                  .line = 1,
                  .line_start = copy};
    parse_header(&ps);
    ps.m->file = arena_strdup(mem, file);
    ps.m->text = copy;
    Lists *lists = NEW(mem, Lists);
    while (scan_accept(&ps, "func")) parse_func(&ps, lists);
    scan_space(&ps);
    if (ps.p != ps.end) syntax(&ps, NULL, "expected 'func' here");
    module_verify(ps.m, file, copy);
    return ps.m;
}

Module *module_clone(Arena *mem, const Module *m) {
    char *text = module_print(mem, m);
    return module_parse(mem, m->name, text, strlen(text));
}
