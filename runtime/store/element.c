/* element.c - see element.h. */
#include "runtime/store/element.h"

static const ElementRow rows[] = {
    {"F32", 32, DT_F32, ELEMENT_FLOAT},  {"F64", 64, DT_F64, ELEMENT_FLOAT},
    {"BF16", 16, DT_BF16, ELEMENT_BF16}, {"F16", 16, DT_F16, ELEMENT_FLOAT},
    {"I32", 32, DT_I32, ELEMENT_INT},    {"I64", 64, DT_I64, ELEMENT_INT},
    {"I16", 16, -1, ELEMENT_INT},        {"I8", 8, -1, ELEMENT_INT},
    {"U64", 64, -1, ELEMENT_UINT},       {"U32", 32, -1, ELEMENT_UINT},
    {"U16", 16, -1, ELEMENT_UINT},       {"U8", 8, -1, ELEMENT_UINT},
    {"BOOL", 8, -1, ELEMENT_UINT},       {"C64", 64, -1, ELEMENT_OTHER},
    {"F8_E5M2", 8, -1, ELEMENT_OTHER},   {"F8_E4M3", 8, -1, ELEMENT_OTHER},
    {"F8_E8M0", 8, -1, ELEMENT_OTHER},   {"F8_E4M3FNUZ", 8, -1, ELEMENT_OTHER},
    {"F4", 4, -1, ELEMENT_OTHER},        {"F8_E5M2FNUZ", 8, -1, ELEMENT_OTHER},
    {"F6_E2M3", 6, -1, ELEMENT_OTHER},   {"F6_E3M2", 6, -1, ELEMENT_OTHER},
};

const ElementRow *element_row(const char *name) {
    for (int i = 0; i < ARRAY_LEN(rows); i++)
        if (!strcmp(rows[i].name, name)) return &rows[i];
    return NULL;
}

const char *element_name(DType t) {
    for (int i = 0; i < ARRAY_LEN(rows); i++)
        if (rows[i].dtype == (int)t) return rows[i].name;
    die("type %d", (int)t);
}

bool element_type_named(const char *name, ElementType *out) {
    const ElementRow *row = element_row(name);
    if (!row || row->kind == ELEMENT_OTHER) return false;
    *out = (ElementType){row->kind, row->bits / 8};
    return true;
}

bool element_i64(ElementType t, const void *p, int64_t *out) {
    uint64_t bits = little_endian(p, t.bytes);
    if (t.kind == ELEMENT_UINT) {
        *out = (int64_t)bits;
        return bits <= INT64_MAX;
    }
    if (t.kind != ELEMENT_INT) return false;
    int shift = 64 - 8 * t.bytes;
    *out = (int64_t)(bits << shift) >> shift;
    return true;
}

float element_f32(ElementType t, const void *p) {
    uint64_t bits = little_endian(p, t.bytes);
    int64_t whole;
    if (t.kind == ELEMENT_BF16 || (t.kind == ELEMENT_FLOAT && t.bytes == 4)) {
        uint32_t word = (uint32_t)(t.kind == ELEMENT_BF16 ? bits << 16 : bits);
        float f;
        memcpy(&f, &word, sizeof f);
        return f;
    }
    if (t.kind == ELEMENT_FLOAT && t.bytes == 2) return f16_to_f32((uint16_t)bits);
    if (t.kind == ELEMENT_FLOAT) {
        double d;
        memcpy(&d, &bits, sizeof d);
        return (float)d;
    }
    return element_i64(t, p, &whole) ? (float)whole : (float)bits;
}
