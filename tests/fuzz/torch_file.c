/* Whatever is accepted has names, and all of its numbers are in memory. An input that
 * begins like a pickle is read as one too: few changes of an archive reach that far. */
#include "runtime/store/torch_file.h"
#include "runtime/store/torch_pickle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_tensors(const Safetensors *s) {
    uint64_t sum = 0;
    for (int i = 0; i < s->n; i++) {
        const SafeTensor *t = &s->t[i];
        check(safetensors_find(s, t->name) == t && t->rank <= SAFETENSORS_MAX_RANK);
        for (uint64_t k = 0; k < t->bytes; k++) sum += ((const uint8_t *)t->data)[k];
    }
    check(sum < UINT64_MAX);
}

static void check_pickle(Arena *mem, const uint8_t *data, size_t n) {
    TorchTensors all;
    const char *wrong = torch_pickle_try(mem, data, n, &all);
    check(!wrong || wrong[0]);
    for (int i = 0; !wrong && i < all.n; i++)
        check(all.t[i].name && all.t[i].storage && all.t[i].element_bytes > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    Arena *mem = arena_new();
    Safetensors *s = NULL;
    const char *wrong = torch_file_try(mem, "fuzz", data, n, &s);
    check(wrong ? wrong[0] != 0 : s != NULL);
    if (!wrong) check_tensors(s);
    if (n && data[0] == 0x80) check_pickle(mem, data, n);
    arena_free(mem);
    return 0;
}
