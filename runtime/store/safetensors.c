/* safetensors.c - reading safetensors; see safetensors.h. Files and folders are
 * weight_files.c, writing is safetensors_write.c. The rules are those of the reference
 * implementation (huggingface/safetensors, safetensors/src/tensor.rs); deliberate differences:
 * rank above 8 and names with a zero byte are refused, duplicate keys always are. */
#include "runtime/store/safetensors.h"
#include "base/json.h"
#include "runtime/store/element.h"
#include <stdlib.h>

#define NEAREST_LIMIT 4096

/* The header. */

typedef struct Reader {
    Arena *mem;
    const char *name;
    Safetensors *s;
    const uint8_t *data; /* the data part, NULL when it is not in memory */
    uint64_t data_bytes;
} Reader;

static bool key_is(const Json *v, const char *key) {
    return v->key_length == strlen(key) && !memcmp(v->key, key, v->key_length);
}

static const char *plain_string(const Json *v) {
    return v && v->kind == JSON_STRING && strlen(v->s) == v->length ? v->s : NULL;
}

/* A non-negative integer, written as one. */
static bool natural(const Json *v, uint64_t *out) {
    if (v->kind == JSON_UINT)
        *out = v->u;
    else if (v->kind == JSON_INT && v->i >= 0)
        *out = (uint64_t)v->i;
    else
        return false;
    return true;
}

static const char *read_type(Arena *mem, const Json *v, SafeTensor *t, int *bits) {
    const char *name = plain_string(v);
    if (!name) return "has no dtype that is a string";
    const ElementRow *row = element_row(name);
    if (!row)
        return arena_printf(mem, "has dtype '%.40s', which is none of the format", name);
    t->type_name = row->name;
    t->dtype = row->dtype;
    *bits = row->bits;
    return NULL;
}

static const char *read_shape(const Json *v, int bits, SafeTensor *t) {
    if (!v || v->kind != JSON_ARRAY) return "has no shape that is a list";
    if (v->n > SAFETENSORS_MAX_RANK) return "has more than 8 dimensions";
    uint64_t total = 1;
    for (const Json *e = v->first; e; e = e->next) {
        uint64_t d;
        if (!natural(e, &d) || d > INT64_MAX)
            return "has a dimension that is no integer from 0 to 2^63-1";
        if (!mul_size(total, d, &total)) return "has a shape whose product overflows";
        t->dim[t->rank++] = (int64_t)d;
    }
    if (!mul_size(total, (uint64_t)bits, &total))
        return "has a shape whose size in bits overflows";
    if (total % 8) return "does not end at a whole byte";
    t->bytes = total / 8;
    return NULL;
}

static const char *read_offsets(const Json *v, uint64_t data_bytes, SafeTensor *t) {
    uint64_t begin, end;
    if (!v || v->kind != JSON_ARRAY || v->n != 2 || !natural(v->first, &begin) ||
        !natural(v->first->next, &end))
        return "has no data_offsets [begin, end]";
    if (end < begin || end > data_bytes) return "has data_offsets outside of the file";
    if (end - begin != t->bytes)
        return "has data_offsets that do not fit its shape and dtype";
    t->offset = begin;
    return NULL;
}

static const char *read_tensor(const Reader *r, const Json *v, SafeTensor *t) {
    int bits = 0;
    if (strlen(v->key) != v->key_length) return "has a zero byte in its name";
    t->name = v->key;
    if (v->kind != JSON_OBJECT) return "is not described by an object";
    const char *wrong = read_type(r->mem, json_get(v, "dtype"), t, &bits);
    if (!wrong) wrong = read_shape(json_get(v, "shape"), bits, t);
    if (!wrong) wrong = read_offsets(json_get(v, "data_offsets"), r->data_bytes, t);
    return wrong;
}

static const char *read_metadata(const Reader *r, const Json *v) {
    Safetensors *s = r->s;
    if (v->kind != JSON_OBJECT) return "__metadata__ is not an object";
    s->metadata_key = NEW_ARRAY(r->mem, const char *, (size_t)v->n);
    s->metadata_value = NEW_ARRAY(r->mem, const char *, (size_t)v->n);
    for (const Json *e = v->first; e; e = e->next) {
        if (e->kind != JSON_STRING) return "__metadata__ has a value that is no string";
        s->metadata_key[s->metadata_n] = e->key;
        s->metadata_value[s->metadata_n++] = e->s;
    }
    return NULL;
}

static int compare_offsets(const void *a, const void *b) {
    const SafeTensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b) {
    return strcmp((*(const SafeTensor *const *)a)->name,
                  (*(const SafeTensor *const *)b)->name);
}

void safetensors_sort(Arena *mem, Safetensors *s) {
    s->by_name = NEW_ARRAY(mem, const SafeTensor *, (size_t)s->n);
    for (int i = 0; i < s->n; i++) s->by_name[i] = &s->t[i];
    if (s->n > 1) qsort(s->by_name, (size_t)s->n, sizeof *s->by_name, compare_names);
}

/* Every byte of the data part belongs to exactly one tensor. */
static const char *check_cover(const Reader *r) {
    uint64_t at = 0;
    for (int i = 0; i < r->s->n; i++) {
        const SafeTensor *t = &r->s->t[i];
        if (t->offset != at)
            return arena_printf(r->mem,
                                "tensor '%.200s' begins at %llu where %llu is expected "
                                "(a hole or an overlap)",
                                t->name, (unsigned long long)t->offset,
                                (unsigned long long)at);
        at += t->bytes;
    }
    if (at == r->data_bytes) return NULL;
    return arena_printf(r->mem, "the tensors have %llu bytes, the file has %llu for them",
                        (unsigned long long)at, (unsigned long long)r->data_bytes);
}

static const char *read_header(Reader *r, const Json *root) {
    Safetensors *s = r->s;
    if (root->kind != JSON_OBJECT) return "the header is not a JSON object";
    s->t = NEW_ARRAY(r->mem, SafeTensor, (size_t)root->n);
    for (const Json *v = root->first; v; v = v->next) {
        const char *wrong;
        if (key_is(v, "__metadata__")) {
            wrong = read_metadata(r, v);
            if (wrong) return wrong;
            continue;
        }
        wrong = read_tensor(r, v, &s->t[s->n++]);
        if (wrong) return arena_printf(r->mem, "tensor '%.200s' %s", v->key, wrong);
    }
    if (s->n > 1) qsort(s->t, (size_t)s->n, sizeof *s->t, compare_offsets);
    const char *wrong = check_cover(r);
    if (wrong) return wrong;
    for (int i = 0; i < s->n; i++)
        s->t[i].data = r->data ? r->data + s->t[i].offset : NULL;
    safetensors_sort(r->mem, s);
    return NULL;
}

/* The JSON parser fails; here a failure is an answer. */
static const Json *try_json(Arena *mem, const char *name, const char *bytes, size_t n,
                            const char **wrong) {
    Catch c;
    if (CATCH(c)) {
        const Json *v =
            json_parse(mem, name, bytes, n, SAFETENSORS_MAX_HEADER, EXIT_CHECKPOINT);
        catch_end(&c);
        return v;
    }
    *wrong = arena_printf(mem, "the header is not valid JSON: %.1000s", catch_text(&c));
    return NULL;
}

const char *safetensors_try(Arena *mem, const char *name, const void *bytes, size_t have,
                            uint64_t file_bytes, Safetensors **out) {
    if (file_bytes < 8 || have < 8)
        return "shorter than 8 bytes, so this is no safetensors file (or it was cut off)";
    uint64_t header = little_endian(bytes, 8);
    if (header > SAFETENSORS_MAX_HEADER)
        return arena_printf(mem,
                            "the header's length says %llu; at most %u are allowed, so "
                            "this is no safetensors file",
                            (unsigned long long)header, SAFETENSORS_MAX_HEADER);
    if (8 + header > file_bytes || 8 + header > have)
        return "the header reaches beyond the end of the file (was it cut off?)";
    if (header && ((const uint8_t *)bytes)[8] == 0xEF)
        return "the header begins with a byte order mark; it must be JSON alone";
    Safetensors *s = NEW(mem, Safetensors);
    s->name = arena_strdup(mem, name);
    s->header_bytes = 8 + header;
    s->code = EXIT_CHECKPOINT;
    const char *wrong = NULL;
    const Json *root = try_json(mem, name, (const char *)bytes + 8, header, &wrong);
    const uint8_t *data = (const uint8_t *)bytes + s->header_bytes;
    Reader r = {mem, name, s, have == file_bytes ? data : NULL,
                file_bytes - s->header_bytes};
    if (!wrong) wrong = read_header(&r, root);
    if (!wrong) *out = s;
    return wrong;
}

Safetensors *safetensors_parse(Arena *mem, const char *name, const void *bytes,
                               size_t n) {
    Safetensors *s = NULL;
    const char *wrong = safetensors_try(mem, name, bytes, n, n, &s);
    if (wrong) fail(EXIT_CHECKPOINT, "%s: %s", name, wrong);
    return s;
}

/* Tensors. */

const SafeTensor *safetensors_find(const Safetensors *s, const char *name) {
    SafeTensor want = {.name = name};
    const SafeTensor *at = &want, **found = bsearch(&at, s->by_name, (size_t)s->n,
                                                    sizeof *s->by_name, compare_names);
    return found ? *found : NULL;
}

const SafeTensor *safetensors_need(const Safetensors *s, const char *name) {
    const SafeTensor *t = safetensors_find(s, name);
    if (t) return t;
    const char *names[NEAREST_LIMIT];
    int n = MIN(s->n, NEAREST_LIMIT);
    for (int i = 0; i < n; i++) names[i] = s->t[i].name;
    const char *near = nearest_name(name, names, n);
    if (near)
        fail(s->code, "%s has no tensor '%s'; the nearest is '%s'", s->name, name, near);
    fail(s->code, "%s has no tensor '%s' (it has %d others)", s->name, name, s->n);
}

int64_t safetensors_count(const SafeTensor *t) {
    int64_t count = 1;
    for (int i = 0; i < t->rank; i++)
        if (__builtin_mul_overflow(count, t->dim[i], &count)) die("unchecked shape");
    return count;
}

/* The exponent of inf and NaN is all ones. */
typedef struct FloatType {
    const char *name;
    size_t bytes;
    uint64_t exponent;
} FloatType;

static const FloatType *float_type(const char *name) {
    static const FloatType row[] = {{"F32", 4, 0x7F800000},
                                    {"BF16", 2, 0x7F80},
                                    {"F16", 2, 0x7C00},
                                    {"F64", 8, (uint64_t)0x7FF << 52}};
    for (int i = 0; i < ARRAY_LEN(row); i++)
        if (!strcmp(row[i].name, name)) return &row[i];
    return NULL;
}

uint64_t safetensors_not_finite(const SafeTensor *t) {
    const FloatType *f = float_type(t->type_name);
    uint64_t bad = 0;
    for (uint64_t at = 0; f && at < t->bytes; at += f->bytes) {
        uint64_t v = 0;
        memcpy(&v, (const char *)t->data + at, f->bytes);
        bad += (v & f->exponent) == f->exponent;
    }
    return bad;
}

static void widen(const SafeTensor *t, float *out) {
    const uint8_t *p = t->data;
    int64_t n = safetensors_count(t);
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, p + 2 * i, 2);
        out[i] = t->dtype == DT_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
}

void safetensors_read(const Safetensors *s, const SafeTensor *t, DType as, void *out,
                      size_t out_bytes) {
    bool widens = as == DT_F32 && (t->dtype == DT_F16 || t->dtype == DT_BF16);
    if (t->dtype != (int)as && !widens)
        fail(s->code, "%s: tensor '%s' has type %s and cannot be read as %s", s->name,
             t->name, t->type_name, dtype_name[as]);
    uint64_t bytes = widens ? t->bytes * 2 : t->bytes;
    if (bytes != out_bytes)
        die("tensor '%s' has %llu bytes, not %zu", t->name, (unsigned long long)bytes,
            out_bytes);
    if (widens)
        widen(t, out);
    else if (bytes)
        memcpy(out, t->data, bytes);
}
