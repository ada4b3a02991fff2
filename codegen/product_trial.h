/* product_trial.h - how long each form of a product takes on this machine. */
#ifndef STATOR_PRODUCT_TRIAL_H
#define STATOR_PRODUCT_TRIAL_H
#include "codegen/product.h"
#include "codegen/target.h"

typedef struct ProductTrial {
    const char *form; /* the fastest; that of the rule unless another is clearly faster */
    double seconds, rule_seconds; /* of a run */
} ProductTrial;

typedef struct ProductTime {
    const char *form;
    double seconds; /* the least of some runs */
    bool wins; /* faster than the rule's in all rounds but one, not by one lucky run */
} ProductTime;

/* Runs all forms of the product that are there in turns, on operands of its size that no cache
 * holds all of, until `deadline` (clock_seconds). *n of them, at most PRODUCT_FORMS + 1, the
 * rule's first; one that is much slower than another is run once. False when there was no
 * time, or not memory enough. */
bool product_times(const Target *target, const ProductShape *s, double deadline,
                   ProductTime *time, int *n);
/* The choice from such times. */
bool product_try(const Target *target, const ProductShape *s, double deadline,
                 ProductTrial *out);

#endif
