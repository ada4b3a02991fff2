/* piece.h - functions of a program that are compiled apart, as other programs have them too: each
 * is a module and an object of its own, kept under its IR. So another strategy, batch or number of
 * steps of a model compiles only what is new to this machine. */
#ifndef STATOR_PIECE_H
#define STATOR_PIECE_H
#include "codegen/lower.h"

/* The name of the function while it is emitted; what it calls of its own begins with it. */
#define PIECE_NAME "piece"

/* A module for the function PIECE_NAME, which is external and calls nothing but the runtime. */
Emit *piece_begin(Lower *l);
/* Ends it: finds the object, or leaves it to be compiled, and declares the function, of nparams
 * pointers, to the program. Its name there is "stator.LABEL." and a hash. */
const char *piece_end(Lower *l, Emit *e, const char *label, int nparams);
/* The objects of the program, *n of them, in l->mem: first that of `rest`, which has all but the
 * pieces, then theirs. Compiles what is not there on all threads. */
JitObject *pieces_compile(Lower *l, Emit *rest, int *n);

#endif
