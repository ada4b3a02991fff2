/* npy.c - see npy.h. */
#include "runtime/store/npy.h"
#include "runtime/store/element.h"

static const unsigned char magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

/* A reader over the header's text, which ends at `end`. */
typedef struct Header {
    const char *at, *end;
} Header;

static void skip_blanks(Header *h) {
    while (h->at < h->end && strchr(" \t\n\r", *h->at) && *h->at) h->at++;
}

static bool take(Header *h, char c) {
    skip_blanks(h);
    if (h->at >= h->end || *h->at != c) return false;
    h->at++;
    return true;
}

/* A quoted word of at most size - 1 characters. */
static bool take_word(Header *h, char *out, size_t size) {
    skip_blanks(h);
    char quote = h->at < h->end ? *h->at : 0;
    if (quote != '\'' && quote != '"') return false;
    const char *from = ++h->at;
    while (h->at < h->end && *h->at != quote) h->at++;
    size_t n = (size_t)(h->at - from);
    if (h->at >= h->end || n >= size) return false;
    memcpy(out, from, n);
    out[n] = 0;
    h->at++;
    return true;
}

/* Python knows no number like 03. */
static bool take_number(Header *h, int64_t *out) {
    skip_blanks(h);
    const char *from = h->at;
    *out = 0;
    for (; h->at < h->end && *h->at >= '0' && *h->at <= '9'; h->at++)
        if (__builtin_mul_overflow(*out, 10, out) ||
            __builtin_add_overflow(*out, *h->at - '0', out))
            return false;
    return h->at > from && (*from != '0' || h->at == from + 1);
}

/* (3) is a number to Python; the tuple is (3,). */
static const char *take_shape(Arena *mem, Header *h, Npy *x) {
    static const char wrong[] = "its shape is no tuple of numbers";
    bool comma = false;
    (void)mem;
    if (!take(h, '(')) return wrong;
    while (!take(h, ')')) {
        if (x->rank == NPY_MAX_RANK) return "it has more than 8 dimensions";
        if (!take_number(h, &x->dim[x->rank++])) return wrong;
        if (take(h, ','))
            comma = true;
        else if (h->at >= h->end || *h->at != ')')
            return wrong;
    }
    return x->rank == 1 && !comma ? wrong : NULL;
}

/* Is there an element type of this letter and size? */
static bool is_type(char kind, char bytes) {
    const char *sizes = kind == 'f'                  ? "248"
                        : kind == 'b'                ? "1"
                        : kind == 'i' || kind == 'u' ? "1248"
                                                     : "";
    return bytes && strchr(sizes, bytes);
}

static const char *take_type(Arena *mem, Header *h, Npy *x) {
    char descr[32] = "";
    if (!take_word(h, descr, sizeof descr)) return "its elements are records";
    char order = descr[0], kind = descr[0] ? descr[1] : 0;
    bool known = strlen(descr) == 3 && is_type(kind, descr[2]);
    if (known && descr[2] > '1' && order == '>')
        return arena_printf(mem,
                            "its elements are big-endian (%s): save it with "
                            "array.astype('<%s')",
                            descr, descr + 1);
    if (!known || !strchr("<|=", order))
        return arena_printf(mem,
                            "its elements are of type '%s'; save it as float32, "
                            "int32 or another type of plain numbers",
                            descr);
    x->kind = kind;
    x->element_bytes = descr[2] - '0';
    return NULL;
}

static const char *take_flag(Arena *mem, Header *h, Npy *x) {
    static const char no[] = "False";
    (void)mem, (void)x;
    skip_blanks(h);
    size_t n = sizeof no - 1;
    if ((size_t)(h->end - h->at) < n || memcmp(h->at, no, n))
        return "it is stored column by column: save it with numpy.ascontiguousarray";
    h->at += n;
    return NULL;
}

/* What stands in a header, each once; NULL, or what is wrong with it. */
static const struct {
    const char *key;
    const char *(*take)(Arena *mem, Header *h, Npy *x);
} entries[] = {{"descr", take_type}, {"fortran_order", take_flag}, {"shape", take_shape}};

static const char *read_header(Arena *mem, Header h, Npy *x) {
    static const char broken[] = "its header is no NumPy dictionary";
    unsigned seen = 0;
    if (!take(&h, '{')) return broken;
    while (!take(&h, '}')) {
        char key[32];
        int which = 0;
        if (!take_word(&h, key, sizeof key) || !take(&h, ':')) return broken;
        while (which < ARRAY_LEN(entries) && strcmp(key, entries[which].key)) which++;
        if (which == ARRAY_LEN(entries) || seen >> which & 1) return broken;
        seen |= 1u << which;
        const char *wrong = entries[which].take(mem, &h, x);
        if (wrong) return wrong;
        if (!take(&h, ',') && !(h.at < h.end && *h.at == '}')) return broken;
    }
    skip_blanks(&h);
    return seen == (1u << ARRAY_LEN(entries)) - 1 && h.at == h.end ? NULL : broken;
}

const char *npy_parse(Arena *mem, const void *bytes, uint64_t n, Npy *out) {
    const unsigned char *p = bytes;
    *out = (Npy){0};
    if (n < 10 || memcmp(p, magic, sizeof magic)) return "it is no .npy file";
    int length_bytes = p[6] == 1 ? 2 : 4;
    if (p[6] < 1 || p[6] > 3 || p[7] != 0 || n < 8u + (unsigned)length_bytes)
        return "it is of a version of .npy that is not known";
    uint64_t header = little_endian(p + 8, length_bytes);
    uint64_t first = 8 + (uint64_t)length_bytes + header;
    if (first > n) return "it was cut off in its header";
    const char *text = (const char *)p + 8 + length_bytes;
    const char *wrong = read_header(mem, (Header){text, text + header}, out);
    if (wrong) return wrong;
    uint64_t size = (uint64_t)out->element_bytes;
    for (int i = 0; i < out->rank; i++)
        if (!mul_size(size, (uint64_t)out->dim[i], &size))
            return "its shape is too large";
    if (size != n - first)
        return arena_printf(mem, "its shape needs %llu bytes and the file has %llu",
                            (unsigned long long)size, (unsigned long long)(n - first));
    out->data = p + first;
    return NULL;
}
