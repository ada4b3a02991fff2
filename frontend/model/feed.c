/* feed.c - see feed.h. */
#include "frontend/model/feed.h"
#include <stddef.h>

/* The array of a batch of tokens that a role names; false: another role. */
static bool array_of_role(ArgRole role, size_t *array) {
    static const struct {
        ArgRole role;
        size_t array;
    } rows[] = {{ARG_tokens, offsetof(DataBatch, tokens)},
                {ARG_labels, offsetof(DataBatch, labels)},
                {ARG_positions, offsetof(DataBatch, positions)},
                {ARG_attends_from, offsetof(DataBatch, attends_from)}};
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        if (rows[i].role != role) continue;
        *array = rows[i].array;
        return true;
    }
    return false;
}

bool feed_source(const Job *j, const Func *f, int i, FeedSource *s) {
    *s = (FeedSource){.column = -1, .sample = j->seq};
    if (!j->ncolumns) return array_of_role(arg_role(f, i), &s->array);
    for (int k = 0; k < j->ncolumns; k++)
        if (!strcmp(j->column[k].name, f->arg[i]->name)) {
            s->column = k;
            s->sample = j->column[k].count;
        }
    return s->column >= 0;
}

const int32_t *feed_array(const FeedSource *s, const DataBatch *b) {
    if (s->column >= 0) return b->column[s->column];
    const int32_t *array;
    memcpy(&array, (const char *)b + s->array, sizeof array);
    return array;
}

/* Elements [first, first + n) of samples in zigzag order. */
static void copy_zigzag(int64_t ring, int64_t sample, int32_t *to, const int32_t *from,
                        int64_t first, int64_t n) {
    for (int64_t k = 0; k < n; k++) {
        int64_t row = (first + k) / sample, at = (first + k) % sample;
        to[k] = from[row * sample + zigzag_position(at, sample, ring)];
    }
}

void feed_part(const Layout *l, int rank, int64_t ring, int64_t sample,
               const int32_t *from, int32_t *to) {
    LayoutWalk w = layout_walk(l, rank);
    while (layout_next(&w))
        if (ring)
            copy_zigzag(ring, sample, to + w.local, from, w.global, w.count);
        else
            memcpy(to + w.local, from + w.global, (size_t)w.count * sizeof *to);
}
