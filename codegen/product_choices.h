/* product_choices.h - which form each matrix product of a program has. A choice is a line of
 * text: the form, its nanoseconds and those of the rule's form, and the shape. A run takes the
 * choices of the run that it goes on from; else those of this machine's file, which is next to
 * the compiled objects (cache.h); what that lacks is measured, and added to it; what nobody
 * measures has the form of a fixed rule. */
#ifndef STATOR_PRODUCT_CHOICES_H
#define STATOR_PRODUCT_CHOICES_H
#include "base/base.h"

struct ProductShape;
struct Target;
/* Name of the form that a fixed rule chooses. */
extern const char product_rule[];

typedef struct ProductChoice {
    const char *form, *shape;
    double seconds, rule_seconds; /* 0: not measured */
} ProductChoice;

typedef struct ProductChoices {
    /* asked for */
    Arena *mem;
    double limit_seconds; /* that measuring may take in all; 0: nothing is measured */
    bool together;        /* all ranks of a run decide at once: rank 0 for all */
    const char *given;    /* of rank 0: the text of a run that is gone on with; or NULL */
    const char *given_from; /* where from, for messages */
    /* found */
    ProductChoice *item; /* of every product of the programs so far, of all ranks */
    int n, cap;
    double spent_seconds;
    const char *machine; /* what they were measured on */
} ProductChoices;

/* Adds those of these shapes that are not there yet. `threads`: of a rank. Says on stderr what
 * it measures, and what of `given` it cannot keep. */
void product_choices_add(ProductChoices *c, const struct ProductShape *shape, int n,
                         const struct Target *target, int threads);
/* The form of a shape that was added; NULL: the rule's. */
const char *product_choices_form(const ProductChoices *c, const char *shape);
/* All of them as a text that `given` takes. */
const char *product_choices_print(Arena *mem, const ProductChoices *c);

#endif
