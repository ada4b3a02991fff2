/* data_indexed.c - Megatron-LM's .bin/.idx pairs; see data.h and indexed.h.
 *
 * What order is promised: sequences in file order make one token stream; sample i is the
 * seq + 1 tokens from i * seq on, and samples are shuffled as data_permute says. A split
 * is some consecutive documents: no sample goes across its ends. Megatron's own samples,
 * cut from shuffled documents, are the type GPTDataset. */
#include "runtime/data/data_reader.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tables are little-endian");

enum { HEADER_BYTES = 34, CODE_F64 = 6, CODE_F32 = 7, CODE_LAST = 8 };

/* By the code in the header. */
static const struct {
    const char *name;
    int bytes;
} token_types[CODE_LAST + 1] = {{"?", 0},   {"u8", 1},  {"i8", 1},
                                {"i16", 2}, {"i32", 4}, {"i64", 8},
                                {"f64", 8}, {"f32", 4}, {"u16", 2}};

#define BAD(offset, ...) indexed_fail(name, (uint64_t)(offset), __VA_ARGS__)
__attribute__((format(printf, 3, 4))) static _Noreturn void
indexed_fail(const char *name, uint64_t offset, const char *fmt, ...) {
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    fail(EXIT_DATA, "%s: offset %llu: %s", name, (unsigned long long)offset, what);
}

/* Sequences follow each other in the .bin without gap or overlap and fill it. */
static void check_sequences(const char *name, const unsigned char *p,
                            const IndexedTable *t, uint64_t bin_bytes) {
    uint64_t end = 0;
    for (int64_t i = 0; i < t->sequences; i++) {
        int64_t length = indexed_length(t, i), pointer = i64_at(t->pointers, i);
        if (length < 0)
            BAD(t->lengths - p + 4 * i, "length of sequence %lld is %lld", (long long)i,
                (long long)length);
        if (pointer < 0 || (uint64_t)pointer != end)
            BAD(t->pointers - p + 8 * i,
                "sequence %lld begins at byte %lld of the .bin; the one before ends at "
                "%llu",
                (long long)i, (long long)pointer, (unsigned long long)end);
        uint64_t bytes = (uint64_t)length * (uint64_t)t->token_bytes;
        if (bytes > bin_bytes - end)
            BAD(t->lengths - p + 4 * i,
                "sequence %lld of %lld tokens ends beyond the .bin of %llu bytes",
                (long long)i, (long long)length, (unsigned long long)bin_bytes);
        end += bytes;
    }
    if (end != bin_bytes)
        BAD(HEADER_BYTES, "the sequences have %llu bytes, the .bin has %llu",
            (unsigned long long)end, (unsigned long long)bin_bytes);
}

static void check_documents(const char *name, const unsigned char *p,
                            const IndexedTable *t) {
    int64_t before = 0;
    for (int64_t i = 0; i <= t->documents; i++) {
        int64_t at = i64_at(t->doc_index, i);
        int64_t least = i == 0 ? 0 : before;
        int64_t most = i == 0 ? 0 : t->sequences;
        if (i == t->documents) least = t->sequences;
        if (at < least || at > most)
            BAD(t->doc_index - p + 8 * i,
                "document boundary %lld is sequence %lld; it must be %lld .. %lld",
                (long long)i, (long long)at, (long long)least, (long long)most);
        before = at;
    }
}

/* Marks of another modality (images) may follow the tables, one byte a sequence. */
static void check_modes(const char *name, const unsigned char *p, uint64_t begin,
                        uint64_t n) {
    for (uint64_t i = begin; i < n; i++)
        if (p[i])
            BAD(i, "sequence %llu has mode %d; only text (mode 0) can be read",
                (unsigned long long)(i - begin), p[i]);
}

IndexedTable indexed_parse(const char *name, const void *bytes, uint64_t n,
                           uint64_t bin_bytes) {
    const unsigned char *p = bytes;
    if (n < HEADER_BYTES)
        BAD(n, "the file ends inside its header of %d bytes", HEADER_BYTES);
    if (memcmp(p, "MMIDIDX\0\0", 9))
        BAD(0, "this is no Megatron-LM index: it does not begin with MMIDIDX");
    uint64_t version = u64_at(p + 9), sequences = u64_at(p + 18),
             entries = u64_at(p + 26);
    if (version != 1)
        BAD(9, "version %llu; version 1 can be read", (unsigned long long)version);
    int code = p[17];
    if (code < 1 || code > CODE_LAST)
        BAD(17, "element type %d is not known; there are 1 .. %d", code, CODE_LAST);
    if (sequences > (n - HEADER_BYTES) / 12)
        BAD(18, "%llu sequences do not fit into a file of %llu bytes",
            (unsigned long long)sequences, (unsigned long long)n);
    if (entries < 1 || entries > (n - HEADER_BYTES) / 8)
        BAD(26, "%llu document boundaries: at least 1, at most what the file can hold",
            (unsigned long long)entries);
    uint64_t end = HEADER_BYTES + 12 * sequences + 8 * entries;
    if (n != end && n != end + sequences)
        BAD(18, "%llu sequences and %llu boundaries need %llu bytes; the file has %llu",
            (unsigned long long)sequences, (unsigned long long)entries,
            (unsigned long long)end, (unsigned long long)n);
    IndexedTable t = {.token_bytes = token_types[code].bytes,
                      .dtype_code = code,
                      .dtype = token_types[code].name,
                      .sequences = (int64_t)sequences,
                      .documents = (int64_t)entries - 1,
                      .lengths = p + HEADER_BYTES,
                      .pointers = p + HEADER_BYTES + 4 * sequences,
                      .doc_index = p + HEADER_BYTES + 12 * sequences};
    check_sequences(name, p, &t, bin_bytes);
    check_documents(name, p, &t);
    check_modes(name, p, end, n);
    return t;
}

void indexed_file_open(Arena *mem, IndexedFile *x, const char *path) {
    size_t n = strlen(path);
    bool suffixed = n > 4 && (ends_with(path, ".bin") || ends_with(path, ".idx"));
    char *stem = arena_strndup(mem, path, suffixed ? n - 4 : n);
    x->idx_path = arena_printf(mem, "%s.idx", stem);
    x->bin_path = arena_printf(mem, "%s.bin", stem);
    if (!suffixed && !file_exists(x->idx_path) && file_exists(path) && !dir_exists(path))
        fail(EXIT_DATA,
             "there is no %s; %s itself may be a text: stator preprocess makes a pair of "
             "it, or --train_dataset.data_loader.type TextFile reads it",
             x->idx_path, path);
    file_map(&x->idx, x->idx_path);
    file_map(&x->bin, x->bin_path);
    x->table = indexed_parse(x->idx_path, x->idx.bytes, x->idx.n, x->bin.n);
}

void indexed_file_close(IndexedFile *x) {
    file_unmap(&x->idx);
    file_unmap(&x->bin);
}

/* The documents of a split, which are one stretch of the .bin. */
typedef struct IndexedSource {
    IndexedFile file;
    int64_t first; /* token */
} IndexedSource;

/* The token that document i begins with; for the one after the last, the number of
 * tokens. */
static int64_t document_begin(const IndexedFile *x, int64_t i) {
    const IndexedTable *t = &x->table;
    int64_t sequence = i64_at(t->doc_index, i);
    return sequence < t->sequences ? indexed_begin(t, sequence)
                                   : (int64_t)x->bin.n / t->token_bytes;
}

static void indexed_open(Arena *mem, Data *d) {
    IndexedSource *s = NEW(mem, IndexedSource);
    int64_t first, end;
    d->state = s;
    indexed_file_open(mem, &s->file, d->path);
    data_part(d, s->file.table.documents, &first, &end);
    s->first = document_begin(&s->file, first);
    d->tokens = document_begin(&s->file, end) - s->first;
}

/* Token of a floating-point file, or -1 when it is no whole number of an int32. */
static int64_t token_of_float(double v) {
    return v >= 0 && v < 2147483648.0 && v == (double)(int64_t)v ? (int64_t)v : -1;
}

/* -1 for what cannot be a token. */
static int64_t token_at(const unsigned char *p, int code) {
    union {
        uint8_t u8;
        int8_t i8;
        int16_t i16;
        uint16_t u16;
        int32_t i32;
        int64_t i64;
        float f32;
        double f64;
    } v;
    memcpy(&v, p, (size_t)token_types[code].bytes);
    switch (code) {
    case 1:
        return v.u8;
    case 2:
        return v.i8;
    case 3:
        return v.i16;
    case 4:
        return v.i32;
    case 5:
        return v.i64;
    case CODE_F64:
        return token_of_float(v.f64);
    case CODE_F32:
        return token_of_float(v.f32);
    default:
        return v.u16;
    }
}

double indexed_number(const unsigned char *p, int code) {
    float f32;
    double f64;
    memcpy(&f32, p, code == CODE_F32 ? sizeof f32 : 0);
    memcpy(&f64, p, code == CODE_F64 ? sizeof f64 : 0);
    if (code == CODE_F64) return f64;
    return code == CODE_F32 ? (double)f32 : (double)token_at(p, code);
}

/* The last of table[0 .. n) that is not above `value`; the table is sorted. */
static int64_t last_not_above(const unsigned char *table, int64_t n, int64_t value) {
    int64_t low = 0, high = n;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (i64_at(table, middle) <= value)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static _Noreturn void fail_at_token(const Data *d, const IndexedFile *x, int64_t at) {
    const IndexedTable *t = &x->table;
    int64_t offset = at * t->token_bytes;
    int64_t sequence = last_not_above(t->pointers, t->sequences, offset);
    int64_t document = last_not_above(t->doc_index, t->documents, sequence);
    char token[32];
    const unsigned char *p = x->bin.bytes + offset;
    if (t->dtype_code == CODE_F32 || t->dtype_code == CODE_F64)
        snprintf(token, sizeof token, "%g", indexed_number(p, t->dtype_code));
    else
        snprintf(token, sizeof token, "%lld", (long long)token_at(p, t->dtype_code));
    data_fail_token(d, "%s: document %lld, offset %lld: token %s", x->bin_path,
                    (long long)document, (long long)offset, token);
}

void indexed_file_read(const Data *d, const IndexedFile *x, int64_t at, int64_t n,
                       int64_t pad, int32_t *out) {
    int64_t limit = data_token_limit(d);
    int code = x->table.dtype_code, step = x->table.token_bytes;
    const unsigned char *p = x->bin.bytes + at * step;
    for (int64_t i = 0; i < n; i++) {
        int64_t token = token_at(p + i * step, code);
        if (token < 0 || (token >= limit && token != pad)) fail_at_token(d, x, at + i);
        out[i] = (int32_t)token;
    }
}

static void indexed_read(const Data *d, int64_t sample, int64_t from, int64_t n,
                         int32_t *out) {
    const IndexedSource *s = d->state;
    indexed_file_read(d, &s->file, s->first + sample * d->seq + from, n, -1, out);
}

static void indexed_close(Data *d) {
    IndexedSource *s = d->state;
    if (s) indexed_file_close(&s->file);
}

const DataReader data_indexed = {"MegatronIndexed", false,         indexed_open,
                                 indexed_read,      indexed_close, NULL};
