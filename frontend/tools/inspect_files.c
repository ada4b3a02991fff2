/* inspect_files.c - see inspect.h: data, weights, metrics, tokenizers. */
#include "frontend/tools/inspect.h"
#include "runtime/core/file_map.h"
#include "runtime/data/indexed.h"
#include "runtime/run/metrics.h"
#include "runtime/store/safetensors.h"
#include "runtime/text/json_line.h"
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

/* Lines that are no JSON object; *first is the number of the first one. */
static int64_t count_broken(const char *path, int64_t *first) {
    FileMap map = {0};
    JsonLine json = {0};
    int64_t number = 1, broken = 0;
    file_map(&map, path);
    const char *rest = (const char *)map.bytes, *end = rest + map.n;
    size_t n;
    for (const char *line; (line = line_next(&rest, end, &n)); number++) {
        if (line + n < end && json_line_read(&json, line, n, NULL, 0)) continue;
        if (!broken++) *first = number;
    }
    buffer_free(&json.text);
    buffer_free(&json.pieces);
    file_unmap(&map);
    return broken;
}

void inspect_metrics(Arena *mem, const char *path) {
    int n;
    int64_t first = 0, broken = count_broken(path, &first), tokens = 0;
    MetricsRow *row = metrics_read(mem, path, &n);
    int64_t skipped = 0;
    double seconds = 0;
    char time[32];
    printf("%s: metrics of a run\n", path);
    for (int i = 0; i < n; i++) {
        if (__builtin_add_overflow(tokens, row[i].tokens, &tokens)) tokens = INT64_MAX;
        skipped += row[i].skipped;
        seconds += row[i].seconds > 0 ? row[i].seconds : 0;
    }
    if (n) {
        printf("  steps        %lld .. %lld\n", (long long)row[0].step,
               (long long)row[n - 1].step);
        if (skipped) printf("  skipped      %lld\n", (long long)skipped);
        printf("  loss         %.4f .. %.4f\n", row[0].loss, row[n - 1].loss);
        printf("  tokens       %lld in %s\n", (long long)tokens,
               duration_format(seconds, time));
    }
    if (broken)
        fail(EXIT_DATA,
             "%s:%lld: the line is broken (%lld in all); a run that goes on "
             "there takes them out",
             path, (long long)first, (long long)broken);
    for (int i = 1; i < n; i++)
        if (row[i].step <= row[i - 1].step)
            fail(EXIT_DATA, "%s:%d: step %lld follows step %lld", path, i + 1,
                 (long long)row[i].step, (long long)row[i - 1].step);
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
