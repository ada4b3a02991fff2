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
/* Ends and frees it: finds the object or compiles it, and declares the function, of nparams
 * pointers, to the program. Its name there is "stator.LABEL." and a hash. */
const char *piece_end(Lower *l, Emit *e, const char *label, int nparams);

#endif
