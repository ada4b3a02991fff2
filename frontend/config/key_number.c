/* key_number.c - numbers as people write them. */
#include "frontend/config/key.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* A number on its way from the text to `out`. */
typedef struct Digits {
    const char *s;
    char *out;
    size_t n;
} Digits;

enum { NUMBER_CHARS = 64, NUMBER_MOST = 60 };

static void take_char(Digits *d) {
    d->out[d->n++] = *d->s++;
}

static void take_sign(Digits *d) {
    if (*d->s == '+' || *d->s == '-') take_char(d);
}

/* Takes digits; how many. */
static int take_digits(Digits *d) {
    int taken = 0;
    for (; *d->s >= '0' && *d->s <= '9' && d->n < NUMBER_MOST; taken++) take_char(d);
    return taken;
}

/* [+-] digits [. digits] [e [+-] digits], '_' between digits left out as in YAML 1.1,
 * into out[]. False for anything else; *whole: there were only digits. */
static bool number_syntax(const char *s, char out[NUMBER_CHARS], bool *whole) {
    Digits d = {.s = s, .out = out};
    *whole = true;
    take_sign(&d);
    int digits = take_digits(&d);
    for (; *d.s == '_' && digits && d.n < NUMBER_MOST; digits += take_digits(&d)) d.s++;
    if (*d.s == '.') {
        *whole = false;
        take_char(&d);
        digits += take_digits(&d);
    }
    if ((*d.s == 'e' || *d.s == 'E') && digits && d.n < NUMBER_MOST - 10) {
        *whole = false;
        take_char(&d);
        take_sign(&d);
        if (!take_digits(&d)) return false;
    }
    out[d.n] = 0;
    return !*d.s && digits > 0;
}

bool key_parse_float(const char *s, double *v) {
    char text[64];
    bool whole;
    if (!number_syntax(s, text, &whole)) return false;
    *v = strtod(text, NULL);
    return isfinite(*v);
}

bool key_same_value(const char *a, const char *b) {
    double x, y;
    return !strcmp(a, b) || (key_parse_float(a, &x) && key_parse_float(b, &y) && x == y);
}

bool key_parse_int(const char *s, int64_t *v) {
    char text[64];
    bool whole;
    errno = 0;
    if (s[0] == '0' && (s[1] == 'x' || s[1] == 'X')) {
        if (!s[2] || strlen(s) > 18 || s[2 + strspn(s + 2, "0123456789abcdefABCDEF")])
            return false;
        *v = strtoll(s, NULL, 16);
        return errno == 0;
    }
    if (!number_syntax(s, text, &whole)) return false;
    const char *d = text + (text[0] == '+' || text[0] == '-');
    if (d[0] == '0' && d[1] >= '0' && d[1] <= '9') return false;
    if (whole) {
        *v = strtoll(text, NULL, 10);
        return errno == 0;
    }
    double f = strtod(text, NULL);
    if (!(fabs(f) <= 0x1p53) || f != floor(f)) return false;
    *v = (int64_t)f;
    return true;
}
