/* agree.h - do all ranks have the same (configuration, files, ...)? What a rank finds on
 * its host's disk must not decide what it does: others might find something else. So
 * either rank 0 decides and tells (comm_broadcast_text), or all look and compare. All
 * functions are for all ranks at once; with one rank they say nothing. */
#ifndef STATOR_AGREE_H
#define STATOR_AGREE_H
#include "base/base.h"

/* Where the texts differ all ranks end with EXIT_CONFIG, and each rank that has another
 * text than rank 0 says which line is the first to differ: "ranks disagree on the WHAT:
 * rank 1 on HOST has 'threads 2', rank 0 has 'threads 1'; REMEDY". */
void agree_on(Arena *mem, const char *what, const char *text, const char *remedy);
/* The same of what the ranks of a stage have: with that of the first of them. */
void agree_in_stage(Arena *mem, const char *what, const char *text, const char *remedy);
/* The same of what was read from `path`: the remedy is to copy it to the other host. */
void agree_on_file(Arena *mem, const char *what, const char *text, const char *path);

/* Runs look(context), which reads files and may fail, but says nothing to other ranks.
 * Where it fails on some ranks all end: those with their failure, and with a line that
 * says on which host it does not fail. */
void agree_look(void (*look)(void *), void *context);

#endif
