/* torch_file.h - weights as torch.save writes them (pytorch_model.bin): a zip archive of
 * a pickle and the bytes of its storages. Only data are read, nothing is executed. */
#ifndef STATOR_TORCH_FILE_H
#define STATOR_TORCH_FILE_H
#include "runtime/store/safetensors.h"

/* NULL and the tensors in *s, in the order of the file's dictionary, or the reason. Their
 * data are in bytes[n], which must stay; those of tensors whose numbers do not follow one
 * another there are copied to `mem`, together at most n bytes. Two tensors may share
 * data. */
const char *torch_file_try(Arena *mem, const char *name, const uint8_t *bytes, uint64_t n,
                           Safetensors **s);

#endif
