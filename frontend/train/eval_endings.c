/* eval_endings.c - lines of a context and its endings, each ending a sample: the context's
 * tokens and its own, of which only its own have labels. */
#include "base/json.h"
#include "frontend/train/eval.h"
#include <stdlib.h>

enum { MOST_ENDINGS = 64, LINE_BYTES_MAX = 16 << 20 };

typedef struct Ending {
    size_t first; /* of its tokens in `token`, context included */
    int64_t context, own;
    double loss; /* the sum over its own */
} Ending;

typedef struct Example {
    int64_t first; /* ending */
    int n, label;
} Example;

struct Endings {
    Arena *mem;
    const char *path;
    int64_t seq;
    const Tokenizer *tokenizer; /* NULL: tokens are bytes */
    TokenizerCache *cache;
    int32_t *token;
    size_t n, cap;
    Ending *ending;
    int nendings, cap_endings;
    Example *example;
    int nexamples, cap_examples;
    int64_t longest; /* tokens that go into the model */
};

/* ---- tokens ---- */

static int32_t *token_room(Endings *d, size_t more) {
    if (d->n + more > d->cap) {
        size_t cap = MAX(2 * d->cap, d->n + more);
        int32_t *to = NEW_ARRAY(d->mem, int32_t, cap);
        if (d->n) memcpy(to, d->token, d->n * sizeof *to);
        d->token = to, d->cap = cap;
    }
    return d->token + d->n;
}

/* Adds the tokens of a text; how many. */
static int64_t add_text(Endings *d, const char *s, size_t n) {
    size_t most = d->tokenizer ? tokenizer_max_tokens(d->tokenizer, n) : n;
    int32_t *to = token_room(d, most);
    size_t count = n;
    if (d->tokenizer)
        count = tokenizer_encode(d->tokenizer, d->cache, s, n, false, to, most, NULL);
    for (size_t i = 0; !d->tokenizer && i < n; i++) to[i] = (unsigned char)s[i];
    d->n += count;
    return (int64_t)count;
}

/* What begins a text: the template's tokens; where nothing would be before the first label,
 * as the context has none (`empty`), the token that ends the text before. */
static int64_t add_begin(Endings *d, const Json *ctx, bool empty) {
    int n = 0;
    const int32_t *prefix = d->tokenizer ? tokenizer_prefix(d->tokenizer, &n) : NULL;
    int64_t end = d->tokenizer ? tokenizer_eod(d->tokenizer) : -1;
    int32_t *to = token_room(d, (size_t)n + 1);
    if (n) memcpy(to, prefix, (size_t)n * sizeof *to);
    if (!n && empty) {
        if (end < 0)
            json_fail(
                ctx, "a text before the endings",
                "the context is empty, and the model has no token that begins a text");
        to[n++] = (int32_t)end;
    }
    d->n += (size_t)n;
    return n;
}

/* Tokens of the first n bytes alone. */
static int64_t count_tokens(Endings *d, const char *s, size_t n) {
    size_t before = d->n;
    int64_t count = add_text(d, s, n);
    d->n = before;
    return count;
}

/* The ending as it follows the context: behind a space. A tokenizer gets both as one text, whose
 * beginning it may treat in its own way; spaces before an ending are in its tokens then. */
static void add_ending(Endings *d, const Json *ctx, const Json *text) {
    Ending e = {.first = d->n};
    const char *c = json_string(ctx), *s = json_string(text);
    bool apart = !ctx->length || is_blank_char(c[ctx->length - 1]) || is_blank_char(s[0]);
    if (!text->length) json_fail(text, "a text", "an ending has no text");
    Arena *scratch = arena_new();
    Text all = text_new(scratch);
    size_t before = ctx->length;
    text_add_bytes(&all, c, ctx->length);
    text_add(&all, "%s%s", apart ? "" : " ", s);
    while (d->tokenizer && before && c[before - 1] == ' ') before--;
    int64_t whole = count_tokens(d, all.s, all.n);
    int64_t first = MIN(count_tokens(d, all.s, before), whole - 1);
    e.context = first + add_begin(d, ctx, !first);
    add_text(d, all.s, all.n);
    e.own = whole - first;
    arena_free(scratch);
    if (e.own > d->seq)
        json_fail(text, "shorter ones, or a larger seq_length",
                  "the ending has %lld tokens, the model takes %lld", (long long)e.own,
                  (long long)d->seq);
    if (d->nendings == INT32_MAX) json_fail(text, NULL, "too many endings");
    d->longest = MAX(d->longest, e.context + e.own - 1);
    PUSH(d->mem, d->ending, d->nendings, d->cap_endings, e);
}

/* ---- lines ---- */

/* A number, or its digits as a text. */
static int label_of(const Json *v, int n) {
    int64_t label = -1;
    if (v->kind == JSON_STRING) {
        const char *s = json_string(v);
        size_t digits = strspn(s, "0123456789");
        if (digits && digits < 4 && !s[digits]) label = atoi(s);
        if (label < 0 || label >= n)
            json_fail(v, "the number of the right ending, from 0",
                      "the label is \"%.20s\", and there are %d endings", s, n);
        return (int)label;
    }
    label = json_i64(v, 0, INT32_MAX);
    if (label >= n)
        json_fail(v, "the number of the right ending, from 0",
                  "the label is %lld, and there are %d endings", (long long)label, n);
    return (int)label;
}

static void read_line(Endings *d, const char *line, size_t n, int number) {
    Arena *scratch = arena_new();
    const Json *root =
        json_parse_line(scratch, d->path, number, line, n, LINE_BYTES_MAX, EXIT_DATA);
    json_want(root, JSON_OBJECT);
    const Json *ctx = json_need(root, "ctx"), *endings = json_need(root, "endings");
    json_string(ctx);
    json_want(endings, JSON_ARRAY);
    if (endings->n < 2 || endings->n > MOST_ENDINGS)
        json_fail(endings, "2 to 64 texts", "%d endings", endings->n);
    Example x = {.first = d->nendings, .n = endings->n};
    x.label = label_of(json_need(root, "label"), endings->n);
    for (const Json *e = endings->first; e; e = e->next) add_ending(d, ctx, e);
    PUSH(d->mem, d->example, d->nexamples, d->cap_examples, x);
    arena_free(scratch);
}

static bool is_blank_line(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!is_blank_char(s[i])) return false;
    return true;
}

static void read_lines(Endings *d, const char *text, size_t n) {
    const char *end = text + n, *line;
    size_t length;
    for (int number = 1; (line = line_next(&text, end, &length)); number++)
        if (!is_blank_line(line, length)) read_line(d, line, length, number);
    if (!d->nexamples) fail(EXIT_DATA, "%s has no line", d->path);
}

/* ---- samples ---- */

/* What does not fit is cut off at the beginning. */
static void fill_ending(const void *of, int64_t k, int64_t row, const DataBatch *to) {
    const Endings *d = of;
    const Ending *e = &d->ending[k];
    int64_t all = e->context + e->own, cut = MAX(all - 1 - d->seq, 0);
    const int32_t *token = d->token + e->first + cut;
    int64_t n = all - 1 - cut, at = row * d->seq, first = e->context - cut - 1;
    for (int64_t i = 0; i < d->seq; i++) {
        to->tokens[at + i] = i < n ? token[i] : 0;
        to->labels[at + i] = i < n && i >= first ? token[i + 1] : -1;
        to->positions[at + i] = (int32_t)i;
        to->attends_from[at + i] = 0;
    }
}

static void take_ending(void *of, int64_t k, double loss, double correct) {
    Endings *d = of;
    (void)correct;
    d->ending[k].loss = loss;
}

/* No longer than the endings ask for, in parts for the ranks. */
static void choose_seq(Job *j, Endings *d) {
    int64_t unit = 32 * j->strategy.tensor * j->strategy.context;
    j->seq = MIN(j->seq, round_up(MAX(d->longest, 1), unit));
    j->shape.seq = d->seq = j->seq;
}

void eval_endings_open(Eval *e) {
    Job *j = &e->t.job;
    if (!j->has_spec)
        fail(EXIT_CONFIG,
             "--endings takes sequences of any length and a model that looks at no later "
             "token, which a module of one's own (model.file) does not say: %s is of one",
             e->word);
    if (!j->tokenizer && !j->source.bytes)
        fail(EXIT_CONFIG,
             "--endings needs the tokenizer of the model: --tokenizer_file "
             "tokenizer.json, "
             "or put it into %s",
             j->source.path);
    Endings *d = e->endings = NEW(e->t.mem, Endings);
    *d = (Endings){.mem = e->t.mem,
                   .path = e->endings_path,
                   .seq = j->seq,
                   .tokenizer = j->tokenizer,
                   .cache = tokenizer_cache_new()};
    size_t n;
    const char *text = file_read(d->mem, d->path, LINES_FILE_MAX_BYTES, &n, EXIT_DATA);
    hash_hex(text, n, e->endings_hash);
    read_lines(d, text, n);
    tokenizer_cache_free(d->cache);
    choose_seq(j, d);
    e->source = (EvalSource){.of = d,
                             .n = d->nendings,
                             .all = d->nendings,
                             .name = d->path,
                             .fill = fill_ending,
                             .take = take_ending};
}

/* ---- the score ---- */

int64_t eval_endings_count(const Endings *d) {
    return d->nexamples;
}

void eval_endings_score(const Endings *d, int64_t *right, int64_t *right_mean) {
    *right = *right_mean = 0;
    for (int i = 0; i < d->nexamples; i++) {
        const Example *x = &d->example[i];
        const Ending *e = &d->ending[x->first];
        int sum = 0, mean = 0;
        for (int k = 1; k < x->n; k++) {
            if (e[k].loss < e[sum].loss) sum = k;
            if (e[k].loss / (double)e[k].own < e[mean].loss / (double)e[mean].own)
                mean = k;
        }
        *right += sum == x->label;
        *right_mean += mean == x->label;
    }
}
