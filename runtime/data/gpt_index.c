/* gpt_index.c - Megatron-LM's document, sample and shuffle indices; see gpt_index.h.
 *
 * The data of an index, in memory as in the cache: i64 documents, samples, epochs, tokens
 * of an epoch; i32 document [documents]; i32 sample [samples + 1, 2]; u32 shuffle
 * [samples]. */
#include "runtime/data/gpt_index.h"
#include "runtime/data/mt19937.h"
#include "runtime/data/prepared.h"
#include <math.h>
#include <stdlib.h>

enum { HEAD_BYTES = 32 };

/* How many of what a specification leads to. */
typedef struct Counts {
    int64_t per_epoch; /* documents */
    int64_t documents, samples, epochs, tokens;
    bool separate;          /* the last epoch is shuffled by itself */
    int64_t samples_before; /* of the last epoch, when separate */
} Counts;

/* Tokens wanted by `samples` samples, or -1 when that is beyond counting. */
static int64_t tokens_wanted(const GptIndexSpec *s) {
    int64_t wanted;
    if (__builtin_mul_overflow(s->samples, s->seq, &wanted) || wanted == INT64_MAX)
        return -1;
    return wanted + 1;
}

static _Noreturn void fail_too_many(const GptIndexSpec *s) {
    fail(EXIT_CONFIG,
         "%s: %lld samples of %lld tokens, %lld epochs: an index has at most 2^31 "
         "documents (all epochs together) and 2^32 - 3 samples; ask for fewer",
         s->name, (long long)s->samples, (long long)s->seq, (long long)s->epochs);
}

static _Noreturn void fail_too_few(const GptIndexSpec *s, const Counts *c) {
    if (c->tokens < 1)
        fail(EXIT_DATA,
             "%s: documents %lld .. %lld of this split hold no tokens; give it a larger "
             "part, or data",
             s->name, (long long)s->first, (long long)s->end);
    fail(EXIT_DATA,
         "%s: documents %lld .. %lld of this split hold %lld tokens; a sample of %lld "
         "needs %lld: give a shorter seq_length or more data",
         s->name, (long long)s->first, (long long)s->end, (long long)c->tokens,
         (long long)s->seq, (long long)s->seq + 1);
}

/* A last epoch of which little is taken is shuffled for itself; `all` tokens of all. */
static void divide_last_epoch(const GptIndexSpec *s, Counts *c, int64_t all) {
    c->samples_before = (all - c->tokens - 1) / s->seq;
    int64_t last = s->samples - c->samples_before;
    double whole = (double)((c->tokens - 1) / s->seq);
    c->separate = last < (int64_t)(0.80 * whole);
}

/* As many as the samples need, of `tokens` tokens each. */
static int64_t epochs_of(const GptIndexSpec *s, int64_t tokens) {
    if (s->samples < 0) return MAX(s->epochs, 1);
    int64_t wanted = tokens_wanted(s);
    if (wanted < 0) fail_too_many(s);
    return wanted / tokens + (wanted % tokens != 0);
}

static Counts count_all(const GptIndexSpec *s) {
    check(s->first >= 0 && s->first <= s->end && s->seq >= 1 && s->samples >= -1);
    Counts c = {.per_epoch = s->end - s->first};
    for (int64_t i = s->first; i < s->end; i++) c.tokens += indexed_length(s->table, i);
    if (c.tokens < 1) fail_too_few(s, &c);
    c.epochs = epochs_of(s, c.tokens);
    int64_t all;
    if (__builtin_mul_overflow(c.epochs, c.tokens, &all) ||
        __builtin_mul_overflow(c.epochs, c.per_epoch, &c.documents) ||
        c.documents > INT32_MAX || s->end > INT32_MAX)
        fail_too_many(s);
    c.samples = (all - 1) / s->seq;
    if (c.samples > (int64_t)UINT32_MAX - 2) fail_too_many(s);
    if (c.samples < 1) fail_too_few(s, &c);
    if (s->samples >= 0 && c.epochs > 1) divide_last_epoch(s, &c, all);
    return c;
}

static uint64_t data_bytes(int64_t documents, int64_t samples) {
    return HEAD_BYTES + 4 * (uint64_t)documents + 8 * ((uint64_t)samples + 1) +
           4 * (uint64_t)samples;
}

static void fill_documents(const GptIndexSpec *s, const Counts *c, Mt19937 *m,
                           int32_t *document) {
    int64_t n = c->per_epoch, last = c->documents - n;
    for (int64_t i = 0, d = s->first; i < c->documents; i++) {
        document[i] = (int32_t)d++;
        if (d == s->end) d = s->first;
    }
    uint32_t *items = (uint32_t *)document;
    if (!c->separate) {
        mt19937_shuffle(m, items, c->documents);
        return;
    }
    mt19937_shuffle(m, items, last);
    mt19937_shuffle(m, items + last, n);
}

/* Samples begin with the last token of the one before, so that every token but the first
 * is a label once. */
static void fill_samples(const GptIndexSpec *s, const Counts *c, const int32_t *document,
                         int32_t *sample) {
    int64_t nth = 0, offset = 0;
    sample[0] = sample[1] = 0;
    for (int64_t i = 1; i <= c->samples; i++) {
        int64_t remaining = s->seq + 1;
        for (;;) {
            check(nth < c->documents);
            int64_t here = indexed_length(s->table, document[nth]) - offset;
            if (here >= remaining) break;
            remaining -= here;
            offset = 0;
            nth++;
        }
        offset += remaining - 1;
        sample[2 * i] = (int32_t)nth;
        sample[2 * i + 1] = (int32_t)offset;
    }
}

static void fill_shuffle(const Counts *c, Mt19937 *m, uint32_t *shuffle) {
    int64_t first = c->separate ? c->samples_before : c->samples;
    for (int64_t i = 0; i < c->samples; i++) shuffle[i] = (uint32_t)i;
    mt19937_shuffle(m, shuffle, first);
    if (first < c->samples) mt19937_shuffle(m, shuffle + first, c->samples - first);
}

static void *build_data(Arena *mem, const GptIndexSpec *s, uint64_t *n) {
    Counts c = count_all(s);
    *n = data_bytes(c.documents, c.samples);
    char *data = prepared_buffer(mem, *n);
    int64_t head[4] = {c.documents, c.samples, c.epochs, c.tokens};
    memcpy(data, head, sizeof head);
    int32_t *document = (int32_t *)(data + HEAD_BYTES);
    int32_t *sample = document + c.documents;
    uint32_t *shuffle = (uint32_t *)(sample + 2 * (c.samples + 1));
    Mt19937 m;
    mt19937_seed(&m, s->seed);
    fill_documents(s, &c, &m, document);
    fill_samples(s, &c, document, sample);
    fill_shuffle(&c, &m, shuffle);
    return data;
}

static void point_into(const void *data, GptIndex *out) {
    int64_t head[4];
    memcpy(head, data, sizeof head);
    *out = (GptIndex){head[0], head[1], head[2], head[3], NULL, NULL, NULL};
    out->document = (const int32_t *)((const char *)data + HEAD_BYTES);
    out->sample = out->document + head[0];
    out->shuffle = (const uint32_t *)(out->sample + 2 * (head[1] + 1));
}

void gpt_index_build(Arena *mem, const GptIndexSpec *spec, GptIndex *out) {
    uint64_t n;
    point_into(build_data(mem, spec, &n), out);
}

/* Do all entries lead to documents of the split, tokens of them, and samples? */
static bool entries_are_inside(const GptIndex *x, const GptIndexSpec *spec) {
    int64_t before = 0;
    for (int64_t i = 0; i < x->documents; i++)
        if (x->document[i] < spec->first || x->document[i] >= spec->end) return false;
    for (int64_t i = 0; i <= x->samples; i++) {
        int64_t nth = x->sample[2 * i], offset = x->sample[2 * i + 1];
        /* the first one is where documents begin, also with an empty one */
        bool begins = !i && !nth && !offset;
        if (nth < before || nth >= x->documents || offset < 0 ||
            (!begins && offset >= indexed_length(spec->table, x->document[nth])))
            return false;
        before = nth;
    }
    for (int64_t i = 0; i < x->samples; i++)
        if (x->shuffle[i] >= x->samples) return false;
    return true;
}

bool gpt_index_parse(const void *bytes, uint64_t n, const GptIndexSpec *spec,
                     GptIndex *out) {
    if (n < HEAD_BYTES) return false;
    GptIndex x;
    int64_t head[4];
    memcpy(head, bytes, sizeof head);
    if (head[0] < 1 || head[0] > INT32_MAX || head[1] < 1 || head[1] > UINT32_MAX ||
        n != data_bytes(head[0], head[1]))
        return false;
    point_into(bytes, &x);
    if (!entries_are_inside(&x, spec)) return false;
    *out = x;
    return true;
}

/* ---- the cache ---- */

static void key_of(Arena *mem, const GptIndexSpec *s, uint64_t idx_hash,
                   char key[HASH_HEX_BYTES]) {
    Text t = text_new(mem);
    text_add(&t, "gpt index 1\nidx %016llx\nsplit %lld %lld\nseq %lld\nsamples %lld\n",
             (unsigned long long)idx_hash, (long long)s->first, (long long)s->end,
             (long long)s->seq, (long long)s->samples);
    text_add(&t, "epochs %lld\nseed %u\n", (long long)(s->samples < 0 ? s->epochs : 0),
             s->seed);
    hash_hex(t.s, t.n, key);
}

typedef struct Use {
    const GptIndexSpec *spec;
    GptIndex *out;
} Use;

static bool use_data(void *context, const void *data, uint64_t n) {
    const Use *u = context;
    return gpt_index_parse(data, n, u->spec, u->out);
}

void gpt_index_cached(Arena *mem, const GptIndexSpec *spec, const char *cache,
                      uint64_t idx_hash, GptIndex *out, FileMap *held, char note[512]) {
    Prepared file = {.what = "index cache", .folder = cache, .note = note};
    note[0] = 0;
    *held = (FileMap){0};
    key_of(mem, spec, idx_hash, file.key);
    file.path = path_join(mem, cache, arena_printf(mem, "%s.gptindex", file.key));
    if (prepared_read(&file, use_data, &(Use){spec, out}, held)) return;
    uint64_t n;
    void *data = build_data(mem, spec, &n);
    point_into(data, out);
    prepared_write(&file, data, n);
}

/* ---- splits ---- */

static _Noreturn void fail_split(const char *split) {
    fail(EXIT_CONFIG,
         "split \"%.100s\": give the parts of train, valid and test as one to three "
         "numbers, not all 0, such as 949,50,1",
         split);
}

void gpt_split(const char *split, int64_t n, int64_t bound[4]) {
    double part[3] = {0}, sum = 0, end = 0;
    int have = 0;
    for (const char *p = split; *p;) {
        size_t digits = strspn(p, ".0123456789");
        if (!digits) {
            if (*p != ',' && *p != ' ') fail_split(split);
            p++;
            continue;
        }
        char *stop;
        if (have == 3) fail_split(split);
        part[have++] = strtod(p, &stop);
        if (stop != p + digits) fail_split(split);
        p += digits;
    }
    for (int i = 0; i < 3; i++) sum += part[i];
    if (!(sum > 0) || !isfinite(sum)) fail_split(split);
    bound[0] = 0;
    for (int i = 0; i < 3; i++) {
        end += part[i] / sum;
        int64_t at = llrint(end * (double)n);
        bound[i + 1] = MIN(MAX(at, bound[i]), n);
    }
}

/* ---- blends ---- */

static int most_behind(const double *weight, const int64_t *have, const int64_t *size,
                       int n, int64_t item) {
    double at = (double)MAX(item, 1), most = -INFINITY;
    int best = -1;
    for (int k = 0; k < n; k++) {
        if (size && have[k] == size[k]) continue;
        double behind = weight[k] * at - (double)have[k];
        if (behind > most) {
            most = behind;
            best = k;
        }
    }
    return best;
}

static void blend(const double *weight, const int64_t *size, int n, int64_t items,
                  int16_t *source, uint32_t *sample) {
    Arena *mem = arena_new();
    int64_t *have = NEW_ARRAY(mem, int64_t, (size_t)n);
    for (int64_t i = 0; i < items; i++) {
        int k = most_behind(weight, have, size, n, i);
        check(k >= 0);
        source[i] = (int16_t)k;
        sample[i] = (uint32_t)have[k]++;
    }
    arena_free(mem);
}

void gpt_blend(const double *weight, int n, int64_t items, int16_t *source,
               uint32_t *sample) {
    blend(weight, NULL, n, items, source, sample);
}

void gpt_blend_all(const int64_t *size, int n, int64_t items, int16_t *source,
                   uint32_t *sample) {
    Arena *mem = arena_new();
    double *weight = NEW_ARRAY(mem, double, (size_t)n);
    for (int k = 0; k < n; k++) weight[k] = (double)size[k] / (double)items;
    blend(weight, size, n, items, source, sample);
    arena_free(mem);
}
