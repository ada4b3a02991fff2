/* piece.c - see piece.h. */
#include "codegen/piece.h"
#include "codegen/kept.h"
#include "runtime/core/rt.h"

Emit *piece_begin(Lower *l) {
    return emit_new(l->mem, PIECE_NAME, l->vl, l->target->cpu, l->target->features);
}

static void rename_functions(Lower *l, const Emit *e, const char *name) {
    const size_t known = strlen(PIECE_NAME);
    for (LLVMValueRef f = LLVMGetFirstFunction(e->mod); f; f = LLVMGetNextFunction(f)) {
        size_t n;
        const char *old = LLVMGetValueName2(f, &n);
        if (LLVMIsDeclaration(f) || strncmp(old, PIECE_NAME, known)) continue;
        const char *to = arena_printf(l->mem, "%s%s", name, old + known);
        LLVMSetValueName2(f, to, strlen(to));
    }
}

static bool is_there(const Lower *l, const char *name) {
    for (int i = 0; i < l->npieces; i++)
        if (!strcmp(l->piece[i].name, name)) return true;
    return false;
}

static void add_piece(Lower *l, Emit *e, const char *name, const char *key) {
    Piece p = {.name = name};
    memcpy(p.key, key, sizeof p.key);
    if (!l->kept_no_more) p.object.bytes = cache_get(l->mem, key, &p.object.n);
    if (p.object.bytes) {
        emit_free(e);
    } else {
        rename_functions(l, e, name);
        p.code = e;
    }
    PUSH(l->mem, l->piece, l->npieces, l->piece_cap, p);
}

const char *piece_end(Lower *l, Emit *e, const char *label, int nparams) {
    char key[CACHE_KEY_CHARS];
    LLVMSetLinkage(LLVMGetNamedFunction(e->mod, PIECE_NAME), LLVMExternalLinkage);
    kept_key(l->compiler, label, e->mod, key);
    const char *name = arena_printf(l->mem, "stator.%s.%.16s", label, key);
    if (is_there(l, name))
        emit_free(e);
    else
        add_piece(l, e, name, key);
    LLVMTypeRef *params = NEW_ARRAY(l->mem, LLVMTypeRef, (size_t)nparams);
    for (int i = 0; i < nparams; i++) params[i] = l->e->ptr;
    emit_extern(l->e, name, l->e->void_, params, nparams);
    return name;
}

/* ---- compiling: modules share nothing, so each thread takes the next one ---- */

enum { LANES_MOST = 8 };

typedef struct Compiling {
    Emit **code;
    Object **object;
    int n;
    _Atomic int next;
    Target *target[LANES_MOST];
} Compiling;

static void compile_some(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    Compiling *c = ctx;
    (void)thread;
    for (int64_t lane = begin; lane < end; lane++)
        for (int i; (i = c->next++) < c->n;)
            c->object[i] = jit_compile(c->target[lane], c->code[i]->mod, NULL);
}

static void compile_all(const Lower *l, Compiling *c) {
    int lanes = MIN(MIN(c->n, rt_threads()), LANES_MOST);
    for (int i = 0; i < lanes; i++) c->target[i] = i ? target_copy(l->target) : l->target;
    rt_parallel(lanes, compile_some, c);
    for (int i = 1; i < lanes; i++) target_close(c->target[i]);
}

static void take(Lower *l, Piece *p, Object *made) {
    p->object =
        (JitObject){memcpy(arena_alloc(l->mem, made->n), made->bytes, made->n), made->n};
    object_free(made);
    if (p->key[0]) cache_put(p->key, p->object.bytes, p->object.n);
}

/* The program without its pieces, whose object is kept as theirs are: for another build, which
 * lowers it to the same. */
static Piece rest_of(Lower *l, Emit *rest) {
    Piece p = {.code = rest};
    kept_key(l->compiler, "", rest->mod, p.key);
    if (!l->kept_no_more) p.object.bytes = cache_get(l->mem, p.key, &p.object.n);
    if (p.object.bytes) p.code = NULL;
    return p;
}

JitObject *pieces_compile(Lower *l, Emit *rest, int *n) {
    int count = *n = l->npieces + 1;
    Piece first = rest_of(l, rest), **piece = NEW_ARRAY(l->mem, Piece *, (size_t)count);
    Compiling c = {.code = NEW_ARRAY(l->mem, Emit *, (size_t)count),
                   .object = NEW_ARRAY(l->mem, Object *, (size_t)count)};
    JitObject *all = NEW_ARRAY(l->mem, JitObject, (size_t)count);
    for (int i = 0; i < count; i++) {
        piece[i] = i ? &l->piece[i - 1] : &first;
        if (piece[i]->code) c.code[c.n++] = piece[i]->code;
    }
    compile_all(l, &c);
    for (int i = 0, next = 0; i < count; i++) {
        if (piece[i]->code) take(l, piece[i], c.object[next++]);
        if (i && piece[i]->code) emit_free(piece[i]->code);
        piece[i]->code = NULL;
        all[i] = piece[i]->object;
    }
    return all;
}
