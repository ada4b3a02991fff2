/* made_again.h - what backward makes again instead of reading what forward kept: the attribute
 * `remake` of a call.
 *     "full"       all but the arguments of the function
 *     "selective"  what is between the queries, keys and values of attention and its result:
 *                  the results of ops that multiply and drop at once
 *     "h,n*"       values of these names; `*` stands for any letters
 *     "full,-h"    not those of this name
 * With `elementwise` backward also makes again, whatever the policy, what elementwise ops and
 * norms make of nothing but values that are kept: that costs next to nothing.
 * A value is made again from what is kept. What was kept for nobody but it would take the
 * memory that it saves: a product that is read by the addition of its bias alone is made
 * again with the sum, and so is a view. */
#ifndef STATOR_MADE_AGAIN_H
#define STATOR_MADE_AGAIN_H
#include "ir/ir.h"

const char *made_again_policy(const Op *call); /* NULL: nothing is said */

/* In w forward ops up to `last` are followed by those of backward, which also gives
 * `grads`; the first `carry` arguments are those that a loop changes. */
typedef struct LayerSeen {
    Func *w;
    Op *last;
    int carry;
    Value **grads;
    int ngrads;
    bool elementwise; /* option remake_elementwise */
} LayerSeen;

/* Makes again before backward what it reads of the values that `policy` names, and what is
 * an argument that no run changes, with its elements in other places or rounded. */
void make_again(const LayerSeen *layer, const char *policy);
/* By op id (func_number): would backward do it again? kept: by value id, is it kept for backward
 * or for what is made again? */
bool *made_again_ops(Arena *mem, const LayerSeen *layer, const char *policy, bool **kept);

/* Calls in forward of functions that save what nobody reads, since all of it is made again,
 * become calls of the functions that those were made of. */
void make_plain_calls(Func *forward);

bool made_again_same(const char *a, const char *b); /* equal policies, or none */
/* Has f a value of the name that the policy begins with? Words that are no names ("full",
 * "-h") are true. */
bool made_again_names(const Func *f, const char *policy);
bool made_again_selects(const Func *f);          /* has f what "selective" is about? */
const char *made_again_next(const char *policy); /* behind its first word */

#endif
