/* torch_pickle.h - the pickle of a PyTorch file as data: a dictionary of tensors, and
 * nothing else. Pickles are programs; this machine has no functions to call, only a table
 * of the names that state dictionaries need, and a rule for each of what it makes. Any
 * other name or instruction is refused. */
#ifndef STATOR_TORCH_PICKLE_H
#define STATOR_TORCH_PICKLE_H
#include "runtime/store/safetensors.h"

/* A tensor of the dictionary: numbers of a storage, `offset` and `stride` counted in
 * elements. Not checked against the storage. */
typedef struct TorchTensor {
    const char *name, *storage; /* storage: the key of the file's entry "data/KEY" */
    const char *type_name;      /* "F16", as safetensors says it */
    int rank, element_bytes;
    uint64_t dim[SAFETENSORS_MAX_RANK], stride[SAFETENSORS_MAX_RANK];
    uint64_t offset, storage_elements;
} TorchTensor;

typedef struct TorchTensors {
    int n;
    TorchTensor *t; /* in the order of the dictionary */
} TorchTensors;

enum { TORCH_PICKLE_MAX_BYTES = 16 << 20 };

/* NULL and *out, or the reason, with the offset in the pickle. Protocols 2 to 4. Takes at
 * most about 100 bytes of memory for each byte of the pickle, and never recurses. */
const char *torch_pickle_try(Arena *mem, const uint8_t *bytes, uint64_t n,
                             TorchTensors *out);

#endif
