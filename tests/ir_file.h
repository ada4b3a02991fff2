/* ir_file.h - programs of tests/ir. */
#ifndef STATOR_TEST_IR_FILE_H
#define STATOR_TEST_IR_FILE_H
#include "ir/ir.h"
#include "test.h"

static inline Module *ir_file(Arena *mem, const char *name) {
    size_t n;
    const char *path = arena_printf(mem, "%s/ir/%s", tests_dir(), name);
    char *text = file_read(mem, path, 1 << 20, &n, EXIT_DATA);
    return module_parse(mem, path, text, n);
}

#endif
