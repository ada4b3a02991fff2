/* file_map.h - files mapped for reading, with a guard against their being cut short. */
#ifndef STATOR_FILE_MAP_H
#define STATOR_FILE_MAP_H
#include "base/base.h"

/* A missing, unreadable or irregular one file is an EXIT_DATA. */
typedef struct FileMap {
    const unsigned char *bytes;
    uint64_t n;
} FileMap;
void file_map(FileMap *map, const char *path);
/* Says why not in why[n] instead of failing. */
bool file_map_quietly(FileMap *map, const char *path, char *why, size_t n);
void file_unmap(FileMap *map);

/* Number i of a table in the bytes of a file, little-endian, maybe unaligned. */
static inline int64_t i64_at(const void *table, int64_t i) {
    int64_t v;
    memcpy(&v, (const char *)table + 8 * i, sizeof v);
    return v;
}
static inline uint64_t u64_at(const void *p) {
    return (uint64_t)i64_at(p, 0);
}

#endif
