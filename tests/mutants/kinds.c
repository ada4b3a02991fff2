/* kinds.c - data, tables, tokenizers and configurations; see read.h. */
#define _GNU_SOURCE
#include "codegen/cache.h"
#include "frontend/config/config.h"
#include "frontend/launch/rank_table.h"
#include "read.h"
#include "runtime/data/data_reader.h"
#include "runtime/run/metrics.h"
#include "runtime/store/npy.h"
#include "runtime/store/safetensors.h"
#include "runtime/text/tokenizer.h"
#include <math.h>
#include <stdlib.h>

void read_safetensors(Arena *mem, const char *path, const char *more, Text *out) {
    (void)more;
    Safetensors *s = safetensors_open(mem, path, EXIT_CHECKPOINT);
    for (int i = 0; i < s->n; i++) {
        const SafeTensor *t = s->by_name[i];
        if (safetensors_find(s, t->name) != t) die("%s is not found", t->name);
        text_add(out, "tensor");
        put_name(out, t->name);
        text_add(out, " %s", t->type_name);
        put_shape(out, t->rank, t->dim);
        put_sum(out, t->data, t->bytes);
        text_add(out, "\n");
    }
    for (int i = 0; i < s->metadata_n; i++) {
        text_add(out, "meta");
        put_name(out, s->metadata_key[i]);
        put_name(out, s->metadata_value[i]);
        text_add(out, "\n");
    }
    safetensors_close(s);
}

void read_npy(Arena *mem, const char *path, const char *more, Text *out) {
    (void)more;
    size_t n;
    Npy x;
    const char *bytes = file_read(mem, path, 1 << 24, &n, EXIT_DATA);
    const char *wrong = npy_parse(mem, bytes, n, &x);
    if (wrong) fail(EXIT_DATA, "%s: %s", path, wrong);
    text_add(out, "%c%d", x.kind, x.element_bytes);
    put_shape(out, x.rank, x.dim);
    put_sum(out, x.data, n - (size_t)((const char *)x.data - bytes));
}

void read_indexed(Arena *mem, const char *path, const char *more, Text *out) {
    (void)more;
    IndexedFile x = {0};
    Data d = {.path = path};
    indexed_file_open(mem, &x, path);
    const IndexedTable *t = &x.table;
    int64_t tokens = (int64_t)x.bin.n / t->token_bytes;
    int32_t *token = NEW_ARRAY(mem, int32_t, (size_t)tokens + 1);
    indexed_file_read(&d, &x, 0, tokens, -1, token);
    text_add(out, "%d %lld %lld", t->dtype_code, (long long)t->sequences,
             (long long)t->documents);
    put_sum(out, t->lengths, (size_t)t->sequences * 4);
    put_sum(out, t->doc_index, (size_t)(t->documents + 1) * 8);
    put_sum(out, token, (size_t)tokens * 4);
    indexed_file_close(&x);
}

/* Samples as training sees them; more: the folder of the index cache, or nothing. */
void read_gpt(Arena *mem, const char *path, const char *more, Text *out) {
    enum { SEQ = 6, SEED = 77, SAMPLES = 25 };
    DataGptSpec gpt = {.which = SPLIT_TRAIN,
                       .split = "1",
                       .samples = SAMPLES,
                       .epochs = 1,
                       .pad = -1,
                       .cache_path = more,
                       .eod = -1};
    DataSpec spec = {.type = "GPTDataset",
                     .path = path,
                     .batch = 1,
                     .seq = SEQ,
                     .seed = SEED,
                     .gpt = &gpt};
    Data *d = data_open(mem, &spec);
    int32_t tokens[SEQ], labels[SEQ];
    for (int64_t i = 0; i < d->steps_available; i++) {
        data_batch(d, i, &(DataBatch){tokens, labels});
        for (int k = 0; k < SEQ; k++) text_add(out, "%d ", tokens[k]);
        text_add(out, "%d\n", labels[SEQ - 1]);
        if (memcmp(tokens + 1, labels, sizeof tokens - 4)) die("labels are no tokens");
    }
    data_close(d);
}

void read_rank_table(Arena *mem, const char *path, const char *more, Text *out) {
    (void)more;
    const RankTable *t = rank_table_read(mem, path);
    for (int r = 0; r < t->ranks; r++) text_add(out, "%s ", t->host[r]);
}

static void put_number(Text *out, double v) {
    text_add(out, isnan(v) ? " nan" : " %.17g", v);
}

/* The rows, then the file as a run leaves it that goes on behind step `more`. */
void read_metrics(Arena *mem, const char *path, const char *more, Text *out) {
    int n;
    const MetricsRow *row = metrics_read(mem, path, &n);
    for (int i = 0; i < n; i++) {
        const MetricsRow *r = &row[i];
        text_add(out, "%lld %d %d %lld", (long long)r->step, r->skipped, r->of_samples,
                 (long long)r->tokens);
        const double number[] = {r->loss,    r->grad_norm,         r->lr,
                                 r->seconds, r->tokens_per_second, r->mfu};
        for (int k = 0; k < ARRAY_LEN(number); k++) put_number(out, number[k]);
        text_add(out, "\n");
    }
    metrics_close(metrics_open(mem, path, 100, atoll(more), NULL));
    size_t size;
    const char *kept = file_read(mem, path, 1 << 24, &size, EXIT_DATA);
    text_add(out, "kept %zu", size);
    put_sum(out, kept, size);
}

/* A compiled object under the name of its key, in a cache of its own. */
void read_object(Arena *mem, const char *path, const char *more, Text *out) {
    size_t n;
    const char *slash = strrchr(path, '/');
    setenv("STATOR_CACHE", arena_strndup(mem, path, (size_t)(slash - path)), 1);
    const void *object = cache_get(mem, more, &n);
    text_add(out, object ? "object %zu" : "none", n);
    if (object) put_sum(out, object, n);
}

static void put_ids(Arena *mem, const Tokenizer *t, const char *text, size_t n,
                    bool special, Text *out) {
    size_t cap = tokenizer_max_tokens(t, n);
    int32_t *id = NEW_ARRAY(mem, int32_t, cap + 1);
    TokenizerCache *cache = tokenizer_cache_new();
    size_t ids = tokenizer_encode(t, cache, text, n, special, id, cap, NULL);
    tokenizer_cache_free(cache);
    for (size_t i = 0; i < ids; i++) text_add(out, "%d ", id[i]);
    char *back = arena_alloc(mem, n + 1);
    size_t back_n = tokenizer_decode(t, id, ids, back, n);
    text_add(out, back_n == n && !memcmp(back, text, n) ? "\n" : "decoded to another\n");
}

/* path: a folder with vocab.json and merges.txt, or a tokenizer.json. more: a file whose
 * lines are texts. */
void read_tokenizer(Arena *mem, const char *path, const char *more, Text *out) {
    bool json = strstr(path, ".json") != NULL;
    TokenizerSpec spec = {.tokenizer_file = json ? path : NULL};
    if (!json) spec.vocab_file = path_join(mem, path, "vocab.json");
    if (!json) spec.merge_file = path_join(mem, path, "merges.txt");
    const Tokenizer *t = tokenizer_open(mem, &spec);
    size_t n;
    const char *texts = file_read(mem, more, 1 << 20, &n, EXIT_DATA), *end = texts + n;
    text_add(out, "%lld %lld\n", (long long)tokenizer_vocab(t),
             (long long)tokenizer_eod(t));
    for (const char *s = texts, *stop; s < end; s = stop + 1) {
        stop = memchr(s, '\n', (size_t)(end - s));
        if (!stop) stop = end;
        put_ids(mem, t, s, (size_t)(stop - s), false, out);
        put_ids(mem, t, s, (size_t)(stop - s), true, out);
    }
}

/* The values of the keys in `more`, divided by commas. The configuration as it is printed
 * must read back as itself. */
void read_config(Arena *mem, const char *path, const char *more, Text *out) {
    const Config *cfg = config_load(mem, path, 0, NULL);
    Text once = text_new(mem), twice = text_new(mem);
    config_print(cfg, &once);
    config_print(config_parse(mem, "printed", once.s, once.n), &twice);
    if (strcmp(once.s, twice.s)) text_add(out, "printed as another\n");
    for (const char *p = more; *p;) {
        size_t n = strcspn(p, ",");
        const char *key = arena_strndup(mem, p, n);
        text_add(out, "%s", key);
        put_name(out, config_value(cfg, mem, key));
        text_add(out, "\n");
        p += n + (p[n] == ',');
    }
}
