/* made_npy.h - for tests: .npy files as NumPy writes them. */
#ifndef STATOR_TESTS_MADE_NPY_H
#define STATOR_TESTS_MADE_NPY_H
#include "../test.h"
#include "base/base.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* each test uses some of it */

/* The bytes of a file of version 1.0 with this dictionary, padded as NumPy does. */
static Text npy_bytes(Arena *mem, const char *dictionary, const void *data, size_t n) {
    Text t = text_new(mem);
    size_t length = strlen(dictionary) + 1, padded = (10 + length + 63) / 64 * 64 - 10;
    unsigned char head[] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 0, 0};
    head[8] = (unsigned char)(padded & 255);
    head[9] = (unsigned char)(padded >> 8);
    text_add_bytes(&t, head, sizeof head);
    text_add(&t, "%s", dictionary);
    while (t.n < 10 + padded - 1) text_add(&t, " ");
    text_add(&t, "\n");
    text_add_bytes(&t, data, n);
    return t;
}

/* shape: "(8, 6)" or "(8,)". */
static void npy_write(const char *path, const char *descr, const char *shape,
                      const void *data, size_t n) {
    Arena *mem = arena_new();
    Text t = npy_bytes(mem,
                       arena_printf(mem,
                                    "{'descr': '%s', 'fortran_order': False, 'shape': "
                                    "%s, }",
                                    descr, shape),
                       data, n);
    EXPECT_INT(file_write_atomic(path, t.s, t.n), 0);
    arena_free(mem);
}

#endif
