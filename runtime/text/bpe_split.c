/* bpe_split.c - text to pre-tokens by the rules of GPT-2, Llama 3 and Qwen2, by hand: what
 * the regular expressions of bpe.h give, without one. Also the repair of invalid UTF-8. */
#include "base/utf8.h"
#include "runtime/text/bpe.h"
#include "runtime/text/unicode_tables.h"
#include <stdlib.h>

/* What `\s` is to Python and Rust: exactly these 25. */
static const UnicodeRange unicode_spaces[] = {
    {0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
    {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
    {0x205F, 0x205F}, {0x3000, 0x3000},
};

static int compare_range(const void *code, const void *range) {
    const uint32_t c = *(const uint32_t *)code;
    const UnicodeRange *r = range;
    return (c > r->last) - (c < r->first);
}

static bool in_ranges(const UnicodeRange *r, int n, uint32_t c) {
    return bsearch(&c, r, (size_t)n, sizeof *r, compare_range) != NULL;
}

CharClass bpe_class(uint32_t c) {
    if (in_ranges(unicode_letters, ARRAY_LEN(unicode_letters), c)) return CHAR_LETTER;
    if (in_ranges(unicode_numbers, ARRAY_LEN(unicode_numbers), c)) return CHAR_NUMBER;
    if (in_ranges(unicode_spaces, ARRAY_LEN(unicode_spaces), c)) return CHAR_SPACE;
    return CHAR_OTHER;
}

static void fill_ranges(uint8_t *bmp, const UnicodeRange *r, int n, CharClass class) {
    for (int i = 0; i < n && r[i].first < BMP_SIZE; i++) {
        uint32_t last = MIN(r[i].last, (uint32_t)BMP_SIZE - 1);
        memset(bmp + r[i].first, class, last - r[i].first + 1);
    }
}

void bpe_fill_classes(uint8_t bmp[BMP_SIZE]) {
    memset(bmp, CHAR_OTHER, BMP_SIZE);
    fill_ranges(bmp, unicode_letters, ARRAY_LEN(unicode_letters), CHAR_LETTER);
    fill_ranges(bmp, unicode_numbers, ARRAY_LEN(unicode_numbers), CHAR_NUMBER);
    fill_ranges(bmp, unicode_spaces, ARRAY_LEN(unicode_spaces), CHAR_SPACE);
}

/* Class and bytes of the character at p, of valid UTF-8. */
static CharClass class_at(const uint8_t *bmp, const char *p, int *size) {
    const unsigned char *s = (const unsigned char *)p;
    if (s[0] < 0x80) {
        *size = 1;
        return bmp[s[0]];
    }
    if (s[0] < 0xE0) {
        *size = 2;
        return bmp[(s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu)];
    }
    if (s[0] < 0xF0) {
        *size = 3;
        return bmp[(s[0] & 0x0Fu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu)];
    }
    *size = 4;
    return bpe_class((s[0] & 0x07u) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 |
                     (s[3] & 0x3Fu));
}

static const char *run_end(const uint8_t *bmp, const char *p, const char *end,
                           CharClass class) {
    while (p < end) {
        unsigned char c = (unsigned char)*p;
        if (c < 0x80) {
            if (bmp[c] != class) return p;
            p++;
        } else {
            int size;
            if (class_at(bmp, p, &size) != class) return p;
            p += size;
        }
    }
    return p;
}

/* Bytes of 's 't 'm 'd 're 've 'll at p, or 0; fold: LETTER_CASE, or 0 for these alone. */
enum { LETTER_CASE = 0x20 };
static int contraction(const char *p, const char *end, int fold) {
    if (end - p < 2) return 0;
    char a = (char)(p[1] | fold);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (end - p < 3) return 0;
    char b = (char)(p[2] | fold);
    return (b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l') ? 3 : 0;
}

/* All of a run of spaces at the end of the text; else all but its last character, which
 * may belong to the next word, unless it is the only one. */
static const char *spaces_end(const uint8_t *bmp, const char *p, const char *end) {
    const char *next = p, *last = p;
    while (next < end) {
        int size;
        if (class_at(bmp, next, &size) != CHAR_SPACE) return last > p ? last : next;
        last = next;
        next += size;
    }
    return end;
}

const char *bpe_word_end(const uint8_t bmp[BMP_SIZE], const char *p, const char *end) {
    int size;
    CharClass class = class_at(bmp, p, &size);
    if (class == CHAR_SPACE) {
        if (*p != ' ' || end - p < 2) return spaces_end(bmp, p, end);
        int next;
        class = class_at(bmp, p + 1, &next);
        if (class == CHAR_SPACE) return spaces_end(bmp, p, end);
        size = 1 + next;
    } else if (*p == '\'') {
        int n = contraction(p, end, 0);
        if (n) return p + n;
    }
    return run_end(bmp, p + size, end, class);
}

/* ---- the rule of Llama 3 and Qwen2 ---- */

static bool is_line_end(char c) {
    return c == '\n' || c == '\r';
}

/* The same contractions in any case; U+017F is a small s. */
static int contraction_any_case(const char *p, const char *end) {
    if (end - p >= 3 && !memcmp(p + 1, "\xC5\xBF", 2)) return 3;
    return contraction(p, end, LETTER_CASE);
}

/* At most `most` numbers. */
static const char *numbers_end(const uint8_t *bmp, const char *p, const char *end,
                               int most) {
    int size;
    for (; most > 0 && p < end && class_at(bmp, p, &size) == CHAR_NUMBER; most--)
        p += size;
    return p;
}

/* A run of spaces up to its last line end, if it has one; else as GPT-2 has it. */
static const char *lines_end(const uint8_t *bmp, const char *p, const char *end) {
    const char *run = run_end(bmp, p, end, CHAR_SPACE);
    for (const char *q = run; q > p; q--)
        if (is_line_end(q[-1])) return q;
    return spaces_end(bmp, p, end);
}

static const char *signs_end(const uint8_t *bmp, const char *p, const char *end) {
    p = run_end(bmp, p, end, CHAR_OTHER);
    while (p < end && is_line_end(*p)) p++;
    return p;
}

const char *bpe_cl100k_end(const uint8_t bmp[BMP_SIZE], int digits, const char *p,
                           const char *end) {
    int size, next_size;
    CharClass class = class_at(bmp, p, &size), next = CHAR_SPACE;
    if (*p == '\'') {
        int n = contraction_any_case(p, end);
        if (n) return p + n;
    }
    if (class == CHAR_LETTER) return run_end(bmp, p + size, end, CHAR_LETTER);
    if (class == CHAR_NUMBER) return numbers_end(bmp, p, end, digits);
    if (p + size < end) next = class_at(bmp, p + size, &next_size);
    if (next == CHAR_LETTER && !is_line_end(*p))
        return run_end(bmp, p + size, end, CHAR_LETTER);
    if (class == CHAR_OTHER) return signs_end(bmp, p, end);
    if (*p == ' ' && next == CHAR_OTHER) return signs_end(bmp, p + 1, end);
    return lines_end(bmp, p, end);
}

int bpe_rule_of(const char *regex) {
#define CL100K(digits)                                                                   \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                 \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2(contractions)                                                               \
    contractions "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
    static const struct {
        const char *regex;
        SplitRule rule;
    } known[] = {
        {GPT2("'s|'t|'re|'ve|'m|'ll|'d"), SPLIT_GPT2},
        {GPT2("'(?:[sdmt]|ll|ve|re)"), SPLIT_GPT2},
        {CL100K("\\p{N}{1,3}"), SPLIT_CL100K},
        {CL100K("\\p{N}"), SPLIT_QWEN2},
    };
#undef CL100K
#undef GPT2
    for (int i = 0; i < ARRAY_LEN(known); i++)
        if (!strcmp(known[i].regex, regex)) return (int)known[i].rule;
    return -1;
}

/* ---- around added tokens ---- */

/* The first or last character of s[n], n > 0. */
static uint32_t char_at_end(const char *s, size_t n, bool back, size_t *size) {
    const char *p = s;
    if (back)
        for (p = s + n - 1; ((unsigned char)*p & 0xC0) == 0x80;) p--;
    *size = back ? (size_t)(s + n - p) : (size_t)utf8_check(s, n);
    return utf8_get(p, *size);
}

size_t bpe_spaces(const char *s, size_t n, bool back) {
    size_t spaces = 0, size;
    while (spaces < n) {
        uint32_t c = char_at_end(back ? s : s + spaces, n - spaces, back, &size);
        if (!in_ranges(unicode_spaces, ARRAY_LEN(unicode_spaces), c)) break;
        spaces += size;
    }
    return spaces;
}

bool bpe_word_char(const char *s, size_t n, bool back) {
    size_t size;
    if (!n) return false;
    uint32_t c = char_at_end(s, n, back, &size);
    return bpe_class(c) == CHAR_LETTER ||
           in_ranges(unicode_other_words, ARRAY_LEN(unicode_other_words), c);
}

/* ---- UTF-8 ---- */

static size_t ascii_run(const char *s, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t eight;
        memcpy(&eight, s + i, sizeof eight);
        if (eight & 0x8080808080808080u) break;
    }
    while (i < n && (unsigned char)s[i] < 0x80) i++;
    return i;
}

bool bpe_utf8_valid(const char *s, size_t n) {
    for (size_t i = ascii_run(s, n); i < n;) {
        int size = utf8_check(s + i, n - i);
        if (!size) return false;
        i += (size_t)size;
        if (i < n && (unsigned char)s[i] < 0x80) i += ascii_run(s + i, n - i);
    }
    return true;
}

size_t bpe_utf8_replace(const char *s, size_t n, char *out, uint64_t *bad) {
    size_t made = 0;
    for (size_t i = 0; i < n;) {
        size_t size = (size_t)utf8_check(s + i, n - i), put = size;
        const char *from = s + i;
        if (!size) {
            size = utf8_part(s + i, n - i);
            from = "\xEF\xBF\xBD";
            put = 3;
            ++*bad;
        }
        if (out) memcpy(out + made, from, put);
        made += put;
        i += size;
    }
    return made;
}
