/* nfc.c - see nfc.h. A text is worked on in parts that no normalization reaches across:
 * each begins with a character that neither is put together with what is before it nor
 * moves. */
#include "runtime/text/nfc.h"
#include "base/utf8.h"
#include "runtime/text/nfc_tables.h"
#include <stdlib.h>

enum {
    CODE_POINTS = 0x110000,
    /* Hangul syllables are a rule of their own: UAX 15, section 16. */
    HANGUL = 0xAC00,
    LEADS = 0x1100,
    VOWELS = 0x1161,
    TAILS = 0x11A7,
    LEAD_COUNT = 19,
    VOWEL_COUNT = 21,
    TAIL_COUNT = 28,
    SYLLABLES = LEAD_COUNT * VOWEL_COUNT * TAIL_COUNT,
    MOST_PARTS = 4 /* that a character is made of */
};

struct Nfc {
    uint8_t changes[CODE_POINTS / 8];   /* bit: may not stay as it is where it is */
    uint8_t follows[CODE_POINTS / 8];   /* bit: may be put together with what is before */
    NfcPair pair[ARRAY_LEN(nfc_pairs)]; /* by first, second */
    NfcPair apart[ARRAY_LEN(nfc_pairs) + ARRAY_LEN(nfc_alone) + ARRAY_LEN(nfc_others)];
    int napart; /* of apart, by code; second 0: made of one */
};

static void bit_set(uint8_t *bits, uint32_t c) {
    bits[c / 8] |= (uint8_t)(1 << c % 8);
}

static bool bit_get(const uint8_t *bits, uint32_t c) {
    return bits[c / 8] >> c % 8 & 1;
}

static int compare_pairs(const void *a, const void *b) {
    const NfcPair *x = a, *y = b;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return (x->second > y->second) - (x->second < y->second);
}

static int compare_codes(const void *a, const void *b) {
    const NfcPair *x = a, *y = b;
    return (x->code > y->code) - (x->code < y->code);
}

static void add_alone(Nfc *nfc, NfcPair p) {
    nfc->apart[nfc->napart++] = p;
    bit_set(nfc->changes, p.code);
    /* What it becomes may begin with a mark. */
    if (bit_get(nfc->follows, p.first)) bit_set(nfc->follows, p.code);
}

static void fill_apart(Nfc *nfc) {
    const uint32_t *other = nfc_others;
    for (int i = 0; i < ARRAY_LEN(nfc_runs); i++)
        for (uint32_t k = 0; k < nfc_runs[i].n; k++)
            add_alone(nfc, (NfcPair){nfc_runs[i].first + k, *other++, 0});
    for (int i = 0; i < ARRAY_LEN(nfc_alone); i++) add_alone(nfc, nfc_alone[i]);
    for (int i = 0; i < ARRAY_LEN(nfc_pairs); i++) {
        nfc->apart[nfc->napart++] = nfc_pairs[i];
        bit_set(nfc->changes, nfc_pairs[i].second);
        bit_set(nfc->follows, nfc_pairs[i].second);
    }
    qsort(nfc->apart, (size_t)nfc->napart, sizeof *nfc->apart, compare_codes);
}

const Nfc *nfc_new(Arena *mem) {
    Nfc *nfc = NEW(mem, Nfc);
    for (int i = 0; i < ARRAY_LEN(nfc_classes); i++)
        for (uint32_t c = nfc_classes[i].first; c <= nfc_classes[i].last; c++) {
            bit_set(nfc->changes, c);
            bit_set(nfc->follows, c);
        }
    fill_apart(nfc);
    for (uint32_t c = VOWELS; c < TAILS + TAIL_COUNT; c++) {
        bit_set(nfc->changes, c);
        bit_set(nfc->follows, c);
    }
    memcpy(nfc->pair, nfc_pairs, sizeof nfc_pairs);
    qsort(nfc->pair, ARRAY_LEN(nfc_pairs), sizeof *nfc->pair, compare_pairs);
    return nfc;
}

bool nfc_is(const Nfc *nfc, const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        if ((unsigned char)s[i] < 0xCC) { /* below U+0300 nothing changes */
            i++;
            continue;
        }
        size_t size = (size_t)utf8_check(s + i, n - i);
        if (bit_get(nfc->changes, utf8_get(s + i, size))) return false;
        i += size;
    }
    return true;
}

static int compare_class(const void *code, const void *class) {
    const uint32_t c = *(const uint32_t *)code;
    const NfcClass *k = class;
    return (c > k->last) - (c < k->first);
}

static int combining_class(const Nfc *nfc, uint32_t c) {
    if (!bit_get(nfc->follows, c)) return 0;
    const NfcClass *k =
        bsearch(&c, nfc_classes, ARRAY_LEN(nfc_classes), sizeof *k, compare_class);
    return k ? k->combining : 0;
}

static const NfcPair *made_of(const Nfc *nfc, uint32_t c) {
    NfcPair want = {.code = c};
    return bsearch(&want, nfc->apart, (size_t)nfc->napart, sizeof want, compare_codes);
}

/* The parts of c, each made of one character; returns how many. */
static int take_apart(const Nfc *nfc, uint32_t c, uint32_t part[MOST_PARTS]) {
    if (c >= HANGUL && c < HANGUL + SYLLABLES) {
        uint32_t s = c - HANGUL, tail = s % TAIL_COUNT;
        part[0] = LEADS + s / (VOWEL_COUNT * TAIL_COUNT);
        part[1] = VOWELS + s / TAIL_COUNT % VOWEL_COUNT;
        part[2] = TAILS + tail;
        return tail ? 3 : 2;
    }
    /* The first part of a pair may be a pair again; the second never is. */
    uint32_t behind[MOST_PARTS];
    int n = 0, made = 0;
    for (const NfcPair *p; (p = made_of(nfc, c)); c = p->first)
        if (p->second) {
            check(n < MOST_PARTS - 1);
            behind[n++] = p->second;
        }
    part[made++] = c;
    while (n) part[made++] = behind[--n];
    return made;
}

/* What a and b are together, or 0. */
static uint32_t put_together(const Nfc *nfc, uint32_t a, uint32_t b) {
    if (a - LEADS < LEAD_COUNT && b - VOWELS < VOWEL_COUNT)
        return HANGUL + ((a - LEADS) * VOWEL_COUNT + b - VOWELS) * TAIL_COUNT;
    if (a - HANGUL < SYLLABLES && (a - HANGUL) % TAIL_COUNT == 0 && b > TAILS &&
        b < TAILS + TAIL_COUNT)
        return a + b - TAILS;
    NfcPair want = {.first = a, .second = b};
    const NfcPair *p =
        bsearch(&want, nfc->pair, ARRAY_LEN(nfc_pairs), sizeof want, compare_pairs);
    return p ? p->code : 0;
}

typedef struct Mark {
    uint32_t c;
    uint32_t class; /* its combining class; 0 keeps its place */
} Mark;

/* Parts between characters of class 0 in the order of their classes, equals as they are. */
static void order(Mark *m, int n, Mark *room) {
    for (int i = 0, end; i < n; i = end + 1) {
        bool sorted = true;
        for (end = i; end < n && m[end].class; end++)
            sorted &= end == i || m[end - 1].class <= m[end].class;
        if (sorted) continue;
        int at[257] = {0};
        for (int k = i; k < end; k++) at[m[k].class + 1]++;
        for (int k = 0; k < 256; k++) at[k + 1] += at[k];
        for (int k = i; k < end; k++) room[at[m[k].class]++] = m[k];
        memcpy(m + i, room, (size_t)(end - i) * sizeof *m);
    }
}

/* UAX 15's D117: a mark joins the last character of class 0 unless one between has its
 * class or a higher one. */
static int compose(const Nfc *nfc, Mark *m, int n) {
    int made = 0, starter = -1;
    for (int i = 0; i < n; i++) {
        Mark k = m[i];
        bool free =
            starter >= 0 && (starter == made - 1 ||
                             (m[made - 1].class < k.class && m[made - 1].class != 0));
        uint32_t both = free ? put_together(nfc, m[starter].c, k.c) : 0;
        if (both) {
            m[starter].c = both;
            continue;
        }
        if (!k.class) starter = made;
        m[made++] = k;
    }
    return made;
}

typedef struct Part {
    Mark *mark, *room;
    int n;
} Part;
_Static_assert(NFC_ROOM_BYTES == 2 * NFC_MAX_MARKS * sizeof(Mark), "both fit");

static void part_add(const Nfc *nfc, Part *p, uint32_t c) {
    if (p->n == NFC_MAX_MARKS)
        fail(EXIT_DATA, "a character with %d marks on it: is this text?", p->n);
    p->mark[p->n++] = (Mark){c, (uint32_t)combining_class(nfc, c)};
}

static size_t part_put(const Nfc *nfc, Part *p, char *out) {
    size_t bytes = 0;
    order(p->mark, p->n, p->room);
    int n = compose(nfc, p->mark, p->n);
    for (int i = 0; i < n; i++) bytes += (size_t)utf8_put(p->mark[i].c, out + bytes);
    p->n = 0;
    return bytes;
}

size_t nfc_put(const Nfc *nfc, const char *s, size_t n, char *out, void *room) {
    Part part = {.mark = room, .room = (Mark *)room + NFC_MAX_MARKS};
    size_t made = 0;
    for (size_t i = 0; i < n;) {
        size_t size = (size_t)utf8_check(s + i, n - i);
        uint32_t c = utf8_get(s + i, size), of[MOST_PARTS];
        if (part.n && !bit_get(nfc->follows, c)) made += part_put(nfc, &part, out + made);
        int parts = take_apart(nfc, c, of);
        for (int k = 0; k < parts; k++) part_add(nfc, &part, of[k]);
        i += size;
    }
    return made + (part.n ? part_put(nfc, &part, out + made) : 0);
}
