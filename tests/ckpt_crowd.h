/* ckpt_crowd.h - a small model whose every number follows from the step, laid out under
 * several strategies, for tests of checkpoints. */
#ifndef STATOR_TESTS_CKPT_CROWD_H
#define STATOR_TESTS_CKPT_CROWD_H
#include "runtime/store/ckpt.h"

static Arena *crowd_mem(void) {
    static Arena *a;
    return a ? a : (a = arena_new());
}

/* ---- a model under a strategy ---- */

enum { SMALL = 7, TENSORS = 8, MAX_PLAYED = 12 };

typedef struct Placed {
    const char *whole, *flat; /* whole NULL: no layout; flat NULL: boxes */
    int lead;
} Placed;

typedef struct Strategy {
    int naxes;
    const char *axis[3];
    int size[3];
    Placed of[TENSORS];
} Strategy;

static const struct {
    const char *name, *type;
    int file;
} model[TENSORS] = {
    {"wte", "f32[10,6]", CKPT_MODEL},       {"qkv", "f32[3,4,12]", CKPT_MODEL},
    {"bias", "bf16[12]", CKPT_MODEL},       {"wte", "f32[10,6]", CKPT_OPTIMIZER},
    {"qkv", "f32[3,4,12]", CKPT_OPTIMIZER}, {"norm", "f32[5]", CKPT_OPTIMIZER},
    {"count", "i64[]", CKPT_OPTIMIZER},     {"large", "f32[3,400,600]", CKPT_OPTIMIZER}};

/* Tests that visit every byte leave out the large one, which comes last. wte has two
 * rows of padding where 10 does not divide; norm never divides. */
static const Strategy strategies[] = {
    {0, {0}, {0}, {{0}}},
    {1, {"dp"}, {4}, {{0}}},
    {1,
     {"tp"},
     {4},
     {{"f32[12:tp,6]", NULL, 0},
      {"f32[3,4,12:tp]", NULL, 0},
      {"bf16[12:tp]", NULL, 0},
      {"f32[12:tp,6]", NULL, 0},
      {"f32[3,4:tp,12]", NULL, 0},
      {NULL, NULL, 0},
      {NULL, NULL, 0},
      {"f32[3,400,600:tp]", NULL, 0}}},
    {2,
     {"dp", "tp"},
     {2, 2},
     {{"f32[10:tp,6]", NULL, 0},
      {"f32[3,4,12:tp]", NULL, 0},
      {"bf16[12:tp]", NULL, 0},
      {"f32[10:tp,6]", "dp", 0},
      {"f32[3,4,12:tp]", "dp", 1},
      {"f32[5]", "dp", 0},
      {NULL, NULL, 0},
      {"f32[3,400:tp,600]", "dp", 1}}},
    {2,
     {"cp", "dp"},
     {2, 2},
     {{"f32[10,6]", "cp.dp", 0},
      {"f32[3,4,12]", "cp.dp", 1},
      {"bf16[12]", "cp.dp", 0},
      {"f32[10,6]", "cp.dp", 0},
      {"f32[3,4,12]", "cp.dp", 1},
      {"f32[5]", "cp.dp", 0},
      {"i64[]", "cp.dp", 0},
      {"f32[3,400,600]", "cp.dp", 1}}},
    {1,
     {"dp"},
     {5},
     {{"f32[10,6]", "dp", 0},
      {"f32[3,4,12]", "dp", 1},
      {"bf16[12]", "dp", 0},
      {"f32[10,6]", "dp", 0},
      {"f32[3,4,12]", "dp", 1},
      {"f32[5]", "dp", 0},
      {"i64[]", "dp", 0}}},
    {3,
     {"dp", "cp", "tp"},
     {2, 3, 2},
     {{"f32[12:tp.cp,6]", NULL, 0},
      {"f32[3:cp,4:dp,12:tp]", NULL, 0},
      {NULL, NULL, 0},
      {"f32[10,6:cp]", "dp.tp", 0},
      {"f32[3,4,12:tp]", "dp.cp", 1},
      {"f32[5]", "dp.cp.tp", 0}}},
    {1,
     {"dp"},
     {3},
     {{"f32[10,6]", NULL, 0},
      {"f32[3,4,12]", NULL, 0},
      {"bf16[12]", NULL, 0},
      {"f32[10,6]", NULL, 0},
      {"f32[3,4,12]", NULL, 0},
      {"f32[5]", NULL, 0},
      {"i64[]", NULL, 0},
      {"f32[3,400,600]", NULL, 0}}},
};
enum { STRATEGIES = ARRAY_LEN(strategies) };

typedef struct Crowd {
    int ranks;
    Mesh mesh;
    Layout layout[TENSORS];
    CkptTensor t[MAX_PLAYED][TENSORS];
} Crowd;

/* Element i of a tensor at a step, as its bytes. */
static void element(int tensor, int64_t step, int64_t i, char *bytes) {
    int64_t v = (step * 100 + tensor) * 1000 + i + 1;
    float f = (float)v;
    DType dt = model[tensor].type[0] == 'i' ? DT_I64 : DT_F32;
    if (model[tensor].type[0] == 'b') {
        uint16_t half = (uint16_t)v;
        memcpy(bytes, &half, 2);
    } else if (dt == DT_I64) {
        memcpy(bytes, &v, 8);
    } else {
        memcpy(bytes, &f, 4);
    }
}

static Crowd *crowd_new(const Strategy *s) {
    Crowd *c = NEW(crowd_mem(), Crowd);
    c->mesh.naxes = s->naxes;
    for (int a = 0; a < s->naxes; a++) {
        c->mesh.axis[a].name = s->axis[a];
        c->mesh.axis[a].size = s->size[a];
    }
    c->ranks = mesh_ranks(&c->mesh);
    for (int i = 0; i < TENSORS; i++) {
        const Placed *p = &s->of[i];
        Type ty = type_parse(crowd_mem(), &c->mesh, model[i].type);
        const char *text = p->whole ? p->whole : model[i].type;
        Type whole = type_parse(crowd_mem(), &c->mesh, text);
        const char *wrong =
            layout_make(crowd_mem(), &c->mesh, &whole, p->flat, p->lead, &c->layout[i]);
        if (wrong) die("%s: %s", text, wrong);
        size_t bytes = (size_t)layout_local_count(&c->layout[i]) * dtype_bytes[ty.dt];
        for (int r = 0; r < c->ranks; r++) {
            CkptTensor *t = &c->t[r][i];
            *t = (CkptTensor){.name = model[i].name,
                              .dtype = ty.dt,
                              .rank = ty.rank,
                              .data = arena_alloc(crowd_mem(), bytes),
                              .file = model[i].file,
                              .layout = p->whole ? &c->layout[i] : NULL};
            memcpy(t->dim, ty.dim, sizeof t->dim);
            memset(t->data, 0x77, bytes);
        }
    }
    return c;
}

static int64_t count_of(const CkptTensor *t) {
    int64_t n = 1;
    for (int d = 0; d < t->rank; d++) n *= t->dim[d];
    return n;
}

/* What a rank's part of a tensor must be, padding zero. */
static char *part_of(const Crowd *c, int rank, int i, int64_t step, size_t *bytes) {
    const Layout *l = &c->layout[i];
    size_t each = dtype_bytes[l->whole.dt];
    *bytes = (size_t)layout_local_count(l) * each;
    char *part = arena_alloc(crowd_mem(), *bytes);
    for (LayoutWalk w = layout_walk(l, rank); layout_next(&w);)
        for (int64_t k = 0; k < w.count; k++)
            if (w.global + k < count_of(&c->t[rank][i]))
                element(i, step, w.global + k, part + (size_t)(w.local + k) * each);
    return part;
}

static inline void crowd_fill(Crowd *c, int64_t step) {
    for (int r = 0; r < c->ranks; r++)
        for (int i = 0; i < TENSORS; i++) {
            size_t bytes;
            const char *part = part_of(c, r, i, step, &bytes);
            memcpy(c->t[r][i].data, part, bytes);
        }
}

/* Number of the first of n tensors of a rank that is not as at `step`; -1: all are. */
static inline int crowd_differs(const Crowd *c, int rank, int64_t step, int n) {
    for (int i = 0; i < n; i++) {
        size_t bytes;
        const char *part = part_of(c, rank, i, step, &bytes);
        if (memcmp(c->t[rank][i].data, part, bytes)) return i;
    }
    return -1;
}

#endif
