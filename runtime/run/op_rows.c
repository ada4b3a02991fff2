/* op_rows.c - see op_rows.h. */
#include "runtime/run/op_rows.h"

static const OpRow marks[OP_MARKS] = {
    [-1 - MARK_STEP] = {.name = "step", .kind = "step", .runs = 1, .nests = true},
    [-1 - MARK_DATA] = {.name = "wait for data", .kind = "data", .runs = 1},
    [-1 - MARK_FEED] = {.name = "batch to its place", .kind = "data", .runs = 1},
};

const OpRow *op_row(const OpRow *op, int64_t number) {
    return number < 0 ? &marks[-1 - number] : &op[number];
}
