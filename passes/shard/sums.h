/* sums.h - the type in which ranks add up their parts of a value. */
#ifndef STATOR_SUMS_H
#define STATOR_SUMS_H
#include "passes/passes.h"

/* Of value v of f, at level diffed or sharded: f32 at least, but of what was rounded so that its
 * parts may be (`parts` of cast), and with the option round_sums of what is rounded to the type
 * narrow before or behind the sum in any case. */
DType sum_over_ranks(const Func *f, const Value *v, const PassOptions *o);

#endif
