/* element.h - numbers as files hold them: of any plain type, little-endian, not aligned. */
#ifndef STATOR_ELEMENT_H
#define STATOR_ELEMENT_H
#include "base/base.h"
#include "base/dtype.h"

/* The number that so many bytes are, at most 8. */
static inline uint64_t little_endian(const void *p, int bytes) {
    const uint8_t *b = p;
    uint64_t v = 0;
    for (int i = bytes - 1; i >= 0; i--) v = v << 8 | b[i];
    return v;
}

typedef enum ElementKind {
    ELEMENT_FLOAT,
    ELEMENT_BF16,
    ELEMENT_INT,
    ELEMENT_UINT,
    ELEMENT_OTHER /* no plain number of whole bytes */
} ElementKind;

/* A type of the safetensors format. */
typedef struct ElementRow {
    const char *name; /* "F16" */
    int bits, dtype;  /* a DType, or -1: none of ours */
    ElementKind kind;
} ElementRow;
/* By name; NULL: the format has no such type. */
const ElementRow *element_row(const char *name);
const char *element_name(DType t);

typedef struct ElementType {
    ElementKind kind;
    int bytes;
} ElementType;

/* By safetensors' name ("F16", "BOOL"); false for one that is not a type of plain numbers. */
bool element_type_named(const char *name, ElementType *out);
/* The number at p as f32, rounded to it where it has more digits. */
float element_f32(ElementType t, const void *p);
/* The same of an integer; false for floats, and for what i64 cannot hold. */
bool element_i64(ElementType t, const void *p, int64_t *out);

#endif
