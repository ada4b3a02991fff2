/* walk.h - a walk over all combinations of indices of some dimensions of a rule, with the
 * element offsets of every term. Used by the reference kernels. */
#ifndef STATOR_WALK_H
#define STATOR_WALK_H
#include "ir/ir.h"

typedef struct Walk {
    int n, nterms;
    int64_t size[MAX_DIMS], at[MAX_DIMS];
    int64_t stride[MAX_DIMS][MAX_TERMS];
    int64_t offset[MAX_TERMS]; /* element offset of each term at the present index */
} Walk;

/* A walk over the dimensions in `mask`, the last of them fastest. */
static inline Walk walk_over(const Dims *d, uint32_t mask) {
    Walk w = {.nterms = d->nin + d->nout};
    int64_t element_stride[MAX_TERMS][MAX_DIMS];
    for (int t = 0; t < w.nterms; t++) dims_strides(d, t, element_stride[t]);
    for (int id = 0; id < d->n; id++) {
        if (!(mask >> id & 1)) continue;
        w.size[w.n] = d->size[id];
        for (int t = 0; t < w.nterms; t++) w.stride[w.n][t] = element_stride[t][id];
        w.n++;
    }
    return w;
}

/* Steps to the next index; false after the last (the walk is then at its start again). */
static inline bool walk_next(Walk *w) {
    for (int k = w->n - 1; k >= 0; k--) {
        for (int t = 0; t < w->nterms; t++) w->offset[t] += w->stride[k][t];
        if (++w->at[k] < w->size[k]) return true;
        for (int t = 0; t < w->nterms; t++) w->offset[t] -= w->size[k] * w->stride[k][t];
        w->at[k] = 0;
    }
    return false;
}

/* Text of a rule made of terms; the last one is the result. */
static inline char *rule_text(Builder *b, int n, const Term *const *term) {
    Text t = text_new(b->mem);
    for (int i = 0; i < n; i++) {
        bool last = i == n - 1;
        if (last || i) text_add_bytes(&t, last ? "->" : ",", last ? 2 : 1);
        if (!term[i]->n) text_add_bytes(&t, "_", 1);
        for (int k = 0; k < term[i]->n; k++) {
            bool dots = term[i]->letter[k] == '.';
            text_add_bytes(&t, dots ? "..." : &term[i]->letter[k], dots ? 3 : 1);
        }
    }
    return t.s;
}
#define RULE_TEXT(b, ...)                                                                \
    rule_text((b), ARRAY_LEN(((const Term *[]){__VA_ARGS__})),                           \
              (const Term *[]){__VA_ARGS__})

/* g, shaped like `from`, summed down to the letters of `to`; g itself if they agree. */
static inline Value *sum_to(Builder *b, Value *g, const Term *from, const Term *to) {
    if (from->n == to->n && !memcmp(from->letter, to->letter, (size_t)to->n)) return g;
    return build1(b, OP_sum, RULE_TEXT(b, from, to), g, NULL);
}

#endif
