/* marks.c - see marks.h. */
#include "passes/pipe/marks.h"
#include "ir/placement.h"
#include "passes/pipe/layers.h"

Marks marks_read(Arena *mem, const Func *model) {
    Marks marks = {0};
    int64_t layers = 0, chunk = 0;
    int cap = 0;
    for (Op *op = model->first; op; op = op->next) {
        int64_t here = op_int(op, "stage", -1);
        marks.any |= here >= 0;
        if (here >= 0 && here != chunk) {
            Mark mark = {op, (int)here, layers};
            PUSH(mem, marks.mark, marks.n, cap, mark);
            chunk = here;
        }
        layers += layers_of(op);
    }
    return marks;
}

/* Chunks [from, to) have no op of their own but `layers` of loops. `next`: the mark behind
 * them; NULL: the end of the model. */
static void share(int64_t *each, const Marks *marks, int from, int to, int64_t layers,
                  const Mark *next) {
    int n = to - from;
    if (n > 1 && layers < n && next)
        fail_op(next->op,
                "stage=%d: chunk %d has no ops; ops before this one end in chunk %d, and "
                "there are no %d layers of loops to share",
                next->chunk, from + 1, from, n);
    if (n > 1 && layers < n && marks->n)
        fail_op(marks->mark[marks->n - 1].op,
                "stage=%d: no op begins chunk %d; there are %d chunks, "
                "parallel_config.pipeline_stage x pp_interleave_num",
                from, from + 1, to);
    if (n > 1 && layers < n)
        fail(EXIT_CONFIG, "stage=0 is all that ops say; there are %d chunks", to);
    for (int c = 0; c < n; c++) each[from + c] = layers / n + (c < layers % n);
}

int64_t *marks_layers(Arena *mem, const Marks *marks, const Func *model, int chunks) {
    int64_t *each = NEW_ARRAY(mem, int64_t, (size_t)chunks), at = 0;
    int chunk = 0;
    for (int i = 0; i < marks->n; i++) {
        const Mark *m = &marks->mark[i];
        if (m->chunk >= chunks)
            fail_op(m->op,
                    "stage=%d: there are %d chunks, 0 to %d: "
                    "parallel_config.pipeline_stage x pp_interleave_num",
                    m->chunk, chunks, chunks - 1);
        share(each, marks, chunk, m->chunk, m->layers - at, m);
        chunk = m->chunk;
        at = m->layers;
    }
    share(each, marks, chunk, chunks, layers_count(model) - at, NULL);
    return each;
}

const int64_t *module_marked_layers(const Module *m, int chunks) {
    const Func *model = layers_model(m);
    const Marks marks = marks_read(m->mem, model);
    return marks.any ? marks_layers(m->mem, &marks, model, chunks) : NULL;
}
