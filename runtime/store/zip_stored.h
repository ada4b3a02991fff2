/* zip_stored.h - the entries of a zip archive in memory, for files that only store
 * (PyTorch's weights): what is compressed, encrypted or split over files is refused. The
 * layout is that of PKWARE's APPNOTE 6.3.10, with its zip64 records. */
#ifndef STATOR_ZIP_STORED_H
#define STATOR_ZIP_STORED_H
#include "base/base.h"

typedef struct ZipEntry {
    const char *name;
    const uint8_t *data;
    uint64_t bytes;
} ZipEntry;

typedef struct ZipStored {
    int n;
    ZipEntry *e; /* sorted by name */
} ZipStored;

/* NULL and *zip, or the reason, with the offset in the file. Every entry lies inside the
 * bytes, no two share a name or a byte. Checksums are not read: they would cost a pass
 * over all weights. */
const char *zip_stored_try(Arena *mem, const uint8_t *bytes, uint64_t n, ZipStored *zip);
/* NULL when missing. O(log n). */
const ZipEntry *zip_stored_find(const ZipStored *zip, const char *name);

#endif
