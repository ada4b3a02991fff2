/* data_columns.c - ready tensors by name: a safetensors file, or a folder of .npy files
 * (NAME.npy). Each is [samples, dimensions of one sample]; a sample is slice i of each.
 */
#include "runtime/data/data_reader.h"
#include "runtime/store/element.h"
#include "runtime/store/npy.h"
#include "runtime/store/safetensors.h"

typedef struct ColumnSource { /* one tensor as its file has it */
    ElementType type;
    const char *type_name, *file;
    int rank;
    int64_t dim[NPY_MAX_RANK];
    const unsigned char *data;
    FileMap map; /* of an .npy; else empty */
} ColumnSource;

typedef struct Columns {
    Safetensors *file;    /* NULL: a folder */
    ColumnSource *source; /* of each column of the Data */
    int64_t first;        /* of the split */
} Columns;

/* ---- opening ---- */

static void open_npy(Arena *mem, const Data *d, const char *name, ColumnSource *s) {
    Npy x;
    s->file = path_join(mem, d->path, arena_printf(mem, "%s.npy", name));
    if (!file_exists(s->file))
        fail(EXIT_DATA,
             "%s is not there: the model's argument %%%s is read from it; or give one "
             "safetensors file with a tensor of that name",
             s->file, name);
    file_map(&s->map, s->file);
    const char *wrong = npy_parse(mem, s->map.bytes, s->map.n, &x);
    if (wrong) fail(EXIT_DATA, "%s: %s", s->file, wrong);
    s->type.kind = x.kind == 'f'   ? ELEMENT_FLOAT
                   : x.kind == 'i' ? ELEMENT_INT
                                   : ELEMENT_UINT;
    s->type.bytes = x.element_bytes;
    s->type_name = arena_printf(mem, "%c%d", x.kind, x.element_bytes);
    s->rank = x.rank;
    s->data = x.data;
    memcpy(s->dim, x.dim, sizeof s->dim);
}

static void open_tensor(const Data *d, Safetensors *file, const char *name,
                        ColumnSource *s) {
    const SafeTensor *t = safetensors_need(file, name);
    s->file = d->path;
    s->type_name = t->type_name;
    if (!element_type_named(t->type_name, &s->type))
        fail(EXIT_DATA,
             "%s: tensor '%s' has type %s, which is not a type of plain numbers", d->path,
             name, t->type_name);
    s->rank = t->rank;
    s->data = t->data;
    memcpy(s->dim, t->dim, sizeof s->dim);
}

static const char *shape_text(Arena *mem, const char *first, const int64_t *dim, int n) {
    Text t = text_new(mem);
    text_add(&t, "[%s", first);
    for (int i = 0; i < n; i++) text_add(&t, ", %lld", (long long)dim[i]);
    text_add(&t, "]");
    return t.s;
}

static void check_shape(Arena *mem, const DataColumn *c, const ColumnSource *s) {
    bool same = s->rank == c->rank + 1;
    for (int i = 0; same && i < c->rank; i++) same = s->dim[i + 1] == c->dim[i];
    if (!same)
        fail(EXIT_DATA, "%s: '%s' is %s, the model's argument takes %s", s->file, c->name,
             s->rank ? shape_text(mem, arena_printf(mem, "%lld", (long long)s->dim[0]),
                                  s->dim + 1, s->rank - 1)
                     : "one number",
             shape_text(mem, "samples", c->dim, c->rank));
    bool whole = s->type.kind == ELEMENT_INT || s->type.kind == ELEMENT_UINT;
    if (!c->is_float && !whole)
        fail(EXIT_DATA,
             "%s: '%s' has elements of type %s, the model's argument takes integers",
             s->file, c->name, s->type_name);
}

static void open_columns(Arena *mem, Data *d, Columns *x) {
    for (int i = 0; i < d->ncolumns; i++) {
        const DataColumn *c = &d->column[i];
        ColumnSource *s = &x->source[i];
        if (x->file)
            open_tensor(d, x->file, c->name, s);
        else
            open_npy(mem, d, c->name, s);
        check_shape(mem, c, s);
        if (s->dim[0] != x->source[0].dim[0])
            fail(EXIT_DATA, "%s: '%s' has %lld samples, '%s' has %lld", d->path, c->name,
                 (long long)s->dim[0], d->column[0].name, (long long)x->source[0].dim[0]);
    }
}

static void columns_open(Arena *mem, Data *d) {
    Columns *x = NEW(mem, Columns);
    d->state = x;
    check(d->ncolumns > 0);
    x->source = NEW_ARRAY(mem, ColumnSource, (size_t)d->ncolumns);
    if (!dir_exists(d->path)) x->file = safetensors_open(mem, d->path, EXIT_DATA);
    open_columns(mem, d, x);
    x->first = data_take_split(d, x->source[0].dim[0], "sample");
    d->tokens = d->samples;
}

/* ---- reading ---- */

static int32_t integer_at(const DataColumn *c, const ColumnSource *s, int64_t at,
                          int64_t sample, int64_t i) {
    int64_t v = 0;
    const unsigned char *p = s->data + at * s->type.bytes;
    bool fits = element_i64(s->type, p, &v);
    int64_t high = c->high ? c->high - 1 : INT32_MAX;
    bool classes = c->high && c->low < 0;
    if (!fits || v < c->low || v > high)
        fail(
            EXIT_DATA,
            "%s: '%s', sample %lld, element %lld is %lld; the model takes %lld to %lld%s",
            s->file, c->name, (long long)sample, (long long)i, (long long)v,
            (long long)(classes ? 0 : c->low), (long long)high,
            classes ? ", and below 0 what is of no class" : "");
    return (int32_t)v;
}

static void columns_row(const Data *d, int64_t sample, int64_t row, void *const *out) {
    const Columns *x = d->state;
    for (int k = 0; k < d->ncolumns; k++) {
        const DataColumn *c = &d->column[k];
        const ColumnSource *s = &x->source[k];
        int64_t at = (x->first + sample) * c->count;
        float *f = (float *)out[k] + row * c->count;
        int32_t *n = (int32_t *)out[k] + row * c->count;
        bool plain = c->is_float && s->type.kind == ELEMENT_FLOAT && s->type.bytes == 4;
        if (plain) memcpy(f, s->data + at * 4, (size_t)c->count * sizeof *f);
        for (int64_t i = 0; i < c->count && !plain; i++) {
            if (c->is_float)
                f[i] = element_f32(s->type, s->data + (at + i) * s->type.bytes);
            else
                n[i] = integer_at(c, s, at + i, x->first + sample, i);
        }
    }
}

static void columns_close(Data *d) {
    Columns *x = d->state;
    if (!x) return;
    if (x->file) safetensors_close(x->file);
    x->file = NULL;
    for (int i = 0; i < d->ncolumns; i++) file_unmap(&x->source[i].map);
}

const DataReader data_columns = {
    .type = "Tensors", .open = columns_open, .close = columns_close, .row = columns_row};
