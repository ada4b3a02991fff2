/* same.c - do attributes, or whole functions, say the same? */
#include "passes/passes.h"

bool attr_equal_but_int(const Attr *a, const Attr *b) {
    if (strcmp(a->key, b->key) || a->kind != b->kind) return false;
    if (memcmp(&a->f, &b->f, sizeof a->f)) return false; /* -0 is not 0 */
    if (a->s && strcmp(a->s, b->s)) return false;
    return !a->rule || !strcmp(a->rule->text, b->rule->text);
}

bool attrs_equal(const Attr *a, const Attr *b) {
    for (; a && b; a = a->next, b = b->next)
        if (!attr_equal_but_int(a, b) || a->i != b->i) return false;
    return !a && !b;
}

static uint64_t mix(uint64_t h, uint64_t x) {
    return (h ^ x) * 0x9e3779b97f4a7c15u;
}

uint64_t func_hash(Func *f) {
    func_number(f);
    uint64_t h = mix((uint64_t)f->narg, (uint64_t)f->nret);
    for (int i = 0; i < f->narg; i++) h = mix(h, (uint64_t)type_count(&f->arg[i]->ty));
    for (const Op *op = f->first; op; op = op->next) {
        h = mix(h, (uint64_t)op->kind);
        for (int i = 0; i < op->nin; i++) h = mix(h, (uint64_t)op->in[i]->id);
    }
    for (int i = 0; i < f->nret; i++) h = mix(h, (uint64_t)f->ret[i]->id);
    return h ^ h >> 32;
}

static bool values_same(const Value *a, const Value *b) {
    return a->id == b->id && type_equal(&a->ty, &b->ty) && a->loc.kind == b->loc.kind &&
           a->loc.at == b->loc.at;
}

static bool ops_same(const Op *a, const Op *b) {
    if (a->kind != b->kind || a->nin != b->nin || a->nout != b->nout) return false;
    for (int i = 0; i < a->nin; i++)
        if (a->in[i]->id != b->in[i]->id) return false;
    for (int i = 0; i < a->nout; i++)
        if (!values_same(a->out[i], b->out[i])) return false;
    return attrs_equal(a->attr, b->attr);
}

static bool ends_same(const Func *a, const Func *b) {
    for (int i = 0; i < a->narg; i++)
        if (!values_same(a->arg[i], b->arg[i]) ||
            !attrs_equal(a->arg_attr[i], b->arg_attr[i]))
            return false;
    for (int i = 0; i < a->nret; i++)
        if (a->ret[i]->id != b->ret[i]->id || a->alias[i] != b->alias[i]) return false;
    return true;
}

bool funcs_same(Func *a, Func *b) {
    func_number(a);
    func_number(b);
    if (a->role != b->role || a->narg != b->narg || a->nret != b->nret ||
        a->nops != b->nops || a->nvalues != b->nvalues || a->task != b->task ||
        a->chunk != b->chunk || a->frame_bytes != b->frame_bytes)
        return false;
    if (!ends_same(a, b)) return false;
    const Op *x = a->first, *y = b->first;
    while (x && y && ops_same(x, y)) x = x->next, y = y->next;
    return !x && !y;
}

Func *func_set_take(FuncSet *s, Func *f) {
    uint64_t hash = func_hash(f);
    for (int i = 0; i < s->n; i++)
        if (s->hash[i] == hash && funcs_same(s->f[i], f)) return s->f[i];
    int n = s->n;
    PUSH(s->mem, s->hash, n, s->hash_cap, hash);
    PUSH(s->mem, s->f, s->n, s->f_cap, f);
    return f;
}
