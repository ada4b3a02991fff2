/* safetensors_write.c - writing safetensors; see safetensors.h. */
#include "base/json.h"
#include "runtime/store/element.h"
#include "runtime/store/safetensors.h"
#include <errno.h>
#include <stdlib.h>

static bool tensor_bytes(const SafeTensor *t, uint64_t *bytes) {
    if (t->dtype < 0 || t->dtype >= DT_COUNT) return false;
    if (t->rank < 0 || t->rank > SAFETENSORS_MAX_RANK) return false;
    *bytes = dtype_bytes[t->dtype];
    for (int i = 0; i < t->rank; i++)
        if (t->dim[i] < 0 || !mul_size(*bytes, (uint64_t)t->dim[i], bytes)) return false;
    return true;
}

typedef struct Slot {
    const SafeTensor *t;
    int index;
} Slot;

static int compare_slots(const void *a, const void *b) {
    const Slot *x = a, *y = b;
    int xb = dtype_bytes[x->t->dtype], yb = dtype_bytes[y->t->dtype];
    return xb != yb ? yb - xb : strcmp(x->t->name, y->t->name);
}

static int compare_slot_names(const void *a, const void *b) {
    return strcmp(((const Slot *)a)->t->name, ((const Slot *)b)->t->name);
}

/* Slots in file order; false when a name comes twice or is the reserved one. */
static bool sort_slots(Slot *slot, const SafeTensor *t, int n) {
    for (int i = 0; i < n; i++) slot[i] = (Slot){&t[i], i};
    if (n > 1) qsort(slot, (size_t)n, sizeof *slot, compare_slot_names);
    for (int i = 0; i < n; i++) {
        if (!strcmp(slot[i].t->name, "__metadata__")) return false;
        if (i && !strcmp(slot[i].t->name, slot[i - 1].t->name)) return false;
    }
    if (n > 1) qsort(slot, (size_t)n, sizeof *slot, compare_slots);
    return true;
}

static void add_entry(Text *json, const SafeTensor *t, uint64_t begin, uint64_t end) {
    text_add(json, ",");
    json_write_string(json, t->name);
    text_add(json, ":{\"dtype\":\"%s\",\"shape\":[", element_name((DType)t->dtype));
    text_add_ints(json, ",", t->dim, t->rank);
    text_add(json, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
             (unsigned long long)end);
}

int safetensors_layout(Arena *mem, const SafeTensor *t, int n, SafeLayout *layout) {
    uint64_t at = 0;
    for (int i = 0; i < n; i++) {
        uint64_t bytes;
        if (!tensor_bytes(&t[i], &bytes)) return EINVAL;
    }
    Slot *slot = NEW_ARRAY(mem, Slot, (size_t)n);
    if (!sort_slots(slot, t, n)) return EINVAL;
    Text json = text_new(mem);
    text_add(&json, "{\"__metadata__\":{\"format\":\"pt\"}");
    layout->order = NEW_ARRAY(mem, int, (size_t)n);
    for (int i = 0; i < n; i++) {
        uint64_t bytes = 0, end;
        layout->order[i] = slot[i].index;
        check(tensor_bytes(slot[i].t, &bytes));
        if (!add_size(at, bytes, &end)) return EINVAL;
        add_entry(&json, slot[i].t, at, end);
        at = end;
    }
    text_add(&json, "}");
    while (json.n % 8) text_add(&json, " ");
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)json.n >> (8 * i));
    layout->header = text_new(mem);
    text_add_bytes(&layout->header, length, 8);
    text_add_bytes(&layout->header, json.s, json.n);
    if (!add_size(at, layout->header.n, &layout->bytes) || layout->bytes > INT64_MAX)
        return EINVAL;
    return 0;
}

static int write_file(int fd, const SafeLayout *layout, const SafeTensor *t, int n,
                      SafeSource source, void *context) {
    int error = fd_reserve(fd, layout->bytes);
    if (!error) error = fd_write(fd, layout->header.s, layout->header.n);
    for (int i = 0; i < n && !error; i++) {
        int at = layout->order[i];
        uint64_t bytes = 0;
        check(tensor_bytes(&t[at], &bytes));
        const void *data = source ? source(context, at) : t[at].data;
        error = !data && bytes ? EIO : fd_write(fd, data, bytes);
    }
    return error;
}

static int write_atomic(Arena *mem, const char *path, const SafeTensor *t, int n,
                        SafeSource source, void *context) {
    SafeLayout layout;
    int error = safetensors_layout(mem, t, n, &layout);
    if (error) return error;
    Aside a;
    error = aside_open(&a, path, arena_printf(mem, "%s.tmp", path));
    if (error) return error;
    error = aside_close(&a, write_file(a.fd, &layout, t, n, source, context));
    return error ? error : aside_publish(&a);
}

int safetensors_write(const char *path, const SafeTensor *t, int n, SafeSource source,
                      void *context) {
    Arena *mem = arena_new();
    int error = write_atomic(mem, path, t, n, source, context);
    arena_free(mem);
    return error;
}
