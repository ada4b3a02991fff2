/* text.c - see text.h. */
#include "frontend/tools/text.h"
#include "base/utf8.h"

Tokens tokens_of_bytes(Arena *mem, const char *s, size_t n) {
    check(n <= TEXT_MAX_PROMPT_BYTES);
    Tokens t = {NEW_ARRAY(mem, int32_t, n), (int)n, (int)n};
    for (size_t i = 0; i < n; i++) t.id[i] = (unsigned char)s[i];
    return t;
}

static _Noreturn void bad_list(const char *list, const char *at, const char *why) {
    int col = (int)(at - list) + 1;
    fail(EXIT_CONFIG,
         "list of tokens, character %d, at '%.20s': %s; write numbers such as "
         "1,2,3",
         col, at, why);
}

Tokens tokens_parse(Arena *mem, const char *list, int64_t vocab) {
    Tokens t = {0};
    const char *p = list;
    while (is_blank_char(*p)) p++;
    while (*p) {
        const char *start = p;
        int64_t value = 0;
        if (*p < '0' || *p > '9') bad_list(list, p, "not a number from 0 up");
        for (; *p >= '0' && *p <= '9'; p++) {
            value = value * 10 + (*p - '0');
            if (value >= vocab)
                fail(EXIT_CONFIG,
                     "token %.20s is outside of the model's vocabulary, 0..%lld", start,
                     (long long)vocab - 1);
        }
        PUSH(mem, t.id, t.n, t.cap, (int32_t)value);
        const char *end = p;
        while (is_blank_char(*p)) p++;
        bool comma = *p == ',';
        if (comma) p++;
        while (is_blank_char(*p)) p++;
        if (!*p && comma) bad_list(list, end, "nothing after the comma");
        if (*p && p == end) bad_list(list, p, "not a number from 0 up");
    }
    return t;
}

/* Room after the longest beginning of `stop` for one incomplete character. */
enum { CHARACTER_BYTES = 4 };

TextPrinter *text_printer_new(Arena *mem, FILE *out, Text *keep, const char *const *stop,
                              int nstop) {
    TextPrinter *s = NEW(mem, TextPrinter);
    s->out = out;
    s->keep = keep;
    s->stop = NEW_ARRAY(mem, const char *, (size_t)nstop + 1);
    size_t most = 0;
    for (int i = 0; i < nstop; i++) {
        size_t n = strlen(stop[i]);
        if (n > TEXT_MAX_STOP_BYTES)
            fail(EXIT_CONFIG, "the stop text has %zu bytes; at most %d are allowed", n,
                 TEXT_MAX_STOP_BYTES);
        if (n) s->stop[s->nstop++] = stop[i];
        most = MAX(most, n);
    }
    s->held = arena_alloc(mem, most + 2 * CHARACTER_BYTES);
    return s;
}

static void print_bytes(TextPrinter *s, const char *p, size_t n) {
    if (s->out) fwrite(p, 1, n, s->out);
    if (s->keep) text_add_bytes(s->keep, p, n);
}

/* Can bytes after p[n], 1 <= n < 4, complete it to one character? The second byte of a
 * character has the narrowest choice: one trial for each range of it. */
static bool may_become_character(const char *p, size_t n) {
    for (int i = 0; i < 3; i++) {
        static const char next[3] = {(char)0x80, (char)0x90, (char)0xA0};
        char trial[CHARACTER_BYTES];
        memcpy(trial, p, n);
        memset(trial + n, 0x80, sizeof trial - n);
        trial[n] = next[i];
        if (utf8_check(trial, sizeof trial) > (int)n) return true;
    }
    return false;
}

/* Prints the characters of held[0, n) and forgets them; the last may be incomplete, and
 * then stays unless `all`. */
static void print_held(TextPrinter *s, size_t n, bool all) {
    size_t i = 0;
    while (i < n) {
        int size = utf8_check(s->held + i, n - i);
        size_t left = n - i;
        if (size == 0 && !all && left < CHARACTER_BYTES &&
            may_become_character(s->held + i, left))
            break;
        size_t done = (size_t)size;
        if (!size) done = s->each_byte ? 1 : utf8_part(s->held + i, left);
        if (size)
            print_bytes(s, s->held + i, done);
        else
            print_bytes(s, "\xEF\xBF\xBD", 3);
        i += done;
    }
    s->held_n -= i;
    memmove(s->held, s->held + i, s->held_n);
    if (i && s->out) fflush(s->out);
}

/* Length of the longest end of held that `stop` begins with. */
static size_t stop_overlap(const TextPrinter *s, const char *stop) {
    size_t n = MIN(s->held_n, strlen(stop));
    while (n && memcmp(s->held + s->held_n - n, stop, n)) n--;
    return n;
}

bool text_printer_put(TextPrinter *s, unsigned char byte) {
    if (s->ended) return false;
    s->held[s->held_n++] = (char)byte;
    size_t overlap = 0;
    for (int i = 0; i < s->nstop; i++) {
        size_t n = stop_overlap(s, s->stop[i]);
        overlap = MAX(overlap, n);
        if (n < strlen(s->stop[i])) continue;
        print_held(s, s->held_n - n, true);
        s->held_n = 0;
        s->ended = true;
        return false;
    }
    print_held(s, s->held_n - overlap, false);
    return true;
}

void text_printer_end(TextPrinter *s) {
    if (!s->ended) print_held(s, s->held_n, true);
    s->ended = true;
}
