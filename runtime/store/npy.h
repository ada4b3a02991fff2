/* npy.h - reading NumPy's .npy files: magic, version, header length, a Python dictionary
 * {'descr': '<f4', 'fortran_order': False, 'shape': (8, 6), }, then the elements. Format:
 * numpy.lib.format of NumPy, versions 1.0 to 3.0. */
#ifndef STATOR_NPY_H
#define STATOR_NPY_H
#include "base/base.h"

enum { NPY_MAX_RANK = 8 };

typedef struct Npy {
    char kind;         /* 'f', 'i', 'u' or 'b' (bool) */
    int element_bytes; /* 1, 2, 4 or 8 */
    int rank;
    int64_t dim[NPY_MAX_RANK];
    const unsigned char *data; /* row-major, little-endian, not aligned */
} Npy;

/* Reads the `n` bytes of a file; data leads into them. NULL when all is well, else a
 * sentence with what is wrong and what to write instead. Every element is inside. */
const char *npy_parse(Arena *mem, const void *bytes, uint64_t n, Npy *out);

#endif
