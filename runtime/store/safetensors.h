/* safetensors.h - reading and writing the safetensors format (one file, or a folder of
 * shards with an index), as the reference implementation of Hugging Face defines it:
 * u64le N | N bytes of JSON | data, every byte of the data owned by exactly one tensor.
 */
#ifndef STATOR_SAFETENSORS_H
#define STATOR_SAFETENSORS_H
#include "base/base.h"
#include "base/dtype.h"

enum {
    SAFETENSORS_MAX_RANK = 8,
    SAFETENSORS_MAX_HEADER =
        100000000, /* bytes of JSON, as Hugging Face's reader has it */
};

typedef struct SafeTensor {
    const char *name;
    int dtype; /* a DType, or -1 when the file's type is not one of ours */
    int rank;  /* 0 is a scalar */
    int64_t dim[SAFETENSORS_MAX_RANK];
    const void *data;      /* row-major, little-endian; need not be aligned */
    uint64_t bytes;        /* size of data (reading only) */
    const char *type_name; /* as in the file, "F16" (reading only) */
    uint64_t offset;       /* of data from the start of the data part (reading only) */
} SafeTensor;

typedef struct Safetensors {
    const char *name;
    int n;
    SafeTensor *t; /* in the order of their data */
    const SafeTensor **by_name;
    int metadata_n; /* the __metadata__ strings */
    const char **metadata_key, **metadata_value;
    uint64_t header_bytes; /* 8 + N; data part starts there */
    int code;              /* exit code of failures */
    struct SafeMap *maps;
} Safetensors;

/* The file of weights in a folder, or else their index: safetensors before PyTorch's; NULL:
 * there is none. */
const char *safetensors_of_folder(Arena *mem, const char *folder);
/* Opens a .safetensors file, a .bin file of PyTorch (torch_file.h), an index of either
 * (*.index.json), or a folder with model.safetensors, model.safetensors.index.json,
 * pytorch_model.bin or pytorch_model.bin.index.json, the first of these that is there. The
 * data are mapped read-only, so only what is read costs memory. Everything is validated
 * here: after this every tensor is inside its file and has dim * type bytes. Fails with
 * `code`. */
Safetensors *safetensors_open(Arena *mem, const char *path, int code);
/* Removes the indices in a folder and the shards that they name, for which other weights of one
 * file have come. Files of other kinds, and what cannot be removed, stay. */
void safetensors_remove_shards(const char *folder);
/* Unmaps; the tensors' data are gone, names and shapes stay as long as the arena. */
void safetensors_close(Safetensors *s);

/* The same from memory, which must stay. Fails with EXIT_CHECKPOINT. */
Safetensors *safetensors_parse(Arena *mem, const char *name, const void *bytes, size_t n);
/* Without failing: NULL and *s, or the reason. Of a file of file_bytes only the header
 * (the first `have` bytes, at least 8 + N) need be in memory; the tensors' data are NULL
 * then. */
const char *safetensors_try(Arena *mem, const char *name, const void *bytes, size_t have,
                            uint64_t file_bytes, Safetensors **s);

/* Makes by_name of t[n]. */
void safetensors_sort(Arena *mem, Safetensors *s);

/* By name; NULL when missing. The second fails and names the nearest one. O(log n). */
const SafeTensor *safetensors_find(const Safetensors *s, const char *name);
const SafeTensor *safetensors_need(const Safetensors *s, const char *name);
/* Number of elements. */
int64_t safetensors_count(const SafeTensor *t);
/* How many elements are inf or NaN; 0 for whole numbers. Reads all data. */
uint64_t safetensors_not_finite(const SafeTensor *t);
/* Copies the tensor as type `as` to out[out_bytes], which must be its exact size there.
 * Same type: any of ours; to f32: from f16 and bf16 (both exact). Else fails. */
void safetensors_read(const Safetensors *s, const SafeTensor *t, DType as, void *out,
                      size_t out_bytes);

/* Gives tensor i's bytes, valid until the next call, or NULL to stop with EIO. */
typedef const void *(*SafeSource)(void *context, int i);

/* Writes t[n] (name, dtype, rank, dim, data) to path: tmp file in the same folder, fsync,
 * rename, fsync of the folder. With `source` the data come from it one tensor at a time,
 * in file order, instead of t[i].data. Returns 0 or an errno value (EINVAL: two tensors
 * of one name, bad shape or type); then an older file at path is untouched. */
int safetensors_write(const char *path, const SafeTensor *t, int n, SafeSource source,
                      void *context);
/* What a writer needs. 0 or EINVAL. */
typedef struct SafeLayout {
    Text header;    /* the bytes before the data: length, JSON padded to 8 */
    int *order;     /* of the tensors: largest type first, then name */
    uint64_t bytes; /* of the file */
} SafeLayout;
int safetensors_layout(Arena *mem, const SafeTensor *t, int n, SafeLayout *layout);

#endif
