/* ir.h - START HERE: the tensor IR. A Module holds Funcs; a Func holds Ops in program
 * order; an Op reads and makes Values; a Value has a Type with its placement on a mesh
 * (type.h). Everything that is known about a kind of op is in its row of ops.def. */
#ifndef STATOR_IR_H
#define STATOR_IR_H
#include "ir/type.h"

enum {
    MAX_DIMS = 24,  /* distinct letters of one rule */
    MAX_TERMS = 16, /* operands plus results that one rule names */
    MAX_FUNCS = 4096,
    MAX_CALL_DEPTH = 64,
    MAX_TIMES = 1 << 20, /* runs of one call */
    MAX_STAGES = 1024,   /* of a pipeline */
    MAX_CHUNKS = 4096,   /* of the model in a pipeline */
};

/* ---- attributes and rules ---- */

/* A dimension rule such as "mk,kn->mn": a letter per dimension, '.' stands for "...". */
typedef struct Term {
    int n;
    char letter[MAX_RANK + 1];
} Term;
typedef struct Rule {
    int nin, nout;
    Term term[MAX_TERMS]; /* operands, then results */
    uint32_t whole;       /* bit (letter - 'a'): `c!`, the dimension must not be split */
    char tied[26];        /* by letter: the letter it is split along with, or 0 (`g~h`) */
    bool ties;            /* any of them */
    const char *text;     /* canonical spelling */
} Rule;

/* Rows of ops.def write a letter for each, ifsrFdato in this order (op.c). */
typedef enum AttrKind {
    ATTR_INT,
    ATTR_FLOAT,
    ATTR_STR,
    ATTR_RULE,
    ATTR_FUNC,
    ATTR_DIM,  /* i: number of a dimension; of collectives from the end when below 0 */
    ATTR_AXES, /* s: axes of the mesh, "dp.cp" */
    ATTR_TYPE, /* s: a type, "f32[8:dp,4]" */
    ATTR_OP    /* s: name of an op */
} AttrKind;
extern const char attr_kind_letter[];
typedef struct Attr {
    const char *key;
    AttrKind kind;
    int64_t i;
    double f;
    const char *s; /* ATTR_STR, _FUNC (name without @), _AXES, _TYPE, _OP */
    const Rule *rule;
    struct Func *func; /* ATTR_FUNC: that of the name, once op_func has looked it up */
    struct Attr *next; /* sorted as the op row lists them */
} Attr;

/* ---- the graph ---- */

typedef struct Value Value;
typedef struct Op Op;
typedef struct Func Func;
typedef struct Module Module;
typedef struct AttrText AttrText;

/* Where a value lives once memory is planned: `@128` in the frame of the function, `@a2`
 * in the buffer of argument 2, `@r0` in the buffer the caller gave for result 0. */
typedef enum LocKind { LOC_NONE, LOC_FRAME, LOC_ARG, LOC_RET } LocKind;
typedef struct Loc {
    LocKind kind;
    int64_t at;
} Loc;

struct Value {
    const char *name; /* from the source; the printer makes names unique */
    Type ty;
    Op *def; /* NULL: an argument */
    int nth; /* which result, or which argument */
    int id;  /* dense in its function after func_number() */
    Loc loc;
    const char *grad_of; /* name of the value whose gradient this is, or a sum of such;
                            NULL: of none that is known */
};

struct Op {
    int kind; /* row of optab */
    int nin, nout;
    Value **in, **out;
    Attr *attr;
    int line; /* in the text that it, or what a pass made it from, was parsed from; 0: none */
    int id; /* position after func_number() */
    Op *prev, *next;
    Func *fn;
};

typedef enum Role { ROLE_FUNC, ROLE_MODEL, ROLE_STEP, ROLE_KERNEL, ROLE_COUNT } Role;
extern const char *const role_name[ROLE_COUNT];

/* What autodiff made a function to be: all of the one it was made of, or a pass of it. */
typedef enum FuncPart { PART_WHOLE, PART_FORWARD, PART_BACKWARD } FuncPart;

/* What a rank of a pipeline does with a micro-batch at a time: run a chunk of the model
 * forward (F) or backward (B), or of backward what the chunk before waits for (I) and the
 * gradients of weights (W). The letters are those of schedules in text. */
typedef enum TaskKind {
    TASK_NONE,
    TASK_FORWARD,
    TASK_BACKWARD,
    TASK_INPUTS,
    TASK_WEIGHTS,
    TASK_KINDS
} TaskKind;
extern const char task_letter[TASK_KINDS + 1];

struct Func {
    const char *name;
    Role role;
    const char *made_of; /* name of the function that it was made of; NULL: of none */
    FuncPart part;
    TaskKind task; /* task(3F): it is this of chunk 3 */
    int chunk;
    int stage; /* of a step in a module with several stages: whose it is */
    int line; /* in the text that it, or what it is a copy of, was parsed from; 0: none */
    int narg, nret;
    Value **arg;
    Attr **arg_attr; /* per argument: role, init, ... (see arg_spec in op.c) */
    Value **ret;
    int *alias; /* per result: the argument whose buffer it overwrites, or -1 */
    int arg_cap, arg_attr_cap, ret_cap, alias_cap; /* room in the four */
    Op *first, *last;
    int nvalues, nops;                                /* set by func_number() */
    int64_t frame_bytes;                              /* level planned */
    enum { ORDER_NEW, ORDER_OPEN, ORDER_DONE } order; /* of module_order() */
    int calls; /* of it in the module: scratch of pass sink */
    int nth;   /* its number there, of who counted last */
    Func *next;
    Module *mod;
};

typedef enum Level {
    LEVEL_GLOBAL,  /* whole tensors, the model alone */
    LEVEL_DIFFED,  /* the training step: forward, backward, update */
    LEVEL_SHARDED, /* every type placed */
    LEVEL_LOCAL,   /* local shapes, explicit collectives */
    LEVEL_FUSED,   /* primitive ops only, grouped into kernel functions */
    LEVEL_PLANNED, /* every value has a location in memory */
    LEVEL_COUNT
} Level;
extern const char *const level_name[LEVEL_COUNT];

struct Module {
    Arena *mem;
    const char *name;
    Mesh mesh;  /* of one stage */
    int stages; /* ranks of different stages run different steps; 0: there is one stage */
    Level level;
    Func *first;
    /* What it was parsed from, for the positions in messages; NULL: from no text. */
    const char *file, *text;
    AttrText **attr_text; /* those that ops were built with, by hash */
    size_t attr_buckets, attr_texts;
};

/* ---- the op table (optab.c makes it of ops.def) ---- */

enum OpFlag {
    F_LINEAR = 1 << 0,    /* f(x + y) = f(x) + f(y), in all float operands together
                             (of a matmul: in one factor together with the addends), so
                             partial sums may be added up later; not for ops that know
                             ranks */
    F_MAP = 1 << 1,       /* elementwise by its rule: one scalar function per element */
    F_REDUCE = 1 << 2,    /* sum or max over the letters that the result lacks */
    F_VIEW = 1 << 3,      /* the result is the operand's buffer under another shape */
    F_COMM = 1 << 4,      /* talks to other ranks */
    F_INPLACE = 1 << 5,   /* result 0 may overwrite operand 0 when nothing reads that
                             any more; of collectives each result its operand */
    F_ADDENDS = 1 << 6,   /* operands after the second are added to the result */
    F_PLUS = 1 << 7,      /* the sum of its two operands */
    F_RANK = 1 << 8,      /* differs from rank to rank without communication */
    F_MOVE = 1 << 9,      /* each element of the result is one of the operand's or
                             zero, and no element of the operand is there twice */
    F_CALL = 1 << 10,     /* runs a function; see Call */
    F_RANDOM = 1 << 11,   /* drops a share `p` at random, in training only. With p = 0
                             it drops nothing; the result of one that is F_MAP is then
                             operand 0 */
    F_FILL = 1 << 12,     /* attribute `value` in every element */
    F_SCALE = 1 << 13,    /* its operand times the attribute `by` */
    F_EFFECT = 1 << 14,   /* it does something besides making its results, so it is
                             neither removed nor merged with an equal one */
    F_CAST = 1 << 15,     /* its operand in another element type */
    F_TYPELESS = 1 << 16, /* elements of operands become elements of results as they
                             are, whatever their type; every F_MOVE is one too */
    F_ROUNDS = 1 << 17,   /* computes in f32 at least, whatever operand 0 is, and
                             rounds its result to the type of that */
    F_EXACT = 1 << 18,    /* pass narrow rounds nothing that it reads */
    F_LOOKUP = 1 << 19,   /* of operand 0 it reads no elements but those that it gives */
    F_TOUCHES = 1 << 20,  /* result 0 is operand 0 but for as many elements as the last
                             operand has, to which that is added */
    F_DENSE = 15 << 21,   /* matmuls over all its letters; how many: PRODUCTS */
};
/* In the flags of a row: n matmuls, without those that a gradient computes a second time. */
#define PRODUCTS(n) ((unsigned)(n) << 21)
static inline int flag_products(unsigned flags) {
    return (int)((flags & F_DENSE) >> 21);
}

typedef struct Tensor Tensor;
typedef struct Ref Ref;
typedef struct Grad Grad;
typedef struct Builder Builder;
typedef struct Dims Dims;
typedef struct Local Local;

typedef struct OpInfo {
    const char *name;
    int nin_min, nin_max, nout; /* nout -1: by infer */
    const char *rule;           /* NULL: attribute `rule`, or none (infer) */
    const char *types;          /* operand and result element types, see infer.c */
    const char *attrs;          /* "eps:f p:f?": letters of AttrKind; ? optional */
    unsigned flags;
    /* Called where the gradient of an operand is wanted, with that of the first result, which is
     * there unless nout is -1; NULL: no gradient flows through it. */
    void (*vjp)(Grad *, Op *, Value *dy);
    void (*infer)(Op *, Type *out); /* result types where the rule does not give them */
    void (*expand)(Builder *, Op *, Value **out); /* composite: in terms of primitives */
    bool (*dims)(const Op *, Dims *); /* corresponding dimensions of an op without rule */
    void (*local)(Local *);           /* see localize in passes/ */
    int onto; /* the op (OpKind) that adds what this one makes to a further operand, its first;
                 0: there is none */
    double (*share)(const Op *); /* of its products that are computed; NULL: all */
    /* Of a part of an op: products of the rank that has the most, over those of the mean of all
     * ranks; NULL: all have the same. */
    double (*slowest)(const Op *);
    void (*ref)(const Ref *); /* plain C meaning */
} OpInfo;

enum OpKind {
#define OP(name, ...)        OP_##name,
#define MAP(name, ...)       OP_##name,
#define COMPOSITE(name, ...) OP_##name,
#include "ir/ops.def"
#undef OP
#undef MAP
#undef COMPOSITE
    OP_COUNT
};
extern const OpInfo optab[OP_COUNT];

/* op.c */
int op_kind(const char *name);                      /* -1: no such op */
const Attr *op_attr(const Op *op, const char *key); /* NULL: absent */
int64_t op_int(const Op *op, const char *key, int64_t otherwise);
double op_float(const Op *op, const char *key, double otherwise);
/* The axes that a verified op is over. */
Axes op_axes(const Op *op);
/* Does its row have that flag? */
static inline bool op_has(const Op *op, unsigned flag) {
    return optab[op->kind].flags & flag;
}
bool op_reads(const Op *op, const Op *of); /* a result of it */
bool op_reads_value(const Op *op, const Value *v);
/* With marks by value id, of a function with numbers. */
bool op_reads_marked(const Op *op, const bool *mark);
bool op_makes_marked(const Op *op, const bool *mark);
void op_mark_operands(const Op *op, bool *mark);
int op_by_id(const void *a, const void *b); /* for qsort of Op * */
static inline bool op_is_call(const Op *op) {
    return optab[op->kind].flags & F_CALL;
}
/* Operands and then results are the terms of an op. */
static inline Value *op_term(const Op *op, int term) {
    return term < op->nin ? op->in[term] : op->out[term - op->nin];
}
Func *op_func(const Op *op); /* the function a `call` names; never NULL */
/* Is it a call of a function that is no kernel? */
bool op_calls_ops(const Op *op);
Func *op_callee(const Op *op); /* the same, NULL of what is no call */
/* A verified call as numbers. Operands: first `carry` values that each run hands to the
 * next, then `each` stacks of which run i gets slice i of dimension 0, then those that are
 * the same for all runs. Results: the carried values of the last run, then (in a loop)
 * stacks with a slice of each run. */
typedef struct Call {
    const Op *op;
    Func *f;
    bool loop; /* it has `times`; else one run, nothing carried or sliced */
    int carry, each;
    int64_t times;
    bool reverse; /* the last slice first */
} Call;
Call call_of(const Op *op);
bool op_is_loop(const Op *op);          /* a call of ops with `times` */
bool call_slices(const Call *c, int i); /* is operand i one of which runs get slices? */
/* The `arrive` that waits for a collective with late=1; NULL: there is none, or late=0. */
Op *op_arrival(const Op *op);
void op_set_attr(Op *op, const Attr *a);    /* copies; replaces one of the same key */
void op_drop_attr(Op *op, const char *key); /* nothing without it */
void module_drop_attr(Module *m, const char *key); /* of every op */
void op_set_int(Op *op, const char *key, int64_t i);
void op_set_float(Op *op, const char *key, double f);
void op_set_str(Op *op, const char *key, const char *s);
void op_set_func(Op *op, const Func *callee);
void op_set_rule(Op *op, const Rule *rule);
void op_unlink(Op *op); /* to be put elsewhere */
void op_remove(Op *op);
const Attr *attr_find(const Attr *list, const char *key);
Attr *attr_copy(Arena *mem, const Attr *list);
bool attr_is_int(const Attr *a); /* ATTR_INT, ATTR_DIM */
/* Looks `key` up in a spec such as "eps:f p:f?". */
bool attr_spec_find(const char *spec, const char *key, AttrKind *kind, bool *optional);
extern const char arg_spec[]; /* the attributes that function arguments may have */
extern const char common_attr_spec[]; /* those that any op may have */
/* The attribute `role` of an argument: ARG_tokens, ...; roles.def. */
typedef enum ArgRole {
    ARG_none,
#define ARG(name, ...) ARG_##name,
#include "ir/roles.def"
#undef ARG
    ARG_ROLES
} ArgRole;
extern const char *const arg_role_name[ARG_ROLES];
ArgRole arg_role(const Func *f, int i); /* ARG_none: none, or none that is known */
int func_arg_role(const Func *f, ArgRole role); /* the first of that role; -1 */
int func_arg_count(const Func *f, ArgRole role);
/* The stage of a pipeline that has the argument (attribute `stage`); -1: every one. */
int func_arg_stage(const Func *f, int i);
/* The argument that argument i is another name of (attribute `same`); -1: of none. */
int func_arg_same(const Func *f, int i);
bool func_arg_in_common(const Func *f, int i); /* has another stage the same one? */
/* The parameter that argument i is a state of (attribute `like`); -1: of none. */
int func_arg_like(const Func *f, int i);
/* Does it hold a micro-batch, so that it differs from run to run? One without a role does. */
bool arg_is_batch(const Func *f, int i);
const char *arg_str(const Func *f, int i, const char *key, const char *otherwise);
double arg_float(const Func *f, int i, const char *key, double otherwise);
Func *module_find(const Module *m, const char *name);
/* rule.c: the rule of an op bound to the sizes of its operands. Dimension ids are dense;
 * the letters of "..." come in their order. */
struct Dims {
    int n;
    int64_t size[MAX_DIMS];
    char letter[MAX_DIMS];            /* '.' for those of "..." */
    bool whole[MAX_DIMS];             /* must not be split */
    int nin, nout;                    /* terms bound */
    int8_t tied[MAX_DIMS];            /* split when that id is split; -1: none */
    int64_t most[MAX_DIMS];           /* parts it may be split in; 0: any number */
    int8_t term[MAX_TERMS][MAX_RANK]; /* operands, then results: dimension ids */
    int rank[MAX_TERMS];
};
const Rule *rule_parse(Arena *mem, const char *text, char *why, size_t why_size);
const Rule *rule_of_terms(Arena *mem, const Rule *terms); /* with the text of them */
/* NULL when the operands fit the rule, and the results unless `out` is NULL; else a
 * sentence on what does not. */
const char *rule_bind(Arena *mem, const Rule *r, int nin, Value **in, int nout,
                      Value **out, Dims *d);
const Rule *op_rule(const Op *op);   /* the attribute, or the row's rule; NULL: none */
bool op_dims(const Op *op, Dims *d); /* false: the op has no rule */
/* The same for ops without a rule too, by the `dims` hook of the row. Dimensions of one id
 * are split alike. Their sizes may differ; `size` is then one that every legal split
 * divides. */
bool op_placement_dims(const Op *op, Dims *d);
uint32_t dims_mask(const Dims *d, int term);       /* set of dimension ids a term has */
bool dims_same_order(const Dims *d, int a, int b); /* of two terms: the same dimensions */
/* Elements between neighbours along each dimension in the tensor of a term; 0 where the
 * term lacks it. */
void dims_strides(const Dims *d, int term, int64_t stride[MAX_DIMS]);

/* build.c */
struct Builder {
    Func *fn;
    Op *before; /* insert before this op; NULL: at the end */
    Arena *mem;
    const char *name; /* name for the next results, or NULL */
    int line;         /* of the op that it works for; 0: of what makes the operands */
};
Module *module_new(Arena *mem, const char *name);
Func *func_new(Module *m, const char *name, Role role);        /* appended */
Func *func_new_unique(Module *m, const char *name, Role role); /* name, name.1, ... */
Value *func_arg(Func *f, const char *name, Type ty);           /* appends an argument */
Value *func_arg_given(Func *f, const Value *v); /* the same, for such a value */
Value *func_arg_at(Func *f, int at, const char *name, Type ty); /* before argument `at` */
void func_drop_arg(Func *f, int i); /* that nobody reads and no result overwrites */
void func_arg_attr(Func *f, int i, const char *attrs); /* "role=param; std=0.02" */
void func_arg_set(Func *f, int i, const Attr *a); /* adds or replaces one attribute */
void func_arg_set_int(Func *f, int i, const char *key, int64_t v);
void func_arg_set_text(Func *f, int i, const char *key, AttrKind kind, const char *s);
int func_ret(Func *f, Value *v, int alias_arg); /* appends a result */
int func_result_over(const Func *f, int arg); /* that overwrites the argument; -1: none */
void func_made_of(Func *f, const Func *of, FuncPart part);
/* What is made next to an op is made for it, so it has the line of that op. */
Builder build_before(Op *op);
Builder build_behind(Op *op);
Builder build_at_start(Func *f);
Builder build_at_end(Func *f);
/* Makes an op; attrs is attribute text without braces, or NULL; the list of operands ends
 * with NULL. Result types follow from the row; build_as declares them where the row leaves
 * them open. */
Op *build(Builder *b, int kind, const char *attrs, ...);
Op *build_list(Builder *b, int kind, const char *attrs, int nin, Value **in,
               const Type *out /* or NULL */, int nout);
Op *build_call(Builder *b, Func *f, int nin, Value **in); /* one run of f */
/* Runs of c->f, as many and in the way that c says. */
Op *build_runs(Builder *b, const Call *c, int nin, Value **in);
#define build1(...) (build(__VA_ARGS__)->out[0])
Value *build_as(Builder *b, int kind, const char *attrs, Type out, ...);
/* The same of one operand; the result keeps the placement of `want`. */
Value *build_placed(Builder *b, int kind, const char *attrs, Type want, Value *v);
/* v in that type and the placement that it has; itself where it has the type. */
Value *build_cast(Builder *b, Value *v, DType to);
/* fmt for attribute text, in the builder's arena */
char *bfmt(Builder *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
Value *build_named(Builder *b, const char *name, Value *v); /* renames, returns v */
/* Writes before op what it means in primitives: its results in out, NULL where the hook makes none. In
 * f32 where elements are of 16 bits: each of the primitives would round, and the square of an f16
 * above 256 is none. */
void op_expand(Builder *b, Op *op, Value **out);
void op_move(Builder *b, Op *op); /* to where that builds */
void op_replace_in(Op *op, Value *from, Value *to);
void func_replace(Func *f, Value *from, Value *to); /* every use, results too */
/* Those behind the op that makes `made`, which may be made of `from`. */
void value_replace_behind(Value *from, Value *made);
/* Values to be replaced, for a pass that goes through the ops of a function once, in order: what
 * an op reads is looked up when it is reached, what the function returns at the end. */
typedef struct Renames {
    Func *f;
    Value **now; /* by value id: what took its place; NULL: nothing did */
} Renames;
Renames renames_new(Arena *mem, Func *f); /* numbers the function */
void renames_reach(const Renames *r, Op *op);
void renames_end(const Renames *r);
/* The same for ops one by one: each for which `give` is true goes, and the values that it wrote to
 * `out` take the place of the op's results. */
typedef bool OpGive(Op *op, Value **out, void *context);
void func_rewrite(Func *f, OpGive *give, void *context);
/* Result `nth` of an op: the value takes the place of the one that was made for it. */
void value_move(Value *v, Op *to, int nth);
Op *op_again(Builder *b, const Op *op, Value **in); /* the same of other operands */
Op *op_clone(Builder *b, const Op *op, Value **map /* by value id, filled */);
Value *op_add_result(Op *op, Type ty); /* one more result of a call, say */
void op_add_operand(Op *op, Value *v); /* the last one */
void op_drop_operand(Op *op, int i);
void func_drop_result(Func *f, int r, Op *const *call, int n); /* and of its n calls */

/* graph.c */
void func_number(Func *f); /* dense ids for values and ops */
/* Callees before callers; fails on recursion and on calls nested deeper than
 * MAX_CALL_DEPTH. Returns an array ended by NULL. */
Func **module_order(Arena *mem, const Module *m);
int order_length(Func *const *order);          /* of such an array */
int value_uses(const Func *f, const Value *v); /* ops and results that read v */
/* In whose buffer v is, over any number of views. */
const Value *value_viewed(const Value *v);
/* The op that reads v, if nothing else does; NULL. */
Op *value_only_reader(const Func *f, const Value *v);
/* By value id, of a function with numbers: value_uses; and the ops that read it, in order, each list
 * ended by NULL. One that reads it twice is there twice. */
int *func_uses(Arena *mem, const Func *f);
Op ***func_readers(Arena *mem, const Func *f);
int func_result(const Func *f, const Value *v); /* the first result that it is; -1 */
int func_calls(const Module *m, const Func *f); /* of it in the module */
bool func_is_entry(const Func *f);
/* The step of a stage; NULL: the module has none. With one stage the only entry. */
Func *module_stage(const Module *m, int stage);
/* That pass autodiff has made of a model, which has the argument of role dloss; in a module, NULL:
 * it has none. */
bool func_is_gradient(const Func *f);
Func *module_gradient(const Module *m);
Op *only_call(const Module *m, const Func *f); /* NULL: there are several, or none */
void func_remove_dead(Func *f);                /* ops whose results nobody reads */
void module_remove_unused(Module *m); /* functions nobody calls, other than entries */

/* copy.c */
/* What the entry of the stage (-1: every entry) needs, with all that the text leaves out; in
 * the module's arena. */
Module *module_copy(const Module *m, int stage);
/* What its entries need, in another arena: but for the source text of messages (Module.file, .text)
 * it needs nothing of the first one's. */
Module *module_copy_to(Arena *mem, const Module *m);
/* A function's arguments alone, of that module but not in its list. */
Func *func_signature_to(Module *m, const Func *f);
/* A copy under a name of its own. */
Func *func_clone(const Func *f, const char *name, Role role);

/* print.c, parse.c, scan.c, verify.c */
char *module_print(Arena *mem, const Module *m);
/* By value id, of a function that it numbers: names as its text has them, each once. */
const char **func_spellings(Arena *mem, Func *f);
void type_print(Text *t, const Mesh *mesh, const Type *ty);
Module *module_parse(Arena *mem, const char *file, const char *text, size_t n);
Module *module_clone(Arena *mem, const Module *m);            /* through the text */
Type type_parse(Arena *mem, const Mesh *m, const char *text); /* "f32[8:dp,4]"; fails */
const char *type_text(Arena *mem, const Mesh *m, const Type *ty);
const Attr *attrs_parse(Arena *mem, const char *spec, const char *text); /* dies */
void module_verify(const Module *m, const char *file, const char *text); /* fail_at */

/* ---- the interpreter (interp.c, tensor.c): a module's meaning, on all ranks of its mesh ---- */

struct Tensor {
    Type ty;
    void *data;
};
struct Ref { /* what a reference kernel sees */
    const Op *op;
    Tensor **in, **out;
    int rank; /* of the mesh, in [0, nranks) */
    const Mesh *mesh;
    Tensor ***peers; /* operands of every rank; F_COMM only */
};
double tensor_get(const Tensor *t, int64_t i);
void tensor_set(Tensor *t, int64_t i, double v);
int64_t tensor_get_int(const Tensor *t, int64_t i);
Tensor *tensor_new(Arena *mem, const Type *ty);
/* Runs function `f` on every rank: arg[rank][i], ret[rank][i] (allocated in mem). At
 * level planned the values really live in the planned frames, and a result that
 * overwrites an argument is that argument. */
void interp_run(Arena *mem, const Func *f, Tensor ***arg, Tensor ***ret);
/* Runs the steps of all stages, which send each other messages: arg[stage][rank][i], by
 * stage the entry of that stage. Each goes on until it waits for a message that has not
 * been sent. Returns NULL, or where all wait for each other. */
const char *interp_run_stages(Arena *mem, const Module *m, Tensor ****arg,
                              Tensor ****ret);
/* The same of steps that need not be in one module: step[k] is that of stage k. */
typedef struct InterpStep {
    const Func *f;
    Tensor ***arg, ***ret; /* [rank][i] */
} InterpStep;
/* Sees every collective and every send when it is run, once for all ranks of its mesh. */
typedef struct InterpWatch {
    void (*op)(void *ctx, int stage, const Op *op);
    void *ctx;
} InterpWatch;
const char *interp_run_steps(Arena *mem, const InterpStep *step, int n,
                             const InterpWatch *watch /* or NULL */);

/* ---- what others ask about some ops (ops/embed.c, ops/map.c, ops/attention.c) ---- */

/* Words of the operand rng of ops with dropout, i32[RNG_WORDS]: the key of the step, the
 * same for all its micro-batches; the layer; the number of the micro-batch. */
enum { RNG_KEY, RNG_LAYER = 2, RNG_MICRO, RNG_WORDS };
/* Position of row i of t rows in zigzag order over n ranks (see `positions`); n = 0: i. */
int64_t zigzag_position(int64_t i, int64_t t, int64_t n);
/* The n angles of a step of a rope_table's positions to out (may be NULL), by its base or
 * its freqs; false when freqs are not n finite numbers. */
bool rope_frequencies(const Op *op, int64_t n, double *out);
#define NO_KEYS (-1e30f) /* log sum exp of a query that sees no key */
/* Type of the whole tensor that a dropout works on: attribute `of`, or the type of its
 * operand. Fails with EXIT_CONFIG when the operand is no part of it. */
Type dropout_whole(const Op *op);
/* Operands of the attention ops; ATTN_FIRST only of those within documents. Gradients have
 * o, lse and do after them. */
enum { ATTN_Q, ATTN_K, ATTN_V, ATTN_Q_AT, ATTN_K_AT, ATTN_RNG, ATTN_FIRST };
bool attention_is_within(const Op *op);
bool attention_is_grad(const Op *op);
/* Type of the whole probabilities, [batch, heads, queries, keys], split in batch and
 * heads alone: attribute `of`, or the op's own sizes. Fails with EXIT_CONFIG. */
Type attention_whole(const Op *op);

/* ---- parts (hooks of ops/ are called by passes/shard/localize.c) ---- */
struct Local {
    Builder b;         /* before op */
    Op *op;            /* the op on this rank's parts; a hook edits it */
    const Dims *d;     /* of the whole op */
    const Axes *split; /* by dimension id: axes that cut it */
    const Op *whole;   /* the op with global sizes and placements */
};
/* Index of the first element of this rank's part of dimension `id`, i32[]. */
Value *local_first(Local *l, int id);

/* ---- gradients (hooks of ops/ are called by passes/model/autodiff.c) ---- */
struct Grad {
    Builder b;
    Value *(*of)(Grad *, Value *v);          /* gradient of a result, NULL: none flows */
    void (*add)(Grad *, Value *v, Value *g); /* adds g to the gradient of an operand */
    bool (*wants)(Grad *, Value *v);         /* does anybody need the gradient of v? */
};

#endif
