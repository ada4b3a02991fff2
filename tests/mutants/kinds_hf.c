/* kinds_hf.c - Hugging Face folders: config.json and weights; see read.h. */
#include "frontend/model/weights.h"
#include "read.h"

enum { MOST_ELEMENTS = 16 << 20 };

typedef struct Weights {
    Arena *mem;
    const Func *entry;
    float **at; /* by argument */
} Weights;

static float *weight_at(void *context, int arg) {
    Weights *w = context;
    if (!w->at[arg]) {
        size_t n = (size_t)type_count(&w->entry->arg[arg]->ty);
        if (n > MOST_ELEMENTS) fail(EXIT_CHECKPOINT, "no file here has such tensors");
        w->at[arg] = NEW_ARRAY(w->mem, float, n);
    }
    return w->at[arg];
}

void read_hf(Arena *mem, const char *path, const char *more, Text *out) {
    (void)more;
    ModelSpec spec = model_spec_of_hf(mem, path);
    ModelShape shape = {.batch = 1, .seq = 1, .cache_len = 1};
    const Func *f = model_entry(model_build(mem, &spec, shape, MODEL_PREDICT));
    Weights w = {mem, f, NEW_ARRAY(mem, float *, (size_t)f->narg + 1)};
    weights_load_hf(path, f, weight_at, &w);
    HfMap map = hf_map(mem, f);
    for (int i = 0; i < map.n; i++) {
        const HfTensor *t = &map.t[i];
        text_add(out, "%s", t->name);
        put_shape(out, t->rank, t->dim);
        put_sum(out, w.at[t->arg] + t->first, (size_t)t->count * 4);
        text_add(out, "\n");
    }
    text_add(out, "%s", model_spec_json(mem, &spec, false));
}
