/* inspect_files.c - see inspect.h: data, weights, metrics, tokenizers. */
#include "frontend/tools/inspect.h"
#include "runtime/core/file_map.h"
#include "runtime/data/indexed.h"
#include "runtime/run/metrics.h"
#include "runtime/store/safetensors.h"
#include "runtime/text/tokenizer.h"
#include <math.h>

/* .bin and .idx */

/* The largest token; fails for one that is none. */
static int64_t largest_token(const IndexedFile *x, int64_t vocab) {
    const IndexedTable *t = &x->table;
    double limit = vocab > 0 ? (double)vocab : 2147483648.0;
    int64_t largest = -1;
    for (uint64_t at = 0; at < x->bin.n; at += (uint64_t)t->token_bytes) {
        double v = indexed_number(x->bin.bytes + at, t->dtype_code);
        if (!(v >= 0 && v < limit) || v != floor(v))
            fail(EXIT_DATA, "%s: offset %llu: token %.10g is outside the vocabulary%s%s",
                 x->bin_path, (unsigned long long)at, v,
                 vocab > 0 ? " of --vocab_size" : "",
                 vocab > 0 ? "" : ": tokens are 0 .. 2^31-1");
        largest = MAX(largest, (int64_t)v);
    }
    return largest;
}

static void say_indexed(const IndexedFile *x, int64_t largest) {
    const IndexedTable *t = &x->table;
    int64_t empty = 0, shortest = INT32_MAX, longest = 0;
    for (int64_t i = 0; i < t->sequences; i++) {
        int64_t n = indexed_length(t, i);
        shortest = MIN(shortest, n);
        longest = MAX(longest, n);
    }
    for (int64_t i = 0; i < t->documents; i++)
        empty += i64_at(t->doc_index, i) == i64_at(t->doc_index, i + 1);
    int64_t tokens = (int64_t)(x->bin.n / (uint64_t)t->token_bytes);
    printf("  tokens       %lld, %s\n", (long long)tokens, t->dtype);
    printf("  documents    %lld (%lld empty)\n", (long long)t->documents,
           (long long)empty);
    printf("  sequences    %lld\n", (long long)t->sequences);
    if (t->sequences)
        printf("  lengths      %lld .. %lld, mean %.1f\n", (long long)shortest,
               (long long)longest, (double)tokens / (double)t->sequences);
    if (largest >= 0) printf("  largest      token %lld\n", (long long)largest);
}

/* stator preprocess and Megatron-LM give an empty document no sequence at all. */
static void refuse_empty(const IndexedFile *x) {
    const IndexedTable *t = &x->table;
    int64_t empty = 0, first = 0;
    for (int64_t i = t->sequences - 1; i >= 0; i--)
        if (indexed_length(t, i) == 0) empty++, first = i;
    if (!empty) return;
    fail(EXIT_DATA,
         "%s: offset %llu: sequence %lld has no token (%lld of %lld have none)",
         x->idx_path, (unsigned long long)(t->lengths - x->idx.bytes + 4 * first),
         (long long)first, (long long)empty, (long long)t->sequences);
}

void inspect_indexed(Arena *mem, const char *path, int64_t vocab) {
    IndexedFile x = {0};
    indexed_file_open(mem, &x, path);
    int64_t largest = largest_token(&x, vocab);
    size_t stem = strlen(x.bin_path) - strlen(".bin");
    printf("%.*s.bin/.idx: Megatron-LM's indexed tokens, %s\n", (int)stem, x.bin_path,
           human((double)(x.idx.n + x.bin.n), "B").s);
    say_indexed(&x, largest);
    refuse_empty(&x);
    indexed_file_close(&x);
}

/* Weights. */

/* One line, whatever a file has for a name. */
static const char *shown(Arena *mem, const char *name) {
    return make_printable(arena_strdup(mem, name), LINES_NONE);
}

void inspect_safetensors(Arena *mem, const char *path) {
    Safetensors *s = safetensors_open(mem, path, EXIT_CHECKPOINT);
    uint64_t elements = 0, bytes = 0, bad = 0;
    const char *first = NULL;
    bool torch = ends_with(path, ".bin") || ends_with(path, ".bin.index.json");
    printf("%s: %s\n", path, torch ? "PyTorch" : "safetensors");
    for (int i = 0; i < s->n; i++) {
        const SafeTensor *t = &s->t[i];
        Text shape = text_new(mem);
        text_add_ints(&shape, ",", t->dim, t->rank);
        uint64_t wrong = safetensors_not_finite(t);
        printf("  %-6s [%s] %s", t->type_name, shape.s, shown(mem, t->name));
        if (wrong) printf("   %llu values are not finite", (unsigned long long)wrong);
        putchar('\n');
        elements += (uint64_t)safetensors_count(t);
        bytes += t->bytes;
        bad += wrong;
        if (wrong && !first) first = t->name;
    }
    printf("  %d tensors, %llu numbers, %s", s->n, (unsigned long long)elements,
           human((double)bytes, "B").s);
    printf(", %llu not finite\n", (unsigned long long)bad);
    for (int i = 0; i < s->metadata_n; i++)
        printf("  %s: %.200s\n", shown(mem, s->metadata_key[i]),
               shown(mem, s->metadata_value[i]));
    safetensors_close(s);
    if (bad)
        fail(EXIT_CHECKPOINT,
             "%s: %llu of the numbers are inf or NaN, the first in %.200s", path,
             (unsigned long long)bad, shown(mem, first));
}

/* Metrics. */

/* What a walk over the rows has seen. */
typedef struct Rows {
    MetricsRow first, last;
    int n;
    int64_t skipped, missing, first_missing; /* steps; those that have no row */
    int64_t tokens;
    double seconds;
    int fallen,
        wild; /* the first row that does not go on, or is not finite; from 1, 0: none */
    MetricsRow at_fallen, at_wild;
    int64_t before_fallen; /* step */
} Rows;

static void see_order(Rows *r, const MetricsRow *row) {
    int64_t next = r->last.step + 1;
    if (r->n == 1) return;
    if (row->step > next && !r->missing) r->first_missing = next;
    r->missing += MAX(row->step - next, 0);
    if (row->step >= next || r->fallen) return;
    r->fallen = r->n;
    r->at_fallen = *row;
    r->before_fallen = r->last.step;
}

/* A step whose loss or norm is not finite is skipped. */
static void see_values(Rows *r, const MetricsRow *row) {
    bool wild = !row->skipped && !(isfinite(row->loss) && isfinite(row->grad_norm));
    r->skipped += row->skipped;
    r->seconds += row->seconds > 0 ? row->seconds : 0;
    if (__builtin_add_overflow(r->tokens, row->tokens, &r->tokens)) r->tokens = INT64_MAX;
    if (!wild || r->wild) return;
    r->wild = r->n;
    r->at_wild = *row;
}

static void see_row(void *context, const MetricsRow *row) {
    Rows *r = context;
    if (!r->n++) r->first = *row;
    see_order(r, row);
    see_values(r, row);
    r->last = *row;
}

static void say_rows(const Rows *r) {
    char time[32];
    if (!r->n) {
        printf("  steps        none\n");
        return;
    }
    printf("  steps        %lld .. %lld\n", (long long)r->first.step,
           (long long)r->last.step);
    if (r->skipped) printf("  skipped      %lld\n", (long long)r->skipped);
    if (r->missing)
        printf("  missing      %lld, the first is step %lld\n", (long long)r->missing,
               (long long)r->first_missing);
    printf("  loss         %.4f .. %.4f\n", r->first.loss, r->last.loss);
    printf("  %-12s %lld in %s\n", r->first.of_samples ? "samples" : "tokens",
           (long long)r->tokens, duration_format(r->seconds, time));
}

void inspect_metrics(Arena *mem, const char *path) {
    (void)mem;
    Rows r = {0};
    const MetricsDamage broken = metrics_walk(path, see_row, &r);
    printf("%s: metrics of a run\n", path);
    say_rows(&r);
    if (broken.lines)
        fail(EXIT_DATA,
             "%s:%d: the line is broken (%d in all); a run that goes on "
             "there takes them out",
             path, broken.first, broken.lines);
    if (r.fallen)
        fail(EXIT_DATA, "%s:%d: step %lld follows step %lld", path, r.fallen,
             (long long)r.at_fallen.step, (long long)r.before_fallen);
    if (r.wild)
        fail(EXIT_DATA,
             "%s:%d: step %lld has loss %g and gradient norm %g, and is none of those "
             "that were skipped",
             path, r.wild, (long long)r.at_wild.step, r.at_wild.loss,
             r.at_wild.grad_norm);
}

/* Tokenizers. */

/* The file that belongs to `path`, which ends in `suffix`: the same with `other`. */
static const char *partner(Arena *mem, const char *path, const char *suffix,
                           const char *other) {
    size_t n = strlen(path) - strlen(suffix);
    return arena_printf(mem, "%.*s%s", (int)n, path, other);
}

static TokenizerSpec tokenizer_spec(Arena *mem, const char *path) {
    static const struct {
        const char *vocab, *merges;
    } pairs[] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};
    TokenizerSpec spec = {.type = "GPT2BPETokenizer", .tokenizer_file = path};
    for (int i = 0; i < ARRAY_LEN(pairs); i++) {
        const char *vocab = NULL, *merges = NULL;
        if (ends_with(path, pairs[i].vocab)) {
            vocab = path;
            merges = partner(mem, path, pairs[i].vocab, pairs[i].merges);
        } else if (ends_with(path, pairs[i].merges)) {
            vocab = partner(mem, path, pairs[i].merges, pairs[i].vocab);
            merges = path;
        }
        if (!vocab) continue;
        spec.tokenizer_file = NULL;
        spec.vocab_file = vocab;
        spec.merge_file = merges;
    }
    return spec;
}

void inspect_tokenizer(Arena *mem, const char *path) {
    const char *json = path_join(mem, path, "tokenizer.json");
    const char *vocab = path_join(mem, path, "vocab.json");
    const char *file = file_exists(json) ? json : file_exists(vocab) ? vocab : path;
    TokenizerSpec spec = tokenizer_spec(mem, file);
    Tokenizer *t = tokenizer_open(mem, &spec);
    printf("%s: tokenizer\n  %s\n", file, tokenizer_describe(t));
    printf("  vocabulary   %lld", (long long)tokenizer_vocab(t));
    if (tokenizer_eod(t) >= 0)
        printf(", end of document %lld", (long long)tokenizer_eod(t));
    putchar('\n');
}
