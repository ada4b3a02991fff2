/* remake.h - what backward makes again instead of reading what forward kept: the attribute
 * `remake` of a call.
 *     "full"       all but the arguments of the function
 *     "selective"  what is between the queries, keys and values of attention and its result:
 *                  the results of ops that multiply and drop at once
 *     "h,n*"       values of these names; `*` stands for any letters
 * A value is made again from what is kept. What was kept for nobody but it would take the
 * memory that it saves: a product that is read by the addition of its bias alone is made
 * again with the sum, and so is a view. */
#ifndef STATOR_REMAKE_H
#define STATOR_REMAKE_H
#include "ir/ir.h"

const char *remake_of(const Op *call); /* NULL: nothing is said */

/* In w forward ops up to `last` are followed by those of backward: makes again before
 * those what they read of the values that `policy` names, and what is an argument behind the
 * first `carry` with its elements in other places. `grads`: further values that are read. */
void remake_values(Func *w, Op *last, int carry, const char *policy, Value **grads,
                   int ngrads);

/* The first name in the policy that names no value of f; NULL: there is none. *n: its
 * length. */
const char *remake_unknown(const Func *f, const char *policy, int *n);

#endif
