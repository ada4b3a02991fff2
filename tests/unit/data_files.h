/* data_files.h - for tests of sources of data: their files. */
#ifndef STATOR_TESTS_DATA_FILES_H
#define STATOR_TESTS_DATA_FILES_H
#include "../test.h"
#include "runtime/data/data.h"

static Arena *mem;

static char *put_file(const char *name, const void *bytes, size_t n) {
    if (!mem) mem = arena_new();
    char *path = path_join(mem, temp_dir(), name);
    EXPECT_INT(file_write_atomic(path, bytes, n), 0);
    return path;
}

#endif
