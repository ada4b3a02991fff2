/* torch_pickle.c - see torch_pickle.h. A stack machine, as Python's pickle.py describes
 * it; a handler of an instruction returns NULL or what is wrong. */
#include "runtime/store/torch_pickle.h"
#include "runtime/store/element.h"

typedef enum NodeKind {
    NODE_MARK,
    NODE_NONE, /* and whatever tensors do not depend on: floats, hooks */
    NODE_INT,  /* booleans too */
    NODE_TEXT,
    NODE_GLOBAL,
    NODE_TUPLE,
    NODE_LIST,
    NODE_DICT, /* item: key, value, key, value, ... */
    NODE_STORAGE,
    NODE_TENSOR
} NodeKind;

typedef struct Global Global;
typedef struct Node {
    NodeKind kind;
    int n, cap;
    struct Node **item;
    int64_t i;
    const char *text; /* of a storage: its key */
    const Global *global;
    TorchTensor *tensor;
} Node;

typedef struct Unpickler {
    Arena *mem;
    const uint8_t *p;
    uint64_t n, at;
    int depth, cap, nmemo, memo_cap, nmarks, marks_cap;
    Node **stack, **memo;
    int *marks; /* where in the stack the marks are */
    bool stopped;
} Unpickler;

/* ---- the stack ---- */

static Node *push(Unpickler *m, NodeKind kind) {
    Node *v = NEW(m->mem, Node);
    v->kind = kind;
    PUSH(m->mem, m->stack, m->depth, m->cap, v);
    return v;
}

static const char *push_int(Unpickler *m, int64_t i) {
    push(m, NODE_INT)->i = i;
    return NULL;
}

/* The top, which is no mark; NULL: there is none. */
static Node *top(const Unpickler *m) {
    Node *v = m->depth ? m->stack[m->depth - 1] : NULL;
    return v && v->kind != NODE_MARK ? v : NULL;
}

static Node *pop(Unpickler *m) {
    Node *v = top(m);
    if (v) m->depth--;
    return v;
}

/* Index of the innermost mark; -1: there is none. */
static int mark_of(const Unpickler *m) {
    return m->nmarks ? m->marks[m->nmarks - 1] : -1;
}

static const char no_value[] = "takes a value, and there is none";
static const char no_mark[] = "takes values from a mark on, and there is none";

/* ---- the names that may occur ---- */

struct Global {
    const char *module, *name;
    const char *type_name; /* of a storage */
    int bytes;             /* of an element of a storage */
    /* REDUCE with these arguments; NULL: it cannot be called */
    const char *(*make)(Unpickler *m, const Node *args);
};

static bool naturals(const Node *list, int n, uint64_t *out) {
    for (int i = 0; i < n; i++) {
        if (list->item[i]->kind != NODE_INT || list->item[i]->i < 0) return false;
        out[i] = (uint64_t)list->item[i]->i;
    }
    return true;
}

/* (storage, offset, size, stride, requires_grad, hooks, [metadata]) */
static const char *make_tensor(Unpickler *m, const Node *args) {
    TorchTensor t = {0};
    if (args->n < 4 || args->item[0]->kind != NODE_STORAGE ||
        args->item[1]->kind != NODE_INT || args->item[2]->kind != NODE_TUPLE ||
        args->item[3]->kind != NODE_TUPLE)
        return "makes a tensor of other things than a storage, offset, size and stride";
    const Node *storage = args->item[0], *size = args->item[2], *stride = args->item[3];
    const Node *marks = args->n > 6 ? args->item[6] : NULL;
    if (marks && marks->kind == NODE_DICT && marks->n)
        return "makes a tensor with marks, such as that all its signs are the other way "
               "round";
    if (size->n > SAFETENSORS_MAX_RANK) return "makes a tensor of more than 8 dimensions";
    if (size->n != stride->n) return "makes a tensor with another number of strides";
    t.rank = size->n;
    if (args->item[1]->i < 0 || !naturals(size, t.rank, t.dim) ||
        !naturals(stride, t.rank, t.stride))
        return "makes a tensor with a negative size, stride or offset";
    t.offset = (uint64_t)args->item[1]->i;
    t.storage = storage->text;
    t.storage_elements = (uint64_t)storage->i;
    t.type_name = storage->global->type_name;
    t.element_bytes = storage->global->bytes;
    Node *v = push(m, NODE_TENSOR);
    v->tensor = NEW(m->mem, TorchTensor);
    *v->tensor = t;
    return NULL;
}

/* (tensor, requires_grad, hooks) is the tensor. */
static const char *make_parameter(Unpickler *m, const Node *args) {
    if (args->n < 1 || args->item[0]->kind != NODE_TENSOR)
        return "makes a parameter of something that is no tensor";
    PUSH(m->mem, m->stack, m->depth, m->cap, args->item[0]);
    return NULL;
}

static const char *make_dict(Unpickler *m, const Node *args) {
    if (args->n) return "makes an OrderedDict with arguments";
    push(m, NODE_DICT);
    return NULL;
}

static const char *make_size(Unpickler *m, const Node *args) {
    if (args->n != 1 || args->item[0]->kind != NODE_TUPLE)
        return "makes a size of something that is no tuple";
    PUSH(m->mem, m->stack, m->depth, m->cap, args->item[0]);
    return NULL;
}

static const Global globals[] = {
    {"collections", "OrderedDict", NULL, 0, make_dict},
    {"torch._utils", "_rebuild_tensor_v2", NULL, 0, make_tensor},
    {"torch._utils", "_rebuild_parameter", NULL, 0, make_parameter},
    {"torch", "Size", NULL, 0, make_size},
    {"torch", "FloatStorage", "F32", 4, NULL},
    {"torch", "DoubleStorage", "F64", 8, NULL},
    {"torch", "HalfStorage", "F16", 2, NULL},
    {"torch", "BFloat16Storage", "BF16", 2, NULL},
    {"torch", "LongStorage", "I64", 8, NULL},
    {"torch", "IntStorage", "I32", 4, NULL},
    {"torch", "ShortStorage", "I16", 2, NULL},
    {"torch", "CharStorage", "I8", 1, NULL},
    {"torch", "ByteStorage", "U8", 1, NULL},
    {"torch", "BoolStorage", "BOOL", 1, NULL},
};

static const char *push_global(Unpickler *m, const char *module, const char *name) {
    for (int i = 0; i < ARRAY_LEN(globals); i++) {
        if (strcmp(globals[i].module, module) || strcmp(globals[i].name, name)) continue;
        push(m, NODE_GLOBAL)->global = &globals[i];
        return NULL;
    }
    return arena_printf(m->mem,
                        "names %.80s.%.80s, which a dictionary of tensors does not need",
                        module, name);
}

/* ---- instructions: `arg` is the number behind the code, or what the table has ---- */

typedef const char *Handler(Unpickler *m, uint64_t arg);

/* The next n bytes, behind the fixed ones; NULL: there are fewer. */
static const uint8_t *take(Unpickler *m, uint64_t n) {
    if (n > m->n - m->at) return NULL;
    m->at += n;
    return m->p + m->at - n;
}

static const char *op_proto(Unpickler *m, uint64_t arg) {
    (void)m;
    return arg >= 2 && arg <= 4 ? NULL : "is not protocol 2, 3 or 4";
}

static const char *op_nothing(Unpickler *m, uint64_t arg) {
    (void)m, (void)arg;
    return NULL;
}

static const char *op_stop(Unpickler *m, uint64_t arg) {
    (void)arg;
    m->stopped = true;
    return NULL;
}

static const char *op_mark(Unpickler *m, uint64_t arg) {
    (void)arg;
    PUSH(m->mem, m->marks, m->nmarks, m->marks_cap, m->depth);
    push(m, NODE_MARK);
    return NULL;
}

static const char *op_none(Unpickler *m, uint64_t arg) {
    (void)arg;
    push(m, NODE_NONE);
    return NULL;
}

static const char *op_int(Unpickler *m, uint64_t arg) {
    return push_int(m, (int64_t)arg);
}

static const char *op_int4(Unpickler *m, uint64_t arg) {
    return push_int(m, (int32_t)arg);
}

static const char *op_long(Unpickler *m, uint64_t arg) {
    int n = (int)arg;
    if (n > 8) return "has a number of more than 64 bits";
    const uint8_t *p = take(m, (uint64_t)n);
    if (!p) return "is cut off";
    uint64_t v = little_endian(p, n);
    if (n && n < 8 && p[n - 1] >= 128) v |= UINT64_MAX << (8 * n);
    return push_int(m, (int64_t)v);
}

static const char *op_text(Unpickler *m, uint64_t n) {
    const uint8_t *p = take(m, n);
    if (!p) return "is cut off";
    if (memchr(p, 0, n)) return "has a text with a zero byte";
    push(m, NODE_TEXT)->text = arena_strndup(m->mem, (const char *)p, n);
    return NULL;
}

/* A line without its end; NULL: no line. */
static const char *line(Unpickler *m) {
    const uint8_t *from = m->p + m->at, *end = memchr(from, '\n', m->n - m->at);
    if (!end || memchr(from, 0, (size_t)(end - from))) return NULL;
    m->at += (uint64_t)(end - from) + 1;
    return arena_strndup(m->mem, (const char *)from, (size_t)(end - from));
}

static const char *op_global(Unpickler *m, uint64_t arg) {
    (void)arg;
    const char *module = line(m), *name = module ? line(m) : NULL;
    return name ? push_global(m, module, name) : "is cut off";
}

static const char *op_stack_global(Unpickler *m, uint64_t arg) {
    (void)arg;
    const Node *name = pop(m), *module = pop(m);
    if (!module || name->kind != NODE_TEXT || module->kind != NODE_TEXT)
        return "names a thing by what is no text";
    return push_global(m, module->text, name->text);
}

static const char *push_tuple(Unpickler *m, int from) {
    Node *v = NEW(m->mem, Node);
    v->kind = NODE_TUPLE;
    v->n = m->depth - from;
    v->item = NEW_ARRAY(m->mem, Node *, (size_t)v->n + 1);
    if (v->n) memcpy(v->item, m->stack + from, (size_t)v->n * sizeof *v->item);
    m->depth = from;
    PUSH(m->mem, m->stack, m->depth, m->cap, v);
    return NULL;
}

static const char *op_tuple_of(Unpickler *m, uint64_t arg) {
    int n = (int)arg;
    return m->depth - 1 - mark_of(m) < n ? no_value : push_tuple(m, m->depth - n);
}

static const char *op_tuple(Unpickler *m, uint64_t arg) {
    (void)arg;
    int mark = mark_of(m);
    if (mark < 0) return no_mark;
    m->nmarks--;
    memmove(m->stack + mark, m->stack + mark + 1,
            (size_t)(m->depth - mark - 1) * sizeof *m->stack);
    m->depth--;
    return push_tuple(m, mark);
}

static const char *op_empty(Unpickler *m, uint64_t kind) {
    push(m, (NodeKind)kind);
    return NULL;
}

/* Values that a collection is given at a time. */
static int each_of(NodeKind kind) {
    return kind == NODE_DICT ? 2 : 1;
}

/* Adds the values from `from` on to the collection at `below`, the new top. */
static const char *collect(Unpickler *m, int below, int from, NodeKind kind) {
    int n = m->depth - from;
    if (below < 0) return no_value;
    Node *to = m->stack[below];
    if (to->kind != kind) return "adds to something that does not collect";
    if (n % each_of(kind)) return "adds a key without a value";
    for (int i = 0; i < n; i++)
        PUSH(m->mem, to->item, to->n, to->cap, m->stack[from + i]);
    m->depth = below + 1;
    return NULL;
}

static const char *op_add_last(Unpickler *m, uint64_t kind) {
    int n = each_of((NodeKind)kind);
    if (m->depth - 1 - mark_of(m) < n + 1) return no_value;
    return collect(m, m->depth - n - 1, m->depth - n, (NodeKind)kind);
}

static const char *op_add_marked(Unpickler *m, uint64_t kind) {
    int mark = mark_of(m);
    if (mark < 0) return no_mark;
    m->nmarks--;
    return collect(m, mark - 1, mark + 1, (NodeKind)kind);
}

/* Attributes of a dictionary (_metadata of a state dictionary) are of no use here. */
static const char *op_build(Unpickler *m, uint64_t arg) {
    (void)arg;
    if (m->depth - 1 - mark_of(m) < 2) return no_value;
    m->depth--;
    return top(m)->kind == NODE_DICT ? NULL : "sets attributes of what is no dictionary";
}

static const char *op_put(Unpickler *m, uint64_t i) {
    if (!top(m)) return no_value;
    if (i > (uint64_t)m->nmemo) return "remembers a value under a number out of order";
    if (i == (uint64_t)m->nmemo)
        PUSH(m->mem, m->memo, m->nmemo, m->memo_cap, top(m));
    else
        m->memo[i] = top(m);
    return NULL;
}

static const char *op_get(Unpickler *m, uint64_t i) {
    if (i >= (uint64_t)m->nmemo) return "takes a remembered value that there is not";
    PUSH(m->mem, m->stack, m->depth, m->cap, m->memo[i]);
    return NULL;
}

static const char *op_memoize(Unpickler *m, uint64_t arg) {
    (void)arg;
    return op_put(m, (uint64_t)m->nmemo);
}

/* ("storage", type, key, device, elements) */
static const char *op_persid(Unpickler *m, uint64_t arg) {
    (void)arg;
    const Node *id = pop(m);
    if (!id || id->kind != NODE_TUPLE || id->n != 5 || id->item[0]->kind != NODE_TEXT ||
        strcmp(id->item[0]->text, "storage") || id->item[1]->kind != NODE_GLOBAL ||
        !id->item[1]->global->type_name || id->item[2]->kind != NODE_TEXT ||
        id->item[4]->kind != NODE_INT || id->item[4]->i < 0)
        return "refers to what is no storage";
    Node *v = push(m, NODE_STORAGE);
    v->global = id->item[1]->global;
    v->text = id->item[2]->text;
    v->i = id->item[4]->i;
    return NULL;
}

static const char *op_reduce(Unpickler *m, uint64_t arg) {
    (void)arg;
    const Node *args = pop(m), *callee = pop(m);
    if (!callee || args->kind != NODE_TUPLE || callee->kind != NODE_GLOBAL ||
        !callee->global->make)
        return "calls what nothing can be made with";
    return callee->global->make(m, args);
}

typedef struct Instruction {
    const char *name;
    Handler *run;
    uint8_t bytes; /* of the number behind the code */
    uint8_t arg;   /* without one */
} Instruction;

static const Instruction instructions[256] = {
    [0x80] = {"PROTO", op_proto, 1},
    [0x95] = {"FRAME", op_nothing, 8},
    ['.'] = {"STOP", op_stop},
    ['('] = {"MARK", op_mark},
    ['N'] = {"NONE", op_none},
    ['G'] = {"BINFLOAT", op_none, 8},
    [0x88] = {"NEWTRUE", op_int, .arg = 1},
    [0x89] = {"NEWFALSE", op_int, .arg = 0},
    ['J'] = {"BININT", op_int4, 4},
    ['K'] = {"BININT1", op_int, 1},
    ['M'] = {"BININT2", op_int, 2},
    [0x8a] = {"LONG1", op_long, 1},
    ['X'] = {"BINUNICODE", op_text, 4},
    [0x8c] = {"SHORT_BINUNICODE", op_text, 1},
    ['c'] = {"GLOBAL", op_global},
    [0x93] = {"STACK_GLOBAL", op_stack_global},
    [')'] = {"EMPTY_TUPLE", op_tuple_of, .arg = 0},
    [0x85] = {"TUPLE1", op_tuple_of, .arg = 1},
    [0x86] = {"TUPLE2", op_tuple_of, .arg = 2},
    [0x87] = {"TUPLE3", op_tuple_of, .arg = 3},
    ['t'] = {"TUPLE", op_tuple},
    ['}'] = {"EMPTY_DICT", op_empty, .arg = NODE_DICT},
    [']'] = {"EMPTY_LIST", op_empty, .arg = NODE_LIST},
    ['s'] = {"SETITEM", op_add_last, .arg = NODE_DICT},
    ['u'] = {"SETITEMS", op_add_marked, .arg = NODE_DICT},
    ['a'] = {"APPEND", op_add_last, .arg = NODE_LIST},
    ['e'] = {"APPENDS", op_add_marked, .arg = NODE_LIST},
    ['b'] = {"BUILD", op_build},
    ['q'] = {"BINPUT", op_put, 1},
    ['r'] = {"LONG_BINPUT", op_put, 4},
    [0x94] = {"MEMOIZE", op_memoize},
    ['h'] = {"BINGET", op_get, 1},
    ['j'] = {"LONG_BINGET", op_get, 4},
    ['Q'] = {"BINPERSID", op_persid},
    ['R'] = {"REDUCE", op_reduce},
};

static const char *step(Unpickler *m) {
    uint64_t from = m->at;
    uint8_t code = m->p[m->at++];
    const Instruction *i = &instructions[code];
    if (!i->run)
        return arena_printf(m->mem,
                            "byte %llu of the pickle: instruction 0x%02x, which a "
                            "dictionary of tensors does not need",
                            (unsigned long long)from, code);
    const uint8_t *p = take(m, i->bytes);
    uint64_t arg = p && i->bytes ? little_endian(p, i->bytes) : i->arg;
    const char *wrong = p ? i->run(m, arg) : "is cut off";
    if (!wrong) return NULL;
    return arena_printf(m->mem, "byte %llu of the pickle: %s %s",
                        (unsigned long long)from, i->name, wrong);
}

static const char *take_tensors(Unpickler *m, const Node *dict, TorchTensors *out) {
    if (!dict || dict->kind != NODE_DICT || m->depth) return "holds no dictionary";
    out->t = NEW_ARRAY(m->mem, TorchTensor, (size_t)(dict->n / 2) + 1);
    for (int i = 0; i + 1 < dict->n; i += 2) {
        const Node *name = dict->item[i], *v = dict->item[i + 1];
        if (name->kind != NODE_TEXT)
            return "holds a dictionary with keys that are no text";
        if (v->kind != NODE_TENSOR)
            return arena_printf(m->mem,
                                "'%.200s' is no tensor; save the model's state_dict() "
                                "alone",
                                name->text);
        out->t[out->n] = *v->tensor;
        out->t[out->n++].name = name->text;
    }
    return NULL;
}

const char *torch_pickle_try(Arena *mem, const uint8_t *bytes, uint64_t n,
                             TorchTensors *out) {
    Unpickler m = {.mem = mem, .p = bytes, .n = n};
    *out = (TorchTensors){0};
    if (n > TORCH_PICKLE_MAX_BYTES) return "a pickle of more than 16 MiB";
    while (!m.stopped) {
        if (m.at >= m.n) return "the pickle has no end (was it cut off?)";
        const char *wrong = step(&m);
        if (wrong) return wrong;
    }
    return take_tensors(&m, pop(&m), out);
}
