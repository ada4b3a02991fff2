/* Whatever is accepted has its tensors inside the file, side by side, and writes out to a
 * layout of the same tensors. */
#include "runtime/store/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_tensors(Arena *mem, const Safetensors *s, const uint8_t *data,
                          size_t n) {
    uint64_t at = s->header_bytes, sum = 0;
    for (int i = 0; i < s->n; i++) {
        const SafeTensor *t = &s->t[i];
        check((const uint8_t *)t->data == data + at && t->bytes <= n - at);
        for (uint64_t k = 0; k < t->bytes; k++) sum += ((const uint8_t *)t->data)[k];
        at += t->bytes;
        check(safetensors_find(s, t->name) == t);
        if (t->bytes && !strcmp(t->type_name, "F16")) {
            float *out = NEW_ARRAY(mem, float, t->bytes / 2);
            safetensors_read(s, t, DT_F32, out, t->bytes * 2);
        }
    }
    check(at == n && sum <= 255 * (uint64_t)n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    Arena *mem = arena_new();
    Catch c;
    Safetensors *volatile s = NULL;
    if (CATCH(c)) {
        s = safetensors_parse(mem, "fuzz", data, n);
        catch_end(&c);
    } else {
        check(c.code == EXIT_CHECKPOINT && c.message[0]);
    }
    if (s) check_tensors(mem, s, data, n);
    arena_free(mem);
    return 0;
}
