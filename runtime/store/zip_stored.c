/* zip_stored.c - see zip_stored.h. */
#include "runtime/store/zip_stored.h"
#include "runtime/store/element.h"
#include <stdlib.h>

enum {
    END_BYTES = 22,       /* end of central directory, without its comment */
    LOCATOR_BYTES = 20,   /* of zip64: where its end record is */
    END64_BYTES = 56,     /* end of central directory of zip64 */
    CENTRAL_BYTES = 46,   /* an entry of the directory, without name, extra, comment */
    LOCAL_BYTES = 30,     /* a local header, without name and extra */
    MAX_COMMENT = 0xFFFF, /* bytes */
    ZIP64_FIELDS = 1,     /* id of the extra field */
    FLAG_ENCRYPTED = 1
};
#define SIGN_END     0x06054b50u
#define SIGN_LOCATOR 0x07064b50u
#define SIGN_END64   0x06064b50u
#define SIGN_CENTRAL 0x02014b50u
#define SIGN_LOCAL   0x04034b50u
#define IN_ZIP64     0xFFFFFFFFu

typedef struct Zip {
    Arena *mem;
    const uint8_t *bytes;
    uint64_t n;
    uint64_t count, directory, directory_bytes;
} Zip;

static bool inside(const Zip *z, uint64_t at, uint64_t bytes) {
    return at <= z->n && bytes <= z->n - at;
}

static const char *wrong_at(const Zip *z, uint64_t at, const char *what) {
    return arena_printf(z->mem, "at byte %llu: %s", (unsigned long long)at, what);
}

/* ---- the end of the file ---- */

static const char *read_end64(Zip *z, uint64_t end) {
    if (end < LOCATOR_BYTES ||
        little_endian(z->bytes + end - LOCATOR_BYTES, 4) != SIGN_LOCATOR)
        return wrong_at(z, end, "a zip64 archive without the record that says where");
    uint64_t at = little_endian(z->bytes + end - LOCATOR_BYTES + 8, 8);
    if (!inside(z, at, END64_BYTES) || little_endian(z->bytes + at, 4) != SIGN_END64)
        return wrong_at(z, end - LOCATOR_BYTES, "names no end record of zip64");
    z->count = little_endian(z->bytes + at + 32, 8);
    z->directory_bytes = little_endian(z->bytes + at + 40, 8);
    z->directory = little_endian(z->bytes + at + 48, 8);
    return NULL;
}

static const char *read_end(Zip *z) {
    if (z->n < END_BYTES) return "too short for a zip archive (was it cut off?)";
    uint64_t at = z->n - END_BYTES;
    uint64_t first = at > MAX_COMMENT ? at - MAX_COMMENT : 0;
    for (;; at--) {
        const uint8_t *p = z->bytes + at;
        if (little_endian(p, 4) == SIGN_END &&
            little_endian(p + 20, 2) == z->n - at - END_BYTES)
            break;
        if (at == first)
            return "has no directory of a zip archive at its end (was it cut off?)";
    }
    const uint8_t *p = z->bytes + at;
    if (little_endian(p + 4, 2) != little_endian(p + 6, 2))
        return wrong_at(z, at, "an archive in several files");
    z->count = little_endian(p + 10, 2);
    z->directory_bytes = little_endian(p + 12, 4);
    z->directory = little_endian(p + 16, 4);
    bool far =
        z->count == 0xFFFF || z->directory == IN_ZIP64 || z->directory_bytes == IN_ZIP64;
    const char *wrong = far ? read_end64(z, at) : NULL;
    if (wrong) return wrong;
    if (!inside(z, z->directory, z->directory_bytes))
        return wrong_at(z, at, "a directory outside of the file");
    return z->count > z->directory_bytes / CENTRAL_BYTES
               ? wrong_at(z, at, "more entries than its directory has bytes for")
               : NULL;
}

/* ---- an entry ---- */

/* What the directory says of an entry, the numbers of zip64 taken in. */
typedef struct Central {
    uint64_t stored, bytes, local;
} Central;

/* Sizes and place of ~0 are in the extra field instead, in this order. */
static const char *read_extra64(const uint8_t *p, uint64_t n, Central *c) {
    uint64_t *field[] = {&c->bytes, &c->stored, &c->local};
    for (uint64_t at = 0; at + 4 <= n;) {
        uint64_t id = little_endian(p + at, 2), size = little_endian(p + at + 2, 2);
        at += 4;
        if (size > n - at) return "an extra field that is cut off";
        for (uint64_t i = 0, from = at; i < 3 && id == ZIP64_FIELDS; i++) {
            if (*field[i] != IN_ZIP64) continue;
            if (from + 8 > at + size) return "a zip64 field that is cut off";
            *field[i] = little_endian(p + from, 8);
            from += 8;
        }
        at += size;
    }
    return NULL;
}

/* Data begin behind the local header, which has its own name and extra field. */
static const char *read_local(const Zip *z, const Central *c, const uint8_t *name,
                              uint64_t name_bytes, ZipEntry *e) {
    if (!inside(z, c->local, LOCAL_BYTES)) return "an entry outside of the file";
    const uint8_t *p = z->bytes + c->local;
    if (little_endian(p, 4) != SIGN_LOCAL) return "an entry without its header";
    uint64_t names = little_endian(p + 26, 2), extra = little_endian(p + 28, 2);
    uint64_t data = c->local + LOCAL_BYTES + names + extra;
    if (names != name_bytes || !inside(z, c->local + LOCAL_BYTES, names) ||
        memcmp(p + LOCAL_BYTES, name, names))
        return "an entry whose header has another name than the directory";
    if (!inside(z, data, c->bytes) || data + c->bytes > z->directory)
        return "an entry that reaches beyond the data";
    e->data = z->bytes + data;
    e->bytes = c->bytes;
    return NULL;
}

static const char *read_central(const Zip *z, uint64_t *at, ZipEntry *e) {
    uint64_t left = z->directory + z->directory_bytes - *at;
    const uint8_t *p = z->bytes + *at;
    if (left < CENTRAL_BYTES || little_endian(p, 4) != SIGN_CENTRAL)
        return "no entry of the directory, where one is expected";
    uint64_t name = little_endian(p + 28, 2), extra = little_endian(p + 30, 2);
    uint64_t size = CENTRAL_BYTES + name + extra + little_endian(p + 32, 2);
    if (size > left) return "an entry of the directory that is cut off";
    Central c = {little_endian(p + 20, 4), little_endian(p + 24, 4),
                 little_endian(p + 42, 4)};
    const char *wrong = read_extra64(p + CENTRAL_BYTES + name, extra, &c);
    if (wrong) return wrong;
    if (little_endian(p + 8, 2) & FLAG_ENCRYPTED) return "an encrypted entry";
    if (little_endian(p + 10, 2) != 0)
        return "a compressed entry; PyTorch stores them as they are";
    if (c.stored != c.bytes) return "an entry with two sizes";
    if (!name || memchr(p + CENTRAL_BYTES, 0, name)) return "an entry without a name";
    wrong = read_local(z, &c, p + CENTRAL_BYTES, name, e);
    if (wrong) return wrong;
    e->name = arena_strndup(z->mem, (const char *)p + CENTRAL_BYTES, name);
    *at += size;
    return NULL;
}

/* ---- all ---- */

static int compare_data(const void *a, const void *b) {
    const ZipEntry *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int compare_name(const void *a, const void *b) {
    return strcmp(((const ZipEntry *)a)->name, ((const ZipEntry *)b)->name);
}

static const char *check_apart(const Zip *z, ZipStored *zip) {
    ZipEntry *e = zip->e;
    if (zip->n > 1) qsort(e, (size_t)zip->n, sizeof *e, compare_data);
    for (int i = 1; i < zip->n; i++)
        if (e[i - 1].data + e[i - 1].bytes > e[i].data)
            return arena_printf(z->mem, "entries '%.100s' and '%.100s' share bytes",
                                e[i - 1].name, e[i].name);
    if (zip->n > 1) qsort(e, (size_t)zip->n, sizeof *e, compare_name);
    for (int i = 1; i < zip->n; i++)
        if (!strcmp(e[i - 1].name, e[i].name))
            return arena_printf(z->mem, "two entries '%.100s'", e[i].name);
    return NULL;
}

const char *zip_stored_try(Arena *mem, const uint8_t *bytes, uint64_t n, ZipStored *zip) {
    Zip z = {.mem = mem, .bytes = bytes, .n = n};
    const char *wrong = read_end(&z);
    if (wrong) return wrong;
    if (z.count > INT32_MAX / sizeof(ZipEntry)) return "too many entries";
    zip->e = NEW_ARRAY(mem, ZipEntry, z.count);
    uint64_t at = z.directory;
    for (uint64_t i = 0; i < z.count; i++) {
        wrong = read_central(&z, &at, &zip->e[zip->n]);
        if (wrong) return wrong_at(&z, at, wrong);
        zip->n++;
    }
    return check_apart(&z, zip);
}

const ZipEntry *zip_stored_find(const ZipStored *zip, const char *name) {
    ZipEntry want = {.name = name};
    return bsearch(&want, zip->e, (size_t)zip->n, sizeof want, compare_name);
}
