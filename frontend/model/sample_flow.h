/* sample_flow.h - which sample of the batch an element of a model's value is of, and whether it
 * depends on others too: as the rules of the ops say, through functions and loops. */
#ifndef STATOR_SAMPLE_FLOW_H
#define STATOR_SAMPLE_FLOW_H
#include "ir/ir.h"

typedef enum SampleOwner {
    OWNER_NONE,    /* no sample is read: the same for every batch */
    OWNER_BATCH,   /* all samples went into it, and none has a part to itself */
    OWNER_UNKNOWN, /* it reads samples in an order that is not followed */
    OWNER_SAMPLE   /* element e is of sample e / stride % batch */
} SampleOwner;

typedef struct SampleFlow {
    SampleOwner owner;
    int64_t stride; /* OWNER_SAMPLE */
    /* By which elements depend on other samples too, or may; NULL: none do, or it is the
     * argument that counts the labels of all. */
    const Op *mixes;
} SampleFlow;

/* Of the values of a model (level global), by their ids: it numbers the function, in which
 * nothing may change while they are used. Samples are the arguments that job_is_sample names;
 * dimension 0 of each is the batch. */
const SampleFlow *sample_flow(Arena *mem, Func *model);
/* Are the elements of each sample one after the other, in the order of the samples? */
bool sample_flow_in_rows(const SampleFlow *s, const Value *v, int64_t batch);

#endif
