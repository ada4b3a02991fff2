/* feed.h - what of a batch an argument of a step is given, and the part of it that a rank gets. */
#ifndef STATOR_FEED_H
#define STATOR_FEED_H
#include "frontend/model/job.h"
#include "ir/layout.h"

typedef struct FeedSource {
    int column;     /* of the batch; -1: one of the arrays of tokens */
    size_t array;   /* offset of that array in DataBatch */
    int64_t sample; /* elements of a sample, of 4 bytes */
} FeedSource;

/* That of argument i of the step; false: it is given nothing of a batch. */
bool feed_source(const Job *j, const Func *f, int i, FeedSource *s);
const int32_t *feed_array(const FeedSource *s, const DataBatch *b);
/* Copies the rank's part of samples that lie in zigzag order (ring > 0) or as they are (0). */
void feed_part(const Layout *l, int rank, int64_t ring, int64_t sample,
               const int32_t *from, int32_t *to);

#endif
