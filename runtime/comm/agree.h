/* agree.h - do all ranks have the same (configuration, files, ...)? What a rank finds on
 * its host's disk must not decide what it does: others might find something else. So
 * either rank 0 decides and sends its decision (comm_broadcast_text), or all look and
 * compare. All ranks call these functions together; with one rank they send nothing. */
#ifndef STATOR_AGREE_H
#define STATOR_AGREE_H
#include "base/base.h"

/* Where the texts differ all ranks end with EXIT_CONFIG, and each rank that has another
 * text than rank 0 says which line is the first to differ: "ranks disagree on the WHAT:
 * rank 1 on HOST has 'threads 2', rank 0 has 'threads 1'; REMEDY". */
void agree_on(Arena *mem, const char *what, const char *text, const char *remedy);
/* The same of what the ranks of a stage have: with that of the first of them. */
void agree_in_stage(Arena *mem, const char *what, const char *text, const char *remedy);
/* The same for what was read from `path`: the remedy is to copy it to the other host. */
void agree_on_file(Arena *mem, const char *what, const char *text, const char *path);

/* Runs look(context), which reads files and may fail, but sends nothing to other ranks.
 * If it fails on some ranks, all end: those with their failure, and a line that says on
 * which host it does not fail. */
void agree_look(void (*look)(void *), void *context);

/* Rank 0 alone runs look(context), for all; where that fails all ranks do, with its message. */
void agree_with_rank_0(Arena *mem, void (*look)(void *), void *context);

#endif
