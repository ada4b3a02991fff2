/* torch_file.c - see torch_file.h. */
#include "runtime/store/torch_file.h"
#include "runtime/store/element.h"
#include "runtime/store/torch_pickle.h"
#include "runtime/store/zip_stored.h"

typedef struct TorchFile {
    Arena *mem;
    ZipStored zip;
    const char *folder;   /* of every entry: "archive/" */
    uint64_t copied, top; /* bytes copied, and how many may be */
} TorchFile;

static const ZipEntry *entry(const TorchFile *f, const char *name) {
    return zip_stored_find(&f->zip, arena_printf(f->mem, "%s%s", f->folder, name));
}

/* Files before PyTorch 1.6 begin with the pickle of a number. */
static bool is_old(const uint8_t *bytes, uint64_t n) {
    static const uint8_t magic[] = {0x80, 2,    0x8a, 10,   0x6c, 0xfc, 0x9c,
                                    0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
    return n >= sizeof magic && !memcmp(bytes, magic, sizeof magic);
}

/* The archive's one folder is named by what was written to; the pickle shows it. */
static const char *find_folder(TorchFile *f) {
    for (int i = 0; i < f->zip.n; i++) {
        const char *name = f->zip.e[i].name, *slash = strchr(name, '/');
        if (!slash || strcmp(slash, "/data.pkl")) continue;
        if (f->folder) return "has two entries data.pkl";
        f->folder = arena_strndup(f->mem, name, (size_t)(slash - name) + 1);
    }
    if (!f->folder) return "has no entry data.pkl; torch.save writes one";
    const ZipEntry *order = entry(f, "byteorder");
    if (order && (order->bytes != 6 || memcmp(order->data, "little", 6)))
        return "has numbers in another byte order than little-endian";
    return NULL;
}

static bool is_plain(const TorchTensor *t) {
    uint64_t next = 1;
    for (int d = t->rank - 1; d >= 0; d--) {
        if (t->dim[d] != 1 && t->stride[d] != next) return false;
        next *= t->dim[d];
    }
    return true;
}

/* The numbers one after the other; an odometer over all dimensions. */
static const uint8_t *gather(TorchFile *f, const TorchTensor *t, const uint8_t *from,
                             uint64_t count) {
    uint64_t at[SAFETENSORS_MAX_RANK] = {0}, bytes = (uint64_t)t->element_bytes;
    if (bytes * count > f->top - f->copied) return NULL;
    f->copied += bytes * count;
    uint8_t *out = arena_alloc(f->mem, bytes * count);
    for (uint64_t i = 0, place = 0; i < count; i++) {
        memcpy(out + i * bytes, from + place * bytes, bytes);
        for (int d = t->rank - 1; d >= 0; d--) {
            place += t->stride[d];
            if (++at[d] < t->dim[d]) break;
            place -= t->stride[d] * t->dim[d];
            at[d] = 0;
        }
    }
    return out;
}

/* Number of elements, and that the storage has all of them. */
static const char *check_inside(const TorchTensor *t, uint64_t *count) {
    uint64_t last = t->offset;
    *count = 1;
    for (int d = 0; d < t->rank; d++) {
        if (t->dim[d] > INT64_MAX || !mul_size(*count, t->dim[d], count))
            return "has a size that overflows";
    }
    if (!*count) return NULL;
    for (int d = 0; d < t->rank; d++) {
        uint64_t way;
        if (!mul_size(t->dim[d] - 1, t->stride[d], &way) || !add_size(last, way, &last))
            return "has strides that overflow";
    }
    if (last >= t->storage_elements) return "reaches beyond its storage";
    if (*count > t->storage_elements)
        return "repeats elements of its storage (an expanded view): save a copy of it "
               "(contiguous())";
    return NULL;
}

static const char *read_tensor(TorchFile *f, const TorchTensor *t, SafeTensor *out) {
    uint64_t count, bytes, size = (uint64_t)t->element_bytes;
    const ZipEntry *e = entry(f, arena_printf(f->mem, "data/%s", t->storage));
    if (!e) return "is in a storage that the archive does not have";
    if (!mul_size(t->storage_elements, size, &bytes) || bytes != e->bytes)
        return "is in a storage of another size than its entry";
    const char *wrong = check_inside(t, &count);
    if (wrong) return wrong;
    *out = (SafeTensor){.name = t->name,
                        .dtype = element_row(t->type_name)->dtype,
                        .rank = t->rank,
                        .type_name = t->type_name,
                        .data = e->data,
                        .bytes = count * size};
    for (int d = 0; d < t->rank; d++) out->dim[d] = (int64_t)t->dim[d];
    if (!count) return NULL;
    const uint8_t *from = e->data + t->offset * size;
    out->data = is_plain(t) ? from : gather(f, t, from, count);
    return out->data ? NULL : "is one of several that lie across the same numbers";
}

static const char *read_tensors(TorchFile *f, Safetensors *s) {
    TorchTensors all;
    const ZipEntry *pickle = entry(f, "data.pkl");
    const char *wrong = torch_pickle_try(f->mem, pickle->data, pickle->bytes, &all);
    if (wrong) return wrong;
    s->t = NEW_ARRAY(f->mem, SafeTensor, (size_t)all.n + 1);
    for (int i = 0; i < all.n; i++) {
        wrong = read_tensor(f, &all.t[i], &s->t[s->n++]);
        if (wrong)
            return arena_printf(f->mem, "tensor '%.200s' %s", all.t[i].name, wrong);
    }
    safetensors_sort(f->mem, s);
    for (int i = 1; i < s->n; i++)
        if (!strcmp(s->by_name[i - 1]->name, s->by_name[i]->name))
            return arena_printf(f->mem, "two tensors '%.200s'", s->by_name[i]->name);
    return NULL;
}

const char *torch_file_try(Arena *mem, const char *name, const uint8_t *bytes, uint64_t n,
                           Safetensors **out) {
    TorchFile f = {.mem = mem, .top = n};
    if (is_old(bytes, n))
        return "is of PyTorch before 1.6; load it with torch.load and save it again";
    const char *wrong = zip_stored_try(mem, bytes, n, &f.zip);
    if (!wrong) wrong = find_folder(&f);
    if (wrong) return wrong;
    Safetensors *s = NEW(mem, Safetensors);
    s->name = arena_strdup(mem, name);
    s->code = EXIT_CHECKPOINT;
    wrong = read_tensors(&f, s);
    if (!wrong) *out = s;
    return wrong;
}
