/* scan.c - see scan.h. */
#include "ir/scan.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

SourcePos scan_at(const Scanner *ps) {
    return (SourcePos){ps->file, ps->text, ps->line, (int)(ps->p - ps->line_start) + 1};
}

void scan_space(Scanner *ps) {
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

bool scan_peek(Scanner *ps, const char *token) {
    scan_space(ps);
    size_t n = strlen(token);
    return (size_t)(ps->end - ps->p) >= n && !memcmp(ps->p, token, n);
}

bool scan_accept(Scanner *ps, const char *token) {
    if (!scan_peek(ps, token)) return false;
    ps->p += strlen(token);
    return true;
}

void scan_expect(Scanner *ps, const char *token) {
    if (!scan_accept(ps, token)) syntax(ps, NULL, "expected '%s' here", token);
}

static bool scan_id_char(int c) {
    return isalnum(c) || c == '_' || c == '.' || c == '#';
}

const char *scan_id(Scanner *ps, const char *what) {
    scan_space(ps);
    const char *from = ps->p;
    while (ps->p < ps->end && scan_id_char((unsigned char)*ps->p)) ps->p++;
    if (ps->p == from) syntax(ps, NULL, "expected %s here", what);
    if (ps->p - from > 200) syntax(ps, NULL, "a name has at most 200 characters");
    return arena_strndup(ps->mem, from, (size_t)(ps->p - from));
}

int64_t scan_int(Scanner *ps) {
    scan_space(ps);
    char *stop;
    errno = 0;
    long long v = strtoll(ps->p, &stop, 10);
    if (stop == ps->p || errno || stop > ps->end)
        syntax(ps, NULL, "expected an integer here");
    ps->p = stop;
    return v;
}

static double scan_float(Scanner *ps) {
    scan_space(ps);
    char *stop;
    errno = 0;
    double v = strtod(ps->p, &stop);
    if (stop == ps->p || stop > ps->end) syntax(ps, NULL, "expected a number here");
    if (isinf(v) && errno == ERANGE)
        syntax(ps, "the largest number is 1.79e308; infinity is written inf",
               "%.*s is more than a number holds", (int)MIN(stop - ps->p, 40), ps->p);
    ps->p = stop;
    return v;
}

static const char *scan_string(Scanner *ps) {
    scan_expect(ps, "\"");
    Text t = text_new(ps->mem);
    while (ps->p < ps->end && *ps->p != '"' && *ps->p != '\n') {
        if (*ps->p == '\\' && ps->p + 1 < ps->end && ps->p[1] != '\n') ps->p++;
        text_add_bytes(&t, ps->p++, 1);
    }
    if (ps->p >= ps->end || *ps->p != '"') syntax(ps, NULL, "a string ends with '\"'");
    ps->p++;
    return t.s;
}

/* Letters, digits and '_', as far as they go. */
static char *scan_word(Scanner *ps) {
    const char *from = ps->p;
    while (ps->p < ps->end && (isalnum((unsigned char)*ps->p) || *ps->p == '_')) ps->p++;
    return arena_strndup(ps->mem, from, (size_t)(ps->p - from));
}

static int find_axis(Scanner *ps, const char *name) {
    for (int a = 0; a < ps->m->mesh.naxes; a++) {
        if (!strcmp(ps->m->mesh.axis[a].name, name)) return a;
    }
    syntax(ps, "the first line names the axes: module @name mesh(dp=2, tp=2) ...",
           "mesh axis '%s' not found", name);
}

/* name {"." name}; a dot is not part of an axis' name here */
static Axes scan_axes(Scanner *ps, Axes taken) {
    Axes axes = 0;
    int last = -1, falls = 0, rises = 0;
    do {
        scan_space(ps);
        const char *name = scan_word(ps);
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
               "axes of a dimension are in the order of the mesh or its reverse");
    }
    return falls ? axes | AXES_REVERSED : axes;
}

static DType scan_dtype(Scanner *ps) {
    scan_space(ps);
    const char *from = ps->p;
    DType dt = 0;
    const char *name = scan_word(ps);
    while (dt < DT_COUNT && strcmp(dtype_name[dt], name)) dt++;
    if (dt < DT_COUNT) return dt;
    ps->p = from;
    syntax(ps, "element types are f32 f64 bf16 f16 i32 i64", "unknown type '%s'", name);
}

/* The next size, with its axes; *used and *bytes grow. */
static void scan_dim(Scanner *ps, Type *t, Axes *used, uint64_t *bytes) {
    if (t->rank) scan_expect(ps, ",");
    if (t->rank == MAX_RANK)
        syntax(ps, NULL, "a tensor has at most %d dimensions", MAX_RANK);
    int d = t->rank++;
    t->dim[d] = scan_int(ps);
    if (t->dim[d] < 1) syntax(ps, NULL, "a dimension is at least 1");
    if (!mul_size(*bytes, (uint64_t)t->dim[d], bytes) || *bytes > TYPE_MAX_BYTES)
        syntax(ps, NULL, "a tensor of more than 2^50 bytes");
    if (!scan_accept(ps, ":")) return;
    if (scan_accept(ps, "?"))
        t->open |= (uint8_t)(1u << d);
    else
        *used |= (t->split[d] = scan_axes(ps, *used)) & (Axes)~AXES_REVERSED;
}

Type scan_type(Scanner *ps) {
    Type t = {.dt = scan_dtype(ps)};
    Axes used = 0;
    uint64_t bytes = dtype_bytes[t.dt];
    scan_expect(ps, "[");
    while (!scan_peek(ps, "]")) scan_dim(ps, &t, &used, &bytes);
    scan_expect(ps, "]");
    if (ps->p >= ps->end || *ps->p != '+') return t;
    ps->p++;
    if (scan_accept(ps, "?"))
        t.open_sum = true;
    else
        t.pending = scan_axes(ps, used) & (Axes)~AXES_REVERSED;
    return t;
}

Loc scan_loc(Scanner *ps) {
    Loc loc = {0};
    if (ps->p >= ps->end || *ps->p != '@') return loc;
    ps->p++;
    loc.kind = scan_accept(ps, "a")   ? LOC_ARG
               : scan_accept(ps, "r") ? LOC_RET
                                      : LOC_FRAME;
    loc.at = scan_int(ps);
    return loc;
}

/* ---- attributes ---- */

static const Rule *scan_rule(Scanner *ps) {
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

static void scan_value(Scanner *ps, Attr *a) {
    scan_space(ps);
    switch (a->kind) {
    case ATTR_INT:
    case ATTR_DIM:
        a->i = scan_int(ps);
        break;
    case ATTR_FLOAT:
        a->f = scan_float(ps);
        break;
    case ATTR_STR:
    case ATTR_AXES:
    case ATTR_TYPE:
    case ATTR_OP:
        a->s = scan_peek(ps, "\"") ? scan_string(ps) : scan_id(ps, "a string");
        break;
    case ATTR_RULE:
        a->rule = scan_rule(ps);
        break;
    case ATTR_FUNC:
        scan_expect(ps, "@");
        a->s = scan_id(ps, "a function");
        break;
    }
}

/* The keys of a spec such as "rule:r form:s?". */
static const char *attr_names(Arena *mem, const char *spec) {
    Text t = text_new(mem);
    for (const char *p = spec; *p; p += strcspn(p, " "), p += *p == ' ')
        text_add(&t, "%s%.*s", p == spec ? "" : ", ", (int)strcspn(p, ":"), p);
    return *spec ? t.s : "none";
}

static Attr *scan_attr(Scanner *ps, const char *spec, const char *owner) {
    Attr *a = NEW(ps->mem, Attr);
    bool optional;
    scan_space(ps);
    const char *from = ps->p;
    a->key = scan_word(ps);
    if (!scan_accept(ps, "=")) { /* a rule has no key */
        ps->p = from;
        a->key = "rule";
    }
    if (!attr_spec_find(spec, a->key, &a->kind, &optional)) {
        ps->p = from;
        syntax(ps, NULL, "%s has no attribute '%s'; it has: %s", owner, a->key,
               attr_names(ps->mem, spec));
    }
    scan_value(ps, a);
    return a;
}

/* attr {";" attr}, kept in the order of the spec */
Attr *scan_attrs(Scanner *ps, const char *spec, const char *owner) {
    Attr *first = NULL;
    do {
        if (scan_peek(ps, "}")) break;
        Attr *a = scan_attr(ps, spec, owner), **at = &first;
        if (attr_find(first, a->key)) {
            syntax(ps, NULL, "attribute '%s' is given twice", a->key);
        }
        while (*at) at = &(*at)->next;
        *at = a;
    } while (scan_accept(ps, ";"));
    return first;
}

const Attr *attrs_parse(Arena *mem, const char *spec, const char *text) {
    Scanner ps = {.mem = mem,
                  .file = "attributes",
                  .text = text,
                  .p = text,
                  .end = text + strlen(text),
                  .line = 1,
                  .line_start = text};
    const Attr *a = scan_attrs(&ps, spec, "this op");
    scan_space(&ps);
    if (ps.p != ps.end) die("attributes '%s'", text);
    return a;
}

Type type_parse(Arena *mem, const Mesh *m, const char *text) {
    Module probe = {.mem = mem, .mesh = *m};
    Scanner ps = {.mem = mem,
                  .file = "type",
                  .text = text,
                  .p = text,
                  .end = text + strlen(text),
                  .line = 1,
                  .line_start = text,
                  .m = &probe};
    Type t = scan_type(&ps);
    scan_space(&ps);
    if (ps.p != ps.end) syntax(&ps, NULL, "text after a type");
    return t;
}
