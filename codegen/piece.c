/* piece.c - see piece.h. */
#include "codegen/piece.h"
#include "codegen/cache.h"
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

static JitObject compiled(Lower *l, Emit *e, const char *name, const char *key) {
    JitObject o = {0};
    if (!l->no_cache) o.bytes = cache_get(l->mem, key, &o.n);
    if (o.bytes) return o;
    rename_functions(l, e, name);
    Object *made = jit_compile(l->target, e->mod, NULL);
    if (!l->no_cache) cache_put(key, made->bytes, made->n);
    o.bytes = memcpy(arena_alloc(l->mem, made->n), made->bytes, made->n);
    o.n = made->n;
    object_free(made);
    return o;
}

static bool is_there(const Lower *l, const char *name) {
    for (int i = 0; i < l->npieces; i++)
        if (!strcmp(l->piece[i].name, name)) return true;
    return false;
}

const char *piece_end(Lower *l, Emit *e, const char *label, int nparams) {
    char key[CACHE_KEY_CHARS];
    LLVMSetLinkage(LLVMGetNamedFunction(e->mod, PIECE_NAME), LLVMExternalLinkage);
    key_of(l, e, label, key);
    const char *name = arena_printf(l->mem, "stator.%s.%.16s", label, key);
    if (!is_there(l, name)) {
        Piece p = {name, compiled(l, e, name, key)};
        PUSH(l->mem, l->piece, l->npieces, l->piece_cap, p);
    }
    emit_free(e);
    LLVMTypeRef *params = NEW_ARRAY(l->mem, LLVMTypeRef, (size_t)nparams);
    for (int i = 0; i < nparams; i++) params[i] = l->e->ptr;
    emit_extern(l->e, name, l->e->void_, params, nparams);
    return name;
}
