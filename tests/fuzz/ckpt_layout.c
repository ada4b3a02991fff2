/* Whatever layout.json is accepted, the parts of its ranks lie inside the tensor and
 * inside their files, and together they are the tensor. */
#include "runtime/store/ckpt_table.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MAX_ELEMENTS = 2000, MAX_RANKS = 24 };

static int64_t elements(const CkptRow *row) {
    int64_t n = 1;
    for (int d = 0; d < row->rank; d++) n *= row->dim[d];
    return n;
}

/* Elements of a rank's part that are no padding, against the whole tensor. */
static int64_t held(const CkptRow *row, int rank, int64_t n) {
    CkptTensor t = {.dtype = DT_F32, .rank = row->rank};
    memcpy(t.dim, row->dim, sizeof t.dim);
    Layout whole = ckpt_layout(&t, NULL);
    int64_t dim[SAFETENSORS_MAX_RANK], part = 1, sum = 0;
    int dims = ckpt_part_shape(&row->layout, dim);
    for (int d = 0; d < dims; d++) part *= dim[d];
    check(part == layout_local_count(&row->layout));
    Overlap o = overlap_of(&row->layout, rank, &whole, 0, n);
    while (overlap_next(&o)) {
        check(o.count > 0 && o.a_at >= 0 && o.a_at + o.count <= part);
        check(o.b_at >= 0 && o.b_at + o.count <= n);
        sum += o.count;
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    Arena *mem = arena_new();
    CkptTable *table = NEW(mem, CkptTable);
    const char *text = arena_strndup(mem, (const char *)data, n);
    const char *wrong = table_parse(mem, text, table);
    for (int i = 0; !wrong && i < table->n; i++) {
        const CkptRow *row = &table->row[i];
        int64_t all = elements(row), sum = 0;
        int ranks = mesh_ranks(&table->mesh);
        check(table_find(table, row->kind, row->name) == row);
        if (all > MAX_ELEMENTS || ranks > MAX_RANKS) continue;
        for (int r = 0; r < ranks; r++)
            if (ckpt_writes(row, r)) sum += held(row, r, all);
        check(sum == all);
    }
    arena_free(mem);
    return 0;
}
