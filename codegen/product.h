/* product.h - a matrix product without its op: the shape, and the forms that code for it can
 * have. */
#ifndef STATOR_PRODUCT_H
#define STATOR_PRODUCT_H
#include "codegen/dnnl.h"
#include "codegen/pairs_matmul.h"
#include "codegen/product_choices.h"
#include "codegen/rows_matmul.h"

/* A product that generated code does; every byte of one counts when two are compared. */
typedef struct OwnProduct {
    int64_t few_rows; /* yes: rows, else pairs */
    RowsMatmul rows;
    PairsMatmul pairs;
} OwnProduct;

/* Code of one form: a oneDNN primitive, or what generated code is made from. */
typedef struct ProductCode {
    DnnlMatmul *matmul; /* NULL: generated */
    OwnProduct own;
    bool swapped; /* generated code runs c' = b' a' */
} ProductCode;

/* The most that there are besides that of the rule. */
enum { PRODUCT_FORMS = 10 };

/* All bytes 0, those between fields too: shapes are compared and hashed as bytes. */
ProductShape product_shape_clear(void);
/* All of it but the threads and tiles on a line: "f32 a[768,4096]:1,768 b[...". */
const char *product_shape_text(Arena *mem, const ProductShape *s);
/* Is it the name of a form, the rule's included? */
bool product_form_known(const char *form);
/* Names of the forms for lanes of `vl`, those that are the same for this shape once: product_rule
 * first. Some may not be there on this machine. Returns their number, at most PRODUCT_FORMS + 1. */
int product_forms(const ProductShape *s, int vl, const char **form);
/* Code of that form (NULL: product_rule) for lanes of `vl`. False, and a sentence in `why`,
 * when there is none on this machine. */
bool product_code_make(const ProductShape *s, const char *form, int vl, ProductCode *code,
                       char *why, size_t why_size);
enum { PRODUCT_PARAMS = 5 };
/* Emits  void name(ptr a, ptr b, ptr bias, ptr c, ptr workspace). */
void product_emit(Emit *e, const char *name, const OwnProduct *p);
int64_t product_workspace_bytes(const ProductCode *code, int vl);

#endif
