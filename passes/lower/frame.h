/* frame.h - where the buffers of a function go in its frame. For memplan.c. */
#ifndef STATOR_FRAME_H
#define STATOR_FRAME_H
#include "ir/ir.h"

/* A stack of which each run of a loop reads a slice for the last time, or writes one. */
typedef struct Stack {
    const Op *loop; /* NULL: it is none */
    bool written;   /* else read */
    int64_t slice_bytes, times;
    bool reverse; /* the last slice first */
} Stack;

typedef struct FrameBuffer {
    int nth; /* decides between equals: the plan is the same on every rank */
    int64_t bytes, offset;
    int first, last; /* op ids, inclusive; last = nops for results */
    Op *workspace_of;
    Stack stack;
    struct FrameBuffer
        *partner; /* the stack that may lie partly over this one; frame.c's */
    bool placed;  /* frame.c's */
} FrameBuffer;

/* Gives each of n buffers an offset so that no bytes are used twice at one time; returns the
 * bytes of the frame. A stack that a loop writes may lie over one that it reads, as far as each
 * run writes only where no later run reads. */
int64_t frame_pack(Arena *mem, FrameBuffer **all, int n);
/* May the loop write `w` at `to` while it reads `r` at `from`, both whole stacks? For checks. */
bool frame_slices_pass(const Stack *r, int64_t from, const Stack *w, int64_t to);

#endif
