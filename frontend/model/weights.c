/* weights.c - see weights.h. */
#include "frontend/model/weights.h"
#include "base/rng.h"
#include "frontend/model/generation.h"
#include "runtime/core/rt.h"
#include "runtime/store/safetensors.h"
#include <math.h>

/* ---- initial values ---- */

typedef struct InitRun {
    int64_t local, first, count;
} InitRun;

typedef struct Init {
    float *out;
    InitRun *run; /* elements [first, first + count) go to out[local...] */
    int64_t nruns;
    double mean, std;
    uint64_t seed, stream;
} Init;

/* Four standard normals out of one Philox block, by Box and Muller's method: one for each
 * of the elements 4 * block... There are 10^8 of them. */
static void normal_block(const Init *init, int64_t block, float z[4]) {
    const float turn = 6.28318530717958647693f * 0x1p-32f;
    uint32_t w[4], ctr[4] = {(uint32_t)block, (uint32_t)(block >> 32),
                             (uint32_t)init->stream, (uint32_t)(init->stream >> 32)};
    uint32_t key[2] = {(uint32_t)init->seed, (uint32_t)(init->seed >> 32)};
    rng_philox(ctr, key, w);
    for (int i = 0; i < 4; i += 2) {
        float u = (float)((double)w[i] + 1) * 0x1p-32f; /* in (0, 1]: a finite log */
        float r = sqrtf(-2 * logf(u)), angle = turn * (float)w[i + 1];
        z[i] = r * cosf(angle);
        z[i + 1] = r * sinf(angle);
    }
}

static void init_runs(void *context, int64_t begin, int64_t end, int64_t thread) {
    const Init *init = context;
    float z[4] = {0};
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const InitRun *run = &init->run[r];
        for (int64_t k = 0; k < run->count; k++) {
            int64_t at = run->first + k;
            if (init->std > 0 && (k == 0 || at % 4 == 0)) normal_block(init, at / 4, z);
            init->out[run->local + k] =
                (float)(init->mean + init->std * (double)z[at % 4]);
        }
    }
}

/* Runs that are short enough for threads to share them. */
static void cut_runs(Arena *mem, Init *init, const Layout *l, int rank, int64_t n) {
    enum { PIECE = 1 << 16 };
    int64_t cap = 0;
    for (int pass = 0; pass < 2; pass++) {
        LayoutWalk w = {.count = n};
        if (l) w = layout_walk(l, rank);
        init->nruns = 0;
        while (l ? layout_next(&w) : w.count > 0) {
            for (int64_t at = 0; at < w.count; at += PIECE, init->nruns++) {
                if (pass == 0) continue;
                init->run[init->nruns] =
                    (InitRun){w.local + at, w.global + at, MIN(PIECE, w.count - at)};
            }
            if (!l) break;
        }
        if (pass == 0) cap = init->nruns;
        if (pass == 0) init->run = NEW_ARRAY(mem, InitRun, (size_t)cap + 1);
    }
}

void weights_init(const Func *entry, int i, const Layout *layout, int rank, float *out,
                  uint64_t seed) {
    Arena *mem = arena_new();
    const Value *v = entry->arg[i];
    const char *kind = arg_str(entry, i, "init", "");
    bool normal = !strcmp(kind, "normal");
    check(normal || !strcmp(kind, "zeros") || !strcmp(kind, "ones"));
    check(v->ty.dt == DT_F32);
    const char *tensor = arg_str(entry, i, "tensor", v->name);
    Init init = {.out = out,
                 .mean = arg_float(entry, i, "mean", !strcmp(kind, "ones") ? 1 : 0),
                 .std = normal ? arg_float(entry, i, "std", 0.02) : 0,
                 .seed = seed,
                 .stream = hash64(tensor, strlen(tensor))};
    cut_runs(mem, &init, layout, rank, type_count(&v->ty));
    rt_parallel(init.nruns, init_runs, &init);
    arena_free(mem);
}

/* ---- names and shapes ---- */

/* Begins the names in files of GPT-2 with its head. */
#define BASE_OF_GPT2 "transformer."

/* Hugging Face's matrices are 2-D where ours keep heads apart: the number of our
 * dimensions that are its first one. 0: the shape is the same. */
static int leading_dims(const char *name) {
    static const struct {
        const char *end;
        int n;
    } known[] = {
        {"attn.c_attn.weight", 1},      {"attn.c_q.weight", 1},
        {"attn.c_k.weight", 1},         {"attn.c_v.weight", 1},
        {"attn.c_proj.weight", 2},      {"self_attn.q_proj.weight", 2},
        {"self_attn.k_proj.weight", 2}, {"self_attn.v_proj.weight", 2},
        {"self_attn.o_proj.weight", 1}, {"attention.query_key_value.weight", 3},
        {"attention.dense.weight", 1},  {"attention.query.weight", 2},
        {"attention.key.weight", 2},    {"attention.value.weight", 2},
    };
    for (int i = 0; i < ARRAY_LEN(known); i++) {
        if (ends_with(name, known[i].end)) return known[i].n;
    }
    return 0;
}

static void hf_shape(HfTensor *t, const Type *ty, bool stacked) {
    int from = stacked ? 1 : 0, rank = ty->rank - from;
    int lead = ends_with(t->name, ".bias") ? rank : leading_dims(t->name);
    t->count = sizes_product(ty->dim + from, rank);
    if (!lead || rank < 2) {
        t->rank = rank;
        memcpy(t->dim, ty->dim + from, (size_t)rank * sizeof t->dim[0]);
        return;
    }
    t->rank = lead < rank ? 2 : 1;
    t->dim[0] = t->dim[1] = 1;
    for (int d = 0; d < rank; d++) t->dim[d >= lead] *= ty->dim[from + d];
}

/* Names of modules are the user's: a layer sign without a dimension of layers is a
 * mistake. */
static int64_t layers_of(const Func *f, int i, const char *name) {
    if (!strchr(name, '#')) return 0;
    if (f->arg[i]->ty.rank < 1)
        fail(EXIT_CONFIG,
             "parameter %%%s has the name %s with a layer number, but no "
             "dimension of layers",
             f->arg[i]->name, name);
    return f->arg[i]->ty.dim[0];
}

static const char *hf_name(const Func *f, int i) {
    return arg_str(f, i, "hf", f->arg[i]->name);
}

HfMap hf_map(Arena *mem, const Func *f) {
    int64_t total = 0;
    for (int i = 0; i < f->narg; i++) {
        if (arg_role(f, i) == ARG_param) total += MAX(layers_of(f, i, hf_name(f, i)), 1);
    }
    if (total > INT32_MAX / 2) fail(EXIT_CONFIG, "too many layers for a weight file");
    HfMap map = {.t = NEW_ARRAY(mem, HfTensor, (size_t)total)};
    for (int i = 0; i < f->narg; i++) {
        if (arg_role(f, i) != ARG_param) continue;
        const char *name = hf_name(f, i), *hash = strchr(name, '#');
        int64_t layers = layers_of(f, i, name);
        for (int64_t l = 0; l < MAX(layers, 1); l++) {
            HfTensor *t = &map.t[map.n++];
            t->arg = i;
            t->layer = hash ? l : -1;
            t->name = hash ? arena_printf(mem, "%.*s%lld%s", (int)(hash - name), name,
                                          (long long)l, hash + 1)
                           : name;
            hf_shape(t, &f->arg[i]->ty, hash != NULL);
            t->first = l * t->count;
        }
    }
    return map;
}

static bool is_head(const char *name) {
    return !strcmp(name, "lm_head.weight") || !strcmp(name, "embed_out.weight");
}

const char *hf_name_in_file(Arena *mem, const ModelSpec *s, const char *name) {
    bool bare = s->family == MODEL_GPT2 && !is_head(name);
    return bare ? arena_printf(mem, BASE_OF_GPT2 "%s", name) : name;
}

/* ---- in ---- */

typedef struct Load {
    Arena *mem;
    Safetensors *file;
    HfMap map;
    const SafeTensor **from; /* per tensor of map */
    bool *used;              /* per tensor of the file */
    Text problems;
    int nproblems;
} Load;

static void problem(Load *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void problem(Load *l, const char *fmt, ...) {
    enum { MOST = 20 };
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (l->nproblems++ < MOST)
        text_add(&l->problems, "\n  %s", line);
    else if (l->nproblems == MOST + 1)
        text_add(&l->problems, "\n  and more");
}

static const char *shape_text(Arena *mem, int rank, const int64_t *dim) {
    Text t = text_new(mem);
    text_add(&t, "[");
    text_add_ints(&t, ",", dim, rank);
    text_add(&t, "]");
    return t.s;
}

static const SafeTensor *find(const Load *l, const char *name) {
    const SafeTensor *t = safetensors_find(l->file, name);
    if (t) return t;
    if (!strcmp(name, "embed_out.weight")) /* as transformers 5 has it in memory */
        return safetensors_find(l->file, "lm_head.weight");
    return safetensors_find(l->file, arena_printf(l->mem, BASE_OF_GPT2 "%s", name));
}

static bool readable(const SafeTensor *t) {
    return t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16;
}

static void match(Load *l, int i) {
    const HfTensor *want = &l->map.t[i];
    const SafeTensor *t = find(l, want->name);
    if (!t) {
        problem(l, "missing: %s %s", want->name,
                shape_text(l->mem, want->rank, want->dim));
        return;
    }
    l->from[i] = t;
    l->used[t - l->file->t] = true;
    bool same = t->rank == want->rank;
    for (int d = 0; same && d < t->rank; d++) same = t->dim[d] == want->dim[d];
    if (!same)
        problem(l, "shape: %s is %s, the model has %s", t->name,
                shape_text(l->mem, t->rank, t->dim),
                shape_text(l->mem, want->rank, want->dim));
    else if (!readable(t))
        problem(l, "type: %s is %s; F32, F16 and BF16 can be read", t->name,
                t->type_name);
}

/* The causal masks and frequencies that old files carry: "h.3.attn.bias", not
 * "h.3.attn.c_attn.bias". */
static bool is_buffer(const char *name) {
    static const char *const known[][2] = {
        {"h.", ".attn.bias"},
        {"h.", ".attn.masked_bias"},
        {BASE_OF_GPT2 "h.", ".attn.bias"},
        {BASE_OF_GPT2 "h.", ".attn.masked_bias"},
        {"model.layers.", ".self_attn.rotary_emb.inv_freq"},
        {"gpt_neox.layers.", ".attention.rotary_emb.inv_freq"},
        {"gpt_neox.layers.", ".attention.bias"},
        {"gpt_neox.layers.", ".attention.masked_bias"},
    };
    for (int i = 0; i < ARRAY_LEN(known); i++) {
        size_t n = strlen(known[i][0]);
        if (strncmp(name, known[i][0], n)) continue;
        size_t digits = strspn(name + n, "0123456789");
        if (digits && !strcmp(name + n + digits, known[i][1])) return true;
    }
    return false;
}

/* A head of its own in the file of a tied model is fine as long as it is the embedding.
 */
static bool is_tied_head(Load *l, const SafeTensor *t) {
    static const char *const tables[] = {"wte.weight", "model.embed_tokens.weight",
                                         "gpt_neox.embed_in.weight"};
    const SafeTensor *table = NULL;
    if (!is_head(t->name)) return false;
    for (int i = 0; i < ARRAY_LEN(tables) && !table; i++) table = find(l, tables[i]);
    return table && table->dtype == t->dtype && !strcmp(table->type_name, t->type_name) &&
           table->rank == t->rank && !memcmp(table->dim, t->dim, sizeof t->dim) &&
           table->bytes == t->bytes && !memcmp(table->data, t->data, (size_t)t->bytes);
}

static void check_extra(Load *l, int i) {
    const SafeTensor *t = &l->file->t[i];
    if (l->used[i] || is_buffer(t->name) || is_tied_head(l, t)) return;
    bool head = is_head(t->name);
    problem(l, "extra: %s %s%s", t->name, shape_text(l->mem, t->rank, t->dim),
            head ? " (the model's head is its embedding, and this is another)" : "");
}

static void load(Load *l, const char *dir, const Func *entry, WeightAt at,
                 WeightSink sink, void *context) {
    Arena *mem = l->mem;
    l->problems = text_new(mem);
    l->file = safetensors_open(mem, dir, EXIT_CHECKPOINT);
    l->map = hf_map(mem, entry);
    l->from = NEW_ARRAY(mem, const SafeTensor *, (size_t)l->map.n);
    l->used = NEW_ARRAY(mem, bool, (size_t)l->file->n + 1);
    for (int i = 0; i < l->map.n; i++) match(l, i);
    for (int i = 0; i < l->file->n; i++) check_extra(l, i);
    if (l->nproblems)
        fail(EXIT_CHECKPOINT, "%s does not fit the model:%s", l->file->name,
             l->problems.s);
    for (int i = 0; i < l->map.n; i++) {
        const HfTensor *t = &l->map.t[i];
        size_t bytes = (size_t)t->count * sizeof(float);
        Arena *scratch = arena_new();
        float *to = at ? at(context, t->arg) + t->first : arena_alloc(scratch, bytes);
        safetensors_read(l->file, l->from[i], DT_F32, to, bytes);
        if (sink) sink(context, t->arg, t->first, t->count, to);
        arena_free(scratch);
    }
}

static void load_all(const char *dir, const Func *entry, WeightAt at, WeightSink sink,
                     void *context) {
    Arena *mem = arena_new();
    Load *l = NEW(mem, Load);
    Catch c;
    l->mem = mem;
    if (CATCH(c)) {
        load(l, dir, entry, at, sink, context);
        catch_end(&c);
    }
    if (l->file) safetensors_close(l->file);
    arena_free(mem);
    if (c.code) fail_again(c.code, c.message);
}

void weights_load_hf(const char *dir, const Func *entry, WeightAt at, void *context) {
    load_all(dir, entry, at, NULL, context);
}

void weights_load_hf_pieces(const char *dir, const Func *entry, WeightSink sink,
                            void *context) {
    load_all(dir, entry, NULL, sink, context);
}

void weights_stored_as(const char *dir, const Func *entry, DType type, bool *exact) {
    Arena *mem = arena_new();
    Load l = {.mem = mem, .file = safetensors_open(mem, dir, EXIT_CHECKPOINT)};
    l.map = hf_map(mem, entry);
    for (int i = 0; i < entry->narg; i++) exact[i] = arg_role(entry, i) == ARG_param;
    for (int i = 0; i < l.map.n; i++) {
        const SafeTensor *t = find(&l, l.map.t[i].name);
        exact[l.map.t[i].arg] &= t && t->dtype == (int)type;
    }
    safetensors_close(l.file);
    arena_free(mem);
}

/* ---- out ---- */

/* What makes a folder a model's: behind the weights, which are the most that can fail. */
static void write_texts(Arena *mem, const char *dir, const char *config,
                        const char *generation) {
    const FileBytes file[] = {
        {path_join(mem, dir, "config.json"), config, strlen(config)},
        {path_join(mem, dir, "generation_config.json"), generation, strlen(generation)}};
    files_write(file, ARRAY_LEN(file), EXIT_CHECKPOINT);
}

/* Tensors on their way out, one at a time. */
typedef struct Save {
    const HfMap *map;
    WeightAt at;
    void *context;
    DType type;
    uint16_t *narrow; /* as long as the longest tensor; NULL for f32 */
} Save;

static const float *wide(const Save *v, int i) {
    return v->at(v->context, v->map->t[i].arg) + v->map->t[i].first;
}

static const void *save_tensor(void *context, int i) {
    const Save *v = context;
    const float *from = wide(v, i);
    if (!v->narrow) return from;
    for (int64_t k = 0; k < v->map->t[i].count; k++)
        v->narrow[k] = f32_to_narrow(v->type, from[k]);
    return v->narrow;
}

static void check_range(const Save *v, const char *dir) {
    for (int i = 0; v->narrow && i < v->map->n; i++) {
        const HfTensor *t = &v->map->t[i];
        const float *from = wide(v, i), most = v->type == DT_F16 ? 65519 : 3.3961e38f;
        for (int64_t k = 0; k < t->count; k++)
            if (isfinite(from[k]) && fabsf(from[k]) > most)
                fail(EXIT_CHECKPOINT, "%s: number %lld of %s is %g, too large for %s",
                     dir, (long long)k, t->name, (double)from[k], dtype_name[v->type]);
    }
}

static void save(Arena *mem, const char *dir, const ModelSpec *s, const Func *entry,
                 Save v) {
    HfMap map = hf_map(mem, entry);
    SafeTensor *t = NEW_ARRAY(mem, SafeTensor, (size_t)map.n);
    int64_t longest = 0;
    for (int i = 0; i < map.n; i++) {
        const HfTensor *h = &map.t[i];
        t[i] = (SafeTensor){
            .name = hf_name_in_file(mem, s, h->name), .dtype = v.type, .rank = h->rank};
        memcpy(t[i].dim, h->dim, sizeof h->dim);
        longest = MAX(longest, h->count);
    }
    v.map = &map;
    if (v.type != DT_F32) v.narrow = NEW_ARRAY(mem, uint16_t, (size_t)longest);
    check_range(&v, dir);
    int error = dir_make(dir);
    if (error) fail(EXIT_CHECKPOINT, "cannot make %s: %s", dir, strerror(error));
    const char *path = path_join(mem, dir, "model.safetensors");
    error = safetensors_write(path, t, map.n, save_tensor, &v);
    if (error) fail(EXIT_CHECKPOINT, "cannot write %s: %s", path, strerror(error));
    write_texts(mem, dir, model_spec_json_hf(mem, s, v.type), generation_json(mem, s));
}

void weights_save_hf(const char *dir, const ModelSpec *s, const Func *entry, WeightAt at,
                     void *context, DType type) {
    const char *why = model_spec_not_hf(s);
    if (why) fail(EXIT_CONFIG, "this model is none of Hugging Face's classes: %s", why);
    Arena *mem = arena_scratch();
    save(mem, dir, s, entry, (Save){.at = at, .context = context, .type = type});
    arena_free(mem);
}
