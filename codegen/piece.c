/* piece.c - see piece.h. */
#include "codegen/piece.h"
#include "runtime/core/rt.h"
#include <llvm-c/BitWriter.h>

Emit *piece_begin(Lower *l) {
    return emit_new(l->mem, PIECE_NAME, l->vl, l->target->cpu, l->target->features);
}

/* All that the object depends on: the module before any pass over it, and who compiles it how. */
static void key_of(const Lower *l, const Emit *e, const char *label,
                   char key[CACHE_KEY_CHARS]) {
    LLVMMemoryBufferRef code = LLVMWriteBitcodeToMemoryBuffer(e->mod);
    Text t = text_new(l->mem);
    text_add(&t, "%spiece %s\n", l->compiler, label);
    text_add_bytes(&t, LLVMGetBufferStart(code), LLVMGetBufferSize(code));
    cache_key(t.s, t.n, key);
    LLVMDisposeMemoryBuffer(code);
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
    if (!l->no_cache) p.object.bytes = cache_get(l->mem, key, &p.object.n);
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
    key_of(l, e, label, key);
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

static JitObject taken(Lower *l, Object *made) {
    JitObject o = {memcpy(arena_alloc(l->mem, made->n), made->bytes, made->n), made->n};
    object_free(made);
    return o;
}

JitObject *pieces_compile(Lower *l, Emit *rest, int *n) {
    size_t most = (size_t)l->npieces + 1;
    Compiling c = {.code = NEW_ARRAY(l->mem, Emit *, most),
                   .object = NEW_ARRAY(l->mem, Object *, most)};
    JitObject *all = NEW_ARRAY(l->mem, JitObject, most);
    c.code[c.n++] = rest;
    for (int i = 0; i < l->npieces; i++)
        if (l->piece[i].code) c.code[c.n++] = l->piece[i].code;
    compile_all(l, &c);
    all[0] = taken(l, c.object[0]);
    for (int i = 0, next = 1; i < l->npieces; i++) {
        Piece *p = &l->piece[i];
        if (p->code) {
            p->object = taken(l, c.object[next++]);
            if (!l->no_cache) cache_put(p->key, p->object.bytes, p->object.n);
            emit_free(p->code);
            p->code = NULL;
        }
        all[i + 1] = p->object;
    }
    *n = l->npieces + 1;
    return all;
}
