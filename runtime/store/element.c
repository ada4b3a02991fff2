/* element.c - see element.h. */
#include "runtime/store/element.h"

bool element_type_named(const char *name, ElementType *out) {
    static const struct {
        const char *name;
        ElementType type;
    } types[] = {
        {"F64", {ELEMENT_FLOAT, 8}}, {"F32", {ELEMENT_FLOAT, 4}},
        {"F16", {ELEMENT_FLOAT, 2}}, {"BF16", {ELEMENT_BF16, 2}},
        {"I64", {ELEMENT_INT, 8}},   {"I32", {ELEMENT_INT, 4}},
        {"I16", {ELEMENT_INT, 2}},   {"I8", {ELEMENT_INT, 1}},
        {"U64", {ELEMENT_UINT, 8}},  {"U32", {ELEMENT_UINT, 4}},
        {"U16", {ELEMENT_UINT, 2}},  {"U8", {ELEMENT_UINT, 1}},
        {"BOOL", {ELEMENT_UINT, 1}},
    };
    for (int i = 0; i < ARRAY_LEN(types); i++) {
        if (strcmp(types[i].name, name)) continue;
        *out = types[i].type;
        return true;
    }
    return false;
}

static uint64_t bits_at(ElementType t, const void *p) {
    const unsigned char *b = p;
    uint64_t bits = 0;
    for (int i = t.bytes - 1; i >= 0; i--) bits = bits << 8 | b[i];
    return bits;
}

bool element_i64(ElementType t, const void *p, int64_t *out) {
    uint64_t bits = bits_at(t, p);
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
    uint64_t bits = bits_at(t, p);
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
