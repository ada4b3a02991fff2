/* data_gpt.c - Megatron-LM's GPT data set of one split: a .bin/.idx pair, or a blend of
 * several; see data.h and gpt_index.h.
 *
 * Which sources and how many samples of each: blended_megatron_dataset_builder.py of
 * Megatron-LM's core; masks and positions: _get_ltor_masks_and_position_ids of its
 * gpt_dataset.py. Without a cache folder the indices are built each time. */
#include "runtime/data/data_reader.h"
#include "runtime/data/gpt_index.h"
#include <math.h>
#include <stdlib.h>

enum { SOURCES_MAX = 32766, WORDS_MAX = 2 * SOURCES_MAX };

/* Megatron builds a little more of every source of a blend than its share. */
#define BLEND_SURPLUS 0.005

typedef struct GptSource {
    const char *path;
    double weight;
    IndexedFile file;
    GptIndexSpec spec;
    GptIndex index;
    FileMap held; /* the cache that `index` leads into */
} GptSource;

typedef struct GptState {
    GptSource *source;
    int n;
    bool weighted;
    int16_t *which;   /* [samples] of a blend; NULL: one source without a weight */
    uint32_t *sample; /* [samples] number of the sample in its source */
} GptState;

/* ---- which sources ---- */

const char *const *data_path_words(Arena *mem, const char *const *paths, int *n) {
    const char *text = *n == 1 ? paths[0] : "";
    if (!strchr(text, ' ') || file_exists(text) ||
        file_exists(arena_printf(mem, "%s.idx", text)))
        return paths;
    const char **parts = NULL;
    int have = 0, cap = 0;
    for (const char *p = text; *p;) {
        size_t length = strcspn(p, " ");
        if (length) PUSH(mem, parts, have, cap, arena_strndup(mem, p, length));
        if (have > WORDS_MAX) break;
        p += length + strspn(p + length, " ");
    }
    *n = have;
    return parts;
}

static bool is_number(const char *s, double *v) {
    char *end;
    *v = strtod(s, &end);
    return s[0] && !*end;
}

static void choose_sources(Arena *mem, Data *d, GptState *g) {
    int n = d->gpt->n_paths ? d->gpt->n_paths : 1;
    double v;
    const char *const *words =
        data_path_words(mem, d->gpt->n_paths ? d->gpt->paths : &d->path, &n);
    if (n < 1 || n > WORDS_MAX)
        fail(EXIT_CONFIG, "data_path has %d parts; there can be 1 .. %d", n, WORDS_MAX);
    int numbers = 0;
    for (int i = 0; i < n; i += 2) numbers += n % 2 == 0 && is_number(words[i], &v);
    if (numbers && numbers != n / 2)
        fail(EXIT_CONFIG, "data_path: some sources have weights and some have not; write "
                          "\"weight path weight path ...\" or paths alone");
    g->weighted = numbers > 0;
    g->n = g->weighted ? n / 2 : n;
    if (g->n > SOURCES_MAX)
        fail(EXIT_CONFIG, "data_path has %d sources; there can be %d", g->n, SOURCES_MAX);
    g->source = NEW_ARRAY(mem, GptSource, (size_t)g->n);
    for (int k = 0; k < g->n; k++) {
        GptSource *s = &g->source[k];
        s->path = words[g->weighted ? 2 * k + 1 : k];
        if (!g->weighted) continue;
        is_number(words[2 * k], &s->weight);
        if (!(s->weight > 0) || !isfinite(s->weight))
            fail(EXIT_CONFIG, "data_path: weight %.40s of %.200s must be above 0",
                 words[2 * k], s->path);
    }
}

/* Sum in the order of numpy's sum (pairwise, eight lanes): the weights must come out to
 * the last bit as Megatron-LM has them. */
static double numpy_sum(const double *x, int n) {
    double sum = 0, lane[8];
    if (n < 8) {
        for (int i = 0; i < n; i++) sum += x[i];
        return sum;
    }
    if (n > 128) { /* depth: log2(n / 64) */
        int half = n / 2 - n / 2 % 8;
        return numpy_sum(x, half) + numpy_sum(x + half, n - half);
    }
    for (int k = 0; k < 8; k++) lane[k] = x[k];
    int i = 8;
    for (; i < n - n % 8; i += 8)
        for (int k = 0; k < 8; k++) lane[k] += x[i + k];
    sum = ((lane[0] + lane[1]) + (lane[2] + lane[3])) +
          ((lane[4] + lane[5]) + (lane[6] + lane[7]));
    for (; i < n; i++) sum += x[i];
    return sum;
}

static void normalize(double *x, int n) {
    double sum = numpy_sum(x, n);
    for (int k = 0; k < n; k++) x[k] /= sum;
}

/* ---- indices ---- */

/* Of the orders before and of how this one begins. */
static uint64_t mark_of(uint64_t before, const GptIndex *x) {
    enum { MOST = 64 };
    const uint64_t parts[] = {
        before,
        hash64(x->document, (size_t)MIN(x->documents, MOST) * sizeof *x->document),
        hash64(x->shuffle, (size_t)MIN(x->samples, MOST) * sizeof *x->shuffle)};
    return hash64(parts, sizeof parts);
}

static void source_open(Arena *mem, Data *d, GptSource *s, int64_t samples) {
    const DataGptSpec *gpt = d->gpt;
    const char *split = gpt->split && gpt->split[0] ? gpt->split : DATA_GPT_SPLIT;
    int64_t bound[4];
    indexed_file_open(mem, &s->file, s->path);
    gpt_split(split, s->file.table.sequences, bound);
    s->spec = (GptIndexSpec){
        .name = arena_printf(mem, "%s, split %s", s->path, data_split_name[gpt->which]),
        .table = &s->file.table,
        .first = bound[gpt->which],
        .end = bound[gpt->which + 1],
        .seq = d->seq,
        .samples = samples,
        .epochs = gpt->epochs,
        .seed = (uint32_t)d->seed};
    if (gpt->cache_path && gpt->cache_path[0]) {
        char note[sizeof d->note];
        uint64_t hash = hash64(s->file.idx.bytes, s->file.idx.n);
        gpt_index_cached(mem, &s->spec, gpt->cache_path, hash, &s->index, &s->held, note);
        if (note[0]) memcpy(d->note, note, sizeof note);
    } else {
        gpt_index_build(mem, &s->spec, &s->index);
    }
    d->tokens += s->index.tokens_per_epoch;
    d->order = mark_of(d->order, &s->index);
}

static void fill_blend(Arena *mem, Data *d, GptState *g, double *weight) {
    int64_t total = 0, target = 0;
    int64_t *size = NEW_ARRAY(mem, int64_t, (size_t)g->n);
    for (int k = 0; k < g->n; k++) {
        size[k] = g->source[k].index.samples;
        total += size[k];
        if (g->weighted) target += (int64_t)ceil((double)d->gpt->samples * weight[k]);
    }
    bool all = !g->weighted && d->gpt->samples < 0;
    d->samples = g->weighted ? target : all ? total : MIN(d->gpt->samples, total);
    g->which = NEW_ARRAY(mem, int16_t, (size_t)d->samples);
    g->sample = NEW_ARRAY(mem, uint32_t, (size_t)d->samples);
    if (all) {
        gpt_blend_all(size, g->n, total, g->which, g->sample);
        return;
    }
    if (!g->weighted)
        for (int k = 0; k < g->n; k++) weight[k] = (double)size[k];
    normalize(weight, g->n);
    gpt_blend(weight, g->n, d->samples, g->which, g->sample);
    for (int64_t i = 0; i < d->samples; i++)
        if (g->sample[i] >= size[g->which[i]])
            fail(EXIT_DATA, "%s: the blend needs more than its %lld samples",
                 g->source[g->which[i]].path, (long long)size[g->which[i]]);
}

static void open_sources(Arena *mem, Data *d, GptState *g) {
    double *weight = NEW_ARRAY(mem, double, (size_t)g->n);
    bool single = g->n == 1 && !g->weighted;
    if (single) {
        source_open(mem, d, &g->source[0], d->gpt->samples);
        d->samples = g->source[0].index.samples;
        return;
    }
    if (g->weighted && d->gpt->samples < 0)
        fail(EXIT_CONFIG, "data_path with weights needs num_samples, or max_steps that "
                          "they follow from");
    if (!g->weighted && d->gpt->epochs > 1)
        fail(EXIT_CONFIG, "data_path: several sources without weights are one epoch; "
                          "give them weights, or epochs 1");
    for (int k = 0; k < g->n; k++) weight[k] = g->source[k].weight;
    if (g->weighted) normalize(weight, g->n);
    for (int k = 0; k < g->n; k++) {
        double share = ceil((double)d->gpt->samples * weight[k]);
        double built = ceil(share * (1 + BLEND_SURPLUS));
        source_open(mem, d, &g->source[k], g->weighted ? (int64_t)built : -1);
    }
    fill_blend(mem, d, g, weight);
}

static void gpt_open(Arena *mem, Data *d) {
    const DataGptSpec *gpt = d->gpt;
    GptState *g = NEW(mem, GptState);
    d->state = g;
    d->shuffle = false; /* the shuffle index is the order */
    if (d->seed > UINT32_MAX)
        fail_about("seed", EXIT_CONFIG,
                   "seed %llu: a GPTDataset's seed is 0 .. 4294967295",
                   (unsigned long long)d->seed);
    if (gpt->samples > (int64_t)UINT32_MAX - 2)
        fail_about("samples", EXIT_CONFIG, "num_samples %lld: at most 2^32 - 3",
                   (long long)gpt->samples);
    bool needs_eod =
        gpt->reset_position_ids || gpt->reset_attention_mask || gpt->eod_mask_loss;
    choose_sources(mem, d, g);
    if (!d->path[0]) d->path = arena_strdup(mem, g->source[0].path);
    if (gpt->once) g->weighted = false;
    open_sources(mem, d, g);
    if (needs_eod && gpt->eod < 0)
        fail(EXIT_CONFIG, "reset_position_ids, reset_attention_mask and eod_mask_loss "
                          "need eod, the token that ends a document\n"
                          "    hint: --train_dataset.data_loader.eod N, or a tokenizer "
                          "that knows it: --tokenizer_file F");
    if (d->samples < d->batch)
        fail(EXIT_DATA, "%s has %lld samples; a batch needs %lld", d->path,
             (long long)d->samples, (long long)d->batch);
    d->steps_available = d->samples / d->batch;
}

/* ---- samples ---- */

static void gpt_read(const Data *d, int64_t sample, int64_t from, int64_t n,
                     int32_t *out) {
    const GptState *g = d->state;
    const GptSource *s = &g->source[g->which ? g->which[sample] : 0];
    const GptIndex *x = &s->index;
    int64_t own = x->shuffle[g->sample ? g->sample[sample] : sample];
    int64_t nth = x->sample[2 * own], offset = x->sample[2 * own + 1] + from;
    while (n > 0) {
        if (nth >= x->documents)
            fail(EXIT_DATA,
                 "%s: sample %lld points beyond the data: remove its index "
                 "cache",
                 s->spec.name, (long long)sample);
        int64_t sequence = x->document[nth++];
        int64_t length = indexed_length(&s->file.table, sequence);
        if (offset >= length) {
            offset -= length;
            continue;
        }
        int64_t take = MIN(n, length - offset);
        int64_t at = indexed_begin(&s->file.table, sequence) + offset;
        indexed_file_read(d, &s->file, at, take, d->gpt->pad, out);
        out += take;
        n -= take;
        offset = 0;
    }
}

/* The label at i does not count; where labels are kept it is as given. */
static void leave_out(const DataBatch *row, int64_t i, int32_t kept) {
    if (row->loss_mask) row->loss_mask[i] = 0;
    if (row->labels) row->labels[i] = row->keep_labels ? kept : -1;
}

/* What a pair was filled up with is not learned, and token 0 stands in its place, as in Megatron's
 * GPTDataset and that of MindFormers: it may be none of the vocabulary. */
static void mask_padding(const Data *d, const DataBatch *row) {
    for (int64_t i = 0; i < d->seq; i++) {
        if (row->labels && row->labels[i] == d->gpt->pad) leave_out(row, i, 0);
        if (row->tokens[i] == d->gpt->pad) row->tokens[i] = 0;
    }
}

static void gpt_mask(const Data *d, int64_t sample, const DataBatch *row) {
    const DataGptSpec *gpt = d->gpt;
    int64_t begin = 0; /* of the document that position i belongs to */
    (void)sample;
    for (int64_t i = 0; i < d->seq; i++) {
        if (row->positions && gpt->reset_position_ids)
            row->positions[i] = (int32_t)(i - begin);
        if (row->attends_from && gpt->reset_attention_mask)
            row->attends_from[i] = (int32_t)begin;
        if (row->tokens[i] != gpt->eod) continue;
        begin = i + 1;
        if (gpt->eod_mask_loss) leave_out(row, i, row->labels ? row->labels[i] : 0);
    }
    if (gpt->pad >= 0) mask_padding(d, row);
}

static void gpt_close(Data *d) {
    GptState *g = d->state;
    for (int k = 0; g && g->source && k < g->n; k++) {
        indexed_file_close(&g->source[k].file);
        file_unmap(&g->source[k].held);
    }
}

const DataReader data_gpt = {"GPTDataset", false,     gpt_open,
                             gpt_read,     gpt_close, gpt_mask};
