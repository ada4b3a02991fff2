/* utf8.h - strict UTF-8 (RFC 3629): no overlong forms, no surrogates, no code point
 * above U+10FFFF. */
#ifndef STATOR_UTF8_H
#define STATOR_UTF8_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Bytes of the byte order mark that s[n] begins with: 3, or 0 without one. */
static inline size_t utf8_mark(const char *s, size_t n) {
    return n >= 3 && !memcmp(s, "\xEF\xBB\xBF", 3) ? 3 : 0;
}

/* The byte behind a lead byte of two or more: some leads allow fewer. */
static inline int utf8_second_fits(unsigned char lead, unsigned char second) {
    unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    return second >= low && second <= high;
}

/* Bytes (1..4) of the valid sequence that s[n] begins with, or 0. */
static inline int utf8_check(const char *s, size_t n) {
    const unsigned char *p = (const unsigned char *)s;
    if (n == 0) return 0;
    if (p[0] < 0x80) return 1;
    int size = p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : 2;
    if (p[0] < 0xC2 || p[0] > 0xF4 || n < (size_t)size) return 0;
    if (!utf8_second_fits(p[0], p[1])) return 0;
    for (int i = 2; i < size; i++)
        if ((p[i] & 0xC0) != 0x80) return 0;
    return size;
}

/* Bytes of the longest beginning of a character that invalid s[n] begins with, at least 1. Behind two
 * bytes of one any further continuation bytes will do. */
static inline size_t utf8_part(const char *s, size_t n) {
    for (size_t part = n < 3 ? n : 3; part > 1; part--) {
        char trial[4] = {0, 0, (char)0x80, (char)0x80};
        memcpy(trial, s, part);
        if (utf8_check(trial, sizeof trial) > (int)part) return part;
    }
    return 1;
}

/* The code point of the valid sequence of `size` bytes (1..4) at s. */
static inline uint32_t utf8_get(const char *s, size_t size) {
    static const unsigned char mask[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t c = (unsigned char)s[0] & mask[size];
    for (size_t i = 1; i < size; i++) c = c << 6 | ((unsigned char)s[i] & 0x3F);
    return c;
}

/* Writes code point c (valid) to out, up to 4 bytes; returns how many. */
static inline int utf8_put(uint32_t c, char *out) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    int size = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (int i = size - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(lead[size] | c);
    return size;
}

#endif
