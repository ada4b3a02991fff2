/* optab.c - the op table: a row of ops.def as data. It names the hooks of all ops, so it
 * is left out of the order of rooms. */
#include "ir/ir.h"

/* Declares every hook that the rows name. */
#define OP(name, ...) void ref_##name(const Ref *);
#define MAP           OP
#define COMPOSITE     OP
#include "ir/ops.def"
#undef OP
#undef MAP
#undef COMPOSITE

#define OP(...)        ROW(__VA_ARGS__)
#define MAP(...)       ROW(__VA_ARGS__)
#define COMPOSITE(...) ROW(__VA_ARGS__)
#define ROW(name, ...) {#name, __VA_ARGS__, .ref = ref_##name},
#include "ir/op_hooks.h"
const OpInfo optab[OP_COUNT] = {
#include "ir/ops.def"
};
#undef OP
#undef MAP
#undef COMPOSITE
