/* remake_spans.h - which layers of each chunk are made again, and what of them: the option
 * `remake` of the passes, as text.
 *     text   = chunk {"|" chunk}     one for each chunk of the model, or one for all of them
 *     chunk  = span {";" span}       its layers, in their order
 *     span   = [[count] ["x" together] ":"] policy
 *     "full"              all layers: their inputs alone are kept (policies: made_again.h)
 *     "2:full;norm,act"   the first two so; of the others these values are made again
 *     "2:full|0:full"     two of the first chunk, none of the second
 *     "x3:full"           three layers together: of three the first one's input is kept
 * A span without a count is the rest of the chunk, and so is what is behind the last span,
 * where nothing is made again. */
#ifndef STATOR_REMAKE_SPANS_H
#define STATOR_REMAKE_SPANS_H
#include "ir/ir.h"

typedef struct RemakeSpan {
    int64_t end;        /* layers of the model up to its end */
    int64_t together;   /* layers that are one piece; 1: each for itself */
    const char *policy; /* NULL: nothing is made again */
} RemakeSpan;

typedef struct RemakeSpans {
    RemakeSpan *span; /* ascending; the last ends with the model */
    int n, cap;
} RemakeSpans;

/* `layers`: of each chunk. Fails with EXIT_CONFIG. */
RemakeSpans remake_spans_parse(Arena *mem, const char *text, const int64_t *layers,
                               int chunks);
#endif
